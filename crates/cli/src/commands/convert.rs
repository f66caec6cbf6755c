//! `nestling convert`: a model in another dtype, or out of a GGUF file.

use std::path::PathBuf;

use std::collections::BTreeMap;
use std::process::ExitCode;

use nestling::{ConvertOptions, Converted, Dtype, Error, Precision, Target, convert};
use serde_json::json;

use crate::error::CliError;
use crate::format::{count, counted, size};
use crate::output::{print, print_json};
use crate::stop::Stop;
use crate::values::threads;
use crate::{products, progress};

/// Write a model again in another dtype, or a GGUF file as a Hugging Face folder.
#[derive(Debug, clap::Args)]
pub(crate) struct Convert {
    /// A Hugging Face folder, a GGUF file, or `demo`
    model: PathBuf,
    /// The folder to write; it must be empty or not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Element type of the weights
    #[arg(long, value_name = "DTYPE", default_value = "source")]
    to: To,
    /// With `--to fp8`: linear layers that keep their dtype: names with `*`, `ends` for
    /// the first and the last block, `none`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    keep_bf16: Option<Vec<String>>,
    /// Take the tokenizer from this folder
    #[arg(long, value_name = "FOLDER")]
    tokenizer: Option<PathBuf>,
    /// MB (10^6 bytes) after which a weight file is followed by the next
    #[arg(long, value_name = "MB", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    max_file_size: u64,
    /// Threads to work with, at most 1024; 0 is all cores, and 8 are of use
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = threads)]
    threads: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Element types to convert to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum To {
    /// As they are; quantised blocks of a GGUF file become bf16
    Source,
    Bf16,
    F32,
    F16,
    /// E4M3 codes with an f32 for each 128 x 128 block
    Fp8,
}

impl To {
    fn target(self, fp8: &Precision) -> Target<'_> {
        match self {
            Self::Fp8 => Target::Fp8(fp8),
            Self::Source => Target::Source,
            Self::Bf16 => Target::Dtype(Dtype::BF16),
            Self::F32 => Target::Dtype(Dtype::F32),
            Self::F16 => Target::Dtype(Dtype::F16),
        }
    }
}

impl Convert {
    pub(crate) fn run(self) -> Result<ExitCode, CliError> {
        if self.keep_bf16.is_some() && self.to != To::Fp8 {
            return Err(CliError::IdleFlag {
                flag: "--keep-bf16",
                beside: "--to fp8",
            });
        }
        let fp8 = products::precision("fp8", self.keep_bf16.as_deref())?;
        let options = ConvertOptions {
            target: self.to.target(&fp8),
            max_file_bytes: self.max_file_size * 1_000_000,
            tokenizer: self.tokenizer.as_deref(),
            threads: self.threads,
        };
        let bar = progress::bytes("writing", None);
        let stop = Stop::writing_to(&self.out)?;
        let done = convert(&self.model, &self.out, &options, &|bytes| {
            bar.inc(bytes);
            stop.asked()
        });
        bar.finish_and_clear();
        let done = match done {
            Err(Error::StoppedWriting) => return Ok(stop.ended()),
            done => done?,
        };
        self.report(&done).map(|()| ExitCode::SUCCESS)
    }

    fn report(&self, done: &Converted) -> Result<(), CliError> {
        if self.json {
            return print_json(&json!({
                "path": self.out.display().to_string(),
                "num_tensors": done.num_tensors,
                "num_elements": done.num_elements,
                "num_bytes": done.num_bytes,
                "staging_peak_bytes": done.staging_peak_bytes,
                "other_files": done.other_files,
                "matrices": done.matrices,
                "num_flushed": done.num_flushed,
            }));
        }
        if !done.matrices.is_empty() {
            print(&matrices(done))?;
        }
        print(&format!(
            "{}, {}, {} in {}; beside them {}\n",
            counted(done.num_tensors, "tensor"),
            counted(done.num_elements, "element"),
            size(done.num_bytes),
            self.out.display(),
            done.other_files.join(", "),
        ))
    }
}

/// What became of the matrices: how many for each reason, and what was lost.
fn matrices(done: &Converted) -> String {
    let mut by_choice: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for matrix in &done.matrices {
        let sums = by_choice.entry(&matrix.choice).or_default();
        sums.0 += 1;
        sums.1 += matrix.source_bytes;
        sums.2 += matrix.num_bytes;
    }
    let lines = by_choice.into_iter().map(|(choice, (num, from, to))| {
        let num = match num {
            1 => "1 matrix".to_owned(),
            _ => format!("{} matrices", count(num)),
        };
        format!("{num}, {} -> {}: {choice}\n", size(from), size(to))
    });
    let flushed = counted(done.num_flushed, "element");
    let lost = format!("{flushed} too small for their block became 0\n");
    lines.chain(std::iter::once(lost)).collect()
}
