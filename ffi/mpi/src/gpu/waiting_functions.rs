// SPDX-License-Identifier: MIT OR Apache-2.0

//! Functions that wait for other ranks and have no buffers in device memory. Sends that are delayed
//! are started before them ([`crate::gpu::delayed`]). A program that uses functions that wait and
//! are not exported here has no sends delayed: nothing would start them.

use std::ffi::c_int;
use std::sync::OnceLock;

use crate::decide::active::active;
use crate::gpu::{delayed, upcalls};
use crate::library::abi::{Word, function, profiling_name};
use crate::library::async_guard::{forwarded, word};
use crate::library::relocations::{first_used, names};
use crate::library::threads;
use crate::library::{abi, pmpi};

/// Functions that wait for other ranks and that we do not stand in front of.
const PAST_US: [&str; 42] = names! {
    MPI_Comm_accept MPI_Comm_connect MPI_Comm_create_from_group MPI_Comm_disconnect MPI_Comm_join
    MPI_Comm_spawn MPI_Comm_spawn_multiple MPI_File_read_all MPI_File_read_all_c
    MPI_File_read_at_all MPI_File_read_at_all_c MPI_File_read_ordered MPI_File_set_size
    MPI_File_set_view MPI_File_sync MPI_File_write_all MPI_File_write_all_c MPI_File_write_at_all
    MPI_File_write_at_all_c MPI_File_write_ordered MPI_Intercomm_create_from_groups MPI_Precv_init
    MPI_Psend_init MPI_Session_finalize MPI_Win_allocate MPI_Win_allocate_shared MPI_Win_complete
    MPI_Win_create MPI_Win_create_dynamic MPI_Win_fence MPI_Win_flush MPI_Win_flush_all
    MPI_Win_free MPI_Win_lock MPI_Win_lock_all MPI_Win_post MPI_Win_start MPI_Win_unlock
    MPI_Win_unlock_all MPI_Win_wait MPI_File_open MPI_File_close
};

/// Whether the program or one of its libraries uses functions that go past us, or has the MPI
/// library's Fortran functions, which call past us.
fn are_used() -> bool {
    abi::symbol(c"mpi_init_").is_some() || first_used(&PAST_US).is_some()
}

/// Whether sends may be delayed in this process.
pub fn is_possible() -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let Some(abi) = active() else {
            return false;
        };
        // A thread that waits in the library does not start what another one has sent.
        !threads::are_several(abi) && !are_used()
    })
}

/// Starts what is delayed, and packs what is in device memory.
fn waiting(call: impl FnOnce() -> c_int) -> c_int {
    delayed::flush();
    upcalls::before_waiting();
    call()
}

forwarded! { waiting:
    MPI_Comm_dup(a b);
    MPI_Comm_dup_with_info(a b c);
    MPI_Comm_create(a b c);
    MPI_Comm_create_group(a b c d);
    MPI_Comm_split(a b c d);
    MPI_Comm_split_type(a b c d e);
    MPI_Comm_free(a);
    MPI_Cart_create(a b c d e f);
    MPI_Cart_sub(a b c);
    MPI_Graph_create(a b c d e f);
    MPI_Dist_graph_create(a b c d e f g h i);
    MPI_Dist_graph_create_adjacent(a b c d e f g h i j);
    MPI_Intercomm_create(a b c d e f);
    MPI_Intercomm_merge(a b c);
}
