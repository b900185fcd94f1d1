// SPDX-License-Identifier: MIT OR Apache-2.0

//! What pinned memory costs others: who waits, who pays, and what the kernel does per page.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::death::soon;
use crate::device::Device;
use crate::fuse::LateFile;
use crate::harness::{Context, Outcome};
use crate::kernel::{Stats, growth};
use crate::request_setup::{choose, software_engine};
use crate::rng::pattern;
use crate::sys::{self, Child, HUGE, Map, PAGE, SharedCounters, in_child};
use crate::{check, check_eq, tests};

tests!(pinning:
    proven_04_a_waiting_peer_can_be_killed(60), proven_04_absent_pages_are_not_stale(60),
    proven_05_an_engine_waits_for_no_address_space(60),
    proven_06_attached_pages_are_charged(60), proven_06_a_peer_uses_up_no_owners_limit,
    proven_08_invalidation_is_bounded(120), proven_09_a_page_is_pinned_once(120),
    proven_09_mappings_of_a_user_are_capped(240), proven_11_adjacency_is_not_told,
);

const MIB: usize = 1 << 20;

/// A peer that looks at memory which somebody else must bring in first waits without the owner's
/// lock, and dies when it is killed.
fn proven_04_a_waiting_peer_can_be_killed(context: &Context) -> Outcome {
    let silent = LateFile::new(None)?;
    let (device, key) = Device::domain()?;
    let counters = SharedCounters::new()?;
    let owner = Child::spawn(|| {
        let own = Device::member(key)?;
        let map = Map::filled(4 * PAGE, 1)?;
        counters.set(0, own.share(&map, RIGHT_READ)?.into());
        counters.await_at_least(1, 1)?;
        map.cover(0, 4 * PAGE, silent.file.as_fd())?;
        counters.set(2, 1);
        counters.await_at_least(3, 1)?;
        // Needs the lock of the address space.
        Map::anon(PAGE)?;
        counters.set(4, 1);
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    })?;
    let id = counters.await_at_least(0, 1)? as u32;
    check!(device.fetch(id, 4 * PAGE)? == pattern(1, 4 * PAGE));
    counters.set(1, 1);
    counters.await_at_least(2, 1)?;
    let peer = Child::spawn(|| {
        let peer = Device::member(key)?;
        counters.set(5, 1);
        let got = peer.fetch(id, 8);
        counters.set(6, 1 + got.map_or_else(|errno| errno as u64, |_| 0));
        Ok(())
    })?;
    counters.await_at_least(5, 1)?;
    std::thread::sleep(Duration::from_millis(500));
    counters.set(3, 1);
    soon(context, || counters.get(4) == 1).map_err(|_| {
        crate::harness::Stop::Fail("the owner waits for a peer that waits".to_owned())
    })?;
    check_eq!(counters.get(6), 0, "nobody has answered yet");
    peer.kill_at_once(context)?;
    owner.kill_at_once(context)
}

/// Pages of a file that the owner's page table lacks for now are the same pages, once the process
/// that handles the owner's faults has answered.
fn proven_04_absent_pages_are_not_stale(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let counters = SharedCounters::new()?;
    let len = 4 * PAGE;
    let owner = Child::spawn(|| {
        let own = Device::member(key)?;
        let file = sys::memfd(len, 0)?;
        let map = Map::file(len, file.as_fd())?;
        map.write(0, &pattern(3, len));
        let faults = sys::userfaultfd_minor(&map)?;
        counters.set(0, own.share(&map, RIGHT_READ)?.into());
        counters.await_at_least(1, 1)?;
        // The pages stay in the file.
        map.advise(0, len, libc::MADV_DONTNEED)?;
        counters.set(2, 1);
        counters.await_at_least(3, 1)?;
        sys::userfaultfd_continue(faults.as_fd(), &map)?;
        counters.set(4, 1);
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    })?;
    let id = counters.await_at_least(0, 1)? as u32;
    check!(device.fetch(id, len)? == pattern(3, len));
    counters.set(1, 1);
    counters.await_at_least(2, 1)?;
    let look = |word: usize| {
        let counters = &counters;
        Child::spawn(move || {
            let peer = Device::member(key)?;
            counters.set(word, 1);
            check!(peer.fetch(id, len)? == pattern(3, len));
            counters.set(word, 2);
            Ok(())
        })
    };
    let killed = look(5)?;
    let patient = look(6)?;
    counters.await_at_least(5, 1)?;
    counters.await_at_least(6, 1)?;
    std::thread::sleep(Duration::from_millis(300));
    check_eq!(counters.get(5), 1, "nobody has answered yet");
    killed.kill_at_once(context)?;
    counters.set(3, 1);
    counters.await_at_least(4, 1)?;
    patient.join()?;
    check!(device.fetch(id, len)? == pattern(3, len));
    owner.kill_at_once(context)
}

/// An engine's thread that is the last to hold a process's pages waits for nothing of that process.
fn proven_05_an_engine_waits_for_no_address_space(context: &Context) -> Outcome {
    let _chosen = choose(software_engine())?;
    // Dropped before the engine is told to leave.
    let silent = LateFile::new(None)?;
    let (device, key) = Device::domain()?;
    const ROUNDS: usize = 8;
    let long = 64 * MIB;
    let counters = SharedCounters::new()?;
    let owner = Child::spawn(|| {
        let own = Device::member(key)?;
        let map = Map::anon(long)?;
        map.fill(1);
        let unanswered = Map::anon(PAGE)?;
        unanswered.cover(0, PAGE, silent.file.as_fd())?;
        let address = unanswered.addr();
        let rest = RegionCreate {
            rights: RIGHT_READ,
            flags: CREATE_NO_REUSE,
            ..Default::default()
        };
        for round in 0..ROUNDS {
            let id = own.publish_with(&[map.piece()], rest)?.id;
            counters.set(8 + round, id.into());
        }
        // Holds the lock of this address space until the daemon answers.
        let memory = File::open("/proc/self/mem")?;
        std::thread::spawn(move || memory.read_at(&mut [0; 8], address));
        std::thread::sleep(Duration::from_millis(300));
        counters.set(0, 1);
        for round in 0..ROUNDS {
            counters.await_at_least(1, round as u64 + 1)?;
            own.unpin(counters.get(8 + round) as u32)?;
            counters.set(2, round as u64 + 1);
        }
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    })?;
    counters.await_at_least(0, 1)?;
    for round in 0..ROUNDS {
        let submitter = Child::spawn(|| {
            let own = Device::member(key)?;
            let to = Map::anon(long)?;
            to.fill(3);
            let id = own.share(&to, RIGHT_WRITE)?;
            own.submit_with(RequestSubmit {
                source: counters.get(8 + round) as u32,
                destination: id,
                length: long as u64,
                fragment_pages: MAX_FRAGMENT_PAGES,
                ..Default::default()
            })?;
            counters.set(1, round as u64 + 1);
            std::thread::sleep(Duration::from_secs(600));
            Ok(())
        })?;
        // From here on the request alone holds the owner's pages, and while it copies the engine
        // alone holds the request.
        counters.await_at_least(2, round as u64 + 1)?;
        submitter.kill()?;
    }
    std::thread::sleep(Duration::from_millis(200));
    let (from, to) = (Map::filled(PAGE, 2)?, Map::anon(PAGE)?);
    let (from_id, to_id) = (
        device.share(&from, RIGHT_READ)?,
        device.share(&to, RIGHT_WRITE)?,
    );
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let start = Instant::now();
        let id = device.submit((from_id, 0), (to_id, 0), PAGE as u64)?;
        let mut wait = RequestWait {
            id,
            flags: REQUEST_RELEASE,
            timeout_ns: context.second().as_nanos() as i64,
            ..Default::default()
        };
        device.call(REQUEST_WAIT, &mut wait)?;
        longest = longest.max(start.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    check!(to.bytes() == pattern(2, PAGE));
    print!("[longest of 20 requests {longest:?}] ");
    drop(silent);
    owner.kill()
}

/// Runs `body` as an ordinary user who may lock `limit` bytes.
fn as_user(limit: usize, body: impl FnOnce(&Device) -> Outcome) -> Outcome {
    let device = Device::open()?;
    in_child(|| {
        sys::limit_locked(limit as u64)?;
        sys::become_user(1000)?;
        device.create()?;
        body(&device)
    })
}

/// Bytes that a domain has pinned.
fn pinned(device: &Device) -> Outcome<usize> {
    Ok((device.counter("pins")? - device.counter("unpins")?) as usize * PAGE)
}

/// Who attaches memory pays for it, so that what dead owners left is within somebody's limit.
fn proven_06_attached_pages_are_charged(context: &Context) -> Outcome {
    let limit = 8 * MIB;
    let owners = context.rounds(35, 10);
    as_user(limit, |device| {
        let mut views = Vec::new();
        let mut refused = 0;
        for _ in 0..owners {
            let counters = SharedCounters::new()?;
            let owner = Child::spawn(|| {
                let map = Map::filled(limit, 1)?;
                counters.set(0, device.share(&map, RIGHT_READ)?.into());
                std::thread::sleep(Duration::from_secs(600));
                Ok(())
            })?;
            let id = counters.await_at_least(0, 1)? as u32;
            match device.map(id, RIGHT_READ) {
                Ok((view, _)) => {
                    // A second view of what its user pays for already is free.
                    views.push(device.map(id, RIGHT_READ)?.0);
                    views.push(view);
                }
                Err(errno) => {
                    check_eq!(errno, Errno::ENOMEM);
                    refused += 1;
                }
            }
            owner.kill()?;
        }
        let settled = soon(context, || pinned(device).is_ok_and(|bytes| bytes <= limit));
        let held = pinned(device)?;
        print!(
            "[{} MiB pinned, {refused} of {owners} refused] ",
            held / MIB
        );
        check!(
            settled.is_ok(),
            "{} MiB are pinned under a limit of 8",
            held / MIB
        );
        check_eq!((views.len(), refused), (2, owners - 1));
        check!(views[0].read(0, PAGE) == pattern(1, PAGE));
        // Nobody pays for what is detached.
        drop(views);
        soon(context, || pinned(device).is_ok_and(|bytes| bytes == 0))?;
        let map = Map::filled(limit, 2)?;
        let id = device.share(&map, RIGHT_READ)?;
        soon(context, || device.map(id, RIGHT_READ).is_ok())
    })
}

/// What a peer keeps attached is its own affair once the owner has taken it back.
fn proven_06_a_peer_uses_up_no_owners_limit(_: &Context) -> Outcome {
    as_user(8 * MIB, |device| {
        let counters = SharedCounters::new()?;
        let map = Map::filled(6 * MIB, 1)?;
        let id = device.share(&map, RIGHT_READ)?;
        let peer = Child::spawn(|| {
            let (view, at) = device.map(id, RIGHT_READ)?;
            counters.set(0, 1);
            counters.await_at_least(1, 1)?;
            check!(view.read(at, 6 * MIB) == pattern(1, 6 * MIB));
            Ok(())
        })?;
        counters.await_at_least(0, 1)?;
        check_eq!(sys::locked_kib()?, 6 << 10);
        device.unpin(id)?;
        check_eq!(sys::locked_kib()?, 0, "taken back");
        let next = Map::filled(6 * MIB, 2)?;
        let id = device.share(&next, RIGHT_READ)?;
        check_eq!(pinned(device)?, 12 * MIB);
        device.unpin(id)?;
        counters.set(1, 1);
        peer.join()
    })
}

/// The shortest and the longest of 50 invalidations of one page next to 800 regions: first of 2
/// pieces each, then of 1,024.
pub fn invalidations(device: &Device) -> Outcome<[(Duration, Duration); 2]> {
    const REGIONS: usize = 800;
    // The page in the middle lies between the pieces of every region.
    let map = Map::filled(3 * PAGE, 1)?;
    map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
    let measure = |count: usize| -> Outcome<(Duration, Duration)> {
        let pieces: Vec<Piece> = (0..count)
            .map(|i| map.part((i & 1) * 2 * PAGE, PAGE))
            .collect();
        let mut ids = Vec::new();
        for _ in 0..REGIONS {
            let rest = RegionCreate {
                rights: RIGHT_READ,
                flags: CREATE_NO_REUSE,
                ..Default::default()
            };
            ids.push(device.publish_with(&pieces, rest)?.id);
        }
        let mut times = Vec::new();
        for _ in 0..50 {
            map.write(PAGE, b"there");
            let start = Instant::now();
            map.advise(PAGE, PAGE, libc::MADV_DONTNEED)?;
            times.push(start.elapsed());
        }
        for id in ids {
            device.unpin(id)?;
        }
        times.sort();
        Ok((times[0], times[times.len() - 1]))
    };
    let (few, many) = (measure(2)?, measure(1024)?);
    print!(
        "[{REGIONS} regions of 2 pieces: {:?} to {:?}, of 1,024: {:?} to {:?}] ",
        few.0, few.1, many.0, many.1
    );
    Ok([few, many])
}

/// The longest of 50 changes of the protection of a page that 60,000 regions have, and of 50 in
/// which it is dropped.
pub fn changes_of_shared_pages() -> Outcome<[Duration; 2]> {
    const DOMAINS: usize = 15;
    const REGIONS: usize = 4000;
    let map = Map::filled(PAGE, 1)?;
    let mut devices = Vec::new();
    for _ in 0..DOMAINS {
        let (device, _) = Device::domain()?;
        for _ in 0..REGIONS {
            let rest = RegionCreate {
                rights: RIGHT_READ,
                flags: CREATE_NO_REUSE,
                ..Default::default()
            };
            device.publish_with(&[map.piece()], rest)?;
        }
        devices.push(device);
    }
    let longest = |change: &dyn Fn() -> Outcome| -> Outcome<Duration> {
        let mut longest = Duration::ZERO;
        for _ in 0..50 {
            map.write(0, b"there");
            let start = Instant::now();
            change()?;
            longest = longest.max(start.elapsed());
        }
        Ok(longest)
    };
    let times = [
        longest(&|| {
            map.protect(0, PAGE, libc::PROT_READ)?;
            Ok(map.protect(0, PAGE, libc::PROT_READ | libc::PROT_WRITE)?)
        })?,
        longest(&|| Ok(map.advise(0, PAGE, libc::MADV_DONTNEED)?))?,
    ];
    print!(
        "[beside {} regions of one page: protected twice in {:?}, dropped in {:?}] ",
        DOMAINS * REGIONS,
        times[0],
        times[1]
    );
    Ok(times)
}

/// Nobody is told of a change while it waits; who has a region of the memory finds it later.
fn proven_08_invalidation_is_bounded(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    invalidations(&device)?;
    // Pages that do not follow each other, so that each piece is a span.
    let map = Map::filled(2 * MAX_IOV as usize * PAGE, 1)?;
    map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
    let pieces: Vec<Piece> = (0..MAX_IOV as usize)
        .map(|i| map.part(2 * i * PAGE, PAGE))
        .collect();
    let region = device.publish(&pieces, RIGHT_READ)?;
    // Changes of pages between the spans, more than are remembered, leave the region as it is.
    for round in 0..3 * MAX_IOV as usize {
        let page = 1 + 2 * (round % MAX_IOV as usize);
        map.write(page * PAGE, b"there");
        map.advise(page * PAGE, PAGE, libc::MADV_DONTNEED)?;
        if round % 100 == 0 {
            check_eq!(
                device.region_info(region.id)?.state,
                0,
                "after {round} changes"
            );
        }
    }
    check_eq!(device.region_info(region.id)?.state, 0);
    // One change among many is found.
    map.write(2 * PAGE, b"there");
    map.advise(2 * PAGE, PAGE, libc::MADV_DONTNEED)?;
    for round in 0..200 {
        let page = 1 + 2 * (round % MAX_IOV as usize);
        map.advise(page * PAGE, PAGE, libc::MADV_DONTNEED)?;
    }
    let peer = in_child(|| {
        let peer = Device::member(key)?;
        check_eq!(peer.fetch(region.id, 8), Err(Errno::ESTALE));
        Ok(peer.leave()?)
    });
    device.unpin(region.id)?;
    peer
}

/// However often a region names a page, it is pinned once.
fn proven_09_a_page_is_pinned_once(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(2 * PAGE, 1)?;
    let page = [map.part(PAGE, PAGE); MAX_IOV as usize];
    let rest = RegionCreate {
        rights: RIGHT_READ | RIGHT_WRITE,
        flags: CREATE_NO_REUSE,
        ..Default::default()
    };
    let (region, pins) = growth("pins", || Ok(device.publish_with(&page, rest)?))?;
    let whole = map.read(PAGE, PAGE);
    let bytes = device.fetch(region.id, page.len() * PAGE)?;
    check!(
        bytes.chunks(PAGE).all(|chunk| chunk == whole),
        "not the page"
    );
    // Pieces that overlap, backwards and across pages.
    let odd = [
        map.part(4000, 200),
        map.part(100, 8000),
        map.part(4090, 12),
        map.part(5, 1),
    ];
    let expected = crate::region::gathered(&map, &odd);
    let (id, odd_pins) = growth("pins", || Ok(device.publish_with(&odd, rest)?.id))?;
    check!(device.fetch(id, expected.len())? == expected);
    device.store(id, 200, &pattern(9, 8000))?;
    check!(map.read(100, 8000) == pattern(9, 8000));
    // Attached, the page is there as often as it is named.
    in_child(|| {
        let (view, at) = Device::member(key)?.map(region.id, RIGHT_READ)?;
        check_eq!((view.len(), at), (page.len() * PAGE, 0));
        let whole = map.read(PAGE, PAGE);
        for index in [0, 1, 1023] {
            check!(view.read(index * PAGE, PAGE) == whole, "page {index}");
        }
        Ok(())
    })?;
    // As many pins of one page as its reference count has room for.
    for _ in 0..2048 {
        device.publish_with(&page, rest)?;
    }
    check_eq!((pins, odd_pins), (1, 2));
    Ok(())
}

/// A page has as many pins as there are mappings of it, which are limited.
fn proven_09_mappings_of_a_user_are_capped(_: &Context) -> Outcome {
    const CAP: u32 = 65536;
    let map = Map::filled(PAGE, 1)?;
    let mut devices = Vec::new();
    let mut total = 0;
    while total <= CAP {
        let (device, _) = Device::domain()?;
        let most = device.info()?.max_regions;
        let mut here = 0;
        let rest = RegionCreate {
            rights: RIGHT_READ,
            flags: CREATE_NO_REUSE,
            ..Default::default()
        };
        let refused = loop {
            match device.publish_with(&[map.piece()], rest) {
                Ok(_) => here += 1,
                Err(errno) => break errno,
            }
        };
        check_eq!(refused, Errno::ENOSPC);
        devices.push(device);
        total += here;
        if here < most {
            break;
        }
    }
    print!("[{total} mappings] ");
    check_eq!(total, CAP);
    // Another user is not affected.
    as_user(MIB, |device| {
        device.share(&Map::anon(PAGE)?, RIGHT_READ)?;
        Ok(())
    })?;
    devices.pop();
    devices.pop();
    let (device, _) = Device::domain()?;
    device.share(&map, RIGHT_READ)?;
    Ok(())
}

/// Which pages are neighbours in memory is not for everybody to know.
fn proven_11_adjacency_is_not_told(_: &Context) -> Outcome {
    let huge = Map::transparent_huge(HUGE)?;
    huge.fill(1);
    let small = Map::filled(HUGE, 1)?;
    small.advise(0, HUGE, libc::MADV_NOHUGEPAGE)?;
    let backwards: Vec<Piece> = (0..512).rev().map(|i| small.part(i * PAGE, PAGE)).collect();
    as_user(64 * MIB, |device| {
        let told = |pieces: &[Piece]| -> Outcome<RegionInfo> {
            let id = device.publish(pieces, RIGHT_READ)?.id;
            Ok(RegionInfo {
                id: 0,
                ..device.region_info(id)?
            })
        };
        check_eq!(told(&[huge.piece()])?, told(&backwards)?);
        let before = Stats::read();
        check!(
            before.is_err(),
            "an ordinary user reads the module's counters"
        );
        Ok(())
    })
}
