//! What packages say of themselves: one version, one edition, one oldest compiler.

use tidy::dependencies::packages;
use tidy::manifests::{own_keys, rust_version, too_new};
use tidy::{Crate, Tree};

/// Shows all complaints at once.
#[track_caller]
fn none(complaints: impl IntoIterator<Item = String>) {
    let complaints: Vec<_> = complaints.into_iter().collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn what_holds_for_all_crates_stands_in_the_workspace() {
    none(Tree::read().unwrap().crates.iter().flat_map(own_keys));
}

#[test]
fn no_package_needs_a_later_compiler_than_is_promised() {
    let tree = Tree::read().unwrap();
    let promised = rust_version(&tree).unwrap();
    none(
        packages(&tree).unwrap().iter().filter_map(|package| {
            too_new(&package.name, package.rust_version.as_deref(), promised)
        }),
    );
}

#[test]
fn a_key_of_its_own_is_caught() {
    let manifest = "[package]\nversion.workspace = true\nedition = \"2024\"\n\
                    rust-version.workspace = true\nlicense.workspace = true\n\
                    publish.workspace = true\n";
    let krate = Crate {
        name: "x".to_owned(),
        manifest: manifest.parse().unwrap(),
        sources: Vec::new(),
    };
    assert_eq!(
        own_keys(&krate),
        ["`x` does not take `edition` from the workspace"]
    );
}

#[test]
fn a_package_that_is_too_new_is_caught() {
    let is_too_new = |needs, promised| too_new("x", Some(needs), promised).is_some();
    assert!(is_too_new("1.96", "1.95"));
    assert!(is_too_new("1.95.1", "1.95"));
    assert!(!is_too_new("1.95.0", "1.95"));
    assert!(!is_too_new("1.9", "1.10"));
    assert!(too_new("x", None, "1.95").is_none());
}
