//! Where ranks meet that a cluster's launcher started: rank 0 holds the meeting, the
//! others come to it as its guests.
//!
//! ```text
//! guest              rank 0
//! Hello         ->                   who it is: version, rank, host, job
//!               <-   Welcome         once all are there and agree
//!               <-   Start           the task, when there is one
//! (local socket) ->
//!               <-   the memory file
//! lines         ->                   what the rank tells, until its end
//! ```
//!
//! Each message is a line of JSON over TCP. A `Refused` may stand in the place of any
//! that rank 0 sends; it ends the guest with rank 0's words. A closed connection tells
//! either side that the other is gone.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use crate::handover::{Handover, receive};
use crate::launch::{Launch, Meeting};
use crate::{LaunchError, World};

/// How often rank 0 looks for guests, and a guest for rank 0.
const LOOK: Duration = Duration::from_millis(20);
/// How long who has connected may take to say who it is.
const HELLO: Duration = Duration::from_secs(2);
/// How many are let in between two looks.
const MAX_ARRIVALS: usize = 128;
/// Bytes of the longest message of a guest before it is one.
const MAX_HELLO_BYTES: u64 = 1 << 16;
/// Bytes of the longest answer: a task is a few KiB.
const MAX_ANSWER_BYTES: u64 = 16 << 20;
/// Seconds of silence after which a connection is asked for life, seconds between
/// two questions, and questions without an answer that end it: 15 s in all.
const KEEPALIVE: (u64, u64, u32) = (5, 5, 2);

/// What must be the same for all ranks of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The program's version.
    pub version: String,
    /// What it was started with, a line each.
    pub lines: Vec<String>,
}

/// The host of a rank. Ranks of one host can share memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct HostIdentity {
    name: String,
    /// Differs from machine to machine, and from start to start.
    boot: String,
    /// A host that is a network namespace of this machine counts as another.
    network: String,
}

impl HostIdentity {
    fn of_this() -> Self {
        let read = |path: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.trim().to_owned()
        };
        let network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
        Self {
            name: read("/proc/sys/kernel/hostname"),
            boot: read("/proc/sys/kernel/random/boot_id"),
            network: network.display().to_string(),
        }
    }
}

/// What a rank says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    token: String,
    rank: usize,
    world_size: usize,
    host: HostIdentity,
    about: About,
}

impl Hello {
    fn of_this(launch: &Launch, about: &About) -> Self {
        Self {
            token: launch.meeting.token.clone(),
            rank: launch.world.rank(),
            world_size: launch.world.world_size(),
            host: HostIdentity::of_this(),
            about: about.clone(),
        }
    }

    /// `what` of this rank, for a message about two.
    fn says(&self, what: &str) -> String {
        format!("rank {} on host {} {what}", self.rank, self.host.name)
    }

    /// An error if the two cannot be of one job.
    fn agrees(&self, other: &Self) -> Result<(), LaunchError> {
        let differ = |one: &str, another: &str| {
            Err(LaunchError::Mismatch {
                one: self.says(one),
                other: other.says(another),
            })
        };
        let (own, others) = (&self.about, &other.about);
        if own.version != others.version {
            let version = |about: &About| format!("is version {}", about.version);
            return differ(&version(own), &version(others));
        }
        if self.world_size != other.world_size {
            let of = |hello: &Self| format!("is one of {} ranks", hello.world_size);
            return differ(&of(self), &of(other));
        }
        if self.rank == other.rank {
            return differ("has come", "has this number too");
        }
        let longest = own.lines.len().max(others.lines.len());
        for line in 0..longest {
            let with = |about: &About| match about.lines.get(line) {
                Some(text) => format!("was started with `{text}`"),
                None => "was started with less".to_owned(),
            };
            if own.lines.get(line) != others.lines.get(line) {
                return differ(&with(own), &with(others));
            }
        }
        if self.host != other.host {
            let on = |hello: &Self| format!("has network {}", hello.host.network);
            let other = other.says(&on(other));
            let other = format!("{other}: ranks on several hosts need an engine between hosts");
            return Err(LaunchError::Mismatch {
                one: self.says(&on(self)),
                other,
            });
        }
        Ok(())
    }
}

/// What rank 0 answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Welcome,
    Refused(String),
    Start { task: String, socket: String },
}

fn send(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads a line of at most `max_bytes`.
fn receive_line<T: for<'a> Deserialize<'a>>(
    stream: &mut BufReader<TcpStream>,
    max_bytes: u64,
) -> io::Result<T> {
    let mut line = Vec::new();
    stream
        .by_ref()
        .take(max_bytes)
        .read_until(b'\n', &mut line)?;
    message(&line)
}

/// The message that a whole line holds.
fn message<T: for<'a> Deserialize<'a>>(line: &[u8]) -> io::Result<T> {
    if line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(line)?)
}

/// Makes a broken line known within a quarter of a minute.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let (idle, interval, count) = KEEPALIVE;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(idle))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(interval))?;
    sockopt::set_tcp_keepcnt(stream, count)?;
    let silence = idle + interval * u64::from(count);
    let millis = u32::try_from(1000 * silence).expect("a few seconds");
    Ok(sockopt::set_tcp_user_timeout(stream, millis)?)
}

/// A rank that came to rank 0 and waits for its task.
#[derive(Debug)]
pub struct Guest {
    rank: usize,
    stream: BufReader<TcpStream>,
}

impl Guest {
    /// Ends the guest with `message`. One that is gone is past telling.
    fn refuse(self, message: &str) {
        drop(send(
            self.stream.get_ref(),
            &Answer::Refused(message.to_owned()),
        ));
    }

    /// Gives the guest its task and the memory of the ranks; gives what it tells.
    pub(crate) fn start(self, task: String, memory: impl AsFd) -> io::Result<BufReader<TcpStream>> {
        let handover = Handover::offer()?;
        let socket = handover.name().to_owned();
        send(self.stream.get_ref(), &Answer::Start { task, socket })?;
        handover.give(memory.as_fd())?;
        Ok(self.stream)
    }
}

/// The ranks that came and have no task yet.
#[derive(Debug, Default)]
pub struct Guests(Mutex<Vec<Guest>>);

impl Guests {
    fn waiting(&self) -> MutexGuard<'_, Vec<Guest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the guest out that is this rank, if there is one.
    pub fn take(&self, rank: usize) -> Option<Guest> {
        let mut waiting = self.waiting();
        let place = waiting.iter().position(|guest| guest.rank == rank)?;
        Some(waiting.remove(place))
    }

    /// Ends all that still wait with `message`.
    pub fn refuse(&self, message: &str) {
        for guest in self.waiting().drain(..) {
            guest.refuse(message);
        }
    }
}

/// Holds the meeting as rank 0: waits until every other rank has come and agrees.
pub fn hold_meeting(
    launch: &Launch,
    about: &About,
    patience: Duration,
) -> Result<Guests, LaunchError> {
    let own = Hello::of_this(launch, about);
    let listener = listen(&launch.meeting)?;
    let mut guests: Vec<(Hello, Guest)> = Vec::new();
    match gather(&own, &launch.meeting, &listener, patience, &mut guests) {
        Ok(()) => {
            for (_, guest) in &guests {
                // Who is gone is missed when it is to start.
                drop(send(guest.stream.get_ref(), &Answer::Welcome));
            }
            let guests = guests.into_iter().map(|(_, guest)| guest);
            Ok(Guests(Mutex::new(guests.collect())))
        }
        Err(error) => {
            for (_, guest) in guests {
                guest.refuse(&error.to_string());
            }
            Err(error)
        }
    }
}

fn listen(meeting: &Meeting) -> Result<TcpListener, LaunchError> {
    let Meeting { address, port, .. } = meeting;
    let port = *port;
    let addresses = resolve(meeting)?;
    let bound = TcpListener::bind(&addresses[..]).or_else(|error| match error.kind() {
        // A name of this host for others, such as that of a service.
        io::ErrorKind::AddrNotAvailable => TcpListener::bind(("0.0.0.0", port)),
        _ => Err(error),
    });
    let listener = bound.and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|source| {
        let address = address.clone();
        if source.kind() == io::ErrorKind::AddrInUse {
            let other = TcpListener::bind((addresses[0].ip(), 0));
            let other = other.and_then(|listener| listener.local_addr());
            let free = other.map_or(port.wrapping_add(1), |other| other.port());
            return LaunchError::PortInUse {
                address,
                port,
                free,
            };
        }
        LaunchError::NotHere {
            address,
            port,
            source,
        }
    })
}

/// At least one address.
fn resolve(meeting: &Meeting) -> Result<Vec<SocketAddr>, LaunchError> {
    let no_address = |source| LaunchError::NoAddress {
        address: meeting.address.clone(),
        source,
    };
    let addresses = (meeting.address.as_str(), meeting.port).to_socket_addrs();
    let addresses: Vec<_> = addresses.map_err(no_address)?.collect();
    if addresses.is_empty() {
        return Err(no_address(io::ErrorKind::NotFound.into()));
    }
    Ok(addresses)
}

/// Takes in guests until all are there.
fn gather(
    own: &Hello,
    meeting: &Meeting,
    listener: &TcpListener,
    patience: Duration,
    guests: &mut Vec<(Hello, Guest)>,
) -> Result<(), LaunchError> {
    let start = Instant::now();
    let mut strangers: Vec<Stranger> = Vec::new();
    while guests.len() + 1 < own.world_size {
        if start.elapsed() > patience {
            let missing = (1..own.world_size).filter(|&rank| {
                let mut ranks = guests.iter().map(|(_, guest)| guest.rank);
                ranks.all(|there| there != rank)
            });
            return Err(LaunchError::Absent {
                missing: missing.collect(),
                world_size: own.world_size,
                address: meeting.address.clone(),
                port: meeting.port,
                waited: start.elapsed(),
            });
        }
        let arrived = listener.incoming().map_while(Result::ok).take(MAX_ARRIVALS);
        strangers.extend(arrived.filter_map(|stream| Stranger::new(stream).ok()));
        // All are heard side by side: nobody waits for one who says nothing.
        for mut stranger in std::mem::take(&mut strangers) {
            match stranger.hear() {
                Ok(None) => strangers.push(stranger),
                Ok(Some(hello)) => stranger.join(own, hello, guests)?,
                // Who says nothing sensible is no matter of this job's.
                Err(_) => {}
            }
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Who has connected and not yet said who it is.
struct Stranger {
    stream: BufReader<TcpStream>,
    said: Vec<u8>,
    since: Instant,
}

impl Stranger {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        keep_alive(&stream)?;
        Ok(Self {
            stream: BufReader::new(stream),
            said: Vec::new(),
            since: Instant::now(),
        })
    }

    /// Hears what has been said since; none until that is all.
    fn hear(&mut self) -> io::Result<Option<Hello>> {
        let max_bytes = MAX_HELLO_BYTES.saturating_sub(self.said.len() as u64);
        let mut rest = self.stream.by_ref().take(max_bytes);
        match rest.read_until(b'\n', &mut self.said) {
            Ok(_) => {
                let hello = message(&self.said)?;
                self.stream.get_ref().set_nonblocking(false)?;
                self.stream.get_ref().set_write_timeout(Some(HELLO))?;
                Ok(Some(hello))
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Err(_) if self.since.elapsed() < HELLO => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Becomes a guest, unless it belongs to another job; an error if it is of this one
    /// and does not fit.
    fn join(
        self,
        own: &Hello,
        hello: Hello,
        guests: &mut Vec<(Hello, Guest)>,
    ) -> Result<(), LaunchError> {
        let guest = Guest {
            rank: hello.rank,
            stream: self.stream,
        };
        if hello.token != own.token {
            guest.refuse(&format!(
                "this is the meeting of the job `{}`, not of `{}`",
                own.token, hello.token
            ));
            return Ok(());
        }
        let known = guests.iter().map(|(hello, _)| hello);
        let mut known = std::iter::once(own).chain(known);
        if let Err(error) = known.try_for_each(|known| hello.agrees(known)) {
            guest.refuse(&error.to_string());
            return Err(error);
        }
        guests.push((hello, guest));
        Ok(())
    }
}

/// A rank that rank 0 has given its task.
#[derive(Debug)]
pub struct Invitation {
    pub(crate) world: World,
    pub(crate) memory: OwnedFd,
    /// What to do, in rank 0's words.
    pub task: String,
    meeting: Meeting,
    /// To tell rank 0 lines.
    told: Mutex<TcpStream>,
    /// Says nothing more, but ends when rank 0 does.
    heard: BufReader<TcpStream>,
}

/// Comes to the meeting as any rank but 0 and waits for a task: for `patience` until
/// all are there, and then as long as rank 0 lives.
pub fn come_to_meeting(
    launch: &Launch,
    about: &About,
    patience: Duration,
) -> Result<Invitation, LaunchError> {
    let Launch { world, meeting, .. } = launch;
    let lost = |source| LaunchError::Lost {
        rank: world.rank(),
        address: meeting.address.clone(),
        port: meeting.port,
        source,
    };
    let stream = find(*world, meeting, patience)?;
    keep_alive(&stream).map_err(lost)?;
    let told = stream.try_clone().map_err(lost)?;
    send(&stream, &Hello::of_this(launch, about)).map_err(lost)?;
    // Rank 0 answers when its own patience ends. Who listens there may be somebody else.
    let answer_limit = patience + HELLO;
    stream.set_read_timeout(Some(answer_limit)).map_err(lost)?;
    let mut heard = BufReader::new(stream);
    loop {
        let answer = receive_line(&mut heard, MAX_ANSWER_BYTES);
        let answer = answer.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => lost(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {answer_limit:.1?}"),
            )),
            _ => lost(error),
        });
        match answer? {
            Answer::Welcome => heard.get_ref().set_read_timeout(None).map_err(lost)?,
            Answer::Refused(message) => return Err(LaunchError::Refused { message }),
            Answer::Start { task, socket } => {
                let memory = receive(&socket).map_err(lost)?;
                return Ok(Invitation {
                    world: *world,
                    memory,
                    task,
                    meeting: meeting.clone(),
                    told: Mutex::new(told),
                    heard,
                });
            }
        }
    }
}

/// Connects to rank 0, which may not have begun yet.
fn find(world: World, meeting: &Meeting, patience: Duration) -> Result<TcpStream, LaunchError> {
    let start = Instant::now();
    loop {
        // A name may come to be known while its host starts.
        let source = match resolve(meeting) {
            Ok(addresses) => match connect(&addresses, patience.saturating_sub(start.elapsed())) {
                Ok(stream) => return Ok(stream),
                Err(source) => source,
            },
            Err(error) if start.elapsed() > patience => return Err(error),
            Err(_) => io::ErrorKind::NotFound.into(),
        };
        if start.elapsed() > patience {
            return Err(LaunchError::Nobody {
                rank: world.rank(),
                address: meeting.address.clone(),
                port: meeting.port,
                waited: start.elapsed(),
                source,
            });
        }
        thread::sleep(LOOK);
    }
}

fn connect(addresses: &[SocketAddr], left: Duration) -> io::Result<TcpStream> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect_timeout(address, left.max(LOOK)) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl Invitation {
    /// Tells rank 0 a line. A rank 0 that is gone is noticed elsewhere.
    pub fn tell(&self, line: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        drop(told.write_all(format!("{line}\n").as_bytes()));
    }

    /// Waits until rank 0 is gone.
    pub(crate) fn until_lost(&self) -> LaunchError {
        let mut stream = self.heard.get_ref();
        let mut bytes = [0; 64];
        let source = loop {
            match stream.read(&mut bytes) {
                Ok(0) => break io::ErrorKind::UnexpectedEof.into(),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
        };
        LaunchError::Lost {
            rank: self.world.rank(),
            address: self.meeting.address.clone(),
            port: self.meeting.port,
            source,
        }
    }
}
