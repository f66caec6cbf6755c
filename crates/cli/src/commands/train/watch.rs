//! Watches a run: a progress bar on a terminal, lines elsewhere, JSON on request.

use std::io::{self, IsTerminal as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use nestling::{Event, StepRecord};

use super::lines::{figures, line, place};
use crate::error::CliError;
use crate::output::{note, to_json, write_now};
use crate::progress;

/// The longest silence between two steps where there is no bar.
const SILENCE: Duration = Duration::from_secs(5);

/// Where a person looks while a run goes on.
#[derive(Debug, Clone)]
pub(crate) enum View {
    /// A terminal.
    Bar(ProgressBar),
    /// A file or a pipe.
    Lines,
    /// Nobody.
    Nothing,
}

impl View {
    /// The view that fits standard error.
    pub(crate) fn of_stderr() -> Self {
        if io::stderr().is_terminal() {
            Self::Bar(progress::steps(0))
        } else {
            Self::Lines
        }
    }

    /// Shows a line above the bar, whoever looks.
    pub(crate) fn warn(&self, line: &str) {
        match self {
            Self::Bar(bar) => bar.suspend(|| note(line)),
            Self::Lines | Self::Nothing => note(line),
        }
    }

    fn event(&self, event: &Event) {
        let is_needed = matches!(event, Event::Warning { .. }) || !matches!(self, Self::Nothing);
        if is_needed && let Some(line) = line(event) {
            self.warn(&line);
        }
        if let (Self::Bar(bar), Event::Start { num_steps, .. }) = (self, event) {
            bar.set_length(*num_steps);
            bar.set_prefix("loading");
        }
    }

    fn step(&self, record: &StepRecord, pace: &mut Pace) {
        let seconds_left = pace.take(record);
        match self {
            Self::Bar(bar) => {
                bar.set_length(record.num_steps);
                bar.set_position(record.step);
                bar.set_prefix(place(record, seconds_left));
                bar.set_message(figures(record));
            }
            Self::Lines if pace.is_due(record) => {
                let place = place(record, seconds_left);
                note(&format!("{place}  {}", figures(record)));
            }
            Self::Lines | Self::Nothing => {}
        }
    }

    /// Takes the bar away.
    pub(crate) fn end(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Watches one run.
#[derive(Debug)]
pub(crate) struct Watch {
    view: View,
    /// Whether events go to standard output as JSON.
    writes_json: bool,
    seen: Arc<Mutex<Seen>>,
}

/// What is kept of the events until the end of the run.
#[derive(Debug, Default)]
struct Seen {
    pace: Pace,
    kept: Vec<Event>,
    failed: Option<io::Error>,
}

impl Watch {
    pub(crate) fn new(view: View, writes_json: bool) -> Self {
        Self {
            view,
            writes_json,
            seen: Arc::default(),
        }
    }

    /// Takes note of an event.
    pub(crate) fn event(&self, event: &Event) {
        let mut seen = self.seen();
        if self.writes_json
            && let Err(error) = write_now(&format!("{}\n", to_json(event)))
        {
            seen.failed.get_or_insert(error);
        }
        if matches!(event, Event::Ledger { .. } | Event::Saved { .. }) {
            seen.kept.push(event.clone());
        }
        match event {
            Event::Step(record) => self.view.step(record, &mut seen.pace),
            _ => self.view.event(event),
        }
    }

    /// The ledgers of all ranks and what was saved, or why not every event could be written.
    pub(crate) fn finish(&self) -> Result<Vec<Event>, CliError> {
        self.view.end();
        let mut seen = self.seen();
        match seen.failed.take() {
            Some(source) => Err(CliError::Output { source }),
            None => Ok(std::mem::take(&mut seen.kept)),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How fast steps come, and when one was last told.
#[derive(Debug, Default)]
struct Pace {
    num_steps: u64,
    seconds: f64,
    told: Option<Instant>,
}

impl Pace {
    /// Takes in a step and gives the seconds that the rest will take.
    fn take(&mut self, record: &StepRecord) -> f64 {
        // The first step also warms caches; it counts only while it is alone.
        if self.num_steps == 1 && record.step == 2 {
            *self = Self {
                told: self.told,
                ..Self::default()
            };
        }
        self.num_steps += 1;
        self.seconds += record.seconds;
        let steps_left = record.num_steps.saturating_sub(record.step);
        self.seconds / self.num_steps as f64 * steps_left as f64
    }

    fn is_due(&mut self, record: &StepRecord) -> bool {
        let is_last = record.step == record.num_steps;
        let is_due = is_last || self.told.is_none_or(|told| told.elapsed() >= SILENCE);
        if is_due {
            self.told = Some(Instant::now());
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::clock;

    fn record(step: u64, seconds: f64) -> StepRecord {
        StepRecord {
            step,
            num_steps: 10,
            loss: 1.0,
            lr: 1.0,
            grad_norm: 1.0,
            num_tokens: 1,
            num_targets: 1,
            seconds,
            tokens_per_second: 1.0,
        }
    }

    #[test]
    fn the_time_left_forgets_the_first_step() {
        let mut pace = Pace::default();
        let left = [(1, 9.0), (2, 1.0), (3, 3.0)].map(|(step, s)| pace.take(&record(step, s)));
        assert_eq!(left.map(clock), ["1:21", "0:08", "0:14"]);
    }

    #[test]
    fn the_first_and_the_last_step_are_always_told() {
        let mut pace = Pace::default();
        let told = [1, 2, 10].map(|step| pace.is_due(&record(step, 1.0)));
        assert_eq!(told, [true, false, true]);
    }
}
