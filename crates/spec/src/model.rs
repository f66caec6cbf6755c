//! A model's sizes, and the units that follow from them.

use tensor::Dtype;

use crate::params::{self, Layout};
use crate::unit::{Unit, UnitKind};
use crate::{RopeSpec, SpecError};

/// How the units of a model are built and named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// Root-mean-square norms, rotary positions, grouped-query attention, gated MLP.
    Llama,
    /// The same, with a sliding window.
    Mistral,
    /// The same, with biases on query, key and value, and windows in some blocks.
    Qwen2,
    /// The same, but norms store their weight minus one, embeddings are scaled by
    /// the root of the width, and the gate is a GELU.
    Gemma,
    /// Layer norms, fused query, key and value, an MLP without a gate, and attention
    /// beside the MLP or before it.
    Falcon,
}

/// The function between the MLP's projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// The Gaussian error linear unit.
    GeluErf,
    /// Its approximation by a hyperbolic tangent.
    GeluTanh,
}

/// How attention and MLP of a block follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// The MLP reads the sum of input and attention, under a norm of its own.
    Sequential,
    /// Both read the input, under one norm.
    ParallelOneNorm,
    /// Both read the input, each under its own norm.
    ParallelTwoNorms,
}

/// How attention knows positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Positions {
    /// Queries and keys are turned.
    Rope(RopeSpec),
    /// Scores have linear biases (Press et al. 2022).
    Alibi,
}

/// A limit to how far back a token sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlidingWindow {
    /// How many tokens a token sees, the last of them itself.
    pub size: usize,
    /// Whether each block has the window; at least one has.
    pub blocks: Vec<bool>,
}

/// All that a `config.json` says about the model's shape and computation.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "three kinds of biases and a tie, each its own key of a config"
)]
pub struct ModelSpec {
    /// How units are built and named.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the MLP.
    pub intermediate: usize,
    /// Number of blocks.
    pub num_layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of one head; even under rotary positions, and not always
    /// `hidden / heads`.
    pub head_dim: usize,
    /// Rows of the token table.
    pub vocab: usize,
    /// Added to the mean square or the variance in every norm.
    pub norm_eps: f32,
    /// How attention knows positions.
    pub positions: Positions,
    /// How far back tokens see, if there is a limit.
    pub window: Option<SlidingWindow>,
    /// The function inside the MLP.
    pub activation: Activation,
    /// How attention and MLP follow one another.
    pub arrangement: Arrangement,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the projection after attention has a bias.
    pub output_bias: bool,
    /// Whether the MLP's projections have biases.
    pub mlp_bias: bool,
    /// Whether the head computes with the token table.
    pub tied: bool,
    /// The longest sequence the model was made for.
    pub max_positions: usize,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The tokens that end a text.
    pub eos: Vec<u32>,
    /// The config's hint at the weights' dtype; each tensor's own dtype rules.
    pub dtype: Option<Dtype>,
    /// Standard deviation of random weights.
    pub initializer_range: f32,
}

impl ModelSpec {
    /// The units in the order of the forward pass.
    pub fn units(&self) -> Vec<Unit> {
        let mut units = vec![self.embedding()];
        units.extend((0..self.num_layers).map(|layer| self.block(layer)));
        units.push(self.head());
        units
    }

    /// The number of parameters; a tied table counts once.
    pub fn num_parameters(&self) -> u64 {
        let block = self.block(0).num_parameters();
        self.embedding().num_parameters()
            + block * self.num_layers as u64
            + self.head().num_parameters()
    }

    /// The `head_dim / 2` rotary frequencies; none where positions are not rotary.
    pub fn inv_freq(&self) -> Vec<f32> {
        match &self.positions {
            Positions::Rope(rope) => rope.inv_freq(self.head_dim),
            Positions::Alibi => Vec::new(),
        }
    }

    /// How many tokens a token sees in block `layer`, if there is a limit.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        let window = self.window.as_ref()?;
        window.blocks[layer].then_some(window.size)
    }

    /// What is added to the weights of norms: 1 where they are stored minus one.
    pub fn norm_offset(&self) -> f32 {
        if self.family == Family::Gemma {
            1.0
        } else {
            0.0
        }
    }

    /// What embedded tokens are multiplied by.
    pub fn embedding_scale(&self) -> f64 {
        if self.family == Family::Gemma {
            (self.hidden as f64).sqrt()
        } else {
            1.0
        }
    }

    /// The families of parameters that a block has.
    fn layout(&self) -> Layout {
        match self.family {
            Family::Falcon => Layout::FusedHeads,
            _ => Layout::Gated,
        }
    }

    fn embedding(&self) -> Unit {
        Unit {
            name: "embedding".to_owned(),
            kind: UnitKind::Embedding,
            params: params::embedding(self, self.layout()),
        }
    }

    fn block(&self, layer: usize) -> Unit {
        Unit {
            name: format!("block {layer}"),
            kind: UnitKind::Block(layer),
            params: params::block(self, self.layout(), layer),
        }
    }

    fn head(&self) -> Unit {
        Unit {
            name: "head".to_owned(),
            kind: UnitKind::Head,
            params: params::head(self, self.layout()),
        }
    }

    /// Refuses sizes that no model can have, so that nobody asks again.
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        const MOST_LAYERS: usize = 1 << 16;
        let inconsistent = |key, value: usize, rule: String| SpecError::Inconsistent {
            key,
            value: value as u64,
            rule,
        };
        let (kv_heads, head_dim) = match self.family {
            // Where the width over the heads is the only word for it.
            Family::Falcon => ("num_kv_heads", "hidden_size / num_attention_heads"),
            _ => ("num_key_value_heads", "head_dim"),
        };
        if !self.heads.is_multiple_of(self.kv_heads) {
            let rule = format!("which does not divide the {} attention heads", self.heads);
            return Err(inconsistent(kv_heads, self.kv_heads, rule));
        }
        let is_rotary = matches!(self.positions, Positions::Rope(_));
        if is_rotary && !self.head_dim.is_multiple_of(2) {
            let rule = "but rotary positions need an even number".to_owned();
            return Err(inconsistent(head_dim, self.head_dim, rule));
        }
        if self.num_layers > MOST_LAYERS {
            let rule = format!("more than the limit of {MOST_LAYERS}");
            return Err(inconsistent("num_hidden_layers", self.num_layers, rule));
        }
        self.check_total()
    }

    /// Refuses a model whose f32 bytes, three times over (weights and both
    /// moments), do not fit in 63 bits.
    fn check_total(&self) -> Result<(), SpecError> {
        const BYTES: u128 = 12;
        let wide = |size: usize| size as u128;
        let (hidden, heads) = (wide(self.hidden), wide(self.heads) * wide(self.head_dim));
        let kv = wide(self.kv_heads) * wide(self.head_dim);
        // With every matrix, norm and bias that any family has.
        let block = hidden * (2 * heads + 2 * kv + 3 * wide(self.intermediate) + 6)
            + heads
            + 2 * kv
            + 2 * wide(self.intermediate);
        // Each factor is below 2^31, so 128 bits hold the sum before it is judged.
        let total = block * wide(self.num_layers) + 2 * wide(self.vocab) * hidden + 2 * hidden;
        if total * BYTES >= 1 << 63 {
            return Err(SpecError::TooLarge);
        }
        Ok(())
    }
}
