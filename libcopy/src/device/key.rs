// SPDX-License-Identifier: MIT OR Apache-2.0

//! [`DomainKey`]: what lets a process into a domain.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// 128 random bits that let processes of the same user into a domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DomainKey([u8; 16]);

impl DomainKey {
    /// The key as bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// A key that was received as bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        DomainKey(bytes)
    }
}

impl fmt::Display for DomainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DomainKey {
    // A key in a log would let its reader in.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DomainKey(..)")
    }
}

impl FromStr for DomainKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_key(text).map(DomainKey)
    }
}

/// Reads 32 hexadecimal digits.
pub(crate) fn parse_key(text: &str) -> Result<[u8; 16]> {
    let wrong = || {
        Error::argument(
            "key",
            format!("{} characters", text.len()),
            "32 hexadecimal digits",
        )
    };
    let text = text.as_bytes();
    if text.len() != 32 {
        return Err(wrong());
    }
    let mut key = [0; 16];
    for (byte, pair) in key.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |c: u8| (c as char).to_digit(16);
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
            return Err(wrong());
        };
        *byte = (high << 4 | low) as u8;
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_text() {
        let key = DomainKey::from_bytes(*b"0123456789abcdef");
        assert_eq!(key.to_string().parse::<DomainKey>().unwrap(), key);
        assert!("12".parse::<DomainKey>().is_err());
        assert!("zz".repeat(16).parse::<DomainKey>().is_err());
        assert!(!format!("{key:?}").contains("3031"));
    }
}
