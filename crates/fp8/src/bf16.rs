//! Masters whose upper bytes are a bf16: with nothing below it and stochastic
//! rounding (`bf16-lean`), or with eight more bits and stochastic rounding of them.
//!
//! ```text
//! bf16 + 8 bits   w as integer bits = (high << 16) + (low << 8),  low signed
//! ```
//!
//! so `high` is the nearest bf16, ties away from zero, and computes. A bf16 is
//! the upper half of an f32; planes hold it little-endian.

/// Bits of a magnitude.
const MAGNITUDE: u32 = 0x7FFF_FFFF;

/// Bits of infinity; what is above is NaN.
const INFINITY: u32 = 0x7F80_0000;

/// bf16 bits of NaN.
const NAN: u32 = 0x7FC0;

/// The f32 of a bf16's bits.
#[inline(always)]
pub fn widen(bf16: u16) -> f32 {
    f32::from_bits(u32::from(bf16) << 16)
}

/// The bf16 below or above, as often as 16 random bits say.
///
/// Exact in the mean: the bits that fall away are 16. What is finite stays so.
#[inline(always)]
pub fn round_stochastic(x: f32, bits: u16) -> u16 {
    rounded(x, u32::from(bits))
}

/// The nearest bf16, ties to even. What is finite stays so.
#[inline(always)]
pub fn round_nearest(x: f32) -> u16 {
    rounded(x, 0x7FFF + ((x.to_bits() >> 16) & 1))
}

/// Splits `x`, rounded to 24 bits to nearest, into a bf16 and the eight bits
/// below. What is finite stays so, in both.
#[inline(always)]
pub fn split_plus8(x: f32) -> (u16, i8) {
    split(x, 0x7F + ((x.to_bits() >> 8) & 1))
}

/// The same, rounded up as often as 8 random bits say.
///
/// To nearest a weight of 1 would not move by steps below 2^-17.
#[inline(always)]
pub fn split_plus8_stochastic(x: f32, bits: u16) -> (u16, i8) {
    split(x, u32::from(bits) & 0xFF)
}

/// The magnitude plus what decides, cut to 24 bits, in two parts.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the bytes of a number")]
fn split(x: f32, addend: u32) -> (u16, i8) {
    let a = x.to_bits() & MAGNITUDE;
    let largest = if a < INFINITY { 0x7F_7F7F } else { 0x7F_8000 };
    let rounded = (a.wrapping_add(addend) >> 8).min(largest);
    let rounded = if a > INFINITY { 0x7F_C000 } else { rounded };
    let signed = rounded | ((x.to_bits() >> 8) & 0x80_0000);
    let high = signed.wrapping_add(0x80) >> 8;
    (high as u16, (signed as u8).cast_signed())
}

/// Joins what [`split_plus8`] split.
#[inline(always)]
pub fn join_plus8(high: u16, low: i8) -> f32 {
    f32::from_bits((u32::from(high) << 16).wrapping_add_signed(i32::from(low) << 8))
}

/// The magnitude plus what decides, cut; no infinity of a number, NaN of NaN.
#[inline(always)]
fn rounded(x: f32, addend: u32) -> u16 {
    let a = x.to_bits() & MAGNITUDE;
    let largest = if a < INFINITY { 0x7F7F } else { 0x7F80 };
    let rounded = (a.wrapping_add(addend) >> 16).min(largest);
    let rounded = if a > INFINITY { NAN } else { rounded };
    upper(x.to_bits() & !MAGNITUDE | rounded << 16)
}

#[inline(always)]
fn upper(bits: u32) -> u16 {
    (bits >> 16) as u16
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "widening is exact")]
mod tests {
    use super::*;

    #[test]
    fn every_bf16_is_kept_whatever_the_bits() {
        for bits in 0..=u16::MAX {
            let x = widen(bits);
            for random in [0, 1, 0x7FFF, 0xFFFF] {
                let back = round_stochastic(x, random);
                assert!(back == bits || x.is_nan() && widen(back).is_nan());
            }
            let (high, low) = split_plus8(x);
            assert!((high, low) == (bits, 0) || x.is_nan() && join_plus8(high, low).is_nan());
            assert!(round_nearest(x) == bits || x.is_nan() && widen(round_nearest(x)).is_nan());
        }
    }

    #[test]
    fn it_rounds_up_as_often_as_is_right() {
        let x = f32::from_bits(0x3F80_1234);
        let ups = (0..=u16::MAX).filter(|&bits| round_stochastic(x, bits) == 0x3F81);
        assert_eq!(ups.count(), 0x1234);
        let finer = f32::from_bits(0x3F80_0012);
        let up = f32::from_bits(0x3F80_0100);
        let split = |bits| split_plus8_stochastic(finer, bits);
        let ups = (0..=u16::MAX).filter(|&bits| {
            let (high, low) = split(bits);
            join_plus8(high, low) == up
        });
        assert_eq!(ups.count(), 0x1200);
        let downs = (0..=u16::MAX).filter(|&bits| round_stochastic(-x, bits) == 0xBF80);
        assert_eq!(downs.count(), 0x1_0000 - 0x1234);
    }

    #[test]
    fn what_is_finite_stays_finite() {
        for x in [f32::MAX, -f32::MAX] {
            assert!(widen(round_stochastic(x, 0xFFFF)).is_finite());
            assert!(widen(round_nearest(x)).is_finite());
            let (high, low) = split_plus8(x);
            assert!(join_plus8(high, low).is_finite());
        }
        for x in [f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(widen(round_stochastic(x, 0xFFFF)), x);
            let (high, low) = split_plus8(x);
            assert_eq!(join_plus8(high, low), x);
        }
        for nan in [f32::from_bits(0x7F80_0001), f32::from_bits(0xFFFF_FFFF)] {
            assert!(widen(round_stochastic(nan, 0xFFFF)).is_nan());
            assert!(widen(round_nearest(nan)).is_nan());
            let (high, low) = split_plus8(nan);
            assert!(join_plus8(high, low).is_nan());
        }
    }

    #[test]
    fn eight_more_bits_hold_every_number_of_24_bits() {
        // Up to the largest that has a finite bf16 above it.
        for top in (0..0x7F_7F80_u32).step_by(7) {
            for sign in [0, 0x80_0000] {
                let x = f32::from_bits((top | sign) << 8);
                let (high, low) = split_plus8(x);
                assert_eq!(join_plus8(high, low).to_bits(), x.to_bits());
            }
        }
    }

    #[test]
    fn the_rest_is_rounded_to_nearest() {
        for step in 0..100_000 {
            let x = f32::from_bits(0x3F80_0000 + step * 83);
            let (high, low) = split_plus8(x);
            let error = (join_plus8(high, low) - x).abs();
            assert!(error <= 2_f32.powi(-16), "{x}");
            assert_eq!(round_nearest(x), half::bf16::from_f32(x).to_bits());
        }
    }
}
