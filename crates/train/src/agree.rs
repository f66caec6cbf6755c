//! Whether all ranks decided the same, asked before anything follows from it.

use comm::ProcessGroup;
use plan::PlanHash;

use crate::TrainError;

/// Refuses to go on where another rank decided something else; `what` was decided.
pub(crate) fn agree(
    group: &ProcessGroup,
    hash: PlanHash,
    what: &'static str,
) -> Result<(), TrainError> {
    let hashes = group.all_gather(&hash.0.to_le_bytes(), what)?;
    for (rank, bytes) in hashes.iter().enumerate() {
        let theirs = bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
        if theirs != hash.0 {
            return Err(TrainError::PlanDiffers {
                what,
                rank,
                theirs,
                ours: hash.0,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use comm::{Threads, run_threads};

    use super::*;
    use crate::run::rank_error;

    #[test]
    fn ranks_that_planned_differently_stop_and_name_both_sides() {
        let world = Threads::of(NonZeroUsize::new(3).unwrap());
        let hashes = [7, 7, 9];
        let failure = run_threads(world, |group| {
            agree(&group, PlanHash(hashes[group.world().rank()]), "plan")
        })
        .unwrap_err();
        let TrainError::Rank { rank, source, .. } = rank_error(failure, 3) else {
            panic!("a rank fails");
        };
        let message = source.to_string();
        let other = if rank == 2 { 0 } else { 2 };
        assert!(
            message.contains(&format!("the plan of rank {other} is")),
            "{message}"
        );
        for hash in ["0x0000000000000007", "0x0000000000000009"] {
            assert!(message.contains(hash), "{message}");
        }
    }

    #[test]
    fn ranks_that_planned_the_same_go_on() {
        let world = Threads::of(NonZeroUsize::new(3).unwrap());
        run_threads(world, |group| agree(&group, PlanHash(7), "plan")).unwrap();
    }
}
