// SPDX-License-Identifier: MIT OR Apache-2.0

//! Safe, owning wrappers over the ioctls of `/dev/libcopy`. Nothing else issues one.
//!
//! A [`Domain`] is a set of processes that may share; a [`Region`] is memory that one of them
//! published. A region borrows its memory, so it cannot outlive it. To let peers write to memory is
//! `unsafe` ([`Domain::share_mut`]): they may do so when the region is gone. Copies are loops: the
//! kernel may stop half way when a signal arrives.
//!
//! ```no_run
//! use libcopy::device::Domain;
//!
//! # fn main() -> libcopy::Result<()> {
//! let domain = Domain::create()?;
//! let bytes = vec![7u8; 1 << 20];
//! let region = domain.share(&bytes)?;
//! // Tell a peer domain.key() and region.id(); it does:
//! let peer = Domain::join(&domain.key())?;
//! let mut copy = vec![0u8; 1 << 20];
//! peer.copy_from(region.id(), 0, &mut copy)?;
//! // It tells when it is done, for example through shared memory; then the region may go.
//! # Ok(())
//! # }
//! ```

mod attachment;
mod copy;
mod domain;
mod ioctl;
mod key;
mod owned_region;
mod region;
mod region_id;
pub(crate) mod request;
mod watcher;

pub use attachment::Attachment;
pub use domain::{Device, Domain};
pub use key::DomainKey;
pub(crate) use key::parse_key;
pub(crate) use owned_region::OwnedRegion;
pub use region::Region;
pub use region_id::{RegionId, Rights};
pub use request::{
    Engine, EngineKind, Progress, Request, RequestId, StatusTable, Submission, switch_in_handler,
};
pub use watcher::Watcher;
