//! Ranks that something else has started, as torchrun, mpirun and srun do: each with the
//! same command and with variables that say which it is.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::program::Place;
use crate::stopping::Running;

const RUN: &str = "train model rows.jsonl --out out --seq 32 --threads 1 --json";
/// The promise is ten seconds; a busy machine may need more.
const PROMPT: Duration = Duration::from_secs(30);

/// A port that nobody listens on.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The command `words` as rank `rank` of `world_size`.
fn as_rank(place: &Place, words: &str, rank: usize, world_size: usize, port: u16) -> Command {
    let mut command = place.command(words);
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", world_size.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string());
    command
}

/// Starts every rank.
fn start(place: &Place, words: &str, world_size: usize) -> Vec<Running> {
    let port = free_port();
    let ranks = 0..world_size;
    ranks
        .map(|rank| Running::spawn(as_rank(place, words, rank, world_size, port)))
        .collect()
}

/// The last line of standard error of a rank that failed.
#[track_caller]
fn error(rank: Running) -> String {
    let (_, notes, status) = rank.finish();
    assert_eq!(status.code(), Some(1), "{notes}");
    notes.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn ranks_that_meet_train_as_those_of_one_command() {
    let place = Place::with_tiny();
    let words = format!("{RUN} --steps 3 --recipe fp8");
    for rank in start(&place, &words, 3) {
        let (_, notes, status) = rank.finish();
        assert!(status.success(), "{notes}");
    }
    let met = fs::read(place.path("out/model.safetensors")).unwrap();
    let words = words.replace("--out out ", "--out other ");
    place.run(&format!("{words} --ranks 3")).text();
    assert!(met == place.bytes("other/model.safetensors"));
    let mut left: Vec<_> = fs::read_dir(place.path("out/run"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["config.toml", "metrics.jsonl"]);
}

/// Case LA02.
#[test]
fn a_rank_that_finds_nobody_says_where() {
    let place = Place::with_tiny();
    let port = free_port();
    let start = Instant::now();
    let words = format!("{RUN} --meet-timeout 1");
    let error = error(Running::spawn(as_rank(&place, &words, 1, 2, port)));
    assert!(start.elapsed() < PROMPT);
    let expected = format!("error: rank 1 found nobody at port {port} of 127.0.0.1 within 1");
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn a_rank_that_finds_somebody_else_says_where() {
    let place = Place::with_tiny();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let words = format!("{RUN} --meet-timeout 1");
    let error = error(Running::spawn(as_rank(&place, &words, 1, 2, port)));
    let expected = format!("error: rank 1 has lost rank 0 at port {port} of 127.0.0.1: no answer");
    assert!(error.starts_with(&expected), "{error}");
}

/// One after the other they would take longer than the meeting may.
#[test]
fn strangers_do_not_keep_ranks_apart() {
    let place = Place::with_tiny();
    let port = free_port();
    let words = format!("{RUN} --steps 1 --meet-timeout 30");
    let first = Running::spawn(as_rank(&place, &words, 0, 2, port));
    let connect = || TcpStream::connect(("127.0.0.1", port)).ok();
    let mut strangers: Vec<_> = std::iter::repeat_with(connect).flatten().take(60).collect();
    for (number, stranger) in strangers.iter_mut().enumerate() {
        let said = ["", "{\"token\":", "GET / HTTP/1.1\r\n\r\n"][number % 3];
        stranger.write_all(said.as_bytes()).unwrap();
    }
    let second = Running::spawn(as_rank(&place, &words, 1, 2, port));
    for rank in [first, second] {
        let (_, notes, status) = rank.finish();
        assert!(status.success(), "{notes}");
    }
}

#[test]
fn more_ranks_than_can_be_are_not_waited_for() {
    let place = Place::with_tiny();
    let rank = as_rank(&place, RUN, 0, usize::MAX, free_port());
    let error = error(Running::spawn(rank));
    assert!(error.contains("`ranks`: expected at most 1024"), "{error}");
    assert!(!place.path("out").exists());
}

/// Case LA12.
#[test]
fn ranks_say_who_did_not_come() {
    let place = Place::with_tiny();
    let port = free_port();
    let words = format!("{RUN} --meet-timeout 3");
    let ranks = (0..3).map(|rank| Running::spawn(as_rank(&place, &words, rank, 4, port)));
    for rank in ranks.collect::<Vec<_>>() {
        let error = error(rank);
        assert!(error.contains("rank(s) [3] of 4 did not come"), "{error}");
    }
    assert!(!place.path("out").exists());
}

/// Case LA01.
#[test]
fn a_port_in_use_is_named_with_a_free_one() {
    let place = Place::with_tiny();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = error(Running::spawn(as_rank(&place, RUN, 0, 2, port)));
    let expected = format!("error: port {port} of 127.0.0.1 is in use; MASTER_PORT says another");
    assert!(error.starts_with(&expected), "{error}");
}

/// Case LA13, and what else must be the same.
#[test]
fn ranks_that_differ_are_told_both_sides() {
    let place = Place::with_tiny();
    for (other, parts) in [
        ((RUN, 1, 3), ["is one of 3 ranks", "is one of 2 ranks"]),
        ((RUN, 0, 2), ["is in use", "MASTER_PORT"]),
        (
            (&format!("{RUN} --lr 0.5"), 1, 2),
            ["`lr = 0.5`", "`lr = 0.00002`"],
        ),
        (
            (&RUN.replace("--out out ", "--out elsewhere "), 1, 2),
            ["`out = elsewhere`", "`out = out`"],
        ),
    ] {
        let (words, rank, world_size) = other;
        let port = free_port();
        let mut first = Running::spawn(as_rank(&place, RUN, 0, 2, port));
        if rank == 0 {
            // The port is that of the rank that came first.
            std::thread::sleep(Duration::from_secs(1));
        }
        let second = Running::spawn(as_rank(&place, words, rank, world_size, port));
        let second = error(second);
        for part in parts {
            assert!(second.contains(part), "{second}");
        }
        if rank == 0 {
            first.child.kill().unwrap();
            first.finish();
            continue;
        }
        let first = error(first);
        for part in parts {
            assert!(first.contains(part), "{first}");
        }
    }
}

#[test]
fn an_error_before_the_run_ends_all_ranks() {
    let place = Place::with_tiny();
    place.write("rows.jsonl", "no json\n");
    for rank in start(&place, RUN, 3) {
        let error = error(rank);
        assert!(error.contains("rows.jsonl"), "{error}");
    }
    assert!(!place.path("out").exists());
}

#[test]
fn other_numbers_of_ranks_are_refused() {
    let place = Place::with_tiny();
    let words = format!("{RUN} --ranks 4");
    let error = error(Running::spawn(as_rank(&place, &words, 0, 2, free_port())));
    let expected = "error: the launch contradicts itself: ranks is 4, but torchrun has started 2";
    assert!(error.starts_with(expected), "{error}");
}

/// Case LA05, for each rank that can die.
#[test]
fn a_killed_rank_ends_all_that_met() {
    for victim in 0..3 {
        let place = Place::with_tiny();
        let words = format!("{RUN} --steps 1000000");
        let mut ranks = start(&place, &words, 3);
        ranks[0].wait_for("\"event\":\"step\"");
        let start = Instant::now();
        ranks[victim].signal(Signal::KILL);
        for (number, rank) in ranks.into_iter().enumerate() {
            let (_, notes, status) = rank.finish();
            if number == victim {
                continue;
            }
            assert_eq!(status.code(), Some(1), "rank {number}: {notes}");
            let error = notes.lines().last().unwrap();
            assert!(error.contains(&format!("rank {victim}")), "{error}");
        }
        assert!(start.elapsed() < PROMPT);
        if victim > 0 {
            // Nobody cleans up after rank 0's process but the next run.
            place.has_no_model("out");
        }
    }
}

#[test]
fn a_signal_to_one_rank_stops_all_at_a_step() {
    for asked in 0..2 {
        let place = Place::with_tiny();
        let mut ranks = start(&place, &format!("{RUN} --steps 1000000"), 2);
        ranks[0].wait_for("\"event\":\"step\"");
        ranks[asked].signal(Signal::TERM);
        let second = ranks.pop().unwrap();
        let (events, notes, status) = ranks.pop().unwrap().finish();
        assert!(events.contains("\"event\":\"saved\""), "{notes}");
        assert_eq!(status.code(), Some(143), "{notes}");
        let (_, notes, status) = second.finish();
        let code = if asked == 1 { Some(143) } else { Some(0) };
        assert_eq!(status.code(), code, "{notes}");
        place.run("logits out --ids 1,2 --json").json();
    }
}
