// SPDX-License-Identifier: MIT OR Apache-2.0

//! Random operations of every kind at once. Members of one domain call the ABI with any argument,
//! map each other's memory, and change their own: other pages, holes in files, memory that moves,
//! pages that userfaultfd or a FUSE server brings in late, pages on their way to swap. They fork,
//! are interrupted by signals, watch the device by epoll, and pass each other files of it. All the
//! while processes are killed, the group of processes is short of memory, a CPU leaves and comes
//! back, and engines lose their driver. No answer is wrong; a report of the kernel, a process that
//! does not go on or does not die, or a page that stays pinned is.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::*;
use crate::device::Device;
use crate::fuse::LateFile;
use crate::fuzz::{Known, SLACK, SPACE, Space, mad};
use crate::harness::{Context, Outcome, Stop};
use crate::request_setup::{IOATDMA, PARAMETER, all_in_service, any_engine, choose, modelled};
use crate::rng::Rng;
use crate::sys::{self, Child, PAGE, RW, SharedCounters};
use crate::{check, tests};

tests!(stress: random_operations(600));

/// Processes of the domain.
const MEMBERS: usize = 3;

/// Threads of each.
const THREADS: usize = 2;

/// Words of the counters.
const OPERATIONS: usize = 0;
/// The first of the counters that the last line shows.
const KINDS: usize = 1;

/// What a member does: calls of the ABI, and what is done to the memory that they are about.
const NAMES: [&str; 15] = [
    "calls",
    "views",
    "calls of forked processes",
    "replaced",
    "files",
    "holes",
    "moved",
    "discarded",
    "protected",
    "paged out",
    "late by userfaultfd",
    "late by FUSE",
    "locked",
    "files sent",
    "calls on files received",
];

/// What a member shares with its threads.
struct Shared<'a> {
    device: Device,
    space: Space,
    known: &'a Known,
    counters: &'a SharedCounters,
    late: Option<BorrowedFd<'a>>,
    userfault: Option<OwnedFd>,
    file: OwnedFd,
    post: &'a Post,
}

/// Two sockets, where each member leaves files of the device and takes those of others, who may be
/// dead.
struct Post(OwnedFd, OwnedFd);

impl Post {
    fn new() -> Outcome<Self> {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
        let (to, from) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        )?;
        Ok(Self(to, from))
    }
}

/// A file of memory is as large as the space.
const FILE: usize = SPACE;

fn map_fixed(addr: u64, len: usize, flags: i32, fd: Option<BorrowedFd<'_>>, offset: u64) -> bool {
    let fd = fd.map_or(-1, |fd| fd.as_raw_fd());
    // SAFETY: Only parts of the space are replaced, to which no reference exists.
    let got = unsafe {
        libc::mmap(
            addr as *mut libc::c_void,
            len,
            RW,
            flags | libc::MAP_FIXED,
            fd,
            offset as libc::off_t,
        )
    };
    got != libc::MAP_FAILED
}

impl Shared<'_> {
    /// Changes some pages of the space; says what was done.
    fn change(&self, rng: &mut Rng) -> usize {
        let start = rng.index(SPACE / PAGE);
        let pages = 1 + rng.index((SPACE / PAGE - start).min(16));
        let (at, len) = (SLACK + start * PAGE, pages * PAGE);
        let addr = self.space.all.addr() + at as u64;
        let all = &self.space.all;
        match rng.below(10) {
            0 => {
                let _ = all.replace(at, len);
                3
            }
            1 => {
                let offset = rng.index((FILE - len) / PAGE + 1) * PAGE;
                let kind = rng.pick(&[libc::MAP_SHARED, libc::MAP_PRIVATE]);
                map_fixed(addr, len, kind, Some(self.file.as_fd()), offset as u64);
                4
            }
            2 => {
                let offset = rng.index((FILE - len) / PAGE + 1) * PAGE;
                // SAFETY: Numbers only; nothing refers to the bytes of the file.
                unsafe {
                    libc::fallocate(
                        self.file.as_raw_fd(),
                        libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                        offset as libc::off_t,
                        len as libc::off_t,
                    )
                };
                let _ = all.advise(at, len, libc::MADV_REMOVE);
                5
            }
            3 => {
                // Pages of one part become those of another; a hole is never left.
                let other = SLACK + rng.index(SPACE / PAGE - pages + 1) * PAGE;
                if other.abs_diff(at) >= len {
                    // SAFETY: Both parts are in the space; what is moved away leaves empty pages.
                    unsafe {
                        libc::mremap(
                            addr as *mut libc::c_void,
                            len,
                            len,
                            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP,
                            (all.addr() + other as u64) as *mut libc::c_void,
                        )
                    };
                }
                6
            }
            4 => {
                let advice = rng.pick(&[
                    libc::MADV_DONTNEED,
                    libc::MADV_FREE,
                    libc::MADV_HUGEPAGE,
                    libc::MADV_COLLAPSE,
                    libc::MADV_POPULATE_WRITE,
                    libc::MADV_DONTFORK,
                    libc::MADV_DOFORK,
                    libc::MADV_WIPEONFORK,
                    libc::MADV_KEEPONFORK,
                ]);
                let _ = all.advise(at, len, advice);
                7
            }
            5 => {
                let prot = rng.pick(&[libc::PROT_NONE, libc::PROT_READ, RW]);
                let _ = all.protect(at, len, prot);
                if !rng.one_in(4) {
                    let _ = all.protect(at, len, RW);
                }
                8
            }
            6 => {
                let _ = all.advise(at, len, rng.pick(&[libc::MADV_PAGEOUT, libc::MADV_COLD]));
                9
            }
            7 => {
                if let Some(userfault) = &self.userfault {
                    let _ = all.replace(at, len);
                    let _ = sys::userfault_missing(userfault.as_fd(), addr, len);
                }
                10
            }
            8 => {
                // Later readers find what earlier ones brought in, until the cache is dropped.
                if let Some(late) = self.late {
                    let offset = rng.index((crate::fuse::LEN - len) / PAGE + 1) * PAGE;
                    // SAFETY: Numbers only.
                    unsafe {
                        libc::posix_fadvise(late.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED)
                    };
                    map_fixed(addr, len, libc::MAP_PRIVATE, Some(late), offset as u64);
                }
                11
            }
            _ => {
                // SAFETY: Numbers only.
                unsafe {
                    if rng.one_in(2) {
                        libc::mlock(addr as *const libc::c_void, len);
                    } else {
                        libc::munlock(addr as *const libc::c_void, len);
                    }
                }
                12
            }
        }
    }

    /// Maps a region of anybody's, and looks at it.
    fn view(&self, rng: &mut Rng) {
        let access = rng.pick(&[RIGHT_READ, RIGHT_READ | RIGHT_WRITE]);
        let Ok((view, at)) = self.device.map(self.known.region(rng), access) else {
            return;
        };
        if at + 8 <= view.len() {
            let bytes = view.read(at, 8);
            if access & RIGHT_WRITE != 0 {
                view.write(at, &bytes);
            }
        }
        match rng.below(3) {
            0 => {
                // What is attached can be published and copied from as any memory can, or refused.
                let _ = self.device.share(&view, RIGHT_READ);
            }
            1 => drop(view.unmap(0, PAGE.min(view.len()))),
            _ => {}
        }
    }

    /// A child with the parent's file and memory, which may outlive neither.
    fn child(&self, rng: &mut Rng) {
        let mut rng = Rng::new(rng.word());
        if let Ok(Some(child)) = sys::fork() {
            if rng.one_in(2) {
                std::thread::sleep(Duration::from_micros(rng.below(3000)));
                sys::signal(child, libc::SIGKILL);
            }
            let _ = sys::wait_exit(child, Duration::from_secs(600));
            return;
        }
        // The C library's allocator works in the child of a process with threads.
        let _ = sys::alarm(Duration::from_millis(20), Duration::from_millis(20));
        for _ in 0..2 {
            self.call(&mut rng, 2);
        }
        sys::exit(0)
    }

    /// Sends a file of the device to whoever takes it, its own or one that was just opened.
    fn send(&self, rng: &mut Rng) {
        let own = Device::open().ok().filter(|_| rng.one_in(3));
        let device = own.as_ref().unwrap_or(&self.device);
        let _ = sys::send_fd(self.post.0.as_fd(), device.as_fd());
        self.count(13, 1);
    }

    /// Uses a file that another process opened, which stays that process's.
    fn receive(&self, rng: &mut Rng) {
        if let Ok(fd) = sys::receive_fd(self.post.1.as_fd()) {
            let calls = mad(rng, &Device::from(fd), &self.space, self.known, 8);
            self.count(14, calls);
        }
    }

    /// Calls the module some times, and counts that.
    fn call(&self, rng: &mut Rng, kind: usize) {
        let calls = mad(rng, &self.device, &self.space, self.known, 8);
        self.count(kind, calls);
    }

    fn count(&self, kind: usize, count: u64) {
        self.counters.add(OPERATIONS, count);
        self.counters.add(KINDS + kind, count);
    }

    fn work(&self, mut rng: Rng) {
        loop {
            match rng.below(100) {
                0..=69 => self.call(&mut rng, 0),
                70..=77 => {
                    self.view(&mut rng);
                    self.count(1, 1);
                }
                78 => self.child(&mut rng),
                79 => self.send(&mut rng),
                80 | 81 => self.receive(&mut rng),
                _ => {
                    let kind = self.change(&mut rng);
                    self.count(kind, 1);
                }
            }
        }
    }

    /// Brings in, late, the pages that somebody waits for; wrong addresses are refused.
    fn serve_faults(&self, mut rng: Rng) {
        let Some(userfault) = &self.userfault else {
            return;
        };
        while let Ok(addr) = sys::userfault_next(userfault.as_fd()) {
            std::thread::sleep(Duration::from_micros(rng.below(5000)));
            let pages = 1 + rng.index(4);
            if sys::userfault_zero(userfault.as_fd(), addr, pages * PAGE).is_err() {
                let _ = sys::userfault_zero(userfault.as_fd(), addr, PAGE);
                let _ = sys::userfault_wake(userfault.as_fd(), addr, PAGE);
            }
        }
    }
}

/// A member, until it is killed.
fn member(
    seed: u64,
    key: [u8; 16],
    (counters, known, post): (&SharedCounters, &Known, &Post),
    group: Option<&str>,
    late: Option<&LateFile>,
) -> Outcome {
    if let Some(group) = group {
        let _ = fs::write(format!("{group}/cgroup.procs"), "0");
    }
    let device = loop {
        match Device::member(key) {
            Err(Errno::EINTR) => {}
            other => break other?,
        }
    };
    let shared = Shared {
        device,
        space: Space::new()?,
        known,
        counters,
        late: late.map(|late| late.file.as_fd()),
        userfault: sys::userfault_open().ok(),
        file: sys::memfd(FILE, 0)?,
        post,
    };
    sys::interrupt_on(libc::SIGALRM)?;
    let ids = [const { AtomicI32::new(0) }; THREADS];
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| shared.serve_faults(Rng::new(seed ^ 0xfa17)));
        for (n, id) in ids.iter().enumerate() {
            let (shared, failed) = (&shared, &failed);
            scope.spawn(move || {
                id.store(sys::thread_id(), Ordering::Release);
                let work = || shared.work(Rng::new(seed + n as u64));
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
                    failed.store(true, Ordering::Release);
                }
            });
        }
        // Copies that are legal but endless are interrupted.
        while !failed.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(20));
            for id in &ids {
                let id = id.load(Ordering::Acquire);
                if id != 0 {
                    sys::signal_thread(id, libc::SIGALRM);
                }
            }
        }
        // The other threads never end.
        eprintln!("a thread of a member panicked");
        sys::exit(101)
    })
}

/// Disks in memory that pages are swapped to.
struct Swap(Vec<String>);

impl Swap {
    fn new() -> Self {
        let run = |program: &str, words: &[&str]| {
            let ended = Command::new(program).args(words).output();
            ended.is_ok_and(|ended| ended.status.success())
        };
        if fs::metadata("/dev/ram0").is_err() {
            run("modprobe", &["brd", "rd_nr=4", "rd_size=16384"]);
        }
        let disks = (0..4).map(|number| format!("/dev/ram{number}"));
        Self(
            disks
                .filter(|disk| run("mkswap", &[disk]) && run("swapon", &[disk]))
                .collect(),
        )
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        for disk in &self.0 {
            let _ = Command::new("swapoff").arg(disk).status();
        }
    }
}

/// A group of processes whose memory can be taken.
struct Group(String);

impl Group {
    fn new() -> Option<Self> {
        let root = format!("/tmp/stress.cgroup.{}", std::process::id());
        fs::create_dir_all(&root).ok()?;
        sys::mount("none", &root, "cgroup2").ok()?;
        let _ = fs::write(format!("{root}/cgroup.subtree_control"), "+memory");
        let group = format!("{root}/stress");
        fs::create_dir_all(&group).ok()?;
        fs::metadata(format!("{group}/memory.high")).ok()?;
        Some(Self(group))
    }

    /// Takes pages once, or slows processes that ask for more.
    fn press(&self, rng: &mut Rng) -> Outcome {
        if rng.one_in(2) {
            let _ = fs::write(format!("{}/memory.reclaim", self.0), "1M");
        } else {
            let high = rng.pick(&["4M", "16M", "max", "max"]);
            let _ = fs::write(format!("{}/memory.high", self.0), high);
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
        if let Some(root) = self.0.strip_suffix("/stress") {
            let _ = nix::mount::umount2(root, nix::mount::MntFlags::MNT_DETACH);
            let _ = fs::remove_dir(root);
        }
    }
}

/// Disturbances come after some operations of the members, or after this time if something holds
/// them up.
const MOST_PAUSE: Duration = Duration::from_millis(200);

const CPU: &str = "/sys/devices/system/cpu/cpu1/online";

/// Puts the CPU and every engine back.
struct Whole;

impl Drop for Whole {
    fn drop(&mut self) {
        let _ = fs::write(CPU, "1");
        for name in engines_without_driver() {
            let _ = fs::write(format!("{IOATDMA}/bind"), name);
        }
    }
}

fn engines_of_driver() -> Vec<String> {
    let Ok(entries) = fs::read_dir(IOATDMA) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("0000:")).collect()
}

/// Devices of the model's kind that no driver has.
fn engines_without_driver() -> Vec<String> {
    let read = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default();
    let Ok(entries) = fs::read_dir("/sys/bus/pci/devices") else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let kind = engines_of_driver()
        .first()
        .map(|name| read(format!("/sys/bus/pci/devices/{name}/device").into()));
    for entry in entries.flatten() {
        let path = entry.path();
        let same = match &kind {
            Some(kind) => read(path.join("device")) == *kind,
            // Base class 08, subclass 80: other system peripherals.
            None => read(path.join("class")).starts_with("0x0880"),
        };
        if same && !path.join("driver").exists() {
            found.extend(entry.file_name().into_string());
        }
    }
    found
}

/// Takes the driver from an engine and gives it back.
fn rebind(rng: &mut Rng) -> Outcome {
    let engines = engines_of_driver();
    if !engines.is_empty() {
        let name = &engines[rng.index(engines.len())];
        fs::write(format!("{IOATDMA}/unbind"), name)?;
        std::thread::sleep(Duration::from_micros(rng.below(100_000)));
        fs::write(format!("{IOATDMA}/bind"), name)?;
    }
    Ok(())
}

/// What takes its time is done by a process of its own, one at a time of each kind.
#[derive(Default)]
struct Errand {
    running: Option<Child>,
    done: u32,
}

impl Errand {
    fn start(&mut self, rng: &mut Rng, body: impl FnOnce(&mut Rng) -> Outcome) -> Outcome {
        let mut rng = Rng::new(rng.word());
        let ended = self.running.as_ref().is_some_and(|child| {
            fs::read_to_string(format!("/proc/{}/stat", child.pid))
                .is_ok_and(|stat| stat.contains(") Z "))
        });
        if ended {
            self.end()?;
        }
        if self.running.is_none() {
            self.running = Some(Child::spawn(|| body(&mut rng))?);
        }
        Ok(())
    }

    fn end(&mut self) -> Outcome {
        if let Some(child) = self.running.take() {
            child.join()?;
            self.done += 1;
        }
        Ok(())
    }
}

fn random_operations(context: &Context) -> Outcome {
    let mut rng = context.rng();
    let (counters, known, post) = (SharedCounters::new()?, Known::new()?, Post::new()?);
    let _chosen = choose("auto")?;
    fs::write(PARAMETER, any_engine())?;
    let (device, key) = Device::domain()?;
    device.info()?;
    let late = match LateFile::new(Some((rng.word(), Duration::from_millis(20)))) {
        Ok(late) => Some(late),
        Err(Stop::Skip(_)) => None,
        Err(other) => return Err(other),
    };
    let swap = Swap::new();
    let group = Group::new();
    let whole = Whole;
    let mut members: Vec<Child> = Vec::new();
    let mut kills = 0;
    let (mut rebinds, mut absences) = (Errand::default(), Errand::default());
    let (mut presses, mut purges) = (Errand::default(), Errand::default());
    // What a member waits for at most, times a lot.
    let patience = context.second() * 60;
    let pace = (context.operations / 100).clamp(50, 500);
    let (mut progress, mut news) = ((0, Instant::now()), Instant::now());
    let begin = Instant::now();
    loop {
        let done = counters.get(OPERATIONS);
        if done >= context.operations {
            break;
        }
        if done > progress.0 {
            progress = (done, Instant::now());
        }
        check!(
            progress.1.elapsed() < patience,
            "no operation for {patience:?} after {done}"
        );
        if news.elapsed() > Duration::from_secs(30) {
            news = Instant::now();
            println!(
                "\n    {done} of {} operations after {} s; {kills} processes killed, {} engines rebound",
                context.operations,
                begin.elapsed().as_secs(),
                rebinds.done,
            );
        }
        while members.len() < MEMBERS {
            let seed = rng.word() >> 1;
            let (group, late) = (group.as_ref().map(|group| &*group.0), late.as_ref());
            members.push(Child::spawn(|| {
                member(seed, key, (&counters, &known, &post), group, late)
            })?);
        }
        // A kill, a CPU or an engine costs as much as hundreds of operations.
        let enough = done + rng.below(2 * pace);
        let pause = Instant::now();
        while counters.get(OPERATIONS) < enough && pause.elapsed() < MOST_PAUSE {
            std::thread::sleep(Duration::from_millis(1));
        }
        match rng.below(20) {
            0..=5 => {
                members.swap_remove(rng.index(MEMBERS)).kill()?;
                kills += 1;
            }
            6 | 7 => absences.start(&mut rng, |rng| {
                // A machine of one CPU keeps it.
                let _ = fs::write(CPU, "0");
                std::thread::sleep(Duration::from_micros(rng.below(50_000)));
                let _ = fs::write(CPU, "1");
                Ok(())
            })?,
            8..=11 => {
                if let Some(group) = &group {
                    presses.start(&mut rng, |rng| group.press(rng))?;
                }
            }
            12 | 13 => purges.start(&mut rng, |rng| {
                // 1: pages of files; 3: what shrinkers have as well.
                let (name, what) = rng.pick(&[
                    ("drop_caches", "1"),
                    ("drop_caches", "3"),
                    ("compact_memory", "1"),
                ]);
                let _ = fs::write(format!("/proc/sys/vm/{name}"), what);
                Ok(())
            })?,
            14 | 15 if modelled() => rebinds.start(&mut rng, rebind)?,
            16 => {
                let engine = any_engine();
                let engine = rng.pick(&["off", engine, engine]);
                fs::write(PARAMETER, engine)?;
                device.info()?;
            }
            _ => {}
        }
    }
    let took = begin.elapsed().as_secs().max(1);
    for child in members {
        child.kill()?;
    }
    for errand in [&mut rebinds, &mut absences, &mut presses, &mut purges] {
        errand.end()?;
    }
    drop((late, swap, group));
    drop(whole);
    if modelled() {
        fs::write(PARAMETER, "auto")?;
        all_in_service(context, &device)?;
    }
    print!(
        "[seed {}: {} operations, {} per s; {kills} processes killed, {} engines rebound, a CPU gone \
         {} times, pressed {} times",
        context.seed,
        counters.get(OPERATIONS),
        counters.get(OPERATIONS) / took,
        rebinds.done,
        absences.done,
        presses.done,
    );
    for (index, name) in NAMES.iter().enumerate() {
        print!(", {} {name}", counters.get(KINDS + index));
    }
    print!("] ");
    check!(counters.get(KINDS) > 0, "no member called anything");
    Ok(())
}
