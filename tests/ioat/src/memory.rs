// SPDX-License-Identifier: MIT OR Apache-2.0

//! The guest's memory as one function sees it: what the virtual machine monitor has mapped for it.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};

use vm_memory::mmap::MmapRegion;
use vm_memory::volatile_memory::VolatileSlice;
use vm_memory::{Bytes, FileOffset, VolatileMemory};

type Mapping = MmapRegion<()>;

/// What identifies a part of a file: device, inode, offset, length, and whether it can be written.
type Key = (u64, u64, u64, u64, bool);

/// Mappings that several functions share: each of them is told about the same memory, and each
/// mapping of its own would cost page tables and page faults again.
#[derive(Default)]
pub struct Mappings(Mutex<HashMap<Key, Weak<Mapping>>>);

impl Mappings {
    fn get(&self, file: File, offset: u64, size: u64, writable: bool) -> io::Result<Arc<Mapping>> {
        let metadata = file.metadata()?;
        let key = (metadata.dev(), metadata.ino(), offset, size, writable);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mapping) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(mapping);
        }
        let length = usize::try_from(size).map_err(io::Error::other)?;
        let protection = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        let mapping = Mapping::build(
            Some(FileOffset::new(file, offset)),
            length,
            protection,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
        )
        .map_err(io::Error::other)?;
        let mapping = Arc::new(mapping);
        known.retain(|_, mapping| mapping.strong_count() > 0);
        known.insert(key, Arc::downgrade(&mapping));
        Ok(mapping)
    }
}

struct Area {
    size: u64,
    mapping: Arc<Mapping>,
    writable: bool,
}

type Areas = BTreeMap<u64, Area>;

/// Which side of a copy is not memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Missing {
    /// What was to be read.
    Source,
    /// What was to be written.
    Destination,
}

/// The address space of a function: bus address to memory.
#[derive(Default)]
pub struct Memory(RwLock<Areas>);

impl Memory {
    /// Adds `size` bytes of `file` from `offset` at `address`. What was there before is replaced.
    pub fn map(
        &self,
        mappings: &Mappings,
        file: File,
        offset: u64,
        address: u64,
        size: u64,
        writable: bool,
    ) -> io::Result<()> {
        if size == 0 || address.checked_add(size).is_none() {
            return Err(io::Error::other(format!(
                "{size} bytes at {address:#x} are no part of an address space"
            )));
        }
        let mapping = mappings.get(file, offset, size, writable)?;
        self.unmap(address, size);
        let area = Area {
            size,
            mapping,
            writable,
        };
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(address, area);
        Ok(())
    }

    /// Removes every area that begins in the range; waits for a copy that is under way.
    pub fn unmap(&self, address: u64, size: u64) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|start, _| *start < address || *start - address >= size);
    }

    /// Removes everything.
    pub fn clear(&self) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    fn areas(&self) -> RwLockReadGuard<'_, Areas> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies `size` bytes as if through a buffer, in pieces where areas end.
    pub fn copy(&self, source: u64, destination: u64, size: u64) -> Result<(), Missing> {
        let areas = self.areas();
        let mut done = 0;
        while done < size {
            let from =
                part(&areas, offset(source, done), size - done, false).ok_or(Missing::Source)?;
            let length = from.len() as u64;
            let to = part(&areas, offset(destination, done), length, true)
                .ok_or(Missing::Destination)?;
            from.copy_to_volatile_slice(to);
            done += to.len() as u64;
        }
        Ok(())
    }

    /// Reads all of `buffer`, or nothing if part of it is not memory.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Missing> {
        let areas = self.areas();
        let mut done = 0;
        while done < buffer.len() {
            let rest = (buffer.len() - done) as u64;
            let from =
                part(&areas, offset(address, done as u64), rest, false).ok_or(Missing::Source)?;
            from.copy_to(&mut buffer[done..done + from.len()]);
            done += from.len();
        }
        Ok(())
    }

    /// Writes eight bytes at once, after everything that was written before. An address that is
    /// not aligned to eight is an error too.
    pub fn store(&self, address: u64, value: u64) -> Result<(), Missing> {
        let areas = self.areas();
        let to = part(&areas, address, 8, true).ok_or(Missing::Destination)?;
        to.store(value.to_le(), 0, Ordering::Release)
            .map_err(|_| Missing::Destination)
    }

    /// Flips every bit of the byte at `address`.
    pub fn corrupt(&self, address: u64) -> Result<(), Missing> {
        let areas = self.areas();
        let at = part(&areas, address, 1, true).ok_or(Missing::Destination)?;
        let mut byte = [0u8];
        at.copy_to(&mut byte);
        at.copy_from(&[!byte[0]]);
        Ok(())
    }
}

/// Beyond the end of the address space there is no memory; `u64::MAX` is not either.
fn offset(address: u64, by: u64) -> u64 {
    address.saturating_add(by)
}

/// The longest piece at `address` that lies in one area, `size` bytes at most.
fn part(areas: &Areas, address: u64, size: u64, write: bool) -> Option<VolatileSlice<'_, ()>> {
    let (start, area) = areas.range(..=address).next_back()?;
    let within = address - start;
    if within >= area.size || (write && !area.writable) {
        return None;
    }
    let length = size.min(area.size - within);
    area.mapping
        .get_slice(within as usize, length as usize)
        .ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    /// A file of memory, as a virtual machine monitor makes one.
    pub(crate) fn memfd(size: u64) -> File {
        // SAFETY: the name is a valid string and the flags are the call's own.
        let fd = unsafe { libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the descriptor is new and nobody else owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(size).expect("a memfd takes any length");
        file
    }

    #[test]
    fn copies_cross_from_one_area_into_the_next() {
        use std::os::unix::fs::FileExt;
        let (file, mappings, memory) = (memfd(0x4000), Mappings::default(), Memory::default());
        // Neighbours on the bus that are not neighbours in the file.
        for (offset, address) in [(0x2000, 0x10000), (0x0000, 0x11000)] {
            let file = file.try_clone().expect("a descriptor is free");
            memory
                .map(&mappings, file, offset, address, 0x1000, true)
                .expect("mapped");
        }
        let data: Vec<u8> = (0..200).collect();
        file.write_all_at(&data[..100], 0x2000 + 0xf9c)
            .expect("in range");
        file.write_all_at(&data[100..], 0).expect("in range");
        assert_eq!(memory.copy(0x10f9c, 0x11800, 200), Ok(()));
        let mut seen = vec![0; 200];
        file.read_exact_at(&mut seen, 0x800).expect("in range");
        assert_eq!(seen, data);
        assert_eq!(memory.copy(0x11f00, 0x10000, 0x101), Err(Missing::Source));
        assert_eq!(
            memory.copy(0x10000, 0x11f00, 0x101),
            Err(Missing::Destination)
        );
        assert_eq!(
            memory.copy(u64::MAX - 3, 0x11f00, 0x101),
            Err(Missing::Source)
        );
        memory.unmap(0x11000, 0x1000);
        assert_eq!(memory.read(0x10ffc, &mut [0; 8]), Err(Missing::Source));
    }

    #[test]
    fn what_may_only_be_read_is_not_written() {
        let (mappings, memory) = (Mappings::default(), Memory::default());
        memory
            .map(&mappings, memfd(0x1000), 0, 0, 0x1000, false)
            .expect("mapped");
        assert_eq!(memory.store(0, 1), Err(Missing::Destination));
        assert_eq!(memory.corrupt(0), Err(Missing::Destination));
        assert_eq!(memory.copy(0, 64, 64), Err(Missing::Destination));
        assert_eq!(memory.read(0, &mut [0; 64]), Ok(()));
    }

    #[test]
    fn functions_share_a_mapping() {
        let (mappings, file) = (Mappings::default(), memfd(0x2000));
        let memories = [Memory::default(), Memory::default()];
        for memory in &memories {
            let file = file.try_clone().expect("a descriptor is free");
            memory
                .map(&mappings, file, 0, 0x8000, 0x2000, true)
                .expect("mapped");
        }
        let of = |memory: &Memory| Arc::as_ptr(&memory.areas()[&0x8000].mapping);
        assert_eq!(of(&memories[0]), of(&memories[1]));
        memories[0].store(0x8008, 42).expect("mapped");
        let mut seen = [0; 8];
        memories[1].read(0x8008, &mut seen).expect("mapped");
        assert_eq!(u64::from_le_bytes(seen), 42);
        assert_eq!(
            memories[1].store(0x8009, 1),
            Err(Missing::Destination),
            "not aligned"
        );
    }
}
