//! `nestling convert`: a model in another dtype, or out of a GGUF file.

use std::path::PathBuf;

use nestling::{ConvertOptions, Dtype, Target, convert};
use serde_json::json;

use crate::error::CliError;
use crate::format::{counted, size};
use crate::output::{print, print_json};
use crate::progress;
use crate::values::threads;

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
}

impl To {
    fn target(self) -> Target {
        match self {
            Self::Source => Target::Source,
            Self::Bf16 => Target::Dtype(Dtype::BF16),
            Self::F32 => Target::Dtype(Dtype::F32),
            Self::F16 => Target::Dtype(Dtype::F16),
        }
    }
}

impl Convert {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let options = ConvertOptions {
            target: self.to.target(),
            max_file_bytes: self.max_file_size * 1_000_000,
            tokenizer: self.tokenizer.as_deref(),
            threads: self.threads,
        };
        let bar = progress::bytes("writing", None);
        let done = convert(&self.model, &self.out, &options, &|bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
        if self.json {
            return print_json(&json!({
                "path": self.out.display().to_string(),
                "num_tensors": done.num_tensors,
                "num_elements": done.num_elements,
                "num_bytes": done.num_bytes,
                "staging_peak_bytes": done.staging_peak_bytes,
                "other_files": done.other_files,
            }));
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
