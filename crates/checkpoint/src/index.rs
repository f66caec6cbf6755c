//! The index of a split checkpoint: which tensor stands in which file.

use std::fmt;
use std::path::{Component, Path};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::error::IndexFault;

/// The name of the index in a folder.
pub(crate) const INDEX_NAME: &str = "model.safetensors.index.json";

/// A whole index.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Index {
    /// The files, by name.
    pub(crate) files: Vec<String>,
    /// Tensor name and file number, by tensor name.
    pub(crate) tensors: Vec<(String, usize)>,
    /// The bytes of all tensors, as far as the writer is to be believed.
    pub(crate) total_size: Option<u64>,
}

impl Index {
    /// Reads the text of an index.
    pub(crate) fn parse(text: &str) -> Result<Self, IndexFault> {
        let raw: RawIndex =
            serde_json::from_str(text).map_err(|source| IndexFault::NotJson { source })?;
        let mut files: Vec<String> = raw
            .weight_map
            .iter()
            .map(|(_, file)| file.clone())
            .collect();
        files.sort_unstable();
        files.dedup();
        if let Some(name) = files.iter().find(|name| !is_inside(name)) {
            return Err(IndexFault::BadFileName { name: name.clone() });
        }
        let mut tensors: Vec<_> = raw
            .weight_map
            .into_iter()
            // The list holds every file of the map, so the default is never taken.
            .map(|(tensor, file)| (tensor, files.binary_search(&file).unwrap_or_default()))
            .collect();
        tensors.sort_unstable();
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(IndexFault::Duplicate {
                tensor: pair[0].0.clone(),
            });
        }
        if tensors.is_empty() {
            return Err(IndexFault::Empty);
        }
        Ok(Self {
            files,
            tensors,
            total_size: raw.total_size,
        })
    }
}

/// Whether a name stays in the folder: a file, or one in a folder below.
fn is_inside(name: &str) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    !name.is_empty()
        && !name.contains('\\')
        && !name.contains(char::is_control)
        // `a/./b` and `a//b` are folded by `components`, so the text is asked too.
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && Path::new(name).components().all(plain)
}

/// An index as it stands in JSON, duplicates kept.
struct RawIndex {
    weight_map: Vec<(String, String)>,
    total_size: Option<u64>,
}

impl<'de> Deserialize<'de> for RawIndex {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(IndexVisitor)
    }
}

struct IndexVisitor;

impl<'de> Visitor<'de> for IndexVisitor {
    type Value = RawIndex;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawIndex, A::Error> {
        let mut index = RawIndex {
            weight_map: Vec::new(),
            total_size: None,
        };
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "weight_map" => map.next_value_seed(PairsSeed(&mut index.weight_map))?,
                // Advisory, so whatever else stands there is no error.
                "metadata" => {
                    let metadata: serde_json::Value = map.next_value()?;
                    index.total_size = metadata
                        .get("total_size")
                        .and_then(serde_json::Value::as_u64);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(index)
    }
}

/// A map of strings kept as pairs: a map would swallow duplicates.
pub(crate) struct PairsSeed<'a>(pub(crate) &'a mut Vec<(String, String)>);

impl<'de> DeserializeSeed<'de> for PairsSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for PairsSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(pair) = map.next_entry()? {
            self.0.push(pair);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Index, String> {
        Index::parse(text).map_err(|fault| fault.to_string())
    }

    #[test]
    fn names_come_from_the_index_only() {
        let index = parse(
            r#"{"weight_map": {"b": "weights/part b.safetensors", "a": "x.safetensors"},
                "metadata": {"total_size": 12}, "other": [1]}"#,
        )
        .unwrap();
        assert_eq!(index.files, ["weights/part b.safetensors", "x.safetensors"]);
        assert_eq!(index.tensors, [("a".to_owned(), 1), ("b".to_owned(), 0)]);
        assert_eq!(index.total_size, Some(12));
    }

    #[test]
    fn a_name_that_leaves_the_folder_is_refused() {
        for name in [
            "",
            "/x",
            "../x",
            "a/../../x",
            "a//b",
            "./x",
            "a/",
            "..",
            "a\\\\b",
            "a\\u0000",
        ] {
            let text = format!(r#"{{"weight_map": {{"t": "{name}"}}}}"#);
            assert!(
                parse(&text).unwrap_err().contains("inside the folder"),
                "{name}"
            );
        }
    }

    #[test]
    fn duplicates_are_compared_decoded() {
        let text = r#"{"weight_map": {"a": "x", "\u0061": "y"}}"#;
        assert_eq!(parse(text).unwrap_err(), "tensor `a` is mapped twice");
    }

    #[test]
    fn an_index_of_nothing_is_refused() {
        for text in ["{}", r#"{"weight_map": {}}"#] {
            assert!(parse(text).unwrap_err().contains("empty"));
        }
        for text in [
            "[]",
            r#"{"weight_map": []}"#,
            r#"{"weight_map": {"a": 1}}"#,
            "{",
        ] {
            assert!(parse(text).unwrap_err().contains("not the JSON"));
        }
    }

    #[test]
    fn a_total_size_that_is_no_number_is_ignored() {
        for metadata in ["null", "[]", r#"{"total_size": 1.5}"#] {
            let text = format!(r#"{{"metadata": {metadata}, "weight_map": {{"a": "x"}}}}"#);
            assert_eq!(parse(&text).unwrap().total_size, None);
        }
    }
}
