//! Falcon, and `RefinedWeb` as its first releases called it.
//!
//! ```text
//! key                   older name    where a release differs
//! num_hidden_layers     n_layer
//! num_attention_heads   n_head
//! hidden_size           n_embed
//! num_kv_heads          n_head_kv     implies the new decoder architecture
//! model_type falcon     RefinedWeb    (40B) always the new architecture
//!                       RefinedWebModel (7B, RW) flags are off where not given
//! ```
//!
//! At times the names were mapped the other way round, so either occurs under any
//! `model_type`.

use serde_json::Value;

use super::{divided, dtype, token_ids, window};
use crate::keys::Keys;
use crate::{Activation, Arrangement, Family, ModelSpec, Positions, RopeSpec, SpecError};

const KV_HEADS: [&str; 2] = ["num_kv_heads", "n_head_kv"];

pub(super) fn read(top: &Keys<'_>) -> Result<ModelSpec, SpecError> {
    let is_original = top.text("model_type")? != Some("falcon");
    let hidden = either(top, ["hidden_size", "n_embed"])?;
    let heads = either(top, ["num_attention_heads", "n_head"])?;
    let (kv_heads, arrangement) = if is_new(top)? {
        new_decoder(top, heads)?
    } else {
        old_decoder(top, heads, !is_original)?
    };
    window::refuse(top)?;
    let max_positions = top.size_or("max_position_embeddings", 2048)?;
    let bias = top.flag_or("bias", false)?;
    let [bos, eos] = if is_original { [1, 2] } else { [11, 11] };
    Ok(ModelSpec {
        family: Family::Falcon,
        hidden,
        intermediate: top.size_or("ffn_hidden_size", 4 * hidden)?,
        num_layers: either(top, ["num_hidden_layers", "n_layer"])?,
        heads,
        kv_heads,
        head_dim: divided(hidden, heads, "")?,
        vocab: top.size("vocab_size")?,
        norm_eps: top.positive_or("layer_norm_epsilon", 1e-5)?,
        positions: if top.flag_or("alibi", false)? {
            Positions::Alibi
        } else {
            Positions::Rope(RopeSpec::from_keys(top, max_positions)?)
        },
        window: None,
        activation: activation(top)?,
        arrangement,
        qkv_bias: bias,
        output_bias: bias,
        mlp_bias: bias,
        tied: top.flag_or("tie_word_embeddings", true)?,
        max_positions,
        bos: token_ids(top, "bos_token_id", Some(bos))?.first().copied(),
        eos: token_ids(top, "eos_token_id", Some(eos))?,
        dtype: dtype(top)?,
        initializer_range: top.positive_or("initializer_range", 0.02)?,
    })
}

/// Whether it is the architecture of the 40B model.
fn is_new(top: &Keys<'_>) -> Result<bool, SpecError> {
    let is_implied =
        top.text("model_type")? == Some("RefinedWeb") || top.value(KV_HEADS[1]).is_some();
    top.flag_or("new_decoder_architecture", is_implied)
}

/// Key/value heads shared by groups; attention and MLP in parallel, under one norm
/// or two.
fn new_decoder(top: &Keys<'_>, heads: usize) -> Result<(usize, Arrangement), SpecError> {
    const NORMS: &str = "num_ln_in_parallel_attn";
    if !top.flag_or("parallel_attn", true)? {
        let supported = "true with `new_decoder_architecture`";
        return Err(top.unsupported("parallel_attn", &Value::Bool(false), supported));
    }
    let kv_heads = either_or_none(top, KV_HEADS)?.unwrap_or(heads);
    match top.size_or(NORMS, 2)? {
        1 => Ok((kv_heads, Arrangement::ParallelOneNorm)),
        2 => Ok((kv_heads, Arrangement::ParallelTwoNorms)),
        other => Err(top.unsupported(NORMS, &Value::from(other), "1 or 2")),
    }
}

/// One key/value head or as many as there are query heads; attention and MLP in
/// parallel under one norm, or one after the other.
fn old_decoder(
    top: &Keys<'_>,
    heads: usize,
    flags_are_on: bool,
) -> Result<(usize, Arrangement), SpecError> {
    const NORMS: &str = "num_ln_in_parallel_attn";
    let is_multi_query = top.flag_or("multi_query", flags_are_on)?;
    if !is_multi_query
        && let Some(kv_heads) = either_or_none(top, KV_HEADS)?
        && kv_heads != heads
    {
        return Err(SpecError::Inconsistent {
            key: KV_HEADS[0],
            value: kv_heads as u64,
            rule: format!("without `new_decoder_architecture` it is 1 or the {heads} heads"),
        });
    }
    let kv_heads = if is_multi_query { 1 } else { heads };
    if !top.flag_or("parallel_attn", flags_are_on)? {
        return Ok((kv_heads, Arrangement::Sequential));
    }
    match top.size_or(NORMS, 1)? {
        1 => Ok((kv_heads, Arrangement::ParallelOneNorm)),
        other => {
            let supported = "1 without `new_decoder_architecture`";
            Err(top.unsupported(NORMS, &Value::from(other), supported))
        }
    }
}

fn activation(top: &Keys<'_>) -> Result<Activation, SpecError> {
    match top.text("activation")? {
        None | Some("gelu") => Ok(Activation::GeluErf),
        // Two names of one formula.
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some(other) => {
            let supported = "\"gelu\", \"gelu_pytorch_tanh\"";
            Err(top.unsupported("activation", &Value::from(other), supported))
        }
    }
}

fn either(top: &Keys<'_>, names: [&'static str; 2]) -> Result<usize, SpecError> {
    either_or_none(top, names)?.ok_or_else(|| top.missing(names[0]))
}

/// A size under its name or its older one, which must not disagree.
fn either_or_none(
    top: &Keys<'_>,
    [name, older]: [&'static str; 2],
) -> Result<Option<usize>, SpecError> {
    match [top.size_or_none(name)?, top.size_or_none(older)?] {
        [Some(size), Some(other)] if size != other => Err(SpecError::Inconsistent {
            key: older,
            value: other as u64,
            rule: format!("but `{name}` is {size}"),
        }),
        [size, other] => Ok(size.or(other)),
    }
}
