//! Writes the text that the demo's model is trained on from nothing.
//!
//! `make_demo_text OUT_DIR NUM_TOKENS SEED` writes `pretrain.jsonl` with about that
//! many tokens and `held_out.jsonl` with a 32nd of them. No document is in both.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use demo::grammar::{Document, document, held_out};
use tokenizers::Tokenizer;

/// The held-out text is this many times shorter.
const HELD_OUT_PART: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [out, num_tokens, seed] = args.as_slice() else {
        return Err("usage: make_demo_text OUT_DIR NUM_TOKENS SEED".into());
    };
    let out = PathBuf::from(out);
    let num_tokens: usize = num_tokens.parse()?;
    let seed: u64 = seed.parse()?;
    fs::create_dir_all(&out)?;
    write(&out.join("pretrain.jsonl"), seed, num_tokens, |document| {
        !held_out(document)
    })?;
    let num_held_out = num_tokens / HELD_OUT_PART;
    write(
        &out.join("held_out.jsonl"),
        seed + 1,
        num_held_out,
        held_out,
    )
}

/// Writes documents of `seed` that pass `wanted` until there are `num_tokens`.
fn write(
    path: &Path,
    seed: u64,
    num_tokens: usize,
    wanted: impl Fn(&Document) -> bool,
) -> Result<(), Box<dyn Error>> {
    let (_, tokenizer) = demo::FILES
        .iter()
        .find(|(name, _)| *name == "tokenizer.json")
        .ok_or("the demo has no tokenizer.json")?;
    let tokenizer = Tokenizer::from_bytes(tokenizer).map_err(|error| error.to_string())?;
    let mut file = BufWriter::new(File::create(path)?);
    let mut written = 0;
    let documents = (0..).map(|index| document(seed, index));
    for document in documents.filter(wanted) {
        if written >= num_tokens {
            break;
        }
        let encoding = tokenizer
            .encode(document.rendered(), false)
            .map_err(|error| error.to_string())?;
        // One more for the token that ends a document.
        written += encoding.len() + 1;
        writeln!(file, "{}", document.json())?;
    }
    file.flush()?;
    Ok(())
}
