// SPDX-License-Identifier: MIT OR Apache-2.0

//! Payload handlers for any datatype (paper, section 3.2.4), and the completion handler.

use libcopy_walk::{Image, State, Tree};

use crate::{Nic, Packet, Segment};

/// Issues the DMA writes of a packet, from a state that is at its first byte.
#[inline(always)]
fn write<const DEPTH: usize>(
    image: Image,
    state: &mut State<DEPTH>,
    packet: Packet,
    nic: &mut impl Nic,
) {
    state.pieces(image, packet.len as i32, |memory, stream, len| {
        nic.dma_to_host(memory, stream as u32, len as u32);
    });
}

/// HPU-local: `segment` belongs to the virtual HPU that runs the handler, and is where its last
/// packet ended. It catches up with the packets that other HPUs had; if the packet lies behind, it
/// starts anew.
pub fn local<const DEPTH: usize>(
    image: Image,
    segment: &mut State<DEPTH>,
    packet: Packet,
    nic: &mut impl Nic,
) {
    segment.catch_up(image, packet.position as i32);
    write(image, segment, packet, nic);
}

/// RO-CP, read-only checkpoints: copies the nearest of `checkpoints`, which are `interval` bytes
/// apart, catches up from there and drops the copy.
pub fn read_only<const DEPTH: usize>(
    image: Image,
    checkpoints: &[State<DEPTH>],
    interval: u32,
    packet: Packet,
    nic: &mut impl Nic,
) {
    let mut segment = match checkpoints.get(nearest(checkpoints.len(), interval, packet.position)) {
        Some(checkpoint) => *checkpoint,
        None => State::start(image),
    };
    segment.catch_up(image, packet.position as i32);
    write(image, &mut segment, packet, nic);
}

/// RW-CP, progressing checkpoints: `checkpoint` belongs to the virtual HPU that runs the handler
/// and goes on with each packet. A packet that lies behind it reverts it to `master`. Returns
/// whether it was reverted.
///
/// The packet lies within the checkpoint's interval: virtual HPU `position / interval` owns
/// checkpoint `position / interval`, and the interval is a multiple of the packets' size.
pub fn read_write<const DEPTH: usize>(
    image: Image,
    checkpoint: &mut State<DEPTH>,
    master: &State<DEPTH>,
    packet: Packet,
    nic: &mut impl Nic,
) -> bool {
    let is_reverted = (packet.position as i32) < checkpoint.position();
    if is_reverted {
        *checkpoint = *master;
    }
    checkpoint.catch_up(image, packet.position as i32);
    write(image, checkpoint, packet, nic);
    is_reverted
}

/// Ours: descends from the root to the packet's first byte, in O(depth · log blocks). No memory,
/// any order, any HPU.
pub fn seek(image: Image, packet: Packet, nic: &mut impl Nic) {
    let mut segment = Segment::at(image, packet.position as i32);
    write(image, &mut segment, packet, nic);
}

/// After all packets of a message: tells the host.
pub fn completion(nic: &mut impl Nic) {
    nic.dma_event();
}

/// Which of `count` checkpoints, `interval` bytes apart, is the nearest one not behind `position`.
#[inline(always)]
pub fn nearest(count: usize, interval: u32, position: u32) -> usize {
    let index = position.checked_div(interval).unwrap_or(0) as usize;
    index.min(count.saturating_sub(1))
}

/// The checkpoints of an image, every `interval` bytes from 0 on, as the host makes them at commit:
/// one per interval that has data. An `interval` of 0 is taken as 1.
pub fn checkpoints(image: Image<'_>, interval: u32) -> impl Iterator<Item = Segment> {
    let step = interval.max(1) as usize;
    let size = image.size().max(0) as usize;
    let mut segment = Segment::start(image);
    (0..size).step_by(step).map(move |position| {
        segment.resume(image, position as i32);
        segment
    })
}
