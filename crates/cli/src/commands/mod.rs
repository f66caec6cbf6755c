//! The commands, a file each.

mod eval;
mod generate;
mod init;
mod inspect;
mod logits;
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
    /// Write a random checkpoint of a known shape
    Init(init::Init),
}

impl Command {
    /// Runs the command to its exit code.
    pub(crate) fn run(self) -> Result<ExitCode, CliError> {
        if let Self::Train(train) = self {
            return train.run();
        }
        signals::clean_up_when_ended()?;
        match self {
            Self::Train(train) => return train.run(),
            Self::Verify(verify) => return verify.run(),
            Self::Eval(eval) => eval.run(),
            Self::Generate(generate) => generate.run(),
            Self::Logits(logits) => logits.run(),
            Self::Inspect(inspect) => inspect.run(),
            Self::Init(init) => init.run(),
        }
        .map(|()| ExitCode::SUCCESS)
    }
}
