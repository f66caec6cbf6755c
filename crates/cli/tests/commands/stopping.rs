//! Ctrl-C and SIGTERM while a run goes on.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{Place, rows};

/// A run whose events are read one by one.
pub(crate) struct Running {
    pub(crate) child: Child,
    events: BufReader<ChildStdout>,
    notes: BufReader<ChildStderr>,
}

impl Running {
    pub(crate) fn start(place: &Place, words: &str) -> Self {
        Self::spawn(place.command(words))
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            events: BufReader::new(child.stdout.take().unwrap()),
            notes: BufReader::new(child.stderr.take().unwrap()),
            child,
        }
    }

    /// Reads events up to the first that contains `part`.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, part: &str) {
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            let len = self.events.read_line(&mut line).unwrap();
            assert!(len > 0, "the run ended without {part}");
        }
    }

    /// Reads a line of standard error that begins with `part`.
    #[track_caller]
    pub(crate) fn wait_for_note(&mut self, part: &str) {
        let mut note = String::new();
        self.notes.read_line(&mut note).unwrap();
        assert!(note.starts_with(part), "{note}");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// The rest of the events, the rest of standard error, and the status.
    pub(crate) fn finish(mut self) -> (String, String, std::process::ExitStatus) {
        let (mut events, mut notes) = (String::new(), String::new());
        self.events.read_to_string(&mut events).unwrap();
        self.notes.read_to_string(&mut notes).unwrap();
        (events, notes, self.child.wait().unwrap())
    }
}

#[track_caller]
fn stops(signal: Signal, code: i32, ranks: usize) {
    let place = Place::with_tiny();
    let words = "train model rows.jsonl --out out --seq 32 --steps 1000000 --json";
    let mut run = Running::start(&place, &format!("{words} --ranks {ranks}"));
    run.wait_for("\"event\":\"step\"");
    run.signal(signal);
    let (events, notes, status) = run.finish();
    assert_eq!(status.code(), Some(code), "{notes}");
    assert!(events.contains("\"event\":\"stopped\""), "{events}");
    assert!(events.contains("\"event\":\"saved\""), "{events}");

    let notes: Vec<_> = notes.lines().collect();
    assert!(
        notes[0].starts_with("stopping after this step"),
        "{notes:?}"
    );
    let kept = notes[1];
    assert!(kept.starts_with("stopped after step "), "{kept}");
    assert!(
        kept.ends_with(" of 1000000; out holds the model as of that step"),
        "{kept}"
    );
    let trained = place.run("logits out --ids 1,2 --json").json();
    let untrained = place.run("logits model --ids 1,2 --json").json();
    assert_ne!(trained, untrained);
}

#[test]
fn ctrl_c_ends_the_run_with_a_whole_model() {
    stops(Signal::INT, 130, 1);
}

#[test]
fn sigterm_ends_the_run_with_a_whole_model() {
    stops(Signal::TERM, 143, 1);
}

#[test]
fn a_signal_stops_ranks_that_are_processes_together() {
    stops(Signal::INT, 130, 2);
    stops(Signal::TERM, 143, 3);
}

#[test]
fn a_second_ctrl_c_ends_the_program_at_once() {
    let place = Place::with_tiny();
    place.write("rows.jsonl", &rows(256, 512));
    // A step of 131072 tokens: far longer than two signals take.
    let words = "train model rows.jsonl --out out --seq 512 --global-batch 256 --steps 9 --json";
    let mut run = Running::start(&place, words);
    // The end of `prepare` is the beginning of the first step.
    run.wait_for("\"phase\":\"prepare\"");
    run.signal(Signal::INT);
    run.wait_for_note("stopping after this step");
    run.signal(Signal::INT);
    let (events, _, status) = run.finish();
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()));
    assert!(!events.contains("\"event\":\"saved\""), "{events}");
    place.has_no_model("out");
}

#[test]
fn ctrl_c_while_data_are_prepared_ends_at_once_and_leaves_nothing() {
    let place = Place::with_tiny();
    // Far more lines than are read before the signal comes.
    place.write("rows.jsonl", &rows(1, 32).repeat(400_000));
    let words = "train model rows.jsonl --out out --seq 32 --steps 9 --json";
    let run = Running::start(&place, words);
    let began = place.path("out/run/config.toml");
    while !began.exists() {
        std::thread::yield_now();
    }
    run.signal(Signal::INT);
    let (events, notes, status) = run.finish();
    assert_eq!(status.code(), Some(130), "{notes}");
    assert_eq!(events, "");
    let last = notes.lines().last().unwrap();
    assert_eq!(last, "stopped before the first step; nothing was kept");
    assert!(!place.path("out").exists());
}

#[test]
fn sigterm_removes_the_temporary_files_of_an_evaluation() {
    let place = Place::with_tiny();
    place.write("rows.jsonl", &rows(20_000, 512));
    let temporary = place.path("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let mut command = place.command("eval model rows.jsonl --seq 512");
    command.env("TMPDIR", &temporary).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let num_files = || std::fs::read_dir(&temporary).unwrap().count();
    while num_files() == 0 {
        std::thread::yield_now();
    }
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
    assert_eq!(num_files(), 0);
}

/// A run that was killed leaves its log; the next one keeps it.
#[test]
fn the_log_of_a_failed_run_is_moved_away_by_the_next() {
    let place = Place::with_tiny();
    let words = "train model rows.jsonl --out out --seq 32 --steps 1000000 --json";
    let mut first = Running::start(&place, words);
    first.wait_for("\"event\":\"step\"");
    let run = "train model rows.jsonl --out out --seq 32 --steps 1";
    let error = place.run(run).error();
    assert_eq!(error, "another run is going on in `out`");
    first.signal(Signal::KILL);
    first.finish();
    let ran = place.run(run);
    let warning = "warning: the log of the failed run before is in `out/failed-run-1`";
    assert!(ran.stderr.contains(warning), "{}", ran.stderr);
    ran.text();
    let log = place.read("out/failed-run-1/metrics.jsonl");
    assert!(log.contains("\"event\":\"step\""), "{log}");
    assert!(place.path("out/config.json").exists());
    assert!(!place.path("out/.saving").exists());
    let error = place.run(run).error();
    assert!(error.contains("out folder `out` is not empty"), "{error}");
}

/// Stops a command while it writes to `out`, which is then gone.
#[track_caller]
fn leaves_nothing(place: &Place, words: &str, signal: Signal, code: i32) {
    let run = Running::start(place, words);
    while !place.path("out/.saving").exists() {
        std::thread::yield_now();
    }
    run.signal(signal);
    let (text, notes, status) = run.finish();
    assert_eq!(status.code(), Some(code), "{notes}");
    assert_eq!(
        (text.as_str(), notes.as_str()),
        ("", "stopped; nothing was kept\n")
    );
    assert!(!place.path("out").exists());
}

#[test]
fn a_signal_leaves_nothing_of_what_init_and_convert_were_writing() {
    let place = Place::new();
    // 360 million numbers to make: far more than there are before the signal.
    leaves_nothing(&place, "init 360m --out out", Signal::INT, 130);
    place.run("init 360m --sparse --out model").text();
    let words = "convert model --to fp8 --out out --threads 1";
    leaves_nothing(&place, words, Signal::TERM, 143);
}
