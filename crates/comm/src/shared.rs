//! The one place where a rank touches memory of another.
//!
//! Two kinds of memory are shared. A collective *lends* the caller's slice for
//! the length of one round ([`exchange`]). A window is one mapping in which each
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
use std::thread;

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::board::Call;
use crate::hub::{Hub, Seat};
use crate::window::Place;
use crate::{CommError, Result};

/// A slice that a rank lends to its peers for one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lent {
    start: *const u8,
    len: usize,
}

// SAFETY: a `Lent` is an address and a length; sending them is harmless. They
// are followed only in `exchange`, which proves there that the bytes are alive
// and shared; `u8` may be read from any thread.
unsafe impl Send for Lent {}

impl Lent {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            len: bytes.len(),
        }
    }
}

/// Takes back what a rank lent, whichever way its call ends.
struct Lending<'a> {
    seat: &'a Seat,
}

impl Drop for Lending<'_> {
    fn drop(&mut self) {
        let hub = &self.seat.hub;
        let rank = self.seat.rank();
        let is_over = hub.lock().is_round_over(rank);
        if !is_over {
            // After a failure nobody starts to read; who has started must end
            // before the slice goes back to its owner.
            hub.fail(rank, "left a collective before its end".to_owned());
            hub.wait_for_readers();
        }
    }
}

/// Reading what the peers lend.
struct Reading<'a> {
    seat: &'a Seat,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let rank = self.seat.rank();
        self.seat.hub.change(|board| board.depart(rank));
    }
}

/// One round: lends `bytes`, hands what all ranks lend to `read`, and returns
/// when no rank reads `bytes` any more.
pub(crate) fn exchange<T>(
    seat: &Seat,
    call: Call,
    bytes: &[u8],
    read: impl FnOnce(&[&[u8]]) -> T,
) -> Result<T> {
    let rank = seat.rank();
    let what = call.to_string();
    let what = || what.clone();
    let mut board = seat.hub.lock();
    board.check()?;
    let wakes = board.arrive(rank, call, Lent::of(bytes));
    drop(board);
    let lending = Lending { seat };
    seat.hub.wake_if(wakes);
    let lent = seat.wait(
        &what,
        |board| board.not_arrived(rank),
        |board| match board.other_call(rank) {
            Some((peer, there)) => Some(Err(CommError::Mismatch {
                rank,
                here: what(),
                peer,
                there: there.to_string(),
            })),
            None => board.start_reading(rank).map(Ok),
        },
    )?;
    let reading = Reading { seat };
    let peers: Vec<&[u8]> = lent
        .iter()
        .map(|lent| {
            // SAFETY: `start` and `len` come from a `&[u8]` that its rank, in its
            // own call of this function, keeps borrowed until that call returns
            // (`bytes`), so it is one live, aligned, initialised object that
            // nobody writes. That call cannot return while we read: `Lending`
            // is dropped before `bytes` goes back, and its drop returns only if
            // all ranks have departed from this round, or, after a failure, if
            // no rank is reading. We count as reading since `start_reading`
            // granted this under the lock, with no failure recorded at that
            // moment, until `reading` is dropped; and `read` cannot keep the
            // slice, because it must accept any lifetime.
            unsafe { std::slice::from_raw_parts(lent.start, lent.len) }
        })
        .collect();
    let result = read(&peers);
    drop(peers);
    drop(reading);
    seat.wait(
        &what,
        |board| board.not_departed(rank),
        |board| board.is_round_over(rank).then_some(Ok(())),
    )?;
    drop(lending);
    Ok(result)
}

/// The bytes of a window.
pub(crate) struct Memory {
    map: MmapRaw,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.map.len())
    }
}

impl Memory {
    /// Maps zeros; a page costs nothing before it is first written.
    pub(crate) fn new(window_bytes: usize) -> Result<Self> {
        let map = MmapOptions::new()
            .len(window_bytes.max(1))
            .no_reserve_swap()
            .map_anon()
            .map_err(|source| CommError::NoMemory {
                window_bytes,
                source,
            })?;
        let map = MmapRaw::from(map);
        // A page of 2 MiB is zeroed and mapped at once; 512 small ones cost a
        // fault each, which is most of the time of a load from the page cache.
        // Where the system has none this changes nothing.
        drop(map.advise(Advice::HugePage));
        Ok(Self { map })
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
            &|| format!("unshard of slot {}", place.slot),
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
            let mut board = seat.hub.lock();
            board.check()?;
            let slot = place.state(&mut board);
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
            &|| format!("write of slot {}", place.slot),
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
