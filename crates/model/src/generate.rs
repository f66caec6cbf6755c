//! Forward with the keys and values of earlier tokens cached: generation.

use kernels::{ArenaFull, Device, Purpose};

use crate::block::{self, Block};
use crate::{Exchange, MicroBatch, Transformer, embedding, head};

/// Keys and values of one block for the tokens of one sequence so far.
pub struct Cache<D: Device> {
    k_smh: D::Buffer,
    v_smh: D::Buffer,
    num_tokens: usize,
    width: usize,
}

impl<D: Device> std::fmt::Debug for Cache<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("num_tokens", &self.num_tokens)
            .finish_non_exhaustive()
    }
}

impl<D: Device> Cache<D> {
    /// An empty cache for each block, with room for `max_tokens`.
    pub fn for_blocks(
        device: &D,
        model: &Transformer,
        max_tokens: usize,
    ) -> Result<Vec<Self>, ArenaFull> {
        let width = model.kv_width();
        model
            .blocks()
            .map(|_| {
                Ok(Self {
                    k_smh: device.alloc(max_tokens * width, Purpose::Generation)?,
                    v_smh: device.alloc(max_tokens * width, Purpose::Generation)?,
                    num_tokens: 0,
                    width,
                })
            })
            .collect()
    }

    /// Adds the keys and values of the next tokens; gives all so far.
    pub(crate) fn append(
        &mut self,
        device: &D,
        k_tmh: &D::Buffer,
        v_tmh: &D::Buffer,
    ) -> (&D::Buffer, &D::Buffer, usize) {
        let (len, at) = (device.len(k_tmh), self.num_tokens * self.width);
        device.copy(k_tmh, 0..len, &mut self.k_smh, at);
        device.copy(v_tmh, 0..len, &mut self.v_smh, at);
        self.num_tokens += len / self.width;
        (&self.k_smh, &self.v_smh, self.num_tokens)
    }
}

/// Takes the next tokens of one sequence through the model and writes the logits
/// of the last one to `last_logits`, of vocabulary length.
///
/// # Panics
///
/// If there is no token, or no room for them in the caches or for the logits.
pub fn forward_cached<D: Device, X: Exchange<D>>(
    device: &D,
    model: &Transformer,
    exchange: &X,
    caches: &mut [Cache<D>],
    ids: &[u32],
    last_logits: &mut [f32],
) -> Result<(), X::Error> {
    let past = caches.first().map_or(0, |cache| cache.num_tokens);
    let mut batch = MicroBatch::new(ids.len(), ids.to_vec(), vec![kernels::IGNORED; ids.len()]);
    for position in &mut batch.positions {
        *position += u32::try_from(past).expect("a sequence is shorter than 2^32");
    }
    let batches = std::slice::from_ref(&batch);
    let embedded = embedding::forward(device, model, exchange, batches)?;
    let mut x_tc = embedded.inputs.into_iter().next().expect("one micro-batch");
    for (unit, cache) in model.blocks().zip(caches) {
        let gathered = block::unshard(exchange, unit)?;
        let block = Block::new::<D>(
            model,
            &model.units[unit],
            &gathered,
            exchange.gradient_format(unit),
        );
        x_tc = block.forward(device, model, &batch, &x_tc, Some(cache))?;
    }
    let c = model.spec.hidden;
    let mut last_c = device.alloc(c, Purpose::Activation)?;
    device.copy(&x_tc, (ids.len() - 1) * c..ids.len() * c, &mut last_c, 0);
    head::logits(device, model, exchange, &last_c, |first_row, logits_v| {
        let len = device.len(logits_v);
        let place = &mut last_logits[first_row..first_row + len];
        device.read(logits_v, 0..len, place);
    })
}
