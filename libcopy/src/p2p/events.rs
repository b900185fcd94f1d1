// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counts what happens to messages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::stats;

/// What happened to messages.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Sent,
    Received,
    Streamed,
    Fetched,
    Pushed,
    Buffered,
    Packed,
    Attached,
    LayoutSent,
    LayoutKnown,
    LayoutCommitted,
    NoSlot,
    Retired,
    Truncated,
    LayoutTime,
    AttachTime,
    CopyTime,
    ReceiveTime,
}

/// All of them, with their names in reports.
pub const EVENTS: [(Event, &str); 18] = [
    (Event::Sent, "sent"),
    (Event::Received, "received"),
    (Event::Streamed, "bytes pipelined"),
    (Event::Fetched, "bytes by get"),
    (Event::Pushed, "bytes by put"),
    (Event::Buffered, "bytes eager"),
    (Event::Packed, "packed"),
    (Event::Attached, "bytes mapped"),
    (Event::LayoutSent, "bytes of layouts"),
    (Event::LayoutKnown, "layouts known"),
    (Event::LayoutCommitted, "layouts committed"),
    (Event::NoSlot, "without a slot"),
    (Event::Retired, "slots retired"),
    (Event::Truncated, "truncated"),
    (Event::LayoutTime, "ns of layouts"),
    (Event::AttachTime, "ns of mapping"),
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
    if !stats::wanted() {
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
