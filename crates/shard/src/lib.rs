//! Which rank holds which rows of which tensor, for any world size.
//!
//! ```text
//! unit      embedding, one block, or head: a list of tensors
//! bucket    what is gathered, reduced and updated at once
//! slice     the rows of one tensor that lie in one bucket
//! row tile  128 rows of a matrix (the last may be shorter); a vector is one
//! run       the contiguous elements of a bucket that one rank holds
//! part      the rows of one slice that lie in one run
//! ```
//!
//! This is plain arithmetic over shapes: every rank computes the same
//! [`Sharding`] from the same shapes and no rank asks another. World size 1 is
//! one run that holds everything.

mod buckets;
mod deal;

pub use buckets::{BUCKET_BYTES, Slice, TILE_ROWS, TensorShape};
pub use deal::{Part, Run};

use std::num::NonZeroUsize;
use std::ops::Range;

use buckets::Cut;
use deal::Dealt;

/// A whole model, cut into buckets that are dealt to the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharding {
    /// The number of ranks.
    pub world_size: usize,
    /// All buckets, in the order of their units.
    pub buckets: Vec<Bucket>,
    /// The first bucket of each unit, and the number of buckets at the end.
    first_bucket: Vec<usize>,
    /// The first tensor of each unit, and the number of tensors at the end.
    first_tensor: Vec<usize>,
}

/// What is gathered, reduced and updated at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// The unit that the tensors belong to.
    pub unit: usize,
    /// Rows of tensors, one after the other.
    pub slices: Vec<Slice>,
    /// Elements of all slices.
    pub num_elements: usize,
    /// What each rank holds, in rank order; together exactly the bucket.
    pub runs: Vec<Run>,
}

impl Sharding {
    /// Cuts `units` into buckets and deals them to `world_size` ranks.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// use shard::{Sharding, TensorShape};
    ///
    /// let weight = TensorShape { rows: 300, cols: 64, is_vector: false, is_table: false, is_frozen: false, bytes_per_element: 12 };
    /// let two = NonZeroUsize::new(2).expect("two ranks");
    /// let sharding = Sharding::new(&[vec![weight]], two);
    /// let [first, second] = &sharding.buckets[0].runs[..] else { panic!("one run a rank") };
    /// assert_eq!(first.parts[0].rows, 0..128);
    /// assert_eq!(second.parts[0].rows, 128..300);
    /// ```
    pub fn new(units: &[Vec<TensorShape>], world_size: NonZeroUsize) -> Self {
        Self::with_bucket_bytes(units, world_size, BUCKET_BYTES)
    }

    /// As [`Sharding::new`], with tables cut into buckets of at most
    /// `bucket_bytes` of f32 instead of [`BUCKET_BYTES`], yet of at least one tile.
    pub fn with_bucket_bytes(
        units: &[Vec<TensorShape>],
        world_size: NonZeroUsize,
        bucket_bytes: usize,
    ) -> Self {
        let world_size = world_size.get();
        let mut dealt = Dealt::new(world_size);
        let mut buckets = Vec::new();
        let mut first_bucket = vec![0];
        let mut first_tensor = vec![0];
        for (unit, tensors) in units.iter().enumerate() {
            for cut in buckets::cut(tensors, bucket_bytes) {
                let runs = dealt.deal(&cut);
                let Cut {
                    slices,
                    num_elements,
                    ..
                } = cut;
                buckets.push(Bucket {
                    unit,
                    slices,
                    num_elements,
                    runs,
                });
            }
            first_bucket.push(buckets.len());
            first_tensor.push(first_tensor[unit] + tensors.len());
        }
        Self {
            world_size,
            buckets,
            first_bucket,
            first_tensor,
        }
    }

    /// The indices of a unit's buckets.
    ///
    /// # Panics
    ///
    /// If there is no such unit.
    pub fn unit_buckets(&self, unit: usize) -> Range<usize> {
        self.first_bucket[unit]..self.first_bucket[unit + 1]
    }

    /// The number of units that were cut.
    pub fn num_units(&self) -> usize {
        self.first_bucket.len() - 1
    }

    /// A tensor of a unit, counted over the whole model.
    pub fn tensor_number(&self, unit: usize, tensor: usize) -> usize {
        self.first_tensor[unit] + tensor
    }

    /// The tensors of all units.
    pub fn num_tensors(&self) -> usize {
        self.first_tensor.last().copied().unwrap_or(0)
    }

    /// Elements that `rank` holds of the whole model.
    pub fn rank_elements(&self, rank: usize) -> usize {
        self.buckets
            .iter()
            .map(|bucket| bucket.runs[rank].num_elements())
            .sum()
    }
}

impl Bucket {
    /// Whether a gradient is made for it.
    pub fn has_gradient(&self) -> bool {
        self.slices
            .iter()
            .any(|slice| slice.is_vector || !slice.is_frozen)
    }

    /// Each rank's elements of the bucket, in rank order: the ranges of a
    /// `reduce_scatter`.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        self.runs.iter().map(|run| run.elements.clone()).collect()
    }

    /// The parts of one slice in row order, each with the rank that holds it;
    /// together exactly the slice's rows.
    pub fn parts_of(&self, slice: usize) -> impl Iterator<Item = (usize, &Part)> {
        self.runs.iter().enumerate().flat_map(move |(rank, run)| {
            let parts = run.parts.iter().filter(move |part| part.slice == slice);
            parts.map(move |part| (rank, part))
        })
    }
}
