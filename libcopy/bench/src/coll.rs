// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives of several libraries and transports against each other, in one run.
//!
//! For each operation and size every peer is first checked (all bytes of all ranks, with
//! changing roots), and then timed in rounds in which the peers take turns, each round
//! beginning with another one. How many calls fit is planned from the time that is left.

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use libcopy::transport::{TransportKind, probe_machine};
use libcopy_measure::interval::Interval;
use libcopy_measure::machine::{self, Machine};
use libcopy_measure::output::Output;
use libcopy_measure::pattern::ELEMENT;
use libcopy_measure::peer_process::{PeerProcess, sockets};
use libcopy_measure::progress;
use libcopy_measure::rank::{FLAT, PLAIN_CMA};
use libcopy_measure::report::{Ratio, Report, Row};
use libcopy_measure::sample::{Spread, modes};
use libcopy_measure::sizes;
use std::path::Path;
use std::time::{Duration, Instant};

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Op {
    Bcast,
    Gather,
    Scatter,
    Allgather,
    Alltoall,
    Reduce,
    Allreduce,
}

/// Those of [`Common::ops`] where none are given.
const OPS: [Op; 4] = [Op::Bcast, Op::Gather, Op::Scatter, Op::Allgather];

impl Op {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bcast => "bcast",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Allgather => "allgather",
            Self::Alltoall => "alltoall",
            Self::Reduce => "reduce",
            Self::Allreduce => "allreduce",
        }
    }

    /// Whether elements are added.
    pub fn adds(self) -> bool {
        matches!(self, Self::Reduce | Self::Allreduce)
    }
}

/// What is common to all comparisons of collectives.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Message sizes: `4K,1M`, `4K-16M` (steps of four), `1-1K:2` (steps of two). The size is
    /// that of one block: what one rank sends in a gather, receives in a scatter
    #[arg(long, value_name = "LIST")]
    pub sizes: Option<sizes::Sizes>,

    /// Operations; reductions add doubles [default: bcast, gather, scatter, allgather; many: bcast,
    /// allgather, alltoall, reduce, allreduce]
    #[arg(long, value_delimiter = ',', value_enum)]
    pub ops: Vec<Op>,

    /// Rounds in which the variants take turns
    #[arg(long, default_value_t = 7)]
    pub rounds: usize,

    /// Time to spend, about; more time means more calls, not more sizes
    #[arg(long, value_name = "SECONDS")]
    pub time: Option<f64>,

    /// Fewer sizes and less time: under a minute
    #[arg(long)]
    pub quick: bool,

    #[command(flatten)]
    pub output: Output,

    /// Whether ranks write their buffers before each call
    #[arg(skip)]
    pub is_written: bool,

    /// When it ends, whatever is left
    #[arg(skip)]
    pub until: Option<Instant>,
}

impl Common {
    /// Times of calls, with buffers written before each if that is asked for.
    fn time(
        &self,
        who: &mut PeerProcess,
        op: &str,
        bytes: usize,
        word: &str,
        (warmup, count): (usize, usize),
    ) -> Result<Vec<f64>> {
        if self.is_written {
            who.time_written(op, bytes, word, warmup, count)
        } else {
            who.time(op, bytes, word, warmup, count)
        }
    }

    fn seconds(&self) -> f64 {
        self.time.unwrap_or(if self.quick { 40.0 } else { 240.0 })
    }
}

/// `libcopy bench coll`
#[derive(Args, Clone, Debug)]
pub struct CollArgs {
    /// Number of ranks; may be more than there are cores
    #[arg(long, short = 'n', default_value_t = 4)]
    pub ranks: usize,

    /// Variants: `auto` is what the policy table chooses; `cma-plain` is one system call per leaf,
    /// as MPI libraries do it [default: auto, all transports that work here, cma-plain beside kmod]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub transports: Option<Vec<String>>,

    #[command(flatten)]
    pub common: Common,
}

/// `libcopy bench peers`
#[derive(Args, Clone, Debug)]
pub struct PeersArgs {
    /// Number of ranks; may be more than there are cores
    #[arg(long, short = 'n', default_value_t = 2)]
    pub ranks: usize,

    /// A peer: its name and the command that starts its ranks, as a shell would read it
    /// (`scripts/bench peers` builds and passes these)
    #[arg(long = "peer", value_name = "NAME=COMMAND", required = true)]
    pub peers: Vec<String>,

    /// How often all of them are launched: from launch to launch the same program may be several
    /// times as fast, so ratios are of medians of the same launch
    #[arg(long, default_value_t = 10)]
    pub launches: usize,

    #[command(flatten)]
    pub common: Common,
}

/// One column of the table: who does it, and what it is told.
#[derive(Clone)]
pub struct Entry {
    pub variant: String,
    /// 0 is libcopy, then as they are given.
    pub peer: usize,
    pub word: String,
}

impl Entry {
    pub fn new(variant: &str, peer: usize, word: &str) -> Entry {
        Entry {
            variant: variant.into(),
            peer,
            word: word.into(),
        }
    }
}

/// Runs `libcopy bench coll`.
pub fn coll(args: &CollArgs) -> Result<()> {
    ensure!(args.ranks >= 1, "--ranks must be at least 1");
    let usable: Vec<TransportKind> = probe_machine()
        .iter()
        .filter(|r| r.usable)
        .map(|r| r.kind)
        .collect();
    // What the module is to be compared with, where there is one.
    let compares = [TransportKind::Kmod, TransportKind::Cma]
        .iter()
        .all(|kind| usable.contains(kind));
    let words = match &args.transports {
        Some(words) => words.clone(),
        None => std::iter::once("auto".to_owned())
            .chain(usable.iter().map(|k| k.name().to_owned()))
            .chain([PLAIN_CMA.to_owned()].into_iter().filter(|_| compares))
            .collect(),
    };
    let mut entries = Vec::new();
    for word in words {
        let variant = match word.as_str() {
            "auto" | "libcopy" => "libcopy".to_owned(),
            PLAIN_CMA => PLAIN_CMA.to_owned(),
            name => {
                let kind: TransportKind = name.parse().with_context(|| {
                    format!("--transports {name:?}: not auto, cma-plain or a transport")
                })?;
                ensure!(
                    usable.contains(&kind),
                    "--transports {name}: not usable here; `libcopy info` says why"
                );
                format!("libcopy-{name}")
            }
        };
        let word = if word == "libcopy" {
            "auto".to_owned()
        } else {
            word
        };
        entries.push(Entry {
            variant,
            peer: 0,
            word,
        });
    }
    entries.push(Entry {
        variant: "memcpy".into(),
        peer: 0,
        word: "memcpy".into(),
    });

    let mut ratios: Vec<Ratio> = entries
        .iter()
        .filter(|e| e.variant != "memcpy")
        .map(|e| Ratio::OfMemcpy(e.variant.clone()))
        .collect();
    for other in ["libcopy-cma", "libcopy-shm", PLAIN_CMA] {
        ratios.push(Ratio::Faster("libcopy-kmod".into(), vec![other.into()]));
    }

    let default_sizes = if args.common.quick {
        let mut sizes = sizes::range(1, 16 << 20, 8);
        sizes.retain(|s| *s > 1 || args.ranks <= 4);
        sizes
    } else {
        sizes::range(1, 64 << 20, 4)
    };
    let directory = sockets()?;
    let mut peers = vec![start_own(args.ranks, directory.path())?];
    let report = compare(
        &args.common,
        args.ranks,
        default_sizes,
        &mut peers,
        &entries,
        ratios,
        format!("libcopy collectives, {} ranks", args.ranks),
    )?;
    drop(peers);
    args.common.output.write(&report)
}

/// Runs `libcopy bench peers`.
pub fn peers(args: &PeersArgs) -> Result<()> {
    ensure!(args.ranks >= 1, "--ranks must be at least 1");
    ensure!(args.launches >= 1, "--launches must be at least 1");
    let mut names = Vec::new();
    let mut commands = Vec::new();
    for peer in &args.peers {
        let Some((name, command)) = peer.split_once('=') else {
            bail!("--peer {peer:?} is not NAME=COMMAND");
        };
        names.push(name.to_owned());
        commands.push(command);
    }
    let mut entries = vec![Entry::new("libcopy", 0, "auto")];
    let others = names.iter().enumerate();
    entries.extend(others.map(|(i, n)| Entry::new(n, i + 1, "-")));
    entries.push(Entry::new("memcpy", 0, "memcpy"));
    // "openmpi+libcopy" is "openmpi" with libcopy_mpi.so, and compared with that.
    let (with, plain): (Vec<_>, Vec<_>) = names
        .iter()
        .partition(|n: &&String| n.ends_with("+libcopy"));
    let plain: Vec<String> = plain.into_iter().cloned().collect();
    let base = |name: &String| name.trim_end_matches("+libcopy").to_owned();
    let against: Vec<(String, String)> = plain
        .iter()
        .map(|n| ("libcopy".to_owned(), n.clone()))
        .chain(with.iter().map(|n| ((*n).clone(), base(n))))
        .collect();
    let faster =
        |(ours, other): &(String, String)| Ratio::Faster(ours.clone(), vec![other.clone()]);
    let ratios: Vec<Ratio> = against
        .iter()
        .map(faster)
        .chain((plain.len() > 1).then(|| Ratio::Faster("libcopy".into(), plain.clone())))
        .chain(std::iter::once(Ratio::OfMemcpy("libcopy".into())))
        .chain(plain.iter().map(|n| Ratio::OfMemcpy(n.clone())))
        .collect();
    let common = Common {
        time: Some(args.common.seconds() / args.launches as f64),
        // Each launch adds some.
        rounds: (3 * args.common.rounds / args.launches).max(2),
        is_written: true,
        ..args.common.clone()
    };
    let others: Vec<(String, &str)> = names.iter().cloned().zip(commands).collect();
    let mut launches = Vec::new();
    for launch in 1..=args.launches {
        eprintln!("launch {launch} of {}", args.launches);
        launches.push(launch_all(
            &common,
            args.ranks,
            sizes::range(64 << 10, 16 << 20, if args.common.quick { 4 } else { 2 }),
            &others,
            &entries,
            ratios.clone(),
            format!(
                "libcopy against {}, {} ranks",
                names.join(" and "),
                args.ranks
            ),
        )?);
    }
    let written = args
        .common
        .output
        .write(&together(&launches).context("no launch")?);
    if !args.common.output.json {
        for line in paired(&launches, &against) {
            println!("{line}");
        }
    }
    written
}

/// Starts our ranks and those of others, by their names and commands, and compares them.
pub fn launch_all(
    common: &Common,
    ranks: usize,
    default_sizes: Vec<usize>,
    others: &[(String, &str)],
    entries: &[Entry],
    ratios: Vec<Ratio>,
    title: String,
) -> Result<Report> {
    let directory = sockets()?;
    let mut peers = vec![start_own(ranks, directory.path())?];
    for (name, command) in others {
        let started = PeerProcess::start_shell(name, command, ranks, directory.path())?;
        peers.push(started);
    }
    compare(
        common,
        ranks,
        default_sizes,
        &mut peers,
        entries,
        ratios,
        title,
    )
}

/// The times of a row in each launch.
fn medians<'a>(launches: &'a [Report], row: &'a Row) -> impl Iterator<Item = &'a Row> {
    let same = move |other: &&Row| {
        (&other.op, other.bytes, &other.variant) == (&row.op, row.bytes, &row.variant)
    };
    launches
        .iter()
        .filter_map(move |launch| launch.rows.iter().find(same))
}

/// One report of several launches: each time is the median of the launches' medians, and what is
/// wrong in one of them is wrong.
pub fn together(launches: &[Report]) -> Option<Report> {
    let mut report = launches.first()?.clone();
    if launches.len() == 1 {
        return Some(report);
    }
    for row in &mut report.rows {
        let all: Vec<f64> = medians(launches, row).map(|r| r.time.median).collect();
        let verified = medians(launches, row).all(|r| r.verified);
        row.time = Spread::of(&all)?;
        row.verified = verified;
    }
    Some(report)
}

/// Ratios of medians of the same launch with their 95 % interval, and which variants had launches
/// in different modes.
fn paired(launches: &[Report], against: &[(String, String)]) -> Vec<String> {
    let mut notes = Vec::new();
    let rows = launches.first().map_or(&[][..], |launch| &launch.rows);
    for row in rows {
        for (ours, other) in against.iter().filter(|(ours, _)| *ours == row.variant) {
            let ratio = |launch: &Report| {
                let find = |variant: &str| {
                    let same = |r: &&Row| {
                        (&r.op, r.bytes, r.variant.as_str()) == (&row.op, row.bytes, variant)
                    };
                    Some(launch.rows.iter().find(same)?.time.median)
                };
                Some(find(other)? / find(ours)?)
            };
            let ratios: Vec<f64> = launches.iter().filter_map(ratio).collect();
            if let Some(Interval { median, low, high }) = Interval::of(&ratios) {
                notes.push(format!(
                    "{} {}: {ours} {median:.2} times as fast as {other}, 95 % of {} launches {low:.2} to {high:.2}",
                    row.op,
                    sizes::short(row.bytes),
                    ratios.len()
                ));
            }
        }
        let all = medians(launches, row).map(|r| r.time.median).collect();
        if let Some(modes) = modes(all) {
            let modes: Vec<String> = modes.iter().map(|us| format!("{us:.1}")).collect();
            notes.push(format!(
                "{} {}: launches of {} in different modes: {} us",
                row.op,
                sizes::short(row.bytes),
                row.variant,
                modes.join(", ")
            ));
        }
    }
    notes
}

/// Starts our own ranks.
fn start_own(ranks: usize, directory: &Path) -> Result<PeerProcess> {
    let own = std::env::current_exe().context("cannot find my own program")?;
    let own = own.to_string_lossy().into_owned();
    let command: Vec<String> = [
        &own,
        "run",
        "-n",
        &ranks.to_string(),
        "--",
        &own,
        "bench",
        "rank",
    ]
    .map(str::to_owned)
    .to_vec();
    PeerProcess::start("libcopy", &command, ranks, directory)
}

/// Bytes that all ranks of one peer need for an operation, at worst.
fn footprint(op: Op, bytes: usize, ranks: usize) -> u64 {
    let (bytes, ranks) = (bytes as u64, ranks as u64);
    match op {
        Op::Bcast | Op::Reduce | Op::Allreduce => 2 * ranks * bytes,
        Op::Alltoall => 2 * ranks * ranks * bytes,
        _ => ranks * (ranks + 1) * bytes,
    }
}

/// Times `entries` against each other.
fn compare(
    common: &Common,
    ranks: usize,
    default_sizes: Vec<usize>,
    peers: &mut [PeerProcess],
    entries: &[Entry],
    ratios: Vec<Ratio>,
    title: String,
) -> Result<Report> {
    let machine = Machine::here();
    let sizes = common.sizes.as_ref().map_or(default_sizes, |s| s.0.clone());
    let mut notes: Vec<String> = peers.iter().map(|c| c.description.clone()).collect();
    let has_memcpy = entries.iter().any(|it| it.word == "memcpy");
    if has_memcpy && ranks > machine.cores {
        notes.push(format!(
            "{ranks} ranks on {} cores: memcpy is the time in which the cores could do all \
             ranks' copies",
            machine.cores
        ));
    }
    // Half of what there is: page tables and the libraries' own buffers also want some.
    let room = machine::available_memory() / 2 / peers.len() as u64;
    let mut cells: Vec<(Option<Op>, usize)> = vec![(None, 0)];
    let ops = if common.ops.is_empty() {
        &OPS[..]
    } else {
        &common.ops
    };
    for op in ops {
        for bytes in &sizes {
            if op.adds() && bytes % ELEMENT > 0 {
                notes.push(format!(
                    "left out: {} of {}, which are no whole doubles",
                    op.name(),
                    sizes::short(*bytes)
                ));
            } else if footprint(*op, *bytes, ranks) > room {
                notes.push(format!(
                    "left out: {} of {} (needs {} MiB of memory)",
                    op.name(),
                    sizes::short(*bytes),
                    footprint(*op, *bytes, ranks) >> 20
                ));
            } else {
                cells.push((Some(*op), *bytes));
            }
        }
    }

    let measured = |op: &Op| {
        cells
            .iter()
            .filter(|(other, _)| *other == Some(*op))
            .count()
    };
    let most = ops.iter().map(measured).max().unwrap_or(0);
    ensure!(
        most > 0,
        "nothing is left to measure, as this machine has {} MiB of memory available; see --sizes\n{}",
        machine::available_memory() >> 20,
        notes[peers.len()..].join("\n")
    );
    common.output.check(Some(most))?;

    // All our transports have the same barrier.
    let mut barriers: Vec<Entry> = vec![Entry {
        variant: "libcopy".into(),
        peer: 0,
        word: "auto".into(),
    }];
    let others = entries.iter().filter(|e| e.peer > 0 || e.word == FLAT);
    barriers.extend(others.cloned());

    let rounds = common.rounds.max(1);
    let bar = progress::bar((cells.len() * (rounds + 1)) as u64);
    let deadline = Instant::now() + Duration::from_secs_f64(common.seconds());
    let mut rows = Vec::new();
    let mut round_number = 1;
    let count = cells.len();
    let mut timed_out = Vec::new();
    for (i, (op, bytes)) in cells.into_iter().enumerate() {
        let name = op.map_or("barrier", Op::name);
        if common.until.is_some_and(|until| Instant::now() > until) {
            timed_out.push(format!("{name} {}", sizes::short(bytes)));
            continue;
        }
        bar.set_message(format!("{name} {}", sizes::short(bytes)));
        let entries: Vec<&Entry> = match op {
            Some(_) => entries.iter().collect(),
            None => barriers.iter().collect(),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left.as_secs_f64() / (count - i) as f64;
        let started = Instant::now();

        let mut verified = vec![true; entries.len()];
        let mut calls = vec![1.0; entries.len()];
        for (e, entry) in entries.iter().enumerate() {
            let who = &mut peers[entry.peer];
            if op.is_some() {
                for root in [0, round_number as usize % ranks] {
                    if let Err(what) = who.check(name, bytes, &entry.word, root, round_number)? {
                        verified[e] = false;
                        bar.suspend(|| {
                            eprintln!(
                                "libcopy bench: {} {name} of {bytes} bytes from root {root} \
                                 delivers wrong bytes: {what}",
                                entry.variant
                            );
                        });
                    }
                    round_number += 1;
                }
            }
            let pilot = common.time(who, name, bytes, &entry.word, (1, 2))?;
            calls[e] = pilot.iter().copied().fold(f64::MAX, f64::min).max(0.05);
        }
        bar.inc(1);

        // A tiny share still gets three rounds of a call each.
        let left = (share - started.elapsed().as_secs_f64()).max(0.0);
        let slice = 1e6 * left / (rounds * entries.len()) as f64;
        let rounds_here = if slice < 1.5 * calls.iter().sum::<f64>() / calls.len() as f64 {
            rounds.min(3)
        } else {
            rounds
        };
        let mut timings = vec![Vec::new(); entries.len()];
        let mut done = 0;
        for round in 0..rounds_here {
            // On a busy machine calls take longer than the pilot said.
            if round >= 3 && started.elapsed().as_secs_f64() > 1.5 * share {
                break;
            }
            done += 1;
            for turn in 0..entries.len() {
                let e = (turn + round) % entries.len();
                let entry = entries[e];
                // The barrier around each call costs about as much as a small call.
                let fit = (slice / (2.0 * calls[e] + 2.0)) as usize;
                let warmup = (fit / 10).clamp(1, 20);
                let n = fit.clamp(if slice > 0.0 { 2 } else { 1 }, 400);
                let who = &mut peers[entry.peer];
                let times = common.time(who, name, bytes, &entry.word, (warmup, n))?;
                timings[e].extend(times);
            }
            bar.inc(1);
        }
        bar.inc((rounds - done) as u64);
        for ((entry, timings), verified) in entries.iter().zip(&timings).zip(verified) {
            let mut row = Row::timed(name, bytes, ranks, &entry.variant, timings, verified)?;
            if entry.variant == "memcpy" {
                // The copies of ranks that share a core cannot overlap.
                let movers = if op == Some(Op::Bcast) {
                    (ranks - 1).max(1)
                } else {
                    ranks
                };
                let oversubscription = (movers as f64 / machine.cores as f64).max(1.0);
                row.time.median *= oversubscription;
                row.time.p10 *= oversubscription;
                row.time.p90 *= oversubscription;
            }
            rows.push(row);
        }
    }
    bar.finish_and_clear();
    if !timed_out.is_empty() {
        notes.push(format!(
            "{ranks} ranks: left out, as the time is up: {}",
            timed_out.join(", ")
        ));
    }
    Ok(Report {
        title,
        machine,
        notes,
        rows,
        ratios,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(ours: f64, other: f64, verified: bool) -> Report {
        let row = |variant: &str, median: f64| Row {
            op: "bcast".into(),
            bytes: 65536,
            ranks: 2,
            variant: variant.into(),
            time: Spread::exactly(median),
            verified,
        };
        Report {
            title: String::new(),
            machine: Machine::here(),
            notes: vec![],
            rows: vec![row("libcopy", ours), row("openmpi", other)],
            ratios: vec![],
        }
    }

    #[test]
    fn launches_are_compared_with_themselves() {
        let launches = [launch(8.0, 10.0, true), launch(40.0, 50.0, false)];
        let report = together(&launches).unwrap();
        assert_eq!(report.rows[0].time.median, 24.0);
        assert!(!report.rows[1].verified);
        let notes = paired(&launches, &[("libcopy".into(), "openmpi".into())]);
        let ratio =
            "bcast 64K: libcopy 1.25 times as fast as openmpi, 95 % of 2 launches 1.25 to 1.25";
        assert_eq!(notes[0], ratio);
        assert_eq!(
            notes[1],
            "bcast 64K: launches of libcopy in different modes: 8.0, 40.0 us"
        );
    }
}
