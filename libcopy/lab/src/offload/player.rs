// SPDX-License-Identifier: MIT OR Apache-2.0

//! One rank of a parallel program of the paper's: speaks the protocol of
//! [`libcopy_measure::peer_process`], where VARIANT is `TRANSPORT,ASYNC,AMOUNT`: who moves the
//! bytes, and how long to compute or to wait.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use libcopy::topology::Topology;
use libcopy::{Team, TransportKind, offload, topology};
use libcopy_measure::buffer::Skewed;
use libcopy_measure::pattern;
use libcopy_measure::peer_process::serve;
use nix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Ranks on one node, as in section 4.2.
pub const PER_NODE: usize = 10;

/// Rows and columns of the matrices that are multiplied.
const SIDE: usize = 32;

/// What one iteration of `hiding` times, one after the other.
pub const HIDING: [&str; 3] = ["bcast+wait", "compute", "bcast+compute"];

/// Elements of a matrix of the synthetic application whose maximum is one element of C.
const SEARCHED: usize = 8;

/// `libcopy-lab player`
#[derive(Args, Clone, Debug)]
pub struct PlayerArgs {
    /// Socket that commands come from
    #[arg(long, value_name = "SOCKET")]
    control: PathBuf,

    /// Start this number of ranks instead of being one
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
}

struct Player {
    team: Team,
    one: Skewed,
    two: Skewed,
    all: Skewed,
    /// Three of them, one behind the other: an emulator's small TLB has no two pages of them in one
    /// place, which would make the time of a multiplication a matter of luck.
    matrices: Vec<f64>,
    /// Transport and choice that are set now.
    way: String,
}

/// Starts the ranks of a program and waits for them.
fn start(ranks: usize, args: &PlayerArgs) -> Result<()> {
    let own = std::env::current_exe().context("cannot find my own program")?;
    let statuses = libcopy::team::launch(ranks, |_| {
        let mut rank = Command::new(&own);
        rank.arg("player").arg("--control").arg(&args.control);
        rank
    })?;
    ensure!(statuses.iter().all(ExitStatus::success), "{statuses:?}");
    Ok(())
}

/// Runs `libcopy-lab player`.
pub fn run(args: &PlayerArgs) -> Result<()> {
    if let Some(ranks) = args.ranks {
        return start(ranks, args);
    }
    let rank: usize = libcopy::config::RANK.or_default().parse().unwrap_or(0);
    let usable = topology::affinity();
    let nodes = Topology::read().nodes;
    let node = nodes.get(rank / PER_NODE % nodes.len().max(1));
    let mine: Vec<usize> = node
        .map(|node| {
            usable
                .iter()
                .copied()
                .filter(|c| node.cpus.contains(c))
                .collect()
        })
        .unwrap_or_default();
    // Two ranks are one on each processor; more fill node after node.
    let size: usize = libcopy::config::SIZE.or_default().parse().unwrap_or(1);
    if mine.is_empty() || size <= usable.len() {
        topology::pin(&usable, rank)
    } else {
        topology::pin(&mine, rank % PER_NODE)
    }
    let team = Team::from_env()?;
    let place = (team.rank(), team.size());
    let buffer = |which| Skewed::new(0, 3 * rank + which);
    let mut player = Player {
        one: buffer(0)?,
        two: buffer(1)?,
        all: buffer(2)?,
        // Products are rounded, as those of real data are; an emulator takes longer for exact ones.
        matrices: (1..=3 * SIDE * SIDE).map(|i| 1.0 / i as f64).collect(),
        way: String::new(),
        team,
    };
    serve(&args.control, place, "libcopy", |command| {
        player.obey(command)
    })
}

impl Player {
    fn obey(&mut self, command: &str) -> Result<String> {
        let words: Vec<&str> = command.split(' ').collect();
        let [what, op, bytes, variant, first, second] = words[..] else {
            bail!("unknown command");
        };
        let (way, amount) = variant.rsplit_once(',').context("no amount")?;
        if self.way != way {
            let (transport, choice) = way.split_once(',').context("no transport")?;
            offload::settle_all()?;
            self.team
                .set_transport(Some(transport.parse::<TransportKind>()?))?;
            self.team.set_async(choice.parse()?)?;
            self.way = way.to_owned();
        }
        let bytes: usize = bytes.parse()?;
        let (rank, size) = (self.team.rank(), self.team.size());
        self.one.reserve(bytes, 3 * rank)?;
        self.two.reserve(bytes, 3 * rank + 1)?;
        self.all.reserve(bytes * size, 3 * rank + 2)?;
        match what {
            "time" => {
                let amount: u64 = amount.parse()?;
                let (warmup, count): (usize, usize) = (first.parse()?, second.parse()?);
                let times = match op {
                    "application" => self.application(bytes, warmup, count / 2)?,
                    "hiding" => self.hiding(bytes, amount, warmup, count / HIDING.len())?,
                    _ => self.series(op, bytes, amount, warmup, count)?,
                };
                let times: Vec<String> = times.iter().map(|t| t.as_nanos().to_string()).collect();
                Ok(format!("times {}", times.join(" ")))
            }
            "check" => self.check(op, bytes, first.parse()?, second.parse()?),
            _ => bail!("unknown command"),
        }
    }

    fn call(&mut self, op: &str, bytes: usize, root: usize) -> Result<()> {
        let all = bytes * self.team.size();
        match op {
            "bcast" => self.team.bcast(&mut self.one[..bytes], root)?,
            "gather" => {
                let to = (self.team.rank() == root).then(|| &mut self.all[..all]);
                self.team.gather(&self.one[..bytes], to, root)?;
            }
            _ => bail!("unknown operation {op:?}"),
        }
        Ok(())
    }

    /// Multiplies two matrices that have nothing to do with communication (section 4.2).
    fn multiply(&mut self, times: u64) {
        let (a, rest) = self.matrices.split_at_mut(SIDE * SIDE);
        let (b, c) = rest.split_at_mut(SIDE * SIDE);
        for _ in 0..times {
            c.fill(0.0);
            for row in 0..SIDE {
                for k in 0..SIDE {
                    let left = a[row * SIDE + k];
                    let right = &b[k * SIDE..][..SIDE];
                    for (sum, right) in c[row * SIDE..][..SIDE].iter_mut().zip(right) {
                        *sum += left * right;
                    }
                }
            }
            black_box(&c);
        }
    }

    /// The times of `count` iterations; a rank whose time says nothing returns none.
    fn series(
        &mut self,
        op: &str,
        bytes: usize,
        amount: u64,
        warmup: usize,
        count: usize,
    ) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(count);
        for round in 0..warmup + count {
            self.team.barrier()?;
            let time = self.iteration(op, bytes, amount)?;
            offload::settle_all()?;
            if let (Some(time), true) = (time, round >= warmup) {
                times.push(time);
            }
        }
        self.team.barrier()?;
        Ok(times)
    }

    /// A copy and then computation, beside both at once, first and second in turns: a machine that
    /// becomes slower or faster does so for all three. The computation comes after a copy either
    /// way, because what a copy leaves behind in caches makes it slower.
    fn hiding(
        &mut self,
        bytes: usize,
        amount: u64,
        warmup: usize,
        count: usize,
    ) -> Result<Vec<Duration>> {
        let mut all = Vec::with_capacity(count * HIDING.len());
        for round in 0..warmup + count {
            let mut times = [Duration::ZERO; HIDING.len()];
            for at_once in [round % 2 == 0, round % 2 == 1] {
                self.team.barrier()?;
                let which = if at_once { 2..3 } else { 0..2 };
                for (op, time) in HIDING[which.clone()].iter().zip(&mut times[which]) {
                    let taken = self.iteration(op, bytes, amount)?;
                    *time = taken.context("nothing was timed")?;
                }
            }
            if round >= warmup {
                all.extend(times);
            }
        }
        self.team.barrier()?;
        Ok(all)
    }

    fn iteration(&mut self, op: &str, bytes: usize, amount: u64) -> Result<Option<Duration>> {
        let root = self.team.rank() == 0;
        let start = Instant::now();
        match op.split_once('+').unwrap_or((op, "")) {
            ("compute", _) => self.multiply(amount),
            // Until nothing is held, without making CPUs help.
            (op, "wait") => {
                self.call(op, bytes, 0)?;
                while !offload::is_settled(std::ptr::null::<u8>(), usize::MAX) {
                    sleep(Duration::from_micros(100));
                }
            }
            (op, "compute") => {
                self.call(op, bytes, 0)?;
                self.multiply(amount);
                offload::settle_all()?;
            }
            // CPU time of the root in the call.
            (op, "root") => {
                let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
                let before = clock_gettime(clock)?;
                self.call(op, bytes, 0)?;
                let used = Duration::from(clock_gettime(clock)? - before);
                return Ok(root.then_some(used));
            }
            // A leaf reads its last whole page after `amount` microseconds.
            (op, "touch") => {
                self.call(op, bytes, 0)?;
                sleep(Duration::from_micros(amount).saturating_sub(start.elapsed()));
                if !root {
                    black_box(self.one[bytes - 5000]);
                    offload::settle_all()?;
                    return Ok(Some(start.elapsed()));
                }
                return Ok(None);
            }
            (op, _) => {
                self.call(op, bytes, 0)?;
                offload::settle_all()?;
            }
        }
        Ok(Some(start.elapsed()))
    }

    /// Algorithm 1 of section 4.3, as the root sees it. The times of bcast and search, and of
    /// gather and initialisation, in turns.
    fn application(&mut self, bytes: usize, warmup: usize, count: usize) -> Result<Vec<Duration>> {
        let root = self.team.rank() == 0;
        let size = self.team.size();
        let found = bytes / SEARCHED;
        let mut times = Vec::new();
        let mut seed = 1;
        initialise(&mut self.one[..bytes], &mut seed, root);
        self.team.bcast(&mut self.one[..bytes], 0)?;
        initialise(&mut self.two[..bytes], &mut seed, root);
        // C: what this rank has found, in two copies, because one is still being gathered.
        let mut maxima = [
            Skewed::new(found, 3 * size)?,
            Skewed::new(found, 3 * size + 1)?,
        ];
        for round in 0..warmup + count {
            let start = Instant::now();
            // The next matrix is on its way while the current one is searched.
            self.team.bcast(&mut self.two[..bytes], 0)?;
            let maxima = &mut maxima[round % 2];
            let groups = self.one[..bytes].chunks_exact(8 * SEARCHED);
            for (group, to) in groups.zip(maxima.chunks_exact_mut(8)) {
                let values = group.chunks_exact(8).map(|word| {
                    let mut bytes = [0; 8];
                    bytes.copy_from_slice(word);
                    u64::from_ne_bytes(bytes)
                });
                to.copy_from_slice(&values.max().unwrap_or(0).to_ne_bytes());
            }
            let searched = Instant::now();
            let to = root.then(|| &mut self.all[..found * size]);
            self.team.gather(maxima, to, 0)?;
            initialise(&mut self.one[..bytes], &mut seed, root);
            let end = Instant::now();
            std::mem::swap(&mut self.one, &mut self.two);
            if round >= warmup && root {
                times.extend([searched - start, end - searched]);
            }
        }
        offload::settle_all()?;
        self.team.barrier()?;
        Ok(times)
    }

    fn check(&mut self, op: &str, bytes: usize, root: usize, round: u64) -> Result<String> {
        let rank = self.team.rank();
        self.one[..bytes].fill(round as u8 ^ 0x5a);
        if rank == root || op == "gather" {
            pattern::fill(&mut self.one[..bytes], round, rank);
        }
        self.call(op, bytes, root)?;
        let all = bytes * self.team.size();
        let blocks = match op {
            "bcast" => vec![(&self.one[..bytes], root)],
            _ if rank == root => {
                let blocks = self.all[..all].chunks(bytes);
                blocks
                    .enumerate()
                    .map(|(from, block)| (block, from))
                    .collect()
            }
            _ => Vec::new(),
        };
        for (block, from) in blocks {
            if let Some(at) = pattern::first_difference(block, round, from) {
                return Ok(format!("bad byte {at} of the block of rank {from}"));
            }
        }
        Ok("ok".to_owned())
    }
}

/// The root's next matrix: random values.
fn initialise(matrix: &mut [u8], seed: &mut u64, root: bool) {
    if !root {
        return;
    }
    for word in matrix.chunks_exact_mut(8) {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        word.copy_from_slice(&seed.to_ne_bytes());
    }
}
