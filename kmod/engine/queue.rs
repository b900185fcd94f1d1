// SPDX-License-Identifier: GPL-2.0

//! [`Queue`]: the requests that a channel has, and which fragment is next.
//!
//! # What is bounded
//!
//! A channel's queue is locked in callbacks. Nothing is searched in it: an entry is unlinked where
//! it stands, and at most [`SCAN`] entries are looked at per hold. No entry is dropped here,
//! because that may sleep: what is through is retired, and dropped by who calls
//! [`Queue::next_retired`].

use crate::base::stats::{Counter, TOTAL};
use crate::engine::dma_device::DmaDevice;
use crate::engine::dma_map::DmaMap;
use crate::requests::fragments::Worker;
use crate::requests::job::Job;
use core::cell::UnsafeCell;
use kernel::list::{impl_list_arc_safe, impl_list_item, List, ListArc, ListLinks};
use kernel::prelude::*;
use kernel::sync::Arc;

/// Entries that are looked at while the queue is locked.
const SCAN: u32 = 32;

/// How a channel is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
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
pub(crate) struct Entry<J: Job> {
    pub(crate) maps: Option<(Arc<DmaMap>, Arc<DmaMap>)>,
    pub(crate) request: Arc<J>,
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
    /// For a queue. An engine that is a kernel thread needs no maps.
    pub(crate) fn new(
        maps: Option<(Arc<DmaMap>, Arc<DmaMap>)>,
        request: Arc<J>,
    ) -> Result<ListArc<Self>> {
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
pub(crate) enum Next<J: Job> {
    /// A fragment, claimed.
    Fragment(Arc<Entry<J>>, u64),
    /// A request whose regions' owner died is to be failed, and [`Queue::done`] called.
    Orphan(Arc<Entry<J>>),
    /// Ask again: this many entries had nothing to do.
    Again,
    /// Nothing.
    Nothing,
}

/// The requests of a channel.
pub(crate) struct Queue<J: Job> {
    pub(crate) service: Service,
    /// The device that requests are mapped for while the channel is up.
    device: Option<Arc<DmaDevice>>,
    /// Threads that are inside the driver to submit.
    pub(crate) submitters: u32,
    /// Entries with fragments to claim; the first one is next.
    ready: List<Entry<J>>,
    /// Entries without, of which fragments are in work.
    draining: List<Entry<J>>,
    /// Entries that are through, to be dropped where that is allowed.
    retired: List<Entry<J>>,
    /// Whether there are retired ones that the workqueue does not know of.
    news: bool,
    /// Slots in use, one bit each.
    pub(crate) busy: u32,
    /// Those of them whose fragment was not submitted as a whole.
    pub(crate) blocked: u32,
}

impl<J: Job> Queue<J> {
    /// An empty one, of a channel that nobody has acquired yet.
    pub(crate) fn new() -> Self {
        Self {
            service: Service::Idle,
            device: None,
            submitters: 0,
            ready: List::new(),
            draining: List::new(),
            retired: List::new(),
            news: false,
            busy: 0,
            blocked: 0,
        }
    }

    /// Changes to a state, with the device if it is [`Service::Up`]. Returns the device of before,
    /// to be dropped without the lock.
    #[must_use]
    pub(crate) fn enter(
        &mut self,
        service: Service,
        device: Option<Arc<DmaDevice>>,
    ) -> Option<Arc<DmaDevice>> {
        self.service = service;
        core::mem::replace(&mut self.device, device)
    }

    /// The device, if the channel is up.
    pub(crate) fn device(&self) -> Option<Arc<DmaDevice>> {
        match self.service {
            Service::Up => self.device.clone(),
            _ => None,
        }
    }

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

    /// Adds a new entry at the end of the line.
    pub(crate) fn add(&mut self, item: ListArc<Entry<J>>) {
        self.ready.push_back(item);
    }

    /// Takes an entry out that is not retired.
    pub(crate) fn unlink(&mut self) -> Option<ListArc<Entry<J>>> {
        match self.ready.pop_front() {
            None => self.draining.pop_front(),
            some => some,
        }
    }

    /// Takes a retired entry out, to be dropped without the lock.
    pub(crate) fn next_retired(&mut self) -> Option<ListArc<Entry<J>>> {
        self.retired.pop_front()
    }

    /// Whether entries were retired since this was asked last; then the workqueue is to drop them.
    pub(crate) fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.news)
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
    pub(crate) fn retire(&mut self, item: ListArc<Entry<J>>) {
        // SAFETY: An entry belongs to one queue, which is this one.
        unsafe { self.state(&item) }.place = Place::Retired;
        self.retired.push_back(item);
        self.news = true;
    }

    /// Claims a fragment of the first request that has one, which goes to the end of the line.
    pub(crate) fn next(&mut self) -> Next<J> {
        // Bounded by `SCAN`.
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
    pub(crate) unsafe fn done(&mut self, entry: &Entry<J>) {
        // SAFETY: The entry is in a list of this queue, as this function asks for.
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
