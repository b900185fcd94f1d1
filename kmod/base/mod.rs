// SPDX-License-Identifier: GPL-2.0

//! What every other folder uses: error numbers, parameters, locks, threads, counters, and safe
//! faces of the kernel that have nothing to do with copying.

pub(crate) mod declarations;
pub(crate) mod errno;
pub(crate) mod few;
pub(crate) mod irqlock;
pub(crate) mod params;
pub(crate) mod shim;
pub(crate) mod stats;
pub(crate) mod workqueue;
