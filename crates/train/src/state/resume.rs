//! A checkpoint that a run goes on from.

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::{CachePolicy, CheckpointError, Digest, MANIFEST_NAME, Manifest};

use super::{FOLDER, LATEST, Progress, STATE_NAME, StatePlan, checkpoint_path, whole_checkpoints};
use crate::load::over_ranks;
use crate::run::Schedule;
use crate::{Event, RankWorld, TrainError, TrainJob};

/// A checkpoint that a run goes on from.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// The one that the settings name, if they do.
    pub(crate) fn asked_for(job: &TrainJob<'_>) -> Result<Option<Self>, TrainError> {
        let Some(asked) = &job.settings.resume else {
            return Ok(None);
        };
        let path = if asked == LATEST {
            // The file of that name may be older, if the run ended between the two.
            let last = whole_checkpoints(job.out).pop();
            let none = || TrainError::NoCheckpoint {
                out: job.out.to_owned(),
            };
            checkpoint_path(job.out, last.ok_or_else(none)?)
        } else {
            PathBuf::from(asked)
        };
        let folder = path.join(FOLDER);
        let manifest = Manifest::read(&folder)?;
        let manifest = manifest.ok_or_else(|| CheckpointError::NotFound {
            path: folder.join(MANIFEST_NAME),
        })?;
        Ok(Some(Self { path, manifest }))
    }

    /// How far the run had come, and what changed since in words; refuses that of
    /// another run.
    pub(crate) fn progress(
        &self,
        job: &TrainJob<'_>,
        schedule: &Schedule,
    ) -> Result<(Progress, Vec<String>), TrainError> {
        let file = self.path.join(FOLDER).join(STATE_NAME);
        let text = read(&file)?;
        let digest = Digest::of(0, text.as_bytes());
        self.manifest.check(STATE_NAME, digest, &file)?;
        let (progress, changed) = Progress::of_text(&text, &file, job, schedule)?;
        let later = whole_checkpoints(job.out).into_iter();
        if let Some(later) = later.rev().find(|&step| step > progress.step) {
            return Err(TrainError::BadState {
                reason: format!(
                    "{} has a later checkpoint, step-{later}: go on from that, or with another --out",
                    job.out.display()
                ),
                file,
            });
        }
        Ok((progress, changed))
    }

    /// Reads this rank's planes and proves them over all ranks; gives the bytes read.
    pub(crate) fn restore(
        &self,
        plan: &StatePlan,
        world: &mut RankWorld<'_>,
    ) -> Result<u64, TrainError> {
        let folder = self.path.join(FOLDER);
        let reader = plan.export.open(&folder, CachePolicy::Auto)?;
        let (mut digests, mut num_bytes) = (plan.no_digests(), 0);
        let mut optimizer = world.optimizer.take();
        for (bucket, shape) in world.sharding.buckets.iter().enumerate() {
            let layout = &world.layouts[bucket][world.rank];
            let mut slot = world.window.own_mut(bucket)?;
            let parts = shape.runs[world.rank].parts.iter().zip(&layout.parts);
            for (number, (part, place)) in parts.enumerate() {
                let private = optimizer.iter_mut();
                let private = private.flat_map(|own| own.state_mut(bucket, number));
                let groups = std::iter::once(&mut slot[place.clone()]).chain(private);
                for (plane, begin, bytes) in plan.of_part(world, bucket, part, groups) {
                    let range = begin..begin + bytes.len() as u64;
                    reader.read_at(plan.located(plane), range, bytes)?;
                    digests[plane] += Digest::of(begin, bytes);
                    num_bytes += bytes.len() as u64;
                }
            }
        }
        world.optimizer = optimizer;
        let digests = over_ranks(world.group, &digests)?;
        for (plane, digest) in plan.export.tensors().iter().zip(digests) {
            let file = folder.join(&plan.export.files()[plane.file].name);
            self.manifest.check(&plane.meta.name, digest, &file)?;
        }
        Ok(num_bytes)
    }

    pub(crate) fn event(&self, step: u64) -> Event {
        Event::Resumed {
            path: self.path.display().to_string(),
            step,
        }
    }
}

fn read(file: &Path) -> Result<String, TrainError> {
    fs::read_to_string(file).map_err(|error| TrainError::BadState {
        file: file.to_owned(),
        reason: error.to_string(),
    })
}
