//! RMS norm, forward and backward, one token at a time.

use rayon::prelude::*;

use super::vector::{dot, dot3, simd};
use crate::workspace::NORM_CHUNK;

/// `y = x * rstd * weight`.
pub(super) fn forward(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32], rstd: &mut [f32]) {
    let c = weight.len();
    let chunk = NORM_CHUNK * c;
    x.par_chunks(chunk)
        .zip(y.par_chunks_mut(chunk))
        .zip(rstd.par_chunks_mut(NORM_CHUNK))
        .for_each(|((x, y), rstd)| {
            simd(
                #[inline(always)]
                || {
                    let tokens = x.chunks_exact(c).zip(y.chunks_exact_mut(c)).zip(rstd);
                    for ((x, y), rstd) in tokens {
                        *rstd = forward_token(x, weight, eps, y);
                    }
                },
            );
        });
}

#[inline(always)]
fn forward_token(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) -> f32 {
    let mean = dot(x, x) / x.len() as f32;
    let rstd = 1.0 / (mean + eps).sqrt();
    for ((y, &x), &weight) in y.iter_mut().zip(x).zip(weight) {
        *y = x * rstd * weight;
    }
    rstd
}

/// What the backward reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saved<'a> {
    /// The input of forward.
    pub(super) x: &'a [f32],
    /// The weight.
    pub(super) weight: &'a [f32],
    /// What forward kept.
    pub(super) rstd: &'a [f32],
    /// The gradient of the output.
    pub(super) dy: &'a [f32],
}

/// Adds the gradients to `dx` and `grad`.
///
/// With `n = x * rstd` and `dn = dy * weight`:
///
/// ```text
/// dx += rstd * (dn - n * mean(dn * n))      grad += sum over tokens of dy * n
/// ```
///
/// The weight's gradient is summed for each chunk of tokens in `partials`, then
/// over the chunks in their order, and added to what is there.
pub(super) fn backward(saved: Saved<'_>, dx: &mut [f32], grad: &mut [f32], partials: &mut [f32]) {
    let c = saved.weight.len();
    let chunk = NORM_CHUNK * c;
    dx.par_chunks_mut(chunk)
        .zip(partials.par_chunks_mut(c))
        .enumerate()
        .for_each(|(index, (dx, partial))| {
            let (first, tokens) = (index * NORM_CHUNK, dx.len() / c);
            let elements = first * c..(first + tokens) * c;
            let part = Saved {
                x: &saved.x[elements.clone()],
                rstd: &saved.rstd[first..first + tokens],
                dy: &saved.dy[elements],
                ..saved
            };
            simd(
                #[inline(always)]
                || backward_chunk(part, dx, partial),
            );
        });
    add_partials(partials, (0, 1), grad);
}

/// Adds to `grad` its partials of all chunks of tokens: vector `which` of the `of` that
/// each chunk has.
///
/// Chunks are added to each other first, so that a micro-batch adds one number to what
/// is there, whatever that is.
pub(super) fn add_partials(partials: &[f32], (which, of): (usize, usize), grad: &mut [f32]) {
    let c = grad.len();
    for (index, grad) in grad.iter_mut().enumerate() {
        let chunks = partials[which * c + index..].iter().step_by(of * c);
        *grad += chunks.sum::<f32>();
    }
}

#[inline(always)]
fn backward_chunk(saved: Saved<'_>, dx: &mut [f32], partial: &mut [f32]) {
    let Saved {
        x,
        weight,
        rstd,
        dy,
    } = saved;
    let c = weight.len();
    partial.fill(0.0);
    let tokens = x.chunks_exact(c).zip(dy.chunks_exact(c)).zip(rstd);
    for (((x, dy), &rstd), dx) in tokens.zip(dx.chunks_exact_mut(c)) {
        for ((partial, &x), &dy) in partial.iter_mut().zip(x).zip(dy) {
            *partial += dy * (x * rstd);
        }
        backward_token([x, weight, dy], rstd, dx);
    }
}

#[inline(always)]
fn backward_token([x, weight, dy]: [&[f32]; 3], rstd: f32, dx: &mut [f32]) {
    let sum = dot3(x, weight, dy);
    let mean = sum * rstd / x.len() as f32;
    for (((dx, &x), &weight), &dy) in dx.iter_mut().zip(x).zip(weight).zip(dy) {
        *dx += rstd * (dy * weight - x * rstd * mean);
    }
}
