// SPDX-License-Identifier: MIT OR Apache-2.0

//! What readers of the same memory take of a machine: what `libcopy tune --contention` has measured
//! for the table that plans are priced by.

use serde::{Deserialize, Serialize};

use crate::error::{Allowed, Error, Result};
use crate::plan::Costs;
use crate::transport::TransportKind;

/// What was measured on a machine. What is not there was not measured, and is as built in. Rates
/// are in 10^6 bytes per second, times in nanoseconds: whole numbers, so that all ranks have the
/// same ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contention {
    /// What a last-level cache gives to the processors that share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_mbs: Option<u64>,
    /// What it gives to other processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_mbs: Option<u64>,
    /// What the memory of a NUMA node gives and takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mbs: Option<u64>,
    /// What goes from one package to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_mbs: Option<u64>,
    /// Bytes of a last-level cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
    /// Until a processor sees what another one has written that shares a cache with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_cache_ns: Option<u64>,
    /// The same of one of the same node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_node_ns: Option<u64>,
    /// The same of one of the same package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_package_ns: Option<u64>,
    /// The same of one of another package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_machine_ns: Option<u64>,
    /// What a line that several look at takes of each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_ns: Option<u64>,
    /// Copies through the kernel module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kmod: Option<Copies>,
    /// Copies by `process_vm_readv`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cma: Option<Copies>,
    /// Copies of memory that is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm: Option<Copies>,
}

/// What copies by a transport take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Copies {
    /// What one processor copies.
    pub core_mbs: u64,
    /// What a chunk takes however short it is.
    pub chunk_ns: u64,
    /// What the memory of one process gives to all readers, if that is less than they could copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_mbs: Option<u64>,
    /// Readers of different parts of one process' memory from which on more do not help, if there
    /// are so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readers: Option<u64>,
}

/// From a slow disk to more than any cache gives: 50 MB/s to 50 TB/s.
const RATES: std::ops::RangeInclusive<u64> = 50..=50_000_000;
/// Up to 100 microseconds: what a processor takes that another program uses is not the machine's.
const TIMES: std::ops::RangeInclusive<u64> = 1..=100_000;
/// Caches from 64 KiB to 16 GiB.
const CACHES: std::ops::RangeInclusive<u64> = 64 << 10..=16 << 30;
/// Readers.
const READERS: std::ops::RangeInclusive<u64> = 1..=1 << 16;

/// Words that it takes.
pub(super) const CONTENTION_WORDS: usize = 22;

impl Contention {
    /// What copies by a transport take, if it was measured.
    pub fn copies(&self, kind: TransportKind) -> Option<Copies> {
        match kind {
            TransportKind::Kmod => self.kmod,
            TransportKind::Cma => self.cma,
            TransportKind::Shm => self.shm,
        }
    }

    /// The same, to be changed.
    pub fn copies_mut(&mut self, kind: TransportKind) -> &mut Option<Copies> {
        match kind {
            TransportKind::Kmod => &mut self.kmod,
            TransportKind::Cma => &mut self.cma,
            TransportKind::Shm => &mut self.shm,
        }
    }

    /// The table for plans whose bytes move by a transport: built in where nothing was measured.
    pub fn costs(&self, kind: TransportKind) -> Costs {
        let mut costs = Costs::BUILT_IN;
        let rate = |place: &mut f64, measured: Option<u64>| {
            if let Some(mbs) = measured {
                *place = mbs as f64 * 1e6;
            }
        };
        let time = |place: &mut f64, measured: Option<u64>| {
            if let Some(ns) = measured {
                *place = ns as f64 * 1e-9;
            }
        };
        rate(&mut costs.cache, self.cache_mbs);
        rate(&mut costs.port, self.port_mbs);
        rate(&mut costs.memory, self.memory_mbs);
        rate(&mut costs.link, self.link_mbs);
        if let Some(bytes) = self.cache_bytes {
            costs.cache_bytes = bytes as f64;
        }
        let latencies = [
            self.latency_cache_ns,
            self.latency_node_ns,
            self.latency_package_ns,
            self.latency_machine_ns,
        ];
        for (place, measured) in costs.latency.iter_mut().zip(latencies) {
            time(place, measured);
        }
        time(&mut costs.line, self.line_ns);
        if let Some(copies) = self.copies(kind) {
            rate(&mut costs.core, Some(copies.core_mbs));
            time(&mut costs.chunk, Some(copies.chunk_ns));
            rate(&mut costs.source, copies.source_mbs);
            if let Some(readers) = copies.readers {
                costs.at_once = usize::try_from(readers).unwrap_or(usize::MAX);
            }
        }
        costs
    }

    /// Refuses what no machine has.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] with the first value that makes no sense.
    pub fn checked(self) -> Result<Self> {
        let within = |what, value: Option<u64>, range: &std::ops::RangeInclusive<u64>| match value {
            Some(value) if !range.contains(&value) => {
                let allowed: Allowed = range.clone().into();
                Err(Error::argument(what, value, allowed))
            }
            _ => Ok(()),
        };
        for (what, rate) in [
            ("cache_mbs", self.cache_mbs),
            ("port_mbs", self.port_mbs),
            ("memory_mbs", self.memory_mbs),
            ("link_mbs", self.link_mbs),
        ] {
            within(what, rate, &RATES)?;
        }
        within("cache_bytes", self.cache_bytes, &CACHES)?;
        for (what, time) in [
            ("latency_cache_ns", self.latency_cache_ns),
            ("latency_node_ns", self.latency_node_ns),
            ("latency_package_ns", self.latency_package_ns),
            ("latency_machine_ns", self.latency_machine_ns),
            ("line_ns", self.line_ns),
        ] {
            within(what, time, &TIMES)?;
        }
        for copies in TransportKind::ALL.iter().filter_map(|it| self.copies(*it)) {
            within("core_mbs", Some(copies.core_mbs), &RATES)?;
            within("chunk_ns", Some(copies.chunk_ns), &TIMES)?;
            within("source_mbs", copies.source_mbs, &RATES)?;
            within("readers", copies.readers, &READERS)?;
        }
        Ok(self)
    }

    /// As words; 0 stands for what is not there.
    pub(super) fn to_words(self) -> [u64; CONTENTION_WORDS] {
        let mut words = [0; CONTENTION_WORDS];
        let own = [
            self.cache_mbs,
            self.port_mbs,
            self.memory_mbs,
            self.link_mbs,
            self.cache_bytes,
            self.latency_cache_ns,
            self.latency_node_ns,
            self.latency_package_ns,
            self.latency_machine_ns,
            self.line_ns,
        ];
        for (word, value) in words.iter_mut().zip(own) {
            *word = value.unwrap_or(0);
        }
        for (kind, words) in TransportKind::ALL
            .iter()
            .zip(words[own.len()..].chunks_exact_mut(4))
        {
            if let Some(copies) = self.copies(*kind) {
                words[0] = copies.core_mbs;
                words[1] = copies.chunk_ns;
                words[2] = copies.source_mbs.unwrap_or(0);
                words[3] = copies.readers.unwrap_or(0);
            }
        }
        words
    }

    /// What [`Contention::to_words`] made the words from; `None` of nothing.
    pub(super) fn from_words(words: &[u64]) -> Option<Self> {
        let value = |index: usize| words.get(index).copied().filter(|word| *word > 0);
        let mut all = Contention {
            cache_mbs: value(0),
            port_mbs: value(1),
            memory_mbs: value(2),
            link_mbs: value(3),
            cache_bytes: value(4),
            latency_cache_ns: value(5),
            latency_node_ns: value(6),
            latency_package_ns: value(7),
            latency_machine_ns: value(8),
            line_ns: value(9),
            ..Contention::default()
        };
        for (index, kind) in TransportKind::ALL.into_iter().enumerate() {
            let first = 10 + 4 * index;
            *all.copies_mut(kind) = value(first).map(|core_mbs| Copies {
                core_mbs,
                chunk_ns: value(first + 1).unwrap_or(0),
                source_mbs: value(first + 2),
                readers: value(first + 3),
            });
        }
        (all != Contention::default()).then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Contention {
        Contention {
            cache_mbs: Some(200_000),
            memory_mbs: Some(30_000),
            latency_cache_ns: Some(61),
            line_ns: Some(25),
            cma: Some(Copies {
                core_mbs: 6_000,
                chunk_ns: 900,
                source_mbs: Some(20_000),
                readers: Some(4),
            }),
            shm: Some(Copies {
                core_mbs: 11_000,
                chunk_ns: 80,
                ..Copies::default()
            }),
            ..Contention::default()
        }
    }

    #[test]
    fn what_was_not_measured_is_as_built_in() {
        let costs = measured().costs(TransportKind::Cma);
        let expected = Costs {
            core: 6e9,
            cache: 200e9,
            memory: 30e9,
            source: 20e9,
            latency: [
                61.0 * 1e-9,
                Costs::BUILT_IN.latency[1],
                Costs::BUILT_IN.latency[2],
                Costs::BUILT_IN.latency[3],
            ],
            line: 25.0 * 1e-9,
            chunk: 900.0 * 1e-9,
            at_once: 4,
            ..Costs::BUILT_IN
        };
        assert_eq!(costs, expected);
        assert_eq!((costs.fan_out(), Costs::BUILT_IN.fan_out()), (4, 16));
        let attached = measured().costs(TransportKind::Shm);
        assert_eq!((attached.core, attached.source), (11e9, f64::INFINITY));
        let none = Contention::default();
        assert_eq!(none.costs(TransportKind::Kmod), Costs::BUILT_IN);
    }

    #[test]
    fn words_and_files_say_everything() {
        let all = measured();
        assert_eq!(Contention::from_words(&all.to_words()), Some(all));
        assert_eq!(Contention::from_words(&[0; CONTENTION_WORDS]), None);
        let text = toml::to_string(&all).unwrap();
        assert!(!text.contains("port"), "{text}");
        assert_eq!(toml::from_str::<Contention>(&text).unwrap(), all);
    }

    #[test]
    fn what_no_machine_has_is_refused() {
        assert!(measured().checked().is_ok());
        let wrong = |change: &dyn Fn(&mut Contention)| {
            let mut all = measured();
            change(&mut all);
            all.checked().unwrap_err().to_string()
        };
        for (said, named) in [
            (wrong(&|it| it.cache_mbs = Some(0)), "cache_mbs"),
            (wrong(&|it| it.line_ns = Some(u64::MAX)), "line_ns"),
            (wrong(&|it| it.cache_bytes = Some(1)), "cache_bytes"),
            (
                wrong(&|it| it.cma.as_mut().unwrap().chunk_ns = 0),
                "chunk_ns",
            ),
        ] {
            assert!(said.contains(named), "{said}");
        }
    }
}
