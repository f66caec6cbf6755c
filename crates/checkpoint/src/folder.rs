//! What stands in a model folder: which files hold weights, and where in them
//! every tensor lies.
//!
//! The index is the truth: files beside those that it names are not read
//! (folders of the first Llama and Mistral hold every weight twice). Safetensors
//! come before the older pickles where a folder has both.

use std::fs;
use std::path::{Path, PathBuf};

use spec::{ModelSpec, Quantization, SpecError};

use crate::cache::CachePolicy;
use crate::error::{CheckpointError, Result, io_error};
use crate::files::{FileEntry, kind, read_text};
use crate::header::MAX_HEADER_BYTES;
use crate::index::Index;
use crate::layout::{LAYOUTS, Layout};
use crate::manifest::{MANIFEST_NAME, Manifest};
use crate::read::Reader;
use crate::rules::{Bounds, ReadRules, Strictness};
use crate::scales;
use crate::sources::Sources;
use crate::weights::{Located, Weights};

const CONFIG_NAME: &str = "config.json";
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// A model folder.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    bounds: Bounds,
    strictness: Strictness,
    weights: Weights,
    warnings: Vec<String>,
}

impl Folder {
    /// Reads a folder's index and the headers of its weight files.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, ReadRules::default())
    }

    /// As [`Folder::open`], by other rules than the strict ones.
    pub fn open_with(path: &Path, rules: ReadRules) -> Result<Self> {
        let metadata = fs::metadata(path).map_err(io_error("open", path))?;
        if !metadata.is_dir() {
            return Err(CheckpointError::NotAFolder {
                path: path.to_owned(),
                found: kind(metadata.file_type()),
            });
        }
        let mut folder = Self::with_weights(path, rules)?;
        if folder.weights.has_codes() {
            let block = folder.quantization()?.and_then(|config| config.block);
            folder.weights.find_scales(block)?;
        }
        Ok(folder)
    }

    /// What the config says of FP8 codes; a folder without a config says nothing.
    fn quantization(&self) -> Result<Option<Quantization>> {
        let text = match self.config_text() {
            Err(CheckpointError::NoConfig { .. }) => return Ok(None),
            text => text?,
        };
        Quantization::from_config(&text).map_err(|source| self.config_error(source))
    }

    fn with_weights(path: &Path, rules: ReadRules) -> Result<Self> {
        let names = names_in(path)?;
        let mut folder = Self {
            path: path.to_owned(),
            bounds: Bounds::new(path, rules.links)?,
            strictness: rules.strictness,
            weights: Weights::none(),
            warnings: Vec::new(),
        };
        let has = |name: &str| names.iter().any(|known| known == name);
        for layout in &LAYOUTS {
            if has(layout.index) {
                folder.open_indexed(layout, &names)?;
                return Ok(folder);
            }
            if has(layout.single) {
                let single = [layout.single.to_owned()];
                folder.open_files_named(layout, &single)?;
                folder.warn_of_unread(&names, &single);
                return Ok(folder);
            }
            if let Some(found) = names.iter().find(|name| layout.count_in(name).is_some()) {
                return Err(CheckpointError::NoIndex {
                    folder: folder.path,
                    index: layout.index,
                    found: found.clone(),
                });
            }
        }
        Err(without_weights(path, &names))
    }

    /// Reads what weight files of the folder say of their tensors.
    fn open_files_named(&mut self, layout: &Layout, names: &[String]) -> Result<()> {
        let paths = names.iter().map(|name| self.bounds.path(name));
        let paths = paths.collect::<Result<Vec<_>>>()?;
        self.weights = Weights::open(&paths, layout.format, self.strictness)?;
        Ok(())
    }

    fn open_indexed(&mut self, layout: &Layout, names: &[String]) -> Result<()> {
        let index_path = self.bounds.path(layout.index)?;
        let index = Index::parse(&read_text(&index_path, MAX_HEADER_BYTES)?).map_err(|source| {
            CheckpointError::BadIndex {
                file: index_path.clone(),
                source,
            }
        })?;
        self.refuse_absent(&index, &index_path)?;
        layout.refuse_unnamed(&index, &index_path, names)?;
        self.open_files_named(layout, &index.files)?;
        self.check_places(&index)?;
        self.warn_of_unlisted(&index);
        self.warn_of_total_size(&index);
        self.warn_of_unread(names, &index.files);
        Ok(())
    }

    /// Refuses an absent file before any header is read.
    fn refuse_absent(&self, index: &Index, index_path: &Path) -> Result<()> {
        match index
            .files
            .iter()
            .find(|name| !self.path.join(name).exists())
        {
            None => Ok(()),
            Some(missing) => Err(CheckpointError::MissingFile {
                index: index_path.to_owned(),
                missing: missing.clone(),
            }),
        }
    }

    fn check_places(&self, index: &Index) -> Result<()> {
        let misplaced = |&&(ref name, file): &&(String, usize)| {
            self.find(name).is_none_or(|tensor| tensor.file != file)
        };
        match index.tensors.iter().find(misplaced) {
            None => Ok(()),
            Some((tensor, file)) => Err(CheckpointError::NotInItsFile {
                tensor: tensor.clone(),
                file: self.path.join(&index.files[*file]),
            }),
        }
    }

    fn warn_of_unlisted(&mut self, index: &Index) {
        let listed = |name: &String| index.tensors.binary_search_by_key(&name, |(name, _)| name);
        let unlisted: Vec<_> = self
            .tensors()
            .iter()
            .map(|tensor| &tensor.meta.name)
            .filter(|name| listed(name).is_err())
            .collect();
        if let Some(first) = unlisted.first() {
            self.warnings.push(format!(
                "{} tensors stand in the files but not in the index, the first is `{first}`",
                unlisted.len()
            ));
        }
    }

    fn warn_of_total_size(&mut self, index: &Index) {
        let found: u64 = self.tensors().iter().map(Located::num_bytes).sum();
        if let Some(total) = index.total_size.filter(|&total| total != found) {
            self.warnings.push(format!(
                "the index gives total_size {total}, the tensors take {found} bytes"
            ));
        }
    }

    fn warn_of_unread(&mut self, names: &[String], read: &[String]) {
        let unread: Vec<_> = names
            .iter()
            .filter(|name| name.ends_with(".safetensors") && !read.contains(name))
            .map(String::as_str)
            .collect();
        if !unread.is_empty() {
            self.warnings
                .push(format!("not read: {}", unread.join(", ")));
        }
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files and tensors.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The weight files that are read.
    pub fn files(&self) -> &[FileEntry] {
        self.weights.files()
    }

    /// All tensors in the order of files, and in a file in the order of bytes.
    pub fn tensors(&self) -> &[Located] {
        self.weights.tensors()
    }

    /// The tensor of this name.
    pub fn find(&self, name: &str) -> Option<&Located> {
        self.weights.find(name)
    }

    /// Whether a tensor, by its number, holds the scales of another's codes or of
    /// activations.
    pub fn is_scales(&self, number: usize) -> bool {
        let name = &self.tensors()[number].meta.name;
        scales::tensor_of(name).is_some() || scales::is_of_activations(name)
    }

    /// Whether what does not belong is an error.
    pub(crate) fn strictness(&self) -> Strictness {
        self.strictness
    }

    /// Of each file with fields that the format does not have, the first in words;
    /// only lax reading leaves them out.
    pub fn unknown_fields(&self) -> &[String] {
        self.weights.unknown_fields()
    }

    /// What is odd about the folder but does no harm.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The text of `config.json`.
    pub fn config_text(&self) -> Result<String> {
        let path = self.bounds.path(CONFIG_NAME)?;
        read_text(&path, MAX_CONFIG_BYTES).map_err(|error| match error {
            CheckpointError::NotFound { .. } => CheckpointError::NoConfig {
                folder: self.path.clone(),
            },
            other => other,
        })
    }

    /// The config of these tensors where FP8 codes have become numbers: without
    /// `quantization_config`. None where there are no codes.
    pub fn config_without_codes(&self) -> Result<Option<String>> {
        let text = self.config_text()?;
        if self.tensors().iter().all(|tensor| tensor.scales.is_none()) {
            return Ok(None);
        }
        let keys = serde_json::from_str(text.trim_start_matches('\u{feff}'));
        let mut keys: serde_json::Map<String, serde_json::Value> =
            keys.map_err(|source| self.config_error(SpecError::NotJson { source }))?;
        // Not `remove`, which would put the last key in its place.
        keys.shift_remove("quantization_config");
        Ok(Some(format!("{:#}\n", serde_json::Value::Object(keys))))
    }

    /// What `config.json` means.
    pub fn spec(&self) -> Result<ModelSpec> {
        ModelSpec::from_config(&self.config_text()?).map_err(|source| self.config_error(source))
    }

    fn config_error(&self, source: SpecError) -> CheckpointError {
        CheckpointError::Config {
            file: self.path.join(CONFIG_NAME),
            source,
        }
    }

    /// The tensor of every parameter of the model.
    pub fn sources(&self, spec: &ModelSpec) -> Result<Sources> {
        Sources::resolve(self, spec)
    }

    /// Opens the files once more, for one rank.
    pub fn open_files(&self) -> Result<Reader> {
        self.open_files_with(CachePolicy::Auto)
    }

    /// As [`Folder::open_files`], with a say in what becomes of the page cache.
    pub fn open_files_with(&self, cache: CachePolicy) -> Result<Reader> {
        self.weights.open_files(cache)
    }

    /// The digests of the tensors, if the folder has them.
    pub fn digests(&self) -> Result<Option<Manifest>> {
        Manifest::read(&self.path)
    }

    /// The files that an export copies: all at the top of the folder that hold
    /// no weights, say nothing of their bytes and are not hidden.
    pub fn other_files(&self) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for name in names_in(&self.path)? {
            let is_about_weights = holds_weights(&name) || name == MANIFEST_NAME;
            let is_file = || self.path.join(&name).is_file();
            if !name.starts_with('.') && !is_about_weights && is_file() {
                paths.push(self.bounds.path(&name)?);
            }
        }
        Ok(paths)
    }
}

/// Whether a file's name says that it holds weights, or lists files that do.
fn holds_weights(name: &str) -> bool {
    const ENDINGS: [&str; 6] = [
        ".safetensors",
        ".bin",
        ".pt",
        ".pth",
        ".gguf",
        ".index.json",
    ];
    let name = name.to_lowercase();
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// The names at the top of a folder, sorted. A name that is not UTF-8 is none
/// of a model's.
fn names_in(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for item in fs::read_dir(folder).map_err(io_error("list", folder))? {
        let item = item.map_err(io_error("list", folder))?;
        names.extend(item.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// The error of a folder that has neither an index nor a single file.
fn without_weights(path: &Path, names: &[String]) -> CheckpointError {
    let folder = path.to_owned();
    let is_other = |name: &&String| holds_weights(name) && !name.ends_with(".safetensors");
    match names.iter().find(is_other) {
        Some(found) => CheckpointError::OtherFormat {
            folder,
            found: found.clone(),
        },
        None => CheckpointError::NoWeights { folder },
    }
}
