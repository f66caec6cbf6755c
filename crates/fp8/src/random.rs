//! Random bits that depend on what they are for and on nothing else.
//!
//! Philox4x32-10 (Salmon and others, "Parallel random numbers: as easy as 1, 2,
//! 3", 2011) turns a counter and a key into four words. Here
//!
//! ```text
//! key      the seed, low word first
//! counter  (16 * group + j, row, parameter, step)    64 columns are a group
//! word i   of counter j is for column 64 * group + 16 * i + j
//! ```
//!
//! so a group's 64 words are four runs of 16 without any shuffling. Neither rank
//! nor thread nor order has a part in it: every world size gives the same bits.
//!
//! An element has 32 bits a step. The low half rounds the weight, the high half
//! rounds its second moment.

/// Columns that share a row of counters.
pub const GROUP: usize = 64;

/// Counters of a group; each gives four words.
const COUNTERS: usize = GROUP / 4;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The random bits of one parameter's update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Random {
    /// The run's seed.
    pub seed: u64,
    /// The step's number; only its low 32 bits count.
    pub step: u64,
    /// The parameter's number in the model.
    pub parameter: u32,
}

impl Random {
    /// The 32 bits of an element, by its row and column in the whole parameter.
    #[expect(clippy::cast_possible_truncation, reason = "sizes are below 2^32")]
    pub fn bits(&self, row: usize, col: usize) -> u32 {
        let (group, rest) = (col / GROUP, col % GROUP);
        let counter = (group * COUNTERS + rest % COUNTERS) as u32;
        self.words(counter, row as u32)[rest / COUNTERS]
    }

    /// The bits of the 64 columns of a group, in order.
    ///
    /// The state's words lie in the low halves of 64 bits, where a product of two
    /// is one vector instruction; what is above them is not looked at.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the words of the state")]
    pub fn group_bits(&self, row: usize, group: usize) -> [u32; GROUP] {
        const LOW: u64 = 0xFFFF_FFFF;
        let mut a = [0; COUNTERS];
        for (j, counter) in a.iter_mut().enumerate() {
            *counter = (group * COUNTERS + j) as u64;
        }
        let mut b = [row as u64; COUNTERS];
        let mut c = [u64::from(self.parameter); COUNTERS];
        let mut d = [self.step; COUNTERS];
        let mut key = self.key();
        for _ in 0..ROUNDS {
            for j in 0..COUNTERS {
                let product_a = (a[j] & LOW) * u64::from(MULTIPLIERS[0]);
                let product_c = (c[j] & LOW) * u64::from(MULTIPLIERS[1]);
                a[j] = (product_c >> 32) ^ b[j] ^ u64::from(key[0]);
                c[j] = (product_a >> 32) ^ d[j] ^ u64::from(key[1]);
                (b[j], d[j]) = (product_c, product_a);
            }
            key = next_key(key);
        }
        let mut bits = [0; GROUP];
        for (run, words) in bits.chunks_exact_mut(COUNTERS).zip([a, b, c, d]) {
            for (bits, word) in run.iter_mut().zip(words) {
                *bits = word as u32;
            }
        }
        bits
    }

    #[expect(clippy::cast_possible_truncation, reason = "the step's low bits")]
    fn words(&self, counter: u32, row: u32) -> [u32; 4] {
        philox([counter, row, self.parameter, self.step as u32], self.key())
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the seed's two halves")]
    fn key(&self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }
}

/// The bits of an element that round its weight.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the low half")]
pub fn low_half(bits: u32) -> u16 {
    bits as u16
}

/// The bits of an element that round its second moment.
#[inline(always)]
pub fn high_half(bits: u32) -> u16 {
    (bits >> 16) as u16
}

/// Philox4x32-10.
#[inline(always)]
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        counter = round(counter, key);
        key = next_key(key);
    }
    counter
}

#[inline(always)]
fn round([a, b, c, d]: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [high_a, low_a] = product(a, MULTIPLIERS[0]);
    let [high_c, low_c] = product(c, MULTIPLIERS[1]);
    [high_c ^ b ^ key[0], low_c, high_a ^ d ^ key[1], low_a]
}

#[inline(always)]
fn next_key(key: [u32; 2]) -> [u32; 2] {
    [
        key[0].wrapping_add(KEY_STEPS[0]),
        key[1].wrapping_add(KEY_STEPS[1]),
    ]
}

/// High and low word of a product.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the two halves")]
fn product(a: u32, b: u32) -> [u32; 2] {
    let product = u64::from(a) * u64::from(b);
    [(product >> 32) as u32, product as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_answers_come_out() {
        let check = |counter, key, words| assert_eq!(philox(counter, key), words);
        check(
            [0; 4],
            [0; 2],
            [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8],
        );
        check(
            [u32::MAX; 4],
            [u32::MAX; 2],
            [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD],
        );
        check(
            [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
            [0xA409_3822, 0x299F_31D0],
            [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
        );
    }

    #[test]
    fn a_group_has_the_bits_of_its_elements() {
        let random = Random {
            seed: 0x0123_4567_89AB_CDEF,
            step: 7,
            parameter: 3,
        };
        for (row, group) in [(0, 0), (1, 0), (129, 5)] {
            let bits = random.group_bits(row, group);
            for (col, &bits) in (group * GROUP..).zip(&bits) {
                assert_eq!(bits, random.bits(row, col));
            }
        }
    }

    #[test]
    fn seed_step_parameter_row_and_column_all_count() {
        let random = |seed, step, parameter| Random {
            seed,
            step,
            parameter,
        };
        let mut seen = std::collections::BTreeSet::new();
        for seed in [0, 1, 1 << 32] {
            for step in 0..4 {
                for parameter in 0..4 {
                    for place in 0..64 {
                        let random = random(seed, step, parameter);
                        seen.insert(random.bits(place % 4, place * 17));
                    }
                }
            }
        }
        assert_eq!(seen.len(), 3 * 4 * 4 * 64);
    }
}
