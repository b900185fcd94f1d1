// SPDX-License-Identifier: MIT OR Apache-2.0

//! Functions of requests and probes as C programs call them: none of them counts elements.

use std::ffi::{c_int, c_void};

use crate::collectives::{nonblocking, persistent};
use crate::comm::processes::world;
use crate::decide::active::active;
use crate::gpu;
use crate::library::abi::{UNDEFINED, Word};
use crate::library::fallback;
use crate::library::pmpi::forward;
use crate::messages::panics::guarded;
use crate::messages::probing::{improbe, iprobe, mprobe, probe};
use crate::messages::{requests, short_receives};

/// Functions without counts, intercepted if `$try` does. Where nonblocking collectives are under
/// way, `$first` comes before, and may do what the function has to. Functions with one are about
/// requests: they are forwarded before anything else as long as none is known here. Where
/// `$is_noted` finds short receives among them, `$short` does the rest with the function as it is
/// without it. `$at_once` comes next where no nonblocking collective is under way. Requests with
/// buffers in device memory come before all of that.
macro_rules! plain {
    ($($name:ident $arguments:tt => $pass:path, $try:expr
        $(, $first:expr $(, $is_noted:expr => $short:expr $(, $at_once:path)?)?)?;)*) => { $(
        plain!(@one $name $arguments $pass, $try, [$($first)?], [$($($is_noted => $short)?)?], [$($($($at_once)?)?)?]);
    )* };
    (@one $name:ident ($($argument:ident: $kind:ty),*) $pass:path, $try:expr, $first:tt, $short:tt, $at_once:tt) => {
        /// The MPI function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            // Elsewhere, so that what is forwarded at once needs no room on the stack.
            #[inline(never)]
            unsafe extern "C" fn other($($argument: $kind),*) -> c_int {
                // SAFETY: the caller's promise.
                let code = guarded(|| unsafe {
                    plain!(@first $first ($($argument),*));
                    if let Some(world) = world() {
                        let intercepted: Option<c_int> = $try(world, $($argument),*);
                        if let Some(code) = intercepted {
                            return code;
                        }
                    }
                    $pass($($argument),*)
                });
                if requests::has_orphans() {
requests::settle_orphans(code)
} else {
code
}
            }
            plain!(@known $at_once ($($argument: $kind),*));
            #[inline(always)]
            unsafe extern "C" fn rest($($argument: $kind),*) -> c_int {
                // SAFETY: the caller's promise.
                unsafe {
                    plain!(@quick $first $short $pass, ($($argument: $kind),*));
                    known($($argument),*)
                }
            }
            // Elsewhere, as above.
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn with_device_requests($($argument: $kind),*) -> c_int {
                // SAFETY: the caller's promise.
                unsafe {
                    gpu::with_gpu! { plain!(@gpu $name ($($argument),*)); }
                    rest($($argument),*)
                }
            }
            // SAFETY: the caller's promise.
            unsafe {
                if gpu::has_requests() {
                    with_device_requests($($argument),*)
                } else {
                    rest($($argument),*)
                }
            }
        }
    };
    (@gpu MPI_Wait ($request:ident, $status:ident)) => {
        plain!(@device gpu::wait($request, $status, move |status| MPI_Wait($request, status)));
    };
    (@gpu MPI_Test ($request:ident, $flag:ident, $status:ident)) => {
        plain!(@device gpu::test($request, $flag, $status, move |status| MPI_Test($request, $flag, status)));
    };
    (@gpu MPI_Waitall ($count:ident, $requests:ident, $statuses:ident)) => {
        plain!(@device gpu::waitall($count, $requests, $statuses, move |statuses| {
            MPI_Waitall($count, $requests, statuses)
        }));
    };
    (@gpu MPI_Testall ($count:ident, $requests:ident, $flag:ident, $statuses:ident)) => {
        plain!(@device gpu::testall($count, $requests, $flag, $statuses, move |statuses| {
            MPI_Testall($count, $requests, $flag, statuses)
        }));
    };
    (@gpu MPI_Waitany ($count:ident, $requests:ident, $index:ident, $status:ident)) => {
        plain!(@device gpu::waitany($count, $requests, $index, $status, move |status| {
            MPI_Waitany($count, $requests, $index, status)
        }));
    };
    (@gpu MPI_Testany ($count:ident, $requests:ident, $index:ident, $flag:ident, $status:ident)) => {
        plain!(@device gpu::testany($count, $requests, $index, $flag, $status, move |status| {
            MPI_Testany($count, $requests, $index, $flag, status)
        }));
    };
    (@gpu MPI_Waitsome ($count:ident, $requests:ident, $done:ident, $indices:ident, $statuses:ident)) => {
        plain!(@device gpu::some(($count, $requests), ($done, $indices), $statuses, true, move |statuses| {
            MPI_Waitsome($count, $requests, $done, $indices, statuses)
        }));
    };
    (@gpu MPI_Testsome ($count:ident, $requests:ident, $done:ident, $indices:ident, $statuses:ident)) => {
        plain!(@device gpu::some(($count, $requests), ($done, $indices), $statuses, false, move |statuses| {
            MPI_Testsome($count, $requests, $done, $indices, statuses)
        }));
    };
    (@gpu MPI_Request_get_status ($request:ident, $flag:ident, $status:ident)) => {
        plain!(@device gpu::get_status($request, $flag, $status, move |status| {
            MPI_Request_get_status($request, $flag, status)
        }));
    };
    (@gpu MPI_Request_get_status_any $arguments:tt) => {
        plain!(@asked MPI_Request_get_status_any $arguments);
    };
    (@gpu MPI_Request_get_status_all $arguments:tt) => {
        plain!(@asked MPI_Request_get_status_all $arguments);
    };
    (@gpu MPI_Request_get_status_some $arguments:tt) => {
        plain!(@asked MPI_Request_get_status_some $arguments);
    };
    (@gpu MPI_Request_free ($request:ident)) => {
        plain!(@device gpu::free($request, MPI_Test, MPI_Request_free));
    };
    (@gpu MPI_Start ($request:ident)) => {
        plain!(@device gpu::before_start(1, $request).err());
    };
    (@gpu MPI_Startall ($count:ident, $requests:ident)) => {
        plain!(@device gpu::before_start($count, $requests).err());
    };
    (@gpu MPI_Cancel $arguments:tt) => {
        gpu::before_cancel();
    };
    (@gpu MPI_Probe $arguments:tt) => {
        plain!(@waits);
    };
    (@gpu MPI_Mprobe $arguments:tt) => {
        plain!(@waits);
    };
    (@gpu MPI_Iprobe $arguments:tt) => {
        plain!(@asks);
    };
    (@gpu MPI_Improbe $arguments:tt) => {
        plain!(@asks);
    };
    (@waits) => {
        gpu::wait_for_others();
    };
    (@asks) => {
        gpu::get_on();
    };
    (@device $code:expr) => {
        if let Some(code) = $code {
            return code;
        }
    };
    (@asked $name:ident ($count:ident, $requests:ident $(, $more:ident)*)) => {
        if gpu::is_outside() {
            gpu::wait_for_others();
            let code = gpu::inside(|| $name($count, $requests $(, $more)*));
            gpu::after_get_status($count, $requests, MPI_Request_get_status);
            return code;
        }
    };
    (@quick [] [] $pass:path, $arguments:tt) => {};
    (@quick [$first:expr] [] $pass:path, ($($argument:ident: $kind:ty),*)) => {
        if !requests::any() && !nonblocking::any() {
            return $pass($($argument),*);
        }
    };
    (@quick [$first:expr] [$is_noted:expr => $short:expr] $pass:path, ($($argument:ident: $kind:ty),*)) => {
        // Elsewhere, as above.
        #[inline(never)]
        unsafe extern "C" fn noted($($argument: $kind),*) -> c_int {
            let is_idle = !requests::any() && !nonblocking::any();
            // SAFETY: the caller's promise.
            unsafe {
                let forwarded = move |$($argument: $kind),*| if is_idle {
                    $pass($($argument),*)
                } else {
                    known($($argument),*)
                };
                if $is_noted {
                    $short($($argument,)* forwarded)
                } else {
                    forwarded($($argument),*)
                }
            }
        }
        if short_receives::is_in_use() {
            return noted($($argument),*);
        }
        if !requests::any() && !nonblocking::any() {
            return $pass($($argument),*);
        }
    };
    (@known [] ($($argument:ident: $kind:ty),*)) => {
        #[inline(always)]
        unsafe extern "C" fn known($($argument: $kind),*) -> c_int {
            // SAFETY: the caller's promise.
            unsafe { other($($argument),*) }
        }
    };
    (@known [$at_once:path] ($($argument:ident: $kind:ty),*)) => {
        // Elsewhere, as above.
        #[inline(never)]
        unsafe extern "C" fn known($($argument: $kind),*) -> c_int {
            // SAFETY: the caller's promise.
            unsafe {
                if !requests::has_orphans() && !nonblocking::any() {
                    let code = $at_once($($argument),*);
                    if let Some(code) = code {
                        return code;
                    }
                }
                other($($argument),*)
            }
        }
    };
    (@first [] $arguments:tt) => {};
    (@first [$first:expr] ($($argument:ident),*)) => {
        if nonblocking::any() {
            let done: Option<c_int> = $first($($argument),*);
            if let Some(code) = done {
                return code;
            }
        }
    };
}

plain! {
    MPI_Wait(request: *mut c_void, status: *mut c_void) => forward::wait, requests::wait, before::wait,
        short_receives::has_any(1, request) => short_receives::wait;
    MPI_Test(request: *mut c_void, flag: *mut c_int, status: *mut c_void) => forward::test, requests::test,
        before::test, short_receives::has_any(1, request) => short_receives::test, requests::test_at_once;
    MPI_Waitall(count: c_int, requests: *mut c_void, statuses: *mut c_void) => forward::waitall,
        requests::waitall, before::waitall, short_receives::has_any(count, requests) => short_receives::waitall;
    MPI_Testall(count: c_int, requests: *mut c_void, flag: *mut c_int, statuses: *mut c_void)
        => forward::testall, requests::testall, before::testall, short_receives::has_any(count, requests) => short_receives::testall;
    MPI_Waitany(count: c_int, requests: *mut c_void, index: *mut c_int, status: *mut c_void)
        => forward::waitany, requests::waitany, before::waitany, short_receives::has_any(count, requests) => short_receives::waitany;
    MPI_Testany(
        count: c_int, requests: *mut c_void, index: *mut c_int, flag: *mut c_int,
        status: *mut c_void
    ) => forward::testany, requests::testany, before::testany, short_receives::has_any(count, requests) => short_receives::testany,
        requests::testany_at_once;
    MPI_Waitsome(
        count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int,
        statuses: *mut c_void
    ) => forward::waitsome, requests::waitsome, before::waitsome, short_receives::has_any(count, requests) => short_receives::some;
    MPI_Testsome(
        count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int,
        statuses: *mut c_void
    ) => forward::testsome, requests::testsome, before::testsome, short_receives::has_any(count, requests) => short_receives::some;
    MPI_Request_get_status(request: Word, flag: *mut c_int, status: *mut c_void)
        => forward::request_get_status, requests::get_status, before::get_status,
        short_receives::is_noted(request) => short_receives::get_status;
    MPI_Request_get_status_any(
        count: c_int, requests: *mut c_void, index: *mut c_int, flag: *mut c_int,
        status: *mut c_void
    ) => fallback::request_get_status_any, requests::get_status_any, before::testany,
        short_receives::has_any(count, requests) => short_receives::get_status_any;
    MPI_Request_get_status_all(
        count: c_int, requests: *mut c_void, flag: *mut c_int, statuses: *mut c_void
    ) => fallback::request_get_status_all, requests::get_status_all, before::testall,
        short_receives::has_any(count, requests) => short_receives::get_status_all;
    MPI_Request_get_status_some(
        count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int,
        statuses: *mut c_void
    ) => fallback::request_get_status_some, requests::get_status_some, before::testsome,
        short_receives::has_any(count, requests) => short_receives::get_status_some;
    MPI_Request_free(request: *mut c_void) => persistent::request_free, requests::free, before::free,
        short_receives::has_any(1, request) => short_receives::free;
    MPI_Cancel(request: *mut c_void) => forward::cancel, requests::cancel;
    MPI_Start(request: *mut c_void) => forward::start, requests::start;
    MPI_Startall(count: c_int, requests: *mut c_void) => forward::startall, requests::startall;
    MPI_Probe(source: c_int, tag: c_int, comm: Word, status: *mut c_void) => forward::probe, probe;
    MPI_Iprobe(source: c_int, tag: c_int, comm: Word, flag: *mut c_int, status: *mut c_void)
        => forward::iprobe, iprobe;
    MPI_Mprobe(source: c_int, tag: c_int, comm: Word, message: *mut c_void, status: *mut c_void)
        => forward::mprobe, mprobe;
    MPI_Improbe(
        source: c_int, tag: c_int, comm: Word, flag: *mut c_int, message: *mut c_void,
        status: *mut c_void
    ) => forward::improbe, improbe;
}

/// What comes before a function that completes requests, or tells how they are doing, where
/// nonblocking collectives are under way.
mod before {
    use super::{MPI_Testany, MPI_Testsome, UNDEFINED, Word, active, nonblocking};
    use std::ffi::{c_int, c_void};

    /// Functions that do not wait.
    macro_rules! ask {
        ($($name:ident($($kind:ty),*);)*) => { $(
            pub unsafe fn $name($(_: $kind),*) -> Option<c_int> {
                nonblocking::before_asking(active()?);
                None
            }
        )* };
    }

    type Memory = *mut c_void;
    type Number = *mut c_int;

    ask! {
        test(Memory, Number, Memory);
        testall(c_int, Memory, Number, Memory);
        testany(c_int, Memory, Number, Number, Memory);
        testsome(c_int, Memory, Number, Number, Memory);
        get_status(Word, Number, Memory);
    }

    pub unsafe fn wait(request: Memory, _status: Memory) -> Option<c_int> {
        // SAFETY: one request.
        unsafe { nonblocking::before_waiting(active()?, 1, request) };
        None
    }

    /// Nobody may free the request of a collective (MPI 4.1, section 6.12); who does it all the
    /// same has it completed.
    pub unsafe fn free(request: Memory) -> Option<c_int> {
        // SAFETY: one request.
        unsafe { nonblocking::before_waiting(active()?, 1, request) };
        None
    }

    pub unsafe fn waitall(count: c_int, requests: Memory, _statuses: Memory) -> Option<c_int> {
        // SAFETY: the caller's promise.
        unsafe { nonblocking::before_waiting(active()?, count, requests) };
        None
    }

    pub unsafe fn waitany(
        count: c_int,
        requests: Memory,
        index: Number,
        status: Memory,
    ) -> Option<c_int> {
        let mut flag = 0;
        // SAFETY: the caller's promise.
        unsafe {
            nonblocking::instead_of_waiting(active()?, count, requests, || {
                let code = MPI_Testany(count, requests, index, &mut flag, status);
                (code, flag != 0)
            })
        }
    }

    pub unsafe fn waitsome(
        count: c_int,
        requests: Memory,
        done: Number,
        indices: Number,
        statuses: Memory,
    ) -> Option<c_int> {
        // SAFETY: the caller's promise.
        unsafe {
            nonblocking::instead_of_waiting(active()?, count, requests, || {
                let code = MPI_Testsome(count, requests, done, indices, statuses);
                (code, *done == UNDEFINED || *done > 0)
            })
        }
    }
}
