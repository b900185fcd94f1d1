// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages that this process receives: a header that the MPI library has delivered, and the data
//! that it stands for.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use libcopy::datatype::Layout;
use libcopy::datatype::canonical::Form;
use libcopy::device::Attachment;

use super::attach::Window;
use super::board::{End, LANE, NO_LANE, SPLIT_MIN, Slot, mover, state, wish};
use super::events::{Event, note, timed};
use super::header::{self, Header};
use super::memory::{self, Remote, lives};
use super::outgoing::{self, ATTACH_MIN, Pause, attend_all};
use super::peers::Peers;
use super::protocol::Protocol;
use super::roads::{Kind, Way};
use super::status::Status;
use super::view::View;
use super::world::World;
use super::{committed, probes};
use crate::abi::{Word, complain};
use crate::comm::{self, Comm};
use crate::earned::{self, Use};
use crate::errors;
use crate::pmpi;
use crate::sync::lock;
use crate::types::{self, Known};

/// Bytes that are taken out of a lane at a time.
const CHUNK: u64 = 64 << 10;
/// Bytes that are fetched at a time where they have to be unpacked.
const SCRATCH: usize = 128 << 10;
/// Bytes that are copied at once while others may be waiting for us.
const AT_ONCE: u64 = 4 << 20;
/// How long a receiver waits for a sender that fills its lane no further, at least and at most.
const PATIENCE: [Duration; 2] = [Duration::from_micros(300), Duration::from_millis(10)];
/// What the kernel takes for a piece that it copies out of the sender's memory.
const PIECE: Duration = Duration::from_nanos(100);

impl World {
    /// Whether a process has sent us the header of this slot, which we have not looked at.
    fn is_posted(&self, sender: usize, slot: usize) -> bool {
        let slot = self.board.slot(sender, slot);
        slot.state.load(Ordering::Acquire) == state::POSTED
            && slot.to.load(Ordering::Relaxed) == self.me as u32
    }

    /// Whether nobody has, as far as a few looks tell.
    #[inline]
    pub fn is_unposted(&self, slot: usize) -> bool {
        /// Looks that cost less than finding out whom it is from.
        const MOST: usize = 16;
        self.pids.len() <= MOST && !(0..self.pids.len()).any(|sender| self.is_posted(sender, slot))
    }
}

/// When a message arrives that may be a header: what of its type is found out before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// It is here, and is one in all likelihood: everything is found out.
    Here,
    /// The caller waits for it, so its type stays: nothing is, if the type has not earned it.
    Waiting,
    /// Later: the program may free the type meanwhile, so we keep a duplicate in place of a layout.
    Later,
    /// Later, and again and again, since the request is a persistent one: everything is.
    Often,
}

/// A type without a layout, of which none is made unless a header arrives.
#[derive(Debug)]
struct Unexamined {
    datatype: Word,
    /// Whether it is a duplicate of our own.
    is_ours: bool,
}

impl Drop for Unexamined {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: a duplicate of our own.
            unsafe { pmpi::type_free(&mut self.datatype) };
        }
    }
}

/// Where a message goes that may be a header.
#[derive(Debug)]
pub struct Arrival {
    comm: Word,
    /// `None` if nothing could be found out: a header that arrives there is an error then.
    known: Option<Arc<Comm>>,
    /// `None` in the same way, or if it has not earned a layout.
    datatype: Option<Arc<Known>>,
    /// What it is then.
    unexamined: Option<Unexamined>,
    base: *mut c_void,
    count: usize,
    capacity: u64,
    /// Made in advance only where the library has to help, since the program may free the type.
    opaque: Option<View>,
}

// SAFETY: the address is the program's, which lent it until the message is complete.
unsafe impl Send for Arrival {}

impl Arrival {
    /// `None` if no header can arrive there, or only one of a message of which fewer than `least`
    /// bytes are wanted.
    #[inline]
    pub fn new(
        world: &World,
        (base, count, datatype): (*mut c_void, Option<usize>, Word),
        comm: Word,
        (least, when): (u64, When),
    ) -> Option<Arrival> {
        let count = count?;
        if let Some(bytes) = types::quick_size(datatype, count) {
            if bytes < least || !header::may_arrive(bytes) {
                return None;
            }
        }
        Arrival::make(world, (base, count, datatype), comm, (least, when))
    }

    fn make(
        world: &World,
        (base, count, datatype): (*mut c_void, usize, Word),
        comm: Word,
        (least, when): (u64, When),
    ) -> Option<Arrival> {
        let known = comm::of(world.abi, comm).ok();
        if let Some(known) = &known {
            if matches!(world.peers(known, comm), Peers::None) {
                return None;
            }
        }
        let is_examined = match when {
            When::Here | When::Often => true,
            When::Waiting | When::Later => {
                let what = Use {
                    buffer: base,
                    count,
                    datatype,
                    comm: Some(comm),
                };
                earned::by(world.abi, what)
            }
        };
        let mut kind = is_examined
            .then(|| types::of(world.abi, datatype))
            .flatten();
        let capacity = match &kind {
            Some(kind) => kind.size.checked_mul(count as u64)?,
            None if is_examined => u64::MAX,
            None => types::size(datatype, count)?,
        };
        if capacity < least || !header::may_arrive(capacity) {
            return None;
        }
        let mut unexamined = None;
        if !is_examined {
            let is_ours = when == When::Later;
            let mut own = datatype;
            // SAFETY: a datatype of the program's; a word has room for either kind of handle.
            if is_ours && unsafe { pmpi::type_dup(datatype, &mut own) } != 0 {
                kind = types::of(world.abi, datatype);
            } else {
                unexamined = Some(Unexamined {
                    datatype: own,
                    is_ours,
                });
            }
        }
        let opaque = match &kind {
            Some(kind) if kind.datatype.is_none() => {
                View::receiving(world.abi, kind, (base, count, datatype), comm)
            }
            _ => None,
        };
        Some(Arrival {
            comm,
            known,
            datatype: kind,
            unexamined,
            base,
            count,
            capacity,
            opaque,
        })
    }

    /// The communicator.
    pub fn comm(&self) -> Word {
        self.comm
    }

    /// What was received is there, as far as the library knows. If it is a header, fetches the data
    /// and returns their bytes, or an error code.
    pub fn complete(&self, world: &World, status: Status) -> Option<Result<u64, c_int>> {
        let slot = header::slot_of(status.bytes())?;
        if status.bytes() > self.capacity || status.is_cancelled() {
            return None;
        }
        self.fetch(world, slot, status.source())
    }

    /// The same, for the status of the program; returns the code.
    pub fn conclude(&self, world: &World, status: Status) -> c_int {
        match self.complete(world, status) {
            None => 0,
            Some(Ok(bytes)) => {
                status.set_bytes(bytes);
                0
            }
            Some(Err(code)) => {
                status.set_error(code);
                code
            }
        }
    }

    /// The library could not receive all that came. If that was a header, its sender gets its slot
    /// back.
    pub fn give_back(&self, world: &World) {
        if let Some(view) = self.view(world) {
            give_back_from(world, view.get(), self.capacity);
        }
    }

    #[cold]
    fn fetch(&self, world: &World, number: usize, source: c_int) -> Option<Result<u64, c_int>> {
        let senders = match &self.known {
            Some(known) => match world.peers(known, self.comm) {
                Peers::Unknown => 0..world.pids.len(),
                peers => {
                    let sender = peers.of(source)?;
                    sender..sender + 1
                }
            },
            None => 0..world.pids.len(),
        };
        let is_posted = |sender: usize| world.is_posted(sender, number);
        if !senders.clone().any(is_posted) {
            return None;
        }
        // What cannot be looked at is not passed off as the program's data.
        let Some(view) = self.view(world) else {
            return Some(unseen(world, "its elements are none that can be described"));
        };
        let view = view.get();
        let mut bytes = [0u8; header::BYTES];
        // SAFETY: so many bytes were received.
        let packed = unsafe { view.pack(0..header::BYTES as u64, bytes.as_mut_ptr()) };
        if let Err(code) = packed {
            return Some(unseen(world, &format!("packing gives error code {code}")));
        }
        let header = Header::read(&bytes, world.magic)?;
        let sender = header.sender as usize;
        if header.slot as usize != number || !senders.contains(&sender) || !is_posted(sender) {
            return None;
        }
        let slot = world.board.slot(sender, number);
        if header.sequence != slot.sequence.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.pull(world, &header, view))
    }

    fn view(&self, world: &World) -> Option<Viewed<'_>> {
        match (&self.opaque, &self.unexamined) {
            (Some(view), _) => Some(Viewed::Kept(view)),
            (None, Some(unexamined)) => {
                let known = types::of(world.abi, unexamined.datatype)?;
                let elements = (self.base, self.count, unexamined.datatype);
                let view = View::receiving(world.abi, &known, elements, self.comm)?;
                Some(Viewed::Made(view))
            }
            (None, None) => {
                let view = View::new(self.datatype.as_ref()?, self.base, self.count)?;
                Some(Viewed::Made(view))
            }
        }
    }

    fn pull(&self, world: &World, header: &Header, view: &View) -> Result<u64, c_int> {
        let sender = header.sender as usize;
        let slot = world.board.slot(sender, header.slot as usize);
        let (from, to) = (state::POSTED, state::CLAIMED);
        if slot
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            complain("a message was fetched twice");
            return Err(world.abi.error);
        }
        let over = Over { slot };
        let answer = if header.total > self.capacity {
            note(Event::Truncated, 1);
            Err(world.abi.truncate)
        } else {
            let mut pulling = Pulling {
                world,
                slot,
                header,
                view,
                pid: world.pids[sender],
                drained: 0,
                whole: Vec::new(),
                kind: kind_of(world, header, view),
                way: Way::Streamed,
            };
            let start = pulling.kind.map(|_| Instant::now());
            let moved = timed(Event::ReceiveTime, || {
                let moved = match pulling.run(sender) {
                    Err(trouble) if trouble.forbidden => pulling.run_blindly(sender),
                    Err(trouble) => Err(trouble.why),
                    Ok(()) => Ok(()),
                };
                moved.and_then(|()| pulling.unpack_whole())
            });
            if let (Some(kind), Some(start), Ok(())) = (pulling.kind, start, &moved) {
                let left = world.roads.note(kind, pulling.way, start.elapsed());
                slot.unwanted().store(left, Ordering::Relaxed);
            }
            moved.map(|()| header.total).map_err(|why| {
                let text = format!("a message of {} bytes: {why}", header.total);
                complain(&text);
                errors::failure(world.abi, &text)
            })
        };
        drop(over);
        note(Event::Received, 1);
        answer
    }
}

/// The library could not receive all that came into these elements. If that was a header, its sender
/// gets its slot back.
#[cold]
pub fn give_back(world: &World, (base, count, datatype): (*mut c_void, Option<usize>, Word)) {
    let view = || {
        let known = types::of(world.abi, datatype)?;
        let capacity = known.size.checked_mul(count? as u64)?;
        Some((View::new(&known, base, count?)?, capacity))
    };
    if let Some((view, capacity)) = view() {
        give_back_from(world, &view, capacity);
    }
}

/// What was cut off begins as it was sent. Shorter than the first words it is nobody's.
fn give_back_from(world: &World, view: &View, capacity: u64) {
    let mut bytes = [0u8; header::START];
    let len = bytes.len() as u64;
    if capacity < len {
        return;
    }
    // SAFETY: the elements have so many bytes.
    if unsafe { view.pack(0..len, bytes.as_mut_ptr()) }.is_err() {
        return;
    }
    let Some((sequence, sender, number)) = header::read_start(&bytes, world.magic) else {
        return;
    };
    if sender >= world.pids.len() || number >= header::SLOTS {
        return;
    }
    let slot = world.board.slot(sender, number);
    // The sequence says that this is the message that is under way.
    let ours = slot.to.load(Ordering::Relaxed) == world.me as u32
        && slot.sequence.load(Ordering::Relaxed) == sequence;
    let (from, to) = (state::POSTED, state::CLAIMED);
    if ours
        && slot
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    {
        note(Event::Truncated, 1);
        drop(Over { slot });
    }
}

/// Whether what was received with this status, where there was less room than for any message that is
/// intercepted, is a header. Then the message is truncated, and its sender gets its slot back.
#[cold]
pub fn cut_short(world: &World, comm: Word, status: Status) -> bool {
    let claim = || {
        if status.is_cancelled() {
            return false;
        }
        let Some(slot) = probes::is_header(world, comm, status) else {
            return false;
        };
        let (from, to) = (state::POSTED, state::CLAIMED);
        let claimed = slot
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if claimed {
            note(Event::Truncated, 1);
            drop(Over { slot });
        }
        claimed
    };
    catch_unwind(AssertUnwindSafe(claim)).unwrap_or(false)
}

/// A view that was made in advance or just now.
enum Viewed<'a> {
    Kept(&'a View),
    Made(View),
}

impl Viewed<'_> {
    fn get(&self) -> &View {
        match self {
            Viewed::Kept(view) => view,
            Viewed::Made(view) => view,
        }
    }
}

/// Something arrived that must be a header, but nobody can tell what it says.
fn unseen(world: &World, why: &str) -> Result<u64, c_int> {
    complain(&format!(
        "a message was received without its data: {why}; try LIBCOPY_MPI_MESSAGES=0"
    ));
    Err(world.abi.error)
}

/// A message that the receiver has claimed. However that ends, its sender hears that it is over.
struct Over<'a> {
    slot: &'a Slot,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.slot.split.close();
        }
        self.slot.state.store(state::DONE, Ordering::Release);
    }
}

/// Why data could not be moved.
struct Trouble {
    /// Whether this process must not read the sender's memory.
    forbidden: bool,
    why: String,
}

impl From<String> for Trouble {
    fn from(why: String) -> Trouble {
        Trouble {
            forbidden: false,
            why,
        }
    }
}

/// The sender's memory, or what of it, could not be read.
fn unread(what: &str, error: &std::io::Error) -> Trouble {
    Trouble {
        forbidden: error.raw_os_error() == Some(libc::EPERM),
        why: format!("reading the sender's {what}: {error}"),
    }
}

/// How long a receiver that must not read the sender's memory waits for a sender that has packed what is
/// left, and which may never come by again: it need not wait for this message.
const FOR_THE_REST: Duration = Duration::from_secs(60);

/// Elements of the sender's in our address space.
struct Reached {
    /// The address that the layout's offsets count from.
    origin: *const u8,
    layout: Layout,
    _attachment: Arc<Attachment>,
}

/// A message whose data are on their way.
struct Pulling<'a> {
    world: &'a World,
    slot: &'a Slot,
    header: &'a Header,
    view: &'a View,
    pid: i32,
    /// Bytes that are here.
    drained: u64,
    /// All of them, where only the library can unpack.
    whole: Vec<u8>,
    /// Where they might come out of mapped memory: what they have in common with others.
    kind: Option<Kind>,
    /// How they got here.
    way: Way,
}

/// What a message has in common with others, if such messages may come out of mapped memory, or not, as
/// is faster.
fn kind_of(world: &World, header: &Header, view: &View) -> Option<Kind> {
    let typed = header.layout_words != 0 && header.total >= ATTACH_MIN;
    let open = world.module.is_some() && world.road == Protocol::Best && typed;
    open.then(|| Kind {
        sender: header.sender as usize,
        layout: header.layout_hash,
        pieces: match view {
            View::Dense(_) => 1,
            View::Typed(prepared, _) => prepared.layout.segment_count(),
            View::Opaque(_) => 0,
        },
    })
}

impl Pulling<'_> {
    /// Bytes of the stream, which continue what is here.
    ///
    /// # Safety
    ///
    /// `from` has `n` bytes; the program's buffer has room for them.
    unsafe fn take(&mut self, from: *const u8, n: u64) -> Result<(), String> {
        let range = self.drained..self.drained + n;
        if self.view.takes_parts() {
            // SAFETY: the caller's promise.
            let unpacked = timed(Event::CopyTime, || unsafe { self.view.unpack(from, range) });
            unpacked.map_err(|code| format!("error code {code}"))?;
        } else {
            // SAFETY: the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(from, n as usize) };
            self.whole.extend_from_slice(bytes);
        }
        self.drained += n;
        Ok(())
    }

    fn unpack_whole(&mut self) -> Result<(), String> {
        if self.view.takes_parts() {
            return Ok(());
        }
        // SAFETY: the capacity was compared; all bytes are here.
        let unpacked = unsafe { self.view.unpack(self.whole.as_ptr(), 0..self.header.total) };
        unpacked.map_err(|code| format!("error code {code}"))
    }

    /// This process must not read the sender's memory (any more): has the sender put everything into a lane,
    /// from what it has put there before on, whenever it is in a call of ours. Whoever sends to us from now
    /// on leaves the message to the MPI library.
    #[cold]
    fn run_blindly(&mut self, sender: usize) -> Result<(), String> {
        let (world, slot, total) = (self.world, self.slot, self.header.total);
        world
            .board
            .lost_rights(world.me)
            .store(1, Ordering::Relaxed);
        // What was read past the lane is received again.
        self.drained = slot.drained().load(Ordering::Relaxed);
        self.whole.truncate(self.drained as usize);
        slot.split.wish.store(wish::STREAM, Ordering::Release);
        slot.blind.store(1, Ordering::Release);
        let (from, to) = (mover::RECEIVER, mover::NOBODY);
        // Packed by the sender, it stays so.
        let _ = slot
            .mover
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        let (mut pause, mut since) = (Pause::new(), Instant::now());
        while self.drained < total {
            let filled = slot.filled.load(Ordering::Acquire).min(total);
            if filled > self.drained {
                let lane = slot.lane.load(Ordering::Acquire) as usize;
                let lane = world.board.lane(sender, lane);
                let at = self.drained % LANE as u64;
                let n = (filled - self.drained).min(LANE as u64 - at).min(CHUNK);
                // SAFETY: the sender has put these bytes there and leaves them.
                unsafe { self.take(lane.wrapping_add(at as usize), n)? };
                slot.drained().store(self.drained, Ordering::Release);
                pause.reset();
                since = Instant::now();
                continue;
            }
            if pause.step() {
                attend_all(world);
            }
            if pause.should_look() {
                if !lives(self.pid) {
                    return Err("the sender has ended".to_owned());
                }
                let packed = slot.mover.load(Ordering::Relaxed) == mover::BUFFERED;
                if packed && since.elapsed() > FOR_THE_REST {
                    return Err("its sender does not hand over what it has packed".to_owned());
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, sender: usize) -> Result<(), Trouble> {
        let total = self.header.total;
        let lane = match self.slot.lane.load(Ordering::Relaxed) {
            NO_LANE => None,
            lane => Some(self.world.board.lane(sender, lane as usize)),
        };
        if self.header.layout_words == 0 && total >= SPLIT_MIN {
            if let View::Dense(base) = self.view {
                if self.claim()? {
                    return self.share(*base);
                }
            } else {
                self.slot.split.wish.store(wish::STREAM, Ordering::Release);
            }
        } else if let Some(window) = self.slot.window() {
            let wanted = self.kind.map(|kind| self.world.roads.choose(kind)) != Some(Way::Streamed);
            match wanted.then(|| self.reach(sender, window)).flatten() {
                Some(mapped) => {
                    if self.claim()? {
                        self.way = Way::Attached;
                        return self.copy(&mapped);
                    }
                }
                None => self.slot.split.wish.store(wish::STREAM, Ordering::Release),
            }
        }
        let (mut pause, mut idle_since) = (Pause::new(), None);
        let mut ours = false;
        while self.drained < total {
            // Who moves is asked before how far: what was filled before is seen then.
            let who = self.slot.mover.load(Ordering::Acquire);
            let filled = self.slot.filled.load(Ordering::Acquire).min(total);
            if let Some(lane) = lane.filter(|_| filled > self.drained) {
                let at = self.drained % LANE as u64;
                let n = (filled - self.drained).min(LANE as u64 - at).min(CHUNK);
                // SAFETY: the sender has put these bytes there and leaves them.
                unsafe { self.take(lane.wrapping_add(at as usize), n)? };
                self.slot.drained().store(self.drained, Ordering::Release);
                pause.reset();
                idle_since = None;
                continue;
            }
            if ours {
                let mut remote = self.remote()?;
                return self.fetch(&mut remote, 0);
            }
            match who {
                mover::BUFFERED => {
                    let rest = self.slot.rest.load(Ordering::Relaxed);
                    return self.fetch(&mut Remote::Dense(rest), self.drained);
                }
                mover::NOBODY => {
                    let since = *idle_since.get_or_insert_with(Instant::now);
                    if lane.is_none() || since.elapsed() > self.patience() {
                        let (from, to) = (mover::NOBODY, mover::RECEIVER);
                        ours = self
                            .slot
                            .mover
                            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
                            .is_ok();
                        continue;
                    }
                }
                _ => idle_since = None,
            }
            if pause.step() {
                attend_all(self.world);
            }
            if pause.should_look() && !lives(self.pid) {
                return Err("the sender has ended".to_owned().into());
            }
        }
        Ok(())
    }

    /// How long to wait for the sender before its memory is read: about as long as that takes, where it
    /// has as many pieces as we have. A sender that has lost its processor comes back sooner.
    fn patience(&self) -> Duration {
        let [least, most] = PATIENCE;
        let pieces = match (self.header.layout_words, self.view) {
            (0, _) => 1,
            (_, View::Typed(prepared, _)) => prepared.layout.segment_count(),
            _ => self.header.total / 64,
        };
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
        PIECE.saturating_mul(pieces).clamp(least, most)
    }

    /// The sender's elements in our address space; `None` if they cannot be mapped.
    fn reach(&self, sender: usize, window: Window) -> Option<Reached> {
        let module = self.world.module.as_ref()?;
        let attachment = timed(Event::AttachTime, || module.reach(sender, window))?;
        let layout = layout_of(self.pid, self.header).ok()?;
        let start = self.header.origin.wrapping_sub(window.base) as i64;
        let bounds = layout.bounds();
        let inside = start.checked_add(bounds.start)? >= 0
            && u64::try_from(start.checked_add(bounds.end)?).ok()? <= window.len;
        (inside && layout.size() == self.header.total && self.view.takes_parts()).then(|| Reached {
            origin: attachment.as_ptr().wrapping_offset(start as isize),
            layout,
            _attachment: attachment,
        })
    }

    /// Copies elements out of the sender's memory, from layout to layout.
    fn copy(&mut self, from: &Reached) -> Result<(), Trouble> {
        let (total, layout) = (self.header.total, &from.layout);
        note(Event::Attached, total);
        let at_once = total <= AT_ONCE || !outgoing::any();
        match self.view {
            // SAFETY: the layout lies within what is mapped; the capacity was compared.
            View::Dense(base) => timed(Event::CopyTime, || unsafe {
                layout.pack_raw(from.origin, 0..total, *base);
            }),
            View::Typed(to, target) if to.layout.size() == total && at_once => {
                // SAFETY: as above, and both have the same size.
                timed(Event::CopyTime, || unsafe {
                    layout.copy_raw(from.origin, &to.layout, *target);
                });
            }
            _ => {
                let mut scratch: Vec<u8> = Vec::with_capacity(SCRATCH);
                while self.drained < total {
                    let n = (total - self.drained).min(SCRATCH as u64);
                    let (range, to) = (self.drained..self.drained + n, scratch.as_mut_ptr());
                    // SAFETY: the scratch memory has this room; the capacity was compared.
                    unsafe {
                        timed(Event::CopyTime, || layout.pack_raw(from.origin, range, to));
                        self.take(to, n)?;
                    }
                    attend_all(self.world);
                }
            }
        }
        self.drained = total;
        Ok(())
    }

    /// Has the receiver move the data; `false` if the sender has buffered them.
    fn claim(&self) -> Result<bool, String> {
        let mut pause = Pause::new();
        loop {
            let (from, to) = (mover::NOBODY, mover::RECEIVER);
            let mover = &self.slot.mover;
            match mover.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(true),
                Err(mover::BUFFERED) => return Ok(false),
                Err(_) => {}
            }
            pause.step();
            if pause.should_look() && !lives(self.pid) {
                return Err("the sender has ended".to_owned());
            }
        }
    }

    /// Copies dense bytes together with the sender, if that comes by.
    fn share(&mut self, base: *mut u8) -> Result<(), Trouble> {
        let (split, total) = (&self.slot.split, self.header.total);
        split.failed.store(0, Ordering::Relaxed);
        split.target.store(base as u64, Ordering::Relaxed);
        split.begun.store(0, Ordering::Relaxed);
        split.moved.store(0, Ordering::Relaxed);
        split.busy.store(0, Ordering::Relaxed);
        split.wish.store(wish::SPLIT, Ordering::Release);
        let mut failed = None;
        let (origin, pid) = (self.header.origin, self.pid);
        split.help(total, End::Front, |at, len| {
            note(Event::Fetched, len);
            let to = base.wrapping_add(at as usize);
            // SAFETY: the capacity was compared.
            let read = timed(Event::CopyTime, || unsafe {
                memory::read(pid, origin + at, to, len as usize)
            });
            attend_all(self.world);
            read.map_err(|error| failed = Some(error)).is_ok()
        });
        if let Some(error) = failed {
            self.close();
            return Err(unread("memory", &error));
        }
        let mut pause = Pause::new();
        while split.moved.load(Ordering::Acquire) < total {
            if split.failed.load(Ordering::Acquire) != 0 {
                self.close();
                // SAFETY: the capacity was compared.
                let read = unsafe { memory::read(pid, origin, base, total as usize) };
                return read.map_err(|error| unread("memory", &error));
            }
            if pause.step() {
                attend_all(self.world);
            }
            if pause.should_look() && !lives(pid) {
                return Err("the sender has ended".to_owned().into());
            }
        }
        Ok(())
    }

    /// Has the sender write nothing more into our memory: it begins no part, and the one that it is
    /// copying is waited for, unless the sender has ended.
    fn close(&self) {
        let split = &self.slot.split;
        split.close();
        let mut pause = Pause::new();
        while !split.is_idle() {
            pause.step();
            if pause.should_look() && !lives(self.pid) {
                return;
            }
        }
    }

    /// What the sender has not packed, in its memory.
    fn remote(&self) -> Result<Remote, Trouble> {
        if self.header.layout_words == 0 {
            return Ok(Remote::Dense(self.header.origin));
        }
        let layout = layout_of(self.pid, self.header)?;
        if layout.size() < self.header.total {
            return Err("its layout has fewer bytes".to_owned().into());
        }
        Ok(Remote::typed(self.header.origin, &layout))
    }

    /// Reads what is missing out of the sender's memory, whose stream begins at `start` of ours.
    fn fetch(&mut self, remote: &mut Remote, start: u64) -> Result<(), Trouble> {
        let total = self.header.total;
        note(Event::Fetched, total - self.drained);
        let failed = |error: std::io::Error| unread("memory", &error);
        if let View::Dense(base) = self.view {
            let (at, len) = (self.drained as usize, (total - self.drained) as usize);
            let to = base.wrapping_add(at);
            // SAFETY: the capacity was compared.
            let read = timed(Event::CopyTime, || unsafe {
                remote.read(self.pid, self.drained - start, to, len)
            });
            read.map_err(failed)?;
            self.drained = total;
            return Ok(());
        }
        let mut scratch: Vec<u8> = Vec::with_capacity(SCRATCH);
        while self.drained < total {
            let n = (total - self.drained).min(SCRATCH as u64);
            let to = scratch.as_mut_ptr();
            // SAFETY: the scratch memory has this room; the capacity was compared.
            unsafe {
                let at = self.drained - start;
                let read = timed(Event::CopyTime, || {
                    remote.read(self.pid, at, to, n as usize)
                });
                read.map_err(failed)?;
                self.take(to, n)?;
            }
            attend_all(self.world);
        }
        Ok(())
    }
}

/// A layout of a peer's.
struct Kept {
    layout: Layout,
    words: u64,
    used: u64,
}

/// Layouts of peers, by hash.
struct Remembered {
    layouts: HashMap<[u64; 2], Kept>,
    clock: u64,
    bytes: usize,
}

/// Bytes of forms of peers' that are kept.
const MOST_BYTES: usize = 64 << 20;
/// Words that a layout may have: more is damage.
const MOST_WORDS: u64 = 1 << 32;

static REMEMBERED: LazyLock<Mutex<Remembered>> = LazyLock::new(|| {
    Mutex::new(Remembered {
        layouts: HashMap::new(),
        clock: 0,
        bytes: 0,
    })
});

/// Reads a layout out of the sender's memory.
fn read_layout(pid: i32, header: &Header) -> Result<Layout, Trouble> {
    if header.layout_words > MOST_WORDS {
        return Err(format!("a layout of {} words", header.layout_words).into());
    }
    let mut words = vec![0u64; header.layout_words as usize];
    let (to, len) = (words.as_mut_ptr().cast::<u8>(), words.len() * 8);
    // SAFETY: room for all words.
    unsafe { memory::read(pid, header.layout_at, to, len) }
        .map_err(|error| unread("layout", &error))?;
    if types::hash(&words) != header.layout_hash {
        return Err("its layout is not what it says".to_owned().into());
    }
    let form = Form::from_words(&words).map_err(|error| error.to_string())?;
    note(Event::LayoutSent, len as u64);
    Ok(Layout::from_form(form))
}

/// The sender's layout.
fn layout_of(pid: i32, header: &Header) -> Result<Layout, Trouble> {
    timed(Event::LayoutTime, || find_layout(pid, header))
}

/// The same: remembered, made of what all know of its type, or read out of its memory.
fn find_layout(pid: i32, header: &Header) -> Result<Layout, Trouble> {
    let mut known = lock(&REMEMBERED);
    known.clock += 1;
    let clock = known.clock;
    if let Some(kept) = known.layouts.get_mut(&header.layout_hash) {
        // Another layout may have the same hash.
        if kept.words == header.layout_words && kept.layout.size() == header.total {
            kept.used = clock;
            note(Event::LayoutKnown, 1);
            return Ok(kept.layout.clone());
        }
    }
    drop(known);
    let layout = match committed::layout(header) {
        Some(layout) => layout,
        None => read_layout(pid, header)?,
    };
    let mut known = lock(&REMEMBERED);
    let bytes = layout.form().memory();
    while known.bytes + bytes > MOST_BYTES {
        let oldest = known.layouts.iter().min_by_key(|(_, kept)| kept.used);
        let Some(oldest) = oldest.map(|(hash, _)| *hash) else {
            break;
        };
        if let Some(gone) = known.layouts.remove(&oldest) {
            known.bytes -= gone.layout.form().memory();
        }
    }
    known.bytes += bytes;
    let kept = Kept {
        layout: layout.clone(),
        words: header.layout_words,
        used: clock,
    };
    if let Some(before) = known.layouts.insert(header.layout_hash, kept) {
        known.bytes -= before.layout.form().memory();
    }
    Ok(layout)
}

/// Has a communicator's error handler hear of an error.
pub fn raise(comm: Word, code: c_int) -> c_int {
    // SAFETY: the communicator was in use a moment ago.
    unsafe { pmpi::comm_call_errhandler(comm, code) };
    code
}
