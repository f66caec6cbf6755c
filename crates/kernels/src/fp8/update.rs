//! The optimizer's update over masters of two or three bytes and 8-bit moments:
//! decode, `AdamW` in f32, encode, in one pass.

use fp8::moments::is_v_stochastic;
use fp8::random::low_half;
use fp8::{Grid, Headroom, MomentPlanes, NestedPlanes, Random, Rounding, TILE, Tile, bf16};
use rayon::prelude::*;

use super::{GROUP, load, master, moments, store};
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
    let num_moved = row_tiles.map(|(row_tile, ((mut planes, mut moments), grad))| {
        let rows = Rows::new(update, row_tile);
        let mut w = vec![0.0; TILE * TILE];
        simd(
            #[inline(always)]
            || {
                // No closures in here: one that is not inlined is not vectorized either.
                let mut num_moved = 0;
                for tile in planes.grid().tiles() {
                    let is_moved =
                        update_tile(&rows, &tile, &mut planes, &mut moments, grad, &mut w);
                    num_moved += usize::from(is_moved);
                }
                num_moved
            },
        )
    });
    num_moved.sum()
}

/// Updates one tile; whether it was re-split.
///
/// Its numbers are encoded at once under the scale that it has. Only if the amax,
/// known at the end, asks for another are they encoded again.
#[inline(always)]
fn update_tile(
    rows: &Rows,
    tile: &Tile,
    planes: &mut NestedPlanes<&mut [u8]>,
    moments: &mut MomentPlanes<&mut [u8]>,
    grad: &[f32],
    scratch: &mut [f32],
) -> bool {
    let (cols, width) = (planes.cols, tile.cols.len());
    let present = planes.scale_inv(tile.index);
    let (scale_inv, scale) = (present.to_f32(), present.scale());
    let is_n16 = planes.low.is_none();
    let mut largest = [0_u32; GROUP];
    for (row, out) in tile.rows.clone().zip(scratch.chunks_exact_mut(width)) {
        for (index, out) in out.chunks_mut(GROUP).enumerate() {
            let col = tile.cols.start + index * GROUP;
            let at = row * cols + col;
            let span = at..at + out.len();
            let bits = if is_n16 || rows.is_v_stochastic {
                rows.random.group_bits(rows.first_row + row, col / GROUP)
            } else {
                [0; GROUP]
            };
            let codes = load(&planes.codes[span.clone()]);
            let residual = load(&planes.residual[span.clone()]);
            let low = planes.low.as_deref();
            let low = low.map(
                #[inline(always)]
                |low| load(&low[span.clone()]),
            );
            let mut w = master::decode_group(&codes, &residual, low.as_ref(), scale_inv);
            rows.apply(&mut w, &grad[span.clone()], moments, (row, col), &bits);
            for i in 0..GROUP {
                largest[i] = largest[i].max(w[i].to_bits() & 0x7FFF_FFFF);
            }
            store(&w, out);
            master::encode_group(planes, span, &w, scale, is_n16.then_some(bits));
        }
    }
    let amax = f32::from_bits(largest.into_iter().fold(0, u32::max));
    let next = present.updated(amax, Headroom::Binade);
    if next == present {
        return false;
    }
    let rounding = if is_n16 {
        Rounding::Stochastic {
            random: rows.random,
            first_row: rows.first_row,
        }
    } else {
        Rounding::Nearest
    };
    let lines = scratch.chunks_exact(width);
    master::encode_tile(planes, tile, lines, next, rounding);
    true
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
fn groups(len: usize, cols: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
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
