// SPDX-License-Identifier: MIT OR Apache-2.0

//! Load and store: regions mapped into peers.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;

use crate::abi::*;
use crate::death::soon;
use crate::device::Device;
use crate::harness::{Context, Outcome};
use crate::kernel::Stats;
use crate::rng::pattern;
use crate::sys::{self, Child, HUGE, Map, PAGE, RW, SharedCounters, in_child};
use crate::{check, check_eq, check_err, tests};

tests!(attach:
    reads, writes, rights, private, unaligned, several_pieces, pieces_with_gaps, beyond_the_end,
    huge_pages, memory_of_a_file, outlives_the_owner, outlives_destruction, partial_unmapping,
    forked, moved, changed_protection, attachment_is_not_published_wrongly, many, in_domain_only,
    any_order_of_exit(120), owner_unmaps, large(60), zero_length, advice_and_locking,
);

fn reads(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(8 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        let peer = Device::member(key)?;
        let before = Stats::read()?;
        let where_ = peer.attach(id, RIGHT_READ)?;
        check_eq!(where_.map_offset, u64::from(id) << ATTACH_SHIFT);
        check_eq!(
            (where_.map_length, where_.data_offset),
            (8 * PAGE as u64, 0)
        );
        let (view, at) = peer.map(id, RIGHT_READ)?;
        check!(view.read(at, 8 * PAGE) == pattern(1, 8 * PAGE));
        check_eq!(Stats::read()?.since(&before, "attaches")?, 1);
        counters.set(0, 1);
        counters.await_at_least(1, 1)?;
        // The very same page: no copy is needed to see what the owner writes.
        check_eq!(view.read(5000, 7), b"changed");
        drop(view);
        soon(context, || {
            Stats::read()
                .and_then(|now| now.since(&before, "detaches"))
                .is_ok_and(|n| n == 1)
        })?;
        peer.leave()?;
        Ok(())
    })?;
    counters.await_at_least(0, 1)?;
    map.write(5000, b"changed");
    counters.set(1, 1);
    child.join()
}

fn writes(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    in_child(|| {
        let (view, at) = Device::member(key)?.map(id, RIGHT_READ | RIGHT_WRITE)?;
        check!(view.read(at, 4 * PAGE) == pattern(1, 4 * PAGE));
        view.write(at + 4000, b"stored by a peer");
        Ok(())
    })?;
    check_eq!(map.read(4000, 16), b"stored by a peer");
    check_eq!(device.fetch(id, 4016)?[4000..], *b"stored by a peer");
    Ok(())
}

fn rights(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let read = device.share(&map, RIGHT_READ)?;
    let write = device.share(&map, RIGHT_WRITE)?;
    in_child(|| {
        let peer = Device::member(key)?;
        check_err!(peer.attach(read, RIGHT_WRITE), EACCES);
        check_err!(peer.attach(read, RIGHT_READ | RIGHT_WRITE), EACCES);
        check_err!(peer.attach(write, RIGHT_READ), EACCES);
        // The offset is no secret; mmap checks for itself.
        let mmap = |id: u32, prot| {
            let offset = u64::from(id) << ATTACH_SHIFT;
            Map::new(PAGE, prot, libc::MAP_SHARED, Some(peer.as_fd()), offset)
        };
        check_err!(mmap(read, RW).map(drop), EACCES);
        check_err!(mmap(read, libc::PROT_WRITE).map(drop), EACCES);
        check_err!(mmap(write, libc::PROT_READ).map(drop), EACCES);
        check_err!(mmap(write, RW).map(drop), EACCES);
        let view = mmap(read, libc::PROT_READ)?;
        check_err!(view.protect(0, PAGE, RW), EACCES, "an upgrade by mprotect");
        check_err!(view.protect(0, PAGE, libc::PROT_WRITE), EACCES);
        view.protect(0, PAGE, libc::PROT_NONE)?;
        view.protect(0, PAGE, libc::PROT_READ)?;
        check!(view.bytes() == pattern(1, PAGE));
        let hidden = mmap(read, libc::PROT_NONE);
        if let Ok(hidden) = hidden {
            check_err!(hidden.protect(0, PAGE, RW), EACCES);
        }
        Ok(())
    })?;
    check!(map.bytes() == pattern(1, PAGE));
    Ok(())
}

fn private(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let where_ = device.attach(id, RIGHT_READ)?;
    for prot in [libc::PROT_READ, RW] {
        let got = Map::new(
            PAGE,
            prot,
            libc::MAP_PRIVATE,
            Some(device.as_fd()),
            where_.map_offset,
        );
        check_err!(got.map(drop), EINVAL);
    }
    Ok(())
}

fn unaligned(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    for (start, len) in [
        (1, 100),
        (4095, 2),
        (100, 2 * PAGE),
        (PAGE + 7, PAGE),
        (0, 1),
    ] {
        let id = device.publish(&[map.part(start, len)], RIGHT_READ)?.id;
        in_child(|| {
            let peer = Device::member(key)?;
            let where_ = peer.attach(id, RIGHT_READ)?;
            let span = (start % PAGE + len).next_multiple_of(PAGE);
            check_eq!(where_.data_offset, (start % PAGE) as u64);
            check_eq!(where_.map_length, span as u64, "{start}, {len}");
            let (view, at) = peer.map(id, RIGHT_READ)?;
            check!(view.read(at, len) == pattern(1, 4 * PAGE)[start..start + len]);
            Ok(())
        })?;
    }
    Ok(())
}

/// Pieces that meet at page boundaries have a linear mapping, whatever their addresses.
fn several_pieces(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(10 * PAGE, 1)?;
    let nothing = Piece { base: 0, len: 0 };
    let pieces = [
        map.part(7 * PAGE + 50, 2 * PAGE - 50),
        nothing,
        map.part(PAGE, PAGE),
        map.part(4 * PAGE, 100),
    ];
    let expected = crate::region::gathered(&map, &pieces);
    let id = device.publish(&pieces, RIGHT_READ)?.id;
    in_child(|| {
        let (view, at) = Device::member(key)?.map(id, RIGHT_READ)?;
        check_eq!((view.len(), at), (4 * PAGE, 50));
        check!(view.read(at, expected.len()) == expected);
        Ok(())
    })
}

fn pieces_with_gaps(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(8 * PAGE, 1)?;
    let cases: [&[Piece]; 3] = [
        &[map.part(0, 100), map.part(PAGE, PAGE)],
        &[map.part(0, PAGE), map.part(PAGE + 1, PAGE)],
        &[map.part(0, PAGE), map.part(PAGE, 1), map.part(2 * PAGE, 1)],
    ];
    for pieces in cases {
        let id = device.publish(pieces, RIGHT_READ)?.id;
        check_err!(device.attach(id, RIGHT_READ), EOPNOTSUPP, "{pieces:?}");
        let offset = u64::from(id) << ATTACH_SHIFT;
        let got = device.view(PAGE, offset);
        check!(got.is_err(), "mmap of {pieces:?} works");
    }
    Ok(())
}

fn beyond_the_end(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.publish(&[map.part(10, 2 * PAGE)], RIGHT_READ)?.id;
    let mmap = |len, at: usize| {
        let offset = (u64::from(id) << ATTACH_SHIFT) + at as u64;
        device.view(len, offset)
    };
    // Three pages are touched, a fourth is not there.
    check!(mmap(3 * PAGE, 0)?.read(10, 2 * PAGE) == map.read(10, 2 * PAGE));
    check_err!(mmap(4 * PAGE, 0).map(drop), EINVAL);
    check_err!(mmap(1 << 30, 0).map(drop), EINVAL);
    check_err!(mmap(3 * PAGE, PAGE).map(drop), EINVAL);
    check_err!(mmap(PAGE, 3 * PAGE).map(drop), EINVAL);
    check_err!(mmap(PAGE, 1 << 39).map(drop), EINVAL);
    // A part of it is fine, and the right part.
    check!(mmap(PAGE, 0)?.read(10, 100) == map.read(10, 100));
    match mmap(PAGE, PAGE) {
        Ok(part) => check!(part.bytes() == map.read(PAGE, PAGE)),
        Err(errno) => check_eq!(errno, Errno::EINVAL),
    }
    // Ids that no region has.
    for id in [id + 1, MAX_REGION_ID] {
        let offset = u64::from(id) << ATTACH_SHIFT;
        let got = device.view(PAGE, offset);
        check_err!(got.map(drop), ENOENT);
    }
    check_err!(device.attach(id + 1, RIGHT_READ), ENOENT);
    check_err!(device.attach(id, 0), EINVAL, "no access asked for");
    Ok(())
}

fn huge_pages(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::transparent_huge(2 * HUGE)?;
    map.write(0, &pattern(1, 2 * HUGE));
    let id = device
        .publish(&[map.part(5000, 2 * HUGE - 6000)], RIGHT_READ | RIGHT_WRITE)?
        .id;
    in_child(|| {
        let (view, at) = Device::member(key)?.map(id, RIGHT_READ | RIGHT_WRITE)?;
        check!(view.read(at, 2 * HUGE - 6000) == pattern(1, 2 * HUGE)[5000..2 * HUGE - 1000]);
        view.write(at + HUGE, b"in the second huge page");
        Ok(())
    })?;
    check_eq!(map.read(5000 + HUGE, 23), b"in the second huge page");
    // The owner may split and drop it all.
    map.advise(PAGE * 3, PAGE, libc::MADV_DONTNEED)?;
    Ok(())
}

fn memory_of_a_file(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let file = sys::memfd(4 * PAGE, 0)?;
    let map = Map::file(4 * PAGE, file.as_fd())?;
    map.write(0, &pattern(1, 4 * PAGE));
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    in_child(|| {
        let (view, at) = Device::member(key)?.map(id, RIGHT_READ | RIGHT_WRITE)?;
        check!(view.read(at, 4 * PAGE) == pattern(1, 4 * PAGE));
        view.write(at, b"file");
        // The file shrinks; the attachment keeps its pages.
        sys::truncate(file.as_fd(), 0)?;
        check_eq!(view.read(at, 4), b"file");
        view.write(at + 3 * PAGE, b"still");
        Ok(())
    })
}

fn owner_process(key: [u8; 16], counters: &SharedCounters, pages: usize) -> Outcome<(Child, u32)> {
    counters.set(0, 0);
    let child = Child::spawn(move || {
        let own = Device::member(key)?;
        let map = Map::filled(pages * PAGE, 1)?;
        counters.set(0, own.share(&map, RIGHT_READ | RIGHT_WRITE)?.into());
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    })?;
    let id = counters.await_at_least(0, 1)? as u32;
    Ok((child, id))
}

fn outlives_the_owner(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let counters = SharedCounters::new()?;
    let before = Stats::read()?;
    let pinned = || -> Outcome<i64> {
        let now = Stats::read()?;
        Ok(now.since(&before, "pins")? - now.since(&before, "unpins")?)
    };
    let (owner, id) = owner_process(key, &counters, 16)?;
    let (view, at) = device.map(id, RIGHT_READ | RIGHT_WRITE)?;
    check!(view.read(at, 16 * PAGE) == pattern(1, 16 * PAGE));
    owner.kill()?;
    soon(context, || {
        matches!(device.fetch(id, 8), Err(Errno::EOWNERDEAD))
    })?;
    check_err!(device.attach(id, RIGHT_READ), EOWNERDEAD);
    // Allocate a good deal, so that freed pages would be handed out again.
    let other = Map::anon(64 << 20)?;
    other.fill(0xff);
    check!(
        view.read(at, 16 * PAGE) == pattern(1, 16 * PAGE),
        "the pages are no longer ours"
    );
    view.write(at, b"posthumous");
    check_eq!(view.read(at, 10), b"posthumous");
    check_eq!(pinned()?, 16, "pages of a living attachment");
    drop(view);
    soon(context, || pinned().is_ok_and(|n| n == 0))?;
    Ok(())
}

fn outlives_destruction(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        let peer = Device::member(key)?;
        let (view, at) = peer.map(id, RIGHT_READ | RIGHT_WRITE)?;
        // Not even the file is needed.
        drop(peer);
        counters.set(0, 1);
        counters.await_at_least(1, 1)?;
        check!(view.read(at, 4 * PAGE) == pattern(1, 4 * PAGE));
        view.write(at + 10, b"later");
        Ok(())
    })?;
    counters.await_at_least(0, 1)?;
    device.unpin(id)?;
    drop(device);
    counters.set(1, 1);
    child.join()?;
    // The same physical page: the owner's buffer has not moved away.
    check_eq!(map.read(10, 5), b"later");
    Ok(())
}

fn partial_unmapping(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(16 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let (view, at) = device.map(id, RIGHT_READ)?;
    view.unmap(4 * PAGE, 2 * PAGE)?;
    view.unmap(0, PAGE)?;
    view.unmap(15 * PAGE, PAGE)?;
    device.unpin(id)?;
    drop(device);
    check!(view.read(at + PAGE, 3 * PAGE) == pattern(1, 16 * PAGE)[PAGE..4 * PAGE]);
    check!(view.read(at + 6 * PAGE, 9 * PAGE) == pattern(1, 16 * PAGE)[6 * PAGE..15 * PAGE]);
    Ok(())
}

fn forked(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let counters = SharedCounters::new()?;
    let (owner, id) = owner_process(key, &counters, 8)?;
    let before = Stats::read()?;
    let (view, at) = device.map(id, RIGHT_READ | RIGHT_WRITE)?;
    let child = Child::spawn(|| {
        // Inherited: the same pages, for reading and writing.
        check!(view.read(at, 8 * PAGE) == pattern(1, 8 * PAGE));
        view.write(at, b"child");
        counters.set(1, 1);
        counters.await_at_least(2, 1)?;
        check_eq!(view.read(at + 100, 6), b"parent");
        counters.await_at_least(3, 1)?;
        // Its parent has unmapped, the owner is dead: still there.
        check_eq!(view.read(at, 5), b"child");
        Ok(())
    })?;
    counters.await_at_least(1, 1)?;
    check_eq!(view.read(at, 5), b"child");
    view.write(at + 100, b"parent");
    counters.set(2, 1);
    drop(view);
    owner.kill()?;
    let now = Stats::read()?;
    check!(
        now.get("pins")? > now.get("unpins")?,
        "unpinned under the child"
    );
    counters.set(3, 1);
    child.join()?;
    soon(context, || {
        Stats::read().is_ok_and(|now| {
            now.since(&before, "attaches").ok() == now.since(&before, "detaches").ok()
        })
    })
}

fn moved(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(8 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let (view, _) = device.map(id, RIGHT_READ)?;
    let place = Map::anon(8 * PAGE)?;
    // Refused or done, but never a crash or other pages.
    if let Ok(view) = view.move_onto(place) {
        check!(view.bytes() == pattern(1, 8 * PAGE));
    }
    // Growing must not show what lies behind the region.
    let (view, _) = device.map(id, RIGHT_READ)?;
    // SAFETY: Our own mapping; if it moves, it is unmapped by nobody else.
    let grown = unsafe {
        libc::mremap(
            view.addr() as *mut libc::c_void,
            8 * PAGE,
            16 * PAGE,
            libc::MREMAP_MAYMOVE,
        )
    };
    if grown != libc::MAP_FAILED {
        view.leak();
        let reader = Device::open()?;
        reader.create()?;
        // Let the kernel read it, so that a fault is an errno instead of a signal.
        let piece = [Piece {
            base: grown as u64 + 8 * PAGE as u64,
            len: 8,
        }];
        let probe = Map::anon(PAGE)?;
        let target = reader.share(&probe, RIGHT_READ | RIGHT_WRITE)?;
        check_err!(
            reader.copy(target, COPY_TO_REGION, 0, 8, &piece),
            EFAULT,
            "a grown attachment reaches beyond the region"
        );
    }
    Ok(())
}

fn changed_protection(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let (view, at) = device.map(id, RIGHT_READ | RIGHT_WRITE)?;
    view.protect(PAGE, PAGE, libc::PROT_NONE)?;
    view.protect(PAGE, PAGE, RW)?;
    view.write(at + PAGE, b"again");
    check_eq!(map.read(PAGE, 5), b"again");
    Ok(())
}

/// Publishing an attachment in turn: allowed or refused, but never a crash, and never forever.
fn attachment_is_not_published_wrongly(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    in_child(|| {
        let peer = Device::member(key)?;
        let (view, _) = peer.map(id, RIGHT_READ | RIGHT_WRITE)?;
        match peer.share(&view, RIGHT_READ) {
            Ok(again) => check!(peer.fetch(again, 4 * PAGE)? == pattern(1, 4 * PAGE)),
            Err(errno) => check_err!(Err::<(), _>(errno), EOPNOTSUPP),
        }
        // As the caller's side of a copy it is memory like any other.
        let (own, own_at) = peer.map(id, RIGHT_READ | RIGHT_WRITE)?;
        let scratch = Map::filled(4 * PAGE, 9)?;
        let region = peer.share(&scratch, RIGHT_READ | RIGHT_WRITE)?;
        peer.copy_all(region, COPY_FROM_REGION, 0, &own, own_at, 4 * PAGE)?;
        peer.copy_all(region, COPY_TO_REGION, 0, &own, own_at, 4 * PAGE)?;
        Ok(())
    })?;
    check!(map.bytes() == pattern(9, 4 * PAGE));
    Ok(())
}

fn many(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let mut views = Vec::new();
    for n in 0..300 {
        let (view, at) = device
            .map(id, RIGHT_READ)
            .map_err(|e| format!("attachment {n}: {e}"))?;
        views.push((view, at));
    }
    for (view, at) in &views {
        check!(view.read(*at, 4 * PAGE) == pattern(1, 4 * PAGE));
    }
    device.destroy(id)?;
    check_err!(device.map(id, RIGHT_READ).map(drop), ENOENT);
    Ok(())
}

fn in_domain_only(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let (other, _) = Device::domain()?;
    let lone = Device::open()?;
    let offset = u64::from(id) << ATTACH_SHIFT;
    let mmap = |device: &Device, offset| device.view(PAGE, offset).map(drop);
    check_err!(mmap(&other, offset), ENOENT);
    check_err!(mmap(&lone, offset), ENOTCONN);
    check_err!(mmap(&lone, 0), ENOTCONN);
    // At offset 0 is the status table; beyond it, nothing.
    check_err!(mmap(&device, PAGE as u64), ENOENT | EINVAL);
    check_eq!(mmap(&device, offset), Ok(()));
    Ok(())
}

/// Owner and attachers unmap, close, leave, exit and die in any order.
fn any_order_of_exit(context: &Context) -> Outcome {
    let mut rng = context.rng();
    for round in 0..25 {
        let (device, key) = Device::domain()?;
        let counters = SharedCounters::new()?;
        let seed = rng.word();
        let (owner, id) = owner_process(key, &counters, 32)?;
        let mut children: Vec<Option<Child>> = (0..4u64)
            .map(|n| {
                let counters = &counters;
                Child::spawn(move || {
                    let mut rng = crate::rng::Rng::new(seed + n);
                    let peer = Device::member(key)?;
                    let (view, at) = peer.map(id, RIGHT_READ | RIGHT_WRITE)?;
                    counters.bump(1);
                    let grandchild = Child::spawn(|| {
                        std::thread::sleep(Duration::from_micros(rng.clone().below(30_000)));
                        check!(view.read(at + 100, 50) == pattern(1, 200)[100..150]);
                        Ok(())
                    })?;
                    std::thread::sleep(Duration::from_micros(rng.below(20_000)));
                    match rng.below(4) {
                        0 => drop(peer),
                        1 => drop(peer.leave()),
                        2 => view.unmap(4 * PAGE, 20 * PAGE)?,
                        _ => sys::exit(0),
                    }
                    check!(view.read(at, 50) == pattern(1, 50), "round {round}");
                    let _ = grandchild.join();
                    Ok(())
                })
                .map(Some)
            })
            .collect::<Outcome<_>>()?;
        counters.await_at_least(1, 4)?;
        let mut owner = Some(owner);
        let mut device = Some(device);
        for _ in 0..8 {
            std::thread::sleep(Duration::from_micros(rng.below(4000)));
            match rng.below(4) {
                0 => {
                    if let Some(owner) = owner.take() {
                        owner.kill()?;
                    }
                }
                1 => drop(device.take()),
                _ => {
                    let n = rng.index(4);
                    if let Some(child) = children[n].take() {
                        if rng.one_in(2) {
                            child.kill()?;
                        } else {
                            let _ = child.join();
                        }
                    }
                }
            }
        }
        for child in children.into_iter().flatten() {
            child.kill()?;
        }
        if let Some(owner) = owner {
            owner.kill()?;
        }
    }
    Ok(())
}

fn owner_unmaps(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        let (view, at) = Device::member(key)?.map(id, RIGHT_READ)?;
        counters.set(0, 1);
        counters.await_at_least(1, 1)?;
        check!(
            view.read(at, 4 * PAGE) == pattern(1, 4 * PAGE),
            "the owner's munmap took the page"
        );
        Ok(())
    })?;
    counters.await_at_least(0, 1)?;
    drop(map);
    let other = Map::anon(32 << 20)?;
    other.fill(0xee);
    counters.set(1, 1);
    child.join()
}

fn large(_: &Context) -> Outcome {
    const LEN: usize = 64 << 20;
    let (device, key) = Device::domain()?;
    let map = Map::anon(LEN)?;
    for page in 0..LEN / PAGE {
        map.write(page * PAGE, &(page as u64).to_le_bytes());
    }
    let id = device.share(&map, RIGHT_READ)?;
    in_child(|| {
        let (view, at) = Device::member(key)?.map(id, RIGHT_READ)?;
        for page in 0..LEN / PAGE {
            check_eq!(
                view.read(at + page * PAGE, 8),
                (page as u64).to_le_bytes(),
                "page {page}"
            );
        }
        Ok(())
    })
}

fn zero_length(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let id = device.publish(&[Piece { base: 0, len: 0 }], RIGHT_READ)?.id;
    if let Ok(where_) = device.attach(id, RIGHT_READ) {
        check_eq!(where_.map_length, 0);
        let got = device.view(PAGE, where_.map_offset);
        check_err!(got.map(drop), EINVAL);
    }
    Ok(())
}

/// Whatever else a program may do with a mapping.
fn advice_and_locking(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(8 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let (view, at) = device.map(id, RIGHT_READ | RIGHT_WRITE)?;
    for advice in [
        libc::MADV_DONTNEED,
        libc::MADV_FREE,
        libc::MADV_REMOVE,
        libc::MADV_WILLNEED,
        libc::MADV_HUGEPAGE,
        libc::MADV_MERGEABLE,
        libc::MADV_COLD,
        libc::MADV_PAGEOUT,
        libc::MADV_POPULATE_READ,
        libc::MADV_POPULATE_WRITE,
        libc::MADV_DOFORK,
    ] {
        let _ = view.advise(0, 8 * PAGE, advice);
        let _ = map.advise(0, PAGE, libc::MADV_COLD);
    }
    // SAFETY: Our own mapping.
    unsafe {
        let _ = libc::mlock(view.addr() as *const libc::c_void, 8 * PAGE);
        let _ = libc::msync(view.addr() as *mut libc::c_void, 8 * PAGE, libc::MS_SYNC);
        let _ = libc::munlock(view.addr() as *const libc::c_void, 8 * PAGE);
    }
    // Whatever it did, the kernel is asked, so that a mapping without pages is no signal.
    let probe = Map::anon(PAGE)?;
    let region = device.share(&probe, RIGHT_READ | RIGHT_WRITE)?;
    match device.copy(region, COPY_TO_REGION, 0, 64, &[view.part(at, 64)]) {
        Ok(64) => check!(probe.read(0, 64) == pattern(1, 64)),
        other => check_eq!(other, Err(Errno::EFAULT)),
    }
    check!(map.bytes() == pattern(1, 8 * PAGE));
    Ok(())
}
