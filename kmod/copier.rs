// SPDX-License-Identifier: GPL-2.0

//! [`Copier`]: the kernel thread in which CPUs do what a process has asked an engine for.
//!
//! What no engine does, and what takes long besides (checksums), is work of the process that submitted the
//! request: its container pays for it, not the workqueue, which serves everybody and belongs to nobody's
//! cgroup. So each process has a thread of its own, started when it is first needed, in the
//! cgroups of the process and with its nice value. Nothing else of the process is the thread's: it needs no
//! memory of it but what is pinned, no signal reaches it, and the end of the process does not end it, but
//! [`Copier::stop`], which the end of the membership calls.
//!
//! Since Linux 6.18 a cgroup whose quota is used up stops its tasks where they return to user space, which
//! a kernel thread never does. So this thread is not stopped; what it uses is taken from the process's next
//! share.

use crate::shim;
use crate::thread::Thread;
use crate::user::User;
use kernel::ffi::{c_int, c_void};
use kernel::list::{List, ListArc, ListItem, TryNewListArc};
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::{new_condvar, new_mutex, Arc, CondVar, Mutex};
use kernel::task::Task;

/// What the thread does.
pub(crate) trait CpuWork: ListItem<0> + TryNewListArc<0> + Send + Sync + 'static {
    /// Does what there is to do by now: copies what nobody has claimed, if CPUs are to, and ends what is
    /// settled. May sleep, and take long.
    fn work(this: &Arc<Self>);
}

struct Queue<W: CpuWork> {
    items: List<W>,
    stopped: bool,
}

/// The thread of one process.
#[pin_data]
pub(crate) struct Copier<W: CpuWork> {
    /// The process's first thread.
    owner: ARef<Task>,
    /// Whose threads are counted.
    user: User,
    #[pin]
    queue: Mutex<Queue<W>>,
    /// Notified when there is something to do.
    #[pin]
    called: CondVar,
    /// Held while it is started or stopped; only `queue` is locked under it.
    #[pin]
    thread: Mutex<Option<Thread>>,
}

impl<W: CpuWork> Copier<W> {
    /// For the calling process, which is one of `user`; no thread yet.
    pub(crate) fn new(user: User) -> impl PinInit<Self> {
        pin_init!(Self {
            owner: ARef::from(kernel::current!().group_leader()),
            user,
            queue <- new_mutex!(Queue {
                items: List::new(),
                stopped: false,
            }),
            called <- new_condvar!(),
            thread <- new_mutex!(None),
        })
    }

    /// Has [`CpuWork::work`] called in the thread. May sleep.
    ///
    /// Refuses when the thread was stopped, or when it cannot be started.
    pub(crate) fn add(&self, item: Arc<W>) -> Result<(), Arc<W>> {
        if self.start().is_err() {
            return Err(item);
        }
        let mut queue = self.queue.lock();
        if queue.stopped {
            drop(queue);
            return Err(item);
        }
        // One that is in the list already has not been begun.
        if let Some(item) = ListArc::try_from_arc_or_drop(item) {
            queue.items.push_back(item);
        }
        drop(queue);
        self.called.notify_one();
        Ok(())
    }

    fn start(&self) -> Result {
        let mut thread = self.thread.lock();
        if thread.is_some() || self.queue.lock().stopped {
            return Ok(());
        }
        let data: *mut c_void = core::ptr::from_ref(self).cast_mut().cast();
        self.user.admit_copier()?;
        // SAFETY: Whoever has a copier stops it before it goes, see `stop`.
        let started = unsafe { Thread::run(Self::body, data, -1, c"libcopy/copier") };
        *thread = Some(started.inspect_err(|_| self.user.dismiss_copier())?);
        Ok(())
    }

    /// Stops the thread, and waits until what it is doing has ended: requests have failed before, so that
    /// it does not copy on. Must be called before the copier goes.
    pub(crate) fn stop(&self) {
        self.queue.lock().stopped = true;
        self.called.notify_all();
        let thread = self.thread.lock().take();
        if thread.is_some() {
            drop(thread);
            self.user.dismiss_copier();
        }
        // A kernel thread that is stopped before it first runs never calls its body (kthread() in
        // kernel/kthread.c), and what is left in the list would refer to the copier for ever.
        loop {
            let item = self.queue.lock().items.pop_front();
            match item {
                Some(item) => W::work(&item.into_arc()),
                None => return,
            }
        }
    }

    /// # Safety
    ///
    /// `data` is a copier that waits for this thread before it goes.
    unsafe extern "C" fn body(data: *mut c_void) -> c_int {
        // SAFETY: `start` passed a copier, which waits for this thread before it goes.
        let this = unsafe { &*data.cast::<Self>() };
        if let Err(error) = shim::join_cgroups(&this.owner) {
            kernel::pr_warn_once!(
                "a copier does not get into the cgroups of its process ({})\n",
                error.to_errno()
            );
        }
        loop {
            let item = {
                let mut queue = this.queue.lock();
                loop {
                    match queue.items.pop_front() {
                        Some(item) => break item,
                        None if queue.stopped => return 0,
                        // No signal reaches a kernel thread.
                        None => drop(this.called.wait_interruptible(&mut queue)),
                    }
                }
            };
            // Not in the list from here on: what comes up meanwhile puts it there again.
            W::work(&item.into_arc());
            shim::cond_resched_interrupted();
        }
    }
}
