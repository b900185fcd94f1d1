// SPDX-License-Identifier: MIT OR Apache-2.0

//! The one error type of the library.

use std::error::Error as _;
use std::io;
use std::time::Duration;

pub use libcopy_datatype::{Allowed, Value};

use crate::transport::TransportKind;

/// What went wrong, with the value that was wrong and the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device cannot be opened.
    #[error("cannot open {path} ({})", device_hint(source))]
    Device {
        /// Path of the device.
        path: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The module speaks an ABI that this library does not.
    #[error(
        "the loaded module speaks ABI version {module}, this library needs {library} or newer: \
         load the module that belongs to this library"
    )]
    AbiVersion {
        /// What the module reported.
        module: u32,
        /// What the library was compiled with.
        library: u32,
    },
    /// An ioctl on the device failed.
    #[error("{ioctl} failed ({hint})")]
    Ioctl {
        /// Name of the command in `uapi.rs`.
        ioctl: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What it means and what to do.
        hint: &'static str,
    },
    /// Another system call failed.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// An argument is out of its range.
    #[error("{what} is {value}, but must be {allowed}")]
    Argument {
        /// Which argument.
        what: &'static str,
        /// Its value.
        value: Value,
        /// What is allowed.
        allowed: Allowed,
    },
    /// A datatype or a layout cannot be made, or does not fit.
    #[error(transparent)]
    Datatype(#[from] libcopy_datatype::Error),
    /// An environment variable is missing or unusable.
    #[error("{name}={value:?} is not usable: expected {expected}")]
    Environment {
        /// Name of the variable.
        name: &'static str,
        /// Its value; empty if it is not set.
        value: String,
        /// What it should look like.
        expected: &'static str,
    },
    /// A rank did not come in time.
    #[error(
        "{missing} of {size} ranks (the first is rank {rank}) did not join within {waited:?}: start \
         them all with the same key and size, where they share LIBCOPY_SHM_DIR or a network namespace, or raise \
         LIBCOPY_JOIN_TIMEOUT"
    )]
    JoinTimeout {
        /// The first rank that is missing.
        rank: usize,
        /// How many are missing.
        missing: usize,
        /// Size of the team.
        size: usize,
        /// How long we waited.
        waited: Duration,
    },
    /// A rank could not join, so there is no team.
    #[error("rank {rank} could not join the team: {why}")]
    Join {
        /// Which.
        rank: usize,
        /// What it says.
        why: String,
    },
    /// Somebody else uses the key or the rank.
    #[error("{what} is in use already: every team needs a fresh key, every process its own rank")]
    InUse {
        /// The rank or the segment.
        what: String,
    },
    /// The members of a team were started with different ideas of it.
    #[error("this process joins a team of {mine} ranks, rank 0 made one of {theirs}")]
    TeamSize {
        /// Our size.
        mine: usize,
        /// Rank 0's.
        theirs: usize,
    },
    /// A member of the team died; the team cannot be used any more.
    #[error("rank {rank} died; the team is broken, start a new one")]
    PeerDied {
        /// Which.
        rank: usize,
    },
    /// A member left the team while others still expected something from it.
    #[error("rank {rank} left the team while others still needed it")]
    PeerLeft {
        /// Which.
        rank: usize,
    },
    /// The ranks called different operations, or the same with different lengths. The team cannot
    /// be used any more.
    #[error(
        "the ranks disagree: rank {rank} called {theirs}, expected {expected}; \
         the team is broken, start a new one"
    )]
    Mismatch {
        /// The rank that differs from the one that noticed it.
        rank: usize,
        /// What it called.
        theirs: String,
        /// What would have fitted.
        expected: String,
    },
    /// An earlier operation of this process failed half way; the team cannot be used any more.
    #[error("the team is broken since an operation of rank {rank} failed half way")]
    Broken {
        /// The rank that gave up.
        rank: usize,
    },
    /// The handle belongs to the process that this one was forked from.
    #[error(
        "{what} belongs to process {owner}, of which this process is a forked child: a child makes its own"
    )]
    Forked {
        /// What was used.
        what: &'static str,
        /// The process that it belongs to.
        owner: u32,
    },
    /// A transport cannot be used here.
    #[error("transport {kind} cannot be used: {why}")]
    Transport {
        /// Which.
        kind: TransportKind,
        /// Why not.
        why: String,
    },
    /// A value in shared memory makes no sense: a peer is buggy or overwrote it.
    #[error("the shared segment is damaged: {what} is {value:#x}")]
    Corrupt {
        /// Which value.
        what: &'static str,
        /// What was found.
        value: u64,
    },
    /// A message has more bytes than there is room for where it was received. The message is gone;
    /// the team stays whole.
    #[error("a message of {bytes} bytes was received where there is room for {capacity}")]
    Truncated {
        /// Bytes of the message.
        bytes: u64,
        /// Bytes that there is room for.
        capacity: u64,
    },
    /// The data of a message could not be moved.
    #[error("a message of rank {rank} could not be received: {why}; the team is broken")]
    Message {
        /// The rank that sent it.
        rank: usize,
        /// Why.
        why: String,
    },
    /// A profile file cannot be read or written.
    #[error("profile {path}: {why}")]
    Profile {
        /// Path of the file.
        path: String,
        /// Why.
        why: String,
    },
    /// The time is over.
    #[error("{what} did not happen within {waited:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
}

/// The result of nearly everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the steps of a collective return to each other: one word. A [`Result`] is handed up by
/// copying as much as the longest error has, from step to step, which short calls feel: words that
/// were just written one by one are waited for when they are read two at a time.
pub(crate) type Boxed<T> = std::result::Result<T, Box<Error>>;

impl From<Box<Error>> for Error {
    fn from(error: Box<Error>) -> Self {
        *error
    }
}

impl Error {
    /// A system call failed.
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::System {
            what: what.into(),
            source: source.into(),
        }
    }

    /// Wraps the thread's current `errno`.
    pub(crate) fn last_os(what: impl Into<String>) -> Self {
        Error::system(what, io::Error::last_os_error())
    }

    pub(crate) fn corrupt(what: &'static str, value: u64) -> Self {
        Error::Corrupt { what, value }
    }

    pub(crate) fn argument(
        what: &'static str,
        value: impl Into<Value>,
        allowed: impl Into<Allowed>,
    ) -> Self {
        Error::Argument {
            what,
            value: value.into(),
            allowed: allowed.into(),
        }
    }

    /// This error and what caused it, as one line. [`Display`](std::fmt::Display) shows the error
    /// alone, and [`source`](std::error::Error::source) is the cause.
    pub fn report(&self) -> String {
        let (mut text, mut cause) = (self.to_string(), self.source());
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }

    /// The `errno` behind this error, if a system call failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Device { source, .. }
            | Error::Ioctl { source, .. }
            | Error::System { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

fn device_hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOENT) => {
            "the module is not loaded; libcopy works without it, through CMA or shared memory"
        }
        Some(libc::ENXIO | libc::ENODEV) => {
            "the device node is left over, the module is not loaded"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "this user may not open it; see the udev rule in docs/install.md"
        }
        _ => "unexpected",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_said_once_and_only_in_reports() {
        let cause = || io::Error::from_raw_os_error(libc::ENOENT);
        let errors = [
            Error::Device {
                path: "/dev/libcopy",
                source: cause(),
            },
            Error::Ioctl {
                ioctl: "REGION_INFO",
                source: cause(),
                hint: "no such region",
            },
            Error::system("opening a file", cause()),
        ];
        for error in errors {
            let (alone, cause) = (error.to_string(), cause().to_string());
            assert!(!alone.contains(&cause), "{alone}");
            assert_eq!(error.source().map(ToString::to_string), Some(cause.clone()));
            assert_eq!(error.report(), format!("{alone}: {cause}"));
        }
        let without = Error::PeerDied { rank: 3 };
        assert_eq!(without.report(), without.to_string());
    }
}
