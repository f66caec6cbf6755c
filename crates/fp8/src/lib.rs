//! How a number becomes codes, tiles, a nested master, an 8-bit moment.
//!
//! Everything stands here once, element by element, in the plainest form that
//! has no branches: the fast versions in `kernels` are loops over these same
//! functions, compiled for wider vectors, so their bits are these bits.
//!
//! Begin reading at [`Format`] (a number as 8 bits), then [`ScaleInv`] (the
//! power of two of a block), [`nested`] (a code and what it leaves over) and
//! [`NestedPlanes`] (a whole master). Reasons are in decision 0012.
//!
//! This crate opens no file, starts no thread and holds no `unsafe`.
#![expect(
    clippy::inline_always,
    reason = "only what is inlined into a kernel is compiled for its vectors"
)]

mod e8m0;
mod error;
mod format;
mod grid;
mod master;
mod quantize;
mod scale;

pub mod bf16;
pub mod moments;
pub mod nested;
pub mod random;

pub use e8m0::{decode_e8m0, encode_e8m0};
pub use error::Fp8Error;
pub use format::{Format, decode_e4m3, encode_e4m3, encode_e5m2};
pub use grid::{Grid, TILE, Tile};
pub use master::{
    Encoded, NestedPlanes, Rounding, encode_in_place, pairs_to_planes, refuse_not_finite,
};
pub use moments::MomentPlanes;
pub use nested::Nesting;
pub use quantize::{Quantized, operand_factors, quantize_rows, quantize_tiles, round_rows};
pub use random::Random;
pub use scale::{Headroom, ScaleInv, amax};
