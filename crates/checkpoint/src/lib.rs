//! Where the bytes of a model are: Hugging Face folders, safetensors headers and
//! indexes; ranged reads, in-place writes and atomic commit.
//!
//! The only crate that opens model files. It reads with `pread` and never maps:
//! a mapped file that is cut short kills the process, a read returns an error.
//!
//! ```text
//! Folder::open   headers and index -> where every tensor lies       no data read
//! Sources        config + folder   -> the tensor of every parameter
//! Reader         any byte range of any tensor, one per rank
//! ExportPlan     tensors + size limit -> files, offsets, headers     pure
//! GgufFile       metadata, tensors and numbers of a GGUF file   import only
//! Staging        OUT/.saving, written by all ranks, renamed into OUT at once
//! ```

mod error;
mod export;
mod files;
mod folder;
pub mod gguf;
mod header;
mod index;
pub mod init;
mod read;
mod sources;
mod staging;

pub use error::{CheckpointError, IndexFault, Result};
pub use export::{ExportPlan, PlannedFile};
pub use files::FileEntry;
pub use folder::{Folder, Located, Weights, inspect_file};
pub use header::{Entry, Header, HeaderFault, MAX_HEADER_BYTES, header_len, parse_header};
pub use read::Reader;
pub use sources::Sources;
pub use staging::{StagedFiles, Staging, check_out_dir, discard_staged, write_atomically};
