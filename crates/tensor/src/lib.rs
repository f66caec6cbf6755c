//! What a tensor is before anyone computes with it: a dtype, a shape, a name,
//! bytes seen as numbers, and memory that was asked for.
//!
//! This crate opens no file, starts no thread and holds no `unsafe`.

mod convert;
mod dtype;
mod ledger;
mod meta;
mod view;

pub use convert::{NotAFloat, narrow, round_stored, widen};
pub use dtype::{Dtype, UnknownDtype};
pub use ledger::{Account, Ledger, LedgerLine, OverBudget, Reservation};
pub use meta::{Shape, ShapeError, TensorMeta};
pub use view::{NotAligned, as_bytes, as_bytes_mut, cast, cast_mut};
