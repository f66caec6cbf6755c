//! The pieces of a shard: consecutive elements of one tensor, and the planes of
//! this rank where they belong.

use std::iter::repeat_with;
use std::ops::Range;

use checkpoint::{Digest, Located};
use kernels::WeightFormat;
use plan::{Formats, PlanHash, SlotLayout, Storage};
use shard::{Part, Sharding, Slice, TILE_ROWS};
use tensor::Dtype;

use super::{Origin, PIECE_BYTES, PIECE_LEN, STAGING_BYTES, Staging};
use crate::TrainError;
use crate::planes::{PlaceError, Planes, round_like};
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
    /// Elements of a row tile, where tiles have scales.
    tile_len: Option<usize>,
    planes: Planes<&'a mut [u8]>,
}

impl<'a> Piece<'a> {
    /// The piece's bytes of the tensor, as its elements are read.
    pub(super) fn bytes(&self) -> Range<u64> {
        byte_range(self.source.value_dtype(), &self.elements)
    }

    /// The plane, if the file's bytes can lie there as they are.
    pub(super) fn plane_as_stored(&mut self) -> Option<&mut [u8]> {
        self.planes.as_stored(self.source.value_dtype())
    }

    /// Brings stored elements into the planes; `wide` has room for them.
    pub(super) fn place(
        &mut self,
        origin: &Origin<'_>,
        stored: &[u8],
        wide: &mut [f32],
    ) -> Result<(), TrainError> {
        let source = self.source;
        match self.planes.place(source.value_dtype(), stored, wide) {
            Ok(()) => Ok(()),
            Err(PlaceError::NotAFloat(error)) => Err(error.into()),
            Err(PlaceError::NotFinite { index, value }) => Err(TrainError::SourceNotFinite {
                tensor: source.meta.name.clone(),
                file: origin.folder.files()[source.file].path.clone(),
                index: self.elements.start + index,
                value,
            }),
        }
    }

    /// Rounds stored elements to what the planes hold of them, if that is less.
    /// Gives whether it did.
    pub(super) fn round(&self, stored: &mut [u8], wide: &mut [f32]) -> Result<bool, TrainError> {
        let dtype = self.source.value_dtype();
        let rounds = self.planes.rounds(dtype);
        if rounds {
            round_like(&self.planes, dtype, stored, wide)?;
        }
        Ok(rounds)
    }

    /// Bytes of planes that are written: low bits are zero already where the file's
    /// bytes lie in the plane as they are.
    pub(super) fn filled_bytes(&mut self) -> u64 {
        let written = match self.plane_as_stored() {
            Some(plane) => plane.len(),
            None => self.planes.num_bytes(),
        };
        written as u64
    }

    /// Whether the model takes the plane for the very elements that were read.
    pub(super) fn is_held_where_read(&self) -> bool {
        self.held_from == self.elements.start
    }

    /// The digest of what lies in the planes, as the file would have it and at the
    /// elements that the model takes it for.
    pub(super) fn arrived(&self, staging: &mut Staging) -> Result<Digest, TrainError> {
        let elements = self.held_from..self.held_from + self.elements.len();
        let master = Master::piece(self.tensor, elements, self.planes.view());
        let stored = master.store(self.source.value_dtype(), staging)?;
        Ok(Digest::of(stored.begin, stored.bytes))
    }

    /// Cuts off the first `len` elements, or all if there are fewer.
    fn take(&mut self, len: usize) -> Option<Piece<'a>> {
        let len = len.min(self.elements.len());
        if len == 0 {
            return None;
        }
        let middle = self.elements.start + len;
        let first = Piece {
            source: self.source,
            tensor: self.tensor,
            elements: self.elements.start..middle,
            held_from: self.held_from,
            tile_len: self.tile_len,
            planes: self.planes.take(len),
        };
        self.elements.start = middle;
        self.held_from += len;
        Some(first)
    }

    /// The piece in row tiles where tiles have scales, else in pieces of at most
    /// [`PIECE_BYTES`] of the file.
    pub(super) fn cut(mut self) -> impl Iterator<Item = Piece<'a>> {
        let most = piece_len(self.source.value_dtype());
        let len = self.tile_len.unwrap_or(most);
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

/// The bytes that elements of a tensor take.
pub(crate) fn byte_range(dtype: Dtype, elements: &Range<usize>) -> Range<u64> {
    let size = size_of(dtype) as u64;
    elements.start as u64 * size..elements.end as u64 * size
}

fn size_of(dtype: Dtype) -> usize {
    dtype.size_bytes().expect("sources are whole-byte floats")
}

/// Elements of a row tile of a slice, where tiles have scales.
pub(super) fn tile_len(storage: Storage, cols: usize) -> Option<usize> {
    storage.is_tiled().then_some(TILE_ROWS * cols)
}

/// Room for any piece of a model: stored, and as f32.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PieceSize {
    pub(super) stored_bytes: usize,
    pub(super) wide_len: usize,
}

impl PieceSize {
    /// The largest piece of all ranks' parts.
    pub(crate) fn largest(
        sharding: &Sharding,
        formats: &Formats,
        dtype_of: impl Fn(usize) -> Dtype,
    ) -> Self {
        let mut largest = Self {
            stored_bytes: PIECE_BYTES,
            wide_len: PIECE_LEN,
        };
        for bucket in &sharding.buckets {
            for slice in &bucket.slices {
                let storage = formats.storage(bucket.unit, slice.tensor);
                let Some(tile_len) = tile_len(storage, slice.cols) else {
                    continue;
                };
                let dtype = dtype_of(sharding.tensor_number(bucket.unit, slice.tensor));
                let len = tile_len.min(slice.num_elements());
                largest.stored_bytes = largest.stored_bytes.max(len * size_of(dtype));
                // A nested master is made of bf16 directly.
                let is_direct = storage.weight != WeightFormat::E4m3 || storage.is_trained();
                if dtype != Dtype::BF16 || !is_direct {
                    largest.wide_len = largest.wide_len.max(len);
                }
            }
        }
        largest
    }

    /// Bytes of both buffers.
    pub(super) fn num_bytes(self) -> usize {
        self.stored_bytes + 4 * self.wide_len
    }

    /// As many threads of those wanted as have room for a piece each.
    pub(crate) fn num_threads(self, wanted: usize) -> usize {
        (STAGING_BYTES / self.num_bytes()).clamp(1, wanted)
    }
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
    /// Room for any piece.
    pub(super) fn largest_piece(&self) -> PieceSize {
        let sources = self.origin.numbered(self.sharding, self.formats);
        let dtype_of = |tensor: usize| sources[tensor].value_dtype();
        PieceSize::largest(self.sharding, self.formats, dtype_of)
    }

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
                if let Some(scales) = &source.scales {
                    let place = [scales.located.file as u64, scales.located.begin];
                    let numbers = place.into_iter().chain(scales.block);
                    hash = numbers.fold(hash, PlanHash::with);
                }
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
    /// number of its slice. `rests` are the rests of their masters, or none.
    pub(super) fn parts<'s>(
        &self,
        bucket: usize,
        slot: &'s mut [u8],
        rests: Vec<&'s mut [u8]>,
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
            .zip(rests.into_iter().chain(repeat_with(Default::default)))
            .map(|((part, plane), rest)| {
                let slice = &shape.slices[part.slice];
                let (source, tensor) = self.source(bucket, part.slice);
                let storage = self.formats.storage(shape.unit, slice.tensor);
                let (rows, cols) = (part.rows.len(), slice.cols);
                let piece = Piece {
                    source,
                    tensor,
                    elements: element_range(part, slice),
                    held_from: held_from(part.slice),
                    tile_len: tile_len(storage, cols),
                    planes: Planes::new(storage, rows, cols, plane, rest),
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
