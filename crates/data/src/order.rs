//! In which order rows are visited, without a list of them.
//!
//! A seeded permutation of `0..num_rows` for each epoch, computed for one
//! position at a time: a Feistel network shuffles the next power of four, and a
//! result outside the range is sent through again until it lies inside (at most
//! four times on average, since the power of four is less than four times the
//! range). Nothing depends on the number of ranks, and a resumed run needs only
//! the position.

/// Rounds of the network; four give every position an even spread, two more are
/// cheap.
const NUM_ROUNDS: u64 = 6;

/// The order of rows in every epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    num_rows: u64,
    /// `None`: as they stand in the file.
    seed: Option<u64>,
    /// Bits of one half of the network's block.
    half_bits: u32,
}

impl Order {
    /// A new shuffle for every epoch.
    pub fn new(num_rows: u64, seed: u64) -> Self {
        let bits = u64::BITS - num_rows.saturating_sub(1).leading_zeros();
        Self {
            num_rows,
            seed: Some(seed),
            half_bits: bits.div_ceil(2).max(1),
        }
    }

    /// Every epoch in the order of the file.
    pub fn sequential(num_rows: u64) -> Self {
        Self {
            seed: None,
            ..Self::new(num_rows, 0)
        }
    }

    /// How many rows an epoch has.
    pub fn num_rows(&self) -> u64 {
        self.num_rows
    }

    /// The row at a position of an epoch.
    ///
    /// # Panics
    ///
    /// Where `position` is not below the number of rows: a bug of the caller.
    pub fn row_of(&self, epoch: u64, position: u64) -> u64 {
        assert!(
            position < self.num_rows,
            "position {position} of {} rows",
            self.num_rows
        );
        let Some(seed) = self.seed else {
            return position;
        };
        let key = mix(seed ^ mix(epoch));
        let mut row = self.permute(key, position);
        while row >= self.num_rows {
            row = self.permute(key, row);
        }
        row
    }

    /// One pass through the network: a permutation of its whole block.
    fn permute(&self, key: u64, value: u64) -> u64 {
        let mask = u64::MAX >> (u64::BITS - self.half_bits);
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..NUM_ROUNDS {
            let scrambled = mix(key ^ mix(right ^ (round << 56))) & mask;
            (left, right) = (right, left ^ scrambled);
        }
        left << self.half_bits | right
    }
}

/// The finaliser of `SplitMix64` (Steele, Lea, Flood 2014): every input bit
/// changes about half of the output bits.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(order: &Order, epoch: u64) -> Vec<u64> {
        (0..order.num_rows())
            .map(|position| order.row_of(epoch, position))
            .collect()
    }

    #[test]
    fn every_row_comes_once_in_every_epoch() {
        for num_rows in 0..200 {
            let order = Order::new(num_rows, 7);
            for e in 0..3 {
                let mut rows = epoch(&order, e);
                rows.sort_unstable();
                assert!(
                    rows.into_iter().eq(0..num_rows),
                    "{num_rows} rows, epoch {e}"
                );
            }
        }
    }

    #[test]
    fn seeds_and_epochs_give_other_orders() {
        let first = epoch(&Order::new(20, 1), 0);
        assert_ne!(first, epoch(&Order::new(20, 1), 1));
        assert_ne!(first, epoch(&Order::new(20, 2), 0));
        assert_eq!(first, epoch(&Order::new(20, 1), 0));
    }

    #[test]
    fn the_order_is_the_same_on_every_machine() {
        assert_eq!(epoch(&Order::new(8, 42), 0), [6, 3, 7, 5, 0, 4, 1, 2]);
    }

    #[test]
    fn a_sequential_order_is_the_files() {
        assert_eq!(epoch(&Order::sequential(3), 5), [0, 1, 2]);
    }

    #[test]
    fn huge_counts_do_not_overflow() {
        for num_rows in [u64::MAX, 1 << 63, (1 << 40) + 1] {
            let order = Order::new(num_rows, 3);
            for position in [0, 1, num_rows / 2, num_rows - 1] {
                assert!(order.row_of(9, position) < num_rows);
            }
        }
    }

    /// Each of 5 rows should be first in a fifth of 4000 epochs; 6 standard
    /// deviations of that count are 152.
    #[test]
    fn small_shuffles_are_even() {
        let order = Order::new(5, 11);
        let mut first = [0_i32; 5];
        for e in 0..4000 {
            first[usize::try_from(order.row_of(e, 0)).unwrap()] += 1;
        }
        assert!(
            first.iter().all(|&count| (count - 800).abs() < 152),
            "{first:?}"
        );
    }
}
