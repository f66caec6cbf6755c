//! The collectives.
//!
//! Every reduction adds in rank order, 0 first, on every rank that needs the
//! result, so that all ranks get the same bits.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rayon::prelude::*;

use crate::board::Call;
use crate::hub::{OUTBOX_BYTES, Seat};
use crate::{CommError, Result, Window, WindowLayout, World, shared};

/// Elements that are summed over all ranks before the next ones are looked at:
/// they stay in the nearest cache, so the sum is written to memory once.
const SUM_CHUNK_LEN: usize = 4096;

/// Pieces of an outbox begin at multiples of this many elements.
const ALIGN_LEN: usize = 16;

/// How numbers of several ranks become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOp {
    /// Their sum; of integers at most the largest one there is.
    Sum,
    /// Their sum modulo 2^64; of floats the same as [`ReduceOp::Sum`].
    WrappingSum,
    /// The largest; NaN if any is NaN.
    Max,
}

/// One rank's handle on its group.
#[derive(Debug)]
pub struct ProcessGroup {
    seat: Arc<Seat>,
    // A rank is in one round at a time, also if several of its threads call.
    turn: Mutex<()>,
}

impl ProcessGroup {
    pub(crate) fn new(seat: Seat) -> Self {
        Self {
            seat: Arc::new(seat),
            turn: Mutex::new(()),
        }
    }

    /// Which rank this is, and of how many.
    pub fn world(&self) -> World {
        self.seat.world
    }

    /// Sets how long each later call of this rank waits at most, windows
    /// included.
    pub fn set_deadline(&self, deadline: Duration) {
        self.seat.set_deadline(deadline);
    }

    /// Ends the group: all waits of all ranks return an error with `message`.
    pub fn fail(&self, message: impl Into<String>) {
        self.seat.hub.fail(self.seat.rank(), &message.into());
    }

    /// Waits until every rank is here.
    pub fn barrier(&self, name: &str) -> Result<()> {
        self.exchange(&call("barrier", name, vec![]), &[], |_, _, _| ())
    }

    /// Gives every rank the bytes of every rank, in rank order.
    pub fn all_gather(&self, bytes: &[u8], name: &str) -> Result<Vec<Vec<u8>>> {
        let mut gathered = vec![Vec::new(); self.world().world_size()];
        let call = call("all_gather", name, vec![]);
        self.exchange(&call, bytes, |rank, _, lent| {
            gathered[rank].extend_from_slice(lent);
        })?;
        Ok(gathered)
    }

    /// Gives every rank the bytes of rank `root`.
    pub fn broadcast(&self, bytes: &mut Vec<u8>, root: usize, name: &str) -> Result<()> {
        World::new(root, self.world().world_size())?;
        let is_root = self.world().rank() == root;
        let lent = if is_root { &bytes[..] } else { &[] };
        let mut received = Vec::new();
        let call = call("broadcast", name, vec![root]);
        self.exchange(&call, lent, |rank, _, lent| {
            if rank == root && !is_root {
                received.extend_from_slice(lent);
            }
        })?;
        if !is_root {
            *bytes = received;
        }
        Ok(())
    }

    /// Hands to `read` this rank's range of the bytes that rank `root` lends. The
    /// other ranks lend nothing.
    ///
    /// `ranges` has one range of the bytes for each rank.
    pub fn scatter<T>(
        &self,
        bytes: &[u8],
        root: usize,
        ranges: &[Range<usize>],
        name: &str,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let world = self.world();
        World::new(root, world.world_size())?;
        let agreed = ranges.iter().flat_map(|range| [range.start, range.end]);
        let call = call("scatter", name, [root].into_iter().chain(agreed).collect());
        let check = |what, expected, found| size_check(&call, what, expected, found);
        check("the list of ranges", world.world_size(), ranges.len())?;
        let is_root = world.rank() == root;
        let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        if is_root {
            check("what the root lends", end, bytes.len())?;
        }
        let range = ranges[world.rank()].clone();
        let lent = if is_root { bytes } else { &[] };
        // Words, so that what is read is aligned for any number.
        let mut received = vec![0_u64; range.len().div_ceil(8)];
        let bytes = &mut tensor::as_bytes_mut(&mut received)[..range.len()];
        self.exchange(&call, lent, |rank, first, lent| {
            let begin = range.start.max(first);
            let end = range.end.min(first + lent.len());
            if rank == root && begin < end {
                let place = begin - range.start..end - range.start;
                bytes[place].copy_from_slice(&lent[begin - first..end - first]);
            }
        })?;
        Ok(read(bytes))
    }

    /// Replaces each number by the sum or maximum over all ranks.
    pub fn all_reduce_f64(&self, values: &mut [f64], op: ReduceOp, name: &str) -> Result<()> {
        let name = format!("{name} ({op:?})");
        self.all_reduce("all_reduce_f64", &name, values, |a, b| match op {
            ReduceOp::Sum | ReduceOp::WrappingSum => a + b,
            ReduceOp::Max if a.is_nan() || b.is_nan() => f64::NAN,
            ReduceOp::Max => a.max(b),
        })
    }

    /// Replaces each number by the sum or maximum over all ranks.
    pub fn all_reduce_u64(&self, values: &mut [u64], op: ReduceOp, name: &str) -> Result<()> {
        let name = format!("{name} ({op:?})");
        self.all_reduce("all_reduce_u64", &name, values, |a, b| match op {
            ReduceOp::Sum => a.saturating_add(b),
            ReduceOp::WrappingSum => a.wrapping_add(b),
            ReduceOp::Max => a.max(b),
        })
    }

    fn all_reduce<T: Copy + bytemuck::Pod>(
        &self,
        collective: &'static str,
        name: &str,
        values: &mut [T],
        combine: impl Fn(T, T) -> T,
    ) -> Result<()> {
        let call = call(collective, name, vec![values.len()]);
        let own = values.to_vec();
        self.exchange(&call, tensor::as_bytes(&own), |rank, first, lent| {
            let sums = &mut values[first / size_of::<T>()..];
            for (sum, &value) in sums.iter_mut().zip(numbers::<T>(lent)) {
                *sum = if rank == 0 {
                    value
                } else {
                    combine(*sum, value)
                };
            }
        })
    }

    /// Sums the ranks' contributions and writes this rank's range of the sum to
    /// `out`. `None` contributes zeros without having them in memory.
    ///
    /// `ranges` has one range of the contribution for each rank. Each rank lends
    /// what the others need piece by piece, so that the sum is made of numbers that
    /// are still in a cache.
    pub fn reduce_scatter_f32(
        &self,
        contribution: Option<&[f32]>,
        ranges: &[Range<usize>],
        out: &mut [f32],
        name: &str,
    ) -> Result<()> {
        let agreed = ranges.iter().flat_map(|range| [range.start, range.end]);
        let call = call("reduce_scatter_f32", name, agreed.collect());
        let range = self.own_range(&call, contribution, ranges, out.len())?;
        let world = self.world();
        // Equal room for every rank in every outbox.
        let room = OUTBOX_BYTES / size_of::<f32>() / world.world_size();
        let room = room.saturating_sub(room % ALIGN_LEN).max(1);
        let longest = ranges.iter().map(Range::len).max().unwrap_or(0);
        let _turn = self.turn();
        for first in (0..longest.max(1)).step_by(room) {
            let piece = |range: &Range<usize>| {
                let begin = range.end.min(range.start + first);
                begin..range.end.min(begin + room)
            };
            let fill = |outbox: &mut [u8]| {
                let Some(contribution) = contribution else {
                    return;
                };
                let others = ranges.iter().enumerate();
                for (rank, range) in others.filter(|&(rank, _)| rank != world.rank()) {
                    let lent = tensor::as_bytes(&contribution[piece(range)]);
                    outbox[rank * room * size_of::<f32>()..][..lent.len()].copy_from_slice(lent);
                }
            };
            let own = piece(&range);
            let out = &mut out[own.start - range.start..own.end - range.start];
            let lent_bytes = contribution.map_or(0, |_| 1);
            shared::round(&self.seat, &call, lent_bytes, fill, |outboxes| {
                // Who lends nothing contributes zeros.
                let lends = outboxes.lent_bytes.iter().enumerate();
                let lends = lends.filter(|&(_, &bytes)| bytes > 0);
                let peers: Vec<&[f32]> = lends
                    .map(|(rank, _)| match contribution {
                        Some(contribution) if rank == world.rank() => &contribution[own.clone()],
                        _ => &numbers(outboxes.of(rank))[world.rank() * room..][..own.len()],
                    })
                    .collect();
                sum_in_order(&peers, out);
            })?;
        }
        Ok(())
    }

    /// This rank's range, if all sizes fit.
    fn own_range(
        &self,
        call: &Call,
        contribution: Option<&[f32]>,
        ranges: &[Range<usize>],
        out_len: usize,
    ) -> Result<Range<usize>> {
        let check = |what, expected, found| size_check(call, what, expected, found);
        let world = self.world();
        check("the list of ranges", world.world_size(), ranges.len())?;
        let range = ranges[world.rank()].clone();
        check("the output", range.len(), out_len)?;
        let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        let contributed = contribution.map_or(end, <[f32]>::len);
        check("the contribution", end, contributed)?;
        Ok(range)
    }

    /// Maps a window that all ranks share.
    pub fn window(&self, layout: &WindowLayout) -> Result<Window> {
        let _turn = self.turn();
        Window::meet(&self.seat, layout)
    }

    /// Hands what every rank lends to `read`, rank by rank and piece by piece, with
    /// the place of the piece's first byte.
    fn exchange(
        &self,
        call: &Call,
        bytes: &[u8],
        mut read: impl FnMut(usize, usize, &[u8]),
    ) -> Result<()> {
        let _turn = self.turn();
        let mut first = 0;
        loop {
            let piece = &bytes[bytes.len().min(first)..bytes.len().min(first + OUTBOX_BYTES)];
            let fill = |outbox: &mut [u8]| outbox[..piece.len()].copy_from_slice(piece);
            let most = shared::round(&self.seat, call, bytes.len(), fill, |outboxes| {
                for (rank, &lent_bytes) in outboxes.lent_bytes.iter().enumerate() {
                    let left = lent_bytes.saturating_sub(first).min(OUTBOX_BYTES);
                    read(rank, first, &outboxes.of(rank)[..left]);
                }
                outboxes.lent_bytes.iter().copied().max().unwrap_or(0)
            })?;
            first += OUTBOX_BYTES;
            if first >= most {
                return Ok(());
            }
        }
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size_check(call: &Call, what: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(CommError::SizeMismatch {
        collective: call.to_string(),
        what,
        expected,
        found,
    })
}

fn call(collective: &'static str, name: &str, agreed: Vec<usize>) -> Call {
    Call {
        collective,
        name: name.to_owned(),
        agreed,
    }
}

/// Sees a peer's bytes as the numbers that they were lent as.
fn numbers<T: bytemuck::Pod>(bytes: &[u8]) -> &[T] {
    if bytes.is_empty() {
        return &[];
    }
    tensor::cast(bytes).expect("all ranks are in the same call, which lends these numbers")
}

/// Writes the sum of `peers`, first to last, to `out`.
fn sum_in_order(peers: &[&[f32]], out: &mut [f32]) {
    let Some((first, rest)) = peers.split_first() else {
        out.fill(0.0);
        return;
    };
    let chunks = out.par_chunks_mut(SUM_CHUNK_LEN).enumerate();
    chunks.for_each(|(chunk, out)| {
        let at = chunk * SUM_CHUNK_LEN..chunk * SUM_CHUNK_LEN + out.len();
        out.copy_from_slice(&first[at.clone()]);
        for peer in rest {
            for (sum, &value) in out.iter_mut().zip(&peer[at.clone()]) {
                *sum += value;
            }
        }
    });
}
