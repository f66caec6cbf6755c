//! What a `config.json` means: the model's family and sizes, its units in the
//! order of the forward pass, and every parameter's name, role and shape.
//!
//! A key that changes what the model computes and that this crate does not know
//! is an error naming the key, never a default taken in silence.
//!
//! This crate opens no file, starts no thread and holds no `unsafe`.
#![forbid(unsafe_code)]

mod config;
mod error;
mod keys;
mod model;
mod params;
mod preset;
mod rope;
mod unit;

pub use config::Quantization;
pub use error::SpecError;
pub use model::{Activation, Arrangement, Family, ModelSpec, Positions, SlidingWindow};
pub use preset::Preset;
pub use rope::{RopeKind, RopeSpec};
pub use unit::{Param, Role, Unit, UnitKind};
