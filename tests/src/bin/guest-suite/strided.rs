// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies along layouts, against an oracle that visits byte after byte.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::device::Device;
use crate::harness::{Context, Outcome};
use crate::kernel::Stats;
use crate::rng::{Rng, pattern};
use crate::sys::{self, Board, Child, Map, PAGE};
use crate::{check, check_eq, check_err, tests};

tests!(strided:
    by_hand, random_region_side(120), random_caller_side(120), random_both_sides(120),
    continues_anywhere(60), sizes_must_agree, empty_layouts, outside_the_region, too_many_streams,
    overflow, zero_block_ends, endless_is_interruptible(60), endless_is_killable,
    fault_half_way, negative_strides, counts_bytes, matrix_column,
);

/// A layout from its parts.
fn layout(offset: i64, block: u64, streams: &[(u64, i64)]) -> Layout {
    let mut layout = Layout {
        offset,
        block,
        stream_count: streams.len() as u32,
        ..Default::default()
    };
    for (slot, &(count, stride)) in layout.streams.iter_mut().zip(streams) {
        *slot = Stream { count, stride };
    }
    layout
}

/// The position of every byte in the layout's order.
fn places(layout: &Layout) -> Vec<i64> {
    fn walk(streams: &[Stream], block: u64, at: i64, places: &mut Vec<i64>) {
        match streams.split_first() {
            None => places.extend((0..block as i64).map(|i| at + i)),
            Some((first, rest)) => {
                for index in 0..first.count as i64 {
                    walk(rest, block, at + index * first.stride, places);
                }
            }
        }
    }
    let mut all = Vec::new();
    walk(
        &layout.streams[..layout.stream_count as usize],
        layout.block,
        layout.offset,
        &mut all,
    );
    all
}

/// A random layout that stays inside `0..limit`; one to be written to visits no byte twice.
fn random(rng: &mut Rng, limit: usize, written: bool) -> Layout {
    loop {
        let count = rng.index(MAX_STREAMS + 1);
        let block = match rng.below(8) {
            0 => 0,
            1 => 1,
            2 => rng.below(3 * PAGE as u64),
            3 => 8,
            _ => rng.below(70),
        };
        let reach = if block > 100 { 2 * PAGE as u64 } else { 200 };
        let streams: Vec<(u64, i64)> = (0..count)
            .map(|_| {
                let repeat = if rng.one_in(15) { 0 } else { 1 + rng.below(5) };
                let stride = match rng.below(5) {
                    0 => block as i64,
                    1 => -(block as i64),
                    2 => rng.below(reach) as i64 - reach as i64 / 2,
                    3 => (rng.below(20) * 64) as i64,
                    _ => (block + rng.below(reach)) as i64 * rng.pick(&[1, 1, 1, -1]),
                };
                (repeat, stride)
            })
            .collect();
        let mut made = layout(0, block, &streams);
        let visited = places(&made);
        let (Some(low), Some(high)) = (visited.iter().min(), visited.iter().max()) else {
            return made;
        };
        let span = (high - low + 1) as usize;
        if span > limit || visited.len() > 60_000 {
            continue;
        }
        if written
            && visited
                .iter()
                .collect::<std::collections::HashSet<_>>()
                .len()
                != visited.len()
        {
            continue;
        }
        made.offset = rng.index(limit - span + 1) as i64 - low;
        return made;
    }
}

/// One copy, going on where it ended early.
fn run(
    device: &Device,
    id: u32,
    flag: u32,
    region: Option<&Layout>,
    addr: u64,
    user: Option<&Layout>,
    total: u64,
) -> Result<(), Errno> {
    let mut done = 0;
    loop {
        match device.strided(id, flag, region, addr, user, done) {
            Ok(n) => done += n,
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        }
        if done >= total {
            return if done == total {
                Ok(())
            } else {
                Err(Errno::EPROTO)
            };
        }
    }
}

/// Copies at random and compares every byte of both sides with the oracle's.
fn compare(context: &Context, rounds: u32, region_side: bool, user_side: bool) -> Outcome {
    const LEN: usize = 12 * PAGE;
    let mut rng = context.rng();
    let (device, _) = Device::domain()?;
    for round in 0..rounds {
        let theirs = Map::filled(LEN + PAGE, rng.word())?;
        let ours = Map::filled(LEN + PAGE, rng.word())?;
        // The region starts at an odd place and is cut into pieces.
        let shift = rng.index(PAGE);
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < LEN {
            let len = (1 + rng.index(3 * PAGE)).min(LEN - at);
            pieces.push(theirs.part(shift + at, len));
            at += len;
        }
        let id = device.publish(&pieces, RIGHT_READ | RIGHT_WRITE)?.id;
        let flag = rng.pick(&[COPY_FROM_REGION, COPY_TO_REGION]);
        let into_region = flag == COPY_TO_REGION;
        // The side that leads is random; the other has a layout of the same size or is contiguous.
        let (region, user) = if region_side && user_side {
            let lead = random(&mut rng, LEN, true);
            let total = places(&lead).len() as u64;
            let other = reshape(&mut rng, total, LEN);
            if rng.one_in(2) {
                (Some(lead), Some(other))
            } else {
                (Some(other), Some(lead))
            }
        } else if region_side {
            (Some(random(&mut rng, LEN, into_region)), None)
        } else {
            (None, Some(random(&mut rng, LEN, !into_region)))
        };
        let total = places(
            region
                .as_ref()
                .or(user.as_ref())
                .expect("one side at least"),
        )
        .len();
        let what = format!(
            "seed {}, round {round}, flag {flag}, {total} bytes: region {region:?}, caller {user:?}",
            context.seed
        );
        let contiguous: Vec<i64> = (0..total as i64).collect();
        let region_places = region.as_ref().map_or_else(|| contiguous.clone(), places);
        let user_places = user.as_ref().map_or_else(|| contiguous.clone(), places);
        if total > LEN {
            // Reading one place many times: the contiguous side is too short for it.
            device.unpin(id)?;
            continue;
        }
        let start = rng.index(PAGE);
        let (mut region_image, mut user_image) = (theirs.bytes(), ours.bytes());
        for (&r, &u) in region_places.iter().zip(&user_places) {
            let (r, u) = (shift + r as usize, start + u as usize);
            if into_region {
                region_image[r] = user_image[u];
            } else {
                user_image[u] = region_image[r];
            }
        }
        let addr = ours.addr() + start as u64;
        run(
            &device,
            id,
            flag,
            region.as_ref(),
            addr,
            user.as_ref(),
            total as u64,
        )
        .map_err(|errno| format!("{errno}: {what}"))?;
        check!(theirs.bytes() == region_image, "the region differs: {what}");
        check!(
            ours.bytes() == user_image,
            "the caller's memory differs: {what}"
        );
        if rng.one_in(2) {
            device.unpin(id)?
        } else {
            device.destroy(id)?
        }
    }
    Ok(())
}

/// A layout of exactly `total` bytes, no byte twice, inside `0..limit`.
fn reshape(rng: &mut Rng, total: u64, limit: usize) -> Layout {
    if total == 0 {
        return layout(0, 0, &[]);
    }
    loop {
        let mut left = total;
        let mut counts = Vec::new();
        while counts.len() < MAX_STREAMS && !rng.one_in(3) {
            let divisors: Vec<u64> = (1..=left.min(12)).filter(|d| left % d == 0).collect();
            let count = rng.pick(&divisors);
            counts.push(count);
            left /= count;
        }
        let mut extent = left as i64;
        let mut streams = Vec::new();
        for &count in &counts {
            let stride = extent + rng.below(40) as i64;
            extent += stride * (count as i64 - 1);
            streams.push((count, stride));
        }
        streams.reverse();
        if extent as usize > limit {
            if total as usize > limit {
                return layout(0, total, &[]);
            }
            continue;
        }
        let offset = rng.index(limit - extent as usize + 1) as i64;
        return layout(offset, left, &streams);
    }
}

fn random_region_side(context: &Context) -> Outcome {
    compare(context, 300, true, false)
}

fn random_caller_side(context: &Context) -> Outcome {
    compare(context, 300, false, true)
}

fn random_both_sides(context: &Context) -> Outcome {
    compare(context, 300, true, true)
}

fn by_hand(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let text: Vec<u8> = (0..=255).collect();
    map.write(0, &text);
    let id = device
        .publish(&[map.part(0, 256)], RIGHT_READ | RIGHT_WRITE)?
        .id;
    let buffer = Map::anon(PAGE)?;
    // Two rows, two blocks in each, two bytes in a block.
    let rows = layout(10, 2, &[(2, 100), (2, 5)]);
    check_eq!(
        device.strided(id, COPY_FROM_REGION, Some(&rows), buffer.addr(), None, 0)?,
        8
    );
    check_eq!(buffer.read(0, 9), [10, 11, 15, 16, 110, 111, 115, 116, 0]);
    // Streams are nested in the order given: this visits the columns first.
    let columns = layout(10, 2, &[(2, 5), (2, 100)]);
    check_eq!(
        device.strided(id, COPY_FROM_REGION, Some(&columns), buffer.addr(), None, 0)?,
        8
    );
    check_eq!(buffer.read(0, 9), [10, 11, 110, 111, 15, 16, 115, 116, 0]);
    // A count of one keeps its offset and changes nothing.
    let one = layout(20, 3, &[(1, 999), (1, -50)]);
    check_eq!(
        device.strided(id, COPY_FROM_REGION, Some(&one), buffer.addr(), None, 0)?,
        3
    );
    check_eq!(buffer.read(0, 4), [20, 21, 22, 11 + 100]);
    // The same byte again and again.
    let same = layout(7, 1, &[(4, 0)]);
    check_eq!(
        device.strided(id, COPY_FROM_REGION, Some(&same), buffer.addr(), None, 0)?,
        4
    );
    check_eq!(buffer.read(0, 4), [7; 4]);
    // On the caller's side, backwards and relative to an address in the middle.
    let back = layout(-2, 2, &[(3, -4)]);
    buffer.fill(0);
    let middle = buffer.addr() + 100;
    check_eq!(
        device.strided(id, COPY_FROM_REGION, None, middle, Some(&back), 0)?,
        6
    );
    check_eq!(buffer.read(90, 11), [4, 5, 0, 0, 2, 3, 0, 0, 0, 1, 0]);
    Ok(())
}

fn negative_strides(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    // Byte by byte from the end: the region backwards.
    let backwards = layout(4 * PAGE as i64 - 1, 1, &[(4 * PAGE as u64, -1)]);
    let buffer = Map::anon(4 * PAGE)?;
    let total = 4 * PAGE as u64;
    run(
        &device,
        id,
        COPY_FROM_REGION,
        Some(&backwards),
        buffer.addr(),
        None,
        total,
    )?;
    let mut expected = map.bytes();
    expected.reverse();
    check!(buffer.bytes() == expected);
    run(
        &device,
        id,
        COPY_TO_REGION,
        Some(&backwards),
        buffer.addr(),
        None,
        total,
    )?;
    check!(map.bytes() == pattern(1, 4 * PAGE));
    Ok(())
}

/// Any `skip` gives the same bytes as one copy in full.
fn continues_anywhere(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let (device, _) = Device::domain()?;
    let map = Map::filled(12 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    for round in 0..200 {
        let region = random(&mut rng, 12 * PAGE, false);
        let visited = places(&region);
        let total = visited.len();
        let user = reshape(&mut rng, total as u64, 16 * PAGE);
        if total > 16 * PAGE {
            continue;
        }
        let targets = places(&user);
        let skip = rng.index(total + 1);
        let buffer = Map::anon(16 * PAGE)?;
        let what = format!(
            "seed {}, round {round}, skip {skip}: {region:?}, {user:?}",
            context.seed
        );
        let done = device
            .strided(
                id,
                COPY_FROM_REGION,
                Some(&region),
                buffer.addr(),
                Some(&user),
                skip as u64,
            )
            .map_err(|errno| format!("{errno}: {what}"))?;
        check_eq!(done, (total - skip) as u64, "{what}");
        let mut expected = vec![0; 16 * PAGE];
        let bytes = map.bytes();
        for (r, u) in visited.iter().zip(&targets).skip(skip) {
            expected[*u as usize] = bytes[*r as usize];
        }
        check!(buffer.bytes() == expected, "{what}");
    }
    // Nothing is left beyond the end.
    let buffer = Map::anon(PAGE)?;
    let ten = layout(0, 10, &[]);
    check_eq!(
        device.strided(id, COPY_FROM_REGION, Some(&ten), buffer.addr(), None, 10)?,
        0
    );
    match device.strided(id, COPY_FROM_REGION, Some(&ten), buffer.addr(), None, 11) {
        Ok(0) | Err(Errno::EINVAL | Errno::ERANGE) => {}
        other => check!(false, "skip beyond the end: {other:?}"),
    }
    check_eq!(buffer.bytes(), vec![0; PAGE]);
    Ok(())
}

fn sizes_must_agree(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::anon(PAGE)?;
    let (six, eight) = (layout(0, 2, &[(3, 10)]), layout(0, 4, &[(2, 10)]));
    for (a, b) in [
        (six, eight),
        (eight, six),
        (layout(0, 0, &[]), six),
        (six, layout(0, 1, &[(0, 1)])),
    ] {
        for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
            check_err!(
                device.strided(id, flag, Some(&a), buffer.addr(), Some(&b), 0),
                EINVAL
            );
        }
    }
    check_err!(
        device.strided(id, 0, Some(&six), buffer.addr(), Some(&six), 0),
        EINVAL
    );
    let both = COPY_FROM_REGION | COPY_TO_REGION;
    check_err!(
        device.strided(id, both, Some(&six), buffer.addr(), Some(&six), 0),
        EINVAL
    );
    check_err!(
        device.strided(
            0,
            COPY_FROM_REGION,
            Some(&six),
            buffer.addr(),
            Some(&six),
            0
        ),
        ENOENT
    );
    check_eq!(buffer.bytes(), vec![0; PAGE]);
    check!(map.bytes() == pattern(1, PAGE));
    Ok(())
}

fn empty_layouts(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::anon(PAGE)?;
    let empties = [
        layout(0, 0, &[]),
        layout(0, 0, &[(5, 5)]),
        layout(0, 5, &[(0, 5)]),
        layout(0, 5, &[(3, 5), (0, 1 << 40), (7, 1)]),
        layout(0, 8, &[(0, i64::MAX)]),
    ];
    for empty in empties {
        for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
            let answer = device.strided(id, flag, Some(&empty), buffer.addr(), Some(&empty), 0);
            check_eq!(answer, Ok(0), "{empty:?}");
            check_eq!(
                device.strided(id, flag, Some(&empty), buffer.addr(), None, 0),
                Ok(0),
                "{empty:?}"
            );
        }
    }
    check_eq!(buffer.bytes(), vec![0; PAGE]);
    Ok(())
}

fn outside_the_region(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(3 * PAGE, 1)?;
    // Memory before and behind the region is ours, too, so nothing would fault.
    let id = device
        .publish(&[map.part(PAGE, 1000)], RIGHT_READ | RIGHT_WRITE)?
        .id;
    let buffer = Map::filled(PAGE, 2)?;
    let outside = [
        layout(-1, 1, &[]),
        layout(999, 2, &[]),
        layout(1000, 1, &[]),
        layout(0, 1001, &[]),
        layout(0, 1, &[(2, 1000)]),
        layout(10, 1, &[(2, -11)]),
        layout(500, 100, &[(2, 300), (2, 101)]),
        layout(500, 100, &[(2, -300), (2, -201)]),
        layout(i64::MIN, 1, &[]),
        layout(1 << 40, 1, &[]),
    ];
    for bad in outside {
        let size = places_len(&bad);
        for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
            let answer = device.strided(id, flag, Some(&bad), buffer.addr(), None, 0);
            check_err!(answer, ERANGE, "{size} bytes along {bad:?}");
        }
    }
    let whole = layout(0, 1001, &[]);
    let answer = device.strided(id, COPY_FROM_REGION, None, buffer.addr(), Some(&whole), 0);
    check_err!(
        answer,
        ERANGE | EINVAL,
        "contiguous, and longer than the region"
    );
    check!(map.bytes() == pattern(1, 3 * PAGE) && buffer.bytes() == pattern(2, PAGE));
    let fine = [
        layout(999, 1, &[(2, -999)]),
        layout(0, 1000, &[]),
        layout(0, 1, &[(2, 999)]),
    ];
    for good in fine {
        let answer = device.strided(id, COPY_FROM_REGION, Some(&good), buffer.addr(), None, 0);
        check_eq!(answer, Ok(places_len(&good)), "{good:?}");
    }
    Ok(())
}

fn places_len(layout: &Layout) -> u64 {
    let streams = &layout.streams[..layout.stream_count as usize];
    streams
        .iter()
        .fold(layout.block, |total, stream| total * stream.count)
}

fn too_many_streams(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let buffer = Map::anon(PAGE)?;
    for count in [MAX_STREAMS as u32 + 1, 100, u32::MAX] {
        let bad = Layout {
            block: 1,
            stream_count: count,
            streams: [Stream {
                count: 1,
                stride: 1,
            }; MAX_STREAMS],
            ..Default::default()
        };
        let good = layout(0, 1, &[]);
        let region = device.strided(
            id,
            COPY_FROM_REGION,
            Some(&bad),
            buffer.addr(),
            Some(&good),
            0,
        );
        check_err!(region, EINVAL);
        let caller = device.strided(
            id,
            COPY_FROM_REGION,
            Some(&good),
            buffer.addr(),
            Some(&bad),
            0,
        );
        check_err!(caller, EINVAL);
    }
    let six = layout(0, 1, &[(2, 1); MAX_STREAMS]);
    check_eq!(
        device.strided(id, COPY_FROM_REGION, Some(&six), buffer.addr(), None, 0)?,
        64
    );
    Ok(())
}

fn overflow(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::anon(PAGE)?;
    let bad = [
        layout(0, u64::MAX, &[]),
        layout(0, u64::MAX, &[(2, 1)]),
        layout(0, 1 << 32, &[(1 << 32, 0)]),
        layout(0, 1 << 62, &[(4, 0)]),
        layout(0, 1, &[(1 << 32, 1 << 32)]),
        layout(0, 1, &[(u64::MAX, 1)]),
        layout(0, 1, &[(u64::MAX, -1)]),
        layout(0, 1, &[(u64::MAX, i64::MIN)]),
        layout(0, 1, &[(3, i64::MAX)]),
        layout(i64::MAX, 2, &[]),
        layout(i64::MIN, 1, &[(2, -1)]),
        layout(0, 1, &[(1 << 40, 1 << 40), (1 << 40, 1 << 40)]),
    ];
    for bad in bad {
        for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
            let both = device.strided(id, flag, Some(&bad), buffer.addr(), Some(&bad), 0);
            check_err!(both, EINVAL | ERANGE, "{bad:?}");
            let region = device.strided(id, flag, Some(&bad), buffer.addr(), None, 0);
            check_err!(region, EINVAL | ERANGE, "{bad:?}");
            let caller = device.strided(id, flag, None, buffer.addr(), Some(&bad), 0);
            check_err!(caller, EINVAL | ERANGE | EFAULT, "{bad:?}");
        }
    }
    check_eq!(buffer.bytes(), vec![0; PAGE]);
    Ok(())
}

/// Nothing, very often.
fn zero_block_ends(context: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let buffer = Map::anon(PAGE)?;
    let nothing = [
        layout(0, 0, &[(1 << 60, 0)]),
        layout(0, 0, &[(1 << 20, 1), (1 << 20, 1), (1 << 20, 1)]),
        layout(0, 0, &[(u64::MAX, 0), (u64::MAX, 0), (u64::MAX, 0)]),
        layout(0, 1, &[(1 << 40, 0), (0, 0)]),
        layout(0, 1, &[(0, 0), (1 << 60, 0), (1 << 60, 0)]),
    ];
    for nothing in nothing {
        let start = Instant::now();
        let answer = device.strided(
            id,
            COPY_FROM_REGION,
            Some(&nothing),
            buffer.addr(),
            Some(&nothing),
            0,
        );
        check!(
            matches!(answer, Ok(0) | Err(Errno::EINVAL)),
            "{answer:?} for {nothing:?}"
        );
        check!(
            start.elapsed() < context.second(),
            "{:?} for {nothing:?}",
            start.elapsed()
        );
    }
    Ok(())
}

/// A tebibyte, one byte at a time: legal, and it must still listen to signals.
fn endless() -> Layout {
    layout(0, 1, &[(1 << 20, 0), (1 << 20, 0)])
}

fn endless_is_interruptible(context: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::anon(PAGE)?;
    let endless = endless();
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        for skip in [0, (1 << 40) - (1 << 30) + 3] {
            // Repeats, in case the first one comes before the copy has begun.
            sys::alarm(Duration::from_millis(50), Duration::from_millis(50))?;
            let start = Instant::now();
            let answer = device.strided(
                id,
                flag,
                Some(&endless),
                buffer.addr(),
                Some(&endless),
                skip,
            );
            let took = start.elapsed();
            sys::alarm(Duration::ZERO, Duration::ZERO)?;
            check!(took < context.limit(2), "a signal takes {took:?}");
            match answer {
                Ok(n) => check!(n > 0 && n < 1 << 40, "{n} bytes"),
                Err(errno) => check_eq!(errno, Errno::EINTR),
            }
        }
    }
    check_eq!(buffer.read(0, 1), map.read(0, 1));
    Ok(())
}

fn endless_is_killable(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let board = Board::new()?;
    let child = Child::spawn(|| {
        let peer = Device::member(key)?;
        let buffer = Map::anon(PAGE)?;
        let endless = endless();
        board.set(0, 1);
        let _ = peer.strided(
            id,
            COPY_FROM_REGION,
            Some(&endless),
            buffer.addr(),
            Some(&endless),
            0,
        );
        Ok(())
    })?;
    board.await_at_least(0, 1)?;
    std::thread::sleep(Duration::from_millis(30));
    child.kill_at_once(context)?;
    Ok(())
}

fn fault_half_way(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(8 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    // 100 bytes every 200: the third page is missing.
    let user = layout(0, 100, &[(150, 200)]);
    for flag in [COPY_FROM_REGION, COPY_TO_REGION] {
        map.write(0, &pattern(1, 8 * PAGE));
        let buffer = Map::filled(8 * PAGE, 2)?;
        buffer.unmap(2 * PAGE, PAGE)?;
        let reachable = places(&user)
            .iter()
            .take_while(|&&p| p < 2 * PAGE as i64)
            .count() as u64;
        let mut done = 0;
        let errno = loop {
            match device.strided(id, flag, None, buffer.addr(), Some(&user), done) {
                Ok(0) => check!(false, "success with nothing done at {done}"),
                Ok(n) => done += n,
                Err(Errno::EINTR) => {}
                Err(errno) => break errno,
            }
            check!(
                done <= reachable,
                "{done} bytes done, {reachable} can be reached"
            );
        };
        check_eq!((errno, done), (Errno::EFAULT, reachable));
        for (packed, place) in places(&user).into_iter().enumerate().take(done as usize) {
            let place = place as usize;
            check_eq!(buffer.read(place, 1), map.read(packed, 1), "byte {packed}");
        }
        let done = done as usize;
        if flag == COPY_TO_REGION {
            check!(map.read(done, 8 * PAGE - done) == pattern(1, 8 * PAGE)[done..]);
        }
        // Everything unreachable: nothing done.
        let missing = buffer.addr() + 2 * PAGE as u64;
        check_err!(
            device.strided(id, flag, None, missing, Some(&user), 0),
            EFAULT
        );
        check_err!(
            device.strided(id, flag, None, missing, Some(&user), 50),
            EFAULT
        );
    }
    Ok(())
}

fn counts_bytes(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::anon(PAGE)?;
    let rows = layout(0, 7, &[(11, 20)]);
    let before = Stats::read()?;
    device.strided(id, COPY_FROM_REGION, Some(&rows), buffer.addr(), None, 0)?;
    device.strided(id, COPY_TO_REGION, Some(&rows), buffer.addr(), None, 0)?;
    check_eq!(Stats::read()?.since(&before, "bytes_strided")?, 2 * 77);
    // A use is counted when the copy was complete.
    let rest = RegionCreate {
        rights: RIGHT_READ,
        uses: 2,
        ..Default::default()
    };
    let id = device.publish_with(&[map.piece()], rest)?.id;
    let flags = COPY_FROM_REGION | COPY_COUNT_USE;
    device.strided(id, flags, Some(&rows), buffer.addr(), None, 0)?;
    check_eq!(device.region_info(id)?.uses_left, 1);
    device.strided(id, flags, Some(&rows), buffer.addr(), None, 70)?;
    check_eq!(device.region_info(id)?.uses_left, 0);
    Ok(())
}

/// What it is for: a column of a matrix of doubles, many megabytes apart.
fn matrix_column(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let (rows, columns) = (1024, 1024);
    let map = Map::filled(rows * columns * 8, 1)?;
    let id = device.share(&map, RIGHT_READ)?;
    let buffer = Map::anon(3 * rows * 8)?;
    let three = layout(5 * 8, 3 * 8, &[(rows as u64, columns as i64 * 8)]);
    let total = (3 * rows * 8) as u64;
    run(
        &device,
        id,
        COPY_FROM_REGION,
        Some(&three),
        buffer.addr(),
        None,
        total,
    )?;
    for row in 0..rows {
        check_eq!(
            buffer.read(row * 24, 24),
            map.read((row * columns + 5) * 8, 24),
            "row {row}"
        );
    }
    Ok(())
}
