// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests: transfers that an engine works on, with every engine that this machine has. Kernel
//! threads it always has.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::death::soon;
use crate::device::{Answer, Device};
use crate::harness::{Context, Outcome, Stop, skip};
use crate::kernel::{Stats, wait_balanced};
use crate::region::Scattered;
use crate::rng::{Rng, pattern};
use crate::sys::{self, Child, Map, PAGE, SharedCounters, in_child};
use crate::{check, check_eq, check_err, tests};

tests!(request:
    engines, moves, random(120), verifies, nothing, refusals, rights, unknown, status_table,
    status_table_is_read_only, front(60), switches(60), members_share_the_work(60),
    switched_in_a_signal_handler(60), helpers(60), announced, cancelled(60), not_the_submitter,
    regions_go(60), owner_dies(60), owner_dies_at_the_very_end(60), submitter_dies(120), left_behind(60), interrupted(60), many(60),
    counts_uses, engine_changes(120), corruption(120), device_taken_away(180), channels_change_numbers(120), storm(600),
    checksums_are_the_submitters_work(120), a_copy_ends_with_its_request(60),
    a_copier_that_never_ran_leaves_nothing(120), what_an_engine_loses_is_the_submitters_work(120),
);

const PARAMETER: &str = "/sys/module/libcopy/parameters/engine";

/// Restores the parameter.
pub struct Chosen(String);

impl Drop for Chosen {
    // Gives channels back, so that other clients of dmaengine find them.
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, "off");
        let _ = Device::open().and_then(|device| device.info());
        let _ = fs::write(PARAMETER, &self.0);
    }
}

pub fn choose(engine: &str) -> Outcome<Chosen> {
    let before = fs::read_to_string(PARAMETER)?.trim().to_owned();
    fs::write(PARAMETER, engine)?;
    Ok(Chosen(before))
}

/// Runs `body` with kernel threads, then with the machine's engines if it has any; with modelled
/// engines, which have a run of their own beside one without, only with those.
pub fn with_each(body: impl Fn() -> Outcome) -> Outcome {
    let all = ["kthread", "auto"];
    let engines = if modelled() { &all[1..] } else { &all };
    for engine in engines {
        let _chosen = choose(engine)?;
        if Device::open()?.info()?.engines_now()? == 0 {
            continue;
        }
        body().map_err(|stop| match stop {
            Stop::Fail(message) => Stop::Fail(format!("engine={engine}: {message}")),
            other => other,
        })?;
    }
    Ok(())
}

trait EnginesNow {
    fn engines_now(&self) -> Answer<u32>;
}

impl EnginesNow for Info {
    /// Engines that have a channel.
    fn engines_now(&self) -> Answer<u32> {
        let device = Device::open()?;
        let mut count = 0;
        for index in 0..self.engines {
            count += u32::from(device.engine(index)?.channels > 0);
        }
        Ok(count)
    }
}

impl Device {
    pub fn engine(&self, index: u32) -> Answer<EngineInfo> {
        let mut argument = EngineInfo {
            index,
            ..Default::default()
        };
        self.call(ENGINE_INFO, &mut argument)?;
        Ok(argument)
    }

    pub fn submit_with(&self, rest: RequestSubmit) -> Answer<RequestSubmit> {
        let mut argument = rest;
        self.call(REQUEST_SUBMIT, &mut argument)?;
        Ok(argument)
    }

    pub fn submit(&self, from: (u32, u64), to: (u32, u64), length: u64) -> Answer<u32> {
        self.submit_with(request(from, to, length))
            .map(|answer| answer.id)
    }

    pub fn await_request(
        &self,
        id: u32,
        flags: u32,
        timeout_ns: i64,
        until: u64,
    ) -> (Answer<()>, RequestWait) {
        let mut argument = RequestWait {
            id,
            flags,
            timeout_ns,
            until,
            ..Default::default()
        };
        (self.call(REQUEST_WAIT, &mut argument), argument)
    }

    /// Waits for the end and releases.
    pub fn complete(&self, id: u32) -> Answer<()> {
        self.await_request(id, REQUEST_RELEASE, -1, 0).0
    }

    pub fn switch(&self, id: u32, flags: u32) -> (Answer<()>, RequestSwitch) {
        let mut argument = RequestSwitch {
            id,
            flags,
            ..Default::default()
        };
        (self.call(REQUEST_SWITCH, &mut argument), argument)
    }

    pub fn request_info(&self, id: u32) -> Answer<RequestInfo> {
        let mut argument = RequestInfo {
            id,
            ..Default::default()
        };
        self.call(REQUEST_INFO, &mut argument)?;
        Ok(argument)
    }

    pub fn cancel(&self, id: u32) -> Answer<RequestCancel> {
        let mut argument = RequestCancel {
            id,
            ..Default::default()
        };
        self.call(REQUEST_CANCEL, &mut argument)?;
        Ok(argument)
    }
}

pub fn request(from: (u32, u64), to: (u32, u64), length: u64) -> RequestSubmit {
    RequestSubmit {
        source: from.0,
        source_offset: from.1,
        destination: to.0,
        destination_offset: to.1,
        length,
        node: NODE_ANY,
        ..Default::default()
    }
}

/// The status table of a file, mapped.
pub struct Table(Map);

impl Table {
    pub fn of(device: &Device) -> Outcome<Self> {
        Ok(Self(Map::new(
            STATUS_BYTES as usize,
            libc::PROT_READ,
            libc::MAP_SHARED,
            Some(device.as_fd()),
            STATUS_OFFSET,
        )?))
    }

    fn at(&self, id: u32) -> usize {
        self.0.addr() as usize + (id % MAX_REQUESTS) as usize * std::mem::size_of::<RequestStatus>()
    }

    /// The state of a request, to be read before the rest.
    pub fn state(&self, id: u32) -> u32 {
        let at = self.at(id) + std::mem::offset_of!(RequestStatus, state);
        // SAFETY: Inside the mapping, aligned, and only read.
        let word = unsafe { &*(at as *const std::sync::atomic::AtomicU32) };
        word.load(std::sync::atomic::Ordering::Acquire)
    }

    pub fn entry(&self, id: u32) -> RequestStatus {
        let at = self.at(id);
        // SAFETY: Inside the mapping, aligned; the kernel writes meanwhile, hence volatile.
        unsafe { std::ptr::read_volatile(at as *const RequestStatus) }
    }
}

/// Two buffers, published; the destination's old bytes differ everywhere.
pub struct Pair {
    pub from: Map,
    pub to: Map,
    pub source: u32,
    pub destination: u32,
}

impl Pair {
    pub fn new(device: &Device, length: usize) -> Outcome<Self> {
        let from = Map::filled(length, 5)?;
        let to = Map::anon(length)?;
        to.write(
            0,
            &from.bytes().iter().map(|byte| !byte).collect::<Vec<_>>(),
        );
        let source = device.share(&from, RIGHT_READ)?;
        let destination = device.share(&to, RIGHT_WRITE)?;
        Ok(Self {
            from,
            to,
            source,
            destination,
        })
    }

    pub fn submit(&self, device: &Device) -> Answer<u32> {
        device.submit(
            (self.source, 0),
            (self.destination, 0),
            self.from.len() as u64,
        )
    }

    pub fn check(&self) -> Outcome {
        check!(self.to.bytes() == self.from.bytes(), "bytes differ");
        Ok(())
    }
}

/// Enough to be under way for a while: tens of thousands of fragments of a page.
const LONG: usize = 32 << 20;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .trim_end_matches('\0')
        .to_owned()
}

fn engines(_: &Context) -> Outcome {
    let device = Device::open()?;
    {
        let _chosen = choose("kthread")?;
        let count = device.info()?.engines;
        let all: Vec<EngineInfo> = (0..count)
            .map(|index| device.engine(index))
            .collect::<Answer<_>>()?;
        let threads: Vec<&EngineInfo> = all
            .iter()
            .filter(|engine| engine.kind == ENGINE_KTHREAD)
            .collect();
        check!(!threads.is_empty(), "no threads in {all:?}");
        for (index, engine) in threads.iter().enumerate() {
            check_eq!(text(&engine.driver), "libcopy");
            check_eq!(engine.channels, 1);
            check_eq!(engine.alignment, 1);
            check!(
                threads[..index]
                    .iter()
                    .all(|other| other.node != engine.node)
            );
        }
        check_err!(device.engine(count), ENOENT);
    }
    {
        let _chosen = choose("off")?;
        for index in 0..device.info()?.engines {
            check_eq!(device.engine(index)?.channels, 0, "engine {index}");
        }
    }
    check_err!(fs::write(PARAMETER, "nonsense").map_err(errno), EINVAL);
    let _chosen = choose("auto")?;
    for index in 0..device.info()?.engines {
        let engine = device.engine(index)?;
        check_eq!(engine.index, index);
        if engine.kind == ENGINE_DMA {
            check!(!text(&engine.driver).is_empty() && engine.max_transfer >= 64);
        }
    }
    Ok(())
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

fn moves(_: &Context) -> Outcome {
    with_each(|| {
        let (device, key) = Device::domain()?;
        let pair = Pair::new(&device, 64 * PAGE)?;
        let before = Stats::read()?;
        in_child(|| {
            // A third party.
            let peer = Device::member(key)?;
            let id = pair.submit(&peer)?;
            let (answer, left) = peer.await_request(id, 0, -1, 0);
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
        check_eq!(after.since(&before, "bytes_engine")?, 64 * PAGE as i64);
        check_eq!(after.since(&before, "fragments_engine")?, 64);
        check_eq!(after.since(&before, "fragments_cpu")?, 0);
        Ok(())
    })
}

/// Pieces of any length at any address, on both sides.
fn random(context: &Context) -> Outcome {
    with_each(|| {
        let mut rng = context.rng();
        let (device, _) = Device::domain()?;
        for _ in 0..120 {
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
        let (answer, left) = device.await_request(id, 0, 0, 0);
        answer?;
        check_eq!((left.state, left.done), (REQUEST_DONE, 0));
        device.switch(id, 0).0?;
        device.complete(id)?;
        check_err!(device.complete(id), ENOENT);
        Ok(())
    })
}

fn refusals(_: &Context) -> Outcome {
    let _chosen = choose("kthread")?;
    let (device, _) = Device::domain()?;
    let map = Map::filled(4 * PAGE, 1)?;
    let id = device.share(&map, RIGHT_READ | RIGHT_WRITE)?;
    let good = request((id, 0), (id, 2 * PAGE as u64), PAGE as u64);
    let bad = [
        (RequestSubmit { flags: 8, ..good }, Errno::EINVAL),
        (
            RequestSubmit {
                reserved: 1,
                ..good
            },
            Errno::EINVAL,
        ),
        (RequestSubmit { eventfd: 1, ..good }, Errno::EINVAL),
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
                flags: SUBMIT_EVENTFD,
                eventfd: 12345,
                ..good
            },
            Errno::EBADF,
        ),
        (
            RequestSubmit {
                flags: SUBMIT_EVENTFD,
                eventfd: 1,
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
        (RequestSubmit { node: 4711, ..good }, Errno::ENODEV),
        (RequestSubmit { node: -2, ..good }, Errno::ENODEV),
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
    let _chosen = choose("kthread")?;
    let (device, _) = Device::domain()?;
    let pair = Pair::new(&device, PAGE)?;
    let id = pair.submit(&device)?;
    for other in [0, 1, id + 1, id + MAX_REQUESTS, u32::MAX] {
        check_err!(device.await_request(other, 0, 0, 0).0, ENOENT, "{other}");
        check_err!(device.switch(other, 0).0, ENOENT, "{other}");
        check_err!(device.request_info(other), ENOENT, "{other}");
        check_err!(device.cancel(other), ENOENT, "{other}");
    }
    check_err!(device.await_request(id, 2, 0, 0).0, EINVAL);
    check_err!(device.await_request(id, 0, 0, PAGE as u64 + 1).0, ERANGE);
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
            let (answer, left) = device.await_request(id, 0, -1, part as u64);
            answer?;
            check!(left.front >= part as u64, "{left:?}");
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
    with_each(|| {
        let (device, _) = Device::domain()?;
        let table = Table::of(&device)?;
        for pages in [1, 8, 64] {
            let pair = Pair::new(&device, LONG)?;
            let before = Stats::read()?;
            let id = device
                .submit_with(RequestSubmit {
                    fragment_pages: pages,
                    ..request((pair.source, 0), (pair.destination, 0), LONG as u64)
                })?
                .id;
            device.await_request(id, 0, -1, LONG as u64 / 10).0?;
            let (answer, left) = device.switch(id, 0);
            answer?;
            pair.check()?;
            check_eq!((left.state, left.done), (REQUEST_DONE, LONG as u64));
            let info = device.request_info(id)?;
            check_eq!(info.mode, MODE_CPU);
            check_eq!(table.entry(id).mode, MODE_CPU);
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
    with_each(|| {
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
        self.await_request(id, 0, -1, 0).0
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
    with_each(|| {
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

fn announced(context: &Context) -> Outcome {
    with_each(|| {
        let (device, key) = Device::domain()?;
        let pair = Pair::new(&device, 64 * PAGE)?;
        // SAFETY: No memory is passed; the descriptor is new and nobody else's.
        let event = unsafe {
            let fd = sys::result(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).into())?;
            OwnedFd::from_raw_fd(fd as i32)
        };
        check_eq!(sys::poll(device.as_fd(), libc::POLLIN, Duration::ZERO)?, 0);
        let id = device
            .submit_with(RequestSubmit {
                flags: SUBMIT_EVENTFD,
                eventfd: event.as_raw_fd(),
                ..request((pair.source, 0), (pair.destination, 0), 64 * PAGE as u64)
            })?
            .id;
        let long = context.second() * 20;
        check_eq!(sys::poll(device.as_fd(), libc::POLLIN, long)?, libc::POLLIN);
        check_eq!(sys::poll(event.as_fd(), libc::POLLIN, long)?, libc::POLLIN);
        pair.check()?;
        let mut count = [0u8; 8];
        // SAFETY: Eight bytes that outlive the call.
        let got = unsafe { libc::read(event.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
        check_eq!((got, u64::from_ne_bytes(count)), (8, 1));
        // Another file of the domain has nothing to report.
        in_child(|| {
            let peer = Device::member(key)?;
            check_eq!(sys::poll(peer.as_fd(), libc::POLLIN, Duration::ZERO)?, 0);
            Ok(())
        })?;
        device.complete(id)?;
        check_eq!(sys::poll(device.as_fd(), libc::POLLIN, Duration::ZERO)?, 0);
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
                device
                    .await_request(id, 0, -1, (round * PAGE + 1) as u64)
                    .0?;
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
    let _chosen = choose("kthread")?;
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
        for round in 0..6 {
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
            match device.await_request(id, 0, 20_000_000_000, 0).0 {
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
fn left_behind(_: &Context) -> Outcome {
    with_each(|| {
        for way in 0..4 {
            in_child(|| {
                let (device, _) = Device::domain()?;
                let pair = Pair::new(&device, LONG)?;
                for _ in 0..5 {
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

fn counts_uses(_: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let from = Map::filled(4 * PAGE, 1)?;
        let to = Map::anon(4 * PAGE)?;
        let counted = |map: &Map, rights| {
            let rest = RegionCreate {
                rights,
                uses: 2,
                ..Default::default()
            };
            device.publish_with(&[map.piece()], rest).map(|r| r.id)
        };
        let (source, destination) = (counted(&from, RIGHT_READ)?, counted(&to, RIGHT_WRITE)?);
        for _ in 0..2 {
            let id = device
                .submit_with(RequestSubmit {
                    flags: SUBMIT_COUNT_USE,
                    ..request((source, 0), (destination, 0), 4 * PAGE as u64)
                })?
                .id;
            device.complete(id)?;
        }
        device.wait(source, 0, 0).0?;
        device.wait(destination, 0, 0).0?;
        check!(from.bytes() == to.bytes());
        Ok(())
    })
}

/// The engine is taken away, and given back, while it is at work.
fn engine_changes(_: &Context) -> Outcome {
    with_each(|| {
        let (device, _) = Device::domain()?;
        let now = fs::read_to_string(PARAMETER)?.trim().to_owned();
        for _ in 0..10 {
            let pair = Pair::new(&device, LONG / 2)?;
            let id = pair.submit(&device)?;
            {
                let _chosen = choose("off")?;
                // The list is brought up to date by whoever looks at it.
                device.info()?;
                check_err!(
                    device.submit((pair.source, 0), (pair.destination, 0), 8),
                    ENODEV
                );
            }
            check_eq!(fs::read_to_string(PARAMETER)?.trim(), now);
            device.complete(id)?;
            pair.check()?;
            device.unpin(pair.source)?;
            device.unpin(pair.destination)?;
        }
        Ok(())
    })
}

/// Asks the model of the copy engines.
pub fn ask(words: &[&str]) -> Outcome<String> {
    let answer = std::process::Command::new("ioat-model")
        .arg("ask")
        .args(words)
        .output()?;
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    check!(answer.status.success(), "ask {words:?}: {answer:?}");
    Ok(text)
}

pub fn modelled() -> bool {
    std::env::var_os("LIBCOPY_IOAT").is_some_and(|value| !value.is_empty())
}

/// A parameter of the module, restored in the end.
pub struct Parameter(&'static str, String);

impl Parameter {
    pub fn set(name: &'static str, value: u32) -> Outcome<Self> {
        let path = format!("/sys/module/libcopy/parameters/{name}");
        let before = fs::read_to_string(&path)?.trim().to_owned();
        fs::write(&path, value.to_string())?;
        Ok(Self(name, before))
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        let _ = fs::write(
            format!("/sys/module/libcopy/parameters/{}", self.0),
            &self.1,
        );
    }
}

/// Waits until every channel that was acquired works.
pub fn all_in_service(context: &Context, device: &Device) -> Outcome {
    let start = Instant::now();
    loop {
        let mut out = 0;
        for index in 0..device.info()?.engines {
            out += device.engine(index)?.out_of_service;
        }
        if out == 0 {
            return Ok(());
        }
        check!(
            start.elapsed() < context.second() * 20,
            "{out} channels are still out of service"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A wrong byte that nobody reports is found by verification, and mended.
fn corruption(_: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    let _chosen = choose("auto")?;
    let (device, _) = Device::domain()?;
    let pair = Pair::new(&device, 1 << 20)?;
    let before = Stats::read()?;
    ask(&["fault", "*", "corrupt", "after=5", "count=3"])?;
    let id = device
        .submit_with(RequestSubmit {
            flags: SUBMIT_VERIFY,
            ..request((pair.source, 0), (pair.destination, 0), 1 << 20)
        })?
        .id;
    let answer = device.complete(id);
    ask(&["clear-faults", "*"])?;
    answer?;
    // More if a slow machine had the request forwarded to a second channel.
    check!(Stats::read()?.since(&before, "verify_failures")? >= 3);
    pair.check()
}

/// Where the driver's functions are bound and unbound.
pub const IOATDMA: &str = "/sys/bus/pci/drivers/ioatdma";

/// The device loses its driver while it is at work, and gets it back.
fn device_taken_away(context: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    let _chosen = choose("auto")?;
    let (device, _) = Device::domain()?;
    for _ in 0..3 {
        let pair = Pair::new(&device, LONG / 4)?;
        let ids: Vec<u32> = (0..3)
            .map(|_| pair.submit(&device))
            .collect::<Answer<_>>()?;
        let devices: Vec<String> = fs::read_dir(IOATDMA)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("0000:"))
            .collect();
        for name in &devices {
            fs::write(format!("{IOATDMA}/unbind"), name)?;
        }
        // Channels that were never used are found gone by whoever looks.
        device.info()?;
        check_err!(
            device.submit((pair.source, 0), (pair.destination, 0), 8),
            ENODEV
        );
        for id in ids {
            let (answer, left) = device.await_request(id, REQUEST_RELEASE, 60_000_000_000, 0);
            check!(answer.is_ok(), "{answer:?} {left:?}");
        }
        pair.check()?;
        for name in &devices {
            fs::write(format!("{IOATDMA}/bind"), name)?;
        }
        device.unpin(pair.source)?;
        device.unpin(pair.destination)?;
        let pair = Pair::new(&device, 64 * PAGE)?;
        device.info()?;
        let id = pair.submit(&device)?;
        device.complete(id)?;
        pair.check()?;
        device.unpin(pair.source)?;
        device.unpin(pair.destination)?;
        all_in_service(context, &device)?;
    }
    Ok(())
}

/// dmaengine gives numbers of devices that went to those that come next. Here two functions of different engines
/// change numbers; each engine has as many channels as before, and each channel works for one engine.
fn channels_change_numbers(context: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    let _chosen = choose("auto")?;
    let (device, _) = Device::domain()?;
    let channels = || -> Outcome<Vec<u32>> {
        let engines = 0..device.info()?.engines;
        let live = engines.map(|index| Ok(device.engine(index)?.channels));
        live.filter(|count| !matches!(count, Ok(0))).collect()
    };
    let before = channels()?;
    let mut functions = fs::read_dir(IOATDMA)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("0000:"))
        .collect::<Vec<_>>();
    functions.sort();
    let (Some(first), Some(last)) = (functions.first(), functions.last()) else {
        return skip("there are no functions");
    };
    if first.split_once('.').map(|(slot, _)| slot) == last.split_once('.').map(|(slot, _)| slot) {
        return skip("there is one engine only");
    }
    let number = |function: &str| -> Outcome<String> {
        let devices = fs::read_dir(format!("/sys/bus/pci/devices/{function}/dma"))?;
        let name = devices.flatten().next().map(|entry| entry.file_name());
        let name = name.and_then(|name| name.into_string().ok());
        Ok(name.ok_or_else(|| format!("{function} has no channel"))?)
    };
    let numbers = (number(first)?, number(last)?);
    for name in [first, last] {
        fs::write(format!("{IOATDMA}/unbind"), name)?;
    }
    device.info()?;
    // The lower number is given first.
    let shortlex = |name: &String| (name.len(), name.clone());
    let order = if shortlex(&numbers.0) < shortlex(&numbers.1) {
        [last, first]
    } else {
        [first, last]
    };
    for name in order {
        fs::write(format!("{IOATDMA}/bind"), name)?;
    }
    check_eq!(
        (number(last)?, number(first)?),
        numbers,
        "the numbers are the same"
    );
    check_eq!(channels()?, before);
    // All channels at work: none is wanted twice.
    let pairs = (0..2 * functions.len())
        .map(|_| Pair::new(&device, 64 * PAGE))
        .collect::<Outcome<Vec<_>>>()?;
    for pair in &pairs {
        let id = pair.submit(&device)?;
        device.complete(id)?;
        pair.check()?;
        device.unpin(pair.source)?;
        device.unpin(pair.destination)?;
    }
    all_in_service(context, &device)
}

/// The owner of the source dies when its bytes are all in place and a CPU, which took over, compares
/// checksums: the request ends well, and nothing of it is left.
fn owner_dies_at_the_very_end(_: &Context) -> Outcome {
    if modelled() {
        return skip("needs kernel threads, which the run without copy engines has");
    }
    let mut in_time = 0;
    for _ in 0..2 {
        let _chosen = choose("kthread")?;
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
        // Whoever asks next finds that the engine is to go.
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

/// A cgroup of its own; gone when this is dropped, if nobody is in it any more.
struct Cgroup {
    root: String,
    path: String,
}

impl Cgroup {
    fn new(name: &str) -> Outcome<Self> {
        let root = format!("/tmp/{name}.{}", std::process::id());
        fs::create_dir_all(&root)?;
        sys::mount("none", &root, "cgroup2")?;
        let path = format!("{root}/{name}");
        fs::create_dir_all(&path)?;
        Ok(Self { root, path })
    }

    /// Takes the group away; fails while somebody is in it.
    fn remove(&self) -> std::io::Result<()> {
        fs::remove_dir(&self.path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = self.remove();
        let _ = nix::mount::umount2(&*self.root, nix::mount::MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.root);
    }
}

/// Kernel threads that copy for a process in the cgroup `group`, with the nanoseconds that each has run.
fn copiers(group: &str) -> Outcome<Vec<(i32, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if read("comm").trim() != "libcopy/copier" || read("cgroup").trim() != group {
            continue;
        }
        let ran = read("schedstat")
            .split_whitespace()
            .next()
            .and_then(|word| word.parse().ok());
        // A kernel without CONFIG_SCHED_INFO has only what its ticks saw: `stime`, the 15th field, in
        // hundredths of a second. The name has no blank.
        let ticks = || -> Option<u64> { read("stat").split_whitespace().nth(14)?.parse().ok() };
        let ran = ran.or_else(|| Some(ticks()? * 10_000_000));
        found.push((pid, ran.unwrap_or(0)));
    }
    Ok(found)
}

/// Comparing what an engine has moved is work of a thread in the submitter's cgroup, for which the
/// submitter's container pays, and which does not outlive it.
fn checksums_are_the_submitters_work(context: &Context) -> Outcome {
    /// Requests after which the thread has run for long enough to be seen, whatever kernel and machine.
    const ROUNDS: u32 = 100;
    // Where every byte is checked, filling the buffers would take minutes.
    let len = (16 << 20) / context.scale as usize / PAGE * PAGE;
    with_each(|| {
        let group = Cgroup::new("verify")?;
        let counters = SharedCounters::new()?;
        let submit_on_and_on = || -> Outcome {
            fs::write(format!("{}/cgroup.procs", group.path), "0")?;
            let (device, _) = Device::domain()?;
            let pair = Pair::new(&device, len)?;
            let mine = fs::read_to_string("/proc/self/cgroup")?.trim().to_owned();
            check!(mine.ends_with("/verify"), "in the group {mine:?}");
            for round in 1.. {
                let id = device
                    .submit_with(RequestSubmit {
                        flags: SUBMIT_VERIFY,
                        fragment_pages: 256,
                        ..request((pair.source, 0), (pair.destination, 0), len as u64)
                    })?
                    .id;
                if round >= 3 && counters.get(0) == 0 {
                    // Two milliseconds: 64 MiB take longer even on a fast processor.
                    let ran: u64 = copiers(&mine)?.iter().map(|(_, ran)| ran).sum();
                    check!(
                        round < ROUNDS,
                        "after {ROUNDS} requests threads of the group have run for {ran} ns"
                    );
                    if ran > 2_000_000 {
                        counters.set(0, 1);
                    }
                }
                // After that one request after the other, until the end.
                device.complete(id)?;
            }
            Ok(())
        };
        let child = Child::spawn(|| {
            let ended = submit_on_and_on();
            counters.set(0, 2);
            ended
        })?;
        if counters.await_at_least(0, 1).is_ok_and(|seen| seen == 1) {
            child.kill_at_once(context)?;
        } else {
            return child.join();
        }
        // The thread is gone when the group can be.
        soon(context, || group.remove().is_ok())
    })
}

/// A fragment that an engine was given and does not copy is copied by the thread in the submitter's cgroup that
/// compares checksums, not by the supervisor, which serves everybody.
fn what_an_engine_loses_is_the_submitters_work(context: &Context) -> Outcome {
    if !modelled() {
        return skip("no model of copy engines (scripts/vm --ioat)");
    }
    let _chosen = choose("auto")?;
    let group = Cgroup::new("lost")?;
    Child::spawn(|| {
        fs::write(format!("{}/cgroup.procs", group.path), "0")?;
        let mine = fs::read_to_string("/proc/self/cgroup")?.trim().to_owned();
        let (device, _) = Device::domain()?;
        let before = Stats::read()?;
        // One fragment, which the engine claims when it is submitted: nothing is left for a take-over.
        let pair = Pair::new(&device, PAGE)?;
        ask(&["fault", "*", "hang", "after=0", "count=1"])?;
        let (answer, left) = device.await_request(pair.submit(&device)?, 0, 60_000_000_000, 0);
        ask(&["clear-faults", "*"])?;
        check!(answer.is_ok(), "{answer:?} {left:?}");
        pair.check()?;
        let info = device.request_info(left.id)?;
        check_eq!((info.engine_bytes, info.cpu_bytes), (0, PAGE as u64));
        check_eq!(Stats::read()?.since(&before, "takeovers")?, 0);
        check_eq!(copiers(&mine)?.len(), 1, "threads in the group {mine:?}");
        device.complete(left.id)?;
        all_in_service(context, &device)
    })?
    .join()?;
    // The thread is gone when the group can be.
    soon(context, || group.remove().is_ok())
}

/// What a CPU is copying for a request that is cancelled is not copied to its end: a fragment may have
/// 16 MiB.
fn a_copy_ends_with_its_request(_: &Context) -> Outcome {
    const LEN: usize = MAX_FRAGMENT_PAGES as usize * PAGE;
    let _chosen = choose("kthread")?;
    let (device, _) = Device::domain()?;
    let pair = Pair::new(&device, LEN)?;
    let table = Table::of(&device)?;
    for _ in 0..50 {
        let id = device
            .submit_with(RequestSubmit {
                fragment_pages: MAX_FRAGMENT_PAGES,
                ..request((pair.source, 0), (pair.destination, 0), LEN as u64)
            })?
            .id;
        while table.entry(id).next == 0 && table.state(id) == REQUEST_RUNNING {
            std::hint::spin_loop();
        }
        // The buffer need not start at a page of its own: then it has two fragments.
        let claimed = table.entry(id).next;
        let left = device.cancel(id)?;
        if claimed != 0 && left.state == REQUEST_FAILED && left.done == 0 {
            check_eq!(table.entry(id).error, Errno::ECANCELED as i32);
            return Ok(());
        }
    }
    Err("50 cancelled requests were copied to their end"
        .to_owned()
        .into())
}

/// The submitter leaves while the thread for its checksums is being started: a kernel thread that is stopped
/// before its first instruction does nothing at all.
fn a_copier_that_never_ran_leaves_nothing(context: &Context) -> Outcome {
    with_each(|| {
        // New threads wait for a processor.
        let hogs: Vec<Child> = (0..2 * num_cpus())
            .map(|_| {
                Child::spawn(|| {
                    loop {
                        std::hint::spin_loop();
                    }
                })
            })
            .collect::<Outcome<_>>()?;
        let mut rng = context.rng();
        for _ in 0..200 {
            let (device, _) = Device::domain()?;
            let pair = Pair::new(&device, PAGE)?;
            device.submit_with(RequestSubmit {
                flags: SUBMIT_VERIFY,
                ..request((pair.source, 0), (pair.destination, 0), PAGE as u64)
            })?;
            std::thread::sleep(Duration::from_micros(rng.word() % 1000));
            drop(device);
        }
        for hog in hogs {
            hog.kill_at_once(context)?;
        }
        wait_balanced(context.second()).map_err(Stop::Fail)
    })
}

fn num_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
