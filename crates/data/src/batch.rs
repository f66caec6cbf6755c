//! Which rows a step takes, how many steps a run has, and who takes what.
//!
//! An epoch is cut into global batches in its order; the last one may be
//! smaller and never takes rows of the next epoch, so that each row counts once
//! an epoch. All of this is arithmetic on counts: equal on every rank.

use std::ops::Range;

use crate::error::{DataError, Result};

/// How long a run is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RunLength {
    /// So many steps.
    Steps(u64),
    /// So many passes over the rows; a fraction is rounded up to a whole step.
    Epochs(f64),
    /// At least so many tokens, padding included; rounded up to a whole step.
    Tokens(u64),
}

/// The rows of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Which pass over the rows, from 0.
    pub epoch: u64,
    /// Positions in that epoch's order.
    pub positions: Range<u64>,
}

/// The steps of a run without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPlan {
    num_rows: u64,
    global_batch: u64,
}

impl BatchPlan {
    /// A plan over at least one row in batches of at least one.
    pub fn new(num_rows: u64, global_batch: u64) -> Result<Self> {
        at_least_one("number of rows", num_rows)?;
        at_least_one("global batch", global_batch)?;
        Ok(Self {
            num_rows,
            global_batch,
        })
    }

    /// Steps of one epoch, the smaller last one included.
    pub fn steps_per_epoch(&self) -> u64 {
        self.num_rows.div_ceil(self.global_batch)
    }

    /// The rows of a step, counted from 0.
    pub fn step(&self, step: u64) -> Step {
        let per_epoch = self.steps_per_epoch();
        // Below the number of rows, so no product here can overflow.
        let start = step % per_epoch * self.global_batch;
        let len = self.global_batch.min(self.num_rows - start);
        Step {
            epoch: step / per_epoch,
            positions: start..start + len,
        }
    }
}

/// How many steps a run has.
pub fn num_steps(length: RunLength, num_rows: u64, global_batch: u64, seq: u64) -> Result<u64> {
    let plan = BatchPlan::new(num_rows, global_batch)?;
    at_least_one("sequence length", seq)?;
    match length {
        RunLength::Steps(steps) => Ok(steps),
        RunLength::Epochs(epochs) => epochs_to_steps(&plan, epochs),
        RunLength::Tokens(tokens) => {
            let rows = tokens.div_ceil(seq);
            let (whole, rest) = (rows / num_rows, rows % num_rows);
            Ok(whole * plan.steps_per_epoch() + rest.div_ceil(global_batch))
        }
    }
}

fn epochs_to_steps(plan: &BatchPlan, epochs: f64) -> Result<u64> {
    let steps = (epochs * plan.steps_per_epoch() as f64).ceil();
    if !(0.0..=9e15).contains(&steps) {
        return Err(DataError::BadSetting {
            setting: "epochs",
            expected: "a number that is not negative",
            found: epochs.to_string(),
        });
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number from 0 to 9e15, checked above"
    )]
    Ok(steps as u64)
}

fn at_least_one(setting: &'static str, found: u64) -> Result<()> {
    if found > 0 {
        return Ok(());
    }
    Err(DataError::BadSetting {
        setting,
        expected: "at least 1",
        found: found.to_string(),
    })
}

/// A rank's part of a step's rows: contiguous, and at most one row more than
/// any other rank's. A rank may get none.
pub fn deal_rows(rows: Range<u64>, world_size: usize, rank: usize) -> Range<u64> {
    let (world_size, rank) = (world_size as u64, rank as u64);
    let len = rows.end.saturating_sub(rows.start);
    let (each, more) = (len / world_size, len % world_size);
    let start = |rank: u64| rows.start + rank * each + rank.min(more);
    start(rank)..start(rank + 1)
}

/// A rank's rows in runs of at most `micro_batch`, in order.
pub fn micro_batches(rows: Range<u64>, micro_batch: usize) -> Vec<Range<u64>> {
    let step = micro_batch.max(1);
    rows.clone()
        .step_by(step)
        .map(|start| start..rows.end.min(start + step as u64))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_never_crosses_an_epoch() {
        let plan = BatchPlan::new(7, 4).unwrap();
        let steps: Vec<_> = (0..4).map(|step| plan.step(step)).collect();
        let expected = [(0, 0..4), (0, 4..7), (1, 0..4), (1, 4..7)];
        let expected = expected.map(|(epoch, positions)| Step { epoch, positions });
        assert_eq!(steps, expected);
    }

    #[test]
    fn every_epoch_visits_every_position_once() {
        for num_rows in 1..40 {
            for global_batch in 1..12 {
                let plan = BatchPlan::new(num_rows, global_batch).unwrap();
                let per_epoch = plan.steps_per_epoch();
                let visited = (per_epoch..2 * per_epoch).flat_map(|step| plan.step(step).positions);
                assert!(visited.eq(0..num_rows), "{num_rows} rows by {global_batch}");
            }
        }
    }

    #[test]
    fn a_runs_length_counts_the_smaller_last_step() {
        let steps = |length| num_steps(length, 7, 4, 10).unwrap();
        assert_eq!(steps(RunLength::Steps(5)), 5);
        assert_eq!(steps(RunLength::Epochs(0.0)), 0);
        assert_eq!(steps(RunLength::Epochs(0.5)), 1);
        assert_eq!(steps(RunLength::Epochs(1.0)), 2);
        assert_eq!(steps(RunLength::Epochs(2.5)), 5);
        assert_eq!(steps(RunLength::Tokens(0)), 0);
        assert_eq!(steps(RunLength::Tokens(40)), 1);
        assert_eq!(steps(RunLength::Tokens(41)), 2);
        assert_eq!(steps(RunLength::Tokens(70)), 2);
        assert_eq!(steps(RunLength::Tokens(71)), 3);
        assert_eq!(steps(RunLength::Tokens(140)), 4);
    }

    #[test]
    fn tokens_to_steps_agrees_with_walking() {
        for num_rows in 1..10 {
            for global_batch in 1..6 {
                let plan = BatchPlan::new(num_rows, global_batch).unwrap();
                for tokens in 0..60 {
                    let (mut steps, mut seen) = (0, 0);
                    while seen < tokens {
                        let positions = plan.step(steps).positions;
                        seen += (positions.end - positions.start) * 3;
                        steps += 1;
                    }
                    let found = num_steps(RunLength::Tokens(tokens), num_rows, global_batch, 3);
                    assert_eq!(found.unwrap(), steps);
                }
            }
        }
    }

    #[test]
    fn settings_without_meaning_are_refused() {
        for (length, rows, batch, seq) in [
            (RunLength::Steps(1), 0, 1, 1),
            (RunLength::Steps(1), 1, 0, 1),
            (RunLength::Steps(1), 1, 1, 0),
            (RunLength::Epochs(-1.0), 1, 1, 1),
            (RunLength::Epochs(f64::NAN), 1, 1, 1),
            (RunLength::Epochs(f64::INFINITY), 1, 1, 1),
        ] {
            let found = num_steps(length, rows, batch, seq);
            assert!(
                matches!(found, Err(DataError::BadSetting { .. })),
                "{length:?}"
            );
        }
    }

    #[test]
    fn ranks_share_a_steps_rows_fairly_and_completely() {
        for num_rows in 0..40_u64 {
            for world_size in 1..10 {
                let parts: Vec<_> = (0..world_size)
                    .map(|rank| deal_rows(100..100 + num_rows, world_size, rank))
                    .collect();
                assert!(parts.iter().cloned().flatten().eq(100..100 + num_rows));
                let lens = parts.iter().map(|part| part.end - part.start);
                let (least, most) = (lens.clone().min().unwrap(), lens.max().unwrap());
                assert!(most - least <= 1);
            }
        }
    }

    #[test]
    fn micro_batches_cover_a_ranks_rows() {
        assert_eq!(micro_batches(3..8, 2), [3..5, 5..7, 7..8]);
        assert_eq!(micro_batches(3..3, 2), []);
        assert_eq!(micro_batches(3..5, 100), [Range { start: 3, end: 5 }]);
    }
}
