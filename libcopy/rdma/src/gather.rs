// SPDX-License-Identifier: MIT OR Apache-2.0

//! The three methods. Each plans where a message is cut, maps the memory of its own end, and posts.

use std::sync::Arc;

use libcopy_datatype::Layout;

use crate::choice::Method;
use crate::cut::{CutRule, Cuts, Limits, Windows, chunk_size, maximal_cuts};
use crate::error::{Error, Result};
use crate::iov::{Iov, Shape, iovs};
use crate::keys::{Keys, Mapped, Memory};
use crate::message::Offer;
use crate::verbs::sys::Sge;
use crate::verbs::{Connection, Device, Region, Regions, UmrCard, Wait};

/// Elements of a layout in memory.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    /// The elements.
    pub layout: &'a Layout,
    /// The address that the layout's offsets count from.
    pub base: u64,
    /// Whether mapped keys outlast the message.
    pub memory: Memory,
}

/// What a receiver knows of a message before it offers anything.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The sender's pieces.
    pub shape: Shape,
    /// Their lengths, under [`CutRule::Maximal`].
    pub lengths: Option<Vec<u64>>,
    /// The sender.
    pub rank: u32,
}

/// A method at either end of a message.
pub trait Gather {
    /// Its name.
    fn method(&self) -> Method;

    /// The receiver plans and maps: what its CTS offers.
    ///
    /// # Errors
    ///
    /// Memory that cannot be registered, an exhausted pool. Nothing stays mapped then.
    ///
    /// # Safety
    ///
    /// The buffer's memory is writable and used by nobody else until [`Gather::arrived`] or [`Gather::abandon`].
    unsafe fn offer(
        &mut self,
        link: &Connection,
        to: &Buffer<'_>,
        arrival: &Arrival,
    ) -> Result<Offer>;

    /// The sender maps, posts what is offered, and waits until it has been moved. Gives the number of work requests.
    ///
    /// # Errors
    ///
    /// What cannot be mapped, requests that fail.
    ///
    /// # Safety
    ///
    /// The buffer's memory is readable and does not change during the call.
    unsafe fn post(&mut self, link: &Connection, from: &Buffer<'_>, offer: &Offer) -> Result<u64>;

    /// The receiver's bytes have arrived: unmaps. Says whether another offer has to follow.
    ///
    /// # Errors
    ///
    /// Receives that failed.
    ///
    /// # Safety
    ///
    /// As for [`Gather::offer`].
    unsafe fn arrived(&mut self, link: &Connection, to: &Buffer<'_>) -> Result<bool>;

    /// The message goes another way, or the peer is gone: unmaps.
    ///
    /// # Errors
    ///
    /// Keys that cannot be unmapped.
    fn abandon(&mut self) -> Result<()>;
}

/// The cuts of a message by the rule that the sender has asked for.
fn plan(to: &Buffer<'_>, arrival: &Arrival, limits: &Limits) -> Result<Cuts> {
    let shape = Shape::of(to.layout);
    match &arrival.lengths {
        None => match chunk_size(&arrival.shape, &shape, limits) {
            0 => Err(Error::corrupt(arrival.rank, "shortest piece", 0)),
            csize => Ok(Cuts::Every(csize)),
        },
        Some(lengths) => {
            let place = |len: &u64| Iov { addr: 0, len: *len };
            let theirs: Vec<Iov> = lengths.iter().map(place).collect();
            let total = lengths.iter().try_fold(0_u64, |a, b| a.checked_add(*b));
            if total != Some(arrival.shape.bytes) || lengths.contains(&0) {
                return Err(Error::corrupt(arrival.rank, "lengths of pieces", 0));
            }
            maximal_cuts(&theirs, &iovs(to.layout, to.base)?, limits)
        }
    }
}

/// What an RTS says of the lengths, by the rule.
pub fn lengths(layout: &Layout, rule: CutRule) -> Option<Vec<u64>> {
    match rule {
        CutRule::Agreed => None,
        CutRule::Maximal => Some(layout.segments().map(|segment| segment.len).collect()),
    }
}

/// Bytes that are packed at a time.
pub const STAGE: usize = 1 << 20;

/// Packing: one WRITE per MiB between staging buffers.
#[derive(Debug, Default)]
pub struct Pack {
    /// Before its memory.
    region: Option<Region>,
    stage: Vec<u8>,
    /// Bytes that have been moved.
    position: u64,
}

impl Pack {
    fn stage(&mut self, device: &Arc<Device>, bytes: u64) -> Result<()> {
        let len = usize::try_from(bytes).unwrap_or(STAGE).clamp(1, STAGE);
        if self.stage.len() < len {
            self.region = None;
            self.stage = vec![0; len.next_power_of_two()];
        }
        if self.region.is_none() {
            let range = Iov {
                addr: self.stage.as_ptr() as u64,
                len: self.stage.len() as u64,
            };
            self.region = Some(Region::new(device, range, true)?);
        }
        Ok(())
    }

    fn region(&self) -> Result<&Region> {
        self.region
            .as_ref()
            .ok_or_else(|| Error::corrupt(u32::MAX, "staging buffer", 0))
    }

    /// Starts another message.
    pub fn begin(&mut self) {
        self.position = 0;
    }

    /// Bytes that have been moved.
    pub fn position(&self) -> u64 {
        self.position
    }

    fn next(&self, total: u64) -> usize {
        (total - self.position).min(STAGE as u64) as usize
    }
}

impl Gather for Pack {
    fn method(&self) -> Method {
        Method::Pack
    }

    unsafe fn offer(&mut self, link: &Connection, to: &Buffer<'_>, _: &Arrival) -> Result<Offer> {
        let len = self.next(to.layout.size());
        self.stage(link.device(), to.layout.size())?;
        Ok(Offer::Pack {
            addr: self.stage.as_ptr() as u64,
            rkey: self.region()?.rkey(),
            len: len as u64,
        })
    }

    unsafe fn post(&mut self, link: &Connection, from: &Buffer<'_>, offer: &Offer) -> Result<u64> {
        let Offer::Pack { addr, rkey, len } = *offer else {
            return Err(Error::corrupt(u32::MAX, "method", 0));
        };
        let left = self.next(from.layout.size());
        if len != left as u64 {
            return Err(Error::corrupt(u32::MAX, "bytes of an offer", len));
        }
        if left == 0 {
            return Ok(0);
        }
        self.stage(link.device(), from.layout.size())?;
        let range = self.position..self.position + len;
        // SAFETY: the caller's promise: the layout's bytes are readable; the staging buffer has room for `len`.
        unsafe {
            from.layout
                .pack_raw(from.base as *const u8, range, self.stage.as_mut_ptr());
        }
        let lkey = self.region()?.lkey();
        let max = link.device().max_message().max(1);
        let mut done = 0;
        let mut requests = 0;
        while done < len {
            let part = (len - done).min(max);
            let list = [Sge {
                addr: self.stage.as_ptr() as u64 + done,
                length: part as u32,
                lkey,
            }];
            // SAFETY: the staging buffer is registered and stays until the flush below.
            unsafe { link.post_write(&list, addr + done, rkey)? };
            done += part;
            requests += 1;
        }
        link.flush(Wait::Poll)?;
        self.position += len;
        Ok(requests)
    }

    unsafe fn arrived(&mut self, _: &Connection, to: &Buffer<'_>) -> Result<bool> {
        let len = self.next(to.layout.size());
        let range = self.position..self.position + len as u64;
        // SAFETY: the caller's promise: the layout's bytes are writable; the staging buffer has `len` bytes.
        unsafe {
            to.layout
                .unpack_raw(self.stage.as_ptr(), range, to.base as *mut u8);
        }
        self.position += len as u64;
        Ok(self.position < to.layout.size())
    }

    fn abandon(&mut self) -> Result<()> {
        // A peer that is late may still write to the staging buffer, which therefore is not used again.
        self.region = None;
        self.stage = Vec::new();
        Ok(())
    }
}

/// Scatter/gather lists: a SEND per window meets a receive.
#[derive(Debug, Default)]
pub struct Lists {
    regions: Option<Regions>,
    posted: u64,
}

impl Lists {
    fn list(regions: &Regions, window: &[Iov]) -> Result<Vec<Sge>> {
        let entry = |iov: &Iov| {
            let lkey = regions.lkey(iov).ok_or(Error::Register {
                addr: iov.addr,
                len: iov.len,
                errno: libc::EFAULT,
            })?;
            Ok(Sge {
                addr: iov.addr,
                length: iov.len as u32,
                lkey,
            })
        };
        window.iter().map(entry).collect()
    }
}

impl Lists {
    /// Meets the receives of a message that cannot be sent from here with messages without bytes.
    ///
    /// # Errors
    ///
    /// Requests that fail.
    pub fn post_empty(&self, link: &Connection, count: u64) -> Result<()> {
        for _ in 0..count {
            // SAFETY: no memory is named.
            unsafe { link.post_send(&[])? };
        }
        link.flush(Wait::Poll)
    }
}

/// The limits of a connection's lists.
fn list_limits(link: &Connection) -> Limits {
    Limits {
        max_iovs: link.options().max_sge,
        max_bytes: link.device().max_message().clamp(1, u64::from(u32::MAX)),
    }
}

impl Gather for Lists {
    fn method(&self) -> Method {
        Method::Sge
    }

    unsafe fn offer(
        &mut self,
        link: &Connection,
        to: &Buffer<'_>,
        arrival: &Arrival,
    ) -> Result<Offer> {
        let limits = list_limits(link);
        let cuts = plan(to, arrival, &limits)?;
        let iovs = iovs(to.layout, to.base)?;
        let windows = Windows::new(&iovs, &cuts, limits.max_iovs)?;
        if windows.len() > link.options().queue as usize {
            return Err(Error::PoolExhausted {
                free: link.options().queue as usize,
                total: link.options().queue as usize,
                wanted: windows.len(),
            });
        }
        let regions = Regions::new(link.device(), &iovs, true)?;
        self.posted = 0;
        for window in windows.iter() {
            // SAFETY: the caller's promise; the regions stay until all has been received.
            unsafe { link.post_receive(&Lists::list(&regions, window)?, self.posted)? };
            self.posted += 1;
        }
        self.regions = Some(regions);
        Ok(Offer::Sge(cuts))
    }

    unsafe fn post(&mut self, link: &Connection, from: &Buffer<'_>, offer: &Offer) -> Result<u64> {
        let Offer::Sge(cuts) = offer else {
            return Err(Error::corrupt(u32::MAX, "method", 0));
        };
        let iovs = iovs(from.layout, from.base)?;
        let windows = Windows::new(&iovs, cuts, list_limits(link).max_iovs)?;
        let regions = Regions::new(link.device(), &iovs, false)?;
        for window in windows.iter() {
            // SAFETY: the regions stay until the flush below.
            unsafe { link.post_send(&Lists::list(&regions, window)?)? };
        }
        link.flush(Wait::Poll)?;
        Ok(windows.len() as u64)
    }

    unsafe fn arrived(&mut self, link: &Connection, _: &Buffer<'_>) -> Result<bool> {
        while self.posted > 0 {
            link.receive(Wait::Poll)?;
            self.posted -= 1;
        }
        self.regions = None;
        Ok(false)
    }

    fn abandon(&mut self) -> Result<()> {
        self.regions = None;
        self.posted = 0;
        Ok(())
    }
}

/// Memory keys: a WRITE per pair.
#[derive(Debug)]
pub struct Umr {
    /// Pool and caches.
    pub keys: Keys<UmrCard>,
    mapped: Option<Mapped<UmrCard>>,
    /// Where the message that is under way is cut.
    cuts: Option<Cuts>,
    /// The peer.
    rank: u32,
}

impl Umr {
    /// The method with these keys, for one peer.
    pub fn new(keys: Keys<UmrCard>, rank: u32) -> Umr {
        Umr {
            keys,
            mapped: None,
            cuts: None,
            rank,
        }
    }

    /// The keys as an offer, whether the peer has them or not.
    pub fn offer_again(&self) -> Option<Offer> {
        let mapped = self.mapped.as_ref()?;
        let rkeys = mapped.set.keys.iter().map(|key| key.rkey()).collect();
        Some(Offer::Umr {
            cuts: self.cuts.clone(),
            rkeys: Some(rkeys),
            entry: mapped.entry,
        })
    }
}

impl Gather for Umr {
    fn method(&self) -> Method {
        Method::Umr
    }

    unsafe fn offer(
        &mut self,
        link: &Connection,
        to: &Buffer<'_>,
        arrival: &Arrival,
    ) -> Result<Offer> {
        let limits = link.device().abilities().umr.ok_or_else(|| {
            Error::NoDevice(format!("{} has no memory keys", link.device().name()))
        })?;
        let cuts = plan(to, arrival, &limits)?;
        let mapped = self
            .keys
            .map(to.layout, to.base, &cuts, to.memory, Some(arrival.rank))?;
        let rkeys = self.keys.announce(&mapped);
        let entry = mapped.entry;
        self.mapped = Some(mapped);
        self.cuts = Some(cuts.clone());
        Ok(Offer::Umr {
            cuts: rkeys.is_some().then_some(cuts),
            rkeys,
            entry,
        })
    }

    unsafe fn post(&mut self, link: &Connection, from: &Buffer<'_>, offer: &Offer) -> Result<u64> {
        let Offer::Umr { cuts, rkeys, entry } = offer else {
            return Err(Error::corrupt(u32::MAX, "method", 0));
        };
        let remote = match (cuts, rkeys) {
            (Some(cuts), Some(rkeys)) => {
                let keys = crate::cache::RemoteKeys {
                    cuts: cuts.clone(),
                    rkeys: rkeys.as_slice().into(),
                };
                if let Some(entry) = entry {
                    self.keys.learn(self.rank, *entry, keys.clone());
                }
                keys
            }
            _ => entry
                .and_then(|entry| self.keys.recall(self.rank, entry))
                .ok_or_else(|| Error::corrupt(self.rank, "keys of a CTS", 0))?
                .clone(),
        };
        let ours = self
            .keys
            .map(from.layout, from.base, &remote.cuts, from.memory, None)?;
        let posted = self.write_all(link, &ours, &remote.rkeys);
        let flushed = link.flush(Wait::Poll);
        let finished = self.keys.finish(ours);
        posted?;
        flushed?;
        finished?;
        Ok(remote.rkeys.len() as u64)
    }

    unsafe fn arrived(&mut self, _: &Connection, _: &Buffer<'_>) -> Result<bool> {
        self.abandon().map(|()| false)
    }

    fn abandon(&mut self) -> Result<()> {
        match self.mapped.take() {
            Some(mapped) => self.keys.finish(mapped),
            None => Ok(()),
        }
    }
}

impl Umr {
    fn write_all(&self, link: &Connection, ours: &Mapped<UmrCard>, rkeys: &[u32]) -> Result<()> {
        if ours.set.keys.len() != rkeys.len() {
            return Err(Error::corrupt(
                self.rank,
                "keys of a CTS",
                rkeys.len() as u64,
            ));
        }
        for (key, rkey) in ours.set.keys.iter().zip(rkeys) {
            link.post_mapped(key, *rkey)?;
        }
        Ok(())
    }
}
