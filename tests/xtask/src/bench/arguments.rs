// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command line of `scripts/bench`, whose `--help` describes it.

use super::library::Origin;
use super::settings::positive;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Coll,
    Device,
    Peers,
    Mpi,
    Types,
    Gpu,
    Verdict,
    Scale,
    Many,
}

impl Kind {
    fn parse(word: &str) -> Result<Kind, String> {
        Ok(match word {
            "coll" => Kind::Coll,
            "device" => Kind::Device,
            "peers" => Kind::Peers,
            "mpi" => Kind::Mpi,
            "types" => Kind::Types,
            "gpu" => Kind::Gpu,
            "verdict" => Kind::Verdict,
            "scale" => Kind::Scale,
            "many" => Kind::Many,
            _ => {
                return Err(format!(
                    "unknown benchmark '{word}': coll, device, peers, mpi, types, gpu, verdict, scale or many (see --help)"
                ));
            }
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Coll => "coll",
            Kind::Device => "device",
            Kind::Peers => "peers",
            Kind::Mpi => "mpi",
            Kind::Types => "types",
            Kind::Gpu => "gpu",
            Kind::Verdict => "verdict",
            Kind::Scale => "scale",
            Kind::Many => "many",
        }
    }

    /// What the tool calls the benchmark.
    pub fn tool(self) -> &'static str {
        match self {
            Kind::Mpi => "peers",
            _ => self.name(),
        }
    }

    pub fn has_mpi(self) -> bool {
        matches!(
            self,
            Kind::Peers | Kind::Mpi | Kind::Types | Kind::Gpu | Kind::Verdict | Kind::Many
        )
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    pub vm: bool,
    pub kind: Kind,
    pub from: Origin,
    /// What follows the kind, without `--from`.
    pub options: Vec<String>,
}

impl Arguments {
    pub fn parse(words: &[&str]) -> Result<Arguments, String> {
        let mut words = words.iter().copied();
        let mut vm = false;
        let kind = loop {
            match words.next() {
                Some("--vm") => vm = true,
                Some(word) if word.starts_with('-') => {
                    return Err(format!("unknown option '{word}' (see --help)"));
                }
                Some(word) => break Kind::parse(word)?,
                None => return Err("which benchmark? (see --help)".to_owned()),
            }
        };
        let (mut from, mut options) = (Origin::Debian, Vec::new());
        while let Some(word) = words.next() {
            match word.strip_prefix("--from") {
                Some("") => from = Origin::parse(words.next().unwrap_or_default())?,
                Some(value) if value.starts_with('=') => from = Origin::parse(&value[1..])?,
                _ => options.push(word.to_owned()),
            }
        }
        let arguments = Arguments {
            vm,
            kind,
            from,
            options,
        };
        arguments.check()?;
        Ok(arguments)
    }

    fn check(&self) -> Result<(), String> {
        let kind = self.kind.name();
        if !self.kind.has_mpi() && self.from != Origin::Debian {
            return Err(format!("{kind} has no MPI libraries: leave out --from"));
        }
        if self.vm && !matches!(self.kind, Kind::Coll | Kind::Device | Kind::Mpi) {
            return Err(format!("{kind} runs on this machine only; leave out --vm"));
        }
        Ok(())
    }

    /// The last value of an option: `--name VALUE` or `--name=VALUE`.
    pub fn value(&self, name: &str) -> Option<&str> {
        let options = self.options.iter().enumerate().rev();
        options.into_iter().find_map(|(at, option)| {
            let behind = option.strip_prefix("--")?.strip_prefix(name)?;
            match behind.strip_prefix('=') {
                None if behind.is_empty() => Some(self.options.get(at + 1)?.as_str()),
                value => value,
            }
        })
    }

    /// The value of --ranks, which is also -n; 2 without it.
    pub fn ranks(&self) -> &str {
        self.given_ranks().unwrap_or("2")
    }

    /// The value of --ranks, which is also -n, if there is one.
    pub fn given_ranks(&self) -> Option<&str> {
        let short = self
            .options
            .iter()
            .enumerate()
            .rev()
            .find_map(|(at, option)| match option.strip_prefix("-n")? {
                "" => Some(self.options.get(at + 1)?.as_str()),
                value => Some(value),
            });
        self.value("ranks").or(short)
    }

    /// Numbers of ranks: those given, or powers of two up to 16 or the processors that there are.
    pub fn rank_numbers(&self, cpus: usize) -> Result<Vec<usize>, String> {
        if let Some(list) = self.given_ranks() {
            let numbers: Option<Vec<usize>> = list.split(',').map(positive).collect();
            return numbers.ok_or(format!("--ranks '{list}' is not a list of numbers"));
        }
        let most = cpus.clamp(2, 16);
        let powers = [2, 4, 8, 16].into_iter();
        let mut numbers: Vec<usize> = powers.filter(|it| *it <= most).collect();
        if !numbers.contains(&most) {
            numbers.push(most);
        }
        Ok(numbers)
    }

    /// Whether the benchmark draws its results: sums over applications are a table alone.
    pub fn draws(&self) -> bool {
        self.value("profiles").is_none()
    }

    pub fn wants_help(&self) -> bool {
        let mut options = self.options.iter();
        options.any(|option| option == "-h" || option == "--help")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, String> {
        Arguments::parse(&line.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn from_is_ours_and_the_rest_is_the_benchmarks() {
        for line in [
            "peers --from pypi --quick --csv x",
            "peers --quick --from=pypi --csv x",
        ] {
            let arguments = parsed(line).unwrap();
            assert_eq!(arguments.from, Origin::Pypi, "{line}");
            assert_eq!(arguments.options, ["--quick", "--csv", "x"], "{line}");
            assert_eq!(arguments.value("csv"), Some("x"));
            assert_eq!(arguments.value("plot"), None);
        }
        let arguments = parsed("--vm coll --csv=y --ops bcast").unwrap();
        assert!(arguments.vm && !arguments.wants_help());
        assert_eq!(arguments.value("csv"), Some("y"));
        assert!(parsed("mpi --ops pack --help").unwrap().wants_help());
        assert!(arguments.draws() && !parsed("scale --profiles x").unwrap().draws());
    }

    #[test]
    fn ranks_have_two_names() {
        for line in [
            "coll --ranks 8",
            "coll --ranks=8",
            "coll -n 8",
            "coll -n8 --quick",
        ] {
            assert_eq!(parsed(line).unwrap().ranks(), "8", "{line}");
        }
        assert_eq!(parsed("coll").unwrap().ranks(), "2");
    }

    #[test]
    fn ranks_are_as_many_as_there_are_processors() {
        let of = |line, cpus| parsed(line).unwrap().rank_numbers(cpus);
        assert_eq!(of("many", 16).unwrap(), [2, 4, 8, 16]);
        assert_eq!(of("many", 12).unwrap(), [2, 4, 8, 12]);
        assert_eq!(of("many", 192).unwrap(), [2, 4, 8, 16]);
        assert_eq!(of("many", 1).unwrap(), [2]);
        assert_eq!(of("many --ranks 4,6", 2).unwrap(), [4, 6]);
        assert!(of("many -n x", 2).unwrap_err().contains("--ranks 'x'"));
    }

    #[test]
    fn wrong_command_lines_say_what_is_wrong() {
        for (line, why) in [
            ("", "which benchmark?"),
            ("--vm", "which benchmark?"),
            ("--quick coll", "unknown option '--quick'"),
            ("mpl", "unknown benchmark 'mpl'"),
            ("peers --from fedora", "neither debian nor pypi"),
            ("peers --from", "neither debian nor pypi"),
            ("device --from=pypi", "device has no MPI libraries"),
            ("--vm types", "types runs on this machine only"),
            ("--vm peers", "peers runs on this machine only"),
            ("--vm gpu", "gpu runs on this machine only"),
            ("--vm verdict", "verdict runs on this machine only"),
        ] {
            let said = parsed(line).unwrap_err();
            assert!(said.contains(why), "{line}: {said}");
        }
    }

    #[test]
    fn the_help_names_every_benchmark() {
        let script = include_str!("../../../../scripts/bench");
        for kind in [
            Kind::Coll,
            Kind::Device,
            Kind::Peers,
            Kind::Mpi,
            Kind::Types,
            Kind::Gpu,
            Kind::Verdict,
            Kind::Scale,
            Kind::Many,
        ] {
            assert!(script.contains(&format!("\n  {:<9}", kind.name())));
            assert_eq!(parsed(kind.name()).unwrap().kind, kind);
        }
    }
}
