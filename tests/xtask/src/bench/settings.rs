// SPDX-License-Identifier: MIT OR Apache-2.0

//! The options of the benchmarks that alternate intercepted and plain calls (`scripts/bench mpi
//! --ops ...`).

use std::collections::HashMap;

use super::library::Mpi;

/// Options that are given, by their names without dashes.
#[derive(Debug, Default)]
pub struct Settings {
    values: HashMap<String, String>,
    pub quick: bool,
}

impl Settings {
    /// Reads --quick and the options of `known`, which have values.
    pub fn parse(options: &[String], known: &[&str]) -> Result<Settings, String> {
        let mut settings = Settings::default();
        let mut options = options.iter().map(String::as_str);
        while let Some(option) = options.next() {
            let (name, value) = match option {
                "--quick" => {
                    settings.quick = true;
                    continue;
                }
                "-n" => ("ranks", options.next()),
                _ => {
                    let name = option.strip_prefix("--");
                    let name = name.ok_or(format!("'{option}' is no option (see --help)"))?;
                    match name.split_once('=') {
                        Some((name, value)) => (name, Some(value)),
                        None => (name, options.next()),
                    }
                }
            };
            if !known.contains(&name) {
                return Err(format!(
                    "this benchmark does not know the option --{name} (see --help)"
                ));
            }
            let value = value.ok_or(format!("{option} needs a value"))?;
            settings.values.insert(name.to_owned(), value.to_owned());
        }
        Ok(settings)
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// `quick` with --quick, otherwise `full`.
    pub fn either<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// The positive number that the option has, or the default.
    pub fn number(&self, name: &str, default: usize) -> Result<usize, String> {
        self.get(name).map_or(Ok(default), |value| {
            positive(value).ok_or(format!("--{name} '{value}' is not a positive number"))
        })
    }

    /// The list of positive numbers that the option has, or the default.
    pub fn numbers(&self, name: &str, default: &str) -> Result<Vec<usize>, String> {
        let list = self.get(name).unwrap_or(default);
        let numbers: Option<_> = list.split(',').map(positive).collect();
        numbers.ok_or(format!("--{name} '{list}' is not a list of numbers"))
    }

    /// The libraries to compare with.
    pub fn libraries(&self) -> Result<Vec<Mpi>, String> {
        match self.get("mpi") {
            None | Some("openmpi mpich") => Ok(Mpi::BOTH.to_vec()),
            Some(name) => {
                let one = Mpi::BOTH.into_iter().find(|mpi| mpi.name() == name);
                let why = format!("--mpi '{name}' is neither openmpi nor mpich");
                Ok(vec![one.ok_or(why)?])
            }
        }
    }
}

pub fn positive(word: &str) -> Option<usize> {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit()) && !word.starts_with('0');
    word.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(line: &str) -> Result<Settings, String> {
        let options: Vec<_> = line.split(' ').map(str::to_owned).collect();
        Settings::parse(&options, &["ops", "ranks", "launches", "mpi"])
    }

    #[test]
    fn options_are_given_in_either_form() {
        let given = settings("--ops fft2d -n 2,4 --launches=3 --mpi mpich --quick").unwrap();
        assert_eq!(given.numbers("ranks", "8").unwrap(), [2, 4]);
        assert_eq!(given.number("launches", 1), Ok(3));
        assert_eq!(given.libraries().unwrap(), [Mpi::Mpich]);
        assert_eq!(given.either(1, 2), 1);
        let none = settings("--ops fft2d").unwrap();
        assert_eq!(none.numbers("ranks", "2,4,8").unwrap(), [2, 4, 8]);
        assert_eq!(none.libraries().unwrap(), Mpi::BOTH);
        assert_eq!((none.number("launches", 5), none.either(1, 2)), (Ok(5), 2));
    }

    #[test]
    fn wrong_options_say_what_is_wrong() {
        let of = |line| match settings(line) {
            Err(why) => why,
            Ok(given) => {
                let ranks = given.numbers("ranks", "2").map(drop);
                let launches = given.number("launches", 1).map(drop);
                let all = ranks.and(launches).and(given.libraries().map(drop));
                all.unwrap_err()
            }
        };
        for (line, why) in [
            ("quick", "'quick' is no option"),
            ("--cells 8", "does not know the option --cells"),
            ("--ranks", "--ranks needs a value"),
            ("--ranks 2,x", "'2,x' is not a list of numbers"),
            ("--ranks 0", "'0' is not a list of numbers"),
            ("--launches +1", "'+1' is not a positive number"),
            ("--mpi lam", "'lam' is neither openmpi nor mpich"),
        ] {
            assert!(of(line).contains(why), "{line}: {}", of(line));
        }
    }
}
