// SPDX-License-Identifier: MIT OR Apache-2.0

//! Processes of one machine that work together.

mod key;
pub mod launch;

pub use key::TeamKey;
pub use launch::launch;

use crate::config;
use crate::error::{Error, Result};
use crate::policy::Policy;
use crate::transport::{TransportKind, TransportReport};

/// Membership of this process in a team.
#[derive(Debug)]
pub struct Team {
    rank: usize,
    size: usize,
    policy: Policy,
    forced: Option<TransportKind>,
    reports: Vec<TransportReport>,
}

impl Team {
    /// Joins the team with this key as `rank` of `size`; returns when all ranks are there.
    pub fn join(_key: &TeamKey, rank: usize, size: usize) -> Result<Self> {
        if size == 0 || rank >= size {
            return Err(Error::argument(
                "rank",
                rank,
                format!("below the size of {size}"),
            ));
        }
        Ok(Team {
            rank,
            size,
            policy: Policy::load()?,
            forced: None,
            reports: Vec::new(),
        })
    }

    /// Joins the team that `LIBCOPY_KEY`, `LIBCOPY_RANK` and `LIBCOPY_SIZE` name; without them,
    /// a team of one.
    pub fn from_env() -> Result<Self> {
        let Some(key) = config::KEY.parse::<TeamKey>("32 hexadecimal digits")? else {
            return Self::join(&TeamKey::random()?, 0, 1);
        };
        let number = |setting: &config::Setting| {
            setting.parse("a number")?.ok_or(Error::Environment {
                name: setting.name,
                value: String::new(),
                expected: "a number, as LIBCOPY_KEY is set",
            })
        };
        Self::join(&key, number(&config::RANK)?, number(&config::SIZE)?)
    }

    /// Our rank, 0 to `size - 1`.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Each transport, whether this team can use it, and why.
    pub fn transports(&self) -> &[TransportReport] {
        &self.reports
    }

    /// Makes all ranks use one transport for everything that is not eager; `None` leaves it to
    /// the policy. Collective: all ranks call it with the same argument.
    pub fn set_transport(&mut self, kind: Option<TransportKind>) -> Result<()> {
        self.forced = kind;
        Ok(())
    }

    /// The transport set with [`Team::set_transport`] or `LIBCOPY_TRANSPORT`.
    pub fn transport(&self) -> Option<TransportKind> {
        self.forced
    }

    /// The thresholds in force; rank 0's, on every rank.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }
}
