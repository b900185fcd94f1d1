// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy bench`: how fast it is, beside what, on which machine, and whether the bytes are right.

mod buffer;
mod coll;
mod command;
mod device;
mod gpu;
mod interval;
pub mod layouts;
mod machine;
mod offload;
mod output;
mod pairs;
mod paper_claims;
mod pattern;
mod peer_process;
pub mod plot;
mod rank;
mod ratio_plot;
mod report;
mod sample;
mod sizes;
mod speedup;
mod types;

pub use command::{Bench, run};
pub use gpu::Owner;
