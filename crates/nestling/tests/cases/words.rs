//! The words of an `expect.json`, each taken out by whoever checks it.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Words for people: they say why, or what no program can look for.
const PROSE: [&str; 11] = [
    "before", "class", "exit", "id", "must", "must_not", "note", "rule", "source", "strict",
    "summary",
];

/// The words that are still to be checked.
#[derive(Debug)]
pub(crate) struct Words {
    left: Map<String, Value>,
}

impl Words {
    pub(crate) fn new(mut left: Map<String, Value>) -> Self {
        for word in PROSE {
            left.remove(word);
        }
        Self { left }
    }

    /// What a word says, if it is there.
    #[track_caller]
    pub(crate) fn take<T: DeserializeOwned>(&mut self, word: &str) -> Option<T> {
        let value = self.left.remove(word)?;
        let read = serde_json::from_value(value);
        Some(read.unwrap_or_else(|error| panic!("`{word}`: {error}")))
    }

    /// The words under a word.
    #[track_caller]
    pub(crate) fn under(&mut self, word: &str) -> Option<Self> {
        self.take(word).map(Self::new)
    }

    /// Leaves the rest alone.
    pub(crate) fn forget(mut self) {
        self.left.clear();
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        let words: Vec<_> = self.left.keys().collect();
        let is_checked = words.is_empty() || std::thread::panicking();
        assert!(is_checked, "nothing checks the words {words:?}");
    }
}
