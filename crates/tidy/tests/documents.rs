//! Documents: they are there, they are whole, and what they point at exists.

use tidy::Tree;
use tidy::documents::{
    COMMAND_LINE, DECISIONS, Document, MAP, broken_links, commands, undescribed_commands,
    wrong_decisions,
};

/// What a reader may count on.
const DOCUMENTS: &[&str] = &[
    "README.md",
    "CHANGELOG.md",
    "docs/glossary.md",
    "docs/performance.md",
    COMMAND_LINE,
    MAP,
];

/// Shows all complaints at once.
#[track_caller]
fn none(complaints: impl IntoIterator<Item = String>) {
    let complaints: Vec<_> = complaints.into_iter().collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

fn document(path: &str, text: &str) -> Document {
    Document {
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

#[test]
fn every_document_is_there_and_so_are_the_licences() {
    let tree = Tree::read().unwrap();
    let files = DOCUMENTS.iter().chain(&["LICENSE-MIT", "LICENSE-APACHE"]);
    let missing = files.filter(|path| !tree.root.join(path).is_file());
    none(missing.map(|path| format!("{path} is missing")));
}

#[test]
fn every_link_leads_to_a_file() {
    let tree = Tree::read().unwrap();
    let exists = |path: &str| tree.root.join(path).exists();
    let documents = Document::all(&tree).unwrap();
    assert!(documents.len() > DOCUMENTS.len(), "decisions are documents");
    none(
        documents
            .iter()
            .flat_map(|document| broken_links(document, &exists)),
    );
}

#[test]
fn every_command_has_its_section() {
    let tree = Tree::read().unwrap();
    let commands = commands(&tree);
    assert!(commands.contains(&"train".to_owned()), "{commands:?}");
    let document = Document::read(&tree, COMMAND_LINE).unwrap();
    none(undescribed_commands(&document, &commands));
}

#[test]
fn decisions_are_numbered_and_whole() {
    let tree = Tree::read().unwrap();
    let paths = tree.files_below(DECISIONS).unwrap();
    assert!(!paths.is_empty());
    let records: Vec<_> = paths
        .iter()
        .map(|path| Document::read(&tree, path).unwrap())
        .collect();
    none(wrong_decisions(&records));
}

#[test]
fn a_broken_link_is_caught_and_the_web_is_not_asked() {
    let text = "[a](b.md) [c](../crates/x/src/lib.rs#L1) [d](https://e.f) [g](#h)\n\
                ```text\n[i](j.md)\n```\n[k](gone/)\n";
    let exists = |path: &str| path == "docs/b.md" || path == "crates/x/src/lib.rs";
    assert_eq!(
        broken_links(&document("docs/a.md", text), &exists),
        ["docs/a.md: nothing is at `gone/`"]
    );
}

#[test]
fn a_command_without_section_is_caught() {
    let text = "## `nestling train`\n\nnestling eval\n";
    let commands = ["eval".to_owned(), "train".to_owned()];
    assert_eq!(
        undescribed_commands(&document(COMMAND_LINE, text), &commands),
        ["docs/cli.md: no section for `eval`"]
    );
}

#[test]
fn a_gap_in_the_decisions_and_a_missing_part_are_caught() {
    let whole = "# x\n\n## Context\n\n## Decision\n\n## Consequence\n";
    let records = [
        document("docs/decisions/0001-a.md", whole),
        document(
            "docs/decisions/0003-b.md",
            "# y\n\n## Context\n\n## Decision\n",
        ),
    ];
    assert_eq!(
        wrong_decisions(&records),
        [
            "docs/decisions/0003-b.md: `docs/decisions/0002-...` was expected",
            "docs/decisions/0003-b.md: no `## Consequence`",
        ]
    );
}
