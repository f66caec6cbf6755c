//! The pieces of a shard: consecutive elements of one tensor, and the planes of
//! this rank where they belong.

use std::iter::repeat_with;
use std::ops::Range;

use checkpoint::{Digest, Located};
use half::bf16;
use kernels::{WeightFormat, split_master};
use plan::{Formats, PlanHash, SlotLayout};
use shard::{Part, Sharding, Slice};
use tensor::{Dtype, cast_mut, widen};

use super::{Origin, PIECE_BYTES, Staging};
use crate::TrainError;
use crate::stored::Master;

/// Consecutive elements of one tensor and where they belong.
#[derive(Debug)]
pub(super) struct Piece<'a> {
    pub(super) source: &'a Located,
    /// The number of the tensor in the model.
    pub(super) tensor: usize,
    /// The elements of the tensor.
    pub(super) elements: Range<usize>,
    /// The first element of the tensor that the model takes the plane for.
    held_from: usize,
    format: WeightFormat,
    plane: &'a mut [u8],
    /// The master's low bits; empty where nobody keeps them.
    residual: &'a mut [i16],
}

impl<'a> Piece<'a> {
    /// The piece's bytes of the tensor in its file.
    pub(super) fn bytes(&self) -> Range<u64> {
        byte_range(self.source.meta.dtype, &self.elements)
    }

    /// The plane, if the file's bytes can lie there as they are.
    pub(super) fn plane_as_stored(&mut self) -> Option<&mut [u8]> {
        is_stored_as(self.source.meta.dtype, self.format).then_some(&mut *self.plane)
    }

    /// Brings stored elements into the planes; `wide` has room for them.
    pub(super) fn place(&mut self, stored: &[u8], wide: &mut [f32]) -> Result<(), TrainError> {
        if let Some(plane) = self.plane_as_stored() {
            plane.copy_from_slice(stored);
            return Ok(());
        }
        let dtype = self.source.meta.dtype;
        match self.format {
            WeightFormat::F32 => widen(dtype, stored, aligned::<f32>(self.plane))?,
            WeightFormat::Bf16 => {
                let wide = &mut wide[..self.elements.len()];
                widen(dtype, stored, wide)?;
                split(wide, aligned::<bf16>(self.plane), self.residual);
            }
        }
        Ok(())
    }

    /// Bytes of planes that are written: low bits are zero already where the file's
    /// bytes lie in the plane as they are.
    pub(super) fn filled_bytes(&self) -> u64 {
        let low = if is_stored_as(self.source.meta.dtype, self.format) {
            0
        } else {
            size_of_val(self.residual)
        };
        (self.plane.len() + low) as u64
    }

    /// Whether the model takes the plane for the very elements that were read.
    pub(super) fn is_held_where_read(&self) -> bool {
        self.held_from == self.elements.start
    }

    /// The digest of what lies in the planes, as the file would have it and at the
    /// elements that the model takes it for.
    pub(super) fn arrived(&self, staging: &mut Staging) -> Result<Digest, TrainError> {
        let master = Master {
            tensor: self.tensor,
            elements: self.held_from..self.held_from + self.elements.len(),
            format: self.format,
            plane: &*self.plane,
            residual: &*self.residual,
        };
        let stored = master.store(self.source.meta.dtype, staging)?;
        Ok(Digest::of(stored.begin, stored.bytes))
    }

    /// Cuts off the first `len` elements, or all if there are fewer.
    fn take(&mut self, len: usize) -> Option<Piece<'a>> {
        let len = len.min(self.elements.len());
        if len == 0 {
            return None;
        }
        let middle = self.elements.start + len;
        let plane_bytes = len * self.format.size_bytes();
        let residual_len = if self.residual.is_empty() { 0 } else { len };
        let first = Piece {
            source: self.source,
            tensor: self.tensor,
            elements: self.elements.start..middle,
            held_from: self.held_from,
            format: self.format,
            plane: self.plane.split_off_mut(..plane_bytes)?,
            residual: self.residual.split_off_mut(..residual_len)?,
        };
        self.elements.start = middle;
        self.held_from += len;
        Some(first)
    }

    /// The piece in pieces of at most [`PIECE_BYTES`] of the file.
    pub(super) fn cut(mut self) -> impl Iterator<Item = Piece<'a>> {
        let len = piece_len(self.source.meta.dtype);
        std::iter::from_fn(move || self.take(len))
    }

    /// The elements of `range` alone, if the piece has any of them.
    pub(super) fn within(mut self, range: &Range<usize>) -> Option<Piece<'a>> {
        let before = range.start.saturating_sub(self.elements.start);
        self.take(before);
        let len = range.end.saturating_sub(self.elements.start);
        self.take(len)
    }
}

/// Elements of a piece.
pub(crate) fn piece_len(dtype: Dtype) -> usize {
    PIECE_BYTES / size_of(dtype)
}

/// The bytes that elements of a tensor take in its file.
pub(crate) fn byte_range(dtype: Dtype, elements: &Range<usize>) -> Range<u64> {
    let size = size_of(dtype) as u64;
    elements.start as u64 * size..elements.end as u64 * size
}

fn size_of(dtype: Dtype) -> usize {
    dtype.size_bytes().expect("sources are whole-byte floats")
}

/// Whether a plane holds the very bytes of a file.
pub(crate) fn is_stored_as(dtype: Dtype, format: WeightFormat) -> bool {
    matches!(
        (dtype, format),
        (Dtype::F32, WeightFormat::F32) | (Dtype::BF16, WeightFormat::Bf16)
    )
}

/// A part's elements of its tensor.
pub(crate) fn element_range(part: &Part, slice: &Slice) -> Range<usize> {
    let begin = part.rows.start * slice.cols;
    begin..begin + part.num_elements
}

/// Where the parts of a rank's shard come from and lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shard<'a> {
    pub(super) rank: usize,
    pub(super) sharding: &'a Sharding,
    pub(super) formats: &'a Formats,
    /// By bucket and rank.
    pub(super) layouts: &'a [Vec<SlotLayout>],
    pub(super) origin: &'a Origin<'a>,
}

impl<'a> Shard<'a> {
    /// The tensor of a slice of a bucket, and its number in the model.
    pub(super) fn source(&self, bucket: usize, slice: usize) -> (&'a Located, usize) {
        let Origin {
            folder, sources, ..
        } = self.origin;
        let unit = self.sharding.buckets[bucket].unit;
        let tensor = self.sharding.buckets[bucket].slices[slice].tensor;
        (
            sources.of(folder, unit, tensor),
            self.sharding.tensor_number(unit, tensor),
        )
    }

    /// A fingerprint of what all ranks will read: owners, byte ranges, dtypes.
    pub(super) fn plan_hash(&self) -> PlanHash {
        let mut hash = PlanHash::new()
            .with_text(self.origin.settings.way.name())
            .with(self.sharding.world_size as u64);
        for (number, bucket) in self.sharding.buckets.iter().enumerate() {
            for slice in 0..bucket.slices.len() {
                let (source, _) = self.source(number, slice);
                hash = hash
                    .with_text(&source.meta.name)
                    .with_text(source.meta.dtype.name())
                    .with(source.file as u64)
                    .with(source.begin);
                for (rank, part) in bucket.parts_of(slice) {
                    let rows = [part.rows.start, part.rows.end];
                    hash = hash.with(rank as u64);
                    hash = rows.iter().fold(hash, |hash, &row| hash.with(row as u64));
                }
            }
        }
        hash
    }

    /// The parts of the rank's run of a bucket, each as one piece and with the
    /// number of its slice. `residuals` are those of the parts, or none.
    pub(super) fn parts<'s>(
        &self,
        bucket: usize,
        slot: &'s mut [u8],
        residuals: Vec<&'s mut [i16]>,
    ) -> Vec<(usize, Piece<'s>)>
    where
        'a: 's,
    {
        let shape = &self.sharding.buckets[bucket];
        let held_from = |slice: usize| {
            // As the model sees a gathered slice: rank after rank, whatever rows a
            // part says it has.
            let before = shape.parts_of(slice).filter(|(rank, _)| *rank < self.rank);
            let before: usize = before.map(|(_, part)| part.num_elements).sum();
            shape.slices[slice].rows.start * shape.slices[slice].cols + before
        };
        let parts = shape.runs[self.rank].parts.iter();
        let planes = cut_planes(slot, &self.layouts[bucket][self.rank].parts);
        parts
            .zip(planes)
            .zip(residuals.into_iter().chain(repeat_with(Default::default)))
            .map(|((part, plane), residual)| {
                let slice = &shape.slices[part.slice];
                let (source, tensor) = self.source(bucket, part.slice);
                let piece = Piece {
                    source,
                    tensor,
                    elements: element_range(part, slice),
                    held_from: held_from(part.slice),
                    format: self.formats.of(shape.unit, slice.tensor),
                    plane,
                    residual,
                };
                (part.slice, piece)
            })
            .collect()
    }
}

/// The planes of a slot, which lie one after the other with gaps between.
fn cut_planes<'s>(
    mut slot: &'s mut [u8],
    places: &[Range<usize>],
) -> impl Iterator<Item = &'s mut [u8]> {
    let mut at = 0;
    places.iter().map(move |place| {
        let (gap, end) = (place.start - at, place.end - at);
        at = place.end;
        let with_gap = slot.split_off_mut(..end);
        &mut with_gap.expect("a slot holds the planes of its parts")[gap..]
    })
}

/// Splits f32 elements into the bf16 that computes and its low bits.
fn split(wide: &[f32], high: &mut [bf16], low: &mut [i16]) {
    if low.is_empty() {
        for (wide, high) in wide.iter().zip(high) {
            *high = split_master(*wide).0;
        }
        return;
    }
    for ((wide, high), low) in wide.iter().zip(high).zip(low) {
        (*high, *low) = split_master(*wide);
    }
}

/// A plane seen as numbers; parts begin at multiples of 64 bytes, and pieces of
/// them at whole elements.
fn aligned<T: bytemuck::Pod>(plane: &mut [u8]) -> &mut [T] {
    cast_mut(plane).expect("parts are aligned and hold whole elements")
}
