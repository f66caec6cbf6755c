//! `PyTorch` checkpoints, read without running them.
//!
//! ```text
//! NAME/data.pkl      a pickle: a dictionary from names to tensors, each a storage's
//!                    key, an offset, a shape and strides
//! NAME/data/KEY      the bytes of a storage, stored as they are
//! ```
//!
//! A pickle is a program. This one is interpreted by a machine that knows the few
//! instructions and globals that a dictionary of tensors consists of, and imports
//! nothing; anything else is an error. What comes out is the place of every tensor
//! in the file, so that from here on a rank reads byte ranges as it does of
//! safetensors.
//!
//! Refused, each by name: tensors whose strides are not those of their shape,
//! dictionaries in dictionaries (the checkpoint of a training loop), `TorchScript`
//! programs, and files from before torch 1.6, which are no zip archives.

mod archive;
mod fault;
mod globals;
mod heap;
mod instructions;
mod machine;

use std::fs::File;

use tensor::TensorMeta;

pub use self::fault::PickleFault;

use self::archive::Archive;
use self::fault::shown;
use self::heap::Storage;
use self::machine::StateDict;
use crate::header::MAX_HEADER_BYTES;

/// Why a file could not be read.
#[derive(Debug)]
pub(crate) enum PickleError {
    /// The operating system refused.
    Io(std::io::Error),
    /// It says something else than a dictionary of tensors.
    Fault(PickleFault),
}

impl From<PickleFault> for PickleError {
    fn from(fault: PickleFault) -> Self {
        Self::Fault(fault)
    }
}

type Result<T, E = PickleError> = std::result::Result<T, E>;

/// Every tensor of a file of `file_bytes` and where its bytes begin, in the order
/// of their bytes. Tensors of one storage may share bytes.
pub(crate) fn tensors_in(file: &File, file_bytes: u64) -> Result<Vec<(TensorMeta, u64)>> {
    let archive = Archive::open(file, file_bytes)?;
    archive.check_kind()?;
    let program = archive.read("data.pkl", MAX_HEADER_BYTES)?;
    let state = machine::run(&program)?;
    let begins = state.storages.iter();
    let begins = begins.map(|storage| begin_of(&archive, storage));
    let begins = begins.collect::<Result<Vec<_>>>()?;
    let mut tensors = placed(state, &begins)?;
    tensors.sort_unstable_by(|a, b| (a.1, &a.0.name).cmp(&(b.1, &b.0.name)));
    Ok(tensors)
}

/// Where a storage's bytes begin in the file.
fn begin_of(archive: &Archive<'_>, storage: &Storage<'_>) -> Result<u64> {
    let (begin, num_bytes) = archive.locate(&format!("data/{}", storage.key))?;
    let expected_bytes = storage.num_bytes();
    if expected_bytes != Some(num_bytes) {
        return Err(PickleError::Fault(PickleFault::StorageLength {
            key: shown(storage.key),
            expected_bytes: expected_bytes.unwrap_or(u64::MAX),
            found_bytes: num_bytes,
        }));
    }
    Ok(begin)
}

fn placed(state: StateDict<'_>, begins: &[u64]) -> Result<Vec<(TensorMeta, u64)>> {
    let mut tensors = Vec::with_capacity(state.tensors.len());
    for (name, tensor) in state.tensors {
        let storage = &state.storages[tensor.storage as usize];
        let (Some(begin), Some(size)) = (
            begins.get(tensor.storage as usize),
            storage.dtype.size_bytes(),
        ) else {
            continue;
        };
        let name = name.to_owned();
        if !tensor.is_contiguous {
            return Err(PickleError::Fault(PickleFault::Strided { tensor: name }));
        }
        let meta = TensorMeta {
            name,
            dtype: storage.dtype,
            shape: tensor.shape,
        };
        // The machine has checked that the tensor lies in its storage, and
        // `begin_of` that the storage lies in the file.
        tensors.push((meta, begin + tensor.offset * size as u64));
    }
    Ok(tensors)
}
