//! The digests of a folder's tensors, as the file `digests.json` beside them.
//!
//! ```text
//! {"algorithm": "nestling-1", "tensors": {"NAME": "SUM:BYTES", ...}}
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{CheckpointError, Result};
use crate::files::read_text;
use crate::header::MAX_HEADER_BYTES;

/// The file's name.
pub const MANIFEST_NAME: &str = "digests.json";

const ALGORITHM: &str = "nestling-1";

/// The digests of a folder's tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    path: PathBuf,
    digests: BTreeMap<String, Digest>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    algorithm: String,
    tensors: BTreeMap<String, String>,
}

impl Manifest {
    /// Reads a folder's manifest, if it has one.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(MANIFEST_NAME);
        let text = match read_text(&path, MAX_HEADER_BYTES) {
            Ok(text) => text,
            Err(CheckpointError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let refuse = |reason: String| CheckpointError::BadManifest {
            file: path.clone(),
            reason,
        };
        let parsed: Text =
            serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
        if parsed.algorithm != ALGORITHM {
            let found = parsed.algorithm;
            return Err(refuse(format!(
                "its algorithm is `{found}`, expected `{ALGORITHM}`"
            )));
        }
        let digests = parsed.tensors.into_iter().map(|(name, text)| {
            let digest = text.parse::<Digest>();
            let digest = digest.map_err(|error| refuse(format!("tensor `{name}`: {error}")))?;
            Ok((name, digest))
        });
        let digests = digests.collect::<Result<_>>()?;
        Ok(Some(Self { path, digests }))
    }

    /// The text of a manifest.
    #[expect(clippy::missing_panics_doc, reason = "strings are always JSON")]
    pub fn text<'a>(digests: impl Iterator<Item = (&'a str, Digest)>) -> String {
        let tensors = digests.map(|(name, digest)| (name.to_owned(), digest.to_string()));
        let text = Text {
            algorithm: ALGORITHM.to_owned(),
            tensors: tensors.collect(),
        };
        let mut text = serde_json::to_string_pretty(&text).expect("strings are JSON");
        text.push('\n');
        text
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The digest of the tensor of this name.
    pub fn of(&self, tensor: &str) -> Option<Digest> {
        self.digests.get(tensor).copied()
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.digests.keys().map(String::as_str)
    }

    /// Refuses a tensor that is not as it was when the manifest was written.
    pub fn check(&self, tensor: &str, found: Digest, file: &Path) -> Result<()> {
        match self.of(tensor) {
            Some(expected) if expected == found => Ok(()),
            Some(expected) => Err(CheckpointError::WrongDigest {
                tensor: tensor.to_owned(),
                file: file.to_owned(),
                manifest: self.path.clone(),
                expected,
                found,
            }),
            None => Err(CheckpointError::BadManifest {
                file: self.path.clone(),
                reason: format!("it has no digest of tensor `{tensor}`"),
            }),
        }
    }
}
