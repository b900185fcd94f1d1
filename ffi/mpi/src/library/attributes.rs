// SPDX-License-Identifier: MIT OR Apache-2.0

//! What we know of the MPI library's objects, kept as an attribute of each, so that an object that
//! is freed and whose handle comes back is another one (MPI 4.1, section 7.7).

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use libcopy::lock::lock;

use crate::library::abi::Word;
use crate::library::pmpi::{self, CopyAttribute, DeleteAttribute};

/// How the library keeps attributes of one kind of objects.
pub struct Functions {
    create_keyval: unsafe fn(CopyAttribute, DeleteAttribute, *mut c_int, *mut c_void) -> c_int,
    get: unsafe fn(Word, c_int, *mut *mut c_void, *mut c_int) -> c_int,
    set: unsafe fn(Word, c_int, *mut c_void) -> c_int,
}

/// Attributes of communicators.
pub const COMMUNICATORS: Functions = Functions {
    create_keyval: pmpi::comm_create_keyval,
    get: pmpi::comm_get_attr,
    set: pmpi::comm_set_attr,
};

/// Attributes of datatypes.
pub const DATATYPES: Functions = Functions {
    create_keyval: pmpi::type_create_keyval,
    get: pmpi::type_get_attr,
    set: pmpi::type_set_attr,
};

/// What is known of one kind of objects.
pub trait Kept: Sized + Send + Sync + 'static {
    /// Of which objects these are attributes.
    const FUNCTIONS: Functions;

    /// Where it is kept.
    fn cache() -> &'static Cache<Self>;

    /// The object with this handle is freed.
    fn goes(&self, object: Word) {
        let _ = object;
    }
}

/// Why nothing is known of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// The library does not accept it.
    Object,
    /// The library does not keep attributes for us.
    Attribute,
}

/// Values of attributes: numbers from here on.
const FIRST: usize = 16;

/// Generations of handles.
const PLACES: usize = 64;

/// Where a handle's generation is, below [`PLACES`]. Only the low half of a word may be a handle.
#[inline(always)]
pub fn place_of(object: Word) -> usize {
    (object as u32).wrapping_mul(0x9e37_79b1) as usize >> 26
}

struct Registry<T> {
    known: BTreeMap<usize, Arc<T>>,
    next: usize,
}

/// Everything that is known of one kind of objects.
pub struct Cache<T> {
    keyval: OnceLock<Option<c_int>>,
    registry: Mutex<Registry<T>>,
    /// Change when an object goes, whose handle may come back as another's: one for all handles of
    /// a place, so that what is known of others stays.
    generations: [AtomicU64; PLACES],
    /// Held while an object becomes known, so that no two threads do that: the second attribute
    /// would delete the first, which the first thread uses. Not the registry, which is locked where
    /// the library deletes an attribute.
    becoming_known: Mutex<()>,
}

impl<T: Kept> Cache<T> {
    /// Nothing is known.
    pub const fn new() -> Self {
        Cache {
            keyval: OnceLock::new(),
            registry: Mutex::new(Registry {
                known: BTreeMap::new(),
                next: FIRST,
            }),
            generations: [const { AtomicU64::new(1) }; PLACES],
            becoming_known: Mutex::new(()),
        }
    }

    /// As long as this stays the same, what is known of this handle is so, too. Never zero.
    #[inline(always)]
    pub fn generation(&self, object: Word) -> u64 {
        self.generations[place_of(object)].load(Ordering::Relaxed)
    }

    fn registry(&self) -> MutexGuard<'_, Registry<T>> {
        lock(&self.registry)
    }

    /// Forgets everything: the program ends.
    pub fn clear(&self) {
        for generation in &self.generations {
            generation.fetch_add(1, Ordering::Relaxed);
        }
        let known = std::mem::take(&mut self.registry().known);
        drop(known);
    }

    /// Everything that is known.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.registry().known.values().cloned().collect()
    }

    fn forget(&self, object: Word, number: usize) {
        self.generations[place_of(object)].fetch_add(1, Ordering::Relaxed);
        let known = self.registry().known.remove(&number);
        if let Some(known) = &known {
            known.goes(object);
        }
        // Not under the lock: what goes may delete other attributes.
        drop(known);
    }

    fn keyval(&self) -> Option<c_int> {
        *self.keyval.get_or_init(|| {
            let mut keyval = 0;
            // SAFETY: both functions have the types that the standard asks for.
            let answer = unsafe {
                let (copy, delete) = (copy_attribute, delete_attribute::<T>);
                (T::FUNCTIONS.create_keyval)(copy, delete, &mut keyval, ptr::null_mut())
            };
            (answer == 0).then_some(keyval)
        })
    }

    /// What is known of an object, which `examine` finds out the first time; `None` from it says
    /// that the library does not accept the object.
    ///
    /// # Errors
    ///
    /// Why nothing is known.
    pub fn of(&self, object: Word, examine: impl FnOnce() -> Option<T>) -> Result<Arc<T>, Unknown> {
        let keyval = self.keyval().ok_or(Unknown::Attribute)?;
        if let Some(known) = self.find(object, keyval)? {
            return Ok(known);
        }
        let alone = lock(&self.becoming_known);
        if let Some(known) = self.find(object, keyval)? {
            return Ok(known);
        }
        let made = self.make_known(object, keyval, examine);
        drop(alone);
        made
    }

    /// What the attribute of an object stands for, if it has one.
    fn find(&self, object: Word, keyval: c_int) -> Result<Option<Arc<T>>, Unknown> {
        let (mut value, mut found) = (ptr::null_mut(), 0);
        // SAFETY: both outputs are writable. An invalid object is an error that we pass on.
        let answer = unsafe { (T::FUNCTIONS.get)(object, keyval, &mut value, &mut found) };
        if answer != 0 {
            return Err(Unknown::Object);
        }
        if found == 0 {
            return Ok(None);
        }
        let known = self.registry().known.get(&(value as usize)).cloned();
        known.map(Some).ok_or(Unknown::Attribute)
    }

    /// Gives an object without an attribute one.
    fn make_known(
        &self,
        object: Word,
        keyval: c_int,
        examine: impl FnOnce() -> Option<T>,
    ) -> Result<Arc<T>, Unknown> {
        let known = Arc::new(examine().ok_or(Unknown::Object)?);
        let mut registry = self.registry();
        let number = registry.next;
        registry.next += 1;
        registry.known.insert(number, known.clone());
        drop(registry);
        // SAFETY: the value is a number to MPI.
        let answer = unsafe { (T::FUNCTIONS.set)(object, keyval, number as *mut c_void) };
        if answer != 0 {
            // Without the attribute nobody would tell us when the object goes.
            self.forget(object, number);
            return Err(Unknown::Attribute);
        }
        Ok(known)
    }
}

/// A duplicate of an object has no such attribute: it is unknown until somebody asks.
///
/// # Safety
///
/// `flag` is writable.
pub unsafe extern "C-unwind" fn copy_attribute(
    _object: Word,
    _keyval: c_int,
    _extra: *mut c_void,
    _old: *mut c_void,
    _new: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: the library gives the address of a flag.
    unsafe { *flag = 0 };
    0
}

unsafe extern "C-unwind" fn delete_attribute<T: Kept>(
    object: Word,
    _keyval: c_int,
    value: *mut c_void,
    _extra: *mut c_void,
) -> c_int {
    T::cache().forget(object, value as usize);
    0
}
