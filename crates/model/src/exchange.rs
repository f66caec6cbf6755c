//! What a step needs from outside: other ranks' weights, and a place for gradients.

use fp8::Format;
use kernels::{ArenaFull, Device, Weight};
use shard::Sharding;

/// A rank's view of the world during a step.
///
/// Two exist: the run's, over a process group, and the plan's, which only counts.
pub trait Exchange<D: Device> {
    /// What can go wrong: peers, memory.
    type Error: From<ArenaFull>;
    /// A bucket's whole weights; dropping them is the reshard.
    type Gathered<'a>: Gathered<D>
    where
        Self: 'a;

    /// Who holds what.
    fn sharding(&self) -> &Sharding;

    /// This rank's number.
    fn rank(&self) -> usize;

    /// Makes a bucket's whole weights readable.
    fn unshard(&self, bucket: usize) -> Result<Self::Gathered<'_>, Self::Error>;

    /// What gradients are rounded to that a unit's codes are multiplied by; none if its
    /// operands are not rounded.
    fn gradient_format(&self, _unit: usize) -> Option<Format> {
        Some(Format::E4M3)
    }

    /// Sums all ranks' gradients of a bucket (`None` counts as zeros) and writes
    /// this rank's run of the sum over `shard`.
    fn reduce_scatter(
        &self,
        bucket: usize,
        gradient: Option<&D::Buffer>,
        shard: &mut D::Buffer,
    ) -> Result<(), Self::Error>;

    /// Sums each value over the ranks, in rank order.
    fn all_reduce(&self, values: &mut [f64], name: &'static str) -> Result<(), Self::Error>;

    /// One optimizer update of this rank's run of a bucket.
    fn update(
        &mut self,
        bucket: usize,
        shard: &D::Buffer,
        grad_scale: f32,
    ) -> Result<(), Self::Error>;

    /// Elements of this rank's run of a bucket.
    fn run_len(&self, bucket: usize) -> usize {
        let runs = &self.sharding().buckets[bucket].runs;
        runs[self.rank()].elements.len()
    }
}

/// An unsharded bucket.
pub trait Gathered<D: Device> {
    /// The weight of one slice of the bucket: its rows, counted from 0.
    fn weight(&self, slice: usize) -> Weight<D::Bytes<'_>>;
}
