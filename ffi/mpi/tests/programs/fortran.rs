// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs in Fortran.

use crate::common::{BOTH, intercepted, library, mpi, noted, text, turn};
use crate::{
    FUNCTIONS, NONBLOCKING_FUNCTIONS, PACKING_FUNCTIONS, PERSISTENT_FUNCTIONS, taken_of,
    with_messages,
};

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
            let Some(mpi) = mpi(
                name,
                launcher,
                source!("fortran.f90"),
                ("mpifort", &flags[..]),
            ) else {
                continue;
            };
            let plain = text(&mpi.run(2, &[], &[]).stdout);
            let ours = mpi.run(2, &[], &preload);
            let has_persistent = binding != "-DBINDING=3";
            let lines = if has_persistent { 47 } else { 40 };
            assert_eq!(plain.lines().count(), lines, "{plain}");
            assert_eq!(plain, text(&ours.stdout), "{name} {binding}");
            // MPICH's mpi_f08 hands descriptors of arrays to functions within the library.
            if (name, binding) == ("mpich", "-DBINDING=3") {
                continue;
            }
            let report = text(&ours.stderr);
            let intercepted = intercepted(&report);
            for function in FUNCTIONS {
                // They have no caller here, or do not pay with two ranks.
                let does_not_pay = ["MPI_Reduce", "MPI_Exscan"].contains(&function);
                if function == "MPI_Alltoallw" || (name == "openmpi" && does_not_pay) {
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
                    // Open MPI's arrays of types go past us.
                    if function.starts_with("MPI_I") && function.ends_with("alltoallw") {
                        continue;
                    }
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
            let Some(mpi) = mpi(name, launcher, source!("messages.f90"), compiler) else {
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
