//! The flags of commands that can compute as training does.

use nestling::{Precision, Settings, TrainError};

use crate::error::CliError;

/// The names of the recipes.
pub(crate) const RECIPES: [&str; 5] = ["f32", "bf16", "bf16-lean", "fp8", "fp8-lean"];

/// What products are computed in.
#[derive(Debug, clap::Args)]
pub(crate) struct Products {
    /// Compute as training under this recipe does; without it, as the files are
    #[arg(long, value_parser = RECIPES)]
    recipe: Option<String>,
    /// Linear layers that stay out of FP8: names with `*`, `ends` for the first and the
    /// last block, `none`
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "recipe")]
    keep_bf16: Option<Vec<String>>,
}

impl Products {
    /// The recipe with its exceptions, if there is one.
    pub(crate) fn precision(&self) -> Result<Option<Precision>, CliError> {
        let Some(recipe) = &self.recipe else {
            return Ok(None);
        };
        precision(recipe, self.keep_bf16.as_deref()).map(Some)
    }
}

/// A recipe with the layers that stay out of FP8.
pub(crate) fn precision(recipe: &str, keep_bf16: Option<&[String]>) -> Result<Precision, CliError> {
    let mut settings = Settings {
        recipe: recipe.to_owned(),
        ..Settings::default()
    };
    if let Some(names) = keep_bf16 {
        settings.keep_bf16 = names.to_vec();
    }
    let precision = settings.precision().map_err(TrainError::from);
    Ok(precision.map_err(nestling::Error::from)?)
}
