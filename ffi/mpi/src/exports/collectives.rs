// SPDX-License-Identifier: MIT OR Apache-2.0

//! The collectives as C programs call them, each line of the table
//! ([`crate::library::functions`]) in both forms: with `int`s, and with `MPI_Count`s, which MPICH
//! has since 4.0 and Open MPI 4.1 has not; what is forwarded there goes to the other form.
//!
//! Blocking, nonblocking and persistent functions differ in who waits: a blocking one does, a
//! nonblocking one leaves a request, and a persistent one leaves a request that the program starts.

use std::ffi::{c_int, c_void};

use libcopy::collective::Op;

use crate::collectives::governor::Span;
use crate::collectives::nonblocking::calls;
use crate::collectives::nonblocking::calls::About;
use crate::collectives::nonblocking::irregular as nonblocking_irregular;
use crate::collectives::persistent::made;
use crate::collectives::small_calls::{are_small_parts, are_small_together, were_small};
use crate::collectives::{barrier, irregular, neighbours, reductions, regular};
use crate::decide::threshold::{is_small, is_small_unless_special};
use crate::decide::waits::is_small_or_counted;
use crate::library::abi::Word;
use crate::library::buffers::{Buffer, BufferV, BufferW, Packing, Reduction, Side};
use crate::library::count::{Count, Large};
use crate::library::fallback;
use crate::library::functions::{argument_type, collectives};
use crate::library::pmpi::forward;
use crate::library::profile;
use crate::library::stats::Function;
use crate::library::times::{self, Kind};
use crate::library::unusual;
use crate::messages::rdma_alltoallw;
use crate::packing::pack;
use crate::types::datatype;
use crate::{gpu, messages};

/// [`were_small`] of functions whose parts have types of their own, which may go over RDMA.
#[inline(always)]
fn typed_were_small(function: Function, comm: Word) -> bool {
    !messages::is_joint() && were_small(function, comm)
}

/// A buffer of the table as a value.
macro_rules! value {
    (buffer($base:ident, $count:ident, $datatype:ident)) => {
        Buffer {
            base: $base,
            count: $count,
            datatype: $datatype,
        }
    };
    (buffer_v($base:ident, $counts:ident, $places:ident, $datatype:ident)) => {
        BufferV {
            base: $base,
            counts: $counts,
            places: $places,
            datatype: $datatype,
        }
    };
    (buffer_w($base:ident, $counts:ident, $places:ident, $types:ident)) => {
        BufferW {
            base: $base,
            counts: $counts,
            places: $places,
            types: $types,
        }
    };
    (reduction($send:ident, $recv:ident, $count:ident, $datatype:ident, $op:ident)) => {
        Reduction {
            send: $send,
            recv: $recv,
            count: $count,
            datatype: $datatype,
            op: $op,
        }
    };
}

/// A buffer of the table as `gpu::Collective` replaces it.
#[cfg(feature = "gpu")]
macro_rules! replaced {
    (buffer($base:ident, $count:ident, $datatype:ident)) => {
        (
            &mut $base,
            gpu::collective::Buffer {
                count: $count,
                datatype: &mut $datatype,
            },
        )
    };
    (buffer_v($base:ident, $counts:ident, $places:ident, $datatype:ident)) => {
        (
            &mut $base,
            gpu::collective::BufferV {
                counts: $counts,
                places: &mut $places,
                datatype: &mut $datatype,
            },
        )
    };
    (buffer_w($base:ident, $counts:ident, $places:ident, $types:ident)) => {
        (
            &mut $base,
            gpu::collective::BufferW {
                counts: $counts,
                places: &mut $places,
                types: &mut $types,
            },
        )
    };
    (reduction($send:ident, $recv:ident, $count:ident, $datatype:ident, $op:ident)) => {
        (&mut $send, &mut $recv, ($count, $datatype))
    };
}

/// The root; 0 for functions without one.
macro_rules! root {
    () => {
        0
    };
    ($root:ident) => {
        $root
    };
}

/// Exports all functions of the table.
macro_rules! exports {
    ($($op:ident $arguments:tt {
         operation $operation:ident;
         arrays $arrays:tt;
         device $device:ident $buffers:tt $root:tt;
         small $small:tt;
         $($form:ident $rust:ident = $names:tt $fortran:tt $(=> $function:ident $module:ident)?;)*
     })*) => {
        $($(
            exports!(@names $form $names $rust $arguments [$op $operation $device $buffers $root] [$($function $module $op $small)?]);
        )*)*
    };
    (@names $form:ident [$name:ident $large:ident $($before:ident)?] $rust:ident $arguments:tt $device:tt $ours:tt) => {
        exports!(@$form c_int, $name = $rust $arguments $device $ours);
        exports!(@$form Large, $large = $rust $arguments $device $ours);
        $(exports!(@$form c_int, $before = $rust $arguments $device $ours);)?
    };
    (@blocking $count:ty, $name:ident = $rust:ident ($($argument:ident: $kind:ident),*; $comm:ident) $device:tt $ours:tt) => {
        exports!(@one blocking, $count, $name = $rust ($($argument: $kind,)* $comm: comm) $comm [] new block $device $ours);
    };
    (@nonblocking $count:ty, $name:ident = $rust:ident ($($argument:ident: $kind:ident),*; $comm:ident) $device:tt $ours:tt) => {
        exports!(@one nonblocking, $count, $name = $rust ($($argument: $kind,)* $comm: comm, request: request)
            $comm [request] new begin $device $ours);
    };
    (@persistent $count:ty, $name:ident = $rust:ident ($($argument:ident: $kind:ident),*; $comm:ident) $device:tt $ours:tt) => {
        exports!(@one persistent, $count, $name = $rust ($($argument: $kind,)* $comm: comm, info: info, request: request)
            $comm [request] persistent begin $device $ours);
    };
    (@one $form:ident, $count:ty, $name:ident = $rust:ident ($($argument:ident: $kind:ident),*) $comm:ident [$($request:ident)?]
     $new:ident $end:ident [$row:ident $operation:ident $device:ident [$($buffer:ident $of:tt),*] [$($root:ident)?]] $ours:tt) => {
        /// The MPI function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[allow(clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: argument_type!($count, $kind)),*) -> c_int {
            gpu::with_gpu! {
                /// What is called where a CUDA driver is loaded: host memory takes the place of
                /// device memory.
                #[cold]
                #[inline(never)]
                #[allow(clippy::too_many_arguments, unused_mut)]
                unsafe extern "C-unwind" fn staged($(mut $argument: argument_type!($count, $kind)),*) -> c_int {
                    // SAFETY: the caller's promise.
                    #[allow(unused_unsafe)]
                    unsafe {
                        gpu::get_on();
                        let Some(mut collective) = gpu::Collective::$new($comm) else {
                            return gpu::inside(|| $name($($argument),*));
                        };
                        if exports!(@is_forwarded $ours) {
                            collective.goes_to_library();
                        }
                        collective.$device($(replaced!($buffer $of),)* $($root)?);
                        collective.$end($($request,)? || $name($($argument),*))
                    }
                }
            }
            /// What is called where the profiler is on.
            #[cold]
            #[inline(never)]
            #[allow(clippy::too_many_arguments)]
            unsafe extern "C-unwind" fn profiled($($argument: argument_type!($count, $kind)),*) -> c_int {
                let call = profile::Collective {
                    name: stringify!($name),
                    row: stringify!($row),
                    op: Op::$operation,
                    form: exports!(@form $form),
                    root: exports!(@root_if_any $($root)?),
                    comm: $comm,
                    request: exports!(@request $($request)?),
                };
                // SAFETY: the caller's promise.
                unsafe {
                    call.noted(
                        &exports!(@first $($buffer $of),*),
                        &exports!(@last $($buffer $of),*),
                        &mut || $name($($argument),*),
                    )
                }
            }
            exports!(@timed $form $ours $name [$($argument),*]);
            exports!(@$form $count, $rust [$($argument: $kind),*] $comm [$($request)?] [$($buffer $of),*] [$($root)?] $ours)
        }
    };
    // Those that are intercepted and block look at it together with other things.
    (@timed blocking [$function:ident $($more:tt)*] $name:ident $arguments:tt) => {};
    (@timed $form:ident $ours:tt $name:ident [$($argument:ident),*]) => {
        if unusual::is_timed() {
            if let Some(_timed) = times::begin(Kind::Collective) {
                // SAFETY: the caller's promise.
                return unsafe {
                    if profile::is_on() {
                        profiled($($argument),*)
                    } else {
                        $name($($argument),*)
                    }
                };
            }
        }
    };
    (@form blocking) => {
        profile::Form::Blocking
    };
    (@form nonblocking) => {
        profile::Form::Nonblocking
    };
    (@form persistent) => {
        profile::Form::Persistent
    };
    (@root_if_any) => {
        None
    };
    (@root_if_any $root:ident) => {
        Some($root)
    };
    (@request) => {
        std::ptr::null()
    };
    (@request $request:ident) => {
        $request.cast_const()
    };
    (@first $buffer:ident $of:tt $(, $other:ident $of_other:tt)?) => {
        value!($buffer $of)
    };
    (@last $buffer:ident $of:tt) => {
        value!($buffer $of)
    };
    (@last $other:ident $of_other:tt, $buffer:ident $of:tt) => {
        value!($buffer $of)
    };
    // Host memory takes the place of device memory first, in calls that come from the program.
    (@if_loaded $($argument:ident),*) => {
        gpu::with_gpu! {
            if gpu::is_loaded() && gpu::is_outside() {
                return staged($($argument),*);
            }
        }
    };
    (@is_forwarded []) => {
        true
    };
    (@is_forwarded $ours:tt) => {
        false
    };

    // Functions that are forwarded.
    (@blocking $count:ty, $rust:ident [$($argument:ident: $kind:ident),*] $comm:ident [] $buffers:tt $root:tt []) => {
        // SAFETY: the caller's promise.
        unsafe {
            exports!(@if_loaded $($argument),*);
            forward::$rust($($argument),*)
        }
    };
    (@nonblocking $count:ty, $rust:ident [$($argument:ident: $kind:ident),*] $comm:ident [$request:ident] $buffers:tt $root:tt []) => {
        exports!(@blocking $count, $rust [$($argument: $kind),*] $comm [] $buffers $root [])
    };
    (@persistent $count:ty, $rust:ident [$($argument:ident: $kind:ident),*] $comm:ident [$request:ident] $buffers:tt $root:tt []) => {
        // SAFETY: the caller's promise; the library has written a request if it returns 0.
        unsafe {
            exports!(@if_loaded $($argument),*);
            let code = forward::$rust($($argument),*);
            if code == 0 {
                fallback::note_persistent($request);
            }
            code
        }
    };

    // Functions that are intercepted.
    (@blocking $count:ty, $rust:ident [$($argument:ident: $kind:ident),*] $comm:ident [] [$($buffer:ident $of:tt),*] [$($root:ident)?]
     [$function:ident $module:ident $op:ident [$small:ident ($($asked:ident),*)]]) => {{
        /// What is called where libraries or freed requests have to be looked at. Elsewhere, so
        /// that what is small needs no room on the stack.
        #[cold]
        #[inline(never)]
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C-unwind" fn unusual($($argument: argument_type!($count, $kind)),*) -> c_int {
            // SAFETY: the caller's promise.
            unsafe {
                if unusual::is_timed() {
                    if let Some(_timed) = times::begin(Kind::Collective) {
                        return if profile::is_on() {
                            profiled($($argument),*)
                        } else {
                            unusual($($argument),*)
                        };
                    }
                }
                exports!(@if_loaded $($argument),*);
                if unusual::has_orphans() {
                    return messages::settle_orphans(decide($($argument),*));
                }
                if $small(Function::$function, $($asked),*) {
                    return forward::$rust($($argument),*);
                }
                decide($($argument),*)
            }
        }
        /// What is called unless the call is small.
        #[inline(never)]
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C-unwind" fn decide($($argument: argument_type!($count, $kind)),*) -> c_int {
            // A forwarded call is measured as well.
            let _span = Span;
            // SAFETY: the caller's promise.
            unsafe {
                match $module::$op($(value!($buffer $of),)* $($root,)? $comm) {
                    Some(code) => code,
                    None => forward::$rust($($argument),*),
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            if gpu::may_be_loaded() || unusual::is_any() {
                return unusual($($argument),*);
            }
            if $small(Function::$function, $($asked),*) {
                return forward::$rust($($argument),*);
            }
            decide($($argument),*)
        }
    }};
    (@nonblocking $count:ty, $rust:ident [$($argument:ident: $kind:ident),*] $comm:ident [$request:ident] [$($buffer:ident $of:tt),*] [$($root:ident)?]
     [$function:ident $module:ident $op:ident [$small:ident ($($asked:ident),*)]]) => {
        // SAFETY: the caller's promise.
        unsafe {
            exports!(@if_loaded $($argument),*);
            if !$small(Function::$function, $($asked),*) {
                let about = About::once(Function::$function, root!($($root)?), $comm, $request);
                if let Some(code) = $module::$op($(value!($buffer $of),)* about) {
                    return code;
                }
            }
            forward::$rust($($argument),*)
        }
    };
    (@persistent $count:ty, $rust:ident [$($argument:ident: $kind:ident),*] $comm:ident [$request:ident] [$($buffer:ident $of:tt),*] [$($root:ident)?]
     [$function:ident $module:ident $op:ident [$small:ident ($($asked:ident),*)]]) => {
        // SAFETY: the caller's promise; the library has written a request if it returns 0.
        unsafe {
            exports!(@if_loaded $($argument),*);
            let code = forward::$rust($($argument),*);
            if code == 0 {
                made($request, $small(Function::$function, $($asked),*), |handle| {
                    let about = About::persistent(Function::$function, root!($($root)?), $comm, handle);
                    $module::$op($(value!($buffer $of),)* about);
                });
            }
            code
        }
    };
}

collectives!(exports);

/// The MPI function of this name.
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Barrier(comm: Word) -> c_int {
    let _timed = if unusual::is_timed() {
        let timed = times::begin(Kind::Collective);
        if timed.is_some() && profile::is_on() {
            // SAFETY: the caller's promise.
            return profile::barrier(comm, &mut || unsafe { MPI_Barrier(comm) });
        }
        timed
    } else {
        None
    };
    if gpu::has_requests() {
        gpu::wait_for_others();
    }
    gpu::before_waiting();
    // SAFETY: the caller's promise.
    let code = unsafe { barrier::barrier(comm) };
    if unusual::has_orphans() {
        messages::settle_orphans(code)
    } else {
        code
    }
}

/// The MPI function of this name.
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Type_free(datatype: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { datatype::free(datatype) }
}

/// Declares functions that are no collectives in both forms.
macro_rules! packs {
    ($($name:ident, $large:ident = $side:ident ($($argument:ident: $kind:ident),*; $comm:ident) $elements:tt;)*) => { $(
        packs!(@form c_int, $name = $side ($($argument: $kind),*; $comm) $elements);
        packs!(@form Large, $large = $side ($($argument: $kind),*; $comm) $elements);
    )* };
    (@form $count:ty, $name:ident = $side:ident ($($argument:ident: $kind:ident),*; $comm:ident)
     ($elements:ident, $type:ident)) => {
        /// The MPI function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[allow(clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $($argument: argument_type!($count, $kind),)*
            $comm: argument_type!($count, comm)
        ) -> c_int {
            // SAFETY: the caller's promise.
            unsafe {
                if unusual::is_timed() {
                    if let Some(_timed) = times::begin(Kind::Packing) {
                        if profile::is_on() {
                            let what = ($elements.elements(), $type, $comm);
                            let name = stringify!($name);
                            return profile::packing(name, what, &mut || $name($($argument,)* $comm));
                        }
                        return $name($($argument,)* $comm);
                    }
                }
                let call = Packing { side: Side::$side, $($argument),* };
                gpu::with_gpu! {
                    if gpu::is_loaded() {
                        if let Some(code) = gpu::packed::<$count>(call, $comm) {
                            return code;
                        }
                    }
                }
                pack::packed::<$count>(call, $comm)
            }
        }
    };
}

packs! {
    MPI_Pack, MPI_Pack_c = Packs(
        input: input, count: count, datatype: datatype, output: output, size: count,
        position: position; comm) (count, datatype);
    MPI_Unpack, MPI_Unpack_c = Unpacks(
        input: input, size: count, position: position, output: output, count: count,
        datatype: datatype; comm) (count, datatype);
}
