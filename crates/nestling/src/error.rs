//! What can end an operation.

use std::path::PathBuf;

/// An operation that cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The checkpoint cannot be read or written.
    #[error(transparent)]
    Checkpoint(checkpoint::CheckpointError),
    /// A configuration that is not understood.
    #[error("`{}`", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: spec::SpecError,
    },
    /// There is no such preset.
    #[error(transparent)]
    Preset(spec::SpecError),
    /// The data or the tokenizer cannot be used.
    #[error(transparent)]
    Data(data::DataError),
    /// Data that need a tokenizer, and a folder that has none.
    #[error("{missing}")]
    NoTokenizer {
        /// What the folder has instead.
        missing: Box<data::DataError>,
        /// The line that needs one.
        source: data::DataError,
    },
    /// A GGUF file that cannot become a Hugging Face folder.
    #[error("cannot convert `{}`", path.display())]
    Import {
        /// The file.
        path: PathBuf,
        /// What is in the way.
        source: Box<crate::ImportFault>,
    },
    /// Weights asked for in a dtype that none are written in.
    #[error("weights cannot be written as {found}, supported: F32, BF16, F16")]
    TargetDtype {
        /// The dtype asked for.
        found: tensor::Dtype,
    },
    /// A tensor whose numbers another dtype cannot be made of one by one.
    #[error("tensor `{tensor}` is {found}, which cannot be cast")]
    CannotCast {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        found: tensor::Dtype,
    },
    /// A number that no scale can hold, on its way into FP8.
    #[error("tensor `{tensor}`: element {index} is {value}, which no FP8 block can hold")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Its element.
        index: u64,
        /// What it is.
        value: f32,
    },
    /// A finite number that would become an infinity.
    #[error("tensor `{tensor}` has numbers that are too large for {dtype}")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// The dtype asked for.
        dtype: tensor::Dtype,
    },
    /// More memory than was planned.
    #[error(transparent)]
    OverBudget(#[from] tensor::OverBudget),
    /// The run failed.
    #[error(transparent)]
    Train(train::TrainError),
    /// A file or folder of ours cannot be read or written.
    #[error("cannot {action} `{}`", path.display())]
    File {
        /// `read`, `write` or `create`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A settings file that is not TOML, or has a value of the wrong type.
    #[error("settings{}: {message}", origin.as_ref().map(|path| format!(" of `{}`", path.display())).unwrap_or_default())]
    BadSettings {
        /// The file; none for flags.
        origin: Option<PathBuf>,
        /// What the parser said.
        message: String,
    },
    /// A settings file with a key that there is not.
    #[error("`{}`: unknown setting `{key}`{}", origin.display(), suggestion.as_ref().map(|like| format!(", did you mean `{like}`?")).unwrap_or_default())]
    UnknownSetting {
        /// The file.
        origin: PathBuf,
        /// The key.
        key: String,
        /// The most similar key, if one is similar.
        suggestion: Option<String>,
    },
    /// A token that the model has no embedding for.
    #[error("token id {id} at position {position} is not below the vocabulary's size {vocab}")]
    BadToken {
        /// The id.
        id: u32,
        /// Its place in the prompt.
        position: usize,
        /// The vocabulary's size.
        vocab: usize,
    },
    /// A prompt and its answer do not fit the model's positions.
    #[error(
        "{prompt_tokens} tokens of prompt and {max_tokens} to generate are more than the model's {max_positions} positions"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens to generate.
        max_tokens: usize,
        /// The model's positions.
        max_positions: usize,
    },
    /// More tokens than the model has positions.
    #[error("{found} tokens are more than the model's {max_positions} positions")]
    TooManyTokens {
        /// How many there are.
        found: usize,
        /// The model's positions.
        max_positions: usize,
    },
    /// Nothing to compute on.
    #[error("{what} is empty, expected at least one token")]
    Empty {
        /// What has no tokens.
        what: &'static str,
    },
    /// The name of a model on the Hugging Face hub instead of a folder.
    #[error(
        "`{name}` is no folder here; nothing is downloaded: get it with `hf download {name} --local-dir DIR` and give DIR"
    )]
    NotDownloaded {
        /// The name.
        name: String,
    },
    /// A folder without digests to compare with.
    #[error(
        "{0} has no digests.json to compare with; `nestling verify {0} --write` makes one of the weights as they are",
        folder.display()
    )]
    NoDigests {
        /// The folder.
        folder: PathBuf,
    },
    /// A single rank that waits for others to read.
    #[error("one rank alone reads its own ranges (`own`), it cannot be loaded by `{way}`")]
    ReadsAlone {
        /// The way that was asked for.
        way: train::ReadWay,
    },
    /// The demo's files cannot be written.
    #[error(transparent)]
    Demo(#[from] demo::Error),
    /// The run was asked to stop before its first step.
    #[error("stopped before the first step; nothing is kept")]
    Stopped,
    /// What was to be written was asked to stop.
    #[error("stopped; nothing was kept")]
    StoppedWriting,
    /// Another run writes to the folder.
    #[error("another run is going on in `{}`", out.display())]
    RunGoingOn {
        /// The folder.
        out: PathBuf,
    },
    /// Data and model are both the demo's or both the user's.
    #[error("no data is given: only the model `demo` brings its own")]
    NoData,
}

impl From<checkpoint::CheckpointError> for Error {
    fn from(error: checkpoint::CheckpointError) -> Self {
        match error {
            checkpoint::CheckpointError::Stopped => Self::StoppedWriting,
            error => Self::Checkpoint(error),
        }
    }
}

impl From<data::DataError> for Error {
    fn from(error: data::DataError) -> Self {
        match error {
            data::DataError::Stopped => Self::Stopped,
            error => Self::Data(error),
        }
    }
}

impl From<train::TrainError> for Error {
    fn from(error: train::TrainError) -> Self {
        match error {
            train::TrainError::Stopped => Self::Stopped,
            error => Self::Train(error),
        }
    }
}

impl Error {
    /// Names the file that an input or output error is about.
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}
