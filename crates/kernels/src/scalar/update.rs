//! One `AdamW` update, element by element, in the order that [`AdamW`] states.

use half::bf16;

use super::float::Float;
use crate::weight::{join_master, split_master};
use crate::{AdamW, Master, Moments};

/// The settings of one step as numbers of `F`.
pub(super) struct Step<F> {
    grad_scale: F,
    /// `1 - lr * weight_decay`.
    keep: F,
    beta1: F,
    beta2: F,
    eps: F,
    /// `lr / (1 - beta1^step)`.
    rate: F,
    /// `sqrt(1 - beta2^step)`.
    root_correction: F,
}

impl<F: Float> Step<F> {
    /// The three derived factors are computed once, in f64: `beta^step` of an
    /// f32 would lose digits with every step.
    pub(super) fn new(update: AdamW) -> Self {
        let step = update.step as f64;
        let correction = |beta: f32| 1.0 - f64::from(beta).powf(step);
        let lr = f64::from(update.lr);
        Self {
            grad_scale: update.grad_scale.into(),
            keep: F::nearest(1.0 - lr * f64::from(update.weight_decay)),
            beta1: update.beta1.into(),
            beta2: update.beta2.into(),
            eps: update.eps.into(),
            rate: F::nearest(lr / correction(update.beta1)),
            root_correction: F::nearest(correction(update.beta2).sqrt()),
        }
    }

    /// Updates one weight and its moments by the gradient `g`.
    fn apply(&self, g: F, w: &mut F, m: &mut F, v: &mut F) {
        let one = F::from(1.0);
        let g = self.grad_scale * g;
        *w = *w * self.keep;
        *m = self.beta1 * *m + (one - self.beta1) * g;
        *v = self.beta2 * *v + (one - self.beta2) * (g * g);
        *w = *w - self.rate * *m / (v.sqrt() / self.root_correction + self.eps);
    }

    /// Updates a run of elements; the gradient's length says how many.
    pub(super) fn run(
        &self,
        mut master: Master<&mut [u8]>,
        Moments { m, v }: Moments<&mut [u8]>,
        g: &[F],
    ) {
        let f32_bytes = g.len() * size_of::<f32>();
        assert_eq!([m.len(), v.len()], [f32_bytes; 2], "bytes of the moments");
        for (index, &g) in g.iter().enumerate() {
            let mut w = load_master(&master, index).into();
            let mut m_element = F::from(load_f32(m, index));
            let mut v_element = F::from(load_f32(v, index));
            self.apply(g, &mut w, &mut m_element, &mut v_element);
            store_master(&mut master, index, w.to_f32());
            store(m, index, m_element.to_f32().to_le_bytes());
            store(v, index, v_element.to_f32().to_le_bytes());
        }
    }
}

/// The number of elements of a master.
pub(super) fn master_len(master: &Master<&mut [u8]>) -> usize {
    let (bytes, size) = match master {
        Master::F32(bytes) => (bytes.len(), 4),
        Master::Bf16 { high, low } => {
            assert_eq!(high.len(), low.len(), "bytes of the two halves");
            (high.len(), 2)
        }
    };
    crate::shapes::rows(bytes, size)
}

fn load<const N: usize>(bytes: &[u8], index: usize) -> [u8; N] {
    bytes.as_chunks().0[index]
}

fn store<const N: usize>(bytes: &mut [u8], index: usize, element: [u8; N]) {
    bytes.as_chunks_mut().0[index] = element;
}

fn load_f32(bytes: &[u8], index: usize) -> f32 {
    f32::from_le_bytes(load(bytes, index))
}

fn load_master(master: &Master<&mut [u8]>, index: usize) -> f32 {
    match master {
        Master::F32(bytes) => load_f32(bytes, index),
        Master::Bf16 { high, low } => join_master(
            bf16::from_le_bytes(load(high, index)),
            i16::from_le_bytes(load(low, index)),
        ),
    }
}

fn store_master(master: &mut Master<&mut [u8]>, index: usize, w: f32) {
    match master {
        Master::F32(bytes) => store(bytes, index, w.to_le_bytes()),
        Master::Bf16 { high, low } => {
            let (nearest, rest) = split_master(w);
            store(high, index, nearest.to_le_bytes());
            store(low, index, rest.to_le_bytes());
        }
    }
}
