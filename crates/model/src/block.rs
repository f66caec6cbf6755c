//! A block, forward and backward: attention and MLP with their norms.
//!
//! ```text
//! sequential            r = x + attention(norm(x))       y = r + mlp(norm'(r))
//! parallel, one norm    h = norm(x)                      y = x + attention(h) + mlp(h)
//! parallel, two norms   y = x + attention(norm(x)) + mlp(norm'(x))
//! ```
//!
//! Only `x` outlives the forward, or else all that the backward needs ([`Kept`]). What
//! was not kept the backward makes again, all but the last product; it drops each
//! buffer after its last use.

use fp8::Format;
use kernels::{ArenaFull, Device, Purpose, WeightFormat};
use shard::Bucket;
use spec::{Role, Unit, UnitKind};

use crate::attention::{self, Attention, Projections};
use crate::linear::{Input, Linear, Placed};
use crate::mlp::{self, Mlp};
use crate::norm::{Norm, Normed};
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

/// What the backward needs of the forward besides the input.
pub(crate) struct Kept<D: Device> {
    attention: attention::Kept<D>,
    /// The sum before the MLP, if there is one.
    sum_tc: Option<D::Buffer>,
    /// Of the MLP's norm, if it has one.
    stats: Option<D::Buffer>,
    mlp: mlp::Kept<D>,
}

/// About how many bytes the backward of a block needs of each token.
pub fn kept_bytes_per_token(model: &Transformer) -> u64 {
    let spec = &model.spec;
    let streams = match spec.arrangement {
        // The norms' outputs, and the sum.
        spec::Arrangement::Sequential => 3,
        spec::Arrangement::ParallelOneNorm | spec::Arrangement::ParallelTwoNorms => 2,
    };
    let heads = 2 * model.query_width() + 2 * model.kv_width() + spec.heads;
    let first_block = model.blocks().start;
    let params = model.units[first_block].params.iter();
    let inner = params.filter(|param| matches!(param.role, Role::Gate | Role::Up));
    let width = streams * spec.hidden + heads + inner.count() * spec.intermediate;
    (size_of::<f32>() * width) as u64
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

    /// As [`Block::forward`] of a whole sequence, with what the backward needs.
    pub(crate) fn forward_kept<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        batch: &MicroBatch,
        x_tc: &D::Buffer,
    ) -> Result<(D::Buffer, Kept<D>), ArenaFull> {
        let mut y_tc = device.alloc(device.len(x_tc), Purpose::UnitInput)?;
        let kept = self.keep(device, model, batch, x_tc)?;
        let all = 0..device.len(x_tc);
        if let Some(sum_tc) = &kept.sum_tc {
            device.copy(sum_tc, all, &mut y_tc, 0);
        } else {
            device.copy(x_tc, all, &mut y_tc, 0);
            let output = &self.attention.output;
            output.forward_of(device, &kept.attention.a_tnh, &mut y_tc, true)?;
        }
        self.mlp.forward_kept(device, model, &kept.mlp, &mut y_tc)?;
        Ok((y_tc, kept))
    }

    /// Everything but the last product.
    fn keep<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        batch: &MicroBatch,
        x_tc: &D::Buffer,
    ) -> Result<Kept<D>, ArenaFull> {
        let attention = self.attend(device, model, batch, x_tc, None)?;
        let mut sum_tc = None;
        let (h_tc, stats) = match &self.mlp_input {
            MlpInput::Sum(norm) => {
                let r_tc = sum_tc.insert(copied(device, x_tc)?);
                let output = &self.attention.output;
                output.forward_of(device, &attention.a_tnh, r_tc, true)?;
                let Normed { h_tc, stats } = norm.forward(device, model, r_tc)?;
                (h_tc, Some(stats))
            }
            MlpInput::Own(norm) => {
                let Normed { h_tc, stats } = norm.forward(device, model, x_tc)?;
                (h_tc, Some(stats))
            }
            MlpInput::Shared => (copied(device, attention.h_tc.as_plain())?, None),
        };
        Ok(Kept {
            attention,
            sum_tc,
            stats,
            mlp: self.mlp.keep(device, model, h_tc)?,
        })
    }

    /// Turns `dy_tc` into the gradient of `x_tc` and writes (`adds`: adds) the
    /// gradients of all weights to the bucket's gradient. What was not `kept` is made
    /// again.
    pub(crate) fn backward<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        batch: &MicroBatch,
        (x_tc, kept): (&D::Buffer, Option<Kept<D>>),
        dy_tc: &mut D::Buffer,
        (grad, adds): (&mut D::Buffer, bool),
    ) -> Result<(), ArenaFull> {
        if !adds {
            self.clear_vectors(device, grad);
        }
        let kept = match kept {
            Some(kept) => kept,
            None => self.keep(device, model, batch, x_tc)?,
        };
        let Kept {
            attention,
            sum_tc,
            stats,
            mlp,
        } = kept;
        let of_mlp_tc = self.mlp.backward(device, model, mlp, dy_tc, (grad, adds))?;
        let of_mlp = match (&self.mlp_input, sum_tc, stats) {
            (MlpInput::Sum(norm), Some(r_tc), Some(stats)) => {
                norm.backward(device, model, &r_tc, &stats, &of_mlp_tc, dy_tc, grad)?;
                drop(of_mlp_tc);
                None
            }
            (_, _, stats) => Some((of_mlp_tc, stats)),
        };
        let mut of_attention =
            self.attention
                .backward(device, model, batch, attention, dy_tc, (grad, adds))?;
        // Both gradients of a norm's one output are added before its backward; `dy` is
        // read by attention and MLP before either norm adds to it.
        if let (MlpInput::Shared, Some((of_mlp_tc, _))) = (&self.mlp_input, &of_mlp) {
            device.add(of_mlp_tc, &mut of_attention.h_tc, 0);
        }
        let Normed { h_tc, stats } = of_attention;
        let norm = &self.input_norm;
        norm.backward(device, model, x_tc, &stats, &h_tc, dy_tc, grad)?;
        if let (MlpInput::Own(norm), Some((dh_tc, Some(stats)))) = (&self.mlp_input, of_mlp) {
            norm.backward(device, model, x_tc, &stats, &dh_tc, dy_tc, grad)?;
        }
        Ok(())
    }

    /// Norm, projections, positions and attention.
    fn attend<'a, D: Device<Bytes<'a> = B>>(
        &self,
        device: &D,
        model: &Transformer,
        batch: &MicroBatch,
        x_tc: &D::Buffer,
        cache: Option<&mut Cache<D>>,
    ) -> Result<attention::Kept<D>, ArenaFull> {
        let normed = self.input_norm.forward(device, model, x_tc)?;
        let others = match self.mlp_input {
            MlpInput::Shared => Some(self.mlp.first()),
            MlpInput::Sum(_) | MlpInput::Own(_) => None,
        };
        let normed = (normed, others.into_iter().flatten());
        self.attention.forward(device, model, batch, normed, cache)
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
