// SPDX-License-Identifier: MIT OR Apache-2.0

//! Typed messages between two processes: RTS, CTS, the bytes by the chosen method, FIN.
//!
//! A [`Link`] is the way to one peer. Sends and receives are started, and [`Link::progress`] moves
//! them on without ever waiting for the peer; any number may be under way, in both directions.
//! Which message goes where is either the order in which both ends name their messages, or the
//! caller's to match: then it carries the RTS itself.
//!
//! ```text
//! sender                          receiver
//!   RTS    pieces, abilities  -->
//!                             <--  CTS      where the bytes go: keys, lists or a staging buffer
//!                             <--  REFUSED  no room: both ends have an error
//!   MISSING  which keys?      -->           the CTS comes again, with keys
//!   WRITEs or SENDs           ==>
//!   FIN    done, or not so    -->           not so: a CTS for packing comes
//! ```
//!
//! Every field that comes from the peer is checked. A message that no correct peer sends, a request
//! that fails and a channel that is closed end the link: its connection is closed, so that the peer
//! can write nothing any more, what transfers have held is given back, and each has the error.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use libcopy_datatype::Layout;

use crate::channel::receive;
pub use crate::channel::{Channel, StreamChannel};
use crate::choice::{Method, Thresholds};
use crate::cut::CutRule;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::gather::{Arrival, Buffer, lengths};
use crate::iov::{Elements, Shape};
use crate::keys::{KeyCounts, Keys, Memory};
use crate::message::Control;
use crate::pool::{PoolCounts, PoolSize};
use crate::receiving::Receiving;
pub use crate::report::Report;
use crate::sending::{Sending, Step};
use crate::verbs::{Address, Connection, Device, Options, shared_keys};
use crate::wire::Wire;

/// How messages are moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// From where on which method.
    pub thresholds: Thresholds,
    /// Which cuts.
    pub rule: CutRule,
    /// One method for all messages that it can move.
    pub only: Option<Method>,
    /// Memory keys.
    pub pool: PoolSize,
    /// The connection; none for what the device allows.
    pub options: Option<Options>,
}

/// Names a transfer of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(u64);

/// A receive that no RTS has come for.
#[derive(Debug)]
struct Expected {
    id: TransferId,
    elements: Elements,
    memory: Memory,
}

/// An RTS that no receive was started for.
#[derive(Debug)]
struct Announced {
    number: u32,
    arrival: Arrival,
}

/// The way to one peer.
#[derive(Debug)]
pub struct Link<C: Channel, E: Endpoint = Connection> {
    wire: Wire<C, E>,
    /// By this end's number of the transfer.
    sends: HashMap<u32, (TransferId, Sending<E>)>,
    next_number: u32,
    /// By the peer's number of the transfer, and the numbers by transfer.
    receives: HashMap<TransferId, Receiving<E>>,
    numbers: HashMap<u32, TransferId>,
    expected: VecDeque<Expected>,
    announced: VecDeque<Announced>,
    next_id: u64,
    finished: HashMap<TransferId, Result<Report>>,
    /// Why the link has ended.
    failure: Option<Error>,
}

/// RTS messages without a receive that a peer may have sent.
const MAX_ANNOUNCED: usize = 1 << 20;

impl<S: Read + Write + AsFd> Link<StreamChannel<S>> {
    /// Connects to `rank`, which does the same at the other end of the stream; waits for it. The
    /// link has memory keys of its own.
    ///
    /// # Errors
    ///
    /// A device without resources, no way between the devices, a peer that is gone.
    pub fn new(
        device: &Arc<Device>,
        channel: StreamChannel<S>,
        rank: u32,
        settings: Settings,
    ) -> Result<Self> {
        let keys = shared_keys(device, settings.pool);
        Link::connect(device, channel, rank, settings, keys)
    }
}

impl<C: Channel> Link<C> {
    /// Connects to `rank`, which does the same at the other end of the channel; waits for it. Links
    /// of a process may share `keys`, those of their device ([`shared_keys`]).
    ///
    /// # Errors
    ///
    /// A device without resources, no way between the devices, a peer that is gone.
    pub fn connect(
        device: &Arc<Device>,
        mut channel: C,
        rank: u32,
        settings: Settings,
        keys: Option<Arc<Mutex<Keys<Connection>>>>,
    ) -> Result<Link<C>> {
        let options = settings.options.unwrap_or_else(|| Options::of(device));
        let connection = Arc::new(Connection::new(device, options)?);
        channel.send(&connection.address().to_bytes())?;
        let theirs = receive(&mut channel)?;
        let theirs = theirs
            .as_slice()
            .try_into()
            .map_err(|_| Error::corrupt(rank, "bytes of an address", theirs.len() as u64))?;
        connection.connect(&Address::from_bytes(theirs))?;
        // Nobody sends before both ends can receive.
        channel.send(&[])?;
        receive(&mut channel)?;
        let keys = keys.filter(|_| options.maps_keys);
        Ok(Link::over(connection, channel, rank, &settings, keys))
    }

    /// The connection.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.wire.endpoint
    }
}

impl<C: Channel, E: Endpoint> Drop for Link<C, E> {
    fn drop(&mut self) {
        self.fail(&Error::PeerGone {
            rank: self.wire.rank,
            reason: "the link was dropped".to_owned(),
        });
    }
}

impl<C: Channel, E: Endpoint> Link<C, E> {
    /// A link over a connection that exists, and to `rank` as its peer's does.
    pub fn over(
        endpoint: Arc<E>,
        channel: C,
        rank: u32,
        settings: &Settings,
        keys: Option<Arc<Mutex<Keys<E>>>>,
    ) -> Link<C, E> {
        let mut wire = Wire::new(rank, channel, endpoint, keys);
        wire.thresholds = settings.thresholds;
        wire.rule = settings.rule;
        wire.only = settings.only;
        Link {
            wire,
            sends: HashMap::new(),
            next_number: 0,
            receives: HashMap::new(),
            numbers: HashMap::new(),
            expected: VecDeque::new(),
            announced: VecDeque::new(),
            next_id: 0,
            finished: HashMap::new(),
            failure: None,
        }
    }

    /// Whether a message of a layout may go another way than packed, as far as this end knows:
    /// whether it is of use to know the generation of its memory.
    pub fn may_go_unpacked(&self, layout: &Layout) -> bool {
        let (wire, shape) = (&self.wire, Shape::of(layout));
        let choose = || {
            let both = wire.abilities;
            wire.thresholds.choose(&shape, &shape, &both, wire.rule)
        };
        let method = wire.only.unwrap_or_else(|| choose().method);
        method != Method::Pack
    }

    /// The memory of a generation ([`Memory::Generation`]) was unmapped or replaced, or nobody
    /// watches it any more: what this link keeps of it for later messages is given back, and the
    /// keys that it shares with other links. Without this call they are given back when their place
    /// is needed.
    ///
    /// # Errors
    ///
    /// As for [`Link::progress`].
    pub fn expire(&mut self, generation: u64) -> Result<()> {
        self.alive()?;
        let expired = self.wire.expire(generation);
        expired.inspect_err(|error| self.fail(error))
    }

    /// What was done with memory keys, by all links that share them.
    pub fn key_counts(&self) -> KeyCounts {
        let keys = self.wire.keys();
        keys.map_or_else(KeyCounts::default, |keys| keys.counts())
    }

    /// What the pool of keys has done.
    pub fn pool_counts(&self) -> PoolCounts {
        let keys = self.wire.keys();
        keys.map_or_else(PoolCounts::default, |keys| keys.pool().counts())
    }

    /// Transfers that were started and have not ended.
    pub fn under_way(&self) -> usize {
        self.sends.len() + self.receives.len() + self.expected.len()
    }

    fn alive(&self) -> Result<()> {
        match &self.failure {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn new_id(&mut self) -> TransferId {
        self.next_id += 1;
        TransferId(self.next_id)
    }

    /// Starts to send the elements of a buffer to the receive that the peer starts next.
    ///
    /// # Errors
    ///
    /// That of the link, if it has ended.
    ///
    /// # Safety
    ///
    /// The buffer's memory is readable and does not change until [`Link::test`] or [`Link::wait`]
    /// has given the result or the link was dropped.
    pub unsafe fn start_send(&mut self, from: &Buffer<'_>) -> Result<TransferId> {
        // SAFETY: the caller's promise is the same.
        let (id, rts) = unsafe { self.start_matched_send(from)? };
        let told = self.wire.send(rts);
        told.inspect_err(|error| self.fail(error))?;
        Ok(id)
    }

    /// Starts to send to a receive that the caller finds: gives the RTS that
    /// [`Link::start_matched_receive`] is to have at the peer. It has at most
    /// [`MAX_RTS`](crate::message::MAX_RTS) bytes under [`CutRule::Agreed`].
    ///
    /// # Errors
    ///
    /// As for [`Link::start_send`].
    ///
    /// # Safety
    ///
    /// As for [`Link::start_send`].
    pub unsafe fn start_matched_send(
        &mut self,
        from: &Buffer<'_>,
    ) -> Result<(TransferId, Vec<u8>)> {
        self.alive()?;
        let elements = Elements::new(from.layout, from.base);
        // A layout outside the address space is known before the peer waits.
        elements.check()?;
        while self.sends.contains_key(&self.next_number) {
            self.next_number = self.next_number.wrapping_add(1);
        }
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        let lengths = lengths(&elements, self.wire.rule);
        let sending = Sending::new(elements, from.memory);
        let rts = Control::Rts {
            number,
            shape: sending.shape,
            abilities: self.wire.abilities,
            lengths,
        };
        let rts = rts.to_bytes()?;
        let id = self.new_id();
        self.sends.insert(number, (id, sending));
        Ok((id, rts))
    }

    /// Starts to receive the message that the peer sends next, which may be shorter than the
    /// buffer's layout.
    ///
    /// # Errors
    ///
    /// As for [`Link::start_send`].
    ///
    /// # Safety
    ///
    /// The buffer's memory is writable, and nobody else uses it, until [`Link::test`] or
    /// [`Link::wait`] has given the result or the link was dropped.
    pub unsafe fn start_receive(&mut self, to: &Buffer<'_>) -> Result<TransferId> {
        let expected = self.expect(to)?;
        let id = expected.id;
        match self.announced.pop_front() {
            Some(announced) => {
                let begun = self.begin(expected, announced);
                begun.inspect_err(|error| self.fail(error))?;
            }
            None => self.expected.push_back(expected),
        }
        Ok(id)
    }

    /// Starts to receive the message of an RTS that [`Link::start_matched_send`] has given at the
    /// peer.
    ///
    /// # Errors
    ///
    /// As for [`Link::start_send`]; [`Error::Corrupt`] for bytes that are no RTS of this link,
    /// which ends it.
    ///
    /// # Safety
    ///
    /// As for [`Link::start_receive`].
    pub unsafe fn start_matched_receive(
        &mut self,
        to: &Buffer<'_>,
        rts: &[u8],
    ) -> Result<TransferId> {
        let expected = self.expect(to)?;
        let id = expected.id;
        let begun = Control::from_bytes(rts, self.wire.rank)
            .and_then(|rts| self.announced(rts))
            .and_then(|announced| self.begin(expected, announced));
        begun.inspect_err(|error| self.fail(error))?;
        Ok(id)
    }

    /// A receive into a buffer, checked.
    fn expect(&mut self, to: &Buffer<'_>) -> Result<Expected> {
        self.alive()?;
        let elements = Elements::new(to.layout, to.base);
        elements.check()?;
        Ok(Expected {
            id: self.new_id(),
            elements,
            memory: to.memory,
        })
    }

    /// What an RTS announces, checked.
    fn announced(&self, rts: Control) -> Result<Announced> {
        let Control::Rts {
            number,
            shape,
            abilities,
            lengths,
        } = rts
        else {
            let kind = rts.to_bytes()?.first().copied().unwrap_or(0);
            return Err(self.wire.corrupt("kind of message", kind.into()));
        };
        let arrival = Arrival {
            shape,
            lengths,
            common: self.wire.abilities.common(&abilities),
        };
        let is_used = self.numbers.contains_key(&number)
            || self.announced.iter().any(|its| its.number == number);
        if is_used {
            return Err(self.wire.corrupt("number of a transfer", number.into()));
        }
        if !arrival.is_consistent() {
            return Err(self.wire.corrupt("lengths of pieces", shape.bytes));
        }
        Ok(Announced { number, arrival })
    }

    /// A receive and its RTS have met.
    fn begin(&mut self, expected: Expected, announced: Announced) -> Result<()> {
        let Expected {
            id,
            elements,
            memory,
        } = expected;
        let Announced { number, arrival } = announced;
        let (sender, room) = (arrival.shape.bytes, elements.bytes);
        if sender > room {
            let error = Error::Size {
                sender,
                receiver: room,
            };
            self.finished.insert(id, Err(error));
            return self.wire.tell(&Control::Refused { number, room });
        }
        let receiving = Receiving::new(number, elements, memory, arrival, &self.wire);
        self.numbers.insert(number, id);
        self.receives.insert(id, receiving);
        self.offer(id)
    }

    fn offer(&mut self, id: TransferId) -> Result<()> {
        let Some(receiving) = self.receives.get_mut(&id) else {
            return Ok(());
        };
        let step = receiving.offer(id.0, &mut self.wire)?;
        self.end_receive(id, step)
    }

    fn end_receive(&mut self, id: TransferId, step: Step) -> Result<()> {
        let Some(result) = step else {
            return Ok(());
        };
        if let Some(receiving) = self.receives.remove(&id) {
            self.numbers.remove(&receiving.number);
            self.finished.insert(id, result);
            return self.wire.release(receiving.into_held());
        }
        Ok(())
    }

    fn end_send(&mut self, number: u32, step: Step) -> Result<()> {
        let Some(result) = step else {
            return Ok(());
        };
        if let Some((id, sending)) = self.sends.remove(&number) {
            self.finished.insert(id, result);
            return self.wire.release(sending.into_held());
        }
        Ok(())
    }

    /// Moves all transfers of the link on. Whether anything happened.
    ///
    /// # Errors
    ///
    /// Why the link has ended: its transfers have the same error. [`Error::WorkRequest`],
    /// [`Error::PeerGone`], [`Error::Corrupt`].
    pub fn progress(&mut self) -> Result<bool> {
        self.alive()?;
        let moved = self.advance();
        moved.inspect_err(|error| self.fail(error))
    }

    fn advance(&mut self) -> Result<bool> {
        let mut has_moved = false;
        let (message, ended) = match self.wire.receive() {
            Ok(message) => (message, Ok(())),
            Err(error) => (None, Err(error)),
        };
        if let Some(message) = message {
            self.handle(message)?;
            has_moved = true;
        }
        // Before the end of the channel is told: what a peer has done before it ended counts.
        has_moved |= self.complete()?;
        ended?;
        has_moved |= self.post()?;
        self.tell_forget()?;
        Ok(has_moved)
    }

    fn handle(&mut self, control: Control) -> Result<()> {
        match control {
            rts @ Control::Rts { .. } => {
                let announced = self.announced(rts)?;
                match self.expected.pop_front() {
                    Some(expected) => self.begin(expected, announced),
                    None if self.announced.len() >= MAX_ANNOUNCED => {
                        let count = self.announced.len() as u64;
                        Err(self.wire.corrupt("messages without a receive", count))
                    }
                    None => {
                        self.announced.push_back(announced);
                        Ok(())
                    }
                }
            }
            Control::Cts { number, offer } => {
                let (_, sending) = find(&mut self.sends, number, &self.wire)?;
                let step = sending.on_cts(number, &offer, &mut self.wire)?;
                self.end_send(number, step)
            }
            Control::Refused { number, room } => {
                let (_, sending) = find(&mut self.sends, number, &self.wire)?;
                let step = sending.on_refused(room, &self.wire)?;
                self.end_send(number, step)
            }
            Control::Fin { number, is_done } => {
                let id = *find(&mut self.numbers, number, &self.wire)?;
                let Some(receiving) = self.receives.get_mut(&id) else {
                    return Ok(());
                };
                let step = receiving.on_fin(is_done, id.0, &mut self.wire)?;
                self.end_receive(id, step)
            }
            Control::Missing { number, entry } => {
                let id = *find(&mut self.numbers, number, &self.wire)?;
                match self.receives.get_mut(&id) {
                    Some(receiving) => receiving.on_missing(entry, &mut self.wire),
                    None => Ok(()),
                }
            }
            Control::Forget(entry) => {
                if let Some(mut keys) = self.wire.keys() {
                    keys.forget(self.wire.rank, entry);
                }
                self.wire.tell(&Control::Forgotten(entry))
            }
            Control::Forgotten(entry) => match self.wire.keys() {
                Some(mut keys) => keys.forgotten(&self.wire.endpoint, self.wire.rank, entry),
                None => Ok(()),
            },
        }
    }

    /// Deals with requests that have completed.
    fn complete(&mut self) -> Result<bool> {
        let mut has_moved = false;
        while self.wire.sends_pending > 0 {
            let Some(id) = self.wire.endpoint.next_sent()? else {
                break;
            };
            self.wire.sends_pending -= 1;
            has_moved = true;
            let number = u32::try_from(id).unwrap_or(u32::MAX);
            if let Some((_, sending)) = self.sends.get_mut(&number) {
                let step = sending.on_completed(number, &mut self.wire)?;
                self.end_send(number, step)?;
            }
        }
        let mut has_room = false;
        while self.wire.receives_pending > 0 {
            let Some(received) = self.wire.endpoint.next_received()? else {
                break;
            };
            self.wire.receives_pending -= 1;
            has_room = true;
            let id = TransferId(received.id);
            if let Some(receiving) = self.receives.get_mut(&id) {
                let step = receiving.on_received(received.bytes, id.0, &mut self.wire)?;
                self.end_receive(id, step)?;
            }
        }
        if has_room {
            let waiting = self.receives.iter().filter(|(_, its)| its.waits_for_room());
            let mut waiting: Vec<TransferId> = waiting.map(|(id, _)| *id).collect();
            waiting.sort_unstable();
            for id in waiting {
                self.offer(id)?;
            }
        }
        Ok(has_moved || has_room)
    }

    /// Posts what the queue has room for.
    fn post(&mut self) -> Result<bool> {
        let mut has_moved = false;
        while self.wire.sends_pending < self.wire.endpoint.queue() {
            let Some((number, post)) = self.wire.posts.pop_front() else {
                break;
            };
            if let Some((_, sending)) = self.sends.get(&number) {
                sending.post(number, post, &self.wire)?;
                self.wire.sends_pending += 1;
                has_moved = true;
            }
        }
        Ok(has_moved)
    }

    /// Tells the peer which keys it is to forget.
    fn tell_forget(&mut self) -> Result<()> {
        let rank = self.wire.rank;
        let entries = match self.wire.keys() {
            Some(mut keys) => keys.take_forget(rank),
            None => return Ok(()),
        };
        entries
            .into_iter()
            .try_for_each(|entry| self.wire.tell(&Control::Forget(entry)))
    }

    /// Ends the link.
    fn fail(&mut self, error: &Error) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error.clone());
        // From now on the peer can write nothing here, so what transfers hold may be given back.
        self.wire.endpoint.end();
        self.wire.posts.clear();
        self.wire.forget_registrations();
        for (_, (id, sending)) in self.sends.drain() {
            self.wire.abandon(sending.into_held());
            self.finished.insert(id, Err(error.clone()));
        }
        for (id, receiving) in self.receives.drain() {
            self.wire.abandon(receiving.into_held());
            self.finished.insert(id, Err(error.clone()));
        }
        for expected in self.expected.drain(..) {
            self.finished.insert(expected.id, Err(error.clone()));
        }
        self.numbers.clear();
        self.announced.clear();
        let rank = self.wire.rank;
        if let Some(mut keys) = self.wire.keys() {
            // Without a connection keys are destroyed, which cannot fail.
            let _ = keys.rank_gone(None, rank);
        }
    }

    /// Whether the channel still keeps messages that could not be sent yet: a link that is dropped
    /// then takes the news of what it has done with it. [`Link::wait`] waits for that too,
    /// [`Link::progress`] moves it on.
    pub fn has_unsent(&mut self) -> bool {
        // A channel that has failed keeps nothing that could still be sent.
        self.failure.is_none() && self.wire.channel.flush() == Ok(false)
    }

    /// The result of a transfer that has ended, once; none before. Moves nothing on.
    pub fn test(&mut self, id: TransferId) -> Option<Result<Report>> {
        self.finished.remove(&id)
    }

    /// Moves the link's transfers on until one has ended.
    ///
    /// # Errors
    ///
    /// That of the transfer: [`Error::Size`] if the receiver has less room; [`Error::Register`] at
    /// an end that cannot register memory and [`Error::Refused`] at the other. After these the link
    /// is as good as before. Others have ended it ([`Link::progress`]). [`Error::NoTransfer`] for
    /// one whose result was given.
    pub fn wait(&mut self, id: TransferId) -> Result<Report> {
        loop {
            if self.finished.contains_key(&id) && !self.has_unsent() {
                if let Some(result) = self.test(id) {
                    return result;
                }
            }
            if !self.finished.contains_key(&id) && !self.is_under_way(id) {
                return Err(Error::NoTransfer {
                    rank: self.wire.rank,
                    number: id.0,
                });
            }
            if let Ok(false) = self.progress() {
                let wire = &mut self.wire;
                wire.channel
                    .idle(wire.sends_pending == 0 && wire.receives_pending == 0);
            }
        }
    }

    fn is_under_way(&self, id: TransferId) -> bool {
        self.receives.contains_key(&id)
            || self.expected.iter().any(|expected| expected.id == id)
            || self.sends.values().any(|(its, _)| *its == id)
    }

    /// Sends the elements of a buffer and waits; two ends that both call this first wait for each
    /// other for ever, as with `MPI_Ssend`.
    ///
    /// # Errors
    ///
    /// As for [`Link::wait`].
    ///
    /// # Safety
    ///
    /// The buffer's memory is readable and does not change during the call.
    pub unsafe fn send(&mut self, from: &Buffer<'_>) -> Result<Report> {
        // SAFETY: the caller's promise; `wait` returns when the transfer has ended.
        let id = unsafe { self.start_send(from)? };
        self.wait(id)
    }

    /// Receives the next message into a buffer, and waits for it.
    ///
    /// # Errors
    ///
    /// As for [`Link::wait`].
    ///
    /// # Safety
    ///
    /// The buffer's memory is writable, and nobody else uses it during the call.
    pub unsafe fn receive(&mut self, to: &Buffer<'_>) -> Result<Report> {
        // SAFETY: the caller's promise; `wait` returns when the transfer has ended.
        let id = unsafe { self.start_receive(to)? };
        self.wait(id)
    }
}

/// What the peer's message is about.
fn find<'a, T, C: Channel, E: Endpoint>(
    all: &'a mut HashMap<u32, T>,
    number: u32,
    wire: &Wire<C, E>,
) -> Result<&'a mut T> {
    let found = all.get_mut(&number);
    found.ok_or_else(|| wire.corrupt("number of a transfer", number.into()))
}
