// SPDX-License-Identifier: MIT OR Apache-2.0

//! What this process knows of its peers and of the messages under way.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use libcopy::datatype::Layout;
use libcopy::lock::lock;
use libcopy_rdma::gather::Buffer;
use libcopy_rdma::transfer::{Link, TransferId};

use crate::library::abi::{Abi, Word};
use crate::rdma::control::{Channel, Data, UnsentHeader};
use crate::rdma::link::{Adapter, Mail};
use crate::rdma::memory::Watch;
use crate::rdma::peer::{Peer, Retired};
use crate::rdma::wire::{Envelope, Wire};

/// Elements of the program's that stay where they are until a message is complete.
#[derive(Clone, Debug)]
pub struct Elements {
    pub layout: Layout,
    /// The address that the layout's offsets count from.
    pub base: u64,
}

impl Elements {
    /// As the link wants them, which the program has lent for a message over it.
    pub(super) fn lent(&self, watch: &mut Watch, link: &Link<Mail>) -> Buffer<'_> {
        Buffer {
            layout: &self.layout,
            base: self.base,
            memory: watch.memory(link, &self.layout, self.base),
        }
    }
}

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The receiver's rank in `MPI_COMM_WORLD`.
    pub rank: c_int,
    pub envelope: Envelope,
    /// Which of this process's communicators it is: no two have the same number.
    pub communicator: u64,
}

/// How far a message that is sent is.
#[derive(Debug)]
pub(super) enum Sending {
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
pub(super) struct Outgoing {
    pub elements: Elements,
    pub state: Sending,
}

/// How far a message that is received is.
#[derive(Debug)]
pub(super) enum Receiving {
    /// The sender has been asked.
    Asked,
    /// The link moves it.
    Moving(TransferId),
    /// The MPI library does.
    Packed(Data),
    Done(Result<(), c_int>),
}

#[derive(Debug)]
pub(super) struct Incoming {
    pub elements: Elements,
    pub total: u64,
    pub state: Receiving,
}

/// A message's place: the peer's rank, and the number of the message.
pub(super) type Key = (c_int, u64);

/// What `pick` finds among the messages of a peer.
pub(super) fn of_peer<T, R>(
    all: &BTreeMap<Key, T>,
    rank: c_int,
    pick: impl Fn(&T) -> Option<R>,
) -> Vec<(Key, R)> {
    let its = all.range((rank, 0)..=(rank, u64::MAX));
    its.filter_map(|(key, message)| Some((*key, pick(message)?)))
        .collect()
}

#[derive(Debug)]
pub struct Engine {
    pub(super) abi: &'static Abi,
    /// Our rank in `MPI_COMM_WORLD`.
    pub(super) rank: c_int,
    pub(super) adapter: Option<Adapter>,
    /// Of the program's memory.
    pub(super) watch: Watch,
    pub(super) channels: Vec<Channel>,
    pub(super) peers: BTreeMap<c_int, Peer>,
    /// Ranks of `MPI_COMM_WORLD` by channel and place.
    pub(super) ranks: BTreeMap<(usize, c_int), c_int>,
    pub(super) outgoing: BTreeMap<Key, Outgoing>,
    pub(super) incoming: BTreeMap<Key, Incoming>,
    /// Headers whose senders have their buffers back.
    pub(super) unsent: Vec<UnsentHeader>,
    /// Bytes that nobody has room for.
    pub(super) unwanted: Vec<Data>,
    /// What the MPI library has said of a channel that it cannot use any more.
    pub(super) broken: Option<c_int>,
}

static ENGINE: Mutex<Option<Engine>> = Mutex::new(None);

/// Whether any process may be reached past the MPI library.
static ON: AtomicBool = AtomicBool::new(false);

/// Messages of the program's own that have the length of a header and went to processes that have
/// not been met: their receivers may probe for them later.
static BEFORE: Mutex<BTreeMap<c_int, Retired>> = Mutex::new(BTreeMap::new());

/// Whether messages may go over RDMA, and headers come.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Has nothing use it any more, in a forked child.
pub fn forget() {
    ON.store(false, Ordering::Relaxed);
}

/// Does something with the engine, if there is one.
pub(super) fn with<R>(work: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    if !is_on() {
        return None;
    }
    lock(&ENGINE).as_mut().map(work)
}

/// Does something with the engine, if there is one and nobody has it; who has it goes on.
pub(super) fn try_with(work: impl FnOnce(&mut Engine)) {
    if !is_on() {
        return;
    }
    if let Ok(mut engine) = ENGINE.try_lock() {
        if let Some(engine) = engine.as_mut() {
            work(engine);
        }
    }
}

/// Ends what [`meet`] has begun.
pub(super) fn take() -> Option<Engine> {
    ON.store(false, Ordering::Relaxed);
    lock(&ENGINE).take()
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
        watch: Watch::default(),
        channels: Vec::new(),
        peers: BTreeMap::new(),
        ranks: BTreeMap::new(),
        outgoing: BTreeMap::new(),
        incoming: BTreeMap::new(),
        unsent: Vec::new(),
        unwanted: Vec::new(),
        broken: None,
    });
}

/// Takes note of processes that have met, as each of them does. Those that had met before keep
/// their channel.
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
        let mut peer = Peer::new((channel, place), met.magic, least);
        peer.ours = lock(&BEFORE).remove(&rank).unwrap_or_default();
        let said = peer.ours.each();
        engine.peers.insert(rank, peer);
        ON.store(true, Ordering::Relaxed);
        engine.tell_all(rank, said.into_iter().map(Wire::Retired).collect());
    }
}

/// Whether messages may go to a rank of `MPI_COMM_WORLD` and come from it, and the bytes from which
/// on it looks at them.
pub fn reaches(rank: c_int) -> Option<u64> {
    with(|engine| engine.peers.get(&rank).map(|peer| peer.least))?
}

/// A message of the program's own to a rank on another machine has the length of a header: from now
/// on all in its envelope are its own.
pub fn notice_own(route: &Route) {
    let (rank, envelope) = (route.rank, route.envelope);
    let met = with(|engine| {
        let peer = engine.peers.get_mut(&rank)?;
        if let Some(said) = peer.ours.add(envelope) {
            engine.tell(rank, &Wire::Retired(said));
        }
        Some(())
    });
    if met.flatten().is_none() {
        lock(&BEFORE).entry(rank).or_default().add(envelope);
    }
}

impl Engine {
    pub(super) fn tell(&mut self, rank: c_int, wire: &Wire) {
        let Some(peer) = self.peers.get_mut(&rank) else {
            return;
        };
        peer.was_told = true;
        let told = self.channels[peer.channel].tell(self.abi, peer.place, wire.to_bytes());
        if let Err(code) = told {
            self.broken = Some(code);
        }
    }

    pub(super) fn tell_all(&mut self, rank: c_int, all: Vec<Wire>) {
        for wire in all {
            self.tell(rank, &wire);
        }
    }

    /// Makes the link to a peer, if there is none.
    pub(super) fn want_link(&mut self, rank: c_int) {
        let adapter = self.adapter.as_ref();
        if let Some(peer) = self.peers.get_mut(&rank) {
            let all = peer.link.want(rank, adapter);
            self.tell_all(rank, all);
        }
    }
}
