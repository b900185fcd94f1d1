// SPDX-License-Identifier: MIT OR Apache-2.0

//! The memory that the processes of one machine share: for each of them slots for messages that
//! are under way, and lanes through which bytes stream.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::header::{Header, SLOTS};
use super::registration::RegionKey;
use super::view::{DeviceHandle, HANDLE_WORDS};
use crate::shm::anonymous::AnonymousSegment;
use crate::shm::claims::{Claims, End};

/// What a process that does not count all its requests that receive has in their place.
pub const UNCOUNTED: u32 = 1 << 31;

/// Lanes of each process: as many long messages as a program has under way at once, most of the
/// time. What finds none is read out of its sender's memory.
pub const LANES: usize = 16;
/// Bytes of a lane: small enough for a core's own cache.
pub const LANE: usize = 256 << 10;

/// States of a slot.
pub mod state {
    /// Nobody uses it.
    pub const FREE: u32 = 0;
    /// A header that names it is under way.
    pub const POSTED: u32 = 1;
    /// The receiver has begun.
    pub const CLAIMED: u32 = 2;
    /// The receiver has everything.
    pub const DONE: u32 = 3;
    /// Messages of this length are the program's own; never used again.
    pub const RETIRED: u32 = 4;
}

/// Who moves the bytes that are not in the lane.
pub mod mover {
    /// Not decided: the side that comes first changes it.
    pub const NOBODY: u32 = 0;
    /// The sender fills the lane.
    pub const SENDER: u32 = 1;
    /// The receiver reads them out of the sender's memory.
    pub const RECEIVER: u32 = 2;
    /// The sender has packed them; the receiver reads that.
    pub const BUFFERED: u32 = 3;
    /// The sender could not pack them: there is nothing to be received.
    pub const FAILED: u32 = 4;
}

/// How the receiver wants a long dense message, or one in device memory.
pub mod wish {
    /// It has not said.
    pub const NONE: u32 = 0;
    /// Through the lane.
    pub const STREAM: u32 = 1;
    /// Both copy parts, each as many as it can.
    pub const SPLIT: u32 = 2;
    /// Packed by the sender, as it cannot copy out of device memory.
    pub const PACKED: u32 = 3;
}

/// No lane.
pub const NO_LANE: u32 = u32::MAX;

/// Has a word of a slot name another state, if it names `from`; says what it names otherwise.
pub(super) fn exchange(word: &AtomicU32, from: u32, to: u32) -> Result<(), u32> {
    let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
    word.compare_exchange(from, to, set, fetch).map(drop)
}

/// A slot: what the sender writes, then what the receiver does.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Slot {
    /// One of [`state`].
    pub(super) state: AtomicU32,
    /// One of [`mover`].
    pub(super) mover: AtomicU32,
    /// Who receives.
    pub(super) to: AtomicU32,
    /// The message's tag.
    pub(super) tag: AtomicI32,
    /// Which message this is.
    pub(super) sequence: AtomicU64,
    /// Bytes of the message.
    pub(super) total: AtomicU64,
    /// The sender's lane, or [`NO_LANE`].
    pub(super) lane: AtomicU32,
    /// Whether the receiver must not read the sender's memory: then everything goes through a lane.
    pub(super) blind: AtomicU32,
    /// Whether the program has sent a message of its own, to anybody, whose length names this slot.
    pub(super) ambiguous: AtomicU32,
    /// Whether the message is in device memory.
    is_on_device: AtomicU16,
    /// Whether the sender asks how long it takes to empty the lane.
    is_timed: AtomicU16,
    /// Bytes that have been in the lane, and those that are.
    pub(super) filled: AtomicU64,
    /// Where the packed rest is.
    pub(super) rest: AtomicU64,
    /// What the header says that is not above: where it cannot be read, since a receive has cut it
    /// off.
    more: [AtomicU64; MORE],
    window: Place,
    receiver: Receiver,
    /// Parts that both copy.
    pub(super) split: Split,
    device: Device,
}

/// A message that both sides copy in parts.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Split {
    /// One of [`wish`].
    pub(super) wish: AtomicU32,
    /// Whether a part could not be copied: nobody begins another one then.
    pub(super) failed: AtomicU32,
    /// Where the receiver wants it.
    pub(super) target: AtomicU64,
    /// Pages whose copies were begun: the receiver begins at the front, the sender at the back.
    begun: Claims<32>,
    /// Bytes that are there.
    pub(super) moved: AtomicU64,
    /// Parts that are being copied.
    pub(super) busy: AtomicU32,
}

/// Dense messages from this length on are copied by both sides. Up to here the sender has filled
/// the lane when the receiver begins, and goes on while that empties it: two copies in the caches
/// take less than the kernel takes to find the pages (`docs/performance/mpi-dense-long.csv`).
pub const SPLIT_MIN: u64 = 2 * LANE as u64 + 1;

/// Bytes that parts are counted in.
const PAGE: u64 = 4096;
/// Pages of the shortest part: a call of the kernel takes as long as some of them.
const SHORTEST_PART: u64 = (64 << 10) / PAGE;
/// Pages of the longest part: others wait for the rank that copies it.
const LONGEST_PART: u64 = (4 << 20) / PAGE;

/// Pages that a rank copies next of those that are left: half of them, and so on, so that few calls
/// of the kernel move most bytes, and both sides are done at the same time; as many as it may, if
/// the other side is copying something else.
fn part(left: u64, alone: bool) -> u64 {
    let wanted = if alone || left <= SHORTEST_PART {
        left
    } else {
        left.div_ceil(2).max(SHORTEST_PART)
    };
    wanted.min(LONGEST_PART)
}

impl Split {
    /// The receiver wants the message at `target`, from both.
    pub(super) fn open(&self, target: u64) {
        self.failed.store(0, Ordering::Relaxed);
        self.target.store(target, Ordering::Relaxed);
        self.begun.open(0);
        self.moved.store(0, Ordering::Relaxed);
        self.busy.store(0, Ordering::Relaxed);
        self.wish.store(wish::SPLIT, Ordering::Release);
    }

    /// Copies a part with `copy`, which is given offset and length. Returns whether it did; else
    /// nobody has to begin one any more. `alone` says whether the other side has something else to
    /// do first.
    pub(super) fn help(
        &self,
        total: u64,
        end: End,
        alone: bool,
        copy: impl FnOnce(u64, u64) -> bool,
    ) -> bool {
        // Said before a part is taken: a rank that closes this sees either that, or no part is
        // left.
        let _busy = Busy::new(&self.busy);
        if self.failed.load(Ordering::SeqCst) != 0 {
            return false;
        }
        let pages = total.div_ceil(PAGE);
        let Some(taken) = self.begun.take(end, pages, |left| part(left, alone)) else {
            return false;
        };
        let at = taken.start * PAGE;
        let len = (taken.end * PAGE).min(total) - at;
        let copied = copy(at, len);
        if copied {
            self.moved.fetch_add(len, Ordering::AcqRel);
        } else {
            self.failed.store(1, Ordering::SeqCst);
        }
        copied
    }

    /// Has nobody begin a part any more; those that were begun are over when [`Split::is_idle`].
    pub(super) fn close(&self) {
        self.failed.store(1, Ordering::SeqCst);
        self.begun.close();
    }

    /// Whether nobody is copying.
    pub(super) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::SeqCst) == 0
    }
}

/// A part that is being copied, or a message.
#[derive(Debug)]
pub(super) struct Busy<'a>(&'a AtomicU32);

impl<'a> Busy<'a> {
    fn new(parts: &'a AtomicU32) -> Self {
        parts.fetch_add(1, Ordering::SeqCst);
        Busy(parts)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Receiver {
    drained: AtomicU64,
    unwanted: AtomicU32,
    /// Nanoseconds that emptying the lane took.
    nanos: AtomicU32,
}

/// A [`RegionKey`] that others read.
#[derive(Debug)]
#[repr(C)]
struct Place {
    /// Region and number; 0 if there is none.
    name: AtomicU64,
    oldest: AtomicU32,
    base: AtomicU64,
    len: AtomicU64,
}

/// A [`DeviceHandle`] that others read.
#[derive(Debug)]
#[repr(C, align(64))]
struct Device {
    memory: [AtomicU64; HANDLE_WORDS],
    trial: AtomicU64,
}

/// Words of a header that only its receiver needs.
const MORE: usize = 6;

impl Slot {
    /// One of [`state`].
    #[inline]
    pub fn state(&self, order: Ordering) -> u32 {
        self.state.load(order)
    }

    /// Who receives.
    #[inline]
    pub fn to(&self, order: Ordering) -> u32 {
        self.to.load(order)
    }

    /// The message's tag.
    #[inline]
    pub fn tag(&self, order: Ordering) -> i32 {
        self.tag.load(order)
    }

    /// Which message this is.
    #[inline]
    pub fn sequence(&self, order: Ordering) -> u64 {
        self.sequence.load(order)
    }

    /// Bytes of the message.
    #[inline]
    pub fn total(&self, order: Ordering) -> u64 {
        self.total.load(order)
    }

    /// Whether the program has sent a message of its own, to anybody, whose length names this slot.
    #[inline]
    pub fn is_ambiguous(&self) -> bool {
        self.ambiguous.load(Ordering::SeqCst) != 0
    }

    /// Says what the header does, before the message is posted.
    pub(super) fn set_header(&self, header: &Header) {
        let words = [
            header.origin,
            header.layout_words,
            header.layout_at,
            header.layout_hash[0],
            header.layout_hash[1],
            header.committed,
        ];
        self.sequence.store(header.sequence, Ordering::Relaxed);
        self.total.store(header.total, Ordering::Relaxed);
        for (to, word) in self.more.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// The header of the message that is posted in this slot of a sender's.
    pub fn header(&self, magic: [u64; 2], sender: usize, slot: usize) -> Header {
        let more: [u64; MORE] = std::array::from_fn(|i| self.more[i].load(Ordering::Relaxed));
        Header {
            magic,
            sequence: self.sequence.load(Ordering::Relaxed),
            sender: sender as u32,
            slot: slot as u32,
            total: self.total.load(Ordering::Relaxed),
            origin: more[0],
            layout_words: more[1],
            layout_at: more[2],
            layout_hash: [more[3], more[4]],
            committed: more[5],
        }
    }

    /// Says how others reach the device memory that the message is in, if it is: before the message
    /// is posted.
    pub(super) fn set_device(&self, handle: Option<DeviceHandle>) {
        self.is_on_device
            .store(u16::from(handle.is_some()), Ordering::Relaxed);
        let Some(handle) = handle else {
            return;
        };
        for (to, word) in self.device.memory.iter().zip(handle.memory) {
            to.store(word, Ordering::Relaxed);
        }
        self.device.trial.store(handle.trial, Ordering::Relaxed);
    }

    /// How the device memory of a message that was posted is reached; `None` if it is in host
    /// memory.
    pub(super) fn device(&self) -> Option<DeviceHandle> {
        let is_there = self.is_on_device.load(Ordering::Relaxed) != 0;
        is_there.then(|| DeviceHandle {
            memory: std::array::from_fn(|i| self.device.memory[i].load(Ordering::Relaxed)),
            trial: self.device.trial.load(Ordering::Relaxed),
        })
    }

    /// Says where the sender's memory is published or lent: before the message is posted, or while
    /// the sender is the one that moves it.
    pub(super) fn set_window(&self, window: RegionKey) {
        let name = u64::from(window.id) << 32 | u64::from(window.serial);
        self.window.oldest.store(window.oldest, Ordering::Relaxed);
        self.window.base.store(window.base, Ordering::Relaxed);
        self.window.len.store(window.len, Ordering::Relaxed);
        // Release: a process that reads this word reads the two above, too.
        self.window.name.store(name, Ordering::Release);
    }

    /// Where the sender's memory is published, if it is.
    pub(super) fn window(&self) -> Option<RegionKey> {
        let name = self.window.name.load(Ordering::Acquire);
        let window = RegionKey {
            id: (name >> 32) as u32,
            serial: name as u32,
            oldest: self.window.oldest.load(Ordering::Relaxed),
            base: self.window.base.load(Ordering::Relaxed),
            len: self.window.len.load(Ordering::Relaxed),
        };
        (window.id != 0).then_some(window)
    }

    /// For how many more messages like this one the receiver will not use memory that is mapped.
    #[inline]
    pub(super) fn unwanted(&self) -> &AtomicU32 {
        &self.receiver.unwanted
    }

    /// Says whether the receiver is to say how long it takes to empty the lane: before the message
    /// is posted.
    #[inline]
    pub(super) fn set_timed(&self, is_timed: bool) {
        self.is_timed.store(u16::from(is_timed), Ordering::Relaxed);
        if is_timed {
            self.receiver.nanos.store(0, Ordering::Relaxed);
        }
    }

    /// Whether it is.
    #[inline]
    pub(super) fn is_timed(&self) -> bool {
        self.is_timed.load(Ordering::Relaxed) != 0
    }

    /// How long that took, in nanoseconds; 0 if the receiver does not say.
    #[inline]
    pub(super) fn nanos(&self) -> &AtomicU32 {
        &self.receiver.nanos
    }

    /// Bytes that the receiver has taken out of the lane.
    #[inline]
    pub(super) fn drained(&self) -> &AtomicU64 {
        &self.receiver.drained
    }
}

const SLOT_BYTES: usize = (SLOTS * size_of::<Slot>()).next_multiple_of(4096);
/// Bytes behind a process's slots for the words that say what it may read, and what it does.
const WORDS: usize = 4096;
/// Where the second one of them is.
const RECEIVES: usize = 64;
/// Where the third one of them is.
const RECEIVE_REQUESTS: usize = 128;
/// Bytes of each process's slots, with those words; lanes are elsewhere.
pub const HEAD: usize = SLOT_BYTES + WORDS;

fn bytes(members: usize) -> usize {
    // More than there is of memory: nobody can make it.
    members.saturating_mul(HEAD + LANES * LANE)
}

/// The shared memory, mapped. It is used through atomics, and lanes as slots say.
#[derive(Debug)]
pub struct Segment {
    /// The slots of all processes, and their lanes.
    heads: *mut u8,
    lanes: *mut u8,
    members: usize,
    /// Keeps the memory mapped.
    _mapping: Box<dyn Mapping>,
}

// SAFETY: the address of a mapping that `_mapping` keeps; all that is reached through it are
// atomics, and lanes, which are raw pointers.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// What keeps a segment's memory mapped.
trait Mapping: fmt::Debug + Send + Sync {}

impl<T: fmt::Debug + Send + Sync> Mapping for T {}

impl Segment {
    /// Makes the memory for `members` processes; the file is for the others to open.
    ///
    /// # Errors
    ///
    /// As for [`AnonymousSegment::create`].
    pub fn create(members: usize, magic: [u64; 2]) -> io::Result<(Segment, File)> {
        let (memory, file) = AnonymousSegment::create(c"libcopy-messages", bytes(members), magic)?;
        Ok((Segment::of(memory, members), file))
    }

    /// Opens what the process `pid` has made with this descriptor.
    ///
    /// # Errors
    ///
    /// As for [`AnonymousSegment::open`].
    pub fn open(pid: i32, fd: i32, members: usize, magic: [u64; 2]) -> io::Result<Segment> {
        let memory = AnonymousSegment::open(pid, fd, bytes(members), magic)?;
        Ok(Segment::of(memory, members))
    }

    fn of(memory: AnonymousSegment, members: usize) -> Segment {
        let heads = memory.place(0, bytes(members));
        Segment {
            heads,
            lanes: heads.wrapping_add(members * HEAD),
            members,
            _mapping: Box::new(memory),
        }
    }

    /// A segment whose slots and lanes are in memory of somebody else's.
    ///
    /// # Safety
    ///
    /// `mapping` keeps [`HEAD`] bytes of each process at `heads`, and its lanes at `lanes`, mapped.
    /// Both are aligned to pages, were zeros at first, and are used by nothing but segments.
    pub(crate) unsafe fn within(
        (heads, lanes): (*mut u8, *mut u8),
        members: usize,
        mapping: impl fmt::Debug + Send + Sync + 'static,
    ) -> Segment {
        Segment {
            heads,
            lanes,
            members,
            _mapping: Box::new(mapping),
        }
    }

    /// Where it is mapped: different for each segment that this process has.
    #[inline]
    pub(super) fn place(&self) -> usize {
        self.heads as usize
    }

    #[inline]
    fn head(&self, member: usize) -> *mut u8 {
        assert!(member < self.members, "a member of the segment");
        self.heads.wrapping_add(member * HEAD)
    }

    /// A slot of a process.
    ///
    /// # Panics
    ///
    /// If there is no such process or slot.
    #[inline]
    pub fn slot(&self, member: usize, slot: usize) -> &Slot {
        assert!(slot < SLOTS, "a slot of the segment");
        let slots = self.head(member).cast::<Slot>();
        // SAFETY: within the mapping, aligned; all zeros are valid.
        unsafe { &*slots.add(slot) }
    }

    /// Messages that a process has sent to another one, or to all others, which have not received
    /// all of them yet.
    ///
    /// # Panics
    ///
    /// If there is no process `from`.
    pub fn under_way(&self, from: usize, to: Option<usize>) -> usize {
        let is_under_way = |number: &usize| {
            let slot = self.slot(from, *number);
            let state = slot.state.load(Ordering::Acquire);
            matches!(state, state::POSTED | state::CLAIMED)
                && to.is_none_or(|to| slot.to.load(Ordering::Relaxed) as usize == to)
        };
        (0..SLOTS).filter(is_under_way).count()
    }

    /// Whether a process may not read others' memory any more, or others not its own: not 0 then.
    ///
    /// # Panics
    ///
    /// If there is no such process.
    #[inline]
    pub fn lost_rights(&self, member: usize) -> &AtomicU32 {
        let at = self.head(member).wrapping_add(SLOT_BYTES);
        // SAFETY: within the mapping, on a page of its own; all zeros are valid.
        unsafe { &*at.cast() }
    }

    /// How many messages a process is copying that it receives.
    ///
    /// # Panics
    ///
    /// If there is no such process.
    #[inline]
    fn receives(&self, member: usize) -> &AtomicU32 {
        let at = self.head(member).wrapping_add(SLOT_BYTES + RECEIVES);
        // SAFETY: within the mapping, in a line of its own; all zeros are valid.
        unsafe { &*at.cast() }
    }

    /// Whether a process is copying a message that it receives, and so helps nobody else.
    ///
    /// # Panics
    ///
    /// If there is no such process.
    #[inline]
    pub(super) fn is_receiving(&self, member: usize) -> bool {
        self.receives(member).load(Ordering::Relaxed) != 0
    }

    /// Says that a process is copying a message that it receives, for as long as the answer lives.
    ///
    /// # Panics
    ///
    /// If there is no such process.
    pub(super) fn note_receiving(&self, member: usize) -> Busy<'_> {
        Busy::new(self.receives(member))
    }

    /// 1, and one more for each request of a process that receives: only those may have matched a
    /// message that the process does not fetch, since it is in a call of other libraries.
    /// [`UNCOUNTED`] more if it does not count all of them.
    ///
    /// # Panics
    ///
    /// If there is no such process.
    #[inline]
    pub fn receive_requests(&self, member: usize) -> &AtomicU32 {
        let at = self
            .head(member)
            .wrapping_add(SLOT_BYTES + RECEIVE_REQUESTS);
        // SAFETY: within the mapping, in a line of its own; all zeros are valid.
        unsafe { &*at.cast() }
    }

    /// A lane of a process.
    ///
    /// # Panics
    ///
    /// If there is no such process or lane.
    #[inline]
    pub(super) fn lane(&self, member: usize, lane: usize) -> *mut u8 {
        assert!(member < self.members, "a member of the segment");
        assert!(lane < LANES, "a lane of the segment");
        self.lanes.wrapping_add((member * LANES + lane) * LANE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn messages_under_way_are_counted_by_receiver_and_together() {
        let (segment, _file) = Segment::create(3, [3, 4]).unwrap();
        let sent = [(1, state::POSTED), (2, state::CLAIMED), (2, state::POSTED)];
        for (number, (to, now)) in sent.into_iter().enumerate() {
            let slot = segment.slot(0, number);
            slot.to.store(to, Ordering::Relaxed);
            slot.state.store(now, Ordering::Release);
        }
        let under_way = |to| segment.under_way(0, to);
        assert_eq!(
            [Some(0), Some(1), Some(2), None].map(under_way),
            [0, 1, 2, 3]
        );
        assert_eq!(segment.under_way(1, None), 0);
    }

    #[test]
    fn a_message_in_device_memory_says_how_it_is_reached() {
        let (segment, _file) = Segment::create(1, [3, 4]).unwrap();
        let slot = segment.slot(0, 5);
        assert_eq!(slot.device(), None);
        let handle = DeviceHandle {
            memory: std::array::from_fn(|i| u64::MAX - i as u64),
            trial: 99,
        };
        slot.set_device(Some(handle));
        assert_eq!(slot.device(), Some(handle));
        slot.set_device(None);
        assert_eq!(slot.device(), None);
    }

    #[test]
    fn nobody_begins_a_part_that_is_closed() {
        let (segment, _file) = Segment::create(1, [3, 4]).unwrap();
        let split = &segment.slot(0, 0).split;
        let total = 1 << 20;
        let is_begun = |works| {
            split.help(total, End::Front, false, |_, _| {
                assert!(!split.is_idle());
                works
            })
        };
        assert!(is_begun(true) && !is_begun(false));
        assert_eq!(split.moved.load(Ordering::Relaxed), total / 2);
        let after = |_, _| panic!("a part after one that failed");
        assert!(!split.help(total, End::Back, false, after));
        split.failed.store(0, Ordering::Relaxed);
        split.close();
        split.close();
        split.failed.store(0, Ordering::Relaxed);
        for end in [End::Front, End::Back] {
            let after = |_, _| panic!("a part after the end");
            assert!(!split.help(total, end, false, after));
        }
        assert!(split.is_idle());
    }

    #[test]
    fn each_side_keeps_to_its_end() {
        let (segment, _file) = Segment::create(1, [3, 4]).unwrap();
        let split = &segment.slot(0, 0).split;
        let total = (512 << 10) + 7;
        let (mut front, mut back) = (Vec::new(), Vec::new());
        split.help(total, End::Front, false, |at, len| {
            front.push((at, len));
            true
        });
        while split.help(total, End::Back, false, |at, len| {
            back.push((at, len));
            true
        }) {}
        let kib = |at: u64, len: u64| (at << 10, len << 10);
        // Of 129 pages 65, 32, 16, and 16 more, since no part is shorter.
        assert_eq!(front, [kib(0, 260)]);
        let last = (388 << 10, total - (388 << 10));
        assert_eq!(back, [last, kib(324, 64), kib(260, 64)]);
        assert_eq!(split.moved.load(Ordering::Relaxed), total);
    }

    #[test]
    fn a_side_whose_other_side_is_busy_copies_all() {
        let (segment, _file) = Segment::create(2, [3, 4]).unwrap();
        let split = &segment.slot(0, 0).split;
        let total = (9 << 20) + 1;
        let mut parts = Vec::new();
        let mut receiving = Some(segment.note_receiving(1));
        assert!(!segment.is_receiving(0));
        while split.help(total, End::Front, segment.is_receiving(1), |at, len| {
            parts.push((at >> 20, len >> 20));
            true
        }) {
            if parts.len() == 2 {
                drop(receiving.take());
            }
        }
        // Two that are as long as any may be; then half of what is left, and so on.
        assert_eq!(parts[..3], [(0, 4), (4, 4), (8, 0)]);
        assert_eq!(split.moved.load(Ordering::Relaxed), total);
    }

    #[test]
    fn parts_are_the_whole() {
        for total in [
            1,
            4097,
            65536,
            256 << 10,
            (1 << 20) + 3,
            100_000_007,
            16 << 30,
        ] {
            let (segment, _file) = Segment::create(1, [3, 4]).unwrap();
            let split = &segment.slot(0, 0).split;
            let mut number = 0u32;
            let mut at = 0;
            while split.help(total, End::Front, false, |from, len| {
                assert_eq!(from, at, "part {number} of {total}");
                assert!(len <= LONGEST_PART * PAGE, "part {number} of {total}");
                at += len;
                number += 1;
                true
            }) {}
            assert_eq!(at, total);
            assert_eq!(split.moved.load(Ordering::Relaxed), total);
            // Halves from 4 MiB to 64 KiB, behind as many of 4 MiB as there may be.
            let long = (total >> 22) as u32;
            assert!(number <= long + 8, "{number} parts of {total}");
        }
    }

    #[test]
    fn others_see_the_same_memory() {
        let (segment, file) = Segment::create(2, [3, 4]).unwrap();
        let pid = std::process::id() as i32;
        let other = Segment::open(pid, file.as_raw_fd(), 2, [3, 4]).unwrap();
        segment.slot(1, SLOTS - 1).total.store(9, Ordering::Relaxed);
        let seen = other.slot(1, SLOTS - 1).total.load(Ordering::Relaxed);
        assert_eq!(seen, 9);
        assert!(Segment::open(pid, file.as_raw_fd(), 2, [3, 5]).is_err());
        assert!(Segment::open(pid, file.as_raw_fd(), 3, [3, 4]).is_err());
    }

    #[test]
    fn more_members_than_memory_has_room_for_are_refused() {
        // Their bytes, counted modulo 2^64, would be none.
        assert!(Segment::create(1 << 60, [3, 4]).is_err());
    }
}
