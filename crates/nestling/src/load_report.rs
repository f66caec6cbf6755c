//! A load for its own sake: what any rank of any world holds, reads and takes.

use std::num::NonZeroUsize;

use checkpoint::CachePolicy;
use train::{LoadReport, LoadSettings, ReadWay, Rehearsal, Settings, TrainError, rehearse};

use crate::{Error, ModelPath, OpenModel};

/// What to load, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOptions {
    /// The number of ranks.
    pub world_size: NonZeroUsize,
    /// The only rank that is loaded; without one all are, in this process.
    pub as_rank: Option<usize>,
    /// How weights rest: a recipe by name, or without one as for inference.
    pub recipe: Option<String>,
    /// Which rank reads a byte.
    pub way: ReadWay,
    /// What reading leaves in the page cache.
    pub cache: CachePolicy,
    /// Whether what arrived is compared with what was read.
    pub digests: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            world_size: NonZeroUsize::MIN,
            as_rank: None,
            recipe: None,
            way: ReadWay::default(),
            cache: CachePolicy::default(),
            digests: true,
        }
    }
}

/// Loads a model as the ranks of a world, or as one of them, and drops it again.
pub fn load_report<'a>(
    model: impl Into<ModelPath<'a>>,
    options: &LoadOptions,
) -> Result<LoadReport, Error> {
    if options.as_rank.is_some() && options.way != ReadWay::Own {
        return Err(Error::ReadsAlone { way: options.way });
    }
    let opened = OpenModel::open(model)?;
    let precision = options.recipe.as_ref().map(|recipe| {
        let settings = Settings {
            recipe: recipe.clone(),
            ..Settings::default()
        };
        settings.precision().map_err(TrainError::from)
    });
    let precision = precision.transpose()?;
    let rehearsal = Rehearsal {
        model: opened.inference(1, None),
        settings: LoadSettings {
            way: options.way,
            cache: options.cache,
            checks_digests: options.digests,
        },
        precision: precision.as_ref(),
        world_size: options.world_size,
        as_rank: options.as_rank,
    };
    Ok(rehearse(&rehearsal)?)
}
