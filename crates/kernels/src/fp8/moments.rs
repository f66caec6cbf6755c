//! 8-bit moments to f32 and back.

use std::ops::Range;

use fp8::moments::{
    decode_m, decode_v, encode_m, encode_v, encode_v_stochastic, m_scale, scale_bytes, v_scale,
};
use fp8::random::high_half;
use fp8::{MomentPlanes, Random};

use super::{GROUP, load, store};
use crate::cpu::simd;

/// Panics unless the planes have the lengths of a matrix with `len` elements.
#[track_caller]
pub(super) fn assert_lengths<B: AsRef<[u8]>>(planes: &MomentPlanes<B>, len: usize) {
    let codes = [&planes.m, &planes.v].map(|plane| plane.as_ref().len());
    assert_eq!(codes, [len; 2], "bytes of the moments");
    let scales = [&planes.m_scales, &planes.v_scales].map(|plane| plane.as_ref().len());
    let expected = scale_bytes(len / planes.cols, planes.cols);
    assert_eq!(scales, [expected; 2], "bytes of the moments' scales");
}

/// Where each group of some rows lies: row, number in the row, elements, scale.
#[inline(always)]
fn groups(rows: usize, cols: usize) -> impl Iterator<Item = (usize, usize, Range<usize>, usize)> {
    let per_row = cols.div_ceil(GROUP);
    (0..rows * per_row).map(move |index| {
        let (row, group) = (index / per_row, index % per_row);
        let first = row * cols + group * GROUP;
        let end = (first + GROUP).min((row + 1) * cols);
        (row, group, first..end, index)
    })
}

/// Decodes both moments, row by row.
pub fn decode_moments(planes: &MomentPlanes<&[u8]>, m: &mut [f32], v: &mut [f32]) {
    assert_eq!(m.len(), v.len(), "as many first moments as second");
    assert_lengths(planes, m.len());
    let cols = planes.cols;
    simd(
        #[inline(always)]
        || {
            for (_, _, span, scale) in groups(m.len() / cols, cols) {
                let codes = [load(&planes.m[span.clone()]), load(&planes.v[span.clone()])];
                let scales = [
                    scale_of(planes.m_scales, scale),
                    scale_of(planes.v_scales, scale),
                ];
                let [m_group, v_group] = decode_group(&codes, scales);
                store(&m_group, &mut m[span.clone()]);
                store(&v_group, &mut v[span]);
            }
        },
    );
}

/// Encodes both moments, row by row. `random` is for v, with the number of the
/// first row in its parameter; without it v is rounded to nearest.
pub fn encode_moments(
    m: &[f32],
    v: &[f32],
    planes: &mut MomentPlanes<&mut [u8]>,
    random: Option<(Random, usize)>,
) {
    assert_eq!(m.len(), v.len(), "as many first moments as second");
    assert_lengths(planes, m.len());
    let cols = planes.cols;
    simd(
        #[inline(always)]
        || {
            for (row, group, span, scale) in groups(m.len() / cols, cols) {
                let bits = random.map(
                    #[inline(always)]
                    |(random, first_row)| random.group_bits(first_row + row, group),
                );
                let mut roots = load(&v[span.clone()]);
                for v in &mut roots {
                    *v = v.sqrt();
                }
                let moments = [load(&m[span.clone()]), roots];
                encode_group(planes, (span, scale), &moments, bits.as_ref());
            }
        },
    );
}

#[inline(always)]
pub(super) fn scale_of(scales: &[u8], index: usize) -> u16 {
    u16::from_le_bytes(scales.as_chunks().0[index])
}

/// Both moments of a group.
#[inline(always)]
pub(super) fn decode_group(
    [m_codes, v_codes]: &[[u8; GROUP]; 2],
    [m_scale, v_scale]: [u16; 2],
) -> [[f32; GROUP]; 2] {
    let (mut m, mut v) = ([0.0; GROUP], [0.0; GROUP]);
    for i in 0..GROUP {
        m[i] = decode_m(m_codes[i].cast_signed(), m_scale);
        v[i] = decode_v(v_codes[i], v_scale);
    }
    [m, v]
}

/// Encodes the first moments and the roots of the second of the group at `span`,
/// whose scales are number `scale`; without bits to nearest.
#[inline(always)]
pub(super) fn encode_group(
    planes: &mut MomentPlanes<&mut [u8]>,
    (span, scale): (Range<usize>, usize),
    [m, roots]: &[[f32; GROUP]; 2],
    bits: Option<&[u32; GROUP]>,
) {
    let (m_scale, v_scale) = (m_scale(m), v_scale(roots));
    let (mut m_codes, mut v_codes) = ([0; GROUP], [0; GROUP]);
    for i in 0..GROUP {
        m_codes[i] = encode_m(m[i], m_scale).cast_unsigned();
    }
    if let Some(bits) = bits {
        for i in 0..GROUP {
            v_codes[i] = encode_v_stochastic(roots[i], v_scale, high_half(bits[i]));
        }
    } else {
        for i in 0..GROUP {
            v_codes[i] = encode_v(roots[i], v_scale);
        }
    }
    store(&m_codes, &mut planes.m[span.clone()]);
    store(&v_codes, &mut planes.v[span]);
    planes.m_scales.as_chunks_mut().0[scale] = m_scale.to_le_bytes();
    planes.v_scales.as_chunks_mut().0[scale] = v_scale.to_le_bytes();
}
