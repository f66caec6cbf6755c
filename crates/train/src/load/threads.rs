//! Work that several threads of a rank share out among themselves.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::TrainError;

/// Runs `work` on each item, on `num_threads` threads with a state each; gives
/// the states. The first error ends the work.
///
/// Each thread takes the next item when it is done with its last, so there are
/// never more items under way than threads.
pub(crate) fn share_out<T: Send, S: Send>(
    num_threads: usize,
    items: impl Iterator<Item = T> + Send,
    begin: impl Fn() -> Result<S, TrainError> + Sync,
    work: impl Fn(&mut S, T) -> Result<(), TrainError> + Sync,
) -> Result<Vec<S>, TrainError> {
    let items = Mutex::new(Some(items));
    let next = || {
        let mut items = items.lock().unwrap_or_else(PoisonError::into_inner);
        items.as_mut().and_then(Iterator::next)
    };
    let run = || {
        let mut state = begin()?;
        while let Some(item) = next() {
            if let Err(error) = work(&mut state, item) {
                // The others find nothing left to do.
                *items.lock().unwrap_or_else(PoisonError::into_inner) = None;
                return Err(error);
            }
        }
        Ok(state)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..num_threads).map(|_| scope.spawn(run)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_once() {
        let sums = share_out(
            3,
            1..=100_u64,
            || Ok(0),
            |sum, item| {
                *sum += item;
                Ok(())
            },
        );
        assert_eq!(sums.unwrap().into_iter().sum::<u64>(), 5050);
    }

    #[test]
    fn an_error_ends_the_work_of_all() {
        let outcome = share_out(
            2,
            0..u64::MAX,
            || Ok(()),
            |(), item| match item {
                1000 => Err(TrainError::NoTargets),
                _ => Ok(()),
            },
        );
        assert!(matches!(outcome, Err(TrainError::NoTargets)));
    }
}
