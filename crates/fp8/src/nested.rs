//! One number of a nested master: an E4M3 code and what it leaves over.
//!
//! With `x` the number over its tile's `scale_inv` and `c` the nearest code,
//!
//! ```text
//! x = value(c) + residual * ulp(c) / 256       N16: residual in a byte
//! x = value(c) + residual * ulp(c) / 65536     N24: residual in two bytes
//! ulp(c) = 2^(max(exponent of c, 1) - 10)      the spacing at c, 2^-9 below 2^-6
//! ```
//!
//! `value(c)` being nearest, a residual is at most half an ulp: 128 (32768), which
//! a tie reaches on both sides. So the **top residual code, 127 (32767), stands
//! for 128 (32768)**, and what would be a true 127 goes to 126 or 128. Clamping
//! ties to 127 instead moves one weight in 30 of a real model.

use crate::format::{decode_e4m3, encode_e4m3};

/// How many bytes lie below the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Nesting {
    /// One: as many bits in all as a bf16.
    N16,
    /// Two: three more bits than a bf16 at every code, more below.
    N24,
}

impl Nesting {
    /// Bytes of an element over all planes.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::N16 => 2,
            Self::N24 => 3,
        }
    }
}

/// The residual code of N16 that stands for the half ulp.
const TOP_N16: f32 = 127.0;

/// The residual code of N24 that stands for the half ulp.
const TOP_N24: f32 = 32767.0;

/// Splits `x` into code and residual, to nearest.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "between -128 and 127")]
pub fn split_n16(x: f32) -> (u8, i8) {
    let (code, rest) = split::<8>(x);
    (code, nearest(rest, TOP_N16) as i8)
}

/// Splits `x` into code and residual, the residual rounded up as often as 16
/// random bits say.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "between -128 and 127")]
pub fn split_n16_stochastic(x: f32, bits: u16) -> (u8, i8) {
    let (code, rest) = split::<8>(x);
    (code, stochastic(rest, TOP_N16, bits) as i8)
}

/// Splits `x` into code and residual, to nearest.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "between -32768 and 32767")]
pub fn split_n24(x: f32) -> (u8, i16) {
    let (code, rest) = split::<16>(x);
    (code, nearest(rest, TOP_N24) as i16)
}

/// Joins what [`split_n16`] split.
#[inline(always)]
pub fn join_n16(code: u8, residual: i8) -> f32 {
    let residual = i32::from(residual);
    let residual = residual + i32::from(residual == 127);
    join::<8>(code, residual)
}

/// Joins what [`split_n24`] split.
#[inline(always)]
pub fn join_n24(code: u8, residual: i16) -> f32 {
    let residual = i32::from(residual);
    let residual = residual + i32::from(residual == 32767);
    join::<16>(code, residual)
}

/// The two bytes of an N24 residual: high plane, low plane.
#[inline(always)]
pub fn residual_bytes(residual: i16) -> [u8; 2] {
    residual.to_be_bytes()
}

/// The N24 residual of its two bytes.
#[inline(always)]
pub fn residual_of(high: u8, low: u8) -> i16 {
    i16::from_be_bytes([high, low])
}

/// The nearest code, and the rest in units of ulp / 2^`BITS`, exact.
#[inline(always)]
fn split<const BITS: u32>(x: f32) -> (u8, f32) {
    let code = encode_e4m3(x);
    let units_per_one = f32::from_bits((127 + 10 + BITS - exponent(code)) << 23);
    (code, (x - decode_e4m3(code)) * units_per_one)
}

#[inline(always)]
fn join<const BITS: u32>(code: u8, residual: i32) -> f32 {
    let unit = f32::from_bits((127 - 10 - BITS + exponent(code)) << 23);
    // Subtracted: -0 less 0 is -0, but -0 plus 0 is 0.
    decode_e4m3(code) - residual.wrapping_neg() as f32 * unit
}

/// The exponent field of a code; 1 of subnormals, which have the spacing of it.
#[inline(always)]
fn exponent(code: u8) -> u32 {
    u32::from((code >> 3) & 15).max(1)
}

/// The code of the nearest residual; ties to even.
///
/// Between `top - 1` and `top + 1`, which the code `top` stands for, is no code.
#[inline(always)]
fn nearest(rest: f32, top: f32) -> i32 {
    let below = if rest < top - 1.0 { rest } else { top - 1.0 };
    whole(at_least(-top - 1.0, if rest >= top { top } else { below }))
}

/// The code of the residual below or above, as often as is right in the mean.
#[inline(always)]
fn stochastic(rest: f32, top: f32, bits: u16) -> i32 {
    let fraction = f32::from(bits) * (1.0 / 65536.0);
    let below = (rest + fraction).floor();
    let is_top = (rest - (top - 1.0)) * 0.5 + fraction >= 1.0;
    let above = if is_top { top } else { top - 1.0 };
    whole(at_least(
        -top - 1.0,
        if rest < top - 1.0 { below } else { above },
    ))
}

#[inline(always)]
fn at_least(least: f32, x: f32) -> f32 {
    if x < least { least } else { x }
}

/// The nearest integer of a small number: added to 1.5 * 2^23 it lies in the low
/// bits. A cast with `as` would check its range once more.
#[inline(always)]
fn whole(x: f32) -> i32 {
    const ROUND: f32 = 12_582_912.0;
    (x + ROUND)
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .cast_signed()
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the numbers of a code are exact")]
mod tests {
    use super::*;

    /// Every number that an N16 of a finite code can stand for, with its bytes.
    fn all_n16() -> impl Iterator<Item = (u8, i8, f32)> {
        let codes = (0..=u8::MAX).filter(|code| code & 0x7F != 0x7F);
        codes.flat_map(|code| {
            (i8::MIN..=i8::MAX).map(move |residual| (code, residual, join_n16(code, residual)))
        })
    }

    #[test]
    fn a_split_number_joins_to_itself() {
        // Codes differ where two name one number (a tie, a binade's edge); the
        // number does not, but where it would need a true 127.
        for (code, residual, x) in all_n16() {
            let (c, r) = split_n16(x);
            let joined = join_n16(c, r);
            let is_gap = joined != x;
            assert!(!is_gap || (join_n16(c, 127) - x).abs() == (x - join_n16(c, 126)).abs());
            if x != 0.0 && code & 0x7F == 0x7E && residual > -128 && residual < 127 {
                assert_eq!((c, r), (code, residual));
            }
            for bits in [0, 1, 0x8000, 0xFFFF] {
                let (c, r) = split_n16_stochastic(x, bits);
                assert!(is_gap || join_n16(c, r) == x, "{x} {bits:#x}");
            }
        }
    }

    #[test]
    fn every_n24_of_every_code_joins_to_itself() {
        for code in (0..=u8::MAX).filter(|code| code & 0x7F != 0x7F) {
            for residual in i16::MIN..=i16::MAX {
                let x = join_n24(code, residual);
                let (c, r) = split_n24(x);
                let joined = join_n24(c, r);
                let gap = (join_n24(c, 32767) - x).abs();
                assert!(joined == x || gap == (x - join_n24(c, 32766)).abs());
                let [high, low] = residual_bytes(residual);
                assert_eq!(residual_of(high, low), residual);
            }
        }
    }

    #[test]
    fn a_tie_takes_the_top_code_on_one_side_and_the_bottom_on_the_other() {
        // 1.0625 lies between 1 (even) and 1.125, 1.1875 between 1.125 and 1.25 (even).
        assert_eq!(split_n16(1.0625), (0x38, 127));
        assert_eq!(split_n16(1.1875), (0x3A, -128));
        assert_eq!(split_n24(-1.0625), (0xB8, -32768));
        assert_eq!(join_n16(0x38, 127), 1.0625);
        assert_eq!(join_n24(0x38, 32767), 1.0625);
        assert_eq!(join_n16(0xB8, -128), -1.0625);
    }

    #[test]
    fn every_bf16_down_to_the_smallest_code_is_kept() {
        // 2^-6 is the smallest normal code; down to 2^-9 a unit is still fine enough,
        // and below there is the gap before the top.
        for bits in 0..=u16::MAX {
            let x = f32::from_bits(u32::from(bits) << 16);
            if (2_f32.powi(-9)..=464.0).contains(&x.abs()) {
                let (code, residual) = split_n16(x);
                assert_eq!(join_n16(code, residual), x);
            }
            if (2_f32.powi(-18)..=464.0).contains(&x.abs()) {
                let (code, residual) = split_n24(x);
                assert_eq!(join_n24(code, residual), x);
            }
        }
    }

    #[test]
    fn nan_stays_nan() {
        for nan in [f32::NAN, -f32::NAN] {
            let (code, residual) = split_n16(nan);
            assert!(join_n16(code, residual).is_nan());
            let (code, residual) = split_n16_stochastic(nan, 77);
            assert!(join_n16(code, residual).is_nan());
            let (code, residual) = split_n24(nan);
            assert!(join_n24(code, residual).is_nan());
        }
    }

    #[test]
    fn stochastic_rounding_is_right_in_the_mean() {
        // Over all 2^16 bits the mean is the number, also in the gap before the top.
        for x in [1.000_01_f32, 1.03, -1.03, 1.061, 1.062_3, 0.004_1, -200.777] {
            let sum: f64 = (0..=u16::MAX)
                .map(|bits| {
                    let (code, residual) = split_n16_stochastic(x, bits);
                    f64::from(join_n16(code, residual))
                })
                .sum();
            let (code, _) = split_n16(x);
            let unit = f64::from(join_n16(code, 1) - join_n16(code, 0));
            let error = (sum / 65536.0 - f64::from(x)).abs();
            assert!(error < unit / 30000.0, "{x}: {error} of {unit}");
        }
    }

    #[test]
    fn nearest_is_within_half_a_unit_but_in_the_gap() {
        for step in 0..200_000 {
            let x = f32::from_bits(0x3800_0000 + step * 1009).min(464.0);
            let (code, residual) = split_n16(x);
            let unit = join_n16(code, 1) - join_n16(code, 0);
            let bound = if residual >= 126 { unit } else { unit / 2.0 };
            assert!((join_n16(code, residual) - x).abs() <= bound, "{x}");
        }
    }
}
