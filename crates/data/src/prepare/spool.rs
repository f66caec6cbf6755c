//! Tokenized documents on disk, between the two passes.
//!
//! A token is one word: its id, and in the highest bit whether it counts in the
//! loss. Which word a document begins at is kept in memory, 8 bytes a document.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use tensor::as_bytes_mut;

use super::temporary::Temporary;
use super::writer::RowWriter;
use super::{Settings, refuse_if_stopped};
use crate::document::Document;
use crate::error::{DataError, Result};

/// The bit of a word in the spool that says "counts in the loss".
const IN_LOSS: u32 = 1 << 31;
/// Words that are read from the spool at once.
const COPY_LEN: usize = 4 << 10;

/// Tokenized documents in the order of the lines, on disk.
pub(super) struct Spool {
    file: BufWriter<File>,
    temporary: Temporary,
    /// Where each document begins, in words; one more at the end.
    starts: Vec<u64>,
}

impl Spool {
    pub(super) fn create(out_file: &Path) -> Result<Self> {
        let (temporary, file) = Temporary::create(out_file, ".spool")?;
        Ok(Self {
            file: BufWriter::new(file),
            temporary,
            starts: vec![0],
        })
    }

    pub(super) fn push(&mut self, document: &Document) -> Result<()> {
        let tokens = document.ids.iter().zip(&document.in_loss);
        for (&id, &in_loss) in tokens {
            let word = id | if in_loss { IN_LOSS } else { 0 };
            self.file
                .write_all(&word.to_le_bytes())
                .map_err(DataError::io("write", &self.temporary.path))?;
        }
        let start = self.starts.last().copied().unwrap_or_default();
        self.starts.push(start + document.ids.len() as u64);
        Ok(())
    }

    pub(super) fn copy_to(
        &mut self,
        rows: &mut RowWriter,
        settings: &Settings,
        stop: &AtomicBool,
    ) -> Result<()> {
        self.file
            .flush()
            .map_err(DataError::io("write", &self.temporary.path))?;
        let num_documents = self.starts.len() - 1;
        let order = settings.document_order(num_documents as u64);
        for position in 0..order.num_rows() {
            refuse_if_stopped(stop)?;
            let document = order.row_of(0, position);
            // Below the length of a vector, so it is an index.
            let at = usize::try_from(document).unwrap_or(num_documents);
            self.copy_words(rows, self.starts[at], self.starts[at + 1])?;
        }
        rows.end_row()
    }

    fn copy_words(&self, rows: &mut RowWriter, mut start: u64, end: u64) -> Result<()> {
        let mut words = [0_u32; COPY_LEN];
        while start < end {
            let len = usize::try_from(end - start)
                .unwrap_or(COPY_LEN)
                .min(COPY_LEN);
            let words = &mut words[..len];
            self.file
                .get_ref()
                .read_exact_at(as_bytes_mut(words), start * 4)
                .map_err(DataError::io("read", &self.temporary.path))?;
            for &mut word in words {
                let id = word & !IN_LOSS;
                rows.push(id, (word & IN_LOSS != 0).then_some(id))?;
            }
            start += len as u64;
        }
        Ok(())
    }
}
