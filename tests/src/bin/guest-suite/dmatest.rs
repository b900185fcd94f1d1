// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel's own test client for dmaengine, driven through its parameters (Linux
//! `Documentation/driver-api/dmaengine/dmatest.rst`). It checks every byte that it has copied and
//! those around, unless told not to.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use crate::harness::{Context, Outcome, skip};
use crate::kernel::Log;
use crate::sys;

const PARAMETERS: &str = "/sys/module/dmatest/parameters";

/// What to copy on each channel.
#[derive(Clone, Copy)]
pub struct Job {
    /// Copies, one after the other.
    pub copies: u32,
    /// Bytes of each.
    pub size: u32,
    /// Whether the bytes are checked.
    pub verify: bool,
    /// How long one copy may take.
    pub timeout: Duration,
}

impl Job {
    /// `copies` copies of `bytes`, all checked.
    pub fn checked(context: &Context, copies: u32, size: u32) -> Self {
        Self {
            copies,
            size,
            verify: true,
            timeout: context.limit(5),
        }
    }

    /// Bytes that it copies on a channel.
    pub fn bytes(self) -> u64 {
        u64::from(self.copies) * u64::from(self.size)
    }
}

/// How it went on one channel.
#[derive(Debug)]
pub struct Summary {
    /// Copies tried.
    pub tests: u32,
    /// Copies that failed: wrong bytes, or not done in time.
    pub failures: u32,
    /// 1024 bytes per second, without filling and checking.
    pub rate: u64,
}

/// The loaded module.
pub struct Dmatest {
    /// How long it may take to acquire the channels and to give them back.
    patience: Duration,
}

impl Dmatest {
    /// Loads it from where `scripts/vm --ioat` has put it.
    pub fn load(context: &Context) -> Outcome<Self> {
        let Ok(path) = std::env::var("LIBCOPY_DMATEST") else {
            return skip("LIBCOPY_DMATEST does not name the kernel's dmatest.ko");
        };
        // A test that was killed leaves it behind.
        let _ = sys::unload_module("dmatest");
        sys::load_module(&path)?;
        let patience = context.limit(60);
        Ok(Self { patience })
    }

    /// Copies on all channels at once (`dma0chan0` and so on) and waits for the end.
    pub fn run(&self, channels: &[String], job: Job) -> Outcome<BTreeMap<String, Summary>> {
        let mut log = Log::open()?;
        set("iterations", job.copies)?;
        set("test_buf_size", job.size)?;
        set("timeout", job.timeout.as_millis())?;
        set("norandom", 'Y')?;
        set("noverify", if job.verify { 'N' } else { 'Y' })?;
        for channel in channels {
            set("channel", channel)?;
        }
        set("run", 1)?;
        // Its parameters cannot tell a thread that has ended from one that has not begun.
        let patience = job.timeout * job.copies + self.patience;
        let deadline = Instant::now() + patience;
        let mut summaries = BTreeMap::new();
        while !channels.iter().all(|name| summaries.contains_key(name)) {
            if Instant::now() > deadline {
                return Err(format!("dmatest sums up {summaries:?} after {patience:?}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
            summaries.extend(log.lines().iter().filter_map(|line| parse(line)));
        }
        // Reading gives the channels back.
        fs::read_to_string(format!("{PARAMETERS}/run"))?;
        Ok(summaries)
    }
}

impl Drop for Dmatest {
    fn drop(&mut self) {
        let _ = sys::unload_module("dmatest");
    }
}

fn set(name: &str, value: impl std::fmt::Display) -> Outcome {
    let value = value.to_string();
    fs::write(format!("{PARAMETERS}/{name}"), &value)
        .map_err(|e| format!("dmatest does not take {name}={value}: {e}").into())
}

/// Reads "dmatest: dma0chan0-copy0: summary 4 tests, 0 failures 123.45 iops 6789 KB/s (0)".
fn parse(line: &str) -> Option<(String, Summary)> {
    let (thread, text) = line.strip_prefix("dmatest: ")?.split_once(": summary ")?;
    let (channel, _) = thread.split_once('-')?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let [
        tests,
        "tests,",
        failures,
        "failures",
        _,
        "iops",
        rate,
        "KB/s",
        ..,
    ] = words[..]
    else {
        return None;
    };
    Some((
        channel.to_owned(),
        Summary {
            tests: tests.parse().ok()?,
            failures: failures.parse().ok()?,
            rate: rate.parse().ok()?,
        },
    ))
}
