// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handlers that a network card runs for each packet of a message with an MPI datatype.
//!
//! They are those of "Network-Accelerated Non-Contiguous Memory Transfers" (SC'19, sections 3.1 and
//! 3.2): a payload handler finds the pieces of host memory that a packet's bytes belong to, and
//! issues one DMA write without an event for each. When all packets were handled, the completion
//! handler issues one write of 0 bytes with an event, which tells the host. The datatype is an
//! [`Image`](libcopy_walk::Image) in the card's memory.
//!
//! | strategy | handler | memory beside the image | which virtual HPU gets a packet |
//! |---|---|---|---|
//! | specialised | [`Specialised::payload`] | none | any |
//! | HPU-local | [`local`] | a [`State`](libcopy_walk::State) per virtual HPU | round robin, 1 packet each |
//! | RO-CP | [`read_only`] | a state per interval | any |
//! | RW-CP | [`read_write`] | a state per interval, and a master copy of each | the owner of the checkpoint |
//! | seek | [`seek`] | none | any |
//!
//! The first four are the paper's. The fifth is ours: a state is made on the stack by a descent, so
//! that it needs neither checkpoints nor blocked round robin. All strategies issue the same DMA
//! writes for a packet.
//!
//! On the way out, [`pack_and_put`] and [`streaming_puts`] run on the host, [`process_put`] runs on
//! the card for each packet, which has no data yet (section 3.1).
//!
//! The crate is `no_std`, allocates nothing, and runs natively, on RISC-V cores of 32 bits
//! ([`abi::port`]) and on cards whose runtime is C (`include/libcopy_nic_handlers.h`).

#![no_std]
#![deny(unsafe_code)]

pub mod abi;
mod device;
mod general;
mod segment;
mod send;
mod specialised;

pub use device::{Nic, Packet};
/// The datatype of a message.
pub use libcopy_walk::Image;

pub use general::{checkpoints, completion, local, nearest, read_only, read_write, seek};
pub use segment::{DEPTH, PaperSegment, Segment};
pub use send::{Initiator, pack_and_put, process_put, streaming_puts};
pub use specialised::Specialised;
