//! What the small files beside `tokenizer.json` say: special tokens, the ids
//! that end a text, and the chat template.
//!
//! These files come from many versions of many programs, so each field is read
//! in every form in use: a token is a string or an object with `content`, an id
//! is one number or a list, a template is a string, a list of named ones or a
//! map.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::{DataError, Result};

/// A special token as these files spell it.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum TokenText {
    Plain(String),
    Object { content: String },
}

impl TokenText {
    fn into_text(self) -> String {
        match self {
            Self::Plain(text) | Self::Object { content: text } => text,
        }
    }
}

/// One id or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(i64),
    Many(Vec<i64>),
}

/// A named chat template of a list.
#[derive(Debug, Clone, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// The chat template in any of its forms.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    List(Vec<NamedTemplate>),
    Map(BTreeMap<String, String>),
}

impl Templates {
    /// The template for plain conversations.
    fn into_default(self, origin: &str) -> Result<Option<String>> {
        let mut named: Vec<(String, String)> = match self {
            Self::One(template) => return Ok(Some(template)),
            Self::List(list) => list.into_iter().map(|t| (t.name, t.template)).collect(),
            Self::Map(map) => map.into_iter().collect(),
        };
        if let Some(at) = named.iter().position(|(name, _)| name == "default") {
            return Ok(Some(named.swap_remove(at).1));
        }
        match named.len() {
            0 => Ok(None),
            1 => Ok(named.pop().map(|(_, template)| template)),
            _ => Err(DataError::NoDefaultTemplate {
                origin: origin.to_owned(),
                names: named
                    .into_iter()
                    .map(|(name, _)| format!("`{name}`"))
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
        }
    }
}

/// The fields of `tokenizer_config.json` and `special_tokens_map.json` in use.
#[derive(Debug, Default, Deserialize)]
struct TokenizerConfig {
    bos_token: Option<TokenText>,
    eos_token: Option<TokenText>,
    pad_token: Option<TokenText>,
    unk_token: Option<TokenText>,
    chat_template: Option<Templates>,
}

/// The fields of `config.json` and `generation_config.json` in use.
#[derive(Debug, Default, Deserialize)]
struct IdConfig {
    bos_token_id: Option<Ids>,
    eos_token_id: Option<Ids>,
}

/// The texts of the special tokens, as far as they are set.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpecialTexts {
    pub(crate) bos: Option<String>,
    pub(crate) eos: Option<String>,
    pub(crate) pad: Option<String>,
    pub(crate) unk: Option<String>,
}

/// What `tokenizer_config.json` and its older companion say.
#[derive(Debug, Default)]
pub(crate) struct TokenizerFacts {
    pub(crate) texts: SpecialTexts,
    pub(crate) chat_template: Option<String>,
}

impl TokenizerFacts {
    /// Reads both files; the first one rules where both set a token.
    pub(crate) fn read(origin: &str, config: Option<&str>, map: Option<&str>) -> Result<Self> {
        let config: TokenizerConfig = parse(origin, "tokenizer_config.json", config)?;
        let map: TokenizerConfig = parse(origin, "special_tokens_map.json", map)?;
        let text = |first: Option<TokenText>, second: Option<TokenText>| {
            first.or(second).map(TokenText::into_text)
        };
        let chat_template = config
            .chat_template
            .map(|templates| templates.into_default(origin))
            .transpose()?
            .flatten();
        Ok(Self {
            texts: SpecialTexts {
                bos: text(config.bos_token, map.bos_token),
                eos: text(config.eos_token, map.eos_token),
                pad: text(config.pad_token, map.pad_token),
                unk: text(config.unk_token, map.unk_token),
            },
            chat_template,
        })
    }
}

/// The ids that `config.json` or `generation_config.json` name.
#[derive(Debug, Default)]
pub(crate) struct IdFacts {
    pub(crate) bos: Vec<u32>,
    pub(crate) eos: Vec<u32>,
}

impl IdFacts {
    /// Reads one of the files.
    ///
    /// Negative ids (an old way to write "none") are left out.
    pub(crate) fn read(origin: &str, file: &'static str, json: Option<&str>) -> Result<Self> {
        let config: IdConfig = parse(origin, file, json)?;
        Ok(Self {
            bos: plain_ids(config.bos_token_id),
            eos: plain_ids(config.eos_token_id),
        })
    }
}

fn plain_ids(ids: Option<Ids>) -> Vec<u32> {
    let ids = match ids {
        None => Vec::new(),
        Some(Ids::One(id)) => vec![id],
        Some(Ids::Many(ids)) => ids,
    };
    ids.into_iter()
        .filter_map(|id| u32::try_from(id).ok())
        .collect()
}

fn parse<T: Default + for<'de> Deserialize<'de>>(
    origin: &str,
    file: &'static str,
    json: Option<&str>,
) -> Result<T> {
    let Some(json) = json else {
        return Ok(T::default());
    };
    serde_json::from_str(json).map_err(|source| DataError::BadConfig {
        origin: origin.to_owned(),
        file,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(config: &str) -> TokenizerFacts {
        TokenizerFacts::read("m", Some(config), None).unwrap()
    }

    #[test]
    fn a_token_is_a_string_an_object_or_absent() {
        let facts = facts(
            r#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null}"#,
        );
        assert_eq!(facts.texts.bos.as_deref(), Some("<s>"));
        assert_eq!(facts.texts.eos.as_deref(), Some("</s>"));
        assert_eq!(facts.texts.pad, None);
    }

    #[test]
    fn the_tokenizer_config_rules_over_the_special_tokens_map() {
        let facts = TokenizerFacts::read(
            "m",
            Some(r#"{"eos_token": "A"}"#),
            Some(r#"{"eos_token": "B", "bos_token": "C"}"#),
        )
        .unwrap();
        assert_eq!(facts.texts.eos.as_deref(), Some("A"));
        assert_eq!(facts.texts.bos.as_deref(), Some("C"));
    }

    #[test]
    fn the_default_of_several_templates_is_taken_in_each_form() {
        for config in [
            r#"{"chat_template": "T"}"#,
            r#"{"chat_template": [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "T"}]}"#,
            r#"{"chat_template": {"default": "T", "rag": "R"}}"#,
            r#"{"chat_template": [{"name": "only", "template": "T"}]}"#,
        ] {
            assert_eq!(
                facts(config).chat_template.as_deref(),
                Some("T"),
                "{config}"
            );
        }
        assert!(facts(r#"{"chat_template": []}"#).chat_template.is_none());
    }

    #[test]
    fn several_templates_without_a_default_are_refused_by_name() {
        let config = r#"{"chat_template": {"a": "1", "b": "2"}}"#;
        let error = TokenizerFacts::read("m", Some(config), None).unwrap_err();
        assert!(error.to_string().contains("`a`, `b`"), "{error}");
    }

    #[test]
    fn ids_are_one_many_or_none() {
        let eos = |json| IdFacts::read("m", "config.json", Some(json)).unwrap().eos;
        assert_eq!(eos(r#"{"eos_token_id": 2}"#), [2]);
        assert_eq!(eos(r#"{"eos_token_id": [2, 5]}"#), [2, 5]);
        assert!(eos(r#"{"eos_token_id": null}"#).is_empty());
        assert!(eos(r#"{"eos_token_id": -1}"#).is_empty());
        assert!(eos("{}").is_empty());
    }

    #[test]
    fn a_broken_file_is_named() {
        let error = IdFacts::read("m", "generation_config.json", Some("{")).unwrap_err();
        assert!(
            error.to_string().contains("generation_config.json"),
            "{error}"
        );
    }
}
