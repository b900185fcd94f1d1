// SPDX-License-Identifier: MIT OR Apache-2.0

//! The baseline that simulations are held against.

use anyhow::Result;
use clap::Args;
use libcopy_measure::progress;
use libcopy_nic::host::HostTable;

/// Where the host's times come from.
#[derive(Args, Clone, Debug)]
pub struct HostArgs {
    /// Measure how this machine unpacks with cold caches, instead of using the built-in table
    #[arg(long)]
    measure_host: bool,
}

impl HostArgs {
    /// The table.
    pub fn table(&self) -> Result<HostTable> {
        if !self.measure_host {
            return Ok(HostTable::built_in());
        }
        let bar = progress::bar(HostTable::STEPS);
        bar.set_message("unpacking with cold caches");
        let table = HostTable::measure(7, || bar.inc(1))?;
        bar.finish_and_clear();
        Ok(table)
    }
}
