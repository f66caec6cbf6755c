//! Ranks that are processes: the same numbers as threads, and nobody left behind.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::program::Place;
use crate::stopping::Running;

const RUN: &str = "train model rows.jsonl --out out --seq 32 --json";
/// The promise is one second; a busy machine may need more to be seen at all.
const PROMPT: Duration = Duration::from_secs(20);

/// The processes of a run's ranks, by rank.
fn rank_pids(launcher: u32) -> Vec<Pid> {
    let mut ranks = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let read = |name| fs::read(entry.path().join(name)).unwrap_or_default();
        let status = String::from_utf8_lossy(&read("status")).into_owned();
        if !status.contains(&format!("\nPPid:\t{launcher}\n")) {
            continue;
        }
        let arguments = read("cmdline");
        let task = arguments
            .split(|&byte| byte == 0)
            .nth(2)
            .unwrap_or_default();
        let Ok(task) = serde_json::from_slice::<Value>(task) else {
            continue;
        };
        let pid: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
        ranks.push((task["rank"].as_u64().unwrap(), Pid::from_raw(pid).unwrap()));
    }
    ranks.sort_by_key(|&(rank, _)| rank);
    ranks.into_iter().map(|(_, pid)| pid).collect()
}

/// Waits until none of the processes is there.
#[track_caller]
fn are_gone(pids: &[Pid]) {
    let start = Instant::now();
    while pids.iter().any(|&pid| test_kill_process(pid).is_ok()) {
        assert!(start.elapsed() < PROMPT, "a rank is left behind");
        std::thread::yield_now();
    }
}

fn staged(place: &Place) -> PathBuf {
    place.path("out/.saving")
}

/// A line without what differs from run to run.
fn timeless(mut event: Value) -> Value {
    let fields = event.as_object_mut().unwrap();
    fields.retain(|key, _| !key.contains("second"));
    event
}

#[test]
fn processes_and_threads_give_the_same_bits() {
    for (ranks, recipe) in [(2, "f32"), (3, "bf16"), (4, "fp8")] {
        let mut runs = ["threads", "processes"].map(|mode| {
            let place = Place::with_tiny();
            let words = format!(
                "{RUN} --steps 3 --ranks {ranks} --threads 1 --recipe {recipe} \
                 --eval rows.jsonl --rank-mode {mode}"
            );
            let lines = place.run(&words).json_lines();
            let told = |event: &Value| ["step", "eval"].iter().any(|name| event["event"] == *name);
            let told: Vec<_> = lines.into_iter().filter(told).map(timeless).collect();
            let weights = fs::read(place.path("out/model.safetensors")).unwrap();
            (told, weights)
        });
        let [threads, processes] = &mut runs;
        assert_eq!(threads.0.len(), 5, "three steps and two evaluations");
        assert_eq!(threads.0, processes.0, "{ranks} ranks, {recipe}");
        assert!(threads.1 == processes.1, "{ranks} ranks, {recipe}: weights");
    }
}

#[test]
fn a_killed_rank_ends_the_run_with_its_name() {
    for (victim, after) in [
        (0, "\"event\":\"start\""),
        (1, "\"event\":\"start\""),
        (0, "\"event\":\"step\""),
        (2, "\"event\":\"step\""),
        (1, "\"event\":\"saved\""),
    ] {
        let place = Place::with_tiny();
        let words = format!("{RUN} --steps 1000000 --save-every 2 --ranks 3");
        let mut run = Running::start(&place, &words);
        run.wait_for(after);
        let mut pids = Vec::new();
        while pids.len() < 3 {
            pids = rank_pids(run.child.id());
        }
        kill_process(pids[victim], Signal::KILL).unwrap();
        let (_, notes, status) = run.finish();
        assert_eq!(status.code(), Some(1), "{notes}");
        let error = notes.lines().last().unwrap();
        let expected = format!("error: rank {victim} of 3: was killed by SIGKILL");
        assert!(error.starts_with(&expected), "{notes}");
        assert!(error.contains("steps were completed"), "{error}");
        are_gone(&pids);
        assert!(!staged(&place).exists());
        place.has_no_model("out");
    }
}

/// A rank that hangs is not seen to end; the others miss it.
#[test]
fn a_stopped_rank_is_named_after_the_deadline() {
    let place = Place::with_tiny();
    let words = format!("{RUN} --steps 1000000 --ranks 3 --deadline 3");
    let mut run = Running::start(&place, &words);
    run.wait_for("\"event\":\"step\"");
    let pids = rank_pids(run.child.id());
    let start = Instant::now();
    kill_process(pids[1], Signal::STOP).unwrap();
    let (_, notes, status) = run.finish();
    assert_eq!(status.code(), Some(1), "{notes}");
    assert!(start.elapsed() >= Duration::from_secs(3));
    assert!(start.elapsed() < Duration::from_secs(3) + PROMPT);
    let error = notes.lines().last().unwrap();
    assert!(error.contains("waited 3."), "{error}");
    assert!(error.contains("for rank(s) [1]"), "{error}");
    are_gone(&pids);
    assert!(!staged(&place).exists());
}

#[test]
fn ranks_end_with_their_launcher() {
    let place = Place::with_tiny();
    let mut run = Running::start(&place, &format!("{RUN} --steps 1000000 --ranks 3"));
    run.wait_for("\"event\":\"step\"");
    let pids = rank_pids(run.child.id());
    assert_eq!(pids.len(), 3);
    run.signal(Signal::KILL);
    run.child.wait().unwrap();
    are_gone(&pids);
}

#[test]
fn a_second_ctrl_c_leaves_no_rank() {
    let place = Place::with_tiny();
    place.write("rows.jsonl", &crate::program::rows(256, 512));
    let words = "train model rows.jsonl --out out --seq 512 --global-batch 256 --json";
    let mut run = Running::start(&place, &format!("{words} --steps 9 --ranks 2"));
    run.wait_for("\"phase\":\"prepare\"");
    let pids = rank_pids(run.child.id());
    run.signal(Signal::INT);
    run.wait_for_note("stopping after this step");
    run.signal(Signal::INT);
    let (events, _, status) = run.finish();
    assert!(!status.success());
    assert!(!events.contains("\"event\":\"saved\""), "{events}");
    are_gone(&pids);
    assert!(!staged(&place).exists());
    place.has_no_model("out");
}

#[test]
fn a_file_beyond_the_limit_is_an_error() {
    let place = Place::with_tiny();
    let train = place.command("train model rows.jsonl --out out --seq 32 --steps 1 --ranks 2");
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -f 1; exec \"$@\"", "sh"]);
    limited.arg(train.get_program()).args(train.get_args());
    limited.current_dir(train.get_current_dir().unwrap());
    let output = limited.output().unwrap();
    let notes = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{notes}");
    assert!(notes.contains("File too large"), "{notes}");
    place.has_no_model("out");
}

#[test]
fn a_rank_that_no_run_has_started_says_so() {
    let place = Place::new();
    let error = place.run("rank {}").error();
    assert!(error.contains("of a rank"), "{error}");
}
