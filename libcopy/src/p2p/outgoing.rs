// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages that this process sends: a slot for each, bytes that go through a lane while the
//! receiver takes them out, and what is packed so that nobody has to wait for a late receiver.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::context::Context;
use super::events::{Event, note};
use super::header::{Header, SLOTS, wire_size};
use super::path::{LaneWrite, LaneWrites};
use super::protocol::Protocol;
use super::registration::{Published, RegionKey};
use super::segment::{LANE, NO_LANE, SPLIT_MIN, Slot, exchange, mover, state, wish};
use super::view::{Content, PackedBytes, View};
use crate::lock::lock;
use crate::memcpy;
use crate::shm::claims::End;
use crate::transport::process_memory;

/// Bytes that are put into a lane at a time.
const CHUNK: u64 = 32 << 10;
/// The same of dense bytes, which take no time to begin with: the receiver reads the sooner.
const DENSE_CHUNK: u64 = 8 << 10;

/// How long a sender waits for a receiver that has not begun: this, and the time that packing
/// takes.
const PATIENCE: Duration = Duration::from_millis(1);
/// The same where the receiver can copy out of our memory, which is worth more than packing early.
const LONG_PATIENCE: Duration = Duration::from_millis(10);
/// How long a sender waits for the receive of a message that is long enough for the MPI library to
/// wait for it, too.
const UNMATCHED_PATIENCE: Duration = Duration::from_millis(100);
/// How much longer a sender waits for a receiver that is busy with other messages of ours. Not for
/// ever: one thread may wait for what another one's messages keep from happening.
const WHILE_BUSY: u32 = 50;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Bytes that are packed in a microsecond, about.
const PACE: u64 = 4096;

/// One message.
#[derive(Debug)]
pub struct Outgoing {
    slot: usize,
    /// The segment that has the slot.
    home: usize,
    to: usize,
    total: u64,
    content: Content,
    /// What is sent, where that is not the program's.
    _owned: Option<Vec<u8>>,
    /// The header.
    wire: Box<[u8]>,
    lane: Option<usize>,
    filled: u64,
    /// How dense bytes are written into the lane.
    write: LaneWrite,
    /// How long that took so far, in nanoseconds, if the message is timed.
    writing: Option<u64>,
    /// What was packed, from `rest_from` on, so that nobody has to wait for the receiver.
    rest: Option<Box<dyn PackedBytes>>,
    rest_from: u64,
    /// The program's memory, where others have it mapped.
    published: Option<Arc<Published>>,
    /// The same, where it is lent for this message alone.
    lent: Option<Arc<Published>>,
    /// Whether that has been tried.
    is_lending_over: bool,
    /// When it was posted; `None` if it is in the lane as soon as we go on with it, so that nobody
    /// waits.
    posted: Option<Instant>,
    /// Whether we have said that we fill the lane.
    held: bool,
    /// Whether the receiver says on which way it wants the data.
    split: bool,
    /// Whether we have seen that it copies parts.
    is_help_due: bool,
    /// Whether the program may use its buffer again.
    complete: bool,
    /// Whether the receiver died before that.
    lost: bool,
    /// Why elements in device memory could not be packed: the message has failed.
    unpacked: Option<i32>,
}

/// A message that others may look at, too.
pub type Shared = Arc<Mutex<Outgoing>>;

/// Slots of this process.
#[derive(Debug)]
struct Outbox {
    /// Slots that nobody uses.
    free: u64,
    /// Slots whose length is the program's own, from now on or as soon as their message is done.
    retired: u64,
    sequence: u64,
    live: Vec<Shared>,
    /// How dense messages are written into lanes.
    writes: LaneWrites,
}

const ALL_SLOTS: u64 = u64::MAX >> (64 - SLOTS);

/// What this process needs to send and to receive messages.
#[derive(Debug)]
pub struct Endpoint {
    context: Context,
    outbox: Mutex<Outbox>,
}

impl Deref for Endpoint {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

/// Messages of this process that are not done, on all endpoints.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Messages whose buffers the program may not have back yet.
#[unsafe(link_section = "libcopy_hot_words")]
static INCOMPLETE: AtomicUsize = AtomicUsize::new(0);

/// Messages that are not done, of which bytes were packed: their receivers may need us for these.
static PACKED: AtomicUsize = AtomicUsize::new(0);

/// Those of the messages that are incomplete that are in device memory.
static ON_DEVICE: AtomicUsize = AtomicUsize::new(0);

/// Whether any message is under way that we have to go on with.
#[inline]
pub fn any() -> bool {
    INCOMPLETE.load(Ordering::Relaxed) != 0
}

/// Whether any of these is in device memory: who waits elsewhere calls [`Endpoint::pack_all`]
/// before.
#[inline]
pub fn any_on_device() -> bool {
    ON_DEVICE.load(Ordering::Relaxed) != 0
}

impl Outbox {
    /// Takes back what receivers are done with.
    fn reap(&mut self, context: &Context) {
        let free = &mut self.free;
        let retired = self.retired;
        let writes = &mut self.writes;
        self.live.retain(|shared| {
            let Ok(mut message) = shared.try_lock() else {
                return true;
            };
            let slot = context.segment.slot(context.me, message.slot);
            if slot.state.load(Ordering::Acquire) != state::DONE {
                return true;
            }
            message.completed();
            message.drop_rest();
            if let (Some(writing), reading @ 1..) =
                (message.writing, slot.nanos().load(Ordering::Relaxed))
            {
                let nanos = writing + u64::from(reading);
                writes.note(message.to, message.total, message.write, nanos);
            }
            if let Content::Device(elements) = &message.content {
                match slot.mover.load(Ordering::Relaxed) {
                    mover::RECEIVER => elements.over(true),
                    mover::BUFFERED => elements.over(false),
                    // Truncated, cancelled, or failed.
                    _ => {}
                }
            }
            if let (Some(published), Some(module)) =
                (message.published.take(), &context.registration)
            {
                let unwanted = slot.unwanted().load(Ordering::Relaxed);
                if unwanted > 0 {
                    module.postpone(message.to, published.place(), unwanted);
                }
            }
            if let (Some(_), Some(registration)) = (message.lent.take(), &context.registration) {
                let was_used = slot.mover.load(Ordering::Relaxed) == mover::RECEIVER;
                // Asked for, it is lent whether that is of use or not.
                registration.returned(was_used || context.protocol == Protocol::Get);
            }
            if let Some(lane) = message.lane.take() {
                context.give_lane_back(lane);
            }
            let next = match retired >> message.slot & 1 {
                1 => state::RETIRED,
                _ => {
                    *free |= 1 << message.slot;
                    state::FREE
                }
            };
            slot.state.store(next, Ordering::Release);
            LIVE.fetch_sub(1, Ordering::Relaxed);
            false
        });
    }
}

/// Bytes from which on elements are copied out of memory that is mapped.
pub const ATTACH_MIN: u64 = 64 << 10;
/// How many times the bytes of its elements memory may have that is mapped for them.
const ATTACH_SPARSE: u64 = 64;

/// Pieces from which on memory is lent so that the module copies them: fewer are read soon enough
/// without it.
const LEND_MIN: u64 = 1024;

/// Where the elements of a message begin, and how many bytes there are to their end, if they are
/// not dense and the module may pin that many for them.
fn extent(content: &Content, total: u64) -> Option<(usize, usize)> {
    let Content::Host(View::Typed(prepared, origin)) = content else {
        return None;
    };
    let bounds = prepared.layout.bounds();
    let len = usize::try_from(bounds.end.checked_sub(bounds.start)?).ok()?;
    if total < ATTACH_MIN || len as u64 > total.saturating_mul(ATTACH_SPARSE) {
        return None;
    }
    let base = origin.wrapping_offset(isize::try_from(bounds.start).ok()?);
    Some((base as usize, len))
}

/// Has a message's elements be where their receiver can map them, if that is worth it.
fn offer(
    context: &Context,
    to: usize,
    content: &Content,
    total: u64,
) -> Option<(Arc<Published>, RegionKey)> {
    let registration = context.registration.as_ref()?;
    if context.protocol == Protocol::Get {
        return None;
    }
    let (base, len) = extent(content, total)?;
    registration.publish(to, base, len)
}

/// Lends the memory of a message's elements, if copying the pieces costs the receiver more without
/// the module than to pin the pages costs us.
fn lend(context: &Context, content: &Content, total: u64) -> Option<(Arc<Published>, RegionKey)> {
    let registration = context.registration.as_ref()?;
    let (base, len) = extent(content, total)?;
    let Content::Host(View::Typed(prepared, _)) = content else {
        return None;
    };
    let pieces = prepared.layout.segment_count();
    if pieces < LEND_MIN || pieces < len as u64 / PAGE {
        return None;
    }
    registration.lend(base, len)
}

/// Whether nobody needs this process for what it has sent: it is done, or others read the rest out
/// of shared memory.
#[inline]
pub fn is_quiet() -> bool {
    !any() && PACKED.load(Ordering::Relaxed) == 0
}

impl Endpoint {
    /// Nothing is under way yet.
    pub fn new(context: Context) -> Endpoint {
        let writes = LaneWrites::new(context.pids.len());
        Endpoint {
            context,
            outbox: Mutex::new(Outbox {
                writes,
                free: ALL_SLOTS,
                retired: 0,
                sequence: 0,
                live: Vec::new(),
            }),
        }
    }

    /// A message of the program's own has the length that names this slot: the slot is never used
    /// again, so that its length always means such a message. Returns a mask of all such slots.
    #[cold]
    pub fn retire(&self, slot: usize) -> u64 {
        if !self.home.is_here() {
            return 0;
        }
        let mut outbox = lock(&self.outbox);
        if outbox.retired >> slot & 1 == 1 {
            return outbox.retired;
        }
        // Before that message leaves, or one of another thread that finds the slot retired.
        let ambiguous = &self.segment.slot(self.me, slot).ambiguous;
        ambiguous.store(1, Ordering::SeqCst);
        outbox.retired |= 1 << slot;
        note(Event::Retired, 1);
        if outbox.free >> slot & 1 == 1 {
            outbox.free &= !(1 << slot);
            let shared = self.segment.slot(self.me, slot);
            shared.state.store(state::RETIRED, Ordering::Release);
        }
        outbox.retired
    }

    /// Makes a message known to its receiver; `None` if there is no slot or no room for the words
    /// of its layout, if the receiver must not read our memory, or in a forked child. `owned` is
    /// what `content` shows, if that is not the program's; `committed` the number that its type was
    /// given together, or 0; `fits` says whether a header may have a given number of bytes.
    ///
    /// ```compile_fail,E0133
    /// # use libcopy::p2p::{Content, Endpoint, View};
    /// fn send(endpoint: &Endpoint, address: usize) {
    ///     let anything = View::Dense(address as *mut u8);
    ///     endpoint.post(Content::Host(anything), None, (1 << 20, 1, 0), 0, |_| true);
    /// }
    /// ```
    ///
    /// # Safety
    ///
    /// The content has `total` bytes. Until the message is complete ([`Outgoing::attend`] or
    /// [`Outgoing::buffer`] says so), or was withdrawn or lost, elements in host memory stay
    /// readable and nobody changes them.
    pub unsafe fn post(
        &self,
        content: Content,
        owned: Option<Vec<u8>>,
        (total, to, tag): (u64, usize, i32),
        committed: u64,
        fits: impl Fn(u64) -> bool,
    ) -> Option<Shared> {
        let context = &self.context;
        if !context.home.is_here() {
            return None;
        }
        let is_blind = context.is_closed(to);
        let device = match &content {
            Content::Host(_) => None,
            Content::Device(elements) => Some(elements.handle()),
        };
        // What is packed out of device memory is read by the receiver.
        if is_blind && (context.is_refused(to) || device.is_some()) {
            return None;
        }
        let (origin, layout) = match &content {
            Content::Host(View::Dense(base)) => (*base as u64, None),
            Content::Host(View::Typed(prepared, origin)) => {
                (*origin as u64, Some(prepared.described()?))
            }
            Content::Host(View::Opaque(_)) => (0, None),
            Content::Device(elements) => match elements.described() {
                Some(known) => (0, Some(known.described()?)),
                None => (0, None),
            },
        };
        let mut outbox = lock(&self.outbox);
        if !outbox.live.is_empty() {
            outbox.reap(context);
        }
        // What was reaped has said whether memory is to be published, which takes too long to keep
        // others out.
        let (mut offered, mut lent) = (None, None);
        if context.registration.is_some() && !is_blind {
            drop(outbox);
            offered = offer(context, to, &content, total);
            if context.protocol == Protocol::Get {
                lent = lend(context, &content, total);
            }
            outbox = lock(&self.outbox);
        }
        let free = (0..SLOTS).filter(|slot| outbox.free >> slot & 1 == 1);
        // The receiver of that many bytes may have room for no more.
        let mut fitting = free.filter(|slot| {
            let wire = wire_size(*slot) as u64;
            wire <= total && fits(wire)
        });
        let Some(number) = fitting.next() else {
            note(Event::NoSlot, 1);
            return None;
        };
        let lane = match context.protocol {
            // Lanes are for receivers that have begun: those that wait may need one that others
            // would hold.
            _ if is_blind || device.is_some() => None,
            Protocol::Get => None,
            _ => context.take_lane(),
        };
        outbox.sequence += 1;
        let sequence = outbox.sequence;
        outbox.free &= !(1 << number);
        let mut wire = vec![0u8; wire_size(number)].into_boxed_slice();
        let header = Header {
            magic: context.magic,
            sequence,
            sender: context.me as u32,
            slot: number as u32,
            total,
            origin,
            layout_words: layout.map_or(0, |(words, _)| words.len() as u64),
            layout_at: layout.map_or(0, |(words, _)| words.as_ptr() as u64),
            layout_hash: layout.map_or([0; 2], |(_, hash)| *hash),
            committed,
        };
        header.write(&mut wire);
        let slot = context.segment.slot(context.me, number);
        slot.to.store(to as u32, Ordering::Relaxed);
        slot.tag.store(tag, Ordering::Relaxed);
        slot.set_header(&header);
        let lane_word = lane.map_or(NO_LANE, |lane| lane as u32);
        slot.lane.store(lane_word, Ordering::Relaxed);
        slot.filled.store(0, Ordering::Relaxed);
        slot.drained().store(0, Ordering::Relaxed);
        slot.unwanted().store(0, Ordering::Relaxed);
        slot.rest.store(0, Ordering::Relaxed);
        slot.blind.store(u32::from(is_blind), Ordering::Relaxed);
        slot.split.wish.store(wish::NONE, Ordering::Relaxed);
        slot.set_device(device);
        let known = offered.as_ref().or(lent.as_ref());
        slot.set_window(known.map_or_else(RegionKey::default, |(_, window)| *window));
        let is_dense = matches!(content, Content::Host(View::Dense(_)));
        let is_long = is_dense && total >= SPLIT_MIN;
        let split = !is_blind && is_long || offered.is_some();
        let (write, is_timed) = match lane {
            Some(_) if is_dense && !is_long => outbox.writes.choose(to, total),
            _ => (LaneWrite::Cached, false),
        };
        slot.set_timed(is_timed);
        // With a lane we begin at once; nobody takes it over before we had a chance.
        let held = lane.is_some() && !split;
        let first = if held { mover::SENDER } else { mover::NOBODY };
        slot.mover.store(first, Ordering::Relaxed);
        slot.state.store(state::POSTED, Ordering::Release);
        let shared = Arc::new(Mutex::new(Outgoing {
            slot: number,
            home: context.segment.place(),
            to,
            total,
            content,
            _owned: owned,
            wire,
            lane,
            filled: 0,
            write,
            writing: is_timed.then_some(0),
            rest: None,
            rest_from: 0,
            is_lending_over: offered.is_some() || context.protocol == Protocol::Get,
            published: offered.map(|(published, _)| published),
            lent: lent.map(|(published, _)| published),
            posted: (!(held && is_dense && total <= LANE as u64)).then(Instant::now),
            held,
            split,
            is_help_due: false,
            complete: false,
            lost: false,
            unpacked: None,
        }));
        outbox.live.push(shared.clone());
        LIVE.fetch_add(1, Ordering::Relaxed);
        INCOMPLETE.fetch_add(1, Ordering::Relaxed);
        if device.is_some() {
            ON_DEVICE.fetch_add(1, Ordering::Relaxed);
        }
        note(Event::Sent, 1);
        Some(shared)
    }

    /// Goes on with all messages that are under way, so that their receivers can.
    pub fn attend_all(&self) {
        self.attend_those(|_| true);
    }

    /// Goes on with all messages that are under way until `look` finds something.
    pub fn attend_until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let mut pause = Pause::new();
        loop {
            if let Some(found) = look() {
                return found;
            }
            if pause.step() {
                self.attend_all();
            }
        }
    }

    /// Goes on with all messages that are under way but those that their receivers copy themselves:
    /// for a rank that is copying what it receives. Two ranks that send to each other then copy a
    /// message each, into memory that is in their own caches.
    pub(super) fn attend_streams(&self) {
        self.attend_those(|message| !message.is_copied_by_receiver(&self.context));
    }

    fn attend_those(&self, wanted: impl Fn(&Outgoing) -> bool) {
        let context = &self.context;
        if LIVE.load(Ordering::Relaxed) == 0 || !context.home.is_here() {
            return;
        }
        let Ok(mut outbox) = self.outbox.try_lock() else {
            return;
        };
        for shared in &outbox.live {
            if let Ok(mut message) = shared.try_lock()
                && wanted(&message)
            {
                let held = message.held;
                message.attend(context, held);
            }
        }
        outbox.reap(context);
    }

    /// Packs all messages in device memory that their receivers are not copying: before a call that
    /// waits for other processes without letting messages get on, since a receiver that cannot copy
    /// out of device memory waits for that.
    pub fn pack_all(&self) {
        if !self.home.is_here() {
            return;
        }
        let live = lock(&self.outbox).live.clone();
        for shared in live {
            let mut message = lock(&shared);
            if let Content::Device(_) = message.content {
                message.buffer(&self.context);
            }
        }
    }

    /// Gives up what nobody will receive, since the receiver has died while it was receiving.
    pub fn give_up_lost(&self) {
        let context = &self.context;
        if !any() || !context.home.is_here() {
            return;
        }
        let Ok(outbox) = self.outbox.try_lock() else {
            return;
        };
        for shared in &outbox.live {
            if let Ok(mut message) = shared.try_lock() {
                let held = message.held;
                if !message.attend(context, held) && message.is_lost(context) {
                    message.lose(context);
                }
            }
        }
    }
}

impl Endpoint {
    /// The messages that their receivers are not done with.
    pub(super) fn unfinished(&self) -> Vec<Shared> {
        let mut outbox = lock(&self.outbox);
        outbox.reap(&self.context);
        outbox.live.clone()
    }

    /// Those who receive them.
    pub(super) fn receivers(&self) -> Vec<usize> {
        let unfinished = self.unfinished();
        unfinished.iter().map(|shared| lock(shared).to).collect()
    }

    /// Whether a receiver waits for bytes that only we can hand over, or the program for its
    /// buffer.
    pub(super) fn is_needed(&self) -> bool {
        let is_needed = |shared: &Shared| {
            let message = lock(shared);
            let is_blind = || message.slot(self).blind.load(Ordering::Relaxed) != 0;
            !message.complete || message.rest.is_some() && is_blind()
        };
        lock(&self.outbox).live.iter().any(is_needed)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Another thread of a forked child's parent may have held the lock.
        if !self.home.is_here() {
            return;
        }
        // Nobody goes on with these; the counts are of all endpoints.
        for shared in lock(&self.outbox).live.drain(..) {
            let mut message = lock(&shared);
            message.completed();
            message.drop_rest();
            LIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Outgoing {
    /// The header.
    pub fn wire(&self) -> &[u8] {
        &self.wire
    }

    /// The program may have its buffer back.
    fn completed(&mut self) {
        if !std::mem::replace(&mut self.complete, true) {
            INCOMPLETE.fetch_sub(1, Ordering::Relaxed);
            if let Content::Device(_) = self.content {
                ON_DEVICE.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Nobody reads what was packed.
    fn drop_rest(&mut self) {
        if self.rest.take().is_some() {
            PACKED.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn slot<'a>(&self, context: &'a Context) -> &'a Slot {
        assert_eq!(
            self.home,
            context.segment.place(),
            "the endpoint of the message"
        );
        context.segment.slot(context.me, self.slot)
    }

    /// Puts into the lane what fits; returns whether the program may have its buffer back. `keep`
    /// says that this will be called again at once, so that the receiver need not do it all.
    pub fn attend(&mut self, context: &Context, keep: bool) -> bool {
        // A forked child's copy of the buffer is its own, and the message its parent's.
        if !context.home.is_here() {
            return true;
        }
        let slot = self.slot(context);
        if self.complete {
            if slot.blind.load(Ordering::Acquire) != 0 && self.rest.is_some() {
                self.fill(context, slot);
            }
            return true;
        }
        let state = slot.state.load(Ordering::Acquire);
        if state != state::POSTED {
            context.note_busy(self.to);
        }
        if state == state::DONE {
            self.completed();
            return true;
        }
        if let Content::Device(_) = self.content {
            let is_asked = slot.split.wish.load(Ordering::Acquire) == wish::PACKED
                || slot.blind.load(Ordering::Acquire) != 0;
            if is_asked && hold(slot) {
                self.pack(slot);
            }
            return self.complete;
        }
        if self.split && slot.split.wish.load(Ordering::Acquire) != wish::STREAM {
            self.help(context, slot);
            return false;
        }
        let is_awaited = || slot.blind.load(Ordering::Acquire) != 0 && state == state::CLAIMED;
        if self.lane.is_none() && !is_awaited() {
            self.lend(context, slot);
            return false;
        }
        if !self.held && !hold(slot) {
            return false;
        }
        self.held = true;
        self.fill(context, slot);
        if self.filled == self.total {
            self.completed();
        } else if !keep {
            self.lend(context, slot);
            self.let_go(slot);
        }
        self.complete
    }

    /// Lends the memory of the elements that are left, so that the receiver need not wait for us to
    /// have many pieces soon.
    fn lend(&mut self, context: &Context, slot: &Slot) {
        if std::mem::replace(&mut self.is_lending_over, true)
            || slot.blind.load(Ordering::Acquire) != 0
        {
            return;
        }
        if let Some((published, key)) = lend(context, &self.content, self.total) {
            slot.set_window(key);
            self.lent = Some(published);
        }
    }

    /// Puts into the lane what fits. A message that has none takes one, if any is free.
    fn fill(&mut self, context: &Context, slot: &Slot) {
        if self.lane.is_none() {
            self.lane = context.take_lane();
            if let Some(lane) = self.lane {
                slot.lane.store(lane as u32, Ordering::Release);
            }
        }
        let Some(lane) = self.lane else {
            return;
        };
        let lane = context.segment.lane(context.me, lane);
        let before = self.filled;
        let chunk = match &self.content {
            Content::Host(View::Dense(_)) => DENSE_CHUNK,
            _ => CHUNK,
        };
        let start = self.writing.map(|_| Instant::now());
        while self.filled < self.total {
            let used = self.filled - slot.drained().load(Ordering::Acquire);
            let at = self.filled % LANE as u64;
            let room = (LANE as u64 - used).min(LANE as u64 - at);
            let n = chunk.min(self.total - self.filled).min(room);
            // Whole chunks, but for the last one.
            if n == 0 || n < chunk && self.filled + n < self.total {
                break;
            }
            let range = self.filled..self.filled + n;
            let to = lane.wrapping_add(at as usize);
            let is_packed = match (&self.rest, &self.content) {
                (Some(rest), _) => {
                    let from = (self.filled - self.rest_from) as usize;
                    let rest = &rest.bytes()[from..from + n as usize];
                    // SAFETY: the lane has this room, which the receiver does not look at.
                    unsafe { memcpy::cached(to, rest.as_ptr(), rest.len()) };
                    true
                }
                (None, Content::Host(View::Dense(base))) => {
                    let from = base.wrapping_add(self.filled as usize);
                    let is_streaming = self.write == LaneWrite::Streaming;
                    // SAFETY: the program promised its elements; the lane has this room, as above.
                    unsafe { memcpy::either(to, from, n as usize, is_streaming) };
                    true
                }
                // SAFETY: as above.
                (None, Content::Host(view)) => unsafe { view.pack(range, to) }.is_ok(),
                // Packed as a whole before.
                (None, Content::Device(_)) => false,
            };
            if !is_packed {
                break;
            }
            self.filled += n;
            slot.filled.store(self.filled, Ordering::Release);
        }
        if let (Some(writing), Some(start)) = (&mut self.writing, start) {
            *writing += start.elapsed().as_nanos() as u64;
        }
        note(Event::Pipelined, self.filled - before);
    }

    /// Whether the receiver copies parts of the message, and needs no help to get all of them.
    pub fn is_copied_by_receiver(&self, context: &Context) -> bool {
        self.split && self.slot(context).split.wish.load(Ordering::Acquire) == wish::SPLIT
    }

    /// Copies a part of a message into the receiver's memory, if it wants that: one at a time, and
    /// none when we first see that it does. A receiver that has sent to us, too, did so before, so
    /// that we find its message first, and rather copy that.
    fn help(&mut self, context: &Context, slot: &Slot) {
        let Content::Host(View::Dense(base)) = self.content else {
            return;
        };
        if !self.is_copied_by_receiver(context) || !std::mem::replace(&mut self.is_help_due, true) {
            return;
        }
        let target = slot.split.target.load(Ordering::Relaxed);
        let _ = slot.split.help(self.total, End::Back, false, |at, len| {
            let from = base.wrapping_add(at as usize);
            // SAFETY: the program promised its bytes.
            let written = unsafe {
                process_memory::write(context.pids[self.to], target + at, from, len as usize)
            };
            note(Event::Put, len);
            written.is_ok()
        });
    }

    fn let_go(&mut self, slot: &Slot) {
        self.held = false;
        slot.mover.store(mover::NOBODY, Ordering::Release);
    }

    /// Whether the receiver has not begun for so long that the data should be packed: it may be
    /// waiting for us elsewhere. Of no use to a receiver that must not read our memory.
    pub fn is_impatient(&self, context: &Context) -> bool {
        let Some(posted) = self.posted else {
            return false;
        };
        let slot = self.slot(context);
        let begun = slot.state.load(Ordering::Relaxed) != state::POSTED;
        let is_blind = slot.blind.load(Ordering::Relaxed) != 0;
        let more = Duration::from_micros(self.total / PACE);
        let patience = match (&self.published, &self.content) {
            // Asked for, so not given up because the machine is busy.
            (Some(_), _) if context.protocol == Protocol::Mapped => 100 * LONG_PATIENCE,
            (_, Content::Device(elements)) if elements.is_wanted() => 100 * LONG_PATIENCE,
            (Some(_), _) | (None, Content::Device(_)) => LONG_PATIENCE,
            (None, Content::Host(_)) => PATIENCE,
        };
        // A receiver without a request has to come to the receive anyway, and packing would cost
        // both.
        let is_host = matches!(self.content, Content::Host(_));
        let is_unmatched =
            is_host && self.total > LANE as u64 && context.is_without_receives(self.to);
        let patience = if is_unmatched {
            patience.max(UNMATCHED_PATIENCE)
        } else {
            patience
        };
        let waited = posted.elapsed();
        if begun || is_blind || waited <= patience + more {
            return false;
        }
        let idle = context.idle(self.to);
        let is_idle = idle.is_none_or(|idle| idle > patience + more);
        is_idle || waited > WHILE_BUSY * (patience + more)
    }

    /// Packs what is not in the lane; returns whether the program may have its buffer back.
    pub fn buffer(&mut self, context: &Context) -> bool {
        let slot = self.slot(context);
        if self.complete || !context.home.is_here() || !self.held && !hold(slot) {
            return self.attend(context, false);
        }
        self.held = true;
        if self.total > LANE as u64 {
            context.note_packed(self.to);
        }
        self.pack(slot);
        self.complete
    }

    /// Packs what is not in the lane, which we have said that we do.
    fn pack(&mut self, slot: &Slot) {
        self.held = true;
        let rest: Box<dyn PackedBytes> = match &self.content {
            Content::Host(view) => {
                // SAFETY: the program promised its elements.
                match unsafe { packed(view, self.filled..self.total) } {
                    Some(rest) => Box::new(rest),
                    None => return self.let_go(slot),
                }
            }
            Content::Device(elements) => match elements.packed() {
                Ok(rest) => rest,
                // Of a GPU that has failed nobody gets anything any more.
                Err(code) => {
                    self.unpacked = Some(code);
                    self.completed();
                    slot.mover.store(mover::FAILED, Ordering::Release);
                    return;
                }
            },
        };
        self.rest_from = self.filled;
        slot.rest
            .store(rest.bytes().as_ptr() as u64, Ordering::Relaxed);
        if self.rest.replace(rest).is_none() {
            PACKED.fetch_add(1, Ordering::Relaxed);
        }
        self.held = false;
        self.completed();
        note(Event::Eager, self.total - self.filled);
        slot.mover.store(mover::BUFFERED, Ordering::Release);
    }

    /// Nobody will receive this: its header could not be sent, or was cancelled.
    pub fn withdraw(&mut self, context: &Context) {
        self.completed();
        if !context.home.is_here() {
            return;
        }
        self.slot(context)
            .state
            .store(state::DONE, Ordering::Release);
    }

    /// Takes the message back, unless somebody has begun to receive it; whether nobody uses the
    /// buffer any more.
    pub(super) fn retract(&mut self, context: &Context) -> bool {
        let (from, to) = (state::POSTED, state::DONE);
        let taken = exchange(&self.slot(context).state, from, to);
        let is_over = taken.is_ok() || taken == Err(to);
        if is_over {
            self.completed();
        }
        is_over
    }

    /// Whether the receiver has not ended.
    pub(super) fn receiver_lives(&self, context: &Context) -> bool {
        context.lives(self.to)
    }

    /// Whether the receiver has died while it was receiving.
    pub fn is_lost(&self, context: &Context) -> bool {
        !self.complete && !context.lives(self.to)
    }

    /// The receiver has died.
    pub fn lose(&mut self, context: &Context) {
        self.lost = true;
        self.withdraw(context);
    }

    /// Whether this was given up because the receiver has died.
    pub fn was_lost(&self) -> bool {
        self.lost
    }

    /// Why this was given up because its elements could not be packed.
    pub fn packing_error(&self) -> Option<i32> {
        self.unpacked
    }
}

/// A range of the packed bytes of elements; `None` if there is no memory for them, or if they
/// cannot be packed.
///
/// # Safety
///
/// The elements are readable.
unsafe fn packed(view: &View, range: Range<u64>) -> Option<Vec<u8>> {
    let len = (range.end - range.start) as usize;
    let mut packed: Vec<u8> = Vec::new();
    packed.try_reserve_exact(len).ok()?;
    // SAFETY: the caller's promise; there is room for these bytes, which are written here.
    unsafe {
        view.pack(range, packed.as_mut_ptr()).ok()?;
        packed.set_len(len);
    }
    Some(packed)
}

/// Says that the sender fills the lane, unless the receiver has taken over.
fn hold(slot: &Slot) -> bool {
    exchange(&slot.mover, mover::NOBODY, mover::SENDER).is_ok()
}

/// What a loop does that waits for another process.
#[derive(Debug, Default)]
pub struct Pause {
    rounds: u32,
    /// When it was last time to see who lives, once it takes long.
    checked: Option<Instant>,
}

/// Rounds in which nothing but time passes.
const SPINS: u32 = 200;

impl Pause {
    /// At the beginning.
    pub fn new() -> Pause {
        Pause::default()
    }

    /// Something happened.
    pub fn reset(&mut self) {
        self.rounds = 0;
    }

    /// Lets some time pass; returns whether there was so much of it that others should be let in.
    pub fn step(&mut self) -> bool {
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds < SPINS {
            std::hint::spin_loop();
            return self.rounds % 32 == 0;
        }
        std::thread::yield_now();
        true
    }

    /// Whether it is time again to see who lives.
    pub fn should_look(&mut self) -> bool {
        if self.rounds <= SPINS {
            return false;
        }
        let is_due = |checked: &Instant| checked.elapsed() > Duration::from_millis(100);
        let due = self.checked.as_ref().is_some_and(is_due);
        if due || self.checked.is_none() {
            self.checked = Some(Instant::now());
        }
        due
    }
}
