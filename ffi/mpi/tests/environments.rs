// SPDX-License-Identifier: MIT OR Apache-2.0

//! Environments that restrict a program: whatever the kernel refuses on its behalf, it gets its
//! bytes, no error that it would not have without libcopy, and not later. Prints a table; what is
//! not possible on this machine is named there.
//!
//! With Open MPI; `LIBCOPY_TEST_ENVIRONMENTS` names others: `mpich`, or `all` for both. The first
//! `mpicc` and `mpirun` of `PATH` may be other libraries.

// Other tests use other parts of it.
#[allow(dead_code)]
mod common;

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use common::{BOTH, C, Mpi, is_full, library, mpi, text, turn};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/environments.c");
const RANKS: usize = 3;

/// After so long a program hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// After so long one case of it does, alone: some of MPICH's poll for ever then.
const CASE: Duration = Duration::from_secs(30);
/// So much longer than alone a program may take with libcopy: more shows that something waits, less
/// may be the machine.
const LONGER: f64 = 2.0;
/// How often a program may be too late on a busy machine before something waits.
const TRIES: usize = 3;

/// The kinds, and what each restricts.
const KINDS: [(&str, &str); 27] = [
    ("eperm", "seccomp: reads of other processes are EPERM"),
    ("eperm-late", "the same after MPI_Init"),
    ("enosys", "seccomp: ENOSYS"),
    ("enosys-late", "the same after MPI_Init"),
    ("efault", "seccomp: EFAULT"),
    ("efault-late", "the same after MPI_Init"),
    ("no-fallocate", "seccomp: no fallocate"),
    ("no-memfd", "seccomp: no memfd_create"),
    ("no-pidfd", "seccomp: no pidfd_open"),
    ("user-namespace", "users of its own"),
    ("pid-namespace", "processes of its own"),
    ("mount-namespace", "mounts of its own"),
    ("ipc-namespace", "IPC objects of its own"),
    ("private-shm", "a /dev/shm of its own"),
    ("tiny-shm", "a /dev/shm of its own, 1 MiB"),
    ("shared-tiny-shm", "a /dev/shm for all, 1 MiB"),
    ("read-only-shm", "a /dev/shm that is not writable"),
    ("limit-file", "ulimit -f 5 MiB"),
    ("limit-descriptors", "ulimit -n 48"),
    ("limit-locked", "ulimit -l 0"),
    ("landlock", "Landlock: files below /tmp alone"),
    ("secret", "sends out of memfd_secret"),
    ("device", "sends out of mapped pages of the kernel's"),
    ("huge", "sends out of huge pages"),
    ("read-only", "sends out of a file that is mapped to be read"),
    ("file", "sends out of a mapped file"),
    ("none", "nothing"),
];

/// What must show that the kernel has refused something.
const REFUSED: [&str; 5] = [
    "eperm-late",
    "enosys-late",
    "efault-late",
    "secret",
    "device",
];

/// Where it makes a difference to the others that one rank is restricted and they are not: with the
/// other kinds only if all repetitions are asked for.
const ODD: [&str; 9] = [
    "eperm",
    "eperm-late",
    "no-memfd",
    "user-namespace",
    "pid-namespace",
    "private-shm",
    "tiny-shm",
    "read-only-shm",
    "limit-file",
];

/// Without libcopy Open MPI 4.1 never ends here.
const HANGS: (&str, &str) = ("read-only-shm", "odd");

/// What came of a program.
struct Run {
    /// What became of each case on each rank; nothing if the program failed.
    cases: Vec<(String, Vec<String>)>,
    /// Of the slowest rank.
    seconds: f64,
    skipped: Option<String>,
    /// What the kernel has refused, as libcopy says.
    refused: bool,
    all: String,
}

impl Run {
    /// Whether a rank has this word for a case.
    fn has(&self, case: &str, word: &str) -> bool {
        let mut of_case = self.cases.iter().filter(|(name, _)| name == case);
        of_case.any(|(_, words)| words.iter().any(|found| found == word))
    }

    /// The cases that have failed on a rank.
    fn failed(&self) -> impl Iterator<Item = &str> {
        let cases = self.cases.iter();
        let failed = cases.filter(|(_, words)| words.iter().any(|word| word != "ok"));
        failed.map(|(name, _)| name.as_str())
    }
}

/// Runs all cases, or only one.
fn run(mpi: &Mpi, kind: &str, who: &str, case: Option<&str>, environment: &[(&str, &str)]) -> Run {
    let mut command = mpi.launch(case.map_or(LIMIT, |_| CASE));
    let mut inner = kind;
    if kind == "shared-tiny-shm" {
        let mut within = Command::new("unshare");
        let mount = "mount -t tmpfs -o size=1m own /dev/shm && exec \"$@\"";
        within.args(["--mount", "sh", "-c", mount, "sh"]);
        within.arg(command.get_program()).args(command.get_args());
        (command, inner) = (within, "none");
    }
    let arguments: Vec<&str> = [inner, who].into_iter().chain(case).collect();
    let (_, output) = mpi.output_of(command, RANKS, &arguments, environment);
    let all = text(&output.stdout) + &text(&output.stderr);
    let mut found = Run {
        cases: Vec::new(),
        seconds: 0.0,
        skipped: None,
        refused: all.contains("refused by the kernel: process_vm_readv"),
        all,
    };
    let lines = found.all.lines();
    let lines: Vec<&str> = lines
        .filter_map(|line| line.strip_prefix("environment: "))
        .collect();
    if lines.len() != RANKS || !output.status.success() {
        return found;
    }
    for line in lines {
        let (line, skipped) = line.split_once(" skipped: ").unwrap_or((line, ""));
        if !skipped.is_empty() {
            found.skipped = Some(skipped.to_owned());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let pairs: Vec<(&str, &str)> = words
            .chunks_exact(2)
            .map(|pair| (pair[0], pair[1]))
            .collect();
        let seconds = |name| {
            let pair = pairs.iter().find(|(found, _)| *found == name);
            pair.and_then(|(_, value)| value.parse::<f64>().ok())
        };
        let both = seconds("init").unwrap_or(0.0) + seconds("spent").unwrap_or(0.0);
        found.seconds = found.seconds.max(both);
        for (name, word) in &pairs[3..] {
            match found.cases.iter_mut().find(|(known, _)| known == name) {
                Some((_, words)) => words.push((*word).to_owned()),
                None => found
                    .cases
                    .push(((*name).to_owned(), vec![(*word).to_owned()])),
            }
        }
    }
    found
}

/// Whether the MPI library is at fault: each case that has failed with libcopy fails without it,
/// too, when no other case is run before it. Of an error or an end a program hears. Of wrong bytes
/// it does not, so they are excused by wrong bytes of the same case alone: where MPICH 5.0.2 is
/// refused a read, `MPI_Iallgather` and `MPI_Iallreduce` say `MPI_SUCCESS`, and what they were to
/// receive is as it was.
fn is_own(mpi: &Mpi, kind: &str, who: &str, ours: &Run) -> bool {
    let again = |case| (0..TRIES).map(move |_| run(mpi, kind, who, case, &[]));
    if ours.cases.is_empty() {
        return again(None).any(|plain| plain.cases.is_empty());
    }
    let mut failed = ours.failed();
    failed.all(|case| {
        let fails = |plain: &Run| {
            if ours.has(case, "wrong") {
                plain.has(case, "wrong")
            } else {
                plain.cases.is_empty() || plain.failed().next().is_some()
            }
        };
        again(Some(case)).any(|plain| fails(&plain))
    })
}

/// What a program has with libcopy, against what it has alone; an error if that is worse.
fn judge(mpi: &Mpi, kind: &str, who: &str, usual: f64) -> Result<String, String> {
    let preload = library().to_str().expect("a plain path");
    let environment = [
        ("LD_PRELOAD", preload),
        ("LIBCOPY_MPI_MESSAGES", "1"),
        ("LIBCOPY_MPI_MIN", "4096"),
        ("LIBCOPY_GOVERNOR", "0"),
        ("LIBCOPY_STATS", "ranks"),
    ];
    let mut usual = usual;
    for attempt in 1.. {
        let ours = run(mpi, kind, who, None, &environment);
        if let Some(why) = ours.skipped {
            return Ok(format!("skipped: {why}"));
        }
        let is_right = !ours.cases.is_empty() && ours.failed().next().is_none();
        if is_right && ours.seconds <= usual + LONGER {
            if REFUSED.contains(&kind) && !ours.refused {
                return Err(format!("nothing was refused\n{}", ours.all));
            }
            return Ok("ok".to_owned());
        }
        if !is_right {
            return if is_own(mpi, kind, who, &ours) {
                Ok("plain's own error".to_owned())
            } else {
                Err(format!("{:?}\n{}", ours.cases, ours.all))
            };
        }
        let plain = run(mpi, kind, who, None, &[]);
        usual = usual.max(plain.seconds);
        if attempt == TRIES {
            let seconds = ours.seconds;
            return Err(format!(
                "slower: {seconds:.1} s, alone {usual:.1} s\n{}",
                ours.all
            ));
        }
    }
    unreachable!()
}

#[test]
fn environments_cost_programs_nothing() {
    let asked = std::env::var("LIBCOPY_TEST_ENVIRONMENTS").unwrap_or_else(|_| "openmpi".to_owned());
    let libraries = BOTH
        .iter()
        .filter(|(name, _)| ["all", *name].contains(&asked.as_str()));
    let mut failures = Vec::new();
    // Shown whatever the test runner does with what tests print.
    let show = |cells: [&str; 4]| {
        let [kind, what, all, odd] = cells;
        let row = format!("{kind:<18} {what:<46} {all:<24} {odd}\n");
        let _ = std::io::stderr().write_all(row.as_bytes());
    };
    for (name, launcher) in libraries {
        let Some(mpi) = mpi(name, launcher, SOURCE, C) else {
            continue;
        };
        let _turn = turn();
        let usual = run(&mpi, "none", "all", None, &[]).seconds;
        assert!(usual > 0.0, "{name}");
        show([name, "what is restricted", "all ranks", "odd ranks"]);
        for (kind, what) in KINDS {
            let mut cells = Vec::new();
            for who in ["all", "odd"] {
                let verdict = match (kind, who) {
                    both if both == HANGS && *name == "openmpi" => Ok("plain hangs".to_owned()),
                    ("shared-tiny-shm" | "none", "odd") => Ok("as all".to_owned()),
                    (_, "odd") if !is_full() && !ODD.contains(&kind) => {
                        Ok("with LIBCOPY_TEST_ALL=1".to_owned())
                    }
                    _ => judge(&mpi, kind, who, usual),
                };
                cells.push(verdict.unwrap_or_else(|why| {
                    failures.push(format!("{name}, {kind}, {who}: {why}"));
                    let word = if why.starts_with("slower") {
                        "slower"
                    } else {
                        "worse"
                    };
                    word.to_owned()
                }));
            }
            show([kind, what, &cells[0], &cells[1]]);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
