//! Stored floats to f32 and back: bf16, f16, f32 and f64, a slice at a time.
//!
//! Every rounding (f32 to a narrower dtype, f64 to f32) is to nearest, ties to
//! even; all else is exact.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::{Dtype, cast, cast_mut};

/// A dtype that weights are not stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("dtype {0} cannot be read as weights, expected F32, BF16, F16 or F64")]
pub struct NotAFloat(pub Dtype);

/// Brings stored floats to f32: exact but for f64, which is rounded.
///
/// # Panics
///
/// If `stored` does not hold exactly `wide.len()` aligned elements.
pub fn widen(dtype: Dtype, stored: &[u8], wide: &mut [f32]) -> Result<(), NotAFloat> {
    match dtype {
        Dtype::F32 => wide.copy_from_slice(aligned(cast(stored))),
        Dtype::BF16 => widen_bf16(aligned(cast(stored)), wide),
        Dtype::F16 => aligned::<&[f16]>(cast(stored)).convert_to_f32_slice(wide),
        Dtype::F64 => round_to_f32(aligned(cast(stored)), wide),
        other => return Err(NotAFloat(other)),
    }
    Ok(())
}

/// Brings f32 to stored floats, rounded where they are narrower.
///
/// # Panics
///
/// If `stored` does not hold exactly `wide.len()` aligned elements.
pub fn narrow(dtype: Dtype, wide: &[f32], stored: &mut [u8]) -> Result<(), NotAFloat> {
    match dtype {
        Dtype::F32 => aligned::<&mut [f32]>(cast_mut(stored)).copy_from_slice(wide),
        Dtype::BF16 => narrow_bf16(wide, aligned(cast_mut(stored))),
        Dtype::F16 => aligned::<&mut [f16]>(cast_mut(stored)).convert_from_f32_slice(wide),
        Dtype::F64 => {
            let stored = aligned::<&mut [f64]>(cast_mut(stored));
            assert_eq!(stored.len(), wide.len(), "as many elements on both sides");
            for (stored, &wide) in stored.iter_mut().zip(wide) {
                *stored = f64::from(wide);
            }
        }
        other => return Err(NotAFloat(other)),
    }
    Ok(())
}

/// Rounds stored floats that f32 cannot hold to what [`widen`] makes of them, in
/// place, so that they are the bytes that [`narrow`] gives back. Gives whether any
/// could have changed.
///
/// # Panics
///
/// If `stored` does not hold aligned elements.
pub fn round_stored(dtype: Dtype, stored: &mut [u8]) -> bool {
    if dtype != Dtype::F64 {
        return false;
    }
    let mut wide = [0.0];
    for stored in aligned::<&mut [f64]>(cast_mut(stored)) {
        round_to_f32(&[*stored], &mut wide);
        *stored = f64::from(wide[0]);
    }
    true
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "`as` rounds to nearest, ties to even, which is what is wanted"
)]
fn round_to_f32(stored: &[f64], wide: &mut [f32]) {
    assert_eq!(stored.len(), wide.len(), "as many elements on both sides");
    for (wide, &stored) in wide.iter_mut().zip(stored) {
        *wide = stored as f32;
    }
}

/// The upper half of an f32 is a bf16. Without a branch, so that it becomes vector
/// instructions: twice as fast as the loop of the `half` crate.
fn widen_bf16(stored: &[u16], wide: &mut [f32]) {
    assert_eq!(stored.len(), wide.len(), "as many elements on both sides");
    for (wide, &stored) in wide.iter_mut().zip(stored) {
        *wide = f32::from_bits(u32::from(stored) << 16);
    }
}

/// To nearest, ties to even. A NaN keeps the payload that fits, and stays a NaN.
fn narrow_bf16(wide: &[f32], stored: &mut [u16]) {
    assert_eq!(stored.len(), wide.len(), "as many elements on both sides");
    for (stored, wide) in stored.iter_mut().zip(wide) {
        let bits = wide.to_bits();
        let upper = bits >> 16;
        let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
        let quiet = if upper << 25 == 0 { 0x40 } else { 0 };
        let rounded = bits.wrapping_add(0x7fff + (upper & 1)) >> 16;
        let chosen = if is_nan { upper | quiet } else { rounded };
        *stored = (chosen & 0xffff) as u16;
    }
}

fn aligned<T>(seen: Result<T, crate::NotAligned>) -> T {
    seen.expect("staging buffers are aligned and hold whole elements")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::as_bytes;

    #[test]
    fn every_16_bit_float_survives_the_way_there_and_back() {
        let codes: Vec<u16> = (0..=u16::MAX).collect();
        for dtype in [Dtype::BF16, Dtype::F16] {
            let mut wide = vec![0.0; codes.len()];
            widen(dtype, as_bytes(&codes), &mut wide).unwrap();
            let mut back = vec![0_u16; codes.len()];
            narrow(dtype, &wide, crate::as_bytes_mut(&mut back)).unwrap();
            for ((&code, &wide), &back) in codes.iter().zip(&wide).zip(&back) {
                // F16's NaN become quiet ones.
                let is_same = code == back || (dtype == Dtype::F16 && wide.is_nan());
                assert!(is_same, "{dtype} {code:#x}");
            }
        }
    }

    #[test]
    fn bf16_is_rounded_as_the_half_crate_rounds_it() {
        // Every upper half with lower halves around a tie and at random.
        for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234, 0xbeef] {
            let wide: Vec<f32> = (0..=u16::MAX)
                .map(|upper| f32::from_bits(u32::from(upper) << 16 | lower))
                .collect();
            let mut stored = vec![0_u16; wide.len()];
            narrow(Dtype::BF16, &wide, crate::as_bytes_mut(&mut stored)).unwrap();
            for (wide, stored) in wide.iter().zip(stored) {
                let (expected, found) =
                    (half::bf16::from_f32(*wide), half::bf16::from_bits(stored));
                let both_nan = expected.is_nan() && found.is_nan();
                assert!(
                    both_nan || expected.to_bits() == stored,
                    "{:#x}",
                    wide.to_bits()
                );
            }
        }
    }

    #[test]
    fn bf16_rounds_ties_to_even() {
        let wide = [f32::from_bits(0x3f80_8000), f32::from_bits(0x3f81_8000)];
        let mut stored = [0_u16; 2];
        narrow(Dtype::BF16, &wide, crate::as_bytes_mut(&mut stored)).unwrap();
        assert_eq!(stored, [0x3f80, 0x3f82]);
    }

    #[test]
    fn f64_is_rounded_to_f32_and_comes_back_as_that_f32() {
        let half_ulp = f64::from(f32::EPSILON) / 2.0;
        let stored = [0.1, 1.0 + half_ulp, -f64::MAX, f64::NAN, -0.0, 1e-46];
        let mut wide = [0.0; 6];
        widen(Dtype::F64, as_bytes(&stored), &mut wide).unwrap();
        assert_eq!(wide[..3], [0.1, 1.0, f32::NEG_INFINITY]);
        assert!(wide[3].is_nan() && wide[4].is_sign_negative() && wide[5] == 0.0);
        let mut back = [0.0_f64; 6];
        narrow(Dtype::F64, &wide, crate::as_bytes_mut(&mut back)).unwrap();
        assert_eq!(back[..2], [f64::from(0.1_f32), 1.0]);
        assert!(back[3].is_nan());
        let mut rounded = stored;
        round_stored(Dtype::F64, crate::as_bytes_mut(&mut rounded));
        assert_eq!(as_bytes(&rounded), as_bytes(&back));
    }

    #[test]
    fn an_integer_is_not_a_weight() {
        assert_eq!(
            widen(Dtype::I32, &[0; 4], &mut [0.0]),
            Err(NotAFloat(Dtype::I32))
        );
    }
}
