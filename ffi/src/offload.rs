// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives that return while a copy engine still moves their bytes.

use crate::error::{guarded, invalid};
use crate::team::{handle, libcopy_team_t};
use libcopy::offload;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Waits until nothing is pending on the `length` bytes at `data`. Memory that a collective still
/// moves may be read and written like any other; a system call cannot be held, and fails with
/// `EFAULT`: call this before you pass such memory to one. Costs a few nanoseconds if nothing is
/// pending. Fails with `LIBCOPY_ESYSTEM` if a peer has died and the bytes will never arrive; the
/// memory can be used again, and its content is a mix of old and new.
#[unsafe(no_mangle)]
pub extern "C" fn libcopy_settle(data: *const c_void, length: usize) -> c_int {
    guarded(|| Ok(offload::settle(data, length)?))
}

/// `libcopy_settle` for everything that is pending in this process.
#[unsafe(no_mangle)]
pub extern "C" fn libcopy_settle_all() -> c_int {
    guarded(|| Ok(offload::settle_all()?))
}

/// 1 if the `length` bytes at `data` can be used without waiting, 0 if not; never waits itself.
#[unsafe(no_mangle)]
pub extern "C" fn libcopy_is_settled(data: *const c_void, length: usize) -> c_int {
    offload::is_settled(data, length).into()
}

/// Whether collectives return while copy engines still move their bytes: `off`, `auto`, `engine`,
/// `cpu` or `both`, as `LIBCOPY_ASYNC` says it at the start. All ranks call it with the same
/// choice.
///
/// # Safety
///
/// `team` is a team, `choice` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_set_async(
    team: *mut libcopy_team_t,
    choice: *const c_char,
) -> c_int {
    guarded(|| {
        if choice.is_null() {
            return Err(invalid("choice is null"));
        }
        // SAFETY: not null, and the caller vouches for the string.
        let choice = unsafe { CStr::from_ptr(choice) }.to_string_lossy();
        // SAFETY: the caller's promise.
        Ok(unsafe { handle(team) }?
            .lock()?
            .set_async(choice.parse()?)?)
    })
}
