// SPDX-License-Identifier: MIT OR Apache-2.0

//! Expected uses: counted down by copies and by hand, waited for, polled for.

use std::os::fd::AsFd;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::death::soon;
use crate::device::Device;
use crate::harness::{Context, Outcome};
use crate::kernel::Stats;
use crate::sys::{self, Child, Map, PAGE, SharedCounters, in_child};
use crate::{check, check_eq, check_err, tests};

tests!(uses:
    copies_count, only_complete_copies_count, by_hand, more_copies_than_uses, wait_returns_at_zero,
    wait_without_uses, wait_times_out, wait_for_ever, wait_destroys, wait_destroys_not_on_timeout,
    several_waiters, readiness, readiness_is_per_file, signal_interrupts, killed_while_waiting,
    destroyed_while_waiting, member_dies, member_leaves, inheriting_member_dies,
    member_death_of_another_domain,
);

fn expecting(device: &Device, map: &Map, uses: u32) -> Result<u32, Errno> {
    let rest = RegionCreate {
        rights: RIGHT_READ | RIGHT_WRITE,
        uses,
        ..Default::default()
    };
    device
        .publish_with(&[map.piece()], rest)
        .map(|region| region.id)
}

fn copies_count(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let id = expecting(&device, &map, 3)?;
    in_child(|| {
        let peer = Device::member(key)?;
        let buffer = Map::anon(PAGE)?;
        let piece = [buffer.piece()];
        peer.copy(id, COPY_FROM_REGION, 0, 8, &piece)?;
        check_eq!(peer.region_info(id)?.uses_left, 3);
        peer.copy(id, COPY_FROM_REGION | COPY_COUNT_USE, 0, 8, &piece)?;
        check_eq!(peer.region_info(id)?.uses_left, 2);
        peer.copy(id, COPY_TO_REGION | COPY_COUNT_USE, 0, 8, &piece)?;
        check_eq!(peer.region_info(id)?.uses_left, 1);
        peer.copy(id, COPY_FROM_REGION | COPY_COUNT_USE, 0, 0, &[])?;
        check_eq!(peer.region_info(id)?.uses_left, 0);
        peer.leave()?;
        Ok(())
    })?;
    check_eq!(device.wait(id, 0, 0).0, Ok(()));
    Ok(())
}

fn only_complete_copies_count(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(2 * PAGE)?;
    let id = expecting(&device, &map, 5)?;
    let buffer = Map::anon(2 * PAGE)?;
    let piece = [buffer.piece()];
    let flags = COPY_FROM_REGION | COPY_COUNT_USE;
    check_err!(
        device.copy(id, flags, 0, 3 * PAGE as u64, &piece),
        ERANGE | EINVAL
    );
    check_err!(
        device.copy(id, flags, 0, 8, &[Piece { base: 8, len: 8 }]),
        EFAULT
    );
    buffer.unmap(PAGE, PAGE)?;
    let done = device.copy(id, flags, 0, 2 * PAGE as u64, &piece)?;
    check!(done < 2 * PAGE as u64);
    check_eq!(device.region_info(id)?.uses_left, 5);
    // The rest, elsewhere, completes it.
    let other = Map::anon(2 * PAGE)?;
    device.copy(id, flags, done, 2 * PAGE as u64 - done, &[other.piece()])?;
    check_eq!(device.region_info(id)?.uses_left, 4);
    Ok(())
}

fn by_hand(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let id = expecting(&device, &map, 10)?;
    check_eq!(device.count_down(id, 1)?, 9);
    check_eq!(device.count_down(id, 4)?, 5);
    check_err!(device.count_down(id, 0), EINVAL);
    check_err!(device.count_down(id, 6), EINVAL);
    check_err!(device.count_down(id, u32::MAX), EINVAL);
    check_eq!(device.region_info(id)?.uses_left, 5);
    check_eq!(device.count_down(id, 5)?, 0);
    check_err!(device.count_down(id, 1), EINVAL);
    let none = expecting(&device, &map, 0)?;
    check_err!(device.count_down(none, 1), EINVAL);
    check_err!(device.count_down(0, 1), ENOENT);
    check_err!(device.count_down(u32::MAX, 1), ENOENT);
    Ok(())
}

fn more_copies_than_uses(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let buffer = Map::anon(PAGE)?;
    for uses in [0, 1] {
        let id = expecting(&device, &map, uses)?;
        for _ in 0..3 {
            let flags = COPY_FROM_REGION | COPY_COUNT_USE;
            let _ = device.copy(id, flags, 0, 8, &[buffer.piece()]);
        }
        check_eq!(
            device.region_info(id)?.uses_left,
            0,
            "the count must not wrap"
        );
    }
    Ok(())
}

fn wait_returns_at_zero(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = expecting(&device, &map, 4)?;
    let counters = SharedCounters::new()?;
    let children: Vec<Child> = (0..4)
        .map(|n| {
            let counters = &counters;
            Child::spawn(move || {
                let peer = Device::member(key)?;
                let buffer = Map::anon(PAGE)?;
                counters.bump(1);
                counters.await_at_least(0, 1)?;
                std::thread::sleep(Duration::from_millis(20 * n));
                counters.bump(2);
                peer.copy(
                    id,
                    COPY_FROM_REGION | COPY_COUNT_USE,
                    0,
                    64,
                    &[buffer.piece()],
                )?;
                peer.leave()?;
                Ok(())
            })
        })
        .collect::<Outcome<_>>()?;
    counters.await_at_least(1, 4)?;
    counters.set(0, 1);
    let (answer, left) = device.wait(id, 0, 20_000_000_000);
    check_eq!(answer, Ok(()));
    check_eq!(counters.get(2), 4, "it returned before the last use");
    check_eq!(left.uses_left, 0);
    check!(
        (1..20_000_000_000).contains(&left.timeout_ns),
        "{} ns left",
        left.timeout_ns
    );
    for child in children {
        child.join()?;
    }
    Ok(())
}

fn wait_without_uses(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let id = expecting(&device, &map, 0)?;
    check_err!(device.wait(id, 0, -1).0, EINVAL);
    check_err!(device.wait(0, 0, -1).0, ENOENT);
    check_err!(device.wait(id + 1, 0, -1).0, ENOENT);
    check_err!(device.wait(u32::MAX, 0, 0).0, ENOENT);
    Ok(())
}

fn wait_times_out(context: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let id = expecting(&device, &map, 2)?;
    device.count_down(id, 1)?;
    for timeout in [0, 1, 1_000, 50_000_000] {
        let start = Instant::now();
        let (answer, left) = device.wait(id, 0, timeout);
        let took = start.elapsed();
        check_eq!(answer, Err(Errno::ETIMEDOUT));
        check!(
            took >= Duration::from_nanos(timeout as u64),
            "{timeout} ns took {took:?}"
        );
        check!(took < context.limit(5), "{timeout} ns took {took:?}");
        check_eq!(left.timeout_ns, 0, "what is left of {timeout} ns");
        check_eq!(left.uses_left, 1);
    }
    Ok(())
}

fn wait_for_ever(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    for timeout in [-1, i64::MIN, i64::MAX] {
        let id = expecting(&device, &map, 1)?;
        std::thread::scope(|scope| -> Outcome {
            let waiting = scope.spawn(|| device.wait(id, 0, timeout));
            std::thread::sleep(Duration::from_millis(50));
            check!(!waiting.is_finished(), "timeout {timeout}: it did not wait");
            device.count_down(id, 1)?;
            let (answer, left) = waiting.join().map_err(|_| "panic".to_owned())?;
            check_eq!(answer, Ok(()));
            if timeout < 0 {
                check_eq!(left.timeout_ns, timeout);
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn wait_destroys(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let before = Stats::read()?;
    let id = expecting(&device, &map, 1)?;
    device.count_down(id, 1)?;
    check_eq!(device.wait(id, WAIT_DESTROY, -1).0, Ok(()));
    check_err!(device.region_info(id), ENOENT);
    let after = Stats::read()?;
    check_eq!(after.since(&before, "regions")?, 0);
    // Its pages are kept for reuse.
    check_eq!(after.since(&before, "unpins")?, 0);
    let again = device.publish(&[map.piece()], RIGHT_READ | RIGHT_WRITE)?;
    check_eq!(again.result & RESULT_REUSED, RESULT_REUSED);
    Ok(())
}

fn wait_destroys_not_on_timeout(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::filled(PAGE, 1)?;
    let id = expecting(&device, &map, 1)?;
    check_err!(device.wait(id, WAIT_DESTROY, 1_000_000).0, ETIMEDOUT);
    check_eq!(device.region_info(id)?.uses_left, 1);
    // Somebody else may wait, but not take the owner's region away.
    in_child(|| {
        let peer = Device::member(key)?;
        check_err!(peer.wait(id, WAIT_DESTROY, 0).0, EPERM | ETIMEDOUT);
        peer.count_down(id, 1)?;
        check_eq!(peer.wait(id, 0, 0).0, Ok(()));
        let _ = peer.wait(id, WAIT_DESTROY, 0);
        peer.leave()?;
        Ok(())
    })?;
    check!(
        device.region_info(id).is_ok(),
        "a peer destroyed the region by waiting"
    );
    Ok(())
}

fn several_waiters(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let ids = [expecting(&device, &map, 1)?, expecting(&device, &map, 1)?];
    let counters = SharedCounters::new()?;
    let children: Vec<Child> = (0..6)
        .map(|n| {
            let (counters, id) = (&counters, ids[n % 2]);
            Child::spawn(move || {
                let peer = Device::member(key)?;
                counters.bump(0);
                let (answer, _) = peer.wait(id, 0, 20_000_000_000);
                counters.bump(1 + n % 2);
                check_eq!(answer, Ok(()));
                peer.leave()?;
                Ok(())
            })
        })
        .collect::<Outcome<_>>()?;
    counters.await_at_least(0, 6)?;
    std::thread::sleep(Duration::from_millis(50));
    check_eq!((counters.get(1), counters.get(2)), (0, 0));
    device.count_down(ids[0], 1)?;
    counters.await_at_least(1, 3)?;
    check_eq!(counters.get(2), 0, "waiters for another region");
    device.count_down(ids[1], 1)?;
    for child in children {
        child.join()?;
    }
    Ok(())
}

fn readiness(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let ready = |timeout: u64| {
        sys::poll(device.as_fd(), libc::POLLIN, Duration::from_millis(timeout))
            .map(|events| events & libc::POLLIN != 0)
    };
    check!(!ready(0)?, "nothing was published");
    let id = expecting(&device, &map, 2)?;
    let _without = expecting(&device, &map, 0)?;
    check!(!ready(0)?, "uses are outstanding");
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        let peer = Device::member(key)?;
        peer.count_down(id, 1)?;
        counters.set(0, 1);
        counters.await_at_least(1, 1)?;
        std::thread::sleep(Duration::from_millis(100));
        peer.count_down(id, 1)?;
        peer.leave()?;
        Ok(())
    })?;
    counters.await_at_least(0, 1)?;
    check!(!ready(0)?, "one use is outstanding");
    counters.set(1, 1);
    // Looks once more when the time is up: longer than this test may take.
    check!(ready(600_000)?, "poll was not woken");
    check!(ready(0)?, "a completed region stays reported");
    child.join()?;
    device.destroy(id)?;
    check!(!ready(0)?, "the completed region is gone");
    let id = expecting(&device, &map, 1)?;
    device.count_down(id, 1)?;
    check!(ready(0)?);
    device.wait(id, WAIT_DESTROY, 0).0?;
    check!(!ready(0)?, "destroyed by waiting");
    Ok(())
}

fn readiness_is_per_file(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let other = Device::member(key)?;
    let map = Map::anon(PAGE)?;
    let id = expecting(&device, &map, 1)?;
    other.count_down(id, 1)?;
    check!(sys::poll(device.as_fd(), libc::POLLIN, Duration::ZERO)? & libc::POLLIN != 0);
    check!(sys::poll(other.as_fd(), libc::POLLIN, Duration::ZERO)? & libc::POLLIN == 0);
    Ok(())
}

fn signal_interrupts(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let id = expecting(&device, &map, 1)?;
    sys::alarm(Duration::from_millis(50), Duration::from_millis(50))?;
    let mut timeout = 400_000_000;
    let mut interrupted = 0;
    let start = Instant::now();
    loop {
        let (answer, left) = device.wait(id, 0, timeout);
        match answer {
            Err(Errno::EINTR) => {
                interrupted += 1;
                check!(
                    left.timeout_ns < timeout,
                    "{} of {timeout} ns left",
                    left.timeout_ns
                );
                check!(left.timeout_ns >= 0);
                timeout = left.timeout_ns;
            }
            Err(Errno::ETIMEDOUT) => break,
            other => check!(false, "{other:?}"),
        }
    }
    sys::alarm(Duration::ZERO, Duration::ZERO)?;
    check!(interrupted >= 2, "{interrupted} interruptions");
    // Repeating the call does not start the time anew.
    let took = start.elapsed();
    check!(
        took >= Duration::from_millis(390) && took < Duration::from_secs(5),
        "{took:?}"
    );
    Ok(())
}

fn killed_while_waiting(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let id = expecting(&device, &map, 1)?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        let peer = Device::member(key)?;
        counters.set(0, 1);
        let _ = peer.wait(id, 0, -1);
        counters.set(1, 1);
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    })?;
    counters.await_at_least(0, 1)?;
    std::thread::sleep(Duration::from_millis(50));
    check_eq!(counters.get(1), 0, "it did not wait");
    child.kill_at_once(context)?;
    Ok(())
}

fn destroyed_while_waiting(context: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let id = expecting(&device, &map, 1)?;
    std::thread::scope(|scope| -> Outcome {
        let waiting = scope.spawn(|| device.wait(id, 0, 10_000_000_000).0);
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        device.destroy(id)?;
        let answer = waiting.join().map_err(|_| "panic".to_owned())?;
        check_err!(answer, ENOENT, "the region that is waited for is destroyed");
        check!(
            start.elapsed() < context.second(),
            "woken after {:?}",
            start.elapsed()
        );
        Ok(())
    })
}

/// Kills a member; members that wait must be told within a second.
fn kill_and_hear<T>(
    context: &Context,
    member: Child,
    waiting: ScopedJoinHandle<'_, T>,
) -> Outcome<T> {
    let start = Instant::now();
    member.kill()?;
    let heard = waiting.join().map_err(|_| "panic".to_owned())?;
    let took = start.elapsed();
    check!(took < context.second(), "told after {took:?}");
    Ok(heard)
}

/// A member in a process of its own, until it is killed or told to leave.
fn bystander(key: [u8; 16], counters: &SharedCounters) -> Outcome<Child> {
    let child = Child::spawn(move || {
        let peer = Device::member(key)?;
        counters.set(0, 1);
        counters.await_at_least(1, 1)?;
        peer.leave()?;
        Ok(())
    })?;
    counters.await_at_least(0, 1)?;
    Ok(child)
}

fn member_dies(context: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let id = expecting(&device, &map, 1)?;
    let counters = SharedCounters::new()?;
    let child = bystander(key, &counters)?;
    let before = Stats::read()?;
    std::thread::scope(|scope| -> Outcome {
        let waiting = scope.spawn(|| device.wait(id, 0, 20_000_000_000));
        std::thread::sleep(Duration::from_millis(100));
        check!(!waiting.is_finished(), "it did not wait");
        let (answer, left) = kill_and_hear(context, child, waiting)?;
        check_err!(answer, ECONNRESET);
        check_eq!(left.uses_left, 1);
        Ok(())
    })?;
    check_eq!(Stats::read()?.since(&before, "member_deaths")?, 1);
    Ok(())
}

fn inheriting_member_dies(context: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let id = expecting(&device, &map, 1)?;
    let counters = SharedCounters::new()?;
    let child = Child::spawn(|| {
        // Using the inherited file makes it a member.
        device.region_info(id)?;
        device.fetch(id, 8)?;
        counters.set(0, 1);
        std::thread::sleep(Duration::from_secs(600));
        Ok(())
    })?;
    counters.await_at_least(0, 1)?;
    std::thread::scope(|scope| -> Outcome {
        let waiting = scope.spawn(|| device.wait(id, 0, 20_000_000_000));
        std::thread::sleep(Duration::from_millis(100));
        let (answer, _) = kill_and_hear(context, child, waiting)?;
        check_err!(answer, ECONNRESET);
        Ok(())
    })
}

fn member_leaves(_: &Context) -> Outcome {
    let (device, key) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let id = expecting(&device, &map, 1)?;
    let counters = SharedCounters::new()?;
    let child = bystander(key, &counters)?;
    let before = Stats::read()?;
    std::thread::scope(|scope| -> Outcome {
        let waiting = scope.spawn(|| device.wait(id, 0, 20_000_000_000).0);
        std::thread::sleep(Duration::from_millis(50));
        counters.set(1, 1);
        child.join()?;
        std::thread::sleep(Duration::from_millis(300));
        check!(
            !waiting.is_finished(),
            "leaving in good order woke the waiter"
        );
        device.count_down(id, 1)?;
        check_eq!(waiting.join().map_err(|_| "panic".to_owned())?, Ok(()));
        Ok(())
    })?;
    check_eq!(Stats::read()?.since(&before, "member_deaths")?, 0);
    Ok(())
}

fn member_death_of_another_domain(context: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let (_other, key) = Device::domain()?;
    let map = Map::anon(PAGE)?;
    let id = expecting(&device, &map, 1)?;
    let counters = SharedCounters::new()?;
    let child = bystander(key, &counters)?;
    let before = Stats::read()?;
    std::thread::scope(|scope| -> Outcome {
        let waiting = scope.spawn(|| device.wait(id, 0, 20_000_000_000).0);
        std::thread::sleep(Duration::from_millis(50));
        child.kill()?;
        soon(context, || {
            Stats::read()
                .and_then(|now| now.since(&before, "member_deaths"))
                .is_ok_and(|n| n == 1)
        })?;
        std::thread::sleep(Duration::from_millis(100));
        check!(!waiting.is_finished(), "somebody of another domain died");
        device.count_down(id, 1)?;
        check_eq!(waiting.join().map_err(|_| "panic".to_owned())?, Ok(()));
        Ok(())
    })
}
