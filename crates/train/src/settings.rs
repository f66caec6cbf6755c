//! What a user can set of a training run.
//!
//! Plain values with defaults, as read from a file or from flags; [`Settings::check`]
//! refuses what cannot be.

use std::time::Duration;

use checkpoint::UnknownCachePolicy;
use data::RunLength;
use plan::{Kept, Patterns, Precision};
use serde::{Deserialize, Serialize};

use crate::{LoadSettings, UnknownReadWay};

/// The first and the last block, among names of layers.
const ENDS: &str = "ends";

/// A day.
const MAX_DEADLINE: u64 = 86_400;

/// How many times as long ranks may wait for one that reads or writes files.
const FILES_PATIENCE: u32 = 10;

/// No layer, where a list of layers is asked for.
const NONE: &str = "none";

/// The settings of a run. Every field is a key of the TOML file and a flag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Optimizer steps; 0 only loads and writes the model again.
    pub steps: Option<u64>,
    /// Passes over the data, where `steps` and `tokens` are not given.
    pub epochs: Option<f64>,
    /// Tokens to train on, where `steps` is not given.
    pub tokens: Option<u64>,
    /// Tokens of a sequence.
    pub seq: usize,
    /// Sequences that a rank computes at once.
    pub micro_batch: usize,
    /// Sequences of a step, over all ranks.
    pub global_batch: usize,
    /// Peak learning rate.
    pub lr: f64,
    /// How the learning rate falls after warm-up.
    pub schedule: ScheduleKind,
    /// Steps over which the learning rate rises to its peak.
    pub warmup: u64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Which parameters decay.
    pub weight_decay_on: DecayOn,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// How gradients are kept to a norm.
    pub clip: ClipMode,
    /// The largest gradient norm that is left as it is.
    pub clip_norm: f64,
    /// Seed of the order of the data.
    pub seed: u64,
    /// The precision set: `f32`, `bf16`, `bf16-lean`, `fp8` or `fp8-lean`.
    pub recipe: String,
    /// What products are computed in: `recipe`, or `f32` from whole masters.
    pub compute: String,
    /// Linear layers that stay out of FP8: names with `*`, or `ends` for the first and
    /// the last block.
    pub keep_bf16: Vec<String>,
    /// What gradients are rounded to that FP8 weights are multiplied by.
    pub fp8_gradients: GradientFormat,
    /// The part of an operand's numbers that rounding to FP8 may turn to 0; a block that
    /// loses more computes with its operands as they are.
    pub max_underflow: f64,
    /// Steps between two logs of what rounding to FP8 did; 0 never logs it.
    pub operands_every: u64,
    /// Whether a loss or gradient that is NaN or infinite costs its update instead of
    /// ending the run.
    pub allow_nan: bool,
    /// Parameters that are not trained: names with `*`.
    pub freeze: Vec<String>,
    /// What the backward makes again instead of keeping: everything but a block's input
    /// (`full`), nothing (`none`), or what has no room (`selective`).
    pub recompute: Recompute,
    /// MiB that blocks may keep for their backward where `recompute` is `selective`.
    pub activations_room: u64,
    /// Ranks on this host.
    pub ranks: usize,
    /// Threads of each rank; 0 shares out the cores.
    pub threads: usize,
    /// Seconds that a rank waits for the others before that is an error.
    pub deadline: u64,
    /// Data to evaluate on.
    pub eval: Option<String>,
    /// Steps between evaluations; 0 evaluates at the start and the end only.
    pub eval_every: u64,
    /// Steps between checkpoints; 0 saves at the end only.
    pub save_every: u64,
    /// How many checkpoints are kept, the last ones; 0 keeps all.
    pub keep: u64,
    /// The checkpoint that the run goes on from: a folder, or `latest` for the last of
    /// the output folder.
    pub resume: Option<String>,
    /// MiB that the head may hold in logits between its two passes.
    pub logits_room: u64,
    /// MB (10^6 bytes) after which a weight file is followed by the next.
    pub max_file_size: u64,
    /// Which rank reads a byte of the checkpoint: `own`, `host` or `root`.
    pub read: String,
    /// What reading leaves in the page cache: `auto`, `keep`, `drop` or `direct`.
    pub cache: String,
    /// Whether what arrived is compared with what was read.
    pub digests: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            steps: None,
            epochs: None,
            tokens: None,
            seq: 512,
            micro_batch: 1,
            global_batch: 8,
            lr: 2e-5,
            schedule: ScheduleKind::Cosine,
            warmup: 0,
            weight_decay: 0.0,
            weight_decay_on: DecayOn::Matrices,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            clip: ClipMode::Exact,
            clip_norm: 1.0,
            seed: 0,
            recipe: "bf16".to_owned(),
            compute: "recipe".to_owned(),
            keep_bf16: vec![ENDS.to_owned()],
            fp8_gradients: GradientFormat::E4m3,
            max_underflow: 0.1,
            operands_every: 100,
            allow_nan: false,
            freeze: Vec::new(),
            recompute: Recompute::Full,
            activations_room: 1024,
            ranks: 1,
            threads: 0,
            deadline: 120,
            eval: None,
            eval_every: 0,
            save_every: 0,
            keep: 0,
            resume: None,
            logits_room: 64,
            max_file_size: 5000,
            read: "own".to_owned(),
            cache: "auto".to_owned(),
            digests: true,
        }
    }
}

/// How the learning rate falls after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// Half a cosine, to zero.
    Cosine,
    /// A line, to zero.
    Linear,
    /// Not at all.
    Constant,
}

/// Which parameters decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecayOn {
    /// All matrices; norms and biases do not.
    Matrices,
    /// Every parameter.
    All,
}

/// What gradients are rounded to that FP8 weights are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GradientFormat {
    /// 3 bits of mantissa.
    E4m3,
    /// 2 bits of mantissa, and a wider range under each scale.
    E5m2,
}

/// How gradients are kept to a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClipMode {
    /// Not at all.
    Off,
    /// By this step's norm; gradient shards are kept until it is known.
    Exact,
    /// By the previous step's norm; keeps nothing.
    Previous,
}

/// What the backward of a block makes again instead of keeping it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// Everything but the block's input.
    Full,
    /// What of the first blocks has no room.
    Selective,
    /// Nothing.
    None,
}

/// A setting that cannot be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A value outside its range.
    #[error("setting `{key}`: expected {expected}, found {found}")]
    OutOfRange {
        /// The setting.
        key: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// Two settings that say the same in different ways.
    #[error("settings `{first}` and `{second}` both say how long to train, give one")]
    TwoLengths {
        /// The one.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// A recipe that there is not.
    #[error("setting `recipe`")]
    Recipe(#[from] plan::UnknownRecipe),
    /// Products in what there is not.
    #[error("setting `compute`")]
    Compute(#[from] plan::UnknownCompute),
    /// A pattern of names that means nothing.
    #[error("setting `{key}`")]
    Pattern {
        /// The setting.
        key: &'static str,
        /// What is wrong.
        source: plan::BadPattern,
    },
    /// A pattern that no parameter is like.
    #[error("setting `{key}`: no parameter of the model has a name like `{pattern}`")]
    NothingNamed {
        /// The setting.
        key: &'static str,
        /// The pattern.
        pattern: String,
    },
    /// Nothing is left to train.
    #[error("setting `freeze` names every parameter of the model: nothing is left to train")]
    AllFrozen,
    /// A way to read that there is not.
    #[error("setting `read`")]
    Read(#[from] UnknownReadWay),
    /// A cache policy that there is not.
    #[error("setting `cache`")]
    Cache(#[from] UnknownCachePolicy),
}

impl Settings {
    /// Refuses settings that cannot be, naming the first.
    pub fn check(&self) -> Result<(), SettingsError> {
        let positive = |key, value: usize| require(value > 0, key, "at least 1", &value);
        positive("seq", self.seq)?;
        positive("micro-batch", self.micro_batch)?;
        positive("global-batch", self.global_batch)?;
        positive("ranks", self.ranks)?;
        require(self.ranks <= 1024, "ranks", "at most 1024", &self.ranks)?;
        require(
            self.threads <= 1024,
            "threads",
            "at most 1024",
            &self.threads,
        )?;
        let is_time = (1..=MAX_DEADLINE).contains(&self.deadline);
        require(is_time, "deadline", "1 to 86400 seconds", &self.deadline)?;
        let finite = |key, value: f64| {
            // The update computes in f32.
            let ok = (0.0..=f64::from(f32::MAX)).contains(&value);
            require(ok, key, "a finite number of f32, at least 0", &value)
        };
        finite("lr", self.lr)?;
        finite("weight-decay", self.weight_decay)?;
        finite("eps", self.eps)?;
        finite("clip-norm", self.clip_norm)?;
        let below_one = |key, value: f64| {
            // The largest f32 below 1.
            let largest = 1.0 - f64::from(f32::EPSILON) / 2.0;
            let ok = (0.0..=largest).contains(&value);
            require(ok, key, "in [0, 1) as an f32", &value)
        };
        below_one("beta1", self.beta1)?;
        below_one("beta2", self.beta2)?;
        let is_share = (0.0..=1.0).contains(&self.max_underflow);
        require(
            is_share,
            "max-underflow",
            "a part, from 0 to 1",
            &self.max_underflow,
        )?;
        self.precision()?;
        self.load()?;
        self.run_length()?;
        Ok(())
    }

    /// Bytes that blocks may keep for their backward.
    pub fn activations_room_bytes(&self) -> u64 {
        match self.recompute {
            Recompute::Full => 0,
            Recompute::Selective => self.activations_room << 20,
            Recompute::None => u64::MAX,
        }
    }

    /// The precision set, with its exceptions.
    pub fn precision(&self) -> Result<Precision, SettingsError> {
        let named = self.keep_bf16.iter();
        let named = named.filter(|name| ![ENDS, NONE].contains(&name.as_str()));
        let pattern = |key| move |source| SettingsError::Pattern { key, source };
        Ok(Precision {
            recipe: self.recipe.parse()?,
            compute: self.compute.parse()?,
            kept: Kept {
                ends: self.keep_bf16.iter().any(|name| name == ENDS),
                named: Patterns::new(named.map(String::as_str)).map_err(pattern("keep-bf16"))?,
            },
            frozen: Patterns::new(self.freeze.iter().map(String::as_str))
                .map_err(pattern("freeze"))?,
            gradient_format: match self.fp8_gradients {
                GradientFormat::E4m3 => fp8::Format::E4M3,
                GradientFormat::E5m2 => fp8::Format::E5M2,
            },
        })
    }

    /// How long a rank waits for the others.
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline)
    }

    /// How long it waits while any of them reads or writes files.
    pub fn deadline_of_files(&self) -> Duration {
        FILES_PATIENCE * self.deadline()
    }

    /// How the checkpoint is read.
    pub fn load(&self) -> Result<LoadSettings, SettingsError> {
        Ok(LoadSettings {
            way: self.read.parse()?,
            cache: self.cache.parse()?,
            checks_digests: self.digests,
        })
    }

    /// When the run ends: one epoch, unless said otherwise.
    pub fn run_length(&self) -> Result<RunLength, SettingsError> {
        let said = [
            ("steps", self.steps.map(RunLength::Steps)),
            ("epochs", self.epochs.map(RunLength::Epochs)),
            ("tokens", self.tokens.map(RunLength::Tokens)),
        ];
        let mut said = said
            .into_iter()
            .filter_map(|(key, length)| length.map(|length| (key, length)));
        let Some((first, length)) = said.next() else {
            return Ok(RunLength::Epochs(1.0));
        };
        match said.next() {
            Some((second, _)) => Err(SettingsError::TwoLengths { first, second }),
            None => Ok(length),
        }
    }

    /// Threads of each rank: what was asked for, or the cores shared out.
    pub fn threads_per_rank(&self, num_cores: usize) -> usize {
        match self.threads {
            0 => (num_cores / self.ranks.max(1)).max(1),
            threads => threads,
        }
    }

    /// The clipping of a step after one with the given norm.
    pub fn clip(&self, previous_norm: f64) -> model::Clip {
        let max_norm = self.clip_norm;
        match self.clip {
            ClipMode::Off => model::Clip::Off,
            ClipMode::Exact => model::Clip::Exact { max_norm },
            ClipMode::Previous => model::Clip::Previous {
                max_norm,
                previous_norm,
            },
        }
    }
}

fn require(
    holds: bool,
    key: &'static str,
    expected: &'static str,
    found: &impl ToString,
) -> Result<(), SettingsError> {
    if holds {
        return Ok(());
    }
    Err(SettingsError::OutOfRange {
        key,
        expected,
        found: found.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_allowed_and_train_one_epoch() {
        assert_eq!(Settings::default().check(), Ok(()));
        assert_eq!(Settings::default().run_length(), Ok(RunLength::Epochs(1.0)));
    }

    #[test]
    fn two_lengths_are_refused_by_name() {
        let settings = Settings {
            steps: Some(3),
            tokens: Some(10),
            ..Settings::default()
        };
        assert_eq!(
            settings.check(),
            Err(SettingsError::TwoLengths {
                first: "steps",
                second: "tokens"
            })
        );
    }

    #[test]
    fn a_rank_has_at_least_one_thread() {
        let settings = Settings {
            ranks: 8,
            ..Settings::default()
        };
        assert_eq!(settings.threads_per_rank(2), 1);
    }

    #[test]
    fn nan_is_not_a_learning_rate() {
        let settings = Settings {
            lr: f64::NAN,
            ..Settings::default()
        };
        assert!(matches!(
            settings.check(),
            Err(SettingsError::OutOfRange { key: "lr", .. })
        ));
    }
}
