// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy bench types`: packing, unpacking and copying the layouts of applications, beside MPI
//! libraries and loops written by hand.
//!
//! The others are programs that sleep in `read` until it is their turn (`tests/peers/type_peer.h`
//! says what they are told). All of them, this process included, run on the same core, and share
//! the memory that they measure with. What counts is the lowest of the rounds' medians: whatever
//! else runs on a machine makes rounds slower, never faster.

mod results;

use results::{Found, Timed, write};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use libcopy::datatype::{Datatype, InstructionSet};
use libcopy::topology;
use libcopy_measure::layouts::{self, Case, Tier};
use libcopy_measure::machine::Machine;
use libcopy_measure::output::Output;
use libcopy_measure::peer_process::{PeerProcess, sockets};
use libcopy_measure::progress;
use libcopy_measure::report::{Row, first_seen};
use libcopy_measure::sample::Spread;
use libcopy_measure::shared::Shared;
use libcopy_measure::sizes;
use libcopy_measure::typed::{BOUNCE, CONTROL, LIBCOPY, MEMCPY, Made, Op, Own};
use std::path::Path;
use std::time::{Duration, Instant};

/// `libcopy bench types`
#[derive(Args, Clone, Debug)]
pub struct TypesArgs {
    /// A peer: its name and the command that starts it, as a shell would read it
    /// (`scripts/bench types` builds and passes these)
    #[arg(long = "peer", value_name = "NAME=COMMAND")]
    pub peers: Vec<String>,

    /// Only layouts whose name contains this, upper or lower case alike
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub layouts: Vec<String>,

    /// Only layouts with this many bytes of data, for instance `64K-16M`: the lowest and the
    /// highest of a list count
    #[arg(long, value_name = "LIST")]
    pub sizes: Option<sizes::Sizes>,

    /// What to measure
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Op::Pack, Op::Unpack, Op::Copy])]
    pub ops: Vec<Op>,

    /// Rounds in which the variants take turns
    #[arg(long, default_value_t = 21)]
    pub rounds: usize,

    /// Time to spend, about
    #[arg(long, value_name = "SECONDS")]
    pub time: Option<f64>,

    /// The published sizes only, and less time: under a minute
    #[arg(long)]
    pub quick: bool,

    /// Also let a peer run `memcpy`: how far its ratio with ours is from 1 says how much of the
    /// other ratios is noise
    #[arg(long)]
    pub control: bool,

    /// Only print the names of the layouts and their types, one in a line
    #[arg(long)]
    pub list: bool,

    /// The parameter sets of the paper on FALCON-X instead
    #[arg(long)]
    pub paper: bool,

    /// Lists of 1,000 to 1,000,000 blocks of 1 to 2, ..., 1 to 16 doubles instead, packed and
    /// unpacked, with each set of instructions; prints nanoseconds per block and the ratio to the
    /// fastest of the peers
    #[arg(long, conflicts_with = "paper")]
    pub irregular: bool,

    /// Sets of instructions that libcopy's kernels may use, of those that the processor has:
    /// avx512, avx2, portable. By default all of them with --irregular, else the processor's only
    #[arg(long, value_delimiter = ',', value_parser = instruction_set, value_name = "LIST")]
    pub cpu: Vec<InstructionSet>,

    #[command(flatten)]
    pub output: Output,
}

fn instruction_set(name: &str) -> Result<InstructionSet, String> {
    InstructionSet::parse(name).ok_or_else(|| {
        let names = InstructionSet::ALL.map(|(_, name)| name).join(", ");
        format!("not one of {names}")
    })
}

/// The sets of instructions to measure, and the variants that they are: the first is [`LIBCOPY`].
fn sets(args: &TypesArgs) -> Vec<(InstructionSet, String)> {
    let most = InstructionSet::of_processor();
    let mut sets = match (&args.cpu[..], args.irregular) {
        ([], true) => InstructionSet::ALL.map(|(set, _)| set).to_vec(),
        ([], false) => vec![most],
        (some, _) => some.to_vec(),
    };
    sets.sort_by(|a, b| b.cmp(a));
    sets.retain(|set| *set <= most);
    sets.dedup();
    if sets.is_empty() {
        sets.push(most);
    }
    let several = sets.len() > 1;
    let variant = |set: InstructionSet| {
        if several && set != most {
            format!("{LIBCOPY}-{}", set.name())
        } else {
            LIBCOPY.to_owned()
        }
    };
    sets.into_iter().map(|set| (set, variant(set))).collect()
}

/// Runs it.
pub fn run(args: &TypesArgs) -> Result<()> {
    if args.list {
        for case in &cases(args) {
            let datatype: Datatype = case.expression.parse()?;
            if wanted(args, case, datatype.size() as usize) {
                println!("{}\t{}", case.layout, case.expression);
            }
        }
        return Ok(());
    }
    args.output.check(None)?;
    let directory = sockets()?;
    let cores = topology::affinity();
    let machine = Machine::here();
    topology::pin(&cores, 0);
    let mut peers = Vec::new();
    for peer in &args.peers {
        let Some((name, command)) = peer.split_once('=') else {
            bail!("--peer {peer:?} is not NAME=COMMAND");
        };
        peers.push((
            name.to_owned(),
            start(name, command, directory.path(), cores[0])?,
        ));
    }
    let found = compare(args, machine, &mut peers)?;
    drop(peers);
    write(&found, &args.output)
}

fn start(name: &str, command: &str, directory: &Path, core: usize) -> Result<PeerProcess> {
    let mut peer = PeerProcess::start_shell(name, command, 1, directory)?;
    if let Err(what) = peer.tell(&format!("pin {core}"))? {
        bail!("{name} cannot be tied to core {core}: {what}");
    }
    Ok(peer)
}

/// The layouts that the command line asks for, before any choice among them.
fn cases(args: &TypesArgs) -> Vec<Case> {
    if args.irregular {
        layouts::irregular_cases()
    } else if args.paper {
        layouts::paper_cases()
    } else {
        layouts::cases()
    }
}

/// Whether the command line wants this case, which has `bytes` of data.
fn wanted(args: &TypesArgs, case: &Case, bytes: usize) -> bool {
    let named = args.layouts.is_empty()
        || args.layouts.iter().any(|part| {
            let name = case.layout.to_ascii_lowercase();
            name.contains(&part.to_ascii_lowercase())
        });
    let sized = match &args.sizes {
        Some(sizes) => {
            let low = sizes.0.iter().min().copied().unwrap_or(0);
            let high = sizes.0.iter().max().copied().unwrap_or(usize::MAX);
            (low..=high).contains(&bytes)
        }
        None => !args.quick || case.tier == Tier::Medium,
    };
    named && sized
}

/// A layout of as many elements for `copy` to copy to: blocks with a gap of one element, the
/// largest that come out even.
fn target_of(case: &Case, elements: u64) -> String {
    let block = [64, 32, 16, 8, 4, 3, 2]
        .into_iter()
        .find(|b| elements % b == 0)
        .unwrap_or(1);
    format!(
        "vector({},{block},{},{})",
        elements / block,
        block + 1,
        case.element
    )
}

/// One column: who does it.
struct Entry {
    variant: String,
    /// Index of the peer; none if this process does it itself.
    peer: Option<usize>,
    verified: bool,
    batch: usize,
    call: f64,
    timings: Vec<f64>,
    /// The lowest median of a round.
    best: f64,
}

fn compare(
    args: &TypesArgs,
    machine: Machine,
    peers: &mut [(String, PeerProcess)],
) -> Result<Found> {
    let sets = sets(args);
    let names: Vec<&str> = sets.iter().map(|(set, _)| set.name()).collect();
    let mut notes = vec![format!(
        "libcopy {} ({})",
        env!("CARGO_PKG_VERSION"),
        names.join(", ")
    )];
    notes.extend(peers.iter().map(|(_, peer)| peer.description.clone()));
    let mut cells = Vec::new();
    let cases = cases(args);
    for case in &cases {
        let datatype: Datatype = case.expression.parse()?;
        if wanted(args, case, datatype.size() as usize) {
            // Lists are copied as they are packed and unpacked.
            let ops = args
                .ops
                .iter()
                .filter(|op| !(args.irregular && **op == Op::Copy));
            cells.extend(ops.map(|op| (case, *op)));
        }
    }
    ensure!(
        !cells.is_empty(),
        "no layout is left: see --layouts and --sizes; there are {}",
        first_seen(cases.iter().map(|c| c.layout.as_str())).join(", ")
    );
    let seconds = args.time.unwrap_or(if args.quick { 45.0 } else { 300.0 });
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    let bar = progress::bar(cells.len() as u64);
    let rounds = args.rounds.max(1);
    let mut rows = Vec::new();
    let mut own: Option<(*const Case, Own)> = None;
    let mut refused: Vec<String> = Vec::new();
    let count = cells.len();
    for (i, (case, op)) in cells.into_iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left.as_secs_f64() / (count - i) as f64;
        let started = Instant::now();
        bar.set_message(format!("{} {}", op.name(), case.layout));
        if own.as_ref().is_none_or(|(of, _)| !std::ptr::eq(*of, case)) {
            let old = own.take().map(|(_, own)| own);
            own = Some((case, prepare(case, &sets, old, peers, &mut refused)?));
        }
        let Some((_, own)) = &mut own else {
            bail!("no buffers");
        };
        let mut entries = entries(args, op, &sets, peers, &refused, case);
        let expected = own.look(op, None, i as u64)?;
        for entry in &mut entries {
            if ![MEMCPY, CONTROL].contains(&entry.variant.as_str()) {
                let got = match entry.peer {
                    None => own.look(op, Some(&entry.variant), i as u64)?,
                    Some(p) => {
                        let answer = peers[p].1.tell(&format!("hash {} {i}", op.name()))?;
                        let answer = answer.unwrap_or_else(|what| what);
                        answer
                            .strip_prefix("hash ")
                            .and_then(|hex| u64::from_str_radix(hex, 16).ok())
                            .with_context(|| format!("{}: {answer:?}", entry.variant))?
                    }
                };
                entry.verified = got == expected;
                if !entry.verified {
                    bar.suspend(|| {
                        eprintln!(
                            "libcopy bench: {} delivers wrong bytes: {} of {}",
                            entry.variant,
                            op.name(),
                            case.expression.chars().take(200).collect::<String>()
                        );
                    });
                }
            }
            let pilot = time(own, peers, entry, op, 1, 1, 3)?;
            entry.call = pilot.iter().copied().fold(f64::MAX, f64::min).max(0.005);
            // A clock read costs tens of nanoseconds.
            entry.batch = ((20.0 / entry.call) as usize).clamp(1, 2000);
        }
        let left = (share - started.elapsed().as_secs_f64()).max(0.0);
        let slice = 1e6 * left / (rounds * entries.len()) as f64;
        for round in 0..rounds {
            if round >= 4 && started.elapsed().as_secs_f64() > 1.5 * share {
                break;
            }
            for turn in 0..entries.len() {
                // Forwards and backwards: what ran just before leaves its data in the cache, and
                // nobody should always come after the same one.
                let n = entries.len();
                let e = match round % 2 {
                    0 => (turn + round / 2) % n,
                    _ => (2 * n - 1 - turn + round / 2) % n,
                };
                let once = entries[e].call * entries[e].batch as f64;
                let fit = (slice / once) as usize;
                let warm = (fit / 10).clamp(3, 20);
                let timings = time(
                    own,
                    peers,
                    &entries[e],
                    op,
                    entries[e].batch,
                    warm,
                    fit.clamp(4, 200),
                )?;
                let middle = Spread::of(&timings).context("no timing")?.median;
                entries[e].best = entries[e].best.min(middle);
                entries[e].timings.extend(timings);
            }
        }
        bar.inc(1);
        for entry in entries {
            rows.push(Timed {
                layout: case.layout.clone(),
                row: Row {
                    op: op.name().to_owned(),
                    bytes: own.size,
                    ranks: 1,
                    variant: entry.variant,
                    time: Spread {
                        median: entry.best,
                        ..Spread::of(&entry.timings).context("no timing")?
                    },
                    verified: entry.verified,
                },
            });
        }
    }
    bar.finish_and_clear();
    notes.append(&mut refused);
    InstructionSet::of_processor().limit();
    Ok(Found {
        title: "libcopy datatypes".to_owned(),
        irregular: args.irregular,
        machine,
        notes,
        rows,
    })
}

/// What a peer cannot do with a layout is said in a note that starts like this.
fn refusal(peer: &str, case: &Case) -> String {
    format!("left out: {peer} with {}: ", case.layout)
}

/// Builds the types of a case everywhere, and buffers for them, which all share: nobody has better
/// pages than the others.
fn prepare(
    case: &Case,
    sets: &[(InstructionSet, String)],
    old: Option<Own>,
    peers: &mut [(String, PeerProcess)],
    refused: &mut Vec<String>,
) -> Result<Own> {
    let datatype: Datatype = case.expression.parse()?;
    let element: Datatype = case.element.parse()?;
    let target = target_of(case, datatype.size() / element.size());
    let target_type: Datatype = target.parse()?;
    let made = sets
        .iter()
        .map(|set| Made::new(set, &datatype, &target_type))
        .collect::<Result<Vec<Made>>>()?;
    let layout = &made[0].layout;
    ensure!(
        layout.bounds().start >= 0,
        "{} starts before its origin",
        case.layout
    );
    let span = layout.bounds().end.max(made[0].target.bounds().end) as usize;
    let size = layout.size() as usize;
    let mut memory = match old {
        Some(old) => old.memory,
        None => Shared::new()?,
    };
    memory.resize([span, size, span])?;
    for (part, byte) in memory.parts().into_iter().zip(1..) {
        part.fill(byte);
    }
    let (path, bytes) = memory.path();
    let [user_at, packed_at, target_at] = [0, 1, 2].map(|which| memory.place(which));
    for (name, peer) in peers {
        let mut built = Ok(String::new());
        for (word, text) in [
            ("loop", &case.loops),
            ("type", &case.expression),
            ("to", &target),
        ] {
            // The loops know no types, the others no loops.
            if (word == "loop") == (name == "loop") && built.is_ok() {
                built = peer.tell(&format!("{word} {text}"))?;
            }
        }
        if let Err(what) = built {
            refused.push(refusal(name, case) + &what);
            continue;
        }
        // The span is that of both layouts: the target of a copy has the same length.
        for command in [
            format!("map {bytes} {path}"),
            format!("at {user_at} {packed_at} {target_at}"),
            format!("buffers {span} 0 {size} 1"),
        ] {
            if let Err(what) = peer.tell(&command)? {
                bail!("{name}: no buffers of {span} bytes ({command}): {what}");
            }
        }
    }
    Ok(Own { made, memory, size })
}

fn entries(
    args: &TypesArgs,
    op: Op,
    sets: &[(InstructionSet, String)],
    peers: &[(String, PeerProcess)],
    refused: &[String],
    case: &Case,
) -> Vec<Entry> {
    let entry = |variant: &str, peer| Entry {
        variant: variant.to_owned(),
        peer,
        verified: true,
        batch: 1,
        call: 0.0,
        timings: Vec::new(),
        best: f64::MAX,
    };
    let own = sets.iter().map(|(_, variant)| entry(variant, None));
    let mut entries: Vec<Entry> = own.collect();
    if op == Op::Copy {
        entries.push(entry(BOUNCE, None));
    }
    for (i, (name, _)) in peers.iter().enumerate() {
        let refusal = refusal(name, case);
        let cannot = refused.iter().any(|r| r.starts_with(&refusal));
        if !(cannot || op == Op::Copy && name == "loop") {
            entries.push(entry(name, Some(i)));
        }
    }
    entries.push(entry(MEMCPY, None));
    let able = |(name, _): &&(String, PeerProcess)| {
        let refusal = refusal(name, case);
        !refused.iter().any(|r| r.starts_with(&refusal))
    };
    if args.control {
        // The last peer is that of the loops, which does not come with a library.
        let last = peers.iter().rev().find(able);
        let last = last.and_then(|(name, _)| peers.iter().position(|(other, _)| other == name));
        entries.extend(last.map(|p| entry(CONTROL, Some(p))));
    }
    entries
}

fn time(
    own: &mut Own,
    peers: &mut [(String, PeerProcess)],
    entry: &Entry,
    op: Op,
    batch: usize,
    warm: usize,
    calls: usize,
) -> Result<Vec<f64>> {
    match entry.peer {
        None => own.time(op, &entry.variant, batch, warm, calls),
        Some(p) => {
            let what = match (&entry.variant[..], op) {
                (CONTROL, Op::Pack) => "memcpy",
                (CONTROL, _) => "memcpy-back",
                _ => op.name(),
            };
            peers[p].1.time(what, 1, &batch.to_string(), warm, calls)
        }
    }
}
