//! What a rank that is a process must know, in one argument of its command.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use checkpoint::{FollowLinks, ReadRules, Strictness};
use comm::{Invitation, LaunchError, World};
use serde::{Deserialize, Serialize};
use train::{Ranks, Seat, Settings, TrainJob, train_rank};

use crate::opened::num_cores;
use crate::train_model::Inputs;
use crate::{Error, ModelPath, OpenModel, TrainOptions};

/// One rank's part of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RankTask {
    rank: usize,
    /// The process that started it.
    launcher: u32,
    model: PathBuf,
    is_lax: bool,
    links: String,
    settings: Settings,
    rows: PathBuf,
    eval_rows: Option<PathBuf>,
    out: PathBuf,
}

impl RankTask {
    pub(crate) fn new(
        world: World,
        options: &TrainOptions<'_>,
        opened: &OpenModel,
        [rows, eval_rows]: [&Path; 2],
        inputs: &Inputs,
    ) -> Self {
        let rules = options.model.rules;
        Self {
            rank: world.rank(),
            launcher: std::process::id(),
            // The demo's files are in a folder of the launcher's.
            model: opened.folder.path().to_owned(),
            is_lax: rules.strictness == Strictness::Lax,
            links: match rules.links {
                FollowLinks::Any => "any",
                FollowLinks::Cache => "cache",
                FollowLinks::None => "none",
            }
            .to_owned(),
            settings: options.settings.clone(),
            rows: rows.to_owned(),
            eval_rows: inputs.eval.is_some().then(|| eval_rows.to_owned()),
            out: options.out.to_owned(),
        }
    }

    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("a task is plain values")
    }

    fn of_text(text: &str) -> Result<Self, Error> {
        serde_json::from_str(text).map_err(|error| Error::BadSettings {
            origin: None,
            message: format!("of a rank: {error}"),
        })
    }

    fn rules(&self) -> ReadRules {
        let strictness = if self.is_lax {
            Strictness::Lax
        } else {
            Strictness::Strict
        };
        let links = self.links.parse::<FollowLinks>().unwrap_or_default();
        ReadRules { strictness, links }
    }
}

/// Runs one rank of a run that [`crate::train_model`] has started in this process;
/// hands each line for it to `tell`, the error among them.
pub fn train_as_rank(
    task: &str,
    stop: &AtomicBool,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<(), Error> {
    let task = RankTask::of_text(task)?;
    let seat = Seat::Launched(task.launcher);
    train_at(&task, seat, stop, tell)
}

/// Runs one rank of a run that rank 0 has invited this process to. `on_lost` ends the
/// process if the run does not end by itself once rank 0 is lost.
pub fn train_as_guest(
    invitation: Invitation,
    stop: &AtomicBool,
    on_lost: impl FnOnce(LaunchError) + Send + 'static,
) -> Result<(), Error> {
    let task = RankTask::of_text(&invitation.task)?;
    let invitation = Arc::new(invitation);
    let seat = Seat::Guest(Arc::clone(&invitation), Box::new(on_lost));
    train_at(&task, seat, stop, &|line| invitation.tell(line))
}

fn train_at(
    task: &RankTask,
    seat: Seat,
    stop: &AtomicBool,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<(), Error> {
    let opened = OpenModel::open(ModelPath {
        path: &task.model,
        rules: task.rules(),
    })?;
    let job = TrainJob {
        folder: &opened.folder,
        sources: &opened.sources,
        model: &opened.model,
        settings: &task.settings,
        rows: &task.rows,
        eval_rows: task.eval_rows.as_deref(),
        out: &task.out,
        num_cores: num_cores(),
        ranks: Ranks::Threads,
        observer: &|_| (),
        stop,
    };
    Ok(train_rank(&job, task.rank, seat, tell)?)
}
