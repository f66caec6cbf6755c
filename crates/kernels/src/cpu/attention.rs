//! Causal attention over tiles, forward: scores never exist but for one tile.
//!
//! ```text
//! for each tile of keys:  s = q k^T / sqrt(h)      m' = max(m, max(s))
//!                         p = exp(s - m')          l  = l exp(m - m') + sum(p)
//!                         y = y exp(m - m') + p v
//! y = y / l               lse = m + ln(l)
//! ```
//!
//! (Dao et al. 2022.) A tile is the rows of one query head, or, for a single
//! query token, the query heads that share keys. Tiles of keys that a window hides
//! from all rows are left out.

use std::ops::Range;

use super::matrix::{Matrix, MatrixMut, matmul};
use super::tasks;
use super::vector::{exp, exp_in_place, max_of, simd};
use crate::alibi::{alibi_bias, alibi_position, alibi_slopes};
use crate::workspace::{KEY_TILE, QUERY_TILE};
use crate::{AttentionShape, ScoreBias};

/// Some rows of queries over the keys of one head.
struct Task<'a> {
    q: Matrix<'a>,
    k: Matrix<'a>,
    v: Matrix<'a>,
    y: MatrixMut<'a>,
    lse: MatrixMut<'a>,
    /// Keys that the first row sees.
    first_seen: Range<usize>,
    /// How many more each next row sees: 1 for tokens, 0 for heads of one token.
    more_seen: usize,
    /// The most that a row sees, the last ones.
    window: usize,
    /// Slopes of the rows' biases: one for all, one for each, or no biases.
    slopes: &'a [f32],
}

impl Task<'_> {
    /// Keys that a row sees.
    #[inline(always)]
    fn seen(&self, row: usize) -> Range<usize> {
        let end = self.first_seen.end + self.more_seen * row;
        end.saturating_sub(self.window)..end
    }

    /// Keys that any row sees.
    fn all_seen(&self) -> Range<usize> {
        self.first_seen.start..self.seen(self.q.num_rows() - 1).end
    }
}

/// Where the numbers of one attention call lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Views<'a> {
    /// Rows are query tokens.
    pub(super) q: Matrix<'a>,
    /// Rows are key tokens.
    pub(super) k: Matrix<'a>,
    /// Rows are key tokens.
    pub(super) v: Matrix<'a>,
}

impl<'a> Views<'a> {
    /// Keys and values may be longer than needed.
    pub(super) fn new([q, k, v]: [&'a [f32]; 3], shape: &AttentionShape) -> Self {
        let keys = shape.kv_heads * shape.head_dim;
        let queries = shape.heads * shape.head_dim;
        let (num_keys, num_queries) = (
            shape.batch * shape.num_keys,
            shape.batch * shape.num_queries,
        );
        Self {
            q: Matrix::new(q, num_queries, queries, queries),
            k: Matrix::new(k, num_keys, keys, keys),
            v: Matrix::new(v, num_keys, keys, keys),
        }
    }

    /// One query head of one sequence.
    pub(super) fn head(&self, shape: &AttentionShape, sequence: usize, head: usize) -> Self {
        let h = shape.head_dim;
        let kv_head = head / (shape.heads / shape.kv_heads);
        let queries = sequence * shape.num_queries..(sequence + 1) * shape.num_queries;
        let keys = sequence * shape.num_keys..(sequence + 1) * shape.num_keys;
        let kv = kv_head * h..(kv_head + 1) * h;
        Self {
            q: self.q.block(queries, head * h..(head + 1) * h),
            k: self.k.block(keys.clone(), kv.clone()),
            v: self.v.block(keys, kv),
        }
    }
}

/// `1 / sqrt(h)`.
#[expect(clippy::cast_possible_truncation, reason = "rounded once, at the end")]
pub(super) fn score_scale(head_dim: usize) -> f32 {
    (1.0 / (head_dim as f64).sqrt()) as f32
}

/// The slope of each head's bias; none if there is no bias.
pub(super) fn slopes(shape: &AttentionShape) -> Vec<f32> {
    match shape.bias {
        ScoreBias::None => Vec::new(),
        ScoreBias::Alibi => alibi_slopes(shape.heads),
    }
}

/// The slopes of some heads, if there are any.
fn slopes_of(slopes: &[f32], heads: Range<usize>) -> &[f32] {
    slopes.get(heads).unwrap_or_default()
}

/// Positions of the keys of a tile, from `first` on.
pub(super) fn positions(first: usize) -> [f32; KEY_TILE] {
    std::array::from_fn(|key| alibi_position(first + key))
}

/// Adds the biases of one row to its scaled scores.
#[inline(always)]
pub(super) fn add_biases(scores: &mut [f32], positions: &[f32], slope: f32, scale: f32) {
    for (score, &position) in scores.iter_mut().zip(positions) {
        *score += alibi_bias(slope, position) * scale;
    }
}

/// Attention's output, and the log-sum-exp of each query and head.
pub(super) fn forward(
    qkv: [&[f32]; 3],
    shape: &AttentionShape,
    y: &mut [f32],
    lse: &mut [f32],
    (workspace, num_threads): (&mut [f32], usize),
) {
    let scale = score_scale(shape.head_dim);
    let views = Views::new(qkv, shape);
    let slopes = slopes(shape);
    let tasks = if shape.num_queries == 1 {
        single_token_tasks(views, shape, &slopes, y, lse)
    } else {
        head_tasks(views, shape, &slopes, y, lse)
    };
    tasks::run(tasks, workspace, num_threads, |task, tile| {
        forward_rows(task, scale, tile);
    });
}

/// A task for each tile of queries and head; those that see most keys first.
fn head_tasks<'a>(
    views: Views<'a>,
    shape: &AttentionShape,
    slopes: &'a [f32],
    y: &'a mut [f32],
    lse: &'a mut [f32],
) -> Vec<Task<'a>> {
    let (width, rows) = (
        shape.heads * shape.head_dim,
        shape.batch * shape.num_queries,
    );
    let sequences = |matrix: MatrixMut<'a>| matrix.row_chunks(shape.num_queries);
    let ys = sequences(MatrixMut::new(y, rows, width, width));
    let lses = sequences(MatrixMut::new(lse, rows, shape.heads, shape.heads));
    let mut tasks = Vec::new();
    for (sequence, (y, lse)) in ys.into_iter().zip(lses).enumerate() {
        let heads = y
            .col_chunks(shape.head_dim)
            .into_iter()
            .zip(lse.col_chunks(1));
        for (head, (y, lse)) in heads.enumerate() {
            let view = views.head(shape, sequence, head);
            let tiles = y
                .row_chunks(QUERY_TILE)
                .into_iter()
                .zip(lse.row_chunks(QUERY_TILE));
            for (tile, (y, lse)) in tiles.enumerate() {
                let first = tile * QUERY_TILE;
                tasks.push(Task {
                    q: view.q.rows(first..first + y.num_rows()),
                    k: view.k,
                    v: view.v,
                    y,
                    lse,
                    first_seen: shape.seen(first),
                    more_seen: 1,
                    window: shape.window.unwrap_or(usize::MAX),
                    slopes: slopes_of(slopes, head..head + 1),
                });
            }
        }
    }
    tasks.sort_by_key(|task| std::cmp::Reverse(task.all_seen().len()));
    tasks
}

/// A task for each token and key head: its query heads are the rows.
fn single_token_tasks<'a>(
    views: Views<'a>,
    shape: &AttentionShape,
    slopes: &'a [f32],
    y: &'a mut [f32],
    lse: &'a mut [f32],
) -> Vec<Task<'a>> {
    let (h, heads) = (shape.head_dim, shape.batch * shape.heads);
    let group = shape.heads / shape.kv_heads;
    let ys = MatrixMut::new(y, heads, h, h).row_chunks(group);
    let lses = MatrixMut::new(lse, heads, 1, 1).row_chunks(group);
    ys.into_iter()
        .zip(lses)
        .enumerate()
        .map(|(index, (y, lse))| {
            let (sequence, kv_head) = (index / shape.kv_heads, index % shape.kv_heads);
            let view = views.head(shape, sequence, kv_head * group);
            let first = kv_head * group * h;
            let row = &views.q.row(sequence)[first..first + group * h];
            Task {
                q: Matrix::new(row, group, h, h),
                k: view.k,
                v: view.v,
                y,
                lse,
                first_seen: shape.seen(0),
                more_seen: 0,
                window: shape.window.unwrap_or(usize::MAX),
                slopes: slopes_of(slopes, kv_head * group..(kv_head + 1) * group),
            }
        })
        .collect()
}

/// Largest score and sum of exponentials of one row so far.
#[derive(Debug, Clone, Copy)]
struct Running {
    max: f32,
    sum: f32,
}

fn forward_rows(mut task: Task<'_>, scale: f32, tile: &mut [f32]) {
    let (rows, seen) = (task.q.num_rows(), task.all_seen());
    // A group of query heads may have more rows than a tile has.
    let mut running = vec![
        Running {
            max: f32::NEG_INFINITY,
            sum: 0.0
        };
        rows
    ];
    for first in seen.clone().step_by(KEY_TILE) {
        let keys = first..seen.end.min(first + KEY_TILE);
        let width = keys.len();
        let scores = &mut tile[..rows * width];
        let k = task.k.rows(keys.clone()).transposed();
        matmul(
            &mut MatrixMut::new(scores, rows, width, width),
            false,
            scale,
            task.q,
            k,
        );
        if !task.slopes.is_empty() {
            add_tile_biases(task.slopes, scores, width, (first, scale));
        }
        simd(
            #[inline(always)]
            || softmax_tile(&mut task, scores, &mut running, first),
        );
        let p = Matrix::new(scores, rows, width, width);
        let adds = first > seen.start;
        matmul(&mut task.y, adds, 1.0, p, task.v.rows(keys));
    }
    for (row, running) in running.into_iter().enumerate() {
        let inverse = 1.0 / running.sum;
        task.y.row(row).iter_mut().for_each(|y| *y *= inverse);
        task.lse.row(row)[0] = running.max + running.sum.ln();
    }
}

/// Every row of the tile whose first key is `first`, with one slope or its own.
fn add_tile_biases(slopes: &[f32], scores: &mut [f32], width: usize, (first, scale): (usize, f32)) {
    let positions = positions(first);
    simd(
        #[inline(always)]
        || {
            for (row, scores) in scores.chunks_exact_mut(width).enumerate() {
                let slope = slopes[row.min(slopes.len() - 1)];
                add_biases(scores, &positions, slope, scale);
            }
        },
    );
}

/// Every row of the tile whose first key is `first`.
#[inline(always)]
fn softmax_tile(task: &mut Task<'_>, scores: &mut [f32], running: &mut [Running], first: usize) {
    let width = scores.len() / running.len();
    for (row, (scores, running)) in scores.chunks_exact_mut(width).zip(running).enumerate() {
        let Range { start, end } = task.seen(row);
        let in_tile = |key: usize| key.saturating_sub(first).min(width);
        let seen = in_tile(start)..in_tile(end);
        softmax_row(scores, seen, running, task.y.row(row));
    }
}

/// Scores become exponentials, of keys not seen 0; `y` is brought to the new
/// largest score.
#[inline(always)]
fn softmax_row(scores: &mut [f32], seen: Range<usize>, running: &mut Running, y: &mut [f32]) {
    let (scores, hidden) = scores.split_at_mut(seen.end);
    hidden.fill(0.0);
    let (hidden, scores) = scores.split_at_mut(seen.start);
    hidden.fill(0.0);
    if scores.is_empty() {
        // Its window begins behind this tile; there may be no largest score yet.
        return;
    }
    let before = running.max;
    let max = max_of(scores, before);
    let correction = exp(before - max);
    running.max = max;
    running.sum = running.sum * correction + exp_in_place(scores, max);
    for y in y {
        *y *= correction;
    }
}
