//! A fingerprint that all ranks compare before any data moves.

/// FNV-1a over what a plan says; not cryptographic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanHash(pub u64);

impl PlanHash {
    /// The hash of nothing.
    pub fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Takes one more number in.
    #[must_use]
    pub fn with(self, number: u64) -> Self {
        let bytes = number.to_le_bytes();
        Self(bytes.iter().fold(self.0, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }

    /// Takes one more text in.
    #[must_use]
    pub fn with_text(self, text: &str) -> Self {
        text.bytes()
            .fold(self.with(text.len() as u64), |hash, byte| {
                hash.with(u64::from(byte))
            })
    }
}

impl Default for PlanHash {
    fn default() -> Self {
        Self::new()
    }
}
