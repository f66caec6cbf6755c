//! What a parsed header costs. A test binary of its own with a single test, since
//! its allocator counts for the whole process.

mod counting;

use std::fmt::Write as _;
use std::io::Write as _;

use checkpoint::inspect_file;
use tempfile::NamedTempFile;

use counting::counted;

const MIB: usize = 1 << 20;

/// The contract: a tensor costs this and its name.
const BYTES_PER_TENSOR: usize = 96;

/// Length of the names below.
const NAME_LEN: usize = 22;

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

#[test]
fn a_tensor_costs_96_bytes_and_its_name_and_parsing_little_more() {
    for num_tensors in [1000, 100_000, 1_000_000] {
        let file = file(num_tensors as u64);
        let (weights, peak, kept) = counted(|| inspect_file(file.path()).expect("a valid file"));
        assert_eq!(weights.tensors().len(), num_tensors);
        assert_eq!(weights.tensors()[0].meta.name.len(), NAME_LEN);
        println!(
            "{num_tensors} tensors: kept {} bytes each, peak {} MiB",
            kept / num_tensors,
            peak / MIB
        );
        // A path and a file's entry come once.
        let allowed = num_tensors * (BYTES_PER_TENSOR + NAME_LEN) + 1024;
        assert!(kept <= allowed, "kept {kept}, allowed {allowed}");
        if num_tensors == 100_000 {
            assert!(peak < 64 * MIB, "peak {peak}");
        }
        assert!(peak < 512 * MIB, "peak {peak}");
    }
}
