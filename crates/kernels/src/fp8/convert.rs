//! bf16 to nested masters and back, without loss: what loading, converting in
//! place and exporting do.

use std::ops::Range;

use fp8::bf16::{round_nearest, widen};
use fp8::{
    Encoded, Format, Fp8Error, Grid, Headroom, NestedPlanes, ScaleInv, TILE, pairs_to_planes,
    refuse_not_finite,
};
use rayon::prelude::*;

use super::quantize::strip_amax;
use super::{GROUP, STRIP, load, master, store, strips};
use crate::cpu::simd;

/// Two bytes of a bf16.
type Half = [u8; 2];

/// Encodes bf16 numbers, little-endian, row by row; a tile that would lose one is
/// kept plain.
pub fn encode_bf16(
    halves: &[u8],
    planes: NestedPlanes<&mut [u8]>,
    headroom: Headroom,
) -> Result<Encoded, Fp8Error> {
    planes.check()?;
    let cols = planes.cols;
    assert_eq!(
        halves.len(),
        2 * planes.grid().len(),
        "bytes of the numbers"
    );
    let halves = halves.as_chunks().0;
    refuse_all(halves, cols)?;
    let row_tiles = planes.into_row_tiles().into_par_iter();
    let row_tiles = row_tiles.zip(halves.par_chunks(TILE * cols));
    let encoded = row_tiles.map_init(
        || vec![0.0; TILE * STRIP.min(cols)],
        |scratch, (mut planes, halves)| encode_row_tile(halves, &mut planes, headroom, scratch),
    );
    Ok(encoded.reduce(Encoded::default, sum))
}

/// Converts bf16 numbers to an N16 where they lie: all codes, then all residuals.
///
/// Besides the bytes there is a row tile of scratch a thread. Nothing is written
/// if a number is not finite.
pub fn encode_bf16_in_place(
    bytes: &mut [u8],
    cols: usize,
    scales: &mut [u8],
    headroom: Headroom,
) -> Result<Encoded, Fp8Error> {
    refuse_all(bytes.as_chunks().0, cols)?;
    let row_tiles = bytes.par_chunks_mut(2 * TILE * cols);
    let row_tiles = row_tiles.zip(scales.par_chunks_mut(cols.div_ceil(TILE)));
    let scratch = || (vec![0.0; TILE * STRIP.min(cols)], Vec::new());
    let encoded = row_tiles.map_init(scratch, |(scratch, source), (row_tile, scales)| {
        source.clear();
        source.extend_from_slice(row_tile);
        let (codes, residual) = row_tile.split_at_mut(source.len() / 2);
        let mut planes = NestedPlanes {
            cols,
            codes,
            residual,
            low: None,
            scales,
        };
        encode_row_tile(source.as_chunks().0, &mut planes, headroom, scratch)
    });
    let encoded = encoded.reduce(Encoded::default, sum);
    pairs_to_planes(bytes, cols);
    Ok(encoded)
}

fn sum(mut a: Encoded, b: Encoded) -> Encoded {
    a.add(b);
    a
}

/// Refuses the first number that is not finite.
fn refuse_all(halves: &[Half], cols: usize) -> Result<(), Fp8Error> {
    let is_finite = |&half: &Half| u16::from_le_bytes(half) & 0x7F80 != 0x7F80;
    if halves
        .par_chunks(TILE * cols)
        .all(|halves| halves.iter().all(is_finite))
    {
        return Ok(());
    }
    let numbers = halves.iter().map(|&half| widen(u16::from_le_bytes(half)));
    refuse_not_finite(numbers.enumerate(), cols)
}

fn encode_row_tile(
    halves: &[Half],
    planes: &mut NestedPlanes<&mut [u8]>,
    headroom: Headroom,
    scratch: &mut [f32],
) -> Encoded {
    let mut encoded = Encoded::default();
    for strip in strips(planes.cols) {
        let missed = simd(
            #[inline(always)]
            || encode_strip(halves, strip.clone(), planes, headroom, scratch),
        );
        let tiles = planes.grid().tiles().skip(strip.start / TILE);
        for (tile, num_missed) in tiles.zip(&missed[..strip.len().div_ceil(TILE)]) {
            encoded.num_tiles += 1;
            if *num_missed > 0 {
                encoded.num_plain += 1;
                encoded.num_missed += num_missed;
                let halves = tile.gather(halves, planes.cols).into_iter();
                planes.keep_plain(&tile, &halves.map(u16::from_le_bytes).collect::<Vec<_>>());
            }
        }
    }
    encoded
}

/// Encodes some columns of a row tile; how many elements of each tile do not come
/// back.
#[inline(always)]
fn encode_strip(
    halves: &[Half],
    strip: Range<usize>,
    planes: &mut NestedPlanes<&mut [u8]>,
    headroom: Headroom,
    scratch: &mut [f32],
) -> [usize; STRIP / TILE] {
    let (cols, width) = (planes.cols, strip.len());
    let first_tile = strip.start / TILE;
    let scratch = &mut scratch[..halves.len() / cols * width];
    for (halves, wide) in halves
        .chunks_exact(cols)
        .zip(scratch.chunks_exact_mut(width))
    {
        for (wide, &half) in wide.iter_mut().zip(&halves[strip.clone()]) {
            *wide = widen(u16::from_le_bytes(half));
        }
    }
    let largest = strip_amax(scratch, width, 0..width);
    let num_tiles = width.div_ceil(TILE);
    let scales = &mut planes.scales[first_tile..first_tile + num_tiles];
    for (scale, amax) in scales.iter_mut().zip(largest) {
        *scale = ScaleInv::of_amax(amax, Format::E4M3, headroom).to_e8m0();
    }
    let mut missed = [0; STRIP / TILE];
    for (row, wide) in scratch.chunks_exact(width).enumerate() {
        for (index, wide) in wide.chunks(GROUP).enumerate() {
            let col = strip.start + index * GROUP;
            let scale_inv = planes.scale_inv(col / TILE);
            let at = row * cols + col;
            let (span, wide) = (at..at + wide.len(), load(wide));
            master::encode_group(planes, span.clone(), &wide, scale_inv.scale(), None);
            let back = master::load_group(planes, span, scale_inv.to_f32());
            let mut num_missed = 0;
            for i in 0..GROUP {
                let is_missed = u32::from(round_nearest(back[i])) << 16 != wide[i].to_bits();
                num_missed += u32::from(is_missed);
            }
            missed[col / TILE - first_tile] += num_missed as usize;
        }
    }
    missed
}

/// Decodes masters to the nearest bf16, little-endian; plain tiles are what they
/// were.
pub fn decode_bf16(planes: &NestedPlanes<&[u8]>, halves: &mut [u8]) {
    planes.check().expect("planes fit one another");
    let Grid { cols, .. } = planes.grid();
    assert_eq!(halves.len(), 2 * planes.codes.len(), "bytes of the numbers");
    let row_tiles = halves.par_chunks_mut(2 * TILE * cols).enumerate();
    row_tiles.for_each(|(row_tile, halves)| {
        let halves = halves.as_chunks_mut().0;
        simd(
            #[inline(always)]
            || decode_row_tile(planes, row_tile, halves),
        );
    });
}

#[inline(always)]
fn decode_row_tile(planes: &NestedPlanes<&[u8]>, row_tile: usize, out: &mut [Half]) {
    let cols = planes.cols;
    let first = row_tile * TILE * cols;
    let first_tile = row_tile * cols.div_ceil(TILE);
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        for (group, out) in out.chunks_mut(GROUP).enumerate() {
            let at = first + row * cols + group * GROUP;
            let span = at..at + out.len();
            let scale_inv = planes.scale_inv(first_tile + group * GROUP / TILE);
            let mut halves = [[0; 2]; GROUP];
            if scale_inv.is_nan() {
                let (high, low) = (
                    load(&planes.codes[span.clone()]),
                    load(&planes.residual[span]),
                );
                for i in 0..GROUP {
                    halves[i] = [low[i], high[i]];
                }
            } else {
                let w = master::load_group(planes, span, scale_inv.to_f32());
                for i in 0..GROUP {
                    halves[i] = round_nearest(w[i]).to_le_bytes();
                }
            }
            store(&halves, out);
        }
    }
}
