// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab nic`: its subcommands.

use super::{receive, reproduce};
use anyhow::Result;
use clap::Subcommand;

/// The end of each `--help`.
pub const SIMULATED: &str =
    "There is no such card here: all its times are modelled or simulated (docs/nic.md).";

/// Subcommands of `libcopy-lab nic`.
#[derive(Subcommand, Debug)]
pub enum Nic {
    /// Say how a card would receive a type: at line rate or not, why, with how many HPUs and how
    /// much memory
    #[command(after_help = SIMULATED)]
    Plan(receive::PlanArgs),
    /// Simulate receiving a message of a type, by all strategies, beside the host and a card with
    /// iovecs
    #[command(after_help = SIMULATED)]
    Simulate(receive::SimulateArgs),
    /// Simulate the figures of "Network-Accelerated Non-Contiguous Memory Transfers" (SC 2019) and
    /// hold them against its claims
    #[command(after_help = SIMULATED)]
    Figures(reproduce::FiguresArgs),
}

/// Runs `libcopy-lab nic`.
pub fn run(command: &Nic) -> Result<()> {
    match command {
        Nic::Plan(args) => receive::plan(args),
        Nic::Simulate(args) => receive::simulate(args),
        Nic::Figures(args) => reproduce::run(args),
    }
}
