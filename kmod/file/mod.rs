// SPDX-License-Identifier: GPL-2.0

//! What user space reaches: the device, its files, and the table of its commands.

pub(crate) mod argument;
pub(crate) mod domains;
pub(crate) mod handle;
pub(crate) mod ioctl;
pub(crate) mod operations;
pub(crate) mod process;
