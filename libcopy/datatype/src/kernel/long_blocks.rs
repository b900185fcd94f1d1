// SPDX-License-Identifier: MIT OR Apache-2.0

//! Blocks of more than 64 bytes, each copied by itself.

use super::loop_nest::{Dim, Nest, Run, blocks};
use super::profile::CpuProfile;
use crate::memcpy;

/// The kernel for blocks of more than [`SMALL`](super::loop_nest::SMALL) bytes.
pub(super) fn select(profile: &CpuProfile, len: usize, dims: &[Dim; 3]) -> Run {
    let total = blocks(dims).saturating_mul(len);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if let Some(run) = super::x86::rows(profile, len, total, dims)
        .or_else(|| super::x86::long(profile, len, total))
    {
        return run;
    }
    let _ = (profile, total);
    each
}

/// The kernel for blocks of more than half of [`SMALL`](super::loop_nest::SMALL) bytes, a few at a
/// time and `total` bytes in all.
pub(super) fn few(len: usize, total: usize) -> Run {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if let Some(run) = super::x86::few(CpuProfile::here(), len, total) {
        return run;
    }
    let _ = (len, total);
    each
}

/// By `memcpy`.
///
/// # Safety
///
/// As for [`Nest::run`].
unsafe fn each(to: *mut u8, from: *const u8, nest: &Nest) {
    let (len, row) = (nest.len, nest.dims[0]);
    // SAFETY: the caller's promise.
    unsafe {
        nest.each_row(to, from, |to, from| {
            let (mut to, mut from) = (to, from);
            for _ in 0..row.count {
                memcpy::copy(to, from, len);
                to = to.wrapping_offset(row.to);
                from = from.wrapping_offset(row.from);
            }
        });
    }
}
