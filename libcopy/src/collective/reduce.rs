// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reductions, by plans: every element is combined by one rank, so that all get the same result
//! even where rounding depends on the order, which the call and the ranks' tree alone decide. The
//! operation must be commutative. Short ones are combined by all ranks, in the same order.
//!
//! Where copy engines are to move bytes while the program goes on (`LIBCOPY_ASYNC`), the ranks
//! combine a slice each, and the slices are gathered as any others are.

use super::chunked::{self, Kind, Way};
use super::division::{Division, Parts, slices};
use super::planned::{self, Combine};
use super::{allgather, direct, exchange, gather};
use crate::error::{Allowed, Boxed, Error};
use crate::offload;
use crate::op::{Call, Op};
use crate::plan::{Lengths, Operation, Planned, Workers, granule};
use crate::scratch::zeros;
use crate::team::Team;

/// Checks what all reductions ask of their arguments.
pub(super) fn whole_elements(len: usize, element: usize) -> Boxed<()> {
    if element == 0 || len % element != 0 {
        return Err(Error::argument(
            "length of a reduction",
            len,
            Allowed::MultipleOf(element as u64),
        )
        .into());
    }
    Ok(())
}

/// Whether engines move the slices of a result of this length by this operation.
fn offloads(team: &Team, op: Op, len: usize, element: usize) -> bool {
    let size = team.size();
    let longest = (len / size).next_multiple_of(granule(element)).min(len);
    size > 1 && team.decide(op, longest).offloads
}

/// How a reduction of `len` bytes goes that has this plan: as an allgather of as many bytes of each
/// rank would. In chunks elements are combined as by a plan without groups in which each rank
/// combines its own part, so no other one is replaced.
fn way_of(
    team: &mut Team,
    (op, root): (Operation, usize),
    planned: &Planned,
    (len, element): (usize, usize),
) -> Way {
    let is_by_owners = op != Operation::ReduceScatter || planned.workers == Workers::Owners;
    if planned.depth > 1 || !is_by_owners {
        return Way::BY_POLICY;
    }
    let kind = match op {
        Operation::Reduce => Kind::Reduce,
        _ => Kind::Reduction,
    };
    let decision = team.decide(Op::Allgather, len);
    Way::of(team, (kind, root), decision, (len, granule(element)))
}

/// A reduce or an allreduce by a plan, or in chunks in its order.
///
/// # Safety
///
/// As for [`to_root`]; who does not receive has a null `to`.
unsafe fn reduce(
    team: &mut Team,
    call: Call,
    what: (*const u8, *mut u8, usize),
    element: usize,
    combine: Combine<'_>,
) -> Boxed<()> {
    let operation = match call.op {
        Op::Reduce => Operation::Reduce,
        _ => Operation::Allreduce,
    };
    let lengths = Lengths::Same(what.2);
    let planned = planned::plan(team, operation, call.root, lengths, element);
    let way = way_of(team, (operation, call.root), &planned, (what.2, element));
    // SAFETY: the caller's promise.
    let done = unsafe {
        if way.is_chunked {
            chunked::reduce(team, &way, (call, &planned), what, element, combine)
        } else if call.op == Op::Reduce {
            planned::reduce(team, &planned, call.root, what, element, combine)
        } else {
            planned::allreduce(team, &planned, what, element, combine)
        }
    };
    way.end(team);
    done
}

/// Combines everybody's elements in the root's memory at `to`, which is null elsewhere.
///
/// # Safety
///
/// `from` and the root's `to` have `len` bytes, `to` writable, and are the same or apart. Nobody
/// else uses either meanwhile.
pub(super) unsafe fn to_root(
    team: &mut Team,
    root: usize,
    (from, to, len): (*const u8, *mut u8, usize),
    element: usize,
    combine: Combine<'_>,
) -> Boxed<()> {
    whole_elements(len, element)?;
    if direct::takes_reduction(team, len, element) {
        // SAFETY: the caller's promise.
        return unsafe { direct::reduce(team, root, (from, to, len), element, combine) };
    }
    if !offloads(team, Op::Gather, len, element) {
        let call = Call::new(Op::Reduce, root, len);
        // SAFETY: the caller's promise.
        return unsafe { reduce(team, call, (from, to, len), element, combine) };
    }
    let (counts, offsets) = slices(len, element, team.size());
    let rank = team.rank();
    let division = Division::Slices(Parts {
        counts: &counts,
        offsets: &offsets,
    });
    if rank == root {
        // SAFETY: the caller's promise; the slice is inside.
        let recv = unsafe {
            let own = to.add(offsets[rank]);
            scattered(team, (from, own), &counts, element, combine)?;
            std::slice::from_raw_parts_mut(to, len)
        };
        return gather::root(team, None, recv, division);
    }
    let mut slice = zeros(counts[rank])?;
    // SAFETY: the caller's promise; the slice is as long as our part.
    unsafe {
        scattered(team, (from, slice.as_mut_ptr()), &counts, element, combine)?;
    }
    gather::leaf(team, &slice, root)?;
    // The slice goes now.
    Ok(offload::settle_bytes(&slice)?)
}

/// Combines everybody's elements at `from` in everybody's `recv`.
///
/// # Safety
///
/// `from` has as many bytes as `recv`, and is the same memory or apart. Nobody else uses it
/// meanwhile.
pub(super) unsafe fn to_all(
    team: &mut Team,
    from: *const u8,
    recv: &mut [u8],
    element: usize,
    combine: Combine<'_>,
) -> Boxed<()> {
    let (to, len) = (recv.as_mut_ptr(), recv.len());
    whole_elements(len, element)?;
    if direct::takes_reduction(team, len, element) {
        // SAFETY: the caller's promise.
        return unsafe { direct::allreduce(team, (from, to, len), element, combine) };
    }
    if let Some(steps) = exchange::steps(team, len) {
        // SAFETY: likewise.
        return unsafe { exchange::allreduce(team, &steps, (from, to, len), combine) };
    }
    if !offloads(team, Op::Allgather, len, element) {
        let call = Call::new(Op::Allreduce, 0, len);
        // SAFETY: the caller's promise.
        return unsafe { reduce(team, call, (from, to, len), element, combine) };
    }
    let (counts, offsets) = slices(len, element, team.size());
    // SAFETY: the caller's promise; the slice is inside.
    unsafe {
        let own = to.add(offsets[team.rank()]);
        scattered(team, (from, own), &counts, element, combine)?;
    }
    let division = Division::Slices(Parts {
        counts: &counts,
        offsets: &offsets,
    });
    allgather::run(team, None, recv, division)
}

/// Combines everybody's elements at `from`, which are divided among the ranks, and puts our part of
/// them to `to`.
///
/// # Safety
///
/// `from` has the bytes of all parts, and `to`, writable, those of ours; nobody else uses either
/// meanwhile.
pub(super) unsafe fn scattered(
    team: &mut Team,
    (from, to): (*const u8, *mut u8),
    counts: &[usize],
    element: usize,
    combine: Combine<'_>,
) -> Boxed<()> {
    let len = counts.iter().sum();
    if direct::takes(team, len) {
        // SAFETY: the caller's promise.
        return unsafe { direct::reduce_scatter(team, (from, to), counts, combine) };
    }
    let ends = counts.iter().scan(0, |end, count| {
        *end += count;
        Some(*end)
    });
    let starts: Vec<usize> = std::iter::once(0).chain(ends).collect();
    let lengths = Lengths::Starts(&starts);
    let planned = planned::plan(team, Operation::ReduceScatter, 0, lengths, element);
    // Chunks have as many bytes for each rank.
    let longest = counts
        .iter()
        .max()
        .map_or(0, |most| most.saturating_mul(team.size()));
    let called = (Operation::ReduceScatter, 0);
    let way = way_of(team, called, &planned, (longest.max(len), element));
    // SAFETY: the caller's promise.
    let done = unsafe {
        if way.is_chunked {
            chunked::reduce_scatter(team, &way, (from, to), &starts, element, combine)
        } else {
            planned::reduce_scatter(team, &planned, (from, to), &starts, element, combine)
        }
    };
    way.end(team);
    done
}

/// Combines our elements at `from` and those of the ranks before us in our memory at `to`; with
/// [`Op::Exscan`] without ours, and nothing on the first rank.
///
/// # Safety
///
/// As for [`to_root`].
pub(super) unsafe fn scan(
    team: &mut Team,
    op: Op,
    (from, to, len): (*const u8, *mut u8, usize),
    element: usize,
    combine: Combine<'_>,
) -> Boxed<()> {
    whole_elements(len, element)?;
    // SAFETY: the caller's promise.
    unsafe {
        if direct::takes_scan(team, len) {
            direct::scan(team, op, (from, to, len), combine)
        } else {
            planned::scan(team, op, (from, to, len), element, combine)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_whole() {
        assert!(whole_elements(10, 0).is_err());
        assert!(whole_elements(10, 4).is_err());
        assert!(whole_elements(12, 4).is_ok());
    }
}
