// SPDX-License-Identifier: GPL-2.0

//! [`Process`]: a member with its address space: it publishes memory and submits requests, until
//! its end, when what it published goes.

use crate::abstractions::errno;
use crate::abstractions::shim;
use crate::base::few::Few;
use crate::base::stats::Counter;
use crate::domain::member::Member;
use crate::domain::region::Region;
use crate::file::domains::Shared;
use crate::memory::address_space::{Listener, Registration};
use crate::memory::mapping::{Mapping, Owner};
use crate::memory::pin;
use crate::memory::shrinker;
use crate::requests::copier::Queue;
use crate::requests::copiers;
use crate::requests::request::Request;
use crate::uapi::{Piece, CREATE_NO_REUSE, MAX_REGION_BYTES, RESULT_REUSED, RIGHT_WRITE};
use kernel::mm::MmWithUser;
use kernel::prelude::*;
use kernel::sync::{Arc, UniqueArc};

/// A process that uses one file of a domain.
pub(crate) struct Process {
    pub(crate) shared: Arc<Shared>,
    pub(crate) member: Arc<Member>,
    /// For what CPUs are to do for its requests.
    pub(crate) queue: Arc<Queue<Request>>,
}

/// A cycle (an address space holds its listeners), broken by `depart`, which every file calls for
/// its processes when it is released.
impl Listener for Process {
    fn changed(&self) {
        self.member.domain.stats.add(Counter::Invalidations, 1);
        self.member.sweep();
    }

    fn released(&self) {
        if !self.member.has_left() {
            self.member.mark_dead();
        }
        self.depart();
    }
}

impl Process {
    /// Makes the calling process a member.
    pub(crate) fn new(mm: &MmWithUser, shared: &Arc<Shared>) -> Result<Arc<Self>> {
        let space = Arc::new(Registration::new(mm)?, GFP_KERNEL_ACCOUNT)?;
        let member = Member::new(mm, &shared.domain, space)?;
        // Before the queue is opened: only `depart` closes it.
        let place = UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let this: Arc<Self> = place
            .write(Self {
                shared: shared.clone(),
                queue: copiers::open(&member.space)?,
                member,
            })
            .into();
        let heard = this.member.space.listen(this.clone());
        if let Err(error) = heard.and_then(|()| shrinker::register(this.member.clone())) {
            this.depart();
            return Err(error);
        }
        Ok(this)
    }

    /// Whether this is the process that `mm` belongs to, and it is a member.
    pub(crate) fn is_here(&self, mm: &MmWithUser) -> bool {
        self.member.is(mm) && !self.member.has_left()
    }

    /// The last file is closed. If that happens because the process is exiting, it died: its
    /// address space may outlive its files when somebody else is just looking at it.
    pub(crate) fn file_closed(&self) {
        if !self.member.has_left() && (self.member.is_exiting() || self.member.is_dead()) {
            self.member.mark_dead();
        }
        self.depart();
    }

    /// Takes the process out of the domain: its regions go, its idle mappings are unpinned.
    /// Called once or many times, the first call does it.
    pub(crate) fn depart(&self) {
        let Some(left) = self.member.leave() else {
            return;
        };
        self.member.space.ignore(self);
        shrinker::unregister(&*self.member);
        for id in &left.requests {
            if let Some(request) = self.shared.requests.remove(*id) {
                Request::fail(&request, errno::ecanceled());
            }
            shim::cond_resched_interrupted();
        }
        for id in &left.regions {
            if let Some(region) = self.shared.regions.remove(*id, self.member.is_dead()) {
                region.mapping.let_go();
            }
            shim::cond_resched_interrupted();
        }
        drop(left);
        copiers::close(&self.member.space, &self.queue);
    }

    /// Cancels this process's requests and waits for what engines have begun, so that nobody writes
    /// to memory that the process is about to use otherwise. A signal ends only the waiting.
    pub(crate) fn cancel_requests(&self) {
        while let Some(id) = self.member.take_request() {
            if let Some(request) = self.shared.requests.remove(id) {
                Request::fail(&request, errno::ecanceled());
                let _ = request.wait(&mut -1);
            }
        }
    }

    /// Pins (or finds pinned) the calling process's memory and publishes it. Returns `RESULT_*`
    /// bits, too.
    pub(crate) fn create_region(
        &self,
        mm: &MmWithUser,
        pieces: Few<Piece>,
        rights: u32,
        flags: u32,
    ) -> Result<(Arc<Region>, u32)> {
        let mut total = 0u64;
        for piece in pieces.iter() {
            total = total.checked_add(piece.len).ok_or(EOVERFLOW)?;
        }
        if total > MAX_REGION_BYTES {
            return Err(EOVERFLOW);
        }
        let wraps = |piece: &Piece| piece.base.checked_add(piece.len).is_none();
        if pieces.iter().any(wraps) {
            return Err(EFAULT);
        }
        let owner = &self.member;
        let stats = &owner.domain.stats;
        let reusable = flags & CREATE_NO_REUSE == 0;
        let write = rights & RIGHT_WRITE != 0;
        let idle = if reusable {
            owner.take_idle(&pieces, write)
        } else {
            None
        };
        let found = match idle {
            Some(mapping) if !pin::permitted(mm, &pieces, write) => {
                mapping.let_go();
                None
            }
            other => other,
        };
        let (mapping, result) = match found {
            Some(mapping) => {
                stats.add(Counter::ReuseHits, 1);
                (mapping, RESULT_REUSED)
            }
            None => {
                stats.add(Counter::ReuseMisses, 1);
                let payer = Owner {
                    space: &owner.space,
                    stats,
                    user: &owner.user,
                };
                let copy = pieces.copy(GFP_KERNEL_ACCOUNT)?;
                let mapping = match Mapping::create(mm, &payer, pieces, write, reusable) {
                    // What is only kept for later must not stand in the way of what is needed now.
                    Err(error) if (error == ENOMEM || error == ENOSPC) && owner.drop_idle() => {
                        Mapping::create(mm, &payer, copy, write, reusable)?
                    }
                    other => other?,
                };
                (mapping, 0)
            }
        };
        let region = Region::new(owner, mapping, rights)?;
        let region = self.shared.regions.publish(region)?;
        if let Err(error) = owner.adopt(region.id) {
            self.shared.regions.remove(region.id, owner.is_dead());
            region.mapping.let_go();
            return Err(error);
        }
        Ok((region, result))
    }
}
