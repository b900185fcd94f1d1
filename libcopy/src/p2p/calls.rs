// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages as methods of [`Team`].

use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use super::buffer::{Elements, RecvBuffer, SendBuffer};
use super::matching::{ANY_SOURCE, ANY_TAG, Pattern};
use super::messenger::{Messenger, Status};
use super::outgoing::Pause;
use crate::error::{Error, Result};
use crate::offload;
use crate::team::Team;

/// How long a rank that others need gives its processor away before it sleeps in between.
const AWAKE: Duration = Duration::from_millis(2);

/// How much later than that a message does not come it may be known why.
const LATE_NEWS: Duration = Duration::from_millis(500);

/// How long it sleeps then.
const NAP: Duration = Duration::from_micros(100);

/// A message that may be under way: [`Team::wait`] or [`Team::test`] completes it.
#[derive(Debug)]
pub struct Request {
    /// `None` if it is complete.
    number: Option<u64>,
    /// What it came to, if it was complete at once.
    status: Status,
    /// The other rank, or [`ANY_SOURCE`].
    peer: usize,
}

/// Messages under way whose buffers are borrowed: see [`Team::messages_in`].
pub struct Messages<'team, 'env> {
    team: &'team mut Team,
    /// Those that may not be complete.
    requests: Vec<u64>,
    /// Buffers live for exactly as long: neither longer nor shorter.
    _env: PhantomData<&'env mut &'env ()>,
}

impl fmt::Debug for Messages<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = &self.requests;
        f.debug_struct("Messages")
            .field("requests", requests)
            .finish()
    }
}

impl Team {
    /// Sends a message to another rank, or to this one. Returns when `data` may be used again: that
    /// says nothing about whether the message was received.
    ///
    /// ```
    /// # use libcopy::{Result, Team, TeamKey, ANY_SOURCE, ANY_TAG};
    /// # fn main() -> Result<()> {
    /// # let key = TeamKey::random()?;
    /// # let other = std::thread::spawn(move || Team::join(&key, 1, 2)?.send(b"hello", 0, 7));
    /// # let mut team = Team::join(&key, 0, 2)?;
    /// // Rank 1 calls `team.send(b"hello", 0, 7)`.
    /// let mut bytes = [0; 8];
    /// let status = team.recv(&mut bytes, ANY_SOURCE, ANY_TAG)?;
    /// assert_eq!((status.source, status.tag, status.bytes), (1, 7, 5));
    /// assert_eq!(&bytes[..5], b"hello");
    /// # other.join().unwrap()
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if there is no such rank, or the tag is negative. [`Error::PeerDied`] if
    /// a rank died, [`Error::PeerLeft`] if the other one left the team, [`Error::Broken`] or
    /// [`Error::Mismatch`] after an earlier error, [`Error::System`] if there is no memory for
    /// messages: these break the team for all ranks.
    pub fn send<'a>(&mut self, data: impl Into<SendBuffer<'a>>, to: usize, tag: i32) -> Result<()> {
        // SAFETY: the buffer is borrowed until the request is complete, or given up, which `wait`
        // does.
        let request = unsafe { self.isend(data.into(), to, tag) }?;
        self.wait(request).map(|_| ())
    }

    /// Receives a message: of the messages from rank `from`, or [`ANY_SOURCE`], with this tag, or
    /// [`ANY_TAG`], the one that was sent first, as far as they are of one rank.
    ///
    /// # Errors
    ///
    /// As for [`Team::send`]. [`Error::Truncated`] if the message is longer than `data`: it is gone
    /// then, and the team stays whole. [`Error::Message`] if its bytes could not be moved.
    pub fn recv<'a>(
        &mut self,
        data: impl Into<RecvBuffer<'a>>,
        from: usize,
        tag: i32,
    ) -> Result<Status> {
        // SAFETY: as in `send`.
        let request = unsafe { self.irecv(data.into(), from, tag) }?;
        self.wait(request)
    }

    /// Sends a message and receives one at the same time, so that ranks that do this in a circle do
    /// not wait for each other. `to` and `from` are a rank and a tag each.
    ///
    /// # Errors
    ///
    /// As for [`Team::send`] and [`Team::recv`].
    pub fn sendrecv<'a, 'b>(
        &mut self,
        send: impl Into<SendBuffer<'a>>,
        to: (usize, i32),
        recv: impl Into<RecvBuffer<'b>>,
        from: (usize, i32),
    ) -> Result<Status> {
        let (send, recv) = (send.into(), recv.into());
        self.receivable(from.0, from.1)?;
        // SAFETY: both buffers are borrowed until the requests are complete. An error that is not
        // harmless gives up all messages of the team; after a harmless one of the receive, the send
        // is waited for.
        let sent = unsafe { self.isend(send, to.0, to.1) }?;
        // SAFETY: as above.
        let received = unsafe { self.irecv(recv, from.0, from.1) };
        let received = received.and_then(|request| self.wait(request));
        if received.as_ref().is_ok() || received.as_ref().is_err_and(is_harmless) {
            self.wait(sent)?;
        }
        received
    }

    /// What [`Team::recv`] would receive, if it is there already.
    ///
    /// # Errors
    ///
    /// As for [`Team::recv`].
    pub fn iprobe(&mut self, from: usize, tag: i32) -> Result<Option<Status>> {
        let pattern = self.receivable(from, tag)?;
        let found = self.look_around().and_then(|()| {
            let (messenger, _) = self.messages()?;
            messenger.progress()?;
            Ok(messenger.find(pattern))
        });
        self.settle_message(found)
    }

    /// Begins to send a message. Its bytes get on in calls of this team that are about messages.
    ///
    /// # Errors
    ///
    /// As for [`Team::send`].
    ///
    /// # Safety
    ///
    /// Until the request is complete, or a call of this team has failed with another error than
    /// [`Error::Argument`] or [`Error::Truncated`], or the team is dropped, the bytes of `data`
    /// stay readable and nobody changes them. [`Team::messages_in`] needs no such promise.
    pub unsafe fn isend(&mut self, data: SendBuffer<'_>, to: usize, tag: i32) -> Result<Request> {
        if to >= self.size() {
            return Err(rank_error(to, self.size()));
        }
        let elements = data.elements;
        let status = Status {
            source: self.rank(),
            tag: checked_tag(tag)?,
            bytes: elements.bytes(),
        };
        let sent = self.prepare(&elements).and_then(|()| {
            let (messenger, _) = self.messages()?;
            messenger.send(elements, to, tag)
        });
        Ok(Request {
            number: self.settle_message(sent)?,
            status,
            peer: to,
        })
    }

    /// Begins to receive a message.
    ///
    /// # Errors
    ///
    /// As for [`Team::recv`].
    ///
    /// # Safety
    ///
    /// As for [`Team::isend`]; the bytes stay writable, and nobody else uses them.
    pub unsafe fn irecv(&mut self, data: RecvBuffer<'_>, from: usize, tag: i32) -> Result<Request> {
        let pattern = self.receivable(from, tag)?;
        let elements = data.elements;
        let received = self.prepare(&elements).and_then(|()| {
            let (messenger, _) = self.messages()?;
            messenger.receive(elements, pattern)
        });
        let received = self.settle_message(received)?;
        let nothing = Status {
            source: from,
            tag,
            bytes: 0,
        };
        Ok(Request {
            number: received.err(),
            status: received.unwrap_or(nothing),
            peer: from,
        })
    }

    /// Waits until a request is complete. Of a send, the status says what was sent.
    ///
    /// # Errors
    ///
    /// As for [`Team::send`] and [`Team::recv`].
    pub fn wait(&mut self, request: Request) -> Result<Status> {
        self.check_home()?;
        let Some(number) = request.number else {
            return Ok(request.status);
        };
        let outcome = self.wait_for(request.peer, number);
        self.settle_message(outcome)
    }

    /// Whether a request is complete, and what it came to: then nobody waits for it any more.
    ///
    /// # Errors
    ///
    /// As for [`Team::wait`]; the request is over then.
    pub fn test(&mut self, request: &mut Request) -> Result<Option<Status>> {
        self.check_home()?;
        let Some(number) = request.number else {
            return Ok(Some(request.status));
        };
        let outcome = self.test_number(number);
        let outcome = self.settle_message(outcome);
        if !matches!(outcome, Ok(None)) {
            request.number = None;
        }
        if let Ok(Some(status)) = outcome {
            request.status = status;
        }
        outcome
    }

    /// Has `work` send and receive messages that are under way at the same time, out of and into
    /// buffers that it borrows. When it returns all of them are complete: what `work` does not wait
    /// for is waited for here, or given up if it fails.
    ///
    /// ```
    /// # use libcopy::{Result, Team, TeamKey};
    /// # fn main() -> Result<()> {
    /// # let key = TeamKey::random()?;
    /// # let rank = |rank| move || -> Result<()> {
    /// # let mut team = Team::join(&key, rank, 2)?;
    /// let (right, left) = ((team.rank() + 1) % 2, (team.rank() + 1) % 2);
    /// let (out, mut into) = (vec![team.rank() as u8; 100_000], vec![0; 100_000]);
    /// team.messages_in(|messages| {
    ///     let received = messages.irecv(&mut into, left, 0)?;
    ///     messages.isend(&out, right, 0)?;
    ///     messages.wait(received)
    /// })?;
    /// assert_eq!(into, vec![left as u8; 100_000]);
    /// # Ok(())
    /// # };
    /// # let other = std::thread::spawn(rank(1));
    /// # rank(0)()?;
    /// # other.join().unwrap()
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// That of `work`, or as for [`Team::wait`].
    pub fn messages_in<'env, R>(
        &mut self,
        work: impl FnOnce(&mut Messages<'_, 'env>) -> Result<R>,
    ) -> Result<R> {
        let mut messages = Messages {
            team: self,
            requests: Vec::new(),
            _env: PhantomData,
        };
        let result = work(&mut messages)?;
        messages.wait_all()?;
        Ok(result)
    }

    /// Gives messages up whose buffers the program wants back.
    fn abandon(&mut self, requests: &[u64]) {
        let abandoned = match self.messages() {
            Ok((messenger, _)) => messenger.abandon(requests),
            // Without a messenger there are no messages.
            Err(_) => Ok(()),
        };
        // Breaks the team if it fails, which takes all messages back.
        let _ = self.settle(abandoned.map_err(Box::new));
    }

    /// Fails if the team is broken; waits for what earlier operations still do with the elements.
    fn prepare(&mut self, elements: &Elements) -> Result<()> {
        let (start, len) = elements.range();
        offload::settle(start, len)?;
        self.look_around()
    }

    fn receivable(&self, from: usize, tag: i32) -> Result<Pattern> {
        if from != ANY_SOURCE && from >= self.size() {
            return Err(rank_error(from, self.size()));
        }
        if tag != ANY_TAG {
            checked_tag(tag)?;
        }
        Ok(Pattern { source: from, tag })
    }

    /// An error breaks the team, unless it is about this message alone.
    fn settle_message<T>(&mut self, result: Result<T>) -> Result<T> {
        match result {
            Err(error) if is_harmless(&error) => Err(error),
            Err(Error::Message { rank, why }) => {
                let error = self.reason(rank).unwrap_or(Error::Message { rank, why });
                Ok(self.settle(Err(error.into()))?)
            }
            result => Ok(self.settle(result.map_err(Box::new))?),
        }
    }

    /// Why the data of a message of this rank did not come: that its memory is gone is seen before
    /// it is known that it died, and that it has taken its messages back before it is known why.
    fn reason(&mut self, rank: usize) -> Option<Error> {
        let started = Instant::now();
        while started.elapsed() < LATE_NEWS {
            let (messenger, waiter) = self.messages().ok()?;
            if let Err(error) = waiter.verdict() {
                return Some(error);
            }
            if messenger.has_ended(rank) {
                return Some(Error::PeerDied { rank });
            }
            std::thread::sleep(NAP);
        }
        None
    }

    fn test_number(&mut self, number: u64) -> Result<Option<Status>> {
        self.look_around()?;
        let (messenger, _) = self.messages()?;
        messenger.progress()?;
        messenger.test(number).transpose()
    }

    /// Waits for a request, which is about a rank, or any.
    fn wait_for(&mut self, peer: usize, number: u64) -> Result<Status> {
        let (me, size) = (self.rank(), self.size());
        let (messenger, waiter) = self.messages()?;
        let (mut pause, started) = (Pause::new(), Instant::now());
        loop {
            // Who waits for any rank needs one of those that are still there.
            let has_left = messenger.left_ranks();
            let needs = |rank: usize| match peer {
                ANY_SOURCE => (0..size).all(|rank| rank == me || has_left(rank)),
                peer => rank == peer,
            };
            let look = |messenger: &mut Messenger| {
                messenger.progress()?;
                messenger.test(number).transpose()
            };
            if let Some(status) = look(messenger)? {
                return Ok(status);
            }
            if messenger.is_needed() {
                // The rank that we wait for may wait for us.
                if pause.step() && started.elapsed() > AWAKE {
                    std::thread::sleep(NAP);
                }
                if pause.should_look() {
                    if let Some(status) = waiter.check_unless(&needs, || look(messenger))? {
                        return Ok(status);
                    }
                }
                continue;
            }
            let outcome = waiter.wait(needs, || {
                let status = look(messenger)?;
                let is_over = status.is_some() || messenger.is_needed();
                Ok(is_over.then_some(status))
            })?;
            if let Some(status) = outcome {
                return Ok(status);
            }
        }
    }
}

impl<'env> Messages<'_, 'env> {
    /// Our rank, and how many there are.
    pub fn place(&self) -> (usize, usize) {
        (self.team.rank(), self.team.size())
    }

    /// [`Team::isend`] out of a buffer that is borrowed for as long as messages are under way.
    ///
    /// # Errors
    ///
    /// As for [`Team::send`].
    pub fn isend(
        &mut self,
        data: impl Into<SendBuffer<'env>>,
        to: usize,
        tag: i32,
    ) -> Result<Request> {
        // SAFETY: the buffer is borrowed for longer than `self` lives, which completes the request,
        // or gives it up, before it goes.
        let request = unsafe { self.team.isend(data.into(), to, tag) }?;
        Ok(self.noted(request))
    }

    /// [`Team::irecv`] into a buffer that is borrowed for as long as messages are under way.
    ///
    /// # Errors
    ///
    /// As for [`Team::recv`].
    pub fn irecv(
        &mut self,
        data: impl Into<RecvBuffer<'env>>,
        from: usize,
        tag: i32,
    ) -> Result<Request> {
        // SAFETY: as in `isend`.
        let request = unsafe { self.team.irecv(data.into(), from, tag) }?;
        Ok(self.noted(request))
    }

    /// [`Team::wait`].
    ///
    /// # Errors
    ///
    /// As for [`Team::wait`].
    pub fn wait(&mut self, request: Request) -> Result<Status> {
        self.requests.retain(|other| Some(*other) != request.number);
        self.team.wait(request)
    }

    /// [`Team::test`].
    ///
    /// # Errors
    ///
    /// As for [`Team::test`].
    pub fn test(&mut self, request: &mut Request) -> Result<Option<Status>> {
        let number = request.number;
        let outcome = self.team.test(request);
        if request.number.is_none() {
            self.requests.retain(|other| Some(*other) != number);
        }
        outcome
    }

    fn noted(&mut self, request: Request) -> Request {
        self.requests.extend(request.number);
        request
    }

    /// Waits for all that was not waited for; the first error, once all are over.
    fn wait_all(&mut self) -> Result<()> {
        let mut first = Ok(());
        while let Some(number) = self.requests.pop() {
            let outcome = self.team.wait_for(ANY_SOURCE, number);
            let outcome = self.team.settle_message(outcome).map(|_| ());
            if first.is_ok() {
                first = outcome;
            }
        }
        first
    }
}

impl Drop for Messages<'_, '_> {
    fn drop(&mut self) {
        if !self.requests.is_empty() {
            self.team.abandon(&self.requests);
        }
    }
}

fn checked_tag(tag: i32) -> Result<i32> {
    if tag < 0 {
        return Err(Error::argument("tag", tag, 0u64..));
    }
    Ok(tag)
}

fn rank_error(rank: usize, size: usize) -> Error {
    Error::argument("rank", rank, format!("below the size of {size}"))
}

/// Whether an error is about a call or a message alone, and not about the team.
fn is_harmless(error: &Error) -> bool {
    matches!(error, Error::Argument { .. } | Error::Truncated { .. })
}
