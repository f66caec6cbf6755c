//! A model that rests to be read: evaluation, generation, logits.
//!
//! Weights rest in the file's own dtype where an operation reads it, so a bf16
//! checkpoint takes 2 bytes a parameter, or as a recipe has them; there is no
//! optimizer.

use checkpoint::{Folder, Sources};
use comm::{RankFailure, Threads, run_threads};
use kernels::Cpu;
use model::Transformer;
use plan::{DryRun, Formats, Precision, Storage, Work, resting_format, shard_model};
use tensor::Ledger;

use crate::load::{LoadSettings, Origin};
use crate::place::{on_threads, open_arena};
use crate::{Event, RankWorld, TrainError, load};

/// A checkpoint to be read.
#[derive(Debug, Clone, Copy)]
pub struct InferenceModel<'a> {
    /// The folder of the model.
    pub folder: &'a Folder,
    /// Where its tensors are.
    pub sources: &'a Sources,
    /// The model.
    pub model: &'a Transformer,
    /// Threads to compute on.
    pub num_threads: usize,
    /// What products are computed in; without one, what the files have.
    pub precision: Option<&'a Precision>,
}

/// How each tensor rests where nothing is trained.
pub fn resting_formats(inference: &InferenceModel<'_>) -> Formats {
    let &InferenceModel {
        folder,
        sources,
        model,
        precision,
        ..
    } = inference;
    if let Some(precision) = precision {
        return Formats::resting(model, precision);
    }
    Formats::new(model, |unit, tensor, param| {
        let dtype = sources.of(folder, unit, tensor).value_dtype();
        Storage::resting(resting_format(dtype, param.is_vector))
    })
}

/// A loaded model and where it is computed.
#[derive(Debug, Clone, Copy)]
pub struct Resting<'a> {
    /// The processor, with an arena of the planned size.
    pub device: &'a Cpu,
    /// The weights.
    pub world: &'a RankWorld<'a>,
    ledger: &'a Ledger,
    planned_bytes: u64,
}

impl Resting<'_> {
    /// What this rank holds and held by name.
    pub fn memory(&self) -> Event {
        let rank = self.world.group.world().rank();
        Event::ledger(rank, self.ledger, self.device.arena(), self.planned_bytes)
    }
}

/// As [`with_resting`], for work that asks nothing about memory.
pub fn with_model<T: Send>(
    inference: &InferenceModel<'_>,
    works: &[Work],
    work: impl Fn(&Cpu, &RankWorld<'_>) -> Result<T, TrainError> + Sync,
) -> Result<T, TrainError> {
    with_resting(inference, works, |resting| {
        work(resting.device, resting.world)
    })
}

/// Loads the model and hands it to `work` with an arena that has room for `works`.
pub fn with_resting<T: Send>(
    inference: &InferenceModel<'_>,
    works: &[Work],
    work: impl Fn(&Resting<'_>) -> Result<T, TrainError> + Sync,
) -> Result<T, TrainError> {
    let &InferenceModel {
        model, num_threads, ..
    } = inference;
    let threads = Threads::default();
    let formats = resting_formats(inference);
    let sharding = shard_model(model, threads.world_size, &formats);
    let ranks = run_threads(threads, |group| {
        let plan = DryRun {
            model,
            sharding: &sharding,
            formats: &formats,
            rank: group.world().rank(),
            num_threads,
        }
        .run(works);
        on_threads(num_threads, || {
            let ledger = Ledger::unlimited();
            let (arena, _reservation) = open_arena(plan.capacity_bytes, &ledger)?;
            let device = Cpu::new(arena, num_threads);
            let mut world = RankWorld::new(&group, &device, &sharding, &formats, None, &ledger)?;
            let origin = Origin {
                folder: inference.folder,
                sources: inference.sources,
                settings: LoadSettings::default(),
            };
            load(&mut world, &origin, &ledger)?;
            work(&Resting {
                device: &device,
                world: &world,
                ledger: &ledger,
                planned_bytes: plan.capacity_bytes,
            })
        })
    });
    match ranks {
        Ok(mut results) => Ok(results.remove(0)),
        Err(RankFailure::Failed { source, .. }) => Err(source),
        Err(failure) => Err(TrainError::Panicked {
            rank: 0,
            message: failure.to_string(),
        }),
    }
}
