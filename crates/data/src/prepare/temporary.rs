//! A file beside the result, under another name until it is whole.

use std::fs::{self, File};
use std::mem;
use std::path::{Path, PathBuf};

use crate::error::{DataError, Result};

/// A file that is gone when its owner is, unless it was given its final name.
pub(super) struct Temporary {
    pub(super) path: PathBuf,
}

impl Temporary {
    /// Opens a new file beside `out_file` for writing and reading.
    pub(super) fn create(out_file: &Path, ending: &str) -> Result<(Self, File)> {
        let mut name = out_file.as_os_str().to_owned();
        name.push(ending);
        let path = PathBuf::from(name);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(DataError::io("write", &path))?;
        Ok((Self { path }, file))
    }

    pub(super) fn rename(self, name: &Path) -> Result<()> {
        fs::rename(&self.path, name).map_err(DataError::io("rename", &self.path))?;
        mem::forget(self);
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Nothing more can be done about a file that cannot be removed.
        let _ = fs::remove_file(&self.path);
    }
}
