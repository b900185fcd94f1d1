// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ranks within one process, on the card in software, and random layouts.

#![allow(dead_code)]

use std::collections::HashMap;
use std::sync::Arc;

use libcopy_datatype::{Datatype, Layout, Named};
use libcopy_rdma::cache::RemoteKeys;
use libcopy_rdma::card::Card;
use libcopy_rdma::emulated::{EmulatedCard, EmulatedKey};
use libcopy_rdma::keys::{Keys, Memory};
use libcopy_rdma::pool::{Pool, PoolSize};
use libcopy_rdma::{CutRule, Cuts, Iov, Limits, Result, Shape, chunk_size, iovs, maximal_cuts};
use proptest::prelude::*;

/// Which buffer a message uses, among those of a rank.
pub type Buffer = usize;

/// A process: its card, keys and memory.
pub struct Rank {
    pub number: u32,
    pub card: Arc<EmulatedCard>,
    pub pool: Arc<Pool<EmulatedKey>>,
    pub keys: Keys<EmulatedCard>,
    memory: Vec<Vec<u8>>,
    by_peer: HashMap<(u32, bool), Buffer>,
}

impl Rank {
    pub fn new(number: u32, limits: Limits, keys: usize) -> Rank {
        let card = EmulatedCard::new(limits);
        let maker = card.clone();
        let size = PoolSize {
            initial: keys,
            step: keys,
            max: keys,
        };
        let pool = Arc::new(Pool::new(size, move || Ok(maker.create())).unwrap());
        Rank {
            number,
            keys: Keys::new(card.clone(), pool.clone()),
            card,
            pool,
            memory: Vec::new(),
            by_peer: HashMap::new(),
        }
    }

    pub fn shared_buffer(&mut self, layout: &Layout) -> Buffer {
        let bounds = layout.bounds();
        self.memory
            .push(vec![0; (bounds.end - bounds.start) as usize]);
        self.memory.len() - 1
    }

    fn buffer(&mut self, peer: u32, sends: bool, layout: &Layout) -> Buffer {
        if let Some(buffer) = self.by_peer.get(&(peer, sends)) {
            return *buffer;
        }
        let buffer = self.shared_buffer(layout);
        self.by_peer.insert((peer, sends), buffer);
        buffer
    }

    /// The address that a layout's offsets count from.
    fn base(&self, buffer: Buffer, layout: &Layout) -> u64 {
        (self.memory[buffer].as_ptr() as u64).wrapping_add_signed(-layout.bounds().start)
    }
}

/// Two of the ranks.
pub fn two(all: &mut [Rank], first: usize, second: usize) -> (&mut Rank, &mut Rank) {
    let (low, high) = all.split_at_mut(first.max(second));
    if first < second {
        (&mut low[first], &mut high[0])
    } else {
        (&mut high[0], &mut low[second])
    }
}

/// What a message took.
#[derive(Debug)]
pub struct Done {
    /// Keys that the receiver mapped.
    pub keys: u64,
    pub cts_bytes: u64,
    pub writes: u64,
    pub right: bool,
}

pub fn message(
    sender: &mut Rank,
    receiver: &mut Rank,
    from: &Layout,
    to: &Layout,
    memory: Memory,
) -> Result<Done> {
    message_by(sender, receiver, from, to, memory, CutRule::Agreed)
}

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

pub fn message_into(
    sender: &mut Rank,
    receiver: &mut Rank,
    from: &Layout,
    to: &Layout,
    buffer: Buffer,
    memory: Memory,
) -> Result<Done> {
    transfer(sender, receiver, from, to, buffer, memory, CutRule::Agreed)
}

fn transfer(
    sender: &mut Rank,
    receiver: &mut Rank,
    from: &Layout,
    to: &Layout,
    target: Buffer,
    memory: Memory,
    rule: CutRule,
) -> Result<Done> {
    let source = sender.buffer(receiver.number, true, from);
    for (index, byte) in sender.memory[source].iter_mut().enumerate() {
        *byte = (index * 7 + 1) as u8 | 1;
    }
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
            .expect("told before")
            .clone(),
        (None, None) => panic!("keys for one message are always told"),
    };
    let ours = sender
        .keys
        .map(from, from_base, &rkeys.cuts, memory, None)?;
    assert_eq!(ours.set.keys.len(), rkeys.rkeys.len());
    let mut writes = 0;
    for (key, rkey) in ours.set.keys.iter().zip(rkeys.rkeys.iter()) {
        // SAFETY: the pieces lie in the ranks' memory.
        unsafe { sender.card.write(key, &receiver.card, *rkey)? };
        writes += 1;
    }
    sender.keys.finish(ours)?;
    receiver.keys.finish(theirs)?;
    // The oracle packs and unpacks.
    let mut packed = vec![0; from.size() as usize];
    let origin = |layout: &Layout| (-layout.bounds().start) as isize;
    from.pack(&sender.memory[source], origin(from), &mut packed)?;
    let mut expected = vec![0; receiver.memory[target].len()];
    to.unpack(&packed, &mut expected, origin(to))?;
    let after = receiver.keys.counts();
    Ok(Done {
        keys: after.mapped - before.mapped,
        cts_bytes: after.key_bytes - before.key_bytes,
        writes,
        right: receiver.memory[target] == expected,
    })
}

/// Delivers what `receiver` wants forgotten and the answers; how many there were.
pub fn deliver_forget(receiver: &mut Rank, senders: &mut [&mut Rank]) -> usize {
    let all = receiver.keys.take_forget();
    for forget in &all {
        let sender = senders
            .iter_mut()
            .find(|sender| sender.number == forget.rank)
            .expect("a sender of that number");
        sender.keys.forget(receiver.number, forget.entry);
        receiver.keys.forgotten(forget.rank, forget.entry).unwrap();
    }
    all.len()
}

/// Pieces of a list that the bytes `start..end` of its packed stream touch.
pub fn pieces(list: &[Iov], start: u64, end: u64) -> usize {
    let mut at = 0;
    let mut count = 0;
    for iov in list {
        if at < end && at + iov.len > start {
            count += 1;
        }
        at += iov.len;
    }
    count
}

/// A layout of `bytes` in blocks of the given lengths, repeated, in a random order in memory, with gaps.
fn layout(bytes: u64, lens: &[u64], gaps: &[u64], reversed: bool) -> Layout {
    let mut blocks = Vec::new();
    let mut place = 0_i64;
    let mut left = bytes;
    let mut index = 0;
    while left > 0 {
        let len = lens[index % lens.len()].min(left);
        blocks.push((len, place));
        place += (len + gaps[index % gaps.len()]) as i64;
        left -= len;
        index += 1;
    }
    let (mut lens, mut places): (Vec<u64>, Vec<i64>) = blocks.into_iter().unzip();
    if reversed {
        lens.reverse();
        places.reverse();
    }
    let byte = Datatype::named(Named::Uint8);
    Layout::new(&byte.hindexed(&lens, &places).unwrap(), 1).unwrap()
}

/// Two layouts of as many bytes.
pub fn pairs() -> impl Strategy<Value = (Layout, Layout)> {
    let side = || {
        (
            prop::collection::vec(1_u64..40, 1..5),
            prop::collection::vec(0_u64..9, 1..4),
            any::<bool>(),
        )
    };
    (1_u64..700, side(), side()).prop_map(|(bytes, from, to)| {
        (
            layout(bytes, &from.0, &from.1, from.2),
            layout(bytes, &to.0, &to.1, to.2),
        )
    })
}
