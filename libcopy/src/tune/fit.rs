// SPDX-License-Identifier: MIT OR Apache-2.0

//! From what several readers get to the table that plans are priced by. Nothing here measures.
//!
//! A part of the machine that limits shows as a curve that bends: up to some number of readers each
//! gets what it can copy alone, then all together get what the part gives. A curve that does not
//! bend says only that the part gives at least as much.

use crate::plan::{Costs, MOST_MEMBERS};
use crate::policy::{Contention, Copies};
use crate::transport::TransportKind;

/// Which bytes readers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// All the same, in a cache: a broadcast.
    Same,
    /// Each others, in a cache: a scatter.
    Apart,
    /// Each others, more than fits into a cache.
    Memory,
    /// Each from a process of its own in another package, in caches.
    Pairs,
}

impl Pieces {
    /// All of them.
    pub const ALL: [Pieces; 4] = [Pieces::Same, Pieces::Apart, Pieces::Memory, Pieces::Pairs];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Pieces::Same => "same",
            Pieces::Apart => "apart",
            Pieces::Memory => "memory",
            Pieces::Pairs => "pairs",
        }
    }
}

/// How much readers get.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// How far they are from the source: 0 in the same cache, 1 in the node, 2 in the package, 3 in
    /// the machine.
    pub distance: usize,
    /// How they read.
    pub kind: TransportKind,
    /// What they read.
    pub pieces: Pieces,
    /// Bytes that each reads at a time.
    pub bytes: usize,
    /// Numbers of readers, from 1 on, and bytes per second that all of them get together.
    pub points: Vec<(usize, f64)>,
}

/// Everything that was measured, in seconds and bytes per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curves {
    /// Bytes of a last-level cache.
    pub cache_bytes: usize,
    /// Until what one has written is seen, by distance.
    pub latency: [Option<f64>; 4],
    /// Until the last of some readers of one line sees what was written.
    pub line: Vec<(usize, f64)>,
    /// What the shortest copy of bytes takes that are in the reader's cache.
    pub shortest: Vec<(TransportKind, f64)>,
    /// What readers get.
    pub all: Vec<Curve>,
    /// How many times what one reader gets has changed meanwhile.
    pub change: f64,
}

/// How much more each of several readers may get than each of fewer before something else than the
/// machine was measured.
const MORE: f64 = 1.3;

/// A curve has bent where all get less than this part of what they could copy alone.
const BENT: f64 = 0.85;

/// How much more readers of attached memory get than those through the kernel where the kernel is
/// the limit, and not the machine.
const OWN: f64 = 1.15;

/// Of what all get, what counts as all.
const NEARLY: f64 = 0.9;

/// A curve without the noise: what each of some readers gets never grows with their number.
#[derive(Debug)]
struct Smooth(Vec<(usize, f64)>);

impl Smooth {
    /// Averages numbers of readers where each got more than with fewer (pool adjacent violators).
    /// None if that is too much to be noise, or nothing was measured of one reader.
    fn new(curve: &Curve) -> Option<Smooth> {
        let mut least = f64::INFINITY;
        let (first, _) = *curve.points.first()?;
        // Of each pool what each reader gets, and how many points it has.
        let mut pools: Vec<(f64, usize)> = Vec::new();
        for (readers, all) in &curve.points {
            let each = all / *readers as f64;
            if !(each > 0.0 && each.is_finite()) || each > least * MORE {
                return None;
            }
            least = least.min(each);
            pools.push((each, 1));
            while let [.., (before, those), (behind, these)] = pools[..] {
                if before >= behind {
                    break;
                }
                let count = those + these;
                let mean = (before * those as f64 + behind * these as f64) / count as f64;
                pools.truncate(pools.len() - 2);
                pools.push((mean, count));
            }
        }
        let each = pools
            .iter()
            .flat_map(|(each, count)| std::iter::repeat_n(*each, *count));
        let numbers = curve.points.iter().map(|(readers, _)| *readers);
        (first == 1).then(|| Smooth(numbers.zip(each).collect()))
    }

    /// What one reader gets.
    fn alone(&self) -> f64 {
        self.0.first().map_or(0.0, |(_, each)| *each)
    }

    /// The largest number of readers.
    fn most(&self) -> usize {
        self.0.last().map_or(0, |(readers, _)| *readers)
    }

    /// What all of the largest measured number up to `readers` get.
    fn together(&self, readers: usize) -> f64 {
        let fit = self.0.iter().rev().find(|(number, _)| *number <= readers);
        fit.map_or(0.0, |(number, each)| *number as f64 * each)
    }

    /// What the part gives that has limited the readers: the median of the numbers of readers
    /// behind the bend. None if there is no bend.
    fn limit(&self) -> Option<f64> {
        let bent = self
            .0
            .iter()
            .filter(|(_, each)| *each < BENT * self.alone());
        let mut all: Vec<f64> = bent.map(|(readers, each)| *readers as f64 * each).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    }

    /// What a part gives at least, as far as that is more than is built in.
    fn limit_or_more(&self, built_in: f64) -> Option<f64> {
        let at_least = self.together(self.most());
        self.limit()
            .or_else(|| (self.most() > 1 && at_least > built_in).then_some(at_least))
    }
}

fn mbs(rate: f64) -> u64 {
    (rate / 1e6).round() as u64
}

fn ns(seconds: f64) -> u64 {
    ((seconds * 1e9).round() as u64).max(1)
}

/// The table, and what was left out of it, in words.
pub(super) fn fit(measured: &Curves) -> (Contention, Vec<String>) {
    let mut left_out = Vec::new();
    let mut curves: Vec<(&Curve, Smooth)> = Vec::new();
    for curve in &measured.all {
        match Smooth::new(curve) {
            Some(smooth) => curves.push((curve, smooth)),
            None => left_out.push(format!(
                "{} through {}, pieces {}: more readers got more each, so something else was measured; \
                 measure again while nothing else runs",
                DISTANCES[curve.distance],
                curve.kind,
                curve.pieces.name()
            )),
        }
    }
    // The nearest curve of some readers at least.
    let find = |kind, pieces, distances: &[usize], readers: usize| {
        let mut found = curves.iter().filter(|(curve, smooth)| {
            let is_asked = (curve.kind, curve.pieces) == (kind, pieces);
            is_asked && distances.contains(&curve.distance) && smooth.most() >= readers
        });
        let first = found.next()?;
        let nearest = found.fold(first, |one, other| {
            if other.0.distance < one.0.distance {
                other
            } else {
                one
            }
        });
        Some(nearest)
    };
    let attached = TransportKind::Shm;
    let limit = |pieces, distances: &[usize], built_in: f64| {
        let (_, smooth) = find(attached, pieces, distances, 2)?;
        smooth.limit_or_more(built_in)
    };
    let built_in = Costs::BUILT_IN;
    let mut all = Contention {
        cache_mbs: limit(Pieces::Apart, &[0], built_in.cache).map(mbs),
        port_mbs: limit(Pieces::Apart, &[1, 2], built_in.port).map(mbs),
        // What is read is written, too.
        memory_mbs: limit(Pieces::Memory, &[0, 1], built_in.memory / 2.0).map(|it| mbs(2.0 * it)),
        link_mbs: limit(Pieces::Pairs, &[3], built_in.link).map(mbs),
        latency_cache_ns: measured.latency[0].map(ns),
        latency_node_ns: measured.latency[1].map(ns),
        latency_package_ns: measured.latency[2].map(ns),
        latency_machine_ns: measured.latency[3].map(ns),
        ..Contention::default()
    };
    let anywhere = [0, 1, 2, 3];
    // Before each chunk its progress is seen.
    let look = measured.latency.iter().flatten().next().copied();
    for kind in TransportKind::ALL {
        let shortest = measured.shortest.iter().find(|(its, _)| *its == kind);
        let single = find(kind, Pieces::Apart, &anywhere, 1);
        let (Some((_, chunk)), Some((curve, smooth))) = (shortest, single) else {
            continue;
        };
        let whole = curve.bytes as f64 / smooth.alone();
        // What the bytes take, without what a chunk takes however short it is.
        let of_bytes = (whole - chunk).max(whole / 2.0);
        let mut copies = Copies {
            core_mbs: mbs(curve.bytes as f64 / of_bytes),
            chunk_ns: ns(*chunk + look.unwrap_or(0.0)),
            ..Copies::default()
        };
        // What bends the curve of attached memory as well is no limit of the kernel's.
        let own = |pieces| {
            let (curve, smooth) = find(kind, pieces, &anywhere, 2)?;
            let beside = find(attached, pieces, &[curve.distance], 2);
            let most = smooth.most();
            let hardware = beside.map_or(f64::INFINITY, |(_, it)| it.together(most));
            let is_own = kind != attached && hardware > OWN * smooth.together(most);
            let limit = smooth.limit()?;
            is_own.then_some((smooth, limit))
        };
        copies.source_mbs = own(Pieces::Same).map(|(it, _)| mbs(it.together(MOST_MEMBERS)));
        copies.readers = own(Pieces::Apart).and_then(|(smooth, limit)| {
            let mut numbers = smooth.0.iter();
            let enough = numbers.find(|(number, each)| *number as f64 * each >= NEARLY * limit);
            enough.map(|(number, _)| *number as u64)
        });
        *all.copies_mut(kind) = Some(copies);
    }
    if !measured.line.is_empty() {
        match slope(&measured.line) {
            Some(line) if line > 0.0 => all.line_ns = Some(ns(line)),
            _ => left_out.push(
                "readers of one line: more of them did not wait longer (or there were fewer than three), \
                 so what each takes is as built in"
                    .to_owned(),
            ),
        }
    }
    if all != Contention::default() {
        all.cache_bytes = Some(measured.cache_bytes as u64);
    }
    (all, left_out)
}

/// What distances are called.
pub(super) const DISTANCES: [&str; 4] = [
    "near (same last-level cache)",
    "far (same node, another cache)",
    "far (same package, another node)",
    "far (another package)",
];

/// The median of the slopes between all pairs of points (Theil and Sen): one wrong point does not
/// change it. None of fewer than three points.
fn slope(points: &[(usize, f64)]) -> Option<f64> {
    let mut all: Vec<f64> = Vec::new();
    for (index, (x, y)) in points.iter().enumerate() {
        for (other, its) in &points[index + 1..] {
            if other != x {
                all.push((its - y) / (*other as f64 - *x as f64));
            }
        }
    }
    all.sort_by(f64::total_cmp);
    let median = all.get(all.len() / 2).copied();
    median.filter(|_| points.len() >= 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::choose::best;
    use crate::plan::{Call, Lengths, Operation};
    use crate::topology::{Cpus, Level, Name, Object};
    use proptest::prelude::*;

    /// What a machine with known costs shows: readers that copy as fast as they can until the parts
    /// that they use give no more.
    struct Synthetic {
        costs: Costs,
        /// Readers of each class.
        readers: [usize; 4],
        /// How much less CMA copies, and what its sources give.
        cma: (f64, f64),
        /// Relative noise, from a list that is gone through again and again.
        noise: Vec<f64>,
        at: std::cell::Cell<usize>,
    }

    impl Synthetic {
        fn noisy(&self, value: f64) -> f64 {
            let at = self.at.get();
            self.at.set(at + 1);
            value * (1.0 + self.noise[at % self.noise.len()])
        }

        fn curve(&self, distance: usize, kind: TransportKind, pieces: Pieces) -> Option<Curve> {
            let bytes = 1 << 20;
            let most = self.readers[distance];
            let numbers = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
            let costs = &self.costs;
            let part = match pieces {
                Pieces::Pairs => costs.link,
                Pieces::Memory => costs.memory / 2.0,
                _ if distance == 0 => costs.cache,
                _ => costs.port,
            };
            let (core, chunk, source) = match kind {
                TransportKind::Cma => (costs.core * self.cma.0, 900e-9, self.cma.1),
                _ => (costs.core, costs.chunk, f64::INFINITY),
            };
            let alone = bytes as f64 / (chunk + bytes as f64 / core);
            let numbers = numbers.iter().filter(|number| **number <= most);
            let points: Vec<(usize, f64)> = numbers
                .map(|number| {
                    let all = (*number as f64 * alone).min(part).min(source);
                    (*number, self.noisy(all))
                })
                .collect();
            (!points.is_empty()).then_some(Curve {
                distance,
                kind,
                pieces,
                bytes,
                points,
            })
        }

        fn measured(&self) -> Curves {
            let mut all = Vec::new();
            for distance in 0..4 {
                for kind in [TransportKind::Cma, TransportKind::Shm] {
                    for pieces in [Pieces::Same, Pieces::Apart] {
                        all.extend(self.curve(distance, kind, pieces));
                    }
                }
            }
            all.extend(self.curve(0, TransportKind::Shm, Pieces::Memory));
            all.extend(self.curve(3, TransportKind::Shm, Pieces::Pairs));
            let latency = |distance: usize| {
                let is_there = self.readers[distance] > 0;
                is_there.then(|| self.noisy(self.costs.latency[distance]))
            };
            let numbers = (1..=self.readers[0]).filter(|it| it.is_power_of_two());
            let until = |number: usize| {
                let time = self.costs.latency[0] + number as f64 * self.costs.line;
                // Noise of a time is not of each line.
                time + 0.1 * self.costs.line * self.noisy(1.0)
            };
            Curves {
                cache_bytes: self.costs.cache_bytes as usize,
                latency: [0, 1, 2, 3].map(latency),
                line: numbers.map(|number| (number, until(number))).collect(),
                shortest: vec![
                    (TransportKind::Cma, self.noisy(900e-9)),
                    (TransportKind::Shm, self.noisy(self.costs.chunk)),
                ],
                all,
                change: 1.0,
            }
        }
    }

    fn near(found: f64, expected: f64, tolerance: f64) -> bool {
        (found / expected).ln().abs() <= tolerance
    }

    fn noise() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(-0.03..0.03f64, 7..40)
    }

    proptest! {
        /// Whatever a machine can, within noise of 3 % it is found again; what does not limit is
        /// not claimed to.
        #[test]
        fn what_a_machine_can_is_found(
            core in 2e9..30e9f64,
            parts in prop::array::uniform4(1.0..40.0f64),
            latency in prop::array::uniform4(20e-9..400e-9f64),
            line in 5e-9..60e-9f64,
            chunk in 40e-9..600e-9f64,
            cma in (0.3..0.9f64, 1.0..40.0f64),
            noise in noise(),
        ) {
            let [cache, port, memory, link] = parts.map(|part| part * core);
            let costs = Costs {
                core, cache, port, memory: 2.0 * memory, link, latency, line, chunk,
                ..Costs::BUILT_IN
            };
            let source = cma.1 * cma.0 * core;
            let machine = Synthetic {
                costs,
                readers: [16; 4],
                cma: (cma.0, source),
                noise,
                at: 0.into(),
            };
            let (found, _) = fit(&machine.measured());
            let found = found.checked().expect("no absurd costs");
            let shm = found.costs(TransportKind::Shm);
            prop_assert!(near(shm.core, core, 0.08), "{} {}", shm.core, core);
            let chunk = chunk + latency[0];
            prop_assert!(near(shm.chunk, chunk, 0.08), "{} {}", shm.chunk, chunk);
            for (mine, its) in shm.latency.iter().zip(latency) {
                prop_assert!(near(*mine, its, 0.08), "{mine} {its}");
            }
            prop_assert!(near(shm.line, line, 0.25), "{} {line}", shm.line);
            for (mine, its, built_in) in [
                (shm.cache, cache, Costs::BUILT_IN.cache),
                (shm.port, port, Costs::BUILT_IN.port),
                (shm.memory, 2.0 * memory, Costs::BUILT_IN.memory),
                (shm.link, link, Costs::BUILT_IN.link),
            ] {
                let whole = if its == costs.memory { its / 2.0 } else { its };
                if whole < 16.0 * core * 0.75 {
                    // Behind the bend of sixteen readers.
                    prop_assert!(near(mine, its, 0.08), "{mine} {its}");
                } else if whole > 16.0 * core {
                    // As built in, or as much as sixteen readers got.
                    let double = if its == costs.memory { 2.0 } else { 1.0 };
                    let at_least = double * 16.0 * core * 0.9;
                    prop_assert!(mine >= built_in.min(at_least), "{mine} {its}");
                }
            }
            // The kernel's limit is told from the hardware's.
            let by_cma = found.costs(TransportKind::Cma);
            let alone = cma.0 * core;
            prop_assert!(near(by_cma.core, alone, 0.08), "{} {alone}", by_cma.core);
            if source < 0.6 * cache.min(16.0 * alone) && source < 11.0 * alone {
                prop_assert!(near(by_cma.source, source, 0.1), "{} {source}", by_cma.source);
                let readers = (source / alone).ceil() as usize;
                let after = [1, 2, 3, 4, 6, 8, 12, 16].into_iter().find(|it| *it >= readers);
                prop_assert!(by_cma.at_once <= after.unwrap_or(16), "{} {readers}", by_cma.at_once);
                prop_assert!(2 * by_cma.at_once >= readers, "{} {readers}", by_cma.at_once);
            } else if source > 16.0 * alone {
                prop_assert_eq!(by_cma.source, f64::INFINITY);
                prop_assert_eq!(by_cma.at_once, usize::MAX);
            }
        }

        /// Noise of any size gives no table that a team would refuse, and no reader more because of
        /// others.
        #[test]
        fn nothing_absurd_is_stored(
            rates in prop::collection::vec((1usize..40, prop::num::f64::ANY), 0..12),
            line in prop::collection::vec((1usize..40, prop::num::f64::ANY), 0..6),
        ) {
            let mut points: Vec<(usize, f64)> = rates;
            points.sort_by_key(|it| it.0);
            points.dedup_by_key(|it| it.0);
            let curve = Curve {
                distance: 0,
                kind: TransportKind::Shm,
                pieces: Pieces::Apart,
                bytes: 65536,
                points,
            };
            if let Some(Smooth(smooth)) = Smooth::new(&curve) {
                prop_assert!(smooth.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{smooth:?}");
            }
            let (found, _) = fit(&Curves { line, all: vec![curve], ..Curves::default() });
            prop_assert!(found.line_ns.is_none_or(|ns| ns > 0));
        }
    }

    /// Two packages of two caches with eight cores each.
    fn machine() -> (Object, Vec<usize>) {
        let mut sets: Vec<(Name, Cpus)> = Vec::new();
        for (level, ranks) in [(Level::Package, 16), (Level::Cache, 8)] {
            for number in 0..32 / ranks {
                let cpus = (number * ranks..(number + 1) * ranks).collect();
                sets.push((Name { level, number }, cpus));
            }
        }
        let machine = Object::of_sets((0..32).collect(), sets);
        (
            machine,
            (0..32).map(|rank| [2, 3, 5, 6][rank / 8]).collect(),
        )
    }

    fn synthetic(port: f64, source: f64) -> Contention {
        let costs = Costs {
            core: 10e9,
            cache: 300e9,
            port,
            memory: 200e9,
            link: 200e9,
            ..Costs::BUILT_IN
        };
        let measured = Synthetic {
            costs,
            readers: [7, 0, 8, 16],
            cma: (0.9, source),
            noise: vec![0.01, -0.02, 0.015, 0.0, -0.01],
            at: 0.into(),
        };
        fit(&measured.measured()).0.checked().unwrap()
    }

    /// What was measured changes which way broadcasts go, and how sensibly.
    #[test]
    fn plans_follow_from_what_was_measured() {
        let (machine, places) = machine();
        let call = Call {
            operation: Operation::Bcast,
            root: 0,
            lengths: Lengths::Same(1 << 20),
            in_rank_order: false,
            element: 1,
        };
        let way = |contention: &Contention, kind| {
            best(&machine, &places, &call, contention.costs(kind)).unwrap()
        };
        let fan_out = |contention: &Contention, kind| {
            let tree = way(contention, kind).tree;
            tree.groups()
                .iter()
                .map(|it| it.members.len())
                .max()
                .unwrap()
        };
        // Nothing limits the kernel: groups are those of the machine, as with attached memory.
        let free = synthetic(60e9, f64::INFINITY);
        assert_eq!(free.cma.unwrap().source_mbs, None);
        let levels = way(&free, TransportKind::Cma).levels;
        assert!(levels.contains(&Level::Cache), "{levels:?}");
        // Three readers have all that the kernel gives: smaller groups, more levels.
        let contended = synthetic(60e9, 28e9);
        let cma = contended.cma.unwrap();
        assert!(
            (25_000..31_000).contains(&cma.source_mbs.unwrap()),
            "{cma:?}"
        );
        assert!(matches!(cma.readers, Some(3 | 4)), "{cma:?}");
        assert!(fan_out(&contended, TransportKind::Cma) <= 4);
        assert!(fan_out(&free, TransportKind::Cma) > 4);
        let depth = |contention| way(contention, TransportKind::Cma).tree.depth();
        assert!(depth(&contended) > depth(&free));
        // What the kernel does is nothing to attached memory.
        assert_eq!(
            way(&contended, TransportKind::Shm),
            way(&free, TransportKind::Shm)
        );
        // A scatter has as many ranks at once as help.
        let scatter = Call {
            operation: Operation::Scatter,
            ..call
        };
        let costs = contended.costs(TransportKind::Cma);
        let shape = best(&machine, &places, &scatter, costs).unwrap().shape;
        assert_eq!(shape.at_once as u64, cma.readers.unwrap());
        // The order of combination is no matter of measurement.
        let reduce = Call {
            operation: Operation::Allreduce,
            element: 8,
            ..call
        };
        assert_eq!(
            best(&machine, &places, &reduce, costs),
            best(&machine, &places, &reduce, Costs::BUILT_IN)
        );
    }

    /// A chunk that costs more is longer.
    #[test]
    fn chunks_follow_from_what_a_system_call_takes() {
        let (machine, places) = machine();
        let call = Call {
            operation: Operation::Bcast,
            root: 0,
            lengths: Lengths::Same(1 << 20),
            in_rank_order: false,
            element: 1,
        };
        let chunk = |chunk_ns| {
            let mut all = synthetic(40e9, f64::INFINITY);
            all.cma.as_mut().unwrap().chunk_ns = chunk_ns;
            let costs = all.costs(TransportKind::Cma);
            best(&machine, &places, &call, costs).unwrap().chunk
        };
        assert!(
            chunk(100) < chunk(20_000),
            "{} {}",
            chunk(100),
            chunk(20_000)
        );
    }

    #[test]
    fn what_cannot_be_is_named() {
        let curve = Curve {
            distance: 0,
            kind: TransportKind::Cma,
            pieces: Pieces::Same,
            bytes: 1 << 20,
            points: vec![(1, 1e9), (2, 8e9)],
        };
        let measured = Curves {
            line: vec![(1, 3e-7), (2, 2e-7), (4, 1e-7)],
            all: vec![curve],
            ..Curves::default()
        };
        let (found, left_out) = fit(&measured);
        assert_eq!(found, Contention::default());
        assert!(left_out[0].contains("near") && left_out[0].contains("again"));
        assert!(left_out[1].contains("one line"), "{left_out:?}");
    }

    #[test]
    fn one_reader_says_what_one_copies() {
        let curve = Curve {
            distance: 0,
            kind: TransportKind::Shm,
            pieces: Pieces::Apart,
            bytes: 1 << 20,
            points: vec![(1, 8e9)],
        };
        let measured = Curves {
            cache_bytes: 32 << 20,
            latency: [Some(70e-9), None, None, None],
            shortest: vec![(TransportKind::Shm, 100e-9)],
            all: vec![curve],
            ..Curves::default()
        };
        let (found, _) = fit(&measured);
        let expected = Contention {
            latency_cache_ns: Some(70),
            cache_bytes: Some(32 << 20),
            shm: Some(Copies {
                core_mbs: 8006,
                chunk_ns: 170,
                ..Copies::default()
            }),
            ..Contention::default()
        };
        assert_eq!(found, expected);
    }
}
