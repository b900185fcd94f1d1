// SPDX-License-Identifier: MIT OR Apache-2.0

//! Moves bytes between the processes of one machine.

#[path = "../../kmod/uapi.rs"]
pub mod uapi;
