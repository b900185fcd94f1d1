// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a group does: its team does it where all ranks are on one machine, and otherwise node by
//! node.

use libcopy::Parts;

use crate::comm::group::Group;
use crate::library::buffers::Division;
use crate::library::failure::Failure;

impl Group {
    /// Parts of one length each.
    fn equal(&self, each: usize) -> Division {
        let offsets = (0..self.size).map(|rank| rank * each);
        Division {
            counts: vec![each; self.size],
            offsets: offsets.collect(),
        }
    }

    /// Returns when all ranks have come.
    pub fn barrier(&self) -> Result<(), Failure> {
        let mut team = self.team();
        match &self.nodes {
            None => Ok(team.barrier()?),
            Some(nodes) => nodes.barrier(&mut team),
        }
    }

    /// Copies the root's bytes into everybody's.
    pub fn bcast(&self, bytes: &mut [u8], root: usize) -> Result<(), Failure> {
        let mut team = self.team();
        match &self.nodes {
            None => Ok(team.bcast(bytes, root)?),
            Some(nodes) => nodes.bcast(&mut team, bytes, root),
        }
    }

    /// Collects parts of one length at the root, which alone has room for them; without bytes of
    /// its own, its part is in place already.
    pub fn gather(
        &self,
        own: Option<&[u8]>,
        recv: Option<&mut [u8]>,
        root: usize,
    ) -> Result<(), Failure> {
        let mut team = self.team();
        let Some(nodes) = &self.nodes else {
            match (own, recv) {
                (None, Some(recv)) => team.gather_in_place(recv, root)?,
                (own, recv) => team.gather(own.unwrap_or_default(), recv, root)?,
            }
            return Ok(());
        };
        let each = match &recv {
            Some(recv) => recv.len() / self.size,
            None => own.map_or(0, <[u8]>::len),
        };
        let parts = self.equal(each);
        let parts = parts.parts();
        let into = recv.map(|recv| (recv, parts));
        nodes.gatherv(&mut team, own, into, parts.counts, root)
    }

    /// Collects parts of these lengths at the root; nobody has to know the lengths if all are on
    /// one machine.
    pub fn gatherv(
        &self,
        own: Option<&[u8]>,
        recv: Option<(&mut [u8], Parts<'_>)>,
        root: usize,
        lengths: &[usize],
    ) -> Result<(), Failure> {
        let mut team = self.team();
        if let Some(nodes) = &self.nodes {
            return nodes.gatherv(&mut team, own, recv, lengths, root);
        }
        match (own, recv) {
            (None, Some((recv, parts))) => team.gatherv_in_place(recv, Some(parts), root)?,
            (own, recv) => team.gatherv(own.unwrap_or_default(), recv, root)?,
        }
        Ok(())
    }

    /// Hands out the root's bytes in parts of one length.
    pub fn scatter(
        &self,
        whole: Option<&[u8]>,
        own: &mut [u8],
        root: usize,
    ) -> Result<(), Failure> {
        let mut team = self.team();
        let Some(nodes) = &self.nodes else {
            return Ok(team.scatter(whole, own, root)?);
        };
        let parts = self.equal(own.len());
        let parts = parts.parts();
        let whole = whole.map(|bytes| (bytes, parts));
        nodes.scatterv(&mut team, whole, own, parts.counts, root)
    }

    /// Hands out the root's bytes in parts of these lengths, which nobody has to know if all are on
    /// one machine.
    pub fn scatterv(
        &self,
        whole: Option<(&[u8], Parts<'_>)>,
        own: &mut [u8],
        root: usize,
        lengths: &[usize],
    ) -> Result<(), Failure> {
        let mut team = self.team();
        match &self.nodes {
            None => Ok(team.scatterv(whole, own, root)?),
            Some(nodes) => nodes.scatterv(&mut team, whole, own, lengths, root),
        }
    }

    /// Collects parts of one length everywhere; without bytes of our own, our part is in place.
    pub fn allgather(&self, own: Option<&[u8]>, recv: &mut [u8]) -> Result<(), Failure> {
        let mut team = self.team();
        let Some(nodes) = &self.nodes else {
            match own {
                Some(own) => team.allgather(own, recv)?,
                None => team.allgather_in_place(recv)?,
            }
            return Ok(());
        };
        let parts = self.equal(recv.len() / self.size);
        let parts = parts.parts();
        nodes.allgatherv(&mut team, own, recv, parts)
    }

    /// Collects parts of different lengths everywhere; without bytes of our own, our part is in
    /// place.
    pub fn allgatherv(
        &self,
        own: Option<&[u8]>,
        recv: &mut [u8],
        parts: Parts<'_>,
    ) -> Result<(), Failure> {
        let mut team = self.team();
        match (&self.nodes, own) {
            (Some(nodes), own) => nodes.allgatherv(&mut team, own, recv, parts)?,
            (None, Some(own)) => team.allgatherv(own, recv, parts)?,
            (None, None) => team.allgatherv_in_place(recv, parts)?,
        }
        Ok(())
    }
}
