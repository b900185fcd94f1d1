// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy mpi`: MPI programs with `libcopy_mpi.so`.

pub(super) mod launcher;
pub(super) mod library;
pub(super) mod prepare;
pub(super) mod program;
mod report;
mod run;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Mpi {
    /// Start an MPI program whose ranks have libcopy_mpi.so preloaded
    Run(run::RunArgs),
    /// Add up what the ranks of a program run with LIBCOPY_STATS=FILE have written
    Report(report::ReportArgs),
}

/// Runs `libcopy mpi`.
pub fn run(command: &Mpi) -> Result<ExitCode> {
    match command {
        Mpi::Run(args) => run::run(args),
        Mpi::Report(args) => report::run(args).map(|()| ExitCode::SUCCESS),
    }
}
