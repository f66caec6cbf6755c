//! How each tensor rests under a recipe with its exceptions.

use std::fmt;
use std::str::FromStr;

use fp8::Format;
use kernels::WeightFormat;
use spec::{Param, Role};
use tensor::Dtype;

use crate::Recipe;
use crate::storage::{MomentFormat, Residual, Storage};

/// What products are computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compute {
    /// As the recipe says.
    #[default]
    Recipe,
    /// f32, from whole masters: a recipe's storage alone.
    F32,
}

/// Products in what there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown `{0}`, expected `recipe` or `f32`")]
pub struct UnknownCompute(pub String);

impl FromStr for Compute {
    type Err = UnknownCompute;

    fn from_str(name: &str) -> Result<Self, UnknownCompute> {
        match name {
            "recipe" => Ok(Self::Recipe),
            "f32" => Ok(Self::F32),
            _ => Err(UnknownCompute(name.to_owned())),
        }
    }
}

/// A recipe with its exceptions.
#[derive(Debug, Clone, PartialEq)]
pub struct Precision {
    /// The recipe.
    pub recipe: Recipe,
    /// What products are computed in.
    pub compute: Compute,
    /// Which linear layers stay out of FP8.
    pub kept: Kept,
    /// Which parameters are not trained.
    pub frozen: Patterns,
    /// What gradients are rounded to that codes are multiplied by.
    pub gradient_format: Format,
}

impl Default for Precision {
    fn default() -> Self {
        Self {
            recipe: Recipe::default(),
            compute: Compute::default(),
            kept: Kept::default(),
            frozen: Patterns::default(),
            gradient_format: Format::E4M3,
        }
    }
}

/// Which linear layers stay out of FP8.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// All of the first and of the last block.
    pub ends: bool,
    /// Those with a name like these.
    pub named: Patterns,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            ends: true,
            named: Patterns::default(),
        }
    }
}

/// Names with `*` for any text and `?` for any character.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Patterns(Vec<glob::Pattern>);

/// A pattern that means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pattern `{pattern}`: {reason}")]
pub struct BadPattern {
    /// What was given.
    pub pattern: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Patterns {
    /// Compiles patterns.
    pub fn new<'p>(patterns: impl IntoIterator<Item = &'p str>) -> Result<Self, BadPattern> {
        let compile = |pattern: &str| {
            glob::Pattern::new(pattern).map_err(|error| BadPattern {
                pattern: pattern.to_owned(),
                reason: error.msg.to_owned(),
            })
        };
        patterns
            .into_iter()
            .map(compile)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The first pattern that a name is like.
    pub fn matching(&self, name: &str) -> Option<&str> {
        let mut patterns = self.0.iter();
        patterns
            .find(|pattern| pattern.matches(name))
            .map(glob::Pattern::as_str)
    }

    /// Those that no name is like.
    pub fn unused<'s>(&'s self, names: &[&str]) -> impl Iterator<Item = &'s str> {
        let is_unused = |pattern: &&glob::Pattern| !names.iter().any(|name| pattern.matches(name));
        self.0.iter().filter(is_unused).map(glob::Pattern::as_str)
    }
}

/// Why a matrix has codes or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// It has.
    Codes,
    /// Embedding and `lm_head` do not.
    Table,
    /// The first and the last block do not.
    EndBlock,
    /// A pattern says so.
    Named(String),
    /// The recipe has none.
    Recipe,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Codes => f.write_str("FP8"),
            Self::Table => f.write_str("kept: a table"),
            Self::EndBlock => f.write_str("kept: first or last block"),
            Self::Named(pattern) => write!(f, "kept: named by `{pattern}`"),
            Self::Recipe => f.write_str("kept: the recipe has no FP8"),
        }
    }
}

impl Precision {
    /// A recipe without further wishes.
    pub fn of(recipe: Recipe) -> Self {
        Self {
            recipe,
            ..Self::default()
        }
    }

    /// Whether a matrix has codes; `is_end` says whether it is the first or the last
    /// block's.
    pub fn choice(&self, param: &Param, is_end: bool) -> Choice {
        if self.recipe.nesting().is_none() {
            return Choice::Recipe;
        }
        if matches!(param.role, Role::Embedding | Role::LmHead) {
            return Choice::Table;
        }
        if let Some(pattern) = self.kept.named.matching(&param.name) {
            return Choice::Named(pattern.to_owned());
        }
        if is_end && self.kept.ends {
            return Choice::EndBlock;
        }
        Choice::Codes
    }

    /// How a parameter rests in training.
    pub fn storage(&self, param: &Param, is_end: bool) -> Storage {
        let trained = self.trained(param, is_end);
        if self.is_frozen(&param.name) {
            return Storage::resting(trained.weight);
        }
        trained
    }

    /// Whether a parameter of this name is not trained.
    pub fn is_frozen(&self, name: &str) -> bool {
        self.frozen.matching(name).is_some()
    }

    fn trained(&self, param: &Param, is_end: bool) -> Storage {
        if param.is_vector {
            return Storage::F32;
        }
        let nesting = self.recipe.nesting();
        let Some(nesting) = nesting.filter(|_| self.choice(param, is_end) == Choice::Codes) else {
            return self.recipe.plain_matrix();
        };
        let (weight, residual) = match self.compute {
            Compute::Recipe => (WeightFormat::E4m3, Residual::Nested(nesting)),
            Compute::F32 => (WeightFormat::Nested(nesting), Residual::None),
        };
        Storage {
            weight,
            residual,
            moments: MomentFormat::Eight,
        }
    }

    /// How a parameter rests where nothing is trained, if products are to be the
    /// recipe's.
    pub fn resting(&self, param: &Param, is_end: bool) -> Storage {
        Storage::resting(self.trained(param, is_end).weight)
    }
}

/// The format that weights rest in where nothing is trained and no recipe is asked
/// for: the file's own, if an operation reads it.
pub fn resting_format(dtype: Dtype, is_vector: bool) -> WeightFormat {
    if dtype == Dtype::BF16 && !is_vector {
        WeightFormat::Bf16
    } else {
        WeightFormat::F32
    }
}
