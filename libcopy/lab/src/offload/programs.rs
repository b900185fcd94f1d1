// SPDX-License-Identifier: MIT OR Apache-2.0

//! Section 4: parallel programs whose collectives are done in three ways, which the paper compares,
//! and in the way that the monitor learns. The same ranks play all ways in turns.

use super::experiment::Run;
use super::player::{HIDING, PER_NODE};
use anyhow::{Context, Result};
use libcopy::config;
use libcopy_measure::machine;
use libcopy_measure::peer_process::PeerProcess;
use libcopy_measure::report::Row;
use libcopy_measure::sample::Spread;
use libcopy_measure::sizes;

/// Pages of a fragment: a callback of an emulated guest costs as much as dozens of a real one's.
const FRAGMENT_PAGES: &str = "256";

/// How the bytes of a collective go.
#[derive(Clone, Copy, PartialEq)]
struct Way {
    name: &'static str,
    /// The transport, and who copies.
    words: &'static str,
}

impl Way {
    const fn new(name: &'static str, words: &'static str) -> Self {
        Way { name, words }
    }

    /// What the ranks are told.
    fn variant(self, amount: u64) -> String {
        format!("{},{amount}", self.words)
    }
}

/// Through shared memory, as MVAPICH2 2.3.7 does it (section 3.5).
const DOUBLE: Way = Way::new("double-copy", "shm,off");
/// Section 3.5.
const CPU: Way = Way::new("enhanced-cpu", "kmod,off");
/// Section 3.4.
const HYBRID: Way = Way::new("hybrid", "kmod,engine");
/// Engine and CPUs together, which the paper does not have.
const BOTH: Way = Way::new("both", "kmod,both");
/// Section 4.4.
const AUTO: Way = Way::new("auto", "kmod,auto");

/// The ranks of a program, and the ways that are compared.
struct Players {
    ranks: usize,
    ways: &'static [Way],
    team: PeerProcess,
    _sockets: tempfile::TempDir,
}

impl Players {
    fn start(ways: &'static [Way], ranks: usize) -> Result<Self> {
        let sockets = tempfile::Builder::new()
            .prefix("libcopy-bench.")
            .tempdir()
            .context("cannot create a directory for sockets (see TMPDIR)")?;
        let own = std::env::current_exe().context("cannot find my own program")?;
        let own = own.to_string_lossy().into_owned();
        let pages = format!("{}={FRAGMENT_PAGES}", config::OFFLOAD_PAGES.name);
        let size = ranks.to_string();
        let command = ["env", &pages, &own, "player", "--ranks", &size];
        let command = command.map(str::to_owned);
        Ok(Self {
            ranks,
            ways,
            team: PeerProcess::start("players", &command, ranks, sockets.path())?,
            _sockets: sockets,
        })
    }

    /// Times of one way.
    fn time(
        &mut self,
        way: Way,
        op: &str,
        bytes: usize,
        amount: u64,
        warmup: usize,
        count: usize,
    ) -> Result<Vec<f64>> {
        self.team
            .time(op, bytes, &way.variant(amount), warmup, count)
    }
}

/// The timings of one way, and whether the bytes were right.
struct Series {
    way: Way,
    timings: Vec<f64>,
    right: bool,
}

/// One figure, measured for several ways.
struct Measured(Vec<Series>);

impl Measured {
    fn timings(&self, way: Way) -> Option<&[f64]> {
        let series = self.0.iter().find(|series| series.way == way)?;
        Some(&series.timings)
    }

    /// Other timings of the same ways, made from these.
    fn map(&self, pick: impl Fn(&[f64]) -> Vec<f64>) -> Measured {
        let one = |series: &Series| Series {
            timings: pick(&series.timings),
            ..*series
        };
        Measured(self.0.iter().map(one).collect())
    }

    fn spread(&self, way: Way) -> Option<Spread> {
        Spread::of(self.timings(way)?)
    }

    fn median(&self, way: Way) -> Option<f64> {
        Some(self.spread(way)?.median)
    }
}

impl Run {
    /// Times an operation of all sets, which take turns, and checks the bytes of `checked`.
    fn take_turns(
        &mut self,
        players: &mut Players,
        (op, checked): (&str, &str),
        bytes: usize,
        amount: u64,
        (rounds, count): (usize, usize),
    ) -> Result<Measured> {
        let empty = |way: &Way| Series {
            way: *way,
            timings: Vec::new(),
            right: true,
        };
        let mut measured: Vec<_> = players.ways.iter().map(empty).collect();
        for round in 0..rounds {
            for series in &mut measured {
                let way = series.way;
                self.bar
                    .set_message(format!("{op} {} {}", sizes::short(bytes), way.name));
                let times = players.time(way, op, bytes, amount, 1, count)?;
                series.timings.extend(times);
                if round == 0 {
                    let seed = self.next_round();
                    let verdict = players
                        .team
                        .check(checked, bytes, &way.variant(0), 0, seed)?;
                    series.right = verdict.is_ok();
                }
            }
            self.bar.inc(1);
        }
        Ok(Measured(measured))
    }

    fn push_all(
        &mut self,
        op: &str,
        bytes: usize,
        ranks: usize,
        measured: &Measured,
    ) -> Result<()> {
        for Series {
            way,
            timings,
            right,
        } in &measured.0
        {
            self.rows
                .push(Row::timed(op, bytes, ranks, way.name, timings, *right)?);
        }
        Ok(())
    }

    /// The largest reductions against double copies, beside those of the paper.
    fn compare(&mut self, figure: &str, all: &[Measured], paper: (f64, f64)) {
        let best = |way| {
            let reduction = |m: &Measured| Some(1.0 - m.median(way)? / m.median(DOUBLE)?);
            all.iter()
                .filter_map(reduction)
                .fold(f64::NEG_INFINITY, f64::max)
        };
        self.notes.push(format!(
            "{figure}: less time than double copies by at most: enhanced CPU {:.0} % (paper {:.0} %), \
             hybrid {:.0} % (paper {})",
            100.0 * best(CPU),
            100.0 * paper.0,
            100.0 * best(HYBRID),
            match paper.1 {
                p if p > 0.0 => format!("{:.0} %", 100.0 * p),
                _ => "slower than enhanced CPU".to_owned(),
            },
        ));
    }

    /// Ranks of the paper's experiments that this machine has the memory for.
    fn teams(&mut self, all: &[usize], bytes: usize) -> Vec<usize> {
        // Two buffers of every rank, the root's for all parts, and as much for shared memory.
        let need = |ranks: usize| 4 * (ranks * bytes) as u64;
        let room = machine::available_memory() * 3 / 4;
        let (fit, not): (Vec<usize>, Vec<usize>) =
            all.iter().partition(|ranks| need(**ranks) <= room);
        for ranks in not {
            self.notes.push(format!(
                "left out: {ranks} ranks with {} (needs {} MiB of memory)",
                sizes::short(bytes),
                need(ranks) >> 20
            ));
        }
        fit
    }
}

/// Iterations of all ways that a figure's share of the time allows, if one takes that many
/// microseconds: with many ranks and large messages it is a second.
fn affordable(ways: usize, each: f64) -> usize {
    const SHARE: f64 = 12e6;
    (SHARE / (ways as f64 * each)) as usize
}

/// Figs. 6 and 7: a collective with nothing to do beside it.
pub fn latency(run: &mut Run) -> Result<()> {
    let ranks = if run.quick { 8 } else { 16 };
    let lengths = if run.quick {
        vec![64 << 10, 1 << 20]
    } else {
        sizes::range(64 << 10, 4 << 20, 4)
    };
    let mut players = Players::start(&[DOUBLE, CPU, HYBRID], ranks)?;
    run.notes.push(format!(
        "fig6, fig7: {ranks} ranks ({PER_NODE} on a node), until the buffer can be used"
    ));
    for (op, figure, paper) in [
        ("bcast", "fig6-bcast", (0.67, 0.0)),
        ("gather", "fig7-gather", (0.85, 0.0)),
    ] {
        let mut all = Vec::new();
        for bytes in lengths.clone() {
            let measured = run.take_turns(&mut players, (op, op), bytes, 0, (run.rounds, 3))?;
            run.push_all(figure, bytes, ranks, &measured)?;
            all.push(measured);
        }
        run.compare(figure, &all, paper);
    }
    Ok(())
}

/// Figs. 8 and 9: a collective, then computation as long as the engines' copies take.
pub fn overlap(run: &mut Run) -> Result<()> {
    let (lengths, teams) = if run.quick {
        (vec![2 << 20], vec![8])
    } else {
        (sizes::range(2 << 20, 16 << 20, 2), vec![8, 16, 20])
    };
    let mut figures = [
        ("bcast", "fig8-bcast", (0.45, 0.58), Vec::new()),
        ("gather", "fig9-gather", (0.76, 0.72), Vec::new()),
    ];
    for ranks in teams {
        let lengths: Vec<_> = lengths
            .iter()
            .copied()
            .filter(|b| !run.teams(&[ranks], *b).is_empty())
            .collect();
        let mut players = Players::start(&[DOUBLE, CPU, HYBRID], ranks)?;
        for (op, figure, _, all) in &mut figures {
            for bytes in &lengths {
                let (amount, copy) = balance(run, &mut players, op, *bytes)?;
                // One to warm up, two that count, and the check.
                let rounds = affordable(players.ways.len(), 2.0 * copy) / 4;
                let measured = run.take_turns(
                    &mut players,
                    (&format!("{op}+compute"), op),
                    *bytes,
                    amount,
                    (rounds.clamp(1, run.rounds), 2),
                )?;
                run.push_all(&format!("{figure}-{ranks}"), *bytes, ranks, &measured)?;
                all.push(measured);
            }
        }
    }
    for (_, figure, paper, all) in &figures {
        run.compare(figure, all, *paper);
    }
    run.notes.push(
        "fig8, fig9: every rank multiplies matrices for about as long as the engines alone need; all \
         ranks share the processors of the machine, so computation of many ranks takes turns where \
         the paper's has a core for each"
            .into(),
    );
    Ok(())
}

/// Multiplications that take about as long as the engines alone, and how long that is, in
/// microseconds.
fn balance(run: &mut Run, players: &mut Players, op: &str, bytes: usize) -> Result<(u64, f64)> {
    let wait = format!("{op}+wait");
    let first = median(&players.time(HYBRID, &wait, bytes, 0, 1, 1)?)?;
    let count = if first > 200e3 { 2 } else { 5 };
    let copy = median(&players.time(HYBRID, &wait, bytes, 0, 0, count)?)?;
    let mut amount = 8.0;
    let mut each = 0.0;
    // The second pilot is long enough to say what the real one takes.
    for _ in 0..2 {
        each = median(&players.time(HYBRID, "compute", bytes, amount as u64, 1, count)?)? / amount;
        amount = (copy / each).round().max(1.0);
    }
    run.notes.push(format!(
        "{op} of {} to {} ranks: engines alone {:.1} ms; computation {:.1} ms",
        sizes::short(bytes),
        players.ranks,
        copy / 1e3,
        amount * each / 1e3
    ));
    Ok((amount as u64, copy))
}

/// Between which two values the median of what these are a sample of is, with a probability of 95
/// %: the order statistics half a binomial distribution's spread to each side.
fn doubt(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (count, reach) = (sorted.len(), 1.96 * (sorted.len() as f64).sqrt() / 2.0);
    let low = (count as f64 / 2.0 - reach).floor().max(0.0) as usize;
    let high = ((count as f64 / 2.0 + reach).ceil() as usize).min(count) - 1;
    (sorted[low], sorted[high])
}

fn median(timings: &[f64]) -> Result<f64> {
    Ok(Spread::of(timings).context("nothing was timed")?.median)
}

/// Fig. 10: the synthetic application of section 4.3.
pub fn application(run: &mut Run) -> Result<()> {
    let (ranks, sides, iterations) = if run.quick {
        (4, vec![512], 6)
    } else {
        (20, vec![512, 1024, 2048], 20)
    };
    let largest = sides.iter().map(|side| side * side * 8).max().unwrap_or(0);
    let Some(&ranks) = run.teams(&[8, ranks], largest).last() else {
        return Ok(());
    };
    let mut players = Players::start(&[DOUBLE, CPU, HYBRID, AUTO], ranks)?;
    let mut all = Vec::new();
    for side in sides {
        let bytes = side * side * 8;
        let pilot = players.time(HYBRID, "application", bytes, 0, 1, 2)?;
        let each = pilot.iter().sum();
        let fit = affordable(players.ways.len(), each);
        let rounds = (fit / iterations).clamp(1, run.rounds);
        let iterations = fit.clamp(4, iterations);
        let both = run.take_turns(
            &mut players,
            ("application", "bcast"),
            bytes,
            0,
            (rounds, 2 * iterations),
        )?;
        let bcast = both.map(|times| nth(times, 0, 2));
        let gather = both.map(|times| nth(times, 1, 2));
        let total = both.map(|times| times.chunks(2).map(|pair| pair.iter().sum()).collect());
        run.push_all("fig10-bcast-search", bytes, ranks, &bcast)?;
        run.push_all("fig10-gather-init", bytes, ranks, &gather)?;
        run.push_all("fig10-iteration", bytes, ranks, &total)?;
        all.push(total);
    }
    run.compare("fig10", &all, (0.51, 0.57));
    run.notes.push(format!(
        "fig10: {ranks} ranks (paper: 20); size = bytes of a matrix of 512, 1024 or 2048 rows; C has a \
         maximum for every 8 elements, which the paper leaves open; at most {iterations} iterations a \
         round (paper: 100)"
    ));
    Ok(())
}

/// How far computation hides a copy, and what the copy costs the root.
pub fn hiding(run: &mut Run) -> Result<()> {
    let mut players = Players::start(&[CPU, HYBRID], 2)?;
    let lengths: &[usize] = if run.quick {
        &[8 << 20]
    } else {
        &[8 << 20, 16 << 20]
    };
    lengths
        .iter()
        .try_for_each(|bytes| hidden(run, &mut players, *bytes))
}

fn hidden(run: &mut Run, players: &mut Players, bytes: usize) -> Result<()> {
    let (amount, _) = balance(run, players, "bcast", bytes)?;
    let count = 2 * HIDING.len();
    let together = run.take_turns(
        players,
        ("hiding", "bcast"),
        bytes,
        amount,
        (run.rounds, count),
    )?;
    let root = run.take_turns(
        players,
        ("bcast+root", "bcast"),
        bytes,
        amount,
        (run.rounds, 4),
    )?;
    for (which, op) in HIDING.iter().enumerate() {
        let part = together.map(|times| nth(times, which, HIDING.len()));
        run.push_all(op, bytes, 2, &part)?;
    }
    run.push_all("bcast+root", bytes, 2, &root)?;
    for way in [HYBRID, CPU] {
        let times = together.timings(way).context("nothing was timed")?;
        let of = |figure: &dyn Fn(f64, f64, f64) -> f64| {
            let each = |three: &[f64]| figure(three[0], three[1], three[2]);
            let figures: Vec<f64> = times.chunks_exact(HIDING.len()).map(each).collect();
            Spread::of(&figures).context("nothing was timed")
        };
        let copy = of(&|copy, _, _| copy)?;
        let computation = of(&|_, computation, _| computation)?;
        let both = of(&|_, _, both| both)?;
        let longer = of(&|copy, computation, both| both / copy.max(computation))?;
        let sum = of(&|copy, computation, both| both / (copy + computation))?;
        let root = root.spread(way).context("nothing was timed")?;
        run.notes.push(format!(
            "hiding, {}, {}: copy {:.1} ms, computation {:.1} ms, both {:.1} ms; side by side {:.2} of the longer \
             ({:.2} to {:.2}), {:.2} of the sum; CPU time of the root in the call {:.2} % of the copy ({:.2} \
             to {:.2})",
            sizes::short(bytes),
            way.name,
            copy.median / 1e3,
            computation.median / 1e3,
            both.median / 1e3,
            longer.median,
            longer.p10,
            longer.p90,
            sum.median,
            100.0 * root.median / copy.median,
            100.0 * root.p10 / copy.median,
            100.0 * root.p90 / copy.median,
        ));
    }
    Ok(())
}

/// Every `step`th timing, from the one at `first` on.
fn nth(times: &[f64], first: usize, step: usize) -> Vec<f64> {
    times.iter().copied().skip(first).step_by(step).collect()
}

/// A leaf that touches its buffer when a tenth has arrived.
pub fn touch(run: &mut Run) -> Result<()> {
    let bytes: usize = if run.quick { 16 << 20 } else { 64 << 20 };
    let mut players = Players::start(&[HYBRID], 2)?;
    let alone = run.take_turns(
        &mut players,
        ("bcast+wait", "bcast"),
        bytes,
        0,
        (run.rounds, 1),
    )?;
    let engine = alone.median(HYBRID).context("nothing was timed")?;
    let touched = run.take_turns(
        &mut players,
        ("bcast+touch", "bcast"),
        bytes,
        (engine / 10.0) as u64,
        (run.rounds, 1),
    )?;
    let took = touched.median(HYBRID).context("nothing was timed")?;
    run.push_all("touch-never", bytes, 2, &alone)?;
    run.push_all("touch-at-10%", bytes, 2, &touched)?;
    run.notes.push(format!(
        "touch: {} by the engine alone {:.1} ms; touched after a tenth of that, whole after {:.1} ms, {:.2} \
         of the time",
        sizes::short(bytes),
        engine / 1e3,
        took / 1e3,
        took / engine
    ));
    Ok(())
}

/// What the monitor loses against the best fixed way, after ten iterations.
pub fn regret(run: &mut Run) -> Result<()> {
    const BYTES: usize = 8 << 20;
    let ranks = 2;
    const WAYS: &[Way] = &[CPU, HYBRID, BOTH, AUTO];
    // Each comes after each other one equally often: it inherits caches and mappings from it.
    const ORDERS: [[usize; 4]; 4] = [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]];
    // Calls of a turn: few, so that a machine that becomes slower or faster does so for both of a
    // pair.
    const CALLS: usize = 5;
    let mut worst = f64::NEG_INFINITY;
    for share in [0.0, 0.5, 1.0, 2.0] {
        // New ranks: the monitor knows nothing.
        let mut players = Players::start(WAYS, ranks)?;
        let (amount, _) = balance(run, &mut players, "bcast", BYTES)?;
        let amount = (share * amount as f64) as u64;
        let op = if amount == 0 {
            "bcast"
        } else {
            "bcast+compute"
        };
        // The ten iterations in which it learns.
        players.time(AUTO, op, BYTES, amount, 0, 10)?;
        let mut timings: [Vec<f64>; 4] = Default::default();
        let mut turn = |run: &Run, timings: &mut [Vec<f64>; 4], index: usize| -> Result<f64> {
            let way = &WAYS[index];
            run.bar.set_message(format!("regret {share} {}", way.name));
            let times = players.time(*way, op, BYTES, amount, 1, CALLS)?;
            let total = times.iter().sum();
            timings[index].extend(times);
            Ok(total)
        };
        for order in (0..run.rounds.div_ceil(2)).flat_map(|_| ORDERS) {
            for index in order {
                turn(run, &mut timings, index)?;
            }
        }
        run.bar.inc(1);
        let (_, fixed) = timings.split_last().context("there are ways")?;
        let medians = fixed.iter().map(|times| median(times));
        let medians = medians.collect::<Result<Vec<f64>>>()?;
        let best = (0..fixed.len())
            .min_by(|a, b| medians[*a].total_cmp(&medians[*b]))
            .context("there are fixed ways")?;
        // The monitor beside the best one, first and last in turns.
        let mut sums = [0.0; 2];
        let mut lost = Vec::new();
        // Short calls vary most, and there is time for many of them.
        let group = 4 * (CALLS + 1);
        let groups = if run.quick {
            16
        } else {
            affordable(group, medians[best]).clamp(60, 400)
        };
        for round in 0..groups {
            let mut both = [0.0; 2];
            for which in [round % 2, 1 - round % 2, 1 - round % 2, round % 2] {
                both[which] += turn(run, &mut timings, [3, best][which])?;
            }
            lost.push(both[0] / both[1] - 1.0);
            sums[0] += both[0];
            sums[1] += both[1];
        }
        run.bar.inc(1);
        let spread = Spread::of(&lost).context("nothing was timed")?;
        let (low, high) = doubt(&lost);
        worst = f64::max(worst, spread.median);
        for (timings, way) in timings.iter().zip(WAYS) {
            run.rows.push(Row::timed(
                &format!("regret-{share}"),
                BYTES,
                ranks,
                way.name,
                timings,
                true,
            )?);
        }
        run.notes.push(format!(
            "regret, computation {share} of a copy: {:+.1} % against {}, the best fixed way ({:+.1} to {:+.1} \
             at 95 %; {:+.1} % in all)",
            100.0 * spread.median,
            WAYS[best].name,
            100.0 * low,
            100.0 * high,
            100.0 * (sums[0] / sums[1] - 1.0),
        ));
    }
    run.notes.push(format!(
        "regret: {:+.1} % at worst, the median of pairs of turns side by side, from the 11th iteration on \
         (asked: at most 5 %)",
        100.0 * worst,
    ));
    Ok(())
}
