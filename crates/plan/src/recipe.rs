//! The precision sets.

use std::fmt;
use std::str::FromStr;

use fp8::Nesting;
use kernels::WeightFormat;

use crate::storage::{MomentFormat, Residual, Storage};

/// The precision set of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recipe {
    /// f32 weights, f32 moments.
    F32,
    /// bf16 weights with their 16 low bits, together an exact f32 master; f32 moments.
    #[default]
    Bf16,
    /// bf16 weights, rounded stochastically; 8-bit moments.
    Bf16Lean,
    /// E4M3 codes with a residual of 16 bits; 8-bit moments; products in E4M3.
    Fp8,
    /// E4M3 codes with a residual of 8 bits, rounded stochastically; 8-bit moments;
    /// products in E4M3.
    Fp8Lean,
}

impl Recipe {
    /// All recipes.
    pub const ALL: [Self; 5] = [
        Self::F32,
        Self::Bf16,
        Self::Bf16Lean,
        Self::Fp8,
        Self::Fp8Lean,
    ];

    /// The name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Bf16Lean => "bf16-lean",
            Self::Fp8 => "fp8",
            Self::Fp8Lean => "fp8-lean",
        }
    }

    /// The residual of codes, in the recipes that have codes.
    pub(crate) fn nesting(self) -> Option<Nesting> {
        match self {
            Self::F32 | Self::Bf16 | Self::Bf16Lean => None,
            Self::Fp8 => Some(Nesting::N24),
            Self::Fp8Lean => Some(Nesting::N16),
        }
    }

    /// How a matrix rests that has no codes.
    pub(crate) fn plain_matrix(self) -> Storage {
        let (weight, residual, moments) = match self {
            Self::F32 => return Storage::F32,
            Self::Bf16 => (WeightFormat::Bf16, Residual::Low16, MomentFormat::F32),
            Self::Bf16Lean | Self::Fp8Lean => {
                (WeightFormat::Bf16, Residual::None, MomentFormat::Eight)
            }
            Self::Fp8 => (WeightFormat::Bf16, Residual::Low8, MomentFormat::Eight),
        };
        Storage {
            weight,
            residual,
            moments,
        }
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A recipe that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown recipe `{0}`, expected `f32`, `bf16`, `bf16-lean`, `fp8` or `fp8-lean`")]
pub struct UnknownRecipe(pub String);

impl FromStr for Recipe {
    type Err = UnknownRecipe;

    fn from_str(name: &str) -> Result<Self, UnknownRecipe> {
        Self::ALL
            .into_iter()
            .find(|recipe| recipe.name() == name)
            .ok_or_else(|| UnknownRecipe(name.to_owned()))
    }
}
