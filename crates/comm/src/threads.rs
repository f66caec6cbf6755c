//! The in-process engine: ranks are threads that share nothing but the hub.

use std::any::Any;
use std::fmt::Display;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use crate::hub::{Hub, Seat};
use crate::{ProcessGroup, RankFailure, World};

/// How to start ranks as threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    /// How many ranks.
    pub world_size: NonZeroUsize,
    /// How long a rank waits for others before that is an error.
    pub deadline: Duration,
    /// Stack of each rank's thread.
    pub stack_bytes: usize,
}

impl Default for Threads {
    fn default() -> Self {
        Self {
            world_size: NonZeroUsize::MIN,
            deadline: Duration::from_mins(2),
            stack_bytes: 8 << 20,
        }
    }
}

impl Threads {
    /// As the default, with this many ranks.
    pub fn of(world_size: NonZeroUsize) -> Self {
        Self {
            world_size,
            ..Self::default()
        }
    }
}

/// How a rank ended that did not return a result.
pub(crate) enum Ending<E> {
    Error(E),
    Panic(String),
}

impl<E: Display> Ending<E> {
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Error(error) => error.to_string(),
            Self::Panic(message) => format!("panicked: {message}"),
        }
    }
}

/// Runs `rank_main` once a rank and returns the results in rank order.
///
/// The first rank that returns an error or panics ends the waits of all others.
/// Its own error is returned, not those of the ranks that only noticed.
///
/// ```
/// # use std::num::NonZeroUsize;
/// use comm::{ReduceOp, Threads, run_threads};
///
/// let three = NonZeroUsize::new(3).expect("three ranks");
/// let sums = run_threads(Threads::of(three), |group| {
///     let mut rows = [group.world().rank() as u64];
///     group.all_reduce_u64(&mut rows, ReduceOp::Sum, "rows")?;
///     Ok::<_, comm::CommError>(rows[0])
/// });
/// assert_eq!(sums.expect("no rank fails"), [3, 3, 3]);
/// ```
pub fn run_threads<T, E>(
    threads: Threads,
    rank_main: impl Fn(ProcessGroup) -> Result<T, E> + Sync,
) -> Result<Vec<T>, RankFailure<E>>
where
    T: Send,
    E: Send + Display,
{
    let hub = Hub::private(threads.world_size.get()).map_err(|error| RankFailure::NotStarted {
        rank: 0,
        source: io::Error::other(error),
    })?;
    let hub = Arc::new(hub);
    let run_rank = |world: World| {
        let seat = Seat::new(Arc::clone(&hub), world, threads.deadline);
        let group = ProcessGroup::new(seat);
        // What a panic leaves half changed is this rank's alone: peers see the
        // board, which is whole, and no part that was not published.
        let ending = match panic::catch_unwind(AssertUnwindSafe(|| rank_main(group))) {
            Ok(Ok(result)) => return Ok(result),
            Ok(Err(error)) => Ending::Error(error),
            Err(payload) => Ending::Panic(panic_message(payload.as_ref())),
        };
        hub.fail(world.rank(), &ending.message());
        Err(ending)
    };
    let run_rank = &run_rank;
    let endings: Vec<_> = thread::scope(|scope| {
        let start = |world: World| {
            let rank = world.rank();
            thread::Builder::new()
                .name(format!("rank {rank}"))
                .stack_size(threads.stack_bytes)
                .spawn_scoped(scope, move || run_rank(world))
                .map_err(|source| {
                    hub.fail(rank, &format!("cannot start: {source}"));
                    RankFailure::NotStarted { rank, source }
                })
        };
        let started: Vec<_> = World::all(threads.world_size).map(start).collect();
        let join = |thread: Result<ScopedJoinHandle<'_, _>, _>| {
            // A rank catches its own panic, so there is none to pass on.
            Ok(thread?
                .join()
                .unwrap_or_else(|panic| panic::resume_unwind(panic)))
        };
        started
            .into_iter()
            .map(join)
            .collect::<Result<_, RankFailure<E>>>()
    })?;
    gather(endings, &hub)
}

/// All results, or the failure that came first.
fn gather<T, E>(endings: Vec<Result<T, Ending<E>>>, hub: &Hub) -> Result<Vec<T>, RankFailure<E>> {
    let Some(first) = hub.failure() else {
        return Ok(endings.into_iter().filter_map(Result::ok).collect());
    };
    // The rank that failed first may have gone on and returned a result; then
    // the next best is any rank that noticed.
    let mut noticed = None;
    for (rank, ending) in endings.into_iter().enumerate() {
        let failure = match ending {
            Ok(_) => continue,
            Err(Ending::Error(source)) => RankFailure::Failed { rank, source },
            Err(Ending::Panic(message)) => RankFailure::Panicked { rank, message },
        };
        if rank == first.rank {
            return Err(failure);
        }
        noticed.get_or_insert(failure);
    }
    Err(noticed.unwrap_or(RankFailure::Ended {
        rank: first.rank,
        message: first.message,
    }))
}

pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
        .to_owned()
}
