//! The run folder of an output folder, taken by one run.
//!
//! A run that failed leaves its log in `OUT/run`. The next run with the same
//! output folder moves it to `OUT/failed-run-N` and begins anew; a run that goes
//! on holds a lock on its settings, so that nobody moves it away.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use train::Settings;

use crate::opened::run_path;
use crate::{Error, settings_to_toml};

/// The settings of a run: there from its beginning, locked while it goes on.
const SETTINGS: &str = "config.toml";
const FAILED: &str = "failed-run-";
const CHECKPOINTS: &str = "checkpoints";

/// Refuses an output folder that holds anything but the logs of failed runs, and
/// checkpoints if the run resumes, or that another run writes to.
pub fn check_out(out: &Path, resumes: bool) -> Result<(), Error> {
    drop(lock_log(out)?);
    check_folder(out, resumes)
}

/// As [`check_out`], with the lock in hand: it also removes what a crashed run
/// staged, which a run that goes on still needs.
fn check_folder(out: &Path, resumes: bool) -> Result<(), Error> {
    let is_ours =
        |name: &str| name == "run" || name.starts_with(FAILED) || (resumes && name == CHECKPOINTS);
    Ok(checkpoint::check_out_dir_but(out, is_ours)?)
}

/// A run folder that is ours while this lives.
#[derive(Debug)]
pub(crate) struct Staked {
    /// Where the log of the failed run before went.
    pub(crate) moved_to: Option<PathBuf>,
    /// Checkpoints that were never finished.
    pub(crate) discarded: Vec<PathBuf>,
    /// Held so that nobody who opened the old log takes the folder from us.
    _failed: Option<File>,
    _settings: File,
}

impl Staked {
    /// Makes `OUT/run` with these settings.
    pub(crate) fn take(out: &Path, settings: &Settings) -> Result<Self, Error> {
        let failed = lock_log(out)?;
        check_folder(out, settings.resume.is_some())?;
        let discarded = train::discard_unfinished_checkpoints(out);
        let moved_to = failed.is_some().then(|| move_log(out)).transpose()?;
        // Not `create_dir_all`: of two runs to one folder, one makes it.
        let run = out.join("run");
        fs::create_dir(&run).map_err(Error::file("create", &run))?;
        let path = run_path(out, SETTINGS);
        let taken = File::create_new(&path).and_then(|file| {
            io::Write::write_all(&mut &file, settings_to_toml(settings).as_bytes())?;
            file.lock()?;
            Ok(file)
        });
        Ok(Self {
            moved_to,
            discarded,
            _failed: failed,
            _settings: taken.map_err(Error::file("write", &path))?,
        })
    }
}

/// The locked settings of a run that went on here before; none if there are none.
fn lock_log(out: &Path) -> Result<Option<File>, Error> {
    let path = run_path(out, SETTINGS);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(Error::file("read", path)(error)),
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(Error::RunGoingOn {
            out: out.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(Error::file("lock", path)(error)),
    }
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// Moves the log of a failed run out of the way.
fn move_log(out: &Path) -> Result<PathBuf, Error> {
    let mut names = (1_u64..).map(|number| out.join(format!("{FAILED}{number}")));
    let free = names.find(|path| !path.exists());
    let free = free.expect("there are more numbers than folders");
    fs::rename(out.join("run"), &free).map_err(Error::file("create", &free))?;
    Ok(free)
}
