//! Which crate may use which: the tree keeps it, and a bad sample is caught.
#![expect(clippy::unwrap_used, reason = "in a test a failure may panic")]

use std::fs;

use tidy::documents::MAP;
use tidy::layers::{
    LAYERS, PURE, UNSAFE_FILES, empty_shell, impure_words, missing_on_map, own_lints,
    reserved_words, stale_unsafe, unlisted_unsafe, upward_layers, wrong_uses,
};
use tidy::{Crate, Source, Tree};

/// Shows all complaints at once.
#[track_caller]
fn none(complaints: impl IntoIterator<Item = String>) {
    let complaints: Vec<_> = complaints.into_iter().collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

fn tree() -> Tree {
    Tree::read().unwrap()
}

fn source(path: &str, text: &str) -> Source {
    Source {
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

fn krate(name: &str, manifest: &str) -> Crate {
    Crate {
        name: name.to_owned(),
        manifest: manifest.parse().unwrap(),
        sources: vec![source("crates/x/src/lib.rs", "//! Only words.\n")],
    }
}

#[test]
fn each_crate_uses_only_what_its_layer_may() {
    let tree = tree();
    let is_ours = |name: &str| tree.has_crate(name);
    none(
        tree.crates
            .iter()
            .flat_map(|krate| wrong_uses(krate, &is_ours)),
    );
    none(upward_layers(LAYERS));
}

#[test]
fn every_layer_and_pure_crate_exists() {
    let tree = tree();
    let names = LAYERS.iter().map(|(name, _)| name).chain(PURE);
    none(
        names
            .filter(|name| !tree.has_crate(name))
            .map(|name| format!("`{name}` does not exist")),
    );
}

#[test]
fn every_crate_is_on_the_map() {
    let tree = tree();
    let map = fs::read_to_string(tree.root.join(MAP)).unwrap_or_default();
    none(missing_on_map(
        &map,
        tree.crates.iter().map(|krate| krate.name.as_str()),
    ));
}

#[test]
fn no_crate_is_an_empty_shell_or_has_lints_of_its_own() {
    let tree = tree();
    none(tree.crates.iter().filter_map(empty_shell));
    none(tree.crates.iter().filter_map(own_lints));
}

#[test]
fn pure_crates_only_decide_and_words_stay_with_their_crate() {
    for krate in tree().crates {
        none(
            krate
                .sources
                .iter()
                .flat_map(|source| impure_words(&krate.name, source)),
        );
        none(
            krate
                .sources
                .iter()
                .flat_map(|source| reserved_words(&krate.name, source)),
        );
    }
}

#[test]
fn unsafe_code_is_only_in_the_listed_files() {
    let tree = tree();
    none(
        tree.sources()
            .filter_map(|source| unlisted_unsafe(source, UNSAFE_FILES)),
    );
    none(stale_unsafe(&tree, UNSAFE_FILES));
}

#[test]
fn a_use_of_an_upper_crate_is_caught() {
    let tensor = krate(
        "tensor",
        "[dependencies]\ntrain.workspace = true\nhalf.workspace = true\n",
    );
    let is_ours = |name: &str| name == "train";
    assert_eq!(
        wrong_uses(&tensor, &is_ours),
        ["`tensor` may not use `train`"]
    );
    assert_eq!(
        wrong_uses(&krate("odd", ""), &is_ours),
        ["`odd` has no layer"]
    );
    assert_eq!(upward_layers(&[("low", &["high"]), ("high", &[])]).len(), 1);
}

#[test]
fn a_crate_missing_on_the_map_is_caught() {
    let missing = missing_on_map("only `tensor`", ["tensor", "comm"].into_iter());
    assert_eq!(missing, ["`comm` is not in docs/architecture.md"]);
}

#[test]
fn an_empty_shell_and_own_lints_are_caught() {
    assert!(empty_shell(&krate("x", "")).is_some());
    assert!(own_lints(&krate("x", "")).is_some());
    assert!(own_lints(&krate("x", "[lints]\nworkspace = true\n")).is_none());
}

#[test]
fn an_impure_line_is_caught_and_a_mention_is_not() {
    let bad = source(
        "crates/shard/src/lib.rs",
        "//! No std::fs here.\nuse std::fs::read;\n",
    );
    assert_eq!(
        impure_words("shard", &bad),
        ["crates/shard/src/lib.rs:2: `std::fs` in a pure crate"]
    );
    assert!(impure_words("checkpoint", &bad).is_empty());
    let test = source("crates/shard/tests/x.rs", "use std::fs::read;\n");
    assert!(impure_words("shard", &test).is_empty());
}

#[test]
fn a_reserved_word_is_caught() {
    let bad = source(
        "crates/train/src/lib.rs",
        "use std::arch::x86_64;\nlet x = env::var(a);\n",
    );
    assert_eq!(reserved_words("train", &bad).len(), 2);
    assert_eq!(reserved_words("kernels", &bad).len(), 1);
    let good = source("crates/train/src/lib.rs", "env::vars();\n");
    assert!(reserved_words("train", &good).is_empty());
}

#[test]
fn unlisted_unsafe_code_is_caught_and_its_lint_is_not() {
    let bad = source("crates/x/src/lib.rs", "//! One.\nunsafe { f() }\n");
    assert!(unlisted_unsafe(&bad, &[]).is_some());
    assert!(unlisted_unsafe(&bad, &[("crates/x/src/lib.rs", "why")]).is_none());
    let good = source("crates/x/src/lib.rs", "#![forbid(unsafe_code)]\n");
    assert!(unlisted_unsafe(&good, &[]).is_none());
    let tree = tree();
    assert_eq!(
        stale_unsafe(&tree, &[("crates/shard/src/lib.rs", "why")]).len(),
        1
    );
}
