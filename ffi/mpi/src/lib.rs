// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy_mpi.so`: with `LD_PRELOAD`, an MPI program that was never compiled for it has the
//! collectives inside a machine done by libcopy.
//!
//! Taken are broadcasts, gathers, scatters, allgathers, alltoalls (with their `v` and `w` forms)
//! and reductions with predefined operations, on intracommunicators whose ranks are all on one
//! machine, from the size on from which libcopy is faster ([`libcopy::policy::Policy::beats_mpi`]).
//! Everything else goes to the MPI library unchanged, by its `PMPI` name, so that a tool between the
//! two still works. What decides is the same on all ranks: the number of bytes, which MPI demands
//! to agree or which the ranks agree on now and then, and the communicator. Datatypes that are not
//! dense are packed and unpacked by the MPI library.
//!
//! With `LIBCOPY_MPI_MESSAGES=1` messages between two processes of a machine are taken as well, those of
//! derived datatypes and long ones ([`messages`]).
//!
//! `LIBCOPY_DISABLE=1` passes everything on; `LIBCOPY_STATS=1` prints at `MPI_Finalize` what was
//! taken, and what was passed on why. `LIBCOPY_MPI_MIN=BYTES`, the same for all ranks, takes everything
//! from this size on, faster or not.

mod abi;
mod buffer;
mod call;
mod count;
mod exports;
mod fast;
mod fortran;
mod group;
mod irregular;
mod messages;
mod pmpi;
mod reductions;
mod regular;
mod sides;
mod stats;

use std::ffi::c_int;
use std::panic::catch_unwind;

/// `MPI_Finalize`
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Finalize() -> c_int {
    let _ = catch_unwind(|| {
        if stats::wanted() {
            let library = abi::get().map_or("no library that we know", |abi| abi.name);
            eprintln!("{}", stats::report(library));
            if let Some(line) = messages::report() {
                eprintln!("{line}");
            }
        }
        messages::finish();
        group::clear();
    });
    // SAFETY: the caller's promise.
    unsafe { pmpi::finalize() }
}
