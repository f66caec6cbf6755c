//! A Llama block, forward and backward.
//!
//! ```text
//! r = x + O attention(rope(Q norm(x)), rope(K norm(x)), V norm(x))
//! y = r + Down (silu(Gate norm(r)) * Up norm(r))
//! ```
//!
//! Only `x` outlives the forward. The backward recomputes the rest, all but the
//! last product, and drops each buffer after its last use.

use kernels::{ArenaFull, Device, Purpose, Weight};
use shard::Bucket;
use spec::{Role, Unit};

use crate::linear::{Linear, Placed};
use crate::{Cache, Gathered, MicroBatch, Transformer};

/// The unsharded weights of one block.
#[derive(Debug)]
pub(crate) struct Block<B> {
    input_norm: Placed<B>,
    query: Linear<B>,
    key: Linear<B>,
    value: Linear<B>,
    output: Linear<B>,
    post_norm: Placed<B>,
    gate: Linear<B>,
    up: Linear<B>,
    down: Linear<B>,
}

/// What the backward needs of the forward.
struct Kept<D: Device> {
    h_tc: D::Buffer,
    rstd_t: D::Buffer,
    q_tnh: D::Buffer,
    k_tmh: D::Buffer,
    v_tmh: D::Buffer,
    a_tnh: D::Buffer,
    lse_tn: D::Buffer,
}

impl<B: Copy> Block<B> {
    /// Names the slices of a gathered block.
    pub(crate) fn new<'a, D>(unit: &Unit, bucket: &Bucket, gathered: &'a impl Gathered<D>) -> Self
    where
        D: Device<Bytes<'a> = B> + 'a,
    {
        let find = |role: Role| -> Option<Placed<B>> {
            let slice = unit.params.iter().position(|param| param.role == role)?;
            Some(Placed {
                weight: gathered.weight(slice),
                at: bucket.slices[slice].at,
            })
        };
        let need = |role| find(role).expect("the spec lists every weight of a block");
        let linear = |weight, bias| Linear {
            weight: need(weight),
            bias: find(bias),
        };
        Self {
            input_norm: need(Role::InputNorm),
            query: linear(Role::Query, Role::QueryBias),
            key: linear(Role::Key, Role::KeyBias),
            value: linear(Role::Value, Role::ValueBias),
            output: linear(Role::Output, Role::OutputBias),
            post_norm: need(Role::PostNorm),
            gate: linear(Role::Gate, Role::GateBias),
            up: linear(Role::Up, Role::UpBias),
            down: linear(Role::Down, Role::DownBias),
        }
    }

    /// The output of the block, in a buffer of its own.
    ///
    /// With a `cache` the keys and values of earlier tokens are read from it and
    /// those of these tokens added to it.
    pub(crate) fn forward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        batch: &MicroBatch,
        x_tc: &D::Buffer,
        cache: Option<&mut Cache<D>>,
    ) -> Result<D::Buffer, ArenaFull> {
        let mut y_tc = device.alloc(device.len(x_tc), Purpose::UnitInput)?;
        device.copy(x_tc, 0..device.len(x_tc), &mut y_tc, 0);
        {
            let kept = self.attend(device, model, batch, x_tc, cache)?;
            self.output.forward(device, &kept.a_tnh, &mut y_tc, true)?;
        }
        let (mut gate_tf, up_tf) = {
            let (h_tc, _) = normalize(device, model, &self.post_norm.weight, &y_tc)?;
            self.gate_and_up(device, model, &h_tc)?
        };
        let mut s_tf = device.alloc(device.len(&gate_tf), Purpose::Activation)?;
        device.swiglu(&gate_tf, &up_tf, &mut s_tf);
        // The input of `down` is the product; its gate is read no more.
        std::mem::swap(&mut gate_tf, &mut s_tf);
        drop((s_tf, up_tf));
        self.down.forward(device, &gate_tf, &mut y_tc, true)?;
        Ok(y_tc)
    }

    /// Turns `dy_tc` into the gradient of `x_tc` and writes (`adds`: adds) the
    /// gradients of all weights to the bucket's gradient.
    #[expect(clippy::too_many_arguments, reason = "a backward names all it reads")]
    pub(crate) fn backward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        batch: &MicroBatch,
        x_tc: &D::Buffer,
        dy_tc: &mut D::Buffer,
        grad: &mut D::Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        if !adds {
            self.clear_vectors(device, grad);
        }
        let kept = self.attend(device, model, batch, x_tc, None)?;
        let mut r_tc = device.alloc(device.len(x_tc), Purpose::Activation)?;
        device.copy(x_tc, 0..device.len(x_tc), &mut r_tc, 0);
        self.output.forward(device, &kept.a_tnh, &mut r_tc, true)?;
        self.mlp_backward(device, model, &r_tc, dy_tc, grad, adds)?;
        drop(r_tc);
        self.attention_backward(device, model, batch, kept, x_tc, dy_tc, grad, adds)
    }

    /// Norm, projections, rotation and attention.
    fn attend<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        batch: &MicroBatch,
        x_tc: &D::Buffer,
        cache: Option<&mut Cache<D>>,
    ) -> Result<Kept<D>, ArenaFull> {
        let t = batch.num_tokens();
        let spec = &model.spec;
        let alloc = |len| device.alloc(len, Purpose::Activation);
        let (h_tc, rstd_t) = normalize(device, model, &self.input_norm.weight, x_tc)?;
        let mut q_tnh = alloc(t * model.query_width())?;
        let mut k_tmh = alloc(t * model.kv_width())?;
        let mut v_tmh = alloc(t * model.kv_width())?;
        self.query.forward(device, &h_tc, &mut q_tnh, false)?;
        self.key.forward(device, &h_tc, &mut k_tmh, false)?;
        self.value.forward(device, &h_tc, &mut v_tmh, false)?;
        let positions = &batch.positions;
        device.rope(&mut q_tnh, spec.heads, positions, model.rope(), false);
        device.rope(&mut k_tmh, spec.kv_heads, positions, model.rope(), false);

        let mut a_tnh = alloc(t * model.query_width())?;
        let mut lse_tn = alloc(t * spec.heads)?;
        let (keys, values, num_keys) = match cache {
            Some(cache) => cache.append(device, &k_tmh, &v_tmh),
            None => (&k_tmh, &v_tmh, batch.seq),
        };
        let shape = model.attention(batch.num_rows, batch.seq, num_keys);
        device.attention(&q_tnh, keys, values, shape, &mut a_tnh, &mut lse_tn)?;
        Ok(Kept {
            h_tc,
            rstd_t,
            q_tnh,
            k_tmh,
            v_tmh,
            a_tnh,
            lse_tn,
        })
    }

    fn gate_and_up<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        h_tc: &D::Buffer,
    ) -> Result<(D::Buffer, D::Buffer), ArenaFull> {
        let t = device.len(h_tc) / model.spec.hidden;
        let mut gate_tf = device.alloc(t * model.spec.intermediate, Purpose::Activation)?;
        let mut up_tf = device.alloc(t * model.spec.intermediate, Purpose::Activation)?;
        self.gate.forward(device, h_tc, &mut gate_tf, false)?;
        self.up.forward(device, h_tc, &mut up_tf, false)?;
        Ok((gate_tf, up_tf))
    }

    /// From the gradient of `y` to that of `r`, in place.
    fn mlp_backward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        r_tc: &D::Buffer,
        dy_tc: &mut D::Buffer,
        grad: &mut D::Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        let (h_tc, rstd_t) = normalize(device, model, &self.post_norm.weight, r_tc)?;
        let (mut dgate_tf, mut dup_tf) = self.gate_and_up(device, model, &h_tc)?;
        let mut ds_tf = device.alloc(device.len(&dgate_tf), Purpose::Activation)?;
        self.down.dgrad(device, dy_tc, &mut ds_tf, false)?;
        device.swiglu_backward(&mut dgate_tf, &mut dup_tf, &mut ds_tf);
        // `ds` now holds the input of `down`.
        self.down.wgrad(device, dy_tc, &ds_tf, grad, adds);
        drop(ds_tf);
        self.gate.wgrad(device, &dgate_tf, &h_tc, grad, adds);
        self.up.wgrad(device, &dup_tf, &h_tc, grad, adds);
        let mut dh_tc = h_tc;
        self.gate.dgrad(device, &dgate_tf, &mut dh_tc, false)?;
        self.up.dgrad(device, &dup_tf, &mut dh_tc, true)?;
        let norm = &self.post_norm;
        device.rms_norm_backward(r_tc, &norm.weight, &rstd_t, &dh_tc, dy_tc, grad, norm.at)
    }

    /// From the gradient of `r` to that of `x`, in place.
    #[expect(clippy::too_many_arguments, reason = "a backward names all it reads")]
    fn attention_backward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        batch: &MicroBatch,
        kept: Kept<D>,
        x_tc: &D::Buffer,
        dr_tc: &mut D::Buffer,
        grad: &mut D::Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        let alloc = |like: &D::Buffer| device.alloc(device.len(like), Purpose::Activation);
        let shape = model.attention(batch.num_rows, batch.seq, batch.seq);
        self.output.wgrad(device, dr_tc, &kept.a_tnh, grad, adds);
        let mut da_tnh = alloc(&kept.a_tnh)?;
        self.output.dgrad(device, dr_tc, &mut da_tnh, false)?;
        let mut dq_tnh = alloc(&kept.q_tnh)?;
        let mut dk_tmh = alloc(&kept.k_tmh)?;
        let mut dv_tmh = alloc(&kept.v_tmh)?;
        device.attention_backward(
            [&kept.q_tnh, &kept.k_tmh, &kept.v_tmh],
            &kept.a_tnh,
            &kept.lse_tn,
            &da_tnh,
            shape,
            [&mut dq_tnh, &mut dk_tmh, &mut dv_tmh],
        )?;
        drop(da_tnh);
        let Kept { h_tc, rstd_t, .. } = kept;
        let (spec, positions) = (&model.spec, &batch.positions);
        device.rope(&mut dq_tnh, spec.heads, positions, model.rope(), true);
        device.rope(&mut dk_tmh, spec.kv_heads, positions, model.rope(), true);

        self.query.wgrad(device, &dq_tnh, &h_tc, grad, adds);
        self.key.wgrad(device, &dk_tmh, &h_tc, grad, adds);
        self.value.wgrad(device, &dv_tmh, &h_tc, grad, adds);
        let mut dh_tc = h_tc;
        self.query.dgrad(device, &dq_tnh, &mut dh_tc, false)?;
        self.key.dgrad(device, &dk_tmh, &mut dh_tc, true)?;
        self.value.dgrad(device, &dv_tmh, &mut dh_tc, true)?;
        let norm = &self.input_norm;
        device.rms_norm_backward(x_tc, &norm.weight, &rstd_t, &dh_tc, dr_tc, grad, norm.at)
    }

    /// Vectors' gradients are always added to; matrices' overwrite.
    fn clear_vectors<D: Device>(&self, device: &D, grad: &mut D::Buffer) {
        let biases = [
            &self.query,
            &self.key,
            &self.value,
            &self.output,
            &self.gate,
            &self.up,
            &self.down,
        ]
        .into_iter()
        .filter_map(|linear| linear.bias.as_ref());
        for vector in biases.chain([&self.input_norm, &self.post_norm]) {
            device.write(&vec![0.0; vector.weight.cols], grad, vector.at);
        }
    }
}

/// `RMSNorm` into a buffer of its own, with the reciprocal roots of the tokens.
pub(crate) fn normalize<D: Device>(
    device: &D,
    model: &Transformer,
    weight_c: &Weight<D::Bytes<'_>>,
    x_tc: &D::Buffer,
) -> Result<(D::Buffer, D::Buffer), ArenaFull> {
    let len = device.len(x_tc);
    let mut h_tc = device.alloc(len, Purpose::Activation)?;
    let mut rstd_t = device.alloc(len / model.spec.hidden, Purpose::Activation)?;
    let eps = model.spec.rms_norm_eps;
    device.rms_norm(x_tc, weight_c, eps, &mut h_tc, &mut rstd_t);
    Ok((h_tc, rstd_t))
}
