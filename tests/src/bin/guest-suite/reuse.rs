// SPDX-License-Identifier: MIT OR Apache-2.0

//! One map, many copies: pages stay pinned for the next region over the same buffer, and what
//! changes behind an address is never mistaken for what was there.

use std::fs;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;

use crate::abi::*;
use crate::device::Device;
use crate::harness::{Context, Outcome, skip};
use crate::kernel::{Stats, growth};
use crate::rng::pattern;
use crate::sys::{self, Child, HUGE, Map, PAGE, SharedCounters, in_child};
use crate::{check, check_eq, check_err, tests};

tests!(reuse:
    broadcast_pins_once(60), same_buffer_again, other_buffers_are_not_found, rights_differ,
    read_only_later, no_reuse_flags, bounded_pages(60), least_recently_used_goes, per_process,
    two_regions_share_their_pages, unmapped_and_mapped_again, replaced_in_place, changes_in_many_places(120), moved,
    dropped_by_advice, parent_writes_after_fork, child_writes_after_fork, owner_writes_are_seen,
    truncated_memfd, truncated_tmpfs_is_fresh, hole_in_file, protection_changes_nothing,
    unmapped_while_published, part_of_several_pieces, swapped_by_huge_page_collapse,
    signals_are_no_changes(120),
    random_changes(120), pressure_unpins(300),
);

fn reused(region: &RegionCreate) -> bool {
    region.result & RESULT_REUSED != 0
}

/// Must-show 2: N leaves cost the root one pinning of 8 MiB, and the next broadcast none at all.
fn broadcast_pins_once(_: &Context) -> Outcome {
    const LEN: usize = 8 << 20;
    const LEAVES: usize = 4;
    let (device, key) = Device::domain()?;
    let map = Map::filled(LEN, 1)?;
    let counters = SharedCounters::new()?;
    let leaves: Vec<Child> = (0..LEAVES)
        .map(|_| {
            let counters = &counters;
            Child::spawn(move || {
                let peer = Device::member(key)?;
                let buffer = Map::anon(LEN)?;
                for round in 1..=2u64 {
                    counters.await_at_least(0, round)?;
                    let id = counters.get(1) as u32;
                    buffer.fill(0);
                    peer.copy_all(id, COPY_FROM_REGION, 0, &buffer, 0, LEN)?;
                    check!(buffer.bytes() == pattern(round, LEN), "round {round}");
                    counters.bump(2);
                }
                peer.leave()?;
                Ok(())
            })
        })
        .collect::<Outcome<_>>()?;
    for (round, pages) in [(1, (LEN / PAGE) as i64), (2, 0)] {
        map.write(0, &pattern(round, LEN));
        let ((), pins) = growth("pins", || {
            let region = device.publish(&[map.piece()], RIGHT_READ)?;
            check_eq!(reused(&region), round == 2);
            counters.set(1, region.id.into());
            counters.set(0, round);
            // They tell by shared memory that they are done.
            counters.await_at_least(2, round * LEAVES as u64)?;
            device.destroy(region.id)?;
            Ok(())
        })?;
        check_eq!(pins, pages, "pages pinned in round {round}");
    }
    for leaf in leaves {
        leaf.join()?;
    }
    Ok(())
}

fn same_buffer_again(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(16 * PAGE, 1)?;
    let pieces = [map.part(100, 5000), map.part(8 * PAGE + 1, 3 * PAGE)];
    let first = device.publish(&pieces, RIGHT_READ)?;
    check!(!reused(&first));
    device.destroy(first.id)?;
    let before = Stats::read()?;
    for round in 0..5u8 {
        map.write(100, &[round; 64]);
        let again = device.publish(&pieces, RIGHT_READ)?;
        check!(reused(&again), "round {round}");
        check!(again.id != first.id);
        check_eq!((again.length, again.pages), (first.length, first.pages));
        check_eq!(device.fetch(again.id, 64)?, [round; 64]);
        device.destroy(again.id)?;
    }
    let after = Stats::read()?;
    check_eq!(after.since(&before, "reuse_hits")?, 5);
    check_eq!(after.since(&before, "reuse_misses")?, 0);
    check_eq!(after.since(&before, "pins")?, 0);
    check_eq!(after.since(&before, "unpins")?, 0);
    Ok(())
}

fn other_buffers_are_not_found(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(16 * PAGE, 1)?;
    let id = device.publish(&[map.part(0, 8 * PAGE)], RIGHT_READ)?.id;
    device.destroy(id)?;
    let others: [&[Piece]; 5] = [
        &[map.part(8 * PAGE, 8 * PAGE)],
        &[map.part(0, 9 * PAGE)],
        &[map.part(4 * PAGE, 8 * PAGE)],
        &[map.part(PAGE, 8 * PAGE)],
        &[map.part(0, 8 * PAGE), map.part(12 * PAGE, 1)],
    ];
    for other in others {
        let region = device.publish(other, RIGHT_READ)?;
        let expected = crate::region::gathered(&map, other);
        check!(
            device.fetch(region.id, expected.len())? == expected,
            "{other:?}"
        );
        device.unpin(region.id)?;
    }
    // Within what is pinned: found or not, but right.
    let inner = device.publish(&[map.part(2 * PAGE + 5, 3 * PAGE)], RIGHT_READ)?;
    check_eq!(inner.length, 3 * PAGE as u64);
    check!(device.fetch(inner.id, 3 * PAGE)? == map.read(2 * PAGE + 5, 3 * PAGE));
    Ok(())
}

fn rights_differ(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(2 * PAGE, 1)?;
    for (first, second) in [
        (RIGHT_READ, RIGHT_WRITE),
        (RIGHT_WRITE, RIGHT_READ),
        (RIGHT_READ, RIGHT_READ | RIGHT_WRITE),
        (RIGHT_READ | RIGHT_WRITE, RIGHT_READ),
    ] {
        let id = device.share(&map, first)?;
        device.destroy(id)?;
        let id = device.share(&map, second)?;
        check_eq!(device.region_info(id)?.rights, second);
        in_child(|| {
            let peer = Device::member(key)?;
            let buffer = Map::filled(PAGE, 2)?;
            let piece = [buffer.piece()];
            if second & RIGHT_READ != 0 {
                check_eq!(peer.copy(id, COPY_FROM_REGION, 0, 64, &piece)?, 64);
            } else {
                check_err!(peer.copy(id, COPY_FROM_REGION, 0, 64, &piece), EACCES);
            }
            if second & RIGHT_WRITE != 0 {
                check_eq!(peer.copy(id, COPY_TO_REGION, 0, 64, &piece)?, 64);
            } else {
                check_err!(peer.copy(id, COPY_TO_REGION, 0, 64, &piece), EACCES);
                check_err!(peer.attach(id, RIGHT_WRITE), EACCES);
            }
            peer.leave()?;
            Ok(())
        })?;
        if second & RIGHT_WRITE != 0 {
            // What peers wrote arrived in the owner's memory, not in a copy pinned for reading.
            device.store(id, 100, b"through the region")?;
            check_eq!(map.read(100, 18), b"through the region");
        }
        device.unpin(id)?;
    }
    Ok(())
}

/// Memory pinned for reading while it was untouched is the zero page; written to, it is another.
fn read_only_later(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(4 * PAGE)?;
    let id = device.share(&map, RIGHT_READ)?;
    check_eq!(device.fetch(id, 4 * PAGE)?, vec![0; 4 * PAGE]);
    map.write(PAGE, b"now there is something");
    check_eq!(
        device.fetch(id, PAGE + 22)?[PAGE..],
        *b"now there is something"
    );
    device.destroy(id)?;
    map.write(2 * PAGE, b"and more");
    let id = device.share(&map, RIGHT_READ)?;
    check!(device.fetch(id, 4 * PAGE)? == map.bytes());
    // A constant page, made writable while it is kept for reuse.
    let constant = Map::filled(PAGE, 2)?;
    constant.protect(0, PAGE, libc::PROT_READ)?;
    let id = device.share(&constant, RIGHT_READ)?;
    device.destroy(id)?;
    check_err!(device.share(&constant, RIGHT_READ | RIGHT_WRITE), EACCES);
    constant.protect(0, PAGE, sys::RW)?;
    let id = device.share(&constant, RIGHT_READ | RIGHT_WRITE)?;
    device.store(id, 0, b"allowed now")?;
    check_eq!(constant.read(0, 11), b"allowed now");
    device.destroy(id)?;
    // And the other way round: what may no longer be written must not be found writable.
    constant.protect(0, PAGE, libc::PROT_READ)?;
    check_err!(device.share(&constant, RIGHT_WRITE), EACCES);
    Ok(())
}

fn no_reuse_flags(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let never = RegionCreate {
        rights: RIGHT_READ,
        flags: CREATE_NO_REUSE,
        ..Default::default()
    };
    let before = Stats::read()?;
    let balance = || -> Outcome<i64> {
        let now = Stats::read()?;
        Ok(now.since(&before, "pins")? - now.since(&before, "unpins")?)
    };
    let id = device.publish_with(&[map.piece()], never)?.id;
    check_eq!(balance()?, 4);
    device.destroy(id)?;
    check_eq!(balance()?, 0, "CREATE_NO_REUSE leaves nothing");
    let id = device.share(&map, RIGHT_READ)?;
    device.unpin(id)?;
    check_eq!(balance()?, 0, "DESTROY_UNPIN leaves nothing");
    let id = device.share(&map, RIGHT_READ)?;
    device.destroy(id)?;
    check_eq!(balance()?, 4, "kept for reuse");
    // Nor does it look into what is kept.
    let region = device.publish_with(&[map.piece()], never)?;
    check!(!reused(&region));
    check!(device.fetch(region.id, 4 * PAGE)? == map.bytes());
    device.destroy(region.id)?;
    let region = device.publish(&[map.piece()], RIGHT_READ)?;
    check!(reused(&region));
    device.unpin(region.id)?;
    check_eq!(balance()?, 0);
    Ok(())
}

/// The bound, and the module's parameter where the kernel shows it.
fn bound(device: &Device) -> Outcome<u64> {
    let limit = device.info()?.reuse_pages;
    if let Ok(text) = fs::read_to_string("/sys/module/libcopy/parameters/reuse_pages") {
        check_eq!(text.trim(), limit.to_string());
    }
    Ok(limit)
}

fn bounded_pages(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let limit = bound(&device)?;
    let total = (limit as usize * 3 / 2 + 64) * PAGE;
    if total > 1 << 30 {
        return skip(format!(
            "the bound of {limit} pages is more than this machine's memory"
        ));
    }
    let chunk = (total / 12).next_multiple_of(PAGE);
    let maps: Vec<Map> = (0..12)
        .map(|_| Map::anon(chunk))
        .collect::<Result<_, Errno>>()?;
    let before = Stats::read()?;
    for map in &maps {
        let id = device.share(map, RIGHT_READ)?;
        device.destroy(id)?;
        let now = Stats::read()?;
        let kept = now.since(&before, "pins")? - now.since(&before, "unpins")?;
        check!(
            kept <= limit as i64,
            "{kept} pages are kept, {limit} may be"
        );
    }
    // A buffer larger than all of the cache is not kept.
    drop(maps);
    let huge = Map::anon((limit as usize + 1) * PAGE)?;
    let id = device.share(&huge, RIGHT_READ)?;
    device.destroy(id)?;
    let now = Stats::read()?;
    let kept = now.since(&before, "pins")? - now.since(&before, "unpins")?;
    check!(
        kept <= limit as i64,
        "{kept} pages are kept, {limit} may be"
    );
    Ok(())
}

/// With room for a few buffers, what was just used is found again.
fn least_recently_used_goes(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let limit = bound(&device)? as usize;
    let pages = limit / 4;
    if pages == 0 || limit * PAGE > 1 << 30 {
        return skip(format!("not with a bound of {limit} pages"));
    }
    let maps: Vec<Map> = (0..5)
        .map(|_| Map::anon(pages * PAGE))
        .collect::<Result<_, Errno>>()?;
    let use_once = |map: &Map| -> Outcome<bool> {
        let region = device.publish(&[map.piece()], RIGHT_READ)?;
        device.destroy(region.id)?;
        Ok(reused(&region))
    };
    for map in &maps[..4] {
        check!(!use_once(map)?);
    }
    check!(use_once(&maps[0])?, "four of four buffers fit");
    check!(!use_once(&maps[4])?);
    check!(use_once(&maps[0])?, "the one used last was thrown out");
    check!(
        !use_once(&maps[1])?,
        "the one not used for longest is still there"
    );
    Ok(())
}

fn per_process(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    device.destroy(id)?;
    in_child(|| {
        // The same addresses, but a child's memory.
        map.write(0, b"the child's");
        let region = device.publish(&[map.piece()], RIGHT_READ)?;
        check!(!reused(&region), "found the parent's pages");
        check_eq!(device.fetch(region.id, 11)?, b"the child's");
        device.destroy(region.id)?;
        device.leave()?;
        Ok(())
    })?;
    let region = device.publish(&[map.piece()], RIGHT_READ)?;
    check!(device.fetch(region.id, 4 * PAGE)? == pattern(1, 4 * PAGE));
    Ok(())
}

fn two_regions_share_their_pages(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(8 * PAGE, 1)?;
    let (ids, pins) = growth("pins", || {
        let a = device.share(&map, RIGHT_READ)?;
        let b = device.share(&map, RIGHT_READ)?;
        Ok([a, b])
    })?;
    // Pinned once or twice, but each region stands for itself.
    check!(pins == 8 || pins == 16, "{pins} pins");
    device.unpin(ids[0])?;
    check!(device.fetch(ids[1], 8 * PAGE)? == map.bytes());
    device.unpin(ids[1])?;
    Ok(())
}

/// What a peer may see of a region over memory that was changed: the new data or ESTALE.
fn never_stale(device: &Device, id: u32, now: &[u8]) -> Outcome {
    match device.fetch(id, now.len()) {
        Ok(seen) => check!(seen == now, "an existing region gives stale data"),
        Err(errno) => {
            check_eq!(errno, Errno::ESTALE);
            check!(
                device.region_info(id)?.state & STATE_STALE != 0,
                "ESTALE, and no STATE_STALE"
            );
        }
    }
    Ok(())
}

/// The same for writing: into the new memory or ESTALE.
fn never_lost(device: &Device, id: u32, map: &Map) -> Outcome {
    match device.store(id, 0, b"not lost") {
        Ok(()) => check_eq!(
            map.read(0, 8),
            b"not lost",
            "bytes went into pages that are gone"
        ),
        Err(errno) => check_eq!(errno, Errno::ESTALE),
    }
    Ok(())
}

/// The checks for every way to change what is behind an address: `change` gets a mapping filled
/// with pattern 1 and returns the mapping at the same address, with other contents.
fn staleness(
    len: usize,
    make: impl Fn() -> Outcome<Map>,
    change: impl Fn(Map) -> Outcome<Map>,
) -> Outcome {
    let (device, key) = Device::domain()?;
    let rights = RIGHT_READ | RIGHT_WRITE;
    // A mapping that waits for reuse must not be found.
    let map = make()?;
    map.write(0, &pattern(1, len));
    let address = map.addr();
    let id = device.share(&map, rights)?;
    check!(device.fetch(id, len)? == pattern(1, len));
    device.destroy(id)?;
    let map = change(map)?;
    check_eq!(map.addr(), address, "the test itself");
    let now = map.bytes();
    check!(
        now != pattern(1, len),
        "the test itself: nothing has changed"
    );
    let region = device.publish(&[map.piece()], rights)?;
    check!(
        device.fetch(region.id, len)? == now,
        "stale data through the reuse cache"
    );
    check!(!reused(&region), "a changed buffer was found again");
    device.store(region.id, 0, b"into the new pages")?;
    check_eq!(map.read(0, 18), b"into the new pages");
    device.unpin(region.id)?;
    drop(map);

    // A region that exists gives the new data or says that it is stale.
    let map = make()?;
    map.write(0, &pattern(1, len));
    let id = device.share(&map, rights)?;
    check!(device.fetch(id, len)? == pattern(1, len));
    let invalidations = Stats::read()?;
    let map = change(map)?;
    let now = map.bytes();
    never_stale(&device, id, &now)?;
    in_child(|| {
        let peer = Device::member(key)?;
        never_stale(&peer, id, &now)?;
        let buffer = Map::anon(PAGE)?;
        let range = [Piece { base: 0, len: 16 }];
        let copied = peer.copy_ranges(id, COPY_FROM_REGION, 0, 16, &range, &[buffer.piece()]);
        check!(
            copied == Err(Errno::ESTALE) || buffer.read(0, 16) == now[..16],
            "ranges: {copied:?}"
        );
        match peer.map(id, RIGHT_READ) {
            Ok((view, at)) => check!(
                view.read(at, len) == now,
                "a new attachment gives stale data"
            ),
            Err(errno) => check_eq!(errno, Errno::ESTALE),
        }
        peer.leave()?;
        Ok(())
    })?;
    never_lost(&device, id, &map)?;
    // Destroying it works as ever, and leaves nothing that is found.
    device.destroy(id)?;
    let region = device.publish(&[map.piece()], rights)?;
    check!(device.fetch(region.id, len)? == map.bytes());
    check!(
        Stats::read()?.since(&invalidations, "invalidations")? >= 1,
        "the change is not counted as an invalidation"
    );
    Ok(())
}

fn unmapped_and_mapped_again(_: &Context) -> Outcome {
    staleness(
        8 * PAGE,
        || Ok(Map::anon(8 * PAGE)?),
        |map| {
            map.unmap(0, 8 * PAGE)?;
            map.replace(0, 8 * PAGE)?;
            map.write(0, &pattern(2, 8 * PAGE));
            Ok(map)
        },
    )
}

fn replaced_in_place(_: &Context) -> Outcome {
    staleness(
        8 * PAGE,
        || Ok(Map::anon(8 * PAGE)?),
        |map| {
            // Only a part of it.
            map.replace(3 * PAGE, PAGE)?;
            map.write(3 * PAGE, &pattern(2, PAGE));
            Ok(map)
        },
    )
}

/// Protection splits memory in more places than the module tells apart; a page that is replaced
/// among them is noticed.
fn changes_in_many_places(_: &Context) -> Outcome {
    const PLACES: usize = 8;
    const STEP: usize = 2 << 20;
    let (device, _) = Device::domain()?;
    let spot = |place: usize| place * STEP + 3 * PAGE;
    for victim in 0..PLACES {
        let map = Map::filled(PLACES * STEP, 1)?;
        let id = device.publish(&[map.piece()], RIGHT_READ)?.id;
        let split = || {
            (0..PLACES).try_for_each(|place| {
                map.protect(spot(place), PAGE, libc::PROT_READ)?;
                map.protect(spot(place), PAGE, libc::PROT_READ | libc::PROT_WRITE)
            })
        };
        split()?;
        check!(
            device.fetch(id, PAGE)? == map.read(0, PAGE),
            "protection alone changes nothing"
        );
        split()?;
        map.replace(spot(victim), PAGE)?;
        map.write(spot(victim), &pattern(2, PAGE));
        never_stale(&device, id, &map.bytes())?;
        device.destroy(id)?;
    }
    Ok(())
}

fn moved(_: &Context) -> Outcome {
    staleness(
        8 * PAGE,
        || Ok(Map::anon(8 * PAGE)?),
        |map| {
            // Other memory is moved on top of it.
            let other = Map::filled(8 * PAGE, 2)?;
            Ok(other.move_onto(map)?)
        },
    )?;
    // Moved away: the old address is gone, the new one has the data.
    let (device, _) = Device::domain()?;
    let map = Map::filled(8 * PAGE, 1)?;
    let old = map.piece();
    let id = device.publish(&[old], RIGHT_READ)?.id;
    let place = Map::anon(8 * PAGE)?;
    let map = map.move_onto(place)?;
    match device.fetch(id, 8 * PAGE) {
        Ok(seen) => check!(seen == pattern(1, 8 * PAGE)),
        Err(errno) => check_eq!(errno, Errno::ESTALE),
    }
    device.destroy(id)?;
    check_err!(device.publish(&[old], RIGHT_READ), EFAULT);
    let region = device.publish(&[map.piece()], RIGHT_READ)?;
    check!(device.fetch(region.id, 8 * PAGE)? == pattern(1, 8 * PAGE));
    Ok(())
}

fn dropped_by_advice(_: &Context) -> Outcome {
    staleness(
        8 * PAGE,
        || Ok(Map::anon(8 * PAGE)?),
        |map| {
            map.advise(0, 8 * PAGE, libc::MADV_DONTNEED)?;
            Ok(map)
        },
    )?;
    staleness(
        2 * HUGE,
        || Ok(Map::transparent_huge(2 * HUGE)?),
        |map| {
            map.advise(HUGE, HUGE, libc::MADV_DONTNEED)?;
            Ok(map)
        },
    )
}

fn parent_writes_after_fork(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    for right in [RIGHT_READ, RIGHT_READ | RIGHT_WRITE] {
        let map = Map::filled(8 * PAGE, 1)?;
        let id = device.share(&map, right)?;
        let counters = SharedCounters::new()?;
        let child = Child::spawn(|| {
            // Holds on to its copies of the pages.
            counters.await_at_least(0, 1)?;
            check!(
                map.bytes() == pattern(1, 8 * PAGE),
                "the child's memory has changed"
            );
            let peer = Device::member(key)?;
            check!(
                peer.fetch(id, 8 * PAGE)? == pattern(2, 8 * PAGE),
                "not what the parent wrote"
            );
            peer.leave()?;
            Ok(())
        })?;
        map.write(0, &pattern(2, 8 * PAGE));
        check!(
            device.fetch(id, 8 * PAGE)? == pattern(2, 8 * PAGE),
            "right {right}: stale"
        );
        if right & RIGHT_WRITE != 0 {
            device.store(id, 77, b"to the parent")?;
            check_eq!(map.read(77, 13), b"to the parent");
            map.write(0, &pattern(2, 8 * PAGE));
        }
        counters.set(0, 1);
        child.join()?;
        // Kept for reuse over the next fork.
        device.destroy(id)?;
        let child = Child::spawn(|| {
            counters.await_at_least(1, 1)?;
            Ok(())
        })?;
        map.write(0, &pattern(3, 8 * PAGE));
        let region = device.publish(&[map.piece()], right)?;
        check!(
            device.fetch(region.id, 8 * PAGE)? == pattern(3, 8 * PAGE),
            "right {right}: cache"
        );
        counters.set(1, 1);
        child.join()?;
        device.unpin(region.id)?;
    }
    Ok(())
}

fn child_writes_after_fork(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    for right in [RIGHT_READ, RIGHT_READ | RIGHT_WRITE] {
        let map = Map::filled(8 * PAGE, 1)?;
        let id = device.share(&map, right)?;
        let counters = SharedCounters::new()?;
        let child = Child::spawn(|| {
            map.write(0, &pattern(2, 8 * PAGE));
            counters.set(0, 1);
            counters.await_at_least(1, 1)?;
            check!(
                map.bytes() == pattern(2, 8 * PAGE),
                "the child's memory has changed"
            );
            Ok(())
        })?;
        counters.await_at_least(0, 1)?;
        check!(
            device.fetch(id, 8 * PAGE)? == pattern(1, 8 * PAGE),
            "the child's writes are seen"
        );
        map.write(0, &pattern(3, 8 * PAGE));
        check!(
            device.fetch(id, 8 * PAGE)? == pattern(3, 8 * PAGE),
            "the parent's are not"
        );
        if right & RIGHT_WRITE != 0 {
            device.store(id, 0, b"for the parent")?;
            check_eq!(map.read(0, 14), b"for the parent");
        }
        counters.set(1, 1);
        child.join()?;
        // The child is gone and its pages with it: still the parent's.
        check_eq!(device.fetch(id, 8 * PAGE)?, map.bytes());
        device.unpin(id)?;
    }
    Ok(())
}

fn owner_writes_are_seen(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    for round in 2..10 {
        map.write(0, &pattern(round, 4 * PAGE));
        check!(
            device.fetch(id, 4 * PAGE)? == pattern(round, 4 * PAGE),
            "round {round}"
        );
        in_child(|| {
            let peer = Device::member(key)?;
            check!(
                peer.fetch(id, 4 * PAGE)? == pattern(round, 4 * PAGE),
                "round {round}"
            );
            peer.leave()?;
            Ok(())
        })?;
    }
    Ok(())
}

fn truncated_memfd(_: &Context) -> Outcome {
    let file = sys::memfd(8 * PAGE, 0)?;
    staleness(
        8 * PAGE,
        || {
            sys::truncate(file.as_fd(), 8 * PAGE)?;
            Ok(Map::file(8 * PAGE, file.as_fd())?)
        },
        |map| {
            sys::truncate(file.as_fd(), 0)?;
            sys::truncate(file.as_fd(), 8 * PAGE)?;
            Ok(map)
        },
    )
}

/// Shortened and not extended again: there is nothing behind the address any more.
fn truncated_tmpfs_is_fresh(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let file = sys::memfd(4 * PAGE, 0)?;
    let map = Map::file(4 * PAGE, file.as_fd())?;
    map.write(0, &pattern(1, 4 * PAGE));
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    sys::truncate(file.as_fd(), PAGE)?;
    check_err!(device.fetch(id, 4 * PAGE), ESTALE);
    device.destroy(id)?;
    check_err!(device.share(&map, RIGHT_READ), EFAULT);
    let id = device.publish(&[map.part(0, PAGE)], RIGHT_READ)?.id;
    check!(device.fetch(id, PAGE)? == pattern(1, PAGE));
    Ok(())
}

fn hole_in_file(_: &Context) -> Outcome {
    use std::os::fd::AsRawFd;
    let file = sys::memfd(8 * PAGE, 0)?;
    staleness(
        8 * PAGE,
        || Ok(Map::file(8 * PAGE, file.as_fd())?),
        |map| {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: Numbers only.
            let got =
                unsafe { libc::fallocate(file.as_raw_fd(), mode, PAGE as i64, 2 * PAGE as i64) };
            sys::result(got.into())?;
            Ok(map)
        },
    )
}

/// mprotect changes what the owner may do, not which page is there: it must not invalidate.
fn protection_changes_nothing(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(8 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let before = Stats::read()?;
    for prot in [libc::PROT_READ, libc::PROT_NONE] {
        map.protect(0, 8 * PAGE, prot)?;
        check!(
            device.fetch(id, 8 * PAGE)? == pattern(1, 8 * PAGE),
            "protection {prot}"
        );
        device.store(id, 0, &pattern(1, 10))?;
        check_eq!(device.region_info(id)?.state, 0);
        map.protect(0, 8 * PAGE, sys::RW)?;
        check!(device.fetch(id, 8 * PAGE)? == pattern(1, 8 * PAGE));
    }
    device.destroy(id)?;
    map.protect(0, 8 * PAGE, libc::PROT_NONE)?;
    map.protect(0, 8 * PAGE, sys::RW)?;
    let again = device.publish(&[map.piece()], RIGHT_READ | RIGHT_WRITE)?;
    check!(reused(&again), "mprotect threw a kept buffer out");
    check_eq!(Stats::read()?.since(&before, "pins")?, 0);
    Ok(())
}

fn unmapped_while_published(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    map.unmap(0, 4 * PAGE)?;
    in_child(|| {
        let peer = Device::member(key)?;
        check_err!(peer.fetch(id, PAGE), ESTALE);
        check_err!(peer.store(id, 0, b"x"), ESTALE);
        check_err!(peer.attach(id, RIGHT_READ), ESTALE);
        check!(peer.region_info(id)?.state & STATE_STALE != 0);
        peer.leave()?;
        Ok(())
    })?;
    // Mapping the same address again does not bring it back to life with old bytes.
    map.replace(0, 4 * PAGE)?;
    never_stale(&device, id, &vec![0; 4 * PAGE])?;
    device.destroy(id)?;
    Ok(())
}

/// Unmapping next to a piece, in the gap between two, must not matter.
fn part_of_several_pieces(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(9 * PAGE, 1)?;
    let pieces = [map.part(0, 2 * PAGE), map.part(6 * PAGE, 2 * PAGE)];
    let expected = crate::region::gathered(&map, &pieces);
    let id = device.publish(&pieces, RIGHT_READ)?.id;
    map.unmap(3 * PAGE, PAGE)?;
    map.advise(4 * PAGE, PAGE, libc::MADV_DONTNEED)?;
    map.unmap(8 * PAGE, PAGE)?;
    check!(
        device.fetch(id, expected.len())? == expected,
        "unmapped beside the region"
    );
    device.destroy(id)?;
    // One byte's page of the last piece, however, matters.
    let id = device.publish(&pieces, RIGHT_READ)?.id;
    map.replace(7 * PAGE, PAGE)?;
    never_stale(
        &device,
        id,
        &[&expected[..3 * PAGE], &vec![0; PAGE][..]].concat(),
    )?;
    Ok(())
}

/// The kernel may gather small pages into a huge one behind our back; pinned ones it must not.
fn swapped_by_huge_page_collapse(_: &Context) -> Outcome {
    const MADV_COLLAPSE: i32 = 25;
    let (device, _) = Device::domain()?;
    let map = Map::transparent_huge(HUGE)?;
    map.advise(0, HUGE, libc::MADV_NOHUGEPAGE)?;
    map.write(0, &pattern(1, HUGE));
    map.advise(0, HUGE, libc::MADV_HUGEPAGE)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let _ = map.advise(0, HUGE, MADV_COLLAPSE);
    map.write(0, &pattern(2, HUGE));
    check!(
        device.fetch(id, HUGE)? == pattern(2, HUGE),
        "stale after a collapse"
    );
    device.store(id, 5, b"here")?;
    check_eq!(map.read(5, 4), b"here");
    device.destroy(id)?;
    let _ = map.advise(0, HUGE, MADV_COLLAPSE);
    map.write(0, &pattern(3, HUGE));
    let region = device.publish(&[map.piece()], RIGHT_READ)?;
    check!(
        device.fetch(region.id, HUGE)? == pattern(3, HUGE),
        "stale after a collapse (cache)"
    );
    Ok(())
}

/// A peer that is interrupted while it compares pages does not know whether they have changed: it
/// hears of the signal, not that they have. The owner's memory is guarded, so that pages are looked
/// up one by one, and announced as changed again and again (MADV_FREE leaves pinned pages where
/// they are).
fn signals_are_no_changes(_: &Context) -> Outcome {
    const PAGES: usize = 2048;
    const CALLS: usize = 4000;
    let (device, key) = Device::domain()?;
    let map = Map::filled(PAGES * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let counters = SharedCounters::new()?;
    let peer = Child::spawn(|| {
        let peer = Device::member(key)?;
        counters.bump(0);
        counters.await_at_least(1, 1)?;
        let every = Duration::from_millis(3);
        sys::alarm(every, every)?;
        let (mut stale, mut interrupted, mut others) = (0, 0, Vec::new());
        for _ in 0..CALLS {
            match peer.region_info(id) {
                Ok(info) => stale += usize::from(info.state & STATE_STALE != 0),
                Err(Errno::EINTR) => interrupted += 1,
                Err(errno) => others.push(errno),
            }
        }
        sys::alarm(Duration::ZERO, Duration::ZERO)?;
        counters.bump(2);
        check!(
            stale == 0,
            "{stale} of {CALLS} answers call unchanged memory stale ({interrupted} were interrupted)"
        );
        check!(others.is_empty(), "{others:?}");
        check!(interrupted > 0, "no signal arrived in a comparison");
        peer.leave()?;
        Ok(())
    })?;
    counters.await_at_least(0, 1)?;
    map.protect(0, PAGES * PAGE, libc::PROT_NONE)?;
    counters.bump(1);
    while counters.get(2) == 0 {
        map.advise(0, PAGES * PAGE, libc::MADV_FREE)?;
    }
    peer.join()?;
    map.protect(0, PAGES * PAGE, sys::RW)?;
    check!(device.fetch(id, PAGES * PAGE)? == pattern(1, PAGES * PAGE));
    device.destroy(id)?;
    Ok(())
}

/// Publish, change, destroy, in any order over the same addresses: never a byte from the past.
fn random_changes(context: &Context) -> Outcome {
    const PAGES: usize = 16;
    let mut rng = context.rng();
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGES * PAGE, 1)?;
    let mut live: Vec<(u32, usize, usize)> = Vec::new();
    for step in 0..2500 {
        let start = rng.index(PAGES);
        let count = 1 + rng.index(PAGES - start);
        let (offset, len) = (start * PAGE, count * PAGE);
        let what = format!("seed {}, step {step}", context.seed);
        match rng.below(11) {
            0 => map.replace(offset, len)?,
            1 => map.advise(offset, len, libc::MADV_DONTNEED)?,
            2 => {
                map.protect(offset, len, libc::PROT_NONE)?;
                map.protect(offset, len, sys::RW)?;
            }
            3 if rng.one_in(4) => in_child(|| {
                map.write(offset, &pattern(step, 100));
                Ok(())
            })?,
            4..=6 => {
                let shift = rng.index(100);
                let rights = rng.pick(&[RIGHT_READ, RIGHT_READ | RIGHT_WRITE]);
                let piece = map.part(offset + shift, len - shift);
                let id = device
                    .publish(&[piece], rights)
                    .map_err(|e| format!("{what}: {e}"))?
                    .id;
                check!(
                    device.fetch(id, len - shift)? == map.read(offset + shift, len - shift),
                    "{what}: a new region gives stale data"
                );
                live.push((id, offset + shift, len - shift));
            }
            7 | 8 if !live.is_empty() => {
                let (id, ..) = live.swap_remove(rng.index(live.len()));
                if rng.one_in(4) {
                    device.unpin(id)?
                } else {
                    device.destroy(id)?
                }
            }
            _ => {
                map.write(offset, &pattern(step, len));
            }
        }
        if let Some(&(id, at, len)) = live.get(rng.index(live.len().max(1))) {
            match device.fetch(id, len) {
                Ok(seen) => check!(
                    seen == map.read(at, len),
                    "{what}: stale data of region {id}"
                ),
                Err(errno) => check_eq!(errno, Errno::ESTALE, "{what}"),
            }
        }
    }
    Ok(())
}

/// What is pinned for later only goes when the machine is short of memory.
fn pressure_unpins(_: &Context) -> Outcome {
    const STEP: usize = 8 << 20;
    let (device, _) = Device::domain()?;
    let pages = usize::min(bound(&device)? as usize, (64 << 20) / PAGE);
    if pages == 0 {
        return skip("nothing is kept");
    }
    let map = Map::filled(pages * PAGE, 7)?;
    let id = device.share(&map, RIGHT_READ)?;
    device.destroy(id)?;
    let kept = device.publish(&[map.piece()], RIGHT_READ)?;
    check!(reused(&kept), "not kept");
    device.destroy(kept.id)?;
    let before = Stats::read()?;
    let counters = SharedCounters::new()?;
    // It is the first one that the kernel would kill.
    let hungry = Child::spawn(|| {
        fs::write("/proc/self/oom_score_adj", "1000")?;
        while counters.get(1) == 0 {
            let eaten = Map::anon(STEP)?;
            eaten.advise(0, STEP, libc::MADV_HUGEPAGE)?;
            for page in 0..STEP / PAGE {
                eaten.write(page * PAGE, &[1]);
            }
            eaten.leak();
            counters.add(0, 1);
        }
        Ok(())
    })?;
    let mut unpinned = 0;
    let mut eaten = 0;
    while unpinned < pages as i64
        && crate::sys::wait_exit(hungry.pid, std::time::Duration::from_millis(20)).is_none()
    {
        unpinned = Stats::read()?.since(&before, "unpins")?;
        eaten = counters.get(0);
    }
    counters.set(1, 1);
    let _ = hungry.kill();
    check!(
        unpinned >= pages as i64,
        "{unpinned} of {pages} idle pages were unpinned, although {} MiB were asked for",
        eaten * 8
    );
    let again = device.publish(&[map.piece()], RIGHT_READ)?;
    check!(!reused(&again));
    check!(device.fetch(again.id, map.len())? == map.bytes());
    device.unpin(again.id)?;
    Ok(())
}
