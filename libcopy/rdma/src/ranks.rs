// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ranks within one process that send each other typed messages through the card in software, with keys, pools and
//! caches as over verbs. For exact counts: [`crate::counts`] and the tests.

use std::collections::HashMap;
use std::sync::Arc;

use libcopy_datatype::Layout;

use crate::cache::RemoteKeys;
use crate::card::Card;
use crate::cut::{CutRule, Cuts, Limits, chunk_size, maximal_cuts};
use crate::emulated::{EmulatedCard, EmulatedKey};
use crate::error::{Error, Result};
use crate::gather::STAGE;
use crate::iov::{Shape, iovs};
use crate::keys::{Keys, Memory};
use crate::pool::{Pool, PoolSize};

/// Which buffer a message uses, among those of a rank.
pub type BufferIndex = usize;

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
    pub keys: Keys<EmulatedCard>,
    memory: Vec<Vec<u8>>,
    by_peer: HashMap<(u32, bool), BufferIndex>,
}

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
            keys: Keys::new(card.clone(), pool.clone()),
            card,
            pool,
            memory: Vec::new(),
            by_peer: HashMap::new(),
        })
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

    /// The address that a layout's offsets count from.
    fn base(&self, buffer: BufferIndex, layout: &Layout) -> u64 {
        (self.memory[buffer].as_ptr() as u64).wrapping_add_signed(-layout.bounds().start)
    }
}

/// Two of the ranks.
///
/// # Panics
///
/// If they are the same, or there are not so many.
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
    /// Whether the receiver's memory has every byte that packing and unpacking gives it, and no other.
    pub right: bool,
}

/// Sends a message into the receiver's buffer for this sender, with cuts by [`CutRule::Agreed`].
///
/// # Errors
///
/// As for [`Keys::map`].
pub fn message(
    sender: &mut Rank,
    receiver: &mut Rank,
    from: &Layout,
    to: &Layout,
    memory: Memory,
) -> Result<Done> {
    message_by(sender, receiver, from, to, memory, CutRule::Agreed)
}

/// The same with cuts by a rule.
///
/// # Errors
///
/// As for [`Keys::map`].
pub fn message_by(
    sender: &mut Rank,
    receiver: &mut Rank,
    from: &Layout,
    to: &Layout,
    memory: Memory,
    rule: CutRule,
) -> Result<Done> {
    let buffer = receiver.buffer(sender.number, false, to);
    transfer(sender, receiver, from, to, buffer, memory, rule)
}

/// The same into a buffer of [`Rank::shared_buffer`].
///
/// # Errors
///
/// As for [`Keys::map`].
pub fn message_into(
    sender: &mut Rank,
    receiver: &mut Rank,
    from: &Layout,
    to: &Layout,
    buffer: BufferIndex,
    memory: Memory,
) -> Result<Done> {
    transfer(sender, receiver, from, to, buffer, memory, CutRule::Agreed)
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

fn transfer(
    sender: &mut Rank,
    receiver: &mut Rank,
    from: &Layout,
    to: &Layout,
    target: BufferIndex,
    memory: Memory,
    rule: CutRule,
) -> Result<Done> {
    let source = sender.buffer(receiver.number, true, from);
    fill(&mut sender.memory[source]);
    receiver.memory[target].fill(0);
    let (from_base, to_base) = (sender.base(source, from), receiver.base(target, to));
    let limits = sender.card.limits().common(&receiver.card.limits());
    let before = receiver.keys.counts();
    let cuts = match rule {
        CutRule::Agreed => Cuts::Every(chunk_size(&Shape::of(from), &Shape::of(to), &limits)),
        CutRule::Maximal => maximal_cuts(&iovs(from, from_base)?, &iovs(to, to_base)?, &limits)?,
    };
    // The receiver maps and sends a CTS.
    let theirs = receiver
        .keys
        .map(to, to_base, &cuts, memory, Some(sender.number))?;
    let sent = receiver.keys.announce(&theirs);
    // The sender maps and writes.
    let unknown = || Error::corrupt(receiver.number, "keys of a CTS", 0);
    let rkeys = match (sent, theirs.entry) {
        (Some(rkeys), entry) => {
            let keys = RemoteKeys {
                cuts,
                rkeys: rkeys.into(),
            };
            if let Some(entry) = entry {
                sender.keys.learn(receiver.number, entry, keys.clone());
            }
            keys
        }
        (None, Some(entry)) => sender
            .keys
            .recall(receiver.number, entry)
            .ok_or_else(unknown)?
            .clone(),
        (None, None) => return Err(unknown()),
    };
    let ours = sender
        .keys
        .map(from, from_base, &rkeys.cuts, memory, None)?;
    if ours.set.keys.len() != rkeys.rkeys.len() {
        return Err(unknown());
    }
    let mut writes = 0;
    for (key, rkey) in ours.set.keys.iter().zip(rkeys.rkeys.iter()) {
        // SAFETY: the pieces lie in the two ranks' `memory`, which both are borrowed for this call.
        unsafe { sender.card.write(key, &receiver.card, *rkey)? };
        writes += 1;
    }
    sender.keys.finish(ours)?;
    receiver.keys.finish(theirs)?;
    let after = receiver.keys.counts();
    Ok(Done {
        keys: after.mapped - before.mapped,
        cts_bytes: after.key_bytes - before.key_bytes,
        writes,
        right: receiver.memory[target]
            == expected(&sender.memory[source], from, &receiver.memory[target], to)?,
    })
}

/// Sends a packed message: WRITEs of at most [`STAGE`] bytes between staging buffers. With the card in software a WRITE
/// is the same staging buffer at both ends.
///
/// # Errors
///
/// None that a correct layout has.
pub fn packed(sender: &mut Rank, receiver: &mut Rank, from: &Layout, to: &Layout) -> Result<Done> {
    let source = sender.buffer(receiver.number, true, from);
    let target = receiver.buffer(sender.number, false, to);
    fill(&mut sender.memory[source]);
    receiver.memory[target].fill(0);
    let mut stage = vec![0; STAGE];
    let (mut position, mut writes) = (0, 0);
    while position < from.size() {
        let range = position..from.size().min(position + STAGE as u64);
        position = range.end;
        let from_base = sender.base(source, from) as *const u8;
        // SAFETY: `base` places the layout's bytes inside the sender's buffer; `stage` has room for the range.
        unsafe { from.pack_raw(from_base, range.clone(), stage.as_mut_ptr()) };
        let to_base = receiver.base(target, to) as *mut u8;
        // SAFETY: as above, of the receiver's buffer, which `receiver` borrows mutably.
        unsafe { to.unpack_raw(stage.as_ptr(), range, to_base) };
        writes += 1;
    }
    Ok(Done {
        keys: 0,
        cts_bytes: 0,
        writes,
        right: receiver.memory[target]
            == expected(&sender.memory[source], from, &receiver.memory[target], to)?,
    })
}

/// What unpacking the sender's packed bytes makes of the receiver's memory, which was zero.
fn expected(source: &[u8], from: &Layout, target: &[u8], to: &Layout) -> Result<Vec<u8>> {
    let mut packed = vec![0; from.size() as usize];
    from.pack(source, origin(from), &mut packed)?;
    let mut expected = vec![0; target.len()];
    to.unpack(&packed, &mut expected, origin(to))?;
    Ok(expected)
}

/// Delivers what `receiver` wants forgotten and the answers; how many there were. A rank that is not among `senders`
/// is left out.
///
/// # Errors
///
/// A key that cannot be unmapped.
pub fn deliver_forget(receiver: &mut Rank, senders: &mut [&mut Rank]) -> Result<usize> {
    let all = receiver.keys.take_forget();
    let mut delivered = 0;
    for forget in all {
        let sender = senders
            .iter_mut()
            .find(|sender| sender.number == forget.rank);
        if let Some(sender) = sender {
            sender.keys.forget(receiver.number, forget.entry);
            receiver.keys.forgotten(forget.rank, forget.entry)?;
            delivered += 1;
        }
    }
    Ok(delivered)
}
