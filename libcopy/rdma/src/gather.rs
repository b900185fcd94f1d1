// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the three methods hold of the device during a transfer, and where they cut a message.

use std::sync::Arc;

use libcopy_datatype::Layout;

use crate::choice::Abilities;
use crate::cut::{CutRule, Cuts, Limits, Windows, chunk_size, maximal_cuts};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::iov::{Elements, Iov, Shape};
use crate::keys::{Mapped, Memory};
use crate::message::MAX_LIST;
use libcopy_datatype::room;

/// Elements of a layout in memory.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    /// The elements.
    pub layout: &'a Layout,
    /// The address that the layout's offsets count from.
    pub base: u64,
    /// Whether mapped keys outlast the message.
    pub memory: Memory,
}

/// What a receiver knows of a message before it offers anything.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The sender's pieces.
    pub shape: Shape,
    /// Their lengths, under [`CutRule::Maximal`].
    pub lengths: Option<Vec<u64>>,
    /// What both ends can do.
    pub common: Abilities,
}

impl Arrival {
    /// Whether the lengths are those of the shape.
    pub fn is_consistent(&self) -> bool {
        let Some(lengths) = &self.lengths else {
            return true;
        };
        let total = lengths.iter().try_fold(0_u64, |a, b| a.checked_add(*b));
        total == Some(self.shape.bytes)
            && lengths.len() as u64 == self.shape.blocks
            && !lengths.contains(&0)
    }

    /// Where the message is cut for a key or a list of `limits`, those of both ends, by the rule
    /// that the sender has asked for.
    ///
    /// # Errors
    ///
    /// Pieces outside the address space, or more of them than memory has room for.
    pub fn plan(&self, to: &Elements, limits: &Limits) -> Result<Cuts> {
        match &self.lengths {
            None => Ok(Cuts::Every(
                chunk_size(&self.shape, &to.shape(), limits).max(1),
            )),
            Some(lengths) => {
                let place = |len: &u64| Iov { addr: 0, len: *len };
                let theirs = room::gather(lengths.iter().map(place))?;
                maximal_cuts(&theirs, &to.iovs()?, limits)
            }
        }
    }
}

/// What an RTS says of the lengths, by the rule: nothing, as under [`CutRule::Agreed`], where there
/// are more than a message or memory has room for.
pub fn lengths(elements: &Elements, rule: CutRule) -> Option<Vec<u64>> {
    match rule {
        CutRule::Agreed => None,
        CutRule::Maximal if elements.shape().blocks <= MAX_LIST => elements.lengths().ok(),
        CutRule::Maximal => None,
    }
}

/// Bytes that are packed at a time.
pub const STAGE: usize = 1 << 20;

/// The most windows of a message; one with more is packed.
pub const MAX_WINDOWS: u64 = 1 << 20;

/// A registered buffer for packed bytes.
#[derive(Debug)]
pub struct Stage<E: Endpoint> {
    /// Before its memory.
    pub(crate) memory: E::Memory,
    /// The buffer; its length is a power of two.
    pub(crate) bytes: Vec<u8>,
}

impl<E: Endpoint> Stage<E> {
    /// A buffer for at least `len` bytes.
    ///
    /// # Errors
    ///
    /// Memory that cannot be registered, or that there is not.
    pub fn new(endpoint: &E, len: usize) -> Result<Stage<E>> {
        let len = len.next_power_of_two();
        let mut bytes = room::list(len as u64)?;
        bytes.resize(len, 0);
        // SAFETY: nobody else knows the buffer, which goes after its registration.
        let memory = unsafe { endpoint.register(&[range(&bytes)], true) }?;
        Ok(Stage { memory, bytes })
    }

    /// Where it is.
    pub fn addr(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}

fn range(bytes: &[u8]) -> Iov {
    Iov {
        addr: bytes.as_ptr() as u64,
        len: bytes.len() as u64,
    }
}

/// What a transfer holds of the device at one end.
#[derive(Debug)]
pub enum Held<E: Endpoint> {
    /// Before a CTS, and for messages without bytes.
    Nothing,
    /// [`Method::Pack`](crate::Method::Pack).
    Stage(Stage<E>),
    /// [`Method::Sge`](crate::Method::Sge).
    Lists {
        /// The registered elements.
        memory: Arc<E::Memory>,
        /// A window per request.
        windows: Arc<Windows>,
    },
    /// [`Method::Umr`](crate::Method::Umr).
    Keys(Mapped<E>),
}
