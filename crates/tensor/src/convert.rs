//! Stored floats to f32 and back: bf16, f16 and f32, a slice at a time.
//!
//! Widening is exact. Narrowing rounds to nearest, ties to even.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::{Dtype, cast, cast_mut};

/// A dtype that weights are not stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("dtype {0} cannot be read as weights, expected F32, BF16 or F16")]
pub struct NotAFloat(pub Dtype);

/// Widens stored floats to f32.
///
/// # Panics
///
/// If `stored` does not hold exactly `wide.len()` aligned elements.
pub fn widen(dtype: Dtype, stored: &[u8], wide: &mut [f32]) -> Result<(), NotAFloat> {
    match dtype {
        Dtype::F32 => wide.copy_from_slice(aligned(cast(stored))),
        Dtype::BF16 => aligned::<&[bf16]>(cast(stored)).convert_to_f32_slice(wide),
        Dtype::F16 => aligned::<&[f16]>(cast(stored)).convert_to_f32_slice(wide),
        other => return Err(NotAFloat(other)),
    }
    Ok(())
}

/// Rounds f32 to stored floats.
///
/// # Panics
///
/// If `stored` does not hold exactly `wide.len()` aligned elements.
pub fn narrow(dtype: Dtype, wide: &[f32], stored: &mut [u8]) -> Result<(), NotAFloat> {
    match dtype {
        Dtype::F32 => aligned::<&mut [f32]>(cast_mut(stored)).copy_from_slice(wide),
        Dtype::BF16 => aligned::<&mut [bf16]>(cast_mut(stored)).convert_from_f32_slice(wide),
        Dtype::F16 => aligned::<&mut [f16]>(cast_mut(stored)).convert_from_f32_slice(wide),
        other => return Err(NotAFloat(other)),
    }
    Ok(())
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
                assert!(code == back || wide.is_nan(), "{dtype} {code:#x}");
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
    fn an_integer_is_not_a_weight() {
        assert_eq!(
            widen(Dtype::I32, &[0; 4], &mut [0.0]),
            Err(NotAFloat(Dtype::I32))
        );
    }
}
