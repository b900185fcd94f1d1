// SPDX-License-Identifier: MIT OR Apache-2.0

//! The options of `scripts/test`, whose `--help` describes them.

/// A part that runs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    Proven,
    Faults,
    Soak,
    Gpu,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    pub host: bool,
    pub guest: bool,
    /// Also what is slow and rarely finds anything.
    pub all: bool,
    pub all_kernels: bool,
    pub debug: bool,
    /// Empty: all tests.
    pub filter: String,
    pub only: Option<Only>,
    pub operations: u64,
    pub seed: Option<u64>,
}

impl Options {
    pub fn parse(words: &[&str]) -> Result<Options, String> {
        let mut options = Options {
            host: true,
            guest: true,
            all: false,
            all_kernels: false,
            debug: false,
            filter: String::new(),
            only: None,
            operations: 1_000_000,
            seed: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match *word {
                "--host" => options.guest = false,
                "--guest" => options.host = false,
                "--all" => options.all = true,
                "--all-kernels" => options.all_kernels = true,
                "--debug" => options.debug = true,
                "--filter" => options.filter = value()?.to_string(),
                "--only" => {
                    options.only = Some(match *value()? {
                        "proven" => Only::Proven,
                        "faults" => Only::Faults,
                        "soak" => Only::Soak,
                        "gpu" => Only::Gpu,
                        other => {
                            return Err(format!(
                                "--only is proven, faults, soak or gpu, not '{other}'"
                            ));
                        }
                    });
                }
                "--operations" => options.operations = number(word, value()?)?,
                "--seed" => options.seed = Some(number(word, value()?)?),
                _ => return Err(format!("unknown option '{word}' (see --help)")),
            }
        }
        if !options.host && !options.guest {
            return Err("--host and --guest exclude each other".to_owned());
        }
        if options.all && options.only.is_some() {
            return Err("--all and --only exclude each other".to_owned());
        }
        if options.only.is_some() && !(options.host && options.guest) {
            return Err("--only says where it runs: leave out --host and --guest".to_owned());
        }
        if !matches!(options.only, None | Some(Only::Gpu)) && !options.filter.is_empty() {
            return Err(
                "--only proven, faults and soak run as a whole: leave out --filter".to_owned(),
            );
        }
        // The calls fail in the debug kernel.
        options.debug |= options.only == Some(Only::Faults);
        Ok(options)
    }

    /// What scripts/vm is told.
    pub fn kernel(&self) -> Vec<&'static str> {
        let words = [(self.all_kernels, "--all-kernels"), (self.debug, "--debug")];
        let wanted = words.iter().filter(|(is_wanted, _)| *is_wanted);
        wanted.map(|(_, word)| *word).collect()
    }

    /// The seed of property tests; none if each run has a new one, as with `--all`, or if the
    /// environment has one.
    pub fn proptest_seed(&self) -> Option<u64> {
        let is_given = std::env::var_os("PROPTEST_RNG_SEED").is_some();
        let built_in = (!self.all && !is_given).then_some(1);
        self.seed.or(built_in)
    }

    /// What the guest suite is told.
    pub fn suite(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(seed) = self.seed {
            words.extend(["--seed".to_owned(), seed.to_string()]);
        }
        if self.debug {
            words.extend(["--scale".to_owned(), "10".to_owned()]);
        }
        if !self.filter.is_empty() {
            words.extend(["--filter".to_owned(), self.filter.clone()]);
        }
        words
    }
}

fn number(option: &str, value: &str) -> Result<u64, String> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit()) && !value.starts_with('0');
    let number = value.parse().ok().filter(|_| digits);
    number.ok_or(format!("{option} needs a positive number, not '{value}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_the_help() {
        let script = include_str!("../../../scripts/test");
        let parsed = |option: &str| {
            let value = match option {
                "--only" => Some("soak"),
                "--operations" | "--seed" => Some("7"),
                "--filter" => Some("copy"),
                _ => None,
            };
            Options::parse(
                &[Some(option), value]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>(),
            )
        };
        let documented = script.lines().filter_map(|line| {
            let option = line.strip_prefix("  ")?.split(" ").next()?;
            option.starts_with("--").then_some(option)
        });
        let documented: Vec<_> = documented.collect();
        assert_eq!(documented.len(), 9, "{documented:?}");
        for option in documented {
            assert!(parsed(option).is_ok(), "{option}: {:?}", parsed(option));
        }
    }

    #[test]
    fn wrong_options_say_what_is_wrong() {
        for (words, why) in [
            (&["--host", "--guest"][..], "exclude each other"),
            (&["--only", "all"], "not 'all'"),
            (&["--only"], "--only needs a value"),
            (&["--only", "soak", "--all"], "--all and --only exclude"),
            (&["--only", "proven", "--host"], "leave out --host"),
            (&["--filter", "x", "--only", "soak"], "leave out --filter"),
            (&["--seed", "0"], "--seed needs a positive number, not '0'"),
            (&["--operations", "+3"], "not '+3'"),
            (&["--filter"], "--filter needs a value"),
            (&["--fast"], "unknown option '--fast'"),
            (&["fast"], "unknown option 'fast'"),
        ] {
            let said = Options::parse(words).unwrap_err();
            assert!(said.contains(why), "{words:?}: {said}");
        }
    }

    #[test]
    fn random_tests_are_the_same_each_time_but_with_all() {
        let seed = |words: &[&str]| Options::parse(words).unwrap().proptest_seed();
        assert_eq!(seed(&["--seed", "3", "--all"]), Some(3));
        if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
            assert_eq!((seed(&[]), seed(&["--all"])), (Some(1), None));
        }
    }

    #[test]
    fn the_debug_kernel_gives_tests_more_time() {
        let options = Options::parse(&["--only", "faults", "--seed", "3"]).unwrap();
        assert_eq!(options.kernel(), ["--debug"]);
        assert_eq!(options.suite(), ["--seed", "3", "--scale", "10"]);
        let options = Options::parse(&["--guest", "--all-kernels", "--filter", "copy"]).unwrap();
        assert_eq!(options.kernel(), ["--all-kernels"]);
        assert_eq!(options.suite(), ["--filter", "copy"]);
    }
}
