// SPDX-License-Identifier: MIT OR Apache-2.0

//! Third-party copies: between two regions, neither of them the caller's.

use std::time::Duration;

use nix::errno::Errno;

use crate::abi::*;
use crate::copy::Long;
use crate::device::Device;
use crate::harness::{Context, Outcome};
use crate::kernel::Stats;
use crate::region::Scattered;
use crate::rng::pattern;
use crate::sys::{self, Board, Child, Map, PAGE, in_child};
use crate::{check, check_eq, check_err, tests};

tests!(transfer:
    between_two_others, random(60), rights, overlap, beyond_the_end, no_such_region, counts_uses,
    interrupted(60), guarded_destination, dead_owner,
);

fn between_two_others(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let board = Board::new()?;
    let owner = |slot: usize, seed: u64| {
        let board = &board;
        Child::spawn(move || {
            let own = Device::member(key)?;
            let map = Map::filled(8 * PAGE, seed)?;
            let id = own
                .publish(&[map.part(slot * 11, 7 * PAGE)], RIGHT_READ | RIGHT_WRITE)?
                .id;
            board.set(slot, id.into());
            board.await_at_least(9, 1)?;
            if slot == 2 {
                let mut expected = pattern(2, 8 * PAGE);
                expected[22 + 100..22 + 100 + 20_000]
                    .copy_from_slice(&pattern(1, 8 * PAGE)[11 + 3..11 + 3 + 20_000]);
                check!(map.bytes() == expected, "the destination is wrong");
            } else {
                check!(
                    map.bytes() == pattern(1, 8 * PAGE),
                    "the source has changed"
                );
            }
            Ok(())
        })
    };
    let children = [owner(1, 1)?, owner(2, 2)?];
    let source = board.await_at_least(1, 1)? as u32;
    let destination = board.await_at_least(2, 1)? as u32;
    let before = Stats::read()?;
    check_eq!(
        device.transfer((source, 3), (destination, 100), 20_000, 0)?,
        20_000
    );
    check_eq!(Stats::read()?.since(&before, "bytes_transfer")?, 20_000);
    board.set(9, 1);
    for child in children {
        child.join()?;
    }
    Ok(())
}

fn random(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let (device, _) = Device::domain()?;
    for _ in 0..150 {
        let pair = Scattered::new(&device, &mut rng, 16, 2 * PAGE)?;
        let length = pair.length as u64;
        check_eq!(
            device.transfer(pair.source_at, pair.target_at, length, 0)?,
            length
        );
        pair.check(&device, context.seed)?;
    }
    Ok(())
}

fn rights(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let maps = [Map::filled(PAGE, 1)?, Map::filled(PAGE, 2)?];
    let (r, w) = (
        device.share(&maps[0], RIGHT_READ)?,
        device.share(&maps[1], RIGHT_WRITE)?,
    );
    in_child(|| {
        let peer = Device::member(key)?;
        check_eq!(peer.transfer((r, 0), (w, 0), 8, 0)?, 8);
        check_err!(peer.transfer((w, 0), (r, 0), 8, 0), EACCES);
        check_err!(peer.transfer((r, 0), (r, 100), 8, 0), EACCES);
        check_err!(peer.transfer((w, 0), (w, 100), 8, 0), EACCES);
        Ok(())
    })?;
    check!(maps[0].bytes() == pattern(1, PAGE));
    Ok(())
}

fn overlap(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    check_err!(device.transfer((id, 0), (id, 0), 8, 0), EINVAL);
    check_err!(device.transfer((id, 0), (id, 7), 8, 0), EINVAL);
    check_err!(device.transfer((id, 7), (id, 0), 8, 0), EINVAL);
    check_eq!(device.transfer((id, 0), (id, 8), 8, 0)?, 8);
    check_eq!(device.transfer((id, 8), (id, 0), 8, 0)?, 8);
    check_eq!(
        device.transfer((id, 100), (id, 2 * PAGE as u64), PAGE as u64, 0)?,
        PAGE as u64
    );
    check!(map.read(2 * PAGE, PAGE) == map.read(100, PAGE));
    check_eq!(device.transfer((id, 5), (id, 5), 0, 0)?, 0);
    Ok(())
}

fn beyond_the_end(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let maps = [Map::filled(PAGE, 1)?, Map::filled(2 * PAGE, 2)?];
    let rights = RIGHT_READ | RIGHT_WRITE;
    let (a, b) = (
        device.share(&maps[0], rights)?,
        device.share(&maps[1], rights)?,
    );
    let page = PAGE as u64;
    check_err!(device.transfer((a, 0), (b, 0), page + 1, 0), ERANGE);
    check_err!(device.transfer((b, 0), (a, 0), page + 1, 0), ERANGE);
    check_err!(device.transfer((a, 1), (b, 0), page, 0), ERANGE);
    check_err!(device.transfer((a, 0), (b, 2 * page), 1, 0), ERANGE);
    check_err!(device.transfer((a, u64::MAX), (b, 0), 1, 0), ERANGE);
    check_err!(device.transfer((a, 0), (b, u64::MAX), 1, 0), ERANGE);
    check_err!(device.transfer((a, 0), (b, 0), u64::MAX, 0), ERANGE);
    check_eq!(device.transfer((a, page), (b, 2 * page), 0, 0)?, 0);
    check!(maps[1].bytes() == pattern(2, 2 * PAGE));
    Ok(())
}

fn no_such_region(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    for wrong in [0, id + 1, MAX_REGION_ID, u32::MAX] {
        check_err!(device.transfer((wrong, 0), (id, 0), 8, 0), ENOENT);
        check_err!(device.transfer((id, 0), (wrong, 0), 8, 0), ENOENT);
    }
    Ok(())
}

fn counts_uses(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let maps = [Map::anon(PAGE)?, Map::anon(PAGE)?];
    let expecting = |map: &Map, uses| {
        let rest = RegionCreate {
            rights: RIGHT_READ | RIGHT_WRITE,
            uses,
            ..Default::default()
        };
        device
            .publish_with(&[map.piece()], rest)
            .map(|region| region.id)
    };
    let (a, b, c) = (
        expecting(&maps[0], 2)?,
        expecting(&maps[1], 3)?,
        expecting(&maps[1], 0)?,
    );
    device.transfer((a, 0), (b, 0), 8, COPY_COUNT_USE)?;
    device.transfer((a, 0), (b, 0), 8, 0)?;
    check_eq!(device.region_info(a)?.uses_left, 1);
    check_eq!(device.region_info(b)?.uses_left, 2);
    device.transfer((a, 0), (c, 0), 8, COPY_COUNT_USE)?;
    check_eq!(device.region_info(a)?.uses_left, 0);
    check_eq!(device.wait(a, 0, 0).0, Ok(()));
    check_err!(device.wait(b, 0, 0).0, ETIMEDOUT);
    Ok(())
}

fn interrupted(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let source = Map::filled(Long::CHUNK, 1)?;
    let (target, pieces) = Long::target(32)?;
    let a = device.publish(&vec![source.piece(); 32], RIGHT_READ)?;
    let b = device.publish(&pieces, RIGHT_WRITE)?;
    sys::alarm(Duration::from_millis(3), Duration::from_millis(7))?;
    let (mut done, mut partial) = (0, 0);
    while done < a.length {
        match device.transfer((a.id, done), (b.id, done), a.length - done, 0) {
            Ok(0) => check!(false, "success with nothing done"),
            Ok(n) => {
                done += n;
                partial += u32::from(done < a.length);
            }
            Err(Errno::EINTR) => {}
            Err(errno) => check!(false, "{errno} at {done}"),
        }
    }
    sys::alarm(Duration::ZERO, Duration::ZERO)?;
    check!(
        partial > 0,
        "no signal interrupted a transfer of {} bytes",
        a.length
    );
    check!(target.read(Long::SKEW, Long::CHUNK) == source.bytes());
    Ok(())
}

/// A destination that its owner guards with PROT_NONE can be filled all the same: it is pinned.
fn guarded_destination(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let source = Map::filled(4 * PAGE, 1)?;
    let a = device.share(&source, RIGHT_READ)?;
    let target = Map::anon(4 * PAGE)?;
    target.fill(9);
    let b = device.share(&target, RIGHT_WRITE)?;
    target.protect(0, 4 * PAGE, libc::PROT_NONE)?;
    in_child(|| {
        check_eq!(
            Device::member(key)?.transfer((a, 0), (b, 0), 4 * PAGE as u64, 0)?,
            4 * PAGE as u64
        );
        Ok(())
    })?;
    target.protect(0, 4 * PAGE, sys::RW)?;
    check!(target.bytes() == source.bytes());
    Ok(())
}

fn dead_owner(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let mine = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let board = Board::new()?;
    let child = Child::spawn(|| {
        let own = Device::member(key)?;
        let map = Map::filled(PAGE, 2)?;
        board.set(0, own.share(&map, RIGHT_READ | RIGHT_WRITE)?.into());
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    })?;
    let theirs = board.await_at_least(0, 1)? as u32;
    check_eq!(device.transfer((theirs, 0), (mine, 0), 8, 0)?, 8);
    child.kill()?;
    crate::death::soon(context, || {
        matches!(
            device.transfer((theirs, 0), (mine, 0), 8, 0),
            Err(Errno::EOWNERDEAD)
        )
    })?;
    check_err!(device.transfer((mine, 0), (theirs, 0), 8, 0), EOWNERDEAD);
    Ok(())
}
