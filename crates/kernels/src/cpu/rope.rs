//! Rotary position embedding: the angles of a token once for all its heads.

use rayon::prelude::*;

use super::vector::{simd, sin_cos};
use crate::Rope;

/// Tokens of one task.
const CHUNK_TOKENS: usize = 32;

/// Pairs whose sines and cosines are held at once.
const CHUNK_PAIRS: usize = 128;

/// Turns every head of each token, back if `inverse`.
pub(super) fn rotate(
    x: &mut [f32],
    num_heads: usize,
    positions: &[u32],
    rope: Rope<'_>,
    inverse: bool,
) {
    let width = num_heads * 2 * rope.inv_freq.len();
    let sign = if inverse { -rope.scale } else { rope.scale };
    x.par_chunks_mut(CHUNK_TOKENS * width)
        .zip(positions.par_chunks(CHUNK_TOKENS))
        .for_each(|(x, positions)| {
            simd(
                #[inline(always)]
                || {
                    for (x, &position) in x.chunks_exact_mut(width).zip(positions) {
                        rotate_token(x, position as f32, rope, sign);
                    }
                },
            );
        });
}

#[inline(always)]
fn rotate_token(x: &mut [f32], position: f32, rope: Rope<'_>, sign: f32) {
    let pairs = rope.inv_freq.len();
    let mut sines = [0.0; CHUNK_PAIRS];
    let mut cosines = [0.0; CHUNK_PAIRS];
    for (chunk, inv_freq) in rope.inv_freq.chunks(CHUNK_PAIRS).enumerate() {
        let angles = inv_freq.iter().map(|&inv_freq| position * inv_freq);
        for ((sine, cosine), angle) in sines.iter_mut().zip(&mut cosines).zip(angles) {
            let (sin, cos) = sin_cos(angle);
            (*sine, *cosine) = (sin * sign, cos * rope.scale);
        }
        let span = chunk * CHUNK_PAIRS..chunk * CHUNK_PAIRS + inv_freq.len();
        for head in x.chunks_exact_mut(2 * pairs) {
            let (a, b) = head.split_at_mut(pairs);
            turn(&mut a[span.clone()], &mut b[span.clone()], &sines, &cosines);
        }
    }
}

#[inline(always)]
fn turn(a: &mut [f32], b: &mut [f32], sines: &[f32], cosines: &[f32]) {
    for (((a, b), &sin), &cos) in a.iter_mut().zip(b).zip(sines).zip(cosines) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
