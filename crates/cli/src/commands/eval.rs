//! `nestling eval`: the loss of a model on data.

use std::path::PathBuf;

use nestling::{EvalOptions, EvalReport, evaluate};
use serde_json::json;

use crate::error::CliError;
use crate::format::{Align, count, counted, table};
use crate::output::{print, print_json};
use crate::products::Products;
use crate::progress;
use crate::reading::Reading;
use crate::values;

/// Loss and perplexity of a model on data.
#[derive(Debug, clap::Args)]
pub(crate) struct Eval {
    /// A Hugging Face folder, or `demo`
    model: PathBuf,
    /// A .jsonl file, or a folder of them
    data: PathBuf,
    /// Tokens of a sequence
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    seq: usize,
    /// Threads to compute on; 0 is all cores
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::threads)]
    threads: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    products: Products,
    #[command(flatten)]
    reading: Reading,
}

impl Eval {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let precision = self.products.precision()?;
        let bar = progress::counter("rows", 0);
        let report = evaluate(
            self.reading.noted(&self.model)?,
            &self.data,
            EvalOptions {
                seq: self.seq,
                threads: self.threads,
                precision: precision.as_ref(),
            },
            &|row, rows| {
                bar.set_length(rows);
                bar.set_position(row);
            },
        )?;
        bar.finish_and_clear();
        if self.json {
            return print_json(&json!({
                "loss": report.loss,
                "perplexity": report.perplexity,
                "num_targets": report.num_targets,
                "num_rows": report.num_rows,
            }));
        }
        print(&to_text(&report))
    }
}

fn to_text(report: &EvalReport) -> String {
    let rows = counted(report.num_rows, "row");
    let lines = [
        ("loss", format!("{:.6}", report.loss)),
        ("perplexity", format!("{:.4}", report.perplexity)),
        (
            "targets",
            format!("{} tokens in {rows}", count(report.num_targets)),
        ),
    ];
    let lines = lines.map(|(name, value)| vec![name.to_owned(), value]);
    table(&[Align::Left, Align::Left], &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_a_line_for_each_figure() {
        let report = EvalReport {
            loss: 2.5,
            perplexity: 12.182_493_96,
            num_targets: 1270,
            num_rows: 10,
        };
        assert_eq!(
            to_text(&report),
            "loss        2.500000\nperplexity  12.1825\ntargets     1,270 tokens in 10 rows\n"
        );
    }
}
