//! A rank's shard as files have it: its masters in stored dtypes, piece by piece.
//!
//! What an export writes and what a digest is taken of are the same bytes.

use std::ops::Range;

use checkpoint::{Located, Reader};
use comm::Own;
use shard::TILE_ROWS;
use tensor::{Dtype, Ledger, as_bytes_mut, narrow};

use crate::load::{PieceSize, Staging, byte_range, element_range, piece_len, share_out};
use crate::planes::Planes;
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
    /// Elements of a row tile, where tiles have scales.
    tile_len: Option<usize>,
    /// Whether the source is what it is, more exactly than the planes.
    is_frozen: bool,
    pub(crate) planes: Planes<&'a [u8]>,
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
    source: Option<&FrozenSource<'_>>,
    work: impl Fn(&mut S, StoredPiece<'_>) -> Result<(), TrainError> + Sync,
) -> Result<Vec<S>, TrainError> {
    let slots = (0..world.sharding.buckets.len())
        .map(|bucket| world.window.own(bucket))
        .collect::<Result<Vec<_>, _>>()?;
    let largest = PieceSize::largest(world.sharding, world.formats, &dtype_of);
    let pieces = masters(world, &slots).flat_map(|master| {
        let len = piece_len(dtype_of(master.tensor));
        master.cut(len)
    });
    let states = share_out(
        largest.num_threads(num_threads),
        pieces,
        || Ok((Staging::new(ledger, largest)?, begin())),
        |(staging, state), master| {
            let dtype = dtype_of(master.tensor);
            let piece = match source.filter(|_| master.is_frozen) {
                Some(source) => source.read(&master, dtype, staging)?,
                None => master.store(dtype, staging)?,
            };
            work(state, piece)
        },
    )?;
    Ok(states.into_iter().map(|(_, state)| state).collect())
}

/// Where parameters that are not trained are read again: what rests of them may be
/// less than the file has.
#[derive(Debug)]
pub(crate) struct FrozenSource<'a> {
    pub(crate) reader: Reader,
    /// The tensors of the model in the order of their numbers.
    pub(crate) tensors: Vec<&'a Located>,
}

impl FrozenSource<'_> {
    fn read<'s>(
        &self,
        master: &Master<'_>,
        dtype: Dtype,
        staging: &'s mut Staging,
    ) -> Result<StoredPiece<'s>, TrainError> {
        let source = self.tensors[master.tensor];
        let range = byte_range(dtype, &master.elements);
        let len = usize::try_from(range.end - range.start).expect("a piece is small");
        let stored = &mut as_bytes_mut(&mut staging.stored)[..len];
        let elements = master.elements.start as u64..master.elements.end as u64;
        if source.value_dtype() == dtype {
            self.reader.read_values(source, elements, stored, false)?;
        } else {
            let size = dtype.size_bytes().expect("targets are whole-byte floats");
            let mut first = elements.start;
            for stored in stored.chunks_mut(size * staging.wide.len()) {
                let wide = &mut staging.wide[..stored.len() / size];
                let next = first + wide.len() as u64;
                let values = as_bytes_mut(wide);
                self.reader
                    .read_values(source, first..next, values, false)?;
                narrow(dtype, wide, stored)?;
                first = next;
            }
        }
        Ok(StoredPiece {
            tensor: master.tensor,
            begin: range.start,
            bytes: stored,
        })
    }
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
            let storage = world.formats.storage(bucket.unit, slice.tensor);
            let rest = world.optimizer.as_ref();
            let rest = rest.map_or(&[][..], |own| own.rest(index, number));
            let (rows, cols) = (part.rows.len(), slice.cols);
            Master {
                tensor: world.sharding.tensor_number(bucket.unit, slice.tensor),
                elements: element_range(part, slice),
                tile_len: storage.is_tiled().then_some(TILE_ROWS * cols),
                is_frozen: slice.is_frozen,
                planes: Planes::new(storage, rows, cols, &slot[place.clone()], rest),
            }
        })
    })
}

impl<'a> Master<'a> {
    /// One piece by itself.
    pub(crate) fn piece(tensor: usize, elements: Range<usize>, planes: Planes<&'a [u8]>) -> Self {
        Self {
            tensor,
            elements,
            tile_len: None,
            is_frozen: false,
            planes,
        }
    }

    /// Pieces of whole row tiles where tiles have scales, else of at most `most`
    /// elements.
    fn cut(mut self, most: usize) -> impl Iterator<Item = Master<'a>> {
        let len = self.tile_len.unwrap_or(most);
        std::iter::from_fn(move || {
            let begin = self.elements.start;
            let end = self.elements.end.min(begin + len);
            self.elements.start = end;
            let planes = self.planes.take(end - begin);
            (begin < end).then(|| Self {
                is_frozen: self.is_frozen,
                ..Self::piece(self.tensor, begin..end, planes)
            })
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
        let bytes = if let Some(plane) = self.planes.stored_as(dtype) {
            plane
        } else {
            let len = usize::try_from(range.end - range.start).expect("a piece is small");
            let Staging { stored, wide, .. } = staging;
            let stored = &mut as_bytes_mut(stored)[..len];
            self.planes.store(dtype, wide, stored)?;
            stored
        };
        Ok(StoredPiece {
            tensor: self.tensor,
            begin: range.start,
            bytes,
        })
    }
}
