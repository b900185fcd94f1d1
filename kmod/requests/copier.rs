// SPDX-License-Identifier: GPL-2.0

//! [`Copier`]: the thread of a process in which CPUs do what it has asked an engine for, whatever
//! files it has; and [`Queue`]: what it has asked for through one of them.
//!
//! What no engine does, and what takes long besides (checksums), is work of the process that
//! submitted the request. It is done by a *user worker*, a thread of that process which never
//! leaves the kernel (`vhost_task_create()`, `kernel/vhost_task.c`). It counts in the process's
//! `RLIMIT_NPROC`, in `pids.max` and the memory of its cgroup, is scheduled, stopped, frozen and
//! killed with it, and runs where and as the thread that started it may. Requests of a process that
//! is stopped wait until it goes on, unless somebody else copies ([`crate::uapi::REQUEST_SWITCH`]).
//!
//! # From start to end
//!
//! 1. [`Copier::lease`], in the process's own context, starts the worker when a request is
//!    submitted and there is none. If the process may have no more threads, nothing is submitted.
//! 2. It stays while the process has requests that have not ended, and [`IDLE_MS`] longer.
//! 3. It says itself that it is through: because nothing comes ([`Copier::retire`]), because the
//!    process has closed its last file ([`Copier::leave`]), or because it is killed. From then on
//!    it is not the process's worker any more, and takes nothing; the next request starts another
//!    one.
//! 4. The queue for this (`workqueue::enqueue_reaping`) waits for its end and frees it.
//!
//! # Who waits for whom
//!
//! Nobody waits for a worker, which gets as little of a CPU as its process does, or none while that
//! is stopped. Who closes a file takes what is queued for it, which has failed, and ends it
//! himself; what the worker is doing at that time it ends itself. Files take turns at the worker.
//! The workqueue in 4. waits only for workers that have just run. Only unloading ([`Guard`]) waits
//! for all.
//!
//! # Killed
//!
//! The worker stops in the middle of what it copies ([`CpuWork::work`]), and what is queued fails
//! ([`CpuWork::abandon`]), also what is queued until another one is started: nobody else pays for
//! it.
//!
//! # Locks
//!
//! `starting` is held while a worker is made, by threads of its own process only. `state`, which
//! also protects the queues, comes after it. It is a spinlock, so that nobody waits for a worker
//! that holds it and has no CPU, and because the worker looks for work when it is about to sleep
//! already. Under it a worker that is in `state` has not ended, so that it can be woken.
//!
//! A kernel without user workers (`CONFIG_VHOST_TASK`) has the workqueue do this work.
//!
//! Since Linux 6.18 a cgroup whose quota is used up stops its tasks where they return to user
//! space, which a user worker never does. So it is not stopped; what it uses is taken from the next
//! share of its cgroup.

use crate::abstractions::declarations as raw;
use crate::abstractions::errno;
use crate::abstractions::shim;
use crate::base::workqueue;
use kernel::bindings;
use kernel::error::from_err_ptr;
use kernel::ffi::c_void;
use kernel::list::{
    impl_list_arc_safe, impl_list_item, AtomicTracker, List, ListArc, ListItem, ListLinks,
    TryNewListArc,
};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed};
use kernel::sync::{new_mutex, new_spinlock, Arc, LockedBy, Mutex, SpinLock};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

/// Milliseconds without a request after which a worker ends: starting one costs far less than as
/// much waiting, and a process with two threads is refused some system calls
/// (`unshare(CLONE_NEWUSER)`).
const IDLE_MS: u32 = 2_000;

/// What the worker does.
pub(crate) trait CpuWork: ListItem<0> + TryNewListArc<0> + Send + Sync + 'static {
    /// Does what there is to do by now: copies what nobody has claimed, if CPUs are to, and ends
    /// what is settled. May sleep, and take long. Returns whether it is through: if not, a signal
    /// wants the caller, and this is to be called again. What has failed is through at once.
    fn work(this: &Arc<Self>) -> bool;

    /// Has this fail: the process that it works for is being killed.
    fn abandon(this: &Arc<Self>);
}

struct State<W: CpuWork> {
    /// Those with something in them. The first is served next, and goes behind the others.
    queues: List<Queue<W>>,
    /// The worker, unless it has said that it ends.
    worker: Option<Arc<Worker<W>>>,
    /// Files that the process has open. With none it is over: there will be none again.
    files: u64,
    /// Whether something was submitted since the worker last looked.
    used: bool,
    /// The worker is being killed, or the last one was.
    killed: bool,
}

impl<W: CpuWork> State<W> {
    fn is(&self, worker: &Worker<W>) -> bool {
        let current = self.worker.as_ref();
        current.is_some_and(|current| core::ptr::eq(&**current, worker))
    }

    /// Whether there is a worker that takes something.
    fn serves(&self) -> bool {
        self.worker.is_some() && !self.killed
    }
}

/// The worker of one process, if it needs one.
#[pin_data]
pub(crate) struct Copier<W: CpuWork> {
    #[pin]
    state: SpinLock<State<W>>,
    /// Requests that have not ended.
    pending: Atomic<u64>,
    #[pin]
    starting: Mutex<()>,
}

/// What is queued for one file.
struct Items<W: CpuWork> {
    list: List<W>,
    /// The process has closed the file, or has left.
    closed: bool,
}

/// What a process has asked for through one file.
#[pin_data]
pub(crate) struct Queue<W: CpuWork> {
    copier: Arc<Copier<W>>,
    items: LockedBy<Items<W>, State<W>>,
    #[pin]
    links: ListLinks,
    #[pin]
    tracker: AtomicTracker,
}

impl_list_arc_safe! {
    impl{W: CpuWork} ListArcSafe<0> for Queue<W> { tracked_by tracker: AtomicTracker; }
}

impl_list_item! {
    impl{W: CpuWork} ListItem<0> for Queue<W> { using ListLinks { self.links }; }
}

/// A request that has not ended, for which there is a worker; dropping ends it.
pub(crate) struct Lease<'a, W: CpuWork>(&'a Queue<W>);

impl<W: CpuWork> Drop for Lease<'_, W> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// What a worker finds.
enum Found<W: CpuWork> {
    Item(Arc<Queue<W>>, Arc<W>),
    Nothing,
    /// There is no file; the worker is not the process's any more, and has to be reaped.
    Closed,
    /// It is not its worker any more.
    Ended,
}

impl<W: CpuWork> Copier<W> {
    /// For a process that opens its first file; no worker yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            state <- new_spinlock!(State {
                queues: List::new(),
                worker: None,
                files: 1,
                used: false,
                killed: false,
            }),
            pending: Atomic::new(0),
            starting <- new_mutex!(()),
        })
    }

    /// Counts another file, unless there is none any more.
    pub(crate) fn enter(&self) -> bool {
        let mut state = self.state.lock();
        let open = state.files != 0;
        state.files += u64::from(open);
        open
    }

    /// A file less; returns whether it was the last one. Its queue is empty.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.state.lock();
        state.files -= 1;
        let last = state.files == 0;
        if let (true, Some(worker)) = (last, &state.worker) {
            worker.wake();
        }
        last
    }

    fn next(&self, worker: &Worker<W>) -> Found<W> {
        let mut state = self.state.lock();
        if !state.is(worker) {
            return Found::Ended;
        }
        // A queue without items is in no list, so that this is an item if there is any.
        let Some(queue) = state.queues.pop_front() else {
            if state.files == 0 {
                state.worker = None;
                return Found::Closed;
            }
            return Found::Nothing;
        };
        let from = queue.clone_arc();
        let items = from.items.access_mut(&mut *state);
        // Not in the list from here on: what comes up meanwhile puts it there again.
        let item = items.list.pop_front().map(ListArc::into_arc);
        if !items.list.is_empty() {
            state.queues.push_back(queue);
        }
        item.map_or(Found::Nothing, |item| Found::Item(from, item))
    }

    /// What is queued for one of the files of a process whose worker is killed; if nothing is, that
    /// is not its worker any more. Another one may have been started meanwhile, which does the
    /// rest.
    fn give_up(&self, worker: &Worker<W>) -> Option<List<W>> {
        let mut state = self.state.lock();
        if !state.is(worker) {
            return None;
        }
        let Some(queue) = state.queues.pop_front() else {
            state.worker = None;
            return None;
        };
        let items = queue.items.access_mut(&mut *state);
        Some(core::mem::replace(&mut items.list, List::new()))
    }

    /// Whether nothing has come for long; then this is not the process's worker any more.
    fn retire(&self, worker: &Worker<W>) -> bool {
        let mut state = self.state.lock();
        let used = core::mem::replace(&mut state.used, false);
        let idle = state.queues.is_empty() && self.pending.load(Acquire) == 0;
        let retires = idle && !used && state.is(worker);
        if retires {
            state.worker = None;
        }
        retires
    }
}

impl<W: CpuWork> Queue<W> {
    /// For a file that `copier` counts.
    pub(crate) fn new(copier: Arc<Copier<W>>) -> impl PinInit<Self> {
        let items = Items {
            list: List::new(),
            closed: false,
        };
        pin_init!(Self {
            items: LockedBy::new(&copier.state, items),
            copier,
            links <- ListLinks::new(),
            tracker <- AtomicTracker::new(),
        })
    }

    pub(crate) fn copier(&self) -> &Arc<Copier<W>> {
        &self.copier
    }

    /// Makes sure that the calling process, whose queue this is, has a worker until the lease ends.
    ///
    /// - `EAGAIN`: the process, its user or its cgroup may have no more threads.
    /// - `ESHUTDOWN`: the process has left.
    /// - `ERESTARTNOINTR`: a signal came; the kernel repeats the system call.
    pub(crate) fn lease(&self) -> Result<Lease<'_, W>> {
        if let Some(lease) = self.renew()? {
            return Ok(lease);
        }
        let _starting = self.copier.starting.lock();
        // Another thread may have been faster.
        if let Some(lease) = self.renew()? {
            return Ok(lease);
        }
        let worker = Worker::create(&self.copier)?;
        let mut state = self.copier.state.lock();
        state.worker = Some(worker.clone());
        state.killed = false;
        drop(state);
        worker.start();
        self.renew()?.ok_or_else(errno::ecanceled)
    }

    /// A lease, if there is a worker for it.
    fn renew(&self) -> Result<Option<Lease<'_, W>>> {
        let mut state = self.copier.state.lock();
        if self.items.access(&*state).closed {
            return Err(errno::eshutdown());
        }
        if !state.serves() && cfg!(CONFIG_VHOST_TASK) {
            return Ok(None);
        }
        state.used = true;
        self.copier.pending.fetch_add(1, Full);
        Ok(Some(Lease(self)))
    }

    /// Ends a lease that was forgotten. Does not sleep, in any context.
    pub(crate) fn release(&self) {
        self.copier.pending.fetch_sub(1, Full);
    }

    /// Has [`CpuWork::work`] called by the worker. Does not sleep.
    ///
    /// Refuses when there is none: then the caller does it. Where the worker was killed, it has
    /// failed.
    pub(crate) fn add(this: &Arc<Self>, item: Arc<W>) -> Result<(), Arc<W>> {
        let mut state = this.copier.state.lock();
        if this.items.access(&*state).closed || !state.serves() {
            let killed = state.killed;
            drop(state);
            if killed {
                W::abandon(&item);
            }
            return Err(item);
        }
        // One that is in the list already has not been begun.
        if let Some(item) = ListArc::try_from_arc_or_drop(item) {
            let items = this.items.access_mut(&mut *state);
            items.list.push_back(item);
            if let Some(queue) = ListArc::try_from_arc_or_drop(this.clone()) {
                state.queues.push_back(queue);
            }
        }
        if let Some(worker) = &state.worker {
            worker.wake();
        }
        Ok(())
    }

    /// The process has left, and its requests have failed. Waits for nobody.
    pub(crate) fn close(&self) {
        let mut state = self.copier.state.lock();
        let items = self.items.access_mut(&mut *state);
        items.closed = true;
        let list = core::mem::replace(&mut items.list, List::new());
        // SAFETY: A queue is put in no other list than its copier's.
        let listed = unsafe { state.queues.remove(self) };
        drop(state);
        drop(listed);
        finish(list, |_| ());
    }
}

/// Ends what was queued, after it was made to fail.
fn finish<W: CpuWork>(mut items: List<W>, fail: impl Fn(&Arc<W>)) {
    while let Some(item) = items.pop_front() {
        let item = item.into_arc();
        fail(&item);
        W::work(&item);
        shim::cond_resched_interrupted();
    }
}

/// Workers that were not reaped.
static LIVE: Atomic<u64> = Atomic::new(0);

/// One user worker.
#[pin_data]
struct Worker<W: CpuWork> {
    copier: Arc<Copier<W>>,
    task: Atomic<*mut raw::vhost_task>,
    #[pin]
    reaping: Work<Worker<W>>,
}

impl_has_work! {
    impl{W: CpuWork} HasWork<Self> for Worker<W> { self.reaping }
}

impl<W: CpuWork> WorkItem for Worker<W> {
    type Pointer = Arc<Worker<W>>;

    fn run(this: Arc<Worker<W>>) {
        // SAFETY: Nobody wakes it any more, as it is in no `State`, and it is reaped once, see
        // `reap`. This returns when neither `run` nor `killed` runs any more or will.
        unsafe { raw::libcopy_worker_stop(this.task.load(Relaxed)) };
        drop(this);
        LIVE.fetch_sub(1, Full);
    }
}

impl<W: CpuWork> Worker<W> {
    /// Makes a thread of the calling process. It has a reference of its own, which [`Self::reap`]
    /// takes back.
    fn create(copier: &Arc<Copier<W>>) -> Result<Arc<Self>> {
        let worker = Arc::pin_init(
            pin_init!(Self {
                copier: copier.clone(),
                task: Atomic::new(core::ptr::null_mut()),
                reaping <- new_work!("libcopy::Worker::reaping"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let data = Arc::into_raw(worker.clone());
        // SAFETY: `data` stays until the worker is reaped; the name is copied.
        let task = from_err_ptr(unsafe {
            raw::libcopy_worker_create(
                Some(Self::run),
                Some(Self::killed),
                data.cast_mut().cast(),
                c"libcopy/copier".as_char_ptr(),
            )
        });
        match task {
            Ok(task) => worker.task.store(task, Relaxed),
            Err(error) => {
                // SAFETY: The reference made above, which no thread has.
                drop(unsafe { Arc::from_raw(data) });
                return Err(error);
            }
        }
        LIVE.fetch_add(1, Full);
        Ok(worker)
    }

    fn start(&self) {
        // SAFETY: Called once, by who created it. It is not reaped before it has run.
        unsafe { raw::libcopy_worker_start(self.task.load(Relaxed)) }
    }

    /// Called while it is in a [`State`], which is locked.
    fn wake(&self) {
        // SAFETY: It has not said that it ends, so that it was not reaped.
        unsafe { raw::libcopy_worker_wake(self.task.load(Relaxed)) }
    }

    /// Has the worker that calls waited for and freed; it has been taken out of the [`State`]
    /// before.
    fn reap(&self) {
        // SAFETY: The reference that the thread was given. Who takes a worker out of a `State`
        // calls this, so that it happens once; and it stays valid for the caller, for whose end the
        // queue waits before it drops it.
        let own = unsafe { Arc::from_raw(core::ptr::from_ref(self)) };
        let _ = workqueue::enqueue_reaping(own);
    }

    /// # Safety
    ///
    /// `data` is a worker that is not reaped before this has returned. Called by its thread, which
    /// is about to sleep interruptibly; it does if this returns false.
    unsafe extern "C" fn run(data: *mut c_void) -> bool {
        // SAFETY: `create` passed a worker.
        let this = unsafe { &*data.cast::<Self>() };
        match this.copier.next(this) {
            Found::Item(queue, item) => {
                shim::set_running();
                if !W::work(&item) {
                    // The caller looks after the signal. If it is not to be done then, it has
                    // failed.
                    if let Err(item) = Queue::add(&queue, item) {
                        W::work(&item);
                    }
                }
                shim::cond_resched_interrupted();
                true
            }
            Found::Nothing => {
                let idle = kernel::time::msecs_to_jiffies(IDLE_MS);
                // SAFETY: Whoever adds something wakes us; so does a signal.
                let left = unsafe { bindings::schedule_timeout(idle as isize) };
                let retires = left == 0 && this.copier.retire(this);
                if retires {
                    this.reap();
                }
                !retires
            }
            Found::Closed => {
                this.reap();
                false
            }
            Found::Ended => false,
        }
    }

    /// # Safety
    ///
    /// As for [`Self::run`], which is not called any more: the process is being killed.
    unsafe extern "C" fn killed(data: *mut c_void) {
        // SAFETY: As above.
        let this = unsafe { &*data.cast::<Self>() };
        {
            let mut state = this.copier.state.lock();
            if !state.is(this) {
                return;
            }
            // Nothing is queued from here on, so that the loop below ends.
            state.killed = true;
        }
        while let Some(list) = this.copier.give_up(this) {
            finish(list, W::abandon);
        }
        this.reap();
    }
}

/// Waits for all workers to end when it is dropped: no file is open then, so that all are told to.
pub(crate) struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        while LIVE.load(Acquire) != 0 {
            shim::nap(1);
        }
    }
}
