//! Writes the corpus of malformed and odd checkpoints.
//!
//! ```text
//! cargo run -p checkpoint --example torture -- testdata/torture
//! ```
//!
//! Beside the files it writes `verdicts.json` and a table, `README.md`. A test
//! holds both against what the readers do.
#![expect(
    clippy::expect_used,
    reason = "a program of the repository, run by hand"
)]

#[path = "../tests/archives/mod.rs"]
mod archives;
#[path = "../tests/torture/cases.rs"]
mod cases;
#[path = "../tests/torture/headers.rs"]
mod headers;
#[path = "../tests/torture/programs.rs"]
mod programs;
#[path = "../tests/torture/verdicts.rs"]
mod verdicts;

use std::path::PathBuf;

fn main() {
    let out = std::env::args_os().nth(1).map(PathBuf::from);
    let out = out.expect("a folder to write to");
    verdicts::write_corpus(&out);
}
