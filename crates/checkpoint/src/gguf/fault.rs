//! What can be wrong with the header of a GGUF file.

use super::parse::{MAX_HEADER_BYTES, MAX_KEYS, MAX_NESTING, MAX_RANK, MAX_TENSORS};

/// What is wrong with a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufFault {
    /// The file ends before its header does.
    #[error("file ends at byte {at}, where {needed_bytes} more are needed")]
    Truncated {
        /// The file's size.
        at: u64,
        /// Bytes that are missing at least.
        needed_bytes: u64,
    },
    /// Other first bytes.
    #[error("first bytes are `{}`, expected `GGUF`", .found.escape_ascii())]
    NotGguf {
        /// The bytes.
        found: [u8; 4],
    },
    /// A file for big-endian machines.
    #[error("numbers are big-endian, only little-endian files are read")]
    BigEndian,
    /// A version that is not known.
    #[error("version {found}, supported: 1, 2, 3")]
    Version {
        /// The version.
        found: u32,
    },
    /// A header beyond the limit.
    #[error("header is larger than {MAX_HEADER_BYTES} bytes")]
    HeaderTooLarge,
    /// More keys than the limit.
    #[error("{found} keys, the limit is {MAX_KEYS}")]
    TooManyKeys {
        /// The count in the file.
        found: u64,
    },
    /// More tensors than the limit.
    #[error("{found} tensors, the limit is {MAX_TENSORS}")]
    TooManyTensors {
        /// The count in the file.
        found: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error("{what} claims {found} entries, more than the rest of the file can hold")]
    LyingCount {
        /// Of what.
        what: String,
        /// The count in the file.
        found: u64,
    },
    /// A string beyond the limit.
    #[error("{what} has {found} bytes, the limit is {limit_bytes}")]
    TooLong {
        /// Which string.
        what: String,
        /// The length in the file.
        found: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// A string that is not UTF-8.
    #[error("{what} is not UTF-8")]
    NotUtf8 {
        /// Which string.
        what: String,
    },
    /// A key twice.
    #[error("key `{key}` appears twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A type of value that the format does not have.
    #[error("key `{key}` has unknown value type {code}")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The type in the file.
        code: u32,
    },
    /// A truth value that is neither 0 nor 1.
    #[error("key `{key}` has truth value {found}, expected 0 or 1")]
    BadBool {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// Arrays in arrays without end.
    #[error("key `{key}` nests arrays deeper than {MAX_NESTING}")]
    TooDeep {
        /// The key.
        key: String,
    },
    /// An alignment that is none.
    #[error("general.alignment is {found}, expected a power of two up to 1048576, as u32")]
    BadAlignment {
        /// The value.
        found: String,
    },
    /// One file of several.
    #[error("file is one of {count} parts of a split model; join them first")]
    Split {
        /// How many there are.
        count: u64,
    },
    /// A tensor without a name.
    #[error("tensor {number} has an empty name")]
    NamelessTensor {
        /// Its number in the file, from 0.
        number: u64,
    },
    /// A tensor's name twice.
    #[error("tensor `{tensor}` appears twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// More dimensions than the format allows.
    #[error("tensor `{tensor}` has {found} dimensions, the limit is {MAX_RANK}")]
    TooManyDims {
        /// The tensor.
        tensor: String,
        /// How many.
        found: u32,
    },
    /// A dimension of 0.
    #[error("tensor `{tensor}` has a dimension of 0")]
    EmptyDim {
        /// The tensor.
        tensor: String,
    },
    /// More elements or bytes than 64 bits can count.
    #[error("tensor `{tensor}` has more elements than 64 bits can count")]
    TooLarge {
        /// The tensor.
        tensor: String,
    },
    /// A type that the format does not have.
    #[error("tensor `{tensor}` has unknown type {code}")]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The type in the file.
        code: u32,
    },
    /// A type that is known and not read.
    #[error(
        "tensor `{tensor}` has type {found}, supported: {}",
        super::BlockType::names()
    )]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// The type's name.
        found: &'static str,
    },
    /// A row that does not fill whole blocks.
    #[error("tensor `{tensor}` has rows of {row_len} elements, not a multiple of {block_len}")]
    BrokenBlock {
        /// The tensor.
        tensor: String,
        /// Elements of a row.
        row_len: u64,
        /// Elements of a block.
        block_len: u64,
    },
    /// Data that leave a hole, overlap, or begin between two alignments.
    #[error("tensor `{tensor}` begins at byte {found} of the data, expected {expected}")]
    Misplaced {
        /// The tensor.
        tensor: String,
        /// Where the tensors before it end, aligned.
        expected: u64,
        /// The offset in the file.
        found: u64,
    },
    /// A tensor whose data the file does not have.
    #[error("tensor `{tensor}` ends at byte {end} of a file of {file_bytes} bytes")]
    PastEnd {
        /// The tensor.
        tensor: String,
        /// Where it would end.
        end: u64,
        /// The file's size.
        file_bytes: u64,
    },
    /// Bytes after the last tensor that are more than padding.
    #[error("{num_bytes} bytes follow the last tensor")]
    Tail {
        /// How many.
        num_bytes: u64,
    },
}
