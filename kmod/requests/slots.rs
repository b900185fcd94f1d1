// SPDX-License-Identifier: GPL-2.0

//! [`SlotTable`]: the requests of a domain, by id, each with its entry of the status table.
//!
//! # Who owns a slot
//!
//! A slot of the table, and its entry of the status table, belong to a request from
//! [`SlotTable::publish`] until its last reference is gone: not only until it is released. An
//! engine may still work on a fragment of a released request, and counts it in the entry.

use crate::requests::status::{Status, StatusTable};
use crate::uapi::MAX_REQUESTS;
use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, CondVar, Mutex, SetOnce, UniqueArc};
use kernel::{c_str, static_lock_class};

/// No slot: the end of the list of free ones.
const NO_SLOT: u32 = u32::MAX;

struct Slot<T> {
    /// The request, until it is released.
    request: Option<Arc<T>>,
    /// Times that the slot was used.
    generation: u32,
    /// The next free slot, if this one is free.
    next: u32,
}

struct Slots<T> {
    slots: KVVec<Slot<T>>,
    /// Slots that belong to no request, the one that has been free for longest first.
    first: u32,
    last: u32,
    /// Requests that were released and are still referred to.
    lingering: u32,
}

impl<T> Slots<T> {
    /// Takes a slot that belongs to nobody.
    fn take(&mut self) -> Option<usize> {
        let count = self.slots.len();
        // An empty slot that was used is left alone for as long as there are fresh ones, so that
        // what it says about its last request can be read for a while.
        if count < MAX_REQUESTS as usize {
            let fresh = Slot {
                request: None,
                generation: 0,
                next: NO_SLOT,
            };
            if self.slots.push(fresh, GFP_KERNEL_ACCOUNT).is_ok() {
                return Some(count);
            }
        }
        let slot = self.first;
        self.first = self.slots.get(slot as usize)?.next;
        if self.first == NO_SLOT {
            self.last = NO_SLOT;
        }
        Some(slot as usize)
    }

    /// The last reference to the request of a slot is gone.
    fn give_back(&mut self, slot: u32) {
        self.slots[slot as usize].next = NO_SLOT;
        match self.slots.get_mut(self.last as usize) {
            Some(last) => last.next = slot,
            None => self.first = slot,
        }
        self.last = slot;
        self.lingering -= 1;
    }
}

/// What has a slot.
pub(crate) trait Occupant {
    /// Its id, by [`Self::place`].
    fn id(&self) -> u32;

    /// It has got an id, and an entry of the status table.
    fn place(&mut self, id: u32, status: Status);
}

/// The requests of a domain.
#[pin_data]
pub(crate) struct SlotTable<T: Occupant> {
    table: SetOnce<Arc<StatusTable>>,
    #[pin]
    slots: Mutex<Slots<T>>,
    /// Notified when a slot is given back.
    #[pin]
    freed: CondVar,
}

impl<T: Occupant> SlotTable<T> {
    /// None yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            table: SetOnce::new(),
            slots <- new_mutex!(Slots {
                slots: KVVec::new(),
                first: NO_SLOT,
                last: NO_SLOT,
                lingering: 0,
            }),
            freed <- CondVar::new(c_str!("libcopy::SlotTable::freed"), static_lock_class!()),
        })
    }

    /// The table that user space sees; made when it is first needed.
    pub(crate) fn table(&self) -> Result<Arc<StatusTable>> {
        if self.table.as_ref().is_none() {
            let new = StatusTable::new()?;
            // One at a time, so that it is there afterwards. If somebody was faster, theirs is
            // used.
            let slots = self.slots.lock();
            let refused = match self.table.as_ref() {
                None => {
                    self.table.populate(new);
                    None
                }
                Some(_) => Some(new),
            };
            drop(slots);
            drop(refused);
        }
        self.table.as_ref().cloned().ok_or(ENOMEM)
    }

    /// Gives a new request an id and makes it visible. If all slots are in use, waits for those
    /// whose requests were released and whose last fragments an engine still works on.
    ///
    /// - `ENOSPC`: there are as many as allowed.
    /// - `EINTR`: a signal came while it waited.
    pub(crate) fn publish(&self, mut request: UniqueArc<T>) -> Result<Arc<T>> {
        let table = self.table()?;
        let mut slots = self.slots.lock();
        let slot = loop {
            if let Some(slot) = slots.take() {
                break slot;
            }
            let error = if slots.lingering == 0 {
                ENOSPC
            } else if self.freed.wait_interruptible(&mut slots) {
                EINTR
            } else {
                continue;
            };
            // Dropped in this order, because that may unpin pages.
            drop(slots);
            drop(request);
            return Err(error);
        };
        let entry = &mut slots.slots[slot];
        entry.generation = entry.generation % (u32::MAX / MAX_REQUESTS) + 1;
        let id = entry.generation * MAX_REQUESTS + slot as u32;
        let status = Status::new(table, slot as u32);
        status.begin(id);
        request.place(id, status);
        let request = Arc::from(request);
        entry.request = Some(request.clone());
        Ok(request)
    }

    /// The last reference to a published request is gone, and with it the right to its slot.
    pub(crate) fn give_back(&self, id: u32) {
        self.slots.lock().give_back(id % MAX_REQUESTS);
        self.freed.notify_one();
    }

    /// Finds a request.
    pub(crate) fn find(&self, id: u32) -> Result<Arc<T>> {
        let slots = self.slots.lock();
        slots
            .slots
            .get((id % MAX_REQUESTS) as usize)
            .and_then(|slot| slot.request.as_ref())
            .filter(|request| request.id() == id)
            .cloned()
            .ok_or(ENOENT)
    }

    /// Forgets a request. Its slot stays its own until the last reference is gone.
    pub(crate) fn remove(&self, id: u32) -> Option<Arc<T>> {
        let mut slots = self.slots.lock();
        let slot = slots.slots.get_mut((id % MAX_REQUESTS) as usize)?;
        if slot.request.as_ref()?.id() != id {
            return None;
        }
        let request = slot.request.take()?;
        slots.lingering += 1;
        Some(request)
    }

    /// Requests that were not released.
    pub(crate) fn live(&self) -> usize {
        let slots = self.slots.lock();
        // Bounded by `MAX_REQUESTS`.
        slots
            .slots
            .iter()
            .filter(|slot| slot.request.is_some())
            .count()
    }
}
