//! What is done to each element, and to each row of a table, on its own.

use std::ops::Range;

use rayon::prelude::*;

use super::vector::{exp, simd, sum_of_squares as row_sum_of_squares};
use super::weights::copy_row;
use crate::Weight;

/// Elements of one task: long beside the cost of handing it out, short beside
/// a cache.
pub(super) const CHUNK: usize = 16 * 1024;

/// Tokens of one task.
const CHUNK_TOKENS: usize = 32;

/// Sets every element.
pub(super) fn fill(y: &mut [f32], value: f32) {
    y.par_chunks_mut(CHUNK).for_each(|y| y.fill(value));
}

/// Copies `x` over `y`.
pub(super) fn copy(x: &[f32], y: &mut [f32]) {
    y.par_chunks_mut(CHUNK)
        .zip(x.par_chunks(CHUNK))
        .for_each(|(y, x)| y.copy_from_slice(x));
}

/// `y += x`.
pub(super) fn add(x: &[f32], y: &mut [f32]) {
    y.par_chunks_mut(CHUNK)
        .zip(x.par_chunks(CHUNK))
        .for_each(|(y, x)| {
            simd(
                #[inline(always)]
                || y.iter_mut().zip(x).for_each(|(y, &x)| *y += x),
            );
        });
}

/// The sum of squares, over chunks in their order.
pub(super) fn sum_of_squares(x: &[f32]) -> f64 {
    let sums: Vec<f64> = x
        .par_chunks(CHUNK)
        .map(|x| {
            simd(
                #[inline(always)]
                || row_sum_of_squares(x),
            )
        })
        .collect();
    sums.iter().sum()
}

/// Writes the rows of those ids that lie in the table, times `scale`.
pub(super) fn embedding(
    ids: &[u32],
    table: &Weight<&[u8]>,
    first_row: usize,
    scale: f32,
    y: &mut [f32],
) {
    let rows = first_row..first_row + table.rows;
    let c = table.cols;
    ids.par_chunks(CHUNK_TOKENS)
        .zip(y.par_chunks_mut(CHUNK_TOKENS * c))
        .for_each(|(ids, y)| {
            for (&id, y) in ids.iter().zip(y.chunks_exact_mut(c)) {
                if let Some(row) = row_of(id, &rows) {
                    copy_row(table, row, y);
                    for y in y {
                        *y *= scale;
                    }
                }
            }
        });
}

/// Adds each token's gradient to its row, in the order of tokens.
///
/// On one thread: it reads `dy` once, which is little beside anything else that
/// a step does with it.
pub(super) fn embedding_backward(
    ids: &[u32],
    dy: &[f32],
    rows: &Range<usize>,
    scale: f32,
    grad: &mut [f32],
) {
    let c = dy.len() / ids.len().max(1);
    let tokens = ids.iter().enumerate();
    let mut tokens: Vec<(usize, usize)> = tokens
        .filter_map(|(index, &id)| Some((row_of(id, rows)?, index)))
        .collect();
    tokens.sort_unstable();
    let mut sum = vec![0.0; c];
    simd(
        #[inline(always)]
        || {
            for same in tokens.chunk_by(|one, other| one.0 == other.0) {
                sum.fill(0.0);
                for &(_, index) in same {
                    let dy = &dy[index * c..][..c];
                    sum.iter_mut().zip(dy).for_each(|(sum, &dy)| *sum += dy);
                }
                let grad = &mut grad[same[0].0 * c..][..c];
                grad.iter_mut()
                    .zip(&sum)
                    .for_each(|(grad, &sum)| *grad += scale * sum);
            }
        },
    );
}

/// Fused heads of one task.
const CHUNK_HEADS: usize = 64;

/// Takes `widths` elements in turn out of `fused` for each of `parts`.
pub(super) fn split(fused: &[f32], widths: [usize; 3], parts: [&mut [f32]; 3]) {
    let width: usize = widths.iter().sum();
    let [q, k, v] = parts;
    fused
        .par_chunks(CHUNK_HEADS * width)
        .zip(q.par_chunks_mut(CHUNK_HEADS * widths[0]))
        .zip(k.par_chunks_mut(CHUNK_HEADS * widths[1]))
        .zip(v.par_chunks_mut(CHUNK_HEADS * widths[2]))
        .for_each(|(((fused, q), k), v)| {
            for (index, fused) in fused.chunks_exact(width).enumerate() {
                let mut at = 0;
                for (part, width) in [&mut *q, &mut *k, &mut *v].into_iter().zip(widths) {
                    part[index * width..][..width].copy_from_slice(&fused[at..at + width]);
                    at += width;
                }
            }
        });
}

/// Puts together what [`split`] takes apart.
pub(super) fn merge(parts: [&[f32]; 3], widths: [usize; 3], fused: &mut [f32]) {
    let width: usize = widths.iter().sum();
    fused
        .par_chunks_mut(CHUNK_HEADS * width)
        .enumerate()
        .for_each(|(chunk, fused)| {
            for (index, fused) in (chunk * CHUNK_HEADS..).zip(fused.chunks_exact_mut(width)) {
                let mut at = 0;
                for (part, width) in parts.into_iter().zip(widths) {
                    fused[at..at + width].copy_from_slice(&part[index * width..][..width]);
                    at += width;
                }
            }
        });
}

/// Where the row of `id` lies among `rows`.
#[inline(always)]
pub(super) fn row_of(id: u32, rows: &Range<usize>) -> Option<usize> {
    let id = id as usize;
    rows.contains(&id).then(|| id - rows.start)
}

/// `y = silu(gate) * up`.
pub(super) fn swiglu(gate: &[f32], up: &[f32], y: &mut [f32]) {
    y.par_chunks_mut(CHUNK)
        .zip(gate.par_chunks(CHUNK))
        .zip(up.par_chunks(CHUNK))
        .for_each(|((y, gate), up)| {
            simd(
                #[inline(always)]
                || {
                    for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
                        *y = gate * sigmoid(gate) * up;
                    }
                },
            );
        });
}

/// Overwrites `gate` and `up` with their gradients and `dy` with `y`.
pub(super) fn swiglu_backward(gate: &mut [f32], up: &mut [f32], dy: &mut [f32]) {
    dy.par_chunks_mut(CHUNK)
        .zip(gate.par_chunks_mut(CHUNK))
        .zip(up.par_chunks_mut(CHUNK))
        .for_each(|((dy, gate), up)| {
            simd(
                #[inline(always)]
                || {
                    for ((dy, gate), up) in dy.iter_mut().zip(gate).zip(up) {
                        (*gate, *up, *dy) = swiglu_gradients(*gate, *up, *dy);
                    }
                },
            );
        });
}

/// The gradients of gate and up, and the output.
#[inline(always)]
fn swiglu_gradients(gate: f32, up: f32, dy: f32) -> (f32, f32, f32) {
    let s = sigmoid(gate);
    let silu = gate * s;
    (dy * up * (s + silu * (1.0 - s)), dy * silu, silu * up)
}

/// The logistic function.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}
