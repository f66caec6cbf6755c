//! Runs that end before their end, and go on.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::bad_input::SmallDisk;
use crate::program::Place;
use crate::stopping::Running;

const RUN: &str = "train model rows.jsonl --seq 32 --schedule constant --threads 1 --json";

/// The losses of a run by step.
fn losses(events: &[Value]) -> Vec<(u64, f64)> {
    let steps = events.iter().filter(|event| event["event"] == "step");
    let loss = |event: &Value| {
        (
            event["step"].as_u64().unwrap(),
            event["loss"].as_f64().unwrap(),
        )
    };
    steps.map(loss).collect()
}

/// The steps of the checkpoints in a folder.
fn steps_saved(place: &Place, out: &str) -> Vec<u64> {
    let entries = fs::read_dir(place.path(&format!("{out}/checkpoints"))).unwrap();
    let mut steps: Vec<u64> = entries
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_prefix("step-")?.parse().ok()
        })
        .collect();
    steps.sort_unstable();
    steps
}

/// Ends a run by a signal after its third step and lets it go on for three steps more.
#[track_caller]
fn goes_on_after(signal: Signal, code: Option<i32>, ranks: usize, on: usize) {
    let place = Place::with_tiny();
    let words = format!("{RUN} --out out --steps 1000000 --save-every 2 --ranks {ranks}");
    let mut run = Running::start(&place, &words);
    run.wait_for("\"step\":3,");
    run.signal(signal);
    let (_, notes, status) = run.finish();
    assert_eq!(status.code(), code, "{notes}");
    assert!(!place.path("out/config.json").exists(), "no model yet");
    if code.is_some() {
        assert!(notes.contains("; go on with --resume"), "{notes}");
    }
    let latest = *steps_saved(&place, "out").last().unwrap();
    let end = latest + 3;
    let more = format!("{RUN} --out out --steps {end} --ranks {on} --resume");
    let events = place.run(&more).json_lines();
    let resumed = events.iter().find(|event| event["event"] == "resumed");
    let from = resumed.unwrap()["step"].as_u64().unwrap();
    assert!(from == latest || code.is_none() && from < latest, "{from}");
    let whole = format!("{RUN} --out whole --steps {end} --ranks {on}");
    let whole = losses(&place.run(&whole).json_lines());
    assert_eq!(losses(&events), whole[usize::try_from(from).unwrap()..]);
    let weights = |out: &str| place.bytes(&format!("{out}/model.safetensors"));
    assert!(weights("out") == weights("whole"));
}

#[test]
fn a_run_goes_on_after_sigterm_as_if_it_had_not_stopped() {
    goes_on_after(Signal::TERM, Some(143), 1, 1);
    goes_on_after(Signal::TERM, Some(143), 2, 2);
}

#[test]
fn a_run_goes_on_after_it_was_killed() {
    goes_on_after(Signal::KILL, None, 1, 1);
    goes_on_after(Signal::KILL, None, 2, 2);
}

#[test]
fn a_checkpoint_is_a_model_and_what_was_half_written_is_removed() {
    let place = Place::with_tiny();
    let run = format!("{RUN} --out out --steps 4 --save-every 2");
    place.run(&run).json_lines();
    place
        .run("logits out/checkpoints/step-2 --ids 1,2 --json")
        .json();
    place.run("verify out/checkpoints/step-2").text();
    // As after a kill while the next was written, before the run's own end.
    fs::remove_file(place.path("out/config.json")).unwrap();
    for name in ["model.safetensors", "tokenizer.json", "digests.json"] {
        drop(fs::remove_file(place.path(&format!("out/{name}"))));
    }
    fs::create_dir_all(place.path("out/checkpoints/step-3/state/.saving")).unwrap();
    for entry in fs::read_dir(place.path("out")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != "run" && name != "checkpoints" {
            fs::remove_file(place.path(&format!("out/{name}"))).unwrap();
        }
    }
    let text = place.run(&run).error();
    assert!(text.contains("checkpoints"), "{text}");
    let events = place.run(&format!("{run} --resume")).json_lines();
    let warnings = events.iter().filter(|event| event["event"] == "warning");
    let said = warnings.map(|event| event["message"].as_str().unwrap());
    let said: Vec<_> = said.filter(|text| text.contains("step-3")).collect();
    assert_eq!(
        said,
        ["`out/checkpoints/step-3` was never finished and is removed"]
    );
    assert_eq!(steps_saved(&place, "out"), [2]);
}

#[test]
fn a_run_without_a_checkpoint_cannot_go_on() {
    let place = Place::with_tiny();
    let text = place
        .run(&format!("{RUN} --out out --steps 4 --resume"))
        .error();
    assert!(text.contains("no checkpoint in `out`"), "{text}");
    place.has_no_model("out");
}

/// The tiny model takes 356 KiB, its state in f32 2.1 MiB.
#[test]
fn a_disk_that_a_checkpoint_would_fill_is_refused_before_the_first_step() {
    let place = Place::with_tiny();
    let Some(_disk) = SmallDisk::mount(&place, "disk", 2048) else {
        return;
    };
    let run = format!("{RUN} --out disk/out --steps 4 --save-every 2 --recipe f32");
    let text = place.run(&run).error();
    assert!(
        text.contains("no room for a checkpoint in `disk/out`: it needs 2"),
        "{text}"
    );
    place.has_no_model("disk/out");
}

#[test]
fn a_disk_that_fills_later_keeps_the_checkpoint_before() {
    let place = Place::with_tiny();
    let Some(_disk) = SmallDisk::mount(&place, "disk", 4096) else {
        return;
    };
    let run = format!("{RUN} --out disk/out --steps 6 --save-every 2 --recipe f32");
    let text = place.run(&run).error();
    assert!(text.contains("step-4"), "{text}");
    assert_eq!(steps_saved(&place, "disk/out"), [2]);
    let more =
        format!("{RUN} --out out --steps 6 --recipe f32 --resume disk/out/checkpoints/step-2");
    let resumed = losses(&place.run(&more).json_lines());
    let whole = format!("{RUN} --out whole --steps 6 --recipe f32");
    assert_eq!(resumed, losses(&place.run(&whole).json_lines())[2..]);
}
