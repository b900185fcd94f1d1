// SPDX-License-Identifier: MIT OR Apache-2.0

//! Faults on request: what goes wrong, on which descriptor, how often.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

/// What goes wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// READ_DATA_ERR: nothing of the descriptor is copied, the channel halts. The driver recovers.
    ReadError,
    /// WRITE_DATA_ERR: the first half is copied, the channel halts. The driver recovers.
    WriteError,
    /// SRC_ADDR_ERR: nothing is copied, the channel halts, and the driver has no handler for it.
    Halt,
    /// The channel stays active and does nothing, not even suspend, until it is reset.
    Hang,
    /// The descriptor is done and its completion written, but its interrupt is not sent.
    LostInterrupt,
    /// The descriptor begins so much later: data, completion and interrupt are late.
    Delay(Duration),
    /// One byte of the copy (the one in the middle) is wrong, and nobody says so.
    Corrupt,
}

/// Every kind, as it is written.
pub const KINDS: [&str; 7] = [
    "read-error",
    "write-error",
    "halt",
    "hang",
    "lost-interrupt",
    "delay=MILLISECONDS",
    "corrupt",
];

impl Kind {
    /// The name without a value.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadError => "read-error",
            Self::WriteError => "write-error",
            Self::Halt => "halt",
            Self::Hang => "hang",
            Self::LostInterrupt => "lost-interrupt",
            Self::Delay(_) => "delay",
            Self::Corrupt => "corrupt",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delay(time) => write!(f, "delay={}", time.as_millis()),
            kind => f.write_str(kind.name()),
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "read-error" => Self::ReadError,
            "write-error" => Self::WriteError,
            "halt" => Self::Halt,
            "hang" => Self::Hang,
            "lost-interrupt" => Self::LostInterrupt,
            "corrupt" => Self::Corrupt,
            _ => match text.split_once('=') {
                Some(("delay", time)) => Self::Delay(Duration::from_millis(
                    time.parse()
                        .map_err(|_| format!("'{time}' is not a number of milliseconds"))?,
                )),
                _ => return Err(format!("'{text}' is not a fault: {}", KINDS.join(", "))),
            },
        })
    }
}

/// A fault that waits for its descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Armed {
    /// What goes wrong.
    pub kind: Kind,
    /// Copies that go well before it happens.
    pub after: u64,
    /// Copies in a row that it happens to.
    pub count: u64,
}

impl fmt::Display for Armed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after={} count={}", self.kind, self.after, self.count)
    }
}

impl Serialize for Armed {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Armed {
    type Err = String;

    /// Reads `KIND [after=N] [count=N]`; `count=all` is for ever.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let kind = words
            .next()
            .ok_or_else(|| format!("no fault is named: {}", KINDS.join(", ")))?
            .parse()?;
        let mut armed = Self {
            kind,
            after: 0,
            count: 1,
        };
        for word in words {
            let number = |text: &str| {
                text.parse::<u64>()
                    .map_err(|_| format!("'{word}': '{text}' is not a number"))
            };
            match word.split_once('=') {
                Some(("after", value)) => armed.after = number(value)?,
                Some(("count", "all")) => armed.count = u64::MAX,
                Some(("count", value)) => armed.count = number(value)?,
                _ => return Err(format!("'{word}' is neither after=N nor count=N")),
            }
        }
        Ok(armed)
    }
}

/// The faults of one channel, in the order of their arming.
#[derive(Default)]
pub struct Faults(Vec<Armed>);

impl Faults {
    /// Adds one.
    pub fn arm(&mut self, armed: Armed) {
        if armed.count > 0 {
            self.0.push(armed);
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// What still waits.
    pub fn armed(&self) -> &[Armed] {
        &self.0
    }

    /// A copy begins: what goes wrong with it? Every fault counts it; the first whose turn has come
    /// strikes, others whose turn has come too strike the next copy.
    pub fn strike(&mut self) -> Option<Kind> {
        let mut struck = None;
        for armed in &mut self.0 {
            if armed.after > 0 {
                armed.after -= 1;
            } else if struck.is_none() {
                struck = Some(armed.kind);
                if armed.count != u64::MAX {
                    armed.count -= 1;
                }
            }
        }
        self.0.retain(|armed| armed.count > 0);
        struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_strikes_after_so_many_copies_and_so_often() {
        let mut faults = Faults::default();
        faults.arm("halt after=2 count=2".parse().expect("valid"));
        faults.arm("corrupt after=3".parse().expect("valid"));
        let struck: Vec<_> = (0..6).map(|_| faults.strike()).collect();
        let expected = [
            None,
            None,
            Some(Kind::Halt),
            Some(Kind::Halt),
            Some(Kind::Corrupt),
            None,
        ];
        assert_eq!(struck, expected);
        assert!(faults.armed().is_empty());
    }

    #[test]
    fn all_is_for_ever() {
        let mut faults = Faults::default();
        faults.arm("delay=5 count=all".parse().expect("valid"));
        for _ in 0..1000 {
            assert_eq!(faults.strike(), Some(Kind::Delay(Duration::from_millis(5))));
        }
        faults.clear();
        assert_eq!(faults.strike(), None);
    }

    #[test]
    fn every_kind_reads_what_it_writes() {
        for name in KINDS {
            let kind: Kind = name.replace("MILLISECONDS", "7").parse().expect(name);
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for text in [
            "",
            "explode",
            "delay=x",
            "halt after",
            "halt count=-1",
            "halt soon=1",
        ] {
            assert!(text.parse::<Armed>().is_err(), "{text}");
        }
    }
}
