// SPDX-License-Identifier: MIT OR Apache-2.0

//! Measures what several readers of one source get, near and far, through each transport: what
//! plans of many ranks are priced by.
//!
//! Ranks are processes, as users have them, each bound to a processor of its own. The source writes
//! its bytes before each time that they are read, so that they are in its cache as those of a
//! program are; all readers begin at once, and the slowest counts.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::fit::{self, DISTANCES};
pub use super::fit::{Curve, Curves, Pieces};
use super::forked::{self, END};
use super::neighbours::Neighbours;
use crate::error::{Error, Result};
use crate::memcpy;
use crate::policy::{Contention, Policy};
use crate::shm::anonymous::AnonymousSegment;
use crate::team::{Team, TeamKey};
use crate::topology::{self, Topology};
use crate::transport::remote_key::RemoteKey;
use crate::transport::{TransportKind, probe_machine};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Time for each number of readers.
    pub per_point: Duration,
    /// Bytes that a reader reads at a time, at most.
    pub bytes: usize,
    /// Readers at most.
    pub readers: usize,
    /// Bytes that count as more than fits into a cache, at most.
    pub memory: usize,
    /// Readers of each distance that share the processors that there are: to try this, not to
    /// measure.
    pub shared: Option<usize>,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort {
            per_point: Duration::from_millis(60),
            bytes: 1 << 20,
            readers: 32,
            memory: 512 << 20,
            shared: None,
        }
    }
}

/// What was measured, and what follows.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The table: empty if it was refused.
    pub contention: Contention,
    /// Which cost makes no sense, in words.
    pub refused: Option<String>,
    /// What readers got.
    pub curves: Curves,
    /// Which processors were bound to, in words.
    pub bound: Vec<String>,
    /// What was not measured and why, in words.
    pub left_out: Vec<String>,
}

/// Numbers of readers that are tried.
const NUMBERS: [usize; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];

/// Rounds that are not counted, as they touch memory for the first time.
const FIRST: usize = 2;
/// Rounds that are counted, at least and at most.
const ROUNDS: std::ops::Range<usize> = 7..400;

/// Signals from one process to another and back, and how often so many.
const SIGNALS: u64 = 1000;
const BATCHES: usize = 9;

/// Readers of a line at least, of which more wait longer.
const LOOKERS: usize = 3;

/// Signals to several readers.
const ANNOUNCEMENTS: usize = 200;

/// Bytes of a short copy, and how many there are.
const SHORTEST: usize = 64;
const SHORT_COPIES: usize = 400;

/// How much what one reader gets may change meanwhile before that is said.
const STEADY: f64 = 1.3;

/// Turns around a word before others may run: longer than any signal takes.
const SPINS: u32 = 100_000;

/// How long a word is waited for: a rank has died otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of the lines of a rank.
const LINE: usize = 128;
/// Lines of a rank: a word that it writes, when it was done, what others must know of its memory,
/// whether it goes on.
const LINES: usize = 4;

/// A set of ranks that measure together.
#[derive(Clone, Debug)]
struct Scene {
    distance: usize,
    /// Processors of the sources: one, or one for each reader.
    sources: Vec<usize>,
    readers: Vec<usize>,
    pieces: Vec<Pieces>,
    kinds: Vec<TransportKind>,
    /// Bytes that each reads at a time; those of memory are shared out.
    bytes: usize,
    /// Whether signals are measured, too.
    signals: bool,
    /// Whether signals to several are.
    lines: bool,
    per_point: Duration,
    /// Whether ranks share processors.
    shared: bool,
}

impl Scene {
    fn ranks(&self) -> usize {
        self.sources.len() + self.readers.len()
    }

    /// Numbers of readers.
    fn numbers(&self) -> Vec<usize> {
        let most = self.readers.len();
        let mut numbers: Vec<usize> = NUMBERS.iter().copied().filter(|it| *it < most).collect();
        numbers.push(most);
        numbers
    }

    /// Bytes of a source.
    fn room(&self) -> usize {
        let each = |pieces: &Pieces| match pieces {
            Pieces::Apart => self.bytes * self.readers.len(),
            _ => self.bytes,
        };
        self.pieces.iter().map(each).max().unwrap_or(0)
    }

    /// Lines that its ranks write, about.
    fn steps(&self) -> usize {
        let curves = self.kinds.len() * self.pieces.len() * self.numbers().len();
        let signals = usize::from(self.signals) * (2 + self.kinds.len());
        let lines = usize::from(self.lines) * self.numbers().len();
        curves + signals + lines
    }
}

/// Measures the processors that this process may use, in under a minute; `progress` gets a fraction
/// and what is measured. What would need more processors than there are is left out, and said.
///
/// Forks, so call it while the process has one thread.
///
/// # Errors
///
/// [`Error::System`] if processes or memory cannot be had, [`Error::Argument`] if no processor may
/// be used, and those of teams.
pub fn measure(effort: &Effort, progress: &mut dyn FnMut(f64, &str)) -> Result<Outcome> {
    let topology = Topology::current();
    let cpus = topology::affinity();
    let machine = topology::objects();
    let mut outcome = Outcome {
        contention: Contention::default(),
        refused: None,
        curves: Curves {
            cache_bytes: topology.llc,
            ..Curves::default()
        },
        bound: Vec::new(),
        left_out: Vec::new(),
    };
    let Some(mut neighbours) = Neighbours::new(&machine, &cpus) else {
        return Err(Error::argument("processors to measure on", 0u64, 2u64..));
    };
    if let Some(readers) = effort.shared {
        let any = cpus.iter().copied().cycle().skip(1).take(readers);
        neighbours.at = [(); 4].map(|()| any.clone().collect());
    }
    for at in &mut neighbours.at {
        at.truncate(effort.readers.max(1));
    }
    let scenes = scenes(&neighbours, topology, effort, &mut outcome);
    let steps: usize = scenes.iter().map(Scene::steps).sum();
    let mut done = 0;
    for scene in &scenes {
        let key = TeamKey::random()?;
        let policy = Policy {
            // What was measured before has no part in it.
            contention: None,
            ..Policy::built_in(topology)
        };
        let bytes = LINES * LINE * scene.ranks() + scene.room() * scene.sources.len();
        let made = AnonymousSegment::create(c"libcopy-tune", bytes, [0; 2]);
        let (memory, _) =
            made.map_err(|source| Error::system("making memory to measure with", source))?;
        let work = |rank: usize, out: &mut UnixStream| {
            let cpu = scene.sources.iter().chain(&scene.readers).nth(rank);
            topology::pin(cpu.map_or(&[], std::slice::from_ref), 0);
            let team = Team::join_with(&key, rank, scene.ranks(), policy.clone())?;
            let mut member = Member {
                team,
                rank,
                scene,
                memory: &memory,
            };
            member.measure(out)
        };
        let lines = forked::lines_of(scene.ranks(), &work, &mut |what| {
            done += 1;
            let fraction = (done as f64 / steps as f64).min(1.0);
            progress(fraction, &format!("{}: {what}", DISTANCES[scene.distance]));
        })?;
        for line in &lines {
            read(line, scene, &mut outcome.curves);
        }
    }
    progress(1.0, "done");
    if outcome.curves.change > STEADY {
        outcome.left_out.push(format!(
            "what one reader got changed {:.1} times while this was measured: measure again while nothing else runs",
            outcome.curves.change
        ));
    }
    let (contention, left_out) = fit::fit(&outcome.curves);
    outcome.left_out.extend(left_out);
    outcome.contention = contention;
    // What readers that share processors get is only looked at.
    if let Err(error) = contention.checked() {
        if effort.shared.is_none() {
            outcome.contention = Contention::default();
        }
        outcome.refused = Some(error.to_string());
    }
    Ok(outcome)
}

/// What can be measured here; says in words what is bound to and what cannot be.
fn scenes(
    neighbours: &Neighbours,
    topology: &Topology,
    effort: &Effort,
    outcome: &mut Outcome,
) -> Vec<Scene> {
    let usable = probe_machine().into_iter().filter(|it| it.usable);
    let kinds: Vec<TransportKind> = usable.map(|it| it.kind).collect();
    let source = neighbours.source;
    let mut scenes = Vec::new();
    let base = Scene {
        distance: 0,
        sources: vec![source],
        readers: Vec::new(),
        pieces: vec![Pieces::Same, Pieces::Apart],
        kinds,
        bytes: 0,
        signals: true,
        lines: false,
        per_point: effort.per_point,
        shared: effort.shared.is_some(),
    };
    for (distance, readers) in neighbours.at.iter().enumerate() {
        let name = DISTANCES[distance];
        if readers.is_empty() {
            outcome.left_out.push(format!(
                "{name}: left out, as there is no such processor that this process may use; built-in values stay"
            ));
            continue;
        }
        if readers.len() == 1 {
            outcome.left_out.push(format!(
                "{name}: one reader only (processor {}); what several get is left out, and built-in values stay",
                readers[0]
            ));
        }
        // All of a source's bytes stay in its cache.
        let most = topology.llc / 2 / readers.len();
        let fits = 1 << most.max(1).ilog2();
        let bytes = effort.bytes.min(fits.max(64 << 10)).max(SHORTEST);
        outcome.bound.push(format!(
            "{name}: source on processor {source}, readers on {}",
            list(readers)
        ));
        scenes.push(Scene {
            distance,
            readers: readers.clone(),
            bytes,
            lines: readers.len() >= LOOKERS && scenes.iter().all(|it: &Scene| !it.lines),
            ..base.clone()
        });
    }
    if scenes.iter().all(|it| !it.lines) {
        outcome.left_out.push(format!(
            "readers of one line: left out, as it takes {LOOKERS} at the same distance at least; the built-in value stays"
        ));
    }
    scenes.extend(memory(neighbours, topology, effort, outcome, &base));
    scenes.extend(pairs(neighbours, effort, outcome, &base));
    scenes
}

/// Readers of a node's memory.
fn memory(
    neighbours: &Neighbours,
    topology: &Topology,
    effort: &Effort,
    outcome: &mut Outcome,
    base: &Scene,
) -> Option<Scene> {
    let of_node = neighbours.at[0].iter().chain(&neighbours.at[1]);
    let readers: Vec<usize> = of_node.copied().take(effort.readers).collect();
    let mut leave_out = |why: String| {
        let text = format!("memory of a node: left out, {why}; the built-in value stays");
        outcome.left_out.push(text);
        None
    };
    if readers.len() < 2 {
        return leave_out("as it takes two readers of the same node at least".to_owned());
    }
    let bytes = (4 * topology.llc).max(16 << 20).min(effort.memory);
    if bytes < 2 * topology.llc && effort.shared.is_none() {
        return leave_out(format!(
            "as two caches of {} MiB are more than is read here",
            topology.llc >> 20
        ));
    }
    let available = available();
    if available < 4 * bytes as u64 {
        return leave_out(format!(
            "as {} MiB of memory are available and {} are wanted",
            available >> 20,
            (4 * bytes) >> 20
        ));
    }
    outcome.bound.push(format!(
        "memory of a node: source on processor {}, readers on {}",
        neighbours.source,
        list(&readers)
    ));
    Some(Scene {
        distance: 0,
        readers,
        pieces: vec![Pieces::Memory],
        kinds: vec![TransportKind::Shm],
        bytes,
        signals: false,
        lines: false,
        ..base.clone()
    })
}

/// Readers in another package, each of a source of its own.
fn pairs(
    neighbours: &Neighbours,
    effort: &Effort,
    outcome: &mut Outcome,
    base: &Scene,
) -> Option<Scene> {
    let [cache, node, package, others] = &neighbours.at;
    // One of each cache before the second of any.
    let here = package.iter().chain(node).chain(cache);
    let sources = std::iter::once(neighbours.source).chain(here.copied());
    let most = others.len().min(effort.readers).min(16);
    let sources: Vec<usize> = sources.take(most).collect();
    let readers: Vec<usize> = others.iter().copied().take(sources.len()).collect();
    if readers.len() < 2 {
        let why = "as it takes two processors in each of two packages at least";
        outcome.left_out.push(format!(
            "from package to package: left out, {why}; the built-in value stays"
        ));
        return None;
    }
    outcome.bound.push(format!(
        "from package to package: sources on {}, readers on {}",
        list(&sources),
        list(&readers)
    ));
    Some(Scene {
        distance: 3,
        sources,
        readers,
        pieces: vec![Pieces::Pairs],
        kinds: vec![TransportKind::Shm],
        bytes: effort.bytes,
        signals: false,
        lines: false,
        ..base.clone()
    })
}

/// Bytes of memory that programs can have.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.map_or(0, |kib| kib << 10)
}

fn list(cpus: &[usize]) -> String {
    let words: Vec<String> = cpus.iter().map(usize::to_string).collect();
    words.join(" ")
}

/// What a line says: "latency SECONDS", "line READERS SECONDS", "shortest KIND SECONDS", "again
/// KIND RATE", or "KIND PIECES READERS RATE".
fn read(line: &str, scene: &Scene, curves: &mut Curves) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |index: usize| words.get(index).and_then(|word| word.parse::<f64>().ok());
    let count = |index: usize| words.get(index).and_then(|word| word.parse::<usize>().ok());
    match words[..] {
        ["latency", _] => curves.latency[scene.distance] = number(1),
        ["line", ..] => {
            if let (Some(readers), Some(seconds)) = (count(1), number(2)) {
                curves.line.push((readers, seconds));
            }
        }
        ["shortest", kind, _] => {
            if let (Ok(kind), Some(seconds)) = (kind.parse(), number(2)) {
                // The nearest is measured first.
                if curves.shortest.iter().all(|(its, _)| *its != kind) {
                    curves.shortest.push((kind, seconds));
                }
            }
        }
        ["again", kind, _] => {
            let first = curves.all.iter().find(|curve| {
                let place = (curve.distance, curve.pieces) == (scene.distance, Pieces::Apart);
                place && curve.kind.name() == kind
            });
            let first = first.and_then(|curve| curve.points.first());
            if let (Some((1, before)), Some(after)) = (first, number(2)) {
                let change = (after / before).max(before / after);
                curves.change = curves.change.max(change);
            }
        }
        [kind, pieces, _, _] => {
            let pieces = Pieces::ALL.into_iter().find(|it| it.name() == pieces);
            let (Ok(kind), Some(pieces), Some(readers), Some(rate)) =
                (kind.parse(), pieces, count(2), number(3))
            else {
                return;
            };
            let same = |curve: &&mut Curve| {
                (curve.distance, curve.kind, curve.pieces) == (scene.distance, kind, pieces)
            };
            match curves.all.iter_mut().find(same) {
                Some(curve) => curve.points.push((readers, rate)),
                None => curves.all.push(Curve {
                    distance: scene.distance,
                    kind,
                    pieces,
                    bytes: scene.bytes,
                    points: vec![(readers, rate)],
                }),
            }
        }
        _ => {}
    }
}

/// A rank of a scene.
struct Member<'a> {
    team: Team,
    rank: usize,
    scene: &'a Scene,
    memory: &'a AnonymousSegment,
}

/// What a rank's lines are for.
#[derive(Clone, Copy)]
enum Line {
    Signal,
    Done,
    Key,
    Round,
}

impl Member<'_> {
    /// A word of a line of a rank.
    fn word(&self, rank: usize, line: Line, index: usize) -> &AtomicU64 {
        let at = (rank * LINES + line as usize) * LINE + 8 * index;
        // SAFETY: within the segment, aligned, and all zeros at first; every rank uses it as an
        // atomic word.
        unsafe { &*self.memory.place(at, 8).cast() }
    }

    /// The shared memory of a source.
    fn attached(&self, source: usize) -> *mut u8 {
        let (lines, room) = (LINES * LINE * self.scene.ranks(), self.scene.room());
        self.memory.place(lines + source * room, room)
    }

    fn sources(&self) -> usize {
        self.scene.sources.len()
    }

    /// Our number among the readers.
    fn reader(&self) -> Option<usize> {
        self.rank.checked_sub(self.sources())
    }

    fn measure(&mut self, out: &mut UnixStream) -> Result<()> {
        let is_first = self.rank == 0;
        let mut say = |line: String| -> Result<()> {
            if !is_first {
                return Ok(());
            }
            writeln!(out, "{line}").map_err(|source| Error::system("writing measurements", source))
        };
        let scene = self.scene;
        let numbers = scene.numbers();
        if scene.signals {
            say(format!("latency {:e}", self.latency()?))?;
        }
        if scene.lines {
            for readers in &numbers {
                say(format!("line {readers} {:e}", self.line(*readers)?))?;
            }
        }
        // Memory of our own, as users have it; what is read goes there, too.
        let mut own = vec![0u8; scene.room().max(scene.bytes)];
        for kind in &scene.kinds {
            let Some(key) = self.open(*kind, &mut own)? else {
                continue;
            };
            if scene.signals {
                let seconds = self.shortest(key, &mut own)?;
                say(format!("shortest {kind} {seconds:e}"))?;
            }
            for pieces in &scene.pieces {
                for readers in &numbers {
                    let rate = self.rate(key, *pieces, *readers, &mut own)?;
                    say(format!("{kind} {} {readers} {rate:e}", pieces.name()))?;
                }
            }
        }
        if let Some(kind) = scene.kinds.last().filter(|_| scene.signals) {
            // What one reader gets, once more.
            if let Some(key) = self.open(*kind, &mut own)? {
                let rate = self.rate(key, Pieces::Apart, 1, &mut own)?;
                say(format!("again {kind} {rate:e}"))?;
            }
        }
        self.team.barrier()?;
        say(END.to_owned())
    }

    /// Lets all ranks read what the source has through a transport: attached memory without a key.
    /// None if it cannot be opened.
    fn open(&mut self, kind: TransportKind, own: &mut [u8]) -> Result<Option<Option<RemoteKey>>> {
        if kind == TransportKind::Shm {
            return Ok(Some(None));
        }
        // Every rank knows whether it is usable.
        if !self.team.is_usable(kind) {
            return Ok(None);
        }
        if self.rank == 0 {
            let (base, len) = (own.as_mut_ptr(), own.len());
            // SAFETY: `own` lives until the last barrier of this rank, and what others read of it
            // is written between barriers only.
            let key = unsafe {
                match kind {
                    TransportKind::Kmod => self
                        .team
                        .open_region(base, len, false)
                        .map(RemoteKey::unmapped),
                    _ => self.team.open(kind, base, len, false),
                }
            };
            let key = key.filter(|key| key.kind() == kind);
            for (index, word) in RemoteKey::to_words(key).into_iter().enumerate() {
                self.word(0, Line::Key, index)
                    .store(word, Ordering::Relaxed);
            }
        }
        self.team.barrier()?;
        let words = [0, 1, 2].map(|index| self.word(0, Line::Key, index).load(Ordering::Relaxed));
        // Nobody writes another one before all have read it.
        self.team.barrier()?;
        Ok(RemoteKey::from_words(words)?.map(Some))
    }

    /// Reads some bytes of a source.
    fn pull(&self, key: Option<RemoteKey>, source: usize, at: usize, to: &mut [u8]) -> Result<()> {
        let len = to.len();
        match key {
            None => {
                let room = self.scene.room();
                if at.checked_add(len).is_none_or(|end| end > room) {
                    return Err(Error::argument("bytes to read", at + len, ..=room));
                }
                let from = self.attached(source).wrapping_add(at);
                // SAFETY: within the source's room, which it does not write between barriers.
                unsafe { memcpy::cached(to.as_mut_ptr(), from, len) };
                Ok(())
            }
            Some(key) => {
                let transport = self.team.one_sided(key.kind())?;
                // SAFETY: `to` is ours.
                unsafe { transport.pull(source, key, at as u64, to.as_mut_ptr(), len) }
            }
        }
    }

    /// Writes what a source has, so that it is in its cache and nobody else's.
    fn fill(&self, key: Option<RemoteKey>, len: usize, byte: u8, own: &mut [u8]) {
        match key {
            // SAFETY: our own room, which nobody reads between barriers.
            None => unsafe { self.attached(self.rank).write_bytes(byte, len) },
            Some(_) => own[..len].fill(byte),
        }
    }

    /// What so many readers get together, in bytes per second: the quarter that is fastest, as what
    /// others do on the machine only ever takes time.
    fn rate(
        &mut self,
        key: Option<RemoteKey>,
        pieces: Pieces,
        readers: usize,
        own: &mut [u8],
    ) -> Result<f64> {
        let sources = self.sources();
        let reader = self.reader().filter(|reader| *reader < readers);
        let bytes = match pieces {
            Pieces::Memory => self.scene.bytes / readers,
            _ => self.scene.bytes,
        };
        let whole = match pieces {
            Pieces::Same | Pieces::Pairs => bytes,
            Pieces::Apart | Pieces::Memory => bytes * readers,
        };
        let at = match pieces {
            Pieces::Same | Pieces::Pairs => 0,
            Pieces::Apart | Pieces::Memory => bytes * reader.unwrap_or(0),
        };
        let started = Instant::now();
        let mut times: Vec<f64> = Vec::new();
        for round in 0.. {
            let byte = (round % 251 + 1) as u8;
            let is_source = self.rank < sources && (sources == 1 || self.rank < readers);
            // Memory that no cache holds need not be written again.
            if is_source && (pieces != Pieces::Memory || round == 0) {
                self.fill(key, whole, byte, own);
            }
            if self.rank == 0 {
                let counted = times.len().saturating_sub(FIRST);
                let is_enough = started.elapsed() > self.scene.per_point && counted >= ROUNDS.start;
                let goes_on = !is_enough && counted < ROUNDS.end;
                self.assembled().store(0, Ordering::Relaxed);
                self.word(0, Line::Round, 0)
                    .store(u64::from(goes_on), Ordering::Relaxed);
            }
            self.team.barrier()?;
            if self.word(0, Line::Round, 0).load(Ordering::Relaxed) == 0 {
                break;
            }
            if let Some(reader) = reader {
                self.assemble(readers)?;
                let to = &mut own[..bytes];
                let begin = Instant::now();
                self.pull(key, reader % sources, at, to)?;
                let nanoseconds = begin.elapsed().as_nanos() as u64;
                let right = if pieces == Pieces::Memory { 1 } else { byte };
                if let Some(wrong) = [to.first(), to.last()]
                    .into_iter()
                    .flatten()
                    .find(|found| **found != right)
                {
                    return Err(Error::corrupt("a byte that was read", u64::from(*wrong)));
                }
                self.word(self.rank, Line::Done, 0)
                    .store(nanoseconds, Ordering::Relaxed);
            }
            self.team.barrier()?;
            let done = (sources..sources + readers)
                .map(|rank| self.word(rank, Line::Done, 0).load(Ordering::Relaxed));
            times.push(done.max().unwrap_or(0) as f64 * 1e-9);
        }
        // Nobody is told to go on with what is next before all have heard that this is over.
        self.team.barrier()?;
        let seconds = quartile(times.split_off(FIRST.min(times.len())));
        Ok((bytes * readers) as f64 / seconds.max(1e-9))
    }

    /// What a copy of one line takes.
    fn shortest(&mut self, key: Option<RemoteKey>, own: &mut [u8]) -> Result<f64> {
        let mut seconds = 0.0;
        let mut line = [0u8; SHORTEST];
        if self.rank == 0 {
            self.fill(key, SHORTEST, 1, own);
        }
        self.team.barrier()?;
        if self.reader() == Some(0) {
            let mut times = Vec::with_capacity(SHORT_COPIES);
            for _ in 0..SHORT_COPIES {
                let begin = Instant::now();
                self.pull(key, 0, 0, &mut line)?;
                std::hint::black_box(&line);
                times.push(begin.elapsed().as_secs_f64());
            }
            seconds = quartile(times);
            self.word(self.rank, Line::Done, 0)
                .store(seconds.to_bits(), Ordering::Relaxed);
        }
        self.team.barrier()?;
        if self.rank == 0 {
            let bits = self.word(self.sources(), Line::Done, 0);
            seconds = f64::from_bits(bits.load(Ordering::Relaxed));
        }
        self.team.barrier()?;
        Ok(seconds)
    }

    /// Waits until a word has a value.
    fn wait(&self, rank: usize, value: u64) -> Result<()> {
        self.spin(self.word(rank, Line::Signal, 0), value)
    }

    /// How many have assembled.
    fn assembled(&self) -> &AtomicU64 {
        self.word(0, Line::Round, 1)
    }

    /// Waits, without sleep, until this number of ranks have come here: those that a barrier has
    /// woken up one after the other would not read at the same time.
    fn assemble(&self, ranks: usize) -> Result<()> {
        self.assembled().fetch_add(1, Ordering::AcqRel);
        self.spin(self.assembled(), ranks as u64)
    }

    fn spin(&self, word: &AtomicU64, value: u64) -> Result<()> {
        let started = Instant::now();
        let spins = if self.scene.shared { 100 } else { SPINS };
        loop {
            for _ in 0..spins {
                if word.load(Ordering::Acquire) == value {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
            if started.elapsed() > PATIENCE {
                return Err(Error::Timeout {
                    what: "a signal of another process",
                    waited: PATIENCE,
                });
            }
        }
    }

    fn signal(&self, value: u64) {
        self.word(self.rank, Line::Signal, 0)
            .store(value, Ordering::Release);
    }

    /// Until the first reader sees what the source has written: half of there and back.
    fn latency(&mut self) -> Result<f64> {
        let reader = self.sources();
        let signals = if self.scene.shared { 20 } else { SIGNALS };
        let mut times = Vec::new();
        let mut value = 0;
        for _ in 0..BATCHES {
            self.team.barrier()?;
            let begin = Instant::now();
            for _ in 0..signals {
                value += 1;
                if self.rank == 0 {
                    self.signal(value);
                    self.wait(reader, value)?;
                } else if self.rank == reader {
                    self.wait(0, value)?;
                    self.signal(value);
                }
            }
            times.push(begin.elapsed().as_secs_f64() / signals as f64 / 2.0);
        }
        self.quiet()?;
        Ok(quartile(times))
    }

    /// Until the last of some readers sees what the source has written, and what a clock takes.
    fn line(&mut self, readers: usize) -> Result<f64> {
        let sources = self.sources();
        let mut times = Vec::new();
        let announcements = if self.scene.shared { 5 } else { ANNOUNCEMENTS };
        for value in 1..=announcements as u64 {
            if self.rank == 0 {
                self.assembled().store(0, Ordering::Relaxed);
            }
            self.team.barrier()?;
            if self.rank == 0 {
                // All of them look by now.
                self.spin(self.assembled(), readers as u64)?;
                let begin = clock()?;
                self.signal(value);
                let mut last = 0;
                for rank in sources..sources + readers {
                    self.wait(rank, value)?;
                    last = last.max(self.word(rank, Line::Done, 0).load(Ordering::Relaxed));
                }
                // Clocks of processors that differ are noticed as times that do not grow.
                times.push(last.saturating_sub(begin) as f64 * 1e-9);
            } else if self.reader().is_some_and(|reader| reader < readers) {
                self.assembled().fetch_add(1, Ordering::AcqRel);
                self.wait(0, value)?;
                self.word(self.rank, Line::Done, 0)
                    .store(clock()?, Ordering::Relaxed);
                self.signal(value);
            }
        }
        self.quiet()?;
        Ok(quartile(times))
    }

    /// Takes all signals back.
    fn quiet(&mut self) -> Result<()> {
        self.team.barrier()?;
        self.signal(0);
        self.team.barrier()
    }
}

/// The time of day of all processors, in nanoseconds.
fn clock() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_err(|errno| Error::system("reading the clock", errno))?;
    Ok(Duration::from(now).as_nanos() as u64)
}

/// A quarter of the times are shorter.
fn quartile(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 4).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> Scene {
        Scene {
            distance: 2,
            sources: vec![0],
            readers: vec![4, 5, 6, 7, 8],
            pieces: vec![Pieces::Same, Pieces::Apart],
            kinds: vec![TransportKind::Cma],
            bytes: 4096,
            signals: true,
            lines: true,
            per_point: Duration::ZERO,
            shared: false,
        }
    }

    #[test]
    fn lines_become_curves() {
        let mut curves = Curves::default();
        for line in [
            "latency 8.5e-8",
            "line 2 1e-7",
            "shortest cma 4e-7",
            "shortest cma 9e-7",
            "cma same 1 4e9",
            "cma same 2 7e9",
            "cma apart 1 3e9",
            "again cma 1.5e9",
            "noise",
            "cma sideways 1 3e9",
        ] {
            read(line, &scene(), &mut curves);
        }
        assert_eq!(curves.change, 2.0);
        assert_eq!(curves.latency, [None, None, Some(85e-9), None]);
        assert_eq!(curves.line, [(2, 1e-7)]);
        assert_eq!(curves.shortest, [(TransportKind::Cma, 4e-7)]);
        assert_eq!(curves.all.len(), 2);
        assert_eq!(curves.all[0].points, [(1, 4e9), (2, 7e9)]);
        assert_eq!((curves.all[0].distance, curves.all[0].bytes), (2, 4096));
    }

    #[test]
    fn all_readers_are_tried_and_have_room() {
        assert_eq!(scene().numbers(), [1, 2, 3, 4, 5]);
        assert_eq!(scene().room(), 5 * 4096);
        assert_eq!(scene().steps(), 2 * 5 + 3 + 5);
    }

    #[test]
    fn what_has_no_processors_is_left_out_and_named() {
        let neighbours = Neighbours {
            source: 3,
            at: [vec![4], vec![], vec![], vec![9, 8]],
        };
        let mut outcome = Outcome {
            contention: Contention::default(),
            refused: None,
            curves: Curves::default(),
            bound: Vec::new(),
            left_out: Vec::new(),
        };
        let topology = Topology::read();
        let scenes = scenes(&neighbours, &topology, &Effort::default(), &mut outcome);
        let distances: Vec<usize> = scenes.iter().map(|it| it.distance).collect();
        assert_eq!(distances, [0, 3, 3]);
        assert_eq!(
            (&scenes[2].sources[..], &scenes[2].readers[..]),
            (&[3, 4][..], &[9, 8][..])
        );
        let said = outcome.left_out.join("\n");
        for part in [
            "one reader only (processor 4)",
            "same node, another cache",
            "memory of a node",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert!(outcome.bound[1].contains("source on processor 3, readers on 9 8"));
    }
}
