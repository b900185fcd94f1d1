// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a card runs for each packet, and how it schedules that.

use std::fmt;

/// How packets of a datatype are processed (sections 3.2.3 and 3.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// A handler for one form: contiguous, vector, or a list of blocks.
    Specialized,
    /// A state per virtual HPU, which catches up from packet to packet.
    HpuLocal,
    /// Read-only checkpoints: the nearest is copied, then catches up.
    RoCp,
    /// Checkpoints that move on: a sequence of packets owns one.
    RwCp,
    /// Not in the paper: every packet descends from the root of the type. It needs no checkpoints.
    Seek,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Strategy; 5] = [
        Strategy::Specialized,
        Strategy::HpuLocal,
        Strategy::RoCp,
        Strategy::RwCp,
        Strategy::Seek,
    ];

    /// Its name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Specialized => "specialized",
            Strategy::HpuLocal => "hpu-local",
            Strategy::RoCp => "ro-cp",
            Strategy::RwCp => "rw-cp",
            Strategy::Seek => "seek",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How packets get to HPUs (section 3.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Any packet to any idle HPU.
    Default,
    /// Sequences of `sequence` consecutive packets belong to one virtual HPU each; virtual HPU `i`
    /// of `vhpus` has the sequences `i`, `i + vhpus`, ... Packets of a virtual HPU are processed
    /// one at a time.
    BlockedRoundRobin {
        /// The paper's Δp.
        sequence: u64,
        /// Virtual HPUs.
        vhpus: u64,
    },
}

impl Policy {
    /// The virtual HPU of a packet; none if any HPU may have it.
    pub fn vhpu(self, packet: u64) -> Option<u64> {
        match self {
            Policy::Default => None,
            Policy::BlockedRoundRobin { sequence, vhpus } => Some(packet / sequence % vhpus),
        }
    }
}

/// A packet, as its handler sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Its number in the message.
    pub index: u64,
    /// Bytes of the packed stream before it.
    pub offset: u64,
    /// Its payload.
    pub bytes: u64,
    /// The virtual HPU that runs it, or 0.
    pub vhpu: u64,
}

impl Packet {
    /// Packet `index` of a message of `message` bytes in packets of `payload` bytes, of which the
    /// last one may be shorter.
    pub fn new(index: u64, payload: u64, message: u64, vhpu: u64) -> Packet {
        let offset = index * payload;
        Packet {
            index,
            offset,
            bytes: payload.min(message - offset),
            vhpu,
        }
    }
}

/// A DMA request of a handler: a piece of the packet to a place in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Cycles from the handler's start to the request.
    pub at: u64,
    /// Where in host memory, in bytes from the receive buffer.
    pub memory: i64,
    /// Where in the packed stream.
    pub stream: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What a handler took, in cycles, in the parts of the paper's T_PH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// T_init: until the handler looks at the datatype; it has the copy of a checkpoint.
    pub init: u64,
    /// T_setup: until the first request is issued; it has the catch-up.
    pub setup: u64,
    /// γ times T_block: from the first request to the end.
    pub blocks: u64,
}

impl Work {
    /// All of it.
    pub fn cycles(&self) -> u64 {
        self.init + self.setup + self.blocks
    }
}

/// The handlers of a message with one datatype.
pub trait Handlers {
    /// The payload handler: appends its DMA requests to `issues`, in order, and returns what it
    /// took.
    fn payload(&mut self, packet: &Packet, issues: &mut Vec<Issue>) -> Work;

    /// Cycles of the completion handler, which issues a request of 0 bytes with an event.
    fn completion(&mut self) -> u64;
}
