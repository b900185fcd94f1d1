// SPDX-License-Identifier: GPL-2.0

//! The module's parameters in one place, those of `params.c` included; `modinfo libcopy` lists
//! them.

use crate::abstractions::declarations as raw;
use crate::module_parameters;
use crate::uapi::MAX_REGION_ID;
use core::borrow::Borrow;

/// A parameter's value, which Linux 7.2 hands out by reference and 7.3 by value.
fn plain<T: Copy>(value: impl Borrow<T>) -> T {
    *value.borrow()
}

/// Regions a domain may have at a time.
pub(crate) fn max_regions() -> u32 {
    // Far below the number of ids, so that a free one is always found soon.
    u32::min(
        plain(module_parameters::max_regions.value()),
        MAX_REGION_ID / 2,
    )
}

/// Pages a process may leave pinned for reuse.
pub(crate) fn reuse_pages() -> u64 {
    plain(module_parameters::reuse_pages.value())
}

/// Who is to work on requests: the parameter `engine`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineChoice {
    /// DMA engines; the user worker of who submits in a module without any.
    Auto,
    /// Kernel threads.
    Kthread,
    /// Nobody.
    Off,
}

/// The parameter `engine`.
pub(crate) fn engine() -> EngineChoice {
    // SAFETY: No preconditions.
    match unsafe { raw::libcopy_param_engine() } {
        0 => EngineChoice::Auto,
        1 => EngineChoice::Off,
        _ => EngineChoice::Kthread,
    }
}

/// The parameter `engine_depth`, as given.
pub(crate) fn engine_depth() -> u32 {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_param_depth() }
}

/// Nanoseconds after which a fragment is given up: the parameter `engine_deadline_ms` within its
/// bounds.
pub(crate) fn engine_deadline() -> i64 {
    // SAFETY: No preconditions.
    let milliseconds = unsafe { raw::libcopy_param_deadline_ms() };
    i64::from(milliseconds.clamp(10, 3_600_000)) * 1_000_000
}

/// The parameter `fragment_pages`, as given.
pub(crate) fn fragment_pages() -> u32 {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_param_fragment_pages() }
}

/// The parameter `max_user_requests`.
pub(crate) fn max_user_requests() -> u32 {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_param_max_user_requests() }
}
