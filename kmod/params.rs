// SPDX-License-Identifier: GPL-2.0

//! The module's parameters in one place; `modinfo libcopy` lists them.

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
