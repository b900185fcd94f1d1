// SPDX-License-Identifier: MIT OR Apache-2.0

//! Typed messages between two processes: RTS, CTS, the bytes by the chosen method, FIN.
//!
//! Which message goes where is the caller's to know: both ends name the same messages in the same order, as an MPI
//! library does that has matched them. A call waits until its message has been moved; two ends that both send first
//! wait for each other for ever, as with a synchronous `MPI_Ssend`.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::Arc;

use crate::choice::{Abilities, Method, Thresholds};
use crate::cut::CutRule;
use crate::error::{Error, Result};
use crate::gather::{Arrival, Buffer, Gather, Lists, Pack, Umr, lengths};
use crate::iov::Shape;
use crate::keys::{KeyCounts, Keys};
use crate::message::{Control, Offer};
use crate::pool::{Pool, PoolCounts, PoolSize};
use crate::verbs::{Address, Connection, Device, Mkey, Options, UmrCard};

/// What carries control messages to one peer, in order.
pub trait Channel {
    /// Sends one.
    ///
    /// # Errors
    ///
    /// [`Error::PeerGone`].
    fn send(&mut self, message: &[u8]) -> Result<()>;

    /// Waits for one.
    ///
    /// # Errors
    ///
    /// [`Error::PeerGone`].
    fn receive(&mut self) -> Result<Vec<u8>>;
}

/// Control messages over a socket, each behind its length.
#[derive(Debug)]
pub struct StreamChannel<S> {
    stream: S,
    rank: u32,
}

impl<S: Read + Write> StreamChannel<S> {
    /// A channel to `rank`.
    pub fn new(stream: S, rank: u32) -> StreamChannel<S> {
        StreamChannel { stream, rank }
    }

    fn gone(&self, error: &std::io::Error) -> Error {
        Error::PeerGone {
            rank: self.rank,
            reason: error.to_string(),
        }
    }
}

/// The most bytes of a control message.
const MAX_MESSAGE: usize = 1 << 28;

impl<S: Read + Write> Channel for StreamChannel<S> {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut bytes = (message.len() as u32).to_le_bytes().to_vec();
        bytes.extend(message);
        let sent = self.stream.write_all(&bytes);
        sent.map_err(|error| self.gone(&error))
    }

    fn receive(&mut self) -> Result<Vec<u8>> {
        let mut len = [0; 4];
        let received = self.stream.read_exact(&mut len);
        received.map_err(|error| self.gone(&error))?;
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_MESSAGE {
            return Err(Error::corrupt(self.rank, "length", len as u64));
        }
        let mut message = vec![0; len];
        let received = self.stream.read_exact(&mut message);
        received.map_err(|error| self.gone(&error))?;
        Ok(message)
    }
}

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

/// What a message took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How it was moved.
    pub method: Method,
    /// Work requests that moved its bytes; known to the sender alone.
    pub requests: u64,
    /// Whether another method had been chosen and could not be used.
    pub fell_back: bool,
}

/// The way to one peer.
#[derive(Debug)]
pub struct Link<C> {
    rank: u32,
    channel: C,
    settings: Settings,
    abilities: Abilities,
    pack: Pack,
    lists: Lists,
    /// Before the connection, through which its keys are unmapped.
    umr: Option<Umr>,
    pool: Option<Arc<Pool<Mkey>>>,
    /// Messages of the peer that came while one was sent.
    early: VecDeque<Control>,
    connection: Arc<Connection>,
}

/// Whether another method may still move the message: nothing of it has been posted, and the connection holds.
fn is_local(error: &Error) -> bool {
    matches!(
        error,
        Error::PoolExhausted { .. }
            | Error::Register { .. }
            | Error::TooManyIovs { .. }
            | Error::NoDevice(_)
            | Error::Verbs { .. }
            | Error::MissingFunction { .. }
    )
}

impl<C> Drop for Link<C> {
    fn drop(&mut self) {
        // From now on the peer cannot write here; if the device refuses, destroying the queue pair has the same effect.
        let _ = self.connection.disconnect();
    }
}

impl<C: Channel> Link<C> {
    /// Connects to `rank`, which does the same at the other end of the channel.
    ///
    /// # Errors
    ///
    /// A device without resources, no way between the devices, a peer that is gone.
    pub fn new(
        device: &Arc<Device>,
        mut channel: C,
        rank: u32,
        settings: Settings,
    ) -> Result<Link<C>> {
        let options = settings.options.unwrap_or_else(|| Options::of(device));
        let connection = Arc::new(Connection::new(device, options)?);
        channel.send(&connection.address().to_bytes())?;
        let theirs = channel.receive()?;
        let theirs = theirs
            .as_slice()
            .try_into()
            .map_err(|_| Error::corrupt(rank, "bytes of an address", theirs.len() as u64))?;
        connection.connect(&Address::from_bytes(theirs))?;
        // Nobody sends before both ends can receive.
        channel.send(&[])?;
        channel.receive()?;
        let mut abilities = device.abilities();
        let (mut umr, mut pool) = (None, None);
        if device.has_memory_keys() && options.maps_keys {
            let card = UmrCard::new(device);
            card.map_through(&connection);
            let its = device.clone();
            // A card that has no key left to give moves messages in the other ways.
            pool = Pool::new(settings.pool, move || Mkey::new(&its))
                .ok()
                .map(Arc::new);
            umr = pool
                .as_ref()
                .map(|keys| Umr::new(Keys::new(card, keys.clone()), rank));
        }
        if umr.is_none() {
            abilities.umr = None;
        }
        Ok(Link {
            rank,
            channel,
            settings,
            abilities,
            pack: Pack::default(),
            lists: Lists::default(),
            umr,
            pool,
            early: VecDeque::new(),
            connection,
        })
    }

    /// The connection.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// What was done with memory keys.
    pub fn key_counts(&self) -> KeyCounts {
        self.umr
            .as_ref()
            .map_or_else(KeyCounts::default, |umr| umr.keys.counts())
    }

    /// What the pool of keys has done.
    pub fn pool_counts(&self) -> PoolCounts {
        self.pool
            .as_ref()
            .map_or_else(PoolCounts::default, |pool| pool.counts())
    }

    /// Waits until the pool's thread has made what it was asked for.
    pub fn settle_pool(&self) {
        if let Some(pool) = &self.pool {
            pool.settle();
        }
    }

    fn tell(&mut self, message: &Control) -> Result<()> {
        self.channel.send(&message.to_bytes())
    }

    /// The next message of the peer that is not about caches, which are dealt with here.
    fn next(&mut self) -> Result<Control> {
        loop {
            let bytes = self.channel.receive()?;
            match Control::from_bytes(&bytes, self.rank)? {
                Control::Forget(entry) => {
                    if let Some(umr) = &mut self.umr {
                        umr.keys.forget(self.rank, entry);
                    }
                    self.tell(&Control::Forgotten(entry))?;
                }
                Control::Forgotten(entry) => {
                    if let Some(umr) = &mut self.umr {
                        umr.keys.forgotten(self.rank, entry)?;
                    }
                }
                other => return Ok(other),
            }
        }
    }

    fn unexpected(&self, message: &Control) -> Error {
        let kind = message.to_bytes().first().copied().unwrap_or(0);
        Error::corrupt(self.rank, "kind of message", kind.into())
    }

    /// Tells the peer which keys it is to forget.
    fn send_forget(&mut self) -> Result<()> {
        let all = match &mut self.umr {
            Some(umr) => umr.keys.take_forget(),
            None => Vec::new(),
        };
        for forget in all {
            match self.tell(&Control::Forget(forget.entry)) {
                // The message that was moved before is not lost; the next one says that the peer has ended.
                Err(Error::PeerGone { .. }) => {
                    return match &mut self.umr {
                        Some(umr) => umr.keys.rank_gone(self.rank),
                        None => Ok(()),
                    };
                }
                told => told?,
            }
        }
        Ok(())
    }

    fn gather(&mut self, method: Method) -> Result<&mut dyn Gather> {
        match method {
            Method::Pack => Ok(&mut self.pack),
            Method::Sge => Ok(&mut self.lists),
            Method::Umr => match &mut self.umr {
                Some(umr) => Ok(umr),
                None => Err(Error::corrupt(self.rank, "method", 2)),
            },
        }
    }

    /// Sends the elements of a buffer.
    ///
    /// # Errors
    ///
    /// [`Error::WorkRequest`] or [`Error::PeerGone`] if the connection has failed, after which it can only be dropped;
    /// [`Error::Size`] if the receiver has no room for exactly as many bytes; [`Error::Refused`] if it cannot take
    /// the message. After these two the link is as good as before, unless the receiver drops it.
    ///
    /// # Safety
    ///
    /// The buffer's memory is readable and does not change during the call.
    pub unsafe fn send(&mut self, from: &Buffer<'_>) -> Result<Report> {
        let shape = Shape::of(from.layout);
        self.pack.begin();
        self.tell(&Control::Rts {
            shape,
            abilities: self.abilities,
            lengths: lengths(from.layout, self.settings.rule),
        })?;
        let (mut requests, mut fell_back) = (0, false);
        loop {
            match self.next()? {
                Control::Cts(offer) => {
                    if let Some(entry) = self.lacks(&offer) {
                        self.tell(&Control::Missing(entry))?;
                        continue;
                    }
                    let method = offer.method();
                    let connection = self.connection.clone();
                    // SAFETY: the caller's promise.
                    let posted = unsafe { self.gather(method)?.post(&connection, from, &offer) };
                    match posted {
                        Ok(count) => requests += count,
                        Err(error) if method != Method::Pack && is_local(&error) => {
                            fell_back = true;
                            if let Offer::Sge(cuts) = &offer {
                                self.lists
                                    .post_empty(&connection, cuts.count(shape.bytes))?;
                            }
                            self.tell(&Control::Fin { is_done: false })?;
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                    self.tell(&Control::Fin { is_done: true })?;
                    if method != Method::Pack || self.pack.position() >= shape.bytes {
                        self.send_forget()?;
                        return Ok(Report {
                            method,
                            requests,
                            fell_back,
                        });
                    }
                }
                Control::Refused { room } if room == shape.bytes => {
                    return Err(Error::Refused { rank: self.rank });
                }
                Control::Refused { room } => {
                    return Err(Error::Size {
                        sender: shape.bytes,
                        receiver: room,
                    });
                }
                rts @ Control::Rts { .. } => self.early.push_back(rts),
                other => return Err(self.unexpected(&other)),
            }
        }
    }

    /// The entry that an offer names without its keys, if they are not known here.
    fn lacks(&self, offer: &Offer) -> Option<crate::cache::EntryId> {
        let Offer::Umr {
            rkeys: None,
            entry: Some(entry),
            ..
        } = offer
        else {
            return None;
        };
        let known = self.umr.as_ref()?.keys.recall(self.rank, *entry);
        known.is_none().then_some(*entry)
    }

    /// Receives elements into a buffer.
    ///
    /// # Errors
    ///
    /// As for [`Link::send`].
    ///
    /// # Safety
    ///
    /// The buffer's memory is writable, and nobody else uses it during the call. If the call fails, peers may write to
    /// it until the link is dropped.
    pub unsafe fn receive(&mut self, to: &Buffer<'_>) -> Result<Report> {
        let rts = match self.early.pop_front() {
            Some(rts) => rts,
            None => self.next()?,
        };
        let Control::Rts {
            shape,
            abilities,
            lengths,
        } = rts
        else {
            return Err(self.unexpected(&rts));
        };
        if shape.bytes != to.layout.size() {
            self.tell(&Control::Refused {
                room: to.layout.size(),
            })?;
            return Err(Error::Size {
                sender: shape.bytes,
                receiver: to.layout.size(),
            });
        }
        let rule = crate::message::rule(lengths.as_ref());
        let arrival = Arrival {
            shape,
            lengths,
            rank: self.rank,
        };
        let common = self.abilities.common(&abilities);
        let choice = self
            .settings
            .thresholds
            .choose(&shape, &Shape::of(to.layout), &common, rule);
        let mut method = match self.settings.only {
            Some(only) if only == Method::Pack || common.limits(only).is_some() => only,
            Some(_) => Method::Pack,
            None => choice.method,
        };
        if shape.bytes == 0 {
            method = Method::Pack;
        }
        self.pack.begin();
        let mut fell_back = false;
        loop {
            let connection = self.connection.clone();
            // SAFETY: the caller's promise.
            let offer = unsafe { self.gather(method)?.offer(&connection, to, &arrival) };
            match offer {
                Ok(offer) => self.tell(&Control::Cts(offer))?,
                Err(error) if method != Method::Pack && is_local(&error) => {
                    (method, fell_back) = (Method::Pack, true);
                    continue;
                }
                Err(error) => {
                    self.tell(&Control::Refused {
                        room: to.layout.size(),
                    })?;
                    return Err(error);
                }
            }
            if self.answer()? {
                // SAFETY: the caller's promise.
                let more = unsafe { self.gather(method)?.arrived(&connection, to)? };
                if !more {
                    self.send_forget()?;
                    return Ok(Report {
                        method,
                        requests: 0,
                        fell_back,
                    });
                }
            } else {
                if method == Method::Sge {
                    // The sender has met the receives with empty messages.
                    // SAFETY: the caller's promise.
                    unsafe { self.lists.arrived(&connection, to)? };
                }
                self.gather(method)?.abandon()?;
                (method, fell_back) = (Method::Pack, true);
            }
        }
    }

    /// Waits for the sender's answer to an offer: whether the bytes have arrived.
    fn answer(&mut self) -> Result<bool> {
        loop {
            match self.next()? {
                Control::Fin { is_done } => return Ok(is_done),
                Control::Missing(_) => {
                    let again = self.umr.as_ref().and_then(Umr::offer_again);
                    let again = again.ok_or_else(|| Error::corrupt(self.rank, "entry", 0))?;
                    self.tell(&Control::Cts(again))?;
                }
                rts @ Control::Rts { .. } => self.early.push_back(rts),
                other => return Err(self.unexpected(&other)),
            }
        }
    }
}
