// SPDX-License-Identifier: MIT OR Apache-2.0

//! The guard alone, with a completion that tests move by hand. What ends in a signal happens in a
//! child.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use super::*;

/// Bytes that arrive when a test says so, or when somebody hurries.
struct Fake {
    front: AtomicUsize,
    hurries: AtomicUsize,
    /// Errno, if they never will.
    lost: AtomicI32,
    drops: AtomicUsize,
    pause: Duration,
    memory: usize,
    byte: u8,
    len: usize,
}

struct Handle(Arc<Fake>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Ordering::SeqCst);
    }
}

impl Completion for Handle {
    fn arrived(&self, from: usize) -> usize {
        self.0.front.load(Ordering::SeqCst).max(from)
    }

    fn hurry(&self, _from: usize, _to: usize) -> std::result::Result<(), i32> {
        let fake = &self.0;
        fake.hurries.fetch_add(1, Ordering::SeqCst);
        match fake.lost.load(Ordering::SeqCst) {
            0 => {
                std::thread::sleep(fake.pause);
                if fake.byte != 0 && fake.front.load(Ordering::SeqCst) < fake.len {
                    fake.fill(fake.len);
                }
                fake.front.store(fake.len, Ordering::SeqCst);
                Ok(())
            }
            errno => Err(errno),
        }
    }
}

impl Fake {
    fn new(memory: &Memory, byte: u8) -> Arc<Self> {
        Arc::new(Fake {
            front: AtomicUsize::new(0),
            hurries: AtomicUsize::new(0),
            lost: AtomicI32::new(0),
            drops: AtomicUsize::new(0),
            pause: Duration::from_millis(20),
            memory: memory.0 as usize,
            byte,
            len: memory.1,
        })
    }

    /// The "engine" writes past the guard, as a device does: through another mapping of the pages.
    fn fill(&self, upto: usize) {
        let from = self.front.load(Ordering::SeqCst);
        let bytes = vec![self.byte; upto - from];
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open("/proc/self/mem")
            .unwrap();
        // /proc/self/mem writes whatever the protection is.
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, (self.memory + from) as u64)
            .unwrap();
        self.front.store(upto, Ordering::SeqCst);
    }

    fn hurries(&self) -> usize {
        self.hurries.load(Ordering::SeqCst)
    }
}

/// Anonymous pages.
struct Memory(*mut u8, usize);

// SAFETY: plain memory.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(pages: usize) -> Self {
        let len = pages * page();
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        Memory(memory.cast(), len)
    }

    fn read(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: inside.
        unsafe { self.0.add(at).read_volatile() }
    }

    fn write(&self, at: usize, byte: u8) {
        assert!(at < self.1);
        // SAFETY: inside.
        unsafe { self.0.add(at).write_volatile(byte) };
    }

    fn arm(&self, kind: Kind, owner: u64, fake: &Arc<Fake>) {
        // SAFETY: the memory is the test's.
        let armed = unsafe { arm(self.0, self.1, kind, owner, Box::new(Handle(fake.clone()))) };
        assert!(armed.is_ok(), "not armed");
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = settle_range(self.0 as usize, self.0 as usize + self.1);
        // SAFETY: ours, and nobody uses it any more.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// One test at a time: forking settles the guards of all.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ONE.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// An owner that no other test has.
fn owner() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    NEXT.fetch_add(1, Ordering::SeqCst)
}

/// Runs `body` in a child; returns its exit code, or the signal that ended it, negative.
fn child(body: impl FnOnce()) -> i32 {
    // SAFETY: the child only runs the body and exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // No core files, and nothing of the test harness's.
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: numbers and a structure that outlives the call.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::alarm(20);
        }
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
        // SAFETY: ends this process without its exit handlers.
        unsafe { libc::_exit(if passed { 0 } else { 101 }) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {}
    if libc::WIFSIGNALED(status) {
        -libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    }
}

fn on_signal(signal: i32, handler: usize, flags: i32) {
    // SAFETY: the handler has the signature that the flags ask for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(
            libc::sigaction(signal, &raw const action, std::ptr::null_mut()),
            0
        );
    }
}

#[test]
fn a_destination_waits_for_reads_and_writes() {
    let _alone = alone();
    for write in [false, true] {
        let memory = Memory::new(8);
        let (fake, owner) = (Fake::new(&memory, 7), owner());
        memory.arm(Kind::Destination, owner, &fake);
        if write {
            memory.write(5 * page(), 9);
            assert_eq!(memory.read(5 * page()), 9);
        }
        assert!((0..memory.1).all(|at| memory.read(at) == 7 || write && at == 5 * page()));
        assert_eq!(fake.hurries(), 1, "one touch is enough");
        reap(owner);
        assert_eq!(fake.drops.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn a_source_can_be_read_and_waits_for_writes() {
    let _alone = alone();
    let memory = Memory::new(4);
    memory.write(10, 3);
    let (fake, owner) = (Fake::new(&memory, 0), owner());
    memory.arm(Kind::Source, owner, &fake);
    assert_eq!(memory.read(10), 3);
    assert_eq!(fake.hurries(), 0);
    memory.write(10, 4);
    assert_eq!(fake.hurries(), 1);
    assert_eq!(memory.read(10), 4);
}

#[test]
fn what_has_arrived_at_the_front_can_be_read_before_the_end() {
    let _alone = alone();
    let memory = Memory::new(16);
    let (fake, owner) = (Fake::new(&memory, 5), owner());
    memory.arm(Kind::Destination, owner, &fake);
    fake.fill(6 * page() + 100);
    assert!((0..6 * page()).all(|at| memory.read(at) == 5));
    assert_eq!(fake.hurries(), 0, "nobody had to wait");
    reap(owner);
    assert_eq!(fake.drops.load(Ordering::SeqCst), 0, "not over yet");
    assert_eq!(memory.read(6 * page()), 5);
    assert_eq!(fake.hurries(), 1);
    let other = Memory::new(2);
    let done = Fake::new(&other, 6);
    other.arm(Kind::Destination, owner, &done);
    done.fill(other.1);
    reap(owner);
    assert_eq!(
        done.drops.load(Ordering::SeqCst),
        1,
        "lifted without a touch"
    );
    assert_eq!(done.hurries(), 0);
    assert_eq!(other.read(0), 6);
}

#[test]
fn neighbours_on_the_same_pages_never_wait() {
    let _alone = alone();
    let memory = Memory::new(6);
    let (fake, owner) = (Fake::new(&memory, 1), owner());
    let (base, len) = (memory.0.wrapping_add(100), 4 * page());
    // SAFETY: inside the memory.
    let armed = unsafe {
        arm(
            base,
            len,
            Kind::Destination,
            owner,
            Box::new(Handle(fake.clone())),
        )
    };
    assert!(armed.is_ok());
    memory.write(99, 1);
    memory.write(page() - 1, 1);
    memory.write(100 + len, 1);
    memory.write(4 * page(), 1);
    assert_eq!(fake.hurries(), 0);
    memory.read(page());
    assert_eq!(fake.hurries(), 1);
    // Less than a page cannot be guarded.
    let handle = Box::new(Handle(fake.clone()));
    // SAFETY: inside the memory.
    assert!(unsafe { arm(base, page(), Kind::Source, owner, handle) }.is_err());
}

#[test]
fn many_threads_touch_at_once() {
    let _alone = alone();
    for round in 0..20 {
        let memory = Memory::new(64);
        let (fake, owner) = (Fake::new(&memory, round + 1), owner());
        memory.arm(Kind::Destination, owner, &fake);
        std::thread::scope(|scope| {
            for thread in 0..8_usize {
                let memory = &memory;
                scope.spawn(move || {
                    for step in 0..64 {
                        let at = (thread * 11 + step) % 64 * page();
                        assert_eq!(memory.read(at), round + 1);
                    }
                });
            }
            let (start, len) = (memory.0 as usize, memory.1);
            scope.spawn(move || settle_range(start, start + len));
            scope.spawn(|| reap(owner));
        });
        reap(owner);
        assert_eq!(fake.drops.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn settle_and_a_second_guard_of_the_same_memory_wait() {
    let _alone = alone();
    let memory = Memory::new(4);
    let (first, second, owner) = (Fake::new(&memory, 1), Fake::new(&memory, 2), owner());
    memory.arm(Kind::Destination, owner, &first);
    memory.arm(Kind::Destination, owner, &second);
    assert_eq!(first.hurries(), 1);
    assert_eq!(
        settle_range(memory.0 as usize, memory.0 as usize + 1),
        Ok(())
    );
    assert_eq!(second.hurries(), 1);
    assert_eq!(memory.read(3 * page()), 2);
    // Nothing pending: nothing to do.
    assert_eq!(
        settle_range(memory.0 as usize, memory.0 as usize + 1),
        Ok(())
    );
    assert_eq!(second.hurries(), 1);
}

#[test]
fn nothing_is_guarded_as_long_as_somebody_refuses() {
    let _alone = alone();
    // In a process of its own: no other test of this one could guard anything meanwhile.
    let (buffers, waits) = counts();
    let code = child(|| {
        let memory = Memory::new(4);
        let (fake, owner) = (Fake::new(&memory, 6), owner());
        memory.arm(Kind::Destination, owner, &fake);
        let try_to_arm = || {
            let handle = Box::new(Handle(fake.clone()));
            // SAFETY: the memory is the test's.
            unsafe { arm(memory.0, memory.1, Kind::Destination, owner, handle) }.is_ok()
        };
        refuse_guards().unwrap();
        assert_eq!(memory.read(0), 6, "settled by the refusal");
        assert_eq!((fake.hurries(), pending()), (1, 0));
        refuse_guards().unwrap();
        assert!(!try_to_arm());
        admit_guards();
        assert!(!try_to_arm(), "one reason is left");
        admit_guards();
        assert!(try_to_arm());
        assert_eq!(counts(), (buffers + 2, waits + 1));
    });
    assert_eq!(code, 0);
}

#[test]
fn a_system_call_fails_until_settled() {
    let _alone = alone();
    let memory = Memory::new(4);
    let (fake, owner) = (Fake::new(&memory, 8), owner());
    memory.arm(Kind::Destination, owner, &fake);
    let mut ends = [0; 2];
    // SAFETY: both ends are stored.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the memory is mapped.
    let written = unsafe { libc::write(ends[1], memory.0.cast(), 100) };
    assert_eq!((written, signal::errno()), (-1, libc::EFAULT));
    assert_eq!(
        settle_range(memory.0 as usize, memory.0 as usize + 100),
        Ok(())
    );
    // SAFETY: as above.
    assert_eq!(unsafe { libc::write(ends[1], memory.0.cast(), 100) }, 100);
    // SAFETY: ours.
    unsafe {
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
}

#[test]
fn fork_settles() {
    let _alone = alone();
    let status = child(|| {
        let memory = Memory::new(4);
        let (fake, owner) = (Fake::new(&memory, 8), owner());
        memory.arm(Kind::Destination, owner, &fake);
        assert_eq!(
            child(|| {
                assert_eq!(pending(), 0);
                assert_eq!(memory.read(2 * page()), 8);
            }),
            0
        );
        assert_eq!(fake.hurries(), 1);
        assert_eq!(memory.read(0), 8);
        assert_eq!(fake.hurries(), 1);
    });
    assert_eq!(status, 0);
}

#[test]
fn what_is_lost_is_a_bus_error_or_an_error() {
    let _alone = alone();
    for told in [false, true] {
        let status = child(|| {
            let memory = Memory::new(4);
            let (fake, owner) = (Fake::new(&memory, 8), owner());
            fake.lost.store(libc::EOWNERDEAD, Ordering::SeqCst);
            memory.arm(Kind::Destination, owner, &fake);
            assert_eq!(retire(owner, told), Err(libc::EOWNERDEAD));
            assert_eq!(fake.drops.load(Ordering::SeqCst), 1);
            memory.read(0);
        });
        assert_eq!(status, if told { 0 } else { -libc::SIGBUS });
    }
    let status = child(|| {
        // Neither ignoring nor blocking it helps.
        on_signal(libc::SIGBUS, libc::SIG_IGN, 0);
        let memory = Memory::new(4);
        let (fake, owner) = (Fake::new(&memory, 8), owner());
        fake.lost.store(libc::EOWNERDEAD, Ordering::SeqCst);
        memory.arm(Kind::Destination, owner, &fake);
        memory.write(0, 1);
    });
    assert_eq!(status, -libc::SIGBUS);
    let memory = Memory::new(4);
    let (fake, owner) = (Fake::new(&memory, 8), owner());
    fake.lost.store(libc::EOWNERDEAD, Ordering::SeqCst);
    memory.arm(Kind::Destination, owner, &fake);
    assert_eq!(
        settle_range(memory.0 as usize, memory.0 as usize + 1),
        Err(libc::EOWNERDEAD)
    );
    memory.read(0);
    reap(owner);
}

#[test]
fn a_crash_of_the_application_stays_its_own() {
    let _alone = alone();
    let wild = |before: usize| {
        child(move || {
            if before != 0 {
                on_signal(libc::SIGSEGV, before, 0);
            }
            let memory = Memory::new(4);
            let (fake, owner) = (Fake::new(&memory, 8), owner());
            memory.arm(Kind::Destination, owner, &fake);
            // SAFETY: meant to crash.
            unsafe { std::ptr::without_provenance::<u8>(8).read_volatile() };
        })
    };
    assert_eq!(
        wild(0),
        -libc::SIGSEGV,
        "the handler of the language runtime"
    );
    extern "C" fn leave(_: i32) {
        // SAFETY: ends this process.
        unsafe { libc::_exit(42) };
    }
    assert_eq!(
        wild(leave as extern "C" fn(i32) as usize),
        42,
        "a handler without SA_SIGINFO"
    );
    // A page of the application's own that it protected itself.
    let own = child(|| {
        on_signal(libc::SIGSEGV, libc::SIG_DFL, 0);
        let (memory, other) = (Memory::new(4), Memory::new(1));
        let (fake, owner) = (Fake::new(&memory, 8), owner());
        memory.arm(Kind::Destination, owner, &fake);
        // SAFETY: our memory.
        unsafe { libc::mprotect(other.0.cast(), other.1, libc::PROT_NONE) };
        other.read(0);
    });
    assert_eq!(own, -libc::SIGSEGV);
    // The same where a guard has been: bounded patience with late faults.
    let stale = child(|| {
        on_signal(libc::SIGSEGV, libc::SIG_DFL, 0);
        let memory = Memory::new(4);
        let (fake, owner) = (Fake::new(&memory, 8), owner());
        memory.arm(Kind::Destination, owner, &fake);
        memory.read(0);
        // SAFETY: our memory.
        unsafe { libc::mprotect(memory.0.cast(), memory.1, libc::PROT_NONE) };
        memory.read(0);
    });
    assert_eq!(stale, -libc::SIGSEGV);
    let raised = child(|| {
        on_signal(libc::SIGSEGV, libc::SIG_DFL, 0);
        let memory = Memory::new(4);
        let (fake, owner) = (Fake::new(&memory, 8), owner());
        memory.arm(Kind::Destination, owner, &fake);
        // SAFETY: a number.
        unsafe { libc::raise(libc::SIGSEGV) };
    });
    assert_eq!(raised, -libc::SIGSEGV);
}

#[test]
fn a_handler_installed_over_ours_is_asked_first_and_may_pass_on() {
    let _alone = alone();
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    static OLD: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn over(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        SEEN.fetch_add(1, Ordering::SeqCst);
        // SAFETY: what `sigaction` gave back.
        let old: signal::Handler = unsafe { std::mem::transmute(OLD.load(Ordering::SeqCst)) };
        // SAFETY: the handler's own arguments.
        unsafe { old(signal, info, context) };
    }
    let status = child(|| {
        on_signal(libc::SIGSEGV, libc::SIG_DFL, 0);
        let memory = Memory::new(4);
        let (fake, owner) = (Fake::new(&memory, 8), owner());
        memory.arm(Kind::Destination, owner, &fake);
        // SAFETY: the structures outlive the calls.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut old);
            OLD.store(old.sa_sigaction, Ordering::SeqCst);
        }
        on_signal(
            libc::SIGSEGV,
            over as signal::Handler as usize,
            libc::SA_SIGINFO,
        );
        assert_eq!(memory.read(0), 8);
        assert_eq!(SEEN.load(Ordering::SeqCst), 1);
        // Armed again, ours is first again, and theirs passes what is not ours to us: no loop.
        memory.arm(Kind::Destination, owner, &fake);
        fake.front.store(0, Ordering::SeqCst);
        assert_eq!(memory.read(0), 8);
        assert_eq!(SEEN.load(Ordering::SeqCst), 1);
        // SAFETY: meant to crash.
        unsafe { std::ptr::without_provenance::<u8>(8).read_volatile() };
    });
    assert_eq!(status, -libc::SIGSEGV);
}

#[test]
fn a_handler_that_touches_a_buffer_while_we_wait_waits_too() {
    let _alone = alone();
    static ADDRESS: AtomicUsize = AtomicUsize::new(0);
    static GOT: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn tick(_: i32) {
        // SAFETY: guarded memory of the test.
        let byte = unsafe {
            std::ptr::with_exposed_provenance::<u8>(ADDRESS.load(Ordering::SeqCst)).read_volatile()
        };
        GOT.store(byte.into(), Ordering::SeqCst);
    }
    let status = child(|| {
        let (memory, other) = (Memory::new(4), Memory::new(4));
        let (fake, second, owner) = (Fake::new(&memory, 8), Fake::new(&other, 9), owner());
        memory.arm(Kind::Destination, owner, &fake);
        other.arm(Kind::Destination, owner, &second);
        ADDRESS.store(other.0.expose_provenance(), Ordering::SeqCst);
        on_signal(libc::SIGALRM, tick as extern "C" fn(i32) as usize, 0);
        let soon = libc::itimerval {
            it_interval: libc::timeval {
                tv_sec: 0,
                tv_usec: 0,
            },
            it_value: libc::timeval {
                tv_sec: 0,
                tv_usec: 5000,
            },
        };
        // SAFETY: the structure outlives the call.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const soon, std::ptr::null_mut()) };
        // The fake sleeps longer than the timer takes.
        assert_eq!(memory.read(0), 8);
        assert_eq!(GOT.load(Ordering::SeqCst), 9);
    });
    assert_eq!(status, 0);
}

#[test]
fn threads_without_an_alternate_stack_may_touch() {
    let _alone = alone();
    let status = child(|| {
        let memory = Memory::new(4);
        let (fake, owner) = (Fake::new(&memory, 8), owner());
        memory.arm(Kind::Destination, owner, &fake);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let none = libc::stack_t {
                    ss_sp: std::ptr::null_mut(),
                    ss_flags: libc::SS_DISABLE,
                    ss_size: 0,
                };
                // SAFETY: the structure outlives the call.
                unsafe { libc::sigaltstack(&raw const none, std::ptr::null_mut()) };
                assert_eq!(memory.read(0), 8);
                // And arm: then they get one.
                memory.arm(Kind::Destination, owner, &fake);
                let mut now = none;
                // SAFETY: as above.
                unsafe { libc::sigaltstack(std::ptr::null(), &raw mut now) };
                assert_eq!((now.ss_flags, now.ss_size), (0, stack::STACK));
            });
        });
    });
    assert_eq!(status, 0);
}

#[test]
fn stack_overflow_is_reported_as_such() {
    let _alone = alone();
    #[allow(unconditional_recursion)]
    fn deeper(depth: usize) -> usize {
        let frame = std::hint::black_box([depth; 64]);
        deeper(depth + 1) + frame[depth % 64]
    }
    for own_stack in [true, false] {
        let status = child(|| {
            let memory = Memory::new(4);
            let (fake, owner) = (Fake::new(&memory, 8), owner());
            memory.arm(Kind::Destination, owner, &fake);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if !own_stack {
                        let none = libc::stack_t {
                            ss_sp: std::ptr::null_mut(),
                            ss_flags: libc::SS_DISABLE,
                            ss_size: 0,
                        };
                        // SAFETY: the structure outlives the call.
                        unsafe { libc::sigaltstack(&raw const none, std::ptr::null_mut()) };
                    }
                    deeper(0)
                });
            });
        });
        // With an alternate stack the language runtime says so and aborts; without one the kernel
        // ends the process.
        let expected = if own_stack {
            libc::SIGABRT
        } else {
            libc::SIGSEGV
        };
        assert_eq!(status, -expected, "own alternate stack: {own_stack}");
    }
}

#[test]
fn buffers_on_the_stack_and_of_other_protections_are_not_guarded() {
    let _alone = alone();
    let memory = Memory::new(4);
    let fake = Fake::new(&memory, 0);
    let bytes = std::hint::black_box([0_u8; 1 << 16]);
    let handle = || Box::new(Handle(fake.clone()));
    // SAFETY: memory of this function.
    assert!(unsafe { arm(bytes.as_ptr(), bytes.len(), Kind::Source, owner(), handle()) }.is_err());
    // A source that cannot be written to is named, and stays as it is.
    // SAFETY: our memory.
    unsafe { libc::mprotect(memory.0.cast(), memory.1, libc::PROT_READ) };
    memory.arm(Kind::Source, owner(), &fake);
    memory.read(0);
    assert_eq!(
        settle_range(memory.0 as usize, memory.0 as usize + 1),
        Ok(())
    );
    let (start, end) = (memory.0 as usize, memory.0 as usize + memory.1);
    assert_eq!(vma::protection(start, end), Some(libc::PROT_READ));
    // SAFETY: our memory.
    unsafe { libc::mprotect(memory.0.cast(), page(), libc::PROT_NONE) };
    // SAFETY: as above.
    let mixed = unsafe { arm(memory.0, memory.1, Kind::Destination, owner(), handle()) };
    assert!(mixed.is_err());
}

#[test]
fn a_vector_may_grow_shrink_and_go() {
    let _alone = alone();
    const LEN: usize = 4 << 20;
    // What the allocator does then is its own: these are the C library's calls, and nobody's
    // wrappers.
    let guarded = |byte: u8| {
        let mut bytes = vec![3_u8; LEN];
        let memory = std::mem::ManuallyDrop::new(Memory(bytes.as_mut_ptr(), LEN));
        let (fake, owner) = (Fake::new(&memory, byte), owner());
        memory.arm(Kind::Destination, owner, &fake);
        (bytes, fake, owner)
    };
    let status = child(|| {
        let (mut bytes, ..) = guarded(8);
        let before = bytes.as_ptr();
        bytes.reserve_exact(16 * LEN);
        assert_ne!(bytes.as_ptr(), before);
        // What is not whole pages at both ends is there before a collective returns.
        let (start, end) = interior(before as usize, LEN);
        let guarded = start - before as usize..end - before as usize;
        assert!(bytes[guarded].iter().all(|byte| *byte == 8));
    });
    assert_eq!(status, 0, "grows");
    let status = child(|| {
        // That of the language runtime lets the first one pass.
        on_signal(libc::SIGBUS, libc::SIG_DFL, 0);
        let (mut bytes, fake, _) = guarded(0);
        let before = bytes.as_ptr();
        bytes.truncate(LEN / 2);
        bytes.shrink_to_fit();
        assert_eq!(bytes.as_ptr(), before, "its second half is unmapped");
        assert!(bytes.iter().all(|byte| *byte == 3));
        assert_eq!(fake.hurries(), 1);
    });
    assert_eq!(status, 0, "shrinks");
    let status = child(|| {
        let (bytes, fake, _) = guarded(0);
        let (start, end) = interior(bytes.as_ptr() as usize, LEN);
        drop(bytes);
        // Something else comes to the same place: the text of a library, say.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let len = end - start;
        // SAFETY: a new mapping where nothing is.
        let other = unsafe { libc::mmap(start as *mut _, len, protection, flags, -1, 0) };
        assert_eq!(other as usize, start);
        assert_eq!(settle_range(start, end), Ok(()));
        assert_eq!(fake.hurries(), 1);
        if vma::with_protection((start, end), 0, |_, _| ()) {
            assert_eq!(vma::protection(start, end), Some(protection));
        }
    });
    assert_eq!(status, 0, "goes");
}
