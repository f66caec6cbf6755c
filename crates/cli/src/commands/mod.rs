//! The commands, a file each.

mod convert;
mod eval;
mod generate;
mod init;
mod inspect;
mod logits;
mod rank;
mod train;
mod verify;

use std::process::ExitCode;

use crate::error::CliError;
use crate::signals;

/// What the program can do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Fine-tune a model and write it as a Hugging Face folder
    Train(Box<train::Train>),
    /// Loss and perplexity of a model on data
    Eval(eval::Eval),
    /// Text from a model
    Generate(generate::Generate),
    /// Logits of given tokens, to compare with other programs
    Logits(logits::Logits),
    /// What is in a model: units, tensors, dtypes, bytes, ties, problems
    Inspect(inspect::Inspect),
    /// Are these the weights that they should be
    Verify(verify::Verify),
    /// Write a model again in another dtype, or a GGUF file as a Hugging Face folder
    Convert(convert::Convert),
    /// Write a random checkpoint of a known shape
    Init(init::Init),
    /// One rank of a run; `train` starts it
    #[command(hide = true)]
    Rank(rank::Rank),
}

impl Command {
    /// Runs the command to its exit code.
    pub(crate) fn run(self) -> Result<ExitCode, CliError> {
        // These stop in their own way.
        match self {
            Self::Train(train) => train.run(),
            Self::Rank(rank) => rank.run(),
            Self::Convert(convert) => convert.run(),
            Self::Init(init) => init.run(),
            other => other.run_to_the_end(),
        }
    }

    /// Runs a command that a signal ends at once.
    fn run_to_the_end(self) -> Result<ExitCode, CliError> {
        signals::clean_up_when_ended()?;
        match self {
            Self::Train(_) | Self::Rank(_) | Self::Convert(_) | Self::Init(_) => {
                unreachable!("run before")
            }
            Self::Verify(verify) => return verify.run(),
            Self::Eval(eval) => eval.run(),
            Self::Generate(generate) => generate.run(),
            Self::Logits(logits) => logits.run(),
            Self::Inspect(inspect) => inspect.run(),
        }
        .map(|()| ExitCode::SUCCESS)
    }
}
