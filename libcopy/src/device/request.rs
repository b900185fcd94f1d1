// SPDX-License-Identifier: MIT OR Apache-2.0

//! [`Request`]: a transfer between two regions that an engine works on while we go on.
//!
//! After Copy Engines 2023, section 3.4: a request is a queue of fragments in front of the
//! hardware, and "switch to CPU" is that the engine takes no more of them. Here the queue is a
//! counter in the kernel that the engine and any number of CPUs claim from.

use std::ffi::CStr;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::mman::ProtFlags;

use super::domain::{Device, Domain};
use super::ioctl::ioctl;
use super::region_id::RegionId;
use crate::error::{Error, Result};
use crate::mapping::SharedMapping;
use crate::process::Home;
use crate::uapi;

/// What an engine is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// Channels of a DMA engine.
    Dma,
    /// A kernel thread of the module (parameter `engine=kthread`).
    KernelThread,
    /// A thread of the process that submits (a module built with `LIBCOPY_ENGINES=n`).
    Worker,
    /// Something that a later module knows.
    Other(u32),
}

/// One of the machine's engines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    /// What the kernel says.
    pub info: uapi::EngineInfo,
}

impl Engine {
    /// What it is made of.
    pub fn kind(&self) -> EngineKind {
        match self.info.kind {
            uapi::ENGINE_DMA => EngineKind::Dma,
            uapi::ENGINE_KTHREAD => EngineKind::KernelThread,
            uapi::ENGINE_WORKER => EngineKind::Worker,
            other => EngineKind::Other(other),
        }
    }

    /// Its NUMA node, if it is near one.
    pub fn node(&self) -> Option<u32> {
        u32::try_from(self.info.node).ok()
    }

    /// Name of its driver.
    pub fn driver(&self) -> String {
        text(&self.info.driver)
    }

    /// Name of its first device.
    pub fn device(&self) -> String {
        text(&self.info.device)
    }
}

fn text(bytes: &[u8]) -> String {
    match CStr::from_bytes_until_nul(bytes) {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

impl Device {
    /// The engines that have a channel, in the order of their indices.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`] if the kernel is out of memory (`ENOMEM`). No engine is no error.
    pub fn engines(&self) -> Result<Vec<Engine>> {
        engines(self.as_fd())
    }
}

fn engines(file: BorrowedFd<'_>) -> Result<Vec<Engine>> {
    let mut info = uapi::Info::default();
    // SAFETY: GET_INFO only writes the structure.
    unsafe { ioctl(file, "GET_INFO", uapi::GET_INFO, &mut info) }?;
    let mut engines = Vec::new();
    if info.features & uapi::FEATURE_REQUEST == 0 {
        return Ok(engines);
    }
    for index in 0..info.engines {
        let mut info = uapi::EngineInfo {
            index,
            ..Default::default()
        };
        // SAFETY: ENGINE_INFO only touches the structure.
        unsafe { ioctl(file, "ENGINE_INFO", uapi::ENGINE_INFO, &mut info) }?;
        if info.channels > 0 {
            engines.push(Engine { info });
        }
    }
    Ok(engines)
}

/// The name of a request inside its domain: what peers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(u32);

impl RequestId {
    /// An id that a peer sent.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if no request can have this id.
    pub fn new(id: u32) -> Result<Self> {
        match id {
            0 => Err(Error::argument("request id", id, "not 0")),
            id => Ok(RequestId(id)),
        }
    }

    /// The number to send to peers.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What [`Domain::submit`] is to move, and how.
#[derive(Clone, Copy, Debug)]
pub struct Submission {
    arg: uapi::RequestSubmit,
}

impl Submission {
    /// `length` bytes from the start of `source` to the start of `destination`.
    pub fn new(source: RegionId, destination: RegionId, length: u64) -> Self {
        Submission {
            arg: uapi::RequestSubmit {
                source: source.get(),
                destination: destination.get(),
                length,
                ..Default::default()
            },
        }
    }

    /// Starts at these bytes of source and destination.
    pub fn offsets(mut self, source: u64, destination: u64) -> Self {
        self.arg.source_offset = source;
        self.arg.destination_offset = destination;
        self
    }

    /// Pages per fragment, 1 to [`uapi::MAX_FRAGMENT_PAGES`]: larger ones cost less, smaller ones
    /// are waited for for a shorter time when a CPU takes over. By default what the module's
    /// parameter `fragment_pages` says.
    pub fn fragment_pages(mut self, pages: u32) -> Self {
        self.arg.fragment_pages = pages;
        self
    }

    /// Compares checksums (CRC32C) of source and destination at the end; what differs is copied
    /// again.
    pub fn verify(mut self) -> Self {
        self.arg.flags |= uapi::SUBMIT_VERIFY;
        self
    }
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Whether it has ended, well or not.
    pub ended: bool,
    /// Whether every byte is in place.
    pub complete: bool,
    /// Bytes in place, anywhere.
    pub done: u64,
    /// Bytes in place from the front without a gap.
    pub front: u64,
}

impl Domain {
    /// The engines that have a channel, in the order of their indices.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`] if the kernel is out of memory (`ENOMEM`). No engine is no error.
    pub fn engines(&self) -> Result<Vec<Engine>> {
        engines(self.as_fd())
    }

    /// Gives a transfer to an engine, one of the caller's NUMA node if there is any, and returns at
    /// once.
    ///
    /// The memory of the destination must not be touched until the request has ended; who owns it
    /// is up to the regions, as for every copy between them.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`] with `ENODEV` if there is no engine, with `EAGAIN` if the process may have
    /// no thread more: copy with [`Domain::copy_from`] then.
    pub fn submit(&self, what: &Submission) -> Result<Request<'_>> {
        let mut arg = what.arg;
        let name = "REQUEST_SUBMIT";
        // SAFETY: REQUEST_SUBMIT touches no memory of ours that is not published as a region.
        unsafe { ioctl(self.as_fd(), name, uapi::REQUEST_SUBMIT, &mut arg) }?;
        Ok(Request {
            domain: self,
            id: RequestId(arg.id),
            length: arg.length,
            fragment_pages: arg.fragment_pages,
            engine: arg.engine,
            live: true,
            home: Home::here(),
        })
    }

    /// What the kernel knows of a request of any member.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`] with `ENOENT` if there is no such request.
    pub fn request_info(&self, id: RequestId) -> Result<uapi::RequestInfo> {
        let mut arg = uapi::RequestInfo {
            id: id.0,
            ..Default::default()
        };
        // SAFETY: REQUEST_INFO only touches the structure.
        unsafe { ioctl(self.as_fd(), "REQUEST_INFO", uapi::REQUEST_INFO, &mut arg) }?;
        Ok(arg)
    }

    /// Waits for the end of a request of any member. [`Domain::status_table`] tells how far it is.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`]: the time is over (`ETIMEDOUT`), the request was cancelled (`ECANCELED`),
    /// its bytes arrived damaged twice (`EIO`), there is no such request (`ENOENT`), or a region of
    /// it is gone (`ESTALE`, `EOWNERDEAD`).
    pub fn wait_request(&self, id: RequestId, timeout: Option<Duration>) -> Result<Progress> {
        let timeout_ns = timeout.map_or(-1, |t| i64::try_from(t.as_nanos()).unwrap_or(i64::MAX));
        let mut arg = uapi::RequestWait {
            id: id.0,
            timeout_ns,
            ..Default::default()
        };
        // SAFETY: REQUEST_WAIT only touches the structure; on EINTR it leaves in it what is left of
        // the timeout, so repeating the call with the same structure is right.
        unsafe { ioctl(self.as_fd(), "REQUEST_WAIT", uapi::REQUEST_WAIT, &mut arg) }?;
        Ok(Progress {
            ended: arg.state != uapi::REQUEST_RUNNING,
            complete: arg.state == uapi::REQUEST_DONE,
            done: arg.done,
            front: arg.front,
        })
    }

    /// Takes a request of any member from the engine, copies what nobody has claimed, and waits for
    /// the rest. Returns the bytes that we copied. Every byte is in place then.
    ///
    /// # Errors
    ///
    /// As for [`Domain::wait_request`].
    pub fn switch_request(&self, id: RequestId) -> Result<u64> {
        let (result, copied) = drain(self.as_fd(), id, 0);
        result.map(|()| copied)
    }

    /// Copies along with the engine until nothing is left to claim; returns the bytes that we
    /// copied. Others may still be at work when this returns.
    ///
    /// # Errors
    ///
    /// As for [`Domain::wait_request`].
    pub fn help_request(&self, id: RequestId) -> Result<u64> {
        help(self.as_fd(), id)
    }

    /// Maps the table in which the kernel writes the state of every request of the domain.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the kernel does not map the table: it is out of memory, or the module
    /// is older.
    pub fn status_table(&self) -> Result<StatusTable> {
        let (at, len) = (uapi::STATUS_OFFSET, uapi::STATUS_BYTES as usize);
        let mapping = SharedMapping::new(self.as_fd(), at, len, ProtFlags::PROT_READ);
        Ok(StatusTable {
            mapping: mapping.map_err(|source| Error::system("mmap of the status table", source))?,
        })
    }
}

/// [`Domain::help_request`] through a file of a member's.
pub(crate) fn help(file: BorrowedFd<'_>, id: RequestId) -> Result<u64> {
    let (result, copied) = drain(file, id, uapi::SWITCH_HELP | uapi::SWITCH_NO_WAIT);
    match result {
        Err(Error::Ioctl { source, .. }) if source.raw_os_error() == Some(libc::ETIMEDOUT) => {
            Ok(copied)
        }
        result => result.map(|()| copied),
    }
}

/// What came of it, and what was copied in any case.
fn drain(file: BorrowedFd<'_>, id: RequestId, flags: u32) -> (Result<()>, u64) {
    let mut arg = uapi::RequestSwitch {
        id: id.0,
        flags,
        ..Default::default()
    };
    // SAFETY: REQUEST_SWITCH touches no memory of ours that is not published as a region.
    let result = unsafe { ioctl(file, "REQUEST_SWITCH", uapi::REQUEST_SWITCH, &mut arg) };
    (result.map(drop), arg.copied)
}

/// [`Domain::switch_request`] for signal handlers: makes one kind of system call, allocates
/// nothing, takes no lock. Returns the errno on failure.
///
/// # Errors
///
/// The errno: those of [`Domain::wait_request`].
pub fn switch_in_handler(file: BorrowedFd<'_>, id: RequestId) -> std::result::Result<(), i32> {
    let mut arg = uapi::RequestSwitch {
        id: id.0,
        ..Default::default()
    };
    loop {
        let command = uapi::REQUEST_SWITCH as libc::Ioctl;
        // SAFETY: The argument is what the command takes and outlives the call.
        let answer = unsafe { libc::ioctl(file.as_raw_fd(), command, &mut arg) };
        if answer >= 0 {
            return Ok(());
        }
        // SAFETY: The address of errno is valid on every thread.
        match unsafe { *libc::__errno_location() } {
            libc::EINTR => {}
            errno => return Err(errno),
        }
    }
}

/// Forgets a request that this process submitted, and cancels it if it has not ended.
pub(crate) fn release(file: BorrowedFd<'_>, id: RequestId) {
    let mut arg = uapi::RequestCancel {
        id: id.0,
        ..Default::default()
    };
    // Fails if it is gone already, or if this is a fork's child, to which it does not belong.
    // SAFETY: REQUEST_CANCEL only touches the structure.
    let _ = unsafe { ioctl(file, "REQUEST_CANCEL", uapi::REQUEST_CANCEL, &mut arg) };
}

/// A transfer under way. Dropping it cancels it, and waits until nobody writes to the destination
/// for it any more.
#[derive(Debug)]
pub struct Request<'a> {
    domain: &'a Domain,
    id: RequestId,
    length: u64,
    fragment_pages: u32,
    engine: u32,
    live: bool,
    home: Home,
}

impl Request<'_> {
    /// What to tell peers.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Bytes to move.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there is nothing to move.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Pages per fragment.
    pub fn fragment_pages(&self) -> u32 {
        self.fragment_pages
    }

    /// Index of the engine that works on it.
    pub fn engine(&self) -> u32 {
        self.engine
    }

    /// Lets it run on its own; the holder of the id looks after it.
    pub(crate) fn detach(mut self) -> RequestId {
        self.live = false;
        self.id
    }

    /// What the kernel knows of it.
    ///
    /// # Errors
    ///
    /// As for [`Domain::request_info`].
    pub fn info(&self) -> Result<uapi::RequestInfo> {
        self.domain.request_info(self.id)
    }

    /// Waits until every byte is in place; `None` waits for as long as it takes.
    ///
    /// # Errors
    ///
    /// As for [`Domain::wait_request`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Progress> {
        self.domain.wait_request(self.id, timeout)
    }

    /// See [`Domain::switch_request`].
    ///
    /// # Errors
    ///
    /// As for [`Domain::wait_request`].
    pub fn switch_to_cpu(&self) -> Result<u64> {
        self.domain.switch_request(self.id)
    }

    /// See [`Domain::help_request`].
    ///
    /// # Errors
    ///
    /// As for [`Domain::wait_request`].
    pub fn help(&self) -> Result<u64> {
        self.domain.help_request(self.id)
    }

    /// Stops the request and waits for what has begun; returns how far it came.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`] with `ENOENT` if there is no such request.
    pub fn cancel(mut self) -> Result<Progress> {
        self.live = false;
        let arg = cancel(self.domain, self.id)?;
        Ok(Progress {
            ended: true,
            complete: arg.state == uapi::REQUEST_DONE,
            done: arg.done,
            // Only a complete request says how its bytes lie.
            front: if arg.done == self.length { arg.done } else { 0 },
        })
    }
}

fn cancel(domain: &Domain, id: RequestId) -> Result<uapi::RequestCancel> {
    let mut arg = uapi::RequestCancel {
        id: id.0,
        ..Default::default()
    };
    // SAFETY: REQUEST_CANCEL only touches the structure.
    unsafe {
        ioctl(
            domain.as_fd(),
            "REQUEST_CANCEL",
            uapi::REQUEST_CANCEL,
            &mut arg,
        )
    }?;
    Ok(arg)
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        // A forked child does not stop what its parent has submitted.
        if self.live && self.home.is_here() {
            // ENOENT is the only way this fails: then it is gone already.
            let _ = cancel(self.domain, self.id);
        }
    }
}

/// The state of all requests of a domain, to be read without a system call.
#[derive(Debug)]
pub struct StatusTable {
    mapping: SharedMapping,
}

impl StatusTable {
    /// How far a request is; `None` if the table does not know it, because it was released and its
    /// place given to another. Async-signal-safe.
    pub fn progress(&self, id: RequestId) -> Option<Progress> {
        let index = (id.0 % uapi::MAX_REQUESTS) as usize;
        let entry = self.entry(index);
        // SAFETY: Inside the mapping, aligned, and only ever accessed atomically.
        let (name, state, done, front) = unsafe {
            (
                AtomicU32::from_ptr(&raw mut (*entry).id),
                AtomicU32::from_ptr(&raw mut (*entry).state),
                AtomicU64::from_ptr(&raw mut (*entry).done),
                AtomicU64::from_ptr(&raw mut (*entry).front),
            )
        };
        // The state first: what is said to have ended is in place in what is read afterwards.
        let first = name.load(Ordering::Acquire);
        let state = state.load(Ordering::Acquire);
        let progress = Progress {
            ended: state != uapi::REQUEST_RUNNING,
            complete: state == uapi::REQUEST_DONE,
            done: done.load(Ordering::Acquire),
            front: front.load(Ordering::Acquire),
        };
        // An entry that begins anew loses its name first.
        let last = name.load(Ordering::Relaxed);
        (first == id.0 && last == id.0).then_some(progress)
    }

    fn entry(&self, index: usize) -> *mut uapi::RequestStatus {
        self.mapping
            .base()
            .cast::<uapi::RequestStatus>()
            .wrapping_add(index)
    }

    /// The requests of the domain that have not ended.
    pub(crate) fn running(&self) -> impl Iterator<Item = RequestId> + '_ {
        (0..uapi::MAX_REQUESTS as usize).filter_map(|index| {
            let entry = self.entry(index);
            // SAFETY: Inside the mapping, aligned, and only ever accessed atomically.
            let id = unsafe { AtomicU32::from_ptr(&raw mut (*entry).id) }.load(Ordering::Acquire);
            let id = RequestId::new(id).ok()?;
            self.progress(id)
                .is_some_and(|progress| !progress.ended)
                .then_some(id)
        })
    }
}

/// The kernel's claim protocol, the same file, for the model checker.
#[cfg(all(test, loom))]
#[path = "../../../kmod/requests/fragments.rs"]
#[allow(dead_code)]
mod fragments;

/// What it is written in.
#[cfg(all(test, loom))]
mod atomic {
    use loom::sync::atomic::{AtomicU64, Ordering};

    pub(crate) struct Word(AtomicU64);

    impl Word {
        pub(crate) fn new(value: u64) -> Self {
            Self(AtomicU64::new(value))
        }

        pub(crate) fn read(&self) -> u64 {
            self.0.load(Ordering::Acquire)
        }

        pub(crate) fn latest(&self) -> u64 {
            self.0.fetch_add(0, Ordering::AcqRel)
        }

        pub(crate) fn add(&self, amount: u64) -> u64 {
            self.0.fetch_add(amount, Ordering::AcqRel)
        }

        pub(crate) fn replace(&self, old: u64, new: u64) -> Result<u64, u64> {
            self.0
                .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::atomic::Word;
    use super::fragments::{Fragments, Worker, bitmap_words, count};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use loom::thread;

    struct Model {
        fragments: Fragments<Vec<Word>>,
        /// One byte per fragment, written by the thread that claimed it: loom reports two writers.
        bytes: Vec<UnsafeCell<u8>>,
        /// Bytes of the front that were published, as in the status table.
        published: AtomicU64,
        settled: AtomicU32,
    }

    impl Model {
        fn new(length: u64, size: u64, phase: u64) -> Arc<Self> {
            let count = count(length, size, phase);
            let bitmap = (0..bitmap_words(count)).map(|_| Word::new(0)).collect();
            Arc::new(Model {
                fragments: Fragments::new(length, size, phase, bitmap),
                bytes: (0..count).map(|_| UnsafeCell::new(0)).collect(),
                published: AtomicU64::new(0),
                settled: AtomicU32::new(0),
            })
        }

        fn work(&self, worker: Worker) {
            while let Some((first, many)) = self.fragments.claim(worker, 1) {
                for fragment in first..first + many {
                    self.bytes[fragment as usize].with_mut(|byte| unsafe { *byte += 1 });
                    self.finish(fragment);
                }
            }
        }

        /// One step per call, so that what is left over is modelled, too.
        fn finish(&self, fragment: u64) {
            let mut front = self.fragments.mark(fragment, 1);
            loop {
                self.published.fetch_add(front.advanced, Ordering::AcqRel);
                if !front.more {
                    break;
                }
                front = self.fragments.advance(1);
            }
            if self.fragments.settle(1) {
                if self.fragments.complete() {
                    let published = self.published.load(Ordering::Acquire);
                    assert_eq!(
                        published,
                        self.fragments.length(),
                        "ended before it was told"
                    );
                }
                self.settled.fetch_add(1, Ordering::AcqRel);
            }
        }

        fn check(&self, upto: u64) {
            for byte in &self.bytes[..upto as usize] {
                byte.with(|byte| assert_eq!(unsafe { *byte }, 1));
            }
        }
    }

    fn check(body: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(body);
    }

    /// An engine and two CPUs; the request is switched while they work.
    #[test]
    fn loom_nothing_is_copied_twice_or_lost() {
        check(|| {
            let model = Model::new(25, 10, 3);
            let threads: Vec<_> = [Worker::Engine, Worker::Cpu]
                .into_iter()
                .map(|worker| {
                    let model = model.clone();
                    thread::spawn(move || model.work(worker))
                })
                .collect();
            model.fragments.close_to_engines();
            model.work(Worker::Cpu);
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(model.fragments.complete() && model.fragments.settled());
            assert!(
                model.settled.load(Ordering::Acquire) >= 1,
                "nobody saw the end"
            );
            assert_eq!(model.fragments.front(), 25);
            model.check(3);
        });
    }

    /// What is said to be the front is written, by whichever worker.
    #[test]
    fn loom_the_front_has_no_gap() {
        check(|| {
            let model = Model::new(30, 10, 0);
            let other = model.clone();
            let thread = thread::spawn(move || other.work(Worker::Engine));
            if let Some((first, _)) = model.fragments.claim(Worker::Cpu, 1) {
                model.bytes[first as usize].with_mut(|byte| unsafe { *byte += 1 });
                model.finish(first);
            }
            let front = model.fragments.front();
            model.check(front / 10);
            thread.join().unwrap();
            model.work(Worker::Cpu);
            assert_eq!(model.fragments.front(), 30);
        });
    }

    /// A request that is closed is settled exactly when the last claim is finished, and somebody
    /// sees it.
    #[test]
    fn loom_closing_is_noticed() {
        check(|| {
            let model = Model::new(30, 10, 0);
            let other = model.clone();
            let thread = thread::spawn(move || other.work(Worker::Engine));
            let settled = model.fragments.close();
            thread.join().unwrap();
            assert!(model.fragments.settled());
            assert!(settled || model.settled.load(Ordering::Acquire) >= 1);
            assert!(model.fragments.claim(Worker::Cpu, 1).is_none());
        });
    }
}
