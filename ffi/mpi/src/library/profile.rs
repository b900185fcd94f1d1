// SPDX-License-Identifier: MIT OR Apache-2.0

//! The profiler (`LIBCOPY_STATS=profile`): how often each function is called, with how many bytes
//! of which types, on communicators of which ranks, and how long it takes ([`libcopy_report`] says
//! what is made of that). It looks at calls that the program makes, whoever does them: with
//! `LIBCOPY_DISABLE=1` as well.
//!
//! A call is looked at where the time of functions is taken ([`crate::library::times`]), so that
//! without it nothing more is asked. What it names is found out when it has returned, so that this
//! is in nobody's time but the program's.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libcopy::collective::Op;
use libcopy::config;
use libcopy::lock::lock;
use libcopy_report::{
    CallClass, Group, PROFILE_VERSION, RankProfile, Sample, Sequence, Split, is_kept, size_class,
};

use crate::library::abi::{self, Abi, Word};
use crate::library::attributes::{COMMUNICATORS, Cache, DATATYPES, Functions, Kept};
use crate::library::buffers::{Buffer, BufferV, BufferW, Reduction};
use crate::library::count::Count;
use crate::library::forked;
use crate::library::neighbourhood::{Members, Neighbours, world_ranks};
use crate::library::pmpi;
use crate::library::requests::{Completion, Spread, Which};

/// Classes of which anything is noted.
const MOST_CLASSES: usize = 4096;
/// Groups: of more, the ranks are not noted.
const MOST_GROUPS: usize = 4096;
/// Requests that are known at a time.
const MOST_REQUESTS: usize = 1 << 20;
/// Calls of one sequence that are kept, and of all sequences.
const MOST_SAMPLES: usize = 1 << 12;
const MOST_SAMPLES_IN_ALL: usize = 1 << 15;

static ON: AtomicBool = AtomicBool::new(false);
/// When the program's run began: when `MPI_Init` returned, or when this library was loaded.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// Whether calls are looked at.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Has calls be looked at from now on.
pub fn start() {
    ON.store(true, Ordering::Relaxed);
    run_begins();
}

/// `MPI_Init` has returned.
pub fn run_begins() {
    BEGUN.store(now(), Ordering::Relaxed);
}

/// Nanoseconds of the clock that all processes of the machine have in common.
fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a writable time; the clock is there on each Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

type Map<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Attributes of communicators and of datatypes, by which it is seen that one is freed.
#[derive(Debug)]
struct WatchedComm;

#[derive(Debug)]
struct WatchedType;

static COMMS: Cache<WatchedComm> = Cache::new();
static TYPES: Cache<WatchedType> = Cache::new();

impl Kept for WatchedComm {
    const FUNCTIONS: Functions = COMMUNICATORS;

    fn cache() -> &'static Cache<Self> {
        &COMMS
    }
}

impl Kept for WatchedType {
    const FUNCTIONS: Functions = DATATYPES;

    fn cache() -> &'static Cache<Self> {
        &TYPES
    }
}

/// What is known of an object as long as its handle is that of the same object.
#[derive(Clone, Copy)]
struct Known<T> {
    generation: u64,
    what: T,
}

/// What is known of a handle in this generation; it is the `last` one that was asked for then.
fn known<T: Copy>(
    last: &mut Option<(Word, Known<T>)>,
    all: &Map<Word, Known<T>>,
    (handle, generation): (Word, u64),
) -> Option<T> {
    if let Some((word, known)) = last {
        if (*word, known.generation) == (handle, generation) {
            return Some(known.what);
        }
    }
    let known = all.get(&handle);
    let known = known.filter(|known| known.generation == generation)?;
    *last = Some((handle, *known));
    Some(known.what)
}

/// A datatype.
#[derive(Clone, Copy)]
struct Type {
    size: u64,
    /// Whether it has gaps.
    derived: bool,
}

/// A group of communicators.
struct Ranks {
    group: Group,
    /// Our place in it.
    me: u32,
    is_inter: bool,
}

#[derive(Clone, Copy)]
struct Request {
    bytes: u64,
    derived: bool,
    group: u32,
    persistent: bool,
    /// How many there are with this handle: a library may give all sends that are complete at once
    /// the same one. None is under way of a persistent one that is not started.
    under_way: u64,
}

/// The class of a call: its function, by the address of its name, a group, a power of two, and
/// whether a type has gaps. A name may be at several addresses: its class has several keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    function: usize,
    group: u32,
    size: u8,
    derived: bool,
}

/// Times in quarters of powers of two: how many there were, and their sum.
type Histogram = [(u32, u64); 4 * 40];

struct Class {
    /// Without what follows from `times`.
    row: CallClass,
    /// Where time is split by it.
    times: Option<Box<Histogram>>,
    /// Where it is split by clocks: an index in [`State::sequences`].
    sequence: Option<usize>,
}

/// Calls of a function on communicators of a group, of which a part is kept.
struct Calls {
    row: Sequence,
    next: u64,
    thinned: u32,
}

/// What is known.
#[derive(Default)]
pub struct State {
    types: Map<Word, Known<Type>>,
    comms: Map<Word, Known<u32>>,
    groups: Vec<Ranks>,
    group_ids: Map<(u64, u64), u32>,
    requests: Map<Word, Request>,
    classes: Vec<Class>,
    class_ids: Map<Key, u32>,
    /// No more than there are classes.
    sequences: Vec<Calls>,
    /// The communicator and the datatype of the last call, which are often those of the next.
    last_comm: Option<(Word, Known<u32>)>,
    last_type: Option<(Word, Known<Type>)>,
    samples: usize,
    left_out: u64,
    left_out_ns: u64,
}

static STATE: Mutex<Option<Box<State>>> = Mutex::new(None);

/// How a function gets its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// It waits for them.
    Blocking,
    /// It leaves a request.
    Nonblocking,
    /// It leaves a request that is started later.
    Persistent,
}

/// Bytes of some elements, how many messages they are, and whether their types have gaps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Amount {
    bytes: u64,
    parts: u64,
    derived: bool,
}

impl Amount {
    /// Of one message.
    fn of(bytes: u64, derived: bool) -> Amount {
        Amount {
            bytes,
            parts: 1,
            derived,
        }
    }

    fn add(&mut self, other: Amount) {
        self.bytes += other.bytes;
        self.parts += other.parts;
        self.derived |= other.derived;
    }
}

/// A call that has returned.
struct Call {
    function: &'static str,
    group: u32,
    amount: Amount,
    split: Split,
    /// It asked for something that was not there.
    polled: bool,
    root: Option<u32>,
}

impl Call {
    /// One of which only this is known.
    fn of(function: &'static str, split: Split) -> Call {
        Call {
            function,
            group: 0,
            amount: Amount::default(),
            split,
            polled: false,
            root: None,
        }
    }
}

/// What does a call of the program. None of its own code is made for each function: there are
/// hundreds.
pub type Program<'a> = &'a mut dyn FnMut() -> c_int;

/// Does a call of the program, and notes it if it succeeds.
fn noted(call: Program<'_>, what: &mut dyn FnMut(&mut State, &'static Abi) -> Call) -> c_int {
    let Ok(abi) = abi::get() else {
        return call();
    };
    let entered = now();
    let code = call();
    let left = now();
    if code == 0 && !forked::is_marked() {
        let mut state = lock(&STATE);
        let state = state.get_or_insert_default();
        let call = what(state, abi);
        state.note(&call, entered, left);
    }
    code
}

/// The name without what says that it counts in `MPI_Count`s.
fn plain_name(name: &'static str) -> &'static str {
    name.strip_suffix("_c").unwrap_or(name)
}

impl State {
    fn note(&mut self, call: &Call, entered: u64, left: u64) {
        let took = left.saturating_sub(entered);
        let amount = call.amount;
        let size = amount.bytes / amount.parts.max(1);
        let key = Key {
            function: call.function.as_ptr() as usize,
            group: call.group,
            size: size.checked_ilog2().map_or(0, |power| power as u8 + 1),
            derived: amount.derived,
        };
        let known = self.class_ids.get(&key).copied();
        let Some(id) = known.or_else(|| self.class(call, size)) else {
            self.left_out += 1;
            self.left_out_ns += took;
            return;
        };
        if known.is_none() {
            self.class_ids.insert(key, id);
        }
        let class = &mut self.classes[id as usize];
        class.row.calls += 1;
        class.row.bytes += amount.bytes;
        class.row.time_ns += took;
        if call.polled {
            class.row.polled_ns += took;
        } else if let Some(times) = &mut class.times {
            let (count, sum) = &mut times[place(took)];
            *count = count.saturating_add(1);
            *sum += took;
        }
        if let Some(sequence) = class.sequence {
            let sample = Sample {
                number: 0,
                entered_ns: entered,
                took_ns: took,
                class: id,
                root: call.root,
            };
            self.keep(sequence, sample);
        }
    }

    /// The class of a call that is not known by its key, if there is room for it.
    #[cold]
    fn class(&mut self, call: &Call, size: u64) -> Option<u32> {
        let least = size_class(size);
        let (group, derived) = (call.group as usize, call.amount.derived);
        let is_it = |Class { row, .. }: &Class| {
            row.function == call.function
                && (row.group, row.least, row.derived) == (group, least, derived)
        };
        if let Some(known) = self.classes.iter().position(is_it) {
            return u32::try_from(known).ok();
        }
        if self.classes.len() >= MOST_CLASSES {
            return None;
        }
        let sequence = match call.split {
            Split::Clocks => self.sequence(call),
            _ => None,
        };
        let id = u32::try_from(self.classes.len()).ok()?;
        self.classes.push(Class {
            row: CallClass {
                function: call.function.to_owned(),
                group,
                least,
                derived,
                split: call.split,
                ..CallClass::default()
            },
            times: (call.split == Split::Estimate).then(|| Box::new([(0, 0); 160])),
            sequence,
        });
        Some(id)
    }

    /// Where it is kept when a collective was called.
    fn sequence(&mut self, call: &Call) -> Option<usize> {
        let ranks = &self.groups[call.group as usize];
        if call.group == 0 || ranks.is_inter || ranks.group.ranks.is_empty() {
            return None;
        }
        let group = call.group as usize;
        let is_it = |Calls { row, .. }: &Calls| row.group == group && row.function == call.function;
        self.sequences.iter().position(is_it).or_else(|| {
            self.sequences.push(Calls {
                row: Sequence {
                    group,
                    function: call.function.to_owned(),
                    ..Sequence::default()
                },
                next: 0,
                thinned: 0,
            });
            Some(self.sequences.len() - 1)
        })
    }

    /// Keeps when a collective was called.
    fn keep(&mut self, sequence: usize, sample: Sample) {
        let calls = &mut self.sequences[sequence];
        let number = calls.next;
        calls.next += 1;
        if !is_kept(number, calls.thinned) {
            return;
        }
        calls.row.samples.push(Sample { number, ..sample });
        self.samples += 1;
        if calls.row.samples.len() > MOST_SAMPLES {
            self.samples -= calls.thin();
        } else if self.samples > MOST_SAMPLES_IN_ALL {
            let longest = self.sequences.iter_mut();
            if let Some(calls) = longest.max_by_key(|calls| calls.row.samples.len()) {
                self.samples -= calls.thin();
            }
        }
    }

    fn type_of(&mut self, abi: &Abi, datatype: Word) -> Type {
        let handle = datatype & abi.handle;
        let generation = TYPES.generation(handle);
        if let Some(known) = known(&mut self.last_type, &self.types, (handle, generation)) {
            return known;
        }
        let mut what = Type {
            size: 0,
            derived: false,
        };
        if !abi.is_type(datatype) {
            return what;
        }
        let (mut size, mut lower, mut extent) = (0i64, 0, 0);
        let (mut true_lower, mut true_extent) = (0, 0);
        // SAFETY: writable outputs; the library has accepted the datatype.
        let answers = unsafe {
            [
                pmpi::type_size(datatype, &mut size),
                pmpi::type_get_extent(datatype, &mut lower, &mut extent),
                pmpi::type_get_true_extent(datatype, &mut true_lower, &mut true_extent),
            ]
        };
        if answers == [0; 3] {
            what.size = u64::try_from(size).unwrap_or(0);
            what.derived = [extent as i64, true_extent as i64] != [size; 2];
            if TYPES.of(datatype, || Some(WatchedType)).is_ok() {
                self.types.insert(handle, Known { generation, what });
            }
        }
        what
    }

    /// Bytes of one message for each of an array of counts.
    ///
    /// # Safety
    ///
    /// The array is null, or as long.
    unsafe fn listed<N: Count>(
        &mut self,
        abi: &Abi,
        (counts, length): (*const N, usize),
        datatype: Word,
    ) -> Amount {
        let mut count = 0;
        if !counts.is_null() {
            // SAFETY: the caller's promise.
            let counts = unsafe { std::slice::from_raw_parts(counts, length) };
            count = counts.iter().map(|count| count.elements() as u64).sum();
        }
        Amount {
            parts: length as u64,
            ..self.one(abi, count, datatype)
        }
    }

    /// Bytes of one message.
    fn one(&mut self, abi: &Abi, count: u64, datatype: Word) -> Amount {
        let what = self.type_of(abi, datatype);
        Amount::of(count.saturating_mul(what.size), what.derived)
    }

    /// The group of a communicator; 0 where nothing is known.
    fn group_of(&mut self, abi: &Abi, comm: Word) -> u32 {
        let handle = comm & abi.handle;
        let generation = COMMS.generation(handle);
        if let Some(known) = known(&mut self.last_comm, &self.comms, (handle, generation)) {
            return known;
        }
        if self.groups.is_empty() {
            self.groups.push(Ranks {
                group: Group::default(),
                me: 0,
                is_inter: false,
            });
        }
        let Some(ranks) = (abi.is_comm(comm) && self.groups.len() < MOST_GROUPS)
            .then(|| ranks_of(abi, comm))
            .flatten()
        else {
            return 0;
        };
        let key = (ranks.group.key, ranks.group.size);
        let groups = &mut self.groups;
        let id = *self.group_ids.entry(key).or_insert_with(|| {
            groups.push(ranks);
            groups.len() as u32 - 1
        });
        if COMMS.of(comm, || Some(WatchedComm)).is_ok() {
            let what = id;
            self.comms.insert(handle, Known { generation, what });
        }
        id
    }

    /// The handle of a request that a function has made.
    ///
    /// # Safety
    ///
    /// The library wrote a handle there.
    unsafe fn made(
        &mut self,
        abi: &Abi,
        request: *const c_void,
        (amount, group): (Amount, u32),
        persistent: bool,
    ) {
        // SAFETY: the caller's promise.
        let handle = unsafe { abi.handle_at(request, 0) } & abi.handle;
        if self.requests.len() < MOST_REQUESTS && !abi.same(handle, abi.request_null) {
            let mut request = Request {
                bytes: amount.bytes,
                derived: amount.derived,
                group,
                persistent,
                under_way: u64::from(!persistent),
            };
            if let Some(known) = self.requests.get(&handle) {
                if !persistent && !known.persistent {
                    request.bytes += known.bytes;
                    request.under_way += known.under_way;
                }
            }
            self.requests.insert(handle, request);
        }
    }

    /// Adds what a completed request has moved.
    fn complete(&mut self, handle: Word, amount: &mut Amount, group: &mut u32) {
        let Some(request) = self.requests.get_mut(&handle) else {
            return;
        };
        if let Some(left) = request.under_way.checked_sub(1) {
            let bytes = request.bytes / request.under_way;
            amount.add(Amount::of(bytes, request.derived));
            *group = request.group;
            request.under_way = left;
            if !request.persistent {
                request.bytes -= bytes;
            }
        }
        if !request.persistent && request.under_way == 0 {
            self.requests.remove(&handle);
        }
    }
}

impl Calls {
    /// Keeps about half of the calls; returns how many have gone.
    fn thin(&mut self) -> usize {
        let kept = &mut self.row.samples;
        let before = kept.len();
        self.thinned += 1;
        kept.retain(|sample| is_kept(sample.number, self.thinned));
        before - kept.len()
    }
}

/// The ranks of a communicator.
fn ranks_of(abi: &Abi, comm: Word) -> Option<Ranks> {
    let Members {
        is_inter,
        rank,
        size,
        remote,
    } = Members::of(comm)?;
    let world = world_ranks(abi, comm, usize::try_from(size).ok()?).unwrap_or_default();
    let ranks: Option<Vec<u32>> = world.iter().map(|rank| u32::try_from(*rank).ok()).collect();
    let ranks = ranks.unwrap_or_default();
    Some(Ranks {
        group: Group {
            key: key_of((is_inter, size, remote), &ranks),
            size: u64::try_from(size + remote).unwrap_or(0),
            ranks,
        },
        me: u32::try_from(rank).unwrap_or(0),
        is_inter,
    })
}

/// What groups are told apart by among all ranks.
fn key_of(sizes: (bool, c_int, c_int), ranks: &[u32]) -> u64 {
    let mut key = DefaultHasher::new();
    (sizes, ranks).hash(&mut key);
    key.finish()
}

/// Where a time is in the histogram.
fn place(took: u64) -> usize {
    let took = took.max(16);
    let power = took.ilog2() as usize;
    let quarter = (took >> (power - 2) & 3) as usize;
    (4 * (power - 4) + quarter).min(159)
}

/// What all calls would have taken if none had taken more than the fastest quarter of them.
fn fast(times: &Histogram) -> u64 {
    let all: u64 = times.iter().map(|(count, _)| u64::from(*count)).sum();
    let (mut seen, mut sum) = (0, 0);
    for (count, time) in times {
        seen += u64::from(*count);
        sum += time;
        if seen * 4 >= all && *count > 0 {
            return sum + (all - seen) * (time / u64::from(*count));
        }
    }
    sum
}

/// A buffer of a collective.
pub trait Amounts {
    /// What is in it, for all peers where it has arrays of these lengths.
    ///
    /// # Safety
    ///
    /// Arrays that are not null are this long.
    unsafe fn amount(&self, state: &mut State, abi: &Abi, length: usize) -> Amount;

    /// Whether it has a part for each peer in arrays.
    fn is_listed(&self) -> bool {
        false
    }
}

impl<A, N: Count> Amounts for Buffer<A, N> {
    unsafe fn amount(&self, state: &mut State, abi: &Abi, _: usize) -> Amount {
        state.one(abi, self.count.elements() as u64, self.datatype)
    }
}

impl<A, N: Count> Amounts for BufferV<A, N> {
    fn is_listed(&self) -> bool {
        true
    }

    unsafe fn amount(&self, state: &mut State, abi: &Abi, length: usize) -> Amount {
        // SAFETY: the caller's promise.
        unsafe { state.listed(abi, (self.counts, length), self.datatype) }
    }
}

impl<A, N: Count, P> Amounts for BufferW<A, N, P> {
    fn is_listed(&self) -> bool {
        true
    }

    unsafe fn amount(&self, state: &mut State, abi: &Abi, length: usize) -> Amount {
        let mut all = Amount::default();
        if self.is_there() {
            for at in 0..length {
                // SAFETY: the caller's promise.
                let (count, datatype) =
                    unsafe { (*self.counts.add(at), abi.handle_at(self.types, at)) };
                // The type of no elements may be anything.
                match count.elements() as u64 {
                    0 => all.parts += 1,
                    count => all.add(state.one(abi, count, datatype)),
                }
            }
        }
        all
    }
}

impl<N: Count> Amounts for Reduction<N> {
    unsafe fn amount(&self, state: &mut State, abi: &Abi, _: usize) -> Amount {
        state.one(abi, self.count.elements() as u64, self.datatype)
    }
}

impl<N: Count> Amounts for Reduction<*const N> {
    fn is_listed(&self) -> bool {
        true
    }

    unsafe fn amount(&self, state: &mut State, abi: &Abi, length: usize) -> Amount {
        // SAFETY: the caller's promise.
        unsafe { state.listed(abi, (self.count, length), self.datatype) }
    }
}

/// A collective: a row of the table, and a call of it.
pub struct Collective {
    /// The function.
    pub name: &'static str,
    /// Its row.
    pub row: &'static str,
    /// What it is in the library.
    pub op: Op,
    /// How it gets its results.
    pub form: Form,
    /// The root, if there is one.
    pub root: Option<c_int>,
    /// The communicator.
    pub comm: Word,
    /// The request, or null.
    pub request: *const c_void,
}

impl Collective {
    /// Does the call. Its buffers are the first and the last of the row, which may be one.
    ///
    /// # Safety
    ///
    /// As the MPI standard says; the library writes a request if the call returns 0.
    #[cold]
    pub unsafe fn noted(self, first: &dyn Amounts, last: &dyn Amounts, call: Program<'_>) -> c_int {
        noted(call, &mut |state, abi| {
            let group = state.group_of(abi, self.comm);
            // SAFETY: the caller's promise.
            let amount = unsafe { self.amount(state, abi, group, first, last) };
            if self.form != Form::Blocking {
                let is_persistent = self.form == Form::Persistent;
                // SAFETY: the caller's promise; the call has returned 0.
                unsafe { state.made(abi, self.request, (amount, group), is_persistent) };
            }
            let split = match self.form {
                Form::Blocking => Split::Clocks,
                _ => Split::Local,
            };
            Call {
                group,
                amount,
                root: self.root.and_then(|root| u32::try_from(root).ok()),
                ..Call::of(plain_name(self.name), split)
            }
        })
    }

    /// What this rank sends or receives: of functions with a root, the other ranks' own part, and
    /// all parts at the root; of the others, what is received.
    ///
    /// # Safety
    ///
    /// As the MPI standard says.
    unsafe fn amount(
        &self,
        state: &mut State,
        abi: &Abi,
        group: u32,
        first: &dyn Amounts,
        last: &dyn Amounts,
    ) -> Amount {
        let Some(ranks) = state.groups.get(group as usize).filter(|_| group != 0) else {
            return Amount::default();
        };
        let own = if ranks.is_inter {
            abi.root
        } else {
            ranks.me as c_int
        };
        let mut peers = ranks.group.size;
        if ranks.is_inter {
            // The ranks of the other group.
            peers = peers.saturating_sub(ranks.group.ranks.len() as u64);
        }
        if self.op == Op::ReduceScatter {
            peers = ranks.group.ranks.len() as u64;
        }
        let is_root = self.root == Some(own);
        let mut length = peers as usize;
        if self.row.starts_with("neighbor") {
            let neighbours = Neighbours::of(abi, self.comm);
            let sources = neighbours.map_or(Vec::new(), |neighbours| neighbours.sources);
            length = sources.len();
            // The others are MPI_PROC_NULL.
            peers = sources.iter().filter(|rank| **rank >= 0).count() as u64;
        }
        // SAFETY: arrays have an element for each peer, or are not looked at: those of a root at
        // other ranks.
        unsafe {
            match (self.op, self.root) {
                (Op::Gather, Some(_)) if !is_root => first.amount(state, abi, 0),
                (Op::Scatter, Some(_)) if is_root => {
                    per_peer(first, first.amount(state, abi, length), peers)
                }
                (Op::Scatter, Some(_)) => last.amount(state, abi, 0),
                (Op::Gather | Op::Allgather | Op::Alltoall | Op::ReduceScatter, _) => {
                    per_peer(last, last.amount(state, abi, length), peers)
                }
                _ => last.amount(state, abi, length),
            }
        }
    }
}

/// What is for each peer, where the buffer says one part of it.
fn per_peer(buffer: &dyn Amounts, amount: Amount, peers: u64) -> Amount {
    if buffer.is_listed() {
        return amount;
    }
    Amount {
        bytes: amount.bytes.saturating_mul(peers),
        parts: peers,
        ..amount
    }
}

/// `MPI_Barrier`.
#[cold]
pub fn barrier(comm: Word, call: Program<'_>) -> c_int {
    noted(call, &mut |state, abi| Call {
        group: state.group_of(abi, comm),
        ..Call::of("MPI_Barrier", Split::Clocks)
    })
}

/// A function that sends or receives `buffers`, each a number of elements and their type.
///
/// # Safety
///
/// As the MPI standard says; the library writes a request, if it is not null, where the call
/// returns 0.
#[cold]
pub unsafe fn message(
    name: &'static str,
    form: Form,
    comm: Option<Word>,
    buffers: &[(usize, Word)],
    request: *const c_void,
    call: Program<'_>,
) -> c_int {
    noted(call, &mut |state, abi| {
        let group = comm.map_or(0, |comm| state.group_of(abi, comm));
        let mut amount = Amount::default();
        for (count, datatype) in buffers {
            amount.add(state.one(abi, *count as u64, *datatype));
        }
        if form != Form::Blocking {
            // SAFETY: the caller's promise.
            unsafe { state.made(abi, request, (amount, group), form == Form::Persistent) };
        }
        let split = match form {
            Form::Blocking => Split::Estimate,
            _ => Split::Local,
        };
        Call {
            group,
            amount,
            ..Call::of(plain_name(name), split)
        }
    })
}

/// `MPI_Pack` and `MPI_Unpack`.
#[cold]
pub fn packing(
    name: &'static str,
    (count, datatype, comm): (usize, Word, Word),
    call: Program<'_>,
) -> c_int {
    noted(call, &mut |state, abi| Call {
        group: state.group_of(abi, comm),
        amount: state.one(abi, count as u64, datatype),
        ..Call::of(plain_name(name), Split::Local)
    })
}

/// A function that completes requests, all of those or some.
///
/// # Safety
///
/// The pointers are those that the MPI standard asks for.
#[cold]
pub unsafe fn completion(name: &'static str, completion: &Completion, call: Program<'_>) -> c_int {
    let count = usize::try_from(completion.count).unwrap_or(0);
    let mut few = [0; 8];
    let mut many = Vec::new();
    let handles: &mut [Word] = if count <= few.len() {
        &mut few[..count]
    } else {
        many.resize(count, 0);
        &mut many
    };
    if let Ok(abi) = abi::get() {
        for (at, handle) in handles.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *handle = unsafe { abi.handle_at(completion.requests, at) } & abi.handle;
        }
    }
    let handles = &*handles;
    noted(call, &mut |state, _| {
        // SAFETY: the caller's promise; the call has returned 0.
        let found = unsafe { completion.found() };
        let (mut amount, mut group) = (Amount::default(), 0);
        if found {
            // SAFETY: as above.
            let index = |at: usize| unsafe { *completion.index.add(at) };
            let mut done = |at: c_int| {
                if let Some(handle) = usize::try_from(at).ok().and_then(|at| handles.get(at)) {
                    state.complete(*handle, &mut amount, &mut group);
                }
            };
            match completion.which {
                Which::One => done(0),
                Which::All => (0..completion.count).for_each(done),
                Which::Any => done(index(0)),
                // SAFETY: as above.
                Which::Some => (0..unsafe { *completion.done })
                    .for_each(|at| done(index(usize::try_from(at).unwrap_or(0)))),
            }
        }
        Call {
            group,
            amount,
            polled: !found,
            ..Call::of(name, Split::Estimate)
        }
    })
}

/// A function that starts `count` persistent requests.
///
/// # Safety
///
/// As the MPI standard says.
#[cold]
pub unsafe fn starting(
    name: &'static str,
    count: c_int,
    requests: *const c_void,
    call: Program<'_>,
) -> c_int {
    noted(call, &mut |state, abi| {
        let (mut amount, mut group) = (Amount::default(), 0);
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the caller's promise.
            let handle = unsafe { abi.handle_at(requests, at) } & abi.handle;
            if let Some(request) = state.requests.get_mut(&handle) {
                request.under_way = 1;
                amount.add(Amount::of(request.bytes, request.derived));
                group = request.group;
            }
        }
        Call {
            group,
            amount,
            ..Call::of(name, Split::Local)
        }
    })
}

/// `MPI_Request_free`.
///
/// # Safety
///
/// As the MPI standard says.
#[cold]
pub unsafe fn freeing(request: *const c_void, call: Program<'_>) -> c_int {
    let handle = abi::get().ok().map(|abi| {
        // SAFETY: the caller's promise.
        unsafe { abi.handle_at(request, 0) & abi.handle }
    });
    noted(call, &mut |state, _| {
        handle.map(|handle| state.requests.remove(&handle));
        Call::of("MPI_Request_free", Split::Local)
    })
}

/// Any other function about requests or messages that have not come; with the flag that says
/// whether it has found anything, if it has one.
///
/// # Safety
///
/// The flag is null, or is written where the call returns 0.
#[cold]
pub unsafe fn other(name: &'static str, flag: *const c_int, call: Program<'_>) -> c_int {
    noted(call, &mut |_, _| {
        // SAFETY: the caller's promise.
        let polled = !flag.is_null() && unsafe { *flag } == 0;
        Call {
            polled,
            ..Call::of(name, Split::Estimate)
        }
    })
}

/// What this rank says, before `MPI_Finalize`.
pub fn report(rank: i64, host: String, program: String, library: &str) -> RankProfile {
    let ended = now();
    let state = lock(&STATE).take().unwrap_or_default();
    let class = |class: Class| CallClass {
        fast_ns: class.times.map_or(0, |times| fast(&times)),
        ..class.row
    };
    let mut groups: Vec<Group> = state.groups.into_iter().map(|ranks| ranks.group).collect();
    if groups.is_empty() {
        groups.push(Group::default());
    }
    RankProfile {
        profile: PROFILE_VERSION,
        rank,
        host,
        program,
        library: library.to_owned(),
        plain: config::DISABLE.is_on(false),
        run_ns: ended.saturating_sub(BEGUN.load(Ordering::Relaxed)),
        groups,
        classes: state.classes.into_iter().map(class).collect(),
        sequences: state.sequences.into_iter().map(|calls| calls.row).collect(),
        left_out: state.left_out,
        left_out_ns: state.left_out_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(function: &'static str, bytes: u64, split: Split) -> Call {
        Call {
            group: 1,
            amount: Amount::of(bytes, false),
            ..Call::of(function, split)
        }
    }

    fn state() -> State {
        let ranks = |ranks: &[u32]| Ranks {
            group: Group {
                key: 5,
                size: ranks.len() as u64,
                ranks: ranks.to_vec(),
            },
            me: 0,
            is_inter: false,
        };
        State {
            groups: vec![ranks(&[]), ranks(&[0, 1])],
            ..State::default()
        }
    }

    #[test]
    fn groups_with_zeros_are_others() {
        let lists = [&[][..], &[0], &[0, 0], &[0, 1], &[1], &[1, 0]];
        let keys = lists.map(|ranks| key_of((false, 0, 0), ranks));
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[at + 1..].contains(key), "{keys:?}");
        }
    }

    #[test]
    fn times_are_in_order_in_the_histogram() {
        assert_eq!([0, 16, 19, 20, 31, 32].map(place), [0, 0, 0, 1, 3, 4]);
        assert!((0..1 << 20).is_sorted_by_key(place));
        assert_eq!(place(u64::MAX), 159);
    }

    #[test]
    fn the_fastest_quarter_says_what_calls_cost_that_wait_for_nobody() {
        let mut state = state();
        for took in [100, 1000, 100, 5000] {
            state.note(&call("MPI_Recv", 8, Split::Estimate), 0, took);
        }
        let times = state.classes[0].times.as_ref().expect("an estimate");
        assert_eq!((state.classes[0].row.time_ns, fast(times)), (6200, 400));
        // A question without an answer is waiting, whatever it takes.
        let asked = Call {
            polled: true,
            ..call("MPI_Recv", 8, Split::Estimate)
        };
        state.note(&asked, 0, 10);
        let class = &state.classes[0];
        let row = &class.row;
        assert_eq!((row.calls, row.time_ns, row.polled_ns), (5, 6210, 10));
        assert_eq!(class.times.as_ref().map(|times| fast(times)), Some(400));
    }

    #[test]
    fn classes_are_powers_of_two_and_no_more_than_there_is_room_for() {
        let mut state = state();
        // A name at another address is the same.
        let name: &'static str = Box::leak("MPI_Isend".to_owned().into_boxed_str());
        state.note(&call(name, 0, Split::Local), 0, 1);
        for bytes in [0, 1, 2, 3, 4] {
            state.note(&call("MPI_Isend", bytes, Split::Local), 0, 1);
        }
        let rows = || state.classes.iter().map(|class| &class.row);
        let least: Vec<(u64, u64)> = rows().map(|row| (row.least, row.calls)).collect();
        assert_eq!(least, [(0, 2), (1, 1), (2, 2), (4, 1)]);
        for group in 0..2 * MOST_CLASSES as u32 {
            let other = Call {
                group,
                ..call("MPI_Isend", 8, Split::Local)
            };
            state.note(&other, 0, 2);
        }
        assert_eq!(state.classes.len(), MOST_CLASSES);
        let in_rows: u64 = state.classes.iter().map(|class| class.row.calls).sum();
        assert_eq!(in_rows + state.left_out, 6 + 2 * MOST_CLASSES as u64);
    }

    #[test]
    fn long_runs_keep_a_part_of_their_collectives() {
        let mut state = state();
        for at in 0..10 * MOST_SAMPLES as u64 {
            state.note(&call("MPI_Allreduce", 8, Split::Clocks), at, at + 1);
        }
        let calls = state.sequences.first().expect("a sequence");
        assert!((MOST_SAMPLES / 2..=MOST_SAMPLES).contains(&calls.row.samples.len()));
        assert_eq!(state.samples, calls.row.samples.len());
        let as_said = |sample: &Sample| sample.entered_ns == sample.number;
        assert!(calls.row.samples.iter().all(as_said));
        assert_eq!(state.classes[0].row.calls, 10 * MOST_SAMPLES as u64);
    }

    #[test]
    fn persistent_requests_count_once_for_each_start() {
        let mut state = state();
        let request = Request {
            bytes: 100,
            derived: true,
            group: 1,
            persistent: true,
            under_way: 1,
        };
        state.requests.insert(9, request);
        let (mut amount, mut group) = (Amount::default(), 0);
        state.complete(9, &mut amount, &mut group);
        state.complete(9, &mut amount, &mut group);
        state.complete(10, &mut amount, &mut group);
        assert_eq!((amount.bytes, amount.parts, group), (100, 1, 1));
        assert!(amount.derived);
        // Three with one handle.
        let request = Request {
            bytes: 100,
            derived: false,
            group: 1,
            persistent: false,
            under_way: 3,
        };
        state.requests.insert(11, request);
        let mut amount = Amount::default();
        for _ in 0..4 {
            state.complete(11, &mut amount, &mut group);
        }
        assert_eq!((amount.bytes, amount.parts), (100, 3));
        assert!(!state.requests.contains_key(&11));
    }
}
