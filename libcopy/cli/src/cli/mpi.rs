// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy mpi`: MPI programs with `libcopy_mpi.so`.

pub(super) mod child;
mod compare;
pub(super) mod launcher;
pub(super) mod library;
pub(super) mod prepare;
mod profile;
pub(super) mod program;
mod report;
mod run;
mod start;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Mpi {
    /// Start an MPI program whose ranks have libcopy_mpi.so preloaded
    Run(run::RunArgs),
    /// Run an MPI program plain and with libcopy_mpi.so in turns, and say whether it helps
    Compare(compare::CompareArgs),
    /// Run an MPI program and say where its time in MPI goes, by function, size and type
    Profile(profile::ProfileArgs),
    /// Add up what the ranks of a program run with LIBCOPY_STATS=FILE have written
    Report(report::ReportArgs),
}

/// Runs `libcopy mpi`.
pub fn run(command: &Mpi) -> Result<ExitCode> {
    match command {
        Mpi::Run(args) => run::run(args),
        Mpi::Compare(args) => compare::run(args),
        Mpi::Profile(args) => profile::run(args),
        Mpi::Report(args) => report::run(args).map(|()| ExitCode::SUCCESS),
    }
}
