//! The zip archives that torch writes: entries stored as they are, one behind the
//! other, the list of them at the end.
//!
//! ```text
//! per entry   local header (30 bytes), name, padding, data
//! directory   per entry 46 bytes, name, extra (sizes over 4 GiB)
//! end64       56 bytes, and 20 that say where they are     if written by torch
//! end         22 bytes, no comment
//! ```
//!
//! Stricter than zip programs, which search for the end and believe the rest: the
//! end stands at the end of the file, the directory right before it, and no two
//! entries share a byte. So there is one way to read a file.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;

use super::fault::{PickleFault, shown};
use super::{PickleError, Result};
use crate::header::MAX_HEADER_BYTES;

const LOCAL: u32 = 0x0403_4b50;
const DIRECTORY: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END64: u32 = 0x0606_4b50;
const END64_PLACE: u32 = 0x0706_4b50;

const LOCAL_BYTES: u64 = 30;
const DIRECTORY_BYTES: usize = 46;
const END_BYTES: u64 = 22;
const END64_BYTES: u64 = 56;
const END64_PLACE_BYTES: u64 = 20;

/// The extra field that holds sizes of 64 bits.
const EXTRA64: u16 = 1;

/// One entry, as the directory has it.
#[derive(Debug)]
struct Entry {
    name: String,
    num_bytes: u64,
    /// Where its local header begins.
    begin: u64,
    /// Where the next entry, or the directory, begins.
    limit: u64,
    /// Why its bytes are not the data, if they are not.
    fault: Option<&'static str>,
}

/// An opened archive.
#[derive(Debug)]
pub(super) struct Archive<'a> {
    file: &'a File,
    /// By name.
    entries: Vec<Entry>,
    /// What all names begin with, the slash included.
    prefix: String,
}

/// Where the directory lies and how many entries it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    num_entries: u64,
    begin: u64,
    num_bytes: u64,
}

impl End {
    /// Whether each number is that of `long`, or says that it is too large.
    fn agrees_with(self, long: Self) -> bool {
        let agrees = |short: u64, most: u64, long: u64| short == most || short == long;
        agrees(self.num_entries, u16::MAX.into(), long.num_entries)
            && agrees(self.num_bytes, u32::MAX.into(), long.num_bytes)
            && agrees(self.begin, u32::MAX.into(), long.begin)
    }
}

impl<'a> Archive<'a> {
    /// Reads the directory of a file of `file_bytes`.
    pub(super) fn open(file: &'a File, file_bytes: u64) -> Result<Self> {
        check_start(file, file_bytes)?;
        let end = find_end(file, file_bytes)?;
        if end.num_bytes > MAX_HEADER_BYTES {
            return Err(bad("its directory is over 100 MB"));
        }
        let directory = read(file, end.begin, end.num_bytes)?;
        let mut entries = parse_directory(&directory, end)?;
        set_limits(&mut entries, end.begin)?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(bad_entry(&pair[0].name, "appears twice"));
        }
        let prefix = prefix_of(&entries)?;
        Ok(Self {
            file,
            entries,
            prefix,
        })
    }

    /// Refuses what is written like a checkpoint but is none, and an archive of
    /// anything but stored entries.
    pub(super) fn check_kind(&self) -> Result<()> {
        const MOST: u64 = 64;
        if self.find("constants.pkl").is_some() {
            return Err(PickleFault::TorchScript.into());
        }
        if let Some((entry, fault)) = self.entries.iter().find_map(|entry| {
            let fault = entry.fault?;
            Some((entry, fault))
        }) {
            return Err(bad_entry(&entry.name, fault));
        }
        if self.find("byteorder").is_none() {
            return Ok(());
        }
        let order = self.read("byteorder", MOST)?;
        if order != b"little" {
            let found = shown(&String::from_utf8_lossy(&order));
            return Err(PickleFault::ByteOrder { found }.into());
        }
        Ok(())
    }

    /// The bytes of a small entry.
    pub(super) fn read(&self, name: &str, limit_bytes: u64) -> Result<Vec<u8>> {
        let (begin, num_bytes) = self.locate(name)?;
        if num_bytes > limit_bytes {
            return Err(bad_entry(name, "is too large"));
        }
        read(self.file, begin, num_bytes)
    }

    /// Where an entry's data begin, and how many bytes they are.
    pub(super) fn locate(&self, name: &str) -> Result<(u64, u64)> {
        let entry = self
            .find(name)
            .ok_or_else(|| PickleFault::NoEntry { entry: shown(name) })?;
        let header = read(self.file, entry.begin, LOCAL_BYTES)?;
        let (name_len, extra_len) = (u16_at(&header, 26), u16_at(&header, 28));
        let (Some(name_len), Some(extra_len)) = (name_len, extra_len) else {
            return Err(bad("it ends inside an entry"));
        };
        if u32_at(&header, 0) != Some(LOCAL) || u16_at(&header, 8) != Some(0) {
            return Err(bad_entry(&entry.name, "is not where the directory puts it"));
        }
        let local_name = read(self.file, entry.begin + LOCAL_BYTES, name_len.into())?;
        if local_name != entry.name.as_bytes() {
            return Err(bad_entry(&entry.name, "has another name where it lies"));
        }
        let begin = entry.begin + LOCAL_BYTES + u64::from(name_len) + u64::from(extra_len);
        if begin
            .checked_add(entry.num_bytes)
            .is_none_or(|end| end > entry.limit)
        {
            return Err(bad_entry(&entry.name, "runs into what follows it"));
        }
        Ok((begin, entry.num_bytes))
    }

    fn find(&self, name: &str) -> Option<&Entry> {
        // All names have the prefix, so their order is that of the rest.
        self.entries
            .binary_search_by(|entry| entry.name[self.prefix.len()..].cmp(name))
            .ok()
            .map(|at| &self.entries[at])
    }
}

/// What a file that is no zip archive looks like, and what a zip begins with.
fn check_start(file: &File, file_bytes: u64) -> Result<()> {
    const TAR_MARK: (usize, &[u8]) = (257, b"ustar");
    let start = read(file, 0, file_bytes.min(512))?;
    if start.starts_with(&LOCAL.to_le_bytes()) {
        return Ok(());
    }
    let found = if start.starts_with(b"\x80") {
        "a bare pickle, as torch wrote before 1.6"
    } else if start
        .get(TAR_MARK.0..)
        .is_some_and(|rest| rest.starts_with(TAR_MARK.1))
    {
        "a tar archive, as torch wrote before 0.1.10"
    } else if start.starts_with(b"version https://git-lfs") {
        "a pointer of Git LFS, without the file it stands for"
    } else {
        "it does not begin as one"
    };
    Err(PickleFault::NotAnArchive { found }.into())
}

fn find_end(file: &File, file_bytes: u64) -> Result<End> {
    let end_begin = file_bytes
        .checked_sub(END_BYTES)
        .ok_or_else(|| bad("it is cut short"))?;
    let record = read(file, end_begin, END_BYTES)?;
    let short = (
        u16_at(&record, 10),
        u32_at(&record, 12),
        u32_at(&record, 16),
    );
    let (Some(num_entries), Some(num_bytes), Some(begin)) = short else {
        return Err(bad("it is cut short"));
    };
    // Four numbers of disks and a comment that must all be 0.
    let is_plain = u32_at(&record, 0) == Some(END)
        && u32_at(&record, 4) == Some(0)
        && u16_at(&record, 20) == Some(0);
    if !is_plain {
        return Err(bad("it does not end with the end of one"));
    }
    let short = End {
        num_entries: num_entries.into(),
        begin: begin.into(),
        num_bytes: num_bytes.into(),
    };
    let (end, directory_end) = find_end64(file, end_begin)?.unwrap_or((short, end_begin));
    if !short.agrees_with(end) {
        return Err(bad("its two ends disagree"));
    }
    if end.begin.checked_add(end.num_bytes) != Some(directory_end) {
        return Err(bad("its directory does not lie before its end"));
    }
    Ok(end)
}

/// The end with numbers of 64 bits and where it begins, if there is one.
fn find_end64(file: &File, end_begin: u64) -> Result<Option<(End, u64)>> {
    let Some(place_begin) = end_begin.checked_sub(END64_PLACE_BYTES) else {
        return Ok(None);
    };
    let place = read(file, place_begin, END64_PLACE_BYTES)?;
    if u32_at(&place, 0) != Some(END64_PLACE) {
        return Ok(None);
    }
    let wrong = || bad("its 64-bit end is not right before its end");
    let begin = u64_at(&place, 8).ok_or_else(wrong)?;
    if begin.checked_add(END64_BYTES) != Some(place_begin) {
        return Err(wrong());
    }
    let record = read(file, begin, END64_BYTES)?;
    let is_plain = u32_at(&record, 0) == Some(END64)
        && u64_at(&record, 4) == Some(END64_BYTES - 12)
        && u64_at(&record, 16) == Some(0);
    let numbers = (
        u64_at(&record, 32),
        u64_at(&record, 40),
        u64_at(&record, 48),
    );
    match numbers {
        (Some(num_entries), Some(num_bytes), Some(directory)) if is_plain => {
            let end = End {
                num_entries,
                begin: directory,
                num_bytes,
            };
            Ok(Some((end, begin)))
        }
        _ => Err(wrong()),
    }
}

fn parse_directory(directory: &[u8], end: End) -> Result<Vec<Entry>> {
    let most = directory.len() / DIRECTORY_BYTES;
    let num_entries = usize::try_from(end.num_entries).unwrap_or(usize::MAX);
    if num_entries > most {
        return Err(bad("its directory is too short for its entries"));
    }
    let mut entries = Vec::with_capacity(num_entries);
    let mut rest = directory;
    for _ in 0..num_entries {
        let (entry, after) = parse_entry(rest).ok_or_else(|| bad("its directory is broken"))?;
        entries.push(entry);
        rest = after;
    }
    if !rest.is_empty() {
        return Err(bad("its directory has more entries than it says"));
    }
    Ok(entries)
}

/// The directory's first entry and what follows, or `None` if it is cut short.
fn parse_entry(bytes: &[u8]) -> Option<(Entry, &[u8])> {
    let (fixed, rest) = bytes.split_at_checked(DIRECTORY_BYTES)?;
    if u32_at(fixed, 0)? != DIRECTORY {
        return None;
    }
    let (name, rest) = rest.split_at_checked(u16_at(fixed, 28)?.into())?;
    let (extra, rest) = rest.split_at_checked(u16_at(fixed, 30)?.into())?;
    let (_comment, rest) = rest.split_at_checked(u16_at(fixed, 32)?.into())?;
    let name = std::str::from_utf8(name).ok()?.to_owned();
    let mut wide = extra64(extra)?;
    let mut long = |at| match u32_at(fixed, at)? {
        u32::MAX => {
            let (number, after) = wide.split_at_checked(8)?;
            wide = after;
            u64_at(number, 0)
        }
        short => Some(u64::from(short)),
    };
    let (num_bytes, stored_bytes, begin) = (long(24)?, long(20)?, long(42)?);
    let (flags, method) = (u16_at(fixed, 8)?, u16_at(fixed, 10)?);
    let fault = if flags & 1 != 0 {
        Some("is encrypted")
    } else if method != 0 || stored_bytes != num_bytes {
        Some("is compressed")
    } else {
        None
    };
    let entry = Entry {
        name,
        num_bytes: stored_bytes,
        begin,
        limit: begin,
        fault,
    };
    Some((entry, rest))
}

/// The extra field of 64-bit numbers, empty if there is none; `None` if broken.
fn extra64(mut extra: &[u8]) -> Option<&[u8]> {
    while !extra.is_empty() {
        let (head, rest) = extra.split_at_checked(4)?;
        let (field, after) = rest.split_at_checked(u16_at(head, 2)?.into())?;
        if u16_at(head, 0)? == EXTRA64 {
            return Some(field);
        }
        extra = after;
    }
    Some(&[])
}

/// Tells each entry where the next begins; refuses two that share a byte.
fn set_limits(entries: &mut [Entry], directory_begin: u64) -> Result<()> {
    entries.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.begin));
    let mut limit = directory_begin;
    for entry in entries {
        let least = LOCAL_BYTES + entry.name.len() as u64;
        let end = entry.begin.checked_add(least);
        let end = end.and_then(|end| end.checked_add(entry.num_bytes));
        if end.is_none_or(|end| end > limit) {
            return Err(bad_entry(&entry.name, "runs into what follows it"));
        }
        entry.limit = limit;
        limit = entry.begin;
    }
    Ok(())
}

/// What all names begin with: the name of the one folder at the top.
fn prefix_of(entries: &[Entry]) -> Result<String> {
    let first = entries.first().map(|entry| entry.name.as_str());
    let prefix = first.and_then(|name| Some(&name[..=name.find('/')?]));
    let prefix = prefix.ok_or_else(|| bad("its entries are not in a folder"))?;
    match entries.iter().find(|entry| !entry.name.starts_with(prefix)) {
        None => Ok(prefix.to_owned()),
        Some(entry) => Err(bad_entry(&entry.name, "is not in the folder of the others")),
    }
}

/// Reads bytes whose number was checked against the file or a limit.
fn read(file: &File, begin: u64, num_bytes: u64) -> Result<Vec<u8>> {
    let len = usize::try_from(num_bytes).map_err(|_| bad("it is too large"))?;
    let mut bytes = vec![0; len];
    match file.read_exact_at(&mut bytes, begin) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(bad("it is cut short")),
        Err(error) => Err(PickleError::Io(error)),
    }
}

fn bad(reason: &'static str) -> PickleError {
    PickleFault::BadArchive { reason }.into()
}

fn bad_entry(entry: &str, reason: &'static str) -> PickleError {
    let entry = shown(entry);
    PickleFault::BadEntry { entry, reason }.into()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}
