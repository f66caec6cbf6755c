//! How ranks meet and exchange bytes.
//!
//! ```text
//! World           who am I, of how many
//! ProcessGroup    the collectives, one handle a rank
//! Window          planes of every rank's shard that all ranks read in place
//! run_threads     N ranks as N threads of this process
//! run_processes   N ranks as N processes of this host, each in `run_rank`
//! Launch          what a cluster's launcher says; its ranks meet, and run as guests
//! ```
//!
//! Only bytes cross. Every call that waits has a name and a deadline; a rank
//! that fails ends the waits of all others with an error that names it, and
//! ranks that call different collectives are told so instead of hanging.
//!
//! World size 1 takes the same path as world size N: a rank is its own peer.
//!
//! Threads and processes meet in the same words of shared memory, so that both
//! give the same bits.

mod board;
mod error;
mod group;
mod handover;
mod hub;
mod launch;
mod processes;
mod rendezvous;
mod shared;
mod threads;
mod window;
mod words;
mod world;

pub use error::{CommError, LaunchError, RankFailure};
pub use group::{ProcessGroup, ReduceOp};
pub use launch::{Launch, Meeting, launch_of_this_process};
pub use processes::{Start, kill_ranks, run_guest, run_processes, run_rank};
pub use rendezvous::{About, Guest, Guests, Invitation, come_to_meeting, hold_meeting};
pub use shared::{Own, OwnMut, Unsharded};
pub use threads::{Threads, run_threads};
pub use window::{Window, WindowLayout};
pub use world::World;

/// The result of a call that waits for other ranks.
pub type Result<T> = std::result::Result<T, CommError>;
