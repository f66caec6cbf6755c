//! The index of a split checkpoint: which tensor stands in which file.

use std::collections::HashMap;
use std::fmt;
use std::path::{Component, Path};

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use crate::error::IndexFault;
use crate::header::MAX_TENSORS;

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
        let mut fault = None;
        let mut json = serde_json::Deserializer::from_str(text);
        let parsed = IndexSeed { fault: &mut fault }
            .deserialize(&mut json)
            .and_then(|index| json.end().map(|()| index));
        let raw = match (parsed, fault) {
            (_, Some(fault)) => return Err(fault),
            (parsed, None) => parsed.map_err(|source| IndexFault::NotJson { source })?,
        };
        let (files, number) = raw.map.sorted_files();
        if let Some(name) = files.iter().find(|name| !is_inside(name)) {
            return Err(IndexFault::BadFileName { name: name.clone() });
        }
        let mut tensors = raw.map.tensors;
        for (_, file) in &mut tensors {
            *file = number[*file];
        }
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

/// An index as it stands in JSON, duplicate tensors kept.
#[derive(Default)]
struct RawIndex {
    map: WeightMap,
    total_size: Option<u64>,
}

/// `weight_map`: each file name is held once, however many tensors the file has.
#[derive(Default)]
struct WeightMap {
    /// Tensor name and number of the file, as first seen.
    tensors: Vec<(String, usize)>,
    files: HashMap<String, usize>,
}

impl WeightMap {
    /// The files by name, and for each number as first seen the place among them.
    fn sorted_files(&self) -> (Vec<String>, Vec<usize>) {
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_unstable();
        let mut number = vec![0; files.len()];
        for (place, &(_, &seen)) in files.iter().enumerate() {
            number[seen] = place;
        }
        let names = files.into_iter().map(|(name, _)| name.clone());
        (names.collect(), number)
    }
}

struct IndexSeed<'a> {
    fault: &'a mut Option<IndexFault>,
}

impl<'de> DeserializeSeed<'de> for IndexSeed<'_> {
    type Value = RawIndex;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<RawIndex, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for IndexSeed<'_> {
    type Value = RawIndex;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawIndex, A::Error> {
        let mut index = RawIndex::default();
        let (mut has_map, mut has_metadata) = (false, false);
        while let Some(key) = map.next_key::<String>()? {
            let seen = match key.as_str() {
                "weight_map" => &mut has_map,
                "metadata" => &mut has_metadata,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if std::mem::replace(seen, true) {
                *self.fault = Some(IndexFault::DuplicateField { field: key });
                return Err(A::Error::custom("stopped"));
            }
            if key == "weight_map" {
                map.next_value_seed(WeightMapSeed {
                    map: &mut index.map,
                    fault: &mut *self.fault,
                })?;
            } else {
                index.total_size = map.next_value::<Advice>()?.total_size;
            }
        }
        Ok(index)
    }
}

struct WeightMapSeed<'a> {
    map: &'a mut WeightMap,
    fault: &'a mut Option<IndexFault>,
}

impl<'de> DeserializeSeed<'de> for WeightMapSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMapSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from tensors to files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<(), A::Error> {
        let WeightMap { tensors, files } = self.map;
        while let Some((tensor, file)) = pairs.next_entry::<String, String>()? {
            if tensors.len() == MAX_TENSORS {
                *self.fault = Some(IndexFault::TooManyTensors { limit: MAX_TENSORS });
                return Err(A::Error::custom("stopped"));
            }
            let next = files.len();
            tensors.push((tensor, *files.entry(file).or_insert(next)));
        }
        tensors.shrink_to_fit();
        Ok(())
    }
}

/// What an index says beside its map: whatever stands there is no error, and
/// nothing but two numbers is kept of it.
#[derive(Default)]
struct Advice {
    /// The value, if it is a whole number.
    number: Option<u64>,
    /// That of the field `total_size`, if it is an object.
    total_size: Option<u64>,
}

impl Advice {
    fn number(number: u64) -> Self {
        Self {
            number: Some(number),
            total_size: None,
        }
    }
}

impl<'de> Deserialize<'de> for Advice {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(AdviceVisitor)
    }
}

struct AdviceVisitor;

impl<'de> Visitor<'de> for AdviceVisitor {
    type Value = Advice;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Advice, A::Error> {
        let mut advice = Advice::default();
        while let Some(key) = map.next_key::<String>()? {
            if key == "total_size" {
                advice.total_size = map.next_value::<Advice>()?.number;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(advice)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Advice, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Advice::default())
    }

    fn visit_unit<E>(self) -> Result<Advice, E> {
        Ok(Advice::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Advice, E> {
        Ok(Advice::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Advice, E> {
        Ok(Advice::default())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Advice, E> {
        Ok(Advice::number(number))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Advice, E> {
        Ok(Advice::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Advice, E> {
        Ok(Advice::default())
    }
}

/// A map of strings kept as pairs: a map would swallow duplicates. There may be
/// `most`; whether there were more is left in the last field.
pub(crate) struct PairsSeed<'a> {
    pub(crate) pairs: &'a mut Vec<(String, String)>,
    pub(crate) most: usize,
    pub(crate) is_over: &'a mut bool,
}

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
            if self.pairs.len() == self.most {
                *self.is_over = true;
                return Err(A::Error::custom("too many pairs"));
            }
            self.pairs.push(pair);
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
    fn a_field_that_stands_twice_is_refused() {
        for field in ["weight_map", "metadata"] {
            let text = r#"{"weight_map": {"a": "x"}, "metadata": {}, "FIELD": {"b": "y"}}"#;
            let message = parse(&text.replace("FIELD", field)).unwrap_err();
            assert_eq!(message, format!("`{field}` stands in it twice"));
        }
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
