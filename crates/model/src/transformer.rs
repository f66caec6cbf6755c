//! A model as the step sees it: its spec, its units, its rotary frequencies.

use kernels::{AttentionShape, Rope, ScoreBias};
use spec::{ModelSpec, Param, Positions, Unit};

/// What is known of a model before any weight is read.
#[derive(Debug, Clone)]
pub struct Transformer {
    /// The meaning of its `config.json`.
    pub spec: ModelSpec,
    /// Embedding, blocks in order, head.
    pub units: Vec<Unit>,
    inv_freq: Vec<f32>,
}

impl Transformer {
    /// Lists the units of a model.
    pub fn new(spec: ModelSpec) -> Self {
        Self {
            units: spec.units(),
            inv_freq: spec.inv_freq(),
            spec,
        }
    }

    /// All parameters, unit by unit.
    pub fn params(&self) -> impl Iterator<Item = &Param> {
        self.units.iter().flat_map(|unit| &unit.params)
    }

    /// The number of the embedding unit.
    pub fn embedding(&self) -> usize {
        0
    }

    /// The numbers of the blocks.
    pub fn blocks(&self) -> std::ops::Range<usize> {
        1..self.units.len() - 1
    }

    /// The number of the head unit.
    pub fn head(&self) -> usize {
        self.units.len() - 1
    }

    /// The unit that holds the table of the head: its own, or the embedding's
    /// where the two are tied.
    pub fn head_table(&self) -> usize {
        if self.spec.tied {
            self.embedding()
        } else {
            self.head()
        }
    }

    /// How queries and keys are turned, if positions are angles.
    pub(crate) fn rope(&self) -> Option<Rope<'_>> {
        match self.spec.positions {
            Positions::Rope(_) => Some(Rope {
                inv_freq: &self.inv_freq,
                scale: 1.0,
            }),
            Positions::Alibi => None,
        }
    }

    /// An attention without a window.
    pub(crate) fn attention(
        &self,
        batch: usize,
        num_queries: usize,
        num_keys: usize,
    ) -> AttentionShape {
        AttentionShape {
            batch,
            num_queries,
            num_keys,
            heads: self.spec.heads,
            kv_heads: self.spec.kv_heads,
            head_dim: self.spec.head_dim,
            window: None,
            bias: match self.spec.positions {
                Positions::Rope(_) => ScoreBias::None,
                Positions::Alibi => ScoreBias::Alibi,
            },
        }
    }

    /// Query heads of a key head, and elements of a head.
    pub(crate) fn group(&self) -> (usize, usize) {
        (self.spec.heads / self.spec.kv_heads, self.spec.head_dim)
    }

    pub(crate) fn query_width(&self) -> usize {
        self.spec.heads * self.spec.head_dim
    }

    pub(crate) fn kv_width(&self) -> usize {
        self.spec.kv_heads * self.spec.head_dim
    }
}
