//! Which documents there are, and whether what they point at exists.

use std::fs;
use std::io;
use std::path::Path;

use crate::{Tree, path_of};

/// Where the command line is described.
pub const COMMAND_LINE: &str = "docs/cli.md";

/// Where the crates are described.
pub const MAP: &str = "docs/architecture.md";

/// Where decisions are recorded.
pub const DECISIONS: &str = "docs/decisions";

/// A document: its path from the root, and all of it.
#[derive(Debug, Clone)]
pub struct Document {
    /// The path, with `/`.
    pub path: String,
    /// The text.
    pub text: String,
}

impl Document {
    /// Reads a document of the tree.
    pub fn read(tree: &Tree, path: &str) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            text: fs::read_to_string(tree.root.join(path))?,
        })
    }

    /// Every document of the tree: at its top, in `docs/`, beside a crate.
    pub fn all(tree: &Tree) -> io::Result<Vec<Self>> {
        let mut paths = tree.files_at("")?;
        paths.extend(tree.files_below("docs")?);
        paths.extend(tree.files_below("crates")?);
        let is_document = |path: &str| Path::new(path).extension().is_some_and(|end| end == "md");
        let documents = paths.iter().filter(|path| is_document(path));
        documents.map(|path| Self::read(tree, path)).collect()
    }
}

/// Complaints about links to files that are not there. Links to the web and
/// within a document are not looked at.
pub fn broken_links(document: &Document, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let folder = document
        .path
        .rsplit_once('/')
        .map_or("", |(above, _)| above);
    let targets = links(&document.text).filter(|target| {
        let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
        !is_elsewhere && !target.starts_with('#')
    });
    targets
        .map(|target| target.split('#').next().unwrap_or(target))
        .filter(|target| !exists(&path_of(folder, target)))
        .map(|target| format!("{}: nothing is at `{target}`", document.path))
        .collect()
}

/// The targets of `[text](target)`, outside of fenced blocks.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    let lines = text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    });
    lines.flat_map(|line| {
        let ends = line.split("](").skip(1);
        ends.filter_map(|end| end.split(')').next())
    })
}

/// Complaints about commands without a section of their own.
pub fn undescribed_commands(document: &Document, commands: &[String]) -> Vec<String> {
    let has_section = |command: &str| {
        let heading = format!("## `nestling {command}`");
        document.text.lines().any(|line| line == heading)
    };
    commands
        .iter()
        .filter(|command| !has_section(command))
        .map(|command| format!("{}: no section for `{command}`", document.path))
        .collect()
}

/// The commands of the program: one file or folder each.
pub fn commands(tree: &Tree) -> Vec<String> {
    let below = tree.sources().filter_map(|source| {
        let path = source.path.strip_prefix("crates/cli/src/commands/")?;
        path.split('/').next()
    });
    let mut names: Vec<String> = below
        .map(|name| name.trim_end_matches(".rs").to_owned())
        .filter(|name| name != "mod")
        .collect();
    names.dedup();
    names
}

/// Complaints about records of decisions that are not numbered from 0001 on
/// without a gap, or do not say context, decision and consequence.
pub fn wrong_decisions(records: &[Document]) -> Vec<String> {
    const PARTS: [&str; 3] = ["## Context", "## Decision", "## Consequence"];
    let mut complaints = Vec::new();
    for (record, number) in records.iter().zip(1..) {
        let prefix = format!("{DECISIONS}/{number:04}-");
        if !record.path.starts_with(&prefix) {
            complaints.push(format!("{}: `{prefix}...` was expected", record.path));
        }
        let has = |part: &str| record.text.lines().any(|line| line == part);
        let missing = PARTS.iter().filter(|part| !has(part));
        complaints.extend(missing.map(|part| format!("{}: no `{part}`", record.path)));
    }
    complaints
}
