// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ranks that have agreed to work together.

use std::ffi::c_int;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::bootstrap::table::{all_live, ring, table_in, wait};
use libcopy::lock::lock;
use libcopy::policy::Oversubscription;
use libcopy::shm::anonymous::AnonymousSegment as Shared;

/// What became of it.
pub static OUTCOME: Mutex<Outcome> = Mutex::new(Outcome::None);

#[derive(Clone, Debug)]
pub enum Outcome {
    /// `MPI_Init` was not called, or not through us.
    None,
    Alone,
    Agreed,
    NotAgreed(String),
}

/// The ranks of `MPI_COMM_WORLD` on this machine that have agreed to work together.
#[derive(Debug)]
pub struct World {
    /// Their ranks, in ascending order.
    pub ranks: Vec<c_int>,
    /// Their processes.
    pub pids: Vec<i32>,
    /// Our place in both.
    pub me: usize,
    /// Ranks of `MPI_COMM_WORLD`.
    pub size: usize,
    /// What all of them do: bits of [`feature`].
    pub features: u64,
    /// Whether all ranks of `MPI_COMM_WORLD` on all machines have agreed, each on its own machine.
    pub everywhere: bool,
    /// How the ranks of this machine that share processors with this one, of whatever
    /// communicators, and these processors go together: as it was in `MPI_Init`.
    pub oversubscription: Oversubscription,
    /// Whether any rank of this machine may have to share a processor: all of them find the same.
    pub shares_processors: bool,
    /// Whether all ranks of this machine may run on the same processors.
    pub is_unbound: bool,
    /// The table, once its features are agreed on.
    pub(super) table: Option<Shared>,
}

impl World {
    /// Waits until all members have come here, in `MPI_Finalize`, or one has ended. `idle` is
    /// called now and then while nothing happens.
    pub fn depart(&self, mut idle: impl FnMut()) {
        let Some(table) = self.table.as_ref().map(table_in) else {
            return;
        };
        let members = self.ranks.len();
        if table.departed.fetch_add(1, Ordering::AcqRel) as usize + 1 == members {
            return ring(table);
        }
        loop {
            let heard = table.bell.load(Ordering::Acquire);
            if table.departed.load(Ordering::Acquire) as usize >= members {
                return;
            }
            if wait(table, heard) {
                idle();
                if !all_live(table, members) {
                    table.departed.fetch_add(members as u32, Ordering::AcqRel);
                    return ring(table);
                }
            }
        }
    }

    /// Whether all of `MPI_COMM_WORLD` is here.
    pub fn is_whole(&self) -> bool {
        self.ranks.len() == self.size
    }

    /// Whether all members have a feature.
    pub fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    /// Whether a rank of `MPI_COMM_WORLD` takes part.
    pub fn includes(&self, rank: c_int) -> bool {
        if self.everywhere || self.is_whole() {
            usize::try_from(rank).is_ok_and(|rank| rank < self.size)
        } else {
            self.ranks.binary_search(&rank).is_ok()
        }
    }
}

/// The world; never freed.
static WORLD: AtomicPtr<World> = AtomicPtr::new(ptr::null_mut());

/// The ranks that have agreed, from the end of `MPI_Init` on; `None` if everything is forwarded.
#[inline(always)]
pub fn world() -> Option<&'static World> {
    // SAFETY: what is stored once stays.
    unsafe { WORLD.load(Ordering::Acquire).as_ref() }
}

/// How ranks that share processors with this one and these processors go together, as far as they
/// have agreed.
pub fn shared() -> Oversubscription {
    world().map_or(Oversubscription::None, |world| world.oversubscription)
}

/// How ranks and processors go together in each communicator, as far as all of its ranks know that.
/// Those that may all run on the same processors share them with ranks of other communicators.
pub fn known() -> Option<Oversubscription> {
    let world = world().filter(|world| world.is_whole())?;
    if !world.shares_processors {
        return Some(Oversubscription::None);
    }
    world.is_unbound.then_some(world.oversubscription)
}

/// Whether ranks share processors, and all ranks of `MPI_COMM_WORLD` know that.
pub fn all_share_processors() -> bool {
    world().is_some_and(|world| world.is_whole() && world.shares_processors)
}

/// What became of it, for the report.
pub fn summary() -> String {
    match (&*lock(&OUTCOME), world()) {
        (Outcome::None, _) => "MPI_Init was not seen: all calls are forwarded".to_owned(),
        (Outcome::Alone, _) => "one rank: all calls are forwarded".to_owned(),
        (Outcome::NotAgreed(why), _) => format!("{why}: all calls are forwarded"),
        (Outcome::Agreed, Some(world)) if world.is_whole() => {
            format!("all {} ranks agreed", world.size)
        }
        (Outcome::Agreed, Some(world)) => {
            let others = if world.everywhere {
                "and so did those on other machines"
            } else {
                "communicators with other machines are forwarded"
            };
            let (here, size) = (world.ranks.len(), world.size);
            format!("{here} of {size} ranks agreed on this machine, {others}")
        }
        (Outcome::Agreed, None) => "not agreed".to_owned(),
    }
}

/// Has everybody take part in [`world`] from now on.
pub fn open(world: World) -> &'static World {
    let world = Box::leak(Box::new(world));
    WORLD.store(world, Ordering::Release);
    world
}

/// Has nobody take part any more: `MPI_COMM_WORLD` ends.
pub fn close() {
    WORLD.store(ptr::null_mut(), Ordering::Release);
}
