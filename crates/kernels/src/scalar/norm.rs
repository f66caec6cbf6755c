//! The two norms, one token at a time.

use super::float::Float;

/// `y = x * rstd * weight`.
pub(super) fn rms<F: Float>(x: &[F], weight: &[F], eps: f32, y: &mut [F], rstd_t: &mut [F]) {
    let c = weight.len();
    let tokens = x.chunks_exact(c).zip(y.chunks_exact_mut(c)).zip(rstd_t);
    for ((x_c, y_c), rstd) in tokens {
        *rstd = inverse_root(mean(x_c.iter().map(|&x| x * x)), eps);
        for ((y, &x), &weight) in y_c.iter_mut().zip(x_c).zip(weight) {
            *y = x * *rstd * weight;
        }
    }
}

/// With `n = x * rstd` and `dn = dy * weight`:
/// `dx += rstd * (dn - n * mean(dn * n))`, `grad += dy * n`.
pub(super) fn rms_backward<F: Float>(
    [x, weight, rstd_t, dy]: [&[F]; 4],
    dx: &mut [F],
    grad: &mut [F],
) {
    let c = weight.len();
    for (token, &rstd) in rstd_t.iter().enumerate() {
        let here = token * c..(token + 1) * c;
        let (x_c, dy_c) = (&x[here.clone()], &dy[here.clone()]);
        let n = |index: usize| x_c[index] * rstd;
        let dn = |index: usize| dy_c[index] * weight[index];
        let mean_dn_n = mean((0..c).map(|index| dn(index) * n(index)));
        for (index, dx) in dx[here].iter_mut().enumerate() {
            *dx += rstd * (dn(index) - n(index) * mean_dn_n);
            grad[index] += dy_c[index] * n(index);
        }
    }
}

/// `y = (x - mean) * rstd * weight + bias`.
pub(super) fn layer<F: Float>(
    x: &[F],
    [weight, bias]: [&[F]; 2],
    eps: f32,
    [y, stats_t2]: [&mut [F]; 2],
) {
    let c = weight.len();
    let stats = stats_t2.chunks_exact_mut(2);
    let tokens = x.chunks_exact(c).zip(y.chunks_exact_mut(c)).zip(stats);
    for ((x_c, y_c), stats) in tokens {
        let middle = mean(x_c.iter().copied());
        let variance = mean(x_c.iter().map(|&x| (x - middle) * (x - middle)));
        let rstd = inverse_root(variance, eps);
        stats.copy_from_slice(&[middle, rstd]);
        for (index, y) in y_c.iter_mut().enumerate() {
            *y = (x_c[index] - middle) * rstd * weight[index] + bias[index];
        }
    }
}

/// With `n = (x - mean) * rstd` and `dn = dy * weight`:
/// `dx += rstd * (dn - mean(dn) - n * mean(dn * n))`, `grad += dy * n` for the
/// weight and `grad += dy` for the bias, at the two places of `at`.
pub(super) fn layer_backward<F: Float>(
    [x, weight, stats_t2, dy]: [&[F]; 4],
    dx: &mut [F],
    grad: &mut [F],
    at: [usize; 2],
) {
    let c = weight.len();
    for (token, stats) in stats_t2.chunks_exact(2).enumerate() {
        let here = token * c..(token + 1) * c;
        let (x_c, dy_c) = (&x[here.clone()], &dy[here.clone()]);
        let n = |index: usize| (x_c[index] - stats[0]) * stats[1];
        let dn = |index: usize| dy_c[index] * weight[index];
        let mean_dn = mean((0..c).map(dn));
        let mean_dn_n = mean((0..c).map(|index| dn(index) * n(index)));
        for (index, dx) in dx[here].iter_mut().enumerate() {
            *dx += stats[1] * (dn(index) - mean_dn - n(index) * mean_dn_n);
            grad[at[0] + index] += dy_c[index] * n(index);
            grad[at[1] + index] += dy_c[index];
        }
    }
}

fn mean<F: Float>(numbers: impl ExactSizeIterator<Item = F>) -> F {
    let len = F::nearest(numbers.len() as f64);
    numbers.sum::<F>() / len
}

/// `1 / sqrt(square + eps)`.
fn inverse_root<F: Float>(square: F, eps: f32) -> F {
    F::from(1.0) / (square + F::from(eps)).sqrt()
}
