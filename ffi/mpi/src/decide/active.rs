// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether this library intercepts anything in this process, from how many bytes on, and whether
//! ranks are to meet in their next blocking collective.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libcopy::config;

use crate::bootstrap;
use crate::decide::{environment, prior, threshold, waits};
use crate::library::abi::{Abi, complain};
use crate::library::{abi, forked, stats};

/// The library that we stand in front of; none if we are to do nothing, as in a forked child.
#[inline]
pub fn active() -> Option<&'static Abi> {
    #[unsafe(link_section = "libcopy_hot_words")]
    static ACTIVE: OnceLock<Option<&'static Abi>> = OnceLock::new();
    if forked::is_marked() {
        return None;
    }
    *ACTIVE.get_or_init(|| {
        let abi = if config::DISABLE.is_on(false) {
            None
        } else {
            abi::get()
                .map_err(|why| complain(&format!("{why}; all calls are forwarded")))
                .ok()
        };
        learn(abi);
        abi
    })
}

/// Says what is forwarded without a closer look.
fn learn(abi: Option<&Abi>) {
    waits::stop();
    let handle = abi.map_or(usize::MAX, |abi| abi.handle);
    threshold::learn(handle, |function| match abi {
        _ if stats::are_wanted() => (0, 0..0),
        // Nobody takes part in ours.
        Some(_) if bootstrap::world().is_none() => (u64::MAX, 0..0),
        // Any blocking collective may be the one in which ranks meet.
        Some(_) if is_meeting_wanted() && !function.is_nonblocking() => (0, 0..0),
        Some(abi) => match environment::least() {
            Some(least) => (least, 0..0),
            None => {
                let (library, known) = (abi.implementation(), bootstrap::known());
                let least = prior::least(library, function, known);
                (least, prior::between(library, function, known))
            }
        },
        None => (u64::MAX, 0..0),
    });
}

/// Has everything be forwarded, in a forked child.
pub fn forget() {
    threshold::learn(threshold::handle_bits(), |_| (u64::MAX, 0..0));
}

/// Finds out anew from which sizes on calls are intercepted, when what matters has changed.
pub fn relearn() {
    if let Some(abi) = active() {
        learn(Some(abi));
    }
}

/// Whether a buffer is `MPI_IN_PLACE`.
#[inline]
pub fn is_in_place(buffer: *const c_void) -> bool {
    threshold::is_special(buffer) && active().is_some_and(|abi| buffer as usize == abi.in_place)
}

/// Whether the send buffer and the receive buffer begin at one address. The standard does not allow
/// them to overlap (MPI 4.1, section 2.3); but datatypes with displacements may make them different
/// bytes, and `MPI_BOTTOM`, which is null, says nothing of where the bytes are.
pub fn is_same(send: *const c_void, recv: *mut c_void) -> bool {
    !send.is_null() && std::ptr::eq(send, recv)
}

/// Communicators that have called a large nonblocking collective, and whose ranks have not met
/// since.
#[unsafe(link_section = "libcopy_hot_words")]
static MEETINGS: AtomicUsize = AtomicUsize::new(0);

/// Whether the ranks of any communicator are to meet.
#[inline(always)]
pub fn is_meeting_wanted() -> bool {
    MEETINGS.load(Ordering::Relaxed) != 0
}

/// Notes that one more communicator's ranks are to meet in its next blocking collective. A
/// nonblocking one must not wait for others, so they cannot meet in that.
pub fn want_meeting() {
    if MEETINGS.fetch_add(1, Ordering::Relaxed) == 0 {
        relearn();
    }
}

/// Notes that the ranks have met, or will not.
pub fn want_no_meeting() {
    if MEETINGS.fetch_sub(1, Ordering::Relaxed) == 1 {
        relearn();
    }
}
