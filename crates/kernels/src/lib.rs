//! The closed set of fused operations that a causal LM needs, forward and
//! backward, over one trait: [`Device`].
//!
//! Three devices implement it: [`Scalar`], the plain reference; [`Cpu`], the
//! fast one; and [`Meta`], which computes nothing and counts the bytes of
//! scratch and the multiplications, so that a plan is a run without numbers.
//! One test body holds them together (`tests/operations.rs`).
//!
//! Only this crate knows instruction sets.

mod arena;
mod cpu;
mod device;
mod meta;
mod scalar;
mod weight;
mod workspace;

pub use arena::{Arena, ArenaFull, Purpose, PurposePeak};
pub use cpu::Cpu;
pub use device::{AdamW, AttentionShape, Device, IGNORED, Master, Moments, Rope, RunningMax};
pub use meta::Meta;
pub use scalar::Scalar;
pub use weight::{Segment, Weight, WeightFormat};
