// SPDX-License-Identifier: MIT OR Apache-2.0

//! What handlers ask the card to do, recorded in order.

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A write to host memory without an event.
    Write {
        /// In bytes from the buffer's origin.
        host: i32,
        /// In bytes from the packet's first one.
        packet: u32,
        /// Bytes.
        bytes: u32,
    },
    /// A write of nothing with an event.
    Event,
    /// A stream put.
    Put {
        /// In bytes from the buffer's origin.
        host: i32,
        /// In bytes from the message's first one.
        position: u32,
        /// Bytes.
        bytes: u32,
        /// The message ends with it.
        is_end: bool,
    },
}
