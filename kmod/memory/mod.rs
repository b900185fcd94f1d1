// SPDX-License-Identifier: GPL-2.0

//! Memory of user space: pinned pages, mappings that know whether they are current, who is charged
//! for them, and what the memory manager announces.

pub(crate) mod account;
pub(crate) mod address_space;
pub(crate) mod changed;
pub(crate) mod changes;
pub(crate) mod idle;
pub(crate) mod mapping;
pub(crate) mod pin;
pub(crate) mod shrinker;
pub(crate) mod spans;
pub(crate) mod user;
pub(crate) mod user_account;
pub(crate) mod user_namespace;
pub(crate) mod watch;
