// SPDX-License-Identifier: MIT OR Apache-2.0

//! Simulated times of copies on machines with many cores.
//!
//! **All times that this crate computes are simulated.** They are as good as the capacities that
//! they are computed from.

pub mod describe;
pub mod flow;
pub mod machines;
pub mod peers;
pub mod simulate;
