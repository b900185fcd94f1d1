// SPDX-License-Identifier: GPL-2.0

//! [`Channel`]: where requests wait for an engine, and what feeds them to it.
//!
//! A channel is a queue of requests, served in turn, fragment by fragment. A dmaengine channel is
//! fed by [`Channel::pump`]: by the thread that submits a request, and from then on by the
//! completion callback of the fragment before. A channel of a kernel thread is served by that
//! thread.
//!
//! # States
//!
//! Of a dmaengine channel ([`Service`]; what is in brackets is the function that changes it):
//!
//! ```text
//!              the supervisor acquires it for the first request [acquire]
//!            +------------------------------------------------------------+
//!            |                                                            v
//!        +------+      a descriptor ended badly, or the driver         +------+
//!        | Idle |      did not accept one or refuses all lengths       |  Up  |<----------------+
//!        +------+      [fail]                                          +------+                 |
//!         |    ^           +----------------------------------------------+  |                  |
//!         |    |           v                                                 | a fragment has   |
//!    dmaengine |       +--------+                                            | been in work     |
//!    offers it |       | Failed |      nothing more is submitted             | for longer than  |
//!   to others, |       +--------+                                            | the deadline     |
//!    or to us  |           |                                                 | [attend]         |
//!     again    |           | the supervisor stops the hardware, and hands    |                  |
//!    [offered] |           | over what the channel had [attend, recover]     |                  |
//!         |    |           v                                                 |      a page was  |
//!         |    |       +--------+                                            |     copied right |
//!         |    |       |  Down  |<-------------------------------------------+         [prove]  |
//!         |    |       |        |---------------------------------------------------------------+
//!         |    |       +--------+
//!         |    |         |    ^
//!         |    |         +----+  not yet: tried again after a pause that doubles [prove]
//!         v    |
//!        +------+
//!        | Gone |<-- from any other state: the device loses its driver, the parameter `engine`
//!        +------+    says otherwise, or the module is unloaded [leave, stop, recover]
//! ```
//!
//! Fragments are submitted in `Up` only, and the hardware works on them in `Up` and `Failed` only:
//! who leaves these has stopped it. In `Down` it stays acquired if its driver can stop it. A
//! channel that was acquired just when its device leaves, or whose device cannot be watched, goes
//! from `Up` to `Gone` at once.
//!
//! The channel of a kernel thread is `Up` from [`Channel::start_thread`] to [`Channel::stop`],
//! which makes it `Gone`; it starts from either `Idle` or `Gone`, and has no other state.
//!
//! # When the hardware fails
//!
//! A fragment that ends badly, or not in time, stops the channel: nothing more is submitted, and
//! the supervisor ([`crate::engine::supervisor`]) calls [`Channel::recover`]. That stops the
//! hardware first, so that no lost descriptor can write any more; only then are the fragments that
//! are missing given to the threads of their submitters ([`crate::requests::copier`]) and the pages
//! let go. What was not begun goes to another channel of the engine or of its node, to a CPU if
//! there is none. The channel comes back when it has copied a page right.
//!
//! Before the deadline there is a shorter time ([`STALL`]) after which nothing more is put behind a
//! fragment that does not end: a driver may be resetting the channel just then.
//!
//! # When the ring is full
//!
//! A driver that has no descriptor is not broken: its ring is full. The fragment is blocked, keeps
//! its slot and goes on where it stopped, before anything else is claimed: when a descriptor ends,
//! or from the workqueue. Only a driver that gives none for [`PATIENCE`] milliseconds while it has
//! none of ours wants shorter ones.
//!
//! # Locks, and what is bounded
//!
//! The lock order is in engines.rs. `Channel::queue` is taken in callbacks: under it nothing
//! sleeps, no driver is called, no request ends and none is dropped. What is done under it is
//! bounded ([`crate::engine::queue`]). A callback looks at [`ROUNDS`] times as many entries as one
//! hold does, and leaves the rest to the workqueue.
//!
//! What is through ([`Queue::next_retired`]) is dropped by the workqueue, because dropping may
//! unpin pages and unmap them; and by who takes the channel out of use, because the device must not
//! be mapped any more when that returns.

use crate::abstractions::irqlock::{self, IrqLock};
use crate::abstractions::shim::{self, now};
use crate::base::params;
use crate::base::stats::{Counter, TOTAL};
use crate::base::workqueue;
use crate::engine::dma_device::DmaDevice;
use crate::engine::dmaengine::{self, DmaChan, DmaResult, Hardware, Info};
use crate::engine::facts::Engine;
use crate::engine::hardware::Held;
use crate::engine::leaving;
use crate::engine::queue::{Entry, Next, Queue, Service};
use crate::engine::slot::{Slot, Task, MAX_DEPTH};
use crate::engine::supervisor;
use crate::engine::thread::Thread;
use crate::requests::fragments::Worker;
use crate::requests::job::Job;
use kernel::bindings;
use kernel::ffi::{c_int, c_void};
use kernel::list::ListArc;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release};
use kernel::sync::{new_mutex, Arc, CondVar, Mutex};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};
use kernel::{c_str, static_lock_class};

/// Nanoseconds after which nothing is submitted behind a fragment in work. Less than the 100 ms
/// after which `ioatdma` looks after its channels (`COMPLETION_TIMEOUT` in drivers/dma/ioat/dma.h).
const STALL: i64 = 50_000_000;

/// Times that a call of `pump` looks at this many entries without finding a fragment.
const ROUNDS: u32 = 4;

/// Milliseconds for which a driver may refuse descriptors while it has none of ours.
const PATIENCE: u32 = 20;

/// Descriptors after which an interrupt is asked for, besides that of the last one of a fragment: a
/// fragment may need more than a ring has.
const INTERRUPT_EVERY: u32 = 256;

/// How the submission of a fragment ended.
enum Fed {
    /// Everything was submitted, or the channel failed.
    Whole,
    /// The driver had no descriptor for this many bytes.
    Full(usize),
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
    /// Whether the supervisor is to acquire the hardware.
    wanted: Atomic<u32>,
    /// Whether a slot is blocked; what [`Queue::blocked`] says, for callbacks that look without the
    /// lock.
    hindered: Atomic<u32>,
    /// Descriptors that were submitted, and that ended, since the hardware was stopped last.
    submitted: Atomic<u64>,
    ended: Atomic<u64>,
    slots: [Slot<J, Channel<J>>; MAX_DEPTH],
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
        // Bounded by what there is to submit: `pump` asks for another call only if it found
        // something, or for as long as patience lasts.
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
                wanted: Atomic::new(0),
                hindered: Atomic::new(0),
                submitted: Atomic::new(0),
                ended: Atomic::new(0),
                slots: core::array::from_fn(|index| Slot::new(index as u32)),
                held <- new_mutex!(Held::new()),
                queue <- irqlock::new(
                    Queue::new(),
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

    /// Gives the channel a request.
    ///
    /// - `ENODEV`: it does not work any more.
    /// - `EINTR`: the caller was killed while the hardware was acquired.
    pub(crate) fn try_submit(this: &Arc<Self>, request: &Arc<J>) -> Result {
        let maps = if this.engine.is_thread() {
            None
        } else {
            let device = this.device()?;
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
        queue.add(entry);
        Ok(())
    }

    /// The device, after making sure that the hardware is ours and up: the supervisor acquires it.
    fn device(&self) -> Result<Arc<DmaDevice>> {
        if let Some(device) = self.queue.lock().device() {
            return Ok(device);
        }
        self.wanted.store(1, Release);
        supervisor::wait_for(|| self.queue.lock().service != Service::Idle)?;
        self.queue.lock().device().ok_or(ENODEV)
    }

    /// Acquires the hardware of a channel that is `Idle`. Only the supervisor does.
    fn acquire(&self) -> Result {
        let mut held = self.held.lock();
        if self.queue.lock().service != Service::Idle {
            return Ok(());
        }
        let Ok(hardware) = self.request_hardware() else {
            // Others have it, or its driver is gone.
            self.offered(false);
            return Err(ENODEV);
        };
        let device = self.engine.device_of(&hardware)?;
        held.set_device(device.clone());
        self.bring_up(&mut held, hardware);
        drop(held);
        // A device that goes is noted first, and channels are looked for then.
        if device.device().watch().is_err() || leaving::may_have(device.device()) {
            self.stop();
            self.engine.leave_device(&device);
        }
        Ok(())
    }

    fn request_hardware(&self) -> Result<Hardware> {
        Hardware::request(|info| self.is(info)).ok_or(ENODEV)
    }

    fn bring_up(&self, held: &mut Held, hardware: Hardware) {
        self.unordered
            .store(u32::from(hardware.unordered()), Relaxed);
        self.raw.store(hardware.as_ptr(), Release);
        held.hold(hardware);
        let device = held.device().cloned();
        let before = self.queue.lock().enter(Service::Up, device);
        drop(before);
    }

    /// Submits fragments until the channel has enough to do. Called by submitters and by callbacks;
    /// does not sleep unless a driver's submission does.
    ///
    /// Returns whether the driver had no descriptor; then the workqueue tries again. A driver that
    /// has none although it has none of ours either is told shorter ones if `impatient`.
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
        let news = queue.take_news();
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

    /// Whether one of these slots has been in work for so long that nothing should be put behind
    /// it.
    fn stalled(&self, busy: u32) -> bool {
        let late = now() - STALL;
        // Bounded by `MAX_DEPTH`.
        let mut slots = self.slots.iter().enumerate();
        slots.any(|(index, slot)| busy & (1 << index) != 0 && slot.is_late(late))
    }

    /// Submits the descriptors of one fragment, a new one or the rest of one that is blocked;
    /// returns whether there are any, too.
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
        // Bounded by the pieces of a fragment; interrupts are on where submitters call, and a
        // callback's fragments are those that the parameter `engine_depth` allows.
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
            // SAFETY: The channel is acquired while we are counted as a submitter; the maps are
            // held by the task, which stays until every callback came or the hardware was stopped;
            // `done` is given its slot, which lives as long as the channel.
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
    /// `param` is the slot that `feed` passed, of a channel that lives until its hardware is
    /// stopped; `result` is valid or null.
    unsafe extern "C" fn descriptor_done(param: *mut c_void, result: *const DmaResult) {
        let start = now();
        // SAFETY: `feed` passed a slot of a channel that lives until its hardware is stopped.
        let slot = unsafe { &*param.cast::<Slot<J, Self>>() };
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
    fn count_down(&self, slot: &Slot<J, Self>) -> bool {
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
        queue.busy &= !(1 << slot.index);
        // SAFETY: As above, the entry is alive; it is counted as in work until here.
        unsafe { queue.done(&*entry) };
        let news = queue.take_news();
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

    /// Called from time to time by the supervisor: acquires what somebody needs, gives up what
    /// takes too long, repairs what failed. Returns whether the channel needs watching.
    pub(crate) fn attend(&self) -> bool {
        let wanted = self.wanted.xchg(0, Full) != 0;
        let (service, busy) = {
            let queue = self.queue.lock();
            (queue.service, queue.busy)
        };
        match service {
            Service::Up => {
                let late = now() - params::engine_deadline();
                let overdue = self.slots.iter().any(|slot| slot.is_late(late));
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
            Service::Idle if wanted => {
                // Who wants it looks at the state when the round is over.
                let _ = self.acquire();
                true
            }
            Service::Idle | Service::Gone => false,
        }
    }

    /// Stops the hardware, leaves what is missing to CPUs, and lets all requests go.
    fn recover(&self, gone: bool) {
        let mut held = self.held.lock();
        let device = {
            let mut queue = self.queue.lock();
            if queue.service == Service::Gone || (!gone && queue.service == Service::Idle) {
                return;
            }
            queue.enter(if gone { Service::Gone } else { Service::Down }, None)
        };
        drop(device);
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
        // Nobody is inside the driver, and who comes finds the channel out of service.
        self.raw.store(core::ptr::null_mut(), Release);
        held.stop(gone);
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
        held.try_soon();
    }

    /// Gives every request of the queue to other channels, or to CPUs. Nothing is in work any more.
    fn hand_over(&self) {
        // Bounded by the entries, each of which is unlinked in a hold of its own.
        loop {
            let item = self.queue.lock().unlink();
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
        if !held.is_due() || self.queue.lock().service != Service::Down {
            return;
        }
        let pause = held.postpone();
        match held.try_out(|| self.request_hardware()) {
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

    /// A device loses its driver: if it is this channel's, the channel is given back before this
    /// returns, and what it holds of the device, but the device itself is not left yet.
    pub(crate) fn leave(&self, dev: *mut bindings::device) -> bool {
        let concerned = {
            let held = self.held.lock();
            held.device()
                .is_some_and(|device| device.device().contains(dev))
        };
        if concerned {
            self.stop();
        }
        concerned
    }

    /// Takes the channel out of use: what is in work is awaited or left to CPUs, the hardware is
    /// given back.
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

    /// Whether the channel works.
    pub(crate) fn is_up(&self) -> bool {
        self.queue.lock().service == Service::Up
    }

    /// Whether the channel works or might work.
    pub(crate) fn usable(&self) -> bool {
        matches!(self.queue.lock().service, Service::Idle | Service::Up)
    }

    /// Drops what is retired, one by one and not under the lock. May sleep.
    fn drop_retired(&self) {
        loop {
            let item = self.queue.lock().next_retired();
            match item {
                Some(item) => drop(item),
                None => return,
            }
            shim::cond_resched_interrupted();
        }
    }

    /// Has the workqueue drop what is retired, and submit if that was asked for. Does not sleep.
    fn work_later(&self) {
        // SAFETY: Channels are only ever made inside an `Arc`, and the engine holds one reference
        // for as long as anything can be in its queue; this adds one for the work.
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
        shim::set_freezable();
        loop {
            shim::try_to_freeze();
            let (next, news) = {
                let mut queue = this.queue.lock();
                // One look per hold: waiting lets go of the lock.
                loop {
                    if queue.service != Service::Up {
                        return 0;
                    }
                    let next = queue.next();
                    let news = queue.take_news();
                    if news || !matches!(next, Next::Nothing) {
                        break (next, news);
                    }
                    // No signal reaches a kernel thread.
                    let _ = this.called.wait_interruptible_freezable(&mut queue);
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
