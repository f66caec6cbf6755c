//! `init`, `inspect` and `convert`.

use std::fs;

use crate::program::{Place, nestling};

#[test]
fn init_lists_the_shapes_that_it_knows() {
    let text = nestling(&["init", "--list"]).text();
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(names[..3], ["preset", "tiny", "135m"]);
    let list = nestling(&["init", "--list", "--json"]).json();
    assert_eq!(list[0]["name"], "tiny");
    assert_eq!(list[0]["num_parameters"], 180_672);
}

#[test]
fn init_says_what_it_wrote() {
    let place = Place::new();
    let text = place.run("init tiny --out model").text();
    assert_eq!(
        text,
        "tiny: 180,672 parameters, 352.9 KiB of weights in model\n"
    );
    let json = place.run("init tiny --out other --dtype f32 --json").json();
    assert_eq!(json["num_parameters"], 180_672);
    assert_eq!(json["num_bytes"], 4 * 180_672);
    assert_eq!(json["path"], "other");
}

#[test]
fn a_seed_gives_the_same_weights_again_and_another_seed_others() {
    let place = Place::new();
    for (out, seed) in [("a", 1), ("b", 1), ("c", 2)] {
        place
            .run(&format!("init tiny --out {out} --seed {seed}"))
            .text();
    }
    let weights = |folder: &str| place.bytes(&format!("{folder}/model.safetensors"));
    assert!(weights("a") == weights("b"));
    assert!(weights("a") != weights("c"));
}

#[test]
fn a_small_file_limit_splits_the_weights() {
    let place = Place::new();
    place
        .run("init 135m --sparse --out model --max-file-size 100")
        .text();
    let text = place.run("inspect model").text();
    assert!(
        text.starts_with("134,515,008 parameters in 272 tensors, 256.6 MiB\n"),
        "{text}"
    );
    assert!(
        place
            .path("model/model-00001-of-00003.safetensors")
            .exists()
    );
}

#[test]
fn inspect_lists_units_and_ties() {
    let place = Place::with_tiny();
    let expected = "\
180,672 parameters in 29 tensors, 352.9 KiB

unit       tensors  parameters      size  dtypes
embedding        1      32,768  64.0 KiB  BF16
block 0          9      49,280  96.2 KiB  BF16
block 1          9      49,280  96.2 KiB  BF16
block 2          9      49,280  96.2 KiB  BF16
head             1          64     128 B  BF16

tied: lm_head.weight is model.embed_tokens.weight
";
    assert_eq!(place.run("inspect model").text(), expected);
}

#[test]
fn inspect_reads_a_single_file_and_lists_its_tensors() {
    let place = Place::with_tiny();
    let text = place
        .run("inspect model/model.safetensors --tensors")
        .text();
    assert!(
        text.starts_with("180,672 parameters in 29 tensors"),
        "{text}"
    );
    let line = "model.embed_tokens.weight                       BF16   [512, 64]  64.0 KiB\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn inspect_gives_everything_as_json() {
    let place = Place::with_tiny();
    fs::write(place.path("model/extra.safetensors"), "").unwrap();
    let json = place.run("inspect model --json").json();
    assert_eq!(json["num_parameters"], 180_672);
    assert_eq!(json["units"][1]["name"], "block 0");
    assert_eq!(
        json["units"][0]["tensors"][0]["shape"],
        serde_json::json!([512, 64])
    );
    assert_eq!(
        json["warnings"],
        serde_json::json!(["not read: extra.safetensors"])
    );
}

#[test]
fn convert_says_what_it_wrote() {
    let place = Place::with_tiny();
    let text = place.run("convert model --out wide --to f32").text();
    assert_eq!(
        text,
        "29 tensors, 180,672 elements, 705.8 KiB in wide; beside them config.json\n"
    );
    let json = place.run("convert wide --out back --to bf16 --json").json();
    assert_eq!(json["path"], "back");
    assert_eq!(json["num_bytes"], 2 * 180_672);
    let weights = |folder: &str| place.bytes(&format!("{folder}/model.safetensors"));
    assert!(weights("back") == weights("model"));
}

#[test]
fn convert_refuses_what_it_cannot_read_and_leaves_nothing() {
    let place = Place::with_tiny();
    place.write("model.gguf", "GGUF");
    let error = place.run("convert model.gguf --out new").error();
    assert_eq!(
        error,
        "`model.gguf` cannot be read as GGUF: file ends at byte 4, where 4 more are needed"
    );
    place.has_no_model("new");
    let error = place.run("convert model --out model").error();
    assert!(error.contains("is not empty"), "{error}");
}
