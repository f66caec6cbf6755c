//! The program and the files that it is tried on.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Names of the demo's files that a text model needs, beside its config.
const TOKENIZER_FILES: [&str; 2] = ["tokenizer.json", "tokenizer_config.json"];

/// What a command printed and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Standard output of a command that succeeded.
    #[track_caller]
    pub(crate) fn text(self) -> String {
        assert_eq!(self.code, Some(0), "{}\n{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Standard output as one JSON value.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }

    /// Standard output as a JSON value a line.
    #[track_caller]
    pub(crate) fn json_lines(self) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }

    /// The one line of a command that failed.
    #[track_caller]
    pub(crate) fn error(self) -> String {
        assert_eq!(self.code, Some(1), "{}\n{}", self.stdout, self.stderr);
        let lines = self.stderr.lines().filter(|line| line.contains("error: "));
        assert_eq!(lines.count(), 1, "{}", self.stderr);
        let last = self.stderr.lines().last().unwrap_or_default();
        last.strip_prefix("error: ").unwrap().to_owned()
    }
}

pub(crate) fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_nestling"))
}

/// Runs the program to its end.
pub(crate) fn nestling<S: AsRef<OsStr>>(words: &[S]) -> Ran {
    let Output {
        status,
        stdout,
        stderr,
    } = command().args(words).output().unwrap();
    Ran {
        code: status.code(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

/// A folder with a model and data in it.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self {
            folder: TempDir::new().unwrap(),
        }
    }

    /// One with a `model` of the preset `tiny` and `rows.jsonl` for it.
    pub(crate) fn with_tiny() -> Self {
        let place = Self::new();
        place.run("init tiny --out model --seed 5").text();
        place.write("rows.jsonl", &rows(20, 32));
        place
    }

    /// One with a `model` of the demo's shape and tokenizer, with random weights.
    pub(crate) fn with_text_model() -> Self {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/assets/model");
        let place = Self::new();
        let config = demo.join("config.json");
        let out = place.path("model");
        nestling(&[
            OsStr::new("init"),
            config.as_os_str(),
            OsStr::new("--out"),
            out.as_os_str(),
        ])
        .text();
        for name in TOKENIZER_FILES {
            fs::copy(demo.join(name), out.join(name)).unwrap();
        }
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// The command `words`, which are separated by spaces, in this folder.
    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = command();
        command.args(words.split_whitespace());
        command.current_dir(self.folder.path());
        command
    }

    /// Runs the command `words` in this folder to its end.
    pub(crate) fn run(&self, words: &str) -> Ran {
        let output = self.command(words).output().unwrap();
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Refuses half a model in the folder `out`.
    #[track_caller]
    pub(crate) fn has_no_model(&self, out: &str) {
        for name in ["config.json", "model.safetensors", ".saving"] {
            let path = self.path(out).join(name);
            assert!(!path.exists(), "{} was left", path.display());
        }
    }
}

/// Lines of `input_ids`, all below 512.
pub(crate) fn rows(num_rows: usize, num_ids: usize) -> String {
    let mut text = String::new();
    for row in 0..num_rows {
        let ids: Vec<usize> = (0..num_ids).map(|at| (row * 31 + at * 7) % 512).collect();
        writeln!(text, "{{\"input_ids\": {ids:?}}}").unwrap();
    }
    text
}
