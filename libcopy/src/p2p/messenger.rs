// SPDX-License-Identifier: MIT OR Apache-2.0

//! The messages between the ranks of a team.
//!
//! Each rank has a ring to each other rank. A short message goes through it as a whole. Of a long
//! one only its [`Header`] does, and the receiver of that has [`Endpoint`] move the data. So
//! messages of one sender are matched in the order in which they were sent, whatever their length.
//!
//! Nothing here waits but for the data of a long message: [`super::calls`] calls
//! [`Messenger::progress`] until what it waits for is there.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::buffer::Elements;
use super::context::{Context, Owner};
use super::header::{self, Header, SLOTS};
use super::incoming::ReceiveError;
use super::matching::{Envelope, Matcher, Pattern};
use super::outgoing::{self, Endpoint, Pause, Shared};
use super::protocol::Protocol;
use super::registration::Registration;
use super::segment::{HEAD, LANE, LANES, Segment};
use super::view::DescribedLayout;
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::lru::Lru;
use crate::scratch::zeros;
use crate::shm::message_segment::MessageSegment;
use crate::shm::ring::{ReaderState, WriterState};
use crate::shm::segment::{LINE, Segment as TeamSegment};
use crate::shm::sync::Ordering;

/// What has become of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The rank that sent it.
    pub source: usize,
    /// Its tag.
    pub tag: i32,
    /// Its bytes.
    pub bytes: u64,
}

/// What a frame of a ring is.
mod kind {
    /// A message as a whole.
    pub(super) const EAGER: u64 = 1;
    /// The header of a long one.
    pub(super) const LONG: u64 = 2;
}

const MAGIC: u64 = 0x9B2B;

/// What all headers of a team begin with: what can write to the team's memory is in the team.
const HEADERS: [u64; 2] = [
    u64::from_le_bytes(*b"libcopy "),
    u64::from_le_bytes(*b"messages"),
];

/// Messages of at least this many bytes may be announced by a header, whatever slot that names.
pub(crate) const LEAST_EAGER_MAX: u64 = 4096;

/// Long messages of one sender that are left where they are until somebody receives them: of more
/// the data are fetched at once, so that the sender always has a slot for the one that is waited
/// for.
const MOST_LEFT: usize = SLOTS / 2;

/// Layouts whose description is kept: the program may send elements of the same layout again.
const MOST_LAYOUTS: usize = 16;

/// A message that nobody has received.
#[derive(Debug)]
enum Unexpected {
    Eager(Vec<u8>),
    Long(Header),
}

/// A receive that nothing has come for.
#[derive(Debug)]
struct Posted {
    request: u64,
    elements: Elements,
}

/// A message that could not be sent yet: its ring is full, or all slots are in use.
#[derive(Debug)]
struct Queued {
    elements: Elements,
    /// What the elements are, if not the program's.
    owned: Option<Vec<u8>>,
    tag: i32,
    request: u64,
}

/// What has become of a request.
#[derive(Debug)]
enum State {
    Queued,
    Sending(Shared, Status),
    Receiving,
    Done(Result<Status>),
}

/// What a send has come to.
enum Sent {
    Whole,
    Announced(Shared),
}

/// How long data may take, and whether their receiver is there, as the team knows it.
#[derive(Debug)]
struct Team {
    segment: Arc<TeamSegment>,
}

impl Owner for Team {
    fn lives(&self, member: usize, _pid: i32) -> bool {
        let has_left = self.segment.block(member).left.load(Ordering::Acquire) != 0;
        !has_left && !matches!(self.segment.holder(member), Ok(None))
    }

    fn streams_without_rights(&self) -> bool {
        true
    }
}

/// What a team's messages may use.
pub(crate) struct Means {
    /// The processes of all ranks, if they may read each other's memory.
    pub(crate) pids: Option<Vec<i32>>,
    /// The kernel module.
    pub(crate) registration: Option<Registration>,
    /// Longer messages are announced by a header.
    pub(crate) eager_max: u64,
}

/// A rank's messages.
#[derive(Debug)]
pub(crate) struct Messenger {
    rank: usize,
    size: usize,
    team: Arc<TeamSegment>,
    memory: Arc<MessageSegment>,
    endpoint: Endpoint,
    eager_max: u64,
    out: Vec<WriterState>,
    inbox: Vec<ReaderState>,
    matcher: Matcher<Unexpected, Posted>,
    /// By sender: long messages that were left where they are.
    left: Vec<usize>,
    /// By destination, in the order in which they are to be sent.
    queues: Vec<VecDeque<Queued>>,
    queued: usize,
    requests: HashMap<u64, State>,
    last_request: u64,
    layouts: Lru<Arc<DescribedLayout>>,
    has_rings: bool,
    has_lanes: bool,
}

impl Messenger {
    pub(crate) fn new(team: Arc<TeamSegment>, means: Means) -> Result<Self> {
        let (rank, size) = team.place();
        let memory = Arc::new(MessageSegment::open(team.clone(), [HEAD, LANES * LANE])?);
        let places = memory.slots_and_lanes();
        // SAFETY: the memory has these bytes for each rank, for nothing else, and the segment keeps
        // it.
        let segment = unsafe { Segment::within(places, size, memory.clone()) };
        let is_blind = means.pids.is_none();
        if is_blind {
            segment.lost_rights(rank).store(1, Ordering::Relaxed);
        }
        let owner = Team {
            segment: team.clone(),
        };
        // SAFETY: the ranks of the team share its memory, and each has said which process it is.
        let endpoint = Endpoint::new(unsafe {
            Context::new(
                (rank, means.pids.unwrap_or_else(|| vec![0; size])),
                (HEADERS, segment),
                (Protocol::Best, means.registration),
                Box::new(owner),
            )
        });
        let ring = memory.ring();
        Ok(Messenger {
            rank,
            size,
            endpoint,
            eager_max: means.eager_max.clamp(LEAST_EAGER_MAX, ring as u64 / 4),
            out: (0..size)
                .map(|_| WriterState::new(ring, ring, LINE))
                .collect(),
            inbox: (0..size)
                .map(|_| ReaderState::new(ring, ring, LINE))
                .collect(),
            matcher: Matcher::new(),
            left: vec![0; size],
            queues: (0..size).map(|_| VecDeque::new()).collect(),
            queued: 0,
            requests: HashMap::new(),
            last_request: 0,
            layouts: Lru::default(),
            has_rings: false,
            has_lanes: false,
            team,
            memory,
        })
    }

    fn request(&mut self, state: State) -> u64 {
        self.last_request += 1;
        self.requests.insert(self.last_request, state);
        self.last_request
    }

    /// Sends a message; the number of a request, unless the buffer is free again at once. `to` is a
    /// rank.
    pub(crate) fn send(&mut self, elements: Elements, to: usize, tag: i32) -> Result<Option<u64>> {
        if to == self.rank {
            self.send_to_self(&elements, tag)?;
            return Ok(None);
        }
        if self.queues[to].is_empty() {
            match self.try_send(&elements, &mut None, to, tag)? {
                Some(Sent::Whole) => return Ok(None),
                Some(Sent::Announced(shared)) => {
                    let status = self.sent(&elements, tag);
                    return Ok(Some(self.request(State::Sending(shared, status))));
                }
                None => {}
            }
        }
        let request = self.request(State::Queued);
        self.queued += 1;
        self.queues[to].push_back(Queued {
            elements,
            owned: None,
            tag,
            request,
        });
        Ok(Some(request))
    }

    /// A copy of what is sent, as nobody else can come and take it.
    fn send_to_self(&mut self, elements: &Elements, tag: i32) -> Result<()> {
        let bytes = packed(elements)?;
        let envelope = Envelope {
            source: self.rank,
            tag,
        };
        match self.matcher.claim(envelope) {
            Some(posted) => {
                let outcome = deliver(envelope, &posted.elements, [&bytes, &[]]);
                self.requests.insert(posted.request, State::Done(outcome));
            }
            None => self.matcher.keep(envelope, Unexpected::Eager(bytes)),
        }
        Ok(())
    }

    /// Sends a message if there is room in the ring, and a slot if it is a long one.
    fn try_send(
        &mut self,
        elements: &Elements,
        owned: &mut Option<Vec<u8>>,
        to: usize,
        tag: i32,
    ) -> Result<Option<Sent>> {
        if !self.has_rings {
            self.memory.reserve_rings()?;
            self.has_rings = true;
        }
        let bytes = elements.bytes();
        if bytes <= self.eager_max {
            let view = elements.view();
            let sent = self.push(to, (kind::EAGER, tag), bytes as usize, |range, place| {
                // SAFETY: the program has lent its elements; the ring has this room.
                unsafe { view.pack(range, place) }.map_err(corrupt_code)
            })?;
            return Ok(sent.then_some(Sent::Whole));
        }
        if self.room(to, header::BYTES)? {
            self.reserve_lanes()?;
            let mut elements = elements.clone();
            if let Some(layout) = elements.layout_mut() {
                *layout = self.described(layout);
            }
            let fits = |_| true;
            let route = (bytes, to, tag);
            let view = elements.view().into();
            // SAFETY: the program has lent its elements until the request is complete, or given up;
            // what is `owned` the message keeps.
            let posted = unsafe { self.endpoint.post(view, owned.take(), route, 0, fits) };
            if let Some(shared) = posted {
                let mut header = [0u8; header::BYTES];
                header.copy_from_slice(&lock(&shared).wire()[..header::BYTES]);
                self.push(to, (kind::LONG, tag), header.len(), |range, place| {
                    let part = &header[range.start as usize..range.end as usize];
                    // SAFETY: the ring has this room.
                    unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), place, part.len()) };
                    Ok(())
                })?;
                lock(&shared).attend(&self.endpoint, false);
                return Ok(Some(Sent::Announced(shared)));
            }
        }
        Ok(None)
    }

    /// Lanes are memory of the tmpfs as soon as they are used. Without room for them, data that can
    /// be read are.
    fn reserve_lanes(&mut self) -> Result<()> {
        if self.has_lanes {
            return Ok(());
        }
        let reserved = self.memory.reserve_lanes();
        if reserved.is_err() {
            if self.endpoint.is_closed(self.rank) {
                return reserved;
            }
            while self.endpoint.take_lane().is_some() {}
        }
        self.has_lanes = true;
        Ok(())
    }

    /// The same layout, described before if it was sent before.
    fn described(&mut self, layout: &Arc<DescribedLayout>) -> Arc<DescribedLayout> {
        let form = std::ptr::from_ref(layout.layout.form());
        let is_same = |known: &Arc<DescribedLayout>| std::ptr::eq(known.layout.form(), form);
        if let Some(known) = self.layouts.find(is_same) {
            return known.clone();
        }
        if self.layouts.len() >= MOST_LAYOUTS {
            self.layouts.take_oldest();
        }
        self.layouts.push(layout.clone()).clone()
    }

    /// Whether a frame of `len` bytes fits into the ring to a rank.
    fn room(&mut self, to: usize, len: usize) -> Result<bool> {
        let needed = LINE + len.next_multiple_of(LINE);
        let tail = self.memory.tail(self.rank, to);
        Ok(self.out[to].free(needed, [tail])? >= needed)
    }

    /// Puts a frame into the ring to a rank, if it fits. `fill` writes a range of its bytes.
    fn push(
        &mut self,
        to: usize,
        (kind, tag): (u64, i32),
        len: usize,
        fill: impl Fn(std::ops::Range<u64>, *mut u8) -> Result<()>,
    ) -> Result<bool> {
        if !self.room(to, len)? {
            return Ok(false);
        }
        let ring = &mut self.out[to];
        let base = self.memory.bytes(self.rank, to);
        let first = MAGIC << 48 | kind << 32 | u64::from(tag as u32);
        // SAFETY: a line is free there, which is aligned to one.
        unsafe {
            let line = base.add(ring.position()).cast::<[u64; 8]>();
            line.write([first, len as u64, 0, 0, 0, 0, 0, 0]);
        }
        ring.advance(LINE);
        let at = ring.position();
        let straight = len.min(self.memory.ring() - at);
        // What is behind the ring's end is at its start. If `fill` fails, nobody sees what was
        // written.
        fill(0..straight as u64, base.wrapping_add(at))?;
        if straight < len {
            fill(straight as u64..len as u64, base)?;
        }
        ring.advance(len.next_multiple_of(LINE));
        ring.publish(self.memory.head(self.rank, to));
        let receiver = self.team.block(to);
        receiver.arrivals[self.rank / 64].fetch_or(1 << (self.rank % 64), Ordering::Release);
        receiver.bell.ring();
        Ok(true)
    }

    /// Receives a message that is there, or posts the receive: the number of its request then.
    pub(crate) fn receive(
        &mut self,
        elements: Elements,
        pattern: Pattern,
    ) -> Result<Result<Status, u64>> {
        self.poll()?;
        match self.matcher.take(pattern) {
            Some((envelope, Unexpected::Eager(bytes))) => {
                deliver(envelope, &elements, [&bytes, &[]]).map(Ok)
            }
            Some((envelope, Unexpected::Long(header))) => {
                self.left[envelope.source] -= 1;
                self.fetch(envelope, &header, &elements).map(Ok)
            }
            None => {
                let request = self.request(State::Receiving);
                self.matcher.post(pattern, Posted { request, elements });
                Ok(Err(request))
            }
        }
    }

    /// The message that a receive would get.
    pub(crate) fn find(&self, pattern: Pattern) -> Option<Status> {
        let (envelope, message) = self.matcher.find(pattern)?;
        Some(Status {
            source: envelope.source,
            tag: envelope.tag,
            bytes: match message {
                Unexpected::Eager(bytes) => bytes.len() as u64,
                Unexpected::Long(header) => header.total,
            },
        })
    }

    /// Moves the data of a long message.
    fn fetch(&self, envelope: Envelope, header: &Header, elements: &Elements) -> Result<Status> {
        let rank = envelope.source;
        let (view, capacity) = (elements.view(), elements.bytes());
        // SAFETY: the program has lent its elements until this request is complete; the header came
        // through the team's ring.
        let received = unsafe { self.endpoint.receive(header, &view, capacity) };
        // The sender may sleep until its buffer is free.
        self.team.block(rank).bell.ring();
        match received {
            Ok(bytes) => Ok(Status {
                source: rank,
                tag: envelope.tag,
                bytes,
            }),
            Err(ReceiveError::Truncated) => Err(Error::Truncated {
                bytes: header.total,
                capacity: elements.bytes(),
            }),
            Err(ReceiveError::Claimed) => Err(Error::Message {
                rank,
                why: "its sender has taken it back".to_owned(),
            }),
            Err(ReceiveError::Failed(why)) => Err(Error::Message { rank, why }),
        }
    }

    /// Takes what has come, sends what is queued, and goes on with what is under way.
    pub(crate) fn progress(&mut self) -> Result<()> {
        self.poll()?;
        if self.queued > 0 {
            self.send_queued()?;
        }
        self.endpoint.attend_all();
        Ok(())
    }

    fn send_queued(&mut self) -> Result<()> {
        for to in 0..self.size {
            while let Some(mut first) = self.queues[to].pop_front() {
                let (elements, owned) = (&first.elements, &mut first.owned);
                let sent = self.try_send(elements, owned, to, first.tag)?;
                let status = self.sent(&first.elements, first.tag);
                let state = match sent {
                    Some(Sent::Whole) => State::Done(Ok(status)),
                    Some(Sent::Announced(shared)) => State::Sending(shared, status),
                    None => {
                        self.queues[to].push_front(first);
                        break;
                    }
                };
                self.queued -= 1;
                // A request that was given up has none.
                if let Some(known) = self.requests.get_mut(&first.request) {
                    *known = state;
                }
            }
        }
        Ok(())
    }

    fn sent(&self, elements: &Elements, tag: i32) -> Status {
        Status {
            source: self.rank,
            tag,
            bytes: elements.bytes(),
        }
    }

    /// Takes what has come.
    fn poll(&mut self) -> Result<()> {
        for index in 0..self.size.div_ceil(64) {
            let word = &self.team.block(self.rank).arrivals[index];
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut senders = word.swap(0, Ordering::AcqRel);
            while senders != 0 {
                let sender = 64 * index + senders.trailing_zeros() as usize;
                senders &= senders - 1;
                if sender < self.size && sender != self.rank {
                    self.drain(sender)?;
                }
            }
        }
        Ok(())
    }

    /// Takes all frames of a sender.
    fn drain(&mut self, sender: usize) -> Result<()> {
        let memory = self.memory.clone();
        let (head, tail) = (
            memory.head(sender, self.rank),
            memory.tail(sender, self.rank),
        );
        let base = memory.bytes(sender, self.rank);
        let mut any = false;
        while self.inbox[sender].available(LINE, head)? > 0 {
            any = true;
            let ring = &mut self.inbox[sender];
            // SAFETY: a line is there, aligned to one. A peer that writes to it now is buggy; what
            // is read is checked.
            let line = unsafe {
                let line = base.add(ring.position()).cast::<[u64; 8]>();
                line.read_volatile()
            };
            let [first, len, ..] = line;
            let (kind, tag) = (first >> 32 & 0xFFFF, first as u32 as i32);
            let most = memory.ring() as u64 - LINE as u64;
            if first >> 48 != MAGIC || len > most || tag < 0 {
                return Err(Error::corrupt("a frame of messages", first));
            }
            ring.advance(LINE);
            let (at, len) = (ring.position(), len as usize);
            let straight = len.min(memory.ring() - at);
            // SAFETY: the frame's bytes are there, the last ones at the ring's start, and stay
            // until the tail is moved.
            let parts = unsafe {
                [
                    std::slice::from_raw_parts(base.add(at), straight),
                    std::slice::from_raw_parts(base, len - straight),
                ]
            };
            let envelope = Envelope {
                source: sender,
                tag,
            };
            let mut header = None;
            match kind {
                kind::EAGER => self.take_eager(envelope, parts),
                kind::LONG => header = Some(self.header(sender, parts)?),
                _ => return Err(Error::corrupt("a kind of messages", kind)),
            }
            let ring = &mut self.inbox[sender];
            ring.advance(len.next_multiple_of(LINE));
            ring.release(tail);
            if let Some(header) = header {
                self.take_long(envelope, header)?;
            }
        }
        if any {
            // It may wait for room.
            self.team.block(sender).bell.ring();
        }
        Ok(())
    }

    fn take_eager(&mut self, envelope: Envelope, parts: [&[u8]; 2]) {
        match self.matcher.claim(envelope) {
            Some(posted) => {
                let outcome = deliver(envelope, &posted.elements, parts);
                self.requests.insert(posted.request, State::Done(outcome));
            }
            None => {
                let message = Unexpected::Eager(parts.concat());
                self.matcher.keep(envelope, message);
            }
        }
    }

    /// The header of a long message.
    fn header(&self, sender: usize, parts: [&[u8]; 2]) -> Result<Header> {
        let bytes: Option<[u8; header::BYTES]> = parts.concat().try_into().ok();
        let header = bytes.and_then(|bytes| Header::read(&bytes, HEADERS));
        header
            .filter(|header| header.sender as usize == sender && (header.slot as usize) < SLOTS)
            .ok_or_else(|| Error::corrupt("the header of a message", sender as u64))
    }

    fn take_long(&mut self, envelope: Envelope, header: Header) -> Result<()> {
        match self.matcher.claim(envelope) {
            Some(posted) => {
                let outcome = self.fetch(envelope, &header, &posted.elements);
                self.requests.insert(posted.request, State::Done(outcome));
            }
            None => {
                let is_left = self.left[envelope.source] < MOST_LEFT;
                // Its length is what the sender says: without room for it, it stays where it is.
                let len = usize::try_from(header.total).unwrap_or(usize::MAX);
                let room = if is_left { None } else { zeros(len).ok() };
                let Some(mut bytes) = room else {
                    self.left[envelope.source] += 1;
                    self.matcher.keep(envelope, Unexpected::Long(header));
                    return Ok(());
                };
                let elements = Elements::of_owned(&mut bytes);
                self.fetch(envelope, &header, &elements)?;
                self.matcher.keep(envelope, Unexpected::Eager(bytes));
            }
        }
        Ok(())
    }

    /// What has become of a request, once that is known; its number means nothing any more then.
    pub(crate) fn test(&mut self, request: u64) -> Option<Result<Status>> {
        match self.requests.get(&request) {
            Some(State::Queued | State::Receiving) => return None,
            Some(State::Sending(shared, _)) => {
                let mut message = lock(shared);
                let endpoint = &self.endpoint;
                // Nobody knows when the program asks again.
                let is_free = message.attend(endpoint, false)
                    || message.is_impatient(endpoint) && message.buffer(endpoint);
                if !is_free {
                    return None;
                }
            }
            Some(State::Done(_)) => {}
            None => {
                let why = "one that is not complete";
                return Some(Err(Error::argument("a request", request, why)));
            }
        }
        Some(match self.requests.remove(&request) {
            Some(State::Done(outcome)) => outcome,
            Some(State::Sending(_, status)) => Ok(status),
            _ => Err(Error::corrupt("a request", request)),
        })
    }

    /// Whether the process of a rank has ended.
    pub(crate) fn has_ended(&self, rank: usize) -> bool {
        matches!(self.team.holder(rank), Ok(None))
    }

    /// Says which ranks have left the team.
    pub(crate) fn left_ranks(&self) -> impl Fn(usize) -> bool + use<> {
        let team = self.team.clone();
        move |rank| team.block(rank).left.load(Ordering::Acquire) != 0
    }

    /// Whether somebody waits for bytes that only this rank can hand over.
    pub(crate) fn is_needed(&self) -> bool {
        self.queued > 0 || !outgoing::is_quiet() && self.endpoint.is_needed()
    }

    /// The program wants its buffers back, whatever becomes of these messages: what was not
    /// received yet is cancelled, and what was not sent yet is copied.
    pub(crate) fn abandon(&mut self, requests: &[u64]) -> Result<()> {
        let is_meant = |posted: &Posted| requests.contains(&posted.request);
        self.matcher.cancel(is_meant);
        for queue in &mut self.queues {
            for queued in queue
                .iter_mut()
                .filter(|one| requests.contains(&one.request))
            {
                if queued.owned.is_none() {
                    let mut owned = packed(&queued.elements)?;
                    queued.elements = Elements::of_owned(&mut owned);
                    queued.owned = Some(owned);
                }
            }
        }
        for request in requests {
            if let Some(State::Sending(shared, _)) = self.requests.remove(request) {
                self.free_buffer(&shared, false);
            }
        }
        Ok(())
    }

    /// The team is broken: nobody reads our buffers any more when this returns.
    pub(crate) fn give_up(&mut self) {
        self.matcher.cancel(|_| true);
        self.queues.iter_mut().for_each(VecDeque::clear);
        self.queued = 0;
        let requests = std::mem::take(&mut self.requests);
        for state in requests.into_values() {
            if let State::Sending(shared, _) = state {
                self.free_buffer(&shared, true);
            }
        }
    }

    /// Has a message's buffer be free: taken back if nobody has begun to receive it (`retract`),
    /// copied, or received by the thread that has begun.
    fn free_buffer(&self, shared: &Shared, retract: bool) {
        let mut pause = Pause::new();
        loop {
            {
                let (mut message, endpoint) = (lock(shared), &self.endpoint);
                let is_free = retract && message.retract(endpoint)
                    || message.attend(endpoint, true)
                    || !retract && message.buffer(endpoint);
                if is_free {
                    return;
                }
                if pause.should_look() && message.is_lost(endpoint) {
                    message.lose(endpoint);
                    return;
                }
            }
            pause.step();
        }
    }

    /// Waits until nobody needs anything of this rank any more. Messages to ranks that leave, too,
    /// are lost.
    pub(crate) fn leave(&mut self, is_broken: impl Fn() -> bool) {
        let me = self.team.block(self.rank);
        me.deaf.store(1, Ordering::Release);
        for rank in (0..self.size).filter(|rank| *rank != self.rank) {
            self.team.block(rank).bell.ring();
        }
        let mut pause = Pause::new();
        while !is_broken() && self.progress().is_ok() {
            let queued = (0..self.size).filter(|rank| !self.queues[*rank].is_empty());
            let mut waiting = self.endpoint.receivers();
            waiting.extend(queued);
            let listens = |rank: &usize| {
                let block = self.team.block(*rank);
                block.left.load(Ordering::Acquire) == 0 && block.deaf.load(Ordering::Acquire) == 0
            };
            waiting.retain(listens);
            if waiting.is_empty() {
                break;
            }
            pause.step();
            if pause.should_look() && waiting.iter().all(|rank| self.has_ended(*rank)) {
                break;
            }
        }
        // What is left nobody will receive, unless somebody has begun.
        for shared in self.endpoint.unfinished() {
            let mut pause = Pause::new();
            loop {
                {
                    let mut message = lock(&shared);
                    if message.retract(&self.endpoint) {
                        break;
                    }
                    message.attend(&self.endpoint, true);
                    if pause.should_look() && !message.receiver_lives(&self.endpoint) {
                        break;
                    }
                }
                pause.step();
            }
        }
    }
}

/// Only elements of other libraries have error codes, and here are none.
fn corrupt_code(code: i32) -> Error {
    Error::corrupt("the result of packing", code as u64)
}

/// A copy of the elements' bytes.
fn packed(elements: &Elements) -> Result<Vec<u8>> {
    let len = usize::try_from(elements.bytes()).unwrap_or(usize::MAX);
    let mut bytes = zeros(len)?;
    // SAFETY: the program has lent its elements; the vector has room for all of them.
    unsafe {
        elements
            .view()
            .pack(0..elements.bytes(), bytes.as_mut_ptr())
    }
    .map_err(corrupt_code)?;
    Ok(bytes)
}

/// Puts the bytes of a message, which are in two parts, into the elements of a receive.
fn deliver(envelope: Envelope, elements: &Elements, parts: [&[u8]; 2]) -> Result<Status> {
    let bytes = parts.iter().map(|part| part.len() as u64).sum();
    if bytes > elements.bytes() {
        return Err(Error::Truncated {
            bytes,
            capacity: elements.bytes(),
        });
    }
    let (view, mut at) = (elements.view(), 0);
    for part in parts.iter().filter(|part| !part.is_empty()) {
        let range = at..at + part.len() as u64;
        at = range.end;
        // SAFETY: the program has lent its elements, which have room for all bytes.
        unsafe { view.unpack(part.as_ptr(), range) }.map_err(corrupt_code)?;
    }
    Ok(Status {
        source: envelope.source,
        tag: envelope.tag,
        bytes,
    })
}
