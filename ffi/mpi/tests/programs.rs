// SPDX-License-Identifier: MIT OR Apache-2.0

//! A program that knows nothing of libcopy, run by Open MPI and by MPICH, with and without it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/differential.c");

/// The library under test. Cargo does not build it for a test; it is built together with the
/// crate whose features it would otherwise change.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let own = std::env::current_exe().expect("this test is a file");
        let directory = own.ancestors().nth(2).expect("cargo's layout");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "libcopy", "-p", "libcopy-mpi"]);
        build.args([
            "--manifest-path",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        ]);
        if directory.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo starts").success());
        directory.join("libcopy_mpi.so")
    })
}

struct Mpi {
    name: &'static str,
    launcher: &'static str,
    program: PathBuf,
}

/// Compiles the program; without the MPI library there is nothing to test against.
fn mpi(name: &'static str, launcher: &'static str) -> Option<Mpi> {
    let compiler = format!("mpicc.{name}");
    let found = Command::new(&compiler).arg("-v").output().is_ok();
    if !found {
        let missing = format!("{compiler} is not installed");
        assert!(
            std::env::var_os("LIBCOPY_TEST_MPI").is_none(),
            "{missing}, but LIBCOPY_TEST_MPI asks for it"
        );
        eprintln!("skipped: {missing}");
        return None;
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    static PROGRAMS: AtomicU32 = AtomicU32::new(0);
    let number = PROGRAMS.fetch_add(1, Ordering::Relaxed);
    let file = format!("differential.{name}.{}.{number}", std::process::id());
    let program = directory.join(file);
    let output = Command::new(&compiler)
        .args(["-O2", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(SOURCE)
        .output()
        .expect("the compiler starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(Mpi {
        name,
        launcher,
        program,
    })
}

impl Drop for Mpi {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.program);
    }
}

impl Mpi {
    fn run(&self, ranks: usize, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        let mut command = Command::new("timeout");
        command.args(["120", self.launcher]);
        if self.name == "openmpi" {
            command.args(["--oversubscribe", "--allow-run-as-root"]);
            command.args(["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]);
        }
        command.args(["-n", &ranks.to_string()]);
        // The launcher itself is no MPI program.
        command.arg("env");
        for (name, value) in environment {
            command.arg(format!("{name}={value}"));
        }
        command.arg(&self.program).args(arguments);
        let output = command.output().expect("the launcher starts");
        assert!(
            output.status.success(),
            "{command:?}\n{}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Calls that the report of rank 0 says were taken.
fn taken(report: &str) -> u64 {
    let lines = report.lines().filter(|line| line.contains(" MPI_"));
    lines
        .filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok())
        .sum()
}

fn differential(name: &'static str, launcher: &'static str) {
    let Some(mpi) = mpi(name, launcher) else {
        return;
    };
    let library = library();
    let preload = [
        ("LD_PRELOAD", library.to_str().expect("a plain path")),
        ("LIBCOPY_STATS", "1"),
    ];
    for (ranks, seed) in [(2, "1"), (4, "2"), (3, "3")] {
        let arguments = ["60", seed, "400000"];
        let plain = mpi.run(ranks, &arguments, &[]);
        let ours = mpi.run(ranks, &arguments, &preload);
        let (plain, report) = (text(&plain.stdout), text(&ours.stderr));
        let ours = text(&ours.stdout);
        assert_eq!(plain.lines().count(), 60, "{plain}");
        for (expected, got) in plain.lines().zip(ours.lines()) {
            assert_eq!(expected, got, "{name}, {ranks} ranks, seed {seed}");
        }
        assert_eq!(plain.lines().count(), ours.lines().count(), "{ours}");
        assert!(
            taken(&report) > 10 * ranks as u64,
            "{name}: a pass by passing on does not count\n{report}"
        );
    }
}

#[test]
fn open_mpi_programs_print_the_same() {
    differential("openmpi", "mpirun.openmpi");
}

#[test]
fn mpich_programs_print_the_same() {
    differential("mpich", "mpirun.mpich");
}

#[test]
fn disabled_it_passes_everything_on() {
    for (name, launcher) in [("openmpi", "mpirun.openmpi"), ("mpich", "mpirun.mpich")] {
        let Some(mpi) = mpi(name, launcher) else {
            continue;
        };
        let library = library();
        let environment = [
            ("LD_PRELOAD", library.to_str().expect("a plain path")),
            ("LIBCOPY_STATS", "1"),
            ("LIBCOPY_DISABLE", "1"),
        ];
        let output = mpi.run(2, &["10", "1", "200000"], &environment);
        let report = text(&output.stderr);
        assert_eq!(taken(&report), 0, "{report}");
        assert!(report.contains(" disabled"), "{report}");
    }
}
