//! What the program takes, by the kernel's figures: each run is a process of its
//! own, so that nothing else is counted.
#![expect(clippy::unwrap_used, reason = "in a test a failure may panic")]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

const MIB: f64 = 1024.0 * 1024.0;

/// Parameters of the 135M shape.
const NUM_PARAMETERS: f64 = 134_515_008.0;

/// Weight, master and moments of a parameter.
const BYTES_PER_PARAMETER: f64 = 12.0;

/// The f32 gradient of the 135M shape's tied table.
const TIED_GRADIENT_MIB: f64 = 108.0;

/// The rest of a run: activations, one bucket's gradient, logits, and the program
/// with its code. Measured: 124 MiB.
const REST_MIB: f64 = 300.0;

/// How far the ledger may be from the kernel's count of anonymous pages. Measured:
/// 0.7 % for one rank of the 135M shape, whose own pages come on top.
const LEDGER_TOLERANCE: f64 = 0.03;

/// Pages that belong to the program and not to the model: threads and their stacks,
/// what the GEMM packs, the allocator's. Measured: 12 MiB with two threads.
const PROGRAM_MIB: f64 = 24.0;

/// What a conversion with two threads may have in writable private pages. Measured on
/// `SmolLM2`'s file with its 49,152 tokens: 24,000 KiB are enough and 16,000 are not. The
/// table converted here is 195 MiB in bf16.
const CONVERT_LIMIT_KIB: u32 = 32 * 1024;

/// A model whose shards outweigh the program: 17 million parameters.
const MIDDLING: &str = r#"{
  "model_type": "llama", "hidden_act": "silu", "hidden_size": 384,
  "intermediate_size": 1024, "num_attention_heads": 6, "num_key_value_heads": 2,
  "num_hidden_layers": 6, "vocab_size": 16000, "max_position_embeddings": 512,
  "rms_norm_eps": 1e-5, "tie_word_embeddings": true
}"#;

fn nestling(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_nestling"))
        .args(arguments)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// A random model and rows of ids.
struct Place {
    folder: TempDir,
    seq: usize,
}

impl Place {
    fn new(preset: &str, vocab: usize, seq: usize, num_rows: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Self { folder, seq };
        nestling(&["init", preset, "--out", &place.path("model")]);
        let lines = (0..num_rows).map(|row| {
            let ids: Vec<_> = (0..seq).map(|at| (row + at * at * 31) % vocab).collect();
            format!("{}\n", json!({ "input_ids": ids }))
        });
        fs::write(place.path("rows.jsonl"), lines.collect::<String>()).unwrap();
        place
    }

    fn path(&self, name: &str) -> String {
        let path = self.folder.path().join(name);
        path.into_os_string().into_string().unwrap()
    }

    /// A run in micro-batches of one row; its events.
    fn train(&self, flags: &[&str]) -> Vec<Value> {
        let out = self.path("out");
        let (model, rows, seq) = (self.path("model"), self.path("rows.jsonl"), self.seq);
        let seq = seq.to_string();
        let fixed = [
            "train",
            &model,
            &rows,
            "--out",
            &out,
            "--json",
            "--seq",
            &seq,
            "--micro-batch",
            "1",
        ];
        let lines = nestling(&[&fixed, flags].concat());
        fs::remove_dir_all(&out).unwrap();
        let lines = lines.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }
}

/// The events of one kind.
fn of_kind<'a>(events: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["event"] == kind)
}

/// The largest resident size of the whole run.
fn peak_mib(events: &[Value]) -> f64 {
    let peaks = of_kind(events, "phase").map(|phase| phase["peak_mib"].as_f64().unwrap());
    peaks.fold(0.0, f64::max)
}

/// Anonymous and shared pages at the end of the last step.
fn held_mib(events: &[Value]) -> f64 {
    let phases: Vec<_> = of_kind(events, "phase").collect();
    let is_step = |phase: &&&Value| phase["phase"].as_str().unwrap().ends_with(" step");
    let last = phases.iter().rfind(is_step).unwrap();
    let pages = |kind: &str| last[kind].as_f64().unwrap();
    pages("anonymous_mib") + pages("shared_mib")
}

/// What all ranks reserved at most.
fn ledger_mib(events: &[Value]) -> f64 {
    let peaks = of_kind(events, "ledger").map(|ledger| ledger["peak_mib"].as_f64().unwrap());
    peaks.sum()
}

#[test]
fn the_135m_shape_trains_in_twelve_bytes_a_parameter_its_tied_gradient_and_300_mib() {
    let place = Place::new("135m", 49_152, 512, 2);
    let budget = BYTES_PER_PARAMETER * NUM_PARAMETERS / MIB + TIED_GRADIENT_MIB + REST_MIB;
    // A second step takes no more than the first: seen once.
    for (clip, steps) in [("off", "2"), ("previous", "1")] {
        let events = place.train(&[
            "--recipe",
            "f32",
            "--clip",
            clip,
            "--global-batch",
            "1",
            "--steps",
            steps,
        ]);
        let (peak, held, ledger) = (peak_mib(&events), held_mib(&events), ledger_mib(&events));
        println!("clip {clip}: peak {peak:.1}, held {held:.1}, ledger {ledger:.1} MiB");
        assert!(peak <= budget, "clip {clip}: {peak:.1} of {budget:.1} MiB");
        let off = (held / ledger - 1.0).abs();
        assert!(
            off <= LEDGER_TOLERANCE,
            "clip {clip}: ledger off by {off:.3}"
        );
    }
}

#[test]
fn three_ranks_together_hold_what_was_planned_for_them() {
    let config = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    fs::write(config.path(), MIDDLING).unwrap();
    let place = Place::new(config.path().to_str().unwrap(), 16_000, 128, 3);
    for recipe in ["f32", "bf16"] {
        let events = place.train(&[
            "--recipe",
            recipe,
            "--clip",
            "exact",
            "--global-batch",
            "3",
            "--ranks",
            "3",
            // The kernel's figures are of a process: here that of all ranks.
            "--rank-mode",
            "threads",
            "--steps",
            "2",
        ]);
        let (peak, held, ledger) = (peak_mib(&events), held_mib(&events), ledger_mib(&events));
        println!("{recipe}: peak {peak:.1}, held {held:.1}, ledger {ledger:.1} MiB");
        assert_eq!(of_kind(&events, "ledger").count(), 3);
        let most = ledger + PROGRAM_MIB;
        assert!(held <= most, "{recipe}: {held:.1} of {most:.1} MiB");
        let least = ledger * (1.0 - LEDGER_TOLERANCE);
        assert!(
            held >= least,
            "{recipe}: {held:.1}, {ledger:.1} MiB planned"
        );
        // Beside what the ranks hold: pages of the program's file.
        assert!(peak <= most + PROGRAM_MIB, "{recipe}: {peak:.1} MiB");
    }
}

/// What a rank may hold beside its shard while it loads. Measured: 3 MiB.
const LOAD_OVERHEAD_MIB: f64 = 64.0;

/// How much more overhead a model of twice the size may have. Measured: 0.3 MiB.
const OVERHEAD_SLOPE_MIB: f64 = 8.0;

/// One rank of a large world loads for real; the files are holes that read as zeros.
#[test]
fn a_rank_holds_little_beside_its_shard_whatever_the_size_of_the_model() {
    let overheads = ["7b", "13b"].map(|preset| {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model").display().to_string();
        nestling(&["init", preset, "--sparse", "--out", &model]);
        let inspect = ["inspect", &model, "--load", "--json", "--cache", "drop"];
        let report = nestling(&[&inspect[..], &["--as-rank", "5", "--of", "64"]].concat());
        let report: Value = serde_json::from_str(&report).unwrap();
        let shard = report["ranks"][0]["shard_bytes"].as_f64().unwrap() / MIB;
        assert!(shard > 180.0, "{report}");
        report["overhead_mib"].as_f64().unwrap()
    });
    for overhead in overheads {
        assert!(overhead < LOAD_OVERHEAD_MIB, "{overheads:?}");
    }
    assert!(
        overheads[1] - overheads[0] < OVERHEAD_SLOPE_MIB,
        "{overheads:?}"
    );
}

/// Every way to read keeps to its staging buffers, also where the dtype changes.
#[test]
fn a_world_holds_little_beside_its_shards_however_it_reads() {
    let place = Place::new("135m", 49152, 8, 1);
    for (way, recipe) in [("own", "f32"), ("host", "f32"), ("root", "bf16")] {
        let model = place.path("model");
        let inspect = ["inspect", &model, "--load", "--json", "--of", "4"];
        let report = nestling(&[&inspect[..], &["--read", way, "--recipe", recipe]].concat());
        let report: Value = serde_json::from_str(&report).unwrap();
        let overhead = report["overhead_mib"].as_f64().unwrap();
        assert!(overhead < LOAD_OVERHEAD_MIB, "{way} {recipe}: {report}");
    }
}

/// Parameters of the 1.1B shape, all of whose tensors are in one file.
const NUM_PARAMETERS_1B: f64 = 1_100_048_384.0;

/// Code, residual, moments and their scales; the first and last block and the tables
/// have no codes and cost the same.
const LEAN_BYTES_PER_PARAMETER: f64 = 4.07;

/// The rest of a run in `fp8-lean` on the 1.1B shape: activations of 512 tokens, one
/// block's gradient in f32, logits, the program.
const LEAN_REST_MIB: f64 = 600.0;

#[test]
fn the_1b_shape_becomes_fp8_while_it_loads_and_trains_in_four_bytes_a_parameter() {
    let place = Place::new("1b", 32_000, 512, 1);
    let model = place.path("model");
    let inspect = ["inspect", &model, "--load", "--json", "--cache", "drop"];
    for recipe in ["fp8", "fp8-lean"] {
        let report = nestling(&[&inspect[..], &["--recipe", recipe]].concat());
        let report: Value = serde_json::from_str(&report).unwrap();
        let overhead = report["overhead_mib"].as_f64().unwrap();
        println!("{recipe}: {overhead:.1} MiB beside the planes");
        assert!(overhead < LOAD_OVERHEAD_MIB, "{recipe}: {report}");
    }
    let lean = ["--recipe", "fp8-lean", "--clip", "previous"];
    let one_step = ["--global-batch", "1", "--steps", "1"];
    let events = place.train(&[&lean[..], &one_step].concat());
    let budget = LEAN_BYTES_PER_PARAMETER * NUM_PARAMETERS_1B / MIB + LEAN_REST_MIB;
    let peak = peak_mib(&events);
    println!("peak {peak:.1} of {budget:.1} MiB");
    assert!(peak <= budget, "{peak:.1} of {budget:.1} MiB");
}

/// A GGUF file whose tensors are holes: `Q8_0` blocks of zeros.
fn sparse_gguf(path: &Path, vocab: u64) {
    let (hidden, blocks) = (256, |len: u64| len / 32 * 34);
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let key = |name: &str, code: u32, value: &[u8]| {
        [&text(name)[..], &code.to_le_bytes(), value].concat()
    };
    let mut keys = vec![
        key("general.architecture", 8, &text("llama")),
        key(
            "llama.attention.layer_norm_rms_epsilon",
            6,
            &1e-5_f32.to_le_bytes(),
        ),
    ];
    for (name, value) in [
        ("attention.head_count", 4_u32),
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 256),
        ("feed_forward_length", 256),
    ] {
        keys.push(key(&format!("llama.{name}"), 4, &value.to_le_bytes()));
    }
    let mut tensors = vec![("token_embd".to_owned(), vec![hidden, vocab])];
    tensors.push(("output_norm".to_owned(), vec![hidden]));
    for part in ["attn_norm", "ffn_norm"] {
        tensors.push((format!("blk.0.{part}"), vec![hidden]));
    }
    for part in [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ] {
        tensors.push((format!("blk.0.{part}"), vec![hidden, hidden]));
    }
    let mut bytes = [&b"GGUF"[..], &3_u32.to_le_bytes()].concat();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((keys.len() as u64).to_le_bytes());
    bytes.extend(keys.concat());
    let mut offset = 0;
    for (name, dims) in &tensors {
        bytes.extend(text(&format!("{name}.weight")));
        bytes.extend((if dims.len() == 1 { 1_u32 } else { 2 }).to_le_bytes());
        bytes.extend(dims.iter().flat_map(|dim: &u64| dim.to_le_bytes()));
        bytes.extend(8_u32.to_le_bytes());
        bytes.extend(u64::to_le_bytes(offset));
        offset += blocks(dims.iter().product()).next_multiple_of(32);
    }
    let data_begin = (bytes.len() as u64).next_multiple_of(32);
    fs::write(path, bytes).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(data_begin + offset).unwrap();
}

/// One block with matrices of 160,000 rows and of 160,000 columns, 78 MiB each in bf16.
const WIDE: &str = r#"{
  "model_type": "llama", "hidden_act": "silu", "hidden_size": 256,
  "intermediate_size": 160000, "num_attention_heads": 2, "num_hidden_layers": 1,
  "vocab_size": 64, "max_position_embeddings": 64, "rms_norm_eps": 1e-5
}"#;

#[test]
fn a_conversion_to_fp8_and_back_holds_no_matrix_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("wide.json"), WIDE).unwrap();
    nestling(&[
        "init",
        &path("wide.json"),
        "--sparse",
        "--out",
        &path("model"),
    ]);
    convert_within_limit(&path("model"), &path("fp8"), "--to fp8 --keep-bf16 none");
    let codes = fs::metadata(path("fp8/model.safetensors")).unwrap();
    assert!(codes.len() > 3 * 160_000 * 256);
    convert_within_limit(&path("fp8"), &path("bf16"), "--to bf16");
}

/// Runs `convert` with two threads in a process to which the kernel gives no more
/// than the limit.
fn convert_within_limit(model: &str, out: &str, flags: &str) {
    let program = env!("CARGO_BIN_EXE_nestling");
    let line = format!(
        "ulimit -d {CONVERT_LIMIT_KIB}; exec {program} convert {model} --out {out} --threads 2 {flags}"
    );
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {stderr}");
}

#[test]
fn a_conversion_holds_no_tensor_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    sparse_gguf(Path::new(&path("model.gguf")), 400_000);
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/assets/model");
    let tokenizer = format!("--tokenizer {}", demo.display());
    convert_within_limit(&path("model.gguf"), &path("narrow"), &tokenizer);
    let weights = fs::metadata(path("narrow/model.safetensors")).unwrap();
    assert!(weights.len() > 400_000 * 256 * 2);
    convert_within_limit(&path("narrow"), &path("wide"), "--to f32");
    convert_within_limit(&path("wide"), &path("again"), "");
}
