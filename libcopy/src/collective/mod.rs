// SPDX-License-Identifier: MIT OR Apache-2.0

//! Operations that all ranks of a team call together, with the same root and fitting lengths.

use crate::error::{Error, Result};
use crate::team::Team;

/// How a buffer is divided among the ranks, where the parts may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// Bytes of each rank's part.
    pub counts: &'a [usize],
    /// Where each rank's part starts in the buffer.
    pub offsets: &'a [usize],
}

fn later() -> Error {
    Error::argument("operation", "called", "implemented first")
}

#[expect(unused_variables, reason = "signatures first, the operations follow")]
impl Team {
    /// Returns when all ranks have called it.
    pub fn barrier(&mut self) -> Result<()> {
        Err(later())
    }

    /// Copies the root's `bytes` into everybody's.
    pub fn bcast(&mut self, bytes: &mut [u8], root: usize) -> Result<()> {
        Err(later())
    }

    /// Collects everybody's `send`, all of one length, in the root's `recv`, ordered by rank.
    /// Only the root gives a `recv`.
    pub fn gather(&mut self, send: &[u8], recv: Option<&mut [u8]>, root: usize) -> Result<()> {
        Err(later())
    }

    /// [`Team::gather`] where the root's own part is in its place already: at the root, `bytes`
    /// is the whole receive buffer; elsewhere it is what is sent.
    pub fn gather_in_place(&mut self, bytes: &mut [u8], root: usize) -> Result<()> {
        Err(later())
    }

    /// [`Team::gather`] with parts of different lengths. Only the root knows the parts.
    pub fn gatherv(
        &mut self,
        send: &[u8],
        recv: Option<(&mut [u8], Parts<'_>)>,
        root: usize,
    ) -> Result<()> {
        Err(later())
    }

    /// [`Team::gatherv`] where the root's own part is in its place already.
    pub fn gatherv_in_place(
        &mut self,
        bytes: &mut [u8],
        parts: Option<Parts<'_>>,
        root: usize,
    ) -> Result<()> {
        Err(later())
    }

    /// Hands the root's `send` out in equal parts, ordered by rank. Only the root gives a `send`.
    pub fn scatter(&mut self, send: Option<&[u8]>, recv: &mut [u8], root: usize) -> Result<()> {
        Err(later())
    }

    /// [`Team::scatter`] where the root keeps its part in place: at the root, `bytes` is the whole
    /// send buffer; elsewhere it is where the part goes.
    pub fn scatter_in_place(&mut self, bytes: &mut [u8], root: usize) -> Result<()> {
        Err(later())
    }

    /// [`Team::scatter`] with parts of different lengths. Only the root knows the parts.
    pub fn scatterv(
        &mut self,
        send: Option<(&[u8], Parts<'_>)>,
        recv: &mut [u8],
        root: usize,
    ) -> Result<()> {
        Err(later())
    }

    /// [`Team::scatterv`] where the root keeps its part in place.
    pub fn scatterv_in_place(
        &mut self,
        bytes: &mut [u8],
        parts: Option<Parts<'_>>,
        root: usize,
    ) -> Result<()> {
        Err(later())
    }

    /// Collects everybody's `send`, all of one length, in everybody's `recv`.
    pub fn allgather(&mut self, send: &[u8], recv: &mut [u8]) -> Result<()> {
        Err(later())
    }

    /// [`Team::allgather`] where everybody's own part is in its place in `recv` already.
    pub fn allgather_in_place(&mut self, recv: &mut [u8]) -> Result<()> {
        Err(later())
    }

    /// [`Team::allgather`] with parts of different lengths, which all ranks know.
    pub fn allgatherv(&mut self, send: &[u8], recv: &mut [u8], parts: Parts<'_>) -> Result<()> {
        Err(later())
    }

    /// [`Team::allgatherv`] where everybody's own part is in its place already.
    pub fn allgatherv_in_place(&mut self, recv: &mut [u8], parts: Parts<'_>) -> Result<()> {
        Err(later())
    }
}
