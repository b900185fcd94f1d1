// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages under the governor ([`libcopy::policy::governor::Paced`]). A class is a function that
//! sends, a receiver, a power of two of bytes, a kind of elements (dense, or in pieces of a power
//! of two of bytes that follow a rule or do not), and what these are laid out over ([`Extent`]).
//! The sender decides alone: a receiver looks at each message that comes.
//!
//! Only what the thresholds intercept has a class. Between trials a message costs one comparison
//! more, and nothing of it is taken note of. In a trial the class knows which of its messages are
//! under way.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::Instant;

use libcopy::p2p::View;
use libcopy::policy::governor::{Decision, Moment, Next, Paced};

use crate::comm::communicator;
use crate::comm::processes::World;
use crate::decide::classes::{Decided, Row, Shape, Totals, clock, power};
use crate::decide::environment;
use crate::library::abi::Word;
use crate::library::per_thread::per_thread;
use crate::library::stats::FUNCTIONS;
use crate::messages::arguments::{Address, Elements, Kind};
use crate::messages::sending::Chosen;
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

/// Their names.
const NAMES: [&str; 7] = [
    "MPI_Send",
    "MPI_Ssend",
    "MPI_Isend",
    "MPI_Issend",
    "MPI_Sendrecv",
    "MPI_Sendrecv_replace",
    "MPI_Start",
];

fn shape_of(chosen: &Chosen, count: usize) -> Shape {
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

/// What tells layouts of one [`Shape`] apart: doubles a cache line apart take several times as long
/// as doubles next but one to each other, and which way is faster differs. The faces of a cube on
/// two sides are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Extent {
    bytes: u64,
    pieces: u64,
    /// Bytes from the first to behind the last one.
    span: i64,
}

impl Extent {
    /// Dense elements have none.
    fn of(chosen: &Chosen, count: usize) -> Extent {
        let datatype = match &chosen.view {
            View::Dense(_) => None,
            _ => chosen.known.datatype.as_ref(),
        };
        datatype.map_or_else(Extent::default, |datatype| {
            let more = i64::try_from(count.saturating_sub(1)).unwrap_or(i64::MAX);
            Extent {
                bytes: chosen.bytes,
                pieces: chosen.known.pieces.saturating_mul(count as u64),
                span: datatype
                    .true_extent()
                    .saturating_add(datatype.extent().saturating_mul(more)),
            }
        })
    }

    /// For [`Key::seed`].
    fn word(self) -> u64 {
        let mixed = (self.bytes ^ self.pieces << 32).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (self.span as u64).wrapping_mul(0x94d0_49bb_1331_11eb)
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
    extent: Extent,
}

impl Key {
    /// The same for all receivers, on all ranks: in programs whose ranks do the same they try the
    /// other way together, as one message that is faster among many that are not shows nothing.
    fn seed(&self) -> u64 {
        let shape = match self.shape {
            Shape::Dense => 0,
            Shape::Regular(power) => 1 + 2 * u64::from(power),
            Shape::Irregular(power) => 2 + 2 * u64::from(power),
        };
        let word = (self.function as u64) << 32 | u64::from(self.power) << 16 | shape;
        (word ^ self.extent.word())
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            >> 16
    }
}

/// A class.
#[derive(Debug)]
pub struct Class {
    key: Key,
    /// Messages before the governor is asked again.
    decided: Decided,
    /// Messages of a trial that are under way.
    watched: AtomicUsize,
    /// Whether there was a trial, or is one.
    is_tried: AtomicBool,
    paced: Mutex<Paced>,
}

impl Class {
    /// One of which nothing is known.
    fn new(key: Key) -> Class {
        Class {
            key,
            decided: Decided::default(),
            watched: AtomicUsize::new(0),
            is_tried: AtomicBool::new(false),
            paced: Mutex::new(Paced::new(Decision::Intercept, key.seed())),
        }
    }

    /// Messages that are under way. Those that the receiver has not got yet count, whether the
    /// program has its buffers back or not: what a sender gains by running ahead of a slow
    /// receiver, it loses with the first message that has to wait for that, whichever way it goes.
    fn under_way(&self, world: &World) -> usize {
        let watched = self.watched.load(Ordering::Acquire);
        watched.max(world.segment.under_way(world.me, self.key.member))
    }

    /// The way of the next message. If it belongs to a trial, the second result lives until the
    /// program may have its buffer back.
    pub fn next(&'static self, world: &World) -> (Decision, Option<Watched>) {
        match self.decided.take() {
            Some(decision) => (decision, None),
            None => self.ask(world),
        }
    }

    #[cold]
    fn ask(&'static self, world: &World) -> (Decision, Option<Watched>) {
        let mut paced = lock(&self.paced);
        let now = BEGINNING.elapsed().as_nanos() as u64;
        let moment = Moment {
            now: &|| now,
            under_way: &|| self.under_way(world) as u64,
        };
        let classes = TRIED.load(Ordering::Relaxed);
        match paced.next_alone(AHEAD, &moment, (clock(), classes)) {
            Next::Pass(leader, messages) => {
                self.decided.set(leader, messages - 1);
                if leader == Decision::Forward {
                    SOME_FORWARD.store(true, Ordering::Relaxed);
                }
                (leader, None)
            }
            Next::Sample(decision, _) => {
                if !self.is_tried.swap(true, Ordering::Relaxed) {
                    TRIED.fetch_add(1, Ordering::Relaxed);
                }
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

/// Classes of one receiver that a process has. Where there are more, as with many ranks on a
/// machine, messages to all other receivers that differ in nothing else have a class together.
const MOST_CLASSES: usize = 1024;
/// Classes of several receivers that a process has; what does not belong to one of them is
/// intercepted.
const MOST_SHARED: usize = 1024;

/// Layouts of one shape to one receiver that have classes of their own. What comes later shares one
/// more: a program whose layouts change all the time would never find out anything otherwise.
const MOST_LAYOUTS: usize = 8;

/// Classes by what they have in common but the extent.
#[derive(Default)]
struct Group {
    lists: HashMap<Key, Vec<&'static Class>>,
    number: usize,
}

impl Group {
    /// The class of messages that have this in common, or one that several layouts share; `None` if
    /// there are too many.
    fn class(&mut self, key: Key, most: usize) -> Option<&'static Class> {
        let of_all = Key {
            extent: Extent::default(),
            ..key
        };
        let list = self.lists.get(&of_all).map_or(&[][..], Vec::as_slice);
        if let Some(class) = list.iter().find(|class| class.key.extent == key.extent) {
            return Some(*class);
        }
        if list.len() > MOST_LAYOUTS || self.number >= most {
            return list.last().copied();
        }
        let is_own = list.len() < MOST_LAYOUTS;
        let class: &'static Class =
            Box::leak(Box::new(Class::new(if is_own { key } else { of_all })));
        self.lists.entry(of_all).or_default().push(class);
        self.number += 1;
        Some(class)
    }
}

/// The classes of this process.
#[derive(Default)]
struct Classes {
    own: Group,
    shared: Group,
}

impl Classes {
    /// The class of messages that have this in common, or the one that their receiver shares with
    /// others; `None` if there are too many.
    fn class(&mut self, key: Key) -> Option<&'static Class> {
        let of_all = Key {
            member: None,
            ..key
        };
        self.own
            .class(key, MOST_CLASSES)
            .or_else(|| self.shared.class(of_all, MOST_SHARED))
    }

    fn all(&self) -> impl Iterator<Item = &'static Class> {
        let lists = self.own.lists.values().chain(self.shared.lists.values());
        lists.flatten().copied()
    }
}

static CLASSES: LazyLock<Mutex<Classes>> = LazyLock::new(Mutex::default);
/// Classes that share what trials may cost: those that have had any.
static TRIED: AtomicUsize = AtomicUsize::new(0);
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Whether any class is forwarded, or was.
static SOME_FORWARD: AtomicBool = AtomicBool::new(false);

/// Whether the governor decides about messages: not where the environment says what is done with
/// them.
static IS_GOVERNED: LazyLock<bool> = LazyLock::new(|| {
    environment::is_governed() && environment::least().is_none() && !environment::are_asked()
});

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

per_thread!(
    static KNOWN: [Cell<Place>; PLACES] = [const {
        Cell::new(Place {
            kind: Kind::NONE,
            function: Function::Send,
            dest: 0,
            comm: 0,
            generation: 0,
            class: None,
        })
    }; PLACES]
);

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
        && place.generation == communicator::generation(to.comm);
    is_same.then_some(place.class)
}

/// Whether a message belongs to a class that is forwarded, before anything else is found out about
/// it. Then its length is none that names a slot: such a message belongs to no class.
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
        .is_some_and(|class| class.decided.take_forwarded())
}

/// The class of a message that this thread does not know yet; `None` if there are too many.
#[cold]
fn make(chosen: &Chosen, kind: Kind, function: Function, to: Address) -> Option<&'static Class> {
    let key = Key {
        function,
        member: Some(chosen.member),
        power: power(chosen.bytes),
        shape: shape_of(chosen, kind.count),
        extent: Extent::of(chosen, kind.count),
    };
    let class = lock(&CLASSES).class(key);
    let place = Place {
        kind,
        function,
        dest: to.dest,
        comm: to.comm,
        generation: communicator::generation(to.comm),
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

/// Adds what is known of the same classes for all receivers.
pub fn add(totals: &mut Totals) {
    for class in lock(&CLASSES).all() {
        let key = class.key;
        let paced = lock(&class.paced);
        let governor = paced.governor();
        let mut calls = governor.calls();
        // Those that were decided on in advance, but never sent.
        let (decision, left) = class.decided.left();
        let way = &mut calls[decision as usize];
        *way = way.saturating_sub(left);
        let row = Row {
            // Behind the collectives.
            function: (
                FUNCTIONS + key.function as usize,
                NAMES[key.function as usize],
            ),
            ranks: 2,
            power: key.power,
            shape: Some(key.shape),
        };
        totals.entry(row).or_default().add(calls, governor, 1);
    }
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
            extent: Extent::default(),
        }
    }

    /// Elements of 8 bytes, so far apart.
    fn spread(stride: i64) -> Key {
        let pieces = 1 << 14;
        let span = (i64::from(pieces) - 1) * stride + 8;
        Key {
            shape: Shape::Regular(3),
            extent: Extent {
                bytes: 1 << 17,
                pieces: pieces as u64,
                span,
            },
            ..key(1, 17)
        }
    }

    fn number(classes: &Classes) -> usize {
        classes.own.number + classes.shared.number
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
        assert!(number(&classes) <= MOST_CLASSES + powers.len());
        assert_eq!(classes.all().count(), number(&classes));
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
        assert_eq!(number(&classes), MOST_CLASSES + MOST_SHARED);
    }

    #[test]
    fn layouts_of_one_shape_have_classes_of_their_own_as_long_as_they_are_few() {
        let mut classes = Classes::default();
        let layouts = || (1..100).map(|number| spread(16 * number));
        let made: Vec<_> = layouts().filter_map(|key| classes.class(key)).collect();
        assert_eq!(made.len(), 99);
        assert_eq!(number(&classes), MOST_LAYOUTS + 1);
        for (place, class) in made.iter().enumerate() {
            let shared = place >= MOST_LAYOUTS;
            assert_eq!(std::ptr::eq(*class, made[98]), shared, "{place}");
        }
        // The same again; those of another rank are others.
        for (key, class) in layouts().zip(&made) {
            assert!(std::ptr::eq(classes.class(key).unwrap(), *class));
            let other = Key {
                member: Some(2),
                ..key
            };
            let other = classes.class(other).unwrap();
            assert!(!std::ptr::eq(other, *class));
            assert_eq!(other.key.seed(), class.key.seed());
        }
        assert_eq!(number(&classes), 2 * (MOST_LAYOUTS + 1));
    }

    /// A program that sends two layouts of one shape in turns, of which one is faster intercepted
    /// and the other one forwarded.
    #[test]
    fn a_layout_does_not_go_the_way_that_is_better_for_another() {
        // Doubles of which several lie in a cache line, and doubles of which one does. What they
        // take either way.
        let layouts = [(spread(16), [80u64, 100]), (spread(1024), [100, 77])];
        let mut classes = Classes::default();
        let (mut now, mut spent, mut best, mut random) = (0, 0, 0, 7u64);
        for phase in 0..20 {
            let (key, costs) = layouts[phase % 2];
            let class = classes.class(key).unwrap();
            let mut paced = lock(&class.paced);
            let mut passed = (Decision::Intercept, 0);
            for _ in 0..1000 {
                if passed.1 == 0 {
                    let moment = Moment {
                        now: &|| now,
                        under_way: &|| 0,
                    };
                    passed = match paced.next_alone(AHEAD, &moment, (0, 2)) {
                        Next::Pass(leader, messages) => (leader, messages),
                        Next::Sample(decision, _) => (decision, 1),
                    };
                }
                passed.1 -= 1;
                let cost = 1000 * costs[passed.0 as usize];
                // Xorshift; 20 % of noise either way.
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                now += cost * (80 + random % 41) / 100;
                spent += cost;
                best += 1000 * costs.iter().min().unwrap();
            }
        }
        assert!(spent * 100 <= best * 102, "{spent} {best}");
    }
}
