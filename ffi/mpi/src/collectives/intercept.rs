// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether a call is intercepted, and what becomes of one that is.

use crate::library::panics::caught;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;

use libcopy::collective::Op;
use libcopy::policy::Oversubscription;
use libcopy::policy::governor::Decision;

use crate::bootstrap;
use crate::bootstrap::own_collectives::allgather;
use crate::collectives::repeated::{Key, Way, failed};
use crate::collectives::{governor, nonblocking, repeated};
use crate::comm::communicator;
use crate::comm::communicator::{Comm, Held};
use crate::comm::group::Group;
use crate::comm::nonblocking_group::NonblockingGroup;
use crate::decide::active;
use crate::decide::active::active;
use crate::decide::classes::{PersistentClass, power};
use crate::decide::prior::{Order, Prior, is_faster_across, is_uniform};
use crate::decide::threshold;
use crate::library::abi::{Abi, Word, complain};
use crate::library::count::Count;
use crate::library::failure::{Failure, attempt};
use crate::library::stats::{Across, Function, Outcome};
use crate::library::{pmpi, stats};
use crate::types::buffer::Kind;
use crate::types::type_size;

/// A call that is ours: the library, the group, and the bytes of this rank.
pub struct Call {
    pub abi: &'static Abi,
    comm: Word,
    pub group: Held,
    /// Counted by all ranks of the group alike; 0 for barriers, which only groups on several nodes
    /// have.
    number: u64,
    function: Function,
    pub bytes: usize,
    /// Whether the governor decides about it.
    pub is_governed: bool,
}

/// Decides whether a call is intercepted: `count` elements of `datatype` are what each rank sends
/// or receives, and `kinds` looks at the datatypes more closely, which small messages need not wait
/// for.
#[inline]
pub fn intercept(
    function: Function,
    comm: Word,
    pair: (Option<usize>, Word),
    key: &Option<Key>,
    kinds: impl FnOnce(&'static Abi) -> Option<()>,
) -> Option<Call> {
    intercept_reduction(function, comm, pair, (None, key), kinds)
}

/// Decides whether a call that combines the elements with `op`, if there is one, is intercepted;
/// the rest is as for [`intercept`].
#[inline]
pub fn intercept_reduction(
    function: Function,
    comm: Word,
    (count, datatype): (Option<usize>, Word),
    (op, key): (Option<Word>, &Option<Key>),
    kinds: impl FnOnce(&'static Abi) -> Option<()>,
) -> Option<Call> {
    let Some(abi) = active() else {
        stats::count(function, Outcome::Disabled, 0);
        return None;
    };
    if active::is_meeting_wanted() {
        nonblocking::meet(abi, comm);
    }
    // Many calls are on communicators of one rank.
    let refused = communicator::with_last(comm, || abi.handle, |known| known.admits().err());
    if let Some(Some(outcome)) = refused {
        stats::count(function, outcome, 0);
        return None;
    }
    let Some(bytes) = count.and_then(|count| type_size::bytes(abi, count, datatype)) else {
        stats::count(function, Outcome::Arguments, 0);
        return None;
    };
    // Below this, no communicator is worth the team that would tell whether ranks outnumber
    // processors.
    let prior = Prior::of(abi.implementation(), function, bytes as u64);
    // The handle of another one may come back as that of a type with other bytes.
    let key = key.filter(|_| threshold::size(datatype).is_some());
    let forwarded = |known: &Comm, why| {
        repeated::remember(key, known, Way::Forwarded(why));
        Err(why)
    };
    if !prior.is_anywhere() {
        let why = prior.why_not();
        communicator::with_last(comm, || abi.handle, |known| forwarded(known, why));
        stats::count(function, why, 0);
        return None;
    }
    // Before the datatypes are looked at, which costs more.
    let look = |known: &Comm| {
        let prior = prior.among(known.size);
        if !prior.suits(known.size) {
            return forwarded(known, prior.why_not());
        }
        let order = Order::of(abi, known.size, datatype, op);
        let is_ruled_out = match order {
            Order::Free => is_ruled_out(known, prior),
            Order::Fixed => !prior.is_under(known.known_oversubscription(), order),
        };
        if is_ruled_out {
            return forwarded(known, Outcome::NoGain);
        }
        // Behind that, as it counts calls: ranks that remember what is ruled out do not come here.
        if order == Order::Free && known.classes.rests_forwarding(function, bytes as u64) {
            return Err(Outcome::NoGain);
        }
        let may_be_ours = order == Order::Free && op.is_none_or(|op| abi.is_predefined(op));
        if !may_be_ours {
            return Ok(order);
        }
        let moved = function.moves(prior.bytes, known.size);
        if known.stays_without_group(comm, moved)? {
            let is_alike = || is_uniform(abi.implementation(), power(moved));
            let is_bcast = function == Function::Bcast && key.is_some() && is_alike();
            known.lets_follow(abi, comm, is_bcast.then_some(moved));
            governor::measure_waiting(known);
            repeated::remember(key, known, Way::Waits { moved, is_bcast });
            return Err(Outcome::NotYet);
        }
        Ok(order)
    };
    counted(function, || {
        let looked = communicator::with_last(comm, || abi.handle, look).transpose()?;
        let known = communicator::of(abi, comm)?;
        let order = looked.map_or_else(|| look(&known), Ok)?;
        kinds(abi).ok_or(Outcome::Arguments)?;
        let number = admit(function, abi, comm, &known, (prior, true, order))?;
        let is_governed = order == Order::Free && governor::rules(&known);
        let call = Call::new((abi, comm), known, number, (function, bytes))?;
        Ok(Call {
            is_governed,
            ..call
        })
    })
}

/// Who knows how large an irregular message is.
#[derive(Clone, Copy)]
pub enum Knows {
    /// The root knows all parts.
    Root(c_int),
    /// Every rank knows its own.
    Each,
    /// Every rank knows all: this is the largest part.
    All(u64),
}

/// Decides whether an irregular call is intercepted. Where its ranks do not all know how large it
/// is, they agree on it now and then, and in between assume what it was. `sides` looks at the
/// arguments and returns the bytes of the largest part, as far as this rank knows.
pub fn intercept_vector(
    function: Function,
    comm: Word,
    knows: Knows,
    sides: impl FnOnce(&'static Abi, &Comm) -> Option<u64>,
) -> Option<Call> {
    counted(function, || {
        let abi = active().ok_or(Outcome::Disabled)?;
        if active::is_meeting_wanted() {
            nonblocking::meet(abi, comm);
        }
        let known = communicator::of(abi, comm)?;
        known.admits()?;
        // Counted whatever else is wrong, as small calls are.
        let (agree, mut largest) = match knows {
            Knows::All(largest) => (false, largest),
            _ => known.irregular(function),
        };
        if let Knows::Root(root) = knows {
            if usize::try_from(root).map_or(true, |root| root >= known.size) {
                return Err(Outcome::Arguments);
            }
        }
        let of = |bytes| Prior::of(abi.implementation(), function, bytes).among(known.size);
        let mut prior = of(largest);
        if !agree && !prior.is_anywhere() {
            return Err(prior.why_not());
        }
        if !agree && is_ruled_out(&known, prior) {
            return Err(prior.why_not());
        }
        if !agree && known.classes.rests_forwarding(function, largest) {
            return Err(Outcome::NoGain);
        }
        let mine = sides(abi, &known).ok_or(Outcome::Arguments)?;
        if agree {
            largest = agreed(abi, comm, &known, knows, mine).ok_or(Outcome::NoTeam)?;
            known.agreed(function, largest);
            prior = of(largest);
        }
        let number = admit(function, abi, comm, &known, (prior, false, Order::Free))?;
        Call::new((abi, comm), known, number, (function, 0))
    })
}

/// The largest of the parts that each rank knows.
fn agreed(abi: &Abi, comm: Word, known: &Comm, knows: Knows, mine: u64) -> Option<u64> {
    match knows {
        Knows::Root(root) => {
            let mut bytes = mine;
            let buffer = (&raw mut bytes).cast();
            // SAFETY: all ranks are here; eight bytes.
            let answer = unsafe { pmpi::bcast(buffer, 8, abi.byte, root, comm) };
            (answer == 0).then_some(bytes)
        }
        Knows::Each | Knows::All(_) => {
            let all = allgather(abi, comm, mine, known.size)?;
            Some(all.into_iter().max().unwrap_or(0))
        }
    }
}

/// Whether the `bytes` of all ranks can be counted between nodes.
fn reaches(bytes: u64) -> bool {
    c_int::try_from(bytes).is_ok()
}

/// Decides about a barrier, which has no bytes: only where the team of ranks on several nodes is
/// there anyway, which all ranks find alike.
pub fn take_barrier(abi: &'static Abi, comm: Word) -> Option<Call> {
    counted(Function::Barrier, || {
        let known = communicator::of(abi, comm)?;
        known.admits()?;
        // On one machine the MPI library's is as fast.
        known.across_nodes().ok_or(Outcome::NoGain)?;
        if !is_faster_across(Function::Barrier, 0) {
            return Err(Outcome::Small);
        }
        Call::new((abi, comm), known, 0, (Function::Barrier, 0))
    })
}

/// How many bytes a nonblocking call moves, as far as its ranks know.
pub enum Length {
    /// All know: so many elements of the datatype.
    All(Option<usize>),
    /// Each knows its own, as [`Look`] says.
    Own,
}

/// Looks at the datatypes and arguments of a call, once; the bytes of the largest part, as far as
/// this rank knows, if they are ours to move. It is no type of its own for each function: the
/// decision is long, and the same.
pub type Look<'a> = &'a mut dyn FnMut(&'static Abi, &Comm) -> Option<u64>;

/// Decides about a nonblocking call in the same way.
pub fn intercept_nonblocking(
    function: Function,
    comm: Word,
    (length, datatype): (Length, Word),
    op: Option<Word>,
    look: Look<'_>,
) -> Option<(&'static Abi, Arc<NonblockingGroup>, usize)> {
    counted(function, || {
        let has_looked = Cell::new(false);
        let mut look = |abi: &'static Abi, known: &Comm| {
            has_looked.set(true);
            look(abi, known).ok_or(Outcome::Arguments)
        };
        let (abi, bytes, prior) = match length {
            Length::All(count) => nonblocking_candidate(function, (count, datatype))?,
            Length::Own => {
                let abi = active().ok_or(Outcome::Disabled)?;
                let known = communicator::of(abi, comm)?;
                let bytes = largest(function, &known, || look(abi, &known))?;
                candidate(abi, function, bytes)?
            }
        };
        let power = power(bytes as u64);
        let order = |known: &Comm| Order::of(abi, known.size, datatype, op);
        let takes = |known: &Comm| {
            let ahead = &known.classes.ahead;
            order(known) == Order::Free && ahead.take(function, power, Decision::Forward)
        };
        if communicator::with_last(comm, || abi.handle, takes) == Some(true) {
            return Err(Outcome::NoGain);
        }
        let known = communicator::of(abi, comm)?;
        known.admits()?;
        let order = order(&known);
        if order == Order::Fixed && !known.had_met_for_reductions() {
            return Err(Outcome::NoTeam);
        }
        // Before the datatypes are looked at, which costs more.
        if let Some(members) = known.met() {
            let under = members.oversubscription;
            if !keeps_order(function, &known, order, under) {
                return Err(Outcome::NoGain);
            }
            if !prior.is_under(Some(under), order) {
                return Err(Outcome::Small);
            }
        }
        if let (Some(members), Order::Free) = (known.met(), order) {
            match governor::decide_nonblocking(&known, members, function, bytes as u64) {
                Decision::Intercept => {}
                Decision::Forward => return Err(Outcome::NoGain),
            }
        }
        if !has_looked.get() {
            look(abi, &known)?;
        }
        let members = known
            .nonblocking_group()
            .ok_or_else(|| known.why_not_met())?;
        if !members.group.admits_next() {
            return Err(Outcome::BrokenTeam);
        }
        Ok((abi, members.clone(), bytes))
    })
}

/// The largest part of a call whose ranks know only their own, as they last told each other: now
/// and then each says its own (`mine`), and nobody waits for the others. The ranks have to have met
/// for that, which they are to in the blocking collective that follows the second such call.
fn largest(
    function: Function,
    known: &Comm,
    mine: impl FnOnce() -> Result<u64, Outcome>,
) -> Result<u64, Outcome> {
    if !nonblocking::is_allowed() {
        return Err(Outcome::Disabled);
    }
    known.admits()?;
    // Counted whatever else is wrong, as small calls are.
    let (tells, largest) = known.irregular(function);
    let Some(members) = known.met() else {
        if known.is_again(function) {
            known.nonblocking_group();
        }
        return Err(known.why_not_met());
    };
    if !tells {
        return Ok(largest);
    }
    let said = members.largest(function, mine()?);
    if let Some(said) = said {
        known.agreed(function, said);
    }
    Ok(said.unwrap_or(largest))
}

/// Decides in the same way about a function that makes a persistent request. It may wait for other
/// ranks (MPI 4.1, section 6.13), so they meet in it, and agree on whether `look` finds that the
/// call is ours on all of them. With the most persistent requests that a rank has.
pub fn intercept_persistent(
    function: Function,
    comm: Word,
    pair: (Option<usize>, Word),
    op: Option<Word>,
    look: Look<'_>,
) -> Option<(&'static Abi, Arc<NonblockingGroup>, usize, usize)> {
    counted(function, || {
        let (abi, bytes, prior) = nonblocking_candidate(function, pair)?;
        let known = communicator::of(abi, comm)?;
        known.admits()?;
        let members = nonblocking::meet_now(abi, comm, &known).ok_or(Outcome::NoTeam)?;
        let order = Order::of(abi, known.size, pair.1, op);
        let under = members.oversubscription;
        if !keeps_order(function, &known, order, under) {
            return Err(Outcome::NoGain);
        }
        if !prior.is_under(Some(under), order) {
            return Err(Outcome::Small);
        }
        let is_ours = look(abi, &known).is_some();
        let requests = PersistentClass::number() as u64 + 1;
        let made = members.of_request(abi, comm, is_ours, requests);
        is_ours.then_some(()).ok_or(Outcome::Arguments)?;
        let (members, requests) = made.ok_or(Outcome::NoTeam)?;
        Ok((abi, members, bytes, requests as usize))
    })
}

/// Whether a nonblocking reduction combines in the order of a blocking one, if it has to: where
/// each rank has a processor, blocking ones go by groups of the machine, and scans by distances
/// that double.
fn keeps_order(function: Function, known: &Comm, order: Order, under: Oversubscription) -> bool {
    let is_scan = matches!(function.op(), Some(Op::Scan | Op::Exscan));
    let is_flat = under != Oversubscription::None && !is_scan;
    order == Order::Free || known.size <= 2 || is_flat
}

/// The library and the bytes of a nonblocking call, if these are worth it for any number of ranks,
/// and for which.
fn nonblocking_candidate(
    function: Function,
    (count, datatype): (Option<usize>, Word),
) -> Result<(&'static Abi, usize, Prior), Outcome> {
    let abi = active().ok_or(Outcome::Disabled)?;
    if !nonblocking::is_allowed() {
        return Err(Outcome::Disabled);
    }
    let bytes = count.and_then(|count| type_size::bytes(abi, count, datatype));
    candidate(abi, function, bytes.ok_or(Outcome::Arguments)? as u64)
}

/// The same where the bytes are known.
fn candidate(
    abi: &'static Abi,
    function: Function,
    bytes: u64,
) -> Result<(&'static Abi, usize, Prior), Outcome> {
    let prior = Prior::of(abi.implementation(), function, bytes);
    let candidate = prior.is_anywhere().then_some((abi, bytes as usize, prior));
    candidate.ok_or(Outcome::Small)
}

/// What was decided; counts what is not intercepted.
fn counted<T>(function: Function, decision: impl FnOnce() -> Result<T, Outcome>) -> Option<T> {
    match caught(decision) {
        Ok(Ok(intercepted)) => Some(intercepted),
        Ok(Err(outcome)) => {
            stats::count(function, outcome, 0);
            None
        }
        Err(_) => None,
    }
}

/// Whether the communicator's team has told how its ranks and processors go together, and messages
/// of this size are not faster then: as [`admit`] finds, which is asked once arguments are known.
fn is_ruled_out(known: &Comm, prior: Prior) -> bool {
    let of = |group: &Arc<Group>| {
        group.nodes.is_none() && !prior.is_under(Some(group.oversubscription), Order::Free)
    };
    known.own_group().is_some_and(of)
}

/// The number of the call in the communicator's group, if messages of this size are to go through
/// it, by the thresholds and, where the order is free, by the governor. `exact`: all ranks'
/// messages have exactly these bytes, not just about as many.
fn admit(
    function: Function,
    abi: &'static Abi,
    comm: Word,
    known: &Arc<Comm>,
    (prior, exact, order): (Prior, bool, Order),
) -> Result<u64, Outcome> {
    let group = admit_by_thresholds(function, abi, comm, known, (prior, order))?;
    let decision = match order {
        Order::Free => governor::decide(known, group, function, (prior.bytes, exact)),
        Order::Fixed => Decision::Intercept,
    };
    match decision {
        Decision::Intercept => group.next_call().ok_or(Outcome::BrokenTeam),
        Decision::Forward => Err(Outcome::NoGain),
    }
}

/// The group, if they are by the thresholds.
fn admit_by_thresholds<'a>(
    function: Function,
    abi: &'static Abi,
    comm: Word,
    known: &'a Arc<Comm>,
    (prior, order): (Prior, Order),
) -> Result<&'a Group, Outcome> {
    let (bytes, prior) = (prior.bytes, prior.among(known.size));
    if !prior.suits(known.size) {
        return Err(prior.why_not());
    }
    // Where the order is fixed, what is forwarded is not worth the team that would tell this. On
    // several machines ranks of different ones do not share processors.
    let oversubscription = match order {
        Order::Fixed if !bootstrap::world().is_some_and(|world| world.everywhere) => {
            known.admits()?;
            Some(known.oversubscription(abi, comm))
        }
        _ => None,
    };
    if !prior.is_under(oversubscription, order) {
        return Err(prior.why_not());
    }
    let group = known.group(abi, comm, (function.moves(bytes, known.size), order));
    let group = group.inspect_err(|_| {
        if known.is_waiting() {
            governor::measure_waiting(known);
        }
    })?;
    if group.nodes.is_some() {
        let all = match function.across_nodes().ok_or(Outcome::Machines)? {
            Across::Whole => 0,
            Across::Parts => bytes.saturating_mul(group.size as u64),
        };
        if !reaches(all) {
            return Err(Outcome::Machines);
        }
        let is_faster = is_faster_across(function, bytes);
        return is_faster.then_some(&**group).ok_or(Outcome::Small);
    }
    // Reductions pay only where nobody copies twice.
    let reduces = |op: Op| Op::REDUCTIONS.contains(&op);
    if !group.direct && function.op().is_some_and(reduces) {
        return Err(Outcome::NoTeam);
    }
    let oversubscription = oversubscription.unwrap_or(group.oversubscription);
    if !prior.is_under(Some(oversubscription), order) {
        return Err(prior.why_not());
    }
    Ok(group)
}

impl Call {
    /// A call with this number in the communicator's group.
    fn new(
        (abi, comm): (&'static Abi, Word),
        known: Arc<Comm>,
        number: u64,
        (function, bytes): (Function, usize),
    ) -> Result<Call, Outcome> {
        Ok(Call {
            abi,
            comm,
            group: Held::of(known).ok_or(Outcome::NoTeam)?,
            number,
            function,
            bytes,
            is_governed: true,
        })
    }

    /// Has calls like it go the same way, if its elements are of predefined datatypes, dense, and
    /// as many bytes on each side. A rank may have no second side, or no first one, if that is in
    /// place.
    pub fn remember<'a, K: Into<Option<&'a Kind>>>(
        &self,
        key: Option<Key>,
        sides: [(K, usize); 2],
    ) {
        let is_plain = |(kind, count): (&Kind, usize)| {
            kind.is_named() && kind.is_dense() && kind.bytes_of(count) == Some(self.bytes)
        };
        let [first, second] = sides.map(|(kind, count)| Some((kind.into()?, count)));
        let is_plain = first.or(second).is_some_and(is_plain) && second.is_none_or(is_plain);
        // Across nodes there is more to ask, and less to gain.
        if self.bytes > 0 && is_plain && self.group.nodes.is_none() {
            let way = Way::Intercepted {
                bytes: self.bytes,
                is_governed: self.is_governed,
            };
            repeated::remember(key, self.group.known(), way);
        }
    }

    /// Does it; errors go to the communicator's error handler.
    pub fn run(self, work: impl FnOnce(&Call) -> Result<(), Failure>) -> c_int {
        let mut work = Some(work);
        let done = attempt(|| work.take().map_or(Ok(()), |work| work(&self)));
        if let Ok(Ok(())) = done {
            let outcome = match self.group.nodes {
                Some(_) => Outcome::Nodes,
                None => Outcome::Intercepted,
            };
            stats::count(self.function, outcome, self.bytes as u64);
            return 0;
        }
        let group = (&*self.group, self.number);
        failed((self.abi, self.comm), self.function, group, done)
    }

    /// The lengths of all ranks' parts where several nodes have to know them, none elsewhere.
    /// Nothing if they are more bytes than the MPI library's counts and places reach; all ranks
    /// find that alike.
    pub fn with_lengths(self, mine: impl FnOnce() -> usize) -> Option<(Self, Vec<usize>)> {
        if self.group.nodes.is_none() {
            return Some((self, Vec::new()));
        }
        let lengths = allgather(self.abi, self.comm, mine() as u64, self.group.size);
        let lengths: Vec<usize> = lengths.into_iter().flatten().map(|n| n as usize).collect();
        let total = lengths
            .iter()
            .try_fold(0usize, |sum, n| sum.checked_add(*n));
        match total {
            Some(total) if lengths.len() == self.group.size && reaches(total as u64) => {
                Some((self, lengths))
            }
            _ => {
                stats::count(self.function, Outcome::Machines, 0);
                None
            }
        }
    }

    /// Says how many bytes this rank has to do with, where that was not known when it was
    /// intercepted.
    pub fn with_bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// Refuses a second pair of count and datatype that is not as many bytes as the first: buffers
    /// are as long as the call says, and we must not reach beyond them.
    pub fn agree(&self, kind: &Kind, count: impl Count) -> Result<(), Failure> {
        if agrees(self.function, self.bytes, kind, count) {
            return Ok(());
        }
        // Nobody is to wait for us. What ranks on other machines do has no part in it.
        if self.group.nodes.is_none() {
            self.group.team().give_up();
        }
        Err(Failure::Code(self.abi.truncate))
    }

    /// Whether we are this root.
    pub fn is_root(&self, root: c_int) -> bool {
        usize::try_from(root) == Ok(self.group.rank)
    }
}

/// Whether elements are as many bytes as those of the other side; a word about it if not.
pub fn agrees(function: Function, bytes: usize, kind: &Kind, count: impl Count) -> bool {
    let agrees = kind.bytes(count) == Some(bytes);
    if !agrees {
        complain(&format!(
            "{}: {} elements of one datatype are not the {bytes} bytes of the other side",
            function.name(),
            count.elements()
        ));
    }
    agrees
}

/// Our rank in a communicator; `None` if it is no communicator.
pub fn rank_of(abi: &Abi, comm: Word) -> Option<usize> {
    communicator::place(abi, comm).ok().map(|place| place.0)
}

/// The rank with this number, if there is one; if not, MPI says so.
pub fn plausible(abi: &Abi, comm: Word, root: c_int) -> Option<usize> {
    let (_, size) = communicator::place(abi, comm).ok()?;
    usize::try_from(root).ok().filter(|root| *root < size)
}
