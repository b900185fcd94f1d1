// SPDX-License-Identifier: MIT OR Apache-2.0

//! The program `libcopy-lab`: experiments of papers, and what `scripts/bench mpi` makes of its
//! measurements. It is not installed; the tool for users is `libcopy`.

mod applications;
mod command;
mod gpu;
mod nic;
mod offload;
mod pairs;
mod paper_claims;
mod rdma;
mod scale;
mod simulated;
mod speedup;

use std::process::ExitCode;

fn main() -> ExitCode {
    command::main()
}
