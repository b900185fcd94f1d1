// SPDX-License-Identifier: MIT OR Apache-2.0

//! Processes of one machine that work together.

mod decision;
pub(crate) mod key;
pub mod launch;
mod membership;
mod places;
mod probe;
mod resumption;
mod usage;

pub(crate) use decision::Decision;
pub use key::TeamKey;
pub use launch::launch;
pub use membership::Team;
#[doc(hidden)]
pub use resumption::Resumption;
#[doc(hidden)]
pub use usage::Usage;
