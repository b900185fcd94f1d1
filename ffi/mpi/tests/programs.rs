// SPDX-License-Identifier: MIT OR Apache-2.0

//! A program that knows nothing of libcopy, run by Open MPI and by MPICH, with and without it.

// Other tests use other parts of it.
#[allow(dead_code)]
mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::{BOTH, C, LIMIT, Mpi, counted, intercepted, library, mpi, noted, text, turn};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/differential.c");

const PROGRESS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/progress.c");
const LARGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/large.c");
const LARGE_TYPES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/large_types.c");
const NARROWED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/narrowed.c");
const FAILURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/failures.c");
const MESSAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/messages.c");
const SHORT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/short.c");
const REPACKED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/repacked.c");
const FRESH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fresh.c");
const PACKING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/packing.c");
const NEIGHBOURS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/neighbours.c");
const NONBLOCKING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nonblocking.c");
const EARLY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/early.c");
const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/committed.c");
const INCLUDE: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
const GOVERNED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/governed.c");
const LEFTOVERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/leftovers.c");
const ERRONEOUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/erroneous.c");
const REFUSED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/refused.c");
const SHIM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shim.c");
const GOVERNED_PACKING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/governed_packing.c");
const GOVERNED_NONBLOCKING: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/governed_nonblocking.c");
const GOVERNED_MESSAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/governed_messages.c");
const TOOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tool.c");
const TOOLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tooled.c");
const SESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sessions.c");
const ABSENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/absent.c");
const COMMUNICATORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/communicators.c");
const WAITING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/waiting.c");
const EXCHANGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exchanges.c");
const ALONE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/alone.c");
const WITHIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/within.c");
const POLLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/polled.c");
const ORPHANS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/orphans.c");
const TRUNCATED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/truncated.c");
const CUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cut.c");
const HANDLERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/handlers.c");
const PROBING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/probing.c");
const REDUCTIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reductions.c");
const RIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rights.c");
const FORTRAN_MESSAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/messages.f90");
const FORTRAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fortran.f90");

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
const FUNCTIONS: [&str; 14] = [
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
];

/// Those that return at once.
const PERSISTENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/persistent.c");
const PERSISTENT_FUNCTIONS: [&str; 7] = [
    "MPI_Bcast_init",
    "MPI_Gather_init",
    "MPI_Scatter_init",
    "MPI_Allgather_init",
    "MPI_Alltoall_init",
    "MPI_Reduce_init",
    "MPI_Allreduce_init",
];

const NONBLOCKING_FUNCTIONS: [&str; 7] = [
    "MPI_Ibcast",
    "MPI_Igather",
    "MPI_Iscatter",
    "MPI_Iallgather",
    "MPI_Ialltoall",
    "MPI_Ireduce",
    "MPI_Iallreduce",
];

/// With the functions for large counts or the others; a library that has only the others prints
/// what is right.
fn differential(name: &'static str, launcher: &'static str, large: bool) {
    let Some(plainly) = mpi(name, launcher, SOURCE, C) else {
        return;
    };
    let flags = [C.1, &["-DLARGE"]].concat();
    let other = if large {
        mpi(name, launcher, SOURCE, (C.0, &flags[..]))
    } else {
        None
    };
    let preloaded = other.as_ref().unwrap_or(&plainly);
    let library = library();
    let preload = [
        ("LD_PRELOAD", library.to_str().expect("a plain path")),
        // Teams from the first large call on.
        ("LIBCOPY_GOVERNOR", "0"),
        ("LIBCOPY_STATS", "ranks"),
    ];
    let mut all = BTreeMap::new();
    let _turn = turn();
    let runs: [(usize, usize, &[&str]); 5] = [
        (2, 80, &["1", "400000"]),
        (4, 40, &["2", "400000"]),
        (3, 40, &["3", "400000"]),
        (8, 15, &["4", "200000"]),
        // Taken from 1 MiB on only.
        (3, 5, &["5", "4000000", "reduce"]),
    ];
    // Larger counts are the same code behind the decision: the longest run is for one form.
    for (ranks, rounds, rest) in runs.into_iter().filter(|run| !large || run.0 < 8) {
        let count = rounds.to_string();
        let arguments = [&[count.as_str()], rest].concat();
        let plain = plainly.run(ranks, &arguments, &[]);
        let ours = preloaded.run(ranks, &arguments, &preload);
        let (plain, report) = (text(&plain.stdout), text(&ours.stderr));
        let ours = text(&ours.stdout);
        assert_eq!(plain.lines().count(), rounds, "{plain}");
        if ranks == 4 {
            // Small calls take a shorter way where nobody counts.
            let uncounted = preloaded.run(ranks, &arguments, &preload[..2]);
            assert_eq!(plain, text(&uncounted.stdout), "{name}, not counted");
        }
        for (expected, got) in plain.lines().zip(ours.lines()) {
            assert_eq!(expected, got, "{name}, {ranks} ranks, {rest:?}");
        }
        assert_eq!(plain.lines().count(), ours.lines().count(), "{ours}");
        for (function, count) in intercepted(&report) {
            *all.entry(function.to_owned()).or_insert(0) += count;
        }
    }
    // Under Open MPI, reductions to a root pay where ranks outnumber processors only.
    let few = std::thread::available_parallelism().is_ok_and(|processors| processors.get() < 3);
    for function in FUNCTIONS {
        if few || (name, function) != ("openmpi", "MPI_Reduce") {
            assert!(all.get(function) > Some(&0), "{name}: {function}: {all:?}");
        }
    }
}

#[test]
fn open_mpi_programs_print_the_same() {
    differential("openmpi", "mpirun.openmpi", false);
}

#[test]
fn mpich_programs_print_the_same() {
    differential("mpich", "mpirun.mpich", false);
}

#[test]
fn open_mpi_programs_that_count_further_print_the_same() {
    differential("openmpi", "mpirun.openmpi", true);
}

#[test]
fn mpich_programs_that_count_further_print_the_same() {
    differential("mpich", "mpirun.mpich", true);
}

/// What is done node by node.
const BY_NODES: [&str; 9] = [
    "MPI_Bcast",
    "MPI_Gather",
    "MPI_Gatherv",
    "MPI_Scatter",
    "MPI_Scatterv",
    "MPI_Allgather",
    "MPI_Allgatherv",
    "MPI_Reduce",
    "MPI_Allreduce",
];

#[test]
fn several_nodes_print_the_same() {
    let library = library();
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(mpi) = mpi(name, launcher, SOURCE, C) else {
            continue;
        };
        let mut all = BTreeMap::new();
        // Even nodes, one that is smaller, and some of one rank only.
        let runs: [(usize, &[&str], &str, &str); 4] = [
            (4, &["40", "31", "200000"], "2", "0"),
            (5, &["30", "32", "200000"], "2", "0"),
            (8, &["15", "33", "60000"], "3", "0"),
            (3, &["4", "34", "16000000", "bcast"], "2", ""),
        ];
        for (ranks, arguments, node, least) in runs {
            let plain = text(&mpi.run(ranks, arguments, &[]).stdout);
            let environment = [
                ("LD_PRELOAD", library.to_str().expect("a plain path")),
                ("LIBCOPY_MPI_NODE_RANKS", node),
                ("LIBCOPY_STATS", "ranks"),
                // Where ranks outnumber processors, a team has so much memory otherwise that a few
                // calls do not earn it.
                ("LIBCOPY_SHM_RING", "65536"),
                ("LIBCOPY_MPI_MIN", least),
            ];
            // The last one takes what is faster.
            let many = if least.is_empty() { 4 } else { 5 };
            let ours = mpi.run(ranks, arguments, &environment[..many]);
            for (expected, got) in plain.lines().zip(text(&ours.stdout).lines()) {
                assert_eq!(expected, got, "{name}, {ranks} ranks, {node} in a node");
            }
            assert_eq!(plain, text(&ours.stdout), "{name}, {ranks} ranks");
            let report = text(&ours.stderr);
            let by_nodes = counted(&report, 2);
            let some = by_nodes.iter().any(|(_, count)| *count > 0);
            assert!(some, "{name}, {ranks} ranks: {report}");
            for (function, count) in by_nodes {
                *all.entry(function.to_owned()).or_insert(0) += count;
            }
        }
        for function in BY_NODES {
            assert!(all.get(function) > Some(&0), "{name}: {function}: {all:?}");
        }
    }
}

#[test]
fn nonblocking_collectives_are_the_same() {
    let library = library();
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(plainly) = mpi(name, launcher, NONBLOCKING, C) else {
            continue;
        };
        let flags = [C.1, &["-DLARGE"]].concat();
        let large = mpi(name, launcher, NONBLOCKING, (C.0, &flags[..]));
        let large = large.expect("the compiler was there a moment ago");
        let preload = ("LD_PRELOAD", library.to_str().expect("a plain path"));
        let stats = ("LIBCOPY_STATS", "ranks");
        let mut all = BTreeMap::new();
        // The last one takes what is faster.
        let runs: [(usize, &[&str], &Mpi, &str, &str); 5] = [
            (2, &["80", "1", "300000"], &plainly, "0", "0"),
            (3, &["60", "2", "200000"], &large, "512", "0"),
            (4, &["30", "3", "200000"], &plainly, "512", "1"),
            (5, &["20", "4", "200000"], &plainly, "2048", "1"),
            (2, &["30", "5", "900000"], &plainly, "", "0"),
        ];
        for (ranks, arguments, preloaded, least, messages) in runs {
            let plain = text(&plainly.run(ranks, arguments, &[]).stdout);
            assert!(plain.lines().count() > 50, "{plain}");
            let messages = ("LIBCOPY_MPI_MESSAGES", messages);
            let environment = [preload, stats, messages, ("LIBCOPY_MPI_MIN", least)];
            let many = if least.is_empty() { 3 } else { 4 };
            let ours = preloaded.run(ranks, arguments, &environment[..many]);
            let (said, report) = (text(&ours.stdout), text(&ours.stderr));
            for (expected, got) in plain.lines().zip(said.lines()) {
                assert_eq!(expected, got, "{name}, {ranks} ranks, {arguments:?}");
            }
            assert_eq!(plain, said, "{name}, {ranks} ranks");
            // They are forwarded if somebody asks for that.
            let mut off = environment[..many].to_vec();
            off.push(("LIBCOPY_MPI_NONBLOCKING", "0"));
            let other = preloaded.run(ranks, arguments, &off);
            assert_eq!(plain, text(&other.stdout), "{name}, off");
            for (function, count) in taken_of(&text(&other.stderr), &NONBLOCKING_FUNCTIONS) {
                assert_eq!(count, 0, "{name}: {function}");
            }
            // Not counted, small calls take a shorter way.
            if ranks == 2 {
                let uncounted = [preload, ("LIBCOPY_MPI_MIN", least)];
                let uncounted = &uncounted[..many - 2];
                let said = text(&preloaded.run(ranks, arguments, uncounted).stdout);
                assert_eq!(plain, said, "{name}, not counted");
            }
            for (function, count) in intercepted(&report) {
                *all.entry(function.to_owned()).or_insert(0) += count;
            }
        }
        for function in NONBLOCKING_FUNCTIONS {
            assert!(all.get(function) > Some(&0), "{name}: {function}: {all:?}");
        }
        // On several nodes they are forwarded, but a barrier is not.
        let arguments = ["20", "6", "100000"];
        let plain = text(&plainly.run(4, &arguments, &[]).stdout);
        let nodes = ("LIBCOPY_MPI_NODE_RANKS", "2");
        let ours = plainly.run(
            4,
            &arguments,
            &[preload, stats, nodes, ("LIBCOPY_MPI_MIN", "0")],
        );
        assert_eq!(plain, text(&ours.stdout), "{name}, several nodes");
        let report = text(&ours.stderr);
        let barriers: Vec<u64> = counted(&report, 2)
            .into_iter()
            .filter_map(|(function, count)| (function == "MPI_Barrier").then_some(count))
            .collect();
        assert!(
            !barriers.is_empty() && barriers.iter().all(|n| *n > 4),
            "{name}: {report}"
        );
    }
}

#[test]
fn network_namespaces_are_nodes() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/mpi-nodes");
    let library = library();
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(mpi) = mpi(name, launcher, SOURCE, C) else {
            continue;
        };
        let run = |environment: &[(&str, &str)]| {
            let mut command = Command::new(script);
            command.args(["--mpi", name, "--ranks", "2,1", "--timeout"]);
            command.arg(LIMIT.as_secs().to_string()).arg("--");
            command.arg(&mpi.program).args(["20", "51", "100000"]);
            command.envs(environment.iter().copied());
            command.output().expect("a shell")
        };
        let plain = run(&[]);
        if plain.status.code() == Some(3) {
            eprintln!("skipped: {}", text(&plain.stderr));
            return;
        }
        let ours = run(&[
            ("LD_PRELOAD", library.to_str().expect("a plain path")),
            ("LIBCOPY_STATS", "ranks"),
            ("LIBCOPY_MPI_MIN", "0"),
            ("LIBCOPY_MPI_EVERYWHERE", "1"),
        ]);
        for output in [&plain, &ours] {
            assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        }
        let (plain, ours, report) = (plain.stdout, text(&ours.stdout), text(&ours.stderr));
        assert_eq!(text(&plain), ours, "{name}");
        assert_eq!(ours.lines().count(), 20, "{name}: {ours}");
        let by_nodes = counted(&report, 2);
        let count: u64 = by_nodes.iter().map(|(_, count)| count).sum();
        assert!(count > 20, "{name}: {report}");
    }
}

#[test]
fn messages_go_on_while_a_rank_is_in_a_collective() {
    let library = library();
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(mpi) = mpi(name, launcher, PROGRESS, C) else {
            continue;
        };
        let plain = text(&mpi.run(3, &[], &[]).stdout);
        assert_eq!(plain.matches(": 1").count(), 20, "{plain}");
        let environment = [
            ("LD_PRELOAD", library.to_str().expect("a plain path")),
            ("LIBCOPY_STATS", "ranks"),
            ("LIBCOPY_MPI_MIN", "4096"),
            ("LIBCOPY_MPI_NODE_RANKS", "2"),
        ];
        for (many, column) in [(3, 1), (4, 2)] {
            let ours = mpi.run(3, &[], &environment[..many]);
            assert_eq!(plain, text(&ours.stdout), "{name}");
            let report = text(&ours.stderr);
            for function in ["MPI_Bcast", "MPI_Gather", "MPI_Allgather", "MPI_Allreduce"] {
                let counted = counted(&report, column);
                let mut lines = counted.iter().filter(|(called, _)| *called == function);
                assert!(lines.any(|(_, n)| *n >= 5), "{name}: {function}: {report}");
            }
        }
    }
}

#[test]
fn more_bytes_than_an_int_counts_go_at_once() {
    let _turn = turn();
    let (name, launcher) = BOTH[1];
    let Some(mpi) = mpi(name, launcher, LARGE, C) else {
        return;
    };
    let library = library();
    let preload = [
        ("LD_PRELOAD", library.to_str().expect("a plain path")),
        ("LIBCOPY_STATS", "ranks"),
    ];
    let output = mpi.run(2, &[], &preload);
    let (said, report) = (text(&output.stdout), text(&output.stderr));
    let right = said
        .lines()
        .filter(|line| line.ends_with("code 0, 0 wrong"));
    assert_eq!(right.count(), 4, "{said}");
    let intercepted = intercepted(&report);
    for function in ["MPI_Bcast", "MPI_Allgatherv"] {
        let mut lines = intercepted.iter().filter(|(called, _)| *called == function);
        assert!(lines.any(|(_, count)| *count == 1), "{report}");
    }
}

/// mpi4py makes all its types so, where the library has these functions.
#[test]
fn types_that_were_made_with_large_counts_are_known() {
    let _turn = turn();
    let (name, launcher) = BOTH[1];
    let Some(mpi) = mpi(name, launcher, LARGE_TYPES, C) else {
        return;
    };
    let library = library();
    let output = mpi.run(2, &[], &with_messages(library));
    let (said, report) = (text(&output.stdout), text(&output.stderr));
    let right = said.lines().filter(|line| line.ends_with(": 0 wrong"));
    assert_eq!(right.count(), 11, "{said}");
    // A message of each type, made in either way: none is forwarded.
    let sent = "messages: sent 22,";
    assert!(report.contains(sent), "{report}");
}

/// A library without these forms has the others. mpi4py calls them wherever it finds them.
#[test]
fn forwarded_collectives_have_forms_for_large_counts_under_each_library() {
    let _turn = turn();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, NARROWED, C) else {
            continue;
        };
        let library = library();
        let preload = ("LD_PRELOAD", library.to_str().expect("a plain path"));
        for ranks in [2, 5] {
            let output = mpi.run(ranks, &[], &[preload]);
            let (said, report) = (text(&output.stdout), text(&output.stderr));
            let right = said.lines().filter(|line| line.ends_with(": 0 failed"));
            assert_eq!(right.count(), ranks, "{name}: {said}{report}");
        }
        let said = text(&mpi.run(2, &["many"], &[preload]).stdout);
        let count = |what: &str| said.matches(what).count();
        let is_refused = count("too many: refused") == 2;
        assert!(
            is_refused || count("the library has them") == 2,
            "{name}: {said}"
        );
    }
}

#[test]
fn disabled_it_passes_everything_on() {
    let _turn = turn();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, SOURCE, C) else {
            continue;
        };
        let library = library();
        let environment = [
            ("LD_PRELOAD", library.to_str().expect("a plain path")),
            ("LIBCOPY_STATS", "ranks"),
            ("LIBCOPY_DISABLE", "1"),
        ];
        let output = mpi.run(2, &["10", "1", "200000"], &environment);
        let report = text(&output.stderr);
        assert!(
            intercepted(&report).iter().all(|(_, n)| *n == 0),
            "{report}"
        );
        assert!(report.contains(" disabled"), "{report}");
    }
}

#[test]
fn fortran_programs_print_the_same() {
    let _turn = turn();
    let library = library();
    let preload = [
        ("LD_PRELOAD", library.to_str().expect("a plain path")),
        ("LIBCOPY_STATS", "ranks"),
        // Types get their layouts with the first use, and communicators their teams with the first
        // large call.
        ("LIBCOPY_MPI_PACKED", "0"),
        ("LIBCOPY_GOVERNOR", "0"),
    ];
    for (name, launcher) in BOTH {
        // mpif.h, the module mpi, the module mpi_f08.
        for binding in ["-DBINDING=1", "-DBINDING=2", "-DBINDING=3"] {
            let mut flags = vec!["-cpp", "-w", "-fallow-argument-mismatch", binding];
            if name == "openmpi" {
                flags.push("-DBEFORE_STANDARD");
            }
            let Some(mpi) = mpi(name, launcher, FORTRAN, ("mpifort", &flags[..])) else {
                continue;
            };
            let plain = text(&mpi.run(2, &[], &[]).stdout);
            let ours = mpi.run(2, &[], &preload);
            let has_persistent = binding != "-DBINDING=3";
            let lines = if has_persistent { 32 } else { 25 };
            assert_eq!(plain.lines().count(), lines, "{plain}");
            assert_eq!(plain, text(&ours.stdout), "{name} {binding}");
            // MPICH's mpi_f08 hands descriptors of arrays to functions within the library.
            if (name, binding) == ("mpich", "-DBINDING=3") {
                continue;
            }
            let report = text(&ours.stderr);
            let intercepted = intercepted(&report);
            for function in FUNCTIONS {
                // Neither has a caller, or pays with two ranks, here.
                if function == "MPI_Alltoallw" || (name, function) == ("openmpi", "MPI_Reduce") {
                    continue;
                }
                let found = intercepted.iter().find(|(called, _)| *called == function);
                assert!(
                    found.is_some_and(|(_, count)| *count > 0),
                    "{name} {binding} {function}: {report}"
                );
            }
            for (function, count) in taken_of(&report, &PACKING_FUNCTIONS) {
                assert!(count > 0, "{name} {binding} {function}: {report}");
            }
            let all = [preload[0], preload[1], ("LIBCOPY_MPI_MIN", "4096")];
            let ours = mpi.run(2, &[], &all);
            assert_eq!(plain, text(&ours.stdout), "{name} {binding}, all");
            let report = text(&ours.stderr);
            for (function, count) in taken_of(&report, &["MPI_Alltoallw", "MPI_Neighbor_alltoallw"])
            {
                assert!(count > 0, "{name} {binding} {function}: {report}");
            }
            let persistent: &[&str] = if has_persistent {
                &PERSISTENT_FUNCTIONS
            } else {
                &[]
            };
            for functions in [&NONBLOCKING_FUNCTIONS[..], persistent] {
                for (function, count) in taken_of(&report, functions) {
                    // MPICH's `mpi_f08` waits past us, and comes with its other Fortran.
                    assert_eq!(
                        count > 0,
                        name == "openmpi",
                        "{name} {binding} {function}: {report}"
                    );
                }
            }
        }
    }
}

/// Names of segments that a team may have left. Without the module and an engine nothing returns
/// early, but everything that comes before such a buffer is used runs; scripts/early-in-guest runs
/// the same program with engines.
#[test]
fn what_collectives_return_can_be_used_by_anybody() {
    let library = library();
    let preload = ("LD_PRELOAD", library.to_str().expect("a plain path"));
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(mpi) = mpi(name, launcher, EARLY, C) else {
            continue;
        };
        let arguments = ["300000", "12", "3"];
        let plain = text(&mpi.run(2, &arguments, &[]).stdout);
        assert_eq!(plain.lines().count(), 24, "{plain}");
        let asked = [preload, ("LIBCOPY_ASYNC", "1"), ("LIBCOPY_STATS", "ranks")];
        let ours = mpi.run(2, &arguments, &asked);
        assert_eq!(plain, text(&ours.stdout), "{name}");
        let report = text(&ours.stderr);
        assert!(!report.contains("has no effect"), "{name}: {report}");
    }
}

/// Where calls go past us, nothing returns early.
#[test]
fn programs_that_call_past_us_do_not_return_early() {
    let library = library();
    let preload = ("LD_PRELOAD", library.to_str().expect("a plain path"));
    let asked = [
        preload,
        ("LIBCOPY_ASYNC", "engine"),
        ("LIBCOPY_MPI_MIN", "0"),
    ];
    for (name, launcher) in BOTH {
        let _turn = turn();
        let flags = [C.1, &["-DPAST_US"]].concat();
        let Some(mpi) = mpi(name, launcher, EARLY, (C.0, &flags[..])) else {
            continue;
        };
        let said = text(&mpi.run(2, &["100000", "1", "3"], &asked).stderr);
        let why = "LIBCOPY_ASYNC has no effect: the program uses MPI_Buffer_attach_c";
        assert!(said.contains(why), "{name}: {said}");
    }
}

fn segments() -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir("/dev/shm").expect("a tmpfs");
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with("libcopy-"))
        .collect()
}

#[test]
fn collectives_work_after_an_erroneous_one() {
    let _turn = turn();
    let library = library();
    // Intercepted: Open MPI itself hangs in some of these.
    let environment = [
        ("LD_PRELOAD", library.to_str().expect("a plain path")),
        ("LIBCOPY_MPI_MIN", "0"),
    ];
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, FAILURES, C) else {
            continue;
        };
        let file = mpi.program.with_extension("said");
        let path = file.to_str().expect("a plain path");
        for which in ["0", "1", "2", "3", "4"] {
            mpi.run(3, &[path, "again", which], &environment);
            let said = std::fs::read_to_string(&file).unwrap_or_default();
            let _ = std::fs::remove_file(&file);
            let right = said.lines().all(|line| line.ends_with(": works again"));
            assert!(right && said.lines().count() == 3, "{name} {which}: {said}");
        }
    }
}

#[test]
fn refused_calls_return_the_classes_of_the_library() {
    let _turn = turn();
    let library = library();
    let preload = [
        ("LD_PRELOAD", library.to_str().expect("a plain path")),
        ("LIBCOPY_MPI_MIN", "0"),
    ];
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, ERRONEOUS, C) else {
            continue;
        };
        let file = mpi.program.with_extension("said");
        let path = file.to_str().expect("a plain path");
        for wrong in ["0", "1", "2", "3", "4", "5", "6", "7"] {
            let skipped = crashes(name, wrong);
            let arguments = [&[path, "65536", wrong], skipped.as_slice()].concat();
            let said = |environment: &[(&str, &str)]| {
                mpi.run(2, &arguments, environment);
                let said = std::fs::read_to_string(&file).unwrap_or_default();
                let _ = std::fs::remove_file(&file);
                said
            };
            let plain = said(&[]);
            assert!(plain.lines().count() > 3, "{name}: {plain}");
            assert!(!plain.contains("wrong\n"), "{name}: {plain}");
            assert_eq!(said(&preload), plain, "{name}");
        }
    }
}

/// Functions in which this library crashes or waits for ever with such an argument.
fn crashes(name: &str, wrong: &str) -> Vec<&'static str> {
    let mut all = Vec::new();
    if name == "openmpi" && "01236".contains(wrong) {
        // It does not look at what only the root has.
        all.extend([
            "Gather", "Gatherv", "Scatter", "Scatterv", "Igather", "Iscatter",
        ]);
    }
    match (name, wrong) {
        ("openmpi", "0" | "2" | "6") => all.extend(["Reduce", "Ireduce"]),
        ("openmpi", "1") => all.push("Allgatherv"),
        ("openmpi", "3") => all.extend(["Allgather", "Iallgather", "Allgatherv"]),
        ("mpich", "0") => {
            all.extend(["Reduce", "Ireduce", "Allreduce", "Iallreduce"]);
            all.push("Reduce_scatter_block");
        }
        _ => {}
    }
    all
}

#[test]
fn ranks_that_die_or_disagree_end_the_program() {
    let _turn = turn();
    let library = library();
    let preload = [
        ("LD_PRELOAD", library.to_str().expect("a plain path")),
        // What the library does with other lengths is its own affair as long as there is no team.
        ("LIBCOPY_GOVERNOR", "0"),
    ];
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, FAILURES, C) else {
            continue;
        };
        let cases = [
            "kill", "counts 0", "counts 1", "counts 2", "counts 3", "counts 4", "sides",
        ];
        for case in cases {
            let before = segments();
            let started = Instant::now();
            let file = mpi.program.with_extension("said");
            let path = file.to_str().expect("a plain path");
            let arguments: Vec<&str> = [path].into_iter().chain(case.split(' ')).collect();
            let (_, output) = mpi.output(3, &arguments, &preload);
            let said = std::fs::read_to_string(&file).unwrap_or_default();
            let _ = std::fs::remove_file(&file);
            let said = said + &text(&output.stdout) + &text(&output.stderr);
            assert!(!output.status.success(), "{name}: {case}: {said}");
            assert!(started.elapsed() < LIMIT, "{name}: {case} hung: {said}");
            if case != "kill" {
                assert!(
                    said.contains("an error, not a hang"),
                    "{name} {case}: {said}"
                );
            }
            // The launcher may end all before anybody hears of it.
            if case == "kill" && said.contains("an error, not a hang") {
                assert!(said.contains(": libcopy: MPI_"), "{name}: {said}");
            }
            // Tests that run beside this one have segments, too, but no longer than their programs
            // run.
            let deadline = Instant::now() + 2 * LIMIT;
            let left = |name: &std::ffi::OsString| !before.contains(name);
            let mine: Vec<_> = segments().into_iter().filter(left).collect();
            while segments().iter().any(|name| mine.contains(name)) {
                assert!(
                    Instant::now() < deadline,
                    "{name} {case}: left over: {mine:?}"
                );
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Has messages intercepted from a size on that headers are only just shorter than.
fn with_messages(library: &Path) -> [(&str, &str); 4] {
    [
        ("LD_PRELOAD", library.to_str().expect("a plain path")),
        ("LIBCOPY_MPI_MESSAGES", "1"),
        ("LIBCOPY_MPI_MIN", "4096"),
        ("LIBCOPY_STATS", "ranks"),
    ]
}

/// Functions that a library may lack which we make of those that it has; forms for large counts
/// beside.
const MADE: [&str; 5] = [
    "MPI_Isendrecv",
    "MPI_Isendrecv_replace",
    "MPI_Request_get_status_any",
    "MPI_Request_get_status_all",
    "MPI_Request_get_status_some",
];

/// What the linker does when it loads the library, it does in every process of the machine that
/// inherits `LD_PRELOAD`.
#[test]
fn what_is_written_at_run_time_needs_no_relocations() {
    let readelf = |what: &str| {
        let told = Command::new("readelf")
            .args([what, "-W"])
            .arg(library())
            .output()
            .expect("binutils has readelf");
        text(&told.stdout)
    };
    let hexadecimal = |word: &str| u64::from_str_radix(word, 16).ok();
    let sections = readelf("-S");
    let data = sections.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != ".data");
        let (start, length) = (words.nth(2)?, words.nth(1)?);
        let start = hexadecimal(start)?;
        Some(start..start + hexadecimal(length)?)
    });
    let data = data.expect("a section .data");
    let relocations = readelf("-r");
    let places: Vec<u64> = relocations
        .lines()
        .filter(|line| line.contains("_RELATIVE"))
        .filter_map(|line| hexadecimal(line.split_whitespace().next()?))
        .collect();
    assert!(places.len() > 500, "{}", places.len());
    let in_data = places.iter().filter(|place| data.contains(place)).count();
    assert!(in_data < 64, "{in_data} of {} in .data", places.len());
}

#[test]
fn what_is_exported_is_documented() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mpi.md");
    let page = std::fs::read_to_string(page).expect("docs/mpi.md is there");
    let names = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library())
        .output()
        .expect("binutils has nm");
    let names = text(&names.stdout);
    let names = names.lines().filter_map(|line| line.rsplit(' ').next());
    // The page says that the forms for large counts go with the others, and the persistent
    // collectives of Open MPI 4.1 with those of the standard.
    let names: Vec<String> = names
        .filter(|name| name.starts_with("MPI_") || name.starts_with("MPIX_"))
        .filter(|name| !name.ends_with("_c"))
        .map(|name| match name.strip_prefix("MPIX_") {
            Some(rest) if name.ends_with("_init") => format!("MPI_{rest}"),
            _ => name.to_owned(),
        })
        .collect();
    assert!(names.len() > 80, "{names:?}");
    let missing: Vec<&String> = names
        .iter()
        .filter(|name| !page.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "not in docs/mpi.md: {missing:?}");
}

#[test]
fn what_is_exported_can_be_called() {
    let _turn = turn();
    let library = library();
    let names = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output()
        .expect("binutils has nm");
    let names = text(&names.stdout);
    let names = names.lines().filter_map(|line| line.rsplit(' ').next());
    let names: Vec<&str> = names.filter(|name| name.starts_with("MPI_")).collect();
    assert!(names.len() > 80 && MADE.iter().all(|name| names.contains(name)));
    let mut said = Vec::new();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, ABSENT, C) else {
            continue;
        };
        // A function that the library lacks is one that is made, or has a form without large
        // counts, or had another name before it was in the standard.
        let before: Vec<String> = names
            .iter()
            .filter(|name| name.ends_with("_init"))
            .map(|name| name.replace("MPI_", "MPIX_"))
            .collect();
        let asked: Vec<&str> = names
            .iter()
            .copied()
            .chain(before.iter().map(String::as_str))
            .collect();
        let lacking = text(&mpi.run(1, &asked, &[]).stdout);
        let lacking: Vec<&str> = lacking.lines().collect();
        let has = |function: &str| {
            let before = function.replace("MPI_", "MPIX_");
            names.contains(&function) && !lacking.contains(&function)
                || asked.contains(&before.as_str()) && !lacking.contains(&before.as_str())
        };
        for lacked in lacking.iter().filter(|lacked| names.contains(lacked)) {
            let base = lacked.strip_suffix("_c").unwrap_or(lacked);
            let made = MADE.contains(&base);
            let narrow = has(base);
            assert!(made || narrow, "{name} has no {lacked}");
        }
        if !lacking.contains(&"MPI_Request_get_status_some") {
            eprintln!("{name} has all of them, whatever they do");
            continue;
        }
        let preload = with_messages(library);
        for environment in [&preload[..], &preload[..1]] {
            let arguments: &[&str] = if name == "mpich" { &["looks"] } else { &[] };
            let output = text(&mpi.run(2, arguments, environment).stdout);
            let mut lines: Vec<String> = output.lines().map(str::to_owned).collect();
            lines.sort();
            said.push((name, environment.len(), lines));
        }
    }
    let looks = "\
0 all of none: 1
0 all: tags 1 2
0 any: 3 from 1 tag 2
0 none: 1 1
0 none: 1 1
0 not all: 0
0 not some: 0
0 nothing: 0 1
0 received 1 1 1
0 sent: 1
0 sent: 2
0 sent: 3
0 some of none: 1
0 some: 0 2 3
0 some: 1, 3 tag 2
";
    let exchanges = "\
0 exchange 10: 0, 0 from -99, -45, 1
0 exchange 10: 0, 10 from 1, 45000855, 1
0 exchange 300000: 0, 300000 from 1, 3480002799952, 1
0 exchange 300000: 0, 300000 from 1, 3480002799952, 1
0 no such rank: 1
0 replace 10: 0, 3539
0 replace 10: 0, 78003539
0 replace 300000: 0, 6344972350000
0 replace 300000: 0, 6344972350000
last: 299999
";
    for (name, environment, lines) in &said {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let lines: Vec<&str> = lines
            .into_iter()
            .filter(|line| !line.starts_with('1'))
            .collect();
        let mut expected: Vec<&str> = looks.lines().collect();
        if *name != "mpich" {
            expected.extend(exchanges.lines());
        }
        expected.sort();
        assert_eq!(lines, expected, "{name} {environment}");
    }
}

/// The ranks' reports are one, which begins with the verdict; where they do not agree on that, each
/// says its own.
#[test]
fn a_job_has_one_report() {
    let _turn = turn();
    let preload = ("LD_PRELOAD", library().to_str().expect("a plain path"));
    let odd = ("GOVERNED_ODD", "1");
    for (name, launcher) in BOTH {
        let flags = [C.1, &["-pthread"]].concat();
        let Some(mpi) = mpi(name, launcher, GOVERNED, (C.0, &flags[..])) else {
            continue;
        };
        let report = |settings: &[(&str, &str)]| {
            let environment = [&[preload], settings].concat();
            text(&mpi.run(3, &["400", "262144"], &environment).stderr)
        };
        let one = report(&[("LIBCOPY_STATS", "1")]);
        assert_eq!(one.matches("3 reports of 3 ranks, ").count(), 1, "{one}");
        let known = ["libcopy saved ", "libcopy cost ", "libcopy: no difference "];
        let verdicts = [&known[..], &["libcopy: not known "]].concat();
        let first = one.lines().find(|line| line.starts_with("libcopy"));
        let first = first.expect("a verdict");
        assert!(
            verdicts.iter().any(|verdict| first.starts_with(verdict)),
            "{one}"
        );
        assert!(one.contains(" in collectives that libcopy did, "), "{one}");
        assert!(!one.contains("libcopy_mpi: rank"), "{one}");
        // Nothing is intercepted, and that is all that is claimed.
        let none = report(&[("LIBCOPY_STATS", "1"), ("LIBCOPY_DISABLE", "1")]);
        assert_eq!(none.matches("1 reports of 1 ranks, ").count(), 3, "{none}");
        assert!(!none.contains("saved") && !none.contains("cost"), "{none}");
        let ranks = report(&[("LIBCOPY_STATS", "ranks"), odd]);
        assert_eq!(ranks.matches("libcopy_mpi: rank ").count(), 3, "{ranks}");
    }
}

/// A number that the report of a rank says about messages, of all ranks together.
#[test]
fn messages_are_the_same_on_any_way() {
    let _turn = turn();
    let library = library();
    let preload = with_messages(library);
    for (name, launcher) in BOTH {
        let flags = [C.1, &["-pthread"]].concat();
        let Some(mpi) = mpi(name, launcher, MESSAGES, (C.0, &flags[..])) else {
            continue;
        };
        let runs: [(usize, &[&str]); 4] = [
            (2, &["40", "1", "200000"]),
            (3, &["20", "2", "300000"]),
            (4, &["8", "3", "900000"]),
            (2, &["12", "4", "200000", "3"]),
        ];
        for (ranks, arguments) in runs {
            let plain = mpi.run(ranks, arguments, &[]);
            let ours = mpi.run(ranks, arguments, &preload);
            let report = text(&ours.stderr);
            assert_eq!(
                text(&plain.stdout),
                text(&ours.stdout),
                "{name} {arguments:?}"
            );
            if arguments.len() > 3 && has_messages_of_one_thread(name, &report) {
                continue;
            }
            for what in [" sent", "received", "bytes pipelined", "packed"] {
                assert!(noted(&report, what) > 0, "{name} {what}: {report}");
            }
        }
    }
}

/// Whether the report says that the library is an MPICH 4, under which messages of programs with
/// several threads are forwarded.
fn has_messages_of_one_thread(name: &str, report: &str) -> bool {
    name == "mpich" && report.contains("MPICH 5 does")
}

#[test]
fn threads_get_their_own_errors_and_messages() {
    let _turn = turn();
    let library = library();
    let preload = with_messages(library);
    for (name, launcher) in BOTH {
        let flags = [C.1, &["-pthread"]].concat();
        let Some(mpi) = mpi(name, launcher, HANDLERS, (C.0, &flags[..])) else {
            continue;
        };
        let ours = mpi.run(2, &[], &preload);
        let (said, report) = (text(&ours.stdout), text(&ours.stderr));
        let mut lines: Vec<&str> = said.lines().collect();
        lines.sort_unstable();
        let expected = [
            "rank 0: 40 truncated",
            "rank 0: the handler is still there",
            "rank 1: 40 truncated",
            "rank 1: the handler is still there",
            "whole: 0 wrong",
        ];
        assert_eq!(lines, expected, "{name}: {report}");
        let is_off = has_messages_of_one_thread(name, &report);
        assert!(
            is_off || noted(&report, "truncated") > 0,
            "{name}: {report}"
        );
    }
}

#[test]
fn short_messages_are_the_same() {
    let _turn = turn();
    let preload = ("LD_PRELOAD", library().to_str().expect("a plain path"));
    let stats = ("LIBCOPY_STATS", "ranks");
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, SHORT, C) else {
            continue;
        };
        let sorted = |output: &Output| {
            let said = text(&output.stdout);
            let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let plain = sorted(&mpi.run(2, &[], &[]));
        assert!(plain.len() > 1000, "{name}");
        // As is fast, which is found out while they are sent; all that can be packed; and none.
        for (asked, packs) in [("", None), ("100000", Some(true)), ("0", Some(false))] {
            let mut environment = vec![preload, stats, ("LIBCOPY_MPI_PACKED", asked)];
            if asked.is_empty() {
                environment.pop();
            }
            let ours = mpi.run(2, &[], &environment);
            assert_eq!(plain, sorted(&ours), "{name} {asked}");
            let packed = noted(&text(&ours.stderr), "packed") > 0;
            assert!(packs.is_none_or(|packs| packs == packed), "{name} {asked}");
        }
    }
}

#[test]
fn whether_packing_pays_is_found_out_again() {
    const MESSAGES: u64 = 60_000;
    let _turn = turn();
    for (name, launcher) in BOTH {
        let slow = [C.1, &["-shared", "-fPIC", "-DSLOW"]].concat();
        // For the preloaded library to find the program's functions.
        let found = [C.1, &["-rdynamic"]].concat();
        let compiled = (
            mpi(name, launcher, REPACKED, (C.0, &slow[..])),
            mpi(name, launcher, REPACKED, (C.0, &found[..])),
        );
        let (Some(slow), Some(mpi)) = compiled else {
            continue;
        };
        let preload = format!("{}:{}", library().display(), slow.program.display());
        let environment = [
            ("LD_PRELOAD", preload.as_str()),
            ("LIBCOPY_STATS", "ranks"),
            ("VIRTUAL_CLOCK", "own"),
        ];
        let ours = mpi.run(2, &[&MESSAGES.to_string()], &environment);
        assert_eq!(text(&ours.stdout), "0 wrong\n0 wrong\n", "{name}");
        // It pays in the first thousand messages, and does not when that is found out again: by
        // this clock measuring takes some 250 ns, and packing one.
        let packed = noted(&text(&ours.stderr), "packed");
        assert!((1000..MESSAGES / 2).contains(&packed), "{name}: {packed}");
    }
}

#[test]
fn types_that_come_and_go_are_the_same() {
    let _turn = turn();
    let preload = ("LD_PRELOAD", library().to_str().expect("a plain path"));
    let sorted = |output: &Output| {
        let said = text(&output.stdout);
        let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let flags = [C.1, &["-pthread"]].concat();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, FRESH, (C.0, &flags[..])) else {
            continue;
        };
        let plain = sorted(&mpi.run(2, &[], &[]));
        assert!(plain.len() > 1000, "{name}");
        // As is worth it, which is found out while types are used; and from the first use on.
        for asked in [None, Some(("LIBCOPY_MPI_MIN", "1000"))] {
            let environment: Vec<_> = [preload].into_iter().chain(asked).collect();
            let ours = mpi.run(2, &[], &environment);
            assert_eq!(plain, sorted(&ours), "{name} {asked:?}");
            assert!(text(&ours.stderr).contains("handles came back"), "{name}");
        }
        let plain = sorted(&mpi.run(2, &["threads"], &[]));
        assert_eq!(
            plain,
            sorted(&mpi.run(2, &["threads"], &[preload])),
            "{name}"
        );
    }
}

#[test]
fn only_types_that_are_used_often_get_layouts() {
    let _turn = turn();
    let preload = ("LD_PRELOAD", library().to_str().expect("a plain path"));
    let stats = ("LIBCOPY_STATS", "ranks");
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(
            name,
            launcher,
            FRESH,
            (C.0, &[C.1, &["-pthread"]].concat()[..]),
        ) else {
            continue;
        };
        let counts = |how: &str, environment: &[(&str, &str)]| {
            let report = text(&mpi.run(2, &[how], environment).stderr);
            let packs = taken_of(&report, &["MPI_Pack"])[0].1;
            let others = noted(&report, "packed") + noted(&report, "sent");
            (noted(&report, "layouts made"), packs, others, report)
        };
        let (made, packs, others, report) = counts("once", &[preload, stats]);
        assert_eq!((made, packs, others), (0, 0, 0), "{name}: {report}");
        // Each type is used 4000 times, most of them with a layout: a few uses earn it, by a clock
        // that does not depend on the machine, and nothing that is measured has them forwarded
        // then.
        let same_everywhere = [("VIRTUAL_CLOCK", "own"), ("LIBCOPY_GOVERNOR", "0")];
        let environment = [&[preload, stats], &same_everywhere[..]].concat();
        let (made, packs, _, report) = counts("often", &environment);
        assert!(made > 0 && packs > 2 * 4 * 3000, "{name}: {report}");
        // Where the environment asks for it, the first use has one.
        let asked = ("LIBCOPY_MPI_MIN", "1000");
        let (made, packs, others, report) = counts("once", &[preload, stats, asked]);
        let all = made > 2000 && packs == 2 * 2000 && others > 0;
        assert!(all, "{name}: {report}");
    }
}

#[test]
fn messages_wait_for_nobody_who_waits_elsewhere() {
    let _turn = turn();
    let library = library();
    let preload = with_messages(library);
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, WAITING, C) else {
            continue;
        };
        // MPICH does not finish the last case.
        let arguments: &[&str] = if name == "mpich" { &["most"] } else { &[] };
        let plain = mpi.run(2, arguments, &[]);
        // Who is elsewhere for how long is the scheduler's choice; every way shows up soon.
        let ways = [
            "bytes eager",
            "bytes by get",
            "bytes of layouts",
            "truncated",
        ];
        let mut missing = ways.to_vec();
        for _ in 0..10 {
            let ours = mpi.run(2, arguments, &preload);
            let report = text(&ours.stderr);
            assert_eq!(text(&plain.stdout), text(&ours.stdout), "{name}");
            missing.retain(|what| noted(&report, what) == 0);
            if missing.is_empty() {
                break;
            }
        }
        assert!(missing.is_empty(), "{name}: never {missing:?}");
        let started = Instant::now();
        let (_, killed) = mpi.output(2, &["kill"], &preload);
        assert!(!killed.status.success(), "{name}");
        assert!(started.elapsed() < LIMIT, "{name} hung");
    }
}

#[test]
fn ranks_that_send_to_each_other_copy_what_they_receive() {
    let _turn = turn();
    let library = library();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, EXCHANGES, C) else {
            continue;
        };
        let mut environment = with_messages(library).to_vec();
        environment.push(("LIBCOPY_GOVERNOR", "0"));
        let ours = mpi.run(2, &[], &environment);
        let (said, report) = (text(&ours.stdout), text(&ours.stderr));
        assert_eq!(said, "150 exchanges: 0 wrong\n", "{name}: {report}");
        // A rank that has lost its processor is helped; most of the time both are there.
        let [read, written] = ["bytes by get", "bytes by put"].map(|what| noted(&report, what));
        assert!(written < read / 2, "{name}: {report}");
    }
}

#[test]
fn what_a_rank_exchanges_with_itself_is_copied_from_layout_to_layout() {
    let _turn = turn();
    let preload = ("LD_PRELOAD", library().to_str().expect("a plain path"));
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, ALONE, C) else {
            continue;
        };
        let plain = text(&mpi.run(2, &[], &[]).stdout);
        assert!(plain.starts_with("0 wrong"), "{name}: {plain}");
        let ours = mpi.run(2, &[], &[preload, ("LIBCOPY_STATS", "ranks")]);
        let report = text(&ours.stderr);
        assert_eq!(plain, text(&ours.stdout), "{name}: {report}");
        // All but the one with different lengths, on both ranks.
        let taken = taken_of(&report, &["MPI_Alltoallw"])[0].1;
        assert_eq!(taken, 2 * 40, "{name}: {report}");
    }
}

#[test]
fn requests_that_are_asked_again_and_again_say_the_same() {
    let _turn = turn();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, POLLED, C) else {
            continue;
        };
        let plain = text(&mpi.run(2, &[], &[]).stdout);
        assert!(!plain.contains("WRONG"), "{name}: {plain}");
        assert_eq!(plain.lines().count(), 3 * 28, "{name}: {plain}");
        let ours = mpi.run(2, &[], &with_messages(library()));
        assert_eq!(text(&ours.stdout), plain, "{name}: {}", text(&ours.stderr));
    }
}

/// Parts of one array that are sent and received are not taken for parts that are exchanged in
/// place.
#[test]
fn alltoalls_within_one_array_are_the_same() {
    let _turn = turn();
    let preload = ("LD_PRELOAD", library().to_str().expect("a plain path"));
    let environment = [
        preload,
        ("LIBCOPY_STATS", "ranks"),
        ("LIBCOPY_GOVERNOR", "0"),
    ];
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, WITHIN, C) else {
            continue;
        };
        assert_eq!(text(&mpi.run(2, &[], &[]).stdout), "0 wrong\n", "{name}");
        let ours = mpi.run(2, &[], &environment);
        let report = text(&ours.stderr);
        assert_eq!(text(&ours.stdout), "0 wrong\n", "{name}: {report}");
        for (function, taken) in taken_of(&report, &["MPI_Alltoallw", "MPI_Alltoallv"]) {
            assert!(taken >= 20, "{name}: {function}: {report}");
        }
    }
}

#[test]
fn messages_without_a_receive_are_not_packed() {
    let _turn = turn();
    let mut environment = with_messages(library()).to_vec();
    environment.push(("LIBCOPY_GOVERNOR", "0"));
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, EXCHANGES, C) else {
            continue;
        };
        let packed = |how: &str| {
            let ours = mpi.run(2, &[how], &environment);
            let (said, report) = (text(&ours.stdout), text(&ours.stderr));
            assert_eq!(said, "10 exchanges: 0 wrong\n", "{name} {how}: {report}");
            noted(&report, "bytes eager")
        };
        // A rank that has lost its processor for a tenth of a second may depend on buffering, as
        // far as others know.
        let late: Vec<u64> = (0..5).map(|_| packed("late")).collect();
        assert!(late.contains(&0), "{name}: packed {late:?} bytes");
        // Neither rank receives before the other one's message has been packed.
        assert!(packed("unsafe") > 0, "{name}");
    }
}

#[test]
fn requests_that_were_freed_are_completed() {
    let _turn = turn();
    let library = library();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, ORPHANS, C) else {
            continue;
        };
        let ours = mpi.run(2, &[], &with_messages(library));
        let (said, report) = (text(&ours.stdout), text(&ours.stderr));
        assert_eq!(said.lines().count(), 50, "{name}: {said}");
        for line in said.lines() {
            assert!(line.ends_with(": 0 wrong"), "{name}: {line}");
        }
        assert!(noted(&report, "received") >= 60, "{name}: {report}");
    }
}

#[test]
fn what_is_too_long_is_truncated_in_whichever_call_completes_it() {
    let _turn = turn();
    let library = library();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, TRUNCATED, C) else {
            continue;
        };
        let mut environment = with_messages(library);
        // More than what is received.
        environment[2].1 = "12288";
        let (plain, ours) = (mpi.run(3, &[], &[]), mpi.run(3, &[], &environment));
        let (said, report) = (text(&ours.stdout), text(&ours.stderr));
        assert_eq!(said, text(&plain.stdout), "{name}: {report}");
        assert_eq!(said.matches("truncate (").count(), 20, "{name}: {said}");
        assert_eq!(said.matches("in status (").count(), 12, "{name}: {said}");
        // Each of them has given its slot back.
        assert_eq!(noted(&report, "truncated"), 162, "{name}: {report}");
        assert_eq!(noted(&report, "without a slot"), 0, "{name}: {report}");
    }
}

/// What `cut.c` says in a line: the way, what the functions said, and the numbers of bytes that are
/// right and foreign.
fn cut(line: &str) -> (&str, &str, u64, u64) {
    let parts = || {
        let (way, rest) = line.split_once(": ")?;
        let (said, bytes) = rest.split_once("; ")?;
        let (right, foreign) = bytes.split_once(" right, ")?;
        let foreign = foreign.strip_suffix(" foreign")?;
        Some((way, said, right.parse().ok()?, foreign.parse().ok()?))
    };
    parts().unwrap_or_else(|| panic!("{line}"))
}

/// Whether both say the same of a receive that is too short, but for what an MPI library itself
/// says wrongly. `is_unset` says that the library leaves the number of bytes as it is, as MPICH 4.0
/// does.
fn say_the_same(name: &str, is_unset: bool, way: &str, plain: &str, ours: &str) -> bool {
    // Persistent requests that are completed in other ways than these: no error (Open MPI 4.1,
    // 5.0), none of which request (MPICH 5.0), or an error once only.
    let mut simple = ["persistent wait", "persistent test"].iter();
    let is_simple = simple.any(|simple| {
        let rest = way.strip_prefix(simple);
        rest.is_some_and(|rest| rest.starts_with([' ', ',']))
    });
    let is_persistent = way.starts_with("persistent ");
    if is_persistent && !is_simple {
        return ours.starts_with("truncate") || ours.starts_with("in status") || plain == ours;
    }
    // MPI_Waitall of Open MPI 5.0 returns no error where it had not to wait.
    if plain.starts_with("success") && ours.starts_with("in status") {
        return name == "openmpi" && way.contains("recv waitall");
    }
    let words = |said: &str| -> Vec<String> {
        let is_said = |word: &&str| {
            let is_number = word.ends_with(" bytes") || word.ends_with(" elements");
            // MPICH says MPI_ERROR in MPI_Sendrecv_replace; Open MPI 4.1 frees persistent requests
            // that have failed.
            let is_error = way.starts_with("replace ") && word.starts_with("error ");
            !(is_unset && is_number || name == "mpich" && is_error)
        };
        let said = said
            .strip_suffix(", left")
            .filter(|_| is_persistent)
            .unwrap_or(said);
        said.split(", ")
            .filter(is_said)
            .map(str::to_owned)
            .collect()
    };
    words(plain) == words(ours)
}

#[test]
fn what_is_cut_off_is_what_the_library_says_and_delivers() {
    let _turn = turn();
    let library = library();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, CUT, C) else {
            continue;
        };
        let environment = [
            ("LD_PRELOAD", library.to_str().expect("a plain path")),
            ("LIBCOPY_GOVERNOR", "0"),
            ("LIBCOPY_STATS", "ranks"),
        ];
        let mut truncated = 0;
        for arguments in [["56", "176"], ["71", "8"], ["4", "401"]] {
            let plain = mpi.run(2, &arguments, &[]);
            let ours = mpi.run(2, &arguments, &environment);
            let (plain, said) = (text(&plain.stdout), text(&ours.stdout));
            assert_eq!(plain.lines().count(), said.lines().count(), "{name}");
            let is_unset = plain.matches(", 1 bytes, ").count() > plain.lines().count() / 4;
            for (plain, ours) in plain.lines().zip(said.lines()) {
                let (was, is) = (cut(plain), cut(ours));
                let both = format!("{name}:\n{plain}\n{ours}");
                assert_eq!(was.0, is.0, "{both}");
                assert!(say_the_same(name, is_unset, was.0, was.1, is.1), "{both}");
                // Open MPI writes past the end; MPICH leaves some buffers as they are.
                assert_eq!(is.3, 0, "{both}");
                assert!(was.2 == is.2 || was.2 == 0 && name == "mpich", "{both}");
            }
            truncated += noted(&text(&ours.stderr), "truncated");
        }
        assert!(truncated > 0, "{name}: nothing was intercepted");
    }
}

#[test]
fn probes_say_how_long_messages_are_that_others_receive() {
    let _turn = turn();
    let library = library();
    for (name, launcher) in BOTH {
        let shared = [C.1, &["-shared", "-fPIC", "-DSHIM"]].concat();
        let threads = [C.1, &["-pthread"]].concat();
        let compiled = (
            mpi(name, launcher, PROBING, (C.0, &shared[..])),
            mpi(name, launcher, PROBING, (C.0, &threads[..])),
        );
        let (Some(shim), Some(mpi)) = compiled else {
            continue;
        };
        let shim = shim.program.to_str().expect("a plain path");
        let both = format!("{}:{shim}", library.to_str().expect("a plain path"));
        let mut environment = with_messages(library);
        environment[0].1 = &both;
        let said = text(&mpi.run(2, &[], &environment).stdout);
        let expected = ["probes: 0 wrong lengths\n", "no threads\n"];
        assert!(expected.contains(&said.as_str()), "{name}: {said}");
    }
}

#[test]
fn ranks_that_lose_their_rights_go_on() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root becomes somebody else");
        return;
    }
    let _turn = turn();
    let preload = ("LD_PRELOAD", library().to_str().expect("a plain path"));
    let stats = ("LIBCOPY_STATS", "ranks");
    // MPICH 4.0 itself ends the program then.
    let Some(mpi) = mpi("openmpi", "mpirun.openmpi", RIGHTS, C) else {
        return;
    };
    let early = ["messages", "late", "allreduce", "iallgather"];
    let late = ["messages", "late", "collectives"];
    // What nobody announces is found out with the first message, whose sender waits in a call of
    // ours.
    let raw = ["late", "messages", "allreduce", "alltoallv"];
    for who in ["one", "all"] {
        let runs: [(&str, &[&str]); 3] = [("early", &early), ("late", &late), ("raw", &raw)];
        for (when, calls) in runs {
            let arguments = [&[who, when], calls].concat();
            let plain = text(&mpi.run(2, &arguments, &[]).stdout);
            let ours = mpi.run(2, &arguments, &[preload, stats]);
            assert_eq!(plain, text(&ours.stdout), "{who} {when}");
            let received = noted(&text(&ours.stderr), "received");
            assert_eq!(received > 0, when != "early", "{who} {when}");
        }
    }
}

#[test]
fn fortran_messages_are_the_same() {
    let _turn = turn();
    let library = library();
    let preload = with_messages(library);
    for (name, launcher) in BOTH {
        for binding in ["-DBINDING=1", "-DBINDING=2", "-DBINDING=3"] {
            let flags = ["-cpp", "-w", "-fallow-argument-mismatch", binding];
            // MPICH itself does not run this with mpi_f08.
            if (name, binding) == ("mpich", "-DBINDING=3") {
                continue;
            }
            let compiler = ("mpifort", &flags[..]);
            let Some(mpi) = mpi(name, launcher, FORTRAN_MESSAGES, compiler) else {
                continue;
            };
            let plain = text(&mpi.run(2, &[], &[]).stdout);
            let ours = mpi.run(2, &[], &preload);
            assert_eq!(plain.lines().count(), 18, "{plain}");
            assert_eq!(plain, text(&ours.stdout), "{name} {binding}");
            // MPICH's Fortran library has receivers that go past us.
            let report = text(&ours.stderr);
            let intercepted = noted(&report, " sent") > 0;
            assert_eq!(intercepted, name == "openmpi", "{name} {binding}: {report}");
        }
    }
}

#[test]
fn what_is_cut_off_and_who_is_unknown() {
    let _turn = turn();
    let library = library();
    for (name, launcher) in BOTH {
        let shared = [C.1, &["-shared", "-fPIC"]].concat();
        let compiled = (
            mpi(name, launcher, SHIM, (C.0, &shared[..])),
            mpi(name, launcher, LEFTOVERS, C),
        );
        let (Some(shim), Some(mpi)) = compiled else {
            continue;
        };
        let shim = shim.program.to_str().expect("a plain path");
        let plain = mpi.run(2, &[], &[("LD_PRELOAD", shim)]);
        let both = format!("{}:{shim}", library.to_str().expect("a plain path"));
        let mut environment = with_messages(library).to_vec();
        environment[0].1 = &both;
        for fails in [false, true] {
            if fails {
                environment.push(("SHIM_FAIL", "1"));
            }
            let ours = mpi.run(2, &[], &environment);
            let report = text(&ours.stderr);
            assert_eq!(text(&plain.stdout), text(&ours.stdout), "{name} {fails}");
            assert!(noted(&report, "received") > 0, "{name} {fails}: {report}");
            // MPICH keeps what it cuts off to itself.
            if name == "openmpi" {
                assert_eq!(
                    noted(&report, "without a slot"),
                    0,
                    "{name} {fails}: {report}"
                );
            }
        }
    }
}

#[test]
fn what_is_packed_is_the_same() {
    let _turn = turn();
    let library = library().to_str().expect("a plain path");
    for (name, launcher) in BOTH {
        for flag in ["-DINT", "-DLARGE"] {
            let flags = [C.1, &[flag]].concat();
            let Some(mpi) = mpi(name, launcher, PACKING, (C.0, &flags[..])) else {
                continue;
            };
            let arguments = ["120", "11", "20000"];
            let off = [("LD_PRELOAD", library), ("LIBCOPY_DISABLE", "1")];
            let plain = text(&mpi.run(1, &arguments, &off).stdout);
            // Everything; what is worth it from the first use of a type on; and as types earn it.
            let everything = Some(("LIBCOPY_MPI_MIN", "0"));
            let at_once = Some(("LIBCOPY_MPI_PACKED", "0"));
            for least in [everything, at_once, None] {
                let environment = [("LD_PRELOAD", library), ("LIBCOPY_STATS", "ranks")];
                let environment: Vec<_> = environment.into_iter().chain(least).collect();
                let ours = mpi.run(1, &arguments, &environment);
                let said = text(&ours.stdout);
                assert!(said.ends_with("0 wrong\n"), "{name} {flag}: {said}");
                assert_eq!(plain, said, "{name} {flag} {least:?}");
                let report = text(&ours.stderr);
                for function in PACKING_FUNCTIONS.iter().filter(|_| least.is_some()) {
                    let intercepted = intercepted(&report);
                    let found = intercepted.iter().find(|(called, _)| called == function);
                    assert!(
                        found.is_some_and(|(_, count)| *count > 20),
                        "{name} {flag} {least:?} {function}: {report}"
                    );
                }
            }
        }
    }
}

/// A type that the MPI library reads in a way of its own is read in that way whether it has earned
/// a layout or not.
#[test]
fn a_type_keeps_its_reading() {
    let _turn = turn();
    let library = library().to_str().expect("a plain path");
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, PACKING, (C.0, &[C.1, &["-DINT"]].concat())) else {
            continue;
        };
        let arguments = ["readings", "200"];
        let off = [("LD_PRELOAD", library), ("LIBCOPY_DISABLE", "1")];
        let plain = text(&mpi.run(2, &arguments, &off).stdout);
        // Everything; what is worth it from the first use of a type on; and as types earn it.
        let everything = Some(("LIBCOPY_MPI_MIN", "0"));
        let at_once = Some(("LIBCOPY_MPI_PACKED", "0"));
        for least in [everything, at_once, None] {
            let environment = [("LD_PRELOAD", library), ("LIBCOPY_STATS", "ranks")];
            let environment: Vec<_> = environment.into_iter().chain(least).collect();
            let ours = mpi.run(2, &arguments, &environment);
            assert_eq!(plain, text(&ours.stdout), "{name} {least:?}");
            let report = text(&ours.stderr);
            let differently = noted(&report, "types read differently");
            // On each of two ranks Open MPI has three, of which a fourth one is made, and MPICH at
            // least one.
            let least_of_them = if name == "openmpi" { 6 } else { 2 };
            if least == everything {
                assert!(differently >= least_of_them, "{name}: {report}");
                // The others are packed here.
                let made = noted(&report, "layouts made");
                assert!(made >= 8, "{name}: {report}");
            }
        }
    }
}

/// A header arrives in elements of a type that the MPI library packs in a way of its own, and
/// receives as MPI defines.
#[test]
fn what_is_received_is_read_as_it_came() {
    let _turn = turn();
    let library = library().to_str().expect("a plain path");
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, PACKING, (C.0, &[C.1, &["-DINT"]].concat())) else {
            continue;
        };
        let plain = text(&mpi.run(2, &["between"], &[]).stdout);
        let environment = [
            ("LD_PRELOAD", library),
            ("LIBCOPY_STATS", "ranks"),
            ("LIBCOPY_GOVERNOR", "0"),
            ("LIBCOPY_MPI_MIN", "512"),
        ];
        let ours = mpi.run(2, &["between"], &environment);
        let (said, report) = (text(&ours.stdout), text(&ours.stderr));
        assert!(said.ends_with("\n0 wrong\n"), "{name}: {said}{report}");
        assert_eq!(plain, said, "{name}");
        assert!(noted(&report, "received") > 0, "{name}: {report}");
    }
}

#[test]
fn neighbours_get_the_same() {
    let _turn = turn();
    let library = library().to_str().expect("a plain path");
    for (name, launcher) in BOTH {
        for flag in ["-DINT", "-DLARGE"] {
            let flags = [C.1, &[flag]].concat();
            let Some(mpi) = mpi(name, launcher, NEIGHBOURS, (C.0, &flags[..])) else {
                continue;
            };
            // MPICH 4.0's own MPI_Neighbor_alltoallw with ints mixes its types up, or does not
            // return.
            let flags = [C.1, &["-DLARGE"]].concat();
            let reference = match name {
                "mpich" => self::mpi(name, launcher, NEIGHBOURS, (C.0, &flags[..])),
                _ => None,
            };
            let reference = reference.as_ref().unwrap_or(&mpi);
            let mut all = BTreeMap::new();
            let runs: &[(usize, &str)] = match flag {
                "-DINT" => &[(2, "1"), (3, "2")],
                _ => &[(2, "3")],
            };
            for (ranks, seed) in runs.iter().copied() {
                let arguments = ["9", seed, "60000"];
                let off = [("LD_PRELOAD", library), ("LIBCOPY_DISABLE", "1")];
                let on = [
                    ("LD_PRELOAD", library),
                    ("LIBCOPY_STATS", "ranks"),
                    ("LIBCOPY_MPI_MIN", "0"),
                ];
                let plain = reference.run(ranks, &arguments, &off);
                let ours = mpi.run(ranks, &arguments, &on);
                let said = text(&ours.stdout);
                assert_eq!(text(&plain.stdout), said, "{name} {flag} {ranks}");
                assert!(said.lines().count() == 81, "{said}");
                for (function, count) in intercepted(&text(&ours.stderr)) {
                    *all.entry(function.to_owned()).or_insert(0) += count;
                }
            }
            for function in [
                "MPI_Neighbor_alltoall",
                "MPI_Neighbor_alltoallv",
                "MPI_Neighbor_alltoallw",
            ] {
                assert!(all.get(function) > Some(&0), "{name}: {function}: {all:?}");
            }
        }
    }
}

#[test]
fn types_that_are_committed_together_send_no_layouts() {
    let _turn = turn();
    let library = library();
    for (name, launcher) in BOTH {
        let flags = [C.1, &[INCLUDE]].concat();
        let Some(mpi) = mpi(name, launcher, COMMITTED, (C.0, &flags[..])) else {
            continue;
        };
        let preload = with_messages(library);
        let plain = text(&mpi.run(2, &["together"], &[]).stdout);
        assert_eq!(plain.lines().count(), 20, "{plain}");
        for together in [true, false] {
            let arguments: &[&str] = if together { &["together"] } else { &[] };
            let ours = mpi.run(2, arguments, &preload);
            assert_eq!(plain, text(&ours.stdout), "{name}, together: {together}");
            let report = text(&ours.stderr);
            assert!(noted(&report, "bytes by get") > 0, "{name}: {report}");
            let sent = noted(&report, "bytes of layouts");
            let made = noted(&report, "layouts committed");
            if together {
                assert!(sent == 0 && made > 0, "{name}: {report}")
            } else {
                assert!(sent > 0 && made == 0, "{name}: {report}")
            }
        }
    }
}

/// Communicators of the same processes share a team, so that many of them, or one after the other,
/// take neither descriptors nor memory; threads get teams of their own.
#[test]
fn communicators_take_no_descriptors_and_little_memory() {
    let _turn = turn();
    let library = library().to_str().expect("a plain path");
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, COMMUNICATORS, C) else {
            continue;
        };
        // Teams from the first call on, and as they are earned.
        // MPICH polls, and takes its time on few processors.
        let (all, some) = match name {
            "openmpi" => ("400", "200"),
            _ => ("80", "40"),
        };
        for least in ["LIBCOPY_MPI_MIN=1000", "LIBCOPY_STATS=0"] {
            let (variable, value) = least.split_once('=').expect("a variable");
            // Where ranks outnumber processors, a team has so much memory otherwise that a short
            // loop does not earn it.
            let ring = ("LIBCOPY_SHM_RING", "524288");
            let environment = [("LD_PRELOAD", library), (variable, value), ring];
            for arguments in [
                &["many", all, "5", "14000"][..],
                &["loop", some, "4000"],
                &["threads", some],
            ] {
                mpi.run(4, arguments, &environment);
            }
        }
    }
}

/// Eight broadcasts of 1 MiB are less than a team is worth by bytes, but these take long.
#[test]
fn large_calls_that_take_long_earn_a_team() {
    let _turn = turn();
    let library = library().to_str().expect("a plain path");
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, COMMUNICATORS, C) else {
            continue;
        };
        let environment = [
            ("LD_PRELOAD", library),
            ("LIBCOPY_STATS", "ranks"),
            // The memory of a team depends on the processor's caches otherwise.
            ("LIBCOPY_SHM_RING", "524288"),
        ];
        let report = text(&mpi.run(2, &["late", "8"], &environment).stderr);
        let found = intercepted(&report);
        let found = found.iter().find(|(called, _)| *called == "MPI_Bcast");
        assert!(
            found.is_some_and(|(_, count)| *count > 0),
            "{name}: {report}"
        );
    }
}

#[test]
fn ranks_add_their_numbers_to_a_file() {
    let _turn = turn();
    let library = library();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, SOURCE, C) else {
            continue;
        };
        let file = mpi.program.with_extension("stats");
        let environment = [
            ("LD_PRELOAD", library.to_str().expect("a plain path")),
            ("LIBCOPY_STATS", file.to_str().expect("a plain path")),
        ];
        mpi.run(3, &["10", "1", "200000"], &environment);
        let lines = std::fs::read_to_string(&file).expect("a file of the ranks");
        assert_eq!(lines.lines().count(), 3, "{lines}");
        let output = Command::new(library.with_file_name("libcopy"))
            .args(["mpi", "report"])
            .arg(&file)
            .output()
            .expect("the tool starts");
        let _ = std::fs::remove_file(&file);
        let said = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(said.contains("\n3 reports of 3 ranks, "), "{said}");
        assert!(said.contains("MPI_Bcast"), "{said}");
        let program = mpi.program.display().to_string();
        assert!(said.contains(&format!("programs: {program}\n")), "{said}");
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
        assert!(said.contains(&format!("machines: {host}")), "{said}");
        let misspelt = ("LIBCOPY_MPI_MESAGES", "1");
        let environment = [environment[0], ("LIBCOPY_STATS", "ranks"), misspelt];
        let report = text(&mpi.run(3, &["1", "1", "1000"], &environment).stderr);
        let hint = "LIBCOPY_MPI_MESAGES is no variable of libcopy and has no effect; did you mean LIBCOPY_MPI_MESSAGES?";
        assert_eq!(report.matches(hint).count(), 1, "{report}");
        for rank in 0..3 {
            let who = format!("libcopy_mpi: rank {rank} on {}, process ", host.trim());
            assert_eq!(report.matches(&who).count(), 1, "{who}: {report}");
        }
        assert_eq!(report.matches(&program).count(), 3, "{report}");
    }
}

/// What the governor says of a class, by each rank that has written into the file: intercepted,
/// forwarded, and on how many communicators it forwards.
fn governed(lines: &str, function: &str, bytes: u64) -> Vec<[u64; 3]> {
    let names = ["intercepted", "forwarded", "forwarding"];
    governed_numbers(lines, function, bytes, names)
}

/// These members of it.
fn governed_numbers<const N: usize>(
    lines: &str,
    function: &str,
    bytes: u64,
    names: [&str; N],
) -> Vec<[u64; N]> {
    let class = format!("{{\"function\":\"{function}\",\"ranks\":");
    let number = |text: &str, name: &str| -> u64 {
        let (_, behind) = text.split_once(&format!("\"{name}\":")).expect(name);
        let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect(name)
    };
    let of_rank = |line: &str| {
        let mut classes = line.split(&class).skip(1);
        let class = classes.find(|class| number(class, "bytes") == bytes)?;
        Some(names.map(|name| number(class, name)))
    };
    lines.lines().filter_map(of_rank).collect()
}

#[test]
fn collectives_take_the_way_that_costs_less_on_all_ranks() {
    let _turn = turn();
    let library = library();
    let slow: &[(&str, &str)] = &[
        ("VIRTUAL_CLOCK", "own"),
        ("LIBCOPY_TRANSPORT", "cma"),
        ("LIBCOPY_EAGER_MAX", "64"),
        // The memory of a team depends on the processor's caches otherwise.
        ("LIBCOPY_SHM_RING", "524288"),
    ];
    // What is set; how many of 400 allreduces the governor may forward. The first 22 are forwarded
    // without it, as there is no team until 16 MiB have been moved. The next 32 are not, and a call
    // each of the trials behind them and 128 calls later is, however long they take.
    type Case<'a> = (&'a [(&'a str, &'a str)], std::ops::RangeInclusive<u64>);
    let cases: [Case<'_>; 4] = [
        (&[], 2..=368),
        (slow, 328..=346),
        (&[("LIBCOPY_GOVERNOR", "0")], 0..=0),
        (&[("GOVERNED_ODD", "1")], 0..=0),
    ];
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, GOVERNED, C) else {
            continue;
        };
        for (settings, forwarded) in &cases {
            let file = mpi.program.with_extension("stats");
            let mut environment = vec![
                ("LD_PRELOAD", library.to_str().expect("a plain path")),
                ("LIBCOPY_STATS", file.to_str().expect("a plain path")),
            ];
            environment.extend_from_slice(settings);
            let output = mpi.run(2, &["400", "262144"], &environment);
            let said = text(&output.stdout);
            assert_eq!(
                said.matches(": 0 wrong").count(),
                2,
                "{name}, {settings:?}: {said}"
            );
            let lines = std::fs::read_to_string(&file).expect("a file of the ranks");
            let _ = std::fs::remove_file(&file);
            // Those before there is a team are said to be just that, on each rank. How many these
            // are depends on what the calls take, but by the virtual clock.
            let allreduces = r#""MPI_Allreduce":{"#;
            for line in lines.lines().filter(|_| *settings == slow) {
                let counts = line.split_once(allreduces).map_or("", |(_, rest)| rest);
                let not_yet = counts.split_once(r#""not yet":"#).map_or("", |(_, n)| n);
                assert!(not_yet.starts_with("22,"), "{name}, {settings:?}: {line}");
            }
            let ranks = governed(&lines, "MPI_Allreduce", 1 << 18);
            let [first, second] = ranks[..] else {
                panic!("{name}, {settings:?}: {lines}");
            };
            assert_eq!(first, second, "{name}, {settings:?}");
            assert!(
                forwarded.contains(&first[1]),
                "{name}, {settings:?}: {first:?}"
            );
            if *settings == slow {
                assert_eq!(first[0] + first[1], 378, "{name}: {first:?}");
                assert_eq!(first[2], 1, "{name}: {first:?}");
            }
        }
    }
}

#[test]
fn reductions_give_the_same_bits_each_time() {
    let _turn = turn();
    let library = library();
    let preload = [
        ("LD_PRELOAD", library.to_str().expect("a plain path")),
        ("LIBCOPY_STATS", "ranks"),
    ];
    // Enough calls for the governor's first trial, where ranks do not poll for processors.
    let runs = [("openmpi", 4, "40"), ("mpich", 3, "20")];
    for ((name, launcher), (_, ranks, calls)) in BOTH.into_iter().zip(runs) {
        let flags = [C.1, &["-pthread"]].concat();
        let Some(mpi) = mpi(name, launcher, REDUCTIONS, (C.0, &flags)) else {
            continue;
        };
        let run = |environment: &[(&str, &str)]| {
            let output = mpi.run(ranks, &[calls], environment);
            let said = text(&output.stdout);
            let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
            lines.sort();
            (lines, text(&output.stderr))
        };
        let [(first, report), (second, _)] = [run(&preload), run(&preload)];
        let same = first.iter().filter(|line| line.contains(": 0 differ,"));
        assert_eq!(same.count(), ranks, "{name}: {first:?}");
        assert_eq!(first, second, "{name}");
        // Not since all of them are the library's: some are ours, from the first call on.
        let in_time = |report: &str| {
            let of = |column| {
                let counts = counted(report, column);
                let all = counts.iter().filter(|(name, _)| *name == "MPI_Allreduce");
                all.map(|(_, count)| count).sum::<u64>()
            };
            // In the statistics the fourth column is "not yet".
            (of(1) > 0, of(4) == 0)
        };
        assert_eq!(in_time(&report), (true, true), "{name}: {report}");
        let any = [&preload[..], &[("LIBCOPY_REDUCTIONS", "any")]].concat();
        let (_, report) = run(&any);
        // Whether a team is earned in time depends on how long calls take.
        assert!(!in_time(&report).1, "{name}: {report}");
    }
}

#[test]
fn persistent_collectives_are_the_same() {
    let library = library();
    let preload = ("LD_PRELOAD", library.to_str().expect("a plain path"));
    let stats = ("LIBCOPY_STATS", "ranks");
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(program) = mpi(name, launcher, PERSISTENT, C) else {
            continue;
        };
        let mut all = BTreeMap::new();
        // With the last two some are forwarded. Those of MPICH itself are wrong, or fail:
        // persistent.c says how.
        type Run<'a> = (
            usize,
            &'a [&'a str],
            &'a [&'a str],
            &'a [(&'a str, &'a str)],
        );
        let runs: [Run<'_>; 4] = [
            (2, &["16", "1", "300000"], &[], &[("LIBCOPY_MPI_MIN", "0")]),
            (
                3,
                &["24", "2", "100000"],
                &["own"],
                &[("LIBCOPY_MPI_MIN", "0")],
            ),
            (
                3,
                &["16", "4", "100000"],
                &[],
                &[("LIBCOPY_MPI_MIN", "2048")],
            ),
            (2, &["8", "5", "900000"], &[], &[]),
        ];
        let some_fail = name == "mpich";
        for (ranks, arguments, own, settings) in &runs[..if some_fail { 2 } else { 4 }] {
            let blocking = program.run(*ranks, &[arguments, &["blocking"][..]].concat(), &[]);
            let expected = text(&blocking.stdout);
            assert!(expected.lines().count() > 50, "{expected}");
            let environment = [&[preload, stats], *settings].concat();
            let ours = program.run(*ranks, &[*arguments, *own].concat(), &environment);
            let (said, report) = (text(&ours.stdout), text(&ours.stderr));
            for (expected, got) in expected.lines().zip(said.lines()) {
                assert_eq!(
                    expected, got,
                    "{name}, {ranks} ranks, {arguments:?} {own:?}"
                );
            }
            assert_eq!(
                expected, said,
                "{name}, {ranks} ranks, {arguments:?} {own:?}"
            );
            for (function, count) in intercepted(&report) {
                *all.entry(function.to_owned()).or_insert(0) += count;
            }
            if some_fail || *ranks != 2 {
                continue;
            }
            // They are the library's where messages are, or nonblocking collectives.
            for off in ["LIBCOPY_MPI_NONBLOCKING", "LIBCOPY_MPI_MESSAGES"] {
                let environment = [&environment[..], &[(off, "0")]].concat();
                let other = program.run(*ranks, arguments, &environment);
                assert_eq!(expected, text(&other.stdout), "{name}, {off}=0");
                for (function, count) in taken_of(&text(&other.stderr), &PERSISTENT_FUNCTIONS) {
                    assert_eq!(count, 0, "{name}: {function}");
                }
            }
        }
        for function in PERSISTENT_FUNCTIONS {
            assert!(all.get(function) > Some(&0), "{name}: {function}: {all:?}");
        }
    }
}

#[test]
fn nonblocking_collectives_take_the_way_that_costs_less_on_all_ranks() {
    let _turn = turn();
    let library = library().to_str().expect("a plain path");
    let slow = ("VIRTUAL_CLOCK", "own");
    // Of these calls, the first is forwarded, as the ranks have not met. At most 63 come before the
    // first trial, which has one stretch each way, and the second one has two, and both ways have
    // the third: of one call, or of 8 where four are under way together. What each trial took is
    // known 8 calls later at most, as no rank is further ahead of another one than the calls that
    // are under way.
    type Case<'a> = (&'a str, &'a str, [u64; 3], std::ops::RangeInclusive<u64>);
    let cases: [Case<'_>; 4] = [
        ("iallgather", "MPI_Iallgather", [500, 1 << 18, 1], 300..=466),
        ("iallgather", "MPI_Iallgather", [500, 1 << 18, 4], 150..=466),
        ("iallreduce", "MPI_Iallreduce", [200, 1 << 22, 1], 50..=166),
        ("ibcast", "MPI_Ibcast", [200, 1 << 22, 1], 50..=166),
    ];
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, GOVERNED_NONBLOCKING, C) else {
            continue;
        };
        let file = mpi.program.with_extension("stats");
        let run = |how: &str, function: &str, numbers: [u64; 3], settings: &[(&str, &str)]| {
            let environment = [
                ("LD_PRELOAD", library),
                ("LIBCOPY_STATS", file.to_str().expect("a plain path")),
            ];
            let environment = [&environment[..], settings].concat();
            let arguments = numbers.map(|number| number.to_string());
            let [calls, bytes, window] = arguments.each_ref().map(String::as_str);
            let output = mpi.run(3, &[how, calls, bytes, window], &environment);
            assert_eq!(text(&output.stdout), "0 wrong\n".repeat(3), "{name} {how}");
            let lines = std::fs::read_to_string(&file).expect("a file of the ranks");
            let _ = std::fs::remove_file(&file);
            governed(&lines, function, numbers[1])
        };
        for (how, function, numbers, expected) in &cases {
            let ranks = run(how, function, *numbers, &[slow]);
            let what = format!("{name} {how} {numbers:?}: {ranks:?}");
            let [[intercepted, forwarded, forwarding], second, third] = ranks[..] else {
                panic!("{what}");
            };
            assert!(second == ranks[0] && third == ranks[0], "{what}");
            assert_eq!(intercepted + forwarded, numbers[0] - 1, "{what}");
            assert!(forwarding == 1 && expected.contains(&forwarded), "{what}");
        }
        // Of the starts of a request, all are for the governor; of those of the other one, 13, none
        // is tried.
        let ranks = run("bcast_init", "MPI_Bcast_init", [200, 1 << 22, 1], &[slow]);
        let [[intercepted, forwarded, forwarding], ..] = ranks[..] else {
            panic!("{name}: {ranks:?}");
        };
        assert!(
            ranks.len() == 3 && ranks.iter().all(|rank| *rank == ranks[0]),
            "{name}: {ranks:?}"
        );
        assert_eq!((intercepted + forwarded, forwarding), (213, 1), "{name}");
        assert!(forwarded >= 50, "{name}: {ranks:?}");
        let [gathers, several, ..] = &cases;
        // By what they really cost: tried at least.
        let ranks = run(several.0, several.1, several.2, &[]);
        let all_alike = ranks.len() == 3 && ranks.iter().all(|rank| *rank == ranks[0]);
        assert!(all_alike && ranks[0][1] > 0, "{name}: {ranks:?}");
        // A start waits for nobody, however many of them there are.
        let ranks = run("ahead", "MPI_Ibcast", [3000, 32768, 1], &[]);
        assert!(
            ranks.iter().all(|rank| rank[0] + rank[1] == 3000),
            "{name}: {ranks:?}"
        );
        for off in [("LIBCOPY_GOVERNOR", "0"), ("GOVERNED_ODD", "1")] {
            let ranks = run(gathers.0, gathers.1, gathers.2, &[slow, off]);
            assert!(ranks.is_empty(), "{name}: {ranks:?}");
        }
    }
}

#[test]
fn packing_is_governed() {
    let _turn = turn();
    let library = library().to_str().expect("a plain path");
    for (name, launcher) in BOTH {
        let Some(program) = mpi(name, launcher, GOVERNED_PACKING, C) else {
            continue;
        };
        for is_governed in ["1", "0"] {
            let file = program.program.with_extension("stats");
            let environment = [
                ("LD_PRELOAD", library),
                ("LIBCOPY_STATS", file.to_str().expect("a plain path")),
                ("LIBCOPY_GOVERNOR", is_governed),
                // From the first use of a type on: when it earns a layout depends on the machine.
                ("LIBCOPY_MPI_PACKED", "0"),
            ];
            let said = text(&program.run(2, &["500"], &environment).stdout);
            assert_eq!(said, "0 wrong\n0 wrong\n", "{name}");
            let lines = std::fs::read_to_string(&file).expect("a file of the ranks");
            let _ = std::fs::remove_file(&file);
            for function in ["MPI_Pack", "MPI_Unpack"] {
                // 4,000 blocks of 1 to 3 ints.
                let ranks = governed(&lines, function, 1 << 14);
                let expected = if is_governed == "1" { 2 } else { 0 };
                assert_eq!(ranks.len(), expected, "{name}, {function}: {lines}");
                for [intercepted, forwarded, _] in ranks {
                    // Trials come after 32 calls and at most 128 later, with a call each way at
                    // least.
                    assert!(
                        intercepted >= 2 && forwarded >= 2,
                        "{name}, {function}: {lines}"
                    );
                    // A thread knows up to 64 that are still to come.
                    let all = intercepted + forwarded;
                    assert!(
                        (500..500 + 64).contains(&all),
                        "{name}, {function}: {lines}"
                    );
                }
            }
        }
    }
}

/// Runs `governed_messages.c`; the statistics of its ranks.
fn governed_messages_lines(mpi: &Mpi, how: &str, bytes: u64, settings: &[(&str, &str)]) -> String {
    let file = mpi.program.with_extension("stats");
    let clock = mpi.program.with_extension("clock");
    std::fs::write(&clock, [0; 8]).expect("a clock for both ranks");
    let mut environment = vec![
        ("LD_PRELOAD", library().to_str().expect("a plain path")),
        ("LIBCOPY_STATS", file.to_str().expect("a plain path")),
        ("VIRTUAL_CLOCK", clock.to_str().expect("a plain path")),
    ];
    environment.extend_from_slice(settings);
    let output = mpi.run(2, &[how, "400", &bytes.to_string()], &environment);
    let _ = std::fs::remove_file(&clock);
    assert_eq!(text(&output.stdout), "0 wrong\n0 wrong\n", "{how}");
    let lines = std::fs::read_to_string(&file).expect("a file of the ranks");
    let _ = std::fs::remove_file(&file);
    lines
}

/// Runs `governed_messages.c`; what the governor says of the class, by each rank that has it.
fn governed_messages(
    mpi: &Mpi,
    (how, function): (&str, &str),
    bytes: u64,
    settings: &[(&str, &str)],
) -> Vec<[u64; 3]> {
    let lines = governed_messages_lines(mpi, how, bytes, settings);
    governed(&lines, function, bytes)
}

#[test]
fn messages_take_the_way_that_costs_less() {
    let _turn = turn();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, GOVERNED_MESSAGES, C) else {
            continue;
        };
        for (how, function, senders) in [
            ("send", "MPI_Send", 1),
            ("isend", "MPI_Isend", 1),
            ("start", "MPI_Start", 1),
            ("sendrecv", "MPI_Sendrecv", 2),
        ] {
            let ranks = governed_messages(&mpi, (how, function), 1 << 19, &[]);
            assert_eq!(ranks.len(), senders, "{name}, {how}: {ranks:?}");
            for [intercepted, forwarded, forwarding] in ranks {
                assert_eq!(intercepted + forwarded, 400, "{name}, {how}");
                assert_eq!(forwarding, 1, "{name}, {how}");
                // Of the first 63 at most none; of trials, the longest stretch of four under way
                // has 32.
                assert!(forwarded >= 100, "{name}, {how}: {forwarded}");
            }
        }
        let typed = ("typed", "MPI_Send");
        let ranks = governed_messages(&mpi, typed, 1 << 16, &[]);
        let [[intercepted, forwarded, _]] = ranks[..] else {
            panic!("{name}: {ranks:?}");
        };
        assert!(intercepted > 32 && forwarded > 0, "{name}: {ranks:?}");
        // Two layouts of as many bytes and pieces are two classes.
        let lines = governed_messages_lines(&mpi, "layouts", 1 << 16, &[]);
        let classes = governed_numbers(&lines, "MPI_Send", 1 << 16, ["communicators"]);
        assert_eq!(classes, [[2]], "{name}: {lines}");
        for off in [("LIBCOPY_GOVERNOR", "0"), ("LIBCOPY_MPI_MIN", "1000")] {
            let ranks = governed_messages(&mpi, typed, 1 << 16, &[off]);
            assert!(ranks.is_empty(), "{name}, {off:?}: {ranks:?}");
        }
    }
}

#[test]
fn unknown_libraries_get_everything_passed_on() {
    let library = library();
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("refused.{}", std::process::id()));
    // What the library is called, what it has, and what is said about it.
    let cases: [(&str, &[&str], &str); 3] = [
        (
            "libmpi_abi.so.2",
            &["-DABI=2"],
            "version 2.0 of the standard ABI",
        ),
        (
            "libmpi.so.40",
            &["-DABI=-1"],
            "neither Open MPI nor a library with MPICH's ABI",
        ),
        (
            "libmpi.so.12",
            &["-DOPEN_MPI", "-DMPICH"],
            "both Open MPI and a library with MPICH's ABI",
        ),
    ];
    for (name, has, why) in cases {
        std::fs::create_dir_all(&directory).expect("a directory for the test's");
        let (fake, program) = (directory.join(name), directory.join("program"));
        let compile = |arguments: &[&str], output: &Path| {
            let mut compiler = Command::new("cc");
            compiler.args(["-Wall", "-Werror", REFUSED]).args(arguments);
            compiler.arg("-o").arg(output);
            assert!(compiler.status().expect("a compiler").success(), "{name}");
        };
        let soname = format!("-Wl,-soname,{name}");
        let flags = [&["-DLIBRARY", "-shared", "-fPIC", &soname], has].concat();
        compile(&flags, &fake);
        compile(
            &[fake.to_str().expect("a plain path"), "-Wl,-rpath,$ORIGIN"],
            &program,
        );
        for messages in ["0", "1"] {
            let output = Command::new(&program)
                .env("LD_PRELOAD", library)
                .env("LIBCOPY_MPI_MIN", "0")
                .env("LIBCOPY_MPI_MESSAGES", messages)
                .output()
                .expect("the program starts");
            let (said, complaint) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{name}: {said}{complaint}");
            let expected = "MPI_Init\nMPI_Bcast\nMPI_Send\nMPI_Pack\nMPI_Finalize\n";
            assert_eq!(said, expected, "{name}: {complaint}");
            assert!(
                complaint.contains(why) && complaint.contains("all calls are forwarded"),
                "{name}: {complaint}"
            );
            assert_eq!(complaint.lines().count(), 1, "{name}: {complaint}");
        }
        std::fs::remove_dir_all(&directory).expect("the test's own directory");
    }
}

/// What tools said in a run of [`TOOLED`], and that nothing arrived wrong.
fn said_by_tools(output: &Output, what: &str) -> Vec<String> {
    let said = text(&output.stdout);
    assert_eq!(said.matches(" wrong 0\n").count(), 2, "{what}: {said}");
    let lines = said.lines().filter(|line| line.starts_with("tool: "));
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn tools_in_any_order_see_what_they_wrap() {
    let library = library().to_str().expect("a plain path");
    for (name, launcher) in BOTH {
        let _turn = turn();
        let build = |source: &str, flags: &[&str]| {
            let flags = [C.1, flags].concat();
            mpi(name, launcher, source, (C.0, &flags[..]))
        };
        let Some(program) = build(TOOLED, &[]) else {
            continue;
        };
        let stats = ("LIBCOPY_STATS", "ranks");
        let ours = program.run(2, &[], &[("LD_PRELOAD", library), stats]);
        let report = text(&ours.stderr);
        said_by_tools(&ours, name);
        assert!(noted(&report, "received") > 0, "{name}: {report}");
        assert!(!report.contains(" off: "), "{name}: {report}");
        // What a tool wraps, and what is off because of that.
        let cases: [(&[&str], &[&str]); 3] = [
            (
                &["-DRECEIVING"],
                &["messages off: MPI_Recv", "nonblocking off: MPI_Wait "],
            ),
            (
                &["-DCOMPLETING", "-DINIT"],
                &["messages off: MPI_Waitall", "nonblocking off: MPI_Waitall"],
            ),
            (&["-DCOLLECTIVE"], &["collectives off: MPI_Bcast"]),
        ];
        for (wraps, off) in cases {
            let flags = [wraps, &["-shared", "-fPIC"]].concat();
            let tool = build(TOOL, &flags).expect("the compiler was there a moment ago");
            let tool = tool.program.to_str().expect("a plain path");
            let plain = program.run(2, &[], &[("LD_PRELOAD", tool)]);
            let plain = said_by_tools(&plain, tool);
            assert_eq!(plain.len(), 2, "{name}: {plain:?}");
            let orders = [format!("{tool}:{library}"), format!("{library}:{tool}")];
            for (order, preload) in orders.iter().enumerate() {
                let what = format!("{name}: {preload}: {wraps:?}");
                let ours = program.run(2, &[], &[("LD_PRELOAD", preload), stats]);
                assert_eq!(plain, said_by_tools(&ours, &what), "{what}");
                let report = text(&ours.stderr);
                for line in off {
                    let (feature, symbol) = line.split_once("off: ").expect("a feature");
                    let why = match order {
                        0 => format!("{feature}off: {symbol}"),
                        _ => format!("{feature}off: {tool} has {}", symbol.trim()),
                    };
                    assert_eq!(report.matches(&why).count(), 2, "{what}: {why}: {report}");
                    assert!(report.contains(tool), "{what}: {report}");
                }
            }
        }
        // In the program itself, also one at a fixed address that takes the address of what it
        // calls.
        for flags in [&["-DRECEIVING", TOOL][..], &["-DINIT", "-no-pie", TOOL]] {
            let linked = build(TOOLED, flags).expect("the compiler was there a moment ago");
            let plain = said_by_tools(&linked.run(2, &[], &[]), name);
            let ours = linked.run(2, &[], &[("LD_PRELOAD", library), stats]);
            assert_eq!(plain, said_by_tools(&ours, name), "{name}: {flags:?}");
            let report = text(&ours.stderr);
            let is_off = report.contains("messages off: MPI_Recv of the program");
            assert_eq!(is_off, flags.contains(&"-DRECEIVING"), "{name}: {report}");
        }
    }
}

#[test]
fn a_tool_of_one_rank_switches_messages_off_for_all() {
    let library = library().to_str().expect("a plain path");
    for (name, launcher) in BOTH {
        let _turn = turn();
        let flags = [C.1, &["-DRECEIVING", "-shared", "-fPIC"]].concat();
        let compiled = (
            mpi(name, launcher, TOOL, (C.0, &flags[..])),
            mpi(name, launcher, TOOLED, C),
        );
        let (Some(tool), Some(program)) = compiled else {
            continue;
        };
        let script = Mpi {
            name,
            launcher,
            program: program.program.with_extension("sh"),
        };
        let preload = format!("{}:{library}", tool.program.display());
        let lines = format!(
            "#!/bin/sh\n[ \"$OMPI_COMM_WORLD_RANK$PMI_RANK\" = 1 ] && LD_PRELOAD={preload}\n\
             export LD_PRELOAD\nexec {}\n",
            program.program.display()
        );
        std::fs::write(&script.program, lines).expect("a script");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script.program, mode).expect("a script");
        let environment = [("LD_PRELOAD", library), ("LIBCOPY_STATS", "ranks")];
        let ours = script.run(2, &[], &environment);
        let report = text(&ours.stderr);
        assert_eq!(said_by_tools(&ours, name).len(), 1, "{name}");
        assert!(!report.contains(" received "), "{name}: {report}");
        assert!(
            report.contains("messages off: MPI_Recv of"),
            "{name}: {report}"
        );
    }
}

#[test]
fn sessions_need_no_world() {
    let library = library().to_str().expect("a plain path");
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(mpi) = mpi(name, launcher, SESSIONS, C) else {
            continue;
        };
        let modes: [&[&str]; 4] = [
            &["only", "1"],
            &["only", "3"],
            &["beside", "1"],
            &["after", "1"],
        ];
        for mode in modes {
            // MPICH 4.0 does not survive a second session as it is.
            let (_, plain) = mpi.output(2, mode, &[]);
            if !plain.status.success() {
                assert_eq!((name, mode[1]), ("mpich", "3"), "{}", text(&plain.stderr));
                continue;
            }
            for messages in ["0", "1"] {
                let environment = [("LD_PRELOAD", library), ("LIBCOPY_MPI_MESSAGES", messages)];
                let ours = mpi.run(2, mode, &environment);
                let sorted = |output: &Output| {
                    let said = text(&output.stdout);
                    let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
                    lines.sort();
                    lines
                };
                assert_eq!(sorted(&plain), sorted(&ours), "{name}: {mode:?}");
            }
        }
    }
}
