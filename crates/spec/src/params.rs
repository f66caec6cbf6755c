//! Names, roles and shapes of a unit's parameters, in the order in which the forward
//! pass uses them.

use crate::unit::{Param, Role};
use crate::{Arrangement, ModelSpec};

/// The two ways in which parameters are named and cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Norms without biases, a matrix for each projection, a gated MLP.
    Gated,
    /// Norms with biases, query, key and value in one matrix, two in the MLP.
    FusedHeads,
}

pub(crate) fn embedding(spec: &ModelSpec, layout: Layout) -> Vec<Param> {
    let name = match layout {
        Layout::Gated => "model.embed_tokens.weight",
        Layout::FusedHeads => "transformer.word_embeddings.weight",
    };
    vec![matrix(name, Role::Embedding, spec.vocab, spec.hidden)]
}

pub(crate) fn block(spec: &ModelSpec, layout: Layout, layer: usize) -> Vec<Param> {
    let (prefix, mut params) = match layout {
        Layout::Gated => (format!("model.layers.{layer}."), gated_block(spec)),
        Layout::FusedHeads => (format!("transformer.h.{layer}."), fused_block(spec)),
    };
    for param in &mut params {
        param.name.insert_str(0, &prefix);
    }
    params
}

pub(crate) fn head(spec: &ModelSpec, layout: Layout) -> Vec<Param> {
    let mut params = match layout {
        Layout::Gated => vec![vector("model.norm.weight", Role::FinalNorm, spec.hidden)],
        Layout::FusedHeads => {
            let roles = [Role::FinalNorm, Role::FinalNormBias];
            layer_norm("transformer.ln_f", roles, spec.hidden).to_vec()
        }
    };
    if !spec.tied {
        let name = "lm_head.weight";
        params.push(matrix(name, Role::LmHead, spec.vocab, spec.hidden));
    }
    params
}

fn gated_block(spec: &ModelSpec) -> Vec<Param> {
    let (hidden, inner) = (spec.hidden, spec.intermediate);
    let q_rows = spec.heads * spec.head_dim;
    let kv_rows = spec.kv_heads * spec.head_dim;
    let qkv = |name, rows, role, bias: Role| {
        let bias = spec.qkv_bias.then_some(bias);
        linear(&format!("self_attn.{name}"), [rows, hidden], role, bias)
    };
    let mlp = |name, shape, role, bias: Role| {
        let bias = spec.mlp_bias.then_some(bias);
        linear(&format!("mlp.{name}"), shape, role, bias)
    };
    let output_bias = spec.output_bias.then_some(Role::OutputBias);
    let mut params = vec![vector("input_layernorm.weight", Role::InputNorm, hidden)];
    params.extend(qkv("q_proj", q_rows, Role::Query, Role::QueryBias));
    params.extend(qkv("k_proj", kv_rows, Role::Key, Role::KeyBias));
    params.extend(qkv("v_proj", kv_rows, Role::Value, Role::ValueBias));
    params.extend(linear(
        "self_attn.o_proj",
        [hidden, q_rows],
        Role::Output,
        output_bias,
    ));
    params.push(vector(
        "post_attention_layernorm.weight",
        Role::PostNorm,
        hidden,
    ));
    params.extend(mlp(
        "gate_proj",
        [inner, hidden],
        Role::Gate,
        Role::GateBias,
    ));
    params.extend(mlp("up_proj", [inner, hidden], Role::Up, Role::UpBias));
    params.extend(mlp(
        "down_proj",
        [hidden, inner],
        Role::Down,
        Role::DownBias,
    ));
    params
}

fn fused_block(spec: &ModelSpec) -> Vec<Param> {
    const POST_NORM: [Role; 2] = [Role::PostNorm, Role::PostNormBias];
    let (hidden, inner) = (spec.hidden, spec.intermediate);
    let q_rows = spec.heads * spec.head_dim;
    let qkv_rows = q_rows + 2 * spec.kv_heads * spec.head_dim;
    let (input_norm, post_norm) = match spec.arrangement {
        Arrangement::Sequential => ("input_layernorm", Some("post_attention_layernorm")),
        Arrangement::ParallelOneNorm => ("input_layernorm", None),
        Arrangement::ParallelTwoNorms => ("ln_attn", Some("ln_mlp")),
    };
    let roles = [Role::InputNorm, Role::InputNormBias];
    let mut params = layer_norm(input_norm, roles, hidden).to_vec();
    let qkv_bias = spec.qkv_bias.then_some(Role::QueryKeyValueBias);
    let output_bias = spec.output_bias.then_some(Role::OutputBias);
    params.extend(linear(
        "self_attention.query_key_value",
        [qkv_rows, hidden],
        Role::QueryKeyValue,
        qkv_bias,
    ));
    params.extend(linear(
        "self_attention.dense",
        [hidden, q_rows],
        Role::Output,
        output_bias,
    ));
    if let Some(name) = post_norm {
        params.extend(layer_norm(name, POST_NORM, hidden));
    }
    for (name, shape, role, bias) in [
        ("dense_h_to_4h", [inner, hidden], Role::Up, Role::UpBias),
        ("dense_4h_to_h", [hidden, inner], Role::Down, Role::DownBias),
    ] {
        let bias = spec.mlp_bias.then_some(bias);
        params.extend(linear(&format!("mlp.{name}"), shape, role, bias));
    }
    params
}

fn layer_norm(name: &str, [weight, bias]: [Role; 2], len: usize) -> [Param; 2] {
    [
        vector(&format!("{name}.weight"), weight, len),
        vector(&format!("{name}.bias"), bias, len),
    ]
}

fn linear(name: &str, [rows, cols]: [usize; 2], role: Role, bias: Option<Role>) -> Vec<Param> {
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
