// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is known of one process on another machine.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::c_int;

use super::link::Way;
use super::wire::Envelope;

/// A header that the peer has sent, and that has not been received.
#[derive(Clone, Copy, Debug)]
pub struct Notice {
    pub sequence: u64,
    pub envelope: Envelope,
    pub total: u64,
}

/// A process on another machine.
#[derive(Debug)]
pub struct Peer {
    /// Which channel leads to it, and its rank there.
    pub channel: usize,
    pub place: c_int,
    /// Random numbers that only those have who have met with it.
    pub magic: [u64; 2],
    /// Bytes from which on it looks whether a message is a header.
    pub least: u64,
    pub way: Way,
    /// The number of the last message to it.
    pub sequence: u64,
    /// Headers that are under way to us, in the order in which they were sent.
    pub notices: VecDeque<Notice>,
    /// Messages that were received before their notices.
    pub early: BTreeSet<u64>,
    /// Envelopes in which messages of a header's length are the peer's own.
    pub theirs: BTreeSet<Envelope>,
    /// Envelopes in which they are ours.
    pub ours: BTreeSet<Envelope>,
    /// Messages that were handed to the MPI library and that we have not received.
    pub packed: BTreeSet<u64>,
    /// Messages that we had no room for.
    pub truncated: BTreeSet<u64>,
}

impl Peer {
    /// A notice has come.
    pub fn note(&mut self, notice: Notice) {
        // The MPI library promises no order between two communicators.
        if !self.early.remove(&notice.sequence) {
            self.notices.push_back(notice);
        }
    }

    /// A header has been received.
    pub fn forget(&mut self, sequence: u64) {
        let its = |notice: &Notice| notice.sequence == sequence;
        match self.notices.iter().position(its) {
            Some(index) => drop(self.notices.remove(index)),
            None => drop(self.early.insert(sequence)),
        }
    }

    /// Nothing has been sent.
    pub fn new((channel, place): (usize, c_int), magic: [u64; 2], least: u64) -> Peer {
        Peer {
            channel,
            place,
            magic,
            least,
            way: Way::default(),
            sequence: 0,
            notices: VecDeque::new(),
            early: BTreeSet::new(),
            theirs: BTreeSet::new(),
            ours: BTreeSet::new(),
            packed: BTreeSet::new(),
            truncated: BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_that_comes_behind_its_message_is_forgotten() {
        let mut peer = Peer::new((0, 0), [0; 2], 0);
        let notice = |sequence| Notice {
            sequence,
            envelope: Envelope { tag: 1, group: 2 },
            total: sequence,
        };
        peer.forget(1);
        peer.note(notice(1));
        assert!(peer.notices.is_empty());
        peer.note(notice(2));
        peer.note(notice(3));
        peer.forget(2);
        assert_eq!(peer.notices.front().map(|notice| notice.total), Some(3));
        assert!(peer.early.is_empty());
    }
}
