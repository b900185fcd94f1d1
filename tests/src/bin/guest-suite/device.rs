// SPDX-License-Identifier: MIT OR Apache-2.0

//! The thinnest possible client of the ABI: one method per ioctl, nothing checked, nothing hidden.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libcopy::datatype::Places;
use nix::errno::Errno;

use crate::abi::{self, *};
use crate::sys::{self, Map};

/// An open `/dev/libcopy`.
pub struct Device(OwnedFd);

/// The result of a call.
pub type Answer<T> = Result<T, Errno>;

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl Device {
    /// Opens the device.
    pub fn open() -> Answer<Self> {
        Self::open_as(libc::O_RDWR)
    }

    /// Opens the device in a mode of `open(2)`.
    pub fn open_as(mode: i32) -> Answer<Self> {
        // SAFETY: A terminated path.
        let fd = sys::result(
            unsafe { libc::open(c"/dev/libcopy".as_ptr(), mode | libc::O_CLOEXEC) }.into(),
        )?;
        // SAFETY: Just opened, and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// Opens the device and creates a domain.
    pub fn domain() -> Answer<(Self, [u8; 16])> {
        let device = Self::open()?;
        let key = device.create()?;
        Ok((device, key))
    }

    /// Opens the device and joins by key.
    pub fn member(key: [u8; 16]) -> Answer<Self> {
        let device = Self::open()?;
        device.join_key(key)?;
        Ok(device)
    }

    /// Any ioctl, with any argument.
    pub fn raw(&self, command: u32, argument: u64) -> Answer<i64> {
        // SAFETY: The kernel checks the argument; tests that pass addresses own what is there.
        sys::result(
            unsafe { libc::ioctl(self.0.as_raw_fd(), command as libc::Ioctl, argument) }.into(),
        )
    }

    /// An ioctl with a structure.
    pub fn call<T>(&self, command: u32, argument: &mut T) -> Answer<()> {
        self.raw(command, std::ptr::from_mut(argument) as u64)
            .map(drop)
    }

    fn answer<T>(&self, command: u32, mut argument: T) -> Answer<T> {
        self.call(command, &mut argument)?;
        Ok(argument)
    }

    pub fn info(&self) -> Answer<Info> {
        self.answer(GET_INFO, Info::default())
    }

    pub fn create(&self) -> Answer<[u8; 16]> {
        self.answer(DOMAIN_CREATE, DomainCreate::default())
            .map(|answer| answer.key)
    }

    pub fn join_key(&self, key: [u8; 16]) -> Answer<()> {
        let argument = DomainJoin {
            flags: JOIN_BY_KEY,
            key,
            ..Default::default()
        };
        self.answer(DOMAIN_JOIN, argument).map(drop)
    }

    pub fn leave(&self) -> Answer<()> {
        self.answer(DOMAIN_LEAVE, DomainLeave::default()).map(drop)
    }

    /// A counter of the domain, from `/proc/self/fdinfo`.
    pub fn counter(&self, name: &str) -> Result<u64, String> {
        let path = format!("/proc/self/fdinfo/{}", self.0.as_raw_fd());
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        text.lines()
            .filter_map(|line| line.strip_prefix("libcopy-")?.split_once(':'))
            .find(|(key, _)| *key == name)
            .and_then(|(_, value)| value.trim().parse().ok())
            .ok_or_else(|| format!("no libcopy-{name} in {text:?}"))
    }

    /// Publishes pieces.
    pub fn publish(&self, pieces: &[Piece], rights: u32) -> Answer<RegionCreate> {
        self.publish_with(
            pieces,
            RegionCreate {
                rights,
                ..Default::default()
            },
        )
    }

    /// Publishes all of a mapping; returns the id.
    pub fn share(&self, map: &Map, rights: u32) -> Answer<u32> {
        self.publish(&[map.piece()], rights).map(|region| region.id)
    }

    /// Publishes pieces with everything else as `rest` says.
    pub fn publish_with(&self, pieces: &[Piece], rest: RegionCreate) -> Answer<RegionCreate> {
        let argument = RegionCreate {
            iov: pieces.as_ptr() as u64,
            iov_count: pieces.len() as u32,
            ..rest
        };
        self.answer(REGION_CREATE, argument)
    }

    pub fn destroy(&self, id: u32) -> Answer<()> {
        self.answer(REGION_DESTROY, RegionDestroy { id, flags: 0 })
            .map(drop)
    }

    /// Destroys and unpins.
    pub fn unpin(&self, id: u32) -> Answer<()> {
        self.answer(
            REGION_DESTROY,
            RegionDestroy {
                id,
                flags: DESTROY_UNPIN,
            },
        )
        .map(drop)
    }

    pub fn region_info(&self, id: u32) -> Answer<RegionInfo> {
        self.answer(
            REGION_INFO,
            RegionInfo {
                id,
                ..Default::default()
            },
        )
    }

    /// Copies `length` bytes between what `of` tells of a region and pieces of our own.
    fn region_copy(
        &self,
        (region, flags): (u32, u32),
        (offset, length): (u64, u64),
        of: RegionCopy,
        pieces: &[Piece],
    ) -> Answer<u64> {
        let argument = RegionCopy {
            region,
            flags,
            offset,
            length,
            iov: pieces.as_ptr() as u64,
            iov_count: pieces.len() as u32,
            ..of
        };
        self.answer(REGION_COPY, argument).map(|answer| answer.done)
    }

    /// Copies between a region and pieces of our own.
    pub fn copy(
        &self,
        region: u32,
        flags: u32,
        offset: u64,
        length: u64,
        pieces: &[Piece],
    ) -> Answer<u64> {
        self.region_copy(
            (region, flags),
            (offset, length),
            Default::default(),
            pieces,
        )
    }

    /// Copies all of it, going on after interruptions.
    pub fn copy_all(
        &self,
        region: u32,
        flags: u32,
        offset: u64,
        map: &Map,
        at: usize,
        len: usize,
    ) -> Answer<()> {
        let mut done = 0;
        while done < len {
            let piece = [map.part(at + done, len - done)];
            match self.copy(
                region,
                flags,
                offset + done as u64,
                (len - done) as u64,
                &piece,
            ) {
                Ok(0) => return Err(Errno::EIO),
                Ok(n) => done += n as usize,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// The first `len` bytes of a region.
    pub fn fetch(&self, region: u32, len: usize) -> Answer<Vec<u8>> {
        let map = Map::anon(len.max(1).next_multiple_of(sys::PAGE))?;
        self.copy_all(region, COPY_FROM_REGION, 0, &map, 0, len)?;
        Ok(map.read(0, len))
    }

    /// Writes bytes into a region.
    pub fn store(&self, region: u32, offset: u64, bytes: &[u8]) -> Answer<()> {
        let map = Map::anon(bytes.len().max(1).next_multiple_of(sys::PAGE))?;
        map.write(0, bytes);
        self.copy_all(region, COPY_TO_REGION, offset, &map, 0, bytes.len())
    }

    /// Copies between ranges of a region, which count from `offset`, and pieces of our own.
    pub fn copy_ranges(
        &self,
        region: u32,
        flags: u32,
        offset: u64,
        length: u64,
        ranges: &[Piece],
        pieces: &[Piece],
    ) -> Answer<u64> {
        let ranges = RegionCopy {
            region_iov: ranges.as_ptr() as u64,
            region_iov_count: ranges.len() as u32,
            ..Default::default()
        };
        self.region_copy((region, flags), (offset, length), ranges, pieces)
    }

    /// Copies between blocks of `block_len` bytes of a region, whose offsets count from `offset`,
    /// and pieces of our own.
    pub fn copy_blocks(
        &self,
        region: u32,
        flags: u32,
        at: (u64, u64),
        block_len: u64,
        places: Places<'_>,
        pieces: &[Piece],
    ) -> Answer<u64> {
        let (list, count, stride) = match places {
            Places::List(list) => (list.as_ptr() as u64, list.len() as u32, 0),
            Places::Stride(count, stride) => (0, count as u32, stride),
        };
        let blocks = RegionCopy {
            region_iov: list,
            region_iov_count: count,
            block_len,
            stride,
            ..Default::default()
        };
        self.region_copy((region, flags), at, blocks, pieces)
    }

    pub fn attach(&self, id: u32, access: u32) -> Answer<RegionAttach> {
        self.answer(
            REGION_ATTACH,
            RegionAttach {
                id,
                access,
                ..Default::default()
            },
        )
    }

    /// `mmap` of the device, for reading, shared.
    pub fn view(&self, len: usize, offset: u64) -> Answer<Map> {
        let shared = libc::MAP_SHARED;
        Map::new(len, libc::PROT_READ, shared, Some(self.as_fd()), offset)
    }

    /// Attaches and maps; returns where the first byte of the region is in the mapping.
    pub fn map(&self, id: u32, access: u32) -> Answer<(Map, usize)> {
        let where_ = self.attach(id, access)?;
        let prot = if access & abi::RIGHT_WRITE != 0 {
            sys::RW
        } else {
            libc::PROT_READ
        };
        let map = Map::new(
            where_.map_length as usize,
            prot,
            libc::MAP_SHARED,
            Some(self.as_fd()),
            where_.map_offset,
        )?;
        Ok((map, where_.data_offset as usize))
    }
}
