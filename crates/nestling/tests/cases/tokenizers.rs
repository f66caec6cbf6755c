//! Tokenizers that do not fit their model, or are not there.

use crate::case::does;

#[test]
fn a_token_without_a_row_in_the_embedding_is_refused_before_training() {
    does("TK01");
}

#[test]
fn an_embedding_padded_past_the_tokenizer_keeps_its_rows() {
    does("TK02");
}

#[test]
fn a_tokenizer_without_pad_token_trains_and_gets_none() {
    does("TK03");
}

#[test]
fn characters_outside_the_vocabulary_become_bytes() {
    does("TK04");
}

#[test]
fn a_model_with_only_a_sentencepiece_file_works_on_ids_and_says_what_text_needs() {
    does("TK07");
}
