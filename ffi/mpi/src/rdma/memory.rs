// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which generation the memory of a message is in. Where the kernel module watches it, memory keys
//! and registered memory are kept for the next message from or to the same elements; without the
//! module they last for one message.

use libcopy::datatype::Layout;
use libcopy::device::Watcher;
use libcopy::uapi::Piece;
use libcopy_rdma::iovs;
use libcopy_rdma::keys::Memory;
use libcopy_rdma::transfer::Link;

use crate::rdma::link::Mail;

/// What watches the program's memory.
#[derive(Debug, Default)]
pub enum Watch {
    /// Nobody has looked.
    #[default]
    Unknown,
    /// The module is not loaded, or does not let us.
    Nobody,
    Module(Box<Watcher>),
}

impl Watch {
    fn watcher(&mut self) -> Option<&mut Watcher> {
        if let Watch::Unknown = self {
            *self =
                Watcher::new().map_or(Watch::Nobody, |watcher| Watch::Module(Box::new(watcher)));
        }
        match self {
            Watch::Module(watcher) => Some(watcher),
            _ => None,
        }
    }

    /// The memory of elements that the program has lent for a message over a link.
    ///
    /// Until the message has ended the program changes no mapping of it, so that the generation is
    /// still the same when keys are looked up. If it does so all the same, they point to what was
    /// there, and the next message has another generation.
    pub fn memory(&mut self, link: &Link<Mail>, layout: &Layout, base: u64) -> Memory {
        if !link.may_go_unpacked(layout) {
            return Memory::Unwatched;
        }
        let generation = self.watcher().and_then(|watcher| {
            let iovs = iovs(layout, base).ok()?;
            watcher.generation(iovs.into_iter().map(|iov| Piece {
                base: iov.addr,
                len: iov.len,
            }))
        });
        generation.map_or(Memory::Unwatched, Memory::Generation)
    }

    /// Something could not be registered, perhaps because too much is locked.
    pub fn give_up(&mut self) {
        if let Watch::Module(watcher) = self {
            watcher.give_up();
        }
    }

    /// Generations that have ended, each once.
    pub fn take_over(&mut self) -> Vec<u64> {
        match self {
            Watch::Module(watcher) => watcher.take_over(),
            _ => Vec::new(),
        }
    }
}
