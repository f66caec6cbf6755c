//! The corpus of malformed and odd checkpoints: it is what its command writes, its
//! verdicts are ours, and we differ from the format's own reader on listed points
//! only.

#[path = "../archives/mod.rs"]
mod archives;
mod cases;
mod headers;
mod programs;
mod verdicts;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use cases::{Case, Kind};
use checkpoint::{CheckpointError, Folder, Strictness, inspect_file, inspect_file_with};
use spec::ModelSpec;
use tempfile::TempDir;

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/torture")
}

/// Every file below a folder by its path, but for the scripts and what torch said.
fn files_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for item in fs::read_dir(next).expect("a folder") {
            let path = item.expect("an item").path();
            if path.is_dir() {
                folders.push(path);
            } else if !is_not_made(&path) {
                let name = path.strip_prefix(folder).expect("below it").to_owned();
                files.insert(name, fs::read(path).expect("a file"));
            }
        }
    }
    files
}

/// Whether a file of the corpus does not come from its command.
fn is_not_made(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    ["make.sh", "torch_verdicts.py", "torch.json"]
        .iter()
        .any(|other| name == *other)
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// What our reader says of a case: nothing, or a message.
fn verdict(case: &Case) -> Option<String> {
    let root = committed();
    let say = |error: CheckpointError| chain(&error);
    match case.kind {
        Kind::File => inspect_file(&root.join("files").join(&case.name))
            .err()
            .map(say),
        Kind::Pickle => inspect_file(&root.join("pickles").join(&case.name))
            .err()
            .map(say),
        Kind::Folder => Folder::open(&root.join("folders").join(&case.name))
            .err()
            .map(say),
        Kind::Config => {
            let path = root.join("configs").join(&case.name);
            let text = fs::read_to_string(path).expect("a text");
            let error = ModelSpec::from_config(&text).err();
            error.map(|error| chain(&error))
        }
    }
}

#[test]
fn the_corpus_is_what_its_command_writes() {
    let folder = TempDir::new().unwrap();
    verdicts::write_corpus(folder.path());
    let (made, found) = (files_below(folder.path()), files_below(&committed()));
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&made), names(&found), "run testdata/torture/make.sh");
    for (name, bytes) in &made {
        assert!(
            found[name] == *bytes,
            "{}: run testdata/torture/make.sh",
            name.display()
        );
    }
}

#[test]
fn every_case_gets_its_verdict_and_its_file_is_named() {
    let cases = cases::all();
    assert!(cases.len() > 180, "{} cases", cases.len());
    let wrong: Vec<_> = cases.iter().filter_map(wrong_verdict).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What our reader says of a case, if it is not its verdict.
fn wrong_verdict(case: &Case) -> Option<String> {
    let message = verdict(case);
    let is_right = match &message {
        None => case.refused.is_empty(),
        Some(message) => {
            let is_named = case.kind == Kind::Config || message.contains(&case.name);
            !case.refused.is_empty() && message.contains(case.refused) && is_named
        }
    };
    (!is_right).then(|| format!("{}: expected `{}`, {message:?}", case.name, case.refused))
}

#[test]
fn the_formats_own_reader_disagrees_on_the_listed_points_only() {
    for case in &cases::all() {
        let Some(reference) = verdicts::reference(case) else {
            continue;
        };
        let agree = verdicts::ours(case) == reference;
        assert_eq!(agree, case.stricter_on.is_empty(), "{}", case.name);
        assert!(agree || reference == "read", "only we read {}", case.name);
    }
}

#[test]
fn what_we_read_torch_reads_too() {
    for case in cases::all().iter().filter(|case| case.kind == Kind::Pickle) {
        let torch = verdicts::torch(case).expect("run testdata/torture/torch_verdicts.py");
        assert!(
            verdicts::ours(case) == "refused" || torch == "read",
            "{}",
            case.name
        );
    }
}

#[test]
fn lax_reading_forgives_unknown_fields_and_nothing_else() {
    for case in cases::all().iter().filter(|case| case.kind == Kind::File) {
        let path = committed().join("files").join(&case.name);
        let lax = inspect_file_with(&path, Strictness::Lax);
        let forgives = case.stricter_on.starts_with("unknown fields");
        let is_read = verdicts::ours(case) == "read" || forgives;
        assert_eq!(lax.is_ok(), is_read, "{}", case.name);
        assert_eq!(
            lax.is_ok_and(|weights| !weights.unknown_fields().is_empty()),
            forgives
        );
    }
}
