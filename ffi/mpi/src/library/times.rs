// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where the time goes, for the statistics: taken only if somebody wants these
//! ([`crate::library::stats::wanted`]). A function that another one of ours calls is part of that
//! one.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::library::requests::Role;
use crate::library::unusual;

/// What a function is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A collective.
    Collective,
    /// A message, a probe, or requests of whatever kind.
    Message,
    /// Packing or unpacking.
    Packing,
}

/// When this library was loaded.
static BEGINNING: OnceLock<Instant> = OnceLock::new();

/// Sums of nanoseconds: collectives that were intercepted, that were forwarded, messages, and
/// packing.
static SUMS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// What finding other ranks and making teams took.
static SETUP: AtomicU64 = AtomicU64::new(0);

/// What a thread is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Nothing,
    /// A function that is timed.
    Function,
    /// The same, and libcopy does what it has to do.
    Intercepted,
}

thread_local! {
    static INSIDE: Cell<Inside> = const { Cell::new(Inside::Nothing) };
}

/// Whether the profiler takes the times of functions, and nobody else has to.
static LEFT_OUT: AtomicBool = AtomicBool::new(false);

/// From now on times are taken; those of functions by the profiler, if there is one.
pub fn start(is_profile: bool) {
    LEFT_OUT.store(is_profile, Ordering::Relaxed);
    BEGINNING.get_or_init(Instant::now);
    unusual::set_timed();
    Role::Timed.set(true);
}

/// A function, until this goes.
#[derive(Debug)]
pub struct Timed {
    kind: Kind,
    /// None where the profiler takes the time.
    started: Option<Instant>,
}

/// Begins a function; `None` inside another one.
#[cold]
pub fn begin(kind: Kind) -> Option<Timed> {
    let is_outermost = INSIDE.get() == Inside::Nothing;
    is_outermost.then(|| {
        INSIDE.set(Inside::Function);
        Timed {
            kind,
            started: (!LEFT_OUT.load(Ordering::Relaxed)).then(Instant::now),
        }
    })
}

/// The function that this thread is in is intercepted.
pub fn intercepted() {
    if INSIDE.get() == Inside::Function {
        INSIDE.set(Inside::Intercepted);
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let index = match (self.kind, INSIDE.replace(Inside::Nothing)) {
            (Kind::Collective, Inside::Intercepted) => 0,
            (Kind::Collective, _) => 1,
            (Kind::Message, _) => 2,
            (Kind::Packing, _) => 3,
        };
        if let Some(started) = self.started {
            add(&SUMS[index], started.elapsed());
        }
    }
}

fn add(sum: &AtomicU64, time: Duration) {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    sum.fetch_add(nanoseconds, Ordering::Relaxed);
}

/// Does what libcopy needs before it can do anything for the program.
pub fn setup<R>(work: impl FnOnce() -> R) -> R {
    let started = unusual::is_timed().then(Instant::now);
    let result = work();
    if let Some(started) = started {
        add(&SETUP, started.elapsed());
    }
    result
}

/// What was taken so far.
pub fn sums() -> libcopy_report::Time {
    let elapsed = BEGINNING.get().map_or(Duration::ZERO, Instant::elapsed);
    let [intercepted_ns, forwarded_ns, messages_ns, packing_ns] =
        SUMS.each_ref().map(|sum| sum.load(Ordering::Relaxed));
    libcopy_report::Time {
        elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        intercepted_ns,
        forwarded_ns,
        messages_ns,
        packing_ns,
        setup_ns: SETUP.load(Ordering::Relaxed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_inside_another_is_part_of_it() {
        let outer = begin(Kind::Collective).expect("there is none outside");
        assert!(begin(Kind::Message).is_none());
        intercepted();
        std::thread::sleep(Duration::from_millis(2));
        drop(outer);
        let sums = || SUMS.each_ref().map(|sum| sum.load(Ordering::Relaxed));
        let [own, others @ ..] = sums();
        assert!(own >= 2_000_000);
        assert_eq!(others, [0; 3]);
        let packing = begin(Kind::Packing).expect("there is none outside");
        intercepted();
        std::thread::sleep(Duration::from_millis(2));
        drop(packing);
        let [still_own, forwarded, messages, packing] = sums();
        assert_eq!((still_own, forwarded, messages), (own, 0, 0));
        assert!(packing >= 2_000_000);
    }
}
