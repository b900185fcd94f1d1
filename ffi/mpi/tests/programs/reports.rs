// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the ranks report.

use std::collections::BTreeMap;
use std::process::Command;

use libcopy_report::{Profile, Split};

use crate::common::{BOTH, library, mpi, programs, text, turn};

/// The ranks' reports are one, which begins with the verdict; where they do not agree on that, each
/// says its own.
#[test]
fn a_job_has_one_report() {
    let _turn = turn();
    let preload = ("LD_PRELOAD", library().to_str().expect("a plain path"));
    let odd = ("GOVERNED_ODD", "1");
    for mpi in programs(source!("governed.c"), &["-pthread"]) {
        let report = |calls: &str, settings: &[(&str, &str)]| {
            let environment = [&[preload], settings].concat();
            text(&mpi.run(3, &[calls, "262144"], &environment).stderr)
        };
        // A verdict takes many calls, the other reports any.
        let one = report("400", &[("LIBCOPY_STATS", "1")]);
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
        let none = report("40", &[("LIBCOPY_STATS", "1"), ("LIBCOPY_DISABLE", "1")]);
        assert_eq!(none.matches("1 reports of 1 ranks, ").count(), 3, "{none}");
        assert!(!none.contains("saved") && !none.contains("cost"), "{none}");
        let ranks = report("40", &[("LIBCOPY_STATS", "ranks"), odd]);
        assert_eq!(ranks.matches("libcopy_mpi: rank ").count(), 3, "{ranks}");
    }
}

#[test]
fn ranks_add_their_numbers_to_a_file() {
    let _turn = turn();
    let library = library();
    for mpi in programs(source!("differential.c"), &[]) {
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
        assert!(said.contains("MPI_Gather "), "{said}");
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

/// Calls and bytes of a function, by the size class, whether a type has gaps, and the ranks.
type Counts = BTreeMap<(String, u64, bool, u64), (u64, u64)>;

/// The profile of a run of two ranks with these settings.
fn profile(mpi: &crate::common::Mpi, settings: &[(&str, &str)]) -> Profile {
    let file = mpi.program.with_extension("profile");
    let _ = std::fs::remove_file(&file);
    let wanted = format!("profile:{}", file.display());
    let environment = [
        &[
            ("LD_PRELOAD", library().to_str().expect("a plain path")),
            ("LIBCOPY_STATS", wanted.as_str()),
        ],
        settings,
    ]
    .concat();
    mpi.run(2, &[], &environment);
    let lines = std::fs::read_to_string(&file).expect("a file of the ranks");
    let _ = std::fs::remove_file(&file);
    Profile::read(&lines).expect("a profile")
}

#[test]
fn a_profile_has_each_call_and_each_byte() {
    let _turn = turn();
    let expected = [
        // Both ranks: 40 calls on both, one on each alone.
        ("MPI_Allreduce", 8, false, 2, 80, 640),
        ("MPI_Allreduce", 8, false, 1, 2, 16),
        ("MPI_Bcast", 1024, false, 2, 2, 2048),
        ("MPI_Allgather", 1024, false, 2, 2, 4096),
        // The root: 3 and 5 doubles. The other: 5.
        ("MPI_Gatherv", 32, false, 2, 2, 104),
        ("MPI_Barrier", 0, false, 2, 6, 0),
        ("MPI_Irecv", 512, true, 2, 80, 40960),
        ("MPI_Isend", 512, true, 2, 80, 40960),
        ("MPI_Waitall", 512, true, 2, 80, 81920),
        ("MPI_Send", 1024, false, 2, 40, 40960),
        ("MPI_Recv", 1024, false, 2, 40, 40960),
        ("MPI_Irecv", 8, false, 2, 6, 48),
        ("MPI_Isend", 8, false, 2, 6, 48),
        ("MPI_Waitall", 8, false, 2, 2, 96),
        ("MPI_Irecv", 64, false, 2, 2, 200),
        ("MPI_Irecv", 256, false, 2, 2, 600),
        ("MPI_Send", 256, false, 2, 2, 600),
        ("MPI_Send", 64, false, 2, 2, 200),
        ("MPI_Waitany", 256, false, 2, 2, 600),
        ("MPI_Test", 64, false, 2, 2, 200),
        ("MPI_Send_init", 128, false, 2, 1, 128),
        ("MPI_Recv_init", 128, false, 2, 1, 128),
        ("MPI_Start", 128, false, 2, 4, 512),
        ("MPI_Wait", 128, false, 2, 4, 512),
        // Of MPI_Ibarrier, which is not seen.
        ("MPI_Wait", 0, false, 0, 2, 0),
        ("MPI_Request_free", 0, false, 0, 2, 0),
    ];
    let expected: Counts = expected
        .into_iter()
        .map(|(name, size, gaps, ranks, calls, bytes)| {
            ((name.to_owned(), size, gaps, ranks), (calls, bytes))
        })
        .collect();
    for mpi in programs(source!("profiled.c"), &[]) {
        for settings in [
            &[("LIBCOPY_DISABLE", "1")][..],
            &[],
            &[("LIBCOPY_MPI_MIN", "0")],
        ] {
            let profile = profile(&mpi, settings);
            assert_eq!(profile.ranks, 2, "{profile}");
            assert_eq!(profile.plain, settings == [("LIBCOPY_DISABLE", "1")]);
            let mut counts = Counts::new();
            for row in &profile.rows {
                let key = (row.function.clone(), row.least, row.derived, row.ranks);
                counts.insert(key, (row.calls, row.bytes));
                let parts = row.waiting_ns + row.moving_ns + row.unsplit_ns;
                assert_eq!(parts, row.time_ns, "{row:?}");
                assert!(row.one_machine || row.ranks == 0, "{row:?}");
                // Whoever was there is known of each collective.
                let is_split = row.split != Split::Clocks || row.unsplit_ns == 0;
                assert!(is_split, "{row:?}");
            }
            // How often it is asked depends on when the message comes.
            counts.remove(&("MPI_Test".to_owned(), 0, false, 0));
            assert_eq!(counts, expected, "{profile}");
            // Rank 1 is 5 ms late ten times, and rank 0 knows by the clocks.
            let late = profile.rows.iter();
            let late =
                late.filter(|row| (row.function.as_str(), row.ranks) == ("MPI_Allreduce", 2));
            let waiting: u64 = late.map(|row| row.waiting_ns).sum();
            assert!(waiting > 45_000_000, "{profile}");
            assert!(profile.mpi_ns() <= profile.run_ns, "{profile}");
        }
    }
}

/// Where the MPI library's Fortran does not come to C's functions, Fortran's are seen.
#[test]
fn programs_in_fortran_have_profiles() {
    let _turn = turn();
    for (name, launcher) in BOTH {
        let mut flags = vec!["-cpp", "-w", "-fallow-argument-mismatch", "-DBINDING=1"];
        if name == "openmpi" {
            flags.push("-DBEFORE_STANDARD");
        }
        let compiler = ("mpifort", &flags[..]);
        let Some(mpi) = mpi(name, launcher, source!("fortran.f90"), compiler) else {
            continue;
        };
        let settings = [&[("LIBCOPY_DISABLE", "1")][..], &[]];
        let [plain, ours] = settings.map(|settings| {
            let profile = profile(&mpi, settings);
            let calls = profile.functions().into_iter();
            let calls = calls.map(|row| (row.function, (row.calls, row.bytes)));
            calls.collect::<BTreeMap<_, _>>()
        });
        assert!(
            plain.contains_key("MPI_Bcast") && plain.contains_key("MPI_Allreduce"),
            "{plain:?}"
        );
        assert_eq!(plain, ours, "{name}");
    }
}
