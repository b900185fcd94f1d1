// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fault injection: every call of the ABI is repeated with its first allocation failing, then its
//! second, and so on until none is left to fail; copies from and to user space and futex operations
//! count as well. Each attempt has to succeed or to end with a clean error, after which the same
//! call works. What the whole leaves behind (pins, regions, domains) the harness looks for after
//! each test, and kmemleak at the end.
//!
//! Needs a kernel with `CONFIG_FAULT_INJECTION` (`scripts/vm --debug`), see
//! `Documentation/fault-injection/fault-injection.rst` of the kernel.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use libcopy::datatype::Places;
use nix::errno::Errno;

use crate::abi::*;
use crate::device::{Answer, Device};
use crate::harness::{Context, Outcome, Stop, skip};
use crate::kernel;
use crate::request_setup::{Pair, choose, modelled, request, software_engine};
use crate::rng::pattern;
use crate::sys::{self, Map, PAGE, in_child};
use crate::{check, check_eq, tests};

tests!(faults:
    of_files(120), of_domains(120), of_regions(300), of_copies(300), of_attachments(300), of_requests(600),
    of_engine_threads(300),
);

/// Line of a test's output that `scripts/test --only faults` adds up.
const POINTS: &str = "injected faults:";

/// More points than any call has.
const MANY: u32 = 5000;

/// Attempts in a row without a point to fail, after which there is none left. A page that is still
/// on a list of the allocator, or a mapping that another call has left, makes one attempt shorter
/// than the next.
const SURE: u32 = 3;

/// Directories of the injectors in debugfs.
const INJECTORS: [&str; 4] = ["failslab", "fail_page_alloc", "fail_usercopy", "fail_futex"];

fn knob(injector: &str, name: &str) -> String {
    format!("/sys/kernel/debug/{injector}/{name}")
}

/// The switch of the calling thread: which of its next allocations and copies fails.
struct Injector {
    nth: File,
    /// What was called, and how many of its points have failed.
    points: RefCell<Vec<(String, u32)>>,
}

impl Injector {
    fn new() -> Outcome<Self> {
        // Without debugfs only allocations that may not sleep would fail, and few pages.
        let nth = File::options()
            .read(true)
            .write(true)
            .open("/proc/thread-self/fail-nth");
        let Ok(nth) = nth else {
            return skip(
                "this kernel cannot fail the n-th allocation (scripts/test --only faults boots one)",
            );
        };
        for injector in INJECTORS {
            // No message per fault.
            fs::write(knob(injector, "verbose"), "0")?;
        }
        for injector in ["failslab", "fail_page_alloc"] {
            fs::write(knob(injector, "ignore-gfp-wait"), "N")?;
        }
        fs::write(knob("fail_page_alloc", "ignore-gfp-highmem"), "N")?;
        fs::write(knob("fail_page_alloc", "min-order"), "0")?;
        Ok(Self {
            nth,
            points: RefCell::default(),
        })
    }

    /// Runs `attempt` with the first point failing, the second, and so on, until none of [`SURE`]
    /// attempts had a point to fail. There is at least one: each call of the ABI reads its
    /// argument.
    fn each(&self, name: &str, attempt: impl Fn(&Attempt) -> Outcome) -> Outcome {
        let points = self.each_if_any(name, attempt)?;
        check!(points > 0, "{name}: nothing to fail");
        Ok(())
    }

    /// As [`Self::each`], for what may have nothing to fail; returns how many points have failed.
    fn each_if_any(&self, name: &str, attempt: impl Fn(&Attempt) -> Outcome) -> Outcome<u32> {
        let (mut points, mut without) = (0, 0);
        for n in 1..MANY {
            let state = Attempt {
                nth: &self.nth,
                n,
                injected: Cell::new(false),
            };
            attempt(&state).map_err(|stop| match stop {
                Stop::Fail(message) => Stop::Fail(format!("{name}, point {n}: {message}")),
                other => other,
            })?;
            if state.injected.get() {
                (points, without) = (points + 1, 0);
            } else {
                without += 1;
            }
            if without == SURE {
                self.points.borrow_mut().push((name.to_owned(), points));
                return Ok(points);
            }
        }
        Err(format!("{name}: more than {MANY} points").into())
    }

    /// Says how many faults there were, in all and in each call: a number that falls is a reason to
    /// look why.
    fn report(&self) {
        let points = self.points.borrow();
        let all: u32 = points.iter().map(|(_, count)| count).sum();
        print!("[{POINTS} {all}");
        for (name, count) in &*points {
            print!("; {name} {count}");
        }
        print!("] ");
    }
}

/// One attempt at something, whose `n`-th point fails.
struct Attempt<'a> {
    nth: &'a File,
    n: u32,
    /// Whether it was reached.
    injected: Cell<bool>,
}

impl Attempt<'_> {
    /// Runs `call`, the only part of the attempt that may fail.
    fn call<T>(&self, call: impl FnOnce() -> Answer<T>) -> Outcome<Answer<T>> {
        let answer = self.inject(call);
        if !self.injected.get() {
            return Ok(Ok(answer?));
        }
        if let Err(errno) = answer {
            check!(
                matches!(errno, Errno::ENOMEM | Errno::EFAULT),
                "unclean error {errno:?}"
            );
        }
        Ok(answer)
    }

    /// As [`Attempt::call`], for what has answers of its own.
    fn inject<T>(&self, call: impl FnOnce() -> T) -> T {
        let digits = self.n.to_string();
        self.nth
            .write_all_at(digits.as_bytes(), 0)
            .expect("fail-nth can be written");
        let value = call();
        let mut text = [0; 16];
        // Reading copies to user space as well: where that is the point to fail, none was reached
        // before.
        let left = match self.nth.read_at(&mut text, 0) {
            Ok(len) => std::str::from_utf8(&text[..len])
                .ok()
                .and_then(|text| text.trim().parse::<u32>().ok())
                .expect("fail-nth is a number"),
            Err(_) => 1,
        };
        // Writing copies from user space, which may be the point that was not reached.
        while self.nth.write_at(b"0", 0).is_err() {}
        self.injected.set(left == 0);
        value
    }
}

/// Waits until what the calls of a test left is gone, and says how much was injected.
fn finish(context: &Context, injector: &Injector) -> Outcome {
    kernel::wait_balanced(context.second())?;
    injector.report();
    Ok(())
}

/// Repeats what failed for want of memory: it has to work now.
fn again<T>(first: Answer<T>, second: impl FnOnce() -> Answer<T>) -> Answer<T> {
    first.or_else(|_| second())
}

fn of_files(context: &Context) -> Outcome {
    let injector = Injector::new()?;
    injector.each("open and close", |attempt| {
        let device = attempt.inject(|| Device::open().map(drop));
        if let Err(errno) = device {
            check!(
                matches!(errno, Errno::ENOMEM | Errno::EFAULT | Errno::ENFILE),
                "unclean error {errno:?}"
            );
        }
        Ok(())
    })?;
    let device = Device::open()?;
    injector.each("GET_INFO", |attempt| {
        let answer = attempt.call(|| device.info())?;
        check_eq!(again(answer, || device.info())?.abi_version, ABI_VERSION);
        Ok(())
    })?;
    let _chosen = choose(software_engine())?;
    device.info()?;
    injector.each("ENGINE_INFO", |attempt| {
        let answer = attempt.call(|| device.engine(0))?;
        check_eq!(again(answer, || device.engine(0))?.index, 0);
        Ok(())
    })?;
    let (device, _) = Device::domain()?;
    let path = format!("/proc/self/fdinfo/{}", device.as_fd().as_raw_fd());
    injector.each("fdinfo", |attempt| {
        let text = attempt.inject(|| fs::read_to_string(&path));
        if let Ok(text) = text {
            check!(text.contains("libcopy-domain-regions:\t0"), "{text:?}");
        }
        Ok(())
    })?;
    finish_with(context, &injector, device)
}

/// Closes the file before everything is counted.
fn finish_with(context: &Context, injector: &Injector, device: Device) -> Outcome {
    drop(device);
    finish(context, injector)
}

fn of_domains(context: &Context) -> Outcome {
    let injector = Injector::new()?;
    injector.each("DOMAIN_CREATE", |attempt| {
        let device = Device::open()?;
        match attempt.call(|| device.create())? {
            // The key could not be told, and a file keeps its domain.
            Err(Errno::EFAULT) => match device.create() {
                Ok(_) | Err(Errno::EISCONN) => {}
                Err(errno) => return Err(errno.into()),
            },
            Err(_) => drop(device.create()?),
            Ok(key) => drop(Device::member(key)?),
        }
        device.share(&Map::anon(PAGE)?, RIGHT_READ)?;
        Ok(())
    })?;
    let (first, key) = Device::domain()?;
    injector.each("DOMAIN_JOIN by key", |attempt| {
        let device = Device::open()?;
        again(attempt.call(|| device.join_key(key))?, || {
            device.join_key(key)
        })?;
        device.share(&Map::anon(PAGE)?, RIGHT_READ)?;
        Ok(())
    })?;
    let _chosen = choose(software_engine())?;
    injector.each("DOMAIN_LEAVE", |attempt| {
        let device = Device::member(key)?;
        let pair = Pair::new(&device, 4 * PAGE)?;
        pair.submit(&device)?;
        again(attempt.call(|| device.leave())?, || device.leave())?;
        check_eq!(first.region_info(pair.source).err(), Some(Errno::ENOENT));
        Ok(())
    })?;
    injector.each_if_any("close of the last file", |attempt| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, 4 * PAGE)?;
        pair.submit(&device)?;
        attempt.inject(|| drop(device));
        Ok(())
    })?;
    injector.each("a child's first call", |attempt| {
        let map = Map::filled(PAGE, 3)?;
        let id = first.share(&map, RIGHT_READ)?;
        // Only the calling thread's number counts, so the child has a switch of its own.
        let (n, inner) = (attempt.n, Map::shared(PAGE)?);
        in_child(|| {
            let own = Injector::new()?;
            let attempt = Attempt {
                nth: &own.nth,
                n,
                injected: Cell::new(false),
            };
            let answer = attempt.call(|| first.region_info(id))?;
            again(answer, || first.region_info(id))?;
            inner.word(0).store(
                attempt.injected.get().into(),
                std::sync::atomic::Ordering::Release,
            );
            Ok(())
        })?;
        attempt
            .injected
            .set(inner.word(0).load(std::sync::atomic::Ordering::Acquire) != 0);
        first.unpin(id)?;
        Ok(())
    })?;
    injector.each("fork", |attempt| {
        let map = Map::filled(4 * PAGE, 3)?;
        let id = first.share(&map, RIGHT_READ)?;
        let (view, at) = first.map(id, RIGHT_READ)?;
        match attempt.inject(sys::fork) {
            Ok(None) => sys::exit(i32::from(view.read(at, 8) != pattern(3, 8))),
            Ok(Some(child)) => {
                let ended = sys::wait_exit(child, context.limit(10));
                check_eq!(ended, Some(sys::Exit::Status(0)));
            }
            Err(errno) => check!(
                matches!(errno, Errno::ENOMEM | Errno::EAGAIN),
                "unclean error {errno:?}"
            ),
        }
        check!(view.read(at, 8) == pattern(3, 8));
        first.unpin(id)?;
        Ok(())
    })?;
    finish_with(context, &injector, first)
}

fn of_regions(context: &Context) -> Outcome {
    let injector = Injector::new()?;
    let (device, _) = Device::domain()?;
    let no_reuse = |flags| RegionCreate {
        rights: RIGHT_READ | RIGHT_WRITE,
        flags,
        ..Default::default()
    };
    injector.each("REGION_CREATE", |attempt| {
        let map = Map::filled(40 * PAGE, 7)?;
        // Pages in the middle are not there yet.
        map.advise(8 * PAGE, 8 * PAGE, libc::MADV_DONTNEED)?;
        let pieces = [
            map.part(5, 3 * PAGE),
            map.part(7 * PAGE, 10 * PAGE),
            map.part(20 * PAGE + 9, 100),
        ];
        let publish = || device.publish_with(&pieces, no_reuse(CREATE_NO_REUSE));
        let region = again(attempt.call(publish)?, publish)?;
        check_eq!(region.length, 13 * PAGE as u64 + 100);
        check!(device.fetch(region.id, 100)? == map.read(5, 100));
        device.unpin(region.id)?;
        Ok(())
    })?;
    injector.each("REGION_CREATE of 1,024 pieces", |attempt| {
        let map = Map::filled(1024 * PAGE, 7)?;
        let pieces: Vec<Piece> = (0..1024).map(|page| map.part(page * PAGE, 9)).collect();
        let publish = || device.publish_with(&pieces, no_reuse(CREATE_NO_REUSE));
        let region = again(attempt.call(publish)?, publish)?;
        check_eq!(region.length, 9 * 1024);
        device.unpin(region.id)?;
        Ok(())
    })?;
    injector.each("REGION_CREATE of huge pages", |attempt| {
        let map = Map::transparent_huge(sys::HUGE)?;
        let publish = || device.publish_with(&[map.piece()], no_reuse(0));
        let region = again(attempt.call(publish)?, publish)?;
        check_eq!(region.length, sys::HUGE as u64);
        device.unpin(region.id)?;
        Ok(())
    })?;
    let map = Map::filled(8 * PAGE, 7)?;
    injector.each("REGION_CREATE of what is still pinned", |attempt| {
        let first = device.share(&map, RIGHT_READ)?;
        device.destroy(first)?;
        let publish = || device.share(&map, RIGHT_READ);
        let id = again(attempt.call(publish)?, publish)?;
        check!(device.fetch(id, 8 * PAGE)? == map.bytes());
        device.destroy(id)?;
        Ok(())
    })?;
    injector.each("REGION_CREATE in place of another", |attempt| {
        let old = device.share(&map, RIGHT_READ)?;
        let publish = || {
            let rest = RegionCreate {
                rights: RIGHT_READ,
                replaces: old,
                ..Default::default()
            };
            device.publish_with(&[map.part(PAGE, 3 * PAGE)], rest)
        };
        let region = again(attempt.call(publish)?, publish)?;
        check_eq!(device.region_info(old).err(), Some(Errno::ENOENT));
        check!(device.fetch(region.id, PAGE)? == map.read(PAGE, PAGE));
        device.destroy(region.id)?;
        Ok(())
    })?;
    for flags in [0, DESTROY_UNPIN] {
        injector.each("REGION_DESTROY", |attempt| {
            let id = device.share(&map, RIGHT_READ)?;
            let destroy = || device.call(REGION_DESTROY, &mut RegionDestroy { id, flags });
            again(attempt.call(destroy)?, destroy)?;
            check_eq!(device.region_info(id).err(), Some(Errno::ENOENT));
            Ok(())
        })?;
    }
    injector.each("REGION_INFO", |attempt| {
        let id = device.share(&map, RIGHT_READ)?;
        let info = attempt.call(|| device.region_info(id))?;
        check_eq!(again(info, || device.region_info(id))?.pages, 8);
        device.destroy(id)?;
        Ok(())
    })?;
    injector.each("munmap and mprotect of what is published", |attempt| {
        let map = Map::filled(8 * PAGE, 7)?;
        let id = device.share(&map, RIGHT_READ)?;
        let _ = attempt.inject(|| {
            let _ = map.protect(PAGE, PAGE, libc::PROT_READ);
            map.unmap(2 * PAGE, PAGE)
        });
        let _ = map.unmap(2 * PAGE, PAGE);
        let buffer = Map::anon(8 * PAGE)?;
        let copied = device.copy(id, COPY_FROM_REGION, 0, 8 * PAGE as u64, &[buffer.piece()]);
        check_eq!(copied.err(), Some(Errno::ESTALE));
        device.unpin(id)?;
        Ok(())
    })?;
    finish_with(context, &injector, device)
}

fn of_copies(context: &Context) -> Outcome {
    let injector = Injector::new()?;
    let (device, _) = Device::domain()?;
    const LEN: usize = 6 * PAGE;
    let map = Map::filled(LEN, 7)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let buffer = Map::anon(LEN)?;
    let pieces = [
        buffer.part(0, PAGE + 1),
        buffer.part(PAGE + 1, LEN - PAGE - 1),
    ];
    injector.each("REGION_COPY from the region", |attempt| {
        buffer.fill(0);
        let answer = attempt.call(|| device.copy(id, COPY_FROM_REGION, 0, LEN as u64, &pieces))?;
        // A fault half way ends the copy early.
        let done = answer.unwrap_or(0) as usize;
        check!(attempt.injected.get() || done == LEN, "{done} bytes");
        check!(buffer.read(0, done) == map.read(0, done), "bytes differ");
        Ok(())
    })?;
    injector.each("REGION_COPY to the region", |attempt| {
        buffer.write(0, &pattern(attempt.n.into(), LEN));
        let answer = attempt.call(|| device.copy(id, COPY_TO_REGION, 0, LEN as u64, &pieces))?;
        let done = answer.unwrap_or(0) as usize;
        check!(attempt.injected.get() || done == LEN, "{done} bytes");
        check!(buffer.read(0, done) == map.read(0, done), "bytes differ");
        Ok(())
    })?;
    let ranges: Vec<Piece> = (0..120)
        .map(|index| Piece {
            base: 24 * index,
            len: 8,
        })
        .collect();
    let places: Vec<i32> = (0..120).map(|index| 24 * index).collect();
    for is_list in [false, true] {
        let what = if is_list { "blocks" } else { "ranges" };
        injector.each(&format!("REGION_COPY of {what}"), |attempt| {
            for flags in [COPY_FROM_REGION, COPY_TO_REGION] {
                buffer.fill(attempt.n as u8);
                let answer = attempt.call(|| {
                    if is_list {
                        let list = Places::List(&places);
                        device.copy_blocks(id, flags, (0, 960), 8, list, &pieces)
                    } else {
                        device.copy_ranges(id, flags, 0, 960, &ranges, &pieces)
                    }
                })?;
                let done = answer.unwrap_or(0) as usize;
                check!(attempt.injected.get() || done == 960, "{done} bytes");
                for at in 0..done {
                    check!(
                        map.read(at / 8 * 24 + at % 8, 1) == buffer.read(at, 1),
                        "byte {at} of {done}"
                    );
                }
                if attempt.injected.get() {
                    break;
                }
            }
            Ok(())
        })?;
    }
    injector.each("REGION_COPY of what may have changed", |attempt| {
        let map = Map::filled(LEN, 9)?;
        let id = device.share(&map, RIGHT_READ)?;
        // The owner's page tables are looked at again, and say that nothing changed.
        map.protect(0, LEN, libc::PROT_READ)?;
        map.protect(0, LEN, sys::RW)?;
        let fetch = || device.copy(id, COPY_FROM_REGION, 0, LEN as u64, &[buffer.piece()]);
        let answer = attempt.call(fetch)?;
        let done = answer.unwrap_or(0) as usize;
        check!(buffer.read(0, done) == map.read(0, done), "bytes differ");
        check_eq!(fetch()? as usize, LEN);
        check!(buffer.bytes() == map.bytes(), "bytes differ");
        // Now it did.
        map.replace(PAGE, PAGE)?;
        let answer = fetch();
        check!(answer == Err(Errno::ESTALE), "{answer:?}");
        device.unpin(id)?;
        Ok(())
    })?;
    injector.each("REGION_COPY after the memory was replaced", |attempt| {
        let map = Map::filled(LEN, 9)?;
        let id = device.share(&map, RIGHT_READ)?;
        map.advise(PAGE, PAGE, libc::MADV_DONTNEED)?;
        let fetch = || device.copy(id, COPY_FROM_REGION, 0, LEN as u64, &[buffer.piece()]);
        let answer = attempt.inject(fetch);
        check!(
            matches!(answer, Err(Errno::ESTALE | Errno::ENOMEM | Errno::EFAULT)),
            "{answer:?}"
        );
        check_eq!(fetch().err(), Some(Errno::ESTALE));
        device.unpin(id)?;
        Ok(())
    })?;
    finish_with(context, &injector, device)
}

fn of_attachments(context: &Context) -> Outcome {
    let injector = Injector::new()?;
    let (device, _) = Device::domain()?;
    const LEN: usize = 6 * PAGE;
    let map = Map::filled(LEN, 7)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    injector.each("REGION_ATTACH", |attempt| {
        let answer = attempt.call(|| device.attach(id, RIGHT_READ))?;
        check_eq!(
            again(answer, || device.attach(id, RIGHT_READ))?.map_length,
            LEN as u64
        );
        Ok(())
    })?;
    let answer = device.attach(id, RIGHT_READ)?;
    let attach = || device.view(answer.map_length as usize, answer.map_offset);
    injector.each("mmap of a region", |attempt| {
        let view = again(attempt.call(attach)?, attach)?;
        check!(view.bytes() == map.bytes(), "bytes differ");
        Ok(())
    })?;
    injector.each_if_any("first touch of an attached page", |attempt| {
        let view = attach()?;
        // A fault that finds no memory is taken again.
        let bytes = attempt.inject(|| view.word(0).load(std::sync::atomic::Ordering::Relaxed));
        check_eq!(
            bytes,
            map.word(0).load(std::sync::atomic::Ordering::Relaxed)
        );
        Ok(())
    })?;
    injector.each("munmap of a part", |attempt| {
        let view = attach()?;
        view.read(0, LEN);
        let first = attempt.inject(|| view.unmap(2 * PAGE, PAGE));
        check!(matches!(first, Ok(()) | Err(Errno::ENOMEM)), "{first:?}");
        Ok(())
    })?;
    injector.each_if_any("munmap", |attempt| {
        let view = attach()?;
        view.read(0, LEN);
        let first = attempt.inject(|| view.unmap(0, LEN));
        check!(matches!(first, Ok(()) | Err(Errno::ENOMEM)), "{first:?}");
        Ok(())
    })?;
    injector.each("mmap of the status table", |attempt| {
        let (device, _) = Device::domain()?;
        let table = || device.view(STATUS_BYTES as usize, STATUS_OFFSET);
        let view = again(attempt.call(table)?, table)?;
        check!(view.read(0, 64) == [0; 64]);
        Ok(())
    })?;
    finish_with(context, &injector, device)
}

/// Runs `body` with kernel threads and with modelled engines.
fn with_each(body: impl Fn(&str) -> Outcome) -> Outcome {
    let engines: &[&str] = if modelled() {
        &[software_engine(), "auto"]
    } else {
        &[software_engine()]
    };
    for engine in engines {
        let _chosen = choose(engine)?;
        body(engine).map_err(|stop| match stop {
            Stop::Fail(message) => Stop::Fail(format!("engine={engine}: {message}")),
            other => other,
        })?;
    }
    Ok(())
}

fn of_requests(context: &Context) -> Outcome {
    let injector = Injector::new()?;
    const LEN: usize = 40 * PAGE;
    // Channels are acquired by the first request.
    injector.each("REQUEST_SUBMIT, the first", |attempt| {
        let _chosen = choose(software_engine())?;
        let (device, _) = Device::domain()?;
        device.info()?;
        let pair = Pair::new(&device, LEN)?;
        let submit = || pair.submit(&device);
        // Without a thread there is no engine.
        let first = attempt.inject(submit);
        check!(
            matches!(
                first,
                Ok(_) | Err(Errno::ENOMEM | Errno::EFAULT | Errno::ENODEV)
            ),
            "{first:?}"
        );
        device.complete(again(first, submit)?)?;
        pair.check()
    })?;
    with_each(|_| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, LEN)?;
        device.complete(pair.submit(&device)?)?;
        for flags in [0, SUBMIT_VERIFY] {
            injector.each("REQUEST_SUBMIT", |attempt| {
                pair.to.fill(!pattern(5, 1)[0]);
                let submit = || {
                    let argument = RequestSubmit {
                        flags,
                        fragment_pages: 3,
                        ..request((pair.source, 0), (pair.destination, 0), LEN as u64)
                    };
                    device.submit_with(argument).map(|answer| answer.id)
                };
                let id = again(attempt.call(submit)?, submit)?;
                device.complete(id)?;
                pair.check()
            })?;
        }
        let zeros = || -> Outcome<u32> {
            pair.to.fill(0);
            Ok(pair.submit(&device)?)
        };
        injector.each("REQUEST_WAIT", |attempt| {
            let id = zeros()?;
            let wait = || device.await_request(id, 0, -1).0;
            again(attempt.call(wait)?, wait)?;
            pair.check()?;
            device.complete(id)?;
            Ok(())
        })?;
        injector.each("REQUEST_WAIT that releases", |attempt| {
            let id = zeros()?;
            // A request whose end could not be told is not released.
            again(attempt.call(|| device.complete(id))?, || {
                device.complete(id)
            })?;
            pair.check()
        })?;
        for flags in [0, SWITCH_HELP] {
            injector.each("REQUEST_SWITCH", |attempt| {
                let id = zeros()?;
                let switch = || device.switch(id, flags).0;
                again(attempt.call(switch)?, switch)?;
                pair.check()?;
                device.complete(id)?;
                Ok(())
            })?;
        }
        injector.each("REQUEST_INFO", |attempt| {
            let id = zeros()?;
            let info = || device.request_info(id);
            check_eq!(again(attempt.call(info)?, info)?.length, LEN as u64);
            device.complete(id)?;
            Ok(())
        })?;
        injector.each("REQUEST_CANCEL", |attempt| {
            let id = zeros()?;
            if attempt.call(|| device.cancel(id))?.is_err() {
                // Where only the answer could not be written, the request is gone.
                match device.cancel(id) {
                    Ok(_) | Err(Errno::ENOENT) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            check_eq!(device.request_info(id).err(), Some(Errno::ENOENT));
            Ok(())
        })?;
        Ok(())
    })?;
    kernel::wait_balanced(context.second())?;
    finish(context, &injector)
}

/// Probability of a failure in percent, for tasks that are told to fail; restored in the end.
struct Failing(Vec<String>);

impl Failing {
    /// Has the kernel threads and user workers fail whose names begin with one of `names`.
    fn threads(names: &[&str], percent: u32) -> Outcome<Self> {
        let mut told = Vec::new();
        // Its own user workers, too.
        for entry in fs::read_dir("/proc")?.chain(fs::read_dir("/proc/self/task")?) {
            let path = entry?.path();
            let Ok(name) = fs::read_to_string(path.join("comm")) else {
                continue;
            };
            // A kernel thread has no command line.
            let kernel = path.starts_with("/proc/self/task")
                || fs::read(path.join("cmdline")).is_ok_and(|line| line.is_empty());
            let switch = path.join("make-it-fail").display().to_string();
            if kernel
                && names.iter().any(|start| name.starts_with(start))
                && fs::write(&switch, "1").is_ok()
            {
                told.push(switch);
            }
        }
        let failing = Self(told);
        for injector in ["failslab", "fail_page_alloc"] {
            fs::write(knob(injector, "task-filter"), "Y")?;
            fs::write(knob(injector, "interval"), "1")?;
            fs::write(knob(injector, "times"), "-1")?;
            fs::write(knob(injector, "probability"), percent.to_string())?;
        }
        Ok(failing)
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        for injector in ["failslab", "fail_page_alloc"] {
            let _ = fs::write(knob(injector, "probability"), "0");
            let _ = fs::write(knob(injector, "task-filter"), "N");
        }
        for switch in &self.0 {
            let _ = fs::write(switch, "0");
        }
    }
}

/// The threads that work on requests cannot be given a number, so their allocations fail at random:
/// every byte has to be in place all the same.
fn of_engine_threads(context: &Context) -> Outcome {
    let _ = Injector::new()?;
    with_each(|_| {
        let (device, _) = Device::domain()?;
        let pair = Pair::new(&device, 64 * PAGE)?;
        device.complete(pair.submit(&device)?)?;
        for percent in [5, 30, 100] {
            let failing = Failing::threads(&["libcopy", "kworker"], percent)?;
            check!(!failing.0.is_empty(), "no thread of the kernel was found");
            let end = Instant::now() + Duration::from_secs(3) * context.scale.min(3);
            while Instant::now() < end {
                pair.to.fill(!pattern(5, 1)[0]);
                let id = device
                    .submit_with(RequestSubmit {
                        fragment_pages: 5,
                        ..request((pair.source, 0), (pair.destination, 0), 64 * PAGE as u64)
                    })?
                    .id;
                device.complete(id)?;
                pair.check()?;
                let id = pair.submit(&device)?;
                device.cancel(id)?;
            }
            drop(failing);
        }
        Ok(())
    })?;
    kernel::wait_balanced(context.second())?;
    Ok(())
}
