// SPDX-License-Identifier: MIT OR Apache-2.0

//! Neighbourhood collectives (MPI 4.1, section 8.7): a communicator's neighbours, and alltoalls
//! between them as alltoalls between all, with nothing for the others. In an allgather a rank has
//! the same for each neighbour.
//!
//! Each function gives the call's code, or `None` where the call is to be forwarded.
//!
//! A rank that is a neighbour twice gets two parts, and libraries differ in which is which: a
//! communicator in which any rank has such neighbours is forwarded.

use std::ffi::{c_int, c_void};

use crate::bootstrap::own_collectives::allgather;
use crate::collectives::intercept::{Call, Knows, intercept_vector};
use crate::collectives::irregular::exchange;
use crate::comm::communicator;
use crate::comm::communicator::Comm;
use crate::decide::active::active;
use crate::library::abi::{Abi, Word};
use crate::library::buffers::{BufferV, BufferW, Received, Sent};
use crate::library::count::Count;
use crate::library::neighbourhood::Neighbours;
use crate::library::stats;
use crate::library::stats::{Function, Outcome};
use crate::types::buffer::Kind;
use crate::types::parts::Partition;

impl Comm {
    /// Its neighbours, if neighbourhood collectives may be intercepted on it; collective the first
    /// time.
    pub fn neighbours(&self, abi: &Abi, comm: Word) -> Option<&Neighbours> {
        let ask = || {
            if !self.is_plain() {
                return None;
            }
            let found = Neighbours::of(abi, comm).filter(|found| found.are_single(self.size));
            let all = allgather(abi, comm, u8::from(found.is_some()), self.size);
            found.filter(|_| all.is_some_and(|all| all.iter().all(|fine| *fine == 1)))
        };
        self.neighbours.get_or_init(ask).as_ref()
    }
}

/// Makes what a call sends, and what it receives.
pub trait Sides:
    FnOnce(&'static Abi, &Comm, &Neighbours) -> Option<(Partition, Partition)>
{
}

impl<F> Sides for F where
    F: FnOnce(&'static Abi, &Comm, &Neighbours) -> Option<(Partition, Partition)>
{
}

/// Decides whether a call is intercepted.
fn intercept(
    function: Function,
    comm: Word,
    sides: impl Sides,
) -> Option<(Call, Partition, Partition)> {
    let known = active().map(|abi| (abi, communicator::of(abi, comm)));
    if let Some((abi, Ok(known))) = &known {
        if known.neighbours(abi, comm).is_none() {
            let why = known.admits().err().unwrap_or(Outcome::Topology);
            stats::count(function, why, 0);
            return None;
        }
    }
    let mut both = None;
    let call = intercept_vector(function, comm, Knows::Each, |abi, known| {
        let neighbours = known.neighbours(abi, comm)?;
        let (from, to) = both.insert(sides(abi, known, neighbours)?);
        Some(from.largest().max(to.largest()))
    })?;
    let (from, to) = both?;
    Some((call, from, to))
}

/// Does it.
///
/// # Safety
///
/// The buffers are what the MPI standard says.
unsafe fn run(
    (call, from, to): (Call, Partition, Partition),
    send: *const c_void,
    recv: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { exchange(call, (send, Some(from)), (recv, to)) }
}

/// Parts of one datatype, at these places in its extents.
fn uniform(
    abi: &Abi,
    comm: Word,
    known: &Comm,
    neighbours: &[c_int],
    datatype: Word,
    part: impl Fn(usize) -> Option<(usize, isize)>,
) -> Option<Partition> {
    if neighbours.iter().all(|rank| *rank < 0) {
        return Partition::of_some(known.size, &[], |_| None);
    }
    let kind = Kind::of(abi, datatype, comm)?;
    Partition::of_some(known.size, neighbours, |index| {
        let (count, place) = part(index)?;
        Some((Some(kind.clone()), count, place.checked_mul(kind.extent())?))
    })
}

/// `MPI_Neighbor_alltoall`
///
/// # Safety
///
/// As the MPI standard says, for this and all functions below.
pub unsafe fn neighbor_alltoall<N: Count>(
    send: Sent<N>,
    recv: Received<N>,
    comm: Word,
) -> Option<c_int> {
    let intercepted = intercept(
        Function::NeighborAlltoall,
        comm,
        equal_sides((send, 1), recv, comm),
    )?;
    // SAFETY: the caller's promise.
    Some(unsafe { run(intercepted, send.base, recv.base) })
}

/// `MPI_Neighbor_allgather`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn neighbor_allgather<N: Count>(
    send: Sent<N>,
    recv: Received<N>,
    comm: Word,
) -> Option<c_int> {
    let intercepted = intercept(
        Function::NeighborAllgather,
        comm,
        equal_sides((send, 0), recv, comm),
    )?;
    // SAFETY: the caller's promise.
    Some(unsafe { run(intercepted, send.base, recv.base) })
}

/// Parts for all neighbours that are as long; what is sent to one starts `step` parts behind what
/// is sent to the one before.
pub fn equal_sides<N: Count>(
    (send, step): (Sent<N>, isize),
    recv: Received<N>,
    comm: Word,
) -> impl Sides {
    move |abi: &'static Abi, known: &Comm, neighbours: &Neighbours| {
        let partition = |ranks: &[c_int], (count, step): (N, isize), datatype| {
            let count = count.number()?;
            let each = isize::try_from(count).ok()?.checked_mul(step)?;
            uniform(abi, comm, known, ranks, datatype, |i| {
                Some((count, each.checked_mul(i as isize)?))
            })
        };
        let (to, from) = (&neighbours.destinations, &neighbours.sources);
        let sent = partition(to, (send.count, step), send.datatype)?;
        Some((sent, partition(from, (recv.count, 1), recv.datatype)?))
    }
}

/// `MPI_Neighbor_allgatherv`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn neighbor_allgatherv<N: Count>(
    send: Sent<N>,
    recv: BufferV<*mut c_void, N>,
    comm: Word,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let sides = unsafe { gathered_sides(send, recv, comm) };
    let intercepted = intercept(Function::NeighborAllgatherv, comm, sides)?;
    // SAFETY: likewise.
    Some(unsafe { run(intercepted, send.base, recv.base) })
}

/// The same elements for each neighbour, and parts with a count and a place from each.
///
/// # Safety
///
/// There is one of each per neighbour when the sides are made.
pub unsafe fn gathered_sides<N: Count>(
    send: Sent<N>,
    recv: BufferV<*mut c_void, N>,
    comm: Word,
) -> impl Sides {
    move |abi: &'static Abi, known: &Comm, neighbours: &Neighbours| {
        let count = send.count.number()?;
        let to = &neighbours.destinations;
        let sent = uniform(abi, comm, known, to, send.datatype, |_| Some((count, 0)))?;
        // SAFETY: the caller's promise.
        let received = unsafe { listed(abi, comm, known, &neighbours.sources, recv) }?;
        Some((sent, received))
    }
}

/// Parts with a count and a place for each neighbour.
///
/// # Safety
///
/// There is one of each per neighbour.
unsafe fn listed<B, N: Count>(
    abi: &Abi,
    comm: Word,
    known: &Comm,
    neighbours: &[c_int],
    buffer: BufferV<B, N>,
) -> Option<Partition> {
    uniform(abi, comm, known, neighbours, buffer.datatype, |i| {
        // SAFETY: the caller's promise.
        let (count, place) = unsafe { (buffer.counts.add(i).read(), buffer.places.add(i).read()) };
        Some((count.number()?, N::place(place)))
    })
}

/// `MPI_Neighbor_alltoallv`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn neighbor_alltoallv<N: Count>(
    send: BufferV<*const c_void, N>,
    recv: BufferV<*mut c_void, N>,
    comm: Word,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let sides = unsafe { listed_sides(send, recv, comm) };
    let intercepted = intercept(Function::NeighborAlltoallv, comm, sides)?;
    // SAFETY: likewise.
    Some(unsafe { run(intercepted, send.base, recv.base) })
}

/// Parts with a count and a place for each neighbour, and from each.
///
/// # Safety
///
/// As for [`gathered_sides`].
pub unsafe fn listed_sides<N: Count>(
    send: BufferV<*const c_void, N>,
    recv: BufferV<*mut c_void, N>,
    comm: Word,
) -> impl Sides {
    move |abi: &'static Abi, known: &Comm, neighbours: &Neighbours| {
        let (to, from) = (&neighbours.destinations, &neighbours.sources);
        // SAFETY: the caller's promise.
        unsafe {
            let sent = listed(abi, comm, known, to, send)?;
            Some((sent, listed(abi, comm, known, from, recv)?))
        }
    }
}

/// `MPI_Neighbor_alltoallw`, whose places are bytes, and as wide in both forms.
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn neighbor_alltoallw<N: Count>(
    send: BufferW<*const c_void, N, isize>,
    recv: BufferW<*mut c_void, N, isize>,
    comm: Word,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let sides = unsafe { typed_sides(send, recv, comm) };
    let intercepted = intercept(Function::NeighborAlltoallw, comm, sides)?;
    // SAFETY: likewise.
    Some(unsafe { run(intercepted, send.base, recv.base) })
}

/// Parts with a count, a place and a datatype for each neighbour, and from each.
///
/// # Safety
///
/// As for [`gathered_sides`].
pub unsafe fn typed_sides<N: Count>(
    send: BufferW<*const c_void, N, isize>,
    recv: BufferW<*mut c_void, N, isize>,
    comm: Word,
) -> impl Sides {
    move |abi: &'static Abi, known: &Comm, neighbours: &Neighbours| {
        let partition = |ranks: &[c_int], counts: *const N, places: *const isize, types| {
            Partition::of_some(known.size, ranks, |i| {
                // SAFETY: the caller's promise: there is one of each per neighbour.
                let (count, place, datatype) = unsafe {
                    let datatype = abi.handle_at(types, i);
                    (counts.add(i).read(), places.add(i).read(), datatype)
                };
                match count.number()? {
                    // Whatever its type is.
                    0 => Some((None, 0, 0)),
                    count => Some((Some(Kind::of(abi, datatype, comm)?), count, place)),
                }
            })
        };
        let (to, from) = (&neighbours.destinations, &neighbours.sources);
        let sent = partition(to, send.counts, send.places, send.types)?;
        Some((sent, partition(from, recv.counts, recv.places, recv.types)?))
    }
}
