//! f32 to codes: rows in 1 x 128 blocks, weights in 128 x 128 tiles.

use std::ops::Range;

use fp8::{
    Format, Grid, Headroom, ScaleInv, TILE, amax, encode_e4m3, encode_e5m2, operand_factors,
};
use rayon::prelude::*;

use super::{STRIP, strips};
use crate::cpu::simd;

/// Quantizes rows of `cols` numbers with a scale for each 1 x 128 block.
pub fn quantize_rows(
    values: &[f32],
    cols: usize,
    format: Format,
    codes: &mut [u8],
    scales: &mut [u8],
) {
    assert_eq!(values.len(), codes.len(), "numbers and their codes");
    let num_blocks = values.len() / cols * cols.div_ceil(TILE);
    assert_eq!(scales.len(), num_blocks, "a scale a block");
    match format {
        Format::E4M3 => quantize_all_rows(values, cols, format, encode_e4m3, (codes, scales)),
        Format::E5M2 => quantize_all_rows(values, cols, format, encode_e5m2, (codes, scales)),
        Format::E4M3Fnuz | Format::E5M2Fnuz => {
            quantize_all_rows(values, cols, format, |x| format.encode(x), (codes, scales));
        }
    }
}

fn quantize_all_rows(
    values: &[f32],
    cols: usize,
    format: Format,
    encode: impl Fn(f32) -> u8,
    (codes, scales): (&mut [u8], &mut [u8]),
) {
    simd(
        #[inline(always)]
        || {
            let rows = values.chunks_exact(cols).zip(codes.chunks_exact_mut(cols));
            for ((values, codes), scales) in rows.zip(scales.chunks_exact_mut(cols.div_ceil(TILE)))
            {
                let blocks = values.chunks(TILE).zip(codes.chunks_mut(TILE));
                for ((values, codes), scale) in blocks.zip(scales) {
                    let scale_inv = ScaleInv::of_amax(amax(values), format, Headroom::None);
                    *scale = scale_inv.to_e8m0();
                    encode_block(values, scale_inv, &encode, codes);
                }
            }
        },
    );
}

/// What became of numbers that were rounded.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RowCounts {
    /// All numbers.
    pub num_elements: u64,
    /// Those that are not 0 and became 0.
    pub num_underflowed: u64,
    /// Blocks with a NaN, all of which became NaN.
    pub num_nan_blocks: u64,
    /// The largest magnitude but for NaN.
    pub amax: f32,
}

impl RowCounts {
    /// Those of all numbers together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            num_elements: self.num_elements + other.num_elements,
            num_underflowed: self.num_underflowed + other.num_underflowed,
            num_nan_blocks: self.num_nan_blocks + other.num_nan_blocks,
            amax: self.amax.max(other.amax),
        }
    }
}

/// Numbers that one task rounds.
const ROUNDED_LEN: usize = 64 * 1024;

/// Rounds rows of `cols` numbers as [`fp8::round_rows`] does.
pub fn round_rows(values: &mut [f32], cols: usize, format: Format) -> RowCounts {
    match format {
        Format::E4M3 => round_all_rows(values, cols, format, round_e4m3),
        Format::E5M2 => round_all_rows(values, cols, format, round_e5m2),
        Format::E4M3Fnuz | Format::E5M2Fnuz => {
            round_all_rows(values, cols, format, |x| format.decode(format.encode(x)))
        }
    }
}

/// The nearest number of E4M3, for magnitudes of at most its largest.
#[inline(always)]
fn round_e4m3(x: f32) -> f32 {
    round_to_grid::<3, -6>(x)
}

/// The nearest number of E5M2, for magnitudes of at most its largest.
#[inline(always)]
fn round_e5m2(x: f32) -> f32 {
    round_to_grid::<2, -14>(x)
}

/// The nearest number with so many bits of fraction, ties to even, where numbers below
/// 2^`MIN_EXPONENT` have the spacing of those just above it.
///
/// Adds and takes away a power of two whose last place is the spacing at `x`: the sum
/// is rounded by the processor. A quarter of the work of making a code and decoding it.
#[inline(always)]
fn round_to_grid<const FRACTION_BITS: u32, const MIN_EXPONENT: i32>(x: f32) -> f32 {
    const EXPONENT: u32 = 0x7f80_0000;
    const SIGN: u32 = 0x8000_0000;
    let smallest = ((127 + MIN_EXPONENT).cast_unsigned()) << 23;
    let exponent = (x.to_bits() & EXPONENT).max(smallest);
    let power = f32::from_bits(exponent + ((23 - FRACTION_BITS) << 23));
    let rounded = (x.abs() + power) - power;
    f32::from_bits(rounded.to_bits() | (x.to_bits() & SIGN))
}

fn round_all_rows(
    values: &mut [f32],
    cols: usize,
    format: Format,
    round: impl Fn(f32) -> f32 + Sync,
) -> RowCounts {
    let rows_at_once = (ROUNDED_LEN / cols).max(1);
    let tasks = values.par_chunks_mut(rows_at_once * cols);
    let counts = tasks.map(|values| {
        simd(
            #[inline(always)]
            || {
                let mut counts = RowCounts::default();
                for block in values
                    .chunks_exact_mut(cols)
                    .flat_map(|row| row.chunks_mut(TILE))
                {
                    counts = counts.and(round_block(block, format, &round));
                }
                counts
            },
        )
    });
    counts.reduce(RowCounts::default, RowCounts::and)
}

#[inline(always)]
fn round_block(values: &mut [f32], format: Format, round: impl Fn(f32) -> f32) -> RowCounts {
    let amax = amax(values);
    let mut counts = RowCounts {
        num_elements: values.len() as u64,
        ..RowCounts::default()
    };
    let Some([scale, scale_inv]) = operand_factors(amax, format) else {
        values.fill(f32::NAN);
        counts.num_nan_blocks = 1;
        return counts;
    };
    counts.amax = amax;
    let mut num_underflowed = 0_u32;
    for x in values {
        let rounded = round(*x * scale);
        num_underflowed += u32::from(rounded == 0.0) & u32::from(*x != 0.0);
        *x = rounded * scale_inv;
    }
    counts.num_underflowed = num_underflowed.into();
    counts
}

/// Quantizes whole row tiles of a weight to E4M3, with a scale for each tile.
pub fn quantize_tiles(
    values: &[f32],
    cols: usize,
    headroom: Headroom,
    codes: &mut [u8],
    scales: &mut [u8],
) {
    let rows = values.len() / cols;
    let grid = Grid { rows, cols };
    assert_eq!(
        [values.len(), codes.len()],
        [grid.len(); 2],
        "whole rows of numbers and codes"
    );
    assert_eq!(scales.len(), grid.num_tiles(), "a scale a tile");
    simd(
        #[inline(always)]
        || {
            let per_row = grid.tiles_per_row();
            let rows = values
                .chunks(TILE * cols)
                .zip(codes.chunks_mut(TILE * cols));
            for ((values, codes), scales) in rows.zip(scales.chunks_exact_mut(per_row)) {
                for strip in strips(cols) {
                    quantize_strip(values, cols, strip, headroom, (codes, scales));
                }
            }
        },
    );
}

/// Quantizes some columns of a row tile.
#[inline(always)]
fn quantize_strip(
    values: &[f32],
    cols: usize,
    strip: Range<usize>,
    headroom: Headroom,
    (codes, scales): (&mut [u8], &mut [u8]),
) {
    let largest = strip_amax(values, cols, strip.clone());
    let scales = &mut scales[strip.start / TILE..strip.end.div_ceil(TILE)];
    for (scale, amax) in scales.iter_mut().zip(largest) {
        *scale = ScaleInv::of_amax(amax, Format::E4M3, headroom).to_e8m0();
    }
    let rows = values.chunks_exact(cols).zip(codes.chunks_exact_mut(cols));
    for (values, codes) in rows {
        let blocks = values[strip.clone()].chunks(TILE);
        let blocks = blocks.zip(codes[strip.clone()].chunks_mut(TILE));
        for ((values, codes), &scale_inv) in blocks.zip(&*scales) {
            encode_block(values, ScaleInv::from_e8m0(scale_inv), encode_e4m3, codes);
        }
    }
}

/// The amax of each tile of a strip; NaN, whose bits are the largest, if there is
/// one.
#[inline(always)]
pub(super) fn strip_amax(values: &[f32], cols: usize, strip: Range<usize>) -> [f32; STRIP / TILE] {
    let mut largest = [0; STRIP / TILE];
    for row in values.chunks_exact(cols) {
        for (largest, block) in largest.iter_mut().zip(row[strip.clone()].chunks(TILE)) {
            *largest = amax(block).to_bits().max(*largest);
        }
    }
    largest.map(f32::from_bits)
}

#[inline(always)]
fn encode_block(values: &[f32], scale_inv: ScaleInv, encode: impl Fn(f32) -> u8, codes: &mut [u8]) {
    if scale_inv.is_nan() {
        codes.fill(encode(f32::NAN));
        return;
    }
    let scale = scale_inv.scale();
    for (code, &x) in codes.iter_mut().zip(values) {
        *code = encode(x * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All signs, exponents and seven bits of fraction, with what decides a tie.
    #[test]
    fn rounding_gives_what_a_code_decodes_to() {
        type Round = fn(f32) -> f32;
        let formats: [(Format, Round); 2] =
            [(Format::E4M3, round_e4m3), (Format::E5M2, round_e5m2)];
        for (format, round) in formats {
            let mut num_equal = 0;
            for upper in 0..=u16::MAX {
                for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                    let x = f32::from_bits(u32::from(upper) << 16 | lower);
                    if x.abs() > format.max_finite() || x.is_nan() {
                        continue;
                    }
                    let expected = format.decode(format.encode(x));
                    assert_eq!(round(x).to_bits(), expected.to_bits(), "{format:?} {x:e}");
                    num_equal += 1;
                }
            }
            assert!(num_equal > 200_000);
        }
    }
}
