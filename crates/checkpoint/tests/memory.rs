//! What a parsed header costs. A test binary of its own, since it looks at the
//! peak of its whole process.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;

use checkpoint::inspect_file;
use tempfile::NamedTempFile;

const MIB: u64 = 1 << 20;

/// A file of `num_tensors` tensors of 4 bytes, without data on disk.
fn file(num_tensors: u64) -> NamedTempFile {
    let mut json = String::from("{");
    for number in 0..num_tensors {
        let comma = if number == 0 { "" } else { "," };
        let begin = 4 * number;
        let end = begin + 4;
        let entry =
            format_args!("{{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[{begin},{end}]}}");
        write!(json, "{comma}\"model.layers.{number:07}.w\":{entry}").expect("a string takes all");
    }
    json.push('}');
    let mut file = NamedTempFile::new().expect("a temporary file");
    let len = json.len() as u64;
    file.write_all(&len.to_le_bytes()).expect("a length");
    file.write_all(json.as_bytes()).expect("a header");
    file.as_file()
        .set_len(8 + len + 4 * num_tensors)
        .expect("data");
    file
}

/// A line of this process's status, in bytes.
fn status(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("a status");
    let line = text
        .lines()
        .find(|line| line.starts_with(key))
        .expect("a line");
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("a number");
    kib * 1024
}

/// Bytes at the peak and kept, over those before.
fn cost(num_tensors: u64) -> (u64, u64) {
    let file = file(num_tensors);
    // 5 resets the peak to what is resident.
    fs::write("/proc/self/clear_refs", "5").expect("a peak that can be reset");
    let before = status("VmRSS");
    let weights = inspect_file(file.path()).expect("a valid file");
    let costs = (
        status("VmHWM") - before,
        status("VmRSS").saturating_sub(before),
    );
    assert_eq!(weights.tensors().len() as u64, num_tensors);
    costs
}

#[test]
fn a_hundred_thousand_tensors_fit_in_the_loading_budget() {
    cost(1000);
    let (peak, kept) = cost(100_000);
    println!(
        "100,000 tensors: peak {} MiB, kept {} MiB",
        peak / MIB,
        kept / MIB
    );
    assert!(peak < 64 * MIB, "peak {peak}");
    let (peak, kept) = cost(1_000_000);
    println!(
        "1,000,000 tensors: peak {} MiB, kept {} MiB",
        peak / MIB,
        kept / MIB
    );
    assert!(peak < 512 * MIB, "peak {peak}");
}
