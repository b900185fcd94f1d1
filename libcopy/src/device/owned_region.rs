// SPDX-License-Identifier: MIT OR Apache-2.0

//! [`OwnedRegion`]: a region that keeps its domain, for those who hold both.

use std::ops::Deref;
use std::sync::Arc;

use super::domain::Domain;
use super::region::Region;
use super::region_id::Rights;
use crate::error::Result;
use crate::uapi::Piece;

/// A region that borrows neither its domain nor its memory. Dropping it takes the memory back.
#[derive(Debug)]
pub(crate) struct OwnedRegion {
    region: Region<'static>,
    /// After the region, which refers to it.
    _domain: Arc<Domain>,
}

impl OwnedRegion {
    /// Publishes memory for reading, as [`Domain::share_raw`] does, but of several pieces and with
    /// `CREATE_*` flags.
    ///
    /// # Errors
    ///
    /// As for [`Domain::share_slices`], and `EFAULT` if a piece is not mapped.
    ///
    /// # Safety
    ///
    /// As for [`Domain::share_raw`].
    pub(crate) unsafe fn new(
        domain: &Arc<Domain>,
        pieces: &[Piece],
        flags: u32,
    ) -> Result<OwnedRegion> {
        // SAFETY: an `Arc` does not move what it holds, and the result has a clone that is dropped
        // after the region.
        let lasting: &'static Domain = unsafe { &*Arc::as_ptr(domain) };
        // SAFETY: the pieces are a slice, and peers get no right to write.
        let region = unsafe { lasting.region(pieces.as_ptr(), pieces.len(), Rights::Read, flags) }?;
        Ok(OwnedRegion {
            region,
            _domain: domain.clone(),
        })
    }
}

impl Deref for OwnedRegion {
    type Target = Region<'static>;

    fn deref(&self) -> &Region<'static> {
        &self.region
    }
}
