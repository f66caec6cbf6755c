//! Every setting of a run as a flag.
//!
//! What a setting is when nobody gives it stands in `nestling::Settings` alone;
//! `--print-config` shows it.

use nestling::SettingsTable;
use serde::Serialize;

use crate::products::RECIPES;

/// The settings that were given as flags.
#[derive(Debug, Default, Serialize, clap::Args)]
#[serde(rename_all = "kebab-case")]
#[command(
    next_help_heading = "Settings (each is also a key of the --config file)",
    allow_negative_numbers = true
)]
pub(crate) struct SettingFlags {
    /// Optimizer steps; 0 only loads the model and writes it again
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Passes over the data
    #[arg(long, value_name = "X")]
    epochs: Option<f64>,
    /// Tokens to train on
    #[arg(long, value_name = "N")]
    tokens: Option<u64>,
    /// Tokens of a sequence
    #[arg(long, value_name = "TOKENS")]
    seq: Option<usize>,
    /// Sequences that a rank computes at once
    #[arg(long, value_name = "N")]
    micro_batch: Option<usize>,
    /// Sequences of a step, over all ranks
    #[arg(long, value_name = "N")]
    global_batch: Option<usize>,
    /// Peak learning rate
    #[arg(long, value_name = "X")]
    lr: Option<f64>,
    /// How the learning rate falls after warm-up
    #[arg(long, value_parser = ["cosine", "linear", "constant"])]
    schedule: Option<String>,
    /// Steps over which the learning rate rises to its peak
    #[arg(long, value_name = "STEPS")]
    warmup: Option<u64>,
    /// Decoupled weight decay
    #[arg(long, value_name = "X")]
    weight_decay: Option<f64>,
    /// Which parameters decay
    #[arg(long, value_parser = ["matrices", "all"])]
    weight_decay_on: Option<String>,
    /// Decay of the optimizer's first moment
    #[arg(long, value_name = "X")]
    beta1: Option<f64>,
    /// Decay of the optimizer's second moment
    #[arg(long, value_name = "X")]
    beta2: Option<f64>,
    /// Added to the root of the second moment
    #[arg(long, value_name = "X")]
    eps: Option<f64>,
    /// How gradients are kept to a norm: by this step's, by the previous step's, not
    #[arg(long, value_parser = ["off", "exact", "previous"])]
    clip: Option<String>,
    /// The largest gradient norm that is left as it is
    #[arg(long, value_name = "X")]
    clip_norm: Option<f64>,
    /// Seed of the order of the data
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The precision set
    #[arg(long, value_parser = RECIPES)]
    recipe: Option<String>,
    /// What products are computed in: what the recipe says, or f32 from whole masters
    #[arg(long, value_parser = ["recipe", "f32"])]
    compute: Option<String>,
    /// Linear layers that stay out of FP8: names with `*`, `ends` for the first and the
    /// last block, `none`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    keep_bf16: Option<Vec<String>>,
    /// What gradients are rounded to that FP8 weights are multiplied by
    #[arg(long, value_parser = ["e4m3", "e5m2"])]
    fp8_gradients: Option<String>,
    /// The part of an operand's numbers that rounding to FP8 may turn to 0; a block that
    /// loses more computes with its operands as they are
    #[arg(long, value_name = "PART")]
    max_underflow: Option<f64>,
    /// Steps between two logs of what rounding to FP8 did; 0 never logs it
    #[arg(long, value_name = "STEPS")]
    operands_every: Option<u64>,
    /// Whether a loss or gradient that is NaN or infinite costs its update instead of
    /// ending the run
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    allow_nan: Option<bool>,
    /// Parameters that are not trained: names with `*`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    freeze: Option<Vec<String>>,
    /// What the backward makes again instead of keeping
    #[arg(long, value_parser = ["full", "selective", "none"])]
    recompute: Option<String>,
    /// MiB that blocks may keep for their backward under `--recompute selective`
    #[arg(long, value_name = "MIB")]
    activations_room: Option<u64>,
    /// Ranks on this host
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Threads of each rank; 0 shares out the cores
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Seconds that a rank waits for the others; ten times as long while files are read
    /// or written
    #[arg(long, value_name = "SECONDS")]
    deadline: Option<u64>,
    /// Data to evaluate on: a .jsonl file, or a folder of them
    #[arg(long, value_name = "DATA")]
    eval: Option<String>,
    /// Steps between evaluations; 0 evaluates at the start and the end only
    #[arg(long, value_name = "STEPS")]
    eval_every: Option<u64>,
    /// Steps between checkpoints; 0 saves at the end only
    #[arg(long, value_name = "STEPS")]
    save_every: Option<u64>,
    /// How many checkpoints are kept, the last ones; 0 keeps all
    #[arg(long, value_name = "CHECKPOINTS")]
    keep: Option<u64>,
    /// Go on from a checkpoint: the last of the output folder, or the one of this folder
    #[arg(long, value_name = "latest|PATH", num_args = 0..=1, default_missing_value = "latest")]
    resume: Option<String>,
    /// MiB that the head may hold in logits between its two passes
    #[arg(long, value_name = "MIB")]
    logits_room: Option<u64>,
    /// MB (10^6 bytes) after which a weight file is followed by the next
    #[arg(long, value_name = "MB")]
    max_file_size: Option<u64>,
    /// Which rank reads a byte of the checkpoint: who holds it, one of its host, rank 0
    #[arg(long, value_parser = ["own", "host", "root"])]
    read: Option<String>,
    /// What reading leaves in the page cache; auto drops what nobody had there before
    #[arg(long, value_parser = ["auto", "keep", "drop", "direct"])]
    cache: Option<String>,
    /// Whether what arrived is compared with what was read
    #[arg(long, value_name = "true|false")]
    digests: Option<bool>,
}

impl SettingFlags {
    /// The flags as keys of a settings file.
    pub(crate) fn to_table(&self) -> Result<SettingsTable, nestling::Error> {
        SettingsTable::try_from(self).map_err(|error| nestling::Error::BadSettings {
            origin: None,
            message: error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};
    use nestling::{Settings, read_settings};

    use super::*;

    fn command() -> Command {
        SettingFlags::augment_args(Command::new("settings"))
    }

    fn settings(flags: &[&str]) -> Result<Settings, nestling::Error> {
        use clap::FromArgMatches as _;
        let words = [&["settings"], flags].concat();
        let matches = command().try_get_matches_from(words).unwrap();
        let flags = SettingFlags::from_arg_matches(&matches).unwrap();
        read_settings(&Settings::default(), None, flags.to_table()?)
    }

    #[test]
    fn no_flag_changes_nothing() {
        assert_eq!(settings(&[]).unwrap(), Settings::default());
    }

    #[test]
    fn every_setting_is_a_flag_and_every_flag_a_setting() {
        let every = Settings {
            steps: Some(1),
            epochs: Some(1.0),
            tokens: Some(1),
            eval: Some(String::new()),
            resume: Some(String::new()),
            ..Settings::default()
        };
        let mut keys: Vec<String> = SettingsTable::try_from(every)
            .unwrap()
            .keys()
            .cloned()
            .collect();
        let mut flags: Vec<String> = command()
            .get_arguments()
            .filter_map(|arg| arg.get_long().map(str::to_owned))
            .collect();
        keys.sort();
        flags.sort();
        assert_eq!(flags, keys);
    }

    #[test]
    fn every_value_that_a_flag_lists_is_allowed() {
        let command = command();
        for arg in command.get_arguments() {
            let name = format!("--{}", arg.get_long().unwrap());
            for value in arg.get_possible_values() {
                settings(&[&name, value.get_name()]).unwrap();
            }
        }
    }

    #[test]
    fn a_number_larger_than_a_file_can_hold_is_an_error() {
        assert!(settings(&["--seed", "18446744073709551615"]).is_err());
    }
}
