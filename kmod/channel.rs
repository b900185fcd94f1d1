// SPDX-License-Identifier: GPL-2.0

//! [`Channel`]: where requests wait for an engine, and what feeds them to it.
//!
//! A channel is a queue of requests, served in turn, fragment by fragment. A dmaengine channel is fed
//! by [`Channel::pump`]: by the thread that submits a request, and from then on by the completion callback of
//! the fragment before. A channel of a kernel thread is served by that thread.
//!
//! # When the hardware fails
//!
//! A fragment that ends badly, or not in time, stops the channel: nothing more is submitted, and the
//! supervisor ([`crate::supervisor`]) calls [`Channel::recover`]. That stops the hardware first, so that
//! no lost descriptor can write any more; only then are the fragments that are missing given to the
//! threads of their submitters ([`crate::copier`]) and the pages let go. What was not begun goes to
//! another channel of the engine or of its node, to a CPU if there is none. The channel comes back when
//! it has copied a page right.
//!
//! Before the deadline there is a shorter time ([`STALL`]) after which nothing more is put behind a
//! fragment that does not end: a driver may be resetting the channel just then.
//!
//! # When the ring is full
//!
//! A driver that has no descriptor is not broken: its ring is full. The fragment is blocked, keeps its
//! slot and goes on where it stopped, before anything else is claimed: when a descriptor ends, or from
//! the workqueue. Only a driver that gives none for [`PATIENCE`] milliseconds while it has none of ours
//! wants shorter ones.
//!
//! # Locks, and what is bounded
//!
//! The lock order is in engines.rs. `Channel::queue` is taken in callbacks: under it nothing sleeps, no
//! driver is called, no request ends and none is dropped. Nothing is searched under it: an entry is
//! unlinked where it stands, and at most [`SCAN`] entries are looked at per hold. A callback looks at
//! [`ROUNDS`] times as many and leaves the rest to the workqueue.
//!
//! What is through ([`Queue::retired`]) is dropped by the workqueue, because dropping may unpin pages
//! and unmap them; and by who takes the channel out of use, because the device must not be mapped any
//! more when that returns.

use crate::dma_device::DmaDevice;
use crate::dma_map::DmaMap;
use crate::dmaengine::{self, DmaChan, DmaResult, Hardware, Info};
use crate::engine::Engine;
use crate::fragments::Worker;
use crate::irqlock::{self, IrqLock};
use crate::job::Job;
use crate::leaving;
use crate::params;
use crate::shim;
use crate::stats::{Counter, TOTAL};
use crate::supervisor;
use crate::thread::Thread;
use crate::trial::Trial;
use crate::workqueue;
use core::cell::UnsafeCell;
use kernel::bindings;
use kernel::ffi::{c_int, c_void};
use kernel::list::{impl_list_arc_safe, impl_list_item, List, ListArc, ListLinks};
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

/// Entries that are looked at while the queue is locked.
const SCAN: u32 = 32;

/// Times that a call of `pump` looks at this many entries without finding a fragment.
const ROUNDS: u32 = 4;

/// Milliseconds for which a driver may refuse descriptors while it has none of ours.
const PATIENCE: u32 = 20;

/// Descriptors after which an interrupt is asked for, besides that of the last one of a fragment: a
/// fragment may need more than a ring has.
const INTERRUPT_EVERY: u32 = 256;

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

/// Which list of the queue an entry is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// [`Queue::ready`].
    Ready,
    /// [`Queue::draining`].
    Draining,
    /// [`Queue::retired`], or none any more.
    Retired,
}

/// What a request needs at a channel. The maps go before the request, which holds the pages.
#[pin_data]
struct Entry<J: Job> {
    maps: Option<(Arc<DmaMap>, Arc<DmaMap>)>,
    request: Arc<J>,
    /// Changed with the queue locked.
    state: UnsafeCell<EntryState>,
    #[pin]
    links: ListLinks,
}

struct EntryState {
    /// Fragments in work here, and one more while the request is being failed. While this is not
    /// zero the queue holds a reference.
    working: u32,
    place: Place,
}

// SAFETY: `state` is only touched with the queue locked; the rest may be used from any thread.
unsafe impl<J: Job> Send for Entry<J> {}
// SAFETY: As above.
unsafe impl<J: Job> Sync for Entry<J> {}

impl_list_arc_safe! {
    impl{J: Job} ListArcSafe<0> for Entry<J> { untracked; }
}

impl_list_item! {
    impl{J: Job} ListItem<0> for Entry<J> { using ListLinks { self.links }; }
}

impl<J: Job> Entry<J> {
    fn new(maps: Option<(Arc<DmaMap>, Arc<DmaMap>)>, request: Arc<J>) -> Result<ListArc<Self>> {
        ListArc::pin_init(
            try_pin_init!(Self {
                maps,
                request,
                state: UnsafeCell::new(EntryState {
                    working: 0,
                    place: Place::Ready,
                }),
                links <- ListLinks::new(),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )
    }
}

/// What there is to do next.
enum Next<J: Job> {
    /// A fragment, claimed.
    Fragment(Arc<Entry<J>>, u64),
    /// A request whose regions' owner died is to be failed, by [`Channel::bury`].
    Orphan(Arc<Entry<J>>),
    /// Ask again: this many entries had nothing to do.
    Again,
    /// Nothing.
    Nothing,
}

struct Queue<J: Job> {
    service: Service,
    /// Threads that are inside the driver to submit.
    submitters: u32,
    /// Entries with fragments to claim; the first one is next.
    ready: List<Entry<J>>,
    /// Entries without, of which fragments are in work.
    draining: List<Entry<J>>,
    /// Entries that are through, to be dropped where that is allowed.
    retired: List<Entry<J>>,
    /// Whether there are retired ones that the workqueue does not know of.
    news: bool,
    /// Slots in use, one bit each.
    busy: u32,
    /// Those of them whose fragment was not submitted as a whole.
    blocked: u32,
}

impl<J: Job> Queue<J> {
    /// The state of an entry of this queue.
    ///
    /// # Safety
    ///
    /// The entry was only ever given to this queue, which is locked since `self` is borrowed.
    unsafe fn state<'a>(&'a mut self, entry: &'a Entry<J>) -> &'a mut EntryState {
        // SAFETY: The state is only touched with the queue locked, and one at a time, because the
        // result keeps the queue borrowed.
        unsafe { &mut *entry.state.get() }
    }

    /// Puts an entry where its state says.
    fn put(&mut self, item: ListArc<Entry<J>>) {
        let ready = item.request.wants_engine();
        // SAFETY: An entry belongs to one queue, which is this one.
        let state = unsafe { self.state(&item) };
        state.place = match (ready, state.working) {
            (true, _) => Place::Ready,
            (false, 0) => Place::Retired,
            _ => Place::Draining,
        };
        match state.place {
            Place::Ready => self.ready.push_back(item),
            Place::Draining => self.draining.push_back(item),
            Place::Retired => {
                self.retired.push_back(item);
                self.news = true;
            }
        }
    }

    /// Puts an entry that nothing is in work of to the retired ones.
    fn retire(&mut self, item: ListArc<Entry<J>>) {
        // SAFETY: An entry belongs to one queue, which is this one.
        unsafe { self.state(&item) }.place = Place::Retired;
        self.retired.push_back(item);
        self.news = true;
    }

    /// Claims a fragment of the first request that has one, which goes to the end of the line.
    fn next(&mut self) -> Next<J> {
        for looked in 1..=SCAN {
            let Some(item) = self.ready.pop_front() else {
                return Next::Nothing;
            };
            let orphan = item.request.is_orphan() && item.request.wants_engine();
            let claimed = if orphan {
                None
            } else {
                item.request.claim(Worker::Engine, 1)
            };
            if !orphan && claimed.is_none() {
                self.put(item);
                TOTAL.note(Counter::LongestHold, looked.into());
                continue;
            }
            // SAFETY: An entry belongs to one queue, which is this one.
            unsafe { self.state(&item) }.working += 1;
            let entry = item.clone_arc();
            self.put(item);
            return match claimed {
                Some((fragment, _)) => Next::Fragment(entry, fragment),
                None => Next::Orphan(entry),
            };
        }
        Next::Again
    }

    /// One fragment of an entry less in work.
    ///
    /// # Safety
    ///
    /// It was counted as in work, by this queue; so the entry is in one of its lists.
    unsafe fn done(&mut self, entry: &Entry<J>) {
        // SAFETY: The caller's promise.
        let state = unsafe { self.state(entry) };
        state.working -= 1;
        if state.working != 0 || entry.request.wants_engine() {
            return;
        }
        let list = match state.place {
            Place::Ready => &mut self.ready,
            Place::Draining => &mut self.draining,
            Place::Retired => return,
        };
        // SAFETY: `place` is the list that the entry is in.
        if let Some(item) = unsafe { list.remove(entry) } {
            self.retire(item);
        }
    }
}

/// A fragment in work. The entry is referred to by the queue, too, for as long.
struct Task<J: Job> {
    entry: Arc<Entry<J>>,
    fragment: u64,
    /// Bytes that were submitted.
    submitted: u64,
}

/// How the submission of a fragment ended.
enum Fed {
    /// Everything was submitted, or the channel failed.
    Whole,
    /// The driver had no descriptor for this many bytes.
    Full(usize),
}

/// Where a fragment is while the hardware works on it.
///
/// # Invariants
///
/// `task` belongs to the thread that set the slot's bit in [`Queue::busy`] until the last of `pending` is
/// counted down, then to who did that; to the supervisor while the hardware is stopped.
struct Slot<J: Job> {
    channel: Atomic<*mut Channel<J>>,
    index: Atomic<u32>,
    /// Descriptors under way, and one more while they are being submitted.
    pending: Atomic<u32>,
    /// Whether one of them ended badly.
    failed: Atomic<u32>,
    /// When the fragment was submitted, in nanoseconds; 0: not in work.
    since: Atomic<i64>,
    task: UnsafeCell<Option<Task<J>>>,
}

// SAFETY: See the invariant: at any time one thread has the task.
unsafe impl<J: Job> Send for Slot<J> {}
// SAFETY: As above.
unsafe impl<J: Job> Sync for Slot<J> {}

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
pub(crate) struct Channel<J: Job> {
    engine: Arc<Engine>,
    /// Which one it is, for dmaengine.
    key: u64,
    /// The hardware while it is up, for callbacks: it is released only when nobody submits.
    raw: Atomic<*mut DmaChan>,
    unordered: Atomic<u32>,
    /// Whether the workqueue is to submit, because a callback must not.
    deferred: Atomic<u32>,
    /// Whether a slot is blocked; what [`Queue::blocked`] says, for callbacks that look without the lock.
    hindered: Atomic<u32>,
    /// Descriptors that were submitted, and that ended, since the hardware was stopped last.
    submitted: Atomic<u64>,
    ended: Atomic<u64>,
    slots: [Slot<J>; MAX_DEPTH],
    #[pin]
    held: Mutex<Held>,
    #[pin]
    queue: IrqLock<Queue<J>>,
    /// Notified when there is something for the channel's kernel thread.
    #[pin]
    called: CondVar,
    /// That thread.
    #[pin]
    thread: Mutex<Option<Thread>>,
    #[pin]
    work: Work<Channel<J>>,
}

impl_has_work! {
    impl{J: Job} HasWork<Self> for Channel<J> { self.work }
}

impl<J: Job> WorkItem for Channel<J> {
    type Pointer = Arc<Channel<J>>;

    // What is retired is dropped here, because that may unpin pages and unmap them.
    fn run(this: Arc<Channel<J>>) {
        let mut naps = 0;
        // Bounded by what there is to submit: `pump` asks for another call only if it found something,
        // or for as long as patience lasts.
        while this.deferred.xchg(0, Full) != 0 {
            let refused = this.pump(naps >= PATIENCE);
            shim::cond_resched_interrupted();
            if refused && this.is_idle() {
                naps += 1;
                shim::nap(1);
                this.deferred.store(1, Release);
            } else {
                naps = 0;
            }
        }
        this.drop_retired();
    }
}

fn now() -> i64 {
    // Never zero, which stands for "not in work".
    // SAFETY: No preconditions.
    i64::max(unsafe { bindings::ktime_get() }, 1)
}

impl<J: Job> Channel<J> {
    /// A channel that nobody has acquired yet.
    pub(crate) fn new(engine: &Arc<Engine>, key: u64) -> Result<Arc<Self>> {
        let this = Arc::pin_init(
            pin_init!(Self {
                engine: engine.clone(),
                key,
                raw: Atomic::new(core::ptr::null_mut()),
                unordered: Atomic::new(0),
                deferred: Atomic::new(0),
                hindered: Atomic::new(0),
                submitted: Atomic::new(0),
                ended: Atomic::new(0),
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
                        ready: List::new(),
                        draining: List::new(),
                        retired: List::new(),
                        news: false,
                        busy: 0,
                        blocked: 0,
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

    /// Whether it is this channel of dmaengine.
    pub(crate) fn is(&self, info: &Info) -> bool {
        self.key == info.channel && self.engine.has(info)
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
    pub(crate) fn submit(this: &Arc<Self>, request: &Arc<J>) {
        match Self::try_submit(this, request) {
            Ok(()) => {}
            Err(error) if error == ENODEV => J::pass_on(request),
            Err(_) => J::take_over(request),
        }
    }

    /// Gives the channel a request.
    ///
    /// - `ENODEV`: it does not work any more.
    pub(crate) fn try_submit(this: &Arc<Self>, request: &Arc<J>) -> Result {
        let maps = if this.engine.is_thread() {
            None
        } else {
            let device = this.acquire()?;
            let alignment = this.engine.alignment();
            let source = device.map(request.source())?;
            let destination = device.map(request.destination())?;
            if request.alignment() & (alignment - 1) != 0
                || !source.aligned(alignment)
                || !destination.aligned(alignment)
            {
                return Err(EINVAL);
            }
            Some((source, destination))
        };
        this.enqueue(Entry::new(maps, request.clone())?)?;
        if this.engine.is_thread() {
            // Whoever found the queue empty before has slept since `enqueue` took the lock.
            this.called.notify_all();
        } else {
            this.pump(false);
        }
        Ok(())
    }

    fn enqueue(&self, entry: ListArc<Entry<J>>) -> Result {
        let mut queue = self.queue.lock();
        if queue.service != Service::Up {
            drop(queue);
            // Dropped after the lock is released.
            drop(entry);
            return Err(ENODEV);
        }
        queue.ready.push_back(entry);
        Ok(())
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
        supervisor::start()?;
        let hardware = self.request_hardware()?;
        let device = self.engine.device_of(&hardware)?;
        held.device = Some(device.clone());
        self.bring_up(&mut held, hardware);
        drop(held);
        // A device that goes is noted first, and channels are looked for then.
        if device.device().watch().is_err() || leaving::may_have(device.device()) {
            self.stop();
            self.engine.leave_device(&device);
            return Err(ENODEV);
        }
        Ok(device)
    }

    fn request_hardware(&self) -> Result<Hardware> {
        Hardware::request(|info| self.is(info)).ok_or(ENODEV)
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
    ///
    /// Returns whether the driver had no descriptor; then the workqueue tries again. A driver that has
    /// none although it has none of ours either is told shorter ones if `impatient`.
    fn pump(&self, impatient: bool) -> bool {
        let depth = params::engine_depth().clamp(1, MAX_DEPTH as u32);
        let chan = {
            let mut queue = self.queue.lock();
            if queue.service != Service::Up {
                return false;
            }
            queue.submitters += 1;
            self.raw.load(Acquire)
        };
        let (mut issue, mut refused, mut later, mut rounds) = (false, false, false, 0);
        // Bounded by the depth, by `ROUNDS`, and by what ends meanwhile.
        loop {
            let (index, task) = {
                let mut queue = self.queue.lock();
                if queue.service != Service::Up {
                    break;
                }
                if queue.blocked != 0 {
                    let index = queue.blocked.trailing_zeros();
                    queue.blocked &= !(1 << index);
                    self.hindered.store(u32::from(queue.blocked != 0), Relaxed);
                    (index as usize, None)
                } else {
                    if queue.busy.count_ones() >= depth || self.stalled(queue.busy) {
                        break;
                    }
                    match queue.next() {
                        Next::Fragment(entry, fragment) => {
                            let index = queue.busy.trailing_ones();
                            queue.busy |= 1 << index;
                            let task = Task {
                                entry,
                                fragment,
                                submitted: 0,
                            };
                            (index as usize, Some(task))
                        }
                        Next::Nothing => break,
                        other => {
                            drop(queue);
                            if let Next::Orphan(entry) = other {
                                self.bury(entry);
                            }
                            rounds += 1;
                            if rounds > ROUNDS {
                                later = true;
                                break;
                            }
                            continue;
                        }
                    }
                }
            };
            let before = self.ended.load(Acquire);
            let (some, fed) = self.feed(chan, index, task);
            issue |= some;
            let Fed::Full(len) = fed else {
                continue;
            };
            if impatient && self.is_idle() {
                if !self.engine.refused(len) {
                    // The slot stays as it is, for the supervisor.
                    self.slots[index].failed.store(1, Relaxed);
                    self.count_down(&self.slots[index]);
                    break;
                }
            } else {
                refused = true;
            }
            let mut queue = self.queue.lock();
            queue.blocked |= 1 << index;
            self.hindered.xchg(1, Full);
            // What ended before this found nothing blocked; what ends from here on does.
            if refused && self.ended.load(Acquire) == before {
                later = true;
                break;
            }
        }
        if issue {
            supervisor::wake_if_dozing();
            // SAFETY: The channel is acquired: it is released only when `submitters` is zero.
            unsafe { dmaengine::issue(chan) };
        }
        let mut queue = self.queue.lock();
        queue.submitters -= 1;
        let news = core::mem::take(&mut queue.news);
        drop(queue);
        if later {
            self.deferred.store(1, Release);
        }
        if news || later {
            self.work_later();
        }
        refused
    }

    /// Whether no descriptor of ours is under way.
    fn is_idle(&self) -> bool {
        self.ended.load(Acquire) == self.submitted.load(Relaxed)
    }

    /// Fails a request whose regions' owner died. The lock is not held, because that ends it.
    fn bury(&self, entry: Arc<Entry<J>>) {
        J::fail_orphan(&entry.request);
        self.put_down(entry);
    }

    /// One fragment of an entry less in work.
    fn put_down(&self, entry: Arc<Entry<J>>) {
        let raw = Arc::as_ptr(&entry);
        // The queue has a reference until `done`, so that this is not the last one.
        drop(entry);
        let mut queue = self.queue.lock();
        // SAFETY: As above, the entry is alive; it is counted as in work until here.
        unsafe { queue.done(&*raw) };
    }

    /// Whether one of these slots has been in work for so long that nothing should be put behind it.
    fn stalled(&self, busy: u32) -> bool {
        let late = now() - STALL;
        self.slots.iter().enumerate().any(|(index, slot)| {
            let since = slot.since.load(Relaxed);
            busy & (1 << index) != 0 && since != 0 && since < late
        })
    }

    /// Submits the descriptors of one fragment, a new one or the rest of one that is blocked; returns
    /// whether there are any, too.
    fn feed(&self, chan: *mut DmaChan, index: usize, new: Option<Task<J>>) -> (bool, Fed) {
        let slot = &self.slots[index];
        let fresh = new.is_some();
        if fresh {
            slot.failed.store(0, Relaxed);
            slot.pending.store(1, Relaxed);
            // SAFETY: By the slot's invariant the task is ours until `pending` is counted down.
            unsafe { *slot.task.get() = new };
        }
        // A fragment is late when nothing more of it could be submitted for a while.
        slot.since.store(now(), Relaxed);
        // SAFETY: As above: `pending` includes one for who submits, also while the slot is blocked.
        let Some(task) = (unsafe { (*slot.task.get()).as_mut() }) else {
            return (false, Fed::Whole);
        };
        let (from, to, length) = task.entry.request.span(task.fragment, 1);
        let Some((source, destination)) = &task.entry.maps else {
            return (false, Fed::Whole);
        };
        if fresh {
            source.for_device(from, length);
            destination.for_device(to, length);
        }
        let param: *mut c_void = core::ptr::from_ref(slot).cast_mut().cast();
        let unordered = self.unordered.load(Relaxed) != 0;
        let most = self.engine.max_transfer() as usize;
        let (mut count, mut from_hint, mut to_hint) = (0, 0, 0);
        // Bounded by the pieces of a fragment; interrupts are on where submitters call, and a callback's
        // fragments are those that the parameter `engine_depth` allows.
        while task.submitted < length {
            let done = task.submitted;
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
            count += 1;
            slot.pending.fetch_add(1, Relaxed);
            self.submitted.fetch_add(1, Relaxed);
            // SAFETY: The channel is acquired while we are counted as a submitter; the maps are held
            // by the task, which stays until every callback came or the hardware was stopped; `done`
            // is given its slot, which lives as long as the channel.
            let submitted = unsafe {
                dmaengine::submit(
                    chan,
                    to_address,
                    from_address,
                    len,
                    last || unordered || count % INTERRUPT_EVERY == 0,
                    Self::descriptor_done,
                    param,
                )
            };
            if let Err(error) = submitted {
                if error == EAGAIN {
                    self.submitted.fetch_sub(1, Relaxed);
                    // Not the last one: we hold one more.
                    slot.pending.fetch_sub(1, Relaxed);
                    return (count > 1, Fed::Full(len));
                }
                slot.failed.store(1, Relaxed);
                // The count may stay above zero for ever: the supervisor stops the hardware, and
                // has the task then.
                self.fail();
                break;
            }
            task.submitted += len as u64;
        }
        self.count_down(slot);
        (count != 0, Fed::Whole)
    }

    /// A descriptor has ended. Called in softirq or thread context.
    ///
    /// # Safety
    ///
    /// `param` is the slot that `feed` passed, of a channel that lives until its hardware is stopped;
    /// `result` is valid or null.
    unsafe extern "C" fn descriptor_done(param: *mut c_void, result: *const DmaResult) {
        let start = now();
        // SAFETY: `feed` passed a slot of a channel that lives until its hardware is stopped.
        let slot = unsafe { &*param.cast::<Slot<J>>() };
        // SAFETY: The driver calls this with a result that is valid or null.
        if !unsafe { dmaengine::succeeded(result) } {
            slot.failed.store(1, Relaxed);
        }
        // SAFETY: As above.
        let channel = unsafe { &*slot.channel.load(Relaxed) };
        channel.ended.fetch_add(1, Full);
        if channel.count_down(slot) || channel.hindered.load(Relaxed) != 0 {
            if dmaengine::callback_sleeps() {
                // The thread that calls back frees descriptors when we return (idxd), or holds a
                // lock that submitting takes (ae4dma).
                channel.deferred.store(1, Release);
                channel.work_later();
            } else {
                channel.pump(false);
            }
        }
        TOTAL.add_alone(Counter::Callbacks, 1);
        TOTAL.add_alone(Counter::CallbackTime, (now() - start).unsigned_abs());
    }

    /// One descriptor less; whether this ended a fragment well.
    fn count_down(&self, slot: &Slot<J>) -> bool {
        if slot.pending.fetch_sub(1, Full) != 1 {
            return false;
        }
        if slot.failed.load(Relaxed) != 0 {
            // The slot stays as it is, for the supervisor.
            self.fail();
            return false;
        }
        // SAFETY: By the slot's invariant the task is ours now.
        let Some(task) = (unsafe { (*slot.task.get()).take() }) else {
            return false;
        };
        let (_, to, length) = task.entry.request.span(task.fragment, 1);
        if let Some((_, destination)) = &task.entry.maps {
            destination.for_cpu(to, length);
        }
        slot.since.store(0, Relaxed);
        self.engine.moved(length);
        J::finish(&task.entry.request, task.fragment, Worker::Engine);
        let entry = Arc::as_ptr(&task.entry);
        // The queue has a reference until `done`, so that this is not the last one.
        drop(task);
        let mut queue = self.queue.lock();
        queue.busy &= !(1 << slot.index.load(Relaxed));
        // SAFETY: As above, the entry is alive; it is counted as in work until here.
        unsafe { queue.done(&*entry) };
        let news = core::mem::take(&mut queue.news);
        drop(queue);
        if news {
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
        supervisor::wake();
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
                let late = now() - params::engine_deadline();
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

    /// Stops the hardware, leaves what is missing to CPUs, and lets all requests go.
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
            shim::nap(1);
        }
        if !gone {
            TOTAL.add_alone(Counter::Quarantined, 1);
            if shim::may_warn() {
                pr_warn!(
                    "channel {}.{} of {} does not work: taken out of service\n",
                    self.key >> 32,
                    self.key as u32,
                    self.engine.driver_name(),
                );
            }
        }
        self.stop_hardware(&mut held, gone);
        // Nothing writes any more and no callback comes.
        let busy = {
            let mut queue = self.queue.lock();
            queue.blocked = 0;
            queue.busy
        };
        self.hindered.store(0, Relaxed);
        self.submitted.store(0, Relaxed);
        self.ended.store(0, Relaxed);
        for (index, slot) in self.slots.iter().enumerate() {
            if busy & (1 << index) == 0 {
                continue;
            }
            // SAFETY: The hardware is stopped, so that the task is ours.
            let Some(task) = (unsafe { (*slot.task.get()).take() }) else {
                continue;
            };
            slot.since.store(0, Relaxed);
            J::lose(&task.entry.request, task.fragment);
            self.queue.lock().busy &= !(1 << index);
            self.put_down(task.entry);
        }
        self.hand_over();
        if gone {
            self.drop_retired();
        } else {
            self.work_later();
        }
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

    /// Gives every request of the queue to other channels, or to CPUs. Nothing is in work any more.
    fn hand_over(&self) {
        // Bounded by the entries, each of which is unlinked in a hold of its own.
        loop {
            let item = {
                let mut queue = self.queue.lock();
                match queue.ready.pop_front() {
                    None => queue.draining.pop_front(),
                    some => some,
                }
            };
            let Some(item) = item else {
                return;
            };
            if item.request.wants_engine() {
                J::pass_on(&item.request);
            }
            self.queue.lock().retire(item);
        }
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
            Err((step, error)) if shim::may_warn() => pr_warn!(
                "channel {}.{} of {} stays out of service: {} ({}); next attempt in {} ms\n",
                self.key >> 32,
                self.key as u32,
                self.engine.driver_name(),
                step,
                error.to_errno(),
                pause,
            ),
            Err(_) => {}
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
        let trial = Trial::new(device.device(), held.pause as u8)
            .map_err(|error| ("no memory can be mapped for a trial", error))?;
        let limit = (params::engine_deadline() / 1_000_000) as u32;
        if let Err(error) = trial.run(&hardware, limit) {
            // In this order: what is given back writes no more.
            drop(hardware);
            drop(trial);
            return Err(("it does not copy a page right", error));
        }
        Ok(hardware)
    }

    /// A device loses its driver: if it is this channel's, the channel is given back before this
    /// returns, and what it holds of the device, but the device itself is not left yet.
    pub(crate) fn leave(&self, dev: *mut bindings::device) -> bool {
        let concerned = {
            let held = self.held.lock();
            held.device
                .as_ref()
                .is_some_and(|device| device.device().contains(dev))
        };
        if concerned {
            self.stop();
        }
        concerned
    }

    /// Takes the channel out of use: what is in work is awaited or left to CPUs, the hardware is given back.
    pub(crate) fn stop(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            self.queue.lock().service = Service::Gone;
            self.called.notify_all();
            drop(thread);
            self.hand_over();
            self.drop_retired();
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

    /// Drops what is retired, one by one and not under the lock. May sleep.
    fn drop_retired(&self) {
        loop {
            let item = self.queue.lock().retired.pop_front();
            match item {
                Some(item) => drop(item),
                None => return,
            }
            shim::cond_resched_interrupted();
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
        let _ = workqueue::enqueue(this);
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
                // What others gave it meanwhile.
                this.hand_over();
                this.work_later();
                return Err(error);
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// `data` is a channel that outlives the thread.
    unsafe extern "C" fn serve(data: *mut c_void) -> c_int {
        // SAFETY: `start_thread` passed the channel, which outlives the thread.
        let this = unsafe { &*data.cast::<Self>() };
        loop {
            let (next, news) = {
                let mut queue = this.queue.lock();
                loop {
                    if queue.service != Service::Up {
                        return 0;
                    }
                    let next = queue.next();
                    let news = core::mem::take(&mut queue.news);
                    if news || !matches!(next, Next::Nothing) {
                        break (next, news);
                    }
                    // No signal reaches a kernel thread.
                    let _ = this.called.wait_interruptible(&mut queue);
                }
            };
            match next {
                Next::Fragment(entry, fragment) => {
                    this.engine.moved(entry.request.span(fragment, 1).2);
                    J::copy(&entry.request, fragment, 1, Worker::Engine);
                    this.put_down(entry);
                }
                Next::Orphan(entry) => this.bury(entry),
                Next::Again | Next::Nothing => {}
            }
            if news {
                this.work_later();
            }
            shim::cond_resched_interrupted();
        }
    }
}
