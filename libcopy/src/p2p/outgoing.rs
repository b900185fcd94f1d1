// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages that this process sends: a slot for each, bytes that go through a lane while the
//! receiver takes them out, and what is packed so that nobody has to wait for a late receiver.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use super::attach::{Published, Window};
use super::board::{End, LANE, LANES, NO_LANE, SPLIT_MIN, Slot, mover, state, wish};
use super::events::{Event, note};
use super::header::{self, Header, SLOTS, slot_of, wire_size};
use super::memory::{self, lives};
use super::protocol::Protocol;
use super::view::View;
use super::world::World;
use crate::sync::lock;
use crate::{errors, progress};

/// Bytes that are put into a lane at a time.
const CHUNK: u64 = 32 << 10;

/// How long a sender waits for a receiver that has not begun: this, and the time that packing takes.
const PATIENCE: Duration = Duration::from_millis(1);
/// The same where the receiver can copy out of our memory, which is worth more than packing early.
const LONG_PATIENCE: Duration = Duration::from_millis(10);
/// How much longer a sender waits for a receiver that is busy with other messages of ours. Not for ever:
/// one thread may wait for what another one's messages keep from happening.
const WHILE_BUSY: u32 = 50;
/// Bytes that are packed in a microsecond, about.
const PACE: u64 = 4096;

/// When each process, by its number, was last seen to be receiving something of ours, in nanoseconds since
/// [`BEGINNING`]. Those that share an entry are waited for a little longer.
static BUSY: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// One message.
#[derive(Debug)]
pub struct Outgoing {
    slot: usize,
    to: usize,
    total: u64,
    view: View,
    /// What is sent, where that is not the program's.
    _owned: Option<Vec<u8>>,
    /// The header.
    wire: Box<[u8]>,
    lane: Option<usize>,
    filled: u64,
    /// What was packed, from `rest_from` on, so that nobody has to wait for the receiver.
    rest: Vec<u8>,
    rest_from: u64,
    /// The program's memory, where others have it mapped.
    published: Option<Arc<Published>>,
    posted: Instant,
    /// Whether we have said that we fill the lane.
    held: bool,
    /// Whether the receiver says on which way it wants the data.
    split: bool,
    /// Whether the program may use its buffer again.
    complete: bool,
    /// Whether the receiver died before that.
    lost: bool,
}

/// A message that others may look at, too.
pub type Shared = Arc<Mutex<Outgoing>>;

/// Slots and lanes of this process.
struct Outbox {
    /// Slots that nobody uses.
    free: u64,
    /// Slots whose length is the program's own, from now on or as soon as their message is done.
    retired: u64,
    sequence: u64,
    live: Vec<Shared>,
}

const ALL_SLOTS: u64 = u64::MAX >> (64 - SLOTS);

static OUTBOX: Mutex<Outbox> = Mutex::new(Outbox {
    free: ALL_SLOTS,
    retired: 0,
    sequence: 0,
    live: Vec::new(),
});

/// Lanes that nobody uses.
static FREE_LANES: AtomicU32 = AtomicU32::new((1 << LANES) - 1);

/// Takes a lane that nobody uses.
fn take_lane() -> Option<usize> {
    let first = |free: u32| (free != 0).then(|| free & (free - 1));
    let before = FREE_LANES.fetch_update(Ordering::AcqRel, Ordering::Relaxed, first);
    before.ok().map(|free| free.trailing_zeros() as usize)
}

/// The slots of [`Outbox::retired`], to be looked at without a lock.
static RETIRED: AtomicU64 = AtomicU64::new(0);

/// Whether a length names a slot that may still be used.
#[inline]
pub fn is_special(bytes: u64) -> bool {
    slot_of(bytes).is_some_and(|slot| RETIRED.load(Ordering::Acquire) >> slot & 1 == 0)
}

/// Dense messages of fewer bytes are not taken; until it is known whether any are, what is shorter than
/// headers.
static LEAST: AtomicU64 = AtomicU64::new(header::SHORTEST);

/// Messages of fewer bytes are not taken, dense ones or others; 0 until that is known.
static LEAST_OF_ALL: AtomicU64 = AtomicU64::new(0);

/// Learns from how many bytes on messages are taken, dense ones and others; `None` if none are.
pub fn learn(least: Option<[u64; 2]>) {
    let [dense, other] = least.unwrap_or([u64::MAX; 2]);
    LEAST.store(dense, Ordering::Relaxed);
    LEAST_OF_ALL.store(dense.min(other), Ordering::Relaxed);
}

/// Whether no message of so many bytes is taken.
#[inline(always)]
pub fn is_short(bytes: u64) -> bool {
    bytes < LEAST_OF_ALL.load(Ordering::Relaxed)
}

/// Whether no messages are taken, as all processes know.
#[inline(always)]
pub fn is_off() -> bool {
    LEAST.load(Ordering::Relaxed) == u64::MAX
}

/// Whether a dense message of so many bytes is passed on without a closer look.
#[inline(always)]
pub fn is_passed(bytes: u64) -> bool {
    bytes < LEAST.load(Ordering::Relaxed) && !is_special(bytes)
}

/// Messages that are not done.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Messages whose buffers the program may not have back yet.
static INCOMPLETE: AtomicUsize = AtomicUsize::new(0);

/// Whether any message is under way that we have to go on with.
#[inline]
pub fn any() -> bool {
    INCOMPLETE.load(Ordering::Relaxed) != 0
}

impl Outbox {
    /// Takes back what receivers are done with.
    fn reap(&mut self, world: &World) {
        let free = &mut self.free;
        let retired = self.retired;
        self.live.retain(|shared| {
            let Ok(mut message) = shared.try_lock() else {
                return true;
            };
            let slot = world.board.slot(world.me, message.slot);
            if slot.state.load(Ordering::Acquire) != state::DONE {
                return true;
            }
            message.completed();
            message.rest = Vec::new();
            if let (Some(published), Some(module)) = (message.published.take(), &world.module) {
                let unwanted = slot.unwanted().load(Ordering::Relaxed);
                if unwanted > 0 {
                    module.postpone(message.to, published.place(), unwanted);
                }
            }
            if let Some(lane) = message.lane.take() {
                FREE_LANES.fetch_or(1 << lane, Ordering::AcqRel);
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

/// A message of the program's own has the length that names this slot: the slot is never used
/// again, so that its length always means such a message.
#[cold]
pub fn retire(world: &World, slot: usize) {
    let mut outbox = lock(&OUTBOX);
    if outbox.retired >> slot & 1 == 1 {
        return;
    }
    // Before that message leaves, or one of another thread that finds the slot retired.
    let ambiguous = &world.board.slot(world.me, slot).ambiguous;
    ambiguous.store(1, Ordering::SeqCst);
    outbox.retired |= 1 << slot;
    RETIRED.store(outbox.retired, Ordering::Release);
    note(Event::Retired, 1);
    if outbox.free >> slot & 1 == 1 {
        outbox.free &= !(1 << slot);
        let shared = world.board.slot(world.me, slot);
        shared.state.store(state::RETIRED, Ordering::Release);
    }
}

/// Bytes from which on elements are copied out of memory that is mapped.
pub const ATTACH_MIN: u64 = 64 << 10;
/// How many times the bytes of its elements memory may have that is mapped for them.
const ATTACH_SPARSE: u64 = 64;

/// Has a message's elements be where their receiver can map them, if that is worth it.
fn offer(world: &World, to: usize, view: &View, total: u64) -> Option<(Arc<Published>, Window)> {
    let module = world.module.as_ref()?;
    let View::Typed(prepared, origin) = view else {
        return None;
    };
    let bounds = prepared.layout.bounds();
    let len = usize::try_from(bounds.end.checked_sub(bounds.start)?).ok()?;
    if total < ATTACH_MIN || len as u64 > total.saturating_mul(ATTACH_SPARSE) {
        return None;
    }
    let base = origin.wrapping_offset(isize::try_from(bounds.start).ok()?);
    module.publish(to, base as usize, len)
}

/// Makes a message known to its receiver; `None` if there is no slot. `owned` is what `view` shows,
/// if that is not the program's; `committed` the number that its type was given together, or 0; `fits` says whether a header may have so many bytes.
pub fn post(
    world: &World,
    view: View,
    owned: Option<Vec<u8>>,
    (total, to, tag): (u64, usize, c_int),
    committed: u64,
    fits: impl Fn(u64) -> bool,
) -> Option<Shared> {
    if world.is_closed(to) {
        return None;
    }
    let mut outbox = lock(&OUTBOX);
    if !outbox.live.is_empty() {
        outbox.reap(world);
    }
    // What was reaped has said whether memory is to be published, which takes too long to keep others out.
    let mut offered = None;
    if world.module.is_some() {
        drop(outbox);
        offered = offer(world, to, &view, total);
        outbox = lock(&OUTBOX);
    }
    let free = (0..SLOTS).filter(|slot| outbox.free >> slot & 1 == 1);
    // Whoever receives so many bytes may have room for no more.
    let mut fitting = free.filter(|slot| {
        let wire = wire_size(*slot) as u64;
        wire <= total && fits(wire)
    });
    let Some(number) = fitting.next() else {
        note(Event::NoSlot, 1);
        return None;
    };
    let lane = match world.road {
        Protocol::Fetch => None,
        _ => take_lane(),
    };
    outbox.sequence += 1;
    let sequence = outbox.sequence;
    outbox.free &= !(1 << number);
    let mut wire = vec![0u8; wire_size(number)].into_boxed_slice();
    let (origin, layout) = match &view {
        View::Dense(base) => (*base as u64, None),
        View::Typed(prepared, origin) => (*origin as u64, Some(prepared.described())),
        View::Opaque(_) => (0, None),
    };
    let header = Header {
        magic: world.magic,
        sequence,
        sender: world.me as u32,
        slot: number as u32,
        total,
        origin,
        layout_words: layout.map_or(0, |(words, _)| words.len() as u64),
        layout_at: layout.map_or(0, |(words, _)| words.as_ptr() as u64),
        layout_hash: layout.map_or([0; 2], |(_, hash)| *hash),
        committed,
    };
    header.write(&mut wire);
    let slot = world.board.slot(world.me, number);
    slot.to.store(to as u32, Ordering::Relaxed);
    slot.tag.store(tag, Ordering::Relaxed);
    slot.sequence.store(sequence, Ordering::Relaxed);
    slot.total.store(total, Ordering::Relaxed);
    let lane_word = lane.map_or(NO_LANE, |lane| lane as u32);
    slot.lane.store(lane_word, Ordering::Relaxed);
    slot.filled.store(0, Ordering::Relaxed);
    slot.drained().store(0, Ordering::Relaxed);
    slot.unwanted().store(0, Ordering::Relaxed);
    slot.rest.store(0, Ordering::Relaxed);
    slot.blind.store(0, Ordering::Relaxed);
    slot.split.wish.store(wish::NONE, Ordering::Relaxed);
    slot.set_window(
        offered
            .as_ref()
            .map_or_else(Window::default, |(_, window)| *window),
    );
    let split = matches!(view, View::Dense(_)) && total >= SPLIT_MIN || offered.is_some();
    // With a lane we begin at once; nobody takes it over before we had a chance.
    let held = lane.is_some() && !split;
    let first = if held { mover::SENDER } else { mover::NOBODY };
    slot.mover.store(first, Ordering::Relaxed);
    slot.state.store(state::POSTED, Ordering::Release);
    let shared = Arc::new(Mutex::new(Outgoing {
        slot: number,
        to,
        total,
        view,
        _owned: owned,
        wire,
        lane,
        filled: 0,
        rest: Vec::new(),
        rest_from: 0,
        published: offered.map(|(published, _)| published),
        posted: Instant::now(),
        held,
        split,
        complete: false,
        lost: false,
    }));
    outbox.live.push(shared.clone());
    LIVE.fetch_add(1, Ordering::Relaxed);
    INCOMPLETE.fetch_add(1, Ordering::Relaxed);
    note(Event::Sent, 1);
    Some(shared)
}

/// Whether nothing that was sent is on its way.
#[inline]
pub fn is_quiet() -> bool {
    LIVE.load(Ordering::Relaxed) == 0
}

/// Goes on with all messages that are under way, so that whoever receives them can.
pub fn attend_all(world: &World) {
    if LIVE.load(Ordering::Relaxed) == 0 {
        return;
    }
    let Ok(mut outbox) = OUTBOX.try_lock() else {
        return;
    };
    for shared in &outbox.live {
        if let Ok(mut message) = shared.try_lock() {
            let held = message.held;
            message.attend(world, held);
        }
    }
    outbox.reap(world);
}

/// Gives up what nobody will receive, since the receiver has died while it was receiving.
pub fn give_up_lost(world: &World) {
    if !any() {
        return;
    }
    let Ok(outbox) = OUTBOX.try_lock() else {
        return;
    };
    for shared in &outbox.live {
        if let Ok(mut message) = shared.try_lock() {
            let held = message.held;
            if !message.attend(world, held) && message.is_lost(world) {
                message.lose(world);
            }
        }
    }
}

impl Outgoing {
    /// The header, and how long it is.
    pub fn wire(&self) -> &[u8] {
        &self.wire
    }

    /// The program may have its buffer back.
    fn completed(&mut self) {
        if !std::mem::replace(&mut self.complete, true) {
            INCOMPLETE.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn slot<'a>(&self, world: &'a World) -> &'a Slot {
        world.board.slot(world.me, self.slot)
    }

    /// Puts into the lane what fits; returns whether the program may have its buffer back. `keep`
    /// says that this will be called again at once, so that the receiver need not do it all.
    pub fn attend(&mut self, world: &World, keep: bool) -> bool {
        let slot = self.slot(world);
        if self.complete {
            if slot.blind.load(Ordering::Acquire) != 0 && !self.rest.is_empty() {
                self.fill(world, slot);
            }
            return true;
        }
        let state = slot.state.load(Ordering::Acquire);
        if state != state::POSTED {
            let now = BEGINNING.elapsed().as_nanos() as u64;
            BUSY[self.to % BUSY.len()].store(now, Ordering::Relaxed);
        }
        if state == state::DONE {
            self.completed();
            return true;
        }
        if self.split && slot.split.wish.load(Ordering::Acquire) != wish::STREAM {
            self.help(world, slot);
            return false;
        }
        if self.lane.is_none() && slot.blind.load(Ordering::Acquire) == 0 {
            return false;
        }
        if !self.held && !hold(slot) {
            return false;
        }
        self.held = true;
        self.fill(world, slot);
        if self.filled == self.total {
            self.completed();
        } else if !keep {
            self.let_go(slot);
        }
        self.complete
    }

    /// Puts into the lane what fits. A message that has none takes one, if any is free.
    fn fill(&mut self, world: &World, slot: &Slot) {
        if self.lane.is_none() {
            self.lane = take_lane();
            if let Some(lane) = self.lane {
                slot.lane.store(lane as u32, Ordering::Release);
            }
        }
        let Some(lane) = self.lane else {
            return;
        };
        let lane = world.board.lane(world.me, lane);
        let before = self.filled;
        while self.filled < self.total {
            let used = self.filled - slot.drained().load(Ordering::Acquire);
            let at = self.filled % LANE as u64;
            let room = (LANE as u64 - used).min(LANE as u64 - at);
            let n = CHUNK.min(self.total - self.filled).min(room);
            // Whole chunks, but for the last one.
            if n == 0 || n < CHUNK && self.filled + n < self.total {
                break;
            }
            let range = self.filled..self.filled + n;
            let to = lane.wrapping_add(at as usize);
            let packed = if self.rest.is_empty() {
                // SAFETY: the program promised its elements; the lane has this room, which the
                // receiver does not look at.
                unsafe { self.view.pack(range, to) }
            } else {
                let from = (self.filled - self.rest_from) as usize;
                let rest = &self.rest[from..from + n as usize];
                // SAFETY: the lane has this room, as above.
                unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to, rest.len()) };
                Ok(())
            };
            if packed.is_err() {
                break;
            }
            self.filled += n;
            slot.filled.store(self.filled, Ordering::Release);
        }
        note(Event::Streamed, self.filled - before);
    }

    /// Copies parts of a message into the receiver's memory, if it wants that.
    fn help(&self, world: &World, slot: &Slot) {
        let View::Dense(base) = self.view else {
            return;
        };
        if slot.split.wish.load(Ordering::Acquire) != wish::SPLIT {
            return;
        }
        let target = slot.split.target.load(Ordering::Relaxed);
        slot.split.help(self.total, End::Back, |at, len| {
            let from = base.wrapping_add(at as usize);
            // SAFETY: the program promised its bytes.
            let written =
                unsafe { memory::write(world.pids[self.to], target + at, from, len as usize) };
            note(Event::Pushed, len);
            written.is_ok()
        });
    }

    fn let_go(&mut self, slot: &Slot) {
        self.held = false;
        slot.mover.store(mover::NOBODY, Ordering::Release);
    }

    /// Whether the receiver has not begun for so long that the data should be packed: it may be
    /// waiting for us elsewhere.
    pub fn is_impatient(&self, world: &World) -> bool {
        let begun = self.slot(world).state.load(Ordering::Relaxed) != state::POSTED;
        let more = Duration::from_micros(self.total / PACE);
        let patience = match self.published {
            // Asked for, so not given up because the machine is busy.
            Some(_) if world.road == Protocol::Attach => 100 * LONG_PATIENCE,
            Some(_) => LONG_PATIENCE,
            None => PATIENCE,
        };
        let waited = self.posted.elapsed();
        if begun || waited <= patience + more {
            return false;
        }
        let busy = BUSY[self.to % BUSY.len()].load(Ordering::Relaxed);
        let idle = BEGINNING
            .elapsed()
            .saturating_sub(Duration::from_nanos(busy));
        busy == 0 || idle > patience + more || waited > WHILE_BUSY * (patience + more)
    }

    /// Packs what is not in the lane; returns whether the program may have its buffer back.
    pub fn buffer(&mut self, world: &World) -> bool {
        let slot = self.slot(world);
        if self.complete || !self.held && !hold(slot) {
            return self.attend(world, false);
        }
        self.held = true;
        let left = (self.total - self.filled) as usize;
        let mut rest: Vec<u8> = Vec::new();
        if rest.try_reserve_exact(left).is_err() {
            self.let_go(slot);
            return false;
        }
        let range = self.filled..self.total;
        // SAFETY: the program promised its elements; there is room for these bytes.
        let packed = unsafe { self.view.pack(range, rest.as_mut_ptr()) };
        if packed.is_err() {
            self.let_go(slot);
            return false;
        }
        // SAFETY: there is room for these bytes, which were written just now.
        unsafe { rest.set_len(left) };
        self.rest_from = self.filled;
        slot.rest.store(rest.as_ptr() as u64, Ordering::Relaxed);
        self.rest = rest;
        self.held = false;
        self.completed();
        note(Event::Buffered, left as u64);
        slot.mover.store(mover::BUFFERED, Ordering::Release);
        true
    }

    /// Nobody will receive this: its header could not be sent, or was cancelled.
    pub fn withdraw(&mut self, world: &World) {
        self.completed();
        self.slot(world).state.store(state::DONE, Ordering::Release);
    }

    /// Whether the receiver has died while it was receiving.
    fn is_lost(&self, world: &World) -> bool {
        !self.complete && !lives(world.pids[self.to])
    }

    /// The receiver has died.
    fn lose(&mut self, world: &World) {
        self.lost = true;
        self.withdraw(world);
    }

    /// Whether this was given up because the receiver has died.
    pub fn was_lost(&self) -> bool {
        self.lost
    }
}

/// Says that the sender fills the lane, unless the receiver has taken over.
fn hold(slot: &Slot) -> bool {
    let (from, to) = (mover::NOBODY, mover::SENDER);
    let exchanged = slot
        .mover
        .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    exchanged.is_ok()
}

/// What a loop does that waits for another process.
pub struct Pause {
    rounds: u32,
    checked: Instant,
}

/// Rounds in which nothing but time passes.
const SPINS: u32 = 200;

impl Pause {
    /// At the beginning.
    pub fn new() -> Pause {
        Pause {
            rounds: 0,
            checked: Instant::now(),
        }
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
        let due = self.rounds > SPINS && self.checked.elapsed() > Duration::from_millis(100);
        if due {
            self.checked = Instant::now();
        }
        due
    }
}

/// Lets the MPI library get on, and takes what has arrived here meanwhile.
pub fn progress(world: &World) {
    progress::library(world.abi);
    world.settle();
}

/// The same, if there are any messages; whether there are.
pub fn progress_all() -> bool {
    super::world().map(progress).is_some()
}

/// The code of a message whose receiver has ended while it was receiving.
pub fn receiver_ended(world: &World) -> c_int {
    errors::failure(world.abi, "the receiver of a message has ended")
}

/// Waits until the program may have its buffer back; an error code if the receiver died.
pub fn wait(world: &World, shared: &Shared) -> Result<(), c_int> {
    let mut pause = Pause::new();
    loop {
        {
            let mut message = lock(shared);
            if message.attend(world, true) || (message.is_impatient(world) && message.buffer(world))
            {
                return if message.was_lost() {
                    Err(receiver_ended(world))
                } else {
                    Ok(())
                };
            }
            if pause.should_look() && message.is_lost(world) {
                message.lose(world);
                return Err(receiver_ended(world));
            }
        }
        if pause.step() {
            progress(world);
        }
    }
}
