// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab offload`: the experiments of "Exploiting copy engines for intra-node MPI
//! collective communication" (J. Supercomputing, 2023), with this machine's copy engines or the
//! modelled ones of `scripts/vm --ioat`.
//!
//! An experiment is a file of its own that fills in rows; `command` has the list of them,
//! `experiment` what belongs to all.

mod command;
mod engines;
mod experiment;
mod fragments;
mod model;
pub mod player;
mod programs;

pub use command::{PaperArgs, run};
