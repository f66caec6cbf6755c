//! What a file of source looks like.

use crate::{Source, code_of, comments_of};

/// The most code lines of a file.
pub const MAX_CODE_LINES: usize = 500;

/// Flat tables that may be longer, with the reason.
pub const LONG_TABLES: &[(&str, &str)] = &[];

/// Names that say nothing.
const EMPTY_NAMES: &[&str] = &["utils", "util", "common", "helpers", "helper", "misc"];

/// Ways to ask whether this rank is alone, without spaces and parentheses.
const ALONE: &[&str] = &[
    "world_size==1",
    "world_size!=1",
    "world_size<=1",
    "world_size>1",
    "world_size<2",
    "world_size>=2",
    "1==world_size",
    "matchworld_size{",
];

/// Lines before the test module that are neither blank nor comment.
pub fn code_lines(text: &str) -> usize {
    let code = text
        .split("\n#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or(text);
    code.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count()
}

/// A complaint about a file that is too long; test files are free.
pub fn too_long(source: &Source) -> Option<String> {
    let is_listed = LONG_TABLES.iter().any(|(path, _)| *path == source.path);
    let num_lines = code_lines(&source.text);
    let is_long = !source.is_test() && !is_listed && num_lines > MAX_CODE_LINES;
    is_long.then(|| {
        format!(
            "{}: {num_lines} code lines, {MAX_CODE_LINES} are allowed",
            source.path
        )
    })
}

/// A complaint about a file that does not open by saying what it answers.
pub fn no_header(source: &Source) -> Option<String> {
    (!source.text.starts_with("//!")).then(|| format!("{}: does not open with `//!`", source.path))
}

/// Complaints about modules, files and folders whose name says nothing.
pub fn empty_names(source: &Source) -> Vec<String> {
    let folders = source
        .path
        .split('/')
        .map(|name| name.trim_end_matches(".rs"));
    let code = code_of(&source.text);
    let modules = code.lines().filter_map(|line| {
        let (_, name) = line.split_once("mod ")?;
        name.split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
    });
    folders
        .chain(modules)
        .filter(|name| EMPTY_NAMES.contains(name))
        .map(|name| format!("{}: `{name}` says nothing", source.path))
        .collect()
}

/// A complaint about a special case for one rank.
pub fn alone(source: &Source) -> Option<String> {
    let mut code = source.shipped_code();
    code.retain(|c| !c.is_whitespace() && c != '(' && c != ')');
    // Only of a whole condition: `world_size > 10` is another question.
    let is_alone = ALONE.iter().any(|question| {
        code.match_indices(question).any(|(at, _)| {
            let after = code[at + question.len()..].chars().next();
            !after.is_some_and(|c| c.is_ascii_digit() || c == '_')
        })
    });
    is_alone.then(|| format!("{}: one rank is a special case", source.path))
}

/// Complaints about lints that are switched off rather than expected.
pub fn allowed_lints(source: &Source) -> Vec<String> {
    let code = code_of(&source.text);
    numbered(&code)
        .filter(|(_, line)| line.contains("#[allow(") || line.contains("#![allow("))
        .map(|(number, _)| format!("{}:{number}: use `expect` with a reason", source.path))
        .collect()
}

/// Complaints about open ends in comments that name no issue.
pub fn open_ends(source: &Source) -> Vec<String> {
    let comments = comments_of(&source.text);
    numbered(&comments)
        .filter(|(_, line)| {
            let mut words = line.split(|c: char| !c.is_alphanumeric());
            words.any(|word| ["TODO", "FIXME", "XXX", "TBD"].contains(&word)) && !names_issue(line)
        })
        .map(|(number, _)| {
            format!(
                "{}:{number}: an open end without an issue's number",
                source.path
            )
        })
        .collect()
}

fn names_issue(line: &str) -> bool {
    line.split('#')
        .skip(1)
        .any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}
