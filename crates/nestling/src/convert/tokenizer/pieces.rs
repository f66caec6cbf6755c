//! `SentencePiece` BPE: every token has a score, and of two neighbours that make a
//! token the pair with the best score is joined first.
//!
//! A `tokenizer.json` has merges instead. They are all pairs of tokens that make a
//! token, best score first; of the pairs that make one token, longer left parts
//! come first, as the field's converters order them.

use std::cmp::Reverse;

use checkpoint::gguf::Value as GgufValue;
use serde_json::{Value, json};

use super::json::{Bpe, TokenizerJson, Tokens};
use super::{Kind, UNKNOWN, Vocab, check_len, post_processor};
use crate::convert::ImportFault;
use crate::convert::keys::Keys;

const SCORES: &str = "tokenizer.ggml.scores";
/// What stands for a space in a token.
const SPACE: &str = "\u{2581}";
/// A longer token has no more splits than this that are looked at.
const MAX_TOKEN_BYTES: usize = 1 << 10;

/// The text of the `tokenizer.json`.
pub(super) fn tokenizer_json(keys: Keys<'_>, vocab: &Vocab<'_>) -> Result<String, ImportFault> {
    let unknown = vocab.special(keys, UNKNOWN)?;
    let adds_space = keys.flag_or_none("tokenizer.ggml.add_space_prefix")?;
    let adds_space = adds_space.unwrap_or(true);
    let json = TokenizerJson {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: vocab.added(),
        normalizer: normalizer(adds_space),
        pre_tokenizer: Value::Null,
        post_processor: post_processor(keys, vocab, true)?,
        decoder: decoder(adds_space),
        model: Bpe {
            kind: "BPE",
            dropout: (),
            unk_token: unknown.map(|(_, token)| token),
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: true,
            byte_fallback: vocab.kinds.contains(&Kind::Byte),
            ignore_merges: false,
            vocab: Tokens(vocab),
            merges: merges(keys, vocab)?,
        },
    };
    Ok(json.text())
}

fn normalizer(adds_space: bool) -> Value {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    if adds_space {
        let prepend = json!({"type": "Prepend", "prepend": SPACE});
        json!({"type": "Sequence", "normalizers": [prepend, replace]})
    } else {
        replace
    }
}

fn decoder(adds_space: bool) -> Value {
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if adds_space {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": decoders})
}

/// A pair of tokens that makes a token.
struct Pair<'a> {
    score: f32,
    left: &'a str,
    right: &'a str,
}

fn merges<'a>(keys: Keys<'a>, vocab: &Vocab<'a>) -> Result<Vec<(&'a str, &'a str)>, ImportFault> {
    let scores = keys.numbers(SCORES)?;
    check_len(SCORES, scores.len(), vocab.tokens.len())?;
    let mut pairs = Vec::new();
    for (id, token, kind) in vocab.used() {
        if kind != Kind::Normal || token.len() > MAX_TOKEN_BYTES {
            continue;
        }
        let score = match scores.get(id as usize) {
            Some(GgufValue::F32(score)) if !score.is_nan() => score,
            _ => {
                return Err(ImportFault::BadKey {
                    key: SCORES.to_owned(),
                    found: format!("no number for token {id}"),
                    expected: "an array of f32",
                });
            }
        };
        let splits = token.char_indices().skip(1);
        let made = splits.map(|(at, _)| token.split_at(at));
        let made = made.filter(|(left, right)| is_part(vocab, left) && is_part(vocab, right));
        let mut made: Vec<_> = made
            .map(|(left, right)| Pair { score, left, right })
            .collect();
        made.sort_by_key(|pair| (vocab.ids[pair.left], vocab.ids[pair.right]));
        pairs.extend(made);
    }
    // Stable: what is equal stays in the order of ids.
    pairs.sort_by(|a, b| {
        let lengths =
            |pair: &Pair<'_>| Reverse((pair.left.chars().count(), pair.right.chars().count()));
        let by_score = b.score.total_cmp(&a.score);
        by_score.then_with(|| lengths(a).cmp(&lengths(b)))
    });
    Ok(pairs.iter().map(|pair| (pair.left, pair.right)).collect())
}

/// Whether a text is a token that merges make or begin with.
fn is_part(vocab: &Vocab<'_>, text: &str) -> bool {
    let id = vocab.ids.get(text);
    id.is_some_and(|&id| vocab.kinds[id as usize] == Kind::Normal)
}
