//! `nestling train`: settings, run, report.

mod answers;
mod flags;
mod launch;
mod lines;
mod watch;

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nestling::{
    DEMO, Event, Guests, Outcome, Processes, Settings, TrainOptions, check_out, demo_settings,
    discard_staged, discard_temporary, kill_ranks, read_settings, settings_to_toml, show_sample,
    train_model,
};

use self::flags::SettingFlags;
use self::launch::Launched;
use self::lines::{saved_line, stopped_line};
use self::watch::{View, Watch};
use crate::error::{CliError, one_line};
use crate::output::{note, print};
use crate::reading::Reading;
use crate::signals;
use crate::stop::Stop;
use crate::tables::{ledger_table, memory_table};

/// Fine-tune a model and write it as a Hugging Face folder.
#[derive(Debug, clap::Args)]
pub(crate) struct Train {
    /// A Hugging Face folder, or `demo`, which brings its own data and settings
    model: PathBuf,
    /// A .jsonl file, or a folder of them
    data: Option<PathBuf>,
    /// The folder to write; it must be empty or not there
    #[arg(long, value_name = "DIR", required_unless_present_any = ["print_config", "show_sample"])]
    out: Option<PathBuf>,
    /// A TOML file of settings; flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the settings as a --config file, and do nothing else
    #[arg(long, conflicts_with = "json")]
    print_config: bool,
    /// Print one sequence of the data as tokens, mask and text, and do nothing else
    #[arg(long, value_name = "ROW", conflicts_with = "json")]
    show_sample: Option<u64>,
    /// Print every event as a line of JSON, and nothing else
    #[arg(long)]
    json: bool,
    /// Print warnings and errors only
    #[arg(long)]
    quiet: bool,
    /// What the ranks are, where there are several
    #[arg(long, value_parser = ["processes", "threads"], default_value = "processes", hide = true)]
    rank_mode: String,
    /// How long ranks that a cluster's launcher started wait for each other
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    meet_timeout: u32,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    settings: SettingFlags,
}

impl Train {
    pub(crate) fn run(self) -> Result<ExitCode, CliError> {
        let settings = self.settings()?;
        if self.print_config {
            print(&settings_to_toml(&settings))?;
            return Ok(ExitCode::SUCCESS);
        }
        match (self.show_sample, &self.out) {
            (None, Some(out)) => self.launch(out, settings),
            (row, _) => {
                signals::clean_up_when_ended()?;
                self.show(row.unwrap_or_default(), &settings)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }

    fn settings(&self) -> Result<Settings, CliError> {
        let defaults = if self.is_demo() {
            demo_settings()
        } else {
            Settings::default()
        };
        let flags = self.settings.to_table()?;
        Ok(read_settings(&defaults, self.config.as_deref(), flags)?)
    }

    /// Whether the demo trains on its own data.
    fn is_demo(&self) -> bool {
        self.model.as_os_str() == DEMO && self.data.is_none()
    }

    fn show(&self, row: u64, settings: &Settings) -> Result<(), CliError> {
        let in_colour = io::stdout().is_terminal();
        let data = self.data.as_deref();
        let (seq, seed) = (settings.seq, settings.seed);
        let sample = show_sample(
            self.reading.of(&self.model),
            data,
            seq,
            seed,
            row,
            in_colour,
        )?;
        print(&format!("{}\n", sample.trim_end()))
    }

    /// Trains here, or does this process's part of what several were started for.
    fn launch(&self, out: &Path, mut settings: Settings) -> Result<ExitCode, CliError> {
        let patience = Duration::from_secs(self.meet_timeout.into());
        let launched = Launched::find(&mut settings, &self.rank_mode, patience)?;
        let no_guests = Guests::default();
        let Some(launched) = launched else {
            return self.train(out, &settings, &no_guests);
        };
        let data = self.data.as_deref().unwrap_or(Path::new(DEMO));
        let what = [("model", &*self.model), ("data", data), ("out", out)];
        let what = what.map(|(name, path)| format!("{name} = {}", path.display()));
        let lines = launch::lines(what, &settings);
        if !launched.is_rank_0() {
            return launched.attend(lines);
        }
        let guests = launched.hold(lines)?;
        let ended = self.train(out, &settings, &guests);
        // Before the ranks ran, nobody else has told them.
        guests.refuse(&match &ended {
            Ok(_) => "the run is over".to_owned(),
            Err(error) => one_line(error),
        });
        ended
    }

    fn train(
        &self,
        out: &Path,
        settings: &Settings,
        guests: &Guests,
    ) -> Result<ExitCode, CliError> {
        // Before a signal may remove what is staged there.
        check_out(out, settings.resume.is_some())?;
        let asks = self.is_demo() && !self.is_silent();
        let view = if self.is_silent() {
            View::Nothing
        } else {
            View::of_stderr()
        };
        let watch = Watch::new(view.clone(), self.json);
        let stop = listen(view, out.to_owned())?;
        if asks {
            answers::print_answers("before training", &self.model, settings)?;
        }
        let program = self.program(settings)?;
        let outcome = train_model(TrainOptions {
            model: self.reading.of(&self.model),
            data: self.data.as_deref(),
            out,
            settings,
            processes: program
                .as_deref()
                .map(|program| Processes { program, guests }),
            observer: &|event| watch.event(event),
            stop: &stop.flag,
        });
        let kept = watch.finish();
        let outcome = match outcome {
            Err(nestling::Error::Stopped) => {
                note(STOPPED_EARLY);
                return Ok(ExitCode::from(stop.exit_code()));
            }
            outcome => outcome?,
        };
        let kept = kept?;
        if !self.is_silent() {
            print(&report(&outcome, &kept))?;
        }
        if outcome.steps < outcome.num_steps {
            let out = out.display().to_string();
            let kept = if settings.save_every > 0 {
                "; go on with --resume".to_owned()
            } else {
                format!("; {out} holds the model as of that step")
            };
            note(&stopped_line(outcome.steps, outcome.num_steps, &kept));
            return Ok(ExitCode::from(stop.exit_code()));
        }
        if asks {
            answers::print_answers("after training", out, settings)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The program that ranks are processes of. A rank that is alone has nobody to
    /// watch over it, nor to end when it does.
    fn program(&self, settings: &Settings) -> Result<Option<PathBuf>, CliError> {
        let are_threads = settings.ranks == 1 || self.rank_mode == "threads";
        let program = (!are_threads).then(std::env::current_exe).transpose();
        program.map_err(|source| CliError::Program { source })
    }

    /// Whether standard output is for a program, or for nothing.
    fn is_silent(&self) -> bool {
        self.json || self.quiet
    }
}

/// What is said of a run that was stopped before it learned anything.
const STOPPED_EARLY: &str = "stopped before the first step; nothing was kept";

/// Stops the run that writes to `out` when a signal comes.
fn listen(view: View, out: PathBuf) -> Result<Arc<Stop>, CliError> {
    Stop::listen(
        move || view.warn("stopping after this step; once more to quit at once and keep nothing"),
        move || {
            kill_ranks();
            discard_staged(&out);
            discard_temporary();
        },
    )
}

/// The tables and figures after a run; `kept` are its ledgers and saves.
fn report(outcome: &Outcome, kept: &[Event]) -> String {
    let mut text = format!("{}\n", memory_table(&outcome.phases));
    for table in kept.iter().filter_map(ledger_table) {
        text = format!("{text}{table}\n");
    }
    let figures = [
        ("loss", &outcome.losses),
        ("eval loss", &outcome.eval_losses),
    ];
    for (name, losses) in figures {
        if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
            text = format!("{text}{name:<10} {first:.4} -> {last:.4}\n");
        }
    }
    for line in kept.iter().filter_map(saved_line) {
        text = format!("{text}{:<10} {line}\n", "saved");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_ends_with_losses_and_what_was_saved() {
        let outcome = Outcome {
            steps: 2,
            num_steps: 2,
            losses: vec![3.0, 2.5],
            grad_norms: vec![1.0, 1.0],
            eval_losses: vec![3.25, 2.0],
            phases: Vec::new(),
            ranks: Vec::new(),
        };
        let saved = Event::Saved {
            path: "out".to_owned(),
            step: 2,
            num_bytes: 3 << 20,
        };
        let text = report(&outcome, &[saved]);
        let (_, end) = text.split_once("\n\n").unwrap();
        assert_eq!(
            end,
            "loss       3.0000 -> 2.5000\n\
             eval loss  3.2500 -> 2.0000\n\
             saved      3.0 MiB in out, as of step 2\n"
        );
    }
}
