//! How a rank comes to the state that its first step begins with.

use comm::{ProcessGroup, ReduceOp};
use kernels::Cpu;
use plan::Plan;
use tensor::Ledger;

use crate::load::Origin;
use crate::phases::Phases;
use crate::run::Schedule;
use crate::state::{Checkpoint, Progress, StatePlan};
use crate::{Event, Optimizer, RankWorld, TrainError, TrainJob, load};

/// What the world was filled from.
pub(crate) struct Beginning {
    pub(crate) read_bytes: u64,
    pub(crate) progress: Progress,
    /// What there is to tell of it.
    pub(crate) events: Vec<Event>,
}

/// A rank's planes and optimizer, still empty.
pub(crate) fn empty_world<'a>(
    job: &TrainJob<'_>,
    plan: &'a Plan,
    group: &'a ProcessGroup,
    device: &'a Cpu,
    ledger: &'a Ledger,
) -> Result<RankWorld<'a>, TrainError> {
    let rank = group.world().rank();
    let optimizer = Optimizer::new(
        &plan.sharding,
        rank,
        &plan.formats,
        job.settings.into(),
        ledger,
    )?;
    RankWorld::new(
        group,
        device,
        &plan.sharding,
        &plan.formats,
        Some(optimizer),
        ledger,
    )
}

/// Fills the world from the model, or from the checkpoint that the run goes on from.
pub(crate) fn fill(
    job: &TrainJob<'_>,
    schedule: &Schedule,
    state: &StatePlan,
    world: &mut RankWorld<'_>,
    ledger: &Ledger,
    phases: &mut Phases<'_>,
) -> Result<Beginning, TrainError> {
    let group = world.group;
    phases.next(group, "load")?;
    let beginning = match Checkpoint::asked_for(job)? {
        Some(checkpoint) => go_on(job, schedule, &checkpoint, state, world)?,
        None => Beginning {
            read_bytes: load(world, &Origin::of(job)?, ledger)?.read_bytes,
            progress: Progress::default(),
            events: Vec::new(),
        },
    };
    phases.next(group, "prepare")?;
    group.set_deadline(job.settings.deadline());
    // What is not trained, or goes on, stays what it was.
    if schedule.num_steps == 0 || job.settings.resume.is_some() {
        return Ok(beginning);
    }
    let events = clear_plain(world)?.into_iter().collect();
    Ok(Beginning {
        events,
        ..beginning
    })
}

/// Restores a checkpoint.
fn go_on(
    job: &TrainJob<'_>,
    schedule: &Schedule,
    checkpoint: &Checkpoint,
    state: &StatePlan,
    world: &mut RankWorld<'_>,
) -> Result<Beginning, TrainError> {
    let (progress, changed) = checkpoint.progress(job, schedule)?;
    let read_bytes = checkpoint.restore(state, world)?;
    world.fallen.clone_from(&progress.fallen);
    let mut events = vec![checkpoint.event(progress.step)];
    let warnings = changed.into_iter();
    events.extend(warnings.map(|message| Event::Warning { message }));
    Ok(Beginning {
        read_bytes,
        progress,
        events,
    })
}

/// Encodes plain tiles for training; says how many there were on all ranks.
fn clear_plain(world: &mut RankWorld<'_>) -> Result<Option<Event>, TrainError> {
    let encoded = world.clear_plain()?;
    let mut counts = [encoded.num_plain as u64, encoded.num_missed as u64];
    let group = world.group;
    group.all_reduce_u64(&mut counts, ReduceOp::Sum, "plain tiles")?;
    let [num_plain_tiles, num_rounded] = counts;
    Ok((num_plain_tiles > 0).then_some(Event::Encoded {
        num_plain_tiles,
        num_rounded,
    }))
}
