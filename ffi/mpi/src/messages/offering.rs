// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which messages out of device memory may be offered to their receivers ([`gpu::Offer`]), and how
//! that is done.

use std::ffi::c_int;
use std::sync::Arc;

use libcopy::p2p::{Content, Pause, Shared, header};

use crate::comm::communicator;
use crate::comm::processes::World;
use crate::gpu;
use crate::messages::arguments::{Address, Elements};
use crate::messages::waiting;
use crate::types::datatype::{self, Known};

/// Whether a send may wait for what the program has told its GPU to do before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// As long as it takes, and then for the receiver.
    Blocking,
    /// As long as it takes, but the message may not need this process later while that waits
    /// elsewhere.
    Start,
    /// Not at all, nor may the message need this process later while that waits elsewhere.
    None,
}

/// A message that may be offered, as far as its length, its receiver and its tag tell.
#[derive(Debug)]
pub struct Candidate {
    known: Arc<Known>,
    bytes: u64,
    /// To which process.
    member: usize,
    tag: c_int,
}

impl Candidate {
    /// `None` if the message goes another way, packed.
    pub fn of(world: &World, what: Elements, to: Address) -> Option<Candidate> {
        let count = what.count?;
        let least = world.least[0].min(world.least[1]);
        if datatype::quick_size(what.datatype, count).is_some_and(|bytes| bytes < least) {
            return None;
        }
        let known = datatype::of(world.abi, what.datatype)?;
        let bytes = known.size.checked_mul(count as u64)?;
        // What has a header's length is looked at where it is forwarded.
        if bytes < least || header::slot_of(bytes).is_some() || to.tag < 0 || known.loses_bytes() {
            return None;
        }
        let its = communicator::of(world.abi, to.comm).ok()?;
        Some(Candidate {
            known,
            bytes,
            member: world.peers(&its, to.comm).of(to.dest)?,
            tag: to.tag,
        })
    }

    /// Offers it, as its slot says from now on; `offer` is told the number of the receiver's
    /// process. `None` if it goes another way.
    pub fn post(
        &self,
        world: &World,
        patience: Patience,
        offer: impl FnOnce(usize) -> Option<gpu::Offer>,
    ) -> Option<Shared> {
        let is_left = patience != Patience::Blocking;
        if world.is_closed(self.member) || is_left && !gpu::may_be_left() {
            return None;
        }
        let offer = offer(self.member)?;
        let mut written = offer.written()?;
        let mut pause = Pause::new();
        while !written.is_done().ok()? {
            if patience == Patience::None {
                return None;
            }
            if pause.step() {
                waiting::progress(world);
            }
        }
        let size = offer.size();
        let content = Content::Device(Box::new(offer));
        let fits = |size| self.known.ends_at(size);
        let route = (self.bytes, self.member, self.tag);
        // SAFETY: nothing of it is in host memory.
        let shared = unsafe { world.post(content, None, route, 0, fits) }?;
        gpu::note_offered(size);
        Some(shared)
    }
}
