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

/// Why ranks that a cluster's launcher started did not come together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Half of what a launcher sets.
    #[error("{because} is set, but {variable} is not")]
    Missing {
        /// The variable that is not there.
        variable: &'static str,
        /// The variable that calls for it.
        because: &'static str,
    },
    /// A variable that cannot be.
    #[error("{variable} is `{value}`, expected {expected}")]
    BadValue {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it could be.
        expected: String,
    },
    /// Two launchers, or a launcher and a setting, say different things.
    #[error("the launch contradicts itself: {one}, but {other}")]
    Contradiction {
        /// What the first says.
        one: String,
        /// What the other says.
        other: String,
    },
    /// The place to meet has no such address.
    #[error("`{address}`, where the ranks are to meet, has no address")]
    NoAddress {
        /// The name.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// Another program has the port.
    #[error("port {port} of {address} is in use; MASTER_PORT says another, such as {free}")]
    PortInUse {
        /// The address.
        address: String,
        /// The port.
        port: u16,
        /// A port that was free a moment ago.
        free: u16,
    },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen on port {port} of {address}")]
    NotHere {
        /// The address.
        address: String,
        /// The port.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
    /// Ranks that did not come.
    #[error(
        "rank(s) {missing:?} of {world_size} did not come to port {port} of {address} \
         within {waited:.1?}"
    )]
    Absent {
        /// Who did not come.
        missing: Vec<usize>,
        /// How many ranks there should be.
        world_size: usize,
        /// The address.
        address: String,
        /// The port.
        port: u16,
        /// How long rank 0 waited.
        waited: Duration,
    },
    /// Nobody to meet.
    #[error("rank {rank} found nobody at port {port} of {address} within {waited:.1?}")]
    Nobody {
        /// The rank that came.
        rank: usize,
        /// The address.
        address: String,
        /// The port.
        port: u16,
        /// How long it tried.
        waited: Duration,
        /// What the system said at last.
        source: io::Error,
    },
    /// Two ranks that cannot be of one job.
    #[error("{one}, but {other}")]
    Mismatch {
        /// What one says of itself.
        one: String,
        /// What the other says.
        other: String,
    },
    /// What rank 0 said instead of a task.
    #[error("rank 0 of the job: {message}")]
    Refused {
        /// Its words.
        message: String,
    },
    /// The connection to rank 0 broke.
    #[error("rank {rank} has lost rank 0 at port {port} of {address}")]
    Lost {
        /// The rank that noticed.
        rank: usize,
        /// The address.
        address: String,
        /// The port.
        port: u16,
        /// What the system said.
        source: io::Error,
    },
}
