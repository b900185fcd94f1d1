// SPDX-License-Identifier: GPL-2.0

//! What every folder above uses: parameters, counters, work that is left for later.

pub(crate) mod few;
pub(crate) mod params;
pub(crate) mod stats;
pub(crate) mod workqueue;
