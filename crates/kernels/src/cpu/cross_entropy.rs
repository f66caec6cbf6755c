//! Softmax and loss over a vocabulary that is seen part by part.

use rayon::prelude::*;

use super::elementwise::row_of;
use super::vector::{exp, max_of, simd, sum_of_exp};
use crate::IGNORED;

/// Tokens of one task.
const CHUNK_TOKENS: usize = 8;

/// The statistics of each token: largest logit, sum of exponentials, target.
pub(super) type Statistics<'a> = [&'a mut [f32]; 3];

/// Takes logits of rows `first_row ..` into the statistics.
///
/// A NaN is no largest logit, but it reaches the sum and so the loss.
pub(super) fn update(
    logits: &[f32],
    first_row: usize,
    targets: &[u32],
    [max, sum, target]: Statistics<'_>,
    first: bool,
) {
    let v = logits.len() / targets.len().max(1);
    let rows = first_row..first_row + v;
    if first {
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        target.fill(0.0);
    }
    let statistics = max
        .par_chunks_mut(CHUNK_TOKENS)
        .zip(sum.par_chunks_mut(CHUNK_TOKENS))
        .zip(target.par_chunks_mut(CHUNK_TOKENS));
    logits
        .par_chunks(CHUNK_TOKENS * v)
        .zip(targets.par_chunks(CHUNK_TOKENS))
        .zip(statistics)
        .for_each(|((logits, targets), ((max, sum), target))| {
            for (token, logits) in logits.chunks_exact(v).enumerate() {
                (max[token], sum[token]) = simd(
                    #[inline(always)]
                    || grow(logits, max[token], sum[token]),
                );
                if let Some(row) = row_of(targets[token], &rows) {
                    target[token] = logits[row];
                }
            }
        });
}

/// The largest logit and the sum with these logits taken in.
#[inline(always)]
fn grow(logits: &[f32], before: f32, sum: f32) -> (f32, f32) {
    let max = max_of(logits, before);
    let more = sum_of_exp(logits, max);
    (max, sum * exp(before - max) + more)
}

/// `max + ln(sum) - target` summed over targets that are not ignored.
pub(super) fn loss([max, sum, target]: [&[f32]; 3], targets: &[u32]) -> f64 {
    (0..targets.len())
        .filter(|&token| targets[token] != IGNORED)
        .map(|token| {
            let [max, sum, target] = [max, sum, target].map(|x| f64::from(x[token]));
            max + sum.ln() - target
        })
        .sum()
}

/// Overwrites logits with `scale * (softmax - one_hot(target))`.
pub(super) fn backward(
    logits: &mut [f32],
    first_row: usize,
    targets: &[u32],
    [max, sum]: [&[f32]; 2],
    scale: f32,
) {
    let v = logits.len() / targets.len().max(1);
    let rows = first_row..first_row + v;
    logits
        .par_chunks_mut(v)
        .with_min_len(CHUNK_TOKENS)
        .enumerate()
        .for_each(|(token, logits)| {
            if targets[token] == IGNORED {
                return logits.fill(0.0);
            }
            let (max, factor) = (max[token], scale / sum[token]);
            simd(
                #[inline(always)]
                || {
                    for logit in logits.iter_mut() {
                        *logit = exp(*logit - max) * factor;
                    }
                },
            );
            if let Some(row) = row_of(targets[token], &rows) {
                logits[row] -= scale;
            }
        });
}
