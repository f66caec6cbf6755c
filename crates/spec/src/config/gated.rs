//! Llama and the families that differ from it in few points: Mistral, Qwen2, Gemma.

use serde_json::Value;

use super::{divided, dtype, token_ids, window};
use crate::keys::Keys;
use crate::{Activation, Arrangement, Family, ModelSpec, Positions, RopeSpec, SpecError};

/// What a family takes where its config has no word for it.
struct Defaults {
    /// Key/value heads; as many as query heads where there is no number.
    kv_heads: Option<usize>,
    /// Where there is no number, the width over the heads.
    head_dim: Option<usize>,
    max_positions: usize,
    tied: bool,
    bos: Option<u32>,
    eos: Option<u32>,
}

const LLAMA: Defaults = Defaults {
    kv_heads: None,
    head_dim: None,
    max_positions: 2048,
    tied: false,
    bos: Some(1),
    eos: Some(2),
};

const MISTRAL: Defaults = Defaults {
    kv_heads: Some(8),
    max_positions: 131_072,
    ..LLAMA
};

const QWEN2: Defaults = Defaults {
    kv_heads: Some(32),
    max_positions: 32_768,
    bos: None,
    eos: None,
    ..LLAMA
};

const GEMMA: Defaults = Defaults {
    kv_heads: Some(16),
    head_dim: Some(256),
    max_positions: 8192,
    tied: true,
    bos: Some(2),
    eos: Some(1),
};

pub(super) fn read(top: &Keys<'_>, family: Family) -> Result<ModelSpec, SpecError> {
    let defaults = match family {
        Family::Mistral => MISTRAL,
        Family::Qwen2 => QWEN2,
        Family::Gemma => GEMMA,
        Family::Llama | Family::Falcon => LLAMA,
    };
    let hidden = top.size("hidden_size")?;
    let heads = top.size("num_attention_heads")?;
    let num_layers = top.size("num_hidden_layers")?;
    let max_positions = top.size_or("max_position_embeddings", defaults.max_positions)?;
    let [qkv_bias, output_bias, mlp_bias] = biases(top, family)?;
    Ok(ModelSpec {
        family,
        hidden,
        intermediate: top.size("intermediate_size")?,
        num_layers,
        heads,
        kv_heads: kv_heads(top, heads, &defaults)?,
        head_dim: head_dim(top, hidden, heads, &defaults)?,
        vocab: top.size("vocab_size")?,
        norm_eps: top.positive_or("rms_norm_eps", 1e-6)?,
        positions: Positions::Rope(RopeSpec::from_keys(top, max_positions)?),
        window: window::read(top, family, num_layers)?,
        activation: activation(top, family)?,
        arrangement: Arrangement::Sequential,
        qkv_bias,
        output_bias,
        mlp_bias,
        tied: top.flag_or("tie_word_embeddings", defaults.tied)?,
        max_positions,
        bos: token_ids(top, "bos_token_id", defaults.bos)?
            .first()
            .copied(),
        eos: token_ids(top, "eos_token_id", defaults.eos)?,
        dtype: dtype(top)?,
        initializer_range: top.positive_or("initializer_range", 0.02)?,
    })
}

/// A default of the family is for a config that does not have the key at all.
fn kv_heads(top: &Keys<'_>, heads: usize, defaults: &Defaults) -> Result<usize, SpecError> {
    const KEY: &str = "num_key_value_heads";
    if top.has(KEY) {
        return top.size_or(KEY, heads);
    }
    Ok(defaults.kv_heads.unwrap_or(heads))
}

fn head_dim(
    top: &Keys<'_>,
    hidden: usize,
    heads: usize,
    defaults: &Defaults,
) -> Result<usize, SpecError> {
    if let Some(head_dim) = top.size_or_none("head_dim")?.or(defaults.head_dim) {
        return Ok(head_dim);
    }
    divided(hidden, heads, ", and there is no `head_dim`")
}

/// Which projections have biases: query, key and value; output; those of the MLP.
///
/// No key announces those of Qwen2.
fn biases(top: &Keys<'_>, family: Family) -> Result<[bool; 3], SpecError> {
    if family == Family::Qwen2 {
        return Ok([true, false, false]);
    }
    let attention = top.flag_or("attention_bias", false)?;
    let mlp = top.flag_or("mlp_bias", false)?;
    let refused = [
        ("attention_bias", attention && family == Family::Mistral),
        ("mlp_bias", mlp && family != Family::Llama),
    ];
    if let Some((key, _)) = refused.into_iter().find(|(_, is_refused)| *is_refused) {
        return Err(top.unsupported(key, &Value::Bool(true), "false"));
    }
    Ok([attention, attention, mlp])
}

fn activation(top: &Keys<'_>, family: Family) -> Result<Activation, SpecError> {
    if family == Family::Gemma {
        return gemma_activation(top);
    }
    match top.text("hidden_act")? {
        // Two names of one function.
        None | Some("silu" | "swish") => Ok(Activation::Silu),
        Some(other) => Err(top.unsupported("hidden_act", &Value::from(other), "\"silu\"")),
    }
}

/// The tanh form, which its first configs call `gelu`; later ones have a second key
/// for it.
fn gemma_activation(top: &Keys<'_>) -> Result<Activation, SpecError> {
    const TANH: &str = "gelu_pytorch_tanh";
    for (key, names) in [
        ("hidden_act", &["gelu", TANH][..]),
        ("hidden_activation", &[TANH][..]),
    ] {
        if let Some(name) = top.text(key)?
            && !names.contains(&name)
        {
            let supported = format!("\"{TANH}\"");
            return Err(top.unsupported(key, &Value::from(name), &supported));
        }
    }
    Ok(Activation::GeluTanh)
}
