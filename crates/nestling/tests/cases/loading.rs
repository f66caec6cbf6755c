//! Checkpoints that are hard to load.

use std::fs;
use std::path::Path;

use crate::case::does;

#[test]
fn a_tied_head_that_is_not_stored_is_the_embedding() {
    does("LD01");
}

#[test]
fn a_tied_head_that_is_stored_too_is_one_parameter() {
    does("LD02");
}

#[test]
fn a_falcon_config_without_the_tie_key_is_tied() {
    does("LD04");
}

#[test]
fn a_file_that_the_index_names_and_that_is_not_there_is_an_error() {
    does("LD07");
}

#[test]
fn weight_files_that_the_index_does_not_name_are_left_alone() {
    does("LD09");
}

#[test]
fn a_file_cut_short_is_an_error_with_both_sizes() {
    does("LD10");
}

#[test]
fn every_malformed_file_is_refused_by_its_name() {
    does("LD11");
}

#[test]
fn every_unusual_file_that_is_valid_is_read_to_the_byte() {
    does("LD13");
}

#[test]
fn stored_rotary_buffers_are_neither_used_nor_exported() {
    does("LD15");
}

#[test]
fn a_missing_weight_is_an_error_with_its_name() {
    does("LD17");
}

#[test]
fn four_float_types_in_one_checkpoint_keep_their_values() {
    does("LD19");
}

#[test]
fn a_head_size_that_is_given_is_not_derived() {
    does("LD21");
}

#[test]
fn odd_sizes_come_back_from_every_world() {
    does("LD22");
}

#[test]
fn a_first_generation_config_has_the_defaults_of_its_family() {
    does("LD24");
}

#[test]
fn llama_3_rotary_scaling_is_exact_in_all_three_bands() {
    does("LD25");
}

#[test]
fn several_end_tokens_in_two_files_all_end_a_text() {
    does("LD28");
}

#[test]
fn qwen2_biases_are_used_without_a_key_that_says_so() {
    does("LD29");
}

#[test]
fn a_refined_web_config_is_a_falcon() {
    does("LD30");
}

#[test]
fn a_falcon_with_alibi_and_sequential_blocks_is_exact() {
    does("LD31");
}

#[test]
fn files_with_names_that_no_pattern_predicts_are_found_by_the_index() {
    does("LD34");
}

#[test]
fn a_folder_with_only_a_broken_pickle_asks_for_safetensors() {
    does("LD36");
}

#[test]
fn shards_without_an_index_ask_for_it_or_are_all_read() {
    does("LD38");
}

#[test]
fn a_gemma_is_exact_or_refused_by_name() {
    does("LD40");
}

#[test]
fn every_case_has_a_test() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/cases");
    let tests = [
        include_str!("loading.rs"),
        include_str!("tokenizers.rs"),
        include_str!("fp8.rs"),
        include_str!("sharding.rs"),
    ]
    .concat();
    // What a crate decides by itself is tested there.
    let elsewhere = include_str!("../../../comm/src/launch.rs");
    for entry in fs::read_dir(cases).unwrap() {
        let path = entry.unwrap().path();
        let id = path.file_name().unwrap().to_str().unwrap();
        let is_case = path.join("expect.json").exists();
        assert!(
            !is_case
                || tests.contains(&format!("does(\"{id}\")"))
                || elsewhere.contains(&format!("cases/{id}/")),
            "{id}"
        );
    }
}
