//! What a person types gives what they see: the program itself, run on small
//! random models.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests fail as tests do, and say what they skip"
)]

mod bad_input;
mod checkpoints;
mod launch;
mod program;
mod ranks;
mod reading;
mod resuming;
mod sources;
mod stopping;
mod training;
mod verifying;
