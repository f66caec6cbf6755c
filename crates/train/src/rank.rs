//! What one rank does: load, prepare, step after step, save.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use checkpoint::{MANIFEST_NAME, Manifest, StagedFiles, Staging};
use comm::{ProcessGroup, ReduceOp};
use data::{Order, Rows, deal_rows, micro_batches};
use kernels::Cpu;
use model::{MicroBatch, StepReport, StepSettings, train_step};
use plan::Plan;
use serde::{Deserialize, Serialize};
use tensor::{Account, Ledger};

use crate::agree::agree;
use crate::begin::{Beginning, empty_world, fill};
use crate::load::{Origin, over_ranks};
use crate::phases::{Phases, Report};
use crate::place::{on_threads, open_arena};
use crate::run::Schedule;
use crate::state::{Progress, StatePlan, checkpoint_path, remove_older, set_latest};
use crate::stored::FrozenSource;
use crate::telemetry::Telemetry;
use crate::{
    Event, PhaseRecord, RankWorld, StepRecord, TrainError, TrainJob, check_finite, export,
};

/// What one rank did and held.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RankOutcome {
    /// Tokens that it took through the model in training steps.
    pub num_tokens: u64,
    /// Bytes that it read of the checkpoint's tensors.
    pub read_bytes: u64,
    /// Bytes of weights that it wrote at the end.
    pub written_bytes: u64,
    /// The most that its ledger held at once.
    pub reserved_peak_bytes: u64,
    /// Its arena's size.
    pub arena_bytes: u64,
    /// The highest address that its arena used.
    pub arena_used_bytes: u64,
    /// Steps taken, those before a resume among them.
    pub(crate) steps: u64,
    pub(crate) losses: Vec<f64>,
    pub(crate) grad_norms: Vec<f64>,
    pub(crate) eval_losses: Vec<f64>,
    pub(crate) phases: Vec<PhaseRecord>,
}

/// Runs a rank from its first byte to its last, on threads of its own.
pub(crate) fn train(
    job: &TrainJob<'_>,
    schedule: &Schedule,
    plan: &Plan,
    group: &ProcessGroup,
    report: &Report<'_>,
) -> Result<RankOutcome, TrainError> {
    on_threads(schedule.num_threads, || {
        train_on_threads(job, schedule, plan, group, report)
    })
}

fn train_on_threads(
    job: &TrainJob<'_>,
    schedule: &Schedule,
    plan: &Plan,
    group: &ProcessGroup,
    report: &Report<'_>,
) -> Result<RankOutcome, TrainError> {
    let rank = group.world().rank();
    let mut phases = Phases::begin(report, rank == 0, "start");
    let ledger = Ledger::unlimited();
    agree(group, plan.hash, "plan")?;
    let own = &plan.ranks[rank];
    let (arena, _reservation) = open_arena(own.arena.capacity_bytes, &ledger)?;
    let device = Cpu::new(arena, schedule.num_threads);

    let mut world = empty_world(job, plan, group, &device, &ledger)?;
    let state = StatePlan::new(job, plan)?;
    let beginning = fill(job, schedule, &state, &mut world, &ledger, &mut phases)?;
    let Beginning {
        read_bytes,
        progress,
        events,
    } = beginning;
    let mut trainer = Trainer {
        job,
        schedule,
        plan,
        ledger: &ledger,
        report,
        rows: Rows::open(job.rows)?,
        eval_rows: job.eval_rows.map(Rows::open).transpose()?,
        order: Order::new(schedule.num_rows, job.settings.seed),
        final_files: (rank == 0).then(|| schedule.stage(job.out)).transpose()?,
        frozen: frozen_source(job, plan)?,
        telemetry: Telemetry::new(job.model, &plan.formats),
        world,
        state,
        previous_norm: f64::from_bits(progress.previous_norm_bits),
        phases,
        outcome: RankOutcome {
            read_bytes,
            steps: progress.step,
            ..RankOutcome::default()
        },
    };
    for event in events {
        trainer.event(&event)?;
    }
    trainer.run()?;
    let Trainer {
        phases,
        mut outcome,
        ..
    } = trainer;
    outcome.phases = phases.end(group)?;
    outcome.reserved_peak_bytes = ledger.peak_bytes();
    outcome.arena_bytes = own.arena.capacity_bytes;
    outcome.arena_used_bytes = device.arena().high_water_bytes() as u64;
    Ok(outcome)
}

/// A rank that is loaded and training.
struct Trainer<'a> {
    job: &'a TrainJob<'a>,
    schedule: &'a Schedule,
    plan: &'a Plan,
    ledger: &'a Ledger,
    report: &'a Report<'a>,
    rows: Rows,
    eval_rows: Option<Rows>,
    order: Order,
    /// Rank 0's final files, at their full size from the beginning, so that a
    /// full disk shows before the first step.
    final_files: Option<Staging>,
    world: RankWorld<'a>,
    /// Where what is not trained is written from.
    frozen: Option<FrozenSource<'a>>,
    telemetry: Telemetry,
    /// Where the state of a checkpoint lies in its files.
    state: StatePlan,
    /// The gradient norm of the last step, which `clip = "previous"` uses.
    previous_norm: f64,
    phases: Phases<'a>,
    outcome: RankOutcome,
}

impl Trainer<'_> {
    /// Steps to the end or to a stop, with evaluations and checkpoints between.
    fn run(&mut self) -> Result<(), TrainError> {
        let settings = self.job.settings;
        let num_steps = self.schedule.num_steps;
        if num_steps > 0 {
            self.refuse_if_stopped()?;
        }
        self.check_room()?;
        let first = self.outcome.steps + 1;
        if first == 1 {
            self.evaluate(0)?;
        }
        let mut step = first - 1;
        while step < num_steps && !self.asked_to_stop()? {
            step += 1;
            let phase = if step == first {
                "first step"
            } else {
                "steady step"
            };
            self.phases.next(self.world.group, phase)?;
            self.step(step)?;
            let between = step < num_steps;
            if between && is_due(step, settings.eval_every) {
                self.evaluate(step)?;
            }
            if between && is_due(step, settings.save_every) {
                self.checkpoint(step)?;
            }
        }
        if step < num_steps {
            if step < first {
                return Err(TrainError::Stopped);
            }
            self.event(&Event::Stopped { step, num_steps })?;
            if settings.save_every > 0 {
                // What can go on is kept as what can go on.
                if !is_due(step, settings.save_every) {
                    self.checkpoint(step)?;
                }
                return self.tell_ledger();
            }
        }
        if step > 0 {
            self.evaluate(step)?;
        }
        let staging = self.final_files.take();
        self.save(self.job.out, staging, step, None)?;
        self.tell_ledger()
    }

    /// Refuses a run whose first checkpoint would fill the disk.
    fn check_room(&self) -> Result<(), TrainError> {
        let every = self.job.settings.save_every;
        if self.rank() == 0 && (1..self.schedule.num_steps).contains(&every) {
            let num_bytes = self.schedule.export.num_bytes() + self.state.num_bytes();
            checkpoint::check_room(self.job.out, num_bytes)?;
        }
        Ok(())
    }

    /// One optimizer step.
    fn step(&mut self, step: u64) -> Result<(), TrainError> {
        let began = Instant::now();
        let batches = self.micro_batches(step)?;
        let tokens: usize = batches.iter().map(MicroBatch::num_tokens).sum();
        let targets: u64 = batches.iter().map(MicroBatch::num_targets).sum();
        let mut counts = [tokens as u64, targets];
        let group = self.world.group;
        group.all_reduce_u64(&mut counts, ReduceOp::Sum, "token counts")?;
        let [num_tokens, num_targets] = counts;
        let _data = self.ledger.reserve(Account::Data, 12 * tokens as u64)?;

        let lr = self.schedule.learning_rate.at(step);
        if let Some(optimizer) = &mut self.world.optimizer {
            optimizer.begin_step(step, lr);
        }
        let step_settings = StepSettings {
            num_targets,
            clip: self.job.settings.clip(self.previous_norm),
            held_logits: self.plan.held_logits,
            kept_blocks: self.plan.kept_blocks,
            allows_nan: self.job.settings.allow_nan,
        };
        let device = self.world.device;
        let taken = train_step(
            device,
            self.job.model,
            &mut self.world,
            &batches,
            step_settings,
        )
        .map_err(|error| TrainError::in_step(step, error))?;
        self.outcome.num_tokens += tokens as u64;
        self.outcome.steps = step;
        self.tell_not_finite(step, &taken)?;
        if !taken.loss.is_finite() {
            return Ok(());
        }
        self.outcome.losses.push(taken.loss);
        self.outcome.grad_norms.push(taken.grad_norm);
        self.previous_norm = taken.grad_norm;
        let seconds = began.elapsed().as_secs_f64();
        self.event(&Event::Step(StepRecord {
            step,
            num_steps: self.schedule.num_steps,
            loss: taken.loss,
            lr,
            grad_norm: taken.grad_norm,
            num_tokens,
            num_targets,
            seconds,
            tokens_per_second: num_tokens as f64 / seconds,
        }))?;
        let every = self.job.settings.operands_every;
        let is_logged = every > 0 && (step == 1 || step.is_multiple_of(every));
        let wishes = (step, is_logged, self.job.settings.max_underflow);
        let (model, world) = (self.job.model, &mut self.world);
        let events = self.telemetry.step(model, world, &taken.operands, wishes)?;
        events.iter().try_for_each(|event| self.event(event))
    }

    /// Says what a step could not use.
    fn tell_not_finite(&self, step: u64, taken: &StepReport) -> Result<(), TrainError> {
        let StepReport {
            loss, not_finite, ..
        } = taken;
        let message = if !loss.is_finite() {
            format!("step {step}: the loss is not finite ({loss}); nothing was updated")
        } else if !not_finite.is_empty() {
            let units = not_finite.join(", ");
            format!("step {step}: no update of {units}: the gradient is not finite")
        } else {
            return Ok(());
        };
        self.event(&Event::Warning { message })
    }

    /// This rank's rows of a step.
    fn micro_batches(&self, step: u64) -> Result<Vec<MicroBatch>, TrainError> {
        let planned = self.schedule.batches.step(step - 1);
        let settings = self.job.settings;
        let own = deal_rows(planned.positions, settings.ranks, self.rank());
        micro_batches(own, settings.micro_batch)
            .into_iter()
            .map(|positions| {
                let rows = positions.map(|at| self.order.row_of(planned.epoch, at));
                read_rows(&self.rows, rows)
            })
            .collect()
    }

    /// The loss on the evaluation data, if there is any.
    fn evaluate(&mut self, step: u64) -> Result<(), TrainError> {
        let Some(rows) = &self.eval_rows else {
            return Ok(());
        };
        self.phases.next(self.world.group, "eval")?;
        let settings = self.job.settings;
        let own = deal_rows(0..rows.num_rows(), settings.ranks, self.rank());
        let mut sums = [0.0, 0.0];
        for batch in micro_batches(own, settings.micro_batch) {
            let batch = [read_rows(rows, batch)?];
            let device = self.world.device;
            sums[0] += model::evaluate(device, self.job.model, &self.world, &batch)?;
            sums[1] += batch[0].num_targets() as f64;
        }
        self.world
            .group
            .all_reduce_f64(&mut sums, ReduceOp::Sum, "eval loss")?;
        let loss = sums[0] / sums[1];
        self.outcome.eval_losses.push(loss);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count below 2^53"
        )]
        let num_targets = sums[1] as u64;
        self.event(&Event::Eval {
            step,
            loss,
            perplexity: loss.exp(),
            num_targets,
        })
    }

    /// The files of an export, which rank 0 makes.
    fn stage(&self, path: &Path) -> Result<Option<Staging>, TrainError> {
        let staging = (self.rank() == 0).then(|| self.schedule.stage(path));
        staging.transpose()
    }

    /// Writes the model and all that continues the run, then calls it the latest.
    fn checkpoint(&mut self, step: u64) -> Result<(), TrainError> {
        let path = checkpoint_path(self.job.out, step);
        let staging = self.stage(&path)?;
        let progress = Progress {
            step,
            previous_norm_bits: self.previous_norm.to_bits(),
            fallen: self.world.fallen.clone(),
        };
        self.save(&path, staging, step, Some(&progress))?;
        if self.rank() == 0 {
            set_latest(self.job.out, step)?;
            remove_older(self.job.out, self.job.settings.keep)?;
        }
        Ok(())
    }

    /// Writes the model as it is to `path`, whole or not at all, with the state that
    /// continues the run if `progress` is given.
    fn save(
        &mut self,
        path: &Path,
        staging: Option<Staging>,
        step: u64,
        progress: Option<&Progress>,
    ) -> Result<(), TrainError> {
        let group = self.world.group;
        self.phases.next(group, "save")?;
        let settings = self.job.settings;
        group.set_deadline(settings.deadline_of_files());
        let plan = &self.schedule.export;
        if step > 0 && !settings.allow_nan {
            check_finite(&self.world, self.job.model, plan, step)?;
        }
        if let Some(progress) = progress {
            let text = progress.to_text(self.job, self.schedule);
            self.state.write(&self.world, path, &text)?;
        }
        group.barrier("files staged")?;
        let files = StagedFiles::open(path, plan)?;
        let frozen = self.frozen.as_ref();
        let written = export(
            &self.world,
            self.job.model,
            plan,
            &files,
            frozen,
            self.ledger,
        )?;
        self.outcome.written_bytes = written.num_bytes;
        files.sync()?;
        let digests = over_ranks(group, &written.digests)?;
        if let Some(mut staging) = staging {
            let names = self.job.model.params().map(|param| param.name.as_str());
            let text = Manifest::text(names.zip(digests));
            staging.add_text(MANIFEST_NAME, &text)?;
            staging.commit()?;
        }
        group.barrier("files in place")?;
        group.set_deadline(settings.deadline());
        let num_bytes = plan.num_bytes();
        self.event(&Event::Saved {
            path: path.display().to_string(),
            step,
            num_bytes,
        })
    }

    /// Whether any rank was asked to stop; the same answer on all.
    fn asked_to_stop(&self) -> Result<bool, TrainError> {
        let mut asked = [u64::from(self.job.stop.load(Relaxed))];
        let group = self.world.group;
        group.all_reduce_u64(&mut asked, ReduceOp::Max, "asked to stop")?;
        Ok(asked[0] > 0)
    }

    /// Ends a run that has learned nothing yet: there is nothing to keep.
    fn refuse_if_stopped(&self) -> Result<(), TrainError> {
        if self.asked_to_stop()? {
            return Err(TrainError::Stopped);
        }
        Ok(())
    }

    /// Says what every rank held by name; rank 0 speaks for all.
    fn tell_ledger(&self) -> Result<(), TrainError> {
        let own = Event::ledger(
            self.rank(),
            self.ledger,
            self.world.device.arena(),
            self.plan.ranks[self.rank()].arena.capacity_bytes,
        );
        let bytes = serde_json::to_vec(&own).expect("events are plain data");
        for line in self.world.group.all_gather(&bytes, "ledgers")? {
            let event = serde_json::from_slice(&line).expect("written by this program");
            self.event(&event)?;
        }
        Ok(())
    }

    fn rank(&self) -> usize {
        self.world.group.world().rank()
    }

    fn event(&self, event: &Event) -> Result<(), TrainError> {
        if self.rank() == 0 {
            self.report.event(event)?;
        }
        Ok(())
    }
}

/// The files that what is not trained is written from, kept open from the beginning.
fn frozen_source<'a>(
    job: &TrainJob<'a>,
    plan: &Plan,
) -> Result<Option<FrozenSource<'a>>, TrainError> {
    let origin = Origin::of(job)?;
    let mut slices = plan
        .sharding
        .buckets
        .iter()
        .flat_map(|bucket| &bucket.slices);
    if !slices.any(|slice| slice.is_frozen) {
        return Ok(None);
    }
    Ok(Some(FrozenSource {
        reader: job.folder.open_files_with(origin.settings.cache)?,
        tensors: origin.numbered(&plan.sharding, &plan.formats),
    }))
}

/// Reads rows of a token file as one micro-batch.
pub(crate) fn read_rows(
    rows: &Rows,
    indices: impl Iterator<Item = u64>,
) -> Result<MicroBatch, TrainError> {
    let seq = rows.seq();
    let (mut ids, mut targets) = (Vec::new(), Vec::new());
    for index in indices {
        let at = ids.len();
        ids.resize(at + seq, 0);
        targets.resize(at + seq, 0);
        rows.row(index, &mut ids[at..], &mut targets[at..])?;
    }
    Ok(MicroBatch::new(seq, ids, targets))
}

fn is_due(step: u64, every: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}
