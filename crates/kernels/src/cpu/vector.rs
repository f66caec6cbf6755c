//! Loops over numbers that the compiler turns into vector instructions.
//!
//! Everything here is written as plain loops over a fixed number of lanes and is
//! compiled once for each instruction set; [`simd`] picks at run time.

use pulp::{Simd, WithSimd};

/// Running values of a row: as many as keep the widest units busy.
const LANES: usize = 32;

/// Runs `kernel` compiled for the widest vectors of this processor.
///
/// Only what is inlined into `kernel` gains: mark the closure and all that it
/// calls `#[inline(always)]`.
#[inline]
pub(crate) fn simd<R>(kernel: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(kernel)
}

/// The sum of products.
#[inline]
pub(super) fn dot(x: &[f32], y: &[f32]) -> f32 {
    pulp::Arch::new().dispatch(Products([x, y]))
}

/// The sum of products of three.
#[inline]
pub(super) fn dot3(x: &[f32], y: &[f32], z: &[f32]) -> f32 {
    pulp::Arch::new().dispatch(Products([x, y, z]))
}

/// The products of `x` with dense rows, one for each element of `y`.
pub(super) fn dot_rows(x: &[f32], rows: &[f32], y: &mut [f32]) {
    pulp::Arch::new().dispatch(DotRows { x, rows, y });
}

/// The same with rows of bf16 numbers, decoded on the way.
pub(super) fn dot_rows_bf16(x: &[f32], rows: &[[u8; 2]], y: &mut [f32]) {
    pulp::Arch::new().dispatch(DotRows { x, rows, y });
}

/// Written with explicit vectors: the compiler keeps a plain loop's running sums
/// as single numbers (measured: a third of the speed).
struct Products<'a, const N: usize>([&'a [f32]; N]);

impl<const N: usize> WithSimd for Products<'_, N> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        sum_of_products(simd, self.0)
    }
}

struct DotRows<'a, T> {
    x: &'a [f32],
    rows: &'a [T],
    y: &'a mut [f32],
}

impl WithSimd for DotRows<'_, f32> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, rows, y } = self;
        for (row, y) in rows.chunks_exact(x.len()).zip(y) {
            *y = sum_of_products(simd, [x, row]);
        }
    }
}

impl WithSimd for DotRows<'_, [u8; 2]> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { x, rows, y } = self;
        let mut wide = [0.0; BLOCK];
        for (row, y) in rows.chunks_exact(x.len()).zip(y) {
            let mut sum = 0.0;
            // No closures here: one that is not inlined is not vectorized either.
            for (x, row) in x.chunks(BLOCK).zip(row.chunks(BLOCK)) {
                let wide = &mut wide[..x.len()];
                widen_all(row, wide);
                sum += sum_of_products(simd, [x, wide]);
            }
            *y = sum;
        }
    }
}

/// Numbers that are worked on in the first cache before the next are read.
const BLOCK: usize = 512;

#[inline(always)]
fn sum_of_products<S: Simd, const N: usize>(simd: S, rows: [&[f32]; N]) -> f32 {
    /// Sums at once, so that one does not wait for another.
    const SUMS: usize = 4;
    let len = rows[0].len();
    let rows = rows.map(|row| S::as_simd_f32s(&row[..len]));
    let num_vectors = rows[0].0.len();
    let vectors = rows.map(|(vectors, _)| &vectors[..num_vectors]);
    let mut sums = [simd.splat_f32s(0.0); SUMS];
    for first in (0..num_vectors).step_by(SUMS) {
        for (sum, index) in sums.iter_mut().zip(first..num_vectors) {
            let factors = vectors[1..N - 1].iter();
            let product = factors.fold(vectors[0][index], |product, factor| {
                simd.mul_f32s(product, factor[index])
            });
            *sum = simd.mul_add_e_f32s(product, vectors[N - 1][index], *sum);
        }
    }
    let [a, b, c, d] = sums;
    let sum = simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)));
    let rest = rows.map(|(_, rest)| rest);
    (0..rest[0].len()).fold(sum, |sum, index| {
        sum + rest.iter().map(|row| row[index]).product::<f32>()
    })
}

/// bf16 is the upper half of an f32.
#[inline(always)]
pub(super) fn widen(bf16: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bf16)) << 16)
}

/// Decodes bf16 numbers.
#[inline(always)]
pub(super) fn widen_all(bf16: &[[u8; 2]], wide: &mut [f32]) {
    for (wide, &bf16) in wide.iter_mut().zip(bf16) {
        *wide = widen(bf16);
    }
}

/// The sum of squares in f64.
#[inline(always)]
pub(super) fn sum_of_squares(x: &[f32]) -> f64 {
    // So many that the compiler keeps a loop over them, which it can turn into
    // vectors; few enough for the first cache.
    const SUMS: usize = 256;
    let (x, rest) = x.as_chunks::<SUMS>();
    let mut sums = [0.0_f64; SUMS];
    for x in x {
        for (sum, &x) in sums.iter_mut().zip(x) {
            *sum += f64::from(x) * f64::from(x);
        }
    }
    for (sum, &x) in sums.iter_mut().zip(rest) {
        *sum += f64::from(x) * f64::from(x);
    }
    sums.iter().sum()
}

/// The sum of `exp(x - shift)`.
#[inline(always)]
pub(super) fn sum_of_exp(x: &[f32], shift: f32) -> f32 {
    let mut copy = [0.0; BLOCK];
    let mut sum = 0.0;
    for x in x.chunks(BLOCK) {
        let copy = &mut copy[..x.len()];
        copy.copy_from_slice(x);
        sum += exp_in_place(copy, shift);
    }
    sum
}

/// The largest of `x` and `start`; a NaN does not count.
#[inline(always)]
pub(super) fn max_of(x: &[f32], start: f32) -> f32 {
    let (x, rest) = x.as_chunks::<LANES>();
    let mut largest = [start; LANES];
    for x in x {
        for lane in 0..LANES {
            largest[lane] = larger(largest[lane], x[lane]);
        }
    }
    for (largest, &x) in largest.iter_mut().zip(rest) {
        *largest = larger(*largest, x);
    }
    pairwise(largest, larger)
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// The first half with the second, until one is left.
#[inline(always)]
fn pairwise<F: Copy>(mut lanes: [F; LANES], join: impl Fn(F, F) -> F) -> F {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = join(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Overwrites `x` with `exp(x - shift)` and gives the sum.
#[inline(always)]
pub(super) fn exp_in_place(x: &mut [f32], shift: f32) -> f32 {
    let (x, rest) = x.as_chunks_mut::<LANES>();
    let mut sums = [0.0; LANES];
    for x in x {
        for lane in 0..LANES {
            x[lane] = exp(x[lane] - shift);
            sums[lane] += x[lane];
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *x = exp(*x - shift);
        *sum += *x;
    }
    pairwise(sums, |a, b| a + b)
}

/// The sum.
#[inline(always)]
pub(super) fn sum(x: &[f32]) -> f32 {
    let (x, rest) = x.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for x in x {
        for lane in 0..LANES {
            sums[lane] += x[lane];
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += x;
    }
    pairwise(sums, |a, b| a + b)
}

/// The sum of `(x - mean)^2`.
#[inline(always)]
pub(super) fn sum_of_squared_distances(x: &[f32], mean: f32) -> f32 {
    let (x, rest) = x.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for x in x {
        for lane in 0..LANES {
            let distance = x[lane] - mean;
            sums[lane] += distance * distance;
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += (x - mean) * (x - mean);
    }
    pairwise(sums, |a, b| a + b)
}

/// The sums of `x y` and of `x y (z - mean)`.
#[inline(always)]
pub(super) fn products_with_distances([x, y, z]: [&[f32]; 3], mean: f32) -> [f32; 2] {
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (y, y_rest) = y.as_chunks::<LANES>();
    let (z, z_rest) = z.as_chunks::<LANES>();
    let (mut sums, mut with_distances) = ([0.0; LANES], [0.0; LANES]);
    for ((x, y), z) in x.iter().zip(y).zip(z) {
        for lane in 0..LANES {
            let product = x[lane] * y[lane];
            sums[lane] += product;
            with_distances[lane] += product * (z[lane] - mean);
        }
    }
    for (lane, ((x, y), z)) in x_rest.iter().zip(y_rest).zip(z_rest).enumerate() {
        sums[lane] += x * y;
        with_distances[lane] += x * y * (z - mean);
    }
    [sums, with_distances].map(|sums| pairwise(sums, |a, b| a + b))
}

/// 1.5 * 2^23: added to a small number it leaves the nearest integer in the low
/// bits.
const ROUND: f32 = 12_582_912.0;

/// ln 2 in two parts; products of the first with whole numbers up to 2^9 are
/// exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// Where [`exp`] leaves the normal numbers.
const EXP_RANGE: [f32; 2] = [-87.336_54, 88.722_84];

/// `e^x` to 1.5 units in the last place (measured over its whole range by a test
/// below); 0 where the result would be subnormal, NaN of NaN.
///
/// `x = n ln 2 + r` with whole `n` and `|r| <= ln 2 / 2`, `e^r` by a polynomial
/// (Cephes), times `2^n` in two steps because `2^128` is not an f32.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let rounded = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-LN_2[1], n.mul_add(-LN_2[0], x));
    let mut p = 1.987_569_1e-4_f32;
    for coefficient in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = p.mul_add(r, coefficient);
    }
    let p = p.mul_add(r * r, r) + 1.0;
    let exponent = rounded
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .cast_signed();
    let half = exponent >> 1;
    let y = p * power_of_two(half) * power_of_two(exponent.wrapping_sub(half));
    let y = if x < EXP_RANGE[0] { 0.0 } else { y };
    if x > EXP_RANGE[1] { f32::INFINITY } else { y }
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(exponent.wrapping_add(127).cast_unsigned() << 23)
}

/// The part of a normal distribution above `x >= 0`, `erfc(x / sqrt(2)) / 2`, to
/// 7e-8 (measured by a test below); NaN of NaN.
///
/// With `z = x / sqrt(2)`, up to 1 by a polynomial for `erf(z) / z` in `z^2`,
/// beyond by one for `ln(erfc(z))`. Both are the best in the largest error, found by
/// reweighted least squares: 1e-9 each.
#[inline(always)]
pub(super) fn upper_tail(x: f32) -> f32 {
    /// Beyond this what is left is less than a half of 3e-9.
    const END: f32 = 4.2;
    const NEAR: [f32; 7] = [
        7.889_119e-5,
        -8.020_841e-4,
        5.189_535e-3,
        -2.685_444_5e-2,
        0.112_836,
        -0.376_126_27,
        std::f32::consts::FRAC_2_SQRT_PI,
    ];
    const FAR: [f32; 7] = [
        1.855_750_1e-4,
        -2.939_616_9e-3,
        2.180_535_6e-2,
        -0.103_037_44,
        -0.638_225_6,
        -1.127_040_1,
        -3.537_075e-4,
    ];
    let z = x * std::f32::consts::FRAC_1_SQRT_2;
    let near = 0.5 - 0.5 * z * polynomial(NEAR, z * z);
    let far = 0.5 * exp(polynomial(FAR, z));
    let far = if z > END { 0.0 } else { far };
    if z < 1.0 { near } else { far }
}

/// Coefficients from the highest power down.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: [f32; N], x: f32) -> f32 {
    let mut sum = 0.0_f32;
    for coefficient in coefficients {
        sum = sum.mul_add(x, coefficient);
    }
    sum
}

/// Sine and cosine of an angle up to 2^30, to 1e-7.
///
/// The quarter turns are taken off in f64, so a position of a million costs no
/// digits; what is left goes through polynomials (Cephes).
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "a small angle is rounded once, and of the turns only the last two bits count"
)]
pub(super) fn sin_cos(angle: f32) -> (f32, f32) {
    /// 1.5 * 2^52, as `ROUND` is for f32.
    const ROUND_F64: f64 = 6_755_399_441_055_744.0;
    let angle = f64::from(angle);
    let rounded = angle * std::f64::consts::FRAC_2_PI + ROUND_F64;
    let r = (angle - (rounded - ROUND_F64) * std::f64::consts::FRAC_PI_2) as f32;
    let quarters = rounded.to_bits() as u32;
    let square = r * r;
    let sin =
        ((-1.951_529_6e-4 * square + 8.332_161e-3) * square - 1.666_665_5e-1) * square * r + r;
    let cos = ((2.443_315_7e-5 * square - 1.388_731_6e-3) * square + 4.166_664_6e-2)
        * (square * square)
        - 0.5 * square
        + 1.0;
    let swapped = quarters & 1 == 1;
    let (sin, cos) = if swapped { (cos, sin) } else { (sin, cos) };
    let flip = |value: f32, negative: u32| f32::from_bits(value.to_bits() ^ (negative << 31));
    (
        flip(sin, quarters >> 1 & 1),
        flip(cos, (quarters >> 1 ^ quarters) & 1),
    )
}

#[cfg(test)]
#[expect(
    clippy::float_cmp,
    reason = "whole numbers, and the ends of a range, are exact"
)]
mod tests {
    use half::bf16;

    use super::*;

    /// Units in the last place that `exp` may be off.
    const EXP_ULPS: f64 = 1.5;

    /// Bits between two tries: a prime, so that every pattern of low bits comes.
    const STRIDE: usize = 1009;

    /// Every so many-th f32 of both signs between 0 and `limit`.
    fn numbers(limit: f32) -> impl Iterator<Item = f32> {
        (0..=limit.to_bits())
            .step_by(STRIDE)
            .map(f32::from_bits)
            .flat_map(|x| [x, -x])
    }

    /// The spacing of f32 numbers at `x`.
    fn ulp(x: f64) -> f64 {
        (x.log2().floor() - 23.0).exp2()
    }

    #[test]
    fn exp_is_right_to_an_ulp_and_a_half_over_its_range() {
        let in_range = |x: &f32| (EXP_RANGE[0]..=EXP_RANGE[1]).contains(x);
        let worst = numbers(EXP_RANGE[1])
            .filter(in_range)
            .map(|x| {
                let expected = f64::from(x).exp();
                (f64::from(exp(x)) - expected).abs() / ulp(expected)
            })
            .fold(0.0, f64::max);
        assert!(worst <= EXP_ULPS, "{worst} ulp");
    }

    /// Absolute error of the upper tail.
    const TAIL_ERROR: f64 = 7e-8;

    /// By Simpson's rule from `x` on, in f64.
    fn tail_by_area(x: f64) -> f64 {
        const STEPS: i32 = 2000;
        let step = 12.0 / f64::from(STEPS);
        let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        let area = |number: i32| {
            let weight = match number {
                0 | STEPS => 1.0,
                number if number % 2 == 1 => 4.0,
                _ => 2.0,
            };
            weight * density(x + f64::from(number) * step)
        };
        (0..=STEPS).map(area).sum::<f64>() * step / 3.0
    }

    #[test]
    fn the_upper_tail_is_the_area_under_the_density() {
        for number in 0..2000 {
            let x = number as f32 / 200.0;
            let off = (f64::from(upper_tail(x)) - tail_by_area(x.into())).abs();
            assert!(off < TAIL_ERROR, "{x}: off by {off:e}");
        }
        assert_eq!(upper_tail(0.0), 0.5);
        assert_eq!([upper_tail(1e30), upper_tail(f32::INFINITY)], [0.0, 0.0]);
        assert!(upper_tail(f32::NAN).is_nan());
    }

    #[test]
    fn exp_ends_in_zero_and_infinity_and_passes_nan_on() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(-87.4), 0.0);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert_eq!([exp(0.0), exp(-0.0)], [1.0, 1.0]);
    }

    /// Absolute error of sine and cosine.
    const SIN_COS_ERROR: f64 = 1.2e-7;

    #[test]
    fn sine_and_cosine_are_right_for_positions_up_to_a_million() {
        for angle in numbers(1_048_576.0) {
            let (sin, cos) = sin_cos(angle);
            let (expected_sin, expected_cos) = f64::from(angle).sin_cos();
            assert!(
                (f64::from(sin) - expected_sin).abs() < SIN_COS_ERROR,
                "{angle}"
            );
            assert!(
                (f64::from(cos) - expected_cos).abs() < SIN_COS_ERROR,
                "{angle}"
            );
        }
    }

    #[test]
    fn sums_take_every_element_of_every_length() {
        for len in 0..100 {
            let x: Vec<f32> = (0..len).map(|index| index as f32).collect();
            let sum = (len * (len - 1).max(0) / 2) as f32;
            let ones = vec![1.0; x.len()];
            let bf16: Vec<[u8; 2]> = x.iter().map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
            assert_eq!(dot(&x, &ones), sum);
            assert_eq!(dot3(&ones, &x, &ones), sum);
            assert_eq!(super::sum(&x), sum);
            let squared: f32 = x.iter().map(|x| (x - 1.0) * (x - 1.0)).sum();
            assert_eq!(sum_of_squared_distances(&x, 1.0), squared);
            let products = products_with_distances([&ones, &x, &x], 1.0);
            assert_eq!(products, [sum, squared + sum - len as f32]);
            if len > 0 {
                let mut products = [0.0; 2];
                dot_rows(&ones, &[&x[..], &ones].concat(), &mut products);
                assert_eq!(products, [sum, len as f32]);
                dot_rows_bf16(&ones, &[&bf16[..], &bf16].concat(), &mut products);
                assert_eq!(products, [sum, sum]);
            }
            assert_eq!(max_of(&x, -1.0), len as f32 - 1.0);
            let squares: f64 = x.iter().map(|&x| f64::from(x * x)).sum();
            assert_eq!(sum_of_squares(&x), squares);
        }
    }

    #[test]
    fn a_nan_is_no_maximum_but_reaches_sums() {
        let x = [1.0, f32::NAN, 3.0];
        assert_eq!(max_of(&x, f32::NEG_INFINITY), 3.0);
        assert!(sum_of_squares(&x).is_nan());
        assert!(exp_in_place(&mut x.clone(), 3.0).is_nan());
    }
}
