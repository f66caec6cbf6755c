//! Ranks that a cluster's launcher has started, each with the user's own command: they
//! meet, rank 0 trains as ever, and the others wait for their part of it.

use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::time::Duration;

use nestling::{
    About, Guests, Launch, LaunchError, Settings, TrainError, come_to_meeting, hold_meeting,
    launch_of_this_process, settings_to_toml, train_as_guest,
};

use crate::error::{CliError, one_line};
use crate::output::note;
use crate::signals;

/// What a launcher says of this process, and how long ranks wait for each other.
pub(super) struct Launched {
    launch: Launch,
    patience: Duration,
}

impl Launched {
    /// None where no launcher has started other ranks too. Sets the number of ranks, or
    /// refuses another.
    pub(super) fn find(
        settings: &mut Settings,
        rank_mode: &str,
        patience: Duration,
    ) -> Result<Option<Self>, CliError> {
        let launch = launch_of_this_process()?;
        let Some(launch) = launch.filter(|launch| launch.world.has_peers()) else {
            return Ok(None);
        };
        if settings.ranks != Settings::default().ranks {
            launch.agrees_with("ranks", settings.ranks)?;
        }
        if rank_mode == "threads" {
            // They are processes already.
            launch.agrees_with("--rank-mode threads: the number of processes", 1)?;
        }
        settings.ranks = launch.world.world_size();
        // Before anybody waits for ranks that cannot be.
        settings
            .check()
            .map_err(TrainError::from)
            .map_err(nestling::Error::from)?;
        Ok(Some(Self { launch, patience }))
    }

    pub(super) fn is_rank_0(&self) -> bool {
        self.launch.world.rank() == 0
    }

    /// Waits for all others.
    pub(super) fn hold(&self, lines: Vec<String>) -> Result<Guests, CliError> {
        Ok(hold_meeting(&self.launch, &about(lines), self.patience)?)
    }

    /// Does the part that rank 0 gives.
    pub(super) fn attend(&self, lines: Vec<String>) -> Result<ExitCode, CliError> {
        let invitation = come_to_meeting(&self.launch, &about(lines), self.patience)?;
        let stop = Arc::new(AtomicBool::new(false));
        let signal = Arc::new(AtomicI32::new(0));
        let heard = (Arc::clone(&stop), Arc::clone(&signal));
        signals::on_each(move |signal| {
            heard.1.store(signal, Relaxed);
            heard.0.store(true, Relaxed);
        })?;
        let world = self.launch.world;
        let name = format!("rank {} of {}", world.rank(), world.world_size());
        let lost_name = name.clone();
        let on_lost = move |error: LaunchError| {
            note(&format!("error: {lost_name}: {}", one_line(&error)));
            process::exit(1);
        };
        match train_as_guest(invitation, &stop, on_lost) {
            Ok(()) if !stop.load(Relaxed) => Ok(ExitCode::SUCCESS),
            Ok(()) | Err(nestling::Error::Stopped) => {
                Ok(ExitCode::from(signals::exit_code(signal.load(Relaxed))))
            }
            Err(error) => {
                note(&format!("error: {name}: {}", one_line(&error)));
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

fn about(lines: Vec<String>) -> About {
    About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        lines,
    }
}

/// What must be the same on all ranks: what is trained, on what, and all settings.
pub(super) fn lines(what: [String; 3], settings: &Settings) -> Vec<String> {
    let settings = settings_to_toml(settings);
    let settings = settings.lines().filter(|line| !line.is_empty());
    what.into_iter()
        .chain(settings.map(str::to_owned))
        .collect()
}
