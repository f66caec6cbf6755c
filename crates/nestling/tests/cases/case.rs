//! A case: its folder, its words, its verdict.

use std::fs;
use std::path::{Path, PathBuf};

use nestling::{Error, OpenModel};

use crate::mentions::mentions;
use crate::words::Words;
use crate::{containers, fp8, model, samples, sharding};

/// A case of `testdata/cases/`.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) folder: PathBuf,
}

impl Case {
    fn new(id: &str) -> Self {
        let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/cases");
        Self {
            folder: cases.join(id),
        }
    }

    pub(crate) fn model(&self) -> PathBuf {
        self.folder.join("model")
    }

    #[track_caller]
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap()
    }

    #[track_caller]
    fn words(&self) -> Words {
        Words::new(serde_json::from_str(&self.read("expect.json")).unwrap())
    }

    #[track_caller]
    fn check(&self) {
        let mut words = self.words();
        containers::check(self, &mut words);
        fp8::check(self, &mut words);
        sharding::check(self, &mut words);
        let loads = ["load", "shard"].map(|word| words.take::<String>(word));
        for verdict in loads.into_iter().flatten() {
            let opened = OpenModel::open(&self.model());
            meets(&verdict, &mut words, opened, |words, opened| {
                model::check(self, words, &opened);
            });
        }
        if let Some(verdict) = words.take::<String>("data") {
            let trained = samples::train(self);
            meets(&verdict, &mut words, trained, |words, result| {
                samples::check(self, words, &result);
            });
        }
        samples::check_tokenizer(self, &mut words);
    }
}

/// Holds what happened to a verdict: `ok`, `error`, or either with what follows.
#[track_caller]
fn meets<T>(
    verdict: &str,
    words: &mut Words,
    happened: Result<T, Error>,
    check: impl FnOnce(&mut Words, T),
) {
    match (verdict, happened) {
        ("ok", Ok(good)) => check(words, good),
        ("error", Err(error)) => mentions(words, &error),
        ("ok or error", happened) => {
            let [if_ok, if_error] = ["if_ok", "if_error"].map(|word| words.under(word));
            let (taken, other) = match &happened {
                Ok(_) => (if_ok, if_error),
                Err(_) => (if_error, if_ok),
            };
            other.into_iter().for_each(Words::forget);
            let mut taken = taken.unwrap_or_else(|| Words::new(serde_json::Map::new()));
            match happened {
                Ok(good) => check(&mut taken, good),
                Err(error) => mentions(&mut taken, &error),
            }
        }
        (verdict, Ok(_)) => panic!("expected {verdict}, but all went well"),
        (verdict, Err(error)) => {
            let message = crate::mentions::chain(&error);
            panic!("expected {verdict}, found the error: {message}")
        }
    }
}

/// Holds the case to its words.
#[track_caller]
pub(crate) fn does(id: &str) {
    Case::new(id).check();
}
