// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counts what happens to messages.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::config;

/// What happened to messages.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Messages that were sent.
    Sent,
    /// Messages that were received.
    Received,
    /// Bytes that went through lanes.
    Pipelined,
    /// Bytes that the receiver read out of the sender's memory.
    Get,
    /// Bytes that the sender wrote into the receiver's memory.
    Put,
    /// Bytes that the sender packed since the receiver was late.
    Eager,
    /// Short messages that were packed.
    Packed,
    /// Bytes that came out of mapped memory.
    Mapped,
    /// Bytes that a GPU copied out of the sender's memory.
    Peer,
    /// Bytes that the module copied out of memory that is published or lent.
    Vectored,
    /// Bytes of layouts that were read out of a sender's memory.
    LayoutSent,
    /// Messages whose layout was known.
    LayoutKnown,
    /// Messages whose type was committed together.
    LayoutCommitted,
    /// Messages for which there was no slot.
    NoSlot,
    /// Slots that are not used any more.
    Retired,
    /// Messages that were too long.
    Truncated,
    /// Nanoseconds that finding layouts took.
    LayoutTime,
    /// Nanoseconds that mapping memory took.
    MapTime,
    /// Nanoseconds that copying took.
    CopyTime,
    /// Nanoseconds that receiving took.
    ReceiveTime,
}

/// All of them, with their names in reports.
pub const EVENTS: [(Event, &str); 20] = [
    (Event::Sent, "sent"),
    (Event::Received, "received"),
    (Event::Pipelined, "bytes pipelined"),
    (Event::Get, "bytes by get"),
    (Event::Put, "bytes by put"),
    (Event::Eager, "bytes eager"),
    (Event::Packed, "packed"),
    (Event::Mapped, "bytes mapped"),
    (Event::Peer, "bytes by peer copies"),
    (Event::Vectored, "bytes copied by the module"),
    (Event::LayoutSent, "bytes of layouts"),
    (Event::LayoutKnown, "layouts known"),
    (Event::LayoutCommitted, "layouts committed"),
    (Event::NoSlot, "without a slot"),
    (Event::Retired, "slots retired"),
    (Event::Truncated, "truncated"),
    (Event::LayoutTime, "ns of layouts"),
    (Event::MapTime, "ns of mapping"),
    (Event::CopyTime, "ns of copying"),
    (Event::ReceiveTime, "ns of receiving"),
];

static COUNTS: [AtomicU64; EVENTS.len()] = [const { AtomicU64::new(0) }; EVENTS.len()];

/// Counts.
pub fn note(event: Event, number: u64) {
    COUNTS[event as usize].fetch_add(number, Ordering::Relaxed);
}

/// Does `work`, and notes how long it took if anybody will ask.
pub fn timed<R>(event: Event, work: impl FnOnce() -> R) -> R {
    static WANTED: OnceLock<bool> = OnceLock::new();
    if !*WANTED.get_or_init(|| config::STATS.is_on(false)) {
        return work();
    }
    let start = Instant::now();
    let result = work();
    note(event, start.elapsed().as_nanos() as u64);
    result
}

/// How often each happened, or how much of it.
pub fn counts() -> impl Iterator<Item = u64> {
    COUNTS.iter().map(|count| count.load(Ordering::Relaxed))
}
