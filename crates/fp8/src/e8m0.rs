//! E8M0: a byte that is a power of two, 2^(byte - 127), or NaN (255).
//!
//! Byte 0 is 2^-127, a subnormal of f32: shifting it into the exponent would
//! give 0.

/// The power of two of a byte.
#[inline(always)]
pub fn decode_e8m0(byte: u8) -> f32 {
    let bits = match byte {
        0 => 0x0040_0000,
        255 => 0x7FC0_0000,
        _ => u32::from(byte) << 23,
    };
    f32::from_bits(bits)
}

/// The byte of the smallest power of two that is not below `x`.
///
/// What is no positive number has none and becomes NaN, as does what lies above
/// 2^127.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "at most 255")]
pub fn encode_e8m0(x: f32) -> u8 {
    let bits = x.to_bits();
    if !(x > 0.0 && x.is_finite()) {
        return 255;
    }
    let exponent = (bits >> 23) as u8;
    if exponent == 0 {
        // Up to 2^-127, then up to 2^-126.
        return u8::from(bits > 0x0040_0000);
    }
    exponent + u8::from(bits & 0x007F_FFFF != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        for byte in 0..=u8::MAX {
            assert_eq!(encode_e8m0(decode_e8m0(byte)), byte);
        }
    }

    #[test]
    fn a_number_between_powers_goes_up() {
        let check = |x: f32, byte| assert_eq!(encode_e8m0(x), byte, "{x}");
        check(1.5, 128);
        check(f32::from_bits(1), 0);
        check(f32::from_bits(0x0040_0001), 1);
        check(f32::MAX, 255);
        for not_positive in [0.0, -0.0, -1.0, f32::INFINITY, f32::NAN] {
            check(not_positive, 255);
        }
    }
}
