// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is needed of a card with indirect memory keys.

use crate::cut::Limits;
use crate::error::Result;
use crate::iov::Iov;

/// A card, or what stands in for one, that maps memory keys to pieces of memory.
///
/// Keys are zero-based: byte 0 of a key is the first byte of its first piece.
pub trait Card: std::fmt::Debug + Send + Sync + 'static {
    /// An indirect memory key; dropping it destroys it.
    type Key: std::fmt::Debug + Send + Sync + 'static;

    /// Registered memory; dropping it ends that.
    type Memory: std::fmt::Debug + Send + Sync + 'static;

    /// What a key may point to and how much one WRITE moves.
    fn limits(&self) -> Limits;

    /// The number by which a peer writes to the key's memory.
    fn rkey(&self, key: &Self::Key) -> u32;

    /// Registers the memory of pieces, for peers to write into if `is_target`.
    ///
    /// # Errors
    ///
    /// Memory that is not mapped or not writable, or more than may be locked.
    ///
    /// # Safety
    ///
    /// If `is_target`, nobody relies on what is in the pieces, and they are not freed, until the
    /// result is dropped and no peer has a number left by which it could write to them.
    unsafe fn register(&self, pieces: &[Iov], is_target: bool) -> Result<Self::Memory>;

    /// Maps an unmapped key to pieces of `memory`, and waits until it may be used.
    ///
    /// # Errors
    ///
    /// More pieces than the limit, a request that failed. The key is unmapped then.
    ///
    /// # Safety
    ///
    /// The pieces are readable until the key is unmapped or dropped; as for [`Card::register`] if
    /// `is_target`.
    unsafe fn map(
        &self,
        key: &Self::Key,
        pieces: &[Iov],
        memory: &Self::Memory,
        is_target: bool,
    ) -> Result<()>;

    /// Unmaps a key (`LOCAL_INV`), after which no peer can write to its memory.
    ///
    /// # Errors
    ///
    /// A request that failed.
    fn unmap(&self, key: &Self::Key) -> Result<()>;
}
