//! The model and the data inside the program.
//!
//! `demo` in place of a model's folder means the files in [`FILES`]: a small Llama
//! model that tells stories and answers easy questions. [`TRAIN_JSONL`] teaches it to
//! be Pip the nestling; [`PROMPT`] asked before and after shows the difference.
//!
//! [`grammar`] and [`lessons`] write all the text there is, so that the model can be
//! made anew from nothing; `README.md` beside this crate has the commands.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub mod grammar;
pub mod lessons;

/// The files of the model's folder: name and bytes.
///
/// `config.json` stands last, so that a folder that has one is whole.
pub const FILES: &[(&str, &[u8])] = &[
    (
        "tokenizer.json",
        include_bytes!("../assets/model/tokenizer.json"),
    ),
    (
        "tokenizer_config.json",
        include_bytes!("../assets/model/tokenizer_config.json"),
    ),
    (
        "generation_config.json",
        include_bytes!("../assets/model/generation_config.json"),
    ),
    (
        "model.safetensors",
        include_bytes!("../assets/model/model.safetensors"),
    ),
    ("config.json", include_bytes!("../assets/model/config.json")),
];

/// Lines to fine-tune on, in the `messages` form.
pub const TRAIN_JSONL: &str = include_str!("../assets/train.jsonl");

/// Held-out lines: the same facts, asked in other words.
pub const EVAL_JSONL: &str = include_str!("../assets/eval.jsonl");

/// The question that is asked before and after training.
pub const PROMPT: &str = "Who are you?";

/// More questions that show what was learned.
pub const MORE_PROMPTS: &[&str] = &[
    "Where do you live?",
    "Who is your best friend?",
    "What are you afraid of?",
    "What colour is the sky?",
];

/// How the demo trains when nobody says otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Tokens of a sequence.
    pub seq: usize,
    /// Sequences of one micro-batch.
    pub micro_batch: usize,
    /// Sequences of one step over all ranks.
    pub global_batch: usize,
    /// Steps of the run.
    pub steps: u64,
    /// Steps of warm-up.
    pub warmup: u64,
    /// The highest learning rate.
    pub lr: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Steps between two evaluations.
    pub eval_every: u64,
    /// Tokens of an answer at most.
    pub max_new_tokens: usize,
}

/// The demo's settings.
pub const SETTINGS: Settings = Settings {
    seq: 128,
    micro_batch: 8,
    global_batch: 8,
    steps: 60,
    warmup: 6,
    lr: 1e-3,
    weight_decay: 0.01,
    eval_every: 20,
    max_new_tokens: 48,
};

/// A file of the demo's model could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder could not be made.
    #[error("cannot make the folder {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Writes the model as a Hugging Face folder; `dir` is made where it is missing.
pub fn write_model(dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(|source| Error::Folder {
        path: dir.to_owned(),
        source,
    })?;
    for (name, bytes) in FILES {
        let path = dir.join(name);
        fs::write(&path, bytes).map_err(|source| Error::File { path, source })?;
    }
    Ok(())
}
