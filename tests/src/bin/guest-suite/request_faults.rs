// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests and engines where they were once wrong: each test fails without the rule that it names.

use std::cell::Cell;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::device::{Answer, Device};
use crate::harness::{Context, Outcome, is_clock_counted, skip};
use crate::kernel::Stats;
use crate::request_setup::{
    IOATDMA, Pair, Parameter, Table, all_in_service, ask, choose, modelled, request, with_each,
    with_each_engine,
};
use crate::sys::{self, Child, Map, PAGE, SharedCounters};
use crate::{check, check_eq, check_err, tests};

tests!(request:
    proven_01_unbind_does_not_deadlock(240),
    proven_02_many_requests_do_not_stop_a_cpu(240),
    proven_03_a_slot_belongs_to_its_request(120),
    proven_07_release_forgets_only_what_has_ended(120),
    proven_10_state_is_published_last(120),
    requests_of_a_user_are_limited, a_full_ring_is_no_fault(240), verification_is_cancelled(120),
);

/// All engines together at most so fast; without a limit again in the end.
struct Slow;

impl Slow {
    fn new(bytes: u64) -> Outcome<Self> {
        ask(&[&format!("bandwidth * {bytes}")])?;
        Ok(Self)
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = ask(&["bandwidth * max"]);
    }
}

/// No fragment is given up because a machine is slow: one that does not end hangs the test.
fn patient(context: &Context) -> Outcome<Parameter> {
    Parameter::set("engine_deadline_ms", 60_000 * context.scale)
}

/// The PCI address of a channel that somebody has acquired.
fn acquired() -> Outcome<String> {
    for entry in fs::read_dir("/sys/class/dma")? {
        let channel = entry?.path();
        let clients = fs::read_to_string(channel.join("in_use"))?;
        if clients.trim() != "0" {
            let device = fs::canonicalize(channel.join("device"))?;
            let name = device.file_name().map(|name| name.to_string_lossy());
            return Ok(name.unwrap_or_default().into_owned());
        }
    }
    Err("no channel is in use".to_owned().into())
}

/// Channels are acquired while another channel's device loses its driver: who acquires one holds
/// its lock and asks for the device, the notifier looks at both.
///
/// The deadlock itself needs luck. A kernel that checks the order of locks (`scripts/test --only
/// proven --debug`) reports the wrong order in the first round, whichever thread comes first.
fn proven_01_unbind_does_not_deadlock(context: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    let mut rng = context.rng();
    let _chosen = choose("auto")?;
    for round in 0..context.rounds(12_u32, 4).div_ceil(context.scale) {
        // Every channel is given back, and acquired by who submits first.
        {
            let _off = choose("off")?;
            Device::open()?.info()?;
        }
        let (device, key) = Device::domain()?;
        device.info()?;
        let pair = Pair::new(&device, 4 << 20)?;
        let ids = (0..3)
            .map(|_| pair.submit(&device))
            .collect::<Answer<Vec<_>>>()?;
        let name = acquired()?;
        let counters = SharedCounters::new()?;
        let peers = (0..4)
            .map(|_| {
                Child::spawn(|| {
                    let own = Device::member(key)?;
                    counters.bump(0);
                    counters.await_at_least(1, 1)?;
                    match pair.submit(&own) {
                        Ok(id) => own.complete(id)?,
                        Err(Errno::ENODEV) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                    Ok(())
                })
            })
            .collect::<Outcome<Vec<_>>>()?;
        counters.await_at_least(0, 4)?;
        let pause = Duration::from_micros(rng.index(4000) as u64);
        let unbind = Child::spawn(|| {
            counters.await_at_least(1, 1)?;
            std::thread::sleep(pause);
            fs::write(format!("{IOATDMA}/unbind"), &name)?;
            Ok(())
        })?;
        counters.set(1, 1);
        let ended = sys::wait_exit(unbind.pid, context.limit(6));
        check!(ended.is_some(), "round {round}: the unbind of {name} hangs");
        for peer in peers {
            peer.join()?;
        }
        for id in ids {
            device.complete(id)?;
        }
        pair.check()?;
        fs::write(format!("{IOATDMA}/bind"), &name)?;
        device.info()?;
        all_in_service(context, &device)?;
    }
    Ok(())
}

/// The largest delay of a thread of the highest priority on each CPU while `body` runs.
fn longest_gap(body: impl FnOnce() -> Outcome) -> Outcome<Duration> {
    let stop = AtomicBool::new(false);
    let cpus = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        if is_clock_counted() {
            // Where the CPU is idle the host's time counts.
            scope.spawn(|| {
                sys::only_when_idle();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let watchers: Vec<_> = (0..cpus)
            .map(|cpu| {
                let stop = &stop;
                scope.spawn(move || {
                    sys::on_cpu_first(cpu)?;
                    let nap = Duration::from_millis(1);
                    let mut longest = Duration::ZERO;
                    while !stop.load(Ordering::Relaxed) {
                        let start = Instant::now();
                        std::thread::sleep(nap);
                        longest = longest.max(start.elapsed().saturating_sub(nap));
                    }
                    Ok::<_, Errno>(longest)
                })
            })
            .collect();
        let done = body();
        stop.store(true, Ordering::Relaxed);
        let mut longest = Duration::ZERO;
        for watcher in watchers {
            let gap = watcher
                .join()
                .map_err(|_| "a watcher panicked".to_owned())??;
            longest = longest.max(gap);
        }
        done?;
        Ok(longest)
    })
}

/// Forty thousand requests of a process that is killed: none of their lists is searched, and none
/// of them ends, with interrupts off. How long that takes is printed, how much it is at most is
/// checked; the kernel's own watchdog sees a CPU that stands still for 20 s.
fn proven_02_many_requests_do_not_stop_a_cpu(context: &Context) -> Outcome {
    many_requests(context).map(drop)
}

/// What `proven_02` does; returns the longest gap.
pub fn many_requests(context: &Context) -> Outcome<Duration> {
    const DOMAINS: usize = 40;
    // Copied more slowly than submitted, so that most are left when their process is killed.
    const LENGTH: usize = 128 * PAGE;
    /// Of `kmod/engine/queue.rs`.
    const SCAN: i64 = 32;
    let longest = Cell::new(Duration::ZERO);
    with_each_engine(|| {
        // A module without the limit has no parameter for it.
        let _limit = Parameter::set("max_user_requests", 1 << 16).ok();
        // Submitting may be slow, too; and a channel that is given up leaves its requests to CPUs,
        // which are not.
        let _slow = if modelled() {
            Some((Slow::new(5_000_000)?, patient(context)?))
        } else {
            None
        };
        let counters = SharedCounters::new()?;
        let submitter = Child::spawn(|| {
            // Only root may open the device here; the domain is whose who makes it.
            let files = (0..DOMAINS)
                .map(|_| Device::open())
                .collect::<Answer<Vec<_>>>()?;
            sys::limit_locked((4 * DOMAINS * LENGTH) as u64)?;
            sys::become_user(1000)?;
            let mut devices = Vec::new();
            let from = Map::filled(LENGTH, 5)?;
            let to = Map::anon(LENGTH)?;
            for device in files {
                device.create()?;
                let source = device.share(&from, RIGHT_READ)?;
                let destination = device.share(&to, RIGHT_WRITE)?;
                devices.push((device, source, destination));
            }
            for _ in 0..MAX_REQUESTS {
                for (device, source, destination) in &devices {
                    device.submit((*source, 0), (*destination, 0), LENGTH as u64)?;
                    counters.bump(0);
                }
            }
            counters.set(1, 1);
            std::thread::sleep(Duration::from_secs(3600));
            Ok(())
        })?;
        let mut outcome = None;
        let mut left = 0;
        let gap = longest_gap(|| {
            while counters.get(1) == 0 {
                if sys::wait_exit(submitter.pid, Duration::from_millis(5)).is_some() {
                    outcome = Some(submitter.join());
                    return Ok(());
                }
            }
            let before = Stats::read()?;
            let ended = before.get("requests_done")? + before.get("requests_failed")?;
            left = before.get("requests")? - ended;
            submitter.kill()?;
            let start = Instant::now();
            loop {
                let now = Stats::read()?;
                let ended = now.get("requests_done")? + now.get("requests_failed")?;
                if now.get("requests")? == ended && now.get("domains")? == 0 {
                    return Ok(());
                }
                check!(start.elapsed() < context.limit(30), "{now:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        })?;
        if let Some(outcome) = outcome {
            return outcome;
        }
        let submitted = counters.get(0);
        let hold = Stats::read()?.get("longest_hold_entries")?;
        print!("[{submitted} requests, {left} when killed: gap {gap:?}, {hold} entries per hold] ");
        check!(
            left >= 20_000,
            "{left} of {submitted} requests are left, too few to see anything"
        );
        check!((2..=SCAN).contains(&hold), "{hold} entries in a hold");
        longest.set(longest.get().max(gap));
        Ok(())
    })?;
    Ok(longest.get())
}

/// The submitter of a large fragment dies while an engine works on it, and another request is
/// submitted: the fragment must not be counted in the status of that one.
fn proven_03_a_slot_belongs_to_its_request(context: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    const FRAGMENT: usize = 16 << 20;
    const SMALL: u64 = 4 * PAGE as u64;
    let _chosen = choose("auto")?;
    let _patient = patient(context)?;
    let (device, key) = Device::domain()?;
    let table = Table::of(&device)?;
    let pair = Pair::new(&device, FRAGMENT)?;
    let small = |device: &Device| device.submit((pair.source, 0), (pair.destination, 0), SMALL);
    // All slots but one.
    for _ in 1..MAX_REQUESTS {
        let id = small(&device)?;
        let (answer, _) = device.await_request(id, 0, -1);
        answer?;
    }
    let _slow = Slow::new(8 << 20)?;
    let counters = SharedCounters::new()?;
    let submitter = Child::spawn(|| {
        let own = Device::member(key)?;
        let large = RequestSubmit {
            fragment_pages: MAX_FRAGMENT_PAGES,
            ..request((pair.source, 0), (pair.destination, 0), FRAGMENT as u64)
        };
        counters.set(0, own.submit_with(large)?.id.into());
        std::thread::sleep(Duration::from_secs(3600));
        Ok(())
    })?;
    let dead = counters.await_at_least(0, 1)? as u32;
    // The channel may first have to put aside what others have left in its queue.
    let start = Instant::now();
    while table.entry(dead).next == 0 {
        check!(
            start.elapsed() < context.second(),
            "no engine works on the fragment"
        );
    }
    let before = Stats::read()?;
    submitter.kill()?;
    // The only slot is that of the dead one, sooner or later.
    let start = Instant::now();
    let id = loop {
        match small(&device) {
            Ok(id) => break id,
            Err(Errno::ENOSPC) => check!(start.elapsed() < context.limit(20)),
            Err(errno) => return Err(errno.into()),
        }
    };
    check_eq!(id % MAX_REQUESTS, dead % MAX_REQUESTS);
    device.await_request(id, 0, -1).0?;
    // The fragment of the dead one is in place.
    let start = Instant::now();
    while Stats::read()?.since(&before, "fragments_engine")? < 1 + 4 {
        check!(
            start.elapsed() < context.limit(20),
            "the fragment is not done"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(50));
    let entry = table.entry(id);
    check_eq!(
        (entry.id, entry.state, entry.next, entry.done, entry.front),
        (id, REQUEST_DONE, 4, SMALL, SMALL)
    );
    Ok(())
}

/// A request that is not waited for to the end is not forgotten, whenever it ends.
fn proven_07_release_forgets_only_what_has_ended(_: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, 1 << 20)?;
        let (mut late, mut forgotten, mut polls) = (0, 0, 0);
        for round in 0..600 {
            let interrupted = round % 3 == 2;
            let length = ((1 + round % 16) << 14) as u64;
            let id = device.submit((pair.source, 0), (pair.destination, 0), length)?;
            loop {
                if interrupted {
                    // Soon, so that some come when the request ends; and one for each call, because
                    // a slow machine would do nothing but deliver signals that come by the clock.
                    sys::alarm(Duration::from_micros(200), Duration::ZERO)?;
                }
                let timeout = if interrupted { -1 } else { 0 };
                polls += 1;
                let (answer, left) = device.await_request(id, REQUEST_RELEASE, timeout);
                match answer {
                    Ok(()) => {
                        check_eq!((left.state, left.done), (REQUEST_DONE, length));
                        break;
                    }
                    Err(Errno::ETIMEDOUT | Errno::EINTR) => {
                        late += 1;
                        if left.state != REQUEST_RUNNING {
                            forgotten += 1;
                            break;
                        }
                    }
                    Err(errno) => return Err(errno.into()),
                }
            }
            if interrupted {
                sys::alarm(Duration::ZERO, Duration::ZERO)?;
            }
            check_err!(device.request_info(id), ENOENT, "released twice");
        }
        print!("[{forgotten} of 600 forgotten, {late} of {polls} calls too early] ");
        check!(late > 0, "no call came too early");
        check_eq!(
            forgotten,
            0,
            "requests ended, and the caller heard otherwise"
        );
        Ok(())
    })
}

/// Who sees the end of a request in the status table sees all of it.
fn proven_10_state_is_published_last(context: &Context) -> Outcome {
    let most: u64 = context.rounds(4000, 1000);
    /// Of them, however long they take.
    const LEAST: u64 = 200;
    const LENGTH: usize = 24 * PAGE;
    with_each(|| {
        let (device, key) = Device::domain()?;
        let table = Table::of(&device)?;
        let pair = Pair::new(&device, LENGTH)?;
        let counters = SharedCounters::new()?;
        let helper = Child::spawn(|| {
            let own = Device::member(key)?;
            let mut last = 0;
            loop {
                let id = counters.get(0);
                if id == u64::MAX {
                    return Ok(());
                }
                if id != last {
                    let _ = own.switch(id as u32, SWITCH_HELP | SWITCH_NO_WAIT);
                    last = id;
                }
            }
        })?;
        let (mut early, mut rounds) = (0, 0);
        let start = Instant::now();
        let limit = context.second() * 4;
        while rounds < LEAST || (rounds < most && start.elapsed() < limit) {
            let id = pair.submit(&device)?;
            counters.set(0, id.into());
            // The state first, then the rest.
            while table.state(id) == REQUEST_RUNNING {
                std::hint::spin_loop();
            }
            let seen = table.entry(id);
            rounds += 1;
            early += u64::from((seen.done, seen.front) != (LENGTH as u64, LENGTH as u64));
            device.complete(id)?;
        }
        counters.set(0, u64::MAX);
        helper.join()?;
        print!("[{early} of {rounds} too early] ");
        check_eq!(early, 0, "`state` was published before `done` and `front`");
        Ok(())
    })
}

/// All processes of a user together, whatever their domains.
fn requests_of_a_user_are_limited(context: &Context) -> Outcome {
    with_each(|| {
        let _limit = Parameter::set("max_user_requests", 100)?;
        let domains = [Device::domain()?.0, Device::domain()?.0];
        let pairs = [Pair::new(&domains[0], PAGE)?, Pair::new(&domains[1], PAGE)?];
        let mut ids = Vec::new();
        for number in 0..100 {
            let which = number % 2;
            ids.push((which, pairs[which].submit(&domains[which])?));
        }
        for which in 0..2 {
            check_err!(pairs[which].submit(&domains[which]), ENOSPC);
        }
        // Another user has a limit of its own.
        sys::in_child(|| {
            let device = Device::open()?;
            sys::become_user(1001)?;
            device.create()?;
            let pair = Pair::new(&device, PAGE)?;
            let id = pair.submit(&device)?;
            device.complete(id)?;
            Ok(())
        })?;
        for (which, id) in ids.drain(..) {
            domains[which].complete(id)?;
        }
        // Released requests count until nobody refers to them any more, which is soon.
        let start = Instant::now();
        let id = loop {
            match pairs[1].submit(&domains[1]) {
                Ok(id) => break id,
                Err(Errno::ENOSPC) => check!(start.elapsed() < context.limit(20)),
                Err(errno) => return Err(errno.into()),
            }
        };
        domains[1].complete(id)?;
        Ok(())
    })
}

/// More descriptors than the ring of a channel has: the driver refuses some, and is asked again.
fn a_full_ring_is_no_fault(context: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    const LENGTH: usize = 48 << 20;
    let _chosen = choose("auto")?;
    let _depth = Parameter::set("engine_depth", 16)?;
    let _patient = patient(context)?;
    let (device, _) = Device::domain()?;
    // Pages that meet nowhere, and sides that begin at different places of a page: two descriptors
    // a page, eight thousand a fragment.
    let from = Map::scattered(LENGTH)?;
    let to = Map::scattered(LENGTH)?;
    from.write(0, &crate::rng::pattern(9, LENGTH));
    let (source, destination) = (
        device.share(&from, RIGHT_READ)?,
        device.share(&to, RIGHT_WRITE)?,
    );
    let length = (LENGTH - PAGE) as u64;
    let before = Stats::read()?;
    let least = |device: &Device| -> Outcome<u64> {
        let mut least = u64::MAX;
        for index in 0..device.info()?.engines {
            least = least.min(device.engine(index)?.max_transfer);
        }
        Ok(least)
    };
    let transfer = least(&device)?;
    let ids = (0..8)
        .map(|_| {
            device
                .submit_with(RequestSubmit {
                    fragment_pages: MAX_FRAGMENT_PAGES,
                    ..request((source, 0), (destination, 64), length)
                })
                .map(|answer| answer.id)
        })
        .collect::<Answer<Vec<_>>>()?;
    for id in ids {
        device.complete(id)?;
    }
    check!(to.read(64, length as usize) == from.read(0, length as usize));
    let after = Stats::read()?;
    check_eq!(after.since(&before, "channels_quarantined")?, 0);
    check_eq!(after.since(&before, "bytes_cpu")?, 0);
    check_eq!(least(&device)?, transfer, "descriptors became shorter");
    all_in_service(context, &device)
}

/// A cancelled request is not verified to the end, and is not said to be done.
fn verification_is_cancelled(context: &Context) -> Outcome {
    const LENGTH: usize = 64 << 20;
    with_each(|| {
        let _patient = patient(context)?;
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, LENGTH)?;
        let mut seen = 0;
        for _ in 0..3 {
            let id = device
                .submit_with(RequestSubmit {
                    flags: SUBMIT_VERIFY,
                    fragment_pages: 64,
                    ..request((pair.source, 0), (pair.destination, 0), LENGTH as u64)
                })?
                .id;
            // All bytes are in place; from here on checksums are compared.
            while device.request_info(id)?.done < LENGTH as u64 {
                std::thread::yield_now();
            }
            let left = device.cancel(id)?;
            seen += u32::from(left.state == REQUEST_FAILED);
        }
        check!(seen > 0, "every request was verified to the end");
        Ok(())
    })
}
