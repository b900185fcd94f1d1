// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the kernel says about the module: counters in debugfs, complaints in the log.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// The counters of the module.
pub const STATS: &str = "/sys/kernel/debug/libcopy/stats";

/// A reading of the counters.
#[derive(Clone, Debug, Default)]
pub struct Stats(BTreeMap<String, i64>);

impl Stats {
    /// Reads the counters as they are now.
    pub fn read() -> Result<Self, String> {
        let text = fs::read_to_string(STATS).map_err(|e| format!("cannot read {STATS}: {e}"))?;
        let mut values = BTreeMap::new();
        for line in text.lines() {
            let (name, value) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| format!("{STATS}: not \"name value\": {line:?}"))?;
            let value = value.trim();
            let value = value
                .parse()
                .map_err(|e| format!("{STATS}: {name}: not a number: {value:?} ({e})"))?;
            values.insert(name.to_owned(), value);
        }
        Ok(Self(values))
    }

    /// One counter; a missing one is an error of the module.
    pub fn get(&self, name: &str) -> Result<i64, String> {
        self.0
            .get(name)
            .copied()
            .ok_or_else(|| format!("{STATS} has no counter {name:?}"))
    }

    /// How much a counter grew since `earlier`.
    pub fn since(&self, earlier: &Stats, name: &str) -> Result<i64, String> {
        Ok(self.get(name)? - earlier.get(name)?)
    }
}

/// How much a counter grows while `body` runs.
pub fn growth<T>(
    name: &str,
    body: impl FnOnce() -> Result<T, crate::harness::Stop>,
) -> Result<(T, i64), crate::harness::Stop> {
    let before = Stats::read()?;
    let value = body()?;
    Ok((value, Stats::read()?.since(&before, name)?))
}

/// Waits until nothing is pinned, no region is left, no request runs and no domain exists; says
/// what is left if that takes longer than `patience`.
pub fn wait_balanced(patience: Duration) -> Result<(), String> {
    let deadline = Instant::now() + patience;
    loop {
        let stats = Stats::read()?;
        let balanced = stats.get("pins")? == stats.get("unpins")?
            && stats.get("regions")? == 0
            && stats.get("domains")? == 0
            && stats.get("maps")? == stats.get("unmaps")?
            && stats.get("requests")?
                == stats.get("requests_done")? + stats.get("requests_failed")?;
        if balanced {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!(
                "counters not balanced after {patience:?}: {stats:?}"
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads what the kernel logs from the moment of opening on.
pub struct Log(fs::File);

/// What a healthy kernel never logs.
const COMPLAINTS: [&str; 22] = [
    "WARNING:",
    "BUG:",
    "BUG ",
    "Oops",
    "KASAN",
    "UBSAN",
    "KCSAN",
    "kmemleak:",
    "lockdep",
    "possible circular locking",
    "possible recursive locking",
    "INFO: task",
    "self-detected stall",
    "rcu: INFO",
    "general protection",
    "refcount_t",
    "Bad page",
    "bad page",
    "list_add corruption",
    "list_del corruption",
    "Call Trace:",
    "rust_kernel: panicked",
];

impl Log {
    /// Opens the log at its end.
    pub fn open() -> io::Result<Self> {
        let mut file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// The messages since the last call, the first line of each.
    pub fn lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut record = [0u8; 8192];
        loop {
            match self.0.read(&mut record) {
                Ok(0) => break,
                Ok(n) => {
                    let text = String::from_utf8_lossy(&record[..n]);
                    // "level,sequence,time,flags;message"
                    let message = text.split_once(';').map_or(&*text, |(_, message)| message);
                    lines.push(message.lines().next().unwrap_or_default().to_owned());
                }
                // EPIPE: records were overwritten before they were read; go on with what is left.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => break,
            }
        }
        lines
    }

    /// The complaints since the last call, with the lines around them. Where allocations were made
    /// to `fail`, the stacks that the kernel shows for failed allocations are none.
    pub fn complaints(&mut self, fail: bool) -> Vec<String> {
        let lines = self.lines();
        let bad = |line: &String| {
            COMPLAINTS.iter().any(|word| line.contains(word))
                && !line.contains("automatic scanning")
                && !(fail && line.contains("Call Trace:"))
        };
        match lines.iter().position(bad) {
            Some(first) => lines.into_iter().skip(first).take(40).collect(),
            None => Vec::new(),
        }
    }
}

/// Asks kmemleak, where the kernel has it, for memory that nobody refers to.
pub fn leaks() -> Option<String> {
    let path = "/sys/kernel/debug/kmemleak";
    fs::metadata(path).ok()?;
    // An object must be orphaned in two scans, and five seconds old, to count.
    for _ in 0..2 {
        fs::write(path, "scan").ok()?;
        std::thread::sleep(Duration::from_secs(6));
    }
    fs::read_to_string(path)
        .ok()
        .filter(|text| !text.trim().is_empty())
}
