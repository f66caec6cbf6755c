//! The one place that hands out the arena's memory.
#![expect(
    unsafe_code,
    reason = "disjoint ranges of one mapping become exclusive slices"
)]

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::{Advice, MmapMut, MmapRaw};

use super::{ArenaFull, Layout, Placed, Purpose};

/// A mapping and who holds what of it.
#[derive(Debug)]
pub(super) struct Shared {
    memory: MmapRaw,
    layout: Mutex<Layout>,
}

impl Shared {
    /// Maps `capacity_bytes` of zeroes.
    pub(super) fn map(capacity_bytes: usize) -> io::Result<Self> {
        let memory = MmapMut::map_anon(capacity_bytes)?;
        // A kernel without huge pages refuses; only speed depends on it.
        let _refused = memory.advise(Advice::HugePage);
        Ok(Self {
            memory: memory.into(),
            layout: Mutex::new(Layout::new(capacity_bytes)),
        })
    }

    /// The offsets. A thread that panicked between two requests left them whole.
    pub(super) fn layout(&self) -> MutexGuard<'_, Layout> {
        self.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// f32 elements in an arena, given back when dropped.
#[derive(Debug)]
pub struct Buffer {
    shared: Arc<Shared>,
    placed: Placed,
    len: usize,
}

impl Buffer {
    /// Takes `len` elements of the mapping.
    pub(super) fn take(
        shared: &Arc<Shared>,
        len: usize,
        purpose: Purpose,
    ) -> Result<Self, ArenaFull> {
        let bytes = len.saturating_mul(size_of::<f32>());
        let placed = shared.layout().take(bytes, purpose)?;
        Ok(Self {
            shared: Arc::clone(shared),
            placed,
            len,
        })
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements.
    pub fn as_slice(&self) -> &[f32] {
        let start = self.shared.memory.as_ptr();
        let start = start.wrapping_add(self.placed.offset_bytes);
        // SAFETY: `start` is valid for reads of the block's bytes: the layout grants
        // only blocks below its capacity, which is the mapping's length, and
        // `shared` keeps the mapping alive. It is not null, as no mapping begins
        // at 0, and bytes are always aligned and, in an anonymous mapping,
        // initialised. Nothing writes there while the slice lives: no live
        // block overlaps another, buffers cannot be cloned, and `as_mut_slice`
        // needs `&mut self`. No mapping is longer than `isize::MAX`.
        let bytes = unsafe { std::slice::from_raw_parts(start, self.len * size_of::<f32>()) };
        numbers(bytes)
    }

    /// The elements, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        let start = self.shared.memory.as_mut_ptr();
        let start = start.wrapping_add(self.placed.offset_bytes);
        // SAFETY: as in `as_slice`; the mapping is writable, and nothing else reads
        // or writes the block while the slice lives, because `&mut self` is the
        // only way to this buffer and no other live buffer overlaps it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, self.len * size_of::<f32>()) };
        numbers_mut(bytes)
    }
}

const ALIGNED: &str = "blocks begin at multiples of 64 bytes";

fn numbers(bytes: &[u8]) -> &[f32] {
    tensor::cast(bytes).expect(ALIGNED)
}

fn numbers_mut(bytes: &mut [u8]) -> &mut [f32] {
    tensor::cast_mut(bytes).expect(ALIGNED)
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.shared.layout().give_back(&self.placed);
    }
}
