//! The tensors of weight files, by place and by name; no data is read.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tensor::{Dtype, TensorMeta};

use crate::cache::CachePolicy;
use crate::error::{CheckpointError, Result, io_error};
use crate::files::FileEntry;
use crate::header::{HeaderFault, MAX_TENSORS, header_len, parse_header_with};
use crate::pickle::{self, PickleError};
use crate::read::Reader;
use crate::rules::Strictness;
use crate::scales::{self, Scales};

/// What kind of files a checkpoint consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// A header and the tensors behind it.
    Safetensors,
    /// A zip of stored storages and a pickle that says what they are.
    Pickle,
}

/// A tensor and where in its file it begins.
type Placed = (TensorMeta, u64);

/// A tensor, and where its bytes lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Name, dtype and shape.
    pub meta: TensorMeta,
    /// The number of its file.
    pub file: usize,
    /// Where its bytes begin, counted from the start of the file.
    pub begin: u64,
    /// What makes numbers of its elements, where they are FP8 codes.
    pub scales: Option<Box<Scales>>,
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

    /// The bytes that so many of its elements take in the file.
    pub fn stored_bytes(&self, num_elements: u64) -> u64 {
        num_elements * self.meta.dtype.bits() / 8
    }

    /// What its elements are read as: f32 where they are codes with scales, else its
    /// own dtype.
    pub fn value_dtype(&self) -> Dtype {
        match self.scales {
            Some(_) => Dtype::F32,
            None => self.meta.dtype,
        }
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
    unknown_fields: Vec<String>,
}

impl Weights {
    /// Of no file.
    pub(crate) fn none() -> Self {
        Self {
            files: Vec::new().into(),
            tensors: Vec::new(),
            by_name: Vec::new(),
            unknown_fields: Vec::new(),
        }
    }

    /// Reads the headers of files, or what stands for them, and nothing else of
    /// them.
    pub(crate) fn open(paths: &[PathBuf], format: Format, strictness: Strictness) -> Result<Self> {
        let mut unknown_fields = Vec::new();
        let mut files = Vec::new();
        let mut tensors = Vec::new();
        for path in paths {
            let (mut file, entry) = FileEntry::open(path)?;
            let found = match format {
                Format::Safetensors => {
                    let (found, unknown) = header_of(&mut file, &entry, strictness)?;
                    unknown_fields.extend(unknown);
                    found
                }
                Format::Pickle => tensors_of_pickle(&file, &entry)?,
            };
            if tensors.len() + found.len() > MAX_TENSORS {
                return Err(CheckpointError::TooManyTensors {
                    file: path.clone(),
                    limit: MAX_TENSORS,
                });
            }
            tensors.reserve_exact(found.len());
            tensors.extend(found.into_iter().map(|(meta, begin)| Located {
                meta,
                file: files.len(),
                begin,
                scales: None,
            }));
            files.push(entry);
        }
        let weights = Self {
            files: files.into(),
            by_name: sorted_by_name(&tensors),
            tensors,
            unknown_fields,
        };
        weights.refuse_twins()?;
        Ok(weights)
    }

    /// Whether any tensor is FP8 codes, or scales by its name.
    pub(crate) fn has_codes(&self) -> bool {
        self.tensors.iter().any(|tensor| {
            scales::is_codes(tensor.meta.dtype) || scales::tensor_of(&tensor.meta.name).is_some()
        })
    }

    /// Finds the scales of all codes; `block` is what the config says of them.
    pub(crate) fn find_scales(&mut self, block: Option<[u64; 2]>) -> Result<()> {
        for number in 0..self.tensors.len() {
            let tensor = &self.tensors[number];
            if scales::is_codes(tensor.meta.dtype) {
                let found = self.scales_of(tensor, block)?;
                self.tensors[number].scales = Some(Box::new(found));
            } else {
                self.refuse_without_codes(tensor)?;
            }
        }
        Ok(())
    }

    fn scales_of(&self, tensor: &Located, block: Option<[u64; 2]>) -> Result<Scales> {
        let name = &tensor.meta.name;
        let file = || self.files[tensor.file].path.clone();
        let mut found = scales::names(name).filter_map(|name| self.position(&name));
        let (first, second) = (found.next(), found.next());
        let Some(number) = first else {
            return Err(CheckpointError::CodesWithoutScales {
                tensor: name.clone(),
                file: file(),
                found: tensor.meta.dtype,
                expected: scales::names(name).collect::<Vec<_>>().join("` or `"),
            });
        };
        let scales = &self.tensors[number];
        if let Some(second) = second {
            return Err(CheckpointError::TwiceScaled {
                tensor: name.clone(),
                first: scales.meta.name.clone(),
                second: self.tensors[second].meta.name.clone(),
            });
        }
        Scales::of(tensor, number, scales, block).map_err(|expected| CheckpointError::WrongScales {
            scales: scales.meta.name.clone(),
            found: Box::new(scales.meta.shape.clone()),
            file: self.files[scales.file].path.clone(),
            tensor: name.clone(),
            shape: Box::new(tensor.meta.shape.clone()),
            expected,
        })
    }

    /// Refuses scales whose tensor is not there or has no codes.
    fn refuse_without_codes(&self, scales: &Located) -> Result<()> {
        let Some(name) = scales::tensor_of(&scales.meta.name) else {
            return Ok(());
        };
        let found = match self.find(name) {
            Some(tensor) if scales::is_codes(tensor.meta.dtype) => return Ok(()),
            Some(tensor) => format!("is {}", tensor.meta.dtype),
            None => "is not there".to_owned(),
        };
        Err(CheckpointError::ScalesWithoutCodes {
            scales: scales.meta.name.clone(),
            file: self.files[scales.file].path.clone(),
            tensor: name.to_owned(),
            found,
        })
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

    /// Of each file with fields that the format does not have, the first in words.
    pub fn unknown_fields(&self) -> &[String] {
        &self.unknown_fields
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

/// The tensors of a safetensors file, and the unknown fields of its header in words.
fn header_of(
    file: &mut File,
    entry: &FileEntry,
    strictness: Strictness,
) -> Result<(Vec<Placed>, Option<String>)> {
    let refuse = |source| CheckpointError::Header {
        file: entry.path.clone(),
        source,
    };
    let mut prefix = [0; 8];
    read_header_part(file, entry, 8, &mut prefix)?;
    let len = header_len(prefix, entry.num_bytes).map_err(refuse)?;
    let mut json = vec![0; usize::try_from(len).expect("a header is at most 100 MB")];
    let data_begin = 8 + len;
    read_header_part(file, entry, data_begin, &mut json)?;
    let data_bytes = entry.num_bytes - data_begin;
    let header = parse_header_with(&json, data_bytes, strictness).map_err(refuse)?;
    let unknown = header.unknown_fields.map(|unknown| {
        let file = entry.path.display();
        format!("`{file}`: {unknown}")
    });
    let placed = header.entries.into_iter();
    let placed = placed.map(move |tensor| (tensor.meta, data_begin + tensor.begin));
    Ok((placed.collect(), unknown))
}

/// Fills `dst` with the file's next bytes, the last of its first `needed_bytes`.
fn read_header_part(
    file: &mut File,
    entry: &FileEntry,
    needed_bytes: u64,
    dst: &mut [u8],
) -> Result<()> {
    file.read_exact(dst).map_err(|error| match error.kind() {
        // Shorter than it said, or cut since it was opened.
        ErrorKind::UnexpectedEof => CheckpointError::Header {
            file: entry.path.clone(),
            source: HeaderFault::Truncated {
                file_bytes: entry.num_bytes.min(needed_bytes - 1),
                needed_bytes,
            },
        },
        _ => io_error("read", &entry.path)(error),
    })
}

/// The tensors of a `PyTorch` checkpoint.
fn tensors_of_pickle(file: &File, entry: &FileEntry) -> Result<Vec<Placed>> {
    pickle::tensors_in(file, entry.num_bytes).map_err(|fault| match fault {
        PickleError::Io(source) => io_error("read", &entry.path)(source),
        PickleError::Fault(source) => CheckpointError::Pickle {
            file: entry.path.clone(),
            source,
        },
    })
}

/// Reads what a single file says of its tensors.
pub fn inspect_file(path: &Path) -> Result<Weights> {
    inspect_file_with(path, Strictness::Strict)
}

/// As [`inspect_file`], strictly or not.
pub fn inspect_file_with(path: &Path, strictness: Strictness) -> Result<Weights> {
    let format = match path.extension() {
        Some(ending) if ["bin", "pt", "pth"].iter().any(|pickle| ending == *pickle) => {
            Format::Pickle
        }
        _ => Format::Safetensors,
    };
    let paths = [path.to_owned()];
    Weights::open(&paths, format, strictness)
}
