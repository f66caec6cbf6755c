//! Cases that wait for a part of the program that is not there yet.

/// The case and what it waits for. Each still fails, and a test says so when it
/// does not.
pub(crate) const PENDING: &[(&str, &str)] = &[
    ("LD04", "the Falcon family"),
    ("LD21", "the Mistral family"),
    ("LD29", "the Qwen2 family"),
    ("LD30", "the Falcon family"),
    ("LD31", "the Falcon family"),
];
