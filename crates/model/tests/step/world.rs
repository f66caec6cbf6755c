//! One rank with its weights in memory, which records what a step would do.

use std::cell::Cell;
use std::num::NonZeroUsize;

use kernels::{ArenaFull, Device, Segment, Weight, WeightFormat};
use model::{Exchange, Gathered, Transformer};
use shard::{Sharding, TensorShape};
use spec::{Param, Role};

/// Cuts a table of any width into buckets of one row tile.
const SMALL_BUCKET_BYTES: usize = 0;

/// An update that a step asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Update {
    pub(crate) bucket: usize,
    pub(crate) grad: Vec<f32>,
    pub(crate) grad_scale: f32,
}

/// A world of one rank.
#[derive(Debug)]
pub(crate) struct World<'a, D> {
    device: &'a D,
    pub(crate) model: &'a Transformer,
    sharding: Sharding,
    /// `[unit][param]`, f32 bytes.
    weights: Vec<Vec<Vec<u8>>>,
    /// In the order of the step.
    pub(crate) updates: Vec<Update>,
    /// Times that any bucket's gradient was reduced, and its weights unsharded.
    pub(crate) num_reduced: Cell<usize>,
    pub(crate) num_unsharded: Cell<usize>,
    /// A bucket whose gradient other ranks make infinite.
    pub(crate) peers_overflow_in: Option<usize>,
}

impl<'a, D: Device> World<'a, D> {
    /// A world whose tables lie in several buckets.
    pub(crate) fn new(
        device: &'a D,
        model: &'a Transformer,
        weight: impl Fn(&Param) -> Vec<f32>,
    ) -> Self {
        let units = model.units.iter();
        let weights = units.map(|unit| {
            let params = unit.params.iter();
            params.map(|param| tensor::as_bytes(&weight(param)).to_vec())
        });
        Self {
            device,
            model,
            sharding: shard_model(model),
            weights: weights.map(Iterator::collect).collect(),
            updates: Vec::new(),
            num_reduced: 0.into(),
            num_unsharded: 0.into(),
            peers_overflow_in: None,
        }
    }

    /// Changes one element of a parameter.
    pub(crate) fn set(&mut self, unit: usize, param: usize, element: usize, value: f32) {
        let bytes = &mut self.weights[unit][param][element * 4..][..4];
        bytes.copy_from_slice(&value.to_le_bytes());
    }

    /// The recorded gradient of a whole parameter, from all its buckets.
    pub(crate) fn gradient(&self, unit: usize, param: usize) -> Vec<f32> {
        let mut whole = Vec::new();
        for bucket in self.sharding.unit_buckets(unit) {
            let slices = self.sharding.buckets[bucket].slices.iter();
            for slice in slices.filter(|slice| slice.tensor == param) {
                let mut updates = self.updates.iter();
                let update = updates.find(|update| update.bucket == bucket).unwrap();
                whole.extend_from_slice(&update.grad[slice.at..][..slice.num_elements()]);
            }
        }
        whole
    }
}

fn shard_model(model: &Transformer) -> Sharding {
    let units = model.units.iter().map(|unit| {
        let shape = |param: &Param| TensorShape {
            rows: param.rows,
            cols: param.cols,
            is_vector: param.is_vector,
            is_table: matches!(param.role, Role::Embedding | Role::LmHead),
            is_frozen: false,
            bytes_per_element: 12,
        };
        unit.params.iter().map(shape).collect::<Vec<_>>()
    });
    Sharding::with_bucket_bytes(
        &units.collect::<Vec<_>>(),
        NonZeroUsize::MIN,
        SMALL_BUCKET_BYTES,
    )
}

/// An unsharded bucket; each matrix lies in three places.
pub(crate) struct InMemory<'a, D> {
    world: &'a World<'a, D>,
    bucket: usize,
}

impl<D> Exchange<D> for World<'_, D>
where
    D: for<'b> Device<Bytes<'b> = &'b [u8]>,
{
    type Error = ArenaFull;
    type Gathered<'a>
        = InMemory<'a, D>
    where
        Self: 'a;

    fn sharding(&self) -> &Sharding {
        &self.sharding
    }

    fn rank(&self) -> usize {
        0
    }

    fn unshard(&self, bucket: usize) -> Result<InMemory<'_, D>, ArenaFull> {
        self.num_unsharded.set(self.num_unsharded.get() + 1);
        Ok(InMemory {
            world: self,
            bucket,
        })
    }

    fn reduce_scatter(
        &self,
        bucket: usize,
        gradient: Option<&D::Buffer>,
        shard: &mut D::Buffer,
    ) -> Result<(), ArenaFull> {
        self.num_reduced.set(self.num_reduced.get() + 1);
        let len = self.sharding.buckets[bucket].num_elements;
        assert_eq!(self.device.len(shard), len);
        match gradient {
            Some(gradient) => self.device.copy(gradient, 0..len, shard, 0),
            None => self.device.fill(shard, 0.0),
        }
        if self.peers_overflow_in == Some(bucket) {
            self.device.fill(shard, f32::INFINITY);
        }
        Ok(())
    }

    fn all_reduce(&self, _values: &mut [f64], _name: &'static str) -> Result<(), ArenaFull> {
        Ok(())
    }

    fn update(
        &mut self,
        bucket: usize,
        shard: &D::Buffer,
        grad_scale: f32,
    ) -> Result<(), ArenaFull> {
        let mut grad = vec![0.0; self.device.len(shard)];
        self.device.read(shard, 0..grad.len(), &mut grad);
        self.updates.push(Update {
            bucket,
            grad,
            grad_scale,
        });
        Ok(())
    }
}

impl<D> Gathered<D> for InMemory<'_, D>
where
    D: for<'b> Device<Bytes<'b> = &'b [u8]>,
{
    fn weight(&self, slice: usize) -> Weight<&[u8]> {
        let bucket = &self.world.sharding.buckets[self.bucket];
        let slice = &bucket.slices[slice];
        let row_bytes = slice.cols * size_of::<f32>();
        let whole = &self.world.weights[bucket.unit][slice.tensor];
        let bytes = &whole[slice.rows.start * row_bytes..slice.rows.end * row_bytes];
        let num_rows = slice.rows.len();
        let ends = [0, num_rows / 3, num_rows / 2, num_rows];
        let segments = ends.windows(2).filter(|ends| ends[0] < ends[1]);
        Weight {
            rows: num_rows,
            cols: slice.cols,
            format: WeightFormat::F32,
            segments: segments
                .map(|ends| Segment {
                    rows: ends[0]..ends[1],
                    bytes: &bytes[ends[0] * row_bytes..ends[1] * row_bytes],
                })
                .collect(),
        }
    }
}
