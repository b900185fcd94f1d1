// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy bench many`: what a machine with more than a few processors should show, in one run:
//! what readers of one source get, and collectives of 2 to 16 ranks by plans, without groups, by
//! MPI libraries, and as the model predicts them.

use super::coll::{Common, Entry, Op, launch_all, together};
use super::contention;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use libcopy::TransportKind;
use libcopy::plan::choose::{best, buffer};
use libcopy::plan::{Call, Lengths, Machine, Operation, Plans};
use libcopy::policy::Contention;
use libcopy::topology::{self, Object};
use libcopy::transport::probe_machine;
use libcopy::tune::contention::Effort;
use libcopy_measure::plot;
use libcopy_measure::rank::FLAT;
use libcopy_measure::report::{Ratio, Report, Row, SIMULATED};
use libcopy_measure::sample::Spread;
use libcopy_model::simulate;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Operations where none are given; barriers are always measured.
const OPS: [Op; 5] = [
    Op::Bcast,
    Op::Allgather,
    Op::Alltoall,
    Op::Reduce,
    Op::Allreduce,
];

/// Bytes of a buffer, or of a rank's block.
const SIZES: [usize; 5] = [8, 1 << 10, 16 << 10, 128 << 10, 1 << 20];
const QUICK: [usize; 3] = [8, 16 << 10, 1 << 20];

/// Seconds for all collectives, and for all with --quick.
const SECONDS: [f64; 2] = [360.0, 50.0];

/// Up to this many bytes, ranks read what is in shared memory, which all have attached.
const SLOT_BYTES: usize = 32 << 10;

/// Arguments of `libcopy bench many`.
#[derive(Args, Clone, Debug)]
pub struct ManyArgs {
    /// Numbers of ranks; may be more than there are processors (`scripts/bench many`: 2, 4, 8, 16,
    /// as far as there are)
    #[arg(
        long,
        short = 'n',
        value_name = "LIST",
        value_delimiter = ',',
        required = true
    )]
    ranks: Vec<usize>,

    /// A peer: its name, for which number of ranks, and the command that starts these, as a shell
    /// would read it (`scripts/bench many` builds and passes these)
    #[arg(long = "peer", value_name = "NAME@RANKS=COMMAND")]
    peers: Vec<String>,

    /// How often all of them are launched
    #[arg(long, default_value_t = 2)]
    launches: usize,

    #[command(flatten)]
    common: Common,
}

/// A program to compare with.
struct Peer<'a> {
    name: &'a str,
    ranks: usize,
    command: &'a str,
}

impl Peer<'_> {
    fn parse(text: &str) -> Result<Peer<'_>> {
        let parsed = text.split_once('=').and_then(|(name, command)| {
            let (name, ranks) = name.split_once('@')?;
            let ranks = ranks.parse().ok()?;
            Some(Peer {
                name,
                ranks,
                command,
            })
        });
        parsed.with_context(|| format!("--peer {text:?} is not NAME@RANKS=COMMAND"))
    }
}

/// Runs `libcopy bench many`.
pub fn run(args: &ManyArgs) -> Result<()> {
    let cpus = topology::affinity();
    let peers: Result<Vec<Peer<'_>>> = args.peers.iter().map(|it| Peer::parse(it)).collect();
    let peers = peers?;
    let numbers = &args.ranks;
    if let Some(few) = numbers.iter().find(|ranks| **ranks < 2) {
        bail!("--ranks {few}: it takes two ranks at least");
    }
    ensure!(args.launches >= 1, "--launches must be at least 1");
    let mut common = args.common.clone();
    if common.ops.is_empty() {
        common.ops = OPS.to_vec();
    }
    common.is_written = true;
    let output = &common.output;
    output.check(None)?;
    let beside = |path: &Option<PathBuf>, name: &str| path.as_deref().map(|it| with_name(it, name));
    let curve_csv = beside(&output.csv, "contention");
    let curve_plot = beside(&output.plot, "contention");
    contention::check(curve_csv.as_deref(), curve_plot.as_deref())?;

    // What is forked has to have one thread, so it comes first.
    let effort = if common.quick {
        contention::quick()
    } else {
        Effort::default()
    };
    eprintln!("readers of one source");
    let outcome = contention::measure(&effort)?;
    if !output.json {
        println!("{}", contention::table(&outcome));
    }
    contention::write(&outcome, curve_csv.as_deref(), curve_plot.as_deref())?;

    let seconds = common.time.unwrap_or(SECONDS[usize::from(common.quick)]);
    let began = Instant::now();
    let launches = numbers.len() * args.launches;
    let mut reports = Vec::new();
    for (index, ranks) in numbers.iter().enumerate() {
        let others: Vec<(String, &str)> = peers
            .iter()
            .filter(|it| it.ranks == *ranks)
            .map(|it| (it.name.to_owned(), it.command))
            .collect();
        let report = compared(
            &common,
            *ranks,
            &others,
            args.launches,
            // What others have left over is for those that follow.
            |launch| {
                let left = launches - index * args.launches - launch;
                let spent = began.elapsed().as_secs_f64();
                (
                    ((seconds - spent) / left as f64).max(0.5),
                    began + Duration::from_secs_f64(1.2 * seconds),
                )
            },
        )?;
        reports.push(predicted(report, *ranks, &cpus, &outcome.contention)?);
    }
    let mut report = merged(&reports).context("no number of ranks")?;
    report.title = "libcopy by plans, flat and simulated, beside MPI libraries".into();
    let plotted = output.plot.clone();
    // A figure has one number of ranks.
    let mut without_plot = output.clone();
    without_plot.plot = None;
    let written = without_plot.write(&report);
    if let Some(path) = plotted {
        for (ranks, report) in numbers.iter().zip(&reports) {
            let path = with_name(&path, &format!("{ranks}-ranks"));
            match plot::write(report, common.output.axis, &path) {
                Ok((png, svg)) => eprintln!("plot: {} and {}", png.display(), svg.display()),
                Err(error) => eprintln!("no figure of {ranks} ranks: {error:#}"),
            }
        }
    }
    written
}

/// `many.csv` of contention is `many-contention.csv`.
fn with_name(path: &Path, name: &str) -> PathBuf {
    let mut file = path.file_stem().unwrap_or_default().to_owned();
    file.push(format!("-{name}"));
    if let Some(end) = path.extension() {
        file.push(".");
        file.push(end);
    }
    path.with_file_name(file)
}

/// One number of ranks, launched some times. `time` says of a launch how many seconds it has, and
/// when everything ends.
fn compared(
    common: &Common,
    ranks: usize,
    others: &[(String, &str)],
    launches: usize,
    time: impl Fn(usize) -> (f64, Instant),
) -> Result<Report> {
    let names: Vec<String> = others.iter().map(|(name, _)| name.clone()).collect();
    let mut entries = vec![Entry::new("libcopy", 0, "auto"), Entry::new(FLAT, 0, FLAT)];
    let peers = names.iter().enumerate();
    entries.extend(peers.map(|(index, name)| Entry::new(name, index + 1, "-")));
    let faster = |others: Vec<String>| Ratio::Faster("libcopy".into(), others);
    let mut ratios = vec![faster(vec![FLAT.into()])];
    ratios.extend(names.iter().map(|name| faster(vec![name.clone()])));
    if names.len() > 1 {
        ratios.push(faster(names.clone()));
    }
    ratios.push(Ratio::Faster(SIMULATED.into(), vec!["libcopy".into()]));
    let sizes = if common.quick {
        QUICK.to_vec()
    } else {
        SIZES.to_vec()
    };
    let mut all = Vec::new();
    for launch in 0..launches {
        eprintln!("{ranks} ranks, launch {} of {launches}", launch + 1);
        let (seconds, until) = time(launch);
        let common = Common {
            time: Some(seconds),
            rounds: common.rounds.min(3),
            until: Some(until),
            ..common.clone()
        };
        all.push(launch_all(
            &common,
            ranks,
            sizes.clone(),
            others,
            &entries,
            ratios.clone(),
            format!("libcopy, {ranks} ranks"),
        )?);
    }
    // Launches that the end of the time has cut short have fewer rows.
    all.sort_by_key(|report| std::cmp::Reverse(report.rows.len()));
    let mut report = together(&all).context("no launch")?;
    let shorter = all.iter().filter(|it| it.rows.len() < all[0].rows.len());
    let count = shorter.count();
    if count > 0 {
        report.notes.push(format!(
            "{ranks} ranks: {count} of {launches} launches have not all rows, as the time was up"
        ));
    }
    Ok(report)
}

/// With what the model says of each row of libcopy's, if every rank has a processor.
fn predicted(
    mut report: Report,
    ranks: usize,
    cpus: &[usize],
    contention: &Contention,
) -> Result<Report> {
    if ranks > cpus.len() {
        report.notes.push(format!(
            "{ranks} ranks on {} processors: oversubscribed, of which the model knows nothing; there is no row of it, and \
             libcopy has one group anyway",
            cpus.len()
        ));
        return Ok(report);
    }
    report.notes.push(format!(
        "simulated: nothing was measured; plans of {ranks} ranks with the costs that are above"
    ));
    let machine = topology::objects();
    let own = report.rows.iter().filter(|row| row.variant == "libcopy");
    let own: Vec<(String, usize)> = own.map(|row| (row.op.clone(), row.bytes)).collect();
    for (op, bytes) in own {
        let Some(operation) = Operation::ALL.into_iter().find(|it| it.name() == op) else {
            continue;
        };
        let seconds = simulated(&machine, &cpus[..ranks], contention, operation, bytes)?;
        let time = Spread::exactly(seconds * 1e6);
        report.rows.push(Row {
            op,
            bytes,
            ranks,
            variant: SIMULATED.into(),
            time,
            verified: true,
        });
    }
    Ok(report)
}

/// Seconds that a call takes by the model, with a rank on each of some processors.
fn simulated(
    machine: &Object,
    cpus: &[usize],
    contention: &Contention,
    operation: Operation,
    bytes: usize,
) -> Result<f64> {
    let all = machine.all();
    let place = |cpu: &usize| {
        let holding = all.iter().rposition(|(_, object)| object.cpus.has(*cpu));
        holding.unwrap_or(0)
    };
    let places: Vec<usize> = cpus.iter().map(place).collect();
    let usable = probe_machine().into_iter().find(|it| it.usable);
    let kind = match usable {
        Some(report) if bytes > SLOT_BYTES => report.kind,
        _ => TransportKind::Shm,
    };
    let costs = contention.costs(kind);
    let call = Call {
        operation,
        root: 0,
        lengths: Lengths::Same(bytes),
        in_rank_order: false,
        element: if operation.combines() { 8 } else { 1 },
    };
    let way = best(machine, &places, &call, costs).context("no way goes")?;
    let plans = Plans::new(&way.tree, &call, way.shape).all();
    let machine = Machine::new(machine, &places, costs);
    let whole = buffer(&call, cpus.len());
    Ok(simulate::run(&plans, &machine, whole, way.chunk)?.seconds)
}

/// The rows of all numbers of ranks.
fn merged(reports: &[Report]) -> Option<Report> {
    let mut all = reports.first()?.clone();
    for report in &reports[1..] {
        all.rows.extend(report.rows.iter().cloned());
        for note in &report.notes {
            if !all.notes.contains(note) {
                all.notes.push(note.clone());
            }
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use libcopy::policy::Copies;

    #[test]
    fn peers_are_of_a_number_of_ranks() {
        let peer = Peer::parse("openmpi@4='mpirun' '-n' '4' '--x=y'").unwrap();
        assert_eq!((peer.name, peer.ranks), ("openmpi", 4));
        assert_eq!(peer.command, "'mpirun' '-n' '4' '--x=y'");
        for wrong in ["openmpi=mpirun", "openmpi@x=mpirun", "openmpi@4"] {
            assert!(Peer::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// Slower processors take longer, in the proportion in which they are slower.
    #[test]
    fn predictions_follow_from_what_was_measured() {
        let contention = |core_mbs| Contention {
            cma: Some(Copies {
                core_mbs,
                chunk_ns: 500,
                ..Copies::default()
            }),
            kmod: Some(Copies {
                core_mbs,
                chunk_ns: 500,
                ..Copies::default()
            }),
            shm: Some(Copies {
                core_mbs,
                chunk_ns: 50,
                ..Copies::default()
            }),
            ..Contention::default()
        };
        let machine = Object::of_sets((0..4).collect(), Vec::new());
        let seconds = |core_mbs| {
            let contention = contention(core_mbs);
            simulated(&machine, &[0, 1], &contention, Operation::Bcast, 1 << 20).unwrap()
        };
        let ratio = seconds(1_000) / seconds(2_000);
        assert!((1.8..2.05).contains(&ratio), "{ratio}");
    }

    #[test]
    fn files_have_names_of_their_own() {
        let named = |path: &str, name| with_name(Path::new(path), name);
        assert_eq!(
            named("a/many.csv", "contention"),
            Path::new("a/many-contention.csv")
        );
        assert_eq!(named("many", "4-ranks"), Path::new("many-4-ranks"));
    }
}
