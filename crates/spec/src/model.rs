//! A model's sizes, and the units that follow from them.

use tensor::Dtype;

use crate::unit::{Param, Role, Unit, UnitKind};
use crate::{RopeSpec, SpecError};

/// How the units of a model are built and named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// Root-mean-square norms, rotary positions, grouped-query attention, gated MLP.
    Llama,
}

/// All that a `config.json` says about the model's shape and computation.
#[derive(Debug, Clone, PartialEq)]
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
    /// Elements of one head; even, and not always `hidden / heads`.
    pub head_dim: usize,
    /// Rows of the token table.
    pub vocab: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f32,
    /// How positions turn into angles.
    pub rope: RopeSpec,
    /// Whether the four attention projections have biases.
    pub attention_bias: bool,
    /// Whether the three MLP projections have biases.
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

    /// The `head_dim / 2` rotary frequencies.
    pub fn inv_freq(&self) -> Vec<f32> {
        self.rope.inv_freq(self.head_dim)
    }

    fn embedding(&self) -> Unit {
        Unit {
            name: "embedding".to_owned(),
            kind: UnitKind::Embedding,
            params: vec![matrix(
                "model.embed_tokens.weight",
                Role::Embedding,
                self.vocab,
                self.hidden,
            )],
        }
    }

    fn block(&self, layer: usize) -> Unit {
        let hidden = self.hidden;
        let q_rows = self.heads * self.head_dim;
        let kv_rows = self.kv_heads * self.head_dim;
        let attention = |name, rows, cols, role, bias: Role| {
            let bias = self.attention_bias.then_some(bias);
            linear(&format!("self_attn.{name}"), rows, cols, role, bias)
        };
        let mlp = |name, rows, cols, role, bias: Role| {
            let bias = self.mlp_bias.then_some(bias);
            linear(&format!("mlp.{name}"), rows, cols, role, bias)
        };
        let mut params = vec![vector("input_layernorm.weight", Role::InputNorm, hidden)];
        params.extend(attention(
            "q_proj",
            q_rows,
            hidden,
            Role::Query,
            Role::QueryBias,
        ));
        params.extend(attention(
            "k_proj",
            kv_rows,
            hidden,
            Role::Key,
            Role::KeyBias,
        ));
        params.extend(attention(
            "v_proj",
            kv_rows,
            hidden,
            Role::Value,
            Role::ValueBias,
        ));
        params.extend(attention(
            "o_proj",
            hidden,
            q_rows,
            Role::Output,
            Role::OutputBias,
        ));
        params.push(vector(
            "post_attention_layernorm.weight",
            Role::PostNorm,
            hidden,
        ));
        params.extend(mlp(
            "gate_proj",
            self.intermediate,
            hidden,
            Role::Gate,
            Role::GateBias,
        ));
        params.extend(mlp(
            "up_proj",
            self.intermediate,
            hidden,
            Role::Up,
            Role::UpBias,
        ));
        params.extend(mlp(
            "down_proj",
            hidden,
            self.intermediate,
            Role::Down,
            Role::DownBias,
        ));
        for param in &mut params {
            param.name.insert_str(0, &format!("model.layers.{layer}."));
        }
        Unit {
            name: format!("block {layer}"),
            kind: UnitKind::Block(layer),
            params,
        }
    }

    fn head(&self) -> Unit {
        let mut params = vec![vector("model.norm.weight", Role::FinalNorm, self.hidden)];
        if !self.tied {
            params.push(matrix(
                "lm_head.weight",
                Role::LmHead,
                self.vocab,
                self.hidden,
            ));
        }
        Unit {
            name: "head".to_owned(),
            kind: UnitKind::Head,
            params,
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
        if !self.heads.is_multiple_of(self.kv_heads) {
            let rule = format!("which does not divide the {} attention heads", self.heads);
            return Err(inconsistent("num_key_value_heads", self.kv_heads, rule));
        }
        if !self.head_dim.is_multiple_of(2) {
            let rule = "but rotary positions need an even number".to_owned();
            return Err(inconsistent("head_dim", self.head_dim, rule));
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
        let block = hidden * (2 * heads + 2 * kv + 3 * wide(self.intermediate) + 3)
            + heads
            + 2 * kv
            + 2 * wide(self.intermediate);
        // Each factor is below 2^31, so 128 bits hold the sum before it is judged.
        let total = block * wide(self.num_layers) + 2 * wide(self.vocab) * hidden + hidden;
        if total * BYTES >= 1 << 63 {
            return Err(SpecError::TooLarge);
        }
        Ok(())
    }
}

fn linear(name: &str, rows: usize, cols: usize, role: Role, bias: Option<Role>) -> Vec<Param> {
    let mut params = vec![matrix(&format!("{name}.weight"), role, rows, cols)];
    params.extend(bias.map(|role| vector(&format!("{name}.bias"), role, rows)));
    params
}

fn matrix(name: &str, role: Role, rows: usize, cols: usize) -> Param {
    Param {
        name: name.to_owned(),
        role,
        rows,
        cols,
        is_vector: false,
    }
}

fn vector(name: &str, role: Role, len: usize) -> Param {
    Param {
        name: name.to_owned(),
        role,
        rows: 1,
        cols: len,
        is_vector: true,
    }
}
