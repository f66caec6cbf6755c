//! The layout of a `tokenizer.json`, written without a copy of the vocabulary.

use serde::ser::{Serialize, Serializer};
use serde_json::Value;

use super::Vocab;

/// A whole `tokenizer.json`.
#[derive(serde::Serialize)]
pub(super) struct TokenizerJson<'a> {
    pub(super) version: &'static str,
    pub(super) truncation: (),
    pub(super) padding: (),
    pub(super) added_tokens: Vec<AddedToken<'a>>,
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) post_processor: Value,
    pub(super) decoder: Value,
    pub(super) model: Bpe<'a>,
}

/// A token that is found in a text before anything else.
#[derive(serde::Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "the fields are the format's")]
pub(super) struct AddedToken<'a> {
    pub(super) id: u32,
    pub(super) content: &'a str,
    pub(super) single_word: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    pub(super) normalized: bool,
    pub(super) special: bool,
}

/// The part with vocabulary and merges.
#[derive(serde::Serialize)]
pub(super) struct Bpe<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) dropout: (),
    pub(super) unk_token: Option<&'a str>,
    pub(super) continuing_subword_prefix: (),
    pub(super) end_of_word_suffix: (),
    pub(super) fuse_unk: bool,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
    pub(super) vocab: Tokens<'a>,
    pub(super) merges: Vec<(&'a str, &'a str)>,
}

/// The vocabulary as a map from token to id, in the order of ids.
pub(super) struct Tokens<'a>(pub(super) &'a Vocab<'a>);

impl Serialize for Tokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.used().map(|(id, token, _)| (token, id)))
    }
}

impl TokenizerJson<'_> {
    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).expect("plain data with text keys")
    }
}
