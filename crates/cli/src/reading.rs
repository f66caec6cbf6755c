//! How strictly a model folder is read: flags that several commands share.

use std::path::Path;

use nestling::{FollowLinks, ModelPath, ReadRules, Strictness, left_out};

use crate::error::CliError;
use crate::output::note;

/// How a model folder is read.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Reading {
    /// Leave out tensors that the model does not have and unknown fields of headers,
    /// with a warning, instead of refusing them
    #[arg(long)]
    lax: bool,
    /// Links in the model folder to follow: any, those of a Hugging Face cache and
    /// within the folder, or none
    #[arg(long, value_name = "any|cache|none", default_value = "cache")]
    follow_links: FollowLinks,
}

impl Reading {
    /// A model, and how it is read.
    pub(crate) fn of(self, path: &Path) -> ModelPath<'_> {
        let strictness = if self.lax {
            Strictness::Lax
        } else {
            Strictness::Strict
        };
        let links = self.follow_links;
        ModelPath {
            path,
            rules: ReadRules { strictness, links },
        }
    }

    /// As [`Self::of`], after a note on what is left out.
    pub(crate) fn noted(self, path: &Path) -> Result<ModelPath<'_>, CliError> {
        let model = self.of(path);
        if self.lax {
            for warning in left_out(model)? {
                note(&format!("warning: {warning}"));
            }
        }
        Ok(model)
    }
}
