// SPDX-License-Identifier: MIT OR Apache-2.0

//! Asynchronous blocking: a collective returns while a copy engine still moves its bytes, and a
//! process that touches its buffer too early is held until they are there.
//!
//! After Copy Engines 2023, sections 3.2 (the guard) and 3.4 (engines, then CPUs); what 4.4 asks
//! for is `policy::monitor`. What is covered, and what is not, is in `docs/offload.md`.

pub(crate) mod guard;
mod pending;
mod signal;
mod stack;
mod transfers;
mod vma;

pub use crate::policy::{Async, Executor};
pub use pending::{
    NoGuards, any_pending, counts, helped, is_settled, pending, pending_word, settle, settle_all,
    settle_raw,
};
pub(crate) use pending::{helper, settle_bytes};
pub(crate) use transfers::{Offload, Part};
