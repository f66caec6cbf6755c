//! Whole operations: what a command of the program does, for library users.
//!
//! ```text
//! train     MODEL + data -> a Hugging Face folder
//! evaluate  MODEL + data -> mean loss
//! generate  MODEL + prompt -> text
//! logits    MODEL + ids -> numbers to compare with other programs
//! inspect   MODEL -> units, tensors, ties, problems
//! convert   MODEL or GGUF file -> a Hugging Face folder in another dtype
//! init      PRESET -> a random checkpoint
//! ```

mod convert;
mod error;
mod evaluate;
mod generate;
mod init;
mod inspect;
mod logits;
mod opened;
mod prepare;
mod sampling;
mod settings;
mod train_model;

pub use convert::{ConvertOptions, Converted, ImportFault, Target, convert};
pub use error::Error;
pub use evaluate::{EvalReport, evaluate};
pub use generate::{Finish, GenerateOptions, Generated, Prompt, generate};
pub use init::{InitOptions, PresetLine, init, presets};
pub use inspect::{Inspection, TensorLine, UnitLine, inspect};
pub use logits::{Logits, logits};
pub use opened::{DEMO, OpenModel};
pub use prepare::show_sample;
pub use sampling::Sampling;
pub use settings::{SettingsTable, read_settings, settings_to_toml};
pub use tensor::Dtype;
pub use train::{
    Event, LedgerAccount, Outcome, PhaseRecord, RankOutcome, Settings, StepRecord, TrainError,
};
pub use train_model::{
    DEMO_ANSWER_TOKENS, TrainOptions, check_out, demo_questions, demo_settings, discard_staged,
    train_model,
};
