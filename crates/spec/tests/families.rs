//! What configs of other families than Llama mean, and which are refused.

use serde_json::{Value, json};
use spec::{Activation, Arrangement, Family, ModelSpec, Positions, SlidingWindow};

/// `base` changed by `change`; `null` stays as `null`, and `"absent"` removes.
fn changed(mut base: Value, change: &Value) -> String {
    for (key, value) in change.as_object().expect("an object of changes") {
        base[key] = value.clone();
    }
    let map = base.as_object_mut().expect("an object");
    map.retain(|_, value| value != "absent");
    base.to_string()
}

fn gated(model_type: &str) -> Value {
    json!({
        "model_type": model_type, "hidden_size": 64, "intermediate_size": 176,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 100,
    })
}

fn falcon() -> Value {
    json!({
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": 64,
        "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 100,
    })
}

#[track_caller]
fn read(base: Value, change: &Value) -> ModelSpec {
    ModelSpec::from_config(&changed(base, change)).expect("a config that is read")
}

#[track_caller]
fn refuses(base: Value, change: &Value, words: &[&str]) {
    let error = ModelSpec::from_config(&changed(base, change)).expect_err("refused");
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

fn names(spec: &ModelSpec, unit: usize) -> Vec<String> {
    let units = spec.units();
    let params = units[unit].params.iter();
    params.map(|param| param.name.clone()).collect()
}

#[test]
fn mistral_has_a_window_in_every_block_unless_it_is_null() {
    let window = |change| read(gated("mistral"), &change).window;
    let whole = |size| {
        let blocks = vec![true; 3];
        Some(SlidingWindow { size, blocks })
    };
    assert_eq!(window(json!({})), whole(4096));
    assert_eq!(window(json!({"sliding_window": 7})), whole(7));
    assert_eq!(window(json!({"sliding_window": null})), None);
    let sliding = json!([
        "sliding_attention",
        "sliding_attention",
        "sliding_attention"
    ]);
    assert_eq!(window(json!({"layer_types": sliding})), whole(4096));
    let mixed = json!(["full_attention", "sliding_attention", "sliding_attention"]);
    refuses(
        gated("mistral"),
        &json!({"layer_types": mixed}),
        &["layer_types", "sliding_attention"],
    );
    refuses(
        gated("mistral"),
        &json!({"use_sliding_window": false}),
        &["use_sliding_window"],
    );
    refuses(
        gated("mistral"),
        &json!({"sliding_window": 0}),
        &["sliding_window"],
    );
    refuses(
        gated("mistral"),
        &json!({"attention_bias": true}),
        &["attention_bias"],
    );
}

#[test]
fn mistral_has_eight_key_heads_where_no_key_says_how_many() {
    let heads = json!({"num_attention_heads": 16, "num_key_value_heads": "absent"});
    assert_eq!(read(gated("mistral"), &heads).kv_heads, 8);
    let heads = json!({"num_attention_heads": 16, "num_key_value_heads": null});
    assert_eq!(read(gated("mistral"), &heads).kv_heads, 16);
}

#[test]
fn qwen2_has_biases_that_no_key_announces() {
    let spec = read(gated("qwen2"), &json!({}));
    assert!(spec.qkv_bias && !spec.output_bias && !spec.mlp_bias && !spec.tied);
    assert_eq!((spec.bos, spec.eos.len()), (None, 0));
    let names = names(&spec, 1);
    let biases: Vec<_> = names.iter().filter(|name| name.ends_with("bias")).collect();
    let expected = ["q", "k", "v"].map(|name| format!("model.layers.0.self_attn.{name}_proj.bias"));
    assert_eq!(biases, expected.each_ref());
}

#[test]
fn the_window_of_qwen2_is_off_unless_switched_on() {
    let window = |change| read(gated("qwen2"), &change).window;
    assert_eq!(window(json!({"sliding_window": 5})), None);
    let off = json!({"use_sliding_window": false, "sliding_window": 5, "max_window_layers": 0});
    assert_eq!(window(off), None);
    let on = |num_full: usize| {
        let change = json!({"use_sliding_window": true, "sliding_window": 5,
            "max_window_layers": num_full});
        window(change).map(|window| window.blocks)
    };
    assert_eq!(on(0), Some(vec![true; 3]));
    assert_eq!(on(2), Some(vec![false, false, true]));
    assert_eq!(on(3), None);
    // The default is more blocks than there are.
    assert_eq!(window(json!({"use_sliding_window": true})), None);
}

#[test]
fn a_list_of_layer_types_wins_over_their_number() {
    let types = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    let on = json!({"use_sliding_window": true, "sliding_window": 5, "layer_types": types});
    let spec = read(gated("qwen2"), &on);
    let sizes: Vec<_> = (0..3).map(|layer| spec.window_of(layer)).collect();
    assert_eq!(sizes, [Some(5), None, Some(5)]);
    let refused = |change, words: &[&str]| refuses(gated("qwen2"), &change, words);
    refused(
        json!({"layer_types": types}),
        &["layer_types", "use_sliding_window"],
    );
    refused(
        json!({"layer_types": ["full_attention"]}),
        &["layer_types", "3 layers"],
    );
    let chunked = json!(["full_attention", "full_attention", "chunked_attention"]);
    refused(
        json!({"layer_types": chunked}),
        &["layer_types", "chunked_attention"],
    );
}

#[test]
fn gemma_has_the_defaults_of_its_family() {
    let spec = read(gated("gemma"), &json!({"num_key_value_heads": 1}));
    assert_eq!((spec.head_dim, spec.tied), (256, true));
    assert_eq!(spec.activation, Activation::GeluTanh);
    assert_eq!((spec.bos, &spec.eos[..]), (Some(2), &[1][..]));
    assert_eq!(spec.norm_offset().to_bits(), 1_f32.to_bits());
    assert_eq!(spec.embedding_scale().to_bits(), 8_f64.to_bits());
    let sixteen = json!({"num_attention_heads": 16, "num_key_value_heads": "absent"});
    assert_eq!(read(gated("gemma"), &sixteen).kv_heads, 16);
    for act in ["gelu", "gelu_pytorch_tanh"] {
        read(
            gated("gemma"),
            &json!({"hidden_act": act, "hidden_activation": null}),
        );
    }
    let refused = |change, words: &[&str]| refuses(gated("gemma"), &change, words);
    refused(json!({"hidden_act": "silu"}), &["hidden_act", "silu"]);
    refused(json!({"hidden_activation": "gelu"}), &["hidden_activation"]);
    refused(
        json!({"query_pre_attn_scalar": 256}),
        &["query_pre_attn_scalar"],
    );
    refused(
        json!({"use_bidirectional_attention": true}),
        &["use_bidirectional_attention"],
    );
}

#[test]
fn falcon_is_a_tied_7b_where_no_key_says_otherwise() {
    let spec = read(falcon(), &json!({}));
    assert_eq!(spec.family, Family::Falcon);
    assert_eq!(
        (spec.kv_heads, spec.intermediate, spec.tied),
        (1, 256, true)
    );
    assert_eq!(spec.arrangement, Arrangement::ParallelOneNorm);
    assert_eq!(spec.activation, Activation::GeluErf);
    assert_eq!((spec.bos, &spec.eos[..]), (Some(11), &[11][..]));
    let block = [
        "input_layernorm.weight",
        "input_layernorm.bias",
        "self_attention.query_key_value.weight",
        "self_attention.dense.weight",
        "mlp.dense_h_to_4h.weight",
        "mlp.dense_4h_to_h.weight",
    ];
    assert_eq!(
        names(&spec, 1),
        block.map(|name| format!("transformer.h.0.{name}"))
    );
    assert_eq!(names(&spec, 0), ["transformer.word_embeddings.weight"]);
    assert_eq!(
        names(&spec, 4),
        ["transformer.ln_f.weight", "transformer.ln_f.bias"]
    );
    assert_eq!(spec.units()[1].params[2].rows, 6 * 16);
}

#[test]
fn the_new_decoder_architecture_shares_in_groups_under_two_norms_or_one() {
    let new = |change: Value| {
        let mut config = falcon();
        config["new_decoder_architecture"] = Value::Bool(true);
        read(config, &change)
    };
    let spec = new(json!({"num_kv_heads": 2}));
    assert_eq!(
        (spec.kv_heads, spec.arrangement),
        (2, Arrangement::ParallelTwoNorms)
    );
    let norms = names(&spec, 1)
        .into_iter()
        .filter(|name| name.contains(".ln_"));
    let expected = [
        "ln_attn.weight",
        "ln_attn.bias",
        "ln_mlp.weight",
        "ln_mlp.bias",
    ];
    assert!(norms.eq(expected.map(|name| format!("transformer.h.0.{name}"))));
    assert_eq!(new(json!({})).kv_heads, 4);
    let one = new(json!({"num_kv_heads": 2, "num_ln_in_parallel_attn": 1}));
    assert_eq!(one.arrangement, Arrangement::ParallelOneNorm);
    let refused = |change: Value, words: &[&str]| {
        let mut config = falcon();
        config["new_decoder_architecture"] = Value::Bool(true);
        refuses(config, &change, words);
    };
    refused(
        json!({"num_ln_in_parallel_attn": 3}),
        &["num_ln_in_parallel_attn", "3"],
    );
    refused(json!({"parallel_attn": false}), &["parallel_attn"]);
    refused(json!({"num_kv_heads": 3}), &["num_kv_heads", "3", "4"]);
}

#[test]
fn a_falcon_rw_is_sequential_with_linear_biases() {
    let rw = json!({"alibi": true, "bias": true, "multi_query": false, "parallel_attn": false});
    let spec = read(falcon(), &rw);
    assert_eq!((spec.kv_heads, spec.positions), (4, Positions::Alibi));
    assert_eq!(spec.arrangement, Arrangement::Sequential);
    assert!(spec.qkv_bias && spec.output_bias && spec.mlp_bias);
    assert!(spec.inv_freq().is_empty());
    let block = names(&spec, 1);
    assert_eq!(block.len(), 12);
    assert!(block.contains(&"transformer.h.0.post_attention_layernorm.bias".to_owned()));
    let other = json!({"multi_query": false, "num_kv_heads": 2});
    refuses(
        falcon(),
        &other,
        &["num_kv_heads", "2", "new_decoder_architecture"],
    );
}

#[test]
fn the_first_releases_had_names_and_defaults_of_their_own() {
    let original = |model_type: &str, change: Value| {
        let mut config = json!({"model_type": model_type, "architectures": ["RWForCausalLM"],
            "n_embed": 64, "n_layer": 3, "n_head": 4, "vocab_size": 100,
            "auto_map": {"AutoConfig": "configuration_RW.RWConfig"}});
        for (key, value) in change.as_object().expect("an object of changes") {
            config[key] = value.clone();
        }
        read(config, &json!({}))
    };
    let flags = json!({"multi_query": true, "parallel_attn": true,
        "bos_token_id": 11, "eos_token_id": 11});
    assert_eq!(
        original("RefinedWebModel", flags),
        read(falcon(), &json!({}))
    );
    let plain = original("RefinedWebModel", json!({}));
    assert_eq!(
        (plain.kv_heads, plain.arrangement),
        (4, Arrangement::Sequential)
    );
    assert_eq!((plain.bos, &plain.eos[..]), (Some(1), &[2][..]));
    let groups = original("RefinedWeb", json!({"n_head_kv": 2, "parallel_attn": true}));
    assert_eq!(
        (groups.kv_heads, groups.arrangement),
        (2, Arrangement::ParallelTwoNorms)
    );
    // The older name implies the architecture under any type.
    let implied = original(
        "RefinedWebModel",
        json!({"n_head_kv": 2, "parallel_attn": true}),
    );
    assert_eq!(implied, groups);
}

#[test]
fn both_spellings_are_read_under_any_type_and_must_not_disagree() {
    let old = json!({"hidden_size": "absent", "num_hidden_layers": "absent",
        "num_attention_heads": "absent", "n_embed": 64, "n_layer": 3, "n_head": 4});
    assert_eq!(read(falcon(), &old), read(falcon(), &json!({})));
    for (older, name) in [
        ("n_layer", "num_hidden_layers"),
        ("n_head", "num_attention_heads"),
        ("n_embed", "hidden_size"),
    ] {
        refuses(falcon(), &json!({older: 5}), &[older, "5", name]);
        refuses(falcon(), &json!({name: "absent"}), &["no", name]);
    }
}

#[test]
fn what_falcon_cannot_be_is_refused_by_its_key() {
    let refused = |change, words: &[&str]| refuses(falcon(), &change, words);
    refused(
        json!({"activation": "relu"}),
        &["activation", "relu", "gelu"],
    );
    refused(
        json!({"num_ln_in_parallel_attn": 2}),
        &["num_ln_in_parallel_attn", "2"],
    );
    refused(
        json!({"hidden_size": 66}),
        &["hidden_size", "66", "4 heads"],
    );
    refused(
        json!({"rope_scaling": {"rope_type": "yarn", "factor": 2}}),
        &["rope_type", "yarn"],
    );
    refused(json!({"sliding_window": 64}), &["sliding_window"]);
    refused(json!({"hidden_dropout": 0.1}), &["hidden_dropout"]);
    refused(
        json!({"apply_residual_connection_post_layernorm": true}),
        &["apply_residual_connection_post_layernorm"],
    );
    refuses(gated("llama"), &json!({"alibi": true}), &["alibi"]);
    refuses(
        gated("mistral"),
        &json!({"parallel_attn": true}),
        &["parallel_attn"],
    );
}
