// SPDX-License-Identifier: MIT OR Apache-2.0

//! How ranks meet rank 0 where the file with the shared memory does not bring them together.
//!
//! A rank that does not see the file asks rank 0 over a datagram socket with an abstract address
//! (unix(7)), which the key names: nothing of it is in a file system, and it goes with its process.
//! It says which directory it looks in. Rank 0 sends its file's descriptor (`SCM_RIGHTS`) to those
//! who look in another one, as in containers that have a `/dev/shm` each, and to all if it has no
//! name for the file. If there will be no team, it says so, and why. Who cannot join tells rank 0,
//! and so all others.
//!
//! Both ends refuse another user's messages (`SCM_CREDENTIALS`). Processes of different network
//! namespaces do not reach each other in this way.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    bind, recvmsg, sendmsg, setsockopt, socket, sockopt,
};
use nix::unistd::getuid;

use crate::team::key::TeamKey;

/// The first word of all messages: "meeting" and the version of what follows.
const MAGIC: u64 = u64::from_le_bytes(*b"meeting\x01");
/// Bytes of the words that a message begins with, and of all of it.
const WORDS: usize = 4 * 8;
const LONGEST: usize = 512;

/// What a message is.
mod kind {
    /// Which directory a rank looks in, and that it has not found the file there.
    pub(super) const ASK: u64 = 1;
    /// The file is with it.
    pub(super) const FILE: u64 = 2;
    /// A rank cannot join, and so nobody can: which, and why.
    pub(super) const FAILED: u64 = 3;
}

/// A directory, alike for all who see the same one; zeros if there is none.
pub(crate) type Directory = [u64; 2];

/// Which directory this is.
pub(crate) fn directory(path: &Path) -> Directory {
    let found = std::fs::metadata(path);
    found.map_or([0; 2], |found| [found.dev(), found.ino()])
}

/// A rank that cannot join, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) rank: usize,
    pub(crate) why: String,
}

/// A message that has come.
struct Datagram {
    kind: u64,
    words: [u64; 2],
    text: String,
    file: Option<OwnedFd>,
    from: Option<UnixAddr>,
}

#[derive(Debug)]
struct Socket(OwnedFd);

impl Socket {
    /// A socket with this address, or one that the kernel chooses.
    fn new(address: Option<&UnixAddr>) -> nix::Result<Socket> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        setsockopt(&socket, sockopt::PassCred, &true)?;
        let chosen = UnixAddr::new_unnamed();
        bind(socket.as_raw_fd(), address.unwrap_or(&chosen))?;
        Ok(Socket(socket))
    }

    fn send(
        &self,
        (kind, words): (u64, [u64; 2]),
        text: &str,
        file: Option<RawFd>,
        to: &UnixAddr,
    ) -> nix::Result<()> {
        let mut bytes = Vec::with_capacity(LONGEST);
        for word in [MAGIC, kind, words[0], words[1]] {
            bytes.extend(word.to_ne_bytes());
        }
        let mut end = text.len().min(LONGEST - WORDS);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        bytes.extend(&text.as_bytes()[..end]);
        let files = file.as_slice();
        let rights = [ControlMessage::ScmRights(files)];
        let rights = if files.is_empty() { &[] } else { &rights[..] };
        let (parts, none) = ([IoSlice::new(&bytes)], MsgFlags::empty());
        sendmsg(self.0.as_raw_fd(), &parts, rights, none, Some(to)).map(drop)
    }

    /// The next message of our user's, if one has come.
    fn receive(&self) -> Option<Datagram> {
        loop {
            let mut bytes = [0u8; LONGEST];
            let mut room = nix::cmsg_space!(RawFd, libc::ucred);
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let read =
                match recvmsg::<UnixAddr>(self.0.as_raw_fd(), &mut parts, Some(&mut room), flags) {
                    Ok(read) => read,
                    Err(Errno::EINTR) => continue,
                    Err(_) => return None,
                };
            let (len, from) = (read.bytes, read.address);
            let (mut file, mut is_ours) = (None, false);
            for message in read.cmsgs().into_iter().flatten() {
                match message {
                    ControlMessageOwned::ScmRights(files) => {
                        // SAFETY: the kernel has made these descriptors for us.
                        let mut files = files.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) });
                        file = files.next();
                        files.for_each(drop);
                    }
                    ControlMessageOwned::ScmCredentials(who) => {
                        is_ours = who.uid() == getuid().as_raw();
                    }
                    _ => {}
                }
            }
            let (words, text) = bytes[..len].split_at(len.min(WORDS));
            let word = |i: usize| {
                let bytes = words.get(8 * i..8 * i + 8)?;
                Some(u64::from_ne_bytes(bytes.try_into().ok()?))
            };
            if let ([Some(MAGIC), Some(kind), Some(a), Some(b)], true) =
                ([0, 1, 2, 3].map(word), is_ours)
            {
                return Some(Datagram {
                    kind,
                    words: [a, b],
                    text: String::from_utf8_lossy(text).into_owned(),
                    file,
                    from,
                });
            }
        }
    }
}

/// The address of a team's rank 0.
fn address(key: &TeamKey) -> nix::Result<UnixAddr> {
    UnixAddr::new_abstract(format!("libcopy-team-{key}").as_bytes())
}

/// Where rank 0 is asked.
#[derive(Debug)]
pub(crate) struct Host {
    socket: Socket,
    /// Those who have asked and have not got a file, and where they look.
    asked: Vec<(UnixAddr, Directory)>,
    /// Those who were told that there is no team.
    told: usize,
}

impl Host {
    /// `None` where the kernel gives no socket: then ranks meet through the file alone.
    pub(crate) fn open(key: &TeamKey) -> Option<Host> {
        let socket = Socket::new(Some(&address(key).ok()?)).ok()?;
        Some(Host {
            socket,
            asked: Vec::new(),
            told: 0,
        })
    }

    /// Takes what has come; who cannot join, if somebody says so.
    fn take(&mut self) -> Option<Failed> {
        let mut failed = None;
        while let Some(datagram) = self.socket.receive() {
            match (datagram.kind, datagram.from) {
                (kind::ASK, Some(from)) => self.asked.push((from, datagram.words)),
                (kind::FAILED, _) => {
                    self.told += 1;
                    failed = failed.or(Some(Failed {
                        rank: datagram.words[0] as usize,
                        why: datagram.text,
                    }));
                }
                _ => {}
            }
        }
        failed
    }

    /// Gives the file to those who look elsewhere than in `here`; who cannot join, if somebody says
    /// so.
    pub(crate) fn serve(&mut self, file: &File, here: Directory) -> Option<Failed> {
        let failed = self.take();
        let Host { socket, asked, .. } = self;
        asked.retain(|(to, directory)| {
            let is_same = *directory == here && here != [0; 2];
            let message = (kind::FILE, [0; 2]);
            // One that has no room now is given it later. What is wrong with others, they say.
            is_same
                || socket
                    .send(message, "", Some(file.as_raw_fd()), to)
                    .is_err_and(|errno| errno != Errno::ECONNREFUSED)
        });
        failed
    }

    /// Tells those who have asked that there is no team; how many know it by now, with those who
    /// have said so themselves.
    pub(crate) fn refuse(&mut self, failed: &Failed) -> usize {
        self.take();
        let Host {
            socket,
            asked,
            told,
        } = self;
        asked.retain(|(to, _)| {
            let message = (kind::FAILED, [failed.rank as u64, 0]);
            let sent = socket.send(message, &failed.why, None, to);
            *told += usize::from(sent.is_ok());
            sent.is_err_and(|errno| errno != Errno::ECONNREFUSED)
        });
        *told
    }
}

/// What rank 0 says to another rank.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The shared memory.
    File(File),
    /// There is no team.
    Failed(Failed),
}

/// Another rank, which asks.
#[derive(Debug)]
pub(crate) struct Guest {
    socket: Socket,
    host: UnixAddr,
    has_asked: bool,
}

impl Guest {
    /// `None` where the kernel gives no socket.
    pub(crate) fn open(key: &TeamKey) -> Option<Guest> {
        Some(Guest {
            socket: Socket::new(None).ok()?,
            host: address(key).ok()?,
            has_asked: false,
        })
    }

    /// Asks rank 0, as soon as it is there, and takes its reply.
    pub(crate) fn ask(&mut self, here: Directory) -> Option<Reply> {
        if !self.has_asked {
            let sent = self.socket.send((kind::ASK, here), "", None, &self.host);
            self.has_asked = sent.is_ok();
        }
        loop {
            let datagram = self.socket.receive()?;
            match (datagram.kind, datagram.file) {
                (kind::FILE, Some(file)) => return Some(Reply::File(file.into())),
                (kind::FAILED, _) => {
                    return Some(Reply::Failed(Failed {
                        rank: datagram.words[0] as usize,
                        why: datagram.text,
                    }));
                }
                _ => {}
            }
        }
    }

    /// Tells rank 0 that this rank cannot join; whether it has got that.
    pub(crate) fn tell(&self, failed: &Failed) -> bool {
        let message = (kind::FAILED, [failed.rank as u64, 0]);
        self.socket
            .send(message, &failed.why, None, &self.host)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn pair() -> (Host, Guest) {
        let key = TeamKey::random().unwrap();
        (Host::open(&key).unwrap(), Guest::open(&key).unwrap())
    }

    fn file() -> File {
        crate::shm::anonymous::file(c"libcopy-test").unwrap()
    }

    #[test]
    fn who_looks_elsewhere_gets_the_file() {
        let (mut host, mut guest) = pair();
        let mut file = file();
        assert!(guest.ask([1, 2]).is_none());
        assert_eq!(host.serve(&file, [1, 3]), None);
        let Some(Reply::File(mut theirs)) = guest.ask([1, 2]) else {
            panic!("no file");
        };
        file.write_all(b"here").unwrap();
        let mut text = String::new();
        std::os::unix::fs::FileExt::write_at(&theirs, b"t", 0).unwrap();
        std::io::Seek::rewind(&mut theirs).unwrap();
        theirs.read_to_string(&mut text).unwrap();
        assert_eq!(text, "tere");
    }

    #[test]
    fn who_looks_in_the_same_place_hears_only_of_failures() {
        let (mut host, mut guest) = pair();
        assert!(guest.ask([1, 2]).is_none());
        host.serve(&file(), [1, 2]);
        assert!(guest.ask([1, 2]).is_none());
        let failed = Failed {
            rank: 5,
            why: "no space ä".repeat(100),
        };
        assert_eq!(host.refuse(&failed), 1);
        let Some(Reply::Failed(heard)) = guest.ask([1, 2]) else {
            panic!("nothing was heard");
        };
        assert_eq!(heard.rank, 5);
        assert!(
            heard.why.len() > 400 && failed.why.starts_with(&heard.why),
            "{}",
            heard.why
        );
    }

    #[test]
    fn who_cannot_join_tells_rank_0() {
        let (mut host, guest) = pair();
        let failed = Failed {
            rank: 3,
            why: "no memory".to_owned(),
        };
        assert!(guest.tell(&failed));
        assert_eq!(host.serve(&file(), [1, 2]), Some(failed));
        drop(host);
        assert!(!guest.tell(&Failed {
            rank: 3,
            why: String::new()
        }));
    }
}
