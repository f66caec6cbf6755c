//! What later steps depend on beside the planes, and whether a resumed run may go on
//! from it.

use std::path::Path;

use checkpoint::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::run::Schedule;
use crate::{Settings, TrainError, TrainJob};

/// Settings without which the planes, the data or their order are others.
const MUST_STAY: [&str; 6] = [
    "recipe",
    "keep-bf16",
    "freeze",
    "seq",
    "global-batch",
    "seed",
];

/// Settings that change nothing that is learned, but for the order of sums.
const FREE: [&str; 16] = [
    "ranks",
    "threads",
    "deadline",
    "eval",
    "eval-every",
    "save-every",
    "keep",
    "resume",
    "operands-every",
    "logits-room",
    "recompute",
    "activations-room",
    "micro-batch",
    "read",
    "cache",
    "digests",
];

/// What later steps depend on beside the planes. The order of the data, the learning
/// rate and the bits of stochastic rounding follow from the step and the settings.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Progress {
    /// Steps taken.
    pub(crate) step: u64,
    /// The bits of the last gradient norm.
    pub(crate) previous_norm_bits: u64,
    /// Units that round no operand any more.
    pub(crate) fallen: Vec<bool>,
}

/// The text of `state.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct StateText {
    format: u32,
    progress: Progress,
    /// The folder of the model that the run began with.
    model: String,
    /// Sequences of the data.
    num_rows: u64,
    /// The digest of their tokens.
    rows: String,
    settings: Map<String, Value>,
}

const FORMAT: u32 = 1;

impl Progress {
    pub(crate) fn to_text(&self, job: &TrainJob<'_>, schedule: &Schedule) -> String {
        let text = StateText {
            format: FORMAT,
            progress: self.clone(),
            model: job.folder.path().display().to_string(),
            num_rows: schedule.num_rows,
            rows: schedule.rows_digest.to_string(),
            settings: settings_map(job.settings),
        };
        serde_json::to_string_pretty(&text).expect("plain data") + "\n"
    }

    /// Reads the text of `file`; refuses that of another run, and says in words what
    /// changed that may.
    pub(super) fn of_text(
        text: &str,
        file: &Path,
        job: &TrainJob<'_>,
        schedule: &Schedule,
    ) -> Result<(Self, Vec<String>), TrainError> {
        let refuse = |reason| TrainError::BadState {
            file: file.to_owned(),
            reason,
        };
        let state: StateText =
            serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
        if state.format != FORMAT {
            let found = state.format;
            return Err(refuse(format!("its format is {found}, expected {FORMAT}")));
        }
        let (refused, mut changed) = differences(&state.settings, &settings_map(job.settings));
        if !refused.is_empty() {
            return Err(TrainError::OtherSettings {
                file: file.to_owned(),
                differences: refused,
            });
        }
        let rows = Digest::to_string(&schedule.rows_digest);
        if (state.num_rows, &state.rows) != (schedule.num_rows, &rows) {
            let (saved, now) = (state.num_rows, schedule.num_rows);
            return Err(refuse(format!(
                "its data are {saved} sequences with digest {}, these are {now} with {rows}",
                state.rows
            )));
        }
        let (found, expected) = (state.progress.fallen.len(), job.model.units.len());
        if found != expected {
            return Err(refuse(format!(
                "it is of a model of {found} units, this one has {expected}"
            )));
        }
        let model = job.folder.path().display().to_string();
        if state.model != model {
            changed.push(format!("the model was {}, is {model}", state.model));
        }
        Ok((state.progress, changed))
    }
}

/// Settings as they are after JSON, which may differ in the last bit of a number.
fn settings_map(settings: &Settings) -> Map<String, Value> {
    let text = serde_json::to_string(settings).expect("plain data");
    serde_json::from_str(&text).expect("just written")
}

/// In words, each setting that changed: those that must not, and those that may.
fn differences(saved: &Map<String, Value>, now: &Map<String, Value>) -> (Vec<String>, Vec<String>) {
    let mut keys: Vec<&String> = saved.keys().chain(now.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.retain(|key| !FREE.contains(&key.as_str()) && saved.get(*key) != now.get(*key));
    let text = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
    let describe = |key: &&String| {
        let (was, is) = (text(saved.get(*key)), text(now.get(*key)));
        format!("`{key}` was {was}, is {is}")
    };
    let (refused, changed): (Vec<_>, Vec<_>) = keys
        .iter()
        .partition(|key| MUST_STAY.contains(&key.as_str()));
    (
        refused.into_iter().map(describe).collect(),
        changed.into_iter().map(describe).collect(),
    )
}
