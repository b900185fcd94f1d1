// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages that are received, and what a probe has to know of them.

use std::ffi::c_int;

use libcopy_rdma::transfer::Report;

use crate::library::errors;
use crate::rdma::counts;
use crate::rdma::header::{BYTES, Header};
use crate::rdma::state::{Elements, Engine, Incoming, Key, Receiving, with};
use crate::rdma::wire::{Envelope, Notice, Wire};

impl Engine {
    pub(super) fn finish_receive(&mut self, key: Key, result: Result<(), c_int>) {
        if let Some(incoming) = self.incoming.get_mut(&key) {
            incoming.state = Receiving::Done(result);
        }
    }

    /// The link has moved the bytes of a message.
    pub(super) fn on_moved(&mut self, key: Key, report: &Report) {
        let bytes = report.bytes;
        self.learn(report);
        let expected = self.incoming.get(&key).map_or(0, |its| its.total);
        let result = if bytes == expected {
            Ok(())
        } else {
            let rank = key.0;
            let text = format!("rank {rank} has sent {bytes} bytes of a message of {expected}");
            Err(errors::failure(self.abi, &text))
        };
        self.finish_receive(key, result);
    }

    /// Wants a message through the MPI library.
    pub(super) fn ask_again(&mut self, key: Key) {
        if let Some(incoming) = self.incoming.get_mut(&key) {
            incoming.state = Receiving::Asked;
            self.tell(key.0, &Wire::Pack { sequence: key.1 });
        }
    }

    pub(super) fn on_begin(&mut self, key: Key, rts: &[u8]) {
        let (Some(incoming), Some(peer)) =
            (self.incoming.get_mut(&key), self.peers.get_mut(&key.0))
        else {
            return;
        };
        if !matches!(incoming.state, Receiving::Asked) {
            return;
        }
        let Some(link) = peer.link.established() else {
            return self.ask_again(key);
        };
        let buffer = incoming.elements.lent(&mut self.watch, link);
        // SAFETY: the program has lent its elements until the receive is done, which it is after
        // the transfer or when the link has ended.
        match unsafe { link.start_matched_receive(&buffer, rts) } {
            Ok(id) => {
                incoming.state = Receiving::Moving(id);
                self.step_link(key.0);
            }
            Err(why) => {
                self.fail(key.0, &why);
                self.ask_again(key);
            }
        }
        self.expire();
    }

    /// The sender has handed a message to the MPI library.
    pub(super) fn on_packed(&mut self, key: Key) {
        let (rank, sequence) = key;
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        let (channel, place) = (peer.channel, peer.place);
        if let Some(total) = peer.truncated.remove(&sequence) {
            return self.discard(channel, (place, sequence), total);
        }
        let Some(incoming) = self.incoming.get_mut(&key) else {
            // What has been received already is packed by no correct peer.
            if peer.has_notice(sequence) {
                peer.packed.insert(sequence);
            }
            return;
        };
        let total = incoming.total;
        match incoming.state {
            Receiving::Asked => {}
            Receiving::Moving(_) => {
                // The sender's end of the link has failed: nothing may be written here any more.
                incoming.state = Receiving::Asked;
                self.fail_since(rank, "its end of the link has failed");
            }
            Receiving::Packed(_) | Receiving::Done(_) => return,
        }
        let data = self.channels[channel].receive_data(self.abi, place, sequence, total);
        if let Some(incoming) = self.incoming.get_mut(&key) {
            incoming.state = match data {
                Ok(data) => Receiving::Packed(data),
                Err(code) => Receiving::Done(Err(code)),
            };
        }
    }

    /// Receives packed bytes that nobody has room for.
    fn discard(&mut self, channel: usize, (place, sequence): (c_int, u64), total: u64) {
        match self.channels[channel].receive_data(self.abi, place, sequence, total) {
            Ok(data) => self.unwanted.push(data),
            Err(code) => self.broken = Some(code),
        }
    }

    /// Receives packed bytes of a message that nobody will receive any more.
    pub(super) fn discard_packed(&mut self, (rank, sequence): Key) {
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        let (channel, place) = (peer.channel, peer.place);
        let noticed = peer.withdraw(sequence).map(|notice| notice.total);
        if let Some(total) = peer.truncated.remove(&sequence).or(noticed) {
            self.discard(channel, (place, sequence), total);
        }
    }

    /// The sender does not have a message any more.
    pub(super) fn on_lost(&mut self, key: Key) {
        let (rank, sequence) = key;
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.truncated.remove(&sequence);
            peer.withdraw(sequence);
        }
        let is_asked = |its: &Incoming| matches!(its.state, Receiving::Asked);
        if self.incoming.get(&key).is_some_and(is_asked) {
            let text = format!("a message of rank {rank} was lost with its link");
            let code = errors::failure(self.abi, &text);
            self.finish_receive(key, Err(code));
        }
    }

    /// Packed bytes that have come.
    pub(super) fn step_data(&mut self) {
        let abi = self.abi;
        for incoming in self.incoming.values_mut() {
            let Receiving::Packed(data) = &mut incoming.state else {
                continue;
            };
            let elements = &incoming.elements;
            let result = match data.is_complete(abi) {
                Ok(false) => continue,
                Ok(true) => {
                    let to = elements.base as *mut u8;
                    let range = 0..incoming.total;
                    // SAFETY: `data` has the bytes of `range`, all of which have come; the program
                    // has lent its elements.
                    unsafe { elements.layout.unpack_raw(data.bytes.as_ptr(), range, to) };
                    Ok(())
                }
                Err(code) => Err(code),
            };
            incoming.state = Receiving::Done(result);
        }
        self.unwanted
            .retain_mut(|data| !data.is_complete(abi).unwrap_or(true));
    }

    /// A message has been matched that there is no room for.
    fn refuse(&mut self, rank: c_int, (sequence, total): (u64, u64)) {
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        peer.forget(sequence);
        let (channel, place) = (peer.channel, peer.place);
        if peer.packed.remove(&sequence) {
            self.discard(channel, (place, sequence), total);
        } else {
            peer.truncated.insert(sequence, total);
        }
        self.tell(rank, &Wire::Truncated { sequence });
    }
}

/// A message that is received.
pub struct Receive {
    key: Key,
}

impl Receive {
    /// Asks the sender of a header for its message, of which `elements` have as many bytes.
    pub fn begin(rank: c_int, header: &Header, elements: Elements) -> Option<Receive> {
        let (sequence, total) = (header.sequence, header.total);
        let key = (rank, sequence);
        counts::received();
        with(|engine| {
            let peer = engine.peers.get_mut(&rank)?;
            peer.forget(sequence);
            let is_packed = peer.packed.remove(&sequence);
            let incoming = Incoming {
                elements,
                total,
                state: Receiving::Asked,
            };
            engine.incoming.insert(key, incoming);
            // Even if the bytes are here: the sender has to know that the header is not under way
            // any more.
            engine.tell(rank, &Wire::Pull { sequence });
            if is_packed {
                engine.on_packed(key);
            } else {
                engine.want_link(rank);
            }
            Some(Receive { key })
        })?
    }

    /// Goes on; whether the message is there.
    pub fn advance(&mut self) -> Option<Result<(), c_int>> {
        let key = self.key;
        with(|engine| {
            engine.step();
            match engine.incoming.get(&key).map(|its| &its.state) {
                Some(Receiving::Done(result)) => Some(*result),
                Some(_) => engine.broken.map(Err),
                None => Some(Ok(())),
            }
        })
        .unwrap_or(Some(Ok(())))
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        with(|engine| {
            match engine.incoming.remove(&self.key).map(|its| its.state) {
                // It is not there, but its buffer is the program's again.
                Some(Receiving::Moving(_)) => {
                    engine.fail_since(self.key.0, "the MPI library has failed");
                }
                // The library may still write there.
                Some(Receiving::Packed(data)) => engine.unwanted.push(data),
                _ => {}
            }
        });
    }
}

/// The message of a header has been matched, and there is no room for its bytes, which is an error
/// at the receiver alone.
pub fn refuse(rank: c_int, header: &Header) {
    with(|engine| engine.refuse(rank, (header.sequence, header.total)));
}

/// Reads the header of a message from a rank of `MPI_COMM_WORLD`; `None` if it is none. `read`
/// gives its first bytes.
pub fn header_of(rank: c_int, read: impl FnOnce(&mut [u8; BYTES]) -> bool) -> Option<Header> {
    let magic = with(|engine| engine.peers.get(&rank).map(|peer| peer.magic))??;
    let mut bytes = [0; BYTES];
    if !read(&mut bytes) {
        return None;
    }
    Header::from_bytes(&bytes, magic).filter(|header| header.sender == rank as u64)
}

/// What the MPI library could not receive as a whole begins with these bytes. If that was a header,
/// its sender learns that there is no room for the message.
pub fn refuse_cut(bytes: &[u8; BYTES]) {
    with(|engine| {
        engine.step();
        let mut peers = engine.peers.iter();
        let found = peers.find_map(|(rank, peer)| {
            let header = Header::from_bytes(bytes, peer.magic)?;
            // The elements may hold the start of a header that was cut off before.
            (header.sender == *rank as u64 && peer.has_notice(header.sequence))
                .then_some((*rank, header))
        });
        if let Some((rank, header)) = found {
            engine.refuse(rank, (header.sequence, header.total));
        }
    });
}

/// A message of a header's length from a rank has been found, and all messages that were received
/// before have been looked at: what its sender has said of it, `None` if it is the program's own.
/// What its sender has said was sent before, so that this waits for nothing but the MPI library.
fn await_notice<R>(
    rank: c_int,
    envelope: Envelope,
    work: impl Fn(&mut Engine, Notice) -> R,
) -> Option<R> {
    loop {
        let found = with(|engine| {
            engine.step();
            let peer = engine.peers.get(&rank)?;
            if let Some(notice) = peer.oldest(envelope) {
                return Some(Some(work(engine, notice)));
            }
            let is_over = peer.theirs.contains(envelope) || engine.broken.is_some();
            is_over.then_some(None)
        })?;
        if let Some(found) = found {
            return found;
        }
        std::thread::yield_now();
    }
}

/// How long the message is that a probe has found; see [`await_notice`].
pub fn true_length(rank: c_int, envelope: Envelope) -> Option<u64> {
    await_notice(rank, envelope, |_, notice| notice.total)
}

/// The message that a probe has found was taken out of the library's queue: the next one that is
/// found is another.
pub fn matched(rank: c_int, envelope: Envelope) {
    await_notice(rank, envelope, |engine, notice| {
        if let Some(peer) = engine.peers.get_mut(&rank) {
            peer.matched(notice.sequence);
        }
    });
}

/// The message was received where there is less room than for its bytes; whether it is one.
pub fn refuse_oldest(rank: c_int, envelope: Envelope) -> bool {
    await_notice(rank, envelope, |engine, notice| {
        engine.refuse(rank, (notice.sequence, notice.total));
    })
    .is_some()
}
