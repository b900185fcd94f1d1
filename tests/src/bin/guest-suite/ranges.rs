// SPDX-License-Identifier: MIT OR Apache-2.0

//! Vectored copies: ranges of a region to or from pieces of the caller's memory, against an oracle
//! that visits byte after byte.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::device::Device;
use crate::harness::{Context, Outcome};
use crate::kernel::Stats;
use crate::rng::{Rng, pattern};
use crate::sys::{self, Child, Map, PAGE, SharedCounters};
use crate::{check, check_eq, check_err, tests};

tests!(ranges:
    by_hand, random(120), scattered_region(60), more_than_needed, too_few_bytes, outside_the_region,
    overflow, how_many, nothing, read_only_once, long_is_interruptible(60), long_is_killable,
    fault_half_way, counts_bytes, irregular_pieces,
);

fn range(base: u64, len: u64) -> Piece {
    Piece { base, len }
}

fn total(ranges: &[Piece]) -> u64 {
    ranges.iter().map(|range| range.len).sum()
}

/// Offsets of every byte of the ranges, in their order.
fn places(ranges: &[Piece]) -> Vec<usize> {
    let bytes = |range: &Piece| (range.base..range.base + range.len).map(|at| at as usize);
    ranges.iter().flat_map(bytes).collect()
}

fn by_hand(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(2 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::filled(PAGE, 2)?;
    let page = PAGE as u64;
    let ranges = [
        range(page - 3, 7),
        range(10, 0),
        range(0, 2),
        range(2 * page - 1, 1),
    ];
    let pieces = [buffer.part(100, 4), buffer.part(50, 6)];
    check_eq!(
        device.copy_ranges(id, COPY_FROM_REGION, 0, 10, &ranges, &pieces)?,
        10
    );
    let theirs = pattern(1, 2 * PAGE);
    let mut expected = pattern(2, PAGE);
    expected[100..104].copy_from_slice(&theirs[PAGE - 3..PAGE + 1]);
    expected[50..53].copy_from_slice(&theirs[PAGE + 1..PAGE + 4]);
    expected[53..55].copy_from_slice(&theirs[..2]);
    expected[55] = theirs[2 * PAGE - 1];
    check!(buffer.bytes() == expected);
    // Counted from another byte, and the other way.
    let ranges = [range(0, 3), range(90, 2)];
    check_eq!(
        device.copy_ranges(id, COPY_TO_REGION, 1000, 5, &ranges, &[buffer.part(0, 5)])?,
        5
    );
    let ours = pattern(2, PAGE);
    let mut expected = theirs;
    expected[1000..1003].copy_from_slice(&ours[..3]);
    expected[1090..1092].copy_from_slice(&ours[3..5]);
    check!(map.bytes() == expected);
    Ok(())
}

/// Ranges in any order, up to as many as there may be; those to be written do not overlap.
fn some_ranges(rng: &mut Rng, limit: usize, written: bool) -> Vec<Piece> {
    let count = match rng.below(4) {
        0 => MAX_IOV as usize,
        1 => 1,
        _ => 1 + rng.index(60),
    };
    let longest = if count > 100 { 90 } else { 2 * PAGE };
    let mut ranges = Vec::new();
    let mut at = rng.index(100);
    for _ in 0..count {
        let len = if rng.one_in(8) { 0 } else { rng.index(longest) };
        if at + len > limit {
            break;
        }
        ranges.push(range(at as u64, len as u64));
        at = if written {
            at + len + rng.index(50)
        } else {
            rng.index(limit)
        };
    }
    if ranges.is_empty() {
        ranges.push(range(0, 0));
    }
    if rng.one_in(2) {
        ranges.reverse();
    }
    ranges
}

/// Any ranges and pieces, both ways; every byte of both sides is looked at.
fn random(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let (device, _) = Device::domain()?;
    for round in 0..200 {
        let what = format!("seed {}, round {round}", context.seed);
        let theirs = Map::filled(20 * PAGE, rng.word())?;
        let ours = Map::filled(20 * PAGE, rng.word())?;
        let flag = rng.pick(&[COPY_FROM_REGION, COPY_TO_REGION]);
        let into = flag == COPY_TO_REGION;
        // The region is a part of the map.
        let (start, offset) = (rng.index(2 * PAGE), rng.below(3 * PAGE as u64));
        let len = theirs.len() - start - rng.index(PAGE);
        let id = device
            .publish(&[theirs.part(start, len)], RIGHT_READ | RIGHT_WRITE)?
            .id;
        let ranges = some_ranges(&mut rng, len - offset as usize, into);
        let own = some_ranges(&mut rng, ours.len(), !into);
        let length = rng.below(total(&ranges).min(total(&own)) + 1);
        let pieces: Vec<Piece> = own
            .iter()
            .map(|own| ours.part(own.base as usize, own.len as usize))
            .collect();
        let (their_bytes, our_bytes) = (theirs.bytes(), ours.bytes());
        let (mut expected_theirs, mut expected_ours) = (their_bytes.clone(), our_bytes.clone());
        let at = |place: usize| start + offset as usize + place;
        let both = places(&ranges).into_iter().zip(places(&own));
        for (there, here) in both.take(length as usize) {
            if into {
                expected_theirs[at(there)] = our_bytes[here];
            } else {
                expected_ours[here] = their_bytes[at(there)];
            }
        }
        let done = device.copy_ranges(id, flag, offset, length, &ranges, &pieces)?;
        check_eq!(done, length, "{what}");
        check!(theirs.bytes() == expected_theirs, "{what}: the region");
        check!(ours.bytes() == expected_ours, "{what}: the caller");
        device.unpin(id)?;
    }
    Ok(())
}

/// A region of many pieces: ranges count along the pieces laid end to end.
fn scattered_region(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let (device, _) = Device::domain()?;
    for round in 0..60 {
        let map = Map::filled(12 * PAGE, rng.word())?;
        let count = 1 + rng.index(30);
        let pieces = crate::region::random_cut(&mut rng, &map, count, PAGE);
        let bytes = crate::region::gathered(&map, &pieces);
        let id = device.publish(&pieces, RIGHT_READ)?.id;
        let ranges = some_ranges(&mut rng, bytes.len(), false);
        let length = total(&ranges);
        let buffer = Map::anon((length as usize).max(1).next_multiple_of(PAGE))?;
        let ours = [buffer.piece()];
        let done = device.copy_ranges(id, COPY_FROM_REGION, 0, length, &ranges, &ours)?;
        let expected: Vec<u8> = places(&ranges).into_iter().map(|at| bytes[at]).collect();
        check_eq!(done, length);
        check!(
            buffer.read(0, length as usize) == expected,
            "seed {}, round {round}",
            context.seed
        );
        device.unpin(id)?;
    }
    Ok(())
}

/// One region of 1000 bytes inside memory of ours, so that nothing would fault around it.
pub struct Scene {
    pub device: Device,
    pub map: Map,
    pub buffer: Map,
    pub id: u32,
}

impl Scene {
    pub fn new() -> Outcome<Self> {
        let (device, _) = Device::domain()?;
        let map = Map::filled(3 * PAGE, 1)?;
        let buffer = Map::filled(PAGE, 2)?;
        let rights = RIGHT_READ | RIGHT_WRITE;
        let id = device.publish(&[map.part(PAGE, 1000)], rights)?.id;
        Ok(Self {
            device,
            map,
            buffer,
            id,
        })
    }

    fn copy(&self, flag: u32, offset: u64, length: u64, ranges: &[Piece]) -> Result<u64, Errno> {
        let pieces = [self.buffer.piece()];
        self.device
            .copy_ranges(self.id, flag, offset, length, ranges, &pieces)
    }

    pub fn untouched(&self) -> bool {
        self.map.bytes() == pattern(1, 3 * PAGE) && self.buffer.bytes() == pattern(2, PAGE)
    }
}

fn more_than_needed(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let ranges = [range(5, 10), range(100, 20), range(500, 500)];
    check_eq!(scene.copy(COPY_FROM_REGION, 0, 12, &ranges)?, 12);
    let theirs = pattern(1, 3 * PAGE);
    let mut expected = pattern(2, PAGE);
    expected[..10].copy_from_slice(&theirs[PAGE + 5..PAGE + 15]);
    expected[10..12].copy_from_slice(&theirs[PAGE + 100..PAGE + 102]);
    check!(scene.buffer.bytes() == expected);
    Ok(())
}

fn too_few_bytes(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        check_err!(
            scene.copy(flag, 0, 31, &[range(5, 10), range(100, 20)]),
            EINVAL
        );
        check_err!(scene.copy(flag, 0, 1, &[range(5, 0)]), EINVAL);
        // The caller's side.
        let pieces = [scene.buffer.part(0, 29)];
        let ranges = [range(5, 10), range(100, 20)];
        let few = scene
            .device
            .copy_ranges(scene.id, flag, 0, 30, &ranges, &pieces);
        check_err!(few, EINVAL);
    }
    check!(scene.untouched());
    Ok(())
}

/// Every range is looked at before a byte moves, those that nothing comes from, too.
fn outside_the_region(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let outside = [
        (0, range(999, 2)),
        (0, range(1000, 1)),
        (0, range(1001, 0)),
        (0, range(0, 1001)),
        (500, range(400, 101)),
        (1001, range(0, 0)),
        (0, range(1 << 40, 8)),
        (0, range(u64::MAX, 1)),
        (0, range(u64::MAX - 3, 8)),
        (8, range(u64::MAX - 7, 8)),
        (u64::MAX, range(1, 8)),
    ];
    for (offset, bad) in outside {
        for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
            let alone = scene.copy(flag, offset, bad.len.min(1), &[bad]);
            check_err!(alone, ERANGE, "{bad:?} from {offset}");
            if offset <= 500 {
                let last = scene.copy(flag, offset, 8, &[range(0, 8), bad]);
                check_err!(last, ERANGE, "{bad:?} from {offset}, behind another");
            }
        }
    }
    check!(scene.untouched());
    check_eq!(scene.copy(COPY_FROM_REGION, 0, 0, &[range(1000, 0)])?, 0);
    check_eq!(scene.copy(COPY_FROM_REGION, 999, 1, &[range(0, 1)])?, 1);
    Ok(())
}

/// Sums of lengths that do not fit.
fn overflow(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let many = vec![range(0, 1000); MAX_IOV as usize];
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        for length in [u64::MAX, 1 << 63, 1000 * u64::from(MAX_IOV) + 1] {
            check_err!(scene.copy(flag, 0, length, &many), EINVAL, "{length}");
        }
        check_err!(scene.copy(flag, 0, 8, &[range(0, u64::MAX)]), ERANGE);
        check_err!(scene.copy(flag, 1, 8, &[range(0, u64::MAX)]), ERANGE);
    }
    check!(scene.untouched());
    Ok(())
}

fn how_many(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let most = vec![range(7, 1); MAX_IOV as usize];
    check_eq!(scene.copy(COPY_FROM_REGION, 0, 1024, &most)?, 1024);
    check!(scene.buffer.read(0, 1024) == vec![pattern(1, 3 * PAGE)[PAGE + 7]; 1024]);
    let more = vec![range(7, 1); MAX_IOV as usize + 1];
    check_err!(scene.copy(COPY_FROM_REGION, 0, 1, &more), EINVAL);
    let piece = [scene.buffer.piece()];
    let plain = RegionCopy {
        region: scene.id,
        flags: COPY_FROM_REGION,
        length: 8,
        iov: piece.as_ptr() as u64,
        iov_count: 1,
        ..Default::default()
    };
    let mut array_without_count = RegionCopy {
        region_iov: most.as_ptr() as u64,
        ..plain
    };
    check_err!(
        scene.device.call(REGION_COPY, &mut array_without_count),
        EINVAL
    );
    let mut count_without_array = RegionCopy {
        region_iov_count: 1,
        ..plain
    };
    check_err!(
        scene.device.call(REGION_COPY, &mut count_without_array),
        EFAULT
    );
    for count in [MAX_IOV + 1, 1 << 31, u32::MAX] {
        let mut too_many = RegionCopy {
            region_iov: most.as_ptr() as u64,
            region_iov_count: count,
            ..plain
        };
        check_err!(
            scene.device.call(REGION_COPY, &mut too_many),
            EINVAL,
            "{count}"
        );
    }
    Ok(())
}

fn nothing(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        check_eq!(scene.copy(flag, 0, 0, &[range(0, 0); 40])?, 0);
        check_eq!(scene.copy(flag, 0, 0, &[range(3, 100)])?, 0);
    }
    check!(scene.untouched());
    Ok(())
}

/// Another thread changes the ranges while they are copied: whatever was read passes the checks, so
/// that nothing outside the region is ever copied.
fn read_only_once(context: &Context) -> Outcome {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let scene = Scene::new()?;
    scene.map.write(0, &[0xaa; 3 * PAGE]);
    scene.map.write(PAGE, &[0x55; 1000]);
    let words: Vec<AtomicU64> = (0..128).map(|at| AtomicU64::new(at % 2 * 15)).collect();
    let stop = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = context.rng();
            while !stop.load(Ordering::Relaxed) {
                let at = 2 * rng.index(64);
                // For a moment it is outside, and between the two words' changes it may be
                // anything.
                for (base, len) in [
                    rng.pick(&[(980, 40), (u64::MAX - 9, 20), (0, 1 << 63)]),
                    (980, 15),
                ] {
                    words[at].store(base, Ordering::Relaxed);
                    words[at + 1].store(len, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_micros(rng.below(50)));
            }
        });
        let piece = [scene.buffer.part(0, 1000)];
        let end = Instant::now() + context.second();
        let mut copied = 0u64;
        let mut result = Ok(());
        while Instant::now() < end && result.is_ok() {
            let mut copy = RegionCopy {
                region: scene.id,
                flags: COPY_FROM_REGION,
                length: 500,
                iov: piece.as_ptr() as u64,
                iov_count: 1,
                region_iov: words.as_ptr() as u64,
                region_iov_count: 64,
                ..Default::default()
            };
            scene.buffer.fill(0x55);
            match scene.device.call(REGION_COPY, &mut copy) {
                Ok(()) => copied += copy.done,
                Err(Errno::EINVAL | Errno::ERANGE) => {}
                Err(errno) => result = Err(format!("{errno}")),
            }
            if scene.buffer.read(0, 1000) != [0x55; 1000] {
                result = Err("bytes from outside the region".to_owned());
            }
        }
        stop.store(true, Ordering::Relaxed);
        result.map(|()| copied)
    });
    let copied = outcome?;
    check!(copied > 0, "nothing was ever copied");
    Ok(())
}

/// Two GiB, as ranges of one page each that is copied again and again: legal, and long.
fn long(map: &Map, buffer: &Map) -> (Vec<Piece>, Vec<Piece>) {
    let len = map.len() as u64;
    let count = MAX_IOV as usize;
    (vec![range(0, len); count], vec![buffer.piece(); count])
}

/// Bytes of each range of [`long`].
const LONG: usize = 2 << 20;

fn long_is_interruptible(context: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(LONG, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::filled(LONG, 1)?;
    let (ranges, pieces) = long(&map, &buffer);
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        // Repeats, in case the first one comes before the copy has begun.
        sys::alarm(Duration::from_millis(50), Duration::from_millis(50))?;
        let start = Instant::now();
        let answer = device.copy_ranges(id, flag, 0, MAX_COPY_BYTES, &ranges, &pieces);
        let took = start.elapsed();
        sys::alarm(Duration::ZERO, Duration::ZERO)?;
        check!(took < context.limit(2), "a signal takes {took:?}");
        match answer {
            Ok(n) => check!(n > 0 && n < MAX_COPY_BYTES, "{n} bytes"),
            Err(errno) => check_eq!(errno, Errno::EINTR),
        }
    }
    check!(buffer.bytes() == map.bytes());
    Ok(())
}

fn long_is_killable(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(LONG, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| -> Outcome {
        let peer = Device::member(key)?;
        let buffer = Map::anon(LONG)?;
        let (ranges, pieces) = long(&map, &buffer);
        counters.set(0, 1);
        loop {
            let _ = peer.copy_ranges(id, COPY_FROM_REGION, 0, MAX_COPY_BYTES, &ranges, &pieces);
        }
    })?;
    counters.await_at_least(0, 1)?;
    std::thread::sleep(Duration::from_millis(30));
    child.kill_at_once(context)?;
    Ok(())
}

fn fault_half_way(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(8 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    // 100 bytes every 200; the caller's third page is missing.
    let ranges: Vec<Piece> = (0..160).map(|index| range(200 * index, 100)).collect();
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        map.write(0, &pattern(1, 8 * PAGE));
        let buffer = Map::filled(8 * PAGE, 2)?;
        buffer.unmap(2 * PAGE, PAGE)?;
        let mut done = 0;
        let mut left = ranges.clone();
        let errno = loop {
            let rest = [buffer.part(done, 16_000 - done)];
            let length = total(&left);
            match device.copy_ranges(id, flag, 0, length, &left, &rest) {
                Ok(0) => check!(false, "success with nothing done at {done}"),
                Ok(n) => {
                    done += n as usize;
                    let whole = done / 100;
                    left = ranges[whole..].to_vec();
                    left[0].base += (done % 100) as u64;
                    left[0].len -= (done % 100) as u64;
                }
                Err(Errno::EINTR) => {}
                Err(errno) => break errno,
            }
            check!(
                done <= 2 * PAGE,
                "{done} bytes done, two pages can be reached"
            );
        };
        check_eq!((errno, done), (Errno::EFAULT, 2 * PAGE));
        let theirs = map.bytes();
        let expected: Vec<u8> = places(&ranges)[..done]
            .iter()
            .map(|at| theirs[*at])
            .collect();
        check!(buffer.read(0, done) == expected);
        if flag == COPY_TO_REGION {
            let mut image = pattern(1, 8 * PAGE);
            let ours = pattern(2, 8 * PAGE);
            for (from, at) in places(&ranges)[..done].iter().enumerate() {
                image[*at] = ours[from];
            }
            check!(map.bytes() == image);
        }
    }
    Ok(())
}

fn counts_bytes(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::anon(PAGE)?;
    let ranges: Vec<Piece> = (0..11).map(|index| range(20 * index, 7)).collect();
    let piece = [buffer.piece()];
    let before = Stats::read()?;
    device.copy_ranges(id, COPY_FROM_REGION, 0, 77, &ranges, &piece)?;
    device.copy_ranges(id, COPY_TO_REGION, 0, 70, &ranges, &piece)?;
    check_eq!(Stats::read()?.since(&before, "bytes_from_region")?, 77);
    check_eq!(Stats::read()?.since(&before, "bytes_to_region")?, 70);
    Ok(())
}

/// What it is for: a hundred thousand pieces of 64 bytes at offsets without a rule, beside the
/// pieces one by one out of the same process's memory.
fn irregular_pieces(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let (device, _) = Device::domain()?;
    let mut ranges = Vec::new();
    let mut end = 0;
    for _ in 0..100_000 {
        let at = end + 8 * rng.below(8);
        ranges.push(range(at, 64));
        end = at + 64 + 40;
    }
    let map = Map::filled((end as usize).next_multiple_of(PAGE), 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let buffer = Map::filled(64 * ranges.len(), 2)?;
    let mut times = [Duration::MAX; 2];
    for _ in 0..3 {
        buffer.fill(0);
        let start = Instant::now();
        let mut at = 0;
        for some in ranges.chunks(MAX_IOV as usize) {
            let len = total(some);
            let mut piece = [buffer.part(at, len as usize)];
            let (mut some, mut left) = (some.to_vec(), len);
            while left > 0 {
                let done = device.copy_ranges(id, COPY_FROM_REGION, 0, left, &some, &piece)?;
                left -= done;
                check!(left == 0 || done % 64 == 0, "stopped within a piece");
                some.drain(..(done / 64) as usize);
                piece[0].base += done;
                piece[0].len -= done;
            }
            at += len as usize;
        }
        times[0] = times[0].min(start.elapsed());
        let (theirs, ours) = (map.bytes(), buffer.bytes());
        let right = |(range, got): (&Piece, &[u8])| theirs[range.base as usize..][..64] == *got;
        check!(
            ranges.iter().zip(ours.chunks_exact(64)).all(right),
            "a piece is wrong"
        );
        let start = Instant::now();
        let mut at = 0;
        for some in ranges.chunks(1024) {
            let theirs: Vec<Piece> = some
                .iter()
                .map(|range| map.part(range.base as usize, 64))
                .collect();
            at += sys::read_memory(&theirs, &buffer.part(at, 64 * some.len()))?;
        }
        times[1] = times[1].min(start.elapsed());
        check_eq!(at, 64 * ranges.len());
    }
    println!(
        "  {:.2} ms by the module, {:.2} ms by process_vm_readv",
        times[0].as_secs_f64() * 1e3,
        times[1].as_secs_f64() * 1e3
    );
    Ok(())
}
