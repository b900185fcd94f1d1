// SPDX-License-Identifier: MIT OR Apache-2.0

//! Safe, owning wrappers over the ioctls of `/dev/libcopy`. Nothing else issues one.
//!
//! A [`Domain`] is a set of processes that may share; a [`Region`] is memory that one of them
//! published. A region borrows its memory, so it cannot outlive it, and memory that peers may
//! write to is borrowed mutably for as long as they may. Copies are loops: the kernel may stop
//! half way when a signal arrives.
//!
//! ```no_run
//! use libcopy::device::Domain;
//!
//! # fn main() -> libcopy::Result<()> {
//! let domain = Domain::create()?;
//! let bytes = vec![7u8; 1 << 20];
//! let region = domain.share(&bytes, 1)?;
//! // Tell a peer domain.key() and region.id(); it does:
//! let peer = Domain::join(&domain.key().unwrap())?;
//! let mut copy = vec![0u8; 1 << 20];
//! peer.copy_from(region.id(), 0, &mut copy, true)?;
//! region.wait(None)?; // until the one expected use is over
//! # Ok(())
//! # }
//! ```

pub(crate) mod request;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::str::FromStr;
use std::time::Duration;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::{Error, Result};
use crate::uapi;

pub use request::{
    Engine, EngineKind, Progress, Request, RequestId, StatusTable, Submission, switch_in_handler,
};

/// The first version of the ABI, which everything here but what has a feature bit needs.
const OLDEST_ABI: u32 = 1;

/// An open `/dev/libcopy` that belongs to no domain.
#[derive(Debug)]
pub struct Device {
    file: OwnedFd,
}

impl Device {
    /// Opens the device and checks that its ABI is one that we speak.
    pub fn open() -> Result<Self> {
        let mut path = uapi::DEVICE_PATH.as_bytes().to_vec();
        path.push(0);
        // SAFETY: `path` is a NUL-terminated string that outlives the call.
        let fd = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(Error::Device {
                path: uapi::DEVICE_PATH,
                source,
            });
        }
        // SAFETY: `open` just returned this descriptor and nobody else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let device = Device { file };
        let module = device.info()?.abi_version;
        // Later versions only add, and what they add has feature bits.
        if module < OLDEST_ABI {
            return Err(Error::AbiVersion {
                module,
                library: OLDEST_ABI,
            });
        }
        Ok(device)
    }

    /// What the module is and can do.
    pub fn info(&self) -> Result<uapi::Info> {
        let mut info = uapi::Info::default();
        // SAFETY: GET_INFO only writes the structure.
        unsafe { ioctl(self.file.as_fd(), "GET_INFO", uapi::GET_INFO, &mut info) }?;
        Ok(info)
    }

    /// Makes this file the first member of a new domain.
    pub fn create_domain(self) -> Result<Domain> {
        let mut arg = uapi::DomainCreate::default();
        // SAFETY: DOMAIN_CREATE only writes the structure.
        unsafe {
            ioctl(
                self.file.as_fd(),
                "DOMAIN_CREATE",
                uapi::DOMAIN_CREATE,
                &mut arg,
            )
        }?;
        Ok(Domain {
            file: self.file,
            key: Some(DomainKey(arg.key)),
        })
    }

    /// Makes this file a member of the domain with this key.
    pub fn join(self, key: &DomainKey) -> Result<Domain> {
        let mut arg = uapi::DomainJoin {
            flags: uapi::JOIN_BY_KEY,
            key: key.0,
            ..Default::default()
        };
        // SAFETY: DOMAIN_JOIN only reads the structure.
        unsafe {
            ioctl(
                self.file.as_fd(),
                "DOMAIN_JOIN",
                uapi::DOMAIN_JOIN,
                &mut arg,
            )
        }?;
        Ok(Domain {
            file: self.file,
            key: Some(*key),
        })
    }

    /// Makes this file a member of the domain of another file, which this process was handed.
    pub fn join_fd(self, other: BorrowedFd<'_>) -> Result<Domain> {
        let mut arg = uapi::DomainJoin {
            flags: uapi::JOIN_BY_FD,
            fd: other.as_raw_fd(),
            ..Default::default()
        };
        // SAFETY: DOMAIN_JOIN only reads the structure.
        unsafe {
            ioctl(
                self.file.as_fd(),
                "DOMAIN_JOIN",
                uapi::DOMAIN_JOIN,
                &mut arg,
            )
        }?;
        Ok(Domain {
            file: self.file,
            key: None,
        })
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// 128 random bits that let processes of the same user into a domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DomainKey([u8; 16]);

impl DomainKey {
    /// The key as bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// A key that was received as bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        DomainKey(bytes)
    }
}

impl fmt::Display for DomainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DomainKey {
    // A key in a log would let its reader in.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DomainKey(..)")
    }
}

impl FromStr for DomainKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_key(text).map(DomainKey)
    }
}

/// Reads 32 hexadecimal digits.
pub(crate) fn parse_key(text: &str) -> Result<[u8; 16]> {
    let wrong = || {
        Error::argument(
            "key",
            format!("{} characters", text.len()),
            "32 hexadecimal digits",
        )
    };
    let text = text.as_bytes();
    if text.len() != 32 {
        return Err(wrong());
    }
    let mut key = [0; 16];
    for (byte, pair) in key.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |c: u8| (c as char).to_digit(16);
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
            return Err(wrong());
        };
        *byte = (high << 4 | low) as u8;
    }
    Ok(key)
}

/// Rights that peers get on a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Peers may copy from it.
    Read,
    /// Peers may copy into it.
    Write,
    /// Both.
    ReadWrite,
}

impl Rights {
    /// The `RIGHT_*` bits of the ABI.
    pub fn bits(self) -> u32 {
        match self {
            Rights::Read => uapi::RIGHT_READ,
            Rights::Write => uapi::RIGHT_WRITE,
            Rights::ReadWrite => uapi::RIGHT_READ | uapi::RIGHT_WRITE,
        }
    }
}

/// The name of a region inside its domain: what peers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId(u32);

impl RegionId {
    /// An id that a peer sent.
    pub fn new(id: u32) -> Result<Self> {
        match id {
            1..=uapi::MAX_REGION_ID => Ok(RegionId(id)),
            _ => Err(Error::argument(
                "region id",
                id,
                format!("1 to {}", uapi::MAX_REGION_ID),
            )),
        }
    }

    /// The number to send to peers.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Membership in a domain; dropping it leaves the domain in good order.
#[derive(Debug)]
pub struct Domain {
    file: OwnedFd,
    key: Option<DomainKey>,
}

impl Domain {
    /// Opens the device and creates a domain.
    pub fn create() -> Result<Self> {
        Device::open()?.create_domain()
    }

    /// Opens the device and joins a domain by its key.
    pub fn join(key: &DomainKey) -> Result<Self> {
        Device::open()?.join(key)
    }

    /// Opens the device and joins the domain of a file that this process was handed.
    pub fn join_fd(other: BorrowedFd<'_>) -> Result<Self> {
        Device::open()?.join_fd(other)
    }

    /// The key of the domain, if this member knows it (one that joined by file does not).
    pub fn key(&self) -> Option<DomainKey> {
        self.key
    }

    /// Publishes memory for reading. `uses` is how many copies [`Region::wait`] waits for.
    pub fn share<'a>(&'a self, bytes: &'a [u8], uses: u32) -> Result<Region<'a>> {
        self.share_slices(&[IoSlice::new(bytes)], uses)
    }

    /// Publishes several slices as one region for reading.
    pub fn share_slices<'a>(&'a self, slices: &[IoSlice<'a>], uses: u32) -> Result<Region<'a>> {
        // SAFETY: `IoSlice` has the layout of `struct iovec`, which is that of `Piece`; the slices
        // stay borrowed as long as the region lives, and peers get no right to write.
        unsafe {
            let pieces = slices.as_ptr().cast();
            self.region(pieces, slices.len(), Rights::Read, uses, 0)
        }
    }

    /// Publishes memory with the given rights. While the region lives, peers may change it, which
    /// is why it stays mutably borrowed.
    pub fn share_mut<'a>(
        &'a self,
        bytes: &'a mut [u8],
        rights: Rights,
        uses: u32,
    ) -> Result<Region<'a>> {
        self.share_slices_mut(&mut [IoSliceMut::new(bytes)], rights, uses)
    }

    /// Publishes several slices as one region with the given rights.
    pub fn share_slices_mut<'a>(
        &'a self,
        slices: &mut [IoSliceMut<'a>],
        rights: Rights,
        uses: u32,
    ) -> Result<Region<'a>> {
        // SAFETY: `IoSliceMut` has the layout of `struct iovec`; the slices stay mutably borrowed
        // as long as the region lives.
        unsafe {
            let pieces = slices.as_ptr().cast();
            self.region(pieces, slices.len(), rights, uses, 0)
        }
    }

    /// Publishes memory for reading without borrowing it: for memory that others change as they like,
    /// whose peers have to know when it may be read.
    ///
    /// # Safety
    ///
    /// None of the program's for the owner: peers only read, and memory that is not the owner's is
    /// refused. Peers that copy while the owner writes get any mixture of old and new bytes.
    pub unsafe fn share_raw(&self, base: *const u8, len: usize, uses: u32) -> Result<Region<'_>> {
        let piece = uapi::Piece {
            base: base as u64,
            len: len as u64,
        };
        // SAFETY: one piece is passed, and peers get no right to write.
        unsafe { self.region(&raw const piece, 1, Rights::Read, uses, 0) }
    }

    /// # Safety
    ///
    /// As for [`Domain::create_region`], for as long as the result lives.
    unsafe fn region<'a>(
        &'a self,
        pieces: *const uapi::Piece,
        count: usize,
        rights: Rights,
        uses: u32,
        flags: u32,
    ) -> Result<Region<'a>> {
        // SAFETY: passed on to the caller.
        let arg = unsafe { self.create_region(pieces, count, rights.bits(), uses, flags, None) }?;
        Ok(Region {
            domain: self,
            arg,
            live: true,
            memory: PhantomData,
        })
    }

    /// Publishes memory without a borrow; the caller destroys or replaces the region.
    ///
    /// # Safety
    ///
    /// `pieces` points to `count` pieces. Until the region is gone, nothing may rely on the
    /// memory's content if `rights` let peers write to it.
    pub(crate) unsafe fn create_region(
        &self,
        pieces: *const uapi::Piece,
        count: usize,
        rights: u32,
        uses: u32,
        flags: u32,
        replaces: Option<RegionId>,
    ) -> Result<uapi::RegionCreate> {
        let iov_count = piece_count(count)?;
        let mut arg = uapi::RegionCreate {
            iov: pieces as u64,
            iov_count,
            rights,
            uses,
            flags,
            replaces: replaces.map_or(0, RegionId::get),
            ..Default::default()
        };
        // SAFETY: the kernel reads `iov_count` pieces, which the caller vouches for.
        unsafe {
            ioctl(
                self.file.as_fd(),
                "REGION_CREATE",
                uapi::REGION_CREATE,
                &mut arg,
            )
        }?;
        Ok(arg)
    }

    pub(crate) fn destroy_region(&self, id: RegionId, flags: u32) -> Result<()> {
        let mut arg = uapi::RegionDestroy { id: id.0, flags };
        // SAFETY: REGION_DESTROY only reads the structure.
        unsafe {
            ioctl(
                self.file.as_fd(),
                "REGION_DESTROY",
                uapi::REGION_DESTROY,
                &mut arg,
            )
        }
    }

    /// The state of a region of any member.
    pub fn region_info(&self, id: RegionId) -> Result<uapi::RegionInfo> {
        let mut arg = uapi::RegionInfo {
            id: id.0,
            ..Default::default()
        };
        // SAFETY: REGION_INFO only writes the structure.
        unsafe {
            ioctl(
                self.file.as_fd(),
                "REGION_INFO",
                uapi::REGION_INFO,
                &mut arg,
            )
        }?;
        Ok(arg)
    }

    /// Counts expected uses down without a copy; returns what is left.
    pub fn count_uses(&self, id: RegionId, count: u32) -> Result<u32> {
        let mut arg = uapi::RegionUse {
            id: id.0,
            count,
            ..Default::default()
        };
        // SAFETY: REGION_USE only touches the structure.
        unsafe { ioctl(self.file.as_fd(), "REGION_USE", uapi::REGION_USE, &mut arg) }?;
        Ok(arg.uses_left)
    }

    /// Fills `bytes` from a region, starting at byte `offset` of it. `count_use` counts one
    /// expected use down when everything has arrived.
    pub fn copy_from(
        &self,
        region: RegionId,
        offset: u64,
        bytes: &mut [u8],
        count_use: bool,
    ) -> Result<()> {
        // SAFETY: `bytes` is writable for its length.
        unsafe {
            self.copy_bytes(
                region,
                uapi::COPY_FROM_REGION,
                offset,
                bytes.as_mut_ptr(),
                bytes.len(),
                count_use,
            )
        }
    }

    /// Writes `bytes` into a region, starting at byte `offset` of it.
    pub fn copy_to(
        &self,
        region: RegionId,
        offset: u64,
        bytes: &[u8],
        count_use: bool,
    ) -> Result<()> {
        // SAFETY: the kernel only reads `bytes` in this direction.
        unsafe {
            self.copy_bytes(
                region,
                uapi::COPY_TO_REGION,
                offset,
                bytes.as_ptr().cast_mut(),
                bytes.len(),
                count_use,
            )
        }
    }

    /// Fills several slices, one after the other, from a region.
    pub fn copy_from_vectored(
        &self,
        region: RegionId,
        offset: u64,
        slices: &mut [IoSliceMut<'_>],
        count_use: bool,
    ) -> Result<()> {
        let mut pieces: Vec<uapi::Piece> = slices
            .iter_mut()
            .map(|s| uapi::Piece {
                base: s.as_mut_ptr() as u64,
                len: s.len() as u64,
            })
            .collect();
        // SAFETY: the pieces are writable slices.
        unsafe {
            self.copy_pieces(
                region,
                uapi::COPY_FROM_REGION,
                offset,
                &mut pieces,
                count_use,
            )
        }
    }

    /// Writes several slices, one after the other, into a region.
    pub fn copy_to_vectored(
        &self,
        region: RegionId,
        offset: u64,
        slices: &[IoSlice<'_>],
        count_use: bool,
    ) -> Result<()> {
        let mut pieces: Vec<uapi::Piece> = slices
            .iter()
            .map(|s| uapi::Piece {
                base: s.as_ptr() as u64,
                len: s.len() as u64,
            })
            .collect();
        // SAFETY: the kernel only reads the pieces in this direction.
        unsafe { self.copy_pieces(region, uapi::COPY_TO_REGION, offset, &mut pieces, count_use) }
    }

    /// # Safety
    ///
    /// `base` must be readable for `len` bytes, and writable with [`uapi::COPY_FROM_REGION`].
    pub(crate) unsafe fn copy_bytes(
        &self,
        region: RegionId,
        direction: u32,
        offset: u64,
        base: *mut u8,
        len: usize,
        count_use: bool,
    ) -> Result<()> {
        let mut piece = [uapi::Piece {
            base: base as u64,
            len: len as u64,
        }];
        // SAFETY: passed on to the caller.
        unsafe { self.copy_pieces(region, direction, offset, &mut piece, count_use) }
    }

    /// # Safety
    ///
    /// As for [`Domain::copy_bytes`], for each piece.
    unsafe fn copy_pieces(
        &self,
        region: RegionId,
        direction: u32,
        mut offset: u64,
        pieces: &mut [uapi::Piece],
        count_use: bool,
    ) -> Result<()> {
        let mut length: u64 = pieces.iter().map(|p| p.len).sum();
        let mut first = 0;
        loop {
            // A copy that had to stop half way continues with the pieces that are left, so the
            // kernel counts the use only once: when the last call is complete.
            let rest = &pieces[first..];
            let mut arg = uapi::RegionCopy {
                region: region.0,
                flags: direction | if count_use { uapi::COPY_COUNT_USE } else { 0 },
                offset,
                length,
                iov: rest.as_ptr() as u64,
                iov_count: piece_count(rest.len())?,
                ..Default::default()
            };
            // SAFETY: the caller vouches for the memory behind the pieces.
            unsafe {
                ioctl(
                    self.file.as_fd(),
                    "REGION_COPY",
                    uapi::REGION_COPY,
                    &mut arg,
                )
            }?;
            if arg.done > length {
                return Err(Error::Corrupt {
                    what: "bytes copied",
                    value: arg.done,
                });
            }
            if arg.done == length {
                return Ok(());
            }
            // `done == 0` without an error: a signal. The next call meets what stopped it.
            offset += arg.done;
            length -= arg.done;
            let mut skip = arg.done;
            while skip > 0 && skip >= pieces[first].len {
                skip -= pieces[first].len;
                first += 1;
            }
            pieces[first].base += skip;
            pieces[first].len -= skip;
        }
    }

    /// Copies from a region along layouts; `None` means contiguous. The caller's layout must stay
    /// inside `bytes`.
    pub fn copy_from_strided(
        &self,
        region: RegionId,
        region_layout: Option<&uapi::Layout>,
        bytes: &mut [u8],
        bytes_layout: Option<&uapi::Layout>,
        count_use: bool,
    ) -> Result<u64> {
        let size = strided_size(region_layout, bytes.len(), bytes_layout)?;
        // SAFETY: `strided_size` checked that the layout stays inside `bytes`, which is writable.
        unsafe {
            self.copy_strided(
                region,
                uapi::COPY_FROM_REGION,
                region_layout,
                bytes.as_mut_ptr(),
                bytes_layout,
                size,
                count_use,
            )
        }
    }

    /// Copies into a region along layouts; `None` means contiguous.
    pub fn copy_to_strided(
        &self,
        region: RegionId,
        region_layout: Option<&uapi::Layout>,
        bytes: &[u8],
        bytes_layout: Option<&uapi::Layout>,
        count_use: bool,
    ) -> Result<u64> {
        let size = strided_size(region_layout, bytes.len(), bytes_layout)?;
        // SAFETY: `strided_size` checked that the layout stays inside `bytes`, and the kernel only
        // reads it in this direction.
        unsafe {
            self.copy_strided(
                region,
                uapi::COPY_TO_REGION,
                region_layout,
                bytes.as_ptr().cast_mut(),
                bytes_layout,
                size,
                count_use,
            )
        }
    }

    /// # Safety
    ///
    /// What `user_layout` reaches from `user` must be readable, and writable with
    /// [`uapi::COPY_FROM_REGION`].
    #[expect(clippy::too_many_arguments, reason = "as many as the ioctl has fields")]
    unsafe fn copy_strided(
        &self,
        region: RegionId,
        direction: u32,
        region_layout: Option<&uapi::Layout>,
        user: *mut u8,
        user_layout: Option<&uapi::Layout>,
        size: u64,
        count_use: bool,
    ) -> Result<u64> {
        // With both sides contiguous the ioctl could not know the size.
        let contiguous = uapi::Layout {
            block: size,
            ..Default::default()
        };
        let region_layout = region_layout.unwrap_or(&contiguous);
        let mut skip = 0;
        loop {
            let mut arg = uapi::CopyStrided {
                region: region.0,
                flags: direction | if count_use { uapi::COPY_COUNT_USE } else { 0 },
                region_layout: std::ptr::from_ref(region_layout) as u64,
                user_addr: user as u64,
                user_layout: user_layout.map_or(0, |l| std::ptr::from_ref(l) as u64),
                skip,
                ..Default::default()
            };
            // SAFETY: both layouts outlive the call, the memory is the caller's promise.
            unsafe {
                ioctl(
                    self.file.as_fd(),
                    "REGION_COPY_STRIDED",
                    uapi::REGION_COPY_STRIDED,
                    &mut arg,
                )
            }?;
            skip = match skip.checked_add(arg.done) {
                Some(sum) if sum <= size => sum,
                _ => {
                    return Err(Error::Corrupt {
                        what: "bytes copied",
                        value: arg.done,
                    });
                }
            };
            if skip == size {
                return Ok(size);
            }
        }
    }

    /// Copies between two regions, neither of which needs to be ours.
    pub fn transfer(
        &self,
        (source, source_offset): (RegionId, u64),
        (destination, destination_offset): (RegionId, u64),
        length: u64,
        count_use: bool,
    ) -> Result<()> {
        let mut done = 0;
        loop {
            let mut arg = uapi::Transfer {
                source: source.0,
                destination: destination.0,
                source_offset: source_offset.saturating_add(done),
                destination_offset: destination_offset.saturating_add(done),
                length: length - done,
                flags: if count_use { uapi::COPY_COUNT_USE } else { 0 },
                ..Default::default()
            };
            // SAFETY: TRANSFER touches no memory of ours that is not published as a region.
            unsafe { ioctl(self.file.as_fd(), "TRANSFER", uapi::TRANSFER, &mut arg) }?;
            if arg.done > length - done {
                return Err(Error::Corrupt {
                    what: "bytes transferred",
                    value: arg.done,
                });
            }
            done += arg.done;
            if done == length {
                return Ok(());
            }
        }
    }

    /// Maps a region's pages for load and store.
    pub fn attach(&self, region: RegionId, rights: Rights) -> Result<Attachment> {
        let mut arg = uapi::RegionAttach {
            id: region.0,
            access: rights.bits(),
            ..Default::default()
        };
        // SAFETY: REGION_ATTACH only touches the structure.
        unsafe {
            ioctl(
                self.file.as_fd(),
                "REGION_ATTACH",
                uapi::REGION_ATTACH,
                &mut arg,
            )
        }?;
        let size = self.region_info(region)?.length;
        let too_large = |value| Error::Corrupt {
            what: "length of an attachment",
            value,
        };
        let map_length = usize::try_from(arg.map_length).map_err(|_| too_large(arg.map_length))?;
        let offset = i64::try_from(arg.map_offset).map_err(|_| too_large(arg.map_offset))?;
        if arg
            .data_offset
            .checked_add(size)
            .is_none_or(|end| end > arg.map_length)
        {
            return Err(too_large(size));
        }
        let protection = match rights {
            Rights::Read => ProtFlags::PROT_READ,
            Rights::Write => ProtFlags::PROT_WRITE,
            Rights::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        let length = NonZero::new(map_length).ok_or_else(|| too_large(0))?;
        let shared = MapFlags::MAP_SHARED;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap(None, length, protection, shared, &self.file, offset) }
            .map_err(|errno| Error::system("mmap of a region", errno))?
            .cast::<u8>();
        Ok(Attachment {
            base,
            map_length,
            // Both fit: they are at most `map_length`.
            data: arg.data_offset as usize,
            size: size as usize,
            rights,
        })
    }
}

impl AsFd for Domain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let mut arg = uapi::DomainLeave::default();
        // Fails if a fork's child already left or the module is going: nothing is left to undo.
        // SAFETY: DOMAIN_LEAVE only reads the structure.
        let _ = unsafe {
            ioctl(
                self.file.as_fd(),
                "DOMAIN_LEAVE",
                uapi::DOMAIN_LEAVE,
                &mut arg,
            )
        };
    }
}

/// Published memory. Dropping it takes the memory back; its pages stay pinned for a while in case
/// the same memory is published again.
#[derive(Debug)]
pub struct Region<'a> {
    domain: &'a Domain,
    arg: uapi::RegionCreate,
    live: bool,
    memory: PhantomData<&'a mut [u8]>,
}

impl Region<'_> {
    /// What to tell peers.
    pub fn id(&self) -> RegionId {
        RegionId(self.arg.id)
    }

    /// Bytes of all pieces together.
    pub fn len(&self) -> u64 {
        self.arg.length
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.arg.length == 0
    }

    /// Pages that are pinned for it.
    pub fn pages(&self) -> u64 {
        self.arg.pages
    }

    /// Whether its pages were still pinned from an earlier region.
    pub fn was_reused(&self) -> bool {
        self.arg.result & uapi::RESULT_REUSED != 0
    }

    /// Its state as the kernel sees it.
    pub fn info(&self) -> Result<uapi::RegionInfo> {
        self.domain.region_info(self.id())
    }

    /// Waits until all expected uses are over; `None` waits for as long as it takes, or until a
    /// member of the domain dies.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        self.wait_flags(timeout, 0)
    }

    /// [`Region::wait`], and takes the region back in the same system call.
    pub fn wait_and_drop(mut self, timeout: Option<Duration>) -> Result<()> {
        self.wait_flags(timeout, uapi::WAIT_DESTROY)?;
        self.live = false;
        Ok(())
    }

    fn wait_flags(&self, timeout: Option<Duration>, flags: u32) -> Result<()> {
        let timeout_ns = timeout.map_or(-1, |t| i64::try_from(t.as_nanos()).unwrap_or(i64::MAX));
        let mut arg = uapi::RegionWait {
            id: self.arg.id,
            flags,
            timeout_ns,
            ..Default::default()
        };
        // SAFETY: REGION_WAIT only touches the structure; on EINTR it leaves in it what is left
        // of the timeout, so repeating the call with the same structure is right.
        unsafe {
            ioctl(
                self.domain.as_fd(),
                "REGION_WAIT",
                uapi::REGION_WAIT,
                &mut arg,
            )
        }
    }

    /// Takes the memory back and unpins it at once.
    pub fn unpin(mut self) -> Result<()> {
        self.live = false;
        self.domain.destroy_region(self.id(), uapi::DESTROY_UNPIN)
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        if self.live {
            // ENOENT is the only way this fails: then it is gone already.
            let _ = self.domain.destroy_region(self.id(), 0);
        }
    }
}

/// A peer's region in our address space; dropping it unmaps it.
///
/// The owner may change the bytes at any time, so there is no slice of them: they are copied in
/// and out, or accessed through raw pointers. They stay valid when the owner is gone.
#[derive(Debug)]
pub struct Attachment {
    base: NonNull<u8>,
    map_length: usize,
    data: usize,
    size: usize,
    rights: Rights,
}

// SAFETY: an attachment owns its mapping, which is not tied to a thread.
unsafe impl Send for Attachment {}
// SAFETY: through `&self` memory is only accessed by raw copies, as peers do at the same time.
unsafe impl Sync for Attachment {}

impl Attachment {
    /// Bytes of the region.
    pub fn len(&self) -> usize {
        self.size
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// First byte of the region. Peers may change what is behind it at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `data` is within the mapping, checked when it was made.
        unsafe { self.base.as_ptr().add(self.data) }
    }

    /// Copies bytes out of the region.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.permit(Rights::Write, "read", "write, as attached")?;
        self.check(offset, bytes.len())?;
        // SAFETY: the range was checked, and `bytes` cannot overlap a mapping that only raw
        // pointers lead to.
        unsafe {
            let from = self.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
        Ok(())
    }

    /// Copies bytes into the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.permit(Rights::Read, "write", "read, as attached")?;
        self.check(offset, bytes.len())?;
        // SAFETY: as in `read`, and the mapping is writable.
        unsafe {
            let to = self.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(())
    }

    /// Refuses `access` if the attachment is for `other` alone.
    fn permit(&self, other: Rights, access: &str, allowed: &str) -> Result<()> {
        if self.rights == other {
            return Err(Error::argument("access to an attachment", access, allowed));
        }
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(Error::argument(
                "range of an attachment",
                format!("{len} bytes at {offset}"),
                format!("within its {} bytes", self.size),
            )),
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it can exist.
        let _ = unsafe { munmap(self.base.cast(), self.map_length) };
    }
}

/// Bytes that a layout describes.
///
/// # Errors
///
/// [`Error::Argument`] if it has too many streams or describes more than 2^64 bytes.
pub fn layout_size(layout: &uapi::Layout) -> Result<u64> {
    layout_streams(layout)?
        .iter()
        .try_fold(layout.block, |size, stream| size.checked_mul(stream.count))
        .ok_or_else(|| Error::argument("size of a layout", "over 2^64", "below"))
}

fn layout_streams(layout: &uapi::Layout) -> Result<&[uapi::Stream]> {
    layout
        .streams
        .get(..layout.stream_count as usize)
        .ok_or_else(|| {
            Error::argument(
                "number of streams",
                layout.stream_count,
                format!("0 to {}", uapi::MAX_STREAMS),
            )
        })
}

/// First byte and end of what a layout reaches.
fn layout_extent(layout: &uapi::Layout) -> Result<(i128, i128)> {
    let mut low = i128::from(layout.offset);
    let mut high = low + i128::from(layout.block);
    for stream in layout_streams(layout)?.iter().filter(|s| s.count > 0) {
        // At most 2^64 * 2^63, so six of them stay below 2^127 together only if checked.
        let reach = i128::from(stream.count - 1)
            .checked_mul(i128::from(stream.stride))
            .ok_or_else(|| Error::argument("extent of a layout", "over 2^127", "below"))?;
        let end = if reach < 0 { &mut low } else { &mut high };
        *end = end
            .checked_add(reach)
            .ok_or_else(|| Error::argument("extent of a layout", "over 2^127", "below"))?;
    }
    Ok((low, high))
}

/// Checks the layouts of a strided copy against the caller's memory; returns the bytes to copy.
fn strided_size(
    region: Option<&uapi::Layout>,
    bytes: usize,
    user: Option<&uapi::Layout>,
) -> Result<u64> {
    let region = region.map(layout_size).transpose()?;
    let size = match user {
        Some(layout) => layout_size(layout)?,
        None => region.unwrap_or(bytes as u64),
    };
    if region.is_some_and(|r| r != size) {
        return Err(Error::argument(
            "size of the region's layout",
            region.unwrap_or(0),
            size,
        ));
    }
    let (low, high) = match user {
        Some(layout) if size > 0 => layout_extent(layout)?,
        Some(_) => (0, 0),
        None => (0, i128::from(size)),
    };
    if low < 0 || high > bytes as i128 {
        return Err(Error::argument(
            "extent of the layout",
            format!("{low}..{high}"),
            format!("within the buffer's {bytes} bytes"),
        ));
    }
    Ok(size)
}

fn piece_count(count: usize) -> Result<u32> {
    match u32::try_from(count) {
        Ok(n) if n <= uapi::MAX_IOV => Ok(n),
        _ => Err(Error::argument(
            "number of pieces",
            count,
            format!("at most {}", uapi::MAX_IOV),
        )),
    }
}

/// Issues one ioctl, again if a signal interrupts it.
///
/// # Safety
///
/// `command` takes a `T`, and memory that the argument points to is fit for what it does.
unsafe fn ioctl<T>(
    fd: BorrowedFd<'_>,
    name: &'static str,
    command: u32,
    arg: &mut T,
) -> Result<()> {
    loop {
        // SAFETY: the caller vouches for the argument; the descriptor is open.
        let rc =
            unsafe { ioctl_sys::ioctl(fd.as_raw_fd(), command.into(), std::ptr::from_mut(arg)) };
        if rc >= 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        if source.raw_os_error() != Some(libc::EINTR) {
            let hint = hint(name, source.raw_os_error().unwrap_or(0));
            return Err(Error::Ioctl {
                ioctl: name,
                source,
                hint,
            });
        }
    }
}

/// What an errno of an ioctl means, after `uapi.rs`.
fn hint(ioctl: &str, errno: i32) -> &'static str {
    match (ioctl, errno) {
        (_, libc::ENOTTY) => "the module does not know this command: it is older than the library",
        (_, libc::E2BIG) => "the module is older than the library",
        (_, libc::ENOTCONN) => "the file belongs to no domain",
        (_, libc::EISCONN) => "the file belongs to a domain already",
        ("DOMAIN_JOIN", libc::EBADF) => "the descriptor is not an open /dev/libcopy",
        ("DOMAIN_JOIN", libc::ENOENT) => "no domain has this key: its creator left",
        ("DOMAIN_JOIN", libc::EPERM) => "only the creator's user may join by key; pass the file",
        ("REGION_CREATE", libc::ENOMEM) => "RLIMIT_MEMLOCK would be exceeded: raise `ulimit -l`",
        ("REGION_CREATE", libc::EACCES) => "the memory is not writable, or not readable",
        ("REGION_CREATE", libc::EOPNOTSUPP) => {
            "this memory cannot be pinned: device or file mapping"
        }
        ("REGION_CREATE", libc::ENOSPC) => "too many regions: see the module parameter max_regions",
        ("REGION_CREATE", libc::EFAULT) => "a piece is not mapped",
        ("REGION_WAIT", libc::ETIMEDOUT) => "uses are outstanding",
        ("REGION_WAIT", libc::ECONNRESET) => "a member of the domain died",
        ("REGION_WAIT", libc::EINVAL) => "the region expects no uses",
        ("REGION_ATTACH", libc::EOPNOTSUPP) => "the pieces do not meet at page boundaries: copy",
        ("REQUEST_SUBMIT", libc::ENODEV) => "no engine (there): let a CPU copy",
        ("REQUEST_SUBMIT", libc::ENOSPC) => "too many requests: release those that have ended",
        ("REQUEST_SUBMIT", libc::EBADF) => "the eventfd is not open",
        ("REQUEST_WAIT" | "REQUEST_SWITCH", libc::ETIMEDOUT) => "fragments are outstanding",
        ("REQUEST_WAIT" | "REQUEST_SWITCH", libc::ECANCELED) => "the request was cancelled",
        ("REQUEST_WAIT" | "REQUEST_SWITCH", libc::EIO) => {
            "bytes arrived damaged, and again when copied once more"
        }
        ("REQUEST_WAIT" | "REQUEST_CANCEL", libc::EPERM) => "another process submitted the request",
        ("REQUEST_WAIT" | "REQUEST_SWITCH" | "REQUEST_INFO" | "REQUEST_CANCEL", libc::ENOENT) => {
            "no such request: it was released, or its submitter is gone"
        }
        ("REGION_DESTROY", libc::EPERM) => "another process owns the region",
        (_, libc::ENOENT) => "no such region: its owner took it back",
        (_, libc::EACCES) => "the region's rights do not allow this",
        (_, libc::ERANGE) => "beyond the end of the region",
        (_, libc::ESTALE) => "the owner unmapped or replaced the memory",
        (_, libc::EOWNERDEAD) => "the owner of the region is gone",
        (_, libc::EFAULT) => "our own memory cannot be accessed",
        (_, libc::EINVAL) => "an argument does not fit",
        (_, libc::ENOMEM) => "the kernel is out of memory",
        _ => "unexpected",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_what_c_makes_of_them() {
        let c = ioctl_sys::iorw!(uapi::IOC_TYPE, 7, 24);
        assert_eq!(u64::from(uapi::iowr(7, 24)), c as u64);
    }

    #[test]
    fn keys_survive_text() {
        let key = DomainKey::from_bytes(*b"0123456789abcdef");
        assert_eq!(key.to_string().parse::<DomainKey>().unwrap(), key);
        assert!("12".parse::<DomainKey>().is_err());
        assert!("zz".repeat(16).parse::<DomainKey>().is_err());
        assert!(!format!("{key:?}").contains("3031"));
    }

    #[test]
    fn layouts_are_kept_inside_the_buffer() {
        let mut layout = uapi::Layout {
            block: 8,
            stream_count: 1,
            ..Default::default()
        };
        layout.streams[0] = uapi::Stream {
            count: 4,
            stride: 16,
        };
        assert_eq!(strided_size(None, 56, Some(&layout)).unwrap(), 32);
        assert!(strided_size(None, 55, Some(&layout)).is_err());
        layout.streams[0].stride = -16;
        assert!(strided_size(None, 1000, Some(&layout)).is_err());
        layout.offset = 48;
        assert_eq!(strided_size(None, 56, Some(&layout)).unwrap(), 32);
        layout.streams[0] = uapi::Stream {
            count: u64::MAX,
            stride: i64::MAX,
        };
        assert!(strided_size(None, 1000, Some(&layout)).is_err());
        layout.stream_count = 7;
        assert!(strided_size(None, 1000, Some(&layout)).is_err());
        assert_eq!(strided_size(None, 12, None).unwrap(), 12);
    }

    #[test]
    fn extents_do_not_overflow() {
        let streams = [uapi::Stream {
            count: u64::MAX,
            stride: i64::MIN,
        }; uapi::MAX_STREAMS];
        let layout = uapi::Layout {
            block: 0,
            stream_count: 6,
            offset: i64::MIN,
            streams,
            reserved: 0,
        };
        assert!(layout_extent(&layout).is_err());
        assert_eq!(layout_size(&layout).unwrap(), 0);
    }

    #[test]
    fn without_the_module_the_error_says_so() {
        if let Err(error) = Device::open() {
            assert!(error.to_string().contains(uapi::DEVICE_PATH), "{error}");
        }
    }

    #[test]
    fn ids_are_checked() {
        assert!(RegionId::new(0).is_err());
        assert!(RegionId::new(uapi::MAX_REGION_ID + 1).is_err());
        assert_eq!(RegionId::new(5).unwrap().get(), 5);
    }
}
