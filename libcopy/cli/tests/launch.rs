// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy mpi run` with launchers that only say what they were given, and with programs that
//! nothing can be preloaded into. Real launchers: `ffi/mpi/tests/launch.rs`.

mod common;

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{path_before, text, tool, word};

/// A directory with launchers, a library and a program, which comes first in `PATH`.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place {
            directory: tempfile::tempdir().expect("a directory"),
        };
        for (name, version) in [
            ("mpirun", "mpirun (Open MPI) 5.0.11"),
            ("mpirun.old", "mpirun (Open MPI) 4.1.4"),
            ("mpiexec", "HYDRA build details:\n    Version: 4.0.2"),
            (
                "mpiexec.intel",
                "Intel(R) MPI Library for Linux* OS, Version 2021.11",
            ),
            ("srun", "slurm 23.02.4"),
            ("prun", "something else 1.0"),
        ] {
            let script = format!(
                "#!/bin/sh\n[ \"$1\" = --version ] && echo '{version}' && exit 0\n\
                 echo \"preload=$LD_PRELOAD\"\nprintf '<%s>' \"$@\"\nexit 7\n"
            );
            place.executable(name, script.as_bytes());
        }
        place.executable("program", &std::fs::read("/bin/true").expect("a program"));
        std::fs::write(place.file("l.so"), "").expect("a file");
        place
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn executable(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, contents).expect("a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("its mode");
        path
    }

    /// Compiles an empty program, if there is a compiler that can.
    fn compiled(&self, name: &str, flags: &[&str]) -> Option<PathBuf> {
        let (source, path) = (self.file("main.c"), self.file(name));
        std::fs::write(&source, "int main(void) { return 0; }\n").expect("a file");
        let mut compiler = Command::new("cc");
        compiler.arg(&source).arg("-o").arg(&path).args(flags);
        let is_made = compiler
            .output()
            .is_ok_and(|output| output.status.success());
        is_made.then_some(path)
    }

    fn tool(&self, library: &Path, options: &[&str], command: &[&str]) -> Output {
        let mut tool = tool(&["mpi", "run", "--library", word(library)]);
        tool.args(options).args(command);
        tool.current_dir(self.directory.path())
            .env("PATH", path_before(self.directory.path()));
        common::output(&mut tool)
    }

    /// What a dry run prints, with `L` for the library.
    fn dry(&self, command: &[&str]) -> String {
        let output = self.tool(&self.file("l.so"), &["--dry-run"], command);
        let said = text(&output.stdout);
        assert!(output.status.success(), "{said}{}", text(&output.stderr));
        let library = self.file("l.so").canonicalize().expect("a file");
        said.trim_end().replace(word(&library), "L")
    }

    /// The complaint about a command that is not started.
    fn refused(&self, command: &[&str]) -> String {
        let output = self.tool(&self.file("l.so"), &[], command);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {said}");
        assert!(output.stdout.is_empty(), "{command:?}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }
}

#[test]
fn each_launcher_gets_its_own_option() {
    let place = Place::new();
    for (command, expected) in [
        (
            "mpirun -n 4 program a",
            "mpirun -x LD_PRELOAD=L -n 4 program a",
        ),
        (
            "mpirun.old -n 1 program : -n 2 program",
            "mpirun.old -x LD_PRELOAD=L -n 1 program : -x LD_PRELOAD=L -n 2 program",
        ),
        (
            "mpiexec -n 1 program : -n 2 program",
            "mpiexec -genv LD_PRELOAD L -n 1 program : -n 2 program",
        ),
        (
            "mpiexec.intel -n 2 program",
            "mpiexec.intel -genv LD_PRELOAD L -n 2 program",
        ),
        (
            "srun -n 2 program",
            "srun --export=ALL,LD_PRELOAD=L -n 2 program",
        ),
        ("program a", "LD_PRELOAD=L program a"),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(place.dry(&words), expected);
    }
}

#[test]
fn a_command_is_run_and_its_exit_status_is_ours() {
    let place = Place::new();
    let command = ["mpirun", "-n", "2", "program", "a b"];
    let output = place.tool(&place.file("l.so"), &[], &command);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{said}");
    // The launcher itself preloads nothing, and words stay whole.
    assert!(said.starts_with("preload=\n<-x><LD_PRELOAD="), "{said}");
    assert!(said.ends_with("<-n><2><program><a b>"), "{said}");
    let output = place.tool(&place.file("l.so"), &[], &["sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.code(), Some(128 + 9));
}

#[test]
fn paths_with_commas_and_spaces_arrive() {
    let place = Place::new();
    let directory = place.file("a b,c");
    std::fs::create_dir(&directory).expect("a directory");
    for (name, command, expected) in [
        (
            "d,e.so",
            "srun program",
            "srun --export=ALL,LD_PRELOAD program",
        ),
        (
            "d,e.so",
            "mpirun program",
            "mpirun -x LD_PRELOAD=D/d,e.so program",
        ),
        (
            "a b,c/l.so",
            "mpirun program",
            "mpirun -x LD_PRELOAD=l.so -x 'LD_LIBRARY_PATH=D/a b,c' program",
        ),
        (
            "a b,c/l.so",
            "srun program",
            "srun --export=ALL,LD_PRELOAD=l.so,LD_LIBRARY_PATH program",
        ),
    ] {
        let library = place.file(name);
        std::fs::write(&library, "").expect("a file");
        let words: Vec<&str> = command.split(' ').collect();
        let output = place.tool(&library, &["--dry-run"], &words);
        let own = place.directory.path().canonicalize().expect("a directory");
        let said = text(&output.stdout).replace(word(&own), "D");
        // What srun inherits is set in front of it.
        assert!(
            said.trim_end().ends_with(expected),
            "{said}{}",
            text(&output.stderr)
        );
        assert_eq!(
            said.starts_with("LD_"),
            command.starts_with("srun"),
            "{said}"
        );
    }
    std::fs::write(place.file("x y.so"), "").expect("a file");
    let output = place.tool(
        &place.file("x y.so"),
        &["--dry-run"],
        &["mpirun", "program"],
    );
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn what_nothing_can_be_preloaded_into_is_refused() {
    let place = Place::new();
    let run = |program: &Path| place.refused(&["mpirun", word(program)]);
    let mut bytes = std::fs::read("/bin/true").expect("a program");
    bytes[4] = 1;
    let program = place.executable("narrow", &bytes);
    assert!(run(&program).contains("32-bit"));
    if let Some(program) = place.compiled("static", &["-static"]) {
        assert!(run(&program).contains("statically"));
    }
    let linker = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1";
    if let Some(program) = place.compiled("musl", &[linker]) {
        assert!(run(&program).contains("musl"));
    }
    // SAFETY: No arguments.
    if unsafe { libc::geteuid() } == 0 {
        let program = place.executable("other", &std::fs::read("/bin/true").expect("a program"));
        chown(&program, Some(65534), None).expect("root may");
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).expect("its mode");
        assert!(run(&program).contains("set-user-ID"));
    }
    std::fs::write(place.file("mpi.c"), "void other(void) {}\n").expect("a file");
    let library = place.file("libmpi.so.20");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wl,-soname,libmpi.so.20", "-o"]);
    compiler.arg(&library).arg(place.file("mpi.c"));
    if compiler.status().is_ok_and(|status| status.success()) {
        let flags = ["-Wl,--no-as-needed", word(&library)];
        let program = place
            .compiled("unknown", &flags)
            .expect("it compiled a moment ago");
        let said = run(&program);
        assert!(
            said.contains("libmpi.so.20") && said.contains("libmpi.so.40"),
            "{said}"
        );
    }
}

#[test]
fn what_cannot_be_started_rightly_is_refused() {
    let place = Place::new();
    let said = place.refused(&["prun", "program"]);
    assert!(said.contains("something else 1.0"), "{said}");
    let said = place.refused(&["env", "A=1", "mpirun", "program"]);
    assert!(said.contains("right before mpirun"), "{said}");
    let output = place.tool(&place.file("no.so"), &[], &["mpirun", "program"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no.so"));
}

#[test]
fn without_a_report_the_likely_reason_is_said() {
    let place = Place::new();
    let output = place.tool(&place.file("l.so"), &["--stats"], &["mpirun", "program"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7));
    assert!(said.contains("no rank has written a report"), "{said}");
    assert!(
        said.contains("program is not linked with an MPI library"),
        "{said}"
    );
    let left = std::fs::read_dir(place.directory.path()).expect("a directory");
    let hidden = |name: &str| name.starts_with(".libcopy-stats");
    assert!(
        !left
            .flatten()
            .any(|file| hidden(&file.file_name().to_string_lossy()))
    );
}
