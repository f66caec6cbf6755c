//! A job's settings, and the plan that follows from them.

use std::num::NonZeroUsize;

use model::{Clip, Transformer};
use shard::{Sharding, TensorShape};

use crate::dry_run::{ArenaPlan, DryRun, Work};
use crate::{Formats, PlanHash, Precision, SlotLayout};

/// What decides the bytes of a training run.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    /// The model.
    pub model: &'a Transformer,
    /// Its precision set, with exceptions.
    pub precision: &'a Precision,
    /// How many ranks share it.
    pub world_size: NonZeroUsize,
    /// Threads of each rank.
    pub num_threads: usize,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Sequences of each micro-batch, per kind of step and rank: `steps[kind][rank]`.
    pub steps: Vec<Vec<Vec<usize>>>,
    /// Sequences of an evaluation's micro-batches, per rank; empty without one.
    pub evals: Vec<Vec<usize>>,
    /// How gradients are clipped.
    pub clip: Clip,
    /// Bytes that the head may hold in logits between its passes.
    pub logits_room_bytes: u64,
    /// Bytes that blocks may keep for their backward instead of making it again.
    pub activations_room_bytes: u64,
}

/// What one rank will hold.
#[derive(Debug, Clone, PartialEq)]
pub struct RankPlan {
    /// The gatherable planes of its shard.
    pub weights_bytes: u64,
    /// Its masters' low bits.
    pub residuals_bytes: u64,
    /// Its moments.
    pub moments_bytes: u64,
    /// Its scratch.
    pub arena: ArenaPlan,
}

impl RankPlan {
    /// Everything that rests between steps.
    pub fn resident_bytes(&self) -> u64 {
        self.weights_bytes + self.residuals_bytes + self.moments_bytes
    }
}

/// What all ranks will hold.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Who holds which rows.
    pub sharding: Sharding,
    /// How each tensor's gatherable plane is stored.
    pub formats: Formats,
    /// Each rank's bytes.
    pub ranks: Vec<RankPlan>,
    /// How many buckets of the head's table keep their logits, per kind of step.
    pub held_logits: usize,
    /// How many blocks, the last ones, keep what their backward needs.
    pub kept_blocks: usize,
    /// What all ranks must agree on.
    pub hash: PlanHash,
}

impl Plan {
    /// Plans a training run.
    pub fn new(job: &Job<'_>) -> Self {
        let formats = Formats::of(job.model, job.precision);
        let sharding = shard_model(job.model, job.world_size, &formats);
        let most_tokens = most_tokens(&job.steps) * job.seq;
        let held_logits = held_logits(job.model, &sharding, most_tokens, job.logits_room_bytes);
        let kept_blocks = kept_blocks(job.model, most_tokens, job.activations_room_bytes);
        let ranks = (0..job.world_size.get())
            .map(|rank| {
                let works = works_of(job, rank, (held_logits, kept_blocks));
                let walk = DryRun {
                    model: job.model,
                    sharding: &sharding,
                    formats: &formats,
                    rank,
                    num_threads: job.num_threads,
                };
                RankPlan {
                    arena: walk.run(&works),
                    ..resident(&sharding, &formats, rank)
                }
            })
            .collect();
        Self {
            hash: hash(job, &sharding, &formats, [held_logits, kept_blocks]),
            sharding,
            formats,
            ranks,
            held_logits,
            kept_blocks,
        }
    }
}

/// Deals a model's tensors to ranks, balancing the bytes that rest.
pub fn shard_model(model: &Transformer, world_size: NonZeroUsize, formats: &Formats) -> Sharding {
    let units: Vec<Vec<TensorShape>> = model
        .units
        .iter()
        .enumerate()
        .map(|(unit, tensors)| {
            let shape = |(tensor, param): (usize, &spec::Param)| TensorShape {
                rows: param.rows,
                cols: param.cols,
                is_vector: param.is_vector,
                is_table: matches!(param.role, spec::Role::Embedding | spec::Role::LmHead),
                is_frozen: formats.trains() && !formats.storage(unit, tensor).is_trained(),
                bytes_per_element: formats.storage(unit, tensor).bytes_per_element(),
            };
            tensors.params.iter().enumerate().map(shape).collect()
        })
        .collect();
    Sharding::new(&units, world_size)
}

/// How many buckets of the head's table may keep their logits of `num_tokens`
/// tokens in `room_bytes`; never all, so that T x V never exists.
pub fn held_logits(
    model: &Transformer,
    sharding: &Sharding,
    num_tokens: usize,
    room_bytes: u64,
) -> usize {
    let table: Vec<u64> = sharding
        .unit_buckets(model.head_table())
        .map(|bucket| &sharding.buckets[bucket].slices[0])
        .filter(|slice| !slice.is_vector)
        .map(|slice| (slice.rows.len() * num_tokens * 4) as u64)
        .collect();
    let mut room = room_bytes;
    let mut held = 0;
    for &bytes in table.iter().skip(1).rev() {
        if bytes > room {
            break;
        }
        room -= bytes;
        held += 1;
    }
    held
}

/// How many blocks may keep what their backward needs of `num_tokens` tokens in
/// `room_bytes`.
pub fn kept_blocks(model: &Transformer, num_tokens: usize, room_bytes: u64) -> usize {
    let block = model::kept_bytes_per_token(model) * num_tokens.max(1) as u64;
    let fitting = usize::try_from(room_bytes / block).unwrap_or(usize::MAX);
    model.blocks().len().min(fitting)
}

fn most_tokens(steps: &[Vec<Vec<usize>>]) -> usize {
    let ranks = steps.iter().flatten();
    ranks.map(|rows| rows.iter().sum()).max().unwrap_or(0)
}

fn works_of(job: &Job<'_>, rank: usize, (held_logits, kept_blocks): (usize, usize)) -> Vec<Work> {
    let train = job.steps.iter().map(|step| Work::Train {
        rows: step[rank].clone(),
        seq: job.seq,
        clip: job.clip,
        held_logits,
        kept_blocks,
    });
    let evals = job.evals.get(rank).cloned().unwrap_or_default();
    let eval = evals
        .into_iter()
        .map(|rows| Work::Evaluate { rows, seq: job.seq });
    train.chain(eval).collect()
}

/// The bytes that rest on a rank.
fn resident(sharding: &Sharding, formats: &Formats, rank: usize) -> RankPlan {
    let mut plan = RankPlan {
        weights_bytes: 0,
        residuals_bytes: 0,
        moments_bytes: 0,
        arena: ArenaPlan::default(),
    };
    for bucket in &sharding.buckets {
        plan.weights_bytes += SlotLayout::new(bucket, rank, formats).num_bytes as u64;
        for part in &bucket.runs[rank].parts {
            let slice = &bucket.slices[part.slice];
            let storage = formats.storage(bucket.unit, slice.tensor);
            let (rows, cols) = (part.rows.len(), slice.cols);
            plan.residuals_bytes += storage.residual_bytes(rows, cols) as u64;
            plan.moments_bytes += storage.moment_bytes(rows, cols) as u64;
        }
    }
    plan
}

fn hash(job: &Job<'_>, sharding: &Sharding, formats: &Formats, kept: [usize; 2]) -> PlanHash {
    let mut hash = PlanHash::new()
        .with_text(job.precision.recipe.name())
        .with_text(&format!("{:?}", formats.gradient_format()))
        .with(job.world_size.get() as u64)
        .with(job.seq as u64)
        .with(kept[0] as u64)
        .with(kept[1] as u64);
    for (unit, tensors) in job.model.units.iter().enumerate() {
        for (tensor, param) in tensors.params.iter().enumerate() {
            hash = hash
                .with_text(&param.name)
                .with_text(&format!("{:?}", formats.storage(unit, tensor)))
                .with(param.rows as u64)
                .with(param.cols as u64);
        }
    }
    for bucket in &sharding.buckets {
        for run in &bucket.runs {
            hash = hash
                .with(run.elements.start as u64)
                .with(run.elements.end as u64);
        }
    }
    hash
}
