// SPDX-License-Identifier: MIT OR Apache-2.0

//! Blocking collectives that return while a copy engine still moves their bytes: `LIBCOPY_ASYNC`,
//! on machines with the kernel module and an engine.
//!
//! Guards hold this process's loads and stores, those of the MPI library as well. They do not hold
//! whom the MPI library gives the address of a buffer: the kernel, another process that reads it
//! with `process_vm_readv(2)`, a network adapter. So before anything is forwarded that has a
//! buffer, what is pending is settled ([`before`]); the C library's system calls are wrapped, too.
//! As long as a window or a file of MPI's is open, nothing is guarded: others get at memory then
//! without a call of ours. Where calls go past us nothing is guarded at all ([`obstacle`]).

use std::ffi::c_int;
use std::sync::{Mutex, OnceLock};

use libcopy::offload::{self, Async, NoGuards};
use libcopy::policy::Policy;

use crate::library::abi::{Word, complain, function, profiling_name};
use crate::library::relocations::{first_used, names};
use crate::library::{abi, pmpi, world_model};
use libcopy::lock::lock;

/// Functions with buffers that we do not stand in front of. Their other forms are ours.
const PAST_US: [&str; 6] = names! {
    MPI_Buffer_attach_c MPI_Win_create_c MPI_Win_allocate_c MPI_Win_allocate_shared_c
    MPI_Psend_init MPI_Precv_init
};

/// What a team of ranks on one machine may do, by what `policy` says.
pub fn choice(policy: &Policy) -> Async {
    if policy.asynchronous == Async::Off {
        return Async::Off;
    }
    static OBSTACLE: OnceLock<Option<String>> = OnceLock::new();
    let obstacle = OBSTACLE.get_or_init(|| {
        let why = obstacle()?;
        // Another rank, of another program, may decide otherwise for both.
        std::mem::forget(NoGuards::new());
        complain(&format!("LIBCOPY_ASYNC has no effect: {why}"));
        Some(why)
    });
    match obstacle {
        Some(_) => Async::Off,
        None => policy.asynchronous,
    }
}

/// Why nothing can be guarded in this process.
fn obstacle() -> Option<String> {
    if abi::symbol(c"mpi_init_").is_some() {
        return Some("the program has the Fortran library, which calls past us".to_owned());
    }
    let name = first_used(&PAST_US)?;
    Some(format!(
        "the program uses {name}, which libcopy_mpi.so does not stand in front of"
    ))
}

/// Has the wrappers of the C library's functions, which programs find instead of them, settle what
/// is pending in this library: before anything may be, since until then they look at nothing.
pub fn attach() {
    extern "C" fn settle(address: usize, length: usize) -> c_int {
        offload::settle_raw(address, length).err().unwrap_or(0)
    }
    // SAFETY: it points to a word that is there for good.
    libcopy_interpose::attach(unsafe { &*offload::pending_word() }, settle);
}

/// Whether anything may be pending, so that [`before`] has something to do.
#[inline(always)]
pub fn is_needed() -> bool {
    offload::any_pending()
}

/// What is pending is settled before memory is given to the MPI library. The code of an error, of
/// which the handler has heard: bytes are lost because a peer died.
#[inline(always)]
pub fn before() -> Result<(), c_int> {
    if offload::any_pending() {
        settle()
    } else {
        Ok(())
    }
}

#[cold]
fn settle() -> Result<(), c_int> {
    told(offload::settle_all())
}

fn told(settled: libcopy::Result<()>) -> Result<(), c_int> {
    settled.map_err(|error| {
        complain(&error.report());
        let code = abi::get().map_or(16, |abi| abi.error);
        world_model::raise(code);
        code
    })
}

/// What this process has seen of engines: buffers with which a collective returned early, waits for
/// them afterwards, and `parts` of nonblocking collectives.
pub fn numbers(parts: u64) -> [(&'static str, u64); 3] {
    let (buffers, waits) = offload::counts();
    [
        ("buffers", buffers),
        ("waits", waits),
        ("nonblocking parts", parts),
    ]
}

/// What [`numbers`] says, as a line of the report; `None` if no buffer and no part was an engine's.
pub fn report(parts: u64) -> Option<String> {
    let [(_, buffers), (_, waits), _] = numbers(parts);
    (buffers + parts != 0).then(|| {
        format!(
            "libcopy_mpi: returned early with {buffers} buffers; {waits} waits for them; {parts} parts \
             of nonblocking collectives by engines"
        )
    })
}

/// Windows and files that are open.
static OPEN: Mutex<Vec<NoGuards>> = Mutex::new(Vec::new());

/// Opens something through which others get at memory.
fn opening(open: impl FnOnce() -> c_int) -> c_int {
    let (guard, settled) = NoGuards::new();
    if let Err(code) = told(settled) {
        return code;
    }
    let code = open();
    if code == 0 {
        lock(&OPEN).push(guard);
    }
    code
}

/// Closes it.
fn closing(close: impl FnOnce() -> c_int) -> c_int {
    let code = close();
    if code == 0 {
        lock(&OPEN).pop();
    }
    code
}

/// Declares functions that are forwarded, each argument as the word that it comes in.
macro_rules! forwarded {
    ($how:ident: $($name:ident($($argument:ident)*);)*) => { $(
        /// The MPI function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[allow(clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: Word),*) -> c_int {
            function!(FUNCTION = profiling_name!($name));
            $how(|| match FUNCTION.next() {
                0 => pmpi::MISSING,
                address => {
                    // SAFETY: the MPI library's function of this name, which has as many arguments,
                    // all of them in words; the caller's promise.
                    unsafe {
                        let call: unsafe extern "C-unwind" fn($(word!($argument)),*) -> c_int =
                            std::mem::transmute(address);
                        call($($argument),*)
                    }
                }
            })
        }
    )* };
}

macro_rules! word {
    ($argument:ident) => {
        Word
    };
}

#[cfg(feature = "gpu")]
pub(crate) use {forwarded, word};

/// Passes on what has a buffer.
#[inline(always)]
pub fn with_buffers(call: impl FnOnce() -> c_int) -> c_int {
    match before() {
        Ok(()) => call(),
        Err(code) => code,
    }
}

forwarded! { with_buffers:
    MPI_Buffer_attach(a b);
    MPI_Free_mem(a);
}

forwarded! { opening:
    MPI_File_open(a b c d e);
    MPI_Win_create(a b c d e f);
    MPI_Win_allocate(a b c d e f);
    MPI_Win_allocate_shared(a b c d e f);
    MPI_Win_create_dynamic(a b c);
}

forwarded! { closing:
    MPI_File_close(a);
    MPI_Win_free(a);
}
