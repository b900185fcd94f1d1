// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs each test in a process of its own, kills what hangs, and asks the kernel afterwards
//! whether everything is as it was.

use std::error::Error as _;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::panic;
use std::time::{Duration, Instant};

use crate::kernel::{self, Log};
use crate::rng::Rng;
use crate::sys;

/// Why a test ended early.
#[derive(Debug)]
pub enum Stop {
    /// Something is not as it must be.
    Fail(String),
    /// The machine lacks what the test needs.
    Skip(String),
}

/// What a test, or a process of one, gives back.
pub type Outcome<T = ()> = Result<T, Stop>;

impl From<String> for Stop {
    fn from(message: String) -> Self {
        Self::Fail(message)
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Fail(format!("input/output: {error}"))
    }
}

impl From<ioat_model::client::Error> for Stop {
    fn from(error: ioat_model::client::Error) -> Self {
        let source = error.source().map(|source| format!(": {source}"));
        Self::Fail(format!("{error}{}", source.unwrap_or_default()))
    }
}

impl From<nix::errno::Errno> for Stop {
    #[track_caller]
    fn from(errno: nix::errno::Errno) -> Self {
        Self::Fail(format!(
            "unexpected {errno:?} at {}",
            std::panic::Location::caller()
        ))
    }
}

/// Fails the test unless the condition holds; further arguments say what was seen.
#[macro_export]
macro_rules! check {
    ($condition:expr) => {
        if !$condition {
            return Err($crate::harness::Stop::Fail(format!(
                "{}:{}: not so: {}", file!(), line!(), stringify!($condition)
            )));
        }
    };
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err($crate::harness::Stop::Fail(format!(
                "{}:{}: {}", file!(), line!(), format!($($why)+)
            )));
        }
    };
}

/// Fails the test unless both values are equal, and shows them.
#[macro_export]
macro_rules! check_eq {
    ($left:expr, $right:expr) => {
        match (&$left, &$right) {
            (left, right) => $crate::check!(
                left == right,
                "{} is {left:?}, expected {right:?}", stringify!($left)
            ),
        }
    };
    ($left:expr, $right:expr, $($why:tt)+) => {
        match (&$left, &$right) {
            (left, right) => $crate::check!(
                left == right,
                "{}: {} is {left:?}, expected {right:?}", format!($($why)+), stringify!($left)
            ),
        }
    };
}

/// Fails the test unless the call fails with one of the given errnos.
#[macro_export]
macro_rules! check_err {
    ($call:expr, $($errno:ident)|+) => {
        match $call {
            Err($(nix::errno::Errno::$errno)|+) => {}
            other => $crate::check!(
                false, "{} gave {other:?}, expected {}", stringify!($call),
                stringify!($($errno)|+)
            ),
        }
    };
    ($call:expr, $($errno:ident)|+, $($why:tt)+) => {
        match $call {
            Err($(nix::errno::Errno::$errno)|+) => {}
            other => $crate::check!(
                false, "{}: {} gave {other:?}, expected {}", format!($($why)+), stringify!($call),
                stringify!($($errno)|+)
            ),
        }
    };
}

/// Ends the test as "skipped" with a reason.
pub fn skip<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Stop::Skip(reason.into()))
}

/// What a test may ask of the run.
pub struct Context {
    /// Seed of this run.
    pub seed: u64,
    /// Factor on every time limit, for slow kernels.
    pub scale: u32,
    /// Processes that the kill stress kills.
    pub kills: u32,
    /// Collectives that the touching stress waits for in one way or another.
    pub touches: u32,
    /// Seconds that everything runs at once.
    pub soak: u32,
    /// Random operations of the stress test.
    pub operations: u64,
    /// Whether repetitions are as many as may find something that fewer of them do not, rarely.
    pub is_full: bool,
    /// The module's file, if known, for tests that unload it.
    pub module: Option<String>,
}

impl Context {
    /// A generator that depends on the run's seed only.
    pub fn rng(&self) -> Rng {
        Rng::new(self.seed)
    }

    /// Repetitions of something random or slow: all of them, or enough for a run of every day.
    pub fn rounds<T>(&self, all: T, some: T) -> T {
        if self.is_full { all } else { some }
    }

    /// How long a test may wait for what should take `seconds` at most. An emulated machine's clock
    /// runs on while nobody runs the machine, so that there only a hang is told from haste.
    pub fn limit(&self, seconds: u64) -> Duration {
        let emulated = std::env::var("LIBCOPY_VM").is_ok_and(|vm| vm != "kvm");
        Duration::from_secs(seconds) * self.scale * if emulated { 5 } else { 1 }
    }

    /// "Within a second".
    pub fn second(&self) -> Duration {
        self.limit(1)
    }
}

/// Whether the guest's clock counts instructions, so that the host makes no difference to a time.
pub fn is_clock_counted() -> bool {
    std::env::var("LIBCOPY_VM").is_ok_and(|vm| vm == "icount")
}

/// A test.
pub struct Test {
    /// `group::behaviour`.
    pub name: &'static str,
    /// What it does.
    pub body: fn(&Context) -> Outcome,
    /// Seconds after which it hangs.
    pub limit: u64,
}

/// Declares the tests of a group: every function named becomes a test.
#[macro_export]
macro_rules! tests {
    ($group:ident: $($name:ident $(($limit:literal))?),+ $(,)?) => {
        /// The tests of this group.
        pub const TESTS: &[$crate::harness::Test] = &[$(
            $crate::harness::Test {
                name: concat!(stringify!($group), "::", stringify!($name)),
                body: $name,
                limit: $crate::tests!(@limit $($limit)?),
            }
        ),+];
    };
    (@limit) => { 30 };
    (@limit $limit:literal) => { $limit };
}

/// Numbers of tests by outcome.
#[derive(Default)]
pub struct Tally {
    /// Tests that held.
    pub passed: u32,
    /// Tests that did not.
    pub failed: u32,
    /// Tests that could not run here.
    pub skipped: u32,
}

/// Runs the tests one after the other and prints a line for each.
pub fn run(tests: &[&Test], context: &Context) -> Tally {
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    let mut log = Log::open().map_err(|e| println!("no kernel log: {e}")).ok();
    sys::become_subreaper();
    for test in tests {
        print!("{} ... ", test.name);
        let _ = std::io::stdout().flush();
        let start = Instant::now();
        let mut outcome = run_one(test, context);
        let took = start.elapsed();
        // What a test leaves behind fails the test, also one that would have been skipped.
        let mut after = Vec::new();
        if let Err(message) = kernel::wait_balanced(context.second()) {
            after.push(message);
        }
        if let Some(log) = &mut log {
            let complaints = log.complaints(test.name.starts_with("faults::"));
            if !complaints.is_empty() {
                after.push(format!(
                    "the kernel complains:\n        {}",
                    complaints.join("\n        ")
                ));
            }
        }
        if !after.is_empty() {
            if let Err(Stop::Fail(message)) = outcome {
                after.insert(0, message);
            }
            outcome = Err(Stop::Fail(after.join("\n    ")));
        }
        match outcome {
            Ok(()) => {
                tally.passed += 1;
                println!("ok ({:.2} s)", took.as_secs_f64());
            }
            Err(Stop::Skip(reason)) => {
                tally.skipped += 1;
                println!("skipped: {reason}");
            }
            Err(Stop::Fail(message)) => {
                tally.failed += 1;
                println!("FAILED ({:.2} s)\n    {message}", took.as_secs_f64());
                failures.push(format!("{}: {message}", test.name));
            }
        }
    }
    if let Some(leaks) = kernel::leaks() {
        tally.failed += 1;
        println!("kmemleak ... FAILED\n{leaks}");
        failures.push(format!("kmemleak: {leaks}"));
    }
    if !failures.is_empty() {
        println!("\nfailed:");
        for failure in failures {
            println!("    {failure}");
        }
    }
    tally
}

/// Runs one test in a new process group, with nothing of it left when this returns.
fn run_one(test: &Test, context: &Context) -> Outcome {
    let (reader, writer) = sys::pipe()?;
    let child = match sys::fork()? {
        None => {
            drop(reader);
            sys::lead_group();
            let outcome = guarded(|| (test.body)(context));
            let _ = std::io::stdout().flush();
            report(writer, outcome);
            sys::exit(0)
        }
        Some(child) => child,
    };
    drop(writer);
    // What a test was asked to take is no hang; kernel threads and engines have turns of their own.
    let asked = Duration::from_secs(context.soak.into())
        + Duration::from_millis(context.operations) * context.scale;
    let limit = context.limit(test.limit) + 2 * asked;
    let ended = sys::wait_exit(child, limit);
    sys::kill_group(child);
    let status = match ended {
        Some(status) => status,
        None => {
            // SIGKILL is on its way; a process that it cannot end would hang the suite for good.
            match sys::wait_exit(child, context.limit(10)) {
                Some(_) => {}
                None => println!("process {child} cannot be killed"),
            }
            sys::reap_all(Duration::from_secs(5));
            return Err(Stop::Fail(format!("hangs: killed after {limit:?}")));
        }
    };
    sys::reap_all(context.limit(5));
    parse_report(reader, &format!("the test process ended with {status}"))
}

/// Runs `body`, turning a panic into a failure.
pub fn guarded(body: impl FnOnce() -> Outcome) -> Outcome {
    panic::set_hook(Box::new(|_| {}));
    panic::catch_unwind(panic::AssertUnwindSafe(body)).unwrap_or_else(|cause| {
        let text = cause
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "of unknown cause".to_owned());
        Err(Stop::Fail(format!("panic: {text}")))
    })
}

/// Writes an outcome for [`parse_report`] of the parent.
pub fn report(writer: OwnedFd, outcome: Outcome) {
    let text = match outcome {
        Ok(()) => "o".to_owned(),
        Err(Stop::Skip(reason)) => format!("s{reason}"),
        Err(Stop::Fail(message)) => format!("f{message}"),
    };
    let _ = File::from(writer).write_all(text.as_bytes());
}

/// Reads the outcome of a process that has ended; `silent` says what it means if there is none.
pub fn parse_report(reader: OwnedFd, silent: &str) -> Outcome {
    let mut bytes = Vec::new();
    sys::set_nonblocking(reader.as_fd());
    let _ = File::from(reader).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match text.split_at_checked(1) {
        Some(("o", _)) => Ok(()),
        Some(("s", reason)) => Err(Stop::Skip(reason.to_owned())),
        Some(("f", message)) => Err(Stop::Fail(message.to_owned())),
        _ => Err(Stop::Fail(silent.to_owned())),
    }
}
