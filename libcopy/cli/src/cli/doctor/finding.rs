// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a check has found, and how it is printed.

use std::io::{self, Write};

use serde::Serialize;

/// What a finding means for programs. The words are fixed: scripts read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Something that nothing needs is not there.
    Absent,
    /// Not tried; the remedy says how.
    Skipped,
    /// It costs speed.
    Slow,
    /// It prevents use.
    Broken,
}

impl Status {
    /// A finding of this status: not all is as it should be.
    pub fn because(
        self,
        check: &'static str,
        found: impl Into<String>,
        meaning: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding {
            check,
            status: self,
            found: found.into(),
            meaning: Some(meaning.into()),
            remedy: Some(remedy.into()),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Absent => "absent",
            Status::Skipped => "skipped",
            Status::Slow => "slow",
            Status::Broken => "broken",
        }
    }

    /// The exit status of a tool that found nothing worse.
    pub fn code(self) -> u8 {
        match self {
            Status::Ok | Status::Absent | Status::Skipped => 0,
            Status::Slow => 1,
            Status::Broken => 2,
        }
    }
}

/// One line.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was checked.
    pub check: &'static str,
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What that means, unless it is as it should be.
    pub meaning: Option<String>,
    /// What mends it.
    pub remedy: Option<String>,
}

impl Finding {
    /// It is as it should be.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            check,
            status: Status::Ok,
            found: found.into(),
            meaning: None,
            remedy: None,
        }
    }
}

/// The worst status of all: what is absent or was skipped costs nothing.
pub fn worst(findings: &[Finding]) -> Status {
    let all = findings.iter().map(|finding| finding.status);
    all.max()
        .filter(|worst| worst.code() > 0)
        .unwrap_or(Status::Ok)
}

/// Prints a line for each, with what mends it on a line of its own.
///
/// # Errors
///
/// Those of the output.
pub fn print(out: &mut impl Write, findings: &[Finding]) -> io::Result<()> {
    for finding in findings {
        let (word, check) = (finding.status.word(), finding.check);
        let found = one_line(&finding.found);
        match &finding.meaning {
            Some(meaning) => writeln!(out, "{word:<8}{check:<15}{found}: {}", one_line(meaning))?,
            None => writeln!(out, "{word:<8}{check:<15}{found}")?,
        }
        if let Some(remedy) = &finding.remedy {
            writeln!(out, "{:<23}-> {}", "", one_line(remedy))?;
        }
    }
    Ok(())
}

/// A text without ends of lines.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_counts() {
        let of = |statuses: &[Status]| {
            let all: Vec<Finding> = statuses
                .iter()
                .map(|status| status.because("it", "a", "b", "c"))
                .collect();
            worst(&all).code()
        };
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[Status::Ok, Status::Skipped, Status::Absent]), 0);
        assert_eq!(of(&[Status::Slow, Status::Ok]), 1);
        assert_eq!(of(&[Status::Slow, Status::Broken, Status::Ok]), 2);
    }

    #[test]
    fn a_finding_is_a_line_and_what_mends_it_another() {
        let all = [
            Finding::ok("one", "good"),
            Status::Slow.because("two", "little\nroom", "slower", "more"),
        ];
        let mut text = Vec::new();
        print(&mut text, &all).unwrap();
        let expected = "ok      one            good\n\
                        slow    two            little room: slower\n                       -> more\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
