//! Other families than Llama train on any number of ranks, and are written as they
//! were read.

use tensor::Dtype;
use train::{ClipMode, Settings};

use crate::fixture::{Fixture, Opened, settings};
use crate::worlds::every_world_agrees;

/// Groups of heads in one matrix of 192 rows, so that its second tile begins inside a
/// group; two norms with biases; a tied table.
const FALCON: &str = r#"{
  "model_type": "falcon", "hidden_size": 96, "ffn_hidden_size": 320,
  "num_attention_heads": 4, "num_kv_heads": 2, "new_decoder_architecture": true,
  "num_hidden_layers": 2, "vocab_size": 700, "max_position_embeddings": 64,
  "bias": true, "initializer_range": 0.1
}"#;

/// Linear biases, heads of their own, attention before the MLP, a table for the head.
///
/// No biases on projections: where keys are not turned, that of the key moves all
/// scores of a query alike, so its gradient is rounding that `AdamW` blows up.
const FALCON_RW: &str = r#"{
  "model_type": "RefinedWebModel", "hidden_size": 64, "n_head": 4, "n_layer": 2,
  "alibi": true, "vocab_size": 700, "initializer_range": 0.1,
  "tie_word_embeddings": false
}"#;

/// Scaled embeddings under a tied table, norms stored minus one.
const GEMMA: &str = r#"{
  "model_type": "gemma", "hidden_size": 64, "head_dim": 24, "intermediate_size": 320,
  "num_attention_heads": 4, "num_key_value_heads": 1, "num_hidden_layers": 2,
  "vocab_size": 700, "max_position_embeddings": 64, "initializer_range": 0.1
}"#;

/// Biases on query, key and value, and a window shorter than a row in one block.
const QWEN2: &str = r#"{
  "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 320,
  "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
  "vocab_size": 700, "max_position_embeddings": 64, "initializer_range": 0.1,
  "use_sliding_window": true, "sliding_window": 7, "max_window_layers": 1
}"#;

#[test]
fn any_number_of_ranks_trains_a_falcon_as_one_does() {
    every_world_agrees(FALCON, "bf16", ClipMode::Previous);
    every_world_agrees(FALCON_RW, "f32", ClipMode::Exact);
}

#[test]
fn any_number_of_ranks_trains_a_gemma_as_one_does() {
    every_world_agrees(GEMMA, "bf16", ClipMode::Exact);
}

#[test]
fn any_number_of_ranks_trains_a_qwen2_as_one_does() {
    every_world_agrees(QWEN2, "f32", ClipMode::Off);
}

#[test]
fn an_untrained_run_writes_the_tensors_that_it_read() {
    for config in [FALCON, FALCON_RW, GEMMA, QWEN2] {
        let fixture = Fixture::new(config, Dtype::BF16);
        let rows = fixture.seven_rows();
        let source = Opened::open(&fixture.model_path());
        for (recipe, ranks) in [("f32", 3), ("bf16", 8), ("fp8", 2), ("fp8-lean", 3)] {
            let settings = Settings {
                steps: Some(0),
                recipe: recipe.to_owned(),
                ranks,
                ..settings()
            };
            let run = fixture.train(&settings, &rows);
            let written = Opened::open(&run.out);
            assert!(written.tensors() == source.tensors(), "{config} {recipe}");
        }
    }
}
