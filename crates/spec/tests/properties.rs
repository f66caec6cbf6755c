//! What holds for every config.

use proptest::prelude::*;
use spec::{Family, ModelSpec, RopeKind, RopeSpec};
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
    fn model()(
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
            rms_norm_eps: eps,
            rope: RopeSpec { theta, kind },
            attention_bias,
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

proptest! {
    #[test]
    fn a_written_config_reads_back_equal(spec in model()) {
        prop_assert_eq!(ModelSpec::from_config(&spec.config_json()).unwrap(), spec);
    }

    #[test]
    fn frequencies_fall_and_are_finite(spec in model()) {
        let freqs = spec.inv_freq();
        prop_assert_eq!(freqs.len(), spec.head_dim / 2);
        prop_assert!(freqs.iter().all(|freq| freq.is_finite() && *freq > 0.0));
    }

    #[test]
    fn any_text_gives_a_spec_or_an_error(text in "\\PC{0,200}") {
        let _ = ModelSpec::from_config(&text);
    }
}
