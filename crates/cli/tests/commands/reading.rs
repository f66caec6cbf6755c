//! `eval`, `generate` and `logits`.

use serde_json::{Value, json};

use crate::program::Place;

/// Losses that are printed with six digits, or summed in another order.
const LOSS_TOLERANCE: f64 = 1e-5;

#[test]
fn eval_prints_loss_perplexity_and_targets() {
    let place = Place::with_tiny();
    let text = place.run("eval model rows.jsonl --seq 32").text();
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][0], "loss");
    assert_eq!(lines[1][0], "perplexity");
    assert_eq!(lines[2], ["targets", "620", "tokens", "in", "20", "rows"]);

    let json = place
        .run("eval model rows.jsonl --seq 32 --threads 1 --json")
        .json();
    let loss = json["loss"].as_f64().unwrap();
    assert_eq!(json["num_targets"], 620);
    assert_eq!(json["num_rows"], 20);
    assert!((loss - lines[0][1].parse::<f64>().unwrap()).abs() < LOSS_TOLERANCE);
    assert!((loss.exp() / json["perplexity"].as_f64().unwrap() - 1.0).abs() < LOSS_TOLERANCE);
    // Random weights know nothing: the loss is near that of a guess, ln 512.
    assert!((loss - 512.0_f64.ln()).abs() < 0.5, "{loss}");
}

#[test]
fn logits_prints_the_likeliest_or_all_of_them() {
    let place = Place::with_tiny();
    let json = place.run("logits model --ids 1,2,3 --json").json();
    let rows = json["logits"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row.as_array().unwrap().len() == 512));

    let text = place.run("logits model --ids 1,2,3").text();
    let last: Vec<_> = text.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(last[..2], ["2", "3"]);
    let likeliest: usize = last[2].parse().unwrap();
    let value = |row: &Value, at: usize| row[at].as_f64().unwrap();
    assert!((0..512).all(|at| value(&rows[2], at) <= value(&rows[2], likeliest)));
}

#[test]
fn logits_are_written_for_numpy() {
    let place = Place::with_tiny();
    let ran = place.run("logits model --ids 7,8 --npy out.npy");
    assert_eq!(ran.stderr, "wrote f32 [2, 512] to out.npy\n");
    assert_eq!(ran.text(), "");
    let file = place.bytes("out.npy");
    let data = &file[file.len() - 2 * 512 * 4..];
    let first = f32::from_le_bytes(data[..4].try_into().unwrap());

    let json = place.run("logits model --ids 7,8 --json").json();
    let same: f32 = json["logits"][0][0].to_string().parse().unwrap();
    assert_eq!(first.to_bits(), same.to_bits());
}

#[test]
fn generate_prints_the_text_that_its_json_holds() {
    let place = Place::with_text_model();
    let words = [
        "generate",
        "model",
        "--max-tokens",
        "12",
        "--prompt",
        "Who are you?",
    ];
    let run = |more: &[&str]| {
        let mut command = place.command("");
        let output = command.args(words).args(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let json: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    let text = json["text"].as_str().unwrap();
    assert_eq!(run(&[]), format!("{text}\n"));
    let num_new = json["new_ids"].as_array().unwrap().len();
    match json["finish"].as_str().unwrap() {
        "length" => assert_eq!(num_new, 12),
        finish => assert_eq!(finish, "end_of_text"),
    }

    let chat: Value = serde_json::from_str(&run(&["--json", "--chat"])).unwrap();
    let len = |value: &Value| value["prompt_ids"].as_array().unwrap().len();
    assert!(len(&chat) > len(&json), "the template adds tokens");
}

#[test]
fn generate_goes_on_from_ids_and_repeats_with_its_seed() {
    let place = Place::with_text_model();
    let run = |seed: u64| {
        let words = "generate model --ids 5,6,7 --max-tokens 8 --temperature 1.5 --json --seed";
        place.run(&format!("{words} {seed}")).json()
    };
    let first = run(1);
    assert_eq!(first["prompt_ids"], json!([5, 6, 7]));
    assert_eq!(first, run(1));
    assert_ne!(first["new_ids"], run(2)["new_ids"]);
}

#[test]
fn a_command_line_that_is_not_understood_ends_with_2() {
    let place = Place::new();
    for words in [
        "",
        "tarin",
        "generate model",
        "generate model --prompt a --ids 1",
        "generate model --prompt a --top-p 0",
        "logits model",
        "train model rows.jsonl",
        "train model rows.jsonl --out out --schedule cosin",
        "init",
        "generate model --ids 1 --max-tokens 0",
        "generate model --ids 1 --max-tokens 18446744073709551615",
        "logits model --ids 1 --threads 18446744073709551615",
        "train model --print-config --json",
        "train model rows.jsonl --show-sample 0 --json",
    ] {
        let ran = place.run(words);
        assert_eq!(ran.code, Some(2), "{words}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{words}");
    }
}

#[test]
fn generate_goes_on_from_ids_without_a_tokenizer_and_says_what_it_holds() {
    let place = Place::with_tiny();
    let found = place
        .run("generate model --ids 1,2,3 --max-tokens 4 --json")
        .json();
    assert_eq!(found["text"], serde_json::Value::Null);
    let ids = found["new_ids"].as_array().unwrap();
    assert!(!ids.is_empty());
    let accounts = found["memory"]["accounts"].as_array().unwrap();
    let peak_mib = |name: &str| {
        let mut accounts = accounts.iter();
        let account = accounts.find(|account| account["name"] == name);
        account.unwrap()["peak_mib"].as_f64().unwrap()
    };
    // Keys and values of 3 + 4 tokens in f32: 3 blocks of 2 heads of 16.
    let expected_bytes = f64::from(7 * 2 * 3 * 2 * 16 * 4);
    let cache_bytes = peak_mib("arena: generation cache") * f64::from(1 << 20);
    // Six buffers, each rounded up to its alignment.
    let most_bytes = expected_bytes + 6.0 * 64.0;
    assert!(cache_bytes >= expected_bytes, "{cache_bytes}");
    assert!(cache_bytes <= most_bytes, "{cache_bytes}");
    assert!(peak_mib("weights") > 0.0);

    let ran = place.run("generate model --ids 1,2,3 --max-tokens 4 --memory");
    assert!(
        ran.stderr.contains("arena: generation cache"),
        "{}",
        ran.stderr
    );
    let listed: Vec<_> = ids.iter().map(ToString::to_string).collect();
    assert_eq!(ran.text(), format!("{}\n", listed.join(",")));
}
