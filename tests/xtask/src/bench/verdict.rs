// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/bench verdict`: whether what a report claims is what pairs of runs measure.

use serde_json::Value;

/// A program of tests/peers/mpi_verdict.c.
pub struct Program {
    pub kind: &'static str,
    pub calls: u32,
    pub bytes: u32,
    /// What libcopy is told.
    pub variables: &'static [(&'static str, &'static str)],
}

impl Program {
    const fn new(kind: &'static str, calls: u32, bytes: u32) -> Program {
        Program {
            kind,
            calls,
            bytes,
            variables: &[],
        }
    }
}

/// Programs that gain, that lose and that do nothing; which of them do is found out by the pairs.
/// In the last one libcopy is told to copy twice, in pieces of 64 bytes, and the governor finds out
/// anew on each communicator whether the MPI library is faster: what it loses until then.
pub const PROGRAMS: [Program; 6] = [
    Program::new("bcast", 1000, 1 << 20),
    Program::new("allgather", 4000, 64 << 10),
    Program::new("allreduce", 2000, 256 << 10),
    Program::new("typed", 1500, 256 << 10),
    Program::new("small", 3000, 64 << 10),
    Program {
        variables: &[("LIBCOPY_TRANSPORT", "shm"), ("LIBCOPY_SHM_CHUNK", "64")],
        ..Program::new("duplicates", 1200, 1 << 20)
    },
];

/// What is run.
pub struct Effort {
    pub programs: Vec<Program>,
    /// Reports of each program and library.
    pub reports: usize,
    /// Pairs that they are compared with.
    pub pairs: usize,
}

impl Effort {
    /// What the options ask for.
    pub fn parse(options: &[String]) -> Result<Effort, String> {
        let mut effort = Effort {
            programs: PROGRAMS.into(),
            reports: 3,
            pairs: 9,
        };
        let mut words = options.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                // So few that `libcopy mpi compare` just has an interval.
                "--quick" => (effort.reports, effort.pairs) = (1, 6),
                "--only" => {
                    let only = words.next().unwrap_or_default();
                    effort.programs.retain(|program| program.kind == only);
                    if effort.programs.is_empty() {
                        let all = PROGRAMS.map(|program| program.kind).join(", ");
                        return Err(format!("verdict has no program '{only}': {all}"));
                    }
                }
                _ => return Err(format!("verdict has no option '{word}' (see --help)")),
            }
        }
        Ok(effort)
    }
}

/// The part of a plain run by which runs of a program that libcopy does not touch may differ.
const NOISE: f64 = 0.02;

/// Seconds that were saved, at least and at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ends {
    pub low: f64,
    pub high: f64,
}

/// What pairs have measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub plain: f64,
    pub saved: Ends,
}

impl Measured {
    /// From what `libcopy mpi compare --json` prints.
    pub fn of(text: &str) -> Option<Measured> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| value["wall"][name].as_f64();
        Some(Measured {
            plain: number("plain_s")?,
            saved: Ends {
                low: number("low_s")?,
                high: number("high_s")?,
            },
        })
    }
}

/// What a report claims.
#[derive(Clone, Debug)]
pub struct Claim {
    pub sentence: String,
    pub elapsed: f64,
    /// Nothing where nothing is known, or nothing was done.
    pub saved: Option<Ends>,
}

impl Claim {
    /// From what `libcopy mpi report --json` prints.
    pub fn of(text: &str) -> Option<Claim> {
        let value: Value = serde_json::from_str(text).ok()?;
        let verdict = &value["verdict"];
        let gain = &verdict["gain"];
        let saved = gain["low_s"].as_f64().map(|low| Ends {
            low,
            high: match gain["is_at_least"].as_bool() {
                Some(true) => f64::INFINITY,
                _ => gain["high_s"].as_f64().unwrap_or(low),
            },
        });
        Some(Claim {
            sentence: verdict["sentence"].as_str()?.to_owned(),
            elapsed: verdict["elapsed_s"].as_f64()?,
            saved,
        })
    }

    /// Whether it holds what was measured: the intervals have a part in common, where that of a
    /// report that claims nothing is as wide as runs differ anyway.
    pub fn holds(&self, measured: &Measured) -> bool {
        let noise = NOISE * measured.plain;
        let (low, high) = match self.saved {
            Some(Ends { low, high }) => (low, high),
            None => (0.0, 0.0),
        };
        low - noise <= measured.saved.high && measured.saved.low <= high + noise
    }

    /// Whether it claims more than the run took.
    pub fn exceeds(&self) -> bool {
        let ends = self
            .saved
            .into_iter()
            .flat_map(|ends| [ends.low, ends.high]);
        let mut finite = ends.filter(|end| end.is_finite());
        finite.any(|end| end.abs() > self.elapsed)
    }
}

/// A line of the table.
pub fn line(name: &str, measured: &Measured, claim: &Claim) -> String {
    let Ends { low, high } = measured.saved;
    let holds = if claim.holds(measured) { "yes" } else { "NO" };
    let claimed = match claim.saved {
        None => "-".to_owned(),
        Some(Ends { low, high }) if high.is_infinite() => format!("at least {low:.3}"),
        Some(Ends { low, high }) => format!("{low:.3} to {high:.3}"),
    };
    let measured = format!("{low:.3} to {high:.3}");
    format!(
        "{name:<20} {measured:>18} {claimed:>20} {holds:>5}  {}",
        claim.sentence
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(low: f64, high: f64) -> Measured {
        let text = format!(r#"{{"wall":{{"plain_s":10.0,"low_s":{low},"high_s":{high}}}}}"#);
        Measured::of(&text).unwrap()
    }

    fn claim(gain: &str) -> Claim {
        let verdict = format!(r#"{{"sentence":"so","elapsed_s":9.0,"gain":{gain}}}"#);
        Claim::of(&format!(r#"{{"verdict":{verdict}}}"#)).unwrap()
    }

    #[test]
    fn intervals_hold_what_was_measured_if_they_meet() {
        let some = claim(r#"{"low_s":1.0,"high_s":2.0,"is_at_least":false}"#);
        assert!(some.holds(&measured(1.5, 3.0)) && some.holds(&measured(0.0, 1.0)));
        assert!(!some.holds(&measured(3.0, 4.0)) && !some.holds(&measured(-1.0, 0.5)));
        let most = claim(r#"{"low_s":1.0,"high_s":2.0,"is_at_least":true}"#);
        assert!(most.holds(&measured(3.0, 4.0)) && !most.holds(&measured(-1.0, 0.5)));
        let none = claim("null");
        assert!(none.holds(&measured(-0.1, 0.1)) && !none.holds(&measured(1.0, 2.0)));
    }

    #[test]
    fn options_say_what_is_run() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().copied().map(str::to_owned).collect();
            Effort::parse(&words)
        };
        let usual = parse(&[]).unwrap();
        assert_eq!((usual.programs.len(), usual.reports), (PROGRAMS.len(), 3));
        let one = parse(&["--only", "duplicates", "--quick"]).unwrap();
        assert_eq!((one.programs.len(), one.reports), (1, 1));
        assert!(one.programs[0].variables.len() == 2 && one.pairs == 6);
        for wrong in [&["--only", "nothing"][..], &["--only"], &["--pairs"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn claims_beyond_the_run_are_found() {
        assert!(claim(r#"{"low_s":-10.0,"high_s":2.0,"is_at_least":false}"#).exceeds());
        assert!(!claim(r#"{"low_s":1.0,"high_s":8.0,"is_at_least":true}"#).exceeds());
    }
}
