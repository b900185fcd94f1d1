// SPDX-License-Identifier: GPL-2.0

//! [`Member`]: one process in a domain, with what it published and what it left pinned for reuse.
//!
//! Lock order, outermost first:
//!
//! 1. `Handle::members` (chardev.rs)
//! 2. `Member::state`
//! 3. `Domain::table`, then the lock of the region array
//! 4. `Domain::wait_lock`
//!
//! Those of requests and engines are described in request.rs and engine.rs; they are taken without
//! holding any of these but the first.
//!
//! None of them is held while bytes are copied, pages are pinned or released, or a notifier is
//! removed.

use crate::copier::Copier;
use crate::domain::Domain;
use crate::errno;
use crate::idle::Idle;
use crate::mapping::MappingRef;
use crate::params;
use crate::queue;
use crate::region::Region;
use crate::request::Request;
use crate::shim;
use crate::shrinker::{self, Reclaim};
use crate::stats::Counter;
use crate::uapi::Piece;
use crate::user::User;
use crate::watch::Watch;
use kernel::mm::{Mm, MmWithUser};
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::atomic::{Acquire, Atomic, Full, Release};
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

/// What `poll` on a file reports about the regions created through it.
pub(crate) struct Events {
    /// Regions whose uses are all over and that still exist.
    pub(crate) completed: Atomic<u32>,
}

struct State {
    /// No new regions and no reuse any more.
    departed: bool,
    /// Ids of the regions this process owns.
    regions: KVec<u32>,
    /// Ids of the requests this process submitted.
    requests: KVec<u32>,
    /// Engines that this process was given a channel of, and which one.
    channels: KVec<(usize, usize)>,
    /// Mappings without a region.
    idle: Idle,
    /// Hears about the end of the process. A cycle (the watch holds the member), broken by
    /// `depart`, which every file calls for its members when it is released.
    process: Option<Pin<KBox<Watch>>>,
}

/// One process using one file of a domain.
#[pin_data]
pub(crate) struct Member {
    pub(crate) domain: Arc<Domain>,
    pub(crate) events: Arc<Events>,
    /// Who pays for what outlives the process.
    pub(crate) user: User,
    mm: ARef<Mm>,
    process: i32,
    dead: Atomic<bool>,
    left: Atomic<bool>,
    /// Where CPUs work on requests of this process.
    #[pin]
    pub(crate) copier: Copier,
    #[pin]
    state: Mutex<State>,
    #[pin]
    work: Work<Member>,
}

impl_has_work! {
    impl HasWork<Self> for Member { self.work }
}

impl WorkItem for Member {
    type Pointer = Arc<Member>;

    fn run(this: Arc<Member>) {
        if this.is_dead() {
            this.depart();
        } else {
            this.sweep();
        }
    }
}

impl Member {
    /// Makes the calling process a member.
    pub(crate) fn new(
        mm: &MmWithUser,
        domain: &Arc<Domain>,
        events: &Arc<Events>,
    ) -> Result<Arc<Self>> {
        let user = User::current()?;
        let this = Arc::pin_init(
            pin_init!(Self {
                domain: domain.clone(),
                events: events.clone(),
                user,
                mm: ARef::from(&**mm),
                process: shim::current_process(),
                dead: Atomic::new(false),
                left: Atomic::new(false),
                copier <- Copier::new(),
                state <- new_mutex!(State {
                    departed: false,
                    regions: KVec::new(),
                    requests: KVec::new(),
                    channels: KVec::new(),
                    idle: Idle::new(),
                    process: None,
                }),
                work <- new_work!("libcopy::Member::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let watch = Watch::new(mm, &this, KVVec::new())?;
        this.state.lock().process = Some(watch);
        if let Err(error) = shrinker::register(this.clone()) {
            this.depart();
            return Err(error);
        }
        Ok(this)
    }

    /// Whether this is the process that `mm` belongs to.
    pub(crate) fn is(&self, mm: &Mm) -> bool {
        core::ptr::eq(self.mm.as_raw(), mm.as_raw())
    }

    /// Whether the process ended without leaving.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Acquire)
    }

    /// Whether the process has left its domain, or was taken out of it.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Acquire)
    }

    /// The process's address space is going away. Called by the memory manager; does not sleep.
    pub(crate) fn died(this: &Arc<Self>) {
        if this.left.load(Acquire) || !this.mark_dead() {
            return;
        }
        // If the work is queued already, it has not looked at `dead` yet or will run again.
        let _ = queue::get().enqueue(this.clone());
    }

    fn mark_dead(&self) -> bool {
        if self.dead.xchg(true, Full) {
            return false;
        }
        self.domain.stats.add(Counter::MemberDeaths, 1);
        self.domain.deaths.fetch_add(1, Full);
        true
    }

    /// The last file is closed. If that happens because the process is exiting, it died: its
    /// address space may outlive its files when somebody else is just looking at it.
    pub(crate) fn file_closed(&self) {
        if !self.has_left() && shim::exiting_process() == Some(self.process) {
            self.mark_dead();
        }
        self.depart();
    }

    /// Some mapping may be stale. Called by the memory manager; does not sleep.
    pub(crate) fn sweep_later(this: &Arc<Self>) {
        if this.left.load(Acquire) {
            return;
        }
        let _ = queue::get().enqueue(this.clone());
    }

    /// Takes the process out of the domain: its regions go, its idle mappings are unpinned.
    /// Called once or many times, whoever comes first does it.
    pub(crate) fn depart(&self) {
        self.left.store(true, Release);
        let (regions, requests, idle, process) = {
            let mut state = self.state.lock();
            if state.departed {
                return;
            }
            state.departed = true;
            (
                core::mem::take(&mut state.regions),
                core::mem::take(&mut state.requests),
                state.idle.take_all(),
                state.process.take(),
            )
        };
        shrinker::unregister(self);
        for id in requests {
            if let Some(request) = self.domain.requests.remove(id) {
                Request::fail(&request, errno::ecanceled());
            }
            shim::cond_resched_interrupted();
        }
        self.copier.stop();
        for id in regions {
            if let Some(region) = self.domain.remove(id, self.is_dead()) {
                region.close();
                region.mapping.let_go();
            }
            shim::cond_resched_interrupted();
        }
        give_up(&idle);
        drop(idle);
        drop(process);
        self.domain.wake();
    }

    /// Unpins idle mappings that may be stale.
    fn sweep(&self) {
        let mut stale = KVec::new();
        loop {
            let found = {
                let mut state = self.state.lock();
                state.idle.take(false, |mapping| mapping.is_stale())
            };
            match found {
                // Dropped after the lock is released, here or at the end.
                Some(mapping) => {
                    mapping.let_go();
                    drop(stale.push(mapping, GFP_KERNEL_ACCOUNT));
                }
                None => break,
            }
        }
    }

    /// Takes a mapping of the same memory out of the cache.
    pub(crate) fn take_idle(&self, pieces: &[Piece], write: bool) -> Option<MappingRef> {
        let mapping = self.state.lock().idle.take_serving(pieces, write)?;
        if mapping.is_stale() {
            mapping.let_go();
            return None;
        }
        Some(mapping)
    }

    /// Leaves a mapping pinned for later, within the limit on idle pages; otherwise lets it go.
    fn keep(this: &Arc<Self>, mapping: MappingRef) {
        if let Err(refused) = Self::try_keep(this, mapping) {
            refused.let_go();
        }
    }

    fn try_keep(this: &Arc<Self>, mapping: MappingRef) -> Result<(), MappingRef> {
        if !mapping.reusable() || mapping.is_stale() {
            return Err(mapping);
        }
        let limit = params::reuse_pages();
        let pages = mapping.pages().pages().len() as u64;
        if pages > limit {
            return Err(mapping);
        }
        let mut rejected = KVec::new();
        let mut state = this.state.lock();
        if state.departed || state.idle.reserve().is_err() {
            drop(state);
            return Err(mapping);
        }
        while state.idle.is_full(pages, limit) {
            // Room first: a mapping must not be dropped under the lock.
            if rejected.reserve(1, GFP_KERNEL_ACCOUNT).is_err() {
                drop(state);
                give_up(&rejected);
                return Err(mapping);
            }
            let Some(oldest) = state.idle.take_oldest() else {
                break;
            };
            let _ = rejected.push_within_capacity(oldest);
        }
        let kept = mapping.clone();
        state.idle.push(mapping);
        drop(state);
        give_up(&rejected);
        drop(rejected);
        // A change announced before the mapping was in the list was swept without it.
        if kept.is_stale() {
            Self::sweep_later(this);
        }
        Ok(())
    }

    /// Unpins everything that is idle; returns whether there was anything.
    pub(crate) fn drop_idle(&self) -> bool {
        let idle = self.state.lock().idle.take_all();
        give_up(&idle);
        !idle.is_empty()
    }

    /// Records a region that was just published.
    ///
    /// - `ESHUTDOWN`: the process has left; the region must be taken back.
    pub(crate) fn adopt(&self, id: u32) -> Result {
        let mut state = self.state.lock();
        if state.departed {
            return Err(errno::eshutdown());
        }
        state.regions.push(id, GFP_KERNEL_ACCOUNT)?;
        Ok(())
    }

    /// Destroys a region of this process, keeping its mapping if `keep`.
    pub(crate) fn destroy(this: &Arc<Self>, region: &Region, keep: bool) -> bool {
        {
            let mut state = this.state.lock();
            let Some(index) = state.regions.iter().rposition(|id| *id == region.id) else {
                return false;
            };
            let last = state.regions.len() - 1;
            state.regions.swap(index, last);
            state.regions.pop();
        }
        if this.domain.remove(region.id, false).is_none() {
            return false;
        }
        region.close();
        match keep {
            true => Self::keep(this, region.mapping.clone()),
            false => region.mapping.let_go(),
        }
        true
    }

    /// Records a request that was just published.
    ///
    /// - `ESHUTDOWN`: the process has left; the request must be taken back.
    pub(crate) fn adopt_request(&self, id: u32) -> Result {
        let mut state = self.state.lock();
        if state.departed {
            return Err(errno::eshutdown());
        }
        state.requests.push(id, GFP_KERNEL_ACCOUNT)?;
        Ok(())
    }

    /// Cancels this process's requests and waits for what engines have begun, so that nobody writes
    /// to memory that the process is about to use otherwise. A signal ends only the waiting.
    pub(crate) fn cancel_requests(&self) {
        loop {
            let Some(id) = self.state.lock().requests.pop() else {
                return;
            };
            if let Some(request) = self.domain.requests.remove(id) {
                Request::fail(&request, errno::ecanceled());
                let _ = request.wait(0, &mut -1);
            }
        }
    }

    /// Takes a request of this process out of the domain.
    pub(crate) fn disown_request(&self, id: u32) -> Option<Arc<Request>> {
        {
            let mut state = self.state.lock();
            let index = state.requests.iter().rposition(|known| *known == id)?;
            let last = state.requests.len() - 1;
            state.requests.swap(index, last);
            state.requests.pop();
        }
        self.domain.requests.remove(id)
    }

    /// The number of the channel that this process was given by an engine; `next` gives a new one.
    pub(crate) fn channel_of(&self, engine: usize, next: impl FnOnce() -> usize) -> usize {
        let mut state = self.state.lock();
        if let Some((_, channel)) = state.channels.iter().find(|(known, _)| *known == engine) {
            return *channel;
        }
        let channel = next();
        // Without memory to remember it, the process gets another one next time.
        let _ = state.channels.push((engine, channel), GFP_KERNEL_ACCOUNT);
        channel
    }

    /// Pages and mappings waiting in the cache.
    pub(crate) fn idle(&self) -> (usize, u64) {
        self.state.lock().idle.size()
    }
}

impl Reclaim for Member {
    fn reclaim(&self, pages: u64) -> u64 {
        // Who holds the lock may be allocating under it, and wait for us.
        let Some(mut state) = self.state.try_lock() else {
            return 0;
        };
        let mut freed = 0;
        while freed < pages {
            let Some(oldest) = state.idle.take_oldest() else {
                break;
            };
            freed += oldest.pages().pages().len() as u64;
            oldest.let_go_later();
        }
        freed
    }
}

/// The process keeps these mappings no more.
fn give_up(mappings: &[MappingRef]) {
    for mapping in mappings {
        mapping.let_go();
    }
}
