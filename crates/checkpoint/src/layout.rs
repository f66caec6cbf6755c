//! The two ways in which a folder lays out its weights.
//!
//! ```text
//! model.safetensors    or  model.safetensors.index.json  + model-0000i-of-0000n.safetensors
//! pytorch_model.bin    or  pytorch_model.bin.index.json  + pytorch_model-0000i-of-0000n.bin
//! ```

use std::path::Path;

use crate::error::{CheckpointError, Result};
use crate::index::{INDEX_NAME, Index};
use crate::weights::Format;

/// The names that files of one format have.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) format: Format,
    pub(crate) index: &'static str,
    pub(crate) single: &'static str,
    /// What numbered files begin and end with.
    numbered: (&'static str, &'static str),
}

/// All layouts, the preferred one first.
pub(crate) const LAYOUTS: [Layout; 2] = [
    Layout {
        format: Format::Safetensors,
        index: INDEX_NAME,
        single: "model.safetensors",
        numbered: ("model-", ".safetensors"),
    },
    Layout {
        format: Format::Pickle,
        index: "pytorch_model.bin.index.json",
        single: "pytorch_model.bin",
        numbered: ("pytorch_model-", ".bin"),
    },
];

impl Layout {
    /// The `n` of `model-0000i-of-0000n.safetensors`.
    pub(crate) fn count_in(&self, name: &str) -> Option<u64> {
        let (begin, end) = self.numbered;
        let middle = name.strip_prefix(begin)?.strip_suffix(end)?;
        let (number, count) = middle.split_once("-of-")?;
        number.parse::<u64>().ok()?;
        count.parse().ok()
    }

    /// Refuses a numbered file that belongs to the index's set by its count but is
    /// not named: a part of the model that would be left out in silence.
    pub(crate) fn refuse_unnamed(
        &self,
        index: &Index,
        index_path: &Path,
        names: &[String],
    ) -> Result<()> {
        let counts: Vec<_> = index
            .files
            .iter()
            .filter_map(|name| self.count_in(name))
            .collect();
        let unnamed = names.iter().find(|name| {
            let count = self.count_in(name);
            count.is_some_and(|count| counts.contains(&count)) && !index.files.contains(name)
        });
        match unnamed {
            None => Ok(()),
            Some(found) => Err(CheckpointError::UnnamedFile {
                index: index_path.to_owned(),
                found: found.clone(),
            }),
        }
    }
}
