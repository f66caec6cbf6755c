//! Linear layers: products with weights that lie in segments and may be bf16.
//!
//! Threads share the output, not the inner dimension, so that no sum is split
//! between threads: forward by output features, dgrad by input features, wgrad
//! by whichever is larger. Each thread decodes what it needs of a bf16 weight
//! into a panel of its own and never waits for another.
//!
//! Measured beside the `gemm` crate's own threads (f32, 2 threads, one run, the
//! layers of a 135M model at 512 and 2048 tokens, a limit of about 300 GFLOP/s):
//! from a tenth slower (forward of 7168 rows, 261 for 289) to a third faster
//! (wgrad of 2048 tokens and 192 rows, 263 for 192).

use std::ops::Range;

use rayon::prelude::*;

use super::matrix::{Matrix, MatrixMut, matmul};
use super::tasks;
use super::vector::{dot_rows, dot_rows_bf16, simd, widen};
use super::weights::{Piece, pieces};
use crate::shapes::LinearShape;
use crate::workspace::{Blocks, dgrad_blocks, forward_blocks, is_streamed, wgrad_parts};
use crate::{Weight, WeightFormat};

/// Rows of a weight that one task of a single token's product takes.
const STREAMED_ROWS: usize = 64;

/// The fewest columns worth a task of a single token's dgrad.
const STREAMED_COLS: usize = 256;

/// A block of an output: which tokens and features, and where to write it.
struct Block<'a> {
    tokens: Range<usize>,
    features: Range<usize>,
    y: MatrixMut<'a>,
}

/// Every block of `y`, whose rows are tokens, features first.
fn blocks<'a>(y: MatrixMut<'a>, sizes: &Blocks) -> Vec<Block<'a>> {
    let mut blocks = Vec::new();
    let mut token = 0;
    for rows in y.row_chunks(sizes.tokens) {
        let tokens = token..token + rows.num_rows();
        token = tokens.end;
        let mut feature = 0;
        for y in rows.col_chunks(sizes.features) {
            let features = feature..feature + y.num_cols();
            feature = features.end;
            blocks.push(Block {
                tokens: tokens.clone(),
                features,
                y,
            });
        }
    }
    blocks
}

/// `y = x weight^T + bias`, or adds that to `y`.
pub(super) fn forward(
    x: &[f32],
    weight: &Weight<&[u8]>,
    bias: Option<&[f32]>,
    (y, adds): (&mut [f32], bool),
    (workspace, num_threads): (&mut [f32], usize),
) {
    let (o, i) = (weight.rows, weight.cols);
    let t = x.len() / i;
    if is_streamed(t, weight.format) {
        return forward_streamed(x, weight, bias, y, adds);
    }
    let x = Matrix::new(x, t, i, i);
    let sizes = forward_blocks(t, o, i, weight.format, num_threads);
    let tasks = blocks(MatrixMut::new(y, t, o, o), &sizes);
    tasks::run(tasks, workspace, num_threads, |mut block, panel| {
        let features = block.features.clone();
        if let Some(bias) = bias {
            add_bias(&mut block.y, &bias[features.clone()], adds);
        }
        let x = x.rows(block.tokens);
        for piece in pieces(weight, features.clone(), usize::MAX) {
            let cols = piece.rows.start - features.start..piece.rows.end - features.start;
            let mut y = block.y.block(0..x.num_rows(), cols);
            forward_piece(
                x,
                &piece,
                &mut y,
                adds || bias.is_some(),
                (panel, sizes.inner),
            );
        }
    });
}

/// One piece's features, over parts of the inner dimension that fit the panel.
fn forward_piece(
    x: Matrix<'_>,
    piece: &Piece<'_>,
    y: &mut MatrixMut<'_>,
    adds: bool,
    (panel, inner): (&mut [f32], usize),
) {
    let (rows, i) = (piece.rows.len(), x.num_cols());
    if let Some(weight) = piece.in_place() {
        let weight = Matrix::new(weight, rows, i, i);
        return matmul(y, adds, 1.0, x, weight.transposed());
    }
    for first in (0..i).step_by(inner) {
        let cols = first..i.min(first + inner);
        piece.decode(cols.clone(), panel);
        let weight = Matrix::new(panel, rows, cols.len(), cols.len());
        matmul(y, adds || first > 0, 1.0, x.cols(cols), weight.transposed());
    }
}

/// Writes the bias to each row, or adds it.
fn add_bias(y: &mut MatrixMut<'_>, bias: &[f32], adds: bool) {
    for row in 0..y.num_rows() {
        let row = y.row(row);
        if adds {
            row.iter_mut().zip(bias).for_each(|(y, &bias)| *y += bias);
        } else {
            row.copy_from_slice(bias);
        }
    }
}

/// One token: each weight is read once and used once, so it is decoded on the
/// way into the sum.
fn forward_streamed(
    x: &[f32],
    weight: &Weight<&[u8]>,
    bias: Option<&[f32]>,
    y: &mut [f32],
    adds: bool,
) {
    let tasks = y.par_chunks_mut(STREAMED_ROWS).enumerate();
    tasks.for_each(|(chunk, y)| {
        let first = chunk * STREAMED_ROWS;
        for piece in pieces(weight, first..first + y.len(), usize::MAX) {
            let at = piece.rows.start - first;
            let y = &mut y[at..at + piece.rows.len()];
            let bias = bias.map(|bias| &bias[piece.rows.clone()]);
            stream_piece(x, &piece, bias, y, adds);
        }
    });
}

/// One piece's rows, at most [`STREAMED_ROWS`].
fn stream_piece(x: &[f32], piece: &Piece<'_>, bias: Option<&[f32]>, y: &mut [f32], adds: bool) {
    let products = &mut [0.0; STREAMED_ROWS][..y.len()];
    match piece.in_place() {
        Some(rows) => dot_rows(x, rows, products),
        None => dot_rows_bf16(x, piece.bf16(), products),
    }
    for (row, (y, &product)) in y.iter_mut().zip(&*products).enumerate() {
        let product = product + bias.map_or(0.0, |bias| bias[row]);
        *y = if adds { *y + product } else { product };
    }
}

/// `dx = dy weight`, or adds that to `dx`.
pub(super) fn dgrad(
    dy: &[f32],
    weight: &Weight<&[u8]>,
    (dx, adds): (&mut [f32], bool),
    (workspace, num_threads): (&mut [f32], usize),
) {
    let (o, i) = (weight.rows, weight.cols);
    let t = dy.len() / o;
    if is_streamed(t, weight.format) {
        return dgrad_streamed(dy, weight, dx, adds);
    }
    let dy = Matrix::new(dy, t, o, o);
    let sizes = dgrad_blocks(t, o, i, weight.format, num_threads);
    let tasks = blocks(MatrixMut::new(dx, t, i, i), &sizes);
    tasks::run(tasks, workspace, num_threads, |mut block, panel| {
        let dy = dy.rows(block.tokens);
        for first in (0..o).step_by(sizes.inner) {
            let rows = first..o.min(first + sizes.inner);
            let cols = block.features.clone();
            let adds = adds || first > 0;
            dgrad_rows(dy, weight, rows, cols, (&mut block.y, adds), panel);
        }
    });
}

/// What some rows of the weight add: multiplied together whatever segments they
/// come from, so that no sum depends on how a weight is cut. f32 rows of one
/// segment are read where they lie, others from the panel.
fn dgrad_rows(
    dy: Matrix<'_>,
    weight: &Weight<&[u8]>,
    rows: Range<usize>,
    cols: Range<usize>,
    (y, adds): (&mut MatrixMut<'_>, bool),
    panel: &mut [f32],
) {
    let dy = dy.cols(rows.clone());
    let whole = pieces(weight, rows.clone(), usize::MAX).find(|piece| piece.rows == rows);
    if let Some(elements) = whole.and_then(|piece| piece.in_place()) {
        let elements = Matrix::new(elements, rows.len(), weight.cols, weight.cols);
        return matmul(y, adds, 1.0, dy, elements.cols(cols));
    }
    let width = panel.len() / rows.len();
    for first in cols.clone().step_by(width) {
        let part = first..cols.end.min(first + width);
        for piece in pieces(weight, rows.clone(), usize::MAX) {
            let at = (piece.rows.start - rows.start) * part.len();
            piece.decode(part.clone(), &mut panel[at..]);
        }
        let panel = Matrix::new(panel, rows.len(), part.len(), part.len());
        let of_block = first - cols.start..part.end - cols.start;
        let mut y = y.block(0..dy.num_rows(), of_block);
        matmul(&mut y, adds, 1.0, dy, panel);
    }
}

/// One token's `dx`: the weight's rows, each times its `dy`, added in order.
fn dgrad_streamed(dy: &[f32], weight: &Weight<&[u8]>, dx: &mut [f32], adds: bool) {
    let size = weight.format.size_bytes();
    let tasks = dx.par_chunks_mut(STREAMED_COLS).enumerate();
    tasks.for_each(|(chunk, dx)| {
        if !adds {
            dx.fill(0.0);
        }
        let first = chunk * STREAMED_COLS;
        let bytes = first * size..(first + dx.len()) * size;
        for piece in pieces(weight, 0..weight.rows, usize::MAX) {
            let dy = &dy[piece.rows.clone()];
            simd(
                #[inline(always)]
                || add_rows(dy, &piece, bytes.clone(), dx),
            );
        }
    });
}

#[inline(always)]
fn add_rows(dy: &[f32], piece: &Piece<'_>, bytes: Range<usize>, dx: &mut [f32]) {
    for (row, &dy) in piece.byte_rows().zip(dy) {
        let row = &row[bytes.clone()];
        match piece.format() {
            WeightFormat::F32 => {
                for (dx, &weight) in dx.iter_mut().zip(row.as_chunks().0) {
                    *dx += dy * f32::from_le_bytes(weight);
                }
            }
            WeightFormat::Bf16 => {
                for (dx, &weight) in dx.iter_mut().zip(row.as_chunks().0) {
                    *dx += dy * widen(weight);
                }
            }
            WeightFormat::E4m3 | WeightFormat::Nested(_) => {
                unreachable!("tiles are not streamed")
            }
        }
    }
}

/// `grad = dy^T x`, or adds that to `grad`.
pub(super) fn wgrad(
    dy: &[f32],
    x: &[f32],
    LinearShape { t, o, i }: LinearShape,
    (grad, adds): (&mut [f32], bool),
    num_threads: usize,
) {
    let dy = Matrix::new(dy, t, o, o).transposed();
    let x = Matrix::new(x, t, i, i);
    let (rows, cols) = wgrad_parts(o, i, num_threads);
    let sizes = Blocks {
        tokens: rows,
        features: cols,
        inner: t,
    };
    let tasks = blocks(MatrixMut::new(grad, o, i, i), &sizes);
    tasks::run(tasks, &mut [], num_threads, |mut block, _| {
        let (dy, x) = (dy.rows(block.tokens), x.cols(block.features));
        matmul(&mut block.y, adds, 1.0, dy, x);
    });
}

/// Columns of a bias gradient that one task sums.
const BIAS_COLS: usize = 256;

/// Adds the column sums of `dy` to `grad`: summed first, then added.
pub(super) fn bias_grad(dy: &[f32], grad: &mut [f32]) {
    let o = grad.len();
    grad.par_chunks_mut(BIAS_COLS)
        .enumerate()
        .for_each(|(chunk, grad)| {
            let first = chunk * BIAS_COLS;
            simd(
                #[inline(always)]
                || {
                    let sums = &mut [0.0; BIAS_COLS][..grad.len()];
                    for dy in dy.chunks_exact(o) {
                        let dy = &dy[first..first + sums.len()];
                        sums.iter_mut().zip(dy).for_each(|(sum, &dy)| *sum += dy);
                    }
                    grad.iter_mut()
                        .zip(&*sums)
                        .for_each(|(grad, &sum)| *grad += sum);
                },
            );
        });
}
