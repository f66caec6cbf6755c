//! A run whose ranks are processes: what a rank tells its launcher, line by line.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use comm::{
    Invitation, LaunchError, RankFailure, Start, World, run_guest, run_processes, run_rank,
};
use serde::{Deserialize, Serialize};

use crate::phases::Report;
use crate::rank::{self, RankOutcome};
use crate::run::Schedule;
use crate::{Event, TrainError, TrainJob};

/// Where the ranks of a run are.
#[derive(Clone, Copy, Default)]
pub enum Ranks<'a> {
    /// Threads of this process.
    #[default]
    Threads,
    /// Processes that call [`train_rank`] and hand its lines to standard output, or to
    /// rank 0 as its guests.
    Processes(&'a (dyn Fn(World) -> Start + Sync)),
}

impl std::fmt::Debug for Ranks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Threads => "Threads",
            Self::Processes(_) => "Processes",
        })
    }
}

/// A line that a rank tells.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    Event(Event),
    Done(RankOutcome),
    Failed { message: String, is_stopped: bool },
}

/// What the launcher has heard.
#[derive(Debug, Default)]
struct Heard {
    outcomes: Vec<Option<RankOutcome>>,
    /// What each rank said of its end, and whether it was asked to stop.
    failed: Vec<Option<(String, bool)>>,
    last_step: u64,
    /// What could not be passed on.
    error: Option<TrainError>,
}

impl Heard {
    fn take(&mut self, rank: usize, line: &str, report: &Report<'_>) {
        let event = match serde_json::from_str(line) {
            Ok(Told::Done(outcome)) => return self.outcomes[rank] = Some(outcome),
            Ok(Told::Failed {
                message,
                is_stopped,
            }) => return self.failed[rank] = Some((message, is_stopped)),
            Ok(Told::Event(event)) => event,
            Err(_) => Event::Warning {
                message: format!("rank {rank} says: {line}"),
            },
        };
        if let Event::Step(record) = &event {
            self.last_step = record.step;
        }
        if let Err(error) = report.event(&event) {
            self.error.get_or_insert(error);
        }
    }
}

/// Runs all ranks as processes; tells what they tell.
pub(crate) fn run(
    job: &TrainJob<'_>,
    start: &dyn Fn(World) -> Start,
    world_size: NonZeroUsize,
    report: &Report<'_>,
) -> Result<Vec<RankOutcome>, TrainError> {
    let heard = Mutex::new(Heard {
        outcomes: vec![None; world_size.get()],
        failed: vec![None; world_size.get()],
        ..Heard::default()
    });
    let ended = run_processes(world_size, start, job.stop, &|rank, line| {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.take(rank, line, report);
    });
    let heard = heard.into_inner().unwrap_or_else(PoisonError::into_inner);
    match ended {
        Ok(()) => {}
        Err(RankFailure::Ended { rank, message }) => {
            return Err(failure(heard, rank, message, report));
        }
        Err(RankFailure::NotStarted { rank, source }) => {
            let what = format!("a process for rank {rank}");
            return Err(TrainError::System { what, source });
        }
        Err(_) => unreachable!("processes end in no other way"),
    }
    if let Some(error) = heard.error {
        return Err(error);
    }
    let outcomes = heard.outcomes.into_iter().enumerate();
    let outcomes = outcomes.map(|(rank, outcome)| {
        outcome.ok_or_else(|| TrainError::RankProcess {
            rank,
            world_size: world_size.get(),
            message: "ended without telling its outcome".to_owned(),
        })
    });
    outcomes.collect()
}

/// The error of the rank that failed first; says how the others learned of it.
fn failure(mut heard: Heard, rank: usize, message: String, report: &Report<'_>) -> TrainError {
    let own = heard.failed.get_mut(rank).and_then(Option::take);
    let world_size = heard.failed.len();
    if let Some((_, true)) = own {
        return TrainError::Stopped;
    }
    for (peer, said) in heard.failed.iter().enumerate() {
        if let Some((message, _)) = said {
            let message = format!("rank {peer} of {world_size} ended in {message}");
            // The error that led here is the one to report.
            drop(report.event(&Event::Warning { message }));
        }
    }
    let message = own.map_or(message, |(said, _)| said);
    let (host, step) = (host_name(), heard.last_step);
    let message = format!("{message} (on host {host}, {step} steps were completed)");
    TrainError::RankProcess {
        rank,
        world_size,
        message,
    }
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// How a rank that is a process finds the others.
pub enum Seat {
    /// The process of this number has started it.
    Launched(u32),
    /// It came to a meeting. The function ends the process if its work does not end
    /// once rank 0 is lost.
    Guest(Arc<Invitation>, Box<dyn FnOnce(LaunchError) + Send>),
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Launched(launcher) => write!(f, "Launched({launcher})"),
            Self::Guest(..) => f.write_str("Guest"),
        }
    }
}

/// Runs one rank of a job in this process; hands each line for the launcher to `tell`.
#[expect(clippy::missing_panics_doc, reason = "plain data always have a text")]
pub fn train_rank(
    job: &TrainJob<'_>,
    rank: usize,
    seat: Seat,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<(), TrainError> {
    let tell = |told: &Told| tell(&serde_json::to_string(told).expect("plain data"));
    let outcome = World::new(rank, job.settings.ranks)
        .map_err(TrainError::from)
        .and_then(|world| {
            let observer = |event: &Event| tell(&Told::Event(event.clone()));
            let rank_main = |group| {
                let schedule = Schedule::new(job)?;
                let plan = schedule.plan(job)?;
                let report = Report::new(&observer, None);
                rank::train(job, &schedule, &plan, &group, &report)
            };
            let deadline = job.settings.deadline_of_files();
            let ended = match seat {
                Seat::Launched(launcher) => run_rank(world, launcher, deadline, rank_main),
                Seat::Guest(invitation, on_lost) => {
                    run_guest(&invitation, deadline, on_lost, rank_main)
                }
            };
            ended.map_err(|failure| match failure {
                RankFailure::Failed { source, .. } => source,
                RankFailure::NotStarted { rank, source } => TrainError::System {
                    what: format!("a place for rank {rank}"),
                    source,
                },
                RankFailure::Panicked { rank, message } => TrainError::Panicked { rank, message },
                _ => unreachable!("a rank ends in no other way"),
            })
        });
    match outcome {
        Ok(outcome) => {
            tell(&Told::Done(outcome));
            Ok(())
        }
        Err(error) => {
            tell(&Told::Failed {
                message: with_sources(&error),
                is_stopped: matches!(error, TrainError::Stopped),
            });
            Err(error)
        }
    }
}

/// An error and its sources in one line, none said twice.
fn with_sources(error: &TrainError) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        let part = source.to_string();
        if !text.ends_with(&part) {
            text = format!("{text}: {part}");
        }
        next = source.source();
    }
    text
}

/// A number that JSON has no word for, which is written as null.
pub(crate) fn nan_if_null<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + From<f32>,
{
    let number = Option::<T>::deserialize(deserializer)?;
    Ok(number.unwrap_or_else(|| T::from(f32::NAN)))
}
