//! `AdamW` on this rank's shard: residual planes, moments, decay.

use kernels::{AdamW, Cpu, Device, Master, Moments, WeightFormat};
use plan::{Formats, SlotLayout};
use shard::Sharding;
use tensor::{Account, Ledger, OverBudget, Reservation, as_bytes_mut};

use crate::{DecayOn, Settings};

/// The constants of `AdamW` for a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerSettings {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Which parameters decay.
    pub weight_decay_on: DecayOn,
}

impl From<&Settings> for OptimizerSettings {
    fn from(settings: &Settings) -> Self {
        Self {
            beta1: settings.beta1,
            beta2: settings.beta2,
            eps: settings.eps,
            weight_decay: settings.weight_decay,
            weight_decay_on: settings.weight_decay_on,
        }
    }
}

/// The private state of a rank's shard.
#[derive(Debug)]
pub struct Optimizer {
    settings: OptimizerSettings,
    buckets: Vec<Vec<PartState>>,
    step: u64,
    lr: f64,
    _residuals: Reservation,
    _moments: Reservation,
}

/// The private state of one part of a run.
#[derive(Debug)]
struct PartState {
    is_vector: bool,
    at: usize,
    num_elements: usize,
    /// The master's low bits; empty where the weight is f32.
    residual: Vec<i16>,
    m: Vec<f32>,
    v: Vec<f32>,
}

impl Optimizer {
    /// Moments of zero, residuals of zero, for every part of the rank's shard.
    pub fn new(
        sharding: &Sharding,
        rank: usize,
        formats: &Formats,
        settings: OptimizerSettings,
        ledger: &Ledger,
    ) -> Result<Self, OverBudget> {
        let (mut residual_bytes, mut moment_bytes) = (0, 0);
        for bucket in &sharding.buckets {
            for part in &bucket.runs[rank].parts {
                let tensor = bucket.slices[part.slice].tensor;
                if formats.of(bucket.unit, tensor) == WeightFormat::Bf16 {
                    residual_bytes += 2 * part.num_elements as u64;
                }
                moment_bytes += 8 * part.num_elements as u64;
            }
        }
        let residuals = ledger.reserve(Account::Residuals, residual_bytes)?;
        let moments = ledger.reserve(Account::Moments, moment_bytes)?;
        let buckets = sharding.buckets.iter().map(|bucket| {
            let parts = bucket.runs[rank].parts.iter();
            let state = parts.map(|part| {
                let slice = &bucket.slices[part.slice];
                let residual_len = match formats.of(bucket.unit, slice.tensor) {
                    WeightFormat::F32 => 0,
                    WeightFormat::Bf16 => part.num_elements,
                };
                PartState {
                    is_vector: slice.is_vector,
                    at: part.at,
                    num_elements: part.num_elements,
                    residual: vec![0; residual_len],
                    m: vec![0.0; part.num_elements],
                    v: vec![0.0; part.num_elements],
                }
            });
            state.collect()
        });
        Ok(Self {
            settings,
            buckets: buckets.collect(),
            step: 0,
            lr: 0.0,
            _residuals: residuals,
            _moments: moments,
        })
    }

    /// Begins the step of the given number, from 1, at the given rate.
    pub fn begin_step(&mut self, step: u64, lr: f64) {
        self.step = step;
        self.lr = lr;
    }

    /// The low bits of a part's master; empty where the weight is f32.
    pub fn residual(&self, bucket: usize, part: usize) -> &[i16] {
        &self.buckets[bucket][part].residual
    }

    /// The low bits of all masters by bucket and part, to be filled by a load.
    pub fn residuals_mut(&mut self) -> impl Iterator<Item = Vec<&mut [i16]>> {
        let buckets = self.buckets.iter_mut();
        buckets.map(|parts| {
            let parts = parts.iter_mut();
            parts.map(|part| &mut part.residual[..]).collect()
        })
    }

    /// Updates the rank's run of a bucket, whose planes lie in `slot`.
    pub fn update(
        &mut self,
        device: &Cpu,
        bucket: usize,
        layout: &SlotLayout,
        slot: &mut [u8],
        shard: &<Cpu as Device>::Buffer,
        grad_scale: f32,
    ) {
        let template = self.adamw(grad_scale);
        let settings = &self.settings;
        for (state, place) in self.buckets[bucket].iter_mut().zip(&layout.parts) {
            let decays = !state.is_vector || settings.weight_decay_on == DecayOn::All;
            let update = AdamW {
                weight_decay: if decays { template.weight_decay } else { 0.0 },
                ..template
            };
            let plane = &mut slot[place.clone()];
            debug_assert!(state.at + state.num_elements <= device.len(shard));
            let master = if state.residual.is_empty() {
                Master::F32(plane)
            } else {
                Master::Bf16 {
                    high: plane,
                    low: as_bytes_mut(&mut state.residual),
                }
            };
            let moments = Moments {
                m: as_bytes_mut(&mut state.m),
                v: as_bytes_mut(&mut state.v),
            };
            device.adamw(master, moments, shard, state.at, update);
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the update computes in f32"
    )]
    fn adamw(&self, grad_scale: f32) -> AdamW {
        AdamW {
            lr: self.lr as f32,
            beta1: self.settings.beta1 as f32,
            beta2: self.settings.beta2 as f32,
            eps: self.settings.eps as f32,
            weight_decay: self.settings.weight_decay as f32,
            step: self.step,
            grad_scale,
        }
    }
}
