//! How tensors are laid out in the files of an export, and how those are found again.
//!
//! Tensors go to files in the order given; a file is closed before the tensor
//! that would pass the size limit. Inside a file wider dtypes come first, so
//! that every tensor is aligned to its elements, and otherwise the order stays.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde_json::{Map, Value, json};
use tensor::TensorMeta;

use crate::cache::CachePolicy;
use crate::error::{CheckpointError, Result, io_error};
use crate::files::FileEntry;
use crate::header::MAX_HEADER_BYTES;
use crate::index::INDEX_NAME;
use crate::read::Reader;
use crate::weights::Located;

/// The files of an export, to the byte, before any of them exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportPlan {
    files: Vec<PlannedFile>,
    tensors: Vec<Located>,
    /// Numbers of tensors, in the order of their names.
    by_name: Vec<usize>,
    total_bytes: u64,
}

/// One file of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedFile {
    /// Its name in the folder.
    pub name: String,
    /// Its first bytes: length and JSON, a multiple of 8.
    pub header: Vec<u8>,
    /// The bytes of its tensors.
    pub data_bytes: u64,
}

impl PlannedFile {
    /// The size of the whole file.
    pub fn num_bytes(&self) -> u64 {
        self.header.len() as u64 + self.data_bytes
    }
}

impl ExportPlan {
    /// Lays out `tensors` in files of at most `max_file_bytes` of data; a larger
    /// tensor has a file of its own.
    pub fn new(tensors: &[TensorMeta], max_file_bytes: u64) -> Result<Self> {
        let by_name = sorted_names(tensors)?;
        let sizes = tensors.iter().map(size).collect::<Result<Vec<_>>>()?;
        let runs = cut(&sizes, max_file_bytes);
        let mut plan = Self {
            files: Vec::with_capacity(runs.len()),
            tensors: tensors.iter().map(unplaced).collect(),
            by_name,
            total_bytes: sizes.iter().sum(),
        };
        for (number, run) in runs.iter().enumerate() {
            plan.lay_out(file_name(number, runs.len()), run.clone(), &sizes)?;
        }
        Ok(plan)
    }

    /// Places the tensors of one file and writes its header.
    fn lay_out(&mut self, name: String, run: std::ops::Range<usize>, sizes: &[u64]) -> Result<()> {
        let mut order: Vec<_> = run.collect();
        // Stable: equal dtypes keep their order.
        order.sort_by_key(|&number| std::cmp::Reverse(self.tensors[number].meta.dtype.bits()));
        let mut entries = Map::new();
        entries.insert("__metadata__".to_owned(), json!({"format": "pt"}));
        let mut end = 0;
        for &number in &order {
            let begin = end;
            end += sizes[number];
            let tensor = &mut self.tensors[number];
            tensor.file = self.files.len();
            tensor.begin = begin;
            let TensorMeta { name, dtype, shape } = &tensor.meta;
            let entry =
                json!({"dtype": dtype.name(), "shape": shape.dims(), "data_offsets": [begin, end]});
            entries.insert(name.clone(), entry);
        }
        let header = header_bytes(&name, entries)?;
        for &number in &order {
            self.tensors[number].begin += header.len() as u64;
        }
        self.files.push(PlannedFile {
            name,
            header,
            data_bytes: end,
        });
        Ok(())
    }

    /// Opens what was written by this plan, for one rank; files of another plan are
    /// refused.
    pub fn open(&self, folder: &Path, policy: CachePolicy) -> Result<Reader> {
        let files = self.files.iter().map(|planned| {
            let path = folder.join(&planned.name);
            let (file, entry) = FileEntry::open(&path)?;
            if entry.num_bytes != planned.num_bytes() {
                return Err(CheckpointError::WrongSize {
                    file: path,
                    expected_bytes: planned.num_bytes(),
                    found_bytes: entry.num_bytes,
                });
            }
            let mut header = vec![0; planned.header.len()];
            file.read_exact_at(&mut header, 0)
                .map_err(io_error("read", &path))?;
            if header != planned.header {
                return Err(CheckpointError::OtherTensors { file: path });
            }
            Ok(entry)
        });
        let files = files.collect::<Result<Vec<_>>>()?;
        Reader::new(files.into(), policy)
    }

    /// The files, in the order of their names.
    pub fn files(&self) -> &[PlannedFile] {
        &self.files
    }

    /// The tensors in the order given, with their places.
    pub fn tensors(&self) -> &[Located] {
        &self.tensors
    }

    /// The place of the tensor of this name.
    pub fn located(&self, name: &str) -> Option<&Located> {
        self.by_name
            .binary_search_by(|&number| self.tensors[number].meta.name.as_str().cmp(name))
            .ok()
            .map(|at| &self.tensors[self.by_name[at]])
    }

    /// The bytes of all files of weights.
    pub fn num_bytes(&self) -> u64 {
        self.files.iter().map(PlannedFile::num_bytes).sum()
    }

    /// The bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Name and text of the index, if there are several files.
    pub fn index(&self) -> Option<(&'static str, String)> {
        if self.files.len() == 1 {
            return None;
        }
        let weight_map: Map<String, Value> = self
            .by_name
            .iter()
            .map(|&number| &self.tensors[number])
            .map(|tensor| {
                let file = &self.files[tensor.file].name;
                (tensor.meta.name.clone(), Value::from(file.as_str()))
            })
            .collect();
        let index = json!({"metadata": {"total_size": self.total_bytes}, "weight_map": weight_map});
        Some((INDEX_NAME, format!("{index:#}\n")))
    }
}

fn sorted_names(tensors: &[TensorMeta]) -> Result<Vec<usize>> {
    let mut by_name: Vec<_> = (0..tensors.len()).collect();
    by_name.sort_unstable_by_key(|&number| tensors[number].name.as_str());
    let name = |at: usize| tensors[by_name[at]].name.as_str();
    let refuse = |tensor: &str, reason| {
        Err(CheckpointError::BadName {
            tensor: tensor.to_owned(),
            reason,
        })
    };
    for at in 0..tensors.len() {
        if name(at).is_empty() || name(at).contains(char::is_control) {
            return refuse(name(at), "it is empty or has control characters");
        }
        if name(at) == "__metadata__" {
            return refuse(name(at), "the format keeps it for itself");
        }
        if at > 0 && name(at) == name(at - 1) {
            return refuse(name(at), "two tensors have it");
        }
    }
    Ok(by_name)
}

fn size(tensor: &TensorMeta) -> Result<u64> {
    tensor
        .num_bytes()
        .map_err(|source| CheckpointError::BadTensor {
            tensor: tensor.name.clone(),
            source,
        })
}

fn unplaced(meta: &TensorMeta) -> Located {
    Located {
        meta: meta.clone(),
        file: 0,
        begin: 0,
        scales: None,
    }
}

/// Runs of tensors that share a file; at least one run.
fn cut(sizes: &[u64], max_file_bytes: u64) -> Vec<std::ops::Range<usize>> {
    let mut runs = Vec::new();
    let (mut first, mut held) = (0, 0_u64);
    for (number, &size) in sizes.iter().enumerate() {
        let sum = held.saturating_add(size);
        if number > first && sum > max_file_bytes {
            runs.push(first..number);
            (first, held) = (number, size);
        } else {
            held = sum;
        }
    }
    runs.push(first..sizes.len());
    runs
}

fn file_name(number: usize, count: usize) -> String {
    if count == 1 {
        return "model.safetensors".to_owned();
    }
    format!("model-{:05}-of-{count:05}.safetensors", number + 1)
}

/// Length and JSON, padded with spaces so that data start at a multiple of 8.
fn header_bytes(file: &str, entries: Map<String, Value>) -> Result<Vec<u8>> {
    let mut json = Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let len = json.len() as u64;
    if len > MAX_HEADER_BYTES {
        return Err(CheckpointError::HeaderTooLarge {
            file: file.to_owned(),
            bytes: len,
            limit_bytes: MAX_HEADER_BYTES,
        });
    }
    Ok([&len.to_le_bytes()[..], &json].concat())
}
