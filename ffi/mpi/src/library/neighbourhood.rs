// SPDX-License-Identifier: MIT OR Apache-2.0

//! How many ranks a communicator has, and the neighbours of a rank, by the topology of the
//! communicator (MPI 4.1, chapter 8).

use std::ffi::c_int;

use crate::library::abi::{Abi, Word};
use crate::library::pmpi;

/// How many ranks a communicator has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Members {
    pub is_inter: bool,
    /// Our own rank.
    pub rank: c_int,
    /// Ranks of our group.
    pub size: c_int,
    /// Ranks of the other group of an intercommunicator.
    pub remote: c_int,
}

impl Members {
    /// Asks the library; `None` if it does not accept the communicator.
    pub fn of(comm: Word) -> Option<Members> {
        let (mut inter, mut its) = (0, Members::default());
        // SAFETY: writable outputs; the library checks the communicator.
        unsafe {
            if pmpi::comm_test_inter(comm, &mut inter) != 0
                || pmpi::comm_rank(comm, &mut its.rank) != 0
                || pmpi::comm_size(comm, &mut its.size) != 0
            {
                return None;
            }
            its.is_inter = inter != 0;
            if its.is_inter {
                pmpi::comm_remote_size(comm, &mut its.remote);
            }
        }
        Some(its)
    }

    /// Those that a rank sends to and receives from.
    pub fn peers(&self) -> c_int {
        if self.is_inter {
            self.remote
        } else {
            self.size
        }
    }
}

/// The ranks in `MPI_COMM_WORLD` of a communicator's processes, `MPI_UNDEFINED` for those of other
/// worlds; `None` if the library does not say.
pub fn world_ranks(abi: &Abi, comm: Word, size: usize) -> Option<Vec<c_int>> {
    let length = c_int::try_from(size).ok()?;
    let (mut group, mut world) = (0, 0);
    let own: Vec<c_int> = (0..length).collect();
    let mut ranks = vec![-1; size];
    // SAFETY: a communicator; arrays of its size; words have room for either kind of handle.
    let answers = unsafe {
        let answers = [
            pmpi::comm_group(comm, &mut group),
            pmpi::comm_group(abi.world, &mut world),
            pmpi::group_translate_ranks(group, length, own.as_ptr(), world, ranks.as_mut_ptr()),
        ];
        pmpi::group_free(&mut group);
        pmpi::group_free(&mut world);
        answers
    };
    (answers == [0; 3]).then_some(ranks)
}

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
    pub fn are_single(&self, size: usize) -> bool {
        [&self.sources, &self.destinations].into_iter().all(|side| {
            let mut seen = vec![false; size];
            let mut real = side.iter().filter_map(|rank| usize::try_from(*rank).ok());
            real.all(|rank| rank < size && !std::mem::replace(&mut seen[rank], true))
        })
    }
}
