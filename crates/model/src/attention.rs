//! The attention of a block: projections, positions, softmax.
//!
//! A checkpoint holds queries, keys and values in a matrix each, or in one whose
//! rows are dealt by key head: its query heads, then its key, then its value. With
//! one key head that is all queries, a key and a value; with as many as query heads,
//! query, key and value of each head in turn. The fused matrix is used as it lies;
//! its output is taken apart.

use kernels::{ArenaFull, AttentionShape, Device, Purpose};

use crate::linear::{Linear, Placed};
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
    pub(crate) normed: Normed<D>,
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
    /// those of these tokens added to it.
    pub(crate) fn forward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        batch: &MicroBatch,
        normed: Normed<D>,
        cache: Option<&mut Cache<D>>,
    ) -> Result<Kept<D>, ArenaFull> {
        let t = batch.num_tokens();
        let alloc = |len| device.alloc(len, Purpose::Activation);
        let [mut q_tnh, mut k_tmh, v_tmh] =
            self.projections.forward(device, model, &normed.h_tc, t)?;
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
            normed,
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
        self.output.wgrad(device, dy_tc, &kept.a_tnh, grad, adds);
        let mut da_tnh = alloc(&kept.a_tnh)?;
        self.output.dgrad(device, dy_tc, &mut da_tnh, false)?;
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
        let Kept { mut normed, .. } = kept;
        turn(device, model, batch, [&mut dq_tnh, &mut dk_tmh], true);
        let gradients = [dq_tnh, dk_tmh, dv_tmh];
        self.projections
            .backward(device, model, gradients, &mut normed.h_tc, (grad, adds))?;
        Ok(normed)
    }

    fn shape(&self, model: &Transformer, batch: &MicroBatch, num_keys: usize) -> AttentionShape {
        AttentionShape {
            window: self.window,
            ..model.attention(batch.num_rows, batch.seq, num_keys)
        }
    }

    /// Biases: what a backward adds to and never overwrites.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = &Placed<B>> {
        let projections = match &self.projections {
            Projections::Separate(linears) => &linears[..],
            Projections::Fused(linear) => std::slice::from_ref(linear),
        };
        let linears = projections.iter().chain([&self.output]);
        linears.filter_map(|linear| linear.bias.as_ref())
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
    /// Queries, keys and values of `t` tokens.
    fn forward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        h_tc: &D::Buffer,
        t: usize,
    ) -> Result<[D::Buffer; 3], ArenaFull> {
        let alloc = |width| device.alloc(t * width, Purpose::Activation);
        let (query, key) = (model.query_width(), model.kv_width());
        match self {
            Self::Separate([query_, key_, value_]) => {
                let [mut q, mut k, mut v] = [alloc(query)?, alloc(key)?, alloc(key)?];
                query_.forward(device, h_tc, &mut q, false)?;
                key_.forward(device, h_tc, &mut k, false)?;
                value_.forward(device, h_tc, &mut v, false)?;
                Ok([q, k, v])
            }
            Self::Fused(linear) => {
                let mut fused = alloc(query + 2 * key)?;
                linear.forward(device, h_tc, &mut fused, false)?;
                let [mut q, mut k, mut v] = [alloc(query)?, alloc(key)?, alloc(key)?];
                let (group, head_dim) = model.group();
                device.split_heads(&fused, group, head_dim, [&mut q, &mut k, &mut v]);
                Ok([q, k, v])
            }
        }
    }

    /// Overwrites the input with its gradient.
    fn backward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        gradients: [D::Buffer; 3],
        h_tc: &mut D::Buffer,
        (grad, adds): (&mut D::Buffer, bool),
    ) -> Result<(), ArenaFull> {
        match self {
            Self::Separate(linears) => {
                for (linear, dy) in linears.iter().zip(&gradients) {
                    linear.wgrad(device, dy, h_tc, grad, adds);
                }
                let pairs = linears.iter().zip(&gradients).enumerate();
                for (index, (linear, dy)) in pairs {
                    linear.dgrad(device, dy, h_tc, index > 0)?;
                }
            }
            Self::Fused(linear) => {
                let len = gradients.iter().map(|dy| device.len(dy)).sum();
                let mut fused = device.alloc(len, Purpose::Activation)?;
                let (group, head_dim) = model.group();
                device.merge_heads(gradients.each_ref(), group, head_dim, &mut fused);
                drop(gradients);
                linear.wgrad(device, &fused, h_tc, grad, adds);
                linear.dgrad(device, &fused, h_tc, false)?;
            }
        }
        Ok(())
    }
}
