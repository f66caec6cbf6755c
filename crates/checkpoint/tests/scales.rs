//! FP8 codes become the numbers that another library makes of them, and codes and
//! scales that do not belong together are refused.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::{CheckpointError, Digest, Folder, Located};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tensor::{Dtype, as_bytes_mut};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/fp8")
        .join(name)
}

/// Reads a tensor's values in pieces; gives them, and the digest of its bytes.
fn values(folder: &Folder, tensor: &Located, piece: usize) -> (Vec<f32>, Digest) {
    let reader = folder.open_files().unwrap();
    let len = usize::try_from(tensor.meta.shape.num_elements().unwrap()).unwrap();
    let mut values = vec![0.0_f32; len];
    let mut digest = Digest::default();
    let mut begin = 0;
    for part in values.chunks_mut(piece) {
        let end = begin + part.len() as u64;
        digest += reader
            .read_values(tensor, begin..end, as_bytes_mut(part), true)
            .unwrap();
        begin = end;
    }
    (values, digest)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_spelling_gives_the_values_of_ml_dtypes() {
    let mut num_folders = 0;
    for entry in fs::read_dir(golden("")).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        num_folders += 1;
        let folder = Folder::open(&path).unwrap();
        let tensor = folder.find("w.weight").unwrap();
        let expected = fs::read(path.join("w.f32")).unwrap();
        let expected: Vec<u32> = expected
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&bytes| u32::from_le_bytes(bytes))
            .collect();
        let mut codes = vec![0; expected.len()];
        let reader = folder.open_files().unwrap();
        reader
            .read_at(tensor, 0..tensor.num_bytes(), &mut codes)
            .unwrap();
        for piece in [expected.len(), 1, 7, 36, 100, 257] {
            let (found, digest) = values(&folder, tensor, piece);
            let name = path.display();
            assert_eq!(bits(&found), expected, "{name} in pieces of {piece}");
            assert_eq!(digest, Digest::of(0, &codes), "{name}");
        }
    }
    assert_eq!(num_folders, 14);
}

/// A weight file made by hand: name, dtype, shape and bytes of each tensor.
fn folder_of(config: &Value, tensors: &[(&str, &str, &[u64], Vec<u8>)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    let mut header = Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert((*name).to_owned(), entry);
        data.extend_from_slice(bytes);
    }
    let header = Value::Object(header).to_string();
    let len = (header.len() as u64).to_le_bytes();
    let file = [&len, header.as_bytes(), &data].concat();
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    if !config.is_null() {
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    }
    folder
}

const SHAPE: &[u64] = &[3, 4];

fn codes() -> Vec<u8> {
    (0..12).map(|code| 0x30 + code).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn blocks(rows: u64, cols: u64) -> Value {
    json!({"quantization_config":
        {"quant_method": "fp8", "weight_block_size": [rows, cols]}})
}

#[track_caller]
fn refuses(folder: &TempDir, words: &[&str]) -> CheckpointError {
    let error = Folder::open(folder.path()).unwrap_err();
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    error
}

#[test]
fn codes_without_scales_are_refused_and_scales_without_codes_too() {
    let alone = [("a.weight", "F8_E4M3", SHAPE, codes())];
    let error = refuses(
        &folder_of(&Value::Null, &alone),
        &[
            "`a.weight`",
            "a.weight_scale_inv` or `a.weight_scale`",
            "F8_E4M3",
        ],
    );
    assert!(matches!(error, CheckpointError::CodesWithoutScales { .. }));
    let scale = |name| (name, "F32", &[1_u64][..], floats(&[2.0]));
    let error = refuses(
        &folder_of(&Value::Null, &[scale("a.weight_scale")]),
        &["`a.weight_scale`", "`a.weight` is not there"],
    );
    assert!(matches!(error, CheckpointError::ScalesWithoutCodes { .. }));
    let plain = ("a.weight", "F32", &[1_u64][..], floats(&[2.0]));
    refuses(
        &folder_of(&Value::Null, &[plain, scale("a.weight_scale_inv")]),
        &["`a.weight_scale_inv`", "`a.weight` is F32"],
    );
    let [codes] = alone;
    let both = [codes, scale("a.weight_scale"), scale("a.weight_scale_inv")];
    let error = refuses(
        &folder_of(&Value::Null, &both),
        &["`a.weight`", "`a.weight_scale`", "`a.weight_scale_inv`"],
    );
    assert!(matches!(error, CheckpointError::TwiceScaled { .. }));
}

#[test]
fn a_block_size_is_never_guessed() {
    let of = |config: &Value, shape: &[u64]| {
        let len = usize::try_from(shape.iter().product::<u64>()).unwrap();
        let scales = floats(&vec![1.0; len]);
        folder_of(
            config,
            &[
                ("a.weight", "F8_E4M3", SHAPE, codes()),
                ("a.weight_scale_inv", "F32", shape, scales),
            ],
        )
    };
    let opens = |config: &Value, shape: &[u64]| Folder::open(of(config, shape).path()).is_ok();
    // Blocks of 2 would be as good as blocks of 3, without a word in the config.
    for shape in [&[2, 2][..], &[1, 2], &[4], &[3, 4], &[1, 4]] {
        let error = refuses(
            &of(&Value::Null, shape),
            &["`a.weight_scale_inv`", "`a.weight`", "no weight_block_size"],
        );
        assert!(matches!(error, CheckpointError::WrongScales { .. }));
    }
    for shape in [&[][..], &[1], &[1, 1], &[3], &[3, 1]] {
        assert!(opens(&Value::Null, shape), "{shape:?}");
    }
    assert!(opens(&blocks(2, 3), &[2, 2]) && opens(&blocks(128, 128), &[1, 1]));
    for shape in [&[3, 2][..], &[1], &[2, 2, 1], &[3, 1]] {
        refuses(
            &of(&blocks(2, 3), shape),
            &["[2, 2] for blocks of 2 x 3", "[3, 4]"],
        );
    }
}

#[test]
fn a_scale_is_finite_and_not_negative() {
    let read = |scale: f32| {
        let folder = folder_of(
            &Value::Null,
            &[
                ("a.weight", "F8_E4M3", SHAPE, codes()),
                ("a.weight_scale", "F32", &[3, 1], floats(&[1.0, scale, 2.0])),
            ],
        );
        let folder = Folder::open(folder.path()).unwrap();
        let tensor = folder.find("a.weight").unwrap();
        let mut values = [0.0_f32; 12];
        let reader = folder.open_files().unwrap();
        let read = reader.read_values(tensor, 0..12, as_bytes_mut(&mut values), false);
        read.map(|_| values).map_err(|error| error.to_string())
    };
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let message = read(bad).unwrap_err();
        for word in ["scale 1 of `a.weight_scale`", "`a.weight`"] {
            assert!(message.contains(word), "{message}");
        }
    }
    // What a writer leaves of a block of zeros.
    let values = read(0.0).unwrap();
    assert_eq!(values[4..8], [0.0; 4]);
    assert!(values[0] > 0.0 && values[11] > 0.0);
}

#[test]
fn scales_are_of_a_dtype_that_holds_numbers() {
    let tensors = [
        ("a.weight", "F8_E4M3", SHAPE, codes()),
        ("a.weight_scale", "I32", &[1_u64][..], vec![0; 4]),
    ];
    refuses(
        &folder_of(&Value::Null, &tensors),
        &["`a.weight_scale`", "found I32"],
    );
}

#[test]
fn more_scales_than_are_read_at_once_are_read_in_turn() {
    // 40,000 scales in a row, against 16,384 that are read at once.
    let (rows, cols) = (2_u64, 40_000_u64);
    let len = usize::try_from(rows * cols).unwrap();
    let scales: Vec<f32> = (0..rows * cols).map(|place| place as f32).collect();
    let folder = folder_of(
        &blocks(1, 1),
        &[
            ("a.weight", "F8_E4M3", &[rows, cols], vec![0x38; len]),
            ("a.weight_scale_inv", "F32", &[rows, cols], floats(&scales)),
        ],
    );
    let folder = Folder::open(folder.path()).unwrap();
    let tensor = folder.find("a.weight").unwrap();
    assert_eq!(tensor.value_dtype(), Dtype::F32);
    // 0x38 is 1.
    assert!(values(&folder, tensor, len).0 == scales);
    assert!(values(&folder, tensor, 30_011).0 == scales);
}
