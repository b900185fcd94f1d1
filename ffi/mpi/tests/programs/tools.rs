// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs with tools that wrap MPI functions, and sessions.

use std::process::Output;

use crate::common::{BOTH, C, Mpi, library, mpi, noted, programs, sorted, text, turn};

/// What tools said in a run of [`source!("tooled.c")`], and that nothing arrived wrong.
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
        let Some(program) = build(source!("tooled.c"), &[]) else {
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
            let tool =
                build(source!("tool.c"), &flags).expect("the compiler was there a moment ago");
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
        for flags in [
            &["-DRECEIVING", source!("tool.c")][..],
            &["-DINIT", "-no-pie", source!("tool.c")],
        ] {
            let linked =
                build(source!("tooled.c"), flags).expect("the compiler was there a moment ago");
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
            mpi(name, launcher, source!("tool.c"), (C.0, &flags[..])),
            mpi(name, launcher, source!("tooled.c"), C),
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
    let _turn = turn();
    for mpi in programs(source!("sessions.c"), &[]) {
        let name = mpi.name;
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
                assert_eq!(sorted(&plain), sorted(&ours), "{name}: {mode:?}");
            }
        }
    }
}
