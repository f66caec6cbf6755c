//! Typed look-ups in a JSON object, with errors that name the key.

use serde_json::{Map, Value};

use crate::SpecError;

/// A JSON object inside a config, and where it stands there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keys<'a> {
    map: &'a Map<String, Value>,
    /// The key of this object in its parent, empty at the top.
    within: &'a str,
}

impl<'a> Keys<'a> {
    pub(crate) fn top(value: &'a Value) -> Result<Self, SpecError> {
        let map = value
            .as_object()
            .ok_or(SpecError::NotAnObject { found: kind(value) })?;
        Ok(Self { map, within: "" })
    }

    /// The value of a key; `null` is as good as absent.
    pub(crate) fn value(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether a key is there at all, even as `null`.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The names of all keys.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(String::as_str)
    }

    /// The object under a key.
    pub(crate) fn object(&self, key: &'a str) -> Result<Option<Keys<'a>>, SpecError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Keys { map, within: key })),
            Some(found) => Err(self.bad_value(key, "an object", found)),
        }
    }

    pub(crate) fn size(&self, key: &str) -> Result<usize, SpecError> {
        self.size_or_none(key)?.ok_or_else(|| self.missing(key))
    }

    pub(crate) fn size_or(&self, key: &str, default: usize) -> Result<usize, SpecError> {
        Ok(self.size_or_none(key)?.unwrap_or(default))
    }

    /// A whole number that may be 0.
    pub(crate) fn count_or(&self, key: &str, default: usize) -> Result<usize, SpecError> {
        match self.value(key) {
            Some(value) if value.as_u64() == Some(0) => Ok(0),
            _ => self.size_or(key, default),
        }
    }

    /// A positive whole number. The limit keeps a product of two sizes inside
    /// 64 bits, so that only sums and products of three need a check.
    pub(crate) fn size_or_none(&self, key: &str) -> Result<Option<usize>, SpecError> {
        const LIMIT: u64 = 1 << 31;
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_u64()
            .filter(|&size| size > 0 && size < LIMIT)
            .and_then(|size| usize::try_from(size).ok())
            .map(Some)
            .ok_or_else(|| self.bad_value(key, "a whole number from 1 to 2^31 - 1", value))
    }

    pub(crate) fn flag_or(&self, key: &str, default: bool) -> Result<bool, SpecError> {
        let Some(value) = self.value(key) else {
            return Ok(default);
        };
        value
            .as_bool()
            .ok_or_else(|| self.bad_value(key, "true or false", value))
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, SpecError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.bad_value(key, "a string", value))
    }

    /// A finite number above zero.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>, SpecError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_f64()
            // In f32 too: all of them are used as f32 in the end.
            .filter(|&number| rounded(number) > 0.0 && rounded(number).is_finite())
            .map(Some)
            .ok_or_else(|| self.bad_value(key, "a number above 0", value))
    }

    /// A finite number above zero that is only ever used as f32.
    pub(crate) fn positive_or(&self, key: &str, default: f32) -> Result<f32, SpecError> {
        Ok(self.positive(key)?.map_or(default, rounded))
    }

    pub(crate) fn missing(&self, key: &str) -> SpecError {
        SpecError::Missing {
            key: self.full_name(key),
        }
    }

    pub(crate) fn bad_value(&self, key: &str, expected: &'static str, found: &Value) -> SpecError {
        SpecError::BadValue {
            key: self.full_name(key),
            expected,
            found: shortened(found),
        }
    }

    pub(crate) fn unsupported(&self, key: &str, found: &Value, supported: &str) -> SpecError {
        SpecError::Unsupported {
            key: self.full_name(key),
            found: shortened(found),
            supported: supported.to_owned(),
        }
    }

    fn full_name(&self, key: &str) -> String {
        if self.within.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.within)
        }
    }
}

/// The nearest f32.
#[expect(
    clippy::cast_possible_truncation,
    reason = "rounding is what is asked for"
)]
pub(crate) fn rounded(number: f64) -> f32 {
    number as f32
}

/// A value as JSON, cut where it would fill the screen.
fn shortened(value: &Value) -> String {
    const MOST: usize = 120;
    let text = value.to_string();
    if text.chars().count() <= MOST {
        return text;
    }
    text.chars().take(MOST).chain("...".chars()).collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
