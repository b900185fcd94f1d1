// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line: what the words mean and which code they lead to.

use super::{datatype, doctor, gpu, info, mpi, plan, ranks, rdma, run, tune};
use clap::{CommandFactory, Parser, Subcommand};
use libcopy_bench as bench;
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
    /// Try what programs need on this machine, and say what mends what is missing
    Doctor(doctor::DoctorArgs),
    /// Start a program as the ranks of a team
    Run(run::RunArgs),
    /// Measure this machine and store a profile that the policy uses
    Tune(tune::TuneArgs),
    /// Look at a datatype
    Type {
        #[command(subcommand)]
        command: datatype::Type,
    },
    /// Show how a collective goes on a machine with many cores: groups, stages, simulated time
    #[command(after_help = plan::SIMULATED)]
    Plan(plan::PlanArgs),
    /// Look at GPUs, measure them
    Gpu {
        #[command(subcommand)]
        command: gpu::Gpu,
    },
    /// Start MPI programs with libcopy_mpi.so, look at what it did
    Mpi {
        #[command(subcommand)]
        command: mpi::Mpi,
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

/// Commands that are `libcopy-lab`'s now, and what they are called there.
const MOVED: [(&[&str], &str); 6] = [
    (&["nic"], "nic"),
    (&["bench", "gpu"], "gpu"),
    (&["bench", "paper003"], "offload"),
    (&["bench", "speedup"], "speedup"),
    (&["rdma", "bench"], "rdma counts"),
    (&["rdma", "model"], "rdma model"),
];

/// Where the command went that `words` begin with, if it is no longer here.
fn moved(words: &[String]) -> Option<String> {
    let is_old = |(old, _): &&(&[&str], _)| words.iter().take(old.len()).eq(*old);
    let (old, new) = MOVED.iter().find(is_old)?;
    let old = old.join(" ");
    Some(format!(
        "libcopy: `{old}` is now `libcopy-lab {new}` (cargo build --release -p libcopy-lab)"
    ))
}

/// The whole command line with its help texts.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the tool.
pub fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    if let Some(where_to) = moved(&words) {
        eprintln!("{where_to}");
        return ExitCode::from(2);
    }
    if words.first().is_some_and(|word| word == ranks::COMMAND) {
        // For the tool itself: neither `--help` nor completions name it.
        let args = ranks::RankArgs::parse_from(std::env::args_os().skip(1));
        let served = ranks::serve(&args).map(|()| ExitCode::SUCCESS);
        return libcopy_measure::ended("libcopy", served);
    }
    let result = match Cli::parse().command {
        Command::Info(args) => info::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Tune(args) => tune::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Type { command } => datatype::run(&command).map(|()| ExitCode::SUCCESS),
        Command::Plan(args) => plan::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Gpu { command } => gpu::run(&command),
        Command::Mpi { command } => mpi::run(&command),
        Command::Rdma { command } => rdma::run(&command),
        Command::Bench { bench } => bench::run(&bench).map(|()| ExitCode::SUCCESS),
    };
    libcopy_measure::ended("libcopy", result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
