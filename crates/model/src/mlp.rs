//! The MLP of a block, with a gate or without.
//!
//! ```text
//! gated    Down (act(Gate h) * Up h)
//! plain    Down act(Up h)
//! ```

use kernels::{ArenaFull, Device, Gelu, Purpose};
use spec::Activation;

use crate::Transformer;
use crate::linear::{Input, Linear, Placed};

/// The unsharded weights of an MLP.
#[derive(Debug)]
pub(crate) struct Mlp<B> {
    pub(crate) gate: Option<Linear<B>>,
    pub(crate) up: Linear<B>,
    pub(crate) down: Linear<B>,
}

/// What the backward needs of the forward.
pub(crate) struct Kept<D: Device> {
    h_tc: Input<D>,
    inner: Inner<D>,
}

/// The outputs of the first projections, later their gradients.
struct Inner<D: Device> {
    gate_tf: Option<D::Buffer>,
    up_tf: D::Buffer,
}

impl<B: Copy> Mlp<B> {
    /// Adds the output to `y_tc`.
    pub(crate) fn forward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        h_tc: D::Buffer,
        y_tc: &mut D::Buffer,
    ) -> Result<(), ArenaFull> {
        let Kept { h_tc, inner } = self.keep(device, model, h_tc)?;
        drop(h_tc);
        let s_tf = inner.activated(device, model)?;
        drop(inner);
        let s_tf = Input::new(device, s_tf, [&self.down])?;
        self.down.forward(device, s_tf.of(&self.down), y_tc, true)
    }

    /// Everything up to the last projection.
    pub(crate) fn keep<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        h_tc: D::Buffer,
    ) -> Result<Kept<D>, ArenaFull> {
        let h_tc = Input::new(device, h_tc, self.first())?;
        let inner = self.inner(device, model, &h_tc)?;
        Ok(Kept { h_tc, inner })
    }

    /// Adds the output of what was kept to `y_tc`.
    pub(crate) fn forward_kept<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        kept: &Kept<D>,
        y_tc: &mut D::Buffer,
    ) -> Result<(), ArenaFull> {
        let s_tf = kept.inner.activated(device, model)?;
        self.down.forward_of(device, &s_tf, y_tc, true)
    }

    /// The gradient of the input, in the input's place, and those of all weights.
    pub(crate) fn backward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        Kept { h_tc, mut inner }: Kept<D>,
        dy_tc: &D::Buffer,
        (grad, adds): (&mut D::Buffer, bool),
    ) -> Result<D::Buffer, ArenaFull> {
        let mut ds_tf = device.alloc(device.len(&inner.up_tf), Purpose::Activation)?;
        self.down.dgrad_of(device, dy_tc, &mut ds_tf, false)?;
        inner.activate_backward(device, model.spec.activation, &mut ds_tf);
        // `ds` now holds the input of `down`.
        let s_tf = Input::new(device, ds_tf, [&self.down])?;
        self.down
            .wgrad(device, dy_tc, s_tf.of(&self.down), grad, adds);
        drop(s_tf);
        let Inner { gate_tf, up_tf } = inner;
        let gate = self.gate.as_ref().zip(gate_tf);
        if let Some((gate, dgate_tf)) = &gate {
            gate.wgrad(device, dgate_tf, h_tc.of(gate), grad, adds);
        }
        self.up.wgrad(device, &up_tf, h_tc.of(&self.up), grad, adds);
        let mut dh_tc = h_tc.into_buffer();
        let has_gate = gate.is_some();
        if let Some((gate, dgate_tf)) = gate {
            gate.dgrad(device, dgate_tf, &mut dh_tc, false)?;
        }
        self.up.dgrad(device, up_tf, &mut dh_tc, has_gate)?;
        Ok(dh_tc)
    }

    /// The layers that read the MLP's input.
    pub(crate) fn first(&self) -> impl Iterator<Item = &Linear<B>> {
        self.gate.iter().chain([&self.up])
    }

    fn inner<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        h_tc: &Input<D>,
    ) -> Result<Inner<D>, ArenaFull> {
        let num_tokens = device.len(h_tc.of(&self.up)) / model.spec.hidden;
        let len = num_tokens * model.spec.intermediate;
        let mut gate_tf = match &self.gate {
            Some(_) => Some(device.alloc(len, Purpose::Activation)?),
            None => None,
        };
        let mut up_tf = device.alloc(len, Purpose::Activation)?;
        if let Some((gate, gate_tf)) = self.gate.as_ref().zip(gate_tf.as_mut()) {
            gate.forward(device, h_tc.of(gate), gate_tf, false)?;
        }
        self.up
            .forward(device, h_tc.of(&self.up), &mut up_tf, false)?;
        Ok(Inner { gate_tf, up_tf })
    }

    /// The layers.
    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear<B>> {
        self.first().chain([&self.down])
    }

    /// Biases: what a backward adds to and never overwrites.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = &Placed<B>> {
        self.linears().filter_map(|linear| linear.bias.as_ref())
    }
}

/// What a gate or an MLP without one does between the projections.
#[derive(Debug, Clone, Copy)]
enum Function {
    Silu,
    Gelu(Gelu),
}

impl From<Activation> for Function {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Silu => Self::Silu,
            Activation::GeluErf => Self::Gelu(Gelu::Erf),
            Activation::GeluTanh => Self::Gelu(Gelu::Tanh),
        }
    }
}

impl<D: Device> Inner<D> {
    /// The input of the last projection.
    fn activated(&self, device: &D, model: &Transformer) -> Result<D::Buffer, ArenaFull> {
        let mut s_tf = device.alloc(device.len(&self.up_tf), Purpose::Activation)?;
        self.activate(device, model.spec.activation, &mut s_tf);
        Ok(s_tf)
    }

    fn activate(&self, device: &D, activation: Activation, s_tf: &mut D::Buffer) {
        let up_tf = &self.up_tf;
        match (&self.gate_tf, activation.into()) {
            (Some(gate_tf), Function::Silu) => device.swiglu(gate_tf, up_tf, s_tf),
            (Some(gate_tf), Function::Gelu(form)) => device.geglu(gate_tf, up_tf, form, s_tf),
            (None, Function::Gelu(form)) => device.gelu(up_tf, form, s_tf),
            (None, Function::Silu) => unreachable!("no family has SiLU without a gate"),
        }
    }

    /// Overwrites the inner buffers with their gradients, and `ds_tf` with the
    /// input of the last projection.
    fn activate_backward(&mut self, device: &D, activation: Activation, ds_tf: &mut D::Buffer) {
        let up_tf = &mut self.up_tf;
        match (&mut self.gate_tf, activation.into()) {
            (Some(gate_tf), Function::Silu) => device.swiglu_backward(gate_tf, up_tf, ds_tf),
            (Some(gate_tf), Function::Gelu(form)) => {
                device.geglu_backward(gate_tf, up_tf, form, ds_tf);
            }
            (None, Function::Gelu(form)) => device.gelu_backward(up_tf, form, ds_tf),
            (None, Function::Silu) => unreachable!("no family has SiLU without a gate"),
        }
    }
}
