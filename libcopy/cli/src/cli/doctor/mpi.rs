// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy_mpi.so`, the MPI libraries of this machine, and whether a launcher's ranks get it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use libcopy::topology::Cpus;

use super::super::mpi::launcher::{Launcher, Variable, is_launcher};
use super::super::mpi::{library, prepare, program};
use super::super::ranks::{self, RANKS, Ranks, Report};
use super::finding::{Finding, Status};

/// An MPI library of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    pub path: PathBuf,
    pub soname: String,
}

impl Library {
    fn is_served(&self) -> bool {
        prepare::SERVED.contains(&self.soname.as_str())
    }

    /// Whether ranks of a launcher are linked with it as a rule.
    fn is_of(&self, launcher: Launcher) -> bool {
        match launcher {
            Launcher::OpenMpi => self.soname == "libmpi.so.40",
            Launcher::Hydra => ["libmpich.so.12", "libmpi.so.12"].contains(&&*self.soname),
            Launcher::Slurm | Launcher::Program => self.is_served(),
        }
    }
}

/// Where libraries usually are.
const PLACES: [&str; 11] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/lib64/openmpi/lib",
    "/usr/lib64/mpich/lib",
    "/opt/openmpi/lib",
    "/opt/mpich/lib",
    "/opt/intel/oneapi/mpi/latest/lib",
];

/// The directories of a variable like `PATH`.
fn listed(name: &str) -> Vec<PathBuf> {
    let value = std::env::var_os(name);
    value.map_or_else(Vec::new, |value| std::env::split_paths(&value).collect())
}

/// The launchers of `PATH`, each once, by the shortest of its names.
pub fn launchers() -> Vec<PathBuf> {
    let mut found: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for directory in listed("PATH") {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let is_one = is_launcher(&name.to_string_lossy());
            let Some(real) = path.canonicalize().ok().filter(|_| is_one) else {
                continue;
            };
            if path.to_str().and_then(program::find).is_none() {
                continue;
            }
            let best = found.entry(real).or_insert_with(|| path.clone());
            if name.len() < best.file_name().map_or(0, |name| name.len()) {
                *best = path;
            }
        }
    }
    found.into_values().collect()
}

/// The MPI libraries beside the launchers, in `LD_LIBRARY_PATH` and in the usual places, each once.
pub fn libraries(launchers: &[PathBuf]) -> Vec<Library> {
    let mut places = listed("LD_LIBRARY_PATH");
    let real = launchers.iter().filter_map(|path| path.canonicalize().ok());
    for directory in real.filter_map(|path| Some(path.parent()?.parent()?.to_owned())) {
        places.extend(["lib", "lib64"].map(|name| directory.join(name)));
    }
    places.extend(PLACES.map(PathBuf::from));
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for directory in places {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        names.sort();
        for path in names {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(real) = path
                .canonicalize()
                .ok()
                .filter(|_| prepare::is_mpi_library(&name))
            else {
                continue;
            };
            // A linker's script is no library.
            if let Some(soname) = program::soname(&real).filter(|_| seen.insert(real)) {
                found.push(Library { path, soname });
            }
        }
    }
    found
}

/// The variables that have ranks load `libcopy_mpi.so`, and its path.
///
/// # Errors
///
/// It is not found.
pub fn preload(asked: Option<&Path>) -> Result<(PathBuf, Vec<Variable>)> {
    let path = library::find(asked)?;
    let variables = library::variables_here(&path)?;
    Ok((path, variables))
}

/// Whether `libcopy_mpi.so` is there and is loaded. `is_needed`: a launcher is to be tried;
/// `is_culprit`: ranks end with it, and not without.
pub fn library(
    found: &Result<(PathBuf, Vec<Variable>)>,
    ranks: &Ranks,
    (is_needed, is_culprit): (bool, bool),
) -> Finding {
    let check = "library";
    let path = match found {
        Ok((path, _)) => path,
        Err(error) => {
            let status = if is_needed {
                Status::Broken
            } else {
                Status::Absent
            };
            return status.because(
                check,
                format!("no {}", library::NAME),
                "MPI programs cannot use libcopy",
                format!("{error:#}"),
            );
        }
    };
    if ranks.reports.iter().any(|report| report.library.is_some()) {
        return Finding::ok(check, format!("{} is loaded", path.display()));
    }
    if !is_culprit && ranks.reports.is_empty() {
        let (found, remedy) = (path.display().to_string(), "what is broken comes first");
        return Status::Skipped.because(check, found, "not tried: ranks end", remedy);
    }
    let said = ranks
        .errors
        .lines()
        .find(|line| line.contains("ld.so") || line.contains("GLIBC"));
    Status::Broken.because(
        check,
        format!(
            "{} is not loaded: {}",
            path.display(),
            said.unwrap_or("nothing is said")
        ),
        "MPI programs cannot use libcopy",
        "scripts/build-mpi, which builds it for any glibc from 2.17 on",
    )
}

/// Whether the MPI libraries of this machine are served.
pub fn mpi(libraries: &[Library]) -> Finding {
    let check = "mpi";
    let list = |all: &[&Library]| {
        let all = all
            .iter()
            .map(|it| format!("{} ({})", it.soname, it.path.display()));
        all.collect::<Vec<_>>().join(", ")
    };
    let (served, others): (Vec<_>, Vec<_>) = libraries.iter().partition(|it| it.is_served());
    if libraries.is_empty() {
        return Status::Absent.because(
            check,
            "no MPI library beside a launcher, in LD_LIBRARY_PATH and in the usual places",
            "libcopy_mpi.so has nothing to serve here",
            "load the module of your MPI library and ask again",
        );
    }
    if others.is_empty() {
        return Finding::ok(check, format!("served: {}", list(&served)));
    }
    Status::Slow.because(
        check,
        format!("not served: {}", list(&others)),
        "programs that are linked with it have every call forwarded",
        format!("link with one of {}", prepare::SERVED.join(", ")),
    )
}

/// What came of a user's launcher.
pub struct Launched {
    pub launcher: Launcher,
    pub ranks: Ranks,
    /// Why `libcopy mpi run` does not know it.
    pub unknown: Option<String>,
    /// The MPI library that was started.
    pub mpi: Option<Library>,
}

/// Starts ranks by a command without a program.
///
/// # Errors
///
/// It has a program, or cannot be started.
pub fn launch(
    command: &[String],
    variables: &[Variable],
    libraries: &[Library],
) -> Result<Launched> {
    let (launcher, unknown) = match prepare::recognised(command) {
        Ok(launcher) => (launcher, None),
        Err(error) => (Launcher::Program, Some(format!("{error:#}"))),
    };
    if launcher != Launcher::Program {
        if let Some(named) = launcher.named(command).first() {
            bail!(
                "leave the program {named} out: `libcopy doctor -- {}` starts this tool instead",
                command
                    .split(|word| word == named)
                    .next()
                    .unwrap_or_default()
                    .join(" ")
            );
        }
    }
    let mpi = of_launcher(libraries, launcher, &command[0]).filter(|_| unknown.is_none());
    let path = mpi.as_ref().map(|library| library.path.clone());
    let ranks = ranks::start_by(path.as_deref(), |program| {
        let all: Vec<String> = command.iter().cloned().chain(program).collect();
        launcher.start(&all, variables)
    })?;
    Ok(Launched {
        launcher,
        ranks,
        unknown,
        mpi,
    })
}

/// The library of a launcher: one of its kind, installed beside it.
fn of_launcher(libraries: &[Library], launcher: Launcher, word: &str) -> Option<Library> {
    let real = program::find(word)?.canonicalize().ok()?;
    let prefix = real.parent()?.parent()?;
    let is_beside = |it: &&Library| it.is_of(launcher) && it.path.starts_with(prefix);
    libraries.iter().find(is_beside).cloned()
}

/// Whether a launcher's ranks get the library.
pub fn launcher(launched: Option<&Launched>, found: &[PathBuf]) -> Finding {
    let check = "launcher";
    let Some(launched) = launched else {
        let names = found.iter().map(|path| {
            let word = path.to_string_lossy();
            match Launcher::of(&word) {
                Ok(launcher) => format!("{word} ({})", launcher.name()),
                Err(_) => format!("{word} (not known to `libcopy mpi run`)"),
            }
        });
        let names: Vec<String> = names.collect();
        return match found.first() {
            None => Status::Absent.because(
                check,
                "no launcher of MPI programs in PATH",
                "not tried",
                "libcopy doctor -- LAUNCHER -n 2",
            ),
            Some(first) => Status::Skipped.because(
                check,
                names.join(", "),
                "whether it hands the library on was not tried",
                format!("libcopy doctor -- {} -n 2", first.display()),
            ),
        };
    };
    let (ranks, name) = (&launched.ranks, launched.launcher.name());
    let all = ranks.reports.len();
    let with = ranks
        .reports
        .iter()
        .filter(|report| report.library.is_some())
        .count();
    if all == 0 {
        let first = ranks.errors.lines().map(str::trim);
        let said: Vec<&str> = first
            .filter(|line| line.contains(char::is_alphabetic))
            .take(3)
            .collect();
        return Status::Broken.because(
            check,
            format!(
                "{}: {}",
                ranks.failure.as_deref().unwrap_or("no rank has reported"),
                said.join(" ")
            ),
            "it starts no ranks",
            "what the launcher says; its options go behind `--`, without a program",
        );
    }
    if with < all {
        return Status::Broken.because(
            check,
            format!("{with} of {all} ranks have {} ({name})", library::NAME),
            "every call is forwarded",
            match &launched.unknown {
                Some(why) => why.clone(),
                None => "LAUNCHER ... env LD_PRELOAD=/path/to/libcopy_mpi.so PROGRAM".to_owned(),
            },
        );
    }
    if all < RANKS {
        return Status::Skipped.because(
            check,
            format!("one rank, which has {} ({name})", library::NAME),
            "what ranks can do together was not tried",
            "have it start two ranks: -n 2",
        );
    }
    let how = match &launched.unknown {
        Some(_) => "by LD_PRELOAD in its own environment, as `libcopy mpi run` does not know it",
        None => name,
    };
    Finding::ok(
        check,
        format!("{all} of {all} ranks have {} ({how})", library::NAME),
    )
}

/// The thread level that MPI programs begin with, and what that means.
pub fn threads(launched: Option<&Launched>) -> Finding {
    let check = "threads";
    let skipped = |found: String| {
        Status::Skipped.because(
            check,
            found,
            "the thread level of MPI programs is not known",
            "libcopy doctor -- mpirun -n 2, with the launcher of your MPI library",
        )
    };
    let Some(launched) = launched else {
        return skipped("no MPI program was started".to_owned());
    };
    let Some(mpi) = &launched.mpi else {
        return skipped("no MPI library of this launcher was found".to_owned());
    };
    let (path, is_mpich) = (mpi.path.display(), mpi.is_of(Launcher::Hydra));
    let all = launched.ranks.reports.iter().filter_map(|it| it.threads);
    let Some((level, is_mpi_5)) = all.max() else {
        return skipped(format!("{path} was not started"));
    };
    let name = level_name(level);
    // MPICH 4 does not let threads ask about each other's requests.
    let is_mpich_4 = is_mpich && !is_mpi_5;
    if is_mpich_4 && name == MULTIPLE {
        return Status::Slow.because(
            check,
            format!("MPI_Init of {path} begins with {name}"),
            "messages between two ranks are forwarded",
            "unset MPIR_CVAR_DEFAULT_THREAD_LEVEL, or use MPICH 5",
        );
    }
    let note = if is_mpich_4 {
        "; programs that ask for MPI_THREAD_MULTIPLE have messages forwarded"
    } else {
        ""
    };
    Finding::ok(
        check,
        format!("MPI_Init of {path} begins with {name}{note}"),
    )
}

const MULTIPLE: &str = "MPI_THREAD_MULTIPLE";

/// The name of a thread level: numbers of Open MPI and MPICH, then those of MPI 5's ABI.
fn level_name(level: c_int) -> &'static str {
    match level {
        0 => "MPI_THREAD_SINGLE",
        1 | 1024 => "MPI_THREAD_FUNNELED",
        2 | 2048 => "MPI_THREAD_SERIALIZED",
        3 | 4096 => MULTIPLE,
        _ => "an unknown thread level",
    }
}

/// Which processors the ranks may run on.
pub fn binding(ranks: &Ranks, is_launchers: bool) -> Finding {
    let check = "binding";
    let by = if is_launchers {
        "the launcher's ranks"
    } else {
        "ranks started from here"
    };
    let mut hosts: BTreeMap<&str, Vec<&Report>> = BTreeMap::new();
    for report in &ranks.reports {
        hosts.entry(&report.host).or_default().push(report);
    }
    if hosts.is_empty() {
        let remedy = "what is broken comes first";
        return Status::Skipped.because(check, by, "not tried", remedy);
    }
    let masks: Vec<String> = ranks
        .reports
        .iter()
        .map(|report| Cpus::from_iter(report.cpus.iter().copied()).to_string())
        .collect();
    let found = if masks.iter().all(|mask| *mask == masks[0]) {
        format!("{by} run on processors {}", masks[0])
    } else {
        format!("{by} run on processors {}", masks.join(" and "))
    };
    if let Some((ranks, cpus)) = hosts.values().find_map(|reports| shared(reports)) {
        return Status::Slow.because(
            check,
            format!("{found}: {ranks} ranks share {cpus} of them"),
            "ranks wait for each other's processors",
            "--bind-to core (Open MPI), -bind-to core (MPICH), --cpu-bind=cores (Slurm), with a processor for each rank",
        );
    }
    Finding::ok(check, found)
}

/// Ranks of a machine that have fewer processors than they are: how many of both.
fn shared(reports: &[&Report]) -> Option<(usize, usize)> {
    let all: BTreeSet<usize> = reports.iter().flat_map(|it| it.cpus.clone()).collect();
    if all.len() < reports.len() {
        return Some((reports.len(), all.len()));
    }
    let alone = reports.iter().filter(|it| it.cpus.len() == 1);
    let mut times: BTreeMap<usize, usize> = BTreeMap::new();
    for report in alone {
        *times.entry(report.cpus[0]).or_default() += 1;
    }
    times
        .into_values()
        .find(|times| *times > 1)
        .map(|times| (times, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(cpus: &[&[usize]]) -> Ranks {
        let report = |cpus: &&[usize]| Report {
            cpus: cpus.to_vec(),
            ..Report::default()
        };
        Ranks {
            reports: cpus.iter().map(report).collect(),
            ..Ranks::default()
        }
    }

    #[test]
    fn ranks_that_share_a_processor_are_told() {
        let status = |cpus: &[&[usize]]| binding(&on(cpus), true).status;
        assert_eq!(status(&[&[0], &[1]]), Status::Ok);
        assert_eq!(status(&[&[0, 1], &[0, 1]]), Status::Ok);
        assert_eq!(status(&[&[0], &[0]]), Status::Slow);
        assert_eq!(status(&[&[0], &[0], &[1, 2, 3]]), Status::Slow);
        assert_eq!(status(&[]), Status::Skipped);
    }

    #[test]
    fn libraries_that_are_not_served_are_named() {
        let library = |soname: &str| Library {
            path: PathBuf::from("/lib").join(soname),
            soname: soname.to_owned(),
        };
        let good = library("libmpi.so.40");
        assert_eq!(mpi(std::slice::from_ref(&good)).status, Status::Ok);
        assert_eq!(mpi(&[]).status, Status::Absent);
        let all = mpi(&[good, library("libmpi.so.20")]);
        assert_eq!(all.status, Status::Slow);
        assert!(all.found.contains("libmpi.so.20") && !all.found.contains("libmpi.so.40"));
    }

    #[test]
    fn thread_levels_of_all_libraries_have_names() {
        assert_eq!([3, 4096].map(level_name), [MULTIPLE; 2]);
        assert_eq!(level_name(1024), "MPI_THREAD_FUNNELED");
    }
}
