//! A rank's shard as files have it: its masters in stored dtypes, piece by piece.
//!
//! What an export writes and what a digest is taken of are the same bytes.

use std::ops::Range;

use comm::Own;
use half::bf16;
use kernels::{WeightFormat, join_master};
use tensor::{Dtype, Ledger, as_bytes_mut, cast, narrow};

use crate::load::{Staging, byte_range, element_range, is_stored_as, piece_len, share_out};
use crate::{RankWorld, TrainError};

/// Consecutive elements of one tensor as a file has them.
#[derive(Debug)]
pub(crate) struct StoredPiece<'a> {
    /// The number of the tensor in the model.
    pub(crate) tensor: usize,
    /// Where the bytes begin in the tensor.
    pub(crate) begin: u64,
    pub(crate) bytes: &'a [u8],
}

/// One piece of the shard, before it is brought into its stored dtype.
#[derive(Debug)]
pub(crate) struct Master<'a> {
    /// The number of the tensor in the model.
    pub(crate) tensor: usize,
    /// Elements of the tensor.
    pub(crate) elements: Range<usize>,
    pub(crate) format: WeightFormat,
    pub(crate) plane: &'a [u8],
    /// The master's low bits; empty where nobody keeps them.
    pub(crate) residual: &'a [i16],
}

/// Hands every piece of this rank's shard to `work`, on `num_threads` threads that
/// each have a state; gives the states.
///
/// `dtype_of` names the stored dtype of a tensor by its number in the model.
pub(crate) fn each_stored<S: Send>(
    world: &RankWorld<'_>,
    num_threads: usize,
    ledger: &Ledger,
    dtype_of: impl Fn(usize) -> Dtype + Sync,
    begin: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, StoredPiece<'_>) -> Result<(), TrainError> + Sync,
) -> Result<Vec<S>, TrainError> {
    let slots = (0..world.sharding.buckets.len())
        .map(|bucket| world.window.own(bucket))
        .collect::<Result<Vec<_>, _>>()?;
    let pieces = masters(world, &slots).flat_map(|master| {
        let len = piece_len(dtype_of(master.tensor));
        master.cut(len)
    });
    let states = share_out(
        num_threads,
        pieces,
        || Ok((Staging::new(ledger)?, begin())),
        |(staging, state), master| {
            let dtype = dtype_of(master.tensor);
            work(state, master.store(dtype, staging)?)
        },
    )?;
    Ok(states.into_iter().map(|(_, state)| state).collect())
}

/// The parts of this rank's shard.
fn masters<'a>(
    world: &'a RankWorld<'_>,
    slots: &'a [Own<'_>],
) -> impl Iterator<Item = Master<'a>> + Send {
    let buckets = world.sharding.buckets.iter().zip(slots).enumerate();
    buckets.flat_map(move |(index, (bucket, slot))| {
        let places = world.own_layout(index).parts.iter();
        let parts = bucket.runs[world.rank].parts.iter().zip(places);
        parts.enumerate().map(move |(number, (part, place))| {
            let slice = &bucket.slices[part.slice];
            let optimizer = world.optimizer.as_ref();
            Master {
                tensor: world.sharding.tensor_number(bucket.unit, slice.tensor),
                elements: element_range(part, slice),
                format: world.formats.of(bucket.unit, slice.tensor),
                plane: &slot[place.clone()],
                residual: optimizer.map_or(&[], |own| own.residual(index, number)),
            }
        })
    })
}

impl<'a> Master<'a> {
    /// Pieces of `len` elements, the last of what is left.
    fn cut(self, len: usize) -> impl Iterator<Item = Master<'a>> {
        let num_elements = self.elements.len();
        let size = self.format.size_bytes();
        (0..num_elements).step_by(len).map(move |first| {
            let end = num_elements.min(first + len);
            Master {
                elements: self.elements.start + first..self.elements.start + end,
                plane: &self.plane[first * size..end * size],
                residual: self.residual.get(first..end).unwrap_or_default(),
                ..self
            }
        })
    }

    /// The piece in its stored dtype; in place, where the plane is stored as it is.
    pub(crate) fn store<'s>(
        self,
        dtype: Dtype,
        staging: &'s mut Staging,
    ) -> Result<StoredPiece<'s>, TrainError>
    where
        'a: 's,
    {
        let range = byte_range(dtype, &self.elements);
        let bytes = if is_stored_as(dtype, self.format) {
            self.plane
        } else {
            let len = usize::try_from(range.end - range.start).expect("a piece is small");
            let Staging { stored, wide, .. } = staging;
            let stored = &mut as_bytes_mut(stored)[..len];
            let wide = &mut wide[..self.elements.len()];
            self.widen(wide);
            narrow(dtype, wide, stored)?;
            stored
        };
        Ok(StoredPiece {
            tensor: self.tensor,
            begin: range.start,
            bytes,
        })
    }

    fn widen(&self, wide: &mut [f32]) {
        match self.format {
            WeightFormat::F32 => wide.copy_from_slice(aligned(self.plane)),
            WeightFormat::Bf16 => {
                let high = aligned::<bf16>(self.plane).iter();
                let low = self.residual.iter().copied().chain(std::iter::repeat(0));
                for ((wide, &high), low) in wide.iter_mut().zip(high).zip(low) {
                    *wide = join_master(high, low);
                }
            }
        }
    }
}

/// A plane seen as numbers; parts begin at multiples of 64 bytes, and pieces of
/// them at whole elements.
fn aligned<T: bytemuck::Pod>(plane: &[u8]) -> &[T] {
    cast(plane).expect("parts are aligned and hold whole elements")
}
