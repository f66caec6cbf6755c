//! The metadata of a GGUF file with types that were checked.

use checkpoint::gguf::{Metadata, Numbers, Texts, Value};

use super::ImportFault;

/// Reads keys, or says what is wrong with them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys<'a>(pub(super) &'a Metadata);

impl<'a> Keys<'a> {
    pub(super) fn has(self, key: &str) -> bool {
        self.0.get(key).is_some()
    }

    pub(super) fn size(self, key: &str) -> Result<u64, ImportFault> {
        need(key, self.size_or_none(key)?)
    }

    pub(super) fn size_or_none(self, key: &str) -> Result<Option<u64>, ImportFault> {
        self.read(key, "a whole number", Value::as_u64)
    }

    /// A float as the shortest decimal that reads back equal: 1e-5 and not the
    /// digits that widening it to f64 brings up.
    pub(super) fn float_or_none(self, key: &str) -> Result<Option<f64>, ImportFault> {
        self.read(key, "a finite float", |value| {
            match *value {
                Value::F32(number) => number.to_string().parse().ok(),
                Value::F64(number) => Some(number),
                _ => None,
            }
            .filter(|number: &f64| number.is_finite())
        })
    }

    pub(super) fn flag_or_none(self, key: &str) -> Result<Option<bool>, ImportFault> {
        self.read(key, "a truth value", |value| match *value {
            Value::Bool(flag) => Some(flag),
            _ => None,
        })
    }

    pub(super) fn text(self, key: &str) -> Result<&'a str, ImportFault> {
        need(key, self.text_or_none(key)?)
    }

    pub(super) fn text_or_none(self, key: &str) -> Result<Option<&'a str>, ImportFault> {
        self.read(key, "a string", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    pub(super) fn texts(self, key: &str) -> Result<&'a Texts, ImportFault> {
        let texts = self.read(key, "an array of strings", |value| match value {
            Value::Texts(texts) => Some(texts),
            _ => None,
        })?;
        need(key, texts)
    }

    pub(super) fn numbers(self, key: &str) -> Result<&'a Numbers, ImportFault> {
        let numbers = self.read(key, "an array of numbers", |value| match value {
            Value::Numbers(numbers) => Some(numbers),
            _ => None,
        })?;
        need(key, numbers)
    }

    fn read<T>(
        self,
        key: &str,
        expected: &'static str,
        take: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ImportFault> {
        let Some(value) = self.0.get(key) else {
            return Ok(None);
        };
        take(value).map(Some).ok_or_else(|| ImportFault::BadKey {
            key: key.to_owned(),
            found: value.kind().to_owned(),
            expected,
        })
    }
}

fn need<T>(key: &str, value: Option<T>) -> Result<T, ImportFault> {
    value.ok_or_else(|| ImportFault::MissingKey {
        key: key.to_owned(),
    })
}
