//! Where the bytes of a model are: Hugging Face folders, safetensors headers,
//! indexes, and torch's pickles, which are read without being run; ranged reads, in-place writes and atomic commit.
//!
//! The only crate that opens model files. It reads with `pread` and never maps:
//! a mapped file that is cut short kills the process, a read returns an error.
//!
//! ```text
//! Folder::open   headers and index -> where every tensor lies       no data read
//! Scales         FP8 codes -> f32, on their way from a file
//! Sources        config + folder   -> the tensor of every parameter
//! Reader         any byte range of any tensor, one per rank
//! ExportPlan     tensors + size limit -> files, offsets, headers     pure
//! GgufFile       metadata, tensors and numbers of a GGUF file   import only
//! Staging        OUT/.saving, written by all ranks, renamed into OUT at once
//! ```

mod cache;
mod digest;
mod error;
mod export;
mod files;
mod folder;
pub mod gguf;
mod header;
mod index;
pub mod init;
mod layout;
mod manifest;
mod pickle;
mod read;
mod rules;
mod scales;
mod sources;
mod staging;
mod weights;

pub use cache::{CachePolicy, UnknownCachePolicy, resident_share};
pub use digest::{Digest, NotADigest};
pub use error::{CheckpointError, IndexFault, Result};
pub use export::{ExportPlan, PlannedFile};
pub use files::FileEntry;
pub use folder::Folder;
pub use header::{
    Entry, Header, HeaderFault, MAX_HEADER_BYTES, UnknownFields, header_len, parse_header,
    parse_header_with,
};
pub use manifest::{MANIFEST_NAME, Manifest};
pub use pickle::PickleFault;
pub use read::{DIRECT_BYTES, Reader};
pub use rules::{FollowLinks, ReadRules, Strictness, UnknownFollowLinks};
pub use scales::Scales;
pub use sources::Sources;
pub use staging::{
    OnWritten, StagedFiles, Staging, check_out_dir, check_out_dir_but, check_room, discard_staged,
    unless_stopped, write_atomically,
};
pub use weights::{Located, Weights, inspect_file, inspect_file_with};
