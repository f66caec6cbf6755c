//! Which rank this is, and of how many.

use std::num::NonZeroUsize;

use crate::{CommError, Result};

/// A rank and the number of ranks; the rank is always one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct World {
    rank: usize,
    world_size: usize,
}

impl World {
    /// Refuses a rank that is not below `world_size`.
    pub fn new(rank: usize, world_size: usize) -> Result<Self> {
        if rank >= world_size {
            return Err(CommError::NoSuchRank { rank, world_size });
        }
        Ok(Self { rank, world_size })
    }

    /// Every rank of a world, in order.
    pub(crate) fn all(world_size: NonZeroUsize) -> impl Iterator<Item = Self> {
        let world_size = world_size.get();
        (0..world_size).map(move |rank| Self { rank, world_size })
    }

    /// This rank's number, from 0.
    pub fn rank(self) -> usize {
        self.rank
    }

    /// Whether there is another rank to wait for.
    pub fn has_peers(self) -> bool {
        self.rank > 0 || self.rank + 1 < self.world_size
    }

    /// How many ranks there are.
    pub fn world_size(self) -> usize {
        self.world_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_outside_its_world_is_refused() {
        assert!(World::new(1, 1).is_err());
        assert!(World::new(0, 0).is_err());
        assert_eq!(World::new(2, 3).unwrap().rank(), 2);
    }
}
