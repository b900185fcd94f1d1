// SPDX-License-Identifier: MIT OR Apache-2.0

//! How long plans take, roughly: what each stage takes of the busiest part of the machine that it
//! uses, along the longest path of stages that wait for each other. `libcopy-model` simulates them.
//!
//! A rank asks for prices of some fifty ways when a call comes for the first time. So ranks that
//! are alike are priced once, what does not depend on the chunk is computed once for all of them,
//! and of segments that repeat only some are priced.

use std::ops::Range;

use super::alike::{Alike, mixed};
use super::costs::{Machine, Resource};
use super::stage::{Piece, Plan};

/// Seconds until the last rank returns. `bytes` is the length of a rank's buffer, `chunk` that of
/// what a rank moves before it tells the others. Infinite if ranks wait for each other in a circle.
pub fn price(plans: &[Plan], machine: &Machine, bytes: usize, chunk: usize) -> f64 {
    Estimate::new(plans, &Alike::none(plans.len()), machine, bytes).seconds(chunk)
}

/// What plans take, but for the chunk.
pub(super) struct Estimate {
    /// Stages of each class's ranks.
    classes: Vec<Range<usize>>,
    stages: Vec<StageCosts>,
    /// When stages may begin.
    after: Vec<Awaited>,
    pieces: Vec<PieceCosts>,
    sources: Vec<Awaited>,
    /// What a chunk takes of each source.
    chunk: f64,
    repeated: Repeated,
    /// What follows when all have ended.
    behind: f64,
}

/// Stages that follow the priced ones, and take as long as some of these.
#[derive(Debug, Default)]
pub(super) struct Repeated {
    /// How often they are repeated.
    pub times: usize,
    /// For each class, the last stage before those that are repeated, and the last one of these.
    pub stages: Vec<[usize; 2]>,
}

struct StageCosts {
    after: Range<usize>,
    pieces: Range<usize>,
    /// What it takes to see all that it waits for.
    looks: f64,
}

struct PieceCosts {
    bytes: usize,
    /// Bytes of the stage with it.
    so_far: usize,
    /// What it takes, if nobody is waited for.
    duration: f64,
    /// What a byte takes if nobody else moves anything.
    alone: f64,
    /// How many sources it has. Those that are seen at the same time are in `sources` once.
    from: usize,
    sources: Range<usize>,
}

/// How far a rank of a class must be, and how long it takes to see it. Without a class: that it
/// has begun.
#[derive(Clone, Copy, PartialEq)]
struct Awaited {
    class: Option<usize>,
    stage: usize,
    bytes: usize,
    in_order: bool,
    latency: f64,
}

/// What has been computed.
struct Done {
    /// For each class, its current stage, and whether that has begun.
    stage: Vec<(usize, bool)>,
    /// Pieces of it that are done.
    piece: Vec<usize>,
    now: Vec<f64>,
    /// When each stage ends.
    ended: Vec<f64>,
    /// For each piece when it starts, when its first chunk is done, before others who use the same
    /// parts of the machine have begun, and when it ends.
    times: Vec<[f64; 3]>,
}

impl Estimate {
    /// What the plans of the lowest rank of each class take.
    pub fn new(plans: &[Plan], alike: &Alike, machine: &Machine, bytes: usize) -> Estimate {
        let followers = Followers::new(plans, alike);
        let mut loads = Loads::new(plans, alike, machine);
        let mut this = Estimate {
            classes: Vec::new(),
            stages: Vec::new(),
            after: Vec::new(),
            pieces: Vec::new(),
            sources: Vec::new(),
            chunk: machine.costs.chunk,
            repeated: Repeated::default(),
            behind: 0.0,
        };
        // Which resources each stage uses.
        let mut used: Vec<usize> = Vec::new();
        let mut uses: Vec<(f64, Range<usize>)> = Vec::new();
        for (class, (plan, rank)) in plans.iter().zip(alike.representatives()).enumerate() {
            let latency = |writer: usize, stage: Option<usize>| {
                if writer == rank {
                    return 0.0;
                }
                let followers = followers.of(alike.of(writer), stage);
                machine.latency(writer, rank) + followers * machine.costs.line
            };
            let first = this.stages.len();
            for (number, stage) in plan.stages.iter().enumerate() {
                let first_after = this.after.len();
                this.after.extend(stage.after.iter().map(|after| Awaited {
                    class: Some(alike.of(after.rank)),
                    stage: after.progress.stage,
                    bytes: after.progress.bytes,
                    in_order: true,
                    latency: latency(after.rank, Some(after.progress.stage)),
                }));
                let first_piece = this.pieces.len();
                let first_used = used.len();
                let mut own = 0.0;
                let mut so_far = 0;
                for piece in &stage.pieces {
                    so_far += piece.bytes;
                    own += (piece.from.len() * piece.bytes) as f64;
                    let alone = loads.add(class, (rank, number), piece, bytes, &mut used);
                    let first_source = this.sources.len();
                    for source in &piece.from {
                        let seen = match source.after {
                            Some(after) => Awaited {
                                class: Some(alike.of(after.rank)),
                                stage: after.progress.stage,
                                bytes: after.progress.bytes,
                                in_order: source.in_order,
                                latency: latency(after.rank, Some(after.progress.stage)),
                            },
                            None => Awaited {
                                class: None,
                                stage: 0,
                                bytes: 0,
                                in_order: true,
                                latency: latency(source.span.rank, None),
                            },
                        };
                        if !this.sources[first_source..].ends_with(&[seen]) {
                            this.sources.push(seen);
                        }
                    }
                    this.pieces.push(PieceCosts {
                        bytes: piece.bytes,
                        so_far,
                        duration: 0.0,
                        alone,
                        from: piece.from.len(),
                        sources: first_source..this.sources.len(),
                    });
                }
                this.stages.push(StageCosts {
                    after: first_after..this.after.len(),
                    pieces: first_piece..this.pieces.len(),
                    looks: stage.after.len() as f64 * machine.costs.line,
                });
                uses.push((own / machine.costs.core, first_used..used.len()));
            }
            this.classes.push(first..this.stages.len());
        }
        for (stage, (own, resources)) in this.stages.iter().zip(uses) {
            let times = used[resources]
                .iter()
                .map(|resource| loads.seconds(*resource));
            let longest = times.fold(own, f64::max);
            let pieces = &mut this.pieces[stage.pieces.clone()];
            let whole = pieces.last().map_or(0, |piece| piece.so_far);
            for piece in pieces {
                piece.duration = longest * piece.bytes as f64 / whole as f64;
            }
        }
        this
    }

    /// With stages that follow the priced ones.
    pub fn repeated(mut self, repeated: Repeated) -> Estimate {
        self.repeated = repeated;
        self
    }

    /// With something that takes some seconds when all have ended.
    pub fn followed_by(mut self, seconds: f64) -> Estimate {
        self.behind = seconds;
        self
    }

    /// Seconds until the last rank returns, if ranks move chunks of this length before they tell
    /// the others. Infinite if a rank waits for ever.
    pub fn seconds(&self, chunk: usize) -> f64 {
        let classes = self.classes.len();
        let mut done = Done {
            stage: vec![(0, false); classes],
            piece: vec![0; classes],
            now: vec![0.0; classes],
            ended: vec![0.0; self.stages.len()],
            times: vec![[0.0; 3]; self.pieces.len()],
        };
        loop {
            let mut moved = false;
            for class in 0..classes {
                while self.advance(&mut done, class, chunk) {
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        let mut ranges = self.classes.iter().zip(&done.stage);
        if ranges.any(|(stages, (stage, _))| *stage < stages.len()) {
            return f64::INFINITY;
        }
        let last = done.now.iter().copied().fold(0.0, f64::max);
        let mut period = [0.0; 2];
        for (stages, pair) in self.classes.iter().zip(&self.repeated.stages) {
            for (latest, stage) in period.iter_mut().zip(pair) {
                *latest = f64::max(*latest, done.ended[stages.start + stage]);
            }
        }
        last + self.repeated.times as f64 * (period[1] - period[0]) + self.behind
    }

    /// When a class has come so far; None if that is not known yet.
    fn at(&self, done: &Done, awaited: &Awaited, bytes: usize, chunk: usize) -> Option<f64> {
        let Some(class) = awaited.class else {
            return Some(0.0);
        };
        let stages = &self.classes[class];
        let (current, has_begun) = done.stage[class];
        let number = awaited.stage;
        if bytes == 0 {
            let Some(before) = number.checked_sub(1) else {
                return Some(0.0);
            };
            return (before < current).then(|| done.ended[stages.start + before]);
        }
        if number > current || number >= stages.len() {
            return None;
        }
        let mut pieces = self.stages[stages.start + number].pieces.clone();
        // Of ranks that are alike one may have a granule more than another.
        let whole = self.pieces[pieces.clone()].last();
        let Some(bytes) = whole.map(|piece| piece.so_far.min(bytes)) else {
            return (number < current).then(|| done.ended[stages.start + number]);
        };
        if number == current {
            let known = if has_begun { done.piece[class] } else { 0 };
            pieces.end = pieces.start + known;
        }
        let known = &self.pieces[pieces.clone()];
        let index = known.partition_point(|piece| piece.so_far < bytes);
        let piece = known.get(index)?;
        let so_far = bytes - (piece.so_far - piece.bytes);
        let [start, first, end] = done.times[pieces.start + index];
        if so_far <= chunk && chunk < piece.bytes {
            return Some(first);
        }
        Some(start + (end - start) * (so_far as f64 / piece.bytes as f64))
    }

    /// Computes the time of a class's next piece, if those that it waits for are known.
    fn advance(&self, done: &mut Done, class: usize, longest_chunk: usize) -> bool {
        let (number, has_begun) = done.stage[class];
        let stages = &self.classes[class];
        let Some(stage) = self.stages[stages.clone()].get(number) else {
            return false;
        };
        if !has_begun {
            let mut start = done.now[class];
            for after in &self.after[stage.after.clone()] {
                let Some(at) = self.at(done, after, after.bytes, longest_chunk) else {
                    return false;
                };
                start = start.max(at + after.latency);
            }
            // It gets one line after the other.
            done.now[class] = start + stage.looks;
            done.stage[class].1 = true;
            done.piece[class] = 0;
        }
        let start = done.now[class];
        let index = stage.pieces.start + done.piece[class];
        if index == stage.pieces.end {
            done.ended[stages.start + number] = start;
            done.stage[class] = (number + 1, false);
            return true;
        }
        let piece = &self.pieces[index];
        let chunk = longest_chunk.min(piece.bytes);
        let alone = piece.alone * chunk as f64;
        let mut first_seen = start;
        let mut last_seen: f64 = 0.0;
        for source in &self.sources[piece.sources.clone()] {
            let Some(last) = self.at(done, source, source.bytes, longest_chunk) else {
                return false;
            };
            let last = last + source.latency;
            let mut first = last;
            if source.in_order && source.class.is_some() {
                let bytes = source.bytes.saturating_sub(piece.bytes - chunk);
                let Some(at) = self.at(done, source, bytes, longest_chunk) else {
                    return false;
                };
                first = at + source.latency;
            }
            first_seen = first_seen.max(first);
            last_seen = last_seen.max(last);
        }
        let chunks = piece.bytes.div_ceil(chunk.max(1)) as f64;
        let of_chunk = piece.from as f64 * self.chunk;
        // The last chunk follows when most others are done.
        let end = (first_seen + piece.duration).max(last_seen + alone) + chunks * of_chunk;
        done.times[index] = [first_seen, (first_seen + alone + of_chunk).min(end), end];
        done.now[class] = end;
        done.piece[class] += 1;
        true
    }
}

/// How many ranks follow a stage of a rank, or look whether it has begun.
struct Followers {
    /// Stages of a rank at most, and one for those that look whether it has begun.
    stages: usize,
    /// By class and stage.
    of: Vec<f64>,
}

impl Followers {
    fn new(plans: &[Plan], alike: &Alike) -> Followers {
        let longest = plans.iter().map(|plan| plan.stages.len());
        let stages = longest.max().unwrap_or(0) + 1;
        let mut of = vec![0.0; alike.classes() * stages];
        // The class that followed a stage last, so that each is counted once.
        let mut last = vec![usize::MAX; alike.ranks() * stages];
        let mut count = |class: usize, rank: usize, (other, stage): (usize, usize)| {
            let last = &mut last[other * stages + stage];
            if *last != class && other != rank {
                *last = class;
                let its = alike.of(other);
                of[its * stages + stage] += alike.count(class) as f64 / alike.count(its) as f64;
            }
        };
        for (class, (plan, rank)) in plans.iter().zip(alike.representatives()).enumerate() {
            for stage in &plan.stages {
                for source in stage.pieces.iter().flat_map(|piece| &piece.from) {
                    let followed = match source.after {
                        Some(after) => (after.rank, after.progress.stage),
                        None => (source.span.rank, stages - 1),
                    };
                    count(class, rank, followed);
                }
                for after in &stage.after {
                    count(class, rank, (after.rank, after.progress.stage));
                }
            }
        }
        Followers { stages, of }
    }

    fn of(&self, class: usize, stage: Option<usize>) -> f64 {
        let stage = stage.unwrap_or(self.stages - 1);
        let count = self.of.get(class * self.stages + stage);
        count.copied().unwrap_or(1.0).max(1.0)
    }
}

/// What the ranks take of the parts of the machine in each stage. Parts that are alike have the
/// same load.
struct Loads<'a> {
    machine: &'a Machine,
    alike: &'a Alike,
    /// For each object of the machine its number among those of its kind that hold ranks.
    numbers: [Vec<usize>; 3],
    /// How many of each kind there are: caches, nodes, packages.
    counts: [usize; 3],
    /// The class of each resource.
    classes: Vec<usize>,
    /// For each class, what one of its resources can, and how many there are.
    capacities: Vec<(f64, usize)>,
    /// By stage and class of resources.
    loads: Vec<f64>,
    /// Weights of a piece, by resource, and the resources that have one.
    weights: Vec<f64>,
    passed: Vec<usize>,
    /// By stage and class of resources, the class of ranks that used it last.
    last: Vec<usize>,
}

impl<'a> Loads<'a> {
    fn new(plans: &[Plan], alike: &'a Alike, machine: &'a Machine) -> Self {
        let mut numbers = [(); 3].map(|()| vec![usize::MAX; machine.objects()]);
        let mut colours = [(); 3].map(|()| Vec::<u64>::new());
        for rank in 0..alike.ranks() {
            for (kind, object) in machine.holding(rank).into_iter().enumerate() {
                let number = &mut numbers[kind][object];
                if *number == usize::MAX {
                    *number = colours[kind].len();
                    colours[kind].push(0);
                }
                let colour = &mut colours[kind][*number];
                *colour = colour.wrapping_add(mixed(1, alike.of(rank) as u64));
            }
        }
        let counts = [0, 1, 2].map(|kind: usize| colours[kind].len());
        // The colour of each resource, in the order of `number`.
        let [caches, nodes, packages] = &colours;
        let mut all: Vec<(u64, f64)> = Vec::new();
        let costs = &machine.costs;
        for (kind, (colours, capacity)) in [
            (caches, costs.cache),
            (caches, costs.port),
            (caches, costs.port),
            (nodes, costs.memory),
        ]
        .into_iter()
        .enumerate()
        {
            all.extend(colours.iter().map(|it| (mixed(*it, kind as u64), capacity)));
        }
        for (from, one) in packages.iter().enumerate() {
            for (to, other) in packages.iter().enumerate() {
                // A package has no link to itself.
                let kind = 4 + u64::from(from == to);
                all.push((mixed(mixed(*one, *other), kind), costs.link));
            }
        }
        if machine.limits_sources() {
            let ranks = 0..alike.ranks();
            all.extend(ranks.map(|rank| (mixed(alike.of(rank) as u64, 6), costs.source)));
        }
        let mut known: Vec<u64> = all.iter().map(|(colour, _)| *colour).collect();
        known.sort_unstable();
        known.dedup();
        let mut capacities = vec![(0.0, 0); known.len()];
        let classes = all.iter().map(|(colour, capacity)| {
            let class = known.partition_point(|it| it < colour);
            capacities[class] = (*capacity, capacities[class].1 + 1);
            class
        });
        let classes: Vec<usize> = classes.collect();
        let stages = plans.iter().map(|plan| plan.stages.len()).max();
        let loads = stages.unwrap_or(0) * known.len();
        Loads {
            machine,
            alike,
            numbers,
            counts,
            weights: vec![0.0; classes.len()],
            passed: Vec::new(),
            classes,
            capacities,
            loads: vec![0.0; loads],
            last: vec![usize::MAX; loads],
        }
    }

    /// Adds what a piece of a rank of a class takes in a stage, and the resources that the stage
    /// has not used before to `used`. Says what a byte takes alone.
    fn add(
        &mut self,
        class: usize,
        (rank, stage): (usize, usize),
        piece: &Piece,
        bytes: usize,
        used: &mut Vec<usize>,
    ) -> f64 {
        let [caches, nodes, packages] = self.counts;
        let numbers = &self.numbers;
        let number = |resource: Resource| match resource {
            // A processor works for one rank.
            Resource::Core(_) => None,
            Resource::Cache(cache) => Some(numbers[0][cache]),
            Resource::PortOut(cache) => Some(caches + numbers[0][cache]),
            Resource::PortIn(cache) => Some(2 * caches + numbers[0][cache]),
            Resource::Memory(node) => Some(3 * caches + numbers[1][node]),
            Resource::Link(from, to) => {
                let pair = numbers[2][from] * packages + numbers[2][to];
                Some(3 * caches + nodes + pair)
            }
            Resource::Source(rank) => Some(3 * caches + nodes + packages * packages + rank),
        };
        let (weights, passed) = (&mut self.weights, &mut self.passed);
        self.machine.pass(rank, piece, bytes, |resource| {
            if let Some(number) = number(resource) {
                if weights[number] == 0.0 {
                    passed.push(number);
                }
                weights[number] += 1.0;
            }
        });
        let mut alone = piece.from.len() as f64 / self.machine.costs.core;
        let ranks = self.alike.count(class) as f64;
        for number in self.passed.drain(..) {
            let weight = std::mem::take(&mut self.weights[number]);
            let of = self.classes[number];
            let (capacity, count) = self.capacities[of];
            alone = alone.max(weight / capacity);
            let load = stage * self.capacities.len() + of;
            self.loads[load] += weight * piece.bytes as f64 * ranks / count as f64;
            if self.last[load] != class {
                self.last[load] = class;
                used.push(load);
            }
        }
        alone
    }

    /// What a stage takes of a resource.
    fn seconds(&self, load: usize) -> f64 {
        let (capacity, _) = self.capacities[load % self.capacities.len()];
        self.loads[load] / capacity
    }
}
