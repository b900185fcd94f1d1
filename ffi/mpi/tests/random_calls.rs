// SPDX-License-Identifier: MIT OR Apache-2.0

//! Random messages and collectives, plain and with `libcopy_mpi.so`: every call gives the same. `LIBCOPY_TEST_CALLS` and
//! `LIBCOPY_TEST_SEED` ask for longer runs and others.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{BOTH, C, Mpi, intercepted, library, mpi, noted, text, turn};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/random_calls.c");

/// A number from the environment, for longer runs.
fn asked(name: &str, usual: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(usual, |value| value.parse().expect("a number"))
}

/// What a run has written, rank by rank, thread by thread; the files are gone.
struct Log(BTreeMap<(usize, usize), String>);

impl Log {
    fn of(
        mpi: &Mpi,
        ranks: usize,
        (calls, seed): (u64, u64),
        threads: usize,
        environment: &[(&str, &str)],
    ) -> (Log, Output) {
        let place = mpi.program.with_extension("log");
        let arguments = [
            calls.to_string(),
            seed.to_string(),
            place.display().to_string(),
            threads.to_string(),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = mpi.run(ranks, &arguments, environment);
        let file = |rank: usize, thread: usize| {
            let name = format!("{}.{rank}.{thread}", place.display());
            let path = PathBuf::from(name);
            let text = fs::read_to_string(&path).expect("each rank writes a file");
            let _ = fs::remove_file(Path::new(&path));
            ((rank, thread), text)
        };
        let all = (0..ranks).flat_map(|rank| (0..threads).map(move |thread| (rank, thread)));
        let log = Log(all.map(|(rank, thread)| file(rank, thread)).collect());
        (log, output)
    }

    /// Where another log says something else first, and how to see it again.
    fn compare(&self, other: &Log, what: &str) {
        for (place, plain) in &self.0 {
            let ours = &other.0[place];
            for (expected, got) in plain.lines().zip(ours.lines()) {
                let step = expected.split(' ').next().unwrap_or_default();
                assert_eq!(
                    expected, got,
                    "{what}, rank and thread {place:?}: FROM {step} makes this call the first one"
                );
            }
            assert_eq!(plain.lines().count(), ours.lines().count(), "{what}");
        }
    }
}

#[test]
#[ignore = "plain runs still meet faults of the MPI libraries that random_calls.c does not leave out yet"]
fn random_calls_give_the_same() {
    let library = library().to_str().expect("a plain path");
    let calls = asked("LIBCOPY_TEST_CALLS", 800);
    let seed = asked("LIBCOPY_TEST_SEED", 1);
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(mpi) = mpi(
            name,
            launcher,
            SOURCE,
            (C.0, &["-Wall", "-Werror", "-pthread"]),
        ) else {
            continue;
        };
        let forced = [
            ("LD_PRELOAD", library),
            ("LIBCOPY_STATS", "1"),
            ("LIBCOPY_GOVERNOR", "0"),
            ("LIBCOPY_MPI_MIN", "512"),
        ];
        let (mut functions, mut received) = (BTreeMap::new(), 0);
        for (ranks, threads, environment) in [(4, 1, &forced[..]), (3, 1, &forced[..2])] {
            let run = (calls, seed + ranks as u64);
            let (plain, _) = Log::of(&mpi, ranks, run, threads, &[]);
            let (ours, output) = Log::of(&mpi, ranks, run, threads, environment);
            let what = format!("{name}, {ranks} ranks, seed {}, {threads} threads", run.1);
            plain.compare(&ours, &what);
            let report = text(&output.stderr);
            received += noted(&report, "received");
            for (function, count) in intercepted(&report) {
                *functions.entry(function.to_owned()).or_insert(0) += count;
            }
        }
        // A comparison of the library with itself shows nothing.
        assert!(received > calls / 20, "{name}: {received} messages");
        for function in [
            "MPI_Allreduce",
            "MPI_Alltoallv",
            "MPI_Bcast",
            "MPI_Iallgather",
        ] {
            let count = functions.get(function);
            assert!(count > Some(&0), "{name}: {function}: {functions:?}");
        }
    }
}
