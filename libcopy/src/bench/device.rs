// SPDX-License-Identifier: MIT OR Apache-2.0

//! The module alone.

use super::Output;
use anyhow::{Result, bail};
use clap::Args;

/// `libcopy bench device`
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Fewer sizes and less time: under a minute
    #[arg(long)]
    pub quick: bool,

    #[command(flatten)]
    pub output: Output,
}

/// Runs `libcopy bench device`.
pub fn run(_: &DeviceArgs) -> Result<()> {
    bail!("not yet")
}
