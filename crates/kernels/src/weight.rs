//! A whole weight as a list of row segments.
//!
//! Ranks hold contiguous runs of rows. An unsharded weight is therefore the list
//! of the peers' runs, read where they lie; nothing is copied together.

use std::ops::Range;

use fp8::{Format, Grid, NestedPlanes, Nesting};
use half::bf16;

use crate::fp8::TiledCodes;

/// How a weight's elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// f32, 4 bytes an element.
    F32,
    /// The upper half of an f32, 2 bytes an element.
    Bf16,
    /// E4M3 codes, a byte an element; then the `scale_inv` of each 128 x 128 tile.
    /// What is multiplied by it is rounded to E4M3 first.
    E4m3,
    /// A nested master: codes, then the residuals of each plane, then scales. It is
    /// multiplied in f32.
    Nested(Nesting),
}

impl WeightFormat {
    /// Bytes of one element, scales of tiles not counted.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
            Self::E4m3 => 1,
            Self::Nested(nesting) => nesting.size_bytes(),
        }
    }

    /// Whether elements share a scale with their tile, so that only whole row tiles
    /// can be stored.
    pub fn is_tiled(self) -> bool {
        match self {
            Self::F32 | Self::Bf16 => false,
            Self::E4m3 | Self::Nested(_) => true,
        }
    }

    /// Bytes of consecutive rows; of whole row tiles, where elements are tiled.
    pub fn num_bytes(self, rows: usize, cols: usize) -> usize {
        let grid = Grid { rows, cols };
        let scales = if self.is_tiled() { grid.num_tiles() } else { 0 };
        grid.len() * self.size_bytes() + scales
    }

    /// The nearest number of this format.
    pub fn nearest(self, x: f64) -> f32 {
        match self {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "rounding to nearest is what is asked for"
            )]
            Self::F32 => x as f32,
            Self::Bf16 => bf16::from_f64(x).to_f32(),
            Self::E4m3 | Self::Nested(_) => unreachable!("a number alone has no tile"),
        }
    }

    /// The elements of rows of `cols`, in order.
    ///
    /// For a reference: one element at a time, any alignment.
    fn decode(self, bytes: &[u8], rows: usize, cols: usize) -> Vec<f32> {
        match self {
            Self::F32 => {
                let elements = bytes.as_chunks().0.iter();
                elements.map(|&bytes| f32::from_le_bytes(bytes)).collect()
            }
            Self::Bf16 => {
                let elements = bytes.as_chunks().0.iter();
                let halves = elements.map(|&bytes| bf16::from_le_bytes(bytes));
                halves.map(bf16::to_f32).collect()
            }
            Self::E4m3 => {
                let TiledCodes { codes, scales, .. } = tiled_codes(bytes, rows, cols);
                let quantized = fp8::Quantized {
                    codes: codes.to_vec(),
                    scales: scales
                        .iter()
                        .copied()
                        .map(fp8::ScaleInv::from_e8m0)
                        .collect(),
                };
                quantized.decode_tiles(cols, Format::E4M3)
            }
            Self::Nested(nesting) => {
                let mut planes = NestedPlanes::zeros(rows, cols, nesting);
                let stored = nested_planes(bytes, rows, cols, nesting);
                planes.codes.copy_from_slice(stored.codes);
                planes.residual.copy_from_slice(stored.residual);
                if let Some((low, stored)) = planes.low.as_mut().zip(stored.low) {
                    low.copy_from_slice(stored);
                }
                planes.scales.copy_from_slice(stored.scales);
                planes.decode_f32()
            }
        }
    }
}

/// The planes of rows that are stored as codes.
pub(crate) fn tiled_codes(bytes: &[u8], rows: usize, cols: usize) -> TiledCodes<'_> {
    let (codes, scales) = bytes.split_at(rows * cols);
    TiledCodes {
        cols,
        codes,
        scales,
    }
}

/// The planes of rows that are stored as nested masters.
pub(crate) fn nested_planes(
    bytes: &[u8],
    rows: usize,
    cols: usize,
    nesting: Nesting,
) -> NestedPlanes<&[u8]> {
    let len = rows * cols;
    let (codes, bytes) = bytes.split_at(len);
    let (residual, bytes) = bytes.split_at(len);
    let (low, scales) = match nesting {
        Nesting::N16 => (None, bytes),
        Nesting::N24 => {
            let (low, scales) = bytes.split_at(len);
            (Some(low), scales)
        }
    };
    NestedPlanes {
        cols,
        codes,
        residual,
        low,
        scales,
    }
}

/// Consecutive rows of a weight that lie in one place.
#[derive(Debug, Clone)]
pub struct Segment<B> {
    /// The rows, counted in the weight they belong to.
    pub rows: Range<usize>,
    /// Their elements, row by row, in the weight's format. Where that is tiled, the
    /// first row is the first of a tile.
    pub bytes: B,
}

/// A weight of `[rows, cols]`; a vector has one row.
#[derive(Debug, Clone)]
pub struct Weight<B> {
    /// Output features of a linear layer, tokens of a table.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// The element format of every segment.
    pub format: WeightFormat,
    /// The rows in order: the first begins at 0, each next where the one before
    /// ended, the last ends at `rows`. An empty segment does not occur.
    pub segments: Vec<Segment<B>>,
}

impl<B> Weight<B> {
    /// A weight that lies in one place.
    pub fn whole(rows: usize, cols: usize, format: WeightFormat, bytes: B) -> Self {
        Self {
            rows,
            cols,
            format,
            segments: vec![Segment {
                rows: 0..rows,
                bytes,
            }],
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// Whether the weight has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Panics unless the segments hold the rows in order, each once.
    #[track_caller]
    pub(crate) fn assert_covered(&self) {
        let end = self.segments.iter().fold(0, |end, segment| {
            assert_eq!(segment.rows.start, end, "segments follow one another");
            assert!(!segment.rows.is_empty(), "an empty segment does not occur");
            segment.rows.end
        });
        assert_eq!(end, self.rows, "the segments end with the last row");
    }
}

impl Weight<&[u8]> {
    /// Every element, row by row, as f32.
    pub(crate) fn to_f32(&self) -> Vec<f32> {
        self.assert_covered();
        let mut elements = Vec::with_capacity(self.len());
        for Segment { rows, bytes } in &self.segments {
            assert_eq!(
                bytes.len(),
                self.format.num_bytes(rows.len(), self.cols),
                "bytes of rows {rows:?}"
            );
            elements.extend(self.format.decode(bytes, rows.len(), self.cols));
        }
        elements
    }
}

/// Splits a master weight in the nearest bf16 (ties away from zero) and the
/// signed rest: as integers `bits = (high << 16) + low`.
///
/// The nearest bf16 of the largest f32 is infinity; the two halves still join
/// to the f32 they came from.
pub fn split_master(master: f32) -> (bf16, i16) {
    let [_, _, high, more] = master.to_bits().wrapping_add(0x8000).to_le_bytes();
    let [low, less, _, _] = master.to_bits().to_le_bytes();
    (
        bf16::from_le_bytes([high, more]),
        i16::from_le_bytes([low, less]),
    )
}

/// Joins what [`split_master`] split.
pub fn join_master(high: bf16, low: i16) -> f32 {
    let high = u32::from(high.to_bits()) << 16;
    f32::from_bits(high.wrapping_add_signed(low.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn splits(bits: u32, high: u16, low: i16) {
        let master = f32::from_bits(bits);
        assert_eq!(split_master(master), (bf16::from_bits(high), low));
        assert_eq!(join_master(bf16::from_bits(high), low).to_bits(), bits);
    }

    #[test]
    fn a_tie_goes_away_from_zero_on_both_sides() {
        splits(0x3F80_7FFF, 0x3F80, 0x7FFF);
        splits(0x3F80_8000, 0x3F81, -0x8000);
        splits(0xBF80_8000, 0xBF81, -0x8000);
        splits(0x3F80_8001, 0x3F81, -0x7FFF);
    }

    #[test]
    fn every_high_half_joins_again_with_low_halves_of_every_kind() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                let bits = (u32::from(high) << 16) | low;
                let (high, low) = split_master(f32::from_bits(bits));
                assert_eq!(join_master(high, low).to_bits(), bits);
            }
        }
    }

    #[test]
    fn segments_are_decoded_in_order_whatever_their_alignment() {
        let bytes = [9, 0x80, 0x3F, 0, 0x40, 0x80, 0xBF];
        let segment = |rows, bytes| Segment { rows, bytes };
        let weight = Weight {
            rows: 3,
            cols: 1,
            format: WeightFormat::Bf16,
            segments: vec![segment(0..1, &bytes[1..3]), segment(1..3, &bytes[3..7])],
        };
        assert_eq!(weight.to_f32(), [1.0, 2.0, -1.0]);
    }

    #[test]
    #[should_panic(expected = "bytes of rows 0..2")]
    fn bytes_of_a_wrong_length_panic() {
        let bytes: &[u8] = &[0; 15];
        Weight::whole(2, 2, WeightFormat::F32, bytes).to_f32();
    }

    #[test]
    #[should_panic(expected = "segments follow one another")]
    fn a_gap_between_segments_panics() {
        let mut weight = Weight::whole(2, 1, WeightFormat::F32, ());
        weight.segments[0].rows = 1..2;
        weight.assert_covered();
    }
}
