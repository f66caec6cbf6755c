//! One rank reads for all and scatters what it read, piece by piece.
//!
//! ```text
//! reading thread   file -> one of a few buffers     waits when all are full
//! every rank       scatter: takes its elements of the piece, in place
//! ```
//!
//! All ranks walk the same list of turns, which follows from the sharding alone.
//! A rank that holds nothing of a piece still takes its turn.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use checkpoint::{Digest, Located};
use shard::Sharding;
use tensor::{Account, Ledger, as_bytes, as_bytes_mut, round_stored};

use super::piece::{Piece, Shard, byte_range, element_range, piece_len, tile_len};
use super::{Origin, Read, Staging, ToFill};
use crate::TrainError;

/// The rank that reads.
const ROOT: usize = 0;

/// Pieces that are read ahead.
const NUM_BUFFERS: usize = 4;

/// Elements of one slice that are read and scattered at once.
#[derive(Debug, Clone)]
struct Turn<'a> {
    slice: usize,
    source: &'a Located,
    /// Its number in the model.
    tensor: usize,
    /// Elements of the tensor.
    elements: Range<usize>,
}

impl Turn<'_> {
    /// Bytes of the tensor as its elements are read: the root makes f32 of FP8 codes.
    fn bytes(&self) -> Range<u64> {
        byte_range(self.source.value_dtype(), &self.elements)
    }

    fn num_bytes(&self) -> usize {
        let bytes = self.bytes();
        usize::try_from(bytes.end - bytes.start).expect("a piece is small")
    }

    /// Each rank's bytes of the piece.
    fn ranges(&self, sharding: &Sharding, bucket: usize) -> Vec<Range<usize>> {
        let shape = &sharding.buckets[bucket];
        let slice = &shape.slices[self.slice];
        let size = self.source.value_dtype().size_bytes().expect("whole bytes");
        let mut ranges = vec![0..0; sharding.world_size];
        for (rank, part) in shape.parts_of(self.slice) {
            let held = element_range(part, slice);
            let begin = held.start.max(self.elements.start);
            let end = held.end.min(self.elements.end);
            if begin < end {
                let first = self.elements.start;
                ranges[rank] = (begin - first) * size..(end - first) * size;
            }
        }
        ranges
    }
}

/// The turns of a bucket.
fn turns<'a>(shard: &Shard<'a>, bucket: usize) -> Vec<Turn<'a>> {
    let shape = &shard.sharding.buckets[bucket];
    let mut turns = Vec::new();
    for (number, slice) in shape.slices.iter().enumerate() {
        let (source, tensor) = shard.source(bucket, number);
        let storage = shard.formats.storage(shape.unit, slice.tensor);
        let len = tile_len(storage, slice.cols).unwrap_or(piece_len(source.value_dtype()));
        let all = slice.rows.start * slice.cols..slice.rows.end * slice.cols;
        turns.extend(all.clone().step_by(len).map(|first| Turn {
            slice: number,
            source,
            tensor,
            elements: first..all.end.min(first + len),
        }));
    }
    turns
}

/// A piece on its way from the reading thread, or what kept it from reading.
type Filled = Result<Vec<u64>, TrainError>;

/// Fills this rank's planes with what the root reads.
pub(super) fn read(to_fill: ToFill<'_>, ledger: &Ledger) -> Result<Read, TrainError> {
    let shard = to_fill.shard;
    if shard.rank != ROOT {
        return take_turns(to_fill, ledger, || Ok(Vec::new()), drop);
    }
    let buffer_bytes = shard.largest_piece().stored_bytes;
    let _buffers = ledger.reserve(Account::Staging, (NUM_BUFFERS * buffer_bytes) as u64)?;
    let (filled, to_scatter) = sync_channel::<Filled>(NUM_BUFFERS);
    let (scattered, free) = sync_channel(NUM_BUFFERS);
    for _ in 0..NUM_BUFFERS {
        scattered
            .send(vec![0; buffer_bytes.div_ceil(8)])
            .expect("both ends are here");
    }
    thread::scope(|scope| {
        let reading = scope.spawn(move || read_turns(&shard, &filled, &free));
        let taken = take_turns(
            to_fill,
            ledger,
            // Both ends go with the turns, however these end: a reader that waits
            // for a buffer, or for room, is then told that nobody comes.
            move || to_scatter.recv().expect("the reader sends a piece a turn"),
            // The reader is gone once it has read everything.
            move |buffer| drop(scattered.send(buffer)),
        );
        let read = reading.join().unwrap_or_else(|panic| resume_unwind(panic));
        let mut taken = taken?;
        taken.add(&read);
        Ok(taken)
    })
}

/// Reads the piece of every turn into the next free buffer; ends early where
/// nobody takes them any more.
fn read_turns(shard: &Shard<'_>, filled: &SyncSender<Filled>, free: &Receiver<Vec<u64>>) -> Read {
    let Origin {
        folder, settings, ..
    } = *shard.origin;
    let mut read = Read::nothing(shard.sharding);
    let reader = match folder.open_files_with(settings.cache) {
        Ok(reader) => reader,
        Err(error) => {
            drop(filled.send(Err(error.into())));
            return read;
        }
    };
    let buckets = 0..shard.sharding.buckets.len();
    for turn in buckets.flat_map(|bucket| turns(shard, bucket)) {
        let Ok(mut buffer) = free.recv() else {
            return read;
        };
        let stored = &mut as_bytes_mut(&mut buffer)[..turn.num_bytes()];
        let elements = turn.elements.start as u64..turn.elements.end as u64;
        read.num_bytes += turn.source.stored_bytes(elements.end - elements.start);
        let outcome = reader.read_values(turn.source, elements, stored, settings.checks_digests);
        round_stored(turn.source.value_dtype(), stored);
        let is_over = outcome.is_err();
        let outcome = outcome.map(|found| {
            read.count(turn.tensor, [found, Digest::default(), Digest::default()]);
            buffer
        });
        if filled.send(outcome.map_err(Into::into)).is_err() || is_over {
            return read;
        }
    }
    read
}

/// Takes this rank's elements of every piece. On the root `next` gives the pieces
/// and `done` takes their buffers back.
fn take_turns(
    to_fill: ToFill<'_>,
    ledger: &Ledger,
    mut next: impl FnMut() -> Filled,
    done: impl Fn(Vec<u64>),
) -> Result<Read, TrainError> {
    let ToFill {
        group,
        window,
        mut optimizer,
        shard,
    } = to_fill;
    let mut staging = Staging::new(ledger, shard.largest_piece())?;
    let mut taken = Read::nothing(shard.sharding);
    for bucket in 0..shard.sharding.buckets.len() {
        let mut slot = window.own_mut(bucket)?;
        for turn in turns(&shard, bucket) {
            let buffer = next()?;
            let ranges = turn.ranges(shard.sharding, bucket);
            let bytes = as_bytes(&buffer)
                .get(..turn.num_bytes())
                .unwrap_or_default();
            let rests = optimizer.as_mut();
            let rests = rests.and_then(|own| own.rests_mut().nth(bucket));
            let mut piece = shard
                .parts(bucket, &mut slot, rests.unwrap_or_default())
                .into_iter()
                .find(|(slice, _)| *slice == turn.slice)
                .and_then(|(_, part)| part.within(&turn.elements));
            let mut expected = Digest::default();
            group.scatter(bytes, ROOT, &ranges, "load", |stored| match &mut piece {
                Some(piece) => take(&shard, piece, stored, &mut staging, &mut expected),
                None => Ok(()),
            })??;
            done(buffer);
            let Some(mut piece) = piece else { continue };
            taken.filled_bytes += piece.filled_bytes();
            if shard.origin.settings.checks_digests {
                let arrived = piece.arrived(&mut staging)?;
                taken.count(piece.tensor, [Digest::default(), expected, arrived]);
            }
        }
    }
    Ok(taken)
}

/// Places what came of a piece, and takes the digest of what should lie there then.
fn take(
    shard: &Shard<'_>,
    piece: &mut Piece<'_>,
    stored: &[u8],
    staging: &mut Staging,
    expected: &mut Digest,
) -> Result<(), TrainError> {
    let Staging {
        stored: own, wide, ..
    } = staging;
    piece.place(shard.origin, stored, wide)?;
    if shard.origin.settings.checks_digests {
        let own = &mut as_bytes_mut(own)[..stored.len()];
        own.copy_from_slice(stored);
        piece.round(own, wide)?;
        *expected = Digest::of(piece.bytes().start, own);
    }
    Ok(())
}
