// SPDX-License-Identifier: MIT OR Apache-2.0

//! Letting the MPI library get on while we wait for something that it knows nothing of.
//!
//! MPI promises that what a process has under way goes on whenever it waits in a call (MPI 4.1,
//! section 3.5, "Progress"), so a peer may rely on it before it does what we wait for. Testing a
//! receive that nothing ever comes for makes any library go on; `MPI_Iprobe` does not always: MPICH
//! with UCX only looks at what it has if the communicator is `MPI_COMM_SELF`.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, TryLockError};

use libcopy::lock::lock;

use crate::library::abi::{Abi, Word};
use crate::library::{abi, pmpi, world_model};

/// A receive that nothing comes for, and its communicator.
struct Receive {
    comm: Word,
    request: Word,
}

static RECEIVE: Mutex<Option<Receive>> = Mutex::new(None);

/// That communicator; 0 as long as there is none.
static ALONE: AtomicUsize = AtomicUsize::new(0);

/// A communicator of this process alone, whose errors are returned, if there is one: from
/// `MPI_Init` on where ranks work together. Not made later, when the program may be making one of
/// its own.
pub fn alone() -> Option<Word> {
    match ALONE.load(Ordering::Acquire) {
        0 => None,
        comm => Some(comm),
    }
}

impl Receive {
    /// `None` if the library has none for us.
    fn post(abi: &Abi) -> Option<Receive> {
        let mut receive = Receive {
            comm: 0,
            request: 0,
        };
        // Not a duplicate, which would call what the program has attached to its own.
        // SAFETY: only this process has to be here; words have room for either kind of handle, and
        // nothing is written to no bytes.
        unsafe {
            if pmpi::comm_split(abi.alone, 0, 0, &mut receive.comm) != 0 {
                return None;
            }
            let request = (&raw mut receive.request).cast();
            match pmpi::irecv(ptr::null_mut(), 0, abi.byte, 0, 0, receive.comm, request) {
                0 => {
                    pmpi::comm_set_errhandler(receive.comm, abi.errors_return);
                    ALONE.store(receive.comm, Ordering::Release);
                    Some(receive)
                }
                _ => {
                    pmpi::comm_free(&mut receive.comm);
                    None
                }
            }
        }
    }
}

/// Lets the library get on with what is under way.
pub fn library(abi: &Abi) {
    let mut receive = match RECEIVE.try_lock() {
        Ok(receive) => receive,
        Err(TryLockError::Poisoned(receive)) => receive.into_inner(),
        // Then another thread does.
        Err(TryLockError::WouldBlock) => return,
    };
    if receive.is_none() && world_model::is_active() {
        *receive = Receive::post(abi);
    }
    let mut flag: c_int = 0;
    if let Some(receive) = &mut *receive {
        let request = (&raw mut receive.request).cast();
        // SAFETY: our own request; the status is ignored.
        unsafe { pmpi::test(request, &mut flag, abi.status_ignore()) };
    }
}

/// Lets messages go on, and the library with them; whether there are any.
static MESSAGES: OnceLock<fn() -> bool> = OnceLock::new();

/// Has [`everything`] let messages go on.
pub fn register(messages: fn() -> bool) {
    let _ = MESSAGES.set(messages);
}

/// Lets everything go on that this process has under way while its team waits for others.
pub fn everything() {
    if MESSAGES.get().is_some_and(|messages| messages()) {
        return;
    }
    if let Ok(abi) = abi::get() {
        library(abi);
    }
}

/// Takes the receive back, before `MPI_Finalize`.
pub fn finish() {
    let receive = lock(&RECEIVE).take();
    ALONE.store(0, Ordering::Release);
    if let (Some(mut receive), Ok(abi)) = (receive, abi::get()) {
        let request = (&raw mut receive.request).cast();
        // SAFETY: our own request and communicator.
        unsafe {
            pmpi::cancel(request);
            pmpi::wait(request, abi.status_ignore());
            pmpi::comm_free(&mut receive.comm);
        }
    }
}
