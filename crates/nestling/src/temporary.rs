//! Folders that are there while an operation goes on: the demo's files, rows of data.
//!
//! Their names begin with the number of this process, so that a program that is
//! about to end by a signal can remove them without having been told of them.

use std::fs;

use tempfile::TempDir;

use crate::Error;

/// A folder that is gone when its owner is.
pub(crate) fn temporary() -> Result<TempDir, Error> {
    let made = tempfile::Builder::new().prefix(&prefix()).tempdir();
    made.map_err(Error::file("create", std::env::temp_dir()))
}

fn prefix() -> String {
    format!("nestling-{}-", std::process::id())
}

/// Removes the temporary folders of this process, which is about to end.
pub fn discard_temporary() {
    let prefix = prefix();
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten();
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(&prefix) {
            // What cannot be removed stays: there is nobody left to tell.
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_this_process_is_found_by_its_name_and_removed() {
        let folder = temporary().unwrap();
        fs::write(folder.path().join("rows"), "1").unwrap();
        discard_temporary();
        assert!(!folder.path().exists());
    }
}
