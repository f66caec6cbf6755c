//! `nestling rank`: one rank of a run, as a process that `train` starts.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nestling::train_as_rank;

use crate::error::CliError;
use crate::output::write_now;
use crate::signals;

/// One rank of a run; `train` starts it.
#[derive(Debug, clap::Args)]
pub(crate) struct Rank {
    /// What `train` says that it is to do
    task: String,
}

impl Rank {
    pub(crate) fn run(self) -> Result<ExitCode, CliError> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        signals::on_each(move |_| told.store(true, Relaxed))?;
        // A launcher that hears nothing any more has ended, and so does this.
        let tell = |line: &str| drop(write_now(&format!("{line}\n")));
        match train_as_rank(&self.task, &stop, &tell) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            // The launcher has been told.
            Err(nestling::Error::Train(_) | nestling::Error::Stopped) => Ok(ExitCode::FAILURE),
            Err(error) => Err(error.into()),
        }
    }
}
