// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ranks within one process that send each other typed messages through the card in software, with
//! keys, pools and caches as over verbs. For exact counts: [`crate::counts`] and the tests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use libcopy_datatype::Layout;

use crate::channel::LocalChannel;
use crate::choice::Method;
use crate::cut::{CutRule, Limits};
use crate::emulated::{EmulatedCard, EmulatedEnd, EmulatedKey};
use crate::error::{Error, Result};
use crate::gather::Buffer;
use crate::keys::{Keys, Memory};
use crate::pool::{Pool, PoolSize};
use crate::transfer::{Link, Settings};

/// Which buffer a message uses, among those of a rank.
pub type BufferIndex = usize;

type LocalLink = Link<LocalChannel, EmulatedEnd>;

/// A process: its card, keys and memory.
#[derive(Debug)]
pub struct Rank {
    /// Its number.
    pub number: u32,
    /// Its card.
    pub card: Arc<EmulatedCard>,
    /// Its free keys.
    pub pool: Arc<Pool<EmulatedKey>>,
    /// Its mapped keys, and those of its peers.
    keys: Arc<Mutex<Keys<EmulatedEnd>>>,
    /// By peer, method and rule. Before the memory that they may write to.
    links: HashMap<(u32, Method, CutRule), LocalLink>,
    memory: Vec<Vec<u8>>,
    by_peer: HashMap<(u32, bool), BufferIndex>,
}

/// Requests of a connection's queues.
const QUEUE: usize = 256;

impl Rank {
    /// A rank with a pool of as many keys.
    ///
    /// # Errors
    ///
    /// A thread that cannot be started.
    pub fn new(number: u32, limits: Limits, keys: usize) -> Result<Rank> {
        let card = EmulatedCard::new(limits);
        let maker = card.clone();
        let size = PoolSize {
            initial: keys,
            step: keys,
            max: keys,
        };
        let pool = Arc::new(Pool::new(size, move || Ok(maker.create()))?);
        Ok(Rank {
            number,
            keys: Arc::new(Mutex::new(Keys::new(pool.clone()))),
            card,
            pool,
            links: HashMap::new(),
            memory: Vec::new(),
            by_peer: HashMap::new(),
        })
    }

    /// Its mapped keys, and those of its peers.
    pub fn keys(&self) -> MutexGuard<'_, Keys<EmulatedEnd>> {
        self.keys.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A buffer for elements of a layout, for [`message_into`].
    pub fn shared_buffer(&mut self, layout: &Layout) -> BufferIndex {
        let bounds = layout.bounds();
        self.memory
            .push(vec![0; (bounds.end - bounds.start) as usize]);
        self.memory.len() - 1
    }

    fn buffer(&mut self, peer: u32, sends: bool, layout: &Layout) -> BufferIndex {
        if let Some(buffer) = self.by_peer.get(&(peer, sends)) {
            return *buffer;
        }
        let buffer = self.shared_buffer(layout);
        self.by_peer.insert((peer, sends), buffer);
        buffer
    }

    fn elements<'a>(&self, buffer: BufferIndex, layout: &'a Layout, memory: Memory) -> Buffer<'a> {
        let start = self.memory[buffer].as_ptr() as u64;
        Buffer {
            layout,
            base: start.wrapping_add_signed(-layout.bounds().start),
            memory,
        }
    }
}

/// Two of the ranks.
///
/// # Panics
///
/// If `first` and `second` are the same, or not below the number of ranks.
pub fn two(all: &mut [Rank], first: usize, second: usize) -> (&mut Rank, &mut Rank) {
    let (low, high) = all.split_at_mut(first.max(second));
    if first < second {
        (&mut low[first], &mut high[0])
    } else {
        (&mut high[0], &mut low[second])
    }
}

/// What a message took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Keys that the receiver mapped.
    pub keys: u64,
    /// Bytes of keys in its CTS.
    pub cts_bytes: u64,
    /// WRITEs.
    pub writes: u64,
    /// How it was moved.
    pub method: Method,
    /// Whether the receiver's memory has every byte that packing and unpacking gives it, and no
    /// other.
    pub right: bool,
}

/// Sends a message into the receiver's buffer for this sender, with cuts by [`CutRule::Agreed`].
///
/// # Errors
///
/// As for [`Link::wait`].
pub fn message(
    sender: &mut Rank,
    receiver: &mut Rank,
    from: &Layout,
    to: &Layout,
    memory: Memory,
) -> Result<Done> {
    message_by(sender, receiver, from, to, memory, CutRule::Agreed)
}

/// Sends a message into the receiver's buffer for this sender, with cuts by `rule`.
///
/// # Errors
///
/// As for [`Link::wait`].
pub fn message_by(
    sender: &mut Rank,
    receiver: &mut Rank,
    from: &Layout,
    to: &Layout,
    memory: Memory,
    rule: CutRule,
) -> Result<Done> {
    let buffer = receiver.buffer(sender.number, false, to);
    transfer(
        sender,
        receiver,
        [from, to],
        buffer,
        memory,
        (Method::Umr, rule),
    )
}

/// Sends a message into a buffer of [`Rank::shared_buffer`].
///
/// # Errors
///
/// As for [`Link::wait`].
pub fn message_into(
    sender: &mut Rank,
    receiver: &mut Rank,
    from: &Layout,
    to: &Layout,
    buffer: BufferIndex,
    memory: Memory,
) -> Result<Done> {
    let way = (Method::Umr, CutRule::Agreed);
    transfer(sender, receiver, [from, to], buffer, memory, way)
}

/// Fills a buffer so that no byte is zero and neighbours differ.
pub fn fill(bytes: &mut [u8]) {
    let pattern: Vec<u8> = (0..256).map(|index| (index * 7 + 1) as u8 | 1).collect();
    for chunk in bytes.chunks_mut(pattern.len()) {
        chunk.copy_from_slice(&pattern[..chunk.len()]);
    }
}

fn origin(layout: &Layout) -> isize {
    (-layout.bounds().start) as isize
}

/// Connects two ranks for messages of one method and rule, unless they are.
fn connect(sender: &mut Rank, receiver: &mut Rank, (method, rule): (Method, CutRule)) {
    if sender.links.contains_key(&(receiver.number, method, rule)) {
        return;
    }
    let cards = [&sender.card, &receiver.card];
    let ends = EmulatedEnd::pair(cards, QUEUE, None);
    let settings = Settings {
        rule,
        only: Some(method),
        ..Settings::default()
    };
    let numbers = [sender.number, receiver.number];
    let ranks = [sender, receiver].into_iter().zip([numbers[1], numbers[0]]);
    for ((rank, peer), (end, channel)) in ranks.zip(ends.into_iter().zip(LocalChannel::pair())) {
        let link = Link::over(end, channel, peer, &settings, Some(rank.keys.clone()));
        rank.links.insert((peer, method, rule), link);
    }
}

fn transfer(
    sender: &mut Rank,
    receiver: &mut Rank,
    [from, to]: [&Layout; 2],
    target: BufferIndex,
    memory: Memory,
    way: (Method, CutRule),
) -> Result<Done> {
    connect(sender, receiver, way);
    let source = sender.buffer(receiver.number, true, from);
    fill(&mut sender.memory[source]);
    receiver.memory[target].fill(0);
    let source_elements = sender.elements(source, from, memory);
    let target_elements = receiver.elements(target, to, memory);
    let before = receiver.keys().counts();
    let missing = || Error::NoDevice("the ranks are not connected".to_owned());
    let (peer, own) = (receiver.number, sender.number);
    let out = sender.links.get_mut(&(peer, way.0, way.1));
    let out = out.ok_or_else(missing)?;
    let into = receiver.links.get_mut(&(own, way.0, way.1));
    let into = into.ok_or_else(missing)?;
    // SAFETY: the elements lie in the two ranks' `memory`, which is used by nobody else: both are
    // borrowed until the transfers have ended, and their links are dropped before it.
    let (sent, received) = unsafe {
        (
            out.start_send(&source_elements)?,
            into.start_receive(&target_elements)?,
        )
    };
    // Until nothing moves any more: entries of caches that have to go are told of behind the
    // message.
    loop {
        let has_moved = [out.progress()?, into.progress()?];
        if has_moved == [false; 2] {
            break;
        }
    }
    let unfinished = || Error::corrupt(own, "messages that have ended", 0);
    let (sent, received) = (out.test(sent), into.test(received));
    let sent = sent.ok_or_else(unfinished)??;
    let received = received.ok_or_else(unfinished)??;
    let after = receiver.keys().counts();
    Ok(Done {
        keys: after.mapped - before.mapped,
        cts_bytes: after.key_bytes - before.key_bytes,
        writes: sent.requests,
        method: received.method,
        right: receiver.memory[target]
            == expected(&sender.memory[source], from, &receiver.memory[target], to)?,
    })
}

/// Sends a packed message: WRITEs of at most [`STAGE`](crate::gather::STAGE) bytes between staging
/// buffers.
///
/// # Errors
///
/// As for [`Link::wait`].
pub fn packed(sender: &mut Rank, receiver: &mut Rank, from: &Layout, to: &Layout) -> Result<Done> {
    let buffer = receiver.buffer(sender.number, false, to);
    let way = (Method::Pack, CutRule::Agreed);
    let memory = Memory::Unwatched;
    transfer(sender, receiver, [from, to], buffer, memory, way)
}

/// What unpacking the sender's packed bytes makes of the receiver's memory, which was zero.
fn expected(source: &[u8], from: &Layout, target: &[u8], to: &Layout) -> Result<Vec<u8>> {
    let mut packed = vec![0; from.size() as usize];
    from.pack(source, origin(from), &mut packed)?;
    let mut expected = vec![0; target.len()];
    to.unpack(&packed, &mut expected, origin(to))?;
    Ok(expected)
}
