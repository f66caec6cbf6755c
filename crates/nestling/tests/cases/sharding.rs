//! Models cut for any number of ranks: what is gathered, what stays frozen, and one step
//! however its rows are split.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use nestling::{OpenModel, Settings};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::case::{Case, does};
use crate::export::{bytes_of, train};
use crate::sha256::sha256_hex;
use crate::words::Words;

#[test]
fn rows_fewer_than_ranks_come_back_whole() {
    does("SH01");
}

#[test]
fn a_step_is_a_mean_over_its_targets_however_it_is_split() {
    does("SH06");
}

#[test]
fn frozen_and_trained_parameters_share_a_block() {
    does("SH10");
}

#[test]
fn heads_fewer_than_ranks_change_nothing() {
    does("SH14");
}

/// How the rows of a step are dealt.
#[derive(Debug, Deserialize)]
struct Split {
    world: usize,
    micro_batch: usize,
    accumulate: usize,
}

/// A row, and which of its tokens count.
#[derive(Debug, Deserialize)]
struct Row {
    input_ids: Vec<u32>,
    loss_mask: Vec<u8>,
}

/// Checks what is said of shards and of steps over several ranks.
#[track_caller]
pub(crate) fn check(case: &Case, words: &mut Words) {
    if let Some(expected) = words.take::<BTreeMap<String, String>>("gathered_raw_sha256") {
        // What every world gathers is held to the source's bytes.
        let opened = OpenModel::open(&case.model()).unwrap();
        for (name, sha) in expected {
            assert_eq!(sha256_hex(&bytes_of(&opened.folder, &name)), sha, "{name}");
        }
    }
    let Some(verdict) = words.take::<String>("train") else {
        return;
    };
    assert_eq!(verdict, "ok");
    match words.take::<Vec<String>>("trainable") {
        Some(trainable) => check_frozen(case, words, &trainable),
        None => check_splits(case, words),
    }
}

/// Everything but `trainable` keeps its bits and costs no state.
#[track_caller]
fn check_frozen(case: &Case, words: &mut Words, trainable: &[String]) {
    let source = OpenModel::open(&case.model()).unwrap();
    let trainable: BTreeSet<&str> = trainable.iter().map(String::as_str).collect();
    let params = || source.model.units.iter().flat_map(|unit| &unit.params);
    let frozen = params().filter(|param| !trainable.contains(param.name.as_str()));
    let freeze: Vec<String> = frozen.map(|param| param.name.clone()).collect();
    let trained = params().filter(|param| trainable.contains(param.name.as_str()));
    let num_trained: usize = trained.map(|param| param.rows * param.cols).sum();
    assert_eq!(words.take("trainable_parameters"), Some(num_trained));
    assert_eq!(
        words.take("parameters"),
        Some(source.model.spec.num_parameters())
    );
    let state_bytes: f64 = words.take("adam_state_bytes_f32").unwrap();
    for ranks in words.take::<Vec<usize>>("worlds").unwrap() {
        let settings = Settings {
            steps: Some(3),
            seq: 8,
            micro_batch: 1,
            global_batch: 4,
            lr: 1e-2,
            freeze: freeze.clone(),
            ..settings(ranks)
        };
        let rows = (0..4_u32).map(|row| json!({"input_ids": (row..row + 8).collect::<Vec<_>>()}));
        let out = train_rows(case, rows, &settings);
        let written = OpenModel::open(out.path()).unwrap();
        for param in params() {
            let name = &param.name;
            let is_same = bytes_of(&written.folder, name) == bytes_of(&source.folder, name);
            let is_frozen = !trainable.contains(name.as_str());
            assert_eq!(is_same, is_frozen, "{name} on {ranks} ranks");
        }
        let moments_mib: f64 = events(out.path(), "ledger")
            .iter()
            .flat_map(|ledger| ledger["accounts"].as_array().unwrap().clone())
            .filter(|account| account["name"] == "moments")
            .map(|account| account["held_mib"].as_f64().unwrap())
            .sum();
        let found = moments_mib * f64::from(1 << 20);
        assert!((found - state_bytes).abs() < 1.0, "{ranks} ranks: {found}");
    }
}

/// Loss, norm and gradients of one step are the same for every split.
#[track_caller]
fn check_splits(case: &Case, words: &mut Words) {
    let rows: Vec<Row> = serde_json::from_str(&case.read("batch.json")).unwrap();
    let seq = rows.iter().map(|row| row.input_ids.len()).max().unwrap();
    let expected = ["loss", "grad_norm"].map(|word| words.take::<f64>(word).unwrap());
    let num_targets: u64 = words.take("target_tokens").unwrap();
    let rtol: f64 = words.take("rtol").unwrap();
    let file: String = words.take("grads_file").unwrap();
    let gradients: BTreeMap<String, Value> = serde_json::from_str(&case.read(&file)).unwrap();
    let source = OpenModel::open(&case.model()).unwrap();
    for split in words.take::<Vec<Split>>("splits").unwrap() {
        assert_eq!(
            split.world * split.micro_batch * split.accumulate,
            rows.len()
        );
        let settings = Settings {
            steps: Some(1),
            seq,
            micro_batch: split.micro_batch,
            global_batch: rows.len(),
            // Then the first update of AdamW is g / (|g| + 1).
            lr: 1.0,
            eps: 1.0,
            ..settings(split.world)
        };
        let out = train_rows(case, rows.iter().map(|row| padded(row, seq)), &settings);
        let step = &events(out.path(), "step")[0];
        assert_eq!(step["num_targets"], num_targets, "{split:?}");
        for (word, expected) in ["loss", "grad_norm"].iter().zip(expected) {
            let found = step[word].as_f64().unwrap();
            let off = (found / expected - 1.0).abs();
            assert!(off <= rtol, "{split:?}: {word} {found} is not {expected}");
        }
        let written = OpenModel::open(out.path()).unwrap();
        for (name, expected) in &gradients {
            let before = numbers(&bytes_of(&source.folder, name));
            let after = numbers(&bytes_of(&written.folder, name));
            let expected = flat(expected);
            assert_eq!(expected.len(), before.len(), "{name}");
            for ((before, after), expected) in before.iter().zip(after).zip(expected) {
                let update = f64::from(before - after);
                let found = update / (1.0 - update.abs());
                // The weight itself is an f32 of about 1.
                let most = rtol * expected.abs() + 1e-6;
                assert!(
                    (found - expected).abs() <= most,
                    "{name}: {found}, {expected}"
                );
            }
        }
    }
}

fn settings(ranks: usize) -> Settings {
    Settings {
        ranks,
        threads: 1,
        recipe: "f32".to_owned(),
        clip: nestling::ClipMode::Off,
        ..Settings::default()
    }
}

/// The row and tokens behind it that nobody looks at.
fn padded(row: &Row, seq: usize) -> Value {
    let mut ids = row.input_ids.clone();
    let labels = row.input_ids.iter().zip(&row.loss_mask);
    let mut labels: Vec<i64> = labels
        .map(|(&id, &counts)| if counts == 1 { id.into() } else { -100 })
        .collect();
    ids.resize(seq, 0);
    labels.resize(seq, -100);
    json!({"input_ids": ids, "labels": labels})
}

#[track_caller]
fn train_rows(case: &Case, rows: impl Iterator<Item = Value>, settings: &Settings) -> TempDir {
    let place = TempDir::new().unwrap();
    let data = place.path().join("rows.jsonl");
    let mut text = String::new();
    rows.for_each(|row| writeln!(text, "{row}").unwrap());
    fs::write(&data, text).unwrap();
    train(&case.model(), &data, settings).unwrap()
}

/// The events of one kind in a run's log.
fn events(out: &Path, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(out.join("run/metrics.jsonl")).unwrap();
    let events = text.lines().map(|line| serde_json::from_str(line).unwrap());
    events
        .filter(|event: &Value| event["event"] == kind)
        .collect()
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    let numbers = bytes.as_chunks().0.iter();
    numbers.map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// All numbers of nested lists.
fn flat(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(parts) => parts.iter().flat_map(flat).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}
