// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages: the same bytes, statuses and errors by any function.

use std::time::Instant;

use crate::common::{BOTH, C, LIMIT, counted, library, mpi, noted, programs, sorted, text, turn};
use crate::with_messages;

#[test]
fn messages_go_on_while_a_rank_is_in_a_collective() {
    let library = library();
    let _turn = turn();
    for mpi in programs(source!("progress.c"), &[]) {
        let name = mpi.name;
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
fn messages_are_the_same_on_any_way() {
    let _turn = turn();
    let library = library();
    let preload = with_messages(library);
    for mpi in programs(source!("messages.c"), &["-pthread"]) {
        let name = mpi.name;
        let runs: [(usize, &[&str]); 4] = [
            (2, &["40", "1", "200000"]),
            (3, &["20", "2", "600000"]),
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
    let preload = with_messages(library());
    for mpi in programs(source!("handlers.c"), &["-pthread"]) {
        let name = mpi.name;
        let ours = mpi.run(2, &[], &preload);
        let report = text(&ours.stderr);
        let expected = [
            "rank 0: 40 truncated",
            "rank 0: the handler is still there",
            "rank 1: 40 truncated",
            "rank 1: the handler is still there",
            "whole: 0 wrong",
        ];
        assert_eq!(sorted(&ours), expected, "{name}: {report}");
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
    for mpi in programs(source!("short.c"), &[]) {
        let name = mpi.name;
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
fn messages_wait_for_nobody_who_waits_elsewhere() {
    let _turn = turn();
    let library = library();
    let preload = with_messages(library);
    for mpi in programs(source!("waiting.c"), &[]) {
        let name = mpi.name;
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
fn messages_without_a_receive_are_not_packed() {
    let _turn = turn();
    let mut environment = with_messages(library()).to_vec();
    environment.push(("LIBCOPY_GOVERNOR", "0"));
    for mpi in programs(source!("exchanges.c"), &[]) {
        let name = mpi.name;
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
    for mpi in programs(source!("cut.c"), &[]) {
        let name = mpi.name;
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
            mpi(name, launcher, source!("probing.c"), (C.0, &shared[..])),
            mpi(name, launcher, source!("probing.c"), (C.0, &threads[..])),
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
    let Some(mpi) = mpi("openmpi", "mpirun.openmpi", source!("rights.c"), C) else {
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
fn what_is_cut_off_and_who_is_unknown() {
    let _turn = turn();
    let library = library();
    for (name, launcher) in BOTH {
        let shared = [C.1, &["-shared", "-fPIC"]].concat();
        let compiled = (
            mpi(name, launcher, source!("shim.c"), (C.0, &shared[..])),
            mpi(name, launcher, source!("leftovers.c"), C),
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
