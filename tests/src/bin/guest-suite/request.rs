// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests: transfers that an engine works on, with every engine that this machine has. Kernel
//! threads it always has.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::death::soon;
use crate::device::{Answer, Device};
use crate::harness::{Context, Outcome};
use crate::kernel::Stats;
use crate::region::Scattered;
use crate::request_setup::{
    LONG, Pair, Table, choose, engines_count, request, software_engine, with_each, with_each_engine,
};
use crate::rng::pattern;
use crate::sys::{self, Child, Map, PAGE, SharedCounters, in_child};
use crate::{check, check_eq, check_err, tests};

tests!(request:
    moves, random(120), verifies, nothing, refusals, rights, unknown, status_table,
    status_table_is_read_only, front(60), switches(60), members_share_the_work(60),
    switched_in_a_signal_handler(60), helpers(60), poll_is_refused, cancelled(60), not_the_submitter,
    interrupted(60), many(60), everybody_hears(120),
);

fn moves(_: &Context) -> Outcome {
    with_each(|| {
        let (device, key) = Device::domain()?;
        let pair = Pair::new(&device, 64 * PAGE)?;
        let before = Stats::read()?;
        in_child(|| {
            // A third party.
            let peer = Device::member(key)?;
            let id = pair.submit(&peer)?;
            let (answer, left) = peer.await_request(id, 0, -1);
            answer?;
            check_eq!(left.state, REQUEST_DONE);
            check_eq!(
                (left.done, left.front),
                (64 * PAGE as u64, 64 * PAGE as u64)
            );
            let info = peer.request_info(id)?;
            check_eq!(info.length, 64 * PAGE as u64);
            check_eq!(info.engine_bytes + info.cpu_bytes, info.length);
            check_eq!((info.fragments, info.fragment_pages), (64, 1));
            check_eq!((info.state, info.error), (REQUEST_DONE, 0));
            peer.complete(id)?;
            check_err!(peer.request_info(id), ENOENT);
            Ok(())
        })?;
        pair.check()?;
        let after = Stats::read()?;
        check_eq!(after.since(&before, "requests_done")?, 1);
        let (mine, others) = if engines_count() {
            ("engine", "cpu")
        } else {
            ("cpu", "engine")
        };
        let since = |what: &str, who: &str| after.since(&before, &format!("{what}_{who}"));
        check_eq!(since("bytes", mine)?, 64 * PAGE as i64);
        check_eq!(since("fragments", mine)?, 64);
        check_eq!(since("fragments", others)?, 0);
        Ok(())
    })
}

/// Pieces of any length at any address, on both sides.
fn random(context: &Context) -> Outcome {
    with_each(|| {
        let mut rng = context.rng();
        let (device, _) = Device::domain()?;
        for _ in 0..context.rounds(120, 40) {
            let pair = Scattered::new(&device, &mut rng, 24, 4 * PAGE)?;
            let id = device
                .submit_with(RequestSubmit {
                    fragment_pages: rng.index(5) as u32,
                    flags: if rng.one_in(4) { SUBMIT_VERIFY } else { 0 },
                    ..request(pair.source_at, pair.target_at, pair.length as u64)
                })?
                .id;
            if rng.one_in(3) {
                device.switch(id, 0).0?;
            }
            device.complete(id)?;
            pair.check(&device, context.seed)?;
        }
        Ok(())
    })
}

fn verifies(_: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, 1 << 20)?;
        let before = Stats::read()?;
        let id = device
            .submit_with(RequestSubmit {
                flags: SUBMIT_VERIFY,
                fragment_pages: 16,
                ..request((pair.source, 0), (pair.destination, 0), 1 << 20)
            })?
            .id;
        device.complete(id)?;
        check_eq!(Stats::read()?.since(&before, "verify_failures")?, 0);
        pair.check()
    })
}

fn nothing(_: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, PAGE)?;
        let id = device.submit((pair.source, 5), (pair.destination, 7), 0)?;
        let (answer, left) = device.await_request(id, 0, 0);
        answer?;
        check_eq!((left.state, left.done), (REQUEST_DONE, 0));
        device.switch(id, 0).0?;
        device.complete(id)?;
        check_err!(device.complete(id), ENOENT);
        Ok(())
    })
}

fn refusals(_: &Context) -> Outcome {
    let _chosen = choose(software_engine())?;
    let (device, _) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let good = request((id, 0), (id, 2 * PAGE as u64), PAGE as u64);
    let bad = [
        (RequestSubmit { flags: 2, ..good }, Errno::EINVAL),
        (RequestSubmit { flags: 4, ..good }, Errno::EINVAL),
        (RequestSubmit { flags: 8, ..good }, Errno::EINVAL),
        (
            RequestSubmit {
                reserved: 1,
                ..good
            },
            Errno::EINVAL,
        ),
        (
            RequestSubmit {
                reserved0: 1,
                ..good
            },
            Errno::EINVAL,
        ),
        (
            RequestSubmit {
                fragment_pages: MAX_FRAGMENT_PAGES + 1,
                ..good
            },
            Errno::EINVAL,
        ),
        (
            RequestSubmit {
                destination_offset: 100,
                ..good
            },
            Errno::EINVAL,
        ),
        (
            RequestSubmit {
                source_offset: u64::MAX,
                ..good
            },
            Errno::ERANGE,
        ),
        (
            RequestSubmit {
                length: u64::MAX,
                source_offset: 2,
                ..good
            },
            Errno::ERANGE,
        ),
        (
            RequestSubmit {
                destination_offset: 3 * PAGE as u64 + 1,
                ..good
            },
            Errno::ERANGE,
        ),
        (
            RequestSubmit {
                source: id + 1,
                ..good
            },
            Errno::ENOENT,
        ),
        (
            RequestSubmit {
                destination: 0,
                ..good
            },
            Errno::ENOENT,
        ),
    ];
    let before = Stats::read()?;
    for (argument, errno) in bad {
        check_eq!(
            device.submit_with(argument).err(),
            Some(errno),
            "{argument:?}"
        );
    }
    // Where the answer cannot be written, nothing is begun.
    let read_only = Map::anon(PAGE)?;
    // SAFETY: Inside a mapping of our own, aligned.
    unsafe { std::ptr::write(read_only.addr() as *mut RequestSubmit, good) };
    read_only.protect(0, PAGE, libc::PROT_READ)?;
    check_err!(device.raw(REQUEST_SUBMIT, read_only.addr()), EFAULT);
    check!(map.bytes() == pattern(1, 4 * PAGE));
    let after = Stats::read()?;
    check_eq!(after.since(&before, "requests_done")?, 0);
    device.submit_with(good)?;
    {
        let _chosen = choose("off")?;
        check_err!(device.submit_with(good), ENODEV);
    }
    let lone = Device::open()?;
    check_err!(lone.submit_with(good), ENOTCONN);
    check_err!(lone.complete(1), ENOTCONN);
    check_err!(lone.switch(1, 0).0, ENOTCONN);
    check_err!(lone.cancel(1), ENOTCONN);
    check_err!(lone.request_info(1), ENOTCONN);
    Ok(())
}

fn rights(_: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, PAGE)?;
        let (r, w) = (pair.source, pair.destination);
        check_err!(device.submit((w, 0), (r, 0), 8), EACCES);
        check_err!(device.submit((r, 0), (r, 100), 8), EACCES);
        check_err!(device.submit((w, 0), (w, 100), 8), EACCES);
        pair.from.replace(0, PAGE)?;
        check_err!(device.submit((r, 0), (w, 0), 8), ESTALE);
        Ok(())
    })
}

fn unknown(_: &Context) -> Outcome {
    let _chosen = choose(software_engine())?;
    let (device, _) = Device::domain()?;
    let pair = Pair::new(&device, PAGE)?;
    let id = pair.submit(&device)?;
    for other in [0, 1, id + 1, id + MAX_REQUESTS, u32::MAX] {
        check_err!(device.await_request(other, 0, 0).0, ENOENT, "{other}");
        check_err!(device.switch(other, 0).0, ENOENT, "{other}");
        check_err!(device.request_info(other), ENOENT, "{other}");
        check_err!(device.cancel(other), ENOENT, "{other}");
    }
    check_err!(device.await_request(id, 2, 0).0, EINVAL);
    let mut part = RequestWait {
        id,
        reserved0: 1,
        ..Default::default()
    };
    check_err!(device.call(REQUEST_WAIT, &mut part), EINVAL);
    check_err!(device.switch(id, 4).0, EINVAL);
    // Ids of one domain mean nothing in another.
    let (other, _) = Device::domain()?;
    check_err!(other.complete(id), ENOENT);
    device.complete(id)?;
    Ok(())
}

fn status_table(context: &Context) -> Outcome {
    with_each(|| {
        let (device, key) = Device::domain()?;
        let table = Table::of(&device)?;
        let pair = Pair::new(&device, 512 * PAGE)?;
        let id = pair.submit(&device)?;
        let mut last = RequestStatus::default();
        let start = Instant::now();
        loop {
            let now = table.entry(id);
            check_eq!(now.id, id);
            check!(
                now.next >= last.next && now.done >= last.done && now.front >= last.front,
                "{now:?} after {last:?}"
            );
            check!(now.front <= (512 * PAGE) as u64 && now.next <= 512);
            last = now;
            if now.state != REQUEST_RUNNING {
                break;
            }
            check!(start.elapsed() < context.second() * 20, "{now:?}");
        }
        pair.check()?;
        check_eq!(last.state, REQUEST_DONE);
        let end = table.entry(id);
        check_eq!(
            (end.next, end.done, end.front, end.error),
            (512, 512 * PAGE as u64, 512 * PAGE as u64, 0)
        );
        in_child(|| {
            let peer = Device::member(key)?;
            check_eq!(Table::of(&peer)?.entry(id), end);
            Ok(())
        })?;
        device.complete(id)?;
        // The next one has another entry.
        let next = pair.submit(&device)?;
        check!(next % MAX_REQUESTS != id % MAX_REQUESTS);
        check_eq!(table.entry(id), end);
        device.complete(next)?;
        // The mapping outlives the file.
        drop(device);
        check_eq!(table.entry(next).state, REQUEST_DONE);
        Ok(())
    })
}

fn status_table_is_read_only(_: &Context) -> Outcome {
    let (device, _) = Device::domain()?;
    let map = |length: u64, prot: i32, flags: i32, fd: BorrowedFd<'_>| {
        Map::new(length as usize, prot, flags, Some(fd), STATUS_OFFSET)
    };
    let (r, rw) = (libc::PROT_READ, sys::RW);
    let fd = device.as_fd();
    check_err!(
        map(STATUS_BYTES, rw, libc::MAP_SHARED, fd).map(drop),
        EACCES
    );
    check_err!(
        map(STATUS_BYTES, r | libc::PROT_EXEC, libc::MAP_SHARED, fd).map(drop),
        EACCES
    );
    check_err!(
        map(STATUS_BYTES, r, libc::MAP_PRIVATE, fd).map(drop),
        EINVAL
    );
    check_err!(
        map(STATUS_BYTES + 4096, r, libc::MAP_SHARED, fd).map(drop),
        EINVAL
    );
    let table = map(STATUS_BYTES, r, libc::MAP_SHARED, fd)?;
    check_err!(table.protect(0, PAGE, rw), EACCES);
    let lone = Device::open()?;
    check_err!(
        map(STATUS_BYTES, r, libc::MAP_SHARED, lone.as_fd()).map(drop),
        ENOTCONN
    );
    // Inherited, split, and unmapped in parts.
    in_child(|| {
        table.unmap(PAGE, PAGE)?;
        Ok(())
    })?;
    table.unmap(0, PAGE)?;
    Ok(())
}

fn front(_: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, LONG)?;
        let id = pair.submit(&device)?;
        for part in [1, LONG / 7, LONG / 2, LONG - 1, LONG] {
            device.await_front(id, part as u64)?;
            let front = device.request_info(id)?.front;
            check!(front >= part as u64, "{front} of {part}");
            check!(
                pair.to.read(part - 1, 1) == pair.from.read(part - 1, 1),
                "byte {part}"
            );
            let some = part.min(8 * PAGE);
            check!(pair.to.read(part - some, some) == pair.from.read(part - some, some));
        }
        device.complete(id)?;
        pair.check()
    })
}

fn switches(_: &Context) -> Outcome {
    with_each_engine(|| {
        let (device, _) = Device::domain()?;
        for pages in [1, 8, 64] {
            let pair = Pair::new(&device, LONG)?;
            let before = Stats::read()?;
            let id = device
                .submit_with(RequestSubmit {
                    fragment_pages: pages,
                    ..request((pair.source, 0), (pair.destination, 0), LONG as u64)
                })?
                .id;
            device.await_front(id, LONG as u64 / 10)?;
            let (answer, left) = device.switch(id, 0);
            answer?;
            pair.check()?;
            check_eq!((left.state, left.done), (REQUEST_DONE, LONG as u64));
            let info = device.request_info(id)?;
            check_eq!(info.mode, MODE_CPU);
            check_eq!(info.cpu_bytes, left.copied);
            check_eq!(info.cpu_bytes + info.engine_bytes, LONG as u64);
            check!(
                info.cpu_bytes > 0,
                "{pages} pages: nothing left for the CPU"
            );
            let after = Stats::read()?;
            check_eq!(after.since(&before, "switches")?, 1);
            check_eq!(after.since(&before, "bytes_cpu")?, info.cpu_bytes as i64);
            // Again: nothing to do.
            let (answer, left) = device.switch(id, 0);
            answer?;
            check_eq!(left.copied, 0);
            device.complete(id)?;
            device.unpin(pair.source)?;
            device.unpin(pair.destination)?;
        }
        Ok(())
    })
}

/// The submitter sleeps; members of the domain do the work, each fragment once.
fn members_share_the_work(_: &Context) -> Outcome {
    with_each_engine(|| {
        let (device, key) = Device::domain()?;
        let pair = Pair::new(&device, LONG)?;
        let counters = SharedCounters::new()?;
        let id = pair.submit(&device)?;
        let children: Vec<Child> = (0..3)
            .map(|_| {
                Child::spawn(|| {
                    let peer = Device::member(key)?;
                    let (answer, left) = peer.switch(id, 0);
                    answer?;
                    for _ in 0..left.copied / PAGE as u64 {
                        counters.bump(1);
                    }
                    Ok(())
                })
            })
            .collect::<Outcome<_>>()?;
        device.complete_keeping(id)?;
        pair.check()?;
        for child in children {
            child.join()?;
        }
        let info = device.request_info(id)?;
        check_eq!(info.cpu_bytes / PAGE as u64, counters.get(1));
        check_eq!(info.cpu_bytes + info.engine_bytes, LONG as u64);
        device.complete(id)?;
        Ok(())
    })
}

impl Device {
    /// Waits for the end without releasing.
    fn complete_keeping(&self, id: u32) -> Answer<()> {
        self.await_request(id, 0, -1).0
    }
}

/// What the signal handler works on: file, request, and its answer.
static HANDLED: [std::sync::atomic::AtomicI64; 3] =
    [const { std::sync::atomic::AtomicI64::new(0) }; 3];

extern "C" fn switch_in_handler(_: libc::c_int) {
    use std::sync::atomic::Ordering::SeqCst;
    let mut argument = RequestSwitch {
        id: HANDLED[1].load(SeqCst) as u32,
        ..Default::default()
    };
    // SAFETY: An ioctl is async-signal-safe; the argument outlives the call.
    let answer = unsafe {
        libc::ioctl(
            HANDLED[0].load(SeqCst) as i32,
            REQUEST_SWITCH as libc::Ioctl,
            &mut argument,
        )
    };
    HANDLED[2].store(if answer == 0 { 1 } else { -1 }, SeqCst);
}

fn switched_in_a_signal_handler(_: &Context) -> Outcome {
    use std::sync::atomic::Ordering::SeqCst;
    with_each(|| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, LONG)?;
        sys::interrupt_on(libc::SIGUSR1)?;
        // SAFETY: All zero is a valid sigaction; the handler makes one system call.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = switch_in_handler as extern "C" fn(libc::c_int) as usize;
            sys::result(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()).into())?;
        }
        HANDLED[0].store(device.as_fd().as_raw_fd().into(), SeqCst);
        HANDLED[2].store(0, SeqCst);
        let id = pair.submit(&device)?;
        HANDLED[1].store(id.into(), SeqCst);
        sys::signal_thread(sys::thread_id(), libc::SIGUSR1);
        check_eq!(HANDLED[2].load(SeqCst), 1);
        pair.check()?;
        device.complete(id)?;
        Ok(())
    })
}

/// Helping leaves the engine at work.
fn helpers(_: &Context) -> Outcome {
    with_each_engine(|| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, LONG)?;
        let id = pair.submit(&device)?;
        let (answer, left) = device.switch(id, SWITCH_HELP | SWITCH_NO_WAIT);
        match answer {
            Ok(()) | Err(Errno::ETIMEDOUT) => {}
            other => check!(false, "{other:?}"),
        }
        check!(left.copied > 0);
        device.complete_keeping(id)?;
        let info = device.request_info(id)?;
        check_eq!(info.mode, 0);
        check_eq!(info.cpu_bytes, left.copied);
        device.complete(id)?;
        pair.check()
    })
}

/// Nobody is told of anything by `poll`: the end of a request would walk as many watches as a user
/// cares to make, with interrupts off. To `poll(2)` the file is what a file without this operation
/// is: always ready.
fn poll_is_refused(context: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, LONG)?;
        let epoll = sys::epoll()?;
        let watch = || sys::epoll_add(epoll.as_fd(), device.as_fd());
        let both = libc::POLLIN | libc::POLLOUT;
        let long = context.second() * 60;
        let id = pair.submit(&device)?;
        for _ in 0..2 {
            // While it runs, and when it has ended.
            check_err!(watch(), EPERM);
            let start = Instant::now();
            check_eq!(sys::poll(device.as_fd(), both, long)?, both);
            check!(start.elapsed() < long / 2, "poll waited");
            device.complete_keeping(id)?;
        }
        device.complete(id)?;
        Ok(())
    })
}

fn cancelled(_: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, LONG)?;
        let table = Table::of(&device)?;
        for round in 0..20 {
            let id = pair.submit(&device)?;
            if round % 2 == 0 {
                device.await_front(id, (round * PAGE + 1) as u64)?;
            }
            let left = device.cancel(id)?;
            // From here on the destination is ours again.
            let mark = pattern(round as u64 + 100, 16 * PAGE);
            let at = left.done as usize / PAGE * PAGE;
            let at = at.min(LONG - 16 * PAGE);
            pair.to.write(at, &mark);
            check_err!(device.request_info(id), ENOENT);
            if left.state == REQUEST_FAILED {
                check_eq!(table.entry(id).error, Errno::ECANCELED as i32);
                check!(left.done < LONG as u64);
            }
            std::thread::sleep(Duration::from_millis(2));
            check!(
                pair.to.read(at, mark.len()) == mark,
                "written after the end"
            );
        }
        Ok(())
    })
}

fn not_the_submitter(_: &Context) -> Outcome {
    let _chosen = choose(software_engine())?;
    let (device, key) = Device::domain()?;
    let pair = Pair::new(&device, PAGE)?;
    let id = pair.submit(&device)?;
    in_child(|| {
        let peer = Device::member(key)?;
        check_err!(peer.complete(id), EPERM);
        check_err!(peer.cancel(id), EPERM);
        peer.complete_keeping(id)?;
        Ok(())
    })?;
    device.complete(id)?;
    Ok(())
}

fn interrupted(_: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, LONG / 4)?;
        sys::alarm(Duration::from_millis(1), Duration::from_millis(2))?;
        let mut seen = 0;
        for round in 0..16 {
            let id = loop {
                match pair.submit(&device) {
                    Ok(id) => break id,
                    Err(Errno::EINTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            };
            loop {
                let answer = if round % 2 == 0 {
                    device.complete_keeping(id)
                } else {
                    device.switch(id, 0).0
                };
                match answer {
                    Ok(()) => break,
                    Err(Errno::EINTR) => seen += 1,
                    other => check!(false, "{other:?}"),
                }
            }
            while device.cancel(id) == Err(Errno::EINTR) {}
        }
        sys::alarm(Duration::ZERO, Duration::ZERO)?;
        check!(seen > 0, "no call was interrupted");
        pair.check()
    })
}

fn many(_: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let pages = MAX_REQUESTS as usize;
        let pair = Pair::new(&device, pages * PAGE)?;
        let mut ids = Vec::new();
        for page in 0..pages {
            let at = (page * PAGE) as u64;
            ids.push(device.submit((pair.source, at), (pair.destination, at), PAGE as u64)?);
        }
        check_err!(
            device.submit((pair.source, 0), (pair.destination, 0), 8),
            ENOSPC
        );
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        sorted.dedup();
        check_eq!(sorted.len(), pages);
        for id in &ids {
            device.complete(*id)?;
        }
        pair.check()?;
        let again = device.submit((pair.source, 0), (pair.destination, 0), 8)?;
        check!(!ids.contains(&again), "{again} is in use again at once");
        device.complete(again)?;
        Ok(())
    })
}

/// What else happens when a request ends for which many wait.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Beside {
    Nothing,
    /// The time of every second one is over.
    Limits,
    /// Every second one gets signals.
    Signals,
    /// One of the two processes is killed.
    Death,
}

/// Threads of each process that wait.
const WAITERS: usize = 100;
/// Words of the counters: threads that have begun, and that were told the outcome; when the request
/// ends, on the monotonic clock; whether it has; the request.
const BEGUN: usize = 0;
const TOLD: usize = 1;
const END_NS: usize = 2;
const ENDED: usize = 3;
const HELD: usize = 4;

fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: The structure outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A thread that waits until it is told the outcome; time limits and signals only make it ask
/// again.
fn wait_and_tell(
    device: &Device,
    id: u32,
    counters: &SharedCounters,
    number: usize,
    beside: Beside,
) -> Outcome {
    let mut has_limit = beside == Beside::Limits && number % 2 == 0;
    counters.bump(BEGUN);
    loop {
        let end = counters.get(END_NS);
        let timeout = match end {
            _ if !has_limit => -1,
            0 => 5_000_000,
            // Within a millisecond of the end, and after that as long as it takes.
            _ => {
                has_limit = false;
                (end + number as u64 * 20_000).saturating_sub(1_000_000 + now_ns()) as i64
            }
        };
        let (answer, left) = device.await_request(id, 0, timeout);
        match answer {
            Ok(()) => {
                check_eq!((left.state, left.done), (REQUEST_DONE, 16 * PAGE as u64));
                counters.bump(TOLD);
                return Ok(());
            }
            Err(Errno::EINTR) if beside == Beside::Signals => {}
            Err(Errno::ETIMEDOUT) if timeout >= 0 => {}
            Err(errno) => check!(false, "{errno} of {left:?}"),
        }
    }
}

/// A process whose threads wait for a request.
fn waiting(key: [u8; 16], id: u32, counters: &SharedCounters, beside: Beside) -> Outcome {
    let device = Device::member(key)?;
    sys::interrupt_on(libc::SIGUSR1)?;
    let (ids, device) = (&SharedCounters::new()?, &device);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WAITERS)
            .map(|number| {
                scope.spawn(move || {
                    ids.set(number, sys::thread_id() as u64);
                    wait_and_tell(device, id, counters, number, beside)
                })
            })
            .collect();
        while beside == Beside::Signals && counters.get(ENDED) == 0 {
            // In turns, and without a pause when the end is near.
            let end = counters.get(END_NS);
            if end == 0 || now_ns() + 5_000_000 < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            for number in (0..WAITERS).step_by(2) {
                if ids.get(number) != 0 {
                    sys::signal_thread(ids.get(number) as i32, libc::SIGUSR1);
                }
            }
        }
        for thread in threads {
            thread.join().map_err(|_| "panic".to_owned())??;
        }
        Ok(())
    })
}

/// A process whose request ends when it is let go on: its worker, which compares, stops with it.
fn held(key: [u8; 16], counters: &SharedCounters) -> Outcome {
    let device = Device::member(key)?;
    let before = Pair::new(&device, LONG)?;
    let pair = Pair::new(&device, 16 * PAGE)?;
    // Until who waits has seen that one had not ended when this stopped.
    while counters.get(ENDED) == 0 {
        before.submit(&device)?;
        let compared = RequestSubmit {
            flags: SUBMIT_VERIFY,
            ..request((pair.source, 0), (pair.destination, 0), 16 * PAGE as u64)
        };
        counters.set(HELD, device.submit_with(compared)?.id.into());
        sys::signal(std::process::id() as i32, libc::SIGSTOP);
    }
    let (answer, _) = device.await_request(counters.get(HELD) as u32, 0, -1);
    answer?;
    pair.check()?;
    // With the process the request goes, of which some may ask again.
    counters.await_at_least(ENDED, 2).map(drop)
}

/// Stops `child`, which runs [`held`], with a request that has not ended, and returns that.
fn hold(
    context: &Context,
    device: &Device,
    child: &Child,
    counters: &SharedCounters,
) -> Outcome<u32> {
    // Until it has made its buffers.
    counters.await_at_least(HELD, 1)?;
    loop {
        soon(context, || sys::is_stopped(child.pid))?;
        let id = counters.get(HELD) as u32;
        if device.request_info(id)?.state == REQUEST_RUNNING {
            return Ok(id);
        }
        sys::signal(child.pid, libc::SIGCONT);
    }
}

/// Two hundred threads of two processes wait for one request. Its end wakes one of them, and each
/// wakes the next, whatever else wakes them: nobody is left asleep.
fn everybody_hears(context: &Context) -> Outcome {
    let _chosen = choose(software_engine())?;
    for beside in [
        Beside::Nothing,
        Beside::Limits,
        Beside::Signals,
        Beside::Death,
    ] {
        let (device, key) = Device::domain()?;
        let counters = SharedCounters::new()?;
        let holder = Child::spawn(|| held(key, &counters))?;
        let id = hold(context, &device, &holder, &counters)?;
        let spawn = || Child::spawn(|| waiting(key, id, &counters, beside));
        let (first, second) = (spawn()?, spawn()?);
        counters.await_at_least(BEGUN, 2 * WAITERS as u64)?;
        std::thread::sleep(Duration::from_millis(100));
        counters.set(END_NS, now_ns() + 20_000_000);
        while now_ns() < counters.get(END_NS) {
            std::hint::spin_loop();
        }
        let survivors = match beside {
            Beside::Death => {
                sys::signal(first.pid, libc::SIGKILL);
                WAITERS
            }
            _ => 2 * WAITERS,
        };
        check_eq!(
            device.request_info(id)?.state,
            REQUEST_RUNNING,
            "{beside:?}"
        );
        counters.set(ENDED, 1);
        sys::signal(holder.pid, libc::SIGCONT);
        let start = Instant::now();
        while counters.get(TOLD) < survivors as u64 {
            check!(
                start.elapsed() < context.second() * 5,
                "{beside:?}: {} of {survivors} threads were told that the request has ended",
                counters.get(TOLD)
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        match beside {
            Beside::Death => first.kill()?,
            _ => first.join()?,
        }
        second.join()?;
        counters.set(ENDED, 2);
        holder.join()?;
    }
    Ok(())
}
