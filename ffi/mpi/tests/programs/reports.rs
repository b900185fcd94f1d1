// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the ranks report.

use std::process::Command;

use crate::common::{library, programs, text, turn};

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
