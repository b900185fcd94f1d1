// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arguments of Fortran's functions as C's, by the kinds of
//! [`crate::library::functions::argument_type`], and what a Fortran function of ours looks like.
//!
//! Fortran gives the address of each argument. Handles are numbers there; Open MPI's C handles, the
//! only ones for which Fortran's functions are ours, are words.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use crate::library::abi::Word;
use crate::library::pmpi;
use crate::library::status::is_ignored;
use crate::types::fortran_names::{STATUS_IGNORE, STATUSES_IGNORE};

/// Declares a Fortran function, whose last argument is a variable for an error code. Where
/// `$is_theirs`, the next one of that name is called.
macro_rules! fortran_function {
    ($name:ident ($($argument:ident: $type:ty),*) $is_theirs:expr, $body:block) => {
        /// The Fortran function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[allow(clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type,)* error: *mut c_int) {
            function!(NEXT = symbol_name!(stringify!($name)));
            if $is_theirs {
                match NEXT.address() {
                    0 => return,
                    address => {
                        // SAFETY: the MPI library's function of this name has this type.
                        return unsafe {
                            let call: unsafe extern "C-unwind" fn($($type,)* *mut c_int) =
                                std::mem::transmute(address);
                            call($($argument,)* error)
                        };
                    }
                }
            }
            // SAFETY: the caller's promise: Fortran gives the addresses of its arguments.
            unsafe {
                let code: c_int = $body;
                if !error.is_null() {
                    *error = code;
                }
            }
        }
    };
}

/// What an argument is in Fortran.
macro_rules! type_in_fortran {
    (input) => { *mut c_void };
    (output) => { *mut c_void };
    (status) => { *mut c_void };
    (request) => { *mut c_int };
    (message) => { *mut c_int };
    (position) => { *mut c_int };
    // A datatype that is freed.
    (variable) => { *mut c_int };
    (bytes) => { *const isize };
    ($other:ident) => { *const c_int };
}

/// The same argument for C.
macro_rules! value_in_c {
    (input, $argument:ident) => {
        buffer($argument).cast_const()
    };
    (output, $argument:ident) => {
        buffer($argument)
    };
    (count, $argument:ident) => {
        *$argument
    };
    (number, $argument:ident) => {
        *$argument
    };
    (root, $argument:ident) => {
        *$argument
    };
    (datatype, $argument:ident) => {
        pmpi::type_f2c(*$argument)
    };
    (op, $argument:ident) => {
        pmpi::op_f2c(*$argument)
    };
    (comm, $argument:ident) => {
        pmpi::comm_f2c(*$argument)
    };
    (info, $argument:ident) => {
        pmpi::info_f2c(*$argument)
    };
    (status, $argument:ident) => {
        status($argument)
    };
    (request, $argument:ident) => {
        Request::new($argument)
    };
    (message, $argument:ident) => {
        Message::read($argument)
    };
    // Arrays, and variables of numbers.
    ($other:ident, $argument:ident) => {
        $argument
    };
}

/// That where it is passed.
macro_rules! passed {
    (types, $argument:ident) => {
        $argument.as_ptr().cast()
    };
    (sent_types, $argument:ident) => {
        $argument.as_ptr().cast()
    };
    (request, $argument:ident) => {
        $argument.pointer()
    };
    (message, $argument:ident) => {
        $argument.pointer()
    };
    ($other:ident, $argument:ident) => {
        $argument
    };
}

/// Writes back what the function has written, if it has not failed.
macro_rules! written_back {
    (request, $argument:ident) => {
        $argument.write()
    };
    (message, $argument:ident) => {
        $argument.write()
    };
    ($other:ident, $argument:ident) => {};
}
pub(crate) use {fortran_function, passed, type_in_fortran, value_in_c, written_back};

/// The handles of `length` datatypes.
///
/// # Safety
///
/// The array is null, or has this many.
pub unsafe fn types_in_c(types: *const c_int, length: usize) -> Vec<Word> {
    let length = if types.is_null() { 0 } else { length };
    // SAFETY: the caller's promise.
    let handle = |i| unsafe { pmpi::type_f2c(types.add(i).read()) };
    (0..length).map(handle).collect()
}

/// A status as C calls it.
pub fn status(place: *mut c_void) -> *mut c_void {
    if STATUS_IGNORE.is(place) || STATUSES_IGNORE.is(place) || is_ignored(place) {
        std::ptr::null_mut()
    } else {
        place
    }
}

/// A request of Fortran's as C's variable, and back when it is done with.
pub struct Request {
    place: *mut c_int,
    handle: Cell<Word>,
}

impl Request {
    /// One that is made.
    pub fn new(place: *mut c_int) -> Request {
        Request {
            place,
            handle: Cell::new(0),
        }
    }

    /// One that is there.
    ///
    /// # Safety
    ///
    /// The place has a request of Fortran's.
    pub unsafe fn read(place: *mut c_int) -> Request {
        // SAFETY: the caller's promise.
        let handle = Cell::new(unsafe { pmpi::request_f2c(*place) });
        Request { place, handle }
    }

    pub fn pointer(&self) -> *mut c_void {
        self.handle.as_ptr().cast()
    }

    /// # Safety
    ///
    /// The place is writable.
    pub unsafe fn write(&self) {
        // SAFETY: the caller's promise.
        unsafe { *self.place = pmpi::request_c2f(self.handle.get()) };
    }
}

/// A message of Fortran's in the same way.
pub struct Message {
    place: *mut c_int,
    handle: Cell<Word>,
}

impl Message {
    /// One that is received.
    ///
    /// # Safety
    ///
    /// The place has a message of Fortran's.
    pub unsafe fn read(place: *mut c_int) -> Message {
        // SAFETY: the caller's promise.
        let handle = Cell::new(unsafe { pmpi::message_f2c(*place) });
        Message { place, handle }
    }

    /// One that is found.
    pub fn new(place: *mut c_int) -> Message {
        Message {
            place,
            handle: Cell::new(0),
        }
    }

    pub fn pointer(&self) -> *mut c_void {
        self.handle.as_ptr().cast()
    }

    /// # Safety
    ///
    /// The place is writable.
    pub unsafe fn write(&self) {
        // SAFETY: the caller's promise.
        unsafe { *self.place = pmpi::message_c2f(self.handle.get()) };
    }
}
