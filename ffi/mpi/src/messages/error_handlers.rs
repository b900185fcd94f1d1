// SPDX-License-Identifier: MIT OR Apache-2.0

//! Asking MPICH about a request without a word to an error handler.
//!
//! MPICH has the error handler of `MPI_COMM_WORLD` hear of a receive that was truncated when
//! somebody asks about it, whatever the handler of the request's communicator is, and again when it
//! is completed. So this handler is exchanged while we ask. Where other threads may call at the
//! same time, that would have their errors returned, too: there it is exchanged only for receives
//! on communicators whose errors go elsewhere than those of `MPI_COMM_WORLD`.

use std::ffi::c_int;
use std::sync::Mutex;

use libcopy::lock::lock;

use crate::comm::processes::World;
use crate::library::abi::{Abi, Word};
use crate::library::pmpi;
use crate::library::threads;

/// Where errors of a request go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorHandlers {
    /// To the handler of `MPI_COMM_WORLD`, which ends the program; or nowhere, as a send has none.
    Alike,
    /// To another one, or nobody has asked.
    Other,
}

impl ErrorHandlers {
    /// Those of a receive on a communicator, which exists; what matters with several threads only.
    pub fn of(world: &World, comm: Word) -> ErrorHandlers {
        let abi = world.abi;
        if abi.is_open_mpi() || !threads::are_several(world.abi) {
            return ErrorHandlers::Other;
        }
        // Where the handler ends the program, it does not matter which call it ends; a function of
        // the program's would be called once more.
        let ends = |handler: &Handler| {
            abi.is_predefined_handler(handler.0) && !abi.same(handler.0, abi.errors_return)
        };
        let is_alike = || {
            let of_world = Handler::of(abi, abi.world).filter(ends)?;
            let own = Handler::of(abi, comm)?;
            Some(abi.same(own.0, of_world.0))
        };
        match is_alike() {
            Some(true) => ErrorHandlers::Alike,
            _ => ErrorHandlers::Other,
        }
    }
}

/// The error handler of a communicator, of which the library has given us a reference.
struct Handler(Word, &'static Abi);

impl Handler {
    fn of(abi: &'static Abi, comm: Word) -> Option<Handler> {
        let mut handler: Word = 0;
        // SAFETY: the caller is in a call on this communicator, or it is MPI_COMM_WORLD; a word has
        // room for either kind of handle.
        let answer = unsafe { pmpi::comm_get_errhandler(comm, (&raw mut handler).cast()) };
        (answer == 0).then_some(Handler(handler, abi))
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        if !self.1.is_predefined_handler(self.0) {
            // SAFETY: our reference.
            unsafe { pmpi::errhandler_free((&raw mut self.0).cast()) };
        }
    }
}

/// Does `work`, which does not wait where other threads may call, without a word to the error
/// handler of `MPI_COMM_WORLD`.
pub fn quietly(world: &World, handlers: ErrorHandlers, work: impl FnOnce() -> c_int) -> c_int {
    /// Threads that exchange it do so one after the other.
    static EXCHANGED: Mutex<()> = Mutex::new(());
    let abi = world.abi;
    let has_threads = threads::are_several(world.abi);
    if abi.is_open_mpi() || has_threads && handlers == ErrorHandlers::Alike {
        return work();
    }
    let _one = has_threads.then(|| lock(&EXCHANGED));
    match Handler::of(abi, abi.world) {
        Some(before) if !abi.same(before.0, abi.errors_return) => {
            // SAFETY: MPI_COMM_WORLD lives until MPI_Finalize; MPI_ERRORS_RETURN is predefined, and
            // `before` holds a reference to the handler that is put back.
            unsafe {
                pmpi::comm_set_errhandler(abi.world, abi.errors_return);
                let answer = work();
                pmpi::comm_set_errhandler(abi.world, before.0);
                answer
            }
        }
        _ => work(),
    }
}
