// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls that are erroneous, and ranks that die or disagree.

use std::time::{Duration, Instant};

use crate::common::{BOTH, LIMIT, library, mpi, programs, text, turn};

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
        ("LIBCOPY_STATS", "1"),
    ];
    for mpi in programs(source!("failures.c"), &[]) {
        let name = mpi.name;
        let file = mpi.program.with_extension("said");
        let path = file.to_str().expect("a plain path");
        for which in ["0", "1", "2", "3", "4"] {
            let output = mpi.run(3, &[path, "again", which], &environment);
            let report = text(&output.stderr);
            assert!(report.contains(" broken team"), "{name} {which}: {report}");
            let said = std::fs::read_to_string(&file).unwrap_or_default();
            let _ = std::fs::remove_file(&file);
            let right = said.lines().all(|line| line.ends_with(": works again"));
            assert!(right && said.lines().count() == 3, "{name} {which}: {said}");
        }
    }
}

/// Where one rank cannot join the team, all calls are forwarded, and the report says so.
#[test]
fn collectives_work_where_a_rank_cannot_join() {
    let _turn = turn();
    let library = library();
    let environment = [
        ("LD_PRELOAD", library.to_str().expect("a plain path")),
        ("LIBCOPY_MPI_MIN", "0"),
        ("LIBCOPY_STATS", "1"),
        // Without a descriptor the rank cannot tell the others, which wait for it.
        ("LIBCOPY_JOIN_TIMEOUT", "1"),
    ];
    for mpi in programs(source!("failures.c"), &[]) {
        let name = mpi.name;
        let file = mpi.program.with_extension("said");
        let path = file.to_str().expect("a plain path");
        let output = mpi.run(3, &[path, "unable"], &environment);
        let said = std::fs::read_to_string(&file).unwrap_or_default();
        let _ = std::fs::remove_file(&file);
        let right = said.lines().all(|line| line.ends_with(": works"));
        assert!(right && said.lines().count() == 3, "{name}: {said}");
        let report = text(&output.stderr);
        let why = "libcopy: nothing was done: all 24 calls are of ranks one of which could not \
                   join their team, or whose team an erroneous call has broken\n";
        assert!(report.contains(why), "{name}: {report}");
        assert!(report.contains(" broken team\n"), "{name}: {report}");
        assert!(report.contains("Too many open files"), "{name}: {report}");
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
    for mpi in programs(source!("erroneous.c"), &[]) {
        let name = mpi.name;
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
    for mpi in programs(source!("failures.c"), &[]) {
        let name = mpi.name;
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

/// Plain, with nothing but what the governor likes intercepted, and with everything.
#[test]
fn what_an_error_handler_throws_reaches_the_program() {
    let _turn = turn();
    let preload = ("LD_PRELOAD", library().to_str().expect("a plain path"));
    let all = [
        preload,
        ("LIBCOPY_MPI_MIN", "0"),
        ("LIBCOPY_MPI_MESSAGES", "1"),
        ("LIBCOPY_GOVERNOR", "0"),
        ("LIBCOPY_STATS", "1"),
    ];
    let flags = [
        "-std=gnu++17",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
    ];
    for (name, launcher) in BOTH {
        let compiler = ("mpicxx", &flags[..]);
        let Some(mpi) = mpi(name, launcher, source!("throws.cpp"), compiler) else {
            continue;
        };
        let sorted = |environment: &[(&str, &str)]| {
            let output = mpi.run(2, &[], environment);
            let mut lines: Vec<String> = text(&output.stdout).lines().map(String::from).collect();
            lines.sort();
            (lines.join("\n"), text(&output.stderr))
        };
        let (plain, _) = sorted(&[]);
        let right = plain.matches(": 0 wrong").count() == 2 && plain.contains(": has left");
        assert!(right, "{name}: {plain}");
        assert_eq!(plain, sorted(&[preload]).0, "{name}");
        let (said, report) = sorted(&all);
        assert_eq!(plain, said, "{name}: {report}");
    }
}
