//! Reading a `config.json`, and writing one.
//!
//! Defaults are those of the family when the key came up: a first-generation
//! Llama has neither `num_key_value_heads` nor `rope_theta`.

mod falcon;
mod gated;
mod quantization;
mod window;
mod write;

use serde_json::Value;
use tensor::Dtype;

pub use quantization::Quantization;

use crate::keys::Keys;
use crate::{Family, ModelSpec, SpecError};

/// Keys that change what a model computes, with the values under which they do not.
///
/// Families that grew out of Llama are often published under its name with one
/// of these set; to ignore it would give fluent nonsense.
const NEUTRAL_ONLY: &[(&str, &[Neutral])] = &[
    ("attention_dropout", &[Neutral::Zero]),
    ("hidden_dropout", &[Neutral::Zero]),
    ("attn_logit_softcapping", &[]),
    ("final_logit_softcapping", &[]),
    ("logit_scale", &[Neutral::One]),
    ("logits_scaling", &[Neutral::One]),
    ("residual_multiplier", &[Neutral::One]),
    ("embedding_multiplier", &[Neutral::One]),
    ("attention_multiplier", &[]),
    ("query_pre_attn_scalar", &[]),
    ("qk_norm", &[Neutral::False]),
    ("use_qk_norm", &[Neutral::False]),
    ("qk_layernorm", &[Neutral::False]),
    ("no_rope_layers", &[]),
    ("attention_chunk_size", &[]),
    ("num_experts", &[Neutral::Zero, Neutral::One]),
    ("num_local_experts", &[Neutral::Zero, Neutral::One]),
    ("is_encoder_decoder", &[Neutral::False]),
    ("use_bidirectional_attention", &[Neutral::False]),
    (
        "apply_residual_connection_post_layernorm",
        &[Neutral::False],
    ),
];

/// Keys of one family that others must not set.
const FALCON_ONLY: &[(&str, &[Neutral])] = &[
    ("alibi", &[Neutral::False]),
    ("multi_query", &[Neutral::False]),
    ("parallel_attn", &[Neutral::False]),
    ("new_decoder_architecture", &[Neutral::False]),
];

#[derive(Debug, Clone, Copy)]
enum Neutral {
    Zero,
    One,
    False,
}

impl Neutral {
    fn is(self, value: &Value) -> bool {
        match self {
            Self::Zero => value.as_f64() == Some(0.0),
            Self::One => value.as_f64() == Some(1.0),
            Self::False => value == &Value::Bool(false),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Zero => "0",
            Self::One => "1",
            Self::False => "false",
        }
    }
}

impl ModelSpec {
    /// Reads the text of a `config.json`.
    ///
    /// ```
    /// let spec = spec::ModelSpec::from_config(
    ///     r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 176,
    ///         "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}"#,
    /// )?;
    /// assert_eq!((spec.kv_heads, spec.head_dim, spec.tied), (4, 16, false));
    /// # Ok::<(), spec::SpecError>(())
    /// ```
    pub fn from_config(json_text: &str) -> Result<Self, SpecError> {
        let value = parse(json_text)?;
        let top = Keys::top(&value)?;
        let family = family(&top)?;
        refuse_unless_neutral(&top, NEUTRAL_ONLY)?;
        Quantization::read(&top)?;
        let spec = if family == Family::Falcon {
            falcon::read(&top)?
        } else {
            refuse_unless_neutral(&top, FALCON_ONLY)?;
            gated::read(&top, family)?
        };
        spec.check()?;
        Ok(spec)
    }

    /// The text of a `config.json` that [`ModelSpec::from_config`] reads back equal.
    ///
    /// Spelled as version 4 of the format, which every reader knows.
    pub fn config_json(&self) -> String {
        write::config_json(self)
    }
}

fn parse(json_text: &str) -> Result<Value, SpecError> {
    // A byte order mark is no JSON, but editors leave one.
    let json_text = json_text.trim_start_matches('\u{feff}');
    serde_json::from_str(json_text).map_err(|source| SpecError::NotJson { source })
}

/// Names in `model_type`, the family, and the classes that `architectures` may
/// name. The earliest Llama configs spell theirs `LLaMAForCausalLM`, so case does not
/// count; the first Falcons had code and names of their own.
const MODEL_TYPES: &[(&str, Family, &[&str])] = &[
    ("llama", Family::Llama, &["LlamaForCausalLM"]),
    ("mistral", Family::Mistral, &["MistralForCausalLM"]),
    ("qwen2", Family::Qwen2, &["Qwen2ForCausalLM"]),
    ("gemma", Family::Gemma, &["GemmaForCausalLM"]),
    ("falcon", Family::Falcon, FALCON_CLASSES),
    ("RefinedWeb", Family::Falcon, FALCON_CLASSES),
    ("RefinedWebModel", Family::Falcon, FALCON_CLASSES),
];

const FALCON_CLASSES: &[&str] = &["FalconForCausalLM", "RWForCausalLM"];

fn family(top: &Keys<'_>) -> Result<Family, SpecError> {
    let model_type = top
        .text("model_type")?
        .ok_or_else(|| top.missing("model_type"))?;
    let known = MODEL_TYPES.iter().find(|(name, ..)| *name == model_type);
    let Some(&(_, family, classes)) = known else {
        let names: Vec<_> = MODEL_TYPES.iter().map(|(name, ..)| quoted(name)).collect();
        let found = Value::from(model_type);
        return Err(top.unsupported("model_type", &found, &names.join(", ")));
    };
    let is_causal = |name: &Value| {
        let name = name.as_str().unwrap_or_default();
        let mut classes = classes.iter();
        classes.any(|class| name.eq_ignore_ascii_case(class))
    };
    match top.value("architectures") {
        Some(names)
            if !names
                .as_array()
                .is_some_and(|names| names.iter().all(is_causal)) =>
        {
            let classes: Vec<_> = classes.iter().map(|class| quoted(class)).collect();
            let supported = format!("[{}]", classes.join(" or "));
            Err(top.unsupported("architectures", names, &supported))
        }
        _ => Ok(family),
    }
}

fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

fn refuse_unless_neutral(
    top: &Keys<'_>,
    keys: &[(&'static str, &[Neutral])],
) -> Result<(), SpecError> {
    for &(key, neutral) in keys {
        let Some(value) = top.value(key) else {
            continue;
        };
        if !neutral.iter().any(|neutral| neutral.is(value)) {
            let names = neutral.iter().map(|neutral| neutral.name());
            let supported: Vec<_> = names.chain(["null"]).collect();
            return Err(top.unsupported(key, value, &supported.join(" or ")));
        }
    }
    Ok(())
}

/// One id or a list of them. Early configs write -1 for none.
fn token_ids(top: &Keys<'_>, key: &str, default: Option<u32>) -> Result<Vec<u32>, SpecError> {
    const EXPECTED: &str = "a token id or a list of them";
    if !top.has(key) {
        return Ok(default.into_iter().collect());
    }
    let id = |value: &Value| -> Result<u32, SpecError> {
        value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| top.bad_value(key, EXPECTED, value))
    };
    match top.value(key) {
        None => Ok(Vec::new()),
        Some(value) if value.as_i64() == Some(-1) => Ok(Vec::new()),
        Some(Value::Array(values)) => values.iter().map(id).collect(),
        Some(value) => Ok(vec![id(value)?]),
    }
}

/// The dtype under its version 5 or version 4 name. Only a hint, so a word that
/// says nothing (`auto`) is no error.
fn dtype(top: &Keys<'_>) -> Result<Option<Dtype>, SpecError> {
    let name = match top.text("dtype")? {
        Some(name) => Some(name),
        None => top.text("torch_dtype")?,
    };
    Ok(match name.map(|name| name.trim_start_matches("torch.")) {
        Some("bfloat16") => Some(Dtype::BF16),
        Some("float16" | "half") => Some(Dtype::F16),
        Some("float32" | "float") => Some(Dtype::F32),
        _ => None,
    })
}

/// `hidden / heads`, where they divide.
fn divided(hidden: usize, heads: usize, otherwise: &str) -> Result<usize, SpecError> {
    if !hidden.is_multiple_of(heads) {
        return Err(SpecError::Inconsistent {
            key: "hidden_size",
            value: hidden as u64,
            rule: format!("which {heads} heads do not divide{otherwise}"),
        });
    }
    Ok(hidden / heads)
}
