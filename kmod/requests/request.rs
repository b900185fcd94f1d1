// SPDX-License-Identifier: GPL-2.0

//! [`Request`]: the virtual request queue of one transfer between two regions.
//!
//! A request is a number of fragments ([`crate::requests::fragments`]) that are claimed one by one:
//! by the completion callback of an engine's channel ([`crate::engine::channel`]), and by CPUs that
//! help. "Switch to CPU" is that the engine may claim no more. Claims are kept in kernel memory;
//! what user space sees ([`crate::requests::status`]) is a copy.
//!
//! # Lock order
//!
//! `Request::wait_lock` is the only one taken in callbacks; nothing is locked under it.
//! `SlotTable::slots` is taken when a request is dropped, so nothing is locked under it either, and
//! no request is dropped under it. Both come after all locks of engines.rs.
//!
//! No lock is held while bytes are copied. A request is dropped, which may unpin pages, only where
//! sleeping is allowed: callbacks always leave a reference to somebody else.
//!
//! # What is published, in which order
//!
//! A worker adds a fragment to `done` and `front` of the status table before it counts the fragment
//! as finished ([`Fragments::settle`]); the last one counted publishes `state`. So `state` is
//! written last, and nothing of an entry changes after it. A reader loads `state` first.
//!
//! # Bounds
//!
//! A callback advances the front by at most [`FRONT_STEPS`] words of the bitmap; the workqueue does
//! the rest, and the fragment counts as finished only then. The requests of one user's processes
//! are at most `max_user_requests`, released ones included until their last reference is gone.

use crate::abstractions::errno;
use crate::abstractions::irqlock::{self, IrqLock};
use crate::abstractions::shim;
use crate::base::params;
use crate::base::stats::Counter;
use crate::base::workqueue;
use crate::domain::copy;
use crate::domain::member::Member;
use crate::domain::region::Region;
use crate::memory::mapping::Mapping;
use crate::memory::user::RequestQuota;
use crate::requests::atomic::Word;
use crate::requests::copier::{CpuWork, Queue};
use crate::requests::fragments::{self, Fragments, Worker};
use crate::requests::job::Job;
use crate::requests::lost::{Lost, LostFragment};
use crate::requests::slots::{Occupant, SlotTable};
use crate::requests::status::Status;
use crate::uapi::{
    self, RequestSubmit, MAX_FRAGMENTS, MAX_FRAGMENT_PAGES, MODE_CPU, REQUEST_DONE, REQUEST_FAILED,
    REQUEST_RUNNING, RIGHT_READ, RIGHT_WRITE, SUBMIT_VERIFY,
};
use kernel::list::{impl_list_arc_safe, impl_list_item, AtomicTracker, ListLinks, TryNewListArc};
use kernel::page::{PAGE_SHIFT, PAGE_SIZE};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release};
use kernel::sync::{Arc, CondVar, CondVarTimeoutResult, UniqueArc};
use kernel::time::{Instant, Monotonic};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};
use kernel::{c_str, static_lock_class};

/// Bytes that a CPU claims at a time, if fragments are smaller: enough that claiming costs nothing
/// beside copying, little enough that others find something to do.
const CPU_SHARE: u64 = 64 * 1024;

/// Channels that a request may lose before CPUs do the rest: if it is the request that channels
/// fail at, it shall not take all of them out of service.
const MAX_CHANNELS_LOST: u32 = 2;

/// Words of the bitmap that the front advances over at a time, 64 fragments each.
const FRONT_STEPS: u32 = 256;

/// The requests of a domain.
pub(crate) type Requests = SlotTable<Request>;

/// Who submits a request, and what works on it.
pub(crate) struct Submitter<'a> {
    pub(crate) member: &'a Arc<Member>,
    pub(crate) requests: &'a Arc<Requests>,
    pub(crate) queue: &'a Arc<Queue<Request>>,
    /// Gives a request whose channel does not work any more to another one. Called without locks;
    /// may sleep.
    ///
    /// - `ENODEV`: there is none.
    pub(crate) hand_over: fn(&Arc<Request>) -> Result,
}

/// A transfer that an engine works on.
#[pin_data(PinnedDrop)]
pub(crate) struct Request {
    pub(crate) id: u32,
    pub(crate) submitter: Arc<Member>,
    pub(crate) source: Arc<Region>,
    pub(crate) destination: Arc<Region>,
    requests: Arc<Requests>,
    queue: Arc<Queue<Request>>,
    hand_over: fn(&Arc<Request>) -> Result,
    source_offset: u64,
    destination_offset: u64,
    flags: u32,
    fragment_pages: u32,
    /// Index of the engine.
    engine: Atomic<u32>,
    fragments: Fragments<KVVec<Word>>,
    state: Atomic<u32>,
    error: Atomic<i32>,
    /// Whether CPUs are to copy what nobody has claimed.
    taken_over: Atomic<u32>,
    /// Whether the workqueue is to find another channel.
    orphaned: Atomic<u32>,
    /// Fragments that the workqueue is to count as finished, when it has advanced the front.
    behind: Atomic<u64>,
    /// Whether a fragment counts as finished that was not copied as a whole, or not verified,
    /// because the request had failed.
    incomplete: Atomic<u32>,
    /// Whether somebody takes the last steps: the workqueue and the copier may both find it
    /// settled.
    concluding: Atomic<u32>,
    /// Fragments from the front that were verified.
    verified: Atomic<u64>,
    channels_lost: Atomic<u32>,
    engine_bytes: Atomic<u64>,
    cpu_bytes: Atomic<u64>,
    status: Option<Status>,
    /// Protects the fragments that engines have lost and no CPU has copied yet.
    #[pin]
    wait_lock: IrqLock<Lost>,
    #[pin]
    ended: CondVar,
    /// For [`crate::requests::copier`].
    #[pin]
    links: ListLinks,
    #[pin]
    tracker: AtomicTracker,
    #[pin]
    work: Work<Request>,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Request { tracked_by tracker: AtomicTracker; }
}

impl_list_item! {
    impl ListItem<0> for Request { using ListLinks { self.links }; }
}

impl_has_work! {
    impl HasWork<Self> for Request { self.work }
}

impl WorkItem for Request {
    type Pointer = Arc<Request>;

    fn run(this: Arc<Request>) {
        if this.orphaned.xchg(0, Full) != 0 && this.wants_engine() {
            let lost = this.channels_lost.fetch_add(1, Relaxed);
            if lost < MAX_CHANNELS_LOST && (this.hand_over)(&this).is_ok() {
                this.count(Counter::Handovers, 1);
            } else {
                Request::take_over(&this);
            }
        }
        let behind = this.behind.xchg(0, Full);
        if behind != 0 {
            this.catch_up();
            if this.fragments.settle(behind) {
                Self::settled(&this);
            }
        }
        // What takes long is the submitter's affair, as long as it is there.
        let this = if this.takes_long() {
            match Queue::add(&this.queue, this.clone()) {
                Ok(()) => return,
                Err(this) => this,
            }
        } else {
            this
        };
        Request::work(&this);
    }
}

#[pinned_drop]
impl PinnedDrop for Request {
    fn drop(self: Pin<&mut Self>) {
        // Reached running only if it was never handed to anybody.
        if self.state.load(Relaxed) == REQUEST_RUNNING {
            self.count(Counter::RequestsFailed, 1);
            self.queue.release();
        }
        if self.status.is_some() {
            self.requests.give_back(self.id);
        }
        self.submitter.user.dismiss_request();
    }
}

impl Request {
    /// Checks a submission and makes a request of it that nobody works on yet; `engine` is the
    /// index of the engine that will.
    pub(crate) fn new(
        by: &Submitter<'_>,
        source: Arc<Region>,
        destination: Arc<Region>,
        args: &RequestSubmit,
        engine: u32,
    ) -> Result<UniqueArc<Self>> {
        source.permit(RIGHT_READ)?;
        destination.permit(RIGHT_WRITE)?;
        source.contains(args.source_offset, args.length)?;
        destination.contains(args.destination_offset, args.length)?;
        if source.id == destination.id
            && args.source_offset.abs_diff(args.destination_offset) < args.length
        {
            return Err(EINVAL);
        }
        let quota = RequestQuota::take(&by.member.user)?;
        let lease = by.queue.lease()?;
        let mut pages = match args.fragment_pages {
            0 => params::fragment_pages().clamp(1, MAX_FRAGMENT_PAGES),
            given => given,
        };
        let least = args
            .length
            .div_ceil(MAX_FRAGMENTS - 1)
            .div_ceil(PAGE_SIZE as u64);
        // Far below the type's limit, because regions are limited.
        pages = u32::max(pages, least as u32);
        let size = u64::from(pages) << PAGE_SHIFT;
        let into = destination.mapping.pages();
        let phase = into
            .locate(args.destination_offset, &mut 0)
            .map_or(0, |(address, _)| address as u64 % PAGE_SIZE as u64);
        let count = fragments::count(args.length, size, phase);
        let words = fragments::bitmap_words(count);
        let mut bitmap = KVVec::with_capacity(words, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..words {
            bitmap.push(Word::new(0), GFP_KERNEL_ACCOUNT)?;
        }
        if args.length != 0 {
            into.mark_written();
        }
        let length = args.length;
        let request = UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let request = request.pin_init_with(pin_init!(Self {
            id: 0,
            submitter: by.member.clone(),
            source,
            destination,
            requests: by.requests.clone(),
            queue: by.queue.clone(),
            hand_over: by.hand_over,
            source_offset: args.source_offset,
            destination_offset: args.destination_offset,
            flags: args.flags,
            fragment_pages: pages,
            engine: Atomic::new(engine),
            fragments: Fragments::new(length, size, phase, bitmap),
            state: Atomic::new(REQUEST_RUNNING),
            error: Atomic::new(0),
            taken_over: Atomic::new(0),
            orphaned: Atomic::new(0),
            behind: Atomic::new(0),
            incomplete: Atomic::new(0),
            concluding: Atomic::new(0),
            verified: Atomic::new(0),
            channels_lost: Atomic::new(0),
            engine_bytes: Atomic::new(0),
            cpu_bytes: Atomic::new(0),
            status: None,
            wait_lock <- irqlock::new(
                Lost::new(),
                c_str!("libcopy::Request::wait_lock"),
                static_lock_class!(),
            ),
            ended <- CondVar::new(c_str!("libcopy::Request::ended"), static_lock_class!()),
            links <- ListLinks::new(),
            tracker <- AtomicTracker::new(),
            work <- new_work!("libcopy::Request::work"),
        }))?;
        // From here on the request gives them back.
        core::mem::forget(quota);
        core::mem::forget(lease);
        by.member.domain.stats.add(Counter::Requests, 1);
        // SAFETY: Nothing is moved out of the allocation: the pinned fields stay where they are,
        // and the `UniqueArc` only lets `SlotTable::publish` fill in two plain fields.
        Ok(unsafe { Pin::into_inner_unchecked(request) })
    }

    fn count(&self, counter: Counter, amount: u64) {
        self.submitter.domain.stats.add(counter, amount);
    }

    /// Bytes to copy.
    pub(crate) fn length(&self) -> u64 {
        self.fragments.length()
    }

    /// Pages per fragment.
    pub(crate) fn fragment_pages(&self) -> u32 {
        self.fragment_pages
    }

    /// Advances the front as far as it goes. May sleep.
    fn catch_up(&self) {
        // Bounded by the number of fragments, each of which is counted once.
        loop {
            let front = self.fragments.advance(FRONT_STEPS);
            if let Some(status) = &self.status {
                status.moved(0, front.advanced);
            }
            if !front.more {
                return;
            }
            shim::cond_resched_interrupted();
        }
    }

    /// Whether the request has failed, so that nothing more needs to be copied or compared.
    fn has_failed(&self) -> bool {
        self.error.load(Relaxed) != 0
    }

    /// Whether there is something to copy, or to compare, before the request ends.
    fn takes_long(&self) -> bool {
        let copies = !self.wait_lock.lock().is_empty()
            || (self.taken_over.load(Acquire) != 0 && self.fragments.open(Worker::Cpu));
        let compares = self.flags & SUBMIT_VERIFY != 0
            && self.fragments.settled()
            && self.state.load(Acquire) == REQUEST_RUNNING;
        (copies || compares) && !self.has_failed()
    }

    /// Copies a fragment that an engine has lost, if there is one; returns its bytes. May sleep.
    fn copy_lost(this: &Arc<Self>) -> Option<u64> {
        // The lock is not held any more when the entry is freed.
        let lost = this.wait_lock.lock().pop()?;
        Some(Self::copy(this, lost.fragment(), 1, Worker::Cpu))
    }

    /// Copies claimed fragments and finishes them; returns their bytes, 0 if the request has
    /// failed, and none if `stop` says so first. May sleep.
    fn copy_until(
        this: &Arc<Self>,
        first: u64,
        many: u64,
        worker: Worker,
        stop: impl Fn() -> bool,
    ) -> Option<u64> {
        let (from, to, length) = this.span(first, many);
        let whole = !this.has_failed()
            && copy::between(
                this.source.mapping.pages(),
                from,
                this.destination.mapping.pages(),
                to,
                length,
                || this.has_failed() || stop(),
            );
        if whole {
            for fragment in first..first + many {
                Self::finish(this, fragment, worker);
            }
            return Some(length);
        }
        if !this.has_failed() && stop() {
            return None;
        }
        // They are not in place, but nobody works on them any more.
        this.incomplete.store(1, Relaxed);
        if this.fragments.settle(many) {
            Self::settled(this);
        }
        Some(0)
    }

    /// Claims something, if there is anything, and copies it; returns its bytes. May sleep.
    pub(crate) fn help(this: &Arc<Self>) -> Option<u64> {
        let most = u64::max(CPU_SHARE / u64::max(this.fragments.size(), 1), 1);
        // What was claimed before the owner died is copied all the same, and may be all there is.
        if this.fragments.open(Worker::Cpu) && this.is_orphan() {
            Self::fail_orphan(this);
            return None;
        }
        match this.claim(Worker::Cpu, most) {
            Some((first, many)) => Some(Self::copy(this, first, many, Worker::Cpu)),
            None => Self::copy_lost(this),
        }
    }

    /// Lets no engine claim any more.
    pub(crate) fn close_to_engines(&self) -> bool {
        self.fragments.close_to_engines()
    }

    /// Index of the engine that works on it.
    pub(crate) fn engine(&self) -> u32 {
        self.engine.load(Relaxed)
    }

    /// Another engine works on it now.
    pub(crate) fn set_engine(&self, index: u32) {
        self.engine.store(index, Relaxed);
    }

    /// Ends the request with an error once nothing is being worked on. Does not sleep.
    pub(crate) fn fail(this: &Arc<Self>, error: Error) {
        let _ = this.error.cmpxchg(0, error.to_errno(), Full);
        if this.fragments.close() {
            Self::settled(this);
        }
    }

    /// Nothing is being worked on any more. Does not sleep.
    fn settled(this: &Arc<Self>) {
        // The workqueue comes here, too, when it finds an owner dead whose request has ended: it
        // must not call itself for ever.
        if this.state.load(Acquire) != REQUEST_RUNNING {
            return;
        }
        // Checksums take long.
        if this.fragments.complete() && this.flags & SUBMIT_VERIFY != 0 {
            let _ = workqueue::enqueue(this.clone());
        } else {
            this.end();
        }
    }

    /// The last steps of a settled request, which may sleep; returns false if a signal came before
    /// they were done.
    fn conclude(&self) -> bool {
        if self.state.load(Acquire) != REQUEST_RUNNING || self.concluding.xchg(1, Full) != 0 {
            return true;
        }
        let verifies = self.fragments.complete() && self.flags & SUBMIT_VERIFY != 0;
        if verifies && !self.verify() {
            self.concluding.store(0, Release);
            return false;
        }
        self.end();
        true
    }

    /// Compares source and destination; copies what differs once more. Ends early when the request
    /// has failed, and returns false when a signal wants the caller first.
    fn verify(&self) -> bool {
        let (from, to) = (
            self.source.mapping.pages(),
            self.destination.mapping.pages(),
        );
        let killed = || !self.has_failed() && shim::fatal_signal_pending();
        let stop = || self.has_failed() || killed();
        // Bounded by the length, which takes a while: so it gives way and stops when it is told.
        for fragment in self.verified.load(Acquire)..self.fragments.count() {
            let (source, destination, length) = self.span(fragment, 1);
            let same = || {
                copy::checksum(from, source, length, stop)
                    == copy::checksum(to, destination, length, stop)
            };
            if !same() && !stop() {
                self.count(Counter::VerifyFailures, 1);
                copy::between(from, source, to, destination, length, stop);
                if !same() && !stop() {
                    let _ = self.error.cmpxchg(0, EIO.to_errno(), Full);
                    return true;
                }
            }
            if killed() {
                return false;
            }
            // What was stopped was not compared.
            if self.has_failed() {
                self.incomplete.store(1, Relaxed);
                return true;
            }
            self.verified.store(fragment + 1, Release);
            if shim::cond_resched_interrupted() {
                return false;
            }
        }
        true
    }

    /// Publishes the outcome, once.
    fn end(&self) {
        let broken =
            self.error.load(Acquire) == EIO.to_errno() || self.incomplete.load(Relaxed) != 0;
        let state = if self.fragments.complete() && !broken {
            REQUEST_DONE
        } else {
            REQUEST_FAILED
        };
        let error = if state == REQUEST_DONE {
            0
        } else {
            -self.error.load(Relaxed)
        };
        if self.state.cmpxchg(REQUEST_RUNNING, state, Full).is_err() {
            return;
        }
        self.count(
            if state == REQUEST_DONE {
                Counter::RequestsDone
            } else {
                Counter::RequestsFailed
            },
            1,
        );
        if let Some(status) = &self.status {
            status.end(state, error);
        }
        // Whoever looked before the state was written holds the lock until it sleeps.
        drop(self.wait_lock.lock());
        self.pass_wakeup_on();
        self.queue.release();
    }

    /// Wakes one of the threads that wait for the end; each that leaves wakes the next. As many may
    /// wait as a user has threads, and this is called where interrupts are off.
    fn pass_wakeup_on(&self) {
        self.ended.notify_one();
    }

    /// The outcome, if the request has ended.
    pub(crate) fn outcome(&self) -> Option<Result> {
        match self.state.load(Acquire) {
            REQUEST_RUNNING => None,
            REQUEST_DONE => Some(Ok(())),
            _ => Some(Err(match self.error.load(Relaxed) {
                0 => EIO,
                error => Error::from_errno(error),
            })),
        }
    }

    /// Waits for the end; `timeout` is in nanoseconds and updated, negative: for ever.
    ///
    /// - `ETIMEDOUT`, `EINTR`: the time is over, or a signal came.
    pub(crate) fn wait(&self, timeout: &mut i64) -> Result {
        let start = Instant::<Monotonic>::now();
        let budget = *timeout;
        let result = {
            let mut guard = self.wait_lock.lock();
            // One look per hold: waiting lets go of the lock. A look always comes after a sleep.
            loop {
                if budget >= 0 {
                    *timeout = i64::max(budget.saturating_sub(start.elapsed().as_nanos()), 0);
                }
                if let Some(outcome) = self.outcome() {
                    break outcome;
                }
                let jiffies = if budget < 0 {
                    kernel::task::MAX_SCHEDULE_TIMEOUT as kernel::time::Jiffies
                } else {
                    if *timeout == 0 {
                        return Err(ETIMEDOUT);
                    }
                    // Rounded up, and bounded: what is longer is slept in several naps.
                    let millis = i64::min(*timeout / 1_000_000 + 1, 3_600_000);
                    kernel::time::msecs_to_jiffies(millis as u32)
                };
                let slept = self.ended.wait_interruptible_timeout(&mut guard, jiffies);
                let signalled = matches!(slept, CondVarTimeoutResult::Signal { .. });
                if signalled && self.outcome().is_none() {
                    if budget >= 0 {
                        let left = budget.saturating_sub(start.elapsed().as_nanos());
                        *timeout = i64::max(left, 0);
                    }
                    return Err(EINTR);
                }
            }
        };
        // Who was woken sees the end, whatever else has come meanwhile.
        self.pass_wakeup_on();
        result
    }

    /// Performs [`uapi::REQUEST_SWITCH`]; fills in the outputs.
    pub(crate) fn switch(this: &Arc<Self>, args: &mut uapi::RequestSwitch) -> Result {
        if args.flags & uapi::SWITCH_HELP == 0 && this.close_to_engines() {
            this.count(Counter::Switches, 1);
        }
        let mut result = Ok(());
        while let Some(bytes) = Self::help(this) {
            args.copied += bytes;
            if shim::cond_resched_interrupted() {
                result = Err(EINTR);
                break;
            }
        }
        if result.is_ok() {
            result = match this.outcome() {
                Some(outcome) => outcome,
                None if args.flags & uapi::SWITCH_NO_WAIT != 0 => Err(ETIMEDOUT),
                None => this.wait(&mut -1),
            };
        }
        args.state = this.state();
        args.done = this.done();
        result
    }

    /// Bytes in place.
    pub(crate) fn done(&self) -> u64 {
        self.engine_bytes.load(Relaxed) + self.cpu_bytes.load(Relaxed)
    }

    /// Bytes in place from the front without a gap.
    pub(crate) fn front(&self) -> u64 {
        self.fragments.front()
    }

    /// `REQUEST_*` state.
    pub(crate) fn state(&self) -> u32 {
        self.state.load(Acquire)
    }

    /// Performs [`uapi::REQUEST_INFO`].
    pub(crate) fn info(&self) -> uapi::RequestInfo {
        let state = self.state();
        uapi::RequestInfo {
            id: self.id,
            state,
            length: self.length(),
            done: self.done(),
            front: self.front(),
            engine_bytes: self.engine_bytes.load(Relaxed),
            cpu_bytes: self.cpu_bytes.load(Relaxed),
            fragments: self.fragments.count(),
            fragment_pages: self.fragment_pages,
            engine: self.engine(),
            mode: if self.fragments.closed_to_engines() {
                MODE_CPU
            } else {
                0
            },
            error: match self.outcome() {
                Some(Err(error)) => -error.to_errno(),
                _ => 0,
            },
            reserved: 0,
        }
    }

    /// Ends a request that needs no worker, because it has no bytes; returns whether it does.
    pub(crate) fn begin(this: &Arc<Self>) -> bool {
        let nothing = this.fragments.count() == 0;
        if nothing {
            Self::settled(this);
        }
        nothing
    }
}

impl Job for Request {
    fn source(&self) -> &Mapping {
        &self.source.mapping
    }

    fn destination(&self) -> &Mapping {
        &self.destination.mapping
    }

    fn span(&self, first: u64, many: u64) -> (u64, u64, u64) {
        let (at, length) = self.fragments.range(first, many);
        (
            self.source_offset + at,
            self.destination_offset + at,
            length,
        )
    }

    fn alignment(&self) -> u64 {
        self.source_offset | self.destination_offset | self.length()
    }

    fn is_orphan(&self) -> bool {
        self.source.owner.is_dead() || self.destination.owner.is_dead()
    }

    fn fail_orphan(this: &Arc<Self>) {
        Self::fail(this, errno::eownerdead());
    }

    fn claim(&self, worker: Worker, most: u64) -> Option<(u64, u64)> {
        let claimed = self.fragments.claim(worker, most)?;
        if let Some(status) = &self.status {
            status.claimed(claimed.1);
        }
        Some(claimed)
    }

    fn wants_engine(&self) -> bool {
        self.fragments.open(Worker::Engine)
    }

    fn finish(this: &Arc<Self>, fragment: u64, worker: Worker) {
        let (_, length) = this.fragments.range(fragment, 1);
        let (mine, bytes, number) = match worker {
            Worker::Engine => (
                &this.engine_bytes,
                Counter::BytesEngine,
                Counter::FragmentsEngine,
            ),
            Worker::Cpu => (&this.cpu_bytes, Counter::BytesCpu, Counter::FragmentsCpu),
        };
        mine.fetch_add(length, Relaxed);
        this.count(bytes, length);
        this.count(number, 1);
        let front = this.fragments.mark(fragment, FRONT_STEPS);
        if let Some(status) = &this.status {
            status.moved(length, front.advanced);
        }
        if front.more {
            this.behind.fetch_add(1, Full);
            let _ = workqueue::enqueue(this.clone());
        } else if this.fragments.settle(1) {
            Self::settled(this);
        }
    }

    fn copy(this: &Arc<Self>, first: u64, many: u64, worker: Worker) -> u64 {
        let killed = || shim::fatal_signal_pending();
        if let Some(bytes) = Self::copy_until(this, first, many, worker, killed) {
            return bytes;
        }
        for fragment in first..first + many {
            Self::lose(this, fragment);
        }
        0
    }

    fn lose(this: &Arc<Self>, fragment: u64) {
        match LostFragment::new(fragment) {
            Ok(lost) => {
                this.wait_lock.lock().push(lost);
                let _ = workqueue::enqueue(this.clone());
            }
            // Then here: a channel has at most `MAX_DEPTH` fragments in work.
            Err(_) => drop(Self::copy_until(this, fragment, 1, Worker::Cpu, || false)),
        }
    }

    fn take_over(this: &Arc<Self>) {
        this.close_to_engines();
        if this.taken_over.xchg(1, Full) == 0 {
            this.count(Counter::Takeovers, 1);
        }
        let _ = workqueue::enqueue(this.clone());
    }

    fn pass_on(this: &Arc<Self>) {
        this.orphaned.store(1, Release);
        let _ = workqueue::enqueue(this.clone());
    }
}

impl CpuWork for Request {
    fn work(this: &Arc<Self>) -> bool {
        // The lost ones first: the front waits for them.
        while Self::copy_lost(this).is_some()
            || (this.taken_over.load(Acquire) != 0 && Self::help(this).is_some())
        {
            if shim::cond_resched_interrupted() && !this.has_failed() {
                return false;
            }
        }
        !this.fragments.settled() || this.conclude()
    }

    fn abandon(this: &Arc<Self>) {
        Self::fail(this, errno::ecanceled());
    }
}

impl Occupant for Request {
    fn id(&self) -> u32 {
        self.id
    }

    fn place(&mut self, id: u32, status: Status) {
        self.id = id;
        self.status = Some(status);
    }
}
