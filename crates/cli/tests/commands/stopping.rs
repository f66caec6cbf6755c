//! Ctrl-C and SIGTERM while a run goes on.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStderr, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{Place, rows};

/// A run whose events are read one by one.
struct Running {
    child: Child,
    events: BufReader<ChildStdout>,
    notes: BufReader<ChildStderr>,
}

impl Running {
    fn start(place: &Place, words: &str) -> Self {
        let mut command = place.command(words);
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
    fn wait_for(&mut self, part: &str) {
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            let len = self.events.read_line(&mut line).unwrap();
            assert!(len > 0, "the run ended without {part}");
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// The rest of the events, the rest of standard error, and the status.
    fn finish(mut self) -> (String, String, std::process::ExitStatus) {
        let (mut events, mut notes) = (String::new(), String::new());
        self.events.read_to_string(&mut events).unwrap();
        self.notes.read_to_string(&mut notes).unwrap();
        (events, notes, self.child.wait().unwrap())
    }
}

#[track_caller]
fn stops(signal: Signal, code: i32) {
    let place = Place::with_tiny();
    let words = "train model rows.jsonl --out out --seq 32 --steps 1000000 --json";
    let mut run = Running::start(&place, words);
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
    stops(Signal::INT, 130);
}

#[test]
fn sigterm_ends_the_run_with_a_whole_model() {
    stops(Signal::TERM, 143);
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
    let mut note = String::new();
    run.notes.read_line(&mut note).unwrap();
    assert!(note.starts_with("stopping after this step"), "{note}");
    run.signal(Signal::INT);
    let (events, _, status) = run.finish();
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()));
    assert!(!events.contains("\"event\":\"saved\""), "{events}");
    place.has_no_model("out");
}
