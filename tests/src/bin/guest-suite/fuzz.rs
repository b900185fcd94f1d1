// SPDX-License-Identifier: MIT OR Apache-2.0

//! Anything at all, from several threads at once. No answer is wrong; a splat, a hang, or a page
//! that stays pinned is.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::device::Device;
use crate::harness::{Context, Outcome};
use crate::rng::Rng;
use crate::sys::{self, Child, Map, PAGE, RW, SharedCounters};
use crate::{check, check_eq, tests};

tests!(fuzz: any_ioctl(120), any_mmap(60), racing_threads(120), racing_unmaps(120));

/// Memory that the fuzzer offers.
pub const SPACE: usize = 64 * PAGE;

/// Memory around it that nobody needs: offered pieces may reach beyond the end.
pub const SLACK: usize = 128 * PAGE;

/// The offered memory, in the middle of a larger mapping.
pub struct Space {
    /// All of it; the offered part begins at [`SLACK`].
    pub all: Map,
}

impl Space {
    pub fn new() -> Outcome<Self> {
        Ok(Self {
            all: Map::shared(SLACK + SPACE + SLACK)?,
        })
    }

    pub fn addr(&self) -> u64 {
        self.all.addr() + SLACK as u64
    }
}

/// Numbers that tend to hurt.
fn nasty(rng: &mut Rng, space: u64) -> u64 {
    match rng.below(12) {
        0 => 0,
        1 => rng.pick(&[1, 2, 7, 8, 4095, 4096, 4097, 1 << 20]),
        2 => rng.pick(&[
            u64::MAX,
            u64::MAX - 1,
            i64::MAX as u64,
            1 << 63,
            1 << 32,
            u32::MAX.into(),
        ]),
        3 => rng.pick(&[
            0xffff_8880_0000_0000,
            0xffff_ffff_8100_0000,
            0x7fff_ffff_f000,
            1 << 47,
        ]),
        4 | 5 => rng.below(20),
        6 => rng.below(10_000),
        7 => 1 << rng.below(64),
        8 => rng.word(),
        _ => space + rng.below(SPACE as u64),
    }
}

const SIZES: [(u32, usize); 15] = [
    (GET_INFO, size_of::<Info>()),
    (DOMAIN_CREATE, size_of::<DomainCreate>()),
    (DOMAIN_JOIN, size_of::<DomainJoin>()),
    (DOMAIN_LEAVE, size_of::<DomainLeave>()),
    (REGION_CREATE, size_of::<RegionCreate>()),
    (REGION_DESTROY, size_of::<RegionDestroy>()),
    (REGION_INFO, size_of::<RegionInfo>()),
    (REGION_COPY, size_of::<RegionCopy>()),
    (REGION_ATTACH, size_of::<RegionAttach>()),
    (ENGINE_INFO, size_of::<EngineInfo>()),
    (REQUEST_SUBMIT, size_of::<RequestSubmit>()),
    (REQUEST_WAIT, size_of::<RequestWait>()),
    (REQUEST_SWITCH, size_of::<RequestSwitch>()),
    (REQUEST_INFO, size_of::<RequestInfo>()),
    (REQUEST_CANCEL, size_of::<RequestCancel>()),
];

/// The type and number of the command that waits for as long as it is told.
const AWAIT_REQUEST: u32 = REQUEST_WAIT & 0xffff;

/// Ids that the members of a domain have been given last, which most of the calls are about: ids
/// count up, so that a number at random would soon be that of something long gone. Processes that
/// are forked share them.
pub struct Known(SharedCounters);

/// Ids of one kind that are remembered.
const RING: usize = 64;

/// Of a ring: how many ids it was given, before the ids themselves.
#[derive(Clone, Copy)]
enum Ring {
    Regions = 0,
    Requests = 1 + RING as isize,
}

impl Known {
    /// None; create it before forking.
    pub fn new() -> Outcome<Self> {
        Ok(Self(SharedCounters::new()?))
    }

    fn add(&self, ring: Ring, id: u32) {
        let first = ring as usize;
        let at = self.0.bump(first) as usize % RING;
        self.0.set(first + 1 + at, id.into());
    }

    /// One of the `most` last ids; 1 if there is none.
    fn recent(&self, ring: Ring, rng: &mut Rng, most: u64) -> u32 {
        let first = ring as usize;
        match self.0.get(first) {
            0 => 1,
            count => {
                let at = count - 1 - rng.below(count.min(most));
                self.0.get(first + 1 + at as usize % RING) as u32
            }
        }
    }

    /// A region, more often than not one that exists.
    pub fn region(&self, rng: &mut Rng) -> u32 {
        let id = self.recent(Ring::Regions, rng, 16);
        if rng.one_in(10) {
            return 1 + rng.below(u64::from(id) + 2) as u32;
        }
        id
    }

    /// A request, more often than not one that exists.
    fn request(&self, rng: &mut Rng) -> u32 {
        let id = self.recent(Ring::Requests, rng, 8);
        if rng.one_in(10) {
            return id.wrapping_add(1).saturating_sub(rng.below(40) as u32);
        }
        id
    }
}

/// Most pieces of memory, and most ranges of a region, that a command is offered.
const PIECES: usize = 6;
const RANGES: usize = 30;

/// What a command is called with. Only what it reads is drawn: numbers cost more than many a call.
struct Arguments {
    words: [u64; 32],
    pieces: [Piece; PIECES],
    ranges: [Piece; RANGES],
}

impl Arguments {
    fn new() -> Self {
        Self {
            words: [0; 32],
            pieces: [Piece::default(); PIECES],
            ranges: [Piece::default(); RANGES],
        }
    }

    /// The first `bytes` bytes of the structure are anything.
    fn draw(&mut self, rng: &mut Rng, space: u64, bytes: usize) {
        let count = bytes.div_ceil(8).min(self.words.len());
        for word in &mut self.words[..count] {
            *word = match rng.below(3) {
                0 => nasty(rng, space),
                1 => 0,
                _ => nasty(rng, space) & 0xffff_ffff | nasty(rng, space) << 32,
            };
        }
    }

    /// Pieces of memory; their address and their number.
    fn draw_pieces(&mut self, rng: &mut Rng, space: u64) -> (u64, u64) {
        let count = 1 + rng.index(PIECES);
        for piece in &mut self.pieces[..count] {
            piece.base = if rng.one_in(20) {
                nasty(rng, space)
            } else {
                space + rng.below(SPACE as u64)
            };
            piece.len = if rng.one_in(20) {
                // Never valid: regions stay smaller than the slack.
                nasty(rng, space) | 1 << 40
            } else {
                rng.below(8 * PAGE as u64)
            };
        }
        (self.pieces.as_ptr() as u64, count as u64)
    }

    /// Ranges of a region; their address and their number.
    fn draw_ranges(&mut self, rng: &mut Rng, space: u64) -> (u64, u64) {
        let count = 1 + rng.index(RANGES);
        for range in &mut self.ranges[..count] {
            range.base = if rng.one_in(100) {
                nasty(rng, space)
            } else {
                rng.below(2 * PAGE as u64)
            };
            range.len = if rng.one_in(100) {
                nasty(rng, space)
            } else {
                rng.below(300)
            };
        }
        (self.ranges.as_ptr() as u64, count as u64)
    }
}

/// Looks at the domain without an ioctl.
fn look(rng: &mut Rng, device: &Device) {
    match rng.below(3) {
        0 => drop(sys::poll(device.as_fd(), libc::POLLIN, Duration::ZERO)),
        1 => {
            let number = device.as_fd().as_raw_fd();
            let _ = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"));
        }
        _ => {
            let Ok(epoll) = sys::epoll() else { return };
            for _ in 0..1 + rng.below(20) {
                let Ok(copy) = sys::duplicate(device.as_fd(), false) else {
                    return;
                };
                let _ = sys::epoll_add(epoll.as_fd(), copy.as_fd());
            }
        }
    }
}

/// A member that does anything in `space`, which must stay mapped somehow, and nowhere else.
/// Returns how often it called the module.
pub fn mad(rng: &mut Rng, device: &Device, space: &Space, known: &Known, steps: usize) -> u64 {
    let space = space.addr();
    let mut arguments = Arguments::new();
    let mut calls = 0;
    for _ in 0..steps {
        if rng.one_in(40) {
            calls += 1;
            look(rng, device);
        }
        let (command, size) = rng.pick(&SIZES);
        // Leaving or waiting for ever would end the fun.
        if command == DOMAIN_LEAVE && !rng.one_in(50) {
            continue;
        }
        let called = if rng.one_in(15) {
            command & !(0x3fff << 16)
                | rng.pick(&[0, 8, size as u32 - 1, size as u32 + 8, 256]) << 16
        } else if rng.one_in(50) {
            rng.word() as u32 & !(0x3fff << 16) | (rng.below(256) as u32) << 16
        } else {
            command
        };
        let bytes = (called >> 16 & 0x3fff) as usize;
        arguments.draw(rng, space, bytes);
        let id = known.region(rng);
        // Half of the time something that makes sense but for a detail.
        if rng.one_in(2) {
            let flags = rng.pick(&[1, 2, 1, 2, 5]);
            match command {
                REGION_CREATE => {
                    let (pieces, count) = arguments.draw_pieces(rng, space);
                    let words = &mut arguments.words;
                    words[0] = pieces;
                    words[1] = count | rng.below(4) << 32;
                    // What was the count of expected uses must be zero.
                    words[2] = u64::from(rng.one_in(20)) | rng.below(2) << 32;
                    words[3] = if rng.one_in(5) { id.into() } else { 0 };
                    words[4] = 0;
                }
                REGION_COPY => {
                    let (pieces, count) = arguments.draw_pieces(rng, space);
                    let ranges = if rng.one_in(2) {
                        arguments.draw_ranges(rng, space)
                    } else {
                        (0, 0)
                    };
                    let words = &mut arguments.words;
                    words[0] = u64::from(id) | flags << 32;
                    words[1] = rng.below(PAGE as u64);
                    words[2] = match ranges.1 {
                        0 => rng.below(3 * PAGE as u64),
                        count => rng.below(120 * count),
                    };
                    words[3] = pieces;
                    words[4] = count | ranges.1 << 32;
                    words[6] = ranges.0;
                    (words[7], words[8]) = (0, 0);
                    if ranges.1 > 0 && rng.one_in(2) {
                        // Blocks: the same bytes are a list of offsets, of which many are in the
                        // region.
                        words[7] = rng.below(300);
                        words[2] = rng.below(words[7] * ranges.1 + 1);
                        if rng.one_in(2) {
                            words[6] = 0;
                            words[8] = rng.below(600).wrapping_sub(200);
                        }
                    }
                }
                REGION_DESTROY | REGION_INFO | REGION_ATTACH => {
                    let words = &mut arguments.words;
                    words[0] = u64::from(id) | rng.below(2) << 32;
                    words[1] = rng.below(1_000_000);
                    words[2] = 0;
                }
                REQUEST_SUBMIT => {
                    let words = &mut arguments.words;
                    words[0] = u64::from(id) | u64::from(known.region(rng)) << 32;
                    words[1] = rng.below(PAGE as u64);
                    words[2] = rng.below(PAGE as u64);
                    words[3] = rng.below(12 * PAGE as u64);
                    let flags = rng.pick(&[0, 0, 0, 1, 1, 1, 2, 4]);
                    words[4] = flags | rng.below(4) << 32;
                    words[5..8].fill(0);
                }
                REQUEST_WAIT | REQUEST_SWITCH | REQUEST_INFO | REQUEST_CANCEL => {
                    let words = &mut arguments.words;
                    words[..8].fill(0);
                    words[0] = known.request(rng).into();
                    if matches!(command, REQUEST_WAIT | REQUEST_SWITCH) {
                        words[0] |= rng.below(3) << 32;
                    }
                    if command == REQUEST_WAIT {
                        words[1] = rng.below(1_000_000);
                    }
                }
                _ => {}
            }
        }
        let words = &mut arguments.words;
        // What the kernel writes back lands in `words`; other addresses are in `space` or bad.
        let argument = if rng.one_in(10) {
            nasty(rng, space)
        } else {
            words.as_mut_ptr() as u64
        };
        if called & 0xffff == AWAIT_REQUEST {
            if argument != words.as_mut_ptr() as u64 {
                continue;
            }
            if words[1] as i64 > 1_000_000 || (words[1] as i64) < 0 {
                words[1] = rng.below(1_000_000);
            }
        }
        calls += 1;
        if device.raw(called, argument).is_ok() {
            match called {
                REGION_CREATE => {
                    let id = (words[3] >> 32) as u32 & 0xff_ffff;
                    known.add(Ring::Regions, id);
                }
                REQUEST_SUBMIT => known.add(Ring::Requests, words[6] as u32),
                _ => {}
            }
        }
    }
    calls
}

/// Runs `body` in a child that is interrupted every few milliseconds, so that nothing legal but
/// endless (a tebibyte of one byte) takes all the time.
fn impatient(body: impl FnOnce() -> Outcome) -> Outcome {
    let child = Child::spawn(|| {
        sys::alarm(Duration::from_millis(20), Duration::from_millis(20))?;
        body()
    })?;
    child.join()
}

fn any_ioctl(context: &Context) -> Outcome {
    let mut rng = context.rng();
    for round in 0..context.rounds(12, 6) {
        let seed = rng.word();
        impatient(|| {
            let mut rng = Rng::new(seed);
            let space = Space::new()?;
            let device = Device::open()?;
            if !rng.one_in(6) {
                // A slow kernel is interrupted even here.
                while let Err(error) = device.create() {
                    check_eq!(error, Errno::EINTR);
                }
            }
            mad(&mut rng, &device, &space, &Known::new()?, 4000);
            Ok(())
        })
        .map_err(|stop| crate::harness::Stop::Fail(format!("round {round}: {stop:?}")))?;
    }
    Ok(())
}

fn any_mmap(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let (device, _) = Device::domain()?;
    let map = Map::filled(16 * PAGE, 1)?;
    let ids = [
        device.share(&map, RIGHT_READ)?,
        device.share(&map, RIGHT_READ | RIGHT_WRITE)?,
        device.publish(&[map.part(5, 3 * PAGE)], RIGHT_READ)?.id,
        device
            .publish(&[map.part(5, 10), map.part(90, 10)], RIGHT_READ)?
            .id,
    ];
    for _ in 0..3000 {
        let page = (rng.below(20) * PAGE as u64) & rng.pick(&[0, u64::MAX]);
        let base = if rng.one_in(4) {
            nasty(&mut rng, map.addr())
        } else {
            u64::from(rng.pick(&ids)) << ATTACH_SHIFT
        };
        let offset = base.wrapping_add(page) & !(PAGE as u64 - 1) & i64::MAX as u64;
        let len = if rng.one_in(10) {
            nasty(&mut rng, map.addr()) as usize & 0xfff_ffff
        } else {
            (1 + rng.index(20)) * PAGE
        };
        let prot = rng.pick(&[
            0,
            libc::PROT_READ,
            RW,
            libc::PROT_WRITE,
            libc::PROT_READ | libc::PROT_EXEC,
        ]);
        let flags = rng.pick(&[
            libc::MAP_SHARED,
            libc::MAP_SHARED,
            libc::MAP_PRIVATE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            libc::MAP_SHARED | libc::MAP_LOCKED,
        ]);
        if let Ok(view) = Map::new(len.max(1), prot, flags, Some(device.as_fd()), offset) {
            check!(
                len <= 17 * PAGE,
                "an attachment of {len} bytes of a region of 16 pages"
            );
            let _ = view.protect(0, PAGE.min(len), rng.pick(&[0, libc::PROT_READ, RW]));
            let pages = len.div_ceil(PAGE);
            let _ = view.unmap(0, PAGE * rng.index(3).min(pages));
        }
    }
    check!(map.bytes() == crate::rng::pattern(1, 16 * PAGE));
    Ok(())
}

/// Two members with several threads each, all over the same domain.
fn racing_threads(context: &Context) -> Outcome {
    let mut rng = context.rng();
    for _ in 0..context.rounds(4, 2) {
        let seed = rng.word();
        let keys = Device::domain()?;
        let run = |seed: u64| {
            let key = keys.1;
            move || -> Outcome {
                let device = Device::member(key)?;
                let space = Space::new()?;
                let known = Known::new()?;
                sys::interrupt_on(libc::SIGALRM)?;
                let ids = [const { AtomicI32::new(0) }; 3];
                std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..3)
                        .map(|n| {
                            let (device, space, known, id) = (&device, &space, &known, &ids[n]);
                            scope.spawn(move || {
                                id.store(sys::thread_id(), Ordering::Release);
                                let mut rng = Rng::new(seed + n as u64);
                                mad(&mut rng, device, space, known, 2500);
                            })
                        })
                        .collect();
                    // A timer's signal would go to this thread and leave the others in copies that
                    // are legal but endless.
                    while !threads.iter().all(|thread| thread.is_finished()) {
                        std::thread::sleep(Duration::from_millis(20));
                        for (thread, id) in threads.iter().zip(&ids) {
                            let id = id.load(Ordering::Acquire);
                            if id != 0 && !thread.is_finished() {
                                sys::signal_thread(id, libc::SIGALRM);
                            }
                        }
                    }
                });
                Ok(())
            }
        };
        let children = [Child::spawn(run(seed))?, Child::spawn(run(seed ^ 0xff00))?];
        for child in children {
            child.join()?;
        }
    }
    Ok(())
}

/// One thread publishes and copies, another changes the memory under it.
fn racing_unmaps(context: &Context) -> Outcome {
    const PAGES: usize = 32;
    let seed = context.rng().word();
    let (device, _) = Device::domain()?;
    let space = Map::anon(PAGES * PAGE)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome {
        let changer = scope.spawn(|| {
            let mut rng = Rng::new(seed);
            while !stop.load(Ordering::Relaxed) {
                let start = rng.index(PAGES);
                let len = (1 + rng.index(PAGES - start)) * PAGE;
                match rng.below(5) {
                    0 => drop(space.replace(start * PAGE, len)),
                    1 => drop(space.advise(start * PAGE, len, libc::MADV_DONTNEED)),
                    2 => {
                        let _ = space.protect(start * PAGE, len, libc::PROT_READ);
                        let _ = space.protect(start * PAGE, len, RW);
                    }
                    3 => {
                        // Not a hole: the other thread's next mapping might settle there.
                        let _ = space.protect(start * PAGE, len, libc::PROT_NONE);
                        let _ = space.replace(start * PAGE, len);
                    }
                    _ => std::thread::yield_now(),
                }
            }
        });
        let mut rng = Rng::new(seed + 1);
        let buffer = Map::anon(PAGES * PAGE)?;
        let end = Instant::now() + Duration::from_secs(4);
        let mut published = 0u64;
        while Instant::now() < end {
            let start = rng.index(PAGES);
            let len = (1 + rng.index(PAGES - start)) * PAGE;
            let Ok(region) =
                device.publish(&[space.part(start * PAGE, len)], 1 + rng.below(3) as u32)
            else {
                continue;
            };
            published += 1;
            for _ in 0..rng.below(4) {
                let flag = rng.pick(&[COPY_FROM_REGION, COPY_TO_REGION]);
                let _ = device.copy(region.id, flag, 0, len as u64, &[buffer.piece()]);
                let _ = device.copy(
                    region.id,
                    flag,
                    0,
                    len as u64,
                    &[space.part(start * PAGE, len)],
                );
                if let Ok((view, at)) = device.map(region.id, RIGHT_READ) {
                    let _ = view.read(at, 8);
                }
            }
            let _ = if rng.one_in(2) {
                device.destroy(region.id)
            } else {
                device.unpin(region.id)
            };
        }
        stop.store(true, Ordering::Relaxed);
        changer.join().map_err(|_| "panic".to_owned())?;
        check!(
            published > u64::from(20 / context.scale),
            "only {published} regions could be published"
        );
        Ok(())
    })
}
