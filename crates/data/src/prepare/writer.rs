//! A stream of tokens, cut into rows and written.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use tensor::as_bytes;

use super::Counts;
use super::temporary::Temporary;
use crate::error::{DataError, Result};
use crate::rows::{HEADER_BYTES, Header, IGNORED};

/// Cuts a stream of tokens into rows and writes them.
pub(super) struct RowWriter {
    file: BufWriter<File>,
    temporary: Temporary,
    seq: usize,
    ids: Vec<u32>,
    targets: Vec<u32>,
    pub(super) counts: Counts,
}

impl RowWriter {
    pub(super) fn create(out_file: &Path, seq: usize) -> Result<Self> {
        let (temporary, file) = Temporary::create(out_file, ".partial")?;
        let mut file = BufWriter::new(file);
        // The header is written last, when everything in it is known.
        file.write_all(&[0; HEADER_BYTES])
            .map_err(DataError::io("write", &temporary.path))?;
        Ok(Self {
            file,
            temporary,
            seq,
            ids: Vec::with_capacity(seq),
            targets: Vec::with_capacity(seq),
            counts: Counts::default(),
        })
    }

    /// Adds a token; `target` is what the position before it has to predict.
    pub(super) fn push(&mut self, id: u32, target: Option<u32>) -> Result<()> {
        if let Some(before) = self.targets.last_mut() {
            *before = target.unwrap_or(IGNORED);
        }
        self.ids.push(id);
        self.targets.push(IGNORED);
        if self.ids.len() == self.seq {
            return self.end_row();
        }
        Ok(())
    }

    /// Pads and writes the row in progress, where there is one.
    pub(super) fn end_row(&mut self) -> Result<()> {
        let len = self.ids.len();
        if len == 0 {
            return Ok(());
        }
        let targets = self.targets.iter().filter(|&&target| target != IGNORED);
        let num_targets = targets.count();
        self.ids.resize(self.seq, 0);
        self.targets.resize(self.seq, IGNORED);
        // Both are at most `seq`, which is below 2^28.
        let head = [len, num_targets].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        for words in [&head[..], &self.ids, &self.targets] {
            self.file
                .write_all(as_bytes(words))
                .map_err(DataError::io("write", &self.temporary.path))?;
        }
        self.counts.rows += 1;
        self.counts.tokens += len as u64;
        self.counts.targets += num_targets as u64;
        self.counts.padded_tokens += (self.seq - len) as u64;
        self.ids.clear();
        self.targets.clear();
        Ok(())
    }

    pub(super) fn finish(mut self, header: Header, out_file: &Path) -> Result<()> {
        let write = |file: &mut BufWriter<File>| {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header.to_bytes())?;
            file.flush()
        };
        write(&mut self.file).map_err(DataError::io("write", &self.temporary.path))?;
        self.temporary.rename(out_file)
    }
}
