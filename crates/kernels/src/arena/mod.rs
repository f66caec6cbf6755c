//! Where scratch memory comes from, and what made its peak.
//!
//! A rank has one arena: one anonymous mapping, made once and reused every step.
//! Where a buffer lies is decided by [`Layout`], which is plain arithmetic: a dry
//! run that only counts, with the same requests in the same order, reaches the
//! same high-water mark to the byte. Pages that no buffer ever touched cost
//! nothing.

mod buffer;
mod layout;

use std::io;
use std::sync::Arc;

pub use buffer::Buffer;
use buffer::Shared;
pub(crate) use layout::{Layout, Placed};

/// What scratch is for: the lines of a report of the peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// The input of a unit, kept from forward to backward.
    UnitInput,
    /// What passes between the operations of one unit.
    Activation,
    /// Logits of a part of the vocabulary, and their statistics.
    Logits,
    /// The whole gradient of one unit.
    Gradient,
    /// A rank's part of a unit's gradient.
    GradientShard,
    /// A gradient kept beyond its unit: a tied table's.
    TiedGradient,
    /// Cached keys and values.
    Generation,
    /// What one operation needs inside and gives back at its end.
    Workspace,
}

impl Purpose {
    /// Every purpose, in the order of a report.
    pub const ALL: [Self; 8] = [
        Self::UnitInput,
        Self::Activation,
        Self::Logits,
        Self::Gradient,
        Self::GradientShard,
        Self::TiedGradient,
        Self::Generation,
        Self::Workspace,
    ];

    /// What a person reads.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnitInput => "unit inputs",
            Self::Activation => "activations",
            Self::Logits => "logits",
            Self::Gradient => "unit gradient",
            Self::GradientShard => "gradient shard",
            Self::TiedGradient => "tied gradient",
            Self::Generation => "generation cache",
            Self::Workspace => "workspace",
        }
    }
}

/// Bytes held for one purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurposePeak {
    /// What for.
    pub purpose: Purpose,
    /// How many bytes.
    pub bytes: usize,
}

/// An arena has no room for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for {asked_bytes} bytes of {}: {held_bytes} of {capacity_bytes} bytes of scratch are held",
    purpose.name()
)]
pub struct ArenaFull {
    /// The request.
    pub asked_bytes: usize,
    /// What is held already.
    pub held_bytes: usize,
    /// All there is.
    pub capacity_bytes: usize,
    /// What the request was for.
    pub purpose: Purpose,
}

/// One mapping of scratch memory.
///
/// Its buffers keep the mapping alive, so they may outlive it.
#[derive(Debug)]
pub struct Arena {
    shared: Arc<Shared>,
}

impl Arena {
    /// Maps `capacity_bytes`; no page of it is touched.
    pub fn new(capacity_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared::map(capacity_bytes)?),
        })
    }

    /// Takes `len` elements; their content is whatever was there.
    pub fn alloc(&self, len: usize, purpose: Purpose) -> Result<Buffer, ArenaFull> {
        Buffer::take(&self.shared, len, purpose)
    }

    /// All there is.
    pub fn capacity_bytes(&self) -> usize {
        self.shared.layout().capacity_bytes()
    }

    /// The highest address that any buffer reached: what the arena cost.
    pub fn high_water_bytes(&self) -> usize {
        self.shared.layout().high_water_bytes()
    }

    /// Bytes held now.
    pub fn live_bytes(&self) -> usize {
        self.shared.layout().live_bytes()
    }

    /// The most bytes held at once; the high-water mark is above it by what
    /// fragmentation cost.
    pub fn peak_live_bytes(&self) -> usize {
        self.shared.layout().peak_live_bytes()
    }

    /// What was held at the moment of [`Arena::peak_live_bytes`]: the sum of
    /// these is that number.
    pub fn held_at_peak(&self) -> Vec<PurposePeak> {
        self.shared.layout().held_at_peak()
    }

    /// The most that each purpose held, each at its own moment.
    pub fn peak_by_purpose(&self) -> Vec<PurposePeak> {
        self.shared.layout().peak_by_purpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_hold_what_is_written_to_them_and_no_other() {
        let arena = Arena::new(4096).unwrap();
        let mut buffers: Vec<Buffer> = (1..9)
            .map(|len| arena.alloc(len, Purpose::Activation).unwrap())
            .collect();
        for (number, buffer) in buffers.iter_mut().enumerate() {
            buffer.as_mut_slice().fill(number as f32);
        }
        for (number, buffer) in buffers.iter().enumerate() {
            assert_eq!(buffer.as_slice(), vec![number as f32; number + 1]);
            assert_eq!(buffer.as_slice().as_ptr().addr() % 64, 0);
        }
    }

    #[test]
    fn a_dropped_buffer_makes_room_and_a_full_arena_is_an_error() {
        let arena = Arena::new(1024).unwrap();
        let whole = arena.alloc(256, Purpose::Gradient).unwrap();
        assert!(arena.alloc(1, Purpose::Logits).is_err());
        drop(whole);
        assert_eq!(arena.live_bytes(), 0);
        assert!(arena.alloc(256, Purpose::Logits).is_ok());
        assert_eq!(arena.high_water_bytes(), 1024);
    }

    #[test]
    fn a_buffer_may_outlive_its_arena_and_move_to_another_thread() {
        let arena = Arena::new(1024).unwrap();
        let mut buffer = arena.alloc(8, Purpose::Activation).unwrap();
        drop(arena);
        let sum = std::thread::spawn(move || {
            buffer.as_mut_slice().fill(2.0);
            buffer.as_slice().iter().sum::<f32>()
        });
        assert_eq!(sum.join().unwrap().to_bits(), 16_f32.to_bits());
    }

    #[test]
    fn an_empty_arena_gives_empty_buffers() {
        let arena = Arena::new(0).unwrap();
        let mut buffer = arena.alloc(0, Purpose::Workspace).unwrap();
        assert!(buffer.is_empty());
        assert!(buffer.as_mut_slice().is_empty());
        assert!(arena.alloc(1, Purpose::Workspace).is_err());
    }
}
