// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives that return while an engine still moves their bytes: over kernel threads in every
//! guest, over the modelled copy engines where the machine has them.

use std::time::{Duration, Instant};

use ioat_model::client::{self, Client};
use libcopy::offload::Executor;
use libcopy::offload::{self, Async};
use libcopy::policy::Policy;
use libcopy::{Team, TeamKey, TransportKind};

use crate::harness::{Context, Outcome, Stop, skip};
use crate::kernel::{self, Stats};
use crate::request_setup::{choose, engines_count, with_each};
use crate::rng::Rng;
use crate::sys::{self, Child, Map, SharedCounters};
use crate::{check, check_eq, tests};

tests!(offload:
    every_collective_and_every_byte(300), several_may_be_pending(180), random_touches(600),
    freeing_unmapping_and_forking(180), system_calls_wait(180), a_team_that_is_dropped_settles(180),
    the_root_is_killed(300), a_leaf_is_killed(300), every_way_and_the_monitor(300),
    huge_pages_are_waited_for(180),
    the_engine_moves_the_interiors(180), a_touch_has_cpus_finish(180), who_waits_helps(180),
);

/// What byte `at` of a buffer is.
fn byte(seed: u64, at: usize) -> u8 {
    (at as u64 * 31 + (at as u64 >> 12) * 7 + seed * 13 + 1) as u8
}

/// Bytes in which [`byte`] is 31 more from each to the next.
const STRETCH: usize = 4096;

/// What [`byte`] says, stretch by stretch: copied and compared as a whole, since a loop over bytes
/// takes minutes where the machine is emulated.
fn stretches(seed: u64, len: usize) -> impl Iterator<Item = (usize, &'static [u8])> {
    /// 31 times each number, further than one period.
    static MULTIPLES: [u8; STRETCH + 256] = {
        let mut bytes = [0; STRETCH + 256];
        let mut i = 0;
        while i < bytes.len() {
            bytes[i] = (31 * i) as u8;
            i += 1;
        }
        bytes
    };
    /// 31 times this is 1 (mod 256).
    const INVERSE: u8 = 223;
    (0..len).step_by(STRETCH).map(move |at| {
        let begin = usize::from(byte(seed, at).wrapping_mul(INVERSE));
        (at, &MULTIPLES[begin..][..STRETCH.min(len - at)])
    })
}

fn write(bytes: &mut [u8], seed: u64) {
    for (at, stretch) in stretches(seed, bytes.len()) {
        bytes[at..][..stretch.len()].copy_from_slice(stretch);
    }
}

/// Fails unless all bytes are as [`write`] left them.
fn verify(bytes: &[u8], seed: u64, what: &str) -> Outcome {
    let mut all = stretches(seed, bytes.len());
    let Some((start, _)) = all.find(|(at, stretch)| bytes[*at..][..stretch.len()] != **stretch)
    else {
        return Ok(());
    };
    match (start..bytes.len()).find(|at| bytes[*at] != byte(seed, *at)) {
        None => Err(Stop::Fail(format!("{what}: bytes behind {start} change"))),
        Some(at) => Err(Stop::Fail(format!(
            "{what}: byte {at} of {} is {}, not {}",
            bytes.len(),
            bytes[at],
            byte(seed, at)
        ))),
    }
}

pub fn join(key: &TeamKey, rank: usize, size: usize, choice: Async) -> Outcome<Team> {
    join_with(key, rank, size, choice, false)
}

fn join_with(
    key: &TeamKey,
    rank: usize,
    size: usize,
    choice: Async,
    verify: bool,
) -> Outcome<Team> {
    let mut policy = Policy::load()?;
    policy.offload_verify = verify.into();
    policy.asynchronous = choice;
    policy.offload_min = 64 << 10;
    policy.transport = Some(TransportKind::Kmod);
    Ok(Team::join_with(key, rank, size, policy)?)
}

const ENGINE: Async = Async::Fixed(Executor::Engine);

/// Runs `body` as the ranks of a team.
fn team(size: usize, choice: Async, body: impl Fn(&mut Team) -> Outcome) -> Outcome {
    team_with(size, choice, false, body)
}

fn team_with(
    size: usize,
    choice: Async,
    verify: bool,
    body: impl Fn(&mut Team) -> Outcome,
) -> Outcome {
    let key = TeamKey::random()?;
    let ranks = (0..size)
        .map(|rank| Child::spawn(|| body(&mut join_with(&key, rank, size, choice, verify)?)))
        .collect::<Outcome<Vec<_>>>()?;
    let mut outcome = Ok(());
    for rank in ranks {
        let ended = rank.join();
        outcome = outcome.and(ended);
    }
    outcome
}

/// Looks at what was received; the second argument says whether it is right.
type Look<'a> = dyn FnMut(&[u8], &dyn Fn(&[u8]) -> Outcome) -> Outcome + 'a;

/// One collective with parts of `len` bytes, which start `skew` bytes into their buffers; what is
/// received is checked by `look`.
fn once(
    team: &mut Team,
    op: u64,
    root: usize,
    (len, skew): (usize, usize),
    seed: u64,
    look: &mut Look<'_>,
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

/// A collective of three ranks while an engine fails: all bytes are right, or the outcome says what
/// is not.
pub fn under_a_fault(op: u64, verified: bool) -> Outcome {
    team_with(3, ENGINE, verified, |team| {
        for root in 0..2 {
            once(team, op, root, (400 << 10, 300), op, &mut |bytes, check| {
                // Half of the time the engine has all the time it needs.
                if root == 1 {
                    while !offload::is_settled(bytes.as_ptr(), bytes.len()) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                check(bytes)
            })?;
        }
        Ok(())
    })
}

/// Every collective, root, length and offset; bytes go through the engine, and none is wrong.
fn every_collective_and_every_byte(_: &Context) -> Outcome {
    with_each(|| {
        let ((), bytes) = kernel::growth("bytes_engine", || {
            for size in [2, 3, 5] {
                team(size, ENGINE, |team| {
                    for (len, skew) in [(64 << 10, 0), (200_001, 1), (1 << 20, 4095)] {
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
        check!(bytes > 0 || !engines_count(), "no engine moved anything");
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

/// A touch at a random time and place, by one thread or several, or none.
fn touch_somehow(bytes: &[u8], rng: &mut Rng) -> Outcome {
    std::thread::sleep(Duration::from_micros(rng.below(1500)));
    match rng.below(4) {
        0 => {}
        1 => {
            std::hint::black_box(bytes[rng.index(bytes.len())]);
        }
        2 => offload::settle(&bytes[rng.index(bytes.len())], 1)?,
        _ => std::thread::scope(|scope| {
            for _ in 0..3 {
                let at = rng.index(bytes.len());
                scope.spawn(move || std::hint::black_box(bytes[at]));
            }
        }),
    }
    Ok(())
}

/// Random collectives whose buffers are touched at random, as a rank of a team, until `again` says
/// no; `again` is asked by all ranks, once a round.
pub fn restless(
    team: &mut Team,
    seed: u64,
    mut again: impl FnMut(&mut Team, u64) -> Outcome<bool>,
) -> Outcome {
    let mut same = Rng::new(seed);
    let mut own = Rng::new(seed + 100 + team.rank() as u64);
    let mut round = 0;
    while again(team, round)? {
        let (op, root) = (same.below(6), same.index(team.size()));
        let shape = ((64 << 10) + same.index(1 << 20), same.index(5000));
        once(team, op, root, shape, round, &mut |bytes, check| {
            touch_somehow(bytes, &mut own)?;
            check(bytes)
        })
        .map_err(|stop| match stop {
            Stop::Fail(why) => Stop::Fail(format!(
                "round {round}, op {op}, {shape:?}, root {root}: {why}"
            )),
            other => other,
        })?;
        round += 1;
    }
    Ok(())
}

/// Touches at random times, places and from several threads.
fn random_touches(context: &Context) -> Outcome {
    let rounds = context.touches;
    with_each(|| {
        let seed = context.seed;
        let before = Stats::read()?;
        team(3, ENGINE, |team| {
            restless(team, seed, |_, round| Ok(round < u64::from(rounds)))
        })?;
        let after = Stats::read()?;
        print!(
            "[{rounds} rounds: {} KiB by engine, {} KiB by CPUs, {} switches] ",
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

/// libcopy_async.so wraps the functions of the C library that hand memory to the kernel.
fn system_calls_wait(_: &Context) -> Outcome {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let place = own.parent().ok_or_else(|| "no directory".to_owned())?;
    let (tool, program) = (place.join("libcopy"), place.join("system_calls"));
    if !program.exists() {
        return skip("no program system_calls beside the guest suite (scripts/test builds it)");
    }
    with_each(|| {
        // How the root leaves: in good order, or without a word to the library.
        for end in [None, Some("_exit"), Some("execv"), Some("execvp")] {
            let output = std::process::Command::new(&tool)
                .args(["run", "-n", "2", "--"])
                .arg(&program)
                .args(end)
                .env("LIBCOPY_TRANSPORT", "kmod")
                .output()
                .map_err(|e| format!("{}: {e}", tool.display()))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            check!(
                output.status.success(),
                "{end:?}: {}: {text}",
                output.status
            );
            print!("[{}] ", text.trim().replace('\n', "; "));
        }
        Ok(())
    })
}

/// A rank that drops its team waits for pending requests: the other ranks get all their bytes.
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

/// The status of a process that touched bytes which were lost because a peer died, if it said that
/// it [expects that](expect_loss).
pub const LOST_STATUS: i32 = 77;

extern "C" fn lost(_: i32) {
    // SAFETY: ends this process.
    unsafe { libc::_exit(LOST_STATUS) };
}

/// SIGBUS, which says that bytes are lost, ends this process with [`LOST_STATUS`].
pub fn expect_loss() {
    // SAFETY: the handler has the right signature.
    unsafe {
        libc::signal(libc::SIGBUS, lost as extern "C" fn(i32) as usize);
    }
}

/// A rank dies after the collective returned. `op` 0: bcast, the root dies; 1: gather, a leaf dies.
fn killed(op: u64, rounds: u64) -> Outcome {
    const LEN: usize = 16 << 20;
    let counters = SharedCounters::new()?;
    let (mut whole, mut lost_ones, mut crashes) = (0, 0, 0);
    let status = format!("status {LOST_STATUS}");
    for round in 0..rounds {
        for index in [RETURNED, KILLED, WHOLE, LOST] {
            counters.set(index, 0);
        }
        let key = TeamKey::random()?;
        let survivor = 1 - op as usize;
        let member = |rank: usize| {
            let counters = &counters;
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
                counters.bump(RETURNED);
                if rank != survivor {
                    std::thread::sleep(Duration::from_secs(600));
                }
                counters.await_at_least(KILLED, 1)?;
                let got = if op == 0 { &bytes[..] } else { &all[LEN..] };
                if round % 2 == 0 {
                    // A touch: right bytes or SIGBUS.
                    expect_loss();
                    verify(got, 1, "touched after the death")?;
                    counters.bump(WHOLE);
                } else {
                    match offload::settle(got.as_ptr(), LEN) {
                        Ok(()) => {
                            verify(got, 1, "settled after the death")?;
                            counters.bump(WHOLE);
                        }
                        Err(error) => {
                            check!(error.to_string().contains("died"), "{error}");
                            counters.bump(LOST);
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
        counters.await_at_least(RETURNED, 2)?;
        victim.kill()?;
        counters.set(KILLED, 1);
        match other.join() {
            Err(Stop::Fail(why)) if round % 2 == 0 && why.ends_with(&status) => crashes += 1,
            outcome => outcome?,
        }
        whole += counters.get(WHOLE);
        lost_ones += counters.get(LOST);
    }
    check_eq!(whole + lost_ones + crashes, rounds);
    print!("[{rounds} kills: {whole} whole, {lost_ones} errors, {crashes} SIGBUS] ");
    Ok(())
}

fn the_root_is_killed(context: &Context) -> Outcome {
    with_each(|| killed(0, u64::from(context.kills / 5)))
}

fn a_leaf_is_killed(context: &Context) -> Outcome {
    with_each(|| killed(1, u64::from(context.kills / 5)))
}

/// All ways give the same bytes, also if they change from call to call.
fn every_way_and_the_monitor(_: &Context) -> Outcome {
    with_each(|| {
        for choice in Executor::ALL
            .map(Async::Fixed)
            .into_iter()
            .chain([Async::Auto])
        {
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

/// Memory of hugetlbfs can only be protected a huge page at a time: calls on it wait.
fn huge_pages_are_waited_for(_: &Context) -> Outcome {
    const LEN: usize = 4 << 20;
    const SETTING: &str = "/proc/sys/vm/nr_hugepages";
    let before = std::fs::read_to_string(SETTING)?;
    if std::fs::write(SETTING, "8").is_err() {
        return skip("no hugetlb");
    }
    let outcome = (|| {
        if std::fs::read_to_string(SETTING)?.trim() != "8" {
            return skip("the kernel has no eight huge pages to give");
        }
        team(2, ENGINE, |team| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let map = Map::new(LEN, access, flags, None, 0)?;
            for round in 0..3 {
                // SAFETY: the mapping has this length, and nobody else uses it.
                let bytes = unsafe { std::slice::from_raw_parts_mut(map.addr() as *mut u8, LEN) };
                if team.rank() == 0 {
                    write(bytes, round);
                }
                team.bcast(bytes, 0)?;
                check_eq!(offload::pending(), 0);
                verify(bytes, round, "bcast")?;
                team.barrier()?;
            }
            Ok(())
        })
    })();
    std::fs::write(SETTING, before.trim())?;
    outcome
}

// ------------------------------------------------------------------------------------------------
// With the modelled copy engines, whose bandwidth can be set and whose bytes can be counted.

fn ask(request: &str) -> Outcome {
    let mut client = Client::in_guest()?;
    client.ask(request)?;
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
        let client = Client::of(&function)?;
        bytes += client.progress()?.bytes;
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
    // Given back at the end: other tests want the channels.
    let _chosen = choose("auto")?;
    let counters = SharedCounters::new()?;
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
        counters.bump(0);
        counters.await_at_least(0, 3)?;
        verify(part, 5, "bcast")
    })?;
    let interior = (LEN as u64 - 3996) / 4096 * 4096;
    let moved = engine_bytes()? - bytes;
    print!("[{moved} bytes by the model, 2 interiors of {interior}] ");
    check_eq!(moved, 2 * interior);
    check_eq!(Stats::read()?.since(&before, "bytes_cpu")?, 0);
    Ok(())
}

/// The call returns while the engine still copies, and a touch has CPUs copy what it has not begun.
fn a_touch_has_cpus_finish(_: &Context) -> Outcome {
    const LEN: usize = 8 << 20;
    // Two seconds for the whole, which CPUs copy in some milliseconds.
    let _bandwidth = Bandwidth::new("4M")?;
    let _chosen = choose("auto")?;
    let before = Stats::read()?;
    let counters = SharedCounters::new()?;
    team(2, ENGINE, |team| {
        let mut bytes = vec![0_u8; LEN];
        if team.rank() == 0 {
            write(&mut bytes, 4);
        }
        team.bcast(&mut bytes, 0)?;
        check_eq!(offload::pending(), 1);
        counters.bump(0);
        counters.await_at_least(0, 2)?;
        check_eq!(Stats::read()?.since(&before, "requests_done")?, 0);
        counters.bump(1);
        counters.await_at_least(1, 2)?;
        if team.rank() == 1 {
            std::hint::black_box(bytes[LEN - 5000]);
        }
        verify(&bytes, 4, "bcast")
    })?;
    let after = Stats::read()?;
    let grown = |name| after.since(&before, name);
    let (engine, cpu) = (grown("bytes_engine")?, grown("bytes_cpu")?);
    print!(
        "[{} KiB by the engine, {} KiB by CPUs] ",
        engine >> 10,
        cpu >> 10
    );
    check!(grown("switches")? > 0, "nobody switched");
    check!(engine > 0 && cpu > engine, "{engine} {cpu}");
    Ok(())
}

/// Ranks that wait for a peer copy what that peer waits for.
fn who_waits_helps(_: &Context) -> Outcome {
    const LEN: usize = 8 << 20;
    let _bandwidth = Bandwidth::new("4M")?;
    let _chosen = choose("auto")?;
    let counters = SharedCounters::new()?;
    team(3, ENGINE, |team| {
        let mut bytes = vec![0_u8; LEN];
        for round in 0..10 {
            if team.rank() == 0 {
                write(&mut bytes, round);
            }
            team.bcast(&mut bytes, 0)?;
            if team.rank() == 1 {
                std::thread::sleep(Duration::from_millis(20));
                std::hint::black_box(bytes[LEN - 5000]);
            }
            // Where the others sleep meanwhile.
            team.barrier()?;
            verify(&bytes, round, "bcast")?;
            team.barrier()?;
        }
        counters.add(0, offload::helped());
        Ok(())
    })?;
    let helped = counters.get(0);
    print!("[{} KiB by ranks that waited] ", helped >> 10);
    check!(helped > 0, "nobody helped");
    Ok(())
}
