//! Codes to f32: rows of 1 x 128 blocks, and panels of a tiled weight, straight
//! or transposed.
//!
//! A tile has one scale in both directions, so a transposed panel needs no
//! transposed copy of the weight: bytes are shuffled tile by tile.

use std::ops::Range;

use fp8::{Format, ScaleInv, TILE, decode_e4m3};

use crate::cpu::simd;

/// Decodes rows of `cols` codes with a scale for each 1 x 128 block.
pub fn decode_rows(codes: &[u8], scales: &[u8], cols: usize, format: Format, out: &mut [f32]) {
    assert_eq!(codes.len(), out.len(), "codes and their numbers");
    let num_blocks = codes.len() / cols * cols.div_ceil(TILE);
    assert_eq!(scales.len(), num_blocks, "a scale a block");
    match format {
        Format::E4M3 => decode_all_rows(codes, scales, cols, decode_e4m3, out),
        Format::E5M2 => decode_all_rows(codes, scales, cols, |x| Format::E5M2.decode(x), out),
        Format::E4M3Fnuz | Format::E5M2Fnuz => {
            decode_all_rows(codes, scales, cols, |x| format.decode(x), out);
        }
    }
}

fn decode_all_rows(
    codes: &[u8],
    scales: &[u8],
    cols: usize,
    decode: impl Fn(u8) -> f32,
    out: &mut [f32],
) {
    simd(
        #[inline(always)]
        || {
            let rows = codes.chunks_exact(cols).zip(out.chunks_exact_mut(cols));
            for ((codes, out), scales) in rows.zip(scales.chunks_exact(cols.div_ceil(TILE))) {
                let blocks = codes.chunks(TILE).zip(out.chunks_mut(TILE));
                for ((codes, out), &scale_inv) in blocks.zip(scales) {
                    let scale_inv = ScaleInv::from_e8m0(scale_inv).to_f32();
                    for (out, &code) in out.iter_mut().zip(codes) {
                        *out = decode(code) * scale_inv;
                    }
                }
            }
        },
    );
}

/// E4M3 codes of whole row tiles and the scales of their tiles.
#[derive(Debug, Clone, Copy)]
pub struct TiledCodes<'a> {
    /// Elements of a row.
    pub cols: usize,
    /// A byte an element, row by row.
    pub codes: &'a [u8],
    /// A byte a tile.
    pub scales: &'a [u8],
}

impl TiledCodes<'_> {
    /// Decodes a panel, densely: `[rows, cols]`.
    ///
    /// Rows are counted from the first of these row tiles.
    pub fn decode(&self, rows: Range<usize>, cols: Range<usize>, panel: &mut [f32]) {
        assert_eq!(panel.len(), rows.len() * cols.len(), "size of the panel");
        simd(
            #[inline(always)]
            || {
                for (row, panel) in rows.zip(panel.chunks_exact_mut(cols.len())) {
                    for span in spans(cols.clone()) {
                        let scale_inv = self.scale_inv(row, span.start);
                        let codes = &self.codes[row * self.cols..][span.clone()];
                        let out = &mut panel[span.start - cols.start..][..span.len()];
                        decode_block(codes, scale_inv, out);
                    }
                }
            },
        );
    }

    /// Decodes a panel, densely and transposed: `[cols, rows]`.
    pub fn decode_transposed(&self, rows: Range<usize>, cols: Range<usize>, panel: &mut [f32]) {
        assert_eq!(panel.len(), rows.len() * cols.len(), "size of the panel");
        let width = rows.len();
        let mut bytes = [[0; TILE]; TILE];
        simd(
            #[inline(always)]
            || {
                for down in spans(rows.clone()) {
                    for across in spans(cols.clone()) {
                        let scale_inv = self.scale_inv(down.start, across.start);
                        self.transpose(down.clone(), across.clone(), &mut bytes);
                        for (col, codes) in across.zip(&bytes) {
                            let first = (col - cols.start) * width + down.start - rows.start;
                            let out = &mut panel[first..first + down.len()];
                            decode_block(&codes[..down.len()], scale_inv, out);
                        }
                    }
                }
            },
        );
    }

    #[inline(always)]
    fn scale_inv(&self, row: usize, col: usize) -> f32 {
        let tile = row / TILE * self.cols.div_ceil(TILE) + col / TILE;
        ScaleInv::from_e8m0(self.scales[tile]).to_f32()
    }

    /// The codes of (a part of) one tile, column by column.
    #[inline(always)]
    fn transpose(&self, rows: Range<usize>, cols: Range<usize>, out: &mut [[u8; TILE]; TILE]) {
        for first_row in rows.clone().step_by(8) {
            let num_rows = (rows.end - first_row).min(8);
            for first_col in cols.clone().step_by(64) {
                let num_cols = (cols.end - first_col).min(64);
                let mut block = [[0; 64]; 8];
                for (index, line) in block.iter_mut().take(num_rows).enumerate() {
                    let first = (first_row + index) * self.cols + first_col;
                    let codes = &self.codes[first..first + num_cols];
                    match <[u8; 64]>::try_from(codes) {
                        Ok(whole) => *line = whole,
                        Err(_) => line[..num_cols].copy_from_slice(codes),
                    }
                }
                let block = transpose_block(&block);
                let (row, col) = (first_row - rows.start, first_col - cols.start);
                for (out, codes) in out[col..].iter_mut().zip(&block) {
                    out[row..row + 8].copy_from_slice(codes);
                }
            }
        }
    }
}

/// The parts of a range that lie in one tile each.
#[inline(always)]
fn spans(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end } = range;
    (start / TILE..end.div_ceil(TILE)).map(move |tile| {
        let first = tile * TILE;
        start.max(first)..end.min(first + TILE)
    })
}

#[inline(always)]
fn decode_block(codes: &[u8], scale_inv: f32, out: &mut [f32]) {
    if let (Ok(codes), Ok(out)) = (
        <&[u8; TILE]>::try_from(codes),
        <&mut [f32; TILE]>::try_from(&mut *out),
    ) {
        for (out, &code) in out.iter_mut().zip(codes) {
            *out = decode_e4m3(code) * scale_inv;
        }
        return;
    }
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = decode_e4m3(code) * scale_inv;
    }
}

/// Eight rows of 64 bytes to 64 rows of eight.
///
/// Eight matrices of 8 x 8 side by side, each row of one a word: three times
/// halves of words change places, of 4, 2 and 1 bytes.
#[inline(always)]
fn transpose_block(rows: &[[u8; 64]; 8]) -> [[u8; 8]; 64] {
    let mut words = [[0_u64; 8]; 8];
    for (words, row) in words.iter_mut().zip(rows) {
        for (word, bytes) in words.iter_mut().zip(row.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
    }
    swap_halves(&mut words, 4, 0x0000_0000_FFFF_FFFF);
    swap_halves(&mut words, 2, 0x0000_FFFF_0000_FFFF);
    swap_halves(&mut words, 1, 0x00FF_00FF_00FF_00FF);
    let mut columns = [[0; 8]; 64];
    for (index, words) in words.iter().enumerate() {
        for (lane, word) in words.iter().enumerate() {
            columns[8 * lane + index] = word.to_le_bytes();
        }
    }
    columns
}

/// Changes the upper halves of words with the lower ones of those `distance`
/// rows below; a half has as many bytes.
#[inline(always)]
fn swap_halves(words: &mut [[u64; 8]; 8], distance: usize, lower: u64) {
    for row in (0..8).filter(|row| row & distance == 0) {
        for lane in 0..8 {
            let [a, b] = [words[row][lane], words[row + distance][lane]];
            let changed = ((a >> (8 * distance)) ^ b) & lower;
            words[row][lane] = a ^ (changed << (8 * distance));
            words[row + distance][lane] = b ^ changed;
        }
    }
}
