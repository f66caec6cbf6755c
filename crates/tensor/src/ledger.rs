//! Memory that was asked for.
//!
//! Whoever holds bytes in proportion to a model, a batch or a world holds a
//! [`Reservation`] for them under an [`Account`]. The ledger of a rank knows at
//! any moment what is held and what was held at most, by name, and refuses what
//! would pass its limit.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// What a reservation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Account {
    /// The gatherable planes of a rank's shard: what peers read.
    Weights,
    /// The residual planes of a rank's shard: the master's low bits.
    Residuals,
    /// The optimizer's first and second moments.
    Moments,
    /// The scratch arena: activations, one bucket's gradient, logits, kept gradient
    /// shards, keys and values of generated tokens.
    Arena,
    /// Bytes on their way between a file and their place.
    Staging,
    /// Token ids and masks of the batches in flight.
    Data,
}

impl Account {
    /// All accounts, in the order of reports.
    pub const ALL: [Self; 6] = [
        Self::Weights,
        Self::Residuals,
        Self::Moments,
        Self::Arena,
        Self::Staging,
        Self::Data,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Residuals => "residuals",
            Self::Moments => "moments",
            Self::Arena => "arena",
            Self::Staging => "staging",
            Self::Data => "data",
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A reservation that would pass the limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{account} asks for {asked_bytes} bytes, {held_bytes} of {limit_bytes} are held")]
pub struct OverBudget {
    /// What the bytes were for.
    pub account: Account,
    /// Bytes asked for.
    pub asked_bytes: u64,
    /// Bytes held by all reservations at that moment.
    pub held_bytes: u64,
    /// The ledger's limit.
    pub limit_bytes: u64,
}

/// One line of a ledger: an account, what it holds and held at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerLine {
    /// The account.
    pub account: Account,
    /// Bytes held.
    pub held_bytes: u64,
    /// The most that was ever held.
    pub peak_bytes: u64,
}

/// The reserved bytes of one rank.
#[derive(Debug, Clone)]
pub struct Ledger {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit_bytes: u64,
    held: AtomicU64,
    peak: AtomicU64,
    accounts: Mutex<[(u64, u64); Account::ALL.len()]>,
}

impl Ledger {
    /// A ledger that refuses to hold more than `limit_bytes`.
    pub fn with_limit(limit_bytes: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                limit_bytes,
                held: AtomicU64::new(0),
                peak: AtomicU64::new(0),
                accounts: Mutex::new([(0, 0); Account::ALL.len()]),
            }),
        }
    }

    /// A ledger that only counts.
    pub fn unlimited() -> Self {
        Self::with_limit(u64::MAX)
    }

    /// Takes `bytes` for `account`, or says what was in the way.
    pub fn reserve(&self, account: Account, bytes: u64) -> Result<Reservation, OverBudget> {
        // One atomic step, so that two threads cannot both be granted the
        // last free bytes.
        let before = self
            .shared
            .held
            .fetch_update(Relaxed, Relaxed, |held| {
                held.checked_add(bytes)
                    .filter(|&sum| sum <= self.shared.limit_bytes)
            })
            .map_err(|held_bytes| OverBudget {
                account,
                asked_bytes: bytes,
                held_bytes,
                limit_bytes: self.shared.limit_bytes,
            })?;
        self.shared.peak.fetch_max(before + bytes, Relaxed);
        self.shared.with_account(account, |(held, peak)| {
            *held += bytes;
            *peak = (*peak).max(*held);
        });
        Ok(Reservation {
            account,
            bytes,
            shared: Arc::clone(&self.shared),
        })
    }

    /// Bytes held by all reservations.
    pub fn held_bytes(&self) -> u64 {
        self.shared.held.load(Relaxed)
    }

    /// The most that was ever held at once.
    pub fn peak_bytes(&self) -> u64 {
        self.shared.peak.load(Relaxed)
    }

    /// The most that may be held.
    pub fn limit_bytes(&self) -> u64 {
        self.shared.limit_bytes
    }

    /// What each account that was ever used holds and held at most.
    pub fn lines(&self) -> Vec<LedgerLine> {
        let accounts = *self
            .shared
            .accounts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Account::ALL
            .into_iter()
            .zip(accounts)
            .filter(|(_, (_, peak_bytes))| *peak_bytes > 0)
            .map(|(account, (held_bytes, peak_bytes))| LedgerLine {
                account,
                held_bytes,
                peak_bytes,
            })
            .collect()
    }
}

impl Shared {
    fn with_account(&self, account: Account, change: impl FnOnce(&mut (u64, u64))) {
        // Two numbers are whole at any moment, so a panic elsewhere cannot
        // leave them broken.
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut accounts[account as usize]);
    }
}

/// Bytes taken from a [`Ledger`], given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    account: Account,
    bytes: u64,
    shared: Arc<Shared>,
}

impl Reservation {
    /// How many bytes are held.
    pub fn num_bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.held.fetch_sub(self.bytes, Relaxed);
        self.shared
            .with_account(self.account, |(held, _)| *held -= self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_reservation_is_given_back_and_the_peak_stays() {
        let ledger = Ledger::with_limit(100);
        let weights = ledger.reserve(Account::Weights, 60).unwrap();
        let arena = ledger.reserve(Account::Arena, 40).unwrap();
        assert_eq!(ledger.held_bytes(), 100);
        drop(arena);
        assert_eq!(ledger.held_bytes(), 60);
        assert_eq!(ledger.peak_bytes(), 100);
        assert_eq!(weights.num_bytes(), 60);
        assert_eq!(ledger.lines().len(), 2);
        assert_eq!(ledger.lines()[1].held_bytes, 0);
        assert_eq!(ledger.lines()[1].peak_bytes, 40);
    }

    #[test]
    fn the_last_free_byte_is_granted_and_the_next_refused() {
        let ledger = Ledger::with_limit(10);
        let _ten = ledger.reserve(Account::Staging, 10).unwrap();
        let refused = ledger.reserve(Account::Data, 1).unwrap_err();
        assert_eq!(
            (refused.account, refused.asked_bytes, refused.held_bytes),
            (Account::Data, 1, 10)
        );
    }

    #[test]
    fn threads_together_never_pass_the_limit() {
        let ledger = Ledger::with_limit(64);
        let granted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let held: Vec<_> = (0..64)
                            .filter_map(|_| ledger.reserve(Account::Arena, 1).ok())
                            .collect();
                        let count = held.len();
                        std::mem::forget(held);
                        count
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(granted, 64);
    }
}
