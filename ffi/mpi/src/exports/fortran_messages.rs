// SPDX-License-Identifier: MIT OR Apache-2.0

//! Point-to-point functions as Fortran programs call them, which Open MPI's Fortran library takes
//! past us (see [`crate::exports::fortran`]). Where no messages are intercepted, the library's own
//! functions go on.
//!
//! Handles are numbers in Fortran, and indices begin with 1. A status is the same numbers as in C.
//! `mpi_f08` reaches the functions with logical arguments by the names that begin with `pmpi_`.

use std::ffi::{CStr, c_int, c_void};

use crate::collectives::nonblocking;
use crate::comm::processes::world;
use crate::exports::completion;
use crate::library::abi::{UNDEFINED, Word, function};
use crate::library::pmpi;
use crate::library::status::is_ignored;
use crate::messages::{announce, start};
use crate::types::fortran_names::{STATUS_IGNORE, STATUSES_IGNORE, buffer, past_us};

/// A request of Fortran's as C's variable, and back when it is done with.
struct Request {
    place: *mut c_int,
    handle: Word,
}

impl Request {
    /// One that is made.
    fn new(place: *mut c_int) -> Request {
        Request { place, handle: 0 }
    }

    /// One that is there.
    ///
    /// # Safety
    ///
    /// The place has a request of Fortran's.
    unsafe fn read(place: *mut c_int) -> Request {
        // SAFETY: the caller's promise.
        let handle = unsafe { pmpi::request_f2c(*place) };
        Request { place, handle }
    }

    fn pointer(&mut self) -> *mut c_void {
        (&raw mut self.handle).cast()
    }

    /// # Safety
    ///
    /// The place is writable.
    unsafe fn write(&self) {
        // SAFETY: the caller's promise.
        unsafe { *self.place = pmpi::request_c2f(self.handle) };
    }
}

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

/// A status as C calls it.
fn status(place: *mut c_void) -> *mut c_void {
    if STATUS_IGNORE.is(place) || STATUSES_IGNORE.is(place) || is_ignored(place) {
        std::ptr::null_mut()
    } else {
        place
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

/// The functions that count, which exist in two forms.
mod counting {
    use super::{Memory, Word};
    use std::ffi::{c_int, c_void};

    type Input = *const c_void;

    /// Functions of one shape.
    macro_rules! declare {
        ($shape:tt $($name:ident)*) => { $(declare!(@one $name $shape);)* };
        (@one $name:ident ($($argument:ident: $kind:ty),*)) => {
            unsafe extern "C" {
                pub fn $name($($argument: $kind),*) -> c_int;
            }
        };
    }

    declare! {
        (a: Input, n: c_int, t: Word, to: c_int, tag: c_int, comm: Word)
        MPI_Send MPI_Ssend MPI_Bsend MPI_Rsend
    }

    declare! {
        (a: Input, n: c_int, t: Word, to: c_int, tag: c_int, comm: Word, request: Memory)
        MPI_Isend MPI_Issend MPI_Ibsend MPI_Irsend
        MPI_Send_init MPI_Ssend_init MPI_Bsend_init MPI_Rsend_init
    }

    declare! {
        (a: Memory, n: c_int, t: Word, from: c_int, tag: c_int, comm: Word, request: Memory)
        MPI_Irecv MPI_Recv_init
    }

    unsafe extern "C" {
        pub fn MPI_Recv(
            a: Memory,
            n: c_int,
            t: Word,
            from: c_int,
            tag: c_int,
            comm: Word,
            status: Memory,
        ) -> c_int;
        pub fn MPI_Sendrecv(
            a: Input,
            n: c_int,
            t: Word,
            to: c_int,
            tag: c_int,
            b: Memory,
            m: c_int,
            u: Word,
            from: c_int,
            recv_tag: c_int,
            comm: Word,
            status: Memory,
        ) -> c_int;
        pub fn MPI_Sendrecv_replace(
            a: Memory,
            n: c_int,
            t: Word,
            to: c_int,
            tag: c_int,
            from: c_int,
            recv_tag: c_int,
            comm: Word,
            status: Memory,
        ) -> c_int;
        pub fn MPI_Mrecv(a: Memory, n: c_int, t: Word, message: Memory, status: Memory) -> c_int;
        pub fn MPI_Imrecv(a: Memory, n: c_int, t: Word, message: Memory, request: Memory) -> c_int;
    }
}

/// Declares Fortran functions under all their names. Where they need not be ours, the next
/// functions of these names are called.
macro_rules! functions {
    ($([$($name:ident),*] $arguments:tt $body:block)*) => { $(
        $(functions!(@one $name $arguments $body);)*
    )* };
    (@one $name:ident ($($argument:ident: $kind:ty),*) $body:block) => {
        /// The Fortran function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[allow(clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind,)* error: *mut c_int) {
            const NAME: &CStr =
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zeros"),
                };
            function!(NEXT = NAME);
            if (world().is_none() && !nonblocking::any()) || !past_us() {
                match NEXT.address() {
                    0 => return,
                    address => {
                        // SAFETY: the MPI library's function of this name has this type.
                        return unsafe {
                            let call: unsafe extern "C" fn($($kind,)* *mut c_int) =
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

/// The functions that send: as C's of the name `$c`.
macro_rules! sends {
    ($($name:ident, $inner:ident = $c:ident;)*) => {
        functions! { $(
            [$name, $inner] (data: Memory, count: Number, kind: Number, dest: Number, tag: Number,
                          comm: Number) {
                counting::$c(
                    buffer(data), *count, pmpi::type_f2c(*kind), *dest, *tag,
                    pmpi::comm_f2c(*comm),
                )
            }
        )* }
    };
}

/// The functions that return a request, for sending or receiving.
macro_rules! with_request {
    ($($name:ident, $inner:ident = $c:ident;)*) => {
        functions! { $(
            [$name, $inner] (data: Memory, count: Number, kind: Number, peer: Number, tag: Number,
                          comm: Number, request: Place) {
                let mut made = Request::new(request);
                let code = counting::$c(
                    buffer(data), *count, pmpi::type_f2c(*kind), *peer, *tag,
                    pmpi::comm_f2c(*comm), made.pointer(),
                );
                if code == 0 {
                    made.write();
                }
                code
            }
        )* }
    };
}

sends! {
    mpi_send_, ompi_send_f = MPI_Send;
    mpi_ssend_, ompi_ssend_f = MPI_Ssend;
    mpi_bsend_, ompi_bsend_f = MPI_Bsend;
    mpi_rsend_, ompi_rsend_f = MPI_Rsend;
}

with_request! {
    mpi_isend_, ompi_isend_f = MPI_Isend;
    mpi_issend_, ompi_issend_f = MPI_Issend;
    mpi_ibsend_, ompi_ibsend_f = MPI_Ibsend;
    mpi_irsend_, ompi_irsend_f = MPI_Irsend;
    mpi_send_init_, ompi_send_init_f = MPI_Send_init;
    mpi_ssend_init_, ompi_ssend_init_f = MPI_Ssend_init;
    mpi_bsend_init_, ompi_bsend_init_f = MPI_Bsend_init;
    mpi_rsend_init_, ompi_rsend_init_f = MPI_Rsend_init;
    mpi_irecv_, ompi_irecv_f = MPI_Irecv;
    mpi_recv_init_, ompi_recv_init_f = MPI_Recv_init;
}

functions! {
    [mpi_recv_, ompi_recv_f] (data: Memory, count: Number, kind: Number, source: Number, tag: Number,
                           comm: Number, state: Memory) {
        counting::MPI_Recv(
            buffer(data), *count, pmpi::type_f2c(*kind), *source, *tag, pmpi::comm_f2c(*comm),
            status(state),
        )
    }

    [mpi_sendrecv_, ompi_sendrecv_f] (send: Memory, send_count: Number, send_type: Number,
                                   dest: Number, send_tag: Number, recv: Memory,
                                   recv_count: Number, recv_type: Number, source: Number,
                                   recv_tag: Number, comm: Number, state: Memory) {
        counting::MPI_Sendrecv(
            buffer(send), *send_count, pmpi::type_f2c(*send_type), *dest, *send_tag,
            buffer(recv), *recv_count, pmpi::type_f2c(*recv_type), *source, *recv_tag,
            pmpi::comm_f2c(*comm), status(state),
        )
    }

    [mpi_sendrecv_replace_, ompi_sendrecv_replace_f] (data: Memory, count: Number, kind: Number,
                                                   dest: Number, send_tag: Number,
                                                   source: Number, recv_tag: Number,
                                                   comm: Number, state: Memory) {
        counting::MPI_Sendrecv_replace(
            buffer(data), *count, pmpi::type_f2c(*kind), *dest, *send_tag, *source, *recv_tag,
            pmpi::comm_f2c(*comm), status(state),
        )
    }

    [mpi_mrecv_, ompi_mrecv_f] (data: Memory, count: Number, kind: Number, message: Place,
                             state: Memory) {
        let mut handle = pmpi::message_f2c(*message);
        let at = (&raw mut handle).cast();
        let kind = pmpi::type_f2c(*kind);
        let code = counting::MPI_Mrecv(buffer(data), *count, kind, at, status(state));
        if code == 0 {
            *message = pmpi::message_c2f(handle);
        }
        code
    }

    [mpi_imrecv_, ompi_imrecv_f] (data: Memory, count: Number, kind: Number, message: Place,
                               request: Place) {
        let mut handle = pmpi::message_f2c(*message);
        let mut made = Request::new(request);
        let at = (&raw mut handle).cast();
        let kind = pmpi::type_f2c(*kind);
        let code = counting::MPI_Imrecv(buffer(data), *count, kind, at, made.pointer());
        if code == 0 {
            made.write();
            *message = pmpi::message_c2f(handle);
        }
        code
    }

    [mpi_probe_, ompi_probe_f] (source: Number, tag: Number, comm: Number, state: Memory) {
        completion::MPI_Probe(*source, *tag, pmpi::comm_f2c(*comm), status(state))
    }

    [mpi_iprobe_, ompi_iprobe_f, pmpi_iprobe_] (source: Number, tag: Number, comm: Number,
                                             flag: Place, state: Memory) {
        completion::MPI_Iprobe(*source, *tag, pmpi::comm_f2c(*comm), flag, status(state))
    }

    [mpi_mprobe_, ompi_mprobe_f] (source: Number, tag: Number, comm: Number, message: Place,
                               state: Memory) {
        let mut handle: Word = 0;
        let (comm, at) = (pmpi::comm_f2c(*comm), (&raw mut handle).cast());
        let code = completion::MPI_Mprobe(*source, *tag, comm, at, status(state));
        if code == 0 {
            *message = pmpi::message_c2f(handle);
        }
        code
    }

    [mpi_improbe_, ompi_improbe_f, pmpi_improbe_] (source: Number, tag: Number, comm: Number,
                                                flag: Place, message: Place, state: Memory) {
        let mut handle: Word = 0;
        let (comm, at) = (pmpi::comm_f2c(*comm), (&raw mut handle).cast());
        let code = completion::MPI_Improbe(*source, *tag, comm, flag, at, status(state));
        if code == 0 && *flag != 0 {
            *message = pmpi::message_c2f(handle);
        }
        code
    }

    [mpi_wait_, ompi_wait_f] (request: Place, state: Memory) {
        let mut own = Request::read(request);
        let code = completion::MPI_Wait(own.pointer(), status(state));
        own.write();
        code
    }

    [mpi_test_, ompi_test_f, pmpi_test_] (request: Place, flag: Place, state: Memory) {
        let mut own = Request::read(request);
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
        let mut own = Request::read(request);
        let code = completion::MPI_Request_free(own.pointer());
        own.write();
        code
    }

    [mpi_cancel_, ompi_cancel_f] (request: Place) {
        completion::MPI_Cancel(Request::read(request).pointer())
    }

    [mpi_start_, ompi_start_f] (request: Place) {
        let mut own = Request::read(request);
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
        pub unsafe extern "C" fn $name($($argument: $kind,)* error: *mut c_int) {
            const NAME: &CStr =
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zeros"),
                };
            function!(NEXT = NAME);
            let address = NEXT.address();
            if address == 0 {
                return;
            }
            let mut code = 0;
            let _ = std::panic::catch_unwind(announce);
            // SAFETY: the MPI library's function of this name has this type.
            unsafe {
                let call: unsafe extern "C" fn($($kind,)* *mut c_int) =
                    std::mem::transmute(address);
                call($($argument,)* &raw mut code);
                if !error.is_null() {
                    *error = code;
                }
            }
            let _ = std::panic::catch_unwind(|| start(code));
        }
    )* };
}

inits! {
    mpi_init_();
    ompi_init_f();
    mpi_init_thread_(required: Number, provided: Place);
    ompi_init_thread_f(required: Number, provided: Place);
}
