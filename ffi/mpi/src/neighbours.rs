// SPDX-License-Identifier: MIT OR Apache-2.0

//! Neighbourhood collectives (MPI 4.1, section 8.7): a communicator's neighbours, and alltoalls
//! between them as alltoalls between all, with nothing for the others.
//!
//! A rank that is a neighbour twice gets two parts, and libraries differ in which is which: a
//! communicator in which any rank has such neighbours is passed on.

use std::ffi::{c_int, c_void};

use crate::abi::{Abi, Word};
use crate::buffer::Kind;
use crate::call::{Call, Knows, active, take_irregular};
use crate::count::Count;
use crate::governor::Span;
use crate::group::{self, Comm};
use crate::irregular::exchange;
use crate::pmpi::{self, forward};
use crate::sides::Side;
use crate::stats::{self, Fate, Function};

/// A rank's neighbours; negative numbers are `MPI_PROC_NULL`.
#[derive(Debug)]
pub struct Neighbours {
    /// Those that it receives from.
    pub sources: Vec<c_int>,
    /// Those that it sends to.
    pub destinations: Vec<c_int>,
}

impl Neighbours {
    /// Asks the library; `None` if the communicator has no topology.
    pub fn of(abi: &Abi, comm: Word) -> Option<Neighbours> {
        let mut kind = 0;
        // SAFETY: a writable output; the library checks the communicator.
        if unsafe { pmpi::topo_test(comm, &mut kind) } != 0 {
            return None;
        }
        match kind {
            kind if kind == abi.topologies[0] => Neighbours::of_grid(comm),
            kind if kind == abi.topologies[1] => Neighbours::of_graph(comm),
            kind if kind == abi.topologies[2] => Neighbours::of_directed_graph(comm),
            _ => None,
        }
    }

    fn of_grid(comm: Word) -> Option<Neighbours> {
        let mut dimensions = 0;
        // SAFETY: a writable output.
        if unsafe { pmpi::cartdim_get(comm, &mut dimensions) } != 0 {
            return None;
        }
        let mut all = Vec::new();
        for dimension in 0..dimensions {
            let (mut before, mut after) = (0, 0);
            // SAFETY: writable outputs.
            if unsafe { pmpi::cart_shift(comm, dimension, 1, &mut before, &mut after) } != 0 {
                return None;
            }
            all.extend([before, after]);
        }
        Some(Neighbours {
            sources: all.clone(),
            destinations: all,
        })
    }

    fn of_graph(comm: Word) -> Option<Neighbours> {
        let (mut rank, mut count) = (0, 0);
        // SAFETY: writable outputs, and room for as many neighbours as there are.
        let all = unsafe {
            let answers = [
                pmpi::comm_rank(comm, &mut rank),
                pmpi::graph_neighbors_count(comm, rank, &mut count),
            ];
            let mut all = vec![0; usize::try_from(count).ok()?];
            let answer = pmpi::graph_neighbors(comm, rank, count, all.as_mut_ptr());
            (answers == [0; 2] && answer == 0).then_some(all)?
        };
        Some(Neighbours {
            sources: all.clone(),
            destinations: all,
        })
    }

    fn of_directed_graph(comm: Word) -> Option<Neighbours> {
        let (mut n_in, mut n_out, mut weighted) = (0, 0, 0);
        // SAFETY: writable outputs, and room for as many neighbours, with weights, as there are.
        unsafe {
            let answer =
                pmpi::dist_graph_neighbors_count(comm, &mut n_in, &mut n_out, &mut weighted);
            if answer != 0 {
                return None;
            }
            let room = |n: c_int| Some(vec![0; usize::try_from(n).ok()?.max(1)]);
            let (mut sources, mut destinations) = (room(n_in)?, room(n_out)?);
            let (mut weights_in, mut weights_out) = (room(n_in)?, room(n_out)?);
            let answer = pmpi::dist_graph_neighbors(
                comm,
                n_in,
                sources.as_mut_ptr(),
                weights_in.as_mut_ptr(),
                n_out,
                destinations.as_mut_ptr(),
                weights_out.as_mut_ptr(),
            );
            sources.truncate(n_in as usize);
            destinations.truncate(n_out as usize);
            (answer == 0).then_some(Neighbours {
                sources,
                destinations,
            })
        }
    }

    /// Whether each neighbour is one of `size` ranks, and is there once.
    fn are_single(&self, size: usize) -> bool {
        [&self.sources, &self.destinations].into_iter().all(|side| {
            let mut seen = vec![false; size];
            let mut real = side.iter().filter_map(|rank| usize::try_from(*rank).ok());
            real.all(|rank| rank < size && !std::mem::replace(&mut seen[rank], true))
        })
    }
}

impl Comm {
    /// Its neighbours, if neighbourhood collectives may be taken on it; collective the first time.
    fn neighbours(&self, abi: &Abi, comm: Word) -> Option<&Neighbours> {
        let ask = || {
            if !self.is_plain() {
                return None;
            }
            let found = Neighbours::of(abi, comm).filter(|found| found.are_single(self.size));
            let fine = [u8::from(found.is_some())];
            let mut all = vec![0u8; self.size];
            // SAFETY: all ranks are here; one byte from each.
            let answer = unsafe {
                let recv = all.as_mut_ptr().cast();
                pmpi::allgather(fine.as_ptr().cast(), 1, abi.byte, recv, 1, abi.byte, comm)
            };
            found.filter(|_| answer == 0 && all.iter().all(|fine| *fine == 1))
        };
        self.neighbours.get_or_init(ask).as_ref()
    }
}

/// Decides whether a call is taken: `sides` makes both sides' parts.
fn take(
    function: Function,
    comm: Word,
    sides: impl FnOnce(&'static Abi, &Comm, &Neighbours) -> Option<(Side, Side)>,
) -> Option<(Call, Side, Side)> {
    let known = active().map(|abi| (abi, group::of(abi, comm)));
    if let Some((abi, Ok(known))) = &known {
        if known.neighbours(abi, comm).is_none() {
            stats::count(function, Fate::Communicator, 0);
            return None;
        }
    }
    let mut both = None;
    let call = take_irregular(function, comm, Knows::Each, |abi, known| {
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
    (call, from, to): (Call, Side, Side),
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
) -> Option<Side> {
    if neighbours.iter().all(|rank| *rank < 0) {
        return Side::of_some(known.size, &[], |_| None);
    }
    let kind = Kind::of(abi, datatype, comm)?;
    Side::of_some(known.size, neighbours, |index| {
        let (count, place) = part(index)?;
        Some((Some(kind.clone()), count, place.checked_mul(kind.extent())?))
    })
}

/// `MPI_Neighbor_alltoall`
///
/// # Safety
///
/// As the MPI standard says, for this and all functions below.
#[allow(clippy::too_many_arguments)]
#[inline(never)]
pub unsafe fn neighbor_alltoall<N: Count>(
    send: *const c_void,
    send_count: N,
    send_type: Word,
    recv: *mut c_void,
    recv_count: N,
    recv_type: Word,
    comm: Word,
) -> c_int {
    let _span = Span;
    let function = Function::NeighborAlltoall;
    let taken = take(function, comm, |abi, known, neighbours| {
        let side = |ranks: &[c_int], count: N, datatype| {
            let count = count.number()?;
            let place = |i: usize| isize::try_from(count).ok()?.checked_mul(i as isize);
            uniform(abi, comm, known, ranks, datatype, |i| {
                Some((count, place(i)?))
            })
        };
        let from = side(&neighbours.destinations, send_count, send_type)?;
        Some((from, side(&neighbours.sources, recv_count, recv_type)?))
    });
    // SAFETY: the caller's promise.
    unsafe {
        match taken {
            Some(taken) => run(taken, send, recv),
            None => forward::neighbor_alltoall(
                send, send_count, send_type, recv, recv_count, recv_type, comm,
            ),
        }
    }
}

/// `MPI_Neighbor_alltoallv`
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
#[inline(never)]
pub unsafe fn neighbor_alltoallv<N: Count>(
    send: *const c_void,
    send_counts: *const N,
    send_places: *const N::Place,
    send_type: Word,
    recv: *mut c_void,
    recv_counts: *const N,
    recv_places: *const N::Place,
    recv_type: Word,
    comm: Word,
) -> c_int {
    let _span = Span;
    let function = Function::NeighborAlltoallv;
    let taken = take(function, comm, |abi, known, neighbours| {
        let side = |ranks: &[c_int], counts: *const N, places: *const N::Place, datatype| {
            uniform(abi, comm, known, ranks, datatype, |i| {
                // SAFETY: the caller's promise: there is one of each per neighbour.
                let (count, place) = unsafe { (counts.add(i).read(), places.add(i).read()) };
                Some((count.number()?, N::place(place)))
            })
        };
        let (to, from) = (&neighbours.destinations, &neighbours.sources);
        let sent = side(to, send_counts, send_places, send_type)?;
        Some((sent, side(from, recv_counts, recv_places, recv_type)?))
    });
    // SAFETY: the caller's promise.
    unsafe {
        match taken {
            Some(taken) => run(taken, send, recv),
            None => forward::neighbor_alltoallv(
                send,
                send_counts,
                send_places,
                send_type,
                recv,
                recv_counts,
                recv_places,
                recv_type,
                comm,
            ),
        }
    }
}

/// `MPI_Neighbor_alltoallw`, whose places are bytes, and as wide in both forms.
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
#[inline(never)]
pub unsafe fn neighbor_alltoallw<N: Count>(
    send: *const c_void,
    send_counts: *const N,
    send_places: *const isize,
    send_types: *const c_void,
    recv: *mut c_void,
    recv_counts: *const N,
    recv_places: *const isize,
    recv_types: *const c_void,
    comm: Word,
) -> c_int {
    let _span = Span;
    let function = Function::NeighborAlltoallw;
    let taken = take(function, comm, |abi, known, neighbours| {
        let side = |ranks: &[c_int], counts: *const N, places: *const isize, types| {
            Side::of_some(known.size, ranks, |i| {
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
        let sent = side(to, send_counts, send_places, send_types)?;
        Some((sent, side(from, recv_counts, recv_places, recv_types)?))
    });
    // SAFETY: the caller's promise.
    unsafe {
        match taken {
            Some(taken) => run(taken, send, recv),
            None => forward::neighbor_alltoallw(
                send,
                send_counts,
                send_places.cast(),
                send_types,
                recv,
                recv_counts,
                recv_places.cast(),
                recv_types,
                comm,
            ),
        }
    }
}
