// SPDX-License-Identifier: MIT OR Apache-2.0

//! Functions of requests and probes as C programs call them: none of them counts elements.
//!
//! A function that is about requests asks one word which roles any request has ([`Roles`]), and is
//! forwarded at once where there are none that it has to do with. Otherwise come in this order:
//! requests with buffers in device memory, short receives, nonblocking collectives, messages, and
//! the MPI library; but `MPI_Test` and `MPI_Testany` ask the library first where that says all.

use std::ffi::{c_int, c_void};
use std::ptr::null;

use crate::collectives::{nonblocking, persistent};
use crate::comm::processes::world;
use crate::decide::active::active;
use crate::gpu;
use crate::library::abi::Word;
use crate::library::fallback;
use crate::library::panics::guarded;
use crate::library::pmpi::forward;
use crate::library::profile;
use crate::library::requests::{Completion, Role, Roles, Which};
use crate::library::times::{self, Kind};
use crate::library::unusual;
use crate::messages::probing::{improbe, iprobe, iprobe_at_once, mprobe, probe};
use crate::messages::{requests, short_receives};

/// One function. It concerns requests with `roles`; without these it is never forwarded at once.
/// Each of the others may do what the function has to, and returns its code then: `device`, if
/// there are requests with buffers in device memory; `short`, with the function as it is without
/// it, if a short receive is among the requests; `at_once`, where nothing but messages is under
/// way; `first`, where nonblocking collectives are; and `try`. `by_library_first` does what all of
/// these but `device` have to, on its condition. `profile` notes the call that it is given, where
/// the profiler is on.
macro_rules! function {
    ($name:ident($($argument:ident: $kind:ty),*) => $pass:path,
        profile: |$call:ident| $profile:expr,
        $(roles: $roles:expr,)?
        $(by_library_first($may:expr): $by_library:expr,)?
        device: $device:expr,
        $(short($is_noted:expr): |$forwarded:ident| $short:expr,)?
        $(at_once: $at_once:expr,)?
        $(first: $first:expr,)?
        try: |$world:ident| $try:expr) => {
        /// The MPI function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            // Elsewhere, so that what is forwarded at once needs no room on the stack; here and
            // below.
            #[inline(never)]
            unsafe extern "C-unwind" fn other($($argument: $kind),*) -> c_int {
                // SAFETY: the caller's promise.
                let code = guarded(|| unsafe {
                    $(if nonblocking::any() {
                        if let Some(code) = $first {
                            return code;
                        }
                    })?
                    if let Some($world) = world() {
                        if let Some(code) = $try {
                            return code;
                        }
                    }
                    $pass($($argument),*)
                });
                if unusual::has_orphans() {
                    requests::settle_orphans(code)
                } else {
                    code
                }
            }
            #[inline(never)]
            unsafe extern "C-unwind" fn known($($argument: $kind),*) -> c_int {
                // SAFETY: the caller's promise.
                unsafe {
                    $(if !unusual::has_orphans() && !nonblocking::any() {
                        if let Some(code) = $at_once {
                            return code;
                        }
                    })?
                    other($($argument),*)
                }
            }
            function!(@noted $pass, ($($argument: $kind),*),
                $($is_noted => |$forwarded| $short)?);
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn profiled($($argument: $kind),*) -> c_int {
                // SAFETY: the caller's promise.
                #[allow(unused_unsafe)]
                unsafe {
                    let $call: profile::Program<'_> = &mut || $name($($argument),*);
                    $profile
                }
            }
            /// The same where times are taken, or requests have buffers in device memory.
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn unusual($($argument: $kind),*) -> c_int {
                // SAFETY: the caller's promise.
                unsafe {
                    if Role::Timed.exists() {
                        if let Some(_timed) = times::begin(Kind::Message) {
                            return if profile::is_on() {
                                profiled($($argument),*)
                            } else {
                                unusual($($argument),*)
                            };
                        }
                    }
                    gpu::with_gpu! {
                        if Role::Device.exists() {
                            let done: Option<c_int> = $device;
                            if let Some(code) = done {
                                return code;
                            }
                        }
                    }
                    function!(@ask roles, $pass, ($($argument),*),
                        $($roles.without(Role::Timed).without(Role::Device))?);
                    $(if $may {
                        return $by_library;
                    })?
                    function!(@short roles, ($($argument),*), $($forwarded)?);
                    known($($argument),*)
                }
            }
            // SAFETY: the caller's promise.
            unsafe {
                function!(@ask roles, $pass, ($($argument),*), $($roles)?);
                if roles.have(Role::Timed) || roles.have(Role::Device) {
                    return unusual($($argument),*);
                }
                $(if $may {
                    return $by_library;
                })?
                function!(@short roles, ($($argument),*), $($forwarded)?);
                known($($argument),*)
            }
        }
    };
    (@noted $pass:path, $arguments:tt, ) => {};
    (@noted $pass:path, ($($argument:ident: $kind:ty),*),
        $is_noted:expr => |$forwarded:ident| $short:expr) => {
        #[inline(never)]
        unsafe extern "C-unwind" fn noted($($argument: $kind),*) -> c_int {
            let is_idle = Roles::UNDER_WAY.now().are_none();
            // SAFETY: the caller's promise.
            unsafe {
                let $forwarded = move |$($argument: $kind),*| if is_idle {
                    $pass($($argument),*)
                } else {
                    known($($argument),*)
                };
                if $is_noted {
                    $short
                } else {
                    $forwarded($($argument),*)
                }
            }
        }
    };
    (@ask $found:ident, $pass:path, $arguments:tt, ) => {
        let $found = Roles::COMPLETED.now();
    };
    (@ask $found:ident, $pass:path, ($($argument:ident),*), $roles:expr) => {
        let $found = $roles.now();
        if $found.are_none() {
            return $pass($($argument),*);
        }
    };
    (@short $roles:ident, $arguments:tt, ) => {
        let _ = $roles;
    };
    (@short $roles:ident, ($($argument:ident),*), $forwarded:ident) => {
        if $roles.have(Role::Short) {
            return noted($($argument),*);
        }
    };
}

/// Functions that complete requests. The last argument is the status or statuses, in the place of
/// which others may be needed.
macro_rules! completing {
    ($($name:ident($($argument:ident: $kind:ty),*; $status:ident) => $pass:path,
        $which:ident $waits:literal { $($field:ident: $value:expr),* }
        $(by_library_first($may:expr): $by_library:expr)?;)*) => { $(
        function! {
            $name($($argument: $kind,)* $status: *mut c_void) => $pass,
            profile: |call| profile::completion(
                stringify!($name),
                &completing!(@call $which $waits $status $($field: $value),*),
                call,
            ),
            roles: Roles::COMPLETED,
            $(by_library_first($may): $by_library,)?
            device: gpu::complete(
                &completing!(@call $which $waits $status $($field: $value),*),
                move |$status| $name($($argument,)* $status),
            ),
            short({
                let call = completing!(@call $which $waits $status $($field: $value),*);
                short_receives::may_have(&call)
            }): |forwarded| short_receives::complete(
                || completing!(@call $which $waits $status $($field: $value),*),
                move |$status| forwarded($($argument,)* $status),
            ),
            at_once: requests::complete_at_once(
                &completing!(@call $which $waits $status $($field: $value),*),
            ),
            first: under_way(&completing!(@call $which $waits $status $($field: $value),*)),
            try: |world| requests::complete(
                world,
                &completing!(@call $which $waits $status $($field: $value),*),
            )
        }
    )* };
    (@call $which:ident $waits:literal $status:ident $($field:ident: $value:expr),*) => {
        Completion {
            waits: $waits,
            statuses: $status,
            $($field: $value,)*
            ..Completion::new(Which::$which)
        }
    };
}

completing! {
    MPI_Wait(request: *mut c_void; status) => forward::wait, One true { requests: request };
    MPI_Test(request: *mut c_void, flag: *mut c_int; status) => forward::test,
        One false { requests: request, flag: flag }
        by_library_first(short_receives::asks_library_first(request, flag)):
            short_receives::test(request, flag, status);
    MPI_Waitall(count: c_int, requests: *mut c_void; statuses) => forward::waitall,
        All true { count: count, requests: requests };
    MPI_Testall(count: c_int, requests: *mut c_void, flag: *mut c_int; statuses) => forward::testall,
        All false { count: count, requests: requests, flag: flag };
    MPI_Waitany(count: c_int, requests: *mut c_void, index: *mut c_int; status) => forward::waitany,
        Any true { count: count, requests: requests, index: index };
    MPI_Testany(count: c_int, requests: *mut c_void, index: *mut c_int, flag: *mut c_int; status)
        => forward::testany, Any false { count: count, requests: requests, index: index, flag: flag };
    MPI_Waitsome(count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int; statuses)
        => forward::waitsome,
        Some true { count: count, requests: requests, done: done, index: indices };
    MPI_Testsome(count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int; statuses)
        => forward::testsome,
        Some false { count: count, requests: requests, done: done, index: indices };
}

/// Before a function that completes requests, where nonblocking collectives are under way.
///
/// # Safety
///
/// As the MPI standard says, for this and all functions below.
#[cold]
unsafe fn under_way(call: &Completion) -> Option<c_int> {
    let (count, requests, statuses) = (call.count, call.requests, call.statuses);
    // SAFETY: the caller's promise.
    unsafe {
        nonblocking::before(active()?, call, || match call.which {
            Which::Some => {
                let code = MPI_Testsome(count, requests, call.done, call.index, statuses);
                (code, call.found())
            }
            _ => {
                let mut flag = 0;
                let code = MPI_Testany(count, requests, call.index, &mut flag, statuses);
                (code, flag != 0)
            }
        })
    }
}

/// The same for a function that tells how requests are doing.
#[cold]
fn asking() -> Option<c_int> {
    nonblocking::before_asking(active()?);
    None
}

/// Nobody may free the request of a collective (MPI 4.1, section 6.12); who does it all the same
/// has it completed.
#[cold]
unsafe fn freeing(request: *const c_void) -> Option<c_int> {
    // SAFETY: one request.
    unsafe { nonblocking::before_waiting(active()?, 1, request) };
    None
}

function! {
    MPI_Request_get_status(request: Word, flag: *mut c_int, status: *mut c_void)
        => forward::request_get_status,
    profile: |call| profile::other("MPI_Request_get_status", flag, call),
    roles: Roles::COMPLETED,
    device: gpu::get_status(request, flag, status, move |status| {
        MPI_Request_get_status(request, flag, status)
    }),
    short(short_receives::is_noted(request)): |forwarded|
        short_receives::get_status(request, flag, status, forwarded),
    first: asking(),
    try: |world| requests::get_status(world, request, flag, status)
}

/// `MPI_Request_get_status_any` and its relatives.
macro_rules! asking {
    ($($name:ident($($argument:ident: $kind:ty),*; $status:ident)
        => $pass:ident, $which:ident { $($field:ident: $value:expr),* };)*) => { $(
        #[inline(always)]
        unsafe fn $pass(
            count: c_int,
            requests: *mut c_void,
            $($argument: $kind,)*
            $status: *mut c_void,
        ) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { fallback::ask(&asking!(@call count requests $which $status $($field: $value),*)) }
        }
        function! {
            $name(count: c_int, requests: *mut c_void, $($argument: $kind,)* $status: *mut c_void)
                => $pass,
            profile: |call| profile::other(stringify!($name), null(), call),
            roles: Roles::COMPLETED,
            device: gpu::ask(
                (count, requests),
                MPI_Request_get_status,
                || $name(count, requests, $($argument,)* $status),
            ),
            short(short_receives::has_any(count, requests)): |forwarded| short_receives::ask(
                &asking!(@call count requests $which $status $($field: $value),*),
                move || forwarded(count, requests, $($argument,)* $status),
            ),
            first: asking(),
            try: |world| requests::ask(
                world,
                &asking!(@call count requests $which $status $($field: $value),*),
            )
        }
    )* };
    (@call $count:ident $requests:ident $which:ident $status:ident $($field:ident: $value:expr),*) => {
        completing!(@call $which false $status
            count: $count, requests: $requests, $($field: $value),*)
    };
}

asking! {
    MPI_Request_get_status_any(index: *mut c_int, flag: *mut c_int; status)
        => ask_any, Any { index: index, flag: flag };
    MPI_Request_get_status_all(flag: *mut c_int; statuses) => ask_all, All { flag: flag };
    MPI_Request_get_status_some(done: *mut c_int, indices: *mut c_int; statuses)
        => ask_some, Some { done: done, index: indices };
}

function! {
    MPI_Request_free(request: *mut c_void) => persistent::request_free,
    profile: |call| profile::freeing(request, call),
    roles: Roles::COMPLETED,
    device: gpu::free(request, MPI_Test, MPI_Request_free),
    short(short_receives::has_any(1, request)): |forwarded|
        short_receives::free(request, forwarded),
    first: freeing(request),
    try: |world| requests::free(world, request)
}

function! {
    MPI_Cancel(request: *mut c_void) => forward::cancel,
    profile: |call| profile::other("MPI_Cancel", null(), call),
    roles: Roles::STARTED,
    device: gpu::before_cancel(),
    try: |world| requests::cancel(world, request)
}

function! {
    MPI_Start(request: *mut c_void) => forward::start,
    profile: |call| profile::starting("MPI_Start", 1, request, call),
    roles: Roles::STARTED,
    device: gpu::before_start(1, request).err(),
    try: |world| requests::start(world, request)
}

function! {
    MPI_Startall(count: c_int, requests: *mut c_void) => forward::startall,
    profile: |call| profile::starting("MPI_Startall", count, requests, call),
    roles: Roles::STARTED,
    device: gpu::before_start(count, requests).err(),
    try: |world| requests::startall(world, count, requests)
}

/// Probes; the last word is the flag that says whether there is a message.
macro_rules! probing {
    ($($name:ident($($argument:ident: $kind:ty),*) => $rust:ident, $pass:path, $device:path, $flag:expr
        $(, at_once: $at_once:expr)?;)*) => { $(
        function! {
            $name($($argument: $kind),*) => $pass,
            profile: |call| profile::other(stringify!($name), $flag, call),
            device: {
                $device();
                None
            },
            $(at_once: $at_once,)?
            try: |world| $rust(world, $($argument),*)
        }
    )* };
}

probing! {
    MPI_Probe(source: c_int, tag: c_int, comm: Word, status: *mut c_void)
        => probe, forward::probe, gpu::wait_for_others, null();
    MPI_Iprobe(source: c_int, tag: c_int, comm: Word, flag: *mut c_int, status: *mut c_void)
        => iprobe, forward::iprobe, gpu::get_on, flag, at_once: iprobe_at_once(source, tag, comm, flag, status);
    MPI_Mprobe(source: c_int, tag: c_int, comm: Word, message: *mut c_void, status: *mut c_void)
        => mprobe, forward::mprobe, gpu::wait_for_others, null();
    MPI_Improbe(source: c_int, tag: c_int, comm: Word, flag: *mut c_int, message: *mut c_void, status: *mut c_void)
        => improbe, forward::improbe, gpu::get_on, flag;
}
