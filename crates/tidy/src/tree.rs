//! The source tree, read once.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::code_of;

/// One file of Rust.
#[derive(Debug, Clone)]
pub struct Source {
    /// The path from the root, with `/`.
    pub path: String,
    /// All of it.
    pub text: String,
}

impl Source {
    /// Whether all of the file is test code: under `tests/`, or `tests.rs`.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }

    /// Whether the file is part of what a crate ships: under `src/`.
    pub fn is_shipped(&self) -> bool {
        self.path.contains("/src/") && !self.is_test()
    }

    /// The text before the file's test module.
    pub fn without_tests(&self) -> &str {
        let mut parts = self.text.split("\n#[cfg(test)]\nmod tests");
        parts.next().unwrap_or(&self.text)
    }

    /// The code of what is shipped, without comments and strings.
    pub fn shipped_code(&self) -> String {
        if self.is_shipped() {
            code_of(self.without_tests())
        } else {
            String::new()
        }
    }
}

/// One of our crates.
#[derive(Debug, Clone)]
pub struct Crate {
    /// Its name.
    pub name: String,
    /// Its `Cargo.toml`.
    pub manifest: toml::Table,
    /// Its files of Rust.
    pub sources: Vec<Source>,
}

impl Crate {
    /// The names of a section such as `dependencies`.
    pub fn names_in(&self, section: &str) -> Vec<&str> {
        let table = self.manifest.get(section).and_then(toml::Value::as_table);
        table.map_or_else(Vec::new, |table| table.keys().map(String::as_str).collect())
    }
}

/// All of the workspace that the rules look at.
#[derive(Debug, Clone)]
pub struct Tree {
    /// The root of the workspace.
    pub root: PathBuf,
    /// The root's `Cargo.toml`.
    pub manifest: toml::Table,
    /// Our crates, by name.
    pub crates: Vec<Crate>,
}

impl Tree {
    /// Reads the workspace that this crate stands in.
    pub fn read() -> io::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .canonicalize()?;
        let mut crates = Vec::new();
        for folder in entries(&root.join("crates"))? {
            if folder.join("Cargo.toml").is_file() {
                crates.push(read_crate(&root, &folder)?);
            }
        }
        Ok(Self {
            manifest: read_manifest(&root)?,
            root,
            crates,
        })
    }

    /// All files of Rust.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.crates.iter().flat_map(|krate| &krate.sources)
    }

    /// Whether a crate is ours.
    pub fn has_crate(&self, name: &str) -> bool {
        self.crates.iter().any(|krate| krate.name == name)
    }

    /// The files in `folder` itself, as paths from the root.
    pub fn files_at(&self, folder: &str) -> io::Result<Vec<String>> {
        let files = entries(&self.root.join(folder))?;
        let files = files.iter().filter(|path| path.is_file());
        Ok(files.map(|file| path_from(&self.root, file)).collect())
    }

    /// Every file below `folder`, as paths from the root with `/`; none if
    /// there is no such folder.
    pub fn files_below(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut files = Vec::new();
        let folder = self.root.join(folder);
        if folder.is_dir() {
            walk(&folder, &mut |file| {
                files.push(path_from(&self.root, file));
                Ok(())
            })?;
        }
        Ok(files)
    }
}

fn read_crate(root: &Path, folder: &Path) -> io::Result<Crate> {
    let manifest = read_manifest(folder)?;
    let name = manifest
        .get("package")
        .and_then(|package| package.get("name"));
    let name = name
        .and_then(toml::Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let mut sources = Vec::new();
    walk(folder, &mut |file| {
        if file.extension().is_some_and(|extension| extension == "rs") {
            sources.push(Source {
                path: path_from(root, file),
                text: fs::read_to_string(file)?,
            });
        }
        Ok(())
    })?;
    Ok(Crate {
        name,
        manifest,
        sources,
    })
}

fn read_manifest(folder: &Path) -> io::Result<toml::Table> {
    let text = fs::read_to_string(folder.join("Cargo.toml"))?;
    text.parse().map_err(io::Error::other)
}

fn walk(folder: &Path, visit: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    for entry in entries(folder)? {
        if !entry.is_dir() {
            visit(&entry)?;
        } else if entry.file_name().is_some_and(|name| name != "target") {
            walk(&entry, visit)?;
        }
    }
    Ok(())
}

/// What is in a folder, in the order of names.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries: Vec<_> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<_>>()?;
    entries.sort();
    Ok(entries)
}

fn path_from(root: &Path, file: &Path) -> String {
    let path = file.strip_prefix(root).unwrap_or(file);
    let names = path.iter().map(|name| name.to_string_lossy());
    names.collect::<Vec<_>>().join("/")
}

/// The path that `target` names in a document that lies in `folder`.
pub(crate) fn path_of(folder: &str, target: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in folder.split('/').chain(target.split('/')) {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join("/")
}
