// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ranks of one library under test, started once and told what to do over a socket.
//!
//! All peers of a comparison are alive at the same time and take turns within milliseconds,
//! so that whatever else the machine does hits them alike. A peer that is not measured sleeps in
//! `read`. Ranks of our own answer by [`serve`], those of MPI
//! libraries are `tests/peers/mpi_coll.c`:
//!
//! | command | answer of every rank |
//! |---|---|
//! | (on connecting) | `hello RANK SIZE DESCRIPTION` |
//! | `time OP BYTES VARIANT WARMUP COUNT` | `times NS...`, one per call, or `times` if this rank moves nothing |
//! | `check OP BYTES VARIANT ROOT ROUND` | `ok`, or `bad WHAT` |
//! | `quit` | |
//!
//! Any command may be answered with `error WHAT`.

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long ranks may take to start, and to answer a command.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A directory for the sockets of a run, which goes with it.
///
/// # Errors
///
/// It cannot be made.
pub fn sockets() -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("libcopy-bench.")
        .tempdir()
        .context("cannot create a directory for sockets (see TMPDIR)")
}

/// The running ranks of one library.
pub struct PeerProcess {
    name: String,
    child: Child,
    ranks: Vec<BufReader<UnixStream>>,
    /// What the library says it is.
    pub description: String,
}

impl PeerProcess {
    /// Starts `command --control SOCKET` and waits until `ranks` ranks have connected.
    ///
    /// # Errors
    ///
    /// It cannot be started, ends, says it is another rank, or takes longer than [`PATIENCE`].
    pub fn start(name: &str, command: &[String], ranks: usize, directory: &Path) -> Result<Self> {
        let [program, arguments @ ..] = command else {
            bail!("the command of {name} is empty");
        };
        let path = directory.join(format!("{name}.sock"));
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        listener.set_nonblocking(true)?;
        let child = Command::new(program)
            .args(arguments)
            .arg("--control")
            .arg(&path)
            .stdin(Stdio::null())
            // Standard output belongs to the table.
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {name}: {}", command.join(" ")))?;
        let mut this = Self {
            name: name.to_owned(),
            child,
            ranks: Vec::new(),
            description: String::new(),
        };
        let mut connected: Vec<Option<BufReader<UnixStream>>> = (0..ranks).map(|_| None).collect();
        let start = Instant::now();
        while connected.iter().any(Option::is_none) {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    let mut stream = BufReader::new(stream);
                    let (rank, size, description) = this.read_hello(&mut stream)?;
                    ensure!(
                        size == ranks && rank < ranks && connected[rank].is_none(),
                        "{name} was to start {ranks} ranks, but rank {rank} of {size} came; \
                         check its command: {}",
                        command.join(" ")
                    );
                    this.description = description;
                    connected[rank] = Some(stream);
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    if let Some(status) = this.child.try_wait()? {
                        bail!(
                            "{name} ended ({status}) before its ranks were ready; try it alone: {}",
                            command.join(" ")
                        );
                    }
                    ensure!(
                        start.elapsed() < PATIENCE,
                        "{name} did not start {ranks} ranks within {} s: {}",
                        PATIENCE.as_secs(),
                        command.join(" ")
                    );
                    sleep(Duration::from_millis(2));
                }
                Err(e) => return Err(e).context("cannot accept a rank's connection"),
            }
        }
        this.ranks = connected.into_iter().flatten().collect();
        Ok(this)
    }

    /// Starts what a shell makes of `command`, with the words that [`PeerProcess::start`] adds.
    ///
    /// # Errors
    ///
    /// As for [`PeerProcess::start`].
    pub fn start_shell(name: &str, command: &str, ranks: usize, directory: &Path) -> Result<Self> {
        let shell = ["sh", "-c", &format!("exec {command} \"$@\""), name].map(str::to_owned);
        Self::start(name, &shell, ranks, directory)
    }

    fn read_hello(&self, stream: &mut BufReader<UnixStream>) -> Result<(usize, usize, String)> {
        let line = read_line(stream).with_context(|| format!("{}: no greeting", self.name))?;
        let mut words = line.splitn(4, ' ');
        let wrong = || format!("{} greets with {line:?}", self.name);
        ensure!(words.next() == Some("hello"), wrong());
        let mut number = || {
            words
                .next()
                .and_then(|w| w.parse().ok())
                .with_context(wrong)
        };
        let (rank, size) = (number()?, number()?);
        Ok((rank, size, words.next().unwrap_or_default().to_owned()))
    }

    /// Sends a command to a peer of one rank; the inner error is what it cannot do.
    ///
    /// # Errors
    ///
    /// The peer has gone, or does not answer.
    pub fn tell(&mut self, command: &str) -> Result<Result<String, String>> {
        let answer = self.ask(command)?.swap_remove(0);
        Ok(match answer.strip_prefix("bad ") {
            Some(what) => Err(what.to_owned()),
            None => Ok(answer),
        })
    }

    /// Sends a command to all ranks and returns their answers.
    fn ask(&mut self, command: &str) -> Result<Vec<String>> {
        for stream in &mut self.ranks {
            writeln!(stream.get_mut(), "{command}")
                .with_context(|| format!("{} is gone (before {command:?})", self.name))?;
        }
        let mut answers = Vec::new();
        for (rank, stream) in self.ranks.iter_mut().enumerate() {
            let answer = read_line(stream)
                .with_context(|| format!("{}: rank {rank}, asked to {command:?}", self.name))?;
            if let Some(what) = answer.strip_prefix("error ") {
                bail!("{}: rank {rank} failed to {command:?}: {what}", self.name);
            }
            answers.push(answer);
        }
        Ok(answers)
    }

    /// The time of each of `count` calls in microseconds, averaged over the ranks that take part.
    ///
    /// # Errors
    ///
    /// A rank has gone, does not answer, or cannot do it; no rank takes part.
    pub fn time(
        &mut self,
        op: &str,
        bytes: usize,
        variant: &str,
        warmup: usize,
        count: usize,
    ) -> Result<Vec<f64>> {
        self.times("time", &format!("{op} {bytes} {variant} {warmup}"), count)
    }

    /// The same where ranks write their buffers before each call.
    ///
    /// # Errors
    ///
    /// As for [`PeerProcess::time`].
    pub fn time_written(
        &mut self,
        op: &str,
        bytes: usize,
        variant: &str,
        warmup: usize,
        count: usize,
    ) -> Result<Vec<f64>> {
        self.times(
            "written",
            &format!("{op} {bytes} {variant} {warmup}"),
            count,
        )
    }

    fn times(&mut self, what: &str, call: &str, count: usize) -> Result<Vec<f64>> {
        let answers = self.ask(&format!("{what} {call} {count}"))?;
        let mut sums = vec![0.0; count];
        let mut ranks = 0;
        for answer in &answers {
            let times: Vec<f64> = answer
                .split_whitespace()
                .skip(1)
                .filter_map(|t| t.parse().ok())
                .collect();
            if times.is_empty() {
                continue;
            }
            ensure!(
                times.len() == count,
                "{}: {count} times asked for: {answer}",
                self.name
            );
            for (sum, time) in sums.iter_mut().zip(times) {
                *sum += time / 1e3;
            }
            ranks += 1;
        }
        ensure!(ranks > 0, "{}: no rank took part in {call}", self.name);
        Ok(sums.into_iter().map(|s| s / f64::from(ranks)).collect())
    }

    /// Does the operation once with a pattern and looks at every byte; the inner error is what was
    /// wrong, and with which rank.
    ///
    /// # Errors
    ///
    /// A rank has gone, does not answer, or cannot do it.
    pub fn check(
        &mut self,
        op: &str,
        bytes: usize,
        variant: &str,
        root: usize,
        round: u64,
    ) -> Result<Result<(), String>> {
        let answers = self.ask(&format!("check {op} {bytes} {variant} {root} {round}"))?;
        for (rank, answer) in answers.iter().enumerate() {
            if answer != "ok" {
                return Ok(Err(format!("rank {rank}: {answer}")));
            }
        }
        Ok(Ok(()))
    }
}

/// The other side of [`PeerProcess`], in a rank: greets on `socket` and answers each command with
/// what `obey` makes of it.
///
/// # Errors
///
/// Nobody listens on the socket, or whoever does has gone.
pub fn serve(
    socket: &Path,
    (rank, size): (usize, usize),
    description: &str,
    mut obey: impl FnMut(&str) -> Result<String>,
) -> Result<()> {
    let mut stream = UnixStream::connect(socket)
        .with_context(|| format!("cannot connect to {}", socket.display()))?;
    let commands = BufReader::new(stream.try_clone()?);
    writeln!(stream, "hello {rank} {size} {description}")?;
    for command in commands.lines() {
        let command = command?;
        if command == "quit" {
            break;
        }
        let answer = match obey(&command) {
            Ok(answer) => answer,
            Err(e) => format!("error {e:#}").replace('\n', " "),
        };
        writeln!(stream, "{answer}")?;
    }
    Ok(())
}

fn read_line(stream: &mut BufReader<UnixStream>) -> Result<String> {
    let mut line = String::new();
    match stream.read_line(&mut line) {
        Ok(0) => bail!("the rank ended"),
        Ok(_) => Ok(line.trim_end().to_owned()),
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
            bail!("no answer within {} s", PATIENCE.as_secs())
        }
        Err(e) => Err(e.into()),
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        for stream in &mut self.ranks {
            let _ = writeln!(stream.get_mut(), "quit");
        }
        // Ranks also end when their socket closes, even in the middle of something.
        self.ranks.clear();
        let wait = |child: &mut Child, seconds: f32| {
            let start = Instant::now();
            while start.elapsed().as_secs_f32() < seconds {
                if !matches!(child.try_wait(), Ok(None)) {
                    return true;
                }
                sleep(Duration::from_millis(5));
            }
            false
        };
        if wait(&mut self.child, 5.0) {
            return;
        }
        // mpirun passes SIGTERM on to its ranks, which SIGKILL would leave behind.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        if !wait(&mut self.child, 5.0) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
