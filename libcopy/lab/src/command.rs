// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line: what the words mean and which code they lead to.

use crate::{gpu, nic, offload, rdma, scale, speedup};
use clap::{Parser, Subcommand};
use libcopy_measure::gpu_owner::{self, OwnerArgs};
use std::process::ExitCode;

/// Experiments with libcopy: figures and claims of papers, simulated, counted or measured.
#[derive(Parser, Debug)]
#[command(name = "libcopy-lab", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Derived datatypes in GPU memory (CUDA): pack, unpack, copies between processes (see
    /// `scripts/bench gpu`)
    Gpu(gpu::GpuArgs),
    /// Plan and simulate datatypes on a network card that runs a handler per packet
    #[command(after_help = nic::SIMULATED)]
    Nic {
        #[command(subcommand)]
        command: nic::Nic,
    },
    /// The experiments of the paper on copy engines: shared engines, fragments, switching (see
    /// `scripts/vm --ioat`)
    Offload(offload::PaperArgs),
    /// Typed messages over RDMA: counts of the paper's cases, and a model of their times
    Rdma {
        #[command(subcommand)]
        command: rdma::Rdma,
    },
    /// Collectives on machines with many cores, beside those of other libraries, simulated
    /// (`scripts/bench scale`)
    Scale(scale::ScaleArgs),
    /// How many times as fast MPI calls are with libcopy_mpi.so, from paired blocks of several
    /// launches (`scripts/bench mpi` calls this)
    Speedup(speedup::SpeedupArgs),
    /// A process with GPU memory that another one reads
    #[command(hide = true)]
    GpuOwner(OwnerArgs),
    /// One rank of a parallel program of the paper on copy engines
    #[command(hide = true)]
    Player(offload::player::PlayerArgs),
}

/// Runs the program.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Gpu(args) => gpu::run(&args),
        Command::Nic { command } => nic::run(&command),
        Command::Offload(args) => offload::run(&args),
        Command::Rdma { command } => rdma::run(&command),
        Command::Scale(args) => scale::run(&args),
        Command::Speedup(args) => speedup::run(&args),
        Command::GpuOwner(args) => gpu_owner::serve(&args),
        Command::Player(args) => offload::player::run(&args),
    };
    libcopy_measure::ended("libcopy-lab", result.map(|()| ExitCode::SUCCESS))
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
