// SPDX-License-Identifier: MIT OR Apache-2.0

//! Nonblocking collectives: `docs/design/nonblocking.md` says how they get on, and why nobody waits for a rank
//! that is elsewhere.

mod calls;
mod circle;
mod engine;
pub mod fortran;
mod operation;
mod requests;
mod table;

use std::sync::atomic::{AtomicUsize, Ordering};

use libcopy::config;

use crate::abi::{Abi, Word};
use crate::bootstrap::{self, feature};
use crate::group::Comm;
use crate::{call, group};

pub use circle::{Circle, close_all};
pub use engine::parts;
pub use requests::{any, before_asking, before_waiting, instead_of_waiting};

/// Communicators that have called a large nonblocking collective, and whose ranks have not met since.
static WANTED: AtomicUsize = AtomicUsize::new(0);

/// Whether the ranks of any communicator are to meet.
#[inline(always)]
pub fn is_wanted() -> bool {
    WANTED.load(Ordering::Relaxed) != 0
}

/// Whether nonblocking collectives may be taken: all ranks have agreed to that in `MPI_Init`.
pub fn is_allowed() -> bool {
    bootstrap::world().is_some_and(|world| world.has(feature::NONBLOCKING))
}

/// Whether this rank wants them: not with `LIBCOPY_MPI_NONBLOCKING=0`, for tools that wait for requests past us.
pub fn is_wanted_here() -> bool {
    config::MPI_NONBLOCKING.is_on(true)
}

/// Notes that one more communicator's ranks are to meet in its next blocking collective. A nonblocking
/// one must not wait for others, so they cannot meet in that.
pub fn want() {
    if WANTED.fetch_add(1, Ordering::Relaxed) == 0 {
        call::relearn();
    }
}

/// Notes that the ranks have met, or will not.
pub fn want_no_more() {
    if WANTED.fetch_sub(1, Ordering::Relaxed) == 1 {
        call::relearn();
    }
}

/// In a blocking collective, before anything else: the ranks meet, if they are to. All ranks have called
/// the same on this communicator before, so all find the same.
#[cold]
pub fn meet(abi: &'static Abi, comm: Word) {
    if let Ok(known) = group::of(abi, comm) {
        known.meet(|known: &Comm| {
            Circle::meet(abi, comm, known.rank, known.size).map(Circle::enlisted)
        });
    }
}
