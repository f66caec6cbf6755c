//! A rank's side of a step: the window where weights are gathered, the process
//! group where gradients meet, the optimizer that updates the rank's shard.

use comm::{ProcessGroup, ReduceOp, Unsharded, Window, WindowLayout};
use fp8::{Encoded, Format};
use kernels::{Buffer, Cpu, Device, Segment, Weight};
use model::{Exchange, Gathered};
use plan::{Formats, SlotLayout};
use shard::Sharding;
use tensor::{Account, Ledger, Reservation};

use crate::{Optimizer, TrainError};

/// How errors call a unit.
fn unit_name(unit: usize, num_units: usize) -> String {
    match unit {
        0 => "embedding".to_owned(),
        head if head + 1 == num_units => "head".to_owned(),
        block => format!("block {}", block - 1),
    }
}

/// One rank among others.
#[derive(Debug)]
pub struct RankWorld<'a> {
    /// Whose shard it holds.
    pub(crate) rank: usize,
    pub(crate) group: &'a ProcessGroup,
    pub(crate) device: &'a Cpu,
    pub(crate) sharding: &'a Sharding,
    pub(crate) formats: &'a Formats,
    pub(crate) window: Window,
    /// Absent where nothing is trained.
    pub(crate) optimizer: Option<Optimizer>,
    /// Where parts lie: `[bucket][rank]`.
    pub(crate) layouts: Vec<Vec<SlotLayout>>,
    /// Units that round no operand any more.
    pub(crate) fallen: Vec<bool>,
    _weights: Reservation,
}

impl<'a> RankWorld<'a> {
    /// Opens the window for this rank's planes.
    pub fn new(
        group: &'a ProcessGroup,
        device: &'a Cpu,
        sharding: &'a Sharding,
        formats: &'a Formats,
        optimizer: Option<Optimizer>,
        ledger: &Ledger,
    ) -> Result<Self, TrainError> {
        let rank = group.world().rank();
        Self::of_rank(rank, group, device, sharding, formats, optimizer, ledger)
    }

    /// As [`RankWorld::new`], for the shard of `rank`, which may be one of a larger
    /// world than the group's if the group is of one rank; its planes are then
    /// alone in the window.
    pub fn of_rank(
        rank: usize,
        group: &'a ProcessGroup,
        device: &'a Cpu,
        sharding: &'a Sharding,
        formats: &'a Formats,
        optimizer: Option<Optimizer>,
        ledger: &Ledger,
    ) -> Result<Self, TrainError> {
        let layouts: Vec<Vec<SlotLayout>> = sharding
            .buckets
            .iter()
            .map(|bucket| {
                let ranks = 0..sharding.world_size;
                ranks
                    .map(|rank| SlotLayout::new(bucket, rank, formats))
                    .collect()
            })
            .collect();
        let is_alone = group.world().world_size() < sharding.world_size;
        let in_window = if is_alone {
            rank..rank + 1
        } else {
            0..sharding.world_size
        };
        let slots: Vec<Vec<usize>> = layouts
            .iter()
            .map(|ranks| {
                let ranks = ranks[in_window.clone()].iter();
                ranks.map(|layout| layout.num_bytes).collect()
            })
            .collect();
        let names = sharding.buckets.iter();
        let names = names.map(|bucket| unit_name(bucket.unit, formats.num_units()));
        let names = names.collect();
        let own = layouts.iter().map(|ranks| ranks[rank].num_bytes as u64);
        let weights = ledger.reserve(Account::Weights, own.sum())?;
        Ok(Self {
            rank,
            group,
            device,
            sharding,
            formats,
            window: group.window(&WindowLayout { slots })?.with_names(names),
            optimizer,
            layouts,
            fallen: vec![false; formats.num_units()],
            _weights: weights,
        })
    }

    /// Whether the other ranks are only imagined.
    pub(crate) fn is_alone(&self) -> bool {
        self.group.world().world_size() < self.sharding.world_size
    }

    /// Encodes what a load kept as plain bf16; what became of it on this rank.
    pub(crate) fn clear_plain(&mut self) -> Result<Encoded, TrainError> {
        let mut cleared = Encoded::default();
        for (bucket, layouts) in self.layouts.iter().enumerate() {
            let mut slot = self.window.own_mut(bucket)?;
            if let Some(optimizer) = &mut self.optimizer {
                cleared.add(optimizer.clear_plain(bucket, &layouts[self.rank], &mut slot));
            }
        }
        Ok(cleared)
    }

    /// This rank's layout of a bucket.
    pub(crate) fn own_layout(&self, bucket: usize) -> &SlotLayout {
        &self.layouts[bucket][self.rank]
    }
}

/// A bucket's whole weights, read where their owners hold them.
#[derive(Debug)]
pub struct GatheredBucket<'a> {
    unsharded: Unsharded<'a>,
    sharding: &'a Sharding,
    formats: &'a Formats,
    layouts: &'a [SlotLayout],
    bucket: usize,
}

impl Exchange<Cpu> for RankWorld<'_> {
    type Error = TrainError;
    type Gathered<'b>
        = GatheredBucket<'b>
    where
        Self: 'b;

    fn sharding(&self) -> &Sharding {
        self.sharding
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn unshard(&self, bucket: usize) -> Result<GatheredBucket<'_>, TrainError> {
        Ok(GatheredBucket {
            unsharded: self.window.unshard(bucket)?,
            sharding: self.sharding,
            formats: self.formats,
            layouts: &self.layouts[bucket],
            bucket,
        })
    }

    fn gradient_format(&self, unit: usize) -> Option<Format> {
        (!self.fallen[unit]).then_some(self.formats.gradient_format())
    }

    fn reduce_scatter(
        &self,
        bucket: usize,
        gradient: Option<&<Cpu as Device>::Buffer>,
        shard: &mut <Cpu as Device>::Buffer,
    ) -> Result<(), TrainError> {
        let runs = self.sharding.buckets[bucket].runs.iter();
        let ranges: Vec<_> = runs.map(|run| run.elements.clone()).collect();
        let contribution = gradient.map(Buffer::as_slice);
        let out = shard.as_mut_slice();
        self.group
            .reduce_scatter_f32(contribution, &ranges, out, "gradient")?;
        Ok(())
    }

    fn all_reduce(&self, values: &mut [f64], name: &'static str) -> Result<(), TrainError> {
        self.group.all_reduce_f64(values, ReduceOp::Sum, name)?;
        Ok(())
    }

    fn update(
        &mut self,
        bucket: usize,
        shard: &<Cpu as Device>::Buffer,
        grad_scale: f32,
    ) -> Result<(), TrainError> {
        let mut slot = self.window.own_mut(bucket)?;
        if let Some(optimizer) = &mut self.optimizer {
            let layout = &self.layouts[bucket][self.rank];
            optimizer.update(self.device, bucket, layout, &mut slot, shard, grad_scale);
        }
        Ok(())
    }
}

impl Gathered<Cpu> for GatheredBucket<'_> {
    fn weight(&self, slice: usize) -> Weight<&[u8]> {
        let bucket = &self.sharding.buckets[self.bucket];
        let shape = &bucket.slices[slice];
        let mut segments = Vec::new();
        let mut at = 0;
        for (rank, run) in bucket.runs.iter().enumerate() {
            let places = run.parts.iter().zip(&self.layouts[rank].parts);
            for (part, place) in places.filter(|(part, _)| part.slice == slice) {
                let rows = at..at + part.rows.len();
                at = rows.end;
                let bytes = &self.unsharded.part(rank)[place.clone()];
                segments.push(Segment { rows, bytes });
            }
        }
        Weight {
            rows: shape.rows.len(),
            cols: shape.cols,
            format: self.formats.storage(bucket.unit, shape.tensor).weight,
            segments,
        }
    }
}
