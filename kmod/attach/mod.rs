// SPDX-License-Identifier: GPL-2.0

//! A region's pages in a peer's address space, for load and store.

pub(crate) mod attachment;
pub(crate) mod fault;
pub(crate) mod vma;
