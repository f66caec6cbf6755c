//! A unit's forward and backward, written out by hand, and the order of a step.
//!
//! A model is a list of units: embedding, blocks, head. Everything here is
//! generic over the [`kernels::Device`] that computes and the [`Exchange`] that
//! knows the other ranks, so the run (`train`) and its plan (`plan`, on a device
//! that only counts) walk through the same lines.
//!
//! Letters of shapes are those of `kernels`: `t` tokens of a micro-batch, `c`
//! width, `f` feed-forward width, `n`/`m` query and key/value heads, `h` head
//! size, `v` vocabulary rows of one bucket.

mod attention;
mod batch;
mod block;
mod embedding;
mod exchange;
mod generate;
mod gradients;
mod head;
mod linear;
mod mlp;
mod norm;
mod operands;
mod step;
mod transformer;

pub use batch::MicroBatch;
pub use block::kept_bytes_per_token;
pub use exchange::{Exchange, Gathered};
pub use generate::{Cache, forward_cached};
pub use gradients::{Clip, GradientError};
pub use operands::OperandCounts;
pub use step::{StepError, StepReport, StepSettings, evaluate, logits, train_step};
pub use transformer::Transformer;
