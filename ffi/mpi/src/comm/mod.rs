// SPDX-License-Identifier: MIT OR Apache-2.0

//! Communicators: their groups, teams and nodes, and what the governor knows of their calls.

pub mod communicator;
pub mod dispatch;
pub mod group;
pub mod hierarchy;
pub mod nonblocking_group;
pub mod order;
pub mod peers;
pub mod processes;
pub mod reach;
pub mod teams;
