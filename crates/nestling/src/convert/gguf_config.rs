//! The `config.json` and `generation_config.json` that a GGUF file's metadata
//! describe.
//!
//! Every key of the model's own architecture has to be understood: one that is
//! not could be a window, a scale or a cap that changes what the model computes.

use checkpoint::gguf::GgufTensor;
use serde_json::{Map, Value, json};
use spec::{RopeKind, RopeSpec};
use tensor::Dtype;

use super::ImportFault;
use super::files::dtype_name;
use super::keys::Keys;

/// A kind of model, as `general.architecture` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arch {
    /// Llama, and Mistral and others that are written under its name.
    Llama,
    /// Llama with biases on queries, keys and values.
    Qwen2,
}

const ARCHITECTURE: &str = "general.architecture";
const DEFAULT_THETA: f64 = 10_000.0;

/// Keys below an architecture's name that are understood.
const KNOWN: [&str; 20] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_used_count",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    // How the original was laid out; rows of queries and keys alternate in both.
    "tensor_data_layout",
    "vocab_size",
];

impl Arch {
    pub(super) fn of(keys: Keys<'_>) -> Result<Self, ImportFault> {
        match keys.text(ARCHITECTURE)? {
            "llama" => Ok(Self::Llama),
            "qwen2" => Ok(Self::Qwen2),
            found => Err(ImportFault::Unsupported {
                key: ARCHITECTURE.to_owned(),
                found: format!("`{found}`"),
                supported: "`llama`, `qwen2`",
            }),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
        }
    }

    /// Whether rows of queries and keys alternate between the rotary halves.
    pub(super) fn has_rotary_pairs(self) -> bool {
        self == Self::Llama
    }

    fn key(self, name: &str) -> String {
        format!("{}.{name}", self.name())
    }
}

/// The text of a `config.json`.
pub(super) fn config(
    arch: Arch,
    keys: Keys<'_>,
    tensors: &[GgufTensor],
    factors: Option<&[f32]>,
    dtype: Dtype,
) -> Result<String, ImportFault> {
    refuse_unknown(arch, keys)?;
    refuse_experts(arch, keys)?;
    let size = |name| keys.size(&arch.key(name));
    let heads = size("attention.head_count")?;
    let hidden = size("embedding_length")?;
    let head_dim = head_dim(arch, keys, hidden, heads)?;
    let theta = keys.float_or_none(&arch.key("rope.freq_base"))?;
    let theta = theta.unwrap_or(DEFAULT_THETA);
    let kv_heads = keys.size_or_none(&arch.key("attention.head_count_kv"))?;
    let eps_key = arch.key("attention.layer_norm_rms_epsilon");
    let eps = keys.float_or_none(&eps_key)?;
    let eps = eps.ok_or(ImportFault::MissingKey { key: eps_key })?;
    let has = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
    let mut config = json!({
        "architectures": [arch.class()],
        "model_type": arch.name(),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": size("feed_forward_length")?,
        "num_hidden_layers": size("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads.unwrap_or(heads),
        "head_dim": head_dim,
        "vocab_size": vocab_size(arch, keys, tensors)?,
        "max_position_embeddings": size("context_length")?,
        "rms_norm_eps": eps,
        "rope_theta": theta,
        "rope_scaling": rope_scaling(arch, keys, theta, head_dim, factors)?,
        "tie_word_embeddings": !has("output.weight"),
        "attention_dropout": 0.0,
        "use_cache": true,
        "torch_dtype": dtype_name(dtype),
    });
    if let Some(map) = config.as_object_mut() {
        if arch == Arch::Llama {
            let attention_bias = has("blk.0.attn_q.bias");
            map.insert("attention_bias".to_owned(), attention_bias.into());
            map.insert("mlp_bias".to_owned(), has("blk.0.ffn_up.bias").into());
        }
        map.extend(special_ids(keys)?);
    }
    Ok(format!("{config:#}\n"))
}

fn refuse_unknown(arch: Arch, keys: Keys<'_>) -> Result<(), ImportFault> {
    let prefix = arch.key("");
    let mut own = keys.0.keys().filter_map(|key| key.strip_prefix(&prefix));
    match own.find(|name| !KNOWN.contains(name)) {
        None => Ok(()),
        Some(name) => Err(ImportFault::UnknownKey {
            key: arch.key(name),
        }),
    }
}

fn refuse_experts(arch: Arch, keys: Keys<'_>) -> Result<(), ImportFault> {
    let key = arch.key("expert_count");
    match keys.size_or_none(&key)? {
        None | Some(0) => Ok(()),
        Some(count) => Err(ImportFault::Unsupported {
            key,
            found: count.to_string(),
            supported: "0",
        }),
    }
}

fn head_dim(arch: Arch, keys: Keys<'_>, hidden: u64, heads: u64) -> Result<u64, ImportFault> {
    let of_key = keys.size_or_none(&arch.key("attention.key_length"))?;
    let head_dim = match of_key {
        Some(head_dim) => head_dim,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    for (name, supported) in [
        ("attention.value_length", "the length of keys"),
        ("rope.dimension_count", "all dimensions of a head"),
    ] {
        let key = arch.key(name);
        if let Some(found) = keys.size_or_none(&key)?
            && found != head_dim
        {
            return Err(ImportFault::Unsupported {
                key,
                found: found.to_string(),
                supported,
            });
        }
    }
    Ok(head_dim)
}

/// The rows of the token table, which are the metadata's word too if they say one.
fn vocab_size(arch: Arch, keys: Keys<'_>, tensors: &[GgufTensor]) -> Result<u64, ImportFault> {
    let key = arch.key("vocab_size");
    if let Some(size) = keys.size_or_none(&key)? {
        return Ok(size);
    }
    let mut tables = tensors
        .iter()
        .filter(|tensor| tensor.name == "token_embd.weight");
    let rows = tables
        .next()
        .and_then(|table| table.shape.dims().first().copied());
    rows.ok_or(ImportFault::MissingKey { key })
}

fn rope_scaling(
    arch: Arch,
    keys: Keys<'_>,
    theta: f64,
    head_dim: u64,
    factors: Option<&[f32]>,
) -> Result<Value, ImportFault> {
    let key = arch.key("rope.scaling.type");
    let kind = keys.text_or_none(&key)?;
    let factor = match keys.float_or_none(&arch.key("rope.scaling.factor"))? {
        Some(factor) => Some(factor),
        None => keys.float_or_none(&arch.key("rope.scale_linear"))?,
    };
    let linear = match (kind, factor) {
        (Some("none"), _) | (None, None) => None,
        (None | Some("linear"), Some(factor)) => Some(factor),
        (Some("linear"), None) => {
            let key = arch.key("rope.scaling.factor");
            return Err(ImportFault::MissingKey { key });
        }
        (Some(found), _) => {
            return Err(ImportFault::Unsupported {
                key,
                found: format!("`{found}`"),
                supported: "`none`, `linear`",
            });
        }
    };
    match (linear, factors) {
        (None | Some(1.0), None) => Ok(Value::Null),
        (Some(factor), None) => Ok(json!({"rope_type": "linear", "factor": factor})),
        (None | Some(1.0), Some(factors)) => llama3(theta, head_dim, factors),
        (Some(_), Some(_)) => Err(ImportFault::RopeFactors),
    }
}

/// The llama3 rule that gives these factors, with the constants that all its
/// models have: 1 and 4 of 8192 positions.
fn llama3(theta: f64, head_dim: u64, factors: &[f32]) -> Result<Value, ImportFault> {
    /// Factors were computed in f32 by another program.
    const TOLERANCE: f32 = 1e-5;
    let head_dim = usize::try_from(head_dim).map_err(|_| ImportFault::RopeFactors)?;
    if factors.len() != head_dim / 2 {
        return Err(ImportFault::RopeFactors);
    }
    if factors.iter().all(|&factor| (factor - 1.0).abs() <= 0.0) {
        return Ok(Value::Null);
    }
    let factor = factors.iter().copied().fold(1.0, f32::max).round();
    let rope = RopeSpec {
        theta,
        kind: RopeKind::Llama3 {
            factor: factor.into(),
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 8192,
        },
    };
    let plain = RopeSpec::plain(theta).inv_freq(head_dim);
    let scaled = rope.inv_freq(head_dim);
    let agrees = |((&factor, &plain), &scaled): ((&f32, &f32), &f32)| {
        (plain / factor - scaled).abs() <= TOLERANCE * scaled
    };
    if !factors.iter().zip(&plain).zip(&scaled).all(agrees) {
        return Err(ImportFault::RopeFactors);
    }
    Ok(json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }))
}

/// The ids of special tokens, null where the metadata have none.
fn special_ids(keys: Keys<'_>) -> Result<Map<String, Value>, ImportFault> {
    let mut ids = Map::new();
    for (name, key) in [
        ("bos_token_id", "tokenizer.ggml.bos_token_id"),
        ("eos_token_id", "tokenizer.ggml.eos_token_id"),
        ("pad_token_id", "tokenizer.ggml.padding_token_id"),
    ] {
        ids.insert(name.to_owned(), keys.size_or_none(key)?.into());
    }
    Ok(ids)
}

/// The text of a `generation_config.json`: a turn's end ends a text too.
pub(super) fn generation_config(keys: Keys<'_>) -> Result<String, ImportFault> {
    let mut ids = special_ids(keys)?;
    ids.retain(|_, id| !id.is_null());
    let eos = keys.size_or_none("tokenizer.ggml.eos_token_id")?;
    let end_of_turn = keys.size_or_none("tokenizer.ggml.eot_token_id")?;
    if let (Some(eos), Some(end_of_turn)) = (eos, end_of_turn)
        && eos != end_of_turn
    {
        ids.insert("eos_token_id".to_owned(), json!([eos, end_of_turn]));
    }
    Ok(format!("{:#}\n", Value::Object(ids)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The factors that a GGUF file of Llama 3.2 1B has, by the rule as its
    /// authors published it.
    fn factors(factor: f64, theta: f64, head_dim: u32) -> Vec<f32> {
        let pairs = (0..head_dim / 2).map(f64::from);
        let factors = pairs.map(|pair| {
            let wavelength = std::f64::consts::TAU * theta.powf(2.0 * pair / f64::from(head_dim));
            let smooth = (8192.0 / wavelength - 1.0) / 3.0;
            1.0 / ((1.0 - smooth.clamp(0.0, 1.0)) / factor + smooth.clamp(0.0, 1.0))
        });
        #[expect(clippy::cast_possible_truncation, reason = "a file has f32")]
        factors.map(|factor| factor as f32).collect()
    }

    #[test]
    fn the_llama3_rule_is_recognised_by_its_factors() {
        for (factor, head_dim) in [(8.0, 128), (32.0, 64)] {
            let made = factors(factor, 500_000.0, head_dim);
            let scaling = llama3(500_000.0, head_dim.into(), &made).expect("the rule");
            assert_eq!(scaling["factor"], factor);
            assert_eq!(scaling["rope_type"], "llama3");
        }
    }

    #[test]
    fn other_factors_are_refused_and_ones_are_no_scaling() {
        let mut made = factors(8.0, 500_000.0, 128);
        made[30] *= 1.001;
        assert!(llama3(500_000.0, 128, &made).is_err());
        assert!(llama3(10_000.0, 128, &factors(8.0, 500_000.0, 128)).is_err());
        assert!(llama3(500_000.0, 64, &made).is_err());
        assert!(llama3(500_000.0, 128, &[f32::NAN; 64]).is_err());
        assert!(matches!(llama3(1e4, 8, &[1.0; 4]), Ok(Value::Null)));
    }
}
