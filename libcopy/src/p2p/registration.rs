// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where the kernel module is: memory that a program sends elements out of again and again is
//! published by its owner and mapped by those who receive from it, who copy from layout to layout
//! by load and store ("FALCON-X: Zero-copy MPI derived datatype processing on modern CPU and GPU
//! architectures", section 5, with XPMEM).
//!
//! Before that, where a message of many pieces waits for a receiver while its sender does something
//! else, the memory is lent for this message alone: the receiver has the module copy the pieces out
//! of it, which costs a fraction of what `process_vm_readv` takes for them.
//!
//! The owner asks the module before each message whether the pages are its own still; until the
//! message has been received they stay what they are, since the program lent them. Pages that are
//! mapped stay valid whatever their owner does.

use std::sync::{Arc, Mutex};

use libcopy_datatype::{Cursor, Layout};

use crate::device::{Attachment, Domain, DomainKey, OwnedRegion, RegionId, Rights};
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::lru::Lru;
use crate::policy::backoff::Backoff;
use crate::transport::mapped::MappedRegions;
use crate::transport::remote_key::Mapping;
use crate::uapi;

/// Pieces of memory that a process looks after, and those of each peer that it has mapped.
const KEPT: usize = 16;
/// Bytes that may stay pinned in them.
const KEPT_BYTES: usize = 1 << 30;
/// Ranges that are listed for the module at a time, on average: some calls' worth, so that few
/// calls have less than they may.
const RANGES: usize = 4 * uapi::MAX_IOV as usize;
/// Bytes that they have at most, which bounds their number where some are much shorter than the
/// average.
const MOST_LISTED: u64 = 1 << 20;
/// Blocks from which on the module is given their list, or their distance, in a call of its own,
/// instead of being told where each one is: that spares less than a call costs where there are
/// fewer.
const FEWEST_BLOCKS: u64 = 64;
/// Messages from the same memory before it is published, which pays only if more follow.
const AFTER: u32 = 1;
/// Messages for which memory that could not be published is left alone.
const REFUSED_FOR: u32 = 64;

/// Memory that is published.
#[derive(Debug)]
pub struct Published {
    region: OwnedRegion,
    base: u64,
    len: usize,
    /// Its number among all that this process ever published, from 1 on.
    serial: u32,
}

impl Published {
    /// Where it begins, and how many bytes it has.
    pub fn place(&self) -> (usize, usize) {
        (self.base as usize, self.len)
    }
}

/// What a receiver has to know of it; nothing if the region is 0. Without a number it is not to be
/// mapped.
#[derive(Clone, Copy, Debug, Default)]
pub struct RegionKey {
    /// The region.
    pub id: u32,
    /// Its number among those of its owner.
    pub serial: u32,
    /// The lowest number that its owner has published still.
    pub oldest: u32,
    /// Its owner's address.
    pub base: u64,
    /// Its bytes.
    pub len: u64,
}

impl RegionKey {
    /// Whether the receiver may map the region.
    pub fn is_mappable(&self) -> bool {
        self.serial != 0
    }
}

/// A message of a peer's in memory that it has published or lent, which the module copies piece by
/// piece.
#[derive(Debug)]
pub struct RemotePieces<'a> {
    domain: &'a Domain,
    region: RegionId,
    /// What the layout's offsets count from, relative to the region.
    origin: u64,
    cursor: Box<Cursor>,
}

impl RemotePieces<'_> {
    /// Copies `len` bytes of the message from `position` on.
    ///
    /// # Errors
    ///
    /// As for [`Domain::copy_from`]: among others, pieces that are not in the region.
    ///
    /// # Safety
    ///
    /// `to` is writable for `len` bytes, which the message has.
    pub unsafe fn read(&mut self, position: u64, to: *mut u8, len: usize) -> Result<()> {
        if self.cursor.position() != position {
            self.cursor.seek(position)?;
        }
        let mut ranges = Vec::new();
        let (mut to, mut left) = (to, len as u64);
        while left > 0 {
            let blocks = self.cursor.blocks();
            let many = blocks.filter(|blocks| blocks.places.count() >= FEWEST_BLOCKS);
            let done = match many {
                Some(blocks) => {
                    let place = self.origin.wrapping_add(blocks.offset as u64);
                    let most = blocks.len.saturating_mul(blocks.places.count());
                    let (len, count) = (blocks.len, left.min(most));
                    let (domain, region) = (self.domain, self.region);
                    // SAFETY: the caller's promise: at least `count` of these bytes are left.
                    let done = unsafe {
                        domain.gather_blocks(region, place, len, blocks.places, to, count)
                    }?;
                    self.cursor.seek(self.cursor.position() + done)?;
                    done
                }
                // SAFETY: the caller's promise.
                None => unsafe { self.read_pieces(left, to, &mut ranges) }?,
            };
            to = to.wrapping_add(done as usize);
            left -= done;
        }
        Ok(())
    }

    /// Copies some of the next `left` bytes, which is not zero, piece by piece; returns how many.
    ///
    /// # Safety
    ///
    /// As for [`RemotePieces::read`].
    unsafe fn read_pieces(
        &mut self,
        left: u64,
        to: *mut u8,
        ranges: &mut Vec<uapi::Piece>,
    ) -> Result<u64> {
        let form = self.cursor.layout().form();
        let average = (form.size() / form.segments().max(1)).max(1);
        let at_once = average.saturating_mul(RANGES as u64).min(MOST_LISTED);
        // To the end of a block, if all are as long as the average: those that follow may be copied
        // as blocks.
        let over = (self.cursor.position() + at_once) % average;
        let to_end = at_once.checked_sub(over).filter(|bytes| *bytes > 0);
        let (bytes, origin) = (left.min(to_end.unwrap_or(at_once)), self.origin);
        let end = self.cursor.position() + bytes;
        ranges.clear();
        ranges.reserve(RANGES);
        self.cursor.segments(bytes, |piece| {
            ranges.push(uapi::Piece {
                // Below the region it is far beyond its end.
                base: origin.wrapping_add(piece.offset as u64),
                len: piece.len,
            });
        });
        if self.cursor.position() != end {
            return Err(Error::corrupt("the length of a message", end));
        }
        // SAFETY: the caller's promise: there is room for these bytes, and the ranges have as many.
        unsafe { self.domain.gather_ranges(self.region, 0, ranges, to) }?;
        Ok(bytes)
    }
}

/// Memory that messages were sent from.
#[derive(Debug)]
struct Seen {
    base: usize,
    len: usize,
    /// Messages so far.
    uses: u32,
    /// Below this many messages it is not published.
    from: u32,
    /// The same for single receivers, who have been faster without.
    unwanted: Vec<(usize, u32)>,
    published: Option<Arc<Published>>,
}

#[derive(Debug, Default)]
struct Own {
    seen: Lru<Seen>,
    serials: u32,
}

/// A member of the job's domain.
#[derive(Debug)]
pub struct Registration {
    own: Mutex<Own>,
    mapped: Mutex<MappedRegions>,
    domain: Arc<Domain>,
    /// Messages from the same memory before it is published.
    after: u32,
    lending: Backoff,
}

impl Registration {
    /// Makes a domain, and the key for the others; `None` without the module. `eager`: memory is
    /// published with the first message.
    pub fn create(eager: bool) -> Option<(Registration, [u8; 16])> {
        let domain = Domain::create().ok()?;
        let key = domain.key().to_bytes();
        Some((Registration::of(domain, eager), key))
    }

    /// Joins it.
    pub fn join(key: [u8; 16], eager: bool) -> Option<Registration> {
        let domain = Domain::join(&DomainKey::from_bytes(key)).ok()?;
        Some(Registration::of(domain, eager))
    }

    fn of(domain: Domain, eager: bool) -> Registration {
        Registration {
            own: Mutex::default(),
            mapped: Mutex::new(MappedRegions::new(KEPT)),
            domain: Arc::new(domain),
            after: if eager { 0 } else { AFTER },
            lending: Backoff::default(),
        }
    }

    fn share(&self, base: usize, len: usize) -> Result<OwnedRegion> {
        let piece = uapi::Piece {
            base: base as u64,
            len: len as u64,
        };
        // SAFETY: peers read only while a message is under way, when the program does not write.
        unsafe { OwnedRegion::new(&self.domain, &[piece], 0) }
    }

    /// Publishes memory for one message, to be copied from and not to be mapped; for as long as the
    /// result lives. Where that has been no use of late it is not done for a while, since to pin
    /// memory takes time.
    pub(super) fn lend(&self, base: usize, len: usize) -> Option<(Arc<Published>, RegionKey)> {
        if !self.lending.admits() {
            return None;
        }
        let Ok(region) = self.share(base, len) else {
            self.lending.skip(REFUSED_FOR);
            return None;
        };
        let key = RegionKey {
            id: region.id().get(),
            base: base as u64,
            len: len as u64,
            ..RegionKey::default()
        };
        let published = Published {
            region,
            base: base as u64,
            len,
            serial: 0,
        };
        Some((Arc::new(published), key))
    }

    /// What was lent for a message is not needed any more; whether its receiver copied out of it.
    pub(super) fn returned(&self, was_used: bool) {
        self.lending.note(was_used);
    }

    /// A message of a peer's in memory that it has published or lent; `origin` is the owner's
    /// address that the offsets of `layout` count from.
    pub(super) fn pieces(
        &self,
        key: RegionKey,
        origin: u64,
        layout: &Layout,
    ) -> Option<RemotePieces<'_>> {
        Some(RemotePieces {
            domain: &self.domain,
            region: RegionId::new(key.id).ok()?,
            origin: origin.wrapping_sub(key.base),
            cursor: Box::new(layout.cursor()),
        })
    }

    /// Publishes memory that a message is about to be sent from, if that is worth it. It stays
    /// published for as long as the result lives at least.
    pub(super) fn publish(
        &self,
        to: usize,
        base: usize,
        len: usize,
    ) -> Option<(Arc<Published>, RegionKey)> {
        let mut own = lock(&self.own);
        let Own { seen, serials } = &mut *own;
        let is_it = |seen: &Seen| (seen.base, seen.len) == (base, len);
        if seen.find(is_it).is_none() {
            let limits = (KEPT, KEPT_BYTES);
            while seen.take_surplus(limits, len, |seen| seen.len).is_some() {}
            seen.push(Seen {
                base,
                len,
                uses: 0,
                from: self.after,
                unwanted: Vec::new(),
                published: None,
            });
        }
        let this = seen.newest_mut()?;
        this.uses = this.uses.saturating_add(1);
        if this.uses <= this.from {
            return None;
        }
        // One word for each receiver, of which a piece of memory has few.
        if let Some(index) = this.unwanted.iter().position(|(member, _)| *member == to) {
            if this.uses <= this.unwanted[index].1 {
                return None;
            }
            this.unwanted.swap_remove(index);
        }
        // The program may have unmapped it meanwhile, and mapped something else.
        this.published
            .take_if(|published| !published.region.is_unchanged());
        if this.published.is_none() {
            // Numbers are never used twice, unlike identifiers.
            let serial = serials.checked_add(1)?;
            let Ok(region) = self.share(base, len) else {
                this.from = this.uses.saturating_add(REFUSED_FOR);
                return None;
            };
            *serials = serial;
            this.published = Some(Arc::new(Published {
                region,
                base: base as u64,
                len,
                serial,
            }));
        }
        let published = this.published.clone()?;
        let numbers = seen.iter().filter_map(|seen| seen.published.as_ref());
        let oldest = numbers.map(|published| published.serial).min();
        let window = RegionKey {
            id: published.region.id().get(),
            serial: published.serial,
            oldest: oldest.unwrap_or(published.serial),
            base: published.base,
            len: len as u64,
        };
        Some((published, window))
    }

    /// Has this memory not be published for that many more messages to a receiver, for whom other
    /// protocols are faster.
    pub(super) fn postpone(&self, to: usize, (base, len): (usize, usize), messages: u32) {
        let mut own = lock(&self.own);
        let this = |seen: &&mut Seen| (seen.base, seen.len) == (base, len);
        if let Some(seen) = own.seen.iter_mut().find(this) {
            let until = seen.uses.saturating_add(messages);
            match seen.unwanted.iter_mut().find(|(member, _)| *member == to) {
                Some((_, before)) => *before = until,
                None => seen.unwanted.push((to, until)),
            }
        }
    }

    /// A peer's memory in our address space.
    pub(super) fn reach(&self, owner: usize, window: RegionKey) -> Option<Arc<Attachment>> {
        let mut mapped = lock(&self.mapped);
        let mapping = Mapping {
            serial: window.serial,
            oldest: window.oldest,
        };
        let what = (owner, RegionId::new(window.id).ok());
        let fits = |attachment: &Attachment| attachment.len() as u64 == window.len;
        let reached = mapped.reach((&self.domain, Rights::Read), what, mapping, fits);
        reached.cloned()
    }

    /// Gives everything back, when no message is under way any more.
    pub fn clear(&self) {
        lock(&self.own).seen.retain(|_| false);
        lock(&self.mapped).clear();
    }
}
