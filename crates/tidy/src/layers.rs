//! Which crate may use which, and which words are reserved to which crate.

use crate::{Crate, Source, Tree};

/// Each crate, lowest first, with the crates of ours that it may use.
pub const LAYERS: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("fp8", &["tensor"]),
    ("spec", &["tensor"]),
    ("shard", &["tensor"]),
    ("checkpoint", &["tensor", "fp8", "spec", "shard"]),
    ("comm", &["tensor"]),
    ("kernels", &["tensor", "fp8"]),
    ("model", &["tensor", "fp8", "spec", "shard", "kernels"]),
    (
        "plan",
        &["tensor", "fp8", "spec", "shard", "kernels", "model"],
    ),
    ("data", &["tensor"]),
    ("demo", &[]),
    (
        "train",
        &[
            "tensor",
            "fp8",
            "spec",
            "shard",
            "checkpoint",
            "comm",
            "kernels",
            "model",
            "plan",
            "data",
        ],
    ),
    (
        "nestling",
        &[
            "tensor",
            "fp8",
            "spec",
            "shard",
            "checkpoint",
            "comm",
            "kernels",
            "model",
            "plan",
            "data",
            "demo",
            "train",
        ],
    ),
    ("cli", &["nestling"]),
    ("tidy", &[]),
];

/// Crates that decide and do nothing: they open no file, start no thread and
/// contain no unsafe code.
pub const PURE: &[&str] = &["tensor", "fp8", "spec", "shard", "plan", "model"];

/// What a pure crate has no use for.
const IMPURE_WORDS: &[&str] = &[
    "unsafe",
    "std::fs",
    "std::thread",
    "std::net",
    "std::process",
    "std::env",
    "File::",
    "rayon",
];

/// Words that only some crates may use in shipped code, with the reason.
const RESERVED_WORDS: &[(&str, &[&str], &str)] = &[
    (
        "std::arch",
        &["kernels"],
        "only `kernels` knows instruction sets",
    ),
    (
        "core::arch",
        &["kernels"],
        "only `kernels` knows instruction sets",
    ),
    (
        "pulp",
        &["kernels", "checkpoint"],
        "only `kernels` knows instruction sets; the digest's plain loop is compiled for each",
    ),
    (
        "env::var",
        &["comm"],
        "settings are values that are handed down, not the environment; `comm` reads which rank \
         a launcher has started",
    ),
    (
        "env::set_var",
        &[],
        "settings are values that are handed down, not the environment",
    ),
    ("static mut", &[], "no globals"),
    (
        "thread::spawn",
        &[],
        "a thread ends with the scope that it serves",
    ),
];

/// Files that may contain unsafe code, with the reason.
pub const UNSAFE_FILES: &[(&str, &str)] = &[
    (
        "crates/checkpoint/tests/counting/mod.rs",
        "an allocator that counts what foreign bytes cost is an unsafe trait",
    ),
    (
        "crates/comm/src/shared.rs",
        "ranks read each other's memory in place instead of copying it",
    ),
    (
        "crates/kernels/benches/operations.rs",
        "measures the GEMM crate, whose interface is one unsafe function",
    ),
    (
        "crates/kernels/src/arena/buffer.rs",
        "buffers of one mapping that are handed out and given back in any order",
    ),
    (
        "crates/kernels/src/cpu/matrix.rs",
        "blocks of one matrix that threads write together, and the GEMM crate",
    ),
];

/// Complaints about a crate that uses one it may not.
pub fn wrong_uses(krate: &Crate, is_ours: &dyn Fn(&str) -> bool) -> Vec<String> {
    let Some((_, may_use)) = LAYERS.iter().find(|(name, _)| *name == krate.name) else {
        return vec![format!("`{}` has no layer", krate.name)];
    };
    let uses = krate.names_in("dependencies").into_iter();
    uses.filter(|name| is_ours(name) && !may_use.contains(name))
        .map(|name| format!("`{}` may not use `{name}`", krate.name))
        .collect()
}

/// Complaints about layers that use what is not below them.
pub fn upward_layers(layers: &[(&str, &[&str])]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (index, (name, uses)) in layers.iter().enumerate() {
        let is_below = |used: &&str| layers[..index].iter().any(|(below, _)| below == used);
        for used in uses.iter().filter(|used| !is_below(used)) {
            complaints.push(format!("`{used}` is not below `{name}`"));
        }
    }
    complaints
}

/// Complaints about crates that the map does not show.
pub fn missing_on_map<'a>(map: &str, crates: impl Iterator<Item = &'a str>) -> Vec<String> {
    crates
        .filter(|name| !map.contains(&format!("`{name}`")))
        .map(|name| format!("`{name}` is not in docs/architecture.md"))
        .collect()
}

/// A complaint about a crate without code.
pub fn empty_shell(krate: &Crate) -> Option<String> {
    let has_code = krate
        .sources
        .iter()
        .any(|source| !source.shipped_code().trim().is_empty());
    (!has_code).then(|| format!("`{}` is an empty shell", krate.name))
}

/// A complaint about a crate that does not take the workspace's lints.
pub fn own_lints(krate: &Crate) -> Option<String> {
    let lints = krate.manifest.get("lints");
    let inherits = lints.and_then(|lints| lints.get("workspace")?.as_bool());
    (inherits != Some(true))
        .then(|| format!("`{}` does not take the workspace's lints", krate.name))
}

/// Complaints about a pure crate that does something.
pub fn impure_words(crate_name: &str, source: &Source) -> Vec<String> {
    if !PURE.contains(&crate_name) {
        return Vec::new();
    }
    lines_with(source, IMPURE_WORDS)
        .into_iter()
        .map(|(line, word)| format!("{}:{line}: `{word}` in a pure crate", source.path))
        .collect()
}

/// Complaints about a word that is another crate's.
pub fn reserved_words(crate_name: &str, source: &Source) -> Vec<String> {
    let foreign = RESERVED_WORDS
        .iter()
        .filter(|(_, owners, _)| !owners.contains(&crate_name));
    foreign
        .flat_map(|(word, _, reason)| {
            lines_with(source, &[word])
                .into_iter()
                .map(move |(line, word)| format!("{}:{line}: `{word}`: {reason}", source.path))
        })
        .collect()
}

/// A complaint about unsafe code outside the files that may have it.
pub fn unlisted_unsafe(source: &Source, listed: &[(&str, &str)]) -> Option<String> {
    let is_listed = listed.iter().any(|(path, _)| *path == source.path);
    let code = crate::code_of(&source.text);
    let is_unsafe = words_of(&code).any(|word| word == "unsafe");
    (is_unsafe && !is_listed).then(|| format!("{}: unsafe code outside the list", source.path))
}

/// Complaints about listed files that have no unsafe code (any more).
pub fn stale_unsafe(tree: &Tree, listed: &[(&str, &str)]) -> Vec<String> {
    let is_unsafe = |path: &str| {
        tree.sources()
            .any(|source| source.path == path && unlisted_unsafe(source, &[]).is_some())
    };
    listed
        .iter()
        .filter(|(path, _)| !is_unsafe(path))
        .map(|(path, _)| format!("{path} is listed but has no unsafe code"))
        .collect()
}

/// Each line of shipped code with one of `needles`, at a word's boundaries.
fn lines_with<'a>(source: &Source, needles: &[&'a str]) -> Vec<(usize, &'a str)> {
    let code = source.shipped_code();
    let lines = code.lines().zip(1..);
    lines
        .flat_map(|(line, number)| {
            let here = needles.iter().filter(move |needle| has_word(line, needle));
            here.map(move |needle| (number, *needle))
        })
        .collect()
}

fn has_word(line: &str, needle: &str) -> bool {
    let is_inner = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + needle.len()..].chars().next();
        !before.is_some_and(is_inner) && (needle.ends_with(':') || !after.is_some_and(is_inner))
    })
}

/// The words of a text: names and numbers.
fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}
