//! What can go wrong between ranks.

use std::io;
use std::time::Duration;

/// A collective or a window call that did not come to pass.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// A rank that is not in the world.
    #[error("rank {rank} does not exist in a world of {world_size}")]
    NoSuchRank {
        /// The rank asked for.
        rank: usize,
        /// How many ranks there are.
        world_size: usize,
    },
    /// Some ranks did not come in time.
    #[error("rank {rank} waited {waited:.1?} in {collective} for rank(s) {missing:?}")]
    Deadline {
        /// The call that waited, with its name.
        collective: String,
        /// The rank that waited.
        rank: usize,
        /// How long.
        waited: Duration,
        /// Who did not come.
        missing: Vec<usize>,
    },
    /// Another rank failed, so this call can never be completed.
    #[error("{collective}: rank {rank} failed: {message}")]
    PeerFailed {
        /// The call that ended by it, with its name.
        collective: String,
        /// The rank that failed first.
        rank: usize,
        /// What it said.
        message: String,
    },
    /// Two ranks met in different calls.
    #[error("rank {rank} is in {here}, but rank {peer} in {there}")]
    Mismatch {
        /// The rank that noticed.
        rank: usize,
        /// Its call.
        here: String,
        /// The other rank.
        peer: usize,
        /// The other rank's call.
        there: String,
    },
    /// A buffer that does not fit the call.
    #[error("{collective}: {what} has {found} elements, {expected} are called for")]
    SizeMismatch {
        /// The call, with its name.
        collective: String,
        /// Which argument.
        what: &'static str,
        /// Elements called for.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// A slot that the window does not have.
    #[error("slot {slot} does not exist in a window of {num_slots}")]
    NoSuchSlot {
        /// The slot asked for.
        slot: usize,
        /// How many slots there are.
        num_slots: usize,
    },
    /// A rank would wait for itself: it asks for a slot that it still holds.
    #[error("rank {rank} asks to {asked} slot {slot} while it {holds} it")]
    SlotHeld {
        /// The rank.
        rank: usize,
        /// The slot.
        slot: usize,
        /// What it asks for.
        asked: &'static str,
        /// What it does with the slot.
        holds: &'static str,
    },
    /// No memory for a window.
    #[error("cannot map a window of {window_bytes} bytes")]
    NoMemory {
        /// Bytes asked for.
        window_bytes: usize,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a run over several ranks ended without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RankFailure<E> {
    /// A rank returned an error; those of ranks that only noticed are dropped.
    #[error("rank {rank} failed")]
    Failed {
        /// The rank that failed first.
        rank: usize,
        /// Its error.
        source: E,
    },
    /// A rank panicked: a bug.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// The rank that panicked first.
        rank: usize,
        /// What it said.
        message: String,
    },
    /// A rank called [`crate::ProcessGroup::fail`], yet all ranks returned.
    #[error("rank {rank} ended the run: {message}")]
    Ended {
        /// The rank.
        rank: usize,
        /// What it said.
        message: String,
    },
    /// A rank's thread could not be started.
    #[error("cannot start rank {rank}")]
    NotStarted {
        /// The rank.
        rank: usize,
        /// What the system said.
        source: io::Error,
    },
}
