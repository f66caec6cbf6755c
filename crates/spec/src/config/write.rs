//! Writing a `config.json` that this program and others read.

use serde_json::{Map, Value, json};
use tensor::Dtype;

use crate::{
    Activation, Arrangement, Family, ModelSpec, Positions, RopeKind, RopeSpec, SlidingWindow,
};

pub(super) fn config_json(spec: &ModelSpec) -> String {
    let mut config = if spec.family == Family::Falcon {
        falcon(spec)
    } else {
        gated(spec)
    };
    let common = json!({
        "bos_token_id": spec.bos,
        "eos_token_id": eos_value(&spec.eos),
        "hidden_size": spec.hidden,
        "initializer_range": shortest(spec.initializer_range),
        "max_position_embeddings": spec.max_positions,
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.num_layers,
        "tie_word_embeddings": spec.tied,
        "use_cache": true,
        "vocab_size": spec.vocab,
    });
    add(&mut config, common);
    if let Positions::Rope(rope) = &spec.positions {
        let keys = json!({"rope_scaling": rope_scaling(rope), "rope_theta": rope.theta});
        add(&mut config, keys);
    }
    if let Some(dtype) = spec.dtype.and_then(dtype_name) {
        add(&mut config, json!({"torch_dtype": dtype}));
    }
    config.sort_keys();
    format!("{:#}\n", Value::Object(config))
}

fn add(config: &mut Map<String, Value>, keys: Value) {
    if let Value::Object(keys) = keys {
        config.extend(keys);
    }
}

fn gated(spec: &ModelSpec) -> Map<String, Value> {
    let mut config = Map::new();
    add(
        &mut config,
        json!({
            "head_dim": spec.head_dim,
            "intermediate_size": spec.intermediate,
            "num_key_value_heads": spec.kv_heads,
            "rms_norm_eps": shortest(spec.norm_eps),
        }),
    );
    let own = match spec.family {
        Family::Mistral => json!({
            "architectures": ["MistralForCausalLM"],
            "hidden_act": "silu",
            "model_type": "mistral",
            "sliding_window": spec.window.as_ref().map(|window| window.size),
        }),
        Family::Qwen2 => qwen2(spec),
        Family::Gemma => json!({
            "architectures": ["GemmaForCausalLM"],
            "attention_bias": spec.output_bias,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "model_type": "gemma",
        }),
        Family::Llama | Family::Falcon => json!({
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": spec.output_bias,
            "hidden_act": "silu",
            "mlp_bias": spec.mlp_bias,
            "model_type": "llama",
        }),
    };
    add(&mut config, own);
    config
}

fn qwen2(spec: &ModelSpec) -> Value {
    let mut own = json!({
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "max_window_layers": spec.num_layers,
        "model_type": "qwen2",
        "sliding_window": null,
        "use_sliding_window": false,
    });
    if let Some(SlidingWindow { size, blocks }) = &spec.window {
        let num_full = blocks.iter().take_while(|slides| !**slides).count();
        own["max_window_layers"] = Value::from(num_full);
        own["sliding_window"] = Value::from(*size);
        own["use_sliding_window"] = Value::Bool(true);
        // Only where the number does not say it: readers older than the list exist.
        if blocks[num_full..].contains(&false) {
            let kind = |slides: &bool| if *slides { "sliding" } else { "full" };
            let kinds = blocks
                .iter()
                .map(|slides| format!("{}_attention", kind(slides)));
            own["layer_types"] = kinds.collect();
        }
    }
    own
}

/// The flags follow from the heads and the arrangement: the old architecture has
/// one key/value head or one for each query head.
fn falcon(spec: &ModelSpec) -> Map<String, Value> {
    let is_old_sharing = spec.kv_heads == 1 || spec.kv_heads == spec.heads;
    let is_new = match spec.arrangement {
        Arrangement::Sequential => false,
        Arrangement::ParallelOneNorm => !is_old_sharing,
        Arrangement::ParallelTwoNorms => true,
    };
    let mut config = Map::new();
    add(
        &mut config,
        json!({
            "activation": match spec.activation {
                Activation::GeluTanh => "gelu_pytorch_tanh",
                Activation::GeluErf | Activation::Silu => "gelu",
            },
            "alibi": matches!(spec.positions, Positions::Alibi),
            "architectures": ["FalconForCausalLM"],
            "attention_dropout": 0.0,
            "bias": spec.mlp_bias,
            "ffn_hidden_size": spec.intermediate,
            "hidden_dropout": 0.0,
            "layer_norm_epsilon": shortest(spec.norm_eps),
            "model_type": "falcon",
            "multi_query": spec.kv_heads == 1,
            "new_decoder_architecture": is_new,
            "num_kv_heads": if is_new { spec.kv_heads } else { spec.heads },
            "parallel_attn": spec.arrangement != Arrangement::Sequential,
        }),
    );
    let num_norms = match spec.arrangement {
        Arrangement::Sequential => return config,
        Arrangement::ParallelOneNorm => 1,
        Arrangement::ParallelTwoNorms => 2,
    };
    add(&mut config, json!({"num_ln_in_parallel_attn": num_norms}));
    config
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
