//! Reading byte ranges of tensors, by one rank, through its own file handles.

use std::fs::File;
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rustix::fs::Advice;

use crate::error::{CheckpointError, Result, io_error};
use crate::files::{FewOpen, FileEntry};
use crate::weights::Located;

/// One rank's handles on a checkpoint's files.
#[derive(Debug)]
pub struct Reader {
    files: Arc<[FileEntry]>,
    open: FewOpen,
}

impl Reader {
    /// Finds every file as it was when its header was read.
    pub(crate) fn new(files: Arc<[FileEntry]>) -> Result<Self> {
        for file in files.iter() {
            file.reopen()?;
        }
        Ok(Self {
            files,
            open: FewOpen::default(),
        })
    }

    /// Reads bytes `range` of a tensor into `dst`, which has their length.
    ///
    /// # Panics
    ///
    /// If `dst` has another length or the range passes the tensor's end.
    pub fn read_at(&self, tensor: &Located, range: Range<u64>, dst: &mut [u8]) -> Result<()> {
        check_range(tensor, &range);
        assert_eq!(range.end - range.start, dst.len() as u64, "length of dst");
        self.with(tensor, |entry, file| {
            fill(file, tensor.begin + range.start, dst).map_err(|stopped| match stopped {
                Stopped::EndOfFile => truncated(entry, file, tensor),
                Stopped::Failed(source) => io_error("read", &entry.path)(source),
            })
        })
    }

    /// Tells the system that bytes `range` of a tensor will not be read again, so
    /// that the page cache can drop them.
    ///
    /// # Panics
    ///
    /// If the range passes the tensor's end.
    pub fn forget(&self, tensor: &Located, range: Range<u64>) -> Result<()> {
        check_range(tensor, &range);
        // A length of 0 would mean the rest of the file.
        let Some(len) = NonZeroU64::new(range.end - range.start) else {
            return Ok(());
        };
        self.with(tensor, |entry, file| {
            let offset = tensor.begin + range.start;
            rustix::fs::fadvise(file, offset, Some(len), Advice::DontNeed)
                .map_err(|errno| io_error("advise", &entry.path)(errno.into()))
        })
    }

    fn with(
        &self,
        tensor: &Located,
        act: impl FnOnce(&FileEntry, &File) -> Result<()>,
    ) -> Result<()> {
        let entry = &self.files[tensor.file];
        self.open
            .with(tensor.file, || entry.reopen(), |file| act(entry, file))
    }
}

/// A byte range outside its tensor is a bug of the caller.
pub(crate) fn check_range(tensor: &Located, range: &Range<u64>) {
    let num_bytes = tensor.num_bytes();
    assert!(
        range.start <= range.end && range.end <= num_bytes,
        "range {range:?} of tensor `{}` with {num_bytes} bytes",
        tensor.meta.name
    );
}

enum Stopped {
    EndOfFile,
    Failed(std::io::Error),
}

/// Fills `dst` from `offset` on, however many reads that takes.
fn fill(file: &File, mut offset: u64, mut dst: &mut [u8]) -> Result<(), Stopped> {
    while !dst.is_empty() {
        match file.read_at(dst, offset) {
            Ok(0) => return Err(Stopped::EndOfFile),
            Ok(len) => {
                dst = &mut dst[len..];
                offset += len as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Stopped::Failed(error)),
        }
    }
    Ok(())
}

fn truncated(entry: &FileEntry, file: &File, tensor: &Located) -> CheckpointError {
    match file.metadata() {
        Err(source) => io_error("inspect", &entry.path)(source),
        Ok(metadata) => CheckpointError::Truncated {
            file: entry.path.clone(),
            tensor: tensor.meta.name.clone(),
            expected_bytes: entry.num_bytes,
            found_bytes: metadata.len(),
        },
    }
}
