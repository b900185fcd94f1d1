// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which path an operation takes: the only place that knows thresholds.

use crate::error::Result;

/// The thresholds in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {}

impl Policy {
    /// Built-in values, overridden by the machine's profile, overridden by the environment.
    pub fn load() -> Result<Self> {
        Ok(Policy {})
    }

    /// The table in words, one line per decision.
    pub fn table(&self) -> String {
        String::new()
    }
}
