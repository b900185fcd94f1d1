// SPDX-License-Identifier: MIT OR Apache-2.0

//! How the data of messages move.

/// How data that are not dense move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// As is fastest.
    #[default]
    Best,
    /// Through a lane, even where the kernel module is.
    Pipelined,
    /// Read by the receiver, whatever the sender does.
    Get,
    /// Out of memory that is mapped, from the first message on.
    Mapped,
}
