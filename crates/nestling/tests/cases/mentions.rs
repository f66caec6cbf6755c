//! What the message of an error has to say.

use std::error::Error;

use crate::words::Words;

/// The error and its sources, as the command line says them.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut parts = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        parts.push(error.to_string());
        next = error.source();
    }
    parts.join(": ")
}

/// Holds an error to `must_mention` and, as is our pride, to `should_mention`.
#[track_caller]
pub(crate) fn mentions(words: &mut Words, error: &dyn Error) {
    let message = chain(error);
    for word in ["must_mention", "should_mention"] {
        let parts: Vec<String> = words.take(word).unwrap_or_default();
        for part in parts {
            assert!(message.contains(&part), "`{part}` is not in: {message}");
        }
    }
}
