// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line: what the words mean and which code they lead to.

use super::{datatype, gpu, info, mpi, rdma, run, tune};
use crate::{bench, nic};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Moves bytes between the processes of one machine: pin once, copy many times.
#[derive(Parser, Debug)]
#[command(name = "libcopy", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Show the device, the transports and why, the machine, the options and the policy
    Info(info::InfoArgs),
    /// Start a program as the ranks of a team
    Run(run::RunArgs),
    /// Measure this machine and store a profile that the policy uses
    Tune(tune::TuneArgs),
    /// Look at a datatype
    Type {
        #[command(subcommand)]
        command: datatype::Type,
    },
    /// Look at GPUs, measure them
    Gpu {
        #[command(subcommand)]
        command: gpu::Gpu,
    },
    /// Look at what libcopy_mpi.so did
    Mpi {
        #[command(subcommand)]
        command: mpi::Mpi,
    },
    /// Plan and simulate datatypes on a network card that runs a handler per packet
    #[command(after_help = nic::SIMULATED)]
    Nic {
        #[command(subcommand)]
        command: nic::Nic,
    },
    /// Typed messages over RDMA: devices and methods
    Rdma {
        #[command(subcommand)]
        command: rdma::Rdma,
    },
    /// Measure
    Bench {
        #[command(subcommand)]
        bench: bench::Bench,
    },
}

/// Runs the tool.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Info(args) => info::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => run::run(&args),
        Command::Tune(args) => tune::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Type { command } => datatype::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Gpu { command } => gpu::run(&command),
        Command::Mpi { command } => mpi::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Nic { command } => nic::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Rdma { command } => rdma::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Bench { bench } => bench::run(&bench).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            // `libcopy info | head`: nobody wants the rest.
            return ExitCode::SUCCESS;
        }
        eprintln!("libcopy: {error:#}");
        ExitCode::FAILURE
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
