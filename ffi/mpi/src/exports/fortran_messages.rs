// SPDX-License-Identifier: MIT OR Apache-2.0

//! Point-to-point functions as Fortran programs call them, which Open MPI's Fortran library takes
//! past us (see [`crate::exports::fortran`]). Where no messages are intercepted, the library's own
//! functions go on.
//!
//! Handles are numbers in Fortran, and indices begin with 1. A status is the same numbers as in C.
//! `mpi_f08` reaches the functions with logical arguments by the names that begin with `pmpi_`.

use std::ffi::{c_int, c_void};

use crate::comm::processes::world;
use crate::exports::completion;
use crate::exports::fortran_arguments::{
    Message, Request, fortran_function, passed, status, type_in_fortran, value_in_c, written_back,
};
use crate::library::abi::{UNDEFINED, Word, function, symbol_name};
use crate::library::functions;
use crate::library::functions::argument_type;
use crate::library::panics::caught;
use crate::library::pmpi;
use crate::library::requests::Roles;
use crate::messages::{announce, start};
use crate::types::fortran_names::{buffer, past_us};

/// An array of requests in the same way.
struct Requests {
    place: *mut c_int,
    handles: Vec<Word>,
}

impl Requests {
    /// # Safety
    ///
    /// The place has `count` requests of Fortran's.
    unsafe fn read(count: *const c_int, place: *mut c_int) -> Requests {
        // SAFETY: the caller's promise.
        let handles = unsafe {
            let count = usize::try_from(*count).unwrap_or(0);
            (0..count).map(|i| pmpi::request_f2c(*place.add(i)))
        };
        Requests {
            place,
            handles: handles.collect(),
        }
    }

    fn pointer(&mut self) -> *mut c_void {
        self.handles.as_mut_ptr().cast()
    }

    /// # Safety
    ///
    /// The place is writable.
    unsafe fn write(&self) {
        for (i, handle) in self.handles.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *self.place.add(i) = pmpi::request_c2f(*handle) };
        }
    }
}

/// Indices begin with 1.
///
/// # Safety
///
/// The place has an index of C's.
unsafe fn shift(index: *mut c_int) {
    // SAFETY: the caller's promise.
    unsafe {
        if *index != UNDEFINED && *index >= 0 {
            *index += 1;
        }
    }
}

type Number = *const c_int;
type Place = *mut c_int;
type Memory = *mut c_void;

/// Declares Fortran functions under all their names. Where they need not be ours, the next
/// functions of these names are called.
macro_rules! functions {
    ($([$($name:ident),*] $arguments:tt $body:block)*) => { $(
        $(functions!(@one $name $arguments $body);)*
    )* };
    (@one $name:ident $arguments:tt $body:block) => {
        fortran_function!($name $arguments is_theirs(), $body);
    };
}

/// Whether nothing is known of any message or request, or Fortran's functions call C's.
fn is_theirs() -> bool {
    let is_known = world().is_some() || !Roles::BY_C.now().are_none();
    !is_known || !past_us()
}

/// Declares the functions of the table that have Fortran's names.
macro_rules! declare {
    ($($rust:ident $arguments:tt $comm:tt = [$c:ident $large:ident] [$($name:ident)*];)*) => {
        $($( declare!(@one $name = $c $arguments); )*)*
    };
    (@one $name:ident = $c:ident ($($argument:ident: $kind:ident),*)) => {
        functions! {
            [$name] ($($argument: type_in_fortran!($kind)),*) {
                unsafe extern "C" {
                    fn $c($($argument: argument_type!(c_int, $kind)),*) -> c_int;
                }
                $(let $argument = value_in_c!($kind, $argument);)*
                let code = $c($(passed!($kind, $argument)),*);
                if code == 0 {
                    $(written_back!($kind, $argument);)*
                }
                code
            }
        }
    };
}

functions::messages!(declare);

functions! {
    [mpi_probe_, ompi_probe_f] (source: Number, tag: Number, comm: Number, state: Memory) {
        completion::MPI_Probe(*source, *tag, pmpi::comm_f2c(*comm), status(state))
    }

    [mpi_iprobe_, ompi_iprobe_f, pmpi_iprobe_] (source: Number, tag: Number, comm: Number,
                                             flag: Place, state: Memory) {
        completion::MPI_Iprobe(*source, *tag, pmpi::comm_f2c(*comm), flag, status(state))
    }

    [mpi_mprobe_, ompi_mprobe_f] (source: Number, tag: Number, comm: Number, message: Place,
                               state: Memory) {
        let (comm, found) = (pmpi::comm_f2c(*comm), Message::new(message));
        let code = completion::MPI_Mprobe(*source, *tag, comm, found.pointer(), status(state));
        if code == 0 {
            found.write();
        }
        code
    }

    [mpi_improbe_, ompi_improbe_f, pmpi_improbe_] (source: Number, tag: Number, comm: Number,
                                                flag: Place, message: Place, state: Memory) {
        let (comm, found) = (pmpi::comm_f2c(*comm), Message::new(message));
        let at = found.pointer();
        let code = completion::MPI_Improbe(*source, *tag, comm, flag, at, status(state));
        if code == 0 && *flag != 0 {
            found.write();
        }
        code
    }

    [mpi_wait_, ompi_wait_f] (request: Place, state: Memory) {
        let own = Request::read(request);
        let code = completion::MPI_Wait(own.pointer(), status(state));
        own.write();
        code
    }

    [mpi_test_, ompi_test_f, pmpi_test_] (request: Place, flag: Place, state: Memory) {
        let own = Request::read(request);
        let code = completion::MPI_Test(own.pointer(), flag, status(state));
        own.write();
        code
    }

    [mpi_waitall_, ompi_waitall_f] (count: Number, requests: Place, states: Memory) {
        let mut own = Requests::read(count, requests);
        let code = completion::MPI_Waitall(*count, own.pointer(), status(states));
        own.write();
        code
    }

    [mpi_testall_, ompi_testall_f, pmpi_testall_] (count: Number, requests: Place, flag: Place,
                                                states: Memory) {
        let mut own = Requests::read(count, requests);
        let code = completion::MPI_Testall(*count, own.pointer(), flag, status(states));
        own.write();
        code
    }

    [mpi_waitany_, ompi_waitany_f] (count: Number, requests: Place, index: Place, state: Memory) {
        let mut own = Requests::read(count, requests);
        let code = completion::MPI_Waitany(*count, own.pointer(), index, status(state));
        own.write();
        shift(index);
        code
    }

    [mpi_testany_, ompi_testany_f, pmpi_testany_] (count: Number, requests: Place, index: Place,
                                                flag: Place, state: Memory) {
        let mut own = Requests::read(count, requests);
        let code = completion::MPI_Testany(*count, own.pointer(), index, flag, status(state));
        own.write();
        if *flag != 0 {
            shift(index);
        }
        code
    }

    [mpi_waitsome_, ompi_waitsome_f] (count: Number, requests: Place, done: Place, indices: Place,
                                   states: Memory) {
        let mut own = Requests::read(count, requests);
        let code = completion::MPI_Waitsome(*count, own.pointer(), done, indices, status(states));
        own.write();
        for i in 0..usize::try_from(*done).unwrap_or(0) {
            shift(indices.add(i));
        }
        code
    }

    [mpi_testsome_, ompi_testsome_f, pmpi_testsome_] (count: Number, requests: Place, done: Place,
                                                   indices: Place, states: Memory) {
        let mut own = Requests::read(count, requests);
        let code = completion::MPI_Testsome(*count, own.pointer(), done, indices, status(states));
        own.write();
        for i in 0..usize::try_from(*done).unwrap_or(0) {
            shift(indices.add(i));
        }
        code
    }

    [mpi_request_get_status_, ompi_request_get_status_f, pmpi_request_get_status_] (
        request: Number, flag: Place, state: Memory
    ) {
        let handle = pmpi::request_f2c(*request);
        completion::MPI_Request_get_status(handle, flag, status(state))
    }

    [mpi_request_free_, ompi_request_free_f] (request: Place) {
        let own = Request::read(request);
        let code = completion::MPI_Request_free(own.pointer());
        own.write();
        code
    }

    [mpi_cancel_, ompi_cancel_f] (request: Place) {
        completion::MPI_Cancel(Request::read(request).pointer())
    }

    [mpi_start_, ompi_start_f] (request: Place) {
        let own = Request::read(request);
        let code = completion::MPI_Start(own.pointer());
        own.write();
        code
    }

    [mpi_startall_, ompi_startall_f] (count: Number, requests: Place) {
        let mut own = Requests::read(count, requests);
        let code = completion::MPI_Startall(*count, own.pointer());
        own.write();
        code
    }
}

/// `MPI_INIT` and `MPI_INIT_THREAD`: the library's own, after which messages may be intercepted.
macro_rules! inits {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => { $(
        /// The Fortran function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind,)* error: *mut c_int) {
            function!(NEXT = symbol_name!(stringify!($name)));
            let address = NEXT.address();
            if address == 0 {
                return;
            }
            let mut code = 0;
            let _ = caught(announce);
            // SAFETY: the MPI library's function of this name has this type.
            unsafe {
                let call: unsafe extern "C-unwind" fn($($kind,)* *mut c_int) =
                    std::mem::transmute(address);
                call($($argument,)* &raw mut code);
                if !error.is_null() {
                    *error = code;
                }
            }
            let _ = caught(|| start(code));
        }
    )* };
}

inits! {
    mpi_init_();
    ompi_init_f();
    mpi_init_thread_(required: Number, provided: Place);
    ompi_init_thread_f(required: Number, provided: Place);
}
