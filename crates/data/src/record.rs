//! What one line of data holds.
//!
//! A line is an object with exactly one of `text`, `messages` and `input_ids`
//! (which may bring `labels`). Other keys are the data set's own business, save
//! `tools`: rendering without them would silently train on other text.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::chat::Message;
use crate::error::{DataError, Result};

/// A line's content.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// Plain text.
    Text(String),
    /// A conversation.
    Messages(Vec<Message>),
    /// Tokens made elsewhere.
    Ids {
        /// The tokens.
        ids: Vec<i64>,
        /// For each token the target it stands for, or -100.
        labels: Option<Vec<i64>>,
    },
}

/// A line as JSON; a key that is present but null is `Some(Null)`.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(default, deserialize_with = "present")]
    text: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    messages: Option<Value>,
    // Not a `Value`, which would take 16 times the memory of a number.
    input_ids: Option<Vec<i64>>,
    labels: Option<Vec<i64>>,
    tools: Option<Value>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Record {
    /// Reads a line.
    pub fn parse(line: &str) -> Result<Self> {
        if !line.trim_start().starts_with('{') {
            // A derived reader would take an array for the fields in order.
            serde_json::from_str::<serde::de::IgnoredAny>(line)
                .map_err(|source| DataError::NotJson { source })?;
            return Err(bad("a JSON object", "another kind of value"));
        }
        let line: Line =
            serde_json::from_str(line).map_err(|source| DataError::NotJson { source })?;
        if line.tools.is_some_and(|tools| !is_empty(&tools)) {
            return Err(bad(
                "a line without `tools`",
                "`tools`, which are not supported yet",
            ));
        }
        if line.labels.is_some() && line.input_ids.is_none() {
            return Err(bad("`labels` only beside `input_ids`", "`labels` alone"));
        }
        match (line.text, line.messages, line.input_ids) {
            (Some(text), None, None) => text_of(text),
            (None, Some(messages), None) => messages_of(messages),
            (None, None, Some(ids)) => ids_of(ids, line.labels),
            (None, None, None) => Err(bad(ONE_KEY, "none of them")),
            (text, messages, ids) => {
                let present = [
                    ("`text`", text.is_some()),
                    ("`messages`", messages.is_some()),
                    ("`input_ids`", ids.is_some()),
                ];
                let names = present.iter().filter(|(_, there)| *there);
                let names: Vec<_> = names.map(|(name, _)| *name).collect();
                Err(bad(ONE_KEY, names.join(" and ")))
            }
        }
    }
}

const ONE_KEY: &str = "exactly one of `text`, `messages` and `input_ids`";

fn bad(expected: &'static str, found: impl Into<String>) -> DataError {
    DataError::BadRecord {
        expected,
        found: found.into(),
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn text_of(value: Value) -> Result<Record> {
    match value {
        Value::String(text) if !text.is_empty() => Ok(Record::Text(text)),
        Value::String(_) => Err(bad("a `text` with something in it", "an empty string")),
        other => Err(bad("a string as `text`", kind(&other))),
    }
}

fn ids_of(ids: Vec<i64>, labels: Option<Vec<i64>>) -> Result<Record> {
    if ids.is_empty() {
        return Err(bad("`input_ids` with something in it", "an empty list"));
    }
    match &labels {
        Some(labels) if labels.len() != ids.len() => Err(bad(
            "as many `labels` as `input_ids`",
            format!("{} labels for {} ids", labels.len(), ids.len()),
        )),
        _ => Ok(Record::Ids { ids, labels }),
    }
}

fn messages_of(value: Value) -> Result<Record> {
    let Value::Array(messages) = value else {
        return Err(bad("a list as `messages`", kind(&value)));
    };
    if messages.is_empty() {
        return Err(bad("`messages` with something in it", "an empty list"));
    }
    let messages = messages.into_iter().enumerate();
    let messages: Result<Vec<_>> = messages
        .map(|(at, message)| message_of(at, message))
        .collect();
    Ok(Record::Messages(messages?))
}

fn message_of(at: usize, value: Value) -> Result<Message> {
    let Value::Object(mut fields) = value else {
        return Err(bad(
            "objects with `role` and `content` as `messages`",
            format!("{} as message {at}", kind(&value)),
        ));
    };
    let role = role_of(at, &mut fields)?;
    let content = match fields.shift_remove("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => joined(at, parts)?,
        other => {
            let found = other.as_ref().map_or("none", kind);
            return Err(bad(
                "a string or a list of text parts as `content`",
                format!("{found} in message {at} ({role})"),
            ));
        }
    };
    Ok(Message {
        role,
        content,
        extra: fields,
    })
}

fn role_of(at: usize, fields: &mut Map<String, Value>) -> Result<String> {
    match fields.shift_remove("role") {
        Some(Value::String(role)) if !role.is_empty() => Ok(role),
        other => {
            let found = other.as_ref().map_or("none", kind);
            Err(bad(
                "a string as `role`",
                format!("{found} in message {at}"),
            ))
        }
    }
}

/// Joins the parts of a content, all of which must be text.
fn joined(at: usize, parts: Vec<Value>) -> Result<String> {
    let mut text = String::new();
    for part in parts {
        match part {
            Value::String(part) => text.push_str(&part),
            Value::Object(part) if part.get("type").is_none_or(|kind| kind == "text") => {
                match part.get("text") {
                    Some(Value::String(part)) => text.push_str(part),
                    _ => return Err(bad(PARTS, format!("a part without text in message {at}"))),
                }
            }
            Value::Object(part) => {
                let kind = part.get("type").cloned().unwrap_or_default();
                return Err(bad(PARTS, format!("a part of type {kind} in message {at}")));
            }
            other => return Err(bad(PARTS, format!("{} in message {at}", kind(&other)))),
        }
    }
    Ok(text)
}

const PARTS: &str = "parts of type text in `content`";

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refuses(line: &str, word: &str) {
        let error = Record::parse(line).unwrap_err();
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        assert!(text.contains(word), "{text}");
    }

    #[test]
    fn each_kind_is_known_by_its_key() {
        assert_eq!(
            Record::parse(r#"{"id": 7, "text": "a"}"#).unwrap(),
            Record::Text("a".to_owned())
        );
        assert_eq!(
            Record::parse(r#"{"input_ids": [1, 2], "labels": [-100, 2]}"#).unwrap(),
            Record::Ids {
                ids: vec![1, 2],
                labels: Some(vec![-100, 2])
            }
        );
        let line = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}, "c"]},
            {"content": "", "role": "assistant", "name": "x"}], "tools": null}"#;
        let mut second = Message::new("assistant", "");
        second.extra.insert("name".to_owned(), "x".into());
        assert_eq!(
            Record::parse(line).unwrap(),
            Record::Messages(vec![Message::new("user", "abc"), second])
        );
    }

    #[test]
    fn a_line_holds_exactly_one_kind() {
        refuses(r#"{"a": 1}"#, "none of them");
        refuses(
            r#"{"text": "a", "input_ids": [1]}"#,
            "`text` and `input_ids`",
        );
        refuses(r#"{"labels": [1], "text": "a"}"#, "`labels` alone");
        refuses(r#"["a", null]"#, "another kind of value");
    }

    #[test]
    fn broken_json_keeps_the_parsers_words() {
        refuses("{\"text\": \"a\"", "EOF");
        refuses("{\"text\": \"a\"} x", "trailing");
        refuses("nonsense", "expected ident");
        refuses(r#"{"text": "a", "text": "b"}"#, "duplicate");
        refuses(r#"{"input_ids": [1.5]}"#, "invalid type");
        refuses(r#"{"text": "\ud800"}"#, "hex escape");
    }

    #[test]
    fn empty_and_null_are_named() {
        refuses(r#"{"text": ""}"#, "empty string");
        refuses(r#"{"text": null}"#, "null");
        refuses(r#"{"messages": []}"#, "empty list");
        refuses(r#"{"messages": null}"#, "null");
        refuses(r#"{"input_ids": []}"#, "empty list");
        refuses(
            r#"{"messages": [{"role": "user", "content": null}]}"#,
            "null in message 0 (user)",
        );
        refuses(r#"{"messages": [{"role": "user"}]}"#, "none in message 0");
        refuses(r#"{"messages": [{"content": "a"}]}"#, "none in message 0");
        refuses(r#"{"messages": ["a"]}"#, "a string as message 0");
    }

    #[test]
    fn what_is_not_supported_is_not_dropped_in_silence() {
        refuses(
            r#"{"messages": [{"role": "user", "content": "a"}], "tools": [{}]}"#,
            "`tools`",
        );
        refuses(
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#,
            "image_url",
        );
        refuses(
            r#"{"input_ids": [1, 2], "labels": [1]}"#,
            "1 labels for 2 ids",
        );
    }
}
