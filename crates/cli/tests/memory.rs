//! What the program takes, by the kernel's figures: each run is a process of its
//! own, so that nothing else is counted.
#![expect(clippy::unwrap_used, reason = "in a test a failure may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

fn nestling(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_nestling"))
        .args(arguments)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// A random model and rows of ids.
struct Place {
    folder: TempDir,
    seq: usize,
}

impl Place {
    fn new(preset: &str, vocab: usize, seq: usize, num_rows: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Self { folder, seq };
        nestling(&["init", preset, "--out", &place.path("model")]);
        let lines = (0..num_rows).map(|row| {
            let ids: Vec<_> = (0..seq).map(|at| (row + at * at * 31) % vocab).collect();
            format!("{}\n", json!({ "input_ids": ids }))
        });
        fs::write(place.path("rows.jsonl"), lines.collect::<String>()).unwrap();
        place
    }

    fn path(&self, name: &str) -> String {
        let path: PathBuf = self.folder.path().join(name);
        path.to_str().unwrap().to_owned()
    }

    /// Two steps of one row a rank; every event of the run.
    fn train(&self, flags: &[&str]) -> Vec<Value> {
        let out = self.path("out");
        let (model, rows, seq) = (self.path("model"), self.path("rows.jsonl"), self.seq);
        let seq = seq.to_string();
        let fixed = [
            "train", &model, &rows, "--out", &out, "--json", "--steps", "2", "--seq", &seq,
            "--micro-batch", "1",
        ];
        let lines = nestling(&[&fixed, flags].concat());
        fs::remove_dir_all(Path::new(&out)).unwrap();
        let lines = lines.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }
}

#[test]
fn x() {
    let place = Place::new("135m", 49152, 512, 2);
    for clip in ["off", "previous"] {
        for recipe in ["f32", "bf16"] {
        let events = place.train(&["--recipe", recipe, "--clip", clip, "--global-batch", "1"]);
        for e in &events { if e["event"] != "start" { println!("{e}"); } }
        }
    }
}
