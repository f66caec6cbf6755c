//! Layer norm, forward and backward, one token at a time.

use rayon::prelude::*;

use super::vector::{products_with_distances, simd, sum, sum_of_squared_distances};
use crate::workspace::NORM_CHUNK;

/// `y = (x - mean) * rstd * weight + bias`.
pub(super) fn forward(
    x: &[f32],
    [weight, bias]: [&[f32]; 2],
    eps: f32,
    y: &mut [f32],
    stats: &mut [f32],
) {
    let c = weight.len();
    let chunk = NORM_CHUNK * c;
    x.par_chunks(chunk)
        .zip(y.par_chunks_mut(chunk))
        .zip(stats.par_chunks_mut(2 * NORM_CHUNK))
        .for_each(|((x, y), stats)| {
            simd(
                #[inline(always)]
                || {
                    let stats = stats.as_chunks_mut().0;
                    let tokens = x.chunks_exact(c).zip(y.chunks_exact_mut(c)).zip(stats);
                    for ((x, y), stats) in tokens {
                        *stats = forward_token(x, [weight, bias], eps, y);
                    }
                },
            );
        });
}

/// Gives the mean and `rstd`.
#[inline(always)]
fn forward_token(x: &[f32], [weight, bias]: [&[f32]; 2], eps: f32, y: &mut [f32]) -> [f32; 2] {
    let len = x.len() as f32;
    let mean = sum(x) / len;
    let variance = sum_of_squared_distances(x, mean) / len;
    let rstd = 1.0 / (variance + eps).sqrt();
    for (((y, &x), &weight), &bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
        *y = (x - mean) * rstd * weight + bias;
    }
    [mean, rstd]
}

/// What the backward reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saved<'a> {
    /// The input of forward.
    pub(super) x: &'a [f32],
    /// The weight.
    pub(super) weight: &'a [f32],
    /// What forward kept: mean and `rstd` of each token.
    pub(super) stats: &'a [f32],
    /// The gradient of the output.
    pub(super) dy: &'a [f32],
}

/// Adds the gradient to `dx`, and writes those of weight and bias over each chunk
/// of tokens to `partials`.
///
/// With `n = (x - mean) * rstd` and `dn = dy * weight`:
///
/// ```text
/// dx += rstd * (dn - mean(dn) - n * mean(dn * n))
/// partial of the weight = sum of dy * n      of the bias = sum of dy
/// ```
pub(super) fn backward(saved: Saved<'_>, dx: &mut [f32], partials: &mut [f32]) {
    let c = saved.weight.len();
    dx.par_chunks_mut(NORM_CHUNK * c)
        .zip(partials.par_chunks_mut(2 * c))
        .enumerate()
        .for_each(|(index, (dx, partial))| {
            let (first, tokens) = (index * NORM_CHUNK, dx.len() / c);
            let elements = first * c..(first + tokens) * c;
            let part = Saved {
                x: &saved.x[elements.clone()],
                stats: &saved.stats[2 * first..2 * (first + tokens)],
                dy: &saved.dy[elements],
                ..saved
            };
            simd(
                #[inline(always)]
                || backward_chunk(part, dx, partial),
            );
        });
}

#[inline(always)]
fn backward_chunk(saved: Saved<'_>, dx: &mut [f32], partial: &mut [f32]) {
    let c = saved.weight.len();
    partial.fill(0.0);
    let (of_weight, of_bias) = partial.split_at_mut(c);
    let stats = saved.stats.as_chunks().0;
    let tokens = saved.x.chunks_exact(c).zip(saved.dy.chunks_exact(c));
    for (((x, dy), stats), dx) in tokens.zip(stats).zip(dx.chunks_exact_mut(c)) {
        let [mean, rstd] = *stats;
        let partials = of_weight.iter_mut().zip(&mut *of_bias);
        for (((of_weight, of_bias), &x), &dy) in partials.zip(x).zip(dy) {
            *of_weight += dy * ((x - mean) * rstd);
            *of_bias += dy;
        }
        backward_token([x, saved.weight, dy], *stats, dx);
    }
}

#[inline(always)]
fn backward_token([x, weight, dy]: [&[f32]; 3], [mean, rstd]: [f32; 2], dx: &mut [f32]) {
    let len = x.len() as f32;
    let [sum, sum_with_distances] = products_with_distances([dy, weight, x], mean);
    let mean_dn = sum / len;
    let mean_dn_n = sum_with_distances * rstd / len;
    for (((dx, &x), &weight), &dy) in dx.iter_mut().zip(x).zip(weight).zip(dy) {
        *dx += rstd * (dy * weight - mean_dn - (x - mean) * rstd * mean_dn_n);
    }
}
