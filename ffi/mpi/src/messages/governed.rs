// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages under the governor ([`libcopy::policy::governor::Paced`]). A class is a function that sends, a receiver, a
//! power of two of bytes, and a kind of elements: dense, or in pieces of a power of two of bytes that follow a rule or do
//! not. The sender decides alone: a receiver looks at each message that comes.
//!
//! Only what the thresholds intercept has a class. Between trials a message costs one comparison more, and nothing of
//! it is taken note of. In a trial the class knows which of its messages are under way.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::Instant;

use libcopy::p2p::View;
use libcopy::policy::governor::{Decision, NextMessages, Paced};

use super::arguments::{Address, Elements, Kind};
use super::protocol;
use super::sending::Chosen;
use super::world::World;
use crate::abi::Word;
use crate::classes::{Total, is_wanted, power};
use crate::pack_governor::clock;
use crate::{active, comm};
use libcopy::lock::lock;

/// Functions that send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Function {
    Send,
    Ssend,
    Isend,
    Issend,
    Sendrecv,
    SendrecvReplace,
    Start,
}

impl Function {
    fn name(self) -> &'static str {
        match self {
            Function::Send => "MPI_Send",
            Function::Ssend => "MPI_Ssend",
            Function::Isend => "MPI_Isend",
            Function::Issend => "MPI_Issend",
            Function::Sendrecv => "MPI_Sendrecv",
            Function::SendrecvReplace => "MPI_Sendrecv_replace",
            Function::Start => "MPI_Start",
        }
    }
}

/// Kinds of elements; pieces by the power of two of their bytes, on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Shape {
    Dense,
    Regular(u32),
    Irregular(u32),
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Dense => write!(f, "dense"),
            Shape::Regular(power) => write!(f, "regular pieces from {} bytes", 1u64 << power),
            Shape::Irregular(power) => write!(f, "irregular pieces from {} bytes", 1u64 << power),
        }
    }
}

impl Shape {
    fn of(chosen: &Chosen, count: usize) -> Shape {
        if let View::Dense(_) = chosen.view {
            return Shape::Dense;
        }
        let pieces = chosen.known.pieces.saturating_mul(count as u64).max(1);
        let power = power(chosen.bytes / pieces);
        if chosen.known.is_regular {
            Shape::Regular(power)
        } else {
            Shape::Irregular(power)
        }
    }
}

/// What the messages of a class have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    function: Function,
    /// `None`: of all receivers that have no class of their own.
    member: Option<usize>,
    power: u32,
    shape: Shape,
}

impl Key {
    /// The same for all receivers, on all ranks: in programs whose ranks do the same they try the other way together, as
    /// one message that is faster among many that are not shows nothing.
    fn seed(&self) -> u64 {
        let shape = match self.shape {
            Shape::Dense => 0,
            Shape::Regular(power) => 1 + 2 * u64::from(power),
            Shape::Irregular(power) => 2 + 2 * u64::from(power),
        };
        let word = (self.function as u64) << 32 | u64::from(self.power) << 16 | shape;
        (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
    }
}

/// A class.
#[derive(Debug)]
pub struct Class {
    key: Key,
    /// Messages that go the leader's way before the governor is asked again. Where threads change it at the same time, it
    /// is wrong by a few.
    left: AtomicU64,
    /// Whether these are forwarded.
    forwards: AtomicBool,
    /// Messages of a trial that are under way.
    watched: AtomicUsize,
    paced: Mutex<Paced>,
}

impl Class {
    /// One of which nothing is known.
    fn new(key: Key) -> Class {
        Class {
            key,
            left: AtomicU64::new(0),
            forwards: AtomicBool::new(false),
            watched: AtomicUsize::new(0),
            paced: Mutex::new(Paced::new(Decision::Intercept, key.seed())),
        }
    }

    /// Counts a message that was decided on in advance, if one was.
    #[inline]
    fn take(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// Messages that are under way. Those that the receiver has not got yet count, whether the program has its buffers back
    /// or not: what a sender gains by running ahead of a slow receiver, it loses with the first message that has to wait
    /// for that, whichever way it goes.
    fn under_way(&self, world: &World) -> usize {
        let watched = self.watched.load(Ordering::Acquire);
        watched.max(world.segment.under_way(world.me, self.key.member))
    }

    /// The way of the next message. If it belongs to a trial, the second result lives until the program may have its
    /// buffer back.
    pub fn next(&'static self, world: &World) -> (Decision, Option<Watched>) {
        if self.take() {
            (self.decided(), None)
        } else {
            self.ask(world)
        }
    }

    fn decided(&self) -> Decision {
        if self.forwards.load(Ordering::Relaxed) {
            Decision::Forward
        } else {
            Decision::Intercept
        }
    }

    #[cold]
    fn ask(&'static self, world: &World) -> (Decision, Option<Watched>) {
        let mut paced = lock(&self.paced);
        let now = BEGINNING.elapsed().as_nanos() as u64;
        let under_way = self.under_way(world) as u64;
        let classes = NUMBER.load(Ordering::Relaxed);
        match paced.next(AHEAD, (now, clock()), under_way, classes) {
            NextMessages::Pass(leader, messages) => {
                let forwards = leader == Decision::Forward;
                self.forwards.store(forwards, Ordering::Relaxed);
                self.left.store(messages - 1, Ordering::Relaxed);
                if forwards {
                    SOME_FORWARD.store(true, Ordering::Relaxed);
                }
                (leader, None)
            }
            NextMessages::Watch(decision) => {
                self.watched.fetch_add(1, Ordering::AcqRel);
                (decision, Some(Watched(self)))
            }
        }
    }
}

/// A message of a trial, for as long as it is under way.
#[derive(Debug)]
pub struct Watched(&'static Class);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.watched.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Messages that are decided on in advance.
const AHEAD: u64 = 64;

/// Classes of one receiver that a process has. Where there are more, as with many ranks on a machine, messages to all other
/// receivers that differ in nothing else have a class together.
const MOST_CLASSES: usize = 1024;
/// Classes of several receivers that a process has; what does not belong to one of them is intercepted.
const MOST_SHARED: usize = 1024;

/// The classes of this process.
#[derive(Default)]
struct Classes {
    own: HashMap<Key, &'static Class>,
    shared: HashMap<Key, &'static Class>,
}

impl Classes {
    /// The class of messages that have this in common, or the one that their receiver shares with others; `None` if there
    /// are too many.
    fn class(&mut self, key: Key) -> Option<&'static Class> {
        let of_all = Key {
            member: None,
            ..key
        };
        let places = [
            (&mut self.own, key, MOST_CLASSES),
            (&mut self.shared, of_all, MOST_SHARED),
        ];
        for (classes, key, most) in places {
            if let Some(class) = classes.get(&key) {
                return Some(*class);
            }
            if classes.len() < most {
                let class: &'static Class = Box::leak(Box::new(Class::new(key)));
                classes.insert(key, class);
                return Some(class);
            }
        }
        None
    }

    fn number(&self) -> usize {
        self.own.len() + self.shared.len()
    }

    fn all(&self) -> impl Iterator<Item = &'static Class> {
        self.own.values().chain(self.shared.values()).copied()
    }
}

static CLASSES: LazyLock<Mutex<Classes>> = LazyLock::new(Mutex::default);
static NUMBER: AtomicUsize = AtomicUsize::new(0);
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Whether any class is forwarded, or was.
static SOME_FORWARD: AtomicBool = AtomicBool::new(false);

/// Whether the governor decides about messages: not where the environment says what is done with them.
static IS_GOVERNED: LazyLock<bool> =
    LazyLock::new(|| is_wanted() && active::least().is_none() && !protocol::are_asked());

/// Messages of which a thread knows the class.
#[derive(Clone, Copy)]
struct Place {
    kind: Kind,
    function: Function,
    dest: c_int,
    comm: Word,
    /// Of the communicator's handle.
    generation: u64,
    class: Option<&'static Class>,
}

/// Messages that a thread remembers.
const PLACES: usize = 64;

thread_local! {
    static KNOWN: [Cell<Place>; PLACES] = const {
        [const {
            Cell::new(Place {
                kind: Kind::NONE,
                function: Function::Send,
                dest: 0,
                comm: 0,
                generation: 0,
                class: None,
            })
        }; PLACES]
    };
}

fn place_of(kind: Kind, to: Address) -> usize {
    (kind.datatype >> 4 ^ kind.datatype >> 9 ^ kind.count ^ (to.dest as usize).wrapping_mul(5))
        % PLACES
}

/// The class of a message, or that it has none, if this thread knows it.
#[inline]
fn find(kind: Kind, function: Function, to: Address) -> Option<Option<&'static Class>> {
    let place = KNOWN.with(|known| known[place_of(kind, to)].get());
    let is_same = place.kind == kind
        && (place.function, place.dest, place.comm) == (function, to.dest, to.comm)
        && place.generation == comm::generation(to.comm);
    is_same.then_some(place.class)
}

/// Whether a message belongs to a class that is forwarded, before anything else is found out about it. Then its length
/// is none that names a slot: such a message belongs to no class.
#[inline]
pub fn is_forwarded(what: Elements, function: Function, to: Address) -> bool {
    if !SOME_FORWARD.load(Ordering::Relaxed) {
        return false;
    }
    let Some(count) = what.count else {
        return false;
    };
    find(Kind::new(what.datatype, count), function, to)
        .flatten()
        .is_some_and(|class| class.forwards.load(Ordering::Relaxed) && class.take())
}

/// The class of a message that this thread does not know yet; `None` if there are too many.
#[cold]
fn make(chosen: &Chosen, kind: Kind, function: Function, to: Address) -> Option<&'static Class> {
    let key = Key {
        function,
        member: Some(chosen.member),
        power: power(chosen.bytes),
        shape: Shape::of(chosen, kind.count),
    };
    let mut classes = lock(&CLASSES);
    let class = classes.class(key);
    NUMBER.store(classes.number(), Ordering::Relaxed);
    drop(classes);
    let place = Place {
        kind,
        function,
        dest: to.dest,
        comm: to.comm,
        generation: comm::generation(to.comm),
        class,
    };
    KNOWN.with(|known| known[place_of(kind, to)].set(place));
    class
}

/// The class of a message that the thresholds intercept, if it has one.
#[inline]
pub fn class_of(
    chosen: &Chosen,
    what: Elements,
    function: Function,
    to: Address,
) -> Option<&'static Class> {
    let count = what.count.filter(|_| *IS_GOVERNED)?;
    let kind = Kind::new(what.datatype, count);
    find(kind, function, to).unwrap_or_else(|| make(chosen, kind, function, to))
}

/// The way of a message that the thresholds intercept, as [`Class::next`] says.
pub fn decide(
    world: &World,
    chosen: &Chosen,
    what: Elements,
    function: Function,
    to: Address,
) -> (Decision, Option<Watched>) {
    match class_of(chosen, what, function, to) {
        None => (Decision::Intercept, None),
        Some(class) => class.next(world),
    }
}

/// What is left of a message that the thresholds intercept, for functions that block.
pub fn sift(
    world: &World,
    chosen: Option<Chosen>,
    what: Elements,
    function: Function,
    to: Address,
) -> (Option<Chosen>, Option<Watched>) {
    let Some(chosen) = chosen else {
        return (None, None);
    };
    match decide(world, &chosen, what, function, to) {
        (Decision::Intercept, watched) => (Some(chosen), watched),
        (Decision::Forward, watched) => (None, watched),
    }
}

/// What is known of the same class for all receivers.
fn totals() -> BTreeMap<(Function, u32, Shape), Total> {
    let mut totals: BTreeMap<_, Total> = BTreeMap::new();
    for class in lock(&CLASSES).all() {
        let Key {
            function,
            power,
            shape,
            ..
        } = class.key;
        let paced = lock(&class.paced);
        let governor = paced.governor();
        let mut calls = governor.calls();
        // Those that were decided on in advance, but never sent.
        let left = class.left.load(Ordering::Relaxed);
        let way = &mut calls[class.decided() as usize];
        *way = way.saturating_sub(left);
        let total = totals.entry((function, power, shape)).or_default();
        total.add(calls, governor, 1);
    }
    totals
}

/// The classes as objects in JSON.
pub fn json() -> Vec<String> {
    let object = |((function, power, shape), total): ((Function, u32, Shape), Total)| {
        format!(
            "{{\"function\":\"{}\",\"ranks\":2,\"bytes\":{},\"elements\":\"{shape}\",{}}}",
            function.name(),
            1u64 << power,
            total.json()
        )
    };
    totals().into_iter().map(object).collect()
}

/// A line for each class that was tried.
pub fn report_classes() -> Vec<String> {
    let totals = totals();
    let tried = totals.iter().filter(|(_, total)| total.trials > 0);
    tried
        .map(|((function, power, shape), total)| {
            total.line(
                function.name(),
                *power,
                &shape.to_string(),
                ("to", "receivers"),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(member: usize, power: u32) -> Key {
        Key {
            function: Function::Send,
            member: Some(member),
            power,
            shape: Shape::Dense,
        }
    }

    #[test]
    fn receivers_without_a_class_of_their_own_share_one() {
        let (ranks, powers) = (192, 12..24);
        let mut classes = Classes::default();
        let keys = || {
            powers
                .clone()
                .flat_map(|power| (0..ranks).map(move |rank| key(rank, power)))
        };
        let made: Vec<_> = keys().map(|key| classes.class(key)).collect();
        assert!(made.len() > 2 * MOST_CLASSES);
        let of_receivers: Vec<_> = keys().zip(made.iter().flatten()).collect();
        assert_eq!(of_receivers.len(), made.len(), "some have no class");
        let mut shared = 0;
        for (key, class) in &of_receivers {
            assert_eq!(
                (class.key.function, class.key.power),
                (key.function, key.power)
            );
            assert!(class.key.member.is_none() || class.key.member == key.member);
            shared += usize::from(class.key.member.is_none());
            // Tried together with the classes of single receivers.
            assert_eq!(class.key.seed(), key.seed());
        }
        assert_eq!(shared, made.len() - MOST_CLASSES);
        // One for each power of two of bytes at most.
        assert!(classes.number() <= MOST_CLASSES + powers.len());
        assert_eq!(classes.all().count(), classes.number());
        // The same message has the same class again.
        let again: Vec<_> = keys().map(|key| classes.class(key)).collect();
        let same = made.iter().zip(&again);
        assert!(same.clone().all(|(a, b)| match (a, b) {
            (Some(a), Some(b)) => std::ptr::eq(*a, *b),
            _ => false,
        }));
    }

    #[test]
    fn classes_of_several_receivers_are_not_without_number() {
        let mut classes = Classes::default();
        for power in 0..(MOST_CLASSES + MOST_SHARED) as u32 {
            assert!(classes.class(key(0, power)).is_some());
        }
        assert!(classes.class(key(0, u32::MAX)).is_none());
        assert_eq!(classes.number(), MOST_CLASSES + MOST_SHARED);
    }
}
