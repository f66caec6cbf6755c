//! The element types of GGUF files: their blocks, and the numbers in them.
//!
//! A row is cut into blocks of a fixed number of elements that share one or two
//! f16 scales. With `d` and `m` those scales and `q` an element's bits:
//!
//! ```text
//! Q8_0  34 bytes for 32   d, 32 signed bytes            d q
//! Q4_0  18 bytes for 32   d, 16 bytes                   d (q - 8)
//! Q4_1  20 bytes for 32   d, m, 16 bytes                d q + m
//! Q5_0  22 bytes for 32   d, u32 of fifth bits, 16      d (q - 16)
//! Q5_1  24 bytes for 32   d, m, u32 of fifth bits, 16   d q + m
//! ```
//!
//! Byte `i` of the 16 has element `i` in its lower four bits and element
//! `16 + i` in its upper four; bit `i` of the u32 is the fifth of element `i`.
//! The K types with blocks of 256 are in [`super_blocks`]. All sums are in f32
//! and in the order written, so that every reader gives the same bits.

use half::{bf16, f16};

use super::super_blocks;

/// How the elements of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(
    non_camel_case_types,
    missing_docs,
    reason = "the names are those of the file format, and the table above says what they are"
)]
#[non_exhaustive]
pub enum BlockType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

/// Type, code in a file, name, elements and bytes of a block.
const TABLE: [(BlockType, u32, &str, u64, u64); 13] = [
    (BlockType::F32, 0, "F32", 1, 4),
    (BlockType::F16, 1, "F16", 1, 2),
    (BlockType::BF16, 30, "BF16", 1, 2),
    (BlockType::Q4_0, 2, "Q4_0", 32, 18),
    (BlockType::Q4_1, 3, "Q4_1", 32, 20),
    (BlockType::Q5_0, 6, "Q5_0", 32, 22),
    (BlockType::Q5_1, 7, "Q5_1", 32, 24),
    (BlockType::Q8_0, 8, "Q8_0", 32, 34),
    (BlockType::Q2_K, 10, "Q2_K", 256, 84),
    (BlockType::Q3_K, 11, "Q3_K", 256, 110),
    (BlockType::Q4_K, 12, "Q4_K", 256, 144),
    (BlockType::Q5_K, 13, "Q5_K", 256, 176),
    (BlockType::Q6_K, 14, "Q6_K", 256, 210),
];

/// Types that are known and not read.
const OTHERS: [(u32, &str); 21] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

impl BlockType {
    /// Elements of any block divide this.
    pub const MAX_BLOCK_LEN: u64 = 256;

    /// The type with this code in a file, if it is read.
    pub fn of_code(code: u32) -> Option<Self> {
        let row = TABLE.iter().find(|row| row.1 == code);
        row.map(|row| row.0)
    }

    /// The name of the type with this code, read or not.
    pub fn name_of_code(code: u32) -> Option<&'static str> {
        let read = Self::of_code(code).map(Self::name);
        read.or_else(|| {
            let row = OTHERS.iter().find(|row| row.0 == code);
            row.map(|row| row.1)
        })
    }

    /// The names of all types that are read.
    pub(super) fn names() -> String {
        TABLE.map(|row| row.2).join(", ")
    }

    /// The name.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Elements of a block; 1 where each stands for itself.
    pub fn block_len(self) -> u64 {
        self.row().3
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> u64 {
        self.row().4
    }

    fn row(self) -> &'static (Self, u32, &'static str, u64, u64) {
        // The table is in the order of the enum; a test holds it so.
        &TABLE[self as usize]
    }

    /// Turns whole blocks into f32.
    ///
    /// # Panics
    ///
    /// If `stored` does not hold exactly the blocks of `wide.len()` elements.
    pub fn widen(self, stored: &[u8], wide: &mut [f32]) {
        let (len, bytes) = (self.block_len(), self.block_bytes());
        assert_eq!(
            (wide.len() as u64 % len, wide.len() as u64 / len * bytes),
            (0, stored.len() as u64),
            "blocks of {}",
            self.name()
        );
        match self {
            Self::F32 => each(stored, wide, |bits: [u8; 4]| f32::from_le_bytes(bits)),
            Self::F16 => each(stored, wide, f16_at),
            Self::BF16 => each(stored, wide, |bits: [u8; 2]| {
                bf16::from_le_bytes(bits).to_f32()
            }),
            Self::Q4_0 => blocks(stored, wide, q4_0),
            Self::Q4_1 => blocks(stored, wide, q4_1),
            Self::Q5_0 => blocks(stored, wide, q5_0),
            Self::Q5_1 => blocks(stored, wide, q5_1),
            Self::Q8_0 => blocks(stored, wide, q8_0),
            Self::Q2_K => blocks(stored, wide, super_blocks::q2_k),
            Self::Q3_K => blocks(stored, wide, super_blocks::q3_k),
            Self::Q4_K => blocks(stored, wide, super_blocks::q4_k),
            Self::Q5_K => blocks(stored, wide, super_blocks::q5_k),
            Self::Q6_K => blocks(stored, wide, super_blocks::q6_k),
        }
    }
}

fn each<const N: usize>(stored: &[u8], wide: &mut [f32], element: impl Fn([u8; N]) -> f32) {
    let (elements, _) = stored.as_chunks::<N>();
    for (wide, &bits) in wide.iter_mut().zip(elements) {
        *wide = element(bits);
    }
}

fn blocks<const BYTES: usize, const LEN: usize>(
    stored: &[u8],
    wide: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (stored, _) = stored.as_chunks::<BYTES>();
    let (wide, _) = wide.as_chunks_mut::<LEN>();
    for (stored, wide) in stored.iter().zip(wide) {
        block(stored, wide);
    }
}

pub(super) fn f16_at(bits: [u8; 2]) -> f32 {
    f16::from_le_bytes(bits).to_f32()
}

/// Element `index` of the 32 whose four-bit codes stand in 16 bytes.
fn nibble(codes: &[u8], index: usize) -> u8 {
    let byte = codes[index % 16];
    if index < 16 { byte & 15 } else { byte >> 4 }
}

/// As [`nibble`], with the fifth bit from the u32.
fn five_bits(fifths: [u8; 4], codes: &[u8], index: usize) -> u8 {
    let fifth = (fifths[index / 8] >> (index % 8)) & 1;
    nibble(codes, index) | fifth << 4
}

fn q4_0(stored: &[u8; 18], wide: &mut [f32; 32]) {
    let [d0, d1, codes @ ..] = stored;
    let d = f16_at([*d0, *d1]);
    for (index, wide) in wide.iter_mut().enumerate() {
        *wide = d * (f32::from(nibble(codes, index)) - 8.0);
    }
}

fn q4_1(stored: &[u8; 20], wide: &mut [f32; 32]) {
    let [d0, d1, m0, m1, codes @ ..] = stored;
    let (d, m) = (f16_at([*d0, *d1]), f16_at([*m0, *m1]));
    for (index, wide) in wide.iter_mut().enumerate() {
        *wide = d * f32::from(nibble(codes, index)) + m;
    }
}

fn q5_0(stored: &[u8; 22], wide: &mut [f32; 32]) {
    let [d0, d1, h0, h1, h2, h3, codes @ ..] = stored;
    let (d, fifths) = (f16_at([*d0, *d1]), [*h0, *h1, *h2, *h3]);
    for (index, wide) in wide.iter_mut().enumerate() {
        *wide = d * (f32::from(five_bits(fifths, codes, index)) - 16.0);
    }
}

fn q5_1(stored: &[u8; 24], wide: &mut [f32; 32]) {
    let [d0, d1, m0, m1, h0, h1, h2, h3, codes @ ..] = stored;
    let (d, m) = (f16_at([*d0, *d1]), f16_at([*m0, *m1]));
    let fifths = [*h0, *h1, *h2, *h3];
    for (index, wide) in wide.iter_mut().enumerate() {
        *wide = d * f32::from(five_bits(fifths, codes, index)) + m;
    }
}

fn q8_0(stored: &[u8; 34], wide: &mut [f32; 32]) {
    let [d0, d1, codes @ ..] = stored;
    let d = f16_at([*d0, *d1]);
    for (wide, code) in wide.iter_mut().zip(codes) {
        *wide = d * f32::from(code.cast_signed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum_and_its_blocks_are_small() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, index);
            assert_eq!(BlockType::of_code(row.1), Some(row.0));
            assert!(BlockType::MAX_BLOCK_LEN.is_multiple_of(row.3));
            assert!(row.4 <= super::super::GgufReader::MAX_ELEMENT_BYTES * row.3);
        }
    }

    #[test]
    fn a_type_that_is_not_read_still_has_a_name() {
        assert_eq!(BlockType::of_code(23), None);
        assert_eq!(BlockType::name_of_code(23), Some("IQ4_XS"));
        assert_eq!(BlockType::name_of_code(4), None);
    }
}
