//! What holds for every config.

use proptest::prelude::*;
use spec::{
    Activation, Arrangement, Family, ModelSpec, Positions, RopeKind, RopeSpec, SlidingWindow,
};
use tensor::Dtype;

fn rope_kind() -> impl Strategy<Value = RopeKind> {
    let factor = || 0.5_f64..64.0;
    prop_oneof![
        Just(RopeKind::Default),
        factor().prop_map(|factor| RopeKind::Linear { factor }),
        (factor(), 0.5_f64..2.0, 2.5_f64..8.0, 1_usize..100_000).prop_map(
            |(factor, low_freq_factor, high_freq_factor, original_max_positions)| {
                RopeKind::Llama3 {
                    factor,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_positions,
                }
            }
        ),
    ]
}

prop_compose! {
    /// A Llama.
    fn llama()(
        (hidden, intermediate, num_layers, vocab) in (1_usize..300, 1_usize..300, 1_usize..5, 1_usize..300),
        (groups, kv_heads, half_head) in (1_usize..5, 1_usize..5, 1_usize..40),
        (theta, kind, eps, std) in (1.5_f64..1e7, rope_kind(), 1e-12_f32..1.0, 1e-5_f32..1.0),
        (attention_bias, mlp_bias, tied) in any::<(bool, bool, bool)>(),
        (max_positions, bos, eos) in (1_usize..1 << 20, any::<Option<u32>>(), proptest::collection::vec(any::<u32>(), 0..4)),
        dtype in prop_oneof![Just(None), Just(Some(Dtype::F32)), Just(Some(Dtype::BF16)), Just(Some(Dtype::F16))],
    ) -> ModelSpec {
        ModelSpec {
            family: Family::Llama,
            hidden,
            intermediate,
            num_layers,
            heads: groups * kv_heads,
            kv_heads,
            head_dim: 2 * half_head,
            vocab,
            norm_eps: eps,
            positions: Positions::Rope(RopeSpec { theta, kind }),
            window: None,
            activation: Activation::Silu,
            arrangement: Arrangement::Sequential,
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            mlp_bias,
            tied,
            max_positions,
            bos,
            eos,
            dtype,
            initializer_range: std,
        }
    }
}

prop_compose! {
    /// A window in some blocks, or none.
    fn window(num_layers: usize)(
        size in 1_usize..5000,
        blocks in proptest::collection::vec(any::<bool>(), num_layers),
    ) -> Option<SlidingWindow> {
        blocks.contains(&true).then_some(SlidingWindow { size, blocks })
    }
}

fn mistral() -> impl Strategy<Value = ModelSpec> {
    (llama(), proptest::option::of(1_usize..5000)).prop_map(|(spec, size)| ModelSpec {
        family: Family::Mistral,
        window: size.map(|size| SlidingWindow {
            size,
            blocks: vec![true; spec.num_layers],
        }),
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        ..spec
    })
}

fn qwen2() -> impl Strategy<Value = ModelSpec> {
    let with_window = |spec: ModelSpec| (window(spec.num_layers), Just(spec));
    let parts = llama().prop_flat_map(with_window);
    parts.prop_map(|(window, spec)| ModelSpec {
        family: Family::Qwen2,
        window,
        qkv_bias: true,
        output_bias: false,
        mlp_bias: false,
        ..spec
    })
}

fn gemma() -> impl Strategy<Value = ModelSpec> {
    llama().prop_map(|spec| ModelSpec {
        family: Family::Gemma,
        activation: Activation::GeluTanh,
        mlp_bias: false,
        ..spec
    })
}

fn falcon() -> impl Strategy<Value = ModelSpec> {
    let arrangement = prop_oneof![
        Just(Arrangement::Sequential),
        Just(Arrangement::ParallelOneNorm),
        Just(Arrangement::ParallelTwoNorms),
    ];
    let activation = prop_oneof![Just(Activation::GeluErf), Just(Activation::GeluTanh)];
    let parts = (llama(), arrangement, activation, any::<(bool, bool)>());
    parts.prop_map(
        |(spec, arrangement, activation, (bias, is_alibi))| ModelSpec {
            family: Family::Falcon,
            hidden: spec.heads * spec.head_dim,
            // Only the new architecture, which is parallel, shares in groups.
            kv_heads: match arrangement {
                Arrangement::Sequential if spec.kv_heads > 1 => spec.heads,
                _ => spec.kv_heads,
            },
            positions: if is_alibi {
                Positions::Alibi
            } else {
                spec.positions
            },
            activation,
            arrangement,
            qkv_bias: bias,
            output_bias: bias,
            mlp_bias: bias,
            ..spec
        },
    )
}

fn model() -> impl Strategy<Value = ModelSpec> {
    prop_oneof![llama(), mistral(), qwen2(), gemma(), falcon()]
}

proptest! {
    #[test]
    fn a_written_config_reads_back_equal(spec in model()) {
        prop_assert_eq!(ModelSpec::from_config(&spec.config_json()).unwrap(), spec);
    }

    #[test]
    fn frequencies_fall_and_are_finite(spec in model()) {
        let freqs = spec.inv_freq();
        let is_rotary = matches!(spec.positions, Positions::Rope(_));
        prop_assert_eq!(freqs.len(), if is_rotary { spec.head_dim / 2 } else { 0 });
        prop_assert!(freqs.iter().all(|freq| freq.is_finite() && *freq > 0.0));
    }

    #[test]
    fn any_text_gives_a_spec_or_an_error(text in "\\PC{0,200}") {
        let _ = ModelSpec::from_config(&text);
    }
}
