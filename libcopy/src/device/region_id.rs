// SPDX-License-Identifier: MIT OR Apache-2.0

//! What peers are told of a region, and what they may do with it.

use std::fmt;

use crate::error::{Error, Result};
use crate::uapi;

/// Rights that peers get on a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Peers may copy from it.
    Read,
    /// Peers may copy into it.
    Write,
    /// Both.
    ReadWrite,
}

impl Rights {
    /// The `RIGHT_*` bits of the ABI.
    pub fn bits(self) -> u32 {
        match self {
            Rights::Read => uapi::RIGHT_READ,
            Rights::Write => uapi::RIGHT_WRITE,
            Rights::ReadWrite => uapi::RIGHT_READ | uapi::RIGHT_WRITE,
        }
    }
}

/// The name of a region inside its domain: what peers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId(u32);

impl RegionId {
    /// An id that a peer sent.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if no region can have this id.
    pub fn new(id: u32) -> Result<Self> {
        match id {
            1..=uapi::MAX_REGION_ID => Ok(RegionId(id)),
            _ => Err(Error::argument("region id", id, 1..=uapi::MAX_REGION_ID)),
        }
    }

    /// An id that the kernel has given.
    pub(super) fn from_kernel(id: u32) -> Self {
        RegionId(id)
    }

    /// The number to send to peers.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked() {
        assert!(RegionId::new(0).is_err());
        assert!(RegionId::new(uapi::MAX_REGION_ID + 1).is_err());
        assert_eq!(RegionId::new(5).unwrap().get(), 5);
    }
}
