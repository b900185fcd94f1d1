// SPDX-License-Identifier: GPL-2.0

//! [`Account`]: who pays for the pages of a mapping.
//!
//! As long as pages are pinned somebody pays for them:
//!
//! - the owner, within the `RLIMIT_MEMLOCK` of its process, for as long as it has a region of them
//!   or keeps them for reuse;
//! - the user of each process that attached them, once, within the limit of that process;
//! - if neither is left, because a request is all that holds them, the owner's user, whose
//!   processes can pin that much less.
//!
//! No charge takes a lock of an address space: who drops pages does not wait for their owner.

use crate::abstractions::shim;
use crate::memory::user::User;
use kernel::mm::Mm;
use kernel::prelude::*;
use kernel::sync::aref::ARef;

/// What was charged for an attachment.
pub(crate) struct Attached {
    user: User,
    /// Pages; none if the user may lock any.
    pages: u64,
    views: u32,
}

/// Who pays for the pages of a mapping.
pub(crate) struct Account {
    mm: ARef<Mm>,
    /// Of the owner.
    user: User,
    pages: u64,
    pins: u64,
    /// Whether the owner may lock any number of pages.
    unlimited: bool,
    /// Whether the owner pays.
    owned: bool,
    /// Whether the owner's user does.
    lingering: bool,
    attached: KVec<Attached>,
}

impl Account {
    /// Charges the calling process, which is one of `user`, for a mapping of `pages` pages with
    /// `pins` pins.
    ///
    /// - `ENOMEM`: its `RLIMIT_MEMLOCK` would be exceeded, or its user has pinned too much.
    /// - `ENOSPC`: its user has too many mappings.
    pub(crate) fn new(mm: &Mm, user: &User, pages: usize, pins: usize) -> Result<Self> {
        let (pages, pins) = (pages as u64, pins as u64);
        user.admit(pins)?;
        let unlimited = shim::may_lock_any();
        if let Err(error) = shim::charge_mm(mm, pages, user.lingering(), unlimited) {
            user.dismiss(pins);
            return Err(error);
        }
        Ok(Self {
            mm: mm.into(),
            user: user.clone(),
            pages,
            pins,
            unlimited,
            owned: true,
            lingering: false,
            attached: KVec::new(),
        })
    }

    /// The owner keeps the pages no more.
    pub(crate) fn let_go(&mut self) {
        if self.owned {
            self.owned = false;
            self.find_payer();
            shim::uncharge_mm(&self.mm, self.pages);
        }
    }

    /// Keeps the rule for pages that the owner does not pay for.
    fn find_payer(&mut self) {
        let wanted = !self.owned && !self.unlimited && self.attached.is_empty();
        if wanted && !self.lingering {
            self.user.linger(self.pages);
        } else if !wanted && self.lingering {
            self.user.linger_no_more(self.pages);
        }
        self.lingering = wanted;
    }

    /// Charges the calling process's user for a view of the pages.
    ///
    /// - `ENOMEM`: its `RLIMIT_MEMLOCK` would be exceeded.
    pub(crate) fn attach(&mut self, user: &User) -> Result {
        if let Some(known) = self.attached.iter_mut().find(|known| known.user == *user) {
            known.views += 1;
            return Ok(());
        }
        let pages = if shim::may_lock_any() { 0 } else { self.pages };
        self.attached.reserve(1, GFP_KERNEL_ACCOUNT)?;
        user.charge(pages)?;
        let _ = self.attached.push_within_capacity(Attached {
            user: user.clone(),
            pages,
            views: 1,
        });
        self.find_payer();
        Ok(())
    }

    /// A view is gone; returns what is to be dropped.
    pub(crate) fn detach(&mut self, user: &User) -> Option<Attached> {
        let index = self.attached.iter().position(|known| known.user == *user)?;
        self.attached[index].views -= 1;
        if self.attached[index].views != 0 {
            return None;
        }
        let gone = self.attached.remove(index).ok()?;
        self.find_payer();
        gone.user.uncharge(gone.pages);
        Some(gone)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // Every attachment holds the mapping, so that none is left.
        if self.lingering {
            self.user.linger_no_more(self.pages);
        }
        if self.owned {
            shim::uncharge_mm(&self.mm, self.pages);
        }
        self.user.dismiss(self.pins);
    }
}
