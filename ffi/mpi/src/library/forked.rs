// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a forked child of a process of a job does: whatever it calls is forwarded, and it tells
//! nobody anything.
//!
//! A child has inherited all that its parent shares with other ranks, and the rank is its parent.
//! So the C library calls what has everything be forwarded there; nothing is asked in the path of a
//! call. A child that is made past the C library is found out by what it would touch
//! ([`libcopy::process`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libcopy::process::Home;

/// The process that has called `MPI_Init`.
static HOME: OnceLock<Home> = OnceLock::new();

/// What a child forgets.
static FORGET: OnceLock<fn()> = OnceLock::new();

/// Whether this is a child.
#[unsafe(link_section = "libcopy_hot_words")]
static CHILD: AtomicBool = AtomicBool::new(false);

/// Has forked children call `forget`, which stores to atomic variables only.
pub fn watch(forget: fn()) {
    HOME.get_or_init(|| {
        let _ = FORGET.set(forget);
        // SAFETY: the function does nothing but stores.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        Home::here()
    });
}

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
    if let Some(forget) = FORGET.get() {
        forget();
    }
}

/// Whether this is a child that the C library has made, and so nothing is intercepted.
#[inline(always)]
pub fn is_marked() -> bool {
    CHILD.load(Ordering::Relaxed)
}

/// Whether this is a child, however it was made.
pub fn is_child() -> bool {
    HOME.get().is_some_and(|home| !home.is_here())
}
