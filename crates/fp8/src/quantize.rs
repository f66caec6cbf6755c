//! Whole matrices as codes and scales: one power of two for each 1 x 128 block
//! of a row (activations, gradients) or for each 128 x 128 tile (weights).
//!
//! Last blocks are shorter; nothing is padded. Only the block's own numbers
//! decide, so a shard of whole blocks quantizes to the same bits as the whole.

use crate::{Format, Grid, Headroom, ScaleInv, TILE, amax};

/// Codes of a matrix, row by row, and the `scale_inv` of its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantized {
    /// One byte an element.
    pub codes: Vec<u8>,
    /// One a block: block by block, row by row.
    pub scales: Vec<ScaleInv>,
}

/// Quantizes blocks of 1 x 128.
pub fn quantize_rows(values: &[f32], cols: usize, format: Format) -> Quantized {
    let mut quantized = Quantized {
        codes: Vec::with_capacity(values.len()),
        scales: Vec::new(),
    };
    for block in values.chunks(cols).flat_map(|row| row.chunks(TILE)) {
        let scale_inv = ScaleInv::of_amax(amax(block), format, Headroom::None);
        let codes = block.iter().map(|&x| cast(x, scale_inv, format));
        quantized.codes.extend(codes);
        quantized.scales.push(scale_inv);
    }
    quantized
}

/// Rounds rows of operands to a format, as they are multiplied: each 1 x 128 block
/// under factors of its own, see [`operand_factors`].
pub fn round_rows(values: &[f32], cols: usize, format: Format) -> Vec<f32> {
    let blocks = values.chunks(cols).flat_map(|row| row.chunks(TILE));
    let rounded = blocks.flat_map(|block| {
        let factors = operand_factors(amax(block), format);
        let round = move |&x: &f32| match factors {
            Some([scale, scale_inv]) => format.decode(format.encode(x * scale)) * scale_inv,
            None => f32::NAN,
        };
        block.iter().map(round)
    });
    rounded.collect()
}

/// What a block of operands is multiplied by before and after its cast: factors with
/// which its largest magnitude becomes the format's largest number, and itself again.
/// None where that magnitude is not finite.
///
/// No power of two: a block's largest number decides most of a product, and so is
/// rounded the least. The factors are at most 2^126, so that both are normal numbers.
#[inline(always)]
pub fn operand_factors(amax: f32, format: Format) -> Option<[f32; 2]> {
    let max = format.max_finite();
    let smallest = max * SMALLEST_FACTOR;
    if !amax.is_finite() {
        return None;
    }
    if amax < smallest {
        let factor = if amax == 0.0 { 1.0 } else { SMALLEST_FACTOR };
        return Some([1.0 / factor, factor]);
    }
    Some([max / amax, amax / max])
}

/// 2^-126, the smallest normal number.
const SMALLEST_FACTOR: f32 = f32::MIN_POSITIVE;

/// Quantizes tiles of 128 x 128.
pub fn quantize_tiles(
    values: &[f32],
    cols: usize,
    format: Format,
    headroom: Headroom,
) -> Quantized {
    let grid = Grid {
        rows: values.len() / cols,
        cols,
    };
    let mut codes = vec![0; values.len()];
    let tiles = grid.tiles().map(|tile| {
        let amax = amax(&tile.gather(values, cols));
        let scale_inv = ScaleInv::of_amax(amax, format, headroom);
        for place in tile.spans(cols).flatten() {
            codes[place] = cast(values[place], scale_inv, format);
        }
        scale_inv
    });
    let scales = tiles.collect();
    Quantized { codes, scales }
}

/// The code of a number; NaN in a block that has no scale, without a sign.
fn cast(x: f32, scale_inv: ScaleInv, format: Format) -> u8 {
    if scale_inv.is_nan() {
        format.encode(f32::NAN)
    } else {
        format.encode(x * scale_inv.scale())
    }
}

impl Quantized {
    /// The numbers of [`quantize_rows`].
    pub fn decode_rows(&self, cols: usize, format: Format) -> Vec<f32> {
        let blocks = self.codes.chunks(cols).flat_map(|row| row.chunks(TILE));
        let decoded = blocks.zip(&self.scales).flat_map(|(block, scale_inv)| {
            let scale_inv = scale_inv.to_f32();
            block
                .iter()
                .map(move |&code| format.decode(code) * scale_inv)
        });
        decoded.collect()
    }

    /// The numbers of [`quantize_tiles`].
    pub fn decode_tiles(&self, cols: usize, format: Format) -> Vec<f32> {
        let grid = Grid {
            rows: self.codes.len() / cols,
            cols,
        };
        let mut values = vec![0.0; self.codes.len()];
        for tile in grid.tiles() {
            let scale_inv = self.scales[tile.index].to_f32();
            for place in tile.spans(cols).flatten() {
                values[place] = format.decode(self.codes[place]) * scale_inv;
            }
        }
        values
    }
}
