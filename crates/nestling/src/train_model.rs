//! Fine-tuning, from a model and data to a finished folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use comm::{Guests, Start, World};
use train::{Event, Observer, Outcome, Ranks, Settings, TrainJob};

use crate::opened::{num_cores, run_path};
use crate::prepare::prepare_unless;
use crate::rank_task::RankTask;
use crate::staked::{Staked, check_out};
use crate::{DEMO, Error, ModelPath, OpenModel};

/// Prepared rows in the run folder, there while it runs.
const ROWS: &str = "rows";
const EVAL_ROWS: &str = "eval-rows";
/// A run that has these has begun.
const METRICS: &str = "metrics.jsonl";

/// What to train, on what, and where the result goes.
#[derive(Clone, Copy)]
pub struct TrainOptions<'a> {
    /// The model to begin with.
    pub model: ModelPath<'a>,
    /// Data; none for the demo's own.
    pub data: Option<&'a Path>,
    /// The folder to write.
    pub out: &'a Path,
    /// The settings.
    pub settings: &'a Settings,
    /// Where the ranks are; none for threads of this process.
    pub processes: Option<Processes<'a>>,
    /// Whoever watches.
    pub observer: Observer<'a>,
    /// Set from outside to end the run at the next step boundary.
    pub stop: &'a AtomicBool,
}

/// Ranks that are a process each.
#[derive(Debug, Clone, Copy)]
pub struct Processes<'a> {
    /// A program that runs a rank when it is called as `PROGRAM rank TASK`: it hands
    /// TASK to [`crate::train_as_rank`].
    pub program: &'a Path,
    /// Ranks that run already and came to a meeting; the others are started.
    pub guests: &'a Guests,
}

impl std::fmt::Debug for TrainOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrainOptions")
            .field("model", &self.model)
            .field("data", &self.data)
            .field("out", &self.out)
            .finish_non_exhaustive()
    }
}

/// Tokens of an answer of the demo at most.
pub const DEMO_ANSWER_TOKENS: usize = demo::SETTINGS.max_new_tokens;

/// How the demo trains when nobody says otherwise.
pub fn demo_settings() -> Settings {
    let demo = demo::SETTINGS;
    Settings {
        steps: Some(demo.steps),
        seq: demo.seq,
        micro_batch: demo.micro_batch,
        global_batch: demo.global_batch,
        lr: demo.lr,
        warmup: demo.warmup,
        weight_decay: demo.weight_decay,
        eval_every: demo.eval_every,
        ..Settings::default()
    }
}

/// Questions whose answers before and after training show what the demo learned.
pub fn demo_questions() -> Vec<&'static str> {
    let more = demo::MORE_PROMPTS.iter().take(2).copied();
    std::iter::once(demo::PROMPT).chain(more).collect()
}

/// Removes the unfinished files of a run that is about to be ended by force.
pub fn discard_staged(out: &Path) {
    discard_saving(out);
    for rows in [ROWS, EVAL_ROWS] {
        drop(fs::remove_file(run_path(out, rows)));
    }
}

/// Removes the files of saves that were under way, of the model and of checkpoints.
/// What cannot be removed stays: there is nobody left to tell.
fn discard_saving(out: &Path) {
    drop(checkpoint::discard_staged(out));
    train::discard_unfinished_checkpoints(out);
}

/// Trains and writes the model to the top of `out`.
pub fn train_model(options: TrainOptions<'_>) -> Result<Outcome, Error> {
    let TrainOptions { out, settings, .. } = options;
    let opened = OpenModel::open(options.model)?;
    for message in opened.left_out() {
        (options.observer)(&Event::Warning { message });
    }
    train::check(settings, &opened.model)?;
    check_out(out, settings.resume.is_some())?;
    let made_out = !out.exists();
    fs::create_dir_all(out).map_err(Error::file("create", out))?;
    let staked = Staked::take(out, settings)?;
    if let Some(moved_to) = &staked.moved_to {
        let moved_to = moved_to.display();
        (options.observer)(&Event::Warning {
            message: format!("the log of the failed run before is in `{moved_to}`"),
        });
    }
    for path in &staked.discarded {
        let path = path.display();
        (options.observer)(&Event::Warning {
            message: format!("`{path}` was never finished and is removed"),
        });
    }
    let leftovers = Leftovers { out, made_out };
    let outcome = prepare_and_run(&options, &opened);
    if let Err(error) = &outcome {
        leftovers.clear(error);
    }
    outcome
}

fn prepare_and_run(options: &TrainOptions<'_>, opened: &OpenModel) -> Result<Outcome, Error> {
    let &TrainOptions { out, settings, .. } = options;
    let data = Inputs::of(options)?;
    let rows = run_path(out, ROWS);
    let (stop, how) = (options.stop, (settings.seq, settings.seed));
    prepare_unless(stop, opened, &data.train, how, &rows)?;
    let eval_rows = run_path(out, EVAL_ROWS);
    if let Some(eval) = &data.eval {
        prepare_unless(stop, opened, eval, how, &eval_rows)?;
    }
    let start = options.processes.map(|Processes { program, guests }| {
        let (rows, eval_rows, data) = (&rows, &eval_rows, &data);
        move |world: World| {
            let task = RankTask::new(world, options, opened, [rows, eval_rows], data).to_text();
            if let Some(guest) = guests.take(world.rank()) {
                return Start::Guest(guest, task);
            }
            let mut command = Command::new(program);
            command.arg("rank").arg(task);
            Start::Command(command)
        }
    });
    let ranks = match &start {
        Some(start) => Ranks::Processes(start),
        None => Ranks::Threads,
    };
    let outcome = train::run(&TrainJob {
        folder: &opened.folder,
        sources: &opened.sources,
        model: &opened.model,
        settings,
        rows: &rows,
        eval_rows: data.eval.is_some().then_some(eval_rows.as_path()),
        out,
        num_cores: num_cores(),
        ranks,
        observer: options.observer,
        stop: options.stop,
    })?;
    for path in [&rows, &eval_rows] {
        if path.exists() {
            fs::remove_file(path).map_err(Error::file("remove", path))?;
        }
    }
    Ok(outcome)
}

/// What a failed run leaves in its folder.
struct Leftovers<'a> {
    out: &'a Path,
    made_out: bool,
}

impl Leftovers<'_> {
    /// Removes the prepared rows, and all there is of a run that never began or was
    /// stopped before its first step. What cannot be removed stays: the error that
    /// led here is the one to report.
    fn clear(&self, error: &Error) {
        // A rank that was killed has removed nothing.
        discard_saving(self.out);
        for rows in [ROWS, EVAL_ROWS] {
            drop(fs::remove_file(run_path(self.out, rows)));
        }
        let has_begun = run_path(self.out, METRICS).exists();
        if !has_begun || matches!(error, Error::Stopped) {
            drop(fs::remove_dir_all(self.out.join("run")));
            if self.made_out {
                // Fails unless empty, as it should.
                drop(fs::remove_dir(self.out));
            }
        }
    }
}

/// The data files of a run.
pub(crate) struct Inputs {
    train: PathBuf,
    pub(crate) eval: Option<PathBuf>,
}

impl Inputs {
    /// The user's, or the demo's written into the run folder.
    fn of(options: &TrainOptions<'_>) -> Result<Self, Error> {
        let eval = options.settings.eval.as_ref().map(PathBuf::from);
        match options.data {
            Some(train) => Ok(Self {
                train: train.to_owned(),
                eval,
            }),
            None if options.model.path.as_os_str() == DEMO => {
                let train = run_path(options.out, "demo-train.jsonl");
                let held_out = run_path(options.out, "demo-eval.jsonl");
                write(&train, demo::TRAIN_JSONL)?;
                write(&held_out, demo::EVAL_JSONL)?;
                Ok(Self {
                    train,
                    eval: Some(eval.unwrap_or(held_out)),
                })
            }
            None => Err(Error::NoData),
        }
    }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saves_under_way_are_removed_and_whole_checkpoints_stay() {
        let out = tempfile::TempDir::new().unwrap();
        let step = |number: u64| out.path().join(format!("checkpoints/step-{number}"));
        for folder in [out.path().join(".saving"), step(4).join(".saving"), step(2)] {
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("config.json"), "{}").unwrap();
        }
        discard_staged(out.path());
        assert!(!out.path().join(".saving").exists());
        assert!(!step(4).exists());
        assert!(step(2).join("config.json").exists());
    }
}
