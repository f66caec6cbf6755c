//! The step, walked on a device that only counts.

use kernels::{ArenaFull, Device, Meta, PurposePeak, Segment, Weight};
use model::{Clip, Exchange, Gathered, MicroBatch, StepSettings, Transformer};
use shard::Sharding;

use crate::Formats;

/// What a rank's arena will be asked to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// One training step.
    Train {
        /// Sequences of each micro-batch.
        rows: Vec<usize>,
        /// Tokens of a sequence.
        seq: usize,
        /// How gradients are clipped.
        clip: Clip,
        /// Buckets whose logits are held.
        held_logits: usize,
        /// Blocks that keep what their backward needs.
        kept_blocks: usize,
    },
    /// The loss of one micro-batch.
    Evaluate {
        /// Its sequences.
        rows: usize,
        /// Tokens of a sequence.
        seq: usize,
    },
    /// The logits of all tokens of one sequence.
    Logits {
        /// Its tokens.
        num_tokens: usize,
    },
    /// Generation: a prompt at once, then token by token.
    Generate {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens that the cache has room for.
        max_tokens: usize,
    },
}

/// The scratch of a rank.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ArenaPlan {
    /// The arena's size: the highest address used.
    pub capacity_bytes: u64,
    /// The most bytes live at once.
    pub peak_bytes: u64,
    /// What was live at that moment.
    pub at_peak: Vec<PurposePeak>,
    /// Matmul operations of the first work, multiply and add counted apart.
    pub flops: u64,
}

/// Everything that decides a rank's scratch.
#[derive(Debug, Clone, Copy)]
pub struct DryRun<'a> {
    /// The model.
    pub model: &'a Transformer,
    /// Who holds which rows.
    pub sharding: &'a Sharding,
    /// How each tensor's plane is stored.
    pub formats: &'a Formats,
    /// The rank whose scratch is counted.
    pub rank: usize,
    /// Its threads.
    pub num_threads: usize,
}

impl DryRun<'_> {
    /// Walks every kind of work, each on a fresh arena, and keeps the largest.
    pub fn run(&self, works: &[Work]) -> ArenaPlan {
        let mut plan = ArenaPlan::default();
        for (index, work) in works.iter().enumerate() {
            let device = Meta::new(self.num_threads);
            let mut exchange = MetaExchange(*self);
            walk(&device, self.model, &mut exchange, work);
            plan.capacity_bytes = plan.capacity_bytes.max(device.high_water_bytes() as u64);
            let peak_bytes = device.peak_live_bytes() as u64;
            if peak_bytes > plan.peak_bytes {
                plan.peak_bytes = peak_bytes;
                plan.at_peak = device.peak_by_purpose();
            }
            if index == 0 {
                plan.flops = device.flops();
            }
        }
        plan
    }
}

fn walk(device: &Meta, model: &Transformer, exchange: &mut MetaExchange<'_>, work: &Work) {
    let batch = |rows: usize, seq: usize| {
        let ids = vec![0; rows * seq];
        MicroBatch::new(seq, ids.clone(), ids)
    };
    match *work {
        Work::Train {
            ref rows,
            seq,
            clip,
            held_logits,
            kept_blocks,
        } => {
            let batches: Vec<_> = rows.iter().map(|&rows| batch(rows, seq)).collect();
            let settings = StepSettings {
                num_targets: 1,
                clip,
                held_logits,
                kept_blocks,
                allows_nan: false,
            };
            model::train_step(device, model, exchange, &batches, settings)
                .expect("counting does not fail");
        }
        Work::Evaluate { rows, seq } => {
            model::evaluate(device, model, exchange, &[batch(rows, seq)])
                .expect("counting does not fail");
        }
        Work::Logits { num_tokens } => {
            model::logits(device, model, exchange, &batch(1, num_tokens), |_, _| {})
                .expect("counting does not fail");
        }
        Work::Generate {
            prompt_tokens,
            max_tokens,
        } => {
            let mut caches = model::Cache::for_blocks(device, model, max_tokens)
                .expect("counting does not fail");
            let mut logits = vec![0.0; model.spec.vocab];
            for len in [prompt_tokens, 1] {
                let ids = vec![0; len];
                model::forward_cached(device, model, exchange, &mut caches, &ids, &mut logits)
                    .expect("counting does not fail");
            }
        }
    }
}

/// A world in which nothing moves.
#[derive(Clone, Copy)]
struct MetaExchange<'a>(DryRun<'a>);

/// Counting needs no peers, and its arena has no end.
#[derive(Debug)]
enum Never {}

impl From<ArenaFull> for Never {
    fn from(_: ArenaFull) -> Self {
        unreachable!("a counting arena has no end")
    }
}

struct MetaGathered<'a> {
    run: DryRun<'a>,
    bucket: usize,
}

impl Exchange<Meta> for MetaExchange<'_> {
    type Error = Never;
    type Gathered<'a>
        = MetaGathered<'a>
    where
        Self: 'a;

    fn sharding(&self) -> &Sharding {
        self.0.sharding
    }

    fn rank(&self) -> usize {
        self.0.rank
    }

    fn unshard(&self, bucket: usize) -> Result<MetaGathered<'_>, Never> {
        Ok(MetaGathered {
            run: self.0,
            bucket,
        })
    }

    fn reduce_scatter(
        &self,
        _bucket: usize,
        _gradient: Option<&<Meta as Device>::Buffer>,
        _shard: &mut <Meta as Device>::Buffer,
    ) -> Result<(), Never> {
        Ok(())
    }

    fn all_reduce(&self, _values: &mut [f64], _name: &'static str) -> Result<(), Never> {
        Ok(())
    }

    fn update(
        &mut self,
        _bucket: usize,
        _shard: &<Meta as Device>::Buffer,
        _grad_scale: f32,
    ) -> Result<(), Never> {
        Ok(())
    }
}

impl Gathered<Meta> for MetaGathered<'_> {
    fn weight(&self, slice: usize) -> Weight<()> {
        let bucket = &self.run.sharding.buckets[self.bucket];
        let shape = &bucket.slices[slice];
        let mut at = 0;
        let parts = bucket
            .runs
            .iter()
            .flat_map(|run| &run.parts)
            .filter(|part| part.slice == slice);
        let segments = parts.map(|part| {
            let rows = at..at + part.rows.len();
            at = rows.end;
            Segment { rows, bytes: () }
        });
        Weight {
            segments: segments.collect(),
            rows: shape.rows.len(),
            cols: shape.cols,
            format: self.run.formats.storage(bucket.unit, shape.tensor).weight,
        }
    }
}
