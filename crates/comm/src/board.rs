//! What the ranks know of each other: who has arrived where.
//!
//! Plain state without waiting or memory. All ranks change it under one lock,
//! so each method is one step that no other rank sees half done.
//!
//! A collective is a *round*. Each rank arrives with its call and the bytes it
//! lends; once all have arrived each reads what the others lend and departs;
//! once all have departed each takes its bytes back.
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
use std::sync::{Arc, Weak};

use crate::shared::{Lent, Memory};
use crate::{CommError, Result};

/// One number a rank that only grows.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(crate) struct Marks(Vec<u64>);

impl Marks {
    fn new(world_size: usize) -> Self {
        Self(vec![0; world_size])
    }

    /// Raises a rank's number by one; true if that raised the lowest, which is
    /// all that anyone waits for.
    fn advance(&mut self, rank: usize) -> bool {
        let lowest = self.lowest();
        self.0[rank] += 1;
        self.lowest() > lowest
    }

    fn of(&self, rank: usize) -> u64 {
        self.0[rank]
    }

    fn lowest(&self) -> u64 {
        self.0.iter().copied().min().unwrap_or(0)
    }

    /// The ranks that have not reached `mark`.
    fn behind(&self, mark: u64) -> Vec<usize> {
        let ranks = self.0.iter().enumerate();
        ranks
            .filter(|&(_, &reached)| reached < mark)
            .map(|(rank, _)| rank)
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

/// The first failure of the group.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) rank: usize,
    pub(crate) message: String,
}

/// All shared state of a group.
#[derive(Debug)]
pub(crate) struct Board {
    arrived: Marks,
    departed: Marks,
    calls: Vec<Call>,
    lent: Vec<Lent>,
    num_reading: usize,
    pub(crate) failure: Option<Failure>,
    windows: Vec<WindowState>,
}

#[derive(Debug)]
struct WindowState {
    // Weak: the memory goes with the ranks' handles, not with the group.
    memory: Weak<Memory>,
    slots: Vec<SlotState>,
}

impl Board {
    pub(crate) fn new(world_size: usize) -> Self {
        Self {
            arrived: Marks::new(world_size),
            departed: Marks::new(world_size),
            calls: vec![Call::default(); world_size],
            lent: vec![Lent::of(&[]); world_size],
            num_reading: 0,
            failure: None,
            windows: Vec::new(),
        }
    }

    /// Keeps the first failure.
    pub(crate) fn fail(&mut self, rank: usize, message: String) {
        self.failure.get_or_insert(Failure { rank, message });
    }

    /// An error if the group has failed: then nothing is granted any more.
    pub(crate) fn check(&self) -> Result<()> {
        match self.failure.clone() {
            None => Ok(()),
            Some(Failure { rank, message }) => Err(CommError::PeerFailed { rank, message }),
        }
    }

    /// Enters the next round; true if that ends the waiting of those who have
    /// arrived: all are here, or one calls something else.
    pub(crate) fn arrive(&mut self, rank: usize, call: Call, lent: Lent) -> bool {
        self.calls[rank] = call;
        self.lent[rank] = lent;
        self.arrived.advance(rank) || self.other_call(rank).is_some()
    }

    /// A rank of the same round that calls something else, with its call.
    pub(crate) fn other_call(&self, rank: usize) -> Option<(usize, &Call)> {
        let here = &self.calls[rank];
        let round = self.arrived.of(rank);
        let mut calls = self.calls.iter().enumerate();
        calls.find(|&(peer, there)| self.arrived.of(peer) == round && there != here)
    }

    /// The ranks that this rank's round still lacks.
    pub(crate) fn not_arrived(&self, rank: usize) -> Vec<usize> {
        self.arrived.behind(self.arrived.of(rank))
    }

    /// What all ranks lend, once all have arrived; [`Board::depart`] follows.
    pub(crate) fn start_reading(&mut self, rank: usize) -> Option<Vec<Lent>> {
        if self.arrived.lowest() < self.arrived.of(rank) {
            return None;
        }
        self.num_reading += 1;
        Some(self.lent.clone())
    }

    /// Ends the reading; true if someone may wait for just that.
    pub(crate) fn depart(&mut self, rank: usize) -> bool {
        self.num_reading -= 1;
        self.departed.advance(rank) || self.num_reading == 0
    }

    /// The ranks that still read what this rank lends in its round.
    pub(crate) fn not_departed(&self, rank: usize) -> Vec<usize> {
        self.departed.behind(self.arrived.of(rank))
    }

    /// Whether all have departed from this rank's round.
    pub(crate) fn is_round_over(&self, rank: usize) -> bool {
        self.departed.lowest() >= self.arrived.of(rank)
    }

    /// Whether any rank reads what others lend.
    pub(crate) fn is_anyone_reading(&self) -> bool {
        self.num_reading > 0
    }

    /// Adds a window that the ranks are about to meet over.
    pub(crate) fn offer_window(&mut self, memory: Weak<Memory>, num_slots: usize) {
        let world_size = self.calls.len();
        let slots = (0..num_slots).map(|_| SlotState::new(world_size));
        self.windows.push(WindowState {
            memory,
            slots: slots.collect(),
        });
    }

    /// The window offered last: its number and its memory.
    pub(crate) fn offered_window(&self) -> Option<(usize, Arc<Memory>)> {
        let memory = self.windows.last()?.memory.upgrade()?;
        Some((self.windows.len() - 1, memory))
    }

    /// One slot of a window; both exist, because a handle on them does.
    pub(crate) fn slot(&mut self, window: usize, slot: usize) -> &mut SlotState {
        &mut self.windows[window].slots[slot]
    }
}

/// Where the ranks are with one slot of a window.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub(crate) struct SlotState {
    entered: Marks,
    published: Marks,
    // Guards through which each rank reads the slot.
    num_held: Vec<usize>,
}

impl SlotState {
    fn new(world_size: usize) -> Self {
        Self {
            entered: Marks::new(world_size),
            published: Marks::new(world_size),
            num_held: vec![0; world_size],
        }
    }

    /// Whether the rank reads the slot.
    pub(crate) fn is_held(&self, rank: usize) -> bool {
        self.num_held[rank] > 0
    }

    /// Whether the rank writes its part or waits to.
    pub(crate) fn is_entered(&self, rank: usize) -> bool {
        self.entered.of(rank) > self.published.of(rank)
    }

    /// The rank is done reading this generation; true if all are.
    pub(crate) fn enter(&mut self, rank: usize) -> bool {
        self.entered.advance(rank)
    }

    /// The ranks that may still read the generation that this rank overwrites.
    pub(crate) fn not_entered(&self, rank: usize) -> Vec<usize> {
        self.entered.behind(self.entered.of(rank))
    }

    /// Whether the rank may write its part, having entered.
    pub(crate) fn may_write(&self, rank: usize) -> bool {
        self.entered.lowest() >= self.entered.of(rank)
    }

    /// The rank's part is whole again; true if all parts are.
    pub(crate) fn publish(&mut self, rank: usize) -> bool {
        self.published.advance(rank)
    }

    /// The ranks whose part is not yet of this rank's generation.
    pub(crate) fn not_published(&self, rank: usize) -> Vec<usize> {
        self.published.behind(self.entered.of(rank))
    }

    /// Starts reading all parts, if all are of this rank's generation.
    pub(crate) fn try_hold(&mut self, rank: usize) -> Option<()> {
        if self.published.lowest() < self.entered.of(rank) {
            return None;
        }
        self.num_held[rank] += 1;
        Some(())
    }

    /// Starts reading the rank's own part, which nobody else writes.
    pub(crate) fn hold_own(&mut self, rank: usize) {
        self.num_held[rank] += 1;
    }

    /// Ends one reading.
    pub(crate) fn release(&mut self, rank: usize) {
        self.num_held[rank] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A slot and the ranks that were granted to write.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Scene {
        slot: SlotState,
        writes: Vec<bool>,
    }

    impl Scene {
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
                    next.slot.publish(rank);
                    true
                });
            } else if self.slot.is_entered(rank) {
                step(&|next| {
                    next.writes[rank] = next.slot.may_write(rank);
                    next.writes[rank]
                });
            } else {
                // Two readers of one rank are the most that tells a difference.
                step(&|next| next.slot.num_held[rank] < 2 && next.slot.try_hold(rank).is_some());
                if self.slot.is_held(rank) {
                    step(&|next| {
                        next.slot.release(rank);
                        true
                    });
                } else if self.slot.entered.of(rank) < generations {
                    step(&|next| {
                        next.slot.enter(rank);
                        true
                    });
                }
            }
            steps
        }

        fn is_done(&self, generations: u64) -> bool {
            self.slot.published.lowest() == generations
        }
    }

    /// Walks every state that any order of steps can reach.
    fn walk(world_size: usize, generations: u64) {
        let start = Scene {
            slot: SlotState::new(world_size),
            writes: vec![false; world_size],
        };
        let mut seen = HashSet::from([start.clone()]);
        let mut open = vec![start];
        while let Some(scene) = open.pop() {
            let is_written = scene.writes.contains(&true);
            let is_read = scene.slot.num_held.iter().any(|&held| held > 0);
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
