//! The tokens of one micro-batch.

/// `num_rows` sequences of `seq` tokens, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatch {
    /// Sequences.
    pub num_rows: usize,
    /// Tokens of each sequence.
    pub seq: usize,
    /// Token ids, `num_rows * seq`.
    pub ids: Vec<u32>,
    /// The token to predict after each, or [`kernels::IGNORED`].
    pub targets: Vec<u32>,
    /// Each token's position in its sequence.
    pub positions: Vec<u32>,
}

impl MicroBatch {
    /// Sequences whose positions count from 0.
    ///
    /// # Panics
    ///
    /// Unless the ids are whole rows of `seq` and each has a target.
    pub fn new(seq: usize, ids: Vec<u32>, targets: Vec<u32>) -> Self {
        assert_eq!(ids.len(), targets.len(), "one target for each token");
        assert!(ids.len().is_multiple_of(seq), "whole rows");
        let positions = (0..ids.len())
            .map(|token| u32::try_from(token % seq).expect("a sequence is shorter than 2^32"))
            .collect();
        Self {
            num_rows: ids.len() / seq,
            seq,
            ids,
            targets,
            positions,
        }
    }

    /// All tokens.
    pub fn num_tokens(&self) -> usize {
        self.ids.len()
    }

    /// Tokens that a loss is taken on.
    pub fn num_targets(&self) -> u64 {
        let targets = self
            .targets
            .iter()
            .filter(|&&target| target != kernels::IGNORED);
        targets.count() as u64
    }
}
