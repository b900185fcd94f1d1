// SPDX-License-Identifier: GPL-2.0

//! Counters: which path was taken, how many bytes moved, and that every pin was undone.
//!
//! Each domain counts for itself (shown in `/proc/<pid>/fdinfo/<fd>`), and the module sums up over
//! all domains (shown in `/sys/kernel/debug/libcopy/stats`).

use kernel::debugfs;
use kernel::fmt;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};

/// Declares the counters once: the enum, and the names that user space sees.
macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub(crate) enum Counter { $($(#[$doc])* $variant,)* }

        const NAMES: &[&str] = &[$($name,)*];
    };
}

counters! {
    /// Domains that exist now.
    Domains => "domains",
    /// Regions that exist now.
    Regions => "regions",
    /// Pages pinned since the module was loaded.
    Pins => "pins",
    /// Pages unpinned.
    Unpins => "unpins",
    /// Physically contiguous runs that they formed. Only in the sums, which nobody reads without
    /// privilege: which pages are neighbours helps to attack the memory itself.
    PinnedRuns => "pinned_runs",
    /// Times that a buffer was pinned.
    Maps => "maps",
    /// Times that a buffer was unpinned.
    Unmaps => "unmaps",
    /// Regions created from pages that were still pinned.
    ReuseHits => "reuse_hits",
    /// Regions whose pages had to be pinned.
    ReuseMisses => "reuse_misses",
    /// Times that a process was found to have changed memory that was pinned: many changes may be
    /// one.
    Invalidations => "invalidations",
    /// Bytes copied out of regions.
    BytesFromRegion => "bytes_from_region",
    /// Bytes copied into regions.
    BytesToRegion => "bytes_to_region",
    /// Copies that ended early because the caller's memory faulted.
    Faults => "faults",
    /// Regions mapped into a peer's address space.
    Attaches => "attaches",
    /// Such mappings that are gone again.
    Detaches => "detaches",
    /// Members that died without leaving their domain.
    MemberDeaths => "member_deaths",
    /// Requests submitted.
    Requests => "requests",
    /// Requests that ended well.
    RequestsDone => "requests_done",
    /// Requests that ended otherwise.
    RequestsFailed => "requests_failed",
    /// Fragments of requests that engines moved.
    FragmentsEngine => "fragments_engine",
    /// Fragments of requests that CPUs copied.
    FragmentsCpu => "fragments_cpu",
    /// Bytes of requests that engines moved.
    BytesEngine => "bytes_engine",
    /// Bytes of requests that CPUs copied.
    BytesCpu => "bytes_cpu",
    /// Requests that a process switched from the engine to CPUs.
    Switches => "switches",
    /// Times that a request went from a channel that does not work any more to another.
    Handovers => "handovers",
    /// Requests that the module gave to a CPU because no engine would do them.
    Takeovers => "takeovers",
    /// Fragments that differed when they were verified.
    VerifyFailures => "verify_failures",
    /// Times that engines called back.
    Callbacks => "engine_callbacks",
    /// Nanoseconds spent in those calls, in which the next fragment is submitted.
    CallbackTime => "engine_callback_ns",
    /// Fragments that an engine ended with an error.
    EngineFailures => "engine_failures",
    /// Times that an engine did not answer in time.
    EngineDeadlines => "engine_deadlines",
    /// Times that a channel was taken out of service.
    Quarantined => "channels_quarantined",
    /// Times that a channel came back into service.
    Restored => "channels_restored",
    /// Most entries of a channel's queue that were looked at with its lock held, and interrupts
    /// off.
    LongestHold => "longest_hold_entries",
}

/// One set of counters.
pub(crate) struct Stats([Atomic<u64>; NAMES.len()]);

/// The sums over all domains.
pub(crate) static TOTAL: Stats = Stats::new();

impl Stats {
    /// All zero.
    pub(crate) const fn new() -> Self {
        Self([const { Atomic::new(0) }; NAMES.len()])
    }

    /// Counts here and in the total.
    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        self.0[counter as usize].fetch_add(amount, Relaxed);
        TOTAL.0[counter as usize].fetch_add(amount, Relaxed);
    }

    /// Counts here alone, for what belongs to no domain.
    pub(crate) fn add_alone(&self, counter: Counter, amount: u64) {
        self.0[counter as usize].fetch_add(amount, Relaxed);
    }

    /// Notes a value here alone, for counters that say what the largest was.
    pub(crate) fn note(&self, counter: Counter, value: u64) {
        let largest = &self.0[counter as usize];
        let mut now = largest.load(Relaxed);
        while now < value {
            match largest.cmpxchg(now, value, Relaxed) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Takes back, for counters that say how much there is now.
    pub(crate) fn sub(&self, counter: Counter, amount: u64) {
        self.0[counter as usize].fetch_sub(amount, Relaxed);
        TOTAL.0[counter as usize].fetch_sub(amount, Relaxed);
    }

    /// All counters with their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES
            .iter()
            .copied()
            .zip(self.0.iter().map(|value| value.load(Relaxed)))
    }
}

/// The directory in debugfs; it disappears with this value.
#[pin_data]
pub(crate) struct Debugfs {
    _directory: debugfs::Dir,
    #[pin]
    _file: debugfs::File<()>,
}

impl Debugfs {
    /// Creates `libcopy/stats`; without debugfs it does nothing.
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        let directory = debugfs::Dir::new(c"libcopy");
        let inside = directory.clone();
        pin_init!(Self {
            _directory: directory,
            _file <- inside.read_callback_file(c"stats", Ok::<(), Error>(()), &show),
        }? Error)
    }
}

fn show(_: &(), f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (name, value) in TOTAL.iter() {
        f.write_fmt(fmt!("{name} {value}\n"))?;
    }
    Ok(())
}
