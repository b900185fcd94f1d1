// SPDX-License-Identifier: MIT OR Apache-2.0

//! The one table of `LIBCOPY_*` environment variables.
//!
//! The table is what `libcopy info` prints; nothing reads the environment past it.

use std::str::FromStr;

use crate::error::{Error, Result};

/// One environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of the variable.
    pub name: &'static str,
    /// What is used if it is not set; empty means "decided at run time".
    pub default: &'static str,
    /// What it does and what values it takes.
    pub help: &'static str,
}

impl Setting {
    /// The value in the environment, if there is a non-empty one.
    pub fn value(&self) -> Option<String> {
        std::env::var_os(self.name)
            .map(|v| v.to_string_lossy().into_owned())
            .filter(|v| !v.is_empty())
    }

    /// The value in the environment, or the default.
    pub fn or_default(&self) -> String {
        self.value().unwrap_or_else(|| self.default.to_owned())
    }

    /// Parses the value; `None` if it is not set and there is no default.
    pub(crate) fn parse<T: FromStr>(&self, expected: &'static str) -> Result<Option<T>> {
        let text = self.or_default();
        if text.is_empty() {
            return Ok(None);
        }
        text.trim()
            .parse()
            .map(Some)
            .map_err(|_| Error::Environment {
                name: self.name,
                value: text.clone(),
                expected,
            })
    }

    /// Parses a number of bytes, with an optional suffix K, M or G (powers of 1024).
    pub(crate) fn bytes(&self) -> Result<Option<u64>> {
        let text = self.or_default();
        if text.is_empty() {
            return Ok(None);
        }
        parse_bytes(&text).map(Some).ok_or(Error::Environment {
            name: self.name,
            value: text,
            expected: "a number of bytes such as 65536, 64K or 1M",
        })
    }
}

/// Reads "65536", "64K", "64KiB", "1M" or "inf".
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("inf") {
        return Some(u64::MAX);
    }
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

macro_rules! settings {
    ($($constant:ident = $name:literal, $default:literal, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Setting = Setting { name: $name, default: $default, help: $help };
        )*
        /// Every variable, in the order in which a reader wants to see them.
        pub const SETTINGS: &[Setting] = &[$($constant),*];
    };
}

settings! {
    KEY = "LIBCOPY_KEY", "", "Key of the team to join: 32 hexadecimal digits (set by `libcopy run`).";
    RANK = "LIBCOPY_RANK", "", "Rank of this process in its team (set by `libcopy run`).";
    SIZE = "LIBCOPY_SIZE", "", "Number of ranks of the team (set by `libcopy run`).";
    JOIN_TIMEOUT = "LIBCOPY_JOIN_TIMEOUT", "30", "Seconds to wait for the other ranks when joining.";
    TRANSPORT = "LIBCOPY_TRANSPORT", "", "Use this transport for everything: kmod, cma or shm (default: the policy decides).";
    PROFILE = "LIBCOPY_PROFILE", "", "Profile file of `libcopy tune` (default: $XDG_CONFIG_HOME/libcopy/profile.toml; `none`: no file).";
    CALIBRATION = "LIBCOPY_CALIBRATION", "", "0: pack and unpack with the built-in table of the processor's vendor, whatever `libcopy tune` found.";
    EAGER_MAX = "LIBCOPY_EAGER_MAX", "", "Messages up to this size are sent without asking the receiver first.";
    SHM_CHUNK = "LIBCOPY_SHM_CHUNK", "", "Bytes that shared memory hands over at a time.";
    SHM_RING = "LIBCOPY_SHM_RING", "", "Bytes of each rank's broadcast ring in shared memory (a power of two).";
    NONTEMPORAL_MIN = "LIBCOPY_NONTEMPORAL_MIN", "", "From this size on, received bytes bypass the cache (`inf`: never).";
    SHARE_MIN = "LIBCOPY_SHARE_MIN", "", "From this size on, root and leaf share a copy where each has a core (`inf`: never).";
    ATTACH_MAX = "LIBCOPY_ATTACH_MAX", "", "Up to this size, peers map a buffer that is used again and again through the module (0: none, `inf`: all).";
    SPIN = "LIBCOPY_SPIN", "", "Microseconds to spin before sleeping (default: adaptive; none if ranks outnumber cores).";
    DISABLE = "LIBCOPY_DISABLE", "", "libcopy_mpi.so passes every call on to the MPI library if this is set to something else than 0.";
    STATS = "LIBCOPY_STATS", "", "libcopy_mpi.so tells at MPI_Finalize what it took and what it passed on if this is set to something else than 0.";
    MPI_MESSAGES = "LIBCOPY_MPI_MESSAGES", "", "libcopy_mpi.so passes messages between two processes on to the MPI library if this is 0 on any rank.";
    MPI_EVERYWHERE = "LIBCOPY_MPI_EVERYWHERE", "", "1: all ranks on all machines have libcopy_mpi.so, which then works across machines; a rank without it would hang the job.";
    ASYNC = "LIBCOPY_ASYNC", "", "Let collectives return while copy engines still move their bytes: off, auto, engine, cpu or both (default: off; auto learns which is best).";
    OFFLOAD_MIN = "LIBCOPY_OFFLOAD_MIN", "", "Parts of this size or more may be moved by copy engines (with LIBCOPY_ASYNC).";
    OFFLOAD_RANKS = "LIBCOPY_OFFLOAD_RANKS", "", "Teams of this many ranks or more may use copy engines (with LIBCOPY_ASYNC).";
    OFFLOAD_PAGES = "LIBCOPY_OFFLOAD_PAGES", "", "Pages that a copy engine moves between two looks whether CPUs have taken over (default: the module's parameter fragment_pages).";
    OFFLOAD_VERIFY = "LIBCOPY_OFFLOAD_VERIFY", "", "1: compare what a copy engine has moved with its source, and copy again where it differs (default: 0).";
    LOG = "LIBCOPY_LOG", "", "What to tell on standard error; policy: each choice between engine and CPU as a line of JSON.";
    SHM_DIR = "LIBCOPY_SHM_DIR", "/dev/shm", "Directory of the shared segments; must be a tmpfs.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_with_suffixes() {
        assert_eq!(parse_bytes("65536"), Some(65536));
        assert_eq!(parse_bytes("64K"), Some(65536));
        assert_eq!(parse_bytes(" 64 KiB "), Some(65536));
        assert_eq!(parse_bytes("1m"), Some(1 << 20));
        assert_eq!(parse_bytes("inf"), Some(u64::MAX));
        assert_eq!(parse_bytes("17179869184G"), None);
        assert_eq!(parse_bytes("12q"), None);
        assert_eq!(parse_bytes(""), None);
        assert_eq!(parse_bytes("K"), None);
    }

    #[test]
    fn names_are_unique_and_ours() {
        for (i, s) in SETTINGS.iter().enumerate() {
            assert!(s.name.starts_with("LIBCOPY_"));
            assert!(!s.help.is_empty());
            assert!(
                SETTINGS[..i].iter().all(|t| t.name != s.name),
                "{} twice",
                s.name
            );
        }
    }
}
