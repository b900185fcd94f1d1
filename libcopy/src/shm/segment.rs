// SPDX-License-Identifier: MIT OR Apache-2.0

//! The memory that a team shares: a file in a tmpfs, mapped by every rank.
//!
//! Rank 0 creates the file, all map it, and as soon as all are there its name is removed: from then
//! on nobody can come in and nothing is left behind, however the processes end. Where the directory
//! has no room, the file is anonymous; rank 0 sends it to ranks that do not see it
//! ([`super::meeting`]).
//!
//! A rank is alive as long as it holds a POSIX record lock on byte `rank` of the file. The kernel
//! drops the lock when the process ends, for whatever reason and before it is reaped; a child does
//! not inherit it; and it works across pid namespaces. The catch: closing *any* descriptor of the
//! file drops all locks of the process, so a process opens the file once, even if several of its
//! threads are ranks.
//!
//! What all look at while they join has its memory from the beginning. A rank reserves its board
//! and its slot when it joins, so that they are in memory near it. Chunks, and rings, of which
//! there are as many as pairs of ranks, get theirs when their writer uses them for the first time,
//! and are not looked at before.
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
use nix::sys::statvfs::fstatvfs;
use nix::unistd::geteuid;

use super::anonymous;
use super::barrier::Barrier;
use super::board::{Board, RANK_WORDS, REQUESTS};
use super::claims::Claims;
use super::contribution::{
    self, Begun, Label, OfChunk, OfStep, PLACES, SHORT_PLACES, Short, Turn, Whole,
};
use super::doorbell::Doorbell;
use super::leading::Choices;
use super::meeting::{self, Directory, Failed, Guest, Host, Reply};
use super::puts::Puts;
use super::reports::Reports;
use super::ring::{Counter, Head};
use super::sync::{AtomicU64, Ordering};
use super::turns::Turns;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::mapping::{self, SharedMapping};
use crate::plan::MOST_STEPS;
use crate::policy::POLICY_WORDS;
use crate::process::Home;
use crate::team::key::TeamKey;
use crate::topology::{self, CPU_WORDS};

/// Set as the last step of making the segment: "libcopy" and the version of the layout.
const READY: u64 = u64::from_le_bytes(*b"libcopy\x0d");

/// Most ranks a team may have.
pub(crate) const MAX_RANKS: usize = 64 * RANK_WORDS;

/// For so long a rank that cannot join tells others that have not come yet.
const NEWS: Duration = Duration::from_secs(2);

/// How often ranks that wait look whether everybody is alive; survivors know within a second.
pub(crate) const HEALTH_EVERY: Duration = Duration::from_millis(200);

/// Bytes between two headers in a ring are padded to this; rings are multiples of it.
pub(crate) const LINE: usize = 64;

/// Bytes of a rank's room for each copy that it asks another one for.
pub(crate) const ROOM: usize = 32 << 10;

/// Bytes of a rank's slot, which has the buffers of a short call. Its rooms are the same memory: of
/// a call whose buffers are in slots nothing is asked for.
pub(crate) const SLOT: usize = REQUESTS * ROOM;

/// Bytes of a rank's own part: its board, its contributions, and its slot on pages behind.
const OWN: usize = CONTRIBUTIONS + CONTRIBUTIONS_LEN + SLOT;
/// Where the contributions are in it, those of steps, of chunks and of few bytes among them, and
/// their bytes.
const CONTRIBUTIONS: usize = size_of::<Board>().next_multiple_of(128);
const OF_STEPS: usize = CONTRIBUTIONS + PLACES * size_of::<Whole>();
const OF_CHUNKS: usize = OF_STEPS + PLACES * MOST_STEPS * size_of::<OfStep>();
const OF_FEW: usize = OF_CHUNKS + PLACES * size_of::<OfChunk>();
const BEGUN: usize = OF_FEW + SHORT_PLACES * size_of::<Short>();
const CONTRIBUTIONS_LEN: usize =
    (BEGUN + size_of::<Begun>()).next_multiple_of(4096) - CONTRIBUTIONS;

/// Words of a text that says why a rank could not join.
const REASON_WORDS: usize = 48;

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
    pub(crate) details: [AtomicU64; 4],
    /// The same as a text, where a rank could not join.
    reason: [AtomicU64; REASON_WORDS],
    /// Of the causes that came after the first one, that of the earliest operation: inverted; 0 if
    /// there is none.
    pub(crate) earlier: AtomicU64,
    /// Key of the kernel module's domain, made by rank 0.
    pub(crate) domain_key: [AtomicU64; 2],
    pub(crate) barrier: Barrier,
    /// How often the team was lent to a rank and not given back, for [`crate::team::Usage`].
    pub(crate) lent: AtomicU64,
    /// 1 once nobody is to use the team any more.
    pub(crate) retired: AtomicU64,
    /// What ranks have reported since a disagreement, for [`crate::team::Resumption`].
    pub(crate) reports: Reports,
    /// Which ways have been found faster.
    pub(crate) choices: Choices,
    /// Who looks next whether which rank is alive.
    turns: Turns,
}

/// What a rank says about itself.
#[repr(C, align(128))]
pub(crate) struct RankBlock {
    pub(crate) bell: Doorbell,
    /// 1 once the rank holds its lock.
    pub(crate) joined: AtomicU64,
    /// 1 once the rank has left in good order.
    pub(crate) left: AtomicU64,
    /// 1 once another rank has seen that this one has ended without having left.
    died: AtomicU64,
    /// Distinguishes processes; ranks of one process cannot see each other's locks.
    pub(crate) process: AtomicU64,
    pub(crate) cpus: [AtomicU64; CPU_WORDS],
    /// What of the machine the rank may run in, as rank 0 sees it
    /// ([`crate::team::places`]).
    pub(crate) place: AtomicU64,
    /// The rank's process, as its pid namespace numbers it, and that namespace; 0: unknown.
    pub(crate) pid: AtomicU64,
    pub(crate) pid_namespace: AtomicU64,
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
    /// What the rank writes to others' memory.
    pub(crate) puts: Puts,
    /// The last operations that the rank called.
    pub(crate) calls: [CallRecord; HISTORY],
    /// A bit for each rank that has put something for this one into its ring for messages.
    pub(crate) arrivals: [AtomicU64; RANK_WORDS],
    /// 1 once the rank leaves and receives no more messages.
    pub(crate) deaf: AtomicU64,
    /// 1 once the rank's ring to all others has memory.
    cast_is_open: AtomicU64,
    /// A bit for each rank whose ring to this one has memory.
    pairs_are_open: [AtomicU64; RANK_WORDS],
}

/// What the two ends of the ring between two ranks share, in front of its bytes.
#[repr(C, align(128))]
struct PairLines {
    head: Head,
    tail: Counter,
    claims: Claims<16>,
}

/// Bytes of the ring between two ranks at first, of a team of up to 32 ranks and of one of 128 and
/// more: enough for headers and short messages. As there are as many rings as pairs of ranks, those
/// of many ranks together would take much memory otherwise.
const MOST_FIRST: usize = 8 << 10;
const LEAST_FIRST: usize = 2 << 10;
/// What the first memory of a rank's rings to all others has, between these two.
const FIRST_OF_ALL: usize = 256 << 10;

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
    /// Bytes of it that are used at first; they have memory of their own, with its lines in front.
    first_pair: usize,
    bcast_ring: usize,
    blocks: usize,
    /// Where the ranks' own parts begin; everything before has memory from the beginning.
    own: usize,
    /// Where the chunks begin, and the bytes of each, at most; 0 where there are none.
    chunks: usize,
    chunk: usize,
    /// Where the rings to all begin, and the bytes in front of one.
    casts: usize,
    cast_lines: usize,
    /// Where the first memory of the rings between two ranks begins, and the larger one.
    firsts: usize,
    pairs: usize,
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
        place(size_of::<Preamble>());
        let blocks = place(size * size_of::<RankBlock>());
        let own = place(size * OWN);
        let chunk = contribution::largest_chunk(size);
        let chunks = place(size * PLACES * chunk);
        let lines = size_of::<Head>() + size * size_of::<Counter>();
        let cast_lines = lines.next_multiple_of(4096);
        let casts = place(size * (cast_lines + bcast_ring).next_multiple_of(4096));
        let first_pair = FIRST_OF_ALL / size / LINE * LINE;
        let first_pair = first_pair.clamp(LEAST_FIRST, MOST_FIRST).min(pair_ring);
        let firsts = place(size * first_pairs(size, first_pair));
        let larger = if pair_ring > first_pair { pair_ring } else { 0 };
        let pairs = place(size * size * larger.next_multiple_of(4096));
        Plan {
            size,
            pair_ring,
            first_pair,
            bcast_ring,
            blocks,
            own,
            chunks,
            chunk,
            casts,
            cast_lines,
            firsts,
            pairs,
            total: end,
        }
    }

    /// Where a rank's own part begins.
    fn own(&self, rank: usize) -> usize {
        self.own + rank * OWN
    }

    /// Where a rank's chunks begin.
    fn chunks(&self, rank: usize) -> usize {
        assert!(rank < self.size && self.chunk > 0);
        self.chunks + rank * PLACES * self.chunk
    }

    /// Where the ring from one rank to all begins, with its lines.
    fn cast(&self, from: usize) -> usize {
        assert!(from < self.size);
        self.casts + from * (self.cast_lines + self.bcast_ring).next_multiple_of(4096)
    }

    /// Where the first memory of that from one rank to another begins, with its lines.
    fn first_pair(&self, from: usize, to: usize) -> usize {
        assert!(from < self.size && to < self.size);
        let of_rank = first_pairs(self.size, self.first_pair);
        self.firsts + from * of_rank + to * with_lines(self.first_pair)
    }

    /// Where its larger memory begins.
    fn pair(&self, from: usize, to: usize) -> usize {
        assert!(from < self.size && to < self.size);
        self.pairs + (from * self.size + to) * self.pair_ring.next_multiple_of(4096)
    }
}

/// Bytes of the first memory of a ring with its lines.
fn with_lines(first_pair: usize) -> usize {
    (size_of::<PairLines>() + first_pair).next_multiple_of(align_of::<PairLines>())
}

/// Bytes of that of all rings that a rank writes to one rank each.
fn first_pairs(size: usize, first_pair: usize) -> usize {
    (size * with_lines(first_pair)).next_multiple_of(4096)
}

/// A mapping of the shared memory.
#[derive(Debug)]
pub(crate) struct Segment {
    mapping: SharedMapping,
    plan: Plan,
    rank: usize,
    file: Arc<File>,
    place: Place,
    home: Home,
}

/// Where a file is.
#[derive(Debug, Default)]
struct Place {
    /// `None` if it has no name.
    path: Option<PathBuf>,
    /// The directory of a name that rank 0 has given it.
    directory: Directory,
}

impl Place {
    /// What it is called in errors.
    fn name(&self) -> String {
        let path = self.path.as_ref();
        path.map_or("an anonymous file".to_owned(), |path| {
            path.display().to_string()
        })
    }
}

/// What rank 0 needs to know to make a segment.
pub(crate) struct Blueprint {
    pub(crate) pair_ring: usize,
    pub(crate) bcast_ring: usize,
    pub(crate) policy: [u64; POLICY_WORDS],
    /// Whether somebody has chosen the directory.
    pub(crate) is_chosen: bool,
}

impl Segment {
    /// Makes the segment (rank 0) or waits for it, maps it, and takes the rank. Rank 0 gets what it
    /// is asked through, until all have joined.
    ///
    /// What goes wrong on one rank all others hear of, where they reach each other at all.
    pub(crate) fn open(
        directory: &Path,
        key: &TeamKey,
        rank: usize,
        size: usize,
        blueprint: &Blueprint,
        deadline: Instant,
    ) -> Result<(Self, Option<Host>)> {
        let path = directory.join(format!("libcopy-{key}"));
        if rank > 0 {
            let visited = Self::visit((directory, &path), key, (rank, size), deadline);
            return visited.map(|segment| (segment, None));
        }
        // First of all, as what goes wrong is told through it.
        let mut host = if size > 1 { Host::open(key) } else { None };
        let is_reached = host.is_some() || size == 1;
        match Self::found((directory, &path), key, size, blueprint, is_reached) {
            Ok(segment) => Ok((segment, host)),
            Err(error) => {
                if let Some(host) = &mut host {
                    refuse(host, &error, size - 1, || 0);
                }
                Err(error)
            }
        }
    }

    /// Makes the segment. `is_reached`: whether the others get it without a name.
    fn found(
        (directory, path): (&Path, &Path),
        key: &TeamKey,
        size: usize,
        blueprint: &Blueprint,
        is_reached: bool,
    ) -> Result<Self> {
        let named = |plan| {
            let file = new_file(key, || create(path))?;
            let place = Place {
                path: Some(path.to_owned()),
                directory: meeting::directory(directory),
            };
            Self::make(place, file, plan, blueprint).inspect_err(|_| unlink(path))
        };
        let mut plan = Plan::new(size, blueprint.pair_ring, blueprint.bcast_ring);
        let mut made = named(plan);
        // A directory that somebody has chosen is used, or an error, unless it is merely too small.
        let may_leave = made.as_ref().is_err_and(|error| {
            is_full(error) || matches!(error, Error::System { .. }) && !blueprint.is_chosen
        });
        if is_reached && may_leave {
            let file = new_file(key, || {
                anonymous::file(c"libcopy-team")
                    .map_err(|source| Error::system("making an anonymous file", source))
            });
            let unnamed = file.and_then(|file| Self::make(Place::default(), file, plan, blueprint));
            if unnamed.is_ok() {
                return unnamed;
            }
        }
        while made.as_ref().is_err_and(is_full)
            && (plan.pair_ring > 4096 || plan.bcast_ring > 16384)
        {
            let (pair_ring, bcast_ring) = (plan.pair_ring / 2, plan.bcast_ring / 2);
            plan = Plan::new(size, pair_ring.max(4096), bcast_ring.max(16384));
            made = named(plan);
        }
        made
    }

    /// Waits for the segment, in the directory or from rank 0, and takes a rank.
    fn visit(
        (directory, path): (&Path, &Path),
        key: &TeamKey,
        (rank, size): (usize, usize),
        deadline: Instant,
    ) -> Result<Self> {
        let started = Instant::now();
        let (mut guest, mut held) = (None, None);
        let mut pause = Duration::from_micros(100);
        let outcome = loop {
            if held.is_none() {
                held = match process_file(key, || find((directory, path), key, &mut guest)) {
                    Ok(file) => Some(file),
                    Err(Error::System { source, .. }) if is_absent(&source) => None,
                    Err(error) => break Err(error),
                };
            }
            if let Some(file) = &held {
                let mut words = [0u8; 32];
                let is_read = file.read_exact_at(&mut words, 0).is_ok();
                let word = |i: usize| {
                    u64::from_ne_bytes(words[8 * i..][..8].try_into().unwrap_or_default())
                };
                if is_read && word(0) == READY {
                    let (file, sizes) = (file.clone(), [word(1), word(2), word(3)]);
                    break Self::map_existing(path, file, rank, size, sizes);
                }
                // Rank 0 has given it up, and may make another one.
                if file.metadata().is_ok_and(|file| file.nlink() == 0) {
                    held = None;
                }
            }
            if Instant::now() > deadline {
                break Err(Error::JoinTimeout {
                    rank: 0,
                    missing: 1,
                    size,
                    waited: started.elapsed(),
                });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        };
        if let Err(error @ (Error::System { .. } | Error::TeamSize { .. })) = &outcome {
            tell(key, guest, rank, error);
        }
        outcome
    }

    fn make(place: Place, file: Arc<File>, plan: Plan, blueprint: &Blueprint) -> Result<Self> {
        // All that it may take, so that rings find room when they are used.
        has_room(&file, plan.total)
            .and_then(|()| mapping::set_len(&file, plan.total))
            .map_err(|error| no_room(plan.total, &place, plan.size, error))?;
        // Reserve now: a tmpfs that is full would otherwise kill us in the middle of a copy.
        mapping::reserve(&file, 0, plan.own)
            .map_err(|error| no_room(plan.own, &place, plan.size, error))?;
        let size = plan.size;
        let segment = Self::map(place, file, 0, plan)?;
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
        let place = Place {
            path: Some(path.to_owned()),
            directory: Directory::default(),
        };
        let segment = Self::map(place, file, rank, plan)?;
        segment.take_rank()?;
        Ok(segment)
    }

    fn map(place: Place, file: Arc<File>, rank: usize, plan: Plan) -> Result<Self> {
        let mapping = SharedMapping::writable(&file, 0, plan.total);
        Ok(Segment {
            mapping: mapping
                .map_err(|source| Error::system(format!("mapping {}", place.name()), source))?,
            plan,
            rank,
            file,
            place,
            home: Home::here(),
        })
    }

    /// Makes us alive in the eyes of the others.
    fn take_rank(&self) -> Result<()> {
        self.reserve(self.plan.own(self.rank), OWN)?;
        let in_use = || Error::InUse {
            what: format!("rank {}", self.rank),
        };
        let block = self.block(self.rank);
        if block
            .process
            .compare_exchange(0, self.home.name(), Ordering::AcqRel, Ordering::Relaxed)
            != Ok(0)
        {
            return Err(in_use());
        }
        let lock = self.record(libc::F_WRLCK, self.rank);
        fcntl(&self.file, FcntlArg::F_SETLK(&lock)).map_err(|errno| match errno {
            Errno::EACCES | Errno::EAGAIN => in_use(),
            _ => Error::system(format!("locking a byte of {}", self.place.name()), errno),
        })?;
        for (word, mask) in block.cpus.iter().zip(topology::affinity_mask()) {
            word.store(mask, Ordering::Relaxed);
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
        if self.block(rank).process.load(Ordering::Acquire) == self.home.name() {
            // Our own locks do not show.
            return Ok(Some(std::process::id() as i32));
        }
        let mut lock = self.record(libc::F_WRLCK, rank);
        fcntl(&self.file, FcntlArg::F_GETLK(&mut lock))
            .map_err(|errno| Error::system("asking for a record lock", errno))?;
        Ok((i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid))
    }

    /// Looks whether those ranks are alive whose turn it is: all ranks that do this look at all
    /// others together, once in [`HEALTH_EVERY`], and each tells the others whom it has found dead
    /// ([`Self::has_died`]).
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the kernel does not say who holds a lock.
    pub(crate) fn look_around(&self) -> Result<()> {
        let drawn = self.preamble().turns.draw(self.plan.size, HEALTH_EVERY);
        for rank in drawn.iter().filter(|rank| *rank != self.rank) {
            let block = self.block(rank);
            // Looking for the lock first: a rank says that it leaves before it lets go.
            let gone = block.joined.load(Ordering::Acquire) != 0 && self.holder(rank)?.is_none();
            if gone && block.left.load(Ordering::Acquire) == 0 {
                block.died.store(1, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Whether any rank has seen that this one has ended without having left.
    pub(crate) fn has_died(&self, rank: usize) -> bool {
        self.block(rank).died.load(Ordering::Acquire) != 0
    }

    /// The process whose rank this is.
    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    /// Fails in any other process: a forked child has inherited the mapping.
    #[inline]
    pub(crate) fn check_home(&self) -> Result<()> {
        self.home.check("this team")
    }

    /// Our rank, and how many there are.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.rank, self.plan.size)
    }

    /// The file, and where what is mapped here ends.
    pub(crate) fn file(&self) -> (&File, usize) {
        (&self.file, self.plan.total)
    }

    /// Says in words why a rank cannot join: whoever breaks the team, before it says so.
    pub(crate) fn write_reason(&self, why: &str) {
        let bytes = why.bytes().take(8 * REASON_WORDS);
        let mut text = [0u8; 8 * REASON_WORDS];
        text.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        for (word, bytes) in self.preamble().reason.iter().zip(text.chunks_exact(8)) {
            word.store(
                u64::from_ne_bytes(bytes.try_into().unwrap_or_default()),
                Ordering::Relaxed,
            );
        }
    }

    /// What it says.
    pub(crate) fn reason(&self) -> String {
        let words = self.preamble().reason.iter();
        let bytes: Vec<u8> = words
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
            .take_while(|byte| *byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Gives the file to those who look elsewhere; who cannot join, if somebody says so.
    pub(crate) fn serve(&self, host: &mut Host) -> Option<Failed> {
        host.serve(&self.file, self.place.directory)
    }

    /// Tells those who have not joined yet that there will be no team.
    pub(crate) fn refuse(&self, host: &mut Host, error: &Error) {
        let is_here = |rank: &usize| self.block(*rank).joined.load(Ordering::Acquire) != 0;
        let others = self.plan.size - 1;
        refuse(host, error, others, || (1..=others).filter(is_here).count());
    }

    /// Removes the name of the file.
    pub(crate) fn unlink(&self) {
        if let Some(path) = &self.place.path {
            unlink(path);
        }
    }

    /// The bytes that it takes, and the name that the file had while ranks joined, if it had one.
    pub(crate) fn memory(&self) -> (usize, Option<&Path>) {
        let taken = self.file.metadata().map(|file| 512 * file.blocks());
        let bytes = taken.map_or(self.plan.chunks, |bytes| bytes as usize);
        (bytes, self.place.path.as_deref())
    }

    /// Entry `index` of the table that starts at byte `table`.
    fn entry<T>(&self, table: usize, index: usize) -> &T {
        // SAFETY: callers pass places of the plan with the type that is there, made of atomics
        // only, so that peers may write to it, and zero is a valid value for each.
        unsafe { &*self.mapping.base().add(table).cast::<T>().add(index) }
    }

    pub(crate) fn preamble(&self) -> &Preamble {
        self.entry(0, 0)
    }

    pub(crate) fn block(&self, rank: usize) -> &RankBlock {
        assert!(rank < self.plan.size);
        self.entry(self.plan.blocks, rank)
    }

    fn pair_lines(&self, from: usize, to: usize) -> &PairLines {
        self.entry(self.plan.first_pair(from, to), 0)
    }

    /// Counter of the bytes that `from` wrote to `to` alone; once that ring is open.
    pub(crate) fn pair_head(&self, from: usize, to: usize) -> &Head {
        &self.pair_lines(from, to).head
    }

    /// Counter of those that `to` is done with.
    pub(crate) fn pair_tail(&self, from: usize, to: usize) -> &Counter {
        &self.pair_lines(from, to).tail
    }

    /// Counter of the bytes that `from` wrote to all; once that ring is open.
    pub(crate) fn cast_head(&self, from: usize) -> &Head {
        self.entry(self.plan.cast(from), 0)
    }

    /// Counter of those that `to` is done with.
    pub(crate) fn cast_tail(&self, from: usize, to: usize) -> &Counter {
        assert!(to < self.plan.size);
        self.entry(self.plan.cast(from) + size_of::<Head>(), to)
    }

    /// The pieces that a root and a leaf have claimed of the copy that they share; once the root's
    /// ring to the leaf is open.
    pub(crate) fn claims(&self, root: usize, leaf: usize) -> &Claims<16> {
        &self.pair_lines(root, leaf).claims
    }

    /// Gives our ring to another rank its first memory, and what is in front of it.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if there is no room.
    pub(crate) fn open_pair(&self, to: usize) -> Result<()> {
        let bytes = with_lines(self.plan.first_pair);
        self.reserve(self.plan.first_pair(self.rank, to), bytes)?;
        let (word, bit) = (self.rank / 64, 1 << (self.rank % 64));
        self.block(to).pairs_are_open[word].fetch_or(bit, Ordering::Release);
        Ok(())
    }

    /// Gives the first `bytes` bytes of the larger memory of our ring to another rank memory.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if there is no room.
    pub(crate) fn grow_pair(&self, to: usize, bytes: usize) -> Result<()> {
        self.reserve(self.plan.pair(self.rank, to), bytes)
    }

    /// Gives the first `bytes` bytes of our ring to all others memory, and what is in front of
    /// them.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if there is no room.
    pub(crate) fn open_cast(&self, bytes: usize) -> Result<()> {
        self.reserve(self.plan.cast(self.rank), self.plan.cast_lines + bytes)?;
        let open = &self.block(self.rank).cast_is_open;
        open.store(1, Ordering::Release);
        Ok(())
    }

    /// Bytes that a chunk may have; 0 in a team of so many ranks that there are no chunks.
    pub(crate) fn largest_chunk(&self) -> usize {
        self.plan.chunk
    }

    /// Gives each of our chunks memory for so many bytes, [`largest_chunk`](Self::largest_chunk)
    /// at most.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if there is no room.
    pub(crate) fn open_chunks(&self, bytes: usize) -> Result<()> {
        let first = self.plan.chunks(self.rank);
        (0..PLACES).try_for_each(|place| self.reserve(first + place * self.plan.chunk, bytes))
    }

    fn reserve(&self, at: usize, bytes: usize) -> Result<()> {
        mapping::reserve(&self.file, at, bytes)
            .map_err(|error| no_room(bytes, &self.place, self.plan.size, error))
    }

    /// Counter of the bytes that a rank wrote to us alone, as soon as that ring is open.
    pub(crate) fn pair_head_if_open(&self, from: usize) -> Option<&Head> {
        let word = &self.block(self.rank).pairs_are_open[from / 64];
        let is_open = word.load(Ordering::Acquire) & 1 << (from % 64) != 0;
        is_open.then(|| self.pair_head(from, self.rank))
    }

    /// Counter of the bytes that a rank wrote to all, as soon as that ring is open.
    pub(crate) fn cast_head_if_open(&self, from: usize) -> Option<&Head> {
        let is_open = self.block(from).cast_is_open.load(Ordering::Acquire) != 0;
        is_open.then(|| self.cast_head(from))
    }

    /// What a rank shows of the plan that it runs.
    pub(crate) fn board(&self, rank: usize) -> &Board {
        assert!(rank < self.plan.size);
        self.entry(self.plan.own(rank), 0)
    }

    /// Where a rank puts its bytes for a short call: what says that they are there, and the bytes,
    /// which peers may change.
    #[inline]
    pub(crate) fn contribution(&self, rank: usize, turn: Turn) -> (&Label, *mut u8) {
        assert!(rank < self.plan.size);
        let own = self.plan.own(rank);
        match turn.place() {
            Ok(place) => {
                let place: &Whole = self.entry(own + CONTRIBUTIONS, place);
                (place.label(), place.bytes())
            }
            Err(place) => {
                let place: &Short = self.entry(own + OF_FEW, place);
                (place.label(), place.bytes())
            }
        }
    }

    /// Which short calls a rank has begun.
    #[inline]
    pub(crate) fn begun(&self, rank: usize) -> &Begun {
        assert!(rank < self.plan.size);
        self.entry(self.plan.own(rank) + BEGUN, 0)
    }

    /// Where a rank puts its bytes in the step of this level, for a call of steps with this number.
    #[inline]
    pub(crate) fn step_contribution(&self, rank: usize, level: usize, number: u64) -> &OfStep {
        assert!(rank < self.plan.size && level < MOST_STEPS);
        self.entry(
            self.plan.own(rank) + OF_STEPS,
            PLACES * level + contribution::place(number),
        )
    }

    /// Where a rank says that its chunk with this number is there.
    #[inline]
    pub(crate) fn chunk(&self, rank: usize, number: u64) -> &OfChunk {
        assert!(rank < self.plan.size);
        self.entry(self.plan.own(rank) + OF_CHUNKS, contribution::place(number))
    }

    /// The bytes of a chunk, for as many as its owner has [room for](Self::open_chunks): peers may
    /// change them. Only its owner may use them before it has said that they are there.
    #[inline]
    pub(crate) fn chunk_bytes(&self, rank: usize, number: u64) -> *mut u8 {
        let at = self.plan.chunks(rank) + contribution::place(number) * self.plan.chunk;
        // SAFETY: the chunk is inside the mapping.
        unsafe { self.mapping.base().add(at) }
    }

    /// A rank's room for one of the copies that it asks for: [`ROOM`] bytes that peers may change.
    pub(crate) fn room(&self, rank: usize, request: usize) -> *mut u8 {
        assert!(request < REQUESTS);
        // SAFETY: the room is inside the slot.
        unsafe { self.slot(rank).add(request * ROOM) }
    }

    /// A rank's slot: [`SLOT`] bytes that peers may change.
    pub(crate) fn slot(&self, rank: usize) -> *mut u8 {
        assert!(rank < self.plan.size);
        // SAFETY: the slot is inside the mapping.
        unsafe { self.mapping.base().add(self.plan.own(rank) + OWN - SLOT) }
    }

    /// The ring from one rank to another while it has this capacity: at most
    /// [`Self::first_pair_ring`], or [`Self::pair_ring`] bytes that peers may change.
    pub(crate) fn pair_bytes(&self, from: usize, to: usize, capacity: usize) -> *mut u8 {
        let plan = &self.plan;
        // A damaged capacity of a ring that has no larger memory.
        let is_first = capacity <= plan.first_pair || plan.pair_ring <= plan.first_pair;
        let offset = if is_first {
            plan.first_pair(from, to) + size_of::<PairLines>()
        } else {
            plan.pair(from, to)
        };
        // SAFETY: the ring is inside the mapping.
        unsafe { self.mapping.base().add(offset) }
    }

    /// The ring from one rank to all; [`Self::bcast_ring`] bytes that peers may change.
    pub(crate) fn cast_bytes(&self, from: usize) -> *mut u8 {
        let offset = self.plan.cast(from) + self.plan.cast_lines;
        // SAFETY: the ring is inside the mapping.
        unsafe { self.mapping.base().add(offset) }
    }

    /// Bytes of the first memory of a ring between two ranks.
    pub(crate) fn first_pair_ring(&self) -> usize {
        self.plan.first_pair
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
        if !self.home.is_here() {
            return;
        }
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

/// Says that a team's memory cannot be had.
fn no_room(bytes: usize, place: &Place, size: usize, error: io::Error) -> Error {
    let what = format!(
        "reserving {} KiB in {} for a team of {size} (give it more room, or choose another tmpfs \
         with LIBCOPY_SHM_DIR)",
        bytes >> 10,
        place.name(),
    );
    Error::system(what, error)
}

/// Whether the file system of a file has room for so many bytes; `ENOSPC` if not.
fn has_room(file: &File, bytes: usize) -> io::Result<()> {
    let status = fstatvfs(file)?;
    // Of one without a limit all numbers are zero.
    let room = status.blocks_available() as u64 * status.fragment_size() as u64;
    if status.blocks() > 0 && room < bytes as u64 {
        return Err(Errno::ENOSPC.into());
    }
    Ok(())
}

/// Whether an error says that there is no room.
fn is_full(error: &Error) -> bool {
    matches!(
        error.errno(),
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
    )
}

/// Whether there is no file yet, as far as this rank may look.
fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | NotADirectory | PermissionDenied)
}

/// What rank 0 tells the others who cannot join, and why.
fn reason(error: &Error) -> Failed {
    let (rank, why) = match error {
        Error::Join { rank, why } => (*rank, why.clone()),
        error => (0, error.report()),
    };
    Failed { rank, why }
}

/// Tells `others` that there will be no team; `joined` of them hear it elsewhere.
fn refuse(host: &mut Host, error: &Error, others: usize, joined: impl Fn() -> usize) {
    let (failed, started) = (reason(error), Instant::now());
    // Who was not there in all the time does not come now.
    let patience = match error {
        Error::JoinTimeout { .. } => Duration::ZERO,
        _ => NEWS,
    };
    while host.refuse(&failed) + joined() < others && started.elapsed() < patience {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Tells rank 0 that a rank cannot join.
fn tell(key: &TeamKey, guest: Option<Guest>, rank: usize, error: &Error) {
    let Some(guest) = guest.or_else(|| Guest::open(key)) else {
        return;
    };
    let why = error.report();
    let (failed, started) = (Failed { rank, why }, Instant::now());
    while !guest.tell(&failed) && started.elapsed() < NEWS {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The file with the segment: in the directory, or from rank 0.
fn find(
    (directory, path): (&Path, &Path),
    key: &TeamKey,
    guest: &mut Option<Guest>,
) -> Result<File> {
    let absent = match open(path) {
        Err(Error::System { source, what }) if is_absent(&source) => (source, what),
        found => return found,
    };
    // Where this rank may not look, it sees nothing that rank 0 sees.
    let is_visible = absent.0.kind() == io::ErrorKind::NotFound;
    let here = is_visible.then(|| meeting::directory(directory));
    if guest.is_none() {
        *guest = Guest::open(key);
    }
    let reply = guest
        .as_mut()
        .and_then(|guest| guest.ask(here.unwrap_or_default()));
    match reply {
        Some(Reply::File(file)) => Ok(file),
        Some(Reply::Failed(Failed { rank, why })) => Err(Error::Join { rank, why }),
        None => Err(Error::system(absent.1, absent.0)),
    }
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

/// The files of teams that this process has open, by key and process.
static FILES: Mutex<Vec<(TeamKey, u64, Weak<File>)>> = Mutex::new(Vec::new());

/// A team's file that is new, in place of any that rank 0 has given up.
fn new_file(key: &TeamKey, make: impl FnOnce() -> Result<File>) -> Result<Arc<File>> {
    let file = Arc::new(make()?);
    let process = Home::here().name();
    let mut files = lock(&FILES);
    files.retain(|(k, p, _)| k != key || *p != process);
    files.push((*key, process, Arc::downgrade(&file)));
    Ok(file)
}

/// The one descriptor that this process has of a team's file.
fn process_file(key: &TeamKey, open: impl FnOnce() -> Result<File>) -> Result<Arc<File>> {
    let process = Home::here().name();
    let mut files = lock(&FILES);
    files.retain(|(_, _, file)| file.strong_count() > 0);
    let mine = files.iter().find(|(k, p, _)| k == key && *p == process);
    if let Some(file) = mine.and_then(|(_, _, file)| file.upgrade()) {
        return Ok(file);
    }
    let file = Arc::new(open()?);
    files.push((*key, process, Arc::downgrade(&file)));
    Ok(file)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// `docs/semantics.md` says so.
    #[test]
    fn a_rank_reserves_92_kib() {
        assert_eq!(OWN, 92 << 10);
    }

    #[test]
    fn nothing_overlaps() {
        let rings = [4096 + 64, (256 << 10) + 64];
        for (size, ring) in [1, 2, 3, 8, 65, 128]
            .into_iter()
            .flat_map(|size| rings.map(|r| (size, r)))
        {
            let plan = Plan::new(size, ring, 65536 + 64);
            assert!(size_of::<Preamble>() <= plan.blocks);
            assert!(plan.blocks + size * size_of::<RankBlock>() <= plan.own);
            let mut end = plan.own(size);
            assert!(end <= plan.chunks);
            if plan.chunk > 0 {
                end = plan.chunks(size - 1) + PLACES * plan.chunk;
            }
            for from in 0..size {
                assert!(end <= plan.cast(from));
                end = plan.cast(from) + plan.cast_lines + plan.bcast_ring;
            }
            assert!(size_of::<Head>() + size * size_of::<Counter>() <= plan.cast_lines);
            let pairs = || (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
            for (from, to) in pairs() {
                assert!(end <= plan.first_pair(from, to));
                assert!(plan.first_pair(from, to) % align_of::<PairLines>() == 0);
                end = plan.first_pair(from, to) + size_of::<PairLines>() + plan.first_pair;
            }
            if plan.pair_ring > plan.first_pair {
                for (from, to) in pairs() {
                    assert!(end <= plan.pair(from, to));
                    end = plan.pair(from, to) + plan.pair_ring;
                }
            }
            assert!(end <= plan.total);
        }
    }
}
