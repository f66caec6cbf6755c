//! Causal attention over tiles, backward.
//!
//! With `p = exp(s - lse)`, the softmax weights made again from the scores, and
//! `d = sum(dy * y)` of each query:
//!
//! ```text
//! dv += p^T dy      dp = dy v^T      ds = p (dp - d) / sqrt(h)
//! dq += ds k        dk += ds^T q
//! ```
//!
//! A task is one query head of one sequence. Where query heads share keys, each
//! has its own `dk` and `dv`, and those of a group are added in order of heads.

use std::ops::Range;

use rayon::prelude::*;

use super::attention::{Views, add_biases, positions, score_scale, slopes};
use super::matrix::{Matrix, MatrixMut, matmul};
use super::tasks;
use super::vector::{dot, exp, simd};
use crate::AttentionShape;
use crate::workspace::{KEY_TILE, QUERY_TILE, attention_backward_tiles};

/// One query head of one sequence.
struct Task<'a> {
    views: Views<'a>,
    y: Matrix<'a>,
    dy: Matrix<'a>,
    lse: Matrix<'a>,
    dq: MatrixMut<'a>,
    dk: MatrixMut<'a>,
    dv: MatrixMut<'a>,
    /// `sum(dy * y)` of each query.
    sums: &'a mut [f32],
    /// The most keys that a query sees, the last ones.
    window: usize,
    /// The slope of its biases, if it has any.
    slope: Option<f32>,
}

impl Task<'_> {
    /// The first key that a query sees.
    #[inline(always)]
    fn first_seen(&self, query: usize) -> usize {
        (query + 1).saturating_sub(self.window)
    }
}

/// What the backward reads beside queries, keys and values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saved<'a> {
    /// The output of forward.
    pub(super) y: &'a [f32],
    /// The log-sum-exp of forward.
    pub(super) lse: &'a [f32],
    /// The gradient of the output.
    pub(super) dy: &'a [f32],
}

/// Writes the gradients of queries, keys and values.
pub(super) fn backward(
    qkv: [&[f32]; 3],
    saved: Saved<'_>,
    shape: &AttentionShape,
    [dq, dk, dv]: [&mut [f32]; 3],
    (workspace, num_threads): (&mut [f32], usize),
) {
    let scale = score_scale(shape.head_dim);
    let (tiles, rest) = workspace.split_at_mut(attention_backward_tiles(shape) * num_threads);
    let (sums, partials) = rest.split_at_mut(shape.batch * shape.num_queries * shape.heads);
    let shared = shape.heads != shape.kv_heads;
    let (dk_of_heads, dv_of_heads) = partials.split_at_mut(partials.len() / 2);
    let keys = if shared {
        [&mut *dk_of_heads, &mut *dv_of_heads]
    } else {
        [&mut *dk, &mut *dv]
    };
    let tasks = tasks_of(Views::new(qkv, shape), saved, shape, dq, keys, sums);
    tasks::run(tasks, tiles, num_threads, |task, tile| {
        backward_head(task, scale, tile);
    });
    if shared {
        add_group(dk_of_heads, shape, dk);
        add_group(dv_of_heads, shape, dv);
    }
}

/// Every head of each sequence of a `[tokens, heads * h]` matrix.
fn heads<'a>(data: &'a mut [f32], shape: &AttentionShape) -> impl Iterator<Item = MatrixMut<'a>> {
    let (h, width) = (shape.head_dim, shape.heads * shape.head_dim);
    MatrixMut::new(data, shape.batch * shape.num_queries, width, width)
        .row_chunks(shape.num_queries)
        .into_iter()
        .flat_map(move |sequence| sequence.col_chunks(h))
}

fn tasks_of<'a>(
    views: Views<'a>,
    saved: Saved<'a>,
    shape: &AttentionShape,
    dq: &'a mut [f32],
    [dk, dv]: [&'a mut [f32]; 2],
    sums: &'a mut [f32],
) -> Vec<Task<'a>> {
    let (h, width, num_heads) = (shape.head_dim, shape.heads * shape.head_dim, shape.heads);
    let slopes = slopes(shape);
    let num_tokens = shape.batch * shape.num_queries;
    let y = Matrix::new(saved.y, num_tokens, width, width);
    let dy = Matrix::new(saved.dy, num_tokens, width, width);
    let lse = Matrix::new(saved.lse, num_tokens, num_heads, num_heads);
    let gradients = heads(dq, shape).zip(heads(dk, shape).zip(heads(dv, shape)));
    let sums = sums.chunks_exact_mut(shape.num_queries);
    gradients
        .zip(sums)
        .enumerate()
        .map(|(index, ((dq, (dk, dv)), sums))| {
            let (sequence, head) = (index / num_heads, index % num_heads);
            let tokens = sequence * shape.num_queries..(sequence + 1) * shape.num_queries;
            let cols = head * h..(head + 1) * h;
            Task {
                views: views.head(shape, sequence, head),
                y: y.block(tokens.clone(), cols.clone()),
                dy: dy.block(tokens.clone(), cols),
                lse: lse.block(tokens, head..head + 1),
                dq,
                dk,
                dv,
                sums,
                window: shape.window.unwrap_or(usize::MAX),
                slope: slopes.get(head).copied(),
            }
        })
        .collect()
}

fn backward_head(mut task: Task<'_>, scale: f32, tile: &mut [f32]) {
    let num_tokens = task.y.num_rows();
    task.dq.fill(0.0);
    row_sums(task.dy, task.y, task.sums);
    for first_key in (0..num_tokens).step_by(KEY_TILE) {
        let keys = first_key..num_tokens.min(first_key + KEY_TILE);
        // Queries before the first key of the tile see none of it, nor do those
        // whose windows begin behind its last.
        let end = num_tokens.min((keys.end - 1).saturating_add(task.window));
        for first in (first_key..end).step_by(QUERY_TILE) {
            let queries = first..num_tokens.min(first + QUERY_TILE);
            let seen = keys.start.max(task.first_seen(first))..keys.end.min(queries.end);
            backward_tile(&mut task, scale, queries, seen, keys.clone(), tile);
        }
    }
}

fn row_sums(dy: Matrix<'_>, y: Matrix<'_>, sums: &mut [f32]) {
    simd(
        #[inline(always)]
        || {
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum = dot(dy.row(row), y.row(row));
            }
        },
    );
}

/// One tile of queries and the keys of `keys` that any of them sees.
fn backward_tile(
    task: &mut Task<'_>,
    scale: f32,
    queries: Range<usize>,
    seen: Range<usize>,
    keys: Range<usize>,
    tile: &mut [f32],
) {
    let (rows, width) = (queries.len(), seen.len());
    let (p, ds) = tile.split_at_mut(tile.len() / 2);
    let (p, ds) = (&mut p[..rows * width], &mut ds[..rows * width]);
    let (q, dy) = (
        task.views.q.rows(queries.clone()),
        task.dy.rows(queries.clone()),
    );
    let (k, v) = (
        task.views.k.rows(seen.clone()),
        task.views.v.rows(seen.clone()),
    );
    matmul(
        &mut MatrixMut::new(p, rows, width, width),
        false,
        scale,
        q,
        k.transposed(),
    );
    matmul(
        &mut MatrixMut::new(ds, rows, width, width),
        false,
        1.0,
        dy,
        v.transposed(),
    );
    let positions = task.slope.map(|_| positions(seen.start));
    simd(
        #[inline(always)]
        || {
            if let (Some(slope), Some(positions)) = (task.slope, &positions) {
                for scores in p.chunks_exact_mut(width) {
                    add_biases(scores, positions, slope, scale);
                }
            }
            softmax_gradients(task, [p, ds], (queries.start, seen.clone()), scale);
        },
    );
    // The first queries that see a key of the tile are those of its first row,
    // which begin its gradient; all keys of the tile must be seen by then.
    let (p, ds) = (
        Matrix::new(p, rows, width, width),
        Matrix::new(ds, rows, width, width),
    );
    let cols = 0..task.y.num_cols();
    if queries.start == keys.start {
        task.dk.block(keys.clone(), cols.clone()).fill(0.0);
        task.dv.block(keys, cols.clone()).fill(0.0);
    }
    let mut dv = task.dv.block(seen.clone(), cols.clone());
    matmul(&mut dv, true, 1.0, p.transposed(), dy);
    let mut dk = task.dk.block(seen, cols.clone());
    matmul(&mut dk, true, 1.0, ds.transposed(), q);
    matmul(&mut task.dq.block(queries, cols), true, 1.0, ds, k);
}

/// Every row of the tile that begins at these queries and keys.
#[inline(always)]
fn softmax_gradients(
    task: &Task<'_>,
    [p, ds]: [&mut [f32]; 2],
    (first_query, seen): (usize, Range<usize>),
    scale: f32,
) {
    let width = seen.len();
    let rows = p.chunks_exact_mut(width).zip(ds.chunks_exact_mut(width));
    for (query, (p, ds)) in (first_query..).zip(rows) {
        let in_tile = |key: usize| key.saturating_sub(seen.start).min(width);
        score_gradients(
            p,
            ds,
            in_tile(task.first_seen(query))..in_tile(query + 1),
            [task.lse.row(query)[0], task.sums[query], scale],
        );
    }
}

/// Scores become softmax weights, `dp` becomes `ds`; 0 for keys not seen.
#[inline(always)]
fn score_gradients(p: &mut [f32], ds: &mut [f32], seen: Range<usize>, [lse, sum, scale]: [f32; 3]) {
    for part in [&mut *p, &mut *ds] {
        part[..seen.start].fill(0.0);
        part[seen.end..].fill(0.0);
    }
    for (p, ds) in p[seen.clone()].iter_mut().zip(&mut ds[seen]) {
        *p = exp(*p - lse);
        *ds = *p * (*ds - sum) * scale;
    }
}

/// Adds the gradients of the query heads that share a key head, in their order.
fn add_group(of_heads: &[f32], shape: &AttentionShape, gradient: &mut [f32]) {
    let (h, group) = (shape.head_dim, shape.heads / shape.kv_heads);
    let (width, kv_width) = (shape.heads * h, shape.kv_heads * h);
    gradient
        .par_chunks_mut(kv_width)
        .with_min_len(32)
        .zip(of_heads.par_chunks(width))
        .for_each(|(gradient, of_heads)| {
            let groups = gradient
                .chunks_exact_mut(h)
                .zip(of_heads.chunks_exact(group * h));
            simd(
                #[inline(always)]
                || {
                    for (gradient, heads) in groups {
                        gradient.copy_from_slice(&heads[..h]);
                        for head in heads[h..].chunks_exact(h) {
                            gradient.iter_mut().zip(head).for_each(|(g, &x)| *g += x);
                        }
                    }
                },
            );
        });
}
