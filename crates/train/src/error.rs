//! What can end a run.

use std::path::PathBuf;

use model::{GradientError, StepError};

/// A run that cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A setting that cannot be.
    #[error(transparent)]
    Settings(#[from] crate::SettingsError),
    /// The checkpoint cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::CheckpointError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] data::DataError),
    /// A peer failed or did not come.
    #[error(transparent)]
    Comm(#[from] comm::CommError),
    /// A tensor of a dtype that weights are not read from.
    #[error(transparent)]
    Dtype(#[from] tensor::NotAFloat),
    /// The plan's scratch was too small.
    #[error("the scratch arena is full, which the plan should have prevented")]
    Arena(#[from] kernels::ArenaFull),
    /// The ledger's limit was met.
    #[error("memory limit")]
    Memory(#[from] tensor::OverBudget),
    /// Memory or threads that the system does not give.
    #[error("cannot get {what}")]
    System {
        /// What was asked for.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file of the run folder.
    #[error("cannot write {path}")]
    RunFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The loss is NaN or infinite.
    #[error(
        "step {step}: the loss is not finite ({loss}); nothing was updated in this step and nothing is saved"
    )]
    LossNotFinite {
        /// The step, from 1.
        step: u64,
        /// NaN or infinity.
        loss: f64,
    },
    /// A gradient is NaN or infinite.
    #[error(
        "step {step}: the gradient of {unit} is not finite (sum of squares {sum_of_squares}); nothing of this state is saved"
    )]
    GradientNotFinite {
        /// The step, from 1.
        step: u64,
        /// The unit's name.
        unit: String,
        /// NaN or infinity.
        sum_of_squares: f64,
    },
    /// A model that has no next token to give.
    #[error(
        "the logits at position {position} are not numbers: a weight of the model is NaN or infinite"
    )]
    LogitsNotFinite {
        /// The position.
        position: usize,
    },
    /// An update made a weight NaN or infinite.
    #[error(
        "after step {step}: tensor `{tensor}` holds a weight that is not finite; nothing of this state is saved"
    )]
    WeightNotFinite {
        /// The steps taken.
        step: u64,
        /// The tensor's name.
        tensor: String,
    },
    /// Sequences longer than the model has positions for.
    #[error(
        "setting `seq`: {seq} tokens are longer than the model's {max_positions} positions (max_position_embeddings)"
    )]
    TooLong {
        /// Tokens of a sequence.
        seq: usize,
        /// Positions of the model.
        max_positions: usize,
    },
    /// Data without a single token to learn.
    #[error("no sequence of the data has a target token: there is nothing to learn")]
    NoTargets,
    /// The run was asked to stop before its first step.
    #[error("stopped before the first step; nothing is kept")]
    Stopped,
    /// Ranks that planned differently.
    #[error(
        "the {what} of rank {rank} is {theirs:#018x}, that of this rank {ours:#018x}: inputs differ"
    )]
    PlanDiffers {
        /// What was decided: `plan` or `load plan`.
        what: &'static str,
        /// The other rank.
        rank: usize,
        /// Its plan's hash.
        theirs: u64,
        /// This rank's.
        ours: u64,
    },
    /// A weight that no scale of a tile can hold.
    #[error(
        "tensor `{tensor}` of {file}: element {index} is {value}, a recipe with FP8 needs finite weights"
    )]
    SourceNotFinite {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: PathBuf,
        /// The element, row by row.
        index: usize,
        /// NaN or infinity.
        value: f32,
    },
    /// A tensor of which bytes were never read, or read twice.
    #[error(
        "tensor `{tensor}` of {file} has {expected_bytes} bytes, the ranks read {found_bytes} together: the load is wrong"
    )]
    NotRead {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: PathBuf,
        /// Its bytes.
        expected_bytes: u64,
        /// The bytes that were read by all ranks.
        found_bytes: u64,
    },
    /// A tensor that does not lie in the shards as it was read.
    #[error(
        "tensor `{tensor}` of {file} was read with digest {expected} and lies in the shards with {found}: the load is wrong"
    )]
    Arrived {
        /// The tensor.
        tensor: String,
        /// Its file.
        file: PathBuf,
        /// The digest of what was read.
        expected: checkpoint::Digest,
        /// The digest of what lies in the shards.
        found: checkpoint::Digest,
    },
    /// An output folder without a checkpoint to go on from.
    #[error("there is no checkpoint in `{}` to go on from", out.display())]
    NoCheckpoint {
        /// The folder.
        out: PathBuf,
    },
    /// A `state.json` that cannot be used.
    #[error("{file} cannot be used: {reason}")]
    BadState {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Settings that a resumed run may not change.
    #[error("{file} was written with other settings: {}", differences.join("; "))]
    OtherSettings {
        /// The file.
        file: PathBuf,
        /// Each key with what was saved and what is asked for.
        differences: Vec<String>,
    },
    /// A rank failed.
    #[error("rank {rank} of {world_size}")]
    Rank {
        /// The first that failed.
        rank: usize,
        /// How many there are.
        world_size: usize,
        /// Its error.
        source: Box<TrainError>,
    },
    /// A rank that is a process failed or was ended.
    #[error("rank {rank} of {world_size}: {message}")]
    RankProcess {
        /// The first that failed.
        rank: usize,
        /// How many there are.
        world_size: usize,
        /// Its error, or how it ended.
        message: String,
    },
    /// A rank panicked: a bug of ours.
    #[error("rank {rank} panicked: {message}")]
    Panicked {
        /// The rank.
        rank: usize,
        /// What it said.
        message: String,
    },
}

impl TrainError {
    /// Adds the step to what ended it.
    pub(crate) fn in_step(step: u64, error: StepError<Self>) -> Self {
        match error {
            StepError::LossNotFinite { loss } => Self::LossNotFinite { step, loss },
            StepError::Gradient(GradientError::NotFinite {
                unit,
                sum_of_squares,
            }) => Self::GradientNotFinite {
                step,
                unit,
                sum_of_squares,
            },
            StepError::Gradient(GradientError::Exchange(error)) | StepError::Exchange(error) => {
                error
            }
            _ => unreachable!("all variants are named"),
        }
    }
}
