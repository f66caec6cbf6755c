//! A block, forward and backward: attention and MLP with their norms.
//!
//! ```text
//! sequential            r = x + attention(norm(x))       y = r + mlp(norm'(r))
//! parallel, one norm    h = norm(x)                      y = x + attention(h) + mlp(h)
//! parallel, two norms   y = x + attention(norm(x)) + mlp(norm'(x))
//! ```
//!
//! Only `x` outlives the forward. The backward recomputes the rest, all but the
//! last product, and drops each buffer after its last use.

use fp8::Format;
use kernels::{ArenaFull, Device, Purpose, WeightFormat};
use shard::Bucket;
use spec::{Role, Unit, UnitKind};

use crate::attention::{Attention, Kept, Projections};
use crate::linear::{Input, Linear, Placed};
use crate::mlp::Mlp;
use crate::norm::Norm;
use crate::operands::{OperandCounts, Tally};
use crate::{Cache, Exchange, Gathered, MicroBatch, Transformer};

/// A bucket's shape with its weights.
type GatheredBucket<'s, G> = (&'s Bucket, G);

/// Unshards all buckets of a block.
pub(crate) fn unshard<D: Device, X: Exchange<D>>(
    exchange: &X,
    unit: usize,
) -> Result<Vec<GatheredBucket<'_, X::Gathered<'_>>>, X::Error> {
    let buckets = exchange.sharding().unit_buckets(unit);
    buckets
        .map(|bucket| {
            let shape = &exchange.sharding().buckets[bucket];
            Ok((shape, exchange.unshard(bucket)?))
        })
        .collect()
}

/// The unsharded weights of one block.
#[derive(Debug)]
pub(crate) struct Block<B> {
    input_norm: Norm<B>,
    attention: Attention<B>,
    mlp_input: MlpInput<B>,
    mlp: Mlp<B>,
}

/// What the MLP reads.
#[derive(Debug)]
enum MlpInput<B> {
    /// The sum of the block's input and attention, under a norm.
    Sum(Norm<B>),
    /// The block's input under the norm of attention.
    Shared,
    /// The block's input under a norm of its own.
    Own(Norm<B>),
}

impl<B: Copy> Block<B> {
    /// Names the slices of a gathered block. What codes are multiplied by is rounded
    /// if there is a format for gradients.
    pub(crate) fn new<'a, D>(
        model: &Transformer,
        unit: &Unit,
        buckets: &'a [GatheredBucket<'_, impl Gathered<D>>],
        gradient_format: Option<Format>,
    ) -> Self
    where
        D: Device<Bytes<'a> = B> + 'a,
    {
        let tensor_of = |role| unit.params.iter().position(|param| param.role == role);
        let find = |role: Role| -> Option<Placed<B>> {
            let tensor = tensor_of(role)?;
            buckets.iter().find_map(|(shape, gathered)| {
                let mut slices = shape.slices.iter();
                let slice = slices.position(|slice| slice.tensor == tensor)?;
                let at = shape.slices[slice].at;
                Some(Placed {
                    weight: gathered.weight(slice),
                    at: shape.has_gradient().then_some(at),
                })
            })
        };
        let find_linear = |weight, bias| -> Option<Linear<B>> {
            let placed = find(weight)?;
            let is_codes = placed.weight.format == WeightFormat::E4m3;
            let rounding = tensor_of(weight).zip(gradient_format.filter(|_| is_codes));
            Some(Linear {
                rounding: rounding.map(|(tensor, format)| Tally::new(tensor, format)),
                weight: placed,
                bias: find(bias),
            })
        };
        let find_norm = |weight, bias| -> Option<Norm<B>> {
            Some(Norm {
                weight: find(weight)?,
                bias: find(bias),
            })
        };
        let linear = |weight, bias| find_linear(weight, bias).expect(LISTED);
        let norm = |weight, bias| find_norm(weight, bias).expect(LISTED);
        let projections = match find_linear(Role::QueryKeyValue, Role::QueryKeyValueBias) {
            Some(fused) => Projections::Fused(fused),
            None => Projections::Separate([
                linear(Role::Query, Role::QueryBias),
                linear(Role::Key, Role::KeyBias),
                linear(Role::Value, Role::ValueBias),
            ]),
        };
        let post_norm = || norm(Role::PostNorm, Role::PostNormBias);
        Self {
            input_norm: norm(Role::InputNorm, Role::InputNormBias),
            attention: Attention {
                projections,
                output: linear(Role::Output, Role::OutputBias),
                window: window_of(model, unit),
            },
            mlp_input: match model.spec.arrangement {
                spec::Arrangement::Sequential => MlpInput::Sum(post_norm()),
                spec::Arrangement::ParallelOneNorm => MlpInput::Shared,
                spec::Arrangement::ParallelTwoNorms => MlpInput::Own(post_norm()),
            },
            mlp: Mlp {
                gate: find_linear(Role::Gate, Role::GateBias),
                up: linear(Role::Up, Role::UpBias),
                down: linear(Role::Down, Role::DownBias),
            },
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
        let shared_tc = {
            let kept = self.attend(device, model, batch, x_tc, cache)?;
            let output = &self.attention.output;
            let a_tnh = Input::new(device, kept.a_tnh, [output])?;
            output.forward(device, a_tnh.of(output), &mut y_tc, true)?;
            let is_shared = matches!(self.mlp_input, MlpInput::Shared);
            is_shared.then(|| kept.h_tc.into_buffer())
        };
        let h_tc = match (&self.mlp_input, shared_tc) {
            (MlpInput::Sum(norm), _) => norm.forward(device, model, &y_tc)?.h_tc,
            (MlpInput::Own(norm), _) => norm.forward(device, model, x_tc)?.h_tc,
            (MlpInput::Shared, shared_tc) => shared_tc.expect("kept for the MLP"),
        };
        self.mlp.forward(device, model, h_tc, &mut y_tc)?;
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
        let all = (device, model, batch);
        match &self.mlp_input {
            MlpInput::Sum(norm) => {
                self.backward_in_turn(all, kept, norm, x_tc, dy_tc, (grad, adds))
            }
            MlpInput::Shared => self.backward_shared(all, kept, x_tc, dy_tc, (grad, adds)),
            MlpInput::Own(norm) => self.backward_apart(all, kept, norm, x_tc, dy_tc, (grad, adds)),
        }
    }

    /// Norm, projections, positions and attention.
    fn attend<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        batch: &MicroBatch,
        x_tc: &D::Buffer,
        cache: Option<&mut Cache<D>>,
    ) -> Result<Kept<D>, ArenaFull> {
        let normed = self.input_norm.forward(device, model, x_tc)?;
        let others = match self.mlp_input {
            MlpInput::Shared => Some(self.mlp.first()),
            MlpInput::Sum(_) | MlpInput::Own(_) => None,
        };
        let normed = (normed, others.into_iter().flatten());
        self.attention.forward(device, model, batch, normed, cache)
    }

    /// From `y` to the sum before the MLP, and from there to `x`.
    fn backward_in_turn<'a, D: Device<Bytes<'a> = B>>(
        &self,
        (device, model, batch): (&D, &Transformer, &MicroBatch),
        kept: Kept<D>,
        norm: &Norm<B>,
        x_tc: &D::Buffer,
        dy_tc: &mut D::Buffer,
        (grad, adds): (&mut D::Buffer, bool),
    ) -> Result<(), ArenaFull> {
        let mut r_tc = copied(device, x_tc)?;
        let output = &self.attention.output;
        output.forward_of(device, &kept.a_tnh, &mut r_tc, true)?;
        {
            let normed = norm.forward(device, model, &r_tc)?;
            let dh_tc = self
                .mlp
                .backward(device, model, normed.h_tc, dy_tc, (grad, adds))?;
            norm.backward(device, model, &r_tc, &normed.stats, &dh_tc, dy_tc, grad)?;
        }
        drop(r_tc);
        let dh = self
            .attention
            .backward(device, model, batch, kept, dy_tc, (grad, adds))?;
        let norm = &self.input_norm;
        norm.backward(device, model, x_tc, &dh.stats, &dh.h_tc, dy_tc, grad)
    }

    /// Both gradients of the norm's one output are added before its backward.
    fn backward_shared<'a, D: Device<Bytes<'a> = B>>(
        &self,
        (device, model, batch): (&D, &Transformer, &MicroBatch),
        kept: Kept<D>,
        x_tc: &D::Buffer,
        dy_tc: &mut D::Buffer,
        (grad, adds): (&mut D::Buffer, bool),
    ) -> Result<(), ArenaFull> {
        let h_tc = copied(device, kept.h_tc.as_plain())?;
        let of_mlp_tc = self
            .mlp
            .backward(device, model, h_tc, dy_tc, (grad, adds))?;
        let mut dh = self
            .attention
            .backward(device, model, batch, kept, dy_tc, (grad, adds))?;
        device.add(&of_mlp_tc, &mut dh.h_tc, 0);
        let norm = &self.input_norm;
        norm.backward(device, model, x_tc, &dh.stats, &dh.h_tc, dy_tc, grad)
    }

    /// `dy` is read by both before either norm adds to it.
    fn backward_apart<'a, D: Device<Bytes<'a> = B>>(
        &self,
        (device, model, batch): (&D, &Transformer, &MicroBatch),
        kept: Kept<D>,
        own_norm: &Norm<B>,
        x_tc: &D::Buffer,
        dy_tc: &mut D::Buffer,
        (grad, adds): (&mut D::Buffer, bool),
    ) -> Result<(), ArenaFull> {
        let own = own_norm.forward(device, model, x_tc)?;
        let of_mlp_tc = self
            .mlp
            .backward(device, model, own.h_tc, dy_tc, (grad, adds))?;
        let dh = self
            .attention
            .backward(device, model, batch, kept, dy_tc, (grad, adds))?;
        let norm = &self.input_norm;
        norm.backward(device, model, x_tc, &dh.stats, &dh.h_tc, dy_tc, grad)?;
        own_norm.backward(device, model, x_tc, &own.stats, &of_mlp_tc, dy_tc, grad)
    }

    /// What rounding did to the operands of the layers that round.
    pub(crate) fn operands(&self, unit: usize) -> impl Iterator<Item = OperandCounts> {
        let linears = self.attention.linears().chain(self.mlp.linears());
        linears.filter_map(move |linear| Some(linear.rounding.as_ref()?.counts(unit)))
    }

    /// Vectors' gradients are always added to; matrices' overwrite.
    fn clear_vectors<D: Device>(&self, device: &D, grad: &mut D::Buffer) {
        let own_norm = match &self.mlp_input {
            MlpInput::Sum(norm) | MlpInput::Own(norm) => Some(norm),
            MlpInput::Shared => None,
        };
        let norms = std::iter::once(&self.input_norm).chain(own_norm);
        let biases = self.attention.vectors().chain(self.mlp.vectors());
        for vector in norms.flat_map(Norm::vectors).chain(biases) {
            if let Some(at) = vector.at {
                device.write(&vec![0.0; vector.weight.cols], grad, at);
            }
        }
    }
}

const LISTED: &str = "the spec lists every weight of a block";

fn window_of(model: &Transformer, unit: &Unit) -> Option<usize> {
    match unit.kind {
        UnitKind::Block(layer) => model.spec.window_of(layer),
        UnitKind::Embedding | UnitKind::Head => None,
    }
}

fn copied<D: Device>(device: &D, x: &D::Buffer) -> Result<D::Buffer, ArenaFull> {
    let mut copy = device.alloc(device.len(x), Purpose::Activation)?;
    device.copy(x, 0..device.len(x), &mut copy, 0);
    Ok(copy)
}
