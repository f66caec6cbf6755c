//! Models that are not a plain folder of safetensors files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::program::{Place, rows};

/// The config of the model in `testdata/pickle/llama.bin`.
const CONFIG: &str = r#"{"model_type": "llama", "hidden_act": "silu", "hidden_size": 8,
    "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 1, "vocab_size": 20, "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true}"#;

/// A folder with a file that torch wrote, and rows of tokens below 20.
fn with_pickle() -> Place {
    let place = Place::new();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/pickle/llama.bin");
    fs::create_dir(place.path("model")).unwrap();
    fs::copy(file, place.path("model/pytorch_model.bin")).unwrap();
    place.write("model/config.json", CONFIG);
    place.write("rows.jsonl", "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}\n");
    place
}

#[test]
fn a_pickle_is_a_model_and_comes_out_as_safetensors() {
    let place = with_pickle();
    let inspection = place.run("inspect model --tensors").text();
    for word in ["BF16", "F16", "F32", "tied: lm_head.weight is model.embed"] {
        assert!(inspection.contains(word), "{inspection}");
    }
    let run = "train model rows.jsonl --out out --seq 8 --global-batch 1 --steps 0 --recipe f32";
    place.run(run).text();
    assert!(!place.path("out/pytorch_model.bin").exists());
    let logits = |model: &str| {
        place
            .run(&format!("logits {model} --ids 1,7,3 --json"))
            .text()
    };
    assert_eq!(logits("out"), logits("model"));
    let exported = place.run("inspect out --tensors").text();
    assert_eq!(
        exported,
        inspection.replace(
            "warning: tensor `lm_head.weight` is not part of this model and is left out\n",
            ""
        )
    );
}

#[test]
fn a_file_that_only_running_could_read_asks_for_safetensors() {
    let place = with_pickle();
    let evil = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/pickle/evil.bin");
    fs::copy(evil, place.path("model/pytorch_model.bin")).unwrap();
    let error = place.run("logits model --ids 1").error();
    for word in [
        "pytorch_model.bin",
        "convert it to safetensors",
        "`posix.system`",
    ] {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

/// Adds a tensor without elements to a safetensors file.
fn add_tensor(path: &Path, name: &str) {
    let bytes = fs::read(path).unwrap();
    let (prefix, rest) = bytes.split_first_chunk().unwrap();
    let (json, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*prefix)).unwrap());
    let json = std::str::from_utf8(json).unwrap().trim_end();
    let more = format!(r#","{name}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}}}"#);
    let json = format!("{}{more}", json.strip_suffix('}').unwrap());
    let prefix = (json.len() as u64).to_le_bytes();
    fs::write(path, [&prefix[..], json.as_bytes(), data].concat()).unwrap();
}

#[test]
fn lax_reading_warns_of_what_strict_reading_refuses() {
    let place = Place::with_tiny();
    add_tensor(&place.path("model/model.safetensors"), "extra");
    for words in [
        "inspect model",
        "logits model --ids 1",
        "eval model rows.jsonl --seq 32",
    ] {
        let error = place.run(words).error();
        assert!(error.contains("`extra`"), "{error}");
        let lax = place.run(&format!("{words} --lax"));
        let warned =
            [&lax.stdout, &lax.stderr].map(|text| text.contains("warning: tensor `extra`"));
        assert!(warned.contains(&true), "{words}");
        lax.text();
    }
    let run = "train model rows.jsonl --out out --seq 32 --global-batch 2 --steps 1 --json --lax";
    let events = place.run(run).json_lines();
    let warnings = events.iter().filter(|event| event["event"] == "warning");
    let messages: Vec<_> = warnings.map(|event| event["message"].to_string()).collect();
    assert!(messages[0].contains("`extra`"), "{messages:?}");
    assert!(!place.run("inspect out --tensors").text().contains("extra"));
}

#[test]
fn a_link_that_leaves_the_folder_is_followed_on_request_only() {
    let place = Place::with_tiny();
    place.write("rows.jsonl", &rows(2, 32));
    fs::rename(place.path("model/model.safetensors"), place.path("weights")).unwrap();
    symlink("../weights", place.path("model/model.safetensors")).unwrap();
    for follow in ["", " --follow-links cache", " --follow-links none"] {
        let error = place.run(&format!("logits model --ids 1{follow}")).error();
        for word in ["model.safetensors", "weights", "`any`"] {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    }
    place.run("logits model --ids 1 --follow-links any").text();
    let unknown = place.run("inspect model --follow-links all");
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("expected `any`, `cache` or `none`"));
}
