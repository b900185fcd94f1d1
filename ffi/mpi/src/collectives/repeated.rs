// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls like one before: the same function on the same communicator, with as many elements of the
//! same predefined datatypes and the same operation. What was found out about the first holds for
//! all of them, so only what may have changed since is asked again: whether the communicator is
//! still the same, and whether the governor lets the call pass. Of a short call the other questions
//! take longer than the bytes.

use crate::library::panics::caught;
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use libcopy::Team;
use libcopy::policy::governor::Decision;

use crate::collectives::governor;
use crate::comm::communicator::{self, Comm};
use crate::comm::group::Group;
use crate::decide::active::{active, is_meeting_wanted};
use crate::decide::classes::power;
use crate::decide::threshold;
use crate::library::abi::{Abi, Word, complain};
use crate::library::errors;
use crate::library::failure::{Done, Failure, attempt};
use crate::library::per_thread::per_thread;
use crate::library::stats::{self, Function, Outcome};

/// What calls that are alike have in common. Handles have nothing in the bits that are no handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    comm: Word,
    op: Word,
    /// Datatypes and elements of both sides; a function with one side has it twice.
    types: [Word; 2],
    counts: [u32; 2],
    root: c_int,
    function: Function,
}

impl Key {
    /// `None` if a side has no number of elements, or one that takes more than 32 bits. Without a
    /// root or an operation, that is zero.
    #[inline]
    pub fn of(
        function: Function,
        comm: Word,
        sides: [(Option<usize>, Word); 2],
        (root, op): (c_int, Word),
    ) -> Option<Key> {
        let handle = threshold::handle_bits();
        let [first, second] = sides;
        let count = |side: (Option<usize>, Word)| u32::try_from(side.0?).ok();
        Some(Key {
            comm: comm & handle,
            op: op & handle,
            types: [first.1 & handle, second.1 & handle],
            counts: [count(first)?, count(second)?],
            root,
            function,
        })
    }

    /// Where a call is remembered.
    #[inline]
    fn place(&self) -> usize {
        let [first, second] = self.counts.map(|count| count as usize);
        let word = self.comm ^ self.types[0].rotate_left(20) ^ first.rotate_left(40);
        let word = word ^ second.rotate_left(50) ^ (self.function as usize) << 32;
        let word = word ^ (self.root as usize) << 24;
        word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - PLACES.ilog2())
    }
}

/// Calls that a thread remembers.
const PLACES: usize = 64;

/// What becomes of calls that are alike.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// They are intercepted, unless the governor has one forwarded, if it decides about them.
    Intercepted { bytes: usize, is_governed: bool },
    /// They are forwarded until their communicator has a team. Each moves so many bytes; of a
    /// broadcast the next ones of about its size may only be counted ([`crate::decide::waits`]).
    Waits { moved: u64, is_bcast: bool },
    /// They are forwarded for good.
    Forwarded(Outcome),
}

/// [`Way`], without bytes.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Governed,
    Intercepted,
    Waits { is_bcast: bool },
    Forwarded(Outcome),
}

/// What was found out about a call, in one line of the cache: between two calls a program uses
/// others.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Found {
    comm: Word,
    op: Word,
    types: [Word; 2],
    /// Null in a place that is free.
    known: *const Comm,
    counts: [u32; 2],
    root: c_int,
    /// The communicator is what it was as long as its handle has this generation.
    generation: u32,
    /// Of the call, or those that it moves.
    bytes: u32,
    function: Function,
    kind: Kind,
}

const _: () = assert!(size_of::<Found>() == 64);

/// The generation of a communicator's handle, as it is remembered.
#[inline(always)]
fn generation(comm: Word) -> u32 {
    communicator::generation(comm) as u32
}

impl Found {
    /// Whether it is of calls like this one.
    #[inline(always)]
    fn is_of(&self, key: &Key) -> bool {
        let (comm, op, types, counts) = (self.comm, self.op, self.types, self.counts);
        let (root, function) = (self.root, self.function);
        let own = Key {
            comm,
            op,
            types,
            counts,
            root,
            function,
        };
        own == *key && !self.known.is_null()
    }
}

per_thread!(
    static REMEMBERED: [Cell<Found>; PLACES] = [const {
        Cell::new(Found {
            comm: 0,
            op: 0,
            types: [0; 2],
            known: ptr::null(),
            counts: [0; 2],
            root: 0,
            generation: 0,
            bytes: 0,
            function: Function::Bcast,
            kind: Kind::Waits { is_bcast: false },
        })
    }; PLACES]
);

/// Remembers what becomes of calls like this one, on this communicator. The datatypes that this
/// depends on are predefined: handles of others come back as those of other types.
pub fn remember(key: Option<Key>, known: &Comm, way: Way) {
    let (kind, bytes) = match way {
        Way::Intercepted { bytes, is_governed } if is_governed => (Kind::Governed, bytes as u64),
        Way::Intercepted { bytes, .. } => (Kind::Intercepted, bytes as u64),
        Way::Waits { moved, is_bcast } => (Kind::Waits { is_bcast }, moved),
        Way::Forwarded(why) => (Kind::Forwarded(why), 0),
    };
    if let (Some(key), Ok(bytes)) = (key, u32::try_from(bytes)) {
        let found = Found {
            comm: key.comm,
            op: key.op,
            types: key.types,
            known,
            counts: key.counts,
            root: key.root,
            generation: generation(key.comm),
            bytes,
            function: key.function,
            kind,
        };
        REMEMBERED.with(|all| all[key.place()].set(found));
    }
}

/// Whether a buffer is where its bytes are, and none that MPI gives a meaning of its own.
#[inline]
pub fn is_memory<T>(buffer: *const T) -> bool {
    !threshold::is_special(buffer)
}

/// Does a call if one like it was intercepted before, whose bytes `work` is given; `usual` says
/// whether the buffers are no special ones, for a rank. The call's code, or `None` in its place
/// if it is to be forwarded. Nothing if no call like it is known.
#[inline]
pub fn run(
    key: &Option<Key>,
    usual: impl FnOnce(usize, usize) -> bool,
    mut work: impl FnMut(&mut Team, usize) -> Result<(), Failure>,
) -> Option<Option<c_int>> {
    let key = key.as_ref()?;
    let found = REMEMBERED.with(|all| all[key.place()].get());
    let is_known =
        found.is_of(key) && found.generation == generation(key.comm) && !is_meeting_wanted();
    // Nothing is in a forked child, where what is remembered is its parent's.
    let abi = active().filter(|_| is_known)?;
    // SAFETY: the registry holds what we know of a communicator until the communicator goes, which
    // begins with another generation. Nobody may free one that another thread is using (MPI 4.1,
    // section 11.6.2).
    let known = unsafe { &*found.known };
    if let Kind::Forwarded(why) = found.kind {
        stats::count(key.function, why, 0);
        return Some(None);
    }
    if let Kind::Waits { is_bcast } = found.kind {
        let moved = u64::from(found.bytes);
        let waits = known.stays_without_group(key.comm, moved) == Ok(true);
        return waits.then(|| {
            known.lets_follow(abi, key.comm, is_bcast.then_some(moved));
            governor::measure_waiting(known);
            stats::count(key.function, Outcome::NotYet, 0);
            None
        });
    }
    let (bytes, is_governed) = (found.bytes as usize, matches!(found.kind, Kind::Governed));
    let group = known.own_group()?;
    if (key.root as usize) >= group.size || !usual(group.rank, bytes) {
        return None;
    }
    if is_governed {
        let ahead = &known.classes.ahead;
        let takes = |way| ahead.take(key.function, power(bytes as u64), way);
        let is_forwarded = || is_forwarded(known, group, key.function, bytes as u64);
        if !takes(Decision::Intercept) && (takes(Decision::Forward) || is_forwarded()) {
            stats::count(key.function, Outcome::NoGain, 0);
            return Some(None);
        }
    }
    let Some(number) = group.next_call() else {
        stats::count(key.function, Outcome::BrokenTeam, 0);
        return Some(None);
    };
    let done = attempt(|| work(&mut group.team(), bytes));
    if let Ok(Ok(())) = done {
        stats::count(key.function, Outcome::Intercepted, bytes as u64);
        return Some(Some(0));
    }
    let group = (&**group, number);
    Some(Some(failed((abi, key.comm), key.function, group, done)))
}

/// Whether the governor has a call forwarded. It times some calls of both ways: here, since those
/// that are not timed come this way, too. A panic of ours leaves the call to the library.
#[inline(never)]
fn is_forwarded(known: &Comm, group: &Group, function: Function, bytes: u64) -> bool {
    let decision = || {
        if known.classes.rests_forwarding(function, bytes) {
            return Decision::Forward;
        }
        governor::decide(&known.held(), group, function, (bytes, true))
    };
    let decision = caught(decision);
    decision.unwrap_or(Decision::Forward) == Decision::Forward
}

/// The code of a call with this number in a group, which has failed: the communicator's error
/// handler has heard of it.
#[cold]
pub fn failed(
    (abi, comm): (&Abi, Word),
    function: Function,
    (group, number): (&Group, u64),
    done: Done,
) -> c_int {
    let code = match done {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => match *failure {
            Failure::Team(error) => {
                let text = format!("{}: {}", function.name(), error.report());
                complain(&text);
                match error {
                    libcopy::Error::Mismatch { .. } => abi.truncate,
                    _ => errors::failure(abi, &text),
                }
            }
            Failure::Code(code) => code,
        },
        Err(_) => abi.error,
    };
    governor::failed();
    group.failed(number);
    errors::raise(comm, code)
}
