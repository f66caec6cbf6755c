//! What a config means, and which ones are refused.

use serde_json::{Value, json};
use spec::{
    ModelSpec, Positions, Preset, Quantization, Role, RopeKind, RopeSpec, SpecError, UnitKind,
};
use tensor::{Dtype, Shape};

/// A config of a first-generation Llama, changed by `change`; `null` removes.
fn config(change: &Value) -> String {
    let mut config = json!({
        "architectures": ["LLaMAForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3,
        "num_attention_heads": 4, "vocab_size": 100, "rms_norm_eps": 1e-6,
        "max_sequence_length": 64, "pad_token_id": -1, "bos_token_id": 0, "eos_token_id": 1,
        "torch_dtype": "float16", "transformers_version": "4.27.0.dev0", "use_cache": true,
    });
    for (key, value) in change.as_object().expect("an object of changes") {
        config[key] = value.clone();
    }
    config.to_string()
}

#[track_caller]
fn read(change: &Value) -> ModelSpec {
    ModelSpec::from_config(&config(change)).expect("a config that is read")
}

/// The rotary positions of a spec.
#[track_caller]
fn rope(spec: &ModelSpec) -> RopeSpec {
    let Positions::Rope(rope) = spec.positions else {
        unreachable!("a Llama turns queries and keys");
    };
    rope
}

#[track_caller]
fn refuses(change: &Value, words: &[&str]) {
    let error = ModelSpec::from_config(&config(change)).expect_err("a config that is refused");
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn a_first_generation_config_has_the_defaults_of_its_time() {
    let spec = read(&json!({}));
    assert_eq!((spec.kv_heads, spec.head_dim), (4, 16));
    assert_eq!(rope(&spec), RopeSpec::plain(10_000.0));
    assert!(!spec.tied && !spec.qkv_bias && !spec.output_bias && !spec.mlp_bias);
    assert_eq!(spec.max_positions, 2048);
    assert_eq!((spec.bos, spec.eos.as_slice()), (Some(0), &[1][..]));
    assert_eq!(spec.dtype, Some(Dtype::F16));
    assert_eq!(spec.norm_eps.to_bits(), 1e-6_f32.to_bits());
}

#[test]
fn head_size_can_differ_from_hidden_over_heads() {
    let spec = read(&json!({"head_dim": 12, "num_key_value_heads": 2}));
    let params = &spec.units()[1].params;
    let shape = |role| {
        params
            .iter()
            .find(|param| param.role == role)
            .unwrap()
            .shape()
    };
    assert_eq!(shape(Role::Query), Shape::new(&[48, 64]));
    assert_eq!(shape(Role::Key), Shape::new(&[24, 64]));
    assert_eq!(shape(Role::Output), Shape::new(&[64, 48]));
    assert_eq!(shape(Role::PostNorm), Shape::new(&[64]));
}

#[test]
fn head_size_given_lets_the_heads_not_divide_the_width() {
    assert_eq!(
        read(&json!({"head_dim": 8, "num_attention_heads": 6})).head_dim,
        8
    );
    refuses(
        &json!({"num_attention_heads": 6}),
        &["hidden_size", "64", "6 heads", "head_dim"],
    );
}

#[test]
fn end_of_text_is_one_token_or_a_list() {
    let eos = |value: Value| read(&json!({"eos_token_id": value})).eos;
    assert_eq!(eos(json!(5)), [5]);
    assert_eq!(eos(json!([5, 6])), [5, 6]);
    assert!(eos(json!(null)).is_empty() && eos(json!(-1)).is_empty());
    refuses(&json!({"eos_token_id": "</s>"}), &["eos_token_id", "</s>"]);
    refuses(&json!({"eos_token_id": [1, -2]}), &["eos_token_id", "-2"]);
}

#[test]
fn dtype_is_a_hint_under_either_name() {
    let dtype = |change: Value| read(&change).dtype;
    assert_eq!(dtype(json!({"dtype": "bfloat16"})), Some(Dtype::BF16));
    assert_eq!(
        dtype(json!({"torch_dtype": "torch.float32"})),
        Some(Dtype::F32)
    );
    assert_eq!(dtype(json!({"torch_dtype": "auto"})), None);
    assert_eq!(dtype(json!({"torch_dtype": null})), None);
}

#[test]
fn both_spellings_of_rope_are_read_and_the_newer_one_wins() {
    let old = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}});
    assert_eq!(rope(&read(&old)).kind, RopeKind::Linear { factor: 2.0 });
    assert_eq!(rope(&read(&old)).theta.to_bits(), 5e5_f64.to_bits());
    let mut both = old;
    both["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 777.0});
    assert_eq!(rope(&read(&both)), RopeSpec::plain(777.0));
    let nested = json!({"rope_parameters":
        {"full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10.0}}});
    assert_eq!(rope(&read(&nested)).kind, RopeKind::Linear { factor: 3.0 });
    let without_theta = json!({"rope_parameters": {"rope_type": "default"}, "rope_theta": 9.0});
    assert_eq!(rope(&read(&without_theta)), RopeSpec::plain(9.0));
    assert_eq!(
        rope(&read(&json!({"rope_scaling": null}))),
        RopeSpec::plain(1e4)
    );
}

#[test]
fn llama3_scaling_is_read_whole_or_refused() {
    let whole = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let kind = RopeKind::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };
    assert_eq!(rope(&read(&json!({"rope_scaling": whole}))).kind, kind);
    for key in ["factor", "low_freq_factor", "high_freq_factor"] {
        let mut broken = whole.clone();
        broken[key] = Value::Null;
        refuses(
            &json!({"rope_scaling": broken}),
            &[&format!("rope_scaling.{key}")],
        );
        broken[key] = json!(0);
        refuses(
            &json!({"rope_scaling": broken}),
            &[&format!("rope_scaling.{key}"), "0"],
        );
    }
    let mut flat = whole;
    flat["high_freq_factor"] = json!(1.0);
    refuses(
        &json!({"rope_scaling": flat}),
        &["high_freq_factor", "low_freq_factor"],
    );
}

#[test]
fn an_unknown_kind_of_rope_is_never_the_default() {
    for kind in ["yarn", "dynamic", "longrope", "su", "mrope"] {
        let scaling = json!({"rope_scaling": {"rope_type": kind, "factor": 2.0}});
        refuses(&scaling, &["rope_scaling.rope_type", kind, "llama3"]);
        let parameters = json!({"rope_parameters": {"rope_type": kind, "factor": 2.0}});
        refuses(&parameters, &["rope_parameters.rope_type", kind]);
    }
    refuses(
        &json!({"rope_scaling": {"factor": 2.0}}),
        &["rope_scaling.rope_type"],
    );
    refuses(&json!({"rope_scaling": [1]}), &["rope_scaling", "[1]"]);
    refuses(
        &json!({"partial_rotary_factor": 0.5}),
        &["partial_rotary_factor", "0.5"],
    );
    let two = json!({"full_attention": {}, "sliding_attention": {}});
    refuses(&json!({"rope_parameters": two}), &["rope_parameters"]);
}

#[test]
fn another_family_is_refused_by_name() {
    for family in ["gemma2", "gemma3_text", "qwen3", "mixtral", "bloom"] {
        refuses(
            &json!({"model_type": family}),
            &["model_type", family, "llama", "gemma", "falcon"],
        );
    }
    refuses(&json!({"model_type": null}), &["no `model_type`"]);
    let classifier = json!({"architectures": ["LlamaForSequenceClassification"]});
    refuses(&classifier, &["architectures", "SequenceClassification"]);
}

#[test]
fn a_key_that_changes_the_computation_is_refused_unless_it_is_off() {
    refuses(
        &json!({"hidden_act": "gelu"}),
        &["hidden_act", "gelu", "silu"],
    );
    refuses(
        &json!({"sliding_window": 4096}),
        &["sliding_window", "4096"],
    );
    refuses(
        &json!({"final_logit_softcapping": 30.0}),
        &["final_logit_softcapping"],
    );
    refuses(
        &json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
        &["quantization_config.quant_method", "gptq", "fp8"],
    );
    refuses(
        &json!({"num_local_experts": 8}),
        &["num_local_experts", "8"],
    );
    refuses(
        &json!({"attention_dropout": 0.1}),
        &["attention_dropout", "0.1"],
    );
    refuses(
        &json!({"layer_types": ["full_attention", "chunked"]}),
        &["layer_types"],
    );
    read(
        &json!({"sliding_window": null, "attention_dropout": 0.0, "pretraining_tp": 2,
        "layer_types": ["full_attention"], "num_local_experts": null, "a_new_key": [1, 2]}),
    );
    read(&json!({"sliding_window": 4096, "use_sliding_window": false, "hidden_act": "swish"}));
}

#[test]
fn sizes_that_no_model_has_are_refused() {
    const SIZES: [&str; 7] = [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "num_key_value_heads",
        "head_dim",
    ];
    for key in SIZES {
        let wrong = [
            json!(0),
            json!(-1),
            json!(1.5),
            json!("8"),
            json!(1_u64 << 31),
            json!(u64::MAX),
        ];
        for value in wrong {
            refuses(&json!({key: value}), &[key, &value.to_string()]);
        }
    }
    for key in &SIZES[..5] {
        refuses(&json!({*key: null}), &[&format!("no `{key}`")]);
    }
    refuses(
        &json!({"num_key_value_heads": 3}),
        &["num_key_value_heads", "3", "4"],
    );
    refuses(&json!({"head_dim": 15}), &["head_dim", "15", "even"]);
    refuses(
        &json!({"num_hidden_layers": 1_000_000}),
        &["num_hidden_layers", "65536"],
    );
    let huge = (1_u64 << 31) - 2;
    let all = json!({"hidden_size": huge, "intermediate_size": huge, "vocab_size": huge,
        "num_hidden_layers": 65_536, "head_dim": huge});
    refuses(&all, &["more bytes"]);
    refuses(&json!({"rms_norm_eps": 0}), &["rms_norm_eps"]);
    refuses(&json!({"rms_norm_eps": 1e-60}), &["rms_norm_eps"]);
    refuses(&json!({"rope_theta": -1.0}), &["rope_theta"]);
}

#[test]
fn text_that_is_no_config_is_refused() {
    let error = |text| ModelSpec::from_config(text).unwrap_err();
    assert!(matches!(error(""), SpecError::NotJson { .. }));
    assert!(matches!(error("{\"a\": NaN}"), SpecError::NotJson { .. }));
    assert!(matches!(
        error("[1]"),
        SpecError::NotAnObject { found: "array" }
    ));
    assert!(ModelSpec::from_config(&format!("\u{feff}{}", config(&json!({})))).is_ok());
}

#[test]
fn units_follow_the_forward_pass() {
    let spec = read(&json!({"attention_bias": true, "mlp_bias": true, "num_hidden_layers": 1}));
    let units = spec.units();
    let kinds: Vec<_> = units
        .iter()
        .map(|unit| (unit.name.as_str(), unit.kind))
        .collect();
    assert_eq!(
        kinds,
        [
            ("embedding", UnitKind::Embedding),
            ("block 0", UnitKind::Block(0)),
            ("head", UnitKind::Head)
        ]
    );
    let names: Vec<_> = units[1]
        .params
        .iter()
        .map(|param| param.name.as_str())
        .collect();
    let prefixed = |name: &str| format!("model.layers.0.{name}");
    assert_eq!(
        names,
        [
            "input_layernorm.weight",
            "self_attn.q_proj.weight",
            "self_attn.q_proj.bias",
            "self_attn.k_proj.weight",
            "self_attn.k_proj.bias",
            "self_attn.v_proj.weight",
            "self_attn.v_proj.bias",
            "self_attn.o_proj.weight",
            "self_attn.o_proj.bias",
            "post_attention_layernorm.weight",
            "mlp.gate_proj.weight",
            "mlp.gate_proj.bias",
            "mlp.up_proj.weight",
            "mlp.up_proj.bias",
            "mlp.down_proj.weight",
            "mlp.down_proj.bias",
        ]
        .map(prefixed)
    );
}

#[test]
fn a_tied_head_has_no_table_and_the_table_counts_once() {
    let untied = read(&json!({}));
    let tied = read(&json!({"tie_word_embeddings": true}));
    assert_eq!(tied.units().last().unwrap().params.len(), 1);
    assert_eq!(
        untied.units().last().unwrap().params[1].name,
        "lm_head.weight"
    );
    assert_eq!(untied.num_parameters() - tied.num_parameters(), 100 * 64);
    for spec in [untied, tied] {
        let by_unit: u64 = spec.units().iter().map(spec::Unit::num_parameters).sum();
        assert_eq!(spec.num_parameters(), by_unit);
    }
}

#[test]
fn every_preset_reads_back_from_its_config() {
    for preset in Preset::all() {
        let spec = ModelSpec::from_config(&preset.config_json()).unwrap();
        assert_eq!(spec, preset.spec, "{}", preset.name);
        assert_eq!(Preset::by_name(preset.name).unwrap(), preset);
    }
}

#[test]
fn presets_have_the_published_number_of_parameters() {
    for (name, expected) in [
        ("135m", 134_515_008),
        ("360m", 361_821_120),
        ("1b", 1_100_048_384),
        ("llama3.2-1b", 1_235_814_400),
        ("3b", 3_212_749_824),
        ("7b", 6_738_415_616),
        ("8b", 8_030_261_248),
        ("13b", 13_015_864_320),
        ("70b", 70_553_706_496),
        ("405b", 405_853_388_800),
        ("mistral-7b", 7_241_732_096),
        ("qwen2-0.5b", 494_032_768),
        ("qwen2-7b", 7_615_616_512),
        ("gemma-2b", 2_506_172_416),
        ("gemma-7b", 8_537_680_896),
        ("falcon-rw-1b", 1_311_625_216),
        ("falcon-7b", 6_921_720_704),
        ("falcon-40b", 41_303_293_952),
        ("falcon-180b", 178_557_088_768),
    ] {
        assert_eq!(
            Preset::by_name(name).unwrap().spec.num_parameters(),
            expected,
            "{name}"
        );
    }
}

#[test]
fn an_unknown_preset_is_answered_with_the_known_ones() {
    let message = Preset::by_name("135n").unwrap_err().to_string();
    assert!(
        message.contains("did you mean `135m`?") && message.contains("405b"),
        "{message}"
    );
    let message = Preset::by_name("gpt").unwrap_err().to_string();
    assert!(
        !message.contains("did you mean") && message.contains("tiny"),
        "{message}"
    );
}

#[test]
fn blocks_of_codes_are_said_by_the_config_and_never_guessed() {
    let block = |config: Value| {
        let text = json!({"quantization_config": config}).to_string();
        Quantization::from_config(&text).map_err(|error| error.to_string())
    };
    let of = |rows, cols| {
        Ok(Some(Quantization {
            block: Some([rows, cols]),
        }))
    };
    let by_shape = Ok(Some(Quantization { block: None }));
    assert_eq!(block(json!(null)), Ok(None));
    assert_eq!(
        block(json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 64]})),
        of(128, 64)
    );
    for config in [
        json!({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": null}),
        json!({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}),
        json!({"quant_method": "modelopt", "quant_algo": "FP8"}),
        json!({"quant_method": "compressed-tensors", "format": "float-quantized"}),
        json!({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights":
            {"num_bits": 8, "type": "float", "strategy": "channel", "group_size": null}}}}),
    ] {
        assert_eq!(block(config), by_shape);
    }
    let groups = |strategy: Value| {
        json!({"quant_method": "compressed-tensors", "config_groups": {"group_0":
            {"weights": strategy}, "group_1": {"weights": null}}})
    };
    let blocks = json!({"strategy": "block", "block_structure": [128, 128]});
    assert_eq!(block(groups(blocks)), of(128, 128));
    assert_eq!(
        block(groups(json!({"strategy": "group", "group_size": 32}))),
        of(1, 32)
    );
    for (config, word) in [
        (json!({"bits": 4}), "quant_method"),
        (
            json!({"quant_method": "fp8", "weight_block_size": [128]}),
            "weight_block_size",
        ),
        (
            json!({"quant_method": "fp8", "weight_block_size": [0, 128]}),
            "weight_block_size",
        ),
        (json!({"quant_method": "fp8", "fmt": "e3m4"}), "fmt"),
        (
            json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
            "NVFP4",
        ),
        (
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}),
            "pack-quantized",
        ),
        (groups(json!({"num_bits": 4})), "num_bits"),
        (groups(json!({"type": "int"})), "type"),
        (groups(json!({"strategy": "tensor_group"})), "strategy"),
        (
            json!({"quant_method": "compressed-tensors", "config_groups": {
                "a": {"weights": {"strategy": "group", "group_size": 32}},
                "b": {"weights": {"strategy": "channel"}}}}),
            "config_groups",
        ),
    ] {
        let message = block(config).unwrap_err();
        assert!(message.contains(word), "{message}");
    }
}
