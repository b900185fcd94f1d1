// SPDX-License-Identifier: MIT OR Apache-2.0

//! From which size on libcopy is faster than an MPI library, as measured.

use std::ops::RangeInclusive;

use libcopy::collective::Op;
use libcopy::policy::Oversubscription;

/// An MPI library, and those made from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpiImplementation {
    /// Open MPI.
    OpenMpi,
    /// MPICH, Intel MPI, MVAPICH.
    Mpich,
}

impl MpiImplementation {
    /// Whether libcopy is faster than this MPI library with messages of `bytes` bytes per rank
    /// (for reductions, the bytes that each rank contributes) inside a machine, as far as
    /// `scripts/bench mpi` found. The same on every rank of every machine, because all ranks of a
    /// communicator must decide alike.
    pub fn is_beaten(self, op: Op, bytes: u64, oversubscription: Oversubscription) -> bool {
        self.beaten_range(op, oversubscription)
            .is_some_and(|bytes_won| bytes_won.contains(&bytes))
    }

    /// Whether libcopy is faster with a reduction whose calls all have to go one way, so that no
    /// trial mends a wrong choice: only what is faster on each processor that it was measured on.
    pub fn is_beaten_in_fixed_order(
        self,
        op: Op,
        bytes: u64,
        oversubscription: Oversubscription,
    ) -> bool {
        is_clear(bytes, oversubscription != Oversubscription::None)
            && self.is_beaten(op, bytes, oversubscription)
    }

    /// Whether libcopy is faster with a reduction that returns at once, and whose calls all have to
    /// go one way.
    pub fn is_beaten_nonblocking_in_fixed_order(
        self,
        op: Op,
        bytes: u64,
        is_oversubscribed: bool,
    ) -> bool {
        is_clear(bytes, is_oversubscribed)
            && self.is_beaten_nonblocking(op, bytes, is_oversubscribed)
    }

    /// The smallest message for which [`MpiImplementation::is_beaten`] may hold, however ranks and
    /// processors go together; `None` if it never does.
    pub fn least(self, op: Op) -> Option<u64> {
        let ranges =
            Oversubscription::ALL.map(|oversubscription| self.beaten_range(op, oversubscription));
        ranges
            .into_iter()
            .flatten()
            .map(|bytes| *bytes.start())
            .min()
    }

    /// Whether libcopy is faster with a collective that returns at once, in which the rank that
    /// waits does the work.
    pub fn is_beaten_nonblocking(self, op: Op, bytes: u64, is_oversubscribed: bool) -> bool {
        self.nonblocking(op, is_oversubscribed)
            .is_some_and(|least| bytes >= least)
    }

    /// The smallest message for which [`MpiImplementation::is_beaten_nonblocking`] may hold,
    /// whether ranks outnumber processors or not; `None` if it never does.
    pub fn least_nonblocking(self, op: Op) -> Option<u64> {
        let each = [false, true].map(|is_oversubscribed| self.nonblocking(op, is_oversubscribed));
        each.into_iter().flatten().min()
    }

    fn nonblocking(self, op: Op, is_oversubscribed: bool) -> Option<u64> {
        let least = match (op, is_oversubscribed) {
            (Op::Allgather, _) | (Op::Reduce | Op::Allreduce, true) => 64 << 10,
            // Slices change hands between the caches, which at 1 MiB costs more than it saves.
            (Op::Reduce | Op::Allreduce, false) => 4 << 20,
            (Op::Gather, _) | (Op::Scatter, false) => 256 << 10,
            // A request of our own costs more than a short message saves.
            (Op::Bcast, false) => 1 << 20,
            // MPICH polls, which hurts it wherever ranks share a processor.
            (Op::Bcast | Op::Scatter | Op::Alltoall, true) => match self {
                MpiImplementation::Mpich => 256 << 10,
                MpiImplementation::OpenMpi if op == Op::Bcast => 4 << 20,
                MpiImplementation::OpenMpi => 1 << 20,
            },
            (Op::Alltoall, false) | (Op::Control | Op::Barrier | Op::ReduceScatter, _) => {
                return None;
            }
        };
        Some(least)
    }

    fn beaten_range(
        self,
        op: Op,
        oversubscription: Oversubscription,
    ) -> Option<RangeInclusive<u64>> {
        let (least, most) = match (op, oversubscription) {
            (Op::Gather | Op::ReduceScatter, _)
            | (
                Op::Bcast | Op::Alltoall | Op::Scatter | Op::Allgather | Op::Allreduce,
                Oversubscription::None,
            ) => (64 << 10, u64::MAX),
            // Where leaves wait for one root, context switches count until the bytes do.
            (Op::Scatter, _) => (512 << 10, u64::MAX),
            (Op::Allgather, oversubscription) => match (self, oversubscription) {
                (MpiImplementation::Mpich, _) => (64 << 10, 1 << 20),
                // The more ranks, the more switches; Open MPI's ring has few of them.
                (MpiImplementation::OpenMpi, Oversubscription::Heavy) => return None,
                (MpiImplementation::OpenMpi, _) => (256 << 10, 1 << 20),
            },
            // MPICH polls, which hurts it wherever ranks share a processor.
            (Op::Bcast | Op::Alltoall | Op::Allreduce, oversubscription) => {
                match (self, op) {
                    (MpiImplementation::Mpich, _) => (64 << 10, u64::MAX),
                    // As measured: with two ranks per processor its tree needs fewer context
                    // switches.
                    (MpiImplementation::OpenMpi, Op::Bcast)
                        if oversubscription == Oversubscription::Heavy =>
                    {
                        (256 << 10, u64::MAX)
                    }
                    (MpiImplementation::OpenMpi, Op::Bcast) => (512 << 10, u64::MAX),
                    (MpiImplementation::OpenMpi, Op::Allreduce)
                        if oversubscription == Oversubscription::Heavy =>
                    {
                        (2 << 20, u64::MAX)
                    }
                    (MpiImplementation::OpenMpi, Op::Allreduce) => (1 << 20, u64::MAX),
                    // Everybody copies its own parts in either, and there nobody waits to be told.
                    (MpiImplementation::OpenMpi, _) => return None,
                }
            }
            // Open MPI's root fetches and combines while the leaves go on, which averages well as
            // long as few ranks wait for it.
            (Op::Reduce, oversubscription) => match (self, oversubscription) {
                (MpiImplementation::OpenMpi, Oversubscription::None) => return None,
                (MpiImplementation::OpenMpi, _) => (1 << 20, u64::MAX),
                (MpiImplementation::Mpich, _) => (64 << 10, u64::MAX),
            },
            (Op::Control | Op::Barrier, _) => return None,
        };
        Some(least..=most)
    }
}

/// Whether processors agree about reductions of `bytes` bytes. Where each rank has one, an
/// allreduce of this length or more gains on one processor and loses on another (Zen 4 and Zen 3);
/// where ranks share them, context switches decide.
fn is_clear(bytes: u64, is_oversubscribed: bool) -> bool {
    const MOST: u64 = 1 << 20;
    is_oversubscribed || bytes < MOST
}

/// [`MpiImplementation::is_beaten`] for either library, where the ranks are on several machines,
/// and the MPI library goes on moving the bytes between these: as far as `scripts/mpi-nodes` with
/// `tests/peers/mpi_coll.c` found, whose network is no slower than memory, so that only what is
/// copied inside the nodes counts.
pub fn is_beaten_across(op: Op, bytes: u64) -> bool {
    let least = match op {
        Op::Bcast | Op::Gather => 4 << 20,
        Op::Allgather | Op::Reduce => 1 << 20,
        _ => return false,
    };
    bytes >= least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_taken_by_any_oversubscription_is_found_first() {
        for implementation in [MpiImplementation::OpenMpi, MpiImplementation::Mpich] {
            for op in Op::ALL {
                for oversubscription in Oversubscription::ALL {
                    for bytes in (10..30).map(|shift| 1u64 << shift) {
                        if implementation.is_beaten(op, bytes, oversubscription) {
                            let least = implementation.least(op);
                            assert!(least.is_some_and(|least| least <= bytes), "{op}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn long_reductions_in_a_fixed_order_are_taken_where_ranks_share_processors() {
        let taken = |bytes, oversubscription| {
            let library = MpiImplementation::Mpich;
            library.is_beaten_in_fixed_order(Op::Allreduce, bytes, oversubscription)
        };
        assert!(taken(64 << 10, Oversubscription::None));
        assert!(!taken(1 << 20, Oversubscription::None));
        assert!(taken(1 << 20, Oversubscription::Moderate));
    }
}
