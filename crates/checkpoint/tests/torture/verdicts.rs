//! The corpus on disk: files, verdicts as JSON, and a table of them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

use super::cases::{Case, Kind, all};

/// The folder of each kind.
fn folder(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "files",
        Kind::Folder => "folders",
        Kind::Config => "configs",
        Kind::Pickle => "pickles",
    }
}

/// Writes all cases with their verdicts to `out`.
pub(crate) fn write_corpus(out: &Path) {
    let cases = all();
    for case in &cases {
        let place = out.join(folder(case.kind)).join(&case.name);
        for (path, bytes) in &case.files {
            let path = if path.is_empty() {
                place.clone()
            } else {
                place.join(path)
            };
            let above = path.parent().expect("a path below `out`");
            fs::create_dir_all(above).expect("a folder");
            fs::write(path, bytes).expect("a file");
        }
    }
    let verdicts = verdicts(&cases);
    let text = serde_json::to_string_pretty(&verdicts).expect("plain data");
    fs::write(out.join("verdicts.json"), format!("{text}\n")).expect("verdicts");
    fs::write(out.join("README.md"), table(&cases)).expect("a table");
}

/// What the `safetensors` crate says of a case, if it is one for it.
pub(crate) fn reference(case: &Case) -> Option<&'static str> {
    let (_, bytes) = case.files.first().filter(|_| case.kind == Kind::File)?;
    let read = SafeTensors::deserialize(bytes);
    Some(if read.is_ok() { "read" } else { "refused" })
}

/// What torch said of a pickle when its script was last run.
pub(crate) fn torch(case: &Case) -> Option<&'static str> {
    let text = include_str!("../../../../testdata/torture/torch.json");
    let verdicts: Value = serde_json::from_str(text).expect("JSON");
    let verdict = verdicts["verdicts"].get(&case.name)?;
    Some(if verdict == "read" { "read" } else { "refused" })
}

/// What a strict reader says.
pub(crate) fn ours(case: &Case) -> &'static str {
    if case.refused.is_empty() {
        "read"
    } else {
        "refused"
    }
}

fn verdicts(cases: &[Case]) -> Value {
    let one = |case: &Case| {
        let mut verdict = json!({"verdict": ours(case)});
        if !case.refused.is_empty() {
            verdict["message"] = case.refused.into();
        }
        if let Some(reference) = reference(case) {
            verdict["safetensors"] = reference.into();
        }
        if let Some(torch) = torch(case) {
            verdict["torch"] = torch.into();
        }
        if !case.stricter_on.is_empty() {
            verdict["stricter_on"] = case.stricter_on.into();
        }
        (format!("{}/{}", folder(case.kind), case.name), verdict)
    };
    Value::Object(cases.iter().map(one).collect::<Map<_, _>>())
}

const HEAD: &str = "\
# Malformed and odd checkpoints

Made by `make.sh`; do not edit. `verdicts.json` says the same for programs: for each input
whether a strict reader reads or refuses it, words that the message has, and what the
`safetensors` crate 0.8 does. `crates/checkpoint/tests/torture/` holds all of it against
both readers. Where the two disagree, the last column names the point on which we are
stricter on purpose; there is no other disagreement.

- `files/`: one safetensors file each.
- `folders/`: a model folder with an index.
- `configs/`: one `config.json` each.
- `pickles/`: one `pytorch_model.bin` each. Beside them stands what
  `torch.load(weights_only=True)` does, as `torch_verdicts.py` found it (version in
  `torch.json`). What we read, torch reads. Torch reads more: it runs any nesting of plain
  values, while ours wants a dictionary of whole tensors and an archive of one reading.

| file | ours | the `safetensors` crate | torch | why they differ |
|---|---|---|---|---|
";

fn table(cases: &[Case]) -> String {
    let mut text = HEAD.to_owned();
    for case in cases {
        let path = format!("{}/{}", folder(case.kind), case.name);
        let ours = match case.refused {
            "" => "read".to_owned(),
            words => format!("refused: {}", words.replace('|', "\\|")),
        };
        let reference = reference(case).unwrap_or("");
        let torch = torch(case).unwrap_or("");
        let _ = writeln!(
            text,
            "| `{path}` | {ours} | {reference} | {torch} | {} |",
            case.stricter_on
        );
    }
    text
}
