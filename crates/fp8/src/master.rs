//! A whole nested master: code plane, residual planes, scales.
//!
//! ```text
//! codes     E4M3, a byte an element, row by row: what computes and what is gathered
//! residual  N16: the residual. N24: its high byte
//! low       N24 only: the residual's low byte
//! scales    E8M0, a byte a tile, row tile by row tile
//! master    scale_inv * (value(code) + residual * unit)
//! ```
//!
//! A run of row tiles is contiguous in every plane.
//!
//! **Plain tiles.** A bf16 comes back bit by bit unless it lies below about 2^-16
//! of its tile's amax. A tile with such a miss is kept plain: upper bytes of the
//! bf16 in the code plane, lower bytes in the residual plane, `scale_inv` NaN. So a
//! conversion is lossless by construction, and a plain tile that is computed with
//! by mistake is NaN and not plausible. [`NestedPlanes::clear_plain`] ends that
//! before a run trains.

use crate::bf16::{round_nearest, widen};
use crate::nested::{
    join_n16, join_n24, residual_bytes, residual_of, split_n16, split_n16_stochastic, split_n24,
};
use crate::{
    Format, Fp8Error, Grid, Headroom, Nesting, Random, ScaleInv, TILE, Tile, amax, random,
};

/// The planes of consecutive row tiles of a nested master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NestedPlanes<B> {
    /// Elements of a row.
    pub cols: usize,
    /// E4M3 codes.
    pub codes: B,
    /// The residual plane: of N24 its high bytes.
    pub residual: B,
    /// The low bytes of an N24's residuals; what is absent makes it an N16.
    pub low: Option<B>,
    /// The `scale_inv` of each tile.
    pub scales: B,
}

/// How a residual is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest: conversions, and every update of an N24.
    Nearest,
    /// An N16 by random bits; an N24 to nearest all the same.
    Stochastic {
        /// The parameter's bits of this step.
        random: Random,
        /// The number of the planes' first row in the parameter.
        first_row: usize,
    },
}

/// What became of the tiles of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Encoded {
    /// Tiles in all.
    pub num_tiles: usize,
    /// Tiles with a miss.
    pub num_plain: usize,
    /// Elements that did not come back.
    pub num_missed: usize,
}

impl Encoded {
    /// Adds what became of other tiles.
    pub fn add(&mut self, other: Self) {
        self.num_tiles += other.num_tiles;
        self.num_plain += other.num_plain;
        self.num_missed += other.num_missed;
    }
}

impl<B: AsRef<[u8]>> NestedPlanes<B> {
    /// Rows and columns.
    pub fn grid(&self) -> Grid {
        Grid {
            rows: self.codes.as_ref().len() / self.cols,
            cols: self.cols,
        }
    }

    /// How many bytes lie below the code.
    pub fn nesting(&self) -> Nesting {
        if self.low.is_some() {
            Nesting::N24
        } else {
            Nesting::N16
        }
    }

    /// Refuses planes whose lengths do not fit one another.
    pub fn check(&self) -> Result<(), Fp8Error> {
        let grid = self.grid();
        let low = self
            .low
            .as_ref()
            .map_or(grid.len(), |low| low.as_ref().len());
        let planes = [
            ("code plane", self.codes.as_ref().len(), grid.len()),
            ("residual plane", self.residual.as_ref().len(), grid.len()),
            ("low residual plane", low, grid.len()),
            ("scales", self.scales.as_ref().len(), grid.num_tiles()),
        ];
        match planes
            .into_iter()
            .find(|(_, found, expected)| found != expected)
        {
            None => Ok(()),
            Some((plane, found, expected)) => Err(Fp8Error::WrongLength {
                plane,
                rows: grid.rows,
                cols: grid.cols,
                expected,
                found,
            }),
        }
    }

    /// The `scale_inv` of a tile.
    pub fn scale_inv(&self, tile: usize) -> ScaleInv {
        ScaleInv::from_e8m0(self.scales.as_ref()[tile])
    }

    /// The masters, row by row.
    pub fn decode_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.grid().len()];
        for tile in self.grid().tiles() {
            for place in tile.spans(self.cols).flatten() {
                values[place] = self.decode_element(place, self.scale_inv(tile.index));
            }
        }
        values
    }

    /// The masters to nearest as bf16 bits: the source of a lossless conversion.
    pub fn decode_bf16(&self) -> Vec<u16> {
        self.decode_f32().into_iter().map(round_nearest).collect()
    }

    fn decode_element(&self, place: usize, scale_inv: ScaleInv) -> f32 {
        let code = self.codes.as_ref()[place];
        let residual = self.residual.as_ref()[place];
        if scale_inv.is_nan() {
            return widen(u16::from_be_bytes([code, residual]));
        }
        let x = match &self.low {
            None => join_n16(code, residual.cast_signed()),
            Some(low) => join_n24(code, residual_of(residual, low.as_ref()[place])),
        };
        x * scale_inv.to_f32()
    }
}

impl NestedPlanes<Vec<u8>> {
    /// A master of zeros.
    pub fn zeros(rows: usize, cols: usize, nesting: Nesting) -> Self {
        let grid = Grid { rows, cols };
        let plane = || vec![0; grid.len()];
        Self {
            cols,
            codes: plane(),
            residual: plane(),
            low: (nesting == Nesting::N24).then(plane),
            scales: vec![ScaleInv::ONE.to_e8m0(); grid.num_tiles()],
        }
    }

    /// The planes, to be read.
    pub fn as_ref(&self) -> NestedPlanes<&[u8]> {
        NestedPlanes {
            cols: self.cols,
            codes: &self.codes,
            residual: &self.residual,
            low: self.low.as_deref(),
            scales: &self.scales,
        }
    }

    /// The planes, to be written.
    pub fn as_mut(&mut self) -> NestedPlanes<&mut [u8]> {
        NestedPlanes {
            cols: self.cols,
            codes: &mut self.codes,
            residual: &mut self.residual,
            low: self.low.as_deref_mut(),
            scales: &mut self.scales,
        }
    }
}

impl NestedPlanes<&mut [u8]> {
    /// Encodes f32 numbers, row by row; what the planes cannot hold is rounded.
    pub fn encode_f32(
        &mut self,
        values: &[f32],
        headroom: Headroom,
        rounding: Rounding,
    ) -> Result<(), Fp8Error> {
        self.check()?;
        for tile in self.grid().tiles() {
            let numbers = tile.gather(values, self.cols);
            let places = tile.spans(self.cols).flatten();
            refuse_not_finite(places.zip(numbers.iter().copied()), self.cols)?;
            let scale_inv = ScaleInv::of_amax(amax(&numbers), Format::E4M3, headroom);
            self.encode_tile(&tile, &numbers, scale_inv, rounding);
        }
        Ok(())
    }

    /// Encodes bf16 numbers, row by row, without loss: a tile with a miss is
    /// kept plain.
    pub fn encode_bf16(&mut self, bf16: &[u16], headroom: Headroom) -> Result<Encoded, Fp8Error> {
        self.check()?;
        let mut encoded = Encoded::default();
        for tile in self.grid().tiles() {
            let bits = tile.gather(bf16, self.cols);
            let numbers: Vec<f32> = bits.iter().copied().map(widen).collect();
            let places = tile.spans(self.cols).flatten();
            refuse_not_finite(places.zip(numbers.iter().copied()), self.cols)?;
            let scale_inv = ScaleInv::of_amax(amax(&numbers), Format::E4M3, headroom);
            self.encode_tile(&tile, &numbers, scale_inv, Rounding::Nearest);
            let num_missed = self.num_missed(&tile, &bits);
            encoded.num_tiles += 1;
            if num_missed > 0 {
                encoded.num_plain += 1;
                encoded.num_missed += num_missed;
                self.keep_plain(&tile, &bits);
            }
        }
        Ok(encoded)
    }

    /// Encodes every plain tile; what was missed is rounded, and counted.
    pub fn clear_plain(&mut self, headroom: Headroom) -> Encoded {
        let mut cleared = Encoded::default();
        for tile in self.grid().tiles() {
            cleared.num_tiles += 1;
            if !self.scale_inv(tile.index).is_nan() {
                continue;
            }
            let numbers = self.decode_tile(&tile);
            let bits: Vec<u16> = numbers.iter().copied().map(round_nearest).collect();
            let scale_inv = ScaleInv::of_amax(amax(&numbers), Format::E4M3, headroom);
            self.encode_tile(&tile, &numbers, scale_inv, Rounding::Nearest);
            cleared.num_plain += 1;
            cleared.num_missed += self.num_missed(&tile, &bits);
        }
        cleared
    }

    /// Moves every tile whose amax left its binade to another `scale_inv`, and
    /// gives their number.
    ///
    /// Exact for what stays a normal code; subnormals are rounded.
    pub fn resplit(&mut self, headroom: Headroom, rounding: Rounding) -> usize {
        let mut num_moved = 0;
        for tile in self.grid().tiles() {
            let numbers = self.decode_tile(&tile);
            let present = self.scale_inv(tile.index);
            let scale_inv = present.updated(amax(&numbers), headroom);
            if scale_inv != present {
                self.encode_tile(&tile, &numbers, scale_inv, rounding);
                num_moved += 1;
            }
        }
        num_moved
    }

    /// Encodes the numbers of one tile under a given `scale_inv`.
    pub fn encode_tile(
        &mut self,
        tile: &Tile,
        numbers: &[f32],
        scale_inv: ScaleInv,
        rounding: Rounding,
    ) {
        let scale = scale_inv.scale();
        self.scales[tile.index] = scale_inv.to_e8m0();
        for (place, &number) in tile.spans(self.cols).flatten().zip(numbers) {
            let x = number * scale;
            if let Some(low) = &mut self.low {
                let (code, residual) = split_n24(x);
                self.codes[place] = code;
                [self.residual[place], low[place]] = residual_bytes(residual);
            } else {
                let (code, residual) = match rounding {
                    Rounding::Nearest => split_n16(x),
                    Rounding::Stochastic { random, first_row } => {
                        let (row, col) = (place / self.cols, place % self.cols);
                        split_n16_stochastic(x, random::low_half(random.bits(first_row + row, col)))
                    }
                };
                self.codes[place] = code;
                self.residual[place] = residual.cast_unsigned();
            }
        }
    }

    /// Each row tile by itself, in order.
    pub fn into_row_tiles(self) -> Vec<Self> {
        let cols = self.cols;
        let elements = TILE * cols;
        let mut low = self.low.map(|low| low.chunks_mut(elements));
        let planes = self.codes.chunks_mut(elements);
        let planes = planes.zip(self.residual.chunks_mut(elements));
        let row_tiles = planes.zip(self.scales.chunks_mut(cols.div_ceil(TILE)));
        let row_tiles = row_tiles.map(|((codes, residual), scales)| Self {
            cols,
            codes,
            residual,
            low: low.as_mut().and_then(Iterator::next),
            scales,
        });
        row_tiles.collect()
    }

    /// The masters of one tile, row by row.
    pub fn decode_tile(&self, tile: &Tile) -> Vec<f32> {
        let scale_inv = self.scale_inv(tile.index);
        let places = tile.spans(self.cols).flatten();
        places
            .map(|place| self.decode_element(place, scale_inv))
            .collect()
    }

    fn num_missed(&self, tile: &Tile, bits: &[u16]) -> usize {
        let decoded = self.decode_tile(tile).into_iter();
        decoded
            .zip(bits)
            .filter(|&(x, &bits)| round_nearest(x) != bits)
            .count()
    }

    /// Keeps a tile as the bf16 numbers that it was.
    pub fn keep_plain(&mut self, tile: &Tile, bits: &[u16]) {
        self.scales[tile.index] = ScaleInv::NAN.to_e8m0();
        for (place, bits) in tile.spans(self.cols).flatten().zip(bits) {
            [self.codes[place], self.residual[place]] = bits.to_be_bytes();
            if let Some(low) = &mut self.low {
                low[place] = 0;
            }
        }
    }
}

/// Converts bf16 numbers to an N16 where they lie: all codes, then all residuals.
///
/// Besides the bytes there is one row tile of scratch. Nothing is written if a
/// number is not finite.
pub fn encode_in_place(
    bytes: &mut [u8],
    cols: usize,
    scales: &mut [u8],
    headroom: Headroom,
) -> Result<Encoded, Fp8Error> {
    let numbers = bytes.as_chunks().0.iter();
    refuse_not_finite(
        numbers
            .map(|&bf16| widen(u16::from_le_bytes(bf16)))
            .enumerate(),
        cols,
    )?;
    let tiles_per_row = cols.div_ceil(TILE);
    let mut encoded = Encoded::default();
    let mut source = Vec::with_capacity(TILE * cols);
    let row_tiles = bytes.chunks_mut(2 * TILE * cols);
    for (row_tile, scales) in row_tiles.zip(scales.chunks_mut(tiles_per_row)) {
        source.clear();
        let numbers = row_tile.as_chunks().0.iter();
        source.extend(numbers.map(|&bf16| u16::from_le_bytes(bf16)));
        let (codes, residual) = row_tile.split_at_mut(source.len());
        let mut planes = NestedPlanes {
            cols,
            codes,
            residual,
            low: None,
            scales,
        };
        let row_tile = planes.encode_bf16(&source, headroom)?;
        encoded.add(row_tile);
    }
    pairs_to_planes(bytes, cols);
    Ok(encoded)
}

/// Refuses the first number, of some with their places, that is not finite.
pub fn refuse_not_finite(
    mut numbers: impl Iterator<Item = (usize, f32)>,
    cols: usize,
) -> Result<(), Fp8Error> {
    match numbers.find(|(_, number)| !number.is_finite()) {
        None => Ok(()),
        Some((index, value)) => Err(Fp8Error::NotFinite {
            index,
            row: index / cols,
            col: index % cols,
            value,
        }),
    }
}

/// Orders what a conversion in place leaves, code plane and residual plane of
/// each row tile by turns, so that all codes come before all residuals.
///
/// Row tiles have 128 rows of `cols` elements; the last may be shorter. Only
/// whole planes of row tiles are swapped; nothing else is allocated but a bit for
/// each.
pub fn pairs_to_planes(bytes: &mut [u8], cols: usize) {
    let half = TILE * cols;
    let num_whole = bytes.len() / (2 * half);
    let (whole, last) = (2 * half * num_whole, bytes.len() - 2 * half * num_whole);
    let target = |place: usize| place / 2 + place % 2 * num_whole;
    let mut is_done = vec![false; 2 * num_whole];
    for first in 0..2 * num_whole {
        let mut place = first;
        while !is_done[place] {
            is_done[place] = true;
            place = target(place);
            swap(&mut bytes[..whole], half, first, place);
        }
    }
    bytes[half * num_whole..whole + last / 2].rotate_right(last / 2);
}

/// Swaps two chunks of `len` bytes by their numbers.
fn swap(bytes: &mut [u8], len: usize, a: usize, b: usize) {
    let (a, b) = (a.min(b), a.max(b));
    if a < b {
        let (left, right) = bytes.split_at_mut(b * len);
        left[a * len..(a + 1) * len].swap_with_slice(&mut right[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_become_planes_at_every_number_of_row_tiles() {
        for num_whole in 0..20_u8 {
            for last in [0, 1, 127] {
                let mut expected = Vec::new();
                let mut pairs = Vec::new();
                for kind in [0, 100] {
                    for tile in 0..=num_whole {
                        let rows = if tile == num_whole { last } else { TILE };
                        expected.extend(vec![tile + kind; 3 * rows]);
                    }
                }
                for tile in 0..=num_whole {
                    let rows = if tile == num_whole { last } else { TILE };
                    pairs.extend(vec![tile; 3 * rows]);
                    pairs.extend(vec![tile + 100; 3 * rows]);
                }
                pairs_to_planes(&mut pairs, 3);
                assert!(pairs == expected, "{num_whole} {last}");
            }
        }
    }

    #[test]
    fn planes_of_another_length_are_refused() {
        let mut planes = NestedPlanes::zeros(130, 5, Nesting::N24);
        assert_eq!(planes.check(), Ok(()));
        planes.scales.pop();
        let refused = planes.as_mut().encode_bf16(&[0; 650], Headroom::None);
        let expected = Fp8Error::WrongLength {
            plane: "scales",
            rows: 130,
            cols: 5,
            expected: 2,
            found: 1,
        };
        assert_eq!(refused, Err(expected));
        planes.scales.push(127);
        planes.low = Some(vec![]);
        assert!(planes.check().is_err());
    }
}
