// SPDX-License-Identifier: MIT OR Apache-2.0

//! The guard: memory whose content is still on its way cannot be touched.
//!
//! After Copy Engines 2023, section 3.2: a blocking operation returns before its bytes have
//! arrived, and `mprotect` holds threads that come too early. The handler of SIGSEGV finds the
//! buffer in a table, has its [`Completion`] hurry, takes the protection from what has arrived, and
//! lets the instruction run again. Everything else goes to the handler that was there before us.
//!
//! # What runs in the handler
//!
//! The table is static and read without locks; the handler makes system calls (`mprotect`, what the
//! completion needs, `clock_gettime`), allocates nothing and keeps `errno`. Guards are armed and
//! cleared in ordinary code, under a spin lock that no handler takes.
//!
//! # A slot of the table
//!
//! `FREE` → `ARMING` → `ARMED` → `OPEN` → `FREE`. Its range stays readable after `OPEN`: a thread
//! may have faulted just before another one lifted the guard, and comes to a handler that finds
//! nothing armed. It is let go as long as that can be explained by the number of threads.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::{signal, stack, vma};
use crate::error::Error;

/// Buffers that can be guarded at the same time.
const SLOTS: usize = 256;

/// Faults that may come late at a guard that is gone: one per thread of a large process.
const LATE: u32 = 4096;

const FREE: u32 = 0;
const ARMING: u32 = 1;
const ARMED: u32 = 2;
const OPEN: u32 = 3;

/// What brings the bytes of a guarded buffer; offsets count from the buffer's start.
///
/// All functions are called in signal handlers: they must be async-signal-safe.
pub(crate) trait Completion: Send + Sync {
    /// The end of the bytes that are in place from `from` on without a gap.
    fn arrived(&self, from: usize) -> usize;

    /// Returns when all of `from..to` is in place.
    ///
    /// # Errors
    ///
    /// An errno: they will never be.
    fn hurry(&self, from: usize, to: usize) -> std::result::Result<(), i32>;

    /// Somebody begins to wait, at this time of [`clock`].
    fn touched(&self, _at: u64) {}
}

/// What a guard keeps from the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The bytes are being read: writes wait.
    Source,
    /// The bytes are being written: reads and writes wait.
    Destination,
}

struct Slot {
    state: AtomicU32,
    /// Threads that look at `completion`.
    users: AtomicU32,
    /// Faults that may still come late.
    late: AtomicU32,
    /// Errno of a loss that the application was not told of when its team went.
    lost: AtomicI32,
    told: AtomicBool,
    /// Whole pages.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Everything below is lifted.
    lifted: AtomicUsize,
    /// Address of offset 0.
    base: AtomicUsize,
    /// Protection to give back.
    restore: AtomicI32,
    /// Protection that it has meanwhile.
    held: AtomicI32,
    owner: AtomicU64,
    completion: UnsafeCell<Option<Box<dyn Completion>>>,
}

// SAFETY: `completion` is written only while the slot is not `ARMED` and has no users, by the
// holder of the lock, and read only between.
unsafe impl Sync for Slot {}

static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];

/// Slots that are not `FREE`; what has no guards looks at this alone.
#[unsafe(link_section = "libcopy_hot_words")]
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Where the search for a free slot starts: old ranges are kept for as long as possible.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// How many reasons there are not to guard anything.
static REASONS: AtomicUsize = AtomicUsize::new(0);

/// Buffers that were guarded so far.
static EVER: AtomicU64 = AtomicU64::new(0);

/// Waits for guarded memory so far, by those who touched it and those who settled it.
static HELD: AtomicU64 = AtomicU64::new(0);

/// Held to change the table or the handler, never by a signal handler.
static LOCK: AtomicBool = AtomicBool::new(false);

fn page() -> usize {
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    match PAGE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: no memory is passed.
            let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            let size = usize::try_from(size).unwrap_or(4096);
            PAGE.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}

/// The whole pages inside a buffer: what can be guarded without a neighbour noticing. Empty if
/// there is none.
pub(crate) fn interior(base: usize, len: usize) -> (usize, usize) {
    let page = page();
    let start = base.saturating_add(page - 1) / page * page;
    let end = base.saturating_add(len) / page * page;
    (start, end.max(start))
}

fn protect(start: usize, end: usize, protection: i32) -> std::result::Result<(), i32> {
    if start >= end {
        return Ok(());
    }
    // Not the function of that name: the C API wraps it, to wait for us.
    // SAFETY: the memory is a guarded buffer's: its owner gave it to us, with its protection.
    match unsafe { libc::syscall(libc::SYS_mprotect, start, end - start, protection) } {
        0 => Ok(()),
        _ => Err(signal::errno()),
    }
}

/// Nanoseconds of the monotonic clock; async-signal-safe.
pub(crate) fn clock() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn pause() {
    // SAFETY: no arguments.
    unsafe { libc::sched_yield() };
}

/// One of a slot's `users`; a panic does not leave it behind.
struct User<'a>(&'a Slot);

impl<'a> User<'a> {
    fn new(slot: &'a Slot) -> Self {
        slot.users.fetch_add(1, Ordering::SeqCst);
        User(slot)
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Slot {
    const fn new() -> Self {
        Slot {
            state: AtomicU32::new(FREE),
            users: AtomicU32::new(0),
            late: AtomicU32::new(0),
            lost: AtomicI32::new(0),
            told: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lifted: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            restore: AtomicI32::new(0),
            held: AtomicI32::new(0),
            owner: AtomicU64::new(0),
            completion: UnsafeCell::new(None),
        }
    }

    fn state(&self) -> u32 {
        self.state.load(Ordering::SeqCst)
    }

    fn overlaps(&self, start: usize, end: usize) -> bool {
        start < self.end.load(Ordering::SeqCst) && self.start.load(Ordering::SeqCst) < end
    }

    /// Runs `body` if the slot is armed and stays so for `start..end`; waits out arming.
    fn with<T>(&self, start: usize, end: usize, body: impl FnOnce(&Self) -> T) -> Option<T> {
        while self.state() == ARMING && self.overlaps(start, end) {
            pause();
        }
        let _user = User::new(self);
        (self.state() == ARMED && self.overlaps(start, end)).then(|| body(self))
    }

    /// Only while there is a [`User`].
    fn completion(&self) -> Option<&dyn Completion> {
        // SAFETY: nobody writes while there are users of an armed slot.
        unsafe { (*self.completion.get()).as_deref() }
    }

    fn lost(&self) -> std::result::Result<&dyn Completion, i32> {
        match (self.lost.load(Ordering::SeqCst), self.completion()) {
            (0, Some(completion)) => Ok(completion),
            (0, None) => Err(libc::EIO),
            (errno, _) => Err(errno),
        }
    }

    /// Gives back the protection. An allocator that this library does not stand in front of may
    /// have unmapped some of the memory (a vector that shrinks or goes), and something else may be
    /// there since, which is left alone where the kernel tells.
    fn lift(&self, start: usize, end: usize) -> std::result::Result<(), i32> {
        let restore = self.restore.load(Ordering::SeqCst);
        let mut result = Ok(());
        let mut lift = |start: usize, end: usize| match protect(start, end, restore) {
            // Unmapped memory cannot be lifted, and need not be.
            Ok(()) | Err(libc::ENOMEM) => {}
            Err(errno) => result = Err(errno),
        };
        let held = self.held.load(Ordering::SeqCst);
        if !vma::with_protection((start, end), held, &mut lift) {
            lift(start, end);
        }
        result
    }

    /// Lifts what has arrived at the front.
    fn advance(&self, completion: &dyn Completion) -> std::result::Result<(), i32> {
        let (base, end) = (
            self.base.load(Ordering::SeqCst),
            self.end.load(Ordering::SeqCst),
        );
        let at = self.lifted.load(Ordering::SeqCst);
        if at >= end {
            return Ok(());
        }
        let until = base.saturating_add(completion.arrived(at - base));
        let until = (until / page() * page()).min(end);
        if until > at {
            self.lift(at, until)?;
            self.lifted.fetch_max(until, Ordering::SeqCst);
        }
        if until == end {
            let _ = self
                .state
                .compare_exchange(ARMED, OPEN, Ordering::SeqCst, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Makes `start..end` accessible, which are pages of this guard.
    fn admit(&self, start: usize, end: usize) -> std::result::Result<(), i32> {
        let completion = self.lost()?;
        let base = self.base.load(Ordering::SeqCst);
        self.advance(completion)?;
        if self.lifted.load(Ordering::SeqCst) >= end {
            return Ok(());
        }
        HELD.fetch_add(1, Ordering::Relaxed);
        completion.touched(clock());
        completion.hurry(start - base, end - base)?;
        self.advance(completion)?;
        if self.lifted.load(Ordering::SeqCst) < end {
            // What is in front is still on its way.
            self.lift(start, end)?;
        }
        Ok(())
    }

    /// Lifts the guard if everything is there; says whether it is.
    fn finish_if_arrived(&self) -> bool {
        let (base, end) = (
            self.base.load(Ordering::SeqCst),
            self.end.load(Ordering::SeqCst),
        );
        let at = self.start.load(Ordering::SeqCst);
        let here = self
            .lost()
            .is_ok_and(|completion| base.saturating_add(completion.arrived(at - base)) >= end);
        if here {
            // This does not wait any more.
            let _ = self.finish();
        }
        here
    }

    /// Waits for everything and lifts the guard, also if something is lost.
    fn finish(&self) -> std::result::Result<(), i32> {
        let (base, end) = (
            self.base.load(Ordering::SeqCst),
            self.end.load(Ordering::SeqCst),
        );
        let at = self.start.load(Ordering::SeqCst);
        let result = self.lost().and_then(|completion| {
            if base.saturating_add(completion.arrived(at - base)) >= end {
                return Ok(());
            }
            HELD.fetch_add(1, Ordering::Relaxed);
            completion.touched(clock());
            completion.hurry(at - base, end - base)
        });
        let lifted = self.lift(self.lifted.load(Ordering::SeqCst), end);
        self.lifted.store(end, Ordering::SeqCst);
        debug_assert!(lifted.is_ok());
        // Somebody else may have been faster.
        let _ = self
            .state
            .compare_exchange(ARMED, OPEN, Ordering::SeqCst, Ordering::SeqCst);
        result
    }
}

/// Holds [`LOCK`], with all signals blocked: a handler on this thread that touches a buffer which
/// is being armed would wait for itself.
struct Locked {
    mask: libc::sigset_t,
}

impl Locked {
    fn new() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut mask = MaybeUninit::uninit();
        // SAFETY: both sets outlive the calls, which fill them in.
        let mask = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), mask.as_mut_ptr());
            mask.assume_init()
        };
        take_lock();
        Locked { mask }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        LOCK.store(false, Ordering::SeqCst);
        // SAFETY: the set is the one that was in force.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.mask,
                std::ptr::null_mut(),
            )
        };
    }
}

fn take_lock() {
    while LOCK
        .compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst)
        .is_err()
    {
        pause();
    }
}

/// Guards the whole pages inside `len` bytes at `base` until `completion` says that they are in
/// place. What was pending on them is settled first.
///
/// # Errors
///
/// The memory cannot be guarded (no whole page, huge pages of hugetlbfs, on this thread's stack,
/// several kinds of mapping, too many guards); nothing was changed. Wait for `completion` then.
///
/// # Safety
///
/// The memory is the caller's, and a thread that uses it later may be made to wait.
pub(crate) unsafe fn arm(
    base: *const u8,
    len: usize,
    kind: Kind,
    owner: u64,
    completion: Box<dyn Completion>,
) -> std::result::Result<(), Box<dyn Completion>> {
    let base = base as usize;
    let (start, end) = interior(base, len);
    if start == end || REASONS.load(Ordering::SeqCst) != 0 {
        return Err(completion);
    }
    let _ = settle_range(start, end);
    if stack::on_this_stack(start, end) {
        return Err(completion);
    }
    let restore = match vma::protection(start, end) {
        Some(protection) => protection,
        None => return Err(completion),
    };
    let plain = libc::PROT_READ | libc::PROT_WRITE;
    let protection = match kind {
        Kind::Source => libc::PROT_READ,
        Kind::Destination => libc::PROT_NONE,
    };
    // A source that nobody can write to is only named, so that unmapping it waits.
    let guarded = restore == plain;
    if !guarded && (kind == Kind::Destination || restore & libc::PROT_WRITE != 0) {
        return Err(completion);
    }
    stack::alternate_stack();
    let _lock = Locked::new();
    if signal::install(on_fault, register_hooks).is_err() {
        return Err(completion);
    }
    let first = NEXT.load(Ordering::Relaxed);
    let slot = (0..SLOTS)
        .map(|step| (first + step) % SLOTS)
        .find(|index| TABLE[*index].state() == FREE);
    let Some(index) = slot else {
        return Err(completion);
    };
    NEXT.store(index + 1, Ordering::Relaxed);
    let slot = &TABLE[index];
    // Nobody finds this range by its old name from here on.
    slot.end.store(0, Ordering::SeqCst);
    slot.start.store(start, Ordering::SeqCst);
    slot.lifted.store(start, Ordering::SeqCst);
    slot.base.store(base, Ordering::SeqCst);
    slot.restore.store(restore, Ordering::SeqCst);
    slot.held.store(protection, Ordering::SeqCst);
    slot.owner.store(owner, Ordering::SeqCst);
    slot.late.store(LATE, Ordering::SeqCst);
    slot.lost.store(0, Ordering::SeqCst);
    slot.told.store(false, Ordering::SeqCst);
    while slot.users.load(Ordering::SeqCst) != 0 {
        pause();
    }
    // SAFETY: the slot is free and has no users, and we hold the lock.
    unsafe { *slot.completion.get() = Some(completion) };
    slot.state.store(ARMING, Ordering::SeqCst);
    TAKEN.fetch_add(1, Ordering::SeqCst);
    slot.end.store(end, Ordering::SeqCst);
    if guarded && protect(start, end, protection).is_err() {
        let _ = protect(start, end, restore);
        slot.end.store(0, Ordering::SeqCst);
        slot.state.store(FREE, Ordering::SeqCst);
        TAKEN.fetch_sub(1, Ordering::SeqCst);
        while slot.users.load(Ordering::SeqCst) != 0 {
            pause();
        }
        // SAFETY: as above.
        return match unsafe { (*slot.completion.get()).take() } {
            Some(completion) => Err(completion),
            None => Ok(()),
        };
    }
    slot.state.store(ARMED, Ordering::SeqCst);
    EVER.fetch_add(1, Ordering::Relaxed);
    if REASONS.load(Ordering::SeqCst) != 0 {
        // Another thread has refused it meanwhile, and may have seen no guard to settle.
        let _ = settle_range(start, end);
    }
    Ok(())
}

/// Guards nothing until [`admit_guards`] has been called as often as this; what is guarded is
/// settled.
pub(crate) fn refuse_guards() -> std::result::Result<(), i32> {
    REASONS.fetch_add(1, Ordering::SeqCst);
    settle_range(0, usize::MAX)
}

/// One reason less not to guard anything.
pub(crate) fn admit_guards() {
    REASONS.fetch_sub(1, Ordering::SeqCst);
}

/// Buffers that were guarded so far, and waits for them.
pub(crate) fn counts() -> (u64, u64) {
    (EVER.load(Ordering::Relaxed), HELD.load(Ordering::Relaxed))
}

/// Settles what overlaps `start..end`; async-signal-safe. The first error counts, all guards are
/// lifted.
pub(crate) fn settle_range(start: usize, end: usize) -> std::result::Result<(), i32> {
    if TAKEN.load(Ordering::SeqCst) == 0 || start >= end {
        return Ok(());
    }
    let mut result = Ok(());
    for slot in &TABLE {
        if slot.state() != FREE && slot.overlaps(start, end) {
            let finished = slot.with(start, end, Slot::finish).unwrap_or(Ok(()));
            result = result.and(finished);
        }
    }
    result
}

/// Lifts the guards over `start..end` whose bytes are all in place; says whether none is left.
pub(crate) fn lift_arrived(start: usize, end: usize) -> bool {
    if TAKEN.load(Ordering::SeqCst) == 0 || start >= end {
        return true;
    }
    TABLE
        .iter()
        .filter(|slot| slot.state() != FREE && slot.overlaps(start, end))
        // Every one of them is looked at.
        .fold(true, |all, slot| {
            let here = slot.with(start, end, Slot::finish_if_arrived);
            here.unwrap_or(true) && all
        })
}

/// Lifts the guards of `owner` whose bytes are all in place, and forgets those that are lifted.
/// Must not be called in a signal handler.
pub(crate) fn reap(owner: u64) {
    if TAKEN.load(Ordering::SeqCst) == 0 {
        return;
    }
    for slot in &TABLE {
        // Without an owner is what was lost, and was settled since.
        let of = slot.owner.load(Ordering::SeqCst);
        if of != owner && of != 0 {
            continue;
        }
        if of != 0 && slot.state() == ARMED {
            slot.with(0, usize::MAX, Slot::finish_if_arrived);
        }
        if slot.state() == OPEN {
            forget(slot);
        }
    }
}

fn forget(slot: &Slot) {
    let completion = {
        let _lock = Locked::new();
        if slot
            .state
            .compare_exchange(OPEN, FREE, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            return;
        }
        while slot.users.load(Ordering::SeqCst) != 0 {
            pause();
        }
        TAKEN.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: the slot is free and has no users, and we hold the lock.
        unsafe { (*slot.completion.get()).take() }
    };
    drop(completion);
}

/// Waits for everything of `owner`. What is lost stays guarded for good, so that a touch is an
/// error and never wrong data, unless the application was `told` of the loss.
pub(crate) fn retire(owner: u64, told: bool) -> std::result::Result<(), i32> {
    let mut result = Ok(());
    for slot in &TABLE {
        if slot.owner.load(Ordering::SeqCst) != owner || slot.state() == FREE {
            continue;
        }
        let ended = slot.with(0, usize::MAX, |slot| {
            let (base, start, end) = (
                slot.base.load(Ordering::SeqCst),
                slot.start.load(Ordering::SeqCst),
                slot.end.load(Ordering::SeqCst),
            );
            let here = slot
                .lost()
                .and_then(|completion| completion.hurry(start - base, end - base));
            match here {
                Err(errno) if !told => {
                    slot.lost.store(errno, Ordering::SeqCst);
                    Err(errno)
                }
                _ => slot.finish(),
            }
        });
        result = result.and(ended.unwrap_or(Ok(())));
        if slot.state() == OPEN {
            forget(slot);
        } else if slot.lost.load(Ordering::SeqCst) != 0 {
            // The slot stays; what it would ask goes.
            slot.owner.store(0, Ordering::SeqCst);
            drop(silence(slot));
        }
    }
    result
}

/// Takes the completion from a guard that stays.
fn silence(slot: &Slot) -> Option<Box<dyn Completion>> {
    let _lock = Locked::new();
    slot.state
        .compare_exchange(ARMED, ARMING, Ordering::SeqCst, Ordering::SeqCst)
        .ok()?;
    while slot.users.load(Ordering::SeqCst) != 0 {
        pause();
    }
    // SAFETY: the slot has no users, and nobody becomes one while it is `ARMING`.
    let completion = unsafe { (*slot.completion.get()).take() };
    slot.state.store(ARMED, Ordering::SeqCst);
    completion
}

/// Whether any guard may be in force.
#[inline(always)]
pub(crate) fn any() -> bool {
    TAKEN.load(Ordering::Relaxed) != 0
}

/// The word that says so.
pub(crate) fn word() -> *const AtomicUsize {
    &raw const TAKEN
}

/// Guards in force, of all owners.
pub(crate) fn pending() -> usize {
    if TAKEN.load(Ordering::SeqCst) == 0 {
        return 0;
    }
    TABLE.iter().filter(|slot| slot.state() == ARMED).count()
}

/// The errno of a loss in words.
pub(crate) fn loss(errno: i32) -> Error {
    Error::system(
        "a collective had returned before its bytes arrived, and they never will (a peer \
               died)",
        std::io::Error::from_raw_os_error(errno),
    )
}

// ------------------------------------------------------------------------------------------------
// The handler.

/// What is called around forks and at the end of the process.
fn register_hooks() {
    // SAFETY: the functions do what these hooks may.
    unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork));
        libc::atexit(at_exit);
    }
}

extern "C" fn before_fork() {
    let _ = settle_range(0, usize::MAX);
    take_lock();
    // What another thread armed in between; nobody can any more.
    let _ = settle_range(0, usize::MAX);
}

extern "C" fn after_fork() {
    LOCK.store(false, Ordering::SeqCst);
}

extern "C" fn at_exit() {
    // Peers still read or write our memory.
    for slot in &TABLE {
        slot.with(0, usize::MAX, |slot| {
            if let Ok(completion) = slot.lost() {
                let base = slot.base.load(Ordering::SeqCst);
                let (start, end) = (
                    slot.start.load(Ordering::SeqCst),
                    slot.end.load(Ordering::SeqCst),
                );
                let _ = completion.hurry(start - base, end - base);
            }
        });
    }
}

/// The handler of SIGSEGV.
unsafe extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let kept = signal::errno();
    // SAFETY: the kernel, or a handler that chains to us, passes a valid structure.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let ours = code == SEGV_ACCERR && resolve(address, context);
    if !ours {
        // SAFETY: the arguments are the handler's own.
        unsafe { signal::pass_on(signal, info, context) };
    }
    // SAFETY: the address of errno is valid on every thread.
    unsafe { *libc::__errno_location() = kept };
}

/// `asm-generic/siginfo.h`: mapped, but not for this access.
const SEGV_ACCERR: i32 = 2;

/// Whether the fault is explained, so that the instruction may run again.
fn resolve(address: usize, context: *mut libc::c_void) -> bool {
    let start = address / page() * page();
    let end = start + page();
    let mut late = None;
    for slot in &TABLE {
        if !slot.overlaps(address, address + 1) {
            continue;
        }
        let admitted = slot.with(address, address + 1, |slot| {
            // Who faults at what is lifted comes late as well.
            (slot.lifted.load(Ordering::SeqCst) < end).then(|| {
                // An error is delivered as a signal.
                let admitted = slot.admit(start, end);
                admitted.inspect_err(|errno| report_loss(slot, address, *errno, context))
            })
        });
        if admitted.flatten().is_some() {
            return true;
        }
        late = Some(slot);
    }
    late.is_some_and(|slot| {
        let one_less = |left: u32| left.checked_sub(1);
        slot.late
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
            .is_ok()
    })
}

/// The bytes that a thread wants will never come: that is a SIGBUS, as for a page that cannot be
/// read from its file. It is sent here and delivered when our handler returns, because alternate
/// stacks have no room for a second frame.
fn report_loss(slot: &Slot, address: usize, errno: i32, context: *mut libc::c_void) {
    if !slot.told.swap(true, Ordering::SeqCst) {
        let text = b"libcopy: the bytes of a collective that had returned never arrived, because \
                     a peer died: touching them raises SIGBUS (offload::settle reports it as an \
                     error)\n";
        // SAFETY: the text is readable.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
    signal::send_bus_error(address, errno, context);
}

#[cfg(test)]
mod tests;
