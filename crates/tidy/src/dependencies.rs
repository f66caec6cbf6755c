//! Which crates of others are used, why, and under which licence.

use std::collections::BTreeSet;
use std::io;
use std::process::Command;

use serde_json::Value;

use crate::{Crate, Tree, code_of};

/// Each crate of others that one of ours names, with the reason.
pub const DEPENDENCIES: &[(&str, &str)] = &[
    ("bytemuck", "checked views between bytes and numbers"),
    ("clap", "the command line: parsing, help, suggestions"),
    (
        "gemm",
        "the maintained matrix product underneath every linear layer",
    ),
    (
        "glob",
        "patterns of parameter names, with their syntax errors",
    ),
    ("half", "bf16 and f16 with correct rounding"),
    ("indicatif", "progress bars"),
    ("memmap2", "the ranks' shared window and large arenas"),
    ("minijinja", "chat templates, which are Jinja"),
    (
        "minijinja-contrib",
        "the Python string methods that chat templates call",
    ),
    (
        "proptest",
        "tests: random models, shapes and files, shrunk to the smallest",
    ),
    ("pulp", "vector instructions chosen at run time"),
    ("rayon", "one pool of threads for kernels"),
    (
        "rustix",
        "system calls without unsafe: ranged reads and writes, clocks, resources",
    ),
    (
        "safetensors",
        "tests: the format's own reader as a second opinion",
    ),
    ("serde", "settings and configs as plain structs"),
    ("serde_json", "config.json, headers, metrics, reports"),
    ("sha2", "tests: digests of whole tables of 8-bit formats"),
    ("signal-hook", "Ctrl-C ends a run at a step's boundary"),
    ("strsim", "the name that was probably meant"),
    ("tempfile", "folders that go away again"),
    ("thiserror", "one error enum a crate without boilerplate"),
    ("tokenizers", "the checkpoint's own tokenizer.json"),
    (
        "toml",
        "the settings file, and manifests for the rules of the tree",
    ),
];

/// SPDX names of licences that ask for no more than their own text.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "Zlib",
];

const SECTIONS: &[&str] = &["dependencies", "dev-dependencies", "build-dependencies"];

/// Complaints about crates of others that are not listed, or listed in vain.
pub fn wrong_list(tree: &Tree, listed: &[(&str, &str)]) -> Vec<String> {
    let named = tree.crates.iter().flat_map(|krate| {
        let sections = SECTIONS.iter();
        sections.flat_map(|section| krate.names_in(section))
    });
    let named: BTreeSet<&str> = named.filter(|name| !tree.has_crate(name)).collect();
    let shared = tree
        .manifest
        .get("workspace")
        .and_then(|table| table.get("dependencies"));
    let shared = shared.and_then(toml::Value::as_table).into_iter().flatten();
    let shared = shared
        .map(|(name, _)| name.as_str())
        .filter(|name| !tree.has_crate(name));
    let listed: BTreeSet<&str> = listed.iter().map(|(name, _)| *name).collect();
    let unlisted = named
        .difference(&listed)
        .map(|name| format!("`{name}` is not listed"));
    let in_vain = listed
        .difference(&named)
        .map(|name| format!("`{name}` is listed but not used"));
    let unused = shared
        .filter(|name| !named.contains(name))
        .map(|name| format!("`{name}` is in the workspace's dependencies but not used"));
    unlisted.chain(in_vain).chain(unused).collect()
}

/// Complaints about dependencies whose version does not come from the workspace.
pub fn own_versions(krate: &Crate) -> Vec<String> {
    let mut complaints = Vec::new();
    for section in SECTIONS {
        let table = krate.manifest.get(*section).and_then(toml::Value::as_table);
        for (name, value) in table.into_iter().flatten() {
            let inherits = value.get("workspace").and_then(toml::Value::as_bool);
            if inherits != Some(true) {
                complaints.push(format!("`{}` sets its own version of `{name}`", krate.name));
            }
        }
    }
    complaints
}

/// Complaints about dependencies that no code of the crate names.
pub fn unused(krate: &Crate) -> Vec<String> {
    let names = |is_shipped: bool| {
        let sources = krate
            .sources
            .iter()
            .filter(move |source| !is_shipped || source.is_shipped());
        sources
            .map(|source| code_of(&source.text))
            .collect::<String>()
    };
    let (shipped, all) = (names(true), names(false));
    let is_used = |code: &str, name: &str| code.contains(&format!("{}::", name.replace('-', "_")));
    let mut complaints = Vec::new();
    for (section, code) in [("dependencies", &shipped), ("dev-dependencies", &all)] {
        for name in krate.names_in(section) {
            if !is_used(code, name) {
                complaints.push(format!(
                    "`{}` names `{name}` in {section} but does not use it",
                    krate.name
                ));
            }
        }
    }
    complaints
}

/// What a package that the build needs says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its licence expression.
    pub licence: Option<String>,
    /// The oldest compiler that it builds with.
    pub rust_version: Option<String>,
}

/// Each package that the build needs.
pub fn packages(tree: &Tree) -> io::Result<Vec<Package>> {
    let host = run(tree, "rustc", &["-vV"])?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or_else(|| io::Error::other("rustc names no host"))?;
    // Only what this host needs is sure to be on it, and nothing is fetched.
    let arguments = [
        "metadata",
        "--offline",
        "--format-version=1",
        "--filter-platform",
        host,
    ];
    let metadata: Value = serde_json::from_str(&run(tree, env!("CARGO"), &arguments)?)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Ok(packages
        .map(|package| Package {
            name: text(&package["name"]).unwrap_or_default(),
            licence: text(&package["license"]),
            rust_version: text(&package["rust_version"]),
        })
        .collect())
}

fn run(tree: &Tree, program: &str, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(&tree.root)
        .output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(message));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}

/// A complaint about a package whose licence is not permissive.
pub fn wrong_licence(package: &str, licence: Option<&str>) -> Option<String> {
    let is_permissive = licence.is_some_and(is_permissive);
    (!is_permissive).then(|| format!("`{package}` is under {}", licence.unwrap_or("no licence")))
}

/// Whether an SPDX expression can be met with permissive licences alone.
fn is_permissive(expression: &str) -> bool {
    // An old way to write `OR`.
    let expression = expression.replace('/', " OR ");
    let expression = expression.replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = expression.split_whitespace().collect();
    let mut rest = &tokens[..];
    let is_met = any_of(&mut rest);
    is_met && rest.is_empty()
}

fn any_of(tokens: &mut &[&str]) -> bool {
    let mut is_met = all_of(tokens);
    while take(tokens, "OR") {
        is_met |= all_of(tokens);
    }
    is_met
}

fn all_of(tokens: &mut &[&str]) -> bool {
    let mut is_met = one_of(tokens);
    while take(tokens, "AND") {
        is_met &= one_of(tokens);
    }
    is_met
}

fn one_of(tokens: &mut &[&str]) -> bool {
    if take(tokens, "(") {
        let is_met = any_of(tokens);
        return take(tokens, ")") && is_met;
    }
    let Some((name, rest)) = tokens.split_first() else {
        return false;
    };
    *tokens = rest;
    let mut name = (*name).to_owned();
    if take(tokens, "WITH") {
        let Some((exception, rest)) = tokens.split_first() else {
            return false;
        };
        *tokens = rest;
        name = format!("{name} WITH {exception}");
    }
    LICENCES.contains(&name.as_str())
}

fn take(tokens: &mut &[&str], token: &str) -> bool {
    let is_next = tokens.first() == Some(&token);
    if is_next {
        *tokens = &tokens[1..];
    }
    is_next
}
