//! Codes, nested masters and 8-bit moments at the speed of memory.
//!
//! What a number becomes is said in the crate `fp8`, element by element and
//! without branches; here are the loops over it, compiled for the widest vectors
//! of the processor, so both give the same bits. A 128 x 128 tile is worked on
//! while it lies in the caches of one thread.
//!
//! These are functions on bytes of the host, for devices to build on. Lengths that
//! do not fit together are bugs of the caller and panic.
#![expect(
    clippy::inline_always,
    reason = "code is vectorized only where it is inlined into the run-time dispatch"
)]
#![expect(
    clippy::missing_panics_doc,
    clippy::needless_range_loop,
    reason = "panics are said once, above; lanes of several arrays go together"
)]

use std::ops::Range;

use fp8::TILE;

mod convert;
mod decode;
mod master;
mod moments;
mod quantize;
mod update;

pub use convert::{decode_bf16, encode_bf16, encode_bf16_in_place};
pub use decode::{TiledCodes, decode_rows};
pub(crate) use master::decode_nested_panel;
pub use master::{decode_nested, encode_nested};
pub use moments::{decode_moments, encode_moments};
pub use quantize::{RowCounts, quantize_rows, quantize_tiles, round_rows};
pub use update::{Update, adamw_bf16, adamw_bf16_plus8, adamw_nested};

/// Elements that are worked on at once: a group of the moments, half a tile's row.
const GROUP: usize = fp8::moments::GROUP;

/// Columns of a row tile that are worked on together, row by row: as few as fit the
/// second cache, as many as memory likes to read in a row.
const STRIP: usize = 4 * TILE;

/// The columns of each strip.
#[inline(always)]
fn strips(cols: usize) -> impl Iterator<Item = Range<usize>> {
    let strips = (0..cols).step_by(STRIP);
    strips.map(move |first| first..cols.min(first + STRIP))
}

/// The elements of a group; what is missing of the last of a row is 0.
#[inline(always)]
fn load<T: Copy + Default>(elements: &[T]) -> [T; GROUP] {
    match elements.try_into() {
        Ok(whole) => whole,
        Err(_) => load_rest(elements),
    }
}

/// Writes as many elements of a group as there is room for.
#[inline(always)]
fn store<T: Copy>(group: &[T; GROUP], elements: &mut [T]) {
    match <&mut [T; GROUP]>::try_from(&mut *elements) {
        Ok(whole) => *whole = *group,
        Err(_) => store_rest(group, elements),
    }
}

/// Apart from [`load`]: together they would be one copy of any length, and slow.
#[cold]
#[inline(never)]
fn load_rest<T: Copy + Default>(elements: &[T]) -> [T; GROUP] {
    let mut group = [T::default(); GROUP];
    group[..elements.len()].copy_from_slice(elements);
    group
}

#[cold]
#[inline(never)]
fn store_rest<T: Copy>(group: &[T; GROUP], elements: &mut [T]) {
    let len = elements.len();
    elements.copy_from_slice(&group[..len]);
}
