// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs that know nothing of libcopy, run by Open MPI and by MPICH, with and without it.

// Other tests use other parts of it.
#[allow(dead_code)]
#[path = "../common/mod.rs"]
mod common;

/// A program of this directory.
macro_rules! source {
    ($name:literal) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/", $name)
    };
}

mod collectives;
mod compiled;
mod exports;
mod failures;
mod fortran;
mod governor;
mod messages;
mod reports;
mod table;
mod tools;
mod types;

use std::path::Path;

use common::intercepted;

/// The same of these functions, all ranks together.
fn taken_of(report: &str, functions: &[&'static str]) -> Vec<(&'static str, u64)> {
    let intercepted = intercepted(report);
    let count = |function: &&'static str| {
        let lines = intercepted.iter().filter(|(called, _)| called == function);
        (*function, lines.map(|(_, count)| count).sum())
    };
    functions.iter().map(count).collect()
}

/// What packs and unpacks.
const PACKING_FUNCTIONS: [&str; 4] = [
    "MPI_Pack",
    "MPI_Unpack",
    "MPI_Pack_external",
    "MPI_Unpack_external",
];

/// What must be intercepted sooner or later: a pass by forwarding does not count.
const FUNCTIONS: [&str; 16] = [
    "MPI_Bcast",
    "MPI_Gather",
    "MPI_Gatherv",
    "MPI_Scatter",
    "MPI_Scatterv",
    "MPI_Allgather",
    "MPI_Allgatherv",
    "MPI_Alltoall",
    "MPI_Alltoallv",
    "MPI_Alltoallw",
    "MPI_Reduce",
    "MPI_Allreduce",
    "MPI_Reduce_scatter",
    "MPI_Reduce_scatter_block",
    "MPI_Scan",
    "MPI_Exscan",
];

const PERSISTENT_FUNCTIONS: [&str; 7] = [
    "MPI_Bcast_init",
    "MPI_Gather_init",
    "MPI_Scatter_init",
    "MPI_Allgather_init",
    "MPI_Alltoall_init",
    "MPI_Reduce_init",
    "MPI_Allreduce_init",
];

const NONBLOCKING_FUNCTIONS: [&str; 21] = [
    "MPI_Ibcast",
    "MPI_Igather",
    "MPI_Igatherv",
    "MPI_Iscatter",
    "MPI_Iscatterv",
    "MPI_Iallgather",
    "MPI_Iallgatherv",
    "MPI_Ialltoall",
    "MPI_Ialltoallv",
    "MPI_Ialltoallw",
    "MPI_Ireduce",
    "MPI_Iallreduce",
    "MPI_Ireduce_scatter",
    "MPI_Ireduce_scatter_block",
    "MPI_Iscan",
    "MPI_Iexscan",
    "MPI_Ineighbor_allgather",
    "MPI_Ineighbor_allgatherv",
    "MPI_Ineighbor_alltoall",
    "MPI_Ineighbor_alltoallv",
    "MPI_Ineighbor_alltoallw",
];

/// Has messages intercepted from a size on that headers are only just shorter than.
fn with_messages(library: &Path) -> [(&str, &str); 4] {
    [
        ("LD_PRELOAD", library.to_str().expect("a plain path")),
        ("LIBCOPY_MPI_MESSAGES", "1"),
        ("LIBCOPY_MPI_MIN", "4096"),
        ("LIBCOPY_STATS", "ranks"),
    ]
}
