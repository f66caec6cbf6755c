//! The closed set of fused operations that a causal LM needs, forward and
//! backward, over one trait: [`Device`].
//!
//! Three devices implement it: [`Scalar`], the plain reference; [`Cpu`], the
//! fast one; and [`Meta`], which computes nothing and counts the bytes of
//! scratch and the multiplications, so that a plan is a run without numbers.
//! One test body holds them together (`tests/operations`).
//!
//! Only this crate knows instruction sets.

mod alibi;
mod arena;
mod cpu;
mod device;
pub mod fp8;
mod meta;
mod scalar;
mod shapes;
mod weight;
mod workspace;

pub use alibi::alibi_slopes;
pub use arena::{Arena, ArenaFull, Buffer, Purpose, PurposePeak};
pub use cpu::Cpu;
pub use device::{
    AdamW, AttentionShape, Device, Gelu, IGNORED, Master, Moments, RmsNorm, Rope, RunningMax,
    ScoreBias,
};
pub use meta::Meta;
pub use scalar::{Numbers, Scalar};
pub use weight::{Segment, Weight, WeightFormat, join_master, split_master};
