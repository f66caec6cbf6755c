//! A linear layer of a block: its weight, its bias, where their gradients go, and
//! what it multiplies.
//!
//! ```text
//! forward   Q(x) W^T + b        dgrad   Q(dy) W        wgrad   dy^T Q(x)
//! ```
//!
//! `Q` rounds to E4M3 (`dy` to E5M2, if asked to) where the weight is in E4M3 codes,
//! unless the unit fell back, and does nothing where it is not.

use fp8::Format;
use kernels::fp8::RowCounts;
use kernels::{ArenaFull, Device, Purpose, Weight};

use crate::operands::Tally;

/// A weight with the place of its gradient in the bucket.
#[derive(Debug)]
pub(crate) struct Placed<B> {
    pub(crate) weight: Weight<B>,
    /// None where no gradient is made.
    pub(crate) at: Option<usize>,
}

/// `y = x W^T + b`.
#[derive(Debug)]
pub(crate) struct Linear<B> {
    pub(crate) weight: Placed<B>,
    pub(crate) bias: Option<Placed<B>>,
    /// What rounding does, where the layer multiplies numbers in E4M3.
    pub(crate) rounding: Option<Tally>,
}

/// The input of some layers: as it is, rounded, or both.
pub(crate) struct Input<D: Device> {
    /// Rounded in place where all layers round.
    x: D::Buffer,
    /// A rounded copy where only some do.
    rounded: Option<D::Buffer>,
}

impl<D: Device> Input<D> {
    /// The input of all `linears`.
    pub(crate) fn new<'l, B: 'l>(
        device: &D,
        mut x: D::Buffer,
        linears: impl IntoIterator<Item = &'l Linear<B>>,
    ) -> Result<Self, ArenaFull> {
        let mut linears = linears.into_iter().peekable();
        let cols = linears.peek().map_or(1, |linear| linear.weight.weight.cols);
        let (rounding, plain): (Vec<_>, Vec<_>) = linears.partition(|linear| linear.rounds());
        let mut rounded = None;
        if !rounding.is_empty() {
            let counts;
            if plain.is_empty() {
                counts = device.quantize(&mut x, cols, Format::E4M3);
            } else {
                let (copy, counted) = rounded_copy(device, &x, cols, Format::E4M3)?;
                (rounded, counts) = (Some(copy), counted);
            }
            for tally in rounding
                .iter()
                .filter_map(|linear| linear.rounding.as_ref())
            {
                tally.add_input(counts);
            }
        }
        Ok(Self { x, rounded })
    }

    /// What a layer multiplies.
    pub(crate) fn of<B>(&self, linear: &Linear<B>) -> &D::Buffer {
        let rounded = self.rounded.as_ref().filter(|_| linear.rounds());
        rounded.unwrap_or(&self.x)
    }

    /// The input where a layer does not round; rounded where all do.
    pub(crate) fn as_plain(&self) -> &D::Buffer {
        &self.x
    }

    /// The buffer, once no layer needs the input.
    pub(crate) fn into_buffer(self) -> D::Buffer {
        self.x
    }
}

fn rounded_copy<D: Device>(
    device: &D,
    x: &D::Buffer,
    cols: usize,
    format: Format,
) -> Result<(D::Buffer, RowCounts), ArenaFull> {
    let len = device.len(x);
    let mut rounded = device.alloc(len, Purpose::Activation)?;
    device.copy(x, 0..len, &mut rounded, 0);
    let counts = device.quantize(&mut rounded, cols, format);
    Ok((rounded, counts))
}

impl<B> Linear<B> {
    /// Whether the layer multiplies numbers in E4M3.
    pub(crate) fn rounds(&self) -> bool {
        self.rounding.is_some()
    }

    /// As [`Linear::forward`], of an input that is needed as it is.
    pub(crate) fn forward_of<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        x_ti: &D::Buffer,
        y_to: &mut D::Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        if self.rounds() {
            let (x_ti, _) = rounded_copy(device, x_ti, self.weight.weight.cols, Format::E4M3)?;
            return self.forward(device, &x_ti, y_to, adds);
        }
        self.forward(device, x_ti, y_to, adds)
    }

    /// As [`Linear::wgrad`], of an input that is needed as it is.
    pub(crate) fn wgrad_of<D: Device>(
        &self,
        device: &D,
        dy_to: &D::Buffer,
        x_ti: &D::Buffer,
        grad: &mut D::Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        if let Some(tally) = &self.rounding {
            let (x_ti, counts) = rounded_copy(device, x_ti, self.weight.weight.cols, Format::E4M3)?;
            tally.add_input(counts);
            self.wgrad(device, dy_to, &x_ti, grad, adds);
        } else {
            self.wgrad(device, dy_to, x_ti, grad, adds);
        }
        Ok(())
    }

    /// Writes or adds `x W^T + b` to `y`, for an `x` from [`Input::of`].
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

    /// Writes or adds the gradient of the input to `dx`, of a `dy` that others need.
    pub(crate) fn dgrad_of<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        dy_to: &D::Buffer,
        dx_ti: &mut D::Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        let weight = &self.weight.weight;
        if let Some(tally) = &self.rounding {
            let (dy_to, counts) = rounded_copy(device, dy_to, weight.rows, tally.gradient_format)?;
            tally.add_gradient(counts);
            return device.linear_dgrad(&dy_to, weight, dx_ti, adds);
        }
        device.linear_dgrad(dy_to, weight, dx_ti, adds)
    }

    /// The same, of a `dy` that nobody needs afterwards.
    pub(crate) fn dgrad<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        mut dy_to: D::Buffer,
        dx_ti: &mut D::Buffer,
        adds: bool,
    ) -> Result<(), ArenaFull> {
        let weight = &self.weight.weight;
        if let Some(tally) = &self.rounding {
            tally.add_gradient(device.quantize(&mut dy_to, weight.rows, tally.gradient_format));
        }
        device.linear_dgrad(&dy_to, weight, dx_ti, adds)
    }

    /// Writes or adds the gradients of weight and bias to the bucket's gradient, for
    /// an `x` from [`Input::of`].
    pub(crate) fn wgrad<D: Device>(
        &self,
        device: &D,
        dy_to: &D::Buffer,
        x_ti: &D::Buffer,
        grad: &mut D::Buffer,
        adds: bool,
    ) {
        let num_tokens = device.len(x_ti) / self.weight.weight.cols;
        if let Some(at) = self.weight.at {
            device.linear_wgrad(dy_to, x_ti, num_tokens, grad, at, adds);
        }
        if let Some(at) = self.bias.as_ref().and_then(|bias| bias.at) {
            device.bias_grad(dy_to, num_tokens, grad, at);
        }
    }
}
