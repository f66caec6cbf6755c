//! The K types: blocks of 256 elements in groups with small scales of their own.
//!
//! With `d` and `m` the f16 scales of the block, `s` and `t` the small scales of
//! an element's group and `q` its bits:
//!
//! ```text
//! Q2_K   84 bytes   16 scales, 64 codes, d, m               (d s) q - m t
//! Q3_K  110 bytes   32 third bits, 64 codes, 12 scales, d   (d (s - 32)) (q - 4)
//! Q4_K  144 bytes   d, m, 12 scales, 128 codes              (d s) q - m t
//! Q5_K  176 bytes   d, m, 12 scales, 32 fifth bits, 128     (d s) q - m t
//! Q6_K  210 bytes   128 low codes, 64 high, 16 scales, d    (d s) (q - 32)
//! ```
//!
//! `Q2_K`, `Q3_K` and `Q6_K` have 16 groups of 16, `Q4_K` and `Q5_K` 8 groups of 32.

use super::blocks::f16_at;

/// The two bits of element `index`: each byte of 32 has elements 32 apart.
fn two_bits(codes: &[u8], index: usize) -> u8 {
    let (half, quarter, lane) = (index / 128, index / 32 % 4, index % 32);
    (codes[32 * half + lane] >> (2 * quarter)) & 3
}

pub(super) fn q2_k(stored: &[u8; 84], wide: &mut [f32; 256]) {
    let (scales, codes) = (&stored[..16], &stored[16..80]);
    let d = f16_at([stored[80], stored[81]]);
    let m = f16_at([stored[82], stored[83]]);
    for (index, wide) in wide.iter_mut().enumerate() {
        let scale = scales[index / 16];
        let (s, t) = (f32::from(scale & 15), f32::from(scale >> 4));
        *wide = (d * s) * f32::from(two_bits(codes, index)) - m * t;
    }
}

pub(super) fn q3_k(stored: &[u8; 110], wide: &mut [f32; 256]) {
    let (thirds, codes) = (&stored[..32], &stored[32..96]);
    let scales = &stored[96..108];
    let d = f16_at([stored[108], stored[109]]);
    for (index, wide) in wide.iter_mut().enumerate() {
        let s = six_bits(scales, index / 16);
        let third = (thirds[index % 32] >> (index / 32)) & 1;
        let q = two_bits(codes, index) | third << 2;
        *wide = (d * (f32::from(s) - 32.0)) * (f32::from(q) - 4.0);
    }
}

/// Scale `group` of 16: four low bits in the first 8 bytes, two high ones in the
/// last 4.
fn six_bits(scales: &[u8], group: usize) -> u8 {
    let low = scales[group % 8] >> (4 * (group / 8));
    let high = scales[8 + group % 4] >> (2 * (group / 4));
    low & 15 | (high & 3) << 4
}

pub(super) fn q4_k(stored: &[u8; 144], wide: &mut [f32; 256]) {
    let [d0, d1, m0, m1, rest @ ..] = stored;
    let (d, m) = (f16_at([*d0, *d1]), f16_at([*m0, *m1]));
    let (scales, codes) = rest.split_at(12);
    for (index, wide) in wide.iter_mut().enumerate() {
        let (s, t) = scale_and_minimum(scales, index / 32);
        let q = four_bits(codes, index);
        *wide = (d * f32::from(s)) * f32::from(q) - m * f32::from(t);
    }
}

pub(super) fn q5_k(stored: &[u8; 176], wide: &mut [f32; 256]) {
    let [d0, d1, m0, m1, rest @ ..] = stored;
    let (d, m) = (f16_at([*d0, *d1]), f16_at([*m0, *m1]));
    let (scales, rest) = rest.split_at(12);
    let (fifths, codes) = rest.split_at(32);
    for (index, wide) in wide.iter_mut().enumerate() {
        let (s, t) = scale_and_minimum(scales, index / 32);
        let fifth = (fifths[index % 32] >> (index / 32)) & 1;
        let q = four_bits(codes, index) | fifth << 4;
        *wide = (d * f32::from(s)) * f32::from(q) - m * f32::from(t);
    }
}

/// The four bits of element `index`: each byte of 32 has two elements 32 apart.
fn four_bits(codes: &[u8], index: usize) -> u8 {
    let byte = codes[32 * (index / 64) + index % 32];
    (byte >> (4 * (index / 32 % 2))) & 15
}

/// The two six-bit numbers of one of 8 groups: whole in the first 8 bytes for
/// groups 0 to 3; for the others four bits in the last 4 bytes, and two in the
/// upper bits of the first 8.
fn scale_and_minimum(scales: &[u8], group: usize) -> (u8, u8) {
    let lane = group % 4;
    let (first, second) = (scales[lane], scales[4 + lane]);
    if group < 4 {
        return (first & 63, second & 63);
    }
    let low = scales[8 + lane];
    (low & 15 | first >> 6 << 4, low >> 4 | second >> 6 << 4)
}

pub(super) fn q6_k(stored: &[u8; 210], wide: &mut [f32; 256]) {
    let (low, high) = (&stored[..128], &stored[128..192]);
    let scales = &stored[192..208];
    let d = f16_at([stored[208], stored[209]]);
    for (index, wide) in wide.iter_mut().enumerate() {
        let s = scales[index / 16].cast_signed();
        // In each half of 128, bytes of 64 have two elements 64 apart.
        let byte = low[64 * (index / 128) + index % 64];
        let q = (byte >> (4 * (index / 64 % 2))) & 15 | two_bits(high, index) << 4;
        *wide = (d * f32::from(s)) * (f32::from(q) - 32.0);
    }
}
