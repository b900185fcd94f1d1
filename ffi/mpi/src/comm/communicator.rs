// SPDX-License-Identifier: MIT OR Apache-2.0

//! What we know of a communicator, kept as an attribute of it: its size, how large its irregular
//! messages are, and the team behind it, which is made with its first large message.
//!
//! Everything here that decides is decided alike by all ranks of the communicator: they call a
//! collective with the same number of bytes, or agree on one, so they all come here together.

use std::cell::Cell;
use std::ffi::c_int;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libcopy::policy::Oversubscription;
use libcopy::topology::{CPU_WORDS, affinity_mask};

use crate::bootstrap;
use crate::bootstrap::feature;
use crate::bootstrap::own_collectives::allgather;
use crate::comm::group::{Group, create};
use crate::comm::nonblocking_group::NonblockingGroup;
use crate::comm::peers::Peers;
use crate::comm::teams;
use crate::comm::teams::{Demand, Lease};
use crate::decide::classes::Classes;
use crate::decide::prior::Order;
use crate::decide::{active, classes, waits};
use crate::library::abi::{Abi, Word, complain};
use crate::library::attributes::{COMMUNICATORS, Cache, Functions, Kept, Unknown, place_of};
use crate::library::neighbourhood::{Neighbours, world_ranks};
use crate::library::per_thread::per_thread;
use crate::library::stats::{FUNCTIONS, Function, Outcome};
use crate::library::{pmpi, threads, unusual, world_model};

/// [`Comm::timed_calls`] of the call with this number.
#[inline(always)]
fn timed(call: u64) -> Option<u32> {
    const ALL: u64 = 16;
    const MANY: u64 = 256;
    if call <= ALL {
        return Some(1);
    }
    let bits = if call <= MANY { 3 } else { 4 };
    // In no order that a program's calls have.
    let is_timed = call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits) == 0;
    is_timed.then_some(1 << bits)
}

/// How a communicator's messages of one irregular function have been.
#[derive(Debug, Default)]
struct Irregular {
    calls: AtomicU64,
    /// The number of the call whose ranks agree next.
    agrees_at: AtomicU64,
    /// Bytes of the largest part, when last agreed on.
    largest: AtomicU64,
}

impl Irregular {
    /// The number of the next call, whether its ranks are to agree, and the largest part when they
    /// last did.
    #[inline(always)]
    fn next(&self) -> (u64, bool, u64) {
        let call = self.calls.load(Ordering::Relaxed) + 1;
        let agree = call >= self.agrees_at.load(Ordering::Relaxed);
        (call, agree, self.largest.load(Ordering::Relaxed))
    }

    /// Decides when the ranks agree next, after this call.
    fn plan(&self, call: u64) {
        let next = agreement_after(call, self.largest.load(Ordering::Relaxed));
        self.agrees_at.store(next, Ordering::Relaxed);
    }
}

/// The number of the first call after this one whose ranks agree: every power of two at first, so
/// that no more calls go by unnoticed than came before, and then now and then. To agree takes some
/// microseconds and has all ranks wait for each other, which a gather does not: the shorter the
/// messages, the less often.
fn agreement_after(call: u64, largest: u64) -> u64 {
    let every = match largest {
        0..4096 => 4096,
        4096..65536 => 256,
        _ => 64,
    };
    let multiple = (call / every + 1) * every;
    // Powers of two from `every` on are multiples.
    multiple.min((call + 1).next_power_of_two())
}

/// Who a communicator's ranks are.
#[derive(Debug)]
pub struct WorldRanks {
    /// Their ranks in `MPI_COMM_WORLD`.
    pub ranks: Vec<c_int>,
    /// A hash of these.
    pub hash: u64,
}

/// A communicator. What calls ask that are forwarded comes first, in one line of the cache.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Comm {
    group: OnceLock<Result<Lease, Outcome>>,
    /// Large calls that came before it had one; the bytes of those since it last asked for one, and
    /// the nanoseconds that they took.
    large: AtomicU64,
    moved: AtomicU64,
    waited: AtomicU64,
    /// Ranks.
    pub size: usize,
    pub(crate) inter: bool,
    /// Whether it is an intracommunicator of several ranks, which have all agreed to work together.
    agreed: bool,
    /// No two communicators of this process have the same.
    pub number: u64,
    /// Our rank.
    pub rank: usize,
    /// Which of its ranks messages may reach past the MPI library.
    pub peers: OnceLock<Peers>,
    /// Who its ranks are, once somebody has asked; `None` if the library does not say.
    world_ranks: OnceLock<Option<WorldRanks>>,
    /// Once its ranks have found out who can be reached over RDMA: a communicator of ours with the
    /// same ranks, if all can.
    pub rdma_channel: OnceLock<Option<Word>>,
    /// Who its neighbours are; `None` if neighbourhood collectives are forwarded.
    pub neighbours: OnceLock<Option<Neighbours>>,
    irregular: [Irregular; FUNCTIONS],
    /// What its calls cost.
    pub classes: Classes,
    /// Whether the program has freed it; shared with what outlives it.
    pub freed: Arc<AtomicBool>,
    /// What its nonblocking collectives share, once its ranks have met for that.
    nonblocking_group: OnceLock<Option<Arc<NonblockingGroup>>>,
    /// Whether they had when the first nonblocking reduction came whose order has to stay the same.
    had_met: OnceLock<bool>,
    /// How its ranks and processors go together, once its first reduction has come whose order has
    /// to stay the same.
    oversubscription: OnceLock<Oversubscription>,
    /// Whether they are to meet.
    wants_circle: AtomicBool,
}

impl Comm {
    /// Itself, for as long as it is used.
    pub fn held(&self) -> Arc<Comm> {
        let known: *const Comm = self;
        // SAFETY: what is known of a communicator is in an `Arc` from the beginning (`Cache::of`),
        // which somebody holds who has lent it.
        unsafe {
            Arc::increment_strong_count(known);
            Arc::from_raw(known)
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        classes::forget(self.size, &self.classes);
        if self.wants_circle.load(Ordering::Relaxed) {
            active::want_no_meeting();
        }
    }
}

impl Comm {
    /// Its team, for a call that moves `bytes` bytes on each rank; collective as long as there is
    /// none. All its ranks get the same answer. Where the order is fixed, that is the last one:
    /// there is a team at once, or none ever.
    pub fn group(
        &self,
        abi: &'static Abi,
        comm: Word,
        (bytes, order): (u64, Order),
    ) -> Result<&Arc<Group>, Outcome> {
        if let Some(group) = self.group.get() {
            return group.as_deref().map_err(|outcome| *outcome);
        }
        let at_once = order == Order::Fixed;
        if !at_once && self.stays_without_group(comm, bytes)? {
            return Err(Outcome::NotYet);
        }
        self.admits()?;
        // Unless that was done.
        self.add_those_that_followed(comm);
        let calls = self.large.load(Ordering::Relaxed) + 1;
        let bytes = self.moved.load(Ordering::Relaxed).saturating_add(bytes);
        self.large.store(calls, Ordering::Relaxed);
        self.moved.store(0, Ordering::Relaxed);
        let demand = Demand {
            calls,
            bytes,
            time: Duration::from_nanos(self.waited.swap(0, Ordering::Relaxed)),
            at_once,
        };
        let make = || match create(abi, comm, self.rank, self.size) {
            Ok(Some(group)) => Ok(Arc::new(group)),
            Ok(None) => Err(Outcome::Machines),
            Err(why) => {
                why.inspect(|why| complain(why));
                Err(Outcome::BrokenTeam)
            }
        };
        let lease = teams::of(abi, comm, (self.rank, self.size), demand, make);
        let lease = match lease {
            Some(lease) => lease,
            None if at_once => Err(Outcome::NoTeam),
            None => return Err(Outcome::NotYet),
        };
        waits::forget(comm);
        self.group
            .get_or_init(|| lease)
            .as_deref()
            .map_err(|outcome| *outcome)
    }

    /// Whether a call that moves so many bytes finds no group and is none that may make one, which
    /// few are; counts it then.
    ///
    /// # Errors
    ///
    /// Why it never has one.
    pub fn stays_without_group(&self, comm: Word, bytes: u64) -> Result<bool, Outcome> {
        if self.group.get().is_some() {
            return Ok(false);
        }
        self.admits()?;
        self.add_those_that_followed(comm);
        // Calls on one communicator come one after the other.
        let calls = self.large.load(Ordering::Relaxed) + 1;
        let stays = !calls.is_power_of_two();
        if stays {
            self.count(1, bytes);
        }
        Ok(stays)
    }

    /// After a call that has stayed without a group: the next ones may only be counted
    /// ([`waits`]), until ranks ask for a team or one is timed. `bcast`: the bytes of that call, if
    /// it was a broadcast and those with the same logarithm would be counted, too.
    pub fn lets_follow(&self, abi: &Abi, comm: Word, bcast: Option<u64>) {
        const MOST: u64 = 64;
        if active::is_meeting_wanted() || unusual::is_timed() || threads::are_several(abi) {
            return;
        }
        if let Some(bytes) = bcast {
            waits::counts(comm, bytes);
        }
        waits::let_follow(comm, || {
            let next = self.large.load(Ordering::Relaxed) + 1;
            let may_follow = |call: &u64| !call.is_power_of_two() && timed(*call).is_none();
            (next..next + MOST).take_while(may_follow).count() as u16
        });
    }

    /// Counts `calls` calls that move `bytes` bytes each.
    fn count(&self, calls: u64, bytes: u64) {
        let moved = self.moved.load(Ordering::Relaxed);
        let moved = moved.saturating_add(bytes.saturating_mul(calls));
        let calls = self.large.load(Ordering::Relaxed) + calls;
        self.large.store(calls, Ordering::Relaxed);
        self.moved.store(moved, Ordering::Relaxed);
    }

    /// Counts the calls that were forwarded since the last one that was counted ([`waits`]).
    fn add_those_that_followed(&self, comm: Word) {
        let (followed, bytes) = waits::followed(comm);
        if followed > 0 {
            self.count(followed, bytes);
        }
    }

    /// How its ranks and processors go together, if they have told each other.
    pub fn known_oversubscription(&self) -> Option<Oversubscription> {
        self.oversubscription.get().copied()
    }

    /// How its ranks and processors go together, whether there is a team or not; collective for the
    /// first time, and all ranks get the same answer.
    pub fn oversubscription(&self, abi: &Abi, comm: Word) -> Oversubscription {
        *self.oversubscription.get_or_init(|| {
            // Processors, and how far others share them.
            let mut own = [0u64; CPU_WORDS + 1];
            own[..CPU_WORDS].copy_from_slice(&affinity_mask());
            own[CPU_WORDS] = bootstrap::shared() as u64;
            let (mut all, mut most) = ([0u64; CPU_WORDS], 0);
            for one in allgather(abi, comm, own, self.size).into_iter().flatten() {
                all.iter_mut().zip(one).for_each(|(all, one)| *all |= one);
                most = most.max(one[CPU_WORDS]);
            }
            let processors: u32 = all.iter().map(|word| word.count_ones()).sum();
            let own = Oversubscription::of(self.size, processors as usize);
            own.max(Oversubscription::ALL[most as usize % 3])
        })
    }

    /// Whether it has no team yet, and may have one some day.
    pub fn is_waiting(&self) -> bool {
        self.agreed && self.group.get().is_none()
    }

    /// For how many calls the time of the last one stands, which was forwarded because there is no
    /// team yet: some are timed, as two readings of the clock take as long as a short call.
    #[inline(always)]
    pub fn timed_calls(&self) -> Option<u32> {
        timed(self.large.load(Ordering::Relaxed))
    }

    /// Adds the time of large calls that were forwarded because there is no team yet.
    pub fn has_waited(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Calls on one communicator come one after the other.
        let before = self.waited.load(Ordering::Relaxed);
        let waited = before.saturating_add(nanoseconds);
        self.waited.store(waited, Ordering::Relaxed);
    }

    /// What nonblocking collectives share, if the ranks have met.
    pub fn met(&self) -> Option<&Arc<NonblockingGroup>> {
        self.nonblocking_group.get()?.as_ref()
    }

    /// Whether the ranks had met before the first nonblocking reduction whose order has to stay the
    /// same: if not, all such ones are the MPI library's, as the first was.
    pub fn had_met_for_reductions(&self) -> bool {
        *self.had_met.get_or_init(|| self.met().is_some())
    }

    /// What nonblocking collectives share; the first time, its ranks are asked to meet.
    pub fn nonblocking_group(&self) -> Option<&Arc<NonblockingGroup>> {
        match self.nonblocking_group.get() {
            Some(nonblocking_group) => nonblocking_group.as_ref(),
            None => {
                if !self.wants_circle.swap(true, Ordering::Relaxed) {
                    active::want_meeting();
                }
                None
            }
        }
    }

    /// Why nonblocking collectives share nothing: the ranks have not met yet, or in vain.
    pub fn why_not_met(&self) -> Outcome {
        match self.nonblocking_group.get() {
            Some(_) => Outcome::NoTeam,
            None => Outcome::NotYet,
        }
    }

    /// What nonblocking collectives share, where a call may wait for other ranks: they meet at
    /// once, if they have not.
    pub fn nonblocking_group_now(
        &self,
        meet: impl FnOnce(&Comm) -> Option<Arc<NonblockingGroup>>,
    ) -> Option<&Arc<NonblockingGroup>> {
        let group = self.nonblocking_group.get_or_init(|| meet(self));
        if self.wants_circle.swap(false, Ordering::Relaxed) {
            active::want_no_meeting();
        }
        group.as_ref()
    }

    /// Has its ranks meet, if they are to.
    pub fn meet(&self, meet: impl FnOnce(&Comm) -> Option<Arc<NonblockingGroup>>) {
        if self.wants_circle.load(Ordering::Relaxed) {
            self.nonblocking_group_now(meet);
        }
    }

    /// The team, if it was made.
    #[inline]
    pub fn own_group(&self) -> Option<&Arc<Group>> {
        self.group.get()?.as_deref().ok()
    }

    /// The team, if it was made and the ranks are on several nodes: all ranks find the same.
    pub fn across_nodes(&self) -> Option<&Arc<Group>> {
        self.own_group().filter(|group| group.nodes.is_some())
    }

    /// Who the ranks of an intracommunicator are; `None` if the library does not say.
    pub fn world_ranks(&self, abi: &Abi, comm: Word) -> Option<&WorldRanks> {
        let ask = || {
            let ranks = (!self.inter).then(|| world_ranks(abi, comm, self.size))??;
            let words: Vec<u64> = ranks.iter().map(|rank| *rank as u64).collect();
            let [hash, _] = libcopy::p2p::hash(&words);
            Some(WorldRanks { ranks, hash })
        };
        self.world_ranks.get_or_init(ask).as_ref()
    }

    /// Whether it has several ranks that all call the same.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        // Only those that are have agreed (`examine`).
        self.agreed
    }

    /// Whether this process is its only rank.
    #[inline(always)]
    pub fn is_alone(&self) -> bool {
        self.size == 1 && !self.inter
    }

    /// Whether it has several ranks that call the same, with what becomes of its calls if not.
    pub fn admits(&self) -> Result<(), Outcome> {
        match () {
            () if self.inter => Err(Outcome::Intercommunicator),
            () if self.size < 2 => Err(Outcome::OneRank),
            () if !self.agreed => Err(Outcome::NoTeam),
            () => Ok(()),
        }
    }

    /// Counts a call of an irregular function, whose ranks know only their own parts. Returns
    /// whether they are to agree, and the largest part when they last did. All count alike; calls
    /// on one communicator come one after the other.
    pub fn irregular(&self, function: Function) -> (bool, u64) {
        let history = &self.irregular[function as usize];
        let (call, agree, largest) = history.next();
        history.calls.store(call, Ordering::Relaxed);
        if agree {
            history.plan(call);
        }
        (agree, largest)
    }

    /// Whether such a function has been called more than once.
    pub fn is_again(&self, function: Function) -> bool {
        self.irregular[function as usize]
            .calls
            .load(Ordering::Relaxed)
            > 1
    }

    /// Counts a call in the same way if the ranks are not to agree and the largest part was less
    /// than `least` bytes; returns whether that is so.
    #[inline(always)]
    pub fn stays_small(&self, function: Function, least: u64) -> bool {
        let history = &self.irregular[function as usize];
        let (call, agree, largest) = history.next();
        let stays = !agree && largest < least;
        if stays {
            history.calls.store(call, Ordering::Relaxed);
        }
        stays
    }

    /// Notes what was agreed on.
    pub fn agreed(&self, function: Function, largest: u64) {
        let history = &self.irregular[function as usize];
        history.largest.store(largest, Ordering::Relaxed);
        history.plan(history.calls.load(Ordering::Relaxed));
    }
}

/// A communicator that has a group, for as long as a call lasts.
pub struct Held(Arc<Comm>);

impl Held {
    /// `None` if it has none.
    pub fn of(known: Arc<Comm>) -> Option<Held> {
        known.own_group().is_some().then_some(Held(known))
    }

    /// What is known of the communicator.
    pub fn known(&self) -> &Comm {
        &self.0
    }
}

impl Deref for Held {
    type Target = Group;

    #[inline]
    fn deref(&self) -> &Group {
        match self.0.group.get() {
            Some(Ok(lease)) => lease,
            // It is set once.
            _ => unreachable!("a communicator that had a group has none"),
        }
    }
}

#[unsafe(link_section = "libcopy_hot")]
static CACHE: Cache<Comm> = Cache::new();

impl Kept for Comm {
    const FUNCTIONS: Functions = COMMUNICATORS;

    #[inline(always)]
    fn cache() -> &'static Cache<Self> {
        &CACHE
    }

    fn goes(&self, comm: Word) {
        waits::forget(comm);
        self.freed.store(true, Ordering::Relaxed);
    }
}

/// Communicators that a thread has at hand: programs go from one to another and back.
const AT_HAND: usize = 8;

per_thread!(
    /// The communicators that this thread used last, by places of their handles.
    static LAST: [Cell<(Word, u64, *const Comm)>; AT_HAND] =
        [const { Cell::new((0, 0, ptr::null())) }; AT_HAND]
);

/// Lets go of all teams: the program ends.
pub fn clear() {
    CACHE.clear();
    teams::clear();
}

/// All communicators that are known.
pub fn all() -> Vec<Arc<Comm>> {
    CACHE.all()
}

/// What we know of a communicator.
pub fn of(abi: &Abi, comm: Word) -> Result<Arc<Comm>, Outcome> {
    if !abi.is_comm(comm) {
        return Err(Outcome::Arguments);
    }
    let generation = CACHE.generation(comm);
    if let Some(known) = with_last(comm, || abi.handle, Comm::held) {
        return Ok(known);
    }
    // What is kept for communicators lives as long as MPI_COMM_WORLD.
    if !world_model::is_active() {
        return Err(Outcome::NoTeam);
    }
    world_model::watch_end(abi);
    let known = CACHE
        .of(comm, || examine(abi, comm))
        .map_err(|why| match why {
            Unknown::Object => Outcome::Arguments,
            Unknown::Attribute => Outcome::NoTeam,
        })?;
    LAST.with(|all| all[place_of(comm) % AT_HAND].set((comm, generation, Arc::as_ptr(&known))));
    Ok(known)
}

/// Our rank in a communicator and its size.
#[inline]
pub fn place(abi: &Abi, comm: Word) -> Result<(usize, usize), Outcome> {
    let place = |known: &Comm| (known.rank, known.size);
    match with_last(comm, || abi.handle, place) {
        Some(place) => Ok(place),
        None => of(abi, comm).map(|known| place(&known)),
    }
}

/// As long as this stays the same, handles stand for the same communicators.
#[inline(always)]
pub fn generation(comm: Word) -> u64 {
    CACHE.generation(comm)
}

/// Does `work` with a communicator if this thread used it lately. `handle` is the bits of a word
/// that are a handle.
#[inline(always)]
pub fn with_last<R>(
    comm: Word,
    handle: impl FnOnce() -> usize,
    work: impl FnOnce(&Comm) -> R,
) -> Option<R> {
    let (word, generation, known) = LAST.with(|all| all[place_of(comm) % AT_HAND].get());
    if (word ^ comm) & handle() != 0 || generation != CACHE.generation(comm) || known.is_null() {
        return None;
    }
    // SAFETY: the registry holds what we know of a communicator until the communicator goes, which
    // begins with another generation. Nobody may free one that another thread is using (MPI 4.1,
    // section 11.6.2).
    Some(work(unsafe { &*known }))
}

/// Asks the library about a communicator; `None` if it does not accept it.
fn examine(abi: &Abi, comm: Word) -> Option<Comm> {
    let (mut inter, mut rank, mut size) = (0, 0, 0);
    // SAFETY: a communicator, and writable outputs.
    let answers = unsafe {
        [
            pmpi::comm_test_inter(comm, &mut inter),
            pmpi::comm_rank(comm, &mut rank),
            pmpi::comm_size(comm, &mut size),
        ]
    };
    let (Ok(rank), Ok(size), [0, 0, 0]) = (usize::try_from(rank), usize::try_from(size), answers)
    else {
        return None;
    };
    static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);
    Some(Comm {
        number: LAST_NUMBER.fetch_add(1, Ordering::Relaxed),
        rank,
        size,
        inter: inter != 0,
        agreed: inter == 0 && size > 1 && is_agreed(abi, comm, size),
        peers: OnceLock::new(),
        world_ranks: OnceLock::new(),
        rdma_channel: OnceLock::new(),
        neighbours: OnceLock::new(),
        group: OnceLock::new(),
        large: AtomicU64::new(0),
        moved: AtomicU64::new(0),
        waited: AtomicU64::new(0),
        irregular: std::array::from_fn(|_| Irregular::default()),
        classes: Classes::default(),
        freed: Arc::default(),
        nonblocking_group: OnceLock::new(),
        had_met: OnceLock::new(),
        oversubscription: OnceLock::new(),
        wants_circle: AtomicBool::new(false),
    })
}

/// Whether all ranks of an intracommunicator have agreed to work together in `MPI_Init`. Ranks that
/// are not in our `MPI_COMM_WORLD` have not.
fn is_agreed(abi: &Abi, comm: Word, size: usize) -> bool {
    let Some(world) = bootstrap::world().filter(|world| world.has(feature::COLLECTIVES)) else {
        return false;
    };
    if abi.same(comm, abi.world) {
        return world.everywhere || world.is_whole();
    }
    world_ranks(abi, comm, size)
        .is_some_and(|ranks| ranks.into_iter().all(|rank| world.includes(rank)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_agree_at_powers_of_two_and_then_now_and_then() {
        let cases = [
            (0, 4096),
            (4095, 4096),
            (4096, 256),
            (65535, 256),
            (65536, 64),
            (u64::MAX, 64),
        ];
        for (largest, every) in cases {
            let history = Irregular::default();
            for call in 1..10_000 {
                let (number, agree, _) = history.next();
                assert_eq!(number, call);
                let is_due = call % every == 0 || (call < every && call.is_power_of_two());
                assert_eq!(agree, is_due, "call {call}, {largest} bytes");
                history.calls.store(call, Ordering::Relaxed);
                if agree {
                    history.largest.store(largest, Ordering::Relaxed);
                    history.plan(call);
                }
            }
        }
    }
}
