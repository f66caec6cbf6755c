//! What a run tells whoever watches: the terminal, a log, a test.

use kernels::Arena;
use serde::{Deserialize, Serialize};
use tensor::Ledger;

use crate::PhaseRecord;
use crate::meter::mib;

/// Whoever watches a run. Called by rank 0 only.
pub type Observer<'a> = &'a (dyn Fn(&Event) + Sync);

/// How one matrix rests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatrixRecord {
    /// The parameter's name.
    pub name: String,
    /// Whether it has FP8 codes.
    pub is_fp8: bool,
    /// Why it has or has not.
    pub choice: String,
    /// Its bytes in the checkpoint.
    pub source_bytes: u64,
    /// Bytes of its master over all ranks.
    pub master_bytes: u64,
    /// Those of them that are gathered and multiplied.
    pub gathered_bytes: u64,
}

/// What rounding did to one operand of a layer, in one step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OperandRecord {
    /// The largest magnitude.
    #[serde(deserialize_with = "crate::processes::nan_if_null")]
    pub amax: f32,
    /// The part of all numbers that were not 0 and became 0.
    pub underflow: f64,
    /// Blocks of 128 with a NaN.
    pub num_nan_blocks: u64,
}

/// What the codes of a weight are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CodesRecord {
    /// The largest magnitude.
    #[serde(deserialize_with = "crate::processes::nan_if_null")]
    pub amax: f32,
    /// Zeros.
    pub num_zeros: u64,
    /// Codes of the largest number of the format.
    pub num_largest: u64,
    /// Codes of NaN.
    pub num_nans: u64,
}

/// A linear layer in FP8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// The name of its weight.
    pub name: String,
    /// Whether its operands will be rounded in the next step.
    pub is_rounded: bool,
    /// Of the forward and of wgrad.
    pub input: OperandRecord,
    /// The output's gradient, of dgrad.
    pub gradient: OperandRecord,
    /// What the operands were multiplied by, after the update.
    pub weight: CodesRecord,
}

/// Something that happened in a run. As JSON, `event` names the kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The plan is made; nothing is read yet.
    Start {
        /// The model's distinct parameters, a tied table once.
        num_parameters: u64,
        /// Ranks that share it.
        ranks: usize,
        /// Threads of each.
        threads: usize,
        /// The precision set.
        recipe: String,
        /// Steps to come.
        num_steps: u64,
        /// Rows of data.
        num_rows: u64,
        /// Tokens of a row.
        seq: usize,
        /// Matmul operations of rank 0's step.
        flops: u64,
    },
    /// How matrices rest, in recipes with FP8.
    Precision {
        /// Every matrix of the model.
        matrices: Vec<MatrixRecord>,
    },
    /// What a lossless load kept as plain bf16 is encoded.
    Encoded {
        /// Tiles that had been kept plain, over all ranks.
        num_plain_tiles: u64,
        /// Elements of them that were rounded.
        num_rounded: u64,
    },
    /// What rounding did to the linear layers in FP8, in one step.
    Operands {
        /// The step, from 1.
        step: u64,
        /// The layers, in the order of the model.
        layers: Vec<LayerRecord>,
    },
    /// A block lost too much by rounding: its operands are rounded no more.
    Fallback {
        /// The step that showed it, from 1.
        step: u64,
        /// The block.
        unit: String,
        /// The first of its layers that lost too much.
        layer: String,
        /// The operand: `input` or `gradient`.
        operand: String,
        /// The part of the operand's numbers that became 0.
        underflow: f64,
    },
    /// A phase of the process ended.
    Phase(PhaseRecord),
    /// A step was taken.
    Step(StepRecord),
    /// The loss on the evaluation data.
    Eval {
        /// Steps taken before.
        step: u64,
        /// Mean loss over the target tokens.
        #[serde(deserialize_with = "crate::processes::nan_if_null")]
        loss: f64,
        /// `exp(loss)`.
        #[serde(deserialize_with = "crate::processes::nan_if_null")]
        perplexity: f64,
        /// Target tokens.
        num_targets: u64,
    },
    /// What a rank held by name when the run ended.
    Ledger {
        /// The rank.
        rank: usize,
        /// Its accounts.
        accounts: Vec<LedgerAccount>,
        /// The most it held at once, MiB.
        peak_mib: f64,
        /// The arena's size by the plan, MiB.
        arena_planned_mib: f64,
        /// The arena's own high-water mark, MiB.
        arena_used_mib: f64,
    },
    /// Weights were written whole.
    Saved {
        /// Where.
        path: String,
        /// Steps taken before.
        step: u64,
        /// Bytes of weights.
        num_bytes: u64,
    },
    /// The run goes on from a checkpoint.
    Resumed {
        /// Where it is.
        path: String,
        /// Steps taken before.
        step: u64,
    },
    /// The run was asked to stop and did, at a step boundary.
    Stopped {
        /// The last step taken.
        step: u64,
        /// Steps that were to be taken.
        num_steps: u64,
    },
    /// Something worth knowing that stops nothing.
    Warning {
        /// What it is.
        message: String,
    },
}

impl Event {
    /// What a rank holds and held by name, with an arena of the planned size.
    pub fn ledger(rank: usize, ledger: &Ledger, arena: &Arena, planned_bytes: u64) -> Self {
        Self::Ledger {
            rank,
            accounts: LedgerAccount::all(ledger, arena),
            peak_mib: mib(ledger.peak_bytes()),
            arena_planned_mib: mib(planned_bytes),
            arena_used_mib: mib(arena.high_water_bytes() as u64),
        }
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its number, from 1.
    pub step: u64,
    /// Steps in all.
    pub num_steps: u64,
    /// Mean loss over the global batch, before the update.
    #[serde(deserialize_with = "crate::processes::nan_if_null")]
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// The gradient's l2 norm before clipping.
    #[serde(deserialize_with = "crate::processes::nan_if_null")]
    pub grad_norm: f64,
    /// Tokens of the global batch.
    pub num_tokens: u64,
    /// Target tokens of the global batch.
    pub num_targets: u64,
    /// Its wall-clock seconds.
    pub seconds: f64,
    /// Tokens per second.
    pub tokens_per_second: f64,
}

/// One account of a rank's ledger, in MiB.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerAccount {
    /// The account's name.
    pub name: String,
    /// Held at the end.
    pub held_mib: f64,
    /// Held at most.
    pub peak_mib: f64,
}

impl LedgerAccount {
    /// The accounts of a ledger that were used, and what the arena was used for:
    /// each purpose with its own peak, nothing of which outlives a step.
    pub fn all(ledger: &Ledger, arena: &Arena) -> Vec<Self> {
        let accounts = ledger.lines().into_iter().map(|line| Self {
            name: line.account.name().to_owned(),
            held_mib: mib(line.held_bytes),
            peak_mib: mib(line.peak_bytes),
        });
        let purposes = arena.peak_by_purpose().into_iter().map(|peak| Self {
            name: format!("arena: {}", peak.purpose.name()),
            held_mib: 0.0,
            peak_mib: mib(peak.bytes as u64),
        });
        accounts.chain(purposes).collect()
    }
}
