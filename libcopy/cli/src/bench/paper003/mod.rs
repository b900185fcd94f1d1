// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy bench paper003`: the experiments of "Exploiting copy engines for intra-node MPI
//! collective communication" (J. Supercomputing, 2023), with this machine's copy engines or the
//! modelled ones of `scripts/vm --ioat`.
//!
//! An experiment is a file of its own that fills in rows; [`EXPERIMENTS`] is the list of them. What
//! is here belongs to all: buffers, the regions over them, the check of every byte, and the comparison
//! with what the engines themselves have counted.

mod engines;
mod fragments;
mod model;
pub mod player;
mod programs;

use super::buffer::Skewed;
use super::machine::Machine;
use super::report::{Ratio, Report, Row};
use super::sample::Spread;
use super::{Output, pattern, sizes};
use crate::cli::progress;
use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::ProgressBar;
use libcopy::device::{Device, Domain, EngineKind, Region, Rights};
use std::fs;
use std::time::Duration;

/// `libcopy bench paper003`
#[derive(Args, Clone, Debug)]
pub struct PaperArgs {
    /// Message sizes of Fig. 3: `256K,1M`, `256K-16M` (steps of four)
    #[arg(long, value_name = "LIST")]
    pub sizes: Option<sizes::Sizes>,

    /// Times that every figure is measured
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,

    /// Smaller messages and three rounds: about a minute in the emulated guest
    #[arg(long)]
    pub quick: bool,

    /// Only these experiments
    #[arg(long, value_name = "NAME", value_delimiter = ',',
          value_parser = clap::builder::PossibleValuesParser::new(EXPERIMENTS.iter().map(|e| e.name)))]
    pub only: Vec<String>,

    #[command(flatten)]
    pub output: Output,
}

/// One experiment of the paper.
struct Experiment {
    name: &'static str,
    /// What the paper says, for the notes.
    claim: &'static str,
    run: fn(&mut Run) -> Result<()>,
}

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "fig3",
        claim: "two processes that share an engine take almost twice the time of one (Fig. 3c)",
        run: engines::run,
    },
    Experiment {
        name: "fragments",
        claim: "a callback takes 1 us for n = 1 and 4 us for n = 8; small n switches sooner (3.4)",
        run: fragments::run,
    },
    Experiment {
        name: "latency",
        claim: "enhanced CPU takes up to 67 % less for bcast and 85 % for gather, hybrid more than it \
                (Figs. 6 and 7)",
        run: programs::latency,
    },
    Experiment {
        name: "overlap",
        claim: "bcast with computation takes up to 45 % less (enhanced CPU) and 58 % less (hybrid), \
                gather 76 % and 72 % (Figs. 8 and 9)",
        run: programs::overlap,
    },
    Experiment {
        name: "application",
        claim: "the synthetic application takes up to 51 % less (enhanced CPU) and 57 % less (hybrid) \
                (Fig. 10)",
        run: programs::application,
    },
    Experiment {
        name: "hiding",
        claim: "computation as long as a copy hides it (3.2)",
        run: programs::hiding,
    },
    Experiment {
        name: "touch",
        claim: "CPUs finish what is touched too early (3.4)",
        run: programs::touch,
    },
    Experiment {
        name: "regret",
        claim: "the interval between calls tells which way is best (4.4)",
        run: programs::regret,
    },
];

/// What the experiments share.
struct Run {
    rounds: usize,
    quick: bool,
    sizes: Vec<usize>,
    bar: ProgressBar,
    rows: Vec<Row>,
    notes: Vec<String>,
    round_number: u64,
}

/// Runs `libcopy bench paper003`.
pub fn run(args: &PaperArgs) -> Result<()> {
    let engines = Device::open().and_then(|d| d.engines()).context(
        "the experiments need the kernel module and copy engines. On a machine without them run \
         `scripts/vm run --ioat 2x8,bw=200M --numa -- target/release/libcopy bench paper003 --quick`",
    )?;
    ensure!(
        !engines.is_empty(),
        "the module has found no engine; see `libcopy info`, load it with engine=kthread, or run this \
         with `scripts/vm run --ioat 2x8,bw=200M --numa -- ...`"
    );
    let model = model::Model::find();
    let sizes = match &args.sizes {
        Some(sizes) => sizes.0.clone(),
        None if args.quick => sizes::range(256 << 10, 4 << 20, 4),
        None => sizes::range(256 << 10, 16 << 20, 4),
    };
    let chosen: Vec<&Experiment> = EXPERIMENTS
        .iter()
        .filter(|e| args.only.is_empty() || args.only.iter().any(|name| name == e.name))
        .collect();
    let mut notes: Vec<String> = engines
        .iter()
        .map(|e| {
            let kind = match e.kind() {
                EngineKind::Dma => "",
                _ => ", no copy engine but a CPU",
            };
            format!(
                "engine {}: {} ({}), node {}, {} channels{kind}",
                e.info.index,
                e.driver(),
                e.device(),
                e.info.node,
                e.info.channels
            )
        })
        .collect();
    if let Some(model) = &model {
        notes.push(format!(
            "MODELLED engines ({}) in an emulated guest: shapes and ratios count, times do not",
            model.shape()
        ));
    }
    for experiment in &chosen {
        notes.push(format!("paper, {}: {}", experiment.name, experiment.claim));
    }
    let mut run = Run {
        rounds: if args.quick {
            args.rounds.min(3)
        } else {
            args.rounds
        }
        .max(1),
        quick: args.quick,
        sizes: sizes.into_iter().filter(|s| *s > 0).collect(),
        bar: progress::bar(0),
        rows: Vec::new(),
        notes,
        round_number: 1,
    };
    let before = model.as_ref().map(model::Model::bytes).transpose()?;
    let engine_before = counter("bytes_engine");
    let quarantined_before = counter("channels_quarantined");
    for experiment in &chosen {
        (experiment.run)(&mut run).with_context(|| experiment.name.to_owned())?;
    }
    run.bar.finish_and_clear();
    let mut accounts_differ = None;
    if let (Some(model), Some(before)) = (&model, before) {
        let counted = model.bytes()? - before;
        let grown = |name, before: Option<u64>| Some(counter(name)? - before?);
        let ours = grown("bytes_engine", engine_before);
        let quarantined = grown("channels_quarantined", quarantined_before).unwrap_or(0);
        run.notes.push(format!(
            "bytes moved by engines: {counted} by the model's account, {} by the module's; {quarantined} \
             times a channel was out of service, and proved itself with a copy that only the model counts",
            ours.map_or("unknown".to_owned(), |ours| ours.to_string())
        ));
        accounts_differ = ours.filter(|ours| *ours != counted && quarantined == 0);
    }
    let report = Report {
        title: "libcopy paper003".into(),
        machine: Machine::here(),
        notes: run.notes,
        rows: run.rows,
        ratios: vec![Ratio::Faster(
            "own-engines".into(),
            vec!["shared-engine".into()],
        )],
    };
    args.output.write(&report)?;
    ensure!(
        accounts_differ.is_none(),
        "the engines and the module have counted different numbers of bytes: somebody else uses them"
    );
    Ok(())
}

/// A process of an experiment: a member of the domain with a channel of its own, and two buffers.
///
/// All of them live in this process, which makes no difference to the module or to an engine.
struct Process {
    domain: Domain,
    source: Skewed,
    target: Skewed,
    round: u64,
}

impl Process {
    /// So many members of one domain, with buffers of so many bytes; what is in the targets is wrong.
    fn several(run: &mut Run, count: usize, bytes: usize) -> Result<Vec<Self>> {
        let first = Domain::create()?;
        let key = first.key().context("a new domain has a key")?;
        let mut domains = vec![first];
        for _ in 1..count {
            domains.push(Domain::join(&key)?);
        }
        let processes = domains.into_iter().enumerate().map(|(which, domain)| {
            let round = run.next_round();
            let mut source = Skewed::new(bytes, 2 * which)?;
            let mut target = Skewed::new(bytes, 2 * which + 1)?;
            pattern::fill(&mut source, round, which);
            target.fill(0x5a);
            Ok(Self {
                domain,
                source,
                target,
                round,
            })
        });
        processes.collect()
    }

    /// Publishes the buffers.
    fn share(&mut self) -> Result<(Region<'_>, Region<'_>, &Domain)> {
        let domain = &self.domain;
        let source = domain.share(&self.source, 0)?;
        let target = domain.share_mut(&mut self.target, Rights::ReadWrite, 0)?;
        Ok((source, target, domain))
    }

    /// Whether all that was moved is there.
    fn right(&self, which: usize) -> bool {
        pattern::first_difference(&self.target, self.round, which).is_none()
    }
}

/// What the module counts.
const STATS: &str = "/sys/kernel/debug/libcopy/stats";

/// One of the module's counters, if debugfs can be read.
fn counter(name: &str) -> Option<u64> {
    let text = fs::read_to_string(STATS).ok()?;
    let number = |line: &str| {
        line.strip_prefix(name)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    };
    text.lines().find_map(number)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl Run {
    fn step(&mut self, what: &str) {
        self.bar.inc(1);
        self.bar.set_message(what.to_owned());
    }

    fn next_round(&mut self) -> u64 {
        self.round_number += 1;
        self.round_number
    }

    fn push(
        &mut self,
        op: &str,
        bytes: usize,
        ranks: usize,
        variant: &str,
        timings: &[f64],
        verified: bool,
    ) -> Result<()> {
        let time = Spread::of(timings).with_context(|| format!("{op}: nothing was timed"))?;
        self.rows.push(Row {
            op: op.to_owned(),
            bytes,
            ranks,
            variant: variant.to_owned(),
            time,
            verified,
        });
        Ok(())
    }
}
