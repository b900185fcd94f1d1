// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures 16 to 19: types of applications, and a whole program.

use super::claim::{Figure, Held, Series};
use super::study::{Error, Study, planned, received};
use crate::nic::host::traffic;
use crate::nic::loggops::{Fft2d, LogGops, run};
use libcopy::datatype::Layout;
use libcopy_nic::card::{NS, Parameters, Ps, Strategy, scatter};
use libcopy_nic::plan::Plan;
use libcopy_nic::simulate::receive_packed;

/// What a host takes to make checkpoints and to copy them to the card.
///
/// An assumption, not measured: a descent of the type per checkpoint, their bytes on PCIe, and one
/// latency.
pub fn checkpoint_cost(plan: &Plan, parameters: &Parameters) -> Ps {
    const DESCENT: Ps = 100 * NS;
    // A master copy needs no descent.
    let checkpoints = plan.states.div_ceil(2);
    checkpoints * DESCENT + parameters.pcie(plan.nic_bytes) + parameters.pcie_write
}

/// One application's type, received in all ways.
struct Case {
    name: String,
    plan: Plan,
    /// The message in host memory, as it was sent.
    packed: Ps,
    /// What the host takes to unpack it.
    unpack: Ps,
    iovec: Ps,
    rw: Ps,
    special: Option<Ps>,
    cost: Ps,
    host_traffic: u64,
}

impl Case {
    /// What the host takes in all, if it unpacks `slower` times as slowly.
    fn host(&self, slower: f64) -> f64 {
        self.packed as f64 + slower * self.unpack as f64
    }

    fn speedup(&self, slower: f64) -> f64 {
        self.host(slower) / self.rw as f64
    }

    fn best(&self, slower: f64) -> f64 {
        self.host(slower) / self.special.unwrap_or(self.rw).min(self.rw) as f64
    }

    /// Uses after which the checkpoints have paid off; infinite if they never do.
    fn uses(&self, slower: f64) -> f64 {
        let gain = self.host(slower) - self.rw as f64;
        if gain > 0.0 {
            (self.cost as f64 / gain).ceil()
        } else {
            f64::INFINITY
        }
    }
}

/// By what the highest speedup is 12.
const PAPER_SPEEDUP: f64 = 12.0;

fn fastest(cases: &[Case], slower: f64) -> Option<&Case> {
    let best = |case: &Case| case.best(slower);
    cases.iter().max_by(|a, b| best(a).total_cmp(&best(b)))
}

/// How many times as slowly the host has to unpack for `holds`, which a host that is slow enough
/// fulfils: at most 100.
fn slowness(holds: impl Fn(f64) -> bool) -> Option<f64> {
    (10..=1000)
        .map(|tenths| f64::from(tenths) / 10.0)
        .find(|slower| holds(*slower))
}

/// The host that the paper's highest speedup needs, in times as slow as this one.
fn paper_host(cases: &[Case]) -> Option<f64> {
    slowness(|slower| fastest(cases, slower).is_some_and(|case| case.best(slower) >= PAPER_SPEEDUP))
}

/// Why a claim about the host differs: with what host it holds, as the simulation says.
fn other_host(slower: Option<f64>, rate: impl Fn(f64) -> f64) -> String {
    match slower {
        Some(slower) => format!(
            "this host unpacks too fast; it holds with one that takes {slower:.1} times as long ({:.1} GB/s); the paper's is MPITypes \
             on a processor of 2013",
            rate(slower)
        ),
        None => "it does not hold with a host 100 times as slow either".to_owned(),
    }
}

/// Nothing if a card cannot receive the type.
fn case(study: &Study<'_>, name: &str, layout: &Layout) -> Option<Case> {
    let parameters = Parameters::PAPER;
    let plan = planned(layout, &parameters, Strategy::RwCp).ok()?;
    let time = |strategy| Some(received(layout, &parameters, strategy, false).ok()?.time);
    Some(Case {
        name: name.to_owned(),
        plan,
        packed: receive_packed(layout.size(), &parameters),
        unpack: study.host.unpack(layout),
        // The receiver first says that it is ready.
        iovec: parameters.network_latency + scatter(&parameters, layout).end,
        rw: time(Strategy::RwCp)?,
        special: time(Strategy::Specialized),
        cost: checkpoint_cost(&plan, &parameters),
        host_traffic: plan.bytes + traffic(layout),
    })
}

fn series(name: &str, values: impl Iterator<Item = f64>) -> Series {
    let points = (1..).map(f64::from).zip(values).collect();
    Series::new(name, points)
}

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64).exp()
}

const TYPES: &str = "type, by blocks per packet";

fn figure_16(cases: &[Case]) -> Figure {
    let iovec = |case: &Case| case.host(1.0) / case.iovec as f64;
    let mut figure = Figure {
        number: "16",
        title: "Receiving types of applications: times as fast as the host",
        x: TYPES,
        y: "speedup",
        series: vec![
            series("rw-cp", cases.iter().map(|case| case.speedup(1.0))),
            series("best handler", cases.iter().map(|case| case.best(1.0))),
            series("iovec", cases.iter().map(iovec)),
        ],
        claims: Vec::new(),
    };
    if let Some(fastest) = fastest(cases, 1.0) {
        let best = fastest.best(1.0);
        // Bytes in a picosecond are 1,000 GB/s.
        let rate = |slower| 1000.0 * fastest.plan.bytes as f64 / (slower * fastest.unpack as f64);
        figure.claim(
            "speedup over unpacking by the host, at most",
            "12 (abstract: 10)",
            format!("{best:.1} ({}, {} bytes)", fastest.name, fastest.plan.bytes),
            Held::or_differs(
                (8.0..16.0).contains(&best),
                &other_host(paper_host(cases), rate),
            ),
        );
    }
    for (claim, is_member) in [
        (
            "messages of one packet gain nothing",
            (|case| case.plan.packets == 1) as fn(&Case) -> bool,
        ),
        (
            "messages with about 512 blocks per packet gain nothing",
            |case| case.plan.packets > 1 && case.plan.pieces_per_packet() > 400.0,
        ),
    ] {
        let all: Vec<f64> = cases
            .iter()
            .filter(|c| is_member(c))
            .map(|case| case.best(1.0))
            .collect();
        if all.is_empty() {
            continue;
        }
        let mean = geometric_mean(&all);
        figure.claim(
            claim,
            "none",
            format!("{mean:.2} times as fast, geometric mean of {}", all.len()),
            Held::or_differs(
                mean < 1.25,
                "the host starts late by a latency of PCIe, or is slower than the paper's",
            ),
        );
    }
    // With fewer packets not all HPUs have one, and one handler's time counts instead of their
    // throughput.
    let long: Vec<&Case> = cases
        .iter()
        .filter(|case| case.plan.packets >= Parameters::PAPER.hpus)
        .collect();
    let faster = long.iter().filter(|case| case.rw <= case.iovec).count();
    if !long.is_empty() {
        figure.claim(
            "types that RW-CP receives at least as fast as a card with iovecs, packets for all HPUs",
            "most",
            format!("{faster} of {}", long.len()),
            2 * faster > long.len(),
        );
    }
    figure
}

fn figure_17(cases: &[Case]) -> Figure {
    let ratio = |case: &Case| case.host_traffic as f64 / case.plan.bytes as f64;
    let mean = geometric_mean(&cases.iter().map(ratio).collect::<Vec<_>>());
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    let mut figure = Figure {
        number: "17",
        title: "Bytes moved to and from memory",
        x: TYPES,
        y: "KiB",
        series: vec![
            series("rw-cp", cases.iter().map(|case| kib(case.plan.bytes))),
            series("host", cases.iter().map(|case| kib(case.host_traffic))),
        ],
        claims: Vec::new(),
    };
    let is_short = |case: &&Case| case.plan.bytes < 64 * case.plan.pieces;
    let (short, long): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(is_short);
    let of = |some: &[&Case]| {
        let ratios: Vec<f64> = some.iter().map(|case| ratio(case)).collect();
        if ratios.is_empty() {
            1.0
        } else {
            geometric_mean(&ratios)
        }
    };
    figure.claim(
        "times fewer bytes that RW-CP moves, geometric mean",
        "3.8",
        format!("{mean:.1}"),
        Held::or_differs(
            (3.0..4.8).contains(&mean),
            &format!(
                "{} of the types have blocks shorter than a cache line, which move {:.1} times as many, the other {} move {:.1} \
                 times as many; the paper's sizes are other ones",
                short.len(),
                of(&short),
                long.len(),
                of(&long)
            ),
        ),
    );
    figure
}

fn figure_18(cases: &[Case]) -> Figure {
    let share = |slower: f64| {
        let few = cases.iter().filter(|case| case.uses(slower) < 4.0).count();
        100.0 * few as f64 / cases.len() as f64
    };
    let ours = share(1.0);
    // Of all types together.
    let bytes: u64 = cases.iter().map(|case| case.plan.bytes).sum();
    let unpack: u64 = cases.iter().map(|case| case.unpack).sum();
    let rate = |slower| 1000.0 * bytes as f64 / (slower * unpack as f64);
    let mut figure = Figure {
        number: "18",
        title: "Uses of a type after which its checkpoints have paid off (1000: never)",
        x: TYPES,
        y: "uses",
        series: vec![series(
            "rw-cp",
            cases.iter().map(|case| case.uses(1.0).min(1000.0)),
        )],
        claims: Vec::new(),
    };
    figure.claim(
        "types whose checkpoints pay off after fewer than 4 uses",
        "75 %",
        format!("{ours:.0} % of {}", cases.len()),
        Held::or_differs(
            ours >= 75.0,
            &other_host(slowness(|slower| share(slower) >= 75.0), rate),
        ),
    );
    figure
}

/// Figures 16, 17 and 18.
pub(super) fn figures_16_17_18(study: &mut Study<'_>) -> Result<[Figure; 3], Error> {
    let mut cases = Vec::new();
    for (name, layout) in study.applications {
        cases.extend(case(study, name, layout));
        study.step(name);
    }
    if cases.is_empty() {
        return Err(Error::Empty);
    }
    let gamma = |case: &Case| case.plan.pieces_per_packet();
    cases.sort_by(|a, b| gamma(a).total_cmp(&gamma(b)));
    Ok([figure_16(&cases), figure_17(&cases), figure_18(&cases)])
}

/// The part of the time with 64 ranks that is computation, in percent: given, as the paper does not
/// say how long its transforms took, only this (section 5.4).
const PAPER_SHARE: f64 = 60.0;

/// By how much the card makes it faster there, in percent.
const PAPER_GAIN: f64 = 26.0;

/// Rows and columns of the matrix.
const N: u64 = 20_480;

/// FFT2D with some ranks.
struct Transposed {
    ranks: u32,
    /// Bytes from each rank to each.
    bytes: u64,
    /// What the host takes to unpack them.
    unpack: Ps,
    /// What the card takes.
    card: Ps,
}

/// Times of one FFT2D.
struct Times {
    computation: f64,
    host: f64,
    card: f64,
}

impl Times {
    /// By how much the card makes it faster, in percent.
    fn gain(&self) -> f64 {
        100.0 * (self.host / self.card - 1.0)
    }
}

impl Transposed {
    fn new(study: &Study<'_>, ranks: u32) -> Result<Transposed, Error> {
        let rows = N / u64::from(ranks);
        // From each rank rows × rows numbers of 16 bytes, which become columns here.
        let expression = format!(
            "contiguous({rows}, resized(0, 16, vector({rows}, 1, {N}, contiguous(2, double))))"
        );
        let layout = Layout::new(&expression.parse()?, 1)?;
        Ok(Transposed {
            ranks,
            bytes: layout.size(),
            unpack: study.host.unpack(&layout),
            card: received(&layout, &Parameters::PAPER, Strategy::RwCp, false)?.processing,
        })
    }

    /// With a processor that does `rate` operations in a nanosecond, and takes `slower` times as
    /// long to unpack.
    ///
    /// A transform of n complex numbers is 5 n log2 n operations.
    fn run(&self, rate: f64, slower: f64) -> Result<Times, Error> {
        let rows = (N / u64::from(self.ranks)) as f64;
        let operations = rows * 5.0 * N as f64 * (N as f64).log2();
        let by_host = Fft2d {
            ranks: self.ranks as usize,
            transform: (operations / rate * NS as f64) as Ps,
            bytes: self.bytes,
            card: 0,
            unpack: (self.unpack as f64 * slower) as Ps,
        };
        let by_card = Fft2d {
            card: self.card,
            unpack: 0,
            ..by_host
        };
        let model = LogGops::NEXT_GENERATION;
        Ok(Times {
            computation: (2 * by_host.transform) as f64,
            host: run(&model, by_host.schedules())? as f64,
            card: run(&model, by_card.schedules())? as f64,
        })
    }

    /// The processor with which `share` percent of the time are computation: its operations in a
    /// nanosecond. Computation and communication do not overlap, so the rest of the time does not
    /// depend on it.
    fn rate_for(&self, share: f64, slower: f64) -> Result<f64, Error> {
        let times = self.run(1.0, slower)?;
        let rest = times.host - times.computation;
        let computation = rest * share / (100.0 - share);
        Ok(times.computation / computation)
    }

    /// The host with which the card gains what the paper's does: times as slow at unpacking.
    fn paper_host(&self) -> Result<Option<f64>, Error> {
        for tenths in 1..200 {
            let slower = f64::from(tenths) / 10.0;
            let times = self.run(self.rate_for(PAPER_SHARE, slower)?, slower)?;
            if times.gain() >= PAPER_GAIN {
                return Ok(Some(slower));
            }
        }
        Ok(None)
    }
}

/// Figure 19: FFT2D by the number of ranks.
pub(super) fn figure_19(study: &mut Study<'_>) -> Result<Figure, Error> {
    let ranks: &[u32] = if study.is_quick {
        &[64, 128, 256]
    } else {
        &[64, 128, 256, 512]
    };
    let first = Transposed::new(study, ranks[0])?;
    let rate = first.rate_for(PAPER_SHARE, 1.0)?;
    let (mut host, mut card, mut all) = (vec![], vec![], vec![]);
    for count in ranks {
        let times = Transposed::new(study, *count)?.run(rate, 1.0)?;
        host.push((f64::from(*count), times.host / 1e9));
        card.push((f64::from(*count), times.card / 1e9));
        all.push(times);
        study.step("figure 19");
    }
    let mut figure = Figure {
        number: "19",
        title: "FFT2D, 20,480 x 20,480, in the LogGOPS model",
        x: "ranks",
        y: "ms",
        series: vec![Series::new("host", host), Series::new("rw-cp", card)],
        claims: Vec::new(),
    };
    let gain = all[0].gain();
    let held = if (20.0..32.0).contains(&gain) {
        Held::Yes
    } else {
        Held::Differs(match first.paper_host()? {
            Some(slower) => {
                format!("it is so with a host that takes {slower:.1} times as long to unpack")
            }
            None => "it is not so with any host up to 20 times as slow at unpacking".to_owned(),
        })
    };
    figure.claim(
        "offloading makes FFT2D faster with 64 ranks, with which 60 % of the time are computation, by",
        "26 %",
        format!("{gain:.0} % (transforms of {rate:.0} operations in a nanosecond)"),
        held,
    );
    let gains: Vec<f64> = all.iter().map(Times::gain).collect();
    let words: Vec<String> = gains.iter().map(|gain| format!("{gain:.1} %")).collect();
    figure.claim(
        "the gain shrinks with the number of ranks",
        "shrinks",
        words.join(", "),
        gains.windows(2).all(|pair| pair[1] < pair[0]),
    );
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::host::HostTable;

    fn cases(host: &HostTable) -> Vec<Case> {
        let study = Study {
            is_quick: true,
            host,
            applications: &[],
            progress: &mut |_| {},
        };
        [
            "vector(20000, 16, 40, double)",
            "hvector(30, 1, 80000, vector(500, 2, 9, double))",
            "vector(30000, 4, 8, double)",
        ]
        .iter()
        .filter_map(|expression| {
            let layout = Layout::new(&expression.parse().unwrap(), 1).unwrap();
            case(&study, expression, &layout)
        })
        .collect()
    }

    /// Part of the time that is computation, unpacked by the host, in percent.
    fn share(times: &Times) -> f64 {
        100.0 * times.computation / times.host
    }

    fn held(figure: &Figure) -> String {
        figure.claims[0].held.word()
    }

    /// The reason that is printed for figures 16 and 18 is a host that is too fast: with the host
    /// it names, and not with one that is a little faster, the claim holds.
    #[test]
    fn with_the_host_that_the_reason_names_the_claim_holds() {
        let host = HostTable::built_in();
        let cases_here = cases(&host);
        let slower = paper_host(&cases_here).unwrap();
        assert!(slower > 1.0);
        assert!(held(&figure_16(&cases_here)).contains(&format!("{slower:.1} times as long")));
        for (factor, is_enough) in [(slower, true), (slower - 0.2, false)] {
            // A table of that host, instead of the same table with a factor.
            let there = cases(&host.slower(factor));
            let best = fastest(&there, 1.0).unwrap().best(1.0);
            assert_eq!(best >= PAPER_SPEEDUP - 0.01, is_enough, "{factor}: {best}");
            assert_eq!(held(&figure_16(&there)), "yes");
        }
        let never = cases(&host.slower(0.01));
        assert!(held(&figure_18(&never)).contains("too fast"));
        assert_eq!(held(&figure_18(&cases(&host.slower(10.0)))), "yes");
    }

    #[test]
    fn figure_19_has_the_share_that_is_given_and_the_host_that_is_named() {
        let host = HostTable::built_in();
        let study = Study {
            is_quick: true,
            host: &host,
            applications: &[],
            progress: &mut |_| {},
        };
        let fft = Transposed::new(&study, 64).unwrap();
        for slower in [0.5, 1.0, 3.0] {
            let times = fft
                .run(fft.rate_for(PAPER_SHARE, slower).unwrap(), slower)
                .unwrap();
            assert!(
                (share(&times) - PAPER_SHARE).abs() < 0.5,
                "{}",
                share(&times)
            );
            assert!(times.computation < times.card && times.card < times.host);
        }
        let gain = |slower: f64| {
            let rate = fft.rate_for(PAPER_SHARE, slower).unwrap();
            fft.run(rate, slower).unwrap().gain()
        };
        let slower = fft.paper_host().unwrap().unwrap();
        assert!(gain(slower) >= PAPER_GAIN && gain(slower - 0.1) < PAPER_GAIN);
    }
}
