//! The optimizer's update over masters of two or three bytes and 8-bit moments:
//! decode, `AdamW` in f32, encode, in one pass.

use std::ops::Range;

use fp8::moments::is_v_stochastic;
use fp8::random::low_half;
use fp8::{
    Grid, Headroom, MomentPlanes, NestedPlanes, Random, Rounding, ScaleInv, TILE, Tile, bf16,
};
use rayon::prelude::*;

use super::{GROUP, STRIP, load, master, moments, store, strips};
use crate::AdamW;
use crate::cpu::{Step, simd};

/// What an update of one parameter's rows needs besides their bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// The factors of the step.
    pub adamw: AdamW,
    /// The parameter's random bits of the step.
    pub random: Random,
    /// The number of the first row in the parameter.
    pub first_row: usize,
}

/// What the rows of one row tile need.
#[derive(Debug, Clone, Copy)]
struct Rows {
    step: Step,
    random: Random,
    first_row: usize,
    is_v_stochastic: bool,
}

impl Rows {
    fn new(update: &Update, row_tile: usize) -> Self {
        Self {
            step: Step::new(update.adamw),
            random: update.random,
            first_row: update.first_row + row_tile * TILE,
            is_v_stochastic: is_v_stochastic(update.adamw.beta2),
        }
    }

    /// Updates a group's masters and moments.
    #[inline(always)]
    fn apply(
        &self,
        w: &mut [f32; GROUP],
        grad: &[f32],
        planes: &mut MomentPlanes<&mut [u8]>,
        (row, col): (usize, usize),
        bits: &[u32; GROUP],
    ) {
        let at = row * planes.cols + col;
        let span = at..at + grad.len();
        let scale = row * planes.cols.div_ceil(GROUP) + col / GROUP;
        let codes = [load(&planes.m[span.clone()]), load(&planes.v[span.clone()])];
        let scales = [
            moments::scale_of(planes.m_scales, scale),
            moments::scale_of(planes.v_scales, scale),
        ];
        let [mut m, mut v] = moments::decode_group(&codes, scales);
        let g = load(grad);
        for i in 0..GROUP {
            w[i] = self.step.apply(g[i], w[i], &mut m[i], &mut v[i]);
            // The step took this root too: it is computed once.
            v[i] = v[i].sqrt();
        }
        let bits = self.is_v_stochastic.then_some(bits);
        moments::encode_group(planes, (span, scale), &[m, v], bits);
    }
}

/// Updates a nested master of whole row tiles, and gives the number of tiles
/// that were re-split.
///
/// An N16 is rounded stochastically, an N24 to nearest; scales keep a binade of
/// headroom. The gradient has as many elements as the master.
pub fn adamw_nested(
    planes: NestedPlanes<&mut [u8]>,
    moments: MomentPlanes<&mut [u8]>,
    grad: &[f32],
    update: &Update,
) -> usize {
    planes.check().expect("planes fit one another");
    assert_eq!(grad.len(), planes.grid().len(), "a gradient an element");
    assert_eq!(planes.cols, moments.cols, "columns of master and moments");
    moments::assert_lengths(&moments, grad.len());
    let cols = planes.cols;
    let row_tiles = planes.into_row_tiles().into_par_iter();
    let row_tiles = row_tiles.zip(moments.into_row_tiles());
    let row_tiles = row_tiles.zip(grad.par_chunks(TILE * cols)).enumerate();
    let scratch = || vec![0.0; TILE * STRIP.min(cols)];
    let num_moved = row_tiles.map_init(
        scratch,
        |w, (row_tile, ((mut planes, mut moments), grad))| {
            let rows = Rows::new(update, row_tile);
            simd(
                #[inline(always)]
                || {
                    // No closures in here: one that is not inlined is not vectorized either.
                    let mut num_moved = 0;
                    for strip in strips(cols) {
                        num_moved += update_strip(&rows, strip, &mut planes, &mut moments, grad, w);
                    }
                    num_moved
                },
            )
        },
    );
    num_moved.sum()
}

/// Updates some columns of a row tile, row by row; the number of tiles that were
/// re-split.
///
/// Numbers are encoded at once under the scale that their tile has. Only if the
/// amax, known at the end, asks for another are they encoded again.
#[inline(always)]
fn update_strip(
    rows: &Rows,
    strip: Range<usize>,
    planes: &mut NestedPlanes<&mut [u8]>,
    moments: &mut MomentPlanes<&mut [u8]>,
    grad: &[f32],
    scratch: &mut [f32],
) -> usize {
    let (grid, width) = (planes.grid(), strip.len());
    let first_tile = strip.start / TILE;
    let is_n16 = planes.low.is_none();
    let mut largest = [[0_u32; GROUP]; STRIP / TILE];
    for (row, out) in (0..grid.rows).zip(scratch.chunks_exact_mut(width)) {
        for (index, out) in out.chunks_mut(GROUP).enumerate() {
            let col = strip.start + index * GROUP;
            let at = row * grid.cols + col;
            let span = at..at + out.len();
            let bits = if is_n16 || rows.is_v_stochastic {
                rows.random.group_bits(rows.first_row + row, col / GROUP)
            } else {
                [0; GROUP]
            };
            let scale_inv = planes.scale_inv(col / TILE);
            let mut w = master::load_group(planes, span.clone(), scale_inv.to_f32());
            rows.apply(&mut w, &grad[span.clone()], moments, (row, col), &bits);
            let largest = &mut largest[col / TILE - first_tile];
            for i in 0..GROUP {
                largest[i] = largest[i].max(w[i].to_bits() & 0x7FFF_FFFF);
            }
            store(&w, out);
            let bits = is_n16.then_some(bits);
            master::encode_group(planes, span, &w, scale_inv.scale(), bits);
        }
    }
    let mut num_moved = 0;
    for (tile, largest) in grid
        .tiles()
        .skip(first_tile)
        .zip(&largest[..width.div_ceil(TILE)])
    {
        let amax = f32::from_bits(largest.iter().copied().fold(0, u32::max));
        let present = planes.scale_inv(tile.index);
        let next = present.updated(amax, Headroom::Binade);
        if next != present {
            num_moved += 1;
            resplit(
                rows,
                &tile,
                next,
                planes,
                &scratch[tile.cols.start - strip.start..],
                width,
            );
        }
    }
    num_moved
}

/// Encodes a tile again, from rows of `scratch` that are `width` long.
#[inline(always)]
fn resplit(
    rows: &Rows,
    tile: &Tile,
    scale_inv: ScaleInv,
    planes: &mut NestedPlanes<&mut [u8]>,
    scratch: &[f32],
    width: usize,
) {
    let rounding = if planes.low.is_none() {
        Rounding::Stochastic {
            random: rows.random,
            first_row: rows.first_row,
        }
    } else {
        Rounding::Nearest
    };
    let lines = scratch.chunks(width);
    let lines = lines.map(
        #[inline(always)]
        |line| &line[..tile.cols.len()],
    );
    master::encode_tile(planes, tile, lines, scale_inv, rounding);
}

/// Updates a bf16 master, rounded stochastically.
pub fn adamw_bf16(
    high: &mut [u8],
    moments: MomentPlanes<&mut [u8]>,
    grad: &[f32],
    update: &Update,
) {
    let cols = moments.cols;
    assert_eq!(high.len(), 2 * grad.len(), "bytes of the master");
    moments::assert_lengths(&moments, grad.len());
    let row_tiles = high.par_chunks_mut(2 * TILE * cols);
    let row_tiles = row_tiles.zip(moments.into_row_tiles());
    let row_tiles = row_tiles.zip(grad.par_chunks(TILE * cols)).enumerate();
    row_tiles.for_each(|(row_tile, ((high, mut moments), grad))| {
        let high = high.as_chunks_mut::<2>().0;
        let rows = Rows::new(update, row_tile);
        simd(
            #[inline(always)]
            || {
                for (row, col, span) in groups(grad.len(), cols) {
                    let bits = rows.random.group_bits(rows.first_row + row, col / GROUP);
                    let mut halves = load(&high[span.clone()]);
                    let mut w = [0.0; GROUP];
                    for i in 0..GROUP {
                        w[i] = bf16::widen(u16::from_le_bytes(halves[i]));
                    }
                    rows.apply(&mut w, &grad[span.clone()], &mut moments, (row, col), &bits);
                    for i in 0..GROUP {
                        halves[i] = bf16::round_stochastic(w[i], low_half(bits[i])).to_le_bytes();
                    }
                    store(&halves, &mut high[span]);
                }
            },
        );
    });
}

/// Updates a master of a bf16 and eight more bits, rounded stochastically.
pub fn adamw_bf16_plus8(
    (high, low): (&mut [u8], &mut [u8]),
    moments: MomentPlanes<&mut [u8]>,
    grad: &[f32],
    update: &Update,
) {
    let cols = moments.cols;
    let bytes = [high.len(), low.len()];
    assert_eq!(bytes, [2 * grad.len(), grad.len()], "bytes of the master");
    moments::assert_lengths(&moments, grad.len());
    let row_tiles = high.par_chunks_mut(2 * TILE * cols);
    let row_tiles = row_tiles.zip(low.par_chunks_mut(TILE * cols));
    let row_tiles = row_tiles.zip(moments.into_row_tiles());
    let row_tiles = row_tiles.zip(grad.par_chunks(TILE * cols)).enumerate();
    row_tiles.for_each(|(row_tile, (((high, low), mut moments), grad))| {
        let high = high.as_chunks_mut::<2>().0;
        let rows = Rows::new(update, row_tile);
        simd(
            #[inline(always)]
            || {
                for (row, col, span) in groups(grad.len(), cols) {
                    let bits = rows.random.group_bits(rows.first_row + row, col / GROUP);
                    let mut halves = load(&high[span.clone()]);
                    let mut rest = load(&low[span.clone()]);
                    let mut w = [0.0; GROUP];
                    for i in 0..GROUP {
                        let half = u16::from_le_bytes(halves[i]);
                        w[i] = bf16::join_plus8(half, rest[i].cast_signed());
                    }
                    rows.apply(&mut w, &grad[span.clone()], &mut moments, (row, col), &bits);
                    for i in 0..GROUP {
                        let (half, less) = bf16::split_plus8_stochastic(w[i], low_half(bits[i]));
                        (halves[i], rest[i]) = (half.to_le_bytes(), less.cast_unsigned());
                    }
                    store(&halves, &mut high[span.clone()]);
                    store(&rest, &mut low[span]);
                }
            },
        );
    });
}

/// Row, column and place of each group of whole rows.
#[inline(always)]
fn groups(len: usize, cols: usize) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
    let grid = Grid {
        rows: len / cols,
        cols,
    };
    let per_row = cols.div_ceil(GROUP);
    (0..grid.rows * per_row).map(move |index| {
        let (row, col) = (index / per_row, index % per_row * GROUP);
        let end = cols.min(col + GROUP);
        (row, col, row * cols + col..row * cols + end)
    })
}
