// SPDX-License-Identifier: MIT OR Apache-2.0

//! Learns from the iterations of a loop which way its collectives should go.
//!
//! The paper Copy Engines 2023 chooses by constant thresholds of size (section 3.4), and says which
//! cases these get wrong (section 4.4): whether an engine helps depends on how long the application
//! computes until the next call and on how soon it touches the buffer. Both show in one figure that
//! a process can measure alone: the time from one call at a place in the program to the next call
//! there. The computation is part of it whichever way the bytes go, so the way with the shortest
//! interval is the best one, overlap, faults and all.
//!
//! ```text
//! iterations 1 to 9      each way three times in turn
//! later                  the way with the shortest median interval
//! now and then           another way once more, often as long as it may well be the better one, as
//!                        long as all that these looks have cost stays below 2 % of the time that
//!                        has passed, without pauses
//! the interval changes   the application does something else now: the others are looked at once
//!                        more, twice if one seems better, within the same budget
//! ```
//!
//! Machines are noisy: calls of one way differ by a third where programs share processors, and all
//! become slower and faster together. So intervals are remembered as multiples of a level that
//! follows the machine, and many of them. And the first calls of a way are slow, because they pin
//! and map memory: those that took many times as long as the shortest do not count, and whether to
//! look at a way again is decided by the best that was seen of it.
//!
//! The estimator is not that of [`comparison`](libcopy_datatype::comparison) or of
//! [`governor`](super::governor): an interval has the program's own work in it, which changes, so
//! it is kept as a multiple of the level and the change itself is detected; the other two time the
//! call alone. `docs/design/architecture.md` compares the three.
//!
//! A buffer that is touched as soon as the call returns leaves nothing to overlap: then an engine
//! alone is no longer looked at again.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use super::executor::Executor;
use crate::lru::LruMap;
use crate::op::Op;

/// A place in a program that calls a collective again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// What it calls.
    pub op: Op,
    /// The root.
    pub root: usize,
    /// Bytes that one rank receives or sends.
    pub bytes: u64,
    /// Address of the call, or another number that tells calls apart.
    pub place: usize,
}

/// Times that every way is tried before one is chosen.
const TRIALS: usize = 3;

/// Intervals of a way that are remembered: their median is known to some 5 % where one
/// differs from the next by a quarter. More would take longer to get over what was a burst.
const RECENT: usize = 24;

/// Share of the time that may be spent on looking at ways again that were slower.
const BUDGET: f64 = 0.02;

/// Iterations between two such looks, at least.
const PATIENCE: u64 = 28;

/// The same for a way that is not known to be slower.
const EAGER: u64 = 5;

/// The first calls of a way that take longer than its shortest by this factor had to map memory.
const COLD: f64 = 2.0;

/// Standard errors by which the median of a way is larger if the way is taken for slower.
const CERTAIN: f64 = 2.0;

/// Intervals that far beyond all that are remembered, three times in a row, are another workload.
const CHANGE: f64 = 1.3;

/// An interval that differs by this factor from what is usual says nothing about the machine.
const OUTLIER: f64 = 1.6;

/// How fast the level follows the machine.
const FOLLOW: f64 = 0.15;

/// A buffer that is touched within this share of a copy by CPUs is touched at once.
const AT_ONCE: f64 = 0.1;

/// Places that are remembered; the one unused for longest is forgotten first.
const SITES: usize = 256;

/// Why a way was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// There is no other.
    Only,
    /// Each is tried a few times first.
    Trial,
    /// It has the shortest interval.
    Shortest,
    /// Whether it still is slower.
    Again,
}

/// A figure for each way, if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Intervals {
    /// Of [`Executor::Engine`].
    pub engine: Option<f64>,
    /// Of [`Executor::Cpu`].
    pub cpu: Option<f64>,
    /// Of [`Executor::Both`].
    pub both: Option<f64>,
}

/// What to do in the next iteration, and what is known so far.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The way.
    pub way: Executor,
    /// Why.
    pub reason: Reason,
    /// Calls at this place before this one.
    pub iteration: u64,
    /// Microseconds from call to call; what was never measured is missing.
    pub intervals_us: Intervals,
    /// Microseconds from the end of a call to the first touch, if any was seen.
    pub touched_after_us: Option<f64>,
}

/// The last figures of one kind: of a way's intervals, or times in seconds.
#[derive(Clone, Debug, Default)]
struct Record {
    recent: VecDeque<f64>,
    /// The same, the smallest first.
    sorted: Vec<f64>,
    count: usize,
}

impl Record {
    fn add(&mut self, figure: f64) {
        let place = |sorted: &[f64], figure: f64| sorted.partition_point(|f| *f < figure);
        if self.recent.len() == RECENT {
            if let Some(oldest) = self.recent.pop_front() {
                self.sorted.remove(place(&self.sorted, oldest));
            }
        }
        self.recent.push_back(figure);
        self.sorted.insert(place(&self.sorted, figure), figure);
        self.count += 1;
    }

    fn forget(&mut self) {
        self.recent.clear();
        self.sorted.clear();
    }

    /// Forgets what took many times as long as the shortest: calls that had to map memory.
    fn forget_cold(&mut self) {
        let most = COLD * self.least();
        self.recent.retain(|figure| *figure <= most);
        self.sorted.retain(|figure| *figure <= most);
    }

    /// What so large a share of the figures is below; the lower of two in doubt, because what seems
    /// too good is soon found out, and what seems too bad is not.
    fn quantile(&self, share: f64) -> Option<f64> {
        let index = (share * self.sorted.len().saturating_sub(1) as f64) as usize;
        self.sorted.get(index).copied()
    }

    fn median(&self) -> Option<f64> {
        self.quantile(0.5)
    }

    /// What it took when nothing disturbed it.
    fn least(&self) -> f64 {
        self.sorted.first().copied().unwrap_or(f64::MAX)
    }

    /// Whether a figure is unlike those that are remembered, more than they are unlike each other.
    fn is_new(&self, figure: f64) -> bool {
        match (self.sorted.first(), self.sorted.last()) {
            (Some(low), Some(high)) => !(low / CHANGE..=high * CHANGE).contains(&figure),
            _ => false,
        }
    }

    /// By what share of the median single figures differ from it: the standard deviation that the
    /// middle half of them suggests.
    fn noise(&self) -> f64 {
        match (self.quantile(0.25), self.quantile(0.75)) {
            (Some(low), Some(high)) if low > 0.0 => (high / low).ln() / 1.35,
            _ => 0.0,
        }
    }
}

#[derive(Clone, Debug)]
struct History {
    /// Intervals of each way, as multiples of `level`.
    records: [Record; Executor::ALL.len()],
    /// Seconds, 0 before the first interval: what 1 in `records` stands for at the moment.
    level: f64,
    /// Seconds that an interval of each way should take if nothing has changed but the machine:
    /// they move with `level` alone. Following the records instead, which move themselves, let
    /// noise carry the level away, and ways that are seldom looked at seemed slower and slower.
    paces: [Option<f64>; Executor::ALL.len()],
    /// The way of the iteration that goes on, when it began, and why it was taken.
    current: Option<(Executor, Duration, Reason)>,
    iteration: u64,
    /// Seconds that have passed since the trials, without pauses, and those of them that looking
    /// again has cost.
    passed: f64,
    spent: f64,
    /// Iterations of the last look, and of the last one that might have been at a way known to be
    /// slower.
    last_look: u64,
    last_patient: u64,
    /// Intervals of the chosen way in a row that do not fit, as in `records`.
    misfits: Vec<f64>,
    /// Ways that have not been looked at since the workload changed, and the chosen one's interval
    /// before that: what they cost more then is what to expect.
    doubted: Vec<Executor>,
    before: f64,
    /// Seconds until the first touch, and of a call in which CPUs copy.
    touched: Record,
    copies: Record,
}

impl History {
    fn new() -> Self {
        History {
            records: Default::default(),
            level: 0.0,
            paces: [None; Executor::ALL.len()],
            current: None,
            iteration: 0,
            passed: 0.0,
            spent: 0.0,
            last_look: 0,
            last_patient: 0,
            misfits: Vec::new(),
            doubted: Vec::new(),
            before: 0.0,
            touched: Record::default(),
            copies: Record::default(),
        }
    }

    fn record(&self, way: Executor) -> &Record {
        &self.records[way as usize]
    }

    /// The way with the shortest median, of those that were tried.
    fn best(&self, ways: &[Executor]) -> Option<(Executor, f64)> {
        ways.iter()
            .filter_map(|way| Some((*way, self.record(*way).median()?)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The iteration that went on is over.
    fn close(&mut self, now: Duration, ways: &[Executor]) {
        let Some((way, began, reason)) = self.current.take() else {
            return;
        };
        let seconds = now.saturating_sub(began).as_secs_f64();
        if reason == Reason::Only {
            // There was nothing to choose from, and somebody else may have chosen.
            return;
        }
        if self.level == 0.0 {
            self.level = seconds.max(1e-9);
        }
        let figure = seconds / self.level;
        if reason == Reason::Trial {
            self.learn(way, figure);
            if self.record(way).count == TRIALS {
                self.records[way as usize].forget_cold();
            }
            return;
        }
        // A pause of the program pays for no looks: what they cost is to be small beside its calls.
        let usual = self.record(way).median().unwrap_or(figure);
        self.passed += figure.min(OUTLIER * usual) * self.level;
        if reason == Reason::Again {
            // Not the figure itself: that the machine was busy is not the way's fault.
            let best = self.best(ways).map_or(figure, |(_, best)| best);
            self.spent += (usual - best).max(0.0) * self.level;
            if let Some(at) = self.doubted.iter().position(|doubted| *doubted == way) {
                self.doubted.remove(at);
                self.records[way as usize].forget();
            }
            self.learn(way, figure);
            return;
        }
        if !self.record(way).is_new(figure) {
            self.misfits.clear();
            self.learn(way, figure);
            return;
        }
        // A single outlier says nothing about the way.
        self.misfits.push(figure);
        if self.misfits.len() < TRIALS {
            return;
        }
        self.before = self.record(way).median().unwrap_or(figure);
        self.paces = [None; Executor::ALL.len()];
        self.records[way as usize].forget();
        for figure in self.misfits.split_off(0) {
            self.records[way as usize].add(figure);
        }
        self.doubted = ways.iter().copied().filter(|other| *other != way).collect();
    }

    /// Remembers an interval, and follows the machine if it is known what the way usually takes.
    fn learn(&mut self, way: Executor, figure: f64) {
        let seconds = figure * self.level;
        let all_tried = self.records.iter().all(|record| record.count > 0);
        if let (Some(usual), true) = (self.record(way).median(), all_tried) {
            let pace = *self.paces[way as usize].get_or_insert(usual * self.level);
            let change = seconds / pace;
            // An outlier is not the machine.
            if (1.0 / OUTLIER..=OUTLIER).contains(&change) {
                let change = change.powf(FOLLOW);
                for pace in self.paces.iter_mut().flatten() {
                    *pace *= change;
                }
                self.level *= change;
            }
        }
        self.records[way as usize].add(figure);
    }

    /// Whether the application uses a buffer as soon as it has it.
    fn touched_at_once(&self) -> bool {
        match (self.touched.median(), self.copies.median()) {
            (Some(touched), Some(copy)) => self.touched.count >= TRIALS && touched < AT_ONCE * copy,
            _ => false,
        }
    }

    fn choose(&self, ways: &[Executor]) -> (Executor, Reason) {
        let [first, others @ ..] = ways else {
            return (Executor::Cpu, Reason::Only);
        };
        if others.is_empty() {
            return (*first, Reason::Only);
        }
        let fewest = ways.iter().min_by_key(|way| self.record(**way).count);
        if let Some(way) = fewest.filter(|way| self.record(**way).count < TRIALS) {
            return (*way, Reason::Trial);
        }
        let Some((best, interval)) = self.best(ways) else {
            return (*first, Reason::Trial);
        };
        // A single look that was better than all that is known of the best may have been luck.
        let lucky = |way: &Executor| self.record(*way).recent.len() == 1;
        if lucky(&best) {
            return (best, Reason::Again);
        }
        let since = self.iteration - self.last_look;
        // Or one that may well be the best would keep those that seem worse from being looked at.
        let patient = self.iteration - self.last_patient;
        let hopeless = |way: Executor| way == Executor::Engine && self.touched_at_once();
        let noise = ways.iter().map(|way| self.record(*way).noise());
        let noise = noise.fold(0.01, f64::max);
        let share = |way| 1.0 / self.record(way).recent.len().max(1) as f64;
        let slower = |way: Executor, its: f64| {
            (its / interval).ln() > CERTAIN * noise * (share(way) + share(best)).sqrt()
        };
        let candidate = ways
            .iter()
            .filter(|way| **way != best && !hopeless(**way))
            .filter_map(|way| Some((*way, self.record(*way).median()?)))
            .filter(|(way, its)| {
                since >= EAGER && (patient >= PATIENCE || !slower(*way, *its))
                    || self.doubted.contains(way)
            })
            // The one that may be best. What it took when it took longer may have been because
            // memory was mapped for the first time; what is known of few calls says less.
            .min_by(|a, b| {
                let hope = |(way, _): &(Executor, f64)| {
                    self.record(*way).least() * (-CERTAIN * noise * share(*way).sqrt()).exp()
                };
                hope(a).total_cmp(&hope(b))
            });
        if let Some((way, _)) = candidate {
            let then = if self.doubted.contains(&way) {
                self.before
            } else {
                interval
            };
            let more = (self.record(way).least() - then).max(0.0);
            let expected = self.spent + more * self.level;
            if expected <= BUDGET * (self.passed + interval * self.level) {
                return (way, Reason::Again);
            }
        }
        (best, Reason::Shortest)
    }
}

/// What was learned about the places of a program. One rank decides for all of a team.
#[derive(Clone, Debug, Default)]
pub struct Monitor {
    sites: LruMap<Site, History>,
}

impl Monitor {
    /// Nothing is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// A call at `site` begins at `now`; `ways` are those that are possible, in the order in which
    /// they are tried. `now` counts from any fixed moment.
    pub fn choose(&mut self, site: Site, ways: &[Executor], now: Duration) -> Decision {
        let history = self.sites.get_or_insert(site, SITES, History::new);
        history.close(now, ways);
        let (way, reason) = history.choose(ways);
        if reason == Reason::Again {
            history.last_look = history.iteration;
            if history.iteration - history.last_patient >= PATIENCE {
                history.last_patient = history.iteration;
            }
        }
        let iteration = history.iteration;
        history.iteration += 1;
        history.current = Some((way, now, reason));
        let interval = |way| Some(1e6 * history.level * history.record(way).median()?);
        Decision {
            way,
            reason,
            iteration,
            intervals_us: Intervals {
                engine: interval(Executor::Engine),
                cpu: interval(Executor::Cpu),
                both: interval(Executor::Both),
            },
            touched_after_us: history.touched.median().map(|s| 1e6 * s),
        }
    }

    /// The buffer of the last call at `site` was touched so long after the call returned, before it
    /// was complete.
    pub fn touched(&mut self, site: &Site, after: Duration) {
        if let Some(history) = self.sites.get(site) {
            history.touched.add(after.as_secs_f64());
        }
    }

    /// CPUs took so long for a call at `site`.
    pub fn copied(&mut self, site: &Site, took: Duration) {
        if let Some(history) = self.sites.get(site) {
            history.copies.add(took.as_secs_f64());
        }
    }

    /// The application did something between two calls that has nothing to do with the first one:
    /// the interval since then must not be taken for the cost of its way.
    pub fn interrupted(&mut self) {
        for history in self.sites.values_mut() {
            history.current = None;
        }
    }
}

#[cfg(test)]
mod tests;
