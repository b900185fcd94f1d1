// SPDX-License-Identifier: MIT OR Apache-2.0

//! What machine the figures are from.

use libcopy::topology::{self, Topology};
use serde::Serialize;
use std::fs;

/// The machine, as far as a reader of a table needs to know it.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Processor model.
    pub processor: String,
    /// Cores this process may run on.
    pub cores: usize,
    /// NUMA nodes with processors.
    pub nodes: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Kernel release.
    pub kernel: String,
    /// What kind of virtual machine `scripts/vm` started, or nothing; `simulated` for one that is
    /// not there, whose memory and kernel are not known.
    pub guest: Option<String>,
}

impl Machine {
    /// Looks around.
    pub fn here() -> Self {
        let topology = Topology::read();
        Self {
            processor: topology.model,
            cores: topology::affinity().len(),
            nodes: topology.nodes.len(),
            memory: memory("MemTotal:").unwrap_or(0),
            kernel: topology.kernel,
            guest: std::env::var("LIBCOPY_VM").ok().filter(|v| !v.is_empty()),
        }
    }

    /// What has to stand beside every figure from a virtual machine.
    pub fn label(&self) -> Option<String> {
        self.guest.as_deref().map(|kind| match kind {
            "tcg" => "TCG guest: ratios only".to_owned(),
            "icount" => "TCG guest: instructions, not times".to_owned(),
            "kvm" => "KVM guest".to_owned(),
            "simulated" => "simulated".to_owned(),
            other => format!("{other} guest"),
        })
    }

    /// One line that names the machine.
    pub fn line(&self) -> String {
        let mut line = format!(
            "{}, {} core{}, {} NUMA node{}",
            self.processor,
            self.cores,
            if self.cores == 1 { "" } else { "s" },
            self.nodes,
            if self.nodes == 1 { "" } else { "s" },
        );
        if !self.kernel.is_empty() {
            let gib = self.memory as f64 / (1u64 << 30) as f64;
            line = format!("{line}, {gib:.1} GiB, Linux {}", self.kernel);
        }
        if let Some(label) = self.label() {
            line = format!("{label}: {line}");
        }
        line
    }
}

/// Bytes of memory that programs can still have.
pub fn available_memory() -> u64 {
    memory("MemAvailable:").unwrap_or(u64::MAX)
}

/// A line of `/proc/meminfo` in bytes.
fn memory(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with(name))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}
