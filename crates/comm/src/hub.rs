//! Where ranks wait for each other: a lock, a bell and the board in words of
//! shared memory, with deadlines.
//!
//! ```text
//! words     lock, bell, failure | numbers of every rank | slots of windows
//! outboxes  one a rank, what it lends in a round
//! ```
//!
//! The memory is a private mapping where ranks are threads, and a memory file
//! that every process maps where they are processes. Nothing else differs.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::thread::Timespec;
use rustix::thread::futex;

use crate::board::{Board, DONE, RANK_WORDS};
use crate::shared::Memory;
use crate::words::Text;
use crate::{CommError, Result, World};

/// Bytes that a rank lends in one round at most.
pub(crate) const OUTBOX_BYTES: usize = 4 << 20;

const LOCK: usize = 0;
const BELL: usize = 1;
const FAILURE: usize = 2;
const FAILED_RANK: usize = 3;
const MESSAGE: usize = 4;
const MESSAGE_WORDS: usize = Text::num_words(4096);
const RANKS: usize = MESSAGE + MESSAGE_WORDS;
/// Words for slots of windows; pages that no slot touches cost nothing.
const SLOT_WORDS: usize = 1 << 20;

/// No failure, one that is being written down, one to read.
const NONE: u64 = 0;
const WRITING: u64 = 1;
const WRITTEN: u64 = 2;

/// How often who waits for the lock looks whether its holder is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// No rank holds the lock that long unless it is gone or stopped.
const LOCK_GONE: Duration = Duration::from_millis(500);
/// A page on any machine, and where huge pages begin.
const WINDOW_ALIGN: usize = 2 << 20;

/// The first failure of the group.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) rank: usize,
    pub(crate) message: String,
}

/// Where windows are mapped.
#[derive(Debug)]
enum Backing {
    /// In this process; rank 0 leaves the newest for the others to take.
    Private(Mutex<Weak<Memory>>),
    /// Behind the board in the file.
    File(OwnedFd),
}

/// The board of a group and the bell that rings when it changes.
#[derive(Debug)]
pub(crate) struct Hub {
    control: Memory,
    world_size: usize,
    backing: Backing,
}

/// Words before the outboxes, a whole number of pages.
fn num_words(world_size: usize) -> usize {
    (RANKS + world_size * RANK_WORDS + SLOT_WORDS).next_multiple_of(512)
}

/// Bytes of the board and the outboxes.
fn control_bytes(world_size: usize) -> usize {
    (8 * num_words(world_size) + world_size * OUTBOX_BYTES).next_multiple_of(WINDOW_ALIGN)
}

impl Hub {
    /// A hub for ranks of this process.
    pub(crate) fn private(world_size: usize) -> Result<Self> {
        Ok(Self {
            control: Memory::control(control_bytes(world_size))?,
            world_size,
            backing: Backing::Private(Mutex::default()),
        })
    }

    /// A hub for processes, and the file that they join it by.
    pub(crate) fn in_file(world_size: usize) -> Result<(Self, OwnedFd)> {
        let bytes = control_bytes(world_size);
        let failed = |errno: rustix::io::Errno| CommError::NoMemory {
            window_bytes: bytes,
            source: errno.into(),
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("nestling-ranks", flags).map_err(failed)?;
        rustix::fs::ftruncate(&file, bytes as u64).map_err(failed)?;
        // Who maps it may rely on its pages: nobody can cut them off.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).map_err(failed)?;
        let given = file.try_clone().map_err(|source| CommError::NoMemory {
            window_bytes: bytes,
            source,
        })?;
        Ok((Self::join(file, world_size)?, given))
    }

    /// The hub that another process made.
    pub(crate) fn join(file: OwnedFd, world_size: usize) -> Result<Self> {
        let expected = control_bytes(world_size);
        let found = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size);
        if usize::try_from(found).unwrap_or(0) < expected {
            return Err(CommError::NoMemory {
                window_bytes: expected,
                source: std::io::Error::other("standard input is no memory of a launcher"),
            });
        }
        Ok(Self {
            control: Memory::of_file(&file, 0, control_bytes(world_size))?,
            world_size,
            backing: Backing::File(file),
        })
    }

    pub(crate) fn world_size(&self) -> usize {
        self.world_size
    }

    /// The numbers of all ranks.
    pub(crate) fn ranks(&self) -> &[AtomicU64] {
        self.control.words(RANKS, self.world_size * RANK_WORDS)
    }

    /// The slots of all windows.
    pub(crate) fn slots(&self) -> &[AtomicU64] {
        let start = RANKS + self.world_size * RANK_WORDS;
        self.control.words(start, SLOT_WORDS)
    }

    /// Where a rank's outbox lies in [`Hub::control`].
    pub(crate) fn outbox(&self, rank: usize) -> std::ops::Range<usize> {
        let start = 8 * num_words(self.world_size) + rank * OUTBOX_BYTES;
        start..start + OUTBOX_BYTES
    }

    pub(crate) fn control(&self) -> &Memory {
        &self.control
    }

    /// Makes room for a window of `window_bytes`, `offset` bytes behind the control
    /// memory; rank 0 does before the ranks meet over it.
    pub(crate) fn offer_window(
        &self,
        offset: usize,
        window_bytes: usize,
    ) -> Result<Option<Arc<Memory>>> {
        match &self.backing {
            Backing::Private(newest) => {
                let memory = Arc::new(Memory::window(window_bytes)?);
                *newest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&memory);
                Ok(Some(memory))
            }
            Backing::File(file) => {
                let end = control_bytes(self.world_size) + offset + window_bytes;
                rustix::fs::ftruncate(file, end as u64).map_err(|errno| CommError::NoMemory {
                    window_bytes,
                    source: errno.into(),
                })?;
                Ok(None)
            }
        }
    }

    /// The window that rank 0 offered.
    pub(crate) fn take_window(&self, offset: usize, window_bytes: usize) -> Result<Arc<Memory>> {
        match &self.backing {
            Backing::Private(newest) => {
                let newest = newest.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(newest
                    .upgrade()
                    .expect("rank 0 keeps it until all have departed"))
            }
            Backing::File(file) => {
                let start = control_bytes(self.world_size) + offset;
                Ok(Arc::new(Memory::of_file(file, start, window_bytes)?))
            }
        }
    }

    /// Takes the lock. A rank that is gone keeps it for ever; then the group has
    /// failed, and who comes here goes on to learn that from [`Hub::check`].
    pub(crate) fn lock(&self) -> Board<'_> {
        let lock = self.control.futex(LOCK);
        if lock.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
            return Board::locked(self);
        }
        let start = Instant::now();
        while lock.swap(2, Acquire) != 0 {
            if self.failure().is_some() && start.elapsed() > LOCK_GONE {
                break;
            }
            sleep(lock, 2, LOOK_AGAIN);
        }
        Board::locked(self)
    }

    pub(crate) fn unlock(&self) {
        let lock = self.control.futex(LOCK);
        if lock.swap(0, Release) == 2 {
            let _ = futex::wake(lock, futex::Flags::empty(), 1);
        }
    }

    /// Changes the board; wakes the waiting ranks if `change` says so.
    pub(crate) fn change(&self, change: impl FnOnce(&Board<'_>) -> bool) {
        let wakes = change(&self.lock());
        self.wake_if(wakes);
    }

    /// Lets the waiting ranks look at the board again.
    pub(crate) fn wake_if(&self, wakes: bool) {
        if wakes {
            let bell = self.control.futex(BELL);
            bell.fetch_add(1, Release);
            let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX.unsigned_abs());
        }
    }

    /// Records a failure, unless there is one, and ends all waits. Takes no lock:
    /// who holds it may be gone.
    pub(crate) fn fail(&self, rank: usize, message: &str) {
        let words = self.control.words(0, RANKS);
        let claimed = words[FAILURE].compare_exchange(NONE, WRITING, AcqRel, Relaxed);
        if claimed.is_ok() {
            words[FAILED_RANK].store(rank as u64, Relaxed);
            Text(&words[MESSAGE..]).write(message);
            words[FAILURE].store(WRITTEN, Release);
        }
        self.wake_if(true);
    }

    /// The first failure, if there is one.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let words = self.control.words(0, RANKS);
        let start = Instant::now();
        loop {
            match words[FAILURE].load(Acquire) {
                NONE => return None,
                // Who writes it may be gone too.
                WRITING if start.elapsed() < LOCK_GONE => thread::yield_now(),
                _ => break,
            }
        }
        Some(Failure {
            rank: usize::try_from(words[FAILED_RANK].load(Relaxed)).unwrap_or(usize::MAX),
            message: Text(&words[MESSAGE..]).read(),
        })
    }

    /// An error if the group has failed; `what` is the call that ends by it.
    pub(crate) fn check(&self, what: &dyn Fn() -> String) -> Result<()> {
        match self.failure() {
            None => Ok(()),
            Some(Failure { rank, message }) => Err(CommError::PeerFailed {
                collective: what(),
                rank,
                message,
            }),
        }
    }

    /// Says that a rank has ended as it should.
    pub(crate) fn done(&self, rank: usize) {
        self.ranks()[DONE * self.world_size + rank].store(1, Release);
    }

    pub(crate) fn is_done(&self, rank: usize) -> bool {
        self.ranks()[DONE * self.world_size + rank].load(Acquire) == 1
    }
}

/// Waits until the word is no longer `value`, or for `timeout`; may wake early.
fn sleep(word: &std::sync::atomic::AtomicU32, value: u32, timeout: Duration) {
    let timeout = Timespec::try_from(timeout).ok();
    // Whatever ended the wait, the caller looks again.
    let _ = futex::wait(word, futex::Flags::empty(), value, timeout.as_ref());
}

/// One rank's place at the hub.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) hub: Arc<Hub>,
    pub(crate) world: World,
    deadline_nanos: AtomicU64,
    /// Slots and bytes that windows have taken so far, the same on all ranks.
    num_slots: AtomicUsize,
    window_bytes: AtomicUsize,
}

impl Seat {
    pub(crate) fn new(hub: Arc<Hub>, world: World, deadline: Duration) -> Self {
        let seat = Self {
            hub,
            world,
            deadline_nanos: AtomicU64::new(0),
            num_slots: AtomicUsize::new(0),
            window_bytes: AtomicUsize::new(0),
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

    /// The first slot and the first byte of the next window.
    pub(crate) fn next_window(
        &self,
        num_slots: usize,
        window_bytes: usize,
    ) -> Result<(usize, usize)> {
        let first_slot = self.num_slots.fetch_add(num_slots, Relaxed);
        let room = SLOT_WORDS / (3 * self.world.world_size());
        if first_slot + num_slots > room {
            return Err(CommError::NoMemory {
                window_bytes,
                source: std::io::Error::other(format!("the group has room for {room} slots")),
            });
        }
        let bytes = window_bytes.next_multiple_of(WINDOW_ALIGN);
        Ok((first_slot, self.window_bytes.fetch_add(bytes, Relaxed)))
    }

    /// Waits until `ready` gives something; fails the group if it gives an error
    /// or if that takes longer than the deadline. `missing` names those waited
    /// for, `what` the call.
    pub(crate) fn wait<T>(
        &self,
        what: &dyn Fn() -> String,
        missing: impl Fn(&Board<'_>) -> Vec<usize>,
        mut ready: impl FnMut(&Board<'_>) -> Option<Result<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        let deadline = Duration::from_nanos(self.deadline_nanos.load(Relaxed));
        let bell = self.hub.control.futex(BELL);
        let error = loop {
            let board = self.hub.lock();
            board.check(what)?;
            match ready(&board) {
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
                    missing: missing(&board),
                };
            };
            // Under the lock: whoever changes the board later rings later.
            let heard = bell.load(Acquire);
            drop(board);
            sleep(bell, heard, left);
        };
        self.hub.fail(self.rank(), &error.to_string());
        Err(error)
    }
}
