//! Where chat templates rely on Python: printing, JSON, tags.

use std::borrow::Cow;
use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};
use serde::Serialize;
use serde_json::Value as Json;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::bounded::too_long;

/// Prints a value of a `{{ ... }}` as Python's `str` does.
///
/// A value may not be longer than a whole text: a block that is set to itself
/// twice doubles with each repetition and is written nowhere until the end.
pub(super) fn print(out: &mut Output, _state: &State, value: &Value) -> Result<(), Error> {
    if value
        .as_str()
        .is_some_and(|text| text.len() > MOST_PRINTED_BYTES)
    {
        return Err(too_long(MOST_PRINTED_BYTES));
    }
    out.write_str(&to_string(value)).map_err(Error::from)
}

/// Bytes that a template prints at once.
const MOST_PRINTED_BYTES: usize = 64 << 20;

/// Python's `str`: `True`, `None`, lists with single quotes, text as it is.
pub(super) fn to_string(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => repr(value),
    }
}

/// Python's `repr`, as far as templates print containers.
fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool if value.is_true() => "True".to_owned(),
        ValueKind::Bool => "False".to_owned(),
        ValueKind::String => quoted(&value.to_string()),
        ValueKind::Seq => format!("[{}]", joined(value, repr)),
        ValueKind::Map => {
            let pair = |key: &Value| {
                let item = value.get_item(key).unwrap_or_default();
                format!("{}: {}", repr(key), repr(&item))
            };
            format!("{{{}}}", joined(value, |key| pair(key)))
        }
        _ => value.to_string(),
    }
}

fn joined(value: &Value, one: impl Fn(&Value) -> String) -> String {
    let items = value.try_iter().into_iter().flatten();
    items.map(|item| one(&item)).collect::<Vec<_>>().join(", ")
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// Python's `json.dumps` with the defaults of `transformers`: text outside
/// ASCII stays, nothing is escaped for HTML, `, ` and `: ` separate.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine hands filters their arguments by value"
)]
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;

    let mut json = serde_json::to_value(value).map_err(not_json)?;
    if sort_keys == Some(true) {
        json.sort_all_objects();
    }
    let text = match indent {
        Some(width) => {
            let width = " ".repeat(width.min(64));
            written(&json, PrettyFormatter::with_indent(width.as_bytes()))?
        }
        None => written(&json, Separators::new(separators))?,
    };
    Ok(if ensure_ascii == Some(true) {
        escape_non_ascii(&text)
    } else {
        text
    })
}

fn written(json: &Json, formatter: impl Formatter) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, formatter);
    json.serialize(&mut serializer).map_err(not_json)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn not_json(error: serde_json::Error) -> Error {
    Error::new(
        ErrorKind::BadSerialization,
        "value cannot be written as JSON",
    )
    .with_source(error)
}

/// JSON on one line with chosen separators.
struct Separators {
    item: String,
    key: String,
}

impl Separators {
    fn new(given: Option<Vec<String>>) -> Self {
        let mut given = given.unwrap_or_default().into_iter();
        Self {
            item: given.next().unwrap_or_else(|| ", ".to_owned()),
            key: given.next().unwrap_or_else(|| ": ".to_owned()),
        }
    }

    fn begin<W: ?Sized + std::io::Write>(&self, out: &mut W, first: bool) -> std::io::Result<()> {
        if first {
            return Ok(());
        }
        out.write_all(self.item.as_bytes())
    }
}

impl Formatter for Separators {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.begin(out, first)
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        self.begin(out, first)
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        out: &mut W,
    ) -> std::io::Result<()> {
        out.write_all(self.key.as_bytes())
    }
}

/// Outside ASCII there are only strings in JSON, so no parsing is needed.
fn escape_non_ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

/// Turns `{% generation %}` and `{% endgeneration %}` into a condition that
/// always holds: the same block to the whitespace rules, and no effect.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let inner = tag.trim_start_matches(['-', '+']);
        out.push_str(&tag[..tag.len() - inner.len()]);
        let word = inner.trim_start();
        let word_end = word.find(|c: char| !c.is_alphanumeric() && c != '_');
        let (name, after) = word.split_at(word_end.unwrap_or(word.len()));
        let new: Cow<'_, str> = match name {
            "generation" => " if true".into(),
            "endgeneration" => " endif".into(),
            _ => inner[..inner.len() - after.len()].into(),
        };
        out.push_str(&new);
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_keep_their_whitespace_control() {
        assert_eq!(
            without_generation_tags(
                "a{%- generation -%}b{% endgeneration %}{% if x %}{{ generation }}{%"
            ),
            "a{%- if true -%}b{% endif %}{% if x %}{{ generation }}{%"
        );
    }

    #[test]
    fn containers_print_as_in_python() {
        let value = Value::from_serialize(serde_json::json!({"a": [1, true, null, "it's", "x\n"]}));
        assert_eq!(
            to_string(&value),
            r#"{'a': [1, True, None, "it's", 'x\n']}"#
        );
    }
}
