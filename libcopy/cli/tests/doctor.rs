// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy doctor` where something restricts it: each restriction is named, and nothing else.

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use common::{TOOL, cleared, output, path_before, text, word};
use serde_json::Value;

/// The checks, in their order: scripts know them.
const CHECKS: [&str; 13] = [
    "device",
    "memlock",
    "seccomp",
    "yama",
    "namespaces",
    "shared-memory",
    "variables",
    "profile",
    "library",
    "mpi",
    "launcher",
    "threads",
    "binding",
];

/// A command of the tool with nothing of ours in its environment.
fn tool(place: &Path, words: &[&str]) -> Command {
    at(place, common::tool(words))
}

/// With profiles and caches in a place.
fn at(place: &Path, mut command: Command) -> Command {
    command
        .env("XDG_CONFIG_HOME", place)
        .env("XDG_CACHE_HOME", place);
    command
}

/// What the tool says as JSON, and its exit status.
fn diagnosis(mut command: Command) -> (Value, i32) {
    let output = output(&mut command);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr))
    });
    let code = output.status.code().expect("an exit status");
    assert_eq!(all["exit"], code, "{all}");
    let word = ["ok", "slow", "broken"][usize::try_from(code).expect("an exit status of ours")];
    assert_eq!(all["status"], word, "{all}");
    (all, code)
}

/// The status of each check.
fn statuses(all: &Value) -> BTreeMap<String, String> {
    let checks = all["checks"].as_array().expect("a list");
    let names: Vec<&str> = checks
        .iter()
        .filter_map(|it| it["check"].as_str())
        .collect();
    assert_eq!(names, CHECKS, "{all}");
    let word = |value: &Value| value.as_str().expect("a word").to_owned();
    checks
        .iter()
        .map(|it| (word(&it["check"]), word(&it["status"])))
        .collect()
}

fn finding(all: &Value, check: &str) -> Value {
    let mut checks = all["checks"].as_array().expect("a list").iter();
    checks.find(|it| it["check"] == check).expect(check).clone()
}

/// What was found has a part.
#[track_caller]
fn has(finding: &Value, part: &str) {
    let found = finding["found"].as_str().expect("a text");
    assert!(found.contains(part), "{finding}");
}

/// Whether this machine lets processes read each other and has what the tests take away.
fn plain(place: &Path) -> (BTreeMap<String, String>, Value) {
    let (all, _) = diagnosis(tool(place, &["doctor", "--json"]));
    (statuses(&all), all)
}

/// Asserts that a restriction has made one check worse, and no other.
#[track_caller]
fn only(place: &Path, restricted: Command, check: &str, status: &str) -> Value {
    let (before, _) = plain(place);
    let (all, code) = diagnosis(restricted);
    let after = statuses(&all);
    let changed: Vec<&String> = after
        .keys()
        .filter(|name| after[*name] != before[*name])
        .collect();
    assert_eq!(changed, [check], "{all:#}");
    assert_eq!(after[check], status, "{all:#}");
    assert_eq!(code, if status == "broken" { 2 } else { 1 }, "{all:#}");
    let found = finding(&all, check);
    for part in ["found", "meaning", "remedy"] {
        assert!(
            found[part].as_str().is_some_and(|text| text.len() > 3),
            "{found}"
        );
    }
    found
}

#[test]
fn every_check_is_told_and_a_machine_without_restrictions_is_fine() {
    let place = tempfile::tempdir().expect("a directory");
    let (before, all) = plain(place.path());
    for check in [
        "memlock",
        "seccomp",
        "yama",
        "namespaces",
        "shared-memory",
        "variables",
    ] {
        // Where this test itself is restricted, the other tests say nothing either.
        if before[check] != "ok" {
            eprintln!("this machine: {}", finding(&all, check));
        }
    }
    assert_eq!(before["profile"], "absent", "{all:#}");
    assert_eq!(before["variables"], "ok", "{all:#}");
    assert_eq!(before["shared-memory"], "ok", "{all:#}");
    // A line for each, and what mends it behind an arrow, for those that are not as they should be.
    let output = output(&mut tool(place.path(), &["doctor"]));
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with(' ')).collect();
    assert_eq!(lines.len(), CHECKS.len(), "{said}");
    for (line, check) in lines.iter().zip(CHECKS) {
        assert!(
            line.starts_with(&format!("{:<8}{check}", before[check])),
            "{line}"
        );
    }
    let arrows = said
        .lines()
        .filter(|line| line.trim_start().starts_with("-> "))
        .count();
    assert_eq!(
        arrows,
        before.values().filter(|status| *status != "ok").count(),
        "{said}"
    );
    assert!(said.is_ascii(), "{said}");
}

/// Has a system call come to `action` in a program (seccomp(2)).
fn refuse(command: &mut Command, call: libc::c_long, action: u32) {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let mut filter = [
        // The number is the first word of what the filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32)
        },
        statement(libc::BPF_RET | libc::BPF_K, action),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: the filter lives during the calls, which the kernel checks.
        let failed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_FILTER,
                    &raw const program,
                ) != 0
        };
        if failed {
            return Err(std::io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: two system calls on memory of the closure's own.
    unsafe { command.pre_exec(install) };
}

#[test]
fn a_filter_of_system_calls_is_named() {
    let place = tempfile::tempdir().expect("a directory");
    let (before, _) = plain(place.path());
    if before["seccomp"] != "ok" || before["yama"] != "ok" || before["namespaces"] != "ok" {
        eprintln!("skipped: processes may not read each other here");
        return;
    }
    for error in [libc::EPERM, libc::ENOSYS] {
        let mut command = tool(place.path(), &["doctor", "--json"]);
        let action = libc::SECCOMP_RET_ERRNO | error as u32;
        refuse(&mut command, libc::SYS_process_vm_readv, action);
        let found = only(place.path(), command, "seccomp", "slow");
        has(&found, "process_vm_readv");
        assert!(found["remedy"].to_string().contains("filter"), "{found}");
    }
    // Another system call is not missed.
    let mut command = tool(place.path(), &["doctor", "--json"]);
    refuse(
        &mut command,
        libc::SYS_acct,
        libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
    );
    let (all, _) = diagnosis(command);
    assert_eq!(statuses(&all), before, "{all:#}");
    let found = finding(&all, "seccomp");
    has(&found, "lets process_vm_readv through");
    // One that kills is named, and what could not be tried is not blamed.
    let mut command = tool(place.path(), &["doctor", "--json"]);
    refuse(
        &mut command,
        libc::SYS_process_vm_readv,
        libc::SECCOMP_RET_KILL_PROCESS,
    );
    let (all, code) = diagnosis(command);
    let after = statuses(&all);
    let broken: Vec<_> = after
        .iter()
        .filter(|(_, status)| *status == "broken")
        .collect();
    assert_eq!(broken.len(), 1, "{all:#}");
    assert_eq!((after["seccomp"].as_str(), code), ("broken", 2), "{all:#}");
    assert!(after.values().all(|status| status != "slow"), "{all:#}");
}

#[test]
fn a_memlock_limit_is_named() {
    let place = tempfile::tempdir().expect("a directory");
    if plain(place.path()).0["memlock"] != "ok" {
        eprintln!("skipped: the limit is low already");
        return;
    }
    for bytes in [0, 64 << 10] {
        let mut command = tool(place.path(), &["doctor", "--json"]);
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: bytes,
        };
        let set = move || {
            // SAFETY: the structure is read.
            match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: one system call.
        unsafe { command.pre_exec(set) };
        let found = only(place.path(), command, "memlock", "slow");
        let said = format!("ulimit -l is {} KiB", bytes >> 10);
        assert!(
            found["found"]
                .as_str()
                .is_some_and(|text| text.starts_with(&said)),
            "{found}"
        );
    }
}

#[test]
fn little_shared_memory_is_named() {
    let place = tempfile::tempdir().expect("a directory");
    let mount = |options: &str| {
        let mount = format!("mount -t tmpfs -o {options} own /dev/shm && exec \"$@\"");
        let mut command = Command::new("unshare");
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } != 0 {
            command.arg("--map-root-user");
        }
        command.args(["--mount", "sh", "-c", &mount, "sh", TOOL]);
        at(place.path(), cleared(command, &["doctor", "--json"]))
    };
    let can = mount("size=1g").output();
    if !can.is_ok_and(|output| !output.stdout.is_empty()) {
        eprintln!("skipped: no file system can be mounted here");
        return;
    }
    let found = only(place.path(), mount("size=64k"), "shared-memory", "slow");
    has(&found, "/dev/shm");
    has(&found, "64 KiB");
}

#[test]
fn a_team_that_cannot_be_made_is_broken() {
    let place = tempfile::tempdir().expect("a directory");
    let mut command = tool(place.path(), &["doctor", "--json"]);
    command.env("LIBCOPY_SHM_DIR", "/nonexistent");
    let (all, code) = diagnosis(command);
    assert_eq!(code, 2);
    let found = finding(&all, "shared-memory");
    assert_eq!(found["status"], "broken", "{all:#}");
    has(&found, "/nonexistent");
}

#[test]
fn variables_and_profiles_are_named() {
    let place = tempfile::tempdir().expect("a directory");
    let with = |name: &str, value: &str| {
        let mut command = tool(place.path(), &["doctor", "--json"]);
        command.env(name, value);
        command
    };
    for (name, value, status, part) in [
        ("LIBCOPY_SPIN", "soon", "broken", "expected a number"),
        ("LIBCOPY_MPI_PROTOCOL", "worst", "broken", "best, pipelined"),
        ("LIBCOPY_SHM_RING", "12345", "broken", "12345"),
        ("LIBCOPY_TRANSPROT", "shm", "slow", "LIBCOPY_TRANSPROT"),
    ] {
        let found = only(place.path(), with(name, value), "variables", status);
        has(&found, part);
    }
    if plain(place.path()).0["device"] == "absent" {
        let found = only(
            place.path(),
            with("LIBCOPY_TRANSPORT", "kmod"),
            "variables",
            "broken",
        );
        has(&found, "LIBCOPY_TRANSPORT=kmod");
    }

    // A profile of another machine is stale, one that is none is an error.
    let file = place.path().join("other.toml");
    let policy = libcopy::policy::Policy::built_in(&libcopy::topology::Topology::read());
    let machines = BTreeMap::from([("another machine", policy)]);
    let profile = BTreeMap::from([("machines", machines)]);
    std::fs::write(&file, toml::to_string(&profile).expect("TOML")).expect("a file");
    let path = word(&file);
    let found = only(
        place.path(),
        with("LIBCOPY_PROFILE", path),
        "profile",
        "slow",
    );
    has(&found, "another machine");
    assert_eq!(found["remedy"], "libcopy tune");
    std::fs::write(&file, "nonsense = 1").expect("a file");
    let found = only(
        place.path(),
        with("LIBCOPY_PROFILE", path),
        "profile",
        "broken",
    );
    has(&found, "nonsense");
}

/// A directory with launchers that start two ranks, and with a file in place of the library that
/// the dynamic linker can load: a copy of the C library's `libdl` or the like.
struct Launchers {
    place: tempfile::TempDir,
}

impl Launchers {
    fn new() -> Launchers {
        let launchers = Launchers {
            place: tempfile::tempdir().expect("a directory"),
        };
        // What Open MPI's launcher does with `-x`, and one that does not.
        let version = "[ \"$1\" = --version ] && echo 'mpirun (Open MPI) 5.0.11' && exit 0\n";
        let options = "while [ $# -gt 0 ]; do case $1 in\n-x) export \"$2\"; shift 2;;\n-n) shift 2;;\n\
                       *) break;; esac; done\n";
        let both = "\"$@\" & \"$@\" & wait\n";
        launchers.script("mpirun", &format!("{version}{options}{both}"));
        let forgets = format!("{version}{options}unset LD_PRELOAD\n{both}");
        launchers.script("mpiexec", &forgets);
        let narrow = format!("{version}{options}set -- taskset -c 0 \"$@\"\n{both}");
        launchers.script("orterun", &narrow);
        launchers.script(
            "prun",
            &format!("[ \"$1\" = --version ] && echo odd && exit 0\n{options}{both}"),
        );
        launchers.script(
            "prterun",
            &format!("{version}echo 'no slots are left' >&2; exit 3\n"),
        );
        let source = launchers.place.path().join("empty.c");
        std::fs::write(&source, "int libcopy_empty;\n").expect("a file");
        launchers
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.place.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}")).expect("a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("its mode");
    }

    /// A library of the name of ours, if there is a compiler.
    fn library(&self) -> Option<String> {
        let path = self.place.path().join("libcopy_mpi.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&path);
        compiler.arg(self.place.path().join("empty.c"));
        let is_made = compiler
            .output()
            .is_ok_and(|output| output.status.success());
        is_made.then(|| word(&path).to_owned())
    }

    /// The tool with these launchers before all others.
    fn tool(&self, words: &[&str]) -> Command {
        let mut command = tool(self.place.path(), words);
        command.env("PATH", path_before(self.place.path()));
        command
    }
}

#[test]
fn launchers_that_forget_the_library_are_named() {
    let launchers = Launchers::new();
    let Some(library) = launchers.library() else {
        eprintln!("skipped: no C compiler");
        return;
    };
    let say = |launcher: &str| {
        let doctor = ["doctor", "--json", "--library", &library, "--"];
        let words = [&doctor[..], &[launcher, "-n", "2"]].concat();
        let (all, code) = diagnosis(launchers.tool(&words));
        (
            finding(&all, "launcher"),
            finding(&all, "binding"),
            code,
            all,
        )
    };
    let (found, binding, _, all) = say("mpirun");
    assert_eq!(found["status"], "ok", "{all:#}");
    has(&found, "2 of 2 ranks have");
    has(&binding, "the launcher's ranks");
    // They have met.
    assert_eq!(finding(&all, "shared-memory")["status"], "ok", "{all:#}");
    let (found, _, code, all) = say("mpiexec");
    assert_eq!(
        (found["status"].as_str(), code),
        (Some("broken"), 2),
        "{all:#}"
    );
    has(&found, "0 of 2 ranks have");
    // One that is not known hands on what it inherits.
    let (found, ..) = say("prun");
    assert_eq!(found["status"], "ok", "{found}");
    has(&found, "does not know it");
    let (found, _, code, _) = say("prterun");
    assert_eq!((found["status"].as_str(), code), (Some("broken"), 2));
    has(&found, "no slots are left");
    // Both ranks on one processor.
    let (_, binding, ..) = say("orterun");
    let is_bound = Command::new("taskset").args(["-c", "0", "true"]).status();
    if is_bound.is_ok_and(|status| status.success()) {
        assert_eq!(binding["status"], "slow", "{binding}");
        assert!(
            binding["remedy"].to_string().contains("--bind-to core"),
            "{binding}"
        );
    }
}

#[test]
fn a_command_with_a_program_is_refused() {
    let launchers = Launchers::new();
    let words = ["doctor", "--", "mpirun", "-n", "2", "true"];
    let output = output(&mut launchers.tool(&words));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("leave the program true out"), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_library_that_is_no_library_is_named() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("libcopy_mpi.so");
    std::fs::write(&file, "no library").expect("a file");
    let path = word(&file);
    let (all, code) = diagnosis(tool(place.path(), &["doctor", "--json", "--library", path]));
    assert_eq!(code, 2, "{all:#}");
    let found = finding(&all, "library");
    assert_eq!(found["status"], "broken", "{all:#}");
    has(&found, "cannot be preloaded");
    assert_eq!(finding(&all, "shared-memory")["status"], "ok", "{all:#}");
}
