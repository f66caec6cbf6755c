//! `AdamW` on this rank's shard: the rest of each master, moments, decay.

use fp8::{Encoded, Headroom, MomentPlanes, Random};
use kernels::fp8::Update;
use kernels::{AdamW, Cpu, Device, Moments};
use plan::{Formats, MomentFormat, SlotLayout, Storage};
use shard::Sharding;
use tensor::{Account, Ledger, OverBudget, Reservation, as_bytes, as_bytes_mut};

use crate::planes::Planes;
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
    /// Seed of the bits that round stochastically.
    pub seed: u64,
}

impl From<&Settings> for OptimizerSettings {
    fn from(settings: &Settings) -> Self {
        Self {
            beta1: settings.beta1,
            beta2: settings.beta2,
            eps: settings.eps,
            weight_decay: settings.weight_decay,
            weight_decay_on: settings.weight_decay_on,
            seed: settings.seed,
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
    storage: Storage,
    is_vector: bool,
    /// The number of the tensor in the model.
    tensor: u32,
    /// The first row in the tensor.
    first_row: usize,
    rows: usize,
    cols: usize,
    /// The first element in the rank's run.
    at: usize,
    rest: Rest,
    moments: MomentState,
}

/// What a master has beyond the plane that is gathered.
#[derive(Debug)]
struct Rest {
    /// Aligned for 16-bit numbers.
    words: Vec<u16>,
    num_bytes: usize,
}

/// The moments of one part.
#[derive(Debug)]
enum MomentState {
    None,
    F32 { m: Vec<f32>, v: Vec<f32> },
    Eight(MomentPlanes<Vec<u8>>),
}

impl Rest {
    fn zeros(num_bytes: usize) -> Self {
        Self {
            words: vec![0; num_bytes.div_ceil(2)],
            num_bytes,
        }
    }

    fn bytes(&self) -> &[u8] {
        &as_bytes(&self.words)[..self.num_bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut as_bytes_mut(&mut self.words)[..self.num_bytes]
    }
}

impl MomentState {
    fn zeros(format: MomentFormat, rows: usize, cols: usize) -> Self {
        match format {
            MomentFormat::None => Self::None,
            MomentFormat::F32 => Self::F32 {
                m: vec![0.0; rows * cols],
                v: vec![0.0; rows * cols],
            },
            MomentFormat::Eight => Self::Eight(MomentPlanes::zeros(rows, cols)),
        }
    }

    fn as_mut(&mut self) -> Option<Moments<&mut [u8]>> {
        match self {
            Self::None => None,
            Self::F32 { m, v } => Some(Moments::F32 {
                m: as_bytes_mut(m),
                v: as_bytes_mut(v),
            }),
            Self::Eight(planes) => Some(Moments::Eight(planes.as_mut())),
        }
    }
}

impl PartState {
    fn planes<'a>(&'a mut self, plane: &'a mut [u8]) -> Planes<&'a mut [u8]> {
        let rest = self.rest.bytes_mut();
        Planes::new(self.storage, self.rows, self.cols, plane, rest)
    }
}

impl Optimizer {
    /// Moments of zero, rests of zero, for every part of the rank's shard.
    #[expect(
        clippy::missing_panics_doc,
        reason = "a model has fewer than 2^32 tensors"
    )]
    pub fn new(
        sharding: &Sharding,
        rank: usize,
        formats: &Formats,
        settings: OptimizerSettings,
        ledger: &Ledger,
    ) -> Result<Self, OverBudget> {
        let (mut rest_bytes, mut moment_bytes) = (0, 0);
        for bucket in &sharding.buckets {
            for part in &bucket.runs[rank].parts {
                let slice = &bucket.slices[part.slice];
                let storage = formats.storage(bucket.unit, slice.tensor);
                rest_bytes += storage.residual_bytes(part.rows.len(), slice.cols) as u64;
                moment_bytes += storage.moment_bytes(part.rows.len(), slice.cols) as u64;
            }
        }
        let residuals = ledger.reserve(Account::Residuals, rest_bytes)?;
        let moments = ledger.reserve(Account::Moments, moment_bytes)?;
        let buckets = sharding.buckets.iter().map(|bucket| {
            let parts = bucket.runs[rank].parts.iter();
            let state = parts.map(|part| {
                let slice = &bucket.slices[part.slice];
                let storage = formats.storage(bucket.unit, slice.tensor);
                let (rows, cols) = (part.rows.len(), slice.cols);
                let tensor = sharding.tensor_number(bucket.unit, slice.tensor);
                PartState {
                    storage,
                    is_vector: slice.is_vector,
                    tensor: u32::try_from(tensor).expect("a model has fewer tensors"),
                    first_row: part.rows.start,
                    rows,
                    cols,
                    at: part.at,
                    rest: Rest::zeros(storage.residual_bytes(rows, cols)),
                    moments: MomentState::zeros(storage.moments, rows, cols),
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

    /// What a part's master has beyond the plane that is gathered.
    pub fn rest(&self, bucket: usize, part: usize) -> &[u8] {
        self.buckets[bucket][part].rest.bytes()
    }

    /// All of a part's state: the rest of its master, then the planes of its moments.
    pub(crate) fn state(&self, bucket: usize, part: usize) -> Vec<&[u8]> {
        let part = &self.buckets[bucket][part];
        let mut planes = vec![part.rest.bytes()];
        match &part.moments {
            MomentState::None => {}
            MomentState::F32 { m, v } => planes.extend([as_bytes(m), as_bytes(v)]),
            MomentState::Eight(moments) => {
                let MomentPlanes {
                    m,
                    v,
                    m_scales,
                    v_scales,
                    ..
                } = moments.as_ref();
                planes.extend([m, v, m_scales, v_scales]);
            }
        }
        planes
    }

    /// The same, to be filled.
    pub(crate) fn state_mut(&mut self, bucket: usize, part: usize) -> Vec<&mut [u8]> {
        let part = &mut self.buckets[bucket][part];
        let mut planes = vec![part.rest.bytes_mut()];
        match &mut part.moments {
            MomentState::None => {}
            MomentState::F32 { m, v } => planes.extend([as_bytes_mut(m), as_bytes_mut(v)]),
            MomentState::Eight(moments) => {
                let MomentPlanes {
                    m,
                    v,
                    m_scales,
                    v_scales,
                    ..
                } = moments.as_mut();
                planes.extend([m, v, m_scales, v_scales]);
            }
        }
        planes
    }

    /// The rests of all masters by bucket and part, to be filled by a load.
    pub fn rests_mut(&mut self) -> impl Iterator<Item = Vec<&mut [u8]>> {
        let buckets = self.buckets.iter_mut();
        buckets.map(|parts| {
            let parts = parts.iter_mut();
            parts.map(|part| part.rest.bytes_mut()).collect()
        })
    }

    /// Encodes what a load kept as plain bf16 in the rank's run of a bucket, whose
    /// planes lie in `slot`.
    pub fn clear_plain(&mut self, bucket: usize, layout: &SlotLayout, slot: &mut [u8]) -> Encoded {
        let mut cleared = Encoded::default();
        for (state, place) in self.buckets[bucket].iter_mut().zip(&layout.parts) {
            if let Planes::Nested(mut planes) = state.planes(&mut slot[place.clone()]) {
                cleared.add(planes.clear_plain(Headroom::Binade));
            }
        }
        cleared
    }

    /// Updates the rank's run of a bucket, whose planes lie in `slot`.
    #[expect(clippy::missing_panics_doc, reason = "what is trained has a master")]
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
        let settings = self.settings;
        for (state, place) in self.buckets[bucket].iter_mut().zip(&layout.parts) {
            let Some(moments) = state.moments.as_mut() else {
                continue;
            };
            let decays = !state.is_vector || settings.weight_decay_on == DecayOn::All;
            let update = Update {
                adamw: AdamW {
                    weight_decay: if decays { template.weight_decay } else { 0.0 },
                    ..template
                },
                random: Random {
                    seed: settings.seed,
                    step: self.step,
                    parameter: state.tensor,
                },
                first_row: state.first_row,
            };
            debug_assert!(state.at + state.rows * state.cols <= device.len(shard));
            let (plane, rest) = (&mut slot[place.clone()], state.rest.bytes_mut());
            let planes = Planes::new(state.storage, state.rows, state.cols, plane, rest);
            let master = planes.into_master().expect("what is trained has a master");
            device.adamw(master, moments, shard, state.at, &update);
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
