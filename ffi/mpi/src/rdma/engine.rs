// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the peers say of messages under way, and what the links move.
//!
//! ```text
//! sender                                   receiver
//!   header, in place of the message   -->  (the MPI library matches)
//!                                     <--  PULL
//!   BEGIN with the RTS of the link    -->
//!                                     <=>  CTS, WRITEs or SENDs, FIN: the link's
//! ```
//!
//! A link's transfer begins only when both ends are in it, so before BEGIN the sender may hand the
//! message to the MPI library instead, packed, whenever it wants: PACKED, and the bytes. That is
//! what it does when the receiver does not answer for a while, since it may wait in the MPI library
//! for something that comes behind this message; and it is what becomes of a message whose link
//! fails.

use std::ffi::c_int;

use libcopy_rdma::Error;
use libcopy_rdma::transfer::{Report, TransferId};

use crate::library::abi::complain;
use crate::rdma::counts;
use crate::rdma::state::{Engine, Receiving, Sending, of_peer, try_with};
use crate::rdma::wire::Wire;

/// Goes on with everything that is under way.
pub fn progress() {
    try_with(Engine::step);
}

impl Engine {
    pub(super) fn ranks_of_peers(&self) -> Vec<c_int> {
        self.peers.keys().copied().collect()
    }

    /// One round: what has come, what the links have moved, what was sent.
    pub(super) fn step(&mut self) {
        self.poll(Engine::hear);
        let ranks = self.ranks_of_peers();
        for rank in ranks {
            self.step_link(rank);
        }
        self.step_data();
    }

    /// Lets go of what was sent, and hands over what the peers have said.
    pub(super) fn poll(&mut self, hear: fn(&mut Engine, c_int, Wire)) {
        let abi = self.abi;
        self.unsent.retain_mut(|header| !header.is_sent(abi));
        for index in 0..self.channels.len() {
            self.channels[index].reap(self.abi);
            loop {
                let (place, bytes) = match self.channels[index].poll(self.abi) {
                    Ok(Some(said)) => said,
                    Ok(None) => break,
                    Err(code) => {
                        self.broken = Some(code);
                        break;
                    }
                };
                let Some(rank) = self.ranks.get(&(index, place)).copied() else {
                    continue;
                };
                match Wire::from_bytes(&bytes) {
                    Some(wire) => hear(self, rank, wire),
                    None => complain(&format!(
                        "rank {rank} has sent {} unknown bytes",
                        bytes.len()
                    )),
                }
            }
        }
    }

    pub(super) fn step_link(&mut self, rank: c_int) {
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        let Some(link) = peer.link.established() else {
            return;
        };
        let failed = loop {
            match link.progress() {
                Ok(true) => {}
                Ok(false) => break None,
                Err(why) => break Some(why),
            }
        };
        let unsent = peer.link.take_unsent();
        self.tell_all(rank, unsent);
        self.collect(rank);
        if let Some(why) = failed {
            self.fail(rank, &why);
        }
    }

    /// Transfers of a link that have ended.
    fn collect(&mut self, rank: c_int) {
        let sends = of_peer(&self.outgoing, rank, |its| match its.state {
            Sending::Moving(id) => Some(id),
            _ => None,
        });
        for (key, id) in sends {
            match self.result(rank, id) {
                Some(Ok(report)) => {
                    counts::sent(report.method, report.bytes);
                    self.learn(&report);
                    self.finish_send(key, Ok(()));
                }
                // The link's own failure is dealt with for all of its messages.
                Some(Err(_)) => self.pack(key),
                None => {}
            }
        }
        let receives = of_peer(&self.incoming, rank, |its| match its.state {
            Receiving::Moving(id) => Some(id),
            _ => None,
        });
        for (key, id) in receives {
            match self.result(rank, id) {
                Some(Ok(report)) => self.on_moved(key, &report),
                Some(Err(_)) => self.ask_again(key),
                None => {}
            }
        }
    }

    /// What a message that the link has moved says of the next ones.
    pub(super) fn learn(&mut self, report: &Report) {
        if report.is_kept {
            counts::kept();
        }
        if report.fell_back {
            self.watch.give_up();
            self.expire();
        }
    }

    /// Lets go of what is kept of memory that was unmapped, or is watched no more.
    pub(super) fn expire(&mut self) {
        let over = self.watch.take_over();
        if over.is_empty() {
            return;
        }
        let ranks = self.ranks_of_peers();
        for rank in ranks {
            let link = self.peers.get_mut(&rank);
            let Some(link) = link.and_then(|peer| peer.link.established()) else {
                continue;
            };
            let mut over = over.iter();
            if let Err(why) = over.try_for_each(|generation| link.expire(*generation)) {
                self.fail(rank, &why);
            }
        }
    }

    fn result(&mut self, rank: c_int, id: TransferId) -> Option<Result<Report, Error>> {
        self.peers.get_mut(&rank)?.link.established()?.test(id)
    }

    /// A link has failed: what it was moving goes through the MPI library.
    pub(super) fn fail(&mut self, rank: c_int, why: &Error) {
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        peer.link.fail(rank, why);
        let sends = of_peer(&self.outgoing, rank, |its| match its.state {
            Sending::Moving(_) | Sending::Pulled => Some(()),
            _ => None,
        });
        for (key, ()) in sends {
            self.pack(key);
        }
        let receives = of_peer(&self.incoming, rank, |its| match its.state {
            Receiving::Moving(_) => Some(()),
            _ => None,
        });
        for (key, ()) in receives {
            self.ask_again(key);
        }
    }

    /// A link has failed since its peer is gone, or cannot use it any more.
    pub(super) fn fail_since(&mut self, rank: c_int, reason: &str) {
        let why = Error::PeerGone {
            rank: rank as u32,
            reason: reason.to_owned(),
        };
        self.fail(rank, &why);
    }

    fn hear(&mut self, rank: c_int, wire: Wire) {
        let adapter = self.adapter.as_ref();
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        match wire {
            Wire::Hello(Some(address)) => {
                let answer = peer.link.hear(rank, adapter, &address);
                self.tell_all(rank, answer);
                self.begin_pulled(rank);
            }
            Wire::Hello(None) => {
                let why = Error::NoDevice("it has no queue pair".to_owned());
                self.fail(rank, &why);
            }
            Wire::Ready => {
                peer.link.ready(rank, adapter);
                self.begin_pulled(rank);
            }
            Wire::Link(message) => {
                peer.link.deliver(message);
                self.step_link(rank);
            }
            Wire::Notice(notice) => peer.note(notice),
            Wire::Retired(said) => peer.theirs.hear(said),
            Wire::Pull { sequence } => self.on_pull((rank, sequence)),
            Wire::Begin { sequence, rts } => self.on_begin((rank, sequence), &rts),
            Wire::Pack { sequence } => self.on_pack((rank, sequence)),
            Wire::Packed { sequence } => self.on_packed((rank, sequence)),
            Wire::Lost { sequence } => self.on_lost((rank, sequence)),
            Wire::Truncated { sequence } => self.on_truncated((rank, sequence)),
            // What it waits for is that this is received.
            Wire::End => {}
        }
    }
}
