//! Data files, line by line: which files a path means, and their lines with
//! their numbers.
//!
//! A line is the only thing that is held, and its length is limited. A byte
//! order mark and carriage returns are dropped, lines of nothing but white space
//! are passed over (and counted), and bytes that are not UTF-8 are an error that
//! names their place: they are never replaced.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::error::{DataError, Result};

/// The longest line that is read.
const MAX_LINE_BYTES: usize = 256 << 20;
/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Where lines come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A file of JSON lines.
    File(PathBuf),
    /// JSON lines that the program carries, with a name for messages.
    Memory {
        /// What to call it.
        name: String,
        /// The lines.
        bytes: Cow<'static, [u8]>,
    },
}

impl Source {
    /// The sources that a path means: itself, or a folder's `.jsonl` files by name.
    pub fn find(path: &Path) -> Result<Vec<Self>> {
        let metadata = fs::metadata(path).map_err(DataError::io("read", path))?;
        if metadata.is_file() {
            return if is_jsonl(path) {
                Ok(vec![Self::File(path.to_path_buf())])
            } else {
                Err(unsupported(path, "a file of another kind"))
            };
        }
        if !metadata.is_dir() {
            return Err(unsupported(path, "neither a file nor a folder"));
        }
        let mut files = Vec::new();
        for entry in fs::read_dir(path).map_err(DataError::io("list", path))? {
            let file = entry.map_err(DataError::io("list", path))?.path();
            if is_jsonl(&file) && file.is_file() {
                files.push(file);
            }
        }
        if files.is_empty() {
            return Err(unsupported(path, "a folder without .jsonl files"));
        }
        files.sort();
        Ok(files.into_iter().map(Self::File).collect())
    }

    /// The path or name, for messages.
    pub fn name(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Memory { name, .. } => Path::new(name),
        }
    }

    /// Opens the source at its first line.
    pub(crate) fn lines(&self) -> Result<Lines<'_>> {
        let reader: Box<dyn BufRead + '_> = match self {
            Self::File(path) => {
                let file = File::open(path).map_err(DataError::io("read", path))?;
                Box::new(BufReader::with_capacity(BUFFER_BYTES, file))
            }
            Self::Memory { bytes, .. } => Box::new(bytes.as_ref()),
        };
        Ok(Lines {
            reader,
            file: self.name(),
            line: Vec::new(),
            number: 0,
        })
    }
}

fn is_jsonl(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("jsonl"))
}

fn unsupported(path: &Path, found: &str) -> DataError {
    DataError::UnsupportedInput {
        path: path.to_path_buf(),
        found: found.to_owned(),
    }
}

/// The lines of a source.
pub(crate) struct Lines<'s> {
    reader: Box<dyn BufRead + 's>,
    file: &'s Path,
    line: Vec<u8>,
    number: u64,
}

impl Lines<'_> {
    /// The next line that holds something, and its number from 1.
    pub(crate) fn next_line(&mut self) -> Result<Option<(u64, &str)>> {
        loop {
            if !self.read_line()? {
                return Ok(None);
            }
            if !content(&self.line, self.number).trim_ascii().is_empty() {
                break;
            }
        }
        let bytes = content(&self.line, self.number);
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some((self.number, text))),
            Err(error) => {
                let offset = error.valid_up_to();
                let byte = bytes[offset];
                Err(DataError::NotUtf8 { byte, offset }.at(self.file, self.number))
            }
        }
    }

    /// Reads one physical line; `false` at the end.
    fn read_line(&mut self) -> Result<bool> {
        self.line.clear();
        self.line.shrink_to(BUFFER_BYTES);
        let limit = MAX_LINE_BYTES as u64 + 1;
        let read = (&mut self.reader)
            .take(limit)
            .read_until(b'\n', &mut self.line)
            .map_err(DataError::io("read", self.file))?;
        if read == 0 {
            return Ok(false);
        }
        self.number += 1;
        if self.line.len() > MAX_LINE_BYTES {
            let limit_bytes = MAX_LINE_BYTES;
            return Err(DataError::LineTooLong { limit_bytes }.at(self.file, self.number));
        }
        Ok(true)
    }
}

/// A line without its end and, in the first one, without a byte order mark.
fn content(line: &[u8], number: u64) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match line.strip_prefix(b"\xef\xbb\xbf") {
        Some(rest) if number == 1 => rest,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &'static [u8]) -> Result<Vec<(u64, String)>> {
        let source = Source::Memory {
            name: "m.jsonl".to_owned(),
            bytes: bytes.into(),
        };
        let mut lines = source.lines()?;
        let mut all = Vec::new();
        while let Some((number, text)) = lines.next_line()? {
            all.push((number, text.to_owned()));
        }
        Ok(all)
    }

    #[test]
    fn marks_carriage_returns_and_blank_lines_leave_no_trace_but_are_counted() {
        let found = lines(b"\xef\xbb\xbfa\r\n\r\n  \t\r\nb\r\n\nc").unwrap();
        let expected = [(1, "a"), (4, "b"), (6, "c")].map(|(n, text)| (n, text.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn nothing_has_no_lines() {
        assert!(lines(b"").unwrap().is_empty());
        assert!(lines(b"\n\n \n").unwrap().is_empty());
        assert!(lines(b"\xef\xbb\xbf").unwrap().is_empty());
    }

    #[test]
    fn a_byte_that_is_not_utf_8_is_named_with_its_line() {
        let error = lines(b"a\nb\nca\xc0\n").unwrap_err();
        let DataError::AtLine {
            line: 3, source, ..
        } = error
        else {
            panic!("{error}");
        };
        assert!(matches!(
            *source,
            DataError::NotUtf8 {
                byte: 0xc0,
                offset: 2
            }
        ));
    }

    #[test]
    fn a_folder_means_its_jsonl_files_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.jsonl", "a.JSONL", "c.txt"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let names: Vec<_> = Source::find(folder.path())
            .unwrap()
            .iter()
            .map(|source| source.name().file_name().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["a.JSONL", "b.jsonl"]);
    }

    #[test]
    fn other_kinds_are_refused_by_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.parquet");
        fs::write(&file, "").unwrap();
        for path in [file.as_path(), folder.path()] {
            let error = Source::find(path).unwrap_err();
            assert!(error.to_string().contains(".jsonl"), "{error}");
        }
        assert!(matches!(
            Source::find(Path::new("/nowhere/x.jsonl")),
            Err(DataError::Io { .. })
        ));
    }
}
