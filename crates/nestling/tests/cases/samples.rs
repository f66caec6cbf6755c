//! Data and tokenizers: which tokens a line becomes, and which of them count.

use std::fs;
use std::path::Path;

use data::{Document, Record, Tokenizer};
use nestling::{Error, Settings};
use serde::Deserialize;
use tempfile::TempDir;

use crate::case::Case;
use crate::export;
use crate::words::Words;

/// Files of a tokenizer, which an export copies.
const TOKENIZER_FILES: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "tokenizer.model"];

/// The tokens of a line; a flag of none may count or not.
#[derive(Debug, Deserialize)]
struct Tokens {
    input_ids: Vec<u32>,
    in_loss: Vec<Option<u8>>,
    #[serde(rename = "target_tokens")]
    num_targets: [usize; 2],
}

/// A text and its ids.
#[derive(Debug, Deserialize)]
struct Entry {
    text: String,
    ids: Vec<u32>,
}

/// Texts to ids, ids to texts.
#[derive(Debug, Deserialize)]
struct Table {
    encode: Vec<Entry>,
    decode: Vec<Entry>,
}

/// Takes one step on the case's data.
pub(crate) fn train(case: &Case) -> Result<TempDir, Error> {
    let settings = Settings {
        steps: Some(1),
        seq: 64,
        micro_batch: 2,
        global_batch: 2,
        threads: 1,
        ..Settings::default()
    };
    export::train(&case.model(), &case.folder.join("data.jsonl"), &settings)
}

/// Checks what is said of data that can be used.
#[track_caller]
pub(crate) fn check(case: &Case, words: &mut Words, out: &TempDir) {
    let documents = documents(case);
    for word in ["samples", "batch"] {
        if let Some(expected) = words.take::<usize>(word) {
            assert_eq!(documents.len(), expected);
        }
    }
    if let Some(expected) = words.take::<Vec<Tokens>>("tokens") {
        assert_eq!(documents.len(), expected.len());
        for (found, expected) in documents.iter().zip(&expected) {
            has_tokens(found, expected);
        }
    }
    for name in TOKENIZER_FILES {
        let read = |folder: &Path| fs::read(folder.join(name)).ok();
        assert!(
            read(out.path()) == read(&case.model()),
            "{name} was changed"
        );
    }
    if let Some(mut kept) = words.under("export") {
        export::check_folder(&mut kept, out.path());
    }
}

#[track_caller]
fn documents(case: &Case) -> Vec<Document> {
    let tokenizer = Tokenizer::from_folder(&case.model()).unwrap();
    let template = tokenizer.chat_template().unwrap();
    let text = case.read("data.jsonl");
    let lines = text.lines().map(|line| match Record::parse(line).unwrap() {
        Record::Messages(messages) => {
            Document::from_messages(&tokenizer, &template, &messages).unwrap()
        }
        other => panic!("{other:?}"),
    });
    lines.collect()
}

#[track_caller]
fn has_tokens(found: &Document, expected: &Tokens) {
    assert_eq!(found.ids, expected.input_ids);
    assert_eq!(found.in_loss.len(), expected.in_loss.len());
    for (at, (&found, &expected)) in found.in_loss.iter().zip(&expected.in_loss).enumerate() {
        let agrees = expected.is_none_or(|flag| u8::from(found) == flag);
        assert!(agrees, "token {at}: {found} is not {expected:?}");
    }
    let [least, most] = expected.num_targets;
    assert!((least..=most).contains(&found.num_targets()));
}

/// Checks a tokenizer without a model, entry by entry.
#[track_caller]
pub(crate) fn check_tokenizer(case: &Case, words: &mut Words) {
    let Some(verdict) = words.take::<String>("tokenizer") else {
        return;
    };
    assert_eq!(verdict, "exact");
    let table: String = words.take("table").expect("a table of texts");
    let table: Table = serde_json::from_str(&case.read(&table)).unwrap();
    let tokenizer = Tokenizer::from_folder(&case.folder).unwrap();
    for Entry { text, ids } in &table.encode {
        assert_eq!(&tokenizer.encode(text, false).unwrap(), ids, "{text:?}");
    }
    for Entry { text, ids } in &table.decode {
        assert_eq!(&tokenizer.decode(ids, true).unwrap(), text, "{ids:?}");
    }
}
