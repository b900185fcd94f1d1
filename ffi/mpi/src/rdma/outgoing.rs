// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages that are sent.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libcopy::scratch::no_memory;

use crate::decide::environment;
use crate::library::abi::Word;
use crate::library::errors::no_room;
use crate::rdma::control::{TAGS, UnsentHeader};
use crate::rdma::counts;
use crate::rdma::header::Header;
use crate::rdma::peer::Unreceived;
use crate::rdma::state::{Elements, Engine, Key, Outgoing, Route, Sending, of_peer, with};
use crate::rdma::wire::{Notice, Wire};

impl Engine {
    pub(super) fn finish_send(&mut self, key: Key, result: Result<(), c_int>) {
        if let Some(outgoing) = self.outgoing.get_mut(&key) {
            outgoing.state = Sending::Done(result);
        }
    }

    /// Hands a message to the MPI library, packed.
    pub(super) fn pack(&mut self, key: Key) {
        let (rank, sequence) = key;
        let (Some(outgoing), Some(peer)) = (self.outgoing.get(&key), self.peers.get(&rank)) else {
            return;
        };
        let (channel, place) = (peer.channel, peer.place);
        let layout = &outgoing.elements.layout;
        let total = layout.size();
        let mut bytes: Vec<u8> = Vec::new();
        if bytes.try_reserve_exact(total as usize).is_err() {
            self.tell(rank, &Wire::Lost { sequence });
            return self.finish_send(key, Err(no_room(no_memory(total as usize))));
        }
        // SAFETY: the program has lent its elements until the message is done; all bytes are
        // written.
        unsafe {
            let from = outgoing.elements.base as *const u8;
            layout.pack_raw(from, 0..total, bytes.as_mut_ptr());
            bytes.set_len(total as usize);
        }
        self.tell(rank, &Wire::Packed { sequence });
        let sent = self.channels[channel].send_data(self.abi, place, sequence, bytes);
        counts::sent_through_mpi(total);
        self.finish_send(key, sent);
    }

    /// Sends over the link what the receiver wants, if there is a link.
    pub(super) fn begin(&mut self, key: Key) {
        let (rank, sequence) = key;
        let (Some(outgoing), Some(peer)) = (self.outgoing.get_mut(&key), self.peers.get_mut(&rank))
        else {
            return;
        };
        if peer.link.has_failed() {
            return self.pack(key);
        }
        let Some(link) = peer.link.established() else {
            outgoing.state = Sending::Pulled;
            return;
        };
        let buffer = outgoing.elements.lent(&mut self.watch, link);
        // SAFETY: the program has lent its elements until the message is done, which it is after
        // the transfer or when the link has ended.
        match unsafe { link.start_matched_send(&buffer) } {
            Ok((id, rts)) => {
                outgoing.state = Sending::Moving(id);
                self.tell(rank, &Wire::Begin { sequence, rts });
            }
            Err(_) => self.pack(key),
        }
        self.expire();
    }

    /// The link to a peer may be ready, or have failed.
    pub(super) fn begin_pulled(&mut self, rank: c_int) {
        let pulled = of_peer(&self.outgoing, rank, |its| match its.state {
            Sending::Pulled => Some(()),
            _ => None,
        });
        for (key, ()) in pulled {
            self.begin(key);
        }
    }

    /// The receiver has matched a message, and wants its bytes if we still have them.
    pub(super) fn on_pull(&mut self, key: Key) {
        if self.is_matched(key) {
            self.want_link(key.0);
            self.begin(key);
        }
    }

    /// The receiver has matched a message, and has no room for it.
    pub(super) fn on_truncated(&mut self, key: Key) {
        if self.is_matched(key) {
            self.finish_send(key, Ok(()));
            self.tell(key.0, &Wire::Lost { sequence: key.1 });
        }
    }

    /// The receiver has matched a message; whether that waits for nothing else.
    fn is_matched(&mut self, key: Key) -> bool {
        self.is_received(key);
        let is_waiting = |its: &Outgoing| matches!(its.state, Sending::Announced);
        self.outgoing.get(&key).is_some_and(is_waiting)
    }

    fn is_received(&mut self, (rank, sequence): Key) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.unreceived.remove(&sequence);
        }
    }

    /// The receiver wants a message through the MPI library.
    pub(super) fn on_pack(&mut self, key: Key) {
        let (rank, sequence) = key;
        match self.outgoing.get(&key).map(|its| &its.state) {
            Some(Sending::Done(_)) | None => self.tell(rank, &Wire::Lost { sequence }),
            // What a transfer alone cannot do, both ends know before the receiver asks: its link
            // has failed.
            Some(Sending::Moving(_)) => {
                self.fail_since(rank, "its end of the link has failed");
            }
            Some(Sending::Announced | Sending::Pulled) => self.pack(key),
        }
    }
}

/// A message that is sent.
pub struct Send {
    key: Key,
    header: Arc<[u8]>,
    started: Instant,
    patience: Patience,
    /// How long that is.
    limit: Duration,
}

/// How long a sender waits for its receiver to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// The program waits in any case.
    Blocking,
    /// The program wants to go on.
    Nonblocking,
}

/// For so long a blocking send waits for its receiver to ask, and a millisecond more for every 4
/// MiB.
const PATIENCE: Duration = Duration::from_millis(100);
/// The same of a nonblocking send: a receiver that waits answers within some exchanges of short
/// messages.
const SHORT_PATIENCE: Duration = Duration::from_micros(500);
/// The same where `LIBCOPY_MPI_MIN` asks for everything.
const LONG_PATIENCE: Duration = Duration::from_secs(10);

impl Send {
    /// Makes a message known; `None` if it cannot go this way.
    pub fn begin(route: &Route, elements: Elements, patience: Patience) -> Option<Send> {
        with(|engine| {
            let Route {
                rank,
                envelope,
                communicator,
            } = *route;
            let peer = engine.peers.get_mut(&rank)?;
            let total = elements.layout.size();
            let sequence = peer.sequence + 1;
            // A probe could not tell two headers with the same envelope from each other.
            let is_other =
                |its: &Unreceived| its.envelope == envelope && its.communicator != communicator;
            let oldest = peer.unreceived.keys().next();
            if peer.ours.contains(envelope)
                || peer.unreceived.values().any(is_other)
                // Two packed messages that are not received must not have the same tag.
                || oldest.is_some_and(|oldest| sequence - oldest >= TAGS)
                || (patience == Patience::Nonblocking && !peer.backoff.admits())
            {
                return None;
            }
            peer.sequence = sequence;
            let header = Header {
                magic: peer.magic,
                sequence,
                sender: engine.rank as u64,
                total,
            };
            let header: Arc<[u8]> = header.to_bytes().into();
            let unreceived = Unreceived {
                envelope,
                communicator,
                _header: header.clone(),
            };
            peer.unreceived.insert(sequence, unreceived);
            let key = (rank, sequence);
            let outgoing = Outgoing {
                elements,
                state: Sending::Announced,
            };
            engine.outgoing.insert(key, outgoing);
            let notice = Notice {
                sequence,
                envelope,
                total,
            };
            engine.tell(rank, &Wire::Notice(notice));
            engine.want_link(rank);
            let usual = match patience {
                _ if environment::least().is_some() => LONG_PATIENCE,
                Patience::Blocking => PATIENCE,
                Patience::Nonblocking => SHORT_PATIENCE,
            };
            Some(Send {
                key,
                header,
                started: Instant::now(),
                patience,
                limit: usual + Duration::from_millis(total >> 22),
            })
        })?
    }

    /// What goes through the MPI library in its place.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The MPI library has not taken the header: there is no such message.
    pub fn withdraw(self) {
        let (rank, sequence) = self.key;
        with(|engine| {
            engine.is_received(self.key);
            engine.tell(rank, &Wire::Lost { sequence });
        });
    }

    /// The program has its buffer back, and the library may not have sent the header, whose request
    /// this is: nobody waits for that.
    pub fn leave(self, request: Word) {
        let header = UnsentHeader::new(request, self.header.clone());
        with(|engine| engine.unsent.push(header));
    }

    /// Goes on; whether the program may have its buffer back.
    pub fn advance(&mut self) -> Option<Result<(), c_int>> {
        let key = self.key;
        let is_late = self.started.elapsed() > self.limit;
        with(|engine| {
            engine.step();
            let outgoing = engine.outgoing.get(&key)?;
            let is_unanswered = matches!(outgoing.state, Sending::Announced);
            if let (Patience::Nonblocking, Some(peer)) =
                (self.patience, engine.peers.get_mut(&key.0))
            {
                if is_late || !is_unanswered {
                    // Once is enough.
                    self.patience = Patience::Blocking;
                    peer.backoff.learn(!is_unanswered);
                }
            }
            if is_late && is_unanswered {
                engine.pack(key);
            }
            match engine.outgoing.get(&key).map(|its| &its.state) {
                Some(Sending::Done(result)) => Some(*result),
                _ => engine.broken.map(Err),
            }
        })
        .unwrap_or(Some(Ok(())))
    }
}

impl Drop for Send {
    fn drop(&mut self) {
        with(|engine| {
            let moving = |its: &Outgoing| matches!(its.state, Sending::Moving(_));
            let outgoing = engine.outgoing.remove(&self.key);
            if outgoing.as_ref().is_some_and(moving) {
                // It is not done, but its buffer is the program's again.
                engine.fail_since(self.key.0, "the MPI library has failed");
            }
        });
    }
}
