// SPDX-License-Identifier: MIT OR Apache-2.0

//! The teams that communicators over the same processes share.
//!
//! A team costs memory and a meeting of its ranks, and programs duplicate communicators as they
//! like. So a communicator's first large collective asks the communicator's first rank, the leader,
//! which team to use: one that was made for a communicator with the same processes in the same
//! order, a new one, or none yet because the communicator has not earned one. All ranks follow the
//! leader, so none has to know what the others still keep.
//!
//! Where only one thread at a time may call MPI, communicators share a team while all of them are
//! in use: a correct program calls the blocking collectives of the same processes in one order (MPI
//! 4.1, section 6.14). Where several threads may call, a team goes from one communicator to the
//! next when all ranks have given it back.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use libcopy::TeamKey;
use libcopy::lock::lock;
use libcopy::topology::Topology;

use crate::bootstrap;
use crate::bootstrap::own_collectives::{Plain, bcast};
use crate::comm::group::Group;
use crate::decide::environment::{is_governed, least};
use crate::library::abi::{Abi, Word};
use crate::library::neighbourhood::world_ranks;
use crate::library::stats::Outcome;
use crate::library::threads;

/// Teams that the leader of a list keeps although no communicator uses them.
const IDLE: usize = 4;
/// Teams that a process leads at most; further communicators are forwarded.
const LED: usize = 64;
/// Lists of processes whose first calls a leader remembers.
const ASKED: usize = 64;
/// Bytes that the large calls of the same processes have to move on each rank before they have a
/// team, if making one takes [`MAKING`] for each rank of a processor: about as many as are moved in
/// that time. Where a call gains no more than the time of a copy, no program loses more by waiting
/// for a team than by having it at once. Where ranks share a processor, calls take as much longer
/// as making the team does.
const BYTES: u64 = 9 << 20;
/// What making a team takes for each rank that shares a processor, as long as this process has not
/// made one: 0.8 to 1.1 ms for two ranks, 5 ms for 16 and 71 to 90 ms for 128 on an AMD EPYC with
/// two processors, where 9 MiB are moved in a millisecond.
const MAKING: Duration = Duration::from_millis(1);

/// Calls may gain more than the time of a copy: a short one that finds little of either library in
/// the caches, as between two steps of a program, takes a sixth to nine tenths of the time with a
/// team (`scripts/bench mpi --ops short --between 4194304`), and where ranks outnumber processors,
/// most of a call is waiting for one (of 32 and 64 ranks on two processors, 0.02 to 0.6 is left).
/// Until then it takes a tenth more than without this library. So a team is made, too, when the
/// large calls have taken this many times as long as making it takes. That is when a team that
/// spares a quarter of this time would have paid; one that gains nothing costs a quarter of it.
const PATIENCE: u32 = 4;

/// What making a team took on this process for each rank that shares a processor, in nanoseconds:
/// the least, since others may come late. 0 before the first.
#[derive(Debug)]
struct Making(AtomicU64);

static MADE_IN: Making = Making(AtomicU64::new(0));

impl Making {
    /// Notes what one has taken.
    fn note(&self, took: Duration, sharing: u32) {
        // Neither a clock that stands still nor a process that was stopped makes teams free, or
        // keeps them away.
        let took = (took / sharing).clamp(MAKING / 16, MAKING * 16);
        let took = took.as_nanos() as u64;
        let least = |before| (before == 0 || took < before).then_some(took);
        // There is nothing to do if it was less before.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, least);
    }

    /// What the large calls of ranks have to move or to take before these have a team, of which
    /// `sharing` share a processor.
    fn price(&self, sharing: u32) -> Price {
        let nanos = match self.0.load(Ordering::Relaxed) {
            0 => MAKING.as_nanos() as u64,
            nanos => nanos,
        };
        Price {
            bytes: BYTES / MAKING.as_micros() as u64 * nanos / 1000,
            time: Duration::from_nanos(nanos) * sharing * PATIENCE,
        }
    }
}

/// What has to be moved on each rank, or how long it has to take, before there is a team.
#[derive(Debug, PartialEq, Eq)]
struct Price {
    bytes: u64,
    time: Duration,
}

/// How many of the ranks share a processor of this machine.
fn sharing(ranks: usize) -> u32 {
    let local = bootstrap::local_ranks().map_or(ranks, |local| local.clamp(1, ranks));
    let cpus = Topology::current().cpus.len().max(1);
    local.div_ceil(cpus) as u32
}

/// What a communicator says when it asks for a team.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    /// Large calls that it has made.
    pub calls: u64,
    /// Bytes that they have moved on each rank since it last asked.
    pub bytes: u64,
    /// What they have taken on this rank since then.
    pub time: Duration,
    /// Whether it has a team now or never.
    pub at_once: bool,
}

/// What a communicator has of a team: given back when the communicator goes.
#[derive(Debug)]
pub struct Lease {
    group: Arc<Group>,
    shared: bool,
}

impl Deref for Lease {
    type Target = Arc<Group>;

    fn deref(&self) -> &Arc<Group> {
        &self.group
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.shared {
            self.group.usage.give_back();
        }
    }
}

/// A team, or why there is none, for these ranks of `MPI_COMM_WORLD`.
struct Kept {
    list: Vec<c_int>,
    id: u64,
    /// Whether we are the leader.
    led: bool,
    made: Result<Arc<Group>, Outcome>,
}

impl Kept {
    /// Whether it can be lent to a communicator that this one's members make now. Asked by the
    /// leader.
    fn can_be_lent(&self, many_threads: bool) -> bool {
        match &self.made {
            Ok(group) => !group.usage.is_broken() && (!many_threads || group.usage.is_idle()),
            // No team can be made of these ranks.
            Err(_) => true,
        }
    }
}

/// A list that this process leads, and that has asked.
struct Asked {
    list: Vec<c_int>,
    /// Bytes that its large calls have moved on each rank, and what they have taken on this one.
    moved: u64,
    time: Duration,
    /// Of its ranks, those that share a processor.
    sharing: u32,
}

impl Asked {
    fn add(&mut self, demand: Demand) {
        self.moved = self.moved.saturating_add(demand.bytes);
        self.time = self.time.saturating_add(demand.time);
    }

    /// Whether a team costs little beside what the calls have come to.
    fn has_paid(&self, making: &Making) -> bool {
        let price = making.price(self.sharing);
        self.moved >= price.bytes || self.time >= price.time
    }
}

struct Teams {
    /// The team that was lent last comes last.
    kept: Vec<Kept>,
    asked: VecDeque<Asked>,
}

static TEAMS: Mutex<Teams> = Mutex::new(Teams {
    kept: Vec::new(),
    asked: VecDeque::new(),
});

fn teams() -> MutexGuard<'static, Teams> {
    lock(&TEAMS)
}

/// What the leader says.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Offer {
    what: u64,
    id: u64,
}

// SAFETY: integers only.
unsafe impl Plain for Offer {}

/// The communicator has not earned a team.
const WAIT: u64 = 0;
/// A new team is made now.
const MAKE: u64 = 1;
/// The team `id` is used.
const SHARE: u64 = 2;

/// The ranks in `MPI_COMM_WORLD` of a communicator's processes, in their order; `None` if there are
/// others. Local; all ranks of the communicator find the same.
fn members(abi: &Abi, comm: Word, size: usize) -> Option<Vec<c_int>> {
    let ranks = world_ranks(abi, comm, size)?;
    // `MPI_UNDEFINED` and `MPI_PROC_NULL` are negative.
    ranks.iter().all(|rank| *rank >= 0).then_some(ranks)
}

/// Drops the teams that their leaders have retired and no communicator of this process uses.
fn sweep() {
    let retired = |kept: &Kept| match &kept.made {
        Ok(group) => group.usage.is_retired() && Arc::strong_count(group) == 1,
        Err(_) => false,
    };
    let mut teams = teams();
    let (gone, kept) = std::mem::take(&mut teams.kept)
        .into_iter()
        .partition(retired);
    teams.kept = kept;
    drop(teams);
    // Not under the lock: a team's memory and regions go with it.
    let gone: Vec<Kept> = gone;
    drop(gone);
}

/// What the leader says to `list`.
fn decide(abi: &Abi, list: &[c_int], demand: Demand) -> Offer {
    let many_threads = threads::are_several(abi);
    let mut teams = teams();
    let Teams { kept, asked } = &mut *teams;
    let same = |kept: &Kept| kept.led && kept.list == list;
    let free = |kept: &Kept| same(kept) && kept.can_be_lent(many_threads);
    if let Some(index) = kept.iter().position(free) {
        let lent = kept.remove(index);
        let id = lent.id;
        if let Ok(group) = &lent.made {
            group.usage.lend(list.len());
        }
        kept.push(lent);
        return Offer { what: SHARE, id };
    }
    // Teams that nobody uses make room for the new one, the oldest first; broken ones at once.
    let mut idle = 0;
    for kept in kept.iter().rev().filter(|kept| kept.led) {
        if let Ok(group) = &kept.made {
            idle += usize::from(group.usage.is_idle());
            if group.usage.is_broken() || (group.usage.is_idle() && idle > IDLE) {
                group.usage.retire();
            }
        }
    }
    let led =
        |kept: &&Kept| kept.led && !matches!(&kept.made, Ok(group) if group.usage.is_retired());
    let is_first = !kept.iter().any(same);
    let known = asked.iter().position(|asked| asked.list == list);
    let known = known.and_then(|index| asked.remove(index));
    let mut asks = known.unwrap_or_else(|| Asked {
        list: list.to_vec(),
        moved: 0,
        time: Duration::ZERO,
        sharing: sharing(list.len()),
    });
    asks.add(demand);
    // One more beside a team that is in use is earned with the fourth large call of one
    // communicator at the earliest.
    let has_paid = asks.has_paid(&MADE_IN) && (is_first || demand.calls >= 4);
    let earned = demand.at_once || least().is_some() || !is_governed() || has_paid;
    if !earned || kept.iter().filter(led).count() >= LED {
        asked.push_back(asks);
        if asked.len() > ASKED {
            asked.pop_front();
        }
        return Offer { what: WAIT, id: 0 };
    }
    match TeamKey::random() {
        Ok(key) => {
            let half = key.to_bytes()[..8].try_into().unwrap_or_default();
            let id = u64::from_ne_bytes(half);
            Offer { what: MAKE, id }
        }
        Err(_) => Offer { what: WAIT, id: 0 },
    }
}

/// The team for a communicator; `make` if there has to be a new one; `None`: the communicator has
/// not earned one yet. Collective, and all ranks get the same answer.
pub fn of(
    abi: &'static Abi,
    comm: Word,
    (rank, size): (usize, usize),
    demand: Demand,
    make: impl FnOnce() -> Result<Arc<Group>, Outcome>,
) -> Option<Result<Lease, Outcome>> {
    let Some(list) = members(abi, comm, size) else {
        let shared = false;
        return Some(make().map(|group| Lease { group, shared }));
    };
    sweep();
    let led = rank == 0;
    let mut offer = Offer::default();
    if led {
        offer = decide(abi, &list, demand);
    }
    if bcast(abi, comm, &mut offer) != 0 {
        return Some(Err(Outcome::NoTeam));
    }
    let id = offer.id;
    let made = match offer.what {
        SHARE => {
            let teams = teams();
            let kept = teams.kept.iter().find(|kept| kept.id == id);
            kept.map_or(Err(Outcome::NoTeam), |kept| kept.made.clone())
        }
        MAKE => {
            let started = Instant::now();
            let made = make();
            // The communicator of several nodes' leaders cannot outlive the one that it was made
            // for.
            if made.as_ref().is_ok_and(|group| group.nodes.is_some()) {
                let shared = false;
                return Some(made.map(|group| Lease { group, shared }));
            }
            if let (true, Ok(group)) = (led, &made) {
                MADE_IN.note(started.elapsed(), sharing(size));
                group.usage.lend(size);
            }
            let made_too = made.clone();
            teams().kept.push(Kept {
                list,
                id,
                led,
                made,
            });
            made_too
        }
        _ => return None,
    };
    let shared = true;
    Some(made.map(|group| Lease { group, shared }))
}

/// Lets go of all teams: the program ends.
pub fn clear() {
    let kept = std::mem::take(&mut teams().kept);
    drop(kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_or_time_pay_for_a_team() {
        let making = Making(AtomicU64::new(0));
        let asked = || Asked {
            list: vec![0, 1],
            moved: 0,
            time: Duration::ZERO,
            sharing: 2,
        };
        let call = |bytes, time| Demand {
            calls: 1,
            bytes,
            time: Duration::from_micros(time),
            at_once: false,
        };
        // Calls until a team is made.
        let calls = |demand: Demand| {
            let mut asked = asked();
            (1..)
                .find(|_| {
                    asked.add(demand);
                    asked.has_paid(&making)
                })
                .unwrap()
        };
        // 64 KiB as fast as memory, and where each call waits for a processor.
        assert_eq!(calls(call(1 << 16, 7)), 144);
        assert_eq!(calls(call(1 << 16, 1000)), 8);
        // One that is long and moves little is not enough.
        assert_eq!(calls(call(1 << 16, 7000)), 2);

        // Where a team is made in three times that, the calls have to come to as much more; the
        // least counts, however long other ranks let wait for them, and within limits.
        making.note(6 * MAKING, 2);
        assert_eq!(calls(call(1 << 16, 7)), 3 * 144);
        assert_eq!(calls(call(1 << 16, 1000)), 24);
        making.note(60 * MAKING, 2);
        assert_eq!(calls(call(1 << 16, 1000)), 24);
        making.note(Duration::ZERO, 2);
        assert_eq!(calls(call(1 << 16, 7)), 9);
    }
}
