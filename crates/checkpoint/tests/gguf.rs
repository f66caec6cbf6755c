//! GGUF files: golden ones that Python's gguf package wrote and read, and broken
//! ones by hand and by mutation.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use checkpoint::CheckpointError;
use checkpoint::gguf::{BlockType, GgufFault, GgufFile, Value, check_gguf};
use proptest::prelude::*;
use tensor::Shape;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/gguf")
        .join(name)
}

/// A file by hand: version, keys and tensors as bytes, then data.
#[derive(Debug, Clone)]
struct Made {
    version: u32,
    num_keys: u64,
    num_tensors: u64,
    header: Vec<u8>,
    data_bytes: usize,
}

impl Made {
    fn new() -> Self {
        Self {
            version: 3,
            num_keys: 0,
            num_tensors: 0,
            header: Vec::new(),
            data_bytes: 0,
        }
    }

    fn count(&mut self, count: u64) {
        if self.version == 1 {
            let short = u32::try_from(count).expect("a short count");
            self.header.extend(short.to_le_bytes());
        } else {
            self.header.extend(count.to_le_bytes());
        }
    }

    fn text(&mut self, text: &[u8]) {
        self.count(text.len() as u64);
        self.header.extend(text);
    }

    /// A key of type `code` and what follows.
    fn key(mut self, key: &str, code: u32, value: &[u8]) -> Self {
        self.num_keys += 1;
        self.text(key.as_bytes());
        self.header.extend(code.to_le_bytes());
        self.header.extend(value);
        self
    }

    /// A tensor of dimensions as in the file: innermost first.
    fn tensor(mut self, name: &str, dims: &[u64], code: u32, offset: u64) -> Self {
        self.num_tensors += 1;
        self.text(name.as_bytes());
        let rank = u32::try_from(dims.len()).expect("few dimensions");
        self.header.extend(rank.to_le_bytes());
        for &dim in dims {
            self.count(dim);
        }
        self.header.extend(code.to_le_bytes());
        self.header.extend(offset.to_le_bytes());
        self
    }

    fn data(mut self, num_bytes: usize) -> Self {
        self.data_bytes = num_bytes;
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut counts = Self::new();
        counts.version = self.version;
        counts.count(self.num_tensors);
        counts.count(self.num_keys);
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(&counts.header);
        bytes.extend(&self.header);
        if self.data_bytes > 0 {
            bytes.resize(bytes.len().next_multiple_of(32) + self.data_bytes, 0);
        }
        bytes
    }

    #[track_caller]
    fn is_refused(&self, words: &str) {
        refuses(&self.bytes(), words);
    }
}

#[track_caller]
fn refuses(bytes: &[u8], words: &str) {
    let fault = check_gguf(bytes).expect_err("a file with a fault");
    let message = fault.to_string();
    assert!(message.contains(words), "`{words}` is not in: {message}");
}

#[test]
fn every_element_type_gives_the_numbers_of_the_reference_bit_for_bit() {
    let file = GgufFile::open(&golden("blocks.gguf")).expect("a valid file");
    let expected = fs::read(golden("blocks.f32")).expect("its numbers");
    let mut reader = file.open_data().expect("its data");
    let mut expected = expected.chunks_exact(4 * 512);
    assert_eq!(file.tensors().len(), 13);
    for tensor in file.tensors() {
        assert_eq!(tensor.name, tensor.block_type.name());
        assert_eq!(tensor.shape, Shape::new(&[2, 256]));
        let mut wide = vec![0.0; 512];
        // In two pieces, so that a start inside a tensor is tried too.
        for Range { start, end } in [0..256_u16, 256..512] {
            let piece = &mut wide[usize::from(start)..usize::from(end)];
            reader.read(tensor, start.into(), piece).expect("numbers");
        }
        let expected = expected.next().expect("numbers of every tensor");
        let bits: Vec<_> = wide.iter().flat_map(|wide| wide.to_le_bytes()).collect();
        assert!(bits == expected, "{}", tensor.name);
    }
}

#[test]
fn values_of_every_type_are_read() {
    let file = GgufFile::open(&golden("blocks.gguf")).expect("a valid file");
    let value = |key: &str| file.metadata().get(&format!("test.{key}")).cloned();
    let expected = [
        ("u8", Value::Unsigned(200)),
        ("i8", Value::Signed(-100)),
        ("u16", Value::Unsigned(60_000)),
        ("i16", Value::Signed(-30_000)),
        ("u32", Value::Unsigned(4_000_000_000)),
        ("i32", Value::Signed(-2_000_000_000)),
        ("f32", Value::F32(0.5)),
        ("bool", Value::Bool(true)),
        ("text", Value::Text("caf\u{e9}".to_owned())),
        ("u64", Value::Unsigned(1 << 63)),
        ("i64", Value::Signed(-(1 << 62))),
        ("f64", Value::F64(0.1)),
    ];
    for (key, expected) in expected {
        assert_eq!(value(key), Some(expected), "{key}");
    }
    let Some(Value::Texts(texts)) = value("texts") else {
        panic!("test.texts is not an array of strings");
    };
    assert_eq!(texts.iter().collect::<Vec<_>>(), ["a", "", "bc"]);
    let Some(Value::Numbers(numbers)) = value("numbers") else {
        panic!("test.numbers is not an array of numbers");
    };
    let expected = [1, -2, 3].map(Value::Signed);
    assert_eq!(numbers.iter().collect::<Vec<_>>(), expected);
    assert_eq!((numbers.len(), numbers.get(3)), (3, None));
}

#[test]
fn all_three_versions_are_read_and_dimensions_are_reversed() {
    for version in 1..=3 {
        let mut made = Made::new();
        made.version = version;
        let made = made
            .key("a", 4, &7_u32.to_le_bytes())
            .tensor("t", &[64, 3], 0, 0)
            .data(768);
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), made.bytes()).expect("its bytes");
        let file = GgufFile::open(file.path()).expect("a valid file");
        assert_eq!(file.version(), version);
        assert_eq!(file.tensors()[0].shape, Shape::new(&[3, 64]));
        assert_eq!(file.metadata().get("a"), Some(&Value::Unsigned(7)));
    }
}

#[test]
fn a_file_that_is_something_else_is_refused() {
    refuses(b"", "ends at byte 0, where 4 more");
    refuses(b"PK\x03\x04....", "first bytes are `PK\\x03\\x04`");
    refuses(b"GGUF\x00\x00\x00\x03", "big-endian");
    refuses(b"GGUF\x04\x00\x00\x00", "version 4, supported: 1, 2, 3");
    refuses(
        b"GGUF\x03\x00\x00\x00\x00",
        "ends at byte 9, where 7 more are needed",
    );
}

#[test]
fn lying_counts_and_lengths_are_refused_before_anything_is_read() {
    let mut made = Made::new();
    made.num_keys = u64::MAX;
    made.is_refused("18446744073709551615 keys");
    made.num_keys = 60_000;
    made.is_refused("the metadata claims 60000 entries");
    let mut made = Made::new();
    made.num_tensors = u64::MAX;
    made.is_refused("18446744073709551615 tensors");
    made.num_tensors = 900_000;
    made.is_refused("the tensors claims 900000 entries");
    let long = u64::MAX.to_le_bytes();
    Made::new()
        .key("k", 8, &long)
        .is_refused("value of key `k` has 18446744073709551615 bytes");
    let medium = (1_u64 << 20).to_le_bytes();
    Made::new()
        .key("k", 8, &medium)
        .is_refused("1048576 more are needed");
    for code in [0_u32, 8, 9, 12] {
        let array = [&code.to_le_bytes()[..], &long].concat();
        Made::new()
            .key("k", 9, &array)
            .is_refused("array of key `k` claims");
    }
}

#[test]
fn faulty_keys_are_refused() {
    let one = 1_u32.to_le_bytes();
    let two = Made::new().key("k", 4, &one).key("k", 4, &one);
    two.is_refused("key `k` appears twice");
    Made::new()
        .key("k", 13, &one)
        .is_refused("unknown value type 13");
    Made::new().key("k", 7, &[2]).is_refused("truth value 2");
    let text = [&2_u64.to_le_bytes()[..], b"\xff\xfe"].concat();
    Made::new()
        .key("k", 8, &text)
        .is_refused("value of key `k` is not UTF-8");
    let alignment = |found: u32| Made::new().key("general.alignment", 4, &found.to_le_bytes());
    for found in [0, 3, 48, 1 << 21] {
        alignment(found).is_refused(&format!("general.alignment is {found}"));
    }
    let odd = Made::new().key("general.alignment", 7, &[1]);
    odd.is_refused("general.alignment is a truth value");
    let split = Made::new().key("split.count", 2, &3_u16.to_le_bytes());
    split.is_refused("one of 3 parts");
}

#[test]
fn arrays_nest_to_a_limit() {
    let nested = |depth: usize| {
        let level = [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat();
        let last = [&0_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat();
        Made::new().key("k", 9, &[level.repeat(depth - 1), last].concat())
    };
    assert_eq!(check_gguf(&nested(64).bytes()), Ok(0));
    nested(65).is_refused("nests arrays deeper than 64");
    nested(100_000).is_refused("nests arrays deeper than 64");
}

#[test]
fn faulty_tensors_are_refused() {
    let one = |dims: &[u64], code| Made::new().tensor("t", dims, code, 0).data(4096);
    one(&[1; 5], 0).is_refused("has 5 dimensions");
    one(&[4, 0], 0).is_refused("a dimension of 0");
    one(&[u64::MAX, 2], 0).is_refused("more elements than 64 bits");
    one(&[1 << 62], 0).is_refused("more elements than 64 bits");
    one(&[4], 5).is_refused("unknown type 5");
    one(&[4], 23).is_refused("type IQ4_XS, supported: F32, F16");
    one(&[33], 2).is_refused("rows of 33 elements, not a multiple of 32");
    one(&[32, 256], 12).is_refused("not a multiple of 256");
    one(&[], 2).is_refused("rows of 1 elements");
    Made::new()
        .tensor("", &[4], 0, 0)
        .is_refused("tensor 0 has an empty name");
    Made::new()
        .tensor(&"n".repeat(65), &[4], 0, 0)
        .is_refused("has 65 bytes, the limit is 64");
}

#[test]
fn tensors_tile_the_data() {
    let two = |first, second| {
        let made = Made::new().tensor("a", &[10], 0, first);
        made.tensor("b", &[8], 0, second)
    };
    assert_eq!(check_gguf(&two(0, 64).data(96).bytes()), Ok(2));
    // In the header in another order than in the data.
    assert_eq!(check_gguf(&two(32, 0).data(72).bytes()), Ok(2));
    assert_eq!(check_gguf(&two(32, 0).data(96).bytes()), Ok(2));
    two(32, 0).data(71).is_refused("tensor `a` ends at byte");
    two(32, 0)
        .data(97)
        .is_refused("25 bytes follow the last tensor");
    two(0, 32)
        .data(96)
        .is_refused("tensor `b` begins at byte 32 of the data, expected 64");
    two(0, 96)
        .data(128)
        .is_refused("`b` begins at byte 96 of the data, expected 64");
    two(0, 0)
        .data(96)
        .is_refused("begins at byte 0 of the data, expected 64");
    two(16, 64)
        .data(96)
        .is_refused("`a` begins at byte 16 of the data, expected 0");
    two(u64::MAX, 0)
        .data(96)
        .is_refused("of the data, expected 32");
    let twins = Made::new().tensor("a", &[8], 0, 0).tensor("a", &[8], 0, 32);
    twins.data(64).is_refused("tensor `a` appears twice");
}

#[test]
fn an_error_names_the_file_and_what_is_wrong() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), b"GGML").expect("its bytes");
    let error = GgufFile::open(file.path()).expect_err("no GGUF");
    assert!(
        error
            .to_string()
            .contains(&file.path().display().to_string())
    );
    let fault = GgufFault::NotGguf { found: *b"GGML" };
    assert!(matches!(error, CheckpointError::Gguf { source, .. } if source == fault));
}

#[test]
fn a_file_cut_after_its_header_was_read_is_an_error() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::copy(golden("blocks.gguf"), file.path()).expect("a copy");
    let opened = GgufFile::open(file.path()).expect("a valid file");
    let mut reader = opened.open_data().expect("its data");
    file.as_file().set_len(2000).expect("a shorter file");
    let last = opened.tensors().last().expect("a tensor");
    let error = reader.read(last, 0, &mut [0.0; 512]).expect_err("no data");
    assert!(matches!(
        error,
        CheckpointError::Truncated {
            found_bytes: 2000,
            ..
        }
    ));
    let error = opened.open_data().expect_err("another file");
    assert!(matches!(error, CheckpointError::Changed { .. }));
}

/// What opening and reading every tensor of a file that lies in memory would do.
fn read_all(bytes: &[u8]) -> Result<(), TestCaseError> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), bytes)?;
    let opened = GgufFile::open(file.path()).map(|file| (file.open_data(), file));
    let checked = check_gguf(bytes);
    prop_assert_eq!(opened.is_ok(), checked.is_ok());
    let Ok((reader, opened)) = opened else {
        return Ok(());
    };
    let mut reader = reader.expect("nobody changed it");
    for tensor in opened.tensors() {
        prop_assert!(tensor.begin + tensor.num_bytes() <= bytes.len() as u64);
        let len = usize::try_from(tensor.num_elements).expect("a small file");
        reader
            .read(tensor, 0, &mut vec![0.0; len])
            .expect("data that is there");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is changed in a valid file: it is refused, or every tensor in it
    /// can be read.
    #[test]
    fn mutated_files_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = fs::read(golden("blocks.gguf")).expect("a golden file");
        // The header, where a change can do something: the first 1600 bytes.
        for (at, byte) in changes {
            bytes[at.index(1600)] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_all(&bytes)?;
    }

    /// Numbers at the edges of their types in the places of counts and lengths.
    #[test]
    fn extreme_numbers_never_panic(
        at in 8_usize..1600,
        number in prop::sample::select(vec![0, 1, 0x7f, u64::from(u32::MAX), 1 << 31, 1 << 62, 1 << 63, u64::MAX - 31, u64::MAX]),
    ) {
        let mut bytes = fs::read(golden("blocks.gguf")).expect("a golden file");
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        read_all(&bytes)?;
    }

    /// Any bytes are blocks of any type.
    #[test]
    fn any_bytes_can_be_widened(bytes in prop::collection::vec(any::<u8>(), 210), code in 0_u32..40) {
        if let Some(block_type) = BlockType::of_code(code) {
            let num_bytes = usize::try_from(block_type.block_bytes()).expect("small");
            let len = usize::try_from(block_type.block_len()).expect("small");
            block_type.widen(&bytes[..num_bytes], &mut vec![0.0; len]);
        }
    }
}
