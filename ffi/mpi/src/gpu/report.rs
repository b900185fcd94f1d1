// SPDX-License-Identifier: MIT OR Apache-2.0

//! How often device memory was replaced, for the report at the end.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::watch;

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Buffers whose bytes were packed into host memory.
    Sent,
    /// Buffers whose bytes were unpacked from host memory.
    Received,
    /// Bytes of both.
    Bytes,
    /// Calls of `MPI_Pack`, `MPI_Unpack`.
    Packed,
}

const NAMES: [(Event, &str); 4] = [
    (Event::Sent, "buffers sent"),
    (Event::Received, "buffers received"),
    (Event::Bytes, "bytes"),
    (Event::Packed, "calls that packed or unpacked"),
];

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Counts it.
pub fn note(event: Event, times: u64) {
    COUNTS[event as usize].fetch_add(times, Ordering::Relaxed);
}

/// The numbers; none in a program that has not loaded the driver.
pub fn numbers() -> Vec<(&'static str, u64)> {
    if watch::driver().is_none() {
        return Vec::new();
    }
    let count = |event: Event| COUNTS[event as usize].load(Ordering::Relaxed);
    NAMES.map(|(event, name)| (name, count(event))).to_vec()
}

/// A line of the report.
pub fn report() -> Option<String> {
    let numbers = numbers();
    let mut text = "libcopy_mpi: device memory:".to_owned();
    for (name, number) in &numbers {
        let _ = write!(text, " {name} {number},");
    }
    text.pop();
    (!numbers.is_empty()).then_some(text)
}
