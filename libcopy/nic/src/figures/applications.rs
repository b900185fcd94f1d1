// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures 16 to 19: types of applications, and a whole program.

use super::claim::{Figure, Held, Series};
use super::study::{Error, Study, planned, received};
use crate::card::{NS, Parameters, Ps, Strategy, scatter};
use crate::host::traffic;
use crate::loggops::{Fft2d, LogGops, run};
use crate::plan::Plan;
use libcopy_datatype::Layout;

/// What a host takes to make checkpoints and to copy them to the card.
///
/// An assumption, not measured: a descent of the type per checkpoint, their bytes on PCIe, and one latency.
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
    host: Ps,
    iovec: Ps,
    rw: Ps,
    special: Option<Ps>,
    cost: Ps,
    host_traffic: u64,
}

impl Case {
    fn speedup(&self) -> f64 {
        self.host as f64 / self.rw as f64
    }

    fn best(&self) -> f64 {
        self.host as f64 / self.special.unwrap_or(self.rw).min(self.rw) as f64
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
        host: study.host.receive(layout, &parameters),
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
    let iovec = |case: &Case| case.host as f64 / case.iovec as f64;
    let mut figure = Figure {
        number: "16",
        title: "Receiving types of applications: times as fast as the host",
        x: TYPES,
        y: "speedup",
        series: vec![
            series("rw-cp", cases.iter().map(Case::speedup)),
            series("best handler", cases.iter().map(Case::best)),
            series("iovec", cases.iter().map(iovec)),
        ],
        claims: Vec::new(),
    };
    if let Some(fastest) = cases.iter().max_by(|a, b| a.best().total_cmp(&b.best())) {
        let best = fastest.best();
        figure.claim(
            "speedup over unpacking by the host, at most",
            "12 (abstract: 10)",
            format!("{best:.1} ({}, {} bytes)", fastest.name, fastest.plan.bytes),
            Held::or_differs(
                (8.0..16.0).contains(&best),
                "this host unpacks with kernels of libcopy, the paper's with MPITypes",
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
            .map(Case::best)
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
    // With fewer packets not all HPUs have one, and one handler's time counts instead of their throughput.
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
    figure.claim(
        "times fewer bytes that RW-CP moves, geometric mean",
        "3.8",
        format!("{mean:.1}"),
        Held::or_differs(
            (3.0..4.8).contains(&mean),
            "other sizes and strides: blocks share cache lines more or less often",
        ),
    );
    figure
}

fn figure_18(cases: &[Case]) -> Figure {
    let uses = |case: &Case| match case.host.checked_sub(case.rw) {
        Some(gain) if gain > 0 => (case.cost as f64 / gain as f64).ceil(),
        _ => f64::INFINITY,
    };
    let few = cases.iter().filter(|case| uses(case) < 4.0).count();
    let share = 100.0 * few as f64 / cases.len() as f64;
    let mut figure = Figure {
        number: "18",
        title: "Uses of a type after which its checkpoints have paid off (1000: never)",
        x: TYPES,
        y: "uses",
        series: vec![series(
            "rw-cp",
            cases.iter().map(|case| uses(case).min(1000.0)),
        )],
        claims: Vec::new(),
    };
    figure.claim(
        "types whose checkpoints pay off after fewer than 4 uses",
        "75 %",
        format!("{share:.0} % of {}", cases.len()),
        Held::or_differs(
            share >= 75.0,
            "this host unpacks many types as fast as the card, so that they never pay off",
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

/// Time of a Fourier transform of `n` complex numbers: 5 n log2 n operations, 4 in a nanosecond (an assumption).
fn transform(n: u64) -> Ps {
    let operations = 5.0 * n as f64 * (n as f64).log2();
    (operations / 4.0 * NS as f64) as Ps
}

/// Figure 19: FFT2D by the number of ranks.
pub(super) fn figure_19(study: &mut Study<'_>) -> Result<Figure, Error> {
    const N: u64 = 20_480;
    let parameters = Parameters::PAPER;
    let ranks: &[u32] = if study.is_quick {
        &[64, 128, 256]
    } else {
        &[64, 128, 256, 512]
    };
    let (mut host, mut card, mut gains, mut shares) = (vec![], vec![], vec![], vec![]);
    for count in ranks {
        let rows = N / u64::from(*count);
        // From each rank rows × rows numbers of 16 bytes, which become columns here.
        let expression = format!(
            "contiguous({rows}, resized(0, 16, vector({rows}, 1, {N}, contiguous(2, double))))"
        );
        let layout = Layout::new(&expression.parse()?, 1)?;
        let by_host = Fft2d {
            ranks: *count as usize,
            transform: rows * transform(N),
            bytes: layout.size(),
            card: 0,
            unpack: study.host.unpack(&layout),
        };
        let by_card = Fft2d {
            card: received(&layout, &parameters, Strategy::RwCp, false)?.processing,
            unpack: 0,
            ..by_host
        };
        let model = LogGops::NEXT_GENERATION;
        let slow = run(&model, by_host.schedules())?;
        let fast = run(&model, by_card.schedules())?;
        host.push((f64::from(*count), slow as f64 / 1e9));
        card.push((f64::from(*count), fast as f64 / 1e9));
        gains.push(100.0 * (slow as f64 / fast as f64 - 1.0));
        shares.push(100.0 * (2 * by_host.transform) as f64 / slow as f64);
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
    let other = "computation, network and unpacking have other shares: this host unpacks with kernels of libcopy";
    figure.claim(
        "share of computation with 64 ranks, unpacked by the host",
        "60 %",
        format!("{:.0} %", shares[0]),
        Held::or_differs((50.0..70.0).contains(&shares[0]), other),
    );
    figure.claim(
        "offloading makes FFT2D faster with 64 ranks, by",
        "26 %",
        format!("{:.0} %", gains[0]),
        Held::or_differs((20.0..32.0).contains(&gains[0]), other),
    );
    let all: Vec<String> = gains.iter().map(|gain| format!("{gain:.1} %")).collect();
    figure.claim(
        "the gain shrinks with the number of ranks",
        "shrinks",
        all.join(", "),
        Held::or_differs(gains.windows(2).all(|pair| pair[1] < pair[0]), other),
    );
    Ok(figure)
}
