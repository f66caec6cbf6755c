//! Checkpoints of torch: what it wrote is read to the byte, and what only running
//! could read is refused by name.

mod archives;

use std::error::Error;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use archives::archive;
use checkpoint::{CheckpointError, ExportPlan, Folder, PickleFault, Reader, inspect_file};
use serde_json::Value;
use tempfile::TempDir;
use tensor::Dtype;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/pickle")
}

/// What the script that made the files says of them.
fn expected(part: &str) -> serde_json::Map<String, Value> {
    let text = fs::read_to_string(folder().join("expect.json")).expect("a text");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    all[part].as_object().expect("a map").clone()
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[track_caller]
fn bytes_of(reader: &Reader, tensor: &checkpoint::Located) -> Vec<u8> {
    let len = usize::try_from(tensor.num_bytes()).expect("small");
    let mut bytes = vec![0; len];
    let read = reader.read_at(tensor, 0..tensor.num_bytes(), &mut bytes);
    read.expect("bytes");
    bytes
}

/// Bytes that the script wrote in hexadecimal.
fn from_hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().expect("a text").as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a digit");
    let pairs = text.chunks_exact(2);
    let bytes = pairs.map(|pair| 16 * digit(pair[0]) + digit(pair[1]));
    bytes
        .map(|byte| u8::try_from(byte).expect("two digits"))
        .collect()
}

#[test]
fn what_torch_wrote_is_read_to_the_byte() {
    let files = expected("read");
    assert_eq!(files.len(), 9);
    for (name, tensors) in &files {
        let weights = inspect_file(&folder().join(name)).unwrap();
        let reader = weights.reader().unwrap();
        let tensors = tensors.as_object().unwrap();
        assert_eq!(weights.tensors().len(), tensors.len(), "{name}");
        for (tensor, expected) in tensors {
            let found = weights.find(tensor).unwrap();
            assert_eq!(
                found.meta.dtype.name(),
                expected["dtype"],
                "{name} {tensor}"
            );
            let shape = serde_json::json!(found.meta.shape.dims());
            assert_eq!(shape, expected["shape"], "{name} {tensor}");
            assert_eq!(
                bytes_of(&reader, found),
                from_hex(&expected["bytes"]),
                "{name} {tensor}"
            );
        }
    }
}

#[test]
fn what_only_running_could_read_is_refused_by_name_and_asks_for_safetensors() {
    let files = expected("refused");
    assert!(files.len() > 14);
    for (name, words) in &files {
        let error = inspect_file(&folder().join(name)).unwrap_err();
        assert!(
            matches!(error, CheckpointError::Pickle { .. }),
            "{name}: {error:?}"
        );
        let message = chain(&error);
        let words = words
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap());
        for word in words.chain([name.as_str(), "convert it to safetensors"]) {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
    }
    assert!(!Path::new("evil").exists(), "something was run");
}

#[test]
fn tied_tensors_share_their_bytes_and_a_view_begins_inside_its_storage() {
    let tied = inspect_file(&folder().join("tied.bin")).unwrap();
    let begin = |name: &str| tied.find(name).unwrap().begin;
    assert_eq!(begin("embed.weight"), begin("lm_head.weight"));
    let views = inspect_file(&folder().join("views.bin")).unwrap();
    let begin = |name: &str| views.find(name).unwrap().begin;
    assert_eq!(begin("rows"), begin("whole") + 2 * 4 * 4);
    assert_eq!(begin("element"), begin("whole") + (3 * 4 + 2) * 4);
}

/// The script's tied model, in a folder with the config of one.
fn tied_model(config: &str) -> TempDir {
    let model = TempDir::new().expect("a folder");
    fs::write(model.path().join("config.json"), config).expect("a file");
    fs::copy(
        folder().join("llama.bin"),
        model.path().join("pytorch_model.bin"),
    )
    .expect("a file");
    model
}

const CONFIG: &str = r#"{"model_type": "llama", "hidden_act": "silu", "hidden_size": 8,
    "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 1, "vocab_size": 20, "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true}"#;

#[test]
fn a_folder_of_one_pickle_is_a_model_and_its_tied_head_is_left_out_of_an_export() {
    let model = tied_model(CONFIG);
    let folder = Folder::open(model.path()).unwrap();
    let sources = folder.sources(&folder.spec().unwrap()).unwrap();
    let exported = sources.exported(&folder);
    assert_eq!(exported.len(), folder.tensors().len() - 1);
    assert!(exported.iter().all(|meta| meta.name != "lm_head.weight"));
    let dtype = |name: &str| folder.find(name).unwrap().meta.dtype;
    assert_eq!(dtype("model.embed_tokens.weight"), Dtype::BF16);
    assert_eq!(dtype("model.norm.weight"), Dtype::F32);
    assert_eq!(dtype("model.layers.0.mlp.up_proj.weight"), Dtype::F16);
    let plan = ExportPlan::new(&exported, u64::MAX).unwrap();
    assert_eq!(plan.files()[0].name, "model.safetensors");
}

#[test]
fn an_untied_model_whose_tables_share_a_storage_has_both_tables() {
    let model = tied_model(&CONFIG.replace("true", "false"));
    let folder = Folder::open(model.path()).unwrap();
    let sources = folder.sources(&folder.spec().unwrap()).unwrap();
    assert_eq!(sources.exported(&folder).len(), folder.tensors().len());
}

#[test]
fn an_index_of_pickles_is_read_like_one_of_safetensors() {
    let model = TempDir::new().unwrap();
    let path = model.path();
    let file = |number: u64| format!("pytorch_model-{number:05}-of-00002.bin");
    fs::copy(folder().join("tied.bin"), path.join(file(1))).unwrap();
    fs::copy(folder().join("views.bin"), path.join(file(2))).unwrap();
    let refused = chain(&Folder::open(path).unwrap_err());
    assert!(
        refused.contains("no pytorch_model.bin.index.json"),
        "{refused}"
    );
    let index = serde_json::json!({"metadata": {}, "weight_map": {
        "embed.weight": file(1), "norm.weight": file(1), "lm_head.weight": file(1),
        "whole": file(2), "rows": file(2), "row": file(2), "element": file(2), "nothing": file(2),
    }});
    fs::write(path.join("pytorch_model.bin.index.json"), index.to_string()).unwrap();
    let opened = Folder::open(path).unwrap();
    assert_eq!(opened.tensors().len(), 8);
    assert_eq!(opened.find("row").unwrap().file, 1);
    assert!(opened.warnings().is_empty(), "{:?}", opened.warnings());
    fs::remove_file(path.join(file(2))).unwrap();
    let refused = chain(&Folder::open(path).unwrap_err());
    assert!(refused.contains(&file(2)), "{refused}");
}

#[test]
fn safetensors_come_before_pickles() {
    let model = TempDir::new().unwrap();
    let path = model.path();
    fs::copy(folder().join("evil.bin"), path.join("pytorch_model.bin")).unwrap();
    let header = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let len = (header.len() as u64).to_le_bytes();
    let file = [&len[..], header, b"x"].concat();
    fs::write(path.join("model.safetensors"), file).unwrap();
    assert_eq!(Folder::open(path).unwrap().tensors().len(), 1);
}

#[track_caller]
fn refuses(file: &[u8], expected: &str) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("pytorch_model.bin");
    fs::write(&path, file).expect("a file");
    let message = chain(&inspect_file(&path).expect_err("a fault"));
    assert!(
        message.contains(expected),
        "`{expected}` is not in: {message}"
    );
}

#[test]
fn a_list_that_names_itself_a_billion_times_costs_nothing() {
    let mut program = b"\x80\x02]".to_vec();
    for level in 0..30_u8 {
        program.extend([b'q', level, b']', b'(']);
        program.extend([b'h', level].repeat(10));
        program.push(b'e');
    }
    program.push(b'.');
    let file = archive("laughs", &[("data.pkl", &program)]);
    refuses(&file, "something is left over");
}

#[test]
fn a_broken_archive_is_refused() {
    let whole = fs::read(folder().join("tied.bin")).unwrap();
    for len in 0..whole.len() {
        let file = whole[..len].to_vec();
        refuses(&file, "zip archive");
    }
    let mut longer = whole.clone();
    longer.push(0);
    refuses(&longer, "does not end with the end of one");
    let mut other = whole.clone();
    let at = whole
        .windows(11)
        .position(|name| name == b"tied/data/0")
        .unwrap();
    other[at + 10] = b'7';
    refuses(&other, "has another name where it lies");
}

#[test]
fn a_storage_that_is_not_there_or_of_another_size_is_named() {
    let whole = fs::read(folder().join("tied.bin")).unwrap();
    let change = |from: &[u8], to: &[u8]| {
        let mut file = whole.clone();
        let at = file
            .windows(from.len())
            .position(|found| found == from)
            .unwrap();
        file[at..at + to.len()].copy_from_slice(to);
        file
    };
    refuses(
        &change(b"X\x01\0\0\x001", b"X\x01\0\0\x009"),
        "no entry `data/9`",
    );
    refuses(
        &change(b"K\x18t", b"K\x19t"),
        "storage `0` needs 50 bytes, its entry has 48",
    );
    refuses(
        &change(b"K\x00K\x06K\x04", b"K\x01K\x06K\x04"),
        "does not lie in its storage",
    );
    refuses(
        &change(b"K\x06K\x04\x86", b"K\xffK\xff\x86"),
        "does not lie in its storage",
    );
    refuses(
        &change(b"norm.weight", b"norm.w\0ight"),
        "control characters",
    );
}

#[test]
fn a_fault_is_an_error_of_its_own() {
    let error = inspect_file(&folder().join("evil.bin")).unwrap_err();
    let CheckpointError::Pickle { source, .. } = error else {
        panic!("{error:?}");
    };
    let name = "posix.system".to_owned();
    assert_eq!(source, PickleFault::Global { name });
}

/// A storage of 5 GiB, then one of 8 bytes, with the numbers of 64 bits that torch
/// writes beyond 4 GiB. The data are a hole.
#[test]
fn an_archive_beyond_4_gib_is_read() {
    const LARGE: u64 = 5 << 30;
    let state = {
        let tensor = |key: char, len: u64, name: &str| {
            let name_len = u32::try_from(name.len()).unwrap().to_le_bytes();
            let parts = [
                &b"X"[..],
                &name_len,
                name.as_bytes(),
                b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nByteStorage\nX\x01\0\0\0",
                &[u8::try_from(key).unwrap()],
                b"X\x03\0\0\0cpu\x8a\x08",
                &len.to_le_bytes(),
                b"tQK\x00\x8a\x08",
                &len.to_le_bytes(),
                b"\x85K\x01\x85\x89}tR",
            ];
            parts.concat()
        };
        let body = [tensor('0', LARGE, "large"), tensor('1', 8, "small")].concat();
        [&b"\x80\x02}("[..], &body, b"u."].concat()
    };
    let entries = [
        ("data.pkl", state.len() as u64),
        ("data/0", LARGE),
        ("data/1", 8),
    ];
    let local = |name: &str| {
        let len = u16::try_from(name.len()).unwrap().to_le_bytes();
        let head = [&b"PK\x03\x04"[..], &[0; 22], &len, &[0; 2]].concat();
        [&head[..], name.as_bytes()].concat()
    };
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("large.bin");
    let file = fs::File::create(&path).unwrap();
    let (mut at, mut directory) = (0, Vec::new());
    let mut begins = Vec::new();
    for (name, len) in entries {
        let name = format!("large/{name}");
        let head = local(&name);
        file.write_all_at(&head, at).unwrap();
        let name_len = u16::try_from(name.len()).unwrap().to_le_bytes();
        directory.extend(
            [
                &b"PK\x01\x02"[..],
                &[0; 16],
                &[0xff; 8],
                &name_len,
                &28_u16.to_le_bytes(),
            ]
            .concat(),
        );
        directory.extend([&[0; 10][..], &[0xff; 4], name.as_bytes(), &[1, 0, 24, 0]].concat());
        directory.extend([len, len, at].map(u64::to_le_bytes).concat());
        begins.push(at + head.len() as u64);
        at += head.len() as u64 + len;
    }
    file.write_all_at(&state, begins[0]).unwrap();
    file.write_all_at(b"8 bytes.", begins[2]).unwrap();
    let numbers = [3, 3, directory.len() as u64, at]
        .map(u64::to_le_bytes)
        .concat();
    let end64 = [&b"PK\x06\x06\x2c\0\0\0\0\0\0\0"[..], &[0; 12], &numbers].concat();
    let place = (at + directory.len() as u64).to_le_bytes();
    let place = [&b"PK\x06\x07\0\0\0\0"[..], &place, &[1, 0, 0, 0]].concat();
    let end = [&b"PK\x05\x06\0\0\0\0"[..], &[0xff; 12], &[0; 2]].concat();
    file.write_all_at(&[directory, end64, place, end].concat(), at)
        .unwrap();

    let weights = inspect_file(&path).unwrap();
    assert_eq!(weights.find("large").unwrap().num_bytes(), LARGE);
    let small = weights.find("small").unwrap();
    assert_eq!(bytes_of(&weights.reader().unwrap(), small), b"8 bytes.");
}
