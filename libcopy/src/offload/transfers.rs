// SPDX-License-Identifier: MIT OR Apache-2.0

//! The requests behind a guarded buffer, and what a team needs to make them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::guard::{self, Completion, Kind};
use crate::device::Domain;
use crate::device::request::{self, Progress, RequestId, StatusTable};
use crate::error::Result;
use crate::policy::monitor::{Monitor, Reason, Site};
use crate::policy::{Async, Executor};
use crate::shm::segment::Segment;

/// What the guards of a team share; outlives the team if something is lost.
#[derive(Debug)]
struct Requests {
    file: OwnedFd,
    table: StatusTable,
    /// Nanoseconds from the return of a call to the earliest touch since it was last asked for;
    /// `u64::MAX`: none.
    touched: AtomicU64,
    segment: Arc<Segment>,
    rank: usize,
    size: usize,
}

/// What is left of a request must be worth waking others for.
const WORTH_HELP: u64 = 256 << 10;

impl Requests {
    /// Takes a request from its engine and copies the rest, with the help of peers who wait for
    /// something. Async-signal-safe.
    fn switch(&self, &Part { id, len, .. }: &Part) -> std::result::Result<(), i32> {
        let help_request = &self.segment.block(self.rank).help_request;
        let number = u64::from(id.get());
        let left = |progress: Progress| (len as u64).saturating_sub(progress.done);
        let called = self.table.progress(id).map_or(0, left) >= WORTH_HELP;
        if called {
            help_request.store(number, Ordering::Release);
            for rank in (0..self.size).filter(|rank| *rank != self.rank) {
                self.segment.block(rank).bell.ring();
            }
        }
        let result = request::switch_in_handler(self.file.as_fd(), id);
        if called {
            // Another thread may wait for another one by now.
            let _ = help_request.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        result
    }
}

/// A team's part in this module.
#[derive(Debug)]
pub(crate) struct Offload {
    requests: Arc<Requests>,
    owner: u64,
    told: AtomicBool,
    choice: Async,
    /// Whether bytes are right only when a request has ended.
    verify: bool,
    log: bool,
    monitor: Monitor,
    /// The call before this one, as its root.
    last: Option<Site>,
    /// When the call that goes on began, if CPUs copy for it.
    by_cpu: Option<Duration>,
}

/// A request that moves bytes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where in the buffer.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) id: RequestId,
    /// Whether we submitted it, and have to release it.
    pub(crate) ours: bool,
    /// Whether the bytes are only read, so that it does not matter to us if it fails.
    pub(crate) source: bool,
}

impl Offload {
    /// `None` if the module cannot do it.
    pub(crate) fn new(
        domain: &Domain,
        (segment, rank, size): (Arc<Segment>, usize, usize),
        choice: Async,
        verify: bool,
        log: bool,
    ) -> Option<Self> {
        static OWNERS: AtomicU64 = AtomicU64::new(1);
        let file = domain.as_fd().try_clone_to_owned().ok()?;
        let table = domain.status_table().ok()?;
        Some(Offload {
            requests: Arc::new(Requests {
                file,
                table,
                touched: AtomicU64::new(u64::MAX),
                segment,
                rank,
                size,
            }),
            owner: OWNERS.fetch_add(1, Ordering::Relaxed),
            told: AtomicBool::new(false),
            choice,
            verify,
            log,
            monitor: Monitor::new(),
            last: None,
            by_cpu: None,
        })
    }

    /// Another choice from the next call on.
    pub(crate) fn set_choice(&mut self, choice: Async) {
        self.choice = choice;
        // What passes until then says nothing about the last way.
        self.monitor.interrupted();
        self.last = None;
    }

    /// Lifts the guards whose bytes are in place, and releases their requests.
    pub(crate) fn reap(&self) {
        guard::reap(self.owner);
    }

    /// Nanoseconds to the earliest touch since the last question; 0: none.
    pub(crate) fn touched(&self) -> u64 {
        match self.requests.touched.swap(u64::MAX, Ordering::Relaxed) {
            u64::MAX => 0,
            after => after.max(1),
        }
    }

    /// Which way the bytes of this call go.
    pub(crate) fn choose(&mut self, site: Site) -> Executor {
        let touched = self.touched();
        self.heard(touched);
        let now = Duration::from_nanos(guard::clock());
        let decision = self.monitor.choose(site, self.choice.ways(), now);
        self.last = Some(site);
        self.by_cpu = (decision.way == Executor::Cpu).then_some(now);
        if self.log {
            let why = match decision.reason {
                Reason::Only => "only",
                Reason::Trial => "trial",
                Reason::Shortest => "shortest",
                Reason::Again => "again",
            };
            let number =
                |value: Option<f64>| value.map_or("null".to_owned(), |us| format!("{us:.1}"));
            let known = decision.intervals_us;
            let line = format!(
                "{{\"libcopy\":\"policy\",\"op\":\"{}\",\"root\":{},\"bytes\":{},\"iteration\":{},\
                 \"way\":\"{}\",\"reason\":\"{why}\",\"intervals_us\":{{\"engine\":{},\"cpu\":{},\
                 \"both\":{}}},\"touched_after_us\":{}}}\n",
                site.op,
                site.root,
                site.bytes,
                decision.iteration,
                decision.way.name(),
                number(known.engine),
                number(known.cpu),
                number(known.both),
                number(decision.touched_after_us),
            );
            // One system call: what is written must not become what is measured.
            crate::refusal::say(&line);
        }
        decision.way
    }

    /// A call is over.
    pub(crate) fn ended(&mut self) {
        if let (Some(site), Some(began)) = (&self.last, self.by_cpu.take()) {
            let now = Duration::from_nanos(guard::clock());
            self.monitor.copied(site, now.saturating_sub(began));
        }
    }

    /// A rank touched its buffer of the last call this many nanoseconds after it returned; 0: no
    /// rank did.
    pub(crate) fn heard(&mut self, touched: u64) {
        if let (Some(site), 1..) = (&self.last, touched) {
            self.monitor.touched(site, Duration::from_nanos(touched));
        }
    }

    /// Guards a buffer until its parts are in place; waits for them if it cannot be guarded.
    ///
    /// # Safety
    ///
    /// As for [`guard::arm`].
    pub(crate) unsafe fn guard(
        &self,
        base: *const u8,
        len: usize,
        kind: Kind,
        parts: Vec<Part>,
    ) -> Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        let transfers = Box::new(Transfers {
            requests: self.requests.clone(),
            parts,
            verify: self.verify,
            since: guard::clock(),
        });
        // SAFETY: the caller's promise.
        match unsafe { guard::arm(base, len, kind, self.owner, transfers) } {
            Ok(()) => Ok(()),
            Err(transfers) => transfers.hurry(0, len).map_err(guard::loss),
        }
    }

    /// After an error: nothing may move bytes to or from memory that the caller uses again. Regions
    /// are closed before, so nobody begins anything new.
    pub(crate) fn abandon(&self) {
        self.told.store(true, Ordering::Relaxed);
        for id in self.requests.table.running() {
            // Requests of a dead member fail, which ends them as well.
            let _ = request::switch_in_handler(self.requests.file.as_fd(), id);
        }
    }

    /// Waits for everything that is pending, before the team goes.
    pub(crate) fn retire(&self) {
        let told = self.told.load(Ordering::Relaxed);
        if let Err(errno) = guard::retire(self.owner, told) {
            if !told {
                crate::refusal::say(&format!(
                    "libcopy: {}; its buffer stays guarded, and touching it raises SIGBUS\n",
                    guard::loss(errno)
                ));
            }
        }
    }
}

/// The completion of a guarded buffer.
struct Transfers {
    requests: Arc<Requests>,
    parts: Vec<Part>,
    verify: bool,
    /// When the call was about to return.
    since: u64,
}

impl Transfers {
    /// How far a part is: bytes in place from its start, or an errno.
    fn progress(&self, part: &Part) -> std::result::Result<usize, i32> {
        match self.requests.table.progress(part.id) {
            Some(progress) if progress.complete => Ok(part.len),
            Some(progress) if !progress.ended && self.verify => Ok(0),
            Some(progress) if !progress.ended => Ok((progress.front as usize).min(part.len)),
            // A source that nobody reads any more is free.
            _ if part.source => Ok(part.len),
            // It failed; or, which cannot happen as long as every rank looks after its requests
            // in each operation, another one has its place in the table.
            _ => Err(libc::EOWNERDEAD),
        }
    }
}

impl Completion for Transfers {
    fn arrived(&self, from: usize) -> usize {
        let until = |part: &Part| match self.progress(part) {
            Ok(front) if front == part.len => usize::MAX,
            Ok(front) => part.at + front,
            Err(_) => part.at,
        };
        self.parts
            .iter()
            .filter(|part| part.at + part.len > from)
            .map(until)
            .min()
            .unwrap_or(usize::MAX)
            .max(from)
    }

    fn hurry(&self, from: usize, to: usize) -> std::result::Result<(), i32> {
        let mut result = Ok(());
        for part in &self.parts {
            if part.at >= to || part.at + part.len <= from || self.progress(part) == Ok(part.len) {
                continue;
            }
            // Who waits needs the bytes, not the overlap: the engine begins nothing more, and we
            // copy the rest (Copy Engines 2023, section 3.4).
            let switched = self.requests.switch(part);
            match (self.progress(part), switched) {
                (Ok(front), _) if front == part.len => {}
                (Err(errno), _) | (_, Err(errno)) => result = Err(errno),
                (Ok(_), Ok(())) => result = Err(libc::EIO),
            }
        }
        result
    }

    fn touched(&self, at: u64) {
        let after = at.saturating_sub(self.since);
        self.requests.touched.fetch_min(after, Ordering::Relaxed);
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        for part in self.parts.iter().filter(|part| part.ours) {
            request::release(self.requests.file.as_fd(), part.id);
        }
    }
}
