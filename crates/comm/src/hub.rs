//! Where ranks wait for each other: the board under its lock, with deadlines.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::board::Board;
use crate::{CommError, Result, World};

/// The board of a group and the bell that rings when it changes.
#[derive(Debug)]
pub(crate) struct Hub {
    board: Mutex<Board>,
    changed: Condvar,
}

impl Hub {
    pub(crate) fn new(world_size: usize) -> Self {
        Self {
            board: Mutex::new(Board::new(world_size)),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Board> {
        // Each change is one step on plain numbers, so a panic elsewhere cannot
        // leave the board half changed.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the board; wakes the waiting ranks if `change` says so.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Board) -> bool) {
        let wakes = change(&mut self.lock());
        self.wake_if(wakes);
    }

    /// Lets the waiting ranks look at the board again.
    pub(crate) fn wake_if(&self, wakes: bool) {
        if wakes {
            self.changed.notify_all();
        }
    }

    /// Records a failure and ends all waits.
    pub(crate) fn fail(&self, rank: usize, message: String) {
        self.change(|board| {
            board.fail(rank, message);
            true
        });
    }

    /// Waits, without deadline and whatever has failed, until nobody reads what
    /// others lend. Reading is a copy or a sum in memory, so it ends.
    pub(crate) fn wait_for_readers(&self) {
        let mut board = self.lock();
        while board.is_anyone_reading() {
            let woken = self.changed.wait(board);
            board = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One rank's place at the hub.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) hub: Arc<Hub>,
    pub(crate) world: World,
    deadline_nanos: AtomicU64,
}

impl Seat {
    pub(crate) fn new(hub: Arc<Hub>, world: World, deadline: Duration) -> Self {
        let seat = Self {
            hub,
            world,
            deadline_nanos: AtomicU64::new(0),
        };
        seat.set_deadline(deadline);
        seat
    }

    pub(crate) fn set_deadline(&self, deadline: Duration) {
        let nanos = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.deadline_nanos.store(nanos, Relaxed);
    }

    pub(crate) fn rank(&self) -> usize {
        self.world.rank()
    }

    /// Waits until `ready` gives something; fails the group if it gives an error
    /// or if that takes longer than the deadline. `missing` names those waited
    /// for, `what` the call.
    pub(crate) fn wait<T>(
        &self,
        what: &dyn Fn() -> String,
        missing: impl Fn(&mut Board) -> Vec<usize>,
        mut ready: impl FnMut(&mut Board) -> Option<Result<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        let deadline = Duration::from_nanos(self.deadline_nanos.load(Relaxed));
        let mut board = self.hub.lock();
        let error = loop {
            board.check()?;
            match ready(&mut board) {
                Some(Ok(granted)) => return Ok(granted),
                Some(Err(error)) => break error,
                None => {}
            }
            let waited = start.elapsed();
            let Some(left) = deadline.checked_sub(waited) else {
                break CommError::Deadline {
                    collective: what(),
                    rank: self.rank(),
                    waited,
                    missing: missing(&mut board),
                };
            };
            let woken = self.hub.changed.wait_timeout(board, left);
            board = woken.unwrap_or_else(PoisonError::into_inner).0;
        };
        board.fail(self.rank(), error.to_string());
        drop(board);
        self.hub.changed.notify_all();
        Err(error)
    }
}
