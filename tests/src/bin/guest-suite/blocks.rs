// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies of blocks of one length, at the offsets of a list or at equal distances, against an
//! oracle that visits byte after byte.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use libcopy::datatype::Places;
use nix::errno::Errno;

use crate::abi::*;
use crate::device::{Answer, Device};
use crate::harness::{Context, Outcome};
use crate::kernel::Stats;
use crate::ranges::Scene;
use crate::rng::{Rng, pattern};
use crate::sys::{self, Child, Map, PAGE, SharedCounters};
use crate::{check, check_eq, check_err, tests};

tests!(blocks:
    by_hand, random(120), scattered_region(60), outside_the_region, ends_before_a_block_outside, far_offsets, too_few,
    how_many, read_only_once, list_ends_half_way, fault_half_way, long_is_interruptible(60), long_is_killable,
    counts_bytes, irregular_blocks,
);

/// Offsets of every byte of the blocks, in their order.
fn bytes_of(places: Places<'_>, len: usize) -> Vec<usize> {
    let starts: Vec<i64> = match places {
        Places::List(list) => list.iter().map(|at| i64::from(*at)).collect(),
        Places::Stride(count, stride) => (0..count as i64).map(|index| index * stride).collect(),
    };
    let bytes = |start: i64| (start..start + len as i64).map(|at| at as usize);
    starts.into_iter().flat_map(bytes).collect()
}

impl Scene {
    fn copy_blocks(&self, flag: u32, at: (u64, u64), len: u64, places: Places<'_>) -> Answer<u64> {
        let pieces = [self.buffer.piece()];
        self.device
            .copy_blocks(self.id, flag, at, len, places, &pieces)
    }
}

fn by_hand(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let theirs = pattern(1, 3 * PAGE)[PAGE..].to_vec();
    let list = Places::List(&[7, -20, 900, 7]);
    check_eq!(scene.copy_blocks(COPY_FROM_REGION, (50, 38), 10, list)?, 38);
    let mut expected = pattern(2, PAGE);
    for (block, at) in [57, 30, 950].into_iter().enumerate() {
        expected[10 * block..][..10].copy_from_slice(&theirs[at..at + 10]);
    }
    expected[30..38].copy_from_slice(&theirs[57..65]);
    check!(scene.buffer.bytes() == expected);
    // Backwards, the last one but in part; and the other way.
    let back = Places::Stride(5, -30);
    check_eq!(
        scene.copy_blocks(COPY_FROM_REGION, (990, 25), 10, back)?,
        25
    );
    for (block, (at, len)) in [(990, 10), (960, 10), (930, 5)].into_iter().enumerate() {
        expected[10 * block..][..len].copy_from_slice(&theirs[at..at + len]);
    }
    check!(scene.buffer.bytes() == expected);
    check_eq!(
        scene.copy_blocks(COPY_TO_REGION, (100, 6), 3, Places::Stride(2, 500))?,
        6
    );
    let mut image = pattern(1, 3 * PAGE);
    image[PAGE + 100..][..3].copy_from_slice(&expected[..3]);
    image[PAGE + 600..][..3].copy_from_slice(&expected[3..6]);
    check!(scene.map.bytes() == image);
    Ok(())
}

/// Blocks in any order, in `limit` bytes; those to be written do not overlap.
fn some_places(
    rng: &mut Rng,
    limit: usize,
    len: usize,
    written: bool,
) -> (Vec<i32>, u64, u64, i64) {
    let most = limit / len;
    let many = if rng.one_in(4) { 2000 } else { 90 };
    let count = 1 + rng.index(most.min(many));
    let slack = (limit - count * len) / count;
    let mut list = Vec::new();
    let mut at = 0;
    for _ in 0..count {
        at += rng.index(slack + 1);
        list.push(at as i32);
        at += len;
    }
    if !written {
        list.iter_mut()
            .for_each(|at| *at = rng.index(limit - len + 1) as i32);
    }
    if rng.one_in(2) {
        list.reverse();
    }
    // They count from the byte where one of them is.
    let offset = rng.pick(&list);
    list.iter_mut().for_each(|at| *at -= offset);
    let stride = (len + rng.index(slack + 1)) as i64;
    (list, offset as u64, count as u64, stride)
}

/// Any blocks, of a region of any pieces, both ways and given in both ways; every byte of both
/// sides is looked at.
fn random_in(context: &Context, rounds: usize, cut: bool) -> Outcome {
    let mut rng = context.rng();
    let (device, _) = Device::domain()?;
    for round in 0..rounds {
        let what = format!("seed {}, round {round}", context.seed);
        let theirs = Map::filled(20 * PAGE, rng.word())?;
        let ours = Map::filled(20 * PAGE, rng.word())?;
        let pieces = if cut {
            let count = 1 + rng.index(30);
            crate::region::random_cut(&mut rng, &theirs, count, PAGE)
        } else {
            let start = rng.index(PAGE);
            vec![theirs.part(start, theirs.len() - start - rng.index(PAGE))]
        };
        let flag = if cut {
            COPY_FROM_REGION
        } else {
            rng.pick(&[COPY_FROM_REGION, COPY_TO_REGION])
        };
        let into = flag == COPY_TO_REGION;
        let id = device
            .publish(
                &pieces,
                if into {
                    RIGHT_READ | RIGHT_WRITE
                } else {
                    RIGHT_READ
                },
            )?
            .id;
        let limit: usize = pieces.iter().map(|piece| piece.len as usize).sum();
        if limit == 0 {
            device.unpin(id)?;
            continue;
        }
        let longest = rng.pick(&[9, 64, 300, 2 * PAGE]).min(limit);
        let len = 1 + rng.index(longest);
        let (list, first, count, stride) = some_places(&mut rng, limit, len, into);
        let (offset, places) = match rng.below(3) {
            0 => (0, Places::Stride(count, stride)),
            1 => {
                let last = (count as i64 - 1) * stride;
                (last as u64, Places::Stride(count, -stride))
            }
            _ => (first, Places::List(&list)),
        };
        let whole = count as usize * len;
        // The caller's side in one piece or in several.
        let own = if rng.one_in(2) {
            vec![ours.piece()]
        } else {
            let middle = rng.index(ours.len());
            vec![ours.part(0, middle), ours.part(middle, ours.len() - middle)]
        };
        let length = rng.index(whole.min(ours.len()) + 1);
        let before = crate::region::gathered(&theirs, &pieces);
        let (mut region, mut caller) = (before.clone(), ours.bytes());
        let at: Vec<usize> = bytes_of(places, len)
            .into_iter()
            .map(|at| at.wrapping_add(offset as usize))
            .collect();
        for (here, there) in at[..length].iter().enumerate() {
            if into {
                region[*there] = caller[here];
            } else {
                caller[here] = before[*there];
            }
        }
        let at = (offset, length as u64);
        let done = device.copy_blocks(id, flag, at, len as u64, places, &own)?;
        check_eq!(done, length as u64, "{what}");
        check!(
            crate::region::gathered(&theirs, &pieces) == region,
            "{what}: the region"
        );
        check!(ours.bytes() == caller, "{what}: the caller");
        device.unpin(id)?;
    }
    Ok(())
}

fn random(context: &Context) -> Outcome {
    random_in(context, context.rounds(200, 70), false)
}

fn scattered_region(context: &Context) -> Outcome {
    random_in(context, 60, true)
}

fn outside_the_region(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let lists: [(u64, u64, &[i32]); 9] = [
        (0, 2, &[999]),
        (0, 1, &[1000]),
        (0, 1001, &[0]),
        (0, 8, &[-1]),
        (0, 8, &[i32::MIN]),
        (0, 8, &[i32::MAX]),
        (500, 8, &[493]),
        (500, 8, &[-501]),
        (1000, 1 << 63, &[0]),
    ];
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        for (offset, len, list) in lists {
            let alone = scene.copy_blocks(flag, (offset, 1), len, Places::List(list));
            check_err!(alone, ERANGE, "{len} bytes at {list:?} from {offset}");
        }
        // Also where it does not matter what the blocks are.
        for offset in [1001, 1 << 40, u64::MAX] {
            let beyond = scene.copy_blocks(flag, (offset, 0), 8, Places::List(&[-8]));
            check_err!(beyond, ERANGE, "from {offset}");
        }
        for stride in [
            1 + MAX_REGION_BYTES as i64,
            -1 - (MAX_REGION_BYTES as i64),
            i64::MIN,
        ] {
            let far = scene.copy_blocks(flag, (0, 1), 1, Places::Stride(1, stride));
            check_err!(far, ERANGE, "{stride} bytes apart");
        }
        check_err!(
            scene.copy_blocks(flag, (993, 8), 8, Places::Stride(9, 0)),
            ERANGE
        );
        check_err!(
            scene.copy_blocks(flag, (0, 8), u64::MAX, Places::Stride(9, 0)),
            ERANGE
        );
    }
    check!(scene.untouched());
    check_eq!(
        scene.copy_blocks(COPY_FROM_REGION, (1000, 0), 8, Places::List(&[0]))?,
        0
    );
    check_eq!(
        scene.copy_blocks(COPY_FROM_REGION, (1000, 1), 1, Places::List(&[-1]))?,
        1
    );
    Ok(())
}

/// What comes before a block that is not in the region is copied, and no byte behind.
fn ends_before_a_block_outside(_: &Context) -> Outcome {
    for count in [1, 15, 16, 17, 100] {
        let mut list = vec![100; count];
        list.extend([996, 0]);
        // The third block is beyond the end.
        let equal = |index: i64| Places::Stride(9, index);
        for (places, len, copied) in [
            (Places::List(&list), 5, 5 * count as u64),
            (equal(499), 5, 10),
            (equal(MAX_REGION_BYTES as i64), 5, 5),
            (equal(-(MAX_REGION_BYTES as i64)), 5, 5),
        ] {
            let scene = Scene::new()?;
            let at = (0, copied + 7);
            check_eq!(
                scene.copy_blocks(COPY_FROM_REGION, at, len, places)?,
                copied
            );
            let theirs = pattern(1, 3 * PAGE)[PAGE..].to_vec();
            let mut expected = pattern(2, PAGE);
            for (here, there) in bytes_of(places, 5)[..copied as usize].iter().enumerate() {
                expected[here] = theirs[*there];
            }
            check!(scene.buffer.bytes() == expected, "{places:?}");
        }
    }
    Ok(())
}

/// Offsets below the first byte, and far from it.
fn far_offsets(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(40 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let buffer = Map::anon(PAGE)?;
    let last = 40 * PAGE as u64 - 8;
    let list = [0, -(last as i32), -8, -(20 * PAGE as i32) - 3];
    let places = Places::List(&list);
    let pieces = [buffer.piece()];
    check_eq!(
        device.copy_blocks(id, COPY_FROM_REGION, (last, 32), 8, places, &pieces)?,
        32
    );
    let all = pattern(1, 40 * PAGE);
    for (block, at) in list.into_iter().enumerate() {
        let from = (last as i64 + i64::from(at)) as usize;
        check!(buffer.read(8 * block, 8) == all[from..from + 8], "{at}");
    }
    Ok(())
}

fn too_few(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        for places in [Places::List(&[0, 20, 40]), Places::Stride(3, 20)] {
            check_err!(scene.copy_blocks(flag, (0, 31), 10, places), EINVAL);
            check_err!(scene.copy_blocks(flag, (0, u64::MAX), 10, places), EINVAL);
            // The caller's side.
            let pieces = [scene.buffer.part(0, 29)];
            let few = scene
                .device
                .copy_blocks(scene.id, flag, (0, 30), 10, places, &pieces);
            check_err!(few, EINVAL);
        }
        check_err!(
            scene.copy_blocks(flag, (0, 1), 10, Places::Stride(0, 0)),
            EINVAL
        );
        check_eq!(
            scene.copy_blocks(flag, (0, 0), 10, Places::Stride(0, 0))?,
            0
        );
        check_eq!(
            scene.copy_blocks(flag, (0, 0), 10, Places::List(&[5000]))?,
            0
        );
    }
    check!(scene.untouched());
    Ok(())
}

/// More than `MAX_IOV`, and more than are looked at.
fn how_many(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let list: Vec<i32> = (0..4096).map(|at| at % 1000).collect();
    let all = PAGE as u64;
    check_eq!(
        scene.copy_blocks(COPY_FROM_REGION, (0, all), 1, Places::List(&list))?,
        all
    );
    let theirs = &pattern(1, 3 * PAGE)[PAGE..];
    let expected: Vec<u8> = list.iter().map(|at| theirs[*at as usize]).collect();
    check!(scene.buffer.bytes() == expected);
    let many = Places::Stride(u64::from(u32::MAX), 999);
    check_eq!(scene.copy_blocks(COPY_FROM_REGION, (0, 2), 1, many)?, 2);
    check!(scene.buffer.read(0, 2) == [theirs[0], theirs[999]]);
    Ok(())
}

/// Another thread changes the list while it is read: what was checked is what is copied.
fn read_only_once(context: &Context) -> Outcome {
    let scene = Scene::new()?;
    scene.map.write(0, &[0xaa; 3 * PAGE]);
    scene.map.write(PAGE, &[0x55; 1000]);
    let list: Vec<AtomicI32> = (0..64).map(|_| AtomicI32::new(985)).collect();
    let stop = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = context.rng();
            while !stop.load(Ordering::Relaxed) {
                let at = &list[rng.index(64)];
                // As long wrong as right, so that the copy meets both, and the change.
                at.store(rng.pick(&[986, 1000, -1, i32::MIN]), Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(rng.below(50)));
                at.store(985, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(rng.below(50)));
            }
        });
        let piece = [scene.buffer.part(0, 1000)];
        let end = Instant::now() + context.second();
        let (mut whole, mut ended, mut result) = (0u64, 0u64, Ok(()));
        while Instant::now() < end && result.is_ok() {
            let mut copy = RegionCopy {
                region: scene.id,
                flags: COPY_FROM_REGION,
                length: 64 * 15,
                iov: piece.as_ptr() as u64,
                iov_count: 1,
                region_iov: list.as_ptr() as u64,
                region_iov_count: 64,
                block_len: 15,
                ..Default::default()
            };
            scene.buffer.fill(0x55);
            match scene.device.call(REGION_COPY, &mut copy) {
                Ok(()) if copy.done == copy.length => whole += 1,
                Ok(()) | Err(Errno::ERANGE) => ended += 1,
                Err(errno) => result = Err(format!("{errno}")),
            }
            if scene.buffer.read(0, 1000) != [0x55; 1000] {
                result = Err("bytes from outside the region".to_owned());
            }
        }
        stop.store(true, Ordering::Relaxed);
        result.map(|()| (whole, ended))
    });
    let (whole, ended) = outcome?;
    check!(
        whole > 0 && ended > 0,
        "{whole} whole copies, {ended} that ended early"
    );
    Ok(())
}

/// The list cannot be read from a page on.
fn list_ends_half_way(_: &Context) -> Outcome {
    let scene = Scene::new()?;
    let numbers = Map::anon(2 * PAGE)?;
    numbers.unmap(PAGE, PAGE)?;
    let piece = [scene.buffer.piece()];
    for readable in [0usize, 1, 64, 70, 500] {
        let mut copy = RegionCopy {
            region: scene.id,
            flags: COPY_FROM_REGION,
            length: 2000,
            iov: piece.as_ptr() as u64,
            iov_count: 1,
            region_iov: numbers.addr() + (PAGE - 4 * readable) as u64,
            region_iov_count: 1000,
            block_len: 2,
            ..Default::default()
        };
        scene.buffer.fill(9);
        let answer = scene.device.call(REGION_COPY, &mut copy);
        let done = match answer {
            Ok(()) => copy.done as usize,
            Err(Errno::EFAULT) => 0,
            Err(errno) => return Err(format!("{readable}: {errno}").into()),
        };
        check!(done <= 2 * readable, "{done} bytes of {readable} blocks");
        check!(done > 0 || readable < 64, "nothing of {readable} blocks");
        check_eq!(answer.is_ok(), done > 0);
        let two = pattern(1, 3 * PAGE)[PAGE..PAGE + 2].to_vec();
        check!(scene.buffer.read(0, done) == two.repeat(done / 2));
        check!(scene.buffer.read(done, PAGE - done) == vec![9; PAGE - done]);
    }
    Ok(())
}

/// The caller's third page is missing.
fn fault_half_way(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        let map = Map::filled(8 * PAGE, 1)?;
        let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
        let buffer = Map::filled(8 * PAGE, 2)?;
        buffer.unmap(2 * PAGE, PAGE)?;
        let places = Places::Stride(160, 200);
        let before = Stats::read()?;
        let done = device.copy_blocks(id, flag, (0, 16_000), 100, places, &[buffer.piece()])?;
        check!(
            done > 2 * PAGE as u64 - 1024 && done <= 2 * PAGE as u64,
            "{done}"
        );
        check_eq!(Stats::read()?.since(&before, "faults")?, 1);
        let (theirs, ours) = (pattern(1, 8 * PAGE), pattern(2, 8 * PAGE));
        let (mut image, mut own) = (theirs.clone(), ours[..2 * PAGE].to_vec());
        for (here, there) in bytes_of(places, 100)[..done as usize].iter().enumerate() {
            if flag == COPY_FROM_REGION {
                own[here] = theirs[*there];
            } else {
                image[*there] = ours[here];
            }
        }
        check!(map.bytes() == image && buffer.read(0, 2 * PAGE) == own);
        device.unpin(id)?;
    }
    Ok(())
}

/// Two GiB of short blocks: legal, and long.
fn long(device: &Device, id: u32, flag: u32, buffer: &Map) -> Answer<u64> {
    let pieces = vec![buffer.piece(); MAX_IOV as usize];
    let places = Places::Stride(u64::from(u32::MAX), 0);
    device.copy_blocks(id, flag, (0, MAX_COPY_BYTES), 8, places, &pieces)
}

/// Bytes of each of the caller's pieces then.
const LONG: usize = 2 << 20;

fn long_is_interruptible(context: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::filled(LONG, 1)?;
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        // Repeats, in case the first one comes before the copy has begun.
        sys::alarm(Duration::from_millis(50), Duration::from_millis(50))?;
        let start = Instant::now();
        let answer = long(&device, id, flag, &buffer);
        let took = start.elapsed();
        sys::alarm(Duration::ZERO, Duration::ZERO)?;
        check!(took < context.limit(2), "a signal takes {took:?}");
        match answer {
            Ok(n) => check!(n > 0 && n < MAX_COPY_BYTES && n % 8 == 0, "{n} bytes"),
            Err(errno) => check_eq!(errno, Errno::EINTR),
        }
    }
    Ok(())
}

fn long_is_killable(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| -> Outcome {
        let peer = Device::member(key)?;
        let buffer = Map::anon(LONG)?;
        counters.set(0, 1);
        loop {
            let _ = long(&peer, id, COPY_FROM_REGION, &buffer);
        }
    })?;
    counters.await_at_least(0, 1)?;
    std::thread::sleep(Duration::from_millis(30));
    child.kill_at_once(context)?;
    Ok(())
}

fn counts_bytes(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::anon(PAGE)?;
    let piece = [buffer.piece()];
    let places = Places::Stride(11, 20);
    let before = Stats::read()?;
    device.copy_blocks(id, COPY_FROM_REGION, (0, 77), 7, places, &piece)?;
    device.copy_blocks(id, COPY_TO_REGION, (0, 70), 7, places, &piece)?;
    check_eq!(Stats::read()?.since(&before, "bytes_from_region")?, 77);
    check_eq!(Stats::read()?.since(&before, "bytes_to_region")?, 70);
    Ok(())
}

/// What it is for: a hundred thousand blocks of 64 bytes at offsets without a rule, in one call,
/// beside the pieces one by one out of the same process's memory.
fn irregular_blocks(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let (device, _) = Device::domain()?;
    let (mut list, mut end) = (Vec::new(), 0);
    for _ in 0..100_000 {
        let at = end + 8 * rng.index(8);
        list.push(at as i32);
        end = at + 64 + 40;
    }
    let map = Map::filled(end.next_multiple_of(PAGE), 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let buffer = Map::filled(64 * list.len(), 2)?;
    let mut times = [Duration::MAX; 2];
    for _ in 0..3 {
        buffer.fill(0);
        let start = Instant::now();
        let mut first = 0;
        while first < list.len() {
            // A signal may end it early, behind any block.
            let (left, piece) = (
                &list[first..],
                [buffer.part(64 * first, 64 * (list.len() - first))],
            );
            let at = (0, 64 * left.len() as u64);
            let places = Places::List(left);
            let done = device.copy_blocks(id, COPY_FROM_REGION, at, 64, places, &piece)?;
            check!(done % 64 == 0, "stopped within a block");
            first += done as usize / 64;
        }
        times[0] = times[0].min(start.elapsed());
        let (theirs, ours) = (map.bytes(), buffer.bytes());
        let right = |(at, got): (&i32, &[u8])| theirs[*at as usize..][..64] == *got;
        check!(
            list.iter().zip(ours.chunks_exact(64)).all(right),
            "a block is wrong"
        );
        let start = Instant::now();
        let mut at = 0;
        for some in list.chunks(1024) {
            let theirs: Vec<Piece> = some.iter().map(|at| map.part(*at as usize, 64)).collect();
            at += sys::read_memory(&theirs, &buffer.part(at, 64 * some.len()))?;
        }
        times[1] = times[1].min(start.elapsed());
        check_eq!(at, 64 * list.len());
    }
    println!(
        "  {:.2} ms by the module, {:.2} ms by process_vm_readv",
        times[0].as_secs_f64() * 1e3,
        times[1].as_secs_f64() * 1e3
    );
    Ok(())
}
