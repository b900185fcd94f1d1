// SPDX-License-Identifier: MIT OR Apache-2.0

//! What we know of a communicator, kept as an attribute of it: its size, how large its irregular
//! messages are, and the team behind it, which is made with its first large message.
//!
//! Everything here that decides is decided alike by all ranks of the communicator: they call a
//! collective with the same number of bytes, or agree on one, so they all come here together.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use libcopy::config;
use libcopy::offload::Async;
use libcopy::policy::{Crowd, Policy};
use libcopy::team::{Resumption, Usage};
use libcopy::{Team, TeamKey, TransportKind};

use crate::abi::{self, Abi, Word, complain};
use crate::attributes::{Cache, Kept, Unknown};
use crate::bootstrap::{self, feature};
use crate::early;
use crate::governor::{self, Classes};
use crate::messages::{self, Peers};
use crate::neighbours::Neighbours;
use crate::nodes::Nodes;
use crate::nonblocking::{self, Circle};
use crate::pmpi::{self, CopyAttribute, DeleteAttribute};
use crate::progress;
use crate::stats::{FUNCTIONS, Fate, Function};
use crate::teams::{self, Lease};
use crate::world_model;

/// The ranks of a communicator.
#[derive(Debug)]
pub struct Group {
    /// Those on this machine.
    team: Mutex<Team>,
    /// Which communicators' ranks use it.
    pub usage: Usage,
    /// How its ranks go on after an erroneous call.
    resumption: Resumption,
    /// Calls of the team, on all communicators that share it.
    calls: AtomicU64,
    /// Where the others are, if that is not all.
    pub nodes: Option<Nodes>,
    /// Our rank in the communicator, which is the one in the team if all ranks are on one machine.
    pub rank: usize,
    /// Ranks.
    pub size: usize,
    /// How ranks and processors go together on the machine where they are the most.
    pub crowd: Crowd,
    /// Whether bytes can go with one copy on all machines.
    pub direct: bool,
}

impl Group {
    /// The team; calls on one communicator come one after the other anyway (MPI 4.1, section 6.1).
    pub fn team(&self) -> MutexGuard<'_, Team> {
        self.team.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call that the team is to do, as all its ranks count it; `None` if it goes past the team, on all
    /// ranks alike: an erroneous call has broken the team, but its ranks live, and the library does the calls
    /// that come after.
    pub fn next_call(&self) -> Option<u64> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        match self.is_in_disagreement() {
            true => self.after_disagreement(number),
            false => Some(number),
        }
    }

    #[cold]
    fn after_disagreement(&self, number: u64) -> Option<u64> {
        let chore = progress::everything;
        (!self.resumption.goes_past(number, PATIENCE, chore)).then_some(number)
    }

    /// A call that was counted has failed. Before anything else is called that may wait for another rank.
    pub fn failed(&self, number: u64) {
        if self.is_in_disagreement() {
            self.resumption.failed(number);
        }
    }

    fn is_in_disagreement(&self) -> bool {
        self.nodes.is_none() && self.usage.is_in_disagreement()
    }
}

/// How long a call after an erroneous one waits for ranks that were able to end that one, and have made no
/// call since.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a communicator's messages of one irregular function have been.
#[derive(Debug, Default)]
struct Irregular {
    calls: AtomicU64,
    /// Bytes of the largest part, when last agreed on.
    largest: AtomicU64,
}

impl Irregular {
    /// The number of the next call, whether its ranks are to agree, and the largest part when they
    /// last did. They agree at every power of two at first and then now and then, less often
    /// where messages are so short that it would be noticed.
    #[inline(always)]
    fn next(&self) -> (u64, bool, u64) {
        let call = self.calls.load(Ordering::Relaxed) + 1;
        let largest = self.largest.load(Ordering::Relaxed);
        let every = if largest < 4096 { 256 } else { 64 };
        let agree = call % every == 0 || (call < every && call.is_power_of_two());
        (call, agree, largest)
    }
}

/// A communicator.
#[derive(Debug)]
pub struct Comm {
    /// Our rank.
    pub rank: usize,
    /// Ranks.
    pub size: usize,
    pub(crate) inter: bool,
    /// Whether all its ranks have agreed to work together.
    agreed: bool,
    /// Which of its ranks messages may reach past the MPI library.
    pub peers: OnceLock<Peers>,
    /// Who its neighbours are; `None` if neighbourhood collectives are passed on.
    pub neighbours: OnceLock<Option<Neighbours>>,
    group: OnceLock<Result<Lease, Fate>>,
    /// Large calls that came before it had one.
    large: AtomicU64,
    irregular: [Irregular; FUNCTIONS],
    /// What its calls cost.
    pub classes: Classes,
    /// What its nonblocking collectives share, once its ranks have met for that.
    circle: OnceLock<Option<Arc<Circle>>>,
    /// Whether they are to meet.
    wants_circle: AtomicBool,
}

impl Drop for Comm {
    fn drop(&mut self) {
        governor::forget(self.size, &self.classes);
        if self.wants_circle.load(Ordering::Relaxed) {
            nonblocking::want_no_more();
        }
    }
}

impl Comm {
    /// Its team; collective as long as there is none. All its ranks get the same answer.
    pub fn group(&self, abi: &'static Abi, comm: Word) -> Result<&Arc<Group>, Fate> {
        if let Some(group) = self.group.get() {
            return group.as_deref().map_err(|fate| *fate);
        }
        self.admits()?;
        // Calls on one communicator come one after the other.
        let calls = self.large.fetch_add(1, Ordering::Relaxed) + 1;
        if !calls.is_power_of_two() {
            return Err(Fate::Communicator);
        }
        let make = || match create(abi, comm, self.rank, self.size) {
            Ok(Some(group)) => Ok(Arc::new(group)),
            Ok(None) => Err(Fate::Communicator),
            Err(why) => {
                complain(&why);
                Err(Fate::NoTeam)
            }
        };
        let lease = teams::of(abi, comm, (self.rank, self.size), calls, make);
        let lease = lease.ok_or(Fate::Communicator)?;
        self.group
            .get_or_init(|| lease)
            .as_deref()
            .map_err(|fate| *fate)
    }

    /// What nonblocking collectives share, if the ranks have met.
    pub fn met(&self) -> Option<&Arc<Circle>> {
        self.circle.get()?.as_ref()
    }

    /// What nonblocking collectives share; the first time, its ranks are asked to meet.
    pub fn circle(&self) -> Option<&Arc<Circle>> {
        match self.circle.get() {
            Some(circle) => circle.as_ref(),
            None => {
                if !self.wants_circle.swap(true, Ordering::Relaxed) {
                    nonblocking::want();
                }
                None
            }
        }
    }

    /// Has its ranks meet, if they are to.
    pub fn meet(&self, meet: impl FnOnce(&Comm) -> Option<Arc<Circle>>) {
        if self.wants_circle.load(Ordering::Relaxed) {
            self.circle.get_or_init(|| meet(self));
            if self.wants_circle.swap(false, Ordering::Relaxed) {
                nonblocking::want_no_more();
            }
        }
    }

    /// The team, if it was made and the ranks are on several nodes: all ranks find the same.
    pub fn across_nodes(&self) -> Option<&Arc<Group>> {
        let group = self.group.get()?.as_deref().ok()?;
        group.nodes.is_some().then_some(group)
    }

    /// Whether it has several ranks that all call the same.
    pub fn is_plain(&self) -> bool {
        !self.inter && self.size > 1 && self.agreed
    }

    /// The same, with what becomes of its calls if it has not.
    pub fn admits(&self) -> Result<(), Fate> {
        match () {
            () if self.inter || self.size < 2 => Err(Fate::Communicator),
            () if !self.agreed => Err(Fate::NoTeam),
            () => Ok(()),
        }
    }

    /// Counts a call of an irregular function, whose ranks know only their own parts. Returns
    /// whether they are to agree, and the largest part when they last did. All count alike; calls on
    /// one communicator come one after the other.
    pub fn irregular(&self, function: Function) -> (bool, u64) {
        let history = &self.irregular[function as usize];
        let (call, agree, largest) = history.next();
        history.calls.store(call, Ordering::Relaxed);
        (agree, largest)
    }

    /// Counts a call in the same way if the ranks are not to agree and the largest part was less than
    /// `least` bytes; returns whether that is so.
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
    }
}

static CACHE: Cache<Comm> = Cache::new();

impl Kept for Comm {
    #[inline(always)]
    fn cache() -> &'static Cache<Self> {
        &CACHE
    }

    unsafe fn create_keyval(
        copy: CopyAttribute,
        delete: DeleteAttribute,
        keyval: *mut c_int,
        extra: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { pmpi::comm_create_keyval(copy, delete, keyval, extra) }
    }

    unsafe fn get(comm: Word, keyval: c_int, value: *mut *mut c_void, found: *mut c_int) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { pmpi::comm_get_attr(comm, keyval, value, found) }
    }

    unsafe fn set(comm: Word, keyval: c_int, value: *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { pmpi::comm_set_attr(comm, keyval, value) }
    }
}

thread_local! {
    /// The communicator that this thread used last.
    static LAST: Cell<(Word, u64, *const Comm)> = const { Cell::new((0, 0, ptr::null())) };
}

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
pub fn of(abi: &Abi, comm: Word) -> Result<Arc<Comm>, Fate> {
    if !abi.is_comm(comm) {
        return Err(Fate::Arguments);
    }
    let generation = CACHE.generation(comm);
    let last = with_last(comm, abi.handle, |known| {
        let known: *const Comm = known;
        // SAFETY: a communicator's `Arc` gave this pointer, and the registry holds one as long as
        // the generation is the same.
        unsafe {
            Arc::increment_strong_count(known);
            Arc::from_raw(known)
        }
    });
    if let Some(known) = last {
        return Ok(known);
    }
    // What is kept for communicators lives as long as MPI_COMM_WORLD.
    if !world_model::is_active() {
        return Err(Fate::NoTeam);
    }
    world_model::before_end(abi, crate::end_past_us);
    let known = CACHE
        .of(comm, || examine(abi, comm))
        .map_err(|why| match why {
            Unknown::Object => Fate::Arguments,
            Unknown::Attribute => Fate::NoTeam,
        })?;
    LAST.set((comm, generation, Arc::as_ptr(&known)));
    Ok(known)
}

/// As long as this stays the same, handles stand for the same communicators.
#[inline(always)]
pub fn generation(comm: Word) -> u64 {
    CACHE.generation(comm)
}

/// Does `work` with a communicator if this thread used it last. `handle` is the bits of a word that
/// are a handle.
#[inline(always)]
pub fn with_last<R>(comm: Word, handle: usize, work: impl FnOnce(&Comm) -> R) -> Option<R> {
    let (word, generation, known) = LAST.get();
    if (word ^ comm) & handle != 0 || generation != CACHE.generation(comm) || known.is_null() {
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
    Some(Comm {
        rank,
        size,
        inter: inter != 0,
        agreed: inter == 0 && size > 1 && is_agreed(abi, comm, size),
        peers: OnceLock::new(),
        neighbours: OnceLock::new(),
        group: OnceLock::new(),
        large: AtomicU64::new(0),
        irregular: Default::default(),
        classes: Classes::default(),
        circle: OnceLock::new(),
        wants_circle: AtomicBool::new(false),
    })
}

/// Whether all ranks of an intracommunicator have agreed to work together in `MPI_Init`. Ranks that are not in our
/// `MPI_COMM_WORLD` have not.
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

/// The ranks in `MPI_COMM_WORLD` of a communicator's processes, `MPI_UNDEFINED` for those of other worlds;
/// `None` if the library does not say.
pub fn world_ranks(abi: &Abi, comm: Word, size: usize) -> Option<Vec<c_int>> {
    let length = c_int::try_from(size).ok()?;
    let (mut group, mut world) = (0, 0);
    let own: Vec<c_int> = (0..length).collect();
    let mut ranks = vec![-1; size];
    // SAFETY: a communicator; arrays of its size; words have room for either kind of handle.
    let answers = unsafe {
        let answers = [
            pmpi::comm_group(comm, &mut group),
            pmpi::comm_group(abi.world, &mut world),
            pmpi::group_translate_ranks(group, length, own.as_ptr(), world, ranks.as_mut_ptr()),
        ];
        pmpi::group_free(&mut group);
        pmpi::group_free(&mut world);
        answers
    };
    (answers == [0; 3]).then_some(ranks)
}

/// Joins a team. Its collectives return early only where no leader passes what they bring to other nodes.
fn join(key: &TeamKey, rank: usize, size: usize, alone: bool) -> libcopy::Result<Team> {
    let mut policy = Policy::load()?;
    policy.asynchronous = match alone {
        true => early::choice(&policy),
        false => Async::Off,
    };
    let mut team = Team::join_with(key, rank, size, policy)?;
    team.set_chore(Some(progress::everything));
    Ok(team)
}

/// How many ranks of a machine are to be taken for a node, to try what happens across nodes; the same
/// for all ranks.
fn ranks_of_a_node() -> Option<usize> {
    static RANKS: OnceLock<Option<usize>> = OnceLock::new();
    *RANKS.get_or_init(|| {
        let ranks: Option<NonZeroUsize> =
            abi::asked(config::MPI_NODE_RANKS.parse("a number of ranks"));
        ranks.map(NonZeroUsize::get)
    })
}

/// The ranks of this machine, freed with this.
pub struct Node(Word);

impl Node {
    /// Their communicator.
    pub fn word(&self) -> Word {
        self.0
    }

    /// Collective over the communicator; the library's error code if that fails.
    pub fn of(abi: &Abi, comm: Word, rank: c_int) -> Result<Node, c_int> {
        let code = |answer| if answer == 0 { Ok(()) } else { Err(answer) };
        let mut node = Node(0);
        // SAFETY: all ranks of the communicator are here; the outputs are writable, and a word has
        // room for either kind of handle.
        unsafe {
            code(pmpi::comm_split_type(
                comm,
                abi.shared,
                rank,
                abi.info_null,
                &mut node.0,
            ))?;
            let Some(ranks) = ranks_of_a_node() else {
                return Ok(node);
            };
            let (mut number, mut part) = (0, Node(0));
            code(pmpi::comm_rank(abi.world, &mut number))?;
            let color = (number as usize / ranks) as c_int;
            code(pmpi::comm_split(node.0, color, rank, &mut part.0))?;
            Ok(part)
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.0 != 0 {
            // SAFETY: our own communicator, and all its ranks are here.
            unsafe { pmpi::comm_free(&mut self.0) };
        }
    }
}

/// Makes the team, and finds out about other nodes; `None`: the communicator is none for us. All ranks
/// give the same answer.
fn create(
    abi: &'static Abi,
    comm: Word,
    rank: usize,
    size: usize,
) -> Result<Option<Group>, String> {
    let failed = |what: &str| Err(format!("{what} failed; its collectives are passed on"));
    let Ok(node) = Node::of(abi, comm, rank as c_int) else {
        return failed("MPI_Comm_split_type");
    };
    let (mut seat, mut here) = (0, 0);
    // SAFETY: our own communicator, and writable outputs.
    let answers = unsafe {
        [
            pmpi::comm_rank(node.0, &mut seat),
            pmpi::comm_size(node.0, &mut here),
        ]
    };
    let (Ok(seat), Ok(here), [0, 0]) = (usize::try_from(seat), usize::try_from(here), answers)
    else {
        return failed("MPI_Comm_rank");
    };
    let key = TeamKey::random().map_err(|error| error.to_string());
    // The key of a node's team, and who its leader is.
    let mut bytes = [0u8; 24];
    bytes[..16].copy_from_slice(&key.as_ref().map_or([0; 16], |key| key.to_bytes()));
    bytes[16..].copy_from_slice(&(rank as u64).to_ne_bytes());
    // SAFETY: all ranks of the node are here.
    if unsafe { pmpi::bcast(bytes.as_mut_ptr().cast(), 24, abi.byte, 0, node.0) } != 0 {
        return failed("broadcasting a key");
    }
    drop(node);
    // A rank that must not read another's memory cannot open what they share either.
    if !all_agree(abi, comm, size, !messages::has_lost_rights()) {
        return Err(
            "a rank must not read the others' memory; its collectives are passed on".to_owned(),
        );
    }
    let (mut key, mut leader) = ([0u8; 16], [0u8; 8]);
    key.copy_from_slice(&bytes[..16]);
    leader.copy_from_slice(&bytes[16..]);
    let leader = u64::from_ne_bytes(leader) as c_int;
    let nodes = match here == size {
        true => None,
        false => {
            let mut leaders: Vec<c_int> = vec![0; size];
            let (own, all) = ((&raw const leader).cast(), leaders.as_mut_ptr().cast());
            // SAFETY: all ranks are here; four bytes from each.
            if unsafe { pmpi::allgather(own, 4, abi.byte, all, 4, abi.byte, comm) } != 0 {
                return failed("MPI_Allgather");
            }
            match Nodes::new(abi, comm, rank, &leaders) {
                Ok(Some(nodes)) => Some(nodes),
                Ok(None) => return Ok(None),
                Err(_) => return failed("MPI_Comm_split"),
            }
        }
    };
    // Here no communicator is being made that would be in the way of the one that this makes.
    progress::library(abi);
    // A leader has none to give if it got no random numbers.
    let team = match key == [0; 16] {
        true => Err("no random numbers for a key".to_owned()),
        false => {
            join(&TeamKey::from_bytes(key), seat, here, nodes.is_none()).map_err(|e| e.to_string())
        }
    };
    let direct = |team: &Team| {
        let mut reports = team.transports().iter();
        reports.any(|report| report.usable && report.kind != TransportKind::Shm)
    };
    let (mut crowd, mut is_direct) = (Crowd::Spacious, false);
    if let Ok(team) = &team {
        (crowd, is_direct) = (team.crowd(), direct(team));
    }
    let fine = [u8::from(team.is_ok()) | u8::from(is_direct) << 1 | (crowd as u8) << 2];
    let mut all = vec![0u8; size];
    // SAFETY: all ranks are here; one byte from each.
    let answer = unsafe {
        let recv = all.as_mut_ptr().cast();
        pmpi::allgather(fine.as_ptr().cast(), 1, abi.byte, recv, 1, abi.byte, comm)
    };
    if answer != 0 {
        return failed("MPI_Allgather");
    }
    let team = team?;
    if let Some(other) = all.iter().position(|fine| fine & 1 == 0) {
        return Err(format!("rank {other} could not join its team"));
    }
    Ok(Some(Group {
        crowd: Crowd::ALL[usize::from(all.iter().map(|fine| fine >> 2).max().unwrap_or(0)) % 3],
        direct: all.iter().all(|fine| fine & 2 != 0),
        usage: team.usage(),
        resumption: team.resumption(),
        calls: AtomicU64::new(0),
        team: Mutex::new(team),
        nodes,
        rank,
        size,
    }))
}

/// Whether all ranks say yes. Collective.
fn all_agree(abi: &Abi, comm: Word, size: usize, yes: bool) -> bool {
    let (own, mut all) = ([u8::from(yes)], vec![0u8; size]);
    // SAFETY: all ranks are here; one byte from each.
    let answer = unsafe {
        let recv = all.as_mut_ptr().cast();
        pmpi::allgather(own.as_ptr().cast(), 1, abi.byte, recv, 1, abi.byte, comm)
    };
    answer == 0 && all.iter().all(|yes| *yes != 0)
}
