// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls of the C API, as bytes choose them.

#![no_main]

#[path = "../../ffi/tests/calls/mod.rs"]
mod calls;

use std::sync::atomic::{AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);

extern "C" fn report() {
    eprintln!("{} calls of the C API", CALLS.load(Ordering::Relaxed));
}

libfuzzer_sys::fuzz_target!(
    init: {
        // SAFETY: the function does what it may at the end of a process.
        unsafe { libc::atexit(report) };
    },
    |bytes: &[u8]| {
        CALLS.fetch_add(calls::run(calls::Choices::of(bytes)), Ordering::Relaxed);
    }
);
