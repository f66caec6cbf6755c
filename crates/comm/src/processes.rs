//! Ranks as processes of one host: a launcher starts them, watches them and
//! leaves none behind.
//!
//! ```text
//! launcher   makes the memory file, starts the ranks, waits for all
//! rank       finds the file at its standard input, tells the launcher lines at
//!            its standard output; its standard error is for people
//! ```
//!
//! The file has no name and is gone with the last process that maps it.

use std::fmt::Display;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::num::NonZeroUsize;
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::panic::{self, AssertUnwindSafe};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::hub::{Hub, Seat};
use crate::threads::{Ending, panic_message};
use crate::{ProcessGroup, RankFailure, World};

/// How often the launcher looks at its ranks.
const LOOK: Duration = Duration::from_millis(5);

/// How long ranks may take to end once one has failed; then they are killed.
const GRACE: Duration = Duration::from_secs(1);

/// The ranks that run, for [`kill_ranks`]. Who reaps one holds the lock, so that no
/// number here is that of another process.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<Pid>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills all ranks that this process has started: it is about to end itself.
pub fn kill_ranks() {
    signal_all(&running(), Signal::KILL);
}

fn signal_all(pids: &[Pid], signal: Signal) {
    for &pid in pids {
        // It may have ended already.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// A rank's process.
struct Rank {
    child: Child,
    pid: Pid,
    ended: Option<ExitStatus>,
}

/// All of them; none outlives this.
struct Ranks(Vec<Rank>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in self.0.iter_mut().filter(|rank| rank.ended.is_none()) {
            let mut running = running();
            drop(rank.child.kill());
            drop(rank.child.wait());
            running.retain(|&pid| pid != rank.pid);
        }
    }
}

impl Ranks {
    fn start(
        &mut self,
        world: World,
        mut command: Command,
        memory: &impl std::os::fd::AsFd,
    ) -> io::Result<()> {
        command
            .stdin(Stdio::from(memory.as_fd().try_clone_to_owned()?))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Signals of a terminal reach the launcher alone, which passes them on.
            .process_group(0);
        let mut running = running();
        let child = command.spawn()?;
        let raw = i32::try_from(child.id()).expect("a process number fits");
        let pid = Pid::from_raw(raw).expect("a process number is positive");
        running.push(pid);
        debug_assert_eq!(self.0.len(), world.rank(), "ranks start in order");
        self.0.push(Rank {
            child,
            pid,
            ended: None,
        });
        Ok(())
    }

    /// Takes note of who has ended; gives the rank and status of each that ended now.
    fn reap(&mut self) -> Vec<(usize, ExitStatus)> {
        let mut ended = Vec::new();
        let mut running = running();
        let living = self.0.iter_mut().enumerate();
        for (number, rank) in living.filter(|(_, rank)| rank.ended.is_none()) {
            if let Ok(Some(status)) = rank.child.try_wait() {
                rank.ended = Some(status);
                running.retain(|&pid| pid != rank.pid);
                ended.push((number, status));
            }
        }
        ended
    }

    /// Signals all that have not ended.
    fn signal(&self, signal: Signal) {
        let _running = running();
        let living = self.0.iter().filter(|rank| rank.ended.is_none());
        let pids: Vec<_> = living.map(|rank| rank.pid).collect();
        signal_all(&pids, signal);
    }

    fn are_over(&self) -> bool {
        self.0.iter().all(|rank| rank.ended.is_some())
    }
}

/// Starts `command` once a rank and waits for all; hands each line of a rank's
/// standard output to `on_line`. Once `stop` is set, all get SIGTERM, once.
///
/// The processes call [`run_rank`]. When one of them fails or ends, the others are
/// told what of and have a second to end; then they are killed. The failure that
/// came first is returned, always as [`RankFailure::Ended`].
///
/// Call this on a thread that lives as long as the program: ranks are killed by the
/// system when the thread that started them ends.
pub fn run_processes(
    world_size: NonZeroUsize,
    command: &dyn Fn(World) -> Command,
    stop: &AtomicBool,
    on_line: &(dyn Fn(usize, &str) + Sync),
) -> Result<(), RankFailure<std::convert::Infallible>> {
    let not_started = |rank, source| RankFailure::NotStarted { rank, source };
    let (hub, memory) =
        Hub::in_file(world_size.get()).map_err(|error| not_started(0, io::Error::other(error)))?;
    let mut ranks = Ranks(Vec::new());
    for world in World::all(world_size) {
        ranks
            .start(world, command(world), &memory)
            .map_err(|source| not_started(world.rank(), source))?;
    }
    drop(memory);
    let pipes = ranks.0.iter_mut();
    let pipes = pipes.map(|rank| (rank.child.stdout.take(), rank.child.stderr.take()));
    let pipes: Vec<_> = pipes.collect();
    thread::scope(|scope| {
        for (rank, (told, noted)) in pipes.into_iter().enumerate() {
            scope.spawn(move || each_line(told, |line| on_line(rank, line)));
            scope.spawn(move || {
                each_line(noted, |line| {
                    // Nobody is left to tell if standard error is closed.
                    drop(writeln!(io::stderr(), "[rank {rank}] {line}"));
                });
            });
        }
        supervise(&hub, &mut ranks, stop);
    });
    match hub.failure() {
        None => Ok(()),
        Some(failure) => Err(RankFailure::Ended {
            rank: failure.rank,
            message: failure.message,
        }),
    }
}

/// Hands on lines until the pipe is closed, whatever bytes they are.
fn each_line(pipe: Option<impl Read>, mut act: impl FnMut(&str)) {
    let Some(pipe) = pipe else { return };
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    while pipe.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
        act(String::from_utf8_lossy(&line).trim_end_matches('\n'));
        line.clear();
    }
}

/// Waits for all ranks to end and ends those that would not.
fn supervise(hub: &Hub, ranks: &mut Ranks, stop: &AtomicBool) {
    let mut is_stopping = false;
    let mut failed: Option<Instant> = None;
    loop {
        for (rank, status) in ranks.reap() {
            // Keeps what the rank itself has said before.
            if let Some(message) = fault(status, hub.is_done(rank)) {
                hub.fail(rank, &message);
            }
        }
        if ranks.are_over() {
            return;
        }
        if !is_stopping && stop.load(Relaxed) {
            is_stopping = true;
            ranks.signal(Signal::TERM);
        }
        if hub.failure().is_some() {
            let since = *failed.get_or_insert_with(Instant::now);
            if since.elapsed() > GRACE {
                ranks.signal(Signal::KILL);
            }
        }
        thread::sleep(LOOK);
    }
}

/// What is wrong with how a rank ended.
fn fault(status: ExitStatus, is_done: bool) -> Option<String> {
    match (status.signal(), status.code()) {
        (Some(signal), _) => Some(match signal_name(signal) {
            Some(name) => format!("was killed by {name}"),
            None => format!("was killed by signal {signal}"),
        }),
        (None, Some(0)) if is_done => None,
        (None, code) => Some(format!(
            "exited with code {} before its end",
            code.unwrap_or_default()
        )),
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    let names = [
        (Signal::KILL, "SIGKILL, as when memory runs out"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::BUS, "SIGBUS"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::TERM, "SIGTERM"),
        (Signal::INT, "SIGINT"),
        (Signal::HUP, "SIGHUP"),
        (Signal::ILL, "SIGILL"),
    ];
    let mut names = names.into_iter();
    names.find_map(|(named, name)| (named.as_raw() == signal).then_some(name))
}

/// Runs a rank of a group whose launcher, the process `launcher`, has started this
/// process. The rank ends with its launcher.
///
/// An error or a panic of `rank_main` ends the waits of all other ranks.
pub fn run_rank<T, E: Display>(
    world: World,
    launcher: u32,
    deadline: Duration,
    rank_main: impl FnOnce(ProcessGroup) -> Result<T, E>,
) -> Result<T, RankFailure<E>> {
    let rank = world.rank();
    let not_started = |source: io::Error| RankFailure::NotStarted { rank, source };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| not_started(errno.into()))?;
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if u32::try_from(parent) != Ok(launcher) {
        let gone = format!("its launcher, process {launcher}, is not there");
        return Err(not_started(io::Error::other(gone)));
    }
    let memory = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(not_started)?;
    let hub = Hub::join(memory, world.world_size())
        .map_err(|error| not_started(io::Error::other(error)))?;
    let hub = Arc::new(hub);
    let group = ProcessGroup::new(Seat::new(Arc::clone(&hub), world, deadline));
    let ending = match panic::catch_unwind(AssertUnwindSafe(|| rank_main(group))) {
        Ok(Ok(result)) => {
            hub.done(rank);
            return Ok(result);
        }
        Ok(Err(error)) => Ending::Error(error),
        Err(payload) => Ending::Panic(panic_message(payload.as_ref())),
    };
    hub.fail(rank, &ending.message());
    Err(match ending {
        Ending::Error(source) => RankFailure::Failed { rank, source },
        Ending::Panic(message) => RankFailure::Panicked { rank, message },
    })
}
