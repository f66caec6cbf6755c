//! Crates of others: listed with a reason, used, and under a permissive licence.
#![expect(clippy::unwrap_used, reason = "in a test a failure may panic")]

use tidy::dependencies::{DEPENDENCIES, own_versions, packages, unused, wrong_licence, wrong_list};
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

fn krate(manifest: &str, code: &str) -> Crate {
    Crate {
        name: "x".to_owned(),
        manifest: manifest.parse().unwrap(),
        sources: vec![Source {
            path: "crates/x/src/lib.rs".to_owned(),
            text: code.to_owned(),
        }],
    }
}

#[test]
fn every_crate_of_others_is_listed_with_a_reason() {
    none(wrong_list(&tree(), DEPENDENCIES));
    assert!(DEPENDENCIES.iter().all(|(_, reason)| reason.len() > 10));
    assert!(DEPENDENCIES.is_sorted());
}

#[test]
fn versions_stand_in_one_place() {
    none(tree().crates.iter().flat_map(own_versions));
}

#[test]
fn no_crate_names_a_dependency_that_it_does_not_use() {
    none(tree().crates.iter().flat_map(unused));
}

#[test]
fn every_package_of_the_build_is_permissive() {
    let packages = packages(&tree()).unwrap();
    assert!(packages.len() > 20, "metadata lists the packages");
    let wrong = packages
        .iter()
        .filter_map(|package| wrong_licence(&package.name, package.licence.as_deref()));
    none(wrong);
}

#[test]
fn an_unlisted_crate_and_a_stale_entry_are_caught() {
    let mut tree = tree();
    tree.crates = vec![krate("[dev-dependencies]\nleft-pad = \"1\"\n", "")];
    tree.manifest = "[workspace.dependencies]\nidle = \"1\"\n".parse().unwrap();
    assert_eq!(
        wrong_list(&tree, &[("gone", "why")]),
        [
            "`left-pad` is not listed",
            "`gone` is listed but not used",
            "`idle` is in the workspace's dependencies but not used",
        ]
    );
}

#[test]
fn a_version_outside_the_workspace_is_caught() {
    let manifest = "[dependencies]\nhalf = \"2\"\nrayon.workspace = true\n";
    assert_eq!(
        own_versions(&krate(manifest, "")),
        ["`x` sets its own version of `half`"]
    );
}

#[test]
fn an_unused_dependency_is_caught() {
    let manifest = "[dependencies]\nleft-pad.workspace = true\nhalf.workspace = true\n";
    let complaints = unused(&krate(manifest, "use half::bf16;\n// left_pad::pad\n"));
    assert_eq!(
        complaints,
        ["`x` names `left-pad` in dependencies but does not use it"]
    );
}

#[test]
fn a_licence_with_strings_attached_is_caught() {
    let permissive = |licence| wrong_licence("x", Some(licence)).is_none();
    assert!(permissive("MIT OR Apache-2.0"));
    assert!(permissive("MIT/Apache-2.0"));
    assert!(permissive("(MIT OR GPL-3.0) AND Unicode-3.0"));
    assert!(permissive("Apache-2.0 WITH LLVM-exception OR Zlib"));
    assert!(!permissive("GPL-3.0-only"));
    assert!(!permissive("MIT AND MPL-2.0"));
    assert!(!permissive("(MIT"));
    assert!(!permissive("MIT MIT"));
    assert!(!permissive(""));
    assert!(wrong_licence("x", None).is_some());
}
