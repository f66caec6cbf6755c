//! The way of a gradient: `reduce_scatter`, clip, update, dropped.
//!
//! A bucket's gradient leaves its unit as soon as it is made. Only two kinds of
//! shards outlive their bucket: a tied table's, from the head to the embedding,
//! and all of them under [`Clip::Exact`], until the norm is known.

use std::collections::BTreeMap;

use kernels::{ArenaFull, Device, Purpose};

use crate::{Exchange, StepSettings};

/// How gradients are kept to a norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Clip {
    /// Not at all.
    Off,
    /// By the norm of this step; gradient shards are kept until it is known.
    Exact {
        /// The largest norm that is left as it is.
        max_norm: f64,
    },
    /// By the larger of the previous step's norm and that of the buckets already
    /// done in this step; keeps nothing.
    Previous {
        /// The largest norm that is left as it is.
        max_norm: f64,
        /// The norm of the previous step; 0 before the first.
        previous_norm: f64,
    },
}

/// A gradient that cannot be used, or a failed exchange.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GradientError<E> {
    /// A NaN or an infinity.
    #[error("the gradient of {unit} is not finite (its sum of squares is {sum_of_squares})")]
    NotFinite {
        /// The unit's name.
        unit: String,
        /// NaN or infinity.
        sum_of_squares: f64,
    },
    /// Peers or memory.
    #[error(transparent)]
    Exchange(E),
}

impl<E: From<ArenaFull>> From<ArenaFull> for GradientError<E> {
    fn from(full: ArenaFull) -> Self {
        Self::Exchange(full.into())
    }
}

/// Whether more gradient of the same bucket follows in this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contribution {
    /// The head's part of a tied table: kept for the embedding's.
    First,
    /// All there is.
    Last,
}

/// The gradients of one step, on their way.
pub(crate) struct Gradients<'a, D: Device, X> {
    pub(crate) device: &'a D,
    pub(crate) exchange: &'a mut X,
    settings: StepSettings,
    sum_of_squares: f64,
    tied: BTreeMap<usize, D::Buffer>,
    kept: Vec<(usize, D::Buffer)>,
    unit_names: Vec<&'a str>,
    /// Units with a gradient that was not used.
    not_finite: Vec<String>,
}

impl<'a, D: Device, X: Exchange<D>> Gradients<'a, D, X> {
    pub(crate) fn new(
        device: &'a D,
        exchange: &'a mut X,
        settings: StepSettings,
        unit_names: Vec<&'a str>,
    ) -> Self {
        Self {
            device,
            exchange,
            settings,
            sum_of_squares: 0.0,
            tied: BTreeMap::new(),
            kept: Vec::new(),
            unit_names,
            not_finite: Vec::new(),
        }
    }

    /// Sums a bucket's gradient over the ranks and uses this rank's run of it.
    pub(crate) fn finish(
        &mut self,
        bucket: usize,
        grad: Option<D::Buffer>,
        contribution: Contribution,
    ) -> Result<(), GradientError<X::Error>> {
        let purpose = match contribution {
            Contribution::First => Purpose::TiedGradient,
            Contribution::Last => Purpose::GradientShard,
        };
        let mut grad = grad;
        if let Some(grad) = &mut grad {
            self.clear_frozen(bucket, grad);
        }
        let mut shard = self.device.alloc(self.exchange.run_len(bucket), purpose)?;
        self.exchange
            .reduce_scatter(bucket, grad.as_ref(), &mut shard)
            .map_err(GradientError::Exchange)?;
        drop(grad);
        if contribution == Contribution::First {
            self.tied.insert(bucket, shard);
            return Ok(());
        }
        if let Some(mut first) = self.tied.remove(&bucket) {
            self.device.add(&shard, &mut first, 0);
            shard = first;
        }
        if !self.measure(bucket, &shard)? {
            return Ok(());
        }
        if let Some(factor) = self.factor() {
            let updated = self.exchange.update(bucket, &shard, factor);
            return updated.map_err(GradientError::Exchange);
        }
        self.kept.push((bucket, shard));
        Ok(())
    }

    /// A vector that is not trained takes no part in the norm either.
    fn clear_frozen(&self, bucket: usize, grad: &mut D::Buffer) {
        let slices = &self.exchange.sharding().buckets[bucket].slices;
        for slice in slices.iter().filter(|slice| slice.is_frozen) {
            let zeros = vec![0.0; slice.num_elements()];
            self.device.write(&zeros, grad, slice.at);
        }
    }

    /// Updates what was kept, and gives the norm of the whole step's gradient, with the
    /// units that took no part.
    pub(crate) fn close(mut self) -> Result<(f64, Vec<String>), GradientError<X::Error>> {
        let norm = self.sum_of_squares.sqrt();
        if let Clip::Exact { max_norm } = self.settings.clip {
            let factor = shrink(max_norm, norm);
            for (bucket, shard) in std::mem::take(&mut self.kept) {
                self.exchange
                    .update(bucket, &shard, factor)
                    .map_err(GradientError::Exchange)?;
            }
        }
        Ok((norm, self.not_finite))
    }

    /// Adds a bucket to the norm, the same number on every rank; whether it is one.
    fn measure(
        &mut self,
        bucket: usize,
        shard: &D::Buffer,
    ) -> Result<bool, GradientError<X::Error>> {
        let mut sum = [self.device.sum_of_squares(shard)];
        self.exchange
            .all_reduce(&mut sum, "gradient norm")
            .map_err(GradientError::Exchange)?;
        if !sum[0].is_finite() {
            let unit = self.exchange.sharding().buckets[bucket].unit;
            let unit = self.unit_names[unit].to_owned();
            if self.settings.allows_nan {
                if self.not_finite.last() != Some(&unit) {
                    self.not_finite.push(unit);
                }
                return Ok(false);
            }
            return Err(GradientError::NotFinite {
                unit,
                sum_of_squares: sum[0],
            });
        }
        self.sum_of_squares += sum[0];
        Ok(true)
    }

    /// The clipping factor, if it is known before the last bucket.
    fn factor(&self) -> Option<f32> {
        match self.settings.clip {
            Clip::Off => Some(1.0),
            Clip::Exact { .. } => None,
            Clip::Previous {
                max_norm,
                previous_norm,
            } => Some(shrink(
                max_norm,
                previous_norm.max(self.sum_of_squares.sqrt()),
            )),
        }
    }
}

/// `min(1, max_norm / norm)`, to 16 bits.
///
/// The last bits of a norm depend on the order of its sum, and so on the number of
/// ranks; they would reach every weight.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a factor multiplies f32 gradients"
)]
fn shrink(max_norm: f64, norm: f64) -> f32 {
    const HALF: u32 = 0x80;
    if norm <= max_norm {
        return 1.0;
    }
    let factor = (max_norm / norm) as f32;
    f32::from_bits((factor.to_bits() + HALF) & !0xFF)
}
