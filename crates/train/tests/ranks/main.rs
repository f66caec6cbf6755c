//! Whole runs of small random models, by any number of ranks.
//!
//! `worlds` says that N ranks train as one does, each with its own rows and its own
//! bytes; `families` says so of other models than Llama; `memory` that a rank holds what was planned; `batches` how rows
//! become steps; `clipping` what is done to gradients; `decay` which weights decay; `export` what is written
//! without training; `failures` what is not written; `resume` that a run goes on as if it had never stopped.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in a test a failure may panic"
)]

mod batches;
mod clipping;
mod decay;
mod eight_bits;
mod export;
mod failures;
mod families;
mod fixture;
mod frozen;
mod memory;
mod resume;
mod telemetry;
mod worlds;
