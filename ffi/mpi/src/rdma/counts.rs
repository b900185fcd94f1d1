// SPDX-License-Identifier: MIT OR Apache-2.0

//! What this process has sent and received, for statistics.

use std::sync::atomic::{AtomicU64, Ordering};

use libcopy_rdma::Method;

/// Messages that were sent, by what moved their bytes.
static SENT: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
/// Messages whose bytes the MPI library moved after all.
static THROUGH_MPI: AtomicU64 = AtomicU64::new(0);
/// Bytes of both.
static BYTES: AtomicU64 = AtomicU64::new(0);
/// Messages that were received, whichever way.
static RECEIVED: AtomicU64 = AtomicU64::new(0);

/// Messages that were sent or received with memory keys or registered memory of an earlier one.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// A message was sent.
pub fn sent(method: Method, bytes: u64) {
    SENT[method as usize].fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// A message's bytes were handed to the MPI library.
pub fn sent_through_mpi(bytes: u64) {
    THROUGH_MPI.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(bytes, Ordering::Relaxed);
}

/// A message was received.
pub fn received() {
    RECEIVED.fetch_add(1, Ordering::Relaxed);
}

/// A message had what an earlier one has left.
pub fn kept() {
    KEPT.fetch_add(1, Ordering::Relaxed);
}

/// A line for the report; none if there were no messages.
pub fn report() -> Option<String> {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let through = read(&THROUGH_MPI);
    let by = |method: Method| read(&SENT[method as usize]);
    let received = read(&RECEIVED);
    let all = Method::ALL.iter().map(|method| by(*method)).sum::<u64>() + through + received;
    (all != 0).then(|| {
        format!(
            "libcopy_mpi: rdma: umr {}, sge {}, pack {}, through MPI {through}, bytes {}, received {received}, kept {}",
            by(Method::Umr),
            by(Method::Sge),
            by(Method::Pack),
            read(&BYTES),
            read(&KEPT)
        )
    })
}
