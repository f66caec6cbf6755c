//! Opening files: only regular ones, with a check that a second opening meets
//! the file of the first, and with few kept open at a time.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::OFlags;

use crate::error::{CheckpointError, Result, io_error};

/// A weight file, as it was when its header was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub num_bytes: u64,
    device: u64,
    inode: u64,
}

impl FileEntry {
    /// Opens a file for the first time and notes what it is.
    pub(crate) fn open(path: &Path) -> Result<(File, Self)> {
        let (file, metadata) = open_regular(path)?;
        let entry = Self {
            path: path.to_owned(),
            num_bytes: metadata.len(),
            device: metadata.dev(),
            inode: metadata.ino(),
        };
        Ok((file, entry))
    }

    /// Opens the file again; one that was replaced or cut meanwhile is an error.
    pub(crate) fn reopen(&self) -> Result<File> {
        self.same(open_regular(&self.path)?)
    }

    /// As [`FileEntry::reopen`], for reads past the page cache.
    pub(crate) fn reopen_direct(&self) -> Result<File> {
        self.same(open_with(&self.path, OFlags::DIRECT)?)
    }

    fn same(&self, (file, metadata): (File, Metadata)) -> Result<File> {
        let found = (metadata.dev(), metadata.ino(), metadata.len());
        if found != (self.device, self.inode, self.num_bytes) {
            return Err(CheckpointError::Changed {
                file: self.path.clone(),
                expected_bytes: self.num_bytes,
                found_bytes: metadata.len(),
            });
        }
        Ok(file)
    }
}

/// Opens a regular file for reading, following links: the folders of a Hugging
/// Face cache are made of them.
pub(crate) fn open_regular(path: &Path) -> Result<(File, Metadata)> {
    open_with(path, OFlags::empty())
}

fn open_with(path: &Path, flags: OFlags) -> Result<(File, Metadata)> {
    // Asked before the file is opened, as opening a device can have effects, and
    // again on the open file, which nobody can replace.
    refuse_special(path, &fs::metadata(path).map_err(io_error("open", path))?)?;
    let file = OpenOptions::new()
        .read(true)
        // A pipe put there in between must not make us wait.
        .custom_flags((OFlags::NONBLOCK | flags).bits().cast_signed())
        .open(path)
        .map_err(io_error("open", path))?;
    let metadata = file.metadata().map_err(io_error("inspect", path))?;
    refuse_special(path, &metadata)?;
    Ok((file, metadata))
}

fn refuse_special(path: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    Err(CheckpointError::NotAFile {
        path: path.to_owned(),
        found: kind(metadata.file_type()),
    })
}

/// What a path is, in words.
pub(crate) fn kind(file_type: FileType) -> &'static str {
    if file_type.is_file() {
        "a file"
    } else if file_type.is_dir() {
        "a folder"
    } else if file_type.is_fifo() {
        "a pipe"
    } else if file_type.is_socket() {
        "a socket"
    } else if file_type.is_block_device() || file_type.is_char_device() {
        "a device"
    } else {
        "something else"
    }
}

/// Reads a small text file, refusing one that is larger than `limit_bytes`.
pub(crate) fn read_text(path: &Path, limit_bytes: u64) -> Result<String> {
    let (file, metadata) = open_regular(path)?;
    if metadata.len() > limit_bytes {
        return Err(CheckpointError::TooLarge {
            file: path.to_owned(),
            bytes: metadata.len(),
            limit_bytes,
        });
    }
    let mut text = String::new();
    // Limited again: a file can grow between the two.
    match file.take(limit_bytes).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(CheckpointError::NotText {
            file: path.to_owned(),
        }),
        Err(error) => Err(io_error("read", path)(error)),
    }
}

/// Files that are opened when first used, the latest few of them kept open.
///
/// A checkpoint of 191 files times 8 ranks in one process would pass the usual
/// limit of 1024 open files.
#[derive(Debug, Default)]
pub(crate) struct FewOpen {
    /// File number and handle, the latest used last.
    open: Mutex<Vec<(usize, Arc<File>)>>,
}

impl FewOpen {
    const MOST: usize = 8;

    /// File `number`, which `open` opens if it is not at hand.
    pub(crate) fn get(
        &self,
        number: usize,
        open: impl FnOnce() -> Result<File>,
    ) -> Result<Arc<File>> {
        let mut kept = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(kept, _)| *kept == number);
        let file = match at {
            Some(at) => kept.remove(at).1,
            None => Arc::new(open()?),
        };
        if kept.len() == Self::MOST {
            kept.remove(0);
        }
        kept.push((number, Arc::clone(&file)));
        Ok(file)
    }
}
