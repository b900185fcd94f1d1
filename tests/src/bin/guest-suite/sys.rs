// SPDX-License-Identifier: MIT OR Apache-2.0

//! The system calls that the tests need, and memory as tests see it: an address range whose
//! contents other processes and the kernel change.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::Piece;
use crate::harness::{Context, Outcome, Stop, guarded, parse_report, report};

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// Bytes in a huge page.
pub const HUGE: usize = 2 << 20;

/// Turns -1 into the errno.
pub fn result(value: i64) -> Result<i64, Errno> {
    if value == -1 {
        Err(Errno::last())
    } else {
        Ok(value)
    }
}

/// A page-aligned range of this process's addresses, unmapped on drop.
///
/// Tests unmap, replace and share parts of it on purpose; reading what they unmapped kills the
/// test's process, which the harness reports.
pub struct Map {
    base: *mut u8,
    len: usize,
}

// SAFETY: A range of addresses; all access is through raw pointers.
unsafe impl Send for Map {}
// SAFETY: As above; tests that race on the contents do so on purpose, through raw copies.
unsafe impl Sync for Map {}

impl Map {
    /// Calls `mmap`.
    pub fn new(
        len: usize,
        prot: i32,
        flags: i32,
        fd: Option<BorrowedFd<'_>>,
        offset: u64,
    ) -> Result<Self, Errno> {
        let fd = fd.map_or(-1, |fd| fd.as_raw_fd());
        // SAFETY: A new mapping at an address of the kernel's choice disturbs nothing.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, offset as libc::off_t) };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(Self {
            base: base.cast(),
            len,
        })
    }

    /// Private anonymous memory, all zero.
    pub fn anon(len: usize) -> Result<Self, Errno> {
        Self::new(len, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None, 0)
    }

    /// Anonymous memory that children share.
    pub fn shared(len: usize) -> Result<Self, Errno> {
        Self::new(len, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, None, 0)
    }

    /// A shared mapping of a file.
    pub fn file(len: usize, fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        Self::new(len, RW, libc::MAP_SHARED, Some(fd), 0)
    }

    /// Memory whose pages are not next to each other, as far as the kernel can be made to: they are
    /// taken in another order than they lie in.
    pub fn scattered(len: usize) -> Result<Self, Errno> {
        let map = Self::anon(len)?;
        map.advise(0, len, libc::MADV_NOHUGEPAGE)?;
        let pages = len / PAGE;
        for step in 0..7 {
            for page in (step..pages).step_by(7).rev() {
                map.write(page * PAGE, &[1]);
            }
        }
        Ok(map)
    }

    /// Private memory filled with the pattern of `seed`.
    pub fn filled(len: usize, seed: u64) -> Result<Self, Errno> {
        let map = Self::anon(len)?;
        map.write(0, &crate::rng::pattern(seed, len));
        Ok(map)
    }

    /// Anonymous memory aligned to huge pages, with huge pages asked for.
    pub fn transparent_huge(len: usize) -> Result<Self, Errno> {
        let raw = Self::anon(len + HUGE)?;
        let start = (raw.base as usize).next_multiple_of(HUGE);
        let (front, back) = (
            start - raw.base as usize,
            raw.base as usize + raw.len - start - len,
        );
        raw.unmap(0, front)?;
        raw.unmap(front + len, back)?;
        std::mem::forget(raw);
        let map = Self {
            base: start as *mut u8,
            len,
        };
        map.advise(0, len, libc::MADV_HUGEPAGE)?;
        Ok(map)
    }

    /// Its first address.
    pub fn addr(&self) -> u64 {
        self.base as u64
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.len
    }

    /// All of it, as a piece of an iovec.
    pub fn piece(&self) -> Piece {
        self.part(0, self.len)
    }

    /// A part of it, as a piece of an iovec.
    pub fn part(&self, offset: usize, len: usize) -> Piece {
        Piece {
            base: self.addr() + offset as u64,
            len: len as u64,
        }
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len, "write beyond the mapping");
        // SAFETY: Inside the mapping; no reference to its bytes exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset), bytes.len()) }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len, "read beyond the mapping");
        let mut bytes = vec![0; len];
        // SAFETY: Inside the mapping; no reference to its bytes exists.
        unsafe { ptr::copy_nonoverlapping(self.base.add(offset), bytes.as_mut_ptr(), len) }
        bytes
    }

    /// All bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.read(0, self.len)
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) {
        // SAFETY: Inside the mapping; no reference to its bytes exists.
        unsafe { ptr::write_bytes(self.base, byte, self.len) }
    }

    /// A word shared between processes.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!((index + 1) * 8 <= self.len);
        // SAFETY: Aligned, inside the mapping, and lives as long as it.
        unsafe { &*self.base.cast::<AtomicU64>().add(index) }
    }

    /// Unmaps a part.
    pub fn unmap(&self, offset: usize, len: usize) -> Result<(), Errno> {
        if len == 0 {
            return Ok(());
        }
        // SAFETY: A part of our own mapping, to which no reference exists.
        result(unsafe { libc::munmap(self.base.add(offset).cast(), len) }.into()).map(drop)
    }

    /// Maps new private memory over a part.
    pub fn replace(&self, offset: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: Replaces only what is ours.
        let got = unsafe {
            libc::mmap(
                self.base.add(offset).cast(),
                len,
                RW,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if got == libc::MAP_FAILED {
            Err(Errno::last())
        } else {
            Ok(())
        }
    }

    /// Maps the beginning of a file over a part, privately and for reading.
    pub fn cover(&self, offset: usize, len: usize, file: BorrowedFd<'_>) -> Result<(), Errno> {
        // SAFETY: Replaces only what is ours.
        let got = unsafe {
            libc::mmap(
                self.base.add(offset).cast(),
                len,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_FIXED,
                file.as_raw_fd(),
                0,
            )
        };
        if got == libc::MAP_FAILED {
            Err(Errno::last())
        } else {
            Ok(())
        }
    }

    /// Changes the protection of a part.
    pub fn protect(&self, offset: usize, len: usize, prot: i32) -> Result<(), Errno> {
        // SAFETY: A part of our own mapping.
        result(unsafe { libc::mprotect(self.base.add(offset).cast(), len, prot) }.into()).map(drop)
    }

    /// Calls `madvise` on a part.
    pub fn advise(&self, offset: usize, len: usize, advice: i32) -> Result<(), Errno> {
        // SAFETY: A part of our own mapping; tests expect what advice does to contents.
        result(unsafe { libc::madvise(self.base.add(offset).cast(), len, advice) }.into()).map(drop)
    }

    /// Moves the mapping on top of `to`, which it replaces.
    pub fn move_onto(self, to: Map) -> Result<Map, Errno> {
        // SAFETY: Both ranges are ours; `to` gives way.
        let got = unsafe {
            libc::mremap(
                self.base.cast(),
                self.len,
                self.len,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                to.base,
            )
        };
        if got == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let map = Map {
            base: got.cast(),
            len: self.len,
        };
        std::mem::forget(self);
        std::mem::forget(to);
        Ok(map)
    }

    /// Keeps the addresses mapped until the process ends.
    pub fn leak(self) {
        std::mem::forget(self);
    }

    /// Physical page numbers behind the mapping, from `/proc/self/pagemap`.
    pub fn frames(&self) -> io::Result<Vec<u64>> {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::open("/proc/self/pagemap")?;
        let mut bytes = vec![0; self.len / PAGE * 8];
        file.read_exact_at(&mut bytes, self.addr() / PAGE as u64 * 8)?;
        Ok(bytes
            .chunks_exact(8)
            .map(|entry| u64::from_le_bytes(entry.try_into().expect("eight")) & ((1 << 55) - 1))
            .collect())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: Ours, and nobody refers to it any more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// Readable and writable.
pub const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Fills a piece with pieces of this process's memory, by `process_vm_readv`; returns the bytes
/// read.
pub fn read_memory(pieces: &[Piece], to: &Piece) -> Result<usize, Errno> {
    // SAFETY: `Piece` has the layout of `struct iovec`; the kernel checks every address.
    let read = unsafe {
        let (to, pieces, count) = (std::ptr::from_ref(to), pieces.as_ptr(), pieces.len());
        let pid = std::process::id() as i32;
        libc::process_vm_readv(pid, to.cast(), 1, pieces.cast(), count as u64, 0)
    };
    result(read as i64).map(|read| read as usize)
}

/// A file in memory.
pub fn memfd(len: usize, flags: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: The name is a constant with a terminating zero.
    let fd = result(unsafe { libc::memfd_create(c"guest-suite".as_ptr(), flags) }.into())?;
    // SAFETY: Just created, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    truncate(fd.as_fd(), len)?;
    Ok(fd)
}

/// Sets the length of a file.
pub fn truncate(fd: BorrowedFd<'_>, len: usize) -> Result<(), Errno> {
    // SAFETY: No memory is involved.
    result(unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) }.into()).map(drop)
}

/// Both ends of a pipe: reader, writer.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut fds = [0; 2];
    // SAFETY: `fds` holds two descriptors.
    result(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
    // SAFETY: Just created, and nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Makes reads return what is there.
pub fn set_nonblocking(fd: BorrowedFd<'_>) {
    // SAFETY: No memory is involved.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
}

/// `fork`: `None` in the child, which dies with its parent.
///
/// Test processes fork while they have one thread, so the child may allocate.
pub fn fork() -> Result<Option<i32>, Errno> {
    // SAFETY: See above.
    match unsafe { libc::fork() } {
        -1 => Err(Errno::last()),
        0 => {
            // SAFETY: No memory is involved.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            Ok(None)
        }
        child => Ok(Some(child)),
    }
}

/// Ends the process without running anything of the parent's.
pub fn exit(status: i32) -> ! {
    // SAFETY: Always possible.
    unsafe { libc::_exit(status) }
}

/// Makes this process the leader of a new process group.
pub fn lead_group() {
    // SAFETY: No memory is involved.
    unsafe { libc::setpgid(0, 0) };
}

/// Orphans of our children become our children.
pub fn become_subreaper() {
    // SAFETY: No memory is involved.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Kills every process of a group.
pub fn kill_group(leader: i32) {
    // SAFETY: No memory is involved; the group was made by us.
    unsafe { libc::kill(-leader, libc::SIGKILL) };
}

/// Sends a signal to a process we started.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: No memory is involved.
    unsafe { libc::kill(pid, signal) };
}

/// The kernel's number of the calling thread.
pub fn thread_id() -> i32 {
    // SAFETY: Always possible.
    unsafe { libc::gettid() }
}

/// Sends a signal to one thread of this process; it may have ended meanwhile.
pub fn signal_thread(thread: i32, signal: i32) {
    // SAFETY: Numbers only.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status {status}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Waits for a child; `None` when it still runs after `limit`.
pub fn wait_exit(child: i32, limit: Duration) -> Option<Exit> {
    let deadline = Instant::now() + limit;
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let got = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        if got == child {
            return Some(if libc::WIFSIGNALED(status) {
                Exit::Signal(libc::WTERMSIG(status))
            } else {
                Exit::Status(libc::WEXITSTATUS(status))
            });
        }
        if got == -1 || Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Reaps children until there is none.
pub fn reap_all(limit: Duration) {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        // SAFETY: No status is asked for.
        match unsafe { libc::waitpid(-1, ptr::null_mut(), libc::WNOHANG) } {
            -1 => return,
            0 => std::thread::sleep(Duration::from_millis(1)),
            _ => {}
        }
    }
}

/// A child process that runs a part of a test.
pub struct Child {
    /// Its process id.
    pub pid: i32,
    reader: Option<OwnedFd>,
}

impl Child {
    /// Forks; the child runs `body` and ends.
    pub fn spawn(body: impl FnOnce() -> Outcome) -> Outcome<Self> {
        let (reader, writer) = pipe()?;
        match fork()? {
            None => {
                drop(reader);
                report(writer, guarded(body));
                exit(0)
            }
            Some(pid) => Ok(Self {
                pid,
                reader: Some(reader),
            }),
        }
    }

    /// Waits for the end and gives back what `body` gave. What takes too long is for the test's own
    /// limit to say.
    pub fn join(mut self) -> Outcome {
        let ended = wait_exit(self.pid, Duration::from_secs(24 * 3600));
        let silent = match ended {
            Some(exit) => format!("a child ended with {exit}"),
            None => "a child did not end".to_owned(),
        };
        parse_report(self.reader.take().expect("joined once"), &silent)
    }

    /// Kills it and waits until it is gone.
    pub fn kill(self) -> Outcome {
        signal(self.pid, libc::SIGKILL);
        match wait_exit(self.pid, Duration::from_secs(60)) {
            Some(_) => Ok(()),
            None => {
                let why = format!("process {} survives SIGKILL", self.pid);
                Err(Stop::Fail(format!("{why}\n{}", sleepers(self.pid))))
            }
        }
    }

    /// Kills it; it must be gone within a second, whatever it is doing.
    pub fn kill_at_once(self, context: &Context) -> Outcome {
        let start = Instant::now();
        self.kill()?;
        let took = start.elapsed();
        if took < context.second() {
            Ok(())
        } else {
            Err(Stop::Fail(format!("SIGKILL takes {took:?}")))
        }
    }
}

/// Whether all threads of a process, user workers included, are stopped by a signal.
pub fn is_stopped(pid: i32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.flatten().all(|thread| {
        std::fs::read_to_string(thread.path().join("stat")).is_ok_and(|text| text.contains(") T "))
    })
}

/// Where in the kernel the threads of a process are, and all others that sleep uninterruptibly.
fn sleepers(pid: i32) -> String {
    let mut text = String::new();
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return text;
    };
    for process in processes.flatten() {
        let is_it = process.file_name().to_str() == Some(&pid.to_string());
        let Ok(threads) = std::fs::read_dir(process.path().join("task")) else {
            continue;
        };
        for thread in threads.flatten() {
            let read =
                |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let stat = read("stat");
            let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
            if is_it || state.starts_with('D') {
                let name = stat.split_inclusive(')').next().unwrap_or_default();
                text += &format!("{name} {}\n{}", &state[..1.min(state.len())], read("stack"));
            }
        }
    }
    text
}

/// Runs `body` in a child and waits for it.
pub fn in_child(body: impl FnOnce() -> Outcome) -> Outcome {
    Child::spawn(body)?.join()
}

/// Words that the processes of a test share, to tell each other how far they are.
pub struct SharedCounters(Map);

impl SharedCounters {
    /// All are zero; create it before forking.
    pub fn new() -> Outcome<Self> {
        Ok(Self(Map::shared(PAGE)?))
    }

    /// Reads a word.
    pub fn get(&self, index: usize) -> u64 {
        self.0.word(index).load(Ordering::Acquire)
    }

    /// Writes a word.
    pub fn set(&self, index: usize, value: u64) {
        self.0.word(index).store(value, Ordering::Release);
    }

    /// Adds one; returns the value before.
    pub fn bump(&self, index: usize) -> u64 {
        self.0.word(index).fetch_add(1, Ordering::AcqRel)
    }

    /// Adds a number.
    pub fn add(&self, index: usize, value: u64) {
        self.0.word(index).fetch_add(value, Ordering::AcqRel);
    }

    /// Raises a word to `value` if it is less.
    pub fn raise(&self, index: usize, value: u64) {
        self.0.word(index).fetch_max(value, Ordering::AcqRel);
    }

    /// Waits until a word is at least `value`.
    pub fn await_at_least(&self, index: usize, value: u64) -> Outcome<u64> {
        // An emulated kernel that checks everything takes a minute to start two processes beside
        // others.
        const LIMIT: Duration = Duration::from_secs(300);
        let start = Instant::now();
        loop {
            let seen = self.get(index);
            if seen >= value {
                return Ok(seen);
            }
            if start.elapsed() > LIMIT {
                return Err(Stop::Fail(format!(
                    "word {index} of the shared counters stays {seen}, not {value}"
                )));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Has the calling thread run on one CPU, before all others that are not real-time threads.
pub fn on_cpu_first(cpu: usize) -> Result<(), Errno> {
    let priority = libc::sched_param { sched_priority: 50 };
    // SAFETY: All zero is a set without CPUs; both structures outlive the calls.
    unsafe {
        let mut set: libc::cpu_set_t = MaybeUninit::zeroed().assume_init();
        libc::CPU_SET(cpu, &mut set);
        result(libc::sched_setaffinity(0, size_of_val(&set), &set).into())?;
        result(libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority).into())?;
    }
    Ok(())
}

/// The calling thread runs only where no other wants to.
pub fn only_when_idle() {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: The structure outlives the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &priority) };
}

/// Becomes an ordinary user for good.
pub fn become_user(uid: u32) -> Result<(), Errno> {
    // SAFETY: An empty list of groups; the rest are numbers.
    unsafe {
        result(libc::setgroups(0, ptr::null()).into())?;
        result(libc::setresgid(uid, uid, uid).into())?;
        result(libc::setresuid(uid, uid, uid).into())?;
    }
    Ok(())
}

/// Sets only the effective user.
pub fn set_effective_user(uid: u32) -> Result<(), Errno> {
    // SAFETY: Numbers only.
    result(unsafe { libc::seteuid(uid) }.into()).map(drop)
}

/// Moves this process into a new user namespace.
pub fn new_user_namespace() -> Result<(), Errno> {
    // SAFETY: Numbers only.
    result(unsafe { libc::unshare(libc::CLONE_NEWUSER) }.into()).map(drop)
}

/// Sets `RLIMIT_MEMLOCK`.
pub fn limit_locked(bytes: u64) -> Result<(), Errno> {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: `limit` outlives the call.
    result(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }.into()).map(drop)
}

/// Locked and pinned kibibytes of this process: `VmLck` + `VmPin`.
pub fn locked_kib() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let mut sum = 0;
    for line in text.lines() {
        if line.starts_with("VmLck:") || line.starts_with("VmPin:") {
            let value = line.split_whitespace().nth(1).unwrap_or("0");
            sum += value.parse::<u64>().map_err(|e| format!("{line}: {e}"))?;
        }
    }
    Ok(sum)
}

/// Passes a descriptor to the other end of a socket pair.
pub fn send_fd(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Outcome {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let fds = [fd.as_raw_fd()];
    let message = [ControlMessage::ScmRights(&fds)];
    let bytes = [io::IoSlice::new(b"f")];
    sendmsg::<()>(
        socket.as_raw_fd(),
        &bytes,
        &message,
        MsgFlags::empty(),
        None,
    )?;
    Ok(())
}

/// Receives a descriptor.
pub fn receive_fd(socket: BorrowedFd<'_>) -> Outcome<OwnedFd> {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let mut byte = [0u8; 1];
    let mut bytes = [io::IoSliceMut::new(&mut byte)];
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut bytes,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = part {
            if let Some(&fd) = fds.first() {
                // SAFETY: Just received, and nobody else's.
                return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    Err(Stop::Fail("no descriptor in the message".to_owned()))
}

extern "C" fn ignore(_: libc::c_int) {}

/// Makes `signal` interrupt system calls without doing anything else.
pub fn interrupt_on(signal: i32) -> Result<(), Errno> {
    // SAFETY: All zero is a valid sigaction: no flags (so no restart) and an empty mask.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
    // SAFETY: `action` outlives the call, its handler does nothing.
    result(unsafe { libc::sigaction(signal, &action, ptr::null_mut()) }.into()).map(drop)
}

/// Sends SIGALRM after `first`, then every `next` (never again if zero).
pub fn alarm(first: Duration, next: Duration) -> Result<(), Errno> {
    interrupt_on(libc::SIGALRM)?;
    let time = |d: Duration| libc::timeval {
        tv_sec: d.as_secs() as libc::time_t,
        tv_usec: libc::suseconds_t::from(d.subsec_micros()),
    };
    let timer = libc::itimerval {
        it_interval: time(next),
        it_value: time(first),
    };
    // SAFETY: `timer` outlives the call.
    result(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()) }.into()).map(drop)
}

/// An epoll instance.
pub fn epoll() -> Result<OwnedFd, Errno> {
    // SAFETY: A new descriptor of nobody else's.
    unsafe {
        let fd = result(libc::epoll_create1(libc::EPOLL_CLOEXEC).into())?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Adds a descriptor to those that an epoll instance watches.
pub fn epoll_add(epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    let (epoll, fd) = (epoll.as_raw_fd(), fd.as_raw_fd());
    // SAFETY: `event` lives through the call.
    result(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) }.into())?;
    Ok(())
}

/// Polls one descriptor; returns the events that are there.
pub fn poll(fd: BorrowedFd<'_>, events: i16, timeout: Duration) -> Result<i16, Errno> {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: One entry that outlives the call.
    result(unsafe { libc::poll(&mut entry, 1, timeout.as_millis() as i32) }.into())?;
    Ok(entry.revents)
}

/// Replaces the program.
pub fn exec(path: &str, args: &[&str]) -> Errno {
    let strings: Vec<CString> = args
        .iter()
        .map(|arg| CString::new(*arg).expect("no zero byte"))
        .collect();
    let mut pointers: Vec<*const libc::c_char> = strings.iter().map(|s| s.as_ptr()).collect();
    pointers.push(ptr::null());
    let path = CString::new(path).expect("no zero byte");
    // SAFETY: Terminated strings in a terminated array.
    unsafe { libc::execv(path.as_ptr(), pointers.as_ptr()) };
    Errno::last()
}

/// A second descriptor for the same open file, kept over `exec` if asked for.
pub fn duplicate(fd: BorrowedFd<'_>, keep_on_exec: bool) -> Result<OwnedFd, Errno> {
    let how = if keep_on_exec {
        libc::F_DUPFD
    } else {
        libc::F_DUPFD_CLOEXEC
    };
    // SAFETY: No memory is involved.
    let new = result(unsafe { libc::fcntl(fd.as_raw_fd(), how, 3) }.into())?;
    // SAFETY: Just created, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(new as RawFd) })
}

/// Unloads a module; `EAGAIN` while it is in use.
pub fn unload_module(name: &str) -> Result<(), Errno> {
    let name = CString::new(name).expect("no zero byte");
    // SAFETY: A terminated string.
    result(unsafe { libc::syscall(libc::SYS_delete_module, name.as_ptr(), libc::O_NONBLOCK) })
        .map(drop)
}

/// Loads a module.
pub fn load_module(path: &str) -> Outcome {
    let file = std::fs::File::open(path)?;
    // SAFETY: An open file and an empty string of parameters.
    result(unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) })?;
    Ok(())
}

/// An ioctl of a userfaultfd (`include/uapi/linux/userfaultfd.h`) with the words of its argument.
fn userfault(fd: BorrowedFd<'_>, number: u32, words: &mut [u64]) -> Result<(), Errno> {
    let command = (3 << 30) | ((words.len() as u32 * 8) << 16) | (0xaa << 8) | number;
    let words = words.as_mut_ptr();
    // SAFETY: The size in the command is that of `words`.
    result(unsafe { libc::ioctl(fd.as_raw_fd(), command as libc::Ioctl, words) }.into()).map(drop)
}

/// A userfaultfd whose reads wait.
pub fn userfault_open() -> Result<OwnedFd, Errno> {
    userfault_with(0)
}

/// A userfaultfd with features.
fn userfault_with(features: u64) -> Result<OwnedFd, Errno> {
    // SAFETY: Numbers only.
    let fd = result(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) })?;
    // SAFETY: Just created, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    userfault(fd.as_fd(), 0x3f, &mut [0xaa, features, 0])?;
    Ok(fd)
}

/// Has the readers of the userfaultfd bring in the pages of a range that are missing.
pub fn userfault_missing(fd: BorrowedFd<'_>, addr: u64, len: usize) -> Result<(), Errno> {
    userfault(fd, 0, &mut [addr, len as u64, 1, 0])
}

/// Waits for a fault and returns its page.
pub fn userfault_next(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    const PAGE_FAULT: u64 = 0x12;
    loop {
        let mut message = [0u64; 4];
        // SAFETY: One message has 32 bytes.
        let read = unsafe {
            libc::read(
                fd.as_raw_fd(),
                message.as_mut_ptr().cast(),
                size_of_val(&message),
            )
        };
        match result(read as i64) {
            Ok(_) if message[0] as u8 as u64 == PAGE_FAULT => {
                return Ok(message[2] & !(PAGE as u64 - 1));
            }
            Ok(_) | Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Brings in pages of zeros and wakes who waits for them.
pub fn userfault_zero(fd: BorrowedFd<'_>, addr: u64, len: usize) -> Result<(), Errno> {
    userfault(fd, 4, &mut [addr, len as u64, 0, 0])
}

/// Wakes who waits for pages that are there.
pub fn userfault_wake(fd: BorrowedFd<'_>, addr: u64, len: usize) -> Result<(), Errno> {
    // This one is `_IOR`.
    const WAKE: u32 = (2 << 30) | (16 << 16) | (0xaa << 8) | 2;
    let range = [addr, len as u64];
    // SAFETY: The kernel reads two words.
    result(unsafe { libc::ioctl(fd.as_raw_fd(), WAKE as libc::Ioctl, range.as_ptr()) }.into())
        .map(drop)
}

/// Has a descriptor, which need not be read, decide about faults on pages of a shared mapping that
/// are in its file but not in the page table.
pub fn userfaultfd_minor(map: &Map) -> Outcome<OwnedFd> {
    const MINOR_SHMEM: u64 = 1 << 10;
    let Ok(fd) = userfault_with(MINOR_SHMEM) else {
        return Err(Stop::Skip("no minor faults of shared memory".to_owned()));
    };
    userfault(fd.as_fd(), 0, &mut [map.addr(), map.len as u64, 1 << 2, 0])?;
    Ok(fd)
}

/// Enters the pages of the file into the page table and wakes who waits for them.
pub fn userfaultfd_continue(fd: BorrowedFd<'_>, map: &Map) -> Result<(), Errno> {
    userfault(fd, 7, &mut [map.addr(), map.len as u64, 0, 0])
}

/// The type of the file system that holds a path (`f_type` of `statfs`).
pub fn filesystem(path: &str) -> Result<i64, Errno> {
    let path = CString::new(path).expect("no zero byte");
    let mut buffer = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: A terminated string, and room for the result.
    result(unsafe { libc::statfs(path.as_ptr(), buffer.as_mut_ptr()) }.into())?;
    // SAFETY: Filled in, and all zero before.
    Ok(unsafe { buffer.assume_init() }.f_type)
}

/// Mounts a file system.
pub fn mount(source: &str, target: &str, kind: &str) -> Result<(), Errno> {
    nix::mount::mount(
        Some(source),
        target,
        Some(kind),
        nix::mount::MsFlags::empty(),
        None::<&str>,
    )
}
