//! An allocator that counts, for tests of what foreign bytes may cost.
#![expect(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn add(bytes: usize) {
    let held = HELD.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(held, Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; counting is
// atomic, allocates nothing and cannot unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller promises what the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller promises that `alloc` above gave this memory.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller promises what the system's allocator asks for.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // As if both existed for a moment, which they may.
        add(new_size);
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller promises that `alloc` above gave this memory.
        unsafe { System.realloc(memory, layout, new_size) }
    }
}

/// What `work` gives, the bytes it asked for at its peak, and those it kept.
///
/// Counts the whole process, so a test binary that uses it has one test thread
/// at work at a time.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let made = work();
    let peak = PEAK.load(Relaxed).saturating_sub(before);
    let kept = HELD.load(Relaxed).saturating_sub(before);
    (made, peak, kept)
}
