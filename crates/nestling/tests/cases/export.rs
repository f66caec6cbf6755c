//! What an export keeps of its source.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use checkpoint::Folder;
use nestling::{Error, OpenModel, Settings, TrainOptions, inspect, train_model};
use serde_json::Value;
use tempfile::TempDir;

use crate::case::Case;
use crate::fp8;
use crate::words::Words;

/// Trains on a file of data; gives the folder that was written.
pub(crate) fn train(model: &Path, data: &Path, settings: &Settings) -> Result<TempDir, Error> {
    let place = TempDir::new().unwrap();
    train_model(TrainOptions {
        model: model.into(),
        data: Some(data),
        out: place.path(),
        settings,
        processes: None,
        observer: &|_| {},
        stop: &AtomicBool::new(false),
    })?;
    Ok(place)
}

/// Loads into a world and writes the model again, without a step between.
#[track_caller]
fn load_and_save(case: &Case, ids: &[u32], ranks: usize) -> TempDir {
    let place = TempDir::new().unwrap();
    let data: PathBuf = place.path().join("rows.jsonl");
    fs::write(&data, format!("{{\"input_ids\": {ids:?}}}\n")).unwrap();
    let settings = Settings {
        steps: Some(0),
        seq: ids.len(),
        ranks,
        threads: 1,
        recipe: "f32".to_owned(),
        ..Settings::default()
    };
    train(&case.model(), &data, &settings).unwrap()
}

/// Every tensor of the model comes back as it was, through any number of ranks; FP8
/// codes come back as the nearest bf16.
#[track_caller]
pub(crate) fn comes_back(case: &Case, source: &OpenModel, ids: &[u32], ranks: usize) {
    let out = load_and_save(case, ids, ranks);
    let written = OpenModel::open(out.path()).unwrap();
    let names = source.model.units.iter().flat_map(|unit| &unit.params);
    for param in names {
        let found = bytes_of(&written.folder, &param.name);
        let tensor = source.folder.find(&param.name).unwrap();
        let expected = if tensor.scales.is_some() {
            let values = fp8::values_of(&source.folder, &param.name);
            let rounded = values.iter().map(|&value| half::bf16::from_f32(value));
            rounded.flat_map(half::bf16::to_le_bytes).collect()
        } else {
            bytes_of(&source.folder, &param.name)
        };
        assert!(found == expected, "{} on {ranks} ranks", param.name);
    }
}

#[track_caller]
pub(crate) fn bytes_of(folder: &Folder, name: &str) -> Vec<u8> {
    let tensor = folder.find(name).unwrap_or_else(|| panic!("no `{name}`"));
    let mut bytes = vec![0; usize::try_from(tensor.num_bytes()).unwrap()];
    let reader = folder.open_files().unwrap();
    reader
        .read_at(tensor, 0..tensor.num_bytes(), &mut bytes)
        .unwrap();
    bytes
}

/// Checks what is said of an export.
#[track_caller]
pub(crate) fn check(case: &Case, words: &mut Words, ids: &[u32]) {
    let out = load_and_save(case, ids, 2);
    check_folder(words, out.path());
}

/// Checks the words about an export against a folder that was written.
#[track_caller]
pub(crate) fn check_folder(words: &mut Words, out: &Path) {
    let found = inspect(out).unwrap();
    let tensors = || found.units.iter().flat_map(|unit| &unit.tensors);
    let stored = OpenModel::open(out).unwrap();
    let names = stored.folder.tensors().iter();
    let names: BTreeSet<&str> = names.map(|tensor| tensor.meta.name.as_str()).collect();
    if let Some(absent) = words.take::<Vec<String>>("must_not_contain") {
        for name in absent {
            assert!(!names.contains(name.as_str()), "{name} is in the export");
        }
    }
    if let Some(expected) = words.take::<usize>("tensors") {
        assert_eq!(names.len(), expected);
    }
    if let Some(rows) = words.take::<u64>("embedding_rows") {
        let first = tensors().next().expect("an embedding");
        assert_eq!(first.shape.first(), Some(&rows), "{}", first.name);
    }
    for word in [
        "config.eos_token_id",
        "generation_config.eos_token_id",
        "config.vocab_size",
    ] {
        if let Some(expected) = words.take::<Value>(word) {
            let (file, key) = word.split_once('.').expect("a file and a key");
            let text = fs::read_to_string(out.join(format!("{file}.json"))).unwrap();
            let json: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(json[key], expected, "{word}");
        }
    }
}
