// SPDX-License-Identifier: MIT OR Apache-2.0

//! Parts that run beside others, on what these leave of the processors, and are shown when they
//! have ended.

use std::fs;
use std::io;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use crate::part::tee;
use crate::shell::{is_command, succeeds};
use crate::summary::Durations;
use crate::test::Part;

/// Memory that has to be free, in KiB: that of two guests.
const ROOM: u64 = 8 << 20;

/// How the tests of a part are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The part is one check.
    Check,
    /// The same, which needs what may not be there.
    CheckIfPossible,
    /// The part says how many tests it has run.
    Tests,
}

/// A part of one command.
pub struct Job {
    pub name: &'static str,
    pub kind: Kind,
    pub command: Command,
}

impl Job {
    pub fn new(name: &'static str, kind: Kind, command: Command) -> Job {
        Job {
            name,
            kind,
            command,
        }
    }
}

/// A part that has ended.
pub struct Done {
    pub name: &'static str,
    pub kind: Kind,
    pub part: Part,
    pub durations: Durations,
}

/// Whether there is memory for what runs beside a guest.
pub fn has_room() -> bool {
    fs::read_to_string("/proc/meminfo").is_ok_and(|text| available(&text) >= Some(ROOM))
}

/// The available memory, in KiB.
fn available(meminfo: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let line = lines.find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Parts that run one after the other, beside those that the caller runs.
pub struct Beside {
    ended: Receiver<Done>,
    /// Of those that have not ended.
    names: Vec<&'static str>,
}

impl Beside {
    /// Starts them.
    pub fn start(jobs: Vec<Job>) -> Beside {
        let names = jobs.iter().map(|job| job.name).collect();
        let (sender, ended) = channel();
        thread::spawn(move || {
            for job in jobs {
                // Who does not listen any more has left.
                if sender.send(run(job)).is_err() {
                    break;
                }
            }
        });
        Beside { ended, names }
    }

    /// Those that have ended since the last call.
    pub fn ended(&mut self) -> Vec<Done> {
        let all: Vec<Done> = self.ended.try_iter().collect();
        self.names.drain(..all.len());
        all
    }

    /// Those that go on.
    pub fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// Waits for the next one; none when all have ended.
    pub fn next(&mut self) -> Option<Done> {
        let done = self.ended.recv().ok()?;
        self.names.remove(0);
        Some(done)
    }
}

fn run(job: Job) -> Done {
    let begin = Instant::now();
    let mut durations = Durations::default();
    let command = when_idle(&job.command);
    let (status, log) = tee(command, &mut io::sink(), |line, seconds| {
        durations.line(line, seconds);
    });
    Done {
        name: job.name,
        kind: job.kind,
        part: Part {
            status,
            log,
            seconds: begin.elapsed().as_secs(),
        },
        durations,
    }
}

/// The same command, which runs when nothing else wants a processor.
fn when_idle(command: &Command) -> Command {
    let idle = ["chrt", "--idle", "0"];
    let nice = ["nice", "-n", "19"];
    let can = is_command(idle[0]) && succeeds(Command::new(idle[0]).args(&idle[1..]).arg("true"));
    let words = if can { idle } else { nice };
    let mut wrapped = Command::new(words[0]);
    wrapped.args(&words[1..]);
    wrapped.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            wrapped.env(name, value);
        } else {
            wrapped.env_remove(name);
        }
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::command;

    #[test]
    fn parts_end_in_their_order_with_their_environment() {
        let mut first = command(["sh", "-c", "echo first $NUMBER >&2; exit 3"]);
        first.env("NUMBER", "7");
        let second = command(["echo", "2 passed, 0 failed"]);
        let mut beside = Beside::start(vec![
            Job::new("first", Kind::Check, first),
            Job::new("second", Kind::Tests, second),
        ]);
        assert_eq!(beside.names(), ["first", "second"]);
        let done = beside.next().unwrap();
        assert_eq!((done.name, done.kind), ("first", Kind::Check));
        assert_eq!((done.part.status, done.part.log.as_str()), (3, "first 7\n"));
        assert_eq!(beside.names(), ["second"]);
        let done = beside.next().unwrap();
        assert_eq!(
            (done.part.status, done.part.log.as_str()),
            (0, "2 passed, 0 failed\n")
        );
        assert!(beside.next().is_none() && beside.ended().is_empty());
    }

    #[test]
    fn they_get_what_is_idle() {
        let policy = "grep -E '^policy' /proc/self/sched; cut -d' ' -f19 /proc/self/stat";
        let (status, log) = tee(
            when_idle(&command(["sh", "-c", policy])),
            &mut io::sink(),
            |_, _| {},
        );
        // SCHED_IDLE, or the highest niceness.
        let is_idle = log.lines().any(|line| line.ends_with(" 5"));
        assert!(status == 0 && (is_idle || log.ends_with("19\n")), "{log}");
    }

    #[test]
    fn memory_that_is_available_is_read() {
        let text = "MemTotal:       24 kB\nMemFree:   3 kB\nMemAvailable:    8388608 kB\n";
        assert_eq!(available(text), Some(8 << 20));
        assert_eq!(available("MemTotal: 24 kB\n"), None);
        assert!(None < Some(ROOM));
    }
}
