//! `run/metrics.jsonl`: every event of a run, a line each, as it happens.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::{Event, TrainError};

/// The open file of a run's metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    path: PathBuf,
    file: Mutex<File>,
}

impl Metrics {
    /// Begins the file.
    pub(crate) fn create(path: &Path) -> Result<Self, TrainError> {
        let file = File::create(path).map_err(|source| TrainError::RunFile {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            file: Mutex::new(file),
        })
    }

    /// Adds a line.
    pub(crate) fn write(&self, event: &Event) -> Result<(), TrainError> {
        let mut line = serde_json::to_vec(event).expect("events are plain data");
        line.push(b'\n');
        let mut file = self
            .file
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        file.write_all(&line).map_err(|source| TrainError::RunFile {
            path: self.path.clone(),
            source,
        })
    }
}
