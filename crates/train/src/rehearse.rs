//! A load for its own sake: as a whole world, or as any one rank of any world.
//!
//! One rank of a large world needs no peers to be loaded: its shard follows from
//! the headers. So a small machine tells what a rank of a large job will hold,
//! read and take.

use std::num::NonZeroUsize;
use std::time::Instant;

use checkpoint::Digest;
use comm::{ProcessGroup, Threads, run_threads};
use kernels::Cpu;
use model::Transformer;
use plan::{Formats, Precision, shard_model};
use serde::Serialize;
use tensor::{Account, Ledger};

use crate::load::{Origin, load};
use crate::meter::{MemorySnapshot, Meter, mib};
use crate::place::open_arena;
use crate::run::rank_error;
use crate::{InferenceModel, LoadSettings, Optimizer, RankWorld, TrainError, resting_formats};

/// What to load.
#[derive(Debug, Clone, Copy)]
pub struct Rehearsal<'a> {
    /// The model.
    pub model: InferenceModel<'a>,
    /// How it is read.
    pub settings: LoadSettings,
    /// How its weights rest; without one as for inference.
    pub precision: Option<&'a Precision>,
    /// The number of ranks.
    pub world_size: NonZeroUsize,
    /// The only rank that is loaded; without one all are, in this process.
    pub as_rank: Option<usize>,
}

/// What a rank held and read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankLoad {
    /// The rank.
    pub rank: usize,
    /// Its weights and their low bits.
    pub shard_bytes: u64,
    /// The optimizer's moments of the shard, which a run adds; 0 without a recipe.
    pub moments_bytes: u64,
    /// Bytes of the shard that were written: low bits that are all zero are not.
    pub filled_bytes: u64,
    /// Bytes of tensors that it read.
    pub read_bytes: u64,
    /// The most that it held in staging buffers.
    pub staging_bytes: u64,
    #[serde(skip)]
    digests: Vec<Digest>,
}

/// What a load came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadReport {
    /// The number of ranks of the world.
    pub world_size: usize,
    /// The ranks that were loaded.
    pub ranks: Vec<RankLoad>,
    /// From the first byte to the last, digests compared.
    pub seconds: f64,
    /// The most memory of this process, less pages of files that it had before.
    pub peak_mib: f64,
    /// That, less the filled bytes of the shards.
    pub overhead_mib: f64,
    /// Name and digest of every tensor; of the rank's ranges where only one rank
    /// was loaded, empty where digests were not asked for.
    pub digests: Vec<(String, String)>,
}

/// Loads and drops again.
pub fn rehearse(rehearsal: &Rehearsal<'_>) -> Result<LoadReport, TrainError> {
    let world_size = rehearsal.world_size.get();
    if let Some(rank) = rehearsal.as_rank {
        comm::World::new(rank, world_size)?;
    }
    let model = rehearsal.model.model;
    let formats = match rehearsal.precision {
        Some(precision) => Formats::of(model, precision),
        None => resting_formats(&rehearsal.model),
    };
    let before = MemorySnapshot::now();
    drop(Meter::begin("load"));
    let began = Instant::now();
    let threads = match rehearsal.as_rank {
        Some(_) => Threads::of(NonZeroUsize::MIN),
        None => Threads::of(rehearsal.world_size),
    };
    let ranks = run_threads(threads, |group| load_rank(rehearsal, &formats, &group))
        .map_err(|failure| rank_error(failure, world_size))?;
    let seconds = began.elapsed().as_secs_f64();
    let peak_mib = MemorySnapshot::now().peak_mib - before.file_mib;
    let filled: u64 = ranks.iter().map(|rank| rank.filled_bytes).sum();
    Ok(LoadReport {
        world_size,
        seconds,
        peak_mib,
        overhead_mib: peak_mib - mib(filled),
        digests: named_digests(model, &ranks),
        ranks,
    })
}

fn load_rank(
    rehearsal: &Rehearsal<'_>,
    formats: &Formats,
    group: &ProcessGroup,
) -> Result<RankLoad, TrainError> {
    let InferenceModel {
        folder,
        sources,
        model,
        ..
    } = rehearsal.model;
    let sharding = shard_model(model, rehearsal.world_size, formats);
    let rank = rehearsal.as_rank.unwrap_or(group.world().rank());
    let ledger = Ledger::unlimited();
    let (arena, _reservation) = open_arena(0, &ledger)?;
    let device = Cpu::new(arena, 1);
    let optimizer = match rehearsal.precision {
        Some(_) => Some(Optimizer::new(
            &sharding,
            rank,
            formats,
            (&crate::Settings::default()).into(),
            &ledger,
        )?),
        None => None,
    };
    let mut world =
        RankWorld::of_rank(rank, group, &device, &sharding, formats, optimizer, &ledger)?;
    let origin = Origin {
        folder,
        sources,
        settings: rehearsal.settings,
    };
    let loaded = load(&mut world, &origin, &ledger)?;
    let held = |account| {
        let mut lines = ledger.lines().into_iter();
        lines
            .find(|line| line.account == account)
            .map_or(0, |line| line.peak_bytes)
    };
    Ok(RankLoad {
        rank,
        shard_bytes: held(Account::Weights) + held(Account::Residuals),
        moments_bytes: held(Account::Moments),
        filled_bytes: loaded.filled_bytes,
        read_bytes: loaded.read_bytes,
        staging_bytes: held(Account::Staging),
        digests: loaded.digests,
    })
}

fn named_digests(model: &Transformer, ranks: &[RankLoad]) -> Vec<(String, String)> {
    let names = model.params().map(|param| param.name.clone());
    let digests = ranks.first().map_or(&[][..], |rank| &rank.digests);
    names
        .zip(digests)
        .map(|(name, digest)| (name, digest.to_string()))
        .collect()
}
