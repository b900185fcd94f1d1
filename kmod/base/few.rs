// SPDX-License-Identifier: GPL-2.0

//! [`Few`]: a list that allocates nothing while it has one element.
//!
//! Most regions are one piece of memory, which is one span of pages and, in a huge page, one run.
//! An allocation that is charged to a cgroup costs more than what is done with the element.

use core::ops::{Deref, DerefMut};
use kernel::alloc::{AllocError, Flags};
use kernel::prelude::*;

/// Elements in order.
pub(crate) enum Few<T> {
    /// Exactly one, in place.
    One([T; 1]),
    /// Any number.
    Many(KVVec<T>),
}

impl<T: Copy> Few<T> {
    /// None.
    pub(crate) const fn new() -> Self {
        Self::Many(KVVec::new())
    }

    /// None, with room for `capacity`.
    pub(crate) fn with_capacity(capacity: usize, flags: Flags) -> Result<Self, AllocError> {
        match capacity {
            0 | 1 => Ok(Self::new()),
            _ => Ok(Self::Many(KVVec::with_capacity(capacity, flags)?)),
        }
    }

    /// Adds an element at the end.
    pub(crate) fn push(&mut self, value: T, flags: Flags) -> Result<(), AllocError> {
        match self {
            Self::Many(list) if list.capacity() == 0 => *self = Self::One([value]),
            Self::Many(list) => list.push(value, flags)?,
            Self::One([first]) => {
                // Where there are two there are more.
                let mut list = KVVec::with_capacity(4, flags)?;
                list.push(*first, flags)?;
                list.push(value, flags)?;
                *self = Self::Many(list);
            }
        }
        Ok(())
    }

    /// A copy of all elements.
    pub(crate) fn copy(&self, flags: Flags) -> Result<Self, AllocError> {
        Self::first(self, self.len(), flags)
    }

    /// The first `count` elements of `all`.
    pub(crate) fn first(all: &[T], count: usize, flags: Flags) -> Result<Self, AllocError> {
        match all[..count] {
            [only] => Ok(Self::One([only])),
            ref all => {
                let mut list = KVVec::with_capacity(all.len(), flags)?;
                list.extend_from_slice(all, flags)?;
                Ok(Self::Many(list))
            }
        }
    }

    /// Forgets the elements from `count` on, but not the room for them.
    pub(crate) fn truncate(&mut self, count: usize) {
        match self {
            Self::Many(list) => list.truncate(count),
            Self::One(_) if count == 0 => *self = Self::new(),
            Self::One(_) => {}
        }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => one,
            Self::Many(list) => list,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(one) => one,
            Self::Many(list) => list,
        }
    }
}
