// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies between a region and the caller's memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::device::Device;
use crate::harness::{Context, Outcome, Stop};
use crate::kernel::Stats;
use crate::region::{gathered, random_cut};
use crate::rng::pattern;
use crate::sys::{self, Child, Map, PAGE, SharedCounters, in_child};
use crate::{check, check_eq, check_err, tests};

tests!(copy:
    both_directions, random_both_ways(120), beyond_the_end, nonsense, nothing, caller_holds_more,
    fault_half_way, fault_at_once, read_only_caller, counts_bytes, within_own_region,
    interrupted_by_signal(60), killed_half_way, parallel_peers(60),
    small_copy_beside_large_one(60), destroyed_half_way, caller_unmaps_half_way,
);

fn both_directions(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(5 * PAGE, 1)?;
    let id = device
        .publish(&[map.part(7, 4 * PAGE)], RIGHT_READ | RIGHT_WRITE)?
        .id;
    in_child(|| {
        let peer = Device::member(key)?;
        check!(peer.fetch(id, 4 * PAGE)? == pattern(1, 5 * PAGE)[7..7 + 4 * PAGE]);
        peer.store(id, 4095, b"written by a peer")?;
        Ok(())
    })?;
    let mut expected = pattern(1, 5 * PAGE);
    expected[7 + 4095..7 + 4095 + 17].copy_from_slice(b"written by a peer");
    check!(map.bytes() == expected);
    Ok(())
}

/// Any offsets, any pieces on either side, against copies in plain Rust.
fn random_both_ways(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let (device, _) = Device::domain()?;
    for round in 0..context.rounds(300, 100) {
        let what = format!("seed {}, round {round}", context.seed);
        let theirs = Map::filled(24 * PAGE, rng.word())?;
        let ours = Map::filled(24 * PAGE, rng.word())?;
        // Cuts that do not overlap, so that the order of writing does not matter.
        let (region_pieces, caller_pieces) = {
            let mut cut = |map: &Map| {
                let mut pieces = Vec::new();
                let mut at = rng.index(200);
                let steps = if rng.one_in(5) {
                    1024
                } else {
                    1 + rng.index(12)
                };
                for _ in 0..steps {
                    let longest = if steps > 100 { 90 } else { 3 * PAGE };
                    let len = if rng.one_in(6) { 0 } else { rng.index(longest) };
                    if at + len > map.len() {
                        break;
                    }
                    pieces.push(map.part(at, len));
                    at += len + rng.index(60);
                }
                pieces.push(map.part(map.len() - 1, 0));
                pieces.truncate(1024);
                if rng.one_in(2) {
                    pieces.reverse();
                }
                pieces
            };
            (cut(&theirs), cut(&ours))
        };
        let region_bytes = gathered(&theirs, &region_pieces);
        let caller_bytes = gathered(&ours, &caller_pieces);
        let offset = rng.index(region_bytes.len() + 1);
        let length = rng.index((region_bytes.len() - offset).min(caller_bytes.len()) + 1);
        let id = device.publish(&region_pieces, RIGHT_READ | RIGHT_WRITE)?.id;
        let (before_theirs, before_ours) = (theirs.bytes(), ours.bytes());
        // The oracle: scatter the bytes one by one.
        let scatter = |mut image: Vec<u8>, map: &Map, pieces: &[Piece], at: usize, bytes: &[u8]| {
            let places: Vec<usize> = pieces
                .iter()
                .flat_map(|p| (0..p.len).map(move |i| (p.base - map.addr() + i) as usize))
                .collect();
            for (i, &byte) in bytes.iter().enumerate() {
                image[places[at + i]] = byte;
            }
            image
        };
        let flag = rng.pick(&[COPY_FROM_REGION, COPY_TO_REGION]);
        let done = device.copy(id, flag, offset as u64, length as u64, &caller_pieces)?;
        check_eq!(done, length as u64, "{what}");
        if flag == COPY_FROM_REGION {
            let moved = &region_bytes[offset..offset + length];
            let image = scatter(before_ours, &ours, &caller_pieces, 0, moved);
            check!(ours.bytes() == image, "{what}: out of the region");
            check!(
                theirs.bytes() == before_theirs,
                "{what}: the source has changed"
            );
        } else {
            let moved = &caller_bytes[..length];
            let image = scatter(before_theirs, &theirs, &region_pieces, offset, moved);
            check!(theirs.bytes() == image, "{what}: into the region");
            check!(
                ours.bytes() == before_ours,
                "{what}: the source has changed"
            );
        }
        device.unpin(id)?;
    }
    // Reading may overlap: pieces of the region in any order and several times.
    let map = Map::filled(16 * PAGE, 3)?;
    for round in 0..50 {
        let count = 1 + rng.index(40);
        let pieces = random_cut(&mut rng, &map, count, PAGE);
        let bytes = gathered(&map, &pieces);
        let id = device.publish(&pieces, RIGHT_READ)?.id;
        check!(
            device.fetch(id, bytes.len())? == bytes,
            "seed {}, round {round}",
            context.seed
        );
        device.unpin(id)?;
    }
    Ok(())
}

fn beyond_the_end(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(2 * PAGE, 1)?;
    let id = device
        .publish(&[map.part(0, 5000)], RIGHT_READ | RIGHT_WRITE)?
        .id;
    let buffer = Map::filled(4 * PAGE, 2)?;
    let piece = [buffer.piece()];
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        let copy = |offset, length| device.copy(id, flag, offset, length, &piece);
        check_eq!(copy(0, 5000)?, 5000);
        check_eq!(copy(4999, 1)?, 1);
        check_eq!(copy(5000, 0)?, 0);
        check_err!(copy(0, 5001), ERANGE);
        check_err!(copy(5000, 1), ERANGE);
        check_err!(copy(5001, 0), ERANGE);
        check_err!(copy(u64::MAX, 1), ERANGE);
        check_err!(copy(u64::MAX, 0), ERANGE);
        check_err!(copy(u64::MAX - 10, 11), ERANGE);
    }
    Ok(())
}

fn nonsense(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::anon(PAGE)?;
    let piece = [buffer.piece()];
    check_err!(device.copy(id, 0, 0, 8, &piece), EINVAL, "no direction");
    let both = COPY_FROM_REGION | COPY_TO_REGION;
    check_err!(
        device.copy(id, both, 0, 8, &piece),
        EINVAL,
        "two directions"
    );
    check_err!(device.copy(0, COPY_FROM_REGION, 0, 8, &piece), ENOENT);
    check_err!(device.copy(id + 1, COPY_FROM_REGION, 0, 8, &piece), ENOENT);
    check_err!(
        device.copy(u32::MAX, COPY_FROM_REGION, 0, 8, &piece),
        ENOENT
    );
    let many = vec![buffer.part(0, 1); 1025];
    check_err!(device.copy(id, COPY_FROM_REGION, 0, 8, &many), EINVAL);
    check_eq!(
        device.copy(id, COPY_FROM_REGION, 0, 1024, &many[..1024])?,
        1024
    );
    let short = [buffer.part(0, 7)];
    check_err!(
        device.copy(id, COPY_FROM_REGION, 0, 8, &short),
        EINVAL,
        "too few bytes"
    );
    check_err!(
        device.copy(id, COPY_FROM_REGION, 0, 1, &[]),
        EINVAL,
        "no piece"
    );
    // Pieces whose lengths overflow a sum must not look like few bytes, nor like many.
    let wrap = [
        Piece {
            base: buffer.addr(),
            len: u64::MAX,
        },
        buffer.part(0, 100),
    ];
    match device.copy(id, COPY_FROM_REGION, 0, 8, &wrap) {
        Ok(8) | Err(Errno::EINVAL | Errno::EFAULT) => {}
        other => check!(false, "pieces that add up to more than 2^64: {other:?}"),
    }
    Ok(())
}

fn nothing(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        check_eq!(device.copy(id, flag, 0, 0, &[])?, 0);
        check_eq!(
            device.copy(id, flag, 100, 0, &[Piece { base: 0, len: 0 }])?,
            0
        );
        check_eq!(device.copy(id, flag, PAGE as u64, 0, &[map.piece()])?, 0);
    }
    check!(map.bytes() == pattern(1, PAGE));
    Ok(())
}

fn caller_holds_more(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let buffer = Map::anon(2 * PAGE)?;
    // What is not needed is not touched, not even looked at.
    let pieces = [
        buffer.part(5, 100),
        Piece {
            base: 8,
            len: 1 << 30,
        },
    ];
    check_eq!(device.copy(id, COPY_FROM_REGION, 0, 50, &pieces)?, 50);
    check_eq!(device.copy(id, COPY_FROM_REGION, 0, 100, &pieces)?, 100);
    check!(buffer.read(5, 100) == map.read(0, 100));
    check!(buffer.read(105, 1000) == vec![0; 1000]);
    Ok(())
}

/// Copies until an error, and returns how far it came and the error.
fn until_error(
    device: &Device,
    id: u32,
    flag: u32,
    length: u64,
    base: u64,
) -> Outcome<(u64, Errno)> {
    let mut done = 0;
    for _ in 0..100_000 {
        let piece = [Piece {
            base: base + done,
            len: length - done,
        }];
        match device.copy(id, flag, done, length - done, &piece) {
            Ok(0) => return Err(Stop::Fail("success with nothing done".into())),
            Ok(n) => done += n,
            Err(errno) => return Ok((done, errno)),
        }
        if done >= length {
            return Err(Stop::Fail("the copy went over unmapped memory".into()));
        }
    }
    Err(Stop::Fail("no end".into()))
}

fn fault_half_way(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(16 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        for (hole, start) in [(1, 0), (1, 100), (3, 1), (9, 4095), (1, 4000)] {
            map.write(0, &pattern(1, 16 * PAGE));
            let buffer = Map::filled(16 * PAGE, 2)?;
            buffer.unmap(hole * PAGE, PAGE)?;
            let before = Stats::read()?;
            let length = (16 * PAGE - start) as u64;
            let first = device.copy(id, flag, 0, length, &[buffer.part(start, length as usize)])?;
            let mapped = (hole * PAGE - start) as u64;
            check!(
                first > 0 && first <= mapped,
                "{first} bytes done of {mapped} that are there"
            );
            check!(
                Stats::read()?.since(&before, "faults")? >= 1,
                "the fault is not counted"
            );
            let (done, errno) =
                until_error(&device, id, flag, length, buffer.addr() + start as u64)?;
            check_eq!(
                (done, errno),
                (mapped, Errno::EFAULT),
                "hole {hole}, start {start}"
            );
            let mapped = mapped as usize;
            if flag == COPY_FROM_REGION {
                check!(buffer.read(start, mapped) == pattern(1, mapped));
            } else {
                let ours = pattern(2, 16 * PAGE);
                check!(map.read(0, mapped) == ours[start..start + mapped]);
                // Nothing beyond what was reported.
                check!(map.read(mapped, 16 * PAGE - mapped) == pattern(1, 16 * PAGE)[mapped..]);
            }
            // Behind the hole nothing happened.
            let behind = (hole + 1) * PAGE;
            check!(buffer.read(behind, 100) == pattern(2, 16 * PAGE)[behind..behind + 100]);
        }
    }
    Ok(())
}

fn fault_at_once(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(2 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::anon(2 * PAGE)?;
    buffer.unmap(0, PAGE)?;
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        check_err!(
            device.copy(id, flag, 0, 2 * PAGE as u64, &[buffer.piece()]),
            EFAULT
        );
        check_err!(
            device.copy(id, flag, 0, 1, &[buffer.part(PAGE - 1, 1)]),
            EFAULT
        );
    }
    check!(map.bytes() == pattern(1, 2 * PAGE));
    Ok(())
}

fn read_only_caller(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::filled(PAGE, 2)?;
    buffer.protect(0, PAGE, libc::PROT_READ)?;
    check_err!(
        device.copy(id, COPY_FROM_REGION, 0, 64, &[buffer.piece()]),
        EFAULT
    );
    check!(buffer.bytes() == pattern(2, PAGE));
    check_eq!(
        device.copy(id, COPY_TO_REGION, 0, 64, &[buffer.piece()])?,
        64
    );
    Ok(())
}

fn counts_bytes(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(3 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let before = Stats::read()?;
    device.fetch(id, 10_000)?;
    device.store(id, 5, &[1; 333])?;
    let after = Stats::read()?;
    check_eq!(after.since(&before, "bytes_from_region")?, 10_000);
    check_eq!(after.since(&before, "bytes_to_region")?, 333);
    Ok(())
}

/// The caller's memory may be the region's own.
fn within_own_region(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device
        .publish(&[map.part(0, 2 * PAGE)], RIGHT_READ | RIGHT_WRITE)?
        .id;
    device.copy_all(id, COPY_FROM_REGION, 0, &map, 2 * PAGE, 2 * PAGE)?;
    check!(map.read(2 * PAGE, 2 * PAGE) == pattern(1, 2 * PAGE));
    // On itself: whatever happens, the kernel survives and the bytes stay.
    device.copy_all(id, COPY_FROM_REGION, 0, &map, 0, 2 * PAGE)?;
    check!(map.read(0, 2 * PAGE) == pattern(1, 2 * PAGE));
    Ok(())
}

/// A region that takes long to copy, and pieces to copy it to, over 4 MiB of memory each.
pub struct Long {
    /// Memory behind the region.
    pub source: Map,
    /// Memory behind the pieces.
    pub target: Map,
    /// Where to copy to.
    pub pieces: Vec<Piece>,
    /// The region.
    pub id: u32,
    /// Its length.
    pub length: u64,
}

impl Long {
    /// Bytes of memory behind each piece.
    pub const CHUNK: usize = 4 << 20;

    /// Where pieces to copy to start: source and target at the same distance from a huge page's
    /// start would share the slots of an emulator's translation cache, and crawl.
    pub const SKEW: usize = 3 * PAGE + 64;

    /// Memory to copy to, and `count` pieces that are all the same 4 MiB of it.
    pub fn target(count: usize) -> Result<(Map, Vec<Piece>), Errno> {
        let map = Map::anon(Self::CHUNK + 4 * PAGE)?;
        map.fill(1);
        let pieces = vec![map.part(Self::SKEW, Self::CHUNK); count];
        Ok((map, pieces))
    }

    /// Publishes `mib` MiB; every 4 MiB of it are the same memory.
    pub fn new(device: &Device, mib: usize) -> Outcome<Self> {
        let source = Map::filled(Self::CHUNK, 77)?;
        let count = mib.div_ceil(4);
        let (target, pieces) = Self::target(count)?;
        let region = device.publish(&vec![source.piece(); count], RIGHT_READ | RIGHT_WRITE)?;
        Ok(Self {
            source,
            target,
            pieces,
            id: region.id,
            length: region.length,
        })
    }

    /// Publishes as much as this machine copies in about `time`: emulated ones are slow, and how
    /// slow depends on what else runs.
    pub fn lasting(device: &Device, time: Duration) -> Outcome<Self> {
        let probe = Self::new(device, 16)?;
        let mut took = Duration::MAX;
        for _ in 0..3 {
            let start = Instant::now();
            probe.copy(device, 0)?;
            took = took.min(start.elapsed());
        }
        device.unpin(probe.id)?;
        let mib = 16.0 * time.as_secs_f64() / took.as_secs_f64();
        Self::new(device, (mib as usize).clamp(8, 512))
    }

    /// The pieces from byte `done` on.
    pub fn rest(&self, done: u64) -> Vec<Piece> {
        let chunk = Self::CHUNK as u64;
        let mut rest = self.pieces[(done / chunk) as usize..].to_vec();
        if let Some(first) = rest.first_mut() {
            first.base += done % chunk;
            first.len -= done % chunk;
        }
        rest
    }

    /// Starts a copy of everything in a thread of its own; returns once that thread runs.
    fn begin<'scope>(
        &'scope self,
        device: &'scope Device,
        scope: &'scope std::thread::Scope<'scope, '_>,
    ) -> std::thread::ScopedJoinHandle<'scope, Result<u64, Errno>> {
        let (running, runs) = mpsc::channel();
        let copying = scope.spawn(move || {
            let _ = running.send(());
            self.copy(device, 0)
        });
        let _ = runs.recv();
        copying
    }

    /// One copy from byte `done` on.
    pub fn copy(&self, device: &Device, done: u64) -> Result<u64, Errno> {
        device.copy(
            self.id,
            COPY_FROM_REGION,
            done,
            self.length - done,
            &self.rest(done),
        )
    }
}

fn interrupted_by_signal(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let long = Long::lasting(&device, Duration::from_millis(400))?;
    sys::alarm(Duration::from_millis(3), Duration::from_millis(7))?;
    let (mut done, mut partial) = (0, 0);
    while done < long.length {
        match long.copy(&device, done) {
            Ok(0) => check!(false, "success with nothing done at {done}"),
            Ok(n) => {
                done += n;
                partial += u32::from(done < long.length);
            }
            Err(Errno::EINTR) => {}
            Err(errno) => check!(false, "{errno} at {done}"),
        }
    }
    sys::alarm(Duration::ZERO, Duration::ZERO)?;
    check!(
        partial > 0,
        "no signal interrupted a copy of {} MiB",
        long.length >> 20
    );
    check!(long.target.read(Long::SKEW, Long::CHUNK) == long.source.bytes());
    Ok(())
}

fn killed_half_way(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let long = Long::lasting(&device, Duration::from_millis(400))?;
    for delay in [5, 20, 60] {
        let counters = SharedCounters::new()?;
        let child = Child::spawn(|| {
            let peer = Device::member(key)?;
            counters.set(0, 1);
            loop {
                long.copy(&peer, 0)?;
            }
        })?;
        counters.await_at_least(0, 1)?;
        std::thread::sleep(Duration::from_millis(delay));
        child.kill_at_once(context)?;
    }
    check_eq!(device.fetch(long.id, 100)?, long.source.read(0, 100));
    Ok(())
}

fn parallel_peers(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let len = 4 << 20;
    let map = Map::filled(len, 5)?;
    let id = device.share(&map, RIGHT_READ)?;
    let children: Vec<Child> = (0..6)
        .map(|n| {
            Child::spawn(|| {
                let peer = Device::member(key)?;
                let expected = pattern(5, len);
                for round in 0..8 {
                    let start = (n * 1001 + round * 4099) % PAGE;
                    let buffer = Map::anon(len)?;
                    peer.copy_all(id, COPY_FROM_REGION, start as u64, &buffer, 0, len - start)?;
                    check!(
                        buffer.read(0, len - start) == expected[start..],
                        "peer {n}, round {round}"
                    );
                }
                Ok(())
            })
        })
        .collect::<Outcome<_>>()?;
    for child in children {
        child.join()?;
    }
    Ok(())
}

/// Copies of one region take no common lock: small ones pass while a large one is under way.
fn small_copy_beside_large_one(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let long = Long::lasting(&device, Duration::from_millis(800))?;
    let (under_way, passed) = (AtomicBool::new(false), AtomicU64::new(0));
    let over = AtomicBool::new(false);
    let small_buffer = Map::anon(PAGE)?;
    std::thread::scope(|scope| -> Outcome {
        let large = scope.spawn(|| {
            under_way.store(true, Ordering::Release);
            let answer = long.copy(&device, 0);
            let small = passed.load(Ordering::Acquire);
            over.store(true, Ordering::Release);
            (answer, small)
        });
        while !under_way.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        let mut failure = None;
        while !over.load(Ordering::Acquire) && failure.is_none() {
            match device.copy(long.id, COPY_FROM_REGION, 10, 1000, &[small_buffer.piece()]) {
                Ok(1000) => drop(passed.fetch_add(1, Ordering::AcqRel)),
                other => failure = Some(other),
            }
            // Regions come and go meanwhile, too.
            let made = device.publish(&[small_buffer.part(0, 10)], RIGHT_READ);
            if let Ok(made) = made {
                let _ = device.destroy(made.id);
            }
        }
        let (answer, small) = large
            .join()
            .map_err(|_| "the copying thread panicked".to_owned())?;
        check!(failure.is_none(), "a small copy gave {failure:?}");
        check_eq!(answer?, long.length);
        check!(
            small >= 5,
            "only {small} small copies passed during one of {} MiB",
            long.length >> 20
        );
        Ok(())
    })
}

/// "Copies under way finish; later ones get ENOENT."
fn destroyed_half_way(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let long = Long::lasting(&device, Duration::from_millis(400))?;
    std::thread::scope(|scope| -> Outcome {
        let copying = long.begin(&device, scope);
        std::thread::sleep(Duration::from_millis(20));
        device.unpin(long.id)?;
        check_err!(long.copy(&device, 0), ENOENT);
        match copying
            .join()
            .map_err(|_| "the copying thread panicked".to_owned())?
        {
            Ok(n) => check_eq!(n, long.length),
            // The thread had not entered the kernel yet.
            Err(errno) => check_eq!(errno, Errno::ENOENT),
        }
        Ok(())
    })?;
    Ok(())
}

fn caller_unmaps_half_way(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let long = Long::lasting(&device, Duration::from_millis(200))?;
    std::thread::scope(|scope| -> Outcome {
        let copying = long.begin(&device, scope);
        std::thread::sleep(Duration::from_millis(10));
        long.target.unmap(8 * PAGE, PAGE)?;
        match copying
            .join()
            .map_err(|_| "the copying thread panicked".to_owned())?
        {
            Ok(n) => check!(n > 0 && n <= long.length),
            Err(errno) => check_eq!(errno, Errno::EFAULT),
        }
        Ok(())
    })
}
