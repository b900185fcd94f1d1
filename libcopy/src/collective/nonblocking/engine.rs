// SPDX-License-Identifier: MIT OR Apache-2.0

//! Parts that copy engines move while nobody waits, with `LIBCOPY_ASYNC`, where the kernel module
//! is.
//!
//! Each rank publishes its buffers as regions when it starts an operation. The second of two ranks
//! finds the first one's regions, and gives the part to an engine; so a part is on its way as soon
//! as both have started. A rank that waits copies what the engine has not begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::{
    Domain, DomainKey, Region, RegionId, Request, RequestId, Rights, StatusTable, Submission,
};
use crate::offload::{Async, Executor};
use crate::policy::Policy;
use crate::uapi;

/// Parts that engines have moved, as far as this process gave them to one.
static PARTS: AtomicU64 = AtomicU64::new(0);

/// How many parts this process gave to engines.
pub fn parts() -> u64 {
    PARTS.load(Ordering::Relaxed)
}

/// What the ranks of a communicator need to use engines.
#[derive(Debug)]
pub struct Engines {
    domain: Domain,
    status: StatusTable,
    /// Bytes of the smallest part that an engine gets.
    least: usize,
    /// Pages that it moves between two looks whether a CPU has taken over; 0: as the module has it.
    pages: u32,
}

impl Engines {
    /// A domain on a machine with engines, and its key for the others; nothing unless it is asked
    /// for.
    pub fn create() -> Option<(Engines, [u8; 16])> {
        let policy = Policy::load().ok()?;
        if matches!(
            policy.asynchronous,
            Async::Off | Async::Fixed(Executor::Cpu)
        ) {
            return None;
        }
        let domain = Domain::create().ok()?;
        if domain.engines().ok()?.is_empty() {
            return None;
        }
        let key = domain.key().to_bytes();
        Some((Engines::of(domain, &policy)?, key))
    }

    /// Joins it.
    pub fn join(key: [u8; 16]) -> Option<Engines> {
        let policy = Policy::load().ok()?;
        Engines::of(Domain::join(&DomainKey::from_bytes(key)).ok()?, &policy)
    }

    fn of(domain: Domain, policy: &Policy) -> Option<Engines> {
        Some(Engines {
            status: domain.status_table().ok()?,
            domain,
            least: usize::try_from(policy.offload_min)
                .unwrap_or(usize::MAX)
                .max(1),
            pages: policy
                .offload_pages
                .min(u64::from(uapi::MAX_FRAGMENT_PAGES)) as u32,
        })
    }

    /// Whether parts of `bytes` go to engines.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        bytes >= self.least
    }

    /// What has become of a request.
    pub(super) fn state(&self, id: u32) -> State {
        let progress = RequestId::new(id).map(|id| self.status.progress(id));
        match progress {
            Ok(Some(progress)) if progress.complete => State::Complete,
            Ok(Some(progress)) if progress.ended => State::Failed,
            Ok(Some(_)) => State::Running,
            _ => State::Gone,
        }
    }

    /// Copies what the engine has not begun; bytes.
    pub(super) fn help(&self, id: u32) -> u64 {
        // What goes wrong, the request says.
        let helped = RequestId::new(id).and_then(|id| self.domain.help_request(id));
        helped.unwrap_or(0)
    }
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// An engine works on it.
    Running,
    /// All its bytes are there.
    Complete,
    /// They will not all be.
    Failed,
    /// It ended, and the thread that submitted it has seen that.
    Gone,
}

/// The domain, for longer than the borrow checker follows.
///
/// # Safety
///
/// What is borrowed from it is dropped before the caller's `engines` are.
unsafe fn lasting(engines: &Arc<Engines>) -> &'static Domain {
    // SAFETY: an `Arc` does not move what it holds, and the caller's keeps it.
    unsafe { &(*Arc::as_ptr(engines)).domain }
}

/// What an operation has published and submitted.
#[derive(Debug)]
pub(super) struct Held {
    // Dropped in this order: requests are stopped before their memory is taken back.
    requests: Vec<Request<'static>>,
    send: Option<Region<'static>>,
    recv: Option<Region<'static>>,
    engines: Arc<Engines>,
}

impl Held {
    /// Publishes what is sent and what is received.
    ///
    /// # Safety
    ///
    /// Both are memory that the program has lent until this is dropped.
    pub(super) unsafe fn publish(
        engines: &Arc<Engines>,
        (send, sent): (*const u8, usize),
        (recv, received): (*mut u8, usize),
    ) -> Held {
        // SAFETY: the regions go into the result, which has `engines` as its last field.
        let domain = unsafe { lasting(engines) };
        let send = (sent > 0)
            // SAFETY: peers only read.
            .then(|| unsafe { domain.share_raw(send, sent) }.ok())
            .flatten();
        let recv = (received > 0)
            .then(|| {
                // SAFETY: the caller's promise; nobody uses it before the operation is over, which
                // is when all requests are. Peers do not copy into it, and what they may only write
                // they cannot attach.
                unsafe {
                    let bytes = std::slice::from_raw_parts_mut(recv, received);
                    domain.share_mut(bytes, Rights::Write).ok()
                }
            })
            .flatten();
        Held {
            requests: Vec::new(),
            send,
            recv,
            engines: engines.clone(),
        }
    }

    /// The regions for what is sent and what is received; 0 where there is none.
    pub(super) fn regions(&self) -> (u32, u32) {
        let id = |region: &Option<Region<'_>>| region.as_ref().map_or(0, |r| r.id().get());
        (id(&self.send), id(&self.recv))
    }

    /// Gives a part to an engine: `len` bytes from one region's offset to another's. The number of
    /// the request, if an engine takes it.
    pub(super) fn submit(&mut self, from: (u32, u64), to: (u32, u64), len: usize) -> Option<u32> {
        let region = |id| RegionId::new(id).ok();
        let what = Submission::new(region(from.0)?, region(to.0)?, len as u64);
        // SAFETY: the request goes into `self.requests`, which is dropped before `self.engines`.
        let domain = unsafe { lasting(&self.engines) };
        let what = what
            .offsets(from.1, to.1)
            .fragment_pages(self.engines.pages);
        let request = domain.submit(&what).ok()?;
        let id = request.id().get();
        self.requests.push(request);
        PARTS.fetch_add(1, Ordering::Relaxed);
        Some(id)
    }
}
