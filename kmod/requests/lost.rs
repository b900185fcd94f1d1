// SPDX-License-Identifier: GPL-2.0

//! [`Lost`]: the fragments that engines were given and have not copied.
//!
//! The list is protected by a spin lock that callbacks take. So an entry is allocated before the
//! lock is taken and freed after it was released. A fragment counts as in work until it was taken
//! out and copied, so that a request whose last reference goes has an empty list.

use kernel::alloc::AllocError;
use kernel::prelude::*;

/// One of them.
pub(crate) struct LostFragment {
    fragment: u64,
    next: Option<KBox<LostFragment>>,
}

impl LostFragment {
    /// For a list.
    pub(crate) fn new(fragment: u64) -> Result<KBox<Self>, AllocError> {
        let next = None;
        KBox::new(Self { fragment, next }, GFP_KERNEL)
    }

    /// Which one it is.
    pub(crate) fn fragment(&self) -> u64 {
        self.fragment
    }
}

/// Those of a request, the last one first.
pub(crate) struct Lost(Option<KBox<LostFragment>>);

impl Lost {
    /// None.
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Adds one.
    pub(crate) fn push(&mut self, mut lost: KBox<LostFragment>) {
        lost.next = self.0.take();
        self.0 = Some(lost);
    }

    /// Takes one out.
    pub(crate) fn pop(&mut self) -> Option<KBox<LostFragment>> {
        let mut first = self.0.take()?;
        self.0 = first.next.take();
        Some(first)
    }
}
