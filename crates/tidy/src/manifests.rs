//! What the packages say of themselves, and which compiler they need.

use toml::Value;

use crate::{Crate, Tree};

/// What every crate takes from the workspace.
const INHERITED: &[&str] = &["version", "edition", "rust-version", "license", "publish"];

/// Complaints about a crate that says something for itself that the workspace
/// says for all.
pub fn own_keys(krate: &Crate) -> Vec<String> {
    let package = krate.manifest.get("package");
    let inherits = |key: &str| {
        let value = package.and_then(|package| package.get(key)?.get("workspace"));
        value.and_then(Value::as_bool) == Some(true)
    };
    INHERITED
        .iter()
        .filter(|key| !inherits(key))
        .map(|key| format!("`{}` does not take `{key}` from the workspace", krate.name))
        .collect()
}

/// The oldest compiler that the workspace promises to build with.
pub fn rust_version(tree: &Tree) -> Option<&str> {
    let package = tree.manifest.get("workspace")?.get("package")?;
    package.get("rust-version")?.as_str()
}

/// A complaint about a package that needs a later compiler than is promised.
pub fn too_new(package: &str, needs: Option<&str>, promised: &str) -> Option<String> {
    let needs = needs?;
    (numbers(needs) > numbers(promised))
        .then(|| format!("`{package}` needs Rust {needs}, {promised} is promised"))
}

/// A version's numbers, the last zeros left out.
fn numbers(version: &str) -> Vec<u64> {
    let parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let mut numbers: Vec<u64> = parts.collect();
    while numbers.last() == Some(&0) {
        numbers.pop();
    }
    numbers
}
