// SPDX-License-Identifier: MIT OR Apache-2.0

//! The library's collectives through the module, where only a guest can be cruel enough: members
//! killed at random, limits of another user, namespaces, a kernel that forbids CMA.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use libcopy::policy::Policy;
use libcopy::{Error, Team, TeamKey, TransportKind};

use crate::harness::{Context, Outcome, Stop, skip};
use crate::kernel::{self, Stats};
use crate::rng::Rng;
use crate::sys::{self, Child, Map, PAGE, SharedCounters};
use crate::{check, check_eq, tests};

tests!(collective:
    storm_collectives(1200), used_again_is_mapped, mapped_buffers_may_change(120), memlock_falls_back,
    pid_namespace, ptrace_scope,
);

impl From<Error> for Stop {
    #[track_caller]
    fn from(error: Error) -> Self {
        Self::Fail(format!(
            "{} (at {})",
            error.report(),
            std::panic::Location::caller()
        ))
    }
}

/// Most bytes of one operation.
const MOST: u64 = 4 << 20;

/// Words of the storm's counters.
const READY: usize = 0;
const KILLED_AT: usize = 1;
const VICTIM: usize = 2;
const OPERATIONS: usize = 3;
const BYTES: usize = 4;
const SURVIVORS: usize = 5;
const SLOWEST: usize = 6;
const INDIRECT: usize = 7;
/// From here on one for each rank: whether it is inside a collective.
const INSIDE: usize = 16;

/// Nanoseconds of a clock that all processes share.
fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The byte that a rank contributes in a round.
fn mark(round: u64, rank: usize) -> u8 {
    (round * 7 + rank as u64 * 31 + 1) as u8
}

/// Whether all bytes of rank `from`'s part are as that rank sent them.
fn intact(bytes: &[u8], round: u64, from: usize) -> bool {
    let expected = mark(round, from);
    bytes.iter().all(|byte| *byte == expected)
}

/// One random operation, checked; all ranks draw the same one. Of `bytes` bytes, or of any size.
fn operate(
    team: &mut Team,
    rng: &mut Rng,
    round: u64,
    bytes: Option<u64>,
    small: &mut [u8],
    large: &mut [u8],
    inside: impl Fn(u64),
) -> Result<(u64, bool), Error> {
    let (me, size) = (team.rank(), team.size());
    let op = rng.below(4);
    let root = rng.index(size);
    // As many small as large ones: a random number of bits.
    let bits = rng.below(23);
    let any = (1 << bits) + rng.below(1 << bits);
    let total = bytes.unwrap_or(any).min(MOST) as usize;
    let part = total.div_ceil(size).min(small.len());
    let (all, mine) = (part * size, &mut small[..part]);
    let part_of = |rank: usize| rank * part..(rank + 1) * part;
    let good = match op {
        0 => {
            let bytes = &mut large[..total];
            bytes.fill(if me == root { mark(round, root) } else { 0 });
            inside(1);
            team.bcast(bytes, root)?;
            inside(0);
            intact(bytes, round, root)
        }
        1 => {
            mine.fill(mark(round, me));
            let recv = &mut large[..all];
            recv.fill(0);
            inside(1);
            team.gather(mine, (me == root).then_some(&mut *recv), root)?;
            inside(0);
            me != root || (0..size).all(|rank| intact(&recv[part_of(rank)], round, rank))
        }
        2 => {
            mine.fill(0);
            let send = &mut large[..all];
            for rank in 0..size {
                send[part_of(rank)].fill(mark(round, rank));
            }
            inside(1);
            team.scatter((me == root).then_some(&*send), mine, root)?;
            inside(0);
            intact(mine, round, me)
        }
        _ => {
            mine.fill(mark(round, me));
            let recv = &mut large[..all];
            recv.fill(0);
            inside(1);
            team.allgather(mine, recv)?;
            inside(0);
            (0..size).all(|rank| intact(&recv[part_of(rank)], round, rank))
        }
    };
    Ok((if op == 0 { total } else { all } as u64, good))
}

/// One member: collectives until somebody dies.
fn member(key: TeamKey, rank: usize, size: usize, seed: u64, counters: &SharedCounters) -> Outcome {
    let mut team = Team::join(&key, rank, size)?;
    team.set_transport(Some(TransportKind::Kmod))?;
    let mut rng = Rng::new(seed);
    // Touched now: on an emulated processor the page faults would be most of what a kill meets.
    let mut small = vec![1; MOST as usize / size + 1];
    let mut large = vec![1; MOST as usize + size];
    let inside = |yes| counters.set(INSIDE + rank, yes);
    counters.bump(READY);
    // With one size all the time, the same memory is used again and again, and therefore mapped.
    let one_size = 1 << (14 + rng.below(8));
    let bytes = (rng.below(2) == 0).then_some(one_size);
    for round in 0.. {
        match operate(
            &mut team, &mut rng, round, bytes, &mut small, &mut large, inside,
        ) {
            Ok((bytes, good)) => {
                check!(good, "rank {rank} of {size}: wrong bytes in round {round}");
                if rank == 0 {
                    counters.bump(OPERATIONS);
                    counters.add(BYTES, bytes);
                }
            }
            Err(error) => {
                let at = now();
                let killed = counters.get(KILLED_AT);
                check!(
                    killed != 0,
                    "rank {rank}: before anybody was killed: {error}"
                );
                let victim = counters.get(VICTIM) as usize;
                // A rank in the middle of a copy may get the error of the module first.
                let direct = matches!(error, Error::PeerDied { rank } if rank == victim);
                let by_module = matches!(error, Error::Ioctl { .. })
                    && matches!(error.errno(), Some(libc::EOWNERDEAD | libc::ECONNRESET));
                let relayed = matches!(error, Error::Broken { .. });
                check!(
                    direct || by_module || relayed,
                    "rank {rank}, after rank {victim} was killed: {error}"
                );
                if !direct {
                    counters.bump(INDIRECT);
                }
                counters.bump(SURVIVORS);
                counters.raise(SLOWEST, at.saturating_sub(killed));
                // It stays broken, and nobody hangs.
                check!(team.barrier().is_err(), "rank {rank}: whole again");
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Must-show 5: random SIGKILLs during collectives.
fn storm_collectives(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let counters = SharedCounters::new()?;
    let before = Stats::read()?;
    let start = Instant::now();
    let (mut survivors, mut hits) = (0, 0);
    for round in 0..context.kills {
        let size = 2 + rng.index(4);
        let (key, seed) = (TeamKey::random()?, rng.word());
        counters.set(READY, 0);
        counters.set(KILLED_AT, 0);
        for rank in 0..size {
            counters.set(INSIDE + rank, 0);
        }
        let mut members = (0..size)
            .map(|rank| Child::spawn(|| member(key, rank, size, seed, &counters)))
            .collect::<Outcome<Vec<_>>>()?;
        if let Err(stop) = counters.await_at_least(READY, size as u64) {
            for member in members {
                member.join()?;
            }
            return Err(stop);
        }
        std::thread::sleep(Duration::from_micros(rng.below(100_000)));
        let victim = rng.index(size);
        counters.set(VICTIM, victim as u64);
        counters.set(KILLED_AT, now());
        members.remove(victim).kill()?;
        hits += counters.get(INSIDE + victim);
        survivors += members.len() as u64;
        for member in members {
            member.join().map_err(|stop| match stop {
                Stop::Fail(why) => {
                    Stop::Fail(format!("seed {}, kill {round}: {why}", context.seed))
                }
                other => other,
            })?;
        }
        let slowest = Duration::from_nanos(counters.get(SLOWEST));
        check!(
            slowest < context.second(),
            "kill {round}: a survivor got its error after {slowest:?}"
        );
        kernel::wait_balanced(context.second())?;
    }
    check_eq!(counters.get(SURVIVORS), survivors);
    let left = fs::read_dir("/dev/shm")?.flatten().count();
    check_eq!(left, 0, "files in /dev/shm");
    let after = Stats::read()?;
    let pins = after.since(&before, "pins")?;
    check!(pins > 0, "nothing went through the module");
    check_eq!(after.since(&before, "unpins")?, pins);
    let attaches = after.since(&before, "attaches")?;
    check!(attaches > 0 || context.kills < 10, "nothing was mapped");
    check_eq!(after.since(&before, "detaches")?, attaches);
    print!(
        "[{} kills in {:.0} s, {hits} of them inside a collective; {survivors} survivors had their error after at most {} ms, {} of \
         them from the module or a peer; {} operations, {} MiB; {pins} pages pinned and unpinned, {attaches} regions mapped] ",
        context.kills,
        start.elapsed().as_secs_f64(),
        counters.get(SLOWEST) / 1_000_000,
        counters.get(INDIRECT),
        counters.get(OPERATIONS),
        counters.get(BYTES) >> 20,
    );
    let _ = std::io::Write::flush(&mut std::io::stdout());
    Ok(())
}

/// Lets every user open the device, as the udev rule in the documentation does; dropping it takes
/// that back.
struct OpenToAll(fs::Permissions);

impl OpenToAll {
    const DEVICE: &str = libcopy::uapi::DEVICE_PATH;

    fn new() -> Outcome<Self> {
        let before = fs::metadata(Self::DEVICE)?.permissions();
        fs::set_permissions(Self::DEVICE, fs::Permissions::from_mode(0o666))?;
        Ok(Self(before))
    }
}

impl Drop for OpenToAll {
    fn drop(&mut self) {
        let _ = fs::set_permissions(Self::DEVICE, self.0.clone());
    }
}

/// Becomes an ordinary user whose memory peers of the same user may read.
fn ordinary_user() -> Outcome {
    sys::become_user(1000)?;
    // Changing the user took that away.
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
    Ok(())
}

/// Runs `body` as two ranks; what comes before joining is `before`.
fn pair(before: impl Fn(usize) -> Outcome, body: impl Fn(&mut Team) -> Outcome) -> Outcome {
    let key = TeamKey::random()?;
    let ranks = (0..2)
        .map(|rank| {
            Child::spawn(|| {
                before(rank)?;
                body(&mut Team::join(&key, rank, 2)?)
            })
        })
        .collect::<Outcome<Vec<_>>>()?;
    for rank in ranks {
        rank.join()?;
    }
    Ok(())
}

/// Every collective once with `len` bytes of each rank, checked.
fn every_collective(team: &mut Team, len: usize) -> Outcome {
    let (me, size) = (team.rank(), team.size());
    let mut mine = vec![mark(0, me); len];
    let mut all = vec![0; len * size];
    let good = |all: &[u8]| (0..size).all(|rank| intact(&all[rank * len..][..len], 0, rank));
    team.gather(&mine, (me == 0).then_some(&mut all[..]), 0)?;
    check!(me != 0 || good(&all), "gather");
    all.fill(0);
    team.allgather(&mine, &mut all)?;
    check!(good(&all), "allgather");
    mine.fill(0);
    team.scatter((me == 1).then_some(&all[..]), &mut mine, 1)?;
    check!(intact(&mine, 0, me), "scatter");
    team.bcast(&mut mine, 1)?;
    check!(intact(&mine, 0, 1), "bcast");
    Ok(())
}

/// Runs `rounds` of all collectives with the same buffers in each, which `all` and `mine` are.
fn again_and_again(team: &mut Team, rounds: u64, all: &mut [u8], mine: &mut [u8]) -> Outcome {
    let (me, size) = (team.rank(), team.size());
    let len = mine.len();
    let part = |rank: usize| rank * len..(rank + 1) * len;
    let last = size - 1;
    for round in 0..rounds {
        mine.fill(mark(round, me));
        team.gather(mine, (me == 0).then_some(&mut *all), 0)?;
        let good = (0..size).all(|rank| intact(&all[part(rank)], round, rank));
        check!(me != 0 || good, "gather, round {round}");
        for rank in 0..size {
            all[part(rank)].fill(mark(round, rank + 7));
        }
        team.scatter((me == 1).then_some(&*all), mine, 1)?;
        check!(intact(mine, round, me + 7), "scatter, round {round}");
        if me == last {
            mine.fill(mark(round, 99));
        }
        team.bcast(mine, last)?;
        check!(intact(mine, round, 99), "bcast, round {round}");
        mine.fill(mark(round, me + 3));
        team.allgather(mine, all)?;
        let good = (0..size).all(|rank| intact(&all[part(rank)], round, rank + 3));
        check!(good, "allgather, round {round}");
    }
    Ok(())
}

/// Buffers that are used again and again are mapped by each leaf once, and no others.
fn used_again_is_mapped(context: &Context) -> Outcome {
    const RANKS: usize = 3;
    // The largest window is the whole buffer at the root of a gather.
    let (len, start) = (70_001, 123);
    let run = |attach_max: u64, rounds: u64| -> Outcome<i64> {
        let before = Stats::read()?;
        let key = TeamKey::random()?;
        let body = |rank| -> Outcome {
            let mut policy = Policy::load()?;
            policy.attach_max = attach_max;
            let mut team = Team::join_with(&key, rank, RANKS, policy)?;
            team.set_transport(Some(TransportKind::Kmod))?;
            let mut all = vec![0; start + RANKS * len];
            let mut mine = vec![0; start + len];
            again_and_again(&mut team, rounds, &mut all[start..], &mut mine[start..])
        };
        let ranks = (0..RANKS)
            .map(|rank| Child::spawn(|| body(rank)))
            .collect::<Outcome<Vec<_>>>()?;
        for rank in ranks {
            rank.join()?;
        }
        kernel::wait_balanced(context.second())?;
        let after = Stats::read()?;
        let attaches = after.since(&before, "attaches")?;
        check_eq!(after.since(&before, "detaches")?, attaches);
        Ok(attaches)
    };
    // Two leaves of each root, and everybody's part of an allgather, which is the buffer of the
    // broadcast at one of them.
    check_eq!(run(u64::MAX, 6)?, 10);
    check_eq!(run((RANKS * len) as u64, 6)?, 10);
    check_eq!(run((RANKS * len) as u64 - 1, 6)?, 6);
    check_eq!(run(0, 6)?, 0);
    check_eq!(run(u64::MAX, 1)?, 0, "used once");
    Ok(())
}

/// What leaves have mapped is not what they copy from or to once its owner has other pages there.
fn mapped_buffers_may_change(context: &Context) -> Outcome {
    const LEN: usize = 40 * PAGE;
    type Change = fn(Map) -> Outcome<Map>;
    let changes: [(&str, Change); 6] = [
        ("unmapped and mapped again", |map| {
            map.unmap(0, LEN)?;
            map.replace(0, LEN)?;
            Ok(map)
        }),
        ("one page replaced", |map| {
            map.replace(17 * PAGE, PAGE)?;
            Ok(map)
        }),
        ("other memory moved onto it", |map| {
            Ok(Map::filled(LEN, 5)?.move_onto(map)?)
        }),
        ("dropped by advice", |map| {
            map.advise(3 * PAGE, 9 * PAGE, libc::MADV_DONTNEED)?;
            Ok(map)
        }),
        ("protected meanwhile", |map| {
            map.protect(0, LEN, libc::PROT_NONE)?;
            map.protect(0, LEN, sys::RW)?;
            Ok(map)
        }),
        ("written by a child", |map| {
            let child = Child::spawn(|| {
                map.fill(0xEE);
                Ok(())
            })?;
            child.join()?;
            Ok(map)
        }),
    ];
    for (what, change, whole) in changes
        .into_iter()
        .flat_map(|(what, change)| [true, false].map(|whole| (what, change, whole)))
    {
        let ((), attaches) = kernel::growth("attaches", || {
            pair(
                |_| Ok(()),
                |team| {
                    team.set_transport(Some(TransportKind::Kmod))?;
                    let mut map = Map::anon(LEN)?;
                    let mut other = vec![0; LEN / 2];
                    for phase in 0..3 {
                        if phase > 0 {
                            map = change(map)?;
                        }
                        // SAFETY: all of the mapping, which nobody else looks at meanwhile.
                        let all =
                            unsafe { std::slice::from_raw_parts_mut(map.addr() as *mut u8, LEN) };
                        // A second set of windows would close the first before the change.
                        let (all, mine) = if whole {
                            (&mut *all, &mut other[..])
                        } else {
                            (&mut other[..], &mut all[..LEN / 4])
                        };
                        again_and_again(team, 5, all, mine).map_err(|stop| match stop {
                            Stop::Fail(why) => {
                                Stop::Fail(format!("{what}, whole {whole}, phase {phase}: {why}"))
                            }
                            other => other,
                        })?;
                    }
                    Ok(())
                },
            )
        })?;
        check!(attaches > 0, "{what}: nothing was mapped");
        kernel::wait_balanced(context.second())?;
    }
    Ok(())
}

fn reason(team: &Team, kind: TransportKind) -> Outcome<(bool, String)> {
    let report = team.transports().iter().find(|report| report.kind == kind);
    let report = report.ok_or_else(|| format!("no report of {kind}"))?;
    Ok((report.usable, report.why.clone()))
}

/// What RLIMIT_MEMLOCK does not allow goes another way, and what it allows does not.
fn memlock_falls_back(_: &Context) -> Outcome {
    const LEN: usize = 1 << 20;
    let _open = OpenToAll::new()?;
    let run = |limit: u64| {
        kernel::growth("pins", || {
            pair(
                |_| {
                    sys::limit_locked(limit)?;
                    ordinary_user()
                },
                |team| {
                    check_eq!(reason(team, TransportKind::Kmod)?.0, true);
                    team.set_transport(Some(TransportKind::Kmod))?;
                    every_collective(team, LEN)
                },
            )
        })
    };
    let ((), pins) = run(256 << 10)?;
    check_eq!(pins, 0, "beyond the limit");
    let ((), pins) = run(64 << 20)?;
    check!(
        pins >= (LEN / sys::PAGE) as i64,
        "within the limit only {pins} pages were pinned"
    );
    // One rank that may and one that may not agree on the way.
    let key = TeamKey::random()?;
    let ranks = [0, 64 << 20].map(|limit| {
        Child::spawn(move || {
            sys::limit_locked(limit)?;
            ordinary_user()?;
            let mut team = Team::join(&key, usize::from(limit != 0), 2)?;
            team.set_transport(Some(TransportKind::Kmod))?;
            every_collective(&mut team, LEN)
        })
    });
    for rank in ranks {
        rank?.join()?;
    }
    Ok(())
}

/// Process ids mean nothing across pid namespaces: CMA is out, and says so; the rest works, and
/// also a death is noticed.
fn pid_namespace(context: &Context) -> Outcome {
    let counters = SharedCounters::new()?;
    let key = TeamKey::random()?;
    let body = |team: &mut Team| -> Outcome {
        let (usable, why) = reason(team, TransportKind::Cma)?;
        check!(
            !usable && why.contains("pid namespace"),
            "cma: {usable}, {why}"
        );
        check!(team.set_transport(Some(TransportKind::Cma)).is_err());
        for kind in [None, Some(TransportKind::Shm), Some(TransportKind::Kmod)] {
            team.set_transport(kind)?;
            every_collective(team, 300_000)?;
        }
        Ok(())
    };
    let far = Child::spawn(|| {
        // SAFETY: numbers only.
        sys::result(unsafe { libc::unshare(libc::CLONE_NEWPID) }.into())?;
        let inner = Child::spawn(|| {
            check_eq!(std::process::id(), 1);
            let mut team = Team::join(&key, 1, 2)?;
            body(&mut team)?;
            counters.set(0, 1);
            std::thread::sleep(Duration::from_secs(600));
            Ok(())
        })?;
        counters.await_at_least(0, 1)?;
        counters.await_at_least(1, 1)?;
        inner.kill()
    })?;
    let mut team = Team::join(&key, 0, 2)?;
    body(&mut team)?;
    counters.set(1, 1);
    far.join()?;
    let killed = Instant::now();
    let error = team.barrier().expect_err("rank 1 is dead");
    check!(matches!(error, Error::PeerDied { rank: 1 }), "{error}");
    check!(
        killed.elapsed() < context.second(),
        "{:?}",
        killed.elapsed()
    );
    Ok(())
}

/// With Yama's ptrace_scope 2 only the superuser may use CMA: others are told, and go on.
fn ptrace_scope(_: &Context) -> Outcome {
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    let Ok(before) = fs::read_to_string(SCOPE) else {
        return skip("this kernel has no Yama");
    };
    let _open = OpenToAll::new()?;
    let with = |scope: &str, body: &dyn Fn(&mut Team) -> Outcome| {
        fs::write(SCOPE, scope)?;
        let outcome = pair(|_| ordinary_user(), body);
        fs::write(SCOPE, before.trim())?;
        outcome
    };
    with("2", &|team| {
        let (usable, why) = reason(team, TransportKind::Cma)?;
        check!(
            !usable && why.contains("ptrace_scope is 2"),
            "cma: {usable}, {why}"
        );
        every_collective(team, 300_000)
    })?;
    // Neither 0 nor 1 is in the way.
    for scope in ["0", "1"] {
        with(scope, &|team| {
            let (usable, why) = reason(team, TransportKind::Cma)?;
            check!(usable, "cma with ptrace_scope {scope}: {why}");
            team.set_transport(Some(TransportKind::Cma))?;
            every_collective(team, 300_000)
        })?;
    }
    Ok(())
}
