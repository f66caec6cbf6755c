//! Where text goes: results to standard output, everything else to standard error.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::error::CliError;

/// Writes to standard output at once.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    write_now(text).map_err(|source| CliError::Output { source })
}

/// As [`print()`], for those who keep the error for later.
pub(crate) fn write_now(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a value as a line of JSON to standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    print(&format!("{}\n", to_json(value)))
}

/// A value as JSON in one line.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("results are plain data with text keys")
}

/// Writes a line to standard error. If that cannot be, there is nobody to tell.
pub(crate) fn note(line: &str) {
    drop(writeln!(io::stderr(), "{line}"));
}
