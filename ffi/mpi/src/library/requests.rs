// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests that mean something to this library, by handle, and the calls that complete them.
//!
//! A request may have several roles: a persistent send out of device memory is a message, and has a
//! buffer that is packed. Each role's folder keeps what it knows in a [`Table`] of its own. One
//! word says which roles any request has, so that a function that completes requests asks once, and
//! forwards at once where there are none.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use libcopy::lock::lock;

use crate::library::abi::{Abi, UNDEFINED, Word};

/// What a request is to this library.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Role {
    /// A message of ours, or a receive that may turn out to be for one.
    Message = 1,
    /// A short receive. Once there was one, there may be one for ever.
    Short = 2,
    /// Has a buffer in device memory.
    Device = 4,
    /// A nonblocking collective of ours that is under way.
    Collective = 8,
    /// A persistent collective whose starts may be ours.
    PersistentCollective = 16,
    /// A persistent request that the library does not say to be inactive.
    Persistent = 32,
    /// Reads arrays of ours in the place of the program's.
    Kept = 64,
    /// No request's: the time in functions is taken ([`crate::library::times`]).
    Timed = 128,
    /// A message of ours that is no plain receive.
    OtherMessage = 256,
    /// No request's: threads may call at the same time, or the library has not been asked yet.
    Threads = 512,
}

/// The roles that any request has.
#[unsafe(link_section = "libcopy_hot_words")]
static ROLES: AtomicU32 = AtomicU32::new(Role::Threads as u32);

/// Which roles any request has at the moment, of some.
#[derive(Clone, Copy)]
pub struct Roles(u32);

impl Roles {
    /// What concerns a function that completes requests.
    pub const COMPLETED: Roles = Roles(
        Role::Message as u32
            | Role::Short as u32
            | Role::Device as u32
            | Role::Collective as u32
            | Role::Timed as u32,
    );
    /// What only the functions for C know, where there are no messages of ours.
    pub const BY_C: Roles = Roles(
        Role::Device as u32
            | Role::Collective as u32
            | Role::Persistent as u32
            | Role::Timed as u32,
    );
    /// What is forgotten when the request is freed, whoever does it.
    pub const FORGOTTEN: Roles = Roles(Role::PersistentCollective as u32 | Role::Persistent as u32);
    /// What matters where short receives are noted.
    pub const NOTED: Roles = Roles(Role::Short as u32 | Role::Threads as u32);
    /// Of [`Roles::COMPLETED`], what gets on meanwhile.
    pub const UNDER_WAY: Roles = Roles(Role::Message as u32 | Role::Collective as u32);
    /// What concerns a function that starts or cancels requests.
    pub const STARTED: Roles = Roles(
        Role::Message as u32
            | Role::Device as u32
            | Role::PersistentCollective as u32
            | Role::Timed as u32,
    );

    /// Those of these that there are.
    #[inline(always)]
    pub fn now(self) -> Roles {
        Roles(ROLES.load(Ordering::Relaxed) & self.0)
    }

    #[inline(always)]
    pub fn are_none(self) -> bool {
        self.0 == 0
    }

    /// These without one.
    pub const fn without(self, role: Role) -> Roles {
        Roles(self.0 & !(role as u32))
    }

    #[inline(always)]
    pub fn have(self, role: Role) -> bool {
        self.0 & role as u32 != 0
    }
}

impl Role {
    /// Whether any request has it.
    #[inline(always)]
    pub fn exists(self) -> bool {
        ROLES.load(Ordering::Relaxed) & self as u32 != 0
    }

    /// Says whether any request has it, while the lock is held of what is known of those; but for
    /// [`Role::OtherMessage`] and [`Role::Threads`], which matter only where one thread calls.
    pub fn set(self, exists: bool) {
        if exists {
            ROLES.fetch_or(self as u32, Ordering::Relaxed);
        } else {
            ROLES.fetch_and(!(self as u32), Ordering::Relaxed);
        }
    }
}

/// Has no request have a role, in a forked child: those of its parent are not its own.
pub fn forget_all() {
    ROLES.fetch_and(Role::Threads as u32, Ordering::Relaxed);
}

/// Spreads handles, which are addresses or small numbers.
#[derive(Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

type Entries<T> = HashMap<Word, T, BuildHasherDefault<Spread>>;

/// What is known of requests with one role, by handle.
pub struct Table<T> {
    role: Role,
    entries: Mutex<Entries<T>>,
    len: AtomicUsize,
}

impl<T> Table<T> {
    pub const fn new(role: Role) -> Table<T> {
        Table {
            role,
            entries: Mutex::new(HashMap::with_hasher(BuildHasherDefault::new())),
            len: AtomicUsize::new(0),
        }
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn change<R>(&self, change: impl FnOnce(&mut Entries<T>) -> R) -> R {
        let mut entries = lock(&self.entries);
        let result = change(&mut entries);
        let (before, now) = (self.len(), entries.len());
        self.len.store(now, Ordering::Relaxed);
        if (before == 0) != (now == 0) {
            self.role.set(now != 0);
        }
        result
    }

    /// What was there is returned, so that it is dropped where the table is not locked.
    pub fn insert(&self, handle: Word, entry: T) -> Option<T> {
        self.change(|entries| entries.insert(handle, entry))
    }

    pub fn remove(&self, handle: Word) -> Option<T> {
        self.change(|entries| entries.remove(&handle))
    }

    pub fn clear(&self) {
        let all = self.change(std::mem::take);
        drop(all);
    }

    /// What is there, to be read.
    pub fn read(&self) -> MutexGuard<'_, Entries<T>> {
        lock(&self.entries)
    }

    pub fn get(&self, handle: Word) -> Option<T>
    where
        T: Clone,
    {
        self.read().get(&handle).cloned()
    }

    /// All entries; `None` if another thread has the table.
    pub fn try_all(&self) -> Option<Vec<T>>
    where
        T: Clone,
    {
        match self.entries.try_lock() {
            Ok(entries) => Some(entries.values().cloned().collect()),
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => None,
        }
    }
}

/// Which of its requests a call completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    One,
    All,
    Any,
    Some,
}

/// A call of a function that completes requests: its arguments, null for those that it lacks.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub which: Which,
    pub waits: bool,
    pub count: c_int,
    pub requests: *mut c_void,
    /// Of those that do not wait, but for `MPI_Testsome`.
    pub flag: *mut c_int,
    /// How many `MPI_Waitsome` and `MPI_Testsome` have completed.
    pub done: *mut c_int,
    /// An index, or several.
    pub index: *mut c_int,
    pub statuses: *mut c_void,
}

impl Completion {
    /// A call about one request, without any.
    #[inline(always)]
    pub fn new(which: Which) -> Completion {
        Completion {
            which,
            waits: false,
            count: 1,
            requests: null_mut(),
            flag: null_mut(),
            done: null_mut(),
            index: null_mut(),
            statuses: null_mut(),
        }
    }

    /// Says that nothing is complete.
    ///
    /// # Safety
    ///
    /// The pointers are those that the MPI standard asks for, here and below.
    pub unsafe fn say_none(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.which {
                Which::Some => *self.done = 0,
                _ => *self.flag = 0,
            }
        }
    }

    /// Whether a function that does not wait has found what is waited for, and no error.
    pub unsafe fn found(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            match self.which {
                Which::Some => *self.done != 0,
                _ => self.waits || *self.flag != 0,
            }
        }
    }

    /// How many requests the function has completed one by one, after it has returned this code.
    unsafe fn completed(&self, abi: &Abi, code: c_int) -> usize {
        // SAFETY: the caller's promise.
        match unsafe { *self.done } {
            _ if code != 0 && code != abi.in_status => 0,
            UNDEFINED => 0,
            number => usize::try_from(number).unwrap_or(0),
        }
    }

    /// Where the status is of the request with this index, after the function has returned this
    /// code; `None` if it has not completed that one.
    pub unsafe fn place_of(&self, abi: &Abi, code: c_int, index: usize) -> Option<usize> {
        let is = |at: *const c_int| {
            // SAFETY: the caller's promise.
            usize::try_from(unsafe { *at }) == Ok(index)
        };
        // SAFETY: the caller's promise.
        unsafe {
            match self.which {
                Which::Some => {
                    (0..self.completed(abi, code)).find(|place| is(self.index.add(*place)))
                }
                _ if code == 0 && !self.found() => None,
                Which::Any => is(self.index).then_some(0),
                Which::One | Which::All => Some(index),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_exists_as_long_as_a_table_has_requests() {
        let table = Table::new(Role::Kept);
        assert!(!Role::Kept.exists());
        assert_eq!(table.insert(1, 'a'), None);
        assert_eq!(table.insert(2, 'b'), None);
        assert_eq!(table.insert(1, 'c'), Some('a'));
        assert_eq!((table.len(), table.get(1)), (2, Some('c')));
        assert_eq!((table.remove(1), table.remove(3)), (Some('c'), None));
        assert!(Role::Kept.exists());
        table.clear();
        assert!(!Role::Kept.exists());
        assert_eq!((table.len(), table.get(2)), (0, None));
    }

    #[test]
    fn a_role_does_not_concern_all_functions() {
        let roles = Roles(Role::Persistent as u32 | Role::Message as u32);
        assert!(roles.have(Role::Message) && !roles.have(Role::Device));
        assert!(!roles.without(Role::Message).are_none());
        assert!(
            roles
                .without(Role::Message)
                .without(Role::Persistent)
                .are_none()
        );
        assert_eq!(Roles::COMPLETED.0 & Role::Persistent as u32, 0);
    }
}
