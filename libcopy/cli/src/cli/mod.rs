// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line, a file per command.

mod command;
mod datatype;
mod doctor;
mod gpu;
mod info;
mod mpi;
mod plan;
mod ranks;
mod rdma;
mod run;
mod tune;

pub use command::{command, main};
