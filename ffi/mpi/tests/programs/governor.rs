// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is measured, and which way is taken because of that.

use crate::common::{
    BOTH, C, Mpi, intercepted, is_full, library, mpi, noted, programs, text, turn,
};

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
    ];
    // What is set; how many of 400 allreduces the governor may forward. The first 11 are forwarded
    // without it, as there is no team until 9 MiB have been moved. The next 32 are not, and a call
    // each of the trials behind them and 128 calls later is, however long they take.
    type Case<'a> = (&'a [(&'a str, &'a str)], std::ops::RangeInclusive<u64>);
    let cases: [Case<'_>; 4] = [
        (&[], 2..=379),
        (slow, 339..=357),
        (&[("LIBCOPY_GOVERNOR", "0")], 0..=0),
        (&[("GOVERNED_ODD", "1")], 0..=0),
    ];
    for mpi in programs(source!("governed.c"), &[]) {
        let name = mpi.name;
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
                assert!(not_yet.starts_with("11,"), "{name}, {settings:?}: {line}");
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
                assert_eq!(first[0] + first[1], 389, "{name}: {first:?}");
                assert_eq!(first[2], 1, "{name}: {first:?}");
            }
        }
    }
}

/// Alltoalls of two ranks that have a processor each are intercepted, but not those of two pairs on
/// the same two processors, though each of them has as many as ranks.
#[test]
fn ranks_of_other_communicators_share_processors() {
    let _turn = turn();
    let program = mpi(BOTH[0].0, BOTH[0].1, source!("pairs.c"), C);
    let Some(program) = program else {
        return;
    };
    let environment = [
        ("LD_PRELOAD", library().to_str().expect("a plain path")),
        ("LIBCOPY_STATS", "ranks"),
        ("LIBCOPY_GOVERNOR", "0"),
    ];
    for ranks in [2, 4] {
        let output = program.run(ranks, &["200"], &environment);
        assert_eq!(text(&output.stdout), "0 wrong\n".repeat(ranks));
        let report = text(&output.stderr);
        let counts = intercepted(&report).into_iter();
        let count: u64 = counts
            .filter(|(name, _)| *name == "MPI_Scatter")
            .map(|(_, n)| n)
            .sum();
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        assert_eq!(
            count > 0,
            ranks == 2 && processors >= 2,
            "{ranks} ranks: {report}"
        );
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
    for mpi in programs(source!("governed_nonblocking.c"), &[]) {
        let name = mpi.name;
        let file = mpi.program.with_extension("stats");
        type Calls<'a> = (&'a str, &'a str, [u64; 3]);
        let run_on = |ranks, (how, function, numbers): Calls<'_>, settings: &[(&str, &str)]| {
            let environment = [
                ("LD_PRELOAD", library),
                ("LIBCOPY_STATS", file.to_str().expect("a plain path")),
            ];
            let environment = [&environment[..], settings].concat();
            let arguments = numbers.map(|number| number.to_string());
            let [calls, bytes, window] = arguments.each_ref().map(String::as_str);
            let output = mpi.run(ranks, &[how, calls, bytes, window], &environment);
            assert_eq!(
                text(&output.stdout),
                "0 wrong\n".repeat(ranks),
                "{name} {how}"
            );
            let lines = std::fs::read_to_string(&file).expect("a file of the ranks");
            let _ = std::fs::remove_file(&file);
            governed(&lines, function, numbers[1])
        };
        let run = |how: &str, function: &str, numbers, settings: &[(&str, &str)]| {
            run_on(3, (how, function, numbers), settings)
        };
        // What is decided, by a clock of its own, does not depend on the library; how requests are
        // completed does: the other one has the case with most of them.
        let all = is_full() || mpi.name == "openmpi";
        let cases_here = if all { &cases[..] } else { &cases[1..2] };
        for (how, function, numbers, expected) in cases_here {
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
        let ranks = run("ahead", "MPI_Ibcast", [400, 1 << 20, 1], &[]);
        assert_eq!(ranks.len(), 3, "{name}: {ranks:?}");
        assert!(
            ranks.iter().all(|rank| rank[0] + rank[1] == 400),
            "{name}: {ranks:?}"
        );
        // Two ranks that have a processor each, and no other one, share none.
        let bound = ("GOVERNED_BOUND", "1");
        let ranks = run_on(2, (gathers.0, gathers.1, [20, 1 << 18, 1]), &[bound]);
        assert!(
            ranks.len() == 2 && ranks.iter().all(|rank| rank[0] + rank[1] == 19),
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
    for program in programs(source!("governed_packing.c"), &[]) {
        let name = program.name;
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
            // Forwarded or not, its time is in MPI.
            assert_eq!(
                lines.matches("\"packing_ns\":").count(),
                2,
                "{name}: {lines}"
            );
            assert!(!lines.contains("\"packing_ns\":0,"), "{name}: {lines}");
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
    for mpi in programs(source!("governed_messages.c"), &[]) {
        let name = mpi.name;
        for (how, function, senders) in [
            ("send", "MPI_Send", 1),
            ("isend", "MPI_Isend", 1),
            ("start", "MPI_Start", 1),
            ("sendrecv", "MPI_Sendrecv", 2),
        ] {
            let ranks = governed_messages(&mpi, (how, function), 1 << 20, &[]);
            assert_eq!(ranks.len(), senders, "{name}, {how}: {ranks:?}");
            for [intercepted, forwarded, forwarding] in ranks {
                assert_eq!(intercepted + forwarded, 400, "{name}, {how}");
                assert_eq!(forwarding, 1, "{name}, {how}");
                // Of the first 63 at most none; of trials, the longest stretch of four under way
                // has 32.
                assert!(forwarded >= 100, "{name}, {how}: {forwarded}");
            }
        }
        // What fits into a lane takes no longer by this clock, but is tried, too.
        for call in [("send", "MPI_Send"), ("sendrecv", "MPI_Sendrecv")] {
            let ranks = governed_messages(&mpi, call, 1 << 14, &[]);
            let is_tried = |[intercepted, forwarded, _]: &[u64; 3]| {
                intercepted + forwarded == 400 && *intercepted > 0 && *forwarded > 0
            };
            assert!(!ranks.is_empty(), "{name}, {call:?}");
            assert!(ranks.iter().all(is_tried), "{name}, {call:?}: {ranks:?}");
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
fn whether_packing_pays_is_found_out_again() {
    const MESSAGES: u64 = 60_000;
    let _turn = turn();
    for (name, launcher) in BOTH {
        let slow = [C.1, &["-shared", "-fPIC", "-DSLOW"]].concat();
        // For the preloaded library to find the program's functions.
        let found = [C.1, &["-rdynamic"]].concat();
        let compiled = (
            mpi(name, launcher, source!("repacked.c"), (C.0, &slow[..])),
            mpi(name, launcher, source!("repacked.c"), (C.0, &found[..])),
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

/// Eight broadcasts of 1 MiB are less than a team is worth by bytes, but these take long.
#[test]
fn large_calls_that_take_long_earn_a_team() {
    let _turn = turn();
    let library = library().to_str().expect("a plain path");
    for mpi in programs(source!("communicators.c"), &[]) {
        let name = mpi.name;
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
