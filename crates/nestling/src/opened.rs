//! A model that was found and understood; no weight is read yet.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use checkpoint::{Folder, Sources};
use data::Tokenizer;
use model::Transformer;
use tempfile::TempDir;
use train::InferenceModel;

use crate::Error;
use crate::temporary::temporary;

/// The name of the model inside the program.
pub const DEMO: &str = "demo";

/// An opened model folder.
#[derive(Debug)]
pub struct OpenModel {
    /// The folder.
    pub folder: Folder,
    /// Where its tensors are.
    pub sources: Sources,
    /// What its configuration means.
    pub model: Transformer,
    /// The demo's files, removed with this.
    _demo: Option<TempDir>,
}

impl OpenModel {
    /// Opens a folder, or `demo`.
    pub fn open(model: &Path) -> Result<Self, Error> {
        if model.as_os_str() != DEMO {
            return Self::from_folder(model, None);
        }
        let files = temporary()?;
        demo::write_model(files.path())?;
        let path = files.path().to_owned();
        Self::from_folder(&path, Some(files))
    }

    fn from_folder(path: &Path, demo: Option<TempDir>) -> Result<Self, Error> {
        let folder = Folder::open(path)?;
        let spec = folder.spec()?;
        let sources = folder.sources(&spec)?;
        Ok(Self {
            folder,
            sources,
            model: Transformer::new(spec),
            _demo: demo,
        })
    }

    /// The folder's tokenizer.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        Ok(Tokenizer::from_folder(self.folder.path())?)
    }

    /// The model as it is read for inference.
    pub(crate) fn inference(&self, threads: usize) -> InferenceModel<'_> {
        InferenceModel {
            folder: &self.folder,
            sources: &self.sources,
            model: &self.model,
            num_threads: if threads == 0 { num_cores() } else { threads },
        }
    }

    /// Refuses ids that the model has no embedding for.
    pub(crate) fn check_ids(&self, ids: &[u32]) -> Result<(), Error> {
        let vocab = self.model.spec.vocab;
        let bad = ids.iter().position(|&id| id as usize >= vocab);
        match bad {
            Some(position) => Err(Error::BadToken {
                id: ids[position],
                position,
                vocab,
            }),
            None => Ok(()),
        }
    }
}

/// Cores that this process may use.
pub(crate) fn num_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// A path under `out/run`.
pub(crate) fn run_path(out: &Path, name: &str) -> PathBuf {
    out.join("run").join(name)
}
