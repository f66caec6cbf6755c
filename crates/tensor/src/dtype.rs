//! The element types of the safetensors format: their names and sizes.

use std::fmt;
use std::str::FromStr;

/// The type of a tensor's elements, as safetensors names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(
    non_camel_case_types,
    reason = "the names are those of the file format"
)]
pub enum Dtype {
    /// Truth value, one byte.
    Bool,
    /// 4-bit float E2M1, two to a byte.
    F4,
    /// 6-bit float E2M3.
    F6_E2M3,
    /// 6-bit float E3M2.
    F6_E3M2,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// 8-bit float 1-5-2.
    F8_E5M2,
    /// 8-bit float 1-4-3.
    F8_E4M3,
    /// 8-bit exponent without sign or mantissa.
    F8_E8M0,
    /// 8-bit float 1-4-3, bias 8, no infinity, one NaN.
    F8_E4M3FNUZ,
    /// 8-bit float 1-5-2, bias 16, no infinity, one NaN.
    F8_E5M2FNUZ,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 16-bit integer.
    U16,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// IEEE single precision.
    F32,
    /// Complex of two f32.
    C64,
    /// IEEE double precision.
    F64,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
}

/// Every dtype with its name in a file and its bits an element.
const TABLE: [(Dtype, &str, u64); 22] = [
    (Dtype::Bool, "BOOL", 8),
    (Dtype::F4, "F4", 4),
    (Dtype::F6_E2M3, "F6_E2M3", 6),
    (Dtype::F6_E3M2, "F6_E3M2", 6),
    (Dtype::U8, "U8", 8),
    (Dtype::I8, "I8", 8),
    (Dtype::F8_E5M2, "F8_E5M2", 8),
    (Dtype::F8_E4M3, "F8_E4M3", 8),
    (Dtype::F8_E8M0, "F8_E8M0", 8),
    (Dtype::F8_E4M3FNUZ, "F8_E4M3FNUZ", 8),
    (Dtype::F8_E5M2FNUZ, "F8_E5M2FNUZ", 8),
    (Dtype::I16, "I16", 16),
    (Dtype::U16, "U16", 16),
    (Dtype::F16, "F16", 16),
    (Dtype::BF16, "BF16", 16),
    (Dtype::I32, "I32", 32),
    (Dtype::U32, "U32", 32),
    (Dtype::F32, "F32", 32),
    (Dtype::C64, "C64", 64),
    (Dtype::F64, "F64", 64),
    (Dtype::I64, "I64", 64),
    (Dtype::U64, "U64", 64),
];

impl Dtype {
    /// All dtypes of the format.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|&(dtype, _, _)| dtype)
    }

    /// Bits of one element: 4 and 6 for the sub-byte types.
    pub fn bits(self) -> u64 {
        self.row().2
    }

    /// The name in a safetensors header.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Bytes of one element, or `None` for the sub-byte types.
    pub fn size_bytes(self) -> Option<usize> {
        let bits = self.bits();
        if bits.is_multiple_of(8) {
            usize::try_from(bits / 8).ok()
        } else {
            None
        }
    }

    fn row(self) -> &'static (Self, &'static str, u64) {
        // The table is in the order of the enum; a test holds it so.
        &TABLE[self as usize]
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A dtype name that the format does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype `{0}`")]
pub struct UnknownDtype(pub String);

impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(name: &str) -> Result<Self, UnknownDtype> {
        TABLE
            .iter()
            .find(|row| row.1 == name)
            .map(|row| row.0)
            .ok_or_else(|| UnknownDtype(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (index, &(dtype, name, bits)) in TABLE.iter().enumerate() {
            assert_eq!(dtype as usize, index);
            assert_eq!(dtype.name(), name);
            assert_eq!(dtype.bits(), bits);
            assert_eq!(name.parse(), Ok(dtype));
        }
    }

    #[test]
    fn a_lower_case_name_is_unknown() {
        assert_eq!("f32".parse::<Dtype>(), Err(UnknownDtype("f32".into())));
    }

    #[test]
    fn sub_byte_types_have_no_whole_size() {
        assert_eq!(Dtype::F4.size_bytes(), None);
        assert_eq!(Dtype::BF16.size_bytes(), Some(2));
    }
}
