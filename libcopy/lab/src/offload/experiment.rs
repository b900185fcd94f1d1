// SPDX-License-Identifier: MIT OR Apache-2.0

//! What belongs to all experiments: buffers, the regions over them, the check of every byte, and
//! what the module has counted.

use anyhow::Result;
use indicatif::ProgressBar;
use libcopy::device::{Domain, Region, Rights};
use libcopy_measure::buffer::Skewed;
use libcopy_measure::pattern;
use libcopy_measure::report::Row;
use std::fs;
use std::time::Duration;

/// What the experiments share.
pub struct Run {
    pub rounds: usize,
    pub quick: bool,
    pub sizes: Vec<usize>,
    pub bar: ProgressBar,
    pub rows: Vec<Row>,
    pub notes: Vec<String>,
    pub round_number: u64,
}

/// A process of an experiment: a member of the domain with a channel of its own, and two buffers.
///
/// All of them live in this process, which makes no difference to the module or to an engine.
pub struct Process {
    pub domain: Domain,
    pub source: Skewed,
    pub target: Skewed,
    pub round: u64,
}

impl Process {
    /// `count` members of one domain, with buffers of `bytes`; what is in the targets is wrong.
    pub fn several(run: &mut Run, count: usize, bytes: usize) -> Result<Vec<Self>> {
        let first = Domain::create()?;
        let key = first.key();
        let mut domains = vec![first];
        for _ in 1..count {
            domains.push(Domain::join(&key)?);
        }
        let processes = domains.into_iter().enumerate().map(|(which, domain)| {
            let round = run.next_round();
            let mut source = Skewed::new(bytes, 2 * which)?;
            let mut target = Skewed::new(bytes, 2 * which + 1)?;
            pattern::fill(&mut source, round, which);
            target.fill(0x5a);
            Ok(Self {
                domain,
                source,
                target,
                round,
            })
        });
        processes.collect()
    }

    /// Publishes the buffers.
    pub fn share(&mut self) -> Result<(Region<'_>, Region<'_>, &Domain)> {
        let domain = &self.domain;
        let source = domain.share(&self.source)?;
        // SAFETY: nothing but requests of this process writes to it, which its rounds wait for; the
        // memory is kept until all rounds are over.
        let target = unsafe { domain.share_mut(&mut self.target, Rights::ReadWrite) }?;
        Ok((source, target, domain))
    }

    /// Whether all that was moved is there.
    pub fn right(&self, which: usize) -> bool {
        pattern::first_difference(&self.target, self.round, which).is_none()
    }
}

/// What the module counts.
pub const STATS: &str = "/sys/kernel/debug/libcopy/stats";

/// One of the module's counters, if debugfs can be read.
pub fn counter(name: &str) -> Option<u64> {
    let text = fs::read_to_string(STATS).ok()?;
    let number = |line: &str| {
        line.strip_prefix(name)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    };
    text.lines().find_map(number)
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl Run {
    pub fn step(&mut self, what: &str) {
        self.bar.inc(1);
        self.bar.set_message(what.to_owned());
    }

    pub fn next_round(&mut self) -> u64 {
        self.round_number += 1;
        self.round_number
    }
}
