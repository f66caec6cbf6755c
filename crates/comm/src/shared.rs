//! The one place where a rank touches memory of another.
//!
//! Two kinds of memory are shared. In a collective each rank fills its *outbox*
//! for the length of one round ([`round`]). A window is one mapping in which each
//! rank writes its own part and reads those of all ranks, through guards.
//!
//! In both, who may touch what and when is decided by the board (`board.rs`)
//! under its lock, and the lock also orders the memory: a grant is given under
//! the same lock under which the other side let go.
#![expect(
    unsafe_code,
    reason = "ranks read each other's memory in place instead of copying it"
)]

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::thread;

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::board::Call;
use crate::hub::{Hub, Seat};
use crate::window::Place;
use crate::{CommError, Result};

/// Fails the group if a rank leaves a round before its end: its outbox is read.
struct InRound<'a> {
    seat: &'a Seat,
}

impl Drop for InRound<'_> {
    fn drop(&mut self) {
        let rank = self.seat.rank();
        let is_over = self.seat.hub.lock().is_round_over(rank);
        if !is_over {
            self.seat.hub.fail(rank, "left a collective before its end");
        }
    }
}

/// What the ranks lend in a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outboxes<'a> {
    /// Bytes that each rank lends in all, over all rounds of its call.
    pub(crate) lent_bytes: &'a [usize],
    boxes: &'a [&'a [u8]],
}

impl<'a> Outboxes<'a> {
    /// A rank's outbox, of which it has filled the beginning.
    pub(crate) fn of(&self, rank: usize) -> &'a [u8] {
        self.boxes[rank]
    }
}

/// One round: `fill` fills this rank's outbox, which lends `lent_bytes` in all,
/// and `read` reads those of all ranks. Returns when no rank reads any more.
pub(crate) fn round<T>(
    seat: &Seat,
    call: &Call,
    lent_bytes: usize,
    fill: impl FnOnce(&mut [u8]),
    read: impl FnOnce(Outboxes<'_>) -> T,
) -> Result<T> {
    let rank = seat.rank();
    let what = || call.to_string();
    let hub = &seat.hub;
    hub.check(&what)?;
    // SAFETY: a rank's outbox is read only in a round that this rank has entered
    // and from which the reader has not departed. Its last round is over: a round
    // that was left early has failed the group (`InRound`), which `check` refuses
    // for ever. No other thread of this rank is here: a group gives turns.
    fill(unsafe { hub.control().bytes_mut(&hub.outbox(rank)) });
    let board = hub.lock();
    board.check(&what)?;
    let wakes = board.arrive(rank, call, lent_bytes);
    drop(board);
    let in_round = InRound { seat };
    hub.wake_if(wakes);
    let lent = seat.wait(
        &what,
        |board| board.not_arrived(rank),
        |board| match board.other_call(rank) {
            Some((peer, there)) => Some(Err(CommError::Mismatch {
                rank,
                here: what(),
                peer,
                there,
            })),
            None => board.start_reading(rank).map(Ok),
        },
    )?;
    let boxes: Vec<&[u8]> = (0..hub.world_size())
        .map(|peer| {
            // SAFETY: granted by `start_reading`, so `peer` has entered this round
            // and is done filling; it fills again only when all have departed from
            // it, and we depart below. `read` cannot keep the slice, because it
            // must accept any lifetime.
            unsafe { hub.control().bytes(&hub.outbox(peer)) }
        })
        .collect();
    let result = read(Outboxes {
        lent_bytes: &lent,
        boxes: &boxes,
    });
    hub.change(|board| board.depart(rank));
    seat.wait(
        &what,
        |board| board.not_departed(rank),
        |board| board.is_round_over(rank).then_some(Ok(())),
    )?;
    drop(in_round);
    Ok(result)
}

/// Memory that ranks share.
pub(crate) struct Memory {
    map: MmapRaw,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.map.len())
    }
}

impl Memory {
    /// Maps zeros for one process; a page costs nothing before it is first written.
    pub(crate) fn control(num_bytes: usize) -> Result<Self> {
        let mut options = MmapOptions::new();
        options.len(num_bytes.max(1)).no_reserve_swap();
        let map = options.map_anon().map_err(no_memory(num_bytes))?;
        Ok(Self {
            map: MmapRaw::from(map),
        })
    }

    /// As [`Memory::control`], in huge pages where there are any.
    pub(crate) fn window(num_bytes: usize) -> Result<Self> {
        let memory = Self::control(num_bytes)?;
        memory.prefer_huge_pages();
        Ok(memory)
    }

    /// Maps bytes of a file that cannot shrink.
    pub(crate) fn of_file(file: &OwnedFd, start: usize, num_bytes: usize) -> Result<Self> {
        let mut options = MmapOptions::new();
        options.offset(start as u64).len(num_bytes.max(1));
        let map = options.map_raw(file).map_err(no_memory(num_bytes))?;
        let memory = Self { map };
        if start > 0 {
            memory.prefer_huge_pages();
        }
        Ok(memory)
    }

    fn prefer_huge_pages(&self) {
        // A page of 2 MiB is zeroed and mapped at once; 512 small ones cost a
        // fault each, which is most of the time of a load from the page cache.
        // Where the system has none this changes nothing.
        drop(self.map.advise(Advice::HugePage));
    }

    /// Words that all ranks may change at any time.
    #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
    pub(crate) fn words(&self, first: usize, num_words: usize) -> &[AtomicU64] {
        let start = self.start_of(&(8 * first..8 * (first + num_words)));
        // SAFETY: `start_of` has checked that the words lie in the mapping, which
        // lives as long as `self`, begins at a page and holds zeros at first; an
        // `AtomicU64` has the layout of a `u64` and may be changed while shared.
        // These bytes are seen only as words: outboxes and windows lie behind.
        unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), num_words) }
    }

    /// The lower half of a word, to wait on.
    #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
    pub(crate) fn futex(&self, word: usize) -> &AtomicU32 {
        let start = self.start_of(&(8 * word..8 * word + 4));
        // SAFETY: as in `words`; the two words that are waited on are never seen
        // as whole words.
        unsafe { &*start.cast::<AtomicU32>() }
    }

    fn start_of(&self, range: &Range<usize>) -> *mut u8 {
        assert!(
            range.start <= range.end && range.end <= self.map.len(),
            "a part lies in its window"
        );
        self.map.as_mut_ptr().wrapping_add(range.start)
    }

    /// Bytes of one part.
    ///
    /// # Safety
    ///
    /// Nobody writes the range while the slice lives.
    unsafe fn bytes(&self, range: &Range<usize>) -> &[u8] {
        let start = self.start_of(range);
        // SAFETY: `start_of` has checked that the range lies in the mapping,
        // which is one object, initialised (the system maps zeros), at most
        // `isize::MAX` long, and lives as long as `self`; `u8` has no alignment.
        // That nobody writes it is the caller's promise.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }

    /// Bytes of one part, to write.
    ///
    /// # Safety
    ///
    /// Nobody else reads or writes the range while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "ranks share the mapping; that the slice is unique is the caller's promise"
    )]
    unsafe fn bytes_mut(&self, range: &Range<usize>) -> &mut [u8] {
        let start = self.start_of(range);
        // SAFETY: as in `bytes`; that nobody else touches the range is the
        // caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }
}

fn no_memory(window_bytes: usize) -> impl FnOnce(std::io::Error) -> CommError {
    move |source| CommError::NoMemory {
        window_bytes,
        source,
    }
}

/// A slot with the parts of all ranks; dropping it reshards.
#[derive(Debug)]
pub struct Unsharded<'a> {
    place: Place<'a>,
}

impl<'a> Unsharded<'a> {
    /// Waits until all parts are of this rank's generation.
    pub(crate) fn wait(place: Place<'a>) -> Result<Self> {
        let rank = place.rank();
        if place.with_state(|slot| slot.is_entered(rank)) {
            return Err(place.held("unshard", "writes"));
        }
        place.seat().wait(
            &|| format!("unshard of {}", place.name()),
            |board| place.state(board).not_published(rank),
            |board| place.state(board).try_hold(rank).map(Ok),
        )?;
        Ok(Self { place })
    }

    /// The bytes that `rank` published.
    ///
    /// # Panics
    ///
    /// If there is no such rank.
    pub fn part(&self, rank: usize) -> &[u8] {
        let range = self.place.range(rank);
        // SAFETY: this guard was granted by `try_hold`, so each part is published
        // up to our generation, and until it is dropped we do not enter the next
        // (`OwnMut::wait` refuses while we hold). `may_write` lets a rank write
        // only after all ranks have entered its next generation, so no `OwnMut`
        // of this slot exists while this guard does. Parts of other slots are
        // disjoint ranges.
        unsafe { self.place.memory().bytes(range) }
    }
}

impl Drop for Unsharded<'_> {
    fn drop(&mut self) {
        let rank = self.place.rank();
        self.place.with_state(|slot| slot.release(rank));
    }
}

/// A rank's own part of a slot, to read.
#[derive(Debug)]
pub struct Own<'a> {
    place: Place<'a>,
}

impl<'a> Own<'a> {
    /// Takes the part, unless this rank writes it.
    pub(crate) fn take(place: Place<'a>) -> Result<Self> {
        let rank = place.rank();
        let is_free = place.with_state(|slot| {
            let is_free = !slot.is_entered(rank);
            if is_free {
                slot.hold_own(rank);
            }
            is_free
        });
        if !is_free {
            return Err(place.held("read", "writes"));
        }
        Ok(Self { place })
    }
}

impl Deref for Own<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let range = self.place.range(self.place.rank());
        // SAFETY: only this rank writes its own part, only through an `OwnMut`,
        // and none exists while this guard does: `hold_own` was granted with
        // none alive, and `OwnMut::wait` refuses while we hold.
        unsafe { self.place.memory().bytes(range) }
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        let rank = self.place.rank();
        self.place.with_state(|slot| slot.release(rank));
    }
}

/// A rank's own part of a slot, to write; dropping it publishes the next
/// generation.
#[derive(Debug)]
pub struct OwnMut<'a> {
    place: Place<'a>,
}

impl<'a> OwnMut<'a> {
    /// Says that this rank is done reading and waits until all ranks are.
    pub(crate) fn wait(place: Place<'a>) -> Result<Self> {
        let rank = place.rank();
        {
            let seat = place.seat();
            let board = seat.hub.lock();
            board.check(&|| format!("write of {}", place.name()))?;
            let slot = place.state(&board);
            if slot.is_held(rank) {
                return Err(place.held("write", "reads"));
            }
            if slot.is_entered(rank) {
                return Err(place.held("write", "writes"));
            }
            let wakes = slot.enter(rank);
            drop(board);
            seat.hub.wake_if(wakes);
        }
        place.seat().wait(
            &|| format!("write of {}", place.name()),
            |board| place.state(board).not_entered(rank),
            |board| place.state(board).may_write(rank).then_some(Ok(())),
        )?;
        Ok(Self { place })
    }
}

impl Deref for OwnMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let range = self.place.range(self.place.rank());
        // SAFETY: as in `deref_mut`; the borrow of this guard keeps the two apart.
        unsafe { self.place.memory().bytes(range) }
    }
}

impl DerefMut for OwnMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let range = self.place.range(self.place.rank());
        // SAFETY: the range is this rank's own part, which no other rank writes,
        // and this rank has only this guard: `OwnMut::wait` refuses while one is
        // alive or waits. No rank reads it: all ranks have entered this
        // generation, holding nothing, and `try_hold` grants nothing to them
        // before this guard publishes; this rank's own `Own` is refused while it
        // has entered. `&mut self` keeps this slice unique.
        unsafe { self.place.memory().bytes_mut(range) }
    }
}

impl Drop for OwnMut<'_> {
    fn drop(&mut self) {
        // What a panic left half written is never published; the rank is about
        // to fail and takes the group with it.
        if !thread::panicking() {
            let rank = self.place.rank();
            let hub: &Hub = &self.place.seat().hub;
            hub.change(|board| self.place.state(board).publish(rank));
        }
    }
}
