//! How a shard is filled, and how it is known to be right.
//!
//! ```text
//! own          every rank reads its own byte ranges
//! host, root   one rank reads, in bounded pieces that it scatters
//! ```
//!
//! Bytes go file -> staging buffer -> plane, or straight into the plane where the
//! file's dtype is the plane's. Who reads takes the digest of what it read, at the
//! place in the file that it read from; every rank takes the digest of what lies
//! in its planes, in the dtype of the source and at the rows that the model will
//! take it for. In the end both must be the same over all ranks, and the same as
//! the folder's own if it has digests.

mod own;
mod piece;
mod receipt;
mod relay;
mod threads;

use std::fmt;
use std::str::FromStr;

use checkpoint::{CachePolicy, DIRECT_BYTES, Digest, Folder, Located, Sources};
use comm::{ProcessGroup, Window};
use plan::Formats;
use shard::Sharding;
use tensor::{Account, Ledger, Reservation};

use crate::agree::agree;
use crate::{Optimizer, RankWorld, TrainError, TrainJob};
use piece::Shard;

pub(crate) use piece::{PieceSize, byte_range, element_range, piece_len};
pub(crate) use receipt::over_ranks;
pub(crate) use threads::share_out;

/// Stored bytes that are on their way from a file at a time, for each reader.
pub(crate) const PIECE_BYTES: usize = 512 << 10;

/// Elements of a piece at most: those of the narrowest dtype.
pub(crate) const PIECE_LEN: usize = PIECE_BYTES / 2;

/// Bytes of all staging buffers of a rank, unless one piece has more: a row tile of a
/// wide matrix goes in one piece where tiles have scales.
const STAGING_BYTES: usize = 32 << 20;

/// Threads that read for one rank at most: enough to keep a disk busy.
const MOST_READERS: usize = 4;

/// Threads that read on one host, however many ranks it has.
const HOST_READERS: usize = 8;

/// Which rank reads a byte of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadWay {
    /// The rank that holds it.
    #[default]
    Own,
    /// One rank of each host, for all of its host: every byte once, in the order
    /// of the files, as slow or remote disks like it.
    Host,
    /// Rank 0, for all: only its host has the files.
    Root,
}

impl ReadWay {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Own, Self::Host, Self::Root];

    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Host => "host",
            Self::Root => "root",
        }
    }
}

impl fmt::Display for ReadWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A way to read that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown way to read `{0}`, expected `own`, `host` or `root`")]
pub struct UnknownReadWay(pub String);

impl FromStr for ReadWay {
    type Err = UnknownReadWay;

    fn from_str(name: &str) -> Result<Self, UnknownReadWay> {
        let mut all = Self::ALL.into_iter();
        all.find(|way| way.name() == name)
            .ok_or_else(|| UnknownReadWay(name.to_owned()))
    }
}

/// How a load goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadSettings {
    /// Who reads.
    pub way: ReadWay,
    /// What becomes of the page cache.
    pub cache: CachePolicy,
    /// Whether what arrived is compared with what was read.
    pub checks_digests: bool,
}

impl Default for LoadSettings {
    fn default() -> Self {
        Self {
            way: ReadWay::default(),
            cache: CachePolicy::default(),
            checks_digests: true,
        }
    }
}

/// Where a rank's shard comes from.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The folder of the model.
    pub folder: &'a Folder,
    /// Where its tensors are.
    pub sources: &'a Sources,
    /// How they are read.
    pub settings: LoadSettings,
}

impl<'a> Origin<'a> {
    /// The origin of a training run's weights.
    pub(crate) fn of(job: &TrainJob<'a>) -> Result<Self, TrainError> {
        Ok(Self {
            folder: job.folder,
            sources: job.sources,
            settings: job.settings.load()?,
        })
    }

    /// The tensors of a model in the order of their numbers.
    pub(crate) fn numbered(&self, sharding: &Sharding, formats: &Formats) -> Vec<&'a Located> {
        let units = 0..sharding.num_units();
        let numbered =
            units.flat_map(|unit| (0..formats.num_tensors(unit)).map(move |tensor| (unit, tensor)));
        let Self {
            folder, sources, ..
        } = *self;
        numbered
            .map(|(unit, tensor)| sources.of(folder, unit, tensor))
            .collect()
    }
}

/// What a load came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Loaded {
    /// Bytes of tensors that this rank read.
    pub read_bytes: u64,
    /// Bytes of planes that were written: low bits that are all zero are not.
    pub filled_bytes: u64,
    /// The digest of every tensor of the model as its file has it, over all ranks;
    /// empty where digests were not asked for.
    pub digests: Vec<Digest>,
}

/// Fills this rank's planes from the checkpoint and, with the other ranks, checks
/// before that all mean to read the same, and after that all of it arrived.
pub fn load(
    world: &mut RankWorld<'_>,
    origin: &Origin<'_>,
    ledger: &Ledger,
) -> Result<Loaded, TrainError> {
    let hash = ToFill::new(world, origin).shard.plan_hash();
    agree(world.group, hash, "load plan")?;
    let read = match origin.settings.way {
        ReadWay::Own => own::read(ToFill::new(world, origin), ledger)?,
        ReadWay::Host | ReadWay::Root => relay::read(ToFill::new(world, origin), ledger)?,
    };
    let digests = if origin.settings.checks_digests {
        receipt::check(world, origin, &read)?
    } else {
        Vec::new()
    };
    Ok(Loaded {
        read_bytes: read.num_bytes,
        filled_bytes: read.filled_bytes,
        digests,
    })
}

/// A world taken apart to be filled.
struct ToFill<'a> {
    group: &'a ProcessGroup,
    window: &'a Window,
    optimizer: Option<&'a mut Optimizer>,
    shard: Shard<'a>,
}

impl<'a> ToFill<'a> {
    fn new(world: &'a mut RankWorld<'_>, origin: &'a Origin<'a>) -> Self {
        Self {
            group: world.group,
            window: &world.window,
            optimizer: world.optimizer.as_mut(),
            shard: Shard {
                rank: world.rank,
                sharding: world.sharding,
                formats: world.formats,
                layouts: &world.layouts,
                origin,
            },
        }
    }
}

/// What one rank read and what arrived at it.
#[derive(Debug, Default)]
struct Read {
    num_bytes: u64,
    /// Bytes of planes that were written.
    filled_bytes: u64,
    /// By the number of the tensor in the model.
    digests: Vec<ReadDigests>,
}

/// The digests of a tensor's elements, as the file has them or would have them.
#[derive(Debug, Clone, Copy, Default)]
struct ReadDigests {
    /// Of what was read.
    found: Digest,
    /// Of that as its elements are read, rounded to what the planes can hold.
    expected: Digest,
    /// Of what lies in the planes.
    arrived: Digest,
}

impl ReadDigests {
    fn add(&mut self, other: Self) {
        self.found += other.found;
        self.expected += other.expected;
        self.arrived += other.arrived;
    }
}

impl Read {
    fn nothing(sharding: &Sharding) -> Self {
        Self {
            digests: vec![ReadDigests::default(); sharding.num_tensors()],
            ..Self::default()
        }
    }

    fn count(&mut self, tensor: usize, [found, expected, arrived]: [Digest; 3]) {
        self.digests[tensor].add(ReadDigests {
            found,
            expected,
            arrived,
        });
    }

    fn add(&mut self, other: &Self) {
        self.num_bytes += other.num_bytes;
        self.filled_bytes += other.filled_bytes;
        for (sum, &digests) in self.digests.iter_mut().zip(&other.digests) {
            sum.add(digests);
        }
    }
}

/// A thread's buffers for elements between a file and their place: as stored, and
/// as f32.
#[derive(Debug)]
pub(crate) struct Staging {
    /// Aligned for any stored number.
    pub(crate) stored: Vec<u64>,
    pub(crate) wide: Vec<f32>,
    _reservation: Reservation,
}

impl Staging {
    fn for_reading(
        ledger: &Ledger,
        largest: PieceSize,
        cache: CachePolicy,
    ) -> Result<Self, TrainError> {
        let direct = match cache {
            CachePolicy::Direct => DIRECT_BYTES,
            _ => 0,
        };
        Self::with_bytes(ledger, largest, direct)
    }

    /// Buffers of a thread that reads no file.
    pub(crate) fn new(ledger: &Ledger, largest: PieceSize) -> Result<Self, TrainError> {
        Self::with_bytes(ledger, largest, 0)
    }

    fn with_bytes(ledger: &Ledger, largest: PieceSize, more: usize) -> Result<Self, TrainError> {
        let num_bytes = (largest.num_bytes() + more) as u64;
        Ok(Self {
            _reservation: ledger.reserve(Account::Staging, num_bytes)?,
            stored: vec![0; largest.stored_bytes.div_ceil(8)],
            wide: vec![0.0; largest.wide_len],
        })
    }
}

/// Threads that read for one of `ranks` ranks.
pub(crate) fn num_readers(ranks: usize) -> usize {
    (HOST_READERS / ranks).clamp(1, MOST_READERS)
}

#[cfg(test)]
mod tests;
