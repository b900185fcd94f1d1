// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a handler gets, and what it asks the card to do.

/// One packet of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Bytes of the message before it. Packets may come in any order.
    pub position: u32,
    /// Bytes of its payload.
    pub len: u32,
}

/// The commands of a card, as a handler issues them. Calls return at once; the card carries them
/// out in order.
pub trait Nic {
    /// Writes `len` bytes of the packet's payload, from byte `packet` on, to host memory at `host`
    /// bytes from the origin of the receive buffer, without an event: the paper's
    /// `PtlHandlerDMAToHostNB` with `NO_EVENT` (section 3.2.2).
    fn dma_to_host(&mut self, host: i32, packet: u32, len: u32);

    /// Writes 0 bytes with an event: the host sees it after all writes before.
    fn dma_event(&mut self);

    /// Sends `len` bytes of host memory, at `host` bytes from the origin of the send buffer, as the
    /// bytes of the message from `position` on: the paper's `PtlSPutStream` (section 3.1.1).
    /// `is_end` goes with the last bytes of the message.
    fn stream_put(&mut self, host: i32, position: u32, len: u32, is_end: bool);
}
