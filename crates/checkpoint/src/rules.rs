//! How strictly a checkpoint is read, and which links lead to its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{CheckpointError, Result, io_error};

/// How a checkpoint is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadRules {
    /// What is done about what does not belong.
    pub strictness: Strictness,
    /// Which links are followed.
    pub links: FollowLinks,
}

/// What is done about a tensor that the model does not have, and about an unknown
/// field of a header's entry. A missing tensor is an error either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strictness {
    /// It is an error.
    #[default]
    Strict,
    /// It is left out with a warning.
    Lax,
}

/// Which symbolic links in a model folder are followed.
///
/// The folder itself may be reached by any link: its path was typed by the user,
/// while the links in it were made by whoever made the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FollowLinks {
    /// All.
    Any,
    /// Those that stay in the folder, and those of a Hugging Face cache from
    /// `snapshots/REVISION` to the `blobs` beside it.
    #[default]
    Cache,
    /// None.
    None,
}

/// A value that is no [`FollowLinks`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown choice of links `{0}`, expected `any`, `cache` or `none`")]
pub struct UnknownFollowLinks(pub String);

impl FromStr for FollowLinks {
    type Err = UnknownFollowLinks;

    fn from_str(text: &str) -> Result<Self, UnknownFollowLinks> {
        match text {
            "any" => Ok(Self::Any),
            "cache" => Ok(Self::Cache),
            "none" => Ok(Self::None),
            other => Err(UnknownFollowLinks(other.to_owned())),
        }
    }
}

/// A model folder and where links from it may lead.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    follow: FollowLinks,
    folder: PathBuf,
    /// The folder without links.
    real: PathBuf,
}

impl Bounds {
    pub(crate) fn new(folder: &Path, follow: FollowLinks) -> Result<Self> {
        Ok(Self {
            follow,
            folder: folder.to_owned(),
            real: fs::canonicalize(folder).map_err(io_error("open", folder))?,
        })
    }

    /// The path of a name in the folder, if the links on the way may be followed.
    /// A path that leads to no file is left to whoever opens it and finds none.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        if self.follow == FollowLinks::Any {
            return Ok(path);
        }
        let target = match fs::canonicalize(&path) {
            Ok(target) if target.is_file() => target,
            _ => return Ok(path),
        };
        let is_allowed = match self.follow {
            FollowLinks::Any => true,
            FollowLinks::Cache => target.starts_with(&self.real) || self.is_blob(&target),
            FollowLinks::None => target == self.real.join(name),
        };
        if is_allowed {
            return Ok(path);
        }
        Err(CheckpointError::LinkNotFollowed {
            link: path,
            target,
            reason: match self.follow {
                FollowLinks::None => "links are not followed",
                _ => "which is outside the folder",
            },
        })
    }

    /// Whether a file lies in the `blobs` of the cache whose snapshot this is.
    fn is_blob(&self, target: &Path) -> bool {
        self.real
            .ancestors()
            .filter(|above| above.file_name().is_some_and(|name| name == "snapshots"))
            .filter_map(Path::parent)
            .any(|cache| target.starts_with(cache.join("blobs")))
    }
}
