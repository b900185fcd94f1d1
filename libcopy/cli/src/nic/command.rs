// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy nic`: its subcommands.

use super::{receive, reproduce};
use anyhow::Result;
use clap::Subcommand;

/// What to do. There is no such card here: all times are simulated.
#[derive(Subcommand, Debug)]
pub enum Nic {
    /// Say how a card would receive a type: at line rate or not, why, with how many HPUs and how much memory
    Plan(receive::PlanArgs),
    /// Simulate receiving a message of a type, by all strategies, beside the host and a card with iovecs
    Simulate(receive::SimulateArgs),
    /// Simulate the figures of "Network-Accelerated Non-Contiguous Memory Transfers" (SC 2019) and hold them against its
    /// claims
    Figures(reproduce::FiguresArgs),
}

/// Runs `libcopy nic`.
pub fn run(command: &Nic) -> Result<()> {
    match command {
        Nic::Plan(args) => receive::plan(args),
        Nic::Simulate(args) => receive::simulate(args),
        Nic::Figures(args) => reproduce::run(args),
    }
}
