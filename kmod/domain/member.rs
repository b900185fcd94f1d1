// SPDX-License-Identifier: GPL-2.0

//! [`Member`]: one process in a domain, with what it published and what it left pinned for reuse.
//!
//! Lock order, outermost first:
//!
//! 1. `Handle::processes` (handle.rs)
//! 2. `Member::state`
//! 3. the table of regions (regions.rs), then the lock of the region array
//!
//! Those of requests and engines are described in request.rs, slots.rs and engines.rs; they are
//! taken without holding any of these but the first. The shrinker only tries to lock
//! `Member::state`, under which memory is allocated.
//!
//! None of them is held while bytes are copied, or pages are pinned or released.

use crate::abstractions::errno;
use crate::abstractions::shim;
use crate::base::params;
use crate::base::stats::Counter;
use crate::domain::group::Domain;
use crate::memory::address_space::Registration;
use crate::memory::idle::Idle;
use crate::memory::mapping::MappingRef;
use crate::memory::shrinker::Reclaim;
use crate::memory::user::User;
use crate::uapi::Piece;
use kernel::mm::{Mm, MmWithUser};
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::atomic::{Acquire, Atomic, Full, Release};
use kernel::sync::{new_mutex, Arc, Mutex};

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
}

/// What a member leaves behind.
pub(crate) struct Estate {
    /// Ids of its regions.
    pub(crate) regions: KVec<u32>,
    /// Ids of its requests.
    pub(crate) requests: KVec<u32>,
    idle: KVec<MappingRef>,
}

impl Drop for Estate {
    fn drop(&mut self) {
        give_up(&self.idle);
    }
}

/// One process using one file of a domain.
#[pin_data]
pub(crate) struct Member {
    pub(crate) domain: Arc<Domain>,
    /// Who pays for what outlives the process.
    pub(crate) user: User,
    /// Of the process.
    pub(crate) space: Arc<Registration>,
    mm: ARef<Mm>,
    process: i32,
    dead: Atomic<bool>,
    left: Atomic<bool>,
    #[pin]
    state: Mutex<State>,
}

impl Member {
    /// Makes the calling process a member.
    pub(crate) fn new(
        mm: &MmWithUser,
        domain: &Arc<Domain>,
        space: Arc<Registration>,
    ) -> Result<Arc<Self>> {
        let user = User::current()?;
        Arc::pin_init(
            pin_init!(Self {
                domain: domain.clone(),
                user,
                space,
                mm: ARef::from(&**mm),
                process: shim::current_process(),
                dead: Atomic::new(false),
                left: Atomic::new(false),
                state <- new_mutex!(State {
                    departed: false,
                    regions: KVec::new(),
                    requests: KVec::new(),
                    channels: KVec::new(),
                    idle: Idle::new(),
                }),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Whether this is the process that `mm` belongs to.
    pub(crate) fn is(&self, mm: &Mm) -> bool {
        core::ptr::eq(self.mm.as_raw(), mm.as_raw())
    }

    /// Whether this is the calling process, and it is exiting.
    pub(crate) fn is_exiting(&self) -> bool {
        shim::exiting_process() == Some(self.process)
    }

    /// Whether the process ended without leaving.
    pub(crate) fn is_dead(&self) -> bool {
        // The memory manager says so before the memory goes, the workqueue comes later.
        self.dead.load(Acquire) || (self.space.is_released() && !self.has_left())
    }

    /// Whether the process has left its domain, or was taken out of it.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Acquire)
    }

    /// Notes that the process ended; returns whether this is new. Does not sleep.
    pub(crate) fn mark_dead(&self) -> bool {
        if self.dead.xchg(true, Full) {
            return false;
        }
        self.domain.stats.add(Counter::MemberDeaths, 1);
        true
    }

    /// Takes the process out of the domain; what it leaves behind is for the caller, who comes
    /// first, to end.
    pub(crate) fn leave(&self) -> Option<Estate> {
        self.left.store(true, Release);
        let mut state = self.state.lock();
        if state.departed {
            return None;
        }
        state.departed = true;
        Some(Estate {
            regions: core::mem::take(&mut state.regions),
            requests: core::mem::take(&mut state.requests),
            idle: state.idle.take_all(),
        })
    }

    /// Unpins idle mappings that may be stale.
    pub(crate) fn sweep(&self) {
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
                    let _ = stale.push(mapping, GFP_KERNEL_ACCOUNT);
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
    pub(crate) fn keep(&self, mapping: MappingRef) {
        if let Err(refused) = self.try_keep(mapping) {
            refused.let_go();
        }
    }

    fn try_keep(&self, mapping: MappingRef) -> Result<(), MappingRef> {
        if !mapping.reusable() || mapping.is_stale() {
            return Err(mapping);
        }
        let limit = params::reuse_pages();
        let pages = mapping.pages().pages().len() as u64;
        if pages > limit {
            return Err(mapping);
        }
        let mut rejected = KVec::new();
        let mut state = self.state.lock();
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
            self.sweep();
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

    /// The process owns a region no more; returns whether it did.
    pub(crate) fn disown(&self, id: u32) -> bool {
        remove(&mut self.state.lock().regions, id)
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

    /// Takes one of the requests that the process submitted.
    pub(crate) fn take_request(&self) -> Option<u32> {
        self.state.lock().requests.pop()
    }

    /// The process has a request no more; returns whether it had.
    pub(crate) fn disown_request(&self, id: u32) -> bool {
        remove(&mut self.state.lock().requests, id)
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

/// Takes an id out of a list, most likely one of the last.
fn remove(ids: &mut KVec<u32>, id: u32) -> bool {
    let Some(index) = ids.iter().rposition(|known| *known == id) else {
        return false;
    };
    let last = ids.len() - 1;
    ids.swap(index, last);
    ids.pop();
    true
}

/// The process keeps these mappings no more.
fn give_up(mappings: &[MappingRef]) {
    for mapping in mappings {
        mapping.let_go();
    }
}
