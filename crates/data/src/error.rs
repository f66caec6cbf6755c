//! Everything that can go wrong between a line of text and a row of tokens.
//!
//! A fault in a line of data is wrapped in [`DataError::AtLine`], so that the
//! chain of sources reads: file and line, then what was wrong there.

use std::io;
use std::path::{Path, PathBuf};

/// The result of this crate's operations.
pub type Result<T, E = DataError> = std::result::Result<T, E>;

/// What went wrong with a tokenizer, a template or a data file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The system refused to read or write a file.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried: `read`, `write`, ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A line of a data file is at fault; the source says how.
    #[error("{}, line {line}", file.display())]
    AtLine {
        /// The data file.
        file: PathBuf,
        /// The physical line, counted from 1.
        line: u64,
        /// What is wrong with the line.
        source: Box<DataError>,
    },

    /// A model's folder has no tokenizer that can be read.
    #[error("no tokenizer.json in {}: {found}; only tokenizer.json is supported so far", folder.display())]
    NoTokenizer {
        /// The model's folder.
        folder: PathBuf,
        /// What is there instead.
        found: &'static str,
    },
    /// A file of a tokenizer is too large to be one.
    #[error("{} has {found_bytes} bytes, a tokenizer file at most {limit_bytes}", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found_bytes: u64,
        /// The largest size that is read.
        limit_bytes: u64,
    },
    /// `tokenizer.json` is not a tokenizer.
    #[error("tokenizer.json of {origin} cannot be used")]
    BadTokenizer {
        /// The model's folder or name.
        origin: String,
        /// The parser's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file beside the tokenizer is not what it should be.
    #[error("{file} of {origin} cannot be used")]
    BadConfig {
        /// The model's folder or name.
        origin: String,
        /// The file in it.
        file: &'static str,
        /// The parser's reason.
        source: serde_json::Error,
    },
    /// A special token is configured that the vocabulary does not hold.
    #[error("{role} is `{token}`, which is not in the vocabulary of tokenizer.json")]
    UnknownSpecialToken {
        /// `bos_token` or `eos_token`.
        role: &'static str,
        /// The token's text.
        token: String,
    },
    /// Text could not be turned into tokens.
    #[error("text of {text_bytes} bytes cannot be encoded")]
    Encode {
        /// Length of the text.
        text_bytes: usize,
        /// The tokenizer's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Tokens could not be turned into text.
    #[error("{num_tokens} tokens cannot be decoded")]
    Decode {
        /// How many tokens there were.
        num_tokens: usize,
        /// The tokenizer's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// Messages are to be rendered, but the model brings no chat template.
    #[error("{origin} has no chat template, so `messages` cannot be rendered")]
    NoChatTemplate {
        /// The model's folder or name.
        origin: String,
    },
    /// Several named templates and none of them is the default.
    #[error("{origin} has the chat templates {names}, but none named `default`")]
    NoDefaultTemplate {
        /// The model's folder or name.
        origin: String,
        /// The names that are there.
        names: String,
    },
    /// A template is not valid in its language.
    #[error("chat template {template} cannot be parsed")]
    BadTemplate {
        /// Which template.
        template: String,
        /// The engine's reason.
        source: minijinja::Error,
    },
    /// A template stopped while it rendered; the source has its own words.
    #[error("chat template {template} refuses these messages")]
    TemplateFailed {
        /// Which template.
        template: String,
        /// The engine's reason, with the template's words.
        source: minijinja::Error,
    },
    /// The text of a conversation cannot be attributed to its messages.
    #[error("chat template {template} cannot be split into turns: {reason} at message {message}")]
    NotSplittable {
        /// Which template.
        template: String,
        /// The message, counted from 0.
        message: usize,
        /// What did not hold.
        reason: String,
    },

    /// A path does not lead to data that can be read.
    #[error("{} is {found}; expected a .jsonl file or a folder of them", path.display())]
    UnsupportedInput {
        /// The path given.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// The data files hold no record.
    #[error("no record in {files}")]
    NoRecords {
        /// The files that were read.
        files: String,
    },
    /// The records hold no token that counts in the loss.
    #[error("none of the {num_tokens} tokens in {files} is a target, so there is nothing to learn")]
    NoTargets {
        /// The files that were read.
        files: String,
        /// How many tokens they have.
        num_tokens: u64,
    },
    /// A line is too long to be held.
    #[error("line longer than {limit_bytes} bytes")]
    LineTooLong {
        /// The longest line that is read.
        limit_bytes: usize,
    },
    /// A line is not UTF-8.
    #[error("byte {byte:#04x} at offset {offset} of the line is not UTF-8")]
    NotUtf8 {
        /// The offending byte.
        byte: u8,
        /// Its place in the line.
        offset: usize,
    },
    /// A line is not a JSON object of the right types.
    #[error("expected a JSON object with `text`, `messages` or `input_ids`")]
    NotJson {
        /// The parser's reason.
        source: serde_json::Error,
    },
    /// A line holds something else than what was expected.
    #[error("expected {expected}, found {found}")]
    BadRecord {
        /// What a line must hold.
        expected: &'static str,
        /// What it holds.
        found: String,
    },
    /// Text or messages are given, but no tokenizer.
    #[error(
        "the line holds `{kind}`, which needs a tokenizer, but the model's folder has no tokenizer.json; without one only `input_ids` can be read"
    )]
    NeedsTokenizer {
        /// The key that the line holds.
        kind: &'static str,
    },
    /// A conversation without a turn to learn from.
    #[error("none of the {num_messages} messages gives a target token (roles: {roles})")]
    NoAssistantTurn {
        /// How many messages there are.
        num_messages: usize,
        /// Their roles.
        roles: String,
    },
    /// A token id has no row in the embedding.
    #[error("token id {id}{} is beyond the {vocab_size} rows of the embedding{}", piece.as_ref().map(|p| format!(" (`{p}`)")).unwrap_or_default(), highest.map(|id| format!("; the tokenizer has ids up to {id}")).unwrap_or_default())]
    IdOutOfRange {
        /// The id found.
        id: i64,
        /// Its token, where a tokenizer knows it.
        piece: Option<String>,
        /// How many ids there are.
        vocab_size: u32,
        /// The highest id of the tokenizer, where that is too high.
        highest: Option<u32>,
    },
    /// `input_ids` that do not fit into a row.
    #[error("{found} input_ids, but a row holds {seq}")]
    TooLong {
        /// How many ids the line has.
        found: usize,
        /// Tokens of a row.
        seq: usize,
    },

    /// Whoever asked for the rows asked to stop.
    #[error("stopped while the data were prepared")]
    Stopped,
    /// A setting has no meaning.
    #[error("{setting} must be {expected}, not {found}")]
    BadSetting {
        /// The setting's name.
        setting: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What was given.
        found: String,
    },
    /// A file of prepared rows is not one, or not whole.
    #[error("{} is not a whole file of prepared rows: {reason}", path.display())]
    BadRows {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A row that the file does not have.
    #[error("there is no row {index}: there are {num_rows}, counted from 0")]
    NoSuchRow {
        /// The row asked for.
        index: u64,
        /// How many there are.
        num_rows: u64,
    },
}

impl DataError {
    /// Says in which file and line the fault lies.
    pub(crate) fn at(self, file: &Path, line: u64) -> Self {
        Self::AtLine {
            file: file.to_path_buf(),
            line,
            source: Box::new(self),
        }
    }

    /// Whether a line needs a tokenizer where there is none.
    pub fn needs_tokenizer(&self) -> bool {
        match self {
            Self::NeedsTokenizer { .. } => true,
            Self::AtLine { source, .. } => source.needs_tokenizer(),
            _ => false,
        }
    }

    /// Names the file and the attempt that the system refused.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
