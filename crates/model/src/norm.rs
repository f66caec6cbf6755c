//! A norm of either kind, and where its gradients go.

use kernels::{ArenaFull, Device, Purpose, RmsNorm};

use crate::Transformer;
use crate::linear::Placed;

/// A root-mean-square norm, or a layer norm where there is a bias.
#[derive(Debug)]
pub(crate) struct Norm<B> {
    pub(crate) weight: Placed<B>,
    pub(crate) bias: Option<Placed<B>>,
}

/// A norm's output, and the statistics of each token that the backward needs.
pub(crate) struct Normed<D: Device> {
    pub(crate) h_tc: D::Buffer,
    pub(crate) stats: D::Buffer,
}

impl<B: Copy> Norm<B> {
    /// The norm of `x_tc` in a buffer of its own.
    pub(crate) fn forward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        x_tc: &D::Buffer,
    ) -> Result<Normed<D>, ArenaFull> {
        let (len, settings) = (device.len(x_tc), settings(model));
        let num_tokens = len / model.spec.hidden;
        let stats_a_token = if self.bias.is_some() { 2 } else { 1 };
        let mut h_tc = device.alloc(len, Purpose::Activation)?;
        let mut stats = device.alloc(num_tokens * stats_a_token, Purpose::Activation)?;
        let weight = &self.weight.weight;
        match &self.bias {
            None => device.rms_norm(x_tc, weight, settings, &mut h_tc, &mut stats),
            Some(bias) => {
                let (bias, eps) = (&bias.weight, settings.eps);
                device.layer_norm(x_tc, weight, bias, eps, &mut h_tc, &mut stats);
            }
        }
        Ok(Normed { h_tc, stats })
    }

    /// Adds the gradient of the input to `dx_tc` and those of weight and bias to the
    /// bucket's gradient.
    #[expect(clippy::too_many_arguments, reason = "a backward names all it reads")]
    pub(crate) fn backward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        x_tc: &D::Buffer,
        stats: &D::Buffer,
        dh_tc: &D::Buffer,
        dx_tc: &mut D::Buffer,
        grad: &mut D::Buffer,
    ) -> Result<(), ArenaFull> {
        let weight = &self.weight.weight;
        let at = self.weight.at.expect(VECTOR);
        match &self.bias {
            None => {
                let settings = settings(model);
                device.rms_norm_backward(x_tc, weight, settings, stats, dh_tc, dx_tc, grad, at)
            }
            Some(bias) => {
                let at = [at, bias.at.expect(VECTOR)];
                device.layer_norm_backward(x_tc, weight, stats, dh_tc, dx_tc, grad, at)
            }
        }
    }

    /// Weight and bias: what a backward adds to and never overwrites.
    pub(crate) fn vectors(&self) -> impl Iterator<Item = &Placed<B>> {
        std::iter::once(&self.weight).chain(&self.bias)
    }
}

fn settings(model: &Transformer) -> RmsNorm {
    RmsNorm {
        eps: model.spec.norm_eps,
        offset: model.spec.norm_offset(),
    }
}

const VECTOR: &str = "a vector has a place in the gradient";
