//! How ranks meet and exchange bytes.
//!
//! ```text
//! World           who am I, of how many
//! ProcessGroup    the collectives, one handle a rank
//! Window          planes of every rank's shard that all ranks read in place
//! run_threads     the in-process engine: N ranks as N threads
//! ```
//!
//! Only bytes cross. Every call that waits has a name and a deadline; a rank
//! that fails ends the waits of all others with an error that names it, and
//! ranks that call different collectives are told so instead of hanging.
//!
//! World size 1 takes the same path as world size N: a rank is its own peer.
//!
//! All that a rank can see of another goes through [`ProcessGroup`] and
//! [`Window`], so that an engine over processes changes nothing above here.

mod board;
mod error;
mod group;
mod hub;
mod shared;
mod threads;
mod window;
mod world;

pub use error::{CommError, RankFailure};
pub use group::{ProcessGroup, ReduceOp};
pub use shared::{Own, OwnMut, Unsharded};
pub use threads::{Threads, run_threads};
pub use window::{Window, WindowLayout};
pub use world::World;

/// The result of a call that waits for other ranks.
pub type Result<T> = std::result::Result<T, CommError>;
