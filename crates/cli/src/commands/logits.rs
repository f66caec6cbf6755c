//! `nestling logits`: numbers to compare with other programs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::CliError;
use crate::format::{Align, table};
use crate::output::{note, print, to_json};
use crate::products::Products;
use crate::progress;
use crate::reading::Reading;
use crate::values;

/// Tokens that are printed of each position.
const NUM_TOP: usize = 5;

/// Logits of given tokens.
#[derive(Debug, clap::Args)]
pub(crate) struct Logits {
    /// A Hugging Face folder, or `demo`
    model: PathBuf,
    /// Token ids, separated by commas
    #[arg(long, value_delimiter = ',', required = true)]
    ids: Vec<u32>,
    /// Write all logits as a .npy array: f32, positions by vocabulary
    #[arg(long, value_name = "FILE")]
    npy: Option<PathBuf>,
    /// Print all logits as JSON
    #[arg(long)]
    json: bool,
    /// Threads to compute on; 0 is all cores
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::threads)]
    threads: usize,
    #[command(flatten)]
    products: Products,
    #[command(flatten)]
    reading: Reading,
}

impl Logits {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let model = self.reading.noted(&self.model)?;
        let spinner = progress::spinner("computing");
        let precision = self.products.precision()?;
        let logits = nestling::logits(model, &self.ids, self.threads, precision.as_ref())?;
        spinner.finish_and_clear();
        if let Some(path) = &self.npy {
            write_whole(path, &logits.to_npy())?;
            let (rows, cols) = (logits.rows, logits.cols);
            note(&format!("wrote f32 [{rows}, {cols}] to {}", path.display()));
        }
        if self.json {
            return print_all(&logits);
        }
        match self.npy {
            Some(_) => Ok(()),
            None => print(&top_table(&self.ids, &logits)),
        }
    }
}

/// Writes a file, or leaves none.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    fs::write(path, bytes).map_err(|source| {
        // The half of an array is of no use; a pipe or device is not ours.
        if path.is_file() {
            drop(fs::remove_file(path));
        }
        CliError::File {
            path: path.to_owned(),
            source,
        }
    })
}

/// Row by row, so that no text of the whole exists.
fn print_all(logits: &nestling::Logits) -> Result<(), CliError> {
    let mut before = "{\"logits\": [";
    for row in 0..logits.rows {
        print(&format!("{before}{}", to_json(&logits.row(row))))?;
        before = ", ";
    }
    print("]}\n")
}

/// The likeliest tokens to follow each position, as `id (logit)`.
fn top_table(ids: &[u32], logits: &nestling::Logits) -> String {
    let mut rows = vec![vec![
        "position".to_owned(),
        "id".to_owned(),
        "likeliest next".to_owned(),
    ]];
    for (position, id) in ids.iter().enumerate() {
        let row = logits.row(position);
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        let top = order.iter().take(NUM_TOP);
        let top = top.map(|&token| format!("{token} ({:.4})", row[token]));
        let top: Vec<_> = top.collect();
        rows.push(vec![position.to_string(), id.to_string(), top.join("  ")]);
    }
    table(&[Align::Right, Align::Right, Align::Left], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_the_largest_logits_first() {
        let logits = nestling::Logits {
            rows: 2,
            cols: 3,
            values: vec![0.5, 2.0, -1.0, 7.0, 7.0, 8.25],
        };
        assert_eq!(
            top_table(&[4, 11], &logits),
            "position  id  likeliest next\n       \
             0   4  1 (2.0000)  0 (0.5000)  2 (-1.0000)\n       \
             1  11  2 (8.2500)  0 (7.0000)  1 (7.0000)\n"
        );
    }
}
