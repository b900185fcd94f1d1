// SPDX-License-Identifier: MIT OR Apache-2.0

//! Figures 8 and 10 to 15: a vector type, blocks every other one.

use super::claim::{Figure, Held, Series};
use super::study::{Error, Study, planned, received, vector};
use libcopy_nic::card::{Handlers, Packet, Parameters, Strategy, Work};
use libcopy_nic::iss::Timing;
use libcopy_nic::plan::{CHECKPOINT, MILLION, PAPER_CHECKPOINT, interval};
use libcopy_nic::run::{CoreHandlers, copy_cycles, costs};
use libcopy_nic::simulate::{gigabits, handlers};

/// Bytes of the message of most figures.
const MESSAGE: u64 = 4 << 20;

/// What counts as line rate in Gbit/s: latencies take a part of a message of 4 MiB.
const LINE: f64 = 0.95 * 200.0;

/// Values of all strategies at each `x`.
fn by_strategy<T: Copy + Into<f64>>(
    all: &[T],
    mut value: impl FnMut(Strategy, T) -> Result<f64, Error>,
) -> Result<Vec<Series>, Error> {
    Strategy::ALL
        .iter()
        .map(|strategy| {
            let points = all.iter().map(|x| Ok(((*x).into(), value(*strategy, *x)?)));
            let points: Result<Vec<(f64, f64)>, Error> = points.collect();
            Ok(Series::new(strategy.name(), points?))
        })
        .collect()
}

/// Figure 8: throughput by block size.
pub(super) fn figure_8(study: &mut Study<'_>) -> Result<Figure, Error> {
    let parameters = Parameters::PAPER.with_hpus(16);
    let blocks: &[u32] = if study.is_quick {
        &[4, 32, 64, 128, 512, 2048, 16384]
    } else {
        &[
            4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384,
        ]
    };
    let mut series = by_strategy(blocks, |strategy, block| {
        let layout = vector(MESSAGE, block.into())?;
        let received = received(&layout, &parameters, strategy, false)?;
        study.step("figure 8");
        Ok(received.throughput(MESSAGE))
    })?;
    let mut host = Vec::new();
    for block in blocks {
        let layout = vector(MESSAGE, (*block).into())?;
        let time = study.host.receive(&layout, &parameters);
        host.push((f64::from(*block), gigabits(MESSAGE, time)));
    }
    series.push(Series::new("host", host));
    let mut figure = Figure {
        number: "8",
        title: "Receiving 4 MiB of a vector type, 16 HPUs",
        x: "bytes of a block",
        y: "Gbit/s",
        series,
        claims: Vec::new(),
    };
    let reached = figure.reaches("specialized", LINE);
    figure.claim(
        "smallest blocks with which the specialised handler has line rate",
        "64 bytes or less",
        reached.map_or("none".to_owned(), |block| format!("{block} bytes")),
        reached.is_some_and(|block| block <= 64.0),
    );
    let at = |name: &str, block: f64| figure.at(name, block);
    let fastest = ["specialized", "hpu-local", "ro-cp", "rw-cp"]
        .map(|name| at(name, 4.0))
        .into_iter()
        .fold(0.0, f64::max);
    let host = at("host", 4.0);
    let (ro, rw) = (at("ro-cp", 128.0), at("rw-cp", 128.0));
    let (short, middle, long) = (
        at("hpu-local", 4.0),
        at("hpu-local", 128.0),
        at("hpu-local", 2048.0),
    );
    figure.claim(
        "with blocks of 4 bytes every offloaded strategy of the paper is slower than the host",
        "slower",
        format!("at most {fastest:.1} Gbit/s, host {host:.1} Gbit/s"),
        Held::or_differs(fastest < host, "the host is another machine"),
    );
    figure.claim(
        "RO-CP is bound by copying checkpoints: below RW-CP with blocks of 128 bytes",
        "below",
        format!("{ro:.1} Gbit/s, RW-CP {rw:.1} Gbit/s"),
        ro < rw,
    );
    figure.claim(
        "HPU-local is bound by catch-up, which shrinks as blocks grow: 4, 128, 2048 bytes",
        "grows",
        format!("{short:.1}, {middle:.1}, {long:.1} Gbit/s"),
        short < middle && middle < long,
    );
    Ok(figure)
}

/// RW-CP on PULP: packets already in memory, four consecutive ones per core, checkpoints in the
/// core's memory, the description behind it.
struct Pulp {
    gigabits: f64,
    instructions: u64,
    cycles: u64,
    /// Of a packet on the average.
    description_loads: f64,
}

/// Receives 1 MiB in blocks of `block` bytes on 32 cores at 1 GHz; each load from the description
/// waits `wait` cycles.
fn pulp(block: u64, wait: u32) -> Result<Pulp, Error> {
    const BYTES: u64 = 1 << 20;
    const SEQUENCE: u64 = 4;
    let mut parameters = Parameters::PAPER;
    parameters.mhz = 1000;
    let image = vector(BYTES, block)?.image()?;
    let interval = (SEQUENCE * parameters.packet) as u32;
    let mut core = CoreHandlers::new(image, Strategy::RwCp, 1, interval, Timing::CV32E40P)?;
    core.set_description_wait(wait);
    let mut cores: Vec<u64> = vec![0; parameters.hpus as usize];
    let (mut instructions, mut loads) = (0, 0);
    let packets = parameters.packets(BYTES);
    for index in 0..packets {
        let sequence = index / SEQUENCE;
        let run = core.payload(&Packet::new(index, parameters.packet, BYTES, sequence))?;
        cores[(sequence % parameters.hpus) as usize] += run.counts.cycles;
        instructions += run.counts.instructions;
        loads += run.description_loads;
    }
    let slowest = cores.iter().max().copied().unwrap_or(0);
    Ok(Pulp {
        gigabits: gigabits(BYTES, parameters.cycles(slowest)),
        instructions,
        cycles: cores.iter().sum(),
        description_loads: loads as f64 / packets as f64,
    })
}

/// Cycles that a load from L2 waits in figures 10 and 11: the paper does not say how many.
const WAITS: [u32; 3] = [0, 10, 50];

/// Figures 10 and 11: throughput and instructions per cycle of RW-CP on PULP.
pub(super) fn figures_10_11(study: &mut Study<'_>) -> Result<[Figure; 2], Error> {
    let (mut rates, mut ipc) = (Vec::new(), Vec::new());
    // Loads from the description with the shortest and the longest blocks, and cycles of 8 blocks.
    let (mut loads, mut eight) = (Vec::new(), 0);
    for wait in WAITS {
        let (mut rate, mut per_cycle) = (Vec::new(), Vec::new());
        for block in [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192] {
            let pulp = pulp(block, wait)?;
            rate.push((block as f64, pulp.gigabits));
            per_cycle.push((block as f64, pulp.instructions as f64 / pulp.cycles as f64));
            if block == 32 || block == 2048 {
                loads.push(pulp.description_loads);
            }
            if block == 256 && wait == 0 {
                eight = pulp.cycles / 512;
            }
        }
        let name = format!("rw-cp, loads from L2 wait {wait} cycles");
        rates.push(Series::new(&name, rate));
        ipc.push(Series::new(&name, per_cycle));
    }
    study.step("figures 10 and 11");
    let mut first = Figure {
        number: "10",
        title: "RW-CP on 32 cores at 1 GHz, packets in memory",
        x: "bytes of a block",
        y: "Gbit/s",
        series: rates,
        claims: Vec::new(),
    };
    let reached: Vec<f64> = first.series.iter().map(|s| first_at(s, 200.0)).collect();
    let words: Vec<String> = reached.iter().map(f64::to_string).collect();
    // Line rate: 32 cores have 32 T_pkt for a packet.
    let least = Parameters::PAPER.packet_time() * 32 / 1000;
    first.claim(
        "RW-CP has line rate from which block size on",
        "above 256 bytes",
        format!(
            "from {} bytes on, if loads from L2 wait {} cycles",
            words.join(", "),
            WAITS.map(|wait| wait.to_string()).join(", ")
        ),
        Held::or_differs(
            reached.iter().all(|block| (256.0..=512.0).contains(block)),
            &format!(
                "with blocks of 256 bytes our handler takes {eight} cycles a packet; the paper's takes about {least}, or it \
                 would have line rate with shorter ones"
            ),
        ),
    );
    let mut second = Figure {
        number: "11",
        title: "RW-CP: instructions per cycle",
        x: "bytes of a block",
        y: "instructions per cycle",
        series: ipc,
        claims: Vec::new(),
    };
    let (short, long): (Vec<f64>, Vec<f64>) = second
        .series
        .iter()
        .map(|series| (series.at(32.0), series.at(2048.0)))
        .unzip();
    let listed = |all: &[f64]| {
        let all: Vec<String> = all.iter().map(|ipc| format!("{ipc:.2}")).collect();
        all.join(", ")
    };
    let is_lower = short.iter().zip(&long).all(|(short, long)| short < long);
    second.claim(
        "shorter blocks have fewer instructions per cycle, as they load more from L2: 32 and 2048 bytes",
        "fewer",
        format!("{} and {}", listed(&short), listed(&long)),
        Held::or_differs(
            is_lower,
            &format!(
                "our handler loads {:.1} words of the description with 64 blocks in a packet and {:.1} with one: its loop over \
                 blocks has them in registers",
                loads[0], loads[1]
            ),
        ),
    );
    Ok([first, second])
}

fn first_at(series: &Series, least: f64) -> f64 {
    let point = series.points.iter().find(|point| point.1 >= least);
    point.map_or(f64::INFINITY, |point| point.0)
}

/// Figure 12: what payload handlers spend their cycles on.
pub(super) fn figure_12(study: &mut Study<'_>) -> Result<Figure, Error> {
    let parameters = Parameters::PAPER.with_hpus(16);
    let gammas: [u32; 5] = [1, 2, 4, 8, 16];
    let mut works: Vec<(Strategy, u32, Work)> = Vec::new();
    let series = by_strategy(&gammas, |strategy, gamma| {
        let layout = vector(MESSAGE, parameters.packet / u64::from(gamma))?;
        let received = received(&layout, &parameters, strategy, false)?;
        study.step("figure 12");
        let outcome = received.report.outcomes[0];
        works.push((strategy, gamma, outcome.work));
        Ok(outcome.work.cycles() as f64 / outcome.handlers as f64)
    })?;
    let mut figure = Figure {
        number: "12",
        title: "Cycles of a payload handler, 16 HPUs",
        x: "blocks per packet",
        y: "cycles",
        series,
        claims: Vec::new(),
    };
    let least = works
        .iter()
        .filter(|(strategy, ..)| *strategy == Strategy::HpuLocal)
        .map(|(.., work)| 100.0 * work.setup as f64 / work.cycles() as f64)
        .fold(100.0, f64::min);
    figure.claim(
        "HPU-local: setup with its catch-up dominates with 1 to 16 blocks per packet",
        "always",
        format!("at least {least:.0} % of the cycles"),
        least > 50.0,
    );
    // Seven packets behind the checkpoint.
    let layout = vector(MESSAGE, 128)?;
    let mut plan = planned(&layout, &parameters, Strategy::RoCp)?;
    if let Some(interval) = &mut plan.interval {
        interval.packets = 8;
    }
    let mut handlers = handlers(&layout, &plan, &parameters)?;
    let mut work = |index: u64| {
        let packet = Packet::new(index, parameters.packet, MESSAGE, 0);
        handlers.payload(&packet, &mut Vec::new())
    };
    // At a checkpoint setup has the copy and no catch-up.
    let (near, behind) = (work(8), work(7));
    let share = 100.0 * (behind.setup - near.setup) as f64 / behind.cycles() as f64;
    figure.claim(
        "RO-CP: share of the catch-up with 16 blocks per packet, seven packets behind",
        "87 %",
        format!("{share:.0} %"),
        Held::or_differs(
            (82.0..92.0).contains(&share),
            &format!(
                "our handlers pass over a block in {} cycles and issue one in {}",
                costs(Strategy::RoCp).skipped_block,
                costs(Strategy::RoCp).block
            ),
        ),
    );
    let init = |of: Strategy| {
        let found = works
            .iter()
            .find(|(strategy, gamma, _)| *strategy == of && *gamma == 1);
        found.map_or(0, |(.., work)| work.init / (MESSAGE / parameters.packet))
    };
    let (special, local) = (init(Strategy::Specialized), init(Strategy::HpuLocal));
    let (ro, rw) = (init(Strategy::RoCp), init(Strategy::RwCp));
    figure.claim(
        "RO-CP spends more time in init, where the checkpoint is copied, than RW-CP, HPU-local and the specialised handler",
        "more",
        format!("{ro} cycles, {rw}, {local} and {special}"),
        ro > rw.max(local).max(special),
    );
    // The handler with one block, with and without the rest of the paper's segment.
    let cycles = figure.at("ro-cp", 1.0);
    let (theirs, ours) = (
        copy_cycles(PAPER_CHECKPOINT as usize)? as f64,
        copy_cycles(CHECKPOINT as usize)? as f64,
    );
    let (large, small) = (
        100.0 * theirs / (cycles - ours + theirs),
        100.0 * ours / cycles,
    );
    figure.claim(
        "RO-CP is limited by the copy of the segment: its share with one block per packet, 612 bytes and our 108",
        "most",
        format!("{large:.0} % and {small:.0} % ({theirs:.0} and {ours:.0} cycles)"),
        large > 50.0,
    );
    let (mut counted, mut is_less) = (Vec::new(), true);
    for (strategy, when) in [(Strategy::RoCp, ""), (Strategy::RwCp, " that reverts")] {
        for gamma in [1, 16] {
            let (theirs, ours) = segment_cycles(strategy, gamma)?;
            counted.push(format!(
                "{strategy}{when}, {gamma} per packet: {theirs} and {ours}"
            ));
            is_less &= ours < theirs;
        }
    }
    figure.claim(
        "cycles of a packet that copies its checkpoint: the same handlers compiled for the paper's segment of 612 bytes, and \
         ours of 108, with 1 and 16 blocks per packet",
        "612 bytes",
        counted.join("; "),
        is_less,
    );
    let ratios = gammas
        .map(|gamma| figure.at("rw-cp", gamma.into()) / figure.at("specialized", gamma.into()));
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    figure.claim(
        "RW-CP takes how many times the cycles of the specialised handler, with 1 to 16 blocks per packet",
        "2",
        format!("{:.2} to {:.2}, geometric mean {mean:.2}", ratios[0], ratios[4]),
        Held::or_differs(
            (1.7..2.3).contains(&mean),
            &format!(
                "a block takes {} cycles in ours and {} in the specialised handler",
                costs(Strategy::RwCp).block,
                costs(Strategy::Specialized).block
            ),
        ),
    );
    Ok(figure)
}

/// Cycles of a packet's handler that copies its checkpoint and has nothing to catch up with: with
/// segments of 612 bytes and with ours. RO-CP copies for each packet, RW-CP for one that lies
/// behind its state.
fn segment_cycles(strategy: Strategy, gamma: u64) -> Result<(u64, u64), Error> {
    const INTERVAL: u64 = 8;
    let bytes = Parameters::PAPER.packet;
    let image = vector(MESSAGE, bytes / gamma)?.image()?;
    let (interval, timing) = ((INTERVAL * bytes) as u32, Timing::CV32E40P);
    // The second time the state is behind the packet.
    let last = |mut core: CoreHandlers| -> Result<u64, Error> {
        let packet = Packet::new(INTERVAL, bytes, MESSAGE, 0);
        core.payload(&packet)?;
        Ok(core.payload(&packet)?.counts.cycles)
    };
    let theirs = CoreHandlers::with_paper_segment(image.clone(), strategy, interval, timing)?;
    let ours = CoreHandlers::new(image, strategy, 1, interval, timing)?;
    Ok((last(theirs)?, last(ours)?))
}

/// Figure 13a: throughput by the number of HPUs, whole packets.
pub(super) fn figure_13a(study: &mut Study<'_>) -> Result<Figure, Error> {
    let layout = vector(MESSAGE, 2048)?;
    let hpus: &[u32] = if study.is_quick {
        &[1, 2, 3, 4, 8, 32]
    } else {
        &[1, 2, 3, 4, 6, 8, 12, 16, 32]
    };
    let series = by_strategy(hpus, |strategy, count| {
        let parameters = Parameters::PAPER.with_hpus(count.into());
        let received = received(&layout, &parameters, strategy, false)?;
        study.step("figure 13a");
        Ok(received.throughput(MESSAGE))
    })?;
    let mut figure = Figure {
        number: "13a",
        title: "Receiving 4 MiB in blocks of 2 KiB",
        x: "HPUs",
        y: "Gbit/s",
        series,
        claims: Vec::new(),
    };
    let needed = |name: &str| figure.reaches(name, LINE).unwrap_or(f64::INFINITY);
    let (special, local) = (needed("specialized"), needed("hpu-local"));
    let (ro, rw) = (needed("ro-cp"), needed("rw-cp"));
    figure.claim(
        "HPUs with which the specialised handler has line rate",
        "2",
        format!("{special}"),
        Held::or_differs(
            special <= 2.0,
            "our specialised handler takes more cycles before its first request: it reads the description and divides",
        ),
    );
    figure.claim(
        "the others need more: RW-CP, RO-CP, HPU-local",
        "more than 2",
        format!("{rw}, {ro}, {local}"),
        Held::or_differs(
            rw.min(ro).min(local) > 2.0,
            "with one block per packet our RW-CP handler is short enough for two",
        ),
    );
    Ok(figure)
}

/// Checkpoints of RW-CP by the paper's formula, without our repairs, of 612 bytes each.
fn formula(block: u64, parameters: &Parameters) -> Result<u64, Error> {
    let plan = planned(&vector(MESSAGE, block)?, parameters, Strategy::RwCp)?;
    let found = interval(
        parameters,
        plan.packets,
        plan.handler,
        MILLION / 5,
        PAPER_CHECKPOINT,
        parameters.nic_memory,
    )?;
    Ok(plan.packets.div_ceil(found.packets) * PAPER_CHECKPOINT)
}

const KIB: f64 = 1024.0;

/// Figures 13b and 13c: NIC memory by block size and by the number of HPUs.
pub(super) fn figures_13bc(study: &mut Study<'_>) -> Result<[Figure; 2], Error> {
    const PAPER: &str = "rw-cp by the formula, 612 bytes each";
    let blocks: [u32; 7] = [32, 64, 128, 256, 512, 1024, 2048];
    let sixteen = Parameters::PAPER.with_hpus(16);
    let mut series = by_strategy(&blocks, |strategy, block| {
        let plan = planned(&vector(MESSAGE, block.into())?, &sixteen, strategy)?;
        Ok(plan.nic_bytes as f64 / KIB)
    })?;
    let mut points = Vec::new();
    for block in blocks {
        points.push((
            f64::from(block),
            formula(block.into(), &sixteen)? as f64 / KIB,
        ));
    }
    series.push(Series::new(PAPER, points));
    study.step("figure 13b");
    let mut first = Figure {
        number: "13b",
        title: "NIC memory, 16 HPUs, 4 MiB",
        x: "bytes of a block",
        y: "KiB",
        series,
        claims: Vec::new(),
    };
    let same = |name: &str| {
        let of = |block: u32| first.at(name, block.into());
        blocks.iter().all(|block| of(*block) == of(32))
    };
    let is_fixed = same("specialized") && same("hpu-local");
    let (special, local) = (first.at("specialized", 32.0), first.at("hpu-local", 32.0));
    first.claim(
        "memory of the specialised handler and of HPU-local by block size",
        "fixed",
        format!("{special:.2} and {local:.2} KiB"),
        is_fixed,
    );
    let (small, large) = (first.at("rw-cp", 32.0), first.at("rw-cp", 2048.0));
    first.claim(
        "memory of RW-CP with blocks of 32 and 2048 bytes",
        "grows",
        format!("{small:.1} and {large:.1} KiB with checkpoints of 108 bytes, two of each"),
        large > small,
    );
    // By hand: T_PH = 70 + 40 * 16 cycles = 887,500 ps, 128 packets for each of 16 HPUs, T_pkt =
    // 81,920 ps. (0.2 * 128 * 887,500 - 81,920) / (15 * 81,920) = 18.4; 2,048 / 18 = 113.8; 114 *
    // 612 = 69,768.
    let memory = sixteen.nic_memory;
    let found = interval(
        &sixteen,
        2048,
        887_500,
        MILLION / 5,
        PAPER_CHECKPOINT,
        memory,
    )?;
    let bytes = 2048u64.div_ceil(found.packets) * PAPER_CHECKPOINT;
    first.claim(
        "checkpoints by the formula with handlers of 710 cycles, 612 bytes each",
        "69768 bytes (computed by hand)",
        format!("{bytes} bytes"),
        bytes == 69_768,
    );

    let hpus: [u32; 5] = [2, 4, 8, 16, 32];
    let mut series = by_strategy(&hpus, |strategy, count| {
        let parameters = Parameters::PAPER.with_hpus(count.into());
        let plan = planned(&vector(MESSAGE, 256)?, &parameters, strategy)?;
        Ok(plan.nic_bytes as f64 / KIB)
    })?;
    let mut points = Vec::new();
    for count in hpus {
        let parameters = Parameters::PAPER.with_hpus(count.into());
        points.push((f64::from(count), formula(256, &parameters)? as f64 / KIB));
    }
    series.push(Series::new(PAPER, points));
    study.step("figure 13c");
    let mut second = Figure {
        number: "13c",
        title: "NIC memory, blocks of 256 bytes, 4 MiB",
        x: "HPUs",
        y: "KiB",
        series,
        claims: Vec::new(),
    };
    for (name, claim) in [
        ("hpu-local", "memory of HPU-local with 2 and 32 HPUs"),
        ("rw-cp", "memory of RW-CP with 2 and 32 HPUs"),
    ] {
        let (few, many) = (second.at(name, 2.0), second.at(name, 32.0));
        let ours = format!("{few:.1} and {many:.1} KiB");
        second.claim(claim, "grows", ours, many > few);
    }
    Ok([first, second])
}

/// Figures 14 and 15: the DMA queue.
pub(super) fn figures_14_15(study: &mut Study<'_>) -> Result<[Figure; 2], Error> {
    let parameters = Parameters::PAPER.with_hpus(16);
    let gammas: [u32; 5] = [1, 2, 4, 8, 16];
    let mut over_time = Vec::new();
    let series = by_strategy(&gammas, |strategy, gamma| {
        let layout = vector(MESSAGE, parameters.packet / u64::from(gamma))?;
        let report = received(&layout, &parameters, strategy, gamma == 16)?.report;
        study.step("figures 14 and 15");
        if gamma == 16 {
            // At most 200 points: the deepest of each part.
            let every = report.queue.len().div_ceil(200).max(1);
            let parts = report.queue.chunks(every);
            let deepest = parts.filter_map(|part| part.iter().max_by_key(|(_, depth)| *depth));
            let points = deepest.map(|(time, depth)| (*time as f64 / 1e6, *depth as f64));
            over_time.push(Series::new(strategy.name(), points.collect()));
        }
        Ok(report.deepest_queue as f64)
    })?;
    let mut first = Figure {
        number: "14",
        title: "The deepest DMA queue, 16 HPUs",
        x: "blocks per packet",
        y: "requests",
        series,
        claims: Vec::new(),
    };
    let all = first.series.iter().flat_map(|series| &series.points);
    let most = all.map(|point| point.1).fold(0.0, f64::max);
    first.claim(
        "requests in the DMA queue at most",
        "below 160",
        format!("{most}"),
        most < 160.0,
    );
    let (special, rw) = (first.at("specialized", 16.0), first.at("rw-cp", 16.0));
    let (ro, local) = (first.at("ro-cp", 16.0), first.at("hpu-local", 16.0));
    let mut second = Figure {
        number: "15",
        title: "The DMA queue over time, 16 blocks per packet",
        x: "us",
        y: "requests",
        series: over_time,
        claims: Vec::new(),
    };
    second.claim(
        "peaks: specialised and RW-CP above RO-CP and HPU-local",
        "above",
        format!("{special} and {rw}, {ro} and {local}"),
        Held::or_differs(
            special.min(rw) > ro.max(local),
            "the DMA requests of fast handlers leave the queue as fast as those of slow ones enter it",
        ),
    );
    Ok([first, second])
}
