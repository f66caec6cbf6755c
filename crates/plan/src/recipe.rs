//! The precision set of a run, and the bytes it keeps for a parameter.

use std::fmt;
use std::str::FromStr;

use kernels::WeightFormat;
use tensor::Dtype;

/// The precision set of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recipe {
    /// f32 weights, f32 moments.
    F32,
    /// bf16 weights with their 16 low bits, together an exact f32 master; f32 moments.
    #[default]
    Bf16,
}

impl Recipe {
    /// All recipes.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// The name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// How a tensor's gatherable plane is stored. Vectors are f32 in every recipe.
    pub fn weight_format(self, is_vector: bool) -> WeightFormat {
        match self {
            Self::Bf16 if !is_vector => WeightFormat::Bf16,
            Self::F32 | Self::Bf16 => WeightFormat::F32,
        }
    }

    /// The format that weights rest in where nothing is trained: the file's own,
    /// if an operation reads it.
    pub fn resting_format(dtype: Dtype, is_vector: bool) -> WeightFormat {
        if dtype == Dtype::BF16 && !is_vector {
            WeightFormat::Bf16
        } else {
            WeightFormat::F32
        }
    }

    /// Bytes of an element that peers never read: the master's low bits.
    pub fn residual_bytes(self, is_vector: bool) -> usize {
        4 - self.weight_format(is_vector).size_bytes()
    }

    /// Bytes of an element's two moments.
    pub fn moment_bytes(self) -> usize {
        8
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A recipe that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown recipe `{0}`, expected `f32` or `bf16`")]
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
