//! Everything that can go wrong between a program and a checkpoint's files.

use std::io;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use spec::SpecError;
use tensor::{Dtype, Shape, ShapeError};

use crate::gguf::GgufFault;
use crate::header::HeaderFault;
use crate::pickle::PickleFault;

/// A checkpoint that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The work was asked to stop.
    #[error("stopped; nothing is kept")]
    Stopped,
    /// Another process is writing to the output folder.
    #[error("another process is writing to `{}`", folder.display())]
    OutInUse {
        /// The output folder.
        folder: PathBuf,
    },
    /// A `digests.json` that cannot be used.
    #[error("{file} cannot be used: {reason}; without the file nothing is compared")]
    BadManifest {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor that changed since its digest was written.
    #[error(
        "tensor `{tensor}` in {file} is not what it was when {manifest} was written: expected digest {expected}, found {found}"
    )]
    WrongDigest {
        /// The tensor.
        tensor: String,
        /// The file that holds it.
        file: PathBuf,
        /// The file of digests.
        manifest: PathBuf,
        /// The digest that was written.
        expected: Digest,
        /// The digest of the bytes.
        found: Digest,
    },
    /// A disk with less room than will be needed.
    #[error(
        "no room for a checkpoint in `{}`: it needs {num_bytes} bytes, the disk has {free_bytes}",
        folder.display()
    )]
    NoRoomFor {
        /// The folder.
        folder: PathBuf,
        /// What is needed.
        num_bytes: u64,
        /// What there is.
        free_bytes: u64,
    },
    /// A file of another size than its tensors need.
    #[error(
        "{file} has {found_bytes} bytes, expected {expected_bytes}: it is damaged or of another model or recipe"
    )]
    WrongSize {
        /// The file.
        file: PathBuf,
        /// What its tensors need.
        expected_bytes: u64,
        /// What it has.
        found_bytes: u64,
    },
    /// A file that does not begin with the header that was expected.
    #[error("{file} has other tensors than expected: it is damaged or of another model or recipe")]
    OtherTensors {
        /// The file.
        file: PathBuf,
    },
    /// Nothing stands at a path.
    #[error("`{}` does not exist", path.display())]
    NotFound {
        /// The path asked for.
        path: PathBuf,
    },
    /// A folder was asked for at a path that is none.
    #[error("`{}` is {found}, expected a folder", path.display())]
    NotAFolder {
        /// The path asked for.
        path: PathBuf,
        /// What stands there.
        found: &'static str,
    },
    /// A path that should be a file is a folder, a pipe or a device.
    #[error("`{}` is {found}, expected a file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What stands there.
        found: &'static str,
    },
    /// A folder without `config.json`.
    #[error("no config.json in `{}`", folder.display())]
    NoConfig {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder without weights.
    #[error("no weights in `{}`: expected model.safetensors, model.safetensors.index.json or pytorch_model.bin", folder.display())]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// A folder whose weights are all in a format that is not read.
    #[error("the weights in `{}` are in `{found}`, supported: safetensors (model.safetensors or model.safetensors.index.json) and pytorch_model.bin", folder.display())]
    OtherFormat {
        /// The folder.
        folder: PathBuf,
        /// One of its weight files.
        found: String,
    },
    /// Numbered files of a split checkpoint without the index that names them.
    #[error("`{}` holds `{found}` but no {index} to say which files belong together", folder.display())]
    NoIndex {
        /// The folder.
        folder: PathBuf,
        /// The name of the index that is not there.
        index: &'static str,
        /// One of the files.
        found: String,
    },
    /// An index that does not say what an index says.
    #[error("index `{}` cannot be used", file.display())]
    BadIndex {
        /// The index.
        file: PathBuf,
        /// What is wrong.
        #[source]
        source: IndexFault,
    },
    /// A file that the index names is not there.
    #[error("index `{}` names `{missing}`, which does not exist", index.display())]
    MissingFile {
        /// The index.
        index: PathBuf,
        /// The name in the index.
        missing: String,
    },
    /// A numbered file of the same set that the index does not name.
    #[error("index `{}` does not name `{found}`, which looks like one of its files", index.display())]
    UnnamedFile {
        /// The index.
        index: PathBuf,
        /// The file.
        found: String,
    },
    /// A tensor is not in the file that the index gives for it.
    #[error("index puts tensor `{tensor}` in `{}`, which does not hold it", file.display())]
    NotInItsFile {
        /// The tensor.
        tensor: String,
        /// The file that the index gives.
        file: PathBuf,
    },
    /// A tensor stands in two files.
    #[error("tensor `{tensor}` stands in `{}` and in `{}`", first.display(), second.display())]
    InTwoFiles {
        /// The tensor.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A safetensors file whose header is wrong.
    #[error("`{}` is not a valid safetensors file", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        #[source]
        source: HeaderFault,
    },
    /// A GGUF file whose header is wrong.
    #[error("`{}` cannot be read as GGUF", file.display())]
    Gguf {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        #[source]
        source: GgufFault,
    },
    /// A `PyTorch` checkpoint that is broken, or that only running it could read.
    #[error("`{}` cannot be read as a PyTorch checkpoint without running code; convert it to safetensors", file.display())]
    Pickle {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        #[source]
        source: PickleFault,
    },
    /// A link in a model folder that the rules do not follow.
    #[error("`{}` is a link to `{}`, {reason} (following `any` link reads it)", link.display(), target.display())]
    LinkNotFollowed {
        /// The link.
        link: PathBuf,
        /// Where it leads.
        target: PathBuf,
        /// Why it is not followed.
        reason: &'static str,
    },
    /// More tensors than the limit.
    #[error("`{}` brings the tensors to more than {limit}", file.display())]
    TooManyTensors {
        /// The file that passed the limit.
        file: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// A small file (config, index) that is absurdly large.
    #[error("`{}` has {bytes} bytes, the limit is {limit_bytes}", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// A text file that is not UTF-8.
    #[error("`{}` is not UTF-8 text", file.display())]
    NotText {
        /// The file.
        file: PathBuf,
    },
    /// The config describes no model that can be run.
    #[error("`{}` cannot be used", file.display())]
    Config {
        /// The config.
        file: PathBuf,
        /// What is wrong.
        #[source]
        source: SpecError,
    },
    /// Tensors that the config calls for and the checkpoint lacks.
    #[error("tensor `{first}`{} is missing in `{}`{hint}", and_more(*num_missing), folder.display())]
    MissingTensors {
        /// The folder.
        folder: PathBuf,
        /// How many.
        num_missing: usize,
        /// The first in the order of the model.
        first: String,
        /// What may have been meant, or nothing.
        hint: &'static str,
    },
    /// Tensors that the config does not call for.
    #[error("tensor `{first}`{} in `{}` does not belong to the model of its config (lax reading leaves it out)", and_more(*num_unexpected), folder.display())]
    UnexpectedTensors {
        /// The folder.
        folder: PathBuf,
        /// How many.
        num_unexpected: usize,
        /// The first in the order of the files.
        first: String,
    },
    /// A tensor whose shape is not the config's.
    #[error("tensor `{tensor}` in `{}` has shape {found}, the config calls for {expected}", file.display())]
    WrongShape {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: PathBuf,
        /// The shape that the config calls for.
        expected: Box<Shape>,
        /// The shape in the file.
        found: Box<Shape>,
    },
    /// A tensor whose dtype cannot be trained.
    #[error("tensor `{tensor}` in `{}` is {found}, supported: F32, BF16, F16, F64, and FP8 with scales", file.display())]
    WrongDtype {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: PathBuf,
        /// Its dtype.
        found: Dtype,
    },
    /// FP8 codes without the scales that make numbers of them.
    #[error("tensor `{tensor}` in `{}` is {found} and has no scales: expected `{expected}`", file.display())]
    CodesWithoutScales {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: PathBuf,
        /// Its dtype.
        found: Dtype,
        /// Names that its scales could have.
        expected: String,
    },
    /// Scales of a tensor that has no codes.
    #[error("`{scales}` in `{}` are scales, but tensor `{tensor}` {found}, expected FP8", file.display())]
    ScalesWithoutCodes {
        /// The tensor of scales.
        scales: String,
        /// Its file.
        file: PathBuf,
        /// The tensor that they would scale.
        tensor: String,
        /// What there is of it.
        found: String,
    },
    /// Two tensors that both scale the same codes.
    #[error("tensor `{tensor}` has scales in `{first}` and in `{second}`, expected one of them")]
    TwiceScaled {
        /// The tensor.
        tensor: String,
        /// One tensor of scales.
        first: String,
        /// The other.
        second: String,
    },
    /// Scales that do not fit their codes.
    #[error("scales `{scales}` in `{}` have shape {found}, tensor `{tensor}` of shape {shape} calls for {expected}", file.display())]
    WrongScales {
        /// The tensor of scales.
        scales: String,
        /// Its shape.
        found: Box<Shape>,
        /// Its file.
        file: PathBuf,
        /// The tensor that they scale.
        tensor: String,
        /// That tensor's shape.
        shape: Box<Shape>,
        /// What would fit.
        expected: String,
    },
    /// A scale that no number can have been divided by.
    #[error(
        "scale {index} of `{scales}` is {found}, tensor `{tensor}` calls for finite scales that are not negative"
    )]
    BadScale {
        /// The tensor.
        tensor: String,
        /// The tensor of scales.
        scales: String,
        /// The place among the scales.
        index: u64,
        /// The scale.
        found: f32,
    },
    /// A file that is shorter than its header promised when it was opened.
    #[error("`{}` ended inside tensor `{tensor}`: expected {expected_bytes} bytes in the file, found {found_bytes}", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// The tensor that was read.
        tensor: String,
        /// The file's size when it was opened.
        expected_bytes: u64,
        /// Its size at the failed read.
        found_bytes: u64,
    },
    /// A file that is not the one whose header was read.
    #[error("`{}` changed since its header was read: it had {expected_bytes} bytes, now {found_bytes}", file.display())]
    Changed {
        /// The file.
        file: PathBuf,
        /// Its size then.
        expected_bytes: u64,
        /// Its size at the second look.
        found_bytes: u64,
    },
    /// The disk has no room.
    #[error("no room for `{}`, which needs {needed_bytes} bytes", file.display())]
    DiskFull {
        /// The file that was written.
        file: PathBuf,
        /// Bytes it needs in all.
        needed_bytes: u64,
    },
    /// An output folder with something in it.
    #[error("out folder `{}` is not empty: it holds `{found}`", folder.display())]
    OutNotEmpty {
        /// The folder.
        folder: PathBuf,
        /// The first thing found in it.
        found: String,
    },
    /// A tensor to be exported whose size or name no file can have.
    #[error("tensor `{tensor}` cannot be exported")]
    BadTensor {
        /// The tensor.
        tensor: String,
        /// What is wrong with its size.
        #[source]
        source: ShapeError,
    },
    /// Two tensors to be exported under one name, or a name that is reserved.
    #[error("tensor name `{tensor}` cannot be exported: {reason}")]
    BadName {
        /// The name.
        tensor: String,
        /// Why not.
        reason: &'static str,
    },
    /// Random weights asked for in a dtype that none are made in.
    #[error("random weights cannot be written as {found}, supported: F32, BF16, F16")]
    InitDtype {
        /// The dtype asked for.
        found: Dtype,
    },
    /// A header to be written that no reader would accept.
    #[error("the header of `{file}` would have {bytes} bytes, the limit is {limit_bytes}")]
    HeaderTooLarge {
        /// The planned file.
        file: String,
        /// The header's size.
        bytes: u64,
        /// The format's limit.
        limit_bytes: u64,
    },
    /// The operating system refused.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

/// What is wrong with an index.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexFault {
    /// Not JSON, or not the JSON of an index.
    #[error("not the JSON of an index")]
    NotJson {
        /// What the parser found.
        #[source]
        source: serde_json::Error,
    },
    /// A name that stands in the map twice.
    #[error("tensor `{tensor}` is mapped twice")]
    Duplicate {
        /// The tensor.
        tensor: String,
    },
    /// A field that stands in the index twice.
    #[error("`{field}` stands in it twice")]
    DuplicateField {
        /// The field.
        field: String,
    },
    /// More tensors than the limit.
    #[error("it has more than {limit} tensors")]
    TooManyTensors {
        /// The limit.
        limit: usize,
    },
    /// A file name that leaves the folder or is none.
    #[error("file name `{name}` is not a plain path inside the folder")]
    BadFileName {
        /// The name.
        name: String,
    },
    /// No tensor at all.
    #[error("`weight_map` is missing or empty")]
    Empty,
}

fn and_more(num_tensors: usize) -> String {
    match num_tensors.saturating_sub(1) {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    }
}

/// A result of this crate.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// Says what was tried on which path when the system refused.
pub(crate) fn io_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> CheckpointError {
    move |source| {
        if source.kind() == io::ErrorKind::NotFound {
            return CheckpointError::NotFound {
                path: path.to_owned(),
            };
        }
        CheckpointError::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

/// As [`io_error`], for a write of a file that needs `needed_bytes` in all.
pub(crate) fn write_error(
    path: &Path,
    needed_bytes: u64,
) -> impl FnOnce(io::Error) -> CheckpointError {
    move |source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => CheckpointError::DiskFull {
            file: path.to_owned(),
            needed_bytes,
        },
        _ => io_error("write", path)(source),
    }
}
