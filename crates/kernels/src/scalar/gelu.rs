//! The Gaussian error linear unit in both forms, and its derivative.

use std::f64::consts::{FRAC_2_PI, FRAC_2_SQRT_PI, SQRT_2};

use super::float::Float;
use crate::Gelu;

/// What the cube is weighted by in the tanh form.
const CUBE: f64 = 0.044_715;

/// `gelu(x)`.
pub(super) fn value<F: Float>(x: F, form: Gelu) -> F {
    x * share(x, form)
}

/// `d gelu / dx`: with `s` the share and `s'` its derivative, `s + x s'`.
pub(super) fn slope<F: Float>(x: F, form: Gelu) -> F {
    let (one, half) = (F::from(1.0), F::from(0.5));
    let share_slope = match form {
        Gelu::Erf => {
            let factor = F::nearest(FRAC_2_SQRT_PI / SQRT_2 / 2.0);
            factor * (-half * x * x).exp()
        }
        Gelu::Tanh => {
            let tanh = inner(x).tanh();
            let inner_slope = F::nearest(FRAC_2_PI.sqrt()) * (one + F::nearest(3.0 * CUBE) * x * x);
            half * (one - tanh * tanh) * inner_slope
        }
    };
    share(x, form) + x * share_slope
}

/// The share of `x` that passes, between 0 and 1.
fn share<F: Float>(x: F, form: Gelu) -> F {
    let (one, half) = (F::from(1.0), F::from(0.5));
    match form {
        Gelu::Erf => half * (one + F::nearest(erf(x.into() / SQRT_2))),
        Gelu::Tanh => half * (one + inner(x).tanh()),
    }
}

/// `sqrt(2 / pi) (x + 0.044715 x^3)`.
fn inner<F: Float>(x: F) -> F {
    F::nearest(FRAC_2_PI.sqrt()) * (x + F::nearest(CUBE) * x * x * x)
}

/// The error function, by the series whose terms all have one sign:
///
/// ```text
/// erf(x) = 2 x / sqrt(pi) exp(-x^2) (1 + 2x^2/3 + (2x^2)^2/(3 5) + ...)
/// ```
fn erf(x: f64) -> f64 {
    /// From here on the result is 1 to the last bit.
    const END: f64 = 6.0;
    if x.abs() >= END {
        return x.signum();
    }
    let (mut term, mut sum, mut odd) = (1.0, 1.0, 1.0);
    while term > sum * f64::EPSILON / 4.0 {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        sum += term;
    }
    FRAC_2_SQRT_PI * x * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_has_its_published_values() {
        // Abramowitz & Stegun, table 7.1, and the series far out.
        for (x, expected) in [
            (0.0, 0.0),
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
            (10.0, 1.0),
        ] {
            assert!((erf(x) - expected).abs() < 1e-15, "{x}: {}", erf(x));
            assert!((erf(-x) + expected).abs() < 1e-15, "-{x}");
        }
    }
}
