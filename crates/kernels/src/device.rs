//! The operations, and the few plain types that their signatures need.
//!
//! Letters of shapes: `t` tokens (all rows of a micro-batch, one after the
//! other), `c` model width, `o` output and `i` input features of a linear layer,
//! `n` query heads, `m` key/value heads, `h` head size, `v` rows of a vocabulary
//! table. Buffers are dense and row-major: `x_tc` is `[t, c]`.
//!
//! Token ids, targets and positions are a few KiB of host memory; a device with
//! memory of its own copies them in. Everything else stays on the device.

use std::ops::Range;

use fp8::{Format, MomentPlanes, NestedPlanes};

use crate::fp8::{RowCounts, Update};
use crate::{ArenaFull, Purpose, Weight};

/// The sizes of one attention call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Query tokens of each sequence.
    pub num_queries: usize,
    /// Key/value tokens of each sequence; the queries are its last
    /// `num_queries` ones. Equal to `num_queries` in training, larger when
    /// keys of earlier tokens are cached.
    pub num_keys: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// How many keys a query sees, its own the last of them; all earlier ones
    /// if there is no window.
    pub window: Option<usize>,
    /// What is added to scores by position.
    pub bias: ScoreBias,
}

impl AttentionShape {
    /// The keys that query `query` of a sequence sees.
    pub(crate) fn seen(&self, query: usize) -> Range<usize> {
        let end = self.num_keys - self.num_queries + query + 1;
        let first = self.window.map_or(0, |window| end.saturating_sub(window));
        first..end
    }
}

/// What attention adds to a score by the position of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreBias {
    /// Nothing.
    None,
    /// `slope * key` in bf16, before scores are divided by `sqrt(h)`; see
    /// [`alibi_slopes`](crate::alibi_slopes).
    Alibi,
}

/// The two forms of the Gaussian error linear unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gelu {
    /// `x (1 + erf(x / sqrt(2))) / 2`.
    Erf,
    /// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`.
    Tanh,
}

/// The settings of a root-mean-square norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f32,
    /// Added to each weight: 1 where checkpoints store the weight minus one.
    pub offset: f32,
}

/// Rotary position embedding: the angle of pair `j` at position `p` is
/// `p * inv_freq[j]`; sine and cosine are multiplied by `scale`.
///
/// Pairs are `(j, j + h/2)`, as in Hugging Face checkpoints.
#[derive(Debug, Clone, Copy)]
pub struct Rope<'a> {
    /// `h / 2` frequencies.
    pub inv_freq: &'a [f32],
    /// 1 but for kinds that scale attention.
    pub scale: f32,
}

/// Softmax statistics of each token over the part of the vocabulary seen so far.
#[derive(Debug)]
pub struct RunningMax<B> {
    /// `[t]`: the largest logit so far.
    pub max: B,
    /// `[t]`: the sum of `exp(logit - max)` so far.
    pub sum: B,
    /// `[t]`: the logit of the token's target, once its row was seen.
    pub target: B,
}

/// The master weight of a run of elements, as it rests.
#[derive(Debug)]
pub enum Master<B> {
    /// f32 elements.
    F32(B),
    /// An f32 split in two 16-bit halves: `high` is the nearest bf16 (ties away
    /// from zero), `low` the signed rest, so that as integers
    /// `bits = (high << 16) + low` exactly.
    Bf16 {
        /// The bf16 that computes and is gathered.
        high: B,
        /// The rest, i16.
        low: B,
    },
    /// A bf16 alone, rounded stochastically. Needs whole rows.
    Bf16Alone(B),
    /// A bf16 and eight more bits, rounded stochastically. Needs whole rows.
    Bf16Plus8 {
        /// The bf16 that computes and is gathered.
        high: B,
        /// The rest, i8 in units of 2^-8 of the bf16's last place.
        low: B,
    },
    /// An E4M3 code that computes and is gathered, and its residual. Needs whole row
    /// tiles.
    Nested(NestedPlanes<B>),
}

/// `AdamW`'s moments of a run of elements.
#[derive(Debug)]
pub enum Moments<B> {
    /// In f32, beside [`Master::F32`] and [`Master::Bf16`].
    F32 {
        /// First moment.
        m: B,
        /// Second moment.
        v: B,
    },
    /// In 8 bits, beside the other masters.
    Eight(MomentPlanes<B>),
}

/// One `AdamW` update (Loshchilov & Hutter 2019), in the order of `torch.optim.AdamW`.
///
/// ```text
/// g  = grad_scale * gradient
/// w  = w * (1 - lr * weight_decay)
/// m  = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
/// w  = w - lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled weight decay of this tensor.
    pub weight_decay: f32,
    /// This step's number, from 1.
    pub step: u64,
    /// Multiplies the gradient: the clipping factor.
    pub grad_scale: f32,
}

/// A place that holds buffers and computes on them.
///
/// Shapes that do not fit together are bugs of the caller and panic. The one
/// error is an arena without room.
///
/// Where a doc says "adds", the output's present content is kept and added to.
pub trait Device {
    /// f32 elements in this device's arena, given back when dropped.
    /// Fresh from [`Device::alloc`] its content is unspecified.
    type Buffer;
    /// Bytes of resident weights that this device can read.
    type Bytes<'a>: Copy;
    /// Bytes of resident state that this device can update.
    type BytesMut<'a>;

    /// Takes `len` elements of scratch.
    fn alloc(&self, len: usize, purpose: Purpose) -> Result<Self::Buffer, ArenaFull>;

    /// The number of elements of a buffer.
    fn len(&self, buffer: &Self::Buffer) -> usize;

    /// Sets every element.
    fn fill(&self, y: &mut Self::Buffer, value: f32);

    /// Copies elements `from` of `x` to `y` at `to`.
    fn copy(&self, x: &Self::Buffer, from: Range<usize>, y: &mut Self::Buffer, to: usize);

    /// Adds `x` to elements of `y` at `at`.
    fn add(&self, x: &Self::Buffer, y: &mut Self::Buffer, at: usize);

    /// Copies host numbers into a buffer at `at`.
    fn write(&self, x: &[f32], y: &mut Self::Buffer, at: usize);

    /// Copies elements `from` to host memory of the same length.
    fn read(&self, x: &Self::Buffer, from: Range<usize>, y: &mut [f32]);

    /// The sum of squares in f64; NaN if any element is NaN. Fixed partition:
    /// the same elements give the same bits.
    fn sum_of_squares(&self, x: &Self::Buffer) -> f64;

    /// Writes the rows of `table_vc`, times `scale`, for those ids that lie in
    /// `first_row .. first_row + table_vc.rows`; other tokens of `y_tc` are
    /// left as they are.
    fn embedding(
        &self,
        ids: &[u32],
        table_vc: &Weight<Self::Bytes<'_>>,
        first_row: usize,
        scale: f32,
        y_tc: &mut Self::Buffer,
    );

    /// Adds `scale * dy_tc` to the gradient rows of those ids that lie in `rows`;
    /// `grad_vc` holds just these rows, from element `at` on. The tokens of an id are
    /// added to each other in their order, then to what is there, so that the order
    /// does not depend on how micro-batches are dealt to ranks.
    fn embedding_backward(
        &self,
        ids: &[u32],
        dy_tc: &Self::Buffer,
        rows: Range<usize>,
        scale: f32,
        grad_vc: &mut Self::Buffer,
        at: usize,
    );

    /// `y = x * rstd * (weight + offset)` with `rstd = 1 / sqrt(mean(x^2) + eps)`
    /// of each token; `rstd_t` is kept for backward.
    fn rms_norm(
        &self,
        x_tc: &Self::Buffer,
        weight_c: &Weight<Self::Bytes<'_>>,
        norm: RmsNorm,
        y_tc: &mut Self::Buffer,
        rstd_t: &mut Self::Buffer,
    );

    /// Adds the gradient of [`Device::rms_norm`] to `dx_tc`, and the weight's to
    /// `grad` at `at`.
    #[expect(clippy::too_many_arguments, reason = "a backward names all it reads")]
    fn rms_norm_backward(
        &self,
        x_tc: &Self::Buffer,
        weight_c: &Weight<Self::Bytes<'_>>,
        norm: RmsNorm,
        rstd_t: &Self::Buffer,
        dy_tc: &Self::Buffer,
        dx_tc: &mut Self::Buffer,
        grad: &mut Self::Buffer,
        at: usize,
    ) -> Result<(), ArenaFull>;

    /// `y = (x - mean) * rstd * weight + bias` with the mean and
    /// `rstd = 1 / sqrt(variance + eps)` of each token, both kept in `stats_t2`
    /// for backward.
    fn layer_norm(
        &self,
        x_tc: &Self::Buffer,
        weight_c: &Weight<Self::Bytes<'_>>,
        bias_c: &Weight<Self::Bytes<'_>>,
        eps: f32,
        y_tc: &mut Self::Buffer,
        stats_t2: &mut Self::Buffer,
    );

    /// Adds the gradient of [`Device::layer_norm`] to `dx_tc`, and those of
    /// weight and bias to `grad` at the two places of `at`.
    #[expect(clippy::too_many_arguments, reason = "a backward names all it reads")]
    fn layer_norm_backward(
        &self,
        x_tc: &Self::Buffer,
        weight_c: &Weight<Self::Bytes<'_>>,
        stats_t2: &Self::Buffer,
        dy_tc: &Self::Buffer,
        dx_tc: &mut Self::Buffer,
        grad: &mut Self::Buffer,
        at: [usize; 2],
    ) -> Result<(), ArenaFull>;

    /// `y_to = x_ti weight_oi^T + bias_o`, or adds that to `y_to`.
    fn linear(
        &self,
        x_ti: &Self::Buffer,
        weight_oi: &Weight<Self::Bytes<'_>>,
        bias_o: Option<&Weight<Self::Bytes<'_>>>,
        y_to: &mut Self::Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull>;

    /// `dx_ti = dy_to weight_oi`, or adds that to `dx_ti`.
    fn linear_dgrad(
        &self,
        dy_to: &Self::Buffer,
        weight_oi: &Weight<Self::Bytes<'_>>,
        dx_ti: &mut Self::Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull>;

    /// Adds `dy_to^T x_ti`, `[o, i]`, to `grad` from element `at` on, or
    /// overwrites it. `o` and `i` are the lengths of the buffers over `num_tokens`.
    fn linear_wgrad(
        &self,
        dy_to: &Self::Buffer,
        x_ti: &Self::Buffer,
        num_tokens: usize,
        grad: &mut Self::Buffer,
        at: usize,
        adds: bool,
    );

    /// Adds the column sums of `dy_to` to `grad` from element `at` on.
    fn bias_grad(
        &self,
        dy_to: &Self::Buffer,
        num_tokens: usize,
        grad: &mut Self::Buffer,
        at: usize,
    );

    /// Rotates `num_heads` heads of each token in place. `inverse` turns back,
    /// which is the backward.
    fn rope(
        &self,
        x_tnh: &mut Self::Buffer,
        num_heads: usize,
        positions: &[u32],
        rope: Rope<'_>,
        inverse: bool,
    );

    /// Takes queries, keys and values out of rows that hold, for each key head,
    /// its `group` query heads, then its key, then its value, of `head_dim`
    /// elements each.
    fn split_heads(
        &self,
        fused: &Self::Buffer,
        group: usize,
        head_dim: usize,
        qkv: [&mut Self::Buffer; 3],
    );

    /// Puts together what [`Device::split_heads`] took apart; of gradients, its
    /// backward.
    fn merge_heads(
        &self,
        qkv: [&Self::Buffer; 3],
        group: usize,
        head_dim: usize,
        fused: &mut Self::Buffer,
    );

    /// Causal attention: query `j` of a sequence sees keys up to
    /// `num_keys - num_queries + j`, as many as the window has. To a score the
    /// bias is added; then it is divided by `sqrt(h)`.
    /// `lse_tn` keeps the log-sum-exp of each query and head for backward.
    /// A buffer of keys may be longer than `batch * num_keys` tokens if `batch` is 1.
    fn attention(
        &self,
        q_tnh: &Self::Buffer,
        k_smh: &Self::Buffer,
        v_smh: &Self::Buffer,
        shape: AttentionShape,
        y_tnh: &mut Self::Buffer,
        lse_tn: &mut Self::Buffer,
    ) -> Result<(), ArenaFull>;

    /// The gradients of [`Device::attention`] (`num_keys` = `num_queries`),
    /// written over `dq`, `dk` and `dv`.
    fn attention_backward(
        &self,
        qkv: [&Self::Buffer; 3],
        y_tnh: &Self::Buffer,
        lse_tn: &Self::Buffer,
        dy_tnh: &Self::Buffer,
        shape: AttentionShape,
        dqkv: [&mut Self::Buffer; 3],
    ) -> Result<(), ArenaFull>;

    /// `y = silu(gate) * up` with `silu(g) = g / (1 + exp(-g))`.
    fn swiglu(&self, gate: &Self::Buffer, up: &Self::Buffer, y: &mut Self::Buffer);

    /// The gradients of [`Device::swiglu`], written over its inputs; `dy` is
    /// overwritten with `y`, which the weight gradient of the next layer needs.
    fn swiglu_backward(
        &self,
        gate: &mut Self::Buffer,
        up: &mut Self::Buffer,
        dy: &mut Self::Buffer,
    );

    /// `y = gelu(x)`.
    fn gelu(&self, x: &Self::Buffer, form: Gelu, y: &mut Self::Buffer);

    /// The gradient of [`Device::gelu`], written over `x`; `dy` is overwritten
    /// with `y`, which the weight gradient of the next layer needs.
    fn gelu_backward(&self, x: &mut Self::Buffer, form: Gelu, dy: &mut Self::Buffer);

    /// `y = gelu(gate) * up`.
    fn geglu(&self, gate: &Self::Buffer, up: &Self::Buffer, form: Gelu, y: &mut Self::Buffer);

    /// The gradients of [`Device::geglu`], written over its inputs; `dy` is
    /// overwritten with `y`.
    fn geglu_backward(
        &self,
        gate: &mut Self::Buffer,
        up: &mut Self::Buffer,
        form: Gelu,
        dy: &mut Self::Buffer,
    );

    /// Takes the logits of vocabulary rows `first_row ..` into the running
    /// statistics. A target of [`crate::IGNORED`] has no target logit.
    /// `first` starts the statistics afresh.
    fn cross_entropy(
        &self,
        logits_tv: &Self::Buffer,
        first_row: usize,
        targets: &[u32],
        running: &mut RunningMax<Self::Buffer>,
        first: bool,
    );

    /// The sum over targets that are not ignored of
    /// `max + ln(sum) - target`, in f64, tokens in order.
    fn cross_entropy_loss(&self, running: &RunningMax<Self::Buffer>, targets: &[u32]) -> f64;

    /// Overwrites the logits with their gradient
    /// `scale * (softmax - one_hot(target))`; 0 for ignored targets.
    fn cross_entropy_backward(
        &self,
        logits_tv: &mut Self::Buffer,
        first_row: usize,
        targets: &[u32],
        running: &RunningMax<Self::Buffer>,
        scale: f32,
    );

    /// Rounds rows of `cols` numbers to a format, each 1 x 128 block under a factor of
    /// its own ([`fp8::operand_factors`]): what [`crate::WeightFormat::E4m3`] is multiplied by.
    fn quantize(&self, x: &mut Self::Buffer, cols: usize, format: Format) -> RowCounts;

    /// One optimizer update of a run of elements, with the gradient at
    /// `grad[at ..]`.
    fn adamw(
        &self,
        master: Master<Self::BytesMut<'_>>,
        moments: Moments<Self::BytesMut<'_>>,
        grad: &Self::Buffer,
        at: usize,
        update: &Update,
    );
}

/// The target of a token that no loss is taken on.
pub const IGNORED: u32 = u32::MAX;
