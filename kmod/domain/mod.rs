// SPDX-License-Identifier: GPL-2.0

//! Who may share: domains with their members and regions, and copies between regions by the CPU.

pub(crate) mod copy;
pub(crate) mod group;
pub(crate) mod member;
pub(crate) mod region;
pub(crate) mod regions;
