//! Writes the demo's assets that are made from the grammar: the tokenizer and the
//! lessons.
//!
//! `make_demo_assets ASSETS_DIR` writes `model/tokenizer.json`, `train.jsonl` and
//! `eval.jsonl`. The same program always writes the same bytes.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use demo::lessons;

mod bpe;

fn main() -> Result<(), Box<dyn Error>> {
    let assets = std::env::args().nth(1).map(PathBuf::from);
    let assets = assets.ok_or("usage: make_demo_assets ASSETS_DIR")?;
    let tokenizer = bpe::tokenizer_json().map_err(|error| error.to_string())?;
    fs::write(assets.join("model/tokenizer.json"), tokenizer)?;
    fs::write(
        assets.join("train.jsonl"),
        lessons::jsonl(&lessons::train()),
    )?;
    fs::write(assets.join("eval.jsonl"), lessons::jsonl(&lessons::eval()))?;
    Ok(())
}
