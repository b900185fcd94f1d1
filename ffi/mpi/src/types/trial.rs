// SPDX-License-Identifier: MIT OR Apache-2.0

//! How long packing takes, tried once.

use std::ffi::{c_int, c_void};
use std::time::Instant;

use crate::library::abi::Word;
use crate::library::pmpi;

/// Bytes that a library may want beyond those that are packed.
pub const MORE: usize = 256;

/// The shortest of several times, in nanoseconds; `None` if the work fails.
pub fn shortest(samples: u32, mut work: impl FnMut() -> bool) -> Option<u64> {
    (0..samples).try_fold(u64::MAX, |least, _| {
        let start = Instant::now();
        let is_done = work();
        is_done.then(|| least.min(start.elapsed().as_nanos() as u64))
    })
}

/// Has the MPI library pack elements; whether it does.
///
/// # Safety
///
/// The elements are readable. `to` has room for `bytes`, and [`MORE`].
pub unsafe fn pack(
    from: *const c_void,
    (count, datatype): (c_int, Word),
    (to, bytes): (*mut u8, u64),
    comm: Word,
) -> bool {
    let (mut end, room) = (0, bytes as c_int + MORE as c_int);
    // SAFETY: the caller's promise.
    unsafe { pmpi::pack(from, count, datatype, to.cast(), room, &mut end, comm) == 0 }
}
