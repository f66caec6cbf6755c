//! Moments in 8 bits: the mean of the gradient as a signed square root, the mean
//! of its square as a fourth root, each against the largest of its group.
//!
//! ```text
//! group     64 elements along a row, from the row's start; the last may be shorter
//! scale     the group's largest root, in bf16, rounded up; 0 of a group of zeros
//! m         sign * (|code| * (scale / 127))^2
//! v         (code * (scale / 255))^4, at least 2^-126 unless the code is 0
//! ```
//!
//! A root spreads small numbers over more codes. A v that is not 0 has a code of
//! at least 1: decoded to 0 it would make the next update explode. A group never
//! crosses the end of a row, so results do not depend on sharding. f16 scales
//! would underflow below 6e-8; bf16 reaches as far as f32.

use crate::bf16::widen;
use crate::random::high_half;
use crate::{Random, TILE};

/// Elements that share a scale.
pub const GROUP: usize = 64;

/// The largest code of m.
const M_CODES: f32 = 127.0;

/// The largest code of v.
const V_CODES: f32 = 255.0;

/// Beyond this, v is rounded stochastically: to nearest it could not decay.
const NEAREST_BETA2: f32 = 0.95;

/// The moments of consecutive rows, as planes.
///
/// Scales are bf16, little-endian, group by group, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MomentPlanes<B> {
    /// Elements of a row.
    pub cols: usize,
    /// Codes of the first moment, a signed byte an element.
    pub m: B,
    /// Codes of the second moment, a byte an element.
    pub v: B,
    /// Scales of the first moment.
    pub m_scales: B,
    /// Scales of the second moment.
    pub v_scales: B,
}

/// Bytes of one scale plane of a matrix.
pub fn scale_bytes(rows: usize, cols: usize) -> usize {
    2 * rows * cols.div_ceil(GROUP)
}

/// Whether v is rounded stochastically at this decay.
#[inline(always)]
pub fn is_v_stochastic(beta2: f32) -> bool {
    beta2 > NEAREST_BETA2
}

impl MomentPlanes<Vec<u8>> {
    /// Moments of 0.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        let plane = || vec![0; rows * cols];
        let scales = || vec![0; scale_bytes(rows, cols)];
        Self {
            cols,
            m: plane(),
            v: plane(),
            m_scales: scales(),
            v_scales: scales(),
        }
    }

    /// The planes, to be read.
    pub fn as_ref(&self) -> MomentPlanes<&[u8]> {
        MomentPlanes {
            cols: self.cols,
            m: &self.m,
            v: &self.v,
            m_scales: &self.m_scales,
            v_scales: &self.v_scales,
        }
    }

    /// The planes, to be written.
    pub fn as_mut(&mut self) -> MomentPlanes<&mut [u8]> {
        MomentPlanes {
            cols: self.cols,
            m: &mut self.m,
            v: &mut self.v,
            m_scales: &mut self.m_scales,
            v_scales: &mut self.v_scales,
        }
    }

    /// Encodes moments, row by row. `random` is for v, with the number of the
    /// first row in its parameter; without it v is rounded to nearest.
    pub fn encode(m: &[f32], v: &[f32], cols: usize, random: Option<(Random, usize)>) -> Self {
        let mut planes = Self::zeros(m.len() / cols, cols);
        let groups_per_row = cols.div_ceil(GROUP);
        for (row, (m, v)) in m.chunks(cols).zip(v.chunks(cols)).enumerate() {
            for (group, (m, v)) in m.chunks(GROUP).zip(v.chunks(GROUP)).enumerate() {
                let at = row * cols + group * GROUP;
                let scale_at = 2 * (row * groups_per_row + group);
                let m_scale = m_scale(m);
                let roots: Vec<f32> = v.iter().map(|v| v.sqrt()).collect();
                let v_scale = v_scale(&roots);
                for (index, (&m, &root)) in m.iter().zip(&roots).enumerate() {
                    planes.m[at + index] = encode_m(m, m_scale).cast_unsigned();
                    planes.v[at + index] = match random {
                        None => encode_v(root, v_scale),
                        Some((random, first_row)) => {
                            let bits = random.bits(first_row + row, group * GROUP + index);
                            encode_v_stochastic(root, v_scale, high_half(bits))
                        }
                    };
                }
                planes.m_scales[scale_at..scale_at + 2].copy_from_slice(&m_scale.to_le_bytes());
                planes.v_scales[scale_at..scale_at + 2].copy_from_slice(&v_scale.to_le_bytes());
            }
        }
        planes
    }
}

impl<B: AsRef<[u8]>> MomentPlanes<B> {
    /// The moments, row by row: m and v.
    pub fn decode(&self) -> [Vec<f32>; 2] {
        let [m, v] = [&self.m, &self.v].map(AsRef::as_ref);
        let [m_scales, v_scales] = [&self.m_scales, &self.v_scales].map(AsRef::as_ref);
        let scale = |scales: &[u8], index: usize| {
            let (row, col) = (index / self.cols, index % self.cols);
            let group = row * self.cols.div_ceil(GROUP) + col / GROUP;
            u16::from_le_bytes([scales[2 * group], scales[2 * group + 1]])
        };
        let m = m.iter().enumerate();
        let m = m.map(|(index, &code)| decode_m(code.cast_signed(), scale(m_scales, index)));
        let v = v.iter().enumerate();
        let v = v.map(|(index, &code)| decode_v(code, scale(v_scales, index)));
        [m.collect(), v.collect()]
    }
}

impl MomentPlanes<&mut [u8]> {
    /// Each row tile by itself, in order.
    pub fn into_row_tiles(self) -> Vec<Self> {
        let cols = self.cols;
        let elements = TILE * cols;
        let scales = scale_bytes(TILE, cols);
        let planes = self.m.chunks_mut(elements);
        let planes = planes.zip(self.v.chunks_mut(elements));
        let m_scales = self.m_scales.chunks_mut(scales);
        let scales = m_scales.zip(self.v_scales.chunks_mut(scales));
        let row_tiles = planes.zip(scales);
        let row_tiles = row_tiles.map(|((m, v), (m_scales, v_scales))| Self {
            cols,
            m,
            v,
            m_scales,
            v_scales,
        });
        row_tiles.collect()
    }
}

/// The scale of a group of m, as bf16 bits.
#[inline(always)]
pub fn m_scale(m: &[f32]) -> u16 {
    round_up(crate::amax(m).sqrt())
}

/// The scale of a group of v by the square roots of v, as bf16 bits.
///
/// An update has these roots at hand, and roots take time.
#[inline(always)]
pub fn v_scale(roots: &[f32]) -> u16 {
    round_up(crate::amax(roots).sqrt())
}

/// The code of a first moment, to nearest.
#[inline(always)]
pub fn encode_m(m: f32, scale: u16) -> i8 {
    let root = m.abs().sqrt() * codes_per_one(M_CODES, scale);
    small_whole(at_most(M_CODES, root).copysign(m)).cast_signed()
}

/// The code of a second moment by its square root, to nearest.
#[inline(always)]
pub fn encode_v(root: f32, scale: u16) -> u8 {
    floored(root, root.sqrt() * codes_per_one(V_CODES, scale))
}

/// The code of a second moment by its square root, its fourth root rounded up as
/// often as the bits say.
#[inline(always)]
pub fn encode_v_stochastic(root: f32, scale: u16, bits: u16) -> u8 {
    let code = root.sqrt() * codes_per_one(V_CODES, scale);
    floored(root, (code + f32::from(bits) * (1.0 / 65536.0)).floor())
}

/// The first moment of a code.
#[inline(always)]
pub fn decode_m(code: i8, scale: u16) -> f32 {
    let root = f32::from(code) * (widen(scale) / M_CODES);
    root * root.abs()
}

/// The second moment of a code.
#[inline(always)]
pub fn decode_v(code: u8, scale: u16) -> f32 {
    let root = f32::from(code) * (widen(scale) / V_CODES);
    let square = root * root;
    let v = square * square;
    let floor = if code == 0 { 0.0 } else { f32::MIN_POSITIVE };
    // `max` would pass over a NaN.
    if v < floor { floor } else { v }
}

/// Codes to a root of 1; 0 where all are 0.
#[inline(always)]
fn codes_per_one(codes: f32, scale: u16) -> f32 {
    if scale == 0 {
        0.0
    } else {
        codes / widen(scale)
    }
}

/// At least 1 of what is not 0, at most 255, to nearest.
#[inline(always)]
fn floored(root: f32, code: f32) -> u8 {
    let floor = if root > 0.0 { 1.0 } else { 0.0 };
    let code = if code < floor { floor } else { code };
    small_whole(at_most(V_CODES, code))
}

/// The largest code instead of what is beyond it, and instead of NaN, whose bits
/// are not the same everywhere. The group's scale shows it.
#[inline(always)]
fn at_most(largest: f32, code: f32) -> f32 {
    if code < largest { code } else { largest }
}

/// The low byte of the nearest integer, ties to even; see `nested` for the way.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the low byte")]
fn small_whole(x: f32) -> u8 {
    (x + 12_582_912.0).to_bits() as u8
}

/// The bf16 that is not below a positive number.
#[inline(always)]
fn round_up(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return 0x7FC0;
    }
    (bits.wrapping_add(0xFFFF) >> 16) as u16
}

#[cfg(test)]
mod tests;
