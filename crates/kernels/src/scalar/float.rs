//! The two number types that the reference computes in.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// f32 or f64.
pub trait Float:
    sealed::Sealed
    + Copy
    + std::fmt::Debug
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + Sum
    + From<f32>
    + Into<f64>
{
    /// The nearest number of this type.
    fn nearest(x: f64) -> Self;
    /// The nearest f32.
    fn to_f32(self) -> f32;
    /// The square root.
    #[must_use]
    fn sqrt(self) -> Self;
    /// The exponential function.
    #[must_use]
    fn exp(self) -> Self;
    /// The natural logarithm.
    #[must_use]
    fn ln(self) -> Self;
    /// Sine and cosine of an angle.
    fn sin_cos(self) -> (Self, Self);
    /// The hyperbolic tangent.
    #[must_use]
    fn tanh(self) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

macro_rules! float {
    ($type:ident, $nearest:expr, $to_f32:expr) => {
        impl Float for $type {
            fn nearest(x: f64) -> Self {
                $nearest(x)
            }
            fn to_f32(self) -> f32 {
                $to_f32(self)
            }
            fn sqrt(self) -> Self {
                $type::sqrt(self)
            }
            fn exp(self) -> Self {
                $type::exp(self)
            }
            fn ln(self) -> Self {
                $type::ln(self)
            }
            fn sin_cos(self) -> (Self, Self) {
                $type::sin_cos(self)
            }
            fn tanh(self) -> Self {
                $type::tanh(self)
            }
        }
    };
}

float!(f32, narrow, std::convert::identity);
float!(f64, std::convert::identity, narrow);

#[expect(
    clippy::cast_possible_truncation,
    reason = "rounding to nearest is what is asked for"
)]
fn narrow(x: f64) -> f32 {
    x as f32
}
