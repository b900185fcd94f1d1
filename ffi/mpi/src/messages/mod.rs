// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between two processes of one machine, past the MPI library's own copying.
//!
//! Matching stays with the MPI library: in place of its data a message carries a
//! [`libcopy::p2p::header`], and the receiver of that fetches the data.
//! `docs/design/p2p-protocol.md` says why nothing can be reordered, mistaken or left waiting.

pub mod arguments;
pub mod committed;
#[cfg(feature = "gpu")]
pub mod device;
pub mod error_handlers;
pub mod governed;
pub mod handle;
pub mod incoming;
pub mod init;
pub mod lengths;
#[cfg(not(feature = "rdma"))]
mod no_rdma;
pub mod offering;
pub mod pack_memory;
pub mod packed;
pub mod probes;
pub mod probing;
#[cfg(feature = "rdma")]
pub mod rdma_alltoallw;
pub mod receiving;
#[cfg(feature = "rdma")]
pub mod remote;
pub mod report;
pub mod requests;
pub mod send;
pub mod sending;
pub mod short_receives;
pub mod start;
pub mod truncation;
pub mod view;
pub mod waiting;

#[cfg(feature = "gpu")]
pub use device::pack_all;
pub use governed::add as add_classes;
#[cfg(feature = "gpu")]
pub use lengths::is_special;
#[cfg(not(feature = "rdma"))]
pub use no_rdma::{rdma_alltoallw, remote};
#[cfg(feature = "gpu")]
pub use receiving::{arrived_elsewhere, may_be_header};
pub use remote::is_joint;
pub use report::{numbers, report};
pub use requests::{register, settle_orphans};
pub use start::{announce, finish, leave, start, why_off};
pub use waiting::progress_all;
