// SPDX-License-Identifier: MIT OR Apache-2.0

//! How the ranks of a job that have this library find each other, without a call that a rank without it
//! would have to join. `docs/design/bootstrap.md` describes the protocol.
//!
//! Before `PMPI_Init` each process announces itself in a table in shared memory, which the ranks of a job on
//! one machine find by the job's identity. After `PMPI_Init`, which as a rule returns only when all ranks have
//! entered it, each adds its rank. One word of the table decides whether they work together (`COMPLETE`) or
//! not (`GIVEN_UP`); it changes once, by compare-and-swap, so that all find the same. All waits are bounded.
//!
//! The process that comes first owns the table: it holds an abstract Unix socket whose name is the job's
//! identity, and an anonymous file, which the others open through `/proc`. Both go with the process, so that
//! nothing is left over whenever it dies.

use std::ffi::{CString, c_int};
use std::fs::{self, File};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libcopy::shm::anonymous::AnonymousSegment as Shared;
use libcopy::transport::process_memory::lives;

/// Processes of one machine that find each other.
pub const MOST_MEMBERS: usize = 512;

/// For so long a rank that has left `PMPI_Init` waits for processes that have not announced themselves.
const ANNOUNCING: Duration = Duration::from_millis(500);
/// For so long it waits for those that have: they are still in `PMPI_Init`, or in a stopped process.
const ARRIVING: Duration = Duration::from_secs(30);
/// For so long a process that announces itself looks for the owner of a table, which may be about to make it.
const FINDING: Duration = Duration::from_millis(200);
/// After so long a wait lets other things get on, and looks whether everybody lives.
const TICK: Duration = Duration::from_millis(5);
/// After so many of them a process that waits in `MPI_Finalize`, maybe for hours, looks whether everybody lives.
const LOOKING: u32 = 20;

/// What all ranks of a world agree to do.
pub mod feature {
    /// Messages between two processes.
    pub const MESSAGES: u64 = 1;
    /// The kernel module, for messages.
    pub const MODULE: u64 = 2;
    /// Nonblocking collectives.
    pub const NONBLOCKING: u64 = 4;
    /// Collectives, of any kind.
    pub const COLLECTIVES: u64 = 8;
}

/// States of a table.
mod phase {
    pub const OPEN: u64 = 0;
    pub const COMPLETE: u64 = 1;
    pub const GIVEN_UP: u64 = 2;
}

/// The table's word: phase, processes that have their rank, processes that were announced.
#[derive(Clone, Copy)]
struct State {
    phase: u64,
    ready: usize,
    announced: usize,
}

const READY: u32 = 24;
const PHASE: u32 = 48;
const COUNT: u64 = (1 << READY) - 1;

impl State {
    fn of(bits: u64) -> State {
        State {
            phase: bits >> PHASE,
            ready: (bits >> READY & COUNT) as usize,
            announced: (bits & COUNT) as usize,
        }
    }

    fn bits(self) -> u64 {
        self.phase << PHASE | (self.ready as u64) << READY | self.announced as u64
    }
}

/// Words that the owner of a table gives to the others.
pub const OFFER_WORDS: usize = 12;
/// What the owner of a table gives to the others, before it is ready.
pub type Offer = [u64; OFFER_WORDS];

#[repr(C)]
struct Table {
    word: AtomicU64,
    /// Why it was given up: for the report.
    reason: AtomicU32,
    /// A futex, which changes with everything that anybody may wait for.
    bell: AtomicU32,
    /// The features that all agree on, and [`DECIDED`].
    verdict: AtomicU64,
    /// Members that are in `MPI_Finalize`.
    departed: AtomicU32,
    offer: [AtomicU64; OFFER_WORDS],
    slots: [Slot; MOST_MEMBERS],
}

const DECIDED: u64 = 1 << 63;

/// What a process says about itself. All zeros until it does.
#[repr(C, align(64))]
struct Slot {
    pid: AtomicI32,
    rank: AtomicI32,
    /// Settings that have to be the same everywhere.
    settings: AtomicU64,
    /// Where a word is that the others try to read, and the word.
    address: AtomicU64,
    probe: AtomicU64,
    /// The features that it agrees to, and [`DECIDED`].
    vote: AtomicU64,
}

/// The word that others try to read.
static PROBE: AtomicU64 = AtomicU64::new(0);

/// What this process holds of its table.
struct Own {
    shared: Shared,
    slot: usize,
    /// The socket and the file, if it is the owner.
    held: Option<(OwnedFd, File)>,
}

/// The table in memory that was made for one.
fn table_in(shared: &Shared) -> &Table {
    // SAFETY: the mapping has room for a table, on a page; all zeros are one.
    unsafe { &*shared.place(0, size_of::<Table>()).cast() }
}

impl Own {
    fn table(&self) -> &Table {
        table_in(&self.shared)
    }
}

/// The table between [`announce`] and the decision.
static OWN: Mutex<Option<Own>> = Mutex::new(None);

/// What became of it.
static OUTCOME: Mutex<Outcome> = Mutex::new(Outcome::None);

#[derive(Clone, Debug)]
enum Outcome {
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
    /// The table, once its features are agreed on.
    table: Option<Shared>,
}

impl World {
    /// Waits until all members have come here, in `MPI_Finalize`, or one has ended. `idle` is called now and
    /// then while nothing happens.
    pub fn depart(&self, mut idle: impl FnMut()) {
        let Some(table) = self.table.as_ref().map(table_in) else {
            return;
        };
        let members = self.ranks.len();
        if table.departed.fetch_add(1, Ordering::AcqRel) as usize + 1 == members {
            return ring(table);
        }
        let mut ticks = 0;
        loop {
            let heard = table.bell.load(Ordering::Acquire);
            if table.departed.load(Ordering::Acquire) as usize >= members {
                return;
            }
            if wait(table, heard) {
                idle();
                ticks += 1;
                if ticks % LOOKING == 0 && !self.pids.iter().all(|pid| lives(*pid)) {
                    return;
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Announces this process to the others of its job; before `PMPI_Init`. Its settings have to be the same
/// as theirs.
pub fn announce(settings: impl Hash) {
    let mut own = lock(&OWN);
    if own.is_some() || !matches!(*lock(&OUTCOME), Outcome::None) {
        return;
    }
    let found = match identity() {
        None => Err("no launcher that is known has started this job".to_owned()),
        Some(identity) => find(&identity).map_err(|error| format!("no shared table: {error}")),
    };
    match found.and_then(|table| join(table, settings)) {
        Ok(joined) => *own = Some(joined),
        Err(why) => *lock(&OUTCOME) = Outcome::NotAgreed(why),
    }
}

/// Takes a slot of a table.
fn join(
    (shared, held): (Shared, Option<(OwnedFd, File)>),
    settings: impl Hash,
) -> Result<Own, String> {
    let mut own = Own {
        shared,
        slot: 0,
        held,
    };
    let table = own.table();
    let mut bits = table.word.load(Ordering::Acquire);
    let slot = loop {
        let word = State::of(bits);
        if word.phase != phase::OPEN {
            return Err("this rank came after the others had decided".to_owned());
        }
        if word.announced == MOST_MEMBERS {
            return Err(format!("there are more than {MOST_MEMBERS} ranks"));
        }
        match table
            .word
            .compare_exchange_weak(bits, bits + 1, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => break word.announced,
            Err(other) => bits = other,
        }
    };
    let said = &table.slots[slot];
    let pid = std::process::id();
    let probe = RandomState::new().hash_one((pid, slot));
    PROBE.store(probe, Ordering::Release);
    said.settings.store(digest(settings), Ordering::Relaxed);
    said.address
        .store(&raw const PROBE as u64, Ordering::Relaxed);
    said.probe.store(probe, Ordering::Relaxed);
    said.pid.store(pid as i32, Ordering::Release);
    own.slot = slot;
    Ok(own)
}

/// Forgets what was announced: `PMPI_Init` has failed.
pub fn withdraw() {
    let own = lock(&OWN).take();
    if let Some(own) = own {
        give_up(own.table(), reason::WITHDRAWN);
        *lock(&OUTCOME) = Outcome::None;
    }
}

/// Why a table was given up.
mod reason {
    pub const MISSING: u32 = 1;
    pub const DEAD: u32 = 2;
    pub const SETTINGS: u32 = 3;
    pub const RANKS: u32 = 4;
    pub const WITHDRAWN: u32 = 5;
    pub const LATE: u32 = 6;
}

/// A world whose members still have to agree on features.
pub struct Meeting {
    own: Own,
    members: Vec<usize>,
    world: World,
}

/// Whether this process owns the table, so that its offer counts.
pub fn is_owner() -> bool {
    lock(&OWN).as_ref().is_some_and(|own| own.held.is_some())
}

/// Says which rank this process is, and waits until the ranks of this machine have decided; after
/// `PMPI_Init`. `offer` is what the owner of the table has for the others, `idle` is called now and then while
/// nothing happens. The settings are compared here.
pub fn meet(rank: c_int, size: usize, offer: Offer, idle: impl FnMut()) -> Option<Meeting> {
    let own = lock(&OWN).take()?;
    if size < 2 {
        give_up(own.table(), reason::RANKS);
        *lock(&OUTCOME) = Outcome::Alone;
        return None;
    }
    let local = local_ranks().filter(|local| *local < size);
    match decide(&own, (rank, size, local), offer, idle) {
        Ok(members) => {
            let slots = &own.table().slots;
            let say = |slot: &usize| {
                let slot = &slots[*slot];
                (
                    slot.rank.load(Ordering::Relaxed),
                    slot.pid.load(Ordering::Relaxed),
                )
            };
            let (ranks, pids): (Vec<c_int>, Vec<i32>) = members.iter().map(say).unzip();
            let me = members.iter().position(|slot| *slot == own.slot)?;
            Some(Meeting {
                world: World {
                    ranks,
                    pids,
                    me,
                    size,
                    features: 0,
                    everywhere: false,
                    table: None,
                },
                own,
                members,
            })
        }
        Err(why) => {
            *lock(&OUTCOME) = Outcome::NotAgreed(why);
            None
        }
    }
}

/// Waits for the decision; the slots of all members, by rank.
fn decide(
    own: &Own,
    (rank, size, local): (c_int, usize, Option<usize>),
    offer: Offer,
    mut idle: impl FnMut(),
) -> Result<Vec<usize>, String> {
    let table = own.table();
    if own.held.is_some() {
        for (place, word) in table.offer.iter().zip(offer) {
            place.store(word, Ordering::Relaxed);
        }
    }
    table.slots[own.slot].rank.store(rank, Ordering::Relaxed);
    table.word.fetch_add(1 << READY, Ordering::AcqRel);
    ring(table);
    let started = Instant::now();
    let expected = local.unwrap_or(size);
    let last = loop {
        let heard = table.bell.load(Ordering::Acquire);
        let bits = table.word.load(Ordering::Acquire);
        let word = State::of(bits);
        if word.phase != phase::OPEN {
            break word;
        }
        let all = word.ready == word.announced && (word.ready == size || Some(word.ready) == local);
        if all {
            match are_consistent(&table.slots[..word.announced]) {
                Ok(()) => {
                    let complete = State {
                        phase: phase::COMPLETE,
                        ..word
                    };
                    let order = (Ordering::AcqRel, Ordering::Acquire);
                    let _ = table
                        .word
                        .compare_exchange(bits, complete.bits(), order.0, order.1);
                    ring(table);
                }
                Err(why) => give_up(table, why),
            }
            continue;
        }
        let waited = started.elapsed();
        if word.announced < expected && waited > ANNOUNCING {
            give_up(table, reason::MISSING);
        } else if waited > ARRIVING {
            give_up(table, reason::LATE);
        } else if wait(table, heard) {
            idle();
            if !all_live(&table.slots[..word.announced]) {
                give_up(table, reason::DEAD);
            }
        }
    };
    if last.phase == phase::COMPLETE {
        let mut members: Vec<usize> = (0..last.announced).collect();
        members.sort_by_key(|slot| table.slots[*slot].rank.load(Ordering::Relaxed));
        return Ok(members);
    }
    Err(match table.reason.load(Ordering::Acquire) {
        reason::DEAD => "a rank has ended in MPI_Init".to_owned(),
        reason::SETTINGS => "the ranks have different LIBCOPY_ variables".to_owned(),
        reason::RANKS => "processes of several jobs have met".to_owned(),
        reason::WITHDRAWN => "MPI_Init has failed on a rank".to_owned(),
        reason::LATE => "some ranks have not left MPI_Init".to_owned(),
        _ => format!("{} of {expected} ranks have libcopy_mpi.so", last.announced),
    })
}

/// Whether slots that are ready belong to one job.
fn are_consistent(slots: &[Slot]) -> Result<(), u32> {
    let mut ranks: Vec<i32> = Vec::with_capacity(slots.len());
    for slot in slots {
        ranks.push(slot.rank.load(Ordering::Relaxed));
        let settings = slot.settings.load(Ordering::Relaxed);
        if settings != slots[0].settings.load(Ordering::Relaxed) {
            return Err(reason::SETTINGS);
        }
    }
    ranks.sort_unstable();
    if ranks.windows(2).all(|pair| pair[0] < pair[1]) {
        Ok(())
    } else {
        Err(reason::RANKS)
    }
}

impl Meeting {
    /// The members.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What the owner of the table has for the others.
    pub fn offer(&self) -> Offer {
        let words = self.own.table().offer.iter();
        let mut offer = Offer::default();
        for (word, place) in offer.iter_mut().zip(words) {
            *word = place.load(Ordering::Relaxed);
        }
        offer
    }

    /// The process, address and value of a word of each member, to try whether its memory can be read.
    pub fn probes(&self) -> impl Iterator<Item = (i32, u64, u64)> {
        self.members.iter().map(|slot| {
            let slot = &self.own.table().slots[*slot];
            (
                slot.pid.load(Ordering::Relaxed),
                slot.address.load(Ordering::Relaxed),
                slot.probe.load(Ordering::Relaxed),
            )
        })
    }

    /// Says which features this process agrees to; what all have agreed to is the same everywhere, nothing
    /// if somebody does not answer.
    pub fn agree(mut self, features: u64, mut idle: impl FnMut()) -> World {
        let table = self.own.table();
        let vote = features & !DECIDED | DECIDED;
        table.slots[self.own.slot]
            .vote
            .store(vote, Ordering::Release);
        ring(table);
        let started = Instant::now();
        let agreed = loop {
            let heard = table.bell.load(Ordering::Acquire);
            let verdict = table.verdict.load(Ordering::Acquire);
            if verdict & DECIDED != 0 {
                break verdict;
            }
            let votes = self.members.iter();
            let votes = votes.map(|slot| table.slots[*slot].vote.load(Ordering::Acquire));
            let all = votes.fold(u64::MAX, |all, vote| all & vote);
            let late = || started.elapsed() > ARRIVING;
            if all & DECIDED != 0 {
                settle(table, all);
            } else if wait(table, heard) {
                idle();
                if late() || !all_live(&table.slots[..self.members.len()]) {
                    settle(table, DECIDED);
                }
            }
        };
        self.world.features = agreed & !DECIDED;
        *lock(&OUTCOME) = Outcome::Agreed;
        self.world.table = Some(self.own.shared);
        self.world
    }
}

/// Decides on features, if nobody has.
fn settle(table: &Table, features: u64) {
    let order = (Ordering::AcqRel, Ordering::Acquire);
    let _ = table
        .verdict
        .compare_exchange(0, features, order.0, order.1);
    ring(table);
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

/// Decides that nobody takes part, if nothing was decided yet.
fn give_up(table: &Table, why: u32) {
    let mut bits = table.word.load(Ordering::Acquire);
    loop {
        let word = State::of(bits);
        if word.phase != phase::OPEN {
            return;
        }
        table.reason.store(why, Ordering::Release);
        let given_up = State {
            phase: phase::GIVEN_UP,
            ..word
        };
        let order = (Ordering::AcqRel, Ordering::Acquire);
        match table
            .word
            .compare_exchange(bits, given_up.bits(), order.0, order.1)
        {
            Ok(_) => return ring(table),
            Err(other) => bits = other,
        }
    }
}

/// Whether all processes of slots that say who they are live.
fn all_live(slots: &[Slot]) -> bool {
    let mut pids = slots.iter().map(|slot| slot.pid.load(Ordering::Acquire));
    pids.all(|pid| pid == 0 || lives(pid))
}

/// When a process started, in clock ticks after the machine did (proc(5), field 22 of `stat`).
fn start_of(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses, with any characters; the next one is the third.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    fields.nth(22 - 3)?.parse().ok()
}

/// Wakes whoever waits.
fn ring(table: &Table) {
    table.bell.fetch_add(1, Ordering::AcqRel);
    // SAFETY: a futex's address, and numbers.
    unsafe {
        let all = c_int::MAX;
        libc::syscall(
            libc::SYS_futex,
            &raw const table.bell,
            libc::FUTEX_WAKE,
            all,
        );
    }
}

/// Waits until something changes, for a [`TICK`] at most; whether nothing did.
fn wait(table: &Table, heard: u32) -> bool {
    let limit = libc::timespec {
        tv_sec: 0,
        tv_nsec: TICK.as_nanos() as libc::c_long,
    };
    // SAFETY: a futex's address, numbers, and a time that lives.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const table.bell,
            libc::FUTEX_WAIT,
            heard,
            &raw const limit,
        );
    }
    table.bell.load(Ordering::Acquire) == heard
}

fn digest(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What the processes of this job on this machine have in common, and no others: from what the launcher
/// says. `MPI_Comm_spawn`'s children have another one.
fn identity() -> Option<String> {
    if let Some(space) = variable("PMIX_NAMESPACE") {
        // One server for all ranks of the job on this machine.
        let names = ["41", "4", "3", "21", "2"].map(|version| format!("PMIX_SERVER_URI{version}"));
        let server = names.iter().find_map(|name| variable(name));
        return Some(format!("pmix {space} {}", server.unwrap_or_default()));
    }
    if let Some(server) = variable("PMI_FD")
        .and_then(|fd| fd.parse().ok())
        .and_then(server_of)
    {
        return Some(format!("pmi {server}"));
    }
    if let Some(port) = variable("PMI_PORT") {
        let job = variable("PMI_JOBID").unwrap_or_default();
        return Some(format!("pmi port {port} {job}"));
    }
    let (job, step) = (variable("SLURM_JOB_ID")?, variable("SLURM_STEP_ID")?);
    Some(format!("slurm {job} {step}"))
}

/// Who is at the other end of a process manager's socket: the process that made a pair of sockets for us,
/// with its start time, or the address of a server.
fn server_of(fd: RawFd) -> Option<String> {
    let (family, address) = peer_address(fd)?;
    if c_int::from(family) != libc::AF_UNIX {
        return Some(format!("address {address:x?}"));
    }
    let peer = peer(fd).ok()?;
    let started = start_of(peer.pid)?;
    Some(format!("process {} {started}", peer.pid))
}

fn peer_address(fd: RawFd) -> Option<(libc::sa_family_t, Vec<u8>)> {
    // SAFETY: all zeros are an address without a family.
    let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: room of that length for an address.
    let answer = unsafe { libc::getpeername(fd, (&raw mut address).cast(), &mut length) };
    if answer != 0 {
        return None;
    }
    let length = (length as usize).min(size_of::<libc::sockaddr_storage>());
    // SAFETY: so many bytes were written, or were zero before.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const address).cast::<u8>(), length) };
    Some((address.ss_family, bytes.to_vec()))
}

/// Who made the other end of a Unix socket.
fn peer(fd: RawFd) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room of that length for what is asked.
    let answer = unsafe {
        let to = (&raw mut peer).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut length)
    };
    match answer {
        // Zero: a process of another process namespace, of which we know nothing.
        0 if peer.pid != 0 => Ok(peer),
        0 => Err(io::ErrorKind::NotFound.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ranks of the job on this machine, as far as the launcher says so.
fn local_ranks() -> Option<usize> {
    let number = |name: &str| variable(name)?.parse().ok();
    number("OMPI_COMM_WORLD_LOCAL_SIZE")
        .or_else(|| number("MPI_LOCALNRANKS"))
        .or_else(|| {
            let tasks = variable("SLURM_STEP_TASKS_PER_NODE")?;
            tasks_of_node(&tasks, number("SLURM_NODEID")?)
        })
}

/// Tasks of a node in Slurm's lists: `4(x2),3` are 4, 4 and 3.
fn tasks_of_node(list: &str, mut node: usize) -> Option<usize> {
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if node < nodes {
            return tasks.parse().ok();
        }
        node -= nodes;
    }
    None
}

/// The table of a job, and what its owner holds if that is this process.
fn find(identity: &str) -> io::Result<(Shared, Option<(OwnedFd, File)>)> {
    // SAFETY: the call only asks.
    let user = unsafe { libc::geteuid() };
    let name = |part: u32| digest((part, user, env!("CARGO_PKG_VERSION"), identity));
    let magic = [name(1), name(2)];
    let file_name = format!("libcopy-bootstrap-{:016x}", magic[0]);
    let (address, length) = address(&format!("libcopy-mpi-{:016x}{:016x}", magic[0], magic[1]));
    let started = Instant::now();
    loop {
        let socket = socket()?;
        // SAFETY: an address of this length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if bound == 0 {
            let file_name = CString::new(file_name)?;
            let (shared, file) = Shared::create(&file_name, size_of::<Table>(), magic)?;
            // From now on others find the table.
            // SAFETY: our own socket.
            if unsafe { libc::listen(socket.as_raw_fd(), 4096) } != 0 {
                return Err(io::Error::last_os_error());
            }
            return Ok((shared, Some((socket, file))));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EADDRINUSE) {
            return Err(error);
        }
        // SAFETY: as above.
        let answer =
            unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
        let refused = match answer {
            0 => match open_of(&socket, user, &file_name, magic) {
                Ok(shared) => return Ok((shared, None)),
                Err(error) => error,
            },
            _ => io::Error::last_os_error(),
        };
        // Its owner has not made the table yet, or has ended; then the name is free.
        if started.elapsed() > FINDING || refused.kind() == io::ErrorKind::PermissionDenied {
            return Err(refused);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The table of the process behind a socket.
fn open_of(socket: &OwnedFd, user: libc::uid_t, file: &str, magic: [u64; 2]) -> io::Result<Shared> {
    let peer = peer(socket.as_raw_fd())?;
    if peer.uid != user {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let file = format!("/memfd:{file}");
    for entry in fs::read_dir(format!("/proc/{}/fd", peer.pid))?.flatten() {
        let path = fs::read_link(entry.path()).unwrap_or_default();
        if !path.to_string_lossy().starts_with(&file) {
            continue;
        }
        if let Some(fd) = entry.file_name().to_str().and_then(|fd| fd.parse().ok()) {
            return Shared::open(peer.pid, fd, size_of::<Table>(), magic);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: numbers; the new descriptor is ours.
    unsafe {
        match libc::socket(libc::AF_UNIX, kind, 0) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// An abstract address, which no file stands for (unix(7)).
fn address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeros are an address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let places = address.sun_path[1..].iter_mut();
    for (place, byte) in places.zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    let before = std::mem::offset_of!(libc::sockaddr_un, sun_path);
    let length = before + 1 + name.len().min(address.sun_path.len() - 1);
    (address, length as libc::socklen_t)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Own {
        let made = Shared::create(c"libcopy-test", size_of::<Table>(), [1, 2]).unwrap();
        join((made.0, None), "settings").unwrap()
    }

    #[test]
    fn a_word_holds_all_three() {
        let state = State {
            phase: phase::GIVEN_UP,
            ready: 511,
            announced: 512,
        };
        let State {
            phase,
            ready,
            announced,
        } = State::of(state.bits());
        assert_eq!((phase, ready, announced), (2, 511, 512));
    }

    #[test]
    fn what_was_decided_stays() {
        let own = table();
        let table = own.table();
        give_up(table, reason::MISSING);
        let bits = table.word.load(Ordering::Relaxed);
        give_up(table, reason::DEAD);
        assert_eq!(State::of(bits).phase, phase::GIVEN_UP);
        assert_eq!(table.word.load(Ordering::Relaxed), bits);
        assert_eq!(table.reason.load(Ordering::Relaxed), reason::MISSING);
        // Whoever comes now does not take part.
        let why = join((own.shared, None), "settings").err().unwrap();
        assert!(why.contains("after"), "{why}");
    }

    #[test]
    fn a_rank_without_the_others_gives_up() {
        let started = Instant::now();
        let why = decide(&table(), (0, 2, None), Offer::default(), || {}).unwrap_err();
        assert!(why.starts_with("1 of 2 ranks"), "{why}");
        assert!(started.elapsed() < ARRIVING);
    }

    #[test]
    fn a_table_is_found_as_long_as_its_owner_holds_it() {
        let identity = format!("test {}", std::process::id());
        let (own, held) = find(&identity).unwrap();
        assert!(held.is_some());
        let (other, nothing) = find(&identity).unwrap();
        assert!(nothing.is_none());
        // SAFETY: both map a table.
        let word = |shared: &Shared| unsafe {
            &(*shared.place(0, size_of::<Table>()).cast::<Table>()).offer[3]
        };
        word(&own).store(7, Ordering::Relaxed);
        assert_eq!(word(&other).load(Ordering::Relaxed), 7);
        drop(held);
        let (new, held) = find(&identity).unwrap();
        assert!(held.is_some());
        assert_eq!(word(&new).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn slots_of_two_jobs_or_settings_are_refused() {
        let own = table();
        let table = own.table();
        for (slot, rank) in table.slots.iter().zip([3, 1, 3]) {
            slot.rank.store(rank, Ordering::Relaxed);
            slot.settings.store(5, Ordering::Relaxed);
        }
        assert_eq!(are_consistent(&table.slots[..2]), Ok(()));
        assert_eq!(are_consistent(&table.slots[..3]), Err(reason::RANKS));
        table.slots[1].settings.store(6, Ordering::Relaxed);
        assert_eq!(are_consistent(&table.slots[..2]), Err(reason::SETTINGS));
    }

    #[test]
    fn lists_of_slurm_name_each_node() {
        let tasks = |node| tasks_of_node("4(x2),3,16(x3)", node);
        assert_eq!([0, 1, 2, 3, 5].map(tasks), [4, 4, 3, 16, 16].map(Some));
        assert_eq!(tasks(6), None);
        assert_eq!(tasks_of_node("many", 0), None);
    }
}
