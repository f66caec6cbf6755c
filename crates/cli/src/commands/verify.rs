//! `nestling verify`: are these the weights that they should be.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use nestling::{Verdict, Verified, VerifyReport, verify, verify_two, write_digests};

use crate::error::CliError;
use crate::format::{Align, counted, table};
use crate::output::{print, print_json};
use crate::progress;
use crate::reading::Reading;

/// Are these the weights that they should be.
#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// A Hugging Face folder; with a second one also a .safetensors file
    first: PathBuf,
    /// What it is compared with; without one, the digests that the first has
    second: Option<PathBuf>,
    /// Write the digests of the weights as they are into the folder
    #[arg(long, conflicts_with = "second")]
    write: bool,
    /// List every tensor, not only those that differ
    #[arg(long)]
    tensors: bool,
    /// Print everything as JSON
    #[arg(long, conflicts_with = "write")]
    json: bool,
    #[command(flatten)]
    reading: Reading,
}

impl Verify {
    pub(crate) fn run(self) -> Result<ExitCode, CliError> {
        let spinner = progress::spinner("reading");
        let first = self.reading.of(&self.first);
        if self.write {
            let written = write_digests(first)?;
            spinner.finish_and_clear();
            let tensors = counted(written as u64, "tensor");
            print(&format!("wrote the digests of {tensors}\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        let report = match &self.second {
            Some(second) => verify_two(first, self.reading.of(second))?,
            None => verify(first)?,
        };
        spinner.finish_and_clear();
        let printed = if self.json {
            print_json(&report)
        } else {
            print(&to_text(&report, self.tensors))
        };
        match printed {
            // Who closed the pipe asks for the verdict all the same.
            Err(error) if !error.is_broken_pipe() => Err(error),
            _ if report.is_same() => Ok(ExitCode::SUCCESS),
            _ => Ok(ExitCode::FAILURE),
        }
    }
}

/// Tensors that are listed where not all are asked for.
const NUM_LISTED: usize = 10;

fn to_text(report: &VerifyReport, lists_all: bool) -> String {
    let is_same =
        |verdict: &Verdict| matches!(verdict, Verdict::Same | Verdict::SameRounded { .. });
    let (same, different): (Vec<_>, Vec<_>) = report
        .tensors
        .iter()
        .partition(|tensor| is_same(&tensor.verdict));
    let rounded = same.iter().filter(|tensor| tensor.verdict != Verdict::Same);
    let rounded = rounded.count();
    let row = |tensor: &&Verified| vec![tensor.name.clone(), in_words(&tensor.verdict)];
    let rows: Vec<_> = if lists_all {
        report.tensors.iter().map(|tensor| row(&tensor)).collect()
    } else {
        different.iter().take(NUM_LISTED).map(row).collect()
    };
    let mut text = table(&[Align::Left, Align::Left], &rows);
    if !lists_all && different.len() > NUM_LISTED {
        let more = different.len() - NUM_LISTED;
        let _ = writeln!(text, "and {more} more (`--tensors` lists all)");
    }
    let tensors = counted(report.tensors.len() as u64, "tensor");
    let _ = match (different.len(), rounded) {
        (0, 0) => writeln!(text, "{tensors}, all the same"),
        (0, rounded) => writeln!(text, "{tensors}, all the same, {rounded} after rounding"),
        (different, _) => writeln!(text, "{different} of {tensors} differ"),
    };
    text
}

fn in_words(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Same => "same".to_owned(),
        Verdict::SameRounded { to } => format!("same after rounding to {to}"),
        Verdict::Different { what } => format!("different: {what}"),
        Verdict::OnlyInFirst => "only in the first".to_owned(),
        Verdict::OnlyInSecond => "only in the second".to_owned(),
        _ => "unknown".to_owned(),
    }
}
