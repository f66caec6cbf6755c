//! What every rank will hold and peak at, before a byte of data is read.
//!
//! The plan is the run: resident bytes follow from the sharding and the recipe,
//! scratch from walking the very step of `model` on a device that only counts
//! ([`kernels::Meta`]). `train` sizes its arena by it and executes it.

mod dry_run;
mod formats;
mod hash;
mod job;
mod precision;
mod recipe;
mod storage;

pub use dry_run::{ArenaPlan, DryRun, Work};
pub use formats::{Formats, SlotLayout, choices};
pub use hash::PlanHash;
pub use job::{Job, Plan, RankPlan, held_logits, kept_blocks, shard_model};
pub use precision::{
    BadPattern, Choice, Compute, Kept, Patterns, Precision, UnknownCompute, resting_format,
};
pub use recipe::{Recipe, UnknownRecipe};
pub use storage::{MomentFormat, Residual, Storage};
