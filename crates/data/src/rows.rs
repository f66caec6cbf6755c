//! The file of prepared rows: what it looks like, and reading single rows.
//!
//! ```text
//! header   72 bytes: magic "NESTROWS", version u32, seq u32, vocab_size u32, 0 u32,
//!          digest, documents, tokens, targets, rows, padded tokens: u64 each
//! row      len u32, num_targets u32, ids u32 x seq, targets u32 x seq
//! ```
//!
//! Everything is little-endian. `targets[j]` is the token that position `j` has
//! to predict, or [`IGNORED`]. The last position of a row has no target: the
//! next token belongs to the next row, and losses then equal those of torch
//! on the same rows with `labels = ids`. Positions from `len` on are padding: id
//! 0 and no target, whatever the tokenizer calls its pad token.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tensor::{as_bytes, as_bytes_mut};

use crate::error::{DataError, Result};
use crate::prepare::Counts;

/// The target of a position that does not count in the loss.
pub const IGNORED: u32 = u32::MAX;

const MAGIC: [u8; 8] = *b"NESTROWS";
const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 72;
/// Bytes before a row's ids.
const ROW_HEAD_BYTES: u64 = 8;

/// What a file of rows says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) seq: u32,
    pub(crate) vocab_size: u32,
    pub(crate) digest: u64,
    pub(crate) counts: Counts,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let counts = self.counts;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(as_bytes(&[VERSION, self.seq, self.vocab_size, 0]));
        bytes[24..].copy_from_slice(as_bytes(&[
            self.digest,
            counts.documents,
            counts.tokens,
            counts.targets,
            counts.rows,
            counts.padded_tokens,
        ]));
        bytes
    }

    fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        let mut small = [0_u32; 4];
        let mut large = [0_u64; 6];
        as_bytes_mut(&mut small).copy_from_slice(&bytes[8..24]);
        as_bytes_mut(&mut large).copy_from_slice(&bytes[24..]);
        let [version, seq, vocab_size, _] = small;
        let [digest, documents, tokens, targets, rows, padded_tokens] = large;
        if bytes[..8] != MAGIC {
            return Err("it does not begin with NESTROWS".to_owned());
        }
        if version != VERSION {
            return Err(format!("its version is {version}, expected {VERSION}"));
        }
        Ok(Self {
            seq,
            vocab_size,
            digest,
            counts: Counts {
                documents,
                tokens,
                targets,
                rows,
                padded_tokens,
            },
        })
    }

    /// Bytes of one row.
    fn row_bytes(&self) -> u64 {
        ROW_HEAD_BYTES + 8 * u64::from(self.seq)
    }

    /// Bytes of the whole file.
    fn file_bytes(&self) -> Option<u64> {
        let rows = self.row_bytes().checked_mul(self.counts.rows)?;
        rows.checked_add(HEADER_BYTES as u64)
    }
}

/// How much of a row is real.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowLen {
    /// Tokens; what follows is padding.
    pub len: u32,
    /// Positions that have a target.
    pub num_targets: u32,
}

/// An open file of prepared rows; every rank and thread can read from it at once.
#[derive(Debug)]
pub struct Rows {
    file: File,
    path: PathBuf,
    header: Header,
}

impl Rows {
    /// Opens a file that [`Prepared::build`](crate::Prepared::build) wrote.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(DataError::io("read", path))?;
        let found_bytes = file.metadata().map_err(DataError::io("read", path))?.len();
        let bad = |reason| DataError::BadRows {
            path: path.to_path_buf(),
            reason,
        };
        if found_bytes < HEADER_BYTES as u64 {
            return Err(bad(format!("it has {found_bytes} bytes")));
        }
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact_at(&mut bytes, 0)
            .map_err(DataError::io("read", path))?;
        let header = Header::from_bytes(&bytes).map_err(bad)?;
        if header.file_bytes() != Some(found_bytes) {
            let rows = header.counts.rows;
            return Err(bad(format!(
                "{rows} rows of {} tokens do not make {found_bytes} bytes",
                header.seq
            )));
        }
        Ok(Self {
            file,
            path: path.to_path_buf(),
            header,
        })
    }

    /// Tokens of a row.
    pub fn seq(&self) -> usize {
        self.header.seq as usize
    }

    /// How many rows there are.
    pub fn num_rows(&self) -> u64 {
        self.header.counts.rows
    }

    /// The size of the vocabulary that all ids are below.
    pub fn vocab_size(&self) -> u32 {
        self.header.vocab_size
    }

    /// What was prepared.
    pub fn counts(&self) -> Counts {
        self.header.counts
    }

    /// A fingerprint of the inputs, the tokenizer and the settings.
    pub fn digest(&self) -> u64 {
        self.header.digest
    }

    /// Reads a row into `ids` and `targets`, each of the sequence's length.
    ///
    /// # Panics
    ///
    /// Where a slice has another length: a bug of the caller.
    pub fn row(&self, index: u64, ids: &mut [u32], targets: &mut [u32]) -> Result<RowLen> {
        let lens = (ids.len(), targets.len());
        assert_eq!(lens, (self.seq(), self.seq()), "slices of a row's length");
        let len = self.row_len(index)?;
        let at = self.offset_of(index)? + ROW_HEAD_BYTES;
        self.read_at(at, as_bytes_mut(ids))?;
        self.read_at(at + 4 * u64::from(self.header.seq), as_bytes_mut(targets))?;
        Ok(len)
    }

    /// Reads only how much of a row is real.
    pub fn row_len(&self, index: u64) -> Result<RowLen> {
        let mut head = [0_u32; 2];
        self.read_at(self.offset_of(index)?, as_bytes_mut(&mut head))?;
        let [len, num_targets] = head;
        Ok(RowLen { len, num_targets })
    }

    /// The targets of several rows together, which every rank can count alone.
    pub fn num_targets(&self, rows: impl IntoIterator<Item = u64>) -> Result<u64> {
        let lens = rows.into_iter().map(|row| self.row_len(row));
        lens.map(|len| Ok(u64::from(len?.num_targets))).sum()
    }

    fn offset_of(&self, index: u64) -> Result<u64> {
        let num_rows = self.num_rows();
        if index >= num_rows {
            return Err(DataError::NoSuchRow { index, num_rows });
        }
        Ok(HEADER_BYTES as u64 + index * self.header.row_bytes())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file
            .read_exact_at(bytes, offset)
            .map_err(DataError::io("read", &self.path))
    }
}
