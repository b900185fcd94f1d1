// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Barrier` of ranks on several machines: the ranks of each node wait for each other, then the
//! leaders for each other, then each node for its leader. Inside one machine it is forwarded.

use std::ffi::c_int;

use crate::collectives::intercept::take_barrier;
use crate::collectives::nonblocking;
use crate::comm::hierarchy;
use crate::decide::active;
use crate::decide::active::active;
use crate::library::abi::Word;
use crate::library::pmpi::forward;

/// `MPI_Barrier`
///
/// # Safety
///
/// As the MPI standard says.
#[inline]
pub unsafe fn barrier(comm: Word) -> c_int {
    if active::is_meeting_wanted() || hierarchy::are_known() {
        if let Some(call) = closer_look(comm) {
            return call;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { forward::barrier(comm) }
}

#[cold]
fn closer_look(comm: Word) -> Option<c_int> {
    let abi = active()?;
    if active::is_meeting_wanted() {
        nonblocking::meet(abi, comm);
    }
    let call = take_barrier(abi, comm)?;
    Some(call.run(|call| call.group.barrier()))
}
