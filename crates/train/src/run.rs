//! A training run, from a checked job to a finished folder.
//!
//! ```text
//! plan -> ranks: load, prepare, (step)*, save -> the model at the top of `out`
//! ```

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use checkpoint::{Digest, ExportPlan, Folder, Sources, Staging};
use comm::{RankFailure, Threads, run_threads};
use data::{BatchPlan, Rows, deal_rows, micro_batches, num_steps};
use model::Transformer;
use plan::{Choice, Formats, Job, Plan, Recipe, choices};

use crate::metrics::Metrics;
use crate::phases::Report;
use crate::processes;
use crate::rank::{self, RankOutcome};
use crate::{
    Event, LearningRate, MatrixRecord, Observer, PhaseRecord, Ranks, Settings, SettingsError,
    TrainError,
};

/// Everything that a run needs, opened and checked.
#[derive(Clone, Copy)]
pub struct TrainJob<'a> {
    /// The folder of the model.
    pub folder: &'a Folder,
    /// Where its tensors are.
    pub sources: &'a Sources,
    /// The model.
    pub model: &'a Transformer,
    /// The settings.
    pub settings: &'a Settings,
    /// The token file to train on.
    pub rows: &'a Path,
    /// The token file to evaluate on.
    pub eval_rows: Option<&'a Path>,
    /// Where the model is written; `out/run` is there.
    pub out: &'a Path,
    /// Cores to share out among the ranks.
    pub num_cores: usize,
    /// Where the ranks are.
    pub ranks: Ranks<'a>,
    /// Whoever watches.
    pub observer: Observer<'a>,
    /// Set from outside to end the run at the next step boundary.
    pub stop: &'a AtomicBool,
}

impl std::fmt::Debug for TrainJob<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrainJob")
            .field("settings", self.settings)
            .field("out", &self.out)
            .finish_non_exhaustive()
    }
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Steps taken, those before a resume among them.
    pub steps: u64,
    /// Steps that were to be taken.
    pub num_steps: u64,
    /// The loss before each step that this run took.
    pub losses: Vec<f64>,
    /// The gradient norm of each step.
    pub grad_norms: Vec<f64>,
    /// The loss on the evaluation data, at the start and at the end.
    pub eval_losses: Vec<f64>,
    /// Memory by phase, in order of their first beginning.
    pub phases: Vec<PhaseRecord>,
    /// Each rank's tokens and memory.
    pub ranks: Vec<RankOutcome>,
}

/// Plans and runs the job.
pub fn run(job: &TrainJob<'_>) -> Result<Outcome, TrainError> {
    let settings = job.settings;
    check(settings, job.model)?;
    let schedule = Schedule::new(job)?;
    let plan = schedule.plan(job)?;
    let metrics = Metrics::create(&job.out.join("run/metrics.jsonl"))?;
    let report = Report::new(job.observer, Some(&metrics));
    report.event(&Event::Start {
        num_parameters: job.model.spec.num_parameters(),
        ranks: settings.ranks,
        threads: settings.threads_per_rank(job.num_cores),
        recipe: settings.recipe.clone(),
        num_steps: schedule.num_steps,
        num_rows: schedule.num_rows,
        seq: settings.seq,
        flops: plan.ranks[0].arena.flops,
    })?;
    if let Some(event) = precision_event(job, &plan.formats)? {
        report.event(&event)?;
    }
    for ignored in job.sources.ignored(job.folder) {
        let name = &ignored.meta.name;
        report.event(&Event::Warning {
            message: format!("tensor `{name}` is not part of this model and is left out"),
        })?;
    }
    if schedule.config.is_some() {
        report.event(&Event::Warning {
            message: "the model's FP8 weights are written as bf16, without quantization_config"
                .to_owned(),
        })?;
    }
    let ranks = match job.ranks {
        Ranks::Threads => {
            let threads = Threads {
                deadline: settings.deadline_of_files(),
                ..Threads::of(schedule.world_size)
            };
            run_threads(threads, |group| {
                rank::train(job, &schedule, &plan, &group, &report)
            })
            .map_err(|failure| rank_error(failure, settings.ranks))?
        }
        Ranks::Processes(start) => processes::run(job, start, schedule.world_size, &report)?,
    };
    Ok(outcome(ranks, schedule.num_steps))
}

/// How every matrix rests, if any could have FP8 codes.
fn precision_event(job: &TrainJob<'_>, formats: &Formats) -> Result<Option<Event>, TrainError> {
    let precision = job.settings.precision()?;
    if matches!(
        precision.recipe,
        Recipe::F32 | Recipe::Bf16 | Recipe::Bf16Lean
    ) {
        return Ok(None);
    }
    let storages = job.model.units.iter().enumerate();
    let storages = storages.flat_map(|(unit, tensors)| {
        let params = tensors.params.iter().enumerate();
        params
            .filter(|(_, param)| !param.is_vector)
            .map(move |(tensor, _)| (unit, tensor, formats.storage(unit, tensor)))
    });
    let matrices = choices(job.model, &precision).zip(storages);
    let matrices = matrices.map(|((param, choice), (unit, tensor, storage))| {
        let (rows, cols) = (param.rows, param.cols);
        let gathered_bytes = storage.weight_bytes(rows, cols) as u64;
        MatrixRecord {
            name: param.name.clone(),
            is_fp8: choice == Choice::Codes,
            choice: choice.to_string(),
            source_bytes: job.sources.of(job.folder, unit, tensor).num_bytes(),
            master_bytes: gathered_bytes + storage.residual_bytes(rows, cols) as u64,
            gathered_bytes,
        }
    });
    Ok(Some(Event::Precision {
        matrices: matrices.collect(),
    }))
}

/// Refuses settings that cannot be, alone or with this model.
pub fn check(settings: &Settings, model: &Transformer) -> Result<(), TrainError> {
    settings.check()?;
    let max_positions = model.spec.max_positions;
    if settings.seq > max_positions {
        return Err(TrainError::TooLong {
            seq: settings.seq,
            max_positions,
        });
    }
    let precision = settings.precision()?;
    let names: Vec<&str> = model.params().map(|param| param.name.as_str()).collect();
    let given = [
        ("keep-bf16", &precision.kept.named),
        ("freeze", &precision.frozen),
    ];
    for (key, patterns) in given {
        if let Some(pattern) = patterns.unused(&names).next() {
            let pattern = pattern.to_owned();
            return Err(SettingsError::NothingNamed { key, pattern }.into());
        }
    }
    if settings.steps != Some(0) && names.iter().all(|name| precision.is_frozen(name)) {
        return Err(SettingsError::AllFrozen.into());
    }
    Ok(())
}

/// Which rows each step takes, and how they are computed.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) world_size: NonZeroUsize,
    pub(crate) num_threads: usize,
    pub(crate) batches: BatchPlan,
    pub(crate) num_steps: u64,
    pub(crate) num_rows: u64,
    /// Of the token file's bytes.
    pub(crate) rows_digest: Digest,
    pub(crate) num_eval_rows: u64,
    pub(crate) learning_rate: LearningRate,
    pub(crate) export: ExportPlan,
    pub(crate) other_files: Vec<PathBuf>,
    /// The text of `config.json` where it is not copied.
    config: Option<String>,
}

const CONFIG_NAME: &str = "config.json";

impl Schedule {
    pub(crate) fn new(job: &TrainJob<'_>) -> Result<Self, TrainError> {
        let settings = job.settings;
        let rows = Rows::open(job.rows)?;
        if rows.counts().targets == 0 {
            return Err(TrainError::NoTargets);
        }
        let (num_rows, global_batch) = (rows.num_rows(), settings.global_batch as u64);
        let length = settings.run_length()?;
        let num_steps = num_steps(length, num_rows, global_batch, settings.seq as u64)?;
        let num_eval_rows = match job.eval_rows {
            Some(path) => Rows::open(path)?.num_rows(),
            None => 0,
        };
        let max_file_bytes = settings.max_file_size * 1_000_000;
        let config = job.folder.config_without_codes()?;
        let mut other_files = job.folder.other_files()?;
        other_files.retain(|path| config.is_none() || !path.ends_with(CONFIG_NAME));
        Ok(Self {
            world_size: NonZeroUsize::new(settings.ranks).expect("settings were checked"),
            num_threads: settings.threads_per_rank(job.num_cores),
            learning_rate: LearningRate::new(settings, num_steps),
            batches: BatchPlan::new(num_rows, global_batch)?,
            num_steps,
            num_rows,
            rows_digest: Digest::of_file(job.rows)?,
            num_eval_rows,
            export: ExportPlan::new(&job.sources.exported(job.folder), max_file_bytes)?,
            other_files,
            config,
        })
    }

    /// Begins an export to a folder.
    pub(crate) fn stage(&self, out: &Path) -> Result<Staging, TrainError> {
        let mut staging = Staging::create(out, &self.export, &self.other_files)?;
        if let Some(config) = &self.config {
            staging.add_text(CONFIG_NAME, config)?;
        }
        Ok(staging)
    }

    /// The different sizes that steps have: whole batches, and what an epoch
    /// leaves over.
    fn batch_sizes(&self, global_batch: u64) -> Vec<u64> {
        let whole = global_batch.min(self.num_rows);
        let rest = self.num_rows % global_batch;
        if rest == 0 || whole < global_batch {
            vec![whole]
        } else {
            vec![whole, rest]
        }
    }

    pub(crate) fn plan(&self, job: &TrainJob<'_>) -> Result<Plan, TrainError> {
        let settings = job.settings;
        let steps = self.batch_sizes(settings.global_batch as u64);
        let steps = steps.into_iter().map(|num_rows| {
            let ranks = 0..settings.ranks;
            ranks
                .map(|rank| {
                    let rows = deal_rows(0..num_rows, settings.ranks, rank);
                    row_counts(&micro_batches(rows, settings.micro_batch))
                })
                .collect()
        });
        let evals = (0..settings.ranks).map(|rank| {
            let rows = deal_rows(0..self.num_eval_rows, settings.ranks, rank);
            let mut counts = row_counts(&micro_batches(rows, settings.micro_batch));
            counts.dedup();
            counts
        });
        let precision = settings.precision()?;
        Ok(Plan::new(&Job {
            model: job.model,
            precision: &precision,
            world_size: self.world_size,
            num_threads: self.num_threads,
            seq: settings.seq,
            steps: steps.collect(),
            evals: evals.collect(),
            clip: settings.clip(0.0),
            logits_room_bytes: settings.logits_room << 20,
            activations_room_bytes: settings.activations_room_bytes(),
        }))
    }
}

/// Rows of each micro-batch.
fn row_counts(batches: &[std::ops::Range<u64>]) -> Vec<usize> {
    let counts = batches.iter().map(|rows| rows.end - rows.start);
    counts
        .map(|count| usize::try_from(count).expect("a micro-batch fits in memory"))
        .collect()
}

pub(crate) fn rank_error(failure: RankFailure<TrainError>, world_size: usize) -> TrainError {
    match failure {
        // All ranks ended for a reason that is none of theirs.
        RankFailure::Failed {
            source: TrainError::Stopped,
            ..
        } => TrainError::Stopped,
        RankFailure::Failed { rank, source } => TrainError::Rank {
            rank,
            world_size,
            source: Box::new(source),
        },
        RankFailure::Panicked { rank, message } | RankFailure::Ended { rank, message } => {
            TrainError::Panicked { rank, message }
        }
        RankFailure::NotStarted { rank, source } => TrainError::System {
            what: format!("a thread for rank {rank}"),
            source,
        },
        _ => unreachable!("all variants are named"),
    }
}

/// Rank 0 speaks for all of what all know.
fn outcome(mut ranks: Vec<RankOutcome>, num_steps: u64) -> Outcome {
    let first = &mut ranks[0];
    Outcome {
        steps: first.steps,
        num_steps,
        losses: std::mem::take(&mut first.losses),
        grad_norms: std::mem::take(&mut first.grad_norms),
        eval_losses: std::mem::take(&mut first.eval_losses),
        phases: std::mem::take(&mut first.phases),
        ranks,
    }
}
