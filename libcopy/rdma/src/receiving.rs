// SPDX-License-Identifier: MIT OR Apache-2.0

//! A transfer at its receiver: a CTS that says where the bytes are to go, until a FIN says that
//! they are there.

use std::sync::Arc;

use crate::channel::Channel;
use crate::choice::Method;
use crate::cut::{Cuts, Limits, Windows};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result, is_local};
use crate::gather::{Arrival, Held, MAX_WINDOWS, STAGE};
use crate::iov::Elements;
use crate::keys::Memory;
use crate::message::{Control, Offer};
use crate::report::Report;
use crate::sending::Step;
use crate::wire::Wire;

/// What the receiver waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Room in the queue of receives.
    Room,
    /// A FIN.
    Fin,
    /// Its receives, after the FIN.
    Receives { is_done: bool },
}

#[derive(Debug)]
pub(crate) struct Receiving<E: Endpoint> {
    /// The sender's number of the transfer.
    pub number: u32,
    elements: Elements,
    memory: Memory,
    arrival: Arrival,
    state: State,
    held: Held<E>,
    /// Where the message is cut, for a peer that lacks the keys that it was taken to have.
    cuts: Option<Cuts>,
    /// Bytes that were moved by packing.
    position: u64,
    /// Receives that have not completed, and the bytes of those that have.
    left: u64,
    bytes: u64,
    report: Report,
}

/// An offer, or a reason to try again later.
enum Attempt {
    Offer(Offer),
    NoRoom,
}

impl<E: Endpoint> Receiving<E> {
    /// A transfer that an RTS has announced; the first offer follows by [`Receiving::offer`].
    pub fn new<C>(
        number: u32,
        mut elements: Elements,
        memory: Memory,
        arrival: Arrival,
        wire: &Wire<C, E>,
    ) -> Receiving<E> {
        elements.bytes = arrival.shape.bytes;
        let rule = crate::message::rule(arrival.lengths.as_ref());
        let choice =
            wire.thresholds
                .choose(&arrival.shape, &elements.shape(), &arrival.common, rule);
        let method = match wire.only {
            _ if arrival.shape.bytes == 0 => Method::Pack,
            Some(only) if only == Method::Pack || arrival.common.limits(only).is_some() => only,
            Some(_) => Method::Pack,
            None => choice.method,
        };
        Receiving {
            number,
            report: Report {
                method,
                requests: 0,
                fell_back: false,
                is_kept: false,
                bytes: elements.bytes,
            },
            elements,
            memory,
            arrival,
            state: State::Room,
            held: Held::Nothing,
            cuts: None,
            position: 0,
            left: 0,
            bytes: 0,
        }
    }

    pub fn into_held(self) -> Held<E> {
        self.held
    }

    /// Whether it waits for room in the queue of receives.
    pub fn waits_for_room(&self) -> bool {
        self.state == State::Room
    }

    /// Offers the chosen method, or packing where it cannot be used; `id` names the receives.
    ///
    /// # Errors
    ///
    /// What the connection does not survive.
    pub fn offer<C: Channel>(&mut self, id: u64, wire: &mut Wire<C, E>) -> Result<Step> {
        let number = self.number;
        loop {
            let attempt = match self.report.method {
                Method::Pack => self.pack(wire),
                Method::Sge => self.lists(id, wire),
                Method::Umr => self.keys(wire),
            };
            match attempt {
                Ok(Attempt::Offer(offer)) => {
                    self.state = State::Fin;
                    wire.tell(&Control::Cts { number, offer })?;
                    return Ok(None);
                }
                Ok(Attempt::NoRoom) => {
                    self.state = State::Room;
                    return Ok(None);
                }
                Err(error) if !is_local(&error) => return Err(error),
                Err(error) if self.report.method == Method::Pack => {
                    let room = self.elements.bytes;
                    wire.tell(&Control::Refused { number, room })?;
                    return Ok(Some(Err(error)));
                }
                Err(_) => self.fall_back(),
            }
        }
    }

    fn fall_back(&mut self) {
        self.report.method = Method::Pack;
        self.report.fell_back = true;
        self.report.is_kept = false;
    }

    fn chunk(&self) -> u64 {
        (self.elements.bytes - self.position).min(STAGE as u64)
    }

    fn pack<C>(&mut self, wire: &mut Wire<C, E>) -> Result<Attempt> {
        let len = self.chunk();
        if len > 0 && !matches!(self.held, Held::Stage(_)) {
            self.held = Held::Stage(wire.stage(self.elements.bytes)?);
        }
        Ok(Attempt::Offer(match &self.held {
            Held::Stage(stage) => Offer::Pack {
                addr: stage.addr(),
                rkey: wire.endpoint.memory_rkey(&stage.memory)?,
                len,
            },
            _ => Offer::Pack {
                addr: 0,
                rkey: 0,
                len: 0,
            },
        }))
    }

    /// Where the message is cut for a method.
    fn plan(&self, most: u64) -> Result<(Cuts, Limits)> {
        let method = self.report.method;
        let limits = self
            .arrival
            .common
            .limits(method)
            .ok_or_else(|| Error::NoDevice(format!("{method} cannot be used at both ends")))?;
        let cuts = self.arrival.plan(&self.elements, &limits)?;
        let windows = cuts.count(self.elements.bytes);
        if windows > most {
            return Err(Error::PoolExhausted {
                free: most as usize,
                total: most as usize,
                wanted: windows as usize,
            });
        }
        Ok((cuts, limits))
    }

    fn lists<C>(&mut self, id: u64, wire: &mut Wire<C, E>) -> Result<Attempt> {
        let queue = wire.endpoint.queue();
        let (cuts, limits) = self.plan(queue as u64)?;
        let iovs = self.elements.iovs()?;
        let windows = Windows::new(&iovs, &cuts, limits.max_iovs)?;
        if wire.receives_pending + windows.len() > queue {
            return Ok(Attempt::NoRoom);
        }
        let (memory, is_kept) = wire.register(&self.elements, self.memory, true)?;
        self.report.is_kept = is_kept;
        let windows = Arc::new(windows);
        self.held = Held::Lists {
            memory,
            windows: windows.clone(),
        };
        (self.left, self.bytes) = (0, 0);
        for window in windows.iter() {
            let Held::Lists { memory, .. } = &self.held else {
                break;
            };
            // SAFETY: who started the receive says that the elements stay and that nobody uses
            // them; the transfer holds the regions until all has been received or the connection
            // has ended.
            let posted = unsafe { wire.endpoint.receive(memory, window, id) };
            // Those that are posted already would take the bytes of other messages.
            posted.map_err(|error| Error::WorkRequest {
                operation: "a receive",
                status: error.to_string(),
                code: 0,
            })?;
            self.left += 1;
            wire.receives_pending += 1;
        }
        Ok(Attempt::Offer(Offer::Sge(cuts)))
    }

    fn keys<C>(&mut self, wire: &mut Wire<C, E>) -> Result<Attempt> {
        let (cuts, _) = self.plan(MAX_WINDOWS)?;
        let endpoint = wire.endpoint.clone();
        let Some(mut keys) = wire.keys() else {
            return Err(Error::NoDevice("no memory keys".to_owned()));
        };
        let elements = &self.elements;
        // SAFETY: the caller of `Link::start_matched_receive` keeps the promises.
        let mapped =
            unsafe { keys.map(&*endpoint, elements, &cuts, self.memory, Some(wire.rank)) }?;
        let rkeys = keys.announce(&*endpoint, &mapped);
        drop(keys);
        let entry = mapped.entry;
        self.report.is_kept = mapped.is_kept;
        self.held = Held::Keys(mapped);
        self.cuts = rkeys.is_none().then(|| cuts.clone());
        Ok(Attempt::Offer(Offer::Umr {
            cuts: rkeys.is_some().then_some(cuts),
            rkeys,
            entry,
        }))
    }

    /// The sender lacks the keys that the CTS has named.
    ///
    /// # Errors
    ///
    /// A CTS that had named none, or had them.
    pub fn on_missing<C: Channel>(
        &mut self,
        entry: crate::cache::EntryId,
        wire: &mut Wire<C, E>,
    ) -> Result<()> {
        let number = self.number;
        let Held::Keys(mapped) = &self.held else {
            return Err(wire.corrupt("missing entry", entry.id.into()));
        };
        // A peer is told once of a CTS's keys: the cuts go with them.
        let cuts = match self.cuts.take() {
            Some(cuts) if self.state == State::Fin && mapped.entry == Some(entry) => cuts,
            _ => return Err(wire.corrupt("missing entry", entry.id.into())),
        };
        let offer = Offer::Umr {
            cuts: Some(cuts),
            rkeys: Some(mapped.rkeys(&wire.endpoint)),
            entry: mapped.entry,
        };
        wire.tell(&Control::Cts { number, offer })
    }

    /// The sender says that the bytes are there, or that it cannot send them so.
    ///
    /// # Errors
    ///
    /// What the connection does not survive.
    pub fn on_fin<C: Channel>(
        &mut self,
        is_done: bool,
        id: u64,
        wire: &mut Wire<C, E>,
    ) -> Result<Step> {
        if self.state != State::Fin {
            return Err(wire.corrupt("FIN of transfer", self.number.into()));
        }
        self.state = State::Receives { is_done };
        if self.left > 0 {
            return Ok(None);
        }
        self.settle(is_done, id, wire)
    }

    /// One of its receives has completed.
    ///
    /// # Errors
    ///
    /// As for [`Receiving::on_fin`].
    pub fn on_received<C: Channel>(
        &mut self,
        bytes: u32,
        id: u64,
        wire: &mut Wire<C, E>,
    ) -> Result<Step> {
        self.left = self.left.saturating_sub(1);
        self.bytes += u64::from(bytes);
        match self.state {
            State::Receives { is_done } if self.left == 0 => self.settle(is_done, id, wire),
            _ => Ok(None),
        }
    }

    /// Nothing is under way any more that the last CTS has offered.
    fn settle<C: Channel>(
        &mut self,
        is_done: bool,
        id: u64,
        wire: &mut Wire<C, E>,
    ) -> Result<Step> {
        let held = std::mem::replace(&mut self.held, Held::Nothing);
        if !is_done {
            let was_packed = self.report.method == Method::Pack;
            wire.release(held)?;
            if was_packed {
                return Ok(Some(Err(Error::Refused { rank: wire.rank })));
            }
            self.fall_back();
            return self.offer(id, wire);
        }
        if self.report.method == Method::Sge && self.bytes != self.elements.bytes {
            return Err(wire.corrupt("bytes of all receives", self.bytes));
        }
        if let Held::Stage(stage) = &held {
            let range = self.position..self.position + self.chunk();
            self.position = range.end;
            let to = self.elements.base as *mut u8;
            // SAFETY: who started the receive says that the layout's bytes are writable; the
            // staging buffer has the bytes of the range, since it was made for the message or for
            // STAGE bytes.
            unsafe {
                let from = stage.bytes.as_ptr();
                self.elements.layout.unpack_raw(from, range, to);
            }
            if self.position < self.elements.bytes {
                self.held = held;
                return self.offer(id, wire);
            }
        }
        wire.release(held)?;
        Ok(Some(Ok(self.report)))
    }
}
