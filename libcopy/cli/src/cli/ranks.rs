// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two ranks of this tool that say what they can do: they join a team, as ranks of programs do, and
//! each tells what it found as a line of JSON.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use libcopy::config::{self, SETTINGS};
use libcopy::policy::Policy;
use libcopy::team::{self, TeamKey};
use libcopy::topology;
use libcopy::{Error, Team, TransportKind};
use libloading::os::unix::Library;
use serde::{Deserialize, Serialize};

use super::mpi::child::{Said, ended_within};
use super::mpi::launcher::Start;

/// How many ranks join the team.
pub const RANKS: usize = 2;

/// The hidden command that is a rank.
pub const COMMAND: &str = "doctor-rank";

/// What stands before a report, as launchers may write something before what ranks say.
const MARK: &str = "libcopy-doctor-rank: ";

/// Bytes that a rank tries to lock: those of a large message.
pub const LOCKED: usize = 4 << 20;

/// How long ranks wait for each other.
const JOIN_SECONDS: &str = "10";

/// How long a launcher may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// Arguments of the hidden command.
#[derive(Parser, Debug)]
pub struct RankArgs {
    /// Key of the team, if the environment does not name it
    #[arg(long, requires = "meet")]
    key: Option<String>,

    /// Directory in which ranks of one machine choose their numbers
    #[arg(long)]
    meet: Option<PathBuf>,

    /// MPI library to start and end
    #[arg(long)]
    mpi: Option<PathBuf>,
}

/// What a rank says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Its number in the team; one that there was no place for has none.
    pub number: Option<usize>,
    pub host: String,
    pub pid: u32,
    /// The file of `libcopy_mpi.so` that it has mapped.
    pub library: Option<PathBuf>,
    /// The processors that it may run on.
    pub cpus: Vec<usize>,
    /// What came of reading its own memory as another process's is read: 0 or an errno.
    pub own_read: i32,
    /// What came of locking memory without `CAP_IPC_LOCK`: 0 or an errno.
    pub locked: i32,
    /// Why there is no team.
    pub error: Option<String>,
    /// Each transport, whether the team can use it, and why.
    pub transports: Vec<(String, bool, String)>,
    /// Bytes of the memory that the team shares.
    pub shared: usize,
    /// The file that it was, if it had a name; rank 0 knows.
    pub file: Option<PathBuf>,
    /// The thread level that the MPI library has started with, and whether it has the functions of
    /// MPI 5.
    pub threads: Option<(c_int, bool)>,
}

impl Report {
    /// Whether the team can use a transport, and why.
    pub fn transport(&self, kind: TransportKind) -> Option<(bool, &str)> {
        let mut all = self.transports.iter();
        let found = all.find(|(name, ..)| name == kind.name());
        found.map(|(_, usable, why)| (*usable, why.as_str()))
    }
}

/// What came of starting ranks.
#[derive(Debug, Default)]
pub struct Ranks {
    /// What they said, by their numbers.
    pub reports: Vec<Report>,
    /// The signal that ended one of them, or the launcher.
    pub signal: Option<i32>,
    /// What was said as errors.
    pub errors: String,
    /// How the launcher ended, if it is no success.
    pub failure: Option<String>,
}

impl Ranks {
    /// What rank 0 of the team says, if there is a team of all.
    pub fn team(&self) -> Option<&Report> {
        let members = self.reports.get(..RANKS)?;
        members
            .iter()
            .all(|it| it.error.is_none())
            .then(|| &members[0])
    }

    /// Why the transport that the environment asks for cannot be used, if it is so.
    pub fn refused_transport(&self) -> Option<String> {
        let kind: TransportKind = config::TRANSPORT.parse().ok()??;
        let (usable, why) = self.team()?.transport(kind)?;
        (!usable).then(|| format!("{}={kind} cannot be used: {why}", config::TRANSPORT.name))
    }

    /// Why there is none.
    pub fn why(&self) -> String {
        let mut errors = self.reports.iter().filter_map(|it| it.error.clone());
        let signal = || {
            let signal = self.signal?;
            Some(format!("a rank was killed by signal {signal}"))
        };
        let said = || self.errors.lines().next().map(str::to_owned);
        errors
            .next()
            .or_else(signal)
            .or_else(said)
            .unwrap_or_else(|| "the ranks have said nothing".to_owned())
    }
}

/// Starts the ranks of a team on this machine. `environment` is added to theirs; variables that
/// cannot be used are not handed on, so that they hide nothing else.
///
/// # Errors
///
/// They cannot be started.
pub fn start(environment: &[(String, String)]) -> Result<Ranks> {
    let own = own_program()?;
    let mut said = Said::new()?;
    let mut hidden: Vec<&str> = vec![config::TRANSPORT.name, config::STATS.name];
    let is_usable = Policy::load().is_ok();
    let kept = [config::SHM_DIR.name];
    let all = SETTINGS.iter().map(|setting| setting.name);
    hidden.extend(all.filter(|name| !is_usable && !kept.contains(name)));
    let wrong = SETTINGS.iter().filter(|setting| setting.check().is_err());
    hidden.extend(wrong.map(|setting| setting.name));
    let started = team::launch(RANKS, |_| {
        let mut command = Command::new(&own);
        command.arg(COMMAND);
        for name in &hidden {
            command.env_remove(name);
        }
        if !is_usable {
            command.env(config::PROFILE.name, "none");
        }
        command.env(config::JOIN_TIMEOUT.name, JOIN_SECONDS);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        // A rank that cannot be heard has said nothing.
        let _ = said.hear(&mut command);
        command
    });
    let statuses = started.context("starting two ranks of this tool")?;
    let signal = statuses.iter().find_map(ExitStatus::signal);
    Ok(Ranks {
        reports: reports(&said.output()?),
        signal,
        errors: said.errors()?,
        failure: None,
    })
}

/// Starts ranks by a launcher whose program is left out; `start` makes the whole command of a
/// program and its arguments, with the environment that the launcher itself gets.
///
/// # Errors
///
/// The launcher cannot be started, or does not end.
pub fn start_by(mpi: Option<&Path>, start: impl FnOnce(Vec<String>) -> Start) -> Result<Ranks> {
    let own = own_program()?;
    let own = own.to_str().context("this tool's path is no UTF-8 text")?;
    let meet = tempfile::Builder::new().prefix("libcopy-doctor.").tempdir();
    let meet = meet.context("making a directory in which ranks meet (see TMPDIR)")?;
    let mut program = vec![own.to_owned(), COMMAND.to_owned()];
    let place = meet.path().to_str().context("TMPDIR is no UTF-8 text")?;
    let key = TeamKey::random()?.to_string();
    program.extend(["--key", &key, "--meet", place].map(str::to_owned));
    if let Some(path) = mpi.and_then(Path::to_str) {
        program.extend(["--mpi".to_owned(), path.to_owned()]);
    }
    let start = start(program);
    let mut command = start.command();
    let mut said = Said::new()?;
    said.hear(&mut command)?;
    command
        .env(config::JOIN_TIMEOUT.name, JOIN_SECONDS)
        .env_remove(config::STATS.name);
    let status = ended(&mut command, &start.words[0])?;
    let failure = match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("it ended with status {code}")),
        (None, signal) => Some(format!("it was killed by signal {}", signal.unwrap_or(0))),
    };
    Ok(Ranks {
        reports: reports(&said.output()?),
        signal: None,
        errors: said.errors()?,
        failure,
    })
}

/// Waits for a launcher, with patience.
fn ended(command: &mut Command, name: &str) -> Result<ExitStatus> {
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {name}"))?;
    if let Some(status) = ended_within(&mut child, PATIENCE)? {
        return Ok(status);
    }
    // It ends its ranks.
    // SAFETY: our own child, which has not been waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    if ended_within(&mut child, Duration::from_secs(5))?.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    bail!("{name} did not end within {} s", PATIENCE.as_secs());
}

fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("finding this program")
}

/// The last report of each process, by the numbers of the ranks.
fn reports(said: &[u8]) -> Vec<Report> {
    let said = String::from_utf8_lossy(said);
    let found = said.lines().filter_map(|line| {
        let (_, json) = line.split_once(MARK)?;
        serde_json::from_str::<Report>(json).ok()
    });
    let by_process: BTreeMap<_, Report> = found
        .map(|it| {
            (
                (it.number.unwrap_or(usize::MAX), it.host.clone(), it.pid),
                it,
            )
        })
        .collect();
    by_process.into_values().collect()
}

/// Is a rank.
///
/// # Errors
///
/// It cannot say what it has found.
pub fn serve(args: &RankArgs) -> Result<()> {
    let mut report = Report {
        host: host(),
        pid: std::process::id(),
        library: library(),
        cpus: topology::affinity(),
        own_read: own_read(),
        ..Report::default()
    };
    match join(args, &mut report) {
        Ok(Some(team)) => {
            let all = team.transports().iter();
            let all = all.map(|it| (it.kind.name().to_owned(), it.usable, it.why.to_string()));
            report.transports = all.collect();
            let (bytes, file) = team.shared_memory();
            report.shared = bytes;
            report.file = file.map(Path::to_owned);
        }
        Ok(None) => {}
        Err(error) => report.error = Some(format!("{error:#}")),
    }
    report.locked = locked();
    say(&report)?;
    if let Some(path) = &args.mpi {
        report.threads = threads(path);
        say(&report)?;
    }
    Ok(())
}

/// In one call, so that the lines of ranks do not mix.
fn say(report: &Report) -> Result<()> {
    let line = format!("{MARK}{}\n", serde_json::to_string(report)?);
    std::io::stdout().write_all(line.as_bytes())?;
    Ok(())
}

/// Joins the team; none if there are enough ranks.
fn join(args: &RankArgs, report: &mut Report) -> Result<Option<Team>> {
    let (Some(key), Some(meet)) = (&args.key, &args.meet) else {
        let team = Team::from_env().map_err(|error| anyhow::anyhow!(error.report()))?;
        report.number = Some(team.rank());
        return Ok(Some(team));
    };
    let key: TeamKey = key.parse().context("--key")?;
    // Not all machines may see the directory.
    fs::create_dir_all(meet).with_context(|| format!("making {}", meet.display()))?;
    let is_free = |number: &usize| {
        let path = meet.join(number.to_string());
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .is_ok()
    };
    report.number = (0..RANKS).find(is_free);
    let Some(number) = report.number else {
        return Ok(None);
    };
    let joined = Team::join(&key, number, RANKS);
    Ok(Some(
        joined.map_err(|error| anyhow::anyhow!(error.report()))?,
    ))
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "?".to_owned(), |name| name.trim().to_owned())
}

/// The mapped `libcopy_mpi.so` (proc(5), maps).
fn library() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        let name = path.rsplit('/').next()?;
        (name == super::mpi::library::NAME).then_some(path)
    })?;
    Some(PathBuf::from(path))
}

/// Reads eight bytes of this process, as those of another one are read.
fn own_read() -> i32 {
    let (word, mut found) = (0x6C69_6263_6F70_7921_u64, 0_u64);
    let theirs = libc::iovec {
        iov_base: (&raw const word).cast_mut().cast(),
        iov_len: 8,
    };
    let ours = libc::iovec {
        iov_base: (&raw mut found).cast(),
        iov_len: 8,
    };
    // SAFETY: both are eight bytes of ours.
    let moved = unsafe { libc::process_vm_readv(libc::getpid(), &ours, 1, &theirs, 1, 0) };
    match moved {
        8 if found == word => 0,
        -1 => errno(),
        _ => libc::EIO,
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// Locks [`LOCKED`] bytes as a process without `CAP_IPC_LOCK`, to which the limit does not apply
/// (capabilities(7)): programs run without it as a rule.
fn locked() -> i32 {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let mut header = [VERSION_3, 0];
    // Effective, permitted and inheritable, twice 32 bits.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: both are as long as the kernel's structures (capget(2)). The memory is our own, and
    // nobody else knows it.
    unsafe {
        if libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) == 0 {
            sets[0][0] &= !(1 << CAP_IPC_LOCK);
            libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr());
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(std::ptr::null_mut(), LOCKED, access, kind, -1, 0);
        if memory == libc::MAP_FAILED {
            return errno();
        }
        let error = match libc::mlock(memory, LOCKED) {
            0 => 0,
            _ => errno(),
        };
        libc::munmap(memory, LOCKED);
        error
    }
}

/// Starts and ends an MPI library as a program does, through `libcopy_mpi.so` where that is loaded;
/// the thread level between, and whether the library has the functions of MPI 5.
fn threads(path: &Path) -> Option<(c_int, bool)> {
    type Init = unsafe extern "C" fn(*mut c_int, *mut c_void) -> c_int;
    type Query = unsafe extern "C" fn(*mut c_int) -> c_int;
    type Finalize = unsafe extern "C" fn() -> c_int;
    // SAFETY: an MPI library may be loaded by any program; it stays loaded, as its threads may.
    let library = unsafe { Library::open(Some(path), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.ok()?;
    std::mem::forget(library);
    // What is preloaded comes first.
    let all = Library::this();
    let mut level = -1;
    // SAFETY: the functions of these names have these types (MPI 4.1, sections 11.2 and 11.6); null
    // pointers stand for no arguments.
    unsafe {
        let init = all.get::<Init>(b"MPI_Init").ok()?;
        let query = all.get::<Query>(b"MPI_Query_thread").ok()?;
        let finalize = all.get::<Finalize>(b"MPI_Finalize").ok()?;
        if init(std::ptr::null_mut(), std::ptr::null_mut()) != 0 || query(&mut level) != 0 {
            return None;
        }
        finalize();
    }
    // SAFETY: only whether it is there is asked.
    let abi = unsafe { all.get::<Finalize>(b"MPI_Abi_get_version") };
    Some((level, abi.is_ok()))
}

/// What programs refuse of the environment, a line for each: variables that cannot be used, and
/// thresholds that do not go together.
pub fn refused() -> Vec<String> {
    let wrong = SETTINGS.iter().filter_map(|setting| setting.check().err());
    let mut wrong: Vec<String> = wrong.map(|error| error.report()).collect();
    if let Err(error) = Policy::load() {
        let text = error.report();
        // What is wrong with the profile is the profile's line.
        if !matches!(error, Error::Profile { .. }) && !wrong.contains(&text) {
            wrong.push(text);
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_found_between_other_lines() {
        let line = |number, threads| {
            let report = Report {
                number,
                threads,
                ..Report::default()
            };
            format!(
                "[1,0]<stdout>: {MARK}{}",
                serde_json::to_string(&report).unwrap()
            )
        };
        let said = [
            line(Some(1), None),
            "warning".to_owned(),
            line(Some(0), None),
            line(Some(0), Some((3, true))),
            format!("{MARK}{{cut"),
        ]
        .join("\n");
        let found = reports(said.as_bytes());
        let numbers: Vec<_> = found.iter().map(|it| (it.number, it.threads)).collect();
        assert_eq!(numbers, [(Some(0), Some((3, true))), (Some(1), None)]);
    }
}
