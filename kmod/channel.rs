// SPDX-License-Identifier: GPL-2.0

//! [`Channel`]: where requests wait for an engine, and what feeds them to it.
//!
//! A channel is a queue of requests, served in turn, fragment by fragment. A dmaengine channel is fed
//! by [`Channel::pump`]: by whoever submits a request, and from then on by the completion callback of
//! the fragment before. A channel of a kernel thread is served by that thread.
//!
//! # When the hardware fails
//!
//! A fragment that ends badly, or not in time, stops the channel: nothing more is submitted, and the
//! supervisor ([`crate::engine`]) calls [`Channel::recover`]. That stops the hardware first, so that
//! no lost descriptor can write any more; only then are the fragments that are missing copied by a
//! CPU and the pages let go. What was not begun goes to another channel of the engine or of its node,
//! to a CPU if there is none. The channel comes back when it has copied a page right.
//!
//! Before the deadline there is a shorter time ([`STALL`]) after which nothing more is put behind a
//! fragment that does not end: a driver may be resetting the channel just then.
//!
//! # Lock order
//!
//! 1. `Channel::held`
//! 2. `DmaDevice::maps`
//! 3. `Channel::queue`, which callbacks take; under it nothing sleeps and no driver is called

use crate::dma::{self, DmaChan, DmaDevice, DmaMap, DmaResult, Hardware, Thread, Trial};
use crate::engine::{self, Engine};
use crate::fragments::Worker;
use crate::irqlock::{self, IrqLock};
use crate::queue;
use crate::request::Request;
use crate::stats::{Counter, TOTAL};
use core::cell::UnsafeCell;
use kernel::bindings;
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release};
use kernel::sync::{new_mutex, Arc, CondVar, Mutex};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};
use kernel::{c_str, static_lock_class};

/// Fragments that a channel may have in work at a time.
pub(crate) const MAX_DEPTH: usize = 16;

/// First and last pause between two attempts of a channel to prove itself, in milliseconds.
const FIRST_PAUSE: u32 = 500;
const LAST_PAUSE: u32 = 60_000;

/// Nanoseconds after which nothing is submitted behind a fragment in work. Less than the 100 ms after
/// which `ioatdma` looks after its channels (`COMPLETION_TIMEOUT` in drivers/dma/ioat/dma.h).
const STALL: i64 = 50_000_000;

/// Requests that a channel has room for without allocating.
const ROOM: usize = 32;

/// How a channel is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Service {
    /// Never used, or given back: the hardware is acquired when it is needed.
    Idle,
    /// Working.
    Up,
    /// Something went wrong; the supervisor has not seen to it yet.
    Failed,
    /// Stopped by the supervisor; it has not proved itself yet.
    Down,
    /// The device is gone.
    Gone,
}

/// What a request needs at a channel. The maps go before the request, which holds the pages.
struct Entry {
    maps: Option<(Arc<DmaMap>, Arc<DmaMap>)>,
    request: Arc<Request>,
    /// Fragments in work here.
    working: u32,
}

struct Queue {
    service: Service,
    /// Threads that are inside the driver to submit.
    submitters: u32,
    entries: KVec<Entry>,
    /// Entry whose turn it is.
    turn: usize,
    /// Entries that are through, to be dropped where that is allowed. Has room for all entries.
    retired: KVec<Entry>,
    /// Slots in use, one bit each.
    busy: u32,
}

impl Queue {
    /// Claims the next fragment of the next request that has one. Entries that have none, and none
    /// in work, are retired.
    fn claim(&mut self) -> Option<(usize, u64)> {
        let mut left = self.entries.len();
        while left > 0 {
            left -= 1;
            if self.turn >= self.entries.len() {
                self.turn = 0;
            }
            let at = self.turn;
            if let Some((fragment, _)) =
                Request::claim(&self.entries[at].request, Worker::Engine, 1)
            {
                self.entries[at].working += 1;
                self.turn = at + 1;
                return Some((at, fragment));
            }
            if !self.retire(at) {
                self.turn = at + 1;
            }
        }
        None
    }

    /// Moves an entry to the retired ones if there is nothing left to do for it here.
    fn retire(&mut self, at: usize) -> bool {
        let entry = &self.entries[at];
        if entry.working != 0 || entry.request.wants_engine() {
            return false;
        }
        if let Ok(entry) = self.entries.remove(at) {
            // There is room by the invariant of `retired`.
            let _ = self.retired.push_within_capacity(entry);
        }
        true
    }

    /// One fragment of a request less in work.
    fn done(&mut self, request: *const Request) {
        let at = self
            .entries
            .iter()
            .position(|entry| core::ptr::eq(&*entry.request, request));
        if let Some(at) = at {
            self.entries[at].working -= 1;
            self.retire(at);
        }
    }
}

/// A fragment in work.
struct Task {
    request: Arc<Request>,
    fragment: u64,
    source: Arc<DmaMap>,
    destination: Arc<DmaMap>,
}

/// Where a fragment is while the hardware works on it.
///
/// # Invariants
///
/// `task` belongs to whoever set the slot's bit in [`Queue::busy`] until the last of `pending` is
/// counted down, then to who did that; to the supervisor while the hardware is stopped.
struct Slot {
    channel: Atomic<*mut Channel>,
    index: Atomic<u32>,
    /// Descriptors under way, and one more while they are being submitted.
    pending: Atomic<u32>,
    /// Whether one of them ended badly.
    failed: Atomic<u32>,
    /// When the fragment was submitted, in nanoseconds; 0: not in work.
    since: Atomic<i64>,
    task: UnsafeCell<Option<Task>>,
}

// SAFETY: See the invariant: at any time one thread has the task.
unsafe impl Send for Slot {}
// SAFETY: As above.
unsafe impl Sync for Slot {}

/// The hardware of a channel and what belongs to it.
struct Held {
    hardware: Option<Hardware>,
    device: Option<Arc<DmaDevice>>,
    /// When the next attempt to prove itself is due, and how long the pause after it will be.
    attempt: i64,
    pause: u32,
}

/// A channel of an engine.
#[pin_data]
pub(crate) struct Channel {
    engine: Arc<Engine>,
    /// Which one it is, for dmaengine.
    key: u64,
    /// The hardware while it is up, for callbacks: it is released only when nobody submits.
    raw: Atomic<*mut DmaChan>,
    unordered: Atomic<u32>,
    /// Whether the workqueue is to submit, because a callback must not.
    deferred: Atomic<u32>,
    slots: [Slot; MAX_DEPTH],
    #[pin]
    held: Mutex<Held>,
    #[pin]
    queue: IrqLock<Queue>,
    /// Notified when there is something for the channel's kernel thread.
    #[pin]
    called: CondVar,
    /// That thread.
    #[pin]
    thread: Mutex<Option<Thread>>,
    #[pin]
    work: Work<Channel>,
}

impl_has_work! {
    impl HasWork<Self> for Channel { self.work }
}

impl WorkItem for Channel {
    type Pointer = Arc<Channel>;

    // What is retired is dropped here, because that may unpin pages and unmap them.
    fn run(this: Arc<Channel>) {
        this.drop_retired();
        if this.deferred.xchg(0, Full) != 0 {
            this.pump();
        }
    }
}

fn now() -> i64 {
    // Never zero, which stands for "not in work".
    // SAFETY: No preconditions.
    i64::max(unsafe { bindings::ktime_get() }, 1)
}

/// Nanoseconds after which a fragment is given up.
pub(crate) fn deadline() -> i64 {
    i64::from(dma::param_deadline_ms().clamp(10, 3_600_000)) * 1_000_000
}

impl Channel {
    /// A channel that nobody has acquired yet.
    pub(crate) fn new(engine: &Arc<Engine>, key: u64) -> Result<Arc<Self>> {
        let entries = KVec::with_capacity(ROOM, GFP_KERNEL)?;
        let retired = KVec::with_capacity(ROOM, GFP_KERNEL)?;
        let this = Arc::pin_init(
            pin_init!(Self {
                engine: engine.clone(),
                key,
                raw: Atomic::new(core::ptr::null_mut()),
                unordered: Atomic::new(0),
                deferred: Atomic::new(0),
                slots: core::array::from_fn(|index| Slot {
                    channel: Atomic::new(core::ptr::null_mut()),
                    index: Atomic::new(index as u32),
                    pending: Atomic::new(0),
                    failed: Atomic::new(0),
                    since: Atomic::new(0),
                    task: UnsafeCell::new(None),
                }),
                held <- new_mutex!(Held {
                    hardware: None,
                    device: None,
                    attempt: 0,
                    pause: FIRST_PAUSE,
                }),
                queue <- irqlock::new(
                    Queue {
                        service: Service::Idle,
                        submitters: 0,
                        entries,
                        turn: 0,
                        retired,
                        busy: 0,
                    },
                    c_str!("libcopy::Channel::queue"),
                    static_lock_class!(),
                ),
                called <- CondVar::new(c_str!("libcopy::Channel::called"), static_lock_class!()),
                thread <- new_mutex!(None),
                work <- new_work!("libcopy::Channel::work"),
            }),
            GFP_KERNEL,
        )?;
        for slot in &this.slots {
            slot.channel.store(Arc::as_ptr(&this).cast_mut(), Relaxed);
        }
        Ok(this)
    }

    /// Which one it is, for dmaengine.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    /// Whether the hardware is ours, and whether it is out of service.
    pub(crate) fn condition(&self) -> (bool, bool) {
        let service = self.queue.lock().service;
        let out = matches!(service, Service::Failed | Service::Down);
        (out || service == Service::Up, out)
    }

    /// Whether the device is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.queue.lock().service == Service::Gone
    }

    /// Gives the channel a request. If it cannot take it, another channel or a CPU will do the work.
    pub(crate) fn submit(this: &Arc<Self>, request: &Arc<Request>) {
        match Self::try_submit(this, request) {
            Ok(()) => {}
            Err(error) if error == ENODEV => Request::pass_on(request),
            Err(_) => Request::take_over(request),
        }
    }

    /// Gives the channel a request.
    ///
    /// - `ENODEV`: it does not work any more.
    pub(crate) fn try_submit(this: &Arc<Self>, request: &Arc<Request>) -> Result {
        let maps = if this.engine.is_thread() {
            None
        } else {
            let device = this.acquire()?;
            let alignment = this.engine.alignment();
            let source = device.map(&request.source.mapping)?;
            let destination = device.map(&request.destination.mapping)?;
            if request.alignment() & (alignment - 1) != 0
                || !source.aligned(alignment)
                || !destination.aligned(alignment)
            {
                return Err(EINVAL);
            }
            Some((source, destination))
        };
        this.enqueue(Entry {
            maps,
            request: request.clone(),
            working: 0,
        })?;
        if this.engine.is_thread() {
            // Whoever found the queue empty before has slept since `enqueue` took the lock.
            this.called.notify_all();
        } else {
            this.pump();
        }
        Ok(())
    }

    fn enqueue(&self, entry: Entry) -> Result {
        let mut entry = entry;
        loop {
            let wanted = {
                let mut queue = self.queue.lock();
                if queue.service != Service::Up {
                    // The entry is dropped after the lock is released.
                    None
                } else if queue.entries.len() + queue.retired.len() < queue.entries.capacity() {
                    match queue.entries.push_within_capacity(entry) {
                        Ok(()) => return Ok(()),
                        Err(refused) => entry = refused.0,
                    }
                    Some(queue.entries.capacity() * 2)
                } else {
                    Some(queue.entries.capacity() * 2)
                }
            };
            let Some(wanted) = wanted else {
                drop(entry);
                return Err(ENODEV);
            };
            let mut entries = KVec::with_capacity(wanted, GFP_KERNEL)?;
            let mut retired = KVec::with_capacity(wanted, GFP_KERNEL)?;
            let mut queue = self.queue.lock();
            if queue.entries.capacity() < wanted {
                // What is moved fits, because the new ones are larger.
                for entry in queue.entries.drain_all() {
                    let _ = entries.push_within_capacity(entry);
                }
                for entry in queue.retired.drain_all() {
                    let _ = retired.push_within_capacity(entry);
                }
                core::mem::swap(&mut queue.entries, &mut entries);
                core::mem::swap(&mut queue.retired, &mut retired);
            }
            drop(queue);
            // The old ones, now empty, are freed here.
        }
    }

    /// The device, after making sure that the hardware is ours and up.
    fn acquire(&self) -> Result<Arc<DmaDevice>> {
        let mut held = self.held.lock();
        let service = self.queue.lock().service;
        match service {
            Service::Idle => {}
            Service::Up => return held.device.clone().ok_or(ENODEV),
            _ => return Err(ENODEV),
        }
        engine::start_supervisor()?;
        let hardware = self.request_hardware()?;
        let device = self.engine.device_of(&hardware)?;
        held.device = Some(device.clone());
        self.bring_up(&mut held, hardware);
        drop(held);
        // Whoever unbinds a device counts first and looks for channels then.
        if dma::unbinding() {
            self.stop();
            return Err(ENODEV);
        }
        device.watch();
        Ok(device)
    }

    fn request_hardware(&self) -> Result<Hardware> {
        let key = self.key;
        Hardware::request(|info| info.channel == key).ok_or(ENODEV)
    }

    fn bring_up(&self, held: &mut Held, hardware: Hardware) {
        self.unordered
            .store(u32::from(hardware.unordered()), Relaxed);
        self.raw.store(hardware.as_ptr(), Release);
        held.hardware = Some(hardware);
        held.pause = FIRST_PAUSE;
        self.queue.lock().service = Service::Up;
    }

    /// Submits fragments until the channel has enough to do. Called by submitters and by callbacks;
    /// does not sleep unless a driver's submission does.
    fn pump(&self) {
        let depth = dma::param_depth().clamp(1, MAX_DEPTH as u32);
        let chan = {
            let mut queue = self.queue.lock();
            if queue.service != Service::Up {
                return;
            }
            queue.submitters += 1;
            self.raw.load(Acquire)
        };
        let mut issue = false;
        loop {
            let (index, task) = {
                let mut queue = self.queue.lock();
                if queue.service != Service::Up
                    || queue.busy.count_ones() >= depth
                    || self.stalled(queue.busy)
                {
                    break;
                }
                let index = queue.busy.trailing_ones();
                let Some((at, fragment)) = queue.claim() else {
                    break;
                };
                queue.busy |= 1 << index;
                let entry = &queue.entries[at];
                let Some((source, destination)) = &entry.maps else {
                    break;
                };
                let task = Task {
                    request: entry.request.clone(),
                    fragment,
                    source: source.clone(),
                    destination: destination.clone(),
                };
                (index as usize, task)
            };
            issue |= self.feed(chan, index, task);
        }
        if issue {
            engine::wake_supervisor_if_dozing();
            // SAFETY: The channel is acquired: it is released only when `submitters` is zero.
            unsafe { dma::issue(chan) };
        }
        let mut queue = self.queue.lock();
        queue.submitters -= 1;
        let retired = !queue.retired.is_empty();
        drop(queue);
        if retired {
            self.work_later();
        }
    }

    /// Whether one of these slots has been in work for so long that nothing should be put behind it.
    fn stalled(&self, busy: u32) -> bool {
        let late = now() - STALL;
        self.slots.iter().enumerate().any(|(index, slot)| {
            let since = slot.since.load(Relaxed);
            busy & (1 << index) != 0 && since != 0 && since < late
        })
    }

    /// Submits the descriptors of one fragment; returns whether there are any.
    fn feed(&self, chan: *mut DmaChan, index: usize, task: Task) -> bool {
        let slot = &self.slots[index];
        let (from, to, length) = task.request.span(task.fragment, 1);
        let (source, destination) = (task.source.clone(), task.destination.clone());
        source.for_device(from, length);
        destination.for_device(to, length);
        slot.failed.store(0, Relaxed);
        slot.pending.store(1, Relaxed);
        slot.since.store(now(), Relaxed);
        // SAFETY: By the slot's invariant the task is ours until `pending` is counted down.
        unsafe { *slot.task.get() = Some(task) };
        let param: *mut c_void = core::ptr::from_ref(slot).cast_mut().cast();
        let unordered = self.unordered.load(Relaxed) != 0;
        let most = self.engine.max_transfer() as usize;
        let (mut done, mut from_hint, mut to_hint) = (0, 0, 0);
        while done < length {
            let (Some((from_address, from_len)), Some((to_address, to_len))) = (
                source.locate(from + done, &mut from_hint),
                destination.locate(to + done, &mut to_hint),
            ) else {
                slot.failed.store(1, Relaxed);
                break;
            };
            let left = usize::try_from(length - done).unwrap_or(usize::MAX);
            let len = from_len.min(to_len).min(left).min(most);
            let last = len == left;
            slot.pending.fetch_add(1, Relaxed);
            // SAFETY: The channel is acquired while we are counted as a submitter; the maps are held
            // by the task, which stays until every callback came or the hardware was stopped; `done`
            // is given its slot, which lives as long as the channel.
            let submitted = unsafe {
                dma::submit(
                    chan,
                    to_address,
                    from_address,
                    len,
                    last || unordered,
                    Self::descriptor_done,
                    param,
                )
            };
            if let Err(error) = submitted {
                slot.failed.store(1, Relaxed);
                if error == EAGAIN {
                    slot.pending.fetch_sub(1, Relaxed);
                    self.engine.refused(len);
                } else {
                    // The count may stay above zero for ever: the supervisor stops the hardware, and
                    // has the task then.
                    self.fail();
                }
                break;
            }
            done += len as u64;
        }
        // Dropped before the count goes down, so that these are never the last ones.
        drop((source, destination));
        self.count_down(slot);
        done != 0
    }

    /// A descriptor has ended. Called in softirq or thread context.
    unsafe extern "C" fn descriptor_done(param: *mut c_void, result: *const DmaResult) {
        let start = now();
        // SAFETY: `feed` passed a slot of a channel that lives until its hardware is stopped.
        let slot = unsafe { &*param.cast::<Slot>() };
        // SAFETY: Passed on.
        if !unsafe { dma::succeeded(result) } {
            slot.failed.store(1, Relaxed);
        }
        // SAFETY: As above.
        let channel = unsafe { &*slot.channel.load(Relaxed) };
        if channel.count_down(slot) {
            if dma::callback_sleeps() {
                // The thread that calls back frees descriptors when we return (idxd), or holds a
                // lock that submitting takes (ae4dma).
                channel.deferred.store(1, Release);
                channel.work_later();
            } else {
                channel.pump();
            }
        }
        TOTAL.add_alone(Counter::Callbacks, 1);
        TOTAL.add_alone(Counter::CallbackTime, (now() - start).unsigned_abs());
    }

    /// One descriptor less; whether this ended a fragment well.
    fn count_down(&self, slot: &Slot) -> bool {
        if slot.pending.fetch_sub(1, Full) != 1 {
            return false;
        }
        if slot.failed.load(Relaxed) != 0 {
            // The slot stays as it is; the supervisor copies the fragment.
            self.fail();
            return false;
        }
        // SAFETY: By the slot's invariant the task is ours now.
        let Some(task) = (unsafe { (*slot.task.get()).take() }) else {
            return false;
        };
        let (_, to, length) = task.request.span(task.fragment, 1);
        task.destination.for_cpu(to, length);
        slot.since.store(0, Relaxed);
        self.engine.moved(length);
        Request::finish(&task.request, task.fragment, Worker::Engine);
        let request = Arc::as_ptr(&task.request);
        // Before the entry may be retired, whose references are then the last.
        drop(task);
        let mut queue = self.queue.lock();
        queue.busy &= !(1 << slot.index.load(Relaxed));
        queue.done(request);
        let retired = !queue.retired.is_empty();
        drop(queue);
        if retired {
            self.work_later();
        }
        true
    }

    /// Stops submitting and calls the supervisor.
    fn fail(&self) {
        {
            let mut queue = self.queue.lock();
            if queue.service == Service::Up {
                queue.service = Service::Failed;
            }
        }
        TOTAL.add_alone(Counter::EngineFailures, 1);
        engine::wake_supervisor();
    }

    /// Called from time to time by the supervisor: gives up what takes too long, repairs what failed.
    /// Returns whether the channel needs watching.
    pub(crate) fn attend(&self) -> bool {
        let (service, busy) = {
            let queue = self.queue.lock();
            (queue.service, queue.busy)
        };
        match service {
            Service::Up => {
                let late = now() - deadline();
                let overdue = self.slots.iter().any(|slot| {
                    let since = slot.since.load(Relaxed);
                    since != 0 && since < late
                });
                if overdue {
                    TOTAL.add_alone(Counter::EngineDeadlines, 1);
                    self.recover(false);
                }
                busy != 0 || overdue
            }
            Service::Failed => {
                self.recover(false);
                true
            }
            Service::Down => {
                self.prove();
                true
            }
            Service::Idle | Service::Gone => false,
        }
    }

    /// Stops the hardware, copies what is missing by the CPU, and lets all requests go.
    fn recover(&self, gone: bool) {
        let mut held = self.held.lock();
        {
            let mut queue = self.queue.lock();
            if queue.service == Service::Gone || (!gone && queue.service == Service::Idle) {
                return;
            }
            queue.service = if gone { Service::Gone } else { Service::Down };
        }
        while self.queue.lock().submitters != 0 {
            dma::nap(1);
        }
        if !gone {
            TOTAL.add_alone(Counter::Quarantined, 1);
            pr_warn!(
                "channel {}.{} of {} does not work: taken out of service\n",
                self.key >> 32,
                self.key as u32,
                self.engine.driver(),
            );
        }
        self.stop_hardware(&mut held, gone);
        // Nothing writes any more and no callback comes.
        let busy = self.queue.lock().busy;
        for (index, slot) in self.slots.iter().enumerate() {
            if busy & (1 << index) == 0 {
                continue;
            }
            // SAFETY: The hardware is stopped, so that the task is ours.
            let Some(task) = (unsafe { (*slot.task.get()).take() }) else {
                continue;
            };
            slot.since.store(0, Relaxed);
            Request::copy(&task.request, task.fragment, 1, Worker::Cpu);
            let request = Arc::as_ptr(&task.request);
            let mut queue = self.queue.lock();
            queue.busy &= !(1 << index);
            queue.done(request);
            drop(queue);
            drop(task);
        }
        self.hand_over();
        held.attempt = now();
    }

    /// Stops the hardware: as its driver says, or by giving it back, which resets it.
    fn stop_hardware(&self, held: &mut Held, release: bool) {
        let stopped = match &held.hardware {
            Some(hardware) => hardware.terminate().is_ok(),
            None => true,
        };
        if !stopped || release {
            self.raw.store(core::ptr::null_mut(), Release);
            held.hardware = None;
        }
        if release {
            held.device = None;
        }
    }

    /// Gives every request of the queue to other channels, or to CPUs.
    fn hand_over(&self) {
        loop {
            let request = {
                let mut queue = self.queue.lock();
                match queue.entries.pop() {
                    Some(entry) => {
                        let request = entry.request.clone();
                        // There is room by the invariant of `retired`.
                        let _ = queue.retired.push_within_capacity(entry);
                        request
                    }
                    None => break,
                }
            };
            if request.wants_engine() {
                Request::pass_on(&request);
            }
        }
        self.drop_retired();
    }

    /// Tries to bring the channel back: it must copy a page right.
    fn prove(&self) {
        let mut held = self.held.lock();
        if held.attempt > now() || self.queue.lock().service != Service::Down {
            return;
        }
        let pause = held.pause;
        held.attempt = now() + i64::from(pause) * 1_000_000;
        held.pause = u32::min(pause * 2, LAST_PAUSE);
        match self.try_out(&mut held) {
            Ok(hardware) => {
                self.bring_up(&mut held, hardware);
                TOTAL.add_alone(Counter::Restored, 1);
            }
            Err((step, error)) => pr_warn!(
                "channel {}.{} of {} stays out of service: {} ({}); next attempt in {} ms\n",
                self.key >> 32,
                self.key as u32,
                self.engine.driver(),
                step,
                error.to_errno(),
                pause,
            ),
        }
    }

    /// Has the hardware, acquired again if it was given back, copy a page.
    fn try_out(&self, held: &mut Held) -> Result<Hardware, (&'static str, Error)> {
        let device = held
            .device
            .clone()
            .ok_or(("its device is not known", ENODEV))?;
        // Nothing is submitted while the channel is out of service; whatever fails below gives the
        // hardware back.
        self.raw.store(core::ptr::null_mut(), Release);
        let hardware = match held.hardware.take() {
            Some(hardware) => hardware,
            None => self
                .request_hardware()
                .map_err(|error| ("its driver does not give it", error))?,
        };
        let trial = Trial::new(&device, held.pause as u8)
            .map_err(|error| ("no memory can be mapped for a trial", error))?;
        let limit = (deadline() / 1_000_000) as u32;
        if let Err(error) = trial.run(&hardware, limit) {
            // In this order: what is given back writes no more.
            drop(hardware);
            drop(trial);
            return Err(("it does not copy a page right", error));
        }
        Ok(hardware)
    }

    /// Whether the channel belongs to this device.
    pub(crate) fn uses(&self, device: &Arc<DmaDevice>) -> bool {
        let held = self.held.lock();
        held.device
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, device))
    }

    /// A device loses its driver: if it is this channel's, the channel is given back before this
    /// returns, and what it holds of the device, but the device itself is not left yet.
    pub(crate) fn leave(&self, dev: *mut bindings::device) -> bool {
        let concerned = {
            let held = self.held.lock();
            held.device
                .as_ref()
                .is_some_and(|device| device.contains(dev))
        };
        if concerned {
            self.stop();
        }
        concerned
    }

    /// Takes the channel out of use: what is in work is awaited or copied, the hardware is given back.
    pub(crate) fn stop(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            self.queue.lock().service = Service::Gone;
            self.called.notify_all();
            drop(thread);
            self.hand_over();
            return;
        }
        self.recover(true);
    }

    /// Whether dmaengine offers the channel. One that it does not offer is in use by others, or
    /// gone; one that it offers again has come back.
    pub(crate) fn offered(&self, offered: bool) {
        let mut queue = self.queue.lock();
        match (queue.service, offered) {
            (Service::Idle, false) => queue.service = Service::Gone,
            (Service::Gone, true) => queue.service = Service::Idle,
            _ => {}
        }
    }

    /// Whether the channel works or might work.
    pub(crate) fn usable(&self) -> bool {
        matches!(self.queue.lock().service, Service::Idle | Service::Up)
    }

    fn drop_retired(&self) {
        loop {
            let entry = self.queue.lock().retired.pop();
            match entry {
                Some(entry) => drop(entry),
                None => break,
            }
        }
    }

    /// Has the workqueue drop what is retired, and submit if that was asked for. Does not sleep.
    fn work_later(&self) {
        // SAFETY: Channels are only ever made inside an `Arc`, and the engine holds one reference for
        // as long as anything can be in its queue; this adds one for the work.
        let this = unsafe {
            let this = Arc::from_raw(core::ptr::from_ref(self));
            core::mem::forget(this.clone());
            this
        };
        let _ = queue::get().enqueue(this);
    }

    /// Starts the kernel thread that serves the channel, if it does not run.
    pub(crate) fn start_thread(this: &Arc<Self>, node: i32) -> Result {
        let mut thread = this.thread.lock();
        if thread.is_some() {
            return Ok(());
        }
        this.queue.lock().service = Service::Up;
        let data: *mut c_void = Arc::as_ptr(this).cast_mut().cast();
        // SAFETY: The thread is stopped by `stop`, which happens before the channel goes.
        let started = unsafe { Thread::run(Self::serve, data, node, c_str!("libcopy/engine")) };
        match started {
            Ok(new) => *thread = Some(new),
            Err(error) => {
                this.queue.lock().service = Service::Gone;
                return Err(error);
            }
        }
        Ok(())
    }

    unsafe extern "C" fn serve(data: *mut c_void) -> c_int {
        // SAFETY: `start_thread` passed the channel, which outlives the thread.
        let this = unsafe { &*data.cast::<Self>() };
        loop {
            let task = {
                let mut queue = this.queue.lock();
                loop {
                    if queue.service != Service::Up {
                        return 0;
                    }
                    if let Some((at, fragment)) = queue.claim() {
                        break Some((queue.entries[at].request.clone(), fragment));
                    }
                    if !queue.retired.is_empty() {
                        break None;
                    }
                    // No signal reaches a kernel thread.
                    let _ = this.called.wait_interruptible(&mut queue);
                }
            };
            if let Some((request, fragment)) = task {
                let bytes = request.span(fragment, 1).2;
                this.engine.moved(bytes);
                Request::copy(&request, fragment, 1, Worker::Engine);
                this.queue.lock().done(Arc::as_ptr(&request));
                crate::shim::cond_resched_interrupted();
            }
            this.drop_retired();
        }
    }
}
