// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives under the governor ([`libcopy::policy::governor`]): which classes a communicator
//! has, what their calls take, and how the ranks agree.
//!
//! A class is a function and a power of two of bytes, on one communicator, as these are the same on
//! all ranks. (Datatypes are not: a sender's may be dense and a receiver's a vector.) Only what the
//! thresholds intercept has a class.
//!
//! Of blocking calls each rank measures those of a trial, from the decision to the end of the call.
//! Before the next call of the class all ranks tell each other their times, by an allgather of some
//! hundred bytes through the group's shared memory; then all have the same sums, and decide alike.
//! Whether the ranks want a governor at all is agreed on in the same way, before a communicator's
//! first trial.
//!
//! Of nonblocking calls each rank measures the time from one to the next
//! ([`libcopy::policy::governor::Together`]), and the ranks agree without waiting for each other
//! ([`libcopy::collective::nonblocking::agreement`]).

use std::cell::{Cell, LazyCell};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use libcopy::collective::nonblocking::agreement::{CLASSES, WORDS};
use libcopy::lock::lock;
use libcopy::policy::governor::{Account, Decision, Moment, Next, Slot, Times, sums};

use crate::comm::communicator;
use crate::comm::communicator::Comm;
use crate::comm::group::Group;
use crate::comm::nonblocking_group::NonblockingGroup;
use crate::decide::classes::{
    AHEAD, BlockingClass, GONE, NonblockingClass, PersistentClass, Totals, add, add_persistent,
    place, power,
};
use crate::decide::environment::{is_governed, least};
use crate::library::per_thread::per_thread;
use crate::library::progress;
use crate::library::stats::Function;

static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A call that is being measured.
struct Pending {
    known: Arc<Comm>,
    what: What,
    started: Instant,
}

/// What a call is measured for.
enum What {
    Trial(Trial),
    /// A team that its communicator may have; it stands for so many calls.
    Team(u32),
}

/// A call of a trial.
struct Trial {
    class: usize,
    slot: Slot,
    /// Bytes of the call, if its time is to be scaled to those of the class.
    bytes: Option<u64>,
}

per_thread!(
    static PENDING: Cell<Option<Pending>> = Cell::new(None)
);

/// Measures until it goes, if the call that it is in is part of a trial, or forwarded for want of a
/// team.
pub struct Span;

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        if let Some(pending) = PENDING.take() {
            pending.end();
        }
    }
}

/// The call has failed, so its time says nothing.
pub fn failed() {
    PENDING.take();
}

impl Pending {
    fn end(self) {
        let time = self.started.elapsed();
        let trial = match self.what {
            What::Trial(trial) => trial,
            What::Team(calls) => return self.known.has_waited(time * calls),
        };
        let time = time.as_nanos() as u64;
        let mut all = self.known.classes.lock();
        let Some(class) = all.get_mut(trial.class) else {
            return;
        };
        let scaled = match trial.bytes {
            Some(bytes) => (u128::from(time) << class.power) / u128::from(bytes.max(1)),
            None => u128::from(time),
        };
        // Small enough for the sum of all ranks.
        let scaled = u64::try_from(scaled).unwrap_or(u64::MAX).min(1 << 48);
        class.class.put(trial.slot, scaled);
    }
}

/// The call is forwarded because its communicator has no team yet: measures what that takes, or
/// leaves that to others.
#[inline(always)]
pub fn measure_waiting(known: &Comm) {
    #[inline(never)]
    fn measure(known: &Comm, calls: u32) {
        PENDING.set(Some(Pending {
            known: known.held(),
            what: What::Team(calls),
            started: Instant::now(),
        }));
    }
    if let Some(calls) = known.timed_calls() {
        measure(known, calls);
    }
}

/// Whether blocking calls of a communicator are the governor's to decide about.
pub fn rules(known: &Comm) -> bool {
    least().is_none() && known.classes.wanted.get() != Some(&false)
}

/// The way of a call that the thresholds intercept. `exact`: the call has exactly `bytes`, and not
/// just about as many.
pub fn decide(
    known: &Arc<Comm>,
    group: &Group,
    function: Function,
    (bytes, exact): (u64, bool),
) -> Decision {
    if !rules(known) {
        return Decision::Intercept;
    }
    let (classes, power) = (&known.classes, power(bytes));
    if classes.ahead.take(function, power, Decision::Intercept) {
        return Decision::Intercept;
    }
    let mut all = classes.lock();
    let index = place(&all, function, power);
    if index == all.len() {
        all.push(BlockingClass::new(function, power));
    }
    // All ranks come to the end of the first rest together.
    if all[index].class.governor().has_rested() && classes.wanted.get().is_none() {
        drop(all);
        let wanted = classes.wanted.get_or_init(|| agree(group));
        if !wanted {
            return Decision::Intercept;
        }
        all = classes.lock();
    }
    let mut next = all[index].class.next(1, &Moment::NONE);
    if next.is_none() {
        let (times, exchange) = (*all[index].class.times(), all[index].agreement);
        // Not while it is locked: others' messages go on meanwhile.
        drop(all);
        let started = Instant::now();
        let sums = exchange_times(group, &times, exchange);
        all = classes.lock();
        let class = &mut all[index];
        class.agreement = started.elapsed().as_nanos() as u64;
        let Some((sums, exchange)) = sums else {
            // Then the group is broken, and says so.
            return Decision::Intercept;
        };
        class.class.decide(&sums, exchange, 1);
        next = class.class.next(1, &Moment::NONE);
        let forwards = |class: &BlockingClass| class.class.governor().leader() == Decision::Forward;
        let forwards = all.iter().any(forwards);
        classes.forwards.store(forwards, Ordering::Relaxed);
    }
    if let Some(Next::Pass(Decision::Intercept, _)) = next {
        let class = &mut all[index].class;
        let pass = || class.ahead(Decision::Intercept, AHEAD);
        classes
            .ahead
            .decide((function, power), Decision::Intercept, pass);
    }
    drop(all);
    if let Some(Next::Sample(_, Some(slot))) = next {
        PENDING.set(Some(Pending {
            known: known.clone(),
            what: What::Trial(Trial {
                class: index,
                slot,
                bytes: exact.then_some(bytes),
            }),
            started: Instant::now(),
        }));
    }
    next.map_or(Decision::Intercept, Next::decision)
}

/// The way of a nonblocking call that the thresholds intercept. No rank waits for another: the
/// first that comes to the end of a trial finds out whether all have said what theirs took, for all
/// that come later.
pub fn decide_nonblocking(
    known: &Comm,
    members: &NonblockingGroup,
    function: Function,
    bytes: u64,
) -> Decision {
    if least().is_some() || !members.is_governed {
        return Decision::Intercept;
    }
    let power = power(bytes);
    let mut all = lock(&known.classes.nonblocking);
    let index = place(&all, function, power);
    if index == CLASSES {
        return Decision::Intercept;
    }
    if index == all.len() {
        all.push(NonblockingClass::new(function, power));
    }
    let classes = all.len();
    let class = &mut all[index];
    let decision = next_together(members, class, (index, classes));
    if decision == Decision::Forward {
        let pass = || class.class.ahead(decision, AHEAD);
        let ahead = &known.classes.ahead;
        ahead.decide((function, power), decision, pass);
    }
    decision
}

/// The way of the next start of a persistent request, whose group `members` is.
pub fn decide_persistent(members: &NonblockingGroup, class: &PersistentClass) -> Decision {
    if least().is_some() || !members.is_governed {
        return Decision::Intercept;
    }
    next_together(members, &mut lock(&class.class), (0, class.requests))
}

/// The way of the next call of a class that has a topic of the group; `classes` share what trials
/// may cost.
fn next_together(
    members: &NonblockingGroup,
    class: &mut NonblockingClass,
    (topic, classes): (usize, usize),
) -> Decision {
    loop {
        let now = LazyCell::new(|| BEGINNING.elapsed().as_nanos() as u64);
        let moment = Moment {
            now: &|| *now,
            under_way: &|| members.under_way(),
        };
        if let Some(next) = class.class.next(1, &moment) {
            return next.decision();
        }
        let Account { times, under_way } = class.class.account();
        let mut own = [under_way; WORDS];
        for (word, time) in own[1..].iter_mut().zip(times.iter().flatten()) {
            *word = *time;
        }
        let topic = members.group.table.topic(topic, members.group.rank);
        let said = topic.ask(&mut class.agreement, &own, || {
            progress::everything();
            std::thread::yield_now();
        });
        let said: Option<Vec<Account>> = said.map(|said| {
            let account = |words: &[u64; WORDS]| Account {
                under_way: words[0],
                times: read_times(&words[1..]),
            };
            said.iter().map(account).collect()
        });
        class.class.agree(said.as_deref(), classes);
    }
}

/// Whether all ranks want a governor.
fn agree(group: &Group) -> bool {
    let mut all = vec![0u8; group.size];
    let answer = group.allgather(Some(&[u8::from(is_governed())]), &mut all);
    answer.is_ok() && all.iter().all(|wants| *wants == 1)
}

/// The sums of all ranks' times, and what the exchange costs all ranks: as much for each as for the
/// one that waits least.
fn exchange_times(group: &Group, times: &Times, exchange: u64) -> Option<(Times, u64)> {
    let words = std::iter::once(&exchange).chain(times.iter().flatten());
    let own: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
    let mut all = vec![0u8; own.len() * group.size];
    group.allgather(Some(&own), &mut all).ok()?;
    let words: Vec<u64> = all
        .chunks_exact(8)
        .map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap_or_default()))
        .collect();
    let ranks = words.chunks_exact(own.len() / 8);
    let cheapest = ranks.clone().map(|words| words[0]).min().unwrap_or(0);
    let sums = sums(ranks.map(|words| read_times(&words[1..])));
    Some((sums, cheapest.saturating_mul(group.size as u64)))
}

/// Times as ranks send them.
fn read_times(words: &[u64]) -> Times {
    let mut times = Times::default();
    for (time, word) in times.iter_mut().flatten().zip(words) {
        *time = *word;
    }
    times
}

/// What is known of all classes but those of messages.
pub fn totals() -> Totals {
    let mut totals = lock(&GONE).clone();
    add_persistent(&mut totals);
    for known in communicator::all() {
        add(&mut totals, known.size, &known.classes);
    }
    totals
}
