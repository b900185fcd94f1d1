// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kinds of memory: huge pages, files, devices; and what may stay locked.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use crate::abi::*;
use crate::device::Device;
use crate::harness::{Context, Outcome, skip};
use crate::kernel::growth;
use crate::rng::pattern;
use crate::sys::{self, HUGE, Map, PAGE, RW, in_child};
use crate::{check, check_eq, check_err, tests};

tests!(memory:
    transparent_huge_page, hugetlb_page, scattered_pages_are_not_coalesced, memfd, tmpfs,
    private_file, shared_read_only_file, writable_ordinary_file, device_memory,
    secret_memory, stack_and_heap, copy_on_write_pages, pages_are_dirty, memlock_limit,
    memlock_drops_reuse_first, memlock_counts_what_is_pinned, memlock_exempt, own_user_limit,
    large_region,
);

/// Publishes, reads and writes; returns the pages, and how many contiguous runs they form.
fn round_trip(device: &Device, map: &Map, seed: u64) -> Outcome<(u64, i64)> {
    map.write(0, &pattern(seed, map.len()));
    let (id, runs) = growth("pinned_runs", || {
        Ok(device.share(map, RIGHT_READ | RIGHT_WRITE)?)
    })?;
    check!(device.fetch(id, map.len())? == pattern(seed, map.len()));
    device.store(id, 0, &pattern(seed + 1, map.len()))?;
    check!(
        map.bytes() == pattern(seed + 1, map.len()),
        "what was stored is not there"
    );
    Ok((device.region_info(id)?.pages, runs))
}

fn transparent_huge_page(_: &Context) -> Outcome {
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if !enabled.is_ok_and(|text| !text.contains("[never]")) {
        return skip("transparent huge pages are off");
    }
    let (device, _) = Device::domain()?;
    let map = Map::transparent_huge(2 * HUGE)?;
    let (pages, runs) = round_trip(&device, &map, 1)?;
    check_eq!(pages, 2 * (HUGE / PAGE) as u64);
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    if !text
        .lines()
        .any(|line| line.starts_with("AnonHugePages:") && line.contains("4096 kB"))
    {
        return skip("the kernel had no huge page to give");
    }
    check!(runs <= 2, "{runs} runs for two huge pages");
    // A part of a huge page, at odd addresses, is one run, too.
    let (part, runs) = growth("pinned_runs", || {
        Ok(device.publish(&[map.part(5000, 1_000_001)], RIGHT_READ)?)
    })?;
    check_eq!(runs, 1);
    check!(device.fetch(part.id, 1_000_001)? == map.read(5000, 1_000_001));
    Ok(())
}

fn hugetlb_page(_: &Context) -> Outcome {
    let path = "/proc/sys/vm/nr_hugepages";
    let before = fs::read_to_string(path)?;
    if fs::write(path, "4").is_err() {
        return skip("no hugetlb");
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    let outcome = (|| {
        let Ok(map) = Map::new(HUGE, RW, flags, None, 0) else {
            return skip("the kernel has no huge page to give");
        };
        let (device, _) = Device::domain()?;
        check_eq!(round_trip(&device, &map, 2)?, ((HUGE / PAGE) as u64, 1));
        let shared = Map::new(
            HUGE,
            RW,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB,
            None,
            0,
        )?;
        check_eq!(round_trip(&device, &shared, 3)?, ((HUGE / PAGE) as u64, 1));
        Ok(())
    })();
    fs::write(path, before.trim())?;
    outcome
}

/// The counterpart of the two above: pages that do not follow each other stay apart.
fn scattered_pages_are_not_coalesced(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(64 * PAGE, 3)?;
    map.advise(0, map.len(), libc::MADV_NOHUGEPAGE)?;
    // Backwards: virtually scattered whatever the frames are.
    let pieces: Vec<Piece> = (0..64).rev().map(|i| map.part(i * PAGE, PAGE)).collect();
    let (region, told) = growth("pinned_runs", || Ok(device.publish(&pieces, RIGHT_READ)?))?;
    let frames: Vec<u64> = map.frames()?.into_iter().rev().collect();
    let runs = 1 + frames
        .windows(2)
        .filter(|pair| pair[0] + 1 != pair[1])
        .count() as i64;
    if frames.iter().all(|&frame| frame != 0) {
        check_eq!(told, runs);
    }
    let expected: Vec<u8> = (0..64)
        .rev()
        .flat_map(|i| map.read(i * PAGE, PAGE))
        .collect();
    check!(device.fetch(region.id, expected.len())? == expected);
    Ok(())
}

fn memfd(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let file = sys::memfd(8 * PAGE, 0)?;
    let map = Map::file(8 * PAGE, file.as_fd())?;
    round_trip(&device, &map, 4)?;
    let file = fs::File::from(file);
    let mut bytes = vec![0; 8 * PAGE];
    file.read_exact_at(&mut bytes, 0)?;
    check!(
        bytes == pattern(5, 8 * PAGE),
        "the file does not have what was stored"
    );
    // Beyond its end there is no memory.
    let long = Map::file(16 * PAGE, file.as_fd())?;
    check_err!(device.share(&long, RIGHT_READ), EFAULT);
    // The shared page of several processes.
    let shared = Map::shared(4 * PAGE)?;
    round_trip(&device, &shared, 6)?;
    Ok(())
}

fn tmpfs(_: &Context) -> Outcome {
    let place = ["/dev/shm", "/tmp", "/run"]
        .into_iter()
        .find(|path| sys::filesystem(path).is_ok_and(|kind| kind == libc::TMPFS_MAGIC));
    let Some(place) = place else {
        return skip("no tmpfs is mounted");
    };
    let path = format!("{place}/guest-suite.{}", std::process::id());
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    file.set_len(4 * PAGE as u64)?;
    let (device, _) = Device::domain()?;
    round_trip(&device, &Map::file(4 * PAGE, file.as_fd())?, 7)?;
    Ok(())
}

fn private_file(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let file = fs::File::open("/proc/self/exe")?;
    let len = 5 * PAGE;
    let map = Map::new(len, RW, libc::MAP_PRIVATE, Some(file.as_fd()), 0)?;
    let mut expected = vec![0; len];
    file.read_exact_at(&mut expected, 0)?;
    let id = device.share(&map, RIGHT_READ)?;
    check!(device.fetch(id, len)? == expected);
    device.unpin(id)?;
    // Writing goes to a private copy, which the owner sees and the file does not.
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    device.store(id, 100, b"private")?;
    check_eq!(map.read(100, 7), b"private");
    let mut after = vec![0; len];
    file.read_exact_at(&mut after, 0)?;
    check!(after == expected, "the file has changed");
    Ok(())
}

fn shared_read_only_file(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let file = fs::File::open("/proc/self/exe")?;
    let map = Map::new(
        3 * PAGE,
        libc::PROT_READ,
        libc::MAP_SHARED,
        Some(file.as_fd()),
        0,
    )?;
    // The kernel may allow this or not, but it must be clear which.
    match device.share(&map, RIGHT_READ) {
        Ok(id) => check!(device.fetch(id, 3 * PAGE)? == map.bytes()),
        Err(errno) => check_err!(Err::<(), _>(errno), EOPNOTSUPP),
    }
    check_err!(device.share(&map, RIGHT_WRITE), EACCES | EOPNOTSUPP);
    Ok(())
}

/// A directory on a file system that writes back to somewhere.
fn ordinary_directory() -> Option<String> {
    const EXT: i64 = 0xEF53;
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683e;
    const NINE_P: i64 = 0x0102_1997;
    const FUSE: i64 = 0x6573_5546;
    let here = std::env::current_dir()
        .ok()
        .map(|path| path.display().to_string());
    let beside = std::env::current_exe()
        .ok()
        .and_then(|path| path.parent().map(|parent| parent.display().to_string()));
    let shared = std::env::var("LIBCOPY_SHARE").ok();
    let places = [
        shared,
        here,
        beside,
        Some("/".into()),
        Some("/tmp".into()),
        Some("/var/tmp".into()),
    ];
    places.into_iter().flatten().find(|path| {
        let kind = sys::filesystem(path);
        kind.is_ok_and(|kind| [EXT, XFS, BTRFS, NINE_P, FUSE].contains(&kind))
            && fs::write(format!("{path}/.guest-suite"), "x").is_ok()
    })
}

fn writable_ordinary_file(_: &Context) -> Outcome {
    let Some(place) = ordinary_directory() else {
        return skip("no writable file system with write-back is mounted");
    };
    let path = format!("{place}/.guest-suite");
    let file = fs::OpenOptions::new().read(true).write(true).open(&path)?;
    fs::remove_file(&path)?;
    file.set_len(4 * PAGE as u64)?;
    let map = match Map::file(4 * PAGE, file.as_fd()) {
        Ok(map) => map,
        Err(errno) => return skip(format!("{place} has no shared mappings: {errno}")),
    };
    let (device, _) = Device::domain()?;
    check_err!(device.share(&map, RIGHT_WRITE), EOPNOTSUPP);
    check_err!(device.share(&map, RIGHT_READ | RIGHT_WRITE), EOPNOTSUPP);
    // A private mapping of the same file is ordinary memory.
    let private = Map::new(4 * PAGE, RW, libc::MAP_PRIVATE, Some(file.as_fd()), 0)?;
    round_trip(&device, &private, 8)?;
    Ok(())
}

fn device_memory(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let mut tried = 0;
    let mut refuse = |file: &fs::File, offset| -> Outcome {
        let map = Map::new(PAGE, RW, libc::MAP_SHARED, Some(file.as_fd()), offset);
        if let Ok(map) = map {
            tried += 1;
            check_err!(device.share(&map, RIGHT_READ), EOPNOTSUPP);
            check_err!(device.share(&map, RIGHT_READ | RIGHT_WRITE), EOPNOTSUPP);
        }
        Ok(())
    };
    let open = |path: &std::path::Path| fs::OpenOptions::new().read(true).write(true).open(path);
    for entry in fs::read_dir("/sys/bus/pci/devices")
        .into_iter()
        .flatten()
        .flatten()
    {
        for bar in 0..6 {
            if let Ok(file) = open(&entry.path().join(format!("resource{bar}"))) {
                refuse(&file, 0)?;
            }
        }
    }
    if let Ok(file) = open("/dev/mem".as_ref()) {
        // The video memory of a PC.
        refuse(&file, 0xa0000)?;
    }
    // The shared pages of the kernel and every process.
    let maps = fs::read_to_string("/proc/self/maps")?;
    for line in maps.lines().filter(|line| line.ends_with("[vvar]")) {
        let start = line
            .split('-')
            .next()
            .and_then(|text| u64::from_str_radix(text, 16).ok());
        if let Some(base) = start {
            tried += 1;
            let piece = [Piece {
                base,
                len: PAGE as u64,
            }];
            // Ordinary pages since Linux 7.3, but never anybody's to write.
            match device.publish(&piece, RIGHT_READ) {
                Ok(region) => device.destroy(region.id)?,
                refused => check_err!(refused, EOPNOTSUPP),
            }
            check!(
                device.publish(&piece, RIGHT_READ | RIGHT_WRITE).is_err(),
                "pages of the kernel can be written"
            );
        }
    }
    if tried == 0 {
        skip("no device memory can be mapped here")
    } else {
        Ok(())
    }
}

fn secret_memory(_: &Context) -> Outcome {
    use std::os::fd::FromRawFd;
    // SAFETY: Numbers only.
    let fd = sys::result(unsafe { libc::syscall(libc::SYS_memfd_secret, 0) });
    let Ok(fd) = fd else {
        return skip("no memfd_secret here");
    };
    // SAFETY: Just created, and nobody else's.
    let fd = unsafe { std::os::fd::OwnedFd::from_raw_fd(fd as i32) };
    sys::truncate(fd.as_fd(), PAGE)?;
    let Ok(map) = Map::file(PAGE, fd.as_fd()) else {
        return skip("no secret memory can be mapped");
    };
    map.write(0, b"secret");
    let (device, _) = Device::domain()?;
    check_err!(device.share(&map, RIGHT_READ), EOPNOTSUPP | EFAULT);
    Ok(())
}

fn stack_and_heap(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let stack = [0x5au8; 3000];
    let heap = vec![0xc3u8; 200_000];
    let pieces = [
        Piece {
            base: stack.as_ptr() as u64,
            len: 3000,
        },
        Piece {
            base: heap.as_ptr() as u64,
            len: 200_000,
        },
    ];
    let region = device.publish(&pieces, RIGHT_READ)?;
    let seen = device.fetch(region.id, 203_000)?;
    check!(seen[..3000] == stack && seen[3000..] == heap[..]);
    Ok(())
}

/// Pages shared with a forked parent: writing through the region must not reach the parent.
fn copy_on_write_pages(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 9)?;
    in_child(|| {
        let own = Device::member(key)?;
        let id = own.share(&map, RIGHT_READ | RIGHT_WRITE)?;
        own.store(id, 0, &[0xee; 100])?;
        check_eq!(map.read(0, 100), vec![0xee; 100]);
        // Reading alone, of a page still shared with the parent.
        let id = own.publish(&[map.part(2 * PAGE, PAGE)], RIGHT_READ)?.id;
        check!(own.fetch(id, PAGE)? == map.read(2 * PAGE, PAGE));
        // Written by the owner after it was pinned for reading: peers see it.
        map.write(2 * PAGE, b"after");
        check_eq!(own.fetch(id, 5)?, b"after");
        Ok(())
    })?;
    check!(
        map.bytes() == pattern(9, 4 * PAGE),
        "the child's region wrote into the parent"
    );
    drop(device);
    Ok(())
}

/// A page written only through a region is dirty afterwards, or reclaim would throw it away.
///
/// The pages of the file are allocated by reading, so they are clean before. A reader without
/// rights to write must leave them clean: otherwise this test could not fail.
fn pages_are_dirty(_: &Context) -> Outcome {
    const KPF_DIRTY: u64 = 1 << 4;
    let Ok(flags) = fs::File::open("/proc/kpageflags") else {
        return skip("no /proc/kpageflags");
    };
    let dirty = |frame: u64| -> Outcome<bool> {
        let mut bytes = [0; 8];
        flags.read_exact_at(&mut bytes, frame * 8)?;
        Ok(u64::from_le_bytes(bytes) & KPF_DIRTY != 0)
    };
    let (device, key) = Device::domain()?;
    let file = sys::memfd(4 * PAGE, 0)?;
    let map = Map::file(4 * PAGE, file.as_fd())?;
    let _ = map.bytes();
    let clean: Vec<bool> = map
        .frames()?
        .into_iter()
        .map(|frame| dirty(frame).map(|d| !d))
        .collect::<Outcome<_>>()?;
    if !clean.iter().all(|&clean| clean) {
        return skip("pages that were only read are dirty on this kernel");
    }
    let id = device.share(&map, RIGHT_READ)?;
    device.fetch(id, map.len())?;
    device.unpin(id)?;
    for (page, frame) in map.frames()?.into_iter().enumerate() {
        check!(!dirty(frame)?, "page {page} became dirty by being read");
    }
    let region = device.publish_with(
        &[map.piece()],
        RegionCreate {
            rights: RIGHT_WRITE,
            flags: CREATE_NO_REUSE,
            ..Default::default()
        },
    )?;
    in_child(|| {
        Device::member(key)?.store(region.id, 0, &pattern(10, 4 * PAGE))?;
        Ok(())
    })?;
    device.unpin(region.id)?;
    // Our own page table never saw a write, so only the module can have told.
    for (page, frame) in map.frames()?.into_iter().enumerate() {
        check!(
            dirty(frame)?,
            "page {page} was written through the region and is clean"
        );
    }
    let _ = map.advise(0, map.len(), libc::MADV_PAGEOUT);
    let file = fs::File::from(file);
    let mut bytes = vec![0; 4 * PAGE];
    file.read_exact_at(&mut bytes, 0)?;
    check!(bytes == pattern(10, 4 * PAGE));
    Ok(())
}

const KIB: usize = 1024;

/// Runs `body` as an ordinary user who may lock `limit` bytes, with a domain of their own.
fn as_user(uid: u32, limit: usize, body: impl FnOnce(&Device) -> Outcome) -> Outcome {
    let device = Device::open()?;
    in_child(|| {
        sys::limit_locked(limit as u64)?;
        sys::become_user(uid)?;
        device.create()?;
        body(&device)?;
        Ok(())
    })
}

fn memlock_limit(_: &Context) -> Outcome {
    as_user(1000, 1024 * KIB, |device| {
        let big = Map::anon(2048 * KIB)?;
        check_err!(device.share(&big, RIGHT_READ), ENOMEM);
        check_eq!(sys::locked_kib()?, 0, "after a refusal");
        let first = Map::anon(600 * KIB)?;
        let second = Map::anon(600 * KIB)?;
        let id = device.share(&first, RIGHT_READ | RIGHT_WRITE)?;
        check_eq!(sys::locked_kib()?, 600);
        check_err!(device.share(&second, RIGHT_READ | RIGHT_WRITE), ENOMEM);
        check_eq!(sys::locked_kib()?, 600);
        // The refusal did not harm the first.
        check_eq!(device.fetch(id, 10)?, vec![0; 10]);
        device.unpin(id)?;
        check_eq!(sys::locked_kib()?, 0);
        let id = device.share(&second, RIGHT_READ | RIGHT_WRITE)?;
        check_eq!(sys::locked_kib()?, 600);
        device.unpin(id)?;
        check_eq!(sys::locked_kib()?, 0);
        // Exactly the limit is within it.
        let exact = Map::anon(1024 * KIB)?;
        let id = device.share(&exact, RIGHT_READ)?;
        check_err!(device.publish(&[second.part(0, 1)], RIGHT_READ), ENOMEM);
        device.unpin(id)?;
        Ok(())
    })
}

fn memlock_drops_reuse_first(_: &Context) -> Outcome {
    as_user(1000, 1024 * KIB, |device| {
        let maps = [Map::anon(700 * KIB)?, Map::anon(700 * KIB)?];
        for round in 0..6 {
            let id = device
                .share(&maps[round % 2], RIGHT_READ)
                .map_err(|e| format!("round {round}: what is kept for reuse is in the way: {e}"))?;
            // Left for reuse, and still pinned and counted.
            device.destroy(id)?;
            check!(
                sys::locked_kib()? <= 1024,
                "{} KiB locked",
                sys::locked_kib()?
            );
        }
        Ok(())
    })
}

fn memlock_counts_what_is_pinned(_: &Context) -> Outcome {
    as_user(1000, 4096 * KIB, |device| {
        let map = Map::anon(256 * KIB)?;
        let mut ids = Vec::new();
        for n in 1..=4u64 {
            let id = device
                .publish_with(
                    &[map.piece()],
                    RegionCreate {
                        rights: RIGHT_READ,
                        flags: CREATE_NO_REUSE,
                        ..Default::default()
                    },
                )?
                .id;
            ids.push(id);
            // An ordinary user may read the domain's counters, though not the module's.
            let pinned = device.counter("pins")? * (PAGE / KIB) as u64;
            check_eq!(sys::locked_kib()?, pinned, "{n} regions");
        }
        for id in ids {
            device.unpin(id)?;
        }
        check_eq!(sys::locked_kib()?, 0);
        // Leaving the domain gives everything back, too.
        device.share(&map, RIGHT_READ)?;
        check_eq!(sys::locked_kib()?, 256);
        device.leave()?;
        check_eq!(sys::locked_kib()?, 0, "after leaving");
        Ok(())
    })
}

fn memlock_exempt(_: &Context) -> Outcome {
    let device = Device::open()?;
    in_child(|| {
        sys::limit_locked(0)?;
        device.create()?;
        let map = Map::filled(1024 * KIB, 1)?;
        let id = device.share(&map, RIGHT_READ)?;
        check!(device.fetch(id, 1024 * KIB)? == map.bytes());
        device.unpin(id)?;
        check_eq!(sys::locked_kib()?, 0);
        Ok(())
    })?;
    as_user(1000, 0, |device| {
        let map = Map::anon(PAGE)?;
        check_err!(device.share(&map, RIGHT_READ), ENOMEM);
        Ok(())
    })
}

/// The pages count against their owner and who attaches them, not against who copies from them.
fn own_user_limit(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(512 * KIB, 2)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    in_child(|| {
        sys::limit_locked(0)?;
        sys::become_user(1000)?;
        check!(device.fetch(id, 512 * KIB)? == pattern(2, 512 * KIB));
        check_eq!(sys::locked_kib()?, 0);
        check_err!(device.map(id, RIGHT_READ).map(drop), ENOMEM);
        Ok(())
    })?;
    in_child(|| {
        sys::limit_locked(512 * KIB as u64)?;
        sys::become_user(1000)?;
        let (view, at) = device.map(id, RIGHT_READ)?;
        check!(view.read(at, 512 * KIB) == pattern(2, 512 * KIB));
        Ok(())
    })
}

fn large_region(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let len = 64 << 20;
    let map = Map::anon(len)?;
    for page in 0..len / PAGE {
        map.write(page * PAGE + 17, &(page as u32).to_le_bytes());
    }
    let region = device.publish(&[map.piece()], RIGHT_READ)?;
    check_eq!(
        (region.length as usize, region.pages as usize),
        (len, len / PAGE)
    );
    let copy = Map::anon(len)?;
    device.copy_all(region.id, COPY_FROM_REGION, 0, &copy, 0, len)?;
    for page in 0..len / PAGE {
        check_eq!(
            copy.read(page * PAGE + 17, 4),
            (page as u32).to_le_bytes(),
            "page {page}"
        );
    }
    Ok(())
}
