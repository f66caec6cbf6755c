//! `verify`, and `inspect --load`.

use std::fs;

use serde_json::Value;

use crate::program::Place;

/// Writes another byte over one near the end of a file: in the last tensor.
fn spoil(place: &Place, name: &str) {
    let mut bytes = place.bytes(name);
    let at = bytes.len() - 3;
    bytes[at] ^= 0x10;
    fs::write(place.path(name), bytes).unwrap();
}

#[test]
fn a_model_is_compared_with_its_digests() {
    let place = Place::with_tiny();
    let error = place.run("verify model").error();
    assert!(error.contains("has no digests.json"), "{error}");
    place.run("verify model --write").text();
    let text = place.run("verify model").text();
    assert!(text.contains("all the same"), "{text}");

    spoil(&place, "model/model.safetensors");
    let ran = place.run("verify model");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.contains("different: digest"), "{}", ran.stdout);
    assert!(ran.stdout.contains("1 of "), "{}", ran.stdout);
    let error = place.run("logits model --ids 1").error();
    assert!(error.contains("digests.json"), "{error}");
}

#[test]
fn what_a_run_writes_carries_its_digests() {
    let place = Place::with_tiny();
    place
        .run("train model rows.jsonl --out out --steps 1 --seq 32 --global-batch 2")
        .text();
    let text = place.run("verify out").text();
    assert!(text.contains("all the same"), "{text}");
    // The digests of the source would be wrong for what is made of it.
    place
        .run("train out rows.jsonl --out again --steps 1 --seq 32 --global-batch 2")
        .text();
    place.run("verify again").text();
    let report = place.run("verify out again --json");
    assert_eq!(report.code, Some(1));
}

#[test]
fn checkpoints_of_other_layouts_and_dtypes_are_compared() {
    let place = Place::with_tiny();
    place.run("init tiny --out small-files --seed 5").text();
    place
        .run("init tiny --out wide --seed 5 --dtype f32")
        .text();
    place.run("init tiny --out other --seed 6").text();
    let text = place.run("verify model small-files").text();
    assert!(text.contains("all the same"), "{text}");
    let json: Value = place.run("verify wide model --json").json();
    let tensors = json["tensors"].as_array().unwrap();
    assert!(
        tensors
            .iter()
            .all(|tensor| tensor["verdict"] == "same-rounded")
    );

    let ran = place.run("verify model other");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.contains("different: "), "{}", ran.stdout);
    let ran = place.run("verify wide other");
    assert!(
        ran.stdout.contains("the largest difference is"),
        "{}",
        ran.stdout
    );
    assert_eq!(ran.code, Some(1));
}

#[test]
fn a_load_as_one_rank_of_many_says_what_it_took() {
    let place = Place::with_tiny();
    let json = place
        .run("inspect model --load --as-rank 2 --of 3 --json")
        .json();
    let ranks = json["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 1);
    assert_eq!(ranks[0]["rank"], 2);
    let whole = place
        .run("inspect model --load --of 3 --recipe f32 --json")
        .json();
    assert_eq!(whole["ranks"].as_array().unwrap().len(), 3);
    let text = place.run("inspect model --load --read root").text();
    assert!(
        text.contains("0 of 1") && text.contains("over what was written"),
        "{text}"
    );

    let error = place.run("inspect model --load --as-rank 3 --of 3").error();
    assert!(error.contains('3'), "{error}");
    let error = place
        .run("inspect model --load --as-rank 1 --of 3 --read root")
        .error();
    assert!(error.contains("own"), "{error}");
}
