// SPDX-License-Identifier: MIT OR Apache-2.0

//! A transfer at its sender: RTS, then for each CTS the requests that move its bytes, and a FIN
//! behind them.

use std::sync::Arc;

use crate::cache::{EntryId, RemoteKeys};
use crate::channel::Channel;
use crate::choice::Method;
use crate::cut::{Cuts, Limits, Windows};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result, is_local};
use crate::gather::{Held, MAX_WINDOWS, STAGE};
use crate::iov::{Elements, Iov, Shape};
use crate::keys::Memory;
use crate::message::{Control, Offer};
use crate::report::Report;
use crate::wire::{Post, Wire};
use libcopy_datatype::room;

/// What the sender waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A CTS.
    Cts,
    /// The keys that a CTS has named.
    Keys,
    /// Its requests.
    Requests,
    /// The requests without bytes that meet receives of a message that goes another way.
    Empty,
}

#[derive(Debug)]
pub(crate) struct Sending<E: Endpoint> {
    elements: Elements,
    memory: Memory,
    pub shape: Shape,
    state: State,
    held: Held<E>,
    /// Requests of the last CTS.
    posted: u64,
    /// Those that have not completed, posted or not.
    left: u64,
    /// Bytes that were moved by packing, and those under way.
    position: u64,
    chunk: u64,
    report: Report,
}

/// What comes of an event.
pub(crate) type Step = Option<Result<Report>>;

impl<E: Endpoint> Sending<E> {
    pub fn new(elements: Elements, memory: Memory) -> Sending<E> {
        let shape = elements.shape();
        Sending {
            report: Report {
                method: Method::Pack,
                requests: 0,
                fell_back: false,
                is_kept: false,
                bytes: shape.bytes,
            },
            shape,
            elements,
            memory,
            state: State::Cts,
            held: Held::Nothing,
            posted: 0,
            left: 0,
            position: 0,
            chunk: 0,
        }
    }

    pub fn into_held(self) -> Held<E> {
        self.held
    }

    /// The receiver has refused the message.
    ///
    /// # Errors
    ///
    /// A refusal of what it has accepted before.
    pub fn on_refused<C>(&mut self, room: u64, wire: &Wire<C, E>) -> Result<Step> {
        if self.state != State::Cts {
            return Err(wire.corrupt("room of a refusal", room));
        }
        Ok(Some(Err(if room < self.shape.bytes {
            Error::Size {
                sender: self.shape.bytes,
                receiver: room,
            }
        } else {
            Error::Refused { rank: wire.rank }
        })))
    }

    /// A CTS has come.
    ///
    /// # Errors
    ///
    /// What the connection does not survive.
    pub fn on_cts<C: Channel>(
        &mut self,
        number: u32,
        offer: &Offer,
        wire: &mut Wire<C, E>,
    ) -> Result<Step> {
        let has_keys = matches!(offer, Offer::Umr { rkeys: Some(_), .. });
        let is_expected = match self.state {
            State::Cts => true,
            State::Keys => has_keys,
            State::Requests | State::Empty => false,
        };
        if !is_expected {
            return Err(wire.corrupt("method of a CTS", offer.method() as u64));
        }
        let method = offer.method();
        if self.position > 0 && method != Method::Pack {
            return Err(wire.corrupt("method of a CTS", method as u64));
        }
        self.report.method = method;
        let prepared = match offer {
            Offer::Pack { addr, rkey, len } => self.pack(number, (*addr, *rkey, *len), wire),
            Offer::Sge(cuts) => self.lists(number, cuts, wire),
            Offer::Umr { cuts, rkeys, entry } => {
                let remote = match (cuts, rkeys, entry) {
                    (Some(cuts), Some(rkeys), entry) => {
                        let keys = RemoteKeys {
                            cuts: cuts.clone(),
                            rkeys: rkeys.as_slice().into(),
                        };
                        if let (Some(entry), Some(mut known)) = (entry, wire.keys()) {
                            known.learn(wire.rank, *entry, keys.clone());
                        }
                        keys
                    }
                    (None, None, Some(entry)) => match self.recall(*entry, wire)? {
                        Some(keys) => keys,
                        None => {
                            self.state = State::Keys;
                            let entry = *entry;
                            wire.tell(&Control::Missing { number, entry })?;
                            return Ok(None);
                        }
                    },
                    _ => return Err(wire.corrupt("keys of a CTS", 0)),
                };
                self.keys(number, &remote, wire)
            }
        };
        match prepared {
            Ok(()) => {
                self.state = State::Requests;
                self.posted = self.left;
            }
            // Not even a staging buffer: the receiver is told, and the link is as good as before.
            Err(error) if is_local(&error) && method == Method::Pack => {
                wire.tell(&Control::Fin {
                    number,
                    is_done: false,
                })?;
                return Ok(Some(Err(error)));
            }
            Err(error) if is_local(&error) => {
                self.report.fell_back = true;
                self.report.is_kept = false;
                self.state = State::Empty;
                self.left = 0;
                if let Offer::Sge(cuts) = offer {
                    self.left = cuts.count(self.shape.bytes);
                    // The receiver waits for them, so there is no other way.
                    room::reserve_queue(&mut wire.posts, self.left as usize)?;
                    let posts = (0..self.left).map(|_| (number, Post::Empty));
                    wire.posts.extend(posts);
                }
            }
            Err(error) => return Err(error),
        }
        if self.left == 0 {
            return self.on_all_completed(number, wire);
        }
        Ok(None)
    }

    fn recall<C>(&self, entry: EntryId, wire: &Wire<C, E>) -> Result<Option<RemoteKeys>> {
        let Some(keys) = wire.keys() else {
            return Err(wire.corrupt("method of a CTS", Method::Umr as u64));
        };
        Ok(keys.recall(wire.rank, entry).cloned())
    }

    fn pack<C>(
        &mut self,
        number: u32,
        (addr, rkey, len): (u64, u32, u64),
        wire: &mut Wire<C, E>,
    ) -> Result<()> {
        let expected = (self.shape.bytes - self.position).min(STAGE as u64);
        if len != expected {
            return Err(wire.corrupt("bytes of an offer", len));
        }
        if addr.checked_add(len).is_none() {
            return Err(wire.corrupt("address of an offer", addr));
        }
        self.chunk = len;
        self.left = 0;
        if len == 0 {
            return Ok(());
        }
        if !matches!(self.held, Held::Stage(_)) {
            self.held = Held::Stage(wire.stage(self.shape.bytes)?);
        }
        let Held::Stage(stage) = &mut self.held else {
            return Ok(());
        };
        let range = self.position..self.position + len;
        let from = self.elements.base as *const u8;
        // SAFETY: who started the send says that the layout's bytes are readable; the staging
        // buffer has room for `len`, since it was made for the message or for STAGE bytes.
        unsafe {
            let to = stage.bytes.as_mut_ptr();
            self.elements.layout.pack_raw(from, range, to);
        }
        let max = wire.endpoint.max_message().max(1);
        for offset in (0..len).step_by(usize::try_from(max).unwrap_or(usize::MAX)) {
            let post = Post::Write {
                offset,
                len: max.min(len - offset),
                remote: addr + offset,
                rkey,
            };
            wire.posts.push_back((number, post));
            self.left += 1;
        }
        Ok(())
    }

    /// Checks cuts that the peer has sent against what is possible here; gives the limits.
    fn check<C>(&self, cuts: &Cuts, limits: Option<Limits>, wire: &Wire<C, E>) -> Result<Limits> {
        let Some(limits) = limits else {
            return Err(wire.corrupt("method of a CTS", self.report.method as u64));
        };
        let count = cuts.count(self.shape.bytes);
        if count > MAX_WINDOWS {
            return Err(wire.corrupt("windows of a CTS", count));
        }
        let longest = match cuts {
            Cuts::Every(csize) => (*csize).min(self.shape.bytes),
            Cuts::Lengths(lengths) => lengths.iter().copied().max().unwrap_or(0),
        };
        if longest > limits.max_bytes {
            return Err(wire.corrupt("bytes of a window", longest));
        }
        Ok(limits)
    }

    /// Cuts that do not fit the message are the peer's mistake.
    fn wrong_sum<C>(error: Error, wire: &Wire<C, E>) -> Error {
        match error {
            Error::Size { sender, .. } => wire.corrupt("bytes of all windows", sender),
            other => other,
        }
    }

    fn lists<C>(&mut self, number: u32, cuts: &Cuts, wire: &mut Wire<C, E>) -> Result<()> {
        let limits = self.check(cuts, wire.abilities.sge, wire)?;
        let windows = Windows::new(&self.elements.iovs()?, cuts, limits.max_iovs)
            .map_err(|error| Self::wrong_sum(error, wire))?;
        let (memory, is_kept) = wire.register(&self.elements, self.memory, false)?;
        self.report.is_kept = is_kept;
        room::reserve_queue(&mut wire.posts, windows.len())?;
        let posts = (0..windows.len()).map(|index| (number, Post::Send(index)));
        wire.posts.extend(posts);
        self.left = windows.len() as u64;
        self.held = Held::Lists {
            memory,
            windows: Arc::new(windows),
        };
        Ok(())
    }

    fn keys<C>(&mut self, number: u32, remote: &RemoteKeys, wire: &mut Wire<C, E>) -> Result<()> {
        let count = remote.cuts.count(self.shape.bytes);
        if count != remote.rkeys.len() as u64 {
            return Err(wire.corrupt("keys of a CTS", remote.rkeys.len() as u64));
        }
        self.check(&remote.cuts, wire.abilities.umr, wire)?;
        let endpoint = wire.endpoint.clone();
        let Some(mut keys) = wire.keys() else {
            return Err(wire.corrupt("method of a CTS", Method::Umr as u64));
        };
        let elements = &self.elements;
        // SAFETY: the caller of `Link::start_matched_send` keeps the promises.
        let mapped = unsafe { keys.map(&*endpoint, elements, &remote.cuts, self.memory, None) };
        let mapped = mapped.map_err(|error| Self::wrong_sum(error, wire))?;
        drop(keys);
        self.report.is_kept = mapped.is_kept;
        self.held = Held::Keys(mapped);
        let posts = remote.rkeys.iter().enumerate();
        let posts = posts.map(|(index, rkey)| (number, Post::Mapped { index, rkey: *rkey }));
        wire.posts.extend(posts);
        self.left = count;
        Ok(())
    }

    /// Posts a request of this transfer.
    ///
    /// # Errors
    ///
    /// A connection that has failed.
    pub fn post<C>(&self, number: u32, post: Post, wire: &Wire<C, E>) -> Result<()> {
        let endpoint = &wire.endpoint;
        let id = u64::from(number);
        match (post, &self.held) {
            (
                Post::Write {
                    offset,
                    len,
                    remote,
                    rkey,
                },
                Held::Stage(stage),
            ) => {
                let piece = Iov {
                    addr: stage.addr() + offset,
                    len,
                };
                // SAFETY: the transfer holds the staging buffer until its requests have completed
                // or the connection has ended.
                unsafe { endpoint.write(&stage.memory, piece, remote, rkey, id) }
            }
            (Post::Send(index), Held::Lists { memory, windows }) => {
                let window = windows.get(index);
                // SAFETY: as above for the regions; who started the send says that the elements
                // stay.
                unsafe { endpoint.send(Some(memory), window, id) }
            }
            // SAFETY: no memory is named.
            (Post::Empty, _) => unsafe { endpoint.send(None, &[], id) },
            (Post::Mapped { index, rkey }, Held::Keys(mapped)) => {
                endpoint.write_mapped(&mapped.set.keys[index], rkey, id)
            }
            _ => Err(wire.corrupt("requests of a transfer", id)),
        }
    }

    /// One of its requests has completed.
    ///
    /// # Errors
    ///
    /// As for [`Sending::on_cts`].
    pub fn on_completed<C: Channel>(&mut self, number: u32, wire: &mut Wire<C, E>) -> Result<Step> {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return Ok(None);
        }
        self.on_all_completed(number, wire)
    }

    fn on_all_completed<C: Channel>(&mut self, number: u32, wire: &mut Wire<C, E>) -> Result<Step> {
        let is_done = self.state == State::Requests;
        self.state = State::Cts;
        if !is_done {
            wire.tell(&Control::Fin { number, is_done })?;
            return Ok(None);
        }
        self.report.requests += std::mem::take(&mut self.posted);
        let is_packed = self.report.method == Method::Pack;
        self.position += std::mem::take(&mut self.chunk);
        let is_last = !is_packed || self.position >= self.shape.bytes;
        if is_last {
            let held = std::mem::replace(&mut self.held, Held::Nothing);
            wire.release(held)?;
        }
        wire.tell(&Control::Fin { number, is_done })?;
        Ok(is_last.then_some(Ok(self.report)))
    }
}
