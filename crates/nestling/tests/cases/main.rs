//! The hard cases of `testdata/cases/`: each does what its `expect.json` says.
//!
//! A test names a case; what is checked stands in the case. Every word of it is
//! checked or is prose ([`words::PROSE`]): a word that nobody knows fails the test.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod case;
mod containers;
mod export;
mod fp8;
mod loading;
mod mentions;
mod model;
mod samples;
mod sha256;
mod sharding;
mod tokenizers;
mod words;
