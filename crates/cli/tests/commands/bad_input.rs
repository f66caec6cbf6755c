//! Input that cannot be used: one clear error each, and nothing half-written.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::program::{Place, rows};

const RUN: &str = "train model rows.jsonl --out out --seq 32 --global-batch 4 --steps 2";

/// Runs a command that must fail with all of `parts` in its error.
#[track_caller]
fn refuses(place: &Place, words: &str, parts: &[&str]) {
    let error = place.run(words).error();
    for part in parts {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    let half = error.len() / 2;
    assert!(
        error[..half] != error[error.len() - half..],
        "said twice: {error}"
    );
    place.has_no_model("out");
}

/// As [`refuses`]; the run never began, so that its folder is not there either.
#[track_caller]
fn refuses_to_begin(place: &Place, words: &str, parts: &[&str]) {
    refuses(place, words, parts);
    assert!(!place.path("out").exists(), "the output folder was left");
}

#[test]
fn a_folder_that_is_not_there() {
    let place = Place::with_tiny();
    for words in [
        "train nowhere rows.jsonl --out out",
        "eval nowhere rows.jsonl",
        "generate nowhere --ids 1",
        "logits nowhere --ids 1",
        "inspect nowhere",
    ] {
        refuses_to_begin(&place, words, &["`nowhere` does not exist"]);
    }
}

#[test]
fn a_folder_without_config() {
    let place = Place::with_tiny();
    fs::remove_file(place.path("model/config.json")).unwrap();
    refuses_to_begin(&place, RUN, &["no config.json in `model`"]);
}

#[test]
fn a_config_that_is_not_json() {
    let place = Place::with_tiny();
    place.write("model/config.json", "{\"model_type\": ");
    refuses_to_begin(
        &place,
        RUN,
        &["`model/config.json` cannot be used", "not valid JSON"],
    );
}

#[test]
fn a_model_type_that_is_not_supported() {
    let place = Place::with_tiny();
    let config = place
        .read("model/config.json")
        .replace("\"llama\"", "\"mamba\"");
    place.write("model/config.json", &config);
    refuses_to_begin(
        &place,
        RUN,
        &[
            "model/config.json",
            "`model_type` is \"mamba\"",
            "supported: \"llama\"",
        ],
    );
}

#[test]
fn a_folder_without_weights() {
    let place = Place::with_tiny();
    fs::remove_file(place.path("model/model.safetensors")).unwrap();
    refuses_to_begin(&place, RUN, &["no weights in `model`"]);
}

#[test]
fn a_truncated_weights_file() {
    let place = Place::with_tiny();
    let whole = place.bytes("model/model.safetensors");
    for len in [whole.len() - 1, 5000, 100, 5, 0] {
        fs::write(place.path("model/model.safetensors"), &whole[..len]).unwrap();
        refuses_to_begin(
            &place,
            RUN,
            &["`model/model.safetensors` is not a valid safetensors file"],
        );
    }
}

#[test]
fn a_weight_of_another_shape() {
    let place = Place::with_tiny();
    let config = place
        .read("model/config.json")
        .replace("\"vocab_size\": 512", "\"vocab_size\": 500");
    place.write("model/config.json", &config);
    refuses_to_begin(
        &place,
        RUN,
        &[
            "model.embed_tokens.weight",
            "has shape [512, 64]",
            "calls for [500, 64]",
        ],
    );
}

#[test]
fn data_that_is_not_there() {
    let place = Place::with_tiny();
    refuses_to_begin(&place, "train model none.jsonl --out out", &["none.jsonl"]);
    refuses_to_begin(&place, "train model --out out", &["no data is given"]);
    let eval = format!("{RUN} --eval none.jsonl");
    refuses_to_begin(&place, &eval, &["none.jsonl"]);
}

#[test]
fn a_data_line_that_is_not_json() {
    let place = Place::with_tiny();
    place.write(
        "rows.jsonl",
        &format!("{}not json\n{}", rows(3, 32), rows(2, 32)),
    );
    refuses_to_begin(
        &place,
        RUN,
        &["rows.jsonl, line 4", "expected a JSON object"],
    );
    refuses(
        &place,
        "eval model rows.jsonl --seq 32",
        &["rows.jsonl, line 4"],
    );
}

#[test]
fn a_data_line_of_another_kind() {
    let place = Place::with_tiny();
    place.write("rows.jsonl", "{\"text\": \"no tokenizer is here\"}\n");
    refuses_to_begin(&place, RUN, &["rows.jsonl, line 1", "needs a tokenizer"]);
    place.write("rows.jsonl", "{\"input_ids\": [1, 512]}\n");
    refuses_to_begin(
        &place,
        RUN,
        &["rows.jsonl, line 1", "token id 512", "512 rows"],
    );
    place.write("rows.jsonl", &rows(1, 33));
    refuses_to_begin(
        &place,
        RUN,
        &["rows.jsonl, line 1", "33 input_ids", "holds 32"],
    );
    place.write("rows.jsonl", "\n\n");
    refuses_to_begin(&place, RUN, &["rows.jsonl"]);
}

#[test]
fn a_sequence_longer_than_the_models_positions() {
    let place = Place::with_tiny();
    let parts = ["2000 tokens", "1024 positions"];
    let run = "train model rows.jsonl --out out --seq 2000 --steps 1";
    refuses_to_begin(&place, run, &parts);
    refuses(&place, "eval model rows.jsonl --seq 2000", &parts);
    let ids = vec!["1"; 1025].join(",");
    let parts = ["1025 tokens", "1024 positions"];
    refuses(&place, &format!("logits model --ids {ids}"), &parts);
}

#[test]
fn a_token_that_the_model_does_not_know() {
    let place = Place::with_tiny();
    refuses(
        &place,
        "logits model --ids 3,512",
        &["token id 512 at position 1", "512"],
    );
}

#[test]
fn a_prompt_that_leaves_no_room() {
    let place = Place::with_text_model();
    refuses(
        &place,
        "generate model --ids 5,6 --max-tokens 511",
        &["2 tokens of prompt and 511 to generate", "512 positions"],
    );
}

#[test]
fn a_model_without_tokenizer_that_is_to_write() {
    let place = Place::with_tiny();
    refuses(
        &place,
        "generate model --prompt a",
        &["no tokenizer.json in model"],
    );
}

#[test]
fn a_tokenizer_that_is_broken() {
    let place = Place::with_tiny();
    place.write("model/tokenizer.json", "{}");
    refuses_to_begin(&place, RUN, &["tokenizer.json of model cannot be used"]);
}

#[test]
fn settings_that_cannot_be() {
    let place = Place::with_tiny();
    place.write("run.toml", "seq = 32\nmicro_batch = 2\n");
    let run = format!("{RUN} --config run.toml");
    refuses_to_begin(
        &place,
        &run,
        &["`run.toml`: unknown setting `micro_batch`, did you mean `micro-batch`?"],
    );
    place.write("run.toml", "seq = 32\nlr = = 3\n");
    refuses_to_begin(&place, &run, &["run.toml", "line 2"]);
    place.write("run.toml", "seq = \"long\"\n");
    refuses_to_begin(&place, &run, &["run.toml", "string \"long\""]);
    refuses_to_begin(&place, &format!("{RUN} --config none.toml"), &["none.toml"]);
    refuses_to_begin(&place, &format!("{RUN} --lr NaN"), &["setting `lr`"]);
    refuses_to_begin(
        &place,
        &format!("{RUN} --ranks 0"),
        &["setting `ranks`", "at least 1"],
    );
    refuses_to_begin(
        &place,
        &format!("{RUN} --epochs 1"),
        &["`steps` and `epochs`"],
    );
}

#[test]
fn an_output_folder_that_is_not_empty() {
    let place = Place::with_tiny();
    fs::create_dir(place.path("out")).unwrap();
    place.write("out/thesis.txt", "years of work");
    let parts = ["out folder `out` is not empty", "thesis.txt"];
    refuses(&place, RUN, &parts);
    refuses(&place, "init tiny --out out", &parts);
    assert_eq!(place.read("out/thesis.txt"), "years of work");
    assert_eq!(fs::read_dir(place.path("out")).unwrap().count(), 1);
}

#[test]
fn an_output_folder_that_is_a_file() {
    let place = Place::with_tiny();
    place.write("out", "");
    refuses(&place, RUN, &["`out` is a file, expected a folder"]);
}

#[test]
fn a_preset_that_there_is_not() {
    let place = Place::new();
    let parts = ["unknown preset `tinny`", "did you mean `tiny`?", "405b"];
    refuses_to_begin(&place, "init tinny --out out", &parts);
    refuses_to_begin(&place, "init none.json --out out", &["none.json"]);
}

#[test]
fn a_loss_that_is_not_a_number() {
    let place = Place::with_tiny();
    let mut weights = place.bytes("model/model.safetensors");
    let end = weights.len();
    let nan = [0xc0, 0x7f].repeat(64);
    weights[end - nan.len()..].copy_from_slice(&nan);
    fs::write(place.path("model/model.safetensors"), weights).unwrap();
    refuses(
        &place,
        RUN,
        &["step 1", "the loss is not finite (NaN)", "nothing is saved"],
    );
    // What was seen of the run is kept, the rows made for it are not.
    assert!(place.read("out/run/metrics.jsonl").contains("\"start\""));
    assert!(!place.path("out/run/rows").exists());
}

#[test]
fn an_update_that_makes_weights_infinite_is_not_saved() {
    let place = Place::with_tiny();
    refuses(
        &place,
        "train model rows.jsonl --out out --seq 32 --global-batch 4 --steps 1 --lr 3e38",
        &[
            "after step 1: tensor `",
            "not finite",
            "nothing of this state is saved",
        ],
    );
    assert!(!place.path("out/config.json").exists());
    assert!(!place.path("out/.saving").exists());
}

#[test]
fn the_next_token_of_a_model_that_has_no_numbers() {
    let place = Place::with_text_model();
    let mut weights = place.bytes("model/model.safetensors");
    let end = weights.len();
    let nan = [0xc0, 0x7f].repeat(96);
    weights[end - nan.len()..].copy_from_slice(&nan);
    fs::write(place.path("model/model.safetensors"), weights).unwrap();
    refuses(
        &place,
        "generate model --ids 1 --max-tokens 2 --temperature 1",
        &["the logits at position 1 are not numbers"],
    );
}

#[test]
fn a_file_that_cannot_be_written() {
    let place = Place::with_tiny();
    refuses(
        &place,
        "logits model --ids 1 --npy none/out.npy",
        &["cannot write `none/out.npy`", "No such file"],
    );
}

/// A file system with room for some of a model, gone with this.
pub(crate) struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// None, with the reason on standard error, where nothing can be mounted.
    pub(crate) fn mount(place: &Place, name: &str, kib: u32) -> Option<Self> {
        let path = place.path(name);
        fs::create_dir(&path).unwrap();
        let size = format!("size={kib}k");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&path)
            .output();
        match mount {
            Ok(output) if output.status.success() => Some(Self { path }),
            Ok(output) => {
                let reason = String::from_utf8_lossy(&output.stderr).into_owned();
                eprintln!("SKIPPED: no small disk can be mounted: {}", reason.trim());
                None
            }
            Err(error) => {
                eprintln!("SKIPPED: no small disk can be mounted: {error}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(&self.path).status());
    }
}

#[test]
fn a_full_disk() {
    let place = Place::with_tiny();
    // The weights take 356 KiB; the run's other files 100 KiB at most.
    let Some(_disk) = SmallDisk::mount(&place, "disk", 256) else {
        return;
    };
    let run = RUN.replace("--out out", "--out disk/out");
    refuses(
        &place,
        &run,
        &[
            "no room for `disk/out/.saving/model.safetensors`",
            "needs 364360 bytes",
        ],
    );
    place.has_no_model("disk/out");
    refuses(
        &place,
        "init tiny --out disk/init",
        &["no room for `disk/init/"],
    );
    assert!(!place.path("disk/init").exists());
}

#[test]
fn a_disk_that_is_full_from_the_start() {
    let place = Place::with_tiny();
    let Some(_disk) = SmallDisk::mount(&place, "disk", 4) else {
        return;
    };
    place.write("rows.jsonl", &rows(200, 32));
    let run = RUN.replace("--out out", "--out disk/out");
    refuses(&place, &run, &["disk/out", "No space left on device"]);
    place.has_no_model("disk/out");
    assert!(!place.path("disk/out").exists());
}

#[test]
fn a_name_of_the_hub_is_told_from_a_path() {
    let place = Place::with_tiny();
    let error = place.run("logits SomeOne/SomeModel --ids 1").error();
    assert!(error.contains("hf download SomeOne/SomeModel"), "{error}");
    let error = place.run("logits model/no-such --ids 1").error();
    assert!(error.contains("does not exist"), "{error}");
}

#[test]
fn a_negative_number_meets_the_range_of_its_setting() {
    let place = Place::with_tiny();
    let error = place
        .run("train model rows.jsonl --out out --lr -1")
        .error();
    assert!(error.contains("setting `lr`"), "{error}");
}
