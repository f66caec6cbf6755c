//! The rules that the source tree keeps, as functions that name each breach.
//!
//! ```text
//! layers         which crate may use which, and what the pure ones leave alone
//! text           what a file of source looks like
//! dependencies   which crates of others are used, why, under which licence
//! manifests      what the packages say of themselves
//! documents      they are there, whole, and their links lead somewhere
//! testdata       golden files lie beside the script that made them
//! ```
//!
//! Each rule takes what it looks at and returns its complaints, so that the
//! tests can show on a bad sample that it bites. The tests in `tests/` then run
//! it over the tree. This crate uses none of ours.

pub mod dependencies;
pub mod documents;
pub mod layers;
mod lexer;
pub mod manifests;
pub mod testdata;
pub mod text;
mod tree;

pub use lexer::{code_of, comments_of};
pub(crate) use tree::path_of;
pub use tree::{Crate, Source, Tree};
