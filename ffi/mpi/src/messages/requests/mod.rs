// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests that may turn out to stand for more than the MPI library knows, and the functions that
//! complete requests.
//!
//! A request that we know is *ready* when the library has completed it and its data have moved.
//! Only then the library's own function is called, which returns at once, frees the handle and
//! writes the status.

pub mod batch;
pub mod calls;
pub mod entry;
pub mod progress;
pub mod table;

pub(in crate::messages) use batch::concluded;
pub use calls::{
    ask, cancel, complete, complete_at_once, free, get_status, start, startall, wait_own,
};
pub use entry::Work;
pub use progress::{forget_all, register, settle, settle_orphans};
#[cfg(feature = "gpu")]
pub use table::offers;
pub use table::{
    Unfetched, any, library_first, remember, remember_own, remember_seen, remember_watched,
};
