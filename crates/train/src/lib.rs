//! The run: what a rank does from its first byte to its last.
//!
//! The step itself is `model::train_step`; here is what it exchanges with
//! ([`RankWorld`]: the window, the optimizer on this rank's shard), how
//! the shard is filled ([`load`]) and written out (`export`), the loop around
//! the step ([`run`]), and the memory of each phase ([`Meter`]).

mod agree;
mod begin;
mod error;
mod events;
mod export;
mod inference;
mod load;
mod meter;
mod metrics;
mod optimizer;
mod phases;
mod place;
mod planes;
mod processes;
mod rank;
mod rehearse;
mod run;
mod schedule;
mod settings;
mod state;
mod stored;
mod telemetry;
mod world;

pub use error::TrainError;
pub use events::{
    CodesRecord, Event, LayerRecord, LedgerAccount, MatrixRecord, Observer, OperandRecord,
    StepRecord,
};
pub use export::check_finite;
pub(crate) use export::export;
pub use inference::{InferenceModel, Resting, resting_formats, with_model, with_resting};
pub use load::{LoadSettings, Loaded, Origin, ReadWay, UnknownReadWay, load};
pub use meter::{MemorySnapshot, Meter, PhaseRecord};
pub use optimizer::{Optimizer, OptimizerSettings};
pub use processes::{Ranks, Seat, train_rank};
pub use rank::RankOutcome;
pub use rehearse::{LoadReport, RankLoad, Rehearsal, rehearse};
pub use run::{Outcome, TrainJob, check, run};
pub use schedule::LearningRate;
pub use settings::{
    ClipMode, DecayOn, GradientFormat, Recompute, ScheduleKind, Settings, SettingsError,
};
pub use state::{discard_unfinished_checkpoints, whole_checkpoints};
pub use world::{GatheredBucket, RankWorld};
