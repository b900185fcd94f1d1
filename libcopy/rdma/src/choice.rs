// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which method moves a message: "Network-Assisted Noncontiguous Transfers for GPU-Aware MPI
//! Libraries" uses memory keys for at most 128 IOVs and blocks of at least 512 B, "tuned per
//! machine", and packs the rest.

use std::fmt;
use std::str::FromStr;

use crate::cut::{CutRule, Limits, chunk_size};
use crate::iov::Shape;

/// How the bytes of a message get from one layout to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// The sender packs, one WRITE moves the packed bytes, the receiver unpacks.
    Pack,
    /// A SEND with a gather list meets a receive with a scatter list; any card.
    Sge,
    /// A WRITE from one indirect memory key to another (user-mode memory registration); mlx5.
    Umr,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 3] = [Method::Pack, Method::Sge, Method::Umr];

    /// Its name in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Method::Pack => "pack",
            Method::Sge => "sge",
            Method::Umr => "umr",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a device can do beside packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// What one work request with a list allows; none if lists are not to be used.
    pub sge: Option<Limits>,
    /// What one indirect memory key allows; none without such keys.
    pub umr: Option<Limits>,
}

impl Abilities {
    /// What both ends of a connection can do.
    pub fn common(&self, other: &Abilities) -> Abilities {
        let both = |a: Option<Limits>, b: Option<Limits>| Some(a?.common(&b?));
        Abilities {
            sge: both(self.sge, other.sge),
            umr: both(self.umr, other.umr),
        }
    }

    /// The limits of a method; none if there is no such method here, and for [`Method::Pack`],
    /// which has none.
    pub fn limits(&self, method: Method) -> Option<Limits> {
        match method {
            Method::Pack => None,
            Method::Sge => self.sge,
            Method::Umr => self.umr,
        }
    }
}

/// From where to where a method is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// The most pieces that a layout may have.
    pub max_iovs: u64,
    /// The fewest bytes of a piece.
    pub min_block: u64,
}

/// The one table of thresholds, which tuning replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Of [`Method::Umr`].
    pub umr: Threshold,
    /// Of [`Method::Sge`].
    pub sge: Threshold,
}

impl Default for Thresholds {
    /// The paper's: 128 IOVs, 512 B.
    fn default() -> Thresholds {
        let paper = Threshold {
            max_iovs: 128,
            min_block: 512,
        };
        Thresholds {
            umr: paper,
            sge: paper,
        }
    }
}

/// A method and where it cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The method.
    pub method: Method,
    /// Keys, or work requests with a list, of either end by the paper's rule; 0 if it packs.
    pub windows: u64,
}

impl Thresholds {
    fn of(&self, method: Method) -> Option<&Threshold> {
        match method {
            Method::Pack => None,
            Method::Sge => Some(&self.sge),
            Method::Umr => Some(&self.umr),
        }
    }

    /// The method for a message between two layouts: keys, else lists, else packing. Both layouts
    /// have to be within a method's threshold; a tiny smallest block makes many tiny windows under
    /// [`CutRule::Agreed`], so there the smallest block counts, and the average one under
    /// [`CutRule::Maximal`]. A message without bytes is packed.
    pub fn choose(
        &self,
        sender: &Shape,
        receiver: &Shape,
        abilities: &Abilities,
        rule: CutRule,
    ) -> Choice {
        let block = |shape: &Shape| match rule {
            CutRule::Agreed => shape.min,
            CutRule::Maximal => shape.mean(),
        };
        // Two layouts without a gap need no packing however short they are.
        let is_dense = sender.blocks == 1 && receiver.blocks == 1;
        for method in [Method::Umr, Method::Sge] {
            let (Some(limits), Some(threshold)) = (abilities.limits(method), self.of(method))
            else {
                continue;
            };
            let suits = |shape: &Shape| {
                shape.blocks <= threshold.max_iovs && block(shape) >= threshold.min_block
            };
            let lists_do = is_dense && method == Method::Umr && abilities.sge.is_some();
            if sender.bytes > 0 && !lists_do && (is_dense || suits(sender) && suits(receiver)) {
                return Choice {
                    method,
                    windows: sender.bytes.div_ceil(chunk_size(sender, receiver, &limits)),
                };
            }
        }
        Choice {
            method: Method::Pack,
            windows: 0,
        }
    }
}

/// A line per method: `umr max_iovs=128 min_block=512`.
impl fmt::Display for Thresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for method in [Method::Umr, Method::Sge] {
            if let Some(threshold) = self.of(method) {
                let Threshold {
                    max_iovs,
                    min_block,
                } = threshold;
                writeln!(f, "{method} max_iovs={max_iovs} min_block={min_block}")?;
            }
        }
        Ok(())
    }
}

/// Why a text has no [`Thresholds`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ThresholdsError {
    /// A line of another method.
    #[error("'{line}': a line begins with umr or sge")]
    Method {
        /// The line.
        line: String,
    },
    /// A word that sets nothing.
    #[error("'{word}' is not NAME=VALUE, with NAME max_iovs or min_block")]
    Setting {
        /// The word.
        word: String,
    },
    /// A value that is not a number.
    #[error("'{word}': the value is not a whole number")]
    Number {
        /// The word.
        word: String,
    },
}

impl FromStr for Thresholds {
    type Err = ThresholdsError;

    /// Reads what [`Display`](fmt::Display) writes; a method that is not named keeps its default.
    fn from_str(text: &str) -> Result<Thresholds, ThresholdsError> {
        let mut thresholds = Thresholds::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let mut words = line.split_whitespace();
            let threshold = match words.next() {
                Some("umr") => &mut thresholds.umr,
                Some("sge") => &mut thresholds.sge,
                _ => {
                    let line = line.to_owned();
                    return Err(ThresholdsError::Method { line });
                }
            };
            for word in words {
                let named = || word.to_owned();
                let number = |_| ThresholdsError::Number { word: named() };
                match word.split_once('=') {
                    Some(("max_iovs", value)) => {
                        threshold.max_iovs = value.parse().map_err(number)?
                    }
                    Some(("min_block", value)) => {
                        threshold.min_block = value.parse().map_err(number)?
                    }
                    _ => return Err(ThresholdsError::Setting { word: named() }),
                }
            }
        }
        Ok(thresholds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(blocks: u64, len: u64) -> Shape {
        Shape {
            bytes: blocks * len,
            blocks,
            min: len,
            unit: len,
        }
    }

    fn limits(max_iovs: usize) -> Option<Limits> {
        Some(Limits {
            max_iovs,
            max_bytes: 1 << 31,
        })
    }

    fn method(sender: Shape, receiver: Shape, abilities: Abilities) -> Method {
        let thresholds = Thresholds::default();
        thresholds
            .choose(&sender, &receiver, &abilities, CutRule::Agreed)
            .method
    }

    #[test]
    fn the_thresholds_are_inclusive_and_hold_for_both_ends() {
        let card = Abilities {
            sge: limits(30),
            umr: limits(64),
        };
        assert_eq!(method(shape(128, 512), shape(128, 512), card), Method::Umr);
        assert_eq!(method(shape(129, 512), shape(129, 512), card), Method::Pack);
        assert_eq!(method(shape(128, 511), shape(128, 511), card), Method::Pack);
        assert_eq!(method(shape(1, 8192), shape(1024, 8), card), Method::Pack);
        let lists = Abilities { umr: None, ..card };
        assert_eq!(method(shape(128, 512), shape(1, 65536), lists), Method::Sge);
        assert_eq!(
            method(shape(128, 512), shape(1, 65536), Abilities::default()),
            Method::Pack
        );
        // Dense to dense: nothing to map and nothing to pack.
        assert_eq!(method(shape(1, 8), shape(1, 8), card), Method::Sge);
        assert_eq!(method(shape(0, 0), shape(0, 0), card), Method::Pack);
    }

    #[test]
    fn one_short_block_packs_under_the_papers_rule_only() {
        let ragged = Shape {
            bytes: 63 * 4096 + 8,
            blocks: 64,
            min: 8,
            unit: 8,
        };
        let abilities = Abilities {
            sge: None,
            umr: limits(4),
        };
        let thresholds = Thresholds::default();
        let choose = |rule| thresholds.choose(&ragged, &ragged, &abilities, rule).method;
        assert_eq!(choose(CutRule::Agreed), Method::Pack);
        assert_eq!(choose(CutRule::Maximal), Method::Umr);
    }

    #[test]
    fn what_is_written_is_read() {
        let thresholds = Thresholds {
            umr: Threshold {
                max_iovs: 7,
                min_block: 9,
            },
            ..Thresholds::default()
        };
        assert_eq!(thresholds.to_string().parse(), Ok(thresholds));
        assert_eq!("".parse(), Ok(Thresholds::default()));
        for wrong in [
            "pack max_iovs=1",
            "umr max_iovs",
            "umr max_iovs=x",
            "sge x=1",
        ] {
            assert!(wrong.parse::<Thresholds>().is_err(), "{wrong}");
        }
    }
}
