//! A fingerprint of settings and inputs, to tell whether two runs read the same.
//!
//! FNV-1a with 64 bits: it guards against mistakes, not against forgers.

/// Bytes seen so far, as one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    /// The fingerprint of nothing.
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds a field; its length goes first, so that fields cannot run together.
    pub(crate) fn field(mut self, bytes: &[u8]) -> Self {
        self.add(&bytes.len().to_le_bytes());
        self.add(bytes);
        self
    }

    /// Adds bytes to the field in progress.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The fingerprint.
    pub(crate) fn value(self) -> u64 {
        self.0
    }
}
