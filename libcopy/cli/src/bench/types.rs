// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy bench types`: packing, unpacking and copying the layouts of applications, beside MPI
//! libraries and loops written by hand.
//!
//! The others are programs that sleep in `read` until it is their turn (`tests/peers/type_peer.h`
//! says what they are told). All of them, this process included, run on the same core, and share the
//! memory that they measure with. What counts is the lowest of the rounds' medians: whatever else
//! runs on a machine makes rounds slower, never faster.

use super::buffer::Shared;
use super::layouts::{self, Case, Tier};
use super::machine::Machine;
use super::output::Output;
use super::peer_process::PeerProcess;
use super::plot;
use super::ratio_plot;
use super::report::{Row, digits, first_seen, plain_table, right_aligned};
use super::sample::{Spread, geometric_mean};
use super::sizes;
use crate::cli::progress;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use libcopy::datatype::{Datatype, Layout};
use libcopy::topology;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// What is done with a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Op {
    Pack,
    Unpack,
    Copy,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Pack => "pack",
            Op::Unpack => "unpack",
            Op::Copy => "copy",
        }
    }
}

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

    /// Also let a peer run `memcpy`: how far its ratio with ours is from 1 says how much of the other
    /// ratios is noise
    #[arg(long)]
    pub control: bool,

    /// Only print the names of the layouts and their types, one in a line
    #[arg(long)]
    pub list: bool,

    /// The parameter sets of the paper on FALCON-X instead
    #[arg(long)]
    pub paper: bool,

    #[command(flatten)]
    pub output: Output,
}

/// A result, and of which layout.
#[derive(Clone, Debug, Serialize)]
struct Timed {
    layout: String,
    #[serde(flatten)]
    row: Row,
}

/// Everything one run found out.
#[derive(Serialize)]
struct Found {
    title: String,
    machine: Machine,
    notes: Vec<String>,
    rows: Vec<Timed>,
}

/// First line of the CSV file: the common one, and the layout.
const HEADER: &str = "op,bytes,ranks,variant,median_us,p10_us,p90_us,verified,layout";

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
    let directory = tempfile::Builder::new()
        .prefix("libcopy-bench.")
        .tempdir()
        .context("cannot create a directory for sockets (see TMPDIR)")?;
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
    let shell = ["sh", "-c", &format!("exec {command} \"$@\""), name].map(str::to_owned);
    let mut contestant = PeerProcess::start(name, &shell, 1, directory)?;
    if let Err(what) = contestant.tell(&format!("pin {core}"))? {
        bail!("{name} cannot be tied to core {core}: {what}");
    }
    Ok(contestant)
}

/// The layouts that the command line asks for, before any choice among them.
fn cases(args: &TypesArgs) -> Vec<Case> {
    if args.paper {
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

/// This process as a contestant: buffers, and the layouts of the current case.
struct Own {
    layout: Layout,
    /// What `copy` copies to.
    target_layout: Layout,
    /// What the layout describes, the packed bytes, and where `copy` copies to.
    memory: Shared,
    size: usize,
}

/// Variants that this process runs itself.
const LIBCOPY: &str = "libcopy";
const BOUNCE: &str = "libcopy-bounce";
const MEMCPY: &str = "memcpy";
const CONTROL: &str = "memcpy-control";

impl Own {
    fn call(&mut self, op: Op, variant: &str) -> Result<()> {
        let [user, packed, target] = self.memory.parts();
        match (op, variant) {
            (Op::Pack, MEMCPY) => packed.copy_from_slice(&target[..self.size]),
            (_, MEMCPY) => target[..self.size].copy_from_slice(packed),
            (Op::Pack, _) => self.layout.pack(user, 0, packed)?,
            (Op::Unpack, _) => self.layout.unpack(packed, user, 0)?,
            (Op::Copy, BOUNCE) => {
                self.layout.pack(user, 0, packed)?;
                self.target_layout.unpack(packed, target, 0)?;
            }
            (Op::Copy, _) => self.layout.copy(user, 0, &self.target_layout, target, 0)?,
        }
        Ok(())
    }

    /// What `hash` of `type_peer.h` answers, by `variant`; the reference goes piece by piece.
    fn look(&mut self, op: Op, variant: Option<&str>, round: u64) -> Result<u64> {
        let [user, packed, target] = self.memory.parts();
        match op {
            Op::Pack => {
                fill(user, round);
                packed.fill(0x5a);
            }
            Op::Unpack => {
                user.fill(0x5a);
                fill(packed, round);
            }
            Op::Copy => {
                target.fill(0x5a);
                fill(user, round);
            }
        }
        if let Some(variant) = variant {
            self.call(op, variant)?;
        } else {
            self.by_segments(op);
        }
        let [user, packed, target] = self.memory.parts();
        Ok(match op {
            Op::Pack => hash(packed),
            Op::Unpack => hash(user),
            Op::Copy => hash(target),
        })
    }

    fn by_segments(&mut self, op: Op) {
        let [user, packed, target] = self.memory.parts();
        if op != Op::Unpack {
            let mut at = 0;
            for segment in self.layout.segments() {
                let (from, len) = (segment.offset as usize, segment.len as usize);
                packed[at..at + len].copy_from_slice(&user[from..from + len]);
                at += len;
            }
        }
        let (layout, to) = match op {
            Op::Pack => return,
            Op::Unpack => (&self.layout, user),
            Op::Copy => (&self.target_layout, target),
        };
        let mut at = 0;
        for segment in layout.segments() {
            let (from, len) = (segment.offset as usize, segment.len as usize);
            to[from..from + len].copy_from_slice(&packed[at..at + len]);
            at += len;
        }
    }

    /// Microseconds of each of `calls` batches of `batch` calls, per call.
    fn time(
        &mut self,
        op: Op,
        variant: &str,
        batch: usize,
        warm: usize,
        calls: usize,
    ) -> Result<Vec<f64>> {
        let [user, packed, target] = self.memory.parts();
        let (layout, to) = (&self.layout, &self.target_layout);
        let bytes = packed.len();
        // One loop for each, as the peers have: what is called is not decided anew for each call.
        match (op, variant) {
            (Op::Pack, MEMCPY) => sample(batch, warm, calls, || {
                packed.copy_from_slice(&target[..bytes]);
                Ok(())
            }),
            (_, MEMCPY) => sample(batch, warm, calls, || {
                target[..bytes].copy_from_slice(packed);
                Ok(())
            }),
            (Op::Pack, _) => sample(batch, warm, calls, || layout.pack(user, 0, packed)),
            (Op::Unpack, _) => sample(batch, warm, calls, || layout.unpack(packed, user, 0)),
            (Op::Copy, BOUNCE) => sample(batch, warm, calls, || {
                layout.pack(user, 0, packed)?;
                to.unpack(packed, target, 0)
            }),
            (Op::Copy, _) => sample(batch, warm, calls, || layout.copy(user, 0, to, target, 0)),
        }
    }
}

fn sample(
    batch: usize,
    warm: usize,
    calls: usize,
    mut call: impl FnMut() -> libcopy::datatype::Result<()>,
) -> Result<Vec<f64>> {
    for _ in 0..warm * batch {
        call()?;
    }
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let start = Instant::now();
        for _ in 0..batch {
            call()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / batch as f64);
    }
    Ok(times)
}

fn mix(mut x: u64) -> u64 {
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// The pattern of `type_peer.h`.
fn fill(to: &mut [u8], round: u64) {
    for (i, chunk) in to.chunks_mut(8).enumerate() {
        let word = mix((8 * i as u64 + 8)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(round.wrapping_mul(0x94d0_49bb_1331_11eb)));
        chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
    }
}

/// The hash of `type_peer.h`.
fn hash(from: &[u8]) -> u64 {
    from.chunks(8)
        .fold(mix(from.len() as u64 + 1), |sum, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            mix((sum ^ u64::from_ne_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        })
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
    let mut notes = vec![format!("libcopy {}", env!("CARGO_PKG_VERSION"))];
    notes.extend(peers.iter().map(|(_, peer)| peer.description.clone()));
    let mut cells = Vec::new();
    let cases = cases(args);
    for case in &cases {
        let datatype: Datatype = case.expression.parse()?;
        if wanted(args, case, datatype.size() as usize) {
            cells.extend(args.ops.iter().map(|op| (case, *op)));
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
            own = Some((case, prepare(case, old, peers, &mut refused)?));
        }
        let Some((_, own)) = &mut own else {
            bail!("no buffers");
        };
        let mut entries = entries(args, op, peers, &refused, case);
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
    Ok(Found {
        title: "libcopy datatypes".to_owned(),
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
    old: Option<Own>,
    peers: &mut [(String, PeerProcess)],
    refused: &mut Vec<String>,
) -> Result<Own> {
    let datatype: Datatype = case.expression.parse()?;
    let layout = Layout::new(&datatype, 1)?;
    let element: Datatype = case.element.parse()?;
    let target = target_of(case, layout.size() / element.size());
    let target_type: Datatype = target.parse()?;
    let target_layout = Layout::new(&target_type, 1)?;
    ensure!(
        layout.bounds().start >= 0,
        "{} starts before its origin",
        case.layout
    );
    let span = layout.bounds().end.max(target_layout.bounds().end) as usize;
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
    Ok(Own {
        layout,
        target_layout,
        memory,
        size,
    })
}

fn entries(
    args: &TypesArgs,
    op: Op,
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
    let mut entries = vec![entry(LIBCOPY, None)];
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

fn write(found: &Found, output: &Output) -> Result<()> {
    if output.json {
        println!("{}", serde_json::to_string_pretty(found)?);
    } else {
        print!("{}", table(found));
    }
    if let Some(path) = &output.csv {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)
                .with_context(|| format!("cannot create {}", parent.display()))?;
        }
        std::fs::write(path, csv(found))
            .with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("CSV:  {}", path.display());
    }
    if let Some(path) = &output.plot {
        let drawing = draw(found);
        let (png, svg) = plot::write_drawing(&drawing, path)?;
        eprintln!("plot: {} and {}", png.display(), svg.display());
    }
    ensure!(
        found.rows.iter().all(|r| r.row.verified),
        "some bytes were wrong; the table says which"
    );
    Ok(())
}

fn csv(found: &Found) -> String {
    let mut text = format!("{HEADER}\n");
    for Timed { layout, row: r } in &found.rows {
        let _ = writeln!(
            text,
            "{},{},{},{},{:.4},{:.4},{:.4},{},{layout}",
            r.op,
            r.bytes,
            r.ranks,
            r.variant,
            r.time.median,
            r.time.p10,
            r.time.p90,
            if r.verified { "yes" } else { "no" }
        );
    }
    text
}

/// The results of one layout in one size, by one operation.
struct Line<'a> {
    layout: &'a str,
    bytes: usize,
    rows: Vec<&'a Row>,
}

impl Line<'_> {
    fn median(&self, variant: &str) -> Option<f64> {
        let row = self.rows.iter().find(|r| r.variant == variant)?;
        Some(row.time.median)
    }

    /// How many times as fast libcopy is as the fastest of `others`.
    fn ratio(&self, others: &[&str]) -> Option<f64> {
        let best = others
            .iter()
            .filter_map(|o| self.median(o))
            .reduce(f64::min)?;
        Some(best / self.median(LIBCOPY)?)
    }
}

fn lines<'a>(found: &'a Found, op: &str) -> Vec<Line<'a>> {
    let mut lines: Vec<Line> = Vec::new();
    for Timed { layout, row } in found.rows.iter().filter(|r| r.row.op == op) {
        match lines.last_mut() {
            Some(line) if line.layout == layout && line.bytes == row.bytes => line.rows.push(row),
            _ => lines.push(Line {
                layout,
                bytes: row.bytes,
                rows: vec![row],
            }),
        }
    }
    lines
}

/// What libcopy is compared with: a title, and the variants of which the fastest counts.
fn rivals<'a>(variants: &[&'a str]) -> Vec<(String, Vec<&'a str>)> {
    let mpis: Vec<&str> = variants
        .iter()
        .copied()
        .filter(|v| ![LIBCOPY, BOUNCE, MEMCPY, CONTROL, "loop"].contains(v))
        .collect();
    let mut rivals = Vec::new();
    if mpis.len() > 1 {
        rivals.push(("vs\nMPI".to_owned(), mpis.clone()));
    }
    for other in variants.iter().filter(|v| **v != LIBCOPY) {
        let short = other.strip_prefix("libcopy-").unwrap_or(other);
        rivals.push((format!("vs\n{short}"), vec![*other]));
    }
    rivals
}

fn table(found: &Found) -> String {
    let mut text = format!("{}\n{}\n", found.title, found.machine.line());
    for note in &found.notes {
        let _ = writeln!(text, "{note}");
    }
    for op in first_seen(found.rows.iter().map(|r| r.row.op.as_str())) {
        let lines = lines(found, op);
        let variants = first_seen(
            lines
                .iter()
                .flat_map(|l| l.rows.iter().map(|r| r.variant.as_str())),
        );
        let rivals = rivals(&variants);
        let mut table = plain_table();
        let mut header = vec!["layout".to_owned(), "size".to_owned()];
        header.extend(variants.iter().map(|v| (*v).to_owned()));
        header.extend(rivals.iter().map(|(title, _)| title.clone()));
        table.set_header(header);
        for line in &lines {
            let mut cells = vec![line.layout.to_owned(), sizes::short(line.bytes)];
            cells.extend(variants.iter().map(|v| {
                let row = line.rows.iter().find(|r| r.variant == *v);
                row.map_or(String::new(), |r| {
                    let wrong = if r.verified { "" } else { " WRONG" };
                    format!("{}{wrong}", digits(r.time.median))
                })
            }));
            cells.extend(rivals.iter().map(|(_, others)| {
                line.ratio(others)
                    .map_or(String::new(), |ratio| format!("{ratio:.2}x"))
            }));
            table.add_row(cells);
        }
        let mut means = vec!["geometric mean".to_owned(), String::new()];
        means.extend(variants.iter().map(|_| String::new()));
        let mut lowest = means.clone();
        lowest[0] = "lowest".to_owned();
        for (_, others) in &rivals {
            let ratios: Vec<f64> = lines.iter().filter_map(|l| l.ratio(others)).collect();
            let cell = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.2}x"));
            means.push(cell(geometric_mean(&ratios)));
            lowest.push(cell(ratios.iter().copied().reduce(f64::min)));
        }
        table.add_row(means);
        table.add_row(lowest);
        right_aligned(&mut table, 1);
        let _ = writeln!(text, "\n{op} · microseconds, median\n{table}");
    }
    let wrong: Vec<String> = found
        .rows
        .iter()
        .filter(|r| !r.row.verified)
        .map(|r| format!("{} of {} by {}", r.row.op, r.layout, r.row.variant))
        .collect();
    if wrong.is_empty() {
        text.push_str("\nEvery byte was verified in a separate pass, gaps included.\n");
    } else {
        let _ = writeln!(text, "\nWRONG BYTES: {}", wrong.join(", "));
    }
    text
}

/// A figure: per operation a panel, per layout a row, the speed-up over each peer as a dot.
fn draw(found: &Found) -> String {
    let variants = first_seen(found.rows.iter().map(|r| r.row.variant.as_str()));
    let others: Vec<&str> = variants.into_iter().filter(|v| *v != LIBCOPY).collect();
    let ops = first_seen(found.rows.iter().map(|r| r.row.op.as_str()));
    let panels = ops.iter().map(|op| {
        let rows = lines(found, op).into_iter().map(|line| ratio_plot::Row {
            label: format!("{} {}", line.layout, sizes::short(line.bytes)),
            ratios: others.iter().map(|o| line.ratio(&[o])).collect(),
        });
        ((*op).to_owned(), rows.collect())
    });
    ratio_plot::draw(&ratio_plot::Figure {
        title: format!("{}: times as fast as", found.title),
        machine: found.machine.line(),
        notes: found.notes.join(" · "),
        series: others.iter().map(|o| (*o).to_owned()).collect(),
        panels: panels.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Found {
        let row = |variant: &str, median: f64, verified| Timed {
            layout: "FFT2D".into(),
            row: Row {
                op: "pack".into(),
                bytes: 1 << 20,
                ranks: 1,
                variant: variant.into(),
                time: Spread {
                    median,
                    p10: median,
                    p90: median,
                },
                verified,
            },
        };
        Found {
            title: "t".into(),
            machine: Machine::here(),
            notes: vec!["a & b".into()],
            rows: vec![
                row("libcopy", 10.0, true),
                row("openmpi", 40.0, true),
                row("mpich", 30.0, true),
                row("loop", 11.0, true),
                row("memcpy", 8.0, true),
            ],
        }
    }

    #[test]
    fn the_csv_has_the_common_columns_and_the_layout() {
        let csv = csv(&found());
        assert!(csv.starts_with(
            "op,bytes,ranks,variant,median_us,p10_us,p90_us,verified,layout\n\
             pack,1048576,1,libcopy,10.0000,10.0000,10.0000,yes,FFT2D\n"
        ));
    }

    #[test]
    fn ratios_are_with_the_faster_mpi() {
        let table = table(&found());
        for part in [
            "3.00x",
            "4.00x",
            "1.10x",
            "0.80x",
            "Every byte was verified",
        ] {
            assert!(table.contains(part), "{part}: {table}");
        }
        assert!(draw(&found()).contains("a &amp; b"));
    }

    #[test]
    fn wrong_bytes_cannot_be_overlooked() {
        let mut found = found();
        found.rows[3].row.verified = false;
        assert!(table(&found).contains("WRONG BYTES: pack of FFT2D by loop"));
        assert!(csv(&found).contains("loop,11.0000,11.0000,11.0000,no,FFT2D"));
    }
}
