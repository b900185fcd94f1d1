// SPDX-License-Identifier: MIT OR Apache-2.0

//! What C passes, as values of Rust: the types that a parameter of a C function may have.

use crate::error::{Failure, Result, invalid};
use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::{NonNull, slice_from_raw_parts_mut};
use std::sync::Arc;

/// A type of a parameter. An array has a shape beside its address: the number of its entries.
pub(crate) trait FromC<Shape = ()>: Sized {
    /// Its type in C.
    type C;

    /// The argument of this name.
    ///
    /// # Errors
    ///
    /// `LIBCOPY_EINVAL`: a null pointer, or an array that no memory has.
    ///
    /// # Safety
    ///
    /// What the text of the crate asks of the caller of a C function.
    unsafe fn from_c(name: &'static str, from: Self::C, shape: Shape) -> Result<Self>;
}

/// What passes unchanged: numbers, and addresses that the function checks itself.
macro_rules! unchanged {
    ($($type:ty $(, $generic:ident)?;)*) => { $(
        impl$(<$generic>)? FromC for $type {
            type C = $type;

            unsafe fn from_c(_: &'static str, from: $type, (): ()) -> Result<Self> {
                Ok(from)
            }
        }
    )* };
}

unchanged! { c_int; u32; u64; i64; usize; isize; *const T, T; *mut T, T; }

#[cold]
fn null(name: &str) -> Failure {
    invalid(format!("{name} is null"))
}

/// What C passes as an address that must not be null: the type, that in C, and the value.
macro_rules! pointed_to {
    ($([$($generics:tt)*] $type:ty: $c:ty = |$from:ident| $value:expr;)*) => { $(
        impl<$($generics)*> FromC for $type {
            type C = $c;

            unsafe fn from_c(name: &'static str, $from: $c, (): ()) -> Result<Self> {
                if $from.is_null() {
                    return Err(null(name));
                }
                // SAFETY: not null, and the caller guarantees what the type stands for.
                Ok(unsafe { $value })
            }
        }
    )* };
}

pointed_to! {
    [T] &T: *const T = |from| &*from;
    [T] &mut T: *mut T = |from| &mut *from;
    [] &CStr: *const c_char = |from| CStr::from_ptr(from);
    [T] Shared<'_, T>: *mut T = |from| Shared(&*from);
    [T] Out<'_, T>: *mut T = |from| Out(&mut *from.cast());
    [T: Handle] New<'_, T>: *mut *mut T = |from| New::at(&mut *from.cast());
    // Rust lays an optional box out as an address that may be null.
    [T: Handle] InOut<'_, T>: *mut *mut T = |from| InOut(&mut *from.cast());
    // Handles came from `Handle::into_raw`, and the caller gives them up.
    [T: Handle] Box<T>: *mut T = |from| Box::from_raw(from);
    [T: Handle] Arc<T>: *mut T = |from| Arc::from_raw(from.cast_const());
}

/// A handle that other threads may use during the call.
pub(crate) struct Shared<'a, T>(&'a T);

impl<T> Deref for Shared<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

/// Where C wants a value.
pub(crate) struct Out<'a, T>(&'a mut MaybeUninit<T>);

impl<T> Out<'_, T> {
    /// Never fails: the result is that of the function whose last output it is.
    pub fn put(self, value: T) -> Result {
        self.0.write(value);
        Ok(())
    }
}

/// What C knows by its address alone.
pub(crate) trait Handle: Sized {
    fn into_raw(self) -> *mut Self {
        Box::into_raw(Box::new(self))
    }
}

/// Where C wants a new handle. It is null until then, and so after every error.
pub(crate) struct New<'a, T>(&'a mut MaybeUninit<*mut T>);

impl<'a, T: Handle> New<'a, T> {
    fn at(variable: &'a mut MaybeUninit<*mut T>) -> Self {
        variable.write(std::ptr::null_mut());
        New(variable)
    }

    /// As [`Out::put`].
    pub fn put(self, made: impl Into<T>) -> Result {
        Out(self.0).put(made.into().into_raw())
    }
}

/// A variable of C with a handle that the function may take from it.
pub(crate) struct InOut<'a, T>(pub &'a mut Option<Box<T>>);

/// What may be null.
impl<Shape, T: FromC<Shape, C: Address>> FromC<Shape> for Option<T> {
    type C = T::C;

    unsafe fn from_c(name: &'static str, from: T::C, shape: Shape) -> Result<Self> {
        if from.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's guarantees are those of this function.
        unsafe { T::from_c(name, from, shape) }.map(Some)
    }
}

pub(crate) trait Address {
    fn is_null(&self) -> bool;
}

macro_rules! addresses {
    ($($type:ty)*) => { $(
        impl<T> Address for $type {
            fn is_null(&self) -> bool {
                (*self).is_null()
            }
        }
    )* };
}

addresses! { *const T *mut T }

/// An array, unless no memory has it. An empty one may be said to be anywhere.
#[inline]
fn array<T>(name: &str, from: *mut T, length: usize) -> Result<*mut [T]> {
    let is_short = length <= isize::MAX as usize / size_of::<T>();
    let all = slice_from_raw_parts_mut(from, length);
    match length {
        0 => Ok(slice_from_raw_parts_mut(NonNull::dangling().as_ptr(), 0)),
        _ if is_short && !from.is_null() && from.is_aligned() => Ok(all),
        _ => Err(no_array(name, from, length)),
    }
}

#[cold]
fn no_array<T>(name: &str, from: *mut T, length: usize) -> Failure {
    invalid(match (from.is_null(), from.is_aligned()) {
        (true, _) => format!("{name} is null, but {length} entries are asked for"),
        (_, true) => format!("{name} of {length} entries is longer than memory can be"),
        (_, false) => format!("{name} is not aligned as its entries are"),
    })
}

impl<T> FromC<usize> for &[T] {
    type C = *const T;

    unsafe fn from_c(name: &'static str, from: *const T, length: usize) -> Result<Self> {
        // SAFETY: the caller guarantees the entries.
        Ok(unsafe { &*array(name, from.cast_mut(), length)? })
    }
}

impl<T> FromC<usize> for &mut [T] {
    type C = *mut T;

    unsafe fn from_c(name: &'static str, from: *mut T, length: usize) -> Result<Self> {
        // SAFETY: the caller guarantees the entries, and that nobody else uses them.
        Ok(unsafe { &mut *array(name, from, length)? })
    }
}

/// An array with room for more entries than the function may have.
pub(crate) struct Room<'a, T>(&'static str, *mut [T], PhantomData<&'a mut [T]>);

impl<'a, T> Room<'a, T> {
    /// Whether C only asks how many entries there are.
    pub fn is_null(&self) -> bool {
        self.1.is_null()
    }

    /// Room for the first entries.
    #[inline]
    pub fn first(self, needed: usize) -> Result<&'a mut [T]> {
        let Room(name, all, _) = self;
        if all.len() < needed {
            let room = all.len();
            let reason = format!("room for {room} {name}, but there are {needed}");
            return Err(invalid(reason));
        }
        // SAFETY: the caller of the C function guarantees room for all.
        unsafe { FromC::from_c(name, all.cast(), needed) }
    }
}

impl<T> FromC<usize> for Room<'_, T> {
    type C = *mut T;

    unsafe fn from_c(name: &'static str, from: *mut T, max: usize) -> Result<Self> {
        Ok(Room(name, slice_from_raw_parts_mut(from, max), PhantomData))
    }
}

/// Bytes that are read or written, which C may have let overlap those that are sent.
pub(crate) struct Memory<'a>(*mut [u8], PhantomData<&'a mut [u8]>);

impl<'a> Memory<'a> {
    pub fn read(self) -> &'a [u8] {
        // SAFETY: the caller of the C function guarantees the bytes.
        unsafe { &*self.0 }
    }

    pub fn write(self) -> &'a mut [u8] {
        // SAFETY: the caller of the C function guarantees the bytes.
        unsafe { &mut *self.0 }
    }

    /// Refuses buffers that share bytes: as slices they would be undefined behaviour.
    pub fn apart_from(self, send: &[u8]) -> Result<&'a mut [u8]> {
        let (s, r) = (send.as_ptr().addr(), self.0.addr());
        let is_apart = s.saturating_add(send.len()) <= r || r.saturating_add(self.0.len()) <= s;
        if !is_apart && !send.is_empty() && !self.0.is_empty() {
            return Err(invalid(
                "send and recv overlap; give them memory of their own",
            ));
        }
        Ok(self.write())
    }
}

impl FromC<usize> for Memory<'_> {
    type C = *mut u8;

    unsafe fn from_c(name: &'static str, from: *mut u8, length: usize) -> Result<Self> {
        Ok(Memory(array(name, from, length)?, PhantomData))
    }
}

/// A text for C with the zero at its end, cut where the room ends.
pub(crate) fn copy_text(text: &str, to: &mut [c_char]) {
    let Some(last) = to.len().checked_sub(1) else {
        return;
    };
    let length = text.len().min(last);
    for (to, from) in to.iter_mut().zip(&text.as_bytes()[..length]) {
        *to = *from as c_char;
    }
    to[length] = 0;
}
