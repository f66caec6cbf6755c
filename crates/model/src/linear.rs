//! A linear layer of a block: its weight, its bias, and where their gradients go.

use kernels::{ArenaFull, Device, Weight};

/// A weight with the place of its gradient in the bucket.
#[derive(Debug)]
pub(crate) struct Placed<B> {
    pub(crate) weight: Weight<B>,
    pub(crate) at: usize,
}

/// `y = x W^T + b`.
#[derive(Debug)]
pub(crate) struct Linear<B> {
    pub(crate) weight: Placed<B>,
    pub(crate) bias: Option<Placed<B>>,
}

impl<B> Linear<B> {
    /// Writes or adds `x W^T + b` to `y`.
    pub(crate) fn forward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        x_ti: &D::Buffer,
        y_to: &mut D::Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        let bias = self.bias.as_ref().map(|bias| &bias.weight);
        device.linear(x_ti, &self.weight.weight, bias, y_to, adds)
    }

    /// Writes or adds the gradient of the input to `dx`.
    pub(crate) fn dgrad<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        dy_to: &D::Buffer,
        dx_ti: &mut D::Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        device.linear_dgrad(dy_to, &self.weight.weight, dx_ti, adds)
    }

    /// Writes or adds the gradients of weight and bias to the bucket's gradient.
    pub(crate) fn wgrad<D: Device>(
        &self,
        device: &D,
        dy_to: &D::Buffer,
        x_ti: &D::Buffer,
        grad: &mut D::Buffer,
        adds: bool,
    ) {
        let num_tokens = device.len(x_ti) / self.weight.weight.cols;
        device.linear_wgrad(dy_to, x_ti, num_tokens, grad, self.weight.at, adds);
        if let Some(bias) = &self.bias {
            device.bias_grad(dy_to, num_tokens, grad, bias.at);
        }
    }
}
