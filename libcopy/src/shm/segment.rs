// SPDX-License-Identifier: MIT OR Apache-2.0

//! The memory that a team shares: a file in a tmpfs, mapped by every rank.
//!
//! Rank 0 creates the file, all map it, and as soon as all are there its name is removed: from
//! then on nobody can come in and nothing is left behind, however the processes end.
//!
//! A rank is alive as long as it holds a POSIX record lock on byte `rank` of the file. The kernel
//! drops the lock when the process ends, for whatever reason and before it is reaped; a child does
//! not inherit it; and it works across pid namespaces. The catch: closing *any* descriptor of the
//! file drops all locks of the process, so a process opens the file once, even if several of its
//! threads are ranks.
//!
//! Everything that is not ring bytes is an atomic, since peers may write at any time.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::geteuid;

use super::barrier::Barrier;
use super::claims::Claims;
use super::doorbell::Doorbell;
use super::reports::Reports;
use super::ring::{Counter, Head};
use super::sync::{AtomicU64, Ordering};
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::mapping::{self, SharedMapping};
use crate::policy::POLICY_WORDS;
use crate::team::key::TeamKey;

/// Set as the last step of making the segment: "libcopy" and the version of the layout.
const READY: u64 = u64::from_le_bytes(*b"libcopy\x01");

/// Most ranks a team may have.
pub(crate) const MAX_RANKS: usize = 1024;

/// Bytes between two headers in a ring are padded to this; rings are multiples of it.
pub(crate) const LINE: usize = 64;

/// First page of the segment.
#[repr(C)]
pub(crate) struct Preamble {
    ready: AtomicU64,
    size: AtomicU64,
    pair_ring: AtomicU64,
    bcast_ring: AtomicU64,
    /// Rank 0's policy.
    pub(crate) policy: [AtomicU64; POLICY_WORDS],
    /// The rank that changes this from 0 writes `broken` and its details.
    pub(crate) claim: AtomicU64,
    /// Why the team cannot be used any more; 0 as long as it can.
    pub(crate) broken: AtomicU64,
    pub(crate) details: [AtomicU64; 6],
    /// Key of the kernel module's domain, made by rank 0.
    pub(crate) domain_key: [AtomicU64; 2],
    pub(crate) barrier: Barrier,
    /// How often the team was lent to a rank and not given back, for [`crate::team::Usage`].
    pub(crate) lent: AtomicU64,
    /// 1 once nobody is to use the team any more.
    pub(crate) retired: AtomicU64,
    /// What ranks have reported since a disagreement, for [`crate::team::Resumption`].
    pub(crate) reports: Reports,
}

/// What a rank says about itself.
#[repr(C, align(128))]
pub(crate) struct RankBlock {
    pub(crate) bell: Doorbell,
    /// 1 once the rank holds its lock.
    pub(crate) joined: AtomicU64,
    /// 1 once the rank has left in good order.
    pub(crate) left: AtomicU64,
    /// Distinguishes processes; ranks of one process cannot see each other's locks.
    pub(crate) process: AtomicU64,
    pub(crate) cpus: [AtomicU64; 16],
    /// Where peers try to read our memory, and what they must find.
    pub(crate) probe_address: AtomicU64,
    pub(crate) probe_value: AtomicU64,
    /// What came of it: 0 or an errno, and the rank that we could not read.
    pub(crate) probe_error: AtomicU64,
    pub(crate) probe_peer: AtomicU64,
    /// What came of opening the device: 0 or an errno (or a made-up number).
    pub(crate) device_error: AtomicU64,
    /// A request whose bytes the rank waits for, so that an idle rank may help; 0: none.
    pub(crate) help_request: AtomicU64,
    /// The last operations that the rank called.
    pub(crate) calls: [CallRecord; HISTORY],
    /// A bit for each rank that has put something for this one into its ring for messages.
    pub(crate) arrivals: [AtomicU64; MAX_RANKS / 64],
    /// 1 once the rank leaves and receives no more messages.
    pub(crate) deaf: AtomicU64,
}

/// How many operations a rank that only sends small messages may be ahead of one that hangs in
/// another operation, and still be found out.
pub(crate) const HISTORY: usize = 32;

/// What a rank called; [`crate::op::Call`] as words.
#[repr(C)]
pub(crate) struct CallRecord {
    /// Number of the operation, counted from 1; written last.
    pub(crate) sequence: AtomicU64,
    pub(crate) words: [AtomicU64; 2],
}

/// Where things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    size: usize,
    pair_ring: usize,
    bcast_ring: usize,
    blocks: usize,
    pair_heads: usize,
    pair_tails: usize,
    cast_heads: usize,
    cast_tails: usize,
    claims: usize,
    pair_bytes: usize,
    cast_bytes: usize,
    total: usize,
}

impl Plan {
    fn new(size: usize, pair_ring: usize, bcast_ring: usize) -> Self {
        let mut end = 0;
        let mut place = |bytes: usize| {
            let start = end;
            end = (start + bytes).next_multiple_of(4096);
            start
        };
        let counter = size_of::<Counter>();
        place(size_of::<Preamble>());
        let blocks = place(size * size_of::<RankBlock>());
        let pair_heads = place(size * size * size_of::<Head>());
        let pair_tails = place(size * size * counter);
        let cast_heads = place(size * size_of::<Head>());
        let cast_tails = place(size * size * counter);
        let claims = place(size * size * counter);
        let pair_bytes = place(size * size * pair_ring);
        let cast_bytes = place(size * bcast_ring);
        Plan {
            size,
            pair_ring,
            bcast_ring,
            blocks,
            pair_heads,
            pair_tails,
            cast_heads,
            cast_tails,
            claims,
            pair_bytes,
            cast_bytes,
            total: end,
        }
    }
}

/// A mapping of the shared memory.
#[derive(Debug)]
pub(crate) struct Segment {
    mapping: SharedMapping,
    plan: Plan,
    rank: usize,
    file: Arc<File>,
    path: PathBuf,
}

/// What rank 0 needs to know to make a segment.
pub(crate) struct Blueprint {
    pub(crate) pair_ring: usize,
    pub(crate) bcast_ring: usize,
    pub(crate) policy: [u64; POLICY_WORDS],
}

impl Blueprint {
    /// Bytes of the segment for `size` ranks.
    pub(crate) fn bytes(&self, size: usize) -> usize {
        Plan::new(size, self.pair_ring, self.bcast_ring).total
    }
}

impl Segment {
    /// Makes the segment (rank 0) or waits for it, maps it, and takes the rank.
    pub(crate) fn open(
        directory: &Path,
        key: &TeamKey,
        rank: usize,
        size: usize,
        blueprint: &Blueprint,
        deadline: Instant,
    ) -> Result<Self> {
        let path = directory.join(format!("libcopy-{key}"));
        let started = Instant::now();
        if rank == 0 {
            let file = process_file(key, || create(&path))?;
            let made = Self::make(&path, file, size, blueprint);
            if made.is_err() {
                unlink(&path);
            }
            return made;
        }
        let late = || Error::JoinTimeout {
            rank: 0,
            missing: 1,
            size,
            waited: started.elapsed(),
        };
        let mut pause = Duration::from_micros(100);
        let file = loop {
            match process_file(key, || open(&path)) {
                Err(Error::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                other => break other?,
            }
            if Instant::now() > deadline {
                return Err(late());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        };
        loop {
            let mut words = [0u8; 32];
            if file.read_exact_at(&mut words, 0).is_ok() {
                let word = |i: usize| {
                    u64::from_ne_bytes(words[8 * i..][..8].try_into().unwrap_or_default())
                };
                if word(0) == READY {
                    return Self::map_existing(
                        &path,
                        file,
                        rank,
                        size,
                        [word(1), word(2), word(3)],
                    );
                }
            }
            if Instant::now() > deadline {
                return Err(late());
            }
            std::thread::sleep(pause);
        }
    }

    fn make(path: &Path, file: Arc<File>, size: usize, blueprint: &Blueprint) -> Result<Self> {
        let mut plan = Plan::new(size, blueprint.pair_ring, blueprint.bcast_ring);
        loop {
            // Reserve now: a tmpfs that is full would otherwise kill us in the middle of a copy.
            let is_full = |error: &io::Error| {
                matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EFBIG))
            };
            match mapping::reserve(&file, 0, plan.total) {
                Ok(()) => break,
                Err(error)
                    if is_full(&error) && (plan.pair_ring > 4096 || plan.bcast_ring > 16384) =>
                {
                    plan = Plan::new(
                        size,
                        (plan.pair_ring / 2).max(4096),
                        (plan.bcast_ring / 2).max(16384),
                    );
                    let _ = file.set_len(0);
                }
                Err(error) => {
                    return Err(Error::system(
                        format!(
                            "reserving {} KiB in {} for a team of {size} (give it more room, or \
                             choose another tmpfs with LIBCOPY_SHM_DIR)",
                            plan.total >> 10,
                            path.display()
                        ),
                        error,
                    ));
                }
            }
        }
        // A retry may have reserved more than it needs in the end.
        mapping::set_len(&file, plan.total)
            .map_err(|source| Error::system(format!("sizing {}", path.display()), source))?;
        let segment = Self::map(path, file, 0, plan)?;
        let preamble = segment.preamble();
        preamble.size.store(size as u64, Ordering::Relaxed);
        preamble
            .pair_ring
            .store(plan.pair_ring as u64, Ordering::Relaxed);
        preamble
            .bcast_ring
            .store(plan.bcast_ring as u64, Ordering::Relaxed);
        for (word, value) in preamble.policy.iter().zip(blueprint.policy) {
            word.store(value, Ordering::Relaxed);
        }
        segment.take_rank()?;
        preamble.ready.store(READY, Ordering::Release);
        Ok(segment)
    }

    fn map_existing(
        path: &Path,
        file: Arc<File>,
        rank: usize,
        size: usize,
        [their_size, pair_ring, bcast_ring]: [u64; 3],
    ) -> Result<Self> {
        if their_size != size as u64 {
            return Err(Error::TeamSize {
                mine: size,
                theirs: their_size as usize,
            });
        }
        for ring in [pair_ring, bcast_ring] {
            if !(LINE as u64..=1 << 32).contains(&ring) || ring % LINE as u64 != 0 {
                return Err(Error::corrupt("the size of a ring", ring));
            }
        }
        let plan = Plan::new(size, pair_ring as usize, bcast_ring as usize);
        let length = file.metadata().map_or(0, |m| m.len());
        if length < plan.total as u64 {
            return Err(Error::corrupt("the length of the file", length));
        }
        let segment = Self::map(path, file, rank, plan)?;
        segment.take_rank()?;
        Ok(segment)
    }

    fn map(path: &Path, file: Arc<File>, rank: usize, plan: Plan) -> Result<Self> {
        let mapping = SharedMapping::writable(&file, 0, plan.total);
        Ok(Segment {
            mapping: mapping
                .map_err(|source| Error::system(format!("mapping {}", path.display()), source))?,
            plan,
            rank,
            file,
            path: path.to_owned(),
        })
    }

    /// Makes us alive in the eyes of the others.
    fn take_rank(&self) -> Result<()> {
        let in_use = || Error::InUse {
            what: format!("rank {}", self.rank),
        };
        let block = self.block(self.rank);
        if block
            .process
            .compare_exchange(0, process_nonce()?, Ordering::AcqRel, Ordering::Relaxed)
            != Ok(0)
        {
            return Err(in_use());
        }
        let lock = self.record(libc::F_WRLCK, self.rank);
        fcntl(&self.file, FcntlArg::F_SETLK(&lock)).map_err(|errno| match errno {
            Errno::EACCES | Errno::EAGAIN => in_use(),
            _ => Error::system(format!("locking a byte of {}", self.path.display()), errno),
        })?;
        for cpu in crate::topology::affinity() {
            if let Some(word) = block.cpus.get(cpu / 64) {
                word.fetch_or(1 << (cpu % 64), Ordering::Relaxed);
            }
        }
        block.joined.store(1, Ordering::Release);
        Ok(())
    }

    fn record(&self, kind: libc::c_int, rank: usize) -> libc::flock {
        // SAFETY: flock is a plain structure; all zero is a valid value.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as _;
        lock.l_whence = libc::SEEK_SET as _;
        lock.l_start = rank as _;
        lock.l_len = 1;
        lock
    }

    /// The process that holds a rank, as our pid namespace numbers it (0: not visible from here);
    /// `None` if nobody does any more.
    pub(crate) fn holder(&self, rank: usize) -> Result<Option<i32>> {
        if self.block(rank).process.load(Ordering::Acquire) == process_nonce()? {
            // Our own locks do not show.
            return Ok(Some(std::process::id() as i32));
        }
        let mut lock = self.record(libc::F_WRLCK, rank);
        fcntl(&self.file, FcntlArg::F_GETLK(&mut lock))
            .map_err(|errno| Error::system("asking for a record lock", errno))?;
        Ok((i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid))
    }

    /// Our rank, and how many there are.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.rank, self.plan.size)
    }

    /// The file, and where what is mapped here ends.
    pub(crate) fn file(&self) -> (&File, usize) {
        (&self.file, self.plan.total)
    }

    /// Removes the name of the file.
    pub(crate) fn unlink(&self) {
        unlink(&self.path);
    }

    /// Entry `index` of the table that starts at byte `table`.
    fn entry<T>(&self, table: usize, index: usize) -> &T {
        // SAFETY: callers pass places of the plan with the type that is there, made of atomics only, so that
        // peers may write to it, and zero is a valid value for each.
        unsafe { &*self.mapping.base().add(table).cast::<T>().add(index) }
    }

    pub(crate) fn preamble(&self) -> &Preamble {
        self.entry(0, 0)
    }

    pub(crate) fn block(&self, rank: usize) -> &RankBlock {
        assert!(rank < self.plan.size);
        self.entry(self.plan.blocks, rank)
    }

    fn index(&self, from: usize, to: usize) -> usize {
        assert!(from < self.plan.size && to < self.plan.size);
        from * self.plan.size + to
    }

    /// Counter of the bytes that `from` wrote to `to` alone.
    pub(crate) fn pair_head(&self, from: usize, to: usize) -> &Head {
        self.entry(self.plan.pair_heads, self.index(from, to))
    }

    /// Counter of those that `to` is done with.
    pub(crate) fn pair_tail(&self, from: usize, to: usize) -> &Counter {
        self.entry(self.plan.pair_tails, self.index(from, to))
    }

    /// Counter of the bytes that `from` wrote to all.
    pub(crate) fn cast_head(&self, from: usize) -> &Head {
        self.entry(self.plan.cast_heads, self.index(0, from))
    }

    /// Counter of those that `to` is done with.
    pub(crate) fn cast_tail(&self, from: usize, to: usize) -> &Counter {
        self.entry(self.plan.cast_tails, self.index(from, to))
    }

    /// The pieces that a root and a leaf have claimed of the copy that they share.
    pub(crate) fn claims(&self, root: usize, leaf: usize) -> &Claims<16> {
        let at = self.plan.claims + self.index(root, leaf) * size_of::<Counter>();
        self.entry(at, 0)
    }

    /// The ring from one rank to another; [`Self::pair_ring`] bytes that peers may change.
    pub(crate) fn pair_bytes(&self, from: usize, to: usize) -> *mut u8 {
        let offset = self.plan.pair_bytes + self.index(from, to) * self.plan.pair_ring;
        // SAFETY: the ring is inside the mapping.
        unsafe { self.mapping.base().add(offset) }
    }

    /// The ring from one rank to all; [`Self::bcast_ring`] bytes that peers may change.
    pub(crate) fn cast_bytes(&self, from: usize) -> *mut u8 {
        let offset = self.plan.cast_bytes + self.index(0, from) * self.plan.bcast_ring;
        // SAFETY: the ring is inside the mapping.
        unsafe { self.mapping.base().add(offset) }
    }

    pub(crate) fn pair_ring(&self) -> usize {
        self.plan.pair_ring
    }

    pub(crate) fn bcast_ring(&self) -> usize {
        self.plan.bcast_ring
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Our lock goes now rather than with the file, which other ranks of this process may use.
        let lock = self.record(libc::F_UNLCK, self.rank);
        let _ = fcntl(&self.file, FcntlArg::F_SETLK(&lock));
    }
}

/// Removes what a team whose processes all died before they were complete may have left.
pub(crate) fn remove_leftover(directory: &Path, key: &TeamKey) {
    unlink(&directory.join(format!("libcopy-{key}")));
}

fn unlink(path: &Path) {
    // Usually another rank was faster.
    let _ = std::fs::remove_file(path);
}

fn create(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(path)
        .map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => Error::InUse {
                what: format!("the key of {}", path.display()),
            },
            _ => Error::system(format!("creating {}", path.display()), source),
        })
}

fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(path)
        .map_err(|source| Error::system(format!("opening {}", path.display()), source))?;
    let status = file
        .metadata()
        .map_err(|source| Error::system(format!("examining {}", path.display()), source))?;
    // Anybody may create files in a tmpfs; ours belongs to us and is closed to others.
    let me = geteuid().as_raw();
    if status.uid() != me || status.mode() & 0o077 != 0 || !status.is_file() {
        return Err(Error::InUse {
            what: format!(
                "{} (owner {}, mode {:o})",
                path.display(),
                status.uid(),
                status.mode()
            ),
        });
    }
    Ok(file)
}

/// The one descriptor that this process has of a team's file.
fn process_file(key: &TeamKey, open: impl FnOnce() -> Result<File>) -> Result<Arc<File>> {
    static FILES: Mutex<Vec<(TeamKey, u32, Weak<File>)>> = Mutex::new(Vec::new());
    let pid = std::process::id();
    let mut files = lock(&FILES);
    files.retain(|(_, _, file)| file.strong_count() > 0);
    let mine = files.iter().find(|(k, p, _)| k == key && *p == pid);
    if let Some(file) = mine.and_then(|(_, _, file)| file.upgrade()) {
        return Ok(file);
    }
    let file = Arc::new(open()?);
    files.push((*key, pid, Arc::downgrade(&file)));
    Ok(file)
}

/// A number that no other process has, also in another pid namespace.
fn process_nonce() -> Result<u64> {
    static NONCE: Mutex<(u32, u64)> = Mutex::new((0, 0));
    let pid = std::process::id();
    let mut nonce = lock(&NONCE);
    if nonce.0 != pid {
        // The first call, or the first one in a forked child.
        let random = TeamKey::random()?.to_bytes();
        *nonce = (
            pid,
            u64::from_ne_bytes(random[..8].try_into().unwrap_or_default()) | 1,
        );
    }
    Ok(nonce.1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        for size in [1, 2, 3, 8, 65] {
            let plan = Plan::new(size, 4096, 65536);
            let counters = size * size * size_of::<Counter>();
            assert!(size_of::<Preamble>() <= plan.blocks);
            assert!(plan.blocks + size * size_of::<RankBlock>() <= plan.pair_heads);
            assert!(plan.pair_heads + counters <= plan.pair_tails);
            assert!(plan.pair_tails + counters <= plan.cast_heads);
            assert!(plan.cast_tails + counters <= plan.pair_bytes);
            assert!(plan.pair_bytes + size * size * 4096 <= plan.cast_bytes);
            assert_eq!(plan.cast_bytes + size * 65536, plan.total);
        }
    }
}
