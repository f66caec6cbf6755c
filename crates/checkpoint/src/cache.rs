//! What reading a file leaves in the system's page cache.
//!
//! A checkpoint that is read once need not push out what others keep there. A
//! file that somebody has in the cache already is left there.

use std::fmt;
use std::fs::File;
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::ops::Range;
use std::str::FromStr;

use rustix::fs::Advice;
use rustix::io::{Errno, ReadWriteFlags};

/// The size of a page of the cache, and what direct reads are aligned to.
pub(crate) const PAGE_LEN: usize = 4096;
pub(crate) const PAGE_BYTES: u64 = PAGE_LEN as u64;

/// What becomes of the pages of the cache that a read went through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CachePolicy {
    /// Dropped, unless most of the file was in the cache before.
    #[default]
    Auto,
    /// Left to the system.
    Keep,
    /// Dropped behind the read.
    Drop,
    /// Reads go past the cache (`O_DIRECT`), or where that is not possible as
    /// with [`CachePolicy::Drop`].
    Direct,
}

impl CachePolicy {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Keep, Self::Drop, Self::Direct];

    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Keep => "keep",
            Self::Drop => "drop",
            Self::Direct => "direct",
        }
    }
}

impl fmt::Display for CachePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A cache policy that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown cache policy `{0}`, expected `auto`, `keep`, `drop` or `direct`")]
pub struct UnknownCachePolicy(pub String);

impl FromStr for CachePolicy {
    type Err = UnknownCachePolicy;

    fn from_str(name: &str) -> Result<Self, UnknownCachePolicy> {
        let mut all = Self::ALL.into_iter();
        all.find(|policy| policy.name() == name)
            .ok_or_else(|| UnknownCachePolicy(name.to_owned()))
    }
}

/// The share of a file that is in the page cache, from pages at even distances.
///
/// A page counts if it can be read without waiting. 0 where the file system
/// cannot say.
pub fn resident_share(file: &File, num_bytes: u64) -> f64 {
    const SAMPLES: u64 = 64;
    let samples = SAMPLES.min(num_bytes.div_ceil(PAGE_BYTES));
    let is_resident = |sample: &u64| {
        let offset = num_bytes * (2 * sample + 1) / (2 * samples);
        let mut byte = [0];
        let mut buffers = [IoSliceMut::new(&mut byte)];
        matches!(
            rustix::io::preadv2(file, &mut buffers, offset, ReadWriteFlags::NOWAIT),
            Ok(1)
        )
    };
    if samples == 0 {
        return 0.0;
    }
    (0..samples).filter(is_resident).count() as f64 / samples as f64
}

/// Drops what a read of `range` left in the page cache.
///
/// A page that the range shares with its successor is left to that one.
pub(crate) fn drop_pages(file: &File, range: &Range<u64>, file_bytes: u64) -> Result<(), Errno> {
    let begin = range.start / PAGE_BYTES * PAGE_BYTES;
    let end = if range.end == file_bytes {
        range.end.next_multiple_of(PAGE_BYTES)
    } else {
        range.end / PAGE_BYTES * PAGE_BYTES
    };
    // A length of 0 would mean the rest of the file.
    match NonZeroU64::new(end.saturating_sub(begin)) {
        Some(len) => rustix::fs::fadvise(file, begin, Some(len), Advice::DontNeed),
        None => Ok(()),
    }
}
