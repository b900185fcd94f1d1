// SPDX-License-Identifier: MIT OR Apache-2.0

//! The MPI program behind E4 and E8 (`tests/peers/mpi_gpu.c`), which `scripts/bench gpu` compiles
//! and names.

use std::process::{Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use libcopy_measure::sample::Spread;

/// What starts the program, with all its ranks, and with `libcopy_mpi.so` preloaded.
#[derive(Clone, Debug)]
pub struct Program {
    /// The MPI library.
    pub name: String,
    /// Words for a shell; arguments of the program come behind.
    command: String,
}

impl FromStr for Program {
    type Err = String;

    fn from_str(text: &str) -> Result<Program, String> {
        match text.split_once('=') {
            Some((name, _)) if name.contains([',', '"', '\n']) => Err(format!(
                "the name {name:?} stands in a CSV: it may have no commas, quotes and line ends"
            )),
            Some((name, command)) if !name.is_empty() && !command.is_empty() => Ok(Program {
                name: name.to_owned(),
                command: command.to_owned(),
            }),
            _ => Err(format!("{text:?} is not NAME=COMMAND")),
        }
    }
}

/// A line that it prints.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub case: String,
    pub bytes: u64,
    pub block: u64,
    pub verified: bool,
    /// Microseconds.
    pub time: Spread,
}

impl Line {
    /// `CASE,BYTES,BLOCK,yes|no,TIME;TIME;...`
    fn parse(text: &str) -> Option<Line> {
        let mut words = text.split(',');
        let mut word = || words.next();
        let (case, bytes, block) = (word()?, word()?.parse().ok()?, word()?.parse().ok()?);
        let verified = match word()? {
            "yes" => true,
            "no" => false,
            _ => return None,
        };
        let times: Option<Vec<f64>> = word()?.split(';').map(|time| time.parse().ok()).collect();
        Some(Line {
            case: case.to_owned(),
            bytes,
            block,
            verified,
            time: Spread::of(&times?)?,
        })
    }
}

impl Program {
    /// Runs it with these arguments, and with a method for messages.
    pub fn run(&self, method: &str, arguments: &[String]) -> Result<Vec<Line>> {
        let output = Command::new("sh")
            .args(["-c", &format!("exec {} \"$@\"", self.command), "sh"])
            .args(arguments)
            .env("LIBCOPY_GPU_METHOD", method)
            .stdin(Stdio::null())
            .output()
            .context("cannot start a shell")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "the MPI program of {} ended with {}:\n{said}",
            self.name,
            output.status
        );
        let printed = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<Line> = printed.lines().filter_map(Line::parse).collect();
        if lines.is_empty() {
            bail!(
                "the MPI program of {} printed no times:\n{printed}{said}",
                self.name
            );
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_program_are_read() {
        let line = Line::parse("message,1024,8,yes,3.5;1.5;2.5").unwrap();
        assert_eq!((line.bytes, line.block, line.verified), (1024, 8, true));
        assert_eq!(line.time.median, 2.5);
        for wrong in [
            "",
            "message",
            "message,x,8,yes,1",
            "message,1,8,maybe,1",
            "message,1,8,no,",
        ] {
            assert_eq!(Line::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_fails_is_said() {
        let program: Program = "some=sh -c 'echo why >&2; exit 3' --".parse().unwrap();
        let said = program.run("auto", &[]).unwrap_err().to_string();
        assert!(
            said.contains("of some") && said.contains("why") && said.contains('3'),
            "{said}"
        );
        let program: Program = "mute=true".parse().unwrap();
        assert!(
            program
                .run("auto", &[])
                .unwrap_err()
                .to_string()
                .contains("no times")
        );
        let program: Program = "env=sh -c 'echo m,1,1,yes,${#LIBCOPY_GPU_METHOD}' --"
            .parse()
            .unwrap();
        assert_eq!(program.run("staged", &[]).unwrap()[0].time.median, 6.0);
        assert!("=x".parse::<Program>().is_err() && "x".parse::<Program>().is_err());
    }
}
