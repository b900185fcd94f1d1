// SPDX-License-Identifier: MIT OR Apache-2.0

//! Launchers of MPI programs, and how each hands variables to the ranks alone.
//!
//! A launcher's own processes need not have the library, nor need the shells that they start: it
//! would be mapped and set up in each of them.
//!
//! | launcher | option | source |
//! |---|---|---|
//! | Open MPI | `-x NAME=VALUE`, of each program between colons | mpirun(1) |
//! | Hydra (MPICH, Intel MPI, MVAPICH) | `-genv NAME VALUE`, of all programs | MPICH's user guide, "mpiexec" |
//! | Slurm | `--export=NAME=VALUE,...`; a value with a comma is inherited from `srun` itself | srun(1) |

use super::child::ended_within;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What starts ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `mpirun` of Open MPI, `prterun`.
    OpenMpi,
    /// `mpiexec` of MPICH and its relatives.
    Hydra,
    /// `srun`.
    Slurm,
    /// The program itself, which is one rank.
    Program,
}

/// A variable for the ranks.
pub type Variable = (String, String);

/// A command and what its own environment gets.
#[derive(Debug, PartialEq, Eq)]
pub struct Start {
    pub words: Vec<String>,
    pub environment: Vec<Variable>,
}

impl Start {
    /// The command, to be started.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Names that launchers have, with what a distribution adds behind a dot.
const NAMES: [&str; 8] = [
    "mpirun",
    "mpiexec",
    "orterun",
    "prterun",
    "prun",
    "srun",
    "mpirun_rsh",
    "aprun",
];

/// How long a launcher may take to say its version.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether a word is what launchers are called.
pub fn is_launcher(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word);
    let stem = name.split('.').next().unwrap_or(name);
    NAMES.contains(&stem)
}

impl Launcher {
    /// Which launcher a word names, by what it says of itself.
    ///
    /// # Errors
    ///
    /// It is called as launchers are and does not say that it is a known one; the text is what it
    /// says.
    pub fn of(word: &str) -> Result<Launcher, String> {
        if !is_launcher(word) {
            return Ok(Launcher::Program);
        }
        let said = version(word)?;
        Launcher::parse(&said).ok_or(said)
    }

    /// Which launcher says so of itself.
    fn parse(version: &str) -> Option<Launcher> {
        let has = |what: &str| version.contains(what);
        if ["Open MPI", "OpenRTE", "PRRTE", "prterun"]
            .into_iter()
            .any(has)
        {
            Some(Launcher::OpenMpi)
        } else if ["HYDRA", "Intel(R) MPI Library"].into_iter().any(has) {
            Some(Launcher::Hydra)
        } else if version.starts_with("slurm ") {
            Some(Launcher::Slurm)
        } else {
            None
        }
    }

    /// What it is called in messages.
    pub fn name(self) -> &'static str {
        match self {
            Launcher::OpenMpi => "Open MPI's launcher",
            Launcher::Hydra => "Hydra",
            Launcher::Slurm => "srun",
            Launcher::Program => "no launcher",
        }
    }

    /// The command whose ranks have the variables. What the command sets one to itself stays first
    /// in it.
    pub fn start(self, command: &[String], variables: &[Variable]) -> Start {
        let mut words = command.to_vec();
        let mut environment = Vec::new();
        match self {
            Launcher::Program => environment.extend_from_slice(variables),
            Launcher::OpenMpi => {
                for (name, value) in variables.iter().rev() {
                    // From the last one, so that the places of those before stay.
                    for part in parts(&words).into_iter().rev() {
                        let setting = match own_setting(&words, part, &["-x", "--x"], name) {
                            Some(at) => {
                                words.remove(at - 1);
                                words.remove(at - 1)
                            }
                            None => String::new(),
                        };
                        let setting = format!("{name}={}", joined(&setting, value));
                        words.splice(part.0..part.0, ["-x".to_owned(), setting]);
                    }
                }
            }
            Launcher::Hydra => {
                let options = ["-genv", "--genv", "-env", "--env"];
                for (name, value) in variables.iter().rev() {
                    let mut is_set = false;
                    for part in parts(&words) {
                        if let Some(at) = own_setting(&words, part, &options, name) {
                            words[at + 1] = joined(&format!("={}", words[at + 1]), value);
                            is_set |= words[at - 1].ends_with("genv");
                        }
                    }
                    if !is_set {
                        words.splice(1..1, ["-genv".into(), name.clone(), value.clone()]);
                    }
                }
            }
            Launcher::Slurm => {
                let has_commas = |(_, value): &&Variable| value.contains(',');
                environment.extend(variables.iter().filter(has_commas).cloned());
                let list = |(name, value): &Variable| {
                    if value.contains(',') {
                        name.clone()
                    } else {
                        format!("{name}={value}")
                    }
                };
                let list: Vec<String> = variables.iter().map(list).collect();
                let list = list.join(",");
                let options = 1..program(&words, (1, words.len())).unwrap_or(words.len());
                let own = words[options.clone()]
                    .iter()
                    .position(|word| word.starts_with("--export"));
                match own.map(|at| at + 1) {
                    // `NONE` stands for an empty list of names.
                    Some(at) if words[at].starts_with("--export=") => {
                        let own = words[at]["--export=".len()..].to_owned();
                        words[at] = format!("--export={}", listed(&own, &list));
                    }
                    Some(at) if words[at] == "--export" && at + 1 < words.len() => {
                        words[at + 1] = listed(&words[at + 1], &list);
                    }
                    _ => words.insert(1, format!("--export=ALL,{list}")),
                }
            }
        }
        Start { words, environment }
    }

    /// The programs of a command, as it names them.
    pub fn named(self, command: &[String]) -> Vec<String> {
        if self == Launcher::Program {
            return command.first().cloned().into_iter().collect();
        }
        parts(command)
            .into_iter()
            .filter_map(|part| Some(command[program(command, part)?].clone()))
            .collect()
    }
}

/// The parts of a command between colons: from where their options begin to where they end.
fn parts(command: &[String]) -> Vec<(usize, usize)> {
    let mut parts = Vec::new();
    let mut from = 1;
    for (at, word) in command.iter().enumerate().skip(1) {
        if word == ":" {
            parts.push((from, at));
            from = at + 1;
        }
    }
    parts.push((from, command.len()));
    parts
}

/// Options of launchers that take the next word.
const WITH_VALUE: &str = "n np c N H host hosts hostfile machinefile f x p t w A J wdir wd ppn \
    npernode perhost bind-to map-by rank-by rankfile rf launcher iface path timeout \
    output-filename genvlist envlist export";

/// Options that take the next two.
const WITH_TWO: [&str; 5] = ["mca", "gmca", "prtemca", "genv", "env"];

/// Where the program of a part of a command is: the first word that is neither an option nor an
/// option's value, and that can be executed.
fn program(words: &[String], (from, to): (usize, usize)) -> Option<usize> {
    let mut at = from;
    while at < to {
        let word = words[at].as_str();
        let Some(option) = word
            .strip_prefix('-')
            .map(|rest| rest.trim_start_matches('-'))
        else {
            if super::program::find(word).is_some() {
                return Some(at);
            }
            at += 1;
            continue;
        };
        at += if WITH_TWO.contains(&option) {
            3
        } else if WITH_VALUE.split(' ').any(|known| known == option) {
            2
        } else {
            1
        };
    }
    None
}

/// Where an option of a part sets a variable itself: the word after it that begins with the name.
fn own_setting(
    words: &[String],
    (from, to): (usize, usize),
    options: &[&str],
    name: &str,
) -> Option<usize> {
    let to = program(words, (from, to)).unwrap_or(to);
    let at = (from..to).find(|at| {
        let named = words
            .get(at + 1)
            .map(|word| word.split('=').next().unwrap_or(word));
        options.contains(&words[*at].as_str()) && named == Some(name)
    })?;
    Some(at + 1)
}

/// The value behind the first equals sign, with ours behind it.
fn joined(own: &str, value: &str) -> String {
    match own.split_once('=') {
        Some((_, own)) if !own.is_empty() && !value.starts_with(&format!("{own}:")) => {
            format!("{own}:{value}")
        }
        _ => value.to_owned(),
    }
}

/// A list of srun's with ours behind it.
fn listed(own: &str, list: &str) -> String {
    match own {
        "" | "NONE" => list.to_owned(),
        _ => format!("{own},{list}"),
    }
}

/// What a launcher says of its version.
fn version(word: &str) -> Result<String, String> {
    let start = |error: std::io::Error| format!("{word} does not start: {error}");
    let mut child = Command::new(word)
        .arg("--version")
        // What is inherited is for the program.
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(start)?;
    // A version is shorter than what a pipe holds.
    if !matches!(ended_within(&mut child, PATIENCE), Ok(Some(_))) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("`{word} --version` does not end"));
    }
    let output = child.wait_with_output().map_err(start)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &str) -> Vec<String> {
        command.split(' ').map(str::to_owned).collect()
    }

    /// The command with one variable, and what its own environment gets.
    fn started(launcher: Launcher, command: &str, value: &str) -> (String, Vec<Variable>) {
        let variable = ("LD_PRELOAD".to_owned(), value.to_owned());
        let start = launcher.start(&words(command), &[variable]);
        (start.words.join(" "), start.environment)
    }

    /// Commands, and what they are with the variable; `environment` gets nothing.
    #[track_caller]
    fn expect(launcher: Launcher, commands: &[(&str, &str)]) {
        for (command, expected) in commands {
            let (command, environment) = started(launcher, command, "/l.so");
            assert_eq!(command, *expected);
            assert!(environment.is_empty());
        }
    }

    #[test]
    fn launchers_are_known_by_what_they_say() {
        for (said, launcher) in [
            ("mpirun (Open MPI) 5.0.11", Some(Launcher::OpenMpi)),
            ("mpirun.openmpi (OpenRTE) 4.1.4", Some(Launcher::OpenMpi)),
            ("prterun (PRRTE) 3.0.1", Some(Launcher::OpenMpi)),
            (
                "HYDRA build details:\n    Version: 4.0.2",
                Some(Launcher::Hydra),
            ),
            (
                "Intel(R) MPI Library for Linux* OS, Version 2021.11",
                Some(Launcher::Hydra),
            ),
            ("slurm 23.02.4", Some(Launcher::Slurm)),
            ("OpenMandriva", None),
            ("", None),
        ] {
            assert_eq!(Launcher::parse(said), launcher, "{said}");
        }
        for (word, is) in [
            ("mpirun", true),
            ("/opt/bin/mpiexec.hydra", true),
            ("mpirun.openmpi", true),
            ("./a.out", false),
            ("mpirunner", false),
        ] {
            assert_eq!(is_launcher(word), is, "{word}");
        }
    }

    #[test]
    fn open_mpi_gets_an_option_for_each_program() {
        expect(
            Launcher::OpenMpi,
            &[
                ("mpirun -n 2 sh", "mpirun -x LD_PRELOAD=/l.so -n 2 sh"),
                (
                    "mpirun -n 1 sh : -n 1 ls",
                    "mpirun -x LD_PRELOAD=/l.so -n 1 sh : -x LD_PRELOAD=/l.so -n 1 ls",
                ),
            ],
        );
    }

    #[test]
    fn hydra_has_an_option_for_all_programs() {
        let command = "mpiexec -n 1 sh : -n 1 ls";
        let expected = "mpiexec -genv LD_PRELOAD /l.so -n 1 sh : -n 1 ls";
        expect(Launcher::Hydra, &[(command, expected)]);
    }

    #[test]
    fn what_the_command_preloads_itself_comes_first() {
        expect(
            Launcher::OpenMpi,
            &[
                (
                    "mpirun -x LD_PRELOAD=/tool.so -n 2 sh",
                    "mpirun -x LD_PRELOAD=/tool.so:/l.so -n 2 sh",
                ),
                // Without a value, it is what is inherited, which the variable has already.
                ("mpirun -x LD_PRELOAD sh", "mpirun -x LD_PRELOAD=/l.so sh"),
                // Options of the program are its own.
                (
                    "mpirun sh -x LD_PRELOAD=/tool.so",
                    "mpirun -x LD_PRELOAD=/l.so sh -x LD_PRELOAD=/tool.so",
                ),
            ],
        );
        let command = "mpiexec -genv LD_PRELOAD /tool.so sh";
        let expected = "mpiexec -genv LD_PRELOAD /tool.so:/l.so sh";
        expect(Launcher::Hydra, &[(command, expected)]);
        expect(
            Launcher::Slurm,
            &[
                (
                    "srun --export=NONE -n 2 sh",
                    "srun --export=LD_PRELOAD=/l.so -n 2 sh",
                ),
                (
                    "srun -n 2 --export A=1 sh",
                    "srun -n 2 --export A=1,LD_PRELOAD=/l.so sh",
                ),
                (
                    "srun sh --export=x",
                    "srun --export=ALL,LD_PRELOAD=/l.so sh --export=x",
                ),
            ],
        );
    }

    #[test]
    fn srun_inherits_a_value_with_a_comma() {
        let (command, environment) = started(Launcher::Slurm, "srun sh", "/a,b.so");
        assert_eq!(command, "srun --export=ALL,LD_PRELOAD sh");
        assert_eq!(
            environment,
            [("LD_PRELOAD".to_owned(), "/a,b.so".to_owned())]
        );
    }

    #[test]
    fn programs_are_found_behind_options() {
        for (command, programs) in [
            ("mpirun -n 4 --mca btl self,vader sh -c true", &["sh"][..]),
            ("mpirun -host ls,cat -np 2 sh : ls", &["sh", "ls"]),
            ("mpiexec -genv A ls -n 2 sh", &["sh"]),
            ("srun -N 1 -n 4 sh", &["sh"]),
            ("srun --ntasks=4 no-such-program-of-libcopy", &[]),
        ] {
            assert_eq!(
                Launcher::OpenMpi.named(&words(command)),
                programs,
                "{command}"
            );
        }
        assert_eq!(Launcher::Program.named(&words("ls sh")), ["ls"]);
    }
}
