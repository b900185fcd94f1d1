// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sending a datatype (paper, section 3.1).

use libcopy_walk::{Image, Tree};

use crate::{Nic, Packet, Segment};

/// The host as an initiator of puts.
pub trait Initiator {
    /// Copies `len` bytes of the send buffer, at `host` bytes from its origin, to byte `packed` of
    /// a contiguous buffer.
    fn copy(&mut self, host: i32, packed: u32, len: u32);
    /// Sends `len` bytes of the contiguous buffer as one message.
    fn put(&mut self, len: u32);
    /// Sends `len` bytes of the send buffer as the bytes of the message from `position` on. The
    /// first call is the paper's `PtlSPutStart`, the others are `PtlSPutStream`; `is_end` is its
    /// end-of-message flag.
    fn stream_put(&mut self, host: i32, position: u32, len: u32, is_end: bool);
}

/// Pack and put: the host packs everything, then sends it.
pub fn pack_and_put(image: Image, host: &mut impl Initiator) {
    let size = image.size();
    Segment::start(image).pieces(image, size, |memory, stream, len| {
        host.copy(memory, stream as u32, len as u32);
    });
    host.put(size as u32);
}

/// Streaming puts: the host finds the pieces, and sends each as it is found. At the target they are
/// one message.
pub fn streaming_puts(image: Image, host: &mut impl Initiator) {
    let size = image.size();
    if size == 0 {
        host.stream_put(0, 0, 0, true);
        return;
    }
    Segment::start(image).pieces(image, size, |memory, stream, len| {
        let is_end = stream.wrapping_add(len) == size;
        host.stream_put(memory, stream as u32, len as u32, is_end);
    });
}

/// Process-put: the card's handler of an outgoing packet without data. It finds the pieces that the
/// packet is to carry, and streams them. Handlers of different packets may run at the same time.
pub fn process_put(image: Image, packet: Packet, nic: &mut impl Nic) {
    let size = image.size();
    if size == 0 {
        nic.stream_put(0, 0, 0, true);
        return;
    }
    let start = packet.position as i32;
    let mut segment = Segment::at(image, start);
    segment.pieces(image, packet.len as i32, |memory, stream, len| {
        let position = start.wrapping_add(stream);
        let is_end = position.wrapping_add(len) == size;
        nic.stream_put(memory, position as u32, len as u32, is_end);
    });
}
