// SPDX-License-Identifier: MIT OR Apache-2.0

//! The one error type of this crate.

/// What went wrong, with the value that was wrong and the way out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is out of its range.
    #[error("{what} is {value}, but must be {allowed}")]
    Argument {
        /// Which argument.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A serialized layout makes no sense.
    #[error("the serialized layout is damaged: {what} is {value:#x}")]
    Corrupt {
        /// Which word.
        what: &'static str,
        /// What was found.
        value: u64,
    },
}

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn argument(
        what: &'static str,
        value: impl ToString,
        allowed: impl ToString,
    ) -> Self {
        Error::Argument {
            what,
            value: value.to_string(),
            allowed: allowed.to_string(),
        }
    }
}
