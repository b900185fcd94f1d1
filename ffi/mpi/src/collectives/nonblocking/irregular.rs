// SPDX-License-Identifier: MIT OR Apache-2.0

//! Nonblocking collectives whose parts differ in length, as [`crate::collectives::irregular`] and
//! [`crate::collectives::neighbours`] have the blocking ones. In place, alltoalls are forwarded.

use std::ffi::{c_int, c_void};

use libcopy::collective::nonblocking::table::Place;

use crate::collectives::intercept::Length;
use crate::collectives::neighbours;
use crate::collectives::nonblocking::calls::{About, Intercepted, decide_any};
use crate::collectives::nonblocking::operation::Own;
use crate::collectives::reductions::{Elements, numbers};
use crate::comm::communicator::Comm;
use crate::decide::active::{is_in_place, is_same};
use crate::library::abi::{Abi, Word};
use crate::library::buffers::{Address, Buffer, BufferV, BufferW, Received, Reduction, Sent};
use crate::library::count::Count;
use crate::library::neighbourhood::Neighbours;
use crate::library::stats::Outcome;
use crate::library::{errors, stats};
use crate::types::parts::Partition;

/// What a rank sends to each and receives from each.
struct Sides {
    sent: Partition,
    received: Partition,
    /// Our own part is where it belongs already.
    is_there: bool,
}

impl Sides {
    /// The larger of the largest parts.
    fn largest(&self) -> u64 {
        self.sent.largest().max(self.received.largest())
    }
}

/// Has parts sent and received; `sides` says which, if they are ours to move.
///
/// # Safety
///
/// The buffers have the elements of these.
unsafe fn exchange(
    about: About,
    (send, recv): (*const c_void, *mut c_void),
    datatype: Word,
    sides: impl FnOnce(&'static Abi, &Comm, usize) -> Option<Sides>,
) -> Option<c_int> {
    let what = (Length::Own, datatype);
    let (mut intercepted, sides) = decide_any(about, what, None, sides, Sides::largest)?;
    intercepted.moves = Some(sides.sent.total().max(sides.received.total()));
    let start = move |intercepted: &Intercepted, own: &mut Own| {
        let (abi, group) = (intercepted.abi, &intercepted.members.group);
        let Sides {
            sent,
            received,
            is_there,
        } = &sides;
        let keep = is_there.then_some(group.rank);
        // SAFETY: the caller's promise.
        unsafe {
            let received = own.receive_parts((abi, group), received, recv, keep)?;
            let sent = own.send_parts(group, sent, send)?;
            own.divide(sent, received);
        }
        Ok(!is_there)
    };
    Some(intercepted.start(None, start))
}

/// What a rank gives to the root or gets from it, what the root has for all, and whether our own
/// part is where it belongs.
///
/// # Safety
///
/// At the root, the arrays of `all` have one for each rank.
unsafe fn with_root<N: Count>(
    (abi, known, root): (&Abi, &Comm, usize),
    about: About,
    one: Buffer<impl Address, N>,
    all: BufferV<impl Address, N>,
) -> Option<(Partition, Partition, bool)> {
    let (me, size, address) = (known.rank, known.size, one.base.get());
    let is_there = me == root && is_in_place(address);
    let own = if is_there {
        Partition::empty(size)
    } else {
        let kind = about.kind(abi, one.datatype)?;
        Partition::of_one(size, root, kind, one.count.number()?)?
    };
    if me != root {
        return Some((own, Partition::empty(size), is_there));
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { Partition::uniform(abi, about.comm, size, all) }?;
    let part = (all.base.get(), me);
    let same = !is_there
        && one.datatype == all.datatype
        && parts.is_at(part, (address, one.count.number()));
    if same && errors::refuses(abi, about.function) {
        return None;
    }
    Some((own, parts, is_there || same))
}

/// `MPI_Igatherv`
pub unsafe fn gatherv<N: Count + 'static>(
    send: Sent<N>,
    recv: BufferV<*mut c_void, N>,
    about: About,
) -> Option<c_int> {
    let sides = |abi: &'static Abi, known: &Comm, root: usize| {
        // SAFETY: the caller's promise.
        let found = unsafe { with_root((abi, known, root), about, send, recv) };
        let (sent, received, is_there) = found?;
        Some(Sides {
            sent,
            received,
            is_there,
        })
    };
    // SAFETY: the caller's promise.
    unsafe { exchange(about, (send.base, recv.base), send.datatype, sides) }
}

/// `MPI_Iscatterv`
pub unsafe fn scatterv<N: Count + 'static>(
    send: BufferV<*const c_void, N>,
    recv: Received<N>,
    about: About,
) -> Option<c_int> {
    let sides = |abi: &'static Abi, known: &Comm, root: usize| {
        // SAFETY: the caller's promise.
        let found = unsafe { with_root((abi, known, root), about, recv, send) };
        let (received, sent, is_there) = found?;
        Some(Sides {
            sent,
            received,
            is_there,
        })
    };
    // SAFETY: the caller's promise.
    unsafe { exchange(about, (send.base, recv.base), recv.datatype, sides) }
}

/// `MPI_Iallgatherv`, whose ranks all know all lengths.
pub unsafe fn allgatherv<N: Count + 'static>(
    send: Sent<N>,
    recv: BufferV<*mut c_void, N>,
    about: About,
) -> Option<c_int> {
    // SAFETY: the caller's promise: there is one for each rank.
    let counts = unsafe { numbers(recv.counts, about.comm) };
    let largest = counts.and_then(|counts| counts.into_iter().max());
    let what = (Length::All(largest), recv.datatype);
    let kinds = |abi: &'static Abi, known: &Comm, _| {
        // SAFETY: likewise.
        let all = unsafe { Partition::uniform(abi, about.comm, known.size, recv) }?;
        if is_in_place(send.base) {
            return Some((None, all));
        }
        let kind = about.kind(abi, send.datatype)?;
        send.count.number()?;
        let same = send.datatype == recv.datatype
            && all.is_at((recv.base, known.rank), (send.base, send.count.number()));
        if same && errors::refuses(abi, about.function) {
            return None;
        }
        Some(((!same).then_some(kind), all))
    };
    let (mut intercepted, (own_kind, all)) = decide_any(about, what, None, kinds, |_| 0)?;
    // Ranks compare the lengths of the parts, not what they have in common.
    intercepted.shape.bytes = 0;
    intercepted.moves = Some(all.total());
    let start = move |intercepted: &Intercepted, own: &mut Own| {
        let (abi, group) = (intercepted.abi, &intercepted.members.group);
        let (me, size) = intercepted.place();
        let keep = own_kind.is_none().then_some(me);
        // SAFETY: the caller's promise.
        let received = unsafe { own.receive_parts((abi, group), &all, recv.base, keep)? };
        let part = match &own_kind {
            Some(kind) => {
                let count = send.count.elements();
                // SAFETY: the caller's promise.
                unsafe { intercepted.send(own, kind, send.base, count)? };
                Place {
                    at: 0,
                    len: (kind.size() * count) as u64,
                }
            }
            None => {
                own.send_from_received(0);
                received[me]
            }
        };
        own.divide(vec![part; size], received);
        Ok(own_kind.is_some())
    };
    Some(intercepted.start(None, start))
}

/// Counts an alltoall in place, which is forwarded: each part would have to be copied first.
fn is_forwarded(about: About, send: *const c_void) -> bool {
    let in_place = is_in_place(send);
    if in_place {
        stats::count(about.function, Outcome::Arguments, 0);
    }
    in_place
}

/// The sides of an alltoall, unless it is as if it were in place. A rank without any bytes may give
/// one address for both, as nobody looks there, and has to go the way of the others.
fn apart(
    (send, sent): (*const c_void, Partition),
    (recv, received): (*mut c_void, Partition),
) -> Option<Sides> {
    let in_place = sent.total() > 0 && is_same(send, recv) && sent.is_like(&received);
    (!in_place).then_some(Sides {
        sent,
        received,
        is_there: false,
    })
}

/// `MPI_Ialltoallv`
pub unsafe fn alltoallv<N: Count + 'static>(
    send: BufferV<*const c_void, N>,
    recv: BufferV<*mut c_void, N>,
    about: About,
) -> Option<c_int> {
    if is_forwarded(about, send.base) {
        return None;
    }
    let sides = |abi: &'static Abi, known: &Comm, _| {
        // SAFETY: the caller's promise: there is one of each per rank.
        let both = unsafe {
            let sent = Partition::uniform(abi, about.comm, known.size, send)?;
            (sent, Partition::uniform(abi, about.comm, known.size, recv)?)
        };
        apart((send.base, both.0), (recv.base, both.1))
    };
    // SAFETY: the caller's promise.
    unsafe { exchange(about, (send.base, recv.base), recv.datatype, sides) }
}

/// `MPI_Ialltoallw`
pub unsafe fn alltoallw<N: Count + 'static>(
    send: BufferW<*const c_void, N, N::Place>,
    recv: BufferW<*mut c_void, N, N::Place>,
    about: About,
) -> Option<c_int> {
    if is_forwarded(about, send.base) {
        return None;
    }
    let sides = |abi: &'static Abi, known: &Comm, _| {
        // SAFETY: the caller's promise: there is one of each per rank.
        let both = unsafe {
            let sent = Partition::varied(abi, about.comm, known.size, send)?;
            (sent, Partition::varied(abi, about.comm, known.size, recv)?)
        };
        apart((send.base, both.0), (recv.base, both.1))
    };
    // SAFETY: the caller's promise.
    unsafe { exchange(about, (send.base, recv.base), 0, sides) }
}

/// A nonblocking neighbourhood collective: `sides` says what is sent and received.
///
/// # Safety
///
/// As for [`exchange`].
unsafe fn between_neighbours(
    about: About,
    (send, recv): (*const c_void, *mut c_void),
    sides: impl FnOnce(&'static Abi, &Comm, &Neighbours) -> Option<(Partition, Partition)>,
) -> Option<c_int> {
    let sides = |abi: &'static Abi, known: &Comm, _| {
        let neighbours = known.neighbours.get()?.as_ref()?;
        let (sent, received) = sides(abi, known, neighbours)?;
        Some(Sides {
            sent,
            received,
            is_there: false,
        })
    };
    // SAFETY: the caller's promise.
    unsafe { exchange(about, (send, recv), 0, sides) }
}

/// `MPI_Ineighbor_allgather`
pub unsafe fn neighbor_allgather<N: Count + 'static>(
    send: Sent<N>,
    recv: Received<N>,
    about: About,
) -> Option<c_int> {
    let sides = neighbours::equal_sides((send, 0), recv, about.comm);
    // SAFETY: the caller's promise.
    unsafe { between_neighbours(about, (send.base, recv.base), sides) }
}

/// `MPI_Ineighbor_alltoall`
pub unsafe fn neighbor_alltoall<N: Count + 'static>(
    send: Sent<N>,
    recv: Received<N>,
    about: About,
) -> Option<c_int> {
    let sides = neighbours::equal_sides((send, 1), recv, about.comm);
    // SAFETY: the caller's promise.
    unsafe { between_neighbours(about, (send.base, recv.base), sides) }
}

/// `MPI_Ineighbor_allgatherv`
pub unsafe fn neighbor_allgatherv<N: Count + 'static>(
    send: Sent<N>,
    recv: BufferV<*mut c_void, N>,
    about: About,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let sides = unsafe { neighbours::gathered_sides(send, recv, about.comm) };
    // SAFETY: likewise.
    unsafe { between_neighbours(about, (send.base, recv.base), sides) }
}

/// `MPI_Ineighbor_alltoallv`
pub unsafe fn neighbor_alltoallv<N: Count + 'static>(
    send: BufferV<*const c_void, N>,
    recv: BufferV<*mut c_void, N>,
    about: About,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let sides = unsafe { neighbours::listed_sides(send, recv, about.comm) };
    // SAFETY: likewise.
    unsafe { between_neighbours(about, (send.base, recv.base), sides) }
}

/// `MPI_Ineighbor_alltoallw`
pub unsafe fn neighbor_alltoallw<N: Count + 'static>(
    send: BufferW<*const c_void, N, isize>,
    recv: BufferW<*mut c_void, N, isize>,
    about: About,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let sides = unsafe { neighbours::typed_sides(send, recv, about.comm) };
    // SAFETY: likewise.
    unsafe { between_neighbours(about, (send.base, recv.base), sides) }
}

/// `MPI_Ireduce_scatter`
pub unsafe fn reduce_scatter<N: Count + 'static>(
    reduction: Reduction<*const N>,
    about: About,
) -> Option<c_int> {
    // SAFETY: the caller's promise: there is one for each rank.
    let counts = unsafe { numbers(reduction.count, about.comm) };
    let total = counts.as_ref().and_then(|counts| {
        let mut counts = counts.iter();
        counts.try_fold(0usize, |sum, count| sum.checked_add(*count))
    });
    // SAFETY: the caller's promise.
    unsafe { scattered(reduction, total, |_| counts, about) }
}

/// `MPI_Ireduce_scatter_block`
pub unsafe fn reduce_scatter_block<N: Count + 'static>(
    reduction: Reduction<N>,
    about: About,
) -> Option<c_int> {
    let count = reduction.count.number();
    let counts = |size| Some(vec![count?; size]);
    // SAFETY: the caller's promise.
    unsafe { scattered(reduction, count, counts, about) }
}

/// Combines, and hands out slices of so many elements: `counts` says how many of that many ranks,
/// `count` what the thresholds are for.
///
/// # Safety
///
/// The buffers are what the MPI standard says.
unsafe fn scattered<C: Copy + 'static>(
    reduction: Reduction<C>,
    count: Option<usize>,
    counts: impl FnOnce(usize) -> Option<Vec<usize>>,
    about: About,
) -> Option<c_int> {
    let (what, op) = ((Length::All(count), reduction.datatype), Some(reduction.op));
    let kinds = |abi: &'static Abi, known: &Comm, _| {
        let elements = Elements::between(abi, about.function, (reduction, true), about.comm)?;
        let counts = counts(known.size)?;
        // Bytes of all slices are as many as there can be.
        let mut each = counts.iter();
        let total = each.try_fold(0usize, |sum, count| sum.checked_add(*count))?;
        let bytes = total.checked_mul(elements.0.size())?;
        Some((elements, counts, bytes))
    };
    let (mut intercepted, found) = decide_any(about, what, op, kinds, |_| 0)?;
    let ((elements, in_place), counts, bytes) = found;
    intercepted.shape.bytes = bytes;
    let kind = elements.kind().clone();
    let start = move |intercepted: &Intercepted, own: &mut Own| {
        let (me, size) = (intercepted.place().0, kind.size());
        let (recv, total) = (reduction.recv, counts.iter().sum());
        // SAFETY: the caller's promise.
        unsafe {
            if in_place {
                // Others read our elements there until the end.
                own.receive_behind(intercepted.abi, &kind, recv, counts[me])?;
                intercepted.send(own, &kind, recv, total)?;
            } else {
                intercepted.receive(own, &kind, (recv, counts[me]), None)?;
                intercepted.send(own, &kind, reduction.send, total)?;
            }
        }
        let starts = counts.iter().scan(0, |end, count| {
            *end += count * size;
            Some(*end - count * size)
        });
        let slices = starts.zip(&counts).map(|(at, count)| Place {
            at: at as u64,
            len: (count * size) as u64,
        });
        own.divide(Vec::new(), slices.collect());
        Ok(false)
    };
    Some(intercepted.start(Some(elements), start))
}
