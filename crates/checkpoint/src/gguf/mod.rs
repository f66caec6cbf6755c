//! Reading a GGUF file: what its metadata say, where its tensors lie and which
//! numbers its blocks are. Import only.
//!
//! ```text
//! 4 bytes  "GGUF"
//! u32      version 1, 2 or 3; all numbers little-endian
//! count    number of tensors       a count or length is u32 in version 1,
//! count    number of keys          u64 from version 2 on
//! keys     name, type, value       13 types, arrays may nest
//! tensors  name, u32 rank, dims (innermost first), u32 type, u64 offset
//! padding  up to general.alignment, 32 without that key
//! data     tensor after tensor, each padded to the alignment
//! ```
//!
//! Nothing in the file is believed, as for safetensors: every length is held
//! against a limit and against what is left of the file before anything is
//! allocated, and the tensors tile the data without a hole, overlap or tail.

mod blocks;
mod cursor;
mod fault;
mod parse;
mod super_blocks;
mod value;

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use tensor::Shape;

use crate::error::{CheckpointError, Result, io_error};
use crate::files::FileEntry;

pub use blocks::BlockType;
pub use fault::GgufFault;
pub use value::{Metadata, Numbers, Texts, Value};

use cursor::Stop;

/// A GGUF file whose header was read and found right.
#[derive(Debug, Clone)]
pub struct GgufFile {
    entry: FileEntry,
    version: u32,
    metadata: Metadata,
    /// In the order of their data.
    tensors: Vec<GgufTensor>,
}

/// A tensor of a GGUF file, and where its bytes lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    /// Its name in the file.
    pub name: String,
    /// How its elements are stored.
    pub block_type: BlockType,
    /// Its dimensions, outermost first: reversed against the file.
    pub shape: Shape,
    /// Its elements.
    pub num_elements: u64,
    /// Where its bytes begin, counted from the start of the file.
    pub begin: u64,
}

impl GgufTensor {
    /// Its bytes in the file, which were checked to lie there.
    pub fn num_bytes(&self) -> u64 {
        self.num_elements / self.block_type.block_len() * self.block_type.block_bytes()
    }

    /// The bytes in the file of some of its elements.
    ///
    /// # Panics
    ///
    /// If the elements pass the tensor's end or cut a block.
    pub fn byte_range(&self, elements: &Range<u64>) -> Range<u64> {
        let (len, bytes) = (self.block_type.block_len(), self.block_type.block_bytes());
        let is_whole = elements.start.is_multiple_of(len) && elements.end.is_multiple_of(len);
        assert!(
            is_whole && elements.start <= elements.end && elements.end <= self.num_elements,
            "elements {elements:?} of tensor `{}` with {} elements in blocks of {len}",
            self.name,
            self.num_elements
        );
        self.begin + elements.start / len * bytes..self.begin + elements.end / len * bytes
    }
}

impl GgufFile {
    /// Reads the header of a file and nothing else of it.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, entry) = FileEntry::open(path)?;
        match parse::parse(BufReader::new(file), entry.num_bytes) {
            Ok(header) => Ok(Self {
                entry,
                version: header.version,
                metadata: header.metadata,
                tensors: header.tensors,
            }),
            Err(Stop::Fault(source)) => Err(CheckpointError::Gguf {
                file: path.to_owned(),
                source,
            }),
            Err(Stop::Io(source)) => Err(io_error("read", path)(source)),
        }
    }

    /// The version of the format: 1, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What the file says about itself, the model and the tokenizer.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in the order of their bytes.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// Opens the file once more, to read its data.
    pub fn open_data(&self) -> Result<GgufReader> {
        Ok(GgufReader {
            file: self.entry.reopen()?,
            entry: self.entry.clone(),
            stored: Vec::new(),
        })
    }
}

/// Checks the header of a file whose bytes are at hand: what [`GgufFile::open`]
/// does, for tests with thousands of files.
pub fn check_gguf(bytes: &[u8]) -> Result<usize, GgufFault> {
    match parse::parse(bytes, bytes.len() as u64) {
        Ok(header) => Ok(header.tensors.len()),
        Err(Stop::Fault(fault)) => Err(fault),
        Err(Stop::Io(_)) => Err(GgufFault::Truncated {
            at: bytes.len() as u64,
            needed_bytes: 1,
        }),
    }
}

/// One thread's handle on the data of a file.
#[derive(Debug)]
pub struct GgufReader {
    file: File,
    entry: FileEntry,
    /// Blocks as they are stored, never larger than what was last asked for.
    stored: Vec<u8>,
}

impl GgufReader {
    /// The largest number of bytes that an element of any type takes.
    pub const MAX_ELEMENT_BYTES: u64 = 4;

    /// Reads elements of a tensor into `wide`, from element `first` on.
    ///
    /// # Panics
    ///
    /// If the elements pass the tensor's end or cut a block.
    pub fn read(&mut self, tensor: &GgufTensor, first: u64, wide: &mut [f32]) -> Result<()> {
        let range = tensor.byte_range(&(first..first + wide.len() as u64));
        let len = usize::try_from(range.end - range.start).expect("at most 4 bytes an element");
        self.stored.resize(len, 0);
        if let Err(source) = self.file.read_exact_at(&mut self.stored, range.start) {
            return Err(self.failed(tensor, source));
        }
        tensor.block_type.widen(&self.stored, wide);
        Ok(())
    }

    fn failed(&self, tensor: &GgufTensor, source: std::io::Error) -> CheckpointError {
        match (source.kind(), self.file.metadata()) {
            (ErrorKind::UnexpectedEof, Ok(metadata)) => CheckpointError::Truncated {
                file: self.entry.path.clone(),
                tensor: tensor.name.clone(),
                expected_bytes: self.entry.num_bytes,
                found_bytes: metadata.len(),
            },
            _ => io_error("read", &self.entry.path)(source),
        }
    }
}
