// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages under way, and what the peers say of them.
//!
//! ```text
//! sender                                   receiver
//!   header, in place of the message   -->  (the MPI library matches)
//!                                     <--  PULL
//!   BEGIN with the RTS of the link    -->
//!                                     <=>  CTS, WRITEs or SENDs, FIN: the link's
//! ```
//!
//! A link's transfer begins only when both ends are in it, so before BEGIN the sender may hand the message to the MPI
//! library instead, packed, whenever it wants: PACKED, and the bytes. That is what it does when the receiver does not
//! answer for a while, since it may wait in the MPI library for something that comes behind this message; and it is what
//! becomes of a message whose link fails.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libcopy::datatype::Layout;
use libcopy::lock::lock;
use libcopy_rdma::Error;
use libcopy_rdma::gather::Buffer;
use libcopy_rdma::keys::Memory;
use libcopy_rdma::transfer::{Report, TransferId};

use super::control::{Channel, Data};
use super::counts;
use super::header::{BYTES, Header};
use super::link::Adapter;
use super::peer::{Notice, Peer};
use super::wire::{Envelope, Wire};
use crate::abi::{Abi, Word, complain};
use crate::{active, errors, progress};

/// Elements of the program's that stay where they are until a message is complete.
#[derive(Clone, Debug)]
pub struct Elements {
    pub layout: Layout,
    /// The address that the layout's offsets count from.
    pub base: u64,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The receiver's rank in `MPI_COMM_WORLD`.
    pub rank: c_int,
    pub envelope: Envelope,
    pub comm: Word,
}

/// How far a message that is sent is.
#[derive(Debug)]
enum Sending {
    /// Its header is sent.
    Announced,
    /// The receiver wants it.
    Pulled,
    /// The link moves it.
    Moving(TransferId),
    /// The program may have its buffer back.
    Done(Result<(), c_int>),
}

#[derive(Debug)]
struct Outgoing {
    elements: Elements,
    envelope: Envelope,
    comm: Word,
    state: Sending,
}

/// How far a message that is received is.
#[derive(Debug)]
enum Receiving {
    /// The sender has been asked.
    Asked,
    /// The link moves it.
    Moving(TransferId),
    /// The MPI library does.
    Packed(Data),
    Done(Result<(), c_int>),
}

#[derive(Debug)]
struct Incoming {
    /// None if they have no room for it.
    elements: Option<Elements>,
    total: u64,
    state: Receiving,
}

/// A message's place: the peer's rank, and the number of the message.
type Key = (c_int, u64);

#[derive(Debug)]
pub struct Engine {
    abi: &'static Abi,
    /// Our rank in `MPI_COMM_WORLD`.
    rank: c_int,
    adapter: Option<Adapter>,
    channels: Vec<Channel>,
    peers: BTreeMap<c_int, Peer>,
    /// Ranks of `MPI_COMM_WORLD` by channel and place.
    ranks: BTreeMap<(usize, c_int), c_int>,
    outgoing: BTreeMap<Key, Outgoing>,
    incoming: BTreeMap<Key, Incoming>,
    /// Bytes that nobody has room for.
    unwanted: Vec<Data>,
    /// What the MPI library has said of a channel that it cannot use any more.
    broken: Option<c_int>,
}

static ENGINE: Mutex<Option<Engine>> = Mutex::new(None);

/// Whether any process may be reached past the MPI library.
static ON: AtomicBool = AtomicBool::new(false);

/// Whether messages may go over RDMA, and headers come.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

fn with<R>(work: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    if !is_on() {
        return None;
    }
    lock(&ENGINE).as_mut().map(work)
}

/// Processes that have met on a channel.
pub struct Met {
    pub comm: Word,
    /// Rank in `MPI_COMM_WORLD`, place on the channel, bytes from which on it looks at messages.
    pub peers: Vec<(c_int, c_int, u64)>,
    pub magic: [u64; 2],
}

/// Prepares for peers: they are met when the others have done so, too.
pub fn prepare(abi: &'static Abi, rank: c_int, adapter: Option<Adapter>) {
    lock(&ENGINE).get_or_insert_with(|| Engine {
        abi,
        rank,
        adapter,
        channels: Vec::new(),
        peers: BTreeMap::new(),
        ranks: BTreeMap::new(),
        outgoing: BTreeMap::new(),
        incoming: BTreeMap::new(),
        unwanted: Vec::new(),
        broken: None,
    });
}

/// Takes note of processes that have met, as each of them does. Those that had met before keep their channel.
pub fn meet(met: Met) {
    let mut engine = lock(&ENGINE);
    let Some(engine) = engine.as_mut() else {
        return;
    };
    let channel = engine.channels.len();
    engine.channels.push(Channel::new(met.comm));
    for (rank, place, least) in met.peers {
        if engine.peers.contains_key(&rank) {
            continue;
        }
        engine.ranks.insert((channel, place), rank);
        let peer = Peer::new((channel, place), met.magic, least);
        engine.peers.insert(rank, peer);
        ON.store(true, Ordering::Relaxed);
    }
}

/// Whether messages may go to a rank of `MPI_COMM_WORLD` and come from it, and the bytes from which on it looks at them.
pub fn reaches(rank: c_int) -> Option<u64> {
    with(|engine| engine.peers.get(&rank).map(|peer| peer.least))?
}

/// Goes on with everything that is under way.
pub fn progress() {
    // Who has it goes on.
    if !is_on() {
        return;
    }
    if let Ok(mut engine) = ENGINE.try_lock() {
        if let Some(engine) = engine.as_mut() {
            engine.step();
        }
    }
}

impl Engine {
    fn tell(&mut self, rank: c_int, wire: &Wire) {
        let Some(peer) = self.peers.get(&rank) else {
            return;
        };
        let told = self.channels[peer.channel].tell(self.abi, peer.place, wire.to_bytes());
        if let Err(code) = told {
            self.broken = Some(code);
        }
    }

    fn tell_all(&mut self, rank: c_int, all: Vec<Wire>) {
        for wire in all {
            self.tell(rank, &wire);
        }
    }

    /// Makes the link to a peer, if there is none.
    fn want_link(&mut self, rank: c_int) {
        let adapter = self.adapter.as_ref();
        if let Some(peer) = self.peers.get_mut(&rank) {
            let all = peer.way.want(rank, adapter);
            self.tell_all(rank, all);
        }
    }

    /// One round: what has come, what the links have moved, what was sent.
    fn step(&mut self) {
        for index in 0..self.channels.len() {
            self.channels[index].reap(self.abi);
            loop {
                match self.channels[index].poll(self.abi) {
                    Ok(Some((place, bytes))) => self.hear(index, place, &bytes),
                    Ok(None) => break,
                    Err(code) => {
                        self.broken = Some(code);
                        break;
                    }
                }
            }
        }
        let ranks: Vec<c_int> = self.peers.keys().copied().collect();
        for rank in ranks {
            self.step_link(rank);
        }
        self.step_data();
    }

    fn step_link(&mut self, rank: c_int) {
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        let Some(link) = peer.way.link() else {
            return;
        };
        let failed = loop {
            match link.progress() {
                Ok(true) => {}
                Ok(false) => break None,
                Err(why) => break Some(why),
            }
        };
        let unsent = peer.way.take_unsent();
        self.tell_all(rank, unsent);
        self.collect(rank);
        if let Some(why) = failed {
            self.fail(rank, &why);
        }
    }

    /// Transfers of a link that have ended.
    fn collect(&mut self, rank: c_int) {
        let moving = |(key, state): (&Key, Option<TransferId>)| Some((*key, state?));
        let sends = self.outgoing.range((rank, 0)..=(rank, u64::MAX));
        let sends: Vec<(Key, TransferId)> = sends
            .map(|(key, its)| match its.state {
                Sending::Moving(id) => (key, Some(id)),
                _ => (key, None),
            })
            .filter_map(moving)
            .collect();
        for (key, id) in sends {
            match self.result(rank, id) {
                Some(Ok(report)) => {
                    counts::sent(report.method, report.bytes);
                    self.finish_send(key, Ok(()));
                }
                // The link's own failure is dealt with for all of its messages.
                Some(Err(_)) => self.pack(key),
                None => {}
            }
        }
        let receives = self.incoming.range((rank, 0)..=(rank, u64::MAX));
        let receives: Vec<(Key, TransferId)> = receives
            .map(|(key, its)| match its.state {
                Receiving::Moving(id) => (key, Some(id)),
                _ => (key, None),
            })
            .filter_map(moving)
            .collect();
        for (key, id) in receives {
            match self.result(rank, id) {
                Some(Ok(_)) => self.finish_receive(key, Ok(())),
                Some(Err(_)) => self.ask_again(key),
                None => {}
            }
        }
    }

    fn result(&mut self, rank: c_int, id: TransferId) -> Option<Result<Report, Error>> {
        self.peers.get_mut(&rank)?.way.link()?.test(id)
    }

    fn finish_send(&mut self, key: Key, result: Result<(), c_int>) {
        if let Some(outgoing) = self.outgoing.get_mut(&key) {
            outgoing.state = Sending::Done(result);
        }
    }

    fn finish_receive(&mut self, key: Key, result: Result<(), c_int>) {
        if let Some(incoming) = self.incoming.get_mut(&key) {
            incoming.state = Receiving::Done(result);
        }
    }

    /// A link has failed: what it was moving goes through the MPI library.
    fn fail(&mut self, rank: c_int, why: &Error) {
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        peer.way.fail(rank, why);
        let of = |key: &Key| key.0 == rank;
        let sends: Vec<Key> = self
            .outgoing
            .iter()
            .filter(|(key, its)| {
                of(key) && matches!(its.state, Sending::Moving(_) | Sending::Pulled)
            })
            .map(|(key, _)| *key)
            .collect();
        for key in sends {
            self.pack(key);
        }
        let receives: Vec<Key> = self
            .incoming
            .iter()
            .filter(|(key, its)| of(key) && matches!(its.state, Receiving::Moving(_)))
            .map(|(key, _)| *key)
            .collect();
        for key in receives {
            self.ask_again(key);
        }
    }

    /// Wants a message through the MPI library.
    fn ask_again(&mut self, key: Key) {
        if let Some(incoming) = self.incoming.get_mut(&key) {
            incoming.state = Receiving::Asked;
            self.tell(key.0, &Wire::Pack { sequence: key.1 });
        }
    }

    /// Hands a message to the MPI library, packed.
    fn pack(&mut self, key: Key) {
        let (rank, sequence) = key;
        let (Some(outgoing), Some(peer)) = (self.outgoing.get(&key), self.peers.get(&rank)) else {
            return;
        };
        let (channel, place) = (peer.channel, peer.place);
        let layout = &outgoing.elements.layout;
        let total = layout.size();
        let mut bytes: Vec<u8> = Vec::with_capacity(total as usize);
        // SAFETY: the program has lent its elements until the message is done; all bytes are written.
        unsafe {
            let from = outgoing.elements.base as *const u8;
            layout.pack_raw(from, 0..total, bytes.as_mut_ptr());
            bytes.set_len(total as usize);
        }
        self.tell(rank, &Wire::Packed { sequence });
        let sent = self.channels[channel].send_data(self.abi, place, sequence, bytes);
        counts::sent_through_mpi(total);
        self.finish_send(key, sent);
    }

    /// Sends over the link what the receiver wants, if there is a link.
    fn begin(&mut self, key: Key) {
        let (rank, sequence) = key;
        let (Some(outgoing), Some(peer)) = (self.outgoing.get_mut(&key), self.peers.get_mut(&rank))
        else {
            return;
        };
        if peer.way.has_failed() {
            return self.pack(key);
        }
        let Some(link) = peer.way.link() else {
            outgoing.state = Sending::Pulled;
            return;
        };
        let buffer = Buffer {
            layout: &outgoing.elements.layout,
            base: outgoing.elements.base,
            memory: Memory::Unwatched,
        };
        // SAFETY: the program has lent its elements until the message is done, which it is after the transfer or when
        // the link has ended.
        match unsafe { link.start_matched_send(&buffer) } {
            Ok((id, rts)) => {
                outgoing.state = Sending::Moving(id);
                self.tell(rank, &Wire::Begin { sequence, rts });
            }
            Err(_) => self.pack(key),
        }
    }

    fn hear(&mut self, channel: usize, place: c_int, bytes: &[u8]) {
        let Some(rank) = self.ranks.get(&(channel, place)).copied() else {
            return;
        };
        let Some(wire) = Wire::from_bytes(bytes) else {
            complain(&format!(
                "rank {rank} has sent {} unknown bytes",
                bytes.len()
            ));
            return;
        };
        let adapter = self.adapter.as_ref();
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        match wire {
            Wire::Hello(address) => {
                let answer = peer.way.hear(rank, adapter, address.as_ref());
                self.tell_all(rank, answer);
                self.begin_pulled(rank);
            }
            Wire::Ready => {
                peer.way.ready(rank, adapter);
                self.begin_pulled(rank);
            }
            Wire::Link(message) => {
                peer.way.deliver(message);
                self.step_link(rank);
            }
            Wire::Notice {
                sequence,
                envelope,
                total,
            } => peer.note(Notice {
                sequence,
                envelope,
                total,
            }),
            Wire::Retired(envelope) => {
                peer.theirs.insert(envelope);
            }
            Wire::Pull { sequence } => {
                let key = (rank, sequence);
                let is_waiting = |its: &Outgoing| matches!(its.state, Sending::Announced);
                if self.outgoing.get(&key).is_some_and(is_waiting) {
                    self.want_link(rank);
                    self.begin(key);
                }
            }
            Wire::Begin { sequence, rts } => self.on_begin((rank, sequence), &rts),
            Wire::Pack { sequence } => {
                let key = (rank, sequence);
                match self.outgoing.get(&key).map(|its| &its.state) {
                    Some(Sending::Done(_)) | None => self.tell(rank, &Wire::Lost { sequence }),
                    Some(_) => self.pack(key),
                }
            }
            Wire::Packed { sequence } => self.on_packed((rank, sequence)),
            Wire::Lost { sequence } => {
                let key = (rank, sequence);
                let is_asked = |its: &Incoming| matches!(its.state, Receiving::Asked);
                if self.incoming.get(&key).is_some_and(is_asked) {
                    let text = format!("a message of rank {rank} was lost with its link");
                    let code = errors::failure(self.abi, &text);
                    self.finish_receive(key, Err(code));
                }
            }
            Wire::Truncated { sequence } => {
                let key = (rank, sequence);
                if self.outgoing.contains_key(&key) {
                    self.finish_send(key, Ok(()));
                }
            }
        }
    }

    /// The link to a peer may be ready, or have failed.
    fn begin_pulled(&mut self, rank: c_int) {
        let pulled = self.outgoing.range((rank, 0)..=(rank, u64::MAX));
        let pulled: Vec<Key> = pulled
            .filter(|(_, its)| matches!(its.state, Sending::Pulled))
            .map(|(key, _)| *key)
            .collect();
        for key in pulled {
            self.begin(key);
        }
    }

    fn on_begin(&mut self, key: Key, rts: &[u8]) {
        let (Some(incoming), Some(peer)) =
            (self.incoming.get_mut(&key), self.peers.get_mut(&key.0))
        else {
            return;
        };
        if !matches!(incoming.state, Receiving::Asked) {
            return;
        }
        let Some(link) = peer.way.link() else {
            return self.ask_again(key);
        };
        let Some(elements) = &incoming.elements else {
            return;
        };
        let buffer = Buffer {
            layout: &elements.layout,
            base: elements.base,
            memory: Memory::Unwatched,
        };
        // SAFETY: the program has lent its elements until the receive is done, which it is after the transfer or when
        // the link has ended.
        match unsafe { link.start_matched_receive(&buffer, rts) } {
            Ok(id) => {
                incoming.state = Receiving::Moving(id);
                self.step_link(key.0);
            }
            Err(why) => {
                self.fail(key.0, &why);
                self.ask_again(key);
            }
        }
    }

    fn on_packed(&mut self, key: Key) {
        let (rank, sequence) = key;
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        let is_unwanted = peer.truncated.remove(&sequence);
        let (channel, place) = (peer.channel, peer.place);
        let Some(incoming) = self.incoming.get_mut(&key) else {
            peer.packed.insert(sequence);
            return;
        };
        if matches!(incoming.state, Receiving::Moving(_)) {
            // The sender's end of the link has failed: nothing may be written here any more.
            let why = Error::PeerGone {
                rank: rank as u32,
                reason: "its end of the link has failed".to_owned(),
            };
            peer.way.fail(rank, &why);
        }
        let total = incoming.total;
        let data = self.channels[channel].receive_data(self.abi, place, sequence, total);
        match data {
            Ok(data) if is_unwanted => {
                self.unwanted.push(data);
                self.incoming.remove(&key);
            }
            Ok(data) => incoming.state = Receiving::Packed(data),
            Err(code) => incoming.state = Receiving::Done(Err(code)),
        }
    }

    /// Packed bytes that have come.
    fn step_data(&mut self) {
        let abi = self.abi;
        for incoming in self.incoming.values_mut() {
            let (Receiving::Packed(data), Some(elements)) =
                (&mut incoming.state, &incoming.elements)
            else {
                continue;
            };
            let result = match data.is_complete(abi) {
                Ok(false) => continue,
                Ok(true) => {
                    let to = elements.base as *mut u8;
                    let range = 0..incoming.total;
                    // SAFETY: `data` has the bytes of `range`, all of which have come; the program has lent its elements.
                    unsafe { elements.layout.unpack_raw(data.bytes.as_ptr(), range, to) };
                    Ok(())
                }
                Err(code) => Err(code),
            };
            incoming.state = Receiving::Done(result);
        }
        self.unwanted
            .retain_mut(|data| !data.is_complete(abi).unwrap_or(true));
    }
}

/// A message that is sent.
pub struct Send {
    key: Key,
    header: Box<[u8]>,
    started: Instant,
    patience: Duration,
}

/// For so long a sender waits for its receiver to ask, and a millisecond more for every 4 MiB.
const PATIENCE: Duration = Duration::from_millis(100);
/// The same where `LIBCOPY_MPI_MIN` asks for everything.
const LONG_PATIENCE: Duration = Duration::from_secs(10);

impl Send {
    /// Makes a message known; `None` if it cannot go this way.
    pub fn begin(route: &Route, elements: Elements) -> Option<Send> {
        with(|engine| {
            let rank = route.rank;
            let peer = engine.peers.get_mut(&rank)?;
            let total = elements.layout.size();
            // A probe could not tell two headers with the same envelope from each other.
            let is_other = |its: &Outgoing| {
                its.envelope == route.envelope && !engine.abi.same(its.comm, route.comm)
            };
            let mut others = engine.outgoing.range((rank, 0)..=(rank, u64::MAX));
            if peer.ours.contains(&route.envelope) || others.any(|(_, its)| is_other(its)) {
                return None;
            }
            peer.sequence += 1;
            let sequence = peer.sequence;
            let header = Header {
                magic: peer.magic,
                sequence,
                sender: engine.rank as u64,
                total,
            };
            let key = (rank, sequence);
            let outgoing = Outgoing {
                elements,
                envelope: route.envelope,
                comm: route.comm,
                state: Sending::Announced,
            };
            engine.outgoing.insert(key, outgoing);
            let envelope = route.envelope;
            let notice = Wire::Notice {
                sequence,
                envelope,
                total,
            };
            engine.tell(rank, &notice);
            engine.want_link(rank);
            let usual = if active::least().is_some() {
                LONG_PATIENCE
            } else {
                PATIENCE
            };
            Some(Send {
                key,
                header: header.to_bytes(),
                started: Instant::now(),
                patience: usual + Duration::from_millis(total >> 22),
            })
        })?
    }

    /// What goes through the MPI library in its place.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Goes on; whether the program may have its buffer back.
    pub fn advance(&mut self) -> Option<Result<(), c_int>> {
        let key = self.key;
        let is_late = self.started.elapsed() > self.patience;
        with(|engine| {
            engine.step();
            let outgoing = engine.outgoing.get(&key)?;
            if is_late && matches!(outgoing.state, Sending::Announced) {
                engine.pack(key);
            }
            match engine.outgoing.get(&key).map(|its| &its.state) {
                Some(Sending::Done(result)) => Some(*result),
                _ => engine.broken.map(Err),
            }
        })
        .unwrap_or(Some(Ok(())))
    }
}

impl Drop for Send {
    fn drop(&mut self) {
        with(|engine| {
            let moving = |its: &Outgoing| matches!(its.state, Sending::Moving(_));
            let outgoing = engine.outgoing.remove(&self.key);
            if outgoing.as_ref().is_some_and(moving) {
                // It is not done, but its buffer is the program's again.
                let why = Error::PeerGone {
                    rank: self.key.0 as u32,
                    reason: "the MPI library has failed".to_owned(),
                };
                engine.fail(self.key.0, &why);
            }
        });
    }
}

/// A message that is received.
pub struct Receive {
    key: Key,
}

impl Receive {
    /// Asks the sender of a header for its message, of which `elements` have as many bytes; `None` if there is no room
    /// for them, which is an error at the receiver alone.
    pub fn begin(rank: c_int, header: &Header, elements: Option<Elements>) -> Option<Receive> {
        let (sequence, total) = (header.sequence, header.total);
        let key = (rank, sequence);
        counts::received();
        with(|engine| {
            let peer = engine.peers.get_mut(&rank)?;
            peer.forget(sequence);
            let is_packed = peer.packed.remove(&sequence);
            let is_wanted = elements.is_some();
            if !is_wanted {
                peer.truncated.insert(sequence);
            }
            let incoming = Incoming {
                elements,
                total,
                state: Receiving::Asked,
            };
            engine.incoming.insert(key, incoming);
            match (is_packed, is_wanted) {
                (true, _) => engine.on_packed(key),
                (false, true) => {
                    engine.want_link(rank);
                    engine.tell(rank, &Wire::Pull { sequence });
                }
                (false, false) => engine.tell(rank, &Wire::Truncated { sequence }),
            }
            is_wanted.then_some(Receive { key })
        })?
    }

    /// Goes on; whether the message is there.
    pub fn advance(&mut self) -> Option<Result<(), c_int>> {
        let key = self.key;
        with(|engine| {
            engine.step();
            match engine.incoming.get(&key).map(|its| &its.state) {
                Some(Receiving::Done(result)) => Some(*result),
                Some(_) => engine.broken.map(Err),
                None => Some(Ok(())),
            }
        })
        .unwrap_or(Some(Ok(())))
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        with(|engine| {
            match engine.incoming.remove(&self.key).map(|its| its.state) {
                // It is not there, but its buffer is the program's again.
                Some(Receiving::Moving(_)) => {
                    let why = Error::PeerGone {
                        rank: self.key.0 as u32,
                        reason: "the MPI library has failed".to_owned(),
                    };
                    engine.fail(self.key.0, &why);
                }
                // The library may still write there.
                Some(Receiving::Packed(data)) => engine.unwanted.push(data),
                _ => {}
            }
        });
    }
}

/// Reads the header of a message from a rank of `MPI_COMM_WORLD`; `None` if it is none. `read` gives its first bytes.
pub fn header_of(rank: c_int, read: impl FnOnce(&mut [u8; BYTES]) -> bool) -> Option<Header> {
    let magic = with(|engine| engine.peers.get(&rank).map(|peer| peer.magic))??;
    let mut bytes = [0; BYTES];
    if !read(&mut bytes) {
        return None;
    }
    Header::from_bytes(&bytes, magic).filter(|header| header.sender == rank as u64)
}

/// A message of the program's own to a rank has the length of a header: from now on all in its envelope are its own.
pub fn notice_own(route: &Route) {
    with(|engine| {
        let Some(peer) = engine.peers.get_mut(&route.rank) else {
            return;
        };
        if peer.ours.insert(route.envelope) {
            engine.tell(route.rank, &Wire::Retired(route.envelope));
        }
    });
}

/// A probe has found a message of a header's length from a rank: how long the message is that it stands for, if it does.
/// What its sender has said of it was sent before, so that this waits for nothing but the MPI library.
pub fn true_length(rank: c_int, envelope: Envelope) -> Option<u64> {
    loop {
        let found = with(|engine| {
            engine.step();
            let peer = engine.peers.get(&rank)?;
            let mut notices = peer.notices.iter();
            if let Some(notice) = notices.find(|notice| notice.envelope == envelope) {
                return Some(Some(notice.total));
            }
            let is_over = peer.theirs.contains(&envelope) || engine.broken.is_some();
            is_over.then_some(None)
        })?;
        if let Some(total) = found {
            return total;
        }
        std::thread::yield_now();
    }
}

/// Before `MPI_Finalize`: what was handed to the MPI library is sent, and the links end.
pub fn finish() {
    loop {
        let is_busy = with(|engine| {
            engine.step();
            let (abi, mut is_busy) = (engine.abi, false);
            for channel in &mut engine.channels {
                is_busy |= channel.reap(abi);
            }
            (is_busy || !engine.unwanted.is_empty()) && engine.broken.is_none()
        });
        if is_busy != Some(true) {
            break;
        }
        if let Ok(abi) = crate::abi::get() {
            progress::library(abi);
        }
        std::thread::yield_now();
    }
    ON.store(false, Ordering::Relaxed);
    let engine = lock(&ENGINE).take();
    // What the library cannot complete it may still read and write.
    if engine
        .as_ref()
        .is_some_and(|engine| engine.broken.is_some())
    {
        std::mem::forget(engine);
    }
}
