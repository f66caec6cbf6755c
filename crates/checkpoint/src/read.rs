//! Reading byte ranges of tensors, by the threads of one rank, through its own
//! file handles.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cache::{CachePolicy, PAGE_BYTES, PAGE_LEN, drop_pages, resident_share};
use crate::digest::Digest;
use crate::error::{CheckpointError, Result, io_error};
use crate::files::{FewOpen, FileEntry};
use crate::scales::expand;
use crate::weights::Located;

/// The most bytes that a direct read asks for at once, and what each thread that
/// reads directly needs beside its destination.
pub const DIRECT_BYTES: usize = 1 << 20;

/// One rank's handles on a checkpoint's files.
#[derive(Debug)]
pub struct Reader {
    files: Arc<[FileEntry]>,
    /// How each file is read; never [`CachePolicy::Auto`].
    policies: Vec<CachePolicy>,
    open: FewOpen,
    direct: DirectBuffers,
}

impl Reader {
    /// Finds every file as it was when its header was read.
    pub(crate) fn new(files: Arc<[FileEntry]>, policy: CachePolicy) -> Result<Self> {
        let decide = |entry: &FileEntry| {
            let file = entry.reopen()?;
            Ok(match policy {
                CachePolicy::Auto if resident_share(&file, entry.num_bytes) > 0.5 => {
                    CachePolicy::Keep
                }
                CachePolicy::Auto => CachePolicy::Drop,
                CachePolicy::Direct if entry.reopen_direct().is_err() => CachePolicy::Drop,
                chosen => chosen,
            })
        };
        Ok(Self {
            policies: files.iter().map(decide).collect::<Result<_>>()?,
            files,
            open: FewOpen::default(),
            direct: DirectBuffers::default(),
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
        if dst.is_empty() {
            return Ok(());
        }
        let entry = &self.files[tensor.file];
        let policy = self.policies[tensor.file];
        let file = self.open.get(tensor.file, || match policy {
            CachePolicy::Direct => entry.reopen_direct(),
            _ => entry.reopen(),
        })?;
        let in_file = tensor.begin + range.start..tensor.begin + range.end;
        let outcome = match policy {
            CachePolicy::Direct => self.direct.fill(&file, in_file.start, dst),
            _ => fill(&file, in_file.start, dst),
        };
        outcome.map_err(|stopped| match stopped {
            Stopped::EndOfFile => truncated(entry, &file, tensor),
            Stopped::Failed(source) => io_error("read", &entry.path)(source),
        })?;
        if policy == CachePolicy::Drop {
            drop_pages(&file, &in_file, entry.num_bytes)
                .map_err(|errno| io_error("advise", &entry.path)(errno.into()))?;
        }
        Ok(())
    }
}

impl Reader {
    /// Reads elements as [`Located::value_dtype`] has them; gives the digest of their
    /// bytes in the file where `with_digest` asks for it.
    ///
    /// # Panics
    ///
    /// If `dst` is not as long as the elements, or they are not in the tensor.
    pub fn read_values(
        &self,
        tensor: &Located,
        elements: Range<u64>,
        dst: &mut [u8],
        with_digest: bool,
    ) -> Result<Digest> {
        let size = tensor.meta.dtype.bits() / 8;
        let range = elements.start * size..elements.end * size;
        let begin = range.start;
        let digest = |stored: &[u8]| {
            let digest = with_digest.then(|| Digest::of(begin, stored));
            digest.unwrap_or_default()
        };
        let Some(scales) = &tensor.scales else {
            self.read_at(tensor, range, dst)?;
            return Ok(digest(dst));
        };
        let num_codes = dst.len() / 4;
        let codes = &mut dst[3 * num_codes..];
        self.read_at(tensor, range, codes)?;
        let found = digest(codes);
        expand(self, tensor, scales, elements.start, dst)?;
        Ok(found)
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
fn fill(file: &File, mut offset: u64, mut dst: &mut [u8]) -> std::result::Result<(), Stopped> {
    while !dst.is_empty() {
        let len = read_some(file, offset, dst)?;
        dst = &mut dst[len..];
        offset += len as u64;
    }
    Ok(())
}

fn read_some(file: &File, offset: u64, dst: &mut [u8]) -> std::result::Result<usize, Stopped> {
    loop {
        match file.read_at(dst, offset) {
            Ok(0) => return Err(Stopped::EndOfFile),
            Ok(len) => return Ok(len),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Stopped::Failed(error)),
        }
    }
}

/// Buffers that begin and end at pages, as reads past the cache want it; one for
/// each thread that reads at the same time.
#[derive(Debug, Default)]
struct DirectBuffers {
    idle: Mutex<Vec<Vec<u8>>>,
}

impl DirectBuffers {
    fn fill(
        &self,
        file: &File,
        mut offset: u64,
        mut dst: &mut [u8],
    ) -> std::result::Result<(), Stopped> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = idle()
            .pop()
            .unwrap_or_else(|| vec![0; DIRECT_BYTES + PAGE_LEN]);
        let aligned = buffer.as_ptr().align_offset(PAGE_LEN);
        while !dst.is_empty() {
            let skipped = usize::try_from(offset % PAGE_BYTES).expect("less than a page");
            let wanted = (skipped + dst.len()).next_multiple_of(PAGE_LEN);
            let pages = &mut buffer[aligned..aligned + wanted.min(DIRECT_BYTES)];
            let read = read_some(file, offset - skipped as u64, pages)?;
            let found = &pages[..read];
            let useful = found.get(skipped..).unwrap_or_default();
            if useful.is_empty() {
                return Err(Stopped::EndOfFile);
            }
            let (here, rest) = dst.split_at_mut(useful.len().min(dst.len()));
            here.copy_from_slice(&useful[..here.len()]);
            offset += here.len() as u64;
            dst = rest;
        }
        idle().push(buffer);
        Ok(())
    }
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
