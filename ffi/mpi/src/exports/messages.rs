// SPDX-License-Identifier: MIT OR Apache-2.0

//! Functions that send and receive as C programs call them: those that count elements, each in a
//! form whose count is an `int` and in one whose count is an `MPI_Count`.

use std::ffi::{c_int, c_void};

use libcopy::p2p::{self, header};

use crate::comm::processes::{World, world};
use crate::decide::{threshold, worth};
#[cfg(feature = "gpu")]
use crate::exports::completion;
use crate::gpu;
use crate::library::abi::Word;
use crate::library::count::{Count, Large};
use crate::library::fallback;
use crate::library::panics::guarded;
use crate::library::pmpi::forward;
use crate::library::profile;
use crate::library::status::{Room, Status};
use crate::library::times::{self, Kind};
use crate::library::unusual;
use crate::messages::arguments::{Address, Elements, Mode, are_left};
#[cfg(feature = "gpu")]
use crate::messages::device;
use crate::messages::receiving::arrived;
use crate::messages::sending::{notice, were_passed};
use crate::messages::{lengths, packed, probes, requests, send, short_receives};
use crate::types::datatype;

/// Both forms of a function that counts elements; `N` is what counts. What is tiny is forwarded
/// before anything else. Behind the arguments: how buffers in device memory are replaced, on which
/// communicator, and the status or request of the function. With `library`, the MPI library's
/// function may be handed device memory, if the condition holds. With `peer`, what may be done
/// without replacing anything, since the receiver copies what is sent.
macro_rules! both {
    ($($name:ident, $large:ident = |$($argument:ident: $kind:ty),*| $gpu:tt
       $(peer($peer:expr))?
       $(library($free:expr => $call:expr))?
       $([$tiny:expr => $short:expr])* $body:block)*) => { $(
        both!(@form c_int, $name, ($($argument: $kind),*) $gpu [$($peer)?] [$($free => $call)?] [$($tiny => $short),*] $body);
        both!(@form Large, $large, ($($argument: $kind),*) $gpu [$($peer)?] [$($free => $call)?] [$($tiny => $short),*] $body);
    )* };
    (@staged $name:ident, ($($argument:ident: $kind:ty),*) [$($peer:expr)?] [$($free:expr => $call:expr)?]
     ($new:ident($comm:expr), $end:ident($($last:ident $(, $init:expr)?)?), $($role:ident($buffer:ident, $count:ident, $type:ident)),+)) => {
        gpu::with_gpu! {
        /// The same with host memory in the place of what is in device memory.
        #[cold]
        #[inline(never)]
        #[allow(clippy::too_many_arguments, clippy::unnecessary_cast, trivial_casts)]
        unsafe extern "C-unwind" fn staged($($argument: $kind),*) -> c_int {
            // SAFETY: the caller's promise.
            unsafe {
                gpu::get_on();
                $(if let Some(code) = $peer {
                    return code;
                })?
                let Some(mut call) = gpu::Call::$new($comm) else {
                    return gpu::inside(|| $name($($argument),*));
                };
                $(
                    let _ = stringify!($call);
                    if $free {
                        call.goes_to_library();
                    }
                )?
                $(
                    let (mut at, mut number, mut datatype) = ($buffer as *mut c_void, $count, $type);
                    call.$role(&mut at, &mut number, &mut datatype);
                    let ($buffer, $count, $type) = (at as _, number, datatype);
                )+
                both!(@end call, $end($($last $(, $init)?)?), $name($($argument),*))
            }
        }
        }
    };
    (@profiled $name:ident, ($($argument:ident: $kind:ty),*)
     ($new:ident($comm:expr), $end:ident($($last:ident $(, $init:expr)?)?), $($role:ident($buffer:ident, $count:ident, $type:ident)),+)) => {
        /// What is called where the profiler is on.
        #[cold]
        #[inline(never)]
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C-unwind" fn profiled($($argument: $kind),*) -> c_int {
            // SAFETY: the caller's promise.
            unsafe {
                profile::message(
                    stringify!($name),
                    both!(@form $new $end),
                    $comm,
                    &[$(($count.elements(), $type)),+],
                    both!(@request $end $($last)?),
                    &mut || $name($($argument),*),
                )
            }
        }
    };
    (@form persistent $end:ident) => {
        profile::Form::Persistent
    };
    (@form $new:ident begin) => {
        profile::Form::Nonblocking
    };
    (@form $new:ident block) => {
        profile::Form::Blocking
    };
    (@request begin $request:ident) => {
        $request.cast_const()
    };
    (@request block $($status:ident)?) => {
        std::ptr::null()
    };
    (@end $call:ident, block(), $name:ident $arguments:tt) => {
        $call.block(std::ptr::null_mut(), |_| $name $arguments)
    };
    (@end $call:ident, block($status:ident), $name:ident $arguments:tt) => {
        $call.block($status, |$status| $name $arguments)
    };
    (@end $call:ident, begin($request:ident), $name:ident $arguments:tt) => {
        $call.begin($request, || $name $arguments)
    };
    (@end $call:ident, begin($request:ident, $init:expr), $name:ident $arguments:tt) => {
        $call.begin_later($request, DELAYED, || $init, || $name $arguments)
    };
    (@form $count:ty, $name:ident, ($($argument:ident: $kind:ty),*) $gpu:tt [$($peer:expr)?]
     [$($free:expr => $call:expr)?] [$($tiny:expr => $short:expr),*] $body:block) => {
        const _: () = {
            #[allow(dead_code)]
            type N = $count;

            /// The MPI function of this name.
            ///
            /// # Safety
            ///
            /// As the MPI standard says.
            #[allow(clippy::too_many_arguments)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
                // Elsewhere, so that what is tiny needs no room on the stack.
                #[inline(never)]
                #[allow(clippy::too_many_arguments)]
                unsafe extern "C-unwind" fn other($($argument: $kind),*) -> c_int {
                    // SAFETY: the caller's promise.
                    #[allow(unused_unsafe)]
                    guarded(|| unsafe { $body })
                }
                both!(@staged $name, ($($argument: $kind),*) [$($peer)?] [$($free => $call)?] $gpu);
                both!(@profiled $name, ($($argument: $kind),*) $gpu);
                /// What is tiny goes to the library at once.
                #[inline(always)]
                #[allow(clippy::too_many_arguments)]
                unsafe fn on_host($($argument: $kind),*) -> c_int {
                    // SAFETY: the caller's promise.
                    unsafe {
                        $(if $tiny {
                            return $short;
                        })*
                        other($($argument),*)
                    }
                }
                /// The same where libraries or freed requests have to be looked at.
                #[cold]
                #[inline(never)]
                #[allow(clippy::too_many_arguments)]
                unsafe extern "C-unwind" fn unusual($($argument: $kind),*) -> c_int {
                    // SAFETY: the caller's promise.
                    unsafe {
                        if unusual::is_timed() {
                            if let Some(_timed) = times::begin(Kind::Message) {
                                return if profile::is_on() {
                                    profiled($($argument),*)
                                } else {
                                    unusual($($argument),*)
                                };
                            }
                        }
                        gpu::with_gpu! {
                            if gpu::is_loaded() && gpu::is_outside() {
                                return staged($($argument),*);
                            }
                        }
                        $(
                            let _ = stringify!($free);
                            if gpu::is_handed_over() {
                                return $call;
                            }
                        )?
                        if unusual::has_orphans() {
                            return requests::settle_orphans(other($($argument),*));
                        }
                        on_host($($argument),*)
                    }
                }
                // SAFETY: the caller's promise.
                unsafe {
                    if gpu::may_be_loaded() || unusual::is_any() {
                        return unusual($($argument),*);
                    }
                    on_host($($argument),*)
                }
            }
        };
    };
}

/// Whether no header is so short: what is sent is not intercepted, and none arrives there.
#[inline(always)]
fn is_tiny<N: Count>(count: N, datatype: Word) -> bool {
    let size = || (count.number()? as u64).checked_mul(threshold::size(datatype)? as u64);
    size().is_some_and(|bytes| !header::may_arrive(bytes))
}

/// Whether `count` elements are fewer bytes than any message has that is intercepted.
#[inline(always)]
fn is_short<N: Count>(count: N, datatype: Word) -> bool {
    let size = || (count.number()? as u64).checked_mul(threshold::size(datatype)? as u64);
    size().is_some_and(lengths::is_short)
}

/// Whether a send of `count` elements of a predefined type is forwarded whatever else there is: it
/// is not intercepted, and no length that names a slot; or nothing is intercepted.
#[inline(always)]
fn is_passed<N: Count>(count: N, datatype: Word) -> bool {
    if lengths::is_off() {
        return true;
    }
    let size = || (count.number()? as u64).checked_mul(threshold::size(datatype)? as u64);
    size().is_some_and(lengths::is_passed)
}

/// The same of a derived type, which may be one that is used once. Elsewhere, so that what is
/// forwarded at once needs no room on the stack.
#[inline(never)]
fn is_derived_passed(count: Option<usize>, datatype: Word) -> bool {
    let of_derived = || count.filter(|_| threshold::size(datatype).is_none());
    of_derived()
        .is_some_and(|count| is_passed_by_use(datatype, count) || were_passed(datatype, count))
}

/// Whether `count` elements are forwarded since that was decided, or since their type has no
/// layout: then their length must not be one that names a slot.
#[inline(always)]
fn is_passed_by_use(datatype: Word, count: usize) -> bool {
    let Some(entry) = worth::find(datatype & threshold::handle_bits()) else {
        return false;
    };
    let is_plain =
        || datatype::size(datatype, count).is_some_and(|bytes| !lengths::is_special(bytes));
    entry.is(worth::PASSED, count) || entry.spares() && is_plain()
}

fn elements<N: Count>(buffer: *const c_void, count: N, datatype: Word) -> Elements {
    Elements {
        buffer: buffer.cast_mut(),
        count: count.number(),
        datatype,
    }
}

fn address(dest: c_int, tag: c_int, comm: Word) -> Address {
    Address { dest, tag, comm }
}

/// A function that sends, intercepted or forwarded.
macro_rules! sends {
    ($($name:ident, $large:ident = $body:ident $mode:ident;)*) => {
        both! { $(
            $name, $large = |buffer: *const c_void, count: N, datatype: Word, dest: c_int,
                             tag: c_int, comm: Word|
            (new(Some(comm)), block(), sends(buffer, count, datatype))
            peer(device::send(
                Mode::$mode, elements(buffer, count, datatype), address(dest, tag, comm),
            ))
            library(is_idle() => forward::$body(buffer, count, datatype, dest, tag, comm))
            [is_passed(count, datatype) => forward::$body(buffer, count, datatype, dest, tag, comm)] {
                if is_derived_passed(count.number(), datatype) {
                    return forward::$body(buffer, count, datatype, dest, tag, comm);
                }
                if let Some(world) = world() {
                    let what = elements(buffer, count, datatype);
                    let to = address(dest, tag, comm);
                    if let Some(code) = send::send(world, Mode::$mode, what, to) {
                        return code;
                    }
                }
                forward::$body(buffer, count, datatype, dest, tag, comm)
            }
        )* }
    };
}

/// The same with a request.
macro_rules! sends_with_request {
    ($($name:ident, $large:ident = $body:ident $init:ident $mode:ident;)*) => {
        both! { $(
            $name, $large = |buffer: *const c_void, count: N, datatype: Word, dest: c_int,
                             tag: c_int, comm: Word, request: *mut c_void|
            (later(Some(comm)),
             begin(request, persistent_send(
                 (elements(buffer, count, datatype), Mode::$mode, address(dest, tag, comm)), request,
                 || forward::$init(buffer, count, datatype, dest, tag, comm, request))),
             sends(buffer, count, datatype))
            peer(device::isend(
                Mode::$mode, elements(buffer, count, datatype), address(dest, tag, comm), request,
            ))
            library(true => forward::$body(buffer, count, datatype, dest, tag, comm, request))
            [is_passed(count, datatype) =>
                forward::$body(buffer, count, datatype, dest, tag, comm, request)] {
                if is_derived_passed(count.number(), datatype) {
                    return forward::$body(buffer, count, datatype, dest, tag, comm, request);
                }
                if let Some(world) = world() {
                    let what = elements(buffer, count, datatype);
                    let to = address(dest, tag, comm);
                    if let Some(code) = send::isend(world, Mode::$mode, what, to, request) {
                        return code;
                    }
                }
                forward::$body(buffer, count, datatype, dest, tag, comm, request)
            }
        )* }
    };
}

/// Persistent sends.
macro_rules! persistent_sends {
    ($($name:ident, $large:ident = $body:ident $mode:ident;)*) => {
        both! { $(
            $name, $large = |buffer: *const c_void, count: N, datatype: Word, dest: c_int,
                             tag: c_int, comm: Word, request: *mut c_void|
            (persistent(Some(comm)), begin(request), sends(buffer, count, datatype))
            peer(device::send_init(
                Mode::$mode, (buffer.cast_mut(), count, datatype), address(dest, tag, comm), request,
                |buffer, count, datatype| other(buffer, count, datatype, dest, tag, comm, request),
            )) {
                let what = elements(buffer, count, datatype);
                persistent_send((what, Mode::$mode, address(dest, tag, comm)), request, || {
                    forward::$body(buffer, count, datatype, dest, tag, comm, request)
                })
            }
        )* }
    };
}

/// What is done with sends that are started later.
#[cfg(feature = "gpu")]
const DELAYED: gpu::Functions = gpu::Functions {
    start: completion::MPI_Start,
    free: completion::MPI_Request_free,
};

/// Makes a persistent send, whose starts may be intercepted unless the library is handed device
/// memory.
///
/// # Safety
///
/// `make` writes a request if it succeeds.
unsafe fn persistent_send(
    (what, mode, to): (Elements, Mode, Address),
    request: *mut c_void,
    make: impl FnOnce() -> c_int,
) -> c_int {
    let code = make();
    if code == 0 {
        // SAFETY: the caller's promise.
        unsafe { fallback::note_persistent(request) };
        if let Some(world) = world().filter(|_| !gpu::is_handed_over()) {
            // SAFETY: as above.
            unsafe { send::send_init(world, mode, what, to, request) };
        }
    }
    code
}

sends! {
    MPI_Send, MPI_Send_c = send Standard;
    MPI_Ssend, MPI_Ssend_c = ssend Synchronous;
}

sends_with_request! {
    MPI_Isend, MPI_Isend_c = isend send_init Standard;
    MPI_Issend, MPI_Issend_c = issend ssend_init Synchronous;
}

persistent_sends! {
    MPI_Send_init, MPI_Send_init_c = send_init Standard;
    MPI_Ssend_init, MPI_Ssend_init_c = ssend_init Synchronous;
}

/// Whether nothing has to get on while a receive waits.
#[inline(always)]
fn is_idle() -> bool {
    !p2p::any() && !requests::any()
}

/// Whether elements may be received as bytes and unpacked here; counts a use of their type.
#[inline(always)]
fn may_unpack<N: Count>(buffer: *mut c_void, count: N, datatype: Word, comm: Word) -> bool {
    if threshold::size(datatype).is_some() {
        return false;
    }
    if let (Some(entry), Some(count)) = (
        worth::find(datatype & threshold::handle_bits()),
        count.number(),
    ) {
        if entry.is(worth::LEFT, count) || entry.spares() {
            return false;
        }
    }
    let is_left = |count| are_left(datatype, count);
    !count.number().is_some_and(is_left)
        && world().is_some_and(|world| elements(buffer, count, datatype).have_earned(world, comm))
}

/// Whether an exchange is left to the library, which tells what has arrived: nothing else is under
/// way, what is sent is forwarded whatever there is, and what is received has a predefined type.
#[inline(always)]
fn is_exchange_passed<N: Count>((count, datatype): (N, Word), recv_type: Word) -> bool {
    is_idle() && threshold::size(recv_type).is_some() && is_passed(count, datatype)
}

/// A function that receives while nothing else is under way, or what is tiny: `pass` is the
/// library's function, `arrived` looks at what may be a header. The status is asked also where a
/// header does not fit into the buffer: MPICH 5.0 returns no error for a short message that came
/// before its receive and is longer than the buffer.
#[inline(always)]
unsafe fn receive_at_once(
    status: *mut c_void,
    pass: impl FnOnce(*mut c_void) -> c_int,
    arrived: impl FnOnce(&'static World, *mut c_void, c_int) -> c_int,
) -> c_int {
    let Some(world) = world() else {
        return pass(status);
    };
    let mut room = Room::new();
    let at = room.instead_of(status);
    let code = pass(at);
    // SAFETY: the library wrote a status unless it failed, which is asked first.
    let bytes = || unsafe { Status::new(world.abi, at) }.bytes();
    if code == 0 && header::slot_of(bytes()).is_none_or(|slot| world.is_unposted(slot)) {
        return 0;
    }
    guarded(|| arrived(world, at, code))
}

/// [`receive_at_once`] by the library's `function`, whose last argument is the status; where and
/// from whom it receives.
macro_rules! received {
    ($function:ident($($argument:expr),*), $status:ident,
     $what:expr, $from:expr) => {
        receive_at_once(
            $status,
            |$status| forward::$function($($argument,)* $status),
            |world, $status, code| arrived(world, $what, $from, $status, code),
        )
    };
}

both! {
    MPI_Recv, MPI_Recv_c = |buffer: *mut c_void, count: N, datatype: Word, source: c_int,
                            tag: c_int, comm: Word, status: *mut c_void|
    (new(Some(comm)), block(status), receives(buffer, count, datatype))
    library(is_idle() => forward::recv(buffer, count, datatype, source, tag, comm, status))
    [lengths::is_off() => forward::recv(buffer, count, datatype, source, tag, comm, status)]
    [is_tiny(count, datatype) || is_idle() && !may_unpack(buffer, count, datatype, comm) => received!(
        recv(buffer, count, datatype, source, tag, comm), status,
        elements(buffer, count, datatype), (source, comm)
    )] {
        let pass = |status| forward::recv(buffer, count, datatype, source, tag, comm, status);
        let Some(world) = world() else {
            return pass(status);
        };
        let what = elements(buffer, count, datatype);
        if is_idle() {
            if let Some(code) = packed::receive(world, what, (source, tag, comm), status) {
                return code;
            }
        }
        let post = |request| forward::irecv(buffer, count, datatype, source, tag, comm, request);
        send::receive(world, what, (source, comm), status, pass, Some(&post))
    }

    MPI_Irecv, MPI_Irecv_c = |buffer: *mut c_void, count: N, datatype: Word, source: c_int,
                              tag: c_int, comm: Word, request: *mut c_void|
    (new(Some(comm)), begin(request), receives(buffer, count, datatype))
    library(true => forward::irecv(buffer, count, datatype, source, tag, comm, request))
    [is_short(count, datatype) => short_receives::noted(
        forward::irecv(buffer, count, datatype, source, tag, comm, request),
        elements(buffer, count, datatype), (source, comm), request
    )] {
        let code = forward::irecv(buffer, count, datatype, source, tag, comm, request);
        if let Some(world) = world().filter(|_| code == 0) {
            let what = elements(buffer, count, datatype);
            send::expect(world, what, (source, comm), request, false);
        }
        code
    }

    MPI_Recv_init, MPI_Recv_init_c = |buffer: *mut c_void, count: N, datatype: Word,
                                      source: c_int, tag: c_int, comm: Word,
                                      request: *mut c_void|
    (persistent(Some(comm)), begin(request), receives(buffer, count, datatype)) {
        let code = forward::recv_init(buffer, count, datatype, source, tag, comm, request);
        if code == 0 {
            fallback::note_persistent(request);
        }
        if let Some(world) = world().filter(|_| code == 0) {
            let what = elements(buffer, count, datatype);
            send::expect(world, what, (source, comm), request, true);
        }
        code
    }

    MPI_Sendrecv, MPI_Sendrecv_c = |send: *const c_void, send_count: N, send_type: Word,
                                    dest: c_int, send_tag: c_int, recv: *mut c_void,
                                    recv_count: N, recv_type: Word, source: c_int,
                                    recv_tag: c_int, comm: Word, status: *mut c_void|
    (new(Some(comm)), block(status), sends(send, send_count, send_type),
     receives(recv, recv_count, recv_type))
    peer(device::exchange(
        (elements(send, send_count, send_type), address(dest, send_tag, comm)),
        (recv, recv_count, recv_type), (source, recv_tag), status,
    ))
    [is_tiny(send_count, send_type) && is_tiny(recv_count, recv_type)
        || is_exchange_passed((send_count, send_type), recv_type) => received!(
        sendrecv(
            send, send_count, send_type, dest, send_tag,
            recv, recv_count, recv_type, source, recv_tag, comm
        ), status,
        elements(recv, recv_count, recv_type), (source, comm)
    )] {
        let pass = |status| {
            forward::sendrecv(
                send, send_count, send_type, dest, send_tag,
                recv, recv_count, recv_type, source, recv_tag, comm, status,
            )
        };
        let Some(world) = world() else {
            return pass(status);
        };
        let (sent, to) = (elements(send, send_count, send_type), address(dest, send_tag, comm));
        let received = (elements(recv, recv_count, recv_type), source);
        let sends = sent.have_earned(world, comm);
        if is_idle() && received.0.have_earned(world, comm) && sends {
            let received = (received.0, source, recv_tag);
            if let Some(code) = packed::exchange(world, (sent, to), received, status) {
                return code;
            }
        }
        let post = |request| {
            forward::irecv(recv, recv_count, recv_type, source, recv_tag, comm, request)
        };
        send::exchange(world, (sent, to, sends), received, status, pass, &post)
    }

    MPI_Sendrecv_replace, MPI_Sendrecv_replace_c = |buffer: *mut c_void, count: N,
                                                    datatype: Word, dest: c_int,
                                                    send_tag: c_int, source: c_int,
                                                    recv_tag: c_int, comm: Word,
                                                    status: *mut c_void|
    (new(Some(comm)), block(status), exchanges(buffer, count, datatype))
    [is_exchange_passed((count, datatype), datatype) => received!(
        sendrecv_replace(
            buffer, count, datatype, dest, send_tag, source, recv_tag, comm
        ), status,
        elements(buffer, count, datatype), (source, comm)
    )] {
        let pass = |status| {
            forward::sendrecv_replace(
                buffer, count, datatype, dest, send_tag, source, recv_tag, comm, status,
            )
        };
        let Some(world) = world() else {
            return pass(status);
        };
        let post = |request| {
            forward::irecv(buffer, count, datatype, source, recv_tag, comm, request)
        };
        let sent = (elements(buffer, count, datatype), address(dest, send_tag, comm));
        send::replace(world, sent, source, status, pass, &post)
    }

    MPI_Isendrecv, MPI_Isendrecv_c = |send: *const c_void, send_count: N, send_type: Word,
                                      dest: c_int, send_tag: c_int, recv: *mut c_void,
                                      recv_count: N, recv_type: Word, source: c_int,
                                      recv_tag: c_int, comm: Word, request: *mut c_void|
    (new(Some(comm)), begin(request), sends(send, send_count, send_type),
     receives(recv, recv_count, recv_type)) {
        if let Some(world) = world() {
            let what = elements(send, send_count, send_type);
            notice(world, what, address(dest, send_tag, comm));
        }
        let code = fallback::isendrecv(
            send, send_count, send_type, dest, send_tag,
            recv, recv_count, recv_type, source, recv_tag, comm, request,
        );
        if let Some(world) = world().filter(|_| code == 0) {
            let what = elements(recv, recv_count, recv_type);
            send::expect(world, what, (source, comm), request, false);
        }
        code
    }

    MPI_Isendrecv_replace, MPI_Isendrecv_replace_c = |buffer: *mut c_void, count: N,
                                                      datatype: Word, dest: c_int,
                                                      send_tag: c_int, source: c_int,
                                                      recv_tag: c_int, comm: Word,
                                                      request: *mut c_void|
    (new(Some(comm)), begin(request), exchanges(buffer, count, datatype)) {
        if let Some(world) = world() {
            let what = elements(buffer, count, datatype);
            notice(world, what, address(dest, send_tag, comm));
        }
        let code = fallback::isendrecv_replace(
            buffer, count, datatype, dest, send_tag, source, recv_tag, comm, request,
        );
        if let Some(world) = world().filter(|_| code == 0) {
            let what = elements(buffer, count, datatype);
            send::expect(world, what, (source, comm), request, false);
        }
        code
    }

    MPI_Mrecv, MPI_Mrecv_c = |buffer: *mut c_void, count: N, datatype: Word,
                              message: *mut c_void, status: *mut c_void|
    (new(None), block(status), receives(buffer, count, datatype)) {
        let pass = |status| forward::mrecv(buffer, count, datatype, message, status);
        let known = world().and_then(|world| {
            probes::take_matched(world, message).map(|found| (world, found))
        });
        let Some((world, found)) = known else {
            return pass(status);
        };
        send::receive_matched(world, elements(buffer, count, datatype), found, status, pass)
    }

    MPI_Imrecv, MPI_Imrecv_c = |buffer: *mut c_void, count: N, datatype: Word,
                                message: *mut c_void, request: *mut c_void|
    (new(None), begin(request), receives(buffer, count, datatype)) {
        let known = world().and_then(|world| {
            probes::take_matched(world, message).map(|found| (world, found))
        });
        let code = forward::imrecv(buffer, count, datatype, message, request);
        if let Some((world, found)) = known.filter(|_| code == 0) {
            send::expect_matched(world, elements(buffer, count, datatype), found, request);
        }
        code
    }
}

/// Sends of other modes out of device memory that receivers may copy; the last argument makes a
/// persistent request. `None` everywhere means that a message is packed.
#[cfg(feature = "gpu")]
mod offered {
    use super::{Address, Count, Elements, Mode, Word, device, elements};
    use std::ffi::{c_int, c_void};

    /// Buffered sends do not wait for receivers.
    pub unsafe fn never<N, More>(
        _what: (*const c_void, N, Word),
        _to: Address,
        _more: More,
        _make: impl FnOnce(*mut c_void, N, Word) -> c_int,
    ) -> Option<c_int> {
        None
    }

    fn of<N: Count>((buffer, count, datatype): (*const c_void, N, Word)) -> Elements {
        elements(buffer, count, datatype)
    }

    /// `MPI_Rsend`: what a receiver waits for may be sent in standard mode (MPI 4.1, section 3.4).
    ///
    /// # Safety
    ///
    /// As the MPI standard says, for all functions below.
    pub unsafe fn ready<N: Count>(
        what: (*const c_void, N, Word),
        to: Address,
        (): (),
        _make: impl FnOnce(*mut c_void, N, Word) -> c_int,
    ) -> Option<c_int> {
        // SAFETY: the caller's promise.
        unsafe { device::send(Mode::Standard, of(what), to) }
    }

    /// `MPI_Irsend`
    pub unsafe fn ready_later<N: Count>(
        what: (*const c_void, N, Word),
        to: Address,
        (request,): (*mut c_void,),
        _make: impl FnOnce(*mut c_void, N, Word) -> c_int,
    ) -> Option<c_int> {
        // SAFETY: the caller's promise.
        unsafe { device::isend(Mode::Standard, of(what), to, request) }
    }

    /// `MPI_Rsend_init`
    pub unsafe fn ready_init<N: Count>(
        (buffer, count, datatype): (*const c_void, N, Word),
        to: Address,
        (request,): (*mut c_void,),
        make: impl FnOnce(*mut c_void, N, Word) -> c_int,
    ) -> Option<c_int> {
        let what = (buffer.cast_mut(), count, datatype);
        // SAFETY: the caller's promise.
        unsafe { device::send_init(Mode::Standard, what, to, request, make) }
    }
}

/// Sends of other modes: forwarded, but their lengths are looked at, and those out of device memory
/// may be offered.
macro_rules! other_sends {
    ($($name:ident, $large:ident = $body:ident
       ($($more:ident: $kind:ty),*) $new:ident $end:ident $offered:ident;)*) => {
        both! { $(
            $name, $large = |buffer: *const c_void, count: N, datatype: Word, dest: c_int,
                             tag: c_int, comm: Word $(, $more: $kind)*|
            ($new(Some(comm)), $end($($more)*), sends(buffer, count, datatype))
            peer(offered::$offered(
                (buffer, count, datatype), address(dest, tag, comm), ($($more,)*),
                |buffer, count, datatype| other(buffer, count, datatype, dest, tag, comm $(, $more)*),
            )) {
                if let Some(world) = world() {
                    let what = elements(buffer, count, datatype);
                    notice(world, what, address(dest, tag, comm));
                }
                let code = forward::$body(buffer, count, datatype, dest, tag, comm $(, $more)*);
                if code == 0 && stringify!($name).ends_with("_init") {
                    $(fallback::note_persistent($more);)*
                }
                code
            }
        )* }
    };
}

other_sends! {
    MPI_Bsend, MPI_Bsend_c = bsend() new block never;
    MPI_Rsend, MPI_Rsend_c = rsend() new block ready;
    MPI_Ibsend, MPI_Ibsend_c = ibsend(request: *mut c_void) new begin never;
    MPI_Irsend, MPI_Irsend_c = irsend(request: *mut c_void) new begin ready_later;
    MPI_Bsend_init, MPI_Bsend_init_c = bsend_init(request: *mut c_void) persistent begin never;
    MPI_Rsend_init, MPI_Rsend_init_c = rsend_init(request: *mut c_void) persistent begin ready_init;
}
