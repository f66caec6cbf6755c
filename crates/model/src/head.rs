//! The head: final norm, vocabulary table and cross-entropy, bucket by bucket.
//!
//! The logits of all tokens over the whole vocabulary never exist. A first pass
//! over the table's buckets gathers each token's softmax statistics; the loss is
//! known after it, before any update. A second pass, last bucket first, makes
//! each bucket's logits again, turns them into gradients and sends the bucket's
//! weight gradient on its way. Buckets' logits from the first pass are held over
//! as far as `held_logits` allows, and are then not made again.

use kernels::{Device, Purpose, RunningMax};
use shard::Bucket;

use crate::embedding::{table_buckets, table_rows};
use crate::gradients::{Contribution, GradientError, Gradients};
use crate::linear::Placed;
use crate::norm::{Norm, Normed};
use crate::{Exchange, Gathered, MicroBatch, Transformer};

/// One micro-batch between the head's passes.
pub(crate) struct Pending<D: Device> {
    normed: Normed<D>,
    running: RunningMax<D::Buffer>,
    /// Logits of the last buckets, the last one on top.
    held: Vec<D::Buffer>,
}

/// Takes every micro-batch through the norm and the table; gives the loss summed
/// over this rank's targets.
pub(crate) fn forward<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    exchange: &X,
    batches: &[MicroBatch],
    inputs: &[D::Buffer],
    held_logits: usize,
) -> Result<(f64, Vec<Pending<D>>), X::Error> {
    let mut pending = final_norm(device, model, exchange, inputs)?;
    let table: Vec<usize> = table_buckets(exchange.sharding(), model.head_table()).collect();
    for (index, &bucket) in table.iter().enumerate() {
        let rows = table_rows(&exchange.sharding().buckets[bucket]);
        let gathered = exchange.unshard(bucket)?;
        let weight_vc = gathered.weight(0);
        let holds = index + held_logits >= table.len();
        for (batch, state) in batches.iter().zip(&mut pending) {
            let mut logits_tv = device.alloc(batch.num_tokens() * rows.len(), Purpose::Logits)?;
            device.linear(&state.normed.h_tc, &weight_vc, None, &mut logits_tv, false)?;
            let (first_row, first) = (rows.start, index == 0);
            device.cross_entropy(
                &logits_tv,
                first_row,
                &batch.targets,
                &mut state.running,
                first,
            );
            if holds {
                state.held.push(logits_tv);
            }
        }
    }
    let losses = batches
        .iter()
        .zip(&pending)
        .map(|(batch, state)| device.cross_entropy_loss(&state.running, &batch.targets));
    Ok((losses.sum(), pending))
}

/// From the statistics to the gradients of the head's inputs; sends the
/// gradients of table and norm on their way.
pub(crate) fn backward<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    gradients: &mut Gradients<'_, D, X>,
    batches: &[MicroBatch],
    inputs: &[D::Buffer],
    mut pending: Vec<Pending<D>>,
    scale: f32,
) -> Result<Vec<D::Buffer>, GradientError<X::Error>> {
    let contribution = if model.spec.tied {
        Contribution::First
    } else {
        Contribution::Last
    };
    let mut dhs = Vec::with_capacity(batches.len());
    for state in &pending {
        let mut dh_tc = device.alloc(device.len(&state.normed.h_tc), Purpose::Activation)?;
        device.fill(&mut dh_tc, 0.0);
        dhs.push(dh_tc);
    }
    let table = table_buckets(gradients.exchange.sharding(), model.head_table());
    for bucket in table.rev() {
        let grad = table_backward(
            device,
            gradients.exchange,
            bucket,
            batches,
            &mut pending,
            &mut dhs,
            scale,
        )
        .map_err(GradientError::Exchange)?;
        if gradients.exchange.sharding().buckets[bucket].has_gradient() {
            gradients.finish(bucket, grad, contribution)?;
        }
    }
    norm_backward(device, model, gradients, inputs, pending, dhs)
}

/// One bucket of the table for every micro-batch; gives the bucket's gradient.
fn table_backward<D: Device, X: Exchange<D>>(
    device: &D,
    exchange: &X,
    bucket: usize,
    batches: &[MicroBatch],
    pending: &mut [Pending<D>],
    dhs: &mut [D::Buffer],
    scale: f32,
) -> Result<Option<D::Buffer>, X::Error> {
    let shape = &exchange.sharding().buckets[bucket];
    let rows = table_rows(shape);
    let gathered = exchange.unshard(bucket)?;
    let weight_vc = gathered.weight(0);
    let mut grad = None;
    for ((batch, state), dh_tc) in batches.iter().zip(pending).zip(dhs) {
        let mut dlogits_tv = if let Some(logits_tv) = state.held.pop() {
            logits_tv
        } else {
            let len = batch.num_tokens() * rows.len();
            let mut logits_tv = device.alloc(len, Purpose::Logits)?;
            device.linear(&state.normed.h_tc, &weight_vc, None, &mut logits_tv, false)?;
            logits_tv
        };
        device.cross_entropy_backward(
            &mut dlogits_tv,
            rows.start,
            &batch.targets,
            &state.running,
            scale,
        );
        device.linear_dgrad(&dlogits_tv, &weight_vc, dh_tc, true)?;
        if !shape.has_gradient() {
            continue;
        }
        let adds = grad.is_some();
        let grad_vc = match &mut grad {
            Some(grad_vc) => grad_vc,
            None => grad.insert(device.alloc(shape.num_elements, Purpose::Gradient)?),
        };
        let (h_tc, num_tokens) = (&state.normed.h_tc, batch.num_tokens());
        device.linear_wgrad(&dlogits_tv, h_tc, num_tokens, grad_vc, 0, adds);
    }
    Ok(grad)
}

fn final_norm<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    exchange: &X,
    inputs: &[D::Buffer],
) -> Result<Vec<Pending<D>>, X::Error> {
    let bucket = norm_bucket(model, exchange);
    let gathered = exchange.unshard(bucket)?;
    let norm = norm_of(&exchange.sharding().buckets[bucket], &gathered);
    let mut pending = Vec::with_capacity(inputs.len());
    for x_tc in inputs {
        let normed = norm.forward(device, model, x_tc)?;
        let num_tokens = device.len(x_tc) / model.spec.hidden;
        let alloc = || device.alloc(num_tokens, Purpose::Activation);
        let running = RunningMax {
            max: alloc()?,
            sum: alloc()?,
            target: alloc()?,
        };
        pending.push(Pending {
            normed,
            running,
            held: Vec::new(),
        });
    }
    Ok(pending)
}

fn norm_backward<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    gradients: &mut Gradients<'_, D, X>,
    inputs: &[D::Buffer],
    pending: Vec<Pending<D>>,
    dhs: Vec<D::Buffer>,
) -> Result<Vec<D::Buffer>, GradientError<X::Error>> {
    let bucket = norm_bucket(model, gradients.exchange);
    let mut grad = None;
    let mut dxs = Vec::with_capacity(inputs.len());
    {
        let gathered = gradients
            .exchange
            .unshard(bucket)
            .map_err(GradientError::Exchange)?;
        let shape = &gradients.exchange.sharding().buckets[bucket];
        let norm = norm_of(shape, &gathered);
        for ((x_tc, state), dh_tc) in inputs.iter().zip(pending).zip(dhs) {
            let grad_c = if let Some(grad_c) = &mut grad {
                grad_c
            } else {
                let fresh = device.alloc(shape.num_elements, Purpose::Gradient)?;
                let grad_c = grad.insert(fresh);
                device.fill(grad_c, 0.0);
                grad_c
            };
            let mut dx_tc = device.alloc(device.len(x_tc), Purpose::UnitInput)?;
            device.fill(&mut dx_tc, 0.0);
            let stats = &state.normed.stats;
            norm.backward(device, model, x_tc, stats, &dh_tc, &mut dx_tc, grad_c)?;
            dxs.push(dx_tc);
        }
    }
    gradients.finish(bucket, grad, Contribution::Last)?;
    Ok(dxs)
}

/// Hands the logits of one micro-batch, bucket by bucket, to `take` together
/// with the bucket's first vocabulary row.
pub(crate) fn logits<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    exchange: &X,
    x_tc: &D::Buffer,
    mut take: impl FnMut(usize, &D::Buffer),
) -> Result<(), X::Error> {
    let Normed { h_tc, .. } = {
        let bucket = norm_bucket(model, exchange);
        let gathered = exchange.unshard(bucket)?;
        let norm = norm_of(&exchange.sharding().buckets[bucket], &gathered);
        norm.forward(device, model, x_tc)?
    };
    let num_tokens = device.len(x_tc) / model.spec.hidden;
    for bucket in table_buckets(exchange.sharding(), model.head_table()) {
        let rows = table_rows(&exchange.sharding().buckets[bucket]);
        let gathered = exchange.unshard(bucket)?;
        let mut logits_tv = device.alloc(num_tokens * rows.len(), Purpose::Logits)?;
        device.linear(&h_tc, &gathered.weight(0), None, &mut logits_tv, false)?;
        take(rows.start, &logits_tv);
    }
    Ok(())
}

/// The final norm: its weight, and its bias if it has one, alone in a bucket.
fn norm_of<'a, D: Device + 'a>(
    shape: &Bucket,
    gathered: &'a impl Gathered<D>,
) -> Norm<D::Bytes<'a>> {
    let mut vectors = shape.slices.iter().enumerate().map(|(slice, part)| Placed {
        weight: gathered.weight(slice),
        at: Some(part.at),
    });
    Norm {
        weight: vectors.next().expect("a head has a norm"),
        bias: vectors.next(),
    }
}

/// The bucket of the final norm: a unit's vectors come before its table.
fn norm_bucket<D: Device, X: Exchange<D>>(model: &Transformer, exchange: &X) -> usize {
    exchange.sharding().unit_buckets(model.head()).start
}
