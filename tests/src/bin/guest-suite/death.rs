// SPDX-License-Identifier: MIT OR Apache-2.0

//! Processes that end, at any moment and in any way.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::copy::Long;
use crate::device::Device;
use crate::harness::{Context, Outcome, Stop};
use crate::kernel::Stats;
use crate::rng::{Rng, pattern};
use crate::sys::{self, Child, Map, PAGE, SharedCounters};
use crate::{check, check_eq, check_err, tests};

tests!(death:
    owner_killed, owner_killed_with_shared_file, owner_exits, copied_from_while_killed,
    copier_killed, killed_while_checking(120), nothing_stays_pinned, owner_executes, thread_exits_others_live,
    owner_in_a_thread_group, child_owns_what_it_publishes, killed_while_publishing,
    killed_while_others_join, creator_killed, no_workqueue_waits_for_an_exit(120), storm(900),
);

/// Waits until `condition` holds, at most a second.
pub fn soon(context: &Context, condition: impl Fn() -> bool) -> Outcome {
    let start = Instant::now();
    loop {
        if condition() {
            return Ok(());
        }
        if start.elapsed() > context.second() {
            return Err(Stop::Fail(format!("not so after {:?}", context.second())));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kernel workers that wait, uninterruptibly, in code of the module or for a memory manager's
/// notifiers.
fn waiting_workers() -> Outcome<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let path = entry.path();
        let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        // The name is in brackets before the state.
        let stat = read("stat");
        if !stat.contains("(kworker/") || !stat.contains(") D ") {
            continue;
        }
        let stack = read("stack");
        if stack.contains("libcopy") || stack.contains("mmu_") {
            found.push(stack);
        }
    }
    Ok(found)
}

/// A process with many files and much memory ends: its files leave their domains meanwhile, and
/// nothing that serves everybody waits until its memory is gone.
fn no_workqueue_waits_for_an_exit(context: &Context) -> Outcome {
    const FILES: usize = 300;
    let counters = SharedCounters::new()?;
    let before = Stats::read()?;
    let child = Child::spawn(|| {
        let map = Map::anon(512 << 20)?;
        // Small pages take longest to give back.
        map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
        map.fill(1);
        let devices: Result<Vec<_>, _> = (0..FILES).map(|_| Device::domain()).collect();
        let _devices = devices?;
        counters.set(0, 1);
        hold();
    })?;
    counters.await_at_least(0, 1)?;
    let killed = std::thread::scope(|scope| {
        let killer = scope.spawn(|| child.kill());
        let (mut most, mut looks) = (Vec::new(), 0);
        while !killer.is_finished() || looks < 20 {
            let now = waiting_workers()?;
            if now.len() > most.len() {
                most = now;
            }
            looks += 1;
        }
        print!("[{} workers waited in {looks} looks] ", most.len());
        let first = most.first().cloned().unwrap_or_default();
        check!(
            most.is_empty(),
            "{} workers wait, one in\n{first}",
            most.len()
        );
        killer.join().unwrap_or(Ok(()))
    });
    killed?;
    soon(context, || {
        Stats::read().is_ok_and(|now| now.since(&before, "domains").is_ok_and(|more| more == 0))
    })
}

/// Another program, run by `owner_executes`: keeps what it inherited open until it is killed.
pub fn hold() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// A member that owns a region of `pages` pages and sleeps.
fn owner(
    key: [u8; 16],
    counters: &SharedCounters,
    pages: usize,
    rights: u32,
) -> Outcome<(Child, u32)> {
    counters.set(0, 0);
    let child = Child::spawn(move || {
        let own = Device::member(key)?;
        let map = Map::filled(pages * PAGE, 1)?;
        let rest = RegionCreate {
            rights,
            ..Default::default()
        };
        counters.set(0, own.publish_with(&[map.piece()], rest)?.id.into());
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    })?;
    Ok((child, counters.await_at_least(0, 1)? as u32))
}

/// Every way to use a region, and what each gives.
fn every_use(device: &Device, id: u32) -> Outcome<Vec<(&'static str, Errno)>> {
    let buffer = Map::anon(PAGE)?;
    let piece = [buffer.piece()];
    let range = [Piece { base: 0, len: 8 }];
    let answers = [
        (
            "copy from",
            device.copy(id, COPY_FROM_REGION, 0, 8, &piece).map(drop),
        ),
        (
            "copy to",
            device.copy(id, COPY_TO_REGION, 0, 8, &piece).map(drop),
        ),
        (
            "copy of a range",
            device
                .copy_ranges(id, COPY_FROM_REGION, 0, 8, &range, &piece)
                .map(drop),
        ),
        ("attach", device.attach(id, RIGHT_READ).map(drop)),
    ];
    Ok(answers
        .into_iter()
        .map(|(name, answer)| (name, answer.err().unwrap_or(Errno::UnknownErrno)))
        .collect())
}

fn dead(context: &Context, device: &Device, id: u32) -> Outcome {
    soon(context, || {
        matches!(device.fetch(id, 8), Err(Errno::EOWNERDEAD))
    })?;
    for (name, errno) in every_use(device, id)? {
        check_eq!(errno, Errno::EOWNERDEAD, "{name}");
    }
    // It is dead at once, and taken away soon.
    soon(context, || {
        matches!(device.region_info(id), Err(Errno::EOWNERDEAD))
    })
}

fn owner_killed(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let counters = SharedCounters::new()?;
    let before = Stats::read()?;
    let (child, id) = owner(key, &counters, 16, RIGHT_READ | RIGHT_WRITE)?;
    check!(device.fetch(id, PAGE)? == pattern(1, PAGE));
    child.kill()?;
    dead(context, &device, id)?;
    check_eq!(Stats::read()?.since(&before, "member_deaths")?, 1);
    // Its pages are free although peers still know the region.
    soon(context, || {
        Stats::read()
            .is_ok_and(|now| now.since(&before, "pins").ok() == now.since(&before, "unpins").ok())
    })?;
    // Life goes on.
    let map = Map::filled(PAGE, 2)?;
    let id = device.share(&map, RIGHT_READ)?;
    check!(device.fetch(id, PAGE)? == map.bytes());
    Ok(())
}

/// The file that the region was made through lives on in the parent; only the owner is gone.
fn owner_killed_with_shared_file(context: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        let map = Map::filled(4 * PAGE, 1)?;
        let rest = RegionCreate {
            rights: RIGHT_READ | RIGHT_WRITE,
            ..Default::default()
        };
        counters.set(0, device.publish_with(&[map.piece()], rest)?.id.into());
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    })?;
    let id = counters.await_at_least(0, 1)? as u32;
    check!(device.fetch(id, PAGE)? == pattern(1, PAGE));
    child.kill()?;
    dead(context, &device, id)
}

/// Ending without leaving is dying, however politely it is done.
fn owner_exits(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        let own = Device::member(key)?;
        let map = Map::filled(4 * PAGE, 1)?;
        counters.set(0, own.share(&map, RIGHT_READ)?.into());
        counters.await_at_least(1, 1)?;
        sys::exit(0)
    })?;
    let id = counters.await_at_least(0, 1)? as u32;
    counters.set(1, 1);
    let _ = child.join();
    soon(context, || {
        matches!(device.fetch(id, 8), Err(Errno::EOWNERDEAD | Errno::ENOENT))
    })
}

fn copied_from_while_killed(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    for delay in [0, 3, 10, 30, 60] {
        let counters = SharedCounters::new()?;
        let child = Child::spawn(|| {
            let own = Device::member(key)?;
            let long = Long::lasting(&own, Duration::from_millis(100))?;
            counters.set(1, long.length);
            counters.set(0, long.id.into());
            std::thread::sleep(Duration::from_secs(600));
            Ok(())
        })?;
        let id = counters.await_at_least(0, 1)? as u32;
        let length = counters.get(1);
        let start = Instant::now();
        let (_buffer, pieces) = Long::target((length >> 22) as usize)?;
        device.copy(id, COPY_FROM_REGION, 0, length, &pieces)?;
        let one_copy = start.elapsed();
        let answer = std::thread::scope(|scope| {
            let copying = scope.spawn(|| {
                loop {
                    match device.copy(id, COPY_FROM_REGION, 0, length, &pieces) {
                        Ok(n) if n == length => {}
                        Ok(n) => return Err(Stop::Fail(format!("{n} bytes without a signal"))),
                        Err(errno) => return Ok((errno, Instant::now())),
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(delay));
            let start = Instant::now();
            child.kill()?;
            let (errno, end) = copying.join().map_err(|_| "panic".to_owned())??;
            Ok::<_, Stop>((errno, end - start))
        })?;
        check_eq!(answer.0, Errno::EOWNERDEAD);
        // The copy under way may finish first.
        check!(
            answer.1 < context.second() + 3 * one_copy,
            "told after {:?}, a copy takes {one_copy:?}",
            answer.1
        );
    }
    Ok(())
}

fn copier_killed(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let long = Long::lasting(&device, Duration::from_millis(200))?;
    let mut rng = context.rng();
    for round in 0..10 {
        let counters = SharedCounters::new()?;
        let child = Child::spawn(|| {
            let peer = Device::member(key)?;
            counters.set(0, 1);
            loop {
                if round % 2 == 0 {
                    long.copy(&peer, 0)?;
                } else {
                    peer.copy(long.id, COPY_TO_REGION, 0, long.length, &long.pieces)?;
                }
            }
        })?;
        counters.await_at_least(0, 1)?;
        std::thread::sleep(Duration::from_micros(rng.below(30_000)));
        child.kill_at_once(context)?;
    }
    // The owner notices nothing.
    device.fetch(long.id, 1000)?;
    device.unpin(long.id)?;
    Ok(())
}

/// A peer that dies while it looks whether the owner's memory has changed must not leave the
/// verdict "changed" behind.
fn killed_while_checking(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let (device, key) = Device::domain()?;
    let map = Map::filled(4 << 20, 1)?;
    map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
    let id = device.publish(&vec![map.piece(); 64], RIGHT_READ)?.id;
    for round in 0..20 {
        let counters = SharedCounters::new()?;
        let child = Child::spawn(|| {
            let peer = Device::member(key)?;
            let buffer = Map::anon(PAGE)?;
            counters.set(0, 1);
            counters.await_at_least(1, 1)?;
            loop {
                peer.copy(id, COPY_FROM_REGION, 0, 8, &[buffer.piece()])?;
            }
        })?;
        counters.await_at_least(0, 1)?;
        // Announced as a change, although the page stays: the next copy compares them all.
        map.advise(0, PAGE, libc::MADV_FREE)?;
        map.write(0, &pattern(1, PAGE));
        counters.set(1, 1);
        std::thread::sleep(Duration::from_micros(rng.below(30_000)));
        child.kill()?;
        let seen = device.fetch(id, PAGE);
        check!(
            seen == Ok(pattern(1, PAGE)),
            "kill {round}: {:?}",
            seen.err()
        );
    }
    Ok(())
}

fn nothing_stays_pinned(context: &Context) -> Outcome {
    let (_device, key) = Device::domain()?;
    let before = Stats::read()?;
    for _ in 0..10 {
        let counters = SharedCounters::new()?;
        let child = Child::spawn(|| {
            let own = Device::member(key)?;
            let maps: Vec<Map> = (0..10)
                .map(|n| Map::filled((n + 1) * PAGE, 1))
                .collect::<Result<_, Errno>>()?;
            for map in &maps {
                let id = own.share(map, RIGHT_READ)?;
                // Half of them live, half of them wait for reuse.
                if map.len() % (2 * PAGE) == 0 {
                    own.destroy(id)?;
                }
            }
            counters.set(0, 1);
            std::thread::sleep(Duration::from_secs(600));
            Ok(())
        })?;
        counters.await_at_least(0, 1)?;
        child.kill()?;
        soon(context, || {
            Stats::read().is_ok_and(|now| {
                now.since(&before, "pins").ok() == now.since(&before, "unpins").ok()
            })
        })?;
    }
    Ok(())
}

/// After exec the memory is another: its regions are gone like after death.
fn owner_executes(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    for kept in [false, true] {
        let counters = SharedCounters::new()?;
        let before = Stats::read()?;
        let child = Child::spawn(|| {
            let own = Device::member(key)?;
            let own = Device::from(sys::duplicate(own.as_fd(), kept)?);
            let map = Map::filled(4 * PAGE, 1)?;
            counters.set(0, own.share(&map, RIGHT_READ)?.into());
            counters.await_at_least(1, 1)?;
            Err(sys::exec("/proc/self/exe", &["guest-suite", "hold"]).into())
        })?;
        let id = counters.await_at_least(0, 1)? as u32;
        check!(device.fetch(id, PAGE)? == pattern(1, PAGE));
        counters.set(1, 1);
        soon(context, || {
            matches!(
                device.fetch(id, 8),
                Err(Errno::EOWNERDEAD | Errno::ESTALE | Errno::ENOENT)
            )
        })?;
        soon(context, || {
            Stats::read().is_ok_and(|now| {
                now.since(&before, "pins").ok() == now.since(&before, "unpins").ok()
            })
        })?;
        child.kill()?;
    }
    Ok(())
}

fn thread_exits_others_live(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let peer = Device::member(key)?;
    let id = std::thread::scope(|scope| scope.spawn(|| device.share(&map, RIGHT_READ)).join())
        .map_err(|_| "panic".to_owned())??;
    std::thread::sleep(Duration::from_millis(100));
    check!(peer.fetch(id, 4 * PAGE)? == map.bytes());
    // And any thread of the process may take it back.
    device.destroy(id)?;
    Ok(())
}

/// The main thread ends, the process lives on: so do its regions.
fn owner_in_a_thread_group(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        let own = Device::member(key)?;
        let map = Map::filled(4 * PAGE, 1)?;
        let id = own.share(&map, RIGHT_READ)?;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                counters.set(0, id.into());
                std::thread::sleep(Duration::from_secs(600));
            });
            // SAFETY: Ends only this thread; what it owns stays where it is.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        });
        Ok(())
    })?;
    let id = counters.await_at_least(0, 1)? as u32;
    std::thread::sleep(Duration::from_millis(50));
    check!(device.fetch(id, 4 * PAGE)? == pattern(1, 4 * PAGE));
    child.kill()
}

fn child_owns_what_it_publishes(context: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let mine = device.share(&map, RIGHT_READ)?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        map.write(0, &pattern(2, 4 * PAGE));
        // The same addresses, another process: another region.
        counters.set(0, device.share(&map, RIGHT_READ)?.into());
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    })?;
    let theirs = counters.await_at_least(0, 1)? as u32;
    check!(device.fetch(mine, 4 * PAGE)? == pattern(1, 4 * PAGE));
    check!(device.fetch(theirs, 4 * PAGE)? == pattern(2, 4 * PAGE));
    child.kill()?;
    soon(context, || {
        matches!(device.fetch(theirs, 8), Err(Errno::EOWNERDEAD))
    })?;
    check!(
        device.fetch(mine, 4 * PAGE)? == pattern(1, 4 * PAGE),
        "the parent's went with it"
    );
    Ok(())
}

fn killed_while_publishing(context: &Context) -> Outcome {
    let (_device, key) = Device::domain()?;
    let mut rng = context.rng();
    for _ in 0..15 {
        let counters = SharedCounters::new()?;
        let child = Child::spawn(|| {
            let own = Device::member(key)?;
            let map = Map::anon(16 << 20)?;
            counters.set(0, 1);
            let rest = RegionCreate {
                rights: RIGHT_READ | RIGHT_WRITE,
                flags: CREATE_NO_REUSE,
                ..Default::default()
            };
            loop {
                let id = own.publish_with(&[map.piece()], rest)?.id;
                own.unpin(id)?;
                map.advise(0, map.len(), libc::MADV_DONTNEED)?;
            }
        })?;
        counters.await_at_least(0, 1)?;
        std::thread::sleep(Duration::from_micros(rng.below(60_000)));
        child.kill_at_once(context)?;
    }
    Ok(())
}

fn killed_while_others_join(context: &Context) -> Outcome {
    let mut rng = context.rng();
    for _ in 0..15 {
        let keys = Map::shared(PAGE)?;
        let counters = SharedCounters::new()?;
        let creator = Child::spawn(|| {
            let (device, key) = Device::domain()?;
            keys.write(0, &key);
            let map = Map::filled(PAGE, 1)?;
            counters.set(1, device.share(&map, RIGHT_READ)?.into());
            counters.set(0, 1);
            std::thread::sleep(Duration::from_secs(600));
            Ok(())
        })?;
        counters.await_at_least(0, 1)?;
        let key: [u8; 16] = keys.read(0, 16).try_into().expect("16 bytes");
        let joiners: Vec<Child> = (0..3)
            .map(|_| {
                Child::spawn(|| {
                    loop {
                        match Device::member(key) {
                            Ok(device) => match device.fetch(counters.get(1) as u32, PAGE) {
                                Ok(seen) => check!(seen == pattern(1, PAGE)),
                                Err(errno) => check_err!(Err::<(), _>(errno), EOWNERDEAD | ENOENT),
                            },
                            Err(errno) => {
                                check_eq!(errno, Errno::ENOENT);
                                return Ok(());
                            }
                        }
                    }
                })
            })
            .collect::<Outcome<_>>()?;
        std::thread::sleep(Duration::from_micros(rng.below(20_000)));
        creator.kill()?;
        for joiner in joiners {
            joiner.join()?;
        }
    }
    Ok(())
}

/// The domain does not hang on its creator.
fn creator_killed(context: &Context) -> Outcome {
    let keys = Map::shared(PAGE)?;
    let counters = SharedCounters::new()?;
    let creator = Child::spawn(|| {
        let (_device, key) = Device::domain()?;
        keys.write(0, &key);
        counters.set(0, 1);
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    })?;
    counters.await_at_least(0, 1)?;
    let key: [u8; 16] = keys.read(0, 16).try_into().expect("16 bytes");
    let (first, _second) = (Device::member(key)?, Device::member(key)?);
    creator.kill()?;
    let third = Device::member(key)?;
    let map = Map::filled(PAGE, 1)?;
    let id = first.share(&map, RIGHT_READ)?;
    check!(third.fetch(id, PAGE)? == map.bytes());
    let _ = context;
    Ok(())
}

/// Words of the storm's counters: the ids last published by each member, and counts.
const IDS: usize = 8;
const STARTED: usize = 100;
const BAD: usize = 101;

/// One member of the storm: does anything a member may do, until it is killed.
fn stormy(
    seed: u64,
    key: [u8; 16],
    inherited: &Device,
    counters: &SharedCounters,
    slot: usize,
) -> Outcome {
    let mut rng = Rng::new(seed);
    let own = if rng.one_in(3) {
        Device::from(sys::duplicate(inherited.as_fd(), false)?)
    } else {
        Device::member(key)?
    };
    let maps = [
        Map::filled(PAGE, seed)?,
        Map::filled(64 * PAGE, seed)?,
        Map::filled(2 << 20, seed)?,
        Map::shared(16 * PAGE)?,
    ];
    let buffer = Map::anon(2 << 20)?;
    let mut ids = Vec::new();
    let mut views = Vec::new();
    counters.bump(STARTED);
    loop {
        let theirs = counters.get(IDS + rng.index(8)) as u32;
        let length = 1 + rng.below(1 << 20);
        let answer = match rng.below(12) {
            0..=2 => {
                let map = &maps[rng.index(4)];
                let rest = RegionCreate {
                    rights: 1 + rng.below(3) as u32,
                    flags: rng.below(2) as u32 * CREATE_NO_REUSE,
                    ..Default::default()
                };
                own.publish_with(&[map.piece()], rest).map(|region| {
                    counters.set(IDS + slot, region.id.into());
                    ids.push(region.id);
                    if ids.len() > 20 {
                        let _ = own.destroy(ids.remove(0));
                    }
                })
            }
            3 | 4 => {
                let flags = rng.pick(&[COPY_FROM_REGION, COPY_TO_REGION]);
                own.copy(theirs, flags, 0, length, &[buffer.piece()])
                    .map(drop)
            }
            5 | 6 => {
                let len = 1 + rng.below(300);
                let ranges: Vec<Piece> = (0..rng.below(200))
                    .map(|index| Piece {
                        base: 512 * index,
                        len,
                    })
                    .collect();
                let length = len * ranges.len() as u64;
                let piece = [buffer.piece()];
                own.copy_ranges(theirs, COPY_FROM_REGION, 0, length, &ranges, &piece)
                    .map(drop)
            }
            7 => own.map(theirs, 1 + rng.below(3) as u32).map(|view| {
                let _ = view.0.read(view.1, 1);
                views.push(view);
                if views.len() > 4 {
                    views.remove(0);
                }
            }),
            8 => match ids.pop() {
                Some(id) if rng.one_in(2) => own.unpin(id),
                Some(id) => own.destroy(id),
                None => Ok(()),
            },
            9 => maps[1].replace(rng.index(32) * PAGE, 4 * PAGE),
            10 => match sys::fork()? {
                None => {
                    let _ = own.copy(theirs, COPY_FROM_REGION, 0, length, &[buffer.piece()]);
                    sys::exit(0)
                }
                Some(child) => {
                    let _ = sys::wait_exit(child, Duration::from_secs(60));
                    Ok(())
                }
            },
            _ => own.region_info(theirs).map(drop),
        };
        use Errno::*;
        match answer {
            Ok(())
            | Err(
                ENOENT | EACCES | ERANGE | EINVAL | ESTALE | EOWNERDEAD | EINTR | EPERM | ENOSPC,
            ) => {}
            // Pages may be short when everybody pins at once, but nothing else is expected.
            Err(ENOMEM) => {}
            Err(errno) => {
                counters.set(BAD, errno as u64 + 1);
                return Err(errno.into());
            }
        }
    }
}

/// Must-show 5: random SIGKILLs over processes that do everything at once.
fn storm(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let (device, key) = Device::domain()?;
    let counters = SharedCounters::new()?;
    let spawn = |slot: usize, seed: u64| {
        let (counters, device) = (&counters, &device);
        Child::spawn(move || stormy(seed, key, device, counters, slot))
    };
    let mut members: Vec<Option<Child>> = (0..6)
        .map(|slot| spawn(slot, rng.word()).map(Some))
        .collect::<Outcome<_>>()?;
    let mut slowest = Duration::ZERO;
    for round in 0..context.kills {
        std::thread::sleep(Duration::from_micros(rng.below(40_000)));
        let slot = rng.index(members.len());
        if let Some(member) = members[slot].take() {
            let start = Instant::now();
            member.kill()?;
            slowest = slowest.max(start.elapsed());
        }
        members[slot] = Some(spawn(slot, rng.word())?);
        let bad = counters.get(BAD);
        check!(
            bad == 0,
            "seed {}, kill {round}: a survivor got {:?}",
            context.seed,
            Errno::from_raw(bad as i32 - 1)
        );
    }
    // The survivors are well: each still moves (none hangs in the kernel).
    for member in members.into_iter().flatten() {
        member.kill()?;
    }
    check!(slowest < context.limit(5), "a SIGKILL took {slowest:?}");
    check!(counters.get(STARTED) > 0);
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    check!(device.fetch(id, PAGE)? == map.bytes());
    Ok(())
}
