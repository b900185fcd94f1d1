// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives that return while an engine still moves their bytes: over kernel threads in every
//! guest, over the modelled copy engines where the machine has them.

use std::time::{Duration, Instant};

use ioat_model::client::{self, Client};
use libcopy::offload::monitor::Way;
use libcopy::offload::{self, Async};
use libcopy::policy::Policy;
use libcopy::{Team, TeamKey, TransportKind};

use crate::harness::{Context, Outcome, Stop, skip};
use crate::kernel::{self, Stats};
use crate::request::with_each;
use crate::rng::Rng;
use crate::sys::{self, Board, Child};
use crate::{check, check_eq, tests};

tests!(offload:
    every_collective_and_every_byte(120), several_may_be_pending(60), random_touches(600),
    freeing_unmapping_and_forking(60), a_team_that_is_dropped_settles(60),
    the_root_is_killed(120), a_leaf_is_killed(120), every_way_and_the_monitor(120),
    the_engine_moves_the_interiors(60), overlap_with_computation(120),
    a_touch_after_a_tenth(120),
);

/// What byte `at` of a buffer is.
fn byte(seed: u64, at: usize) -> u8 {
    (at as u64 * 31 + (at as u64 >> 12) * 7 + seed * 13 + 1) as u8
}

fn write(bytes: &mut [u8], seed: u64) {
    for (at, slot) in bytes.iter_mut().enumerate() {
        *slot = byte(seed, at);
    }
}

/// Fails unless all bytes are as [`write`] left them.
fn verify(bytes: &[u8], seed: u64, what: &str) -> Outcome {
    match (0..bytes.len()).find(|at| bytes[*at] != byte(seed, *at)) {
        None => Ok(()),
        Some(at) => Err(Stop::Fail(format!(
            "{what}: byte {at} of {} is {}, not {}",
            bytes.len(),
            bytes[at],
            byte(seed, at)
        ))),
    }
}

fn join(key: &TeamKey, rank: usize, size: usize, choice: Async) -> Outcome<Team> {
    let mut policy = Policy::load()?;
    policy.asynchronous = choice;
    policy.offload_min = 64 << 10;
    policy.transport = Some(TransportKind::Kmod);
    Ok(Team::join_with(key, rank, size, policy)?)
}

const ENGINE: Async = Async::Fixed(Way::Engine);

/// Runs `body` as the ranks of a team.
fn team(size: usize, choice: Async, body: impl Fn(&mut Team) -> Outcome) -> Outcome {
    let key = TeamKey::random()?;
    let ranks = (0..size)
        .map(|rank| Child::spawn(|| body(&mut join(&key, rank, size, choice)?)))
        .collect::<Outcome<Vec<_>>>()?;
    let mut outcome = Ok(());
    for rank in ranks {
        let ended = rank.join();
        outcome = outcome.and(ended);
    }
    outcome
}

/// One collective with parts of `len` bytes, which start `skew` bytes into their buffers; what is
/// received is checked by `look`.
fn once(
    team: &mut Team,
    op: u64,
    root: usize,
    (len, skew): (usize, usize),
    seed: u64,
    look: &mut dyn FnMut(&[u8], &dyn Fn(&[u8]) -> Outcome) -> Outcome,
) -> Outcome {
    let (me, size) = (team.rank(), team.size());
    let mut part = vec![0_u8; len + skew];
    let mut all = vec![0_u8; len * size + skew];
    let (part, all) = (&mut part[skew..], &mut all[skew..]);
    let seed_of = |rank: usize| seed + rank as u64;
    let whole = |bytes: &[u8]| {
        (0..size).try_for_each(|rank| verify(&bytes[rank * len..][..len], seed_of(rank), "all"))
    };
    let mine = |bytes: &[u8]| verify(bytes, seed_of(me), "mine");
    match op {
        0 => {
            if me == root {
                write(part, seed);
            }
            team.bcast(part, root)?;
            look(part, &|bytes| verify(bytes, seed, "bcast"))?;
        }
        1 => {
            write(part, seed_of(me));
            team.gather(part, (me == root).then_some(&mut *all), root)?;
            if me == root {
                look(all, &whole)?;
            }
            look(part, &mine)?;
            // Nobody reads it any more once this returns.
            part.fill(0);
        }
        2 => {
            if me == root {
                for rank in 0..size {
                    write(&mut all[rank * len..][..len], seed_of(rank));
                }
            }
            team.scatter((me == root).then_some(&*all), part, root)?;
            look(part, &mine)?;
            all.fill(0);
        }
        3 => {
            write(part, seed_of(me));
            team.allgather(part, all)?;
            look(all, &whole)?;
            part.fill(0);
        }
        4 => {
            write(&mut all[me * len..][..len], seed_of(me));
            team.allgather_in_place(all)?;
            look(all, &whole)?;
        }
        _ => {
            let bytes = if me == root { &mut *all } else { &mut *part };
            let at = if me == root { me * len } else { 0 };
            write(&mut bytes[at..][..len], seed_of(me));
            team.gather_in_place(bytes, root)?;
            if me == root {
                look(bytes, &whole)?;
            }
        }
    }
    Ok(())
}

/// Every collective, root, length and offset; bytes go through the engine, and none is wrong.
fn every_collective_and_every_byte(_: &Context) -> Outcome {
    with_each(|| {
        let ((), bytes) = kernel::growth("bytes_engine", || {
            for size in [2, 3, 5] {
                team(size, ENGINE, |team| {
                    for (len, skew) in [(64 << 10, 0), (200_001, 1), (1 << 20, 4095), (300_000, 7)]
                    {
                        for op in 0..6 {
                            let root = (op as usize + len) % size;
                            once(team, op, root, (len, skew), op, &mut |bytes, check| {
                                check(bytes)
                            })?;
                        }
                    }
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        check!(bytes > 0, "no engine moved anything");
        Ok(())
    })
}

/// Several collectives on different buffers may be on their way; they are looked at in any order.
fn several_may_be_pending(_: &Context) -> Outcome {
    const LEN: usize = 3 << 20;
    with_each(|| {
        team(3, ENGINE, |team| {
            let mut buffers: Vec<Vec<u8>> = (0..6).map(|_| vec![0; LEN]).collect();
            for round in 0..3 {
                for (index, buffer) in buffers.iter_mut().enumerate() {
                    let (root, seed) = (index % 3, round * 10 + index as u64);
                    if team.rank() == root {
                        write(buffer, seed);
                    }
                    team.bcast(buffer, root)?;
                }
                for (index, buffer) in buffers.iter().enumerate().rev() {
                    verify(buffer, round * 10 + index as u64, "bcast")?;
                }
                // The same buffer again, without a look.
                for _ in 0..3 {
                    team.bcast(&mut buffers[0], 1)?;
                }
                team.barrier()?;
            }
            Ok(())
        })
    })
}

/// Touches at random times, places and from several threads.
fn random_touches(context: &Context) -> Outcome {
    const ROUNDS: u64 = 250;
    with_each(|| {
        let seed = context.seed;
        let before = Stats::read()?;
        team(3, ENGINE, |team| {
            let mut same = Rng::new(seed);
            let mut own = Rng::new(seed + 100 + team.rank() as u64);
            for round in 0..ROUNDS {
                let op = same.below(6);
                let root = same.index(3);
                let len = (64 << 10) + same.index(1 << 20);
                let skew = same.index(5000);
                let shape = (len, skew);
                once(team, op, root, shape, round, &mut |bytes, check| {
                    std::thread::sleep(Duration::from_micros(own.below(1500)));
                    match own.below(4) {
                        0 => {}
                        1 => {
                            std::hint::black_box(bytes[own.index(bytes.len())]);
                        }
                        2 => offload::settle(&bytes[own.index(bytes.len())], 1)?,
                        _ => std::thread::scope(|scope| {
                            for _ in 0..3 {
                                let at = own.index(bytes.len());
                                scope.spawn(move || std::hint::black_box(bytes[at]));
                            }
                        }),
                    }
                    check(bytes)
                })
                .map_err(|stop| match stop {
                    Stop::Fail(why) => Stop::Fail(format!(
                        "round {round}, op {op}, {shape:?}, root {root}: {why}"
                    )),
                    other => other,
                })?;
            }
            Ok(())
        })?;
        let after = Stats::read()?;
        print!(
            "[{ROUNDS} rounds: {} KiB by engine, {} KiB by CPUs, {} switches] ",
            after.since(&before, "bytes_engine")? >> 10,
            after.since(&before, "bytes_cpu")? >> 10,
            after.since(&before, "switches")?
        );
        Ok(())
    })
}

/// Memory that goes while it is pending does no harm to what comes in its place.
fn freeing_unmapping_and_forking(_: &Context) -> Outcome {
    const LEN: usize = 4 << 20;
    with_each(|| {
        team(2, ENGINE, |team| {
            for round in 0..20 {
                let mut bytes = vec![0_u8; LEN];
                if team.rank() == 0 {
                    write(&mut bytes, round);
                }
                team.bcast(&mut bytes, 0)?;
                match round % 4 {
                    // The allocator unmaps it, and gives the place to the next one.
                    0 => {
                        drop(bytes);
                        let other = vec![9_u8; LEN];
                        check!(other.iter().all(|byte| *byte == 9), "round {round}");
                    }
                    1 => {
                        offload::settle(bytes.as_ptr(), LEN)?;
                        drop(bytes);
                    }
                    2 => sys::in_child(|| verify(&bytes, round, "in the child"))?,
                    _ => {
                        // A system call needs it settled.
                        offload::settle(bytes.as_ptr(), LEN)?;
                        let (reader, writer) = sys::pipe()?;
                        let mut file = std::fs::File::from(writer);
                        std::io::Write::write_all(&mut file, &bytes[LEN / 2..][..1000])?;
                        drop((file, reader));
                    }
                }
            }
            Ok(())
        })
    })
}

/// Whoever leaves waits for what is pending: the others get all their bytes.
fn a_team_that_is_dropped_settles(_: &Context) -> Outcome {
    const LEN: usize = 8 << 20;
    with_each(|| {
        for _ in 0..5 {
            let key = TeamKey::random()?;
            let rank = |rank| {
                Child::spawn(move || {
                    let mut bytes = vec![0_u8; LEN];
                    let mut team = join(&key, rank, 2, ENGINE)?;
                    if rank == 0 {
                        write(&mut bytes, 3);
                    }
                    team.bcast(&mut bytes, 0)?;
                    if rank == 0 {
                        drop(team);
                        check_eq!(offload::pending(), 0);
                        bytes.fill(0);
                        return Ok(());
                    }
                    verify(&bytes, 3, "after the root left")
                })
            };
            let ranks = [rank(0)?, rank(1)?];
            for rank in ranks {
                rank.join()?;
            }
        }
        Ok(())
    })
}

const RETURNED: usize = 0;
const KILLED: usize = 1;
const WHOLE: usize = 2;
const LOST: usize = 3;

extern "C" fn lost(_: i32) {
    // SAFETY: ends this process.
    unsafe { libc::_exit(77) };
}

/// A rank dies after the collective returned. `op` 0: bcast, the root dies; 1: gather, a leaf dies.
fn killed(op: u64) -> Outcome {
    const LEN: usize = 16 << 20;
    let rounds = 12;
    let board = Board::new()?;
    let (mut whole, mut lost_ones, mut crashes) = (0, 0, 0);
    for round in 0..rounds {
        for index in [RETURNED, KILLED, WHOLE, LOST] {
            board.set(index, 0);
        }
        let key = TeamKey::random()?;
        let survivor = 1 - op as usize;
        let member = |rank: usize| {
            let board = &board;
            Child::spawn(move || {
                let mut team = join(&key, rank, 2, ENGINE)?;
                let mut bytes = vec![0_u8; LEN];
                let mut all = vec![0_u8; 2 * LEN];
                if op == 0 {
                    if rank == 0 {
                        write(&mut bytes, 1);
                    }
                    team.bcast(&mut bytes, 0)?;
                } else {
                    write(&mut bytes, 1);
                    team.gather(&bytes, (rank == 0).then_some(&mut all[..]), 0)?;
                }
                board.bump(RETURNED);
                if rank != survivor {
                    std::thread::sleep(Duration::from_secs(600));
                }
                board.await_at_least(KILLED, 1)?;
                let got = if op == 0 { &bytes[..] } else { &all[LEN..] };
                if round % 2 == 0 {
                    // A touch: right bytes or SIGBUS.
                    // SAFETY: the handler has the right signature.
                    unsafe {
                        libc::signal(libc::SIGBUS, lost as extern "C" fn(i32) as usize);
                    }
                    verify(got, 1, "touched after the death")?;
                    board.bump(WHOLE);
                } else {
                    match offload::settle(got.as_ptr(), LEN) {
                        Ok(()) => {
                            verify(got, 1, "settled after the death")?;
                            board.bump(WHOLE);
                        }
                        Err(error) => {
                            check!(error.to_string().contains("died"), "{error}");
                            board.bump(LOST);
                            // The memory can be used again.
                            std::hint::black_box(got[LEN / 2]);
                        }
                    }
                }
                // The team is broken, and says so.
                std::thread::sleep(Duration::from_millis(300));
                check!(team.barrier().is_err(), "the team is whole");
                Ok(())
            })
        };
        let victim = member(1 - survivor)?;
        let other = member(survivor)?;
        board.await_at_least(RETURNED, 2)?;
        victim.kill()?;
        board.set(KILLED, 1);
        match other.join() {
            Err(Stop::Fail(why)) if why.contains("77") && round % 2 == 0 => crashes += 1,
            outcome => outcome?,
        }
        whole += board.get(WHOLE);
        lost_ones += board.get(LOST);
    }
    check_eq!(whole + lost_ones + crashes, rounds);
    print!("[{rounds} kills: {whole} whole, {lost_ones} errors, {crashes} SIGBUS] ");
    Ok(())
}

fn the_root_is_killed(_: &Context) -> Outcome {
    with_each(|| killed(0))
}

fn a_leaf_is_killed(_: &Context) -> Outcome {
    with_each(|| killed(1))
}

/// All ways give the same bytes, also if they change from call to call.
fn every_way_and_the_monitor(_: &Context) -> Outcome {
    with_each(|| {
        for choice in Way::ALL.map(Async::Fixed).into_iter().chain([Async::Auto]) {
            team(3, choice, |team| {
                let mut bytes = vec![0_u8; 1 << 20];
                for round in 0..30 {
                    if team.rank() == 1 {
                        write(&mut bytes, round);
                    }
                    team.bcast(&mut bytes, 1)?;
                    verify(&bytes, round, "bcast")?;
                    // Before the root writes again all must have looked.
                    team.barrier()?;
                }
                Ok(())
            })?;
        }
        Ok(())
    })
}

// ------------------------------------------------------------------------------------------------
// With the modelled copy engines, whose bandwidth can be set and whose bytes can be counted.

fn ask(request: &str) -> Outcome {
    let mut client = Client::in_guest().map_err(|e| e.to_string())?;
    client.ask(request).map_err(|e| e.to_string())?;
    Ok(())
}

/// A bandwidth for all engines; given back at the end.
struct Bandwidth;

impl Bandwidth {
    fn new(limit: &str) -> Outcome<Self> {
        if std::env::var_os("LIBCOPY_IOAT").is_none() {
            return skip("no modelled copy engines (scripts/vm --ioat)");
        }
        ask(&format!("bandwidth * {limit}"))?;
        Ok(Bandwidth)
    }
}

impl Drop for Bandwidth {
    fn drop(&mut self) {
        let _ = ask("bandwidth * max");
    }
}

/// Bytes that all channels have copied.
fn engine_bytes() -> Outcome<u64> {
    let mut bytes = 0;
    for function in client::functions()? {
        let client = Client::of(&function).map_err(|e| e.to_string())?;
        bytes += client.progress().map_err(|e| e.to_string())?.bytes;
    }
    Ok(bytes)
}

/// Waits until the engine is done, without touching anything.
fn await_done(before: &Stats, requests: i64) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Stats::read()?.since(before, "requests_done")? < requests {
        check!(Instant::now() < deadline, "the engine does not end");
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

/// Must-show 2: the engine moves exactly the whole pages of the leaves' buffers.
fn the_engine_moves_the_interiors(_: &Context) -> Outcome {
    const LEN: usize = 8 << 20;
    let _bandwidth = Bandwidth::new("max")?;
    let board = Board::new()?;
    // The channels prove themselves with a copy when they are first used.
    team(3, ENGINE, |team| {
        once(team, 0, 0, (1 << 20, 0), 1, &mut |b, check| check(b))
    })?;
    let (before, bytes) = (Stats::read()?, engine_bytes()?);
    team(3, ENGINE, |team| {
        let mut buffer = vec![0_u8; LEN + 4096];
        // All buffers start 100 bytes into a page, so that the root's pages are the leaves'.
        let skew = (100 + 4096 - buffer.as_ptr() as usize % 4096) % 4096;
        let part = &mut buffer[skew..][..LEN];
        if team.rank() == 0 {
            write(part, 5);
        }
        team.bcast(part, 0)?;
        await_done(&before, 2)?;
        board.bump(0);
        board.await_at_least(0, 3)?;
        verify(part, 5, "bcast")
    })?;
    let interior = (LEN as u64 - 3996) / 4096 * 4096;
    let moved = engine_bytes()? - bytes;
    print!("[{moved} bytes by the model, 2 interiors of {interior}] ");
    check_eq!(moved, 2 * interior);
    check_eq!(Stats::read()?.since(&before, "bytes_cpu")?, 0);
    Ok(())
}

/// Something to do that touches no buffer.
fn compute(time: Duration) -> u64 {
    let start = Instant::now();
    let mut sum = 1_u64;
    while start.elapsed() < time {
        for _ in 0..1000 {
            sum = std::hint::black_box(sum.wrapping_mul(6364136223846793005).wrapping_add(1));
        }
    }
    sum
}

fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Must-show 3: computation hides the copy.
fn overlap_with_computation(_: &Context) -> Outcome {
    const LEN: usize = 8 << 20;
    let _bandwidth = Bandwidth::new("100M")?;
    let board = Board::new()?;
    team(2, ENGINE, |team| {
        let mut bytes = vec![1_u8; LEN];
        let root = team.rank() == 0;
        let (mut copies, mut calls, mut boths) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..4 {
            // The copy alone: nobody touches anything until it is done.
            team.barrier()?;
            let before = Stats::read()?;
            team.barrier()?;
            let (start, used) = (Instant::now(), thread_time());
            team.bcast(&mut bytes, 0)?;
            calls.push(thread_time() - used);
            await_done(&before, 1)?;
            copies.push(start.elapsed());
            team.barrier()?;
            let copy = *copies.iter().min().ok_or_else(|| "no copy".to_owned())?;
            team.barrier()?;
            let start = Instant::now();
            team.bcast(&mut bytes, 0)?;
            compute(copy.mul_f64(1.05));
            offload::settle(bytes.as_ptr(), LEN)?;
            boths.push((
                start.elapsed().as_secs_f64(),
                copy.mul_f64(1.05).as_secs_f64(),
            ));
            team.barrier()?;
            board.bump(round);
        }
        if root {
            let copy = copies
                .iter()
                .min()
                .ok_or_else(|| "none".to_owned())?
                .as_secs_f64();
            let call = calls
                .iter()
                .min()
                .ok_or_else(|| "none".to_owned())?
                .as_secs_f64();
            let ratio = boths
                .iter()
                .map(|(both, longer)| both / longer)
                .fold(f64::MAX, f64::min);
            print!(
                "[copy {:.1} ms; bcast and computation {ratio:.3} of the longer; the root's CPU {:.2} % of the copy] ",
                copy * 1e3,
                100.0 * call / copy
            );
            let _ = std::io::Write::flush(&mut std::io::stdout());
            check!(
                ratio <= 1.15,
                "bcast and computation take {ratio:.3} of the longer"
            );
            check!(
                call < 0.05 * copy,
                "the root used {call} s for a copy of {copy} s"
            );
        }
        Ok(())
    })
}

/// Must-show 4: a touch after a tenth of a transfer has CPUs finish it.
fn a_touch_after_a_tenth(_: &Context) -> Outcome {
    const LEN: usize = 64 << 20;
    const BANDWIDTH: f64 = 50e6;
    let _bandwidth = Bandwidth::new("50M")?;
    let before = Stats::read()?;
    team(2, ENGINE, |team| {
        let mut bytes = vec![0_u8; LEN];
        if team.rank() == 0 {
            write(&mut bytes, 4);
        }
        team.barrier()?;
        let alone = LEN as f64 / BANDWIDTH;
        let start = Instant::now();
        team.bcast(&mut bytes, 0)?;
        let returned = start.elapsed();
        std::thread::sleep(Duration::from_secs_f64(alone / 10.0).saturating_sub(returned));
        if team.rank() == 1 {
            std::hint::black_box(bytes[LEN - 5000]);
            let took = start.elapsed().as_secs_f64();
            print!(
                "[engine alone {alone:.2} s; returned after {:.1} ms; whole after {took:.2} s, {:.2} of it] ",
                returned.as_secs_f64() * 1e3,
                took / alone
            );
            let _ = std::io::Write::flush(&mut std::io::stdout());
            check!(took <= 0.7 * alone, "{took} s of {alone} s");
        }
        verify(&bytes, 4, "bcast")
    })?;
    let after = Stats::read()?;
    let (engine, cpu) = (
        after.since(&before, "bytes_engine")?,
        after.since(&before, "bytes_cpu")?,
    );
    print!(
        "[{} MiB by the engine, {} MiB by CPUs] ",
        engine >> 20,
        cpu >> 20
    );
    check!(engine > 0 && cpu > 0, "{engine} {cpu}");
    Ok(())
}
