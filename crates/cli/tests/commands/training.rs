//! `train`, from settings to the folder it leaves.

use serde_json::Value;

use crate::program::Place;

const RUN: &str = "train model rows.jsonl --out out --seq 32 --global-batch 4";

/// The events of one kind.
fn events<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == kind).collect()
}

#[test]
fn a_run_leaves_a_whole_folder_and_prints_what_it_took() {
    let place = Place::with_tiny();
    let run = format!("{RUN} --steps 3 --lr 1e-3 --eval rows.jsonl");
    let ran = place.run(&run);
    let progress = ran.stderr.clone();
    let report = ran.text();

    let start = "180,672 parameters, bf16; 1 rank of ";
    assert!(progress.starts_with(start), "{progress}");
    assert!(progress.contains("step 1/3  0:0"), "{progress}");
    assert!(
        progress.contains("step 3/3  0:00 left  loss 6."),
        "{progress}"
    );
    assert!(progress.contains("after step 3: eval loss "), "{progress}");

    let heads = "  phase        before  consumed  peak  anonymous  shared  file  seconds\n";
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(words(report.lines().nth(1).unwrap()), words(heads));
    for phase in [
        "load",
        "prepare",
        "first step",
        "steady step",
        "eval",
        "save",
    ] {
        assert!(
            report.contains(&format!("\n  {phase} ")),
            "{phase}: {report}"
        );
    }
    assert!(report.contains("reservations of rank 0, MiB: "), "{report}");
    for account in ["weights", "moments", "arena"] {
        assert!(
            report.contains(&format!("\n  {account} ")),
            "{account}: {report}"
        );
    }
    assert!(report.contains("\nloss       6."), "{report}");
    assert!(report.contains("\neval loss  6."), "{report}");
    assert!(report.ends_with(" in out, as of step 3\n"), "{report}");

    place.run("inspect out").text();
    assert_eq!(
        place.read("out/config.json"),
        place.read("model/config.json")
    );
    assert!(place.bytes("out/model.safetensors") != place.bytes("model/model.safetensors"));
    assert!(place.read("out/run/config.toml").contains("lr = 0.001\n"));
    assert!(!place.path("out/run/rows").exists());
}

#[test]
fn json_is_every_event_and_nothing_else() {
    let place = Place::with_tiny();
    let run = format!("{RUN} --steps 2 --ranks 2 --save-every 1 --eval rows.jsonl --json");
    let ran = place.run(&run);
    assert_eq!(ran.stderr, "");
    let text = ran.stdout.clone();
    let lines = ran.json_lines();
    assert_eq!(lines[0]["event"], "start");
    let steps: Vec<_> = events(&lines, "step")
        .iter()
        .map(|step| step["step"].clone())
        .collect();
    assert_eq!(steps, [1, 2]);
    assert_eq!(events(&lines, "eval").len(), 2);
    let ranks: Vec<_> = events(&lines, "ledger")
        .iter()
        .map(|step| step["rank"].clone())
        .collect();
    assert_eq!(ranks, [0, 1]);
    let paths: Vec<_> = events(&lines, "saved")
        .iter()
        .map(|saved| saved["path"].clone())
        .collect();
    assert_eq!(paths, ["out/checkpoints/step-1", "out"]);
    assert!(!events(&lines, "phase").is_empty());
    assert_eq!(place.read("out/run/metrics.jsonl"), text);
    place.run("logits out/checkpoints/step-1 --ids 1").text();
}

#[test]
fn quiet_prints_nothing() {
    let place = Place::with_tiny();
    let ran = place.run(&format!("{RUN} --steps 1 --quiet"));
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    assert_eq!(ran.code, Some(0));
    place.run("inspect out").text();
}

#[test]
fn a_run_of_no_steps_gives_the_model_back() {
    let place = Place::with_tiny();
    place.run(&format!("{RUN} --steps 0")).text();
    assert!(place.bytes("out/model.safetensors") == place.bytes("model/model.safetensors"));
}

#[test]
fn printed_settings_are_read_back_the_same() {
    let place = Place::new();
    let printed = place
        .run("train model --print-config --lr 0.5 --epochs 1.5 --clip previous")
        .text();
    assert!(printed.contains("lr = 0.5\n"), "{printed}");
    assert!(printed.contains("epochs = 1.5\n"), "{printed}");
    assert!(printed.contains("clip = \"previous\"\n"), "{printed}");
    place.write("run.toml", &printed);
    let again = place
        .run("train model --print-config --config run.toml")
        .text();
    assert_eq!(again, printed);
    let over = place
        .run("train model --print-config --config run.toml --steps 3")
        .text();
    assert!(
        over.contains("steps = 3\n") && !over.contains("epochs"),
        "{over}"
    );
}

#[test]
fn the_demo_has_settings_of_its_own() {
    let place = Place::new();
    let demo = place.run("train demo --print-config").text();
    let other = place.run("train model --print-config").text();
    assert!(demo.contains("steps = "), "{demo}");
    assert_ne!(demo, other);
}

#[test]
fn the_demo_shows_what_it_learned() {
    let place = Place::new();
    let report = place.run("train demo --out pip --steps 2").text();
    let (before, after) = report.split_once("after training\n").unwrap();
    assert!(
        before.starts_with("before training\n  Who are you?\n    "),
        "{report}"
    );
    assert!(after.starts_with("  Who are you?\n    "), "{report}");
    assert!(before.contains("\neval loss  "), "{report}");
}

#[test]
fn a_sample_is_shown_without_a_run() {
    let place = Place::with_text_model();
    place.write(
        "chat.jsonl",
        r#"{"messages": [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am Pip."}]}"#,
    );
    let text = place
        .run("train model chat.jsonl --show-sample 0 --seq 64")
        .text();
    assert!(text.contains("I am Pip."), "{text}");
    let text = place.run("train demo --show-sample 1 --seq 64").text();
    assert!(text.starts_with("row 1: 64 tokens, "), "{text}");
}

#[test]
fn text_is_trained_on_with_the_models_tokenizer() {
    let place = Place::with_text_model();
    place.write(
        "text.jsonl",
        "{\"text\": \"Once upon a time there was a little bird.\"}\n",
    );
    let lines = place
        .run("train model text.jsonl --out out --seq 16 --steps 1 --json")
        .json_lines();
    assert_eq!(events(&lines, "step").len(), 1);
    assert_eq!(
        place.bytes("out/tokenizer.json"),
        place.bytes("model/tokenizer.json")
    );
    place
        .run("generate out --prompt Once --max-tokens 2")
        .text();
}
