//! What the ranks know of each other: who has arrived where.
//!
//! Plain numbers in words that all ranks see, be they threads of one process or
//! processes of one host. All ranks change them under one lock, so each method is
//! one step that no other rank sees half done.
//!
//! A collective is one or more *rounds*. Each rank arrives with its call and what
//! it put into its outbox; once all have arrived each reads the outboxes and
//! departs; once all have departed each may fill its outbox again.
//!
//! A slot of a window has *generations*. `entered[r]` counts how often rank `r`
//! asked to write its part, `published[r]` how often it finished:
//!
//! ```text
//! rank r writes its part   published[r] + 1 = entered[r] <= entered[q]    for all q
//! rank q reads any part    published[r] >= entered[q]                     for all r
//! ```
//!
//! The two never hold at once: a reader `q` keeps `entered[q]` where it is while
//! it reads, so for a writer `r` it would need
//! `entered[r] = published[r] + 1 > entered[q]`.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::Result;
use crate::hub::Hub;
use crate::words::{Text, fnv};

/// Numbers of each rank before its text.
const NUM_MARKS: usize = 5;
/// Which of them says that it is done.
pub(crate) const DONE: usize = 4;

/// Bytes of a call that others are told, the rest is only compared.
pub(crate) const CALL_BYTES: usize = 1024;

/// One number a rank that only grows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marks<'a>(&'a [AtomicU64]);

impl Marks<'_> {
    /// Raises a rank's number by one; true if that raised the lowest, which is
    /// all that anyone waits for.
    fn advance(self, rank: usize) -> bool {
        let lowest = self.lowest();
        self.0[rank].fetch_add(1, Relaxed);
        self.lowest() > lowest
    }

    fn of(self, rank: usize) -> u64 {
        self.0[rank].load(Relaxed)
    }

    fn lowest(self) -> u64 {
        let all = self.0.iter().map(|mark| mark.load(Relaxed));
        all.min().unwrap_or(0)
    }

    /// The ranks that have not reached `mark`.
    fn behind(self, mark: u64) -> Vec<usize> {
        (0..self.0.len())
            .filter(|&rank| self.of(rank) < mark)
            .collect()
    }
}

/// What a rank calls: all ranks of a round must call the same.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Call {
    /// Which collective.
    pub(crate) collective: &'static str,
    /// The caller's name for it.
    pub(crate) name: String,
    /// What else must agree, such as the number of elements.
    pub(crate) agreed: Vec<usize>,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.collective, self.name)?;
        match &self.agreed[..] {
            [] => Ok(()),
            [first, .., last] if self.agreed.len() > 8 => {
                let num_sizes = self.agreed.len();
                write!(f, " of {num_sizes} sizes {first} .. {last}")
            }
            sizes => write!(f, " of {sizes:?}"),
        }
    }
}

impl Call {
    /// Differs where two calls do.
    fn hash(&self) -> u64 {
        let agreed = self.agreed.iter().flat_map(|size| size.to_le_bytes());
        let text = self.collective.bytes().chain([0]).chain(self.name.bytes());
        fnv(text.chain([0]).chain(agreed))
    }
}

/// Words of each rank: arrived, departed, hash of the call, bytes lent, whether it is
/// done, the call.
pub(crate) const RANK_WORDS: usize = NUM_MARKS + Text::num_words(CALL_BYTES);

/// All shared state of a group but its failure, under the lock of the hub.
#[derive(Debug)]
pub(crate) struct Board<'a> {
    hub: &'a Hub,
}

impl Drop for Board<'_> {
    fn drop(&mut self) {
        self.hub.unlock();
    }
}

impl<'a> Board<'a> {
    /// The board, for who has just locked it.
    pub(crate) fn locked(hub: &'a Hub) -> Self {
        Self { hub }
    }

    /// The `kind`-th number of every rank.
    fn marks(&self, kind: usize) -> Marks<'a> {
        let world_size = self.hub.world_size();
        Marks(&self.hub.ranks()[kind * world_size..][..world_size])
    }

    fn arrived(&self) -> Marks<'a> {
        self.marks(0)
    }

    fn departed(&self) -> Marks<'a> {
        self.marks(1)
    }

    fn hash(&self, rank: usize) -> u64 {
        self.marks(2).of(rank)
    }

    fn text(&self, rank: usize) -> Text<'a> {
        let world_size = self.hub.world_size();
        let num_words = Text::num_words(CALL_BYTES);
        Text(&self.hub.ranks()[NUM_MARKS * world_size + rank * num_words..][..num_words])
    }

    /// An error if the group has failed: then nothing is granted any more.
    pub(crate) fn check(&self, what: &dyn Fn() -> String) -> Result<()> {
        self.hub.check(what)
    }

    /// Enters the next round with `lent_bytes` to read in all; true if that ends
    /// the waiting of those who have arrived: all are here, or one calls
    /// something else.
    pub(crate) fn arrive(&self, rank: usize, call: &Call, lent_bytes: usize) -> bool {
        self.marks(2).0[rank].store(call.hash(), Relaxed);
        self.marks(3).0[rank].store(lent_bytes as u64, Relaxed);
        self.text(rank).write(&call.to_string());
        self.arrived().advance(rank) || self.other_call(rank).is_some()
    }

    /// A rank of the same round that calls something else, with its call.
    pub(crate) fn other_call(&self, rank: usize) -> Option<(usize, String)> {
        let round = self.arrived().of(rank);
        let mut ranks = 0..self.hub.world_size();
        let peer = ranks
            .find(|&peer| self.arrived().of(peer) == round && self.hash(peer) != self.hash(rank))?;
        Some((peer, self.text(peer).read()))
    }

    /// The ranks that this rank's round still lacks.
    pub(crate) fn not_arrived(&self, rank: usize) -> Vec<usize> {
        self.arrived().behind(self.arrived().of(rank))
    }

    /// How much each rank lends in all, once all have arrived; [`Board::depart`]
    /// follows.
    pub(crate) fn start_reading(&self, rank: usize) -> Option<Vec<usize>> {
        if self.arrived().lowest() < self.arrived().of(rank) {
            return None;
        }
        let lent = self.marks(3).0.iter();
        let bytes = lent.map(|bytes| usize::try_from(bytes.load(Relaxed)));
        Some(bytes.map(|bytes| bytes.unwrap_or(usize::MAX)).collect())
    }

    /// Ends the reading; true if someone may wait for just that.
    pub(crate) fn depart(&self, rank: usize) -> bool {
        self.departed().advance(rank)
    }

    /// The ranks that still read what this rank lends in its round.
    pub(crate) fn not_departed(&self, rank: usize) -> Vec<usize> {
        self.departed().behind(self.arrived().of(rank))
    }

    /// Whether all have departed from this rank's round.
    pub(crate) fn is_round_over(&self, rank: usize) -> bool {
        self.departed().lowest() >= self.arrived().of(rank)
    }

    /// A slot of a window by its number in the group; it exists, because a handle
    /// on it does.
    pub(crate) fn slot(&self, number: usize) -> SlotState<'a> {
        let num_words = SlotState::num_words(self.hub.world_size());
        SlotState(&self.hub.slots()[number * num_words..][..num_words])
    }
}

/// Where the ranks are with one slot of a window: entered, published and the
/// guards through which each rank reads it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotState<'a>(&'a [AtomicU64]);

impl<'a> SlotState<'a> {
    pub(crate) const fn num_words(world_size: usize) -> usize {
        3 * world_size
    }

    fn marks(self, kind: usize) -> Marks<'a> {
        let world_size = self.0.len() / 3;
        Marks(&self.0[kind * world_size..][..world_size])
    }

    fn entered(self) -> Marks<'a> {
        self.marks(0)
    }

    fn published(self) -> Marks<'a> {
        self.marks(1)
    }

    fn held(self, rank: usize) -> &'a AtomicU64 {
        &self.marks(2).0[rank]
    }

    /// Whether the rank reads the slot.
    pub(crate) fn is_held(self, rank: usize) -> bool {
        self.held(rank).load(Relaxed) > 0
    }

    /// Whether the rank writes its part or waits to.
    pub(crate) fn is_entered(self, rank: usize) -> bool {
        self.entered().of(rank) > self.published().of(rank)
    }

    /// The rank is done reading this generation; true if all are.
    pub(crate) fn enter(self, rank: usize) -> bool {
        self.entered().advance(rank)
    }

    /// The ranks that may still read the generation that this rank overwrites.
    pub(crate) fn not_entered(self, rank: usize) -> Vec<usize> {
        self.entered().behind(self.entered().of(rank))
    }

    /// Whether the rank may write its part, having entered.
    pub(crate) fn may_write(self, rank: usize) -> bool {
        self.entered().lowest() >= self.entered().of(rank)
    }

    /// The rank's part is whole again; true if all parts are.
    pub(crate) fn publish(self, rank: usize) -> bool {
        self.published().advance(rank)
    }

    /// The ranks whose part is not yet of this rank's generation.
    pub(crate) fn not_published(self, rank: usize) -> Vec<usize> {
        self.published().behind(self.entered().of(rank))
    }

    /// Starts reading all parts, if all are of this rank's generation.
    pub(crate) fn try_hold(self, rank: usize) -> Option<()> {
        if self.published().lowest() < self.entered().of(rank) {
            return None;
        }
        self.hold_own(rank);
        Some(())
    }

    /// Starts reading the rank's own part, which nobody else writes.
    pub(crate) fn hold_own(self, rank: usize) {
        self.held(rank).fetch_add(1, Relaxed);
    }

    /// Ends one reading.
    pub(crate) fn release(self, rank: usize) {
        self.held(rank).fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The words of a slot and the ranks that were granted to write.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Scene {
        words: Vec<u64>,
        writes: Vec<bool>,
    }

    impl Scene {
        /// What `look` says of the slot; changes stay.
        fn slot<T>(&mut self, look: impl FnOnce(SlotState<'_>) -> T) -> T {
            let words: Vec<_> = self.words.iter().copied().map(AtomicU64::new).collect();
            let seen = look(SlotState(&words));
            self.words = words.into_iter().map(AtomicU64::into_inner).collect();
            seen
        }

        fn see<T>(&self, look: impl FnOnce(SlotState<'_>) -> T) -> T {
            self.clone().slot(look)
        }

        /// Every step that `rank` may take next, as `shared.rs` takes them.
        fn steps(&self, rank: usize, generations: u64) -> Vec<Self> {
            let mut steps = Vec::new();
            let mut step = |change: &dyn Fn(&mut Self) -> bool| {
                let mut next = self.clone();
                if change(&mut next) {
                    steps.push(next);
                }
            };
            if self.writes[rank] {
                step(&|next| {
                    next.writes[rank] = false;
                    next.slot(|slot| slot.publish(rank));
                    true
                });
            } else if self.see(|slot| slot.is_entered(rank)) {
                step(&|next| {
                    next.writes[rank] = next.see(|slot| slot.may_write(rank));
                    next.writes[rank]
                });
            } else {
                // Two readers of one rank are the most that tells a difference.
                step(&|next| {
                    next.slot(|slot| {
                        slot.held(rank).load(Relaxed) < 2 && slot.try_hold(rank).is_some()
                    })
                });
                if self.see(|slot| slot.is_held(rank)) {
                    step(&|next| {
                        next.slot(|slot| slot.release(rank));
                        true
                    });
                } else if self.see(|slot| slot.entered().of(rank)) < generations {
                    step(&|next| {
                        next.slot(|slot| slot.enter(rank));
                        true
                    });
                }
            }
            steps
        }

        fn is_done(&self, generations: u64) -> bool {
            self.see(|slot| slot.published().lowest()) == generations
        }
    }

    /// Walks every state that any order of steps can reach.
    fn walk(world_size: usize, generations: u64) {
        let start = Scene {
            words: vec![0; SlotState::num_words(world_size)],
            writes: vec![false; world_size],
        };
        let mut seen = HashSet::from([start.clone()]);
        let mut open = vec![start];
        while let Some(scene) = open.pop() {
            let is_written = scene.writes.contains(&true);
            let is_read = (0..world_size).any(|rank| scene.see(|slot| slot.is_held(rank)));
            assert!(!(is_written && is_read), "{scene:?}");
            let steps: Vec<_> = (0..world_size)
                .flat_map(|rank| scene.steps(rank, generations))
                .collect();
            assert!(
                !steps.is_empty() || scene.is_done(generations),
                "stuck in {scene:?}"
            );
            open.extend(steps.into_iter().filter(|next| seen.insert(next.clone())));
        }
        assert!(seen.iter().any(|scene| scene.is_done(generations)));
    }

    #[test]
    fn no_order_of_steps_lets_a_part_be_read_while_one_is_written() {
        walk(1, 3);
        walk(2, 3);
        walk(3, 3);
        walk(4, 2);
    }
}
