// SPDX-License-Identifier: MIT OR Apache-2.0

//! What tests of MPI programs have in common: the library under test, compilers, launchers, and
//! reports.

pub mod compiled;
#[path = "../../../../tests/tests/common/workspace.rs"]
mod workspace;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// After so long a program hangs: on a busy machine one may take minutes.
pub const LIMIT: Duration = Duration::from_secs(900);

/// The compiler for C, without the library's name.
pub const C: (&str, &[&str]) = ("mpicc", &["-Wall", "-Werror"]);

/// Both libraries, and what starts their programs.
pub const BOTH: [(&str, &str); 2] = [("openmpi", "mpirun.openmpi"), ("mpich", "mpirun.mpich")];

/// The library under test, and the tools that tests start.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let own = std::env::current_exe().expect("this test is a file");
        let directory = own.ancestors().nth(2).expect("cargo's layout");
        workspace::build(directory);
        directory.join("libcopy_mpi.so")
    })
}

pub struct Mpi {
    pub name: &'static str,
    pub launcher: &'static str,
    pub program: PathBuf,
}

/// The program, compiled; without the MPI library there is nothing to test against.
pub fn mpi(
    name: &'static str,
    launcher: &'static str,
    source: &str,
    (compiler, flags): (&str, &[&str]),
) -> Option<Mpi> {
    let compiler = format!("{compiler}.{name}");
    let program = compiled::program(name, &compiler, flags, source);
    if program.is_none() {
        let missing = format!("{compiler}, or the compiler behind it, is not installed");
        assert!(
            std::env::var_os("LIBCOPY_TEST_MPI").is_none(),
            "{missing}, but LIBCOPY_TEST_MPI asks for it"
        );
        eprintln!("skipped: {missing}");
    }
    program.map(|program| Mpi {
        name,
        launcher,
        program,
    })
}

/// The C program by each MPI library that is installed, with flags besides the usual ones.
pub fn programs(source: &str, flags: &[&str]) -> Vec<Mpi> {
    let flags = [C.1, flags].concat();
    let of = |(name, launcher)| mpi(name, launcher, source, (C.0, &flags));
    BOTH.into_iter().filter_map(of).collect()
}

/// Whether repetitions are as many as may find something that fewer of them do not, rarely.
/// `scripts/test --all` asks for that.
pub fn is_full() -> bool {
    std::env::var_os("LIBCOPY_TEST_ALL").is_some_and(|asked| asked == "1")
}

impl Drop for Mpi {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.program);
    }
}

impl Mpi {
    /// The launcher with its options, which is killed after `limit`.
    pub fn launch(&self, limit: Duration) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after", "60", &limit.as_secs().to_string()]);
        command.arg(self.launcher);
        if self.name == "openmpi" {
            command.args(["--oversubscribe", "--allow-run-as-root"]);
            command.args(["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]);
        }
        command
    }

    /// What came of it, within [`LIMIT`].
    pub fn output(
        &self,
        ranks: usize,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> (Command, Output) {
        self.output_of(self.launch(LIMIT), ranks, arguments, environment)
    }

    /// What came of a launcher with its options, within [`LIMIT`].
    pub fn output_of(
        &self,
        mut command: Command,
        ranks: usize,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> (Command, Output) {
        command.args(["-n", &ranks.to_string()]);
        // The launcher itself is no MPI program.
        command.arg("env");
        for (name, value) in environment {
            command.arg(format!("{name}={value}"));
        }
        // Launchers put what ranks print together in pieces that may end within a line, and Open
        // MPI 5's some of what they say as errors between. So each rank has a file of its own.
        let said = self.program.with_extension("stderr");
        command
            .args(["sh", "-c", "exec \"$@\" >\"$0.$$\" 2>>\"$0\""])
            .arg(&said);
        command.arg(&self.program).args(arguments);
        let started = Instant::now();
        let mut output = command.output().expect("the launcher starts");
        // For whoever looks for what takes long; the test runner keeps it to itself otherwise.
        let seconds = started.elapsed().as_secs_f64();
        let program = self.program.file_stem().unwrap_or_default();
        eprintln!("{seconds:6.2} s, {ranks} ranks: {program:?} {arguments:?} {environment:?}");
        for path in printed(&said) {
            output
                .stdout
                .extend(std::fs::read(&path).unwrap_or_default());
            let _ = std::fs::remove_file(&path);
        }
        output
            .stderr
            .extend(std::fs::read(&said).unwrap_or_default());
        let _ = std::fs::remove_file(&said);
        (command, output)
    }

    pub fn run(&self, ranks: usize, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        let (command, output) = self.output(ranks, arguments, environment);
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

/// The files that ranks have printed into, `SAID.PID`, in the order in which they were started.
fn printed(said: &Path) -> Vec<PathBuf> {
    let name = said.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!("{name}.");
    let entries = said.parent().and_then(|parent| parent.read_dir().ok());
    let mut found: Vec<(u32, PathBuf)> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let pid = name.strip_prefix(&prefix)?.parse().ok()?;
            Some((pid, entry.path()))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// Waits until there are two processors for a program: each has more ranks than that, and some
/// poll. Tests of one process; nextest, which runs each in its own, counts them itself.
pub fn turn() -> Turn {
    let mut free = lock(&FREE);
    loop {
        let turns = free.get_or_insert_with(|| {
            std::thread::available_parallelism()
                .map_or(1, |processors| (processors.get() / 2).max(1))
        });
        if *turns > 0 {
            *turns -= 1;
            return Turn;
        }
        free = CHANGED.wait(free).unwrap_or_else(PoisonError::into_inner);
    }
}

/// How many programs may be started; nothing before the first one.
static FREE: Mutex<Option<usize>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A turn, as long as it lives.
pub struct Turn;

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = lock(&FREE).as_mut() {
            *turns += 1;
        }
        CHANGED.notify_one();
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The lines that a program has printed, whose ranks print in any order.
pub fn sorted(output: &Output) -> Vec<String> {
    let said = text(&output.stdout);
    let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// What the ranks' reports say in a column: the function, and how often.
pub fn counted(report: &str, column: usize) -> Vec<(&str, u64)> {
    let lines = report.lines().filter(|line| line.contains(" MPI_"));
    lines
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().skip(1).collect();
            Some((*words.first()?, words.get(column)?.parse().ok()?))
        })
        .collect()
}

/// What they say was intercepted inside one machine.
pub fn intercepted(report: &str) -> Vec<(&str, u64)> {
    counted(report, 1)
}

pub fn noted(report: &str, what: &str) -> u64 {
    let lines = report.lines().filter(|line| line.contains("messages:"));
    let numbers = lines.filter_map(|line| {
        let behind = &line[line.find(what)? + what.len()..];
        let digits = behind.trim_start().split(',').next()?;
        digits.parse::<u64>().ok()
    });
    numbers.sum()
}
