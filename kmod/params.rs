// SPDX-License-Identifier: GPL-2.0

//! The module's parameters in one place; `modinfo libcopy` lists them.

use crate::module_parameters;

/// Regions a domain may have at a time.
pub(crate) fn max_regions() -> u32 {
    *module_parameters::max_regions.value()
}

/// Pages a process may leave pinned for reuse.
pub(crate) fn reuse_pages() -> u64 {
    *module_parameters::reuse_pages.value()
}
