//! Whole steps of tiny models, through [`model::train_step`].
//!
//! `golden` holds loss, logits and every gradient against numbers from `PyTorch`,
//! on all devices; `finite_differences` holds the gradients against the loss
//! itself; `clipping` looks at the factors that updates are given, and
//! `failures` at steps that must not be taken. All of them see a step through the
//! one-rank [`world::World`], which records gradients and updates nothing.
#![expect(clippy::unwrap_used, reason = "in a test a failure may panic")]

mod case;
mod clipping;
mod failures;
mod finite_differences;
mod golden;
mod world;
