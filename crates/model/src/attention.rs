//! The attention of a block: projections, positions, softmax.
//!
//! A checkpoint holds queries, keys and values in a matrix each, or in one whose
//! rows are dealt by key head: its query heads, then its key, then its value. With
//! one key head that is all queries, a key and a value; with as many as query heads,
//! query, key and value of each head in turn. The fused matrix is used as it lies;
//! its output is taken apart.

use kernels::{ArenaFull, AttentionShape, Device, Purpose};

use crate::linear::{Input, Linear, Placed};
use crate::norm::Normed;
use crate::{Cache, MicroBatch, Transformer};

/// The unsharded weights of an attention.
#[derive(Debug)]
pub(crate) struct Attention<B> {
    pub(crate) projections: Projections<B>,
    pub(crate) output: Linear<B>,
    /// How many tokens a token sees, if there is a limit.
    pub(crate) window: Option<usize>,
}

/// What makes queries, keys and values.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one exists, for as long as its block is unsharded"
)]
pub(crate) enum Projections<B> {
    /// Three matrices.
    Separate([Linear<B>; 3]),
    /// One.
    Fused(Linear<B>),
}

/// What the backward needs of the forward.
pub(crate) struct Kept<D: Device> {
    pub(crate) h_tc: Input<D>,
    stats: D::Buffer,
    q_tnh: D::Buffer,
    k_tmh: D::Buffer,
    v_tmh: D::Buffer,
    pub(crate) a_tnh: D::Buffer,
    lse_tn: D::Buffer,
}

impl<B: Copy> Attention<B> {
    /// Everything up to the projection after attention, which is the caller's.
    ///
    /// With a `cache` the keys and values of earlier tokens are read from it and
    /// those of these tokens added to it. `others` are the layers that read the same
    /// norm's output.
    pub(crate) fn forward<'a, 'l, D: Device<Bytes<'a> = B>>(
        &'l self,
        device: &D,
        model: &Transformer,
        batch: &MicroBatch,
        (normed, others): (Normed<D>, impl Iterator<Item = &'l Linear<B>>),
        cache: Option<&mut Cache<D>>,
    ) -> Result<Kept<D>, ArenaFull>
    where
        B: 'l,
    {
        let t = batch.num_tokens();
        let alloc = |len| device.alloc(len, Purpose::Activation);
        let Normed { h_tc, stats } = normed;
        let readers = self.projections.linears().iter().chain(others);
        let h_tc = Input::new(device, h_tc, readers)?;
        let [mut q_tnh, mut k_tmh, v_tmh] = self.projections.forward(device, model, &h_tc, t)?;
        turn(device, model, batch, [&mut q_tnh, &mut k_tmh], false);
        let mut a_tnh = alloc(t * model.query_width())?;
        let mut lse_tn = alloc(t * model.spec.heads)?;
        let (keys, values, num_keys) = match cache {
            Some(cache) => cache.append(device, &k_tmh, &v_tmh),
            None => (&k_tmh, &v_tmh, batch.seq),
        };
        let shape = self.shape(model, batch, num_keys);
        device.attention(&q_tnh, keys, values, shape, &mut a_tnh, &mut lse_tn)?;
        Ok(Kept {
            h_tc,
            stats,
            q_tnh,
            k_tmh,
            v_tmh,
            a_tnh,
            lse_tn,
        })
    }

    /// The gradient of the norm's output, in its place, and those of all weights;
    /// with it the norm's statistics.
    pub(crate) fn backward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        batch: &MicroBatch,
        kept: Kept<D>,
        dy_tc: &D::Buffer,
        (grad, adds): (&mut D::Buffer, bool),
    ) -> Result<Normed<D>, ArenaFull> {
        let alloc = |like: &D::Buffer| device.alloc(device.len(like), Purpose::Activation);
        self.output
            .wgrad_of(device, dy_tc, &kept.a_tnh, grad, adds)?;
        let mut da_tnh = alloc(&kept.a_tnh)?;
        self.output.dgrad_of(device, dy_tc, &mut da_tnh, false)?;
        let mut dq_tnh = alloc(&kept.q_tnh)?;
        let mut dk_tmh = alloc(&kept.k_tmh)?;
        let mut dv_tmh = alloc(&kept.v_tmh)?;
        device.attention_backward(
            [&kept.q_tnh, &kept.k_tmh, &kept.v_tmh],
            &kept.a_tnh,
            &kept.lse_tn,
            &da_tnh,
            self.shape(model, batch, batch.seq),
            [&mut dq_tnh, &mut dk_tmh, &mut dv_tmh],
        )?;
        drop(da_tnh);
        let Kept { h_tc, stats, .. } = kept;
        turn(device, model, batch, [&mut dq_tnh, &mut dk_tmh], true);
        let gradients = [dq_tnh, dk_tmh, dv_tmh];
        let h_tc = self
            .projections
            .backward(device, model, gradients, h_tc, (grad, adds))?;
        Ok(Normed { h_tc, stats })
    }

    fn shape(&self, model: &Transformer, batch: &MicroBatch, num_keys: usize) -> AttentionShape {
        AttentionShape {
            window: self.window,
            ..model.attention(batch.num_rows, batch.seq, num_keys)
        }
    }

    /// The layers.
    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear<B>> {
        self.projections.linears().iter().chain([&self.output])
    }

    /// Biases: what a backward adds to and never overwrites.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = &Placed<B>> {
        self.linears().filter_map(|linear| linear.bias.as_ref())
    }
}

/// Turns queries and keys by their positions, if positions are angles.
fn turn<D: Device>(
    device: &D,
    model: &Transformer,
    batch: &MicroBatch,
    [q_tnh, k_tmh]: [&mut D::Buffer; 2],
    inverse: bool,
) {
    let Some(rope) = model.rope() else {
        return;
    };
    let positions = &batch.positions;
    device.rope(q_tnh, model.spec.heads, positions, rope, inverse);
    device.rope(k_tmh, model.spec.kv_heads, positions, rope, inverse);
}

impl<B: Copy> Projections<B> {
    /// The layers.
    fn linears(&self) -> &[Linear<B>] {
        match self {
            Self::Separate(linears) => linears,
            Self::Fused(linear) => std::slice::from_ref(linear),
        }
    }

    /// Queries, keys and values of `t` tokens.
    fn forward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        h_tc: &Input<D>,
        t: usize,
    ) -> Result<[D::Buffer; 3], ArenaFull> {
        let alloc = |width| device.alloc(t * width, Purpose::Activation);
        let (query, key) = (model.query_width(), model.kv_width());
        match self {
            Self::Separate([query_, key_, value_]) => {
                let [mut q, mut k, mut v] = [alloc(query)?, alloc(key)?, alloc(key)?];
                query_.forward(device, h_tc.of(query_), &mut q, false)?;
                key_.forward(device, h_tc.of(key_), &mut k, false)?;
                value_.forward(device, h_tc.of(value_), &mut v, false)?;
                Ok([q, k, v])
            }
            Self::Fused(linear) => {
                let mut fused = alloc(query + 2 * key)?;
                linear.forward(device, h_tc.of(linear), &mut fused, false)?;
                let [mut q, mut k, mut v] = [alloc(query)?, alloc(key)?, alloc(key)?];
                let (group, head_dim) = model.group();
                device.split_heads(&fused, group, head_dim, [&mut q, &mut k, &mut v]);
                Ok([q, k, v])
            }
        }
    }

    /// The gradient of the input, in its place.
    fn backward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        gradients: [D::Buffer; 3],
        h_tc: Input<D>,
        (grad, adds): (&mut D::Buffer, bool),
    ) -> Result<D::Buffer, ArenaFull> {
        let mut dh_tc;
        match self {
            Self::Separate(linears) => {
                for (linear, dy) in linears.iter().zip(&gradients) {
                    linear.wgrad(device, dy, h_tc.of(linear), grad, adds);
                }
                dh_tc = h_tc.into_buffer();
                let pairs = linears.iter().zip(gradients).enumerate();
                for (index, (linear, dy)) in pairs {
                    linear.dgrad(device, dy, &mut dh_tc, index > 0)?;
                }
            }
            Self::Fused(linear) => {
                let len = gradients.iter().map(|dy| device.len(dy)).sum();
                let mut fused = device.alloc(len, Purpose::Activation)?;
                let (group, head_dim) = model.group();
                device.merge_heads(gradients.each_ref(), group, head_dim, &mut fused);
                drop(gradients);
                linear.wgrad(device, &fused, h_tc.of(linear), grad, adds);
                dh_tc = h_tc.into_buffer();
                linear.dgrad(device, fused, &mut dh_tc, false)?;
            }
        }
        Ok(dh_tc)
    }
}
