//! What continues a run exactly, in `step-N/state/` beneath a checkpoint's weights.
//!
//! ```text
//! model*.safetensors   the planes of every tensor, `NAME:PLANE`, as bytes
//! state.json           steps taken, what later steps depend on, the settings
//! digests.json         of every plane and of state.json
//! ```
//!
//! A plane lies row after row, or row tile after row tile, as if one rank held all of
//! it: so a rank of any world writes and reads its own byte ranges.

mod planes;
mod progress;
mod resume;

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::{
    Digest, ExportPlan, Located, MANIFEST_NAME, Manifest, StagedFiles, Staging, write_atomically,
};
use plan::Plan;
use shard::Part;
use tensor::{Dtype, Shape, TensorMeta};

use self::planes::{Plane, planes, split};
pub(crate) use self::progress::Progress;
pub(crate) use self::resume::Checkpoint;
use crate::load::over_ranks;
use crate::planes::Cut;
use crate::{RankWorld, TrainError, TrainJob};

const STATE_NAME: &str = "state.json";
const FOLDER: &str = "state";
const LATEST: &str = "latest";
/// A folder that has one is whole.
const CONFIG_NAME: &str = "config.json";

/// Where the checkpoint of a step is.
pub(crate) fn checkpoint_path(out: &Path, step: u64) -> PathBuf {
    out.join(format!("checkpoints/step-{step}"))
}

/// Calls the checkpoint of a step the latest.
pub(crate) fn set_latest(out: &Path, step: u64) -> Result<(), TrainError> {
    let path = out.join("checkpoints").join(LATEST);
    Ok(write_atomically(&path, &format!("step-{step}\n"))?)
}

/// The steps whose checkpoint is whole, in order.
pub fn whole_checkpoints(out: &Path) -> Vec<u64> {
    let mut steps: Vec<u64> = checkpoints(out)
        .filter(|(_, path)| path.join(CONFIG_NAME).exists())
        .map(|(step, _)| step)
        .collect();
    steps.sort_unstable();
    steps
}

/// Removes what is left of checkpoints that were not whole when their run ended, and
/// gives their folders. What cannot be removed stays, and is no checkpoint.
pub fn discard_unfinished_checkpoints(out: &Path) -> Vec<PathBuf> {
    let paths = checkpoints(out).map(|(_, path)| path);
    let unfinished: Vec<_> = paths
        .filter(|path| !path.join(CONFIG_NAME).exists())
        .collect();
    for path in &unfinished {
        drop(fs::remove_dir_all(path));
    }
    unfinished
}

/// Removes all but the last `keep` whole checkpoints; none if `keep` is 0.
pub(crate) fn remove_older(out: &Path, keep: u64) -> Result<(), TrainError> {
    let steps = whole_checkpoints(out);
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    let num_older = if keep == 0 {
        0
    } else {
        steps.len().saturating_sub(keep)
    };
    for &step in &steps[..num_older] {
        let path = checkpoint_path(out, step);
        let removed = fs::remove_file(path.join(CONFIG_NAME));
        // Without it the folder is no checkpoint, whatever ends the rest.
        let removed = removed.and_then(|()| fs::remove_dir_all(&path));
        removed.map_err(|source| TrainError::RunFile { path, source })?;
    }
    Ok(())
}

/// All folders of checkpoints, whole or not.
fn checkpoints(out: &Path) -> impl Iterator<Item = (u64, PathBuf)> {
    let entries = fs::read_dir(out.join("checkpoints"));
    entries.into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        let step = name.to_str()?.strip_prefix("step-")?.parse().ok()?;
        Some((step, entry.path()))
    })
}

/// Where the planes of all tensors lie in the files of a state.
#[derive(Debug)]
pub(crate) struct StatePlan {
    export: ExportPlan,
    /// By the number of the tensor in the model: its planes, and the number of the
    /// first among all.
    tensors: Vec<(usize, Vec<Plane>)>,
}

impl StatePlan {
    pub(crate) fn new(job: &TrainJob<'_>, plan: &Plan) -> Result<Self, TrainError> {
        let (mut metas, mut tensors) = (Vec::new(), Vec::new());
        for (unit, model) in job.model.units.iter().enumerate() {
            for (tensor, param) in model.params.iter().enumerate() {
                let rows = if param.is_vector { 1 } else { param.rows };
                let cols = param.rows * param.cols / rows;
                let planes = planes(plan.formats.storage(unit, tensor), cols);
                let first = metas.len();
                metas.extend(planes.iter().map(|plane| TensorMeta {
                    name: format!("{}:{}", param.name, plane.name),
                    dtype: Dtype::U8,
                    shape: Shape::new(&[plane.num_bytes(rows) as u64]),
                }));
                tensors.push((first, planes));
            }
        }
        let max_file_bytes = job.settings.max_file_size * 1_000_000;
        Ok(Self {
            export: ExportPlan::new(&metas, max_file_bytes)?,
            tensors,
        })
    }

    /// Bytes of a state's files.
    pub(crate) fn num_bytes(&self) -> u64 {
        self.export.num_bytes()
    }

    /// Writes this rank's part of the state to `checkpoint/state`, with the text of
    /// `state.json`; all ranks call it.
    pub(crate) fn write(
        &self,
        world: &RankWorld<'_>,
        checkpoint: &Path,
        text: &str,
    ) -> Result<(), TrainError> {
        let folder = checkpoint.join(FOLDER);
        let staging = (world.rank == 0).then(|| Staging::create(&folder, &self.export, &[]));
        let staging = staging.transpose()?;
        world.group.barrier("state staged")?;
        let files = StagedFiles::open(&folder, &self.export)?;
        let mut digests = self.no_digests();
        for (bucket, shape) in world.sharding.buckets.iter().enumerate() {
            let slot = world.window.own(bucket)?;
            let places = &world.own_layout(bucket).parts;
            let parts = shape.runs[world.rank].parts.iter().zip(places);
            for (number, (part, place)) in parts.enumerate() {
                let private = world.optimizer.iter();
                let private = private.flat_map(|own| own.state(bucket, number));
                let groups = std::iter::once(&slot[place.clone()]).chain(private);
                for (plane, begin, bytes) in self.of_part(world, bucket, part, groups) {
                    files.write_at(self.located(plane), begin, bytes)?;
                    digests[plane] += Digest::of(begin, bytes);
                }
            }
        }
        files.sync()?;
        let digests = over_ranks(world.group, &digests)?;
        if let Some(mut staging) = staging {
            let names = self.export.tensors().iter();
            let planes = names.map(|plane| plane.meta.name.as_str()).zip(digests);
            let of_text = Digest::of(0, text.as_bytes());
            let all = planes.chain([(STATE_NAME, of_text)]);
            staging.add_text(STATE_NAME, text)?;
            staging.add_text(MANIFEST_NAME, &Manifest::text(all))?;
            staging.commit()?;
        }
        Ok(())
    }

    /// The planes of a part, whose bytes lie in `groups`: the number of each among all,
    /// the byte that it begins with there, its bytes.
    fn of_part<B: Cut>(
        &self,
        world: &RankWorld<'_>,
        bucket: usize,
        part: &Part,
        groups: impl Iterator<Item = B>,
    ) -> Vec<(usize, u64, B)> {
        let bucket = &world.sharding.buckets[bucket];
        let tensor = bucket.slices[part.slice].tensor;
        let (first, planes) = &self.tensors[world.sharding.tensor_number(bucket.unit, tensor)];
        let bytes = split(groups, planes, part.rows.len());
        let numbered = (*first..).zip(planes).zip(bytes);
        let planes = numbered.map(|((number, plane), bytes)| {
            let begin = plane.num_bytes(part.rows.start) as u64;
            (number, begin, bytes)
        });
        planes.collect()
    }

    fn located(&self, plane: usize) -> &Located {
        &self.export.tensors()[plane]
    }

    fn no_digests(&self) -> Vec<Digest> {
        vec![Digest::default(); self.export.tensors().len()]
    }
}
