// SPDX-License-Identifier: MIT OR Apache-2.0

//! Who moves the bytes of a collective, and `LIBCOPY_ASYNC`: whether collectives return before they
//! have arrived.

use std::str::FromStr;

use serde::Serialize;

use crate::error::{Error, Result};

/// Who moves the bytes of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Executor {
    /// CPUs copy, and the call returns when they are done.
    Cpu,
    /// An engine copies while the application goes on.
    Engine,
    /// An engine copies, and CPUs help it before the call returns.
    Both,
}

impl Executor {
    /// All of them.
    pub const ALL: [Executor; 3] = [Executor::Cpu, Executor::Engine, Executor::Both];
}

/// Whether collectives return while copy engines still move their bytes, and who decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Async {
    /// They never do.
    #[default]
    Off,
    /// The monitor decides for each call site.
    Auto,
    /// Always this way.
    Fixed(Executor),
}

impl Executor {
    /// The name in options and logs.
    pub fn name(self) -> &'static str {
        match self {
            Executor::Cpu => "cpu",
            Executor::Engine => "engine",
            Executor::Both => "both",
        }
    }

    pub(crate) fn number(self) -> u64 {
        match self {
            Executor::Cpu => 1,
            Executor::Engine => 2,
            Executor::Both => 3,
        }
    }

    pub(crate) fn from_number(number: u64) -> Option<Self> {
        Executor::ALL.into_iter().find(|way| way.number() == number)
    }
}

impl Async {
    pub(crate) fn number(self) -> u64 {
        match self {
            Async::Off => 0,
            Async::Auto => 8,
            Async::Fixed(way) => way.number(),
        }
    }

    pub(crate) fn from_number(number: u64) -> Self {
        match (number, Executor::from_number(number)) {
            (8, _) => Async::Auto,
            (_, Some(way)) => Async::Fixed(way),
            _ => Async::Off,
        }
    }

    /// Whether an engine always takes part.
    pub(crate) fn never_by_cpu(&self) -> bool {
        !self.ways().contains(&Executor::Cpu)
    }

    /// The ways that are possible, in the order in which they are tried.
    pub(crate) fn ways(&self) -> &[Executor] {
        match self {
            Async::Off => &[Executor::Cpu],
            Async::Auto => &[Executor::Engine, Executor::Cpu, Executor::Both],
            Async::Fixed(way) => std::slice::from_ref(way),
        }
    }
}

impl FromStr for Async {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fixed = Executor::ALL.into_iter().find(|way| way.name() == text);
        match (text, fixed) {
            ("off" | "0", _) => Ok(Async::Off),
            ("auto" | "1", _) => Ok(Async::Auto),
            (_, Some(way)) => Ok(Async::Fixed(way)),
            _ => Err(Error::argument(
                "LIBCOPY_ASYNC",
                text.to_owned(),
                "off, auto, engine, cpu or both",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_numbers_and_text() {
        let fixed = Executor::ALL.map(Async::Fixed);
        for choice in [Async::Off, Async::Auto].into_iter().chain(fixed) {
            assert_eq!(Async::from_number(choice.number()), choice);
        }
        assert!("perhaps".parse::<Async>().is_err());
        assert_eq!(
            "both".parse::<Async>().unwrap(),
            Async::Fixed(Executor::Both)
        );
        assert_eq!("0".parse::<Async>().unwrap(), Async::Off);
    }
}
