// SPDX-License-Identifier: MIT OR Apache-2.0

//! One end of a reliable connection, as far as transfers use it: verbs, or the card in software.

use crate::card::Card;
use crate::choice::Abilities;
use crate::error::Result;
use crate::iov::Iov;

/// A receive that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The number that was given to the request.
    pub id: u64,
    /// Bytes that came.
    pub bytes: u32,
}

/// One end of a reliable connection. Nothing here waits for the peer's program; mapping
/// ([`Card::map`], [`Card::unmap`]) waits for the device.
///
/// Requests are executed in the order in which they are posted. A posted request has a number,
/// which comes back when it has completed.
pub trait Endpoint: Card {
    /// What can be done here.
    fn abilities(&self) -> Abilities;

    /// Bytes that one request moves.
    fn max_message(&self) -> u64;

    /// Requests that each of the two queues holds.
    fn queue(&self) -> usize;

    /// The number by which a peer writes to registered memory, of one region.
    ///
    /// # Errors
    ///
    /// As the backend says.
    fn memory_rkey(&self, memory: &Self::Memory) -> Result<u32>;

    /// Posts a WRITE of a piece of registered memory to `remote`.
    ///
    /// # Errors
    ///
    /// A full queue, a connection that has failed. Nothing was posted then.
    ///
    /// # Safety
    ///
    /// The piece stays readable until the request has completed or [`Endpoint::end`] was called.
    unsafe fn write(
        &self,
        memory: &Self::Memory,
        piece: Iov,
        remote: u64,
        rkey: u32,
        id: u64,
    ) -> Result<()>;

    /// Posts a SEND of pieces of registered memory; without memory, one without bytes.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::write`].
    ///
    /// # Safety
    ///
    /// As for [`Endpoint::write`].
    unsafe fn send(&self, memory: Option<&Self::Memory>, window: &[Iov], id: u64) -> Result<()>;

    /// Posts a receive into pieces of registered memory.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::write`].
    ///
    /// # Safety
    ///
    /// The pieces stay writable, and nobody uses them, until the receive has completed or
    /// [`Endpoint::end`] was called.
    unsafe fn receive(&self, memory: &Self::Memory, window: &[Iov], id: u64) -> Result<()>;

    /// Posts a WRITE of all bytes of a mapped key to those of a peer's.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::write`].
    fn write_mapped(&self, key: &Self::Key, rkey: u32, id: u64) -> Result<()>;

    /// A WRITE or SEND that has completed.
    ///
    /// # Errors
    ///
    /// One that failed, and with it the connection.
    fn next_sent(&self) -> Result<Option<u64>>;

    /// A receive that has completed.
    ///
    /// # Errors
    ///
    /// As for [`Endpoint::next_sent`].
    fn next_received(&self) -> Result<Option<Received>>;

    /// Ends the connection: from now on the peer can write nothing here, and what is posted fails.
    fn end(&self);
}
