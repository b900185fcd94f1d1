// SPDX-License-Identifier: MIT OR Apache-2.0

//! Derived types: packing, layouts, types that come and go.

use crate::common::{BOTH, C, intercepted, library, mpi, noted, programs, sorted, text, turn};
use crate::{PACKING_FUNCTIONS, taken_of, with_messages};

const INCLUDE: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");

#[test]
fn types_that_come_and_go_are_the_same() {
    let _turn = turn();
    let preload = ("LD_PRELOAD", library().to_str().expect("a plain path"));
    let flags = [C.1, &["-pthread"]].concat();
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, source!("fresh.c"), (C.0, &flags[..])) else {
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
            source!("fresh.c"),
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
fn what_is_packed_is_the_same() {
    let _turn = turn();
    let library = library().to_str().expect("a plain path");
    for (name, launcher) in BOTH {
        for flag in ["-DINT", "-DLARGE"] {
            let flags = [C.1, &[flag]].concat();
            let Some(mpi) = mpi(name, launcher, source!("packing.c"), (C.0, &flags[..])) else {
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
        let Some(mpi) = mpi(
            name,
            launcher,
            source!("packing.c"),
            (C.0, &[C.1, &["-DINT"]].concat()),
        ) else {
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

#[test]
fn types_that_are_committed_together_send_no_layouts() {
    let _turn = turn();
    let library = library();
    for mpi in programs(source!("committed.c"), &[INCLUDE]) {
        let name = mpi.name;
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
