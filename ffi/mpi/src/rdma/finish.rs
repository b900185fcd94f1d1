// SPDX-License-Identifier: MIT OR Apache-2.0

//! The end: no process of a channel leaves while another one may need its answer.
//!
//! A process that calls `MPI_Finalize` has nothing to ask any more, but others may: they receive
//! what it has packed, or their link to it has failed. So there are two barriers on each channel.
//! Up to the first one everybody answers as always. Behind it, no process will match anything, and
//! nobody asks any more: what was packed and not received is received and thrown away, and
//! everybody says so to all peers that were told anything, with messages that are complete when
//! they are received. Behind the second barrier nothing is under way, and the communicators are
//! freed.

use std::ffi::c_int;

use crate::rdma::link::PeerLink;
use crate::rdma::state::{Engine, take, with};
use crate::rdma::wire::Wire;

impl Engine {
    fn begin_barriers(&mut self) {
        for channel in &mut self.channels {
            if let Err(code) = channel.begin_barrier() {
                self.broken = Some(code);
            }
        }
    }

    /// Whether all processes of all channels have begun the last barriers, or the MPI library says
    /// that they cannot.
    fn are_past_barriers(&mut self) -> bool {
        let mut all = true;
        for channel in &mut self.channels {
            match channel.is_past_barrier(self.abi) {
                Ok(is_past) => all &= is_past,
                Err(code) => self.broken = Some(code),
            }
        }
        all || self.broken.is_some()
    }

    /// Nothing is matched any more by anybody: throws away what nobody has received.
    fn close(&mut self) {
        let ranks = self.ranks_of_peers();
        for rank in ranks {
            let Some(peer) = self.peers.get_mut(&rank) else {
                continue;
            };
            peer.link = PeerLink::default();
            let (channel, place, was_told) = (peer.channel, peer.place, peer.was_told);
            for sequence in std::mem::take(&mut peer.packed) {
                self.discard_packed((rank, sequence));
            }
            if was_told {
                let told = self.channels[channel].tell_last(self.abi, place, Wire::End.to_bytes());
                if let Err(code) = told {
                    self.broken = Some(code);
                }
            }
        }
    }

    /// What a peer has said before its end.
    fn hear_last(&mut self, rank: c_int, wire: Wire) {
        match wire {
            Wire::Notice(notice) => {
                if let Some(peer) = self.peers.get_mut(&rank) {
                    peer.note(notice);
                }
            }
            Wire::Packed { sequence } => self.discard_packed((rank, sequence)),
            _ => {}
        }
    }

    /// Goes on without answering; whether nothing of ours is under way.
    fn drain(&mut self) -> bool {
        self.poll(Engine::hear_last);
        self.step_data();
        let is_busy = !self.unwanted.is_empty() || self.channels.iter().any(|its| its.is_busy());
        !is_busy || self.broken.is_some()
    }
}

/// Before `MPI_Finalize`; `get_on` lets everything else get on meanwhile.
pub fn finish(get_on: impl Fn()) {
    let until = |is_over: &mut dyn FnMut() -> bool| {
        while !is_over() {
            get_on();
            std::thread::yield_now();
        }
    };
    with(Engine::begin_barriers);
    until(&mut || {
        with(|engine| {
            engine.step();
            engine.are_past_barriers()
        })
        .unwrap_or(true)
    });
    let Some(mut engine) = take() else {
        return;
    };
    engine.close();
    until(&mut || engine.drain());
    engine.begin_barriers();
    until(&mut || {
        engine.drain();
        engine.are_past_barriers()
    });
    if engine.broken.is_some() {
        // What the library cannot complete it may still read and write.
        std::mem::forget(engine);
        return;
    }
    for header in std::mem::take(&mut engine.unsent) {
        header.leave();
    }
    for peer in engine.peers.values_mut() {
        // The library may still have to send these headers, which nobody has received.
        std::mem::forget(std::mem::take(&mut peer.unreceived));
    }
    for channel in std::mem::take(&mut engine.channels) {
        channel.free();
    }
}
