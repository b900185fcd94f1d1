// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel module: one ioctl publishes a buffer, one per peer copies it. A buffer that is used
//! again and again is mapped by its peers, who then copy by load and store.

use std::cell::RefCell;

use super::kind::{TransportKind, TransportReport};
use super::mapped::MappedRegions;
use super::one_sided::Transport;
use super::remote_key::{Mapping, RemoteKey};
use crate::device::{Device, Domain, RegionId, Rights};
use crate::error::{Error, Result};
use crate::lru::Lru;
use crate::memcpy;
use crate::uapi;

/// Regions that stay open for the next operation on the same memory.
const KEPT: usize = 4;

/// Operations on a region before its peers are told to map it, which pays only if more follow.
const ATTACH_AFTER: u32 = 2;

/// Bytes that may stay pinned in kept regions, beside the newest one.
const KEPT_BYTES: usize = 64 << 20;

/// Opened memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Opened {
    base: usize,
    len: usize,
    writable: bool,
}

/// A region of ours that is open.
#[derive(Debug)]
struct Kept {
    opened: Opened,
    id: RegionId,
    /// Number of the region among all that this rank ever opened, from 1 on; 0: too many.
    serial: u32,
    /// Operations so far, the first included.
    uses: u32,
}

/// A member of the team's domain.
///
/// A region stays open after its operation: the next one on the same memory needs no system call at
/// all, because the kernel looks at every copy whether the pages are still the owner's. If they are
/// not, the copy fails, the operation takes another way, and [`Transport::invalidate`] is called.
///
/// Peers that have mapped a region ask nobody when they copy. So its owner asks, before each
/// operation that it lets them do so, whether the pages are still its own, and opens the memory
/// anew if not; within the operation they cannot change, because the memory is borrowed. Pages stay
/// valid as long as anybody has them mapped, whatever becomes of their owner.
#[derive(Debug)]
pub(crate) struct Kmod {
    /// What we have mapped of peers; before the domain, as it goes first.
    mapped: RefCell<MappedRegions>,
    domain: Domain,
    /// Open regions.
    kept: Lru<Kept>,
    /// Regions opened so far.
    serials: u32,
    /// Bytes of the largest region that peers should map.
    attach_max: u64,
    /// Regions to open anew, whatever is kept.
    doubtful: u32,
    /// What `doubtful` will be after the next failure: programs that unmap a buffer after each
    /// operation should not pay with a failed copy each time.
    penalty: u32,
}

impl Kmod {
    pub(crate) fn new(domain: Domain) -> Self {
        Kmod {
            mapped: RefCell::new(MappedRegions::new(KEPT)),
            domain,
            kept: Lru::default(),
            serials: 0,
            attach_max: 0,
            doubtful: 0,
            penalty: 8,
        }
    }

    /// The domain that all ranks share.
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Closes all regions.
    pub(crate) fn close(&mut self) {
        for kept in self.kept.drain() {
            // Gone already at worst.
            let _ = self.domain.destroy_region(kept.id, 0);
        }
    }

    /// Sets the bytes of the largest region that peers should map.
    pub(crate) fn set_attach_max(&mut self, bytes: u64) {
        self.attach_max = bytes;
    }

    /// The region to replace by one over `wanted`: one over the same memory, or the oldest if
    /// there are enough. Others that are too many are closed.
    fn make_room(&mut self, wanted: Opened) -> Option<RegionId> {
        if let Some(kept) = self.kept.take(|kept| kept.opened == wanted) {
            return Some(kept.id);
        }
        let (limits, bytes) = ((KEPT, KEPT_BYTES), |kept: &Kept| kept.opened.len);
        let mut replaced = None;
        while let Some(oldest) = self.kept.take_surplus(limits, wanted.len, bytes) {
            if let Some(other) = replaced.replace(oldest.id) {
                // Gone already at worst.
                let _ = self.domain.destroy_region(other, 0);
            }
        }
        replaced
    }

    /// Opens memory as [`Transport::open`] does, for peers that copy once: they are never told to
    /// map it.
    ///
    /// # Safety
    ///
    /// As for [`Transport::open`].
    pub(crate) unsafe fn open_unmapped(
        &mut self,
        base: *mut u8,
        len: usize,
        writable: bool,
    ) -> Result<RegionId> {
        let wanted = Opened {
            base: base as usize,
            len,
            writable,
        };
        match self.reopen(wanted) {
            Some(kept) => Ok(kept.id),
            // SAFETY: the caller's promise.
            None => unsafe { self.open_anew(base, wanted) },
        }
    }

    /// Has the module compare a region of ours with our memory, if that may have changed: for its
    /// owner that takes a fraction of the time that it would take a peer.
    pub(crate) fn compare(&self, region: RegionId) {
        // Who uses a region that is another's memory by now is told.
        let _ = self.domain.region_info(region);
    }

    /// The open region over `wanted`, if there is one that nobody doubts.
    fn reopen(&mut self, wanted: Opened) -> Option<&mut Kept> {
        if self.doubtful > 0 {
            self.doubtful -= 1;
            return None;
        }
        self.kept.find(|kept| kept.opened == wanted)
    }

    /// # Safety
    ///
    /// As for [`Transport::open`].
    unsafe fn open_anew(&mut self, base: *mut u8, wanted: Opened) -> Result<RegionId> {
        let piece = uapi::Piece {
            base: base as u64,
            len: wanted.len as u64,
        };
        // What is to be mapped for writing must be readable, too.
        let rights = if wanted.writable {
            uapi::RIGHT_READ | uapi::RIGHT_WRITE
        } else {
            uapi::RIGHT_READ
        };
        let replaced = self.make_room(wanted);
        // SAFETY: one piece is passed; what happens to the memory is the caller's promise.
        let created = unsafe {
            self.domain
                .create_region(&raw const piece, 1, rights, 0, replaced)
        }?;
        let id = RegionId::new(created.id)?;
        // Numbers are never used twice, unlike ids: who has run out of them has nothing mapped.
        self.serials = self.serials.saturating_add(1);
        let serial = if self.serials == u32::MAX {
            0
        } else {
            self.serials
        };
        self.kept.push(Kept {
            opened: wanted,
            id,
            serial,
            uses: 1,
        });
        Ok(id)
    }

    /// The key of a region that peers should map.
    fn mappable(&self, kept: &Kept) -> RemoteKey {
        let numbers = self.kept.iter().map(|kept| kept.serial);
        let oldest = numbers.min().unwrap_or(kept.serial);
        RemoteKey::Kmod {
            region: kept.id,
            mapping: Some(Mapping {
                serial: kept.serial,
                oldest,
            }),
        }
    }

    /// Our address of byte `offset` of a peer's region that is to be mapped, `len` bytes of it;
    /// maps it if it is not yet. Nothing if that cannot be done.
    fn reach(
        &self,
        owner: usize,
        (region, mapping): (RegionId, Option<Mapping>),
        offset: u64,
        len: usize,
        rights: Rights,
    ) -> Option<*mut u8> {
        let mut mapped = self.mapped.borrow_mut();
        let (by, what) = ((&self.domain, rights), (owner, Some(region)));
        let attachment = mapped.reach(by, what, mapping?, |_| true)?;
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len)?;
        // What does not fit is for the kernel to refuse.
        (end <= attachment.len()).then(|| attachment.as_ptr().wrapping_add(start))
    }
}

/// The parts of a key of this transport.
fn parts(key: RemoteKey) -> Result<(RegionId, Option<Mapping>)> {
    match key {
        RemoteKey::Kmod { region, mapping } => Ok((region, mapping)),
        RemoteKey::Cma { .. } => Err(Error::corrupt(
            "the transport of a key",
            key.kind().number(),
        )),
    }
}

impl Transport for Kmod {
    unsafe fn open(&mut self, base: *mut u8, len: usize, writable: bool) -> Result<RemoteKey> {
        let wanted = Opened {
            base: base as usize,
            len,
            writable,
        };
        let attach_max = self.attach_max;
        let Some(kept) = self.reopen(wanted) else {
            // SAFETY: the caller's promise.
            return unsafe { self.open_anew(base, wanted) }.map(RemoteKey::unmapped);
        };
        kept.uses = kept.uses.saturating_add(1);
        let (id, serial) = (kept.id, kept.serial);
        if kept.uses <= ATTACH_AFTER || serial == 0 || len as u64 > attach_max {
            return Ok(RemoteKey::unmapped(id));
        }
        let is_unchanged = self.domain.is_unchanged(id);
        match self.kept.newest() {
            Some(kept) if is_unchanged => Ok(self.mappable(kept)),
            _ => {
                // A program that does this to a buffer after each operation is not asked again
                // soon.
                self.invalidate();
                // SAFETY: the caller's promise.
                unsafe { self.open_anew(base, wanted) }.map(RemoteKey::unmapped)
            }
        }
    }

    fn invalidate(&mut self) {
        self.doubtful = self.penalty;
        self.penalty = self.penalty.saturating_mul(2);
    }

    unsafe fn pull(
        &self,
        owner: usize,
        key: RemoteKey,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<()> {
        let parts = parts(key)?;
        if let Some(from) = self.reach(owner, parts, offset, len, Rights::Read) {
            // SAFETY: `reach` returned `len` mapped bytes; the caller vouches for `to`, which is
            // elsewhere: nobody passes memory of an attachment.
            unsafe { memcpy::cached(to, from, len) };
            return Ok(());
        }
        let (id, direction) = (parts.0, uapi::COPY_FROM_REGION);
        // SAFETY: the caller's promise.
        unsafe { self.domain.copy_bytes(id, direction, offset, to, len) }
    }

    unsafe fn push(
        &self,
        owner: usize,
        key: RemoteKey,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<()> {
        let parts = parts(key)?;
        if let Some(to) = self.reach(owner, parts, offset, len, Rights::ReadWrite) {
            // SAFETY: as in `pull`, the other way round; the mapping is for writing.
            unsafe { memcpy::cached(to, from, len) };
            return Ok(());
        }
        let (id, direction) = (parts.0, uapi::COPY_TO_REGION);
        // SAFETY: the caller's promise; the kernel only reads in this direction.
        unsafe {
            self.domain
                .copy_bytes(id, direction, offset, from.cast_mut(), len)
        }
    }
}

/// Whether the module can be used on this machine.
pub(crate) fn probe() -> TransportReport {
    let (usable, why) = match Device::open().and_then(|device| device.info()) {
        Ok(info) => (
            true,
            format!("{}, ABI {}", uapi::DEVICE_PATH, info.abi_version),
        ),
        Err(error) => (false, error.report()),
    };
    TransportKind::Kmod.report(usable, why)
}
