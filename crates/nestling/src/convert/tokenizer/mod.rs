//! The tokenizer that a GGUF file's metadata describe, as the files of a Hugging
//! Face folder.
//!
//! Two kinds are read: `gpt2`, byte-level BPE with merges and the name of a
//! pre-tokenizer, and `llama`, `SentencePiece` BPE with a score for each token, from
//! which the merges follow.

mod byte_level;
mod json;
mod pieces;

use std::collections::HashMap;

use checkpoint::gguf::{Texts, Value as GgufValue};
use serde_json::{Map, Value, json};

use super::ImportFault;
use super::keys::Keys;
use json::AddedToken;

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const PADDING: &str = "tokenizer.ggml.padding_token_id";

/// Names and texts of a tokenizer's files.
pub(super) fn files(keys: Keys<'_>) -> Result<Vec<(&'static str, String)>, ImportFault> {
    let vocab = Vocab::read(keys)?;
    let text = match keys.text(MODEL)? {
        "gpt2" => byte_level::tokenizer_json(keys, &vocab)?,
        "llama" => pieces::tokenizer_json(keys, &vocab)?,
        found => {
            return Err(ImportFault::Unsupported {
                key: MODEL.to_owned(),
                found: format!("`{found}`"),
                supported: "`gpt2`, `llama`",
            });
        }
    };
    Ok(vec![
        ("tokenizer.json", text),
        ("tokenizer_config.json", tokenizer_config(keys, &vocab)?),
    ])
}

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    /// Fills a gap in the ids and never comes up.
    Unused,
    Byte,
}

impl Kind {
    fn of_code(code: &GgufValue) -> Option<Self> {
        Some(match code.as_u64()? {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// The tokens, with what each is for.
struct Vocab<'a> {
    tokens: &'a Texts,
    kinds: Vec<Kind>,
    /// Ids of all tokens that can come up.
    ids: HashMap<&'a str, u32>,
}

impl<'a> Vocab<'a> {
    fn read(keys: Keys<'a>) -> Result<Self, ImportFault> {
        let tokens = keys.texts(TOKENS)?;
        let kinds = kinds(keys, tokens.len())?;
        let mut ids = HashMap::with_capacity(tokens.len());
        for ((token, &kind), id) in tokens.iter().zip(&kinds).zip(0_u32..) {
            if kind == Kind::Unused {
                continue;
            }
            if let Some(first) = ids.insert(token, id) {
                return Err(ImportFault::DuplicateToken {
                    token: token.to_owned(),
                    first,
                    second: id,
                });
            }
        }
        Ok(Self { tokens, kinds, ids })
    }

    /// Ids, tokens and kinds of all tokens that can come up.
    fn used(&self) -> impl Iterator<Item = (u32, &'a str, Kind)> {
        let all = (0_u32..).zip(self.tokens.iter()).zip(&self.kinds);
        all.map(|((id, token), &kind)| (id, token, kind))
            .filter(|&(_, _, kind)| kind != Kind::Unused)
    }

    /// The tokens that are found in a text before anything else.
    fn added(&self) -> Vec<AddedToken<'a>> {
        let added = self.used().filter_map(|(id, content, kind)| {
            let special = match kind {
                Kind::Control | Kind::Unknown => true,
                Kind::UserDefined => false,
                Kind::Normal | Kind::Unused | Kind::Byte => return None,
            };
            Some(AddedToken {
                id,
                content,
                single_word: false,
                lstrip: false,
                rstrip: false,
                normalized: false,
                special,
            })
        });
        added.collect()
    }

    /// Id and text of a special token.
    fn special(
        &self,
        keys: Keys<'_>,
        key: &'static str,
    ) -> Result<Option<(u64, &'a str)>, ImportFault> {
        let Some(id) = keys.size_or_none(key)? else {
            return Ok(None);
        };
        let at = usize::try_from(id).ok();
        let token = at.and_then(|at| self.tokens.get(at));
        match token {
            Some(token) => Ok(Some((id, token))),
            None => Err(ImportFault::BadId {
                key,
                id,
                num_tokens: self.tokens.len(),
            }),
        }
    }
}

/// Without types all tokens are normal.
fn kinds(keys: Keys<'_>, num_tokens: usize) -> Result<Vec<Kind>, ImportFault> {
    if !keys.has(TYPES) {
        return Ok(vec![Kind::Normal; num_tokens]);
    }
    let codes = keys.numbers(TYPES)?;
    check_len(TYPES, codes.len(), num_tokens)?;
    let kinds = codes.iter().map(|code| {
        Kind::of_code(&code).ok_or_else(|| ImportFault::BadKey {
            key: TYPES.to_owned(),
            found: format!("{code:?} for a token"),
            expected: "1 to 6",
        })
    });
    kinds.collect()
}

fn check_len(key: &'static str, found: usize, expected: usize) -> Result<(), ImportFault> {
    if found == expected {
        return Ok(());
    }
    Err(ImportFault::WrongCount {
        key,
        found,
        expected,
    })
}

/// Adds the tokens that begin and end every text, or nothing.
fn post_processor(keys: Keys<'_>, vocab: &Vocab<'_>, adds_bos: bool) -> Result<Value, ImportFault> {
    let flag = |key, default| Ok(keys.flag_or_none(key)?.unwrap_or(default));
    let wanted = [
        (flag("tokenizer.ggml.add_bos_token", adds_bos)?, BOS),
        (flag("tokenizer.ggml.add_eos_token", false)?, EOS),
    ];
    let mut tokens = Map::new();
    let mut around = [None, None];
    for ((is_wanted, key), place) in wanted.into_iter().zip(&mut around) {
        if let (true, Some((id, token))) = (is_wanted, vocab.special(keys, key)?) {
            tokens.insert(
                token.to_owned(),
                json!({"id": token, "ids": [id], "tokens": [token]}),
            );
            *place = Some(token);
        }
    }
    if tokens.is_empty() {
        return Ok(Value::Null);
    }
    let [bos, eos] = around;
    let sequence = |id: &str, type_id: u8| {
        let special = |token: &str| json!({"SpecialToken": {"id": token, "type_id": type_id}});
        let text = json!({"Sequence": {"id": id, "type_id": type_id}});
        let parts = [bos.map(special), Some(text), eos.map(special)];
        parts.into_iter().flatten().collect::<Vec<_>>()
    };
    let pair = [sequence("A", 0), sequence("B", 1)].concat();
    Ok(json!({
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": pair,
        "special_tokens": tokens,
    }))
}

fn tokenizer_config(keys: Keys<'_>, vocab: &Vocab<'_>) -> Result<String, ImportFault> {
    let mut config = Map::new();
    let mut set = |name: &str, value: Value| config.insert(name.to_owned(), value);
    set("tokenizer_class", "PreTrainedTokenizerFast".into());
    for (name, key) in [
        ("bos_token", BOS),
        ("eos_token", EOS),
        ("unk_token", UNKNOWN),
        ("pad_token", PADDING),
    ] {
        if let Some((_, token)) = vocab.special(keys, key)? {
            set(name, token.into());
        }
    }
    set("clean_up_tokenization_spaces", false.into());
    let context = format!("{}.context_length", keys.text("general.architecture")?);
    if let Some(len) = keys.size_or_none(&context)? {
        set("model_max_length", len.into());
    }
    if keys.text(MODEL)? == "gpt2" {
        set("add_prefix_space", false.into());
    }
    if let Some(template) = keys.text_or_none("tokenizer.chat_template")? {
        set("chat_template", template.into());
    }
    Ok(format!("{:#}\n", Value::Object(config)))
}
