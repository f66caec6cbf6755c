//! Where a rank computes: threads of its own and an arena of the planned size.

use kernels::Arena;
use tensor::{Account, Ledger, Reservation};

use crate::TrainError;
use crate::meter::mib;

/// Runs `work` on `num_threads` threads that nobody else uses.
pub(crate) fn on_threads<T: Send>(
    num_threads: usize,
    work: impl FnOnce() -> Result<T, TrainError> + Send,
) -> Result<T, TrainError> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(num_threads)
        .build()
        .map_err(|error| TrainError::System {
            what: format!("{num_threads} threads"),
            source: std::io::Error::other(error),
        })?;
    pool.install(work)
}

/// Takes the scratch that a plan asks for, all at once.
pub(crate) fn open_arena(
    capacity_bytes: u64,
    ledger: &Ledger,
) -> Result<(Arena, Reservation), TrainError> {
    let reservation = ledger.reserve(Account::Arena, capacity_bytes)?;
    let capacity = usize::try_from(capacity_bytes).expect("addresses are 64 bits");
    let arena = Arena::new(capacity).map_err(|source| TrainError::System {
        what: format!("an arena of {:.1} MiB", mib(capacity_bytes)),
        source,
    })?;
    Ok((arena, reservation))
}
