//! What stands in a model folder: which files hold weights, and where in them
//! every tensor lies.
//!
//! The index is the truth: files beside those that it names are not read
//! (folders of the first Llama and Mistral hold every weight twice). Links are
//! followed, since a Hugging Face cache consists of them.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spec::ModelSpec;
use tensor::TensorMeta;

use crate::cache::CachePolicy;
use crate::error::{CheckpointError, Result, io_error};
use crate::files::{FileEntry, kind, read_text};
use crate::header::{Header, MAX_HEADER_BYTES, MAX_TENSORS, header_len, parse_header};
use crate::index::{INDEX_NAME, Index};
use crate::manifest::{MANIFEST_NAME, Manifest};
use crate::read::Reader;
use crate::sources::Sources;

const CONFIG_NAME: &str = "config.json";
const SINGLE_NAME: &str = "model.safetensors";
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// A tensor, and where its bytes lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Name, dtype and shape.
    pub meta: TensorMeta,
    /// The number of its file.
    pub file: usize,
    /// Where its bytes begin, counted from the start of the file.
    pub begin: u64,
}

impl Located {
    /// Its bytes in the file.
    ///
    /// # Panics
    ///
    /// If it was made by hand with a size that no file can have.
    pub fn num_bytes(&self) -> u64 {
        self.meta
            .num_bytes()
            .expect("a located tensor's size was checked when it was located")
    }
}

/// The weights of one or more files: every tensor, by place and by name.
#[derive(Debug, Clone)]
pub struct Weights {
    files: Arc<[FileEntry]>,
    /// In the order of files, and in a file in the order of bytes.
    tensors: Vec<Located>,
    /// Numbers of tensors, in the order of their names.
    by_name: Vec<u32>,
}

impl Weights {
    /// Reads the headers of files and nothing else of them.
    fn open(paths: &[PathBuf]) -> Result<Self> {
        let mut files = Vec::new();
        let mut tensors = Vec::new();
        for path in paths {
            let (entry, header, data_begin) = read_header(path)?;
            if tensors.len() + header.entries.len() > MAX_TENSORS {
                return Err(CheckpointError::TooManyTensors {
                    file: path.clone(),
                    limit: MAX_TENSORS,
                });
            }
            tensors.reserve_exact(header.entries.len());
            tensors.extend(header.entries.into_iter().map(|tensor| Located {
                meta: tensor.meta,
                file: files.len(),
                begin: data_begin + tensor.begin,
            }));
            files.push(entry);
        }
        let weights = Self {
            files: files.into(),
            by_name: sorted_by_name(&tensors),
            tensors,
        };
        weights.refuse_twins()?;
        Ok(weights)
    }

    fn refuse_twins(&self) -> Result<()> {
        let tensor = |number: u32| &self.tensors[number as usize];
        let twins = self
            .by_name
            .windows(2)
            .map(|pair| (tensor(pair[0]), tensor(pair[1])))
            .find(|(a, b)| a.meta.name == b.meta.name);
        match twins {
            None => Ok(()),
            Some((a, b)) => Err(CheckpointError::InTwoFiles {
                tensor: a.meta.name.clone(),
                first: self.files[a.file].path.clone(),
                second: self.files[b.file].path.clone(),
            }),
        }
    }

    /// The files.
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// All tensors in the order of files, and in a file in the order of bytes.
    pub fn tensors(&self) -> &[Located] {
        &self.tensors
    }

    /// The number of the tensor of this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.by_name
            .binary_search_by(|&number| self.tensors[number as usize].meta.name.as_str().cmp(name))
            .ok()
            .map(|at| self.by_name[at] as usize)
    }

    /// The tensor of this name.
    pub fn find(&self, name: &str) -> Option<&Located> {
        self.position(name).map(|number| &self.tensors[number])
    }

    /// Opens the files once more.
    pub fn reader(&self) -> Result<Reader> {
        self.open_files(CachePolicy::Auto)
    }

    /// Opens the files once more, for one rank.
    pub fn open_files(&self, cache: CachePolicy) -> Result<Reader> {
        Reader::new(Arc::clone(&self.files), cache)
    }
}

fn sorted_by_name(tensors: &[Located]) -> Vec<u32> {
    let mut by_name: Vec<u32> = (0..).take(tensors.len()).collect();
    by_name.sort_unstable_by_key(|&number| tensors[number as usize].meta.name.as_str());
    by_name
}

/// A file's entry, its header and where its data begin.
fn read_header(path: &Path) -> Result<(FileEntry, Header, u64)> {
    let (mut file, entry) = FileEntry::open(path)?;
    let refuse = |source| CheckpointError::Header {
        file: path.to_owned(),
        source,
    };
    let mut prefix = [0; 8];
    if entry.num_bytes < 8 {
        return Err(refuse(crate::HeaderFault::Truncated {
            file_bytes: entry.num_bytes,
            needed_bytes: 8,
        }));
    }
    file.read_exact(&mut prefix)
        .map_err(io_error("read", path))?;
    let len = header_len(prefix, entry.num_bytes).map_err(refuse)?;
    let mut json = vec![0; usize::try_from(len).expect("a header is at most 100 MB")];
    file.read_exact(&mut json).map_err(io_error("read", path))?;
    let data_begin = 8 + len;
    let header = parse_header(&json, entry.num_bytes - data_begin).map_err(refuse)?;
    Ok((entry, header, data_begin))
}

/// Reads the header of a single safetensors file.
pub fn inspect_file(path: &Path) -> Result<Weights> {
    Weights::open(&[path.to_owned()])
}

/// A model folder.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    weights: Weights,
    warnings: Vec<String>,
}

impl Folder {
    /// Reads a folder's index and the headers of its weight files.
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = fs::metadata(path).map_err(io_error("open", path))?;
        if !metadata.is_dir() {
            return Err(CheckpointError::NotAFolder {
                path: path.to_owned(),
                found: kind(metadata.file_type()),
            });
        }
        let names = names_in(path)?;
        let has = |name: &str| names.iter().any(|known| known == name);
        let mut folder = Self {
            path: path.to_owned(),
            weights: Weights::open(&[])?,
            warnings: Vec::new(),
        };
        if has(INDEX_NAME) {
            folder.open_indexed(&names)?;
        } else if has(SINGLE_NAME) {
            folder.weights = inspect_file(&path.join(SINGLE_NAME))?;
            folder.warn_of_unread(&names, &[SINGLE_NAME.to_owned()]);
        } else {
            return Err(without_weights(path, &names));
        }
        Ok(folder)
    }

    fn open_indexed(&mut self, names: &[String]) -> Result<()> {
        let index_path = self.path.join(INDEX_NAME);
        let index = Index::parse(&read_text(&index_path, MAX_HEADER_BYTES)?).map_err(|source| {
            CheckpointError::BadIndex {
                file: index_path.clone(),
                source,
            }
        })?;
        self.refuse_absent(&index, &index_path)?;
        refuse_unnamed(&index, &index_path, names)?;
        let paths: Vec<_> = index
            .files
            .iter()
            .map(|name| self.path.join(name))
            .collect();
        self.weights = Weights::open(&paths)?;
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

    /// What is odd about the folder but does no harm.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The text of `config.json`.
    pub fn config_text(&self) -> Result<String> {
        let path = self.path.join(CONFIG_NAME);
        read_text(&path, MAX_CONFIG_BYTES).map_err(|error| match error {
            CheckpointError::NotFound { .. } => CheckpointError::NoConfig {
                folder: self.path.clone(),
            },
            other => other,
        })
    }

    /// What `config.json` means.
    pub fn spec(&self) -> Result<ModelSpec> {
        ModelSpec::from_config(&self.config_text()?).map_err(|source| CheckpointError::Config {
            file: self.path.join(CONFIG_NAME),
            source,
        })
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
            let path = self.path.join(&name);
            let is_about_weights = holds_weights(&name) || name == MANIFEST_NAME;
            if !name.starts_with('.') && !is_about_weights && path.is_file() {
                paths.push(path);
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

/// Refuses a numbered file that belongs to the index's set by its count but is
/// not named: a part of the model that would be left out in silence.
fn refuse_unnamed(index: &Index, index_path: &Path, names: &[String]) -> Result<()> {
    let counts: Vec<_> = index
        .files
        .iter()
        .filter_map(|name| count_in(name))
        .collect();
    let unnamed = names.iter().find(|name| {
        count_in(name).is_some_and(|count| counts.contains(&count)) && !index.files.contains(name)
    });
    match unnamed {
        None => Ok(()),
        Some(found) => Err(CheckpointError::UnnamedFile {
            index: index_path.to_owned(),
            found: found.clone(),
        }),
    }
}

/// The `n` of `model-0000i-of-0000n.safetensors`.
fn count_in(name: &str) -> Option<u64> {
    let middle = name.strip_prefix("model-")?.strip_suffix(".safetensors")?;
    let (number, count) = middle.split_once("-of-")?;
    number.parse::<u64>().ok()?;
    count.parse().ok()
}

/// The error of a folder that has neither an index nor a single file.
fn without_weights(path: &Path, names: &[String]) -> CheckpointError {
    let folder = path.to_owned();
    if let Some(found) = names.iter().find(|name| count_in(name).is_some()) {
        let found = found.clone();
        return CheckpointError::NoIndex { folder, found };
    }
    let is_other = |name: &&String| holds_weights(name) && !name.ends_with(".safetensors");
    match names.iter().find(is_other) {
        Some(found) => CheckpointError::OtherFormat {
            folder,
            found: found.clone(),
        },
        None => CheckpointError::NoWeights { folder },
    }
}
