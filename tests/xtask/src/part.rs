// SPDX-License-Identifier: MIT OR Apache-2.0

//! Running the commands of a part: what they print goes to the screen and is kept.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

/// A command whose standard error goes where its standard output goes.
pub fn command<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 2>&1", "sh"]).args(words);
    command
}

/// The exit status as a shell has it: 128 and the signal's number for a program that was killed.
pub fn code(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|number| 128 + number);
    status.code().or(signal).unwrap_or(1)
}

/// Runs a command; what it prints is written to `screen` as it comes, and returned with the exit
/// status. Each line that ends is given to `line` with the seconds since the start.
pub fn tee(
    mut command: Command,
    screen: &mut impl Write,
    mut line: impl FnMut(&str, f64),
) -> (i32, String) {
    match run(&mut command, screen, &mut line) {
        Ok((status, log)) => (code(status), String::from_utf8_lossy(&log).into_owned()),
        Err(error) => {
            let why = format!("cannot run {command:?}: {error}\n");
            let _ = screen.write_all(why.as_bytes());
            (127, why)
        }
    }
}

fn run(
    command: &mut Command,
    screen: &mut impl Write,
    line: &mut impl FnMut(&str, f64),
) -> io::Result<(ExitStatus, Vec<u8>)> {
    let begin = Instant::now();
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let (mut log, mut ended) = (Vec::new(), 0);
    if let Some(mut output) = child.stdout.take() {
        let mut piece = vec![0; 64 << 10];
        loop {
            let len = match output.read(&mut piece) {
                Ok(0) => break,
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            log.extend_from_slice(&piece[..len]);
            // The reader of standard output may have gone; the tests go on.
            let _ = screen
                .write_all(&piece[..len])
                .and_then(|()| screen.flush());
            let seconds = begin.elapsed().as_secs_f64();
            while let Some(end) = log[ended..].iter().position(|byte| *byte == b'\n') {
                line(&String::from_utf8_lossy(&log[ended..ended + end]), seconds);
                ended += end + 1;
            }
        }
    }
    Ok((child.wait()?, log))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (i32, String, String) {
        let mut screen = Vec::new();
        let (status, log) = tee(command(["sh", "-c", script]), &mut screen, |_, _| {});
        (status, log, String::from_utf8_lossy(&screen).into_owned())
    }

    #[test]
    fn both_outputs_are_kept_and_shown_in_their_order() {
        let (status, log, screen) = shell("echo one; echo two >&2; echo three; exit 3");
        assert_eq!((status, log.as_str()), (3, "one\ntwo\nthree\n"));
        assert_eq!(log, screen);
    }

    #[test]
    fn lines_have_times() {
        let (mut lines, mut screen) = (Vec::new(), Vec::new());
        let script = "echo one; sleep 0.2; printf 'two\\nthree\\nno end'";
        tee(
            command(["sh", "-c", script]),
            &mut screen,
            |line, seconds| {
                lines.push((line.to_owned(), seconds));
            },
        );
        let names: Vec<&str> = lines.iter().map(|(line, _)| line.as_str()).collect();
        assert_eq!(names, ["one", "two", "three"]);
        assert!(lines[1].1 >= lines[0].1 + 0.2, "{lines:?}");
    }

    #[test]
    fn a_command_that_is_killed_has_the_shells_status() {
        let (status, log, _) = shell("echo begun; kill -KILL $$");
        assert_eq!((status, log.as_str()), (137, "begun\n"));
    }

    #[test]
    fn a_command_that_is_not_there_has_failed() {
        let mut screen = Vec::new();
        let (status, log) = tee(command(["/nowhere/at/all"]), &mut screen, |_, _| {});
        assert_ne!(status, 0, "{log}");
        assert!(log.contains("/nowhere/at/all"), "{log}");
        let (status, log) = tee(Command::new("/nowhere/at/all"), &mut screen, |_, _| {});
        assert_eq!(status, 127, "{log}");
    }
}
