//! A model that was found and understood; no weight is read yet.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use checkpoint::{Folder, ReadRules, Sources};
use data::Tokenizer;
use model::Transformer;
use plan::Precision;
use tempfile::TempDir;
use train::InferenceModel;

use crate::Error;
use crate::temporary::temporary;

/// The name of the model inside the program.
pub const DEMO: &str = "demo";

/// Which model to open, and how strictly it is read.
#[derive(Debug, Clone, Copy)]
pub struct ModelPath<'a> {
    /// A Hugging Face folder, or `demo`.
    pub path: &'a Path,
    /// How it is read.
    pub rules: ReadRules,
}

impl<'a> From<&'a Path> for ModelPath<'a> {
    fn from(path: &'a Path) -> Self {
        let rules = ReadRules::default();
        Self { path, rules }
    }
}

impl<'a> From<&'a PathBuf> for ModelPath<'a> {
    fn from(path: &'a PathBuf) -> Self {
        path.as_path().into()
    }
}

/// What lax reading leaves out of a model, in words; reads headers only.
pub fn left_out(model: ModelPath<'_>) -> Result<Vec<String>, Error> {
    Ok(OpenModel::open(model)?.left_out())
}

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
    pub fn open<'a>(model: impl Into<ModelPath<'a>>) -> Result<Self, Error> {
        let model = model.into();
        if model.path.as_os_str() != DEMO {
            return Self::from_folder(model, None);
        }
        let files = temporary()?;
        demo::write_model(files.path())?;
        let path = files.path().to_owned();
        Self::from_folder((&path).into(), Some(files))
    }

    fn from_folder(model: ModelPath<'_>, demo: Option<TempDir>) -> Result<Self, Error> {
        if let Some(name) = hub_name(model.path) {
            return Err(Error::NotDownloaded { name });
        }
        let folder = Folder::open_with(model.path, model.rules)?;
        let spec = folder.spec()?;
        let sources = folder.sources(&spec)?;
        Ok(Self {
            folder,
            sources,
            model: Transformer::new(spec),
            _demo: demo,
        })
    }

    /// What lax reading leaves out, in words.
    pub(crate) fn left_out(&self) -> Vec<String> {
        let fields = self.folder.unknown_fields().iter().cloned();
        let tensors = self.sources.unexpected(&self.folder);
        let tensors = tensors.map(|tensor| {
            let name = &tensor.meta.name;
            format!("tensor `{name}` does not belong to the model and is left out")
        });
        fields.chain(tensors).collect()
    }

    /// The folder's tokenizer.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        Ok(Tokenizer::from_folder(self.folder.path())?)
    }

    /// The model as it is read for inference; with a precision its products are those
    /// of training under it.
    pub(crate) fn inference<'a>(
        &'a self,
        threads: usize,
        precision: Option<&'a Precision>,
    ) -> InferenceModel<'a> {
        InferenceModel {
            precision,
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

/// A path that is not there and looks like `OWNER/MODEL`.
fn hub_name(path: &Path) -> Option<String> {
    let name = path.to_str()?;
    let (owner, model) = name.split_once('/')?;
    let is_word = |word: &str| !word.is_empty() && !word.starts_with('.') && !word.contains('/');
    // A typing error in a path of ours has a first folder that is there.
    let is_name = is_word(owner) && is_word(model) && !Path::new(owner).exists();
    is_name.then(|| name.to_owned())
}

/// Cores that this process may use.
pub(crate) fn num_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// A path under `out/run`.
pub(crate) fn run_path(out: &Path, name: &str) -> PathBuf {
    out.join("run").join(name)
}
