// SPDX-License-Identifier: MIT OR Apache-2.0

//! The module alone: what each ioctl costs, what mapping costs, how fast it copies, and what
//! fragmented layouts cost, beside `process_vm_readv` and `memcpy` in the same rounds.
//!
//! One process plays owner and peer: neither the module nor `process_vm_readv` takes a shorter
//! way when both are the same.

use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::ProgressBar;
use libcopy::device::{Attachment, Device, Domain, RegionId, Rights};
use libcopy::topology;
use libcopy::uapi;
use libcopy_measure::buffer::{Pages, Skewed};
use libcopy_measure::machine::Machine;
use libcopy_measure::output::Output;
use libcopy_measure::progress;
use libcopy_measure::report::{Ratio, Report, Row};
use libcopy_measure::{pattern, sizes};
use nix::unistd::getppid;
use std::io::IoSlice;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// `libcopy bench device`
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Message sizes: `4K,1M`, `4K-16M` (steps of four), `4K-1M:2` (steps of two)
    #[arg(long, value_name = "LIST")]
    pub sizes: Option<sizes::Sizes>,

    /// Rounds in which the variants take turns
    #[arg(long, default_value_t = 7)]
    pub rounds: usize,

    /// Fewer sizes and less time: under a minute
    #[arg(long)]
    pub quick: bool,

    #[command(flatten)]
    pub output: Output,
}

/// Block and distance of the ranges of a region: half of each cache line pair.
const BLOCK: usize = 64;
const STRIDE: usize = 128;
/// Pieces of the copies from many pieces.
const PIECES: usize = 1024;

/// One way to fill a buffer.
type Fill<'a> = Box<dyn FnMut(&mut [u8]) -> Result<()> + Send + 'a>;

struct Run {
    domain: Domain,
    cores: Vec<usize>,
    rounds: usize,
    /// Time for one variant in one round.
    slice: Duration,
    /// When it began, and how long it is to take.
    started: Instant,
    budget: Duration,
    asked_rounds: usize,
    bar: ProgressBar,
    rows: Vec<Row>,
    notes: Vec<String>,
    round_number: u64,
}

/// Runs `libcopy bench device`.
pub fn run(args: &DeviceArgs) -> Result<()> {
    let info = Device::open().and_then(|d| d.info()).context(
        "the device benchmark needs the kernel module. On a machine without it run \
         `scripts/vm run target/release/libcopy bench device --quick`",
    )?;
    let sizes = match &args.sizes {
        Some(sizes) => sizes.0.clone(),
        None if args.quick => sizes::range(4 << 10, 16 << 20, 16),
        None => sizes::range(4 << 10, 64 << 20, 4),
    };
    let sizes: Vec<usize> = sizes.into_iter().filter(|s| *s > 0).collect();
    let machine = Machine::here();
    let cores = topology::affinity();
    topology::pin(&cores, 0);
    let kinds = [Pages::Small, Pages::Huge, Pages::Reserved];
    // ioctls, then per size: three kinds of pages, the copies, pieces, ranges, attach.
    let steps = 1 + sizes.len() * (kinds.len() + 2 * cores.len() + 3);
    let mut run = Run {
        domain: Domain::create()?,
        cores,
        rounds: args.rounds.max(1),
        slice: Duration::from_millis(if args.quick { 10 } else { 60 }),
        started: Instant::now(),
        budget: Duration::from_secs(if args.quick { 45 } else { 600 }),
        asked_rounds: args.rounds.max(1),
        bar: progress::bar(steps as u64),
        rows: Vec::new(),
        notes: vec![format!(
            "module ABI {}, features {:#x}, {} copy engines; one process is owner and peer",
            info.abi_version, info.features, info.engines
        )],
        round_number: 1,
    };

    args.output.check(None)?;
    run.ioctls()?;
    for kind in kinds {
        for bytes in &sizes {
            run.step(&format!("map {} {}", kind.name(), sizes::short(*bytes)));
            if !run.map(kind, *bytes)? {
                break;
            }
        }
    }
    for kind in [Pages::Small, Pages::Huge] {
        for bytes in &sizes {
            for threads in 1..=run.cores.len() {
                run.step(&format!("copy {} {}", kind.name(), sizes::short(*bytes)));
                run.copy(kind, *bytes, threads)?;
            }
        }
    }
    for bytes in &sizes {
        let name = sizes::short(*bytes);
        run.step(&format!("pieces {name}"));
        run.pieces(*bytes)?;
        run.step(&format!("ranges {name}"));
        run.ranges(*bytes, info.features & uapi::FEATURE_ATTACH != 0)?;
        run.step(&format!("attach {name}"));
        if info.features & uapi::FEATURE_ATTACH != 0 {
            run.attach(*bytes)?;
        }
    }
    run.bar.finish_and_clear();

    let ratio = |variant: &str| Ratio::OfMemcpy(variant.into());
    let report = Report {
        title: "libcopy device".into(),
        machine,
        notes: run.notes,
        rows: run.rows,
        ratios: vec![
            ratio("libcopy-kmod"),
            ratio("libcopy-cma"),
            ratio("attach-first"),
            ratio("attach-touched"),
            Ratio::Faster("libcopy-kmod".into(), vec!["libcopy-cma".into()]),
            Ratio::Faster(
                "libcopy-kmod".into(),
                ["kmod-bulk", "cma-bulk"].map(str::to_owned).to_vec(),
            ),
        ],
    };
    // In the figure the kinds of pages are lines of one panel.
    let mut figure = report.clone();
    for row in &mut figure.rows {
        if let Some((what @ ("map" | "unmap" | "remap"), pages)) = row.op.clone().split_once('-') {
            (row.op, row.variant) = (what.to_owned(), pages.to_owned());
        }
    }
    args.output.write_with(&report, &figure)
}

/// `process_vm_readv` from this process: remote pieces, one after the other, fill `target`.
fn cma(remote: &[&[u8]], target: &mut [u8]) -> Result<()> {
    let pieces: Vec<libc::iovec> = remote
        .iter()
        .map(|p| libc::iovec {
            iov_base: p.as_ptr().cast_mut().cast(),
            iov_len: p.len(),
        })
        .collect();
    let mut done = 0;
    for batch in pieces.chunks(PIECES) {
        let length: usize = batch.iter().map(|p| p.iov_len).sum();
        let local = libc::iovec {
            iov_base: target[done..done + length].as_mut_ptr().cast(),
            iov_len: length,
        };
        // SAFETY: `local` is writable for its length, the remote pieces are readable slices of
        // this process.
        let n = unsafe {
            libc::process_vm_readv(
                libc::getpid(),
                &local,
                1,
                batch.as_ptr(),
                batch.len() as libc::c_ulong,
                0,
            )
        };
        if n < 0 {
            return Err(std::io::Error::last_os_error()).context("process_vm_readv");
        }
        ensure!(
            n as usize == length,
            "process_vm_readv copied {n} of {length} bytes"
        );
        done += length;
    }
    Ok(())
}

fn discard<T>(_: T) -> Result<()> {
    Ok(())
}

fn micros(time: Duration, calls: usize) -> f64 {
    time.as_secs_f64() * 1e6 / calls as f64
}

impl Run {
    fn step(&mut self, what: &str) {
        self.bar.inc(1);
        self.bar.set_message(what.to_owned());
        // On a busy or emulated machine: rather fewer rounds than sizes.
        let done = self.bar.position() as f64 / self.bar.length().unwrap_or(1).max(1) as f64;
        let late = self.started.elapsed().as_secs_f64() > done * self.budget.as_secs_f64();
        self.rounds = if late {
            self.asked_rounds.min(2)
        } else {
            self.asked_rounds
        };
    }

    /// Times ways to fill `target` in turns, after each has been checked.
    fn compare(
        &mut self,
        op: &str,
        target: &mut [u8],
        right: &dyn Fn(&str, &[u8]) -> bool,
        mut ways: Vec<(&str, Fill<'_>)>,
    ) -> Result<()> {
        let bytes = target.len();
        let mut verified = Vec::new();
        let mut calls = Vec::new();
        for (variant, way) in &mut ways {
            target.fill(0x5a);
            way(target).with_context(|| format!("{op} of {bytes} bytes with {variant}"))?;
            verified.push(right(variant, target));
            let start = Instant::now();
            way(target)?;
            let once = start.elapsed().max(Duration::from_nanos(50));
            calls.push((self.slice.as_nanos() / once.as_nanos()).clamp(1, 2000) as usize);
        }
        let mut timings = vec![Vec::new(); ways.len()];
        for round in 0..self.rounds {
            for turn in 0..ways.len() {
                let at = (round + turn) % ways.len();
                let way = &mut ways[at].1;
                way(target)?;
                // Short calls are timed in groups, or the clock would be what is measured.
                let group = (calls[at] / 50).max(1);
                for _ in 0..(calls[at] / group).max(1) {
                    let start = Instant::now();
                    for _ in 0..group {
                        way(target)?;
                    }
                    timings[at].push(micros(start.elapsed(), group));
                }
            }
        }
        let variants: Vec<String> = ways.iter().map(|(v, _)| (*v).to_owned()).collect();
        drop(ways);
        for ((variant, timings), verified) in variants.iter().zip(&timings).zip(verified) {
            self.rows
                .push(Row::timed(op, bytes, 1, variant, timings, verified)?);
        }
        Ok(())
    }

    /// What each ioctl costs that does as little as it can.
    fn ioctls(&mut self) -> Result<()> {
        self.step("ioctls");
        let mut timings: Vec<(&str, Vec<f64>)> = Vec::new();
        let memory = Skewed::new(8192, 0)?;
        let domain = Domain::create()?;
        let key = domain.key();
        let region = domain.share(&memory)?;
        let mut byte = [0u8; 1];
        type Step<'a> = Box<dyn FnMut() -> Result<()> + 'a>;
        let again = Skewed::new(4096, 2)?;
        let device = Device::open()?;
        let mut steps: Vec<(&str, Step<'_>)> = vec![
            (
                "syscall",
                Box::new(|| discard(std::hint::black_box(getppid()))),
            ),
            ("open-close", Box::new(|| discard(Device::open()?))),
            ("get-info", Box::new(|| discard(device.info()?))),
            (
                "domain-create-leave",
                Box::new(|| discard(Domain::create()?)),
            ),
            (
                "domain-join-leave",
                Box::new(|| discard(Domain::join(&key)?)),
            ),
            (
                "region-create-destroy",
                Box::new(|| discard(domain.share(&again)?)),
            ),
            (
                "region-info",
                Box::new(|| discard(domain.region_info(region.id())?)),
            ),
            (
                "region-copy-1-byte",
                Box::new(|| Ok(domain.copy_from(region.id(), 0, &mut byte)?)),
            ),
            (
                "attach-detach",
                Box::new(|| discard(domain.attach(region.id(), Rights::Read)?)),
            ),
        ];
        let mut left_out = Vec::new();
        for _ in 0..self.rounds {
            for (name, step) in &mut steps {
                if let Err(e) = step() {
                    let why = format!("left out: ioctl {name}: {e:#}");
                    if !left_out.contains(&why) {
                        left_out.push(why);
                    }
                    continue;
                }
                // Short calls are timed in groups, or the clock would be what is measured.
                let once = Instant::now();
                step()?;
                let group = if once.elapsed() < Duration::from_micros(100) {
                    20
                } else {
                    1
                };
                let started = Instant::now();
                for n in 0..20 {
                    if n >= 2 && started.elapsed() > self.slice {
                        break;
                    }
                    let start = Instant::now();
                    for _ in 0..group {
                        step()?;
                    }
                    let time = micros(start.elapsed(), group);
                    match timings.iter_mut().find(|(n, _)| n == name) {
                        Some((_, timings)) => timings.push(time),
                        None => timings.push((name, vec![time])),
                    }
                }
            }
        }
        drop(steps);
        self.notes.extend(left_out);
        for (name, timings) in timings {
            self.rows.push(Row::timed(
                &format!("ioctl-{name}"),
                0,
                1,
                "libcopy-kmod",
                &timings,
                true,
            )?);
        }
        Ok(())
    }

    /// Map, unmap, and map again while the pages are still pinned. False: not with these pages.
    fn map(&mut self, kind: Pages, bytes: usize) -> Result<bool> {
        let mut memory = match Skewed::with_pages(bytes, 1, kind) {
            Ok(memory) => memory,
            Err(e) => {
                self.notes
                    .push(format!("left out: {} pages: {e:#}", kind.name()));
                return Ok(false);
            }
        };
        pattern::fill(&mut memory, 1, 0);
        let mut copy = vec![0; bytes];
        let (mut map, mut unmap, mut remap) = (Vec::new(), Vec::new(), Vec::new());
        let region = match self.domain.share(&memory) {
            Ok(region) => region,
            Err(e) => {
                let (size, why) = (sizes::short(bytes), e.report());
                self.notes.push(format!("left out: map of {size}: {why}"));
                return Ok(false);
            }
        };
        self.domain.copy_from(region.id(), 0, &mut copy)?;
        let verified = pattern::first_difference(&copy, 1, 0).is_none();
        if kind == Pages::Huge && bytes >= 4 << 20 && huge_bytes()? < bytes / 2 {
            self.notes.push(format!(
                "{} of thp memory: the kernel gave few huge pages",
                sizes::short(bytes),
            ));
        }
        region.unpin()?;

        let started = Instant::now();
        let mut reused = 0;
        let budget = self.slice * 3 * self.rounds as u32;
        while map.len() < 5 || (started.elapsed() < budget && map.len() < 500) {
            let start = Instant::now();
            let region = self.domain.share(&memory)?;
            map.push(micros(start.elapsed(), 1));
            drop(region);
            let start = Instant::now();
            let region = self.domain.share(&memory)?;
            let time = micros(start.elapsed(), 1);
            if region.was_reused() {
                reused += 1;
                remap.push(time);
            }
            let start = Instant::now();
            region.unpin()?;
            unmap.push(micros(start.elapsed(), 1));
        }
        let name = kind.name();
        self.rows.push(Row::timed(
            &format!("map-{name}"),
            bytes,
            1,
            "libcopy-kmod",
            &map,
            verified,
        )?);
        self.rows.push(Row::timed(
            &format!("unmap-{name}"),
            bytes,
            1,
            "libcopy-kmod",
            &unmap,
            verified,
        )?);
        if reused == map.len() {
            self.rows.push(Row::timed(
                &format!("remap-{name}"),
                bytes,
                1,
                "libcopy-kmod",
                &remap,
                verified,
            )?);
        } else {
            self.notes.push(format!(
                "remap-{name} of {}: found again only {reused} of {} times",
                sizes::short(bytes),
                map.len()
            ));
        }
        Ok(true)
    }

    /// Threads that copy one region at the same time.
    fn copy(&mut self, kind: Pages, bytes: usize, threads: usize) -> Result<()> {
        let mut memory = Skewed::with_pages(bytes, 1, kind)?;
        let round = self.next_round();
        pattern::fill(&mut memory, round, 0);
        let domain = &self.domain;
        let region = domain.share(&memory)?;
        let id = region.id();
        let source: &[u8] = &memory;
        let variants = ["libcopy-kmod", "libcopy-cma", "memcpy"];
        let fill = |variant: usize, target: &mut [u8]| -> Result<()> {
            match variant {
                0 => domain.copy_from(id, 0, target)?,
                1 => cma(&[source], target)?,
                _ => target.copy_from_slice(std::hint::black_box(source)),
            }
            Ok(())
        };
        let (rounds, slice, cores) = (self.rounds, self.slice, &self.cores);
        let meet = Barrier::new(threads);
        // Each thread returns, per variant, its timings and whether the bytes were right.
        type Found = Vec<(Vec<f64>, bool)>;
        let results: Vec<Result<Found>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let (meet, fill) = (&meet, &fill);
                    scope.spawn(move || -> Result<Found> {
                        topology::pin(cores, thread);
                        let mut target = Skewed::with_pages(bytes, 3 + thread, kind)?;
                        let mut found = Vec::new();
                        let mut calls = Vec::new();
                        for variant in 0..variants.len() {
                            target.fill(0x5a);
                            fill(variant, &mut target)?;
                            let right = pattern::first_difference(&target, round, 0).is_none();
                            let start = Instant::now();
                            fill(variant, &mut target)?;
                            let once = start.elapsed().max(Duration::from_nanos(100));
                            let n = slice.as_nanos() / once.as_nanos();
                            calls.push(n.clamp(1, 300) as usize);
                            found.push((Vec::new(), right));
                        }
                        for round in 0..rounds {
                            for turn in 0..variants.len() {
                                let at = (round + turn) % variants.len();
                                fill(at, &mut target)?;
                                meet.wait();
                                for _ in 0..calls[at] {
                                    let start = Instant::now();
                                    fill(at, &mut target)?;
                                    found[at].0.push(micros(start.elapsed(), 1));
                                }
                                // A process that is done keeps the memory busy no longer; that
                                // hardly changes the median of the others.
                                meet.wait();
                            }
                        }
                        Ok(found)
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|w| {
                    w.join()
                        .unwrap_or_else(|_| anyhow::bail!("a copying thread panicked"))
                })
                .collect()
        });
        let results: Vec<Found> = results.into_iter().collect::<Result<_>>()?;
        drop(region);
        let op = match (kind, threads) {
            (Pages::Small, 1) => "copy".to_owned(),
            (Pages::Small, n) => format!("copy-{n}-threads"),
            (kind, 1) => format!("copy-{}", kind.name()),
            (kind, n) => format!("copy-{}-{n}-threads", kind.name()),
        };
        for (at, variant) in variants.iter().enumerate() {
            let timings: Vec<f64> = results
                .iter()
                .flat_map(|r| r[at].0.iter().copied())
                .collect();
            let verified = results.iter().all(|r| r[at].1);
            self.rows.push(Row::timed(
                &op, bytes, threads, variant, &timings, verified,
            )?);
        }
        Ok(())
    }

    fn next_round(&mut self) -> u64 {
        self.round_number += 1;
        self.round_number
    }

    /// A second membership, so that regions do not borrow `self`.
    fn domain_again(&self) -> Result<Domain> {
        Ok(Domain::join(&self.domain.key())?)
    }

    /// A region of many pieces.
    fn pieces(&mut self, bytes: usize) -> Result<()> {
        let count = PIECES.min(bytes / BLOCK).max(1);
        let piece = bytes / count;
        let bytes = piece * count;
        let round = self.next_round();
        // Pieces do not touch, or the kernel would find them contiguous.
        let mut memory = Skewed::new(2 * bytes, 1)?;
        let mut whole = vec![0; bytes];
        pattern::fill(&mut whole, round, 0);
        for (to, from) in memory
            .chunks_exact_mut(2 * piece)
            .zip(whole.chunks_exact(piece))
        {
            to[..piece].copy_from_slice(from);
        }
        let mut target = Skewed::new(bytes, 2)?;
        let slices: Vec<&[u8]> = memory
            .chunks_exact(2 * piece)
            .map(|c| &c[..piece])
            .collect();
        let shared: Vec<IoSlice<'_>> = slices.iter().map(|s| IoSlice::new(s)).collect();
        let domain = self.domain_again()?;
        let region = domain.share_slices(&shared)?;
        let (domain, id, slices) = (&domain, region.id(), &slices);
        let right = |_: &str, got: &[u8]| pattern::first_difference(got, round, 0).is_none();
        let ways: Vec<(&str, Fill<'_>)> = vec![
            (
                "libcopy-kmod",
                Box::new(|target: &mut [u8]| Ok(domain.copy_from(id, 0, target)?)),
            ),
            (
                "libcopy-cma",
                Box::new(|target: &mut [u8]| cma(slices, target)),
            ),
            (
                "memcpy",
                Box::new(|target: &mut [u8]| {
                    for (to, from) in target.chunks_exact_mut(piece).zip(slices.iter()) {
                        to.copy_from_slice(std::hint::black_box(from));
                    }
                    Ok(())
                }),
            ),
        ];
        self.compare(&format!("copy-{PIECES}-pieces"), &mut target, &right, ways)
    }

    /// Blocks of 64 bytes, 128 bytes apart: listed as ranges, or in bulk and unpacked, or loaded.
    fn ranges(&mut self, bytes: usize, attach: bool) -> Result<()> {
        let count = (bytes / BLOCK).max(1);
        let bytes = count * BLOCK;
        let round = self.next_round();
        let mut memory = Skewed::new(count * STRIDE, 1)?;
        let mut whole = vec![0; bytes];
        pattern::fill(&mut whole, round, 0);
        for (to, from) in memory
            .chunks_exact_mut(STRIDE)
            .zip(whole.chunks_exact(BLOCK))
        {
            to[..BLOCK].copy_from_slice(from);
        }
        let mut target = Skewed::new(bytes, 2)?;
        let mut bulk = Skewed::new(count * STRIDE, 3)?;
        let mut bulk_cma = Skewed::new(count * STRIDE, 4)?;
        let blocks: Vec<&[u8]> = memory.chunks_exact(STRIDE).map(|c| &c[..BLOCK]).collect();
        let domain = self.domain_again()?;
        let region = domain.share(&memory)?;
        let attachment = attach
            .then(|| domain.attach(region.id(), Rights::Read))
            .transpose()?;
        let (domain, id, blocks, memory) = (&domain, region.id(), &blocks, &memory);
        let right = |_: &str, got: &[u8]| pattern::first_difference(got, round, 0).is_none();
        let mut ways: Vec<(&str, Fill<'_>)> = vec![
            (
                "libcopy-kmod",
                Box::new(|target: &mut [u8]| {
                    let range = |index| uapi::Piece {
                        base: (index * STRIDE) as u64,
                        len: BLOCK as u64,
                    };
                    let mut ranges: Vec<_> = (0..count).map(range).collect();
                    Ok(domain.copy_from_ranges(id, 0, &mut ranges, target)?)
                }),
            ),
            (
                "kmod-bulk",
                Box::new(|target: &mut [u8]| {
                    domain.copy_from(id, 0, &mut bulk)?;
                    unpack(&bulk, target);
                    Ok(())
                }),
            ),
            (
                "cma-bulk",
                Box::new(|target: &mut [u8]| {
                    cma(&[memory], &mut bulk_cma)?;
                    unpack(&bulk_cma, target);
                    Ok(())
                }),
            ),
        ];
        // Already here a piece costs more than its bytes; beyond, seconds per call.
        if count <= 16 * PIECES {
            ways.push((
                "cma-iovec",
                Box::new(|target: &mut [u8]| cma(blocks, target)),
            ));
        }
        if let Some(attachment) = &attachment {
            ways.push((
                "attach",
                Box::new(|target: &mut [u8]| {
                    unpack_attached(attachment, target);
                    Ok(())
                }),
            ));
        }
        ways.push((
            "memcpy",
            Box::new(|target: &mut [u8]| {
                unpack(std::hint::black_box(memory), target);
                Ok(())
            }),
        ));
        self.compare("copy-ranges-64", &mut target, &right, ways)
    }

    /// Load and store through an attachment, the first time and later.
    fn attach(&mut self, bytes: usize) -> Result<()> {
        let round = self.next_round();
        let mut memory = Skewed::new(bytes, 1)?;
        pattern::fill(&mut memory, round, 0);
        let mut target = Skewed::new(bytes, 2)?;
        let domain = self.domain_again()?;
        let region = domain.share(&memory)?;
        let touched = domain.attach(region.id(), Rights::Read)?;
        touched.read(0, &mut target)?;
        let (domain, id, touched): (&Domain, RegionId, &Attachment) =
            (&domain, region.id(), &touched);
        let right = |_: &str, got: &[u8]| pattern::first_difference(got, round, 0).is_none();
        let ways: Vec<(&str, Fill<'_>)> = vec![
            (
                "attach-first",
                Box::new(|target: &mut [u8]| {
                    Ok(domain.attach(id, Rights::Read)?.read(0, target)?)
                }),
            ),
            (
                "attach-touched",
                Box::new(|target: &mut [u8]| Ok(touched.read(0, target)?)),
            ),
            (
                "libcopy-kmod",
                Box::new(|target: &mut [u8]| Ok(domain.copy_from(id, 0, target)?)),
            ),
            (
                "libcopy-cma",
                Box::new(|target: &mut [u8]| cma(&[&memory], target)),
            ),
            (
                "memcpy",
                Box::new(|target: &mut [u8]| {
                    target.copy_from_slice(std::hint::black_box(&memory));
                    Ok(())
                }),
            ),
        ];
        self.compare("read", &mut target, &right, ways)
    }
}

fn unpack(from: &[u8], to: &mut [u8]) {
    for (to, from) in to.chunks_exact_mut(BLOCK).zip(from.chunks_exact(STRIDE)) {
        to.copy_from_slice(&from[..BLOCK]);
    }
}

fn unpack_attached(from: &Attachment, to: &mut [u8]) {
    assert!(
        from.len() >= to.len() / BLOCK * STRIDE,
        "the region holds all blocks"
    );
    for (i, to) in to.chunks_exact_mut(BLOCK).enumerate() {
        // SAFETY: block `i` lies within the attachment, which the assertion checked; `to` is
        // memory of its own.
        unsafe {
            from.as_ptr()
                .add(i * STRIDE)
                .copy_to_nonoverlapping(to.as_mut_ptr(), BLOCK)
        };
    }
}

/// Bytes of this process in transparent huge pages.
fn huge_bytes() -> std::io::Result<usize> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    Ok(kib.unwrap_or(0) << 10)
}
