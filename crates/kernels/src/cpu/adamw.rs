//! The optimizer's update: one pass over master, moments and gradient.

use half::bf16;
use rayon::prelude::*;

use super::vector::simd;
use crate::fp8::{Update, adamw_bf16, adamw_bf16_plus8, adamw_nested};
use crate::shapes::{rows, same};
use crate::weight::{join_master, split_master};
use crate::{AdamW, Master, Moments};

/// Elements of one task.
const CHUNK: usize = 16 * 1024;

/// The factors of one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    grad_scale: f32,
    /// `1 - lr * weight_decay`.
    keep: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
    /// `lr / (1 - beta1^step)`.
    size: f32,
    /// `sqrt(1 - beta2^step)`.
    root_correction: f32,
}

impl Step {
    /// Derived factors are taken in f64: powers of an f32 lose digits.
    #[expect(clippy::cast_possible_truncation, reason = "rounded once, at the end")]
    pub(crate) fn new(update: AdamW) -> Self {
        let step = update.step as f64;
        let correction = |beta: f32| 1.0 - f64::from(beta).powf(step);
        let lr = f64::from(update.lr);
        Self {
            grad_scale: update.grad_scale,
            keep: (1.0 - lr * f64::from(update.weight_decay)) as f32,
            beta1: update.beta1,
            beta2: update.beta2,
            eps: update.eps,
            size: (lr / correction(update.beta1)) as f32,
            root_correction: correction(update.beta2).sqrt() as f32,
        }
    }

    /// The new weight; the moments are updated.
    #[inline(always)]
    pub(crate) fn apply(&self, g: f32, w: f32, m: &mut f32, v: &mut f32) -> f32 {
        let g = self.grad_scale * g;
        *m = self.beta1 * *m + (1.0 - self.beta1) * g;
        *v = self.beta2 * *v + (1.0 - self.beta2) * (g * g);
        w * self.keep - self.size * *m / (v.sqrt() / self.root_correction + self.eps)
    }
}

/// The number of elements.
pub(super) fn len(master: &Master<&mut [u8]>) -> usize {
    match master {
        Master::F32(bytes) => rows(bytes.len(), size_of::<f32>()),
        Master::Bf16 { high, low } => rows(same(high.len(), low.len()), size_of::<bf16>()),
        Master::Bf16Alone(high) => rows(high.len(), size_of::<bf16>()),
        Master::Bf16Plus8 { low, .. } => low.len(),
        Master::Nested(planes) => planes.codes.len(),
    }
}

/// Updates a run of elements.
pub(super) fn update(
    master: Master<&mut [u8]>,
    moments: Moments<&mut [u8]>,
    grad: &[f32],
    update: &Update,
) {
    let step = Step::new(update.adamw);
    match (master, moments) {
        (Master::F32(w), Moments::F32 { m, v }) => with_f32(grad, [m, v])
            .zip(numbers::<f32>(w).par_chunks_mut(CHUNK))
            .for_each(|((g, (m, v)), w)| update_f32(&step, g, w, m, v)),
        (Master::Bf16 { high, low }, Moments::F32 { m, v }) => {
            let high = numbers::<bf16>(high).par_chunks_mut(CHUNK);
            let low = numbers::<i16>(low).par_chunks_mut(CHUNK);
            with_f32(grad, [m, v])
                .zip(high.zip(low))
                .for_each(|((g, (m, v)), w)| update_bf16(&step, g, w, m, v));
        }
        (Master::Bf16Alone(high), Moments::Eight(moments)) => {
            adamw_bf16(high, moments, grad, update);
        }
        (Master::Bf16Plus8 { high, low }, Moments::Eight(moments)) => {
            adamw_bf16_plus8((high, low), moments, grad, update);
        }
        (Master::Nested(planes), Moments::Eight(moments)) => {
            adamw_nested(planes, moments, grad, update);
        }
        (Master::F32(_) | Master::Bf16 { .. }, Moments::Eight(_)) => {
            unreachable!("a master of 32 bits has f32 moments")
        }
        (_, Moments::F32 { .. }) => unreachable!("a lean master has 8-bit moments"),
    }
}

/// Chunks of the gradient and of f32 moments.
fn with_f32<'a>(
    grad: &'a [f32],
    moments: [&'a mut [u8]; 2],
) -> impl IndexedParallelIterator<Item = (&'a [f32], (&'a mut [f32], &'a mut [f32]))> {
    let [m, v] = moments.map(numbers::<f32>);
    assert_eq!(
        [m.len(), v.len()],
        [grad.len(); 2],
        "elements of the moments"
    );
    let moments = m.par_chunks_mut(CHUNK).zip(v.par_chunks_mut(CHUNK));
    grad.par_chunks(CHUNK).zip(moments)
}

fn numbers<T: bytemuck::Pod>(bytes: &mut [u8]) -> &mut [T] {
    tensor::cast_mut(bytes).expect("resident state is aligned to its elements")
}

fn update_f32(step: &Step, g: &[f32], w: &mut [f32], m: &mut [f32], v: &mut [f32]) {
    simd(
        #[inline(always)]
        || {
            for (((&g, w), m), v) in g.iter().zip(w).zip(m).zip(v) {
                *w = step.apply(g, *w, m, v);
            }
        },
    );
}

fn update_bf16(
    step: &Step,
    g: &[f32],
    (high, low): (&mut [bf16], &mut [i16]),
    m: &mut [f32],
    v: &mut [f32],
) {
    simd(
        #[inline(always)]
        || {
            for ((((&g, high), low), m), v) in g.iter().zip(high).zip(low).zip(m).zip(v) {
                let w = step.apply(g, join_master(*high, *low), m, v);
                (*high, *low) = split_master(w);
            }
        },
    );
}
