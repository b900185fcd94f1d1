// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives: blocking, nonblocking and persistent ones, between neighbours, on several nodes.

use std::collections::BTreeMap;
use std::process::Command;

use crate::common::{
    BOTH, C, LIMIT, Mpi, counted, intercepted, is_full, library, mpi, programs, text, turn,
};
use crate::{FUNCTIONS, NONBLOCKING_FUNCTIONS, PERSISTENT_FUNCTIONS, taken_of};

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

/// With the functions for large counts or the others; a library that has only the others prints
/// what is right.
fn differential(name: &'static str, launcher: &'static str, large: bool) {
    let Some(plainly) = mpi(name, launcher, source!("differential.c"), C) else {
        return;
    };
    let flags = [C.1, &["-DLARGE"]].concat();
    let other = if large {
        mpi(name, launcher, source!("differential.c"), (C.0, &flags[..]))
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
        (2, 160, &["1", "400000"]),
        (4, 40, &["2", "400000"]),
        (3, 40, &["3", "400000"]),
        (8, 15, &["4", "200000"]),
        // Taken from 1 MiB on only.
        (3, 5, &["5", "4000000", "reduce"]),
    ];
    // Larger counts are the same code behind the decision: the longest run is for one form. Fewer
    // rounds of the others do not have all functions.
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
    // Larger counts are the same code behind the decision, which is tested with MPICH each time.
    if is_full() {
        differential("openmpi", "mpirun.openmpi", true);
    } else {
        eprintln!("skipped: only with LIBCOPY_TEST_ALL=1");
    }
}

#[test]
fn mpich_programs_that_count_further_print_the_same() {
    differential("mpich", "mpirun.mpich", true);
}

#[test]
fn several_nodes_print_the_same() {
    let library = library();
    let _turn = turn();
    for mpi in programs(source!("differential.c"), &[]) {
        let name = mpi.name;
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
fn network_namespaces_are_nodes() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/mpi-nodes");
    let library = library();
    let _turn = turn();
    for mpi in programs(source!("differential.c"), &[]) {
        let name = mpi.name;
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
fn nonblocking_collectives_are_the_same() {
    let library = library();
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(plainly) = mpi(name, launcher, source!("nonblocking.c"), C) else {
            continue;
        };
        let flags = [C.1, &["-DLARGE"]].concat();
        let large = mpi(name, launcher, source!("nonblocking.c"), (C.0, &flags[..]));
        let large = large.expect("the compiler was there a moment ago");
        let preload = ("LD_PRELOAD", library.to_str().expect("a plain path"));
        let stats = ("LIBCOPY_STATS", "ranks");
        let mut all = BTreeMap::new();
        // The last one takes what is faster.
        type Run<'a> = (usize, &'a [&'a str], &'a Mpi, &'a str, &'a str);
        let mut runs: [Run<'_>; 5] = [
            (2, &["80", "1", "300000"], &plainly, "0", "0"),
            (3, &["60", "2", "200000"], &large, "512", "0"),
            (4, &["30", "3", "200000"], &plainly, "512", "1"),
            (5, &["20", "4", "200000"], &plainly, "2048", "1"),
            (2, &["30", "5", "900000"], &plainly, "", "0"),
        ];
        // Each round has up to six collectives of random shapes under way: twenty have all shapes
        // with all functions.
        if !is_full() {
            runs[0].1 = &["40", "1", "300000"];
            runs[1].1 = &["25", "2", "200000"];
            runs[2].1 = &["20", "3", "200000"];
            runs[4].1 = &["20", "5", "900000"];
        }
        for (number, (ranks, arguments, preloaded, least, messages)) in runs.into_iter().enumerate()
        {
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
            // They are forwarded if somebody asks for that: with either form, with messages and
            // without.
            if is_full() || [1, 2].contains(&number) {
                let mut off = environment[..many].to_vec();
                off.push(("LIBCOPY_MPI_NONBLOCKING", "0"));
                let other = preloaded.run(ranks, arguments, &off);
                assert_eq!(plain, text(&other.stdout), "{name}, off");
                for (function, count) in taken_of(&text(&other.stderr), &NONBLOCKING_FUNCTIONS) {
                    assert_eq!(count, 0, "{name}: {function}");
                }
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
fn persistent_collectives_are_the_same() {
    let library = library();
    let preload = ("LD_PRELOAD", library.to_str().expect("a plain path"));
    let stats = ("LIBCOPY_STATS", "ranks");
    let _turn = turn();
    for program in programs(source!("persistent.c"), &[]) {
        let name = program.name;
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
fn neighbours_get_the_same() {
    let _turn = turn();
    let library = library().to_str().expect("a plain path");
    for (name, launcher) in BOTH {
        for flag in ["-DINT", "-DLARGE"] {
            let flags = [C.1, &[flag]].concat();
            let Some(mpi) = mpi(name, launcher, source!("neighbours.c"), (C.0, &flags[..])) else {
                continue;
            };
            // MPICH 4.0's own MPI_Neighbor_alltoallw with ints mixes its types up, or does not
            // return.
            let flags = [C.1, &["-DLARGE"]].concat();
            let reference = match name {
                "mpich" => self::mpi(name, launcher, source!("neighbours.c"), (C.0, &flags[..])),
                _ => None,
            };
            let reference = reference.as_ref().unwrap_or(&mpi);
            let mut all = BTreeMap::new();
            let runs: &[(usize, &str)] = match flag {
                "-DINT" => &[(2, "1"), (3, "2")],
                _ => &[(2, "3")],
            };
            // A round calls each function three times in neighbourhoods of its own.
            let rounds = if is_full() { 9 } else { 4 };
            for (ranks, seed) in runs.iter().copied() {
                let arguments = [&rounds.to_string(), seed, "60000"];
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
                assert!(said.lines().count() == 15 * rounds, "{said}");
                for (function, count) in intercepted(&text(&ours.stderr)) {
                    *all.entry(function.to_owned()).or_insert(0) += count;
                }
            }
            for function in [
                "MPI_Neighbor_allgather",
                "MPI_Neighbor_allgatherv",
                "MPI_Neighbor_alltoall",
                "MPI_Neighbor_alltoallv",
                "MPI_Neighbor_alltoallw",
            ] {
                assert!(all.get(function) > Some(&0), "{name}: {function}: {all:?}");
            }
        }
    }
}

/// A library without these forms has the others. mpi4py calls them wherever it finds them.
#[test]
fn forwarded_collectives_have_forms_for_large_counts_under_each_library() {
    let _turn = turn();
    for mpi in programs(source!("narrowed.c"), &[]) {
        let name = mpi.name;
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
        let Some(mpi) = mpi(name, launcher, source!("reductions.c"), (C.0, &flags)) else {
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
                // Scans of few bytes are worth a team, too, where ranks share processors.
                let named = |name: &str| ["MPI_Allreduce", "MPI_Scan"].contains(&name);
                let all = counts.iter().filter(|(name, _)| named(name));
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

/// Communicators of the same processes share a team, so that many of them, or one after the other,
/// take neither descriptors nor memory; threads get teams of their own.
#[test]
fn communicators_take_no_descriptors_and_little_memory() {
    let _turn = turn();
    let library = library().to_str().expect("a plain path");
    for mpi in programs(source!("communicators.c"), &[]) {
        let name = mpi.name;
        // Teams from the first call on, and as they are earned.
        // MPICH polls, and takes its time on few processors.
        let (all, some) = match name {
            "openmpi" => ("400", "200"),
            _ => ("80", "40"),
        };
        // When a team is earned does not depend on the library, under which one of the two does.
        let both = ["LIBCOPY_MPI_MIN=1000", "LIBCOPY_STATS=0"];
        let all_of_them = is_full() || name == "openmpi";
        for least in &both[..if all_of_them { 2 } else { 1 }] {
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
