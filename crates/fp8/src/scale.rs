//! The power of two that a block of numbers is divided by before the cast.
//!
//! ```text
//! amax       largest magnitude of the block; a NaN is larger than any number
//! scale_inv  2^k, the smallest with amax / max_finite <= 2^k; k in [-126, 120]
//! value      code * scale_inv
//! ```
//!
//! A block of zeros has `scale_inv` 1 and codes 0, so nothing divides by zero. A
//! block that holds NaN or infinity has the `scale_inv` NaN, and so decodes to
//! NaN: a gradient that has diverged must show, not vanish into a plausible
//! scale.

use crate::{Format, decode_e8m0};

/// The largest magnitude, or NaN if there is one.
///
/// Of numbers without sign the order of their bits is their order, and NaN comes
/// last.
#[inline(always)]
pub fn amax(values: &[f32]) -> f32 {
    let magnitudes = values.iter().map(|x| x.to_bits() & 0x7FFF_FFFF);
    f32::from_bits(magnitudes.fold(0, u32::max))
}

/// How far a block's largest code stays below the largest number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Headroom {
    /// As close as a power of two allows.
    #[default]
    None,
    /// Twice as far, so that a weight may grow while its scale stays.
    Binade,
}

/// A block's `scale_inv`: a power of two, stored as E8M0, or NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleInv(u8);

impl ScaleInv {
    /// 1.
    pub const ONE: Self = Self(127);

    /// Of a block that cannot be scaled, and of a master's tile that is kept as
    /// bf16: whoever decodes it by mistake gets NaN, not a plausible number.
    pub const NAN: Self = Self(255);

    /// The `scale_inv` of a block with this amax.
    #[inline(always)]
    pub fn of_amax(amax: f32, format: Format, headroom: Headroom) -> Self {
        if !amax.is_finite() {
            return Self::NAN;
        }
        if amax == 0.0 {
            return Self::ONE;
        }
        Self::of_exponent(needed_exponent(amax, format) + i32::from(headroom == Headroom::Binade))
    }

    /// The `scale_inv` 2^k, with k moved into [-126, 120].
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and 247"
    )]
    pub fn of_exponent(k: i32) -> Self {
        Self((k.clamp(-126, 120) + 127) as u8)
    }

    /// The `scale_inv` of a stored byte.
    #[inline(always)]
    pub fn from_e8m0(byte: u8) -> Self {
        Self(byte)
    }

    /// The byte to store.
    #[inline(always)]
    pub fn to_e8m0(self) -> u8 {
        self.0
    }

    /// The number that codes are multiplied by.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        decode_e8m0(self.0)
    }

    /// The number that values are multiplied by before the cast: 1 / `scale_inv`.
    #[inline(always)]
    pub fn scale(self) -> f32 {
        if self.0 == 255 {
            return f32::NAN;
        }
        decode_e8m0(254 - self.0)
    }

    /// The power: `scale_inv` is 2^k. `None` of NaN.
    #[inline(always)]
    pub fn exponent(self) -> Option<i32> {
        (self != Self::NAN).then(|| i32::from(self.0) - 127)
    }

    /// Whether this is NaN.
    #[inline(always)]
    pub fn is_nan(self) -> bool {
        self == Self::NAN
    }

    /// The `scale_inv` of a tile of a master whose amax is now `amax`.
    ///
    /// It stays while the largest number fits and lies in the binade that the
    /// headroom left, or in the one above: a maximum that sways about a power of
    /// two does not make a tile go to and fro.
    #[inline(always)]
    #[must_use]
    pub fn updated(self, amax: f32, headroom: Headroom) -> Self {
        let next = Self::of_amax(amax, Format::E4M3, headroom);
        let (Some(present), false) = (self.exponent(), next.is_nan()) else {
            return next;
        };
        if amax == 0.0 {
            return self;
        }
        let needed = needed_exponent(amax, Format::E4M3).clamp(-126, 120);
        let room = i32::from(headroom == Headroom::Binade);
        if (present - room..=present).contains(&needed) {
            self
        } else {
            next
        }
    }
}

/// The smallest k with `amax / max_finite <= 2^k`, of a positive number.
#[inline(always)]
fn needed_exponent(amax: f32, format: Format) -> i32 {
    let max = format.max_finite().to_bits();
    let (amax, mantissa) = (amax.to_bits(), 0x007F_FFFF);
    let exponent = |bits: u32| (bits >> 23).cast_signed();
    // A subnormal has no leading one, but its k is clamped whatever it holds.
    exponent(amax) - exponent(max) + i32::from(amax & mantissa > max & mantissa)
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "powers of two are exact")]
mod tests {
    use super::*;

    #[track_caller]
    fn check(amax: f32, format: Format, expected: f32) {
        let scale_inv = ScaleInv::of_amax(amax, format, Headroom::None);
        assert_eq!(scale_inv.to_f32(), expected, "{amax}");
    }

    #[test]
    fn it_is_the_smallest_power_that_is_enough() {
        check(448.0, Format::E4M3, 1.0);
        check(f32::from_bits(448_f32.to_bits() + 1), Format::E4M3, 2.0);
        check(224.0, Format::E4M3, 0.5);
        check(57344.0, Format::E5M2, 1.0);
        check(240.5, Format::E4M3Fnuz, 2.0);
        check(0.0, Format::E4M3, 1.0);
        check(f32::MAX, Format::E4M3, 2_f32.powi(120));
        check(f32::MIN_POSITIVE, Format::E4M3, 2_f32.powi(-126));
        check(f32::from_bits(1), Format::E4M3, 2_f32.powi(-126));
    }

    #[test]
    fn it_is_the_smallest_for_every_magnitude_of_a_bf16() {
        for bits in 1..0x7F80_u32 {
            let amax = f32::from_bits(bits << 16);
            let scale_inv = ScaleInv::of_amax(amax, Format::E4M3, Headroom::None);
            let k = scale_inv.exponent().unwrap();
            let ratio = f64::from(amax) / 448.0;
            assert!(ratio <= f64::from(k).exp2());
            assert!(k == -126 || ratio > f64::from(k - 1).exp2());
            let roomy = ScaleInv::of_amax(amax, Format::E4M3, Headroom::Binade);
            let roomy = roomy.exponent().unwrap();
            assert!(roomy == (k + 1).min(120) || k == -126 && roomy == k);
            assert_eq!(scale_inv.scale() * scale_inv.to_f32(), 1.0);
        }
    }

    #[test]
    fn nan_and_infinity_give_no_plausible_scale() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let scale_inv = ScaleInv::of_amax(amax(&[1.0, bad, 3.0]), Format::E4M3, Headroom::None);
            assert!(scale_inv.is_nan());
            assert!(scale_inv.to_f32().is_nan() && scale_inv.scale().is_nan());
        }
    }

    #[test]
    fn amax_takes_every_element_of_every_length() {
        for len in 0..100 {
            for place in 0..len {
                let mut values = vec![1.0; len];
                values[place] = -2.0;
                assert_eq!(amax(&values), 2.0);
                values[place] = f32::NAN;
                assert!(amax(&values).is_nan());
            }
        }
        assert_eq!(amax(&[]), 0.0);
    }

    #[test]
    fn a_scale_stays_within_its_headroom() {
        let start = ScaleInv::of_amax(400.0, Format::E4M3, Headroom::Binade);
        let next = |amax| start.updated(amax, Headroom::Binade).to_f32();
        assert_eq!(start.to_f32(), 2.0);
        assert_eq!([400.0, 448.0, 896.0, 225.0].map(next), [2.0; 4]);
        assert_eq!(next(897.0), 8.0);
        assert_eq!(next(224.0), 1.0);
        assert_eq!(next(0.0), 2.0);
        assert!(next(f32::NAN).is_nan());
        let nan = ScaleInv::NAN.updated(400.0, Headroom::Binade);
        assert_eq!(nan, start);
    }
}
