//! What a run would take, without a number: bytes of scratch and
//! multiplications.
//!
//! Buffers are lengths, placed by the same [`Layout`] as an arena's, and each
//! operation asks for the workspace that [`Cpu`](crate::Cpu) asks for. So the
//! same calls in the same order reach the same peak to the byte.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fp8::Format;

use crate::arena::{Layout, Placed};
use crate::fp8::{RowCounts, Update};
use crate::shapes::{self, LinearShape};
use crate::{
    ArenaFull, AttentionShape, Device, Gelu, Master, Moments, Purpose, PurposePeak, RmsNorm, Rope,
    RunningMax, Weight, workspace,
};

/// Matrix products of attention: scores and outputs.
const ATTENTION_PRODUCTS: u64 = 2;

/// Matrix products of its backward: scores again, and the gradients of the
/// weights, queries, keys and values.
const ATTENTION_BACKWARD_PRODUCTS: u64 = 5;

/// The device that only counts.
///
/// Its losses and sums of squares are 0, and `read` gives zeroes.
#[derive(Debug)]
pub struct Meta {
    layout: Arc<Mutex<Layout>>,
    num_threads: usize,
    flops: AtomicU64,
}

impl Meta {
    /// Counts for a [`Cpu`](crate::Cpu) of `num_threads` threads.
    pub fn new(num_threads: usize) -> Self {
        Self {
            layout: Arc::new(Mutex::new(Layout::unbounded())),
            num_threads,
            flops: AtomicU64::new(0),
        }
    }

    /// The capacity that an arena for the same calls needs.
    pub fn high_water_bytes(&self) -> usize {
        lock(&self.layout).high_water_bytes()
    }

    /// The most bytes that were held at once.
    pub fn peak_live_bytes(&self) -> usize {
        lock(&self.layout).peak_live_bytes()
    }

    /// Bytes held.
    pub fn live_bytes(&self) -> usize {
        lock(&self.layout).live_bytes()
    }

    /// What was held at the moment of [`Meta::peak_live_bytes`].
    pub fn held_at_peak(&self) -> Vec<PurposePeak> {
        lock(&self.layout).held_at_peak()
    }

    /// The most that each purpose held, each at its own moment.
    pub fn peak_by_purpose(&self) -> Vec<PurposePeak> {
        lock(&self.layout).peak_by_purpose()
    }

    /// Operations of matrix products and attention: a multiplication and its
    /// addition are two, and keys that a query does not see are none.
    pub fn flops(&self) -> u64 {
        self.flops.load(Relaxed)
    }

    /// What an operation takes inside, given back at once.
    fn work(&self, len: usize) -> Result<(), ArenaFull> {
        if len > 0 {
            drop(self.alloc(len, Purpose::Workspace)?);
        }
        Ok(())
    }

    fn multiply(&self, LinearShape { t, o, i }: LinearShape) {
        self.flops.fetch_add(2 * product([t, o, i]), Relaxed);
    }

    fn attend(&self, shape: &AttentionShape, products: u64) {
        let seen: usize = (0..shape.num_queries)
            .map(|query| shape.seen(query).len())
            .sum();
        let pairs = product([shape.batch, shape.heads, seen]);
        self.flops
            .fetch_add(2 * products * pairs * shape.head_dim as u64, Relaxed);
    }
}

fn product(factors: [usize; 3]) -> u64 {
    factors.iter().map(|&factor| factor as u64).product()
}

/// A thread that panicked between two requests left the offsets whole.
fn lock(layout: &Mutex<Layout>) -> MutexGuard<'_, Layout> {
    layout.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The length of a buffer, and where it would lie.
#[derive(Debug)]
pub struct Counted {
    len: usize,
    placed: Placed,
    layout: Arc<Mutex<Layout>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        lock(&self.layout).give_back(&self.placed);
    }
}

impl Device for Meta {
    type Buffer = Counted;
    type Bytes<'a> = ();
    type BytesMut<'a> = ();

    fn alloc(&self, len: usize, purpose: Purpose) -> Result<Counted, ArenaFull> {
        let bytes = len.saturating_mul(size_of::<f32>());
        let placed = lock(&self.layout).take(bytes, purpose)?;
        Ok(Counted {
            len,
            placed,
            layout: Arc::clone(&self.layout),
        })
    }

    fn len(&self, buffer: &Counted) -> usize {
        buffer.len
    }

    fn fill(&self, _y: &mut Counted, _value: f32) {}

    fn copy(&self, x: &Counted, from: Range<usize>, y: &mut Counted, to: usize) {
        shapes::span(x.len, from.start, from.len());
        shapes::span(y.len, to, from.len());
    }

    fn add(&self, x: &Counted, y: &mut Counted, at: usize) {
        shapes::span(y.len, at, x.len);
    }

    fn write(&self, x: &[f32], y: &mut Counted, at: usize) {
        shapes::span(y.len, at, x.len());
    }

    fn read(&self, x: &Counted, from: Range<usize>, y: &mut [f32]) {
        shapes::span(x.len, from.start, shapes::same(from.len(), y.len()));
        y.fill(0.0);
    }

    fn sum_of_squares(&self, _x: &Counted) -> f64 {
        0.0
    }

    fn embedding(
        &self,
        ids: &[u32],
        table_vc: &Weight<()>,
        _first_row: usize,
        _scale: f32,
        y_tc: &mut Counted,
    ) {
        shapes::embedding(ids, table_vc, y_tc.len);
    }

    fn embedding_backward(
        &self,
        ids: &[u32],
        dy_tc: &Counted,
        rows: Range<usize>,
        _scale: f32,
        grad_vc: &mut Counted,
        at: usize,
    ) {
        shapes::embedding_backward(ids, dy_tc.len, rows, grad_vc.len, at);
    }

    fn rms_norm(
        &self,
        x_tc: &Counted,
        weight_c: &Weight<()>,
        _norm: RmsNorm,
        y_tc: &mut Counted,
        rstd_t: &mut Counted,
    ) {
        shapes::norm([x_tc.len, y_tc.len], weight_c, rstd_t.len);
    }

    fn rms_norm_backward(
        &self,
        x_tc: &Counted,
        weight_c: &Weight<()>,
        _norm: RmsNorm,
        rstd_t: &Counted,
        dy_tc: &Counted,
        dx_tc: &mut Counted,
        grad: &mut Counted,
        at: usize,
    ) -> Result<(), ArenaFull> {
        let (t, c) = shapes::norm([x_tc.len, dy_tc.len], weight_c, rstd_t.len);
        shapes::same(dy_tc.len, dx_tc.len);
        shapes::span(grad.len, at, c);
        self.work(workspace::rms_norm_backward_len(t, c))
    }

    fn layer_norm(
        &self,
        x_tc: &Counted,
        weight_c: &Weight<()>,
        bias_c: &Weight<()>,
        _eps: f32,
        y_tc: &mut Counted,
        stats_t2: &mut Counted,
    ) {
        shapes::layer_norm([x_tc.len, y_tc.len], weight_c, stats_t2.len);
        shapes::vector(y_tc.len, bias_c);
    }

    fn layer_norm_backward(
        &self,
        x_tc: &Counted,
        weight_c: &Weight<()>,
        stats_t2: &Counted,
        dy_tc: &Counted,
        dx_tc: &mut Counted,
        grad: &mut Counted,
        at: [usize; 2],
    ) -> Result<(), ArenaFull> {
        let (t, c) = shapes::layer_norm([x_tc.len, dy_tc.len], weight_c, stats_t2.len);
        shapes::same(dy_tc.len, dx_tc.len);
        for at in at {
            shapes::span(grad.len, at, c);
        }
        self.work(workspace::layer_norm_backward_len(t, c))
    }

    fn linear(
        &self,
        x_ti: &Counted,
        weight_oi: &Weight<()>,
        bias_o: Option<&Weight<()>>,
        y_to: &mut Counted,
        _adds: bool,
    ) -> Result<(), ArenaFull> {
        let shape = shapes::linear(x_ti.len, weight_oi, y_to.len);
        if let Some(bias) = bias_o {
            shapes::vector(shape.o, bias);
        }
        self.multiply(shape);
        self.work(linear_len(shape, weight_oi, self.num_threads))
    }

    fn linear_dgrad(
        &self,
        dy_to: &Counted,
        weight_oi: &Weight<()>,
        dx_ti: &mut Counted,
        _adds: bool,
    ) -> Result<(), ArenaFull> {
        let shape = shapes::linear(dx_ti.len, weight_oi, dy_to.len);
        self.multiply(shape);
        self.work(linear_len(shape, weight_oi, self.num_threads))
    }

    fn linear_wgrad(
        &self,
        dy_to: &Counted,
        x_ti: &Counted,
        num_tokens: usize,
        grad: &mut Counted,
        at: usize,
        _adds: bool,
    ) {
        let shape = shapes::wgrad(dy_to.len, x_ti.len, num_tokens);
        shapes::span(grad.len, at, shape.o * shape.i);
        self.multiply(shape);
    }

    fn bias_grad(&self, dy_to: &Counted, num_tokens: usize, grad: &mut Counted, at: usize) {
        shapes::span(grad.len, at, shapes::width(dy_to.len, num_tokens));
    }

    fn rope(
        &self,
        x_tnh: &mut Counted,
        num_heads: usize,
        positions: &[u32],
        rope: Rope<'_>,
        _inverse: bool,
    ) {
        let h = 2 * rope.inv_freq.len();
        shapes::same(x_tnh.len, positions.len() * num_heads * h);
    }

    fn split_heads(&self, fused: &Counted, group: usize, head_dim: usize, qkv: [&mut Counted; 3]) {
        shapes::fused_heads(fused.len, group, head_dim, qkv.map(|x| x.len));
    }

    fn merge_heads(&self, qkv: [&Counted; 3], group: usize, head_dim: usize, fused: &mut Counted) {
        shapes::fused_heads(fused.len, group, head_dim, qkv.map(|x| x.len));
    }

    fn attention(
        &self,
        q_tnh: &Counted,
        k_smh: &Counted,
        v_smh: &Counted,
        shape: AttentionShape,
        y_tnh: &mut Counted,
        lse_tn: &mut Counted,
    ) -> Result<(), ArenaFull> {
        let q_len = shapes::same(q_tnh.len, y_tnh.len);
        shapes::attention(shape, q_len, [k_smh.len, v_smh.len], lse_tn.len);
        self.attend(&shape, ATTENTION_PRODUCTS);
        self.work(workspace::attention_len(&shape, self.num_threads))
    }

    fn attention_backward(
        &self,
        qkv: [&Counted; 3],
        y_tnh: &Counted,
        lse_tn: &Counted,
        dy_tnh: &Counted,
        shape: AttentionShape,
        dqkv: [&mut Counted; 3],
    ) -> Result<(), ArenaFull> {
        let lens = qkv.map(|x| x.len);
        shapes::attention_backward(shape, lens, dqkv.map(|dx| dx.len), lse_tn.len);
        shapes::same(shapes::same(y_tnh.len, dy_tnh.len), lens[0]);
        self.attend(&shape, ATTENTION_BACKWARD_PRODUCTS);
        self.work(workspace::attention_backward_len(&shape, self.num_threads))
    }

    fn swiglu(&self, gate: &Counted, up: &Counted, y: &mut Counted) {
        shapes::same(shapes::same(gate.len, up.len), y.len);
    }

    fn swiglu_backward(&self, gate: &mut Counted, up: &mut Counted, dy: &mut Counted) {
        shapes::same(shapes::same(gate.len, up.len), dy.len);
    }

    fn gelu(&self, x: &Counted, _form: Gelu, y: &mut Counted) {
        shapes::same(x.len, y.len);
    }

    fn gelu_backward(&self, x: &mut Counted, _form: Gelu, dy: &mut Counted) {
        shapes::same(x.len, dy.len);
    }

    fn geglu(&self, gate: &Counted, up: &Counted, _form: Gelu, y: &mut Counted) {
        shapes::same(shapes::same(gate.len, up.len), y.len);
    }

    fn geglu_backward(&self, gate: &mut Counted, up: &mut Counted, _form: Gelu, dy: &mut Counted) {
        shapes::same(shapes::same(gate.len, up.len), dy.len);
    }

    fn cross_entropy(
        &self,
        logits_tv: &Counted,
        _first_row: usize,
        targets: &[u32],
        running: &mut RunningMax<Counted>,
        _first: bool,
    ) {
        shapes::logits(logits_tv.len, targets, statistics(running));
    }

    fn cross_entropy_loss(&self, running: &RunningMax<Counted>, targets: &[u32]) -> f64 {
        shapes::logits(targets.len(), targets, statistics(running));
        0.0
    }

    fn cross_entropy_backward(
        &self,
        logits_tv: &mut Counted,
        _first_row: usize,
        targets: &[u32],
        running: &RunningMax<Counted>,
        _scale: f32,
    ) {
        shapes::logits(logits_tv.len, targets, statistics(running));
    }

    fn quantize(&self, x: &mut Counted, cols: usize, _format: Format) -> RowCounts {
        shapes::rows(x.len, cols);
        RowCounts::default()
    }

    /// The bytes of the state are not known here, so nor is the run's length.
    fn adamw(
        &self,
        _master: Master<()>,
        _moments: Moments<()>,
        grad: &Counted,
        at: usize,
        _update: &Update,
    ) {
        shapes::span(grad.len, at, 0);
    }
}

fn statistics(running: &RunningMax<Counted>) -> [usize; 3] {
    [running.max.len, running.sum.len, running.target.len]
}

fn linear_len(shape: LinearShape, weight: &Weight<()>, num_threads: usize) -> usize {
    workspace::linear_len(shape.t, shape.o, shape.i, weight.format, num_threads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ScoreBias, WeightFormat};

    #[test]
    fn a_linear_layer_counts_two_for_each_product() {
        let meta = Meta::new(2);
        let weight = Weight::whole(5, 7, WeightFormat::F32, ());
        let buffer = |len| meta.alloc(len, Purpose::Activation).unwrap();
        let (mut x, mut y, mut grad) = (buffer(3 * 7), buffer(3 * 5), buffer(40));
        meta.linear(&x, &weight, None, &mut y, false).unwrap();
        assert_eq!(meta.flops(), 2 * 3 * 5 * 7);
        meta.linear_dgrad(&y, &weight, &mut x, true).unwrap();
        meta.linear_wgrad(&y, &x, 3, &mut grad, 5, true);
        assert_eq!(meta.flops(), 3 * 2 * 3 * 5 * 7);
    }

    #[test]
    fn attention_counts_only_keys_that_are_seen() {
        let meta = Meta::new(2);
        let buffer = |len| meta.alloc(len, Purpose::Activation).unwrap();
        let shape = AttentionShape {
            batch: 1,
            num_queries: 3,
            num_keys: 5,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            window: None,
            bias: ScoreBias::None,
        };
        let (q, kv) = (buffer(3 * 4 * 8), buffer(5 * 2 * 8));
        let (mut y, mut lse) = (buffer(3 * 4 * 8), buffer(3 * 4));
        meta.attention(&q, &kv, &kv, shape, &mut y, &mut lse)
            .unwrap();
        // Queries see 3, 4 and 5 keys.
        assert_eq!(meta.flops(), 2 * 2 * 4 * (3 + 4 + 5) * 8);
        let window = Some(4);
        let windowed = AttentionShape { window, ..shape };
        meta.attention(&q, &kv, &kv, windowed, &mut y, &mut lse)
            .unwrap();
        assert_eq!(meta.flops(), 2 * 2 * 4 * (12 + 3 + 4 + 4) * 8);
    }

    #[test]
    fn dropped_buffers_leave_the_peak() {
        let meta = Meta::new(1);
        let kept = meta.alloc(16, Purpose::UnitInput).unwrap();
        drop(meta.alloc(32, Purpose::Logits).unwrap());
        assert_eq!((meta.live_bytes(), meta.peak_live_bytes()), (64, 192));
        assert_eq!(meta.high_water_bytes(), 192);
        drop(kept);
        assert_eq!(meta.live_bytes(), 0);
    }

    #[test]
    #[should_panic(expected = "an output of 3 tokens, 5 features")]
    fn shapes_that_do_not_fit_panic() {
        let meta = Meta::new(1);
        let weight = Weight::whole(5, 7, WeightFormat::F32, ());
        let buffer = |len| meta.alloc(len, Purpose::Activation).unwrap();
        let _full = meta.linear(&buffer(3 * 7), &weight, None, &mut buffer(14), false);
    }
}
