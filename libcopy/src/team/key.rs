// SPDX-License-Identifier: MIT OR Apache-2.0

//! The name of a team that nobody can guess.

use std::fmt;
use std::str::FromStr;

use crate::device::parse_key;
use crate::error::{Error, Result};
use crate::process;

/// 128 bits that name a team.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TeamKey([u8; 16]);

impl TeamKey {
    /// A fresh key from the kernel's random numbers.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the kernel gives no random numbers.
    pub fn random() -> Result<Self> {
        let mut key = [0u8; 16];
        process::fill_random(&mut key)
            .map_err(|source| Error::system("getrandom for a team key", source))?;
        Ok(TeamKey(key))
    }

    /// A key that somebody else chose; it must be fresh and hard to guess.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        TeamKey(bytes)
    }

    /// The key as bytes, to hand it on.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for TeamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TeamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TeamKey(..)")
    }
}

impl FromStr for TeamKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_key(text.trim()).map(TeamKey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_keys_differ_and_survive_text() {
        let key = TeamKey::random().unwrap();
        assert_ne!(key, TeamKey::random().unwrap());
        assert_eq!(key.to_string().parse::<TeamKey>().unwrap(), key);
    }
}
