// SPDX-License-Identifier: MIT OR Apache-2.0

//! The thresholds in force here: built in, overridden by the machine's profile, overridden by the
//! environment.

use super::profile::Profile;
use super::thresholds::Policy;
use crate::config;
use crate::error::Result;
use crate::topology::Topology;

impl Policy {
    /// Built-in values, overridden by the machine's profile, overridden by the environment.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Environment`] or [`crate::Error::Argument`] if a variable has an unusable
    /// value, [`crate::Error::Profile`] if the profile cannot be read.
    pub fn load() -> Result<Self> {
        let topology = Topology::current();
        let found = Profile::current()?;
        let mut policy = found.policy.unwrap_or_else(|| Self::built_in(topology));
        policy.contention = found.contention;
        let set = |setting: &config::Setting, value: &mut u64| -> Result<()> {
            if let Some(bytes) = setting.bytes()? {
                *value = bytes;
            }
            Ok(())
        };
        if config::EAGER_MAX.value().is_some() {
            set(&config::EAGER_MAX, &mut policy.eager_max)?;
            policy.eager_max_oversubscribed = policy.eager_max;
            policy.eager_bcast_oversubscribed = policy.eager_max;
            policy.eager_scatter_max = policy.eager_max;
        }
        if config::SHM_CHUNK.value().is_some() {
            set(&config::SHM_CHUNK, &mut policy.chunk)?;
            policy.chunk_oversubscribed = policy.chunk;
        }
        set(&config::NONTEMPORAL_MIN, &mut policy.nontemporal_min)?;
        if config::SHARE_MIN.value().is_some() {
            set(&config::SHARE_MIN, &mut policy.share_min)?;
            policy.share_gather_min = policy.share_min;
            policy.share_scatter_min = policy.share_min;
        }
        set(&config::ATTACH_MAX, &mut policy.attach_max)?;
        if config::SHM_RING.value().is_some() {
            set(&config::SHM_RING, &mut policy.bcast_ring)?;
            policy.bcast_ring_oversubscribed = policy.bcast_ring;
        }
        if let Some(spin) = config::SPIN.parse()? {
            policy.spin_us = Some(spin);
        }
        if let Some(choice) = config::ASYNC.parse()? {
            policy.asynchronous = choice;
        }
        set(&config::OFFLOAD_MIN, &mut policy.offload_min)?;
        if let Some(ranks) = config::OFFLOAD_RANKS.parse()? {
            policy.offload_ranks = ranks;
        }
        if let Some(pages) = config::OFFLOAD_PAGES.parse()? {
            policy.offload_pages = pages;
        }
        if let Some(verify) = config::OFFLOAD_VERIFY.parse()? {
            policy.offload_verify = verify;
        }
        if let Some(kind) = config::TRANSPORT.parse()? {
            policy.transport = Some(kind);
        }
        policy.checked()
    }
}
