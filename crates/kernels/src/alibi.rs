//! Attention with linear biases (Press et al. 2022), as Falcon has them.
//!
//! ```text
//! slope of head n    2^(-8 n / c)        n = 1 .. c, c the largest power of two
//!                                        that is not above the number of heads
//!                    2^(-4 n / c)        n = 1, 3, 5 .. for the heads beyond c
//! bias of a key      bf16(bf16(slope) * bf16(position))
//! ```
//!
//! The bias grows with the key's own position and not with its distance. A softmax
//! would not see the difference, but rounding does, so it is rounded as the models
//! were trained.

use half::bf16;

/// The slope of each head, a bf16.
pub fn alibi_slopes(num_heads: usize) -> Vec<f32> {
    let whole = if num_heads == 0 {
        return Vec::new();
    } else {
        1 << num_heads.ilog2()
    };
    let power = |eighths: f64| {
        let slope = bf16::from_f64((-8.0 * eighths / whole as f64).exp2());
        slope.to_f32()
    };
    let first = (1..=whole).map(|n| power(n as f64));
    let beyond = (0..num_heads - whole).map(|n| power(n as f64 + 0.5));
    first.chain(beyond).collect()
}

/// A key's position as its bias has it.
pub(crate) fn alibi_position(key: usize) -> f32 {
    to_bf16(key as f32)
}

/// What is added to the score of a key at [`alibi_position`].
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "code is vectorized only where it is inlined into the run-time dispatch"
)]
pub(crate) fn alibi_bias(slope: f32, position: f32) -> f32 {
    to_bf16(slope * position)
}

/// The nearest bf16 of a finite number, ties to even.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "code is vectorized only where it is inlined into the run-time dispatch"
)]
fn to_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let to_even = 0x7fff + (bits >> 16 & 1);
    f32::from_bits(bits.wrapping_add(to_even) & 0xffff_0000)
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "bf16 numbers are exact in f32")]
mod tests {
    use super::*;

    #[test]
    fn a_power_of_two_of_heads_has_powers_of_one_slope() {
        let eighth = |n: i32| 0.5_f32.powi(n);
        let expected: Vec<f32> = (1..=8).map(eighth).collect();
        assert_eq!(alibi_slopes(8), expected);
        assert_eq!(alibi_slopes(1), [eighth(8)]);
        assert!(alibi_slopes(0).is_empty());
    }

    #[test]
    fn heads_beyond_a_power_of_two_lie_between_its_slopes() {
        // c = 4: 2^-2, 2^-4, 2^-6, 2^-8, then 2^-1 and 2^-3.
        let slopes = alibi_slopes(6);
        assert_eq!(slopes, [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]);
    }

    #[test]
    fn biases_are_rounded_to_bf16_once_for_the_key_and_once_for_the_product() {
        for key in [0, 1, 255, 256, 257, 259, 2047, 100_003] {
            for slope in alibi_slopes(71) {
                let product = bf16::from_f32(slope * bf16::from_f32(key as f32).to_f32());
                assert_eq!(alibi_bias(slope, alibi_position(key)), product.to_f32());
            }
        }
    }
}
