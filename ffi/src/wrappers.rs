// SPDX-License-Identifier: MIT OR Apache-2.0

//! The wrappers of the C library's functions that are in libcopy_async.so, for programs that have
//! it.

use libcopy::offload;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::sync::Once;
use std::sync::atomic::AtomicUsize;

/// `libcopy_async_attach` of `ffi/async`.
type Attach =
    unsafe extern "C" fn(*const AtomicUsize, extern "C" fn(usize, usize) -> c_int) -> c_int;

extern "C" fn settle(address: usize, length: usize) -> c_int {
    offload::settle_raw(address, length).err().unwrap_or(0)
}

/// Has the wrappers, if the program has them, settle what is pending in this library. They are
/// looked for once: what is loaded later does not stand in front of the C library.
pub(crate) fn attach() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the name is a string.
        let found: *mut c_void =
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"libcopy_async_attach".as_ptr()) };
        if !found.is_null() {
            // SAFETY: this is its signature. The word is a static of this library's, which stays
            // loaded (`ffi/build.rs`; docs/offload.md asks it of who links libcopy.a), as does
            // `settle`, which is async-signal-safe.
            unsafe { transmute::<*mut c_void, Attach>(found)(offload::pending_word(), settle) };
        }
    });
}
