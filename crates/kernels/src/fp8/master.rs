//! Nested masters to f32 and back, row tile by row tile on all threads.

use std::ops::Range;

use fp8::nested::{
    join_n16, join_n24, residual_bytes, residual_of, split_n16, split_n16_stochastic, split_n24,
};
use fp8::random::low_half;
use fp8::{Format, Grid, Headroom, NestedPlanes, Rounding, ScaleInv, TILE, Tile};
use rayon::prelude::*;

use super::quantize::strip_amax;
use super::{GROUP, load, store, strips};
use crate::cpu::simd;

/// Decodes masters to f32, row by row. A plain tile becomes NaN: it is decoded
/// by [`NestedPlanes::decode_f32`] and never computed with.
pub fn decode_nested(planes: &NestedPlanes<&[u8]>, out: &mut [f32]) {
    let grid = planes.grid();
    planes.check().expect("planes fit one another");
    assert_eq!(out.len(), grid.len(), "masters and their numbers");
    let cols = grid.cols;
    let row_tiles = out.par_chunks_mut(TILE * cols).enumerate();
    row_tiles.for_each(|(row_tile, out)| {
        simd(
            #[inline(always)]
            || decode_row_tile(planes, row_tile, out),
        );
    });
}

#[inline(always)]
fn decode_row_tile(planes: &NestedPlanes<&[u8]>, row_tile: usize, out: &mut [f32]) {
    let cols = planes.cols;
    let first = row_tile * TILE * cols;
    let first_tile = row_tile * cols.div_ceil(TILE);
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        for (group, out) in out.chunks_mut(GROUP).enumerate() {
            let at = first + row * cols + group * GROUP;
            let span = at..at + out.len();
            let scale_inv = planes.scale_inv(first_tile + group * GROUP / TILE);
            store(&load_group(planes, span, scale_inv.to_f32()), out);
        }
    }
}

/// Decodes a panel, densely: `[rows, cols]`. Rows are counted from the first of
/// these row tiles.
pub(crate) fn decode_nested_panel(
    planes: &NestedPlanes<&[u8]>,
    rows: Range<usize>,
    cols: Range<usize>,
    panel: &mut [f32],
) {
    assert_eq!(panel.len(), rows.len() * cols.len(), "size of the panel");
    let tiles_per_row = planes.cols.div_ceil(TILE);
    simd(
        #[inline(always)]
        || {
            for (row, out) in rows.zip(panel.chunks_exact_mut(cols.len())) {
                let first_tile = row / TILE * tiles_per_row;
                for group in cols.start / GROUP..cols.end.div_ceil(GROUP) {
                    let first = cols.start.max(group * GROUP);
                    let end = cols.end.min((group + 1) * GROUP);
                    let scale_inv = planes.scale_inv(first_tile + first / TILE);
                    let span = row * planes.cols + first..row * planes.cols + end;
                    let numbers = load_group(planes, span, scale_inv.to_f32());
                    store(&numbers, &mut out[first - cols.start..end - cols.start]);
                }
            }
        },
    );
}

/// The masters of the group at `span`.
#[inline(always)]
pub(super) fn load_group<B: AsRef<[u8]>>(
    planes: &NestedPlanes<B>,
    span: Range<usize>,
    scale_inv: f32,
) -> [f32; GROUP] {
    let codes = load(&planes.codes.as_ref()[span.clone()]);
    let residual = load(&planes.residual.as_ref()[span.clone()]);
    let mut w = [0.0; GROUP];
    if let Some(low) = &planes.low {
        let low = load(&low.as_ref()[span]);
        for i in 0..GROUP {
            w[i] = join_n24(codes[i], residual_of(residual[i], low[i])) * scale_inv;
        }
    } else {
        for i in 0..GROUP {
            w[i] = join_n16(codes[i], residual[i].cast_signed()) * scale_inv;
        }
    }
    w
}

/// Encodes f32 masters; each tile gets the scale of its amax.
pub fn encode_nested(
    values: &[f32],
    planes: NestedPlanes<&mut [u8]>,
    headroom: Headroom,
    rounding: Rounding,
) {
    planes.check().expect("planes fit one another");
    let cols = planes.cols;
    assert_eq!(
        values.len(),
        planes.grid().len(),
        "numbers and their masters"
    );
    let row_tiles = planes.into_row_tiles().into_par_iter();
    let row_tiles = row_tiles.zip(values.par_chunks(TILE * cols)).enumerate();
    row_tiles.for_each(|(row_tile, (mut planes, values))| {
        let rounding = match rounding {
            Rounding::Nearest => Rounding::Nearest,
            Rounding::Stochastic { random, first_row } => Rounding::Stochastic {
                random,
                first_row: first_row + row_tile * TILE,
            },
        };
        simd(
            #[inline(always)]
            || {
                let grid = Grid {
                    rows: values.len() / cols,
                    cols,
                };
                for strip in strips(cols) {
                    let largest = strip_amax(values, cols, strip.clone());
                    let tiles = grid.tiles().skip(strip.start / TILE);
                    for (tile, amax) in tiles.zip(&largest[..strip.len().div_ceil(TILE)]) {
                        let scale_inv = ScaleInv::of_amax(*amax, Format::E4M3, headroom);
                        let rows = tile.spans(cols).map(
                            #[inline(always)]
                            |span| &values[span],
                        );
                        encode_tile(&mut planes, &tile, rows, scale_inv, rounding);
                    }
                }
            },
        );
    });
}

/// Encodes the rows of one tile under a given `scale_inv`.
#[inline(always)]
pub(super) fn encode_tile<'a>(
    planes: &mut NestedPlanes<&mut [u8]>,
    tile: &Tile,
    rows: impl Iterator<Item = &'a [f32]>,
    scale_inv: ScaleInv,
    rounding: Rounding,
) {
    planes.scales[tile.index] = scale_inv.to_e8m0();
    for (row, w) in tile.rows.clone().zip(rows) {
        for (index, w) in w.chunks(GROUP).enumerate() {
            let col = tile.cols.start + index * GROUP;
            let bits = match rounding {
                Rounding::Nearest => None,
                Rounding::Stochastic { random, first_row } => {
                    Some(random.group_bits(first_row + row, col / GROUP))
                }
            };
            let at = row * planes.cols + col;
            encode_group(planes, at..at + w.len(), &load(w), scale_inv.scale(), bits);
        }
    }
}

/// Encodes a group; without bits to nearest.
#[inline(always)]
pub(super) fn encode_group(
    planes: &mut NestedPlanes<&mut [u8]>,
    span: Range<usize>,
    w: &[f32; GROUP],
    scale: f32,
    bits: Option<[u32; GROUP]>,
) {
    let (mut codes, mut residual) = ([0; GROUP], [0; GROUP]);
    if let Some(low_plane) = &mut planes.low {
        let mut low = [0; GROUP];
        for i in 0..GROUP {
            let (code, rest) = split_n24(w[i] * scale);
            codes[i] = code;
            [residual[i], low[i]] = residual_bytes(rest);
        }
        store(&low, &mut low_plane[span.clone()]);
    } else if let Some(bits) = bits {
        for i in 0..GROUP {
            let (code, rest) = split_n16_stochastic(w[i] * scale, low_half(bits[i]));
            (codes[i], residual[i]) = (code, rest.cast_unsigned());
        }
    } else {
        for i in 0..GROUP {
            let (code, rest) = split_n16(w[i] * scale);
            (codes[i], residual[i]) = (code, rest.cast_unsigned());
        }
    }
    store(&codes, &mut planes.codes[span.clone()]);
    store(&residual, &mut planes.residual[span]);
}
