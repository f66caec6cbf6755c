//! Conversions give what was there: GGUF files against golden folders, folders
//! against themselves.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::Folder;
use checkpoint::gguf::GgufFile;
use data::Tokenizer;
use nestling::{ConvertOptions, Converted, Dtype, Error, InitOptions, Target, convert, init};
use serde_json::Value;
use tempfile::TempDir;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/gguf")
        .join(name)
}

fn options(target: Target<'_>) -> ConvertOptions<'_> {
    ConvertOptions {
        target,
        max_file_bytes: u64::MAX,
        tokenizer: None,
        threads: 3,
    }
}

fn try_convert(model: &Path, out: &Path, target: Target<'_>) -> Result<Converted, Error> {
    convert(model, out, &options(target), &|_| {
        std::ops::ControlFlow::Continue(())
    })
}

/// The folder that a model becomes.
#[track_caller]
fn converted(model: &Path, target: Target<'_>) -> TempDir {
    let out = tempfile::tempdir().unwrap();
    try_convert(model, out.path(), target).unwrap();
    out
}

/// Name, dtype, shape and bytes of every tensor, in the order of names.
fn tensors(folder: &Path) -> Vec<(String, Dtype, Vec<u64>, Vec<u8>)> {
    let folder = Folder::open(folder).unwrap();
    let reader = folder.open_files().unwrap();
    let mut tensors: Vec<_> = folder
        .tensors()
        .iter()
        .map(|located| {
            let num_bytes = located.num_bytes();
            let mut bytes = vec![0; usize::try_from(num_bytes).unwrap()];
            reader.read_at(located, 0..num_bytes, &mut bytes).unwrap();
            let meta = &located.meta;
            (
                meta.name.clone(),
                meta.dtype,
                meta.shape.dims().to_vec(),
                bytes,
            )
        })
        .collect();
    tensors.sort();
    tensors
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Texts and their ids by another program.
fn expected_ids(name: &str) -> Vec<(String, Vec<u32>)> {
    let lines = json(&golden(name));
    let lines = lines.as_array().unwrap().iter();
    lines
        .map(|line| {
            let ids = line["ids"].as_array().unwrap().iter();
            let ids = ids.map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
            let text = line["text"].as_str().unwrap().to_owned();
            (text, ids.collect::<Option<_>>().unwrap())
        })
        .collect()
}

#[test]
fn a_gguf_file_becomes_the_folder_that_the_reference_script_makes() {
    let out = converted(&golden("tiny.gguf"), Target::Source);
    let (made, expected) = (tensors(out.path()), tensors(&golden("tiny")));
    assert_eq!(made.len(), expected.len());
    for (made, expected) in made.iter().zip(&expected) {
        assert!(made == expected, "{}", expected.0);
    }
    for name in ["generation_config.json", "tokenizer_config.json"] {
        let path = out.path().join(name);
        assert_eq!(json(&path), json(&golden("tiny").join(name)), "{name}");
    }
    let (made, expected) = (
        json(&out.path().join("tokenizer.json")),
        json(&golden("tiny/tokenizer.json")),
    );
    for part in ["added_tokens", "pre_tokenizer", "decoder", "model"] {
        assert!(made[part] == expected[part], "{part}");
    }
    let made = Folder::open(out.path()).unwrap().spec().unwrap();
    let mut expected = Folder::open(&golden("tiny")).unwrap().spec().unwrap();
    // The script's is that of the model that it was written for.
    expected.initializer_range = made.initializer_range;
    assert_eq!(made, expected);
}

#[test]
fn ids_are_those_of_the_reference() {
    for (file, ids) in [
        ("tiny.gguf", "tiny_ids.json"),
        ("pieces.gguf", "pieces_ids.json"),
    ] {
        let out = converted(&golden(file), Target::Source);
        let tokenizer = Tokenizer::from_folder(out.path()).unwrap();
        for (text, expected) in expected_ids(ids) {
            let ids = tokenizer.encode(&text, false).unwrap();
            assert_eq!(ids, expected, "{file}: {text:?}");
        }
    }
}

/// The tiny file with another pre-tokenizer; its name gives or takes the bytes.
fn with_pre_tokenizer(pre: &str) -> Vec<u8> {
    let key = |key: &str, value: &str| {
        let parts = [
            key.as_bytes(),
            &8_u32.to_le_bytes(),
            &(value.len() as u64).to_le_bytes(),
        ];
        [&parts.concat(), value.as_bytes()].concat()
    };
    let mut bytes = fs::read(golden("tiny.gguf")).unwrap();
    let name = "n".repeat("smollm".len() + "tiny".len() - pre.len());
    for (known, from, to) in [
        ("general.name", "tiny", name.as_str()),
        ("tokenizer.ggml.pre", "smollm", pre),
    ] {
        let (from, to) = (key(known, from), key(known, to));
        let at = bytes
            .windows(from.len())
            .position(|part| part == from)
            .unwrap();
        bytes.splice(at..at + from.len(), to);
    }
    bytes
}

#[test]
fn every_family_cuts_words_as_the_reference_does() {
    let lines = json(&golden("families_ids.json"));
    for pre in ["gpt-2", "llama-bpe", "qwen2"] {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), with_pre_tokenizer(pre)).unwrap();
        let out = converted(file.path(), Target::Source);
        let tokenizer = Tokenizer::from_folder(out.path()).unwrap();
        let lines = lines.as_array().unwrap().iter();
        let lines: Vec<_> = lines.filter(|line| line["pre"] == pre).collect();
        assert!(!lines.is_empty());
        for line in lines {
            let text = line["text"].as_str().unwrap();
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(
                serde_json::to_value(ids).unwrap(),
                line["ids"],
                "{pre}: {text:?}"
            );
        }
    }
}

#[test]
fn a_sentence_piece_tokenizer_begins_texts_and_gives_them_back() {
    let out = converted(&golden("pieces.gguf"), Target::Source);
    let tokenizer = Tokenizer::from_folder(out.path()).unwrap();
    let ids = tokenizer.encode("the cat 7", true).unwrap();
    assert_eq!(ids[0], 1);
    assert_eq!(tokenizer.decode(&ids[1..], true).unwrap(), "the cat 7");
}

#[test]
fn blocks_become_f32_without_rounding() {
    let out = converted(&golden("tiny.gguf"), Target::Dtype(Dtype::F32));
    let file = GgufFile::open(&golden("tiny.gguf")).unwrap();
    let table = &file.tensors()[0];
    let mut wide = vec![0.0; usize::try_from(table.num_elements).unwrap()];
    file.open_data().unwrap().read(table, 0, &mut wide).unwrap();
    let bytes: Vec<_> = wide.iter().flat_map(|value| value.to_le_bytes()).collect();
    let made = tensors(out.path());
    let found = made
        .iter()
        .find(|made| made.0 == "model.embed_tokens.weight");
    assert!(found.unwrap().3 == bytes);
    assert_eq!(
        json(&out.path().join("config.json"))["torch_dtype"],
        "float32"
    );
}

#[test]
fn a_tokenizer_can_come_from_a_folder() {
    let out = tempfile::tempdir().unwrap();
    let demo = tempfile::tempdir().unwrap();
    demo::write_model(demo.path()).unwrap();
    let options = ConvertOptions {
        tokenizer: Some(demo.path()),
        ..options(Target::Source)
    };
    convert(&golden("tiny.gguf"), out.path(), &options, &|_| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    let bytes = |folder: &Path| fs::read(folder.join("tokenizer.json")).unwrap();
    assert!(bytes(out.path()) == bytes(demo.path()));
}

/// A random checkpoint.
fn tiny(dtype: Dtype, max_file_bytes: u64) -> TempDir {
    let model = tempfile::tempdir().unwrap();
    let options = InitOptions {
        dtype,
        seed: 3,
        sparse: false,
        max_file_bytes,
    };
    init("tiny", model.path(), options, &|_| {
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    model
}

#[test]
fn widening_and_narrowing_again_changes_no_bit() {
    for narrow in [Dtype::BF16, Dtype::F16] {
        let model = tiny(narrow, 100_000);
        let wide = converted(model.path(), Target::Dtype(Dtype::F32));
        assert!(tensors(wide.path()).iter().all(|made| made.1 == Dtype::F32));
        let back = converted(wide.path(), Target::Dtype(narrow));
        assert!(tensors(back.path()) == tensors(model.path()), "{narrow}");
        let config = |folder: &TempDir| json(&folder.path().join("config.json"));
        assert_eq!(config(&wide)["torch_dtype"], "float32");
        let mut expected = config(&model);
        // The preset's config says BF16 whatever the weights are.
        expected["torch_dtype"] = if narrow == Dtype::F16 {
            "float16"
        } else {
            "bfloat16"
        }
        .into();
        assert_eq!(config(&back), expected);
    }
}

#[test]
fn the_dtype_of_the_source_keeps_every_byte_and_every_file() {
    let model = tiny(Dtype::BF16, 100_000);
    fs::write(model.path().join("notes.txt"), "kept").unwrap();
    let out = converted(model.path(), Target::Source);
    assert!(tensors(out.path()) == tensors(model.path()));
    for name in ["config.json", "notes.txt"] {
        let bytes = |folder: &TempDir| fs::read(folder.path().join(name)).unwrap();
        assert!(bytes(&out) == bytes(&model), "{name}");
    }
}

#[test]
fn the_demo_can_be_converted() {
    let out = converted(Path::new("demo"), Target::Dtype(Dtype::F16));
    assert!(Tokenizer::from_folder(out.path()).is_ok());
    let spec = Folder::open(out.path()).unwrap().spec().unwrap();
    assert_eq!(spec.dtype, Some(Dtype::F16));
}

#[test]
fn a_number_too_large_for_f16_is_refused_and_nothing_is_left() {
    let model = tiny(Dtype::F32, u64::MAX);
    let file = model.path().join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&70_000.0_f32.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    let out = model.path().join("out");
    let error = try_convert(model.path(), &out, Target::Dtype(Dtype::F16)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Overflow {
                dtype: Dtype::F16,
                ..
            }
        ),
        "{error}"
    );
    assert!(!out.exists());
}

/// A golden file with a part of its bytes replaced by as many others.
#[track_caller]
fn refuses(file: &str, from: &str, to: &str, words: &str) {
    assert_eq!(from.len(), to.len());
    let mut bytes = fs::read(golden(file)).unwrap();
    let found = bytes
        .windows(from.len())
        .position(|part| part == from.as_bytes());
    let at = found.expect("the part is there");
    bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let out = folder.path().join("out");
    let error = try_convert(&path, &out, Target::Source).unwrap_err();
    let first: &dyn std::error::Error = &error;
    let chain = std::iter::successors(Some(first), |error| error.source());
    let message = chain
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ");
    assert!(message.contains(words), "`{words}` is not in: {message}");
    assert!(message.contains("model.gguf"), "{message}");
    assert!(!out.exists());
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let tiny = "tiny.gguf";
    let arch = "general.architecture\u{8}\0\0\0\u{5}\0\0\0\0\0\0\0";
    let (from, to) = (format!("{arch}llama"), format!("{arch}gemma"));
    refuses(tiny, &from, &to, "is `gemma`, supported: `llama`, `qwen2`");
    refuses(
        tiny,
        "llama.context_length",
        "llama.context_height",
        "`llama.context_height` is not understood",
    );
    refuses(
        tiny,
        "llama.block_count\u{4}\0\0\0\u{2}",
        "llama.block_count\u{4}\0\0\0\u{3}",
        "`model.layers.2.input_layernorm.weight` is missing",
    );
    refuses(
        tiny,
        "llama.block_count\u{4}\0\0\0\u{2}",
        "llama.block_count\u{4}\0\0\0\u{1}",
        "tensor `blk.1.",
    );
    refuses(
        tiny,
        "blk.1.attn_q.weight",
        "blk.1.attn_x.weight",
        "tensor `blk.1.attn_x.weight` does not belong",
    );
    refuses(
        tiny,
        "llama.feed_forward_length\u{4}\0\0\0\u{60}",
        "llama.feed_forward_length\u{4}\0\0\0\u{40}",
        "has shape [96, 64], the metadata call for [64, 64]",
    );
    refuses(
        tiny,
        "llama.rope.dimension_count\u{4}\0\0\0\u{10}",
        "llama.rope.dimension_count\u{4}\0\0\0\u{8}",
        "`llama.rope.dimension_count` is 8, supported: all dimensions",
    );
}

#[test]
fn a_tokenizer_that_cannot_be_made_is_refused_with_the_way_out() {
    let tiny = "tiny.gguf";
    refuses(tiny, "smollm", "smolln", "--tokenizer FOLDER");
    refuses(
        tiny,
        "smollm",
        "smolln",
        "`tokenizer.ggml.pre` is `smolln`, supported:",
    );
    refuses(
        tiny,
        "tokenizer.ggml.merges",
        "tokenizer.ggml.mergeS",
        "metadata have no `tokenizer.ggml.merges`",
    );
    refuses(
        tiny,
        "tokenizer.ggml.eos_token_id\u{4}\0\0\0\u{2}\0",
        "tokenizer.ggml.eos_token_id\u{4}\0\0\0\u{2}\u{7}",
        "`tokenizer.ggml.eos_token_id` is 1794",
    );
    refuses(
        "pieces.gguf",
        "tokenizer.ggml.scores",
        "tokenizer.ggml.scoreS",
        "metadata have no `tokenizer.ggml.scores`",
    );
}
