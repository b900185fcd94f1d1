// SPDX-License-Identifier: MIT OR Apache-2.0

//! A card in software, within one process: keys are lists of pieces, a WRITE copies. For exact
//! counts and for tests on machines without a card; what is measured with it says nothing of a
//! card's speed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::card::Card;
use crate::choice::Abilities;
use crate::cut::Limits;
use crate::endpoint::{Endpoint, Received};
use crate::error::{Error, Result};
use crate::iov::Iov;

/// A card in software.
#[derive(Debug)]
pub struct EmulatedCard {
    limits: Limits,
    keys: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    mapped: HashMap<u32, Option<Vec<Iov>>>,
    /// Registered memory, by the number that peers write by.
    memory: BTreeMap<u32, Vec<Iov>>,
    next: u32,
    /// Calls until one fails; none if none is to fail.
    calls_left: Option<u32>,
}

/// A key of the card.
#[derive(Debug)]
pub struct EmulatedKey {
    number: u32,
    card: Arc<EmulatedCard>,
}

impl Drop for EmulatedKey {
    fn drop(&mut self) {
        self.card.table().mapped.remove(&self.number);
    }
}

/// Registered memory of the card.
#[derive(Debug)]
pub struct EmulatedMemory {
    number: u32,
    card: Arc<EmulatedCard>,
}

impl Drop for EmulatedMemory {
    fn drop(&mut self) {
        self.card.table().memory.remove(&self.number);
    }
}

fn refused(operation: &'static str, why: &str) -> Error {
    Error::WorkRequest {
        operation,
        status: why.to_owned(),
        code: 10,
    }
}

/// What the card has at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// Keys that exist.
    pub keys: usize,
    /// Keys that are mapped.
    pub mapped: usize,
    /// Regions of registered memory.
    pub regions: usize,
}

impl EmulatedCard {
    /// A card with these limits.
    pub fn new(limits: Limits) -> Arc<EmulatedCard> {
        Arc::new(EmulatedCard {
            limits,
            keys: Mutex::default(),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.keys.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Creates a key.
    pub fn create(self: &Arc<Self>) -> EmulatedKey {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        table.mapped.insert(number, None);
        EmulatedKey {
            number,
            card: self.clone(),
        }
    }

    /// What exists now.
    pub fn live(&self) -> Live {
        let table = self.table();
        Live {
            keys: table.mapped.len(),
            mapped: table.mapped.values().filter(|list| list.is_some()).count(),
            regions: table.memory.len(),
        }
    }

    /// Has one later call fail: the next one that registers, maps, unmaps or posts for 0, the
    /// second for 1. None ends that.
    pub fn fail_after(&self, calls: Option<u32>) {
        self.table().calls_left = calls;
    }

    /// Calls until one is to fail; none if it has failed, or none was to.
    pub fn fail_left(&self) -> Option<u32> {
        self.table().calls_left
    }

    /// Counts a call; whether it is to fail.
    fn is_faulty(&self) -> bool {
        let mut table = self.table();
        let left = table.calls_left;
        table.calls_left = left.and_then(|left| left.checked_sub(1));
        left == Some(0)
    }

    fn pieces(&self, number: u32) -> Option<Vec<Iov>> {
        self.table().mapped.get(&number).cloned().flatten()
    }

    fn register(self: &Arc<Self>, pieces: &[Iov]) -> Result<EmulatedMemory> {
        if self.is_faulty() {
            return Err(Error::Register {
                addr: pieces.first().map_or(0, |piece| piece.addr),
                len: pieces.iter().map(|piece| piece.len).sum(),
                errno: libc::ENOMEM,
            });
        }
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        table.memory.insert(number, pieces.to_vec());
        Ok(EmulatedMemory {
            number,
            card: self.clone(),
        })
    }

    fn map(&self, key: &EmulatedKey, pieces: &[Iov]) -> Result<()> {
        if self.is_faulty() {
            return Err(refused("UMR", "injected"));
        }
        if pieces.len() > self.limits.max_iovs {
            return Err(refused("UMR", "more pieces than max_entries"));
        }
        match self.table().mapped.get_mut(&key.number) {
            Some(list @ None) => {
                *list = Some(pieces.to_vec());
                Ok(())
            }
            Some(Some(_)) => Err(refused("UMR", "the key is mapped already")),
            None => Err(refused("UMR", "no such key")),
        }
    }

    fn unmap(&self, key: &EmulatedKey) -> Result<()> {
        if self.is_faulty() {
            return Err(refused("LOCAL_INV", "injected"));
        }
        match self.table().mapped.get_mut(&key.number) {
            Some(list) => {
                *list = None;
                Ok(())
            }
            None => Err(refused("LOCAL_INV", "no such key")),
        }
    }
}

/// Copies what pieces have into others, of as many bytes.
///
/// # Safety
///
/// The pieces of `from` are readable and those of `to` writable memory of this process, to which
/// nobody else has a reference.
unsafe fn copy(from: &[Iov], to: &[Iov]) {
    let (mut from, mut to) = (from.iter().copied(), to.iter().copied());
    let mut source: Option<Iov> = None;
    let mut target: Option<Iov> = None;
    while let (Some(s), Some(t)) = (source.or_else(|| from.next()), target.or_else(|| to.next())) {
        let len = s.len.min(t.len);
        // SAFETY: both pieces have `len` bytes, which the caller says may be used. They may
        // overlap, as a card allows.
        unsafe { std::ptr::copy(s.addr as *const u8, t.addr as *mut u8, len as usize) };
        let rest = |iov: Iov| {
            (iov.len > len).then(|| Iov {
                addr: iov.addr + len,
                len: iov.len - len,
            })
        };
        (source, target) = (rest(s), rest(t));
    }
}

fn bytes(list: &[Iov]) -> u64 {
    list.iter().map(|iov| iov.len).sum()
}

/// What is posted to one end.
#[derive(Debug)]
enum Request {
    Write { from: Iov, remote: u64, rkey: u32 },
    Send(Vec<Iov>),
    Mapped { key: u32, rkey: u32 },
}

/// What one end has under way.
#[derive(Debug, Default)]
struct Queues {
    posted: VecDeque<(u64, Request)>,
    receives: VecDeque<(u64, Vec<Iov>)>,
    sent: VecDeque<u64>,
    received: VecDeque<Received>,
    is_ended: bool,
}

/// One end of a connection between two cards in software. Requests are executed one at a time, by
/// [`EmulatedEnd::run_one`] or, unless [`EmulatedEnd::hold`] was called, when somebody looks for
/// completions.
#[derive(Debug)]
pub struct EmulatedEnd {
    card: Arc<EmulatedCard>,
    peer_card: Arc<EmulatedCard>,
    /// The queues of both ends.
    queues: Arc<Mutex<[Queues; 2]>>,
    side: usize,
    queue: usize,
    with_lists: Option<Limits>,
    /// 1 if requests wait for [`EmulatedEnd::run_one`].
    is_held: AtomicU32,
}

impl EmulatedEnd {
    /// Both ends of a connection with queues of `queue` requests, and with scatter/gather lists if
    /// there are limits for them.
    pub fn pair(
        cards: [&Arc<EmulatedCard>; 2],
        queue: usize,
        with_lists: Option<Limits>,
    ) -> [Arc<EmulatedEnd>; 2] {
        let queues = Arc::<Mutex<[Queues; 2]>>::default();
        [0, 1].map(|side| {
            Arc::new(EmulatedEnd {
                card: cards[side].clone(),
                peer_card: cards[1 - side].clone(),
                queues: queues.clone(),
                side,
                queue,
                with_lists,
                is_held: AtomicU32::new(0),
            })
        })
    }

    /// Has requests wait for [`EmulatedEnd::run_one`].
    pub fn hold(&self) {
        self.is_held.store(1, Ordering::Relaxed);
    }

    fn queues(&self) -> MutexGuard<'_, [Queues; 2]> {
        self.queues.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn post(&self, id: u64, request: Request) -> Result<()> {
        let is_faulty = self.card.is_faulty();
        let mut queues = self.queues();
        let its = &mut queues[self.side];
        if its.is_ended || is_faulty {
            its.is_ended = true;
            return Err(refused("a request to send", "the connection has ended"));
        }
        if its.posted.len() + its.sent.len() >= self.queue {
            return Err(Error::Verbs {
                function: "post_send",
                errno: libc::ENOMEM,
            });
        }
        its.posted.push_back((id, request));
        Ok(())
    }

    /// Executes the oldest request of this end. Whether there was one.
    ///
    /// # Errors
    ///
    /// A request that the card or the peer's refuses; the connection has ended then.
    pub fn run_one(&self) -> Result<bool> {
        let mut queues = self.queues();
        if queues[self.side].is_ended {
            return Err(refused("a request to send", "the connection has ended"));
        }
        let Some((id, request)) = queues[self.side].posted.pop_front() else {
            return Ok(false);
        };
        if let Err(error) = self.execute(&mut queues, &request) {
            queues[self.side].is_ended = true;
            return Err(error);
        }
        queues[self.side].sent.push_back(id);
        Ok(true)
    }

    fn execute(&self, queues: &mut [Queues; 2], request: &Request) -> Result<()> {
        if queues[1 - self.side].is_ended {
            return Err(refused("a request to send", "the peer does not answer"));
        }
        match request {
            Request::Write { from, remote, rkey } => {
                let to = Iov {
                    addr: *remote,
                    len: from.len,
                };
                let table = self.peer_card.table();
                let regions = table.memory.get(rkey);
                let is_within = |region: &Iov| region.addr <= to.addr && to.end() <= region.end();
                if !regions.is_some_and(|regions| regions.iter().any(is_within)) {
                    return Err(refused("WRITE", "no such region"));
                }
                // SAFETY: who posted says that `from` is readable; the peer has registered `to` for
                // being written.
                unsafe { copy(&[*from], &[to]) };
            }
            Request::Send(from) => {
                let Some((id, to)) = queues[1 - self.side].receives.pop_front() else {
                    return Err(refused("SEND", "receiver not ready"));
                };
                if bytes(from) > bytes(&to) {
                    return Err(refused("SEND", "longer than the receive"));
                }
                // SAFETY: who posted them says that `from` is readable and `to` writable.
                unsafe { copy(from, &to) };
                queues[1 - self.side].received.push_back(Received {
                    id,
                    bytes: bytes(from) as u32,
                });
            }
            Request::Mapped { key, rkey } => {
                let unmapped = |whose| move || refused("WRITE", whose);
                let from = self.card.pieces(*key);
                let from = from.ok_or_else(unmapped("local key not mapped"))?;
                let to = self.peer_card.pieces(*rkey);
                let to = to.ok_or_else(unmapped("remote key not mapped"))?;
                if bytes(&from) != bytes(&to) || bytes(&from) > self.card.limits.max_bytes {
                    return Err(refused("WRITE", "length"));
                }
                // SAFETY: keys are mapped to memory of transfers under way or of cached buffers,
                // whose owners say that it may be read here and written there.
                unsafe { copy(&from, &to) };
            }
        }
        Ok(())
    }
}

impl Card for EmulatedEnd {
    type Key = EmulatedKey;
    type Memory = EmulatedMemory;

    fn limits(&self) -> Limits {
        self.card.limits
    }

    fn rkey(&self, key: &EmulatedKey) -> u32 {
        key.number
    }

    unsafe fn register(&self, pieces: &[Iov], _: bool) -> Result<EmulatedMemory> {
        self.card.register(pieces)
    }

    unsafe fn map(
        &self,
        key: &EmulatedKey,
        pieces: &[Iov],
        _: &EmulatedMemory,
        _: bool,
    ) -> Result<()> {
        self.card.map(key, pieces)
    }

    fn unmap(&self, key: &EmulatedKey) -> Result<()> {
        self.card.unmap(key)
    }
}

impl Endpoint for EmulatedEnd {
    fn abilities(&self) -> Abilities {
        Abilities {
            sge: self.with_lists,
            umr: Some(self.card.limits),
        }
    }

    fn max_message(&self) -> u64 {
        self.card.limits.max_bytes
    }

    fn queue(&self) -> usize {
        self.queue
    }

    fn memory_rkey(&self, memory: &EmulatedMemory) -> Result<u32> {
        Ok(memory.number)
    }

    unsafe fn write(
        &self,
        _: &EmulatedMemory,
        from: Iov,
        remote: u64,
        rkey: u32,
        id: u64,
    ) -> Result<()> {
        self.post(id, Request::Write { from, remote, rkey })
    }

    unsafe fn send(&self, _: Option<&EmulatedMemory>, window: &[Iov], id: u64) -> Result<()> {
        self.post(id, Request::Send(window.to_vec()))
    }

    unsafe fn receive(&self, _: &EmulatedMemory, window: &[Iov], id: u64) -> Result<()> {
        let is_faulty = self.card.is_faulty();
        let mut queues = self.queues();
        let its = &mut queues[self.side];
        if its.is_ended || is_faulty {
            its.is_ended = true;
            return Err(refused("a receive", "the connection has ended"));
        }
        if its.receives.len() + its.received.len() >= self.queue {
            return Err(Error::Verbs {
                function: "post_recv",
                errno: libc::ENOMEM,
            });
        }
        its.receives.push_back((id, window.to_vec()));
        Ok(())
    }

    fn write_mapped(&self, key: &EmulatedKey, rkey: u32, id: u64) -> Result<()> {
        let key = key.number;
        self.post(id, Request::Mapped { key, rkey })
    }

    fn next_sent(&self) -> Result<Option<u64>> {
        if let Some(id) = self.queues()[self.side].sent.pop_front() {
            return Ok(Some(id));
        }
        if self.queues()[self.side].is_ended {
            return Err(refused("a request to send", "the connection has ended"));
        }
        if self.is_held.load(Ordering::Relaxed) == 0 {
            self.run_one()?;
        }
        Ok(self.queues()[self.side].sent.pop_front())
    }

    fn next_received(&self) -> Result<Option<Received>> {
        let mut queues = self.queues();
        let its = &mut queues[self.side];
        match its.received.pop_front() {
            None if its.is_ended => Err(refused("a receive", "the connection has ended")),
            received => Ok(received),
        }
    }

    fn end(&self) {
        self.queues()[self.side].is_ended = true;
    }
}
