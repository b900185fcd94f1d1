// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is known of one process on another machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;

use crate::rdma::link::PeerLink;
use crate::rdma::wire::{Envelope, Notice};

/// Envelopes in which messages of a header's length are the program's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retired {
    some: BTreeSet<Envelope>,
    all: bool,
}

impl Retired {
    /// Of more envelopes than these nobody keeps a list: then all are retired.
    const MOST: usize = 256;

    /// Whether this one is among them.
    pub fn contains(&self, envelope: Envelope) -> bool {
        self.all || self.some.contains(&envelope)
    }

    /// Retires an envelope; what the peer has to be told, if that is new: the envelope, or `None`
    /// for all of them.
    pub fn add(&mut self, envelope: Envelope) -> Option<Option<Envelope>> {
        if self.contains(envelope) {
            return None;
        }
        if self.some.len() < Self::MOST {
            self.some.insert(envelope);
            return Some(Some(envelope));
        }
        self.hear(None);
        Some(None)
    }

    /// What [`Retired::add`] has given at the peer.
    pub fn hear(&mut self, said: Option<Envelope>) {
        match said {
            Some(envelope) => drop(self.add(envelope)),
            None => {
                self.all = true;
                self.some.clear();
            }
        }
    }

    /// What a peer has to be told that has not been told anything.
    pub fn each(&self) -> Vec<Option<Envelope>> {
        let some = self.some.iter().copied().map(Some);
        some.chain(self.all.then_some(None)).collect()
    }
}

/// A message whose header has not been received, as far as its sender knows.
#[derive(Debug)]
pub struct Unreceived {
    pub envelope: Envelope,
    /// The number of its communicator.
    pub communicator: u64,
    /// What the MPI library may still read.
    pub _header: Arc<[u8]>,
}

/// Which nonblocking sends wait for their receiver: the longer it has not answered, the fewer.
#[derive(Debug, Default)]
pub struct Backoff {
    /// Sends that do not, before the next one that does.
    left: u32,
    /// What that was last.
    last: u32,
}

impl Backoff {
    const MOST: u32 = 64;

    /// Whether the next send waits.
    pub fn admits(&mut self) -> bool {
        let admits = self.left == 0;
        self.left = self.left.saturating_sub(1);
        admits
    }

    /// What has come of one that waited.
    pub fn learn(&mut self, was_answered: bool) {
        self.last = if was_answered {
            0
        } else {
            (2 * self.last).clamp(1, Self::MOST)
        };
        self.left = self.last;
    }
}

/// A process on another machine.
#[derive(Debug, Default)]
pub struct Peer {
    /// Which channel leads to it, and its rank there.
    pub channel: usize,
    pub place: c_int,
    /// Random numbers that only those have who have met with it.
    pub magic: [u64; 2],
    /// Bytes from which on it looks whether a message is a header.
    pub least: u64,
    pub link: PeerLink,
    /// Whether it has been told anything.
    pub was_told: bool,
    /// The number of the last message to it.
    pub sequence: u64,
    /// Messages to it whose headers it has not received, as far as we know.
    pub unreceived: BTreeMap<u64, Unreceived>,
    pub backoff: Backoff,
    /// Headers that are under way to us, in the order in which they were sent, and whether a
    /// matched probe has taken one out of the library's queue.
    notices: VecDeque<(Notice, bool)>,
    /// Messages that were received before their notices.
    early: BTreeSet<u64>,
    /// Envelopes in which messages of a header's length are the peer's own.
    pub theirs: Retired,
    /// Envelopes in which they are ours.
    pub ours: Retired,
    /// Messages that were handed to the MPI library and that we have not received.
    pub packed: BTreeSet<u64>,
    /// Messages that we had no room for, and their bytes, until the sender has said whether it has
    /// packed them.
    pub truncated: BTreeMap<u64, u64>,
}

impl Peer {
    /// A notice has come.
    pub fn note(&mut self, notice: Notice) {
        // The MPI library promises no order between two communicators.
        if !self.early.remove(&notice.sequence) {
            self.notices.push_back((notice, false));
        }
    }

    /// A header has been received.
    pub fn forget(&mut self, sequence: u64) {
        if self.withdraw(sequence).is_none() {
            self.early.insert(sequence);
        }
    }

    fn place_of(&self, sequence: u64) -> Option<usize> {
        let its = |(notice, _): &(Notice, bool)| notice.sequence == sequence;
        self.notices.iter().position(its)
    }

    /// A header will not come; its notice, if that had.
    pub fn withdraw(&mut self, sequence: u64) -> Option<Notice> {
        let place = self.place_of(sequence)?;
        self.notices.remove(place).map(|(notice, _)| notice)
    }

    /// Whether a header is under way to us.
    pub fn has_notice(&self, sequence: u64) -> bool {
        self.place_of(sequence).is_some()
    }

    /// The oldest header in the library's queue with this envelope.
    pub fn oldest(&self, envelope: Envelope) -> Option<Notice> {
        let mut queued = self.notices.iter().filter(|(_, is_matched)| !is_matched);
        let found = queued.find(|(notice, _)| notice.envelope == envelope);
        found.map(|(notice, _)| *notice)
    }

    /// A header is not in the library's queue any more, though it has not been received.
    pub fn matched(&mut self, sequence: u64) {
        if let Some(place) = self.place_of(sequence) {
            self.notices[place].1 = true;
        }
    }

    /// Nothing has been sent.
    pub fn new((channel, place): (usize, c_int), magic: [u64; 2], least: u64) -> Peer {
        Peer {
            channel,
            place,
            magic,
            least,
            ..Peer::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(sequence: u64) -> Notice {
        Notice {
            sequence,
            envelope: Envelope { tag: 1, group: 2 },
            total: sequence,
        }
    }

    #[test]
    fn a_notice_that_comes_behind_its_message_is_forgotten() {
        let mut peer = Peer::new((0, 0), [0; 2], 0);
        peer.forget(1);
        peer.note(notice(1));
        assert!(peer.notices.is_empty());
        peer.note(notice(2));
        peer.note(notice(3));
        peer.forget(2);
        assert_eq!(
            peer.notices.front().map(|(notice, _)| notice.total),
            Some(3)
        );
        assert!(peer.early.is_empty());
    }

    #[test]
    fn the_oldest_notice_is_the_oldest_in_the_queue() {
        let mut peer = Peer::new((0, 0), [0; 2], 0);
        let envelope = notice(0).envelope;
        for sequence in 1..4 {
            peer.note(notice(sequence));
        }
        peer.matched(1);
        assert_eq!(peer.oldest(envelope), Some(notice(2)));
        assert_eq!(
            [peer.withdraw(2), peer.withdraw(2)],
            [Some(notice(2)), None]
        );
        assert_eq!(peer.oldest(envelope), Some(notice(3)));
        let other = Envelope { tag: 2, group: 2 };
        assert_eq!(peer.oldest(other), None);
        peer.forget(1);
        assert!(peer.early.is_empty() && peer.has_notice(3));
    }

    #[test]
    fn a_receiver_that_does_not_answer_is_waited_for_less_and_less() {
        let mut backoff = Backoff::default();
        let mut waits = Vec::new();
        for message in 0..400 {
            if backoff.admits() {
                waits.push(message);
                backoff.learn(false);
            }
        }
        assert_eq!(waits[..8], [0, 2, 5, 10, 19, 36, 69, 134]);
        assert!(
            waits[8..]
                .iter()
                .zip(&waits[7..])
                .all(|(next, this)| next - this == 65)
        );
        while !backoff.admits() {}
        backoff.learn(true);
        assert!(backoff.admits() && backoff.admits());
    }

    #[test]
    fn of_too_many_envelopes_all_are_retired() {
        let (mut ours, mut theirs) = (Retired::default(), Retired::default());
        let envelope = |tag| Envelope { tag, group: 0 };
        for tag in 0..1000 {
            if let Some(said) = ours.add(envelope(tag)) {
                theirs.hear(said);
            }
            assert_eq!(ours, theirs);
            assert!(ours.contains(envelope(tag)) && ours.some.len() <= Retired::MOST);
            assert_eq!(ours.add(envelope(tag)), None);
        }
        assert!(ours.contains(envelope(2000)));
        let mut late = Retired::default();
        for said in ours.each() {
            late.hear(said);
        }
        assert_eq!(late, ours);
    }
}
