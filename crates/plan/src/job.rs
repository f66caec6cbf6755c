//! A job's settings, and the plan that follows from them.

use std::num::NonZeroUsize;

use model::{Clip, Transformer};
use shard::{Sharding, TensorShape};

use crate::dry_run::{ArenaPlan, DryRun, Work};
use crate::{Formats, PlanHash, Recipe, SlotLayout};

/// What decides the bytes of a training run.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    /// The model.
    pub model: &'a Transformer,
    /// Its precision set.
    pub recipe: Recipe,
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
    /// What all ranks must agree on.
    pub hash: PlanHash,
}

impl Plan {
    /// Plans a training run.
    pub fn new(job: &Job<'_>) -> Self {
        let formats = Formats::of_recipe(job.model, job.recipe);
        let sharding = shard_model(job.model, job.world_size, |_| 4 + job.recipe.moment_bytes());
        let most_tokens = most_tokens(&job.steps) * job.seq;
        let held_logits = held_logits(job.model, &sharding, most_tokens, job.logits_room_bytes);
        let ranks = (0..job.world_size.get())
            .map(|rank| {
                let works = works_of(job, rank, held_logits);
                let walk = DryRun {
                    model: job.model,
                    sharding: &sharding,
                    formats: &formats,
                    rank,
                    num_threads: job.num_threads,
                };
                RankPlan {
                    arena: walk.run(&works),
                    ..resident(&sharding, &formats, job.recipe, rank)
                }
            })
            .collect();
        Self {
            hash: hash(job, &sharding, held_logits),
            sharding,
            formats,
            ranks,
            held_logits,
        }
    }
}

/// Deals a model's tensors to ranks, balancing `bytes_per_element`.
pub fn shard_model(
    model: &Transformer,
    world_size: NonZeroUsize,
    bytes_per_element: impl Fn(&spec::Param) -> usize,
) -> Sharding {
    let units: Vec<Vec<TensorShape>> = model
        .units
        .iter()
        .map(|unit| {
            let shape = |param: &spec::Param| TensorShape {
                rows: param.rows,
                cols: param.cols,
                is_vector: param.is_vector,
                is_table: matches!(param.role, spec::Role::Embedding | spec::Role::LmHead),
                bytes_per_element: bytes_per_element(param),
            };
            unit.params.iter().map(shape).collect()
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

fn most_tokens(steps: &[Vec<Vec<usize>>]) -> usize {
    let ranks = steps.iter().flatten();
    ranks.map(|rows| rows.iter().sum()).max().unwrap_or(0)
}

fn works_of(job: &Job<'_>, rank: usize, held_logits: usize) -> Vec<Work> {
    let train = job.steps.iter().map(|step| Work::Train {
        rows: step[rank].clone(),
        seq: job.seq,
        clip: job.clip,
        held_logits,
    });
    let evals = job.evals.get(rank).cloned().unwrap_or_default();
    let eval = evals
        .into_iter()
        .map(|rows| Work::Evaluate { rows, seq: job.seq });
    train.chain(eval).collect()
}

/// The bytes that rest on a rank.
fn resident(sharding: &Sharding, formats: &Formats, recipe: Recipe, rank: usize) -> RankPlan {
    let mut plan = RankPlan {
        weights_bytes: 0,
        residuals_bytes: 0,
        moments_bytes: 0,
        arena: ArenaPlan::default(),
    };
    for bucket in &sharding.buckets {
        plan.weights_bytes += SlotLayout::new(bucket, rank, formats).num_bytes as u64;
        for part in &bucket.runs[rank].parts {
            let is_vector = bucket.slices[part.slice].is_vector;
            let len = part.num_elements as u64;
            plan.residuals_bytes += len * recipe.residual_bytes(is_vector) as u64;
            plan.moments_bytes += len * recipe.moment_bytes() as u64;
        }
    }
    plan
}

fn hash(job: &Job<'_>, sharding: &Sharding, held_logits: usize) -> PlanHash {
    let mut hash = PlanHash::new()
        .with_text(job.recipe.name())
        .with(job.world_size.get() as u64)
        .with(job.seq as u64)
        .with(held_logits as u64);
    for unit in &job.model.units {
        for param in &unit.params {
            hash = hash
                .with_text(&param.name)
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
