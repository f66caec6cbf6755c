//! What a file looks like: the tree keeps it, and a bad sample is caught.
#![expect(clippy::unwrap_used, reason = "in a test a failure may panic")]

use tidy::testdata::orphans;
use tidy::text::{
    LONG_TABLES, MAX_CODE_LINES, allowed_lints, alone, code_lines, empty_names, no_header,
    open_ends, too_long,
};
use tidy::{Source, Tree};

/// Shows all complaints at once.
#[track_caller]
fn none(complaints: impl IntoIterator<Item = String>) {
    let complaints: Vec<_> = complaints.into_iter().collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[track_caller]
fn every_source(rule: impl Fn(&Source) -> Vec<String>) {
    none(Tree::read().unwrap().sources().flat_map(rule));
}

fn source(path: &str, text: &str) -> Source {
    Source {
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

fn lib(text: &str) -> Source {
    source("crates/x/src/lib.rs", text)
}

#[test]
fn no_file_is_too_long() {
    every_source(|source| too_long(source).into_iter().collect());
    let tree = Tree::read().unwrap();
    let is_long = |path: &str| {
        let mut sources = tree.sources();
        sources.any(|source| source.path == path && code_lines(&source.text) > MAX_CODE_LINES)
    };
    let stale = LONG_TABLES.iter().filter(|(path, _)| !is_long(path));
    none(stale.map(|(path, _)| format!("{path} is listed but not long")));
}

#[test]
fn every_file_opens_by_saying_what_it_answers() {
    every_source(|source| no_header(source).into_iter().collect());
}

#[test]
fn every_name_says_something() {
    every_source(empty_names);
}

#[test]
fn one_rank_is_no_special_case() {
    every_source(|source| alone(source).into_iter().collect());
}

#[test]
fn lints_are_expected_and_not_allowed() {
    every_source(allowed_lints);
}

#[test]
fn open_ends_name_an_issue() {
    every_source(open_ends);
}

#[test]
fn golden_files_lie_beside_their_script() {
    let tree = Tree::read().unwrap();
    let mut files = tree.files_below("testdata").unwrap();
    for krate in &tree.crates {
        let folder = format!("crates/{}/testdata", krate.name);
        files.extend(tree.files_below(&folder).unwrap());
    }
    none(orphans(&files));
}

#[test]
fn only_code_lines_count() {
    let text = "//! Words.\n\nuse a;\n    // more words\nfn f() {}\n\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
    assert_eq!(code_lines(text), 2);
}

#[test]
fn a_long_file_is_caught_unless_it_is_a_test() {
    let text = "fn f() {}\n".repeat(MAX_CODE_LINES + 1);
    assert!(too_long(&lib(&text)).is_some());
    assert!(too_long(&lib(&text[10..])).is_none());
    assert!(too_long(&source("crates/x/src/deal/tests.rs", &text)).is_none());
    assert!(too_long(&source("crates/x/tests/ranks.rs", &text)).is_none());
}

#[test]
fn a_missing_header_is_caught() {
    assert!(no_header(&lib("use a;\n//! Late.\n")).is_some());
}

#[test]
fn a_name_that_says_nothing_is_caught() {
    assert_eq!(empty_names(&lib("mod utils;\n")).len(), 1);
    assert_eq!(empty_names(&lib("pub(crate) mod misc {}\n")).len(), 1);
    assert_eq!(
        empty_names(&source("crates/x/tests/common/mod.rs", "")).len(),
        1
    );
    assert!(empty_names(&lib("mod commons; // mod utils\n")).is_empty());
}

#[test]
fn a_special_case_for_one_rank_is_caught() {
    let bad = [
        "if world_size == 1 {",
        "if world.world_size() == 1 {",
        "(world.world_size()) > 1 &&",
    ];
    for text in bad {
        assert!(alone(&lib(text)).is_some(), "{text}");
    }
    for text in [
        "if world_size == 16 {",
        "if rank >= world_size {",
        "// if world_size == 1",
    ] {
        assert!(alone(&lib(text)).is_none(), "{text}");
    }
}

#[test]
fn an_allowed_lint_is_caught() {
    let bad = concat!("#[", "allow(dead_code)]\nfn f() {}\n#![", "allow(x)]\n");
    assert_eq!(allowed_lints(&lib(bad)).len(), 2);
    assert!(allowed_lints(&lib("#[expect(dead_code, reason = \"why\")]\n")).is_empty());
}

#[test]
fn an_open_end_without_issue_is_caught() {
    assert_eq!(open_ends(&lib("// TODO: later\nlet todo = 1;\n")).len(), 1);
    assert_eq!(open_ends(&lib("//! TBD\n")).len(), 1);
    assert!(open_ends(&lib("// TODO(#12): later\n")).is_empty());
}

#[test]
fn a_golden_file_without_script_is_caught() {
    let files = [
        "testdata/a/x.json",
        "testdata/b/deep/y.json",
        "testdata/b/make_y.py",
    ];
    let files: Vec<_> = files.map(str::to_owned).into();
    assert_eq!(
        orphans(&files),
        ["testdata/a/x.json: no script beside it says how it was made"]
    );
}
