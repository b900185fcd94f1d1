// SPDX-License-Identifier: MIT OR Apache-2.0

//! Nonblocking collectives: `docs/design/nonblocking.md` says how they get on, and why nobody waits
//! for a rank that is elsewhere.

pub mod calls;
pub mod irregular;
pub mod meet;
pub mod operation;
pub mod persistent;
pub mod requests;

pub use libcopy::collective::nonblocking::engine::parts;
pub use meet::{is_allowed, is_wanted_here, meet, meet_now};
pub use requests::{any, before, before_asking, before_waiting};
