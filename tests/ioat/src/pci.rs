// SPDX-License-Identifier: MIT OR Apache-2.0

//! The configuration space of a function: identity, BAR 0, and the capabilities MSI, MSI-X and a
//! vendor-specific one that is the [mailbox](crate::mailbox).
//!
//! Sources: the PCI Local Bus Specification 3.0, chapter 6, for the header and the capabilities;
//! Linux `include/uapi/linux/pci_regs.h` for their names; Linux `drivers/dma/ioat/hw.h` for the
//! device ids; the data sheet named in [`crate::registers`] for the class and where MSI-X lies. The
//! virtual machine monitor keeps the MSI-X table and decodes the BAR itself; it wants to see them
//! described here.

use crate::mailbox;
use crate::registers::{BAR_SIZE, MSIX_PBA, MSIX_TABLE};
use crate::topology::ChannelId;

/// Bytes of configuration space, with the extended part: the driver reads CHANERR_INT there.
pub const SIZE: usize = 0x1000;

/// Vendor Intel.
pub const VENDOR: u16 = 0x8086;

/// The first of the device ids of Haswell's channels, the paper's machine: function F has 0x2f20 +
/// F (`PCI_DEVICE_ID_INTEL_IOAT_HSW0` and following).
pub const DEVICE: u16 = 0x2f20;

/// "System peripheral, other".
const CLASS: [u8; 3] = [0x00, 0x80, 0x08];

const COMMAND: usize = 0x04;
/// I/O space, memory space, bus master, parity, SERR, and no INTx.
const COMMAND_WRITABLE: u16 = 0x0547;
const STATUS: usize = 0x06;
const STATUS_HAS_CAPABILITIES: u16 = 0x0010;
const CLASS_CODE: usize = 0x09;
const HEADER_TYPE: usize = 0x0e;
const MULTIFUNCTION: u8 = 0x80;
const BAR0: usize = 0x10;
/// 64 bits wide, not prefetchable.
const BAR_64: u32 = 0x4;
const SUBSYSTEM: usize = 0x2c;
const CAPABILITIES: usize = 0x34;

const MSI: usize = 0x60;
const MSI_ID: u8 = 0x05;
/// One vector, 64-bit address.
const MSI_CONTROL: u16 = 0x0080;
const MSI_CONTROL_WRITABLE: u16 = 0x0071;

const MSIX: usize = 0x80;
const MSIX_ID: u8 = 0x11;
/// Enable and function mask; the table size minus one is zero.
const MSIX_CONTROL_WRITABLE: u16 = 0xc000;

/// Where the mailbox lies.
pub const MAILBOX: usize = 0xc0;
const VENDOR_SPECIFIC_ID: u8 = 0x09;

/// Offset of CHANERR_INT (Linux `IOAT_PCI_CHANERR_INT_OFFSET`): the errors of the channel once
/// more, a one written clears them.
pub const CHANERR_INT: usize = 0x180;

/// A configuration space that remembers what was written to it.
pub struct ConfigSpace {
    bytes: Box<[u8; SIZE]>,
    writable: Box<[u8; SIZE]>,
}

impl ConfigSpace {
    /// The configuration space of a channel's function.
    pub fn new(id: ChannelId) -> Self {
        let mut space = Self {
            bytes: Box::new([0; SIZE]),
            writable: Box::new([0; SIZE]),
        };
        let device = DEVICE + u16::from(id.channel);
        space.set(0x00, &VENDOR.to_le_bytes());
        space.set(0x02, &device.to_le_bytes());
        space.allow(COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        space.set(STATUS, &STATUS_HAS_CAPABILITIES.to_le_bytes());
        space.set(CLASS_CODE, &CLASS);
        space.set(HEADER_TYPE, &[MULTIFUNCTION]);
        space.set(BAR0, &BAR_64.to_le_bytes());
        space.allow(BAR0, &(!(BAR_SIZE - 1)).to_le_bytes());
        space.set(SUBSYSTEM, &VENDOR.to_le_bytes());
        space.set(SUBSYSTEM + 2, &device.to_le_bytes());
        space.allow(0x3c, &[0xff]);

        space.set(CAPABILITIES, &[MSI as u8]);
        space.set(MSI, &[MSI_ID, MSIX as u8]);
        space.set(MSI + 2, &MSI_CONTROL.to_le_bytes());
        space.allow(MSI + 2, &MSI_CONTROL_WRITABLE.to_le_bytes());
        space.allow(
            MSI + 4,
            &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        );

        space.set(MSIX, &[MSIX_ID, MAILBOX as u8]);
        space.allow(MSIX + 2, &MSIX_CONTROL_WRITABLE.to_le_bytes());
        space.set(MSIX + 4, &MSIX_TABLE.to_le_bytes());
        space.set(MSIX + 8, &MSIX_PBA.to_le_bytes());

        space.set(
            MAILBOX,
            &[VENDOR_SPECIFIC_ID, 0, mailbox::SIZE as u8, mailbox::VERSION],
        );
        space
    }

    fn set(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, offset: usize, mask: &[u8]) {
        self.writable[offset..offset + mask.len()].copy_from_slice(mask);
    }

    /// Reads; beyond the end there is nothing.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        let begin = usize::try_from(offset).unwrap_or(SIZE).min(SIZE);
        let held = &self.bytes[begin..];
        let count = held.len().min(data.len());
        data.fill(0);
        data[..count].copy_from_slice(&held[..count]);
    }

    /// Writes what can be written.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let begin = usize::try_from(offset).unwrap_or(SIZE).min(SIZE);
        let held = self.bytes[begin..].iter_mut().zip(&self.writable[begin..]);
        for ((held, mask), byte) in held.zip(data) {
            *held = *held & !mask | byte & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        ConfigSpace::new(ChannelId {
            engine: 1,
            channel: 5,
        })
    }

    fn read<const N: usize>(space: &ConfigSpace, offset: usize) -> [u8; N] {
        let mut data = [0; N];
        space.read(offset as u64, &mut data);
        data
    }

    #[test]
    fn the_identity_is_haswells_and_cannot_be_written() {
        let mut space = space();
        space.write(0, &[0xff; 0x10]);
        assert_eq!(read(&space, 0), [0x86, 0x80, 0x25, 0x2f]);
        assert_eq!(read(&space, 4), COMMAND_WRITABLE.to_le_bytes());
        assert_eq!(read(&space, 9), CLASS);
    }

    #[test]
    fn the_size_of_the_bar_is_found_as_ever() {
        let mut space = space();
        space.write(BAR0 as u64, &[0xff; 8]);
        let bar = u64::from_le_bytes(read(&space, BAR0));
        assert_eq!(!(bar & !0xf) + 1, BAR_SIZE);
        assert_eq!(bar & 0xf, 0x4);
        assert_eq!(read(&space, BAR0 + 8), [0; 16], "no other BAR");
    }

    #[test]
    fn the_capabilities_are_a_list_that_ends() {
        let space = space();
        let (mut at, mut ids) = (read::<1>(&space, CAPABILITIES)[0], Vec::new());
        while at != 0 {
            let [id, next] = read(&space, at.into());
            ids.push(id);
            at = next;
        }
        assert_eq!(ids, [MSI_ID, MSIX_ID, VENDOR_SPECIFIC_ID]);
    }

    #[test]
    fn beyond_the_end_is_nothing() {
        let mut space = space();
        space.write(SIZE as u64 - 1, &[0xff; 8]);
        space.write(u64::MAX, &[0xff; 1]);
        assert_eq!(read(&space, SIZE - 1), [0; 8]);
    }
}
