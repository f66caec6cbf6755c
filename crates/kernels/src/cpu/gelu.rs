//! The Gaussian error linear unit, alone and as a gate, in both forms.
//!
//! With `share(x)` what passes of `x`:
//!
//! ```text
//! erf     share = erfc(-x / sqrt(2)) / 2       share' = exp(-x^2 / 2) / sqrt(2 pi)
//! tanh    share = 1 / (1 + exp(-2 u))          share' = 2 u' share (1 - share)
//!         u = sqrt(2 / pi) (x + 0.044715 x^3)
//! gelu    x share                              share + x share'
//! ```

use rayon::prelude::*;

use super::elementwise::{CHUNK, sigmoid};
use super::vector::{exp, simd, upper_tail};
use crate::Gelu;

/// What passes of a number, and its derivative.
trait Form {
    fn share(x: f32) -> (f32, f32);
}

struct Erf;

impl Form for Erf {
    #[inline(always)]
    fn share(x: f32) -> (f32, f32) {
        /// `1 / sqrt(2 pi)`.
        const DENSITY: f32 = 0.398_942_3;
        let tail = upper_tail(x.abs());
        let share = if x < 0.0 { tail } else { 1.0 - tail };
        (share, DENSITY * exp(-0.5 * x * x))
    }
}

struct Tanh;

impl Form for Tanh {
    #[inline(always)]
    fn share(x: f32) -> (f32, f32) {
        /// `2 sqrt(2 / pi)`.
        const TWICE: f32 = 1.595_769_2;
        const CUBE: f32 = 0.044_715;
        let square = x * x;
        let share = sigmoid(TWICE * x * (1.0 + CUBE * square));
        let slope = TWICE * (1.0 + 3.0 * CUBE * square);
        // Far out the slope is infinite and the other factor 0.
        let rest = share * (1.0 - share);
        (share, if rest > 0.0 { slope * rest } else { 0.0 })
    }
}

/// `y = gelu(x)`.
pub(super) fn forward(x: &[f32], form: Gelu, y: &mut [f32]) {
    match form {
        Gelu::Erf => forward_as::<Erf>(x, y),
        Gelu::Tanh => forward_as::<Tanh>(x, y),
    }
}

fn forward_as<F: Form>(x: &[f32], y: &mut [f32]) {
    let chunks = y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK));
    chunks.for_each(|(y, x)| {
        simd(
            #[inline(always)]
            || {
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = x * F::share(x).0;
                }
            },
        );
    });
}

/// Overwrites `x` with its gradient and `dy` with `y`.
pub(super) fn backward(x: &mut [f32], form: Gelu, dy: &mut [f32]) {
    match form {
        Gelu::Erf => backward_as::<Erf>(x, dy),
        Gelu::Tanh => backward_as::<Tanh>(x, dy),
    }
}

fn backward_as<F: Form>(x: &mut [f32], dy: &mut [f32]) {
    let chunks = dy.par_chunks_mut(CHUNK).zip(x.par_chunks_mut(CHUNK));
    chunks.for_each(|(dy, x)| {
        simd(
            #[inline(always)]
            || {
                for (dy, x) in dy.iter_mut().zip(x) {
                    let (share, slope) = F::share(*x);
                    (*x, *dy) = (*dy * (share + *x * slope), *x * share);
                }
            },
        );
    });
}

/// `y = gelu(gate) * up`.
pub(super) fn gated(gate: &[f32], up: &[f32], form: Gelu, y: &mut [f32]) {
    match form {
        Gelu::Erf => gated_as::<Erf>(gate, up, y),
        Gelu::Tanh => gated_as::<Tanh>(gate, up, y),
    }
}

fn gated_as<F: Form>(gate: &[f32], up: &[f32], y: &mut [f32]) {
    let gates = gate.par_chunks(CHUNK).zip(up.par_chunks(CHUNK));
    let chunks = y.par_chunks_mut(CHUNK).zip(gates);
    chunks.for_each(|(y, (gate, up))| {
        simd(
            #[inline(always)]
            || {
                for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
                    *y = gate * F::share(gate).0 * up;
                }
            },
        );
    });
}

/// Overwrites `gate` and `up` with their gradients and `dy` with `y`.
pub(super) fn gated_backward(gate: &mut [f32], up: &mut [f32], form: Gelu, dy: &mut [f32]) {
    match form {
        Gelu::Erf => gated_backward_as::<Erf>(gate, up, dy),
        Gelu::Tanh => gated_backward_as::<Tanh>(gate, up, dy),
    }
}

fn gated_backward_as<F: Form>(gate: &mut [f32], up: &mut [f32], dy: &mut [f32]) {
    let gates = gate.par_chunks_mut(CHUNK).zip(up.par_chunks_mut(CHUNK));
    let chunks = dy.par_chunks_mut(CHUNK).zip(gates);
    chunks.for_each(|(dy, (gate, up))| {
        simd(
            #[inline(always)]
            || {
                for ((dy, gate), up) in dy.iter_mut().zip(gate).zip(up) {
                    let (share, slope) = F::share(*gate);
                    let value = *gate * share;
                    *gate = *dy * *up * (share + *gate * slope);
                    (*up, *dy) = (*dy * value, value * *up);
                }
            },
        );
    });
}
