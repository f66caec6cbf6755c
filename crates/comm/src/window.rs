//! Planes of every rank's shard in memory that all ranks read in place.
//!
//! A slot holds one part a rank. Its bytes have generations: each rank calls
//! [`Window::own_mut`] on every slot equally often, also where its part is
//! empty, and [`Window::unshard`] gives the parts of the generation that the
//! calling rank is at. So nobody reads a part that is half written, and nobody
//! overwrites one that is still read; entering `own_mut` is the rank's word that
//! it is done reading.
//!
//! ```text
//! load   own_mut (generation 0 -> 1)
//! step   unshard, forward;  unshard, backward;  own_mut, update (1 -> 2)
//! ```

use std::ops::Range;
use std::sync::Arc;

use crate::board::{Board, Call, SlotState};
use crate::hub::Seat;
use crate::shared::{self, Memory, Own, OwnMut, Unsharded};
use crate::{CommError, Result};

/// Where each part of a window starts is a multiple of this.
const ALIGN_BYTES: usize = 64;

/// The sizes of a window; the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WindowLayout {
    /// Bytes of each part, by slot and rank.
    pub slots: Vec<Vec<usize>>,
}

/// Gatherable planes of all ranks; one handle a rank.
#[derive(Debug)]
pub struct Window {
    seat: Arc<Seat>,
    memory: Arc<Memory>,
    /// The number of its first slot at the hub.
    first_slot: usize,
    /// Bytes of each part in the memory, by slot and rank.
    ranges: Vec<Vec<Range<usize>>>,
    /// What is in each slot, for people.
    names: Vec<String>,
}

impl Window {
    /// Maps the window on one rank and meets the others over it.
    pub(crate) fn meet(seat: &Arc<Seat>, layout: &WindowLayout) -> Result<Self> {
        let world_size = seat.world.world_size();
        if let Some(slot) = layout.slots.iter().find(|slot| slot.len() != world_size) {
            return Err(CommError::SizeMismatch {
                collective: "window".to_owned(),
                what: "a slot",
                expected: world_size,
                found: slot.len(),
            });
        }
        let (ranges, window_bytes) = place_parts(&layout.slots, world_size);
        let (first_slot, offset) = seat.next_window(layout.slots.len(), window_bytes)?;
        // Lives until this call returns: peers can only take what is alive.
        let mut _offered = None;
        if seat.rank() == 0 {
            _offered = seat.hub.offer_window(offset, window_bytes)?;
        }
        let call = Call {
            collective: "window",
            name: format!("{window_bytes} bytes"),
            agreed: layout.slots.concat(),
        };
        let take = |_: shared::Outboxes<'_>| seat.hub.take_window(offset, window_bytes);
        let memory = shared::round(seat, &call, 0, |_| (), take)??;
        Ok(Self {
            seat: Arc::clone(seat),
            memory,
            first_slot,
            ranges,
            names: Vec::new(),
        })
    }

    /// The same window, whose errors say what is in a slot.
    #[must_use]
    pub fn with_names(self, names: Vec<String>) -> Self {
        Self { names, ..self }
    }

    /// Waits until every rank's part is published and gives them all; dropping
    /// them is resharding.
    pub fn unshard(&self, slot: usize) -> Result<Unsharded<'_>> {
        Unsharded::wait(self.place(slot)?)
    }

    /// Waits until every rank has resharded the slot and gives this rank's part
    /// to write; dropping it publishes.
    pub fn own_mut(&self, slot: usize) -> Result<OwnMut<'_>> {
        OwnMut::wait(self.place(slot)?)
    }

    /// This rank's part, to read; waits for nobody.
    pub fn own(&self, slot: usize) -> Result<Own<'_>> {
        Own::take(self.place(slot)?)
    }

    /// The number of slots.
    pub fn num_slots(&self) -> usize {
        self.ranges.len()
    }

    /// Bytes of `rank`'s part of a slot; 0 if there is no such part.
    pub fn part_bytes(&self, slot: usize, rank: usize) -> usize {
        let part = self.ranges.get(slot).and_then(|ranks| ranks.get(rank));
        part.map_or(0, Range::len)
    }

    fn place(&self, slot: usize) -> Result<Place<'_>> {
        if slot >= self.ranges.len() {
            return Err(CommError::NoSuchSlot {
                slot,
                num_slots: self.ranges.len(),
            });
        }
        Ok(Place { window: self, slot })
    }
}

/// Lays out the parts: all of rank 0, then all of rank 1, so that no two ranks
/// write the same page but at the seams.
fn place_parts(slots: &[Vec<usize>], world_size: usize) -> (Vec<Vec<Range<usize>>>, usize) {
    let mut ranges = vec![vec![0..0; world_size]; slots.len()];
    let mut at = 0;
    for rank in 0..world_size {
        for (sizes, ranges) in slots.iter().zip(&mut ranges) {
            ranges[rank] = at..at + sizes[rank];
            at = ranges[rank].end.next_multiple_of(ALIGN_BYTES);
        }
    }
    (ranges, at)
}

/// A slot of a window, as one rank sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    window: &'a Window,
    pub(crate) slot: usize,
}

impl<'a> Place<'a> {
    /// How errors call the slot.
    pub(crate) fn name(&self) -> String {
        match self.window.names.get(self.slot) {
            Some(name) => format!("slot {} ({name})", self.slot),
            None => format!("slot {}", self.slot),
        }
    }

    pub(crate) fn seat(&self) -> &'a Seat {
        &self.window.seat
    }

    pub(crate) fn rank(&self) -> usize {
        self.window.seat.rank()
    }

    pub(crate) fn memory(&self) -> &'a Memory {
        &self.window.memory
    }

    pub(crate) fn range(&self, rank: usize) -> &'a Range<usize> {
        &self.window.ranges[self.slot][rank]
    }

    pub(crate) fn state<'b>(&self, board: &Board<'b>) -> SlotState<'b> {
        board.slot(self.window.first_slot + self.slot)
    }

    /// Looks at or changes the slot where nobody waits for the change.
    pub(crate) fn with_state<T>(&self, change: impl FnOnce(SlotState<'_>) -> T) -> T {
        change(self.state(&self.window.seat.hub.lock()))
    }

    pub(crate) fn held(&self, asked: &'static str, holds: &'static str) -> CommError {
        CommError::SlotHeld {
            rank: self.rank(),
            slot: self.slot,
            asked,
            holds,
        }
    }
}
