// SPDX-License-Identifier: MIT OR Apache-2.0

//! Short collectives of ranks in several groups, a step for each group
//! ([`crate::plan::Exchange`]): each rank publishes what its member of the group has
//! ([`crate::shm::contribution`]) and reads from one rank of each other member.
//!
//! A rank has two places for each step, in turn. When it comes to the second call after one, all
//! ranks have begun the call in between, and so are done with the first: it cannot end a call
//! before all have begun it. So nobody answers.
//!
//! Elements are combined group by group, in each in the order of its members, by all ranks alike.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::direct::{meet, wake};
use super::division::Division;
use super::planned::Combine;
use crate::error::Boxed;
use crate::memcpy;
use crate::op::{Call, Op};
use crate::plan::{Exchange, GroupStep, MOST_OF_STEP, StepMember};
use crate::team::Team;

/// Our steps of a call in which no rank publishes more than `bytes` bytes in a step, if it goes
/// this way: the same on all ranks.
pub(super) fn steps(team: &mut Team, bytes: usize) -> Option<Arc<Exchange>> {
    let is_short = bytes <= MOST_OF_STEP && bytes as u64 <= team.policy().eager_max;
    team.exchange().filter(|_| is_short)
}

/// The same of a call in which each rank publishes the parts of all ranks of its member, of at most
/// `part` bytes each.
pub(super) fn steps_of_parts(team: &mut Team, part: usize) -> Option<Arc<Exchange>> {
    let steps = steps(team, part)?;
    let is_short = part.saturating_mul(steps.most_ranks) <= MOST_OF_STEP;
    is_short.then_some(steps)
}

/// Returns when all ranks have called it.
pub(super) fn barrier(team: &mut Team, exchange: &Exchange) -> Boxed<()> {
    // SAFETY: there are no bytes.
    unsafe {
        run(
            team,
            exchange,
            |_| Call::new(Op::Barrier, 0, 0),
            &mut Nothing,
        )
    }
}

/// Collects everybody's part, ours at `mine`, in `recv`; ours may be there already.
///
/// # Safety
///
/// `mine` is readable for the length of our part.
pub(super) unsafe fn allgather(
    team: &mut Team,
    exchange: &Exchange,
    mine: *const u8,
    recv: &mut [u8],
    division: Division<'_>,
) -> Boxed<()> {
    let (at, len) = division.part(team.rank());
    // SAFETY: our part is inside the buffer; `mine` is borrowed if it is elsewhere.
    unsafe {
        let place = recv.as_mut_ptr().add(at);
        if !std::ptr::eq(place, mine) {
            memcpy::cached(place, mine, len);
        }
    }
    let mut parts = Collected { recv, division };
    let call = |member: &StepMember| {
        let lengths = member.ranks.iter().map(|rank| division.part(*rank).1);
        Call::new(Op::Allgather, 0, lengths.sum())
    };
    // SAFETY: parts of one member are short enough, as `steps_of_parts` has said.
    unsafe { run(team, exchange, call, &mut parts) }
}

/// Combines everybody's `len` bytes at `from` to everybody's `to`.
///
/// # Safety
///
/// Both have `len` bytes, `to` writable, and are the same or apart.
pub(super) unsafe fn allreduce(
    team: &mut Team,
    exchange: &Exchange,
    (from, to, len): (*const u8, *mut u8, usize),
    combine: Combine<'_>,
) -> Boxed<()> {
    let call = Call::new(Op::Allreduce, 0, len);
    let mut sum = Combined {
        places: MaybeUninit::uninit(),
        len,
        combine,
    };
    // SAFETY: the caller's promise; `len` is at most `MOST_OF_STEP`, as `steps` has said.
    unsafe {
        memcpy::cached(sum.place(0), from, len);
        run(team, exchange, |_| call, &mut sum)?;
        memcpy::cached(to, sum.place(0), len);
    }
    Ok(())
}

/// What a rank has so far.
trait Contents {
    /// Writes it to `to`, in the order of the ranks that it is from.
    ///
    /// # Safety
    ///
    /// There is room for [`MOST_OF_STEP`] bytes.
    unsafe fn put(&mut self, step: &GroupStep, to: *mut u8);

    /// Takes what each other member of the group has, which `published` finds by its position.
    ///
    /// # Safety
    ///
    /// Each has put as much as its ranks contribute.
    unsafe fn take(&mut self, step: &GroupStep, published: impl Fn(usize) -> *const u8);
}

/// Runs all steps. `call` says what a member of a group calls, with the bytes that it publishes.
///
/// # Safety
///
/// The contents are at most [`MOST_OF_STEP`] bytes in each step but after the last one.
unsafe fn run(
    team: &mut Team,
    exchange: &Exchange,
    call: impl Fn(&StepMember) -> Call,
    contents: &mut impl Contents,
) -> Boxed<()> {
    team.exchanges += 1;
    let (me, number) = (team.rank(), team.exchanges);
    let team = &*team;
    let segment = team.segment();
    let mut is_told = true;
    for step in &exchange.steps {
        let mine = segment.step_contribution(me, step.level, number);
        // SAFETY: the place has room; nobody reads it any more, as the file's head says.
        unsafe { contents.put(step, mine.bytes()) };
        mine.label()
            .publish(number, call(&step.members[step.own]).to_words());
        is_told = false;
        let (behind, ahead) = step.members.split_at(step.own);
        for member in ahead[1..].iter().chain(behind) {
            let theirs = segment.step_contribution(member.partner, step.level, number);
            let expected = call(member);
            meet(
                team,
                (member.partner, theirs.label()),
                number,
                expected,
                &mut is_told,
            )?;
        }
        let published = |index: usize| {
            let partner = step.members[index].partner;
            let theirs = segment.step_contribution(partner, step.level, number);
            theirs.bytes().cast_const()
        };
        // SAFETY: all have published theirs for this call.
        unsafe { contents.take(step, published) };
    }
    if !is_told {
        wake(team);
    }
    Ok(())
}

/// That a rank has come.
struct Nothing;

impl Contents for Nothing {
    unsafe fn put(&mut self, _: &GroupStep, _: *mut u8) {}
    unsafe fn take(&mut self, _: &GroupStep, _: impl Fn(usize) -> *const u8) {}
}

/// Parts of ranks, each in its place.
struct Collected<'a> {
    recv: &'a mut [u8],
    division: Division<'a>,
}

impl Contents for Collected<'_> {
    unsafe fn put(&mut self, step: &GroupStep, to: *mut u8) {
        let mut put = 0;
        for rank in &step.members[step.own].ranks {
            let (at, len) = self.division.part(*rank);
            // SAFETY: the caller's promise; the part is inside the buffer.
            unsafe { memcpy::cached(to.add(put), self.recv.as_ptr().add(at), len) };
            put += len;
        }
    }

    unsafe fn take(&mut self, step: &GroupStep, published: impl Fn(usize) -> *const u8) {
        for (index, member) in step.members.iter().enumerate() {
            if index == step.own {
                continue;
            }
            let (from, mut taken) = (published(index), 0);
            for rank in &member.ranks {
                let (at, len) = self.division.part(*rank);
                // SAFETY: as above; these bytes were published.
                unsafe { memcpy::cached(self.recv.as_mut_ptr().add(at), from.add(taken), len) };
                taken += len;
            }
        }
    }
}

/// Elements that were combined: where no other process can change them, as are those that are
/// combined with them.
struct Combined<'a> {
    places: MaybeUninit<[[u128; MOST_OF_STEP.div_ceil(16)]; 3]>,
    len: usize,
    combine: Combine<'a>,
}

impl Combined<'_> {
    /// The result, the elements of another member, or those of the group so far.
    fn place(&mut self, index: usize) -> *mut u8 {
        let places = self.places.as_mut_ptr().cast::<u8>();
        // SAFETY: there are three.
        unsafe { places.add(index * 16 * MOST_OF_STEP.div_ceil(16)) }
    }
}

impl Contents for Combined<'_> {
    unsafe fn put(&mut self, _: &GroupStep, to: *mut u8) {
        let (own, len) = (self.place(0), self.len);
        // SAFETY: the caller's promise.
        unsafe { memcpy::cached(to, own, len) };
    }

    unsafe fn take(&mut self, step: &GroupStep, published: impl Fn(usize) -> *const u8) {
        let [own, other, sum] = [0, 1, 2].map(|index| self.place(index));
        let len = self.len;
        // SAFETY: each place has room for `len` bytes, and was written before it is read.
        unsafe {
            for index in 0..step.members.len() {
                let term = if index == step.own {
                    own.cast_const()
                } else {
                    memcpy::cached(other, published(index), len);
                    other.cast_const()
                };
                if index == 0 {
                    memcpy::cached(sum, term, len);
                } else {
                    let into = std::slice::from_raw_parts_mut(sum, len);
                    (self.combine)(std::slice::from_raw_parts(term, len), into);
                }
            }
            memcpy::cached(own, sum, len);
        }
    }
}
