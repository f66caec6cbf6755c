//! One `AdamW` update, element by element, in the order that [`AdamW`] states.

use fp8::moments::is_v_stochastic;
use fp8::random::low_half;
use fp8::{Headroom, MomentPlanes, NestedPlanes, Rounding, amax};
use half::bf16;

use super::float::Float;
use crate::fp8::Update;
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
        mut moments: Moments<&mut [u8]>,
        g: &[F],
        update: &Update,
    ) {
        let masters = load_masters(&master);
        let [mut m, mut v] = load_moments(&moments);
        assert_eq!([masters.len(), m.len(), v.len()], [g.len(); 3], "elements");
        let mut updated = Vec::with_capacity(g.len());
        for (index, &g) in g.iter().enumerate() {
            let mut w = masters[index].into();
            let (mut m_element, mut v_element) = (F::from(m[index]), F::from(v[index]));
            self.apply(g, &mut w, &mut m_element, &mut v_element);
            updated.push(w.to_f32());
            (m[index], v[index]) = (m_element.to_f32(), v_element.to_f32());
        }
        store_masters(&mut master, &moments, &updated, update);
        store_moments(&mut moments, [&m, &v], update);
    }
}

/// The number of elements of a master.
pub(super) fn master_len(master: &Master<&mut [u8]>) -> usize {
    load_masters(master).len()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    let elements = bytes.as_chunks().0.iter();
    elements.map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> {
    let elements = bytes.as_chunks().0.iter();
    elements.map(|&bytes| u16::from_le_bytes(bytes))
}

fn store<const N: usize>(bytes: &mut [u8], index: usize, element: [u8; N]) {
    bytes.as_chunks_mut().0[index] = element;
}

fn load_masters(master: &Master<&mut [u8]>) -> Vec<f32> {
    match master {
        Master::F32(bytes) => f32s(bytes),
        Master::Bf16 { high, low } => {
            let low = halves(low).map(u16::cast_signed);
            let pairs = halves(high).zip(low);
            pairs
                .map(|(high, low)| join_master(bf16::from_bits(high), low))
                .collect()
        }
        Master::Bf16Alone(high) => halves(high).map(fp8::bf16::widen).collect(),
        Master::Bf16Plus8 { high, low } => {
            let pairs = halves(high).zip(low.iter());
            pairs
                .map(|(high, low)| fp8::bf16::join_plus8(high, low.cast_signed()))
                .collect()
        }
        Master::Nested(planes) => planes.decode_f32(),
    }
}

fn load_moments(moments: &Moments<&mut [u8]>) -> [Vec<f32>; 2] {
    match moments {
        Moments::F32 { m, v } => [f32s(m), f32s(v)],
        Moments::Eight(planes) => planes.decode(),
    }
}

fn store_masters(
    master: &mut Master<&mut [u8]>,
    moments: &Moments<&mut [u8]>,
    updated: &[f32],
    update: &Update,
) {
    let cols = match moments {
        Moments::F32 { .. } => 1,
        Moments::Eight(planes) => planes.cols,
    };
    let bits = |index: usize| {
        let (row, col) = (index / cols, index % cols);
        low_half(update.random.bits(update.first_row + row, col))
    };
    if let Master::Nested(planes) = master {
        return store_nested(planes, updated, update);
    }
    for (index, &w) in updated.iter().enumerate() {
        match master {
            Master::F32(bytes) => store(bytes, index, w.to_le_bytes()),
            Master::Bf16 { high, low } => {
                let (nearest, rest) = split_master(w);
                store(high, index, nearest.to_le_bytes());
                store(low, index, rest.to_le_bytes());
            }
            Master::Bf16Alone(high) => {
                let half = fp8::bf16::round_stochastic(w, bits(index));
                store(high, index, half.to_le_bytes());
            }
            Master::Bf16Plus8 { high, low } => {
                let (half, rest) = fp8::bf16::split_plus8_stochastic(w, bits(index));
                store(high, index, half.to_le_bytes());
                low[index] = rest.cast_unsigned();
            }
            Master::Nested(_) => unreachable!("stored tile by tile"),
        }
    }
}

fn store_nested(planes: &mut NestedPlanes<&mut [u8]>, updated: &[f32], update: &Update) {
    let rounding = Rounding::Stochastic {
        random: update.random,
        first_row: update.first_row,
    };
    for tile in planes.grid().tiles() {
        let numbers = tile.gather(updated, planes.cols);
        let present = planes.scale_inv(tile.index);
        let next = present.updated(amax(&numbers), Headroom::Binade);
        planes.encode_tile(&tile, &numbers, next, rounding);
    }
}

fn store_moments(moments: &mut Moments<&mut [u8]>, [m, v]: [&[f32]; 2], update: &Update) {
    match moments {
        Moments::F32 {
            m: m_bytes,
            v: v_bytes,
        } => {
            for (index, (m, v)) in m.iter().zip(v).enumerate() {
                store(m_bytes, index, m.to_le_bytes());
                store(v_bytes, index, v.to_le_bytes());
            }
        }
        Moments::Eight(planes) => {
            let random =
                is_v_stochastic(update.adamw.beta2).then_some((update.random, update.first_row));
            let encoded = MomentPlanes::encode(m, v, planes.cols, random);
            planes.m.copy_from_slice(&encoded.m);
            planes.v.copy_from_slice(&encoded.v);
            planes.m_scales.copy_from_slice(&encoded.m_scales);
            planes.v_scales.copy_from_slice(&encoded.v_scales);
        }
    }
}
