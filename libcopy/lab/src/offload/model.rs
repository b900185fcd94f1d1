// SPDX-License-Identifier: MIT OR Apache-2.0

//! [`Model`]: what the modelled engines of `scripts/vm --ioat` have counted themselves.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::Command;

/// The model, asked through the program `ioat-model` that `scripts/vm` puts on the path.
pub struct Model {
    shape: String,
}

impl Model {
    /// The model of this machine, if it has one.
    pub fn find() -> Option<Self> {
        let shape = std::env::var("LIBCOPY_IOAT").ok()?;
        (!shape.is_empty()).then_some(Self { shape })
    }

    /// Engines, channels of each, and bandwidth, as `--ioat` was told.
    pub fn shape(&self) -> &str {
        &self.shape
    }

    /// Bytes that all channels together have written to memory.
    pub fn bytes(&self) -> Result<u64> {
        let answer = Command::new("ioat-model")
            .args(["ask", "totals"])
            .output()
            .context("cannot run ioat-model, which scripts/vm --ioat puts on the path")?;
        ensure!(
            answer.status.success(),
            "ioat-model ask totals: {}",
            String::from_utf8_lossy(&answer.stderr)
        );
        let totals: Value = serde_json::from_slice(&answer.stdout)?;
        totals["bytes"]
            .as_u64()
            .with_context(|| format!("no counter \"bytes\" in {totals}"))
    }
}
