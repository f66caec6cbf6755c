//! Byte-level BPE: merges stand in the metadata, and the name of what cuts a text
//! into words before any merge.

use serde_json::{Value, json};

use super::json::{Bpe, TokenizerJson, Tokens};
use super::{Vocab, post_processor};
use crate::convert::ImportFault;
use crate::convert::keys::Keys;

const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";

/// What stands around the model of a family's tokenizer.
struct Family {
    /// The names of this family in the metadata.
    names: &'static [&'static str],
    /// How many digits are a word at most; none for as many as there are.
    words: Words,
    /// Whether text is brought to the composed form first.
    composes: bool,
    /// Whether a word that is a token is taken whole.
    ignores_merges: bool,
    /// Whether a text begins with a token of its own if the metadata do not say.
    adds_bos: bool,
}

/// How a text is cut into words.
#[derive(Clone, Copy)]
enum Words {
    /// By the rule of the first byte-level tokenizer.
    Plain,
    /// The same, after every digit was cut off.
    SingleDigits,
    /// By a rule that keeps line breaks together and cuts numbers in groups.
    Pattern(&'static str),
}

const GROUPS_OF_THREE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SINGLE_NUMBERS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const FAMILIES: [Family; 4] = [
    Family {
        names: &["gpt-2"],
        words: Words::Plain,
        composes: false,
        ignores_merges: false,
        adds_bos: false,
    },
    Family {
        names: &["smollm"],
        words: Words::SingleDigits,
        composes: false,
        ignores_merges: false,
        adds_bos: false,
    },
    Family {
        names: &["llama-bpe", "llama3", "llama-v3"],
        words: Words::Pattern(GROUPS_OF_THREE),
        composes: false,
        ignores_merges: true,
        adds_bos: true,
    },
    Family {
        names: &["qwen2"],
        words: Words::Pattern(SINGLE_NUMBERS),
        composes: true,
        ignores_merges: false,
        adds_bos: false,
    },
];

/// The text of the `tokenizer.json`.
pub(super) fn tokenizer_json(keys: Keys<'_>, vocab: &Vocab<'_>) -> Result<String, ImportFault> {
    let family = family(keys.text(PRE)?)?;
    let json = TokenizerJson {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: vocab.added(),
        normalizer: if family.composes {
            json!({"type": "NFC"})
        } else {
            Value::Null
        },
        pre_tokenizer: family.words.pre_tokenizer(),
        post_processor: post_processor(keys, vocab, family.adds_bos)?,
        decoder: byte_level(true, true),
        model: Bpe {
            kind: "BPE",
            dropout: (),
            unk_token: None,
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: family.ignores_merges,
            vocab: Tokens(vocab),
            merges: merges(keys, vocab)?,
        },
    };
    Ok(json.text())
}

fn family(name: &str) -> Result<&'static Family, ImportFault> {
    let found = FAMILIES.iter().find(|family| family.names.contains(&name));
    found.ok_or_else(|| ImportFault::Unsupported {
        key: PRE.to_owned(),
        found: format!("`{name}`"),
        supported: "`gpt-2`, `smollm`, `llama-bpe`, `qwen2`",
    })
}

impl Words {
    fn pre_tokenizer(self) -> Value {
        let parts = match self {
            Self::Plain => return byte_level(false, true),
            Self::SingleDigits => [
                json!({"type": "Digits", "individual_digits": true}),
                byte_level(false, true),
            ],
            Self::Pattern(pattern) => [
                json!({
                    "type": "Split",
                    "pattern": {"Regex": pattern},
                    "behavior": "Isolated",
                    "invert": false,
                }),
                byte_level(false, false),
            ],
        };
        json!({"type": "Sequence", "pretokenizers": parts})
    }
}

/// Bytes as printable characters, and back.
fn byte_level(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": true,
        "use_regex": use_regex,
    })
}

fn merges<'a>(keys: Keys<'a>, vocab: &Vocab<'_>) -> Result<Vec<(&'a str, &'a str)>, ImportFault> {
    let mut joined = String::new();
    let merges = keys.texts(MERGES)?.iter().enumerate();
    let merges = merges.map(|(number, merge)| {
        let parts = merge.split_once(' ').filter(|(left, right)| {
            joined.clear();
            joined.extend([*left, *right]);
            let mut all = [*left, *right, &joined].into_iter();
            all.all(|token| vocab.ids.contains_key(token))
        });
        parts.ok_or_else(|| ImportFault::BadMerge {
            number,
            merge: merge.to_owned(),
        })
    });
    merges.collect()
}
