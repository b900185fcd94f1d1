// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ranks that have the library, and ranks that have not, in one job: nobody hangs, every byte is
//! right, and what is intercepted where all have it is intercepted.

// Other tests use other parts of it.
#[allow(dead_code)]
mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{BOTH, C, LIMIT, Mpi, intercepted, library, mpi, noted, text, turn};

const PARTIAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/partial.c");
const FORKED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/forked.c");
const MEETINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/meetings.c");

/// Ranks of a job, and whether they have the library.
type Part<'a> = (usize, &'a [&'a str]);

/// The job's command.
fn job(mpi: &Mpi, parts: &[Part<'_>], arguments: &[&str]) -> Command {
    let mut command = mpi.launch(LIMIT);
    for (i, (ranks, environment)) in parts.iter().enumerate() {
        if i > 0 {
            command.arg(":");
        }
        command.args(["-n", &ranks.to_string(), "env"]);
        command.args(*environment).arg(&mpi.program).args(arguments);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What came of a job whose ranks found all bytes right: its report.
fn report(mpi: &Mpi, output: &Output, ranks: usize) -> String {
    let (said, report) = (text(&output.stdout), text(&output.stderr));
    let right = said.matches("right").count();
    let good = output.status.success() && right == ranks;
    assert!(good, "{}: {}: {said}{report}", mpi.name, output.status);
    // Launchers of Open MPI 5 put both together.
    said + &report
}

fn run(mpi: &Mpi, parts: &[Part<'_>], arguments: &[&str], ranks: usize) -> String {
    let output = job(mpi, parts, arguments).output().expect("a launcher");
    report(mpi, &output, ranks)
}

fn assert_all_forwarded(name: &str, report: &str) {
    assert!(report.contains("libcopy_mpi: function"), "{name}: {report}");
    let count: u64 = intercepted(report).iter().map(|(_, count)| count).sum();
    assert_eq!(count, 0, "{name}: {report}");
    assert!(!report.contains("messages: sent"), "{name}: {report}");
}

fn assert_intercepted(name: &str, report: &str, ranks: usize) {
    let agreed = format!("all {ranks} ranks agreed");
    assert_eq!(report.matches(&agreed).count(), ranks, "{name}: {report}");
    for function in [
        "MPI_Bcast",
        "MPI_Allgather",
        "MPI_Alltoallv",
        "MPI_Iallgather",
    ] {
        let counts = intercepted(report);
        let mut counts = counts.iter().filter(|(called, _)| *called == function);
        let all = counts.clone().count() == ranks && counts.all(|(_, count)| *count > 0);
        assert!(all, "{name}: {function}: {report}");
    }
    assert!(noted(report, "received") >= 8, "{name}: {report}");
}

/// With this a rank has the library, and says what it did.
fn with_library() -> [String; 4] {
    let path = library().to_str().expect("a plain path");
    [
        format!("LD_PRELOAD={path}"),
        "LIBCOPY_STATS=ranks".to_owned(),
        "LIBCOPY_MPI_MESSAGES=1".to_owned(),
        // Whatever the machine.
        "LIBCOPY_MPI_MIN=65536".to_owned(),
    ]
}

/// `meetings.c`, compiled to be preloaded behind the library.
fn meetings(name: &'static str, launcher: &'static str) -> Option<Mpi> {
    let shared = [C.1, &["-shared", "-fPIC"]].concat();
    mpi(name, launcher, MEETINGS, (C.0, &shared))
}

/// With this a rank has the library, and that behind it.
fn preload(behind: &Mpi) -> String {
    let (library, behind) = (library().display(), behind.program.display());
    format!("LD_PRELOAD={library}:{behind}")
}

/// Tests the program with both MPI libraries: what `test` is given are the MPI library's name, the
/// program, and what a rank's environment has to have.
fn for_both(test: impl Fn(&str, &Mpi, &[&str])) {
    let _turn = turn();
    let ours = with_library();
    let ours = ours.each_ref().map(String::as_str);
    for (name, launcher) in BOTH {
        if let Some(mpi) = mpi(name, launcher, PARTIAL, C) {
            test(name, &mpi, &ours);
        }
    }
}

#[test]
fn one_rank_without_the_library_has_all_forward() {
    for_both(|name, mpi, ours| {
        assert_intercepted(name, &run(mpi, &[(3, ours)], &[], 3), 3);
        for (parts, have) in [
            ([(1, ours), (1, &[])], "1 of 2 ranks have"),
            ([(1, &[]), (2, ours)], "2 of 3 ranks have"),
        ] {
            let ranks = parts.iter().map(|part| part.0).sum();
            let report = run(mpi, &parts, &[], ranks);
            assert!(report.contains(have), "{name}: {report}");
            assert_all_forwarded(name, &report);
        }
    });
}

#[test]
fn one_rank_with_other_settings_has_all_forward() {
    for_both(|name, mpi, ours| {
        let other = [ours, &["LIBCOPY_MPI_MIN=100"]].concat();
        let report = run(mpi, &[(1, ours), (1, &other)], &[], 2);
        let why = "the ranks have different LIBCOPY_ variables";
        assert_eq!(report.matches(why).count(), 2, "{name}: {report}");
        assert_all_forwarded(name, &report);
        // A rank may leave out what not all do: the others do as well.
        let other = [ours, &["LIBCOPY_MPI_NONBLOCKING=0"]].concat();
        let report = run(mpi, &[(1, ours), (1, &other)], &[], 2);
        for (function, count) in intercepted(&report) {
            let is_off = function.starts_with("MPI_I") || function == "MPI_Barrier";
            let is_small = function == "MPI_Allreduce";
            assert_eq!(
                count > 0,
                !is_off && !is_small,
                "{name}: {function}: {report}"
            );
        }
    });
}

#[test]
fn children_without_the_library_have_their_parents_forward() {
    for_both(|name, mpi, ours| {
        let program = mpi.program.to_str().expect("a plain path");
        let plain = ["spawn", "/usr/bin/env", program];
        let output = job(mpi, &[(1, &[])], &plain).output();
        if !output.expect("a launcher").status.success() {
            eprintln!("skipped: {name} starts no children without the library either");
            return;
        }
        // The parents have a world of their own, where they intercept; not with their children.
        let clean = ["spawn", "/usr/bin/env", "-u", "LD_PRELOAD", program];
        let report = run(mpi, &[(2, ours)], &clean, 4);
        assert_intercepted(name, &report, 2);
        let mut with = vec!["spawn", "/usr/bin/env"];
        with.extend(ours);
        with.push(program);
        let report = run(mpi, &[(2, ours)], &with, 4);
        let agreed = report.matches("all 2 ranks agreed").count();
        assert_eq!(agreed, 4, "{name}: {report}");
    });
}

#[test]
fn two_jobs_at_the_same_time_do_not_meet() {
    for_both(|name, mpi, ours| {
        let start = || job(mpi, &[(2, ours)], &[]).spawn().expect("a launcher");
        let jobs = [start(), start()];
        for job in jobs {
            let output = job.wait_with_output().expect("its output");
            assert_intercepted(name, &report(mpi, &output, 2), 2);
        }
    });
}

#[test]
fn a_rank_that_is_killed_in_mpi_init_leaves_nothing() {
    for_both(|name, mpi, ours| {
        let meetings = meetings(mpi.name, mpi.launcher).expect("a program can be compiled, too");
        let preload = preload(&meetings);
        for rank in ["0", "1"] {
            let started = Instant::now();
            let killed = format!("KILLED={rank}");
            let environment = [ours, &[&preload, &killed]].concat();
            let output = job(mpi, &[(3, &environment)], &[])
                .output()
                .expect("a launcher");
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(!output.status.success(), "{name}: {said}");
            assert!(started.elapsed() < LIMIT, "{name} hung: {said}");
        }
        // No table has a name in a file system; sockets' names go with their processes.
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let deadline = Instant::now() + LIMIT;
        let left = |text: &str| {
            let mut names = text
                .lines()
                .filter_map(|line| line.split_whitespace().nth(7));
            names.any(|name| name.starts_with("@libcopy-mpi-") && sockets.contains(name))
        };
        while left(&std::fs::read_to_string("/proc/net/unix").unwrap_or_default()) {
            assert!(Instant::now() < deadline, "{name}: a socket is left over");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_intercepted(name, &run(mpi, &[(2, ours)], &[], 2), 2);
    });
}

/// In `MPI_Init` the ranks agree past the MPI library. Where ranks outnumber processors and poll,
/// whatever makes them wait for each other costs turns: collectives of our own took longer than all
/// the rest once.
#[test]
fn mpi_init_has_no_collectives_of_ours() {
    let _turn = turn();
    for (name, launcher) in BOTH {
        let compiled = (meetings(name, launcher), mpi(name, launcher, PARTIAL, C));
        let (Some(meetings), Some(mpi)) = compiled else {
            continue;
        };
        let environment = [&preload(&meetings), "LIBCOPY_STATS=ranks"];
        let report = run(&mpi, &[(8, &environment)], &[], 8);
        assert_eq!(
            report.matches("all 8 ranks agreed").count(),
            8,
            "{name}: {report}"
        );
        let line = "right: 0 in MPI_Init, 1 in MPI_Barrier";
        assert_eq!(report.matches(line).count(), 8, "{name}: {report}");
    }
}

/// As in containers: ranks do not see each other's files.
#[test]
fn ranks_with_shared_directories_of_their_own_work_together() {
    let own = |number: usize| {
        let name = format!("libcopy-test-mpi-{}-{number}", std::process::id());
        let path = Path::new("/dev/shm").join(name);
        std::fs::create_dir(&path).expect("can create a directory");
        path
    };
    let directories = [own(0), own(1)];
    let chosen = directories
        .each_ref()
        .map(|path| format!("LIBCOPY_SHM_DIR={}", path.display()));
    for_both(|name, mpi, ours| {
        let parts = chosen.each_ref().map(|chosen| [ours, &[chosen]].concat());
        let report = run(mpi, &[(2, &parts[0]), (2, &parts[1])], &[], 4);
        assert_intercepted(name, &report, 4);
    });
    for path in directories {
        std::fs::remove_dir(path).expect("nothing is left in it");
    }
}

/// As in a container with little shared memory: the directory has no room for a team's memory.
#[test]
fn a_shared_directory_without_room_is_not_needed() {
    let small = std::env::temp_dir().join(format!("libcopy-test-small-{}", std::process::id()));
    std::fs::create_dir(&small).expect("can create a directory");
    let mount = format!("mount -t tmpfs -o size=64k none {}", small.display());
    let chosen = format!("LIBCOPY_SHM_DIR={}", small.display());
    let may = Command::new("unshare")
        .args(["-m", "sh", "-c", &mount])
        .output();
    if may.is_ok_and(|output| output.status.success()) {
        for_both(|name, mpi, ours| {
            let environment = [ours, &[chosen.as_str()]].concat();
            let job = job(mpi, &[(4, &environment)], &[]);
            let mut inside = Command::new("unshare");
            let script = format!("{mount} && exec \"$@\"");
            inside
                .args(["-m", "sh", "-c", &script, "sh"])
                .arg(job.get_program());
            let output = inside.args(job.get_args()).output().expect("a launcher");
            assert_intercepted(name, &report(mpi, &output, 4), 4);
        });
    } else {
        eprintln!("skipped: no file system can be mounted here");
    }
    std::fs::remove_dir(small).expect("nothing is left in it");
}

/// What keeps one rank from making shared memory all hear of soon, and one of them says it.
#[test]
fn a_shared_directory_that_is_not_there_is_said_once() {
    for_both(|name, mpi, ours| {
        let environment = [
            ours,
            &["LIBCOPY_SHM_DIR=/nonexistent", "LIBCOPY_JOIN_TIMEOUT=600"],
        ];
        let started = Instant::now();
        let report = run(mpi, &[(4, &environment.concat())], &[], 4);
        let lines = report.lines().filter(|line| line.contains("/nonexistent"));
        // Two lists of ranks use collectives, and one process leads each.
        assert!((1..=2).contains(&lines.count()), "{name}: {report}");
        assert!(
            !report.contains("did not join") && !report.contains("could not"),
            "{name}: {report}"
        );
        assert!(
            started.elapsed() < Duration::from_secs(300),
            "{name}: {report}"
        );
        assert!(
            intercepted(&report)
                .iter()
                .all(|(function, count)| *count == 0
                    || !matches!(*function, "MPI_Bcast" | "MPI_Allgather")),
            "{name}: {report}"
        );
    });
}

/// A child of a rank has inherited what that shares with others, and is no rank.
#[test]
fn a_forked_child_takes_part_in_nothing() {
    let _turn = turn();
    let ours = with_library();
    let statistics = Path::new(env!("CARGO_TARGET_TMPDIR")).join("forked.jsonl");
    let told = format!("LIBCOPY_STATS={}", statistics.display());
    let ours = [&ours.each_ref().map(String::as_str)[..], &[&told]].concat();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, FORKED, C) else {
            continue;
        };
        let _ = std::fs::remove_file(&statistics);
        run(&mpi, &[(2, &ours)], &[], 2);
        let lines = std::fs::read_to_string(&statistics).expect("statistics");
        assert_eq!(lines.lines().count(), 2, "{name}: {lines}");
        assert!(
            lines
                .lines()
                .all(|line| line.contains("all 2 ranks agreed")),
            "{name}: {lines}"
        );
    }
    let _ = std::fs::remove_file(&statistics);
}
