//! Writing an export by many ranks, so that it appears whole or not at all.
//!
//! ```text
//! one rank   Staging::create    OUT/.saving with every file at its full size,
//!                               headers, index and copied files written
//! all ranks  StagedFiles        each writes its own byte ranges in place
//! one rank   Staging::commit    everything to disk, renamed to the top of OUT,
//!                               config.json last
//! ```
//!
//! A folder with a `config.json` is therefore whole; in `.saving` the file has
//! another name, so that this holds there too. Whatever ends before the commit
//! leaves at most `.saving` behind, which the next run removes.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use crate::error::{CheckpointError, Result, io_error, write_error};
use crate::export::{ExportPlan, PlannedFile};
use crate::files::{FewOpen, kind, open_regular};
use crate::read::check_range;
use crate::weights::Located;

const STAGING_NAME: &str = ".saving";
const CONFIG_NAME: &str = "config.json";
/// What the config is called until everything else is in place.
const STAGED_CONFIG_NAME: &str = ".config.json";

/// Refuses an output folder that holds anything. What a crashed run left in
/// `.saving` is removed.
pub fn check_out_dir(out: &Path) -> Result<()> {
    check_out_dir_but(out, |_| false)
}

/// As [`check_out_dir`], but names that `is_ours` knows are left alone.
pub fn check_out_dir_but(out: &Path, is_ours: impl Fn(&str) -> bool) -> Result<()> {
    let metadata = match fs::metadata(out) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("inspect", out)(error)),
    };
    if !metadata.is_dir() {
        return Err(CheckpointError::NotAFolder {
            path: out.to_owned(),
            found: kind(metadata.file_type()),
        });
    }
    for item in fs::read_dir(out).map_err(io_error("list", out))? {
        let name = item.map_err(io_error("list", out))?.file_name();
        if name != STAGING_NAME && !is_ours(&name.to_string_lossy()) {
            return Err(CheckpointError::OutNotEmpty {
                folder: out.to_owned(),
                found: name.to_string_lossy().into_owned(),
            });
        }
    }
    remove_abandoned(&out.join(STAGING_NAME))
}

/// Removes the unfinished files of an export that nobody will commit.
pub fn discard_staged(out: &Path) -> Result<()> {
    remove_folder(&out.join(STAGING_NAME))
}

/// Removes what a process that is gone has left; one that is still at it holds a
/// lock on the folder.
fn remove_abandoned(path: &Path) -> Result<()> {
    match File::open(path) {
        Ok(folder) => {
            lock(&folder, path)?;
            remove_folder(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("open", path)(error)),
    }
}

/// Locks a staging folder until it is closed; refuses one that another process has.
fn lock(folder: &File, path: &Path) -> Result<()> {
    match rustix::fs::flock(folder, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Err(CheckpointError::OutInUse {
            folder: path.parent().unwrap_or(path).to_owned(),
        }),
        // Where the file system knows no locks there is none.
        _ => Ok(()),
    }
}

fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Is told the bytes of each piece that was written, from any thread; a break ends the
/// work with [`CheckpointError::Stopped`], and nothing is left of it.
pub type OnWritten<'a> = &'a (dyn Fn(u64) -> ControlFlow<()> + Sync);

/// The error of work that [`OnWritten`] broke off.
pub fn unless_stopped(asked: ControlFlow<()>) -> Result<()> {
    match asked {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(CheckpointError::Stopped),
    }
}

/// An export on its way. Dropped before [`Staging::commit`] it leaves nothing.
#[derive(Debug)]
pub struct Staging {
    out: PathBuf,
    folder: PathBuf,
    /// Names of all files, in the order of their renaming.
    names: Vec<String>,
    /// Whether the output folder is ours to remove if it stays empty.
    made_out: bool,
    is_committed: bool,
    /// Held as long as the folder is this process's.
    _lock: File,
}

/// How the room for a file's data is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Taken from the disk at once, so that a full disk shows before a long run.
    Reserved,
    /// Holes that read as zeros.
    Sparse,
}

impl Staging {
    /// Makes `OUT/.saving` with the files of `plan` at their full size, and
    /// copies `other_files` into it byte for byte.
    pub fn create(out: &Path, plan: &ExportPlan, other_files: &[PathBuf]) -> Result<Self> {
        Self::with_room(out, plan, other_files, Room::Reserved)
    }

    /// As [`Staging::create`], but the files cost disk only where they are written.
    pub fn create_sparse(out: &Path, plan: &ExportPlan, other_files: &[PathBuf]) -> Result<Self> {
        Self::with_room(out, plan, other_files, Room::Sparse)
    }

    fn with_room(
        out: &Path,
        plan: &ExportPlan,
        other_files: &[PathBuf],
        room: Room,
    ) -> Result<Self> {
        let folder = out.join(STAGING_NAME);
        let made_out = !out.exists();
        fs::create_dir_all(out).map_err(io_error("create", out))?;
        remove_abandoned(&folder)?;
        fs::create_dir(&folder).map_err(io_error("create", &folder))?;
        let locked = File::open(&folder).map_err(io_error("open", &folder))?;
        lock(&locked, &folder)?;
        let mut staging = Self {
            out: out.to_owned(),
            folder,
            names: Vec::new(),
            made_out,
            is_committed: false,
            _lock: locked,
        };
        for file in plan.files() {
            make_room(&staging.add(&file.name)?, file, room)?;
        }
        if let Some((name, text)) = plan.index() {
            staging.add_text(name, &text)?;
        }
        for file in other_files {
            staging.copy(file)?;
        }
        Ok(staging)
    }

    /// Adds a small file.
    pub fn add_text(&mut self, name: &str, text: &str) -> Result<()> {
        let path = self.add(name)?;
        fs::write(&path, text).map_err(write_error(&path, text.len() as u64))
    }

    /// The path of a file in the folder, which the commit will rename. A name
    /// that is taken is refused here and not only after a long run.
    fn add(&mut self, name: &str) -> Result<PathBuf> {
        self.refuse_overwriting(name)?;
        self.names.push(name.to_owned());
        Ok(self.staged(name))
    }

    /// Where a file is until it is published.
    fn staged(&self, name: &str) -> PathBuf {
        let is_config = name == CONFIG_NAME;
        self.folder
            .join(if is_config { STAGED_CONFIG_NAME } else { name })
    }

    /// Copies the bytes and not the permissions: a cache's files are read-only.
    fn copy(&mut self, source: &Path) -> Result<()> {
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let (mut from, metadata) = open_regular(source)?;
        let path = self.add(&name)?;
        let failed = |error| write_error(&path, metadata.len())(error);
        let mut to = File::create_new(&path).map_err(failed)?;
        io::copy(&mut from, &mut to).map_err(failed)?;
        Ok(())
    }

    /// Brings everything to disk and to the top of the output folder,
    /// `config.json` last.
    ///
    /// Every rank has called [`StagedFiles::sync`] before.
    pub fn commit(mut self) -> Result<()> {
        for name in &self.names {
            self.refuse_overwriting(name)?;
        }
        for name in &self.names {
            sync_path(&self.staged(name))?;
        }
        sync_path(&self.folder)?;
        let (config, rest): (Vec<_>, Vec<_>) =
            self.names.iter().partition(|name| *name == CONFIG_NAME);
        rest.into_iter().try_for_each(|name| self.publish(name))?;
        // The order of renames on disk is only sure across a sync.
        sync_path(&self.out)?;
        config.into_iter().try_for_each(|name| self.publish(name))?;
        self.is_committed = true;
        remove_folder(&self.folder)?;
        sync_path(&self.out)
    }

    fn refuse_overwriting(&self, name: &str) -> Result<()> {
        if self.out.join(name).symlink_metadata().is_err() {
            return Ok(());
        }
        Err(CheckpointError::OutNotEmpty {
            folder: self.out.clone(),
            found: name.to_owned(),
        })
    }

    fn publish(&self, name: &str) -> Result<()> {
        let path = self.out.join(name);
        fs::rename(self.staged(name), &path).map_err(io_error("rename to", &path))
    }

    /// Removes what was staged.
    pub fn abort(self) -> Result<()> {
        remove_folder(&self.folder)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.is_committed {
            return;
        }
        // Errors have nowhere to go from here; the next run removes the rest.
        drop(remove_folder(&self.folder));
        if self.made_out {
            // Fails unless empty, as it should.
            drop(fs::remove_dir(&self.out));
        }
    }
}

/// Makes a file of its full size and writes its header.
fn make_room(path: &Path, file: &PlannedFile, room: Room) -> Result<()> {
    let num_bytes = file.num_bytes();
    let failed = |error| write_error(path, num_bytes)(error);
    let mut made = File::create_new(path).map_err(failed)?;
    match room {
        Room::Reserved => reserve(&made, num_bytes).map_err(failed)?,
        Room::Sparse => made.set_len(num_bytes).map_err(failed)?,
    }
    made.write_all(&file.header).map_err(failed)
}

/// Takes the room from the disk, or where the file system cannot do that only
/// sets the size.
fn reserve(file: &File, num_bytes: u64) -> io::Result<()> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, num_bytes) {
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return file.set_len(num_bytes),
            outcome => return outcome.map_err(io::Error::from),
        }
    }
}

/// Brings a file or a folder to disk.
fn sync_path(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(io_error("sync", path))
}

/// One rank's handles on the files of an export on its way.
#[derive(Debug)]
pub struct StagedFiles {
    folder: PathBuf,
    files: Vec<(String, u64)>,
    open: FewOpen,
    written: Mutex<BTreeSet<usize>>,
}

impl StagedFiles {
    /// Finds the files that [`Staging::create`] made.
    pub fn open(out: &Path, plan: &ExportPlan) -> Result<Self> {
        let files = plan.files().iter();
        let staged = Self {
            folder: out.join(STAGING_NAME),
            files: files
                .map(|file| (file.name.clone(), file.num_bytes()))
                .collect(),
            open: FewOpen::default(),
            written: Mutex::default(),
        };
        for number in 0..staged.files.len() {
            staged.reopen(number)?;
        }
        Ok(staged)
    }

    /// Writes bytes of a tensor of the plan, from byte `offset` of the tensor on.
    ///
    /// # Panics
    ///
    /// If the bytes pass the tensor's end.
    pub fn write_at(&self, tensor: &Located, offset: u64, bytes: &[u8]) -> Result<()> {
        check_range(tensor, &(offset..offset + bytes.len() as u64));
        let (name, num_bytes) = &self.files[tensor.file];
        self.written().insert(tensor.file);
        self.with(tensor.file, |file| {
            file.write_all_at(bytes, tensor.begin + offset)
                .map_err(|error| write_error(&self.folder.join(name), *num_bytes)(error))
        })
    }

    /// Brings to disk what this rank wrote.
    pub fn sync(&self) -> Result<()> {
        let written = std::mem::take(&mut *self.written());
        for number in written {
            let path = self.folder.join(&self.files[number].0);
            self.with(number, |file| {
                file.sync_all().map_err(io_error("sync", &path))
            })?;
        }
        Ok(())
    }

    /// Numbers of the files that were written since the last sync.
    fn written(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, number: usize, act: impl FnOnce(&File) -> Result<()>) -> Result<()> {
        act(&*self.open.get(number, || self.reopen(number))?)
    }

    fn reopen(&self, number: usize) -> Result<File> {
        let path = self.folder.join(&self.files[number].0);
        let file = OpenOptions::new().write(true).open(&path);
        file.map_err(io_error("open", &path))
    }
}

/// Refuses to begin what needs `num_bytes` more on the disk of a folder than it has. A
/// file system that does not say what it has is not asked twice.
pub fn check_room(folder: &Path, num_bytes: u64) -> Result<()> {
    let Ok(disk) = rustix::fs::statvfs(folder) else {
        return Ok(());
    };
    let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free_bytes >= num_bytes {
        return Ok(());
    }
    Err(CheckpointError::NoRoomFor {
        folder: folder.to_owned(),
        num_bytes,
        free_bytes,
    })
}

/// Writes a small file so that a reader sees the old text or the new, never half.
pub fn write_atomically(path: &Path, text: &str) -> Result<()> {
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(path.file_name().unwrap_or_default());
    hidden.push(".new");
    let staged = path.with_file_name(hidden);
    fs::write(&staged, text).map_err(write_error(&staged, text.len() as u64))?;
    sync_path(&staged)?;
    fs::rename(&staged, path).map_err(io_error("rename to", path))?;
    match path.parent() {
        Some(folder) if folder != Path::new("") => sync_path(folder),
        _ => sync_path(Path::new(".")),
    }
}
