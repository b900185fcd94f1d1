// SPDX-License-Identifier: MIT OR Apache-2.0

//! How many engines and channels there are, how fast they are, and what a channel is called.

use std::fmt;
use std::str::FromStr;

/// The most engines that one model offers (each needs a slot or a root port of its own).
pub const MAX_ENGINES: u8 = 8;

/// The most channels that one engine offers: a PCI slot has eight functions, and one function is
/// one channel, as on Xeon processors (device 4, functions 0 to 7).
pub const MAX_CHANNELS: u8 = 8;

/// Engines, channels of each, and the bandwidth of each engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Topology {
    /// Number of engines, 1 to [`MAX_ENGINES`].
    pub engines: u8,
    /// Channels per engine, 1 to [`MAX_CHANNELS`].
    pub channels: u8,
    /// Bytes per second that one engine copies at most; `None` is as fast as this machine can.
    pub bandwidth: Option<u64>,
}

impl Topology {
    /// Every channel, engine by engine.
    pub fn ids(self) -> impl Iterator<Item = ChannelId> {
        (0..self.engines).flat_map(move |engine| {
            (0..self.channels).map(move |channel| ChannelId { engine, channel })
        })
    }
}

impl FromStr for Topology {
    type Err = String;

    /// Reads `ENGINESxCHANNELS[,bw=RATE]`, for example `2x8,bw=200M`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let shape = words.next().unwrap_or_default();
        let bad = || {
            format!(
                "'{shape}' is not ENGINESxCHANNELS with 1 to {MAX_ENGINES} engines of 1 to \
                 {MAX_CHANNELS} channels, for example 2x8"
            )
        };
        let (engines, channels) = shape.split_once('x').ok_or_else(bad)?;
        let engines: u8 = engines.parse().map_err(|_| bad())?;
        let channels: u8 = channels.parse().map_err(|_| bad())?;
        if !(1..=MAX_ENGINES).contains(&engines) || !(1..=MAX_CHANNELS).contains(&channels) {
            return Err(bad());
        }
        let mut bandwidth = None;
        for word in words {
            match word.split_once('=') {
                Some(("bw", rate)) => bandwidth = parse_rate(rate)?,
                _ => {
                    return Err(format!(
                        "'{word}' is not an option of --engines: bw=BYTES/s"
                    ));
                }
            }
        }
        Ok(Self {
            engines,
            channels,
            bandwidth,
        })
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.engines, self.channels)?;
        match self.bandwidth {
            Some(rate) => write!(f, ",bw={rate}"),
            None => Ok(()),
        }
    }
}

/// Reads a number of bytes per second with an optional decimal suffix K, M or G; `max` is `None`.
pub fn parse_rate(text: &str) -> Result<Option<u64>, String> {
    if text == "max" {
        return Ok(None);
    }
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1_000),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1_000_000),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .filter(|rate| *rate > 0)
        .map(Some)
        .ok_or_else(|| {
            format!("'{text}' is not a number of bytes per second (500000, 500K, 200M, 5G or max)")
        })
}

/// The name of a channel: `ENGINE.CHANNEL`, both from 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ChannelId {
    /// Which engine.
    pub engine: u8,
    /// Which of its channels: also the PCI function.
    pub channel: u8,
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.engine, self.channel)
    }
}

impl FromStr for ChannelId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split_once('.')
            .and_then(|(engine, channel)| {
                Some(Self {
                    engine: engine.parse().ok()?,
                    channel: channel.parse().ok()?,
                })
            })
            .ok_or_else(|| format!("'{text}' is not a channel: ENGINE.CHANNEL, for example 0.3"))
    }
}

/// One channel, all of an engine, or all: `0.3`, `0.*`, `*`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Selection {
    engine: Option<u8>,
    channel: Option<u8>,
}

impl Selection {
    /// Everything.
    pub const ALL: Self = Self {
        engine: None,
        channel: None,
    };

    /// Whether the channel is meant.
    pub fn contains(self, id: ChannelId) -> bool {
        self.engine.is_none_or(|engine| engine == id.engine)
            && self.channel.is_none_or(|channel| channel == id.channel)
    }
}

impl From<ChannelId> for Selection {
    fn from(id: ChannelId) -> Self {
        Self {
            engine: Some(id.engine),
            channel: Some(id.channel),
        }
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.engine, self.channel) {
            (Some(engine), Some(channel)) => write!(f, "{engine}.{channel}"),
            (Some(engine), None) => write!(f, "{engine}.*"),
            (None, _) => f.write_str("*"),
        }
    }
}

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" || text == "all" {
            return Ok(Self::ALL);
        }
        if let Some((engine, "*")) = text.split_once('.') {
            return Ok(Self {
                engine: Some(
                    engine
                        .parse()
                        .map_err(|_| format!("'{engine}' is not an engine"))?,
                ),
                channel: None,
            });
        }
        text.parse::<ChannelId>().map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_reads_what_it_writes() {
        let topology: Topology = "2x8,bw=200M".parse().expect("valid");
        assert_eq!(topology.bandwidth, Some(200_000_000));
        assert_eq!(topology.ids().count(), 16);
        assert_eq!(topology.to_string().parse(), Ok(topology));
        assert_eq!("1x1".parse::<Topology>().expect("valid").bandwidth, None);
    }

    #[test]
    fn nonsense_is_refused_with_the_value_named() {
        for text in [
            "",
            "2",
            "0x8",
            "2x0",
            "2x9",
            "9x1",
            "2x8,bw",
            "2x8,bw=0",
            "2x8,speed=1",
        ] {
            let error = text.parse::<Topology>().expect_err(text);
            assert!(error.contains('\''), "{error}");
        }
    }

    #[test]
    fn selections_select() {
        let id = ChannelId {
            engine: 1,
            channel: 3,
        };
        for (text, meant) in [
            ("*", true),
            ("1.*", true),
            ("1.3", true),
            ("0.*", false),
            ("1.4", false),
        ] {
            let selection: Selection = text.parse().expect(text);
            assert_eq!(selection.contains(id), meant, "{text}");
        }
        assert!("x.*".parse::<Selection>().is_err());
    }
}
