//! `nestling inspect --load`: what it takes to load a model.

use std::num::NonZeroUsize;

use nestling::{CachePolicy, LoadOptions, LoadReport, ModelPath, ReadWay, load_report};

use crate::error::CliError;
use crate::format::{Align, size, table};
use crate::output::{print, print_json};
use crate::products::RECIPES;
use crate::progress;
use crate::values;

/// How a model is loaded for `inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadFlags {
    /// Load the model for real and say what that took
    #[arg(long)]
    pub(crate) load: bool,
    /// Load as this rank alone
    #[arg(long, value_name = "R", requires = "load", requires = "of")]
    as_rank: Option<usize>,
    /// The number of ranks of the world; all are loaded if no one is named
    #[arg(long, value_name = "N", requires = "load", default_value = "1", value_parser = values::num_ranks)]
    of: usize,
    /// How weights rest; without one as they are for inference
    #[arg(long, value_parser = RECIPES, requires = "load")]
    recipe: Option<String>,
    /// Which rank reads a byte of the checkpoint: own, host or root
    #[arg(long, default_value_t, requires = "load")]
    read: ReadWay,
    /// What reading leaves in the page cache: auto, keep, drop or direct
    #[arg(long, default_value_t, requires = "load")]
    cache: CachePolicy,
    /// Whether what arrived is compared with what was read
    #[arg(long, value_name = "true|false", default_value = "true", action = clap::ArgAction::Set, requires = "load")]
    digests: bool,
}

impl LoadFlags {
    pub(crate) fn run(self, model: ModelPath<'_>, as_json: bool) -> Result<(), CliError> {
        let spinner = progress::spinner("loading");
        let options = LoadOptions {
            world_size: NonZeroUsize::new(self.of).unwrap_or(NonZeroUsize::MIN),
            as_rank: self.as_rank,
            recipe: self.recipe,
            way: self.read,
            cache: self.cache,
            digests: self.digests,
        };
        let report = load_report(model, &options)?;
        spinner.finish_and_clear();
        if as_json {
            return print_json(&report);
        }
        print(&to_text(&report))
    }
}

fn to_text(report: &LoadReport) -> String {
    use Align::Right;
    let heads = ["rank", "shard", "written", "moments", "read", "staging"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(report.ranks.iter().map(|rank| {
        vec![
            format!("{} of {}", rank.rank, report.world_size),
            size(rank.shard_bytes),
            size(rank.filled_bytes),
            size(rank.moments_bytes),
            size(rank.read_bytes),
            size(rank.staging_bytes),
        ]
    }));
    let read: u64 = report.ranks.iter().map(|rank| rank.read_bytes).sum();
    let checked = match report.digests.len() {
        0 => "no digests compared".to_owned(),
        tensors => format!("digests of {tensors} tensors compared"),
    };
    format!(
        "{}\n{:.3} s, {:.2} GB/s; peak {:.1} MiB, {:.1} MiB over what was written; {checked}\n",
        table(&[Right; 6], &rows),
        report.seconds,
        read as f64 / report.seconds / 1e9,
        report.peak_mib,
        report.overhead_mib,
    )
}
