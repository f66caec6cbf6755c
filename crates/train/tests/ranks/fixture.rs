//! A random model in a folder, rows to train it on, and runs of it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use checkpoint::init::Init;
use checkpoint::{Folder, Sources};
use data::{Prepared, Source};
use model::Transformer;
use spec::ModelSpec;
use tempfile::TempDir;
use tensor::Dtype;
use train::{ClipMode, Event, Outcome, ScheduleKind, Settings, TrainError, TrainJob};

/// Tokens of a row.
pub(crate) const SEQ: usize = 24;

/// A number of rows that no tested world divides evenly, but 1 and 7.
pub(crate) const NUM_ROWS: u64 = 7;

const SMALL: &str = r#"{
  "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "head_dim": 24,
  "intermediate_size": 320, "num_attention_heads": 4, "num_key_value_heads": 2,
  "num_hidden_layers": 2, "vocab_size": 700, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "initializer_range": 0.1,
  "mlp_bias": true, "tie_word_embeddings": TIED
}"#;

/// 13 row tiles a block and 6 a table, so that 8 ranks share them unevenly.
pub(crate) fn small(tied: bool) -> String {
    SMALL.replace("TIED", &tied.to_string())
}

/// A table of 66 row tiles of 256 KiB: two buckets.
pub(crate) fn two_buckets(tied: bool) -> String {
    small(tied)
        .replace("\"hidden_size\": 64", "\"hidden_size\": 512")
        .replace("\"vocab_size\": 700", "\"vocab_size\": 8400")
        .replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1")
        .replace("\"initializer_range\": 0.1", "\"initializer_range\": 0.03")
}

/// Settings that every test begins with: a rate at which the small model learns a
/// good part of its rows within ten steps.
pub(crate) fn settings() -> Settings {
    Settings {
        steps: Some(10),
        seq: SEQ,
        micro_batch: 4,
        global_batch: 7,
        lr: 3e-4,
        schedule: ScheduleKind::Constant,
        clip: ClipMode::Off,
        recipe: "f32".to_owned(),
        // Every block of so small a model is the first or the last.
        keep_bf16: vec!["none".to_owned()],
        threads: 1,
        ..Settings::default()
    }
}

/// A model folder and what is made of it; removed in the end.
#[derive(Debug)]
pub(crate) struct Fixture {
    folder: TempDir,
    num_outs: std::cell::Cell<usize>,
}

/// A run that ended with an error, and its folder.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Box<TrainError>,
    pub(crate) out: PathBuf,
}

/// A finished run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) outcome: Outcome,
    pub(crate) events: Vec<Event>,
    pub(crate) out: PathBuf,
}

impl Fixture {
    /// A random model of a config, stored in `dtype`.
    pub(crate) fn new(config: &str, dtype: Dtype) -> Self {
        Self::in_files(config, dtype, u64::MAX)
    }

    /// The same in files of at most `max_file_bytes`.
    pub(crate) fn in_files(config: &str, dtype: Dtype, max_file_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let init = Init {
            spec: &ModelSpec::from_config(config).unwrap(),
            config_text: config,
            dtype,
            seed: 11,
            is_sparse: false,
            max_file_bytes,
            num_threads: 1,
        };
        checkpoint::init::write(&folder.path().join("model"), &init, &|_| {
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        Self {
            folder,
            num_outs: 0.into(),
        }
    }

    pub(crate) fn model_path(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    /// A token file of rows, each made of its number; the first tokens of a row,
    /// as many as its number, are no targets.
    pub(crate) fn rows(&self, numbers: impl IntoIterator<Item = u64>) -> PathBuf {
        let numbers: Vec<u64> = numbers.into_iter().collect();
        let name = numbers.iter().fold("rows".to_owned(), |mut name, number| {
            write!(name, "-{number}").unwrap();
            name
        });
        let path = self.folder.path().join(name);
        let lines: String = numbers.iter().map(|&number| line(number)).collect();
        let jsonl = path.with_extension("jsonl");
        fs::write(&jsonl, lines).unwrap();
        let settings = data::Settings {
            seq: SEQ,
            vocab_size: 700,
            seed: 0,
            shuffle: false,
        };
        Prepared::build(&Source::find(&jsonl).unwrap(), None, &settings, &path).unwrap();
        path
    }

    /// The rows that most tests train on.
    pub(crate) fn seven_rows(&self) -> PathBuf {
        self.rows(0..NUM_ROWS)
    }

    /// Trains the model of this folder.
    #[track_caller]
    pub(crate) fn train(&self, settings: &Settings, rows: &Path) -> Run {
        self.try_train(&self.model_path(), settings, rows, None)
            .unwrap()
    }

    /// Trains any model.
    pub(crate) fn try_train(
        &self,
        model: &Path,
        settings: &Settings,
        rows: &Path,
        eval_rows: Option<&Path>,
    ) -> Result<Run, Failed> {
        let opened = Opened::open(model);
        self.run(&opened, settings, rows, eval_rows, &AtomicBool::new(false))
    }

    /// Trains a model whose headers were read before.
    pub(crate) fn try_train_opened(
        &self,
        opened: &Opened,
        settings: &Settings,
        rows: &Path,
    ) -> Result<Run, Failed> {
        self.run(opened, settings, rows, None, &AtomicBool::new(false))
    }

    /// A run that was asked to stop before it began.
    #[track_caller]
    pub(crate) fn train_stopped(&self, settings: &Settings, rows: &Path) -> Failed {
        let opened = Opened::open(&self.model_path());
        let run = self.run(&opened, settings, rows, None, &AtomicBool::new(true));
        run.unwrap_err()
    }

    fn run(
        &self,
        opened: &Opened,
        settings: &Settings,
        rows: &Path,
        eval_rows: Option<&Path>,
        stop: &AtomicBool,
    ) -> Result<Run, Failed> {
        let number = self.num_outs.replace(self.num_outs.get() + 1);
        let out = self.folder.path().join(format!("out-{number}"));
        fs::create_dir_all(out.join("run")).unwrap();
        let events = Mutex::new(Vec::new());
        let trained = train::run(&TrainJob {
            folder: &opened.folder,
            sources: &opened.sources,
            model: &opened.model,
            settings,
            rows,
            eval_rows,
            out: &out,
            num_cores: 1,
            ranks: train::Ranks::Threads,
            observer: &|event| events.lock().unwrap().push(event.clone()),
            stop,
        });
        match trained {
            Ok(outcome) => Ok(Run {
                outcome,
                events: events.into_inner().unwrap(),
                out,
            }),
            Err(error) => Err(Failed {
                error: Box::new(error),
                out,
            }),
        }
    }
}

/// A line of JSON: tokens that repeat with a period of the row's own, so that
/// there is something to learn.
fn line(number: u64) -> String {
    let period = 5 + number % 3;
    let ids: Vec<u64> = (0..SEQ as u64)
        .map(|at| (at % period * 97 + number * 41 + at / 17) % 700)
        .collect();
    let labels = ids.iter().zip(0..).map(|(&id, at)| {
        let counts = at >= number;
        if counts { id.cast_signed() } else { -100 }
    });
    let labels: Vec<i64> = labels.collect();
    format!("{{\"input_ids\": {ids:?}, \"labels\": {labels:?}}}\n")
}

/// The target tokens of a row: the first token is nobody's target.
pub(crate) fn num_targets(number: u64) -> u64 {
    SEQ as u64 - number.max(1)
}

/// An opened model.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) folder: Folder,
    pub(crate) sources: Sources,
    pub(crate) model: Transformer,
}

impl Opened {
    #[track_caller]
    pub(crate) fn open(path: &Path) -> Self {
        let folder = Folder::open(path).unwrap();
        let spec = folder.spec().unwrap();
        Self {
            sources: folder.sources(&spec).unwrap(),
            model: Transformer::new(spec),
            folder,
        }
    }

    /// Every tensor's name and bytes, sorted by name.
    #[track_caller]
    pub(crate) fn tensors(&self) -> Vec<(String, Vec<u8>)> {
        let reader = self.folder.open_files().unwrap();
        let mut tensors: Vec<_> = self
            .folder
            .tensors()
            .iter()
            .map(|tensor| {
                let len = tensor.meta.num_bytes().unwrap();
                let mut bytes = vec![0; usize::try_from(len).unwrap()];
                reader.read_at(tensor, 0..len, &mut bytes).unwrap();
                (tensor.meta.name.clone(), bytes)
            })
            .collect();
        tensors.sort();
        tensors
    }

    /// Every element of f32 tensors, in the order of their names.
    #[track_caller]
    pub(crate) fn f32s(&self) -> Vec<f32> {
        let tensors = self.tensors();
        let bytes = tensors.iter().flat_map(|(_, bytes)| bytes.chunks_exact(4));
        bytes
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect()
    }
}

/// The largest difference of two curves of one length, relative to the second.
#[track_caller]
pub(crate) fn largest_difference(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs
        .map(|(found, expected)| ((found - expected) / expected).abs())
        .fold(0.0, f64::max)
}
