// SPDX-License-Identifier: MIT OR Apache-2.0

//! The benchmarks of the tool: how fast it is, beside what, on which machine, and whether the bytes
//! are right. They are `libcopy bench`, `libcopy type bench`, `libcopy mpi compare`, `libcopy plan
//! --measure`, and what readers of one source get (`libcopy tune --contention`).
//!
//! Drawings of layouts ([`layout_rows`]) and of plans ([`stages`]) are here as well.
//!
//! What runs between two looks at the clock is in `libcopy-measure`, which is compiled for speed;
//! this crate is compiled to be small.

mod coll;
mod command;
mod commit;
pub mod comparison;
pub mod contention;
mod device;
pub mod layout_rows;
mod many;
mod one_type;
pub mod plans;
pub mod stages;
mod types;

pub use command::{Bench, run};
pub use one_type::{TypeArgs, run as time_type};
