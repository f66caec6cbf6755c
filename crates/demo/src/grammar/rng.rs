//! Random numbers that are the same on every machine and in every version.
//!
//! `SplitMix64` over a counter: number `n` of a stream is a fixed mix of
//! `seed + (n + 1) * GOLDEN`, so that a document's text depends on its seed and its
//! index alone and no other crate's change of algorithm can move it.

/// 2^64 divided by the golden ratio, made odd: the step between counters.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// One stream of random numbers.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The stream of document `index` under `seed`.
    pub fn new(seed: u64, index: u64) -> Self {
        Self {
            state: mix(seed.wrapping_mul(GOLDEN) ^ mix(index)),
        }
    }

    /// A number below `end`.
    ///
    /// # Panics
    ///
    /// When `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_add(GOLDEN);
        // The bias of a remainder is below 2^-50 for the small tables here.
        let end = end as u64;
        usize::try_from(mix(self.state) % end).expect("the remainder is below a usize")
    }

    /// One entry of a table.
    ///
    /// # Panics
    ///
    /// When the table is empty.
    pub fn pick<T: Copy>(&mut self, table: &[T]) -> T {
        table[self.below(table.len())]
    }

    /// True `percent` times of a hundred.
    pub fn chance(&mut self, percent: u8) -> bool {
        self.below(100) < usize::from(percent)
    }
}

/// The finalizer of `SplitMix64`: every input bit reaches every output bit.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_depends_on_seed_and_index_alone() {
        let first: Vec<_> = (0..8).map(|index| Rng::new(1, index).below(1000)).collect();
        let again: Vec<_> = (0..8).map(|index| Rng::new(1, index).below(1000)).collect();
        let other: Vec<_> = (0..8).map(|index| Rng::new(2, index).below(1000)).collect();
        assert_eq!(first, again);
        assert_ne!(first, other);
    }
}
