// SPDX-License-Identifier: MIT OR Apache-2.0

//! The one error type of this crate, and what it says of arguments.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Range, RangeFrom, RangeInclusive, RangeTo, RangeToInclusive};

use crate::room::NoRoom;

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
        value: Value,
        /// What is allowed.
        allowed: Allowed,
    },
    /// A type expression has a name that is none of a type or of a constructor.
    #[error("unknown {what} `{name}`{} (character {at} of the expression)", meant(.nearest))]
    UnknownName {
        /// What it should be the name of: a type or a constructor.
        what: &'static str,
        /// The name.
        name: String,
        /// Where it begins, counted from 1.
        at: usize,
        /// The name that is nearest, if one is near.
        nearest: Option<&'static str>,
    },
    /// A serialized layout makes no sense.
    #[error("the serialized layout is damaged: {what} is {value:#x}")]
    Corrupt {
        /// Which word.
        what: &'static str,
        /// What was found.
        value: u64,
    },
    /// There is no room in memory for a list that is as long as a type, an argument or a peer says.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

/// What somebody may have meant, as a question.
fn meant(nearest: &Option<&str>) -> String {
    nearest.map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
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
}

/// The value of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A number.
    Unsigned(u64),
    /// A number that may be negative.
    Signed(i64),
    /// Bytes of a buffer.
    Span {
        /// Where they begin.
        offset: i64,
        /// How many they are.
        bytes: u64,
    },
    /// An optional argument that was not given.
    Missing,
    /// Something that is no number.
    Text(Cow<'static, str>),
}

impl Value {
    /// Bytes of a buffer.
    pub fn span(offset: usize, bytes: usize) -> Value {
        Value::Span {
            offset: saturated(offset),
            bytes: bytes as u64,
        }
    }
}

fn saturated(offset: usize) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(number) => number.fmt(f),
            Value::Signed(number) => number.fmt(f),
            Value::Span { offset, bytes } => write!(f, "{bytes} bytes at {offset}"),
            Value::Missing => f.write_str("missing"),
            Value::Text(text) => text.fmt(f),
        }
    }
}

/// What the value of an argument may be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allowed {
    /// This number.
    Exactly(u64),
    /// This number or a larger one.
    AtLeast(u64),
    /// This number or a smaller one.
    AtMost(u64),
    /// A smaller number.
    Below(u64),
    /// A number from the first one to the second one.
    Between(u64, u64),
    /// Bytes that begin and end in this range.
    Within(i64, i64),
    /// A multiple of this number.
    MultipleOf(u64),
    /// Something that words describe.
    Text(Cow<'static, str>),
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Allowed::Exactly(number) => number.fmt(f),
            Allowed::AtLeast(number) => write!(f, "at least {number}"),
            Allowed::AtMost(number) => write!(f, "at most {number}"),
            Allowed::Below(number) => write!(f, "below {number}"),
            Allowed::Between(low, high) => write!(f, "{low} to {high}"),
            Allowed::Within(start, end) => write!(f, "within bytes {start}..{end}"),
            Allowed::MultipleOf(number) => write!(f, "a multiple of {number}"),
            Allowed::Text(text) => text.fmt(f),
        }
    }
}

macro_rules! text {
    ($($to:ident from $from:ty;)*) => {
        $(impl From<$from> for $to {
            fn from(text: $from) -> Self {
                $to::Text(text.into())
            }
        })*
    };
}

text! {
    Value from &'static str;
    Value from String;
    Allowed from &'static str;
    Allowed from String;
}

/// Numbers and ranges of a type, each of which fits into 64 bits.
macro_rules! numbers {
    ($($number:ty)*) => {
        $(
            impl From<$number> for Value {
                fn from(number: $number) -> Self {
                    Value::Unsigned(number as u64)
                }
            }
            impl From<$number> for Allowed {
                fn from(number: $number) -> Self {
                    Allowed::Exactly(number as u64)
                }
            }
            impl From<RangeFrom<$number>> for Allowed {
                fn from(range: RangeFrom<$number>) -> Self {
                    Allowed::AtLeast(range.start as u64)
                }
            }
            impl From<RangeTo<$number>> for Allowed {
                fn from(range: RangeTo<$number>) -> Self {
                    Allowed::Below(range.end as u64)
                }
            }
            impl From<RangeToInclusive<$number>> for Allowed {
                fn from(range: RangeToInclusive<$number>) -> Self {
                    Allowed::AtMost(range.end as u64)
                }
            }
            impl From<RangeInclusive<$number>> for Allowed {
                fn from(range: RangeInclusive<$number>) -> Self {
                    Allowed::Between(*range.start() as u64, *range.end() as u64)
                }
            }
        )*
    };
}

numbers! { u32 u64 usize }

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Value::Signed(number.into())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Signed(number)
    }
}

impl From<Range<usize>> for Allowed {
    fn from(range: Range<usize>) -> Self {
        Allowed::Within(saturated(range.start), saturated(range.end))
    }
}

impl From<Range<i64>> for Allowed {
    fn from(range: Range<i64>) -> Self {
        Allowed::Within(range.start, range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_say_what_they_are_and_may_be() {
        let said =
            |value: Value, allowed: Allowed| Error::argument("it", value, allowed).to_string();
        assert_eq!(
            said(8usize.into(), (..8usize).into()),
            "it is 8, but must be below 8"
        );
        assert_eq!(
            said((-1i64).into(), (0..=9u64).into()),
            "it is -1, but must be 0 to 9"
        );
        assert_eq!(
            said(Value::Missing, "given".into()),
            "it is missing, but must be given"
        );
        let span = Value::span(usize::MAX, 8);
        let end = i64::MAX;
        assert_eq!(
            said(span, (0..64usize).into()),
            format!("it is 8 bytes at {end}, but must be within bytes 0..64")
        );
        let span = Value::Span {
            offset: -4,
            bytes: 8,
        };
        assert_eq!(
            said(span, (0..64i64).into()),
            "it is 8 bytes at -4, but must be within bytes 0..64"
        );
        assert_eq!(
            said(7u32.into(), (..=6u32).into()),
            "it is 7, but must be at most 6"
        );
        assert_eq!(
            said(0u64.into(), (1u64..).into()),
            "it is 0, but must be at least 1"
        );
        assert_eq!(
            said(7u64.into(), Allowed::MultipleOf(4)),
            "it is 7, but must be a multiple of 4"
        );
        assert_eq!(said("a".into(), 2u64.into()), "it is a, but must be 2");
    }
}
