// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy bench`: how fast it is, beside what, on which machine, and whether the bytes are right.

mod coll;
mod command;
pub(crate) mod contention;
mod device;
mod many;
mod rank;
mod types;

pub use command::{Bench, run};
