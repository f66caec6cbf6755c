//! Handing a file from one process to another of the same host and user: over a local
//! socket whose name lives in the network namespace and nowhere in a folder.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};

/// How long the other side may take.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(1);

/// A file that waits to be fetched.
pub(crate) struct Handover {
    name: String,
    listener: UnixListener,
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

impl Handover {
    pub(crate) fn offer() -> io::Result<Self> {
        // Seeded by the system anew in every process.
        let number = RandomState::new().hash_one(std::process::id());
        let name = format!("nestling-{number:016x}");
        let listener = UnixListener::bind_addr(&address(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { name, listener })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Gives the file to the first process of this user that comes.
    pub(crate) fn give(self, file: BorrowedFd<'_>) -> io::Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let Ok((stream, _)) = self.listener.accept() else {
                thread::sleep(LOOK);
                continue;
            };
            if sockopt::socket_peercred(&stream)?.uid != rustix::process::getuid() {
                continue;
            }
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let files = [file];
            let fits = control.push(SendAncillaryMessage::ScmRights(&files));
            debug_assert!(fits, "there is space for one file");
            sendmsg(
                &stream,
                &[IoSlice::new(b"f")],
                &mut control,
                SendFlags::NOSIGNAL,
            )?;
            return Ok(());
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// Fetches the file that is offered under `name`.
pub(crate) fn receive(name: &str) -> io::Result<OwnedFd> {
    let stream = UnixStream::connect_addr(&address(name)?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(
        &stream,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut messages = control.drain();
    let file = messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn the_same_file_arrives() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"whole").unwrap();
        file.rewind().unwrap();
        let handover = Handover::offer().unwrap();
        let name = handover.name().to_owned();
        let fetched = thread::spawn(move || receive(&name).unwrap());
        handover.give(file.as_fd()).unwrap();
        let mut text = String::new();
        File::from(fetched.join().unwrap())
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "whole");
    }
}
