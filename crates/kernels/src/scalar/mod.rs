//! The plain reference: every operation as its documentation says it, one
//! number at a time, in f32 or in f64.
//!
//! It is what the fast devices are held against and where finite differences
//! are taken, so it does nothing clever: weights are decoded whole, attention
//! is the softmax of all scores, sums run in the order of their index.
//!
//! The backward of attention works from queries, keys and values alone, so
//! it also says what a device should make of the `y` and `lse` that it kept.

mod attention;
mod float;
mod gelu;
mod norm;
mod update;

use std::marker::PhantomData;
use std::ops::Range;

use float::Float;
use fp8::Format;

use crate::fp8::{RowCounts, Update};
use crate::shapes::{self, LinearShape};
use crate::{
    ArenaFull, AttentionShape, Device, Gelu, IGNORED, Master, Moments, Purpose, RmsNorm, Rope,
    RunningMax, Weight,
};

/// The reference device; computes in `F`, which is f32 or f64.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scalar<F>(PhantomData<F>);

impl<F: Float> Scalar<F> {
    /// A reference device.
    pub fn new() -> Self {
        Self(PhantomData)
    }
}

/// A plain list of numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers<F>(pub Vec<F>);

impl<F: Float> Device for Scalar<F> {
    type Buffer = Numbers<F>;
    type Bytes<'a> = &'a [u8];
    type BytesMut<'a> = &'a mut [u8];

    /// Filled with NaN, so that an element that is read before it was written
    /// shows.
    fn alloc(&self, len: usize, _purpose: Purpose) -> Result<Numbers<F>, ArenaFull> {
        Ok(Numbers(vec![F::from(f32::NAN); len]))
    }

    fn len(&self, buffer: &Numbers<F>) -> usize {
        buffer.0.len()
    }

    fn fill(&self, y: &mut Numbers<F>, value: f32) {
        y.0.fill(value.into());
    }

    fn copy(&self, x: &Numbers<F>, from: Range<usize>, y: &mut Numbers<F>, to: usize) {
        let to = shapes::span(y.0.len(), to, from.len());
        y.0[to].copy_from_slice(&x.0[from]);
    }

    fn add(&self, x: &Numbers<F>, y: &mut Numbers<F>, at: usize) {
        let to = shapes::span(y.0.len(), at, x.0.len());
        for (y, &x) in y.0[to].iter_mut().zip(&x.0) {
            *y += x;
        }
    }

    fn write(&self, x: &[f32], y: &mut Numbers<F>, at: usize) {
        let to = shapes::span(y.0.len(), at, x.len());
        for (y, &x) in y.0[to].iter_mut().zip(x) {
            *y = x.into();
        }
    }

    fn read(&self, x: &Numbers<F>, from: Range<usize>, y: &mut [f32]) {
        shapes::same(from.len(), y.len());
        for (y, &x) in y.iter_mut().zip(&x.0[from]) {
            *y = x.to_f32();
        }
    }

    fn sum_of_squares(&self, x: &Numbers<F>) -> f64 {
        x.0.iter().map(|&x| x.into() * x.into()).sum()
    }

    fn embedding(
        &self,
        ids: &[u32],
        table_vc: &Weight<&[u8]>,
        first_row: usize,
        scale: f32,
        y_tc: &mut Numbers<F>,
    ) {
        let c = shapes::embedding(ids, table_vc, y_tc.0.len());
        let table: Vec<F> = decode(table_vc);
        let rows = first_row..first_row + table_vc.rows;
        for (&id, y_c) in ids.iter().zip(y_tc.0.chunks_exact_mut(c)) {
            if let Some(row) = row_of(id, &rows) {
                for (y, &x) in y_c.iter_mut().zip(&table[row * c..][..c]) {
                    *y = F::from(scale) * x;
                }
            }
        }
    }

    fn embedding_backward(
        &self,
        ids: &[u32],
        dy_tc: &Numbers<F>,
        rows: Range<usize>,
        scale: f32,
        grad_vc: &mut Numbers<F>,
        at: usize,
    ) {
        let (dy_len, grad_len) = (dy_tc.0.len(), grad_vc.0.len());
        let (c, span) = shapes::embedding_backward(ids, dy_len, rows.clone(), grad_len, at);
        let grad = &mut grad_vc.0[span];
        for (&id, dy_c) in ids.iter().zip(dy_tc.0.chunks_exact(c)) {
            if let Some(row) = row_of(id, &rows) {
                for (grad, &dy) in grad[row * c..][..c].iter_mut().zip(dy_c) {
                    *grad += F::from(scale) * dy;
                }
            }
        }
    }

    fn rms_norm(
        &self,
        x_tc: &Numbers<F>,
        weight_c: &Weight<&[u8]>,
        norm: RmsNorm,
        y_tc: &mut Numbers<F>,
        rstd_t: &mut Numbers<F>,
    ) {
        shapes::norm([x_tc.0.len(), y_tc.0.len()], weight_c, rstd_t.0.len());
        let weight = plus(decode(weight_c), norm.offset);
        norm::rms(&x_tc.0, &weight, norm.eps, &mut y_tc.0, &mut rstd_t.0);
    }

    fn rms_norm_backward(
        &self,
        x_tc: &Numbers<F>,
        weight_c: &Weight<&[u8]>,
        norm: RmsNorm,
        rstd_t: &Numbers<F>,
        dy_tc: &Numbers<F>,
        dx_tc: &mut Numbers<F>,
        grad: &mut Numbers<F>,
        at: usize,
    ) -> Result<(), ArenaFull> {
        let (_, c) = shapes::norm([x_tc.0.len(), dy_tc.0.len()], weight_c, rstd_t.0.len());
        shapes::same(dy_tc.0.len(), dx_tc.0.len());
        let weight = plus(decode(weight_c), norm.offset);
        let span = shapes::span(grad.0.len(), at, c);
        let inputs = [&x_tc.0[..], &weight, &rstd_t.0, &dy_tc.0];
        norm::rms_backward(inputs, &mut dx_tc.0, &mut grad.0[span]);
        Ok(())
    }

    fn layer_norm(
        &self,
        x_tc: &Numbers<F>,
        weight_c: &Weight<&[u8]>,
        bias_c: &Weight<&[u8]>,
        eps: f32,
        y_tc: &mut Numbers<F>,
        stats_t2: &mut Numbers<F>,
    ) {
        shapes::layer_norm([x_tc.0.len(), y_tc.0.len()], weight_c, stats_t2.0.len());
        shapes::vector(y_tc.0.len(), bias_c);
        let (weight, bias) = (decode(weight_c), decode(bias_c));
        let outputs = [&mut y_tc.0[..], &mut stats_t2.0];
        norm::layer(&x_tc.0, [&weight, &bias], eps, outputs);
    }

    fn layer_norm_backward(
        &self,
        x_tc: &Numbers<F>,
        weight_c: &Weight<&[u8]>,
        stats_t2: &Numbers<F>,
        dy_tc: &Numbers<F>,
        dx_tc: &mut Numbers<F>,
        grad: &mut Numbers<F>,
        at: [usize; 2],
    ) -> Result<(), ArenaFull> {
        let lens = [x_tc.0.len(), dy_tc.0.len()];
        let (_, c) = shapes::layer_norm(lens, weight_c, stats_t2.0.len());
        shapes::same(dy_tc.0.len(), dx_tc.0.len());
        let spans = at.map(|at| shapes::span(grad.0.len(), at, c).start);
        let weight = decode(weight_c);
        let inputs = [&x_tc.0[..], &weight, &stats_t2.0, &dy_tc.0];
        norm::layer_backward(inputs, &mut dx_tc.0, &mut grad.0, spans);
        Ok(())
    }

    fn linear(
        &self,
        x_ti: &Numbers<F>,
        weight_oi: &Weight<&[u8]>,
        bias_o: Option<&Weight<&[u8]>>,
        y_to: &mut Numbers<F>,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        let LinearShape { t, o, i } = shapes::linear(x_ti.0.len(), weight_oi, y_to.0.len());
        let weight = decode::<F>(weight_oi);
        let bias = bias_o.map_or_else(|| vec![F::from(0.0); o], decode);
        shapes::same(bias.len(), o);
        for (token, feature) in (0..t).flat_map(|token| (0..o).map(move |o| (token, o))) {
            let x_i = &x_ti.0[token * i..][..i];
            let weight_i = &weight[feature * i..][..i];
            let y: F = x_i.iter().zip(weight_i).map(|(&x, &w)| x * w).sum();
            put(&mut y_to.0[token * o + feature], y + bias[feature], adds);
        }
        Ok(())
    }

    fn linear_dgrad(
        &self,
        dy_to: &Numbers<F>,
        weight_oi: &Weight<&[u8]>,
        dx_ti: &mut Numbers<F>,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        let LinearShape { t, o, i } = shapes::linear(dx_ti.0.len(), weight_oi, dy_to.0.len());
        let weight = decode::<F>(weight_oi);
        for (token, input) in (0..t).flat_map(|token| (0..i).map(move |i| (token, i))) {
            let dx = (0..o).map(|o_| dy_to.0[token * o + o_] * weight[o_ * i + input]);
            put(&mut dx_ti.0[token * i + input], dx.sum(), adds);
        }
        Ok(())
    }

    fn linear_wgrad(
        &self,
        dy_to: &Numbers<F>,
        x_ti: &Numbers<F>,
        num_tokens: usize,
        grad: &mut Numbers<F>,
        at: usize,
        adds: bool,
    ) {
        let LinearShape { t, o, i } = shapes::wgrad(dy_to.0.len(), x_ti.0.len(), num_tokens);
        let span = shapes::span(grad.0.len(), at, o * i);
        for (index, grad) in grad.0[span].iter_mut().enumerate() {
            let (feature, input) = (index / i, index % i);
            let sum = (0..t).map(|t| dy_to.0[t * o + feature] * x_ti.0[t * i + input]);
            put(grad, sum.sum(), adds);
        }
    }

    fn bias_grad(&self, dy_to: &Numbers<F>, num_tokens: usize, grad: &mut Numbers<F>, at: usize) {
        let o = shapes::width(dy_to.0.len(), num_tokens);
        let span = shapes::span(grad.0.len(), at, o);
        for (feature, grad) in grad.0[span].iter_mut().enumerate() {
            *grad += dy_to.0.iter().skip(feature).step_by(o).copied().sum();
        }
    }

    fn rope(
        &self,
        x_tnh: &mut Numbers<F>,
        num_heads: usize,
        positions: &[u32],
        rope: Rope<'_>,
        inverse: bool,
    ) {
        let pairs = rope.inv_freq.len();
        let h = 2 * pairs;
        shapes::same(x_tnh.0.len(), positions.len() * num_heads * h);
        for (tn, x_h) in x_tnh.0.chunks_exact_mut(h).enumerate() {
            let position = F::nearest(positions[tn / num_heads].into());
            for (j, &inv_freq) in rope.inv_freq.iter().enumerate() {
                let (sin, cos) = (position * inv_freq.into()).sin_cos();
                let (sin, cos) = (sin * rope.scale.into(), cos * rope.scale.into());
                let sin = if inverse { -sin } else { sin };
                let (a, b) = (x_h[j], x_h[j + pairs]);
                x_h[j] = a * cos - b * sin;
                x_h[j + pairs] = b * cos + a * sin;
            }
        }
    }

    fn split_heads(
        &self,
        fused: &Numbers<F>,
        group: usize,
        head_dim: usize,
        qkv: [&mut Numbers<F>; 3],
    ) {
        let lens = qkv.each_ref().map(|x| x.0.len());
        let widths = shapes::fused_heads(fused.0.len(), group, head_dim, lens);
        let mut rest = &fused.0[..];
        let mut parts = qkv.map(|x| &mut x.0[..]);
        while !rest.is_empty() {
            for (part, width) in parts.iter_mut().zip(widths) {
                let (from, more) = rest.split_at(width);
                let (to, left) = std::mem::take(part).split_at_mut(width);
                to.copy_from_slice(from);
                (rest, *part) = (more, left);
            }
        }
    }

    fn merge_heads(
        &self,
        qkv: [&Numbers<F>; 3],
        group: usize,
        head_dim: usize,
        fused: &mut Numbers<F>,
    ) {
        let widths = shapes::fused_heads(fused.0.len(), group, head_dim, qkv.map(|x| x.0.len()));
        let mut rest = &mut fused.0[..];
        let mut parts = qkv.map(|x| &x.0[..]);
        while !rest.is_empty() {
            for (part, width) in parts.iter_mut().zip(widths) {
                let (from, left) = part.split_at(width);
                let (to, more) = std::mem::take(&mut rest).split_at_mut(width);
                to.copy_from_slice(from);
                (rest, *part) = (more, left);
            }
        }
    }

    fn attention(
        &self,
        q_tnh: &Numbers<F>,
        k_smh: &Numbers<F>,
        v_smh: &Numbers<F>,
        shape: AttentionShape,
        y_tnh: &mut Numbers<F>,
        lse_tn: &mut Numbers<F>,
    ) -> Result<(), ArenaFull> {
        let q_len = shapes::same(q_tnh.0.len(), y_tnh.0.len());
        shapes::attention(shape, q_len, [k_smh.0.len(), v_smh.0.len()], lse_tn.0.len());
        let qkv = [&q_tnh.0[..], &k_smh.0, &v_smh.0];
        attention::forward(qkv, shape, &mut y_tnh.0, &mut lse_tn.0);
        Ok(())
    }

    fn attention_backward(
        &self,
        qkv: [&Numbers<F>; 3],
        y_tnh: &Numbers<F>,
        lse_tn: &Numbers<F>,
        dy_tnh: &Numbers<F>,
        shape: AttentionShape,
        dqkv: [&mut Numbers<F>; 3],
    ) -> Result<(), ArenaFull> {
        let lens = qkv.map(|x| x.0.len());
        let d_lens = dqkv.each_ref().map(|dx| dx.0.len());
        shapes::attention_backward(shape, lens, d_lens, lse_tn.0.len());
        shapes::same(shapes::same(y_tnh.0.len(), dy_tnh.0.len()), lens[0]);
        let dqkv = dqkv.map(|dx| &mut dx.0[..]);
        attention::backward(qkv.map(|x| &x.0[..]), &dy_tnh.0, shape, dqkv);
        Ok(())
    }

    fn swiglu(&self, gate: &Numbers<F>, up: &Numbers<F>, y: &mut Numbers<F>) {
        shapes::same(shapes::same(gate.0.len(), up.0.len()), y.0.len());
        for ((&gate, &up), y) in gate.0.iter().zip(&up.0).zip(&mut y.0) {
            *y = silu(gate) * up;
        }
    }

    fn swiglu_backward(&self, gate: &mut Numbers<F>, up: &mut Numbers<F>, dy: &mut Numbers<F>) {
        shapes::same(shapes::same(gate.0.len(), up.0.len()), dy.0.len());
        for ((gate, up), dy) in gate.0.iter_mut().zip(&mut up.0).zip(&mut dy.0) {
            let (g, u, d) = (*gate, *up, *dy);
            let one = F::from(1.0);
            *gate = d * u * sigmoid(g) * (one + g * (one - sigmoid(g)));
            *up = d * silu(g);
            *dy = silu(g) * u;
        }
    }

    fn gelu(&self, x: &Numbers<F>, form: Gelu, y: &mut Numbers<F>) {
        shapes::same(x.0.len(), y.0.len());
        for (y, &x) in y.0.iter_mut().zip(&x.0) {
            *y = gelu::value(x, form);
        }
    }

    fn gelu_backward(&self, x: &mut Numbers<F>, form: Gelu, dy: &mut Numbers<F>) {
        shapes::same(x.0.len(), dy.0.len());
        for (x, dy) in x.0.iter_mut().zip(&mut dy.0) {
            let (value, slope) = (gelu::value(*x, form), gelu::slope(*x, form));
            *x = *dy * slope;
            *dy = value;
        }
    }

    fn geglu(&self, gate: &Numbers<F>, up: &Numbers<F>, form: Gelu, y: &mut Numbers<F>) {
        shapes::same(shapes::same(gate.0.len(), up.0.len()), y.0.len());
        for ((&gate, &up), y) in gate.0.iter().zip(&up.0).zip(&mut y.0) {
            *y = gelu::value(gate, form) * up;
        }
    }

    fn geglu_backward(
        &self,
        gate: &mut Numbers<F>,
        up: &mut Numbers<F>,
        form: Gelu,
        dy: &mut Numbers<F>,
    ) {
        shapes::same(shapes::same(gate.0.len(), up.0.len()), dy.0.len());
        for ((gate, up), dy) in gate.0.iter_mut().zip(&mut up.0).zip(&mut dy.0) {
            let (value, slope) = (gelu::value(*gate, form), gelu::slope(*gate, form));
            *gate = *dy * *up * slope;
            (*up, *dy) = (*dy * value, value * *up);
        }
    }

    fn cross_entropy(
        &self,
        logits_tv: &Numbers<F>,
        first_row: usize,
        targets: &[u32],
        running: &mut RunningMax<Numbers<F>>,
        first: bool,
    ) {
        let statistics = [&running.max, &running.sum, &running.target];
        let v = shapes::logits(logits_tv.0.len(), targets, statistics.map(|x| x.0.len()));
        if first {
            self.fill(&mut running.max, f32::NEG_INFINITY);
            self.fill(&mut running.sum, 0.0);
            self.fill(&mut running.target, 0.0);
        }
        let rows = first_row..first_row + v;
        for (token, logits_v) in logits_tv.0.chunks_exact(v).enumerate() {
            let before = running.max.0[token];
            let max = logits_v.iter().copied().fold(before, larger);
            let sum: F = logits_v.iter().map(|&logit| (logit - max).exp()).sum();
            running.max.0[token] = max;
            running.sum.0[token] = running.sum.0[token] * (before - max).exp() + sum;
            if let Some(row) = row_of(targets[token], &rows) {
                running.target.0[token] = logits_v[row];
            }
        }
    }

    fn cross_entropy_loss(&self, running: &RunningMax<Numbers<F>>, targets: &[u32]) -> f64 {
        let statistics = [&running.max, &running.sum, &running.target];
        shapes::logits(targets.len(), targets, statistics.map(|x| x.0.len()));
        (0..targets.len())
            .filter(|&token| targets[token] != IGNORED)
            .map(|token| {
                let [max, sum, target] = statistics.map(|x| x.0[token].into());
                max + sum.ln() - target
            })
            .sum()
    }

    fn cross_entropy_backward(
        &self,
        logits_tv: &mut Numbers<F>,
        first_row: usize,
        targets: &[u32],
        running: &RunningMax<Numbers<F>>,
        scale: f32,
    ) {
        let statistics = [&running.max, &running.sum, &running.target];
        let v = shapes::logits(logits_tv.0.len(), targets, statistics.map(|x| x.0.len()));
        let rows = first_row..first_row + v;
        for (token, logits_v) in logits_tv.0.chunks_exact_mut(v).enumerate() {
            if targets[token] == IGNORED {
                logits_v.fill(0.0.into());
                continue;
            }
            let (max, sum) = (running.max.0[token], running.sum.0[token]);
            let hot = row_of(targets[token], &rows);
            for (row, logit) in logits_v.iter_mut().enumerate() {
                let one_hot = F::from(if hot == Some(row) { 1.0 } else { 0.0 });
                *logit = F::from(scale) * ((*logit - max).exp() / sum - one_hot);
            }
        }
    }

    /// Rounded as f32 numbers.
    fn quantize(&self, x: &mut Numbers<F>, cols: usize, format: Format) -> RowCounts {
        let values: Vec<f32> = x.0.iter().map(|x| x.to_f32()).collect();
        let rounded = fp8::round_rows(&values, cols, format);
        let mut counts = RowCounts {
            num_elements: values.len() as u64,
            ..RowCounts::default()
        };
        for (x, (&value, rounded)) in x.0.iter_mut().zip(values.iter().zip(rounded)) {
            counts.num_underflowed += u64::from(rounded == 0.0 && value != 0.0);
            counts.amax = counts.amax.max(value.abs());
            *x = rounded.into();
        }
        let blocks = x.0.chunks(cols).flat_map(|row| row.chunks(fp8::TILE));
        counts.num_nan_blocks = blocks.filter(|block| block[0].to_f32().is_nan()).count() as u64;
        counts
    }

    fn adamw(
        &self,
        master: Master<&mut [u8]>,
        moments: Moments<&mut [u8]>,
        grad: &Numbers<F>,
        at: usize,
        update: &Update,
    ) {
        let len = update::master_len(&master);
        let grad = &grad.0[shapes::span(grad.0.len(), at, len)];
        update::Step::new(update.adamw).run(master, moments, grad, update);
    }
}

/// The logistic function.
fn sigmoid<F: Float>(gate: F) -> F {
    F::from(1.0) / (F::from(1.0) + (-gate).exp())
}

fn silu<F: Float>(gate: F) -> F {
    gate * sigmoid(gate)
}

/// The larger of two; a NaN among them does not count.
fn larger<F: Float>(a: F, b: F) -> F {
    if b > a { b } else { a }
}

/// A weight's elements as numbers of `F`.
fn decode<F: Float>(weight: &Weight<&[u8]>) -> Vec<F> {
    weight.to_f32().into_iter().map(F::from).collect()
}

/// Every element plus `offset`.
fn plus<F: Float>(mut elements: Vec<F>, offset: f32) -> Vec<F> {
    for element in &mut elements {
        *element += F::from(offset);
    }
    elements
}

/// Where token id `id` lies among `rows`, if it does.
fn row_of(id: u32, rows: &Range<usize>) -> Option<usize> {
    let id = usize::try_from(id).ok()?;
    rows.contains(&id).then(|| id - rows.start)
}

/// `y = x` or `y += x`.
fn put<F: Float>(y: &mut F, x: F, adds: bool) {
    *y = if adds { *y + x } else { x };
}
