// SPDX-License-Identifier: MIT OR Apache-2.0

//! `LIBCOPY_ASYNC`: whether collectives return early, and who decides how.

use std::str::FromStr;

use super::monitor::Way;
use crate::error::{Error, Result};

/// Whether collectives return while copy engines still move their bytes, and who decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Async {
    /// They never do.
    #[default]
    Off,
    /// The monitor decides for each call site.
    Auto,
    /// Always this way.
    Fixed(Way),
}

impl Way {
    /// The name in options and logs.
    pub fn name(self) -> &'static str {
        match self {
            Way::Cpu => "cpu",
            Way::Engine => "engine",
            Way::Both => "both",
        }
    }

    pub(crate) fn number(self) -> u64 {
        match self {
            Way::Cpu => 1,
            Way::Engine => 2,
            Way::Both => 3,
        }
    }

    pub(crate) fn from_number(number: u64) -> Option<Self> {
        Way::ALL.into_iter().find(|way| way.number() == number)
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
        match (number, Way::from_number(number)) {
            (8, _) => Async::Auto,
            (_, Some(way)) => Async::Fixed(way),
            _ => Async::Off,
        }
    }

    /// Whether an engine always takes part.
    pub(crate) fn never_by_cpu(&self) -> bool {
        !self.ways().contains(&Way::Cpu)
    }

    /// The ways that are possible, in the order in which they are tried.
    pub(crate) fn ways(&self) -> &[Way] {
        match self {
            Async::Off => &[Way::Cpu],
            Async::Auto => &[Way::Engine, Way::Cpu, Way::Both],
            Async::Fixed(way) => std::slice::from_ref(way),
        }
    }
}

impl FromStr for Async {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fixed = Way::ALL.into_iter().find(|way| way.name() == text);
        match (text, fixed) {
            ("off" | "0", _) => Ok(Async::Off),
            ("auto" | "1", _) => Ok(Async::Auto),
            (_, Some(way)) => Ok(Async::Fixed(way)),
            _ => Err(Error::argument(
                "LIBCOPY_ASYNC",
                text,
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
        let fixed = Way::ALL.map(Async::Fixed);
        for choice in [Async::Off, Async::Auto].into_iter().chain(fixed) {
            assert_eq!(Async::from_number(choice.number()), choice);
        }
        assert!("perhaps".parse::<Async>().is_err());
        assert_eq!("both".parse::<Async>().unwrap(), Async::Fixed(Way::Both));
        assert_eq!("0".parse::<Async>().unwrap(), Async::Off);
    }
}
