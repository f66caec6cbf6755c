//! What can end a command, and how it is said in one line.

use std::error::Error;
use std::io;
use std::path::PathBuf;

/// A command that cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CliError {
    /// The operation failed.
    #[error(transparent)]
    Operation(#[from] nestling::Error),
    /// Ranks that a launcher started do not come together.
    #[error(transparent)]
    Launch(#[from] nestling::LaunchError),
    /// A flag that means nothing beside another.
    #[error("`{flag}` is of use only with `{beside}`")]
    IdleFlag {
        /// The flag.
        flag: &'static str,
        /// What it needs.
        beside: &'static str,
    },
    /// Standard output takes no more.
    #[error("cannot write to standard output")]
    Output {
        /// What the system said.
        source: io::Error,
    },
    /// A file that the user asked for.
    #[error("cannot write `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The program's own file, to start ranks with.
    #[error("cannot find the program's own file to start ranks with")]
    Program {
        /// What the system said.
        source: io::Error,
    },
    /// Ctrl-C cannot be listened for.
    #[error("cannot listen for signals")]
    Signals {
        /// What the system said.
        source: io::Error,
    },
}

impl CliError {
    /// Whether the reader of standard output has gone.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output { source } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// The error and its sources in one line, none said twice.
pub(crate) fn one_line(error: &dyn Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        let part = fold(&error.to_string());
        let is_new = parts.last().is_none_or(|last| !last.ends_with(&part));
        if is_new {
            parts.push(part);
        }
    }
    parts.join(": ")
}

/// Text without its line breaks.
fn fold(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Nested {
        #[error("outer")]
        Outer { source: Box<Nested> },
        #[error("inner: {source}")]
        Inner { source: io::Error },
    }

    #[test]
    fn the_chain_is_one_line_and_says_nothing_twice() {
        let source = io::Error::other("first\n  second\n");
        let inner = Box::new(Nested::Inner { source });
        let outer = Nested::Outer { source: inner };
        assert_eq!(one_line(&outer), "outer: inner: first, second");
    }
}
