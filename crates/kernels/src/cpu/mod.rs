//! The fast device: f32 arithmetic on every thread, with the widest vectors of
//! the processor that the program runs on.
//!
//! Work is cut in parts that depend on shapes and on the number of threads that
//! the device was made for, never on which thread was free first, and every sum
//! has one order: the same calls give the same bits.
//!
//! Threads are those of the rayon pool that the caller runs in.
#![expect(
    clippy::inline_always,
    reason = "code is vectorized only where it is inlined into the run-time dispatch"
)]

mod adamw;
mod attention;
mod attention_backward;
mod cross_entropy;
mod elementwise;
mod gelu;
mod layer_norm;
mod linear;
mod matrix;
mod norm;
mod rope;
mod tasks;
mod vector;
mod weights;

use std::ops::Range;

pub(crate) use adamw::Step;
pub(crate) use vector::simd;

use fp8::Format;

use crate::arena::Buffer;
use crate::fp8::{RowCounts, Update, round_rows};
use crate::shapes::{self, LinearShape};
use crate::{
    Arena, ArenaFull, AttentionShape, Device, Gelu, Master, Moments, Purpose, RmsNorm, Rope,
    RunningMax, Weight, workspace,
};

/// The processor.
#[derive(Debug)]
pub struct Cpu {
    arena: Arena,
    num_threads: usize,
}

impl Cpu {
    /// A device that holds its buffers in `arena` and deals work to
    /// `num_threads` threads, at least one.
    pub fn new(arena: Arena, num_threads: usize) -> Self {
        Self {
            arena,
            num_threads: num_threads.max(1),
        }
    }

    /// Where its buffers lie.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The number of threads that work is dealt to.
    pub fn num_threads(&self) -> usize {
        self.num_threads
    }

    /// What an operation takes inside.
    fn workspace(&self, len: usize) -> Result<Buffer, ArenaFull> {
        self.arena.alloc(len, Purpose::Workspace)
    }

    fn linear_workspace(
        &self,
        LinearShape { t, o, i }: LinearShape,
        weight: &Weight<&[u8]>,
    ) -> Result<Buffer, ArenaFull> {
        let len = workspace::linear_len(t, o, i, weight.format, self.num_threads);
        self.workspace(len)
    }
}

fn statistics(running: &RunningMax<Buffer>) -> [&Buffer; 3] {
    [&running.max, &running.sum, &running.target]
}

impl Device for Cpu {
    type Buffer = Buffer;
    type Bytes<'a> = &'a [u8];
    type BytesMut<'a> = &'a mut [u8];

    fn alloc(&self, len: usize, purpose: Purpose) -> Result<Buffer, ArenaFull> {
        self.arena.alloc(len, purpose)
    }

    fn len(&self, buffer: &Buffer) -> usize {
        buffer.len()
    }

    fn fill(&self, y: &mut Buffer, value: f32) {
        elementwise::fill(y.as_mut_slice(), value);
    }

    fn copy(&self, x: &Buffer, from: Range<usize>, y: &mut Buffer, to: usize) {
        let to = shapes::span(y.len(), to, from.len());
        elementwise::copy(&x.as_slice()[from], &mut y.as_mut_slice()[to]);
    }

    fn add(&self, x: &Buffer, y: &mut Buffer, at: usize) {
        let to = shapes::span(y.len(), at, x.len());
        elementwise::add(x.as_slice(), &mut y.as_mut_slice()[to]);
    }

    fn write(&self, x: &[f32], y: &mut Buffer, at: usize) {
        let to = shapes::span(y.len(), at, x.len());
        elementwise::copy(x, &mut y.as_mut_slice()[to]);
    }

    fn read(&self, x: &Buffer, from: Range<usize>, y: &mut [f32]) {
        shapes::same(from.len(), y.len());
        elementwise::copy(&x.as_slice()[from], y);
    }

    fn sum_of_squares(&self, x: &Buffer) -> f64 {
        elementwise::sum_of_squares(x.as_slice())
    }

    fn embedding(
        &self,
        ids: &[u32],
        table_vc: &Weight<&[u8]>,
        first_row: usize,
        scale: f32,
        y_tc: &mut Buffer,
    ) {
        shapes::embedding(ids, table_vc, y_tc.len());
        elementwise::embedding(ids, table_vc, first_row, scale, y_tc.as_mut_slice());
    }

    fn embedding_backward(
        &self,
        ids: &[u32],
        dy_tc: &Buffer,
        rows: Range<usize>,
        scale: f32,
        grad_vc: &mut Buffer,
        at: usize,
    ) {
        let (dy, grad) = (dy_tc.len(), grad_vc.len());
        let (_, span) = shapes::embedding_backward(ids, dy, rows.clone(), grad, at);
        let grad = &mut grad_vc.as_mut_slice()[span];
        elementwise::embedding_backward(ids, dy_tc.as_slice(), &rows, scale, grad);
    }

    fn rms_norm(
        &self,
        x_tc: &Buffer,
        weight_c: &Weight<&[u8]>,
        norm: RmsNorm,
        y_tc: &mut Buffer,
        rstd_t: &mut Buffer,
    ) {
        shapes::norm([x_tc.len(), y_tc.len()], weight_c, rstd_t.len());
        let weight = weights::vector_plus(weight_c, norm.offset);
        let (y, rstd) = (y_tc.as_mut_slice(), rstd_t.as_mut_slice());
        norm::forward(x_tc.as_slice(), &weight, norm.eps, y, rstd);
    }

    fn rms_norm_backward(
        &self,
        x_tc: &Buffer,
        weight_c: &Weight<&[u8]>,
        norm: RmsNorm,
        rstd_t: &Buffer,
        dy_tc: &Buffer,
        dx_tc: &mut Buffer,
        grad: &mut Buffer,
        at: usize,
    ) -> Result<(), ArenaFull> {
        let (t, c) = shapes::norm([x_tc.len(), dy_tc.len()], weight_c, rstd_t.len());
        shapes::same(dy_tc.len(), dx_tc.len());
        let span = shapes::span(grad.len(), at, c);
        let mut partials = self.workspace(workspace::rms_norm_backward_len(t, c))?;
        let weight = weights::vector_plus(weight_c, norm.offset);
        let saved = norm::Saved {
            x: x_tc.as_slice(),
            weight: &weight,
            rstd: rstd_t.as_slice(),
            dy: dy_tc.as_slice(),
        };
        let grad = &mut grad.as_mut_slice()[span];
        norm::backward(saved, dx_tc.as_mut_slice(), grad, partials.as_mut_slice());
        Ok(())
    }

    fn layer_norm(
        &self,
        x_tc: &Buffer,
        weight_c: &Weight<&[u8]>,
        bias_c: &Weight<&[u8]>,
        eps: f32,
        y_tc: &mut Buffer,
        stats_t2: &mut Buffer,
    ) {
        shapes::layer_norm([x_tc.len(), y_tc.len()], weight_c, stats_t2.len());
        shapes::vector(y_tc.len(), bias_c);
        let vectors = [weight_c, bias_c].map(weights::vector);
        let (y, stats) = (y_tc.as_mut_slice(), stats_t2.as_mut_slice());
        layer_norm::forward(x_tc.as_slice(), [&vectors[0], &vectors[1]], eps, y, stats);
    }

    fn layer_norm_backward(
        &self,
        x_tc: &Buffer,
        weight_c: &Weight<&[u8]>,
        stats_t2: &Buffer,
        dy_tc: &Buffer,
        dx_tc: &mut Buffer,
        grad: &mut Buffer,
        at: [usize; 2],
    ) -> Result<(), ArenaFull> {
        let (t, c) = shapes::layer_norm([x_tc.len(), dy_tc.len()], weight_c, stats_t2.len());
        shapes::same(dy_tc.len(), dx_tc.len());
        let spans = at.map(|at| shapes::span(grad.len(), at, c));
        let mut partials = self.workspace(workspace::layer_norm_backward_len(t, c))?;
        let weight = weights::vector(weight_c);
        let saved = layer_norm::Saved {
            x: x_tc.as_slice(),
            weight: &weight,
            stats: stats_t2.as_slice(),
            dy: dy_tc.as_slice(),
        };
        let partials = partials.as_mut_slice();
        layer_norm::backward(saved, dx_tc.as_mut_slice(), partials);
        for (span, which) in spans.into_iter().zip(0..) {
            norm::add_partials(partials, (which, 2), &mut grad.as_mut_slice()[span]);
        }
        Ok(())
    }

    fn linear(
        &self,
        x_ti: &Buffer,
        weight_oi: &Weight<&[u8]>,
        bias_o: Option<&Weight<&[u8]>>,
        y_to: &mut Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        let shape = shapes::linear(x_ti.len(), weight_oi, y_to.len());
        let mut panels = self.linear_workspace(shape, weight_oi)?;
        let bias = bias_o.map(|bias_o| {
            shapes::vector(shape.o, bias_o);
            weights::vector(bias_o)
        });
        linear::forward(
            x_ti.as_slice(),
            weight_oi,
            bias.as_deref(),
            (y_to.as_mut_slice(), adds),
            (panels.as_mut_slice(), self.num_threads),
        );
        Ok(())
    }

    fn linear_dgrad(
        &self,
        dy_to: &Buffer,
        weight_oi: &Weight<&[u8]>,
        dx_ti: &mut Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        let shape = shapes::linear(dx_ti.len(), weight_oi, dy_to.len());
        let mut panels = self.linear_workspace(shape, weight_oi)?;
        linear::dgrad(
            dy_to.as_slice(),
            weight_oi,
            (dx_ti.as_mut_slice(), adds),
            (panels.as_mut_slice(), self.num_threads),
        );
        Ok(())
    }

    fn linear_wgrad(
        &self,
        dy_to: &Buffer,
        x_ti: &Buffer,
        num_tokens: usize,
        grad: &mut Buffer,
        at: usize,
        adds: bool,
    ) {
        let shape = shapes::wgrad(dy_to.len(), x_ti.len(), num_tokens);
        let span = shapes::span(grad.len(), at, shape.o * shape.i);
        let grad = &mut grad.as_mut_slice()[span];
        let (dy, x) = (dy_to.as_slice(), x_ti.as_slice());
        linear::wgrad(dy, x, shape, (grad, adds), self.num_threads);
    }

    fn bias_grad(&self, dy_to: &Buffer, num_tokens: usize, grad: &mut Buffer, at: usize) {
        let shape = shapes::wgrad(dy_to.len(), 0, num_tokens);
        let span = shapes::span(grad.len(), at, shape.o);
        linear::bias_grad(dy_to.as_slice(), &mut grad.as_mut_slice()[span]);
    }

    fn rope(
        &self,
        x_tnh: &mut Buffer,
        num_heads: usize,
        positions: &[u32],
        rope: Rope<'_>,
        inverse: bool,
    ) {
        let h = 2 * rope.inv_freq.len();
        shapes::same(x_tnh.len(), positions.len() * num_heads * h);
        rope::rotate(x_tnh.as_mut_slice(), num_heads, positions, rope, inverse);
    }

    fn split_heads(&self, fused: &Buffer, group: usize, head_dim: usize, qkv: [&mut Buffer; 3]) {
        let lens = qkv.each_ref().map(|x| x.len());
        let widths = shapes::fused_heads(fused.len(), group, head_dim, lens);
        elementwise::split(fused.as_slice(), widths, qkv.map(Buffer::as_mut_slice));
    }

    fn merge_heads(&self, qkv: [&Buffer; 3], group: usize, head_dim: usize, fused: &mut Buffer) {
        let lens = qkv.map(Buffer::len);
        let widths = shapes::fused_heads(fused.len(), group, head_dim, lens);
        elementwise::merge(qkv.map(Buffer::as_slice), widths, fused.as_mut_slice());
    }

    fn attention(
        &self,
        q_tnh: &Buffer,
        k_smh: &Buffer,
        v_smh: &Buffer,
        shape: AttentionShape,
        y_tnh: &mut Buffer,
        lse_tn: &mut Buffer,
    ) -> Result<(), ArenaFull> {
        let q_len = shapes::same(q_tnh.len(), y_tnh.len());
        shapes::attention(shape, q_len, [k_smh.len(), v_smh.len()], lse_tn.len());
        let mut tiles = self.workspace(workspace::attention_len(&shape, self.num_threads))?;
        attention::forward(
            [q_tnh, k_smh, v_smh].map(Buffer::as_slice),
            &shape,
            y_tnh.as_mut_slice(),
            lse_tn.as_mut_slice(),
            (tiles.as_mut_slice(), self.num_threads),
        );
        Ok(())
    }

    fn attention_backward(
        &self,
        qkv: [&Buffer; 3],
        y_tnh: &Buffer,
        lse_tn: &Buffer,
        dy_tnh: &Buffer,
        shape: AttentionShape,
        dqkv: [&mut Buffer; 3],
    ) -> Result<(), ArenaFull> {
        let lens = qkv.map(Buffer::len);
        let d_lens = dqkv.each_ref().map(|dx| dx.len());
        shapes::attention_backward(shape, lens, d_lens, lse_tn.len());
        shapes::same(shapes::same(y_tnh.len(), dy_tnh.len()), lens[0]);
        let len = workspace::attention_backward_len(&shape, self.num_threads);
        let mut scratch = self.workspace(len)?;
        let saved = attention_backward::Saved {
            y: y_tnh.as_slice(),
            lse: lse_tn.as_slice(),
            dy: dy_tnh.as_slice(),
        };
        attention_backward::backward(
            qkv.map(Buffer::as_slice),
            saved,
            &shape,
            dqkv.map(Buffer::as_mut_slice),
            (scratch.as_mut_slice(), self.num_threads),
        );
        Ok(())
    }

    fn swiglu(&self, gate: &Buffer, up: &Buffer, y: &mut Buffer) {
        shapes::same(shapes::same(gate.len(), up.len()), y.len());
        elementwise::swiglu(gate.as_slice(), up.as_slice(), y.as_mut_slice());
    }

    fn swiglu_backward(&self, gate: &mut Buffer, up: &mut Buffer, dy: &mut Buffer) {
        shapes::same(shapes::same(gate.len(), up.len()), dy.len());
        elementwise::swiglu_backward(gate.as_mut_slice(), up.as_mut_slice(), dy.as_mut_slice());
    }

    fn gelu(&self, x: &Buffer, form: Gelu, y: &mut Buffer) {
        shapes::same(x.len(), y.len());
        gelu::forward(x.as_slice(), form, y.as_mut_slice());
    }

    fn gelu_backward(&self, x: &mut Buffer, form: Gelu, dy: &mut Buffer) {
        shapes::same(x.len(), dy.len());
        gelu::backward(x.as_mut_slice(), form, dy.as_mut_slice());
    }

    fn geglu(&self, gate: &Buffer, up: &Buffer, form: Gelu, y: &mut Buffer) {
        shapes::same(shapes::same(gate.len(), up.len()), y.len());
        gelu::gated(gate.as_slice(), up.as_slice(), form, y.as_mut_slice());
    }

    fn geglu_backward(&self, gate: &mut Buffer, up: &mut Buffer, form: Gelu, dy: &mut Buffer) {
        shapes::same(shapes::same(gate.len(), up.len()), dy.len());
        let (gate, up) = (gate.as_mut_slice(), up.as_mut_slice());
        gelu::gated_backward(gate, up, form, dy.as_mut_slice());
    }

    fn cross_entropy(
        &self,
        logits_tv: &Buffer,
        first_row: usize,
        targets: &[u32],
        running: &mut RunningMax<Buffer>,
        first: bool,
    ) {
        shapes::logits(
            logits_tv.len(),
            targets,
            statistics(running).map(Buffer::len),
        );
        let RunningMax { max, sum, target } = running;
        let statistics = [max, sum, target].map(Buffer::as_mut_slice);
        cross_entropy::update(logits_tv.as_slice(), first_row, targets, statistics, first);
    }

    fn cross_entropy_loss(&self, running: &RunningMax<Buffer>, targets: &[u32]) -> f64 {
        let statistics = statistics(running);
        shapes::logits(targets.len(), targets, statistics.map(Buffer::len));
        cross_entropy::loss(statistics.map(Buffer::as_slice), targets)
    }

    fn cross_entropy_backward(
        &self,
        logits_tv: &mut Buffer,
        first_row: usize,
        targets: &[u32],
        running: &RunningMax<Buffer>,
        scale: f32,
    ) {
        shapes::logits(
            logits_tv.len(),
            targets,
            statistics(running).map(Buffer::len),
        );
        let [max, sum, _] = statistics(running).map(Buffer::as_slice);
        cross_entropy::backward(
            logits_tv.as_mut_slice(),
            first_row,
            targets,
            [max, sum],
            scale,
        );
    }

    fn quantize(&self, x: &mut Buffer, cols: usize, format: Format) -> RowCounts {
        shapes::rows(x.len(), cols);
        round_rows(x.as_mut_slice(), cols, format)
    }

    fn adamw(
        &self,
        master: Master<&mut [u8]>,
        moments: Moments<&mut [u8]>,
        grad: &Buffer,
        at: usize,
        update: &Update,
    ) {
        let len = adamw::len(&master);
        let span = shapes::span(grad.len(), at, len);
        adamw::update(master, moments, &grad.as_slice()[span], update);
    }
}
