// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arguments of a function for large counts as those of the one without, for libraries that have
//! only that.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use libcopy::lock::lock;

use crate::library::abi::Word;
use crate::library::count::{Count, Large};
use crate::library::{abi, pmpi};

/// Arrays with `int`s in the place of a call's own.
#[derive(Debug)]
pub struct Copies(Vec<Vec<c_int>>);

/// What requests may still read, by their handles. Of a handle that another request has, the one
/// before is complete: there are as many entries as there were requests at a time.
static KEPT: Mutex<Option<HashMap<Word, Copies>>> = Mutex::new(None);

impl Copies {
    /// None so far.
    pub fn new() -> Copies {
        Copies(Vec::new())
    }

    fn add(&mut self, copy: Vec<c_int>) -> *const c_int {
        let at = pmpi::pointer(&copy);
        self.0.push(copy);
        at
    }

    /// Keeps them as long as a request may read them.
    ///
    /// # Safety
    ///
    /// The library wrote a handle there.
    pub unsafe fn keep(self, request: *const c_void) {
        let Ok(abi) = abi::get() else {
            return;
        };
        // SAFETY: the caller's promise.
        let handle = unsafe { abi.handle_at(request, 0) } & abi.handle;
        let mut kept = lock(&KEPT);
        if self.0.iter().all(Vec::is_empty) {
            if let Some(kept) = kept.as_mut() {
                kept.remove(&handle);
            }
        } else {
            kept.get_or_insert_default().insert(handle, self);
        }
    }
}

/// An argument that the function without large counts has as a `To`.
pub trait Narrow<To> {
    /// The same; `None` if it does not fit. An array has `length` elements.
    ///
    /// # Safety
    ///
    /// An array that is not null has them.
    unsafe fn narrow(self, length: usize, copies: &mut Copies) -> Option<To>;
}

impl Narrow<c_int> for Large {
    unsafe fn narrow(self, _: usize, _: &mut Copies) -> Option<c_int> {
        Count::narrow(self)
    }
}

/// Numbers of elements.
impl Narrow<*const c_int> for *const Large {
    unsafe fn narrow(self, length: usize, copies: &mut Copies) -> Option<*const c_int> {
        // SAFETY: the caller's promise.
        let copy = unsafe { pmpi::narrowed_array(self, length, Count::narrow) };
        Some(copies.add(copy?))
    }
}

/// Where they are.
impl Narrow<*const c_int> for *const isize {
    unsafe fn narrow(self, length: usize, copies: &mut Copies) -> Option<*const c_int> {
        // SAFETY: the caller's promise.
        let copy = unsafe { pmpi::narrowed_array(self, length, Large::narrow_place) };
        Some(copies.add(copy?))
    }
}

/// What is the same in both forms.
macro_rules! unchanged {
    ($($kind:ty)*) => { $(
        impl Narrow<$kind> for $kind {
            unsafe fn narrow(self, _: usize, _: &mut Copies) -> Option<$kind> {
                Some(self)
            }
        }
    )* };
}

unchanged! { Word c_int *const c_void *mut c_void *const isize }
