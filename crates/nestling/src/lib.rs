//! Whole operations: what a command of the program does, for library users.
//!
//! ```text
//! train     MODEL + data -> a Hugging Face folder
//! evaluate  MODEL + data -> mean loss
//! generate  MODEL + prompt -> text
//! logits    MODEL + ids -> numbers to compare with other programs
//! inspect   MODEL -> units, tensors, ties, problems
//! load      MODEL as any rank of any world -> what it takes
//! verify    MODEL, or two -> are these the weights that they should be
//! convert   MODEL or GGUF file -> a Hugging Face folder in another dtype
//! init      PRESET -> a random checkpoint
//! ```

mod convert;
mod error;
mod evaluate;
mod generate;
mod init;
mod inspect;
mod load_report;
mod logits;
mod opened;
mod prepare;
mod rank_task;
mod sampling;
mod settings;
mod staked;
mod temporary;
mod train_model;
mod verify;

pub use checkpoint::{CachePolicy, FollowLinks, OnWritten, ReadRules, Strictness};
pub use comm::{
    About, Guests, Launch, LaunchError, come_to_meeting, hold_meeting, kill_ranks,
    launch_of_this_process,
};
pub use convert::{ConvertOptions, Converted, ConvertedMatrix, ImportFault, Target, convert};
pub use error::Error;
pub use evaluate::{EvalOptions, EvalReport, evaluate};
pub use generate::{Finish, GenerateOptions, Generated, Prompt, generate};
pub use init::{InitOptions, PresetLine, init, presets};
pub use inspect::{Inspection, ScalesLine, TensorLine, UnitLine, inspect};
pub use load_report::{LoadOptions, load_report};
pub use logits::{Logits, logits};
pub use opened::{DEMO, ModelPath, OpenModel, left_out};
pub use plan::Precision;
pub use prepare::show_sample;
pub use rank_task::{train_as_guest, train_as_rank};
pub use sampling::Sampling;
pub use settings::{SettingsTable, read_settings, settings_to_toml};
pub use staked::check_out;
pub use temporary::discard_temporary;
pub use tensor::Dtype;
pub use train::{
    ClipMode, Event, LedgerAccount, LoadReport, MatrixRecord, Outcome, PhaseRecord, RankLoad,
    RankOutcome, ReadWay, Settings, StepRecord, TrainError,
};
pub use train_model::{
    DEMO_ANSWER_TOKENS, Processes, TrainOptions, demo_questions, demo_settings, discard_staged,
    train_model,
};
pub use verify::{Verdict, Verified, VerifyReport, verify, verify_two, write_digests};
