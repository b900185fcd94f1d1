// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages that this process receives: the data that a header stands for.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use libcopy_datatype::Layout;
use libcopy_datatype::canonical::Form;

use super::events::{Event, note, timed};
use super::header::Header;
use super::outgoing::{self, ATTACH_MIN, Endpoint, Pause};
use super::path::{DataPath, MessageClass};
use super::protocol::Protocol;
use super::registration::{RegionKey, RemotePieces};
use super::segment::{LANE, NO_LANE, SPLIT_MIN, Slot, exchange, mover, state, wish};
use super::view::{self, DeviceCopy, DeviceHandle, View};
use crate::device::Attachment;
use crate::lock::lock;
use crate::lru::LruMap;
use crate::shm::claims::End;
use crate::transport::process_memory::{self, Remote};

/// Bytes that are taken out of a lane at a time.
const CHUNK: u64 = 64 << 10;
/// Bytes that are fetched at a time where they have to be unpacked.
const SCRATCH: usize = 128 << 10;
/// Bytes that are copied at once while others may be waiting for us.
const AT_ONCE: u64 = 4 << 20;
/// How long a receiver waits for a sender that fills its lane no further, at least and at most, if
/// the message is not dense on both sides.
const PATIENCE: [Duration; 2] = [Duration::from_micros(300), Duration::from_millis(10)];
/// What the kernel takes to copy anything out of the sender's memory, at least.
const SHORTEST_READ: Duration = Duration::from_micros(1);
/// Dense bytes that the kernel copies out of the sender's memory in a nanosecond.
const DENSE_PACE: u64 = 20;
/// What the kernel takes for a piece that it copies out of the sender's memory.
const PIECE: Duration = Duration::from_nanos(100);
/// What the module takes for a piece that it copies out of memory that is published or lent.
const PUBLISHED_PIECE: Duration = Duration::from_nanos(10);

/// Why a message was not received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// It has more bytes than there is room for.
    Truncated,
    /// Somebody has received it before.
    Claimed,
    /// Its data could not be moved.
    Failed(String),
}

/// Says that this process receives the message of a slot; whether nobody has before.
fn claim(slot: &Slot) -> bool {
    exchange(&slot.state, state::POSTED, state::CLAIMED).is_ok()
}

/// Gives the slot of a message that is too long back to its sender; whether nobody has received it.
pub fn reject(slot: &Slot) -> bool {
    let claimed = claim(slot);
    if claimed {
        note(Event::Truncated, 1);
        drop(Over { slot });
    }
    claimed
}

impl Endpoint {
    /// Receives the data of a message: all of them, into elements that have room for `capacity`
    /// bytes. Returns how many bytes it has.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`] says which. In any case its sender hears that it is over.
    ///
    /// # Safety
    ///
    /// The header came from its sender as that wrote it. The elements of the view have `capacity`
    /// bytes, writable, which nobody else uses until this returns.
    pub unsafe fn receive(
        &self,
        header: &Header,
        view: &View,
        capacity: u64,
    ) -> Result<u64, ReceiveError> {
        // SAFETY: the caller's promise; what is copied is over before this returns.
        match unsafe { self.begin(header, view, capacity) }? {
            Arriving::Here(bytes) => Ok(bytes),
            Arriving::Copied(mut copying) => self.attend_until(|| copying.advance()),
        }
    }

    /// Receives the data of a message without waiting for a device that copies it.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::receive`].
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::receive`], until the result is dropped; one that is forgotten never is.
    pub unsafe fn begin(
        &self,
        header: &Header,
        view: &View,
        capacity: u64,
    ) -> Result<Arriving<'_>, ReceiveError> {
        let here = self.home.check("this endpoint");
        here.map_err(|error| ReceiveError::Failed(error.to_string()))?;
        let sender = header.sender as usize;
        let slot = self.segment.slot(sender, header.slot as usize);
        if !claim(slot) {
            return Err(ReceiveError::Claimed);
        }
        let over = Over { slot };
        note(Event::Received, 1);
        if header.total > capacity {
            note(Event::Truncated, 1);
            return Err(ReceiveError::Truncated);
        }
        let device = slot.device();
        if let Some(handle) = &device {
            let begun = self.begin_on_device(slot, header, view, handle);
            if let Some(copy) = begun.map_err(ReceiveError::Failed)? {
                return Ok(Arriving::Copied(Copying {
                    copy,
                    over: Some(over),
                    total: header.total,
                }));
            }
        }
        let moved = self.move_data(slot, header, view, header.total, device.is_some());
        moved.map(|()| Arriving::Here(header.total))
    }

    /// Receives the first `len` bytes of a message that is longer than its receive, into elements
    /// that have room for these.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::receive`]. In any case its sender hears that it is over.
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::receive`], with `len` for the capacity.
    pub unsafe fn receive_start(
        &self,
        header: &Header,
        view: &View,
        len: u64,
    ) -> Result<(), ReceiveError> {
        let here = self.home.check("this endpoint");
        here.map_err(|error| ReceiveError::Failed(error.to_string()))?;
        let slot = self
            .segment
            .slot(header.sender as usize, header.slot as usize);
        if !claim(slot) {
            return Err(ReceiveError::Claimed);
        }
        let _over = Over { slot };
        note(Event::Truncated, 1);
        let len = len.min(header.total);
        if len == 0 {
            return Ok(());
        }
        let is_on_device = slot.device().is_some();
        if is_on_device {
            slot.split.wish.store(wish::PACKED, Ordering::Release);
        }
        self.move_data(slot, header, view, len, is_on_device)
    }

    /// Has a device begin to copy a message out of its sender's device memory; `None` if the sender
    /// packs it.
    #[cold]
    fn begin_on_device(
        &self,
        slot: &Slot,
        header: &Header,
        view: &View,
        handle: &DeviceHandle,
    ) -> Result<Option<Box<dyn DeviceCopy>>, String> {
        let layout = match header.layout_words {
            0 => None,
            // One that cannot be read is no use, but the sender has it.
            _ => layout_of(self, header).ok(),
        };
        let reached = if header.layout_words != 0 && layout.is_none() {
            None
        } else {
            self.reach(header, handle, layout.as_ref(), view)
        };
        let Some(mut copy) = reached else {
            slot.split.wish.store(wish::PACKED, Ordering::Release);
            return Ok(None);
        };
        if !self.claim_mover(slot, header.sender as usize)? {
            return Ok(None);
        }
        copy.start()?;
        Ok(Some(copy))
    }

    /// Has the receiver move the data; `false` if the sender has buffered them, or could not.
    fn claim_mover(&self, slot: &Slot, sender: usize) -> Result<bool, String> {
        let mut pause = Pause::new();
        loop {
            match exchange(&slot.mover, mover::NOBODY, mover::RECEIVER) {
                Ok(()) => return Ok(true),
                Err(mover::BUFFERED | mover::FAILED) => return Ok(false),
                Err(_) => {}
            }
            pause.step();
            if pause.should_look() && !self.lives(sender) {
                return Err("the sender has ended".to_owned());
            }
        }
    }

    /// Reads the first `wanted` bytes; if they are in device memory of the sender's, what that
    /// packs.
    fn move_data(
        &self,
        slot: &Slot,
        header: &Header,
        view: &View,
        wanted: u64,
        is_on_device: bool,
    ) -> Result<(), ReceiveError> {
        let sender = header.sender as usize;
        let mut transfer = ReceiveTransfer {
            endpoint: self,
            slot,
            header,
            view,
            sender,
            pid: self.pids[sender],
            wanted,
            drained: 0,
            whole: Vec::new(),
            class: class_of(self, header, view).filter(|_| !is_on_device && wanted == header.total),
            path: DataPath::Pipelined,
        };
        let start = transfer.class.map(|_| Instant::now());
        let moved = timed(Event::ReceiveTime, || {
            let moved = if slot.blind.load(Ordering::Relaxed) != 0 {
                transfer.run_blindly(false)
            } else {
                let run = if is_on_device {
                    transfer.run_packed()
                } else {
                    transfer.run()
                };
                match run {
                    Err(Trouble::Unread { for_good }) => transfer.run_blindly(for_good),
                    Err(Trouble::Failed(why)) => Err(why),
                    Ok(()) => Ok(()),
                }
            };
            moved.and_then(|()| transfer.unpack_whole())
        });
        if let (Some(class), Some(start), Ok(())) = (transfer.class, start, &moved) {
            let left = self.paths.note(class, transfer.path, start.elapsed());
            slot.unwanted().store(left, Ordering::Relaxed);
        }
        moved.map_err(ReceiveError::Failed)
    }
}

/// A message that a process has begun to receive.
pub enum Arriving<'a> {
    /// It is here: its bytes.
    Here(u64),
    /// A device copies it.
    Copied(Copying<'a>),
}

/// A message that a device copies out of its sender's device memory. Dropping it before it is here
/// tells its sender that it is over, when nothing is copied any more.
pub struct Copying<'a> {
    /// Before `over`: dropping it waits.
    copy: Box<dyn DeviceCopy>,
    over: Option<Over<'a>>,
    total: u64,
}

impl Copying<'_> {
    /// Goes on; once it is here, how many bytes it has, or why it is not.
    pub fn advance(&mut self) -> Option<Result<u64, ReceiveError>> {
        let result = match self.copy.is_done() {
            Ok(false) => return None,
            Ok(true) => Ok(self.total),
            Err(why) => Err(ReceiveError::Failed(why)),
        };
        if self.over.take().is_some() && result.is_ok() {
            note(Event::Peer, self.total);
        }
        Some(result)
    }
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
enum Trouble {
    /// The kernel does not read the sender's memory for us, or we have no room for what it would
    /// read: no memory at all from now on (`for_good`), or not this.
    Unread { for_good: bool },
    /// Nobody can.
    Failed(String),
}

impl From<String> for Trouble {
    fn from(why: String) -> Trouble {
        Trouble::Failed(why)
    }
}

/// The sender's memory could not be read, whatever the kernel says why: the sender hands it over,
/// where its own accesses show whether there is any.
fn unread(error: &std::io::Error) -> Trouble {
    Trouble::Unread {
        for_good: process_memory::is_for_good(error),
    }
}

/// What a receiver says of a message that its sender could not pack.
const UNPACKED: &str = "the sender could not pack its elements in device memory";

/// Elements of the sender's in our address space.
struct Reached {
    /// The address that the layout's offsets count from.
    origin: *const u8,
    layout: Layout,
    _attachment: Arc<Attachment>,
}

/// A message in the sender's memory, however that is read.
struct Source<'a> {
    /// Where the module can copy it.
    pieces: Option<RemotePieces<'a>>,
    process: Remote,
}

impl Source<'_> {
    fn process(process: Remote) -> Self {
        Source {
            pieces: None,
            process,
        }
    }

    /// Reads the bytes of the message from `position` on.
    ///
    /// # Safety
    ///
    /// `to` is writable for `len` bytes, which the message has.
    unsafe fn read(
        &mut self,
        pid: i32,
        position: u64,
        to: *mut u8,
        len: usize,
    ) -> std::io::Result<()> {
        if let Some(pieces) = &mut self.pieces {
            // SAFETY: the caller's promise.
            if unsafe { pieces.read(position, to, len) }.is_ok() {
                note(Event::Vectored, len as u64);
                return Ok(());
            }
            // The memory is not what was published any more, or only in part: Linux knows better.
            self.pieces = None;
        }
        // SAFETY: the caller's promise.
        unsafe { self.process.read(pid, position, to, len) }
    }
}

/// A message whose data are on their way.
struct ReceiveTransfer<'a> {
    endpoint: &'a Endpoint,
    slot: &'a Slot,
    header: &'a Header,
    view: &'a View,
    sender: usize,
    pid: i32,
    /// Bytes that are received: all, but of a message that is longer than its receive.
    wanted: u64,
    /// Bytes that are here.
    drained: u64,
    /// All of them, where only the library can unpack.
    whole: Vec<u8>,
    /// Where they might come out of mapped memory: what they have in common with others.
    class: Option<MessageClass>,
    /// How they got here.
    path: DataPath,
}

/// What a message has in common with others, if such messages may come out of mapped memory, or
/// not, as is faster.
fn class_of(endpoint: &Endpoint, header: &Header, view: &View) -> Option<MessageClass> {
    let typed = header.layout_words != 0 && header.total >= ATTACH_MIN;
    let open = endpoint.registration.is_some() && endpoint.protocol == Protocol::Best && typed;
    open.then(|| MessageClass {
        sender: header.sender as usize,
        layout: header.layout_hash,
        pieces: match view {
            View::Dense(_) => 1,
            View::Typed(prepared, _) => prepared.layout.segment_count(),
            View::Opaque(_) => 0,
        },
    })
}

impl<'a> ReceiveTransfer<'a> {
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
            let room = self.whole.try_reserve(bytes.len());
            room.map_err(|error| format!("room for the whole message: {error}"))?;
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
        let unpacked = unsafe { self.view.unpack(self.whole.as_ptr(), 0..self.wanted) };
        unpacked.map_err(|code| format!("error code {code}"))
    }

    /// This process cannot read the sender's memory: has the sender put everything into a lane,
    /// from what it has put there before on, whenever it is in a call of ours. If that is
    /// `for_good`, a process that sends to us from now on leaves the message to the MPI library.
    #[cold]
    fn run_blindly(&mut self, for_good: bool) -> Result<(), String> {
        let (endpoint, slot, total) = (self.endpoint, self.slot, self.wanted);
        if for_good {
            let lost = endpoint.segment.lost_rights(endpoint.me);
            lost.store(1, Ordering::Relaxed);
        }
        // What was read past the lane is received again.
        self.drained = slot.drained().load(Ordering::Relaxed);
        self.whole.truncate(self.drained as usize);
        slot.split.wish.store(wish::STREAM, Ordering::Release);
        slot.blind.store(1, Ordering::Release);
        // Packed by the sender, it stays so.
        let _ = exchange(&slot.mover, mover::RECEIVER, mover::NOBODY);
        let mut pause = Pause::new();
        while self.drained < total {
            let filled = slot.filled.load(Ordering::Acquire).min(total);
            if filled > self.drained {
                let lane = slot.lane.load(Ordering::Acquire) as usize;
                let lane = endpoint.segment.lane(self.sender, lane);
                let at = self.drained % LANE as u64;
                let n = (filled - self.drained).min(LANE as u64 - at).min(CHUNK);
                // SAFETY: the sender has put these bytes there and leaves them.
                unsafe { self.take(lane.wrapping_add(at as usize), n)? };
                slot.drained().store(self.drained, Ordering::Release);
                pause.reset();
                continue;
            }
            if pause.step() {
                endpoint.attend_all();
            }
            if pause.should_look() {
                if !self.endpoint.lives(self.sender) {
                    return Err("the sender has ended".to_owned());
                }
                if slot.mover.load(Ordering::Relaxed) == mover::FAILED {
                    return Err(UNPACKED.to_owned());
                }
            }
        }
        Ok(())
    }

    /// The message is in device memory of the sender's, which packs it: reads that.
    #[cold]
    fn run_packed(&mut self) -> Result<(), Trouble> {
        let mut pause = Pause::new();
        loop {
            match self.slot.mover.load(Ordering::Acquire) {
                mover::BUFFERED => {
                    let rest = self.slot.rest.load(Ordering::Relaxed);
                    let mut source = Source::process(Remote::Dense(rest));
                    return self.fetch(&mut source, 0);
                }
                mover::FAILED => return Err(UNPACKED.to_owned().into()),
                _ => {}
            }
            if pause.step() {
                self.endpoint.attend_all();
            }
            if pause.should_look() && !self.endpoint.lives(self.sender) {
                return Err("the sender has ended".to_owned().into());
            }
        }
    }

    fn run(&mut self) -> Result<(), Trouble> {
        let total = self.wanted;
        let lane = match self.slot.lane.load(Ordering::Relaxed) {
            NO_LANE => None,
            lane => Some(self.endpoint.segment.lane(self.sender, lane as usize)),
        };
        if total < self.header.total {
            // The sender would copy more than there is room for, and a part is not worth mapping.
        } else if self.header.layout_words == 0 && total >= SPLIT_MIN {
            if let View::Dense(base) = self.view {
                if self.claim()? {
                    return self.share(*base);
                }
            } else {
                self.slot.split.wish.store(wish::STREAM, Ordering::Release);
            }
        } else if let Some(window) = self.window().filter(RegionKey::is_mappable) {
            let wanted = self.class.map(|class| self.endpoint.paths.choose(class))
                != Some(DataPath::Pipelined);
            match wanted.then(|| self.reach(window)).flatten() {
                Some(mapped) => {
                    if self.claim()? {
                        self.path = DataPath::Mapped;
                        return self.copy(&mapped);
                    }
                }
                None => self.slot.split.wish.store(wish::STREAM, Ordering::Release),
            }
        }
        let (mut pause, mut idle_since) = (Pause::new(), None);
        let mut ours = false;
        let mut begun = None;
        while self.drained < total {
            // Who moves is asked before how far: what was filled before is seen then.
            let who = self.slot.mover.load(Ordering::Acquire);
            let filled = self.slot.filled.load(Ordering::Acquire).min(total);
            if let Some(lane) = lane.filter(|_| filled > self.drained) {
                if begun.is_none() && total == self.header.total && self.slot.is_timed() {
                    begun = Some(Instant::now());
                }
                let at = self.drained % LANE as u64;
                let n = (filled - self.drained).min(LANE as u64 - at).min(CHUNK);
                // SAFETY: the sender has put these bytes there and leaves them.
                unsafe { self.take(lane.wrapping_add(at as usize), n)? };
                // The sender of a message that fits need not know where there is room. Lanes of
                // ours that others are emptying are filled again meanwhile.
                if self.header.total > LANE as u64 {
                    self.slot.drained().store(self.drained, Ordering::Release);
                    self.endpoint.attend_streams();
                }
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
                    let mut source = Source::process(Remote::Dense(rest));
                    return self.fetch(&mut source, self.drained);
                }
                mover::NOBODY => {
                    let since = *idle_since.get_or_insert_with(Instant::now);
                    if lane.is_none() || since.elapsed() > self.patience() {
                        let (from, to) = (mover::NOBODY, mover::RECEIVER);
                        ours = exchange(&self.slot.mover, from, to).is_ok();
                        continue;
                    }
                }
                _ => idle_since = None,
            }
            if pause.step() {
                self.endpoint.attend_all();
            }
            if pause.should_look() && !self.endpoint.lives(self.sender) {
                return Err("the sender has ended".to_owned().into());
            }
        }
        if let Some(begun) = begun {
            let nanos = u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX);
            self.slot.nanos().store(nanos.max(1), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Where the sender's memory is published, if that can be used here.
    fn window(&self) -> Option<RegionKey> {
        self.endpoint.registration.as_ref()?;
        self.slot.window()
    }

    /// How long to wait for the sender before its memory is read: about as long as that takes,
    /// where it has as many pieces as we have. A sender that has lost its processor comes back
    /// sooner, but for dense bytes it takes no longer to read them.
    fn patience(&self) -> Duration {
        if let (0, View::Dense(_)) = (self.header.layout_words, self.view) {
            let reading = Duration::from_nanos((self.wanted - self.drained) / DENSE_PACE);
            return reading.max(SHORTEST_READ);
        }
        let [least, most] = PATIENCE;
        let pieces = match (self.header.layout_words, self.view) {
            (0, _) => 1,
            (_, View::Typed(prepared, _)) => prepared.layout.segment_count(),
            _ => self.header.total / 64,
        };
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
        let piece = match (self.slot.window(), &self.endpoint.registration) {
            (Some(_), Some(_)) => PUBLISHED_PIECE,
            _ => PIECE,
        };
        piece.saturating_mul(pieces).clamp(least, most)
    }

    /// The sender's elements in our address space; `None` if they cannot be mapped.
    fn reach(&self, window: RegionKey) -> Option<Reached> {
        let module = self.endpoint.registration.as_ref()?;
        let attachment = timed(Event::MapTime, || module.reach(self.sender, window))?;
        let layout = layout_of(self.endpoint, self.header).ok()?;
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
        note(Event::Mapped, total);
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
                    self.endpoint.attend_all();
                }
            }
        }
        self.drained = total;
        Ok(())
    }

    /// [`Endpoint::claim_mover`]
    fn claim(&self) -> Result<bool, String> {
        self.endpoint.claim_mover(self.slot, self.sender)
    }

    /// Copies dense bytes together with the sender, if that comes by.
    fn share(&mut self, base: *mut u8) -> Result<(), Trouble> {
        let (split, total) = (&self.slot.split, self.header.total);
        let (segment, sender) = (&self.endpoint.segment, self.sender);
        split.open(base as u64);
        let mut failed = None;
        let (origin, pid) = (self.header.origin, self.pid);
        let receiving = segment.note_receiving(self.endpoint.me);
        while split.help(
            total,
            End::Front,
            segment.is_receiving(sender),
            |at, len| {
                note(Event::Get, len);
                let to = base.wrapping_add(at as usize);
                // SAFETY: the capacity was compared.
                let read = timed(Event::CopyTime, || unsafe {
                    process_memory::read(pid, origin + at, to, len as usize)
                });
                read.map_err(|error| failed = Some(error)).is_ok()
            },
        ) {
            self.endpoint.attend_streams();
        }
        drop(receiving);
        if let Some(error) = failed {
            self.close();
            return Err(unread(&error));
        }
        let mut pause = Pause::new();
        while split.moved.load(Ordering::Acquire) < total {
            if split.failed.load(Ordering::Acquire) != 0 {
                self.close();
                // SAFETY: the capacity was compared.
                let read = unsafe { process_memory::read(pid, origin, base, total as usize) };
                return read.map_err(|error| unread(&error));
            }
            if pause.step() {
                self.endpoint.attend_all();
            }
            if pause.should_look() && !self.endpoint.lives(self.sender) {
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
            if pause.should_look() && !self.endpoint.lives(self.sender) {
                return;
            }
        }
    }

    /// What the sender has not packed, in its memory.
    fn remote(&self) -> Result<Source<'a>, Trouble> {
        if self.header.layout_words == 0 {
            return Ok(Source::process(Remote::Dense(self.header.origin)));
        }
        let layout = layout_of(self.endpoint, self.header)?;
        if layout.size() < self.header.total {
            return Err("its layout has fewer bytes".to_owned().into());
        }
        let origin = self.header.origin;
        let endpoint: &'a Endpoint = self.endpoint;
        let pieces = match (&endpoint.registration, self.slot.window()) {
            (Some(registration), Some(key)) => registration.pieces(key, origin, &layout),
            _ => None,
        };
        Ok(Source {
            pieces,
            process: Remote::typed(origin, &layout),
        })
    }

    /// Reads what is missing out of the sender's memory, whose stream begins at `start` of ours.
    fn fetch(&mut self, remote: &mut Source<'_>, start: u64) -> Result<(), Trouble> {
        let total = self.wanted;
        note(Event::Get, total - self.drained);
        let failed = |error: std::io::Error| unread(&error);
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
            self.endpoint.attend_all();
        }
        Ok(())
    }
}

/// Bytes of forms of peers' that are kept.
const MOST_BYTES: usize = 64 << 20;
/// Words of a layout that there is room for before they are read: a sender that says more has to
/// have them.
const ROOM_WORDS: usize = 1 << 17;

/// Layouts of peers by hash, with the number of words that describe one.
type Remembered = LruMap<[u64; 2], (Layout, u64)>;

static REMEMBERED: LazyLock<Mutex<Remembered>> = LazyLock::new(Mutex::default);

/// Reads a layout out of the sender's memory.
fn read_layout(pid: i32, header: &Header) -> Result<Layout, Trouble> {
    // Without room for it the sender packs: it has the layout.
    let no_room = |_| Trouble::Unread { for_good: false };
    let all = usize::try_from(header.layout_words).unwrap_or(usize::MAX);
    let mut words: Vec<u64> = Vec::new();
    while words.len() < all {
        let (at, n) = (words.len(), ROOM_WORDS.min(all - words.len()));
        words.try_reserve(n).map_err(no_room)?;
        words.resize(at + n, 0);
        let from = header.layout_at.wrapping_add(8 * at as u64);
        let to = words[at..].as_mut_ptr().cast::<u8>();
        // SAFETY: room for `n` words.
        unsafe { process_memory::read(pid, from, to, 8 * n) }.map_err(|error| unread(&error))?;
    }
    if view::hash(&words) != header.layout_hash {
        return Err("its layout is not what it says".to_owned().into());
    }
    let form = Form::from_words(&words).map_err(|error| error.to_string())?;
    note(Event::LayoutSent, 8 * words.len() as u64);
    Ok(Layout::from_form(form))
}

/// The sender's layout.
fn layout_of(endpoint: &Endpoint, header: &Header) -> Result<Layout, Trouble> {
    timed(Event::LayoutTime, || find_layout(endpoint, header))
}

/// The same: remembered, made of what all know of its type, or read out of its memory.
fn find_layout(endpoint: &Endpoint, header: &Header) -> Result<Layout, Trouble> {
    if let Some((layout, words)) = lock(&REMEMBERED).get(&header.layout_hash) {
        // Another layout may have the same hash.
        if *words == header.layout_words && layout.size() == header.total {
            note(Event::LayoutKnown, 1);
            return Ok(layout.clone());
        }
    }
    let layout = match endpoint.known_layout(header) {
        Some(layout) => layout,
        None => read_layout(endpoint.pids[header.sender as usize], header)?,
    };
    let (bytes, kept) = (
        layout.form().memory(),
        (layout.clone(), header.layout_words),
    );
    lock(&REMEMBERED).insert(header.layout_hash, kept, bytes, (usize::MAX, MOST_BYTES));
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_that_is_not_there_is_left_to_its_sender() {
        let pid = std::process::id() as i32;
        let words = [0u64; 8];
        let mut header = Header {
            magic: [0; 2],
            sequence: 1,
            sender: 0,
            slot: 0,
            total: 1,
            origin: 0,
            layout_words: 0,
            layout_at: 0,
            layout_hash: [0; 2],
            committed: 0,
        };
        let here = words.as_ptr() as u64;
        for (at, len) in [(here, 1 << 60), (8, 1 << 32), (0, u64::MAX)] {
            (header.layout_at, header.layout_words) = (at, len);
            let read = read_layout(pid, &header);
            assert!(matches!(read, Err(Trouble::Unread { for_good: false })));
        }
    }
}
