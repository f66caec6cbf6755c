//! Reading a header front to back without believing it.

use std::io::{self, Read};

use super::fault::GgufFault;
use super::parse::MAX_HEADER_BYTES;

/// Why reading ended.
#[derive(Debug)]
pub(super) enum Stop {
    /// The file is wrong.
    Fault(GgufFault),
    /// The file cannot be read.
    Io(io::Error),
}

impl From<GgufFault> for Stop {
    fn from(fault: GgufFault) -> Self {
        Self::Fault(fault)
    }
}

/// Bytes that an array grows by at once, however many it claims.
const PIECE_BYTES: usize = 1 << 16;

/// A place in a file of known size.
pub(super) struct Cursor<R> {
    source: R,
    at: u64,
    file_bytes: u64,
    /// Counts and lengths are u32, as in version 1.
    pub(super) has_short_counts: bool,
}

impl<R: Read> Cursor<R> {
    pub(super) fn new(source: R, file_bytes: u64) -> Self {
        Self {
            source,
            at: 0,
            file_bytes,
            has_short_counts: false,
        }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Bytes of the file that may still be header.
    fn left(&self) -> u64 {
        self.file_bytes.min(MAX_HEADER_BYTES) - self.at
    }

    /// Refuses to go on where fewer than `num_bytes` are left.
    fn need(&self, num_bytes: u64) -> Result<(), GgufFault> {
        if num_bytes <= self.left() {
            return Ok(());
        }
        if num_bytes <= self.file_bytes - self.at {
            return Err(GgufFault::HeaderTooLarge);
        }
        Err(GgufFault::Truncated {
            at: self.file_bytes,
            needed_bytes: num_bytes - (self.file_bytes - self.at),
        })
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Stop> {
        self.need(bytes.len() as u64)?;
        self.source.read_exact(bytes).map_err(Stop::Io)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Stop> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Stop> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// A count, a length or a dimension, whose width is the version's.
    pub(super) fn count(&mut self) -> Result<u64, Stop> {
        if self.has_short_counts {
            self.u32().map(u64::from)
        } else {
            self.u64()
        }
    }

    /// Bytes that a count or a length takes.
    pub(super) fn count_bytes(&self) -> u64 {
        if self.has_short_counts { 4 } else { 8 }
    }

    /// Refuses a count of things that the rest of the file cannot hold.
    pub(super) fn check_count(
        &self,
        count: u64,
        least_bytes: u64,
        what: impl FnOnce() -> String,
    ) -> Result<(), GgufFault> {
        match count.checked_mul(least_bytes) {
            Some(num_bytes) if num_bytes <= self.left() => Ok(()),
            _ => Err(GgufFault::LyingCount {
                what: what(),
                found: count,
            }),
        }
    }

    /// `num_bytes` bytes, which were checked to be there, in place of `bytes`.
    pub(super) fn replace(&mut self, bytes: &mut Vec<u8>, num_bytes: u64) -> Result<(), Stop> {
        self.need(num_bytes)?;
        bytes.clear();
        let mut left = usize::try_from(num_bytes).map_err(|_| GgufFault::HeaderTooLarge)?;
        while left > 0 {
            let begin = bytes.len();
            let piece = left.min(PIECE_BYTES);
            bytes.resize(begin + piece, 0);
            self.fill(&mut bytes[begin..])?;
            left -= piece;
        }
        Ok(())
    }

    /// A string of at most `limit_bytes`, read into `bytes`.
    pub(super) fn text<'a>(
        &mut self,
        bytes: &'a mut Vec<u8>,
        limit_bytes: u64,
        what: impl Fn() -> String,
    ) -> Result<&'a str, Stop> {
        let len = self.count()?;
        if len > limit_bytes {
            return Err(Stop::Fault(GgufFault::TooLong {
                what: what(),
                found: len,
                limit_bytes,
            }));
        }
        self.replace(bytes, len)?;
        str::from_utf8(bytes).map_err(|_| Stop::Fault(GgufFault::NotUtf8 { what: what() }))
    }
}
