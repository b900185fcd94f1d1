// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether nonblocking collectives are intercepted, and where the ranks of a communicator meet for
//! them.

use std::sync::Arc;

use libcopy::config;

use crate::bootstrap;
use crate::bootstrap::feature;
use crate::comm::communicator;
use crate::comm::communicator::Comm;
use crate::comm::nonblocking_group::NonblockingGroup;
use crate::library::abi::{Abi, Word};
use crate::library::times;

/// Whether nonblocking collectives may be intercepted: all ranks have agreed to that in `MPI_Init`.
pub fn is_allowed() -> bool {
    bootstrap::world().is_some_and(|world| world.has(feature::NONBLOCKING))
}

/// Whether this rank wants them: not with `LIBCOPY_MPI_NONBLOCKING=0`, for tools that wait for
/// requests past us.
pub fn is_wanted_here() -> bool {
    config::MPI_NONBLOCKING.is_on(true)
}

/// In a blocking collective, before anything else: the ranks meet, if they are to. All ranks have
/// called the same on this communicator before, so all find the same.
#[cold]
pub fn meet(abi: &'static Abi, comm: Word) {
    if let Ok(known) = communicator::of(abi, comm) {
        known.meet(|known| make(abi, comm, known));
    }
}

/// In a call that may wait for other ranks: the ranks meet, whether they are to or not.
pub fn meet_now<'a>(
    abi: &'static Abi,
    comm: Word,
    known: &'a Comm,
) -> Option<&'a Arc<NonblockingGroup>> {
    known.nonblocking_group_now(|known| make(abi, comm, known))
}

fn make(abi: &'static Abi, comm: Word, known: &Comm) -> Option<Arc<NonblockingGroup>> {
    // A nonblocking neighbourhood collective cannot ask all ranks.
    known.neighbours(abi, comm);
    let under = known.oversubscription(abi, comm);
    let meet = || NonblockingGroup::meet(abi, comm, (known.rank, known.size), under);
    times::setup(meet).map(NonblockingGroup::enlisted)
}
