//! Reading a `config.json`, and writing one.
//!
//! Defaults are those of the family when the key came up: a first-generation
//! Llama has neither `num_key_value_heads` nor `rope_theta`.

use serde_json::{Map, Value, json};
use tensor::Dtype;

use crate::keys::Keys;
use crate::{Family, ModelSpec, RopeKind, RopeSpec, SpecError};

/// Keys that change what a model computes, with the values under which they do not.
///
/// Families that grew out of Llama are often published under its name with one
/// of these set; to ignore it would give fluent nonsense.
const NEUTRAL_ONLY: &[(&str, &[Neutral])] = &[
    ("attention_dropout", &[Neutral::Zero]),
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
    ("alibi", &[Neutral::False]),
    ("no_rope_layers", &[]),
    ("attention_chunk_size", &[]),
    ("num_experts", &[Neutral::Zero, Neutral::One]),
    ("num_local_experts", &[Neutral::Zero, Neutral::One]),
    ("quantization_config", &[]),
    ("is_encoder_decoder", &[Neutral::False]),
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
        // A byte order mark is no JSON, but editors leave one.
        let json_text = json_text.trim_start_matches('\u{feff}');
        let value =
            serde_json::from_str(json_text).map_err(|source| SpecError::NotJson { source })?;
        let top = Keys::top(&value)?;
        let family = family(&top)?;
        refuse_variants(&top)?;
        let spec = match family {
            Family::Llama => llama(&top)?,
        };
        spec.check()?;
        Ok(spec)
    }

    /// The text of a `config.json` that [`ModelSpec::from_config`] reads back equal.
    ///
    /// Spelled as version 4 of the format, which every reader knows.
    pub fn config_json(&self) -> String {
        let mut config = json!({
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": self.attention_bias,
            "bos_token_id": self.bos,
            "eos_token_id": eos_value(&self.eos),
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": shortest(self.initializer_range),
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.max_positions,
            "mlp_bias": self.mlp_bias,
            "model_type": "llama",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": shortest(self.rms_norm_eps),
            "rope_scaling": rope_scaling(&self.rope),
            "rope_theta": self.rope.theta,
            "tie_word_embeddings": self.tied,
            "use_cache": true,
            "vocab_size": self.vocab,
        });
        if let (Some(dtype), Some(map)) = (self.dtype.and_then(dtype_name), config.as_object_mut())
        {
            map.insert("torch_dtype".to_owned(), Value::from(dtype));
        }
        format!("{config:#}\n")
    }
}

fn family(top: &Keys<'_>) -> Result<Family, SpecError> {
    let model_type = top
        .text("model_type")?
        .ok_or_else(|| top.missing("model_type"))?;
    if model_type != "llama" {
        let found = Value::from(model_type);
        return Err(top.unsupported("model_type", &found, "\"llama\""));
    }
    // The earliest Llama configs spell it LLaMAForCausalLM.
    let is_causal = |name: &Value| {
        name.as_str()
            .is_some_and(|name| name.eq_ignore_ascii_case("LlamaForCausalLM"))
    };
    match top.value("architectures") {
        Some(names)
            if !names
                .as_array()
                .is_some_and(|names| names.iter().all(is_causal)) =>
        {
            Err(top.unsupported("architectures", names, "[\"LlamaForCausalLM\"]"))
        }
        _ => Ok(Family::Llama),
    }
}

fn refuse_variants(top: &Keys<'_>) -> Result<(), SpecError> {
    for &(key, neutral) in NEUTRAL_ONLY {
        let Some(value) = top.value(key) else {
            continue;
        };
        if !neutral.iter().any(|neutral| neutral.is(value)) {
            let names = neutral.iter().map(|neutral| neutral.name());
            let supported: Vec<_> = names.chain(["null"]).collect();
            return Err(top.unsupported(key, value, &supported.join(" or ")));
        }
    }
    refuse_windows(top)
}

fn refuse_windows(top: &Keys<'_>) -> Result<(), SpecError> {
    if let Some(window) = top.value("sliding_window")
        && top.flag_or("use_sliding_window", true)?
    {
        return Err(top.unsupported("sliding_window", window, "null"));
    }
    if let Some(types) = top.value("layer_types") {
        let is_full = |name: &Value| name.as_str() == Some("full_attention");
        if !types
            .as_array()
            .is_some_and(|types| types.iter().all(is_full))
        {
            return Err(top.unsupported("layer_types", types, "\"full_attention\" for each layer"));
        }
    }
    Ok(())
}

fn llama(top: &Keys<'_>) -> Result<ModelSpec, SpecError> {
    check_activation(top)?;
    let hidden = top.size("hidden_size")?;
    let heads = top.size("num_attention_heads")?;
    let max_positions = top.size_or("max_position_embeddings", 2048)?;
    Ok(ModelSpec {
        family: Family::Llama,
        hidden,
        intermediate: top.size("intermediate_size")?,
        num_layers: top.size("num_hidden_layers")?,
        heads,
        kv_heads: top.size_or("num_key_value_heads", heads)?,
        head_dim: head_dim(top, hidden, heads)?,
        vocab: top.size("vocab_size")?,
        rms_norm_eps: top.positive_or("rms_norm_eps", 1e-6)?,
        rope: RopeSpec::from_keys(top, max_positions)?,
        attention_bias: top.flag_or("attention_bias", false)?,
        mlp_bias: top.flag_or("mlp_bias", false)?,
        tied: top.flag_or("tie_word_embeddings", false)?,
        max_positions,
        bos: token_ids(top, "bos_token_id", 1)?.first().copied(),
        eos: token_ids(top, "eos_token_id", 2)?,
        dtype: dtype(top)?,
        initializer_range: top.positive_or("initializer_range", 0.02)?,
    })
}

fn check_activation(top: &Keys<'_>) -> Result<(), SpecError> {
    match top.text("hidden_act")? {
        // Two names of one function.
        None | Some("silu" | "swish") => Ok(()),
        Some(other) => Err(top.unsupported("hidden_act", &Value::from(other), "\"silu\"")),
    }
}

fn head_dim(top: &Keys<'_>, hidden: usize, heads: usize) -> Result<usize, SpecError> {
    if let Some(head_dim) = top.size_or_none("head_dim")? {
        return Ok(head_dim);
    }
    if !hidden.is_multiple_of(heads) {
        return Err(SpecError::Inconsistent {
            key: "hidden_size",
            value: hidden as u64,
            rule: format!("which {heads} heads do not divide, and there is no `head_dim`"),
        });
    }
    Ok(hidden / heads)
}

/// One id or a list of them. Early configs write -1 for none.
fn token_ids(top: &Keys<'_>, key: &str, default: u32) -> Result<Vec<u32>, SpecError> {
    const EXPECTED: &str = "a token id or a list of them";
    if !top.has(key) {
        return Ok(vec![default]);
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

fn dtype_name(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::BF16 => Some("bfloat16"),
        Dtype::F16 => Some("float16"),
        Dtype::F32 => Some("float32"),
        _ => None,
    }
}

fn eos_value(eos: &[u32]) -> Value {
    match eos {
        [] => Value::Null,
        [one] => Value::from(*one),
        many => Value::from(many),
    }
}

fn rope_scaling(rope: &RopeSpec) -> Value {
    match rope.kind {
        RopeKind::Default => Value::Null,
        RopeKind::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeKind::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_positions,
        } => {
            let mut scaling = Map::new();
            scaling.insert("rope_type".to_owned(), Value::from("llama3"));
            scaling.insert("factor".to_owned(), Value::from(factor));
            scaling.insert("low_freq_factor".to_owned(), Value::from(low_freq_factor));
            scaling.insert("high_freq_factor".to_owned(), Value::from(high_freq_factor));
            scaling.insert(
                "original_max_position_embeddings".to_owned(),
                Value::from(original_max_positions),
            );
            Value::Object(scaling)
        }
    }
}

/// An f32 as the shortest decimal that reads back equal, not with the digits
/// that widening it to f64 brings up.
fn shortest(number: f32) -> f64 {
    number
        .to_string()
        .parse()
        .expect("a printed float reads back")
}
