// SPDX-License-Identifier: MIT OR Apache-2.0

//! The classes of calls that the governor ([`crate::collectives::governor`]) decides about, and
//! what their calls have cost.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Instant;

use libcopy::collective::nonblocking::agreement::Progress;
use libcopy::lock::lock;
use libcopy::policy::governor::{Decision, Governor, Timed, Together};

use crate::library::stats::{FUNCTIONS, Function};

/// A class of collectives.
#[derive(Debug)]
pub struct Class<C, A> {
    pub function: Function,
    /// The power of two of its bytes.
    pub power: u32,
    pub class: C,
    /// How its ranks agree.
    pub agreement: A,
}

/// Of blocking ones, with the nanoseconds that the ranks' last exchange took here.
pub type BlockingClass = Class<Timed, u64>;

/// Of nonblocking ones, with what the ranks have agreed on.
pub type NonblockingClass = Class<Together, Progress>;

impl BlockingClass {
    /// One of which nothing is known.
    pub fn new(function: Function, power: u32) -> Self {
        Class {
            function,
            power,
            class: Timed::new(Decision::Intercept),
            agreement: 0,
        }
    }
}

impl NonblockingClass {
    /// One of which nothing is known. All ranks make it alike.
    pub fn new(function: Function, power: u32) -> Self {
        let seed = (function as u64) << 32 | u64::from(power);
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        Class {
            function,
            power,
            class: Together::new(Decision::Intercept, seed),
            agreement: Progress::default(),
        }
    }
}

/// The place of a class in the list of a communicator, at the end of which it may come.
pub fn place<C, A>(all: &[Class<C, A>], function: Function, power: u32) -> usize {
    let is_it = |class: &Class<C, A>| class.function == function && class.power == power;
    all.iter().position(is_it).unwrap_or(all.len())
}

/// The starts of a persistent request, which are a class of their own.
#[derive(Debug)]
pub struct PersistentClass {
    pub class: Mutex<NonblockingClass>,
    /// Ranks of its communicator.
    ranks: usize,
    /// Persistent requests whose trials share the program's time, as all ranks have agreed when it
    /// was made.
    pub requests: usize,
}

/// Those that are not gone.
static PERSISTENT: Mutex<Vec<Weak<PersistentClass>>> = Mutex::new(Vec::new());

impl PersistentClass {
    /// The class of a request that moves `bytes` bytes.
    pub fn new(function: Function, ranks: usize, bytes: u64, requests: usize) -> Arc<Self> {
        let made = Arc::new(PersistentClass {
            class: Mutex::new(NonblockingClass::new(function, power(bytes))),
            ranks,
            requests,
        });
        let mut all = lock(&PERSISTENT);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&made));
        made
    }

    /// How many there are.
    pub fn number() -> usize {
        let all = lock(&PERSISTENT);
        all.iter().filter(|class| class.strong_count() > 0).count()
    }

    fn add(&self, totals: &mut Totals) {
        let class = lock(&self.class);
        let row = Row::of(class.function, self.ranks, class.power);
        let governor = class.class.governor();
        let total = totals.entry(row).or_default();
        total.add(governor.calls(), governor, self.ranks);
    }
}

impl Drop for PersistentClass {
    fn drop(&mut self) {
        if crate::library::stats::are_wanted() {
            self.add(&mut lock(&GONE));
        }
    }
}

/// Adds the classes of persistent requests that are not gone.
pub fn add_persistent(totals: &mut Totals) {
    let all: Vec<_> = lock(&PERSISTENT).iter().filter_map(Weak::upgrade).collect();
    for class in all {
        class.add(totals);
    }
}

/// Calls of a class that are decided on in advance, and which way they go. Where threads change it
/// at the same time, it is wrong by a few.
#[derive(Debug, Default)]
pub struct Decided(AtomicU64);

impl Decided {
    /// Beside the number of calls: they are forwarded.
    const FORWARD: u64 = 1 << 63;
    /// Calls that never end.
    pub const ALL: u64 = Self::FORWARD - 1;

    /// The way of the next call if that is decided on; counts it.
    #[inline]
    pub fn take(&self) -> Option<Decision> {
        let word = self.0.load(Ordering::Relaxed);
        (word & Self::ALL > 0).then(|| {
            self.0.store(word - 1, Ordering::Relaxed);
            Self::way(word)
        })
    }

    /// The same if it is forwarded.
    #[inline]
    pub fn take_forwarded(&self) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        let is_forwarded = word > Self::FORWARD;
        if is_forwarded {
            self.0.store(word - 1, Ordering::Relaxed);
        }
        is_forwarded
    }

    /// The next `calls` go this way.
    pub fn set(&self, decision: Decision, calls: u64) {
        let way = match decision {
            Decision::Intercept => 0,
            Decision::Forward => Self::FORWARD,
        };
        self.0.store(way | calls.min(Self::ALL), Ordering::Relaxed);
    }

    /// The way of these calls, and those that have not come yet.
    pub fn left(&self) -> (Decision, u64) {
        let word = self.0.load(Ordering::Relaxed);
        (Self::way(word), word & Self::ALL)
    }

    #[inline]
    fn way(word: u64) -> Decision {
        Decision::BOTH[(word >> 63) as usize]
    }
}

/// Nanoseconds that measuring a call takes.
pub fn clock() -> u64 {
    static CLOCK: OnceLock<u64> = OnceLock::new();
    *CLOCK.get_or_init(|| {
        const READINGS: u32 = 16;
        let started = Instant::now();
        for _ in 0..READINGS {
            std::hint::black_box(Instant::now());
        }
        // Two readings, and about as much to keep the time.
        4 * started.elapsed().as_nanos() as u64 / u64::from(READINGS)
    })
}

/// Calls of a communicator's classes whose way was decided on in advance: so each costs a
/// load and a comparison. All ranks count alike, as they call collectives of a communicator in one
/// order, and one thread at a time does (MPI 4.1, section 6.14); so nothing here has to be changed
/// in one step.
#[derive(Debug)]
pub struct Ahead([AtomicU64; PLACES]);

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead([const { AtomicU64::new(0) }; PLACES])
    }
}

/// Classes that have a place among [`Ahead`] each. At each power, all functions have places of
/// their own: there are no more functions, and 5 and 64 have no common divisor.
const PLACES: usize = 64;
const _: () = assert!(FUNCTIONS <= PLACES);
/// Calls that are decided on in advance.
pub const AHEAD: u64 = 63;

impl Ahead {
    /// The place of a class, and its key, which no empty place has, with the way that calls go.
    #[inline]
    fn place(&self, function: Function, power: u32, decision: Decision) -> (&AtomicU64, u64) {
        let key = (1 + function as u64) << 8 | u64::from(power);
        (
            &self.0[(function as usize * 5 + power as usize) % PLACES],
            key << 1 | decision as u64,
        )
    }

    /// Counts a call of the class if it was decided on that it goes this way.
    #[inline]
    pub fn take(&self, function: Function, power: u32, decision: Decision) -> bool {
        let (place, key) = self.place(function, power, decision);
        let word = place.load(Ordering::Relaxed);
        let is_decided = word >> 32 == key && word as u32 > 0;
        if is_decided {
            place.store(word - 1, Ordering::Relaxed);
        }
        is_decided
    }

    /// Decides on this way for as many calls of the class as `pass` says, unless its place has
    /// calls left.
    pub fn decide(
        &self,
        (function, power): (Function, u32),
        decision: Decision,
        pass: impl FnOnce() -> u64,
    ) {
        let (place, key) = self.place(function, power, decision);
        if place.load(Ordering::Relaxed) as u32 == 0 {
            place.store(key << 32 | pass(), Ordering::Relaxed);
        }
    }

    /// Calls that were decided on and have not come yet: intercepted, and forwarded.
    fn left(&self, function: Function, power: u32) -> [u64; 2] {
        Decision::BOTH.map(|decision| {
            let (place, key) = self.place(function, power, decision);
            let word = place.load(Ordering::Relaxed);
            if word >> 32 == key {
                word & 0xffff_ffff
            } else {
                0
            }
        })
    }
}

/// The classes of a communicator.
#[derive(Debug, Default)]
pub struct Classes {
    pub ahead: Ahead,
    pub all: Mutex<Vec<BlockingClass>>,
    pub nonblocking: Mutex<Vec<NonblockingClass>>,
    /// Whether there is one whose calls are forwarded.
    pub forwards: AtomicBool,
    /// Whether the ranks want a governor, once they have agreed.
    pub wanted: OnceLock<bool>,
}

impl Classes {
    pub fn lock(&self) -> MutexGuard<'_, Vec<BlockingClass>> {
        lock(&self.all)
    }

    /// Counts a call if its class is forwarded and no trial is due: the same on all ranks that call
    /// it with as many bytes.
    #[inline]
    pub fn rests_forwarding(&self, function: Function, bytes: u64) -> bool {
        if !self.forwards.load(Ordering::Relaxed) {
            return false;
        }
        let power = power(bytes);
        if self.ahead.take(function, power, Decision::Forward) {
            return true;
        }
        let mut all = self.lock();
        let place = place(&all, function, power);
        let Some(Class { class, .. }) = all.get_mut(place) else {
            return false;
        };
        let rests = class.ahead(Decision::Forward, 1) == 1;
        if rests {
            self.ahead.decide((function, power), Decision::Forward, || {
                class.ahead(Decision::Forward, AHEAD)
            });
        }
        rests
    }
}

/// The power of two that is not more.
pub fn power(bytes: u64) -> u32 {
    bytes.max(1).ilog2()
}

/// What is known of the same class on all communicators of one size.
#[derive(Clone, Debug, Default)]
pub struct Total {
    pub calls: [u64; 2],
    pub trials: u64,
    /// Communicators (of `MPI_Pack` and `MPI_Unpack`: numbers of elements of a type), and those on
    /// which calls were forwarded when last decided.
    pub communicators: u64,
    pub forwarding: u64,
    /// Intercepted calls of which it is not known what they would have taken forwarded.
    unmeasured: u64,
    saved: Saved,
}

/// What intercepted calls have taken in this rank, and what they have saved against forwarding, in
/// nanoseconds; negative if they have lost.
#[derive(Clone, Copy, Debug, Default)]
struct Saved {
    took: f64,
    time: f64,
    /// The square of the standard error.
    variance: f64,
}

impl Saved {
    /// By `calls` intercepted ones, on one of `ranks` whose times the governor has the sums of;
    /// `None` where too little was measured.
    fn by(calls: u64, governor: &Governor, ranks: usize) -> Option<Saved> {
        /// Calls of each way.
        const LEAST: f64 = 3.0;
        let [intercepted, forwarded] = governor.costs()?;
        let measured = intercepted.calls.min(forwarded.calls);
        if measured < LEAST {
            return None;
        }
        let times = calls as f64 / ranks as f64;
        // The error itself is not well known from few calls: about as much wider as Student's
        // distribution is than the normal one.
        let wider = 1.0 + 3.0 / measured;
        let error = intercepted.error.hypot(forwarded.error) * wider * times;
        Some(Saved {
            took: intercepted.mean * times,
            time: (forwarded.mean - intercepted.mean) * times,
            variance: error * error,
        })
    }

    /// Adds another one, `sign` times.
    fn add(&mut self, other: &Saved, sign: f64) {
        self.took += sign * other.took;
        self.time += sign * other.time;
        self.variance = (self.variance + sign * other.variance).max(0.0);
    }
}

impl Total {
    /// Adds a class, whose `calls` went either way on this rank, one of `ranks` whose times its
    /// governor has the sums of.
    pub fn add(&mut self, calls: [u64; 2], governor: &Governor, ranks: usize) {
        for (sum, calls) in self.calls.iter_mut().zip(calls) {
            *sum += calls;
        }
        self.trials += governor.trials();
        self.communicators += 1;
        self.forwarding += u64::from(governor.leader() == Decision::Forward);
        match Saved::by(calls[0], governor, ranks) {
            Some(saved) => self.saved.add(&saved, 1.0),
            None => self.unmeasured += calls[0],
        }
    }
}

/// Kinds of elements; pieces by the power of two of their bytes, on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shape {
    Dense,
    Regular(u32),
    Irregular(u32),
}

impl Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Dense => write!(f, "dense"),
            Shape::Regular(power) => write!(f, "regular pieces from {} bytes", 1u64 << power),
            Shape::Irregular(power) => write!(f, "irregular pieces from {} bytes", 1u64 << power),
        }
    }
}

/// What classes have in common that the statistics add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Which function, in the order of the report, and its name.
    pub function: (usize, &'static str),
    pub ranks: usize,
    /// The power of two of the bytes.
    pub power: u32,
    /// Of messages.
    pub shape: Option<Shape>,
}

impl Row {
    fn of(function: Function, ranks: usize, power: u32) -> Row {
        Row {
            function: (function as usize, function.name()),
            ranks,
            power,
            shape: None,
        }
    }
}

/// What is known of all classes.
pub type Totals = BTreeMap<Row, Total>;

/// The classes as the report has them.
pub fn listed(totals: &Totals) -> Vec<libcopy_report::Class> {
    let class = |(row, total): (&Row, &Total)| libcopy_report::Class {
        function: row.function.1.to_owned(),
        ranks: row.ranks as u64,
        bytes: 1 << row.power,
        elements: row
            .shape
            .map_or_else(String::new, |shape| shape.to_string()),
        intercepted: total.calls[0],
        forwarded: total.calls[1],
        trials: total.trials,
        communicators: total.communicators,
        forwarding: total.forwarding,
        unmeasured: total.unmeasured,
        took_ns: total.saved.took as i64,
        saved_ns: total.saved.time as i64,
        error_ns: total.saved.variance.sqrt() as i64,
        callers: 0,
    };
    totals.iter().map(class).collect()
}

/// A line for each class that was tried.
pub fn report(totals: &Totals) -> Vec<String> {
    let tried = totals.iter().filter(|(_, total)| total.trials > 0);
    let line = |(row, total): (&Row, &Total)| {
        let (who, to, of) = match (row.shape, row.ranks) {
            (Some(shape), _) => (shape.to_string(), "in", "classes"),
            (None, 1) => ("alone".to_owned(), "on", "types"),
            (None, ranks) => (format!("{ranks} ranks"), "on", "communicators"),
        };
        format!(
            "libcopy_mpi: governor: {} from {} bytes, {who}: {} intercepted, {} forwarded, \
             forwarding {to} {} of {} {of}",
            row.function.1,
            1u64 << row.power,
            total.calls[0],
            total.calls[1],
            total.forwarding,
            total.communicators
        )
    };
    tried.map(line).collect()
}

/// Of communicators that are gone.
pub static GONE: Mutex<Totals> = Mutex::new(BTreeMap::new());

/// Adds the classes of a communicator.
pub fn add(totals: &mut Totals, size: usize, classes: &Classes) {
    let mut add = |function: Function, power: u32, governor: &Governor| {
        let total = totals.entry(Row::of(function, size, power)).or_default();
        let mut calls = governor.calls();
        let left = classes.ahead.left(function, power);
        calls
            .iter_mut()
            .zip(left)
            .for_each(|(calls, left)| *calls -= left);
        total.add(calls, governor, size);
    };
    for class in classes.lock().iter() {
        add(class.function, class.power, class.class.governor());
    }
    for class in lock(&classes.nonblocking).iter() {
        add(class.function, class.power, class.class.governor());
    }
}

/// A class about which this process decides alone has gone on: adds what happened since `before`.
pub fn add_alone(function: Function, bytes: u64, before: &Governor, now: &Governor) {
    let mut gone = lock(&GONE);
    let total = gone.entry(Row::of(function, 1, power(bytes))).or_default();
    let (old, new) = (before.calls(), now.calls());
    total.communicators += u64::from(old == [0; 2]);
    for ((sum, old), new) in total.calls.iter_mut().zip(old).zip(new) {
        *sum += new - old;
    }
    total.trials += now.trials() - before.trials();
    let forwards = |governor: &Governor| u64::from(governor.leader() == Decision::Forward);
    total.forwarding = (total.forwarding + forwards(now)).saturating_sub(forwards(before));
    let saved = |governor: &Governor| Saved::by(governor.calls()[0], governor, 1);
    match (saved(before), saved(now)) {
        (None, None) => total.unmeasured += new[0] - old[0],
        (before, now) => {
            total.saved.add(&now.unwrap_or_default(), 1.0);
            total.saved.add(&before.unwrap_or_default(), -1.0);
            if before.is_none() {
                total.unmeasured -= old[0];
            }
        }
    }
}

/// A communicator goes: keeps what the statistics tell.
pub fn forget(size: usize, classes: &Classes) {
    if crate::library::stats::are_wanted() {
        let mut gone = lock(&GONE);
        add(&mut gone, size, classes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decided_in_advance_is_taken_once() {
        let ahead = Ahead::default();
        let take_one = |function, power| {
            Decision::BOTH
                .map(|way| ahead.take(function, power, way))
                .contains(&true)
        };
        let take = |function, power| (0..100).filter(|_| take_one(function, power)).count();
        assert_eq!(take(Function::Ibcast, 20), 0);
        ahead.decide((Function::Ibcast, 20), Decision::Forward, || 3);
        // One that has the same place, but not the same key.
        let power = 20 + PLACES as u32;
        let class = (Function::Ibcast, power);
        ahead.decide(class, Decision::Forward, || panic!("the place is taken"));
        assert_eq!(ahead.left(Function::Ibcast, 20), [0, 3]);
        assert_eq!(ahead.left(Function::Ibcast, power), [0, 0]);
        assert!(!ahead.take(Function::Ibcast, 20, Decision::Intercept));
        assert_eq!(take(Function::Ibcast, power), 0);
        assert_eq!(take(Function::Ibcast, 20), 3);
        ahead.decide(class, Decision::Intercept, || 2);
        assert_eq!(ahead.left(Function::Ibcast, power), [2, 0]);
        assert!(!ahead.take(Function::Ibcast, power, Decision::Forward));
        assert_eq!(take(Function::Ibcast, 20), 0);
        assert_eq!(take(Function::Ibcast, power), 2);
    }

    #[test]
    fn calls_go_the_way_that_was_decided_in_advance_until_there_are_no_more() {
        let decided = Decided::default();
        assert_eq!((decided.take(), decided.take_forwarded()), (None, false));
        decided.set(Decision::Forward, 2);
        assert!(decided.take_forwarded());
        assert_eq!(decided.left(), (Decision::Forward, 1));
        assert_eq!(decided.take(), Some(Decision::Forward));
        assert_eq!((decided.take(), decided.take_forwarded()), (None, false));
        decided.set(Decision::Intercept, u64::MAX);
        assert!(!decided.take_forwarded());
        assert_eq!(decided.left(), (Decision::Intercept, Decided::ALL));
        assert_eq!(decided.take(), Some(Decision::Intercept));
        assert_eq!(decided.left(), (Decision::Intercept, Decided::ALL - 1));
    }
}
