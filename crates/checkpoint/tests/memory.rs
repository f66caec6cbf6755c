//! What a parsed header costs. A test binary of its own with a single test, since
//! its allocator counts for the whole process.

mod archives;
mod counting;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;

use archives::archive;
use checkpoint::{Folder, inspect_file};
use tempfile::{NamedTempFile, TempDir};

use counting::counted;

const MIB: usize = 1 << 20;

/// The contract: a tensor costs this and its name.
const BYTES_PER_TENSOR: usize = 104;

/// Length of the names below.
const NAME_LEN: usize = 22;

#[expect(clippy::print_stdout, reason = "the figures behind the bounds")]
fn report(line: &str) {
    println!("{line}");
}

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

/// The pickle of `num_tensors` tensors in one storage of 4 bytes each, every value
/// remembered, as torch writes it.
fn pickle(num_tensors: usize) -> Vec<u8> {
    let int = |number: usize| {
        let number = u32::try_from(number).expect("small").to_le_bytes();
        [&b"J"[..], &number].concat()
    };
    let mut next = 0_u32;
    let mut remember = || {
        next += 1;
        [&b"r"[..], &(next - 1).to_le_bytes()].concat()
    };
    let mut program = b"\x80\x02}".to_vec();
    program.extend([remember(), b"(".to_vec()].concat());
    for number in 0..num_tensors {
        let name = format!("model.layers.{number:07}.w");
        program.extend([b'X', u8::try_from(name.len()).expect("short"), 0, 0, 0]);
        program.extend(name.as_bytes());
        program.extend(remember());
        program.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        program.extend(b"X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpu");
        program.extend([int(num_tensors), b"t".to_vec(), remember(), b"Q".to_vec()].concat());
        program.extend([int(number), b"K\x01K\x01\x86".to_vec(), remember()].concat());
        program.extend([b"K\x01K\x01\x86".to_vec(), remember()].concat());
        program.extend([b"\x89ccollections\nOrderedDict\n)R".to_vec(), remember()].concat());
        program.extend([b"t".to_vec(), remember(), b"R".to_vec(), remember()].concat());
    }
    program.extend(b"u.");
    program
}

fn of_a_pickle_cost_no_more() {
    let num_tensors = 100_000;
    let program = pickle(num_tensors);
    let storage = vec![0; 4 * num_tensors];
    let file = archive("model", &[("data.pkl", &program), ("data/0", &storage)]);
    let place = tempfile::Builder::new().suffix(".bin").tempfile();
    let mut place = place.expect("a temporary file");
    place.write_all(&file).expect("a file");
    let (weights, peak, kept) = counted(|| inspect_file(place.path()).expect("a valid file"));
    assert_eq!(weights.tensors().len(), num_tensors);
    let beside = peak - program.len();
    report(&format!(
        "{num_tensors} tensors of a pickle of {} MiB: kept {} bytes each, peak {} MiB beside it",
        program.len() / MIB,
        kept / num_tensors,
        beside / MIB
    ));
    assert!(kept <= num_tensors * (BYTES_PER_TENSOR + NAME_LEN) + 1024);
    assert!(beside < 64 * MIB, "peak {peak}");
}

/// Reads bytes that are made to cost as much as they can.
fn of_a_bomb(what: &str, ending: &str, bytes: &[u8]) {
    let place = TempDir::new().expect("a temporary folder");
    let path = place.path().join(format!("model.safetensors{ending}"));
    fs::write(&path, bytes).expect("a file");
    let (refused, peak, _) = counted(|| {
        if ending == ".index.json" {
            Folder::open(place.path()).is_err()
        } else {
            inspect_file(&path).is_err()
        }
    });
    report(&format!(
        "{what}: peak {} MiB for {} MiB",
        peak / MIB,
        bytes.len() / MIB
    ));
    assert!(refused, "{what}");
    assert!(peak < 6 * bytes.len() + 256 * MIB, "{what}: peak {peak}");
}

/// A quarter of what a header or a pickle may have: what grows without bound has
/// passed the bound here. With all of it, 96 MB, the worst takes 420 MiB.
fn of_bombs_a_bounded_part() {
    const LEN: usize = 24_000_000;
    for piece in [
        &b")"[..],
        b"]",
        b"}",
        b"N",
        b"(",
        b"X\0\0\0\0",
        b")q\x00h\x00",
        b"]q\x00h\x00a",
    ] {
        let program = [&b"\x80\x02"[..], &piece.repeat(LEN / piece.len())].concat();
        let file = archive("bomb", &[("data.pkl", &program)]);
        of_a_bomb(
            &format!("pickle of {}", piece.escape_ascii()),
            ".bin",
            &file,
        );
    }
    let header = |json: &str| [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    let pairs = |pair: &str| pair.repeat(LEN / pair.len());
    let metadata = format!(r#"{{"__metadata__":{{{}"a":""}}}}"#, pairs(r#""":"","#));
    of_a_bomb("metadata", "", &header(&metadata));
    let entry = r#""a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"#;
    of_a_bomb(
        "entries",
        "",
        &header(&format!(r#"{{{}"b":0}}"#, pairs(entry))),
    );
    let dims = r#""a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1],"data_offsets":[0,1]},"#;
    of_a_bomb(
        "dimensions",
        "",
        &header(&format!(r#"{{{}"b":0}}"#, pairs(dims))),
    );
    let index = format!(r#"{{"weight_map":{{{}"a":"a"}}}}"#, pairs(r#""":"","#));
    of_a_bomb("weight map", ".index.json", index.as_bytes());
    let advice = format!(r#"{{"metadata":[{}0],"weight_map":{{}}}}"#, pairs("[],"));
    of_a_bomb("index metadata", ".index.json", advice.as_bytes());
}

#[test]
fn a_tensor_costs_104_bytes_and_its_name_and_parsing_is_bounded() {
    for num_tensors in [1000, 100_000, 1_000_000] {
        let file = file(num_tensors as u64);
        let (weights, peak, kept) = counted(|| inspect_file(file.path()).expect("a valid file"));
        assert_eq!(weights.tensors().len(), num_tensors);
        assert_eq!(weights.tensors()[0].meta.name.len(), NAME_LEN);
        report(&format!(
            "{num_tensors} tensors: kept {} bytes each, peak {} MiB",
            kept / num_tensors,
            peak / MIB
        ));
        // A path and a file's entry come once.
        let allowed = num_tensors * (BYTES_PER_TENSOR + NAME_LEN) + 1024;
        assert!(kept <= allowed, "kept {kept}, allowed {allowed}");
        if num_tensors == 100_000 {
            assert!(peak < 64 * MIB, "peak {peak}");
        }
        assert!(peak < 512 * MIB, "peak {peak}");
    }
    of_a_pickle_cost_no_more();
    of_bombs_a_bounded_part();
}
