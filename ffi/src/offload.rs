// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives that return while a copy engine still moves their bytes.

use crate::arguments::Shared;
use crate::error::Result;
use crate::team::libcopy_team_t;
use libcopy::offload;
use libcopy_ffi_macros::c_api;
use std::ffi::{CStr, c_int, c_void};

/// Waits until nothing is pending on the `length` bytes at `data`. Memory that a collective still
/// moves may be read and written like any other; a system call cannot be held, and fails with
/// `EFAULT`: call this before you pass such memory to one. Costs a few nanoseconds if nothing is
/// pending. Fails with `LIBCOPY_ESYSTEM` if a peer has died and the bytes will never arrive; the
/// memory can be used again, and its content is a mix of old and new.
#[c_api]
pub fn libcopy_settle(data: *const c_void, length: usize) -> Result {
    Ok(offload::settle(data, length)?)
}

/// `libcopy_settle` for everything that is pending in this process.
#[c_api]
pub fn libcopy_settle_all() -> Result {
    Ok(offload::settle_all()?)
}

/// 1 if the `length` bytes at `data` can be used without waiting, 0 if not; never waits itself.
#[unsafe(no_mangle)]
pub extern "C" fn libcopy_is_settled(data: *const c_void, length: usize) -> c_int {
    offload::is_settled(data, length).into()
}

/// Whether collectives return while copy engines still move their bytes: `off`, `auto`, `engine`,
/// `cpu` or `both`, as `LIBCOPY_ASYNC` says it at the start. All ranks call it with the same
/// choice.
#[c_api]
pub fn libcopy_team_set_async(team: Shared<libcopy_team_t>, choice: &CStr) -> Result {
    let choice = choice.to_string_lossy().parse()?;
    Ok(team.lock()?.set_async(choice)?)
}
