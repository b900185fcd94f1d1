// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests whose regions, owners or submitters go.

use std::fs;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;

use crate::abi::*;
use crate::death::soon;
use crate::device::{Answer, Device};
use crate::harness::{Context, Outcome, skip};
use crate::request_setup::{
    HANG_NS, LONG, PARAMETER, Pair, choose, modelled, request, software_engine, with_each,
};
use crate::rng::Rng;
use crate::sys::{self, Child, Map, SharedCounters, in_child};
use crate::{check, tests};

tests!(request:
    regions_go(60), owner_dies(60), owner_dies_at_the_very_end(60), submitter_dies(120),
    left_behind(60), storm(600),
);

/// Regions that are taken back, and memory that is unmapped, while the engine is at work.
fn regions_go(_: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, LONG)?;
        let id = pair.submit(&device)?;
        device.unpin(pair.source)?;
        device.unpin(pair.destination)?;
        device.complete(id)?;
        pair.check()?;
        let pair = Pair::new(&device, LONG)?;
        let id = pair.submit(&device)?;
        pair.from.unmap(0, LONG)?;
        pair.to.unmap(0, LONG)?;
        device.complete(id)?;
        Ok(())
    })
}

fn owner_dies(context: &Context) -> Outcome {
    with_each(|| {
        let (device, key) = Device::domain()?;
        let mut seen = 0;
        for round in 0..context.rounds(6, 2) {
            let counters = SharedCounters::new()?;
            let into_child = round % 2 == 0;
            let child = Child::spawn(|| {
                let own = Device::member(key)?;
                let map = Map::filled(LONG, 1)?;
                counters.set(0, own.share(&map, RIGHT_READ | RIGHT_WRITE)?.into());
                std::thread::sleep(Duration::from_secs(600));
                Ok(())
            })?;
            let theirs = counters.await_at_least(0, 1)? as u32;
            let map = Map::filled(LONG, 2)?;
            let mine = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
            let (from, to) = if into_child {
                (mine, theirs)
            } else {
                (theirs, mine)
            };
            let ids: Vec<u32> = (0..3)
                .map(|_| device.submit((from, 0), (to, 0), LONG as u64))
                .collect::<Answer<_>>()?;
            child.kill()?;
            for id in ids {
                match device.complete(id) {
                    Ok(()) => {}
                    Err(Errno::EOWNERDEAD) => seen += 1,
                    other => check!(false, "{other:?}"),
                }
            }
            soon(context, || {
                matches!(device.submit((from, 0), (to, 0), 8), Err(Errno::EOWNERDEAD))
            })?;
            device.unpin(mine)?;
        }
        check!(seen > 0, "every request was done before its owner died");
        Ok(())
    })
}

fn submitter_dies(context: &Context) -> Outcome {
    with_each(|| {
        let (device, key) = Device::domain()?;
        let pair = Pair::new(&device, LONG / 4)?;
        for round in 0..8 {
            let counters = SharedCounters::new()?;
            let child = Child::spawn(|| {
                let own = Device::member(key)?;
                for _ in 0..4 {
                    counters.set(0, pair.submit(&own)?.into());
                }
                counters.set(1, 1);
                let _ = own.switch(counters.get(0) as u32, 0);
                std::thread::sleep(Duration::from_secs(600));
                Ok(())
            })?;
            counters.await_at_least(1, 1)?;
            let id = counters.get(0) as u32;
            std::thread::sleep(Duration::from_millis(round));
            child.kill()?;
            // It ends for those who wait for it, too.
            match device.await_request(id, 0, HANG_NS).0 {
                Ok(()) | Err(Errno::ECANCELED | Errno::ENOENT) => {}
                other => check!(false, "{other:?}"),
            }
            soon(context, || {
                matches!(device.request_info(id), Err(Errno::ENOENT))
            })?;
        }
        Ok(())
    })
}

/// Everything ends while requests run, in every order that a program may choose.
fn left_behind(context: &Context) -> Outcome {
    with_each(|| {
        for way in 0..4 {
            in_child(|| {
                let (device, _) = Device::domain()?;
                let pair = Pair::new(&device, LONG)?;
                for _ in 0..context.rounds(5, 2) {
                    pair.submit(&device)?;
                }
                match way {
                    0 => drop(device),
                    1 => device.leave()?,
                    2 => {
                        let extra = sys::duplicate(device.as_fd(), false)?;
                        drop(device);
                        drop(extra);
                    }
                    _ => sys::exit(0),
                }
                Ok(())
            })
            .or_else(|stop| match (way, stop) {
                // It exits without a report.
                (3, _) => Ok(()),
                (_, stop) => Err(stop),
            })?;
        }
        Ok(())
    })
}

/// The owner of the source dies when its bytes are all in place and a CPU, which took over,
/// compares checksums: the request ends well, and nothing of it is left.
fn owner_dies_at_the_very_end(_: &Context) -> Outcome {
    if modelled() {
        return skip("needs kernel threads, which the run without copy engines has");
    }
    let mut in_time = 0;
    for _ in 0..2 {
        let _chosen = choose(software_engine())?;
        let (device, key) = Device::domain()?;
        let counters = SharedCounters::new()?;
        let owner = Child::spawn(|| {
            let own = Device::member(key)?;
            let map = Map::filled(LONG, 5)?;
            counters.set(0, own.share(&map, RIGHT_READ)?.into());
            std::thread::sleep(Duration::from_secs(3600));
            Ok(())
        })?;
        let source = counters.await_at_least(0, 1)? as u32;
        let to = Map::anon(LONG)?;
        let destination = device.share(&to, RIGHT_WRITE)?;
        let id = device
            .submit_with(RequestSubmit {
                flags: SUBMIT_VERIFY,
                ..request((source, 0), (destination, 0), LONG as u64)
            })?
            .id;
        fs::write(PARAMETER, "off")?;
        // The next call finds that the engine is to be given back.
        Device::open()?.info()?;
        while device.request_info(id)?.done < LONG as u64 {
            std::thread::yield_now();
        }
        owner.kill()?;
        in_time += u32::from(device.request_info(id)?.state == REQUEST_RUNNING);
        // There is nothing to help with, which is no reason to fail.
        let (answer, left) = device.switch(id, SWITCH_HELP | SWITCH_NO_WAIT);
        check!(
            matches!(answer, Ok(()) | Err(Errno::ETIMEDOUT)),
            "{answer:?} {left:?}"
        );
        device.complete(id)?;
        check!(to.bytes() == crate::rng::pattern(5, LONG), "bytes differ");
        device.unpin(destination)?;
    }
    print!("[{in_time} of 2 in time] ");
    Ok(())
}

/// Submits, switches, waits and cancels at random, in a domain that others do the same in, until
/// somebody kills it.
pub fn restless(seed: u64, key: [u8; 16]) -> Outcome {
    let mut rng = Rng::new(seed);
    let own = Device::member(key)?;
    let pair = Pair::new(&own, 2 << 20)?;
    loop {
        let length = 1 + rng.index(2 << 20);
        let submitted = own.submit_with(RequestSubmit {
            fragment_pages: 1 << rng.index(5),
            flags: if rng.one_in(6) { SUBMIT_VERIFY } else { 0 },
            ..request((pair.source, 0), (pair.destination, 0), length as u64)
        });
        let id = match submitted {
            Ok(answer) => answer.id,
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        match rng.index(4) {
            0 => {
                own.cancel(id)?;
                continue;
            }
            1 => own.switch(id, 0).0?,
            _ => {}
        }
        own.complete(id)?;
        check!(
            pair.to.read(0, length) == pair.from.read(0, length),
            "seed {seed}: bytes differ"
        );
        let fresh = !rng.word() as u8;
        pair.to.fill(fresh);
    }
}

/// Processes that are killed at random.
fn storm(context: &Context) -> Outcome {
    with_each(|| {
        let (_device, key) = Device::domain()?;
        let mut rng = context.rng();
        let mut living = Vec::new();
        for _ in 0..context.kills {
            while living.len() < 5 {
                let seed = rng.word();
                living.push(Child::spawn(|| restless(seed, key))?);
            }
            std::thread::sleep(Duration::from_millis(rng.index(30) as u64));
            living.swap_remove(rng.index(living.len())).kill()?;
        }
        for child in living {
            child.kill()?;
        }
        Ok(())
    })
}
