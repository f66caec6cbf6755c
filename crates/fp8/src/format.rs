//! The four 8-bit float formats: encode and decode.
//!
//! ```text
//!            layout  bias  max    min normal  min subnormal  infinity  NaN
//! E4M3       1-4-3     7   448    2^-6        2^-9           none      7F FF
//! E5M2       1-5-2    15   57344  2^-14       2^-16          7C FC     7D-7F FD-FF
//! E4M3FNUZ   1-4-3     8   240    2^-7        2^-10          none      80
//! E5M2FNUZ   1-5-2    16   57344  2^-15       2^-17          none      80
//! ```
//!
//! An encoder rounds to nearest, ties to even, keeps subnormals, and saturates:
//! beyond the largest number, infinity included, lies the largest number. NaN
//! stays NaN. With `a` the magnitude's bits:
//!
//! ```text
//! normal     (a + half an ulp - 1 + its odd bit) >> shift, less the bias
//! subnormal  the low bits of a + 2^(24 - bias - mantissa_bits): the addition rounds
//! ```
//!
//! Never cast by way of f16 or bf16: rounding twice changes up to 3 % of the codes.

/// Bits of the magnitude.
const MAGNITUDE: u32 = 0x7FFF_FFFF;

/// Bits of the f32 infinity; what is above is NaN.
const INFINITY: u32 = 0x7F80_0000;

/// An 8-bit float format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// 1-4-3 without infinities: weights, activations, gradients.
    E4M3,
    /// 1-5-2 with infinities: gradients, if chosen.
    E5M2,
    /// 1-4-3, bias 8, one NaN and one zero.
    E4M3Fnuz,
    /// 1-5-2, bias 16, one NaN and one zero.
    E5M2Fnuz,
}

/// What is particular to a format.
#[derive(Debug, Clone, Copy)]
struct Layout {
    mantissa_bits: u32,
    bias: u32,
    /// The code of the largest number.
    max_code: u32,
    /// The code that a number beyond it becomes where nothing saturates.
    overflow: u32,
    /// The code of NaN.
    nan: u32,
    /// Whether there is a -0, and a NaN of each sign.
    is_signed_zero: bool,
}

const E4M3: Layout = Layout {
    mantissa_bits: 3,
    bias: 7,
    max_code: 0x7E,
    overflow: 0x7F,
    nan: 0x7F,
    is_signed_zero: true,
};

const E5M2: Layout = Layout {
    mantissa_bits: 2,
    bias: 15,
    max_code: 0x7B,
    overflow: 0x7C,
    nan: 0x7F,
    is_signed_zero: true,
};

const E4M3_FNUZ: Layout = Layout {
    mantissa_bits: 3,
    bias: 8,
    max_code: 0x7F,
    overflow: 0x80,
    nan: 0x80,
    is_signed_zero: false,
};

const E5M2_FNUZ: Layout = Layout {
    mantissa_bits: 2,
    bias: 16,
    max_code: 0x7F,
    overflow: 0x80,
    nan: 0x80,
    is_signed_zero: false,
};

impl Format {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::E4M3, Self::E5M2, Self::E4M3Fnuz, Self::E5M2Fnuz];

    /// The largest number.
    pub fn max_finite(self) -> f32 {
        magnitude(self.layout(), self.layout().max_code)
    }

    /// The nearest number's code; what is too large becomes the largest.
    #[inline(always)]
    pub fn encode(self, x: f32) -> u8 {
        encode(self.layout(), x)
    }

    /// The nearest number's code; what is too large becomes infinity, or NaN
    /// in a format that has no infinity. For comparison with other programs.
    #[inline(always)]
    pub fn encode_unsaturated(self, x: f32) -> u8 {
        encode_unsaturated(self.layout(), x)
    }

    /// The number of a code.
    #[inline(always)]
    pub fn decode(self, code: u8) -> f32 {
        let layout = self.layout();
        let code = u32::from(code);
        if layout.is_signed_zero {
            signed(magnitude(layout, code & 0x7F), code)
        } else if code == layout.nan {
            f32::NAN
        } else {
            signed(magnitude(layout, code & 0x7F), code)
        }
    }

    #[inline(always)]
    const fn layout(self) -> Layout {
        match self {
            Self::E4M3 => E4M3,
            Self::E5M2 => E5M2,
            Self::E4M3Fnuz => E4M3_FNUZ,
            Self::E5M2Fnuz => E5M2_FNUZ,
        }
    }
}

/// The nearest E4M3 code, saturating: [`Format::encode`] of the one format that
/// inner loops use.
#[inline(always)]
pub fn encode_e4m3(x: f32) -> u8 {
    encode(E4M3, x)
}

/// The nearest E5M2 code, saturating.
#[inline(always)]
pub fn encode_e5m2(x: f32) -> u8 {
    encode(E5M2, x)
}

/// The number of an E4M3 code.
#[inline(always)]
pub fn decode_e4m3(code: u8) -> f32 {
    let code = u32::from(code);
    signed(magnitude(E4M3, code & 0x7F), code)
}

#[inline(always)]
fn encode(layout: Layout, x: f32) -> u8 {
    let bits = x.to_bits();
    let a = bits & MAGNITUDE;
    let max = magnitude_bits(layout, layout.max_code);
    let code = rounded(layout, a.min(max));
    finish(layout, code, a, bits)
}

#[inline(always)]
fn encode_unsaturated(layout: Layout, x: f32) -> u8 {
    let bits = x.to_bits();
    let a = bits & MAGNITUDE;
    let code = rounded(layout, a);
    let code = if code > layout.max_code {
        layout.overflow
    } else {
        code
    };
    finish(layout, code, a, bits)
}

/// The code of a magnitude, which may lie above the largest.
#[inline(always)]
fn rounded(layout: Layout, a: u32) -> u32 {
    let Layout {
        mantissa_bits,
        bias,
        ..
    } = layout;
    let shift = 23 - mantissa_bits;
    let half = (1 << (shift - 1)) - 1;
    let normal = (a.wrapping_add(half + ((a >> shift) & 1)) >> shift)
        .wrapping_sub((127 - bias) << mantissa_bits);
    // The spacing at this number is that of the format's subnormals.
    let magic = (127 + 24 - bias - mantissa_bits) << 23;
    let subnormal = (f32::from_bits(a) + f32::from_bits(magic))
        .to_bits()
        .wrapping_sub(magic);
    let min_normal = (128 - bias) << 23;
    if a < min_normal { subnormal } else { normal }
}

/// Adds NaN and sign to a code.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "codes have 8 bits")]
fn finish(layout: Layout, code: u32, a: u32, bits: u32) -> u8 {
    let code = if a > INFINITY { layout.nan } else { code };
    let sign = (bits >> 24) & 0x80;
    let sign = if layout.is_signed_zero || code != 0 {
        sign
    } else {
        0
    };
    (code | sign) as u8
}

#[inline(always)]
fn signed(magnitude: f32, code: u32) -> f32 {
    f32::from_bits(magnitude.to_bits() | ((code & 0x80) << 24))
}

#[inline(always)]
fn magnitude(layout: Layout, code: u32) -> f32 {
    f32::from_bits(magnitude_bits(layout, code))
}

/// The f32 of a code without its sign.
#[inline(always)]
const fn magnitude_bits(layout: Layout, code: u32) -> u32 {
    let Layout {
        mantissa_bits,
        bias,
        ..
    } = layout;
    let normal = (code << (23 - mantissa_bits)) + ((127 - bias) << 23);
    // A whole number of the smallest subnormal; small enough that f32 has it exactly.
    #[expect(clippy::cast_precision_loss, reason = "below 2^3")]
    let whole = (code & ((1 << mantissa_bits) - 1)) as f32;
    let subnormal = (whole * f32::from_bits((128 - bias - mantissa_bits) << 23)).to_bits();
    let finite = if code >> mantissa_bits == 0 {
        subnormal
    } else {
        normal
    };
    let is_beyond = code > layout.max_code;
    let is_infinity = code == layout.overflow && layout.overflow != layout.nan;
    if !is_beyond {
        finite
    } else if is_infinity {
        INFINITY
    } else {
        0x7FC0_0000
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "codes stand for exact numbers")]
mod tests {
    use super::*;

    #[test]
    fn the_largest_numbers_are_those_of_the_formats() {
        let largest = Format::ALL.map(Format::max_finite);
        assert_eq!(largest, [448.0, 57344.0, 240.0, 57344.0]);
    }

    #[test]
    fn every_number_encodes_to_its_own_code() {
        for format in Format::ALL {
            for code in 0..=u8::MAX {
                let x = format.decode(code);
                if x.is_finite() {
                    assert_eq!(format.encode(x), code, "{format:?}");
                    assert_eq!(format.encode_unsaturated(x), code, "{format:?}");
                } else {
                    assert!(format.decode(format.encode_unsaturated(x)).to_bits() == x.to_bits());
                }
            }
        }
    }

    #[test]
    fn only_beyond_464_does_a_cast_that_does_not_saturate_give_nan() {
        let next = f32::from_bits(464_f32.to_bits() + 1);
        let unsaturated = |x| Format::E4M3.encode_unsaturated(x);
        assert_eq!([unsaturated(464.0), unsaturated(next)], [0x7E, 0x7F]);
        assert_eq!([unsaturated(-464.0), unsaturated(-next)], [0xFE, 0xFF]);
        assert_eq!(Format::E4M3.encode(f32::INFINITY), 0x7E);
        assert_eq!(Format::E5M2.encode_unsaturated(61440.0), 0x7C);
        assert_eq!(Format::E5M2.encode(f32::NEG_INFINITY), 0xFB);
    }

    #[test]
    fn a_negative_zero_keeps_its_sign_where_there_is_one() {
        let zeros = Format::ALL.map(|format| format.encode(-0.0));
        assert_eq!(zeros, [0x80, 0x80, 0, 0]);
        let tiny = Format::ALL.map(|format| format.encode(-1e-30));
        assert_eq!(tiny, [0x80, 0x80, 0, 0]);
    }
}
