// SPDX-License-Identifier: GPL-2.0

//! Transfers that go on while the caller does something else: requests with their fragments, and
//! the user workers that do what no engine does.

pub(crate) mod atomic;
pub(crate) mod copier;
pub(crate) mod copiers;
pub(crate) mod fragments;
pub(crate) mod job;
pub(crate) mod lost;
pub(crate) mod request;
pub(crate) mod slots;
pub(crate) mod status;
#[cfg(not(CONFIG_LIBCOPY_ENGINES))]
pub(crate) mod workers;
