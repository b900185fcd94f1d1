// SPDX-License-Identifier: MIT OR Apache-2.0

//! Offsets and bits of the memory-mapped registers (BAR 0), each with the source of what we know.
//!
//! Sources: **L** is the Linux driver, `drivers/dma/ioat/registers.h` for names, offsets and bits
//! and `dma.c`/`init.c` for how they are used; **D** is the public data sheet *Intel Xeon Processor
//! E7 v2 2800/4800/8800 Product Family, Volume Two* (reference 329595), section 14.5, "Device 4,
//! Functions 0-7", the same Crystal Beach DMA v3.2 block as on the Haswell Xeons of the paper.

/// Size of BAR 0: 16 KiB (D 14.5: MSI-X table at 0x2000, pending bits at 0x3000).
pub const BAR_SIZE: u64 = 0x4000;

/// Where the MSI-X table lies in BAR 0 (D 14.5).
pub const MSIX_TABLE: u32 = 0x2000;

/// Where the pending bits of MSI-X lie in BAR 0 (D 14.5, `chmsipend` at 0x3000).
pub const MSIX_PBA: u32 = 0x3000;

/// Where the registers of the first channel begin, and their distance (L `IOAT_CHANNEL_MMIO_SIZE`).
pub const CHANNEL: u64 = 0x80;

/// Version of the interface: 3.2 (L `IOAT_VER_3_2`).
pub const VERSION: u8 = 0x32;

/// log2 of the most bytes of one descriptor: 1 MiB (D: "maximum transfer length of 1 MB per DMA
/// descriptor block"; L `IOAT_XFERCAP_OFFSET`, low five bits).
pub const XFERCAP: u8 = 20;

/// Registers of the device, from the start of BAR 0.
pub mod device {
    /// Number of channels of this function, 8 bits (L `IOAT_CHANCNT_OFFSET`; at most 4 are used).
    pub const CHANCNT: u64 = 0x00;
    /// log2 of the largest descriptor, 8 bits (L `IOAT_XFERCAP_OFFSET`).
    pub const XFERCAP: u64 = 0x01;
    /// Interrupt control, 8 bits (L `IOAT_INTRCTRL_OFFSET`).
    pub const INTRCTRL: u64 = 0x03;
    /// One bit per channel that wants attention, 32 bits, cleared by reading (L
    /// `IOAT_ATTNSTATUS_OFFSET`, `ioat_dma_do_interrupt`, which never writes it).
    pub const ATTNSTATUS: u64 = 0x04;
    /// Version, 8 bits (L `IOAT_VER_OFFSET`).
    pub const VER: u64 = 0x08;
    /// Interrupt delay in microseconds, 16 bits (L `IOAT_INTRDELAY_OFFSET`). Held, without effect:
    /// bit 15, which would announce coalescing, reads as zero.
    pub const INTRDELAY: u64 = 0x0c;
    /// Capabilities beyond copying, 32 bits (L `IOAT_DMA_CAP_OFFSET`): none, so the driver marks
    /// its channels private (`DMA_PRIVATE`), as on the Xeons of the paper.
    pub const DMACAPABILITY: u64 = 0x10;
}

/// Bits of [`device::INTRCTRL`].
pub mod intrctrl {
    /// Interrupts are sent at all. Reading clears it and the driver writes it back, which
    /// acknowledges an interrupt of MSI (L `ioat_dma_do_interrupt`).
    pub const MASTER_INT_EN: u8 = 0x01;
    /// Some channel wants attention.
    pub const INT_STATUS: u8 = 0x02;
    /// [`INT_STATUS`] and [`MASTER_INT_EN`].
    pub const INT: u8 = 0x04;
    /// One MSI-X vector per channel.
    pub const MSIX_VECTOR_CONTROL: u8 = 0x08;
}

/// Registers of a channel, from the start of its block.
pub mod channel {
    /// Control, 16 bits (D 14.5.12; L `IOAT_CHANCTRL_OFFSET`).
    pub const CHANCTRL: u64 = 0x00;
    /// Compatibility, 16 bits: versions 2 and 3 (L `IOAT_DMA_COMP_OFFSET`; D: "compliant with
    /// versions 3 and 2, but not compatible with version 1").
    pub const DMA_COMP: u64 = 0x02;
    /// Command, 8 bits (L `IOAT2_CHANCMD_OFFSET`). Reset reads as one while it lasts.
    pub const CHANCMD: u64 = 0x04;
    /// Number of descriptors given to the channel since CHAINADDR, 16 bits, cumulative and
    /// wrapping (L `IOAT_CHAN_DMACOUNT_OFFSET`, `__ioat_issue_pending`).
    pub const DMACOUNT: u64 = 0x06;
    /// Address of the last descriptor completed, and the state in the low three bits, 64 bits (L
    /// `IOAT_CHANSTS_OFFSET`).
    pub const CHANSTS: u64 = 0x08;
    /// Address of the first descriptor, 64 bits in two halves (L `IOAT2_CHAINADDR_OFFSET`). Writing
    /// begins a new chain: nothing of it is executed yet (L `__ioat_restart_chan` sets its count
    /// to zero with it, `__ioat_cleanup` says that the completed address is then zero).
    pub const CHAINADDR: u64 = 0x10;
    /// Where completions are written, 64 bits in two halves (L `IOAT_CHANCMP_OFFSET`).
    pub const CHANCMP: u64 = 0x18;
    /// Address of the descriptor in work, 64 bits (L `IOAT_CDAR_OFFSET`).
    pub const CDAR: u64 = 0x20;
    /// Errors, 32 bits, a one written clears (L `IOAT_CHANERR_OFFSET`, `ioat_eh`).
    pub const CHANERR: u64 = 0x28;
    /// Mask of errors, 32 bits (L `IOAT_CHANERR_MASK_OFFSET`). Held, without effect.
    pub const CHANERR_MASK: u64 = 0x2c;
    /// Direct cache access, 32 bits (L `IOAT_DCACTRL_OFFSET`). Held, without effect.
    pub const DCACTRL: u64 = 0x30;
}

/// Bits of [`channel::CHANCTRL`].
pub mod chanctrl {
    /// Reads as one when an interrupt has been sent and not been re-armed; a one written re-arms
    /// (L `IOAT_CHANCTRL_INT_REARM`; D calls it the channel's interrupt disable bit).
    pub const INT_REARM: u16 = 0x0001;
    /// An error writes a completion (L `IOAT_CHANCTRL_ERR_COMPLETION_EN`).
    pub const ERR_COMPLETION_EN: u16 = 0x0004;
    /// An error sends an interrupt (L `IOAT_CHANCTRL_ERR_INT_EN`; D 14.5.12 `err_int_en`).
    pub const ERR_INT_EN: u16 = 0x0010;
    /// The first read returns zero and sets it: a claim on the channel (D 14.5.12 `in_use`).
    pub const IN_USE: u16 = 0x0100;
    /// Bits that are held as written (D 14.5.12).
    pub const HELD: u16 = 0xf23c;
}

/// Values of [`channel::CHANCMD`] (L `IOAT_CHANCMD_*`).
pub mod chancmd {
    /// Throws away whatever the channel does; it is halted afterwards (L `ioat_reset_sync`).
    pub const RESET: u8 = 0x20;
    /// Goes on after a suspension.
    pub const RESUME: u8 = 0x10;
    /// Gives up the descriptor in work; the channel is halted afterwards.
    pub const ABORT: u8 = 0x08;
    /// Stops where it is (L `ioat_quiesce`).
    pub const SUSPEND: u8 = 0x04;
}

/// States in the low bits of [`channel::CHANSTS`] and of a completion (L `IOAT_CHANSTS_*`).
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Descriptors are waiting or in work.
    Active = 0,
    /// All descriptors given are done.
    Done = 1,
    /// Stopped by a command; can be resumed.
    Suspended = 2,
    /// Stopped by an error, a reset or an abort; a new chain starts it.
    Halted = 3,
}

/// Bits of [`channel::CHANERR`] that the model sets (L `IOAT_CHANERR_*`).
pub mod chanerr {
    /// The source is not an address of memory.
    pub const SRC_ADDR: u32 = 0x0001;
    /// The destination is not an address of memory that may be written.
    pub const DEST_ADDR: u32 = 0x0002;
    /// The descriptor is not in memory.
    pub const NEXT_ADDR: u32 = 0x0004;
    /// The descriptor is not aligned to 64 bytes.
    pub const NEXT_DESC_ALIGN: u32 = 0x0008;
    /// CHAINADDR is not aligned to 64 bytes.
    pub const CHAIN_ADDR_VALUE: u32 = 0x0010;
    /// CHANCMD had several bits at once.
    pub const CHANCMD: u32 = 0x0020;
    /// The source could not be read; the driver recovers from it (L `IOAT_CHANERR_RECOVER_MASK`).
    pub const READ_DATA: u32 = 0x0100;
    /// The destination could not be written; the driver recovers from it.
    pub const WRITE_DATA: u32 = 0x0200;
    /// The operation is unknown.
    pub const CONTROL: u32 = 0x0400;
    /// The size is zero or larger than XFERCAP allows.
    pub const LENGTH: u32 = 0x0800;
    /// The completion address is not memory that may be written.
    pub const COMPLETION_ADDR: u32 = 0x1000;
}
