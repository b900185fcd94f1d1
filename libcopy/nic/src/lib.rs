// SPDX-License-Identifier: MIT OR Apache-2.0

//! Derived datatypes on a network card, after "Network-Accelerated Non-Contiguous Memory Transfers"
//! (Di Girolamo et al., SC 2019): what a card needs to unpack a type while its packets arrive, and
//! a simulator of such a card.
//!
//! **All times that this crate computes are simulated.** No such card was available.

pub mod card;
pub mod iss;
pub mod plan;
pub mod run;
pub mod simulate;

#[doc(inline)]
pub use libcopy_nic_handlers as handlers;
