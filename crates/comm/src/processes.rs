//! Ranks as processes of one host: a launcher starts them, watches them and
//! leaves none behind.
//!
//! ```text
//! launcher   makes the memory file, starts the ranks, waits for all
//! rank       finds the file at its standard input, tells the launcher lines at
//!            its standard output; its standard error is for people
//! guest      a rank that something else has started and that came to a meeting:
//!            gets the file and tells its lines over that connection
//! ```
//!
//! The file has no name and is gone with the last process that maps it.

use std::fmt::Display;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{Shutdown, TcpStream};
use std::num::NonZeroUsize;
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::panic::{self, AssertUnwindSafe};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::hub::{Hub, Seat};
use crate::rendezvous::{Guest, Invitation};
use crate::threads::{Ending, panic_message};
use crate::{LaunchError, ProcessGroup, RankFailure, World};

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
    for &pid in running().iter() {
        // It may have ended already.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// How a rank comes to run.
#[derive(Debug)]
pub enum Start {
    /// As a process of this one.
    Command(Command),
    /// As one that runs already, with its task.
    Guest(Guest, String),
}

/// A rank's process.
struct Rank {
    process: Process,
    has_ended: bool,
}

enum Process {
    Own(Child, Pid),
    /// The connection to one of another's, and whether it was closed there.
    Guest(TcpStream, Arc<AtomicBool>),
}

/// How a rank ended.
enum Ended {
    Exit(ExitStatus),
    /// Its connection was closed.
    Left,
}

impl Rank {
    fn signal(&self, signal: Signal) {
        match &self.process {
            // It may have ended already.
            Process::Own(_, pid) => drop(rustix::process::kill_process(*pid, signal)),
            // It ends itself when it has lost its launcher. Gentler signals it gets from
            // who started it.
            Process::Guest(stream, _) if signal == Signal::KILL => {
                drop(stream.shutdown(Shutdown::Both));
            }
            Process::Guest(..) => {}
        }
    }
}

/// Lines for the launcher, and for people.
type Pipes = [Option<Box<dyn Read + Send>>; 2];

/// All of them; none outlives this.
#[derive(Default)]
struct Ranks {
    ranks: Vec<Rank>,
    pipes: Vec<Pipes>,
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in self.ranks.iter_mut().filter(|rank| !rank.has_ended) {
            let mut running = running();
            rank.signal(Signal::KILL);
            if let Process::Own(child, own) = &mut rank.process {
                drop(child.wait());
                running.retain(|pid| pid != own);
            }
        }
    }
}

impl Ranks {
    /// Starts the next rank.
    fn start(&mut self, start: Start, memory: &impl std::os::fd::AsFd) -> io::Result<()> {
        let (process, pipes) = match start {
            Start::Command(command) => spawn(command, memory)?,
            Start::Guest(guest, task) => greet(guest, task, memory)?,
        };
        self.ranks.push(Rank {
            process,
            has_ended: false,
        });
        self.pipes.push(pipes);
        Ok(())
    }

    /// Takes note of who has ended; gives each that ended now, and how.
    fn reap(&mut self) -> Vec<(usize, Ended)> {
        let mut ended = Vec::new();
        let mut running = running();
        let living = self.ranks.iter_mut().enumerate();
        for (number, rank) in living.filter(|(_, rank)| !rank.has_ended) {
            let how = match &mut rank.process {
                Process::Own(child, own) => child.try_wait().ok().flatten().map(|status| {
                    running.retain(|pid| pid != own);
                    Ended::Exit(status)
                }),
                Process::Guest(_, has_left) => has_left.load(Acquire).then_some(Ended::Left),
            };
            if let Some(how) = how {
                rank.has_ended = true;
                ended.push((number, how));
            }
        }
        ended
    }

    /// Signals all that have not ended.
    fn signal(&self, signal: Signal) {
        let _running = running();
        for rank in self.ranks.iter().filter(|rank| !rank.has_ended) {
            rank.signal(signal);
        }
    }

    fn are_over(&self) -> bool {
        self.ranks.iter().all(|rank| rank.has_ended)
    }
}

fn spawn(mut command: Command, memory: &impl std::os::fd::AsFd) -> io::Result<(Process, Pipes)> {
    command
        .stdin(Stdio::from(memory.as_fd().try_clone_to_owned()?))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Signals of a terminal reach the launcher alone, which passes them on.
        .process_group(0);
    let mut running = running();
    let mut child = command.spawn()?;
    let raw = i32::try_from(child.id()).expect("a process number fits");
    let pid = Pid::from_raw(raw).expect("a process number is positive");
    running.push(pid);
    let told = child.stdout.take().map(|pipe| Box::new(pipe) as Box<_>);
    let noted = child.stderr.take().map(|pipe| Box::new(pipe) as Box<_>);
    Ok((Process::Own(child, pid), [told, noted]))
}

fn greet(
    guest: Guest,
    task: String,
    memory: &impl std::os::fd::AsFd,
) -> io::Result<(Process, Pipes)> {
    let told = guest.start(task, memory)?;
    let stream = told.get_ref().try_clone()?;
    let has_left = Arc::new(AtomicBool::new(false));
    let told = UntilLeft(told, Arc::clone(&has_left));
    Ok((
        Process::Guest(stream, has_left),
        [Some(Box::new(told)), None],
    ))
}

/// What a guest tells; takes note of the end.
struct UntilLeft(BufReader<TcpStream>, Arc<AtomicBool>);

impl Read for UntilLeft {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(bytes);
        match &read {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => self.1.store(true, Release),
            Ok(_) => {}
        }
        read
    }
}

/// Starts every rank, as `start` says, and waits for all; hands each line that a rank
/// tells to `on_line`. Once `stop` is set, all get SIGTERM, once.
///
/// The processes call [`run_rank`], guests [`run_guest`]. When one of them fails or
/// ends, the others are told what of and have a second to end; then they are killed.
/// The failure that came first is returned, always as [`RankFailure::Ended`].
///
/// Call this on a thread that lives as long as the program: ranks are killed by the
/// system when the thread that started them ends.
pub fn run_processes(
    world_size: NonZeroUsize,
    start: &dyn Fn(World) -> Start,
    stop: &AtomicBool,
    on_line: &(dyn Fn(usize, &str) + Sync),
) -> Result<(), RankFailure<std::convert::Infallible>> {
    let not_started = |rank, source| RankFailure::NotStarted { rank, source };
    let (hub, memory) =
        Hub::in_file(world_size.get()).map_err(|error| not_started(0, io::Error::other(error)))?;
    let mut ranks = Ranks::default();
    for world in World::all(world_size) {
        if let Err(source) = ranks.start(start(world), &memory) {
            // Those that have started wait for it.
            hub.fail(world.rank(), &format!("could not be started: {source}"));
            return Err(not_started(world.rank(), source));
        }
    }
    drop(memory);
    let pipes = std::mem::take(&mut ranks.pipes);
    thread::scope(|scope| {
        for (rank, [told, noted]) in pipes.into_iter().enumerate() {
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
        for (rank, how) in ranks.reap() {
            // Keeps what the rank itself has said before.
            if let Some(message) = fault(&how, hub.is_done(rank)) {
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
fn fault(how: &Ended, is_done: bool) -> Option<String> {
    let status = match how {
        Ended::Exit(status) => status,
        Ended::Left if is_done => return None,
        Ended::Left => return Some("closed its connection before its end".to_owned()),
    };
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
    run_at(&Arc::new(hub), world, deadline, rank_main)
}

/// Runs a rank that came to a meeting as a guest. When the launcher is lost, all waits
/// end, and `on_lost` is called if the rank has not ended a second later.
///
/// An error or a panic of `rank_main` ends the waits of all other ranks.
pub fn run_guest<T, E: Display>(
    invitation: &Arc<Invitation>,
    deadline: Duration,
    on_lost: impl FnOnce(LaunchError) + Send + 'static,
    rank_main: impl FnOnce(ProcessGroup) -> Result<T, E>,
) -> Result<T, RankFailure<E>> {
    let world = invitation.world;
    let rank = world.rank();
    let not_started = |source: io::Error| RankFailure::NotStarted { rank, source };
    let memory = invitation.memory.try_clone().map_err(not_started)?;
    let hub = Hub::join(memory, world.world_size())
        .map_err(|error| not_started(io::Error::other(error)))?;
    let hub = Arc::new(hub);
    let is_over = Arc::new(AtomicBool::new(false));
    let watched = (
        Arc::clone(&hub),
        Arc::clone(&is_over),
        Arc::clone(invitation),
    );
    let watch = move || {
        let (hub, is_over, invitation) = watched;
        let lost = invitation.until_lost();
        if !is_over.load(Acquire) {
            hub.fail(rank, &lost.to_string());
            thread::sleep(GRACE);
        }
        if !is_over.load(Acquire) {
            on_lost(lost);
        }
    };
    thread::Builder::new()
        .name("launcher watch".to_owned())
        .spawn(watch)
        .map_err(not_started)?;
    let ended = run_at(&hub, world, deadline, rank_main);
    is_over.store(true, Release);
    ended
}

/// Runs a rank at a hub that other processes are at too.
fn run_at<T, E: Display>(
    hub: &Arc<Hub>,
    world: World,
    deadline: Duration,
    rank_main: impl FnOnce(ProcessGroup) -> Result<T, E>,
) -> Result<T, RankFailure<E>> {
    let rank = world.rank();
    let group = ProcessGroup::new(Seat::new(Arc::clone(hub), world, deadline));
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
