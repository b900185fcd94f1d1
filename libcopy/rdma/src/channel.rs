// SPDX-License-Identifier: MIT OR Apache-2.0

//! What carries control messages between the two ends of a link.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::{Error, Result};

/// Carries control messages to one peer: whole messages, in order, none lost, none twice.
pub trait Channel {
    /// Sends one. Never waits for the peer: what cannot be sent now is kept and goes with a later
    /// call.
    ///
    /// # Errors
    ///
    /// [`Error::PeerGone`].
    fn send(&mut self, message: &[u8]) -> Result<()>;

    /// The next one, if it has come.
    ///
    /// # Errors
    ///
    /// [`Error::PeerGone`]; what had come before is given first.
    fn try_receive(&mut self) -> Result<Option<Vec<u8>>>;

    /// Sends what is kept. Whether nothing is left.
    ///
    /// # Errors
    ///
    /// [`Error::PeerGone`].
    fn flush(&mut self) -> Result<bool> {
        Ok(true)
    }

    /// Called while nothing happens: lets others run. If nothing but a message can change that
    /// (`may_sleep`), it may wait for one.
    fn idle(&mut self, may_sleep: bool) {
        let _ = may_sleep;
        std::thread::yield_now();
    }
}

/// Waits for a message.
///
/// # Errors
///
/// As for [`Channel::try_receive`].
pub(crate) fn receive(channel: &mut impl Channel) -> Result<Vec<u8>> {
    loop {
        if let Some(message) = channel.try_receive()? {
            return Ok(message);
        }
        channel.idle(true);
    }
}

/// Control messages over a socket, each behind its length in 4 bytes.
#[derive(Debug)]
pub struct StreamChannel<S> {
    stream: S,
    rank: u32,
    /// Bytes that could not be sent yet.
    unsent: Vec<u8>,
    /// Bytes that have come and are no whole message yet.
    received: Vec<u8>,
}

/// The most bytes of a control message.
const MAX_MESSAGE: usize = 1 << 28;

impl<S: Read + Write + AsFd> StreamChannel<S> {
    /// A channel to `rank`. The stream does not block any more.
    pub fn new(stream: S, rank: u32) -> StreamChannel<S> {
        let fd = stream.as_fd().as_raw_fd();
        // SAFETY: the file is open; the flags are those that it has and one more. If that fails,
        // calls may wait for the peer, and nothing else.
        unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFL);
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        }
        StreamChannel {
            stream,
            rank,
            unsent: Vec::new(),
            received: Vec::new(),
        }
    }

    fn gone(&self, reason: &dyn std::fmt::Display) -> Error {
        Error::PeerGone {
            rank: self.rank,
            reason: reason.to_string(),
        }
    }

    fn write_unsent(&mut self) -> Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => return Err(self.gone(&"the socket takes no more bytes")),
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(self.gone(&error)),
            }
        }
        Ok(())
    }

    /// Takes the first whole message out of what has come.
    fn take(&mut self) -> Result<Option<Vec<u8>>> {
        let Some((len, rest)) = self.received.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*len) as usize;
        if len > MAX_MESSAGE {
            return Err(Error::corrupt(self.rank, "length", len as u64));
        }
        let Some(message) = rest.get(..len) else {
            return Ok(None);
        };
        let message = message.to_vec();
        self.received.drain(..4 + len);
        Ok(Some(message))
    }
}

impl<S: Read + Write + AsFd> Channel for StreamChannel<S> {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.unsent.extend((message.len() as u32).to_le_bytes());
        self.unsent.extend(message);
        self.write_unsent()
    }

    fn flush(&mut self) -> Result<bool> {
        self.write_unsent()?;
        Ok(self.unsent.is_empty())
    }

    fn try_receive(&mut self) -> Result<Option<Vec<u8>>> {
        let sent = self.write_unsent();
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(self.gone(&"it has closed the connection")),
                Ok(read) => self.received.extend(&bytes[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return sent.map(|()| None),
                Err(error) => return Err(self.gone(&error)),
            }
        }
    }

    fn idle(&mut self, may_sleep: bool) {
        if !may_sleep {
            std::thread::yield_now();
            return;
        }
        let writable = if self.unsent.is_empty() {
            0
        } else {
            libc::POLLOUT
        };
        let mut poll = libc::pollfd {
            fd: self.stream.as_fd().as_raw_fd(),
            events: libc::POLLIN | writable,
            revents: 0,
        };
        // SAFETY: one structure, which is written. An error wakes the caller, who looks again.
        unsafe { libc::poll(&raw mut poll, 1, -1) };
    }
}

/// Control messages between two ends within one process.
#[derive(Debug)]
pub struct LocalChannel {
    queues: Arc<Mutex<[VecDeque<Vec<u8>>; 2]>>,
    /// Of the two ends.
    ends: Arc<()>,
    side: usize,
}

impl LocalChannel {
    /// Both ends.
    pub fn pair() -> [LocalChannel; 2] {
        let (queues, ends) = (Arc::default(), Arc::new(()));
        [0, 1].map(|side| LocalChannel {
            queues: Arc::clone(&queues),
            ends: ends.clone(),
            side,
        })
    }

    /// A view of the same messages, that is no end: for [`LocalChannel::queues`].
    pub fn watch(&self) -> LocalChannel {
        LocalChannel {
            queues: self.queues.clone(),
            ends: Arc::new(()),
            side: self.side,
        }
    }

    /// Messages for the two ends that have not been received. A test that changes them plays the
    /// network.
    pub fn queues(&self) -> MutexGuard<'_, [VecDeque<Vec<u8>>; 2]> {
        self.queues.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Channel for LocalChannel {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.queues()[1 - self.side].push_back(message.to_vec());
        Ok(())
    }

    fn try_receive(&mut self) -> Result<Option<Vec<u8>>> {
        let message = self.queues()[self.side].pop_front();
        if message.is_none() && Arc::strong_count(&self.ends) == 1 {
            return Err(Error::PeerGone {
                rank: u32::MAX,
                reason: "the other end was dropped".to_owned(),
            });
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (StreamChannel<UnixStream>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (StreamChannel::new(ours, 5), theirs)
    }

    #[test]
    fn messages_longer_than_the_socket_holds_do_not_block() {
        let (mut channel, theirs) = pair();
        let mut other = StreamChannel::new(theirs, 6);
        let long = vec![7; 4 << 20];
        // Both ends send first.
        channel.send(&long).unwrap();
        other.send(&long).unwrap();
        channel.send(&[]).unwrap();
        let mut got = [None, None];
        while got.iter().any(Option::is_none) {
            for (channel, got) in [&mut channel, &mut other].into_iter().zip(&mut got) {
                if got.is_none() {
                    *got = channel.try_receive().unwrap();
                }
            }
        }
        assert!(got.iter().all(|message| message.as_ref() == Some(&long)));
        assert_eq!(receive(&mut other), Ok(Vec::new()));
    }

    #[test]
    fn what_has_come_is_given_before_the_end_is_told() {
        let (mut channel, mut theirs) = pair();
        theirs.write_all(&[2, 0, 0, 0, 8]).unwrap();
        assert_eq!(channel.try_receive(), Ok(None));
        theirs.write_all(&[9, 0, 0]).unwrap();
        drop(theirs);
        assert_eq!(channel.try_receive(), Ok(Some(vec![8, 9])));
        assert!(matches!(
            channel.try_receive(),
            Err(Error::PeerGone { rank: 5, .. })
        ));
    }

    #[test]
    fn a_length_that_cannot_be_is_refused() {
        let (mut channel, mut theirs) = pair();
        theirs.write_all(&[0xff; 4]).unwrap();
        assert!(matches!(
            channel.try_receive(),
            Err(Error::Corrupt { rank: 5, .. })
        ));
    }
}
