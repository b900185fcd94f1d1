// SPDX-License-Identifier: MIT OR Apache-2.0

//! How often each function was taken or passed on, and why.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use libcopy::collective::Op;

use crate::abi;

/// The functions that we stand in front of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `MPI_Bcast`
    Bcast,
    /// `MPI_Gather`
    Gather,
    /// `MPI_Gatherv`
    Gatherv,
    /// `MPI_Scatter`
    Scatter,
    /// `MPI_Scatterv`
    Scatterv,
    /// `MPI_Allgather`
    Allgather,
    /// `MPI_Allgatherv`
    Allgatherv,
    /// `MPI_Alltoall`
    Alltoall,
    /// `MPI_Alltoallv`
    Alltoallv,
    /// `MPI_Alltoallw`
    Alltoallw,
    /// `MPI_Reduce`
    Reduce,
    /// `MPI_Allreduce`
    Allreduce,
    /// `MPI_Reduce_scatter`
    ReduceScatter,
    /// `MPI_Reduce_scatter_block`
    ReduceScatterBlock,
}

/// How many there are.
pub const FUNCTIONS: usize = TABLE.len();

const TABLE: [(Function, Op, &str); 14] = [
    (Function::Bcast, Op::Bcast, "MPI_Bcast"),
    (Function::Gather, Op::Gather, "MPI_Gather"),
    (Function::Gatherv, Op::Gather, "MPI_Gatherv"),
    (Function::Scatter, Op::Scatter, "MPI_Scatter"),
    (Function::Scatterv, Op::Scatter, "MPI_Scatterv"),
    (Function::Allgather, Op::Allgather, "MPI_Allgather"),
    (Function::Allgatherv, Op::Allgather, "MPI_Allgatherv"),
    (Function::Alltoall, Op::Alltoall, "MPI_Alltoall"),
    (Function::Alltoallv, Op::Alltoall, "MPI_Alltoallv"),
    (Function::Alltoallw, Op::Alltoall, "MPI_Alltoallw"),
    (Function::Reduce, Op::Reduce, "MPI_Reduce"),
    (Function::Allreduce, Op::Allreduce, "MPI_Allreduce"),
    (
        Function::ReduceScatter,
        Op::ReduceScatter,
        "MPI_Reduce_scatter",
    ),
    (
        Function::ReduceScatterBlock,
        Op::ReduceScatter,
        "MPI_Reduce_scatter_block",
    ),
];

impl Function {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Function> {
        TABLE.iter().map(|(function, _, _)| *function)
    }

    /// The library's operation.
    pub fn op(self) -> Op {
        TABLE[self as usize].1
    }

    /// Its name in C.
    pub fn name(self) -> &'static str {
        TABLE[self as usize].2
    }
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// libcopy did it.
    Taken,
    /// The message is one that the MPI library moves as fast.
    Small,
    /// The communicator spans several machines, is an intercommunicator, or has one rank.
    Communicator,
    /// The arguments are not ours to judge: the MPI library says what is wrong with them. Or the
    /// operation or datatype of a reduction is the user's own.
    Arguments,
    /// No team could be made of the ranks, or it has no way that pays.
    NoTeam,
    /// `LIBCOPY_DISABLE` is set, or the MPI library is an unknown one.
    Disabled,
}

const FATES: [(Fate, &str); 6] = [
    (Fate::Taken, "taken"),
    (Fate::Small, "small"),
    (Fate::Communicator, "communicator"),
    (Fate::Arguments, "arguments"),
    (Fate::NoTeam, "no team"),
    (Fate::Disabled, "disabled"),
];

static COUNTS: [[AtomicU64; FATES.len()]; FUNCTIONS] =
    [const { [const { AtomicU64::new(0) }; FATES.len()] }; FUNCTIONS];
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Whether anybody will ask; counting costs small messages as much as deciding about them.
pub fn wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| abi::is_set(c"LIBCOPY_STATS"))
}

/// Counts a call; `bytes` is what this rank sent or received, for calls that were taken.
#[inline]
pub fn count(function: Function, fate: Fate, bytes: u64) {
    if wanted() {
        COUNTS[function as usize][fate as usize].fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The table, a line per function that was called.
pub fn report(library: &str) -> String {
    let mut text = format!(
        "libcopy_mpi: {library}, {} bytes taken\nlibcopy_mpi: {:<24}",
        BYTES.load(Ordering::Relaxed),
        "function"
    );
    for (_, name) in FATES {
        let _ = write!(text, " {name:>12}");
    }
    for ((_, _, name), counts) in TABLE.iter().zip(&COUNTS) {
        let counts: Vec<u64> = counts.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        if counts.iter().any(|n| *n != 0) {
            let _ = write!(text, "\nlibcopy_mpi: {name:<24}");
            for n in counts {
                let _ = write!(text, " {n:>12}");
            }
        }
    }
    text
}
