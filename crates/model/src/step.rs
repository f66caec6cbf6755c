//! One step, unit by unit.
//!
//! ```text
//! for unit in units             unshard -> forward -> reshard      keeps the unit's input
//! for unit in units, reversed   unshard -> recompute, backward -> reshard
//!                               -> reduce_scatter the gradient -> update -> drop
//! ```
//!
//! Micro-batches are the inner loop of a unit: two unshards and one
//! `reduce_scatter` a unit, however many there are. The last blocks may keep all that
//! their backward needs instead of making it again; the numbers are the same.

use kernels::{ArenaFull, Device, Purpose};

use crate::block::{self, Block};
use crate::gradients::{Clip, Contribution, GradientError, Gradients};
use crate::operands::OperandCounts;
use crate::{Exchange, MicroBatch, Transformer, embedding, head};

/// What a step needs to know besides its tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSettings {
    /// Targets of all ranks' micro-batches: what the loss is divided by.
    pub num_targets: u64,
    /// How gradients are kept to a norm.
    pub clip: Clip,
    /// How many buckets of the head's table keep their logits for the backward.
    pub held_logits: usize,
    /// How many blocks, the last ones, keep what their backward needs.
    pub kept_blocks: usize,
    /// Whether a loss or a gradient that is not finite leaves what it belongs to as it
    /// was, instead of being an error.
    pub allows_nan: bool,
}

/// What a step gave.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// The mean loss over the targets of the global batch, before the update. If it is
    /// not finite, nothing was updated.
    pub loss: f64,
    /// The l2 norm of the whole gradient, before clipping.
    pub grad_norm: f64,
    /// Units with a gradient that is not finite, which was not used.
    pub not_finite: Vec<String>,
    /// What rounding did to the operands of this rank's linear layers.
    pub operands: Vec<OperandCounts>,
}

/// A step that could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError<E> {
    /// The loss is NaN or infinite; nothing was updated.
    #[error("the loss is not finite ({loss})")]
    LossNotFinite {
        /// NaN or infinity.
        loss: f64,
    },
    /// A gradient is not finite, or could not be exchanged.
    #[error(transparent)]
    Gradient(#[from] GradientError<E>),
    /// Peers or memory.
    #[error(transparent)]
    Exchange(E),
}

impl<E: From<ArenaFull>> From<ArenaFull> for StepError<E> {
    fn from(full: ArenaFull) -> Self {
        Self::Exchange(full.into())
    }
}

/// Forward, backward and update over all units.
#[expect(
    clippy::missing_panics_doc,
    reason = "the head has an input: that of the unit before it"
)]
pub fn train_step<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    exchange: &mut X,
    batches: &[MicroBatch],
    settings: StepSettings,
) -> Result<StepReport, StepError<X::Error>> {
    let Forward {
        mut inputs,
        mut kept,
        mut operands,
        embedding_scale,
    } = forward_blocks(
        device,
        model,
        exchange,
        batches,
        Keep::Inputs(settings.kept_blocks),
    )
    .map_err(StepError::Exchange)?;
    let last = inputs.pop().expect("the head has an input");
    let (loss_sum, pending) = head::forward(
        device,
        model,
        exchange,
        batches,
        &last,
        settings.held_logits,
    )
    .map_err(StepError::Exchange)?;
    let loss = mean_loss(exchange, loss_sum, settings)?;
    if !loss.is_finite() {
        return Ok(StepReport {
            loss,
            grad_norm: f64::NAN,
            not_finite: Vec::new(),
            operands: Vec::new(),
        });
    }

    let unit_names = model.units.iter().map(|unit| unit.name.as_str()).collect();
    let mut gradients = Gradients::new(device, exchange, settings, unit_names);
    let scale = loss_scale(settings.num_targets);
    let mut dys = head::backward(
        device,
        model,
        &mut gradients,
        batches,
        &last,
        pending,
        scale,
    )?;
    drop(last);
    for unit in model.blocks().rev() {
        let xs = inputs.pop().expect("every block has an input");
        let of_inputs = (&xs[..], kept.pop().unwrap_or_default());
        // A block's norms come first, with what else of it is trained.
        let bucket = gradients.exchange.sharding().unit_buckets(unit).start;
        let grad = block_backward(
            device,
            model,
            gradients.exchange,
            unit,
            batches,
            of_inputs,
            &mut dys,
            &mut operands,
        )
        .map_err(StepError::Exchange)?;
        gradients.finish(bucket, grad, Contribution::Last)?;
    }
    embedding::backward(
        device,
        model,
        &mut gradients,
        batches,
        &dys,
        embedding_scale,
    )?;
    let (grad_norm, not_finite) = gradients.close()?;
    Ok(StepReport {
        loss,
        grad_norm,
        not_finite,
        operands,
    })
}

/// The loss summed over this rank's targets; nothing is kept or updated.
#[expect(
    clippy::missing_panics_doc,
    reason = "the head has an input: that of the unit before it"
)]
pub fn evaluate<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    exchange: &X,
    batches: &[MicroBatch],
) -> Result<f64, X::Error> {
    let Forward { mut inputs, .. } = forward_blocks(device, model, exchange, batches, Keep::Last)?;
    let last = inputs.pop().expect("the head has an input");
    let (loss_sum, _) = head::forward(device, model, exchange, batches, &last, 0)?;
    Ok(loss_sum)
}

/// Hands the logits of all tokens to `take`, a bucket of the vocabulary at a
/// time: its first row and `[t, rows]` logits.
pub fn logits<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    exchange: &X,
    batch: &MicroBatch,
    take: impl FnMut(usize, &D::Buffer),
) -> Result<(), X::Error> {
    let batches = std::slice::from_ref(batch);
    let Forward { inputs, .. } = forward_blocks(device, model, exchange, batches, Keep::Last)?;
    head::logits(device, model, exchange, &inputs[0][0], take)
}

/// Which units' inputs outlive the forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// All, and of so many blocks, the last ones, what the backward needs besides.
    Inputs(usize),
    /// The head's.
    Last,
}

/// What the forward up to the head leaves.
struct Forward<D: Device> {
    /// `[unit][micro-batch]` inputs of the units after the embedding, the head's
    /// last.
    inputs: Vec<Vec<D::Buffer>>,
    /// `[block][micro-batch]` of the blocks that keep it.
    kept: Vec<Vec<block::Kept<D>>>,
    /// What rounding did to the inputs of layers that will not be made again.
    operands: Vec<OperandCounts>,
    /// What embedded tokens were multiplied by.
    embedding_scale: f32,
}

/// Embedding and blocks.
fn forward_blocks<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    exchange: &X,
    batches: &[MicroBatch],
    keep: Keep,
) -> Result<Forward<D>, X::Error> {
    let embedded = embedding::forward(device, model, exchange, batches)?;
    let mut inputs = vec![embedded.inputs];
    let (mut kept, mut operands) = (Vec::new(), Vec::new());
    let first_kept = match keep {
        Keep::Inputs(num_blocks) => model.blocks().end.saturating_sub(num_blocks),
        Keep::Last => model.blocks().end,
    };
    for unit in model.blocks() {
        let xs = inputs.last().expect("the embedding's output is there");
        let gathered = block::unshard(exchange, unit)?;
        let block = Block::new::<D>(
            model,
            &model.units[unit],
            &gathered,
            exchange.gradient_format(unit),
        );
        let mut ys = Vec::with_capacity(batches.len());
        if unit < first_kept {
            for (batch, x_tc) in batches.iter().zip(xs) {
                ys.push(block.forward(device, model, batch, x_tc, None)?);
            }
        } else {
            let mut of_batches = Vec::with_capacity(batches.len());
            for (batch, x_tc) in batches.iter().zip(xs) {
                let (y_tc, of_batch) = block.forward_kept(device, model, batch, x_tc)?;
                ys.push(y_tc);
                of_batches.push(of_batch);
            }
            kept.push(of_batches);
            operands.extend(block.operands(unit));
        }
        if keep == Keep::Last {
            inputs.clear();
        }
        inputs.push(ys);
    }
    Ok(Forward {
        inputs,
        kept,
        operands,
        embedding_scale: embedded.scale,
    })
}

/// One block backward for every micro-batch; gives the bucket's gradient.
#[expect(clippy::too_many_arguments, reason = "a backward names all it reads")]
fn block_backward<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    exchange: &X,
    unit: usize,
    batches: &[MicroBatch],
    (xs, kept): (&[D::Buffer], Vec<block::Kept<D>>),
    dys: &mut [D::Buffer],
    operands: &mut Vec<OperandCounts>,
) -> Result<Option<D::Buffer>, X::Error> {
    let gathered = block::unshard(exchange, unit)?;
    if batches.is_empty() {
        return Ok(None);
    }
    let block = Block::new::<D>(
        model,
        &model.units[unit],
        &gathered,
        exchange.gradient_format(unit),
    );
    let shape = &exchange.sharding().buckets[exchange.sharding().unit_buckets(unit).start];
    let mut grad = device.alloc(shape.num_elements, Purpose::Gradient)?;
    let mut kept = kept.into_iter();
    for (index, ((batch, x_tc), dy_tc)) in batches.iter().zip(xs).zip(dys).enumerate() {
        let of_input = (x_tc, kept.next());
        let into = (&mut grad, index > 0);
        block.backward(device, model, batch, of_input, dy_tc, into)?;
    }
    operands.extend(block.operands(unit));
    Ok(Some(grad))
}

/// Divides the loss of all ranks by all targets; every rank learns it before
/// anyone updates.
fn mean_loss<D: Device, X: Exchange<D>>(
    exchange: &X,
    loss_sum: f64,
    settings: StepSettings,
) -> Result<f64, StepError<X::Error>> {
    let mut sum = [loss_sum];
    exchange
        .all_reduce(&mut sum, "loss")
        .map_err(StepError::Exchange)?;
    let loss = sum[0] / settings.num_targets.max(1) as f64;
    if loss.is_finite() || settings.allows_nan {
        Ok(loss)
    } else {
        Err(StepError::LossNotFinite { loss })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the scale multiplies f32 gradients"
)]
fn loss_scale(num_targets: u64) -> f32 {
    (1.0 / num_targets.max(1) as f64) as f32
}
