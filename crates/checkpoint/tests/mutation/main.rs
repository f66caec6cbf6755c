//! Inputs changed by chance: no reader panics, and none asks for memory by a
//! number that it has not checked.
//!
//! One test at a time, since its allocator counts for the whole process. The long
//! run is `cargo test -p checkpoint --test mutation -- --ignored`.

#[path = "../archives/mod.rs"]
mod archives;
#[path = "../counting/mod.rs"]
mod counting;
mod mutate;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};

use tempfile::TempDir;

use crate::counting::counted;
use crate::mutate::{Chance, mutate};
use crate::targets::{FIXED_BYTES, Target};

/// Inputs larger than this are cut: growth by repetition would slow all down.
const MOST_BYTES: usize = 64 << 10;

/// Tries inputs by number on a target, each second one made from a valid input;
/// gives how many were accepted.
fn try_inputs(target: &Target, numbers: std::ops::Range<u64>) -> u64 {
    let valid: Vec<_> = target
        .seeds
        .iter()
        .filter(|seed| (target.read)(seed))
        .collect();
    assert!(
        !valid.is_empty(),
        "{} begins from nothing valid",
        target.name
    );
    let mut num_accepted = 0;
    for number in numbers {
        let mut chance = Chance::new(number);
        let mut input = match number % 2 {
            0 => (*chance.pick(&valid)).clone(),
            _ => chance.pick(&target.seeds).clone(),
        };
        mutate(&mut input, target.words, &target.seeds, &mut chance);
        input.truncate(MOST_BYTES);
        let (outcome, peak, _) =
            counted(|| catch_unwind(AssertUnwindSafe(|| (target.read)(&input))));
        let allowed = FIXED_BYTES + target.bytes_per_byte * input.len();
        let is_fine = outcome.is_ok() && peak <= allowed;
        assert!(
            is_fine,
            "{}, input {number}: {}, {peak} bytes at the peak where {allowed} are allowed: {}",
            target.name,
            if outcome.is_ok() {
                "no panic"
            } else {
                "panicked"
            },
            input.escape_ascii(),
        );
        num_accepted += u64::from(outcome.unwrap_or(false));
    }
    num_accepted
}

#[expect(clippy::print_stdout, reason = "what a long run has tried")]
fn report(line: &str) {
    println!("{line}");
}

fn try_all(num_inputs: u64) {
    let place = TempDir::new().expect("a temporary folder");
    for target in targets::all(&place) {
        let num_accepted = try_inputs(&target, 0..num_inputs);
        report(&format!(
            "{}: {num_inputs} inputs, {num_accepted} accepted",
            target.name
        ));
        // Changes that leave nothing valid would not reach far.
        assert!(num_accepted > num_inputs / 1000, "{}", target.name);
    }
}

#[test]
fn changed_inputs_are_read_or_refused_within_their_memory() {
    try_all(20_000);
}

#[test]
#[ignore = "takes half an hour"]
fn millions_of_changed_inputs_are_read_or_refused_within_their_memory() {
    try_all(10_000_000);
}
