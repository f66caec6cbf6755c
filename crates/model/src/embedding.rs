//! The embedding unit: rows of a table by token id, bucket by bucket.

use std::ops::Range;

use kernels::{Device, Purpose, WeightFormat};
use shard::{Bucket, Sharding};

use crate::gradients::{Contribution, GradientError, Gradients};
use crate::{Exchange, Gathered, MicroBatch, Transformer};

/// The embedded tokens of every micro-batch.
pub(crate) struct Embedded<D: Device> {
    pub(crate) inputs: Vec<D::Buffer>,
    /// What they were multiplied by.
    pub(crate) scale: f32,
}

/// Embeds every micro-batch.
pub(crate) fn forward<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    exchange: &X,
    batches: &[MicroBatch],
) -> Result<Embedded<D>, X::Error> {
    let mut scale = 1.0;
    let mut inputs = Vec::with_capacity(batches.len());
    for batch in batches {
        let len = batch.num_tokens() * model.spec.hidden;
        inputs.push(device.alloc(len, Purpose::UnitInput)?);
    }
    for bucket in table_buckets(exchange.sharding(), model.embedding()) {
        let rows = table_rows(&exchange.sharding().buckets[bucket]);
        let gathered = exchange.unshard(bucket)?;
        let table_vc = gathered.weight(0);
        scale = table_scale(model, table_vc.format);
        for (batch, y_tc) in batches.iter().zip(&mut inputs) {
            device.embedding(&batch.ids, &table_vc, rows.start, scale, y_tc);
        }
    }
    Ok(Embedded { inputs, scale })
}

/// The reference multiplies in the table's dtype, and so rounds the factor to it.
fn table_scale(model: &Transformer, format: WeightFormat) -> f32 {
    format.nearest(model.spec.embedding_scale())
}

/// Sends the gradient of each bucket of the table on its way.
pub(crate) fn backward<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    gradients: &mut Gradients<'_, D, X>,
    batches: &[MicroBatch],
    dys: &[D::Buffer],
    scale: f32,
) -> Result<(), GradientError<X::Error>> {
    for bucket in table_buckets(gradients.exchange.sharding(), model.embedding()) {
        let shape = &gradients.exchange.sharding().buckets[bucket];
        if !shape.has_gradient() {
            continue;
        }
        let rows = table_rows(shape);
        let grad = if batches.is_empty() {
            None
        } else {
            let mut grad_vc = device.alloc(shape.num_elements, Purpose::Gradient)?;
            device.fill(&mut grad_vc, 0.0);
            for (batch, dy_tc) in batches.iter().zip(dys) {
                let rows = rows.clone();
                device.embedding_backward(&batch.ids, dy_tc, rows, scale, &mut grad_vc, 0);
            }
            Some(grad_vc)
        };
        gradients.finish(bucket, grad, Contribution::Last)?;
    }
    Ok(())
}

/// The buckets of a unit's table, in the order of its rows.
pub(crate) fn table_buckets(
    sharding: &Sharding,
    unit: usize,
) -> impl DoubleEndedIterator<Item = usize> + use<> {
    let table: Vec<usize> = sharding
        .unit_buckets(unit)
        .filter(|&bucket| !sharding.buckets[bucket].slices[0].is_vector)
        .collect();
    table.into_iter()
}

/// The rows of the table that a bucket holds.
pub(crate) fn table_rows(bucket: &Bucket) -> Range<usize> {
    bucket.slices[0].rows.clone()
}
