// SPDX-License-Identifier: MIT OR Apache-2.0

//! How often device memory was replaced, and by which method, for the report at the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use libcopy::lock::lock;
use libcopy_gpu::Origin;

use crate::gpu::method::{Method, Size};
use crate::gpu::{method, watch};

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Buffers whose bytes were packed for the MPI library.
    Sent,
    /// Buffers whose bytes were unpacked from what it received.
    Received,
    /// Bytes of both.
    Bytes,
    /// Calls of `MPI_Pack`, `MPI_Unpack`.
    Packed,
    /// Buffers in device memory that the MPI library was handed, packed or as they are.
    HandedOver,
    /// Nonblocking sends that returned before their bytes were packed.
    Delayed,
    /// Messages that were sent for their receivers to copy them out of device memory.
    Offered,
    /// Those of them that had to be packed.
    Packing,
    /// Messages that this process copied out of device memory of their senders'.
    Copied,
}

const NAMES: [(Event, &str); 9] = [
    (Event::Sent, "buffers sent"),
    (Event::Received, "buffers received"),
    (Event::Bytes, "bytes"),
    (Event::Packed, "calls that packed or unpacked"),
    (Event::HandedOver, "buffers handed over"),
    (Event::Delayed, "sends started later"),
    (Event::Offered, "messages offered to peers"),
    (Event::Packing, "offered in vain"),
    (Event::Copied, "peer copies"),
];

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Counts it.
pub fn note(event: Event, times: u64) {
    COUNTS[event as usize].fetch_add(times, Ordering::Relaxed);
}

/// How often a method was used: packed, unpacked.
type Uses = [u64; 2];

/// By size class, length of pieces, and method.
static METHODS: Mutex<BTreeMap<(u64, u64, &'static str), Uses>> = Mutex::new(BTreeMap::new());

/// Classes that are told apart, at most.
const MOST_CLASSES: usize = 256;

/// Counts a use of a method; `is_packed` says whether elements were packed, and otherwise unpacked.
pub fn note_method(size: Size, method: Method, is_packed: bool) {
    let (bytes, piece) = size.class();
    let mut methods = lock(&METHODS);
    let key = (bytes, piece, method.name());
    if methods.len() < MOST_CLASSES || methods.contains_key(&key) {
        methods.entry(key).or_default()[usize::from(!is_packed)] += 1;
    }
}

/// The numbers; none in a program that has not loaded the driver.
pub fn numbers() -> Vec<(&'static str, u64)> {
    if watch::driver().is_none() {
        return Vec::new();
    }
    let count = |event: Event| COUNTS[event as usize].load(Ordering::Relaxed);
    NAMES.map(|(event, name)| (name, count(event))).to_vec()
}

/// The lines of the report: numbers, then a line per class and method.
pub fn report() -> Option<String> {
    let numbers = numbers();
    if numbers.is_empty() {
        return None;
    }
    let mut text = "libcopy_mpi: device memory:".to_owned();
    for (name, number) in &numbers {
        let _ = write!(text, " {name} {number},");
    }
    text.pop();
    let times = match method::origin() {
        Some(Origin::Measured) => "measured",
        Some(Origin::Assumed) => "assumed",
        None => "not asked for",
    };
    for ((bytes, piece, method), [packed, unpacked]) in lock(&METHODS).iter() {
        let _ = write!(
            text,
            "\nlibcopy_mpi: device memory, up to {bytes} bytes in pieces up to {piece}: {method}, \
             packed {packed}, unpacked {unpacked}, times {times}"
        );
    }
    Some(text)
}
